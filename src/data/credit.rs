//! A bound on the memory that all workers together hold in large buffers.
//!
//! Each worker has some of the common account as a credit of its own, so that a request does not write a line that all
//! workers share. A credit that is not used is at most [`LOT`] twice over.
//!
//! Must not know: buffers.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What a worker takes at once.
const LOT: usize = 1 << 20;

/// One worker's share.
#[derive(Default)]
pub(super) struct Credit {
    /// `None`: no bound.
    account: Option<Account>,
    /// Taken from the account and not used.
    left: Cell<usize>,
}

struct Account {
    /// Taken by all workers.
    taken: &'static AtomicUsize,
    limit: usize,
    lot: usize,
}

impl Credit {
    pub(super) fn of(taken: &'static AtomicUsize, limit: usize, workers: usize) -> Self {
        // All credits that are not used are an eighth of the limit at most.
        let lot = (limit / (16 * workers)).min(LOT);
        Credit { account: Some(Account { taken, limit, lot }), left: Cell::new(0) }
    }

    /// False: that much would pass the limit.
    pub(super) fn take(&self, bytes: usize) -> bool {
        let Some(Account { taken, limit, lot }) = &self.account else { return true };
        let left = self.left.get();
        if left >= bytes {
            self.left.set(left - bytes);
            return true;
        }
        let missing = bytes - left;
        for lot in [missing.max(*lot), missing] {
            let within = |now: usize| now.checked_add(lot).filter(|&sum| sum <= *limit);
            if taken.fetch_update(Relaxed, Relaxed, within).is_ok() {
                self.left.set(left + lot - bytes);
                return true;
            }
        }
        false
    }

    /// Takes that much whatever the limit is.
    pub(super) fn force(&self, bytes: usize) {
        if !self.take(bytes)
            && let Some(account) = &self.account
        {
            account.taken.fetch_add(bytes, Relaxed);
        }
    }

    pub(super) fn give(&self, bytes: usize) {
        let Some(Account { taken, lot, .. }) = &self.account else { return };
        let left = self.left.get() + bytes;
        let back = if left > 2 * lot { left - lot } else { 0 };
        if back > 0 {
            taken.fetch_sub(back, Relaxed);
        }
        self.left.set(left - back);
    }

    /// Whether that much could be taken now.
    pub(super) fn has(&self, bytes: usize) -> bool {
        self.account.as_ref().is_none_or(|account| {
            (account.taken.load(Relaxed) + bytes).saturating_sub(self.left.get()) <= account.limit
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credits(limit: usize, workers: usize) -> (&'static AtomicUsize, Vec<Credit>) {
        let taken: &'static AtomicUsize = Box::leak(Box::default());
        (taken, (0..workers).map(|_| Credit::of(taken, limit, workers)).collect())
    }

    #[test]
    fn all_workers_together_keep_within_the_limit_and_give_everything_back() {
        let (taken, workers) = credits(64 << 20, 4);
        let piece = 300 << 10;
        let mut pieces = vec![0; 4];
        for turn in 0..10_000 {
            if workers[turn % 4].take(piece) {
                pieces[turn % 4] += 1;
            }
            assert!(taken.load(Relaxed) <= 64 << 20);
        }
        let used = pieces.iter().sum::<usize>() * piece;
        assert!(used > 60 << 20, "{used} bytes of 64 MiB could be used");
        assert!(!workers[0].has(piece) && !workers[0].take(piece));
        for (worker, pieces) in workers.iter().zip(pieces) {
            (0..pieces).for_each(|_| worker.give(piece));
        }
        assert!(taken.load(Relaxed) <= 64 << 17, "an eighth at most is kept as credit");
        assert!(workers[0].has(32 << 20) && workers[0].take(32 << 20));
    }

    #[test]
    fn small_uses_within_a_credit_do_not_touch_the_account() {
        let (taken, workers) = credits(1 << 30, 1);
        assert!(workers[0].take(64 << 10));
        let after = taken.load(Relaxed);
        for _ in 0..100 {
            workers[0].give(64 << 10);
            assert!(workers[0].take(64 << 10));
        }
        assert_eq!(taken.load(Relaxed), after);
    }

    #[test]
    fn what_must_be_had_is_counted_beyond_the_limit() {
        let (taken, workers) = credits(1 << 20, 1);
        workers[0].force(3 << 20);
        assert_eq!(taken.load(Relaxed), 3 << 20);
        assert!(!workers[0].take(1));
        workers[0].give(3 << 20);
        assert!(workers[0].take(1 << 19));
        Credit::default().force(usize::MAX);
    }
}
