//! Clearing void marks after raises, a little at each tick.
//!
//! Voiding is O(1) because nothing is touched; the sweep gives back the memory later, and sees to it that a void mark is
//! gone before its generation comes round. Generations are 16 bits: a mark of one half of them is void from the moment
//! the slot enters the other half, 32,768 raises before it could seem valid again. By then two full rounds of the sweep
//! have passed over it; if they have not, the last raise before that clears the whole table itself.

use super::sync::counter::AtomicU64;
use super::sync::{Guard, Ordering, pin};
use super::{Trie, holders};

/// Buckets that one tick sweeps.
const SWEEP_BUCKETS: u64 = 64;

/// Buckets that a full clearing does under one pin.
const SCRUB_BUCKETS: usize = 1024;

/// Generations of one half.
const HALF: u16 = 1 << 15;

/// How far the sweep has come. Figures only: Relaxed everywhere.
pub(super) struct Sweep {
    /// Buckets that are still to be visited since the last raise.
    owed: AtomicU64,
    /// Buckets visited since the beginning.
    done: AtomicU64,
    /// Times that a raise had to clear the whole table itself.
    forced: AtomicU64,
}

impl Sweep {
    pub(super) fn new() -> Sweep {
        Sweep { owed: AtomicU64::new(0), done: AtomicU64::new(0), forced: AtomicU64::new(0) }
    }

    pub(super) fn forced(&self) -> u64 {
        self.forced.load(Ordering::Relaxed)
    }
}

impl Trie {
    /// Voids every mark of `slot`, and returns the generation for marks from now on; 0 for a slot that does not exist.
    ///
    /// O(1) as long as somebody ticks: see the page of `sweep.rs`. A void mark could come back to life only through an
    /// insert that sleeps while its slot is raised 32,767 times.
    pub fn raise(&self, slot: u16) -> u16 {
        let raised = self.slots.raise(slot).unwrap_or(0);
        if raised.wrapping_add(1).is_multiple_of(HALF) {
            self.prepare_half(slot);
        }
        self.sweep.owed.store(self.table.buckets() as u64, Ordering::Relaxed);
        raised
    }

    /// Sees to it that no mark is left of the half of generations that the slot's next raise enters.
    fn prepare_half(&self, slot: u16) {
        let two_rounds = 2 * self.table.buckets() as u64;
        let since = |then: u64| self.sweep.done.load(Ordering::Relaxed) - then;
        if self.slots.half_entered(slot).is_some_and(|then| since(then) < two_rounds) {
            self.sweep.forced.fetch_add(1, Ordering::Relaxed);
            self.scrub_all();
        }
        self.slots.enter_half(slot, self.sweep.done.load(Ordering::Relaxed));
    }

    /// Clears void marks in the next few buckets and takes out the runs that nobody holds any more, if generations
    /// were raised since the last full round.
    pub(super) fn sweep_some(&self) {
        let batch = self.sweep.owed.load(Ordering::Relaxed).min(SWEEP_BUCKETS);
        if batch == 0 {
            return;
        }
        let buckets = self.table.buckets();
        let from = self.sweep.done.fetch_add(batch, Ordering::Relaxed);
        let guard = pin();
        for at in from..from + batch {
            self.sweep_bucket((at % buckets as u64) as usize, &guard);
        }
        let pay = |owed: u64| Some(owed.saturating_sub(batch));
        // Always succeeds: the closure never refuses.
        let _ = self.sweep.owed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay);
    }

    fn scrub_all(&self) {
        let buckets = self.table.buckets();
        for from in (0..buckets).step_by(SCRUB_BUCKETS) {
            let guard = pin();
            for bucket in from..buckets.min(from + SCRUB_BUCKETS) {
                self.sweep_bucket(bucket, &guard);
            }
        }
    }

    fn sweep_bucket(&self, bucket: usize, guard: &Guard) {
        for edge in self.table.edges_in(bucket, guard) {
            if holders::scrub(edge.node.marks(), &self.slots) {
                continue;
            }
            if let Some(node) = self.table.remove(edge) {
                self.ledger().swept.fetch_add(1, Ordering::Relaxed);
                self.retire(node, guard);
            }
        }
    }
}
