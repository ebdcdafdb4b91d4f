//! What one choice costs: by `ttft`, reading every backend's estimates and scoring them; by the others, which are given the same
//! candidates. A shadow policy costs one choice more.
//!
//! `cargo run --profile sim -p trieway-sim --example choice`. The best of many rounds, in nanoseconds a choice.

use std::hint::black_box;
use std::time::Instant;

use trieway::fleet::Fleet;
use trieway::fleet::tenants::Tenants;
use trieway::route::ttft::choose;
use trieway::route::{self, Candidate};
use trieway::trie::{Holder, Matches, Options, Trie};
use trieway_sim::engine;
use trieway_sim::policy::Policy;
use trieway_sim::router::{CHUNK_TOKENS, outlook};

const PER_ROUND: u64 = 2_000;

fn main() {
    let Ok(Policy::Ttft(ttft)) = Policy::parse("ttft", engine::Speed::H100) else { panic!("the product's policy") };
    let (speed, price) = (ttft.speed, ttft.price);
    for backends in [2, 8, 64, 512] {
        let fleet = Fleet::new(backends, 1, Tenants::new(0, 0));
        let trie = Trie::new(&Options { memory_bytes: 64 << 20, slots: backends }).expect("valid options");
        let key: Vec<u64> = (0..300).map(|at| at * 0x9e37_79b9_7f4a_7c15 + 1).collect();
        let mut held = Vec::new();
        for slot in 0..backends as u16 {
            fleet.cache(slot).set_capacity_tokens(400_000);
            // Every backend holds some of the prompt, decodes two answers and has one prompt waiting.
            trie.insert(&key[..1 + usize::from(slot) * 299 / backends], Holder { slot, generation: 0 });
            for at in 0..3 {
                let mut computing = fleet.prefill(slot).begin(0.2, 4_000, true, 0);
                if at > 0 {
                    computing.first_token(100_000_000, 1.0);
                }
                held.push(computing);
            }
        }
        let mut matches = Matches::new(backends);
        trie.lookup(&key, &mut matches);
        let mut outlooks = Vec::with_capacity(backends);
        let by_ttft = best_ns(|turn| {
            outlooks.clear();
            outlooks.extend((0..backends as u16).map(|slot| {
                let cache = fleet.cache(slot);
                let held = matches.of(slot).map_or(0, |found| cache.believed(found.chunks, found.fresh, found.marked));
                outlook(&fleet, slot, 200_000_000 + turn % 1_000, held * CHUNK_TOKENS)
            }));
            black_box(choose(9_600.0, &outlooks, &speed, &price, turn));
        });
        let candidates: Vec<Candidate> = (0..backends as u64)
            .map(|at| Candidate {
                identity: at,
                in_window: at % 7,
                in_flight: 3,
                in_flight_bytes: 4_000 * at,
                matched_bytes: at % 5 * 1_000,
                cold_permille: 0,
                penalized: false,
            })
            .collect();
        let prefixaware = best_ns(|turn| _ = black_box(route::prefixaware(&candidates, 0, turn)));
        let leastload = best_ns(|turn| _ = black_box(route::leastload(&candidates, turn)));
        println!(
            "{backends:>4} backends: ttft {by_ttft:>6.0}, prefixaware {prefixaware:>6.0}, leastload {leastload:>6.0} ns a choice"
        );
    }
}

/// Of many rounds, the one with the least nanoseconds a call.
fn best_ns(mut call: impl FnMut(u64)) -> f64 {
    let rounds = (0..200).map(|round| {
        let begin = Instant::now();
        (0..PER_ROUND).for_each(|turn| call(round * PER_ROUND + turn));
        begin.elapsed().as_nanos() as f64 / PER_ROUND as f64
    });
    rounds.fold(f64::INFINITY, f64::min)
}
