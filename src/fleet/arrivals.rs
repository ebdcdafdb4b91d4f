//! How often each backend was chosen, and from that its QPS.
//!
//! Each worker counts its own choices in its own lines (one writer, no read-modify-write). The control plane sums them
//! periodically into [`Window`]s and publishes to each worker, per backend, the requests of the last window less what that
//! worker had counted itself by then. A worker that asks adds its own count: the sum then holds its own choices up to now,
//! so that a burst inside a period spreads at once, and the others' choices up to the last period.
//!
//! Every field is relaxed. A worker's answer is made of one field that it writes and one that the control plane writes
//! whole, so no two fields have to agree.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// One worker's counts, by slot. `chosen` has one writer, the worker; `others` has one, the control plane.
struct Worker {
    chosen: Box<[AtomicU64]>,
    /// Requests in the window, less `chosen` at that time: negative as soon as older ones have left the window.
    others: Box<[AtomicI64]>,
}

pub struct Arrivals {
    workers: Box<[Worker]>,
    /// Requests in the last window, by slot.
    window: Box<[AtomicU64]>,
}

fn zeros(n: usize) -> Box<[AtomicU64]> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}

impl Arrivals {
    pub fn new(slots: usize, workers: usize) -> Self {
        Arrivals {
            workers: (0..workers)
                .map(|_| Worker { chosen: zeros(slots), others: (0..slots).map(|_| AtomicI64::new(0)).collect() })
                .collect(),
            window: zeros(slots),
        }
    }

    /// Counts one request sent to `slot` by `worker`, which is the calling one.
    pub fn count(&self, worker: usize, slot: u16) {
        let chosen = &self.workers[worker].chosen[usize::from(slot)];
        chosen.store(chosen.load(Relaxed) + 1, Relaxed);
    }

    /// Requests sent to `slot` within the window, as `worker` knows it.
    pub fn in_window(&self, worker: usize, slot: u16) -> u64 {
        let slot = usize::from(slot);
        let own = &self.workers[worker];
        let chosen = own.chosen[slot].load(Relaxed);
        own.others[slot].load(Relaxed).saturating_add_unsigned(chosen).max(0).unsigned_abs()
    }

    /// Requests ever sent to `slot`, by all workers.
    pub fn total(&self, slot: u16) -> u64 {
        self.workers.iter().map(|worker| worker.chosen[usize::from(slot)].load(Relaxed)).sum()
    }

    /// Requests in the window as of the last sum, by all workers.
    pub fn published(&self, slot: u16) -> u64 {
        self.window[usize::from(slot)].load(Relaxed)
    }

    /// Sums all workers' counts of `slot` into `window` at `now_ms` and publishes the result.
    pub fn aggregate(&self, slot: u16, window: &mut Window, now_ms: u64) {
        let at = usize::from(slot);
        window.counts.clear();
        window.counts.extend(self.workers.iter().map(|worker| worker.chosen[at].load(Relaxed)));
        let in_window = window.advance(now_ms);
        self.window[at].store(in_window, Relaxed);
        for (worker, chosen) in self.workers.iter().zip(&window.counts) {
            worker.others[at].store(in_window.cast_signed().saturating_sub_unsigned(*chosen), Relaxed);
        }
    }
}

/// The sliding window of one backend: its running total, remembered once a bucket.
pub struct Window {
    length_ms: u64,
    bucket_ms: u64,
    /// (time, total at that time), oldest first; the front is the newest one that is at least a window old.
    marks: VecDeque<(u64, u64)>,
    /// Each worker's count as of the present sum.
    counts: Vec<u64>,
}

impl Window {
    /// A window of `length_ms` that starts at `now_ms` with `total` requests already counted.
    pub fn new(length_ms: u64, total: u64, now_ms: u64) -> Self {
        Window {
            length_ms,
            bucket_ms: (length_ms / 60).clamp(100, 1000),
            marks: VecDeque::from([(now_ms, total)]),
            counts: Vec::new(),
        }
    }

    /// Requests since one window before `now_ms`.
    fn advance(&mut self, now_ms: u64) -> u64 {
        let total: u64 = self.counts.iter().sum();
        let begin = now_ms.saturating_sub(self.length_ms);
        while self.marks.len() > 1 && self.marks[1].0 <= begin {
            self.marks.pop_front();
        }
        if self.marks.back().is_none_or(|&(at, _)| now_ms >= at + self.bucket_ms) {
            self.marks.push_back((now_ms, total));
        }
        total - self.marks.front().map_or(total, |&(_, then)| then)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_sees_its_own_choices_at_once_and_the_others_after_the_sum() {
        let arrivals = Arrivals::new(2, 2);
        let mut window = Window::new(60_000, 0, 0);
        arrivals.count(0, 1);
        arrivals.count(0, 1);
        arrivals.count(1, 1);
        assert_eq!((arrivals.in_window(0, 1), arrivals.in_window(1, 1), arrivals.in_window(0, 0)), (2, 1, 0));
        arrivals.aggregate(1, &mut window, 100);
        assert_eq!(
            (arrivals.in_window(0, 1), arrivals.in_window(1, 1), arrivals.published(1), arrivals.total(1)),
            (3, 3, 3, 3)
        );
        arrivals.count(1, 1);
        assert_eq!((arrivals.in_window(0, 1), arrivals.in_window(1, 1)), (3, 4));
    }

    #[test]
    fn what_is_older_than_the_window_no_longer_counts() {
        let arrivals = Arrivals::new(1, 1);
        let mut window = Window::new(10_000, 0, 0);
        for second in 0..30u64 {
            for _ in 0..5 {
                arrivals.count(0, 0);
            }
            arrivals.aggregate(0, &mut window, second * 1000 + 999);
            let expected = 5 * (second + 1).min(10);
            assert!(
                arrivals.published(0).abs_diff(expected) <= 5,
                "second {second}: {} and not about {expected}",
                arrivals.published(0)
            );
        }
        arrivals.aggregate(0, &mut window, 60_000);
        assert_eq!(arrivals.published(0), 0);
        assert!(window.marks.len() < 100, "{} marks", window.marks.len());
    }
}
