//! What one choice by `ttft` costs: reading every backend's estimates and scoring them.
//!
//! `cargo run --profile sim -p trieway-sim --example choice`. The best of many rounds, in nanoseconds a choice.

use std::hint::black_box;
use std::time::Instant;

use trieway::fleet::Fleet;
use trieway::fleet::tenants::Tenants;
use trieway::route::ttft::{Outlook, Price, Speed, choose};
use trieway::trie::{Holder, Matches, Options, Trie};

const SPEED: Speed =
    Speed { pass_s: 7.5e-3, token_s: 21.5e-6, attention_s: 1e-9, kv_token_s: 49e-9, pass_tokens: 8192.0 };
const PRICE: Price = Price { idle: 0.25, load: 1.0, fair_s: 0.3, answer_tokens: 9.0 };
const PER_ROUND: u32 = 2_000;

fn main() {
    for backends in [2, 8, 64, 512] {
        let fleet = Fleet::new(backends, 1, Tenants::new(0, 0));
        let trie = Trie::new(&Options { memory_bytes: 64 << 20, slots: backends }).expect("valid options");
        let key: Vec<u64> = (0..300).map(|at| at * 0x9e37_79b9_7f4a_7c15 + 1).collect();
        let mut held = Vec::new();
        for slot in 0..backends as u16 {
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
        let best = (0..200).map(|round| {
            let begin = Instant::now();
            for turn in 0..PER_ROUND {
                let now_ns = 200_000_000 + u64::from(turn);
                outlooks.clear();
                outlooks.extend((0..backends as u16).map(|slot| {
                    let seen = fleet.prefill(slot).look(now_ns);
                    Outlook {
                        held_tokens: matches.of(slot).map_or(0.0, |found| f64::from(found.fresh) * 32.0),
                        queue_s: seen.queue_s,
                        factor: seen.factor,
                        busy: seen.busy,
                        computing: seen.computing,
                        decoding: seen.decoding,
                        kv_tokens: seen.kv_tokens,
                    }
                }));
                black_box(choose(9_600.0, &outlooks, &SPEED, &PRICE, u64::from(turn) ^ round));
            }
            begin.elapsed().as_nanos() as f64 / f64::from(PER_ROUND)
        });
        println!("{backends:>4} backends: {:>7.0} ns a choice", best.fold(f64::INFINITY, f64::min));
    }
}
