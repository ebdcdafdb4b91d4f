//! A naive model of the trie: what unit, property and fuzz tests compare it with.
//!
//! One map from each prefix to its holders. Because a hash names its whole prefix, a key's hashes are the prefixes.
//! No runs, no budget, no eviction, no threads.

use std::collections::{HashMap, HashSet};

use super::Holder;

#[derive(Default)]
pub struct Twin {
    holders: HashMap<u64, HashSet<u16>>,
    parents: HashMap<u64, u64>,
    generations: HashMap<u16, u16>,
}

impl Twin {
    pub fn generation(&self, slot: u16) -> u16 {
        self.generations.get(&slot).copied().unwrap_or(0)
    }

    pub fn insert(&mut self, key: &[u64], holder: Holder) {
        if self.generation(holder.slot) != holder.generation {
            return;
        }
        for (at, &hash) in key.iter().enumerate() {
            self.holders.entry(hash).or_default().insert(holder.slot);
            if at > 0 {
                self.parents.insert(hash, key[at - 1]);
            }
        }
    }

    pub fn raise(&mut self, slot: u16) {
        *self.generations.entry(slot).or_insert(0) += 1;
        for holders in self.holders.values_mut() {
            holders.remove(&slot);
        }
    }

    /// Forgets the chunks of `key` from `keep_chunks` on, and nothing else.
    pub fn forget(&mut self, key: &[u64], holder: Holder, keep_chunks: usize) {
        if self.generation(holder.slot) != holder.generation {
            return;
        }
        for hash in key.iter().skip(keep_chunks) {
            self.holders.entry(*hash).or_default().remove(&holder.slot);
        }
    }

    /// Forgets the chunks of `key` from `keep_chunks` on, and everything that goes on from them.
    pub fn forget_subtree(&mut self, key: &[u64], holder: Holder, keep_chunks: usize) {
        let Some(&root) = key.get(keep_chunks) else { return };
        if self.generation(holder.slot) != holder.generation {
            return;
        }
        let parents = &self.parents;
        for (&hash, holders) in &mut self.holders {
            let mut up = Some(hash);
            while up.is_some_and(|hash| hash != root) {
                up = up.and_then(|hash| parents.get(&hash).copied());
            }
            if up.is_some() {
                holders.remove(&holder.slot);
            }
        }
    }

    /// How many leading chunks of `key` the backend holds without a gap.
    pub fn chunks(&self, key: &[u64], slot: u16) -> u32 {
        let holds = |hash: &&u64| self.holders.get(hash).is_some_and(|holders| holders.contains(&slot));
        key.iter().take_while(holds).count() as u32
    }
}
