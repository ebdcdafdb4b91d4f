//! More requests than the backends should get: limits hold, those beyond wait in order, and who is turned away is told so.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use support::origin::ok;
use support::{AtRest, Client, Origin, RESTS_SOON, Router, completion, eventually, text};

/// Lets so many requests of a backend end.
#[derive(Default)]
struct Gate {
    tickets: AtomicUsize,
    running: AtomicUsize,
    most_running: AtomicUsize,
}

impl Gate {
    fn release(&self, requests: usize) {
        self.tickets.fetch_add(requests, SeqCst);
    }

    fn pass(&self) {
        let running = self.running.fetch_add(1, SeqCst) + 1;
        self.most_running.fetch_max(running, SeqCst);
        while self.tickets.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Before the answer: the router may send the next one as soon as it has that.
        self.running.fetch_sub(1, SeqCst);
    }
}

fn gated(gate: &Arc<Gate>) -> Origin {
    let gate = Arc::clone(gate);
    Origin::start(&["m"], move |peer, _| {
        gate.pass();
        peer.send(ok("{}"))
    })
}

fn send(router: &Router, prompt: &str) -> Client {
    send_with(router, prompt, "")
}

fn send_with(router: &Router, prompt: &str, fields: &str) -> Client {
    let mut client = router.client();
    client.send_post("/v1/completions", &completion("m", prompt), fields);
    client
}

fn waiting(router: &Router) -> f64 {
    router.metric("trieway_queue_depth")
}

fn rejected(router: &Router, reason: &str) -> f64 {
    router.metric(&format!("trieway_rejected_requests_total{{reason=\"{reason}\"}}"))
}

/// Bodies that the backend has got, in the order in which they came.
fn order(origin: &Origin) -> Vec<usize> {
    let number = |body: &[u8]| serde_json::from_slice::<serde_json::Value>(body).expect("JSON")["prompt"].clone();
    origin.received().iter().map(|r| number(&r.body).as_str().expect("text").parse().expect("a number")).collect()
}

#[test]
fn no_backend_gets_more_than_its_limit_and_all_who_wait_are_served() {
    let gates: [Arc<Gate>; 2] = Default::default();
    let origins = gates.each_ref().map(gated);
    let urls = origins.each_ref().map(Origin::url);
    let router = Router::in_front_of(&urls, &[&["--max-inflight", "3", "--workers", "2"][..], &RESTS_SOON].concat());
    let at_rest = AtRest::of(&router);
    let mut clients: Vec<_> = (0..40).map(|_| send(&router, "x")).collect();
    eventually("those beyond the limit wait", || waiting(&router) == 34.0);
    // Admitted is not yet arrived.
    eventually("the others run", || gates.each_ref().map(|gate| gate.running.load(SeqCst)) == [3, 3]);
    gates.iter().for_each(|gate| gate.release(1_000));
    for client in &mut clients {
        assert_eq!(client.response().status, 200);
    }
    assert_eq!(gates.each_ref().map(|gate| gate.most_running.load(SeqCst)), [3, 3]);
    assert_eq!(waiting(&router), 0.0);
    assert_eq!(router.metric("trieway_queue_wait_seconds_count"), 34.0);
    assert!(router.metric("trieway_queue_wait_seconds_sum") > 0.0);
    drop(clients);
    at_rest.is_back(&router);
}

/// One order over all workers: whose request ends decides nothing.
#[test]
fn who_waits_is_served_in_order_whatever_worker_has_it_and_a_newcomer_does_not_overtake() {
    const REQUESTS: usize = 24;
    for workers in ["1", "2", "8"] {
        let gate = Arc::new(Gate::default());
        let origin = gated(&gate);
        let router = Router::in_front_of(&[origin.url()], &["--max-inflight", "1", "--workers", workers]);
        let mut clients: Vec<_> = (0..REQUESTS)
            .map(|number| {
                let client = send(&router, &number.to_string());
                eventually("it is in flight or waits", || {
                    origin.count() as f64 + waiting(&router) == (number + 1) as f64
                });
                client
            })
            .collect();
        for served in 1..=REQUESTS {
            gate.release(1);
            eventually("the next one is sent", || origin.count() == (served + 1).min(REQUESTS));
            // Each meets a place that was given to another one.
            if served == REQUESTS / 2 {
                clients.push(send(&router, &REQUESTS.to_string()));
                eventually("it waits", || waiting(&router) == (REQUESTS - served) as f64);
            }
        }
        gate.release(1);
        for client in &mut clients {
            assert_eq!(client.response().status, 200);
        }
        assert_eq!(order(&origin), (0..=REQUESTS).collect::<Vec<_>>(), "{workers} workers");
    }
}

/// A release at another model's backend is nothing to those that wait, and neither is one after which others go.
#[test]
fn who_waits_asks_the_trie_once_whatever_goes_on_beside_it() {
    for workers in ["1", "2"] {
        let gate = Arc::new(Gate::default());
        let busy = gated(&gate);
        let free = Origin::start(&["other"], |peer, _| peer.send(ok("{}")));
        let router = Router::in_front_of(&[busy.url(), free.url()], &["--max-inflight", "1", "--workers", workers]);
        let lookups = || router.metric("trieway_trie_lookups_total");
        let mut clients: Vec<_> = (0..9).map(|number| send(&router, &text(number, 100_000))).collect();
        eventually("eight wait", || waiting(&router) == 8.0);
        let before = lookups();
        assert!(before <= 9.0, "{before}");
        let mut other = router.client();
        for number in 0..200 {
            assert_eq!(other.post("/v1/completions", &completion("other", &text(100 + number, 200))).status, 200);
        }
        assert_eq!(lookups() - before, 200.0, "{workers} workers");
        gate.release(9);
        for client in &mut clients {
            assert_eq!(client.response().status, 200);
        }
        // Once more after a wait of more than a second.
        let waiters = lookups() - 200.0;
        assert!((9.0..=18.0).contains(&waiters), "{workers} workers: {waiters} look-ups of nine requests");
    }
}

#[test]
fn a_client_that_leaves_while_it_waits_leaves_the_queue_and_is_never_sent() {
    let gate = Arc::new(Gate::default());
    let origin = gated(&gate);
    let router = Router::in_front_of(&[origin.url()], &[&["--max-inflight", "1"][..], &RESTS_SOON].concat());
    let at_rest = AtRest::of(&router);
    let mut first = send(&router, "0");
    eventually("the backend has it", || origin.count() == 1);
    let second = send(&router, "1");
    eventually("the second one waits", || waiting(&router) == 1.0);
    let mut third = send(&router, "2");
    eventually("the third one waits", || waiting(&router) == 2.0);
    let left = Instant::now();
    drop(second);
    eventually("it is out of the queue", || waiting(&router) == 1.0);
    assert!(left.elapsed() < Duration::from_secs(1), "{:?}", left.elapsed());
    gate.release(2);
    assert_eq!((first.response().status, third.response().status), (200, 200));
    assert_eq!(order(&origin), [0, 2]);
    drop((first, third));
    at_rest.is_back(&router);
}

#[test]
fn beyond_the_queue_and_after_its_time_the_answer_is_503_with_retry_after() {
    let gate = Arc::new(Gate::default());
    let origin = gated(&gate);
    let flags = ["--max-inflight", "1", "--queue-size", "2", "--queue-timeout-seconds", "1"];
    let router = Router::in_front_of(&[origin.url()], &[&flags[..], &RESTS_SOON].concat());
    let at_rest = AtRest::of(&router);
    let mut running = send(&router, "x");
    eventually("the backend has it", || origin.count() == 1);
    let since = Instant::now();
    let mut patient: Vec<_> = (0..2).map(|_| send(&router, "x")).collect();
    eventually("the queue is full", || waiting(&router) == 2.0);
    for _ in 0..3 {
        let started = Instant::now();
        let mut client = send(&router, "x");
        let refused = client.response();
        assert_eq!((refused.status, refused.error_code().as_str()), (503, "overloaded"));
        assert_eq!(refused.field("retry-after"), Some("1"));
        assert!(started.elapsed() < Duration::from_millis(500), "at once");
        assert_eq!(client.get("/version").status, 200, "the connection stays usable");
    }
    for client in &mut patient {
        let expired = client.response();
        assert_eq!((expired.status, expired.error_code().as_str()), (503, "queue_timeout"));
        assert_eq!(expired.field("retry-after"), Some("1"));
        assert!(since.elapsed() >= Duration::from_millis(950), "{:?}", since.elapsed());
    }
    assert_eq!((rejected(&router, "queue_full"), rejected(&router, "queue_timeout")), (3.0, 2.0));
    assert_eq!(router.metric("trieway_refused_requests_total{status=\"5xx\"}"), 5.0);
    assert_eq!(router.metric("trieway_queue_wait_seconds_count"), 2.0);
    assert!(router.metric("trieway_queue_wait_seconds_sum") >= 1.9);
    gate.release(1);
    assert_eq!((running.response().status, origin.count()), (200, 1));
    drop((running, patient));
    at_rest.is_back(&router);
}

#[test]
fn the_holder_of_a_prefix_is_passed_over_while_it_is_at_its_limit() {
    let gates: [Arc<Gate>; 2] = Default::default();
    let origins = gates.each_ref().map(gated);
    let urls = origins.each_ref().map(Origin::url);
    let router = Router::in_front_of(&urls, &["--max-inflight", "1"]);
    let prompt = text(1, 2_000);
    gates.iter().for_each(|gate| gate.release(1));
    assert_eq!(send(&router, &prompt).response().status, 200);
    let holder = usize::from(origins[1].count() == 1);
    // The client has the answer a moment before the router has counted its end.
    let in_flight = format!("trieway_in_flight_requests{{server=\"{}\"}}", urls[holder]);
    eventually("the holder is free", || router.metric(&in_flight) == 0.0);
    // The other one's ticket stays; the holder's is used up.
    let mut running = send(&router, &prompt);
    eventually("the holder has it", || origins[holder].count() == 2);
    assert_eq!(send(&router, &prompt).response().status, 200);
    assert_eq!((origins[holder].count(), origins[1 - holder].count()), (2, 1));
    gates[holder].release(1);
    assert_eq!(running.response().status, 200);
}

#[test]
fn requests_for_another_model_do_not_wait_behind_a_busy_one() {
    let gate = Arc::new(Gate::default());
    let busy = gated(&gate);
    let free = Origin::start(&["other"], |peer, _| peer.send(ok("{}")));
    let router = Router::in_front_of(&[busy.url(), free.url()], &["--max-inflight", "1", "--workers", "1"]);
    let mut clients: Vec<_> = (0..3).map(|_| send(&router, "x")).collect();
    eventually("two wait", || waiting(&router) == 2.0);
    for _ in 0..5 {
        assert_eq!(router.post("/v1/completions", &completion("other", "x")).status, 200);
    }
    assert_eq!(waiting(&router), 2.0);
    gate.release(3);
    for client in &mut clients {
        assert_eq!(client.response().status, 200);
    }
}

#[test]
fn one_api_key_cannot_take_the_places_of_the_others() {
    let gate = Arc::new(Gate::default());
    let origin = gated(&gate);
    let flags = ["--max-inflight", "4", "--max-inflight-per-key", "3", "--workers", "2"];
    let router = Router::in_front_of(&[origin.url()], &[&flags[..], &RESTS_SOON].concat());
    let at_rest = AtRest::of(&router);
    let greedy = "Authorization: Bearer sk-greedy-secret\r\n";
    let mut held: Vec<_> = (0..3).map(|_| send_with(&router, "x", greedy)).collect();
    eventually("it has its share", || origin.count() == 3);
    for fields in [greedy, "authorization: bearer  sk-greedy-secret\r\n"] {
        for _ in 0..10 {
            let refused = send_with(&router, "x", fields).response();
            assert_eq!((refused.status, refused.error_code().as_str()), (429, "too_many_requests_in_flight"));
            assert_eq!(refused.field("retry-after"), Some("1"));
            assert!(!refused.body_text().contains("secret"));
        }
    }
    assert_eq!(rejected(&router, "key_limit"), 20.0);
    // The fourth place is free for anybody else, and so are those in the queue.
    for fields in ["Authorization: Bearer other\r\n", "X-Api-Key: third\r\n", ""] {
        held.push(send_with(&router, "x", fields));
    }
    eventually("one is sent, two wait", || origin.count() == 4 && waiting(&router) == 2.0);
    gate.release(6);
    for client in &mut held {
        assert_eq!(client.response().status, 200);
    }
    // What waits counts as well: nobody fills the queue alone.
    let mut waits: Vec<_> = (0..3).map(|_| send_with(&router, "x", greedy)).collect();
    eventually("its share is in flight again", || origin.count() == 9);
    assert_eq!(send_with(&router, "x", greedy).response().status, 429);
    gate.release(3);
    waits.iter_mut().for_each(|client| assert_eq!(client.response().status, 200));
    let metrics = router.get("/metrics").body_text();
    assert!(!metrics.contains("secret") && !router.log().join("\n").contains("secret"));
    drop((held, waits));
    at_rest.is_back(&router);
}

#[test]
fn many_keys_at_their_limit_are_counted_exactly_on_both_workers() {
    let gate = Arc::new(Gate::default());
    let origin = gated(&gate);
    let router = Router::in_front_of(&[origin.url()], &["--max-inflight-per-key", "2", "--workers", "2"]);
    let mut held = Vec::new();
    for key in 0..20 {
        for _ in 0..2 {
            held.push(send_with(&router, "x", &format!("X-Api-Key: k{key}\r\n")));
        }
    }
    eventually("each key has its two", || origin.count() == 40);
    for key in 0..20 {
        assert_eq!(send_with(&router, "x", &format!("X-Api-Key: k{key}\r\n")).response().status, 429);
    }
    gate.release(40);
    held.iter_mut().for_each(|client| assert_eq!(client.response().status, 200));
    assert_eq!(send_with(&router, "x", "X-Api-Key: k0\r\n").stream.peer_addr().expect("open"), router.address);
    gate.release(1);
}
