//! What is looked at from outside while the storm goes on: no figure that is no number, no worker busy for long, and no
//! backend beyond its share but for a reason that `/debug/route` names.

use serde_json::Value;

use super::engines::Mood;
use crate::support::{Router, completion, leaks::per_worker};

/// Beyond twice its share by this many of its deviations is no chance. A deviation: the share's root.
const DEVIATIONS: f64 = 4.0;
/// Slices with less than this for each backend say nothing.
const FEWEST: f64 = 8.0;

/// What happened between two changes of the weather.
pub(crate) struct Slice {
    pub(crate) urls: Vec<String>,
    pub(crate) moods: Vec<Mood>,
    /// Of each engine: requests, and those whose prompt nobody had seen.
    pub(crate) counts: Vec<[usize; 2]>,
    /// What `/debug/route` said meanwhile about a prompt that nobody has seen.
    pub(crate) explained: Vec<Value>,
}

/// One look at everything that shows figures.
///
/// # Panics
/// When one of them is not a number.
pub(crate) fn look(router: &Router, number: u64) -> Value {
    let explained = explain(router, &format!("look {number}"));
    for candidate in candidates(&explained) {
        for name in ["in_flight", "in_flight_bytes", "requests_in_window", "share", "matched_bytes", "fresh_bytes"] {
            assert!(candidate[name].is_number(), "{name}: {explained}");
        }
        if let Some(ttft) = candidate["ttft"].as_object() {
            assert!(ttft.values().all(Value::is_number), "{explained}");
        }
    }
    if number.is_multiple_of(8) {
        numbers_of_metrics(&router.get("/metrics").body_text());
        numbers_of_engines(&router.get("/engines").json());
    }
    explained
}

fn explain(router: &Router, prompt: &str) -> Value {
    let response = router.post("/debug/route?path=/v1/completions", &completion("m", prompt));
    assert_eq!(response.status, 200, "{}", response.body_text());
    response.json()
}

fn candidates(explained: &Value) -> &[Value] {
    explained["candidates"].as_array().map_or(&[], Vec::as_slice)
}

fn numbers_of_metrics(page: &str) {
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let value = line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
        assert!(value.is_some_and(f64::is_finite), "no number: {line}");
    }
}

fn numbers_of_engines(engines: &Value) {
    for engine in engines.as_array().expect("a list") {
        assert!(engine["share"].is_number() && engine["qps"].is_number(), "{engine}");
        let figures = engine["engine"].as_object();
        assert!(figures.is_none_or(|figures| figures.values().all(Value::is_number)), "{engine}");
    }
}

/// The longest that any worker was busy in one go lately, in seconds.
pub(crate) fn longest_turn(router: &Router) -> f64 {
    per_worker(router, "trieway_worker_longest_turn_seconds").into_iter().fold(0.0, f64::max)
}

impl Slice {
    /// Says which backend got beyond twice its share, of all requests and of those with a prompt that nobody had seen, when
    /// `/debug/route` named no reason for that.
    pub(crate) fn unfair(&self) -> Option<String> {
        let usable = self.explained.iter().map(|told| candidates(told).len()).min().unwrap_or(0);
        if usable < 2 {
            return None;
        }
        let sum = |which: usize| self.counts.iter().map(|counts| counts[which]).sum::<usize>() as f64;
        let fair = [0, 1].map(|which| sum(which) / usable as f64);
        if fair[1] < FEWEST {
            return None;
        }
        let beyond = |counts: &[usize; 2]| {
            (0..2).all(|which| counts[which] as f64 > 2.0 * fair[which] + DEVIATIONS * fair[which].sqrt())
        };
        let found = self.counts.iter().position(beyond)?;
        let url = &self.urls[found];
        let mood = self.moods[found];
        let reasons = self.explained.iter().filter(|told| names_a_reason(told, url)).count();
        // What fails has no reason to be preferred, however fast it does.
        let named = !mood.fails() && reasons * 2 > self.explained.len();
        (!named).then(|| {
            let counts: Vec<_> = self.moods.iter().zip(&self.counts).collect();
            let told = self.explained.last().map(ToString::to_string).unwrap_or_default();
            format!("{url} ({mood:?}) is beyond twice its share of {fair:?}: {counts:?}; {reasons} of {} explanations name a reason; the last: {told}", self.explained.len())
        })
    }
}

/// It holds some of the prompt; or every other candidate is believed slower by a quarter, has twice as many requests in
/// flight, or warms up.
fn names_a_reason(explained: &Value, url: &str) -> bool {
    let Some(own) = candidates(explained).iter().find(|candidate| candidate["url"] == url) else { return false };
    let figure = |candidate: &Value, name: &str| candidate[name].as_f64().unwrap_or(0.0);
    let expected = |candidate: &Value| candidate["ttft"]["expected_seconds"].as_f64();
    let better_than = |other: &Value| {
        let slower = match (expected(own), expected(other)) {
            (Some(own), Some(other)) => other > own * 1.25,
            _ => false,
        };
        slower
            || figure(other, "in_flight") >= 2.0 * figure(own, "in_flight").max(1.0)
            || figure(other, "share") < figure(own, "share")
    };
    figure(own, "matched_bytes") > 0.0
        || candidates(explained).iter().filter(|candidate| candidate["url"] != url).all(better_than)
}
