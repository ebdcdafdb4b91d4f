//! XXH3 of one chunk: 64 bits, with a secret of the deployment.
//!
//! Invariant: the values are the package's for the same secret. A chunk of the default size, which is nearly every one, is
//! hashed by code for exactly that size, which asks for no length and takes the secret from memory.

use xxhash_rust::xxh3::xxh3_64_with_secret;

use super::chunks::DEFAULT_CHUNK_BYTES;
use super::secret::HashKeys;

type Chunk = [u8; DEFAULT_CHUNK_BYTES];
const PAIRS: usize = DEFAULT_CHUNK_BYTES / 16;

/// The first words of the secret, in the order of their use.
pub(super) type Secret = [[u64; 2]; PAIRS];

const PRIME64_1: u64 = 0x9e37_79b1_85eb_ca87;
const PRIME_MX1: u64 = 0x1656_6791_9e37_79f9;

/// XXH3 of a chunk of the default size, by the way for 17 to 128 bytes: pairs of words from both ends towards the middle.
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
pub(super) fn of_any(chunk: &[u8], keys: &HashKeys) -> u64 {
    chunk.try_into().map_or_else(|_| xxh3_64_with_secret(chunk, keys.bytes()), |chunk| of(chunk, keys.pairs()))
}

/// Both halves of the product, as one.
#[inline(always)]
pub(super) fn product(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::super::secret::{HashSeed, UNKEYED};
    use super::*;
    use xxhash_rust::xxh3::xxh3_64;

    #[test]
    fn each_chunk_has_the_packages_hash() {
        let mut random = 1_u64;
        let keyed = HashKeys::new(&HashSeed::of_text("a secret of some length"));
        for keys in [&UNKEYED, &keyed] {
            let known = |chunk: &[u8]| xxh3_64_with_secret(chunk, keys.bytes());
            for round in 0..2_000_u32 {
                let mut chunk: Chunk = std::array::from_fn(|_| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (random >> 56) as u8
                });
                chunk[round as usize % DEFAULT_CHUNK_BYTES..].fill(round as u8);
                assert_eq!(of(&chunk, keys.pairs()), known(&chunk), "{chunk:?}");
                assert_eq!(xxh3_64_with_secret(&chunk, UNKEYED.bytes()), xxh3_64(&chunk));
            }
            // A word that is its secret makes its product zero.
            let secret: Vec<u8> = keys.pairs().iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
            for byte in 0..DEFAULT_CHUNK_BYTES {
                let mut chunk: Chunk = secret[..].try_into().expect("as long");
                chunk[byte] ^= 1;
                assert_eq!(of(&chunk, keys.pairs()), known(&chunk), "{byte}");
            }
        }
    }
}
