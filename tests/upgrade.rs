//! `Upgrade`: a WebSocket is tunnelled once the backend has said 101, and not a byte earlier; everything else is an ordinary
//! request without the field.

mod support;

use std::collections::HashSet;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use support::origin::{Peer, ok};
use support::{Origin, Received, Router, eventually};

const ASK: &str = "GET /v1/realtime HTTP/1.1\r\nHost: t\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n";
const SWITCH: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: a\r\n\r\n";

fn one(handler: impl Fn(&mut Peer, &Received) -> bool + Send + Sync + 'static, flags: &[&str]) -> (Origin, Router) {
    let origin = Origin::start(&["m"], handler);
    let router = Router::in_front_of(&[origin.url()], &[&["--workers", "1"][..], flags].concat());
    (origin, router)
}

/// Sends back what comes, until it ends; then says so.
fn echo(peer: &mut Peer) {
    let mut bytes = [0; 65536];
    while let Ok(n @ 1..) = peer.stream.read(&mut bytes) {
        if peer.stream.write_all(&bytes[..n]).is_err() {
            return;
        }
    }
    peer.send("bye");
}

#[test]
fn both_directions_are_carried_after_the_switch_and_nothing_before() {
    let (origin, router) = one(
        |peer, request| {
            if !request.head.contains("realtime") {
                return peer.send(ok("{}"));
            }
            assert!(peer.came().ends_with(b"\r\n\r\n"), "bytes behind the head came before the switch");
            assert!(peer.is_quiet(), "bytes behind the head came before the switch");
            peer.send(format!("{SWITCH}hello"));
            echo(peer);
            false
        },
        &[],
    );
    let mut client = router.client();
    client.send(format!("{ASK}early GET /poison HTTP/1.1\r\n\r\n"));
    let switched = client.response();
    assert_eq!(
        (switched.status, switched.field("upgrade"), switched.field("connection")),
        (101, Some("websocket"), Some("Upgrade"))
    );
    assert_eq!(switched.field("sec-websocket-accept"), Some("a"));
    assert_eq!(client.until(b"HTTP/1.1\r\n\r\n"), b"helloearly GET /poison HTTP/1.1\r\n\r\n");
    client.send(b"\x00\xff binary").until(b"binary");
    // The client's end is passed on, and leaves the other direction open.
    client.half_close();
    assert_eq!(client.read_to_end(), b"bye");
    let asked = origin.received().pop().expect("a request");
    assert_eq!((asked.fields("upgrade"), asked.fields("connection")), (vec!["websocket"], vec!["Upgrade"]));
    assert_eq!(asked.fields("sec-websocket-key"), ["k"]);
    assert_eq!(router.get("/any").status, 200);
    let connections: HashSet<_> = origin.received().iter().map(|r| r.connection).collect();
    assert_eq!(connections.len(), 2, "a connection that was switched serves nothing else");
    eventually("no load is left", || router.engines().contains("\"in_flight\":0"));
}

#[test]
fn without_a_switch_what_follows_is_a_request_of_its_own() {
    let (origin, router) = one(|peer, request| peer.send(ok(request.line())), &[]);
    let second = "GET /second HTTP/1.1\r\nHost: t\r\n\r\n";
    for first in [
        ASK,
        "GET /x HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: foo\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: t\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: t\r\nUpgrade: websocket\r\n\r\n",
        "POST /x HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n\r\nhello",
        "GET /x HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n\r\nhello",
        "POST /x HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET /x HTTP/1.0\r\nHost: t\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n",
    ] {
        origin.forget();
        let mut client = router.client();
        client.send(format!("{first}{second}"));
        let target = first.split(' ').nth(1).expect("a target");
        assert!(client.response().body_text().contains(&format!(" {target} ")), "{first}");
        assert_eq!(client.response().body_text(), "GET /second HTTP/1.1", "{first}");
        let requests = origin.canonical();
        assert_eq!(requests.iter().map(|r| r.target.as_str()).collect::<Vec<_>>(), [target, "/second"], "{first}");
        assert_eq!(requests[0].values("upgrade").is_empty(), first != ASK, "{first}");
        assert!(requests[0].values("http2-settings").is_empty());
    }
    // The router answers this path itself, and has no WebSocket.
    let mut client = router.client();
    client.send(ASK.replace("/v1/realtime", "/version")).send(second);
    assert_eq!((client.response().status, client.response().status), (200, 200));
}

#[test]
fn a_switch_that_was_not_asked_for_is_502() {
    let (origin, router) = one(
        |peer, request| {
            let protocol: String = request.fields("x-protocol").iter().map(|p| format!("{p}\r\n")).collect();
            peer.send(format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n{protocol}\r\nevil"))
        },
        &[],
    );
    for (first, protocol) in [
        (ASK, "Upgrade: foo\r\n"),
        (ASK, ""),
        ("GET /x HTTP/1.1\r\nHost: t\r\n\r\n", "Upgrade: websocket\r\n"),
        ("GET /x HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: foo\r\n\r\n", "Upgrade: foo\r\n"),
        (
            "POST /x HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 1\r\n\r\nx",
            "Upgrade: websocket\r\n",
        ),
    ] {
        let field =
            if protocol.is_empty() { String::new() } else { format!("X-Protocol: {}\r\n", protocol.trim_end()) };
        let mut client = router.client();
        client.send(first.replacen("Host: t\r\n", &format!("Host: t\r\n{field}"), 1));
        let answer = client.response();
        assert_eq!((answer.status, answer.error_code().as_str()), (502, "backend_bad_response"), "{first} {protocol}");
        assert!(client.stays_open());
    }
    assert_eq!(origin.count(), 5);
}

#[test]
fn a_lot_is_carried_both_ways_at_once_in_bounded_memory() {
    let (_origin, router) = one(
        |peer, _| {
            peer.send(SWITCH);
            echo(peer);
            false
        },
        &[],
    );
    let mut client = router.client();
    assert_eq!(client.send(ASK).response().status, 101);
    let before = router.resident_kib();
    let mut sender = client.stream.try_clone().expect("a handle");
    let sending = std::thread::spawn(move || {
        for i in 0..200u32 {
            sender.write_all(&[i as u8; 64 << 10]).expect("sends");
        }
        sender.shutdown(std::net::Shutdown::Write).expect("ends");
    });
    std::thread::sleep(Duration::from_millis(200));
    let held = router.resident_kib().saturating_sub(before);
    assert!(held < 4 << 10, "a client that does not read makes the router hold {held} KiB");
    let all = client.read_to_end();
    sending.join().expect("all is sent");
    assert_eq!(all.len(), (200 * (64 << 10)) + 3);
    assert!(all.chunks(64 << 10).take(200).enumerate().all(|(i, piece)| piece.iter().all(|b| *b == i as u8)));
}

#[test]
fn an_idle_tunnel_ends_and_so_does_one_whose_either_side_breaks() {
    let waits = |peer: &mut Peer, request: &Received| {
        peer.send(SWITCH);
        if request.head.contains("X-Reset") {
            std::thread::sleep(Duration::from_millis(20));
            return peer.reset();
        }
        peer.wait_for_end();
        false
    };
    let (origin, router) = one(waits, &["--between-bytes-timeout-seconds", "0.3"]);
    let mut client = router.client();
    let started = Instant::now();
    assert_eq!(client.send(ASK).response().status, 101);
    assert!(client.ends_silently());
    assert!(started.elapsed() > Duration::from_millis(250), "{:?}", started.elapsed());
    eventually("the backend sees the end", || origin.gone().len() == 1);

    let mut client = router.client();
    assert_eq!(client.send(ASK).response().status, 101);
    client.reset();
    eventually("the backend sees the reset", || origin.gone().len() == 2);

    let mut client = router.client();
    assert_eq!(client.send(ASK.replace("Host: t\r\n", "Host: t\r\nX-Reset: 1\r\n")).response().status, 101);
    assert!(client.ends_silently());
    eventually("no load is left", || router.engines().contains("\"in_flight\":0"));
}
