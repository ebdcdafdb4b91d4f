//! Where strings end.
//!
//! Knows the text and the marks of one block of it. The position is the caller's: only so does it live in a register
//! from string to string. Invariant: a search begins right behind a string's opening quote, so a block that begins
//! there needs nothing of what stands before it.

use super::block::Marks;
use super::escape::fault;
use memchr::memchr2;

/// After this many blocks of plain text a call into `memchr` pays.
const PLAIN_BLOCKS: usize = 3;

/// A piece of the body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) end: usize,
    /// Is it a string with escapes?
    pub(super) escaped: bool,
}

/// A search of which the marks are kept from one string to the next.
pub(super) struct Strings<'b> {
    text: &'b [u8],
    marks: Marks,
}

impl<'b> Strings<'b> {
    #[inline(always)]
    pub(super) fn new(text: &'b [u8]) -> Self {
        Self { text, marks: Marks::NONE }
    }

    /// The position of the quote that ends the string whose first byte is at `at`, when that quote is near and no escape
    /// stands before it: most names and many values.
    #[inline(always)]
    pub(super) fn near_end(&mut self, at: usize) -> Option<usize> {
        if !self.marks.cover(at) {
            self.turn_to(at);
        }
        let (len, escapes, quote) = self.marks.stretch(at);
        (quote && escapes == 0).then_some(at + len)
    }

    #[inline(never)]
    fn turn_to(&mut self, at: usize) {
        self.marks.set(self.text, at, false);
    }

    /// The same for any string, after `near_end` did not find it: the quote's position, and whether escapes stand before
    /// it. `Err` at the first escape that is none, when they are checked, or at `at` when no quote follows.
    #[inline(never)]
    pub(super) fn end(&mut self, start: usize, checked: bool) -> Result<(usize, bool), usize> {
        let (mut at, mut escaped, mut plain) = (start, false, 0);
        loop {
            let (len, escapes, quote) = self.marks.stretch(at);
            if escapes != 0 {
                escaped = true;
                if let Some(found) = checked.then(|| fault(self.text, at, escapes)).flatten() {
                    return Err(found);
                }
            }
            at += len;
            if quote {
                return Ok((at, escaped));
            }
            if at >= self.text.len() {
                return Err(start);
            }
            plain = if self.marks.is_plain() { plain + 1 } else { 0 };
            if plain > PLAIN_BLOCKS {
                plain = 0;
                at += memchr2(b'"', b'\\', &self.text[at..]).ok_or(start)?;
                self.marks.set(self.text, at, false);
            } else {
                self.marks.next(self.text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(text: &[u8], at: usize) -> Result<(usize, bool), usize> {
        let mut strings = Strings::new(text);
        strings.near_end(at).map_or_else(|| strings.end(at, true), |end| Ok((end, false)))
    }

    #[test]
    fn a_string_of_any_length_ends_at_its_quote() {
        for len in 0..1_000 {
            let plain = vec![b'a'; len];
            assert_eq!(ends(&[b"x\"", &plain[..], b"\"", b"\"\\"].concat(), 2), Ok((2 + len, false)));
            assert_eq!(ends(&[b"x\"", &plain[..]].concat(), 2), Err(2));
            for escape in [&b"\\\""[..], b"\\\\", b"\\u00e9"] {
                let text = [&plain[..], escape, &plain[..len / 3], b"\""].concat();
                assert_eq!(ends(&text, 0), Ok((text.len() - 1, true)));
            }
            for fault in [&b"\\x\""[..], b"\\u12g4\"", b"\\u12", b"\\"] {
                assert_eq!(ends(&[&plain[..], b"\\n", &plain[..len / 2], fault].concat(), 0), Err(len + 2 + len / 2));
            }
        }
    }

    #[test]
    fn marks_are_kept_from_string_to_string() {
        let text = br#""one","t\"wo","three","four","five","six","seven","eight","nine","ten","eleven","twelve""#;
        let (mut strings, mut at, mut found) = (Strings::new(text), 1, 0);
        while at < text.len() {
            let end = strings.near_end(at).or_else(|| Some(strings.end(at, true).ok()?.0)).expect("an end");
            assert_eq!(text[end], b'"');
            found += 1;
            at = end + 3;
        }
        assert_eq!(found, 12);
    }
}
