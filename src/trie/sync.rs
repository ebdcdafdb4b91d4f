//! The one door to atomics and to memory reclamation, so that a model checker can stand in for both.
//!
//! Everything in `trie/` that one thread writes while another reads goes through here:
//! - atomics, and the four operations on them that the trie's promises rest on: [`swing`], [`publication_fence`],
//!   [`freeze`] and [`read_raises`];
//! - [`Guard`]: whatever was reachable when it was pinned stays allocated until it is dropped, and [`Guard::defer`]
//!   runs a destructor once no guard that could have seen its object is left;
//! - [`Tracked`]: marks plain memory that is written once before publication, so that a model can see a read which no
//!   ordering protects;
//! - [`counter`]: figures that decide no memory safety (bytes used, nodes, ticks of a byte clock). They are plain
//!   atomics under every model, which keeps the models' state space on the structure itself.
//!
//! `real` is crossbeam-epoch and std; `model` is an exact epoch on loom's or shuttle's primitives, and can weaken each
//! of these guarantees to show that a model notices.

#[cfg(any(loom, shuttle))]
mod model;
#[cfg(not(any(loom, shuttle)))]
mod real;

#[cfg(any(loom, shuttle))]
pub(super) use model::*;
#[cfg(not(any(loom, shuttle)))]
pub(super) use real::*;

pub(super) use std::sync::atomic::Ordering;

/// A number of the calling thread's own.
#[inline]
pub(super) fn own_number() -> usize {
    thread_local! {
        static OWN: std::cell::Cell<usize> = const { std::cell::Cell::new(usize::MAX) };
    }
    let own = OWN.get();
    if own < usize::MAX {
        return own;
    }
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    OWN.set(NEXT.fetch_add(1, Ordering::Relaxed));
    OWN.get()
}

pub(super) mod counter {
    pub(in crate::trie) use std::sync::atomic::{AtomicU64, AtomicUsize};
}
