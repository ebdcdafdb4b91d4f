//! One strict pass over JSON text (RFC 8259), without a tree and without recursion.
//!
//! Two liberties, both those of Python's `json`, which most engines read with: `NaN`, `Infinity` and `-Infinity` are
//! numbers, and control characters or bytes that are not UTF-8 inside a string are left to the engine. Invariant: every
//! step moves forward, so that time is linear; a pass that returns `None` stands at the fault.

use super::digits::{after_plain_list, digits_at};
use super::strings::{Span, Strings};

/// Deeper nesting is refused, as RFC 8259 §9 allows. Python's `json` gives up earlier.
pub(super) const MAX_DEPTH: usize = 16 * 1024;

/// Strings from this length on are remembered, so that nobody need look for their ends again: one entry is much smaller.
pub(super) const LONG_BYTES: usize = 256;

/// Which of the open brackets are braces, one bit a level. Reusable.
#[derive(Debug, Default)]
pub(super) struct Nest {
    braces: Vec<u64>,
    depth: usize,
    /// Is the innermost one a brace? Asked at each comma.
    in_brace: bool,
}

impl Nest {
    fn push(&mut self, brace: bool) -> Option<()> {
        if self.depth == MAX_DEPTH {
            return None;
        }
        let (word, bit) = (self.depth / 64, 1 << (self.depth % 64));
        if word == self.braces.len() {
            self.braces.push(0);
        }
        let word = self.braces.get_mut(word)?;
        *word = if brace { *word | bit } else { *word & !bit };
        self.depth += 1;
        self.in_brace = brace;
        Some(())
    }

    fn pop(&mut self) {
        self.depth -= 1;
        if let Some(level) = self.depth.checked_sub(1) {
            self.in_brace = self.braces.get(level / 64).is_some_and(|word| word >> (level % 64) & 1 == 1);
        }
    }

    /// Is the innermost bracket a brace? `None` outside of all.
    #[inline(always)]
    fn innermost(&self) -> Option<bool> {
        (self.depth > 0).then_some(self.in_brace)
    }
}

/// All methods are inlined into the one pass, so that the position is a local value of it.
pub(super) struct Grammar<'b, 'l> {
    body: &'b [u8],
    pub(super) at: usize,
    strings: &'l mut Strings<'b>,
    /// The long strings so far, in their order.
    long: &'l mut Vec<Span>,
}

impl<'b, 'l> Grammar<'b, 'l> {
    #[inline(always)]
    pub(super) fn new(body: &'b [u8], strings: &'l mut Strings<'b>, long: &'l mut Vec<Span>) -> Self {
        Self { body, at: 0, strings, long }
    }

    #[inline(always)]
    pub(super) fn peek(&self) -> Option<u8> {
        self.body.get(self.at).copied()
    }

    /// Steps over `byte` if it stands here.
    #[inline(always)]
    pub(super) fn eat(&mut self, byte: u8) -> bool {
        // A branch, which is foretold, not a sum, which waits for the byte.
        if self.peek() != Some(byte) {
            return false;
        }
        self.at += 1;
        true
    }

    #[inline(always)]
    pub(super) fn expect(&mut self, byte: u8) -> Option<()> {
        if self.peek() != Some(byte) {
            return None;
        }
        self.at += 1;
        Some(())
    }

    #[inline(always)]
    pub(super) fn space(&mut self) {
        // Most bodies are compact: one comparison then tells that there is none.
        if self.peek().is_some_and(|byte| byte <= b' ') {
            self.at = after_space(self.body, self.at);
        }
    }

    /// Steps over a colon and the space around it.
    #[inline(always)]
    pub(super) fn colon(&mut self) -> Option<()> {
        self.space();
        self.expect(b':')?;
        self.space();
        Some(())
    }

    /// Steps over one string; answers whether it has escapes.
    #[inline(always)]
    pub(super) fn string(&mut self) -> Option<bool> {
        self.expect(b'"')?;
        if let Some(end) = self.strings.near_end(self.at) {
            self.at = end + 1;
            return Some(false);
        }
        let start = self.at - 1;
        match self.strings.end(self.at, true) {
            Ok((end, escaped)) => {
                self.at = end + 1;
                if self.at - start >= LONG_BYTES {
                    self.long.push(Span { start, end: self.at, escaped });
                }
                Some(escaped)
            }
            Err(fault) => {
                self.at = fault;
                None
            }
        }
    }

    /// Steps over one value of any depth; answers whether it is a string with escapes.
    #[inline(always)]
    pub(super) fn value(&mut self, nest: &mut Nest) -> Option<bool> {
        match self.peek()? {
            b'"' => self.string(),
            b'{' | b'[' => self.container(nest).map(|()| false),
            _ => self.scalar().map(|()| false),
        }
    }

    #[inline(always)]
    fn container(&mut self, nest: &mut Nest) -> Option<()> {
        nest.depth = 0;
        loop {
            match self.peek()? {
                b'"' => self.string().map(|_| ())?,
                bracket @ (b'{' | b'[') => {
                    if self.open(bracket == b'{', nest)? {
                        continue;
                    }
                }
                _ => {
                    if nest.innermost() == Some(false) {
                        self.at = after_plain_list(self.body, self.at);
                    }
                    self.scalar()?;
                }
            }
            if self.close(nest)? {
                return Some(());
            }
        }
    }

    /// Steps over an opening bracket; answers whether a value follows (an empty pair is a value by itself).
    #[inline(always)]
    fn open(&mut self, brace: bool, nest: &mut Nest) -> Option<bool> {
        self.at += 1;
        self.space();
        if self.eat(if brace { b'}' } else { b']' }) {
            return Some(false);
        }
        nest.push(brace)?;
        if brace {
            self.name()?;
        }
        Some(true)
    }

    /// After a value: steps over the brackets that close here, up to the next value. True when none is left open.
    #[inline(always)]
    fn close(&mut self, nest: &mut Nest) -> Option<bool> {
        while let Some(brace) = nest.innermost() {
            self.space();
            if self.eat(b',') {
                self.space();
                if brace {
                    self.name()?;
                }
                return Some(false);
            }
            self.expect(if brace { b'}' } else { b']' })?;
            nest.pop();
        }
        Some(true)
    }

    #[inline(always)]
    fn name(&mut self) -> Option<()> {
        self.string()?;
        self.colon()
    }

    #[inline(always)]
    fn scalar(&mut self) -> Option<()> {
        let word: &[u8] = match self.peek()? {
            b'n' => b"null",
            b't' => b"true",
            b'f' => b"false",
            b'N' => b"NaN",
            b'I' => b"Infinity",
            b'-' if self.body.get(self.at + 1) == Some(&b'I') => b"-Infinity",
            _ => return self.number(),
        };
        self.body.get(self.at..)?.starts_with(word).then(|| self.at += word.len())
    }

    #[inline(always)]
    fn number(&mut self) -> Option<()> {
        self.eat(b'-');
        if !self.eat(b'0') {
            self.digits()?;
        }
        if self.eat(b'.') {
            self.digits()?;
        }
        if self.eat(b'e') || self.eat(b'E') {
            let _signed = self.eat(b'+') || self.eat(b'-');
            self.digits()?;
        }
        Some(())
    }

    #[inline(always)]
    fn digits(&mut self) -> Option<()> {
        let len = digits_at(self.body, self.at);
        self.at += len;
        (len > 0).then_some(())
    }
}

/// Where the space that begins at `at` ends.
fn after_space(body: &[u8], at: usize) -> usize {
    let space = |byte: &u8| matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
    body.iter().skip(at).position(|byte| !space(byte)).map_or(body.len(), |len| at + len)
}
