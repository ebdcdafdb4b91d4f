//! Clocks, quantiles, the resident set, and what is allocated.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};
use std::time::Instant;

use mimalloc::MiMalloc;

/// The product's allocator, and a count of the bytes that are asked of it while [`count_from_now`] is in force.
pub struct Counting;

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATED: AtomicIsize = AtomicIsize::new(0);

/// Counts allocations from now on; [`allocated_bytes`] is then what is allocated more than now.
pub fn count_from_now() {
    ALLOCATED.store(0, Ordering::SeqCst);
    COUNTING.store(true, Ordering::SeqCst);
}

pub fn allocated_bytes() -> usize {
    ALLOCATED.load(Ordering::SeqCst).max(0) as usize
}

fn count(bytes: isize) {
    if COUNTING.load(Ordering::Relaxed) {
        ALLOCATED.fetch_add(bytes, Ordering::Relaxed);
    }
}

// SAFETY: everything is passed on to an allocator that keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { MiMalloc.dealloc(block, layout) }
    }
}

/// CPU time of this thread in nanoseconds. Figures are in CPU time, so that a busy machine does not change them much.
pub fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of this frame.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "Linux has this clock");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Median of the CPU times that `work` takes in `rounds` rounds, in nanoseconds. For work of a microsecond or more: the
/// clock is a system call.
pub fn median_ns(rounds: usize, mut work: impl FnMut()) -> f64 {
    let mut times: Vec<u64> = (0..rounds)
        .map(|_| {
            let start = cpu_ns();
            work();
            cpu_ns() - start
        })
        .collect();
    quantile(&mut times, 0.5) as f64
}

pub fn quantile(times: &mut [u64], share: f64) -> u64 {
    times.sort_unstable();
    times[((times.len() - 1) as f64 * share) as usize]
}

/// How often each time was measured, in steps of a nanosecond.
///
/// Not a list of the times: the end of a list that grows is not in the cache, and the first locked instruction of what is
/// timed next waits for the write to get there. That was 100 ns in more than one of a hundred lookups.
pub struct Times(Vec<u32>);

const LONGEST_NS: usize = 1 << 14;

impl Times {
    pub fn new() -> Times {
        Times(vec![0; LONGEST_NS + 1])
    }

    /// Adds the wall-clock times of single runs of `work`, the clock's own cost included. Those above the longest count as that.
    pub fn add(&mut self, runs: usize, mut work: impl FnMut()) {
        for _ in 0..runs {
            let start = Instant::now();
            work();
            let ns = start.elapsed().as_nanos() as usize;
            self.0[ns.min(LONGEST_NS)] += 1;
        }
    }

    pub fn merge(&mut self, others: &Times) {
        self.0.iter_mut().zip(&others.0).for_each(|(count, more)| *count += more);
    }

    pub fn quantile(&self, share: f64) -> u64 {
        let all: u64 = self.0.iter().map(|&count| u64::from(count)).sum();
        let mut left = (all as f64 * share) as u64;
        let at = self.0.iter().position(|&count| match left.checked_sub(u64::from(count)) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        });
        at.unwrap_or(LONGEST_NS) as u64
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [median, p99, p999, p9999] = [0.5, 0.99, 0.999, 0.9999].map(|share| self.quantile(share));
        write!(out, "median {median} ns, p99 {p99} ns, p99.9 {p999} ns, p99.99 {p9999} ns")
    }
}

/// Resident bytes of this process.
pub fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("the second field is pages");
    pages * 4096
}
