//! The work of a usual prompt, over all workers.
//!
//! Each worker counts what it sends in a line of its own; the control plane adds that up periodically and publishes the
//! mean of late, which every worker reads. It moves by a hundredth a prompt, so that the age of a sum does not matter. Before
//! the first sum a worker goes by its own prompts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::route::hold;

const NS: f64 = 1e9;

/// What one worker has sent, written by that worker alone.
#[derive(Default)]
#[repr(align(128))]
struct Sent {
    prompts: AtomicU64,
    work_ns: AtomicU64,
}

impl Sent {
    fn totals(&self) -> (u64, u64) {
        (self.prompts.load(Relaxed), self.work_ns.load(Relaxed))
    }
}

pub struct Usual {
    workers: Box<[Sent]>,
    /// An f64, in seconds; 0 before the first sum. Written by the control plane alone, as is what it has taken in.
    published: AtomicU64,
    summed: Sent,
}

impl Usual {
    pub(super) fn new(workers: usize) -> Self {
        Usual {
            workers: (0..workers).map(|_| Sent::default()).collect(),
            published: AtomicU64::new(0),
            summed: Sent::default(),
        }
    }

    /// Counts a prompt that `worker`, the calling one, sends.
    pub fn sends(&self, worker: usize, work_s: f64) {
        let sent = &self.workers[worker];
        let (prompts, work_ns) = sent.totals();
        sent.prompts.store(prompts + 1, Relaxed);
        sent.work_ns.store(work_ns.wrapping_add((work_s * NS) as u64), Relaxed);
    }

    /// Seconds of work, as `worker` sees it; 0 before the first prompt.
    pub fn seconds(&self, worker: usize) -> f64 {
        let published = f64::from_bits(self.published.load(Relaxed));
        if published > 0.0 {
            return published;
        }
        let (prompts, work_ns) = self.workers[worker].totals();
        work_ns as f64 / NS / prompts.max(1) as f64
    }

    /// Takes in what was sent since the last sum.
    pub fn sum(&self) {
        let add = |a: (u64, u64), b: (u64, u64)| (a.0.wrapping_add(b.0), a.1.wrapping_add(b.1));
        let (prompts, work_ns) = self.workers.iter().map(Sent::totals).fold((0, 0), add);
        let before = self.summed.totals();
        let new = prompts.wrapping_sub(before.0);
        if new == 0 {
            return;
        }
        let mean_s = work_ns.wrapping_sub(before.1) as f64 / NS / new as f64;
        let usual_s = hold::usual_after(f64::from_bits(self.published.load(Relaxed)), mean_s, new);
        self.published.store(usual_s.to_bits(), Relaxed);
        self.summed.prompts.store(prompts, Relaxed);
        self.summed.work_ns.store(work_ns, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_goes_by_what_all_have_sent() {
        let usual = Usual::new(2);
        assert_eq!(usual.seconds(0), 0.0);
        usual.sends(0, 4.0);
        usual.sends(0, 2.0);
        assert_eq!((usual.seconds(0), usual.seconds(1)), (3.0, 0.0), "before the first sum, its own");
        usual.sum();
        assert_eq!((usual.seconds(0), usual.seconds(1)), (3.0, 3.0));
        for _ in 0..100 {
            usual.sends(1, 1.0);
            usual.sends(1, 1.0);
            usual.sends(1, 1.0);
            usual.sum();
        }
        assert!((1.0..1.2).contains(&usual.seconds(0)), "{}", usual.seconds(0));
    }
}
