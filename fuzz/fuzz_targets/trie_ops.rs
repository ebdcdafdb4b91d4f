//! Sequences of operations on a small trie, against the naive twin.
//!
//! Without eviction or forgetting the answers are equal; with them the trie may believe less, never more. After each
//! sequence every invariant holds and the books agree to the byte.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trieway::trie::twin::Twin;
use trieway::trie::{Holder, MIN_MEMORY_BYTES, Matches, Options, Trie};

const SLOTS: u16 = 6;

/// One operation is six bytes: what, for whom, and a key as (length, where it leaves the common path, which way).
struct Op {
    what: u8,
    slot: u16,
    key: Vec<u64>,
}

fn decode(bytes: &[u8; 6]) -> Op {
    let [what, slot, low, high, fork, way] = *bytes;
    let length = usize::from(u16::from_le_bytes([low, high]) % 4_096);
    let fork = usize::from(fork) * length / 256;
    let mut name = 0x7472_6965_u64;
    let chain = |at: usize| {
        let chunk = if at < fork { 0 } else { u64::from(way) };
        name = (name ^ chunk).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_add(chunk + 1);
        name
    };
    Op { what, slot: u16::from(slot) % SLOTS, key: (0..length).map(chain).collect() }
}

fuzz_target!(|data: &[u8]| {
    let options = Options { memory_bytes: MIN_MEMORY_BYTES, slots: usize::from(SLOTS) };
    let trie = Trie::new(&options).expect("the least memory is enough");
    let (mut twin, mut exact, mut found) = (Twin::default(), true, Matches::new(usize::from(SLOTS)));
    for bytes in data.as_chunks::<6>().0.iter().take(64) {
        let Op { what, slot, key } = decode(bytes);
        let holder = Holder { slot, generation: trie.generation(slot) };
        match what % 16 {
            0 => {
                trie.raise(slot);
                twin.raise(slot);
            }
            1 => {
                trie.forget(&key, holder, usize::from(bytes[5]));
                twin.forget(&key, holder, usize::from(bytes[5]));
                exact = false;
            }
            2 => trie.tick(),
            3 => trie.insert(&key, Holder { generation: holder.generation.wrapping_sub(1), ..holder }),
            4..7 => {}
            // What the lookup found before this operation may be of another key, or no longer true.
            7..9 => {
                trie.insert_found(&key, holder, &found);
                twin.insert(&key, holder);
            }
            9..12 => {
                trie.lookup(&key, &mut found);
                trie.insert_found(&key, holder, &found);
                twin.insert(&key, holder);
            }
            12..14 => {
                trie.insert_let_go(&key, holder);
                twin.insert(&key, holder);
            }
            _ => {
                trie.insert(&key, holder);
                twin.insert(&key, holder);
            }
        }
        let stats = trie.stats();
        exact &= stats.evicted_nodes == 0 && stats.refused_inserts == 0;
        trie.lookup(&key, &mut found);
        for slot in 0..SLOTS {
            let (held, believed) = (found.chunks(slot), twin.chunks(&key, slot));
            assert!(held == believed || (held < believed && !exact), "slot {slot}: {held} of {believed}; {stats:?}");
        }
    }
    if let Err(fault) = trie.check() {
        panic!("{fault}");
    }
});
