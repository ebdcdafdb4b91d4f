//! Heads that are sent on: byte for byte.

#![allow(clippy::unwrap_used, reason = "helpers of tests, too, may fail by a panic")]

use trieway::http::forward::{self, OutFraming, RequestOut, ResponseOut, valid_request_id};
use trieway::http::framing::{self, BodyLength};
use trieway::http::{Limits, RequestHead, ResponseHead, Version, parse_request, parse_response};

const HOW: RequestOut<'_> = RequestOut {
    authority: b"backend:8000",
    base_path: b"",
    target: b"/t",
    content_length: None,
    request_id: b"id-1",
    client_ip: b"10.0.0.9",
    preserve_host: false,
    authorization: None,
    upgrade_websocket: false,
    max_forwards: None,
    via: false,
};

fn forwarded(input: &str, how: RequestOut<'_>) -> String {
    let mut head = RequestHead::new();
    parse_request(input.as_bytes(), &Limits::default(), &mut head).unwrap().unwrap();
    let mut out = Vec::new();
    forward::request(&mut out, &head, input.as_bytes(), &how);
    let text = String::from_utf8(out).unwrap();
    check_is_canonical(&text, &how);
    text
}

/// What every forwarded request is, whatever came in: one acceptable request with the framing that was decided.
fn check_is_canonical(text: &str, how: &RequestOut<'_>) {
    let mut head = RequestHead::new();
    assert_eq!(parse_request(text.as_bytes(), &Limits::default(), &mut head), Ok(Some(text.len())), "{text}");
    let framing = framing::request(&head, text.as_bytes()).unwrap();
    assert_eq!(framing.body, how.content_length.map_or(BodyLength::None, BodyLength::Fixed));
    assert!(framing.keep_alive && !framing.expect_continue);
    assert_eq!(framing.websocket, how.upgrade_websocket);
}

/// The field lines between `Host` and what the router adds.
fn kept(fields: &str) -> String {
    let text = forwarded(&format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n"), HOW);
    let text = text.strip_prefix("GET /t HTTP/1.1\r\nHost: backend:8000\r\n").unwrap();
    let added =
        "X-Forwarded-For: 10.0.0.9\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: h\r\nX-Request-Id: id-1\r\n\r\n";
    text.strip_suffix(added).unwrap_or_else(|| panic!("{text}")).to_owned()
}

#[test]
fn a_request_is_written_anew() {
    let input =
        "POST /v1/x HTTP/1.0\r\nA:  1 \r\nhost: h\r\na: 2\r\ncontent-length: 0005\r\nAuthorization: Bearer k\r\n\r\n";
    let expected = "POST /t HTTP/1.1\r\nHost: backend:8000\r\nA: 1\r\na: 2\r\nAuthorization: Bearer k\r\n\
                    X-Forwarded-For: 10.0.0.9\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: h\r\nX-Request-Id: id-1\r\n\
                    Content-Length: 5\r\n\r\n";
    assert_eq!(forwarded(input, RequestOut { content_length: Some(5), ..HOW }), expected);
}

#[test]
fn hop_by_hop_fields_stay_behind() {
    assert_eq!(kept("A: b\r\nEmpty:\r\n"), "A: b\r\nEmpty: \r\n");
    assert_eq!(kept("A: 1 \r\nB:2\r\nC:\t3\r\nD: 4\t \r\nE: \r\n"), "A: 1\r\nB: 2\r\nC: 3\r\nD: 4\r\nE: \r\n");
    for line in [
        "Connection: close",
        "Connection: keep-alive",
        "Keep-Alive: timeout=5",
        "TE: trailers",
        "Trailer: X",
        "Proxy-Connection: keep-alive",
        "Proxy-Authorization: x",
        "PROXY-anything: x",
        "Upgrade: foo",
        "Expect: 100-continue",
        "Transfer-Encoding: chunked",
        "Content-Length: 5",
        "X-Request-Id: theirs",
        "Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\nConnection: HTTP2-Settings",
    ] {
        assert_eq!(kept(&format!("A: b\r\n{line}\r\nC: d\r\n")), "A: b\r\nC: d\r\n", "{line}");
    }
}

#[test]
fn nominated_fields_stay_behind() {
    assert_eq!(kept("X-Real-Token: t\r\nConnection: close, x-real-token\r\nA: b\r\nx-REAL-token: u\r\n"), "A: b\r\n");
    assert_eq!(kept("Connection: a\r\nA: 1\r\nB: 2\r\nC: 3\r\nConnection: keep-alive,\tc ,\r\n"), "B: 2\r\n");
    assert_eq!(kept("Connection: close\r\nClose: 1\r\n"), "Close: 1\r\n");
    assert_eq!(kept("Connection: ,,\r\nA: 1\r\n"), "A: 1\r\n");
    assert_eq!(kept("Connection: AB, A B, \"A\"\r\nA: 1\r\n"), "A: 1\r\n");
    assert_eq!(kept("Connection: traceparent\r\ntraceparent: 00-1\r\n"), "");
}

#[test]
fn some_fields_cannot_be_nominated_away() {
    let input = "POST / HTTP/1.1\r\nHost: h\r\nConnection: host, content-length, AUTHORIZATION, close, x-request-id\r\nAuthorization: k\r\nContent-Length: 3\r\n\r\n";
    let text = forwarded(input, RequestOut { content_length: Some(3), preserve_host: true, ..HOW });
    for line in
        ["\r\nHost: h\r\n", "\r\nAuthorization: k\r\n", "\r\nContent-Length: 3\r\n", "\r\nX-Request-Id: id-1\r\n"]
    {
        assert!(text.contains(line), "{line:?} in {text}");
    }
}

#[test]
fn the_target_is_joined_to_the_base_path() {
    for (base, target, expected) in [
        ("", "/", "/"),
        ("", "/a?b", "/a?b"),
        ("", "", "/"),
        ("", "?q", "/?q"),
        ("/base", "/a", "/base/a"),
        ("/base", "", "/base/"),
        ("/base", "?q", "/base/?q"),
        ("/base", "*", "*"),
        ("", "//double", "//double"),
    ] {
        let how = RequestOut { base_path: base.as_bytes(), target: target.as_bytes(), ..HOW };
        let text = forwarded("OPTIONS / HTTP/1.1\r\nHost: h\r\n\r\n", how);
        assert!(text.starts_with(&format!("OPTIONS {expected} HTTP/1.1\r\nHost: backend:8000\r\n")), "{text}");
    }
}

#[test]
fn host_is_the_backends_unless_preserved() {
    let check = |request: &str, preserve_host: bool, host: &str, forwarded_host: Option<&str>| {
        let text = forwarded(request, RequestOut { preserve_host, ..HOW });
        assert!(text.starts_with(&format!("GET /t HTTP/1.1\r\nHost: {host}\r\n")), "{text}");
        assert_eq!(text.to_lowercase().matches("\r\nhost:").count(), 1);
        let line = text.lines().find_map(|line| line.strip_prefix("X-Forwarded-Host: "));
        assert_eq!(line, forwarded_host);
    };
    let plain = "GET / HTTP/1.1\r\nHost: h:1\r\n\r\n";
    check(plain, false, "backend:8000", Some("h:1"));
    check(plain, true, "h:1", Some("h:1"));
    let absolute = "GET http://absolute/ HTTP/1.1\r\nHost: h:1\r\n\r\n";
    check(absolute, false, "backend:8000", Some("absolute"));
    check(absolute, true, "absolute", Some("absolute"));
    check("GET / HTTP/1.0\r\n\r\n", true, "backend:8000", None);
}

#[test]
fn forwarded_fields_are_extended_or_kept() {
    let lines = |fields: &str| {
        let text = forwarded(&format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n"), HOW);
        let lines = text.lines().filter(|line| line.to_lowercase().starts_with("x-forwarded-"));
        lines.map(|line| line["x-forwarded-".len()..].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(lines(""), ["For: 10.0.0.9", "Proto: http", "Host: h"]);
    assert_eq!(
        lines("x-forwarded-for: 1.1.1.1\r\nX-Forwarded-For:\r\nX-Forwarded-For: 2.2.2.2, 3.3.3.3\r\n")[0],
        "For: 1.1.1.1, 2.2.2.2, 3.3.3.3, 10.0.0.9"
    );
    assert_eq!(
        lines("X-Forwarded-Proto: https\r\nX-Forwarded-Host: outer\r\n"),
        ["Proto: https", "Host: outer", "For: 10.0.0.9"]
    );
    assert_eq!(lines("X-Forwarded-For: 1.1.1.1\r\nConnection: X-Forwarded-For\r\n")[0], "For: 10.0.0.9");
}

#[test]
fn authorization_is_passed_or_replaced() {
    let input = "GET / HTTP/1.1\r\nHost: h\r\nauthorization: theirs\r\nAuthorization: again\r\n\r\n";
    assert!(forwarded(input, HOW).contains("\r\nauthorization: theirs\r\nAuthorization: again\r\n"));
    let text = forwarded(input, RequestOut { authorization: Some(b"Bearer ours"), ..HOW });
    assert!(text.contains("\r\nAuthorization: Bearer ours\r\n") && !text.contains("theirs") && !text.contains("again"));
}

#[test]
fn websocket_alone_is_upgraded_to() {
    let input = "GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade, X-Nominated\r\nUpgrade: foo, websocket\r\nX-Nominated: 1\r\nSec-WebSocket-Key: k\r\n\r\n";
    let text = forwarded(input, RequestOut { upgrade_websocket: true, ..HOW });
    assert!(text.ends_with("\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"));
    assert!(text.contains("\r\nSec-WebSocket-Key: k\r\n") && !text.contains("foo") && !text.contains("X-Nominated"));
}

const BACK: ResponseOut<'_> = ResponseOut {
    framing: OutFraming::Fixed(5),
    keep_alive: true,
    client_version: Version::Http11,
    request_id: b"id-1",
    date: b"",
    via: false,
};

fn returned(input: &str, how: ResponseOut<'_>) -> String {
    let mut head = ResponseHead::new();
    parse_response(input.as_bytes(), &Limits::default(), &mut head).unwrap().unwrap();
    let mut out = Vec::new();
    forward::response(&mut out, &head, input.as_bytes(), &how);
    String::from_utf8(out).unwrap()
}

#[test]
fn a_response_is_written_anew() {
    let input = "HTTP/1.0 200 Fine\r\nServer: uvicorn\r\nset-cookie:a\r\nSet-Cookie: b\r\ncontent-length: 05\r\nX-Request-Id: theirs\r\n\r\n";
    let expected = "HTTP/1.1 200 Fine\r\nServer: uvicorn\r\nset-cookie: a\r\nSet-Cookie: b\r\nX-Request-Id: id-1\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(returned(input, BACK), expected);
}

#[test]
fn hop_by_hop_and_nominated_fields_of_a_response_stay_behind() {
    let input = "HTTP/1.1 200 OK\r\nConnection: X-Foo, keep-alive\r\nX-Foo: 1\r\nKeep-Alive: timeout=5\r\nTrailer: T\r\nTE: x\r\nProxy-Authenticate: x\r\n\
                 Upgrade: h2c\r\nTransfer-Encoding: chunked\r\nContent-Type: a/b\r\n\r\n";
    let expected = "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nX-Request-Id: id-1\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(returned(input, ResponseOut { framing: OutFraming::Chunked, ..BACK }), expected);
}

#[test]
fn a_response_cannot_nominate_everything_away_either() {
    let input = "HTTP/1.1 200 OK\r\nConnection: authorization, host, x-request-id, content-length\r\nAuthorization: a\r\nContent-Length: 5\r\n\r\n";
    let expected = "HTTP/1.1 200 OK\r\nAuthorization: a\r\nX-Request-Id: id-1\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(returned(input, BACK), expected);
}

#[test]
fn the_framing_and_the_connection_are_ours() {
    let check = |input: &str, framing: OutFraming, keep_alive: bool, client_version: Version, expected: &str| {
        let text = returned(input, ResponseOut { framing, keep_alive, client_version, ..BACK });
        let end = text.split_once("X-Request-Id: id-1\r\n").unwrap().1;
        assert_eq!(end.strip_suffix("\r\n").unwrap(), expected, "{input:?} {framing:?}");
    };
    let (v10, v11) = (Version::Http10, Version::Http11);
    let plain = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\n";
    check(plain, OutFraming::Fixed(9), true, v11, "Content-Length: 9\r\n");
    check(plain, OutFraming::Fixed(9), false, v11, "Content-Length: 9\r\nConnection: close\r\n");
    check(plain, OutFraming::Fixed(9), true, v10, "Content-Length: 9\r\nConnection: keep-alive\r\n");
    check(plain, OutFraming::Fixed(9), false, v10, "Content-Length: 9\r\nConnection: close\r\n");
    check(plain, OutFraming::Close, true, v10, "Connection: close\r\n");
    check(plain, OutFraming::Chunked, false, v11, "Transfer-Encoding: chunked\r\nConnection: close\r\n");
    check(plain, OutFraming::None, true, v11, "Content-Length: 9\r\n");
    check(
        "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
        OutFraming::None,
        true,
        v11,
        "Content-Length: 9\r\n",
    );
    check("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", OutFraming::None, true, v11, "");
    check("HTTP/1.1 204 No Content\r\nContent-Length: 9\r\n\r\n", OutFraming::None, true, v11, "");
}

#[test]
fn a_missing_reason_is_filled_in() {
    for (line, expected) in [
        ("HTTP/1.1 200", "200 OK"),
        ("HTTP/1.1 404 ", "404 Not Found"),
        ("HTTP/1.1 299 ", "299 "),
        ("HTTP/1.1 200 Odd", "200 Odd"),
    ] {
        assert!(returned(&format!("{line}\r\n\r\n"), BACK).starts_with(&format!("HTTP/1.1 {expected}\r\n")));
    }
}

#[test]
fn interim_and_switching_responses() {
    let how = ResponseOut { framing: OutFraming::None, keep_alive: false, ..BACK };
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nConnection: x\r\nX: y\r\nContent-Length: 3\r\n\r\n";
    assert_eq!(returned(hints, how), "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
    let switching = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: a\r\n\r\n";
    let expected = "HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Request-Id: id-1\r\n\r\n";
    assert_eq!(returned(switching, how), expected);
}

#[test]
fn request_ids_are_visible_and_short() {
    let longest = "x".repeat(128);
    for good in ["a", "~", "0-1_2.3/:", longest.as_str()] {
        assert!(valid_request_id(good.as_bytes()), "{good}");
    }
    let too_long = "x".repeat(129);
    for bad in ["", " ", "a b", "a\t", "a\r\nX: y", "\u{e9}", "a\u{7f}", "\0", too_long.as_str()] {
        assert!(!valid_request_id(bad.as_bytes()), "{bad:?}");
    }
}

#[test]
fn a_second_request_needs_no_memory_of_its_own() {
    let fields = "A: b\r\n".repeat(60);
    let input = format!("GET / HTTP/1.1\r\nHost: h\r\nConnection: x\r\n{fields}\r\n");
    let (mut head, mut out) = (RequestHead::new(), Vec::new());
    let mut serve = || {
        parse_request(input.as_bytes(), &Limits::default(), &mut head).unwrap().unwrap();
        out.clear();
        forward::request(&mut out, &head, input.as_bytes(), &HOW);
        (head.fields.as_ptr(), head.fields.capacity(), out.as_ptr(), out.capacity())
    };
    assert_eq!(serve(), serve());
}

#[test]
fn the_router_names_itself_in_via_behind_those_before_it() {
    let input = "GET / HTTP/1.0\r\nVia: 1.1 first\r\nHost: a\r\n\r\n";
    let text = forwarded(input, RequestOut { via: true, ..HOW });
    let vias: Vec<_> = text.lines().filter(|line| line.starts_with("Via")).collect();
    assert_eq!(vias, ["Via: 1.1 first", "Via: 1.0 trieway"]);
    let text = returned("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ResponseOut { via: true, ..BACK });
    assert!(text.contains("\r\nVia: 1.1 trieway\r\n"), "{text}");
    for text in [forwarded(input, HOW), returned("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", BACK)] {
        assert!(!text.contains("trieway"), "{text}");
    }
}

#[test]
fn an_answer_gets_a_date_where_it_has_none() {
    let date = "Sun, 06 Nov 1994 08:49:37 GMT";
    for (own, dates) in [("", 1), ("Date: x\r\n", 1), ("date: x\r\nDate: y\r\n", 2)] {
        let input = format!("HTTP/1.1 200 OK\r\n{own}Content-Length: 0\r\n\r\n");
        let text = returned(&input, ResponseOut { date: date.as_bytes(), ..BACK });
        let found: Vec<_> = text.lines().filter(|line| line.to_ascii_lowercase().starts_with("date:")).collect();
        assert_eq!((found.len(), text.contains(date)), (dates, own.is_empty()), "{text}");
    }
    let interim = returned("HTTP/1.1 103 Early Hints\r\n\r\n", ResponseOut { date: date.as_bytes(), ..BACK });
    assert!(!interim.contains("Date"), "{interim}");
}

#[test]
fn max_forwards_is_written_as_it_was_counted() {
    let input = "OPTIONS * HTTP/1.1\r\nHost: a\r\nMax-Forwards: 7\r\n\r\n";
    let text = forwarded(input, RequestOut { max_forwards: Some(6), ..HOW });
    assert!(text.contains("\r\nMax-Forwards: 6\r\n") && text.matches("Max-Forwards").count() == 1, "{text}");
    assert!(forwarded(input, HOW).contains("\r\nMax-Forwards: 7\r\n"));
}

#[test]
fn an_empty_host_is_no_host() {
    let text = forwarded("GET / HTTP/1.1\r\nHost:\r\n\r\n", RequestOut { preserve_host: true, ..HOW });
    assert!(!text.contains("X-Forwarded-Host"), "{text}");
    assert!(text.contains(&format!("\r\nHost: {}\r\n", String::from_utf8_lossy(HOW.authority))), "{text}");
}
