//! An engine's KV memory: blocks of 16 tokens, held by running requests or idle and findable until they are evicted.
//!
//! Blocks that always share a fate are kept together as an **extent**: the blocks of one segment of prompts (`name`), or
//! the rest of one answer (no name). Idle extents stand in a list, least recently used first; a request lets go of its
//! extents from the end of the prompt to its beginning, and an extent gives up its own blocks from the end. So the blocks
//! go exactly in the order of an engine that lists them one by one, at a fraction of the time.
//!
//! Must not know: requests, time. Invariant: free + held + idle = capacity.

use crate::trace::SEGMENT_TOKENS;

pub const BLOCK_TOKENS: u32 = 16;
pub const SEGMENT_BLOCKS: u32 = SEGMENT_TOKENS / BLOCK_TOKENS;

const NIL: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Extent {
    /// The segment's id, or [`NIL`].
    name: u32,
    blocks: u32,
    references: u32,
    older: u32,
    newer: u32,
}

#[derive(Debug)]
pub struct Pool {
    free: u32,
    idle: u32,
    capacity: u32,
    extents: Vec<Extent>,
    unused: Vec<u32>,
    by_name: Vec<u32>,
    oldest: u32,
    newest: u32,
}

/// What of a prompt is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Leading blocks.
    pub blocks: u32,
    /// Those of them that nobody holds: holding them takes them out of what can be evicted.
    pub idle: u32,
}

impl Pool {
    /// `names`: how many different ids there are.
    pub fn new(capacity_blocks: u32, names: usize) -> Pool {
        Pool {
            free: capacity_blocks,
            idle: 0,
            capacity: capacity_blocks,
            extents: Vec::new(),
            unused: Vec::new(),
            by_name: vec![NIL; names],
            oldest: NIL,
            newest: NIL,
        }
    }

    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    pub fn held(&self) -> u32 {
        self.capacity - self.free - self.idle
    }

    /// Blocks that a request could be given.
    pub fn available(&self) -> u32 {
        self.free + self.idle
    }

    /// Leading blocks of a prompt of `tokens` tokens that are there. The last token is always computed.
    pub fn find(&self, ids: &[u32], tokens: u32) -> Found {
        let most = (tokens - 1) / BLOCK_TOKENS;
        let mut found = Found::default();
        for &id in ids {
            let at = self.by_name[id as usize];
            if at == NIL {
                break;
            }
            let extent = &self.extents[at as usize];
            let blocks = extent.blocks.min(most - found.blocks);
            if blocks == 0 {
                break;
            }
            found.blocks += blocks;
            if extent.references == 0 {
                // The whole extent leaves the list, whatever part of it is wanted.
                found.idle += extent.blocks;
            }
            if extent.blocks < SEGMENT_BLOCKS {
                break;
            }
        }
        found
    }

    /// Holds the extent of a segment, if it is there.
    pub fn hold(&mut self, id: u32) -> Option<u32> {
        let at = self.by_name[id as usize];
        if at == NIL {
            return None;
        }
        if self.extents[at as usize].references == 0 {
            self.unlink(at);
        }
        self.extents[at as usize].references += 1;
        Some(at)
    }

    /// Takes `blocks` blocks for what has no name yet, evicting as many as it needs. False, and nothing taken: there are
    /// not so many.
    pub fn take(&mut self, blocks: u32) -> bool {
        if blocks > self.available() {
            return false;
        }
        while self.free < blocks {
            self.evict(blocks - self.free);
        }
        self.free -= blocks;
        true
    }

    /// Gives `blocks` taken blocks back.
    pub fn give_back(&mut self, blocks: u32) {
        self.free += blocks;
    }

    /// Makes `blocks` taken blocks the extent of a segment, held once; `None` and nothing done if that is there already.
    pub fn name(&mut self, id: u32, blocks: u32) -> Option<u32> {
        if self.by_name[id as usize] != NIL {
            return None;
        }
        let at = self.add(id, blocks);
        self.by_name[id as usize] = at;
        Some(at)
    }

    /// Makes `blocks` taken blocks an extent that nobody can find, held once: the unshared rest of an answer.
    pub fn add_nameless(&mut self, blocks: u32) -> u32 {
        self.add(NIL, blocks)
    }

    /// How many blocks a held extent has.
    pub fn blocks(&self, at: u32) -> u32 {
        self.extents[at as usize].blocks
    }

    /// Adds taken blocks to the end of a held extent.
    pub fn extend(&mut self, at: u32, blocks: u32) {
        self.extents[at as usize].blocks += blocks;
    }

    /// Takes the name off an extent that the caller alone holds, and the extent away: its blocks are taken blocks again.
    /// `None`: others hold it too.
    pub fn dissolve(&mut self, at: u32) -> Option<u32> {
        let extent = &mut self.extents[at as usize];
        if extent.references != 1 {
            return None;
        }
        let (name, blocks) = (extent.name, extent.blocks);
        if name != NIL {
            self.by_name[name as usize] = NIL;
        }
        self.unused.push(at);
        Some(blocks)
    }

    /// Lets go of an extent; call from the end of a sequence to its beginning.
    pub fn let_go(&mut self, at: u32) {
        let extent = &mut self.extents[at as usize];
        extent.references -= 1;
        if extent.references == 0 {
            self.link_newest(at);
        }
    }

    /// Forgets all that is idle and the names of the rest.
    pub fn wipe(&mut self) {
        self.evict(self.idle);
        self.by_name.fill(NIL);
        for extent in &mut self.extents {
            extent.name = NIL;
        }
    }

    fn add(&mut self, name: u32, blocks: u32) -> u32 {
        let extent = Extent { name, blocks, references: 1, older: NIL, newer: NIL };
        match self.unused.pop() {
            Some(at) => {
                self.extents[at as usize] = extent;
                at
            }
            None => {
                self.extents.push(extent);
                (self.extents.len() - 1) as u32
            }
        }
    }

    /// Frees up to `blocks` blocks: the least recently used extents, each from its end.
    fn evict(&mut self, mut blocks: u32) {
        while blocks > 0 && self.oldest != NIL {
            let at = self.oldest;
            let extent = &mut self.extents[at as usize];
            let gone = extent.blocks.min(blocks);
            extent.blocks -= gone;
            self.idle -= gone;
            self.free += gone;
            blocks -= gone;
            if extent.blocks == 0 {
                let name = extent.name;
                if name != NIL {
                    self.by_name[name as usize] = NIL;
                }
                self.unlink(at);
                self.unused.push(at);
            }
        }
    }

    fn link_newest(&mut self, at: u32) {
        let second = self.newest;
        let extent = &mut self.extents[at as usize];
        extent.older = second;
        extent.newer = NIL;
        self.idle += extent.blocks;
        match second {
            NIL => self.oldest = at,
            _ => self.extents[second as usize].newer = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: u32) {
        let Extent { older, newer, blocks, .. } = self.extents[at as usize];
        match older {
            NIL => self.oldest = newer,
            _ => self.extents[older as usize].newer = newer,
        }
        match newer {
            NIL => self.newest = older,
            _ => self.extents[newer as usize].older = older,
        }
        self.idle -= blocks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(pool: &mut Pool, ids: &[u32]) {
        let held: Vec<u32> = ids
            .iter()
            .map(|&id| {
                assert!(pool.take(SEGMENT_BLOCKS));
                pool.name(id, SEGMENT_BLOCKS).unwrap()
            })
            .collect();
        held.into_iter().rev().for_each(|at| pool.let_go(at));
    }

    const TOKENS: u32 = 3 * SEGMENT_TOKENS + 1;

    #[test]
    fn a_prompt_is_found_up_to_where_it_differs_and_never_to_its_last_token() {
        let mut pool = Pool::new(128, 8);
        put(&mut pool, &[0, 1, 2]);
        assert_eq!(pool.find(&[0, 1, 2], TOKENS).blocks, 96);
        assert_eq!(pool.find(&[0, 1, 2], TOKENS - 1).blocks, 95);
        assert_eq!(pool.find(&[0, 3, 2], TOKENS).blocks, 32);
        assert_eq!(pool.find(&[3, 1, 2], TOKENS).blocks, 0);
    }

    #[test]
    fn the_oldest_goes_first_and_its_end_before_its_beginning() {
        let mut pool = Pool::new(96, 8);
        put(&mut pool, &[0, 1]);
        put(&mut pool, &[2]);
        assert!(pool.take(33));
        // Segment 1 and the last block of segment 0 made room.
        assert_eq!(pool.find(&[0, 1], TOKENS), Found { blocks: 31, idle: 31 });
        assert_eq!(pool.find(&[2], TOKENS).blocks, 32);
        assert_eq!((pool.held(), pool.available()), (33, 63));
        assert!(!pool.take(64), "what is held is never evicted");
        pool.give_back(33);
        assert_eq!(pool.available(), 96);
    }

    #[test]
    fn what_is_held_stays_and_what_is_dissolved_cannot_be_found() {
        let mut pool = Pool::new(96, 8);
        put(&mut pool, &[0, 1]);
        let held = pool.hold(0).unwrap();
        assert!(pool.take(64));
        assert_eq!(pool.find(&[0, 1], TOKENS), Found { blocks: 32, idle: 0 });
        assert_eq!(pool.dissolve(held), Some(32));
        assert_eq!((pool.find(&[0], TOKENS).blocks, pool.held()), (0, 96));
    }

    #[test]
    fn a_wipe_leaves_nothing_to_find() {
        let mut pool = Pool::new(96, 8);
        put(&mut pool, &[0]);
        put(&mut pool, &[1]);
        let held = pool.hold(1).unwrap();
        pool.wipe();
        assert_eq!((pool.find(&[0], TOKENS).blocks, pool.find(&[1], TOKENS).blocks), (0, 0));
        pool.let_go(held);
        assert_eq!(pool.available(), 96);
    }
}
