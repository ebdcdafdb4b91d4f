//! The cases: each prepares its values, does its part so many times, and asserts what must come of it.

use std::hint::black_box;

use crate::http::forward::{self, OutFraming, RequestOut, ResponseOut};
use crate::http::{Limits, RequestHead, ResponseHead, Version, framing, parse_request, parse_response};
use crate::prompt::{self, Chunks, DEFAULT_CHUNK_BYTES, Endpoint, Scan, UNKEYED};
use crate::route::{self, Candidate};
use crate::trie::{Holder, Matches, Options, Trie};

pub type Case = fn(u64);

pub const ALL: &[(&str, Case)] = &[
    ("parse_head", parse_head),
    ("scan_6k", scan),
    ("key_hash_6k", key_hash),
    ("lines_6k", lines),
    ("lookup_6k", lookup),
    ("choose_8", choose),
    ("forward_both", forward_both),
];

pub fn find(name: &str) -> Option<Case> {
    ALL.iter().find(|(each, _)| *each == name).map(|(_, case)| *case)
}

const REQUEST: &[u8] = b"POST /v1/chat/completions HTTP/1.1\r\nHost: llm.example.com:8001\r\nAuthorization: Bearer \
sk-0123456789abcdef0123456789abcdef\r\nAccept: application/json\r\nAccept-Encoding: gzip, deflate\r\nConnection: \
keep-alive\r\nContent-Type: application/json\r\nContent-Length: 6200\r\nUser-Agent: OpenAI/Python 1.40.0\r\n\
X-Stainless-Lang: python\r\nX-Stainless-Package-Version: 1.40.0\r\nX-Stainless-OS: Linux\r\nX-Stainless-Arch: x64\r\n\
X-Stainless-Runtime: CPython\r\nX-Stainless-Async: false\r\n\r\n";

const RESPONSE: &[u8] =
    b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 00:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: \
512\r\ncontent-type: application/json\r\n\r\n";

fn parse_head(turns: u64) {
    let (limits, mut head) = (Limits::default(), RequestHead::default());
    for _ in 0..turns {
        let length = parse_request(black_box(REQUEST), &limits, &mut head);
        assert!(matches!(length, Ok(Some(length)) if length == REQUEST.len()));
        let framing = framing::request(&head, REQUEST);
        assert!(black_box(framing).is_ok());
    }
}

fn forward_both(turns: u64) {
    let (limits, mut request, mut response) = (Limits::default(), RequestHead::default(), ResponseHead::default());
    assert!(parse_request(REQUEST, &limits, &mut request).is_ok_and(|length| length.is_some()));
    assert!(parse_response(RESPONSE, &limits, &mut response).is_ok_and(|length| length.is_some()));
    let to_backend = RequestOut {
        authority: b"10.0.0.7:8000",
        base_path: b"",
        target: b"/v1/chat/completions",
        content_length: Some(6200),
        request_id: b"0123456789abcdef0123456789abcdef",
        client_ip: b"10.1.2.3",
        preserve_host: false,
        authorization: None,
        upgrade_websocket: false,
        max_forwards: None,
        via: true,
    };
    let to_client = ResponseOut {
        framing: OutFraming::Fixed(512),
        keep_alive: true,
        client_version: Version::Http11,
        request_id: to_backend.request_id,
        date: b"Sun, 06 Nov 1994 08:49:37 GMT",
        via: false,
    };
    let mut out = Vec::with_capacity(2048);
    for _ in 0..turns {
        out.clear();
        forward::request(&mut out, black_box(&request), REQUEST, &to_backend);
        forward::response(&mut out, black_box(&response), RESPONSE, &to_client);
        assert!(black_box(&out).len() > 600);
    }
}

/// A conversation of seven turns, each of so many times `text`.
fn conversation(text: &str, times: usize) -> Vec<u8> {
    let turn = |number: usize| {
        let role = if number.is_multiple_of(2) { "user" } else { "assistant" };
        let text = format!("{number} {text} ").repeat(times);
        format!(r#"{{"role":"{role}","content":"{text}"}}"#)
    };
    let messages: Vec<_> = (0..7).map(turn).collect();
    format!(r#"{{"model":"fake-llm","max_tokens":8,"messages":[{}]}}"#, messages.join(",")).into_bytes()
}

fn body() -> Vec<u8> {
    conversation("The quick brown fox jumps over the lazy dog.", 18)
}

fn scan(turns: u64) {
    let (body, mut scan) = (body(), Scan::default());
    for _ in 0..turns {
        assert!(scan.read(black_box(&body)).is_ok());
    }
}

fn key_hash(turns: u64) {
    let (body, mut scan, mut chunks) = (body(), Scan::default(), Chunks::new(DEFAULT_CHUNK_BYTES, &UNKEYED));
    assert!(scan.read(&body).is_ok());
    for _ in 0..turns {
        chunks.start(prompt::namespace(0, b"fake-llm", &scan, black_box(&body), Endpoint::Chat));
        prompt::key(Endpoint::Chat, &scan, &body, &mut chunks);
        assert!(black_box(chunks.key()).len() > 40);
    }
}

/// Scan and key of short lines with a quotation in each.
fn lines(turns: u64) {
    let body = conversation(r#"The quick brown fox jumps over\nthe \"lazy\" dog, \u00e9."#, 14);
    let (mut scan, mut chunks) = (Scan::default(), Chunks::new(DEFAULT_CHUNK_BYTES, &UNKEYED));
    for _ in 0..turns {
        assert!(scan.read(black_box(&body)).is_ok());
        chunks.start(prompt::namespace(0, b"fake-llm", &scan, &body, Endpoint::Chat));
        prompt::key(Endpoint::Chat, &scan, &body, &mut chunks);
        assert!(black_box(chunks.key()).len() > 40);
    }
}

/// A hot prompt that eight backends hold, its lookup and the mark of the one that gets it.
fn lookup(turns: u64) {
    let Ok(trie) = Trie::new(&Options { memory_bytes: 16 << 20, slots: 16 }) else { panic!("a trie") };
    let key: Vec<u64> = (1..=48_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let holder = |slot| Holder { slot, generation: trie.generation(slot) };
    (0..8).for_each(|slot| trie.insert(&key, holder(slot)));
    let mut found = Matches::new(16);
    for _ in 0..turns {
        trie.lookup(black_box(&key), &mut found);
        assert_eq!(found.chunks(3), 48);
        trie.insert_found(&key, holder(3), &found);
    }
}

fn choose(turns: u64) {
    let candidate = |n: u64| Candidate {
        identity: n,
        in_window: 100 + n,
        in_flight: (n % 3) as u32,
        in_flight_bytes: n * 1000,
        cold_permille: 0,
        penalized: false,
        matched_bytes: if n.is_multiple_of(2) { 6144 } else { 128 },
    };
    let candidates: Vec<_> = (0..8).map(candidate).collect();
    for turn in 0..turns {
        let decision = route::prefixaware(black_box(&candidates), 0, turn);
        assert!(decision.is_some_and(|decision| decision.index % 2 == 0));
    }
}
