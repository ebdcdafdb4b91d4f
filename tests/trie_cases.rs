//! What killed other routers' indexes, through the public face alone: growth without bound, and backends that are gone
//! but never leave.

use trieway::trie::{Holder, Matches, Options, Trie};

const SLOTS: usize = 3;

fn trie(memory_bytes: usize) -> Trie {
    Trie::new(&Options { memory_bytes, slots: SLOTS }).expect("enough memory")
}

/// A prompt of `chunks` chunks that shares nothing with other prompts.
fn prompt(number: u64, chunks: u64) -> Vec<u64> {
    (0..chunks).map(|at| (number << 20 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
}

fn holder(trie: &Trie, slot: u16) -> Holder {
    Holder { slot, generation: trie.generation(slot) }
}

/// Ticks as workers do, until nothing is left to do.
fn settle(trie: &Trie) {
    for _ in 0..20_000 {
        trie.tick();
    }
}

#[test]
fn unique_prompts_without_end_leave_the_hot_prefix_and_the_limit_alone() {
    let trie = trie(4 << 20);
    let (hot, mut found) = (prompt(0, 100), Matches::new(SLOTS));
    for number in 1..=40_000 {
        trie.insert(&prompt(number, 128), holder(&trie, 0));
        if number % 100 == 0 {
            trie.lookup(&hot, &mut found);
            assert!(number == 100 || found.chunks(1) == 100, "the hot prefix is gone after {number} prompts");
            trie.insert(&hot, holder(&trie, 1));
        }
        let stats = trie.stats();
        assert!(stats.used_bytes <= stats.limit_bytes, "{stats:?}");
    }
    assert!(trie.stats().evicted_nodes > 50_000, "most of the prompts had to go: {:?}", trie.stats());
    trie.check().expect("a sound trie");
}

#[test]
fn a_removed_backend_owns_nothing_and_its_memory_comes_back() {
    let trie = trie(32 << 20);
    let mut found = Matches::new(SLOTS);
    settle(&trie);
    let start = trie.stats();
    for number in 0..10_000 {
        trie.insert(&prompt(number, 16), holder(&trie, 1));
    }
    assert_eq!(trie.stats().nodes, 10_000);
    trie.raise(1);
    for number in 0..10_000 {
        trie.lookup(&prompt(number, 16), &mut found);
        assert!(found.is_empty());
        trie.insert(&prompt(number, 16), holder(&trie, 2));
        trie.lookup(&prompt(number, 16), &mut found);
        assert_eq!((found.chunks(1), found.chunks(2)), (0, 16), "the prompt has a home at once");
    }
    trie.raise(2);
    settle(&trie);
    let end = trie.stats();
    assert_eq!((end.nodes, end.used_bytes, end.backlog_bytes), (0, start.used_bytes, 0), "{end:?}");
}

#[test]
fn a_thousand_rounds_of_coming_and_going_leave_no_trace() {
    let trie = trie(4 << 20);
    settle(&trie);
    let start = trie.stats();
    for round in 0..1_000 {
        for number in 0..20 {
            trie.insert(&prompt(number % 7 + round * 7, 20), holder(&trie, (number % 3) as u16));
        }
        trie.raise((round % 3) as u16);
        trie.tick();
    }
    for slot in 0..3 {
        trie.raise(slot);
    }
    settle(&trie);
    let end = trie.stats();
    assert_eq!((end.nodes, end.used_bytes), (0, start.used_bytes), "{end:?}");
    trie.check().expect("a sound trie");
}
