//! Requests are spread over the backends by what all workers have sent up to now: in bursts that no periodic sum can follow,
//! and with ties that nothing resonates with. A backend that joins gets its share, not everything.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use support::origin::ok;
use support::{Client, Origin, Router, completion, eventually};

/// Requests of a burst, each on a connection of its own.
const BURST: usize = 80;

/// Holds the requests of all backends, in the order in which they arrive, until so many may be answered.
#[derive(Default)]
struct Gate {
    arrived: AtomicUsize,
    open: AtomicUsize,
}

impl Gate {
    fn origins(self: &Arc<Self>, n: usize) -> Vec<Origin> {
        (0..n).map(|_| self.origin(Origin::start)).collect()
    }

    fn origin(self: &Arc<Self>, start: impl FnOnce(&[&str], Handler) -> Origin) -> Origin {
        let gate = Arc::clone(self);
        start(
            &["m"],
            Box::new(move |peer, _| {
                let number = gate.arrived.fetch_add(1, SeqCst);
                while gate.open.load(SeqCst) <= number {
                    std::thread::sleep(Duration::from_millis(1));
                }
                peer.send(ok("{}"))
            }),
        )
    }

    fn open_for(&self, requests: usize) {
        self.open.store(self.arrived.load(SeqCst) + requests, SeqCst);
    }
}

type Handler = Box<dyn Fn(&mut support::origin::Peer, &support::Received) -> bool + Send + Sync>;

fn urls(origins: &[Origin]) -> Vec<String> {
    origins.iter().map(Origin::url).collect()
}

fn counts(origins: &[Origin]) -> Vec<usize> {
    origins.iter().map(Origin::count).collect()
}

/// A prompt below a chunk: no backend can hold it.
fn send(client: &mut Client) {
    client.send_post("/v1/completions", &completion("m", "hi"), "");
}

/// Sends a burst that is held until all of it has arrived; gives how many each backend got.
fn burst(gate: &Gate, origins: &[Origin], clients: &mut [Client]) -> Vec<usize> {
    let (before, arrived) = (counts(origins), gate.arrived.load(SeqCst));
    clients.iter_mut().for_each(send);
    eventually("the burst has arrived", || gate.arrived.load(SeqCst) == arrived + clients.len());
    let got = counts(origins).iter().zip(before).map(|(after, before)| after - before).collect();
    gate.open_for(0);
    clients.iter_mut().for_each(|client| assert_eq!(client.response().status, 200));
    got
}

/// No backend may get more than so many of a burst over four.
fn bursts_are_spread(policy: &str, most: usize) {
    for workers in [1, 2, 4, 8, 16] {
        let gate = Arc::new(Gate::default());
        let origins = gate.origins(4);
        let mut flags = vec!["--routing-logic", policy];
        let count = workers.to_string();
        flags.extend(["--workers", &count]);
        if workers == 16 {
            // So many rings may be more than the memory that a user can lock.
            flags.extend(["--io", "auto"]);
        }
        let router = Router::in_front_of(&urls(&origins), &flags);
        let mut clients: Vec<Client> = (0..BURST).map(|_| router.client()).collect();
        for number in 0..8 {
            let got = burst(&gate, &origins, &mut clients);
            assert!(got.iter().all(|&n| n <= most), "{policy}, {workers} workers, burst {number}: {got:?}");
        }
    }
}

/// 1.25 times the fair share.
const MOST: usize = BURST / 4 * 5 / 4;

#[test]
fn the_fallback_of_prefixaware_spreads_a_burst_over_any_number_of_workers() {
    bursts_are_spread("prefixaware", MOST);
}

#[test]
fn leastload_spreads_a_burst_over_any_number_of_workers() {
    bursts_are_spread("leastload", MOST);
}

#[test]
fn ttft_spreads_a_burst_over_any_number_of_workers() {
    bursts_are_spread("ttft", MOST);
}

#[test]
fn round_robin_is_strict_over_any_number_of_workers() {
    bursts_are_spread("roundrobin", BURST / 4);
}

/// One request is always in flight, so that two of three backends are equals: a rotation among equals would meet the same two
/// for ever.
#[test]
fn ties_do_not_resonate_with_a_steady_rate() {
    for policy in ["leastload", "prefixaware"] {
        let gate = Arc::new(Gate::default());
        let origins = gate.origins(3);
        let router = Router::in_front_of(&urls(&origins), &["--routing-logic", policy, "--workers", "1"]);
        let mut clients = [router.client(), router.client()];
        send(&mut clients[0]);
        for number in 1..120 {
            eventually("one is there", || gate.arrived.load(SeqCst) == number);
            send(&mut clients[number % 2]);
            eventually("the next one is there", || gate.arrived.load(SeqCst) == number + 1);
            gate.open.store(number, SeqCst);
            assert_eq!(clients[(number + 1) % 2].response().status, 200);
        }
        gate.open_for(1);
        let got = counts(&origins);
        assert!(got.iter().all(|n| (30..=50).contains(n)), "{policy}: {got:?}");
    }
}

/// The requests that each backend got of the next so many, sent one by one.
fn next(router: &Router, origins: &[Origin], requests: usize) -> Vec<usize> {
    let before = counts(origins);
    let mut client = router.client();
    for _ in 0..requests {
        send(&mut client);
        assert_eq!(client.response().status, 200);
    }
    counts(origins).iter().zip(before).map(|(after, before)| after - before).collect()
}

const PROBED_OFTEN: [&str; 2] = ["--static-backend-health-check-interval", "1"];

fn is_up(router: &Router, url: &str) -> bool {
    let engines: serde_json::Value = serde_json::from_str(&router.engines()).expect("JSON");
    // One that has just gone is still called up, and marked.
    let is_up = |engine: &serde_json::Value| engine["state"] == "up" && engine["unreachable"] == false;
    engines.as_array().expect("a list").iter().any(|engine| engine["url"] == url && is_up(engine))
}

/// An address at which nothing listens.
fn free_address() -> std::net::SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("an address")
}

/// Three backends that have got 240 requests, in front of a router that knows a fourth which is absent.
fn three_of_four(flags: &[&str]) -> (Router, Arc<Gate>, Vec<Origin>, std::net::SocketAddr) {
    let gate = Arc::new(Gate::default());
    gate.open_for(usize::MAX);
    let origins = gate.origins(3);
    let absent = free_address();
    let list = [urls(&origins), vec![format!("http://{absent}")]].concat().join(",");
    let router = Router::start(&[&["--static-backends", &list], &PROBED_OFTEN[..], flags].concat());
    router.wait_for_backends(3);
    let got = next(&router, &origins, 240);
    assert!(got.iter().all(|n| (78..=82).contains(n)), "{got:?}");
    (router, gate, origins, absent)
}

#[test]
fn a_backend_that_joins_gets_its_share_of_the_fallback() {
    for workers in ["1", "4"] {
        let (router, gate, mut origins, absent) = three_of_four(&["--workers", workers]);
        origins.push(gate.origin(|models, handler| Origin::start_at(absent, models, handler)));
        eventually("it is up", || is_up(&router, &origins[3].url()));
        let got = next(&router, &origins, 160);
        assert!(got.iter().all(|n| (38..=42).contains(n)), "{workers} workers: {got:?}");
    }
}

#[test]
fn a_backend_that_was_away_gets_its_share_of_the_fallback_again() {
    let (router, gate, mut origins, _) = three_of_four(&["--workers", "2"]);
    let address = origins.remove(0).kill();
    // Who finds it gone goes elsewhere; so the others get all of it.
    let got = next(&router, &origins, 300);
    assert_eq!(got.iter().sum::<usize>(), 300);
    eventually("that is known", || !is_up(&router, &format!("http://{address}")));
    origins.insert(0, gate.origin(|models, handler| Origin::start_at(address, models, handler)));
    eventually("it is up", || is_up(&router, &origins[0].url()));
    let got = next(&router, &origins, 120);
    assert!(got.iter().all(|n| (36..=44).contains(n)), "{got:?}");
}

/// Only what is there when the router starts is spared the slow start.
#[test]
fn slow_start_covers_a_static_backend_that_was_absent_at_the_start() {
    let (router, gate, mut origins, absent) = three_of_four(&["--slow-start-seconds", "3600", "--workers", "2"]);
    assert!(!router.engines().contains("\"share\":0."), "those of the start have all of their share");
    origins.push(gate.origin(|models, handler| Origin::start_at(absent, models, handler)));
    eventually("it is up", || is_up(&router, &origins[3].url()));
    // A hundredth of a fourth is its share.
    let got = next(&router, &origins, 160);
    assert!(got[3] <= 12 && got[..3].iter().all(|n| (45..=58).contains(n)), "{got:?}");
}
