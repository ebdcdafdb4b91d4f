//! Export and import: the answers before and after are the same.

use proptest::prelude::*;

use super::mark::STAMP_CHUNKS;
use super::tests::{SLOTS, chunks, config, holder, key, keys, keys_of, ops, run, trie};
use super::*;

fn exported(trie: &Trie) -> Vec<u8> {
    let (mut bytes, mut from) = (Vec::new(), Some(0));
    while let Some(bucket) = from {
        from = trie.export(bucket, &mut bytes);
    }
    bytes
}

/// Slot `n` of the export is slot `n` here.
fn same(trie: &Trie) -> impl Fn(u16) -> Option<Holder> {
    |slot| Some(holder(trie, slot))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn answers_are_the_same_after_a_round_trip(ops in ops(4), probes in prop::collection::vec(keys(), 8)) {
        let before = trie(4 << 20);
        run(&before, &ops);
        let after = trie(4 << 20);
        let bytes = exported(&before);
        after.import(&bytes, same(&after)).unwrap();
        let (mut then, mut now) = (Matches::new(SLOTS), Matches::new(SLOTS));
        for key in keys_of(&ops).chain(&probes) {
            before.lookup(key, &mut then);
            after.lookup(key, &mut now);
            let sorted = |found: &Matches| {
                let mut all: Vec<_> = found.iter().map(|one| (one.slot, one.chunks, one.age)).collect();
                all.sort_unstable();
                all
            };
            prop_assert_eq!(sorted(&then), sorted(&now));
        }
        after.check().map_err(TestCaseError::fail)?;
        let mut again: Vec<u8> = exported(&after);
        let mut bytes = bytes;
        // Two runs of one bucket may have changed places, and so may marks: as a bag of bytes it is the same.
        again.sort_unstable();
        bytes.sort_unstable();
        prop_assert_eq!(bytes, again);
    }

    #[test]
    fn no_bytes_break_it(bytes in prop::collection::vec(any::<u8>(), 0..400), cut in 0..400usize, flip in any::<u8>()) {
        let source = trie(1 << 20);
        source.insert(&key(0..300), holder(&source, 1));
        let mut valid = exported(&source);
        let at = cut.min(valid.len() - 1);
        valid[at] ^= flip;
        let target = trie(1 << 20);
        let _ = target.import(&bytes, same(&target));
        let _ = target.import(&valid, same(&target));
        let _ = target.import(&valid[..at], same(&target));
        target.check().map_err(TestCaseError::fail)?;
    }
}

#[test]
fn slots_are_renamed_and_those_who_are_gone_are_left_out() {
    let (before, talk) = (trie(1 << 20), key(0..300));
    for (slot, held) in [(0, 40), (1, 200), (2, 300)] {
        before.insert(&talk[..held], holder(&before, slot));
    }
    let after = trie(1 << 20);
    after.raise(5);
    let renamed = |slot: u16| match slot {
        1 => Some(holder(&after, 5)),
        2 => Some(holder(&after, 0)),
        _ => None,
    };
    after.import(&exported(&before), renamed).unwrap();
    assert_eq!([0, 1, 2, 5].map(|slot| chunks(&after, &talk, slot)), [300, 0, 0, 200]);
    after.check().unwrap();
}

#[test]
fn what_is_void_is_not_exported_and_what_came_from_an_old_life_is_not_taken() {
    let (before, talk) = (trie(1 << 20), key(0..50));
    before.insert(&talk, holder(&before, 0));
    before.insert(&talk, holder(&before, 1));
    before.raise(0);
    let bytes = exported(&before);
    let after = trie(1 << 20);
    let old = holder(&after, 1);
    after.raise(1);
    assert_eq!(after.import(&bytes, |slot| (slot == 1).then_some(old)), Ok(0));
    after.import(&bytes, same(&after)).unwrap();
    assert_eq!([0, 1].map(|slot| chunks(&after, &talk, slot)), [0, 50]);
}

#[test]
fn ages_are_kept_on_a_clock_that_begins_anew() {
    let (before, old) = (trie(8 << 20), key(0..50));
    before.insert(&old, holder(&before, 0));
    before.insert(&key(1_000..1_000 + 40 * STAMP_CHUNKS), holder(&before, 0));
    let age = |trie: &Trie| {
        let mut found = Matches::new(SLOTS);
        trie.lookup(&old, &mut found);
        found.iter().next().unwrap().age
    };
    let after = trie(8 << 20);
    after.import(&exported(&before), same(&after)).unwrap();
    assert!(age(&before) >= 40 * STAMP_CHUNKS as u32);
    assert_eq!(age(&before), age(&after));
    after.set_horizon(0, 20 * STAMP_CHUNKS as u32);
    let mut found = Matches::new(SLOTS);
    after.lookup(&old, &mut found);
    assert_eq!(found.iter().next().unwrap().fresh, 0, "it is older than the engine's cache reaches");
}

#[test]
fn an_import_into_less_memory_keeps_the_bound_and_the_youngest() {
    let before = trie(16 << 20);
    for prompt in 0..8_000u64 {
        before.insert(&key(prompt << 20..(prompt << 20) + 100), holder(&before, 0));
    }
    let after = trie(1 << 20);
    after.import(&exported(&before), same(&after)).unwrap();
    let stats = after.stats();
    assert!(stats.used_bytes <= stats.limit_bytes && stats.evicted_nodes > 5_000, "{stats:?}");
    let held = |prompts: std::ops::Range<u64>| {
        prompts.filter(|prompt| chunks(&after, &key(prompt << 20..(prompt << 20) + 100), 0) > 0).count()
    };
    assert!(held(7_000..8_000) > 4 * held(0..1_000), "{} and {}", held(7_000..8_000), held(0..1_000));
    after.check().unwrap();
}

#[test]
fn an_import_beside_traffic_changes_nothing_that_is_there() {
    let (before, talk) = (trie(1 << 20), key(0..100));
    before.insert(&talk, holder(&before, 0));
    let after = trie(1 << 20);
    after.insert(&talk[..60], holder(&after, 3));
    after.import(&exported(&before), same(&after)).unwrap();
    assert_eq!(chunks(&after, &talk, 3), 60);
    after.check().unwrap();
}
