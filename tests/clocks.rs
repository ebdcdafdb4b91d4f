//! Each time limit counts the silence of its own side: while the other side is waited for, its clock stands still.

mod support;

use std::io::Read;
use std::time::Duration;

use support::origin::{Peer, ok};
use support::{Client, Origin, Received, Router, eventually};

/// A limit that is to pass, or not.
const SHORT: &str = "1";
/// One that never passes in a test.
const LONG: &str = "60";
/// Several times the short one, with the two ticks by which a limit may be late.
const LATER: Duration = Duration::from_millis(2500);

/// More than all buffers of the kernel between a backend and a client hold.
const MUCH: usize = 24 << 20;

const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

/// Ways of an answer's body, by the request's path and fields.
const WAYS: [(&str, &str); 3] = [
    ("/fixed", "GET /fixed HTTP/1.1\r\nHost: t\r\n\r\n"),
    ("/chunked", "GET /chunked HTTP/1.1\r\nHost: t\r\n\r\n"),
    ("/socket", "GET /socket HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"),
];

fn begins(path: &str) -> String {
    match path {
        "/fixed" => format!("HTTP/1.1 200 OK\r\nContent-Length: {MUCH}\r\n\r\n"),
        "/chunked" => format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{MUCH:x}\r\n"),
        _ => SWITCH.to_owned(),
    }
}

fn path(request: &Received) -> &str {
    request.line().split(' ').nth(1).expect("a target")
}

/// The whole answer at once, in whatever way it is asked for.
fn eager() -> Origin {
    Origin::start(&["m"], |peer, request| {
        let sent = peer.send(begins(path(request))) && peer.send(vec![b'x'; MUCH]);
        if path(request) == "/chunked" {
            peer.send("\r\n0\r\n\r\n");
        }
        if !sent || path(request) == "/socket" {
            let _ = peer.stream.shutdown(std::net::Shutdown::Write);
            peer.wait_for_end();
            return false;
        }
        true
    })
}

fn router(origin: &Origin, flags: &[&str]) -> Router {
    Router::in_front_of(&[origin.url()], &[&["--workers", "1"][..], flags].concat())
}

fn limits<'a>(between: &'a str, write: &'a str) -> [&'a str; 4] {
    ["--between-bytes-timeout-seconds", between, "--client-write-timeout-seconds", write]
}

/// Asks, and reads the head alone.
fn begun(router: &Router, ask: &str) -> Client {
    let mut client = router.client();
    assert!(client.send(ask).head().0 < 300);
    client
}

/// How much of the payload comes; framing has no `x`.
fn payload_bytes(client: &mut Client) -> usize {
    let payload = |bytes: &[u8]| bytes.iter().filter(|&&byte| byte == b'x').count();
    let mut came = payload(&client.read_buffered());
    let mut bytes = vec![0; 1 << 20];
    while came < MUCH {
        match client.stream.read(&mut bytes) {
            Ok(n @ 1..) => came += payload(&bytes[..n]),
            _ => break,
        }
    }
    came
}

#[test]
fn a_client_that_takes_its_time_is_not_taken_for_a_silent_backend() {
    let origin = eager();
    for splice in ["auto", "never"] {
        let router = router(&origin, &[&limits(SHORT, LONG)[..], &["--splice", splice]].concat());
        let clients = WAYS.map(|(path, ask)| (path, begun(&router, ask)));
        std::thread::sleep(LATER);
        for (path, mut client) in clients {
            assert_eq!(payload_bytes(&mut client), MUCH, "{path}, --splice {splice}");
        }
    }
}

#[test]
fn a_client_that_takes_nothing_is_given_up_whatever_the_backend_has() {
    let origin = eager();
    let router = router(&origin, &limits(LONG, SHORT));
    for (given_up, (path, ask)) in WAYS.into_iter().enumerate() {
        let client = begun(&router, ask);
        let error = format!(
            "vllm:request_errors_total{{server=\"{}\",model=\"\",error_type=\"client_timeout\"}}",
            origin.url()
        );
        let count = || router.metric(&error);
        eventually(&format!("{path}: the client is given up"), || count() as usize == given_up + 1);
        drop(client);
    }
}

#[test]
fn a_backend_that_falls_silent_is_given_up_however_long_the_client_may_take() {
    let origin = Origin::start(&["m"], |peer: &mut Peer, request| {
        peer.send(begins(path(request)));
        peer.send("some");
        peer.wait_for_end();
        false
    });
    let router = router(&origin, &limits(SHORT, LONG));
    for (given_up, (path, ask)) in WAYS.into_iter().enumerate() {
        let mut client = begun(&router, ask);
        client.until(b"some");
        let rest = client.read_to_end();
        assert!(rest.is_empty() || rest == b"\r\n", "{path}: {rest:?}");
        eventually("the backend sees it", || origin.gone().len() == given_up + 1);
    }
}

/// A WebSocket of which only one side sends is not silent, whichever it is.
#[test]
fn a_websocket_is_silent_only_when_neither_side_sends() {
    let origin = Origin::start(&["m"], |peer, request| {
        peer.send(SWITCH);
        let talks = request.head.contains("X-Talk");
        for _ in 0..15 {
            if talks {
                peer.send("x");
            }
            std::thread::sleep(LATER / 15);
        }
        peer.send("end");
        peer.wait_for_end();
        false
    });
    let router = router(&origin, &limits(SHORT, LONG));
    let ask = WAYS[2].1;
    let mut listener = begun(&router, &ask.replace("\r\n\r\n", "\r\nX-Talk: yes\r\n\r\n"));
    listener.until(b"end");
    let mut talker = begun(&router, ask);
    for _ in 0..15 {
        talker.send("x");
        std::thread::sleep(LATER / 15);
    }
    talker.until(b"end");
}

#[test]
fn a_limit_on_the_first_byte_does_not_count_how_long_the_request_took_to_come() {
    let origin = Origin::start(&["m"], |peer, _| peer.send(ok("{}")));
    let router = router(&origin, &["--first-byte-timeout-seconds", SHORT, "--between-bytes-timeout-seconds", SHORT]);
    let mut client = router.client();
    client.send("POST /any HTTP/1.1\r\nHost: t\r\nContent-Length: 15\r\n\r\n");
    for _ in 0..15 {
        std::thread::sleep(LATER / 15);
        client.send("x");
    }
    assert_eq!(client.response().status, 200);
}
