//! A walk over JSON text that `grammar` has passed: members, elements, strings, and their decoding.
//!
//! Knows nothing of prompts. Because the text is sound, the walk checks nothing twice; on text that is not (a body that
//! was not the one scanned) it ends early, and never panics. Each value is stepped over or walked into once a level.

use super::digits::{short_number, span_of};
use super::escape::decode;
use super::strings::{Span, Strings};

/// Escaped names that are longer decoded mean nothing here.
const NAME_BYTES: usize = 32;
/// So long the longest name here can be, written with escapes alone.
const ESCAPED_NAME_BYTES: usize = 6 * NAME_BYTES;
/// Steps that a cursor goes at most before they are taken off its walk's work; a walk that takes more ends early.
const MAX_STEPS: u32 = 1 << 16;
/// Bytes and strings within a container that is stepped over that count as one.
const CHEAP_STEPS: u32 = 8;
/// A name that no field and no kind of part has.
const NOBODY: &[u8] = b"\xff";

/// What stands between two quotes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text<'b> {
    pub(super) raw: &'b [u8],
    pub(super) escaped: bool,
}

impl<'b> Text<'b> {
    /// Gives the decoded bytes to `sink` in pieces.
    #[inline]
    pub(super) fn decode(self, mut sink: impl FnMut(&[u8])) {
        if self.escaped { decode(self.raw, sink) } else { sink(self.raw) }
    }

    /// Its first `bytes`.
    pub(super) fn cut(self, bytes: usize) -> Self {
        Text { raw: &self.raw[..self.raw.len().min(bytes)], ..self }
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
    #[inline(always)]
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
        if text.raw.len() > ESCAPED_NAME_BYTES {
            return NOBODY;
        }
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
    /// Where it stands in the body.
    pub(super) start: usize,
    /// The body's long strings, at least from here on; or none.
    pub(super) long: &'b [Span],
}

impl<'b> Value<'b> {
    #[inline]
    pub(super) fn first(self) -> Option<u8> {
        self.raw.first().copied()
    }

    /// The string, when it is one.
    #[inline(always)]
    pub(super) fn text(self) -> Option<Text<'b>> {
        let raw = self.raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        Some(Text { raw, escaped: self.escaped })
    }

    /// Is it an array with an element?
    pub(super) fn is_filled_array(self) -> bool {
        let mut cursor = Cursor::new(self);
        cursor.enter(b'[') && cursor.element()
    }
}

pub(super) struct Cursor<'b> {
    text: &'b [u8],
    at: usize,
    strings: Strings<'b>,
    /// Where the text stands in the body.
    start: usize,
    /// The long strings that lie ahead, and such as were not asked for because they are in values that were stepped over.
    long: &'b [Span],
    /// Members, and what was in containers that were stepped over, since they were asked for.
    steps: u32,
}

impl<'b> Cursor<'b> {
    pub(super) fn new(value: Value<'b>) -> Self {
        Self {
            text: value.raw,
            at: 0,
            strings: Strings::new(value.raw),
            start: value.start,
            long: value.long,
            steps: 0,
        }
    }

    /// How much there was to step over since this was asked last.
    #[inline(always)]
    pub(super) fn take_steps(&mut self) -> u32 {
        std::mem::take(&mut self.steps)
    }

    #[inline(always)]
    pub(super) fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Steps over spaces and commas: in sound text, all that stands between two values.
    #[inline(always)]
    fn gap(&mut self) {
        if self.peek().is_some_and(is_gap) {
            self.at += 1;
            if self.peek().is_some_and(is_gap) {
                self.far_gap();
            }
        }
    }

    #[inline(never)]
    fn far_gap(&mut self) {
        self.at += span_of(self.text.get(self.at..).unwrap_or_default(), is_gap);
    }

    /// Steps into an array or object, when one begins here.
    #[inline(always)]
    pub(super) fn enter(&mut self, bracket: u8) -> bool {
        if self.peek() != Some(bracket) {
            return false;
        }
        self.at += 1;
        true
    }

    /// Inside an array: moves to the next element. False at its end, which is stepped over.
    #[inline(always)]
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
    #[inline(always)]
    pub(super) fn member(&mut self) -> Option<Text<'b>> {
        self.gap();
        if self.enter(b'}') {
            return None;
        }
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return None;
        }
        let start = self.at + 1;
        let escaped = self.string()?;
        let name = Text { raw: self.text.get(start..self.at - 1)?, escaped };
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t' | b':')) {
            self.at += 1;
        }
        Some(name)
    }

    /// Inside an array: steps over the next element, if it is a short number.
    #[inline(always)]
    pub(super) fn next_short_number(&mut self) -> Option<u32> {
        self.gap();
        let (number, len) = short_number(self.text, self.at)?;
        let ended = self.text.get(self.at + len).is_none_or(|&byte| ends_scalar(byte));
        ended.then(|| {
            self.at += len;
            number
        })
    }

    /// Steps over one value.
    #[inline(always)]
    pub(super) fn value(&mut self) -> Option<Value<'b>> {
        if self.peek()? != b'"' {
            return self.other_value();
        }
        let from = self.at;
        let escaped = self.string()?;
        self.since(from, escaped, &[])
    }

    #[inline(never)]
    fn other_value(&mut self) -> Option<Value<'b>> {
        let (from, long) = (self.at, self.long);
        match self.peek()? {
            b'{' | b'[' => self.container()?,
            _ => self.scalar()?,
        }
        self.since(from, false, long)
    }

    /// The value from `from` to here; `long` are the long strings ahead of it.
    #[inline(always)]
    fn since(&self, from: usize, escaped: bool, long: &'b [Span]) -> Option<Value<'b>> {
        Some(Value { raw: self.text.get(from..self.at)?, escaped, start: self.start + from, long })
    }

    /// Steps over a string; answers whether it has escapes.
    #[inline(always)]
    fn string(&mut self) -> Option<bool> {
        let from = self.at;
        if self.peek()? != b'"' {
            return None;
        }
        let (end, escaped) = match self.strings.near_end(from + 1) {
            Some(end) => (end, false),
            None => self.far_end(from)?,
        };
        self.at = end + 1;
        Some(escaped)
    }

    /// The end of the string at `from`, when it is far or has escapes before it.
    #[inline(never)]
    fn far_end(&mut self, from: usize) -> Option<(usize, bool)> {
        let start = self.start + from;
        while let [long, others @ ..] = self.long {
            if long.start > start {
                break;
            }
            self.long = others;
            if long.start == start {
                return Some((long.end.checked_sub(self.start + 1)?, long.escaped));
            }
        }
        self.strings.end(from + 1, false).ok()
    }

    #[inline(never)]
    fn container(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        let mut cheap = 0;
        loop {
            cheap += 1;
            if cheap > MAX_STEPS * CHEAP_STEPS {
                return None;
            }
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
                self.steps += cheap / CHEAP_STEPS;
                return Some(());
            }
        }
    }

    #[inline(never)]
    fn scalar(&mut self) -> Option<()> {
        let rest = self.text.get(self.at..)?;
        let len = rest.iter().position(|&byte| ends_scalar(byte)).unwrap_or(rest.len());
        self.at += len;
        // An empty scalar is no value: whoever loops over values must move forward.
        (len > 0).then_some(())
    }
}

#[inline(always)]
fn is_gap(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t' | b',')
}

#[inline(always)]
fn ends_scalar(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t' | b',' | b']' | b'}' | b':' | b'"')
}
