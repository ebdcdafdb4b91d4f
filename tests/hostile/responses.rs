//! One answer a seed, mostly with faults; it may bring more than it should.

use super::grammar::{self, ENDS, Field, Random, chunks, field};

const STARTS: &[&str] = &[
    "HTTP/1.0 200 OK",
    "HTTP/1.1 200 ",
    "HTTP/1.1 200",
    "HTTP/1.1  200 OK",
    "HTTP/1.1\t200 OK",
    "HTTP/1.1 20 OK",
    "HTTP/1.1 2000 OK",
    "HTTP/1.1 099 X",
    "HTTP/1.1 600 X",
    "HTTP/1.1 204 No Content",
    "HTTP/1.1 304 Not Modified",
    "HTTP/1.1 404 \u{e9}",
    "HTTP/2 200 OK",
    "http/1.1 200 OK",
    "HTTP/1.1 2x0 OK",
    "ICY 200 OK",
    "HTTP/1.1 200 O\0K",
    "HTTP/1.1 200 O\rK",
    "",
    " HTTP/1.1 200 OK",
    "HTTP/1.1 -20 OK",
    "HTTP/1.1 101 Switching Protocols",
    "HTTP/1.1 599 ",
    "HTTP/1.2 200 OK",
    "HTTP/1.1 200\tOK",
    "\u{ff}",
];
const INTERIM: &[&[u8]] = &[
    b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 102 Processing\r\nContent-Length: 5\r\n\r\n",
    b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 103 Early\r\n\r\n",
    b"HTTP/1.1 199 X\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"\r\n",
    b"\n",
    b"evil",
];
const SURPLUS: &[&[u8]] = &[b"evil", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", b"\r\n", b"\0", b"0\r\n\r\n"];
const USUAL: &[(&str, &str)] = &[
    ("X", "y"),
    ("Connection", "keep-alive"),
    ("Connection", "close"),
    ("Content-Type", "text/plain"),
    ("Date", "Sun, 06 Nov 1994 08:49:37 GMT"),
    ("Set-Cookie", "a=b"),
    ("Trailer", "X"),
    ("Upgrade", "h2c"),
];

/// The vector of this seed.
pub fn vector(seed: u64) -> Vec<u8> {
    let mut random = Random(seed ^ 0x5151_5151);
    let mut start = b"HTTP/1.1 200 OK".to_vec();
    let (mut end, mut blank, mut front) = (b"\r\n".to_vec(), b"\r\n".to_vec(), Vec::new());
    let mut fields: Vec<Field> = Vec::new();
    for _ in 0..random.below(4) {
        let (name, value) = random.one_of(USUAL);
        fields.push(field(name, value));
    }
    let payload: Vec<u8> = (0..random.below(14)).map(|_| random.one_of(b"ab\r\n0G :\0\xff")).collect();
    let mut body = match random.below(5) {
        0 => payload,
        1 | 2 => {
            fields.push(field("Content-Length", &payload.len().to_string()));
            payload
        }
        _ => {
            fields.push(field("Transfer-Encoding", "chunked"));
            let faults = random.below(3) / 2;
            chunks(&mut random, &payload, faults)
        }
    };
    for _ in 0..random.below(3) {
        match random.below(8) {
            0 => start = random.one_of(STARTS).into(),
            1 => end = random.one_of(ENDS).to_vec(),
            2 => blank = random.one_of(ENDS).to_vec(),
            3 => front = random.one_of(INTERIM).to_vec(),
            4 => grammar::spoil_line(&mut random, &mut fields),
            5 => grammar::spoil_framing(&mut random, &mut fields),
            6 => drop(body.pop()),
            _ => body.extend_from_slice(random.one_of(SURPLUS)),
        }
    }
    let mut out = [front, start, end].concat();
    fields.iter().for_each(|field| field.write(&mut out));
    out.extend_from_slice(&blank);
    out.extend_from_slice(&body);
    if random.once_in(8) {
        grammar::spoil_bytes(&mut random, &mut out);
    }
    if out.is_empty() { b"x".to_vec() } else { out }
}
