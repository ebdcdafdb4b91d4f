//! Large answers of known length: spliced where that is asked for, complete, cut where they must be, and without a trace
//! afterwards.

mod support;

use std::sync::Arc;
use std::time::Duration;

use support::leaks::per_worker;
use support::origin::{Peer, ok};
use support::{AtRest, Origin, RESTS_SOON, Router, completion, eventually, text};

const COMPLETIONS: &str = "/v1/completions";
const BYTES: usize = 3 << 20;

fn spliced(router: &Router) -> f64 {
    per_worker(router, "trieway_worker_spliced_bytes_total").iter().sum()
}

fn busy_pipes(router: &Router) -> f64 {
    router.metric("trieway_worker_splice_pipes{worker=\"0\",state=\"busy\"}")
}

fn pipes(router: &Router) -> f64 {
    per_worker(router, "trieway_worker_splice_pipes").iter().sum()
}

/// A backend whose every answer is `answer`.
fn answering(answer: String) -> Origin {
    let answer = Arc::new(answer);
    Origin::start(&["m"], move |peer, _| peer.send(answer.as_bytes()))
}

fn one_worker(origin: &Origin, flags: &[&str]) -> Router {
    Router::in_front_of(&[origin.url()], &[&["--workers", "1"], flags, &RESTS_SOON].concat())
}

#[test]
fn a_large_answer_arrives_whole_and_is_counted_by_either_way() {
    let body = text(1, BYTES);
    let origin = answering(ok(&body));
    for (mode, some) in [("auto", true), ("never", false)] {
        let router = one_worker(&origin, &["--splice", mode]);
        let at_rest = AtRest::of(&router);
        let mut client = router.client();
        for _ in 0..5 {
            let response = client.post(COMPLETIONS, &completion("m", "x"));
            assert!(response.complete && response.body == body.as_bytes(), "--splice {mode}");
        }
        let counted = spliced(&router);
        // What came with the head is copied: one small buffer at most.
        let least = 5.0 * (BYTES - (16 << 10)) as f64;
        assert_eq!(counted >= least && counted <= 5.0 * BYTES as f64, some, "--splice {mode}: {counted}");
        assert_eq!(counted > 0.0, some);
        let relayed =
            router.metric(&format!("trieway_response_bytes_total{{server=\"{}\",model=\"m\"}}", origin.url()));
        assert_eq!(relayed, 5.0 * BYTES as f64, "--splice {mode}");
        drop(client);
        at_rest.is_back(&router);
        eventually("no pipe is left", || pipes(&router) == 0.0);
    }
}

#[test]
fn small_answers_and_chunked_ones_are_copied() {
    let large = text(2, 1 << 20);
    let chunked =
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{large}\r\n0\r\n\r\n", large.len());
    for answer in [ok(&text(3, 100_000)), chunked] {
        let origin = answering(answer);
        let router = one_worker(&origin, &[]);
        assert!(router.post(COMPLETIONS, &completion("m", "x")).complete);
        assert_eq!(spliced(&router), 0.0);
    }
}

#[test]
fn what_follows_the_body_stays_with_its_sender() {
    let body = text(4, BYTES);
    // A second answer right behind the first is nobody's: the connection must not serve again.
    let both = format!("{}{}", ok(&body), ok("stolen"));
    let origin = answering(both);
    let router = one_worker(&origin, &[]);
    let mut client = router.client();
    let request = completion("m", "x");
    let head = |n: usize| format!("POST {COMPLETIONS} HTTP/1.1\r\nHost: t\r\nContent-Length: {n}\r\n\r\n");
    // Two requests in one write: the second waits behind the first's splice.
    client.send(format!("{}{request}{}{request}", head(request.len()), head(request.len())));
    for _ in 0..2 {
        let response = client.response();
        assert!(response.complete && response.body == body.as_bytes());
    }
    assert!(client.stays_open());
    assert!(origin.received().iter().all(|r| r.body == request.as_bytes()));
    assert_ne!(origin.received()[0].connection, origin.received()[1].connection);
}

#[test]
fn an_answer_that_breaks_off_breaks_off_for_the_client_and_its_pipe_is_not_kept_full() {
    let whole = ok(&text(5, BYTES));
    let cut = whole[..BYTES / 2].to_owned();
    let origin = Origin::start(&["m"], move |peer, request| match request.head.contains("X-Cut") {
        true => {
            peer.send(&cut);
            false
        }
        false => peer.send(&whole),
    });
    let router = one_worker(&origin, &[]);
    let at_rest = AtRest::of(&router);
    for _ in 0..40 {
        let mut client = router.client();
        let response = client.send_post(COMPLETIONS, &completion("m", "x"), "X-Cut: 1\r\n").response();
        assert!(response.status == 200 && !response.complete);
        assert!(response.body.len() > BYTES / 3);
    }
    let response = router.post(COMPLETIONS, &completion("m", "x"));
    assert!(response.complete && response.body == text(5, BYTES).as_bytes());
    assert!(spliced(&router) > 0.0);
    at_rest.is_back(&router);
}

#[test]
fn clients_that_leave_or_stall_end_the_backends_answer_and_leave_no_pipe() {
    let body = text(6, 64 << 20);
    let answer = Arc::new(ok(&body));
    let origin = Origin::start(&["m"], move |peer: &mut Peer, _| {
        peer.send(answer.as_bytes());
        peer.wait_for_end();
        false
    });
    let router = one_worker(&origin, &["--client-write-timeout-seconds", "0.5"]);
    let at_rest = AtRest::of(&router);
    // More than there are pipes: those beyond are copied.
    let mut stalled: Vec<_> = (0..20)
        .map(|_| {
            let mut client = router.client();
            client.send_post(COMPLETIONS, &completion("m", "x"), "");
            client
        })
        .collect();
    eventually("every pipe is in use", || busy_pipes(&router) == 16.0);
    stalled.truncate(10);
    eventually("all backends saw the end", || origin.gone().len() == 20);
    eventually("no pipe is in use", || busy_pipes(&router) == 0.0);
    drop(stalled);
    at_rest.is_back(&router);
}

#[test]
fn a_backend_that_falls_silent_within_a_spliced_answer_is_not_waited_for() {
    let half = ok(&text(7, BYTES))[..BYTES / 2].to_owned();
    let origin = Origin::start(&["m"], move |peer, _| {
        peer.send(&half);
        peer.wait_for_end();
        false
    });
    let router = one_worker(&origin, &["--between-bytes-timeout-seconds", "0.3"]);
    let begun = std::time::Instant::now();
    let response = router.post(COMPLETIONS, &completion("m", "x"));
    assert!(!response.complete && spliced(&router) > 0.0);
    assert!(begun.elapsed() < Duration::from_secs(5));
    let server = origin.url();
    let sample =
        |kind: &str| format!("vllm:request_errors_total{{server=\"{server}\",model=\"m\",error_type=\"{kind}\"}}");
    assert_eq!(router.metric(&sample("between_bytes_timeout")), 1.0);
}
