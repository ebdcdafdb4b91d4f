//! `POST /debug/route`: it tells what the next request would meet with, and leaves no trace.

mod support;

use serde_json::{Value, json};
use support::{Client, Origin, Router, chat, completion, eventually, text};

const COMPLETIONS: &str = "/debug/route?path=/v1/completions";

fn explain(router: &Router, path: &str, body: &str) -> Value {
    let response = router.post(path, body);
    assert_eq!(response.status, 200, "{}", response.body_text());
    response.json()
}

fn candidate<'a>(explained: &'a Value, url: &str) -> &'a Value {
    let found = explained["candidates"].as_array().expect("a list").iter().find(|c| c["url"] == url);
    found.unwrap_or_else(|| panic!("{url} is no candidate: {explained}"))
}

fn why_not<'a>(explained: &'a Value, url: &str) -> &'a str {
    let found = explained["others"].as_array().expect("a list").iter().find(|other| other["url"] == url);
    found.and_then(|other| other["why"].as_str()).unwrap_or_else(|| panic!("{url} is not left out: {explained}"))
}

fn fleet(n: usize) -> (Vec<Origin>, Vec<String>) {
    let origins: Vec<_> = (0..n).map(|_| Origin::plain()).collect();
    let urls = origins.iter().map(Origin::url).collect();
    (origins, urls)
}

/// Everything of `/metrics` that a request to a backend changes, and time alone does not.
fn traces(router: &Router) -> Vec<String> {
    let text = router.get("/metrics").body_text();
    let own = ["trieway_worker_", "trieway_control_", "process_", "trieway_prefill_busy", "vllm:current_qps", "#"];
    text.lines().filter(|line| !own.iter().any(|prefix| line.starts_with(prefix))).map(str::to_owned).collect()
}

#[test]
fn the_holder_is_named_with_what_it_holds_and_the_request_then_goes_there() {
    let (origins, urls) = fleet(2);
    let flags = ["--workers", "1", "--static-aliases", "nick:m", "--prefix-min-match-length", "512"];
    let router = Router::in_front_of(&urls, &flags);
    let prompt = text(1, 1100);
    assert_eq!(router.post("/v1/completions", &completion("m", &prompt)).status, 200);
    let home = usize::from(origins[1].count() == 1);
    let explained = explain(&router, COMPLETIONS, &completion("nick", &format!("{prompt} and more")));
    assert_eq!((&explained["model"], &explained["policy"]), (&json!("m"), &json!("prefixaware")));
    assert_eq!(explained["key"], json!({"bytes": 1109, "chunks": 8, "chunk_bytes": 128}));
    assert_eq!(explained["chosen"], json!({"url": urls[home], "reason": "prefix"}));
    let holder = candidate(&explained, &urls[home]);
    assert_eq!((&holder["matched_bytes"], &holder["fresh_bytes"]), (&json!(1024), &json!(1024)), "{explained}");
    assert_eq!((&holder["requests_in_window"], &holder["in_flight"]), (&json!(1), &json!(0)), "{explained}");
    assert_eq!(candidate(&explained, &urls[1 - home])["matched_bytes"], 0);
    assert_eq!(explained["others"], json!([]));
    let chat = explain(&router, "/debug/route", &chat("m", &prompt));
    assert_eq!(chat["path"], "/v1/chat/completions");
    assert_eq!(
        chat["chosen"]["url"],
        urls[1 - home],
        "another kind of prompt: nobody holds it, and the window decides"
    );
    assert_eq!(chat["chosen"]["reason"], "qps");
}

#[test]
fn it_leaves_no_trace() {
    for policy in ["prefixaware", "roundrobin", "leastload", "ttft"] {
        let (origins, urls) = fleet(3);
        let router = Router::in_front_of(
            &urls,
            &["--workers", "1", "--routing-logic", policy, "--shadow-policy", "prefixaware"],
        );
        assert_eq!(router.post("/v1/completions", &completion("m", &text(1, 600))).status, 200);
        let before = traces(&router);
        for i in 0..20 {
            explain(&router, COMPLETIONS, &completion("m", &text(i, 600)));
        }
        assert_eq!(origins.iter().map(Origin::count).sum::<usize>(), 1, "{policy}: nothing is sent");
        let after = traces(&router);
        let changed: Vec<_> = after.iter().filter(|line| !before.contains(line)).collect();
        assert!(changed.is_empty(), "{policy}: {changed:?}");
        assert!(after.len() > 50, "{policy}: this test looks in the wrong places");
    }
}

#[test]
fn no_turn_of_a_rotation_is_taken() {
    let (_origins, urls) = fleet(3);
    let router = Router::in_front_of(&urls, &["--workers", "1", "--routing-logic", "roundrobin"]);
    for _ in 0..6 {
        let told = explain(&router, COMPLETIONS, &completion("m", "x"));
        assert_eq!(explain(&router, COMPLETIONS, &completion("m", "x"))["chosen"], told["chosen"]);
        let url = told["chosen"]["url"].as_str().expect("a URL");
        let sent = format!("trieway_requests_total{{server=\"{url}\",model=\"m\",reason=\"roundrobin\"}}");
        let before = router.metric(&sent);
        assert_eq!(router.post("/v1/completions", &completion("m", "x")).status, 200);
        assert_eq!(router.metric(&sent) - before, 1.0, "the next request goes where it said: {told}");
    }
}

#[test]
fn who_is_no_candidate_is_named_with_the_reason() {
    let gated = Origin::start(&["m"], |peer, _| {
        peer.wait_for_end();
        false
    });
    let (other_model, asleep) = (Origin::start(&["x"], |_, _| true), Origin::plain());
    asleep.say_sleeping(true);
    let (dying, draining) = (Origin::plain(), Origin::plain());
    let urls: Vec<_> = [&gated, &other_model, &asleep, &dying, &draining].iter().map(|o| o.url()).collect();
    let flags = ["--workers", "1", "--max-inflight", "1", "--drain-backends", &urls[4]];
    let flags = [&flags[..], &["--static-backends", &urls.join(","), "--static-backend-health-check-interval", "1"]];
    let router = Router::start(&flags.concat());
    eventually("all are known", || {
        let engines = router.engines();
        engines.matches("\"state\":\"up\"").count() == 3 && engines.contains("sleeping")
    });
    dying.kill();
    eventually("it is down", || router.engines().contains("\"state\":\"down\""));
    let mut held = Client::connect(router.address);
    held.send_post("/v1/completions", &completion("m", "x"), "");
    eventually("it is there", || gated.count() == 1);
    let explained = explain(&router, COMPLETIONS, &completion("m", "x"));
    assert_eq!((&explained["chosen"], &explained["candidates"]), (&Value::Null, &json!([])), "{explained}");
    for (url, why) in urls.iter().zip(["--max-inflight", "does not serve", "sleeps", "is down", "is draining"]) {
        assert!(why_not(&explained, url).contains(why), "{url}: {explained}");
    }
    let any = explain(&router, "/debug/route?path=/v1/audio/transcriptions", "not JSON at all");
    assert_eq!((&any["model"], &any["chosen"]), (&Value::Null, &json!({"url": urls[1], "reason": "leastload"})));
}

#[test]
fn ttft_tells_the_seconds_that_it_expects() {
    let (origins, urls) = fleet(2);
    let router = Router::in_front_of(&urls, &["--workers", "1", "--routing-logic", "ttft"]);
    let prompt = text(3, 20_000);
    assert_eq!(router.post("/v1/completions", &completion("m", &prompt)).status, 200);
    let home = usize::from(origins[1].count() == 1);
    let explained = explain(&router, COMPLETIONS, &completion("m", &prompt));
    assert_eq!(explained["chosen"], json!({"url": urls[home], "reason": "ttft"}), "{explained}");
    let expected = |url: &str| candidate(&explained, url)["ttft"]["expected_seconds"].as_f64().expect("seconds");
    assert!(expected(&urls[home]) > 0.0 && expected(&urls[home]) * 10.0 < expected(&urls[1 - home]), "{explained}");
}

#[test]
fn a_session_is_taken_from_the_request_and_not_shown() {
    let (_origins, urls) = fleet(2);
    let router =
        Router::in_front_of(&urls, &["--workers", "1", "--routing-logic", "session", "--session-key", "x-user-id"]);
    let mut client = router.client();
    let body = completion("m", "x");
    let with = client.send_post(COMPLETIONS, &body, "X-User-Id: sesame\r\n").response();
    assert_eq!((&with.json()["session"], &with.json()["chosen"]["reason"]), (&json!(true), &json!("session")));
    assert!(!with.body_text().contains("sesame"), "{}", with.body_text());
    let without = client.post(COMPLETIONS, &body);
    assert_eq!((&without.json()["session"], &without.json()["chosen"]["reason"]), (&json!(false), &json!("qps")));
}

#[test]
fn what_would_be_refused_is_refused_in_the_same_words() {
    let (_origins, urls) = fleet(1);
    let router = Router::in_front_of(&urls, &["--workers", "1"]);
    let mut client = router.client();
    for body in ["[]", "{\"model\": \"nobody's\"}"] {
        let real = client.post("/v1/chat/completions", body);
        let told = client.post("/debug/route", body);
        assert_eq!((told.status, &told.body), (real.status, &real.body));
        assert!(told.status >= 400, "{}", told.head);
    }
    let own = client.post("/debug/route?path=/debug/route", "{}");
    assert_eq!((own.status, own.error_code()), (400, "not_routed".to_owned()));
    assert_eq!(client.post("/debug/route", &chat("m", "x")).status, 200, "the connection goes on");
}

#[test]
fn it_needs_the_key_that_the_list_of_engines_needs() {
    let (_origins, urls) = fleet(1);
    let router = Router::start(&["--workers", "1", "--api-key", "sesame", "--static-backends", &urls[0]]);
    let body = chat("m", "x");
    assert_eq!((router.post("/debug/route", &body).status, router.get("/engines").status), (401, 401));
    let known = "Authorization: Bearer sesame\r\n";
    let ask = || router.client().send_post("/debug/route", &body, known).response().status;
    eventually("the backend is up", || ask() == 200);
}
