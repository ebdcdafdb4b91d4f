//! Engines that die and come back while clients are served.

mod support;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use support::{Client, Origin, Router, chat, eventually, text};

const CLIENTS: usize = 8;
const FAST: [&str; 2] = ["--static-backend-health-check-interval", "0.2"];

/// An engine that streams for a while, at a free port or at this one.
fn engine(at: Option<SocketAddr>, running: &Arc<AtomicUsize>) -> Origin {
    let running = Arc::clone(running);
    let handler = move |peer: &mut support::origin::Peer, _: &support::Received| {
        running.fetch_add(1, SeqCst);
        let mut whole = peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(20));
            whole = whole && peer.send("5\r\ntoken\r\n");
        }
        running.fetch_sub(1, SeqCst);
        whole && peer.send("0\r\n\r\n")
    };
    match at {
        Some(address) => Origin::start_at(address, &["m"], handler),
        None => Origin::start(&["m"], handler),
    }
}

/// What became of a client's requests.
#[derive(Default)]
struct Told {
    served: usize,
    /// When each that failed did.
    failed: Vec<Instant>,
}

/// Sends one turn of a growing conversation after another, over new and kept connections, until told to stop.
fn converse(address: SocketAddr, number: u64, stop: &AtomicBool, told: &Mutex<Told>) {
    let mut prompt = text(number, 600);
    let mut client = Client::connect(address);
    let mut turn = 0;
    while !stop.load(SeqCst) {
        turn += 1;
        prompt.push_str(&text(number * 1000 + turn, 200));
        if turn % 10 == 0 {
            prompt = text(number * 1_000_000 + turn, 600);
        }
        client.send_post("/v1/chat/completions", &chat("m", &prompt), "");
        let answer = client.response();
        let mut told = told.lock().expect("whole");
        if answer.status == 200 && answer.complete {
            assert_eq!(answer.body, b"tokentokentokentoken");
            told.served += 1;
        } else {
            told.failed.push(Instant::now());
            drop(told);
            client = Client::connect(address);
        }
    }
}

fn restarts(router: &Router, address: SocketAddr) -> u64 {
    let engines = router.get("/engines").json();
    let url = format!("http://{address}");
    let found = engines.as_array().expect("a list").iter().find(|e| e["url"] == url.as_str()).expect("known").clone();
    found["restarts"].as_u64().expect("a number")
}

fn by_prefix(router: &Router, address: SocketAddr) -> f64 {
    router.metric(&format!("trieway_requests_total{{server=\"http://{address}\",model=\"m\",reason=\"prefix\"}}"))
}

#[test]
fn an_engine_that_is_killed_takes_only_what_ran_there_and_is_remembered_for_nothing() {
    let running = Arc::new(AtomicUsize::new(0));
    let (a, b) = (engine(None, &running), engine(None, &Arc::default()));
    let router = Router::in_front_of(&[a.url(), b.url()], &FAST);
    // Conversations that are held by the engine and not heard of until it is back.
    let quiet: Vec<String> = (0..20).map(|seed| text(seed + 9_000, 1000)).collect();
    quiet.iter().for_each(|prompt| drop(router.post("/v1/chat/completions", &chat("m", prompt))));
    assert!(a.count() > 2, "{} of 20", a.count());

    let stop = Arc::new(AtomicBool::new(false));
    let told: Vec<_> = (0..CLIENTS).map(|_| Arc::new(Mutex::new(Told::default()))).collect();
    let clients: Vec<_> = told
        .iter()
        .enumerate()
        .map(|(number, told)| {
            let (address, stop, told) = (router.address, Arc::clone(&stop), Arc::clone(told));
            std::thread::spawn(move || converse(address, number as u64 + 1, &stop, &told))
        })
        .collect();
    let served = || told.iter().map(|told| told.lock().expect("whole").served).sum::<usize>();
    let more = |n: usize| {
        let before = served();
        eventually("more are served", || served() >= before + n);
    };
    more(50);
    eventually("some run there", || running.load(SeqCst) > 1);
    let killed_at = Instant::now();
    let address = a.kill();
    let dead_at = Instant::now();
    more(150);
    let again = engine(Some(address), &running);
    router.wait_for_backends(2);
    let by_prefix_before = by_prefix(&router, address);
    assert_eq!(restarts(&router, address), 1);
    more(150);
    stop.store(true, SeqCst);
    clients.into_iter().for_each(|client| client.join().expect("no panic"));

    for told in &told {
        let told = told.lock().expect("whole");
        assert!(told.failed.len() <= 1, "a client had {} in flight at most, and lost {}", 1, told.failed.len());
        let late = |at: &&Instant| **at < killed_at || **at > dead_at + Duration::from_secs(1);
        assert_eq!(told.failed.iter().filter(late).count(), 0, "long before or after the kill");
    }
    let lost: usize = told.iter().map(|told| told.lock().expect("whole").failed.len()).sum();
    assert!(lost >= 1, "what ran there broke visibly");

    // The router believes nothing of the process that is gone: what goes there by a match was sent to the one that is there.
    let marks = by_prefix(&router, address);
    assert!(marks >= by_prefix_before && again.count() > 0);
    quiet.iter().for_each(|prompt| {
        let answer = router.post("/v1/chat/completions", &chat("m", prompt));
        assert!(answer.status == 200 && answer.complete);
    });
    assert_eq!(by_prefix(&router, address), marks, "none of them was still believed to be there");
}

#[test]
fn a_backend_that_came_back_gets_a_growing_share() {
    let answer = |peer: &mut support::origin::Peer, _: &support::Received| peer.send(support::origin::ok("{}"));
    let (a, b) = (Origin::start(&["m"], answer), Origin::start(&["m"], answer));
    let flags = [&FAST[..], &["--slow-start-seconds", "60", "--workers", "1"]].concat();
    let router = Router::in_front_of(&[a.url(), b.url()], &flags);
    let mut seed = 0;
    let mut send = |n: usize| {
        for _ in 0..n {
            seed += 1;
            assert_eq!(router.post("/v1/chat/completions", &chat("m", &text(seed, 300))).status, 200);
        }
    };
    send(40);
    assert!(a.count().abs_diff(b.count()) <= 2, "{} {}", a.count(), b.count());
    let address = a.kill();
    eventually("down", || router.engines().contains("\"state\":\"down\""));
    send(40);
    let a = Origin::start_at(address, &["m"], answer);
    router.wait_for_backends(2);
    let before = b.count();
    send(100);
    let (back, steady) = (a.count(), b.count() - before);
    assert!(back < 30 && steady > 70, "{back} of 100 in the first moments of a minute");
    let engines = router.get("/engines").json();
    let share = engines.as_array().expect("a list")[0]["share"].as_f64().expect("a number");
    assert!(share > 0.0 && share < 0.5, "{share}");
}
