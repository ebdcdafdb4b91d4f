//! What JSON's escapes stand for: their check, and the decoding of text that has passed it.
//!
//! Works on the text between two quotes alone. On text that was not checked it decodes something or ends early, and
//! never panics.

use super::block::{BLOCK, escapes_at};

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

/// The positions `at + i` of the bits `i` that are set.
#[inline(always)]
fn positions(mut bits: u64, at: usize) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let next = (bits != 0).then(|| at + bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        next
    })
}

/// The first of the escapes at `at + i`, for each bit `i` of `begins`, that is none.
#[inline(never)]
pub(super) fn fault(text: &[u8], at: usize, begins: u64) -> Option<usize> {
    positions(begins, at).find(|&at| match text.get(at + 1) {
        Some(b'u') => !text.get(at + 2..at + 6).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)),
        Some(&letter) => MEANING[usize::from(letter)] == 0,
        None => true,
    })
}

/// Gives the decoded text to `sink` in a few large pieces. A lone surrogate becomes its three bytes in WTF-8; bytes that
/// are not UTF-8 stay as they are.
pub(super) fn decode(text: &[u8], sink: impl FnMut(&[u8])) {
    let mut gather = Gather { sink, bytes: [0; GATHER_BYTES], len: 0 };
    let (mut done, mut carried) = (0, false);
    for base in (0..text.len()).step_by(BLOCK) {
        let (begins, carry) = escapes_at(text, base, carried);
        carried = carry;
        for at in positions(begins, base) {
            // The second half of a pair of surrogates was decoded with the first.
            if at < done {
                continue;
            }
            gather.stretch(text, done, at);
            match text.get(at + 1) {
                Some(b'u') => done = gather.unicode(text, at + 2),
                Some(&letter) => {
                    gather.byte(MEANING[usize::from(letter)]);
                    done = at + 2;
                }
                None => done = text.len(),
            }
        }
    }
    gather.stretch(text, done, text.len());
    gather.flush();
}

/// Decoded bytes on their way to the sink: what stands between escapes is short, so that the sink is not called for each.
struct Gather<F> {
    sink: F,
    bytes: [u8; GATHER_BYTES],
    len: usize,
}

const GATHER_BYTES: usize = 512;
/// Longer stretches go to the sink from where they stand.
const GATHER_STRETCH: usize = 128;

impl<F: FnMut(&[u8])> Gather<F> {
    /// Copies of a fixed length need no loop; what they copy too much is overwritten by what follows.
    #[inline(always)]
    fn stretch(&mut self, text: &[u8], from: usize, to: usize) {
        let len = to.saturating_sub(from);
        if !(len <= 16 && self.step::<16>(text, from, len) || len <= 64 && self.step::<64>(text, from, len)) {
            self.long_stretch(text.get(from..to).unwrap_or_default());
        }
    }

    /// Takes the first `len` of `N` bytes, if there is room for all of them and there are so many.
    #[inline(always)]
    fn step<const N: usize>(&mut self, text: &[u8], from: usize, len: usize) -> bool {
        if let Some(place) = self.bytes.get_mut(self.len..).and_then(<[u8]>::first_chunk_mut::<N>)
            && let Some(source) = text.get(from..).and_then(<[u8]>::first_chunk)
        {
            *place = *source;
            self.len += len;
            return true;
        }
        false
    }

    #[inline(never)]
    fn long_stretch(&mut self, plain: &[u8]) {
        if plain.len() > GATHER_STRETCH {
            self.flush();
            return (self.sink)(plain);
        }
        if self.len + plain.len() > GATHER_BYTES {
            self.flush();
        }
        self.bytes[self.len..][..plain.len()].copy_from_slice(plain);
        self.len += plain.len();
    }

    #[inline(always)]
    fn byte(&mut self, byte: u8) {
        if self.len == GATHER_BYTES {
            self.flush();
        }
        if let Some(place) = self.bytes.get_mut(self.len) {
            *place = byte;
        }
        self.len += 1;
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
            return self.long_stretch(char.encode_utf8(&mut [0; 4]).as_bytes());
        }
        self.long_stretch(&[0xe0 | (code >> 12) as u8, 0x80 | (code >> 6 & 0x3f) as u8, 0x80 | (code & 0x3f) as u8]);
    }

    fn flush(&mut self) {
        (self.sink)(&self.bytes[..self.len]);
        self.len = 0;
    }
}

fn hex_unit(text: &[u8], at: usize) -> Option<u32> {
    let digits = text.get(at..at + 4)?;
    digits.iter().try_fold(0, |unit, &digit| Some(unit << 4 | char::from(digit).to_digit(16)?))
}
