//! The marks of a block by vector instructions of x86-64: thirty-two bytes at once where the processor can, sixteen else.
//!
//! Knows bytes alone. Invariant: the answers are those of `portable`, which other processors use.
#![allow(unsafe_code, reason = "vector instructions may be called only where the processor has them")]

use super::block::{Block, first_marked};
use std::arch::x86_64::{
    _MM_HINT_T0, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_or_si128, _mm_prefetch, _mm_set1_epi8,
    _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_movemask_epi8, _mm256_or_si256, _mm256_set1_epi8,
};

/// Bit `i` says whether byte `i` is `ONE` or `OTHER`.
#[inline(always)]
pub(super) fn marks<const ONE: u8, const OTHER: u8>(block: &Block) -> u64 {
    // SAFETY: SSE2 is a part of x86-64.
    unsafe { marks_by_sse2::<ONE, OTHER>(block) }
}

/// How many blocks come before the first one with a mark, and its marks; none when no block has any.
#[inline(always)]
pub(super) fn search<const ONE: u8, const OTHER: u8>(blocks: &[Block]) -> (usize, u64) {
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, as was just asked.
        unsafe { search_by_avx2::<ONE, OTHER>(blocks) }
    } else {
        first_marked(blocks, marks::<ONE, OTHER>)
    }
}

/// Two lines of the text from `at` on are going to be read.
#[inline(always)]
pub(super) fn soon(text: &[u8], at: usize) {
    for line in [at, at + 64] {
        if let Some(byte) = text.get(line) {
            // SAFETY: a hint, which reads nothing; the address is that of a byte.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(byte).cast()) }
        }
    }
}

#[inline]
#[target_feature(enable = "sse2")]
fn marks_by_sse2<const ONE: u8, const OTHER: u8>(block: &Block) -> u64 {
    let (one, other) = (_mm_set1_epi8(ONE as i8), _mm_set1_epi8(OTHER as i8));
    let (quarters, _) = block.as_chunks::<16>();
    quarters.iter().rev().fold(0, |marks, quarter| {
        // SAFETY: a quarter has the sixteen bytes that are loaded, and they may begin anywhere.
        let bytes = unsafe { _mm_loadu_si128(quarter.as_ptr().cast()) };
        let marked = _mm_or_si128(_mm_cmpeq_epi8(bytes, one), _mm_cmpeq_epi8(bytes, other));
        marks << 16 | u64::from(_mm_movemask_epi8(marked) as u16)
    })
}

#[target_feature(enable = "avx2")]
fn search_by_avx2<const ONE: u8, const OTHER: u8>(blocks: &[Block]) -> (usize, u64) {
    first_marked(blocks, |block| marks_by_avx2::<ONE, OTHER>(block))
}

#[inline]
#[target_feature(enable = "avx2")]
fn marks_by_avx2<const ONE: u8, const OTHER: u8>(block: &Block) -> u64 {
    let (one, other) = (_mm256_set1_epi8(ONE as i8), _mm256_set1_epi8(OTHER as i8));
    let (halves, _) = block.as_chunks::<32>();
    halves.iter().rev().fold(0, |marks, half| {
        // SAFETY: a half has the thirty-two bytes that are loaded, and they may begin anywhere.
        let bytes = unsafe { _mm256_loadu_si256(half.as_ptr().cast()) };
        let marked = _mm256_or_si256(_mm256_cmpeq_epi8(bytes, one), _mm256_cmpeq_epi8(bytes, other));
        marks << 32 | u64::from(_mm256_movemask_epi8(marked) as u32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::portable;

    #[test]
    fn all_ways_give_the_same_marks() {
        let mut random = 1_u64;
        for round in 0..20_000 {
            let blocks: [Block; 3] = std::array::from_fn(|_| {
                std::array::from_fn(|_| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    if (random >> 32) as u32 % 4_000 < round {
                        b"\"\\#]"[(random >> 40) as usize % 4]
                    } else {
                        random as u8
                    }
                })
            });
            let known = portable::search::<b'"', b'\\'>(&blocks);
            assert_eq!(first_marked(&blocks, marks::<b'"', b'\\'>), known, "{blocks:?}");
            assert_eq!(search::<b'"', b'\\'>(&blocks), known, "{blocks:?}");
            assert_eq!(search::<b'\\', b'\\'>(&blocks), portable::search::<b'\\', b'\\'>(&blocks), "{blocks:?}");
        }
    }
}
