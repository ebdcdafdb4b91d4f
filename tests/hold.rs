//! `ttft` holds prompts until an engine has computed what is before them: short ones overtake, nobody is held for ever, and
//! who leaves is never sent.

mod support;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use support::{Client, Origin, Router, eventually, text};

const SSE: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

/// An engine that gives a first token for each word that it gets, and ends the answer with it.
fn engine() -> (Origin, Sender<()>) {
    let (go, goes): (Sender<()>, Receiver<()>) = channel();
    let goes = Arc::new(Mutex::new(goes));
    let origin = Origin::start(&["m"], move |peer, _| {
        let waited = goes.lock().expect("no panic").recv_timeout(Duration::from_secs(30));
        waited.is_ok() && peer.send(format!("{SSE}9\r\ndata: x\n\n\r\n0\r\n\r\n"))
    });
    (origin, go)
}

fn router(origin: &Origin, flags: &[&str]) -> Router {
    Router::in_front_of(&[origin.url()], &[&["--routing-logic", "ttft"], flags].concat())
}

/// Prompts of so many KB, the name of each in front.
fn ask(router: &Router, name: char, kilobytes: usize, stream: bool) -> Client {
    let prompt = format!("{name}{}", text(u64::from(name), kilobytes << 10));
    let body = serde_json::json!({"model": "m", "prompt": prompt, "stream": stream}).to_string();
    let mut client = router.client();
    client.send_post("/v1/completions", &body, "");
    client
}

/// The names of what the engine has got, in order.
fn got(origin: &Origin) -> String {
    let prompt = |body: &[u8]| {
        let body: serde_json::Value = serde_json::from_slice(body).expect("a completion");
        body["prompt"].as_str().expect("a prompt").chars().next().expect("a name")
    };
    origin.received().iter().map(|request| prompt(&request.body)).collect()
}

fn held(router: &Router) -> f64 {
    router.metric("trieway_queue_depth")
}

/// The order is that of urgency over all workers: time waited over the time that the prompt takes.
#[test]
fn a_short_prompt_overtakes_a_long_one_that_is_held_whatever_workers_have_them() {
    for workers in ["1", "2", "8"] {
        let (origin, go) = engine();
        let router = router(&origin, &["--workers", workers]);
        let mut clients = vec![ask(&router, 'a', 400, true)];
        eventually("the engine computes", || got(&origin) == "a");
        let mut hold = |name, kilobytes| {
            clients.push(ask(&router, name, kilobytes, true));
            eventually("it is held", || held(&router) == clients.len() as f64 - 1.0);
        };
        let since = Instant::now();
        hold('b', 400);
        hold('c', 100);
        // So that the short one has waited for at least half as long as the long one, which takes more than four times as long.
        std::thread::sleep(since.elapsed());
        assert_eq!(got(&origin), "a");
        for sent in 1..=3 {
            go.send(()).expect("the engine lives");
            eventually("the next one goes", || got(&origin).len() == (sent + 1).min(3));
        }
        clients.iter_mut().for_each(|client| assert_eq!(client.response().status, 200));
        assert_eq!((got(&origin).as_str(), held(&router)), ("acb", 0.0), "{workers} workers");
        assert_eq!(router.metric("trieway_queue_wait_seconds_count"), 2.0);
        let lookups = router.metric("trieway_trie_lookups_total");
        assert!(lookups <= 5.0, "{lookups} look-ups of three requests, of which two may have waited for a second");
    }
}

#[test]
fn a_prompt_waits_for_room_in_an_engines_memory() {
    let (go, goes) = channel::<()>();
    let goes = Mutex::new(goes);
    // The first token comes at once, the end when it is told to.
    let origin = Origin::start(&["m"], move |peer, _| {
        peer.send(format!("{SSE}9\r\ndata: x\n\n\r\n"))
            && goes.lock().expect("no panic").recv_timeout(Duration::from_secs(30)).is_ok()
            && peer.send("0\r\n\r\n")
    });
    origin.say_metrics("vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1250\"} 1\n");
    let router = router(&origin, &["--engine-stats-interval", "1"]);
    // Its figures are read once a second.
    std::thread::sleep(Duration::from_millis(1500));
    // 20,000 tokens of memory; 60 KB are 15,000.
    let mut first = ask(&router, 'a', 60, true);
    first.head();
    assert_eq!(first.next_chunk(), b"data: x\n\n");
    let mut waits = ask(&router, 'b', 60, true);
    eventually("it is held", || held(&router) == 1.0);
    let mut fits = ask(&router, 'c', 10, true);
    fits.head();
    assert_eq!((got(&origin).as_str(), held(&router)), ("ac", 1.0));
    go.send(()).expect("the engine lives");
    go.send(()).expect("the engine lives");
    waits.head();
    assert_eq!((got(&origin).as_str(), held(&router)), ("acb", 0.0));
    go.send(()).expect("the engine lives");
}

#[test]
fn without_holding_each_goes_at_once() {
    let (origin, _go) = engine();
    let router = router(&origin, &["--ttft-hold-ms", "0"]);
    let _clients = [ask(&router, 'a', 400, true), ask(&router, 'b', 400, true)];
    eventually("both are there", || got(&origin).len() == 2);
}

#[test]
fn nobody_is_held_for_longer_than_the_limit() {
    let (origin, _go) = engine();
    let router = router(&origin, &["--ttft-hold-ms", "300"]);
    let _first = ask(&router, 'a', 400, true);
    eventually("the engine computes", || got(&origin) == "a");
    let since = Instant::now();
    let _clients = ['b', 'c', 'd'].map(|name| ask(&router, name, 400, true));
    eventually("all are there", || got(&origin).len() == 4);
    assert!(since.elapsed() >= Duration::from_millis(300));
    assert_eq!(held(&router), 0.0);
}

#[test]
fn who_leaves_while_it_is_held_is_not_sent_and_the_next_one_is() {
    let (origin, go) = engine();
    let router = router(&origin, &[]);
    let mut first = ask(&router, 'a', 400, true);
    eventually("the engine computes", || got(&origin) == "a");
    let gone = ask(&router, 'b', 400, true);
    eventually("one is held", || held(&router) == 1.0);
    let mut next = ask(&router, 'c', 400, true);
    eventually("both are held", || held(&router) == 2.0);
    drop(gone);
    eventually("one has left", || held(&router) == 1.0);
    go.send(()).expect("the engine lives");
    go.send(()).expect("the engine lives");
    assert_eq!((first.response().status, next.response().status), (200, 200));
    assert_eq!(got(&origin), "ac");
}

#[test]
fn nobody_waits_for_what_will_not_be_seen_and_short_prompts_share_a_pass() {
    let (origin, _go) = engine();
    let router = router(&origin, &[]);
    let _whole = [ask(&router, 'a', 400, false), ask(&router, 'b', 400, true)];
    eventually("the whole answer hides nothing", || got(&origin).len() == 2);
    let (origin, _go) = engine();
    let router = self::router(&origin, &[]);
    let _short = ['a', 'b', 'c', 'd'].map(|name| ask(&router, name, 4, true));
    eventually("four pages fill no pass", || got(&origin).len() == 4);
    assert_eq!(router.metric("trieway_queue_wait_seconds_count"), 0.0);
}

/// Held with its place in the queue, it would keep those behind it from the room that there is.
#[test]
fn who_has_waited_for_room_is_not_held_as_well() {
    let (origin, go) = engine();
    let router = router(&origin, &["--max-inflight", "2", "--ttft-hold-ms", "1000"]);
    let mut first = ask(&router, 'a', 400, true);
    eventually("the engine computes", || got(&origin) == "a");
    let _second = ask(&router, 'b', 400, true);
    eventually("the second one has been held for long enough", || got(&origin) == "ab");
    let _third = ask(&router, 'c', 400, true);
    eventually("it waits for room", || held(&router) == 1.0);
    go.send(()).expect("the engine lives");
    let since = Instant::now();
    assert_eq!(first.response().status, 200);
    eventually("the third one goes beside the second", || got(&origin) == "abc");
    assert!(since.elapsed() < Duration::from_millis(800), "{:?}", since.elapsed());
    assert_eq!(router.metric("trieway_queue_wait_seconds_count"), 2.0);
}
