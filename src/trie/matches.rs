//! The answer of a lookup: for each backend, how much of the key it is believed to hold from the start without a gap.
//!
//! Owned by the caller and reused, so that a lookup allocates nothing once it has seen its widest answer.

use super::mark::{Mark, STAMP_CHUNKS, Stamp};
use super::slots::Slots;
use super::sync::{AtomicU64, Ordering};

/// One backend's share of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    pub slot: u16,
    /// Leading chunks that the backend holds. At least 1.
    pub chunks: u32,
    /// Those of them that are younger than the slot's horizon ([`super::Trie::set_horizon`]); equal to `chunks` when
    /// none is set.
    pub fresh: u32,
    /// Chunks that the backend was newly sent since the last run of these was sent to it, to within 160 chunks.
    pub age: u32,
}

/// The matches of one lookup.
pub struct Matches {
    /// By slot: where its reach is in `reaches`, or [`NOWHERE`].
    index: Box<[u16]>,
    reaches: Vec<Reach>,
}

const NOWHERE: u16 = u16::MAX;

#[derive(Clone, Copy)]
struct Reach {
    slot: u16,
    generation: u16,
    chunks: u32,
    fresh: u32,
    now: Stamp,
    age: u32,
    horizon: u32,
}

impl Matches {
    /// For a trie with `slots` backend slots; slots beyond are left out of the answer.
    pub fn new(slots: usize) -> Matches {
        let slots = slots.min(super::MAX_SLOTS);
        Matches { index: vec![NOWHERE; slots].into_boxed_slice(), reaches: Vec::new() }
    }

    /// Leading chunks that `slot` holds; 0 if none.
    pub fn chunks(&self, slot: u16) -> u32 {
        self.reach(slot).map_or(0, |reach| reach.chunks)
    }

    /// The most chunks that any backend holds; 0 if none does.
    pub fn longest(&self) -> u32 {
        self.reaches.iter().map(|reach| reach.chunks).max().unwrap_or(0)
    }

    pub fn is_empty(&self) -> bool {
        self.reaches.is_empty()
    }

    /// The backends that hold at least the first chunk, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = Match> {
        self.reaches.iter().map(|reach| Match {
            slot: reach.slot,
            chunks: reach.chunks,
            fresh: reach.fresh,
            age: reach.age,
        })
    }

    pub fn clear(&mut self) {
        for reach in self.reaches.drain(..) {
            self.index[usize::from(reach.slot)] = NOWHERE;
        }
    }

    /// Adds what a run says whose first `matched` chunks are those of the key from `start` on. Returns whether
    /// anybody holds the key up to there, so that it makes sense to go on.
    pub(super) fn advance(&mut self, start: u32, matched: u32, marks: &[AtomicU64], slots: &Slots) -> bool {
        let mut reached = false;
        for cell in marks {
            // Relaxed: a mark is one word and points to nothing.
            let Some(mark) = Mark::unpack(cell.load(Ordering::Relaxed)) else { continue };
            let reach = if start == 0 { self.begin(mark, slots) } else { self.resume(mark, start) };
            if let Some(reach) = reach {
                reach.extend(start, u32::from(mark.held).min(matched), mark.stamp);
                reached |= reach.chunks == start + matched;
            }
        }
        reached
    }

    fn reach(&self, slot: u16) -> Option<&Reach> {
        let at = *self.index.get(usize::from(slot))?;
        self.reaches.get(usize::from(at))
    }

    /// A valid mark on the first run opens its slot's account.
    fn begin(&mut self, mark: Mark, slots: &Slots) -> Option<&mut Reach> {
        let place = self.index.get_mut(usize::from(mark.slot))?;
        if *place != NOWHERE || !slots.is_live(mark) {
            return None;
        }
        *place = self.reaches.len() as u16;
        self.reaches.push(Reach {
            slot: mark.slot,
            generation: mark.generation,
            chunks: 0,
            fresh: 0,
            now: slots.now(mark.slot),
            age: 0,
            horizon: slots.horizon(mark.slot),
        });
        self.reaches.last_mut()
    }

    /// A mark on a later run counts only if its slot holds everything before it, in the same generation.
    fn resume(&mut self, mark: Mark, start: u32) -> Option<&mut Reach> {
        let at = *self.index.get(usize::from(mark.slot))?;
        let reach = self.reaches.get_mut(usize::from(at))?;
        (reach.chunks == start && reach.generation == mark.generation).then_some(reach)
    }
}

impl Reach {
    fn extend(&mut self, start: u32, held: u32, stamp: Stamp) {
        self.chunks = start + held;
        self.age = stamp.age_units(self.now).saturating_mul(STAMP_CHUNKS as u32);
        if self.fresh == start && self.age < self.horizon {
            self.fresh = self.chunks;
        }
    }
}
