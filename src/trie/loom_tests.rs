//! Loom models: each pair of {insert, grow, lookup, evict, raise} in every interleaving that two threads can have, on a
//! table of one bucket with two cells and runs of at most four chunks.
//!
//! Each model has a negative twin: the same model without one guarantee (see [`Weakness`]), which must fail. A model
//! whose twin passes would show nothing.
//!
//! What every model demands: nothing freed is read, nothing is freed twice, no unordered read; after both threads are
//! done the books agree to the byte (`check`); a backend is never believed to hold what it was not sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use loom::thread;

use super::sync::{Weakness, pin, weaken};
use super::{Holder, Matches, Trie};

/// Which of the two threads of a race is the main one. Loom remembers only the last access to each atomic and so misses
/// some orders when one thread reads before it writes; the swapped race has them.
static SWAPPED: AtomicBool = AtomicBool::new(false);

fn explore(weakness: Weakness, model: impl Fn() + Send + Sync + Copy + 'static) {
    let _turn = weaken(weakness);
    for swapped in [false, true] {
        SWAPPED.store(swapped, Ordering::SeqCst);
        let mut builder = loom::model::Builder::new();
        // LOOM_MAX_PREEMPTIONS asks for more.
        builder.preemption_bound = builder.preemption_bound.or(Some(3));
        let runs = Arc::new(AtomicU64::new(0));
        let count = runs.clone();
        builder.check(move || {
            count.fetch_add(1, Ordering::Relaxed);
            model();
        });
        println!("{} interleavings", runs.load(Ordering::Relaxed));
        assert!(runs.load(Ordering::Relaxed) > 1, "the two threads do not meet");
    }
}

/// Two threads on one trie, and a check when both are done.
fn race(trie: &Arc<Trie>, one: impl FnOnce(&Trie) + Send + 'static, other: impl FnOnce(&Trie) + Send + 'static) {
    let shared = trie.clone();
    if SWAPPED.load(Ordering::SeqCst) {
        let second = thread::spawn(move || other(&shared));
        one(trie);
        second.join().unwrap();
    } else {
        let first = thread::spawn(move || one(&shared));
        other(trie);
        first.join().unwrap();
    }
    trie.check().unwrap();
}

fn trie() -> Arc<Trie> {
    Arc::new(Trie::with_table(1, 1 << 20, 2))
}

const fn life(slot: u16) -> Holder {
    Holder { slot, generation: 0 }
}

fn held(trie: &Trie, key: &[u64]) -> [u32; 2] {
    let mut found = Matches::new(2);
    trie.lookup(key, &mut found);
    [found.chunks(0), found.chunks(1)]
}

fn evict(trie: &Trie) {
    trie.evict_one(0, 0, &pin());
    trie.tick();
}

fn raise(trie: &Trie) {
    assert_eq!(trie.raise(0), 1);
}

/// The model as it is, and its twin without a guarantee.
macro_rules! model {
    ($name:ident, $twin:ident without $weakness:ident says $failure:literal, $body:expr) => {
        #[test]
        fn $name() {
            explore(Weakness::None, $body);
        }

        #[test]
        #[should_panic(expected = $failure)]
        fn $twin() {
            explore(Weakness::$weakness, $body);
        }
    };
}

model!(insert_and_lookup, insert_and_lookup_must_fail without RelaxedPublication says "Concurrent read and write accesses", || {
    let trie = trie();
    race(&trie, |trie| trie.insert(&[10, 11], life(0)), |trie| assert!([0, 2].contains(&held(trie, &[10, 11])[0])));
    assert_eq!(held(&trie, &[10, 11]), [2, 0]);
});

model!(grow_and_lookup, grow_and_lookup_must_fail without RelaxedPublication says "Concurrent read and write accesses", || {
    let trie = trie();
    trie.insert(&[10], life(1));
    let look = |trie: &Trie| {
        let [grown, steady] = held(trie, &[10, 11]);
        assert!([0, 2].contains(&grown));
        assert_eq!(steady, 1, "a growing run never loses a mark that was there before");
    };
    race(&trie, |trie| trie.insert(&[10, 11], life(0)), look);
    assert_eq!(held(&trie, &[10, 11]), [2, 1]);
});

model!(evict_and_lookup, evict_and_lookup_must_fail without FreeAtOnce says "Concurrent read and write accesses", || {
    let trie = trie();
    trie.insert(&[10, 11], life(0));
    race(&trie, evict, |trie| assert!([0, 2].contains(&held(trie, &[10, 11])[0])));
    assert_eq!((held(&trie, &[10, 11]), trie.stats().nodes), ([0, 0], 0));
});

model!(raise_and_lookup, raise_and_lookup_must_fail without NoGeneration says "names the slot's last life", || {
    let trie = trie();
    trie.insert(&[10, 11], life(0));
    let raised = Arc::new(loom::sync::atomic::AtomicBool::new(false));
    let tell = raised.clone();
    let raise = move |trie: &Trie| {
        trie.raise(0);
        tell.store(true, Ordering::Release);
    };
    race(&trie, raise, move |trie| {
        let before = raised.load(Ordering::Acquire);
        let chunks = held(trie, &[10, 11])[0];
        assert!(!before || chunks == 0, "a lookup after a raise names the slot's last life");
    });
});

model!(insert_and_insert, insert_and_insert_must_fail without BlindSwing says "in the books", || {
    let trie = trie();
    race(&trie, |trie| trie.insert(&[10], life(0)), |trie| trie.insert(&[10], life(1)));
    assert_eq!(held(&trie, &[10]), [1, 1]);
});

model!(two_cells_for_one_hash, two_cells_for_one_hash_must_fail without NoFence says "two runs begin with", || {
    let trie = trie();
    trie.insert(&[20], life(0));
    let make_a_gap = |trie: &Trie| {
        evict(trie);
        trie.insert(&[10], life(1));
    };
    race(&trie, |trie| trie.insert(&[10], life(0)), make_a_gap);
});

model!(insert_and_grow, insert_and_grow_must_fail without RelaxedPublication says "Concurrent read and write accesses", || {
    let trie = trie();
    trie.insert(&[10], life(0));
    race(&trie, |trie| trie.insert(&[10, 11], life(0)), |trie| trie.insert(&[10], life(1)));
    assert_eq!(held(&trie, &[10, 11]), [2, 1]);
});

model!(mark_and_copy, mark_and_copy_must_fail without NoFreeze says "an insert that has returned is forgotten", || {
    let trie = trie();
    trie.insert(&[10, 11], life(0));
    trie.insert(&[10], life(1));
    race(&trie, |trie| trie.insert(&[10, 11, 12], life(0)), |trie| trie.insert(&[10, 11], life(1)));
    assert_eq!(held(&trie, &[10, 11, 12]), [3, 2], "an insert that has returned is forgotten");
});

model!(grow_and_grow, grow_and_grow_must_fail without BlindSwing says "a node is unlinked twice", || {
    let trie = trie();
    trie.insert(&[10], life(0));
    race(&trie, |trie| trie.insert(&[10, 11], life(0)), |trie| trie.insert(&[10, 12], life(1)));
    assert_eq!((held(&trie, &[10, 11]), held(&trie, &[10, 12])), ([2, 1], [1, 2]));
});

model!(insert_and_evict, insert_and_evict_must_fail without FreeAtOnce says "Concurrent read and write accesses", || {
    let trie = trie();
    trie.insert(&[10], life(0));
    race(&trie, evict, |trie| trie.insert(&[10], life(1)));
    assert!(held(&trie, &[10])[0] <= 1);
});

model!(grow_and_evict, grow_and_evict_must_fail without BlindSwing says "a node is unlinked twice", || {
    let trie = trie();
    trie.insert(&[10], life(0));
    race(&trie, evict, |trie| trie.insert(&[10, 11], life(0)));
});

model!(evict_and_evict, evict_and_evict_must_fail without BlindSwing says "a node is unlinked twice", || {
    let trie = trie();
    trie.insert(&[10], life(0));
    race(&trie, evict, evict);
    assert_eq!(trie.stats().nodes, 0);
});

model!(raise_and_insert, raise_and_insert_must_fail without NoGeneration says "next life was not sent this", || {
    let trie = trie();
    race(&trie, raise, |trie| trie.insert(&[10, 11], life(0)));
    assert_eq!(held(&trie, &[10, 11]), [0, 0], "a slot's next life was not sent this");
});

model!(raise_and_grow, raise_and_grow_must_fail without NoGeneration says "left: [1, 2]", || {
    let trie = trie();
    trie.insert(&[10], life(0));
    race(&trie, raise, |trie| trie.insert(&[10, 11], life(1)));
    assert_eq!(held(&trie, &[10, 11]), [0, 2]);
});

model!(raise_and_evict, raise_and_evict_must_fail without BlindSwing says "a node is unlinked twice", || {
    let trie = trie();
    trie.insert(&[10], life(0));
    let raise = |trie: &Trie| {
        trie.raise(0);
        trie.tick();
    };
    race(&trie, raise, evict);
    assert_eq!(trie.stats().nodes, 0);
});
