//! Requests that two readers could take in two ways. Each is answered with an error and a close: no backend sees a byte of
//! it, and nothing behind it is taken for a request.

mod support;

use support::origin::ok;
use support::{Origin, Router, completion};

/// What follows each bad request: bytes that must never become a request of their own.
const POISON: &str = "GET /poison HTTP/1.1\r\nHost: t\r\n\r\n";

const REFUSED: &[u16] = &[400];
/// A coding that is understood and not supported may also be called that.
const CODING: &[u16] = &[400, 501];

struct Stage {
    origin: Origin,
    router: Router,
}

impl Stage {
    fn new() -> Self {
        let origin = Origin::start(&["m"], |peer, _| peer.send(ok("{}")));
        let router = Router::in_front_of(&[origin.url()], &[]);
        Stage { origin, router }
    }

    /// The bytes are refused with one of `statuses`, as a connection's first request and behind a good one.
    fn refuses(&self, bytes: &str, statuses: &[u16]) {
        self.refuses_once("", bytes, statuses);
        let body = completion("m", "good");
        let good = format!("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        self.refuses_once(&good, bytes, statuses);
    }

    fn refuses_once(&self, before: &str, bytes: &str, statuses: &[u16]) {
        let already = self.origin.count();
        let mut client = self.router.client();
        client.try_send(format!("{before}{bytes}{POISON}"));
        if !before.is_empty() {
            assert_eq!(client.response().status, 200, "the good one before {bytes:?}");
        }
        let answer = client.response();
        assert!(statuses.contains(&answer.status), "{bytes:?}: {} {}", answer.head, answer.body_text());
        assert!(!answer.error_code().is_empty(), "{bytes:?}: {}", answer.body_text());
        assert_eq!(answer.field("connection"), Some("close"), "{bytes:?}");
        assert!(client.ends_silently(), "more than one answer to {bytes:?}");
        assert_eq!(self.origin.count() - already, usize::from(!before.is_empty()), "a backend saw {bytes:?}");
    }

    /// The bytes are one request, with this body; what follows it is the next one.
    fn accepts(&self, bytes: &str, body: &str) {
        self.origin.forget();
        let mut client = self.router.client();
        client.send(bytes).send(POISON);
        for answer in [client.response(), client.response()] {
            assert_eq!(answer.status, 200, "{bytes:?}: {}", answer.body_text());
        }
        let received = self.origin.received();
        assert_eq!(String::from_utf8_lossy(&received[0].body), body, "{bytes:?}");
        assert_eq!((received.len(), received[1].line()), (2, "GET /poison HTTP/1.1"), "{bytes:?}");
    }

    fn end(self) {
        self.origin.canonical();
        let still = self.router.post("/v1/completions", &completion("m", "still there"));
        assert_eq!(still.status, 200);
    }
}

fn post(fields: &str, body: &str) -> String {
    format!("POST /any HTTP/1.1\r\nHost: t\r\n{fields}\r\n{body}")
}

const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";

#[test]
fn a_length_and_a_coding_together_are_refused_in_either_order() {
    let stage = Stage::new();
    for fields in [
        "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n",
        "Transfer-Encoding: chunked\r\nX: y\r\ncontent-length: 6\r\n",
        "Content-Length: 6\r\nTRANSFER-ENCODING: CHUNKED\r\n",
        "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 6\r\nTransfer-Encoding: identity\r\n",
        "Content-Length: 6\r\nTransfer-Encoding:\r\n",
        "Content-Length:\r\nTransfer-Encoding: chunked\r\n",
        "Connection: Transfer-Encoding\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n",
    ] {
        stage.refuses(&post(fields, "0\r\n\r\nG"), CODING);
        stage.refuses(&post(fields, "0\r\n\r\n").replace("POST", "GET"), CODING);
    }
    stage.end();
}

#[test]
fn only_a_sole_chunked_on_http_1_1_is_a_transfer_encoding() {
    let stage = Stage::new();
    let variants = [
        "chunked\t",
        "chunked,",
        ",chunked",
        "chunked, gzip",
        "gzip, chunked",
        "xchunked",
        "chunkedx",
        "chunked, chunked",
        "identity",
        "identity, chunked",
        "CHUNKED",
        "\"chunked\"",
        "chunked;q=1",
        "chun ked",
        "\u{b}chunked",
        "chunked\u{c}",
        "gzip",
        "deflate",
        "",
        "x",
    ];
    for value in variants {
        let both = format!("Transfer-Encoding: {value}\r\nContent-Length: 5\r\n");
        stage.refuses(&post(&both, "0\r\n\r\n"), CODING);
    }
    for value in variants.into_iter().filter(|v| !matches!(*v, "chunked\t" | "CHUNKED")) {
        stage.refuses(&post(&format!("Transfer-Encoding: {value}\r\n"), "0\r\n\r\n"), CODING);
    }
    for lines in [
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding: \r\nTransfer-Encoding: chunked\r\n",
    ] {
        stage.refuses(&post(lines, "0\r\n\r\n"), CODING);
    }
    let old = "POST /any HTTP/1.0\r\nHost: t\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    stage.refuses(old, CODING);
    for value in ["chunked", "CHUNKED", "Chunked", "chunked\t", " \t chunked \t"] {
        stage.accepts(&post(&format!("Transfer-Encoding: {value}\r\n"), "5\r\nhello\r\n0\r\n\r\n"), "hello");
    }
    stage.end();
}

#[test]
fn a_content_length_is_digits_that_fit_and_repeats_are_equal() {
    let stage = Stage::new();
    let nines = "9".repeat(40);
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
        "5.0",
        "5e0",
        "\u{b}5",
        "5\u{c}",
        "five",
        "5_0",
        "\u{665}",
        "18446744073709551616",
        "99999999999999999999",
        &nines,
    ] {
        stage.refuses(&post(&format!("Content-Length: {value}\r\n"), "hello"), REFUSED);
    }
    for lines in [
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 6\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 05\r\n",
        "Content-Length: 5\r\nX: y\r\nContent-Length: \r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\nCONTENT-LENGTH: 0\r\n",
    ] {
        stage.refuses(&post(lines, "hello"), REFUSED);
    }
    for lines in [
        "Content-Length: 5\r\n",
        "Content-Length:5\r\n",
        "Content-Length: \t5 \r\n",
        "Content-Length: 0005\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
    ] {
        stage.accepts(&post(lines, "hello"), "hello");
    }
    stage.end();
}

#[test]
fn a_field_line_is_name_colon_value_and_crlf() {
    let stage = Stage::new();
    let smuggled = "0\r\n\r\n";
    for fields in [
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding\t: chunked\r\n",
        "Content-Length\t: 5\r\n",
        "Content-Length : 5\r\n",
        "X : y\r\n",
        "X: y\r\n Transfer-Encoding: chunked\r\n",
        "X: y\r\n\tTransfer-Encoding: chunked\r\n",
        "X: y\r\n \r\n",
        "X: a\0b\r\n",
        "X: a\rb\r\n",
        "X: a\r\r\n",
        "X\0: a\r\n",
        "X: \u{7f}\r\n",
        "X: \u{1b}[0m\r\n",
        "Transfer-Encoding\0: chunked\r\n",
        "\u{0}Transfer-Encoding: chunked\r\n",
        "Transfer Encoding: chunked\r\n",
        "Transfer-Encoding; chunked\r\n",
        "Transfer-Encoding\r\n",
        ": chunked\r\n",
        "(X): y\r\n",
        "X: y\nTransfer-Encoding: chunked\r\n",
        "X: y\n",
        "\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\n",
    ] {
        stage.refuses(&post(fields, smuggled), REFUSED);
    }
    stage.refuses("POST /any HTTP/1.1\r\n Transfer-Encoding: chunked\r\nHost: t\r\n\r\n0\r\n\r\n", REFUSED);
    stage.refuses("POST /any HTTP/1.1\r\n\tHost: t\r\n\r\n", REFUSED);
    stage.refuses("GET /any HTTP/1.1\nHost: t\n\n", REFUSED);
    stage.refuses("GET /any HTTP/1.1\r\nHost: t\r\n\n", REFUSED);
    stage.refuses("GET /any HTTP/1.1\r\nHost: t\n\r\n", REFUSED);
    stage.refuses("GET /any HTTP/1.1\r\nHost: t\r\n\rX", REFUSED);
    stage.end();
}

#[test]
fn a_request_line_is_three_words_and_names_one_host() {
    let stage = Stage::new();
    for line in [
        "GET  /any HTTP/1.1",
        "GET /any  HTTP/1.1",
        "GET\t/any\tHTTP/1.1",
        " GET /any HTTP/1.1",
        "GET /any HTTP/1.1 ",
        "GET /any",
        "GET /any http/1.1",
        "GET /any HTTP/1.1x",
        "GET /any HTTP/1",
        "GET /any\0 HTTP/1.1",
        "GET /a\rny HTTP/1.1",
        "GET /\u{e9} HTTP/1.1",
        "GET any HTTP/1.1",
        "GET /a#b HTTP/1.1",
        "GET http://user@evil/ HTTP/1.1",
        "GET ftp://evil/ HTTP/1.1",
        "G@T /any HTTP/1.1",
        "\u{0}GET /any HTTP/1.1",
    ] {
        stage.refuses(&format!("{line}\r\nHost: t\r\n\r\n"), REFUSED);
    }
    for hosts in
        ["", "Host: a\r\nHost: b\r\n", "Host: t\r\nHost: t\r\n", "Host: a b\r\n", "Host: a/b\r\n", "Host: u@h\r\n"]
    {
        stage.refuses(&format!("GET /any HTTP/1.1\r\n{hosts}\r\n"), REFUSED);
    }
    for version in ["HTTP/2.0", "HTTP/1.9", "HTTP/0.9", "HTTP/1.2", "HTTP/3.0"] {
        stage.refuses(&format!("GET /any {version}\r\nHost: t\r\n\r\n"), &[505]);
    }
    stage.refuses("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[400, 505]);
    stage.refuses("CONNECT evil:443 HTTP/1.1\r\nHost: evil\r\n\r\n", &[405]);
    stage.refuses("\r\n\r\n\r\n\r\n\r\n\r\nGET /any HTTP/1.1\r\nHost: t\r\n\r\n", REFUSED);
    stage.refuses("\nGET /any HTTP/1.1\r\nHost: t\r\n\r\n", REFUSED);
    stage.accepts("\r\n\r\nGET /any HTTP/1.1\r\nHost: t\r\n\r\n", "");
    stage.accepts("GET http://evil.example:99/any?x HTTP/1.1\r\nHost: t\r\n\r\n", "");
    stage.end();
}

#[test]
fn a_chunk_line_ends_with_crlf_and_its_extension_is_bounded() {
    let stage = Stage::new();
    let long = format!("5;x={}\r\nhello\r\n0\r\n\r\n", "y".repeat(1 << 20));
    for body in [
        "5\nhello\r\n0\r\n\r\n",
        "5;a\nb\r\nhello\r\n0\r\n\r\n",
        "5;a=\"\r\n0\r\n\r\n\"\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "5\rx\r\nhello\r\n0\r\n\r\n",
        "5\r\rhello\r\n0\r\n\r\n",
        "5;\r\nhello\r\n0\r\n\r\n",
        "5;a\0\r\nhello\r\n0\r\n\r\n",
        "5;a=\rb\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\r\nhello\r0\r\n\r\n",
        "5\r\nhello\r\n0\n\r\n",
        "5\r\nhello\r\n0\r\n\n",
        "5\r\nhello\r\n0\r\nX: y\n\r\n",
        "5\r\nhello\r\n0\r\n X: y\r\n\r\n",
        "5\r\nhello\r\n0\r\nX : y\r\n\r\n",
        "5\r\nhello\r\n0\r\nno colon\r\n\r\n",
        &long,
    ] {
        stage.refuses(&post(CHUNKED, body), REFUSED);
    }
    for body in [
        "5;a\r\nhello\r\n0\r\n\r\n",
        "5 ; a = b\r\nhello\r\n0;z\r\n\r\n",
        "5;a=\"q \\\" \t\";b\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello\r\n000\r\nContent-Length: 9\r\nTransfer-Encoding: gzip\r\n\r\n",
        "0000000000000005\r\nhello\r\n0\r\n\r\n",
    ] {
        stage.accepts(&post(CHUNKED, body), "hello");
    }
    stage.end();
}

#[test]
fn a_chunk_size_is_one_to_sixteen_digits_and_data_ends_where_it_says() {
    let stage = Stage::new();
    for size in [
        "10000000000000005",
        "123x",
        "0x5",
        "0_0",
        "-1",
        "+5",
        "",
        ";x",
        " ",
        " 5",
        "\t5",
        "00000000000000000000005",
        "5 5",
        "\u{ff15}",
        "G",
    ] {
        stage.refuses(&post(CHUNKED, &format!("{size}\r\nhello\r\n0\r\n\r\n")), REFUSED);
    }
    for size in ["FFFFFFFFFFFFFFFF", "FFFFFFFFFFFFFFF0", "8000000000000000", "80000000", "7FFFFFFFFFFFFFFF"] {
        stage.refuses(&post(CHUNKED, &format!("{size}\r\nhello\r\n0\r\n\r\n")), &[400, 413]);
        stage.refuses(&post(CHUNKED, &format!("5\r\nhello\r\n{size}\r\nhello\r\n0\r\n\r\n")), &[400, 413]);
    }
    for body in ["5\r\nhello0\r\n\r\n", "5\r\nhello!\r\n0\r\n\r\n", "4\r\nhello\r\n0\r\n\r\n"] {
        stage.refuses(&post(CHUNKED, body), REFUSED);
    }
    assert!(stage.router.resident_kib() < 200 << 10, "an announced size takes no memory");
    stage.end();
}
