//! A client that goes away, by an end or by a reset, before or within its answer: its backend's work ends at once, its
//! connection is not used again, and nobody else notices.

mod support;

use std::time::{Duration, Instant};

use support::origin::ok;
use support::{Client, Origin, Router, chat, completion, eventually};

const SSE: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Holds a request for /v1/chat/completions; answers others; ticks on /ticks until its reader leaves.
fn backend() -> Origin {
    Origin::start(&["m"], |peer, request| {
        if request.head.contains("/ticks") {
            peer.send(SSE);
            while peer.send("9\r\ndata: t\n\n\r\n") {
                std::thread::sleep(Duration::from_millis(10));
            }
            return false;
        }
        if !request.head.contains("/v1/chat/completions") {
            return peer.send(ok("{}"));
        }
        if request.head.contains("X-Streaming") {
            peer.send(format!("{SSE}9\r\ndata: 1\n\n\r\n"));
        }
        peer.wait_for_end();
        false
    })
}

fn leave(mut client: Client, by: &str) {
    match by {
        "reset" => client.reset(),
        "close" => drop(client),
        "half-close" => {
            client.half_close();
            let rest = client.read_to_end();
            assert!(!rest.ends_with(b"0\r\n\r\n"), "a cancelled answer looks complete");
        }
        other => panic!("no way to leave: {other}"),
    }
}

#[test]
fn a_client_that_leaves_ends_its_backends_work_and_nothing_else() {
    let origin = backend();
    // One worker: all of it happens on one thread.
    let router = Router::in_front_of(&[origin.url()], &["--workers", "1"]);
    let mut other = router.client();
    other.send("GET /ticks HTTP/1.1\r\nHost: t\r\n\r\n").until(b"data: t\n\n");
    for (number, (by, streaming)) in [
        ("reset", false),
        ("close", false),
        ("half-close", false),
        ("reset", true),
        ("close", true),
        ("half-close", true),
    ]
    .into_iter()
    .enumerate()
    {
        let mut client = router.client();
        let fields = if streaming { "X-Streaming: 1\r\n" } else { "" };
        client.send_post("/v1/chat/completions", &chat("m", "x"), fields);
        if streaming {
            client.until(b"data: 1\n\n");
        }
        let sent = || origin.received().iter().filter(|r| r.head.contains("chat")).count();
        eventually("the backend has it", || sent() == number + 1);
        let held = origin.received().iter().rfind(|r| r.head.contains("chat")).map(|r| r.connection);
        let left = Instant::now();
        leave(client, by);
        eventually("the backend sees the end", || origin.gone().len() == number + 1);
        let took = origin.gone()[number].duration_since(left);
        assert!(took < Duration::from_millis(500), "{by}, streaming {streaming}: after {took:?}");
        assert_eq!(router.post("/v1/completions", &completion("m", "next")).status, 200);
        let next = origin.received().pop().map(|r| r.connection);
        assert_ne!(next, held, "{by}: the connection is used again");
        other.until(b"data: t\n\n");
    }
    let aborts =
        format!("vllm:request_errors_total{{server=\"{}\",model=\"m\",error_type=\"client_gone\"}}", origin.url());
    eventually("all are counted", || router.metric(&aborts) == 6.0);
    drop(other);
    eventually("no load is left", || router.engines().contains("\"in_flight\":0"));
}

#[test]
fn a_client_that_leaves_within_its_own_request_sends_nothing_on() {
    let origin = backend();
    let router = Router::in_front_of(&[origin.url()], &[]);
    let body = chat("m", &support::text(1, 5_000));
    let whole =
        format!("POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let in_chunks = "POST /any HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n";
    for by in ["reset", "close", "half-close"] {
        for bytes in [&whole[..10], &whole[..60], &whole[..whole.len() - 1], in_chunks] {
            let mut client = router.client();
            client.send(bytes);
            std::thread::sleep(Duration::from_millis(10));
            leave(client, by);
        }
    }
    assert_eq!(router.post("/v1/completions", &completion("m", "next")).status, 200);
    assert_eq!(origin.canonical().len(), 1, "a request that is not whole reaches nobody");
}
