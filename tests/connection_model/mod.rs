//! What a whole connection's bytes ask for, by the naive model of HTTP, and a generator of bytes that are nearly right.
//! Shared by a test and a fuzz target.

#![allow(dead_code, reason = "each user takes its part")]

// The user's root names the model: a test takes it from its support, a fuzz target from its file.
use crate::http_model::{self, Body, Chunked};

/// One request that must reach a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) body: Vec<u8>,
}

/// The requests that are accepted, in order: until the bytes end, break a rule, or ask for a close.
pub(crate) fn expected(input: &[u8]) -> Vec<Expected> {
    let mut found = Vec::new();
    let mut rest = input;
    while let Some(request) = http_model::request(rest) {
        rest = &rest[request.length..];
        let body = match request.body {
            Body::None => Some((Vec::new(), 0)),
            Body::Fixed(length) => {
                let whole = usize::try_from(length).ok().and_then(|length| rest.get(..length));
                whole.map(|body| (body.to_vec(), body.len()))
            }
            Body::Chunked => match http_model::chunked(rest) {
                Chunked::Complete { payload, consumed } => Some((payload, consumed)),
                Chunked::Incomplete | Chunked::Invalid => None,
            },
        };
        let Some((body, length)) = body else { break };
        rest = &rest[length..];
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        found.push(Expected { method: text(&request.method), target: text(&request.path_and_query), body });
        if !request.keep_alive {
            break;
        }
    }
    found
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `bound`, which is at least 1.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(crate) fn one_of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

const TARGETS: &[&str] = &["/a", "/b?x=1", "http://h/c", "/", "/%20", "http://h:1?q"];
const FIELDS: &[&str] = &[
    "X: y\r\n",
    "Connection: keep-alive\r\n",
    "Connection: close\r\n",
    "Connection: X, keep-alive\r\n",
    "Expect: 100-continue\r\n",
    "TE: trailers\r\n",
    "Upgrade: h2c\r\n",
    "X-Forwarded-For: 1.1.1.1\r\n",
    "Content-Type: text/plain\r\n",
];
const PIECES: &[&str] = &[
    "\r\n",
    "\n",
    "\r",
    " ",
    "\t",
    "\0",
    ":",
    ",",
    ";",
    "0",
    "5",
    "\r\n\r\n",
    "0\r\n\r\n",
    "5\r\n",
    "G",
    "chunked",
    "HTTP/1.0",
    "HTTP/1.1",
    "Content-Length: 5\r\n",
    "Content-Length: 0\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: gzip\r\n",
    "Host: t\r\n",
    " X: y\r\n",
    "X : y\r\n",
    "Connection: close\r\n",
    "GET /z HTTP/1.1\r\nHost: t\r\n\r\n",
    "\u{e9}",
    "a=\"b\"",
    "-1",
    "ffffffffffffffff",
    "+",
];

/// One to four requests in a row, mostly with a few faults.
pub(crate) fn pipeline(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..1 + random.below(4) {
        request(random, &mut bytes);
    }
    let mutations = random.below(4);
    for _ in 0..mutations {
        mutate(random, &mut bytes);
    }
    bytes
}

fn request(random: &mut Random, out: &mut Vec<u8>) {
    let version = if random.below(8) == 0 { "HTTP/1.0" } else { "HTTP/1.1" };
    let method = random.one_of(&["GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "M-X"]);
    out.extend_from_slice(format!("{method} {} {version}\r\nHost: t\r\n", random.one_of(TARGETS)).as_bytes());
    for _ in 0..random.below(3) {
        let field = random.one_of(FIELDS);
        // Closing ends the pipeline: not too often.
        if field != "Connection: close\r\n" || random.below(4) == 0 {
            out.extend_from_slice(field.as_bytes());
        }
    }
    let body: Vec<u8> = (0..random.below(12)).map(|_| random.one_of(b"ab\r\n0G :\0\xff")).collect();
    match random.below(4) {
        0 => out.extend_from_slice(b"\r\n"),
        1 if version == "HTTP/1.1" => {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
            let size = 1 + random.below(6);
            for chunk in body.chunks(size) {
                let extension = random.one_of(&["", "", ";x", ";a=\"b\""]);
                out.extend_from_slice(format!("{:x}{extension}\r\n", chunk.len()).as_bytes());
                out.extend_from_slice(chunk);
                out.extend_from_slice(b"\r\n");
            }
            out.extend_from_slice(random.one_of(&[&b"0\r\n\r\n"[..], b"0\r\nX: y\r\n\r\n"]));
        }
        _ => {
            out.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
            out.extend_from_slice(&body);
        }
    }
}

fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let at = random.below(bytes.len());
    let end = (at + 1 + random.below(12)).min(bytes.len());
    match random.below(6) {
        0 => bytes[at] = random.next() as u8,
        1 | 2 => {
            let piece = random.one_of(PIECES).as_bytes();
            bytes.splice(at..at, piece.iter().copied());
        }
        3 => drop(bytes.drain(at..end)),
        4 => {
            let again = bytes[at..end].to_vec();
            bytes.splice(at..at, again);
        }
        _ => {
            // At the start of a line.
            let line = bytes[..at].iter().rposition(|&b| b == b'\n').map_or(0, |lf| lf + 1);
            let piece = random.one_of(PIECES).as_bytes();
            bytes.splice(line..line, piece.iter().copied());
        }
    }
}
