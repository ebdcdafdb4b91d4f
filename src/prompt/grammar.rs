//! One strict pass over JSON text (RFC 8259), without a tree and without recursion.
//!
//! Two liberties, both those of Python's `json`, which most engines read with: `NaN`, `Infinity` and `-Infinity` are
//! numbers, and control characters or bytes that are not UTF-8 inside a string are left to the engine. Invariant: every
//! step moves forward, so that time is linear; a pass that returns `None` stands at the fault.

use memchr::memchr2;

/// Deeper nesting is refused, as RFC 8259 §9 allows. Python's `json` gives up earlier.
pub(super) const MAX_DEPTH: usize = 16 * 1024;

/// Strings begin with this many words of eight bytes: a call into `memchr` costs more than most names.
const INLINE_WORDS: usize = 4;

/// Which of the open brackets are braces, one bit a level. Reusable.
#[derive(Debug, Default)]
pub(super) struct Nest {
    braces: Vec<u64>,
    depth: usize,
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
        Some(())
    }

    /// Is the innermost bracket a brace? `None` outside of all.
    fn innermost(&self) -> Option<bool> {
        let level = self.depth.checked_sub(1)?;
        Some(self.braces.get(level / 64)? >> (level % 64) & 1 == 1)
    }
}

/// All methods are inlined into the one pass, so that the position lives in a register: through memory, each step would
/// wait for the store of the one before.
pub(super) struct Grammar<'b> {
    body: &'b [u8],
    pub(super) at: usize,
}

impl<'b> Grammar<'b> {
    #[inline(always)]
    pub(super) fn new(body: &'b [u8]) -> Self {
        Self { body, at: 0 }
    }

    #[inline(always)]
    pub(super) fn peek(&self) -> Option<u8> {
        self.body.get(self.at).copied()
    }

    /// Steps over `byte` if it stands here.
    #[inline(always)]
    pub(super) fn eat(&mut self, byte: u8) -> bool {
        let here = self.peek() == Some(byte);
        self.at += usize::from(here);
        here
    }

    #[inline(always)]
    pub(super) fn expect(&mut self, byte: u8) -> Option<()> {
        self.eat(byte).then_some(())
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
        self.at += quote_or_backslash(self.body.get(self.at..)?)?;
        if self.eat(b'"') {
            return Some(false);
        }
        let (at, closed) = after_escapes(self.body, self.at);
        self.at = at;
        closed.then_some(true)
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
                _ => self.scalar()?,
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
            nest.depth -= 1;
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
        let rest = self.body.get(self.at..)?;
        let len = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        self.at += len;
        (len > 0).then_some(())
    }
}

/// Where the space that begins at `at` ends.
fn after_space(body: &[u8], at: usize) -> usize {
    let space = |byte: &u8| matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
    body.iter().skip(at).position(|byte| !space(byte)).map_or(body.len(), |len| at + len)
}

/// From the first backslash of a string at `at` to after its closing quote, or to the fault.
fn after_escapes(body: &[u8], mut at: usize) -> (usize, bool) {
    while let Some(len) = body.get(at..).and_then(escape_len) {
        at += len;
        let Some(hit) = body.get(at..).and_then(quote_or_backslash) else { break };
        at += hit;
        if body.get(at) == Some(&b'"') {
            return (at + 1, true);
        }
    }
    (at, false)
}

/// Offset of the first quote or backslash.
#[inline]
pub(super) fn quote_or_backslash(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    for word in text.as_chunks::<8>().0.iter().take(INLINE_WORDS) {
        let hits = bytes_equal(*word, b'"') | bytes_equal(*word, b'\\');
        if hits != 0 {
            return Some(at + first_hit(hits));
        }
        at += 8;
    }
    memchr2(b'"', b'\\', text.get(at..)?).map(|hit| at + hit)
}

/// Marks the bytes of `word` that equal `byte`. Exact up to the first mark: a borrow may set false ones after it.
#[inline]
pub(super) fn bytes_equal(word: [u8; 8], byte: u8) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGHS: u64 = u64::from_le_bytes([0x80; 8]);
    let zeroed = u64::from_le_bytes(word) ^ (ONES * u64::from(byte));
    zeroed.wrapping_sub(ONES) & !zeroed & HIGHS
}

/// Index of the first byte that is marked.
#[inline]
pub(super) fn first_hit(hits: u64) -> usize {
    hits.trailing_zeros() as usize / 8
}

/// Length of the escape that `text` begins with; `None` when it is none.
#[inline]
fn escape_len(text: &[u8]) -> Option<usize> {
    match text.get(1)? {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(2),
        b'u' => text.get(2..6)?.iter().all(u8::is_ascii_hexdigit).then_some(6),
        _ => None,
    }
}
