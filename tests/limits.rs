//! Sizes: what is too large is refused with an answer that its sender can read, decided from what is announced, without
//! memory for it; what is just within the limit passes.

mod support;

use support::origin::ok;
use support::{Client, Origin, Response, Router};

fn stage(flags: &[&str]) -> (Origin, Router) {
    let origin = Origin::start(&["m"], |peer, _| peer.send(ok("{}")));
    let router = Router::in_front_of(&[origin.url()], flags);
    (origin, router)
}

fn refused(router: &Router, bytes: &[u8], status: u16, code: &str) {
    let mut client = router.client();
    client.try_send(bytes);
    let answer = client.response();
    let what = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
    assert_eq!((answer.status, answer.error_code().as_str()), (status, code), "{what}: {}", answer.body_text());
    assert_eq!(answer.field("connection"), Some("close"), "{what}");
    assert!(client.ends_silently(), "{what}");
}

fn fields(count: usize) -> String {
    (0..count).map(|i| format!("X-{i}: y\r\n")).collect()
}

#[test]
fn heads_beyond_a_limit_are_refused_by_what_they_exceed() {
    let (origin, router) = stage(&[]);
    let head = |line: &str, more: &str| format!("{line}\r\nHost: t\r\n{more}\r\n");
    let get = |more: &str| head("GET /any HTTP/1.1", more);
    for count in [128, 129, 255, 256, 300, 1000] {
        refused(&router, get(&fields(count)).as_bytes(), 431, "too_many_header_fields");
    }
    for bytes in [65 << 10, 1 << 20] {
        refused(&router, get(&format!("X: {}\r\n", "y".repeat(bytes))).as_bytes(), 431, "request_head_too_large");
    }
    // No line end ever, and no colon ever: judged as soon as it is too long.
    refused(
        &router,
        format!("GET /any HTTP/1.1\r\nX: {}", "y".repeat(65 << 10)).as_bytes(),
        431,
        "request_head_too_large",
    );
    for bytes in [(16 << 10) + 1, 64 << 10, 1 << 20] {
        let line = format!("GET /{} HTTP/1.1", "y".repeat(bytes - 1));
        refused(&router, head(&line, "").as_bytes(), 414, "request_target_too_long");
    }
    refused(&router, format!("GET /{}", "y".repeat(17 << 10)).as_bytes(), 414, "request_target_too_long");
    refused(&router, head(&format!("{} / HTTP/1.1", "M".repeat(33)), "").as_bytes(), 501, "method_too_long");
    refused(&router, "M".repeat(10_000).as_bytes(), 501, "method_too_long");
    let nominations = (0..40).map(|i| format!("x{i}")).collect::<Vec<_>>().join(", ");
    refused(&router, get(&format!("Connection: {nominations}\r\n")).as_bytes(), 400, "too_many_connection_options");
    assert_eq!(origin.count(), 0);
}

#[test]
fn heads_just_within_the_limits_pass() {
    let (origin, router) = stage(&[]);
    let passes = |bytes: &str| assert_eq!(router.client().send(bytes).response().status, 200, "{bytes:.100}");
    for count in [65, 101, 127] {
        passes(&format!("GET /any HTTP/1.1\r\nHost: t\r\n{}\r\n", fields(count)));
        assert_eq!(origin.received().last().map(|r| r.fields(&format!("X-{}", count - 1)).len()), Some(1));
    }
    let value = "y".repeat((64 << 10) - 60);
    passes(&format!("GET /any HTTP/1.1\r\nHost: t\r\nX: {value}\r\n\r\n"));
    let last = origin.received().pop().expect("a request");
    assert_eq!(last.fields("x"), [value]);
    passes(&format!("GET /{} HTTP/1.1\r\nHost: t\r\n\r\n", "y".repeat((16 << 10) - 1)));
    passes(&format!("{} / HTTP/1.1\r\nHost: t\r\n\r\n", "M".repeat(32)));
    assert_eq!(origin.canonical().len(), 6);
}

#[test]
fn the_head_limit_is_a_flag() {
    let (_origin, router) = stage(&["--max-head-size", "1KiB"]);
    refused(
        &router,
        format!("GET /any HTTP/1.1\r\nHost: t\r\nX: {}\r\n\r\n", "y".repeat(1024)).as_bytes(),
        431,
        "request_head_too_large",
    );
    let within = format!("GET /any HTTP/1.1\r\nHost: t\r\nX: {}\r\n\r\n", "y".repeat(900));
    assert_eq!(router.client().send(within).response().status, 200);
}

const LIMIT: usize = 256 << 10;

fn announce(client: &mut Client, length: &str) -> Response {
    client.send(format!("POST /any HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n")).response()
}

#[test]
fn a_body_is_refused_by_its_announced_length_and_takes_no_memory() {
    let (origin, router) = stage(&["--max-body-size", &LIMIT.to_string()]);
    let before = router.resident_kib();
    for length in [(LIMIT + 1).to_string(), "9000000000000000000".to_owned(), "18446744073709551615".to_owned()] {
        for _ in 0..20 {
            let mut client = router.client();
            let answer = announce(&mut client, &length);
            assert_eq!((answer.status, answer.error_code().as_str()), (413, "request_body_too_large"), "{length}");
            assert!(client.ends_silently());
        }
    }
    // Announced within the limit, and never sent: memory is for what has arrived.
    let waiting: Vec<_> = (0..200)
        .map(|_| {
            let mut client = router.client();
            client.send(format!("POST /any HTTP/1.1\r\nHost: t\r\nContent-Length: {LIMIT}\r\n\r\n{{"));
            client
        })
        .collect();
    assert_eq!(router.get("/version").status, 200);
    let held = router.resident_kib().saturating_sub(before);
    assert!(held < 200 * 64, "{held} KiB for 200 bodies of one byte");
    drop(waiting);
    assert_eq!(origin.count(), 0);
}

#[test]
fn a_body_passes_up_to_the_limit_and_not_beyond_in_either_framing() {
    let (origin, router) = stage(&["--max-body-size", &LIMIT.to_string()]);
    for (length, status) in [(LIMIT - 1, 200), (LIMIT, 200), (LIMIT + 1, 413)] {
        let body = vec![b'x'; length];
        let mut client = router.client();
        client.send(format!("POST /any HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n")).try_send(&body);
        assert_eq!(client.response().status, status, "{length} bytes");
        let mut client = router.client();
        client.send("POST /any HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
        for piece in body.chunks(10_000) {
            client.try_send(format!("{:x}\r\n", piece.len()));
            client.try_send(piece);
            client.try_send("\r\n");
        }
        client.try_send("0\r\n\r\n");
        let answer = client.response();
        assert_eq!(answer.status, status, "{length} bytes in chunks");
        assert!(answer.status == 200 || answer.error_code() == "request_body_too_large");
    }
    assert!(origin.canonical().iter().all(|r| r.body.len() <= LIMIT && r.values("content-length").len() == 1));
    assert_eq!(origin.count(), 4);
}

#[test]
fn long_bodies_are_forwarded_whole_and_held_about_once() {
    let (origin, router) = stage(&[]);
    let at_rest = router.resident_kib();
    let marks_kib = |router: &Router| (router.metric("trieway_trie_used_bytes") / 1024.0) as u64;
    let marks_before_kib = marks_kib(&router);
    for mib in [2.5, 11.0, 45.0] {
        let body = support::text(mib as u64, 1 << 10).repeat((mib * 1024.0) as usize);
        let json = format!("{{\"model\":\"m\",\"prompt\":\"{body}\"}}");
        let before = router.resident_kib();
        assert_eq!(router.post("/v1/completions", &json).status, 200, "{mib} MiB");
        let received = origin.received().pop().expect("a request");
        assert!(received.body == json.as_bytes(), "{mib} MiB arrive unchanged");
        origin.forget();
        let peak = router.peak_resident_kib().saturating_sub(before);
        // Growing by doubling holds the old and the new block for a moment.
        let allowed = (mib * 1024.0 * 3.5) as u64 + (16 << 10);
        assert!(peak < allowed, "{mib} MiB took {peak} KiB, of {allowed} at most");
    }
    // Nothing more is sent: the memory goes back to the system all the same, but for what the trie remembers of the prompts
    // and what pools and the allocator keep: less than one of the larger bodies.
    let marked_kib = marks_kib(&router) - marks_before_kib;
    support::eventually("the router is small again", || router.resident_kib() < at_rest + marked_kib + (24 << 10));
}

#[test]
fn a_refused_client_that_goes_on_sending_reads_why() {
    let origin = Origin::plain();
    // Its list of backends needs the key, too: nothing waits for them here.
    let router =
        Router::start(&["--static-backends", &origin.url(), "--max-body-size", "64KiB", "--api-key", "secret"]);
    let piece = vec![b'x'; 1 << 20];
    for (fields, status) in [("Authorization: Bearer secret\r\n", 413), ("", 401)] {
        let mut client = router.client();
        client.send(format!("POST /any HTTP/1.1\r\nHost: t\r\n{fields}Content-Length: {}\r\n\r\n", 20 << 20));
        for _ in 0..20 {
            assert!(client.try_send(&piece), "the client may send to its end");
        }
        assert_eq!(client.response().status, status);
        assert!(client.ends_silently());
    }
    assert_eq!(origin.count(), 0);
}
