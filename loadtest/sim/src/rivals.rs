//! The algorithms of other routers, from what they publish. Pure: views in, a backend out.
//!
//! Those whose routers subscribe to the engines' cache events (Dynamo, llm-d, LMetric) get the exact index, free and without
//! delay; those that keep a tree of what they have sent get that.

use crate::pool::BLOCK_TOKENS;
use crate::random::{Random, mix};
use crate::view::View;

#[derive(Clone, Debug, PartialEq)]
pub enum Rival {
    RoundRobin,
    LeastRequests,
    PowerOfTwo,
    /// SGLang's and vLLM-router's `cache_aware`.
    CacheAware {
        threshold: f64,
        most_apart: f64,
        most_times: f64,
    },
    /// smg: the best match, unless it is loaded well above the mean.
    Spill {
        threshold: f64,
        times: f64,
        most_apart: f64,
    },
    /// NVIDIA Dynamo's KV router at temperature 0.
    Dynamo {
        credit: f64,
    },
    /// llm-d's scorers.
    LlmD {
        prefix: f64,
        queue: f64,
        kv: f64,
    },
    /// Product of what is to be computed and the batch.
    LMetric,
    /// Consistent hashing of the first segments, with bounded load.
    BoundedHash {
        segments: usize,
        times: f64,
    },
}

/// The request as rivals see it.
pub struct Asked<'a> {
    pub prompt_tokens: u32,
    pub ids: &'a [u32],
    /// Counts the requests so far.
    pub turn: usize,
}

impl Rival {
    pub fn choose(&self, asked: &Asked<'_>, views: &[View], random: &mut Random) -> usize {
        let requests = |v: &View| f64::from(v.in_flight);
        let prompt = f64::from(asked.prompt_tokens);
        let uncached = |v: &View| prompt - f64::from(v.cached_tokens);
        match *self {
            Rival::RoundRobin => asked.turn % views.len(),
            Rival::LeastRequests => least(views, random, requests),
            Rival::PowerOfTwo => {
                let (a, b) = (random.below(views.len()), random.below(views.len()));
                if views[b].in_flight < views[a].in_flight { b } else { a }
            }
            Rival::CacheAware { threshold, most_apart, most_times } => {
                let most = views.iter().map(requests).fold(0.0, f64::max);
                let fewest = views.iter().map(requests).fold(f64::INFINITY, f64::min);
                let imbalanced = most - fewest > most_apart && most > most_times * fewest;
                match best_match(views, prompt, threshold, random) {
                    Some(best) if !imbalanced => best,
                    _ => least(views, random, requests),
                }
            }
            Rival::Spill { threshold, times, most_apart } => {
                let mean = views.iter().map(requests).sum::<f64>() / views.len() as f64;
                let apart = most_apart.min((2.0 * mean.sqrt()).ceil().max(4.0));
                let spills = |v: &View| requests(v) > times * mean && requests(v) > mean + apart;
                match best_match(views, prompt, threshold, random) {
                    Some(best) if !spills(&views[best]) => best,
                    _ => least(views, random, requests),
                }
            }
            Rival::Dynamo { credit } => least(views, random, |v| {
                let block = f64::from(BLOCK_TOKENS);
                let prefill = (v.pending_tokens as f64 + uncached(v)) / block;
                credit * prefill + (v.kv_tokens as f64 + prompt) / block
            }),
            Rival::LlmD { prefix, queue, kv } => {
                let fewest = views.iter().map(|v| v.waiting).min().unwrap_or(0);
                let range = views.iter().map(|v| v.waiting).max().unwrap_or(0) - fewest;
                least(views, random, |v| {
                    let held = f64::from(v.cached_tokens) / prompt;
                    let short = if range == 0 { 1.0 } else { 1.0 - f64::from(v.waiting - fewest) / f64::from(range) };
                    -(prefix * held + queue * short + kv * (1.0 - v.kv_use))
                })
            }
            Rival::LMetric => {
                least(views, random, |v| (v.pending_tokens as f64 + uncached(v)) * f64::from(v.in_flight + 1))
            }
            Rival::BoundedHash { segments, times } => bounded(asked, views, segments, times),
        }
    }
}

/// The one with the longest match, if that is more than the threshold's share of the prompt.
fn best_match(views: &[View], prompt: f64, threshold: f64, random: &mut Random) -> Option<usize> {
    let best = least(views, random, |v| -f64::from(v.sent_tokens));
    (f64::from(views[best].sent_tokens) / prompt > threshold).then_some(best)
}

/// Rendezvous order of the key; the first backend whose load stays below the bound.
fn bounded(asked: &Asked<'_>, views: &[View], segments: usize, times: f64) -> usize {
    let key = asked.ids.iter().take(segments).fold(0, |key, &id| mix(key ^ u64::from(id)));
    let all: u32 = views.iter().map(|v| v.in_flight).sum();
    let bound = (f64::from(all + 1) / views.len() as f64 * times).ceil();
    let mut order: Vec<usize> = (0..views.len()).collect();
    order.sort_by_key(|&at| mix(key ^ mix(at as u64 + 1)));
    order.iter().copied().find(|&at| f64::from(views[at].in_flight + 1) <= bound).unwrap_or(order[0])
}

/// The least cost; among equals, at random.
fn least(views: &[View], random: &mut Random, cost: impl Fn(&View) -> f64) -> usize {
    let (mut best, mut best_cost, mut equals) = (0, f64::INFINITY, 0);
    for (at, view) in views.iter().enumerate() {
        let cost = cost(view);
        if cost > best_cost {
            continue;
        }
        equals = if cost < best_cost { 1 } else { equals + 1 };
        if equals == 1 || random.below(equals) == 0 {
            (best, best_cost) = (at, cost);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pick(rival: &Rival, views: &[View]) -> usize {
        rival.choose(&Asked { prompt_tokens: 1000, ids: &[1, 2], turn: 5 }, views, &mut Random::new(1))
    }

    fn view(in_flight: u32, sent_tokens: u32) -> View {
        View { in_flight, sent_tokens, cached_tokens: sent_tokens, ..View::default() }
    }

    #[test]
    fn loads_alone() {
        let views = [view(3, 900), view(1, 0), view(2, 0)];
        assert_eq!(pick(&Rival::RoundRobin, &views), 2);
        assert_eq!(pick(&Rival::LeastRequests, &views), 1);
        let mut random = Random::new(3);
        let asked = Asked { prompt_tokens: 1, ids: &[], turn: 0 };
        let worst = (0..9000).filter(|_| Rival::PowerOfTwo.choose(&asked, &views, &mut random) == 0).count();
        assert!((900..1100).contains(&worst), "only when it is drawn twice: {worst} of 9000");
    }

    #[test]
    fn cache_aware_follows_the_match_until_the_fleet_is_imbalanced() {
        let rival = Rival::CacheAware { threshold: 0.3, most_apart: 64.0, most_times: 1.5 };
        assert_eq!(pick(&rival, &[view(60, 301), view(1, 0)]), 0);
        assert_eq!(pick(&rival, &[view(60, 300), view(1, 0)]), 1);
        assert_eq!(pick(&rival, &[view(66, 301), view(1, 0)]), 1);
    }

    #[test]
    fn spill_needs_both_bounds() {
        let rival = Rival::Spill { threshold: 0.0, times: 1.1, most_apart: 32.0 };
        // Mean 4: at most 4 above it.
        assert_eq!(pick(&rival, &[view(8, 900), view(0, 0)]), 0);
        assert_eq!(pick(&rival, &[view(12, 900), view(0, 0)]), 1);
    }

    #[test]
    fn dynamo_adds_blocks_and_lmetric_multiplies() {
        let busy = View { pending_tokens: 600, kv_tokens: 600, ..view(1, 700) };
        assert_eq!(pick(&Rival::Dynamo { credit: 1.0 }, &[busy, view(0, 0)]), 1);
        assert_eq!(pick(&Rival::Dynamo { credit: 8.0 }, &[View { pending_tokens: 0, ..busy }, view(0, 0)]), 0);
        assert_eq!(pick(&Rival::LMetric, &[view(2, 700), view(0, 0)]), 0);
        assert_eq!(pick(&Rival::LMetric, &[view(3, 700), view(0, 0)]), 1);
    }

    #[test]
    fn llm_d_weighs_prefix_queue_and_memory() {
        let rival = Rival::LlmD { prefix: 2.0, queue: 1.0, kv: 1.0 };
        let queued = View { waiting: 4, kv_use: 0.5, ..view(4, 700) };
        assert_eq!(pick(&rival, &[queued, view(0, 0)]), 1);
        assert_eq!(pick(&rival, &[View { kv_use: 0.3, ..queued }, view(0, 0)]), 0);
    }

    #[test]
    fn a_hash_stays_until_its_backend_is_full() {
        let rival = Rival::BoundedHash { segments: 1, times: 1.25 };
        let home = pick(&rival, &[view(1, 0); 4]);
        let mut views = [view(1, 0); 4];
        views[home] = view(9, 0);
        assert_ne!(pick(&rival, &views), home);
    }
}
