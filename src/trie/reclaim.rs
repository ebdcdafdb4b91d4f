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
//! Each thread has stacks of its own, so that what one evicts and frees moves no line between cores. Ticks look after the stacks of
//! threads that have gone quiet, and so does whoever finds no memory.
//!
//! Shared with the destructors that wait in the epoch, which may outlive the trie.

use std::sync::Arc;

use super::figures::{LINES, own_line};
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
    homes: Box<[Home]>,
}

/// A thread's nodes.
#[repr(align(128))]
struct Home {
    limbo: Stack,
    /// Pushes onto limbo since it was last handed over, and their bytes; figures.
    waiting: AtomicUsize,
    bytes: AtomicUsize,
    ripe: RipeStack,
}

impl Home {
    fn new() -> Home {
        Home { limbo: Stack::new(), waiting: AtomicUsize::new(0), bytes: AtomicUsize::new(0), ripe: RipeStack::new() }
    }
}

impl Reclaim {
    pub(super) fn new(ledger: Ledger) -> Reclaim {
        Reclaim { ledger, homes: (0..LINES).map(|_| Home::new()).collect() }
    }

    pub(super) fn bytes() -> usize {
        Ledger::bytes() + LINES * size_of::<Home>()
    }

    /// Takes over a node that has just left the table.
    pub(super) fn retire(self: &Arc<Reclaim>, node: Chain, guard: &Guard) {
        let (at, bytes) = (own_line(), node.first().bytes());
        let home = &self.homes[at];
        self.ledger.unlinked(node.first().run().len());
        // Before the push: whoever takes it off counts it.
        home.bytes.fetch_add(bytes, Ordering::Relaxed);
        home.limbo.push(node);
        if home.waiting.fetch_add(1, Ordering::Relaxed) + 1 >= BATCH {
            self.hand_over(at, guard);
            guard.flush();
        }
    }

    /// Sends what is in limbo through the epoch.
    fn hand_over(self: &Arc<Reclaim>, at: usize, guard: &Guard) {
        let home = &self.homes[at];
        home.waiting.store(0, Ordering::Relaxed);
        if let Some(batch) = home.limbo.take() {
            self.ledger.waits(home.bytes.swap(0, Ordering::Relaxed));
            let reclaim = self.clone();
            batch.ripen(guard, move |nodes| reclaim.homes[at].ripe.push(nodes));
        }
    }

    /// The same with what all threads have there.
    pub(super) fn hand_over_all(self: &Arc<Reclaim>, guard: &Guard) {
        for at in 0..LINES {
            self.hand_over(at, guard);
        }
        guard.flush();
    }

    /// Frees nodes of the calling thread that have been through the epoch.
    pub(super) fn free_some(&self) {
        self.free(own_line());
    }

    /// Frees some nodes of each thread.
    pub(super) fn free_some_of_all(&self) {
        (0..LINES).for_each(|at| self.free(at));
    }

    fn free(&self, at: usize) {
        let ripe = &self.homes[at].ripe;
        if ripe.is_empty() {
            return;
        }
        let mut nodes = ripe.take();
        let mut bytes = 0;
        for _ in 0..MAX_FREED {
            let Some(node) = nodes.pop() else { break };
            bytes += node.view().bytes();
        }
        ripe.push(nodes);
        self.ledger.freed(bytes);
    }

    /// Bytes that wait for reclamation.
    pub(super) fn backlog(&self) -> usize {
        let in_limbo: usize = self.homes.iter().map(|home| home.bytes.load(Ordering::Relaxed)).sum();
        self.ledger.backlog() + in_limbo
    }
}
