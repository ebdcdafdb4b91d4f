//! The primitives under a model checker: loom (every interleaving, weak memory) or shuttle (random schedules).
//!
//! The epoch is the strictest that keeps its promise: garbage is freed the moment the last guard that was pinned when
//! it was deferred is dropped. A freed node is not given back to the allocator: it stays as a witness, and touching it
//! is a failure that the checker reports, instead of undefined behaviour in the checker.
//!
//! [`weaken`] takes one guarantee away, for the models that must fail.

#[cfg(loom)]
use loom as checker;
#[cfg(all(shuttle, not(loom)))]
use shuttle as checker;

use std::sync::atomic::{AtomicBool, AtomicU8};

use super::Ordering;
use checker::sync::Mutex;

pub(in crate::trie) use checker::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

/// A guarantee that a model can do without, to show that it is needed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::trie) enum Weakness {
    None,
    /// A node is published without ordering what was written to it.
    RelaxedPublication,
    /// A publication and the look after it may pass each other.
    NoFence,
    /// A node is freed when it is unlinked, whoever may still read it.
    FreeAtOnce,
    /// A cell is written without looking whether it has changed.
    BlindSwing,
    /// Generations are not read.
    NoGeneration,
    /// Marks can still be put on a run that is being copied.
    NoFreeze,
}

static WEAKNESS: AtomicU8 = AtomicU8::new(Weakness::None as u8);

/// Takes the guarantee away, for the whole process, until the result is dropped: one model at a time.
pub(in crate::trie) fn weaken(weakness: Weakness) -> impl Drop {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    // A model that must fail poisons the lock, which means nothing here.
    let turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    WEAKNESS.store(weakness as u8, Ordering::SeqCst);
    turn
}

fn weakened(weakness: Weakness) -> bool {
    WEAKNESS.load(Ordering::SeqCst) == weakness as u8
}

pub(in crate::trie) fn swing<T>(cell: &AtomicPtr<T>, old: *mut T, new: *mut T) -> bool {
    let order = if weakened(Weakness::RelaxedPublication) { Ordering::Relaxed } else { Ordering::Release };
    if weakened(Weakness::BlindSwing) {
        cell.store(new, order);
        return true;
    }
    cell.compare_exchange(old, new, order, Ordering::Relaxed).is_ok()
}

pub(in crate::trie) fn publication_fence() {
    #[cfg(loom)]
    if !weakened(Weakness::NoFence) {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

pub(in crate::trie) fn freeze(cell: &AtomicU64, bit: u64) {
    if !weakened(Weakness::NoFreeze) {
        cell.fetch_or(bit, Ordering::Relaxed);
    }
}

pub(in crate::trie) fn read_raises(raises: &AtomicU32) -> u32 {
    if weakened(Weakness::NoGeneration) { 0 } else { raises.load(Ordering::Acquire) }
}

/// Plain memory that is written before publication and never after; loom checks that reads are ordered behind the
/// writes, and both checkers that nothing is read after it was freed.
pub(in crate::trie) struct Tracked {
    #[cfg(loom)]
    memory: loom::cell::UnsafeCell<()>,
    unlinked: AtomicBool,
    freed: AtomicBool,
}

impl Tracked {
    pub(in crate::trie) fn new() -> Tracked {
        Tracked {
            #[cfg(loom)]
            memory: loom::cell::UnsafeCell::new(()),
            unlinked: AtomicBool::new(false),
            freed: AtomicBool::new(false),
        }
    }

    pub(in crate::trie) fn read(&self) {
        assert!(!self.freed.load(Ordering::SeqCst), "a freed node is read");
        #[cfg(loom)]
        self.memory.with(|_| {});
    }

    pub(in crate::trie) fn unlink(&self) {
        assert!(!self.unlinked.swap(true, Ordering::SeqCst), "a node is unlinked twice");
    }

    pub(in crate::trie) fn free(&self) {
        assert!(!self.freed.swap(true, Ordering::SeqCst), "a node is freed twice");
        #[cfg(loom)]
        self.memory.with_mut(|_| {});
    }
}

type Garbage = (Vec<u64>, Box<dyn FnOnce() + Send>);

#[derive(Default)]
struct Epoch {
    next: u64,
    pinned: Vec<u64>,
    /// Destructors, each with the guards it waits for.
    garbage: Vec<Garbage>,
}

checker::lazy_static! {
    static ref EPOCH: Mutex<Epoch> = Mutex::new(Epoch::default());
}

pub(in crate::trie) struct Guard(u64);

pub(in crate::trie) fn pin() -> Guard {
    let mut epoch = EPOCH.lock().expect("a model's lock is never poisoned");
    epoch.next += 1;
    let id = epoch.next;
    epoch.pinned.push(id);
    Guard(id)
}

/// A model's threads keep no pin between their operations.
pub(in crate::trie) fn keep() {}

pub(in crate::trie) fn rest() {}

impl Guard {
    pub(in crate::trie) fn defer(&self, destroy: impl FnOnce() + Send + 'static) {
        if weakened(Weakness::FreeAtOnce) {
            return destroy();
        }
        let mut epoch = EPOCH.lock().expect("a model's lock is never poisoned");
        let waits_for = epoch.pinned.clone();
        epoch.garbage.push((waits_for, Box::new(destroy)));
    }

    pub(in crate::trie) fn flush(&self) {}

    pub(in crate::trie) fn repin(&mut self) {}
}

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let mut epoch = EPOCH.lock().expect("a model's lock is never poisoned");
        epoch.pinned.retain(|&id| id != self.0);
        for (waits_for, _) in &mut epoch.garbage {
            waits_for.retain(|&id| id != self.0);
        }
        let (ripe, green) = std::mem::take(&mut epoch.garbage).into_iter().partition(|(waits, _)| waits.is_empty());
        epoch.garbage = green;
        drop(epoch);
        let ripe: Vec<Garbage> = ripe;
        ripe.into_iter().for_each(|(_, destroy)| destroy());
    }
}
