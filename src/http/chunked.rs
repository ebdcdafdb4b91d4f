//! The chunked transfer coding, decoded in place and encoded.
//!
//! The decoder is fed a message's bytes in any split and moves the payload to the front of what it was given; framing,
//! extensions and trailers are checked against RFC 9112 section 7.1, counted against their limits, and dropped.
//!
//! Must not know: where the bytes come from, or how large a body may be (`announced` lets the caller judge).
//!
//! Invariants: the verdict and the payload do not depend on the split; a byte of payload is never looked at, only
//! moved; after the end, or a fault, nothing more is consumed.

use std::borrow::Cow;

use super::limits::Limits;
use super::text::{is_field_byte, is_tchar};

/// Most digits of a chunk's size: what a 64-bit number can have.
const SIZE_DIGITS: u8 = 16;

/// Most payload of one message: what a file offset can count, so that no sum of sizes overflows anywhere.
const PAYLOAD_BYTES: u64 = i64::MAX as u64;

/// The last chunk and an empty trailer section.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Why a chunked body is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkError {
    /// Not 1 to 16 hexadecimal digits followed by CRLF or an extension.
    Size,
    /// All sizes together pass what can be counted.
    SizeOverflow,
    /// CR without LF, or LF without CR, on a line of the framing.
    LineEnd,
    Extension,
    ExtensionsTooLong {
        limit: usize,
    },
    /// A chunk's data is not followed by CRLF.
    DataEnd,
    Trailer,
    TrailersTooLong {
        limit: usize,
    },
}

impl ChunkError {
    /// A stable name in snake case.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Size => "invalid_chunk_size",
            Self::SizeOverflow => "chunk_size_overflow",
            Self::LineEnd => "invalid_chunk_line_end",
            Self::Extension => "invalid_chunk_extension",
            Self::ExtensionsTooLong { .. } => "chunk_extensions_too_long",
            Self::DataEnd => "chunk_data_not_terminated",
            Self::Trailer => "invalid_trailer",
            Self::TrailersTooLong { .. } => "trailers_too_long",
        }
    }

    /// One sentence: what is wrong, and the limit if there is one.
    pub fn message(&self) -> Cow<'static, str> {
        let text = match self {
            Self::Size => "a chunk's size is not 1 to 16 hexadecimal digits",
            Self::SizeOverflow => "the chunk sizes add up to more than can be counted",
            Self::LineEnd => "a line of the chunked body does not end with CRLF",
            Self::Extension => "a chunk extension is malformed",
            Self::ExtensionsTooLong { limit } => {
                return format!("the chunk extensions are longer than {limit} bytes").into();
            }
            Self::DataEnd => "a chunk's data is not followed by CRLF",
            Self::Trailer => "a trailer field line is malformed",
            Self::TrailersTooLong { limit } => return format!("the trailers are longer than {limit} bytes").into(),
        };
        text.into()
    }
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The size, of which so many digits were seen.
    Size {
        digits: u8,
    },
    Extension(Extension),
    /// The LF of the size line.
    SizeEnd,
    Data,
    /// The CR, then the LF, after the data.
    DataCr,
    DataLf,
    Trailer(Trailer),
    Done,
    Failed(ChunkError),
}

/// `chunk-ext = *( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] )`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extension {
    /// Whitespace before a semicolon.
    Gap,
    /// After the semicolon.
    Start,
    Name,
    /// Whitespace after a name.
    NameGap,
    /// After the equals sign.
    Equals,
    Value,
    Quoted,
    /// After a backslash in a quoted string.
    Escaped,
    /// After a closing quote.
    Closed,
}

/// Field lines up to an empty one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trailer {
    LineStart,
    Name,
    Value,
    LineEnd,
    /// The LF of the empty line.
    End,
}

/// Decodes one chunked message.
#[derive(Clone, Debug)]
pub struct Decoder {
    state: State,
    /// Of the size that is being read, or of the chunk's data that is still to come.
    remaining: u64,
    /// Payload of the chunks whose size is known.
    announced: u64,
    extension_bytes: usize,
    trailer_bytes: usize,
    extension_limit: usize,
    trailer_limit: usize,
}

/// What a call of [`Decoder::decode`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes taken from the front: all of them, unless `done`.
    pub consumed: usize,
    /// The payload now is `buf[..payload]`.
    pub payload: usize,
    /// The message has ended; `buf[consumed..]` is untouched and not part of it.
    pub done: bool,
}

impl Decoder {
    /// A decoder for one message.
    pub fn new(limits: &Limits) -> Self {
        Self {
            state: State::Size { digits: 0 },
            remaining: 0,
            announced: 0,
            extension_bytes: 0,
            trailer_bytes: 0,
            extension_limit: limits.chunk_extension_bytes,
            trailer_limit: limits.trailer_bytes,
        }
    }

    /// Payload bytes of all chunks whose size line was read, come or not: compare it with the largest body that is
    /// accepted before waiting for more.
    pub fn announced(&self) -> u64 {
        self.announced
    }

    /// Decodes `buf`, the bytes that follow those of the last call.
    ///
    /// # Errors
    /// At the first byte that is not as it must be; every later call then gives the same error. The contents of `buf`
    /// are unspecified.
    pub fn decode(&mut self, buf: &mut [u8]) -> Result<Step, ChunkError> {
        let (mut at, mut payload) = (0, 0);
        while at < buf.len() {
            match self.state {
                State::Data => {
                    let length = (buf.len() - at).min(usize::try_from(self.remaining).unwrap_or(usize::MAX));
                    if at != payload {
                        buf.copy_within(at..at + length, payload);
                    }
                    at += length;
                    payload += length;
                    self.remaining -= length as u64;
                    if self.remaining == 0 {
                        self.state = State::DataCr;
                    }
                }
                State::Done => break,
                State::Failed(fault) => return Err(fault),
                _ => {
                    self.state = match self.frame(buf[at]) {
                        Ok(state) => state,
                        Err(fault) => State::Failed(fault),
                    };
                    at += 1;
                }
            }
        }
        match self.state {
            State::Failed(fault) => Err(fault),
            state => Ok(Step { consumed: at, payload, done: state == State::Done }),
        }
    }

    /// One byte that is not payload.
    fn frame(&mut self, byte: u8) -> Result<State, ChunkError> {
        match self.state {
            State::Size { digits } => self.size(digits, byte),
            State::SizeEnd if byte == b'\n' => self.size_is_known(),
            State::SizeEnd => Err(ChunkError::LineEnd),
            State::DataCr if byte == b'\r' => Ok(State::DataLf),
            State::DataLf if byte == b'\n' => Ok(State::Size { digits: 0 }),
            State::DataCr | State::DataLf => Err(ChunkError::DataEnd),
            State::Extension(extension) => self.extension(extension, byte),
            State::Trailer(trailer) => self.trailer(trailer, byte),
            State::Data | State::Done | State::Failed(_) => Ok(self.state),
        }
    }

    fn size(&mut self, digits: u8, byte: u8) -> Result<State, ChunkError> {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            b'\n' => return Err(ChunkError::LineEnd),
            _ if digits == 0 => return Err(ChunkError::Size),
            b'\r' => return Ok(State::SizeEnd),
            b';' | b' ' | b'\t' => return self.extension(Extension::Gap, byte),
            _ => return Err(ChunkError::Size),
        };
        if digits == SIZE_DIGITS {
            return Err(ChunkError::Size);
        }
        self.remaining = self.remaining << 4 | u64::from(digit);
        Ok(State::Size { digits: digits + 1 })
    }

    fn size_is_known(&mut self) -> Result<State, ChunkError> {
        if self.remaining == 0 {
            return Ok(State::Trailer(Trailer::LineStart));
        }
        if self.remaining > PAYLOAD_BYTES - self.announced {
            return Err(ChunkError::SizeOverflow);
        }
        self.announced += self.remaining;
        Ok(State::Data)
    }

    fn extension(&mut self, extension: Extension, byte: u8) -> Result<State, ChunkError> {
        use Extension::{Closed, Equals, Escaped, Gap, Name, NameGap, Quoted, Start, Value};
        self.extension_bytes += 1;
        if self.extension_bytes > self.extension_limit {
            return Err(ChunkError::ExtensionsTooLong { limit: self.extension_limit });
        }
        let next = match (extension, byte) {
            (Name | Value | Closed, b'\r') => return Ok(State::SizeEnd),
            (_, b'\r' | b'\n') => return Err(ChunkError::LineEnd),
            (Quoted, b'"') => Closed,
            (Quoted, b'\\') => Escaped,
            (Quoted | Escaped, _) if is_field_byte(byte) => Quoted,
            (Gap | Name | NameGap | Value | Closed, b';') => Start,
            (Name | NameGap, b'=') => Equals,
            (Name | NameGap, b' ' | b'\t') => NameGap,
            (Gap | Value | Closed, b' ' | b'\t') => Gap,
            (Start | Equals, b' ' | b'\t') => extension,
            (Equals, b'"') => Quoted,
            (Start | Name, _) if is_tchar(byte) => Name,
            (Equals | Value, _) if is_tchar(byte) => Value,
            _ => return Err(ChunkError::Extension),
        };
        Ok(State::Extension(next))
    }

    fn trailer(&mut self, trailer: Trailer, byte: u8) -> Result<State, ChunkError> {
        let next = match (trailer, byte) {
            (Trailer::LineStart, b'\r') => Trailer::End,
            (Trailer::End, b'\n') => return Ok(State::Done),
            (Trailer::Value, b'\r') => Trailer::LineEnd,
            (Trailer::LineEnd, b'\n') => Trailer::LineStart,
            (Trailer::End | Trailer::LineEnd, _) | (_, b'\n' | b'\r') => return Err(ChunkError::LineEnd),
            (Trailer::LineStart | Trailer::Name, _) if is_tchar(byte) => Trailer::Name,
            (Trailer::Name, b':') => Trailer::Value,
            (Trailer::Value, _) if is_field_byte(byte) => Trailer::Value,
            _ => return Err(ChunkError::Trailer),
        };
        self.trailer_bytes += 1;
        if self.trailer_bytes > self.trailer_limit {
            return Err(ChunkError::TrailersTooLong { limit: self.trailer_limit });
        }
        Ok(State::Trailer(next))
    }
}

/// Writes a chunk's size line and returns its length. Zero is for [`LAST_CHUNK`].
pub fn write_size(size: usize, out: &mut [u8; 18]) -> usize {
    let digits = (usize::BITS - size.leading_zeros()).div_ceil(4).max(1) as usize;
    for (index, slot) in out[..digits].iter_mut().enumerate() {
        let digit = (size >> (4 * (digits - 1 - index))) & 0xf;
        *slot = b"0123456789abcdef"[digit];
    }
    out[digits..digits + 2].copy_from_slice(b"\r\n");
    digits + 2
}
