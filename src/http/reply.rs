//! The router's own answers: a status, and JSON; an error has the shape that OpenAI's clients understand.
//!
//! Must not know: why a request failed beyond the strings it is given.
//!
//! Invariants: every answer has an exact `Content-Length` and valid JSON, whatever the message holds.

use super::head::Version;
use super::text::push_decimal;

pub use super::fault::Reject;

/// The interim response that makes a client send its body.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// One error answer.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    pub status: u16,
    /// `type` in the JSON, such as `invalid_request_error`.
    pub kind: &'a str,
    /// In snake case.
    pub code: &'a str,
    pub message: &'a str,
    /// Empty: none is sent.
    pub request_id: &'a [u8],
    /// In the form of `http::date`; empty: none is sent.
    pub date: &'a [u8],
    pub retry_after_s: Option<u32>,
    pub keep_alive: bool,
    /// The answer to `HEAD`: the same head, no body.
    pub head_only: bool,
    /// The client's.
    pub version: Version,
}

const ALLOW: &[u8] = b"\r\nAllow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

const OPEN: &[u8] = b"{\"error\":{\"message\":\"";
const TYPE: &[u8] = b"\",\"type\":\"";
const CODE: &[u8] = b"\",\"code\":\"";
const END: &[u8] = b"\"}}";

/// Appends the whole answer.
pub fn error(out: &mut Vec<u8>, reply: &Reply<'_>) {
    let fixed = OPEN.len() + TYPE.len() + CODE.len() + END.len();
    let length = fixed + escaped_length(reply.message) + escaped_length(reply.kind) + escaped_length(reply.code);
    begin(out, reply.status, length, reply.request_id, reply.date);
    if let Some(seconds) = reply.retry_after_s {
        out.extend_from_slice(b"\r\nRetry-After: ");
        push_decimal(out, u64::from(seconds));
    }
    if reply.status == 405 {
        // RFC 9110 section 15.5.6 asks for it.
        out.extend_from_slice(ALLOW);
    }
    end(out, reply.keep_alive, reply.version);
    if !reply.head_only {
        push_body(out, reply);
    }
}

/// One answer that is JSON already.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    pub status: u16,
    pub body: &'a [u8],
    /// Empty: none is sent.
    pub request_id: &'a [u8],
    /// In the form of `http::date`; empty: none is sent.
    pub date: &'a [u8],
    pub keep_alive: bool,
    /// The answer to `HEAD`: the same head, no body.
    pub head_only: bool,
    /// The client's.
    pub version: Version,
}

/// Appends the whole answer.
pub fn json(out: &mut Vec<u8>, answer: &Answer<'_>) {
    begin(out, answer.status, answer.body.len(), answer.request_id, answer.date);
    end(out, answer.keep_alive, answer.version);
    if !answer.head_only {
        out.extend_from_slice(answer.body);
    }
}

/// Appends the whole answer to an `OPTIONS` that must not be sent on.
pub fn options(out: &mut Vec<u8>, request_id: &[u8], date: &[u8], keep_alive: bool, version: Version) {
    begin(out, 200, 0, request_id, date);
    out.extend_from_slice(ALLOW);
    end(out, keep_alive, version);
}

fn begin(out: &mut Vec<u8>, status: u16, length: usize, request_id: &[u8], date: &[u8]) {
    out.extend_from_slice(b"HTTP/1.1 ");
    push_decimal(out, u64::from(status));
    out.push(b' ');
    out.extend_from_slice(reason_phrase(status).as_bytes());
    out.extend_from_slice(b"\r\nContent-Type: application/json\r\nContent-Length: ");
    push_decimal(out, length as u64);
    if !request_id.is_empty() {
        out.extend_from_slice(b"\r\nX-Request-Id: ");
        out.extend_from_slice(request_id);
    }
    if !date.is_empty() {
        out.extend_from_slice(b"\r\nDate: ");
        out.extend_from_slice(date);
    }
}

fn end(out: &mut Vec<u8>, keep_alive: bool, version: Version) {
    if !keep_alive {
        out.extend_from_slice(b"\r\nConnection: close");
    } else if version == Version::Http10 {
        out.extend_from_slice(b"\r\nConnection: keep-alive");
    }
    out.extend_from_slice(b"\r\n\r\n");
}

fn push_body(out: &mut Vec<u8>, reply: &Reply<'_>) {
    out.extend_from_slice(OPEN);
    escape(reply.message, |piece| out.extend_from_slice(piece));
    out.extend_from_slice(TYPE);
    escape(reply.kind, |piece| out.extend_from_slice(piece));
    out.extend_from_slice(CODE);
    escape(reply.code, |piece| out.extend_from_slice(piece));
    out.extend_from_slice(END);
}

fn escaped_length(text: &str) -> usize {
    let mut length = 0;
    escape(text, |piece| length += piece.len());
    length
}

/// Hands `text` on in pieces that can stand in a JSON string.
fn escape(text: &str, mut put: impl FnMut(&[u8])) {
    let bytes = text.as_bytes();
    let mut done = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if byte >= 0x20 && byte != 0x7f && !matches!(byte, b'"' | b'\\') {
            continue;
        }
        put(&bytes[done..at]);
        done = at + 1;
        if matches!(byte, b'"' | b'\\') {
            put(&[b'\\', byte]);
        } else {
            let hex = |digit: u8| b"0123456789abcdef"[usize::from(digit)];
            put(&[b'\\', b'u', b'0', b'0', hex(byte >> 4), hex(byte & 0xf)]);
        }
    }
    put(&bytes[done..]);
}

/// The usual words for a status; empty for one that is not registered.
pub fn reason_phrase(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        102 => "Processing",
        103 => "Early Hints",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        207 => "Multi-Status",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        424 => "Failed Dependency",
        425 => "Too Early",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        499 => "Client Closed Request",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        511 => "Network Authentication Required",
        _ => "",
    }
}
