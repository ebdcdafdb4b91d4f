//! The trie against its twin, one thread.

use proptest::prelude::*;

use super::mark::STAMP_CHUNKS;
use super::node::MAX_RUN;
use super::twin::Twin;
use super::*;

pub(super) const SLOTS: usize = 6;

pub(super) fn trie(memory_bytes: usize) -> Trie {
    Trie::new(&Options { memory_bytes, slots: SLOTS }).unwrap()
}

/// The key of a sequence of chunks: equal prefixes give equal hashes, and no others do.
pub(super) fn key(chunks: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let chain = |name: &mut u64, chunk: u64| {
        *name = (*name ^ chunk).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_add(chunk);
        Some(*name)
    };
    chunks.into_iter().scan(0x1234_5678, chain).collect()
}

pub(super) fn holder(trie: &Trie, slot: u16) -> Holder {
    Holder { slot, generation: trie.generation(slot) }
}

pub(super) fn chunks(trie: &Trie, key: &[u64], slot: u16) -> u32 {
    let mut found = Matches::new(SLOTS);
    trie.lookup(key, &mut found);
    found.chunks(slot)
}

#[test]
fn too_little_memory_and_too_many_slots_are_refused_by_name() {
    let small = Trie::new(&Options { memory_bytes: MIN_MEMORY_BYTES - 1, slots: 1 }).err().unwrap();
    assert!(small.to_string().contains("1048575") && small.to_string().contains("1048576"), "{small}");
    let wide = Trie::new(&Options { memory_bytes: MIN_MEMORY_BYTES, slots: MAX_SLOTS + 1 }).err().unwrap();
    assert!(wide.to_string().contains("4097"), "{wide}");
    assert!(Trie::new(&Options { memory_bytes: MIN_MEMORY_BYTES, slots: MAX_SLOTS }).is_ok());
}

#[test]
fn an_empty_trie_and_an_empty_key_match_nobody() {
    let trie = trie(1 << 20);
    let mut found = Matches::new(SLOTS);
    trie.lookup(&key(0..9), &mut found);
    assert!(found.is_empty() && found.longest() == 0);
    trie.insert(&[], holder(&trie, 0));
    trie.lookup(&[], &mut found);
    assert!(found.is_empty());
    assert_eq!(trie.stats().nodes, 0);
}

#[test]
fn each_backend_answers_for_its_own_prefix() {
    let trie = trie(1 << 20);
    let long = key(0..300);
    trie.insert(&long[..40], holder(&trie, 0));
    trie.insert(&long[..200], holder(&trie, 1));
    trie.insert(&long, holder(&trie, 2));
    trie.insert(&key([0, 1, 2, 77, 78]), holder(&trie, 3));
    let mut found = Matches::new(SLOTS);
    trie.lookup(&long, &mut found);
    assert_eq!([0, 1, 2, 3, 4].map(|slot| found.chunks(slot)), [40, 200, 300, 3, 0]);
    assert_eq!(found.longest(), 300);
    assert_eq!(found.iter().map(|found| found.chunks).sum::<u32>(), 543);
    trie.lookup(&key([9]), &mut found);
    assert!(found.is_empty(), "an answer is forgotten by the next lookup");
    trie.check().unwrap();
}

#[test]
fn a_conversation_that_grows_stays_one_dense_run() {
    let trie = trie(1 << 20);
    let talk = key(0..MAX_RUN as u64);
    for turn in (4..=MAX_RUN).step_by(4) {
        trie.insert(&talk[..turn], holder(&trie, 0));
        assert_eq!(chunks(&trie, &talk, 0), turn as u32);
    }
    assert_eq!((trie.stats().nodes, trie.stats().chunks), (1, MAX_RUN));
    trie.insert(&key(0..MAX_RUN as u64 + 1), holder(&trie, 0));
    assert_eq!(trie.stats().nodes, 2);
    trie.check().unwrap();
}

#[test]
fn a_second_insert_of_the_same_changes_nothing() {
    let trie = trie(1 << 20);
    let held = key(0..500);
    trie.insert(&held, holder(&trie, 0));
    let before = Stats { inserts: 2, ..trie.stats() };
    trie.insert(&held, holder(&trie, 0));
    assert_eq!(trie.stats(), before);
}

#[test]
fn a_run_takes_as_many_backends_as_there_are() {
    let trie = Trie::new(&Options { memory_bytes: 4 << 20, slots: MAX_SLOTS }).unwrap();
    let shared = key(0..30);
    for slot in 0..MAX_SLOTS as u16 {
        trie.insert(&shared, Holder { slot, generation: 0 });
    }
    let mut found = Matches::new(MAX_SLOTS);
    trie.lookup(&shared, &mut found);
    assert_eq!(found.iter().filter(|found| found.chunks == 30).count(), MAX_SLOTS);
    assert_eq!(trie.stats().refused_inserts, 0);
    trie.check().unwrap();
}

#[test]
fn a_raise_voids_at_once_and_the_slots_next_life_owns_nothing() {
    let trie = trie(1 << 20);
    let held = key(0..200);
    let old = holder(&trie, 1);
    trie.insert(&held, old);
    trie.insert(&held, holder(&trie, 2));
    assert_eq!(trie.raise(1), 1);
    assert_eq!((chunks(&trie, &held, 1), chunks(&trie, &held, 2)), (0, 200));
    trie.insert(&held, old);
    assert_eq!(chunks(&trie, &held, 1), 0, "an old generation marks nothing");
    assert_eq!(trie.stats().void_inserts, 1);
    trie.insert(&held[..50], holder(&trie, 1));
    assert_eq!(chunks(&trie, &held, 1), 50);
}

#[test]
fn marks_do_not_come_back_when_the_generation_comes_round() {
    let trie = trie(1 << 20);
    let held = key(0..200);
    trie.insert(&held, holder(&trie, 1));
    trie.insert(&key(500..600), holder(&trie, 1));
    trie.insert(&held, holder(&trie, 2));
    for generation in 1..=u32::from(u16::MAX) {
        assert_eq!(u32::from(trie.raise(1)), generation);
        if generation == 40_000 {
            trie.insert(&held, holder(&trie, 1));
        }
    }
    assert_eq!(trie.raise(1), 0);
    assert_eq!((chunks(&trie, &held, 1), chunks(&trie, &held, 2)), (0, 200));
    for _ in 0..40_000 {
        trie.raise(1);
    }
    assert_eq!((chunks(&trie, &held, 1), chunks(&trie, &held, 2)), (0, 200));
    trie.check().unwrap();
}

#[test]
fn a_raise_sweeps_a_small_part_of_the_table_even_if_nobody_ticks() {
    let trie = Trie::with_table(100_000, 16 << 20, SLOTS);
    trie.insert(&key(0..200), holder(&trie, 1));
    let mut most = 0;
    for _ in 0..3 * 32_768 {
        let before = trie.sweep.done();
        trie.raise(1);
        most = most.max(trie.sweep.done() - before);
    }
    assert_eq!(most, 2 * 100_000 / 32_767 + 1);
    assert!(trie.sweep.done() >= 2 * 2 * 100_000, "two rounds in each half but the first");
    assert_eq!(trie.stats().nodes, 0);
}

#[test]
fn the_raises_of_a_ticked_trie_sweep_nothing() {
    let trie = trie(1 << 20);
    trie.insert(&key(0..200), holder(&trie, 2));
    for round in 0..4u64 {
        trie.insert(&key([round; 30]), holder(&trie, 1));
        for _ in 0..32_768 {
            trie.tick();
            let before = trie.sweep.done();
            trie.raise(1);
            assert_eq!(trie.sweep.done(), before);
        }
        trie.tick();
        let nodes = trie.stats().nodes;
        assert_eq!(nodes, 2, "the sweep has taken what slot 1 held in earlier lives");
    }
    assert_eq!(chunks(&trie, &key(0..200), 2), 200);
}

#[test]
fn ticks_give_back_what_raised_slots_held() {
    let trie = trie(1 << 20);
    let settle = |trie: &Trie| (0..2_000).for_each(|_| trie.tick());
    trie.insert(&key(0..100), holder(&trie, 0));
    settle(&trie);
    let before = trie.stats();
    for round in 0..20 {
        for prompt in 0..50 {
            trie.insert(&key([0, 1, round, prompt, 7, 7]), holder(&trie, 1));
        }
        trie.raise(1);
    }
    assert!(trie.stats().nodes > 100);
    settle(&trie);
    let after = trie.stats();
    assert_eq!((after.nodes, after.chunks), (before.nodes, before.chunks));
    assert_eq!(chunks(&trie, &key(0..100), 0), 100);
    trie.check().unwrap();
}

#[test]
fn forgetting_leaves_the_holder_the_chunks_to_keep_and_the_others_theirs() {
    let trie = trie(1 << 20);
    let held = key(0..400);
    for keep in [399, 300, 124, 123, 1, 0] {
        trie.insert(&held, holder(&trie, 0));
        trie.insert(&held, holder(&trie, 1));
        trie.forget(&held, holder(&trie, 0), keep);
        assert_eq!((chunks(&trie, &held, 0), chunks(&trie, &held, 1)), (keep as u32, 400), "keep {keep}");
    }
    trie.forget(&held, Holder { slot: 1, generation: 9 }, 0);
    assert_eq!(chunks(&trie, &held, 1), 400, "another generation's belief is not touched");
    trie.check().unwrap();
}

#[test]
fn age_and_freshness_follow_the_backends_byte_clock() {
    let trie = trie(8 << 20);
    let first = key(0..100);
    let mut found = Matches::new(SLOTS);
    let mut seen = |trie: &Trie| {
        trie.lookup(&first, &mut found);
        found.iter().next().unwrap()
    };
    trie.insert(&first, holder(&trie, 0));
    for prompt in 0..100u64 {
        trie.insert(&key(1_000 * (prompt + 1)..1_000 * (prompt + 1) + 100), holder(&trie, 0));
        trie.insert(&key(1_000 * (prompt + 1)..1_000 * (prompt + 1) + 100), holder(&trie, 0));
    }
    let age = seen(&trie).age;
    assert!((10_100 - STAMP_CHUNKS as u32..=10_100).contains(&age), "{age}");
    trie.set_horizon(0, age);
    assert_eq!((seen(&trie).chunks, seen(&trie).fresh), (100, 0));
    trie.set_horizon(0, age + 1);
    assert_eq!((seen(&trie).chunks, seen(&trie).fresh), (100, 100));
    trie.insert(&first, holder(&trie, 0));
    assert!(seen(&trie).age < STAMP_CHUNKS as u32);
}

#[test]
fn what_is_let_go_of_is_older_at_its_end() {
    let trie = trie(8 << 20);
    let (talk, mut found) = (key(0..1_000), Matches::new(SLOTS));
    let mut seen = |trie: &Trie| {
        trie.lookup(&talk, &mut found);
        found.of(0).unwrap()
    };
    trie.insert(&talk, holder(&trie, 0));
    let before = trie.insert_let_go(&talk, holder(&trie, 0));
    assert_eq!((before, trie.clock(0)), (1_000, 2_000));
    let (end, unit) = (seen(&trie), STAMP_CHUNKS as u32);
    // The last run's first chunk, and runs are of 124.
    assert_eq!(end.marked, (1_000 + 1_000 - 992) / STAMP_CHUNKS * STAMP_CHUNKS);
    assert!((992 - unit..=992 + unit).contains(&end.age), "{}", end.age);
    trie.set_horizon(0, 500);
    let fresh = seen(&trie).fresh;
    assert!((480..=620).contains(&fresh) && fresh.is_multiple_of(MAX_RUN as u32), "{fresh}");
    trie.advance(0, 10_000);
    assert_eq!((seen(&trie).chunks, seen(&trie).fresh), (1_000, 0));
    trie.check().unwrap();
}

#[test]
fn what_was_sent_again_with_another_prompt_is_told_from_what_was_not() {
    let (trie, mut found) = (trie(8 << 20), Matches::new(SLOTS));
    let prompt = |own: u64| [key(0..200), key(own..own + 100)].concat();
    let mut shared = |own: u64| {
        trie.lookup(&prompt(own), &mut found);
        found.of(0).map(|found| (found.chunks, found.shared))
    };
    trie.insert_let_go(&prompt(1_000), holder(&trie, 0));
    assert_eq!(shared(1_000), Some((300, 0)));
    trie.advance(0, 2_000);
    trie.insert_let_go(&prompt(5_000), holder(&trie, 0));
    // Two runs of 124 have some of what both begin with.
    assert_eq!((shared(1_000), shared(5_000)), (Some((300, 248)), Some((300, 0))));
}

#[test]
fn an_insert_after_a_lookup_goes_on_where_the_answer_ends() {
    let trie = trie(1 << 20);
    let (talk, mut found) = (key(0..700), Matches::new(SLOTS));
    let one = holder(&trie, 0);
    for turn in [1, 40, 90, 124, 125, 300, 700, 700] {
        trie.lookup(&talk[..turn], &mut found);
        let settled = found.settled(&talk[..turn], one);
        assert!(settled == 0 || settled.is_multiple_of(MAX_RUN) || settled == turn, "{settled} of {turn}");
        trie.insert_found(&talk[..turn], one, &found);
        assert_eq!(chunks(&trie, &talk, 0), turn as u32);
    }
    trie.lookup(&talk, &mut found);
    assert_eq!(found.settled(&talk, one), 700);
    assert_eq!(found.settled(&talk[..699], one), 0, "the answer is for a longer key");
    assert_eq!(found.settled(&talk, Holder { generation: 1, ..one }), 0);
    assert_eq!(found.settled(&talk, holder(&trie, 1)), 0);
    trie.check().unwrap();
}

#[test]
fn an_insert_after_a_lookup_renews_marks_that_are_old_and_gives_none_to_the_next_life() {
    let trie = trie(8 << 20);
    let (held, mut found) = (key(0..200), Matches::new(SLOTS));
    trie.insert(&held, holder(&trie, 0));
    trie.insert(&key(1_000..1_000 + 4 * STAMP_CHUNKS), holder(&trie, 0));
    trie.lookup(&held, &mut found);
    assert_eq!(found.settled(&held, holder(&trie, 0)), 0, "there are stamps to renew");
    trie.insert_found(&held, holder(&trie, 0), &found);
    trie.lookup(&held, &mut found);
    assert!(found.iter().next().unwrap().age < 2 * STAMP_CHUNKS as u32);
    let old = holder(&trie, 0);
    trie.raise(0);
    trie.insert_found(&held, old, &found);
    assert_eq!((chunks(&trie, &held, 0), trie.stats().void_inserts), (0, 1));
    trie.insert_found(&held, holder(&trie, 0), &found);
    assert_eq!(chunks(&trie, &held, 0), 200, "an answer about the last life settles nothing");
}

#[test]
fn a_full_trie_keeps_what_is_used_and_never_passes_its_limit() {
    let trie = trie(1 << 20);
    let hot = key(0..200);
    for prompt in 0..20_000u64 {
        trie.insert(&hot, holder(&trie, 0));
        assert_eq!(chunks(&trie, &hot, 0), 200, "after {prompt} prompts");
        trie.insert(&key((prompt + 1) << 20..((prompt + 1) << 20) + 128), holder(&trie, 0));
        assert!(trie.stats().used_bytes <= trie.stats().limit_bytes);
    }
    let stats = trie.stats();
    assert!(stats.evicted_nodes > 10_000, "{stats:?}");
    // Other tests of the process can hold the epoch back for a moment.
    assert!(stats.refused_inserts < 200, "{stats:?}");
    assert!(stats.used_bytes > stats.limit_bytes / 4 * 3, "{stats:?}");
    trie.check().unwrap();
}

#[derive(Clone, Debug)]
pub(super) enum Op {
    Insert { key: Vec<u64>, slot: u16, stale: bool, looked_up: bool },
    Raise { slot: u16 },
    Forget { key: Vec<u64>, slot: u16, keep: usize },
    Tick,
}

/// Few distinct chunks, so that keys branch everywhere; long stretches, so that runs fill and follow each other.
pub(super) fn keys() -> impl Strategy<Value = Vec<u64>> {
    let stretch = (0..3u64, 1..90usize).prop_map(|(chunk, length)| vec![chunk; length]);
    prop::collection::vec(stretch, 1..6).prop_map(|stretches| key(stretches.concat()))
}

pub(super) fn ops(forget: u32) -> impl Strategy<Value = Vec<Op>> {
    let slot = 0..SLOTS as u16;
    let insert = (keys(), slot.clone(), prop::bool::weighted(0.1), any::<bool>())
        .prop_map(|(key, slot, stale, looked_up)| Op::Insert { key, slot, stale, looked_up });
    let erase = (keys(), slot.clone(), 0..300usize).prop_map(|(key, slot, keep)| Op::Forget { key, slot, keep });
    let op = prop_oneof![
        20 => insert,
        1 => slot.prop_map(|slot| Op::Raise { slot }),
        forget => erase,
        1 => Just(Op::Tick),
    ];
    prop::collection::vec(op, 1..60)
}

/// Runs `ops` on a trie and two twins, which forget the least and the most that may be forgotten.
pub(super) fn run(trie: &Trie, ops: &[Op]) -> (Twin, Twin) {
    let (mut most, mut least) = (Twin::default(), Twin::default());
    let mut found = Matches::new(SLOTS);
    for op in ops {
        match op {
            Op::Insert { key, slot, stale, looked_up } => {
                let generation = trie.generation(*slot).wrapping_sub(u16::from(*stale));
                let holder = Holder { slot: *slot, generation };
                // Without its own lookup, the answer is an earlier one for another key.
                if *looked_up {
                    trie.lookup(key, &mut found);
                }
                trie.insert_found(key, holder, &found);
                most.insert(key, holder);
                least.insert(key, holder);
            }
            Op::Raise { slot } => {
                trie.raise(*slot);
                most.raise(*slot);
                least.raise(*slot);
            }
            Op::Forget { key, slot, keep } => {
                let holder = holder(trie, *slot);
                trie.forget(key, holder, *keep);
                most.forget(key, holder, *keep);
                least.forget_subtree(key, holder, *keep);
            }
            Op::Tick => trie.tick(),
        }
    }
    (most, least)
}

pub(super) fn keys_of(ops: &[Op]) -> impl Iterator<Item = &Vec<u64>> {
    ops.iter().filter_map(|op| match op {
        Op::Insert { key, .. } | Op::Forget { key, .. } => Some(key),
        Op::Raise { .. } | Op::Tick => None,
    })
}

/// Enough for each run of the tests; PROPTEST_CASES asks for more.
pub(super) fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(24);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn without_eviction_the_answers_are_the_twins(ops in ops(0), probes in prop::collection::vec(keys(), 8)) {
        let trie = trie(4 << 20);
        let (twin, _) = run(&trie, &ops);
        prop_assert_eq!(trie.stats().evicted_nodes, 0);
        for key in keys_of(&ops).chain(&probes) {
            for slot in 0..SLOTS as u16 {
                prop_assert_eq!(chunks(&trie, key, slot), twin.chunks(key, slot));
            }
        }
        trie.check().map_err(TestCaseError::fail)?;
    }

    #[test]
    fn forgetting_stays_between_the_key_and_its_subtree(ops in ops(8)) {
        let trie = trie(4 << 20);
        let (most, least) = run(&trie, &ops);
        for key in keys_of(&ops) {
            for slot in 0..SLOTS as u16 {
                let held = chunks(&trie, key, slot);
                prop_assert!(held <= most.chunks(key, slot));
                prop_assert!(held >= least.chunks(key, slot));
            }
        }
        trie.check().map_err(TestCaseError::fail)?;
    }

    #[test]
    fn with_eviction_nothing_is_believed_that_the_twin_does_not(ops in ops(2)) {
        let trie = Trie::with_table(2, 6 << 10, SLOTS);
        let (most, _) = run(&trie, &ops);
        for key in keys_of(&ops) {
            for slot in 0..SLOTS as u16 {
                prop_assert!(chunks(&trie, key, slot) <= most.chunks(key, slot));
            }
        }
        trie.check().map_err(TestCaseError::fail)?;
    }
}
