//! Chained chunk hashes: the key as the trie wants it.
//!
//! Knows bytes alone, not where they come from. Invariant: the key depends on the secret, the seed and the bytes fed, not on how
//! they were cut into pieces.

use super::hash;
#[cfg(not(target_arch = "x86_64"))]
use super::portable::soon;
use super::secret::HashKeys;
#[cfg(target_arch = "x86_64")]
use super::simd::soon;

pub const DEFAULT_CHUNK_BYTES: usize = 128;
/// How far ahead of what is hashed the text is asked for. The processor foresees a straight walk through memory only up to
/// the end of a page.
const AHEAD_BYTES: usize = 1024;
/// Below this a hash would be half as large as what it stands for.
pub const MIN_CHUNK_BYTES: usize = 16;

/// `hash_i = fold(hash_{i-1}, xxh3_64(chunk_i))`, with the deployment's secret, the first folded into the namespace, so that each hash names the whole
/// prefix up to it. A rest that fills no chunk is left out: the next turn of a conversation then extends the key.
#[derive(Debug)]
pub struct Chunks {
    chunk_bytes: usize,
    /// The last hash, or the seed before the first chunk.
    link: u64,
    /// Room for a chunk; its first bytes are those of the chunk that is not full yet.
    carry: Box<[u8]>,
    /// Less than a chunk between two calls.
    carried: usize,
    key: Vec<u64>,
    bytes: u64,
    keys: &'static HashKeys,
    /// Images and the like, which are in the key by their digests, and what they have in the body.
    media: u32,
    media_bytes: u64,
}

impl Chunks {
    /// # Panics
    /// When `chunk_bytes` is under [`MIN_CHUNK_BYTES`].
    pub fn new(chunk_bytes: usize, keys: &'static HashKeys) -> Self {
        assert!(chunk_bytes >= MIN_CHUNK_BYTES, "a chunk has at least {MIN_CHUNK_BYTES} bytes");
        Self {
            chunk_bytes,
            link: 0,
            carry: vec![0; chunk_bytes].into(),
            carried: 0,
            key: Vec::new(),
            bytes: 0,
            media: 0,
            media_bytes: 0,
            keys,
        }
    }

    /// Begins another key; forgets the one before, keeps its memory.
    pub fn start(&mut self, seed: u64) {
        self.link = seed;
        self.carried = 0;
        self.key.clear();
        self.bytes = 0;
        self.media = 0;
        self.media_bytes = 0;
    }

    /// Whole chunks are hashed where they stand; only what crosses a chunk border is copied.
    #[inline(always)]
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        match self.carry.get_mut(self.carried..self.carried + bytes.len()) {
            Some(room) if self.carried + bytes.len() < self.chunk_bytes => {
                room.copy_from_slice(bytes);
                self.carried += bytes.len();
            }
            _ => self.feed_across(bytes),
        }
    }

    /// Feeds the first `len` of a few bytes. Where the chunk has room for all of them, nothing depends on how many count.
    #[inline(always)]
    pub(super) fn feed_few<const N: usize>(&mut self, bytes: &[u8; N], len: usize) {
        if self.carried + len < self.chunk_bytes
            && let Some(room) = self.carry.get_mut(self.carried..).and_then(<[u8]>::first_chunk_mut)
        {
            *room = *bytes;
            self.carried += len;
            self.bytes += len as u64;
        } else {
            self.feed(&bytes[..len.min(N)]);
        }
    }

    /// At least one chunk becomes full.
    #[inline(never)]
    fn feed_across(&mut self, mut bytes: &[u8]) {
        if self.carried > 0 {
            let (head, rest) = bytes.split_at(self.chunk_bytes - self.carried);
            self.carry[self.carried..].copy_from_slice(head);
            self.link = fold(self.link, hash::of_any(&self.carry, self.keys));
            self.key.push(self.link);
            bytes = rest;
        }
        let keys = self.keys;
        let rest = if self.chunk_bytes == DEFAULT_CHUNK_BYTES {
            let (whole, rest) = bytes.as_chunks();
            let secret = keys.pairs();
            let hashes = whole.iter().enumerate().map(|(number, chunk)| {
                soon(bytes, number * DEFAULT_CHUNK_BYTES + AHEAD_BYTES);
                hash::of(chunk, secret)
            });
            self.key.extend(links(&mut self.link, hashes));
            rest
        } else {
            let whole = bytes.chunks_exact(self.chunk_bytes);
            let rest = whole.remainder();
            self.key.extend(links(&mut self.link, whole.map(|chunk| hash::of_any(chunk, keys))));
            rest
        };
        self.carry[..rest.len()].copy_from_slice(rest);
        self.carried = rest.len();
    }

    /// One hash for each whole chunk so far.
    pub fn key(&self) -> &[u64] {
        &self.key
    }

    /// Bytes fed since `start`, the rest that fills no chunk included: the length of the prompt as the key sees it.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn keys(&self) -> &'static HashKeys {
        self.keys
    }

    /// Something is fed by its digest that has so many bytes in the body.
    pub(super) fn count_medium(&mut self, bytes: usize) {
        self.media += 1;
        self.media_bytes += bytes as u64;
    }

    /// Images and the like since `start`.
    pub fn media(&self) -> u32 {
        self.media
    }

    /// What they have in the body, of which the key has no more than digests.
    pub fn media_bytes(&self) -> u64 {
        self.media_bytes
    }

    pub fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }
}

/// One link of the chain: both halves of a 128-bit product, as in wyhash (Wang Yi, 2019). The chunks' own hashes do not
/// depend on each other, so that the processor works on several at once; only this step waits for the one before.
fn fold(link: u64, hash: u64) -> u64 {
    hash::product(link ^ hash, 0x9e37_79b9_7f4a_7c15)
}

/// The chain from `link` on.
#[inline(always)]
fn links(link: &mut u64, hashes: impl ExactSizeIterator<Item = u64>) -> impl ExactSizeIterator<Item = u64> {
    hashes.map(|hash| {
        *link = fold(*link, hash);
        *link
    })
}

#[cfg(test)]
mod tests {
    use super::super::secret::UNKEYED;
    use super::*;
    use xxhash_rust::xxh3::xxh3_64;

    fn chained(seed: u64, bytes: &[u8], chunk_bytes: usize) -> Vec<u64> {
        let mut link = seed;
        let mut key = Vec::new();
        for chunk in bytes.chunks(chunk_bytes).filter(|chunk| chunk.len() == chunk_bytes) {
            link = fold(link, xxh3_64(chunk));
            key.push(link);
        }
        key
    }

    #[test]
    fn any_cut_of_the_bytes_gives_the_same_key() {
        let bytes: Vec<u8> = (0..200_u32).map(|i| (i * 7 + i / 16) as u8).collect();
        for chunk_bytes in [16, 17, 64, 128, 199, 200, 201] {
            let mut chunks = Chunks::new(chunk_bytes, &UNKEYED);
            for first in 0..=bytes.len() {
                for second in [first, (first + 1).min(200), (first + 40).min(200), 200] {
                    chunks.start(9);
                    chunks.feed(&bytes[..first]);
                    chunks.feed(&bytes[first..second]);
                    chunks.feed(&bytes[second..]);
                    assert_eq!(chunks.key(), chained(9, &bytes, chunk_bytes), "cut at {first} and {second}");
                    assert_eq!(chunks.bytes(), 200);
                }
            }
        }
    }

    #[test]
    fn a_hash_names_the_whole_prefix() {
        let key_of = |seed: u64, bytes: &[u8]| {
            let mut chunks = Chunks::new(16, &UNKEYED);
            chunks.start(seed);
            chunks.feed(bytes);
            chunks.key().to_vec()
        };
        let same_tail = [key_of(1, &[b'a'; 48]), key_of(1, &[&[b'b'; 16][..], &[b'a'; 32]].concat())];
        assert!(same_tail[0].iter().zip(&same_tail[1]).all(|(one, other)| one != other));
        assert_ne!(key_of(1, &[b'a'; 16]), key_of(2, &[b'a'; 16]));
        assert_eq!(key_of(1, &[b'a'; 48])[..2], key_of(1, &[b'a'; 47])[..]);
    }

    #[test]
    #[should_panic(expected = "at least 16 bytes")]
    fn a_tiny_chunk_is_refused() {
        Chunks::new(15, &UNKEYED);
    }
}
