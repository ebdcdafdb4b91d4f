//! Names of policies, with their parameters: `dynamo`, `cache_aware:threshold=0.5,abs=32`, `ttft:load=2`.

use trieway::route::ttft::{Price, Speed};

use crate::engine;
use crate::rivals::Rival;

/// One policy with its parameters.
#[derive(Clone, Debug)]
pub enum Policy {
    Rival(Rival),
    /// The product's `prefixaware`.
    Prefixaware {
        min_match_bytes: u64,
    },
    /// The product's `leastload`.
    Leastload,
    /// The product's `ttft`.
    Ttft(Ttft),
}

#[derive(Clone, Copy, Debug)]
pub struct Ttft {
    pub speed: Speed,
    pub price: Price,
    /// Is given the engines' own index instead of the trie's: what the belief's errors cost.
    pub exact: bool,
    /// Knows the engines' KV memory, as vLLM and SGLang tell it.
    pub told_kv: bool,
    /// Seconds that a prompt is held at most; 0: all are sent at once.
    pub hold_s: f64,
}

/// Every name with its parameters and defaults. `told` is what `ttft` is told of the engines' speed, as a multiple.
const NAMES: &[(&str, &[(&str, f64)])] = &[
    (
        "ttft",
        &[
            ("load", 7.0),
            ("idle", 1.5),
            ("fair", 50_000.0),
            ("answer", 60.0),
            ("told", 1.0),
            ("exact", 0.0),
            ("hold", 5.0),
            ("told_kv", 1.0),
        ],
    ),
    ("prefixaware", &[("min_match", 0.0)]),
    ("leastload", &[]),
    ("roundrobin", &[]),
    ("leastrequests", &[]),
    ("poweroftwo", &[]),
    ("cache_aware", &[("threshold", 0.3), ("abs", 64.0), ("rel", 1.5)]),
    ("spill", &[("threshold", 0.0), ("rel", 1.1), ("abs", 32.0)]),
    ("dynamo", &[("credit", 1.0)]),
    ("llmd", &[("prefix", 2.0), ("queue", 1.0), ("kv", 1.0)]),
    ("lmetric", &[]),
    ("boundedhash", &[("segments", 2.0), ("load", 1.25)]),
];

/// Every policy at every point of its grid.
pub const GRID: &[&str] = &[
    "ttft",
    "prefixaware",
    "prefixaware:min_match=4096",
    "prefixaware:min_match=16384",
    "prefixaware:min_match=65536",
    "leastload",
    "roundrobin",
    "leastrequests",
    "poweroftwo",
    "cache_aware",
    "cache_aware:threshold=0.5,abs=32,rel=1.1",
    "cache_aware:threshold=0.1,abs=4,rel=1.1",
    "cache_aware:threshold=0.3,abs=4,rel=1.1",
    "cache_aware:threshold=0.3,abs=8,rel=1.5",
    "cache_aware:threshold=0.5,abs=2,rel=1.1",
    "spill",
    "spill:rel=1.05",
    "spill:rel=1.5",
    "spill:threshold=0.3,rel=1.1",
    "spill:threshold=0.3,rel=1.3,abs=4",
    "dynamo",
    "dynamo:credit=0.5",
    "dynamo:credit=2",
    "dynamo:credit=4",
    "dynamo:credit=16",
    "llmd",
    "llmd:prefix=1",
    "llmd:prefix=3",
    "llmd:prefix=2,queue=2",
    "llmd:prefix=3,queue=2,kv=2",
    "lmetric",
    "boundedhash",
    "boundedhash:segments=3",
    "boundedhash:segments=2,load=1.5",
];

impl Policy {
    /// Reads `name` or `name:key=value,…`. `speed` is what `ttft` is told of the engines.
    pub fn parse(text: &str, speed: engine::Speed) -> Result<Policy, String> {
        let (name, given) = text.split_once(':').unwrap_or((text, ""));
        let Some((_, defaults)) = NAMES.iter().find(|(known, _)| *known == name) else {
            let known: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            return Err(format!("{name:?} is no policy; there are {}", known.join(", ")));
        };
        let mut values = defaults.to_vec();
        for pair in given.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| format!("{pair:?}: not of the form KEY=VALUE"))?;
            let value: f64 = value.parse().map_err(|_| format!("{pair:?}: {value:?} is no number"))?;
            let place = values.iter_mut().find(|(known, _)| *known == key);
            place.ok_or_else(|| format!("{name} has no parameter {key:?}"))?.1 = value;
        }
        let value = |key: &str| values.iter().find(|(known, _)| *known == key).map_or(0.0, |(_, value)| *value);
        Ok(Policy::with(name, value, speed))
    }

    fn with(name: &str, value: impl Fn(&str) -> f64, speed: engine::Speed) -> Policy {
        Policy::Rival(match name {
            "ttft" => return Policy::Ttft(Ttft::new(value, speed)),
            "prefixaware" => return Policy::Prefixaware { min_match_bytes: value("min_match") as u64 },
            "leastload" => return Policy::Leastload,
            "leastrequests" => Rival::LeastRequests,
            "poweroftwo" => Rival::PowerOfTwo,
            "cache_aware" => {
                Rival::CacheAware { threshold: value("threshold"), most_apart: value("abs"), most_times: value("rel") }
            }
            "spill" => Rival::Spill { threshold: value("threshold"), times: value("rel"), most_apart: value("abs") },
            "dynamo" => Rival::Dynamo { credit: value("credit") },
            "llmd" => Rival::LlmD { prefix: value("prefix"), queue: value("queue"), kv: value("kv") },
            "lmetric" => Rival::LMetric,
            "boundedhash" => Rival::BoundedHash { segments: value("segments") as usize, times: value("load") },
            _ => Rival::RoundRobin,
        })
    }
}

impl Ttft {
    fn new(value: impl Fn(&str) -> f64, speed: engine::Speed) -> Ttft {
        let told = value("told");
        Ttft {
            speed: Speed {
                pass_s: speed.pass_s * told,
                token_s: speed.token_s * told,
                attention_s: speed.attention_s * told,
                kv_token_s: speed.kv_token_s * told,
                pass_tokens: f64::from(speed.pass_tokens),
            },
            price: Price {
                idle: value("idle"),
                load: value("load"),
                fair_tokens: value("fair"),
                answer_tokens: value("answer"),
            },
            exact: value("exact") > 0.0,
            told_kv: value("told_kv") > 0.0,
            hold_s: value("hold"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Policy, String> {
        Policy::parse(text, engine::Speed::H100)
    }

    #[test]
    fn parameters_replace_defaults() {
        let Ok(Policy::Rival(rival)) = parse("cache_aware:abs=32,rel=1.1") else { panic!("a rival") };
        assert_eq!(rival, Rival::CacheAware { threshold: 0.3, most_apart: 32.0, most_times: 1.1 });
        for wrong in ["nobody", "dynamo:x=1", "dynamo:credit", "dynamo:credit=much"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_left_out_is_as_the_products_flags_have_it() {
        let args = ["trieway", "--static-backends", "http://127.0.0.1:1", "--routing-logic", "ttft"];
        let config = trieway::config::from_args(&args.map(String::from)).expect("valid flags");
        let flags = config.routing.ttft;
        let Ok(Policy::Ttft(ttft)) = parse("ttft") else { panic!("the product's policy") };
        let price = Price {
            idle: flags.idle_price,
            load: flags.load_price,
            fair_tokens: flags.fair_tokens,
            answer_tokens: flags.answer_tokens,
        };
        assert_eq!((ttft.price, ttft.hold_s), (price, flags.hold_s));
        let apart = |a: f64, b: f64| (a / b - 1.0).abs();
        assert!(apart(ttft.speed.token_s, flags.token_s) + apart(ttft.speed.kv_token_s, flags.kv_token_s) < 1e-9);
    }

    #[test]
    fn the_grid_is_readable_and_has_every_name() {
        GRID.iter().for_each(|point| assert!(parse(point).is_ok(), "{point}"));
        let has = |name: &str| GRID.iter().any(|point| point.split(':').next() == Some(name));
        NAMES.iter().for_each(|(name, _)| assert!(has(name), "{name}"));
    }
}
