//! The estimate against hand-made worlds and against an engine that keeps what was used last.

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
        let believed = marked.is_some_and(|marked| cache.believed(1, u32::from(age < u64::from(reach)), marked) == 1);
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
