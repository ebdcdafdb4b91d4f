//! The head that is sent on, written anew from parsed fields.
//!
//! Nothing is copied that was not classified: framing comes from the caller's decision, hop-by-hop fields and what
//! `Connection` nominates stay behind, end-to-end fields keep their order, case and duplicates.
//!
//! Must not know: sockets, why a backend was chosen.
//!
//! Invariants: one `Host`, at most one framing field, one `X-Request-Id`; a nomination never removes `Host`,
//! `Content-Length` or `Authorization`; what the caller passes in holds no CR or LF.

use super::head::{Field, Name, RequestHead, ResponseHead, Version};
use super::reply::reason_phrase;
use super::text::{decimal, elements, push_decimal};

/// What a forwarded request gets from the router.
#[derive(Clone, Copy, Debug)]
pub struct RequestOut<'a> {
    /// The backend's `Host`.
    pub authority: &'a [u8],
    /// Path of the backend's URL, without a slash at its end; may be empty.
    pub base_path: &'a [u8],
    /// In origin form, without the router's root path; empty or beginning with `?` means the path `/`.
    pub target: &'a [u8],
    /// `None` writes no `Content-Length`.
    pub content_length: Option<u64>,
    pub request_id: &'a [u8],
    pub client_ip: &'a [u8],
    /// Send the client's `Host` instead of `authority`.
    pub preserve_host: bool,
    /// Replaces the client's `Authorization`: the whole value. Empty: none is sent.
    pub authorization: Option<&'a [u8]>,
    pub upgrade_websocket: bool,
    /// In place of the client's `Max-Forwards`.
    pub max_forwards: Option<u64>,
    /// Say in `Via` that the request came this way.
    pub via: bool,
}

/// Appends the head that goes to the backend.
pub fn request(out: &mut Vec<u8>, head: &RequestHead, buf: &[u8], how: &RequestOut<'_>) {
    // An empty one names nobody.
    let client_host = head.host(buf).filter(|host| !host.is_empty());
    push_request_line(out, head.method_span.of(buf), how);
    let host = if how.preserve_host { client_host.unwrap_or(how.authority) } else { how.authority };
    push_field(out, b"Host", host);
    let nominated = Nominated::of(&head.fields, buf);
    let (mut proto_seen, mut host_seen) = (false, false);
    for field in &head.fields {
        let keep = match field.kind {
            Name::Host | Name::ContentLength | Name::TransferEncoding | Name::Expect => false,
            Name::RequestId | Name::ForwardedFor => false,
            Name::MaxForwards if how.max_forwards.is_some() => false,
            kind if is_hop_by_hop(kind) => false,
            Name::Authorization => how.authorization.is_none(),
            _ => !nominated.contains(field),
        };
        if keep {
            proto_seen |= field.kind == Name::ForwardedProto;
            host_seen |= field.kind == Name::ForwardedHost;
            push_kept(out, field, buf);
        }
    }
    if let Some(authorization) = how.authorization.filter(|value| !value.is_empty()) {
        push_field(out, b"Authorization", authorization);
    }
    push_forwarded_for(out, head, buf, &nominated, how.client_ip);
    if !proto_seen {
        push_field(out, b"X-Forwarded-Proto", b"http");
    }
    if let (false, Some(host)) = (host_seen, client_host) {
        push_field(out, b"X-Forwarded-Host", host);
    }
    push_field(out, b"X-Request-Id", how.request_id);
    if let Some(left) = how.max_forwards {
        out.extend_from_slice(b"Max-Forwards: ");
        push_decimal(out, left);
        out.extend_from_slice(b"\r\n");
    }
    if how.via {
        push_via(out, head.version);
    }
    if how.upgrade_websocket {
        out.extend_from_slice(b"Connection: Upgrade\r\nUpgrade: websocket\r\n");
    }
    if let Some(length) = how.content_length {
        push_content_length(out, length);
    }
    out.extend_from_slice(b"\r\n");
}

/// How a forwarded response's body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutFraming {
    /// No body follows. A `Content-Length` that the backend announced is passed on where it may stand (HEAD, 304).
    None,
    Fixed(u64),
    Chunked,
    /// The body ends with the connection.
    Close,
}

/// What a forwarded response gets from the router.
#[derive(Clone, Copy, Debug)]
pub struct ResponseOut<'a> {
    pub framing: OutFraming,
    pub keep_alive: bool,
    pub client_version: Version,
    pub request_id: &'a [u8],
    /// `Date` of an answer that has none, RFC 9110 section 6.6.1; empty: none is written.
    pub date: &'a [u8],
    /// Say in `Via` that the answer came this way.
    pub via: bool,
}

/// Appends the head that goes to the client. A 1xx gets its end-to-end fields alone; a 101 also keeps its `Upgrade`.
pub fn response(out: &mut Vec<u8>, head: &ResponseHead, buf: &[u8], how: &ResponseOut<'_>) {
    out.extend_from_slice(b"HTTP/1.1 ");
    push_decimal(out, u64::from(head.status));
    out.push(b' ');
    match head.reason.of(buf) {
        b"" => out.extend_from_slice(reason_phrase(head.status).as_bytes()),
        reason => out.extend_from_slice(reason),
    }
    out.extend_from_slice(b"\r\n");
    let nominated = Nominated::of(&head.fields, buf);
    let mut dated = how.date.is_empty();
    for field in &head.fields {
        let keep = match field.kind {
            Name::ContentLength | Name::TransferEncoding | Name::RequestId => false,
            kind if is_hop_by_hop(kind) => false,
            Name::Host | Name::Authorization => true,
            _ => !nominated.contains(field),
        };
        if keep {
            dated |= field.kind == Name::Date;
            push_kept(out, field, buf);
        }
    }
    if !dated && head.status >= 200 {
        push_field(out, b"Date", how.date);
    }
    if how.via && (head.status >= 200 || head.status == 101) {
        push_via(out, head.version);
    }
    match head.status {
        101 => {
            out.extend_from_slice(b"Connection: Upgrade\r\n");
            push_field(out, b"Upgrade", head.field_kind(buf, Name::Upgrade).unwrap_or(b"websocket"));
            push_field(out, b"X-Request-Id", how.request_id);
        }
        100..=199 => {}
        _ => {
            push_field(out, b"X-Request-Id", how.request_id);
            push_response_framing(out, head, buf, how);
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn push_response_framing(out: &mut Vec<u8>, head: &ResponseHead, buf: &[u8], how: &ResponseOut<'_>) {
    debug_assert!(how.framing != OutFraming::Chunked || how.client_version == Version::Http11);
    match how.framing {
        OutFraming::Fixed(length) => push_content_length(out, length),
        OutFraming::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        OutFraming::None if head.status != 204 => {
            if let Some(length) = head.field_kind(buf, Name::ContentLength).and_then(decimal) {
                push_content_length(out, length);
            }
        }
        OutFraming::None | OutFraming::Close => {}
    }
    if !how.keep_alive || how.framing == OutFraming::Close {
        out.extend_from_slice(b"Connection: close\r\n");
    } else if how.client_version == Version::Http10 {
        out.extend_from_slice(b"Connection: keep-alive\r\n");
    }
}

/// Whether a request id from outside is passed on: 1 to 128 visible ASCII characters.
pub fn valid_request_id(value: &[u8]) -> bool {
    (1..=128).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic)
}

/// Fields that are about one connection, RFC 9110 section 7.6.1.
fn is_hop_by_hop(kind: Name) -> bool {
    matches!(kind, Name::Connection | Name::KeepAlive | Name::Te | Name::Trailer | Name::Upgrade | Name::ProxyOther)
}

/// The fields that `Connection` names, apart from the well-known options, which name no end-to-end field.
struct Nominated<'a> {
    fields: &'a [Field],
    buf: &'a [u8],
    any: bool,
}

impl<'a> Nominated<'a> {
    fn of(fields: &'a [Field], buf: &'a [u8]) -> Self {
        let mut nominated = Self { fields, buf, any: false };
        nominated.any = nominated.names().any(|name| {
            let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
            !(is(b"close") || is(b"keep-alive") || is(b"upgrade") || is(b"te"))
        });
        nominated
    }

    fn names(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let buf = self.buf;
        let connection = self.fields.iter().filter(|field| field.kind == Name::Connection);
        connection.flat_map(move |field| elements(field.value.of(buf)))
    }

    fn contains(&self, field: &Field) -> bool {
        self.any && self.names().any(|name| name.eq_ignore_ascii_case(field.name.of(self.buf)))
    }
}

fn push_request_line(out: &mut Vec<u8>, method: &[u8], how: &RequestOut<'_>) {
    out.extend_from_slice(method);
    out.push(b' ');
    if how.target == b"*" {
        out.push(b'*');
    } else {
        out.extend_from_slice(how.base_path);
        if !how.target.starts_with(b"/") {
            out.push(b'/');
        }
        out.extend_from_slice(how.target);
    }
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

/// One field with the chain so far and the client's address at its end.
fn push_forwarded_for(out: &mut Vec<u8>, head: &RequestHead, buf: &[u8], nominated: &Nominated<'_>, client_ip: &[u8]) {
    out.extend_from_slice(b"X-Forwarded-For: ");
    for field in head.fields.iter().filter(|field| field.kind == Name::ForwardedFor) {
        if field.value.start < field.value.end && !nominated.contains(field) {
            out.extend_from_slice(field.value.of(buf));
            out.extend_from_slice(b", ");
        }
    }
    out.extend_from_slice(client_ip);
    out.extend_from_slice(b"\r\n");
}

/// A field as it came, with the whitespace around its value made canonical.
fn push_kept(out: &mut Vec<u8>, field: &Field, buf: &[u8]) {
    let (name, value) = (field.name, field.value);
    let line_end = value.end as usize + 2;
    // A line that is canonical already, as nearly all are, is one copy instead of four.
    if &buf[name.end as usize..value.start as usize] == b": " && &buf[value.end as usize..line_end] == b"\r\n" {
        out.extend_from_slice(&buf[name.start as usize..line_end]);
    } else {
        push_field(out, name.of(buf), value.of(buf));
    }
}

fn push_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    debug_assert!(memchr::memchr2(b'\r', b'\n', value).is_none());
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Behind those that are there already: the order of the lines is the order of the way.
fn push_via(out: &mut Vec<u8>, received: Version) {
    out.extend_from_slice(match received {
        Version::Http11 => b"Via: 1.1 trieway\r\n",
        Version::Http10 => b"Via: 1.0 trieway\r\n",
    });
}

fn push_content_length(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(b"Content-Length: ");
    push_decimal(out, length);
    out.extend_from_slice(b"\r\n");
}
