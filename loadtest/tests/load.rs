//! The client reports what the engines did.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod support;

use std::process::{Command, Output};

use serde_json::Value;
use support::Engine;

fn load(port: u16, flags: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trieway-loadtest"))
        .args(["load", "--url", &format!("http://127.0.0.1:{port}"), "--json", "-"])
        .args(flags.split_whitespace())
        .output()
        .unwrap()
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

const SMALL: &str = "--conversations 6 --turns 3 --rate 100 --think-ms 10 --max-tokens 8 --system-bytes 640";

#[test]
fn conversations_are_counted_and_their_history_is_found() {
    let engine = Engine::start("");
    for stream in ["", " --no-stream"] {
        engine.post("/debug/reset", "", "");
        let output = load(engine.port(), &format!("{SMALL}{stream}"));
        assert!(output.status.success(), "{output:?}");
        let report = report(&output);
        assert_eq!((report["answered"].as_u64(), report["skipped"].as_u64()), (Some(18), Some(0)));
        assert_eq!(report["engines"][engine.port().to_string()], 18);
        assert_eq!(report["conversations_on_one_engine"], 6);
        assert_eq!(report["duration_ms"]["count"], 18);
        // In later turns only the newest message and what fills no block is new.
        assert!(report["cached_share_later_turns"].as_f64().unwrap() > 0.6, "{report}");
        assert!(report["cached_share"].as_f64() < report["cached_share_later_turns"].as_f64());
        assert_eq!(report["ttft_ms"].is_null(), !stream.is_empty());
    }
    let journal = engine.journal();
    assert_eq!((journal["count"].as_u64(), journal["aborted"].as_u64()), (Some(36), Some(0)));
}

#[test]
fn latency_is_what_the_engine_takes() {
    // 640 + 500 bytes and the roles are about 295 tokens; one conversation alone.
    let engine = Engine::start("--prefill-tokens-per-s 2000 --decode-tokens-per-s 100");
    let output = load(engine.port(), "--conversations 1 --turns 1 --rate 0 --system-bytes 640 --max-tokens 11");
    let report = report(&output);
    let within = |value: &Value, low: f64, high: f64| {
        let value = value.as_f64().unwrap();
        assert!((low..high).contains(&value), "{value} is not in {low}..{high}");
    };
    within(&report["ttft_ms"]["p50"], 145.0, 600.0);
    within(&report["gap_ms"]["p50"], 8.0, 20.0);
    within(&report["duration_ms"]["p50"], 245.0, 900.0);
    assert_eq!(report["gap_ms"]["count"], 10);
}

#[test]
fn waiting_for_a_permit_counts() {
    let engine = Engine::start("--decode-tokens-per-s 100");
    let flags = "--conversations 4 --turns 1 --rate 0 --max-tokens 11 --concurrency 1";
    let report = report(&load(engine.port(), flags));
    // One after another, 100 ms each, all intended at once.
    assert!(report["duration_ms"]["max"].as_f64().unwrap() >= 400.0, "{report}");
    assert!(report["duration_ms"]["p50"].as_f64().unwrap() >= 200.0);
}

#[test]
fn failures_have_kinds_and_an_exit_code() {
    let engine = Engine::start("");
    for (fault, kind) in [
        ("status=503", "status 503"),
        ("reset-before-head", "no response"),
        ("bad-head", "malformed response"),
        ("fin-after=2", "broken body"),
        ("no-length", ""),
        ("hang", "timeout"),
    ] {
        let field = format!("X-Fault:{fault}");
        let output =
            load(engine.port(), &format!("--conversations 2 --turns 2 --timeout-s 0.3 --rate 0 --header {field}"));
        let report = report(&output);
        assert_eq!(output.status.success(), kind.is_empty(), "{fault}");
        assert_eq!(
            report["errors"][kind].as_u64().unwrap_or(0),
            if kind.is_empty() { 0 } else { 2 },
            "{fault}: {report}"
        );
        assert_eq!(report["skipped"], if kind.is_empty() { 0 } else { 2 });
    }
    let output = load(engine.port(), "--conversations 1 --turns 1 --header X-Fault:status=500 --allow-errors");
    assert!(output.status.success());
    let output = load(1, "--conversations 1 --turns 1");
    assert_eq!(report(&output)["errors"]["connect"], 1);
}

#[test]
fn a_bound_on_conversations_does_not_count_as_waiting() {
    let engine = Engine::start("--decode-tokens-per-s 100");
    let flags = "--conversations 3 --turns 2 --rate 0 --think-ms 0 --max-tokens 11 --at-once 1";
    let report = report(&load(engine.port(), flags));
    assert!(report["elapsed_s"].as_f64().unwrap() >= 0.6, "{report}");
    assert!(report["duration_ms"]["max"].as_f64().unwrap() < 380.0, "{report}");
}
