//! Where strings end.
//!
//! Knows the text and the marks of one block of it: its quotes and backslashes. Invariant: a search begins behind a
//! string's opening quote or behind an escape, so that what stands before it decides nothing.

use super::block::{BLOCK, first, marks_at, next_marks, window, without_escape};
use super::escape::{ESCAPE_BYTES, is_escape, is_short};

/// A piece of the body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) end: usize,
    /// Is it a string with escapes?
    pub(super) escaped: bool,
}

/// Why a search has not found the end of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Halt {
    /// Here stands an escape that is none.
    Fault(usize),
    /// No quote follows.
    Endless,
    /// It may go on from here.
    Paused(Within),
}

/// A place within a string up to which it has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Within {
    pub(super) at: usize,
    /// Escapes stand before.
    pub(super) escaped: bool,
}

/// A search of which the marks are kept from one string to the next.
pub(super) struct Strings<'b> {
    text: &'b [u8],
    /// Where the block begins; behind all text when there is none yet.
    base: usize,
    marks: u64,
}

impl<'b> Strings<'b> {
    #[inline(always)]
    pub(super) fn new(text: &'b [u8]) -> Self {
        Self { text, base: usize::MAX / 2, marks: 0 }
    }

    #[inline(always)]
    fn covers(&self, at: usize) -> bool {
        at.wrapping_sub(self.base) < BLOCK
    }

    /// The position of the quote that ends the string whose first byte is at `at`, when that quote is near and no escape
    /// stands before it: most names and many values.
    #[inline(always)]
    pub(super) fn near_end(&mut self, at: usize) -> Option<usize> {
        if !self.covers(at) {
            self.turn_to(at);
        }
        let ahead = self.marks >> (at.wrapping_sub(self.base) % BLOCK);
        let end = at + first(ahead);
        (ahead != 0 && self.text.get(end) == Some(&b'"')).then_some(end)
    }

    #[inline(never)]
    fn turn_to(&mut self, at: usize) {
        self.base = at;
        self.marks = marks_at::<b'"', b'\\'>(self.text, at);
    }

    /// The same for any string, after `near_end` did not find it: the quote's position, and whether escapes stand before
    /// it. `Err` at the first escape that is none, when they are checked, or at `start` when no quote follows.
    pub(super) fn end(&mut self, start: usize, checked: bool) -> Result<(usize, bool), Halt> {
        self.end_from::<false>(Within { at: start, escaped: false }, checked, usize::MAX)
    }

    /// The same from a place within the string on. Where it is `SLICED` it pauses at the first escape from `stop` on.
    #[inline(never)]
    pub(super) fn end_from<const SLICED: bool>(
        &mut self,
        Within { mut at, mut escaped }: Within,
        checked: bool,
        stop: usize,
    ) -> Result<(usize, bool), Halt> {
        loop {
            if SLICED && at >= stop {
                return Err(Halt::Paused(Within { at, escaped }));
            }
            if !self.covers(at) {
                (self.base, self.marks) = next_marks::<b'"', b'\\'>(self.text, at).ok_or(Halt::Endless)?;
                at = self.base;
            }
            // The marks from `at` on.
            let marks = self.marks & (u64::MAX << (at.wrapping_sub(self.base) % BLOCK));
            if marks == 0 {
                at = self.base + BLOCK;
                continue;
            }
            let rest = self.text.get(self.base..).unwrap_or_default();
            let end = match rest.first_chunk() {
                Some(window) => end_in(window, marks, checked),
                None => end_in_rest(rest, marks, checked),
            };
            match end {
                End::Quote(place) => return Ok((self.base + place, escaped || first(marks) < place)),
                End::Fault(place) => return Err(Halt::Fault(self.base + place)),
                End::Behind(place) => at = self.base + place,
            }
            escaped = true;
        }
    }
}

/// What a block says of a string that goes on in it.
enum End {
    /// It ends here.
    Quote(usize),
    /// Here stands an escape that is none.
    Fault(usize),
    /// It goes on here: behind the block, or behind the escape that reaches out of it.
    Behind(usize),
}

/// A block, and what an escape at its end needs.
const WINDOW: usize = BLOCK + ESCAPE_BYTES;

#[inline(always)]
fn end_in(window: &[u8; WINDOW], mut marks: u64, checked: bool) -> End {
    let mut behind = BLOCK;
    while marks != 0 {
        let place = first(marks) % BLOCK;
        if window[place] == b'"' {
            return End::Quote(place);
        }
        if checked && !is_short(window[place + 1]) && !is_escape(window, place) {
            return End::Fault(place);
        }
        behind = behind.max(place + 2);
        marks = without_escape(marks, place);
    }
    End::Behind(behind)
}

#[inline(never)]
fn end_in_rest(rest: &[u8], marks: u64, checked: bool) -> End {
    end_in(window(rest, &mut [0; WINDOW]), marks, checked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(text: &[u8], at: usize) -> Result<(usize, bool), usize> {
        let fault = |halt| match halt {
            Halt::Fault(at) => at,
            Halt::Endless => at,
            Halt::Paused(_) => unreachable!("nobody asked"),
        };
        let mut strings = Strings::new(text);
        strings.near_end(at).map_or_else(|| strings.end(at, true).map_err(fault), |end| Ok((end, false)))
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
