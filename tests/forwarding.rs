//! What is forwarded: one canonical head, the body's bytes as they were, each side's connection fields on its own side.

mod support;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use support::origin::ok;
use support::{Origin, Router, completion};

fn stage(flags: &[&str]) -> (Origin, Router) {
    let origin = Origin::plain();
    let router = Router::in_front_of(&[origin.url()], &[&["--workers", "1"][..], flags].concat());
    (origin, router)
}

#[test]
fn a_chunked_body_goes_on_under_one_length_however_it_was_cut() {
    let (origin, router) = stage(&[]);
    let body = completion("m", &support::text(1, 20_000));
    for (size, pause) in [(1, false), (7, false), (7998, true), (8192, true), (body.len(), false)] {
        let mut client = router.client();
        client.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\ntransfer-encoding: chunked\r\n\r\n");
        let mut bytes = Vec::new();
        for piece in body.as_bytes().chunks(size) {
            bytes.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            bytes.extend_from_slice(piece);
            bytes.extend_from_slice(b"\r\n");
            if pause {
                client.send(&bytes);
                bytes.clear();
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
        assert_eq!(client.send(&bytes).response().status, 200, "chunks of {size}");
    }
    for request in origin.canonical() {
        assert!(request.body == body.as_bytes());
        assert_eq!(request.values("content-length"), [body.len().to_string()]);
    }
    assert_eq!(origin.count(), 5);
}

#[test]
fn methods_with_and_without_bodies_keep_what_they_have() {
    let (origin, router) = stage(&[]);
    let mut client = router.client();
    for (method, body) in
        [("GET", "x"), ("DELETE", "del"), ("PUT", "put"), ("PATCH", ""), ("OPTIONS", "o"), ("QUERY", "q")]
    {
        client.send(format!("{method} /any HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
        assert_eq!(client.response().status, 200, "{method}");
        let received = origin.received().pop().expect("a request");
        assert_eq!((received.line(), &received.body[..]), (&*format!("{method} /any HTTP/1.1"), body.as_bytes()));
        assert_eq!(received.fields("content-length"), [body.len().to_string()], "{method}");
    }
    for method in ["GET", "POST", "DELETE", "OPTIONS"] {
        assert_eq!(client.send(format!("{method} /any HTTP/1.1\r\nHost: t\r\n\r\n")).response().status, 200);
        assert!(origin.received().pop().is_some_and(|r| r.fields("content-length").is_empty()), "{method}");
    }
    // The router answers this path itself; its body must not become the next request.
    let inner = "GET /poison HTTP/1.1\r\nHost: t\r\n\r\n";
    client.send(format!("GET /v1/models HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{inner}", inner.len()));
    assert!(client.response().body_text().contains("\"m\""));
    client.send("GET /v1/models HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nGET\r\n0\r\n\r\n");
    assert_eq!(client.response().status, 200);
    assert!(client.stays_open());
    assert!(origin.canonical().iter().all(|r| r.target == "/any"));
}

#[test]
fn connection_fields_stay_on_their_side_and_protected_ones_cannot_be_named() {
    let origin = Origin::start(&["m"], |peer, _| {
        peer.send(
            "HTTP/1.1 200 OK\r\nConnection: X-Foo, keep-alive\r\nX-Foo: 1\r\nKeep-Alive: timeout=5, max=1\r\nTrailer: X\r\nUpgrade: h2c\r\n\
             Proxy-Authenticate: Basic\r\nX-Bar: 2\r\nContent-Length: 2\r\n\r\n{}",
        )
    });
    let router = Router::in_front_of(&[origin.url()], &["--workers", "1"]);
    let body = completion("m", "x");
    for nominations in [
        "close, X-Real-Token, Content-Length",
        "close,x-real-token,Host,Authorization,content-length,Transfer-Encoding",
        "X-REAL-TOKEN\r\nConnection: close, Host",
        "close, , ,X-Real-Token",
    ] {
        origin.forget();
        let fields = format!(
            "Connection: {nominations}\r\nX-Real-Token: t\r\nAuthorization: Bearer k\r\nKeep-Alive: 9\r\nTE: trailers, deflate\r\n\
             Trailer: X-End\r\nProxy-Connection: keep-alive\r\nProxy-Authorization: Basic x\r\nProxy-X: y\r\nUpgrade: h2c\r\nX-Kept: k\r\n"
        );
        let mut client = router.client();
        let answer = client.send_post("/v1/completions", &body, &fields).response();
        assert_eq!(answer.status, 200, "{nominations}");
        assert_eq!(answer.field("connection"), Some("close"), "the client's wish is about its own connection");
        assert!(client.ends_silently());
        for gone in ["x-foo", "keep-alive", "trailer", "upgrade", "proxy-authenticate"] {
            assert_eq!(answer.field(gone), None, "{}", answer.head);
        }
        assert_eq!(answer.field("x-bar"), Some("2"));
        let received = origin.received().pop().expect("a request");
        for gone in [
            "x-real-token",
            "connection",
            "keep-alive",
            "te",
            "trailer",
            "proxy-connection",
            "proxy-authorization",
            "proxy-x",
            "upgrade",
        ] {
            assert!(received.fields(gone).is_empty(), "{gone}, nominated {nominations}: {}", received.head);
        }
        assert_eq!(received.fields("authorization"), ["Bearer k"], "{nominations}");
        assert_eq!(received.fields("x-kept"), ["k"]);
        assert_eq!(received.body, body.as_bytes());
    }
    origin.canonical();
    let connection = origin.received().pop().map(|r| r.connection);
    router.post("/v1/completions", &body);
    assert_eq!(
        origin.received().pop().map(|r| r.connection),
        connection,
        "clients that close do not close the backend's"
    );
}

#[test]
fn a_backend_that_closes_closes_its_own_side_alone() {
    let origin = Origin::start(&["m"], |peer, _| {
        peer.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}");
        true
    });
    let router = Router::in_front_of(&[origin.url()], &["--workers", "1"]);
    let mut client = router.client();
    for _ in 0..5 {
        let answer = client.post("/v1/completions", &completion("m", "x"));
        assert_eq!((answer.status, answer.field("connection")), (200, None));
    }
    let connections: HashSet<_> = origin.received().iter().map(|r| r.connection).collect();
    assert_eq!(connections.len(), 5, "a connection that was to be closed is not used again");
}

#[test]
fn an_absolute_target_names_the_host_and_never_the_backend() {
    let (origin, router) = stage(&["--preserve-host"]);
    for (target, path) in [
        ("http://evil.example:99/v1/x?y=%2F", "/v1/x?y=%2F"),
        ("HTTP://evil.example:99", "/"),
        ("http://evil.example:99?q", "/?q"),
        ("https://evil.example:99//a/../b", "//a/../b"),
    ] {
        let mut client = router.client();
        assert_eq!(client.send(format!("GET {target} HTTP/1.1\r\nHost: other\r\n\r\n")).response().status, 200);
        let received = origin.received().pop().expect("a request");
        assert_eq!(received.line(), format!("GET {path} HTTP/1.1"));
        assert_eq!(received.fields("host"), ["evil.example:99"], "the target's authority wins over Host");
    }
    let mut client = router.client();
    assert_eq!(client.send("OPTIONS * HTTP/1.1\r\nHost: t\r\n\r\n").response().status, 200);
    assert_eq!(origin.received().pop().expect("a request").line(), "OPTIONS * HTTP/1.1");
}

#[test]
fn what_the_router_adds_is_added_once_and_valid() {
    let (origin, router) = stage(&[]);
    let long = "i".repeat(129);
    for (given, kept) in [("my-id", true), ("", false), ("two words", false), (&*long, false), ("\u{e9}", false)] {
        let fields = format!(
            "X-Request-Id: {given}\r\ntraceparent: 00-a-b-01\r\nX-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: 2.2.2.2\r\nX-Forwarded-Proto: https\r\n"
        );
        let answer = router.client().send_post("/v1/completions", &completion("m", "x"), &fields).response();
        let received = origin.received().pop().expect("a request");
        let id = received.fields("x-request-id");
        assert_eq!(id.len(), 1);
        assert_eq!(id[0] == given, kept, "{given:?}: {id:?}");
        assert!(kept || (id[0].len() == 32 && id[0].bytes().all(|b| b.is_ascii_hexdigit())));
        assert_eq!(answer.field("x-request-id"), Some(id[0]));
        assert_eq!(received.fields("traceparent"), ["00-a-b-01"]);
        assert_eq!(received.fields("x-forwarded-for"), ["1.1.1.1, 2.2.2.2, 127.0.0.1"]);
        assert_eq!(received.fields("x-forwarded-proto"), ["https"]);
        assert_eq!(received.fields("x-forwarded-host"), ["test"]);
    }
}

#[test]
fn clients_of_http_1_0_get_a_length_or_a_close_and_events_at_once() {
    let origin = Origin::start(&["m"], |peer, request| {
        if request.head.contains("/stream") {
            peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
            for _ in 0..5 {
                peer.send("9\r\ndata: x\n\n\r\n");
                std::thread::sleep(Duration::from_millis(60));
            }
            return peer.send("0\r\n\r\n");
        }
        peer.send(ok(&format!("{}", request.body.len())))
    });
    let router = Router::in_front_of(&[origin.url()], &["--workers", "1"]);
    for method in ["GET", "POST"] {
        for keep_alive in ["", "Connection: keep-alive\r\n"] {
            let mut client = router.client();
            let started = Instant::now();
            client.send(format!("{method} /stream HTTP/1.0\r\n{keep_alive}\r\n"));
            let (_, head) = client.head();
            let head = head.to_lowercase();
            assert!(!head.contains("transfer-encoding") && head.contains("connection: close"), "{head}");
            client.until(b"data: x\n\n");
            assert!(started.elapsed() < Duration::from_millis(200), "the first event comes at once");
            assert_eq!(client.read_to_end(), b"data: x\n\n".repeat(4));

            let mut client = router.client();
            let answer = client.send(format!("{method} /plain HTTP/1.0\r\n{keep_alive}\r\n")).response();
            assert_eq!(answer.body_text(), "0", "without a length there is no body");
            let kept = !keep_alive.is_empty();
            assert_eq!(answer.field("connection"), Some(if kept { "keep-alive" } else { "close" }));
            if kept {
                client.send("POST /plain HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc");
                assert_eq!(client.response().body_text(), "3");
            }
            assert!(client.ends_silently());
        }
    }
    assert!(origin.canonical().iter().all(|r| r.target == "/stream" || r.target == "/plain"));
}

#[test]
fn an_expectation_is_met_by_the_router_before_the_body_and_only_then() {
    let (origin, router) = stage(&["--max-body-size", "3MiB"]);
    let body = completion("m", &support::text(2, 2 << 20));
    let head =
        |fields: &str| format!("POST /v1/completions HTTP/1.1\r\nHost: t\r\nExpect: 100-Continue\r\n{fields}\r\n");
    let length = format!("Content-Length: {}\r\n", body.len());
    let mut client = router.client();
    assert_eq!(client.send(head(&length)).response_to("POST").status, 100);
    assert_eq!(client.send(&body).response_to("POST").status, 200);
    // In chunks.
    client.send(head("Transfer-Encoding: chunked\r\n"));
    assert_eq!(client.response_to("POST").status, 100);
    assert_eq!(client.send(format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len())).response_to("POST").status, 200);
    // A client that does not wait needs no interim answer.
    assert_eq!(client.send(format!("{}{}", head("Content-Length: 2\r\n"), "{}")).response_to("POST").status, 200);
    // Nothing to wait for.
    assert_eq!(client.send(head("")).response_to("POST").status, 400);
    assert_eq!(client.send(head("Content-Length: 0\r\n")).response_to("POST").status, 400);
    // Refused: the final answer comes at once.
    let early = client.send(head("Content-Length: 9999999\r\n")).response_to("POST");
    assert_eq!((early.status, early.field("connection")), (413, Some("close")));
    for other in ["magic", "100-continue, magic", "", "100-continue\r\nExpect: magic"] {
        let mut client = router.client();
        client.send(format!("POST /any HTTP/1.1\r\nHost: t\r\nExpect: {other}\r\nContent-Length: 1\r\n\r\n"));
        assert_eq!(client.response_to("POST").status, 417, "{other:?}");
    }
    let requests = origin.canonical();
    assert_eq!(requests.len(), 3);
    assert!(requests[..2].iter().all(|r| r.body == body.as_bytes()));
}
