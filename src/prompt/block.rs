//! Sixty-four bytes at a time: which of them are one of two given bytes, as the bits of a word.
//!
//! Without a branch for each byte, text full of quotes and escapes costs little more than plain text. A block may begin
//! anywhere. How the bits are found depends on the processor: `simd`, or `portable`.

#[cfg(not(target_arch = "x86_64"))]
use super::portable::{marks, search};
#[cfg(target_arch = "x86_64")]
use super::simd::{marks, search};
use memchr::memchr2;

pub(super) const BLOCK: usize = 64;
pub(super) type Block = [u8; BLOCK];

/// After this many blocks without a mark a call into `memchr` pays: it takes larger steps.
const NEAR_BLOCKS: usize = 16;

/// How many blocks come before the first one that `marks` marks, and its marks; none when no block has any.
#[inline(always)]
pub(super) fn first_marked(blocks: &[Block], marks: impl Fn(&Block) -> u64) -> (usize, u64) {
    for (before, block) in blocks.iter().enumerate() {
        let marks = marks(block);
        if marks != 0 {
            return (before, marks);
        }
    }
    (blocks.len(), 0)
}

/// The first `N` bytes of `rest`. Where it has fewer, `room` takes them, and zeros stand behind the end.
pub(super) fn window<'a, const N: usize>(rest: &'a [u8], room: &'a mut [u8; N]) -> &'a [u8; N] {
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
    let rest = text.get(at..).unwrap_or_default();
    rest.first_chunk().map_or_else(|| marks_of_rest::<ONE, OTHER>(rest), marks::<ONE, OTHER>)
}

/// The same for the text's last bytes, which fill no block.
#[inline(never)]
fn marks_of_rest<const ONE: u8, const OTHER: u8>(rest: &[u8]) -> u64 {
    marks::<ONE, OTHER>(window(rest, &mut [0; BLOCK]))
}

/// From `at` on, where the first block with a mark begins, and its marks; `None` when nothing is marked up to the end.
#[inline(always)]
pub(super) fn next_marks<const ONE: u8, const OTHER: u8>(text: &[u8], at: usize) -> Option<(usize, u64)> {
    let blocks: &[Block] = text.get(at..)?.as_chunks().0;
    let near = blocks.get(..NEAR_BLOCKS).unwrap_or(blocks);
    let (before, marks) = search::<ONE, OTHER>(near);
    let at = at + before * BLOCK;
    if marks != 0 {
        return Some((at, marks));
    }
    let at = at + memchr2(ONE, OTHER, text.get(at..)?)?;
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
