//! The primitives of a running router.

use super::Ordering;

pub(in crate::trie) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

/// Puts `new` into the cell if it still holds `old`.
///
/// Release: whoever loads `new` with Acquire sees everything that was written to its node before.
pub(in crate::trie) fn swing<T>(cell: &AtomicPtr<T>, old: *mut T, new: *mut T) -> bool {
    cell.compare_exchange(old, new, Ordering::Release, Ordering::Relaxed).is_ok()
}

/// Between a publication and a second look at its bucket: of two threads that publish and then look, at least one sees
/// both publications.
pub(in crate::trie) fn publication_fence() {
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// Sets `bit` in the cell for good. Relaxed: every change of a cell is a read-modify-write, and those of one cell have one
/// order, so a change either comes before and is in the final word, or finds the bit.
pub(in crate::trie) fn freeze(cell: &AtomicU64, bit: u64) {
    cell.fetch_or(bit, Ordering::Relaxed);
}

/// Acquire: pairs with the Release of a raise, so that the scrub before it is seen by whoever marks with the
/// generation that it made.
pub(in crate::trie) fn read_raises(raises: &AtomicU32) -> u32 {
    raises.load(Ordering::Acquire)
}

/// Plain memory that is written before publication and never after; costs nothing here.
pub(in crate::trie) struct Tracked;

impl Tracked {
    pub(in crate::trie) fn new() -> Tracked {
        Tracked
    }

    pub(in crate::trie) fn read(&self) {}

    pub(in crate::trie) fn unlink(&self) {}
}

/// A pinned epoch. It must not outlive the operation that pinned it.
pub(in crate::trie) struct Guard(crossbeam_epoch::Guard);

pub(in crate::trie) fn pin() -> Guard {
    Guard(crossbeam_epoch::pin())
}

impl Guard {
    /// Runs `destroy` after every guard that is pinned now has been dropped.
    pub(in crate::trie) fn defer(&self, destroy: impl FnOnce() + Send + 'static) {
        self.0.defer(destroy);
    }

    /// Hands this thread's garbage to the collector and collects what is ripe.
    pub(in crate::trie) fn flush(&self) {
        self.0.flush();
    }

    /// Lets the epoch move on in the middle of a long operation. Takes `&mut self`, so no reference that this guard
    /// protects can be alive.
    pub(in crate::trie) fn repin(&mut self) {
        self.0.repin();
    }
}
