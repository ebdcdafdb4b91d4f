//! Load: counted on every path, spread where paths say nothing, and never the neighbour's trouble.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::origin::ok;
use support::{AtRest, Client, Origin, RESTS_SOON, Router, completion, eventually, text};

/// A backend that answers once the gate is open.
fn gated(gate: &Arc<AtomicBool>) -> Origin {
    let gate = Arc::clone(gate);
    Origin::start(&["m"], move |peer, _| {
        while !gate.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        peer.send(ok("{}"))
    })
}

fn in_flight(router: &Router) -> Vec<u64> {
    let engines = router.engines();
    let numbers = engines.split("\"in_flight\":").skip(1);
    numbers.map(|rest| rest.split([',', '}']).next().and_then(|n| n.trim().parse().ok()).expect("a number")).collect()
}

#[test]
fn requests_are_counted_as_load_on_every_path() {
    let gate = Arc::new(AtomicBool::new(false));
    let origin = gated(&gate);
    let router = Router::in_front_of(&[origin.url()], &RESTS_SOON);
    let at_rest = AtRest::of(&router);
    let body = completion("m", "x");
    let paths = [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/score",
        "/tokenize",
        "/pooling",
        "/v1/images/generations",
        "/v1/audio/transcriptions",
        "/inference/v1/generate",
        "/any/thing?x=1",
    ];
    let mut clients = Vec::new();
    for (number, path) in paths.iter().enumerate() {
        let mut client = router.client();
        client.send_post(path, &body, "");
        clients.push(client);
        eventually(path, || in_flight(&router) == [number as u64 + 1]);
    }
    let mut get = router.client();
    get.send("GET /v1/models/m HTTP/1.1\r\nHost: t\r\n\r\n");
    eventually("a request without a body counts, too", || in_flight(&router) == [paths.len() as u64 + 1]);
    clients.push(get);
    gate.store(true, Ordering::SeqCst);
    for client in &mut clients {
        assert_eq!(client.response().status, 200);
    }
    drop(clients);
    at_rest.is_back(&router);
}

#[test]
fn requests_on_unknown_paths_spread_over_the_backends_although_they_begin_alike() {
    let gate = Arc::new(AtomicBool::new(false));
    let origins: Vec<_> = (0..8).map(|_| gated(&gate)).collect();
    let urls: Vec<_> = origins.iter().map(Origin::url).collect();
    let router = Router::in_front_of(&urls, &RESTS_SOON);
    let at_rest = AtRest::of(&router);
    let body = completion("m", &text(1, 2_048));
    let mut clients: Vec<_> = (0..240).map(|_| router.client()).collect();
    for client in &mut clients {
        client.send_post("/inference/v1/generate", &body, "");
    }
    eventually("all of them are in flight", || in_flight(&router).iter().sum::<u64>() == 240);
    let spread = in_flight(&router);
    // Choices on two workers at the same instant may not see each other: twice the mean is the bound.
    assert!(spread.iter().all(|&n| n <= 60), "a backend has more than twice the mean of 30: {spread:?}");
    gate.store(true, Ordering::SeqCst);
    for client in &mut clients {
        assert_eq!(client.response().status, 200);
    }
    drop(clients);
    at_rest.is_back(&router);
}

#[test]
fn with_one_of_four_engines_hung_the_others_are_as_fast_as_before() {
    let mut origins: Vec<_> = (0..4).map(|_| Origin::plain()).collect();
    let urls: Vec<_> = origins.iter().map(Origin::url).collect();
    let flags = ["--first-byte-timeout-seconds", "20", "--static-backend-health-check-interval", "3600"];
    let router = Router::in_front_of(&urls, &[&flags[..], &RESTS_SOON].concat());
    let prompts: Vec<_> = (0..32).map(|seed| completion("m", &text(seed, 600))).collect();
    let hung = origins.remove(0);
    let mut client = router.client();
    let homes: Vec<bool> = prompts
        .iter()
        .map(|prompt| {
            let before = hung.count();
            assert_eq!(client.post("/v1/completions", prompt).status, 200);
            hung.count() > before
        })
        .collect();
    let with =
        |there: bool| prompts.iter().zip(&homes).filter(move |(_, home)| **home == there).map(|(prompt, _)| prompt);
    assert!(with(true).count() >= 4 && with(false).count() >= 16, "the prompts are spread: {homes:?}");
    let p99 = |client: &mut Client| {
        let mut times: Vec<_> = (0..20)
            .flat_map(|_| with(false))
            .map(|prompt| {
                let started = Instant::now();
                assert_eq!(client.post("/v1/completions", prompt).status, 200);
                started.elapsed()
            })
            .collect();
        times.sort_unstable();
        times[times.len() * 99 / 100]
    };
    let healthy = p99(&mut client);
    hung.freeze(true);
    let mut stuck: Vec<_> = (0..100).map(|_| router.client()).collect();
    for (client, prompt) in stuck.iter_mut().zip(with(true).cycle()) {
        client.send_post("/v1/completions", prompt, "");
    }
    eventually("its requests wait", || in_flight(&router).iter().sum::<u64>() == 100);
    let beside = p99(&mut client);
    assert!(beside < healthy * 3 + Duration::from_millis(30), "p99 {beside:?}, and {healthy:?} before");
    hung.freeze(false);
    for client in &mut stuck {
        assert_eq!(client.response().status, 200);
    }
}

/// Numbered bytes that come just when a limit passes: the client sees all of them in order, or a break, and never a gap.
#[test]
fn bytes_that_race_with_a_limit_are_relayed_in_order_or_not_at_all() {
    let origin = Origin::start(&["m"], |peer, request| {
        peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        let pause: u64 = request.fields("x-pause")[0].parse().expect("microseconds");
        for number in 0..6 {
            let event = format!("[{number}]");
            if !peer.send(format!("{:x}\r\n{event}\r\n", event.len())) {
                return false;
            }
            std::thread::sleep(Duration::from_micros(pause));
        }
        peer.send("0\r\n\r\n")
    });
    let router =
        Router::in_front_of(&[origin.url()], &[&["--between-bytes-timeout-seconds", "0.1"][..], &RESTS_SOON].concat());
    let at_rest = AtRest::of(&router);
    // The limit is exact to a tick of 50 ms: pauses on both sides of it, and many at it.
    let mut clients: Vec<_> = (0..200)
        .map(|i| {
            let mut client = router.client();
            client.send_post("/v1/completions", &completion("m", "x"), &format!("X-Pause: {}\r\n", 50_000 + i * 1_000));
            client
        })
        .collect();
    let (mut whole, mut broken) = (0, 0);
    for client in &mut clients {
        let response = client.response();
        let text = response.body_text();
        let expected: String = (0..6).map(|number| format!("[{number}]")).collect();
        assert!(expected.starts_with(&text), "a gap: {text}");
        match response.complete {
            true => whole += 1,
            false => broken += 1,
        }
        assert!(!response.complete || text == expected, "looks whole: {text}");
    }
    assert!(whole > 0 && broken > 0, "the pauses lie around the limit: {whole} whole, {broken} broken");
    drop(clients);
    at_rest.is_back(&router);
}

/// The watch for a client that goes away reads what is pipelined meanwhile: not a byte of it may be lost.
#[test]
fn bytes_pipelined_while_a_request_runs_are_not_lost() {
    let origin = Origin::start(&["m"], |peer, request| {
        std::thread::sleep(Duration::from_millis(3));
        peer.send(ok(&String::from_utf8_lossy(&request.body)))
    });
    let router = Router::in_front_of(&[origin.url()], &RESTS_SOON);
    let at_rest = AtRest::of(&router);
    let threads: Vec<_> = (0..8)
        .map(|thread| {
            let mut client = router.client();
            std::thread::spawn(move || {
                let bodies: Vec<_> = (0..60).map(|i| completion("m", &format!("{thread}-{i}"))).collect();
                let stream: String = bodies
                    .iter()
                    .map(|body| {
                        format!(
                            "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}",
                            body.len()
                        )
                    })
                    .collect();
                let mut writer = client.stream.try_clone().expect("clones");
                let sending = std::thread::spawn(move || {
                    use std::io::Write;
                    // Pieces of a size that has nothing to do with the requests', at all phases of them.
                    for piece in stream.as_bytes().chunks(37) {
                        writer.write_all(piece).expect("sends");
                        std::thread::sleep(Duration::from_micros(700));
                    }
                });
                for body in &bodies {
                    assert_eq!(&client.response().body_text(), body);
                }
                sending.join().expect("sent");
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("all answers match");
    }
    assert_eq!(origin.count(), 480);
    at_rest.is_back(&router);
}
