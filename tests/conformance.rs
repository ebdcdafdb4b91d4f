//! What RFC 9110 and 9112 ask of an intermediary beyond framing: `Date`, `Via`, `Max-Forwards`, an empty `Host`.

mod support;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use support::origin::ok;
use support::{Client, Origin, Response, Router, completion, eventually};

fn ask(router: &Router, head: &str) -> Response {
    router.client().send(format!("{head}\r\n\r\n")).response()
}

/// The unix time of a date, by the system's own reader of dates.
fn unix_s(date: &str) -> u64 {
    let read = std::process::Command::new("date").args(["-u", "-d", date, "+%s"]).output().expect("date runs");
    String::from_utf8_lossy(&read.stdout).trim().parse().unwrap_or_else(|_| panic!("no date: {date:?}"))
}

fn is_now(answer: &Response) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let date = answer.field("date").unwrap_or_else(|| panic!("no date: {}", answer.head));
    assert!((now - 30..=now + 1).contains(&unix_s(date)), "{date}");
    let dates = answer.head.lines().filter(|line| line.to_ascii_lowercase().starts_with("date:")).count();
    assert_eq!(dates, 1, "{}", answer.head);
}

#[test]
fn every_answer_has_a_date_and_the_routers_is_now() {
    let origin = Origin::start(&["m"], |peer, request| {
        let own = "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 2\r\n\r\n{}";
        if request.line().contains("/dated") { peer.send(own) } else { peer.send(ok("{}")) }
    });
    let router = Router::start(&["--static-backends", &origin.url(), "--api-key", "k", "--max-body-size", "2KiB"]);
    eventually("the backend is up", || router.get("/health").status == 200);
    let key = "Authorization: Bearer k";
    for (head, status) in [
        ("GET /health HTTP/1.1\r\nHost: t".to_owned(), 200),
        ("GET /health/live HTTP/1.1\r\nHost: t".to_owned(), 200),
        ("GET /metrics HTTP/1.1\r\nHost: t".to_owned(), 200),
        ("GET /engines HTTP/1.1\r\nHost: t".to_owned(), 401),
        ("GET / HTTP/1.1".to_owned(), 400),
        ("GET / HTTP/2.0\r\nHost: t".to_owned(), 505),
        ("CONNECT t:1 HTTP/1.1\r\nHost: t".to_owned(), 405),
        (format!("POST /v1/x HTTP/1.1\r\nHost: t\r\n{key}\r\nContent-Length: 9999"), 413),
        (format!("OPTIONS / HTTP/1.1\r\nHost: t\r\n{key}\r\nMax-Forwards: 0"), 200),
        (format!("GET /any HTTP/1.1\r\nHost: t\r\n{key}"), 200),
    ] {
        let answer = ask(&router, &head);
        assert_eq!(answer.status, status, "{head}: {}", answer.head);
        is_now(&answer);
    }
    let dated = ask(&router, &format!("GET /dated HTTP/1.1\r\nHost: t\r\n{key}"));
    assert_eq!(dated.field("date"), Some("Sun, 06 Nov 1994 08:49:37 GMT"), "a backend's own date is left alone");
}

#[test]
fn the_date_goes_on() {
    let origin = Origin::plain();
    let router = Router::in_front_of(&[origin.url()], &[]);
    let mut client = router.client();
    let first = client.get("/health").field("date").map(str::to_owned);
    let mut others = std::iter::repeat_with(|| {
        std::thread::sleep(Duration::from_millis(100));
        client.get("/health").field("date").map(str::to_owned)
    });
    assert!(others.by_ref().take(100).any(|date| date != first), "{first:?} for ten seconds");
}

#[test]
fn the_router_names_itself_where_it_is_told_to() {
    let origin = Origin::plain();
    for (flags, request, answer) in [
        (&[][..], true, false),
        (&["--via", "requests"], true, false),
        (&["--via", "off"], false, false),
        (&["--via", "both"], true, true),
    ] {
        let router = Router::in_front_of(&[origin.url()], flags);
        let own = "Via: 1.0 before, 1.1 next\r\n";
        let said = router.client().send_post("/v1/completions", &completion("m", "x"), own).response();
        let received = origin.received().pop().expect("a request");
        let vias = received.fields("via");
        assert_eq!(
            vias,
            if request { vec!["1.0 before, 1.1 next", "1.1 trieway"] } else { vec!["1.0 before, 1.1 next"] }
        );
        assert_eq!(said.field("via"), answer.then_some("1.1 trieway"), "{flags:?}");
        assert_eq!(router.get("/metrics").field("via"), None, "it is no intermediary for its own pages");
    }
}

#[test]
fn a_request_that_may_not_be_sent_on_ends_here() {
    let origin =
        Origin::start(&["m"], |peer, request| peer.send(ok(request.fields("max-forwards").first().unwrap_or(&"-"))));
    let router = Router::in_front_of(&[origin.url()], &[]);
    let mut client: Client = router.client();
    let mut ask =
        |line: &str, fields: &str| client.send(format!("{line} HTTP/1.1\r\nHost: t\r\n{fields}\r\n")).response();
    for target in ["*", "/v1/completions", "http://elsewhere/x"] {
        let answer = ask(&format!("OPTIONS {target}"), "Max-Forwards: 0\r\n");
        assert_eq!((answer.status, answer.body_text().as_str()), (200, ""), "{target}");
        assert!(answer.field("allow").is_some_and(|allow| allow.contains("OPTIONS")), "{}", answer.head);
        let answer = ask("TRACE /v1/completions", "Max-Forwards: 0\r\n");
        assert_eq!((answer.status, answer.error_code().as_str()), (405, "method_not_allowed"));
        assert!(answer.field("allow").is_some(), "{}", answer.head);
    }
    assert_eq!(origin.count(), 0, "nothing of it was sent on");
    for (method, given, left) in [("OPTIONS", "1", "0"), ("TRACE", "3", "2"), ("GET", "0", "0"), ("POST", "5", "5")] {
        let answer = ask(&format!("{method} /x"), &format!("Max-Forwards: {given}\r\nContent-Length: 0\r\n"));
        assert_eq!((answer.status, answer.body_text().as_str()), (200, left), "{method}");
    }
    let answer = ask("OPTIONS /x", "Max-Forwards: x\r\n");
    assert_eq!((answer.status, answer.error_code().as_str()), (400, "invalid_max_forwards"));
}

#[test]
fn an_empty_host_is_taken_and_names_nobody() {
    let origin = Origin::plain();
    for flags in [&[][..], &["--preserve-host"]] {
        let router = Router::in_front_of(&[origin.url()], flags);
        for head in ["GET /x HTTP/1.1\r\nHost:", "GET /x HTTP/1.1\r\nHost: \t", "GET /x HTTP/1.0\r\nHost:"] {
            assert_eq!(ask(&router, head).status, 200, "{head}");
            let received = origin.received().pop().expect("a request");
            assert_eq!(received.fields("host"), [origin.address.to_string()], "{head}");
            assert!(received.fields("x-forwarded-host").is_empty(), "{}", received.head);
        }
        let absolute = ask(&router, "GET http://name:1/x HTTP/1.1\r\nHost:");
        assert_eq!(absolute.status, 200);
        assert_eq!(origin.received().pop().expect("a request").fields("x-forwarded-host"), ["name:1"]);
    }
}
