//! From a request's body to its key: the check of the body alone, and all of it, with the keys asserted.
//!
//! `cargo bench --bench prompt [-- NAME ...]`. Each figure is the best of many rounds, in nanoseconds and per 1,000 bytes of
//! body; the first line is the hash chain by itself, the floor of every long prompt.

use std::hint::black_box;
use std::time::{Duration, Instant};
use trieway_benches::prompt::{Chunks, DEFAULT_CHUNK_BYTES, Endpoint, Scan, key, namespace, UNKEYED};

const TEXT: &str = "The quick brown fox jumps over the lazy dog, then it sits down and thinks about caches. ";
const SEED: u64 = 7;
const ROUND: Duration = Duration::from_micros(100);
const ROUNDS: usize = 2_000;

struct Case {
    name: &'static str,
    endpoint: Endpoint,
    body: String,
    /// What the key stands for, written down without the product's help.
    canonical: Vec<u8>,
}

/// A tagged piece of the canonical bytes.
fn piece(tag: u8, bytes: &str) -> Vec<u8> {
    [&[0xff, tag][..], bytes.as_bytes()].concat()
}

/// A chat of (role, content as JSON without its quotes, content as text).
fn chat(name: &'static str, messages: &[(&str, String, String)]) -> Case {
    let json = |(role, json, _): &(&str, String, String)| format!(r#"{{"role":"{role}","content":"{json}"}}"#);
    let list: Vec<String> = messages.iter().map(json).collect();
    let body = format!(
        r#"{{"model":"meta-llama/Llama-3.1-8B-Instruct","messages":[{}],"temperature":0.7,"max_tokens":128,"stream":true}}"#,
        list.join(",")
    );
    let canonical =
        messages.iter().flat_map(|(role, _, text)| [piece(b'm', role), piece(b'x', text)].concat()).collect();
    Case { name, endpoint: Endpoint::Chat, body, canonical }
}

/// A chat of one message, `json` as it stands between its quotes.
fn user(name: &'static str, json: &str) -> Case {
    let text = serde_json::from_str(&format!("\"{json}\"")).expect("a string");
    chat(name, &[("user", json.to_owned(), text)])
}

/// Seven turns of 6 KB together: the routed prompt of everyday.
fn conversation() -> Case {
    let turn = |number: usize| {
        let text = format!("{number} {}", TEXT.repeat(9));
        (if number % 2 == 0 { "user" } else { "assistant" }, text.clone(), text)
    };
    chat("conversation", &(0..7).map(turn).collect::<Vec<_>>())
}

/// The same in short lines, with a quotation in each.
fn lines() -> Case {
    let turn = |number: usize| {
        let text = format!("{}\n\"{}\" ", &TEXT[..50], &TEXT[..20]).repeat(11);
        let json = text.replace('"', "\\\"").replace('\n', "\\n");
        (if number % 2 == 0 { "user" } else { "assistant" }, json, text)
    };
    chat("lines", &(0..7).map(turn).collect::<Vec<_>>())
}

fn turns() -> Case {
    let turn = |number: usize| {
        let role = if number % 2 == 0 { "user" } else { "assistant" };
        let (before, after) = (format!("{} {number}", TEXT.repeat(3)), TEXT.repeat(2));
        (role, format!("{before}\\n{after}"), format!("{before}\n{after}"))
    };
    chat("200 turns", &(0..200).map(turn).collect::<Vec<_>>())
}

fn text_part(long: &str) -> Case {
    let body =
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{{"type":"text","text":"{long}"}}]}}]}}"#);
    Case {
        name: "text part",
        endpoint: Endpoint::Chat,
        body,
        canonical: [piece(b'm', "user"), piece(b'x', long)].concat(),
    }
}

fn tokens() -> Case {
    let ids: Vec<u32> = (0..20_000).map(|number| number * 7_919 % 128_000).collect();
    let list: Vec<String> = ids.iter().map(u32::to_string).collect();
    let canonical = [&piece(b'k', "")[..], &ids.iter().flat_map(|id| id.to_be_bytes()).collect::<Vec<_>>()].concat();
    let body = format!(r#"{{"model":"m","prompt":[{}]}}"#, list.join(","));
    Case { name: "token ids", endpoint: Endpoint::Completions, body, canonical }
}

fn tools() -> Case {
    let city = r#""city":{"type":"string","description":"The city"},"unit":{"type":"string","enum":["c","f"]}"#;
    let parameters = format!(r#"{{"type":"object","properties":{{{city}}},"required":["city"]}}"#);
    let about = r#""name":"get_weather","description":"Look up the weather of a city""#;
    let tool = format!(r#"{{"type":"function","function":{{{about},"parameters":{parameters}}}}}"#);
    let tools = format!("[{}]", vec![tool; 40].join(","));
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}],"tools":{tools}}}"#);
    let canonical = [piece(b't', &tools), piece(b'm', "user"), piece(b'x', "hi")].concat();
    Case { name: "40 tools", endpoint: Endpoint::Chat, body, canonical }
}

fn cases() -> Vec<Case> {
    let long = TEXT.repeat(100_000 / TEXT.len());
    let plain = |role, text: &str| (role, text.to_owned(), text.to_owned());
    let code = r#"    let name = \"value\";\n    if x {\n\t\tcall(\"a\");\n    }\n"#;
    vec![
        chat(
            "short chat",
            &[
                plain("system", "You are a helpful assistant that answers questions."),
                plain("user", "What is the capital of France, and how many people live there today?"),
            ],
        ),
        Case {
            name: "string prompt",
            endpoint: Endpoint::Completions,
            body: format!(r#"{{"model":"m","prompt":"{long}","max_tokens":16}}"#),
            canonical: long.clone().into_bytes(),
        },
        user("one message", &long),
        text_part(&long),
        user("line breaks", &format!("{}\\n", &TEXT[..60]).repeat(1_600)),
        user("code", &code.repeat(1_600)),
        user("escaped script", &r"\u4e2d\u6587\uff0c".repeat(5_000)),
        conversation(),
        lines(),
        turns(),
        tokens(),
        tools(),
    ]
}

/// The best time of one call, in nanoseconds.
fn best(mut call: impl FnMut()) -> f64 {
    let mut calls = 1;
    let mut time = |calls: u32| {
        let began = Instant::now();
        (0..calls).for_each(|_| call());
        began.elapsed()
    };
    while time(calls) < ROUND {
        calls *= 2;
    }
    (0..ROUNDS).map(|_| time(calls).as_nanos() as f64 / f64::from(calls)).fold(f64::MAX, f64::min)
}

fn measure(case: &Case) {
    let (mut scan, mut chunks) = (Scan::default(), Chunks::new(DEFAULT_CHUNK_BYTES, &UNKEYED));
    let body = case.body.as_bytes();
    let check = best(|| scan.read(black_box(body)).expect("an object"));
    let whole = best(|| {
        let body = black_box(body);
        scan.read(body).expect("an object");
        chunks.start(namespace(SEED, b"m", &scan, body, case.endpoint));
        key(case.endpoint, &scan, body, &mut chunks);
        black_box(chunks.key());
    });
    let mut known = Chunks::new(DEFAULT_CHUNK_BYTES, &UNKEYED);
    known.start(namespace(SEED, b"m", &scan, body, case.endpoint));
    known.feed(&case.canonical);
    assert_eq!((chunks.key(), chunks.bytes()), (known.key(), known.bytes()), "{}", case.name);
    let per_kb = |nanos: f64| nanos * 1e3 / body.len() as f64;
    let (bytes, check_kb, whole_kb) = (body.len(), per_kb(check), per_kb(whole));
    println!("{:16}{bytes:9}{check:12.0}{check_kb:10.1}{whole:12.0}{whole_kb:10.1}", case.name);
}

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let (mut chunks, bytes) = (Chunks::new(DEFAULT_CHUNK_BYTES, &UNKEYED), vec![b'x'; 100_096]);
    let chain = best(|| {
        chunks.start(SEED);
        chunks.feed(black_box(&bytes));
    });
    println!("chain alone: {:.1} ns/KB", chain * 1e3 / bytes.len() as f64);
    println!("{:16}{:>9}{:>12}{:>10}{:>12}{:>10}", "body", "bytes", "check ns", "ns/KB", "all ns", "ns/KB");
    for case in cases() {
        if asked.is_empty() || asked.iter().any(|word| case.name.contains(word.as_str())) {
            measure(&case);
        }
    }
}
