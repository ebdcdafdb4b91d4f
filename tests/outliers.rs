//! Backends whose requests fail: they draw no traffic, keep no prompt that they failed, and come back once they are well.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use support::engine::Engine;
use support::origin::{Peer, ok};
use support::{Origin, Router, completion, eventually, text};

type Answer = fn(&mut Peer) -> bool;

/// All that fails at once, whatever it is called.
const FAILURES: &[(&str, Answer)] = &[
    ("500", |peer| peer.send("HTTP/1.1 500 Oh\r\nContent-Length: 3\r\n\r\nbad")),
    ("a chunked 500", |peer| peer.send("HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nbad\r\n0\r\n\r\n")),
    ("a reset", Peer::reset),
    ("an early end", |peer| {
        peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n");
        false
    }),
];

/// Sends what differs for each number until it succeeds; how many tries that took.
fn tries(router: &Router, number: u64) -> usize {
    let body = completion("m", &text(number, 3_000));
    let succeeds = || {
        let mut client = router.client();
        client.send_post("/v1/completions", &body, "");
        let response = client.response();
        response.status == 200 && response.complete
    };
    (1..=9).find(|_| succeeds()).expect("a backend that is well answers")
}

/// 240 requests by four clients over four engines of which the first fails; what it got, and the most tries of a client.
fn storm(policy: &str, failure: Answer, flags: &[&str]) -> (usize, usize) {
    let bad = Origin::start(&["m"], move |peer, _| failure(peer));
    let good: Vec<Engine> = (0..3).map(|_| Engine::start(100_000, false)).collect();
    good.iter().for_each(|engine| engine.cache.lock().expect("no panic").takes = Duration::from_millis(4));
    let urls: Vec<String> = std::iter::once(bad.url()).chain(good.iter().map(|engine| engine.origin.url())).collect();
    let router = Router::in_front_of(&urls, &[&["--routing-logic", policy, "--workers", "2"], flags].concat());
    let most = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for client in 0..4 {
            let (router, most) = (&router, &most);
            scope.spawn(move || {
                for number in 0..60 {
                    most.fetch_max(tries(router, 1 + 100 * client + number), Ordering::SeqCst);
                }
            });
        }
    });
    (bad.count(), most.into_inner())
}

#[test]
fn what_fails_at_once_gets_little_and_every_client_succeeds_within_two_tries() {
    for policy in ["ttft", "prefixaware", "leastload"] {
        for (name, failure) in FAILURES {
            let (got, most_tries) = storm(policy, *failure, &[]);
            assert!(got <= 12, "{policy}, {name}: {got} requests went to the one that fails");
            assert!(most_tries <= 2, "{policy}, {name}: {most_tries} tries");
        }
    }
}

#[test]
fn policies_that_do_not_look_at_load_leave_out_what_is_ejected() {
    let ejection = ["--outlier-consecutive-errors", "3", "--outlier-base-ejection-seconds", "300"];
    let flags = [&["--session-key", "x-session"][..], &ejection].concat();
    for policy in ["roundrobin", "session"] {
        let (got, _) = storm(policy, FAILURES[0].1, &flags);
        // Four clients may be there at the same moment.
        assert!((1..=6).contains(&got), "{policy}: {got}");
    }
}

#[test]
fn without_ejection_it_goes_on_as_before() {
    let (got, _) = storm("roundrobin", FAILURES[0].1, &["--outlier-consecutive-errors", "0"]);
    assert!(got >= 60, "{got}");
}

fn explained(router: &Router) -> serde_json::Value {
    router.post("/debug/route?path=/v1/completions", &completion("m", "x")).json()
}

#[test]
fn an_ejected_backend_is_shown_and_comes_back_when_requests_find_it_well() {
    let fails = Arc::new(AtomicBool::new(true));
    let state = Arc::clone(&fails);
    let shaky = Origin::start(&["m"], move |peer, _| match state.load(Ordering::SeqCst) {
        true => peer.send("HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"),
        false => peer.send(ok("{}")),
    });
    let sound = Origin::plain();
    let flags = ["--routing-logic", "roundrobin", "--outlier-consecutive-errors", "2"];
    let ejection = ["--outlier-base-ejection-seconds", "0.5", "--outlier-max-ejection-seconds", "1"];
    let router = Router::in_front_of(&[shaky.url(), sound.url()], &[&flags[..], &ejection].concat());
    let post = || router.post("/v1/completions", &completion("m", "x")).status;
    let metric = |name: &str| router.metric(&format!("{name}{{server=\"{}\"}}", shaky.url()));
    eventually("it is ejected", || post() > 0 && metric("trieway_backend_ejected") == 1.0);
    assert!(metric("trieway_outlier_ejections_total") >= 1.0);
    assert!(router.engines().contains("\"ejected\":true"), "{}", router.engines());
    eventually("why it gets nothing is told", || {
        let explained = explained(&router);
        let others = explained["others"].as_array().expect("a list");
        _ = post();
        others.iter().any(|other| other["url"] == shaky.url() && other["why"].to_string().contains("ejected"))
    });
    eventually("the log says so", || router.log().iter().any(|line| line.contains("is ejected for")));
    fails.store(false, Ordering::SeqCst);
    eventually("it is found well", || post() == 200 && metric("trieway_backend_ejected") == 0.0);
    let before = shaky.count();
    (0..10).for_each(|_| assert_eq!(post(), 200));
    assert_eq!(shaky.count() - before, 5, "it has its turns again");
    eventually("the log says that, too", || router.log().iter().any(|line| line.contains("no longer ejected")));
}

#[test]
fn who_comes_back_from_an_ejection_gets_its_share_and_no_more() {
    let fails = Arc::new(AtomicBool::new(true));
    let state = Arc::clone(&fails);
    let shaky = Origin::start(&["m"], move |peer, _| match state.load(Ordering::SeqCst) {
        true => peer.send("HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"),
        false => peer.send(ok("{}")),
    });
    let sound = [Origin::plain(), Origin::plain()];
    let urls = [shaky.url(), sound[0].url(), sound[1].url()];
    let flags = ["--routing-logic", "prefixaware", "--outlier-consecutive-errors", "2", "--workers", "2"];
    let ejection = ["--outlier-base-ejection-seconds", "0.3", "--outlier-max-ejection-seconds", "0.3"];
    let router = Router::in_front_of(&urls, &[&flags[..], &ejection].concat());
    let post = || router.post("/v1/completions", &completion("m", "x")).status;
    let ejected = || router.metric(&format!("trieway_backend_ejected{{server=\"{}\"}}", shaky.url())) == 1.0;
    eventually("it is ejected", || post() > 0 && ejected());
    for _ in 0..300 {
        post();
    }
    fails.store(false, Ordering::SeqCst);
    eventually("it is found well", || post() == 200 && !ejected());
    let before = shaky.count();
    (0..120).for_each(|_| assert_eq!(post(), 200));
    let got = shaky.count() - before;
    assert!((20..=70).contains(&got), "{got} of 120 by three backends");
}

#[test]
fn the_last_backend_is_never_ejected_nor_is_one_for_what_clients_send_or_for_being_busy() {
    for (status, alone, counts) in [("500 Oh", true, false), ("404 No", false, false), ("503 Busy", false, false)] {
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        let origins: Vec<Origin> = (0..if alone { 1 } else { 2 })
            .map(|_| {
                let answer = answer.clone();
                Origin::start(&["m"], move |peer, _| peer.send(&answer))
            })
            .collect();
        let urls: Vec<String> = origins.iter().map(Origin::url).collect();
        let router = Router::in_front_of(&urls, &["--routing-logic", "roundrobin"]);
        for _ in 0..30 {
            assert!(status.starts_with(&router.post("/v1/completions", &completion("m", "x")).status.to_string()));
        }
        let ejections: f64 =
            urls.iter().map(|url| router.metric(&format!("trieway_outlier_ejections_total{{server=\"{url}\"}}"))).sum();
        assert_eq!(ejections > 0.0, counts, "{status}");
        assert_eq!(origins.iter().map(Origin::count).sum::<usize>(), 30, "{status}: each went to a backend");
    }
}

/// What an engine held before stays marked; only what the failed request added goes.
#[test]
fn a_failed_request_leaves_the_marks_of_those_that_succeeded_before() {
    let fails = Arc::new(AtomicBool::new(false));
    let state = Arc::clone(&fails);
    let origin = Origin::start(&["m"], move |peer, _| match state.load(Ordering::SeqCst) {
        true => peer.send("HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"),
        false => peer.send(ok("{}")),
    });
    let router = Router::in_front_of(&[origin.url()], &["--routing-logic", "prefixaware"]);
    let matched = |prompt: &str| {
        let explained = router.post("/debug/route?path=/v1/completions", &completion("m", prompt)).json();
        explained["candidates"][0]["matched_bytes"].as_u64().expect("a number")
    };
    let talk = text(1, 4_096);
    let longer = format!("{talk}{}", text(2, 4_096));
    assert_eq!(router.post("/v1/completions", &completion("m", &talk)).status, 200);
    fails.store(true, Ordering::SeqCst);
    assert_eq!(router.post("/v1/completions", &completion("m", &longer)).status, 500);
    assert_eq!(matched(&longer), 4_096);
    assert_eq!(router.post("/v1/completions", &completion("m", &text(3, 4_096))).status, 500);
    assert_eq!(matched(&text(3, 4_096)), 0);
}
