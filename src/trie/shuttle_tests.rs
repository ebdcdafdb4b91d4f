//! Random schedules of more threads and more operations than a model can enumerate, under shuttle.

use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};

use super::sync::{Weakness, weaken};
use super::{Holder, Matches, Trie};

const SLOTS: usize = 3;

/// Every key is a path in a small tree of prefixes, named by its hash as the contract demands.
fn key(rng: &mut impl Rng) -> Vec<u64> {
    let length = rng.gen_range(1..12);
    let chain = |name: &mut u64, _: usize| {
        *name = *name * 2 + u64::from(rng.gen_bool(0.2));
        Some(*name)
    };
    (0..length).scan(1, chain).collect()
}

fn act(trie: &Trie, slot: u16) {
    let mut rng = thread_rng();
    let mut found = Matches::new(SLOTS);
    for _ in 0..6 {
        let (key, holder) = (key(&mut rng), Holder { slot, generation: trie.generation(slot) });
        match rng.gen_range(0..10) {
            0 => drop(trie.raise(slot)),
            1 => trie.forget(&key, holder, key.len() / 2),
            2 => trie.tick(),
            3 | 4 => trie.lookup(&key, &mut found),
            5 => {
                trie.lookup(&key, &mut found);
                trie.insert_found(&key, holder, &found);
            }
            _ => trie.insert(&key, holder),
        }
        assert!(trie.stats().used_bytes <= trie.stats().limit_bytes);
    }
}

fn scenario() {
    let empty = Trie::with_table(2, 1 << 20, SLOTS).stats().used_bytes;
    let trie = Arc::new(Trie::with_table(2, empty + 1_200, SLOTS));
    let threads: Vec<_> = (0..SLOTS as u16)
        .map(|slot| {
            let trie = trie.clone();
            shuttle::thread::spawn(move || act(&trie, slot))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    trie.check().unwrap();
}

fn iterations() -> usize {
    std::env::var("SHUTTLE_ITERATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(2_000)
}

#[test]
fn random_schedules_keep_the_invariants() {
    let _turn = weaken(Weakness::None);
    shuttle::check_random(scenario, iterations());
}

#[test]
fn bounded_preemptions_keep_the_invariants() {
    let _turn = weaken(Weakness::None);
    shuttle::check_pct(scenario, iterations(), 3);
}

#[test]
#[should_panic(expected = "freed")]
fn random_schedules_notice_a_node_that_is_freed_at_once() {
    let _turn = weaken(Weakness::FreeAtOnce);
    shuttle::check_random(scenario, iterations());
}
