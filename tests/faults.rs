//! Backends that fail: each failure costs its own request, is told clearly, is never tried twice when it may have begun, and
//! leaves nothing behind.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use support::origin::{Peer, ok};
use support::{AtRest, Origin, RESTS_SOON, Received, Router, completion, eventually, text};

const STREAM_HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

fn one(origin: &Origin) -> Router {
    Router::in_front_of(&[origin.url()], &RESTS_SOON)
}

/// What a scripted backend does with the request whose `X-Fault` names it.
type Fault = (&'static str, fn(&mut Peer) -> bool);

fn script(faults: &'static [Fault]) -> Origin {
    Origin::start(&["m"], move |peer, request: &Received| {
        let named = request.fields("x-fault");
        match faults.iter().find(|(name, _)| named.contains(name)) {
            Some((_, act)) => act(peer),
            None => peer.send(ok("{}")),
        }
    })
}

fn with_fault(router: &Router, name: &str) -> support::Client {
    let mut client = router.client();
    client.send_post("/v1/completions", &completion("m", "x"), &format!("X-Fault: {name}\r\n"));
    client
}

const BEFORE_THE_ANSWER: &[Fault] = &[
    ("reset", Peer::reset),
    ("end", |_| false),
    ("reset within the head", |peer| peer.send("HTTP/1.1 200 OK\r\nContent-") && peer.reset()),
    ("end within the head", |peer| !peer.send("HTTP/1.1 200 OK\r\nContent-")),
    ("no HTTP", |peer| !peer.send("SSH-2.0-OpenSSH_9.6\r\n")),
    ("a head that is too large", |peer| {
        peer.send("HTTP/1.1 200 OK\r\nX-Large: ") && !peer.send("y".repeat(200 << 10)) && peer.reset()
    }),
    ("150 fields", |peer| !peer.send(format!("HTTP/1.1 200 OK\r\n{}\r\n", "X-Many: 1\r\n".repeat(150)))),
    ("two framings", |peer| {
        !peer.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    }),
    ("an unasked switch", |peer| {
        !peer.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nraw")
    }),
    ("a first chunk that is none", |peer| !peer.send(format!("{STREAM_HEAD}zz\r\n"))),
];

#[test]
fn a_failure_before_the_answer_is_one_502_and_is_not_tried_again() {
    let origin = script(BEFORE_THE_ANSWER);
    let spare = script(BEFORE_THE_ANSWER);
    let router = Router::in_front_of(&[origin.url(), spare.url()], &RESTS_SOON);
    let at_rest = AtRest::of(&router);
    let requests = || origin.count() + spare.count();
    for (name, _) in BEFORE_THE_ANSWER {
        // Neighbours on kept connections would be sent again, as they should: each fault gets a fresh one.
        eventually("kept connections are closed", || connections_to_backends(&router) == 0);
        let before = requests();
        let mut client = with_fault(&router, name);
        let response = client.response();
        assert_eq!(response.status, 502, "{name}: {}", response.body_text());
        assert!(response.complete && !response.error_code().is_empty(), "{name}");
        assert_eq!(requests(), before + 1, "{name}: tried again");
        assert_eq!(client.post("/v1/completions", &completion("m", "x")).status, 200, "{name}: the next request");
        assert_eq!(router.engines().matches("\"state\":\"up\"").count(), 2, "{name}");
    }
    at_rest.is_back(&router);
}

/// Established connections of the router to the test's backends, which keep them for a moment.
fn connections_to_backends(router: &Router) -> usize {
    let urls: Vec<_> = router
        .engines()
        .split("\"addresses\":[\"")
        .skip(1)
        .map(|r| r.split('"').next().unwrap_or_default().to_owned())
        .collect();
    let table = std::fs::read_to_string("/proc/net/tcp").expect("proc");
    let remote = |line: &&str| line.split_whitespace().nth(2).map(str::to_owned).unwrap_or_default();
    let ports: Vec<_> =
        urls.iter().filter_map(|u| u.rsplit(':').next()?.parse::<u16>().ok()).map(|p| format!(":{p:04X}")).collect();
    assert!(!ports.is_empty(), "no addresses in {}", router.engines());
    let established = table.lines().filter(|line| line.split_whitespace().nth(3) == Some("01"));
    established.filter(|line| ports.iter().any(|port| remote(line).ends_with(port.as_str()))).count()
}

const WITHIN_THE_ANSWER: &[Fault] = &[
    ("reset behind the head", |peer| peer.send(STREAM_HEAD) && pause() && peer.reset()),
    ("reset behind two events", |peer| {
        peer.send(format!("{STREAM_HEAD}{}", "3\r\none\r\n".repeat(2))) && pause() && peer.reset()
    }),
    ("end without a last chunk", |peer| !peer.send(format!("{STREAM_HEAD}3\r\none\r\n"))),
    ("end within a chunk", |peer| !peer.send(format!("{STREAM_HEAD}ff\r\none"))),
    ("end within a chunk's size", |peer| !peer.send(format!("{STREAM_HEAD}3\r\none\r\n1"))),
    ("a later chunk that is none", |peer| {
        peer.send(format!("{STREAM_HEAD}3\r\none\r\n")) && pause() && !peer.send("zz\r\n")
    }),
    ("a chunk longer than its size", |peer| {
        peer.send(format!("{STREAM_HEAD}3\r\none\r\n")) && pause() && !peer.send("3\r\nfour\r\n0\r\n\r\n")
    }),
    ("a short body", |peer| !peer.send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\npart")),
    ("a short body and a reset", |peer| {
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\npart") && pause() && peer.reset()
    }),
];

fn pause() -> bool {
    std::thread::sleep(Duration::from_millis(30));
    true
}

#[test]
fn a_failure_within_the_answer_breaks_visibly_and_is_not_tried_again() {
    let origin = script(WITHIN_THE_ANSWER);
    let router = one(&origin);
    let at_rest = AtRest::of(&router);
    for (name, _) in WITHIN_THE_ANSWER {
        let before = origin.count();
        let mut client = with_fault(&router, name);
        let response = client.response();
        assert_eq!(response.status, 200, "{name}");
        assert!(!response.complete, "{name}: looks complete: {:?}", response.body_text());
        assert!(client.ends_silently(), "{name}: bytes behind the break");
        assert_eq!(origin.count(), before + 1, "{name}: tried again");
    }
    let errors = format!("vllm:request_errors_total{{server=\"{}\",model=\"m\",error_type=", origin.url());
    let count = |kind: &str| router.metric(&format!("{errors}\"{kind}\"}}"));
    assert_eq!(count("broken") + count("bad_response"), WITHIN_THE_ANSWER.len() as f64);
    at_rest.is_back(&router);
}

#[test]
fn bytes_that_trickle_arrive_whole_in_both_directions() {
    let origin = Origin::start(&["m"], |peer, request| {
        let answer = format!(
            "{STREAM_HEAD}5;x=y\r\nhello\r\n{:x}\r\n{}\r\n0\r\nT: 1\r\n\r\n",
            request.body.len(),
            String::from_utf8_lossy(&request.body)
        );
        answer.as_bytes().chunks(1).all(|byte| {
            std::thread::sleep(Duration::from_micros(300));
            peer.send(byte)
        })
    });
    let router = one(&origin);
    let at_rest = AtRest::of(&router);
    let body = completion("m", "trickle");
    let mut client = router.client();
    let request = format!("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    for byte in request.as_bytes().chunks(1) {
        client.send(byte);
        std::thread::sleep(Duration::from_micros(300));
    }
    let response = client.response();
    assert!(response.complete);
    assert_eq!(response.body_text(), format!("hello{body}"));
    drop(client);
    at_rest.is_back(&router);
}

#[test]
fn a_backend_that_restarts_loses_its_prefixes_and_no_request_fails_meanwhile() {
    let answer = |peer: &mut Peer, _: &Received| peer.send(ok("{}"));
    let (a, b) = (Origin::start(&["m"], answer), Origin::start(&["m"], answer));
    let flags = ["--static-backend-health-check-interval", "0.2"];
    let router = Router::in_front_of(&[a.url(), b.url()], &[&flags[..], &RESTS_SOON].concat());
    let prompt = completion("m", &text(1, 4_000));
    let send = || assert_eq!(router.post("/v1/completions", &prompt).status, 200);
    send();
    let (home, other) = if a.count() == 1 { (a, &b) } else { (b, &a) };
    for _ in 0..5 {
        send();
    }
    assert_eq!(home.count(), 6, "it is warm there");
    let address = home.kill();
    for _ in 0..40 {
        send();
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(other.count(), 40, "all of them go to the one that is left");
    let home = Origin::start_at(address, &["m"], answer);
    eventually("it is up again", || router.engines().matches("\"state\":\"up\"").count() == 2);
    for _ in 0..40 {
        send();
    }
    assert_eq!((home.count(), other.count()), (0, 80), "the prefix stays where it was served last");
}

#[test]
fn an_answer_never_takes_a_backend_down_and_what_is_no_failure_never_ejects_it() {
    let served = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&served);
    let answer = move |peer: &mut Peer, _: &Received| {
        let status = ["400 Bad Request", "429 Too Many Requests", "503 Service Unavailable", "500 Oh", "200 OK"]
            [(counter.fetch_add(1, Ordering::SeqCst) / 50).min(4)];
        peer.send(format!("HTTP/1.1 {status}\r\nRetry-After: 7\r\nX-Own: yes\r\nContent-Length: 8\r\n\r\nthe body"))
    };
    let (a, b) = (Origin::start(&["m"], answer.clone()), Origin::start(&["m"], answer));
    let router = Router::in_front_of(&[a.url(), b.url()], &RESTS_SOON);
    let prompt = completion("m", &text(2, 4_000));
    let mut client = router.client();
    for i in 0..220 {
        let response = client.post("/v1/completions", &prompt);
        let expected = [400, 429, 503, 500, 200][(i / 50).min(4)];
        let fields = (response.field("retry-after"), response.field("x-own"));
        assert_eq!(
            (response.status, fields, response.body_text().as_str()),
            (expected, (Some("7"), Some("yes")), "the body")
        );
        assert!(expected == 500 || expected == 200 || !router.engines().contains("\"ejected\":true"), "{i}");
    }
    assert_eq!(served.load(Ordering::SeqCst), 220, "none was sent twice");
    assert_eq!(router.engines().matches("\"state\":\"up\"").count(), 2);
    assert!(!router.engines().contains("\"unreachable\":true"));
}

/// A listening socket whose backlog is full: the kernel drops further SYNs. The sockets keep it so.
fn deaf() -> (TcpListener, Vec<socket2::Socket>) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("socket");
    socket.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().expect("address").into()).expect("binds");
    socket.listen(1).expect("listens");
    let address = socket.local_addr().expect("address");
    let mut held = Vec::new();
    loop {
        let next = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("socket");
        let connected = next.connect_timeout(&address, Duration::from_millis(200)).is_ok();
        held.push(next);
        if !connected {
            return (socket.into(), held);
        }
    }
}

#[test]
fn a_backend_that_drops_syns_is_left_for_another_after_the_connect_limit() {
    let (listener, _held) = deaf();
    let dead = format!("http://{}", listener.local_addr().expect("address"));
    let origin = Origin::plain();
    let list = format!("{dead},{}", origin.url());
    let flags = [
        "--static-backends",
        &list,
        "--static-models",
        "m,m",
        "--connect-timeout-seconds",
        "0.3",
        "--static-backend-health-check-interval",
        "3600",
        "--routing-logic",
        "roundrobin",
    ];
    let router = Router::start(&[&flags[..], &RESTS_SOON].concat());
    let at_rest = AtRest::of(&router);
    let started = Instant::now();
    for _ in 0..10 {
        assert_eq!(router.post("/v1/completions", &completion("m", "x")).status, 200);
    }
    assert!(
        started.elapsed() < Duration::from_secs(3),
        "one of them waits for the limit, the others know: {:?}",
        started.elapsed()
    );
    assert_eq!(origin.count(), 10);
    let timeouts = router
        .metric(&format!("vllm:request_errors_total{{server=\"{dead}\",model=\"m\",error_type=\"connect_timeout\"}}"));
    assert_eq!(timeouts, 1.0);
    at_rest.is_back(&router);
}

#[test]
fn a_backend_that_accepts_and_hangs_harms_only_its_own_requests() {
    let hung = TcpListener::bind("127.0.0.1:0").expect("binds");
    let origin = Origin::start(&["good"], |peer, _| peer.send(ok("{}")));
    let list = format!("http://{},{}", hung.local_addr().expect("address"), origin.url());
    let flags = [
        "--static-backends",
        &list,
        "--static-models",
        "bad,good",
        "--no-static-backend-health-checks",
        "--first-byte-timeout-seconds",
        "1.5",
        "--workers",
        "1",
    ];
    let router = Router::start(&[&flags[..], &RESTS_SOON].concat());
    let at_rest = AtRest::of(&router);
    let mut waiting: Vec<_> = (0..60).map(|_| router.client()).collect();
    for client in &mut waiting {
        client.send_post("/v1/completions", &completion("bad", "x"), "");
    }
    let large = format!("{{\"model\":\"bad\",\"prompt\":\"{}\"}}", "y".repeat(20 << 20));
    waiting.push(router.client());
    waiting[60].send_post("/v1/completions", &large, "");
    let mut client = router.client();
    let mut times: Vec<_> = (0..50)
        .map(|_| {
            let started = Instant::now();
            assert_eq!(client.post("/v1/completions", &completion("good", "x")).status, 200);
            started.elapsed()
        })
        .collect();
    times.sort_unstable();
    assert!(times[45] < Duration::from_millis(100), "the other model's requests are not held up: {times:?}");
    for client in &mut waiting {
        let response = client.response();
        assert_eq!((response.status, response.error_code().as_str()), (504, "backend_timeout"));
    }
    drop((waiting, client));
    at_rest.is_back_but_for_marks(&router);
}

#[test]
fn a_backend_that_freezes_is_taken_out_and_comes_back_when_it_thaws() {
    let (a, b) = (Origin::plain(), Origin::plain());
    let flags = [
        "--static-backend-health-check-interval",
        "0.1",
        "--static-backend-health-check-timeout-seconds",
        "0.2",
        "--first-byte-timeout-seconds",
        "0.3",
    ];
    let router = Router::in_front_of(&[a.url(), b.url()], &[&flags[..], &RESTS_SOON].concat());
    let at_rest = AtRest::of(&router);
    let prompt = completion("m", &text(3, 500));
    assert_eq!(router.post("/v1/completions", &prompt).status, 200);
    let (home, other) = if a.count() == 1 { (&a, &b) } else { (&b, &a) };
    home.freeze(true);
    assert_eq!(router.post("/v1/completions", &prompt).status, 504);
    assert_eq!(other.count(), 0, "a generation that may have begun is not started elsewhere");
    eventually("it is taken out", || router.engines().contains("\"state\":\"down\""));
    assert_eq!(router.post("/v1/completions", &prompt).status, 200);
    home.freeze(false);
    eventually("it is back", || router.engines().matches("\"state\":\"up\"").count() == 2);
    at_rest.is_back_but_for_marks(&router);
}

/// Answers 413 after the first 64 KiB of a request and closes, with the rest unread: the close is a reset.
fn refuses_early() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let url = format!("http://{}", listener.local_addr().expect("address"));
    let posts = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&posts);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            let counter = Arc::clone(&counter);
            std::thread::spawn(move || refuse_early(stream, &counter));
        }
    });
    (url, posts)
}

fn refuse_early(mut stream: TcpStream, posts: &AtomicUsize) {
    let mut bytes = vec![0; 64 << 10];
    let Ok(n) = stream.read(&mut bytes) else { return };
    if bytes[..n].starts_with(b"GET") {
        let _ = stream.write_all(ok("{\"data\":[{\"id\":\"m\"}]}").as_bytes());
    } else {
        posts.fetch_add(1, Ordering::SeqCst);
        if stream.read_exact(&mut bytes).is_ok() {
            let _ = stream.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\nX-Own: 1\r\n\r\nearly");
        }
    }
}

#[test]
fn an_early_answer_to_a_large_body_is_relayed_and_neither_connection_goes_on() {
    let (url, posts) = refuses_early();
    let flags = ["--static-backends", &url, "--static-models", "m", "--no-static-backend-health-checks"];
    let router = Router::start(&[&flags[..], &RESTS_SOON].concat());
    let body = format!("{{\"model\":\"m\",\"prompt\":\"{}GET /evil HTTP/1.1\\r\\n\"}}", "y".repeat(20 << 20));
    let refused = || {
        let mut client = router.client();
        let response = client.post("/v1/completions", &body);
        let own = response.field("x-own");
        assert_eq!((response.status, response.body_text().as_str(), own), (413, "early", Some("1")));
        assert_eq!(response.field("connection"), Some("close"));
        assert!(client.ends_silently());
    };
    // What the allocator keeps after the first large bodies is no leak; what further ones add would be.
    (0..4).for_each(|_| refused());
    let at_rest = AtRest::of(&router);
    (0..8).for_each(|_| refused());
    assert_eq!(posts.load(Ordering::SeqCst), 12, "none is sent again");
    let reuses = format!("trieway_upstream_reuses_total{{server=\"{url}\",model=\"m\"}}");
    assert_eq!(router.metric(&reuses), 0.0);
    at_rest.is_back_but_for_marks(&router);
}
