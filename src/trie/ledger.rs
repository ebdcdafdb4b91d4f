//! The budget: bytes in use against the hard limit, and the figures of [`super::Stats`].
//!
//! A thread takes bytes out of the budget some at a time and keeps what it has not used yet as an **allowance**, on a line of its own,
//! to which it also gives back what it frees: in the steady state, where each new node takes an old one's place, no two threads
//! write one line. Allowances count as taken, so that the limit holds; when the budget is empty they are called in. A small
//! trie has none.
//!
//! Invariant: `used` = fixed parts + bytes of every node that is allocated, whether published, about to be, or waiting
//! for reclamation; `used` ≤ `limit` at every moment, because bytes are reserved before they are allocated and released
//! after they are freed. `backlog` is the part of `used` that waits for reclamation.
//!
//! All orderings are Relaxed: a reservation is one read-modify-write on one counter, and no other memory is read on
//! the strength of these figures.

use super::figures::{Figure, Figures, LINES, own_line};
use super::sync::Ordering::Relaxed;
use super::sync::counter::AtomicUsize;

/// A figure that many write, on a line without anything that others only read.
#[repr(align(128))]
struct Line(AtomicUsize);

pub(super) struct Ledger {
    limit: usize,
    fixed: usize,
    /// What published nodes may fill; the rest up to the limit is for nodes that wait for reclamation.
    target: usize,
    /// With the allowances.
    taken: Line,
    allowances: Box<[Line]>,
    /// What a thread takes at a time; 0 where the trie is small.
    batch: usize,
    backlog: Line,
    pub(super) figures: Figures,
}

/// Space kept free for nodes that wait for reclamation, as a share of the space for nodes: 1/16.
const RESERVE_SHARE: usize = 16;

/// Where a batch would be smaller, each node is taken out of the budget by itself.
const MIN_BATCH_BYTES: usize = 1 << 10;
const MAX_BATCH_BYTES: usize = 64 << 10;

impl Ledger {
    pub(super) fn bytes() -> usize {
        Figures::bytes() + LINES * size_of::<Line>()
    }

    pub(super) fn new(limit: usize, fixed: usize) -> Ledger {
        let space = limit.saturating_sub(fixed);
        // All allowances together are an eighth of the reserve at most.
        let batch = space / RESERVE_SHARE / (16 * LINES);
        Ledger {
            limit,
            fixed,
            target: limit - space / RESERVE_SHARE,
            taken: Line(AtomicUsize::new(fixed)),
            allowances: (0..LINES).map(|_| Line(AtomicUsize::new(0))).collect(),
            batch: if batch < MIN_BATCH_BYTES { 0 } else { batch.min(MAX_BATCH_BYTES) },
            backlog: Line(AtomicUsize::new(0)),
            figures: Figures::new(),
        }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn fixed(&self) -> usize {
        self.fixed
    }

    pub(super) fn used(&self) -> usize {
        let unused: usize = self.allowances.iter().map(|line| line.0.load(Relaxed)).sum();
        self.taken.0.load(Relaxed).saturating_sub(unused)
    }

    /// Not below zero, as it can be while one thread frees what another one is about to count.
    pub(super) fn backlog(&self) -> usize {
        let bytes = self.backlog.0.load(Relaxed);
        if bytes > usize::MAX / 2 { 0 } else { bytes }
    }

    /// Takes `bytes` out of the budget, or takes nothing and says no.
    pub(super) fn reserve(&self, bytes: usize) -> bool {
        let own = &self.allowances[own_line()].0;
        let spend = |allowance: usize| allowance.checked_sub(bytes);
        if self.batch > 0 {
            if own.fetch_update(Relaxed, Relaxed, spend).is_ok() {
                return true;
            }
            if self.take(bytes.saturating_add(self.batch)) {
                own.fetch_add(self.batch, Relaxed);
                return true;
            }
        }
        self.take(bytes) || {
            self.call_in();
            self.take(bytes)
        }
    }

    fn take(&self, bytes: usize) -> bool {
        let fits = |taken: usize| taken.checked_add(bytes).filter(|&sum| sum <= self.limit);
        self.taken.0.fetch_update(Relaxed, Relaxed, fits).is_ok()
    }

    /// Takes all allowances back into the budget.
    fn call_in(&self) {
        for line in &self.allowances {
            if line.0.load(Relaxed) > 0 {
                self.taken.0.fetch_sub(line.0.swap(0, Relaxed), Relaxed);
            }
        }
    }

    pub(super) fn release(&self, bytes: usize) {
        if self.batch == 0 {
            self.taken.0.fetch_sub(bytes, Relaxed);
            return;
        }
        let own = &self.allowances[own_line()].0;
        if own.fetch_add(bytes, Relaxed) + bytes > 2 * self.batch {
            // Others can only have called it in.
            let most = own.swap(0, Relaxed);
            let kept = most.min(self.batch);
            own.fetch_add(kept, Relaxed);
            self.taken.0.fetch_sub(most - kept, Relaxed);
        }
    }

    /// How many bytes of published nodes, and of allowances, would lie above the target after `bytes` more.
    pub(super) fn excess(&self, bytes: usize) -> usize {
        let live = self.taken.0.load(Relaxed).saturating_sub(self.backlog());
        (live + bytes).saturating_sub(self.target)
    }

    /// Counts a node before it is published, so that no count of its end can come first.
    pub(super) fn built(&self, run_length: usize) {
        self.figures.add(Figure::Nodes, 1);
        self.figures.add(Figure::Chunks, run_length as u64);
    }

    /// A node that was built and never published is freed.
    pub(super) fn discarded(&self, bytes: usize, run_length: usize) {
        self.figures.subtract(Figure::Nodes, 1);
        self.figures.subtract(Figure::Chunks, run_length as u64);
        self.release(bytes);
    }

    /// A node is out of the table. Its bytes are to be given to [`Ledger::waits`] soon.
    pub(super) fn unlinked(&self, run_length: usize) {
        self.figures.subtract(Figure::Nodes, 1);
        self.figures.subtract(Figure::Chunks, run_length as u64);
    }

    /// Nodes of so many bytes begin to wait for reclamation.
    pub(super) fn waits(&self, bytes: usize) {
        self.backlog.0.fetch_add(bytes, Relaxed);
    }

    /// Nodes of so many bytes, which waited for reclamation, are freed.
    pub(super) fn freed(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.backlog.0.fetch_sub(bytes, Relaxed);
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
        ledger.unlinked(3);
        ledger.waits(300);
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

    #[test]
    fn threads_that_keep_allowances_never_pass_the_limit_and_get_all_of_it() {
        let ledger = Ledger::new(16 << 20, 0);
        assert!(ledger.batch > 0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..2_000 {
                        assert!(ledger.reserve(1_024));
                        assert!(ledger.taken.0.load(Relaxed) <= ledger.limit);
                        if round % 2 == 0 {
                            ledger.release(1_024);
                        }
                    }
                });
            }
        });
        assert_eq!(ledger.used(), 4 * 1_000 * 1_024);
        while ledger.reserve(1_024) {}
        assert_eq!(ledger.used(), 16 << 20, "what others had kept is called in");
    }

    impl Ledger {
        fn unlinked_for_test(&self, bytes: usize) {
            self.built(1);
            self.unlinked(1);
            self.waits(bytes);
        }
    }
}
