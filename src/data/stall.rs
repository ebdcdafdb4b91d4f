//! How long a worker was busy in one go, told by its own tick.
//!
//! A tick that comes late came late because the worker was doing something else. What it was late by is wall time, and on a
//! busy machine the thread may just not have been given a core: so it counts for no more than the CPU time that the thread
//! has used since the tick before. That costs two readings of a clock a tick, and nothing a request.
//!
//! It is a sample: a long turn is seen when a tick falls into it, and on average half of it is. What keeps a worker busy
//! again and again is seen; one turn alone may not be.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The longest is shown for between one and two of these.
const SHOWN_FOR: Duration = Duration::from_secs(30);

pub(super) struct Stalls {
    slept_at: Instant,
    cpu_at: Duration,
    /// Of the period that runs, and of the one before.
    longest: [Duration; 2],
    period_began: Instant,
}

impl Stalls {
    /// Made by the thread whose CPU time is meant, just before it first waits for a tick.
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Stalls { slept_at: now, cpu_at: cpu_time(), longest: [Duration::ZERO; 2], period_began: now }
    }

    /// The tick that was to come `tick` after the last call has come. Gives the longest of the last half minute or more.
    pub(super) fn woke(&mut self, tick: Duration) -> Duration {
        let (now, cpu) = (Instant::now(), cpu_time());
        let late = (now - self.slept_at).saturating_sub(tick);
        self.note(late.min(cpu.saturating_sub(self.cpu_at)), now);
        self.cpu_at = cpu;
        self.longest[0].max(self.longest[1])
    }

    /// The worker waits for the next tick from here on.
    pub(super) fn sleeps(&mut self) {
        self.slept_at = Instant::now();
    }

    fn note(&mut self, busy: Duration, now: Instant) {
        if now - self.period_began >= SHOWN_FOR {
            self.longest = [Duration::ZERO, self.longest[0]];
            self.period_began = now;
        }
        self.longest[0] = self.longest[0].max(busy);
    }
}

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_slept_too_long_was_not_busy() {
        let mut stalls = Stalls::new();
        stalls.sleeps();
        std::thread::sleep(Duration::from_millis(60));
        assert!(stalls.woke(Duration::from_millis(10)) < Duration::from_millis(30));
    }

    #[test]
    fn a_thread_that_computed_was_busy_and_the_longest_is_shown_for_a_while() {
        let mut stalls = Stalls::new();
        stalls.sleeps();
        let began = cpu_time();
        while cpu_time() - began < Duration::from_millis(40) {}
        let busy = stalls.woke(Duration::from_millis(10));
        assert!(busy >= Duration::from_millis(30), "{busy:?}");
        stalls.sleeps();
        assert_eq!(stalls.woke(Duration::from_millis(10)), busy);
        let later = stalls.period_began + SHOWN_FOR;
        stalls.note(Duration::ZERO, later);
        assert_eq!(stalls.longest, [Duration::ZERO, busy]);
        stalls.note(Duration::from_millis(1), later + SHOWN_FOR);
        assert_eq!(stalls.longest, [Duration::from_millis(1), Duration::ZERO]);
    }
}
