//! Each fault does what its name says, seen from a raw socket.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod support;

use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use support::{Client, Engine, chat, chat_body, post};

const STREAM: &str = r#","stream":true"#;

/// All that comes back when a chat is sent with a fault, and how it ended.
fn provoke(engine: &Engine, fault: &str, extra: &str) -> (String, Option<ErrorKind>) {
    let mut client = engine.connect();
    client.stream.set_read_timeout(Some(Duration::from_millis(800))).unwrap();
    client.send(&chat(&format!("X-Fault: {fault}\r\n"), "hello", extra));
    let mut seen = Vec::new();
    let end = loop {
        let mut buffer = [0; 4096];
        match std::io::Read::read(&mut client.stream, &mut buffer) {
            Ok(0) => break None,
            Ok(count) => seen.extend_from_slice(&buffer[..count]),
            Err(error) => break Some(error.kind()),
        }
    };
    (String::from_utf8_lossy(&seen).into_owned(), end)
}

const HANGS: Option<ErrorKind> = Some(ErrorKind::WouldBlock);
const RESETS: Option<ErrorKind> = Some(ErrorKind::ConnectionReset);
const ENDS: Option<ErrorKind> = None;

#[test]
fn before_the_head() {
    let engine = Engine::start("");
    assert_eq!(provoke(&engine, "hang", ""), (String::new(), HANGS));
    assert_eq!(provoke(&engine, "reset-before-head", ""), (String::new(), RESETS));
    assert_eq!(provoke(&engine, "fin-before-head", STREAM), (String::new(), ENDS));
    let (text, end) = provoke(&engine, "bad-head", "");
    assert!(!text.starts_with("HTTP") && !text.is_empty() && end == ENDS);
    let (text, end) = provoke(&engine, "big-head", "");
    assert!(text.find("\r\n\r\n").unwrap() > 200_000 && end == ENDS);
    let (text, end) = provoke(&engine, "101", "");
    assert!(text.starts_with("HTTP/1.1 101 ") && end == HANGS);
    let (text, end) = provoke(&engine, "status=429", "");
    assert!(text.starts_with("HTTP/1.1 429 ") && end == HANGS);
    let (text, end) = provoke(&engine, "explode", "");
    assert!(text.starts_with("HTTP/1.1 400 ") && text.contains("unknown fault") && end == ENDS);
}

#[test]
fn behind_the_head() {
    let engine = Engine::start("");
    for stream in ["", STREAM] {
        let (text, end) = provoke(&engine, "hang-after-head", stream);
        assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("\r\n\r\n") && end == HANGS, "{text}");
        let (text, end) = provoke(&engine, "reset-after-head", stream);
        assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("\r\n\r\n") && end == RESETS, "{text}");
    }
    // Role and three tokens.
    let (text, end) = provoke(&engine, "reset-after=3", STREAM);
    assert!(text.matches("data: ").count() == 4 && !text.contains("[DONE]") && end == RESETS, "{text}");
    let (text, end) = provoke(&engine, "fin-after=3", STREAM);
    assert!(text.matches("data: ").count() == 4 && !text.ends_with("0\r\n\r\n") && end == ENDS, "{text}");
    let (text, end) = provoke(&engine, "fin-in-chunk", STREAM);
    assert!(text.ends_with("40\r\nhalf a chunk") && end == ENDS);
    let (text, end) = provoke(&engine, "bad-chunk", "");
    assert!(text.contains("\r\n-5\r\n") && end == ENDS);
}

#[test]
fn lengths_that_lie() {
    let engine = Engine::start("");
    let (text, end) = provoke(&engine, "short-length", "");
    assert!(text.contains("content-length: 1099511627776\r\n") && text.ends_with("}}}") && end == ENDS, "{text}");
    let (text, _) = provoke(&engine, "both-lengths", "");
    assert!(
        text.contains("content-length: 10\r\ntransfer-encoding: chunked\r\n") && text.ends_with("\r\n0\r\n\r\n"),
        "{text}"
    );
    for stream in ["", STREAM] {
        let (text, end) = provoke(&engine, "no-length", stream);
        assert!(!text.contains("content-length") && !text.contains("chunked") && end == ENDS, "{text}");
        assert!(text.ends_with("}") || text.ends_with("[DONE]\n\n"), "{text}");
    }
    let (text, _) = provoke(&engine, "surplus", "");
    assert!(text.matches("HTTP/1.1 200").count() == 2 && text.ends_with("surplus"));
    let (text, end) = provoke(&engine, "close", "");
    assert!(text.contains("connection: close\r\n") && text.ends_with("}") && end == ENDS);
    let (text, _) = provoke(&engine, "1xx", "");
    assert!(
        text.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n") && text.contains("HTTP/1.1 200")
    );
}

#[test]
fn slow_ones_take_their_time() {
    let engine = Engine::start("");
    let start = Instant::now();
    let mut client = engine.connect();
    let response = client.exchange(&chat("X-Fault: slow-bytes=1\r\n", "hello", ""));
    let bytes = response.head.len() + response.body.len();
    assert!(start.elapsed() >= Duration::from_millis(bytes as u64 - 1), "{:?} for {bytes}", start.elapsed());
    // The next request of the connection is not slow.
    let start = Instant::now();
    client.exchange(&chat("", "hello", ""));
    assert!(start.elapsed() < Duration::from_millis(250));
    let start = Instant::now();
    client.exchange(&chat("X-Fault: delay=120\r\n", "hello", ""));
    assert!(start.elapsed() >= Duration::from_millis(120));
}

#[test]
fn an_early_413_can_be_read_by_a_client_that_still_sends() {
    let engine = Engine::start("");
    let mut client = engine.connect();
    client.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 1000000\r\nX-Fault: early-413\r\n\r\n");
    assert_eq!(client.response().unwrap().status, 413);
    client.send(&"x".repeat(100_000));
    assert_eq!(client.rest().unwrap(), "");
}

#[test]
fn an_engine_can_refuse_and_come_back() {
    let engines = Engine::start_many(2, "");
    let (control, target) = (engines.ports[0], engines.ports[1]);
    let set = |fault: &str| {
        let request = post(&format!("/debug/fault?set={fault}&port={target}"), "", "");
        assert_eq!(Client::connect(control).exchange(&request).status, 200);
    };
    let mut open = Client::connect(target);
    set("refuse");
    assert_eq!(open.rest().unwrap(), "");
    assert_eq!(TcpStream::connect(("127.0.0.1", target)).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    set("status=503");
    assert_eq!(Client::connect(target).exchange(&chat("", "x", "")).status, 503);
    set("none");
    assert_eq!(Client::connect(target).exchange(&chat("", "x", "")).status, 200);
    let unknown = post("/debug/fault?set=hang&port=1", "", "");
    assert_eq!(Client::connect(control).exchange(&unknown).status, 404);
    set("deaf");
    let mut client = Client::connect(target);
    client.stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    client.send(&chat("", "x", ""));
    assert_eq!(client.head().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_flag_can_hit_every_nth_request_and_spares_health() {
    let engine = Engine::start("--fault status=500 --fault-every 3");
    let statuses: Vec<u16> =
        (0..6).map(|_| engine.post("/v1/chat/completions", "", &chat_body("x", 1, "")).status).collect();
    assert_eq!(statuses, [200, 200, 500, 200, 200, 500]);
    assert_eq!(engine.get("/health").status, 200);
    let engine = Engine::start("--fault status=500 --fault-all");
    assert_eq!((engine.get("/health").status, engine.get("/debug/requests").status), (500, 200));
}
