//! The way of a node from the table back to the allocator.
//!
//! ```text
//! unlinked → limbo → (32 at a time) the epoch → ripe → freed by a writer
//! ```
//!
//! Going through the epoch in batches keeps its queues short. And what the epoch runs is only a push onto `ripe`:
//! crossbeam-epoch runs ripe destructors in whichever thread pins next, and a lookup should not pay for freeing what
//! others have evicted. Nodes count as backlog until they are freed.
//!
//! Shared with the destructors that wait in the epoch, which may outlive the trie.

use std::sync::Arc;

use super::ledger::Ledger;
use super::node::{Chain, RipeStack, Stack};
use super::sync::counter::AtomicUsize;
use super::sync::{Guard, Ordering};

/// Nodes that go through the epoch together.
const BATCH: usize = if cfg!(loom) { 1 } else { 32 };

/// Nodes that one call frees.
const MAX_FREED: usize = 128;

pub(super) struct Reclaim {
    pub(super) ledger: Ledger,
    limbo: Stack,
    /// Pushes onto limbo since it was last handed over; a figure.
    waiting: AtomicUsize,
    ripe: RipeStack,
}

impl Reclaim {
    pub(super) fn new(ledger: Ledger) -> Reclaim {
        Reclaim { ledger, limbo: Stack::new(), waiting: AtomicUsize::new(0), ripe: RipeStack::new() }
    }

    /// Takes over a node that has just left the table.
    pub(super) fn retire(self: &Arc<Reclaim>, node: Chain, guard: &Guard) {
        self.ledger.unlinked(node.first().bytes(), node.first().run().len());
        self.limbo.push(node);
        if self.waiting.fetch_add(1, Ordering::Relaxed) + 1 >= BATCH {
            self.hand_over(guard);
        }
    }

    /// Sends what is in limbo through the epoch.
    pub(super) fn hand_over(self: &Arc<Reclaim>, guard: &Guard) {
        self.waiting.store(0, Ordering::Relaxed);
        if let Some(batch) = self.limbo.take() {
            let home = self.clone();
            batch.ripen(guard, move |nodes| home.ripe.push(nodes));
        }
        guard.flush();
    }

    /// Frees nodes that have been through the epoch.
    pub(super) fn free_some(&self) {
        let mut ripe = self.ripe.take();
        let mut bytes = 0;
        for _ in 0..MAX_FREED {
            let Some(node) = ripe.pop() else { break };
            bytes += node.view().bytes();
        }
        self.ripe.push(ripe);
        self.ledger.freed(bytes);
    }
}
