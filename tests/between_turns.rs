//! Requests between the turns of a conversation change nothing for it: not where it goes, nor what is believed and found of it.
//!
//! One client sends everything in turn and one worker serves it, so that all requests have the same scratch.

mod support;

use support::engine::Engine;
use support::{Client, Router, completion, text};

const TURNS: u64 = 8;

/// What came of a conversation's turns.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// Engines that got some of it.
    homes: usize,
    predicted_tokens: f64,
    reported_tokens: f64,
    matched_bytes: f64,
}

fn sum(router: &Router, name: &str) -> f64 {
    let text = router.get("/metrics").body_text();
    let of = |line: &&str| line.starts_with(&format!("{name}{{"));
    text.lines().filter(of).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

fn post(client: &mut Client, prompt: &str) {
    let response = client.post("/v1/completions", &completion("m", prompt));
    assert_eq!(response.status, 200, "{}", response.body_text());
}

/// A conversation of 8 KiB and more, with `between` one-word requests behind each turn.
fn converse(policy: &str, engines: usize, between: usize) -> Outcome {
    let engines: Vec<Engine> = (0..engines).map(|_| Engine::start(100_000, false)).collect();
    let urls: Vec<String> = engines.iter().map(|engine| engine.origin.url()).collect();
    let router = Router::in_front_of(&urls, &["--routing-logic", policy, "--workers", "1"]);
    let mut client = router.client();
    let mut talk = text(7, 8_192);
    for turn in 0..TURNS {
        talk.push_str(&text(100 + turn, 512));
        post(&mut client, &talk);
        (0..between).for_each(|_| post(&mut client, "Okay"));
    }
    let has_turns = |engine: &&Engine| engine.origin.received().iter().any(|received| received.body.len() > 8_192);
    Outcome {
        homes: engines.iter().filter(has_turns).count(),
        predicted_tokens: sum(&router, "trieway_predicted_cached_tokens_total"),
        reported_tokens: sum(&router, "trieway_reported_cached_tokens_total"),
        matched_bytes: sum(&router, "trieway_match_length_bytes_sum"),
    }
}

#[test]
fn one_word_requests_between_turns_change_nothing_for_the_turns() {
    for policy in ["ttft", "prefixaware"] {
        let (alone, among) = (converse(policy, 4, 0), converse(policy, 4, 3));
        assert_eq!(alone, among, "{policy}");
        assert_eq!(alone.homes, 1, "{policy}: {alone:?}");
        assert!(alone.matched_bytes > 7.0 * 8_192.0, "{policy}: {alone:?}");
    }
}

/// Where ties are broken by chance, one engine shows whether a request changes what the next one is believed to find.
#[test]
fn under_each_policy_an_engine_is_believed_to_hold_the_same() {
    for policy in ["ttft", "prefixaware", "leastload", "roundrobin"] {
        assert_eq!(converse(policy, 1, 0), converse(policy, 1, 3), "{policy}");
    }
}
