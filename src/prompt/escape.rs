//! What JSON's escapes stand for: their check, and the decoding of text that has passed it.
//!
//! Works on the text between two quotes alone. On text that was not checked it decodes something or ends early, and
//! never panics.

use super::block::{BLOCK, first, next_marks, window, without_escape};

/// The byte that a letter after a backslash stands for; zero for what is no escape.
const MEANING: [u8; 256] = {
    let mut table = [0; 256];
    let pairs = *b"\"\"\\\\//b\x08f\x0cn\nr\rt\tuu";
    let mut at = 0;
    while at < pairs.len() {
        table[pairs[at] as usize] = pairs[at + 1];
        at += 2;
    }
    table
};

/// The longest escape: a backslash, a letter and four digits.
pub(super) const ESCAPE_BYTES: usize = 6;

/// Does an escape stand at the backslash at `at`?
#[inline(always)]
pub(super) fn is_escape(text: &[u8], at: usize) -> bool {
    match text.get(at + 1) {
        Some(b'u') => hex_unit(text, at + 2).is_some(),
        Some(&letter) => MEANING[usize::from(letter)] != 0,
        None => false,
    }
}

/// Does `letter` after a backslash make an escape of two bytes?
#[inline(always)]
pub(super) fn is_short(letter: u8) -> bool {
    letter != b'u' && MEANING[usize::from(letter)] != 0
}

/// Gives the decoded text to `sink` in a few large pieces. A lone surrogate becomes its three bytes in WTF-8; bytes that
/// are not UTF-8 stay as they are.
pub(super) fn decode(text: &[u8], mut sink: impl FnMut(&[u8])) {
    if text.len() <= SHORT_BYTES {
        return decode_short(text, sink);
    }
    let mut buffer = Buffer { bytes: [0; BUFFER_BYTES], len: 0 };
    let mut done = 0;
    while let Some((base, marks)) = next_marks::<b'\\', b'\\'>(text, done) {
        let plain = &text[done..base];
        if plain.len() > MAX_PLAIN {
            sink(buffer.take());
            sink(plain);
        } else if !plain.is_empty() {
            buffer.push(plain);
        }
        done = buffer.decode_block(text, base, marks);
        if buffer.len > BUFFER_BYTES - BUFFER_ROOM {
            sink(buffer.take());
        }
    }
    sink(buffer.take());
    sink(text.get(done..).unwrap_or_default());
}

/// Texts up to this length are decoded byte by byte: to set a buffer up would take longer.
const SHORT_BYTES: usize = 32;

fn decode_short(text: &[u8], mut sink: impl FnMut(&[u8])) {
    // Room for the four bytes of a code point at the end.
    let mut bytes = [0; SHORT_BYTES + 4];
    let (mut len, mut at) = (0, 0);
    while let Some(&byte) = text.get(at) {
        if byte != b'\\' {
            bytes[len % SHORT_BYTES] = byte;
            (len, at) = (len + 1, at + 1);
        } else if text.get(at + 1) == Some(&b'u') {
            let Some((code, end)) = code_at(text, at + 2) else { break };
            let (utf8, count) = encode(code);
            if let Some(room) = bytes.get_mut(len..).and_then(<[u8]>::first_chunk_mut) {
                *room = utf8;
            }
            (len, at) = (len + count, end);
        } else {
            let letter = text.get(at + 1).copied().unwrap_or_default();
            bytes[len % SHORT_BYTES] = MEANING[usize::from(letter)];
            (len, at) = (len + 1, at + 2);
        }
    }
    sink(&bytes[..len.min(SHORT_BYTES)]);
}

/// The code point that the digits of a `\u` at `at` write, with those of the other half of a pair, and where they end.
#[inline(always)]
fn code_at(text: &[u8], at: usize) -> Option<(u32, usize)> {
    let unit = hex_unit(text, at)?;
    if (0xd800..0xdc00).contains(&unit)
        && text.get(at + 4..at + 6) == Some(b"\\u")
        && let Some(low @ 0xdc00..0xe000) = hex_unit(text, at + 6)
    {
        return Some((0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00), at + 10));
    }
    Some((unit, at + 4))
}

/// Decoded bytes on their way to the sink, so that it is not called for each stretch between two escapes.
struct Buffer {
    bytes: [u8; BUFFER_BYTES],
    len: usize,
}

const BUFFER_BYTES: usize = 1024;
/// Longer stretches go to the sink from where they stand.
const MAX_PLAIN: usize = 256;
/// A stretch, a block, and a block's length to copy to. Decoding makes nothing longer.
const BUFFER_ROOM: usize = MAX_PLAIN + 2 * BLOCK + 16;
const WINDOW: usize = 2 * BLOCK;

impl Buffer {
    fn take(&mut self) -> &[u8] {
        &self.bytes[..std::mem::take(&mut self.len)]
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Decodes the block at `base` with the backslashes `marks`; answers where it ends, or its last escape.
    #[inline(always)]
    fn decode_block(&mut self, text: &[u8], base: usize, marks: u64) -> usize {
        let rest = text.get(base..).unwrap_or_default();
        match rest.first_chunk() {
            Some(window) => self.decode_window(text, base, window, BLOCK, marks),
            None => self.decode_rest(text, base, rest, marks),
        }
    }

    /// The same for a block near the end of the text.
    #[inline(never)]
    fn decode_rest(&mut self, text: &[u8], base: usize, rest: &[u8], marks: u64) -> usize {
        self.decode_window(text, base, window(rest, &mut [0; WINDOW]), rest.len().min(BLOCK), marks)
    }

    /// `end` is the length of the block.
    #[inline(always)]
    fn decode_window(&mut self, text: &[u8], base: usize, window: &[u8; WINDOW], end: usize, mut marks: u64) -> usize {
        let mut done = 0;
        while marks != 0 {
            let place = first(marks) % BLOCK;
            marks = without_escape(marks, place);
            // The second half of a pair of surrogates was decoded with the first.
            if place < done {
                continue;
            }
            self.copy(window, done, place);
            let letter = window[place + 1];
            if letter == b'u' {
                done = self.unicode(text, base + place + 2) - base;
            } else {
                self.bytes[self.len % BUFFER_BYTES] = MEANING[usize::from(letter)];
                self.len += 1;
                done = place + 2;
            }
        }
        self.copy(window, done, end);
        base + done.max(end)
    }

    /// Takes the bytes between two places of the window. A whole block is copied, whatever is asked for: what is too much
    /// is overwritten by what follows, and no branch depends on the length.
    #[inline(always)]
    fn copy(&mut self, window: &[u8; WINDOW], from: usize, to: usize) {
        if let Some(block) = window.get(from..).and_then(<[u8]>::first_chunk::<BLOCK>)
            && let Some(room) = self.bytes.get_mut(self.len..).and_then(<[u8]>::first_chunk_mut)
        {
            *room = *block;
        }
        self.len += to.saturating_sub(from);
    }

    /// Decodes the digits of a `\u` at `at`, with those of the other half of a pair; answers where they end.
    fn unicode(&mut self, text: &[u8], at: usize) -> usize {
        let Some((code, end)) = code_at(text, at) else { return text.len() };
        self.code_point(code);
        end
    }

    fn code_point(&mut self, code: u32) {
        let (utf8, len) = encode(code);
        if let Some(room) = self.bytes.get_mut(self.len..).and_then(<[u8]>::first_chunk_mut) {
            *room = utf8;
        }
        self.len += len;
    }
}

/// UTF-8, generalised to lone surrogates (WTF-8): the bytes, and how many of them count.
#[inline(always)]
fn encode(code: u32) -> ([u8; 4], usize) {
    let low = |shift: u32| 0x80 | (code >> shift & 0x3f) as u8;
    match code {
        0..0x80 => ([code as u8, 0, 0, 0], 1),
        0x80..0x800 => ([0xc0 | (code >> 6) as u8, low(0), 0, 0], 2),
        0x800..0x1_0000 => ([0xe0 | (code >> 12) as u8, low(6), low(0), 0], 3),
        _ => ([0xf0 | (code >> 18) as u8, low(12), low(6), low(0)], 4),
    }
}

/// The value of a hexadecimal digit; more than any has for what is none.
const HEX: [u8; 256] = {
    let mut table = [0xff; 256];
    let mut value = 0;
    while value < 16 {
        table[b"0123456789abcdef"[value] as usize] = value as u8;
        table[b"0123456789ABCDEF"[value] as usize] = value as u8;
        value += 1;
    }
    table
};

/// The UTF-16 unit that four digits at `at` write.
#[inline(always)]
fn hex_unit(text: &[u8], at: usize) -> Option<u32> {
    let digits: &[u8; 4] = text.get(at..)?.first_chunk()?;
    let [a, b, c, d] = digits.map(|digit| HEX[usize::from(digit)]);
    let unit = u32::from(a) << 12 | u32::from(b) << 8 | u32::from(c) << 4 | u32::from(d);
    ((a | b | c | d) < 16).then_some(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        decode(text.as_bytes(), |piece| bytes.extend_from_slice(piece));
        bytes
    }

    #[test]
    fn every_code_point_is_its_utf8() {
        for char in '\0'..=char::MAX {
            let escapes: String = char.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04X}")).collect();
            assert_eq!(decoded(&escapes), char.encode_utf8(&mut [0; 4]).as_bytes(), "{escapes}");
        }
        assert_eq!(decoded("\\ud800x\\udfff\\ud83d\\u0041"), b"\xed\xa0\x80x\xed\xbf\xbf\xed\xa0\xbdA");
    }

    #[test]
    fn a_text_of_any_length_is_decoded_at_any_place() {
        let escapes = [
            ("\\n", "\n"),
            ("\\\\\\\"", "\\\""),
            ("\\u00e9", "é"),
            ("\\ud83d\\ude00", "😀"),
            ("\\/\\b\\f", "/\u{8}\u{c}"),
        ];
        for (escape, char) in escapes {
            for plain in 0..300 {
                let stretch = "abc".repeat(100)[..plain].to_owned();
                let parts = [&stretch, "x", "", &stretch[..plain / 3]];
                assert_eq!(decoded(&parts.join(escape)), parts.join(char).as_bytes(), "{escape} {plain}");
                assert_eq!(
                    decoded(&format!("{escape}{stretch}").repeat(9)),
                    format!("{char}{stretch}").repeat(9).as_bytes()
                );
            }
        }
    }

    #[test]
    fn only_sixteen_kinds_of_digit_make_a_unit() {
        for digit in 0..=255_u8 {
            let text = [b'\\', b'u', b'0', digit, b'F', b'a'];
            assert_eq!(is_escape(&text, 0), digit.is_ascii_hexdigit());
        }
        assert!(!is_escape(b"\\u12a", 0) && !is_escape(b"\\", 0) && !is_escape(b"\\x", 0) && is_escape(b"\\/", 0));
    }
}
