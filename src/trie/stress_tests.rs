//! Real threads on a trie so small that every rare path is common: full buckets, eviction at each insert, refusals,
//! growth and raises all the time. Meant to run under sanitizers too; TRIE_STRESS_MS sets how long each test runs.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, AtomicUsize};
use std::time::{Duration, Instant};

use super::sync::Ordering;
use super::{Holder, Matches, Trie};

const SLOTS: usize = 4;

fn duration() -> Duration {
    let asked = std::env::var("TRIE_STRESS_MS").ok().and_then(|ms| ms.parse().ok());
    Duration::from_millis(asked.unwrap_or(300))
}

/// A small generator, so that each thread's sequence is its own and repeatable (xorshift64*).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % sides
    }

    /// A path in a tree of prefixes that branches now and then, named by its hash.
    fn key(&mut self, root: u64) -> Vec<u64> {
        let length = 1 + self.roll(300);
        let mut name = root;
        let step = |_| {
            name = (name ^ u64::from(self.roll(40) == 0)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31) + 1;
            name
        };
        (0..length).map(step).collect()
    }
}

fn act(trie: &Trie, dice: &mut Dice, found: &mut Matches) {
    let slot = dice.roll(SLOTS as u64) as u16;
    let holder = Holder { slot, generation: trie.generation(slot) };
    let key = dice.key(1);
    match dice.roll(40) {
        0 => drop(trie.raise(slot)),
        1 => trie.forget(&key, holder, dice.roll(300) as usize),
        2 => trie.tick(),
        3..=15 => trie.lookup(&key, found),
        16..=30 => {
            trie.lookup(&key, found);
            trie.insert_found(&key, holder, found);
        }
        31..=33 => _ = trie.insert_let_go(&key, holder),
        _ => trie.insert(&key, holder),
    }
}

/// Runs both threads until the time is over; returns when both have come back.
fn run(trie: &Trie, work: impl Fn(&Trie, &mut Dice, &mut Matches) + Sync) {
    let end = Instant::now() + duration();
    std::thread::scope(|scope| {
        for seed in 1..=3 {
            let work = &work;
            scope.spawn(move || {
                let (mut dice, mut found) = (Dice(seed), Matches::new(SLOTS));
                while Instant::now() < end {
                    (0..64).for_each(|_| work(trie, &mut dice, &mut found));
                    let stats = trie.stats();
                    assert!(stats.used_bytes <= stats.limit_bytes, "{stats:?}");
                    assert!(stats.nodes < 1 << 20 && stats.chunks < 1 << 30, "a figure went below zero: {stats:?}");
                }
            });
        }
    });
}

#[test]
fn everything_at_once_keeps_the_invariants() {
    for (buckets, node_bytes) in [(1, 2_000), (2, 20_000), (64, 200_000)] {
        let fixed = Trie::with_table(buckets, 1 << 30, SLOTS).stats().used_bytes;
        let trie = Trie::with_table(buckets, fixed + node_bytes, SLOTS);
        // As often as it takes on a busy machine.
        let evicts = (0..30).any(|_| {
            run(&trie, act);
            trie.check().unwrap();
            trie.stats().evicted_nodes > 0
        });
        assert!(evicts);
    }
}

#[test]
fn a_backend_is_never_believed_to_hold_what_only_others_were_sent() {
    let trie = Trie::with_table(4, 100_000, SLOTS);
    // Each slot is sent keys below a root of its own, and all share the table and the memory.
    run(&trie, |trie, dice, found| {
        let slot = dice.roll(SLOTS as u64) as u16;
        let key = dice.key(1_000 * u64::from(slot + 1));
        trie.insert(&key, Holder { slot, generation: trie.generation(slot) });
        trie.lookup(&key, found);
        assert!(found.iter().all(|found| found.slot == slot));
        if dice.roll(100) == 0 {
            trie.raise(slot);
        }
    });
    trie.check().unwrap();
}

#[test]
fn no_lookup_that_begins_after_a_raise_names_the_slots_last_life() {
    let trie = Trie::with_table(64, 1 << 20, SLOTS);
    let key = Dice(9).key(7);
    // The generation that the sender has been told of: after a raise, the last one for a while.
    let told = AtomicU16::new(0);
    let end = Instant::now() + duration();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while Instant::now() < end {
                trie.insert(&key, Holder { slot: 0, generation: told.load(Ordering::SeqCst) });
            }
        });
        let mut found = Matches::new(SLOTS);
        let mut believed = 0;
        while Instant::now() < end {
            trie.lookup(&key, &mut found);
            believed += u32::from(found.chunks(0) > 0);
            let generation = trie.raise(0);
            trie.lookup(&key, &mut found);
            assert_eq!(found.chunks(0), 0);
            told.store(generation, Ordering::SeqCst);
        }
        assert!(believed > 0, "the sender came in between at least once");
    });
    trie.check().unwrap();
}

/// Threads that insert at the same moment.
const CROWD: usize = 4;
/// Empty tries that they meet on, for each millisecond asked for: 100,000 crowded inserts take TRIE_STRESS_MS=3125.
const MEETINGS_PER_MS: usize = 8;
const SHARED_CHUNKS: usize = 23;
const OWN_CHUNKS: usize = 20;
const TURNS: usize = 5;

/// Lets all threads of the crowd go on at once; `round` counts from 1.
fn meet(arrived: &AtomicUsize, round: usize) {
    arrived.fetch_add(1, Ordering::SeqCst);
    while arrived.load(Ordering::SeqCst) < round * CROWD {
        std::thread::yield_now();
    }
}

/// How many inserts of a crowd that fills an empty trie are not found in full, by their own thread at once or by
/// another one when all are done. Thread `t` inserts for slot `t % slots`.
fn lost_in_a_crowd(meetings: usize, slots: usize) -> usize {
    let (arrived, lost) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let tries: Vec<OnceLock<Trie>> = (0..meetings).map(|_| OnceLock::new()).collect();
    std::thread::scope(|scope| {
        for thread in 0..CROWD {
            let (arrived, lost, tries) = (&arrived, &lost, &tries);
            scope.spawn(move || {
                let mut found = Matches::new(SLOTS);
                let keys: Vec<Vec<u64>> = (0..CROWD as u64).map(crowd_key).collect();
                let slot = |thread: usize| (thread % slots) as u16;
                for (at, trie) in tries.iter().enumerate() {
                    let trie = trie.get_or_init(|| Trie::with_table(8, 1 << 20, SLOTS));
                    meet(arrived, 2 * at + 1);
                    let holder = Holder { slot: slot(thread), generation: 0 };
                    // Turns of a conversation first, so that the run they share is copied while others mark it.
                    for turn in 1..TURNS {
                        trie.insert(&keys[thread][..(thread + 1) * turn], holder);
                    }
                    trie.lookup(&keys[thread], &mut found);
                    trie.insert_found(&keys[thread], holder, &found);
                    let mut count = |of: usize| {
                        trie.lookup(&keys[of], &mut found);
                        let whole = found.chunks(slot(of)) as usize == keys[of].len();
                        lost.fetch_add(usize::from(!whole), Ordering::Relaxed);
                    };
                    count(thread);
                    meet(arrived, 2 * at + 2);
                    count((thread + 1) % CROWD);
                }
            });
        }
    });
    lost.into_inner()
}

/// A prefix that all share, and a tail of the thread's own.
fn crowd_key(thread: u64) -> Vec<u64> {
    let chunk = |at| if at < SHARED_CHUNKS as u64 { at + 1 } else { (thread + 1) * 1_000 + at };
    (0..(SHARED_CHUNKS + OWN_CHUNKS) as u64).map(|at| chunk(at).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
}

#[test]
fn a_crowd_of_first_requests_loses_no_mark() {
    let meetings = duration().as_millis() as usize * MEETINGS_PER_MS;
    for slots in [CROWD, 2, 1] {
        assert_eq!(lost_in_a_crowd(meetings, slots), 0, "of {} inserts, {slots} slots", CROWD * meetings);
    }
}

/// A thread that ticks keeps its pin from one operation to the next, and at most to its next tick; one that never ticks
/// keeps none.
#[test]
fn a_pin_stands_only_while_its_thread_keeps_it() {
    use std::sync::mpsc::channel;
    let trie = Trie::with_table(64, 1 << 20, SLOTS);
    let key: Vec<u64> = (1..100).collect();
    let holder = Holder { slot: 0, generation: trie.generation(0) };
    let ticks_away = || {
        (0..200).any(|_| {
            trie.tick();
            std::thread::sleep(Duration::from_millis(1));
            trie.stats().backlog_bytes == 0
        })
    };
    // The copy of a run that grows leaves the old one to the reclaimer.
    let litter = |round: usize| {
        trie.insert(&key[..10 * round], holder);
        assert!(trie.stats().backlog_bytes > 0);
    };
    let (orders, to_do) = channel::<&str>();
    let (says, done) = channel();
    std::thread::scope(|scope| {
        let trie = &trie;
        scope.spawn(move || {
            let mut found = Matches::new(SLOTS);
            for order in to_do {
                match order {
                    "tick" => trie.tick(),
                    "keep" => trie.keep(),
                    "rest" => trie.rest(),
                    _ => trie.lookup(&[7], &mut found),
                }
                says.send(()).expect("somebody waits");
            }
        });
        let order = |what| {
            orders.send(what).expect("takes orders");
            done.recv().expect("is done");
        };
        trie.insert(&key[..5], holder);
        for (round, (orders, free)) in [
            (&["look up"][..], true),
            (&["tick", "look up"], true),
            (&["keep", "look up"], false),
            (&["rest"], true),
            (&["look up"], true),
            (&["keep", "look up", "tick"], true),
            (&["keep", "rest", "look up"], true),
        ]
        .into_iter()
        .enumerate()
        {
            orders.iter().for_each(|what| order(what));
            litter(round + 1);
            assert_eq!(ticks_away(), free, "{orders:?}");
            order("rest");
        }
        drop(orders);
    });
}
