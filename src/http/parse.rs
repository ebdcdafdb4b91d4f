//! Bytes of a head to a parsed head.
//!
//! A head is taken apart in three steps: the first line as far as it has arrived (so that what is not HTTP, or far too
//! long, is refused at once), the line ends (CRLF and nothing else; this also finds the end), and, when it is whole,
//! its parts. httparse splits the field lines; what it tolerates (LF alone, empty lines before the head, bytes above
//! 0x7e in a target) is refused before it is asked.
//!
//! Must not know: what the fields mean.
//!
//! Invariants: the verdict on a head does not depend on how its bytes were split over calls; a call costs time linear
//! in the bytes of the head so far, which `Limits` bound: until the head is whole, its first line and a search for LF.

use std::mem::MaybeUninit;

use memchr::{memchr, memchr_iter};

use super::fault::{BadResponse, FieldFault, Reject};
use super::head::{Field, Method, Name, RequestHead, ResponseHead, Span, Version};
use super::limits::{FIELD_SLOTS, LEADING_EMPTY_LINES, Limits, METHOD_BYTES};
use super::text::{is_tchar, is_token};

/// Parses the head of a request at the front of `buf` into `head`.
///
/// `Ok(None)`: more bytes are needed; call again with the same bytes and more. `Ok(Some(n))`: the head is the first `n`
/// bytes, empty lines before it included.
///
/// # Errors
/// As soon as the bytes so far cannot become an acceptable head. `head` is meaningless then, as after `Ok(None)`.
pub fn parse_request(buf: &[u8], limits: &Limits, head: &mut RequestHead) -> Result<Option<usize>, Reject> {
    let window = &buf[..buf.len().min(limits.head_bytes)];
    let start = after_empty_lines(window);
    let lines = &window[start..];
    let (line, line_is_whole) = first_line(lines);
    check_request_line_so_far(line, limits)?;
    if line_is_whole {
        request_line(line, start, head)?;
    }
    let fields = limits.fields.min(FIELD_SLOTS);
    let end = match end_of_head(lines, fields) {
        Ok(Some(length)) => start + length,
        Ok(None) if buf.len() < limits.head_bytes => return Ok(None),
        Ok(None) => return Err(Reject::HeadTooLarge { limit: limits.head_bytes }),
        Err(LineFault::BareLineFeed) => return Err(Reject::BareLineFeed),
        Err(LineFault::TooMany) => return Err(Reject::TooManyFields { limit: fields }),
    };
    head.fields.clear();
    let mut slots = [const { MaybeUninit::uninit() }; FIELD_SLOTS];
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(&window[start..end], &mut slots) {
        Ok(httparse::Status::Complete(length)) if length == end - start => {}
        _ => return Err(Reject::Field(blame(&window[start + line.len() + 2..end]))),
    }
    collect(&mut head.fields, window, request.headers);
    Ok(Some(end))
}

/// Parses the head of a response at the front of `buf` into `head`; see [`parse_request`].
///
/// # Errors
/// As soon as the bytes so far cannot become an acceptable head.
pub fn parse_response(buf: &[u8], limits: &Limits, head: &mut ResponseHead) -> Result<Option<usize>, BadResponse> {
    let window = &buf[..buf.len().min(limits.head_bytes)];
    let (line, line_is_whole) = first_line(window);
    let known = line.len().min(PROTOCOL.len());
    if line[..known] != PROTOCOL[..known] {
        return Err(BadResponse::StatusLine);
    }
    if line_is_whole {
        status_line(line, head)?;
    }
    let fields = limits.fields.min(FIELD_SLOTS);
    let end = match end_of_head(window, fields) {
        Ok(Some(end)) => end,
        Ok(None) if buf.len() < limits.head_bytes => return Ok(None),
        Ok(None) => return Err(BadResponse::HeadTooLarge { limit: limits.head_bytes }),
        Err(LineFault::BareLineFeed) => return Err(BadResponse::BareLineFeed),
        Err(LineFault::TooMany) => return Err(BadResponse::TooManyFields { limit: fields }),
    };
    head.fields.clear();
    let mut slots = [const { MaybeUninit::uninit() }; FIELD_SLOTS];
    let mut response = httparse::Response::new(&mut []);
    let parsed =
        httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut response, &window[..end], &mut slots);
    match parsed {
        Ok(httparse::Status::Complete(length)) if length == end => {}
        Err(httparse::Error::Status) => return Err(BadResponse::StatusLine),
        _ => return Err(BadResponse::Field(blame(&window[line.len() + 2..end]))),
    }
    collect(&mut head.fields, window, response.headers);
    Ok(Some(end))
}

const PROTOCOL: &[u8] = b"HTTP/";

/// The length of the empty lines that may come before a request line.
fn after_empty_lines(window: &[u8]) -> usize {
    let mut start = 0;
    while start < 2 * LEADING_EMPTY_LINES && window[start..].starts_with(b"\r\n") {
        start += 2;
    }
    start
}

/// The first line without its end, and whether all of it is there.
fn first_line(lines: &[u8]) -> (&[u8], bool) {
    let line_feed = memchr(b'\n', lines);
    let line = &lines[..line_feed.unwrap_or(lines.len())];
    (line.strip_suffix(b"\r").unwrap_or(line), line_feed.is_some())
}

enum LineFault {
    BareLineFeed,
    TooMany,
}

/// The length of a head: up to and with its first empty line. Every LF up to there must end a CRLF.
fn end_of_head(lines: &[u8], fields: usize) -> Result<Option<usize>, LineFault> {
    let mut line_start = 0;
    let mut count = 0;
    for line_feed in memchr_iter(b'\n', lines) {
        if line_feed == line_start || lines[line_feed - 1] != b'\r' {
            return Err(LineFault::BareLineFeed);
        }
        if line_feed == line_start + 1 {
            return Ok(Some(line_feed + 1));
        }
        count += 1;
        if count > fields + 1 {
            return Err(LineFault::TooMany);
        }
        line_start = line_feed + 1;
    }
    Ok(None)
}

/// What is certain before the line is whole: the method's characters and the lengths.
fn check_request_line_so_far(line: &[u8], limits: &Limits) -> Result<(), Reject> {
    let method_end = line.iter().take(METHOD_BYTES + 1).position(|&byte| !is_tchar(byte));
    let Some(method_end) = method_end else {
        return if line.len() > METHOD_BYTES { Err(Reject::MethodTooLong { limit: METHOD_BYTES }) } else { Ok(()) };
    };
    if method_end == 0 || line[method_end] != b' ' {
        return Err(Reject::RequestLine);
    }
    let rest = &line[method_end + 1..];
    if rest.len() > limits.target_bytes && memchr(b' ', &rest[..=limits.target_bytes]).is_none() {
        return Err(Reject::TargetTooLong { limit: limits.target_bytes });
    }
    Ok(())
}

/// Takes a whole request line apart; `start` is its offset in the buffer.
fn request_line(line: &[u8], start: usize, head: &mut RequestHead) -> Result<(), Reject> {
    let method_end = memchr(b' ', line).ok_or(Reject::RequestLine)?;
    let target_start = method_end + 1;
    let target_length = memchr(b' ', &line[target_start..]).ok_or(Reject::RequestLine)?;
    let target_end = target_start + target_length;
    head.method = Method::of(&line[..method_end]);
    head.method_span = Span::new(start, start + method_end);
    if head.method == Method::Connect {
        return Err(Reject::Connect);
    }
    head.version = match &line[target_end + 1..] {
        b"HTTP/1.1" => Version::Http11,
        b"HTTP/1.0" => Version::Http10,
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => return Err(Reject::Version),
        _ => return Err(Reject::RequestLine),
    };
    resolve_target(&line[target_start..target_end], start + target_start, head)
}

/// Brings a target into origin form; `at` is its offset in the buffer.
fn resolve_target(target: &[u8], at: usize, head: &mut RequestHead) -> Result<(), Reject> {
    // A fragment is not part of a target, and everything beyond visible ASCII must be percent-encoded.
    if !target.iter().fold(true, |valid, &byte| valid & byte.is_ascii_graphic() & (byte != b'#')) {
        return Err(Reject::Target);
    }
    head.authority = None;
    head.target = Span::new(at, at + target.len());
    let asterisk = target == b"*" && head.method == Method::Options;
    if target.starts_with(b"/") || asterisk {
        return Ok(());
    }
    let prefix = match () {
        _ if starts_with_ignore_case(target, b"http://") => 7,
        _ if starts_with_ignore_case(target, b"https://") => 8,
        _ => return Err(Reject::Target),
    };
    let rest = &target[prefix..];
    let length = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    if !super::authority::is_valid(&rest[..length]) {
        return Err(Reject::Host);
    }
    let path = prefix + length;
    head.authority = Some(Span::new(at + prefix, at + path));
    head.target = if path == target.len() {
        // The empty path is `/`, and the scheme's last slash is one to point at.
        Span::new(at + prefix - 1, at + prefix)
    } else {
        Span::new(at + path, at + target.len())
    };
    Ok(())
}

fn starts_with_ignore_case(bytes: &[u8], prefix: &[u8]) -> bool {
    bytes.len() >= prefix.len() && bytes[..prefix.len()].eq_ignore_ascii_case(prefix)
}

/// Takes a whole status line apart. The blank before an empty reason may be missing, as many servers leave it out.
fn status_line(line: &[u8], head: &mut ResponseHead) -> Result<(), BadResponse> {
    let (version, rest) = line.split_at_checked(8).ok_or(BadResponse::StatusLine)?;
    head.version = match version {
        b"HTTP/1.1" => Version::Http11,
        b"HTTP/1.0" => Version::Http10,
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => return Err(BadResponse::Version),
        _ => return Err(BadResponse::StatusLine),
    };
    let [b' ', digits @ ..] = rest else { return Err(BadResponse::StatusLine) };
    let (digits, reason) = digits.split_at_checked(3).ok_or(BadResponse::StatusLine)?;
    if !matches!(reason, [] | [b' ', ..]) {
        return Err(BadResponse::StatusLine);
    }
    head.status = match digits {
        [hundreds @ b'1'..=b'5', tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => {
            u16::from(hundreds - b'0') * 100 + u16::from(tens - b'0') * 10 + u16::from(ones - b'0')
        }
        _ => return Err(BadResponse::StatusLine),
    };
    let reason_start = line.len() - reason.len() + usize::from(!reason.is_empty());
    head.reason = Span::new(reason_start, line.len());
    Ok(())
}

/// Turns httparse's references into offsets, and names into kinds.
fn collect(fields: &mut Vec<Field>, buf: &[u8], headers: &[httparse::Header<'_>]) {
    let base = buf.as_ptr() as usize;
    let span = |bytes: &[u8]| {
        let start = bytes.as_ptr() as usize - base;
        Span::new(start, start + bytes.len())
    };
    fields.extend(headers.iter().map(|header| Field {
        name: span(header.name.as_bytes()),
        value: span(header.value),
        kind: Name::of(header.name.as_bytes()),
    }));
}

/// Which rule the first wrong field line breaks, once it is known that one does.
#[cold]
fn blame(lines: &[u8]) -> FieldFault {
    for line in lines.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.starts_with(b" ") || line.starts_with(b"\t") {
            return FieldFault::Folded;
        }
        let Some(colon) = memchr(b':', line) else {
            if line.is_empty() {
                continue;
            }
            return FieldFault::Name;
        };
        let name = &line[..colon];
        if name.ends_with(b" ") || name.ends_with(b"\t") {
            return FieldFault::SpaceBeforeColon;
        }
        if !is_token(name) {
            return FieldFault::Name;
        }
        if !line[colon..].iter().copied().all(super::text::is_field_byte) {
            return FieldFault::Value;
        }
    }
    FieldFault::Value
}
