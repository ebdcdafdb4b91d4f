//! Tagged requests over everything at once: keep-alive, pipelining, chunks, streams, clients that leave and backends that
//! fail. Every answer that arrives belongs to the request that asked for it. `TEST_REQUESTS` sets how many are sent, and
//! `TEST_ENGINES` (URLs, with commas) sends them to engines of `trieway-loadtest` instead of this test's own backends.

mod connection_model;
mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use connection_model::Random;
use support::canonical::http_model;
use support::origin::{Peer, ok};
use support::{Client, Origin, Received, Router};

const CLIENTS: u64 = 8;

/// What an engine of `trieway-loadtest` is asked to do to a request; this test's own backends take turns of their own.
const ENGINE_FAULTS: &[&str] = &[
    "surplus",
    "close",
    "no-length",
    "reset-before-head",
    "fin-before-head",
    "reset-after=1",
    "fin-in-chunk",
    "short-length",
    "both-lengths",
    "bad-chunk",
    "bad-head",
    "big-head",
    "1xx",
    "101",
    "early-413",
    "status=429",
];

/// Answers with the request's tag, by one framing or another; at times it fails instead.
fn backend() -> Origin {
    let turn = AtomicU64::new(0);
    Origin::start(&["m"], move |peer, request| answer(peer, request, turn.fetch_add(1, Ordering::Relaxed)))
}

fn answer(peer: &mut Peer, request: &Received, turn: u64) -> bool {
    let tag = request.fields("x-tag").join("+");
    let body = format!("[{tag}] {} bytes", request.body.len());
    let half = body.len() / 2;
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let chunked =
        format!("HTTP/1.1 200 OK\r\nX-Tag: {tag}\r\nTransfer-Encoding: chunked\r\n\r\n{}", chunk(&body[..half]));
    match turn % 23 {
        0..8 => peer.send(ok(&body).replace("\r\n\r\n", &format!("\r\nX-Tag: {tag}\r\n\r\n"))),
        8..14 => peer.send(&chunked) && peer.send(format!("{}0\r\n\r\n", chunk(&body[half..]))),
        14 => peer.send(format!(
            "HTTP/1.1 103 Early Hints\r\nX-Tag: {tag}\r\n\r\n{chunked}{}0\r\n\r\n",
            chunk(&body[half..])
        )),
        15 => {
            peer.send(format!("HTTP/1.1 200 OK\r\nX-Tag: {tag}\r\n\r\n{body}"));
            false
        }
        16 => {
            // More than was announced: what is behind the answer is nobody's.
            let poison = "HTTP/1.1 200 OK\r\nX-Tag: poison\r\nContent-Length: 8\r\n\r\n[poison]";
            peer.send(format!("{}{poison}", ok(&body).replace("\r\n\r\n", &format!("\r\nX-Tag: {tag}\r\n\r\n"))))
        }
        17 => {
            peer.send(&chunked);
            false
        }
        18 => {
            peer.send(&chunked);
            peer.reset()
        }
        19 => peer.send(format!("{chunked}zz\r\n")),
        20 => false,
        21 => peer.reset(),
        _ => peer.send("HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"),
    }
}

#[derive(Default)]
struct Tally {
    sent: AtomicU64,
    answered: AtomicU64,
    /// Answered by an error of the router's own, or cut off.
    failed: AtomicU64,
    /// Not waited for.
    left: AtomicU64,
}

fn write_request(random: &mut Random, tag: &str, out: &mut Vec<u8>) {
    let prompt = support::text(random.next() % 8, 40 + random.below(400));
    let body =
        format!("{{\"model\":\"m\",\"prompt\":\"{prompt}\",\"max_tokens\":2,\"stream\":{}}}", random.below(2) == 0);
    let mut head = format!("POST /v1/completions HTTP/1.1\r\nHost: t\r\nX-Tag: {tag}\r\n");
    if random.below(4) == 0 {
        head.push_str(&format!("X-Fault: {}\r\n", random.one_of(ENGINE_FAULTS)));
    }
    if random.below(3) == 0 {
        let (first, second) = body.split_at(random.below(body.len() - 1) + 1);
        out.extend_from_slice(
            format!(
                "{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n",
                first.len(),
                second.len()
            )
            .as_bytes(),
        );
    } else {
        out.extend_from_slice(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
    }
}

/// Sends a few requests in a row on this connection and reads their answers. False: it is of no more use.
fn burst(client: &mut Client, random: &mut Random, next: &mut u64, name: &str, tally: &Tally) -> bool {
    let tags: Vec<String> = (0..1 + random.below(4) as u64).map(|i| format!("{name}-{}", *next + i)).collect();
    *next += tags.len() as u64;
    let mut bytes = Vec::new();
    tags.iter().for_each(|tag| write_request(random, tag, &mut bytes));
    tally.sent.fetch_add(tags.len() as u64, Ordering::Relaxed);
    let cut = random.below(bytes.len());
    if !(client.try_send(&bytes[..cut]) && client.try_send(&bytes[cut..])) {
        return false;
    }
    for (i, tag) in tags.iter().enumerate() {
        if random.below(60) == 0 {
            tally.left.fetch_add((tags.len() - i) as u64, Ordering::Relaxed);
            return false;
        }
        let answer = client.response();
        if answer.status == 200 {
            assert_eq!(answer.field("x-tag"), Some(tag.as_str()), "another request's answer: {}", answer.body_text());
            let text = answer.body_text();
            let tags_in_body = text.matches('[').count();
            assert!(tags_in_body <= 1 || !text.contains("poison"), "{text}");
            assert!(!answer.complete || text.contains(&format!("[{tag}]")), "the body of another answer: {text}");
        } else {
            assert!(matches!(answer.status, 413 | 429 | 502), "{}", answer.head);
        }
        let counted = if answer.complete && answer.status < 500 { &tally.answered } else { &tally.failed };
        counted.fetch_add(1, Ordering::Relaxed);
        if !answer.complete || answer.field("connection") == Some("close") {
            tally.left.fetch_add((tags.len() - i - 1) as u64, Ordering::Relaxed);
            return false;
        }
    }
    true
}

fn send_all(address: SocketAddr, number: u64, requests: u64, tally: &Tally) {
    let mut random = Random(number);
    let mut sent = 0;
    while sent < requests {
        let mut client = Client::connect(address);
        while sent < requests && burst(&mut client, &mut random, &mut sent, &format!("c{number}"), tally) {}
        if random.below(4) == 0 {
            client.reset();
        }
    }
}

#[test]
fn every_answer_belongs_to_the_request_that_asked_for_it() {
    let requests: u64 = std::env::var("TEST_REQUESTS").map_or(6_000, |n| n.parse().expect("a number"));
    let engines = std::env::var("TEST_ENGINES").unwrap_or_default();
    let own: Vec<_> = if engines.is_empty() { (0..2).map(|_| backend()).collect() } else { Vec::new() };
    let urls: Vec<_> = match engines.as_str() {
        "" => own.iter().map(Origin::url).collect(),
        list => list.split(',').map(str::to_owned).collect(),
    };
    let router = Router::in_front_of(&urls, &[]);
    let tally = Arc::new(Tally::default());
    let address = router.address;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let tally = Arc::clone(&tally);
            std::thread::spawn(move || send_all(address, number, requests / CLIENTS, &tally))
        })
        .collect();
    for client in clients {
        client.join().expect("no answer is another's");
    }
    let [sent, answered, failed, left] =
        [&tally.sent, &tally.answered, &tally.failed, &tally.left].map(|count| count.load(Ordering::Relaxed));
    println!("{sent} sent, {answered} answered, {failed} failed, {left} not waited for");
    assert!(sent >= requests && answered > sent / 3, "{answered} of {sent} are answered");
    let unloaded = || router.engines().matches("\"in_flight\":0").count() == urls.len();
    support::eventually("no load is left", unloaded);
    for origin in &own {
        origin.canonical();
    }
}
