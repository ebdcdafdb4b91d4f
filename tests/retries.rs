//! One request never ends several backends: what one of them may have read goes to no other one, and to the same one at most
//! twice. (`src/data/retry.rs` has the table.)

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use support::origin::{Peer, ok};
use support::{Origin, Received, Router, completion, text};

const ENGINES: usize = 4;

/// Connections are kept for as long as a test lasts, on a busy machine, too.
const KEEP: [&str; 2] = ["--upstream-idle-timeout-seconds", "300"];

fn is_deadly(request: &Received) -> bool {
    request.body.windows(6).any(|w| w == b"deadly")
}

/// Engines that answer, and do `fails` with a deadly request; the router has used a connection to each of them before.
fn fleet(fails: impl Fn(&mut Peer) -> bool + Send + Sync + 'static, flags: &[&str]) -> (Vec<Origin>, Router) {
    let fails = Arc::new(fails);
    let engines: Vec<_> = (0..ENGINES)
        .map(|_| {
            let fails = Arc::clone(&fails);
            Origin::start(&["m"], move |peer, request| match is_deadly(request) {
                true => fails(peer),
                false => peer.send(ok("{}")),
            })
        })
        .collect();
    let urls: Vec<_> = engines.iter().map(Origin::url).collect();
    let flags = [&["--workers", "1", "--routing-logic", "roundrobin"][..], flags].concat();
    let router = Router::in_front_of(&urls, &flags);
    let mut client = router.client();
    while engines.iter().any(|engine| engine.count() == 0) {
        assert_eq!(client.post("/v1/completions", &completion("m", "x")).status, 200);
    }
    (engines, router)
}

/// How often each engine has read a deadly request, the most first.
fn read(engines: &[Origin]) -> Vec<usize> {
    let mut counts: Vec<_> =
        engines.iter().map(|engine| engine.received().iter().filter(|r| is_deadly(r)).count()).collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts
}

fn deadly(bytes: usize) -> String {
    completion("m", &format!("{}deadly", text(1, bytes)))
}

#[test]
fn an_engine_that_dies_of_a_request_on_a_reused_connection_is_the_only_one() {
    for bytes in [100, 3 << 20] {
        let (engines, router) = fleet(Peer::die, &KEEP);
        let answer = router.post("/v1/completions", &deadly(bytes));
        assert_eq!((answer.status, answer.error_code().as_str()), (502, "backend_unreachable"), "{bytes} bytes");
        assert_eq!(read(&engines), [1, 0, 0, 0], "{bytes} bytes");
        assert_eq!(router.post("/v1/completions", &completion("m", "x")).status, 200, "the others serve");
    }
}

#[test]
fn an_engine_that_dies_of_a_request_on_a_fresh_connection_is_the_only_one() {
    // No connection is kept, so each is fresh.
    let (engines, router) = fleet(Peer::die, &["--upstream-idle-timeout-seconds", "0.001"]);
    std::thread::sleep(std::time::Duration::from_millis(200));
    let answer = router.post("/v1/completions", &deadly(100));
    assert_eq!((answer.status, answer.error_code().as_str()), (502, "backend_failed"));
    assert_eq!(read(&engines), [1, 0, 0, 0]);
}

#[test]
fn a_request_without_an_answer_is_read_twice_at_most_and_by_one_engine() {
    for resets in [false, true] {
        let (engines, router) = fleet(move |peer| if resets { peer.reset() } else { false }, &KEEP);
        let answer = router.post("/v1/completions", &deadly(100));
        assert_eq!((answer.status, answer.error_code().as_str()), (502, "backend_failed"));
        assert_eq!(read(&engines), [2, 0, 0, 0], "resets: {resets}");
    }
}

#[test]
fn an_engine_that_is_silent_gets_the_request_once() {
    let silent = |peer: &mut Peer| {
        peer.wait_for_end();
        false
    };
    let (engines, router) = fleet(silent, &["--first-byte-timeout-seconds", "0.3"]);
    let answer = router.post("/v1/completions", &deadly(100));
    assert_eq!((answer.status, answer.error_code().as_str()), (504, "backend_timeout"));
    assert_eq!(read(&engines), [1, 0, 0, 0]);
}

#[test]
fn a_request_that_nobody_has_read_goes_to_the_next_engine() {
    let tried = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&tried);
    let (mut engines, router) = fleet(
        move |peer| {
            counts.fetch_add(1, SeqCst);
            peer.send(ok("{}"))
        },
        &["--max-instance-failover-reroute-attempts", "3", "--static-backend-health-check-interval", "3600"],
    );
    // Three are gone, and the router finds that out by itself.
    for engine in engines.drain(1..) {
        engine.kill();
    }
    for round in 1..=4 {
        assert_eq!(router.post("/v1/completions", &deadly(100)).status, 200);
        assert_eq!(tried.load(SeqCst), round);
    }
}
