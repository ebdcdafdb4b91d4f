//! What a backend's prefix cache holds, from its capacity and from what went in and out.
//!
//! An engine's blocks are held by requests that run, or stand in a queue, or are free. What a request lets go of is put at the
//! queue's end, the prompt's end before its beginning; what a request takes and nobody holds comes out of the free ones, then
//! from the queue's beginning; what it finds there leaves the queue from wherever it stood. All of them together are the
//! capacity, and that is all that has to be known: as soon as `held + queued` is more, the queue's beginning is gone.
//!
//! The queue is a ring of steps, each with how much of it still stands there and what the trie's clock said when it was let
//! go of. The clock at the first step that is not gone is [`Cache::reach`]: whatever is marked longer ago is gone, unless the
//! request that marked it still runs. [`Cache::is_running`] knows when those that run were marked: whoever uses this moves the
//! trie's clock by [`APART`] before a request is marked and after it is let go of, so that no two marks say the same.
//!
//! In chunks of the trie. Relaxed throughout: figures of one backend that several workers update may be apart by what is
//! under way, and the rings hold an estimate each.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// By how much the clock has to move between two marks that are told apart: the resolution of the trie's marks.
pub const APART: u32 = 32;

/// Chunks of a step of the queue, at least.
const LEAST_STEP: u64 = 64;
const STEPS: usize = 2048;

/// No memory holds more: a terabyte at a byte a token.
const MOST_TOKENS: u64 = 1 << 40;

/// Entries of the clock's ring; it comes round after four million tokens of four bytes.
const BUCKETS: usize = 4096;

#[repr(align(64))]
pub struct Cache {
    /// In tokens; 0: not known.
    capacity_tokens: AtomicU64,
    /// By requests that run. Signed, because two workers may be seen in either order.
    held: AtomicI64,
    queued: AtomicI64,
    /// Places of the queue that have been given out.
    end: AtomicU64,
    /// The first step that is not gone.
    first: AtomicU64,
    /// Of a backend whose capacity has been known.
    rings: OnceLock<Box<Rings>>,
}

struct Rings {
    /// Chunks of a step.
    step: u64,
    /// By step: the clock when its first place was given out.
    clocks: [AtomicU32; STEPS],
    /// By step: what still stands there.
    left: [AtomicU32; STEPS],
    /// By the clock: requests that were marked then and run.
    running: [AtomicU16; BUCKETS],
}

impl Rings {
    fn new(capacity_tokens: u64) -> Box<Rings> {
        Box::new(Rings {
            // So many that the ring holds four times the capacity at 16 tokens a chunk.
            step: (capacity_tokens / 4 / STEPS as u64).next_power_of_two().max(LEAST_STEP),
            clocks: std::array::from_fn(|_| AtomicU32::new(0)),
            left: std::array::from_fn(|_| AtomicU32::new(0)),
            running: std::array::from_fn(|_| AtomicU16::new(0)),
        })
    }

    fn running(&self, marked: u64) -> &AtomicU16 {
        &self.running[(marked / u64::from(APART)) as usize % BUCKETS]
    }

    fn left(&self, step: u64) -> &AtomicU32 {
        &self.left[step as usize % STEPS]
    }

    fn clock(&self, step: u64) -> &AtomicU32 {
        &self.clocks[step as usize % STEPS]
    }
}

impl Default for Cache {
    fn default() -> Self {
        Cache {
            capacity_tokens: AtomicU64::new(0),
            held: AtomicI64::new(0),
            queued: AtomicI64::new(0),
            end: AtomicU64::new(0),
            first: AtomicU64::new(0),
            rings: OnceLock::new(),
        }
    }
}

/// What a request takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Takes {
    /// Believed not to be there.
    pub new: u32,
    /// Believed to be there and not shared with others that came since, and the clock of its mark. What many share changes
    /// hands all the time and is little, compared with what is theirs: it stays where it is counted.
    pub found: u32,
    pub found_marked: u64,
    /// What the clock says in the request's own mark.
    pub marked: u64,
}

/// What a request leaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Leaves {
    pub prompt: u32,
    pub answer: u32,
    /// What the clock said when the prompt's end was let go of; it has moved by the prompt's length when its beginning is.
    pub clock: u64,
}

impl Cache {
    /// Another backend begins with an empty cache of unknown size. What runs is released by its guards.
    pub(super) fn forget(&self) {
        self.capacity_tokens.store(0, Relaxed);
        if let Some(rings) = self.rings.get() {
            while self.drop_first(rings) {}
        }
    }

    /// What the engine says of itself.
    pub fn set_capacity_tokens(&self, tokens: u64) {
        let tokens = tokens.min(MOST_TOKENS);
        if tokens > 0 {
            self.rings.get_or_init(|| Rings::new(tokens));
        }
        self.capacity_tokens.store(tokens, Relaxed);
    }

    /// In tokens; 0: not known.
    #[inline]
    pub fn capacity_tokens(&self) -> u64 {
        self.capacity_tokens.load(Relaxed)
    }

    /// Tokens for which there is room beside what runs; infinite if nothing is known.
    #[inline]
    pub fn room_tokens(&self, chunk_tokens: f64) -> f64 {
        match self.capacity_tokens() {
            0 => f64::INFINITY,
            // Signed: the conversion of such words is one instruction.
            capacity => capacity.cast_signed() as f64 - self.held.load(Relaxed) as f64 * chunk_tokens,
        }
    }

    /// Counts a request until the guard is dropped. `None`: nothing is known.
    pub fn begin(&self, takes: Takes) -> Option<Taking<'_>> {
        let rings = self.rings.get().filter(|_| self.capacity_tokens() > 0)?;
        let found = match takes.found {
            // What others hold has left the queue already.
            0 => 0,
            _ if self.is_running(takes.found_marked) => 0,
            found => self.take_out(rings, found, takes.found_marked, takes.marked),
        };
        let taken = takes.new + found;
        self.held.fetch_add(i64::from(taken), Relaxed);
        rings.running(takes.marked).fetch_add(1, Relaxed);
        Some(Taking { cache: self, rings, taken, marked: takes.marked, leaves: None })
    }

    /// Takes so many chunks out of the queue that were marked at this clock; how many stood there.
    fn take_out(&self, rings: &Rings, chunks: u32, marked: u64, now: u64) -> u32 {
        let now = now as u32;
        let age = now.wrapping_sub(marked as u32).saturating_sub(APART);
        let last = self.end.load(Relaxed) / rings.step;
        // The last step that is as old.
        let (mut low, mut high) = (self.first.load(Relaxed), last + 1);
        while low + 1 < high {
            let middle = low.midpoint(high);
            let is_older = now.wrapping_sub(rings.clock(middle).load(Relaxed)) >= age;
            (low, high) = if is_older { (middle, high) } else { (low, middle) };
        }
        // Nowhere else: of what is not there, others hold the rest.
        let mut wanted = chunks;
        for step in low..=last.min(low + u64::from(chunks) / rings.step + 1) {
            let left = rings.left(step);
            let before = left.load(Relaxed);
            let part = before.min(wanted);
            if part > 0 && left.compare_exchange(before, before - part, Relaxed, Relaxed).is_ok() {
                wanted -= part;
            }
            if wanted == 0 {
                break;
            }
        }
        self.queued.fetch_sub(i64::from(chunks - wanted), Relaxed);
        chunks - wanted
    }

    /// How much is believed to be there of `marked` chunks of which `fresh` are within the reach; the end of them was marked
    /// at `clock`.
    #[inline]
    pub fn believed(&self, marked: u32, fresh: u32, clock: u64) -> u32 {
        if fresh < marked && self.is_running(clock) { marked } else { fresh }
    }

    /// Whether a request that was marked at this clock runs.
    fn is_running(&self, marked: u64) -> bool {
        self.rings.get().is_some_and(|rings| rings.running(marked).load(Relaxed) > 0)
    }

    /// How long ago, by the clock, that was marked which is the oldest in the queue; `None`: nothing is known.
    pub fn reach(&self, chunk_tokens: f64, now: u64) -> Option<u32> {
        let rings = self.rings.get()?;
        let capacity = (self.capacity_tokens() as f64 / chunk_tokens) as i64;
        if capacity == 0 {
            return None;
        }
        let is_over = || self.held.load(Relaxed) + self.queued.load(Relaxed) > capacity;
        while is_over() && self.drop_first(rings) {}
        let (first, last) = (self.first.load(Relaxed), self.end.load(Relaxed) / rings.step);
        if first == 0 {
            return Some(u32::MAX);
        }
        if first > last {
            return Some(0);
        }
        let age = (now as u32).wrapping_sub(rings.clock(first).load(Relaxed));
        Some(age.saturating_add(APART))
    }

    /// The first step is gone. False: there was none.
    fn drop_first(&self, rings: &Rings) -> bool {
        let first = self.first.load(Relaxed);
        if first > self.end.load(Relaxed) / rings.step {
            return false;
        }
        if self.first.compare_exchange(first, first + 1, Relaxed, Relaxed).is_ok() {
            let gone = rings.left(first).swap(0, Relaxed);
            self.queued.fetch_sub(i64::from(gone), Relaxed);
        }
        true
    }

    fn end(&self, rings: &Rings, taken: u32, leaves: Leaves) {
        self.held.fetch_sub(i64::from(taken), Relaxed);
        // More than the ring turns it no further.
        let out = (u64::from(taken) + u64::from(leaves.answer)).min(STEPS as u64 * rings.step);
        let before = self.end.fetch_add(out, Relaxed);
        let after = before + out;
        while after / rings.step >= self.first.load(Relaxed) + STEPS as u64 {
            self.drop_first(rings);
        }
        for step in before / rings.step + 1..=after / rings.step {
            let passed = (step * rings.step - before) * u64::from(leaves.prompt) / out;
            rings.clock(step).store((leaves.clock + passed) as u32, Relaxed);
        }
        let mut place = before;
        while place < after {
            let step = place / rings.step;
            let next = after.min((step + 1) * rings.step);
            // A step that is given up stays empty.
            if step >= self.first.load(Relaxed) {
                rings.left(step).fetch_add((next - place) as u32, Relaxed);
                self.queued.fetch_add((next - place) as i64, Relaxed);
            }
            place = next;
        }
    }
}

/// What a running request has taken; dropping it, on whatever path, lets go of it.
#[must_use]
pub struct Taking<'a> {
    cache: &'a Cache,
    rings: &'a Rings,
    taken: u32,
    marked: u64,
    leaves: Option<Leaves>,
}

impl Taking<'_> {
    /// The request has ended as it should.
    pub fn ended(&mut self, leaves: Leaves) {
        self.leaves = Some(leaves);
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.rings.running(self.marked).fetch_sub(1, Relaxed);
        // Of one that broke off, the mark is all that there is.
        let leaves = self.leaves.unwrap_or(Leaves { prompt: 0, answer: 0, clock: self.marked });
        self.cache.end(self.rings, self.taken, leaves);
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
