//! The router's own paths under attack: probes are answered, backends are probed and requests served whatever people ask
//! for, and what is too much is turned away.

mod support;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use support::{Client, Origin, RESTS_SOON, Router, completion, eventually};

/// Connections that ask for a page again and again, each as soon as it has its answer.
struct Attack {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicUsize>,
    turned_away: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Attack {
    fn start(address: SocketAddr, path: &str, connections: usize) -> Self {
        const THREADS: usize = 2;
        let attack =
            Attack { stop: Arc::default(), answers: Arc::default(), turned_away: Arc::default(), threads: vec![] };
        let (stop, answers, turned_away) = (&attack.stop, &attack.answers, &attack.turned_away);
        let threads = (0..THREADS)
            .map(|_| {
                let (stop, answers, turned_away) = (stop.clone(), answers.clone(), turned_away.clone());
                let request = format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n");
                std::thread::spawn(move || {
                    let mut clients: Vec<_> = (0..connections / THREADS).map(|_| Client::connect(address)).collect();
                    while !stop.load(Relaxed) {
                        for client in &mut clients {
                            client.send(&request);
                        }
                        for client in &mut clients {
                            let answer = client.response();
                            answers.fetch_add(1, Relaxed);
                            if answer.status == 503 {
                                assert_eq!(answer.error_code(), "router_busy");
                                assert!(answer.field("retry-after").is_some(), "{}", answer.head);
                                turned_away.fetch_add(1, Relaxed);
                            } else {
                                assert_eq!(answer.status, 200);
                            }
                        }
                    }
                })
            })
            .collect();
        Attack { threads, ..attack }
    }

    /// Ends it; gives how many answers there were, and how many of them said to come again.
    fn end(self) -> (usize, usize) {
        self.stop.store(true, Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("every answer is a page or 503"));
        (self.answers.load(Relaxed), self.turned_away.load(Relaxed))
    }
}

/// A page, however often it takes: others may have all places now.
fn metric(router: &Router, name: &str) -> f64 {
    let mut text = String::new();
    eventually("/metrics is answered", || {
        let answer = router.get("/metrics");
        text = answer.body_text();
        answer.status == 200
    });
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn whoever_asks_for_pages_holds_up_neither_probes_nor_backends_nor_requests() {
    let origin = Origin::plain();
    let flags = [
        "--workers",
        "1",
        "--static-backend-health-check-interval",
        "0.1",
        "--static-backend-health-check-timeout-seconds",
        "2",
    ];
    let router = Router::in_front_of(&[origin.url()], &[&flags[..], &RESTS_SOON].concat());
    for path in ["/metrics", "/engines", "/v1/models"] {
        let (renders, shed) = (
            metric(&router, "trieway_control_renders_total"),
            metric(&router, "trieway_rejected_requests_total{reason=\"control_limit\"}"),
        );
        let began = Instant::now();
        let attack = Attack::start(router.address, path, 600);
        let (mut live, mut health) = (router.client(), router.client());
        let mut longest = Duration::ZERO;
        while began.elapsed() < Duration::from_millis(2500) {
            let asked = Instant::now();
            assert_eq!(live.get("/health/live").status, 200);
            assert_eq!(health.get("/health").status, 200);
            assert_eq!(router.get("/health/live").status, 200, "a connection of its own");
            longest = longest.max(asked.elapsed());
            assert_eq!(router.post("/v1/completions", &completion("m", "x")).status, 200);
        }
        let (answers, turned_away) = attack.end();
        let seconds = began.elapsed().as_secs_f64();
        assert!(longest < Duration::from_secs(5), "{path}: a probe took {longest:?}");
        assert!(turned_away > 0 && turned_away < answers, "{path}: {turned_away} of {answers}");
        let grown = metric(&router, "trieway_control_renders_total") - renders;
        assert!(grown <= 50.0 * seconds + 10.0, "{path}: {grown} renderings in {seconds} s");
        let counted = metric(&router, "trieway_rejected_requests_total{reason=\"control_limit\"}") - shed;
        assert!(counted >= turned_away as f64, "{path}: {counted} counted of {turned_away}");
    }
    let down: Vec<_> = router.log().into_iter().filter(|line| line.contains(" is down")).collect();
    assert!(down.is_empty(), "{down:?}");
    // With all connections gone, so is what they held.
    eventually("the places are free", || router.get("/engines").status == 200);
}

/// Clients that ask and do not read keep their places, and what is kept for them is bounded.
#[test]
fn pages_that_nobody_reads_hold_bounded_memory_and_no_probe() {
    let origin = Origin::plain();
    let router = Router::in_front_of(&[origin.url()], &["--workers", "1", "--client-write-timeout-seconds", "1"]);
    let before = router.resident_kib();
    let mut silent = Vec::new();
    for _ in 0..300 {
        let mut stream = TcpStream::connect(router.address).expect("connects");
        socket2::SockRef::from(&stream).set_recv_buffer_size(4096).expect("option");
        stream.set_write_timeout(Some(Duration::from_millis(1))).expect("option");
        let request = "GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n".repeat(100);
        // What the router does not read is not taken.
        let _ = stream.write(request.as_bytes());
        silent.push(stream);
    }
    for _ in 0..50 {
        assert_eq!(router.get("/health/live").status, 200);
        assert_eq!(router.get("/health").status, 200);
    }
    let grown_kib = router.resident_kib().saturating_sub(before);
    assert!(grown_kib < 64 << 10, "{grown_kib} KiB for 300 connections");
    eventually("who does not read loses its place", || router.get("/metrics").status == 200);
}

/// Calls to a backend that hangs have places of their own.
#[test]
fn calls_that_hang_take_no_place_of_a_page() {
    let origin = Origin::start(&["m"], |peer, _| {
        peer.wait_for_end();
        false
    });
    let router = Router::in_front_of(&[origin.url()], &["--workers", "1"]);
    let id = origin.url().replace("://", "%3A%2F%2F");
    let mut hanging: Vec<_> = (0..8).map(|_| router.client()).collect();
    for client in &mut hanging {
        client.send(format!("POST /sleep?id={id} HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n"));
    }
    eventually("all places are taken", || origin.count() == hanging.len());
    let ninth = router
        .client()
        .send(format!("POST /wake_up?id={id} HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n"))
        .response();
    assert_eq!((ninth.status, ninth.error_code().as_str()), (503, "router_busy"));
    assert_eq!((router.get("/metrics").status, router.get("/engines").status), (200, 200));
}
