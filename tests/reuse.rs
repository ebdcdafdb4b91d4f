//! Connections that are used again: one that turns out to be dead is replaced once, and nothing that may have begun is
//! started a second time.

mod support;

use std::collections::HashMap;
use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::origin::{Peer, ok};
use support::{Origin, Received, Router, completion, text};

/// A backend whose handler is told how many requests came on the connection before.
fn backend(handler: impl Fn(&mut Peer, usize) -> bool + Send + Sync + 'static) -> (Origin, Router) {
    let seen: Mutex<HashMap<usize, usize>> = Mutex::default();
    let origin = Origin::start(&["m"], move |peer, request: &Received| {
        let before = {
            let mut seen = seen.lock().expect("seen");
            let count = seen.entry(request.connection).or_default();
            *count += 1;
            *count - 1
        };
        handler(peer, before)
    });
    let router = Router::in_front_of(&[origin.url()], &["--workers", "1"]);
    (origin, router)
}

fn bodies() -> [String; 2] {
    [1, 5 << 10].map(|kib| completion("m", &text(kib as u64, 1 << 10).repeat(kib)))
}

/// Four requests of each size, one after the other; all must be answered.
fn all_answered(router: &Router, pause: Duration, what: &str) {
    for body in bodies() {
        let mut client = router.client();
        for i in 0..4 {
            let answer = client.post("/v1/completions", &body);
            assert_eq!(answer.status, 200, "{what}, {} bytes, request {i}: {}", body.len(), answer.body_text());
            std::thread::sleep(pause);
        }
    }
}

fn first_byte(peer: &mut Peer) -> bool {
    peer.stream.read(&mut [0; 1]).is_ok()
}

#[test]
fn an_end_right_after_each_answer_costs_nobody_a_request() {
    let (origin, router) = backend(|peer, _| {
        peer.send(ok("{}"));
        false
    });
    all_answered(&router, Duration::ZERO, "an end after each answer");
    assert_eq!(origin.count(), 8);
}

#[test]
fn an_end_or_a_reset_at_the_next_requests_first_byte_costs_nobody_a_request() {
    let (origin, router) = backend(|peer, _| peer.send(ok("{}")) && first_byte(peer) && peer.reset());
    all_answered(&router, Duration::ZERO, "a reset at the first byte");
    assert_eq!(origin.count(), 8);
    let (_origin, router) = backend(|peer, _| {
        peer.send(ok("{}"));
        first_byte(peer);
        false
    });
    all_answered(&router, Duration::ZERO, "an end at the first byte");
}

#[test]
fn an_idle_limit_that_passes_when_the_next_request_comes_costs_nobody_a_request() {
    let limit = Duration::from_millis(30);
    let (_origin, router) = backend(move |peer, _| {
        peer.send(ok("{}"));
        let _ = peer.stream.set_read_timeout(Some(limit));
        let quiet = matches!(peer.stream.peek(&mut [0; 1]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock);
        let _ = peer.stream.set_read_timeout(None);
        !quiet
    });
    all_answered(&router, limit, "an idle limit as long as the pause");
}

#[test]
fn a_reused_connection_that_ends_after_the_whole_request_is_replaced_once() {
    for resets in [false, true] {
        let (origin, router) = backend(move |peer, before| match before {
            0 => peer.send(ok("{}")),
            _ if resets => peer.reset(),
            _ => false,
        });
        all_answered(&router, Duration::ZERO, "an end instead of the second answer");
        // All but the first are read on the pooled connection, not answered, and read once more on a fresh one.
        assert_eq!(origin.count(), 8 + 7, "reset {resets}");
    }
}

#[test]
fn a_fresh_connection_that_ends_without_an_answer_is_502_and_nothing_is_sent_again() {
    for resets in [false, true] {
        let (origin, router) = backend(move |peer, _| if resets { peer.reset() } else { false });
        for body in bodies() {
            origin.forget();
            let answer = router.post("/v1/completions", &body);
            assert_eq!((answer.status, answer.error_code().as_str()), (502, "backend_failed"));
            assert_eq!(origin.count(), 1, "reset {resets}");
        }
    }
}

#[test]
fn the_replacement_of_a_dead_connection_is_not_replaced_again() {
    let answered = AtomicUsize::new(0);
    let (origin, router) = backend(move |peer, _| answered.fetch_add(1, Ordering::SeqCst) == 0 && peer.send(ok("{}")));
    let mut client = router.client();
    assert_eq!(client.post("/v1/completions", &completion("m", "x")).status, 200);
    let second = client.post("/v1/completions", &completion("m", "x"));
    assert_eq!((second.status, second.error_code().as_str()), (502, "backend_failed"));
    assert_eq!(origin.count(), 3, "once on the pooled connection, once on a fresh one");
}

#[test]
fn after_one_byte_of_an_answer_nothing_is_sent_again() {
    let parts = ["H", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 103 Early Hints\r\n\r\nHT"];
    let round = Arc::new(AtomicUsize::new(0));
    let now = Arc::clone(&round);
    let (origin, router) = backend(move |peer, before| {
        if before == 0 {
            return peer.send(ok("{}"));
        }
        let round = now.load(Ordering::SeqCst);
        peer.send(parts[round / 2]);
        // Read before a reset could drop it.
        std::thread::sleep(Duration::from_millis(30));
        if round.is_multiple_of(2) { peer.reset() } else { false }
    });
    for (number, part) in (0..8).map(|i| (i, parts[i / 2])) {
        round.store(number, Ordering::SeqCst);
        origin.forget();
        let mut client = router.client();
        assert_eq!(client.post("/v1/completions", &completion("m", "x")).status, 200);
        let second = client.post("/v1/completions", &completion("m", "x"));
        assert_eq!((second.status, second.error_code().as_str()), (502, "backend_failed"), "{part:?}");
        assert_eq!(origin.count(), 2, "{part:?}");
    }
}
