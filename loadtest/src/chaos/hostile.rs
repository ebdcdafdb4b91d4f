//! Bytes of clients that mean no good: broken heads, doubled framing, requests within bodies, noise.

use super::Random;

const HEADS: &[&str] = &[
    "POST /v1/completions HTTP/1.1\r\nHost: h\r\nX-Tag: TAG\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "POST /v1/completions HTTP/1.1\r\nHost: h\r\nX-Tag: TAG\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST /v1/completions HTTP/1.1\r\nHost: h\r\nX-Tag: TAG\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    "POST /v1/completions HTTP/1.1\r\nHost: h\r\nX-Tag: TAG\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "POST /v1/completions HTTP/1.1\r\nHost: h\r\nX-Tag: TAG\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":\r\n-1\r\n",
    "POST /tokenize HTTP/1.1\r\nHost: h\r\nX-Tag: TAG\r\nContent-Length: 2\r\n\r\n{}GET /smuggled HTTP/1.1\r\nHost: h\r\nX-Tag: TAG\r\n\r\n",
    "POST /tokenize HTTP/1.1\r\nHost: h\r\nX-Tag: TAG\r\nContent-Length: 200\r\n\r\n{}",
    "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "GET /v1/models HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n",
    "GET http://[::1 HTTP/1.1\r\nHost: h\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\u{fc}\u{3}\u{3}",
    "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\nGET /engines HTTP/1.1\r\nHost: h\r\n\r\nGET /health HTTP/1.1\r\nHost: h\r\n\r\n",
    "POST /debug/route HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n[1,",
    "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nX-Tag: TAG\r\nContent-Length: 23\r\n\r\n{\"model\":\"\\ud800\",\"a\":1",
];

/// One attack of the client that is called `name`.
pub(super) fn bytes(random: &mut Random, name: &str) -> Vec<u8> {
    if random.below(8) == 0 {
        return (0..random.below(2_000)).map(|_| random.next() as u8).collect();
    }
    let tag = format!("{name}-{}", random.below(1_000));
    let mut bytes = random.one_of(HEADS).replace("TAG", &tag).into_bytes();
    if random.below(8) == 0 {
        // A head without an end.
        bytes.truncate(bytes.len().min(20));
        bytes.extend(std::iter::repeat_n(b'a', random.below(200_000)));
    }
    for _ in 0..random.below(3) {
        // The tag stays whole: it says whose answer this is.
        let at = random.below(bytes.len());
        let byte = random.one_of(b"\r\n \t\0:;,0G\xff");
        if !bytes[..at].ends_with(b"X-Tag: ") && !bytes[at].is_ascii_digit() && bytes[at] != b'-' && bytes[at] != b'c' {
            bytes[at] = byte;
        }
    }
    bytes
}
