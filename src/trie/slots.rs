//! Per backend slot: its generation, its byte clock, and how far back its cache reaches.
//!
//! Knows marks, not nodes. Generations and horizons are read by every lookup and seldom written, so they lie packed
//! together; clocks are written by every insert that adds something, so each has a cache line of its own.
//!
//! Invariant: a mark is valid only while its generation is its slot's. A generation never goes back.

use super::mark::{MAX_SLOTS, Mark, Stamp};
use super::sync::Ordering::{Relaxed, Release};
use super::sync::counter::AtomicU64;
use super::sync::{AtomicU32, read_raises};

pub(super) struct Slots {
    steady: Box<[Steady]>,
    clocks: Box<[Clock]>,
}

struct Steady {
    /// Counts raises; its low 16 bits are the generation.
    raises: AtomicU32,
    /// In chunks; `u32::MAX` when nothing is known.
    horizon: AtomicU32,
}

#[repr(align(64))]
struct Clock {
    chunks: AtomicU64,
    /// What [`Slots::enter_half`] was told last; [`NEVER`] before.
    half_entered: AtomicU64,
}

const NEVER: u64 = u64::MAX;

impl Slots {
    /// `slots` is at most [`MAX_SLOTS`].
    pub(super) fn new(slots: usize) -> Slots {
        assert!(slots <= MAX_SLOTS);
        let steady = |_| Steady { raises: AtomicU32::new(0), horizon: AtomicU32::new(u32::MAX) };
        let clock = |_| Clock { chunks: AtomicU64::new(0), half_entered: AtomicU64::new(NEVER) };
        Slots { steady: (0..slots).map(steady).collect(), clocks: (0..slots).map(clock).collect() }
    }

    pub(super) fn bytes(slots: usize) -> usize {
        slots * (size_of::<Steady>() + size_of::<Clock>())
    }

    pub(super) fn len(&self) -> usize {
        self.steady.len()
    }

    /// The slot's generation, or `None` for a slot that does not exist.
    pub(super) fn generation(&self, slot: u16) -> Option<u16> {
        self.steady.get(usize::from(slot)).map(|steady| read_raises(&steady.raises) as u16)
    }

    pub(super) fn raise(&self, slot: u16) -> Option<u16> {
        let steady = self.steady.get(usize::from(slot))?;
        // Release: pairs with the Acquire of `read_raises`.
        Some(steady.raises.fetch_add(1, Release).wrapping_add(1) as u16)
    }

    /// When the slot's generation entered the half that it is in, on the sweep's own scale; `None` if it has never left
    /// the first.
    pub(super) fn half_entered(&self, slot: u16) -> Option<u64> {
        let clock = self.clocks.get(usize::from(slot))?;
        Some(clock.half_entered.load(Relaxed)).filter(|&when| when != NEVER)
    }

    pub(super) fn enter_half(&self, slot: u16, when: u64) {
        if let Some(clock) = self.clocks.get(usize::from(slot)) {
            clock.half_entered.store(when, Relaxed);
        }
    }

    pub(super) fn is_live(&self, mark: Mark) -> bool {
        self.generation(mark.slot) == Some(mark.generation)
    }

    pub(super) fn horizon(&self, slot: u16) -> u32 {
        self.steady.get(usize::from(slot)).map_or(u32::MAX, |steady| steady.horizon.load(Relaxed))
    }

    pub(super) fn set_horizon(&self, slot: u16, chunks: u32) {
        if let Some(steady) = self.steady.get(usize::from(slot)) {
            // Every lookup reads this line: it is written when there is something to write.
            if steady.horizon.load(Relaxed) != chunks {
                steady.horizon.store(chunks, Relaxed);
            }
        }
    }

    /// In chunks.
    pub(super) fn clock(&self, slot: u16) -> u64 {
        self.clocks.get(usize::from(slot)).map_or(0, |clock| clock.chunks.load(Relaxed))
    }

    pub(super) fn now(&self, slot: u16) -> Stamp {
        Stamp::at(self.clock(slot))
    }

    /// The clock's line is read by every lookup that finds the slot.
    pub(super) fn advance(&self, slot: u16, chunks: u32) {
        if let Some(clock) = self.clocks.get(usize::from(slot)).filter(|_| chunks > 0) {
            clock.chunks.fetch_add(u64::from(chunks), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raise_voids_the_marks_of_its_slot_alone() {
        let slots = Slots::new(3);
        let mark = |slot, generation| Mark { slot, generation, held: 1, stamp: Stamp::at(0) };
        assert_eq!(slots.raise(1), Some(1));
        assert!(slots.is_live(mark(0, 0)) && !slots.is_live(mark(1, 0)) && slots.is_live(mark(1, 1)));
        assert!(!slots.is_live(mark(3, 0)), "a slot that does not exist holds nothing");
        assert_eq!(slots.raise(3), None);
    }

    #[test]
    fn a_clock_that_is_advanced_ages_the_marks_of_its_slot_alone() {
        let slots = Slots::new(2);
        let (before, other) = (slots.now(0), slots.now(1));
        slots.advance(0, 32 * 7);
        slots.advance(5, 1);
        assert_eq!((before.age_units(slots.now(0)), other.age_units(slots.now(1))), (7, 0));
    }
}
