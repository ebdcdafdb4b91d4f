//! The KV cache of one engine: a fixed pool of blocks, shared by prefix, the least recently used evicted first.
//!
//! The model is vLLM's: a request holds its blocks while it runs; what it leaves behind stays findable by its hash until
//! the block is needed for something else, the end of a prompt before its beginning. Block hashes are chained, so a hash
//! names the whole prefix up to its block's end.
//!
//! Must not know: time, text, connections. Invariant: every block is free, idle (in the list, evictable) or held (counted
//! references); the three add up to the capacity.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

const NIL: u32 = u32::MAX;

/// The blocks that one running request holds, in prompt order. Give it back with [`Cache::release`].
#[derive(Debug, Default)]
pub(crate) struct Lease {
    blocks: Vec<u32>,
    /// How many leading blocks were there already.
    pub(crate) hits: usize,
}

#[derive(Debug)]
struct Block {
    hash: Option<u64>,
    references: u32,
    older: u32,
    newer: u32,
}

#[derive(Debug)]
pub(crate) struct Cache {
    capacity: usize,
    /// Grows up to `capacity`; a block that was never used does not exist yet.
    blocks: Vec<Block>,
    free: Vec<u32>,
    by_hash: HashMap<u64, u32, BuildHasherDefault<Identity>>,
    oldest: u32,
    newest: u32,
    idle: usize,
    pub(crate) evictions: u64,
}

impl Cache {
    /// A pool of `capacity` blocks.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            blocks: Vec::new(),
            free: Vec::new(),
            by_hash: HashMap::default(),
            oldest: NIL,
            newest: NIL,
            idle: 0,
            evictions: 0,
        }
    }

    /// Whether a request of `blocks` blocks could ever run here.
    pub(crate) fn can_hold(&self, blocks: usize) -> bool {
        blocks <= self.capacity
    }

    /// Blocks held by running requests.
    pub(crate) fn held(&self) -> usize {
        self.blocks.len() - self.free.len() - self.idle
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Blocks that a prompt could find again.
    #[cfg(test)]
    pub(crate) fn named(&self) -> usize {
        self.by_hash.len()
    }

    /// Takes the blocks of a prompt (`hashes`, whole blocks only) and `unnamed` more for what has no hash yet.
    /// At most `most_hits` leading blocks count as found. None: they don't fit beside what is held now.
    pub(crate) fn admit(&mut self, hashes: &[u64], unnamed: usize, most_hits: usize) -> Option<Lease> {
        let hits = hashes.iter().take(most_hits).take_while(|hash| self.by_hash.contains_key(hash)).count();
        let mut present = 0;
        let mut present_idle = 0;
        for hash in hashes {
            if let Some(&at) = self.by_hash.get(hash) {
                present += 1;
                present_idle += usize::from(self.blocks[at as usize].references == 0);
            }
        }
        let missing = hashes.len() - present + unnamed;
        let available = self.capacity - self.held() - present_idle;
        if missing > available {
            return None;
        }
        let mut lease = Lease { blocks: Vec::with_capacity(hashes.len() + unnamed), hits };
        // Those that exist are held first: taking a block for a missing one must not evict them.
        for hash in hashes {
            let at = self.by_hash.get(hash).copied().unwrap_or(NIL);
            if at != NIL {
                self.hold(at);
            }
            lease.blocks.push(at);
        }
        for (slot, hash) in lease.blocks.iter_mut().zip(hashes) {
            if *slot == NIL {
                *slot = self.take(Some(*hash));
            }
        }
        for _ in 0..unnamed {
            lease.blocks.push(self.take(None));
        }
        Some(lease)
    }

    /// Gives blocks back. `written` are the hashes of whole blocks that were filled while the request ran, in order
    /// behind the prompt's `named` ones; they can be found from now on.
    pub(crate) fn release(&mut self, lease: &Lease, named: usize, written: &[u64]) {
        for (&at, &hash) in lease.blocks.iter().skip(named).zip(written) {
            // An equal block of another request already bears the name: this one stays unnamed and is freed.
            if let std::collections::hash_map::Entry::Vacant(entry) = self.by_hash.entry(hash) {
                entry.insert(at);
                self.blocks[at as usize].hash = Some(hash);
            }
        }
        // From the end to the beginning: the end of a prompt is then older than what it builds on.
        for &at in lease.blocks.iter().rev() {
            self.let_go(at);
        }
    }

    /// Forgets every block that nobody holds, and the name of every other.
    pub(crate) fn wipe(&mut self) {
        self.by_hash.clear();
        while self.oldest != NIL {
            let at = self.oldest;
            self.unlink(at);
            self.free.push(at);
        }
        for block in &mut self.blocks {
            block.hash = None;
        }
    }

    fn hold(&mut self, at: u32) {
        if self.blocks[at as usize].references == 0 {
            self.unlink(at);
        }
        self.blocks[at as usize].references += 1;
    }

    fn let_go(&mut self, at: u32) {
        let block = &mut self.blocks[at as usize];
        block.references -= 1;
        if block.references > 0 {
            return;
        }
        if block.hash.is_some() {
            self.link_newest(at);
        } else {
            self.free.push(at);
        }
    }

    /// A block for new content: a free one, a new one, or the least recently used. The caller has checked that one exists.
    fn take(&mut self, hash: Option<u64>) -> u32 {
        let at = if let Some(at) = self.free.pop() {
            at
        } else if self.blocks.len() < self.capacity {
            self.blocks.push(Block { hash: None, references: 0, older: NIL, newer: NIL });
            (self.blocks.len() - 1) as u32
        } else {
            let at = self.oldest;
            self.unlink(at);
            self.evictions += 1;
            if let Some(old) = self.blocks[at as usize].hash {
                self.by_hash.remove(&old);
            }
            at
        };
        let block = &mut self.blocks[at as usize];
        block.hash = hash;
        block.references = 1;
        if let Some(hash) = hash {
            self.by_hash.insert(hash, at);
        }
        at
    }

    fn link_newest(&mut self, at: u32) {
        let second = self.newest;
        self.blocks[at as usize].older = second;
        self.blocks[at as usize].newer = NIL;
        match second {
            NIL => self.oldest = at,
            _ => self.blocks[second as usize].newer = at,
        }
        self.newest = at;
        self.idle += 1;
    }

    fn unlink(&mut self, at: u32) {
        let Block { older, newer, .. } = self.blocks[at as usize];
        match older {
            NIL => self.oldest = newer,
            _ => self.blocks[older as usize].newer = newer,
        }
        match newer {
            NIL => self.newest = older,
            _ => self.blocks[newer as usize].older = older,
        }
        self.idle -= 1;
    }
}

/// Block hashes are xxh3 values: good as they are.
#[derive(Default)]
pub(crate) struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: usize = usize::MAX;

    fn run(cache: &mut Cache, hashes: &[u64]) -> usize {
        let lease = cache.admit(hashes, 0, ALL).unwrap();
        cache.release(&lease, hashes.len(), &[]);
        lease.hits
    }

    #[test]
    fn a_prompt_is_found_up_to_where_it_differs() {
        let mut cache = Cache::new(10);
        assert_eq!(run(&mut cache, &[1, 2, 3]), 0);
        assert_eq!(run(&mut cache, &[1, 2, 3]), 3);
        assert_eq!(run(&mut cache, &[1, 2, 9]), 2);
        assert_eq!(run(&mut cache, &[7, 2, 3]), 0);
        assert_eq!(cache.admit(&[1, 2, 3], 0, 2).unwrap().hits, 2);
    }

    #[test]
    fn the_least_recently_used_goes_first_and_its_end_before_its_beginning() {
        let mut cache = Cache::new(5);
        run(&mut cache, &[1, 2, 3]);
        run(&mut cache, &[11, 12]);
        // Full. Two more blocks: the end of the older prompt, 3 and then 2, makes room.
        run(&mut cache, &[21, 22]);
        assert_eq!(cache.evictions, 2);
        assert_eq!(run(&mut cache, &[11, 12]), 2);
        let lease = cache.admit(&[1, 2, 3], 0, ALL).unwrap();
        assert_eq!(lease.hits, 1);
        // 2 and 3 came back at the cost of the then oldest, 22 and 21.
        assert_eq!(cache.evictions, 4);
    }

    #[test]
    fn what_is_held_is_never_evicted() {
        let mut cache = Cache::new(4);
        let first = cache.admit(&[1, 2, 3], 0, ALL).unwrap();
        assert!(cache.admit(&[8, 9], 0, ALL).is_none());
        assert_eq!(cache.held(), 3);
        // It shares two and needs one more.
        let second = cache.admit(&[1, 2, 4], 0, ALL).unwrap();
        assert_eq!((second.hits, cache.held()), (2, 4));
        cache.release(&first, 3, &[]);
        assert_eq!(cache.held(), 3);
        cache.release(&second, 3, &[]);
        assert_eq!(cache.held(), 0);
        assert_eq!(run(&mut cache, &[1, 2, 3]), 3);
    }

    #[test]
    fn a_present_block_behind_a_gap_is_kept_while_room_is_made() {
        let mut cache = Cache::new(3);
        run(&mut cache, &[2, 3]);
        // 1 is missing, 2 and 3 are there and idle: only one block is wanted, and it must be the third.
        let lease = cache.admit(&[1, 2, 3], 0, ALL).unwrap();
        assert_eq!((lease.hits, cache.evictions, cache.held()), (0, 0, 3));
    }

    #[test]
    fn written_blocks_are_found_by_the_next_turn() {
        let mut cache = Cache::new(10);
        let lease = cache.admit(&[1, 2], 3, ALL).unwrap();
        assert_eq!(cache.held(), 5);
        cache.release(&lease, 2, &[3, 4]);
        assert_eq!((cache.held(), cache.named()), (0, 4));
        assert_eq!(run(&mut cache, &[1, 2, 3, 4, 5]), 4);
    }

    #[test]
    fn wiped_means_no_hits_but_held_blocks_stay_counted() {
        let mut cache = Cache::new(10);
        let held = cache.admit(&[1, 2], 0, ALL).unwrap();
        run(&mut cache, &[5, 6, 7]);
        cache.wipe();
        assert_eq!((cache.named(), cache.held()), (0, 2));
        assert_eq!(run(&mut cache, &[1, 2]), 0);
        cache.release(&held, 2, &[]);
        assert_eq!(cache.held(), 0);
    }
}
