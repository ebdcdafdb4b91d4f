//! The table of per-backend figures in the log.
//!
//! QPS, cached share and time to first token are those of the last period; requests and errors count from the start.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval_at};

use super::figures::{self, Totals};
use super::members::Member;
use super::plane::Plane;
use crate::config::LogFormat;

const HEADINGS: [&str; 9] = ["backend", "state", "qps", "running", "waiting", "requests", "errors", "cached", "ttft"];
/// The first columns are text and stand left; the others are figures and stand right.
const TEXT_COLUMNS: usize = 2;
/// Shown where a figure is not known.
const UNKNOWN: &str = "-";

struct Row {
    url: String,
    state: &'static str,
    qps: f64,
    running: u32,
    waiting: u32,
    requests: u64,
    errors: u64,
    /// Share of the prompt tokens that the engine found in its cache.
    cached: Option<f64>,
    ttft_s: Option<f64>,
}

/// Pairs of running totals at the last look, for means over a period.
#[derive(Default)]
struct Before {
    sent: u64,
    /// Hits and queries of the engine's prefix cache.
    cache: (f64, f64),
    /// Sum in microseconds and count.
    first_byte: (f64, f64),
}

pub(super) async fn run(plane: Arc<Plane>, period: Duration) {
    let mut ticks = interval_at(tokio::time::Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before = HashMap::new();
    loop {
        ticks.tick().await;
        let rows = rows(&plane, &mut before, period);
        match plane.shared.config.log.format {
            LogFormat::Text => tracing::info!("backends over the last {period:?}\n{}", render(&rows)),
            LogFormat::Json => rows.iter().for_each(log_fields),
        }
    }
}

fn rows(plane: &Plane, before: &mut HashMap<String, Before>, period: Duration) -> Vec<Row> {
    let members = plane.members();
    let servers = figures::by_server(&figures::by_pair(&plane.shared.shards, members.lanes()));
    let none = Totals::default();
    members
        .iter()
        .map(|member| {
            let totals = servers.get(member.name.as_str()).unwrap_or(&none);
            row(plane, member, totals, before.entry(member.name.clone()).or_default(), period)
        })
        .collect()
}

fn row(plane: &Plane, member: &Member, totals: &Totals, before: &mut Before, period: Duration) -> Row {
    let fleet = &plane.shared.fleet;
    let sent = totals.sent();
    let recent = sent.saturating_sub(std::mem::replace(&mut before.sent, sent));
    let cache = member.engine.as_ref().and_then(|engine| Some((engine.prefix_hits?, engine.prefix_queries?)));
    let first_byte = (totals.first_byte.sum as f64, totals.first_byte.count() as f64);
    Row {
        url: member.name.clone(),
        state: if fleet.load(member.slot).is_unreachable() { "unreachable" } else { member.state().as_str() },
        qps: recent as f64 / period.as_secs_f64(),
        running: fleet.answering(member.slot),
        waiting: fleet.waiting(member.slot),
        requests: sent,
        errors: totals.backend_errors(),
        cached: cache.and_then(|cache| ratio_since(&mut before.cache, cache)),
        ttft_s: ratio_since(&mut before.first_byte, first_byte).map(|mean_us| mean_us / 1e6),
    }
}

/// What was added to the first total for each that was added to the second; after a restart, the totals themselves.
fn ratio_since(before: &mut (f64, f64), now: (f64, f64)) -> Option<f64> {
    let then = std::mem::replace(before, now);
    let (part, whole) = if now.1 < then.1 { now } else { (now.0 - then.0, now.1 - then.1) };
    (whole > 0.0).then_some(part / whole)
}

fn render(rows: &[Row]) -> String {
    let cells: Vec<[String; HEADINGS.len()]> =
        std::iter::once(HEADINGS.map(str::to_owned)).chain(rows.iter().map(cells)).collect();
    let widths: [usize; HEADINGS.len()] =
        std::array::from_fn(|column| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let mut text = String::new();
    for (at, row) in cells.iter().enumerate() {
        text.push_str(if at == 0 { "  " } else { "\n  " });
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            // Writing to a string cannot fail.
            let _ = match column < TEXT_COLUMNS {
                true => write!(text, "{gap}{cell:<width$}"),
                false => write!(text, "{gap}{cell:>width$}"),
            };
        }
    }
    text
}

fn cells(row: &Row) -> [String; HEADINGS.len()] {
    [
        row.url.clone(),
        row.state.to_owned(),
        format!("{:.1}", row.qps),
        row.running.to_string(),
        row.waiting.to_string(),
        row.requests.to_string(),
        row.errors.to_string(),
        row.cached.map_or_else(|| UNKNOWN.to_owned(), |share| format!("{:.1}%", share * 100.0)),
        row.ttft_s.map_or_else(|| UNKNOWN.to_owned(), milliseconds),
    ]
}

fn milliseconds(seconds: f64) -> String {
    let ms = seconds * 1e3;
    if ms < 10.0 { format!("{ms:.1}ms") } else { format!("{ms:.0}ms") }
}

fn log_fields(row: &Row) {
    tracing::info!(
        backend = row.url,
        state = row.state,
        qps = row.qps,
        running = row.running,
        waiting = row.waiting,
        requests_total = row.requests,
        errors_total = row.errors,
        cached = row.cached,
        ttft_seconds = row.ttft_s,
        "backend figures"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let row = |url: &str, state, requests, cached, ttft_s| Row {
            url: url.to_owned(),
            state,
            qps: requests as f64 / 10.0,
            running: 3,
            waiting: 12,
            requests,
            errors: 0,
            cached,
            ttft_s,
        };
        let rows = [
            row("http://10.0.0.1:8000", "up", 12_345, Some(0.876), Some(0.00421)),
            row("http://engine-1.default.svc:8000", "unreachable", 0, None, None),
        ];
        let expected = "  \
  backend                           state           qps  running  waiting  requests  errors  cached   ttft
  http://10.0.0.1:8000              up           1234.5        3       12     12345       0   87.6%  4.2ms
  http://engine-1.default.svc:8000  unreachable     0.0        3       12         0       0       -      -";
        assert_eq!(render(&rows), expected);
    }

    #[test]
    fn means_are_those_of_the_period() {
        let mut before = (0.0, 0.0);
        assert_eq!(ratio_since(&mut before, (50.0, 100.0)), Some(0.5));
        assert_eq!(ratio_since(&mut before, (50.0, 100.0)), None);
        assert_eq!(ratio_since(&mut before, (140.0, 200.0)), Some(0.9));
        assert_eq!(ratio_since(&mut before, (1.0, 4.0)), Some(0.25), "the engine has restarted");
    }
}
