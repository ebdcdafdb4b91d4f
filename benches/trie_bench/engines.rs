//! What is measured, behind one face: this trie, and two structures that anyone would write first.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, RwLock};

use trieway_benches::trie::{Holder, Matches, Options, Trie};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::workload::{BACKENDS, CHUNK, Call, chain};

/// Buffers that a worker keeps from call to call.
pub struct Scratch {
    pub key: Vec<u64>,
    pub found: Matches,
}

impl Scratch {
    pub fn new() -> Scratch {
        Scratch { key: Vec::new(), found: Matches::new(usize::from(BACKENDS)) }
    }
}

pub trait Index: Sync {
    /// Makes the call's prompt known, outside the time that is measured.
    fn prime(&self, call: &Call, scratch: &mut Scratch);

    /// What one request costs: hash, look up, and (if the index is fed by requests) insert. Returns the bytes of the
    /// longest match before the insert.
    fn call(&self, call: &Call, scratch: &mut Scratch) -> usize;

    /// Ends whatever feeds the index in the background.
    fn settle(&self) {}

    /// Whether a call also inserts.
    fn inserts(&self) -> bool {
        true
    }

    /// Whether matches are counted in whole chunks.
    fn in_chunks(&self) -> bool {
        true
    }
}

pub type Chain = fn(&[u8], &mut Vec<u64>);

pub struct Ours {
    pub trie: Trie,
    chain: Chain,
}

impl Ours {
    pub fn new(memory_bytes: usize, chain: Chain) -> Ours {
        let options = Options { memory_bytes, slots: usize::from(BACKENDS) };
        Ours { trie: Trie::new(&options).expect("enough memory"), chain }
    }
}

impl Index for Ours {
    fn prime(&self, call: &Call, scratch: &mut Scratch) {
        self.call(call, scratch);
    }

    fn call(&self, call: &Call, scratch: &mut Scratch) -> usize {
        (self.chain)(call.text.as_bytes(), &mut scratch.key);
        self.trie.lookup(&scratch.key, &mut scratch.found);
        let longest = scratch.found.longest() as usize * CHUNK;
        self.trie.insert_found(&scratch.key, Holder { slot: call.backend, generation: 0 }, &scratch.found);
        longest
    }
}

/// No index at all: what hashing takes.
pub struct Hashing(pub Chain);

impl Index for Hashing {
    fn prime(&self, _: &Call, _: &mut Scratch) {}

    fn call(&self, call: &Call, scratch: &mut Scratch) -> usize {
        (self.0)(call.text.as_bytes(), &mut scratch.key);
        scratch.key.len() * CHUNK
    }

    fn inserts(&self) -> bool {
        false
    }
}

/// One entry for each chunk hash in 64 locked maps.
pub struct ShardedMap(Vec<RwLock<HashMap<u64, HashSet<u16>>>>);

impl ShardedMap {
    pub fn new() -> ShardedMap {
        ShardedMap((0..64).map(|_| RwLock::default()).collect())
    }

    fn shard(&self, hash: u64) -> &RwLock<HashMap<u64, HashSet<u16>>> {
        &self.0[(hash >> 58) as usize]
    }
}

impl Index for ShardedMap {
    fn prime(&self, call: &Call, scratch: &mut Scratch) {
        self.call(call, scratch);
    }

    fn call(&self, call: &Call, scratch: &mut Scratch) -> usize {
        chain(call.text.as_bytes(), &mut scratch.key);
        let mut holding: Option<HashSet<u16>> = None;
        let mut longest = 0;
        for (at, &hash) in scratch.key.iter().enumerate() {
            let shard = self.shard(hash).read().expect("no panic under the lock");
            let Some(holders) = shard.get(&hash) else { break };
            match &mut holding {
                None => holding = Some(holders.clone()),
                Some(holding) => holding.retain(|slot| holders.contains(slot)),
            }
            if holding.as_ref().is_none_or(HashSet::is_empty) {
                break;
            }
            longest = at + 1;
        }
        for &hash in &scratch.key {
            let known = |map: &HashMap<u64, HashSet<u16>>| map.get(&hash).is_some_and(|h| h.contains(&call.backend));
            if !known(&self.shard(hash).read().expect("no panic under the lock")) {
                let mut shard = self.shard(hash).write().expect("no panic under the lock");
                shard.entry(hash).or_default().insert(call.backend);
            }
        }
        longest * CHUNK
    }
}

/// The `HashTrie` of vLLM's production-stack: a node for each chunk of 128 characters, children by the chunk's own
/// hash, a set of endpoints in each node, one lock.
pub struct PlainTrie(Mutex<Vec<PlainNode>>);

#[derive(Default)]
pub struct PlainNode {
    children: HashMap<u64, usize>,
    endpoints: HashSet<u16>,
}

impl PlainTrie {
    pub fn new() -> PlainTrie {
        PlainTrie(Mutex::new(vec![PlainNode::default()]))
    }
}

impl Index for PlainTrie {
    fn prime(&self, call: &Call, scratch: &mut Scratch) {
        self.call(call, scratch);
    }

    fn call(&self, call: &Call, scratch: &mut Scratch) -> usize {
        scratch.key.clear();
        scratch.key.extend(call.text.as_bytes().chunks_exact(CHUNK).map(|chunk| xxh3_64_with_seed(chunk, 0)));
        let mut nodes = self.0.lock().expect("no panic under the lock");
        let (mut node, mut longest) = (0, 0);
        for hash in &scratch.key {
            match nodes[node].children.get(hash) {
                Some(&child) if !nodes[child].endpoints.is_empty() => node = child,
                _ => break,
            }
            longest += 1;
        }
        let mut node = 0;
        for &hash in &scratch.key {
            let known = nodes[node].children.get(&hash).copied();
            node = known.unwrap_or_else(|| {
                nodes.push(PlainNode::default());
                let child = nodes.len() - 1;
                nodes[node].children.insert(hash, child);
                child
            });
            nodes[node].endpoints.insert(call.backend);
        }
        longest * CHUNK
    }
}
