//! What the trie believes as a stream of bytes: for the state file, and for a process that takes over from this one.
//!
//! ```text
//! | "trieway\0" | version u32 | chunk size u32 | seed of the hashes 32 × u8 | backends u16 |
//! | backends × { slot u16, start f64, url length u16, url } |
//! | blocks × { length u32, runs as the trie exports them } | 0 u32 | XXH3 of everything before u64 |
//! ```
//!
//! All little-endian. Backends are named by URL: the reader's own list says which slot that is, and what it does not know is
//! left out. A start time that is not known is NaN. The seed is a secret: whoever may read these bytes can make prompts that
//! collide.
//!
//! Invariants: reading is bounded by a limit, whatever the bytes say, it takes a time that grows with their number and no
//! faster, and a block at a time is in memory. When anything is
//! wrong, the checksum at the end included, nothing that was read is believed.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Write};

use xxhash_rust::xxh3::Xxh3;

use crate::config::MAX_BACKENDS;
use crate::prompt::HashSeed;
use crate::trie::{Holder, Trie};

const MAGIC: [u8; 8] = *b"trieway\0";

/// To be raised when the format changes, or the way in which a prompt becomes chunk hashes.
const VERSION: u32 = 2;

/// More than any step of an export makes.
const MAX_BLOCK_BYTES: usize = 16 << 20;
const MAX_URL_BYTES: usize = 4096;

/// A backend as the stream names it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Known {
    pub(super) slot: u16,
    pub(super) url: String,
    /// Start of the engine's process, if it says so.
    pub(super) start_s: Option<f64>,
}

/// What was read.
#[derive(Debug, PartialEq)]
pub(super) struct Restored {
    /// The backends that are known here, under the slots that they have here.
    pub(super) backends: Vec<Known>,
    pub(super) runs: usize,
}

/// Writes what `trie` believes of these backends; returns how many bytes that is. May run beside everything else.
pub(super) fn write(
    trie: &Trie,
    chunk_bytes: usize,
    seed: &HashSeed,
    backends: &[Known],
    out: impl Write,
) -> io::Result<u64> {
    let mut out = Sum { inner: out, hash: Xxh3::new(), bytes: 0 };
    out.write_all(&MAGIC)?;
    out.write_all(&VERSION.to_le_bytes())?;
    out.write_all(&(chunk_bytes as u32).to_le_bytes())?;
    out.write_all(seed.bytes())?;
    out.write_all(&(backends.len() as u16).to_le_bytes())?;
    for backend in backends {
        out.write_all(&backend.slot.to_le_bytes())?;
        out.write_all(&backend.start_s.unwrap_or(f64::NAN).to_le_bytes())?;
        out.write_all(&(backend.url.len() as u16).to_le_bytes())?;
        out.write_all(backend.url.as_bytes())?;
    }
    let (mut block, mut next) = (Vec::new(), Some(0));
    while let Some(from) = next {
        block.clear();
        next = trie.export(from, &mut block);
        if !block.is_empty() {
            out.write_all(&(block.len() as u32).to_le_bytes())?;
            out.write_all(&block)?;
        }
    }
    out.write_all(&0u32.to_le_bytes())?;
    let sum = out.hash.digest();
    out.inner.write_all(&sum.to_le_bytes())?;
    out.inner.flush()?;
    Ok(out.bytes + size_of_val(&sum) as u64)
}

/// Reads what [`write`] wrote, `limit` bytes at most, into `trie`. `adopt` is told the seed
/// of the hashes and says whether it is the one in use here. `slots` gives the slots that these backends have here.
///
/// # Errors
/// Why the bytes are of no use; the trie then believes nothing of what was read.
pub(super) fn read(
    trie: &Trie,
    chunk_bytes: usize,
    limit: u64,
    input: impl Read,
    adopt: impl FnOnce(&HashSeed) -> bool,
    slots: impl FnOnce(&[Known]) -> Vec<Option<u16>>,
) -> Result<Restored, String> {
    let mut input = Sum { inner: input.take(limit), hash: Xxh3::new(), bytes: 0 };
    let mut holders: Vec<(u16, Holder)> = Vec::new();
    let read = read_header(&mut input, chunk_bytes, adopt).and_then(|backends| {
        let mut restored = Restored { backends: Vec::new(), runs: 0 };
        let slots = slots(&backends);
        for (known, slot) in backends.into_iter().zip(slots) {
            let Some(here) = slot else { continue };
            holders.push((known.slot, Holder { slot: here, generation: trie.generation(here) }));
            restored.backends.push(Known { slot: here, ..known });
        }
        restored.runs = read_runs(&mut input, trie, &holders)?;
        Ok(restored)
    });
    if read.is_err() {
        // What came before the fault was taken already.
        for (_, holder) in &holders {
            trie.raise(holder.slot);
        }
    }
    read
}

/// The seed by which the hashes of a state were made.
///
/// # Errors
/// Why the bytes are of no use.
pub(super) fn read_seed(input: impl Read, chunk_bytes: usize) -> Result<HashSeed, String> {
    seed(&mut Sum { inner: input, hash: Xxh3::new(), bytes: 0 }, chunk_bytes)
}

fn seed(input: &mut Sum<impl Read>, chunk_bytes: usize) -> Result<HashSeed, String> {
    if input.array::<8>()? != MAGIC {
        return Err("it is not a state of trieway".to_owned());
    }
    let version = u32::from_le_bytes(input.array()?);
    if version != VERSION {
        return Err(format!("it has version {version}, and this is version {VERSION}"));
    }
    let chunk = u32::from_le_bytes(input.array()?);
    if chunk as usize != chunk_bytes {
        return Err(format!("it was made with --prefix-chunk-size {chunk}"));
    }
    HashSeed::from_bytes(input.array()?).ok_or_else(|| "it has no seed".to_owned())
}

fn read_header(
    input: &mut Sum<impl Read>,
    chunk_bytes: usize,
    adopt: impl FnOnce(&HashSeed) -> bool,
) -> Result<Vec<Known>, String> {
    if !adopt(&seed(input, chunk_bytes)?) {
        return Err("it was made with another --prefix-hash-seed".to_owned());
    }
    let count = u16::from_le_bytes(input.array()?);
    if usize::from(count) > MAX_BACKENDS {
        return Err(format!("it names {count} backends"));
    }
    let (mut backends, mut slots, mut urls) = (Vec::new(), HashSet::new(), HashSet::new());
    for _ in 0..count {
        let backend = read_backend(input)?;
        if !slots.insert(backend.slot) || !urls.insert(backend.url.clone()) {
            return Err("it names a backend twice".to_owned());
        }
        backends.push(backend);
    }
    Ok(backends)
}

fn read_backend(input: &mut Sum<impl Read>) -> Result<Known, String> {
    let slot = u16::from_le_bytes(input.array()?);
    let start_s = f64::from_le_bytes(input.array()?);
    let length = usize::from(u16::from_le_bytes(input.array()?));
    if length > MAX_URL_BYTES {
        return Err("a backend's URL is too long".to_owned());
    }
    let mut url = vec![0; length];
    input.fill(&mut url)?;
    let url = String::from_utf8(url).map_err(|_| "a backend's URL is not UTF-8".to_owned())?;
    Ok(Known { slot, url, start_s: Some(start_s).filter(|start| start.is_finite()) })
}

fn read_runs(input: &mut Sum<impl Read>, trie: &Trie, holders: &[(u16, Holder)]) -> Result<usize, String> {
    let holders: HashMap<u16, Holder> = holders.iter().copied().collect();
    let holder = |slot: u16| holders.get(&slot).copied();
    let (mut runs, mut block) = (0, Vec::new());
    loop {
        let length = u32::from_le_bytes(input.array()?) as usize;
        if length == 0 {
            break;
        }
        if length > MAX_BLOCK_BYTES {
            return Err(format!("a block of {length} bytes"));
        }
        block.resize(length, 0);
        input.fill(&mut block)?;
        runs += trie.import(&block, holder).map_err(|error| error.to_string())?;
    }
    let sum = input.hash.digest();
    if u64::from_le_bytes(input.array()?) != sum {
        return Err("its checksum is wrong".to_owned());
    }
    Ok(runs)
}

/// A stream that is summed up as it goes by.
struct Sum<S> {
    inner: S,
    hash: Xxh3,
    bytes: u64,
}

impl<W: Write> Sum<W> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.inner.write_all(bytes)
    }
}

impl<R: Read> Sum<R> {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), String> {
        self.inner.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => "it is cut off".to_owned(),
            _ => error.to_string(),
        })?;
        self.hash.update(bytes);
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trie::{MIN_MEMORY_BYTES, Matches, Options};

    const LIMIT: u64 = 16 << 20;

    fn trie() -> Trie {
        Trie::new(&Options { memory_bytes: MIN_MEMORY_BYTES, slots: 8 }).expect("valid")
    }

    fn insert(trie: &Trie, key: &[u64], slot: u16) {
        trie.insert(key, Holder { slot, generation: trie.generation(slot) });
    }

    fn chunks(trie: &Trie, key: &[u64], slot: u16) -> u32 {
        let mut found = Matches::new(8);
        trie.lookup(key, &mut found);
        found.chunks(slot)
    }

    fn key(of: u64, chunks: u64) -> Vec<u64> {
        (0..chunks).map(|at| xxhash_rust::xxh3::xxh3_64_with_seed(&at.to_le_bytes(), of)).collect()
    }

    fn saved() -> Vec<u8> {
        let trie = trie();
        insert(&trie, &key(1, 100), 0);
        insert(&trie, &key(2, 50), 1);
        let known = [(0, "http://a:1", Some(7.5)), (1, "http://b:2", None)].map(|(slot, url, start_s)| Known {
            slot,
            url: url.to_owned(),
            start_s,
        });
        let mut bytes = Vec::new();
        assert_eq!(write(&trie, 128, &seed(), &known, &mut bytes).expect("written"), bytes.len() as u64);
        bytes
    }

    fn seed() -> HashSeed {
        HashSeed::of_text("the seed of this test")
    }

    fn own(other: &HashSeed) -> bool {
        *other == seed()
    }

    /// The two have other slots here.
    fn slots(known: &[Known]) -> Vec<Option<u16>> {
        let here = ["http://b:2", "http://c:3", "http://a:1"];
        known.iter().map(|known| here.iter().position(|url| *url == known.url).map(|at| at as u16)).collect()
    }

    #[test]
    fn backends_keep_their_prefixes_under_other_slots() {
        let after = trie();
        let restored = read(&after, 128, LIMIT, &saved()[..], own, slots).expect("valid");
        assert_eq!(restored.backends[0], Known { slot: 2, url: "http://a:1".to_owned(), start_s: Some(7.5) });
        assert_eq!((restored.backends[1].slot, restored.backends[1].start_s), (0, None));
        assert_eq!([0, 1, 2].map(|slot| chunks(&after, &key(1, 100), slot)), [0, 0, 100]);
        assert_eq!([0, 1, 2].map(|slot| chunks(&after, &key(2, 50), slot)), [50, 0, 0]);
        let nobody = trie();
        let restored = read(&nobody, 128, LIMIT, &saved()[..], own, |known| vec![None; known.len()]).expect("valid");
        assert_eq!((restored, nobody.stats().nodes), (Restored { backends: Vec::new(), runs: 0 }, 0));
    }

    #[test]
    fn nothing_is_believed_of_bytes_that_are_cut_off_or_changed_anywhere() {
        let (bytes, after) = (saved(), trie());
        for at in 0..bytes.len() {
            assert!(read(&after, 128, LIMIT, &bytes[..at], own, slots).is_err(), "cut at {at}");
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert!(read(&after, 128, LIMIT, &changed[..], own, slots).is_err(), "changed at {at}");
        }
        assert!(read(&after, 128, bytes.len() as u64 - 1, &bytes[..], own, slots).is_err(), "beyond the limit");
        for slot in 0..3 {
            assert_eq!((chunks(&after, &key(1, 100), slot), chunks(&after, &key(2, 50), slot)), (0, 0));
        }
        after.check().expect("sound");
    }

    #[test]
    fn what_is_wrong_is_said() {
        let why = |bytes: &[u8], chunk_bytes| read(&trie(), chunk_bytes, LIMIT, bytes, own, slots).expect_err("bad");
        assert_eq!(why(b"something else", 128), "it is not a state of trieway");
        assert_eq!(why(&saved(), 64), "it was made with --prefix-chunk-size 128");
        let mut other = saved();
        other[8] = 9;
        assert_eq!(why(&other, 128), "it has version 9, and this is version 2");
        let mut unseeded = saved();
        unseeded[16..48].fill(0);
        assert_eq!(why(&unseeded, 128), "it has no seed");
        let told = read(&trie(), 128, LIMIT, &saved()[..], |_| false, slots).expect_err("bad");
        assert_eq!(told, "it was made with another --prefix-hash-seed");
        assert_eq!(read_seed(&saved()[..], 128), Ok(seed()));
        let mut flipped = saved();
        let last = flipped.len() - 1;
        flipped[last] ^= 1;
        assert_eq!(why(&flipped, 128), "its checksum is wrong");
    }

    /// A file of this header's backends and one block.
    fn hostile(backends: &[(u16, &str)], block: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(128_u32.to_le_bytes());
        bytes.extend(seed().bytes());
        bytes.extend((backends.len() as u16).to_le_bytes());
        for (slot, url) in backends {
            bytes.extend(slot.to_le_bytes());
            bytes.extend(f64::NAN.to_le_bytes());
            bytes.extend((url.len() as u16).to_le_bytes());
            bytes.extend(url.as_bytes());
        }
        if !block.is_empty() {
            bytes.extend((block.len() as u32).to_le_bytes());
            bytes.extend(block);
        }
        bytes.extend(0_u32.to_le_bytes());
        bytes.extend(xxhash_rust::xxh3::xxh3_64(&bytes).to_le_bytes());
        bytes
    }

    fn run(hash: u64, marks: usize, slot: impl Fn(usize) -> u16) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(1_u16.to_le_bytes());
        bytes.extend((marks as u16).to_le_bytes());
        bytes.extend(0_u32.to_le_bytes());
        for mark in 0..marks {
            bytes.extend(slot(mark).to_le_bytes());
            bytes.push(1);
            bytes.extend(0_u32.to_le_bytes());
        }
        bytes.extend(hash.to_le_bytes());
        bytes
    }

    #[test]
    fn what_would_take_more_than_its_length_is_refused() {
        let all_here = |known: &[Known]| vec![Some(1); known.len()];
        let why = |bytes: &[u8]| read(&trie(), 128, LIMIT, bytes, own, all_here).expect_err("bad");
        let many: Vec<_> =
            (0..=u16::MAX).take(MAX_BACKENDS + 1).map(|slot| (slot, format!("http://h:{slot}"))).collect();
        let many: Vec<_> = many.iter().map(|(slot, url)| (*slot, url.as_str())).collect();
        assert_eq!(why(&hostile(&many, &[])), format!("it names {} backends", many.len()));
        assert_eq!(why(&hostile(&[(0, "http://a:1"), (1, "http://a:1")], &[])), "it names a backend twice");
        assert_eq!(why(&hostile(&[(0, "http://a:1"), (0, "http://b:1")], &[])), "it names a backend twice");
        let marks = run(7, 65_535, |_| 0);
        assert_eq!(why(&hostile(&[(0, "http://a:1")], &marks)), "a run with 65535 marks, more than one a backend");
        let twice = run(7, 2, |_| 0);
        assert_eq!(why(&hostile(&[(0, "http://a:1")], &twice)), "a run with 2 marks, more than one a backend");
        assert!(
            read(&trie(), 128, LIMIT, &hostile(&[(0, "http://a:1")], &run(7, 1, |_| 0))[..], own, all_here).is_ok()
        );
    }

    /// Runs that all go to one place of the trie, which costs most: eight times as many take about eight times as long.
    #[test]
    fn the_time_of_the_worst_bytes_grows_with_their_length() {
        let time = |runs: u64| {
            let block: Vec<u8> = (0..runs).flat_map(|_| run(7, 1, |_| 0)).collect();
            let bytes = hostile(&[(0, "http://a:1")], &block);
            let took = (0..3).map(|_| {
                let (trie, began) = (trie(), std::time::Instant::now());
                read(&trie, 128, LIMIT, &bytes[..], own, |known| vec![Some(1); known.len()]).expect("valid");
                began.elapsed()
            });
            took.min().expect("three times")
        };
        let (few, many) = (time(10_000), time(80_000));
        assert!(many < 40 * few, "{few:?} for 10,000 runs and {many:?} for 80,000");
    }

    /// Whoever changes how prompts become chunk hashes must raise [`VERSION`], and put the new hash here.
    #[test]
    fn the_version_goes_with_the_hashes() {
        use crate::prompt::{Chunks, Endpoint, HashKeys, Scan, key, namespace};
        let keys: &'static HashKeys = Box::leak(Box::new(HashKeys::new(&seed())));
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{}"}}]}}"#, "x".repeat(400));
        let mut scan = Scan::default();
        scan.read(body.as_bytes()).expect("JSON");
        let mut chunks = Chunks::new(128, keys);
        chunks.start(namespace(keys.namespace(), b"m", &scan, body.as_bytes(), Endpoint::Chat));
        key(Endpoint::Chat, &scan, body.as_bytes(), &mut chunks);
        assert_eq!((VERSION, chunks.key().last().copied()), (2, Some(6_632_126_767_020_034_360)));
    }
}
