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
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// A cache with the trie's clock, and what each prompt is marked with: in its middle, once it is let go of.
    struct World {
        cache: Cache,
        clock: u64,
        marks: HashMap<u32, u64>,
    }

    const CHUNK_TOKENS: f64 = 32.0;

    impl World {
        fn new(capacity_chunks: u64) -> World {
            let cache = Cache::default();
            cache.set_capacity_tokens(capacity_chunks * CHUNK_TOKENS as u64);
            World { cache, clock: 0, marks: HashMap::new() }
        }

        fn reach(&self) -> u32 {
            self.cache.reach(CHUNK_TOKENS, self.clock).expect("the capacity is known")
        }

        /// Whether all of a prompt that was sent is believed to be there.
        fn believes(&self, prompt: u32) -> bool {
            let Some(&marked) = self.marks.get(&prompt) else { return false };
            let fresh = u32::from(self.clock - marked < u64::from(self.reach()));
            self.cache.believed(1, fresh, marked) == 1
        }

        fn begin(&mut self, prompt: u32, chunks: u32) -> Takes {
            let found_marked = self.marks.get(&prompt).copied().unwrap_or(0);
            let found = if self.believes(prompt) { chunks } else { 0 };
            self.clock += u64::from(APART);
            let takes = Takes { new: chunks - found, found, found_marked, marked: self.clock };
            self.marks.insert(prompt, self.clock);
            self.clock += u64::from(takes.new);
            takes
        }

        fn let_go(&mut self, prompt: u32, chunks: u32, answer: u32) -> Leaves {
            self.clock += u64::from(APART);
            let leaves = Leaves { prompt: chunks, answer, clock: self.clock };
            self.marks.insert(prompt, self.clock + u64::from(chunks) / 2);
            self.clock += u64::from(chunks);
            leaves
        }

        /// One request after another, of 100 chunks each.
        fn play(&mut self, prompts: impl IntoIterator<Item = u32>) {
            for prompt in prompts {
                let takes = self.begin(prompt, 100);
                let leaves = self.let_go(prompt, 100, 0);
                let mut taking = self.cache.begin(takes).expect("the capacity is known");
                taking.ended(leaves);
                drop(taking);
            }
        }

        fn believed(&self, prompts: impl IntoIterator<Item = u32>) -> usize {
            prompts.into_iter().filter(|&prompt| self.believes(prompt)).count()
        }
    }

    #[test]
    fn without_a_capacity_nothing_is_known_and_until_it_is_full_nothing_is_gone() {
        let unknown = Cache::default();
        assert!(unknown.begin(Takes::default()).is_none() && unknown.reach(32.0, 0).is_none());
        assert_eq!(unknown.room_tokens(32.0), f64::INFINITY);
        let mut world = World::new(1000);
        world.play(0..10);
        assert_eq!(world.reach(), u32::MAX);
        world.play([10]);
        assert!(!world.believes(0) && world.believes(1));
    }

    #[test]
    fn what_is_found_moves_to_the_queues_end_and_displaces_nothing() {
        let mut world = World::new(10_000);
        world.play(0..100);
        // The first half is asked for again and again.
        (0..9).for_each(|_| world.play(0..50));
        assert_eq!(world.believed(0..100), 100);
        world.play(100..125);
        assert_eq!((world.believed(0..50), world.believed(100..125)), (50, 25));
        assert!((23..=26).contains(&world.believed(50..100)), "{}", world.believed(50..100));
    }

    #[test]
    fn what_runs_is_there_and_leaves_less_room_to_the_rest() {
        let mut world = World::new(10_000);
        world.play(0..100);
        let takes = world.begin(1000, 4_000);
        let cache = std::mem::take(&mut world.cache);
        let taking = cache.begin(takes);
        assert_eq!(cache.room_tokens(CHUNK_TOKENS), 6_000.0 * CHUNK_TOKENS);
        let reach = cache.reach(CHUNK_TOKENS, world.clock).expect("known");
        let there = (0..100).filter(|prompt| world.clock - world.marks[prompt] < u64::from(reach)).count();
        assert!((59..=61).contains(&there), "{there}");
        assert_eq!(cache.believed(7, 0, world.marks[&1000]), 7, "it runs");
        let marked = world.marks[&1000];
        drop(taking);
        assert_eq!(cache.believed(7, 0, marked), 0);
        assert_eq!(cache.room_tokens(CHUNK_TOKENS), 10_000.0 * CHUNK_TOKENS);
    }

    #[test]
    fn marks_of_one_request_are_not_taken_for_anothers_that_runs() {
        let mut world = World::new(1000);
        world.play(0..30);
        let old = world.marks[&29];
        let takes = world.begin(30, 0);
        let cache = std::mem::take(&mut world.cache);
        let taking = cache.begin(takes);
        assert!(taking.is_some() && cache.is_running(world.marks[&30]) && !cache.is_running(old));
    }

    #[test]
    fn what_many_share_is_held_once() {
        let mut world = World::new(5_000);
        world.play([1]);
        let cache = std::mem::take(&mut world.cache);
        // Fifty that begin with it and add ten chunks each, marked a little apart; its own mark is young and not renewed.
        let taking: Vec<_> = (0..50)
            .map(|_| {
                world.clock += u64::from(APART);
                let marked = world.clock;
                world.clock += 10;
                cache.begin(Takes { new: 10, found: 100, found_marked: world.marks[&1] - 50, marked })
            })
            .collect();
        assert_eq!((cache.held.load(Relaxed), cache.queued.load(Relaxed)), (600, 0));
        drop(taking);
        assert_eq!((cache.held.load(Relaxed), cache.queued.load(Relaxed)), (0, 600));
    }

    #[test]
    fn an_answer_of_any_length_costs_no_more_than_the_queue() {
        let mut world = World::new(1000);
        let takes = world.begin(0, 100);
        let leaves = world.let_go(0, 100, u32::MAX);
        world.cache.begin(takes).expect("the capacity is known").ended(leaves);
        assert!(world.cache.end.load(Relaxed) <= world.cache.rings.get().expect("made").step * STEPS as u64 + 100);
        world.play(20..25);
        assert_eq!(world.believed(20..25), 5);
    }

    #[test]
    fn another_backend_begins_with_an_empty_cache() {
        let mut world = World::new(1000);
        world.play(0..30);
        world.cache.forget();
        assert_eq!(world.cache.capacity_tokens(), 0);
        world.cache.set_capacity_tokens(32_000);
        assert_eq!(world.believed(0..30), 0);
        world.play(30..40);
        assert_eq!(world.believed(30..40), 10);
    }

    /// Least recently used, prompt by prompt: what an engine does.
    #[test]
    fn it_believes_what_an_engine_holds() {
        let mut world = World::new(20_000);
        let cache = std::mem::take(&mut world.cache);
        let mut engine: Vec<(u32, u32)> = Vec::new();
        let mut running: Vec<(u32, u32, Option<Taking>)> = Vec::new();
        let (mut random, mut asked, mut wrong) = (1_u64, 0, 0);
        for turn in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Few are frequent, most are rare.
            let prompt = ((random >> 33) % 20 * ((random >> 40) % 40)) as u32;
            let chunks = 50 + prompt % 200;
            if running.iter().any(|(other, ..)| *other == prompt) {
                continue;
            }
            let reach = cache.reach(CHUNK_TOKENS, world.clock).expect("known");
            let marked = world.marks.get(&prompt).copied();
            let age = marked.map_or(u64::MAX, |marked| world.clock - marked);
            let believed =
                marked.is_some_and(|marked| cache.believed(1, u32::from(age < u64::from(reach)), marked) == 1);
            let there = engine.iter().position(|&(other, _)| other == prompt);
            if turn > 2_000 {
                asked += 1;
                wrong += u32::from(believed != there.is_some());
            }
            there.map(|at| engine.remove(at));
            let found = if believed { chunks } else { 0 };
            world.clock += u64::from(APART);
            let takes = Takes { new: chunks - found, found, found_marked: marked.unwrap_or(0), marked: world.clock };
            world.marks.insert(prompt, world.clock);
            running.push((prompt, chunks, cache.begin(takes)));
            if running.len() > 20 {
                let (prompt, chunks, taking) = running.swap_remove((random >> 50) as usize % 20);
                let leaves = world.let_go(prompt, chunks, 5);
                let mut taking = taking.expect("known");
                taking.ended(leaves);
                drop(taking);
                // Answers are let go of with their prompts; nobody asks for them.
                engine.push((u32::MAX, 5));
                engine.push((prompt, chunks));
            }
            let held: u32 = running.iter().map(|(_, chunks, _)| chunks).sum();
            while held + engine.iter().map(|(_, chunks)| chunks).sum::<u32>() > 20_000 {
                engine.remove(0);
            }
        }
        assert!(asked > 10_000 && wrong * 50 < asked, "{wrong} of {asked} wrong");
    }
}
