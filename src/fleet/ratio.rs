//! A ratio of two sums that fades: a share of what was learnt first goes whenever there is more than a window of evidence.
//!
//! Both sums are f32 in one word, so that whoever reads them reads two of one moment. Of two that learn at once, one lesson is
//! lost. Relaxed: nothing hangs on the order.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub(super) struct Ratio(AtomicU64);

impl Ratio {
    pub(super) fn new(part: f32, whole: f32) -> Self {
        Ratio(AtomicU64::new(pack(part, whole)))
    }

    #[inline]
    pub(super) fn sums(&self) -> (f32, f32) {
        let word = self.0.load(Relaxed);
        (f32::from_bits((word >> 32) as u32), f32::from_bits(word as u32))
    }

    /// Begins anew.
    pub(super) fn set(&self, part: f32, whole: f32) {
        self.0.store(pack(part, whole), Relaxed);
    }

    /// Adds to both, and keeps the whole within `window`. What is no number, or less than nothing, is not added.
    pub(super) fn learn(&self, part: f32, whole: f32, window: f32) {
        if !(part >= 0.0 && whole > 0.0 && part.is_finite() && whole.is_finite()) {
            return;
        }
        let (mut parts, mut wholes) = self.sums();
        parts += part;
        wholes += whole;
        let keep = (window / wholes).min(1.0);
        self.set(parts * keep, wholes * keep);
    }
}

fn pack(part: f32, whole: f32) -> u64 {
    u64::from(part.to_bits()) << 32 | u64::from(whole.to_bits())
}

#[cfg(test)]
mod tests {
    use super::Ratio;

    #[test]
    fn what_is_no_number_is_not_added() {
        let ratio = Ratio::new(4.0, 1.0);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0] {
            ratio.learn(bad, 1.0, 10.0);
            ratio.learn(1.0, bad, 10.0);
        }
        ratio.learn(1.0, 0.0, 10.0);
        assert_eq!(ratio.sums(), (4.0, 1.0));
    }

    #[test]
    fn what_is_learnt_outweighs_what_was_known_first_once_the_window_is_full() {
        let ratio = Ratio::new(4.0, 1.0);
        ratio.learn(1.0, 1.0, 10.0);
        assert_eq!(ratio.sums(), (5.0, 2.0));
        (0..60).for_each(|_| ratio.learn(1.0, 1.0, 10.0));
        let (part, whole) = ratio.sums();
        assert!((whole - 10.0).abs() < 1e-3 && (part / whole - 1.0).abs() < 0.01, "{part} of {whole}");
        ratio.set(4.0, 1.0);
        assert_eq!(ratio.sums(), (4.0, 1.0));
    }
}
