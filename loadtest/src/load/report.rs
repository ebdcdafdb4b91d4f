//! The report: one JSON value, and a table for people made from it.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::Options;
use super::stats::{Stats, Summary, summarise};

pub(crate) fn build(options: &Options, stats: &Stats, elapsed: Duration) -> Value {
    let seconds = elapsed.as_secs_f64();
    json!({
        "url": options.url,
        "stream": !options.no_stream,
        "seed": options.seed,
        "elapsed_s": seconds,
        "requests": stats.requests,
        "answered": stats.answered,
        "skipped": stats.skipped,
        "requests_per_s": stats.requests as f64 / seconds,
        "answer_tokens_per_s": stats.answer_tokens as f64 / seconds,
        "errors": stats.errors,
        "ttft_ms": summary(&stats.first_token),
        "ttft_later_turns_ms": summary(&stats.later_first_token),
        "gap_ms": summary(&stats.gaps),
        "duration_ms": summary(&stats.duration),
        "prompt_tokens": stats.tokens.all,
        "cached_tokens": stats.tokens.cached,
        "cached_share": stats.tokens.ratio(),
        "cached_share_later_turns": stats.later_tokens.ratio(),
        "engines": stats.engines,
        "busiest_over_mean": stats.spread(options.engines),
        "conversations": options.conversations,
        "conversations_followed": stats.followed,
        "conversations_on_one_engine": stats.stayed,
    })
}

fn summary(values: &[Duration]) -> Value {
    summarise(values).map_or(Value::Null, |Summary { count, mean, p50, p90, p99, max }| {
        json!({"count": count, "mean": mean, "p50": p50, "p90": p90, "p99": p99, "max": max})
    })
}

pub(crate) fn table(report: &Value) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{} requests in {:.1} s ({:.1}/s), {} answered, {} turns skipped",
        report["requests"],
        number(&report["elapsed_s"]),
        number(&report["requests_per_s"]),
        report["answered"],
        report["skipped"]
    );
    let _ =
        writeln!(text, "\n{:<26}{:>10}{:>10}{:>10}{:>10}{:>10}", "milliseconds", "p50", "p90", "p99", "max", "mean");
    for (name, key) in [
        ("time to first token", "ttft_ms"),
        ("  behind the first turn", "ttft_later_turns_ms"),
        ("gap between pieces", "gap_ms"),
        ("whole request", "duration_ms"),
    ] {
        let row = &report[key];
        if row.is_object() {
            let cells: String = ["p50", "p90", "p99", "max", "mean"]
                .iter()
                .map(|cell| format!("{:>10.1}", number(&row[cell])))
                .collect();
            let _ = writeln!(text, "{name:<26}{cells}");
        }
    }
    text.push('\n');
    if report["cached_share"].is_number() {
        let (all, later) = (percent(&report["cached_share"]), percent(&report["cached_share_later_turns"]));
        let _ = writeln!(text, "prompt tokens cached        {all} (behind the first turn: {later})");
    }
    if let Some(engines) = report["engines"].as_object().filter(|engines| !engines.is_empty()) {
        let list: Vec<String> = engines.iter().map(|(name, count)| format!("{name}: {count}")).collect();
        let _ = writeln!(text, "requests by engine          {}", list.join(", "));
        let _ = writeln!(text, "busiest engine / mean       {:.2}", number(&report["busiest_over_mean"]));
        let (stayed, followed) = (&report["conversations_on_one_engine"], &report["conversations_followed"]);
        let _ = writeln!(text, "conversations on one engine {stayed} of {followed}");
    }
    for (kind, count) in report["errors"].as_object().into_iter().flatten() {
        let _ = writeln!(text, "error: {kind:<20} {count}");
    }
    text
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

fn percent(value: &Value) -> String {
    value.as_f64().map_or("–".into(), |share| format!("{:.1} %", share * 100.0))
}
