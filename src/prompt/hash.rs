//! XXH3 of one chunk: 64 bits, no seed.
//!
//! Invariant: the values are the package's. A chunk of the default size, which is nearly every one, is hashed by code for
//! exactly that size, which asks for no length and takes the secret from memory.

use xxhash_rust::xxh3::xxh3_64;

use super::chunks::DEFAULT_CHUNK_BYTES;

type Chunk = [u8; DEFAULT_CHUNK_BYTES];
const PAIRS: usize = DEFAULT_CHUNK_BYTES / 16;

pub(super) type Secret = [[u64; 2]; PAIRS];

/// The first words of XXH3's default secret (Yann Collet, xxHash 0.8), in the order of their use.
pub(super) const SECRET: &Secret = &[
    [0xbe4b_a423_396c_feb8, 0x1cad_21f7_2c81_017c],
    [0xdb97_9083_e96d_d4de, 0x1f67_b3b7_a4a4_4072],
    [0x78e5_c0cc_4ee6_79cb, 0x2172_ffcc_7dd0_5a82],
    [0x8e24_43f7_7446_08b8, 0x4c26_3a81_e690_35e0],
    [0xcb00_c391_bb52_283c, 0xa32e_531b_8b65_d088],
    [0x4ef9_0da2_9748_6471, 0xd8ac_dea9_46ef_1938],
    [0x3f34_9ce3_3f76_faa8, 0x1d4f_0bc7_c7bb_dcf9],
    [0x3159_b4cd_4be0_518a, 0x6473_78d9_c97e_9fc8],
];
const PRIME64_1: u64 = 0x9e37_79b1_85eb_ca87;
const PRIME_MX1: u64 = 0x1656_6791_9e37_79f9;

/// XXH3 of a chunk of the default size, by the way for 17 to 128 bytes: pairs of words from both ends towards the middle.
/// `secret` is [`SECRET`], from a place that the compiler cannot foresee: as constants, its words would cost an
/// instruction of ten bytes each.
#[inline(always)]
pub(super) fn of(chunk: &Chunk, secret: &Secret) -> u64 {
    let words = chunk.as_chunks().0;
    let mut sum = PRIME64_1.wrapping_mul(DEFAULT_CHUNK_BYTES as u64);
    for (number, secret) in secret.iter().enumerate() {
        let pair = if number % 2 == 0 { number / 2 } else { PAIRS - 1 - number / 2 };
        let word = |half: usize| u64::from_le_bytes(words[2 * pair + half]) ^ secret[half];
        sum = sum.wrapping_add(product(word(0), word(1)));
    }
    sum = (sum ^ sum >> 37).wrapping_mul(PRIME_MX1);
    sum ^ sum >> 32
}

/// XXH3 of a chunk of any size.
#[inline(never)]
pub(super) fn of_any(chunk: &[u8], secret: &Secret) -> u64 {
    chunk.try_into().map_or_else(|_| xxh3_64(chunk), |chunk| of(chunk, secret))
}

/// Both halves of the product, as one.
#[inline(always)]
pub(super) fn product(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chunk_has_the_packages_hash() {
        let mut random = 1_u64;
        for round in 0..2_000_u32 {
            let mut chunk: Chunk = std::array::from_fn(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 56) as u8
            });
            chunk[round as usize % DEFAULT_CHUNK_BYTES..].fill(round as u8);
            assert_eq!(of(&chunk, SECRET), xxh3_64(&chunk), "{chunk:?}");
        }
        // A word that is its secret makes its product zero.
        let secret: Vec<u8> = SECRET.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
        for byte in 0..DEFAULT_CHUNK_BYTES {
            let mut chunk: Chunk = secret[..].try_into().expect("as long");
            chunk[byte] ^= 1;
            assert_eq!(of(&chunk, SECRET), xxh3_64(&chunk), "{byte}");
        }
    }
}
