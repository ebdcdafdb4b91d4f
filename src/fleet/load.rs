//! What a backend is doing now: requests and prompt bytes in flight, counted when the choice is made and released by a
//! guard.
//!
//! One cache line a backend, updated by every worker with relaxed read-modify-writes: a choice reads one line a candidate
//! and sees every worker's requests, not a sum that is a period old. The counters order nothing else.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// No request waits for the backend.
const NOBODY: u64 = u64::MAX;

#[repr(align(128))]
pub struct Load {
    /// Requests that were sent and not answered in full.
    in_flight: AtomicU32,
    /// Those of them whose answer has begun.
    answering: AtomicU32,
    bytes: AtomicU64,
    /// A worker could not connect: skip the backend until the control plane has looked.
    unreachable: AtomicBool,
    /// When the request began to wait that has waited longest, over all workers, for this backend to get below its limit.
    /// Written and cleared by whoever has that request.
    wanted_since: AtomicU64,
}

impl Default for Load {
    fn default() -> Self {
        Load {
            in_flight: AtomicU32::new(0),
            answering: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            unreachable: AtomicBool::new(false),
            wanted_since: AtomicU64::new(NOBODY),
        }
    }
}

impl Load {
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }

    /// Requests that have no first byte of an answer yet.
    pub fn waiting(&self) -> u32 {
        // Read apart, the two may differ by what is under way.
        self.in_flight.load(Relaxed).saturating_sub(self.answering.load(Relaxed))
    }

    pub fn answering(&self) -> u32 {
        self.answering.load(Relaxed)
    }

    /// Body bytes of the requests in flight.
    pub fn in_flight_bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub fn is_unreachable(&self) -> bool {
        self.unreachable.load(Relaxed)
    }

    /// Set by a worker whose connect failed, cleared by the control plane once the backend answers a probe.
    pub fn set_unreachable(&self, unreachable: bool) {
        if self.unreachable.load(Relaxed) != unreachable {
            self.unreachable.store(unreachable, Relaxed);
        }
    }

    /// Counts a request of `bytes` body bytes until the guard is dropped.
    pub fn begin(&self, bytes: u64) -> InFlight<'_> {
        self.in_flight.fetch_add(1, Relaxed);
        self.count_bytes(bytes)
    }

    /// The same, unless `limit` requests are in flight already; a limit of 0 is none.
    pub fn try_begin(&self, bytes: u64, limit: u32) -> Option<InFlight<'_>> {
        if limit == 0 {
            return Some(self.begin(bytes));
        }
        let below = |now: u32| (now < limit).then_some(now + 1);
        self.in_flight.fetch_update(Relaxed, Relaxed, below).ok()?;
        Some(self.count_bytes(bytes))
    }

    fn count_bytes(&self, bytes: u64) -> InFlight<'_> {
        self.bytes.fetch_add(bytes, Relaxed);
        InFlight { load: self, bytes, answering: false }
    }

    /// A request that could use this backend has waited since then.
    pub fn want(&self, since: u64) {
        if since < self.wanted_since.load(Relaxed) {
            self.wanted_since.fetch_min(since, Relaxed);
        }
    }

    /// The request that has waited since then waits no longer.
    pub fn unwant(&self, since: u64) {
        if self.wanted_since.load(Relaxed) == since {
            // Failure means that a request which has waited longer has been entered: that one stays.
            let _ = self.wanted_since.compare_exchange(since, NOBODY, Relaxed, Relaxed);
        }
    }

    /// Since when the request has waited that has waited longest; the end of time when none waits.
    pub fn wanted_since(&self) -> u64 {
        self.wanted_since.load(Relaxed)
    }
}

/// One request in flight; dropping it, on whatever path, releases its share of the load.
#[must_use]
pub struct InFlight<'a> {
    load: &'a Load,
    bytes: u64,
    answering: bool,
}

impl InFlight<'_> {
    /// The first byte of the answer is here.
    pub fn first_byte(&mut self) {
        if !self.answering {
            self.answering = true;
            self.load.answering.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if self.answering {
            self.load.answering.fetch_sub(1, Relaxed);
        }
        self.load.in_flight.fetch_sub(1, Relaxed);
        self.load.bytes.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::Load;

    #[test]
    fn a_guard_gives_back_what_it_took_on_every_path() {
        let load = Load::default();
        let mut first = load.begin(100);
        let second = load.begin(7);
        assert_eq!((load.waiting(), load.answering(), load.in_flight_bytes()), (2, 0, 107));
        first.first_byte();
        first.first_byte();
        assert_eq!((load.waiting(), load.answering(), load.in_flight()), (1, 1, 2));
        drop(second);
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = load.begin(1000);
            panic!("a request's code fails");
        }));
        assert!(unwound.is_err());
        drop(first);
        assert_eq!((load.waiting(), load.answering(), load.in_flight_bytes()), (0, 0, 0));
    }

    #[test]
    fn a_limit_holds_and_a_release_makes_room() {
        let load = Load::default();
        let held: Vec<_> = (0..2).map(|_| load.try_begin(1, 2).expect("room")).collect();
        assert!(load.try_begin(1, 2).is_none());
        assert_eq!((load.in_flight(), load.in_flight_bytes()), (2, 2), "who is refused is not counted");
        drop(held);
        assert!(load.try_begin(1, 2).is_some() && load.try_begin(1, 0).is_some());
    }

    #[test]
    fn a_limit_is_exact_over_threads() {
        let load = Load::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5_000 {
                        let guard = load.try_begin(1, 3);
                        assert!(load.in_flight() <= 3);
                        drop(guard);
                    }
                });
            }
        });
        assert_eq!((load.in_flight(), load.in_flight_bytes()), (0, 0));
    }

    #[test]
    fn the_longest_wait_is_known_until_it_ends() {
        let load = Load::default();
        assert_eq!(load.wanted_since(), u64::MAX);
        load.want(20);
        load.want(10);
        load.want(15);
        load.unwant(20);
        assert_eq!(load.wanted_since(), 10);
        load.unwant(10);
        assert_eq!(load.wanted_since(), u64::MAX);
    }
}
