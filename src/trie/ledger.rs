//! The budget: bytes in use against the hard limit, and the figures of [`super::Stats`].
//!
//! Invariant: `used` = fixed parts + bytes of every node that is allocated, whether published, about to be, or waiting
//! for reclamation; `used` ≤ `limit` at every moment, because bytes are reserved before they are allocated and released
//! after they are freed. `backlog` is the part of `used` that waits for reclamation.
//!
//! All orderings are Relaxed: a reservation is one read-modify-write on one counter, and no other memory is read on
//! the strength of these figures.

use super::sync::Ordering::Relaxed;
use super::sync::counter::{AtomicU64, AtomicUsize};

pub(super) struct Ledger {
    limit: usize,
    fixed: usize,
    /// What published nodes may fill; the rest up to the limit is for nodes that wait for reclamation.
    target: usize,
    used: AtomicUsize,
    backlog: AtomicUsize,
    pub(super) nodes: AtomicUsize,
    pub(super) chunks: AtomicUsize,
    pub(super) evicted: AtomicU64,
    pub(super) swept: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) void: AtomicU64,
}

/// Space kept free for nodes that wait for reclamation, as a share of the space for nodes: 1/16.
const RESERVE_SHARE: usize = 16;

impl Ledger {
    pub(super) fn new(limit: usize, fixed: usize) -> Ledger {
        let space = limit.saturating_sub(fixed);
        Ledger {
            limit,
            fixed,
            target: limit - space / RESERVE_SHARE,
            used: AtomicUsize::new(fixed),
            backlog: AtomicUsize::new(0),
            nodes: AtomicUsize::new(0),
            chunks: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            swept: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            void: AtomicU64::new(0),
        }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn fixed(&self) -> usize {
        self.fixed
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    pub(super) fn backlog(&self) -> usize {
        self.backlog.load(Relaxed)
    }

    /// Takes `bytes` out of the budget, or takes nothing and says no.
    pub(super) fn reserve(&self, bytes: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= self.limit);
        self.used.fetch_update(Relaxed, Relaxed, fits).is_ok()
    }

    pub(super) fn release(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Relaxed);
    }

    /// How many bytes of published nodes would lie above the target after `bytes` more.
    pub(super) fn excess(&self, bytes: usize) -> usize {
        let live = self.used().saturating_sub(self.backlog());
        (live + bytes).saturating_sub(self.target)
    }

    /// Counts a node before it is published, so that no count of its end can come first.
    pub(super) fn built(&self, run_length: usize) {
        self.nodes.fetch_add(1, Relaxed);
        self.chunks.fetch_add(run_length, Relaxed);
    }

    /// A node that was built and never published is freed.
    pub(super) fn discarded(&self, bytes: usize, run_length: usize) {
        self.nodes.fetch_sub(1, Relaxed);
        self.chunks.fetch_sub(run_length, Relaxed);
        self.release(bytes);
    }

    pub(super) fn unlinked(&self, bytes: usize, run_length: usize) {
        self.nodes.fetch_sub(1, Relaxed);
        self.chunks.fetch_sub(run_length, Relaxed);
        self.backlog.fetch_add(bytes, Relaxed);
    }

    /// Nodes of so many bytes, which waited for reclamation, are freed.
    pub(super) fn freed(&self, bytes: usize) {
        self.backlog.fetch_sub(bytes, Relaxed);
        self.release(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_reached_and_never_passed() {
        let ledger = Ledger::new(1_000, 200);
        assert!(ledger.reserve(800));
        assert!(!ledger.reserve(1));
        ledger.built(3);
        ledger.unlinked(300, 3);
        assert!(!ledger.reserve(1), "what waits for reclamation still counts");
        ledger.freed(300);
        assert_eq!((ledger.used(), ledger.backlog()), (700, 0));
        assert!(ledger.reserve(300));
        assert!(!ledger.reserve(usize::MAX));
    }

    #[test]
    fn excess_leaves_the_reserve_and_the_backlog_out() {
        let ledger = Ledger::new(1_600, 0);
        assert!(ledger.reserve(1_500));
        assert_eq!(ledger.excess(0), 0);
        assert_eq!(ledger.excess(50), 50);
        ledger.unlinked_for_test(100);
        assert_eq!(ledger.excess(50), 0);
    }

    impl Ledger {
        fn unlinked_for_test(&self, bytes: usize) {
            self.built(1);
            self.unlinked(bytes, 1);
        }
    }
}
