//! The one door to atomics and to memory reclamation, so that a model checker can stand in for both.
//!
//! Everything in `trie/` that one thread writes while another reads goes through here. `epoch` wraps crossbeam-epoch:
//! a [`Guard`] keeps whatever was reachable when it was pinned alive, and [`Guard::defer`] runs a destructor once no
//! guard that could have seen its object is left. Nothing outside `trie/` ever holds a guard.
//!
//! [`counter`] is for figures that decide no memory safety (bytes used, nodes, ticks of a byte clock); they are plain
//! atomics under every model, which keeps the models' state space on the structure itself.

pub(super) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

pub(super) mod counter {
    pub(in crate::trie) use std::sync::atomic::{AtomicU64, AtomicUsize};
}

/// A pinned epoch. It must not outlive the operation that pinned it.
pub(super) struct Guard(crossbeam_epoch::Guard);

pub(super) fn pin() -> Guard {
    Guard(crossbeam_epoch::pin())
}

impl Guard {
    /// Runs `destroy` after every guard that is pinned now has been dropped.
    pub(super) fn defer(&self, destroy: impl FnOnce() + Send + 'static) {
        self.0.defer(destroy);
    }

    /// Hands this thread's garbage to the collector and collects what is ripe.
    pub(super) fn flush(&self) {
        self.0.flush();
    }

    /// Lets the epoch move on in the middle of a long operation. Takes `&mut self`, so no reference that this guard
    /// protects can be alive.
    pub(super) fn repin(&mut self) {
        self.0.repin();
    }
}
