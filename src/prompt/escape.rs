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

/// Does an escape stand at the backslash at `at`?
#[inline(always)]
pub(super) fn is_escape(text: &[u8], at: usize) -> bool {
    match text.get(at + 1) {
        Some(b'u') => text.get(at + 2..at + 6).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)),
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
    let mut buffer = Buffer { bytes: [0; BUFFER_BYTES], len: 0 };
    let mut done = 0;
    while let Some((base, marks)) = next_marks::<b'\\', b'\\'>(text, done) {
        let plain = &text[done..base];
        if plain.len() > MAX_PLAIN {
            sink(buffer.take());
            sink(plain);
        } else {
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

/// Decoded bytes on their way to the sink, so that it is not called for each stretch between two escapes.
struct Buffer {
    bytes: [u8; BUFFER_BYTES],
    len: usize,
}

const BUFFER_BYTES: usize = 512;
/// Longer stretches go to the sink from where they stand.
const MAX_PLAIN: usize = 128;
/// A stretch, a block and what its last escape stands for. Decoding makes nothing longer.
const BUFFER_ROOM: usize = MAX_PLAIN + BLOCK + STEP;
/// Stretches are copied in steps of this many bytes; mostly one is enough.
const STEP: usize = 16;
const WINDOW: usize = BLOCK + STEP;

impl Buffer {
    fn take(&mut self) -> &[u8] {
        &self.bytes[..std::mem::take(&mut self.len)]
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Decodes the block at `base` with the backslashes `marks`; answers where it ends, or its last escape.
    fn decode_block(&mut self, text: &[u8], base: usize, mut marks: u64) -> usize {
        let mut room = [0; WINDOW];
        let window = window(text, base, &mut room);
        let end = BLOCK.min(text.len() - base);
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

    /// Takes the bytes between two places of the window. What a step copies too much is overwritten by what follows.
    #[inline(always)]
    fn copy(&mut self, window: &[u8; WINDOW], from: usize, to: usize) {
        let (mut source, mut place) = (from, self.len);
        self.len += to.saturating_sub(from);
        loop {
            if let Some(step) = window.get(source..).and_then(<[u8]>::first_chunk::<STEP>)
                && let Some(room) = self.bytes.get_mut(place..).and_then(<[u8]>::first_chunk_mut)
            {
                *room = *step;
            }
            (source, place) = (source + STEP, place + STEP);
            if source >= to {
                return;
            }
        }
    }

    /// Decodes the digits of a `\u` at `at`, with those of the other half of a pair; answers where they end.
    fn unicode(&mut self, text: &[u8], at: usize) -> usize {
        let Some(unit) = hex_unit(text, at) else { return text.len() };
        if (0xd800..0xdc00).contains(&unit)
            && text.get(at + 4..at + 6) == Some(b"\\u")
            && let Some(low @ 0xdc00..0xe000) = hex_unit(text, at + 6)
        {
            self.code_point(0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00));
            return at + 10;
        }
        self.code_point(unit);
        at + 4
    }

    /// UTF-8, generalised to lone surrogates (WTF-8).
    fn code_point(&mut self, code: u32) {
        if let Some(char) = char::from_u32(code) {
            return self.push(char.encode_utf8(&mut [0; 4]).as_bytes());
        }
        self.push(&[0xe0 | (code >> 12) as u8, 0x80 | (code >> 6 & 0x3f) as u8, 0x80 | (code & 0x3f) as u8]);
    }
}

fn hex_unit(text: &[u8], at: usize) -> Option<u32> {
    let digits = text.get(at..at + 4)?;
    digits.iter().try_fold(0, |unit, &digit| Some(unit << 4 | char::from(digit).to_digit(16)?))
}
