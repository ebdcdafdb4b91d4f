//! Answers that two readers could take in two ways, or that end where they should not. The client gets 502, or sees its
//! answer break; no byte behind an answer reaches anybody, and the connection that brought it is never used again.

mod support;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use support::origin::ok;
use support::{Client, Origin, Router, chat, completion, eventually};

/// A backend that gives the answer which is set at the moment, and then waits for its next request.
struct Stage {
    origin: Origin,
    router: Router,
    answer: Arc<Mutex<Vec<u8>>>,
}

impl Stage {
    fn new() -> Self {
        let answer = Arc::new(Mutex::new(Vec::new()));
        let given = Arc::clone(&answer);
        let origin = Origin::start(&["m"], move |peer, _| {
            let bytes = given.lock().expect("answer").clone();
            peer.send(bytes)
        });
        // One worker, so that the next request would find the connection of a bad answer if it were kept.
        let router = Router::in_front_of(&[origin.url()], &["--workers", "1"]);
        Stage { origin, router, answer }
    }

    fn set(&self, bytes: impl AsRef<[u8]>) {
        *self.answer.lock().expect("answer") = bytes.as_ref().to_vec();
    }

    fn ask(&self) -> Client {
        let mut client = self.router.client();
        client.send_post("/v1/completions", &completion("m", "x"), "");
        client
    }

    /// The next request, of anybody, gets its own answer, on a connection that never brought a bad one.
    fn the_next_is_clean(&self, what: &str) {
        let bad = self.origin.received().iter().map(|r| r.connection).max();
        self.set(ok("{\"clean\":1}"));
        let next = self.ask().response();
        assert_eq!((next.status, next.body_text().as_str()), (200, "{\"clean\":1}"), "after {what:?}");
        let used = self.origin.received().last().map(|r| r.connection);
        assert_ne!(used, bad, "the connection of {what:?} is used again");
        self.origin.forget();
    }

    /// The answer is refused before anything of it was sent.
    fn is_502(&self, answer: &[u8]) {
        let what = String::from_utf8_lossy(&answer[..answer.len().min(200)]);
        self.set(answer);
        let mut client = self.ask();
        let got = client.response();
        assert_eq!((got.status, got.error_code().as_str()), (502, "backend_bad_response"), "{what:?}: {}", got.head);
        assert!(!got.body_text().contains("evil") && !got.head.contains("evil"), "{what:?}");
        assert_eq!(client.get("/version").status, 200, "the client's connection goes on after {what:?}");
        assert_eq!(self.origin.count(), 1, "{what:?} was asked for twice");
        self.the_next_is_clean(&what);
    }
}

fn chunked(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}")
}

#[test]
fn an_answer_with_contradictory_or_invalid_lengths_is_502() {
    let stage = Stage::new();
    for fields in [
        "Content-Length: 6\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 6",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: +5",
        "Content-Length: -1",
        "Content-Length: 5, 5",
        "Content-Length: 0x5",
        "Content-Length: ",
        "Content-Length: 18446744073709551616",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: \"chunked\"",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding : chunked",
        "Content-Length\t: 5",
        "X: y\r\n Transfer-Encoding: chunked",
        "X: a\0b",
        "X: a\rb",
        "no colon",
        "X: y\nContent-Length: 5",
    ] {
        stage.is_502(format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n0\r\n\r\nevil").as_bytes());
    }
    stage.is_502(b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    stage.is_502(b"HTTP/1.1 200 OK\nContent-Length: 4\n\nevil");
}

#[test]
fn a_head_that_is_none_or_too_large_is_502() {
    let stage = Stage::new();
    let many: String = (0..150).map(|i| format!("X-{i}: y\r\n")).collect();
    let large = format!("X: {}\r\n", "y".repeat(65 << 10));
    for line in [
        "evil",
        "HTTP/2.0 200 OK",
        "HTTP/1.1 20 OK",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1 999 OK",
        "HTTP/1.1  200 OK",
        "ICY 200 OK",
        "HTTP/1.1 +20 OK",
        " HTTP/1.1 200 OK",
        "\r\nHTTP/1.1 200 OK",
    ] {
        stage.is_502(format!("{line}\r\nContent-Length: 4\r\n\r\nevil").as_bytes());
    }
    for fields in [&many, &large] {
        stage.is_502(format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 4\r\n\r\nevil").as_bytes());
    }
    let endless = "X: y\r\n".repeat(20_000);
    stage.is_502(format!("HTTP/1.1 200 OK\r\n{endless}").as_bytes());
    let mut most: String = (0..100).map(|i| format!("X-{i}: y\r\n")).collect();
    most.push_str("Content-Length: 2\r\n\r\n{}");
    stage.set(format!("HTTP/1.1 200 OK\r\n{most}"));
    assert_eq!(stage.ask().response().field("x-99"), Some("y"));
}

#[test]
fn a_bad_first_chunk_is_502() {
    let stage = Stage::new();
    for bad in ["zz\r\n", "\r\n", "0x0\r\n\r\n", "5\nevil5\r\n", "FFFFFFFFFFFFFFFF\r\nevil"] {
        stage.is_502(chunked(bad).as_bytes());
    }
}

#[test]
fn a_bad_chunk_breaks_the_answer_that_has_begun() {
    let bad: Arc<Mutex<String>> = Arc::default();
    let go_on = Arc::new(AtomicBool::new(false));
    let (given, may) = (Arc::clone(&bad), Arc::clone(&go_on));
    let origin = Origin::start(&["m"], move |peer, _| {
        peer.send(chunked("4\r\ngood\r\n"));
        eventually("the client has the first chunk", || may.swap(false, Ordering::SeqCst));
        let bad = given.lock().expect("answer").clone();
        peer.send(bad)
    });
    let router = Router::in_front_of(&[origin.url()], &["--workers", "1"]);
    for answer in [
        "FFFFFFFFFFFFFFFF\r\nevil",
        "10000000000000005\r\nevil",
        "123x\r\nevil",
        "0x5\r\nevil5",
        "-1\r\nevil",
        "\r\nevil",
        ";x\r\nevil",
        " \r\nevil",
        "00000000000000000000005\r\nevil5\r\n0\r\n\r\n",
        "5\nevil5\r\n0\r\n\r\n",
        "5;a\nb\r\nevil5\r\n0\r\n\r\n",
        "5 ;\rx\r\nevil5\r\n0\r\n\r\n",
        "0\r\nevil\r\n\r\n",
        "0\r\n evil: x\r\n\r\n",
        "0\r\nevil: x\n\r\n",
        &format!("5;x={}\r\nevil5\r\n", "y".repeat(100 << 10)),
        &format!("0\r\nX: {}\r\n\r\n", "y".repeat(100 << 10)),
    ] {
        *bad.lock().expect("answer") = answer.to_owned();
        let mut client = router.client();
        client.send_post("/v1/completions", &completion("m", "x"), "").until(b"good\r\n");
        go_on.store(true, Ordering::SeqCst);
        let rest = client.read_to_end();
        assert!(rest.is_empty(), "{:?}: {:?}", &answer[..answer.len().min(40)], String::from_utf8_lossy(&rest));
    }
    let connections: HashSet<_> = origin.received().iter().map(|r| r.connection).collect();
    assert_eq!(connections.len(), 17, "each bad answer ends its connection, and none is asked for twice");
    assert_eq!(origin.count(), 17);
}

#[test]
fn nothing_behind_an_answer_reaches_anybody() {
    let stage = Stage::new();
    let evil = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    for (answer, status, body) in [
        (ok("{}"), 200, "{}"),
        (chunked("2\r\n{}\r\n0\r\n\r\n"), 200, "{}"),
        (chunked("2\r\n{}\r\n0\r\nX-Trailer: evil\r\n\r\n"), 200, "{}"),
        ("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n".to_owned(), 204, ""),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n".to_owned(), 304, ""),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned(), 200, ""),
    ] {
        for surplus in [evil, "x", "\r\n"] {
            stage.set(format!("{answer}{surplus}"));
            let mut client = stage.ask();
            let got = client.response();
            assert_eq!((got.status, got.body_text().as_str()), (status, body), "{answer:?}");
            assert!(client.stays_open(), "{answer:?}: more came");
            stage.the_next_is_clean(&answer);
        }
    }
    stage.set(format!("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{evil}"));
    let mut client = stage.router.client();
    let head = client.send("HEAD /v1/x HTTP/1.1\r\nHost: t\r\n\r\n").response_to("HEAD");
    assert_eq!((head.status, head.field("content-length")), (200, Some("5")));
    assert!(client.stays_open());
    stage.the_next_is_clean("a body behind the answer to HEAD");
}

#[test]
fn bytes_that_come_after_an_answer_was_relayed_are_not_the_next_ones() {
    let origin = Origin::start(&["m"], |peer, _| {
        peer.send(ok("{}"));
        std::thread::sleep(std::time::Duration::from_millis(20));
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
    });
    let router = Router::in_front_of(&[origin.url()], &["--workers", "1"]);
    for i in 0..5 {
        assert_eq!(router.post("/v1/completions", &completion("m", "x")).body_text(), "{}", "request {i}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

#[test]
fn a_reset_or_an_end_within_an_answer_is_never_a_clean_end() {
    let sse = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let events = "9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n";
    let fixed = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n";
    let cases = [
        ("reset in a stream", format!("{sse}{events}"), true),
        ("end in a stream", format!("{sse}{events}"), false),
        ("end within a chunk", format!("{sse}{events}9\r\ndata"), false),
        ("end within a size", format!("{sse}{events}9"), false),
        ("end before the last line", format!("{sse}{events}0\r\n"), false),
        ("reset before the last line", format!("{sse}{events}0\r\n"), true),
        ("end of a short body", format!("{fixed}{}", "x".repeat(400)), false),
        ("reset in a short body", format!("{fixed}{}", "x".repeat(400)), true),
        ("reset of a body without a length", "HTTP/1.1 200 OK\r\n\r\nsome".to_owned(), true),
    ];
    let answers = cases.clone();
    let origin = Origin::start(&["m"], move |peer, request| {
        let (_, answer, reset) = &answers[request.fields("x-case")[0].parse::<usize>().expect("a number")];
        peer.send(answer);
        // What has been sent must have been read before a reset, which would drop it.
        std::thread::sleep(std::time::Duration::from_millis(50));
        if *reset { peer.reset() } else { false }
    });
    let router = Router::in_front_of(&[origin.url()], &[]);
    for (number, (case, ..)) in cases.iter().enumerate() {
        let mut client = router.client();
        client.send_post("/v1/chat/completions", &chat("m", "x"), &format!("X-Case: {number}\r\n"));
        let got = client.response();
        assert_eq!(got.status, 200, "{case}");
        assert!(!got.complete, "{case}: looks complete");
        assert!(!got.body_text().contains("[DONE]"), "{case}");
        assert!(client.ends_silently(), "{case}: kept alive");
        assert_eq!(origin.count(), number + 1, "{case}: sent again");
    }
    let errors = format!("vllm:request_errors_total{{server=\"{}\",model=\"m\",error_type=\"broken\"}}", origin.url());
    eventually("each is counted against the backend", || router.metric(&errors) == cases.len() as f64);
}

#[test]
fn a_client_without_chunks_gets_a_reset_for_an_answer_that_broke() {
    let origin = Origin::start(&["m"], |peer, _| {
        peer.send(chunked("4\r\npart\r\n"));
        std::thread::sleep(std::time::Duration::from_millis(50));
        false
    });
    let router = Router::in_front_of(&[origin.url()], &[]);
    for _ in 0..20 {
        let mut client = router.client();
        client.send("GET /v1/x HTTP/1.0\r\n\r\n");
        assert_eq!(client.head().0, 200);
        client.until(b"part");
        let mut byte = [0; 1];
        let end = std::io::Read::read(&mut client.stream, &mut byte);
        assert!(end.is_err(), "the end looks like an ordinary one: {end:?}");
    }
}

#[test]
fn interim_answers_pass_in_order_and_an_unasked_switch_is_502() {
    let origin = Origin::start(&["m"], |peer, request| {
        let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n\
                       HTTP/1.1 103 Early Hints\r\nLink: </b>\r\nConnection: X-Hop\r\nX-Hop: 1\r\nContent-Length: 5\r\n\r\n";
        if request.head.contains("X-Switch") {
            peer.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: foo\r\n\r\nevil")
        } else {
            peer.send(format!("{interim}{}", ok("{}")))
        }
    });
    let router = Router::in_front_of(&[origin.url()], &["--workers", "1"]);
    let body = completion("m", "x");
    let mut client = router.client();
    client.send_post("/v1/completions", &body, "");
    let hints: Vec<_> = (0..3).map(|_| client.response_to("POST")).collect();
    assert_eq!(hints.iter().map(|h| h.status).collect::<Vec<_>>(), [103, 102, 103]);
    assert_eq!((hints[0].field("link"), hints[2].field("link")), (Some("</a>"), Some("</b>")));
    assert_eq!((hints[2].field("x-hop"), hints[2].field("content-length")), (None, None), "{}", hints[2].head);
    assert_eq!(client.response().body_text(), "{}");
    let mut old = router.client();
    old.send(format!("POST /v1/completions HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    assert_eq!(old.head().0, 200, "a client of HTTP/1.0 knows no interim answers");
    assert_eq!(old.read_to_end(), b"{}");
    let mut client = router.client();
    let switched = client.send_post("/v1/completions", &body, "X-Switch: 1\r\n").response();
    assert_eq!((switched.status, switched.error_code().as_str()), (502, "backend_bad_response"));
    assert_eq!(client.post("/v1/completions", &body).status, 200);
    let connections: HashSet<_> = origin.received().iter().map(|r| r.connection).collect();
    assert_eq!(connections.len(), 2, "the connection that switched is closed");
}
