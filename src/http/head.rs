//! The parsed head of a request or a response, as offsets into the caller's buffer.
//!
//! Offsets and not references, so that the buffer may move or grow between parsing and forwarding; it must hold the
//! same bytes at the same offsets when a span is read.
//!
//! Must not know: what the fields mean for the message's framing (`framing`) or for its forwarding (`forward`).

pub use super::name::Name;
pub use super::parse::{parse_request, parse_response};

/// A range of bytes of the buffer that a head was parsed from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub start: u32,
    pub end: u32,
}

impl Span {
    /// The bytes themselves.
    ///
    /// # Panics
    /// When `buf` is not the buffer that was parsed, and too short.
    pub fn of(self, buf: &[u8]) -> &[u8] {
        &buf[self.start as usize..self.end as usize]
    }

    pub(super) fn new(start: usize, end: usize) -> Self {
        debug_assert!(start <= end && end <= u32::MAX as usize);
        Self { start: start as u32, end: end as u32 }
    }
}

/// One field line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: Span,
    /// Without the whitespace around it.
    pub value: Span,
    pub kind: Name,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    Http10,
    #[default]
    Http11,
}

/// The request methods that are told apart; case matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Delete,
    Options,
    Patch,
    Connect,
    Trace,
    Other,
}

impl Method {
    /// The method called `name`.
    pub fn of(name: &[u8]) -> Self {
        match name {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"OPTIONS" => Self::Options,
            b"PATCH" => Self::Patch,
            b"CONNECT" => Self::Connect,
            b"TRACE" => Self::Trace,
            _ => Self::Other,
        }
    }
}

/// A request's head. Reuse one: its list of fields keeps its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHead {
    pub method: Method,
    pub method_span: Span,
    /// In origin form (`/path?query`), also when the request had the absolute form; `*` for a server-wide `OPTIONS`.
    /// One exception: `http://host?query` has no slash to point at, and this begins with `?`; the path is `/` then.
    pub target: Span,
    /// From a target in absolute form; it wins over `Host`.
    pub authority: Option<Span>,
    pub version: Version,
    pub fields: Vec<Field>,
}

impl RequestHead {
    /// An empty head with room for a usual number of fields.
    pub fn new() -> Self {
        Self { fields: Vec::with_capacity(32), ..Self::default() }
    }

    /// Forgets the head, keeps its memory.
    pub fn clear(&mut self) {
        let mut fields = std::mem::take(&mut self.fields);
        fields.clear();
        *self = Self { fields, ..Self::default() };
    }

    /// The target's path, without the query; never empty.
    pub fn path<'b>(&self, buf: &'b [u8]) -> &'b [u8] {
        let target = self.target.of(buf);
        match memchr::memchr(b'?', target) {
            Some(0) => b"/",
            Some(end) => &target[..end],
            None => target,
        }
    }

    /// What follows the target's first `?`.
    pub fn query<'b>(&self, buf: &'b [u8]) -> Option<&'b [u8]> {
        let target = self.target.of(buf);
        memchr::memchr(b'?', target).map(|mark| &target[mark + 1..])
    }

    /// The value of the first field called `name`, in any case.
    pub fn field<'b>(&self, buf: &'b [u8], name: &str) -> Option<&'b [u8]> {
        first_named(&self.fields, buf, name)
    }

    /// The value of the first field of this kind.
    pub fn field_kind<'b>(&self, buf: &'b [u8], kind: Name) -> Option<&'b [u8]> {
        first_of(&self.fields, buf, kind)
    }

    /// Who the request is for: the authority of an absolute target, else `Host`.
    pub fn host<'b>(&self, buf: &'b [u8]) -> Option<&'b [u8]> {
        match self.authority {
            Some(authority) => Some(authority.of(buf)),
            None => self.field_kind(buf, Name::Host),
        }
    }
}

/// A response's head. Reuse one: its list of fields keeps its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseHead {
    /// 100 to 599 once parsed.
    pub status: u16,
    pub reason: Span,
    pub version: Version,
    pub fields: Vec<Field>,
}

impl ResponseHead {
    /// An empty head with room for a usual number of fields.
    pub fn new() -> Self {
        Self { fields: Vec::with_capacity(32), ..Self::default() }
    }

    /// Forgets the head, keeps its memory.
    pub fn clear(&mut self) {
        let mut fields = std::mem::take(&mut self.fields);
        fields.clear();
        *self = Self { fields, ..Self::default() };
    }

    /// The value of the first field called `name`, in any case.
    pub fn field<'b>(&self, buf: &'b [u8], name: &str) -> Option<&'b [u8]> {
        first_named(&self.fields, buf, name)
    }

    /// The value of the first field of this kind.
    pub fn field_kind<'b>(&self, buf: &'b [u8], kind: Name) -> Option<&'b [u8]> {
        first_of(&self.fields, buf, kind)
    }
}

fn first_named<'b>(fields: &[Field], buf: &'b [u8], name: &str) -> Option<&'b [u8]> {
    let field = fields.iter().find(|field| field.name.of(buf).eq_ignore_ascii_case(name.as_bytes()))?;
    Some(field.value.of(buf))
}

fn first_of<'b>(fields: &[Field], buf: &'b [u8], kind: Name) -> Option<&'b [u8]> {
    let field = fields.iter().find(|field| field.kind == kind)?;
    Some(field.value.of(buf))
}
