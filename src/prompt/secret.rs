//! The secret of a deployment, without which nobody can make two texts that hash alike.
//!
//! A router believes that a backend holds what has the same hashes. Whoever knows the hash function can make texts that
//! collide, and so lead others' requests astray. So each chunk is hashed with words that are derived from a seed nobody outside
//! knows, and so are the namespace and the digests of media: a collision under one seed means nothing under another.
//!
//! Invariant: equal seeds make equal keys, in every process and build: keys are compared over lives of the router. A seed is
//! never printed.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::hash::Secret;

/// Bytes of a secret as XXH3 takes it.
const SECRET_BYTES: usize = 192;

/// From which the keys are derived.
#[derive(Clone, PartialEq, Eq)]
pub struct HashSeed([u8; HashSeed::BYTES]);

impl fmt::Debug for HashSeed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("HashSeed(…)")
    }
}

impl HashSeed {
    pub const BYTES: usize = 32;

    /// Of words that nobody can foresee.
    pub fn of_words(words: [u64; Self::BYTES / 8]) -> Self {
        let mut bytes = [0; Self::BYTES];
        bytes.as_chunks_mut().0.iter_mut().zip(words).for_each(|(place, word)| *place = word.to_le_bytes());
        HashSeed(bytes)
    }

    /// The same for the same text, which should have as many bits of chance as the seed is to have.
    pub fn of_text(text: &str) -> Self {
        Self::of_words(std::array::from_fn(|at| xxh3_64_with_seed(text.as_bytes(), at as u64)))
    }

    /// As another life of the router has kept it. `None` for zeros, which no seed is made of.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Option<Self> {
        (bytes != [0; Self::BYTES]).then_some(HashSeed(bytes))
    }

    /// To be kept where only its owner can read it.
    pub fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

/// What hashing needs of a seed.
pub struct HashKeys {
    /// The first words of `bytes`.
    pairs: Secret,
    bytes: [u8; SECRET_BYTES],
    pub(super) namespace: u64,
    pub(super) media: u64,
}

impl fmt::Debug for HashKeys {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("HashKeys(…)")
    }
}

/// XXH3's own secret (Yann Collet, xxHash 0.8), which everybody knows: for tests and measurements.
pub static UNKEYED: HashKeys = HashKeys::of_secret(
    [
        0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4,
        0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
        0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43,
        0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
        0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
        0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
        0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78,
        0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
        0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16,
        0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
        0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
    ],
    0,
    0,
);

impl HashKeys {
    pub fn new(seed: &HashSeed) -> Self {
        let word = |number: u64| xxh3_64_with_seed(seed.bytes(), number);
        let mut bytes = [0; SECRET_BYTES];
        for (place, number) in bytes.as_chunks_mut().0.iter_mut().zip(2..) {
            *place = word(number).to_le_bytes();
        }
        Self::of_secret(bytes, word(0), word(1))
    }

    const fn of_secret(bytes: [u8; SECRET_BYTES], namespace: u64, media: u64) -> Self {
        let mut pairs: Secret = [[0; 2]; _];
        let words = bytes.as_chunks::<8>().0;
        let mut at = 0;
        while at < 2 * pairs.len() {
            pairs[at / 2][at % 2] = u64::from_le_bytes(words[at]);
            at += 1;
        }
        HashKeys { pairs, bytes, namespace, media }
    }

    #[inline(always)]
    pub(super) fn pairs(&self) -> &Secret {
        &self.pairs
    }

    pub(super) fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.bytes
    }

    /// The process's part of every [`namespace`](super::namespace).
    pub fn namespace(&self) -> u64 {
        self.namespace
    }
}

#[cfg(test)]
mod tests {
    use super::super::Chunks;
    use super::super::hash;
    use super::*;

    fn keys(text: &str) -> &'static HashKeys {
        Box::leak(Box::new(HashKeys::new(&HashSeed::of_text(text))))
    }

    /// Chunks that collide under `keys`: where the first word is its secret, the second one counts for nothing.
    fn colliding(keys: &HashKeys) -> Vec<[u8; 128]> {
        let chunk = |number: u8| {
            let mut chunk = [b'x'; 128];
            chunk[..8].copy_from_slice(&keys.pairs()[0][0].to_le_bytes());
            chunk[8..16].fill(number);
            chunk
        };
        (0..200).map(chunk).collect()
    }

    fn hashes(chunks: &[[u8; 128]], keys: &'static HashKeys) -> Vec<u64> {
        let mut hasher = Chunks::new(128, keys);
        let hash = |chunk: &[u8; 128]| {
            hasher.start(7);
            hasher.feed(chunk);
            hasher.key()[0]
        };
        let mut hashes: Vec<u64> = chunks.iter().map(hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        hashes
    }

    #[test]
    fn what_collides_under_one_seed_does_not_under_another() {
        for known in [&UNKEYED, keys("0123456789abcdef")] {
            let chunks = colliding(known);
            assert_eq!(hashes(&chunks, known).len(), 1, "they collide where the seed is known");
            for other in ["0123456789abcdeg", "another secret seed", ""] {
                assert_eq!(hashes(&chunks, keys(other)).len(), chunks.len(), "{other}");
            }
        }
        assert!(hash::of(&[b'x'; 128], UNKEYED.pairs()) != hash::of(&[b'x'; 128], keys("one").pairs()));
        for bytes in [16, 64, 200, 300] {
            let text = vec![b'x'; bytes];
            assert_ne!(hash::of_any(&text, keys("one")), hash::of_any(&text, keys("two")), "{bytes}");
        }
    }

    #[test]
    fn a_seed_is_kept_and_never_shown() {
        let seed = HashSeed::of_text("0123456789abcdef");
        assert_eq!(HashSeed::from_bytes(*seed.bytes()), Some(seed.clone()));
        assert_eq!(HashSeed::from_bytes([0; HashSeed::BYTES]), None);
        assert_eq!(format!("{seed:?} {:?}", HashKeys::new(&seed)), "HashSeed(…) HashKeys(…)");
        assert_ne!(seed, HashSeed::of_text("0123456789abcdeF"));
    }
}
