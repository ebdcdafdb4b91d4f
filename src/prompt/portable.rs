//! The marks of a block, for processors that `simd` knows nothing of, and as its twin.
//!
//! Knows bytes alone. The loops over arrays are shaped so that the compiler makes vector code of them.

use super::block::{BLOCK, Block, first_marked};

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

/// Bit `i` says whether byte `i` is `ONE` or `OTHER`. A function by itself: merged with what stands around it, the compiler
/// no longer sees that the sum of eight bytes is one instruction.
#[inline(never)]
pub(super) fn marks<const ONE: u8, const OTHER: u8>(block: &Block) -> u64 {
    let marked: Block = std::array::from_fn(|at| if (block[at] == ONE) | (block[at] == OTHER) { BITS[at] } else { 0 });
    // A sum of distinct bits is their union.
    let union = |bits: &[u8]| bits.iter().fold(0_u8, |sum, &bit| sum.wrapping_add(bit));
    u64::from_le_bytes(std::array::from_fn(|word| union(&marked[word * 8..][..8])))
}

/// Nothing is asked for ahead.
#[cfg_attr(target_arch = "x86_64", expect(dead_code, reason = "the twin of what `simd` has"))]
pub(super) fn soon(_: &[u8], _: usize) {}

/// How many blocks come before the first one with a mark, and its marks; none when no block has any.
pub(super) fn search<const ONE: u8, const OTHER: u8>(blocks: &[Block]) -> (usize, u64) {
    first_marked(blocks, marks::<ONE, OTHER>)
}
