//! A mark: the belief that one backend holds the first chunks of one run, packed into a word.
//!
//! Knows nothing of nodes or of other marks. A mark is read and written as one word, so no reader ever sees half of
//! one.

/// Slots that a mark can name: 12 bits.
pub const MAX_SLOTS: usize = 1 << 12;

/// Chunks in a unit of a stamp. With chunks of 128 bytes a unit is 4 KiB of text.
pub(super) const STAMP_CHUNKS: u64 = 32;

const STAMP_BITS: u32 = 28;
const HELD_MASK: u64 = 0x7f;

/// The most chunks that a mark can count.
pub(super) const MAX_HELD: usize = HELD_MASK as usize;

/// Set in a cell whose word is final, because a copy of its run is about to take the run's place.
pub(super) const FROZEN: u64 = 1 << 35;

const STAMP_MASK: u32 = (1 << STAMP_BITS) - 1;

/// A moment on a backend's byte clock, in units of [`STAMP_CHUNKS`], modulo 2^28.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(u32);

impl Stamp {
    pub(super) fn at(clock_chunks: u64) -> Stamp {
        Stamp((clock_chunks / STAMP_CHUNKS) as u32 & STAMP_MASK)
    }

    /// The moment so many units before `now`; half the circle at most.
    pub(super) fn behind(now: Stamp, age_units: u32) -> Stamp {
        Stamp(now.0.wrapping_sub(age_units.min(STAMP_MASK >> 1)) & STAMP_MASK)
    }

    /// What the clock said so many chunks before, modulo 2^33.
    pub(super) fn before(self, age_chunks: u32) -> u64 {
        u64::from(self.0.wrapping_sub(age_chunks / STAMP_CHUNKS as u32) & STAMP_MASK) * STAMP_CHUNKS
    }

    /// How much the clock has moved since `self`, in stamp units.
    ///
    /// The clock is read before the mark, so a mark may be a little ahead of it: the upper half of the circle counts
    /// as zero. A mark that nobody renews for 2^27 units (512 GiB of text sent to that backend) would look young again;
    /// it is long evicted by then.
    pub(super) fn age_units(self, now: Stamp) -> u32 {
        let age = now.0.wrapping_sub(self.0) & STAMP_MASK;
        if age >> (STAMP_BITS - 1) == 0 { age } else { 0 }
    }
}

/// `held` ≥ 1 chunks of the run, from its start and without a gap, were sent to `slot` in its `generation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) slot: u16,
    pub(super) generation: u16,
    pub(super) held: u8,
    pub(super) stamp: Stamp,
}

/// The word of a cell without a mark, [`FROZEN`] aside. No mark packs to it, because `held` is never 0.
pub(super) const NO_MARK: u64 = 0;

impl Mark {
    pub(super) fn pack(self) -> u64 {
        debug_assert!((1..=MAX_HELD).contains(&usize::from(self.held)) && usize::from(self.slot) < MAX_SLOTS);
        u64::from(self.slot)
            | u64::from(self.generation) << 12
            | u64::from(self.held) << 28
            | u64::from(self.stamp.0) << 36
    }

    pub(super) fn unpack(word: u64) -> Option<Mark> {
        let held = (word >> 28 & HELD_MASK) as u8;
        (held > 0).then_some(Mark {
            slot: (word & 0xfff) as u16,
            generation: (word >> 12) as u16,
            held,
            stamp: Stamp((word >> 36) as u32),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_survives_packing_at_the_ends_of_every_field() {
        for slot in [0, 1, 4095] {
            for generation in [0, 1, u16::MAX] {
                for held in [1, 124, MAX_HELD as u8] {
                    for clock in [0, 1 << 20, (u64::from(STAMP_MASK)) * STAMP_CHUNKS] {
                        let mark = Mark { slot, generation, held, stamp: Stamp::at(clock) };
                        assert_ne!(mark.pack(), NO_MARK);
                        assert_eq!(mark.pack() & FROZEN, 0);
                        assert_eq!(Mark::unpack(mark.pack() | FROZEN), Some(mark));
                        assert_eq!(Mark::unpack(mark.pack()), Some(mark));
                    }
                }
            }
        }
        assert_eq!(Mark::unpack(NO_MARK), None);
        assert_eq!(Mark::unpack(NO_MARK | FROZEN), None);
    }

    #[test]
    fn age_counts_through_the_wrap_of_the_stamp_and_never_below_zero() {
        let wrap = 1u64 << STAMP_BITS;
        let before = Stamp::at((wrap - 2) * STAMP_CHUNKS);
        assert_eq!(before.age_units(Stamp::at((wrap + 3) * STAMP_CHUNKS)), 5);
        let ahead = Stamp::at(10 * STAMP_CHUNKS);
        assert_eq!(ahead.age_units(Stamp::at(7 * STAMP_CHUNKS)), 0);
    }
}
