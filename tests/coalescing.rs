//! Streams whose events come faster than one a millisecond: taken together or one by one, whole either way.

mod support;

use std::time::{Duration, Instant};

use support::leaks::per_worker;
use support::origin::Peer;
use support::{Origin, Router, chat};

const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Sends `count` numbered events, each in a write of its own, that far apart.
fn stream(peer: &mut Peer, count: usize, gap: Duration) -> bool {
    let mut sent = peer.send(HEAD);
    let began = Instant::now();
    for number in 0..count {
        while began.elapsed() < gap * number as u32 {
            std::thread::sleep(gap / 4);
        }
        let event = format!("data: {number}\n\n");
        sent &= peer.send(format!("{:x}\r\n{event}\r\n", event.len()));
    }
    sent && peer.send("0\r\n\r\n")
}

fn coalesced(router: &Router) -> f64 {
    per_worker(router, "trieway_worker_coalesced_reads_total").iter().sum()
}

fn router(origin: &Origin, mode: &str) -> Router {
    Router::in_front_of(&[origin.url()], &["--coalesce", mode])
}

#[test]
fn a_fast_stream_arrives_whole_by_either_way() {
    const EVENTS: usize = 3000;
    let expected: String = (0..EVENTS).map(|number| format!("data: {number}\n\n")).collect();
    let origin = Origin::start(&["m"], |peer, _| stream(peer, EVENTS, Duration::from_micros(50)));
    for (mode, some) in [("auto", true), ("never", false)] {
        let router = router(&origin, mode);
        for _ in 0..3 {
            let response = router.post("/v1/chat/completions", &chat("m", "x"));
            assert!(response.complete && response.body == expected.as_bytes(), "--coalesce {mode}");
        }
        assert_eq!(coalesced(&router) > 0.0, some, "--coalesce {mode}: {}", coalesced(&router));
    }
}

#[test]
fn events_at_an_engines_pace_are_sent_on_as_they_come() {
    let origin = Origin::start(&["m"], |peer, _| stream(peer, 60, Duration::from_millis(4)));
    let router = router(&origin, "auto");
    assert!(router.post("/v1/chat/completions", &chat("m", "x")).complete);
    assert_eq!(coalesced(&router), 0.0);
}

#[test]
fn a_client_that_leaves_a_fast_stream_ends_it_at_the_backend() {
    let origin = Origin::start(&["m"], |peer, _| {
        peer.send(HEAD);
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until && peer.send("8\r\ndata: x\n\r\n") {}
        peer.wait_for_end();
        false
    });
    let router = router(&origin, "auto");
    let mut client = router.client();
    client.send_post("/v1/chat/completions", &chat("m", "x"), "");
    client.head();
    support::eventually("the stream is fast", || {
        client.next_chunk();
        coalesced(&router) > 3.0
    });
    drop(client);
    support::eventually("the backend's connection has ended", || !origin.gone().is_empty());
}
