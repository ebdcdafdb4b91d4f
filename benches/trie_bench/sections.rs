//! The figures, one section each.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use trieway_benches::trie::{Holder, MIN_MEMORY_BYTES, Matches, Options, Trie};

use crate::engines::{Chain, Hashing, Index, Ours, Scratch};
use crate::measure::{Times, allocated_bytes, count_from_now, cpu_ns, median_ns, quantile, resident_bytes};
use crate::rivals::RIVALS;
use crate::workload::{BACKENDS, CHUNK, Call, Dice, chain, distinct_bytes, fold_chain, shared_prefix, text_calls};

fn everyone(memory_bytes: usize) -> impl Iterator<Item = (&'static str, Box<dyn Index>)> {
    let ours = [("trieway", fold_chain as Chain), ("trieway, seeded chain", chain)];
    let ours = ours.map(|(name, chain)| (name, Box::new(Ours::new(memory_bytes, chain)) as Box<dyn Index>));
    ours.into_iter().chain(RIVALS.iter().map(|(name, make)| (*name, make())))
}

/// Hashing alone, as if it were an index that knows everything.
fn hashing() -> impl Iterator<Item = (&'static str, Box<dyn Index>)> {
    [("folded chain alone", fold_chain as Chain), ("seeded chain alone", chain)]
        .into_iter()
        .map(|(name, chain)| (name, Box::new(Hashing(chain)) as Box<dyn Index>))
}

/// Makes every call known, and asserts that each is then found in full.
pub fn prime(name: &str, index: &dyn Index, calls: &[Call]) {
    let mut scratch = Scratch::new();
    calls.iter().for_each(|call| index.prime(call, &mut scratch));
    index.settle();
    for call in calls {
        let held = if index.in_chunks() { call.text.len() / CHUNK * CHUNK } else { call.text.chars().count() };
        assert_eq!(index.call(call, &mut scratch), held, "{name} knows the whole prompt");
    }
}

/// CPU nanoseconds a call of one pass over all calls, on `threads` threads that share them out.
fn pass_ns(index: &dyn Index, calls: &[Call], threads: usize) -> f64 {
    let share = |first: usize| {
        let mut scratch = Scratch::new();
        let start = cpu_ns();
        for call in calls.iter().skip(first).step_by(threads) {
            black_box(index.call(call, &mut scratch));
        }
        cpu_ns() - start
    };
    let times: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|first| scope.spawn(move || share(first))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a pass ends well")).sum()
    });
    times as f64 / calls.len() as f64
}

const PASSES: usize = 7;

/// The medians of several passes of each index, one thread and two. The passes of all take turns, so that what else the
/// machine does falls on all alike.
fn passes_ns(indexes: &[(&'static str, Box<dyn Index>)], calls: &[Call]) -> Vec<[f64; 2]> {
    let mut times = vec![[(); 2].map(|()| Vec::new()); indexes.len()];
    for _ in 0..PASSES {
        for ((_, index), times) in indexes.iter().zip(&mut times) {
            for (threads, times) in (1..).zip(times) {
                times.push(pass_ns(&**index, calls, threads) as u64);
            }
        }
    }
    times.into_iter().map(|times| times.map(|mut times| quantile(&mut times, 0.5) as f64)).collect()
}

pub fn calls() {
    for copies in [1, 16, 64] {
        let calls = text_calls(copies);
        let bytes: usize = calls.iter().map(|call| call.text.len()).sum();
        let mean_kb = bytes as f64 / calls.len() as f64 / 1000.0;
        println!("\nx{copies}: {} calls of {mean_kb:.1} KB on average; warm", calls.len());
        let indexes: Vec<_> = hashing().chain(everyone(256 << 20)).collect();
        indexes.iter().for_each(|(name, index)| prime(name, &**index, &calls));
        let times = passes_ns(&indexes, &calls);
        let ours = times[hashing().count()][0];
        for ((name, index), [one, two]) in indexes.iter().zip(times) {
            let what = if index.inserts() { "match + insert" } else { "no insert" };
            let (kb, faster, ratio) = (one / mean_kb, 2.0 * one / two, ours / one);
            println!(
                "{name:28} {one:>9.0} ns a call, {kb:>6.0} ns a KB; x{faster:.2} by a 2nd thread; {what}; trieway takes {ratio:.3} of it"
            );
        }
    }
}

pub fn sizes() {
    for kb in [1, 10, 100, 1000] {
        let count = (20_000 / kb).clamp(40, 2_000);
        let calls = shared_prefix(kb * 1000, count);
        println!("\n{kb} KB, 90 % shared, {count} prompts; warm");
        for (name, index) in everyone(256 << 20) {
            prime(name, &*index, &calls);
            let [one, _] = passes_ns(&[(name, index)], &calls)[0];
            println!("{name:28} {one:>11.0} ns a call, {:>6.0} ns a KB", one / kb as f64);
        }
    }
}

/// Each index in a process of its own, so that its allocations are its own.
pub fn memory() {
    let copies = 64;
    let calls = text_calls(copies);
    let distinct = distinct_bytes(&calls);
    println!("x{copies}: {:.1} MB of distinct prompt text", distinct as f64 / 1e6);
    drop(calls);
    let program = std::env::current_exe().expect("this program has a path");
    for name in std::iter::once("trieway").chain(RIVALS.iter().map(|(name, _)| *name)) {
        let words = ["memory-of", name, &copies.to_string(), &distinct.to_string()];
        let child = std::process::Command::new(&program).args(words).output();
        let output = child.expect("this program runs").stdout;
        let text = String::from_utf8_lossy(&output);
        let grown: usize = text.lines().last().and_then(|line| line.parse().ok()).expect("a number of bytes");
        println!("{name:28} {:>7.4} bytes a byte ({:.1} MB)", grown as f64 / distinct as f64, grown as f64 / 1e6);
    }
}

/// Prints how many bytes are allocated when one index has learnt the text calls.
pub fn memory_of(engine: &str, copies: usize, distinct: usize) {
    let calls = text_calls(copies);
    let limit = (distinct / 10).max(MIN_MEMORY_BYTES);
    count_from_now();
    // A tenth of the text is all the memory that this trie is given, and it must not evict for it.
    let ours = (engine == "trieway").then(|| Ours::new(limit, fold_chain));
    let rival = || RIVALS.iter().find(|(name, _)| *name == engine).expect("a known index").1();
    let other = ours.is_none().then(rival);
    let index: &dyn Index = match &ours {
        Some(ours) => ours,
        None => other.as_deref().expect("one of the two"),
    };
    let mut scratch = Scratch::new();
    calls.iter().for_each(|call| index.prime(call, &mut scratch));
    index.settle();
    let grown = allocated_bytes();
    if let Some(Ours { trie, .. }) = &ours {
        let stats = trie.stats();
        assert_eq!((stats.evicted_nodes, stats.refused_inserts), (0, 0), "{stats:?}");
        println!("{stats:?}");
        trie.check().expect("a sound trie");
        // The books round up to size classes; the count is of bytes asked for.
        return println!("{}", stats.used_bytes.max(grown));
    }
    println!("{grown}");
}

/// A fully held prompt of 100 KB: with and without hashing.
pub fn quiet() {
    let call = &shared_prefix(100_000, 1)[0];
    let Ours { trie, .. } = Ours::new(64 << 20, chain);
    let mut scratch = Scratch::new();
    chain(call.text.as_bytes(), &mut scratch.key);
    trie.insert(&scratch.key, Holder { slot: 0, generation: 0 });
    let walk = each_ns(|| trie.lookup(black_box(&scratch.key), &mut scratch.found));
    assert_eq!(scratch.found.chunks(0), 100_000 / CHUNK as u32);
    let folded = each_ns(|| fold_chain(black_box(call.text.as_bytes()), &mut scratch.key));
    let seeded = each_ns(|| chain(black_box(call.text.as_bytes()), &mut scratch.key));
    println!(
        "100 KB held in full: {walk:.0} ns a lookup; before it {folded:.0} ns (folded) or {seeded:.0} ns (seeded)"
    );
}

fn each_ns(mut work: impl FnMut()) -> f64 {
    median_ns(50, || (0..1_000).for_each(|_| work())) / 1_000.0
}

/// Lookups of a hot 11 KB prompt while another thread inserts and evicts at full speed.
pub fn churn() {
    let Ours { trie, .. } = Ours::new(64 << 20, chain);
    let mut dice = Dice(3);
    let hot: Vec<u64> = (0..88).map(|_| dice.next()).collect();
    let holder = Holder { slot: 0, generation: 0 };
    fill(&trie, &mut dice, 200_000);
    let full_speed = 1e9 * 10_000.0 / median_ns(5, || fill(&trie, &mut dice, 10_000));
    trie.insert(&hot, holder);
    let mut nothing = Times::new();
    nothing.add(4_000_000, || _ = black_box(&hot));
    let (quiet, _) = lookup_times(&trie, &hot, 4_000_000);
    let (done, prompts) = (AtomicBool::new(false), AtomicU64::new(0));
    let (busy, missed, rate) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut dice = Dice(5);
            while !done.load(Ordering::Relaxed) {
                fill(&trie, &mut dice, 32);
                trie.insert(&hot, holder);
                prompts.fetch_add(32, Ordering::Relaxed);
            }
        });
        let under_churn = lookups_beside(&trie, &hot, &prompts, full_speed);
        done.store(true, Ordering::Relaxed);
        under_churn
    });
    println!("the clock alone:   {nothing}");
    println!("quiet:             {quiet}");
    println!("churn:             {busy}");
    println!("{:.2} M unique prompts/s beside it, {:.2} M alone; {missed} misses", rate / 1e6, full_speed / 1e6);
    println!("churn p99.9 / quiet median = {:.1}", busy.quantile(0.999) as f64 / quiet.quantile(0.5) as f64);
    trie.check().expect("a sound trie");
}

fn fill(trie: &Trie, dice: &mut Dice, prompts: usize) {
    let mut key = [0; 128];
    for _ in 0..prompts {
        key.iter_mut().for_each(|hash| *hash = dice.next());
        trie.insert(&key, Holder { slot: 0, generation: 0 });
    }
}

/// Lookups in a slice, of about a millisecond.
const SLICE: usize = 16_000;

/// Slices between two ticks: at full speed about the 50 ms of a worker.
const A_TICK: usize = 32;

/// Times of lookups, and misses. The thread ticks, as a worker does, and as untimed as there.
fn lookup_times(trie: &Trie, key: &[u64], lookups: usize) -> (Times, usize) {
    let (mut times, mut missed) = (Times::new(), 0);
    for number in 0..lookups / SLICE {
        missed += slice(trie, key, number, &mut times);
    }
    (times, missed)
}

fn slice(trie: &Trie, key: &[u64], number: usize, times: &mut Times) -> usize {
    if number.is_multiple_of(A_TICK) {
        trie.tick();
        trie.keep();
    }
    let (mut found, mut missed) = (Matches::new(usize::from(BACKENDS)), 0);
    times.add(SLICE, || {
        trie.lookup(black_box(key), &mut found);
        missed += usize::from(found.chunks(0) < key.len() as u32);
    });
    missed
}

/// Times of lookups while another thread inserts `full_speed` prompts a second. Only slices count in which both threads had
/// a core: the machine may be busy. Also misses, and the other thread's prompts a second in those slices.
fn lookups_beside(trie: &Trie, key: &[u64], prompts: &AtomicU64, full_speed: f64) -> (Times, usize, f64) {
    let (mut times, mut missed, mut slices, mut beside, mut seconds) = (Times::new(), 0, 0, 0, 0.0);
    let end = Instant::now() + Duration::from_secs(120);
    for number in 0.. {
        if slices * SLICE >= 2_000_000 {
            break;
        }
        assert!(Instant::now() < end, "the machine is too busy: the two threads hardly ever run at the same time");
        let (start, cpu, before) = (Instant::now(), cpu_ns(), prompts.load(Ordering::Relaxed));
        let mut own = Times::new();
        missed += slice(trie, key, number, &mut own);
        let (inserted, cpu) = (prompts.load(Ordering::Relaxed) - before, cpu_ns() - cpu);
        let took = start.elapsed().as_secs_f64();
        if cpu as f64 / 1e9 > 0.8 * took && inserted as f64 / took > 0.5 * full_speed {
            times.merge(&own);
            slices += 1;
            beside += inserted;
            seconds += took;
        }
    }
    (times, missed, beside as f64 / seconds)
}

/// A backend's removal on tries of several sizes.
pub fn raise() {
    for megabytes in [1, 64, 512] {
        let trie = Trie::new(&Options { memory_bytes: megabytes << 20, slots: 64 }).expect("enough memory");
        let mut dice = Dice(3);
        fill(&trie, &mut dice, megabytes * 1_000);
        let one = median_ns(200, || (0..100).for_each(|_| _ = black_box(trie.raise(0)))) / 100.0;
        trie.insert(&[1, 2, 3], Holder { slot: 0, generation: trie.generation(0) });
        let mut found = Matches::new(64);
        trie.lookup(&[1, 2, 3], &mut found);
        assert_eq!(found.chunks(0), 3);
        trie.raise(0);
        trie.lookup(&[1, 2, 3], &mut found);
        assert_eq!(found.chunks(0), 0);
        println!("{megabytes:>4} MiB, {} nodes: {one:.0} ns a raise", trie.stats().nodes);
    }
}

/// Ten million unique prompts of 16 KB through 64 MiB, with a hot prefix in between; in a process of its own.
pub fn bound() {
    let program = std::env::current_exe().expect("this program has a path");
    let child = std::process::Command::new(program).arg("bound-alone").status().expect("this program runs");
    assert!(child.success());
}

pub fn bound_alone() {
    let before = resident_bytes();
    let limit = 64 << 20;
    let Ours { trie, .. } = Ours::new(limit, chain);
    let mut dice = Dice(3);
    let hot: Vec<u64> = (0..88).map(|_| dice.next()).collect();
    let holder = Holder { slot: 0, generation: 0 };
    let mut found = Matches::new(usize::from(BACKENDS));
    trie.insert(&hot, holder);
    let (mut most, mut missed) = (0, 0);
    let start = cpu_ns();
    for _ in 0..10_000 {
        fill(&trie, &mut dice, 1_000);
        trie.lookup(&hot, &mut found);
        missed += usize::from(found.chunks(0) < 88);
        trie.insert(&hot, holder);
        most = most.max(resident_bytes() - before);
        assert!(trie.stats().used_bytes <= limit);
    }
    let each = (cpu_ns() - start) as f64 / 1e7;
    println!("grown by at most {:.1} MiB of 64; hot prefix missed {missed} of 10,000 times", most as f64 / 1048576.0);
    println!("{each:.0} ns a prompt; {:?}", trie.stats());
    trie.check().expect("a sound trie");
    assert!(most < limit + limit / 10, "within the limit and a tenth");
}
