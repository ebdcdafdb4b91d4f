//! What clients can make the router hold: what the head refuses is refused before the body, all bodies together have a bound,
//! and a body that was sent is let go of.
//!
//! The last tests run the router inside this process, so that an allocator of the test's own can count what its worker holds.

#![allow(unsafe_code, reason = "an allocator that counts, and the calling thread's id")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicIsize, Ordering::SeqCst};

use support::origin::{Peer, ok};
use support::{Client, Origin, Received, Router, completion, eventually, in_process, text};

struct Counting;

static WORKER: AtomicI32 = AtomicI32::new(0);
/// Bytes that the worker has asked for and not given back.
static HELD: AtomicIsize = AtomicIsize::new(0);

fn count(bytes: isize) {
    // SAFETY: gettid has no preconditions.
    if WORKER.load(SeqCst) != 0 && unsafe { libc::gettid() } == WORKER.load(SeqCst) {
        HELD.fetch_add(bytes, SeqCst);
    }
}

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise is the callee's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn head(path: &str, fields: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: t\r\n{fields}\r\n")
}

/// Asks whether a body of that length may be sent; gives what is said, an interim answer included.
fn asks(router: &Router, line: &str, fields: &str, bytes: usize) -> Client {
    let mut client = router.client();
    client
        .send(format!("{line} HTTP/1.1\r\nHost: t\r\n{fields}Expect: 100-continue\r\nContent-Length: {bytes}\r\n\r\n"));
    client
}

#[test]
fn a_body_that_nobody_reads_is_refused_by_its_head() {
    let origin = Origin::plain();
    let router = Router::start(&["--static-backends", &origin.url(), "--static-models", "m", "--api-key", "k"]);
    for line in ["GET /health", "GET /health/live", "GET /metrics", "GET /version"] {
        let answer = asks(&router, line, "", 60 << 20).response_to("GET");
        assert_eq!((answer.status, answer.error_code().as_str()), (413, "request_body_too_large"), "{line}");
        let mut chunked = router.client();
        chunked.send(format!("{line} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3c00000\r\n"));
        assert_eq!(chunked.response_to("GET").status, 413, "{line}");
    }
    let mut client = router.client();
    client.send("GET /version HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(
        (client.response().status, client.get("/version").status),
        (200, 200),
        "a small one is read and dropped"
    );
}

#[test]
fn a_key_at_its_limit_is_refused_by_the_head() {
    let origin = Origin::start(&["m"], |peer, request: &Received| {
        if request.head.contains("X-Wait") {
            peer.wait_for_end();
            return false;
        }
        peer.send(ok("{}"))
    });
    let router = Router::in_front_of(&[origin.url()], &["--max-inflight-per-key", "1"]);
    let key = "Authorization: Bearer a\r\n";
    let mut first = router.client();
    first.send(head("/any", &format!("{key}X-Wait: yes\r\n")));
    eventually("the first is at its backend", || origin.count() == 1);
    let mut refused = asks(&router, "POST /any", key, 1 << 20);
    let answer = refused.response_to("POST");
    assert_eq!((answer.status, answer.error_code().as_str()), (429, "too_many_requests_in_flight"));
    assert!(refused.ends_silently());
    // A short body is there with its head, and the client may go on.
    let mut short = router.client();
    for _ in 0..3 {
        short.send(format!("{}hello", head("/any", &format!("{key}Content-Length: 5\r\n"))));
        assert_eq!(short.response().status, 429);
    }
    assert_eq!(asks(&router, "POST /any", "Authorization: Bearer b\r\n", 1 << 20).response_to("POST").status, 100);
    drop(first);
    eventually("the key is free again", || {
        short.send(format!("{}hello", head("/any", &format!("{key}Content-Length: 5\r\n"))));
        short.response().status == 200
    });
}

#[test]
fn all_bodies_and_answers_together_keep_within_the_bound() {
    const EACH: usize = 300;
    const BOUND: usize = 64 << 20;
    let origin = Origin::start(&["m"], |peer: &mut Peer, request| {
        if !request.line().contains("/long") {
            return peer.send(ok("{}"));
        }
        let piece = vec![b'x'; 1 << 20];
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 104857600\r\n\r\n") && (0..100).all(|_| peer.send(&piece))
    });
    let flags = ["--workers", "1", "--max-body-size", "2MiB", "--max-buffered-bytes", "64MiB"];
    let router = Router::in_front_of(&[origin.url()], &flags);
    let before = router.resident_kib();
    let half = vec![b'x'; 500_000];
    let mut senders: Vec<_> = (0..EACH).map(|_| router.client()).collect();
    for sender in &mut senders {
        sender.try_send(head("/any", "Content-Length: 1000000\r\n"));
        sender.try_send(&half);
    }
    let mut readers: Vec<_> = (0..EACH).map(|_| router.client()).collect();
    for reader in &mut readers {
        reader.try_send("GET /long HTTP/1.1\r\nHost: t\r\n\r\n");
    }
    let rejected = || router.metric("trieway_rejected_requests_total{reason=\"buffered_bytes\"}");
    eventually("some are refused", || rejected() > 0.0);
    eventually("all answers have begun", || origin.count() == EACH);
    // Beside the bound: a small buffer for each, and what each connection is.
    let allowed = (BOUND >> 10) + 2 * EACH * 24 + (16 << 10);
    let peak = router.peak_resident_kib().saturating_sub(before) as usize;
    assert!(peak < allowed, "{peak} KiB were held, of {allowed} at most");
    let refused = senders.iter_mut().filter_map(|sender| {
        sender.stream.set_nonblocking(true).expect("mode");
        let there = sender.stream.peek(&mut [0; 1]).is_ok();
        sender.stream.set_nonblocking(false).expect("mode");
        there.then(|| sender.response())
    });
    let refused: Vec<_> = refused.collect();
    assert!(refused.len() > EACH / 4 && refused.len() < EACH, "{} of {EACH}", refused.len());
    for answer in refused {
        assert_eq!((answer.status, answer.error_code().as_str()), (503, "too_many_buffered_bytes"));
        assert!(answer.field("retry-after").is_some());
    }
    let full = asks(&router, "POST /any", "", 1_900_000).response_to("POST");
    assert_eq!((full.status, full.error_code().as_str()), (503, "too_many_buffered_bytes"), "by the head alone");
    assert_eq!(router.get("/any").status, 200, "short requests need none of it");
    drop((senders, readers));
    eventually("there is room again", || asks(&router, "POST /any", "", 1_900_000).response_to("POST").status == 100);
}

/// Requests that wait for a silent engine.
const WAITING: usize = 64;
const BODY: usize = 1_000_000;
const MOST_BYTES: isize = 64 << 10;

/// What one waiting request holds whose 1 MB body was sent.
fn held_by_one(path: &str, reused: bool, most: isize) {
    static SILENT: AtomicBool = AtomicBool::new(false);
    static ROUTER: Mutex<Option<(Origin, std::net::SocketAddr)>> = Mutex::new(None);
    let mut router = ROUTER.lock().expect("one test at a time");
    let (origin, address) = router.get_or_insert_with(|| {
        let origin = Origin::start(&["m"], |peer, _| {
            if SILENT.load(SeqCst) {
                peer.wait_for_end();
                return false;
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
            peer.send(ok("{}"))
        });
        let flags = format!("--static-backends {} --static-models m --upstream-idle-timeout-seconds 300", origin.url());
        let (address, shared) = in_process::router(&flags);
        eventually("the worker runs", || shared.shards[0].thread_id.load(SeqCst) != 0);
        WORKER.store(shared.shards[0].thread_id.load(SeqCst), SeqCst);
        (origin, address)
    });
    let mut clients: Vec<_> = (0..WAITING).map(|_| Client::connect(*address)).collect();
    // One text for all: what the trie knows of it is not theirs.
    let body = completion("m", &text(1, 1_000).repeat(BODY / 1_000));
    if reused {
        for client in &mut clients {
            client.send_post("/v1/completions", "{\"model\":\"m\"}", "");
        }
        clients.iter_mut().for_each(|client| assert_eq!(client.response().status, 200));
    }
    SILENT.store(true, SeqCst);
    origin.forget();
    let before = HELD.load(SeqCst);
    for client in &mut clients {
        client.send_post(path, &body, "");
    }
    eventually("all are at their backend", || origin.count() == WAITING);
    let connections = origin.received().iter().map(|r| r.connection).max().expect("some");
    assert!(connections >= WAITING - 1, "each has its own");
    let mut least = isize::MAX;
    eventually("their bodies are let go of", || {
        let now = (HELD.load(SeqCst) - before) / WAITING as isize;
        least = least.min(now);
        least < most
    });
    println!("{path}, reused {reused}: {least} bytes a waiting request");
    drop(clients);
    eventually("the backend is free", || origin.gone().len() % WAITING == 0);
    SILENT.store(false, SeqCst);
}

#[test]
fn a_waiting_request_does_not_hold_the_body_that_was_sent() {
    for reused in [false, true] {
        held_by_one("/any", reused, MOST_BYTES);
        // The key of its prompt stays: eight bytes for each 128.
        held_by_one("/v1/completions", reused, MOST_BYTES + (BODY / 16) as isize);
    }
}
