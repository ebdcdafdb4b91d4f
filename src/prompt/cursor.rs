//! A walk over JSON text that `grammar` has passed: members, elements, strings, and their decoding.
//!
//! Knows nothing of prompts. Because the text is sound, the walk checks nothing twice; on text that is not (a body that
//! was not the one scanned) it ends early, and never panics. Each value is stepped over or walked into once a level.

use super::grammar::{bytes_equal, first_hit, quote_or_backslash};
use memchr::memchr;

/// Escaped names that are longer decoded mean nothing here.
const NAME_BYTES: usize = 32;
/// A name that no field and no kind of part has.
const NOBODY: &[u8] = b"\xff";

/// What stands between two quotes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text<'b> {
    pub(super) raw: &'b [u8],
    pub(super) escaped: bool,
}

impl<'b> Text<'b> {
    /// Gives the decoded bytes to `sink`, in as few pieces as there are escapes. A lone surrogate becomes its three
    /// bytes in WTF-8; bytes that are not UTF-8 stay as they are.
    #[inline]
    pub(super) fn decode(self, mut sink: impl FnMut(&[u8])) {
        if self.escaped { decode_escaped(self.raw, sink) } else { sink(self.raw) }
    }

    /// The decoded text; `scratch` is used only when it has escapes.
    pub(super) fn decoded(self, scratch: &'b mut Vec<u8>) -> &'b [u8] {
        if !self.escaped {
            return self.raw;
        }
        scratch.clear();
        self.decode(|piece| scratch.extend_from_slice(piece));
        scratch
    }

    /// The decoded text as a name to compare with; too long a one becomes [`NOBODY`].
    #[inline]
    pub(super) fn name<'n>(self, buffer: &'n mut Name) -> &'n [u8]
    where
        'b: 'n,
    {
        if self.escaped { buffer.set(self) } else { self.raw }
    }
}

/// Room for a decoded name.
#[derive(Default)]
pub(super) struct Name {
    bytes: [u8; NAME_BYTES],
}

impl Name {
    #[cold]
    fn set(&mut self, text: Text<'_>) -> &[u8] {
        let mut len = 0;
        text.decode(|piece| {
            if let Some(room) = self.bytes.get_mut(len..len + piece.len()) {
                room.copy_from_slice(piece);
            }
            len += piece.len();
        });
        self.bytes.get(..len).unwrap_or(NOBODY)
    }
}

/// One value as it stands in the body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value<'b> {
    pub(super) raw: &'b [u8],
    pub(super) escaped: bool,
}

impl<'b> Value<'b> {
    #[inline]
    pub(super) fn first(self) -> Option<u8> {
        self.raw.first().copied()
    }

    /// The string, when it is one.
    #[inline]
    pub(super) fn text(self) -> Option<Text<'b>> {
        let raw = self.raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        Some(Text { raw, escaped: self.escaped })
    }

    /// Is it an array with an element?
    pub(super) fn is_filled_array(self) -> bool {
        let mut cursor = Cursor::new(self.raw);
        cursor.enter(b'[') && cursor.element()
    }
}

pub(super) struct Cursor<'b> {
    body: &'b [u8],
    at: usize,
}

impl<'b> Cursor<'b> {
    pub(super) fn new(body: &'b [u8]) -> Self {
        Self { body, at: 0 }
    }

    #[inline]
    pub(super) fn peek(&self) -> Option<u8> {
        self.body.get(self.at).copied()
    }

    /// Steps over spaces and commas: in sound text, all that stands between two values.
    #[inline]
    fn gap(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t' | b',')) {
            self.at += 1;
        }
    }

    /// Steps into an array or object, when one begins here.
    #[inline]
    pub(super) fn enter(&mut self, bracket: u8) -> bool {
        let here = self.peek() == Some(bracket);
        self.at += usize::from(here);
        here
    }

    /// Inside an array: moves to the next element. False at its end, which is stepped over.
    #[inline]
    pub(super) fn element(&mut self) -> bool {
        self.gap();
        match self.peek() {
            Some(b']') => {
                self.at += 1;
                false
            }
            byte => byte.is_some(),
        }
    }

    /// Inside an object: the next member's name, with the cursor at its value. `None` at the end of the object, which
    /// is stepped over.
    #[inline]
    pub(super) fn member(&mut self) -> Option<Text<'b>> {
        self.gap();
        if self.enter(b'}') {
            return None;
        }
        let name = self.string()?.text()?;
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t' | b':')) {
            self.at += 1;
        }
        Some(name)
    }

    /// Steps over one value.
    #[inline]
    pub(super) fn value(&mut self) -> Option<Value<'b>> {
        match self.peek()? {
            b'"' => self.string(),
            b'{' | b'[' => self.container(),
            _ => self.scalar(),
        }
    }

    #[inline]
    fn string(&mut self) -> Option<Value<'b>> {
        let from = self.at;
        let mut at = from + 1;
        let mut escaped = false;
        loop {
            at += quote_or_backslash(self.body.get(at..)?)?;
            if self.body.get(at) == Some(&b'"') {
                break;
            }
            escaped = true;
            at += 2;
        }
        self.at = at + 1;
        Some(Value { raw: self.body.get(from..self.at)?, escaped })
    }

    fn container(&mut self) -> Option<Value<'b>> {
        let from = self.at;
        let mut depth = 0_usize;
        loop {
            match self.peek()? {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Some(Value { raw: self.body.get(from..self.at)?, escaped: false });
            }
        }
    }

    #[inline]
    fn scalar(&mut self) -> Option<Value<'b>> {
        let rest = self.body.get(self.at..)?;
        let end = |byte: &u8| matches!(byte, b' ' | b'\n' | b'\r' | b'\t' | b',' | b']' | b'}' | b':' | b'"');
        let len = rest.iter().position(end).unwrap_or(rest.len());
        self.at += len;
        // An empty scalar is no value: whoever loops over values must move forward.
        (len > 0).then(|| Value { raw: &rest[..len], escaped: false })
    }
}

/// Decoded bytes on their way to the sink: short stretches between escapes are gathered, so that the sink is not called
/// for each.
struct Gather<F> {
    sink: F,
    bytes: [u8; GATHER_BYTES],
    len: usize,
}

const GATHER_BYTES: usize = 512;
/// Stretches longer than this many words of eight bytes go to the sink from where they stand.
const GATHER_WORDS: usize = 8;

impl<F: FnMut(&[u8])> Gather<F> {
    /// Keeps the first `len` of eight bytes.
    #[inline]
    fn keep(&mut self, word: [u8; 8], len: usize) {
        if self.len > GATHER_BYTES - 8 {
            self.flush();
        }
        if let Some(room) = self.bytes.get_mut(self.len..).and_then(<[u8]>::first_chunk_mut) {
            *room = word;
            self.len += len;
        }
    }

    fn flush(&mut self) {
        (self.sink)(&self.bytes[..self.len]);
        self.len = 0;
    }

    /// Passes on what stands before the first backslash of `text`; answers the text from there.
    #[inline]
    fn stretch<'b>(&mut self, mut text: &'b [u8]) -> &'b [u8] {
        for _ in 0..GATHER_WORDS {
            let Some((&word, rest)) = text.split_first_chunk::<8>() else { break };
            let hits = bytes_equal(word, b'\\');
            if hits != 0 {
                self.keep(word, first_hit(hits));
                return &text[first_hit(hits)..];
            }
            self.keep(word, 8);
            text = rest;
        }
        let (plain, rest) = text.split_at(memchr(b'\\', text).unwrap_or(text.len()));
        self.flush();
        (self.sink)(plain);
        rest
    }
}

fn decode_escaped(text: &[u8], sink: impl FnMut(&[u8])) {
    let mut gather = Gather { sink, bytes: [0; GATHER_BYTES], len: 0 };
    let mut text = gather.stretch(text);
    while let Some((_backslash, escape)) = text.split_first() {
        let mut utf8 = [0; 8];
        let Some((len, rest)) = unescape(escape, &mut utf8) else { break };
        gather.keep(utf8, len);
        text = gather.stretch(rest);
    }
    gather.flush();
}

/// Decodes what follows a backslash: how many bytes it makes, and the text after it.
#[inline]
fn unescape<'b>(text: &'b [u8], utf8: &mut [u8; 8]) -> Option<(usize, &'b [u8])> {
    let (&kind, rest) = text.split_first()?;
    utf8[0] = match kind {
        b'n' => b'\n',
        b't' => b'\t',
        b'r' => b'\r',
        b'b' => 8,
        b'f' => 12,
        b'u' => return unescape_unicode(rest, utf8),
        other => other,
    };
    Some((1, rest))
}

fn unescape_unicode<'b>(text: &'b [u8], utf8: &mut [u8; 8]) -> Option<(usize, &'b [u8])> {
    let (unit, rest) = hex_unit(text)?;
    if (0xd800..0xdc00).contains(&unit)
        && let Some((low, after)) = rest.strip_prefix(b"\\u").and_then(hex_unit)
        && (0xdc00..0xe000).contains(&low)
    {
        let code = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
        return Some((encode(code, utf8), after));
    }
    Some((encode(unit, utf8), rest))
}

fn hex_unit(text: &[u8]) -> Option<(u32, &[u8])> {
    let (digits, rest) = text.split_at_checked(4)?;
    let unit = digits.iter().try_fold(0, |unit, &digit| Some(unit << 4 | char::from(digit).to_digit(16)?))?;
    Some((unit, rest))
}

/// UTF-8, generalised to lone surrogates (WTF-8).
fn encode(code: u32, utf8: &mut [u8; 8]) -> usize {
    if let Some(char) = char::from_u32(code) {
        return char.encode_utf8(utf8).len();
    }
    utf8[0] = 0xe0 | (code >> 12) as u8;
    utf8[1] = 0x80 | (code >> 6 & 0x3f) as u8;
    utf8[2] = 0x80 | (code & 0x3f) as u8;
    3
}
