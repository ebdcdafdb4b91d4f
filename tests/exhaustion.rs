//! What runs out, and what breaks inside: descriptors, connections' code, the time to drain.

mod support;

use std::net::TcpStream;
use std::time::Duration;

use support::leaks::{open_connections, per_worker};
use support::origin::ok;
use support::router::{limited, locally};
use support::{AtRest, Client, Origin, RESTS_SOON, Router, completion, eventually};

const BODY: &str = "{\"model\":\"m\",\"prompt\":\"x\"}";

#[test]
fn with_256_descriptors_a_flood_is_told_and_the_router_recovers() {
    let origin = Origin::start(&["m"], |peer, request| {
        if request.head.contains("X-Wait") {
            std::thread::sleep(Duration::from_millis(300));
        }
        peer.send(ok("{}"))
    });
    let list = origin.url();
    let flags = [&["--static-backends", list.as_str(), "--workers", "2"][..], &RESTS_SOON].concat();
    let router = Router::start_by(limited("ulimit -n 256", &flags));
    router.wait_for_backends(1);
    assert!(router.log().iter().any(|line| line.contains("--max-connections is") && line.contains("ulimit -n")));
    let at_rest = AtRest::of(&router);
    for _ in 0..2 {
        // Those of the round before count until their ends are seen.
        eventually("nobody else is connected", || open_connections(&router) == 1.0);
        let mut clients: Vec<_> = (0..600).map(|_| router.client()).collect();
        let request = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: t\r\nX-Wait: 1\r\nContent-Length: {}\r\n\r\n{BODY}",
            BODY.len()
        );
        let mut statuses = std::collections::BTreeMap::new();
        for client in &mut clients {
            client.try_send(&request);
        }
        for client in &mut clients {
            *statuses.entry(status(client)).or_insert(0) += 1;
        }
        assert!(statuses.get(&200).is_some_and(|&n| n >= 50), "those who are let in are served: {statuses:?}");
        let let_in = statuses.get(&200).copied().unwrap_or(0);
        assert!(let_in <= 91 + 1, "--max-connections holds within a batch of accepts, too: {statuses:?}");
        assert!(statuses.keys().all(|status| [0, 200, 503].contains(status)), "{statuses:?}");
        drop(clients);
        eventually("it serves again", || status(router.client().send_post("/v1/completions", BODY, "")) == 200);
    }
    assert!(!router.engines().contains("\"unreachable\":true"), "no backend is blamed");
    assert!(router.engines().contains("\"state\":\"up\""));
    at_rest.is_back(&router);
}

/// The answer's status; 0 when the connection was reset, as it may be for those who were turned away while they sent.
fn status(client: &mut Client) -> u16 {
    let bytes = client.read_some_head();
    String::from_utf8_lossy(&bytes).split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

#[test]
fn idle_clients_at_the_limit_leave_room_for_those_who_are_served() {
    let origin = Origin::plain();
    let list = origin.url();
    let router = Router::start_by(limited(
        "ulimit -n 256",
        &[&["--static-backends", list.as_str(), "--workers", "2"][..], &RESTS_SOON].concat(),
    ));
    router.wait_for_backends(1);
    let mut early = router.client();
    assert_eq!(early.post("/v1/completions", BODY).status, 200);
    let idle: Vec<_> = (0..400).filter_map(|_| TcpStream::connect(router.address).ok()).collect();
    std::thread::sleep(Duration::from_millis(500));
    for _ in 0..20 {
        assert_eq!(early.post("/v1/completions", BODY).status, 200, "beside {} idle ones", idle.len());
    }
}

#[test]
fn a_panic_ends_its_connection_alone_and_leaves_nothing_behind() {
    let origin = Origin::plain();
    let list = origin.url();
    let mut start = locally(&[&["--static-backends", list.as_str(), "--workers", "1"][..], &RESTS_SOON].concat());
    start.env("TRIEWAY_TEST_PANICS", "1");
    let router = Router::start_by(start);
    router.wait_for_backends(1);
    let at_rest = AtRest::of(&router);
    let mut neighbour = router.client();
    for (number, point) in ["read", "chosen", "answering"].into_iter().cycle().take(30).enumerate() {
        let mut client = router.client();
        client.send_post("/v1/completions", BODY, &format!("X-Test-Panic: {point}\r\n"));
        assert!(client.ends_silently(), "{point}: its own connection ends");
        assert_eq!(
            neighbour.post("/v1/completions", BODY).status,
            200,
            "{point}: the worker's other connections go on"
        );
        assert_eq!(router.metric("trieway_panics_total"), (number + 1) as f64);
    }
    drop(neighbour);
    at_rest.is_back(&router);
}

#[test]
fn who_waits_in_the_accept_queue_at_sigterm_is_served() {
    let origin = Origin::plain();
    let mut router = Router::in_front_of(&[origin.url()], &["--workers", "2"]);
    for _ in 0..5 {
        assert_eq!(router.post("/v1/completions", BODY).status, 200);
    }
    // A stopped process accepts nothing: the kernel queues these, and the signal that ends it comes behind them.
    router.signal("STOP");
    let mut waiting: Vec<_> = (0..100).map(|_| router.client()).collect();
    for client in &mut waiting {
        client.send_post("/v1/completions", BODY, "");
    }
    router.signal("TERM");
    router.signal("CONT");
    for client in &mut waiting {
        // A worker may answer before the control plane has seen the signal: whether it says close is open.
        assert_eq!(client.response().status, 200);
        assert!(client.ends_silently());
    }
    assert_eq!(router.wait().code(), Some(0));
}

#[test]
fn the_spread_of_connections_and_requests_over_workers_is_reported() {
    let origin = Origin::plain();
    let router = Router::in_front_of(&[origin.url()], &["--workers", "4"]);
    let mut clients: Vec<_> = (0..64).map(|_| router.client()).collect();
    for client in &mut clients {
        assert_eq!(client.post("/v1/completions", &completion("m", "x")).status, 200);
    }
    let open = per_worker(&router, "trieway_worker_open_connections");
    assert_eq!((open.len(), open.iter().sum::<f64>()), (4, 65.0), "{open:?}");
    assert!(open.iter().all(|&n| n < 60.0), "one worker has nearly all: {open:?}");
    let requests = per_worker(&router, "trieway_worker_requests_total");
    assert!(requests.iter().sum::<f64>() >= 64.0 && requests.iter().all(|&n| n > 0.0), "{requests:?}");
}
