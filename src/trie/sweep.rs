//! Clearing void marks after raises, a little at each tick.
//!
//! Voiding is O(1) because nothing is touched; the sweep gives back the memory later, and sees to it that a void mark is
//! gone before its generation comes round. Generations are 16 bits: a mark of one half of them is void from the moment
//! the slot enters the other half, 32,767 raises before it could seem valid again. By then two full rounds of the sweep
//! have passed over it: ticks see to that long before, and where nobody ticks, each raise of the slot sweeps its share.
//!
//! Invariant: no call visits more buckets than [`Trie::sweep_share`] or [`SWEEP_BUCKETS`] says.

use super::figures::Figure;
use super::sync::counter::AtomicU64;
use super::sync::{Guard, Ordering, pin};
use super::{Trie, holders};

/// Buckets that one tick sweeps.
const SWEEP_BUCKETS: u64 = 64;

/// Buckets that are swept under one pin.
const PIN_BUCKETS: u64 = 1024;

/// Generations of one half.
const HALF: u16 = 1 << 15;

/// How far the sweep has come. Figures only: Relaxed everywhere.
pub(super) struct Sweep {
    /// Buckets that are still to be visited since the last raise.
    owed: AtomicU64,
    /// Buckets visited since the beginning.
    done: AtomicU64,
}

impl Sweep {
    pub(super) fn new() -> Sweep {
        Sweep { owed: AtomicU64::new(0), done: AtomicU64::new(0) }
    }

    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }
}

impl Trie {
    /// Voids every mark of `slot`, and returns the generation for marks from now on; 0 for a slot that does not exist.
    ///
    /// O(1) as long as somebody ticks: see the page of `sweep.rs`. A void mark could come back to life only through an
    /// insert that sleeps while its slot is raised 32,767 times.
    pub fn raise(&self, slot: u16) -> u16 {
        let raised = self.slots.raise(slot).unwrap_or(0);
        self.sweep.owed.store(self.table.buckets() as u64, Ordering::Relaxed);
        if raised.is_multiple_of(HALF) {
            self.slots.enter_half(slot, self.sweep.done());
        } else if let Some(entered) = self.slots.half_entered(slot) {
            let share = self.sweep_share();
            if self.sweep.done() - entered < share * u64::from(raised % HALF) {
                self.sweep(share);
            }
        }
        raised
    }

    /// What each raise of a slot sweeps if the ticks did not: two rounds in the raises of one half of the generations.
    pub(super) fn sweep_share(&self) -> u64 {
        (2 * self.table.buckets() as u64).div_ceil(u64::from(HALF) - 1)
    }

    /// Sweeps a little, if generations were raised since the last full round.
    pub(super) fn sweep_some(&self) {
        let batch = self.sweep.owed.load(Ordering::Relaxed).min(SWEEP_BUCKETS);
        if batch > 0 {
            self.sweep(batch);
        }
    }

    /// Clears void marks in the next buckets and takes out the runs that nobody holds any more.
    fn sweep(&self, batch: u64) {
        let buckets = self.table.buckets() as u64;
        let from = self.sweep.done.fetch_add(batch, Ordering::Relaxed);
        let end = from + batch;
        for start in (from..end).step_by(PIN_BUCKETS as usize) {
            let guard = pin();
            for at in start..end.min(start + PIN_BUCKETS) {
                self.sweep_bucket((at % buckets) as usize, &guard);
            }
        }
        let pay = |owed: u64| Some(owed.saturating_sub(batch));
        // Always succeeds: the closure never refuses.
        let _ = self.sweep.owed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay);
    }

    fn sweep_bucket(&self, bucket: usize, guard: &Guard) {
        for edge in self.table.edges_in(bucket, guard) {
            if holders::scrub(edge.node.marks(), &self.slots) {
                continue;
            }
            if let Some(node) = self.table.remove(edge) {
                self.ledger().figures.add(Figure::SweptNodes, 1);
                self.retire(node, guard);
            }
        }
    }
}
