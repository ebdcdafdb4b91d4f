//! What a backend is doing now: requests and prompt bytes in flight, counted when the choice is made and released by a
//! guard.
//!
//! One cache line a backend, updated by every worker with relaxed read-modify-writes: a choice reads one line a candidate
//! and sees every worker's requests, not a sum that is a period old. The counters order nothing else.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

#[derive(Default)]
#[repr(align(128))]
pub struct Load {
    /// Requests that have no first byte of an answer yet.
    waiting: AtomicU32,
    /// Requests whose answer has begun.
    answering: AtomicU32,
    bytes: AtomicU64,
    /// A worker could not connect: skip the backend until the control plane has looked.
    unreachable: AtomicBool,
}

impl Load {
    pub fn in_flight(&self) -> u32 {
        self.waiting.load(Relaxed).wrapping_add(self.answering.load(Relaxed))
    }

    pub fn waiting(&self) -> u32 {
        self.waiting.load(Relaxed)
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
        self.waiting.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        InFlight { load: self, bytes, answering: false }
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
            self.load.waiting.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let counter = if self.answering { &self.load.answering } else { &self.load.waiting };
        counter.fetch_sub(1, Relaxed);
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
}
