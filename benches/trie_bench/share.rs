//! The trie's own share of a warm call: keys that are hashed already, in the order of the calls.

use std::hint::black_box;
use std::time::Instant;

use trieway_benches::trie::{Holder, Matches, Trie};

use crate::engines::Ours;
use crate::measure::{cpu_ns, median_ns, quantile};
use crate::sections::prime;
use crate::workload::{BACKENDS, fold_chain, text_calls};

/// On the text calls, ×16.
pub fn share() {
    let calls = text_calls(16);
    let ours = Ours::new(256 << 20, fold_chain);
    prime("trieway", &ours, &calls);
    let keys: Vec<(Vec<u64>, Holder)> = calls
        .iter()
        .map(|call| {
            let mut key = Vec::new();
            fold_chain(call.text.as_bytes(), &mut key);
            (key, Holder { slot: call.backend, generation: 0 })
        })
        .collect();
    let trie = &ours.trie;
    let mut found = Matches::new(usize::from(BACKENDS));
    let mut each = |what: &str, call: &mut dyn FnMut(&[u64], Holder, &mut Matches)| {
        let pass = || keys.iter().for_each(|(key, holder)| call(key, *holder, &mut found));
        println!("{what:28} {:>6.0} ns a call", median_ns(15, pass) / keys.len() as f64);
    };
    each("lookup", &mut |key, _, found| trie.lookup(key, found));
    each("lookup, insert", &mut |key, holder, found| {
        trie.lookup(key, found);
        trie.insert(key, holder);
    });
    each("lookup, insert_found", &mut |key, holder, found| {
        trie.lookup(key, found);
        trie.insert_found(key, holder, found);
    });
    two_threads(trie, &keys);
}

/// Lookups alone, all keys on each thread: what a second thread adds, in wall time and in CPU time.
fn two_threads(trie: &Trie, keys: &[(Vec<u64>, Holder)]) {
    let pass = || {
        let mut found = Matches::new(usize::from(BACKENDS));
        let start = cpu_ns();
        for (key, _) in keys {
            trie.lookup(black_box(key), &mut found);
        }
        cpu_ns() - start
    };
    let measure = |threads: usize| {
        let start = Instant::now();
        let cpu: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(|| (0..20).map(|_| pass()).sum::<u64>())).collect();
            threads.into_iter().map(|thread| thread.join().expect("a pass ends well")).sum()
        });
        [start.elapsed().as_nanos() as f64 / threads as f64, cpu as f64 / threads as f64]
    };
    let mut gains = [Vec::new(), Vec::new()];
    for _ in 0..9 {
        let (one, two) = (measure(1), measure(2));
        // Per thousand, because quantiles are of whole numbers.
        gains[0].push((1000.0 * one[0] / two[0]) as u64);
        gains[1].push((1000.0 * one[1] / two[1]) as u64);
    }
    let [wall, cpu] = gains.map(|mut gains| quantile(&mut gains, 0.5) as f64 / 1000.0);
    println!("two threads' lookups: x{wall:.2} in wall time, x{:.2} in CPU time", 2.0 * cpu);
}
