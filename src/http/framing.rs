//! What decides how a message is carried: its body's length, whether the connection lasts, what is expected first.
//!
//! Decided once, from the parsed fields, and then only these values are used; no framing field is looked at again or
//! copied. Whatever two readers could take in two ways is an error.
//!
//! Must not know: how bytes are read or written, which backend is meant.

use super::authority;
use super::fault::{BadResponse, LengthFault, Reject};
use super::head::{Field, Method, Name, RequestHead, ResponseHead, Version};
use super::limits::CONNECTION_OPTIONS;
use super::text::{decimal, elements, is_token};

/// How a request's body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    None,
    /// That many bytes.
    Fixed(u64),
    Chunked,
}

/// Everything that decides how a request is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFraming {
    pub body: BodyLength,
    /// The client's connection may be used again after this request.
    pub keep_alive: bool,
    /// The client waits for `100 Continue` before it sends its body.
    pub expect_continue: bool,
    /// A `GET` that asks for the WebSocket protocol.
    pub websocket: bool,
}

/// Decides a request's framing.
///
/// # Errors
/// When a field that matters is invalid, contradictory, or asks for something that is not supported. Close after it:
/// where the next request begins is unknown.
pub fn request(head: &RequestHead, buf: &[u8]) -> Result<RequestFraming, Reject> {
    check_host(head, buf)?;
    let body = match lengths(&head.fields, buf, head.version).map_err(Reject::Length)? {
        Lengths { chunked: true, .. } => BodyLength::Chunked,
        Lengths { length: Some(length), .. } => BodyLength::Fixed(length),
        Lengths { length: None, .. } => BodyLength::None,
    };
    let options = ConnectionOptions::of(&head.fields, buf)
        .ok_or(Reject::TooManyConnectionOptions { limit: CONNECTION_OPTIONS })?;
    let no_body = matches!(body, BodyLength::None | BodyLength::Fixed(0));
    let expects = expects_continue(&head.fields, buf)?;
    Ok(RequestFraming {
        body,
        keep_alive: options.keep_alive(head.version),
        // RFC 9110 section 10.1.1: the expectation of a 1.0 client, or of one without a body, is not to be answered.
        expect_continue: expects && !no_body && head.version == Version::Http11,
        websocket: options.upgrade
            && no_body
            && head.method == Method::Get
            && head.version == Version::Http11
            && asks_for_websocket(&head.fields, buf),
    })
}

/// How many more times a request may be forwarded, RFC 9110 section 7.6.2: for OPTIONS and TRACE alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxForwards {
    Unlimited,
    /// Not at all: who has it answers.
    Zero,
    /// Counted down already.
    Left(u64),
}

/// What `Max-Forwards` says about this request.
///
/// # Errors
/// When it is not one decimal number.
pub fn max_forwards(head: &RequestHead, buf: &[u8]) -> Result<MaxForwards, Reject> {
    if !matches!(head.method, Method::Options | Method::Trace) {
        return Ok(MaxForwards::Unlimited);
    }
    let mut values = head.fields.iter().filter(|field| field.kind == Name::MaxForwards);
    match (values.next().map(|field| field.value.of(buf)), values.next()) {
        (None, _) => Ok(MaxForwards::Unlimited),
        (Some(value), None) if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
            // What does not fit is more than there can be proxies.
            match decimal(value).unwrap_or(u64::from(u32::MAX)) {
                0 => Ok(MaxForwards::Zero),
                left => Ok(MaxForwards::Left(left - 1)),
            }
        }
        _ => Err(Reject::MaxForwards),
    }
}

/// How a response's body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseBody {
    None,
    /// That many bytes.
    Fixed(u64),
    Chunked,
    /// It ends with the connection.
    UntilClose,
}

/// Everything that decides how a response is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseFraming {
    pub body: ResponseBody,
    /// The backend's connection may be used again after this response.
    pub keep_alive: bool,
    /// 1xx other than 101: the final response is still to come.
    pub interim: bool,
    /// 101: what follows is not HTTP any more.
    pub switching: bool,
}

/// Decides the framing of the response to a request with `request_method`.
///
/// # Errors
/// When the length fields are invalid or contradictory, even where no body can follow: such a backend cannot be
/// trusted with a connection.
pub fn response(head: &ResponseHead, buf: &[u8], request_method: Method) -> Result<ResponseFraming, BadResponse> {
    let lengths = lengths(&head.fields, buf, head.version).map_err(BadResponse::Length)?;
    let options = ConnectionOptions::of(&head.fields, buf)
        .ok_or(BadResponse::TooManyConnectionOptions { limit: CONNECTION_OPTIONS })?;
    let switching = head.status == 101;
    let interim = head.status < 200 && !switching;
    let ends_at_blank_line = head.status < 200 || matches!(head.status, 204 | 304) || request_method == Method::Head;
    let body = match lengths {
        _ if ends_at_blank_line => ResponseBody::None,
        Lengths { chunked: true, .. } => ResponseBody::Chunked,
        Lengths { length: Some(length), .. } => ResponseBody::Fixed(length),
        Lengths { length: None, .. } => ResponseBody::UntilClose,
    };
    let keep_alive = options.keep_alive(head.version) && !switching && body != ResponseBody::UntilClose;
    Ok(ResponseFraming { body, keep_alive, interim, switching })
}

/// HTTP/1.1 has exactly one `Host`, also beside an absolute target; 1.0 may have none.
fn check_host(head: &RequestHead, buf: &[u8]) -> Result<(), Reject> {
    let mut hosts = head.fields.iter().filter(|field| field.kind == Name::Host);
    match (hosts.next(), hosts.next()) {
        (None, _) if head.version == Version::Http11 => Err(Reject::HostMissing),
        (None, _) => Ok(()),
        // Empty where the target's URI has no authority, RFC 9112 section 3.2.
        (Some(host), None) if host.value.of(buf).is_empty() => Ok(()),
        (Some(host), None) if authority::is_valid(host.value.of(buf)) => Ok(()),
        (Some(_), None) => Err(Reject::Host),
        (Some(_), Some(_)) => Err(Reject::HostRepeated),
    }
}

struct Lengths {
    length: Option<u64>,
    chunked: bool,
}

/// Reads `Content-Length` and `Transfer-Encoding` together; at most one of them is left standing.
fn lengths(fields: &[Field], buf: &[u8], version: Version) -> Result<Lengths, LengthFault> {
    let mut lengths: Option<&[u8]> = None;
    let mut coding: Option<&[u8]> = None;
    let (mut lengths_differ, mut coding_repeated) = (false, false);
    for field in fields {
        let value = field.value.of(buf);
        match field.kind {
            Name::ContentLength => lengths_differ |= lengths.replace(value).is_some_and(|first| first != value),
            Name::TransferEncoding => coding_repeated |= coding.replace(value).is_some(),
            _ => {}
        }
    }
    match (lengths, coding) {
        (None, None) => Ok(Lengths { length: None, chunked: false }),
        (Some(_), Some(_)) => Err(LengthFault::Both),
        (Some(_), None) if lengths_differ => Err(LengthFault::ContentLengthsDiffer),
        (Some(value), None) => match decimal(value) {
            Some(length) => Ok(Lengths { length: Some(length), chunked: false }),
            None => Err(LengthFault::ContentLength),
        },
        (None, Some(_)) if version == Version::Http10 => Err(LengthFault::TransferEncodingOnHttp10),
        (None, Some(_)) if coding_repeated => Err(LengthFault::TransferEncoding),
        (None, Some(value)) if value.eq_ignore_ascii_case(b"chunked") => Ok(Lengths { length: None, chunked: true }),
        (None, Some(value)) => Err(refused_coding(value)),
    }
}

/// Why a `Transfer-Encoding` other than `chunked` is refused: unsupported if it is clear where the body would end,
/// invalid otherwise.
#[cold]
fn refused_coding(value: &[u8]) -> LengthFault {
    let mut chunked_seen = false;
    for element in elements(value) {
        let unknown_identity = element.eq_ignore_ascii_case(b"identity");
        if chunked_seen || unknown_identity || !is_token(element) {
            return LengthFault::TransferEncoding;
        }
        chunked_seen = element.eq_ignore_ascii_case(b"chunked");
    }
    LengthFault::UnknownCoding
}

/// What the options of all `Connection` fields come to.
struct ConnectionOptions {
    close: bool,
    keep_alive: bool,
    upgrade: bool,
}

impl ConnectionOptions {
    /// `None` when there are more options than [`CONNECTION_OPTIONS`].
    fn of(fields: &[Field], buf: &[u8]) -> Option<Self> {
        let mut options = Self { close: false, keep_alive: false, upgrade: false };
        let mut count = 0;
        for field in fields.iter().filter(|field| field.kind == Name::Connection) {
            for option in elements(field.value.of(buf)) {
                count += 1;
                if count > CONNECTION_OPTIONS {
                    return None;
                }
                options.close |= option.eq_ignore_ascii_case(b"close");
                options.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                options.upgrade |= option.eq_ignore_ascii_case(b"upgrade");
            }
        }
        Some(options)
    }

    /// RFC 9112 section 9.3.
    fn keep_alive(&self, version: Version) -> bool {
        !self.close && (version == Version::Http11 || self.keep_alive)
    }
}

fn expects_continue(fields: &[Field], buf: &[u8]) -> Result<bool, Reject> {
    let mut expects = false;
    for field in fields.iter().filter(|field| field.kind == Name::Expect) {
        if !field.value.of(buf).eq_ignore_ascii_case(b"100-continue") {
            return Err(Reject::Expectation);
        }
        expects = true;
    }
    Ok(expects)
}

fn asks_for_websocket(fields: &[Field], buf: &[u8]) -> bool {
    let mut upgrades = fields.iter().filter(|field| field.kind == Name::Upgrade);
    upgrades.any(|field| elements(field.value.of(buf)).any(|protocol| protocol.eq_ignore_ascii_case(b"websocket")))
}
