//! HTTP/1.1 as an engine's server speaks it: request heads, request bodies, response heads.
//!
//! Strict enough that a router's framing mistakes show: a head with two lengths, or a body that ends elsewhere than
//! announced, is answered with 400 and counted, never guessed at.
//!
//! Must not know: connections, engines, faults' meaning.

use std::io::Write;

use super::faults::Fault;

const HEAD_LIMIT_BYTES: usize = 256 * 1024;
const FIELDS_LIMIT: usize = 200;
const TAG_LIMIT_BYTES: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Head,
    Post,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyLength {
    Known(usize),
    Chunked,
}

#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) target: String,
    /// The head's own length, blank line included.
    pub(crate) bytes: usize,
    pub(crate) body: BodyLength,
    pub(crate) keep_alive: bool,
    /// HTTP/1.0: never gets chunked.
    pub(crate) old: bool,
    pub(crate) expects_continue: bool,
    /// `X-Tag`, without what would need escaping in JSON.
    pub(crate) tag: Option<String>,
    /// `X-Fault`; Err: not a fault that we know.
    pub(crate) fault: Option<Result<Fault, String>>,
}

impl Head {
    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The value of a query parameter, not decoded.
    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        let (_, query) = self.target.split_once('?')?;
        query.split('&').find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name).map(|(_, value)| value))
    }
}

/// The head at the start of `bytes`; None: more is needed; Err: what is wrong with it.
pub(crate) fn parse_head(bytes: &[u8]) -> Result<Option<Head>, &'static str> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_LIMIT];
    let mut request = httparse::Request::new(&mut fields);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() > HEAD_LIMIT_BYTES => return Err("head too large"),
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err("malformed head"),
    };
    let old = request.version == Some(0);
    let mut head = Head {
        method: match request.method {
            Some("GET") => Method::Get,
            Some("HEAD") => Method::Head,
            Some("POST") => Method::Post,
            _ => Method::Other,
        },
        target: request.path.unwrap_or_default().to_owned(),
        bytes: length,
        body: BodyLength::Known(0),
        keep_alive: !old,
        old,
        expects_continue: false,
        tag: None,
        fault: None,
    };
    let mut announced: Option<usize> = None;
    let mut chunked = false;
    for field in request.headers.iter() {
        let name = field.name;
        if name.eq_ignore_ascii_case("content-length") {
            let length = decimal(field.value).ok_or("malformed content-length")?;
            if announced.replace(length).is_some() {
                return Err("two content-lengths");
            }
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            if chunked || !field.value.eq_ignore_ascii_case(b"chunked") {
                return Err("unknown transfer-encoding");
            }
            chunked = true;
        } else if name.eq_ignore_ascii_case("connection") {
            head.keep_alive = keep_alive(field.value, head.keep_alive);
        } else if name.eq_ignore_ascii_case("expect") {
            head.expects_continue = field.value.eq_ignore_ascii_case(b"100-continue");
        } else if name.eq_ignore_ascii_case("x-tag") {
            head.tag = Some(plain(field.value));
        } else if name.eq_ignore_ascii_case("x-fault") {
            head.fault = Some(String::from_utf8_lossy(field.value).parse());
        }
    }
    head.body = match (announced, chunked) {
        (Some(_), true) => return Err("both content-length and transfer-encoding"),
        (None, true) => BodyLength::Chunked,
        (length, false) => BodyLength::Known(length.unwrap_or(0)),
    };
    Ok(Some(head))
}

fn keep_alive(value: &[u8], otherwise: bool) -> bool {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).fold(otherwise, |keep, option| {
        if option.eq_ignore_ascii_case(b"close") { false } else { keep || option.eq_ignore_ascii_case(b"keep-alive") }
    })
}

fn decimal(value: &[u8]) -> Option<usize> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    digits.then(|| std::str::from_utf8(value).ok()?.parse().ok()).flatten()
}

fn plain(value: &[u8]) -> String {
    let fits = |byte: &&u8| byte.is_ascii_graphic() && !matches!(**byte, b'"' | b'\\');
    value.iter().filter(fits).take(TAG_LIMIT_BYTES).map(|byte| char::from(*byte)).collect()
}

/// A chunked request body on its way in.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    /// Bytes of the input that have been taken.
    pub(crate) taken: usize,
    pub(crate) body: Vec<u8>,
}

impl Chunks {
    /// Takes what whole chunks there are in `bytes`, which begins where the body begins. True: that was the last one.
    pub(crate) fn advance(&mut self, bytes: &[u8]) -> Result<bool, &'static str> {
        loop {
            let rest = &bytes[self.taken..];
            let Some(line) = memchr::memmem::find(rest, b"\r\n") else {
                return if rest.len() > 32 { Err("malformed chunk size") } else { Ok(false) };
            };
            let digits = &rest[..line];
            if digits.is_empty() || digits.len() > 16 || !digits.iter().all(u8::is_ascii_hexdigit) {
                return Err("malformed chunk size");
            }
            let digits = std::str::from_utf8(digits).unwrap_or_default();
            let size = usize::from_str_radix(digits, 16).map_err(|_| "malformed chunk size")?;
            let start = line + 2;
            let Some(end) = size.checked_add(start + 2) else { return Err("malformed chunk size") };
            if rest.len() < end {
                return Ok(false);
            }
            if &rest[end - 2..end] != b"\r\n" {
                return Err(if size == 0 { "trailers" } else { "malformed chunk" });
            }
            self.body.extend_from_slice(&rest[start..start + size]);
            self.taken += end;
            if size == 0 {
                return Ok(true);
            }
        }
    }
}

/// How a response says where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(u64),
    Chunked,
    /// Ends with the connection.
    Close,
    /// Says both, which is forbidden.
    Both(u64),
}

/// Everything of a response head but its body.
#[derive(Debug)]
pub(crate) struct ResponseHead<'a> {
    pub(crate) status: u16,
    pub(crate) content_type: &'a str,
    pub(crate) framing: Framing,
    pub(crate) engine: u16,
    pub(crate) tag: Option<&'a str>,
    pub(crate) keep_alive: bool,
}

impl ResponseHead<'_> {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let reason = reason(self.status);
        // Writing to a Vec cannot fail.
        let _ = write!(
            out,
            "HTTP/1.1 {} {reason}\r\nserver: trieway-loadtest\r\ncontent-type: {}\r\nx-engine: {}\r\n",
            self.status, self.content_type, self.engine
        );
        if let Some(tag) = self.tag {
            let _ = write!(out, "x-tag: {tag}\r\n");
        }
        let _ = match self.framing {
            Framing::Length(length) => write!(out, "content-length: {length}\r\n"),
            Framing::Chunked => write!(out, "transfer-encoding: chunked\r\n"),
            Framing::Close => Ok(()),
            Framing::Both(length) => write!(out, "content-length: {length}\r\ntransfer-encoding: chunked\r\n"),
        };
        out.extend_from_slice(if self.keep_alive { b"\r\n" } else { b"connection: close\r\n\r\n" });
    }
}

pub(crate) fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        413 => "Content Too Large",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "Status",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Result<Option<Head>, &'static str> {
        parse_head(text.as_bytes())
    }

    #[test]
    fn a_head_gives_what_the_engine_needs() {
        let text = "POST /v1/models?id=3&x=4 HTTP/1.1\r\nX-Tag: a\"b\\c d\r\nContent-Length: 12\r\nConnection: x, close\r\n\r\nrest";
        let head = head(text).unwrap().unwrap();
        assert_eq!((head.method, head.path(), head.query("x")), (Method::Post, "/v1/models", Some("4")));
        assert_eq!((head.body, head.keep_alive, head.bytes), (BodyLength::Known(12), false, text.len() - 4));
        assert_eq!(head.tag.as_deref(), Some("abcd"));
    }

    #[test]
    fn ambiguous_lengths_are_refused() {
        let te = "Transfer-Encoding: chunked\r\n";
        let cl = "Content-Length: 5\r\n";
        for fields in [format!("{te}{cl}"), format!("{cl}{cl}"), format!("{te}{te}"), "Content-Length: +5\r\n".into()] {
            assert!(head(&format!("POST / HTTP/1.1\r\n{fields}\r\n")).is_err(), "{fields}");
        }
        assert!(head("POST / HTTP/1.1\r\nContent-Le").unwrap().is_none());
    }

    #[test]
    fn chunks_are_the_same_wherever_they_are_cut() {
        let wire = b"3\r\nabc\r\n00A\r\n0123456789\r\n0\r\n\r\nnext";
        let end = wire.len() - 4;
        for cut in 0..=end {
            let mut chunks = Chunks::default();
            let early = chunks.advance(&wire[..cut]).unwrap();
            assert_eq!(early, cut == end);
            assert!(early || chunks.advance(wire).unwrap());
            assert_eq!((chunks.body.as_slice(), chunks.taken), (b"abc0123456789".as_slice(), end));
        }
        for bad in ["-1\r\n", "0x3\r\nabc\r\n", "3\r\nabcd\r\n", "3;a=b\r\nabc\r\n", "0\r\nTrailer: x\r\n\r\n"] {
            assert!(Chunks::default().advance(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
