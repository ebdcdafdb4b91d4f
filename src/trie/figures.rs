//! Figures that all threads count in: each thread on lines of its own, so that counting moves no line between cores.
//!
//! A figure is the sum over the lines, modulo 2^64: a thread may take off what another one has added. Exact when nobody counts
//! meanwhile. Relaxed everywhere: nothing hangs on their order.

use super::sync::Ordering::Relaxed;
use super::sync::counter::AtomicU64;
use super::sync::own_number;

/// With more threads than these, some share a line. One suffices a model.
pub(super) const LINES: usize = match (cfg!(any(loom, shuttle)), cfg!(test)) {
    (true, _) => 1,
    (false, true) => 4,
    (false, false) => 64,
};

#[derive(Clone, Copy)]
pub(super) enum Figure {
    Nodes,
    Chunks,
    Inserts,
    VoidInserts,
    RefusedInserts,
    EvictedNodes,
    SweptNodes,
}

const FIGURES: usize = Figure::SweptNodes as usize + 1;

/// Two lines of 64 bytes: processors fetch them in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Line([AtomicU64; FIGURES]);

/// Which of [`LINES`] lines is the calling thread's.
#[inline]
pub(super) fn own_line() -> usize {
    own_number() % LINES
}

pub(super) struct Figures(Box<[Line; LINES]>);

impl Figures {
    pub(super) fn new() -> Figures {
        Figures(Box::new(std::array::from_fn(|_| Line::default())))
    }

    pub(super) fn bytes() -> usize {
        LINES * size_of::<Line>()
    }

    #[inline]
    pub(super) fn add(&self, figure: Figure, count: u64) {
        self.0[own_line()].0[figure as usize].fetch_add(count, Relaxed);
    }

    pub(super) fn subtract(&self, figure: Figure, count: u64) {
        self.add(figure, count.wrapping_neg());
    }

    /// Not below zero, as a sum over lines that are written meanwhile could be.
    pub(super) fn sum(&self, figure: Figure) -> u64 {
        let sum = self.0.iter().fold(0_u64, |sum, line| sum.wrapping_add(line.0[figure as usize].load(Relaxed)));
        if sum > u64::MAX / 2 { 0 } else { sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_add_and_take_off_is_summed_up() {
        let figures = Figures::new();
        std::thread::scope(|scope| {
            for _ in 0..9 {
                scope.spawn(|| (0..1_000).for_each(|_| figures.add(Figure::Nodes, 2)));
            }
        });
        figures.subtract(Figure::Nodes, 17_999);
        assert_eq!((figures.sum(Figure::Nodes), figures.sum(Figure::Chunks)), (1, 0));
    }
}
