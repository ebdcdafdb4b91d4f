//! Request heads: what is accepted, and how; what is refused, and with which status. Every input is parsed whole, byte
//! by byte and cut at every point, and the verdict must be the same.

mod http_support;

use http_support::{judge, parse, refused};
use trieway::http::framing::BodyLength;
use trieway::http::{Limits, Method, Reject, RequestHead, Version, parse_request};

#[test]
fn a_request_is_taken_apart() {
    let input = b"POST /v1/chat?x=1&y=2 HTTP/1.1\r\nHost: a:80\r\nX-Twice: 1\r\nx-twice:\t2 \t\r\nEmpty:\r\nContent-Length: 3\r\n\r\nabc";
    let (head, framing) = judge(input).unwrap();
    assert_eq!(head.method, Method::Post);
    assert_eq!(head.version, Version::Http11);
    assert_eq!(head.target.of(input), b"/v1/chat?x=1&y=2");
    assert_eq!(head.path(input), b"/v1/chat");
    assert_eq!(head.query(input), Some(&b"x=1&y=2"[..]));
    assert_eq!(head.field(input, "X-TWICE"), Some(&b"1"[..]));
    assert_eq!(head.fields[2].value.of(input), b"2");
    assert_eq!(head.field(input, "empty"), Some(&b""[..]));
    assert_eq!(head.field(input, "absent"), None);
    assert_eq!(framing.body, BodyLength::Fixed(3));
    assert!(framing.keep_alive);
}

#[test]
fn the_length_of_the_head_leaves_the_body_and_the_next_request_alone() {
    let input = b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\nGET /second HTTP/1.1\r\n";
    let (verdict, head) = parse(input, &Limits::default());
    assert_eq!(verdict, Ok(Some(4 + 27)));
    assert_eq!(head.method_span.of(input), b"GET");
}

#[test]
fn a_used_head_forgets_the_request_before() {
    let mut head = RequestHead::new();
    let first = b"GET http://a/x HTTP/1.0\r\nA: b\r\nC: d\r\n\r\n";
    let second = b"PUT /y HTTP/1.1\r\nHost: h\r\n\r\n";
    parse_request(first, &Limits::default(), &mut head).unwrap();
    parse_request(second, &Limits::default(), &mut head).unwrap();
    let mut fresh = RequestHead::new();
    parse_request(second, &Limits::default(), &mut fresh).unwrap();
    assert_eq!(head, fresh);
}

#[test]
fn methods_are_told_apart_by_case() {
    for (name, method) in [
        ("GET", Method::Get),
        ("HEAD", Method::Head),
        ("POST", Method::Post),
        ("PUT", Method::Put),
        ("DELETE", Method::Delete),
        ("OPTIONS", Method::Options),
        ("PATCH", Method::Patch),
        ("TRACE", Method::Trace),
        ("get", Method::Other),
        ("M-SEARCH", Method::Other),
    ] {
        let input = format!("{name} / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(judge(input.as_bytes()).unwrap().0.method, method);
    }
    refused("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", 405);
    refused("CONNECT /x HTTP/1.1\r\nHost: a\r\n\r\n", 405);
    refused(&format!("{} / HTTP/1.1\r\nHost: a\r\n\r\n", "M".repeat(33)), 501);
}

#[test]
fn targets_are_brought_into_origin_form() {
    let check = |target: &str, expected: &str, path: &str, host: &str| {
        let input = format!("OPTIONS {target} HTTP/1.1\r\nHost: field\r\n\r\n");
        let (head, _) = judge(input.as_bytes()).unwrap_or_else(|reject| panic!("{target}: {reject:?}"));
        assert_eq!(head.target.of(input.as_bytes()), expected.as_bytes(), "{target}");
        assert_eq!(head.path(input.as_bytes()), path.as_bytes(), "{target}");
        assert_eq!(head.host(input.as_bytes()), Some(host.as_bytes()), "{target}");
    };
    check("/", "/", "/", "field");
    check("/a//b/../c?d?e", "/a//b/../c?d?e", "/a//b/../c", "field");
    check("/?", "/?", "/", "field");
    check("*", "*", "*", "field");
    check("http://h/a", "/a", "/a", "h");
    check("HTTP://h:8000/a?b", "/a?b", "/a", "h:8000");
    check("https://[::1]:1/a", "/a", "/a", "[::1]:1");
    check("http://h", "/", "/", "h");
    check("https://h", "/", "/", "h");
    check("http://h?q=/", "?q=/", "/", "h");
    check("/http://h/", "/http://h/", "/http://h/", "field");
}

#[test]
fn bad_targets_are_refused() {
    for target in [
        "a",
        "",
        "a/b",
        "?q",
        "ftp://h/a",
        "http:/h",
        "http:///a",
        "http://",
        "/a#b",
        "/\u{e9}",
        "/a\u{7f}",
        "/a\tb",
        "//a b",
        "h:80",
        "/\0",
    ] {
        refused(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
    }
    refused("GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    refused("GET http://u:p@h/ HTTP/1.1\r\nHost: h\r\n\r\n", 400);
    refused("GET http://a b/ HTTP/1.1\r\nHost: h\r\n\r\n", 400);
    refused("GET http://h:x/ HTTP/1.1\r\nHost: h\r\n\r\n", 400);
}

#[test]
fn request_lines_have_one_shape() {
    for line in [
        "GET /",
        "GET",
        "GET  / HTTP/1.1",
        "GET /  HTTP/1.1",
        "GET / HTTP/1.1 ",
        " GET / HTTP/1.1",
        "GET\t/ HTTP/1.1",
        "GET / HTTP/1.1 x",
        "GET / http/1.1",
        "GET / HTTP/11",
        "GET / HTTP/1.",
        "GET / HTTP/1.10",
        "GET / HTTP/1.1\r",
        "GET / HTTPS/1.1",
        "GET / HTTP/1,1",
        "G@T / HTTP/1.1",
        "G\u{e9}T / HTTP/1.1",
        "\u{16}\u{3}\u{1}",
        "GET / \r",
        "GET \r/ HTTP/1.1",
        "\"GET\" / HTTP/1.1",
        "GET / HTTP/ 1.1",
        "GET / HTTP/+1.1",
    ] {
        refused(&format!("{line}\r\nHost: a\r\n\r\n"), 400);
    }
    for version in ["HTTP/2.0", "HTTP/1.9", "HTTP/0.9", "HTTP/3.0", "HTTP/1.2"] {
        refused(&format!("GET / {version}\r\nHost: a\r\n\r\n"), 505);
    }
    refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505);
}

#[test]
fn what_cannot_become_a_request_is_refused_before_it_is_whole() {
    let check = |input: &[u8], expected: Reject| {
        assert_eq!(parse(input, &Limits::default()).0, Err(expected), "{}", input.escape_ascii());
    };
    check(b"\x16\x03\x01\x02", Reject::RequestLine);
    check(b" ", Reject::RequestLine);
    check(b"{\"model\"", Reject::RequestLine);
    check(b"\n", Reject::RequestLine);
    check(b"GET /\r\n", Reject::RequestLine);
    check(b"GET / HTTP/2.0\r\n", Reject::Version);
    check(b"GET / HTTP/1.1\n", Reject::BareLineFeed);
    check(&[b'A'; 40], Reject::MethodTooLong { limit: 32 });
    let empty_lines = b"\r\n".repeat(5);
    check(&empty_lines, Reject::RequestLine);
    for incomplete in
        [&b""[..], b"\r", b"\r\n\r", b"GE", b"GET ", b"GET / HTTP/1.1\r", b"GET / HTTP/1.1\r\nHost: a\r\n\r"]
    {
        assert_eq!(parse(incomplete, &Limits::default()).0, Ok(None));
    }
}

#[test]
fn line_ends_are_crlf_and_nothing_else() {
    refused("GET / HTTP/1.1\nHost: a\r\n\r\n", 400);
    refused("GET / HTTP/1.1\r\nHost: a\n\r\n", 400);
    refused("GET / HTTP/1.1\r\nHost: a\r\n\n", 400);
    refused("GET / HTTP/1.1\nHost: a\n\n", 400);
    refused("GET / HTTP/1.1\r\nHost: a\r\nA: b\nTransfer-Encoding: chunked\r\n\r\n", 400);
    refused("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400);
    refused("GET / HTTP/1.1\r\nHost: a\r\n\r\r\n\r\n", 400);
    refused("GET / HTTP/1.1\r\nHost: a\r\nA: b\r\r\n\r\n", 400);
    refused("GET / HTTP/1.1\r\nHost: a\rA: b\r\n\r\n", 400);
    assert!(judge(b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n").is_ok());
}

#[test]
fn field_lines_have_one_shape() {
    for line in [
        "Transfer-Encoding : chunked",
        "Content-Length\t: 5",
        "X :y",
        " Transfer-Encoding: chunked",
        "\tX: y",
        "X: a\r\n folded",
        "X: a\r\n\tfolded",
        "X: a\0b",
        "X: a\rb",
        "X\0: a",
        "X: \u{1}",
        "X: \u{7f}",
        "novalue",
        ": empty",
        "X\u{e9}: y",
        "X Y: z",
        "X(y): z",
        "X@: y",
        "X: \u{b}y",
        "\r: x",
        "X\r: y",
    ] {
        for place in [
            format!("{line}\r\nHost: a\r\n"),
            format!("Host: a\r\n{line}\r\n"),
            format!("Host: a\r\n{line}\r\nY: z\r\n"),
        ] {
            refused(&format!("POST / HTTP/1.1\r\n{place}\r\n"), 400);
        }
    }
    for line in ["X: \u{e9}", "X:y", "X:   y   ", "X: a:b", "X: a\tb", "!#$%&'*+-.^_`|~1: y"] {
        assert!(judge(format!("GET / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n").as_bytes()).is_ok(), "{line}");
    }
}

#[test]
fn host_is_there_once_and_valid() {
    refused("GET / HTTP/1.1\r\n\r\n", 400);
    refused("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400);
    refused("GET / HTTP/1.1\r\nHost:\r\nHost:\r\n\r\n", 400);
    refused("GET / HTTP/1.1\r\nHost: a\r\nhOST: b\r\n\r\n", 400);
    refused("GET http://a/ HTTP/1.1\r\n\r\n", 400);
    refused("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400);
    for host in ["a b", ":80", "a,b", "a/b", "u@a", "a:80:80", "a:x", "[::1", "a\u{e9}", "a?b", "http://a", "a\\b"] {
        refused(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"), 400);
    }
    for good in [
        "GET / HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost:a\r\n\r\n",
        "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
        // RFC 9112 section 3.2: the target's URI has no authority.
        "GET / HTTP/1.1\r\nHost:\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: \t \r\n\r\n",
        "GET http://b/ HTTP/1.1\r\nHost:\r\n\r\n",
    ] {
        assert!(judge(good.as_bytes()).is_ok(), "{good:?}");
    }
}

#[test]
fn limits_are_exact() {
    let limits = Limits { head_bytes: 100, fields: 3, target_bytes: 10, ..Limits::default() };
    let check = |input: String, expected: Result<(), u16>| {
        let verdict = parse(input.as_bytes(), &limits).0;
        assert_eq!(
            verdict.map(|end| assert_eq!(end, Some(input.len()))).map_err(|reject| reject.status()),
            expected,
            "{input:?}"
        );
    };
    let with_target = |length: usize| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(length - 1));
    check(with_target(10), Ok(()));
    check(with_target(11), Err(414));
    check(with_target(90), Err(414));
    check(format!("GET /{}", "x".repeat(10)), Err(414));
    let with_length = |length: usize| format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "x".repeat(length - 23));
    assert_eq!(with_length(100).len(), 100);
    check(with_length(100), Ok(()));
    check(with_length(101), Err(431));
    check(with_length(1_000), Err(431));
    check("GET / HTTP/1.1\r\nA: ".to_owned() + &"x".repeat(81), Err(431));
    let with_fields = |count: usize| format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(count));
    check(with_fields(3), Ok(()));
    check(with_fields(4), Err(431));
}

#[test]
fn default_limits_answer_each_excess_with_its_status() {
    let with_fields = |count: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(count - 1));
    assert!(judge(with_fields(128).as_bytes()).is_ok());
    for count in [129, 257, 1_000] {
        refused(&with_fields(count), 431);
    }
    refused(&format!("GET / HTTP/1.1\r\nHost: a\r\nA: {}\r\n\r\n", "x".repeat(64 << 10)), 431);
    refused(&format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(64 << 10)), 414);
    refused(&format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(16 << 10)), 414);
}
