//! Sixty-four bytes at a time: which of them are one of two given bytes, as the bits of a word.
//!
//! Without a branch for each byte, text full of quotes and escapes costs little more than plain text. A block may begin
//! anywhere. The loops over arrays are shaped so that the compiler makes vector code of them.

use memchr::memchr2;

pub(super) const BLOCK: usize = 64;
type Block = [u8; BLOCK];

/// After this many blocks without a mark a call into `memchr` pays.
const NEAR_BLOCKS: usize = 6;

/// One bit of eight for each byte of a word of eight.
const BITS: Block = {
    let mut bits = [0; BLOCK];
    let mut at = 0;
    while at < BLOCK {
        bits[at] = 1 << (at % 8);
        at += 1;
    }
    bits
};

/// Bit `i` says whether byte `i` is `ONE` or `OTHER`. A function by itself, as the next one is: merged with what stands
/// around it, the compiler no longer sees that the sum of eight bytes is one instruction.
#[inline(never)]
fn marks<const ONE: u8, const OTHER: u8>(block: &Block) -> u64 {
    let marked: Block = std::array::from_fn(|at| if (block[at] == ONE) | (block[at] == OTHER) { BITS[at] } else { 0 });
    // A sum of distinct bits is their union.
    let union = |bits: &[u8]| bits.iter().fold(0_u8, |sum, &bit| sum.wrapping_add(bit));
    u64::from_le_bytes(std::array::from_fn(|word| union(&marked[word * 8..][..8])))
}

/// Is there any mark?
#[inline(never)]
fn is_marked<const ONE: u8, const OTHER: u8>(block: &Block) -> bool {
    block.iter().fold(false, |any, &byte| any | (byte == ONE) | (byte == OTHER))
}

/// `N` bytes from `at` on. Where `text` has fewer, `room` takes them, and zeros stand behind the end.
#[inline(always)]
pub(super) fn window<'a, const N: usize>(text: &'a [u8], at: usize, room: &'a mut [u8; N]) -> &'a [u8; N] {
    let rest = text.get(at..).unwrap_or_default();
    match rest.first_chunk() {
        Some(bytes) => bytes,
        None => {
            room[..rest.len()].copy_from_slice(rest);
            room
        }
    }
}

/// The marks of the block that begins at `at`; nothing behind the end of `text` is marked.
#[inline(always)]
pub(super) fn marks_at<const ONE: u8, const OTHER: u8>(text: &[u8], at: usize) -> u64 {
    marks::<ONE, OTHER>(window(text, at, &mut [0; BLOCK]))
}

/// From `at` on, where the first block with a mark begins, and its marks; `None` when nothing is marked up to the end.
#[inline(always)]
pub(super) fn next_marks<const ONE: u8, const OTHER: u8>(text: &[u8], mut at: usize) -> Option<(usize, u64)> {
    let blocks = text.get(at..)?.as_chunks().0;
    for block in blocks.iter().take(NEAR_BLOCKS) {
        if is_marked::<ONE, OTHER>(block) {
            return Some((at, marks::<ONE, OTHER>(block)));
        }
        at += BLOCK;
    }
    at += memchr2(ONE, OTHER, text.get(at..)?)?;
    Some((at, marks_at::<ONE, OTHER>(text, at)))
}

/// The place of the first of `marks`, which are some.
#[inline(always)]
pub(super) fn first(marks: u64) -> usize {
    marks.trailing_zeros() as usize
}

/// `marks` without those of an escape's two bytes at `place`.
#[inline(always)]
pub(super) fn without_escape(marks: u64, place: usize) -> u64 {
    marks & !(3 << place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naive(text: &[u8], at: usize) -> u64 {
        let here = |place: &usize| text.get(at + place).is_some_and(|byte| matches!(byte, b'"' | b'\\'));
        (0..BLOCK).filter(here).fold(0, |marks, place| marks | 1 << place)
    }

    #[test]
    fn marks_are_those_of_single_steps() {
        let mut random = 1_u64;
        for round in 0..3_000 {
            let text: Vec<u8> = (0..round % 700)
                .map(|_| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    if (random >> 56) as usize > round % 256 {
                        random as u8
                    } else {
                        b"\"\\#]"[(random >> 40) as usize % 4]
                    }
                })
                .collect();
            for at in [0, 1, 63, 64, 65, text.len().saturating_sub(1), text.len(), text.len() + 9] {
                assert_eq!(marks_at::<b'"', b'\\'>(&text, at), naive(&text, at), "{at} {text:?}");
                let next = next_marks::<b'"', b'\\'>(&text, at);
                let place = (at..text.len()).find(|&place| matches!(text[place], b'"' | b'\\'));
                assert_eq!(next.map(|(base, marks)| base + first(marks)), place, "{at} {text:?}");
            }
        }
    }

    #[test]
    fn the_only_mark_is_found_anywhere() {
        for len in 0..900 {
            let text = [&vec![b'a'; len][..], b"\\", &[b'\xff'; 90]].concat();
            let (base, marks) = next_marks::<b'\\', b'\\'>(&text, 0).expect("a mark");
            assert_eq!((base + first(marks), marks.count_ones()), (len, 1));
            assert_eq!(next_marks::<b'\\', b'\\'>(&text, len + 1), None);
        }
    }
}
