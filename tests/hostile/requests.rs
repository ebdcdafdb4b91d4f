//! One request a seed, mostly with faults, and what follows it on the connection.

use super::grammar::{self, ENDS, Field, Random, chunks, control, field};

/// The first fault of a vector goes through these in turn, so that each is there often enough.
pub const KINDS: u64 = 10;

const GAPS: &[&[u8]] = &[b"\t", b"  ", b"", b"\x0b", b"\x0c", b"\xa0", b"\r", b"\n", b"\0", b" \t"];
const VERSIONS: &[&str] = &[
    "HTTP/1.0",
    "HTTP/1.2",
    "HTTP/2",
    "HTTP/2.0",
    "http/1.1",
    "HTTP/01.1",
    "HTTP/1.10",
    "HTTP/1,1",
    "HTTP\\1.1",
    "",
    "HTTP/0.9",
    "HTTP/1.1 ",
    "HTTP /1.1",
    "HTTP/1.1\0",
    "HTTP/",
    "HTTP/1.",
    "HTTP/1.1 HTTP/1.1",
    "HTTPS/1.1",
    "\u{ff}HTTP/1.1",
    "ICY/1.1",
];
const METHODS: &[&str] = &[
    "G ET",
    "GET:",
    "",
    "g\u{7f}et",
    "GE\tT",
    "CONNECT",
    "@",
    "POST,",
    "(GET)",
    "get",
    "PRI",
    "M-SEARCH",
    "GET\0",
    "\"GET\"",
    "/",
    "\u{e9}",
    "HEAD",
    "DELETE",
    "A123456789012345678901234567890123",
];
/// `{}` is the seed, by which the answer is known.
const TARGETS: &[&str] = &[
    "*",
    "http://h/{}",
    "http://h",
    "http://h?{}",
    "//h/{}",
    "/{} b",
    "/{}\tb",
    "/{}#f",
    "/{}\u{80}",
    "/{}\0",
    "http://u@h/{}",
    "http://h:99999/{}",
    "https://h/{}",
    "ftp://h/{}",
    "?{}",
    "{}",
    "/{}%00",
    "/{}%zz",
    "HTTP://H/{}",
    "/{}\\b",
    "/{}\"<>",
    "",
    "http:///{}",
    "http://[::1]:1/{}",
    "http://[::1/{}",
    "/{}/../a",
    "/../{}",
    "http://h /{}",
    "/{}\r\n\tx",
    "h:80",
    "http:/h/{}",
];
const FRONT: &[&[u8]] = &[
    b"\r\n",
    b"\r\n\r\n",
    b"\r\n\r\n\r\n\r\n\r\n",
    b"\n",
    b" ",
    b"\0",
    b"\xef\xbb\xbf",
    b"\x16\x03\x01",
    b"\r",
    b"X: y\r\n",
    b"\t\r\n",
];
const USUAL: &[(&str, &str)] = &[
    ("X", "y"),
    ("Connection", "keep-alive"),
    ("Connection", "X, keep-alive"),
    ("Connection", "close"),
    ("TE", "trailers"),
    ("Upgrade", "h2c"),
    ("Keep-Alive", "timeout=5"),
    ("Proxy-Connection", "close"),
    ("Trailer", "X"),
    ("X-Forwarded-For", "1.1.1.1"),
    ("Content-Type", "text/plain"),
    ("Expect", "100-continue"),
    ("Accept", ""),
    ("Cookie", "a=b; c=\"d\""),
];
const HOSTS: &[&str] = &["", "a b", "a,b", "u@a", "a:80:80", "a:x", "[::1]", "[::1", "a/b", "t:1", "\u{e9}", "a\0"];
const EXPECTATIONS: &[&str] = &["100-Continue", "100-continue, x", "200-ok", "", "100-continue\u{b}"];

struct Request {
    method: Vec<u8>,
    gaps: [Vec<u8>; 2],
    target: Vec<u8>,
    version: Vec<u8>,
    end: Vec<u8>,
    fields: Vec<Field>,
    blank: Vec<u8>,
    body: Vec<u8>,
    front: Vec<u8>,
}

/// The vector of this seed.
pub fn vector(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut request = usual(&mut random, seed);
    let faults = random.below(4);
    for number in 0..faults {
        let kind = if number == 0 { seed % KINDS } else { random.below(KINDS as usize) as u64 };
        spoil(&mut random, &mut request, kind, seed);
    }
    let mut bytes = written(&request);
    if faults > 0 && seed.is_multiple_of(7) {
        grammar::spoil_bytes(&mut random, &mut bytes);
    }
    bytes
}

/// The request behind a vector, on the same connection.
pub fn follower(seed: u64) -> Vec<u8> {
    format!("GET /follower-{seed} HTTP/1.1\r\nHost: t\r\n\r\n").into_bytes()
}

fn usual(random: &mut Random, seed: u64) -> Request {
    let mut fields = vec![field("Host", "t")];
    for _ in 0..random.below(4) {
        let (name, value) = random.one_of(USUAL);
        fields.push(field(name, value));
    }
    let payload: Vec<u8> = (0..random.below(14)).map(|_| random.one_of(b"ab\r\n0G :\0\xff")).collect();
    let body = match random.below(4) {
        0 => Vec::new(),
        1 | 2 => {
            fields.push(field("Content-Length", &payload.len().to_string()));
            payload
        }
        _ => {
            fields.push(field("Transfer-Encoding", "chunked"));
            chunks(random, &payload, 0)
        }
    };
    Request {
        method: random.one_of(&["GET", "POST", "PUT", "OPTIONS", "M-X"]).into(),
        gaps: [b" ".to_vec(), b" ".to_vec()],
        target: format!("/{seed}").into_bytes(),
        version: b"HTTP/1.1".to_vec(),
        end: b"\r\n".to_vec(),
        fields,
        blank: b"\r\n".to_vec(),
        body,
        front: Vec::new(),
    }
}

fn spoil(random: &mut Random, request: &mut Request, kind: u64, seed: u64) {
    match kind {
        0 => request.gaps[random.below(2)] = random.one_of(GAPS).to_vec(),
        1 => request.version = random.one_of(VERSIONS).into(),
        2 => request.method = random.one_of(METHODS).into(),
        3 => request.target = random.one_of(TARGETS).replace("{}", &seed.to_string()).into_bytes(),
        4 => match random.below(3) {
            0 => request.end = random.one_of(ENDS).to_vec(),
            1 => request.blank = random.one_of(ENDS).to_vec(),
            _ => request.front = random.one_of(FRONT).to_vec(),
        },
        5 => grammar::spoil_line(random, &mut request.fields),
        6 => grammar::spoil_framing(random, &mut request.fields),
        7 => {
            request.fields.retain(|field| !matches!(&field.name[..], b"Content-Length" | b"Transfer-Encoding"));
            let coding = field("Transfer-Encoding", "chunked");
            request.fields.push(coding);
            let (length, faults) = (random.below(14), random.below(3));
            request.body = chunks(random, &b"abcdefghijklmn"[..length], faults);
        }
        8 => match random.below(4) {
            0 => request.fields[0].value = random.one_of(HOSTS).into(),
            1 => drop(request.fields.remove(0)),
            2 => request.fields.push(field(random.one_of(&["Host", "host", "HOST"]), "t")),
            _ => request.fields.push(field("Expect", random.one_of(EXPECTATIONS))),
        },
        _ => match random.below(3) {
            0 => drop(request.body.pop()),
            1 => request.body.extend_from_slice(b"GET /evil HTTP/1.1\r\nHost: t\r\n\r\n"),
            _ => request.body.insert(0, control(random)),
        },
    }
    if request.fields.is_empty() {
        request.fields.push(field("Host", "t"));
    }
}

fn written(request: &Request) -> Vec<u8> {
    let mut out = request.front.clone();
    for part in [&request.method, &request.gaps[0], &request.target, &request.gaps[1], &request.version, &request.end] {
        out.extend_from_slice(part);
    }
    request.fields.iter().for_each(|field| field.write(&mut out));
    out.extend_from_slice(&request.blank);
    out.extend_from_slice(&request.body);
    out
}
