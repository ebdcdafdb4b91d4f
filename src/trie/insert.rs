//! The writing walks: marking a key for a backend, and correcting a wrong belief.
//!
//! One call is a bounded, synchronous operation under one pin. A step either gets on along the key or has lost a race
//! to another thread's success; after [`MAX_LOSSES`] of the latter the rest of the key stays unmarked, which is a
//! forgotten mark, not a wrong one.

use super::evict::Room;
use super::figures::Figure;
use super::mark::{Mark, Stamp};
use super::node::{MAX_RUN, OwnedNode, Shape};
use super::sync::{Guard, Ordering, pin};
use super::table::{Edge, Published};
use super::{Holder, Matches, Trie, common, holders};

/// Races that one insert may lose before it gives up.
const MAX_LOSSES: u32 = 64;

/// Runs after which a long walk lets the epoch move on.
const RUNS_PER_PIN: u32 = 64;

enum Step {
    /// So many chunks of the key are marked.
    On(usize),
    /// Another thread was faster: look again.
    Lost,
    /// There is no room for the rest.
    Refused,
}

/// One insert under way.
struct Walk<'t> {
    trie: &'t Trie,
    holder: Holder,
    /// The mark of a run says `clock`, and `slope` more for each of the key's `length` chunks from the run's first on.
    clock: u64,
    slope: u64,
    length: usize,
    /// Chunks that the backend was not believed to hold before.
    fresh: u32,
}

impl Trie {
    /// Believes that `holder` holds all of `key`: chained chunk hashes, each naming the whole prefix up to it.
    ///
    /// Does nothing if the holder's generation is not its slot's. What does not fit in memory is left out, the end of
    /// the key first.
    pub fn insert(&self, key: &[u64], holder: Holder) {
        self.insert_from(0, key, holder);
    }

    /// [`Trie::insert`] for a caller that has just looked `key` up: what `found` says of the holder is not walked
    /// again. If it holds all of the key and its marks are young, nothing is read but its generation.
    ///
    /// What others evicted since that lookup stays forgotten until the next insert. An answer for another key does no
    /// harm: then this is `insert`.
    ///
    /// Gives what the slot's clock said: with that, what had no young mark is marked.
    pub fn insert_found(&self, key: &[u64], holder: Holder, found: &Matches) -> u64 {
        self.insert_from(found.settled(key, holder), key, holder)
    }

    fn insert_from(&self, start: usize, key: &[u64], holder: Holder) -> u64 {
        let clock = self.slots.clock(holder.slot);
        if let Some(fresh) = self.walk(start, key, holder, clock, 0) {
            self.sent(holder.slot, fresh);
        }
        clock
    }

    /// [`Trie::insert`] of what `holder` lets go of: an engine drops the end of a prompt first. So the clock moves by the
    /// key's length, and the key's beginning is marked as that much younger than its end.
    ///
    /// Gives what the clock said before.
    pub fn insert_let_go(&self, key: &[u64], holder: Holder) -> u64 {
        let clock = self.slots.clock(holder.slot);
        if self.walk(0, key, holder, clock, 1).is_some() {
            self.sent(holder.slot, key.len() as u32);
        }
        clock
    }

    /// Counts an insert that gave the backend `fresh` chunks which it was not believed to hold.
    fn sent(&self, slot: u16, fresh: u32) {
        self.ledger().figures.add(Figure::Inserts, 1);
        self.slots.advance(slot, fresh);
    }

    /// Marks the key from `start` on; how many chunks are marked that were not. `None`: the holder's life is over.
    fn walk(&self, start: usize, key: &[u64], holder: Holder, clock: u64, slope: u64) -> Option<u32> {
        if self.slots.generation(holder.slot) != Some(holder.generation) {
            self.ledger().figures.add(Figure::VoidInserts, 1);
            return None;
        }
        let mut walk = Walk { trie: self, holder, clock, slope, length: key.len(), fresh: 0 };
        if start < key.len() {
            walk.run(key, start);
        }
        Some(walk.fresh)
    }

    /// Corrects a wrong belief: of `key`, `holder` keeps its first `keep_chunks` chunks at most.
    ///
    /// What it holds of the runs that the rest of the key goes through is forgotten with it; marks of other keys in
    /// other runs behind the gap stay, but don't count until the gap is closed.
    pub fn forget(&self, key: &[u64], holder: Holder, keep_chunks: usize) {
        let guard = pin();
        let (mut start, mut losses) = (0, 0);
        while let Some(edge) = key.get(start).and_then(|&hash| self.table.find(hash, &guard)) {
            let matched = common(edge.node.run(), &key[start..]);
            let keep = keep_chunks.saturating_sub(start);
            let done =
                keep >= matched || holders::shorten(edge.node.marks(), holder.slot, holder.generation, keep as u8);
            if done || losses == MAX_LOSSES {
                start += matched;
            } else {
                // A copy is about to take the run's place.
                losses += 1;
            }
        }
    }
}

impl Walk<'_> {
    fn run(&mut self, key: &[u64], mut start: usize) {
        let mut guard = pin();
        let (mut losses, mut steps) = (0, 0);
        while start < key.len() {
            match self.step(key, start, &guard) {
                Step::On(chunks) => start += chunks,
                Step::Lost if losses < MAX_LOSSES => losses += 1,
                Step::Lost | Step::Refused => {
                    self.trie.ledger().figures.add(Figure::RefusedInserts, 1);
                    break;
                }
            }
            steps += 1;
            if steps % RUNS_PER_PIN == 0 {
                guard.repin();
            }
        }
    }

    fn step(&mut self, key: &[u64], start: usize, guard: &Guard) -> Step {
        let rest = &key[start..];
        let Some(edge) = self.trie.table.find(rest[0], guard) else {
            return self.create(rest, start, guard);
        };
        let run = edge.node.run();
        let matched = common(run, rest);
        if matched == run.len() && self.can_grow(run, rest, guard) {
            let growth = &rest[matched..rest.len().min(MAX_RUN)];
            return self.rebuild(edge, growth, run.len(), guard);
        }
        match holders::put(edge.node.marks(), self.mark(start, matched), &self.trie.slots) {
            Some(fresh) => {
                self.fresh += fresh;
                Step::On(matched)
            }
            None => self.rebuild(edge, &[], matched, guard),
        }
    }

    /// Whether the key goes on behind the run, the run has space, and no other run begins there.
    fn can_grow(&self, run: &[u64], rest: &[u64], guard: &Guard) -> bool {
        run.len() < MAX_RUN && rest.len() > run.len() && self.trie.table.find(rest[run.len()], guard).is_none()
    }

    /// For a run that begins at `start`.
    fn mark(&self, start: usize, held: usize) -> Mark {
        let stamp = Stamp::at(self.clock + self.slope * (self.length - start) as u64);
        Mark { slot: self.holder.slot, generation: self.holder.generation, held: held as u8, stamp }
    }

    /// A run of its own for the beginning of `rest`.
    fn create(&mut self, rest: &[u64], start: usize, guard: &Guard) -> Step {
        let run = &rest[..rest.len().min(MAX_RUN)];
        let Room::Granted(room) = self.trie.make_room(Shape::new(run.len(), 1), rest[0], guard) else {
            return Step::Refused;
        };
        let node = room.build(start as u32, run, &[]);
        self.trie.ledger().built(run.len());
        node.view().marks()[0].store(self.mark(start, run.len()).pack(), Ordering::Relaxed);
        let mut outcome = self.trie.table.publish(node, guard, |twin| self.trie.retire(twin, guard));
        if let Published::Full(node) = outcome {
            outcome = self.trie.displace(node, guard);
        }
        match outcome {
            Published::Done => {
                self.fresh += run.len() as u32;
                Step::On(run.len())
            }
            Published::Withdrawn => Step::Lost,
            Published::Taken(node) | Published::Full(node) => {
                self.discard(node);
                Step::Lost
            }
        }
    }

    /// Puts a copy in the run's place: longer by `growth`, with room for this holder, which holds `matched` chunks of
    /// it and the growth.
    ///
    /// The run's marks are frozen first, so that the copy has them all. Whoever finds them frozen makes a copy as well
    /// instead of waiting; one of the copies takes the place, and the others' makers look again.
    fn rebuild(&mut self, edge: Edge<'_>, growth: &[u64], matched: usize, guard: &Guard) -> Step {
        let (node, slots) = (edge.node, &self.trie.slots);
        let length = node.run().len() + growth.len();
        if !edge.is_current() {
            return Step::Lost;
        }
        let live = holders::live(node.marks(), slots).count();
        let crowded = live == node.marks().len();
        let shape = Shape::new(length, if crowded { 2 * live } else { live + 1 });
        let Room::Granted(room) = self.trie.make_room(shape, node.run()[0], guard) else {
            return Step::Refused;
        };
        let copy = room.build(node.depth(), node.run(), growth);
        self.trie.ledger().built(length);
        let cells = copy.view().marks();
        holders::freeze(node.marks());
        if holders::live(node.marks(), slots).count() > cells.len() {
            // Others came before the freeze. The next copy has room for them.
            self.discard(copy);
            return Step::Lost;
        }
        for (cell, mark) in cells.iter().zip(holders::live(node.marks(), slots)) {
            cell.store(mark.pack(), Ordering::Relaxed);
        }
        let held = matched + growth.len();
        let Some(fresh) = holders::put(cells, self.mark(node.depth() as usize, held), slots) else {
            self.discard(copy);
            return Step::Lost;
        };
        match self.trie.table.replace(edge, copy) {
            Ok(old) => {
                self.trie.retire(old, guard);
                self.fresh += fresh;
                Step::On(held)
            }
            Err(copy) => {
                self.discard(copy);
                Step::Lost
            }
        }
    }

    /// Frees a node that nobody has seen.
    fn discard(&self, node: OwnedNode) {
        let (bytes, length) = (node.view().bytes(), node.view().run().len());
        drop(node);
        self.trie.ledger().discarded(bytes, length);
    }
}
