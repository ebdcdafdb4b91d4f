//! One strict pass over JSON text (RFC 8259), without a tree and without recursion.
//!
//! Two liberties, both those of Python's `json`, which most engines read with: `NaN`, `Infinity` and `-Infinity` are
//! numbers, and control characters or bytes that are not UTF-8 inside a string are left to the engine. Invariant: every
//! step moves forward, so that time is linear; a pass that returns `None` stands at the fault, or has paused.
//!
//! A pass may be told where to stop. It then pauses before the next element of a container or within a long string, and
//! another pass goes on with the element: what it has to do again are two strings at most, of which it knows the ends.

use super::digits::{after_plain_list, digits_at, span_of};
use super::strings::{Halt, Span, Strings, Within};

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

/// Where a pass has paused.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pause {
    /// The string that has not ended yet begins here, and how far it is known.
    string: Option<(usize, Within)>,
}

impl Pause {
    /// How far the string is known; 0 when it is not in one.
    pub(super) fn at(&self) -> usize {
        self.string.map_or(0, |(_, within)| within.at)
    }
}

impl Nest {
    /// Nothing is open.
    pub(super) fn begin(&mut self) {
        self.depth = 0;
    }

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

/// All methods are inlined into the one pass, so that the position is a local value of it. Only where it is `SLICED` does it
/// look for the place to stop.
pub(super) struct Grammar<'b, 'l, const SLICED: bool> {
    body: &'b [u8],
    pub(super) at: usize,
    strings: &'l mut Strings<'b>,
    /// The long strings so far, in their order.
    long: &'l mut Vec<Span>,
    stop: usize,
    /// Where the pass before has paused.
    before: Option<Pause>,
    /// Where this one has.
    pub(super) paused: Option<Pause>,
}

impl<'b, 'l, const SLICED: bool> Grammar<'b, 'l, SLICED> {
    #[inline(always)]
    pub(super) fn new(body: &'b [u8], strings: &'l mut Strings<'b>, long: &'l mut Vec<Span>) -> Self {
        Self { body, at: 0, strings, long, stop: usize::MAX, before: None, paused: None }
    }

    /// Goes on from `at`, where the pass before has paused, and pauses soon after `stop`.
    #[inline(always)]
    pub(super) fn between(self, at: usize, before: Option<Pause>, stop: usize) -> Self {
        Self { at, before, stop, ..self }
    }

    /// Is it time to pause? To be asked before an element.
    #[inline(always)]
    pub(super) fn pauses(&mut self) -> bool {
        if !SLICED || self.at < self.stop {
            return false;
        }
        self.paused = Some(Pause::default());
        true
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
        let mut known = Within { at: self.at, escaped: false };
        if SLICED && let Some(before) = self.before {
            match (before.string, self.long.last()) {
                (_, Some(long)) if long.start == start => {
                    self.at = long.end;
                    return Some(long.escaped);
                }
                (Some((string, within)), _) if string == start => known = within,
                _ => {}
            }
        }
        match self.strings.end_from::<SLICED>(known, true, self.stop) {
            Ok((end, escaped)) => {
                self.at = end + 1;
                if self.at - start >= LONG_BYTES {
                    self.long.push(Span { start, end: self.at, escaped });
                }
                Some(escaped)
            }
            Err(Halt::Endless) => None,
            Err(Halt::Fault(fault)) => {
                self.at = fault;
                None
            }
            Err(Halt::Paused(within)) => {
                self.paused = Some(Pause { string: Some((start, within)) });
                None
            }
        }
    }

    /// Steps over one value that is no container; answers whether it is a string with escapes.
    #[inline(always)]
    pub(super) fn simple_value(&mut self) -> Option<bool> {
        match self.peek()? {
            b'"' => self.string(),
            _ => self.scalar().map(|()| false),
        }
    }

    /// Steps over a container for which `nest` has begun, or goes on in the one in which the pass before has paused.
    #[inline(always)]
    pub(super) fn container(&mut self, nest: &mut Nest) -> Option<()> {
        loop {
            let (at, depth, in_brace) = (self.at, nest.depth, nest.in_brace);
            match self.element(nest) {
                Some(true) => return Some(()),
                Some(false) => {}
                None => {
                    if SLICED && self.paused.is_some() {
                        (self.at, nest.depth, nest.in_brace) = (at, depth, in_brace);
                    }
                    return None;
                }
            }
        }
    }

    /// Steps over the beginning of a value, or a whole one and what closes behind it. True when no bracket is left open.
    #[inline(always)]
    fn element(&mut self, nest: &mut Nest) -> Option<bool> {
        if self.pauses() {
            return None;
        }
        match self.peek()? {
            b'"' => self.string().map(|_| ())?,
            bracket @ (b'{' | b'[') => {
                if self.open(bracket == b'{', nest)? {
                    return Some(false);
                }
            }
            _ => {
                if nest.innermost() == Some(false) {
                    self.at = after_plain_list(self.body, self.at, self.stop);
                }
                self.scalar()?;
            }
        }
        self.close(nest)
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
    at + span_of(body.get(at..).unwrap_or_default(), |byte| matches!(byte, b' ' | b'\n' | b'\r' | b'\t'))
}
