//! Several requests on one connection: each gets its own answer, in order; what a refused or unread body holds is never a
//! request; a client that closes one side is treated as the flag says.

mod support;

use std::io::Write;
use std::time::{Duration, Instant};

use support::origin::ok;
use support::{Origin, Router, chat, completion, eventually};

fn echo(delay: Duration) -> Origin {
    Origin::start(&["m"], move |peer, request| {
        std::thread::sleep(delay);
        peer.send(ok(&format!("{} {}", request.line(), String::from_utf8_lossy(&request.body))))
    })
}

fn post(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn requests_in_one_segment_are_answered_in_order_whoever_answers() {
    let origin = echo(Duration::from_millis(5));
    let router = Router::in_front_of(&[origin.url()], &[]);
    let mut client = router.client();
    let mut bytes = String::new();
    for i in 0..50 {
        bytes.push_str(&match i % 5 {
            0 => post("/v1/completions", &completion("m", &format!("number {i}"))),
            1 => format!("GET /any/{i} HTTP/1.1\r\nHost: t\r\n\r\n"),
            2 => "GET /version HTTP/1.1\r\nHost: t\r\n\r\n".to_owned(),
            3 => post("/v1/completions", &completion("nobody", "x")),
            _ => {
                format!("POST /any HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nn{i:03}\r\n0\r\n\r\n")
            }
        });
    }
    client.send(&bytes);
    for i in 0..50 {
        let answer = client.response();
        let (status, part) = match i % 5 {
            0 => (200, format!("number {i}\"")),
            1 => (200, format!("GET /any/{i} ")),
            2 => (200, "version".to_owned()),
            3 => (404, "model_not_found".to_owned()),
            _ => (200, format!("n{i:03}")),
        };
        assert_eq!(answer.status, status, "{i}: {}", answer.body_text());
        assert!(answer.body_text().contains(&part), "{i}: {}", answer.body_text());
    }
    assert!(client.stays_open());
    assert_eq!(origin.canonical().len(), 30);
}

#[test]
fn reading_ahead_is_bounded_and_loses_nothing() {
    let origin = echo(Duration::from_millis(1));
    let router = Router::in_front_of(&[origin.url()], &["--workers", "1"]);
    let before = router.resident_kib();
    let mut client = router.client();
    let mut sender = client.stream.try_clone().expect("a handle");
    let body = support::text(1, 10_000);
    let sending = std::thread::spawn(move || {
        for i in 0..1000 {
            sender.write_all(post(&format!("/any/{i}"), &body).as_bytes()).expect("sends");
        }
    });
    for i in 0..1000 {
        let answer = client.response();
        assert!(answer.body_text().starts_with(&format!("POST /any/{i} ")) && answer.body.len() > 10_000, "{i}");
    }
    sending.join().expect("all is sent");
    let held = router.resident_kib().saturating_sub(before);
    assert!(held < 8 << 10, "10 MB of pipelined requests took {held} KiB");
}

#[test]
fn an_unread_body_is_never_taken_for_requests() {
    let origin = echo(Duration::ZERO);
    let router = Router::start(&[
        "--static-backends",
        &origin.url(),
        "--static-models",
        "m",
        "--api-key",
        "k",
        "--max-body-size",
        "64KiB",
    ]);
    let inner = "GET /poison HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer k\r\n\r\n".repeat(2_000);
    let length = inner.len();
    let authorized = "Authorization: Bearer k\r\n";
    for (fields, status) in [
        (format!("Content-Length: {length}\r\n"), 401),
        ("Transfer-Encoding: chunked\r\n".to_owned(), 401),
        (format!("{authorized}Content-Length: {length}\r\n"), 413),
        (format!("{authorized}Expect: other\r\nContent-Length: {length}\r\n"), 417),
        (format!("{authorized}Expect: 100-continue\r\nContent-Length: {length}\r\n"), 413),
        (format!("{authorized}Transfer-Encoding: gzip\r\n"), 501),
        (format!("{authorized}Transfer-Encoding: chunked\r\n"), 400),
    ] {
        let mut client = router.client();
        client.try_send(format!("POST /v1/completions HTTP/1.1\r\nHost: t\r\n{fields}\r\n"));
        client.try_send(&inner);
        assert_eq!(client.response_to("POST").status, status, "{fields}");
        assert!(client.ends_silently(), "{fields}");
    }
    assert_eq!(origin.count(), 0);
    // A refusal after the body was read: what follows is a request.
    let mut client = router.client();
    let body = completion("nobody", &inner[..1000]);
    client.send(format!(
        "POST /v1/completions HTTP/1.1\r\nHost: t\r\n{authorized}Content-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    client.send(format!("GET /next HTTP/1.1\r\nHost: t\r\n{authorized}\r\n"));
    assert_eq!((client.response().status, client.response().status), (404, 200));
    assert_eq!(origin.received()[0].line(), "GET /next HTTP/1.1");
}

#[test]
fn an_answer_before_a_close_is_readable_whatever_is_sent_behind_the_request() {
    let long = "x".repeat(3 << 20);
    let answer = ok(&long);
    let origin = Origin::start(&["m"], move |peer, _| peer.send(&answer));
    let router = Router::in_front_of(&[origin.url()], &[]);
    for head in ["GET /any HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", "GET /any HTTP/1.0\r\n\r\n"] {
        let mut client = router.client();
        client.send(head);
        // More than is read ahead, so that the kernel holds some of it at the close.
        let mut sender = client.stream.try_clone().expect("a handle");
        let sending = std::thread::spawn(move || {
            let piece = vec![b'y'; 64 << 10];
            (0..8).all(|_| sender.write_all(&piece).is_ok())
        });
        std::thread::sleep(Duration::from_millis(50));
        let got = client.response();
        assert!(got.complete && got.body.len() == long.len(), "{head:?}: {} bytes", got.body.len());
        assert!(client.ends_silently());
        let _ = sending.join();
    }
    assert_eq!(origin.count(), 2);
}

fn cpu_ticks(router: &Router) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", router.pid())).expect("proc");
    let after_name = stat.rsplit(')').next().expect("fields");
    after_name.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("ticks")).sum()
}

#[test]
fn an_allowed_half_close_gets_its_whole_answer_and_costs_no_spinning() {
    let sse = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let origin = Origin::start(&["m"], move |peer, request| {
        std::thread::sleep(Duration::from_millis(800));
        if request.head.contains("chat") {
            peer.send(sse) && (0..3).all(|_| peer.send("9\r\ndata: x\n\n\r\n")) && peer.send("0\r\n\r\n")
        } else {
            peer.send(ok("{\"late\":1}"))
        }
    });
    let router = Router::in_front_of(&[origin.url()], &["--allow-half-close"]);
    let before = cpu_ticks(&router);
    for (path, body, expected) in [
        ("/v1/completions", completion("m", "x"), "{\"late\":1}".to_owned()),
        ("/v1/chat/completions", chat("m", "x"), "data: x\n\n".repeat(3)),
    ] {
        let mut client = router.client();
        // A second one behind it was sent before the half-close, and is answered, too.
        client.send(format!("{}{}", post(path, &body), post("/v1/completions", &completion("m", "y")))).half_close();
        let got = client.response();
        assert!(got.complete);
        assert_eq!(got.body_text(), expected);
        assert_eq!(client.response().body_text(), "{\"late\":1}");
        assert!(client.ends_silently());
    }
    let ticks = cpu_ticks(&router) - before;
    assert!(ticks < 60, "{ticks} of about 320 ticks of waiting were spent computing");
}

#[test]
fn a_full_close_is_found_when_half_closes_are_allowed_by_the_first_bytes_that_it_refuses() {
    let origin = Origin::start(&["m"], |peer, _| {
        peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while peer.send("9\r\ndata: x\n\n\r\n") {
            std::thread::sleep(Duration::from_millis(10));
        }
        peer.wait_for_end();
        false
    });
    let router = Router::in_front_of(&[origin.url()], &["--allow-half-close"]);
    let mut client = router.client();
    client.send(post("/v1/chat/completions", &chat("m", "x"))).until(b"data: x\n\n");
    let left = Instant::now();
    drop(client);
    eventually("the backend sees the end", || !origin.gone().is_empty());
    assert!(origin.gone()[0].duration_since(left) < Duration::from_millis(500));
}

/// Bytes that lie in the kernel, sent to the router by this client and not read by it.
fn unread(router: &Router, client: &support::Client) -> Option<usize> {
    let (ours, theirs) = (client.stream.local_addr().expect("an address").port(), router.address.port());
    let table = std::fs::read_to_string("/proc/net/tcp").expect("proc");
    let queues = |local: u16, peer: u16| {
        let ends = (format!(":{local:04X}"), format!(":{peer:04X}"));
        let line = table.lines().find(|line| {
            let mut fields = line.split_whitespace().skip(1);
            fields.next().is_some_and(|f| f.ends_with(&ends.0)) && fields.next().is_some_and(|f| f.ends_with(&ends.1))
        });
        let (sending, receiving) = line?.split_whitespace().nth(4)?.split_once(':')?;
        Some([sending, receiving].map(|hex| usize::from_str_radix(hex, 16).expect("a number")))
    };
    let (from, to) = (queues(ours, theirs)?, queues(theirs, ours)?);
    Some(from[0] + to[1])
}

/// What stands behind a request is not taken in with it, whatever the request's own length: each request is then copied at most
/// with what is read ahead.
#[test]
fn at_most_16_kib_are_read_ahead_behind_any_request() {
    let origin = Origin::start(&["m"], |peer, _| {
        peer.wait_for_end();
        false
    });
    let router = Router::in_front_of(&[origin.url()], &["--workers", "1"]);
    let small = "GET /any HTTP/1.1\r\nHost: t\r\n\r\n";
    let long = "x".repeat(700_000);
    let chunks = |n: usize| "5\r\nhello\r\n".repeat(n);
    for (what, first) in [
        ("no body", "GET /any HTTP/1.1\r\nHost: t\r\n\r\n".to_owned()),
        ("a long head", format!("GET /any HTTP/1.1\r\nHost: t\r\nX: {}\r\n\r\n", &long[..20_000])),
        ("a body", post("/any", &long)),
        (
            "one chunk",
            format!("POST /any HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\naae60\r\n{long}\r\n0\r\n\r\n"),
        ),
        (
            "many chunks",
            format!("POST /any HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n", chunks(40_000)),
        ),
    ] {
        let before = origin.count();
        let client = router.client();
        // All of it lies ready before a byte is read.
        router.signal("STOP");
        let behind = small.repeat((512 << 10) / small.len());
        let mut sender = client.stream.try_clone().expect("a handle");
        let all = format!("{first}{behind}");
        let sending = std::thread::spawn(move || sender.write_all(all.as_bytes()).is_ok());
        std::thread::sleep(Duration::from_millis(50));
        router.signal("CONT");
        eventually("the request is at its backend", || origin.count() > before);
        assert!(sending.join().expect("sends"));
        let mut read_ahead = usize::MAX;
        eventually("reading has come to rest", || {
            // Bytes that are on their way are counted at both ends for a moment.
            let taken = unread(&router, &client).and_then(|unread| behind.len().checked_sub(unread));
            let now = taken.unwrap_or(usize::MAX);
            std::thread::sleep(Duration::from_millis(20));
            let rests = now == read_ahead && now != usize::MAX;
            read_ahead = now;
            rests
        });
        assert!(read_ahead <= 16 << 10, "{what}: {read_ahead} bytes");
        assert!(read_ahead >= 12 << 10, "{what}: {read_ahead} bytes: the client's end would be noticed late");
    }
}
