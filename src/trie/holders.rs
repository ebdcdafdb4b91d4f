//! Changes to the marks of one run. Safe code over a slice of words.
//!
//! Every change is a CAS on one cell, Relaxed: a mark is complete in its word and leads to no other memory, so nothing
//! has to be ordered with it. A cell is free when it is empty or its mark is void.
//!
//! Before a run is copied its cells are frozen: a word with [`FROZEN`] never changes again. So whatever anybody put on
//! the run is in the copy, and whoever comes later learns that it must go to the copy.

use super::mark::{FROZEN, Mark, NO_MARK};
use super::slots::Slots;
use super::sync::Ordering::Relaxed;
use super::sync::{self, AtomicU64};

/// A mark is renewed when its stamp is this much behind, in stamp units: a hot run that all workers share is then not
/// written by each request.
pub(super) const RENEW_UNITS: u32 = 4;

/// Adds `mark`, or joins it with what the run says of that backend. Returns how many chunks are believed of it that
/// were not before; `None` if no cell is free, or if there is something to write and the cells are frozen.
pub(super) fn put(marks: &[AtomicU64], mark: Mark, slots: &Slots) -> Option<u32> {
    loop {
        let (cell, word, joined) = place(marks, mark, slots)?;
        let before = Mark::unpack(word).filter(|old| old.slot == mark.slot && old.generation == mark.generation);
        let fresh = u32::from(joined.held) - before.map_or(0, |old| u32::from(old.held));
        let current = before.is_some_and(|old| old.stamp.age_units(mark.stamp) < RENEW_UNITS);
        if fresh == 0 && current {
            return Some(0);
        }
        if word & FROZEN != 0 {
            return None;
        }
        if cell.compare_exchange(word, joined.pack(), Relaxed, Relaxed).is_ok() {
            return Some(fresh);
        }
    }
}

/// The cell that `mark` belongs in, what is in it, and what should be: the backend's own cell, or else the first free
/// one.
///
/// Each cell is read once: a free cell that another thread has taken since for the same backend makes the caller's CAS
/// fail, so two threads do not leave two marks of one backend. They still can when an earlier cell becomes free
/// between their looks; a lookup then takes one of the two.
fn place<'m>(marks: &'m [AtomicU64], mark: Mark, slots: &Slots) -> Option<(&'m AtomicU64, u64, Mark)> {
    let mut free = None;
    for cell in marks {
        let word = cell.load(Relaxed);
        match Mark::unpack(word) {
            Some(old) if old.slot == mark.slot => {
                let held = if old.generation == mark.generation { old.held.max(mark.held) } else { mark.held };
                return Some((cell, word, Mark { held, ..mark }));
            }
            Some(old) if slots.is_live(old) => {}
            _ => free = free.or(Some((cell, word, mark))),
        }
    }
    free
}

/// Makes every cell's word final.
pub(super) fn freeze(marks: &[AtomicU64]) {
    for cell in marks {
        sync::freeze(cell, FROZEN);
    }
}

/// Leaves the holder at most `keep` chunks of the run. Returns whether that could be done; not if the cells are frozen.
pub(super) fn shorten(marks: &[AtomicU64], slot: u16, generation: u16, keep: u8) -> bool {
    for cell in marks {
        let mut word = cell.load(Relaxed);
        while let Some(old) = Mark::unpack(word) {
            if old.slot != slot || old.generation != generation || old.held <= keep {
                break;
            }
            if word & FROZEN != 0 {
                return false;
            }
            let left = if keep == 0 { NO_MARK } else { Mark { held: keep, ..old }.pack() };
            match cell.compare_exchange(word, left, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
    }
    true
}

/// Clears void marks; returns whether a valid one is left. A copy leaves void marks out by itself.
pub(super) fn scrub(marks: &[AtomicU64], slots: &Slots) -> bool {
    let mut alive = false;
    for cell in marks {
        let word = cell.load(Relaxed);
        let Some(mark) = Mark::unpack(word) else { continue };
        if slots.is_live(mark) {
            alive = true;
        } else if word & FROZEN == 0 {
            // Failure means that somebody has just put a valid mark there, or is making a copy.
            alive |= cell.compare_exchange(word, NO_MARK, Relaxed, Relaxed).is_err();
        }
    }
    alive
}

/// The valid marks.
pub(super) fn live<'m>(marks: &'m [AtomicU64], slots: &'m Slots) -> impl Iterator<Item = Mark> + 'm {
    marks.iter().filter_map(|cell| Mark::unpack(cell.load(Relaxed))).filter(|&mark| slots.is_live(mark))
}

#[cfg(test)]
mod tests {
    use super::super::mark::Stamp;
    use super::*;

    fn cells(count: usize) -> Vec<AtomicU64> {
        (0..count).map(|_| AtomicU64::new(NO_MARK)).collect()
    }

    fn mark(slot: u16, held: u8, clock: u64) -> Mark {
        Mark { slot, generation: 0, held, stamp: Stamp::at(clock) }
    }

    #[test]
    fn a_backend_has_one_mark_that_keeps_the_longest() {
        let (marks, slots) = (cells(2), Slots::new(4));
        assert_eq!(put(&marks, mark(1, 5, 0), &slots), Some(5));
        assert_eq!(put(&marks, mark(1, 9, 0), &slots), Some(4));
        assert_eq!(put(&marks, mark(1, 3, 0), &slots), Some(0));
        assert_eq!(live(&marks, &slots).collect::<Vec<_>>(), [mark(1, 9, 0)]);
    }

    #[test]
    fn a_full_run_refuses_until_a_generation_voids_a_mark() {
        let (marks, slots) = (cells(2), Slots::new(4));
        assert_eq!(put(&marks, mark(0, 5, 0), &slots), Some(5));
        assert_eq!(put(&marks, mark(1, 5, 0), &slots), Some(5));
        assert_eq!(put(&marks, mark(2, 5, 0), &slots), None);
        slots.raise(0);
        assert_eq!(put(&marks, mark(2, 5, 0), &slots), Some(5));
        let left: Vec<u16> = live(&marks, &slots).map(|mark| mark.slot).collect();
        assert_eq!(left, [2, 1]);
    }

    #[test]
    fn nothing_is_written_while_the_stamp_is_current() {
        let (marks, slots) = (cells(1), Slots::new(1));
        put(&marks, mark(0, 5, 0), &slots);
        let before = marks[0].load(Relaxed);
        put(&marks, mark(0, 5, u64::from(RENEW_UNITS) * 32 - 1), &slots);
        assert_eq!(marks[0].load(Relaxed), before);
        put(&marks, mark(0, 5, u64::from(RENEW_UNITS) * 32), &slots);
        assert_ne!(marks[0].load(Relaxed), before);
    }

    #[test]
    fn frozen_cells_are_read_and_never_written() {
        let (marks, slots) = (cells(3), Slots::new(4));
        put(&marks, mark(0, 5, 0), &slots);
        put(&marks, mark(1, 5, 0), &slots);
        slots.raise(1);
        freeze(&marks);
        let words = || marks.iter().map(|cell| cell.load(Relaxed)).collect::<Vec<_>>();
        let before = words();
        assert_eq!(put(&marks, mark(0, 4, 0), &slots), Some(0), "there is nothing to write");
        assert_eq!(put(&marks, mark(0, 6, 0), &slots), None);
        assert_eq!(put(&marks, mark(2, 1, 0), &slots), None);
        assert!(!shorten(&marks, 0, 0, 1));
        assert!(shorten(&marks, 0, 0, 5), "there is nothing to write");
        assert!(scrub(&marks, &slots));
        assert_eq!(words(), before);
        assert_eq!(live(&marks, &slots).collect::<Vec<_>>(), [mark(0, 5, 0)]);
    }

    #[test]
    fn shortening_touches_one_holder_and_scrubbing_only_void_marks() {
        let (marks, slots) = (cells(3), Slots::new(4));
        for slot in 0..3 {
            put(&marks, mark(slot, 9, 0), &slots);
        }
        assert!(shorten(&marks, 1, 0, 4) && shorten(&marks, 2, 0, 0) && shorten(&marks, 0, 7, 0));
        assert_eq!(live(&marks, &slots).collect::<Vec<_>>(), [mark(0, 9, 0), mark(1, 4, 0)]);
        slots.raise(0);
        assert!(scrub(&marks, &slots));
        slots.raise(1);
        assert!(!scrub(&marks, &slots));
        assert!(marks.iter().all(|cell| cell.load(Relaxed) == NO_MARK));
    }
}
