//! How a request's body is delimited, whether its connection lasts, what it expects: every rule, from bytes.

mod http_support;

use http_support::{judge, refused};
use trieway::http::framing::{BodyLength, RequestFraming};

/// A POST whose framing fields are `fields`.
fn post(fields: &str) -> String {
    format!("POST /v1/completions HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

fn framing_of(input: &str) -> RequestFraming {
    judge(input.as_bytes()).unwrap_or_else(|reject| panic!("{input:?}: {reject:?}")).1
}

#[test]
fn content_length_is_one_number() {
    for value in [
        "+5",
        "-1",
        "5 5",
        "5,5",
        "5,6",
        "5, 5",
        "0x5",
        "",
        "5;",
        "18446744073709551616",
        &"9".repeat(40),
        "5.0",
        "five",
        "1e3",
        "\u{ff15}",
        "5\t5",
    ] {
        refused(&post(&format!("Content-Length: {value}\r\n")), 400);
    }
    for (value, length) in
        [("0", 0), ("5", 5), (" 5 ", 5), ("\t5\t", 5), ("0005", 5), ("18446744073709551615", u64::MAX)]
    {
        assert_eq!(framing_of(&post(&format!("Content-Length:{value}\r\n"))).body, BodyLength::Fixed(length));
    }
    assert_eq!(framing_of(&post("Content-Length: 5\r\ncontent-length: 5\r\n")).body, BodyLength::Fixed(5));
    refused(&post("Content-Length: 5\r\nContent-Length: 6\r\n"), 400);
    refused(&post("Content-Length: 5\r\nContent-Length: 05\r\n"), 400);
    refused(&post("Content-Length: 5\r\nContent-Length: 6\r\nContent-Length: 5\r\n"), 400);
    refused(&post("Content-Length: 6\r\nContent-Length: 5\r\nContent-Length: 5\r\n"), 400);
    refused(&post("Content-Length: x\r\nContent-Length: x\r\n"), 400);
    refused("POST / HTTP/1.0\r\nContent-Length: 5,5\r\n\r\n", 400);
}

#[test]
fn transfer_encoding_is_a_sole_chunked() {
    for value in ["chunked", "CHUNKED", "Chunked", " chunked ", "\tchunked\t"] {
        assert_eq!(framing_of(&post(&format!("Transfer-Encoding:{value}\r\n"))).body, BodyLength::Chunked, "{value:?}");
    }
    for (value, status) in [
        ("chunked,", 400),
        (",chunked", 400),
        ("chunked, gzip", 400),
        ("chunked, chunked", 400),
        ("identity", 400),
        ("\"chunked\"", 400),
        ("", 400),
        ("chunked;q=1", 400),
        ("chunked chunked", 400),
        ("chunked, identity", 400),
        ("identity, chunked", 400),
        ("chun\u{e9}ked", 400),
        (",", 400),
        ("chunked\u{a0}", 400),
        ("gzip, chunked", 501),
        ("xchunked", 501),
        ("chunkedx", 501),
        ("gzip", 501),
        ("deflate, gzip", 501),
        ("x, chunked", 501),
    ] {
        refused(&post(&format!("Transfer-Encoding: {value}\r\n")), status);
        refused(&post(&format!("Transfer-Encoding: {value}\r\nContent-Length: 5\r\n")), 400);
        refused(&post(&format!("Content-Length: 5\r\nTransfer-Encoding: {value}\r\n")), 400);
    }
    for (first, second) in [
        ("gzip", "chunked"),
        ("identity", "chunked"),
        ("chunked", "chunked"),
        ("chunked", "gzip"),
        ("", "chunked"),
        ("chunked", ""),
    ] {
        refused(&post(&format!("Transfer-Encoding: {first}\r\ntransfer-encoding: {second}\r\n")), 400);
    }
    refused(&post("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n"), 400);
    refused(&post("Transfer-Encoding: chunked\r\nContent-Length: 6\r\n"), 400);
    refused(&post("Transfer-Encoding: chunked\r\nContent-Length: x\r\n"), 400);
    refused("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400);
    refused("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400);
    refused("POST / HTTP/1.0\r\nTransfer-Encoding: gzip\r\n\r\n", 400);
}

#[test]
fn a_nomination_does_not_change_the_framing() {
    let framing =
        framing_of(&post("Connection: content-length, transfer-encoding, host\r\nTransfer-Encoding: chunked\r\n"));
    assert_eq!(framing.body, BodyLength::Chunked);
    refused(&post("Connection: content-length\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n"), 400);
}

#[test]
fn a_body_needs_a_length() {
    assert_eq!(framing_of("POST / HTTP/1.1\r\nHost: a\r\n\r\n").body, BodyLength::None);
    assert_eq!(framing_of("POST / HTTP/1.0\r\n\r\n").body, BodyLength::None);
    assert_eq!(framing_of("POST / HTTP/1.0\r\nContent-Length: 9\r\n\r\n").body, BodyLength::Fixed(9));
}

#[test]
fn keep_alive_follows_version_and_options() {
    for (version, connection, expected) in [
        ("1.1", "", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.1", "Connection: CLOSE\r\n", false),
        ("1.1", "Connection: x, close\r\n", false),
        ("1.1", "Connection: x\r\nConnection: close\r\n", false),
        ("1.1", "Connection: keep-alive, close\r\n", false),
        ("1.1", "Connection: closed\r\n", true),
        ("1.1", "Proxy-Connection: close\r\n", true),
        ("1.0", "", false),
        ("1.0", "Connection: Keep-Alive\r\n", true),
        ("1.0", "Connection: keep-alive, close\r\n", false),
        ("1.0", "Connection:\r\n", false),
        ("1.0", "Keep-Alive: timeout=5\r\n", false),
    ] {
        let input = format!("GET / HTTP/{version}\r\nHost: a\r\n{connection}\r\n");
        assert_eq!(framing_of(&input).keep_alive, expected, "{input:?}");
    }
}

#[test]
fn connection_options_are_counted() {
    let with = |count: usize| format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: {}x\r\n\r\n", "x,".repeat(count - 1));
    assert!(framing_of(&with(32)).keep_alive);
    refused(&with(33), 400);
}

#[test]
fn expectations() {
    let with_body = |expect: &str| post(&format!("Content-Length: 5\r\n{expect}"));
    assert!(framing_of(&with_body("Expect: 100-continue\r\n")).expect_continue);
    assert!(framing_of(&with_body("expect: 100-Continue\r\n")).expect_continue);
    assert!(framing_of(&post("Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n")).expect_continue);
    assert!(!framing_of(&with_body("")).expect_continue);
    assert!(!framing_of(&post("Expect: 100-continue\r\n")).expect_continue);
    assert!(!framing_of(&post("Content-Length: 0\r\nExpect: 100-continue\r\n")).expect_continue);
    assert!(!framing_of("POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n").expect_continue);
    for value in ["other", "", "100-continue, other", "100-continue;q=1", "200-ok", "100-continue,100-continue"] {
        refused(&with_body(&format!("Expect: {value}\r\n")), 417);
    }
    refused(&with_body("Expect: 100-continue\r\nExpect: other\r\n"), 417);
}

#[test]
fn websocket_needs_every_sign() {
    let check = |start: &str, fields: &str, expected: bool| {
        let input = format!("{start}\r\nHost: a\r\n{fields}\r\n");
        assert_eq!(framing_of(&input).websocket, expected, "{input:?}");
    };
    check("GET / HTTP/1.1", "Connection: Upgrade\r\nUpgrade: websocket\r\n", true);
    check("GET / HTTP/1.1", "Connection: keep-alive, upgrade\r\nUpgrade: WebSocket\r\n", true);
    check("GET / HTTP/1.1", "Connection: Upgrade\r\nUpgrade: foo\r\n", false);
    check("GET / HTTP/1.1", "Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n", false);
    check("GET / HTTP/1.1", "Upgrade: websocket\r\n", false);
    check("GET / HTTP/1.1", "Connection: Upgrade\r\n", false);
    check("GET / HTTP/1.0", "Connection: Upgrade\r\nUpgrade: websocket\r\n", false);
    check("POST / HTTP/1.1", "Connection: Upgrade\r\nUpgrade: websocket\r\n", false);
    check("GET / HTTP/1.1", "Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n", false);
}

#[test]
fn max_forwards_counts_for_options_and_trace_alone() {
    use trieway::http::framing::{MaxForwards, max_forwards};
    let read = |method: &str, fields: &str| {
        let input = format!("{method} / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let (head, _) = judge(input.as_bytes()).unwrap();
        max_forwards(&head, input.as_bytes()).map_err(|reject| reject.status())
    };
    for method in ["OPTIONS", "TRACE"] {
        for (value, expected) in [
            ("0", Ok(MaxForwards::Zero)),
            ("000", Ok(MaxForwards::Zero)),
            ("1", Ok(MaxForwards::Left(0))),
            (" 10\t", Ok(MaxForwards::Left(9))),
            ("99999999999999999999999", Ok(MaxForwards::Left(u64::from(u32::MAX) - 1))),
            ("", Err(400)),
            ("-1", Err(400)),
            ("1,1", Err(400)),
            ("0x0", Err(400)),
        ] {
            assert_eq!(read(method, &format!("max-forwards:{value}\r\n")), expected, "{method} {value:?}");
        }
        assert_eq!(read(method, ""), Ok(MaxForwards::Unlimited));
        assert_eq!(read(method, "Max-Forwards: 0\r\nMax-Forwards: 0\r\n"), Err(400));
    }
    for method in ["GET", "POST", "options"] {
        assert_eq!(read(method, "Max-Forwards: 0\r\n"), Ok(MaxForwards::Unlimited), "{method}");
    }
}
