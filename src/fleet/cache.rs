//! How far back a backend's prefix cache reaches, from its capacity and from what has gone in and out.
//!
//! An engine's free blocks stand in a queue: what a request lets go of is put at its end, what a request takes comes from its
//! beginning. So something that was let go of when `out` had been let go of in all is gone as soon as `in − capacity` passes
//! `out`, `in` being all that has been taken. Both are counted here, in chunks of the trie; what a running request has taken
//! is the difference.
//!
//! The trie's marks say when something was sent or let go of last, by a clock of their own. [`Cache::reach`] translates: the
//! clock at which that was let go of which is the oldest that is still there, from a ring of the clock by `out`. Something
//! marked longer ago is there nevertheless if the request that marked it still runs: [`Cache::is_running`] knows when those
//! that run were sent.
//!
//! Relaxed throughout: figures of one backend that several workers update may be apart by what is under way, and the rings
//! hold an estimate each.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Chunks between two entries of the ring of what was let go of; with its size, four million tokens of four bytes.
const STEP: u64 = 64;
const STEPS: usize = 2048;

/// Chunks of the clock that share a count of running requests: the resolution of the trie's marks.
const BUCKET: u64 = 32;
const BUCKETS: usize = 4096;

/// Chunks by which a mark may be older than its request: the trie does not renew younger ones.
const LAG: u64 = 160;

pub struct Cache {
    /// In tokens; 0: not known.
    capacity_tokens: AtomicU64,
    /// Moves as the trie's clock of the backend does.
    clock: AtomicU64,
    taken: AtomicU64,
    let_go: AtomicU64,
    /// Up to here the ring is written.
    written: AtomicU64,
    /// Of a backend whose capacity is known.
    rings: OnceLock<Box<Rings>>,
}

struct Rings {
    /// By what was let go of: the clock.
    clocks: [AtomicU32; STEPS],
    /// By the clock: requests that were sent then and run.
    running: [AtomicU16; BUCKETS],
}

impl Rings {
    fn at(&self, clock: u64) -> &AtomicU16 {
        &self.running[(clock / BUCKET) as usize % BUCKETS]
    }
}

impl Default for Cache {
    fn default() -> Self {
        Cache {
            capacity_tokens: AtomicU64::new(0),
            clock: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            let_go: AtomicU64::new(0),
            written: AtomicU64::new(0),
            rings: OnceLock::new(),
        }
    }
}

/// What came of a request, in chunks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Came {
    /// Believed to be there when it was sent.
    pub believed: u32,
    pub found: u32,
    pub answer: u32,
}

impl Came {
    /// By how much the clock moves beyond what it moved when the request was sent.
    pub fn moves(&self) -> u32 {
        self.believed.saturating_sub(self.found).saturating_add(self.answer)
    }
}

impl Cache {
    /// Another backend begins with an empty cache of unknown size.
    pub(super) fn forget(&self) {
        self.capacity_tokens.store(0, Relaxed);
        self.let_go.store(self.taken.load(Relaxed), Relaxed);
    }

    /// What the engine says of itself.
    pub fn set_capacity_tokens(&self, tokens: u64) {
        let rings = || {
            let (clocks, running) =
                (std::array::from_fn(|_| AtomicU32::new(0)), std::array::from_fn(|_| AtomicU16::new(0)));
            Box::new(Rings { clocks, running })
        };
        if tokens > 0 {
            self.rings.get_or_init(rings);
        }
        self.capacity_tokens.store(tokens, Relaxed);
    }

    /// In tokens; 0: not known.
    pub fn capacity_tokens(&self) -> u64 {
        self.capacity_tokens.load(Relaxed)
    }

    /// Counts a request until the guard is dropped. Of its prompt, `new` chunks are believed not to be there; `stale` of them
    /// are marked nevertheless.
    pub fn begin(&self, new: u32, stale: u32) -> Taking<'_> {
        let sent = self.clock.fetch_add(u64::from(new), Relaxed) + u64::from(stale);
        self.taken.fetch_add(u64::from(new), Relaxed);
        let running = self.rings.get().map(|rings| rings.at(sent));
        running.inspect(|running| _ = running.fetch_add(1, Relaxed));
        Taking { cache: self, running, new, came: Came::default() }
    }

    /// How much is believed to be there of `marked` chunks of which `fresh` are within the reach; `age` is that of their end.
    #[inline]
    pub fn believed(&self, marked: u32, fresh: u32, age: u32) -> u32 {
        if fresh < marked && self.is_running(age) { marked } else { fresh }
    }

    /// Whether a request runs by which a mark of this age was made or renewed.
    fn is_running(&self, age: u32) -> bool {
        let Some(rings) = self.rings.get() else { return false };
        let marked = self.clock.load(Relaxed).wrapping_sub(u64::from(age)) / BUCKET;
        (marked.saturating_sub(1)..=marked + LAG / BUCKET).any(|bucket| rings.at(bucket * BUCKET).load(Relaxed) > 0)
    }

    /// The age of the oldest mark whose content is there, if no running request holds it; `None`: nothing is known.
    pub fn reach(&self, chunk_tokens: f64) -> Option<u32> {
        let rings = self.rings.get()?;
        let capacity = (self.capacity_tokens() as f64 / chunk_tokens) as u64;
        if capacity == 0 {
            return None;
        }
        let (taken, let_go) = (self.taken.load(Relaxed), self.let_go.load(Relaxed));
        let Some(gone) = taken.checked_sub(capacity) else { return Some(u32::MAX) };
        let oldest = gone / STEP + 1;
        if let_go.saturating_sub(gone) > STEP * (STEPS as u64 - 1) {
            // More than the ring knows: then what runs is a small part.
            return Some(capacity.min(u64::from(u32::MAX)) as u32);
        }
        if oldest * STEP > self.written.load(Relaxed) {
            return Some(0);
        }
        let then = rings.clocks[oldest as usize % STEPS].load(Relaxed);
        Some((self.clock.load(Relaxed) as u32).wrapping_sub(then).saturating_add(BUCKET as u32))
    }

    fn end(&self, new: u32, came: Came) {
        // Counted as taken although it was there: taken back. What was thought to be there and was not is taken now.
        let surplus = came.found.saturating_sub(came.believed).min(new);
        let more = came.moves();
        let clock = self.clock.fetch_add(u64::from(more), Relaxed).wrapping_add(u64::from(more));
        self.taken.fetch_add(u64::from(more).wrapping_sub(u64::from(surplus)), Relaxed);
        let out = u64::from(new - surplus) + u64::from(more);
        let before = self.let_go.fetch_add(out, Relaxed);
        // The end of a prompt goes first: half of it is gone when the middle is.
        let middle = before + out / 2;
        let from = self.written.fetch_max(middle, Relaxed).max(middle.saturating_sub(STEP * STEPS as u64));
        let Some(rings) = self.rings.get() else { return };
        for step in from / STEP + 1..=middle / STEP {
            rings.clocks[step as usize % STEPS].store(clock as u32, Relaxed);
        }
    }
}

/// What a running request has taken; dropping it, on whatever path, lets go of it.
#[must_use]
pub struct Taking<'a> {
    cache: &'a Cache,
    running: Option<&'a AtomicU16>,
    new: u32,
    came: Came,
}

impl Taking<'_> {
    /// What is known of its end.
    pub fn came(&self) -> Came {
        self.came
    }

    /// The answer has ended and said this.
    pub fn ended(&mut self, came: Came) {
        self.came = came;
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.running.inspect(|running| _ = running.fetch_sub(1, Relaxed));
        self.cache.end(self.new, self.came);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(capacity_tokens: u64) -> Cache {
        let cache = Cache::default();
        cache.set_capacity_tokens(capacity_tokens);
        cache
    }

    /// So many requests of `new` chunks, one after another.
    fn play(cache: &Cache, requests: u32, new: u32) {
        (0..requests).for_each(|_| drop(cache.begin(new, 0)));
    }

    #[test]
    fn without_a_capacity_nothing_is_known_and_until_it_is_full_nothing_is_gone() {
        assert_eq!(Cache::default().reach(32.0), None);
        let cache = cache(32_000);
        play(&cache, 9, 100);
        assert_eq!(cache.reach(32.0), Some(u32::MAX));
    }

    #[test]
    fn the_reach_is_the_capacity_less_what_runs() {
        let cache = cache(320_000);
        play(&cache, 300, 100);
        let near = |wanted: u32| cache.reach(32.0).is_some_and(|reach| reach.abs_diff(wanted) <= 250);
        assert!(near(10_000), "{:?}", cache.reach(32.0));
        // What runs moves the clock as well, so what is left to the rest is counted from there.
        let running: Vec<Taking> = (0..40).map(|_| cache.begin(100, 0)).collect();
        assert!(near(10_000), "{:?}", cache.reach(32.0));
        drop(running);
        // All 4,000 were let go of at one moment, which is now; before that, 6,000 had been.
        assert!(near(10_000), "{:?}", cache.reach(32.0));
        let whole = cache.begin(10_100, 0);
        assert_eq!(cache.reach(32.0), Some(0), "it holds everything");
        drop(whole);
    }

    #[test]
    fn what_came_while_others_ran_is_there_for_less_long() {
        let cache = cache(320_000);
        play(&cache, 300, 100);
        // One holds half of the memory all the time.
        let _long = cache.begin(5_000, 0);
        play(&cache, 300, 100);
        assert!(cache.reach(32.0).is_some_and(|reach| reach.abs_diff(5_000) <= 250), "{:?}", cache.reach(32.0));
    }

    #[test]
    fn a_mark_of_a_running_request_is_known_until_it_ends() {
        let cache = cache(320_000);
        play(&cache, 100, 100);
        let running = cache.begin(1_000, 0);
        play(&cache, 30, 100);
        assert!(cache.is_running(4_000) && cache.is_running(4_020) && !cache.is_running(3_000));
        drop(running);
        assert!(!cache.is_running(4_000));
    }

    #[test]
    fn what_an_answer_says_corrects_what_was_believed() {
        let cache = cache(320_000);
        for _ in 0..300 {
            // All of it was there after all: nothing is displaced.
            cache.begin(100, 0).ended(Came { believed: 0, found: 100, answer: 0 });
        }
        assert_eq!(cache.reach(32.0), Some(u32::MAX));
        for _ in 0..150 {
            cache.begin(0, 0).ended(Came { believed: 100, found: 0, answer: 20 });
        }
        assert!(cache.reach(32.0).is_some_and(|reach| reach.abs_diff(10_000) <= 250), "{:?}", cache.reach(32.0));
    }
}
