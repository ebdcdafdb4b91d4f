//! The primitives of a running router.

use std::cell::Cell;

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

/// What a thread keeps between its operations: a pin that stands, and is brought up to date by each of them.
///
/// Every 128th pin of crossbeam-epoch collects garbage on whatever thread it falls, a lookup's too, and each costs a
/// fence; bringing a pin up to date does neither. But one that stands while its thread does nothing holds up everybody's
/// reclamation. So a thread has one only between [`keep`] and [`rest`].
struct Standing {
    keeps: Cell<bool>,
    /// Guards in use: only the last one to go may stand, or it could not be brought up to date.
    used: Cell<u32>,
    guard: Cell<Option<crossbeam_epoch::Guard>>,
}

thread_local! {
    static STANDING: Standing = const { Standing { keeps: Cell::new(false), used: Cell::new(0), guard: Cell::new(None) } };
}

impl Standing {
    fn pin(&self) -> crossbeam_epoch::Guard {
        self.used.set(self.used.get() + 1);
        match self.guard.take() {
            Some(mut guard) => {
                guard.repin();
                guard
            }
            None => crossbeam_epoch::pin(),
        }
    }

    fn leave(&self, guard: crossbeam_epoch::Guard) {
        self.used.set(self.used.get() - 1);
        if self.used.get() == 0 && self.keeps.get() {
            self.guard.set(Some(guard));
        }
    }
}

/// A pinned epoch. It must not outlive the operation that pinned it.
pub(in crate::trie) struct Guard(Option<crossbeam_epoch::Guard>);

pub(in crate::trie) fn pin() -> Guard {
    // While a thread ends, an operation of some destructor pins for itself.
    Guard(Some(STANDING.try_with(Standing::pin).unwrap_or_else(|_| crossbeam_epoch::pin())))
}

/// The calling thread's pin may stand from one operation to the next, until [`rest`].
pub(in crate::trie) fn keep() {
    let _ = STANDING.try_with(|standing| standing.keeps.set(true));
}

/// Ends the calling thread's standing pin; from now on each operation has its own.
pub(in crate::trie) fn rest() {
    let _ = STANDING.try_with(|standing| {
        standing.keeps.set(false);
        standing.guard.take();
    });
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(guard) = self.0.take() {
            let _ = STANDING.try_with(|standing| standing.leave(guard));
        }
    }
}

impl Guard {
    fn pinned(&self) -> &crossbeam_epoch::Guard {
        self.0.as_ref().expect("present until dropped")
    }

    /// Runs `destroy` after every guard that is pinned now has been dropped.
    pub(in crate::trie) fn defer(&self, destroy: impl FnOnce() + Send + 'static) {
        self.pinned().defer(destroy);
    }

    /// Hands this thread's garbage to the collector and collects what is ripe.
    pub(in crate::trie) fn flush(&self) {
        self.pinned().flush();
    }

    /// Lets the epoch move on in the middle of a long operation. Takes `&mut self`, so no reference that this guard
    /// protects can be alive.
    pub(in crate::trie) fn repin(&mut self) {
        if let Some(guard) = &mut self.0 {
            guard.repin();
        }
    }
}
