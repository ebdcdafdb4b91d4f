//! What can be wrong with received bytes, and whose fault it is.
//!
//! [`Reject`]: the client's, answered with 4xx or 5xx and a close. [`BadResponse`]: the backend's, answered with 502.
//! Both are made of the same smaller faults, so that one rule has one name on either side.
//!
//! Must not know: how an answer is written. Invariant: no message holds received bytes, so nothing has to be escaped
//! or kept out of logs.

use std::borrow::Cow;

use super::chunked::ChunkError;

/// A field line that is not `name ":" value CRLF`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldFault {
    /// A line that begins with whitespace.
    Folded,
    SpaceBeforeColon,
    Name,
    /// A control character in a value, a bare CR included.
    Value,
}

impl FieldFault {
    const fn code(self) -> &'static str {
        match self {
            Self::Folded => "folded_field_line",
            Self::SpaceBeforeColon => "space_before_colon",
            Self::Name => "invalid_field_name",
            Self::Value => "invalid_field_value",
        }
    }

    const fn message(self) -> &'static str {
        match self {
            Self::Folded => "a header line begins with whitespace; send each field on one line",
            Self::SpaceBeforeColon => "there is whitespace between a header field's name and its colon; remove it",
            Self::Name => "a header line has no colon or a field name with a character that is not allowed",
            Self::Value => "a header field's value holds a control character; remove it",
        }
    }
}

/// Fields about the body's length that are invalid or can be read in two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LengthFault {
    ContentLength,
    ContentLengthsDiffer,
    Both,
    TransferEncoding,
    TransferEncodingOnHttp10,
    /// A well-formed coding that is not supported.
    UnknownCoding,
}

impl LengthFault {
    const fn code(self) -> &'static str {
        match self {
            Self::ContentLength => "invalid_content_length",
            Self::ContentLengthsDiffer => "conflicting_content_length",
            Self::Both => "content_length_with_transfer_encoding",
            Self::TransferEncoding => "invalid_transfer_encoding",
            Self::TransferEncodingOnHttp10 => "transfer_encoding_on_http_1_0",
            Self::UnknownCoding => "unsupported_transfer_coding",
        }
    }

    const fn message(self) -> &'static str {
        match self {
            Self::ContentLength => "Content-Length is not one decimal number that fits 64 bits",
            Self::ContentLengthsDiffer => "there are several Content-Length fields that differ; send one",
            Self::Both => "Content-Length and Transfer-Encoding are both present; send one of them",
            Self::TransferEncoding => "Transfer-Encoding is not the single coding \"chunked\"",
            Self::TransferEncodingOnHttp10 => {
                "Transfer-Encoding is not part of HTTP/1.0; use HTTP/1.1 or Content-Length"
            }
            Self::UnknownCoding => {
                "Transfer-Encoding names a coding other than \"chunked\"; only that one is supported"
            }
        }
    }
}

/// Why a request is refused; by the wire alone, before anything is known about its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    RequestLine,
    MethodTooLong { limit: usize },
    Target,
    TargetTooLong { limit: usize },
    Version,
    Connect,
    HeadTooLarge { limit: usize },
    TooManyFields { limit: usize },
    BareLineFeed,
    Field(FieldFault),
    HostMissing,
    HostRepeated,
    Host,
    Length(LengthFault),
    TooManyConnectionOptions { limit: usize },
    Expectation,
    MaxForwards,
    Chunk(ChunkError),
    BodyTooLarge { limit: u64 },
}

impl Reject {
    /// The answer's status code.
    pub const fn status(&self) -> u16 {
        match self {
            Self::Connect => 405,
            Self::BodyTooLarge { .. } => 413,
            Self::TargetTooLong { .. } => 414,
            Self::Expectation => 417,
            Self::HeadTooLarge { .. } | Self::TooManyFields { .. } => 431,
            Self::MethodTooLong { .. } | Self::Length(LengthFault::UnknownCoding) => 501,
            Self::Version => 505,
            Self::RequestLine
            | Self::Target
            | Self::BareLineFeed
            | Self::Field(_)
            | Self::HostMissing
            | Self::HostRepeated
            | Self::Host
            | Self::Length(_)
            | Self::TooManyConnectionOptions { .. }
            | Self::MaxForwards
            | Self::Chunk(_) => 400,
        }
    }

    /// A stable name in snake case, for the answer's `code` and for metrics.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::RequestLine => "invalid_request_line",
            Self::MethodTooLong { .. } => "method_too_long",
            Self::Target => "invalid_request_target",
            Self::TargetTooLong { .. } => "request_target_too_long",
            Self::Version => "http_version_not_supported",
            Self::Connect => "method_not_allowed",
            Self::HeadTooLarge { .. } => "request_head_too_large",
            Self::TooManyFields { .. } => "too_many_header_fields",
            Self::BareLineFeed => "bare_line_feed",
            Self::Field(fault) => fault.code(),
            Self::HostMissing => "missing_host",
            Self::HostRepeated => "repeated_host",
            Self::Host => "invalid_host",
            Self::Length(fault) => fault.code(),
            Self::TooManyConnectionOptions { .. } => "too_many_connection_options",
            Self::Expectation => "expectation_failed",
            Self::MaxForwards => "invalid_max_forwards",
            Self::Chunk(fault) => fault.code(),
            Self::BodyTooLarge { .. } => "request_body_too_large",
        }
    }

    /// One sentence for the person who sent it: what is wrong, and the limit if there is one.
    pub fn message(&self) -> Cow<'static, str> {
        let text = match self {
            Self::RequestLine => "the request line is not \"METHOD /target HTTP/1.1\"",
            Self::MethodTooLong { limit } => {
                return format!("the request's method is longer than {limit} bytes").into();
            }
            Self::Target => {
                "the request target is neither a path that begins with / nor an http URL, or it holds a character that must be percent-encoded"
            }
            Self::TargetTooLong { limit } => return format!("the request target is longer than {limit} bytes").into(),
            Self::Version => "only HTTP/1.1 and HTTP/1.0 are spoken here",
            Self::Connect => "CONNECT is not allowed: this is not a forward proxy",
            Self::HeadTooLarge { limit } => return format!("the request head is larger than {limit} bytes").into(),
            Self::TooManyFields { limit } => return format!("the request has more than {limit} header fields").into(),
            Self::BareLineFeed => "a line of the request head ends with LF alone; end lines with CRLF",
            Self::Field(fault) => fault.message(),
            Self::HostMissing => "the Host header field is missing; HTTP/1.1 needs it",
            Self::HostRepeated => "there are several Host header fields; send one",
            Self::Host => {
                "the Host header field or the target's authority is not a host name or address with an optional port"
            }
            Self::Length(fault) => fault.message(),
            Self::TooManyConnectionOptions { limit } => {
                return format!("the Connection header field names more than {limit} options").into();
            }
            Self::MaxForwards => "Max-Forwards is not one decimal number",
            Self::Expectation => "the only expectation that can be met is 100-continue",
            Self::Chunk(fault) => return fault.message(),
            Self::BodyTooLarge { limit } => return format!("the request body is larger than {limit} bytes").into(),
        };
        text.into()
    }
}

impl From<ChunkError> for Reject {
    fn from(fault: ChunkError) -> Self {
        Self::Chunk(fault)
    }
}

/// Why a backend's response cannot be relayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadResponse {
    StatusLine,
    Version,
    HeadTooLarge { limit: usize },
    TooManyFields { limit: usize },
    BareLineFeed,
    Field(FieldFault),
    Length(LengthFault),
    TooManyConnectionOptions { limit: usize },
    Chunk(ChunkError),
}

impl BadResponse {
    /// A stable name in snake case.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::StatusLine => "invalid_status_line",
            Self::Version => "http_version_not_supported",
            Self::HeadTooLarge { .. } => "response_head_too_large",
            Self::TooManyFields { .. } => "too_many_header_fields",
            Self::BareLineFeed => "bare_line_feed",
            Self::Field(fault) => fault.code(),
            Self::Length(fault) => fault.code(),
            Self::TooManyConnectionOptions { .. } => "too_many_connection_options",
            Self::Chunk(fault) => fault.code(),
        }
    }

    /// One sentence for the operator's log: what the backend sent.
    pub fn message(&self) -> Cow<'static, str> {
        let text = match self {
            Self::StatusLine => "the backend's answer does not begin with an HTTP/1 status line",
            Self::Version => "the backend answered in a version other than HTTP/1.1 and HTTP/1.0",
            Self::HeadTooLarge { limit } => return format!("the response head is larger than {limit} bytes").into(),
            Self::TooManyFields { limit } => return format!("the response has more than {limit} header fields").into(),
            Self::BareLineFeed => "a line of the response head ends with LF alone",
            Self::Field(fault) => fault.message(),
            Self::Length(fault) => fault.message(),
            Self::TooManyConnectionOptions { limit } => {
                return format!("the response's Connection header field names more than {limit} options").into();
            }
            Self::Chunk(fault) => return fault.message(),
        };
        text.into()
    }
}

impl From<ChunkError> for BadResponse {
    fn from(fault: ChunkError) -> Self {
        Self::Chunk(fault)
    }
}
