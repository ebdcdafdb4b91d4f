//! From two scrapes to the figures that are shown. Pure: time is passed in.
//!
//! A counter that went back belongs to a router that was started anew: what it says now is then the difference.

use std::time::Duration;

use super::scrape::Scrape;
use crate::metrics::names::{self, Metric};

/// What is shown. A figure that nothing is known of is `None`.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Board {
    pub(super) router: Router,
    pub(super) rows: Vec<Row>,
    /// What rates and quantiles are of.
    pub(super) over: Duration,
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Router {
    pub(super) version: String,
    pub(super) io: String,
    pub(super) policy: String,
    pub(super) connections: Option<f64>,
    pub(super) queued: Option<f64>,
    /// Requests a second that the router answered with an error of its own.
    pub(super) refused: Option<f64>,
    pub(super) cores: Option<f64>,
    pub(super) resident_bytes: Option<f64>,
    pub(super) trie_used_bytes: Option<f64>,
    pub(super) trie_limit_bytes: Option<f64>,
    pub(super) evicted: Option<f64>,
}

/// A backend, or all of them.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) state: String,
    pub(super) qps: Option<f64>,
    pub(super) in_flight: u64,
    pub(super) waiting: u64,
    /// Share of the requests' body bytes that the chosen backend was believed to hold.
    pub(super) hit: Option<f64>,
    /// Share of prompt tokens that the engine says it found in its cache.
    pub(super) engine_hit: Option<f64>,
    pub(super) ttfb_p50_s: Option<f64>,
    pub(super) ttfb_p99_s: Option<f64>,
    /// A second.
    pub(super) errors: Option<f64>,
}

impl Board {
    /// `elapsed` lies between the two; it is zero when there is only one scrape.
    pub(super) fn between(before: &Scrape, after: &Scrape, elapsed: Duration) -> Board {
        let span = Span { before, after, seconds: elapsed.as_secs_f64() };
        let mut rows: Vec<Row> = after
            .engines
            .iter()
            .map(|engine| Row {
                name: engine.url.clone(),
                state: if engine.unreachable { "refuses".to_owned() } else { engine.state.clone() },
                in_flight: engine.in_flight,
                waiting: engine.waiting,
                qps: span.rate(&names::REQUESTS_TOTAL, &[("server", &engine.url)]).or(Some(engine.qps)),
                ..span.row(&[("server", &engine.url)])
            })
            .collect();
        if rows.len() > 1 {
            rows.push(Row {
                name: "all".to_owned(),
                in_flight: rows.iter().map(|row| row.in_flight).sum(),
                waiting: rows.iter().map(|row| row.waiting).sum(),
                qps: rows.iter().map(|row| row.qps).sum(),
                ..span.row(&[])
            });
        }
        Board { router: span.router(), rows, over: elapsed }
    }
}

struct Span<'a> {
    before: &'a Scrape,
    after: &'a Scrape,
    seconds: f64,
}

impl Span<'_> {
    fn router(&self) -> Router {
        let label = |name| self.after.label(&names::INFO, name).unwrap_or("?").to_owned();
        let now = |metric| self.after.sum(metric, &[]);
        Router {
            version: label("version"),
            io: label("io"),
            policy: label("policy"),
            connections: now(&names::WORKER_OPEN),
            queued: now(&names::QUEUE_DEPTH),
            refused: self.rate(&names::REFUSED_TOTAL, &[]),
            cores: self.rate(&names::PROCESS_CPU_SECONDS_TOTAL, &[]),
            resident_bytes: now(&names::PROCESS_RESIDENT_MEMORY_BYTES),
            trie_used_bytes: now(&names::TRIE_USED_BYTES),
            trie_limit_bytes: now(&names::TRIE_LIMIT_BYTES),
            evicted: self.rate(&names::TRIE_EVICTED_NODES_TOTAL, &[]),
        }
    }

    /// What the counters say; name, state and load are the caller's.
    fn row(&self, labels: &[(&str, &str)]) -> Row {
        let matched = self.grown(&names::MATCH_BYTES, "_sum", labels);
        let found = self.grown(&names::GPU_PREFIX_CACHE_HITS_TOTAL, "", labels);
        let buckets = self.first_byte_buckets(labels);
        Row {
            hit: share(matched, self.grown(&names::REQUEST_BYTES_TOTAL, "", labels)),
            engine_hit: share(found, self.grown(&names::GPU_PREFIX_CACHE_QUERIES_TOTAL, "", labels)),
            ttfb_p50_s: quantile(&buckets, 0.5),
            ttfb_p99_s: quantile(&buckets, 0.99),
            errors: self.rate(&names::REQUEST_ERRORS_TOTAL, labels),
            ..Row::default()
        }
    }

    /// By how much a counter has grown; one that was not there before began at zero.
    fn grown(&self, metric: &Metric, suffix: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let before = self.before.part(metric, suffix, labels).unwrap_or(0.0);
        let after = self.after.part(metric, suffix, labels)?;
        (self.seconds > 0.0).then(|| difference(before, after))
    }

    /// The same a second; a counter without any sample has counted nothing.
    fn rate(&self, metric: &Metric, labels: &[(&str, &str)]) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.grown(metric, "", labels).unwrap_or(0.0) / self.seconds)
    }

    fn first_byte_buckets(&self, labels: &[(&str, &str)]) -> Vec<(f64, f64)> {
        if self.seconds <= 0.0 {
            return Vec::new();
        }
        let before = self.before.buckets(&names::FIRST_BYTE_SECONDS, labels);
        let then = |bound| before.iter().find(|(b, _)| *b == bound).map_or(0.0, |(_, count)| *count);
        let after = self.after.buckets(&names::FIRST_BYTE_SECONDS, labels);
        let anew = after.last().is_some_and(|&(bound, count)| count < then(bound));
        after.into_iter().map(|(bound, count)| (bound, if anew { count } else { count - then(bound) })).collect()
    }
}

fn difference(before: f64, after: f64) -> f64 {
    if after < before { after } else { after - before }
}

fn share(part: Option<f64>, whole: Option<f64>) -> Option<f64> {
    whole.filter(|whole| *whole > 0.0).and_then(|whole| Some(part? / whole))
}

/// As Prometheus' `histogram_quantile`: linear within a bucket; beyond the last bound, that bound.
fn quantile(cumulative: &[(f64, f64)], q: f64) -> Option<f64> {
    let total = cumulative.last().map(|&(_, count)| count).filter(|&count| count > 0.0)?;
    let rank = q * total;
    let at = cumulative.iter().position(|&(_, count)| count >= rank)?;
    let (low, below) = if at == 0 { (0.0, 0.0) } else { cumulative[at - 1] };
    let (high, count) = cumulative[at];
    if high.is_infinite() {
        return Some(low);
    }
    Some(low + (high - low) * (rank - below) / (count - below))
}

#[cfg(test)]
#[path = "board_tests.rs"]
mod tests;
