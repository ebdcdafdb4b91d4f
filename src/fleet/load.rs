//! What a backend is doing now, and how often it was chosen: counted when the choice is made, over all workers.
//!
//! **Word.** Requests in flight, their body bytes and the number of requests ever begun share one word, so that the begin
//! of a request is one read-modify-write on the backend's line and its end is another. A choice reads one line a candidate
//! and sees every worker's requests, not a sum that is a period old. The fields of the word are added to and subtracted
//! from as one number: a field that overflows spoils the one above it only until the guard that did it is dropped.
//!
//! **Window.** The control plane sums each backend's requests of the QPS window periodically and publishes the sum with
//! the number of requests begun by then. Whoever asks adds what was begun since, by whatever worker: the answer is exact
//! but for what has left the window since the sum.
//!
//! **Parts.** What no choice reads (answers that have begun, exact bytes) is counted in a [`Part`] a worker, which has
//! that worker as its only writer; who reports it adds the parts up.
//!
//! Orderings: the end of a request and what waits for it are sequentially consistent, as `data/pending` wants it; the
//! window is published with release and read with acquire, so that the requests begun are never older than their sum.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use crate::route::slow_start::dearer;

/// No request waits for the backend; later than every ticket.
pub const NOBODY: u64 = u64::MAX;

// Fields of the word, from its lowest bit on: in flight, bytes in units, begun.
const IN_FLIGHT_BITS: u32 = 18;
const BYTES_BITS: u32 = 28;
const BYTES_AT: u32 = IN_FLIGHT_BITS;
const BEGUN_AT: u32 = IN_FLIGHT_BITS + BYTES_BITS;
const BEGUN_BITS: u32 = 64 - BEGUN_AT;
const BEGUN_MASK: u64 = (1 << BEGUN_BITS) - 1;
/// Bytes are counted in units of so many, rounded up: 64 GiB of bodies fit.
const UNIT_BYTES: u64 = 256;

#[repr(align(128))]
pub struct Load {
    word: AtomicU64,
    /// Requests in the window as of the last sum, above the number of requests begun by then.
    window: AtomicU64,
    /// A worker could not connect: skip the backend until the control plane has looked.
    unreachable: AtomicBool,
    /// Lines of requests that wait for this backend. Written by the waiting room alone, as is the next one.
    awaited: AtomicU32,
    first_awaiting: AtomicU64,
}

impl Default for Load {
    fn default() -> Self {
        Load {
            word: AtomicU64::new(0),
            window: AtomicU64::new(0),
            unreachable: AtomicBool::new(false),
            awaited: AtomicU32::new(0),
            first_awaiting: AtomicU64::new(NOBODY),
        }
    }
}

fn in_flight(word: u64) -> u32 {
    (word & ((1 << IN_FLIGHT_BITS) - 1)) as u32
}

/// A request of so many body bytes, as it is added to the word at its begin; less [`BEGUN`], it is taken off at its end.
fn weight(bytes: u64) -> u64 {
    let units = bytes.div_ceil(UNIT_BYTES).min((1 << BYTES_BITS) - 1);
    BEGUN | units << BYTES_AT | 1
}

const BEGUN: u64 = 1 << BEGUN_AT;

impl Load {
    /// Requests that were sent and not answered in full.
    pub fn in_flight(&self) -> u32 {
        in_flight(self.word.load(Relaxed))
    }

    /// Body bytes of the requests in flight, each request's rounded up to 256.
    pub fn in_flight_bytes(&self) -> u64 {
        (self.word.load(Relaxed) >> BYTES_AT & ((1 << BYTES_BITS) - 1)) * UNIT_BYTES
    }

    /// Requests ever begun, modulo 2^18: differences of two near readings count.
    pub fn begun(&self) -> u64 {
        self.word.load(Relaxed) >> BEGUN_AT
    }

    /// Requests begun since [`Self::begun`] was `then`.
    pub fn begun_since(&self, then: u64) -> u64 {
        self.begun().wrapping_sub(then) & BEGUN_MASK
    }

    /// Requests begun within the window, by all workers. Those since the last sum count as one each less what
    /// `cold_permille` lacks: see `route::slow_start`.
    #[inline]
    pub fn in_window(&self, cold_permille: u16) -> u64 {
        let window = self.window.load(Acquire);
        let since = self.begun_since(window & BEGUN_MASK);
        (window >> BEGUN_BITS).saturating_add(match cold_permille {
            0 => since,
            cold => dearer(since, cold),
        })
    }

    /// So many requests were in the window when [`Self::begun`] was `begun`. Called by the control plane alone.
    pub fn publish_window(&self, in_window: u64, begun: u64) {
        self.window.store(in_window << BEGUN_BITS | begun & BEGUN_MASK, Release);
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

    /// Counts a request of `bytes` body bytes until the guard is dropped, unless `limit` requests are in flight already; a
    /// limit of 0 is none. `part` is the calling worker's.
    pub fn begin<'a>(&'a self, part: &'a Part, bytes: u64, limit: u32) -> Option<InFlight<'a>> {
        let weight = weight(bytes);
        if limit == 0 {
            self.word.fetch_add(weight, Relaxed);
        } else {
            let below = |word: u64| (in_flight(word) < limit).then(|| word.wrapping_add(weight));
            self.word.fetch_update(Relaxed, Relaxed, below).ok()?;
        }
        add(&part.bytes, bytes);
        Some(InFlight { load: self, part, bytes, answering: false })
    }

    /// Some request waits for this backend. Sequentially consistent: see `data/pending`.
    pub fn is_awaited(&self) -> bool {
        self.awaited.load(SeqCst) > 0
    }

    /// One more line of requests waits for this backend.
    pub fn await_more(&self) {
        self.awaited.fetch_add(1, SeqCst);
    }

    /// One line less.
    pub fn await_less(&self) {
        self.awaited.fetch_sub(1, SeqCst);
    }

    /// The ticket of the request that has waited longest for this backend to get below its limit, or [`NOBODY`].
    pub fn first_awaiting(&self) -> u64 {
        self.first_awaiting.load(Relaxed)
    }

    /// Called under the waiting room's lock.
    pub fn set_first_awaiting(&self, ticket: u64) {
        self.first_awaiting.store(ticket, Relaxed);
    }
}

/// One worker's part of a backend's load. It has one writer, that worker.
#[derive(Default)]
pub struct Part {
    answering: AtomicU32,
    bytes: AtomicU64,
}

impl Part {
    /// Requests in flight whose answer has begun.
    pub fn answering(&self) -> u32 {
        self.answering.load(Relaxed)
    }

    /// Body bytes of the requests in flight.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

/// One request in flight; dropping it, on whatever path, releases its share of the load.
#[must_use]
pub struct InFlight<'a> {
    load: &'a Load,
    part: &'a Part,
    bytes: u64,
    answering: bool,
}

impl InFlight<'_> {
    /// The first byte of the answer is here.
    pub fn first_byte(&mut self) {
        if !self.answering {
            self.answering = true;
            self.part.answering.store(self.part.answering() + 1, Relaxed);
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if self.answering {
            self.part.answering.store(self.part.answering() - 1, Relaxed);
        }
        add(&self.part.bytes, self.bytes.wrapping_neg());
        self.load.word.fetch_sub(weight(self.bytes) - BEGUN, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_gives_back_what_it_took_on_every_path() {
        let (load, part) = (Load::default(), Part::default());
        let mut first = load.begin(&part, 300, 0).expect("no limit");
        let second = load.begin(&part, 7, 0).expect("no limit");
        assert_eq!((load.in_flight(), part.answering(), part.bytes(), load.in_flight_bytes()), (2, 0, 307, 768));
        first.first_byte();
        first.first_byte();
        assert_eq!((part.answering(), load.in_flight()), (1, 2));
        drop(second);
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = load.begin(&part, 1000, 0);
            panic!("a request's code fails");
        }));
        assert!(unwound.is_err());
        drop(first);
        assert_eq!((load.in_flight(), part.answering(), part.bytes(), load.in_flight_bytes()), (0, 0, 0, 0));
        assert_eq!(load.begun(), 3);
    }

    #[test]
    fn a_limit_holds_and_a_release_makes_room() {
        let (load, part) = (Load::default(), Part::default());
        let held: Vec<_> = (0..2).map(|_| load.begin(&part, 1, 2).expect("room")).collect();
        assert!(load.begin(&part, 1, 2).is_none());
        assert_eq!((load.in_flight(), part.bytes(), load.begun()), (2, 2, 2), "who is refused is not counted");
        drop(held);
        assert!(load.begin(&part, 1, 2).is_some() && load.begin(&part, 1, 0).is_some());
    }

    #[test]
    fn a_limit_is_exact_over_threads() {
        let load = Load::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let part = Part::default();
                    for _ in 0..5_000 {
                        let guard = load.begin(&part, 1, 3);
                        assert!(load.in_flight() <= 3);
                        drop(guard);
                    }
                    assert_eq!(part.bytes(), 0);
                });
            }
        });
        assert_eq!((load.in_flight(), load.in_flight_bytes()), (0, 0));
    }

    #[test]
    fn the_window_is_the_last_sum_and_what_every_worker_began_since() {
        let load = Load::default();
        let parts = [Part::default(), Part::default()];
        // The number of those begun passes the end of its field on the way.
        for round in 0..(1 << BEGUN_BITS) / 100 + 3 {
            assert_eq!(load.in_window(0), round * 3);
            for n in 0..100 {
                drop(load.begin(&parts[n % 2], 1 << 40, 0));
            }
            assert_eq!((load.in_window(0), load.in_window(900)), (round * 3 + 100, round * 3 + 1000));
            load.publish_window((round + 1) * 3, load.begun());
        }
        assert_eq!((load.in_flight(), load.in_flight_bytes()), (0, 0));
    }

    /// However the workers' begins fall between reading and publishing, none sees less than the sum.
    #[test]
    fn a_sum_never_runs_ahead_of_what_was_begun() {
        let load = Load::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    load.publish_window(0, load.begun());
                }
            });
            let part = Part::default();
            for _ in 0..20_000 {
                drop(load.begin(&part, 1, 0));
                assert!(load.in_window(0) <= 20_000, "{}", load.in_window(0));
            }
        });
    }
}
