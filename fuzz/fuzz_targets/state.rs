//! The state file: whatever bytes it holds, reading it never panics, takes time in step with its length, and of a file with
//! any fault nothing is believed. What is believed of a whole one can be written and read again.
//!
//! The first byte says whether the rest is the file as it stands, or what stands between a right beginning and a right
//! checksum: hostile bytes carry one, too.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use rustix::time::{ClockId, clock_gettime};
use trieway::control::{read_state, write_state};
use trieway::trie::{MIN_MEMORY_BYTES, Options, Trie};
use xxhash_rust::xxh3::xxh3_64;

const CHUNK_BYTES: usize = 128;
const LIMIT: u64 = 1 << 20;
const SLOTS: u16 = 8;
/// What is known here; the rest of a file's backends are nobody's.
const URLS: [&str; 3] = ["http://a:1", "http://b:2", "http://c:3"];

/// CPU time of a read: a start, and so much for each byte, with assertions and AddressSanitizer.
const AT_MOST: Duration = Duration::from_millis(100);
const A_BYTE: Duration = Duration::from_micros(10);

fn trie() -> Trie {
    Trie::new(&Options { memory_bytes: MIN_MEMORY_BYTES, slots: usize::from(SLOTS) })
        .expect("the least memory is enough")
}

/// Behind the count of backends of an empty state: the end of the blocks and the checksum.
const EMPTY_END: usize = size_of::<u16>() + size_of::<u32>() + size_of::<u64>();

fn sealed(inner: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_state(&trie(), CHUNK_BYTES, &[], &mut bytes).expect("memory takes it");
    bytes.truncate(bytes.len() - EMPTY_END);
    bytes.extend_from_slice(inner);
    bytes.extend_from_slice(&0_u32.to_le_bytes());
    let sum = xxh3_64(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Everything that the trie believes.
fn believed(trie: &Trie) -> Vec<u8> {
    let (mut all, mut next) = (Vec::new(), Some(0));
    while let Some(from) = next {
        next = trie.export(from, &mut all);
    }
    all
}

fuzz_target!(|data: &[u8]| {
    let Some((&how, rest)) = data.split_first() else { return };
    let bytes = if how % 4 == 0 { rest.to_vec() } else { sealed(rest) };
    let trie = trie();
    let began = cpu_time();
    let read = read_state(&trie, CHUNK_BYTES, LIMIT, &bytes, &URLS);
    let took = cpu_time() - began;
    assert!(took < AT_MOST + A_BYTE * bytes.len() as u32, "{took:?} for {} bytes", bytes.len());
    if let Err(fault) = trie.check() {
        panic!("{fault}");
    }
    if read.is_err() {
        assert!(believed(&trie).is_empty(), "something is believed of a file with a fault: {read:?}");
        return;
    }
    let mut written = Vec::new();
    write_state(&trie, CHUNK_BYTES, &URLS, &mut written).expect("memory takes it");
    let again = self::trie();
    read_state(&again, CHUNK_BYTES, LIMIT, &written, &URLS).expect("what was written is read");
    // Ages are rounded, and buckets hold their runs as they came.
    assert_eq!(believed(&again).len(), believed(&trie).len());
});
