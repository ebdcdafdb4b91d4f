//! Response heads: what is accepted, and how its body is delimited; what is refused. Every input is parsed whole, byte by
//! byte and cut at every point, and the verdict must be the same.

#![allow(clippy::unwrap_used, reason = "helpers of tests, too, may fail by a panic")]

use trieway::http::framing::{self, ResponseBody, ResponseFraming};
use trieway::http::{BadResponse, Limits, Method, Name, ResponseHead, Version, parse_response};

type Verdict = Result<Option<usize>, BadResponse>;

fn parse_in_pieces(input: &[u8], cuts: &[usize], limits: &Limits) -> (Verdict, ResponseHead) {
    let mut head = ResponseHead::new();
    for &cut in cuts.iter().chain([&input.len()]) {
        let verdict = parse_response(&input[..cut], limits, &mut head);
        if verdict != Ok(None) {
            return (verdict, head);
        }
    }
    (Ok(None), head)
}

/// The verdict on `input`, the same under every split.
fn parse(input: &[u8], limits: &Limits) -> (Verdict, ResponseHead) {
    let whole = parse_in_pieces(input, &[], limits);
    let agree = |cuts: &[usize]| {
        let split = parse_in_pieces(input, cuts, limits);
        assert_eq!(split.0, whole.0, "cut at {cuts:?}: {}", input.escape_ascii());
        if matches!(whole.0, Ok(Some(_))) {
            assert_eq!(split.1, whole.1, "cut at {cuts:?}: {}", input.escape_ascii());
        }
    };
    if input.len() < 2_000 {
        (0..input.len()).for_each(|cut| agree(&[cut]));
        agree(&(0..input.len()).collect::<Vec<_>>());
    }
    whole
}

fn judge(input: &str, method: Method) -> Result<(ResponseHead, ResponseFraming), BadResponse> {
    let (verdict, head) = parse(input.as_bytes(), &Limits::default());
    verdict?.unwrap_or_else(|| panic!("needs more: {input:?}"));
    let framing = framing::response(&head, input.as_bytes(), method)?;
    Ok((head, framing))
}

fn refused(input: &str, code: &str) {
    match judge(input, Method::Post) {
        Ok(accepted) => panic!("accepted: {input:?} as {accepted:?}"),
        Err(fault) => assert_eq!(fault.code(), code, "{input:?}: {}", fault.message()),
    }
}

fn framing_of(input: &str, method: Method) -> ResponseFraming {
    judge(input, method).unwrap_or_else(|fault| panic!("{input:?}: {fault:?}")).1
}

#[test]
fn a_response_is_taken_apart() {
    let input = "HTTP/1.0 404 Not  Found\r\nContent-Type: a/b\r\nX: \t1 \r\nx: 2\r\n\r\nbody";
    let (head, _) = judge(input, Method::Get).unwrap();
    assert_eq!((head.status, head.version), (404, Version::Http10));
    assert_eq!(head.reason.of(input.as_bytes()), b"Not  Found");
    assert_eq!(head.field(input.as_bytes(), "X"), Some(&b"1"[..]));
    assert_eq!(head.fields[2].value.of(input.as_bytes()), b"2");
    assert_eq!(head.field_kind(input.as_bytes(), Name::ContentType), Some(&b"a/b"[..]));
    assert_eq!(parse(input.as_bytes(), &Limits::default()).0, Ok(Some(input.len() - 4)));
}

#[test]
fn status_lines_have_one_shape() {
    for (line, reason) in [
        ("HTTP/1.1 200 OK", "OK"),
        ("HTTP/1.1 200 ", ""),
        ("HTTP/1.1 200", ""),
        ("HTTP/1.1 599 \u{e9}\tx", "\u{e9}\tx"),
    ] {
        let input = format!("{line}\r\n\r\n");
        let (head, _) = judge(&input, Method::Get).unwrap();
        assert_eq!(head.reason.of(input.as_bytes()), reason.as_bytes());
    }
    for line in [
        "HTTP/1.1  200 OK",
        "HTTP/1.1 20 OK",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1 099 OK",
        "HTTP/1.1 600 OK",
        "HTTP/1.1 000 OK",
        "HTTP/1.1 2x0 OK",
        "HTTP/1.1 -20 OK",
        "HTTP/1.1",
        "HTTP/1.1 ",
        "HTTP/1.1\t200 OK",
        "HTTP/1.1 200\tOK",
        "HTTP/1.1 200OK",
        "HTTP/1.1 200 O\0K",
        "HTTP/1.1 200 O\rK",
        "HTTP/1.1 200 \u{7f}",
        "HTTP/1.10 200 OK",
        "HTTP/11.1 200 OK",
        "HTTP/1. 200 OK",
        "ICY 200 OK",
        "http/1.1 200 OK",
        "{\"error\":1}",
        "",
        "HTTP",
        "\r\nHTTP/1.1 200 OK",
        "GET / HTTP/1.1",
    ] {
        refused(&format!("{line}\r\nContent-Length: 0\r\n\r\n"), "invalid_status_line");
    }
    for line in ["HTTP/2.0 200 OK", "HTTP/1.2 200 OK", "HTTP/0.9 200 OK"] {
        refused(&format!("{line}\r\n\r\n"), "http_version_not_supported");
    }
}

#[test]
fn what_is_not_http_is_refused_at_once() {
    for input in ["{", "<html>", "HTTX", "\rH", "\n", "\u{16}\u{3}", "HTTP/1.1 999 \r\n"] {
        assert_eq!(parse(input.as_bytes(), &Limits::default()).0, Err(BadResponse::StatusLine), "{input:?}");
    }
    for input in ["", "H", "HTTP/", "HTTP/1.1 200 OK", "HTTP/1.1 200 OK\r", "HTTP/1.1 200 OK\r\nA: b\r\n\r"] {
        assert_eq!(parse(input.as_bytes(), &Limits::default()).0, Ok(None), "{input:?}");
    }
}

#[test]
fn lines_and_fields_are_as_strict_as_in_requests() {
    for input in [
        "HTTP/1.1 200 OK\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\r\n\n",
        "HTTP/1.1 200 OK\n\n",
    ] {
        refused(input, "bare_line_feed");
    }
    for (line, code) in [
        ("Content-Length : 5", "space_before_colon"),
        ("Transfer-Encoding\t: chunked", "space_before_colon"),
        (" A: b", "folded_field_line"),
        ("A: b\r\n c", "folded_field_line"),
        ("A: b\0", "invalid_field_value"),
        ("A: b\rc", "invalid_field_value"),
        ("A\u{e9}: b", "invalid_field_name"),
        ("nocolon", "invalid_field_name"),
        (": b", "invalid_field_name"),
        ("A B: c", "invalid_field_name"),
    ] {
        refused(&format!("HTTP/1.1 200 OK\r\nZ: z\r\n{line}\r\nY: y\r\n\r\n"), code);
    }
}

#[test]
fn limits_are_exact() {
    let with_fields = |count: usize| format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(count));
    assert!(judge(&with_fields(128), Method::Get).is_ok());
    for count in [129, 150, 257, 1_000] {
        refused(&with_fields(count), "too_many_header_fields");
    }
    let with_length = |length: usize| format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "x".repeat(length - 24));
    assert!(judge(&with_length(64 << 10), Method::Get).is_ok());
    refused(&with_length((64 << 10) + 1), "response_head_too_large");
    refused(&format!("HTTP/1.1 200 {}", "x".repeat(64 << 10)), "response_head_too_large");
}

#[test]
fn the_body_is_delimited_in_one_way() {
    let body = |fields: &str| framing_of(&format!("HTTP/1.1 200 OK\r\n{fields}\r\n"), Method::Post).body;
    assert_eq!(body("Content-Length: 5\r\n"), ResponseBody::Fixed(5));
    assert_eq!(body("Content-Length: 0\r\n"), ResponseBody::Fixed(0));
    assert_eq!(body("Content-Length: 5\r\ncontent-length: 5\r\n"), ResponseBody::Fixed(5));
    assert_eq!(body("Transfer-Encoding: Chunked\r\n"), ResponseBody::Chunked);
    assert_eq!(body("A: b\r\n"), ResponseBody::UntilClose);
    for (fields, code) in [
        ("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", "content_length_with_transfer_encoding"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 6\r\n", "content_length_with_transfer_encoding"),
        ("Transfer-Encoding: gzip\r\nContent-Length: x\r\n", "content_length_with_transfer_encoding"),
        ("Content-Length: 5\r\nContent-Length: 6\r\n", "conflicting_content_length"),
        ("Content-Length: +5\r\n", "invalid_content_length"),
        ("Content-Length: 5,5\r\n", "invalid_content_length"),
        ("Content-Length:\r\n", "invalid_content_length"),
        ("Content-Length: 18446744073709551616\r\n", "invalid_content_length"),
        ("Transfer-Encoding: chunked, chunked\r\n", "invalid_transfer_encoding"),
        ("Transfer-Encoding: identity\r\n", "invalid_transfer_encoding"),
        ("Transfer-Encoding:\r\n", "invalid_transfer_encoding"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "invalid_transfer_encoding"),
        ("Transfer-Encoding: gzip, chunked\r\n", "unsupported_transfer_coding"),
        ("Transfer-Encoding: gzip\r\n", "unsupported_transfer_coding"),
    ] {
        refused(&format!("HTTP/1.1 200 OK\r\n{fields}\r\n"), code);
        // Not even where no body can follow.
        refused(&format!("HTTP/1.1 204 No Content\r\n{fields}\r\n"), code);
    }
    refused("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "transfer_encoding_on_http_1_0");
    assert_eq!(framing_of("HTTP/1.0 200 OK\r\n\r\n", Method::Get).body, ResponseBody::UntilClose);
}

#[test]
fn some_responses_end_at_the_blank_line_whatever_they_announce() {
    for fields in ["", "Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n"] {
        for status in [100, 102, 103, 199, 101, 204, 304] {
            let framing = framing_of(&format!("HTTP/1.1 {status} X\r\n{fields}\r\n"), Method::Get);
            assert_eq!(framing.body, ResponseBody::None, "{status} {fields:?}");
            assert_eq!(framing.interim, matches!(status, 100 | 102 | 103 | 199));
            assert_eq!(framing.switching, status == 101);
            assert_eq!(framing.keep_alive, status != 101);
        }
        for status in [200, 206, 404, 500] {
            let framing = framing_of(&format!("HTTP/1.1 {status} X\r\n{fields}\r\n"), Method::Head);
            assert_eq!((framing.body, framing.keep_alive), (ResponseBody::None, true), "{status} {fields:?}");
        }
    }
}

#[test]
fn keep_alive_needs_a_known_end() {
    for (input, expected) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n", false),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: X-Foo, Close\r\n\r\n", false),
        ("HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n\r\n", false),
        ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", false),
        ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\n", true),
        ("HTTP/1.1 204 No Content\r\n\r\n", true),
    ] {
        assert_eq!(framing_of(input, Method::Get).keep_alive, expected, "{input:?}");
    }
    let options = "x,".repeat(32);
    refused(
        &format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: {options}x\r\n\r\n"),
        "too_many_connection_options",
    );
}
