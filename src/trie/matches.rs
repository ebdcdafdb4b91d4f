//! The answer of a lookup: for each backend, how much of the key it is believed to hold from the start without a gap.
//!
//! Owned by the caller and reused, so that a lookup allocates nothing once it has seen its widest answer.

use super::Holder;
use super::holders::RENEW_UNITS;
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
    /// What the slot's clock said when the last run of these was sent to it, in chunks modulo 2^33, to within 32 chunks.
    pub marked: u64,
    /// Leading chunks that were sent again since the last run of these was, with other prompts; whole runs.
    pub shared: u32,
}

impl Match {
    /// Of a slot that holds nothing.
    pub fn none(slot: u16) -> Match {
        Match { slot, chunks: 0, fresh: 0, age: 0, marked: 0, shared: 0 }
    }
}

/// The matches of one lookup.
pub struct Matches {
    /// By slot: where its reach is in `reaches`, or [`NOWHERE`].
    index: Box<[u16]>,
    reaches: Vec<Reach>,
    /// Length and last hash of the key that was looked up. A hash names its whole prefix, so they name the key.
    key: (usize, Option<u64>),
}

const NOWHERE: u16 = u16::MAX;

/// Chunks by which the marks of one prompt may be apart, beside what its runs are long: younger ones are not renewed.
const ONE_PROMPT: u32 = (RENEW_UNITS + 1) * STAMP_CHUNKS as u32;

#[derive(Clone, Copy)]
struct Reach {
    slot: u16,
    generation: u16,
    chunks: u32,
    fresh: u32,
    now: Stamp,
    age: u32,
    horizon: u32,
    /// The position of the last run that was reached.
    last_run: u32,
    shared: u32,
    /// Age of the oldest mark on the way, in stamp units.
    oldest_units: u32,
}

impl Matches {
    /// For a trie with `slots` backend slots; slots beyond are left out of the answer.
    pub fn new(slots: usize) -> Matches {
        let slots = slots.min(super::MAX_SLOTS);
        Matches { index: vec![NOWHERE; slots].into_boxed_slice(), reaches: Vec::new(), key: (0, None) }
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

    /// What `slot` holds; `None` if nothing.
    #[inline]
    pub fn of(&self, slot: u16) -> Option<Match> {
        self.reach(slot).map(Reach::answer)
    }

    /// The backends that hold at least the first chunk, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = Match> {
        self.reaches.iter().map(Reach::answer)
    }

    pub fn clear(&mut self) {
        self.key = (0, None);
        for reach in self.reaches.drain(..) {
            self.index[usize::from(reach.slot)] = NOWHERE;
        }
    }

    /// Makes every slot hold more than any key is long.
    #[cfg(debug_assertions)]
    pub fn poison(&mut self) {
        self.clear();
        for (at, place) in self.index.iter_mut().enumerate() {
            *place = at as u16;
            self.reaches.push(Reach {
                slot: at as u16,
                generation: 0,
                chunks: u32::MAX / 2,
                fresh: u32::MAX / 2,
                now: Stamp::at(0),
                age: 0,
                horizon: u32::MAX,
                last_run: 0,
                shared: 0,
                oldest_units: 0,
            });
        }
    }

    /// Empties the answer, for a lookup of `key`.
    pub(super) fn begin_key(&mut self, key: &[u64]) {
        self.clear();
        self.key = (key.len(), key.last().copied());
    }

    /// Up to where an insert of `key` for `holder` would find nothing to write, as far as this answer knows: the key's
    /// length, or the position of a run to begin with; 0 if this is not the answer for that key.
    pub(super) fn settled(&self, key: &[u64], holder: Holder) -> usize {
        if self.key != (key.len(), key.last().copied()) {
            return 0;
        }
        let current = |reach: &&Reach| reach.generation == holder.generation && reach.oldest_units < RENEW_UNITS;
        match self.reach(holder.slot).filter(current) {
            Some(reach) if reach.chunks as usize == key.len() => key.len(),
            Some(reach) => reach.last_run as usize,
            None => 0,
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
                reach.extend(start, matched, mark);
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
            last_run: 0,
            shared: 0,
            oldest_units: 0,
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
    fn answer(&self) -> Match {
        let Reach { slot, chunks, fresh, age, shared, .. } = *self;
        Match { slot, chunks, fresh, age, marked: self.now.before(age), shared }
    }

    /// Of a run whose first `matched` chunks are the key's.
    fn extend(&mut self, start: u32, matched: u32, mark: Mark) {
        let age_units = mark.stamp.age_units(self.now);
        // Half a circle of stamps at most: it fits.
        let age = age_units * STAMP_CHUNKS as u32;
        // Within one prompt that was let go of, marks age by as much as the runs are long.
        if age.saturating_sub(self.age) > start - self.last_run + ONE_PROMPT {
            self.shared = start;
        }
        self.age = age;
        self.chunks = start + matched.min(mark.held.into());
        self.last_run = start;
        self.oldest_units = self.oldest_units.max(age_units);
        if self.fresh == start && self.age < self.horizon {
            self.fresh = self.chunks;
        }
    }
}
