//! Random request heads, near to valid ones in many places, against a naive second reading.

mod http_model;

use http_model::Body;
use proptest::prelude::*;
use trieway::http::framing::{self, BodyLength};
use trieway::http::{Limits, RequestHead, Version, parse_request};

/// What the parser makes of `input`, in the model's terms. `None`: refused, or more is needed.
fn parsed(input: &[u8]) -> Option<http_model::Request> {
    let mut head = RequestHead::new();
    let length = parse_request(input, &Limits::default(), &mut head).ok()??;
    let framing = framing::request(&head, input).ok()?;
    framing::max_forwards(&head, input).ok()?;
    let target = head.target.of(input);
    Some(http_model::Request {
        length,
        method: head.method_span.of(input).to_vec(),
        path_and_query: [if target.starts_with(b"?") { &b"/"[..] } else { b"" }, target].concat(),
        http_11: head.version == Version::Http11,
        fields: head.fields.iter().map(|f| (f.name.of(input).to_vec(), f.value.of(input).to_vec())).collect(),
        body: match framing.body {
            BodyLength::None => Body::None,
            BodyLength::Fixed(length) => Body::Fixed(length),
            BodyLength::Chunked => Body::Chunked,
        },
        keep_alive: framing.keep_alive,
    })
}

fn one_of(pieces: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    proptest::sample::select(pieces)
}

/// Mostly the first choice, sometimes one of the others.
fn mostly(usual: &'static str, others: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    prop_oneof![12 => Just(usual), 1 => one_of(others)]
}

fn field_line() -> impl Strategy<Value = String> {
    let name = one_of(&[
        "Content-Length",
        "content-length",
        "Transfer-Encoding",
        "Connection",
        "Host",
        "Expect",
        "X",
        "Upgrade",
        "X Y",
        "",
        "\t",
    ]);
    let value = one_of(&[
        "5",
        "5",
        "h",
        "close",
        "chunked",
        "x",
        "100-continue",
        "5",
        "5",
        "6",
        "05",
        "+5",
        "5,5",
        "99999999999999999999",
        "chunked",
        "Chunked",
        "gzip, chunked",
        "identity",
        "close",
        "keep-alive",
        "Keep-Alive, x",
        "h",
        "h:80",
        "h:x",
        "[::1]",
        "100-continue",
        "",
        "a\u{1}",
        "\u{e9}",
        "a\tb",
        "websocket",
    ]);
    (
        name,
        mostly(": ", &[":", " :", ":\t", "", "::", ":\r\n "]),
        value,
        mostly("\r\n", &["\n", "\r", " \r\n", "\r\r\n", "\0\r\n"]),
    )
        .prop_map(|(name, colon, value, end)| [name, colon, value, end].concat())
}

fn near_request() -> impl Strategy<Value = String> {
    let line = (
        mostly("", &["\r\n", "\r\n\r\n", "\n", "\r", "\r\n\r\n\r\n\r\n\r\n", " "]),
        mostly("POST", &["GET", "OPTIONS", "CONNECT", "M-SEARCH", "get", "G@T", ""]),
        mostly(" ", &["", "  ", "\t"]),
        mostly(
            "/",
            &[
                "/a?b",
                "*",
                "http://h/x",
                "HTTPS://h:1",
                "http://h?q",
                "http://u@h/",
                "ftp://h/",
                "a",
                "/\u{e9}",
                "/#",
                "//",
                "http:///",
                "",
            ],
        ),
        mostly(" ", &["", "  ", "\t"]),
        mostly("HTTP/1.1", &["HTTP/1.0", "HTTP/1.0", "HTTP/2.0", "http/1.1", "HTTP/1.1 ", ""]),
        mostly("\r\n", &["\n", "\r", "\r\n\r\n"]),
        mostly("Host: h\r\n", &["", "host:h\r\n", "Host: a\r\nHost: a\r\n"]),
    );
    let end = mostly("\r\n", &["", "\n", "\r", "\r\nrest", "\r\n\r\n"]);
    (line, proptest::collection::vec(field_line(), 0..4), end).prop_map(|((a, b, c, d, e, f, g, h), fields, end)| {
        [&[a, b, c, d, e, f, g, h].concat(), &fields.concat(), end].concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_head_is_read_as_the_model_reads_it(input in near_request()) {
        prop_assert_eq!(parsed(input.as_bytes()), http_model::request(input.as_bytes()), "{:?}", input);
    }
}

#[test]
fn the_generator_makes_both_acceptable_and_refused_heads() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let accepted = (0..2_000).filter(|_| {
        let input = near_request().new_tree(&mut runner).expect("a generator without filters").current();
        parsed(input.as_bytes()).is_some()
    });
    assert!((200..1_800).contains(&accepted.count()));
}
