//! How much of a message that is not its payload is accepted, in bytes and in counts.
//!
//! Must not know: where the figures come from (flags, files). Invariant: every limit is a bound on memory or work that
//! one message may cause.

/// Field lines that a head can ever have: the parser's slots live on the stack. [`Limits::fields`] beyond it counts as it.
pub const FIELD_SLOTS: usize = 256;

/// Connection options (`Connection: a, b, …`) that a head may name: each forwarded field is compared with each of them.
pub const CONNECTION_OPTIONS: usize = 32;

/// Longest method name.
pub const METHOD_BYTES: usize = 32;

/// Empty lines (CRLF) that are ignored before a request line, RFC 9112 section 2.2.
pub const LEADING_EMPTY_LINES: usize = 4;

/// The limits that an operator may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a head, from its first byte to the end of its blank line.
    pub head_bytes: usize,
    /// Field lines of a head, at most [`FIELD_SLOTS`].
    pub fields: usize,
    /// Bytes of a request target.
    pub target_bytes: usize,
    /// Bytes of all chunk extensions of one message together.
    pub chunk_extension_bytes: usize,
    /// Bytes of a message's trailer section.
    pub trailer_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_bytes: 64 << 10,
            fields: 128,
            target_bytes: 16 << 10,
            chunk_extension_bytes: 16 << 10,
            trailer_bytes: 16 << 10,
        }
    }
}
