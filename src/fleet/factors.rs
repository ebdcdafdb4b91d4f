//! Learnt factors that are close to each other are taken for one.
//!
//! A factor is what an engine's prompts took over what they were expected to take. So it has the errors of that expectation
//! as well, and these depend on what an engine is sent: short prompts beside many answers take a few percent longer than
//! expected, long ones do not. If the choice followed such differences, long prompts would go where long prompts went
//! before.

/// Factors whose ratio is less count as close: engines of one kind learn factors within a few percent, two kinds of GPU are
/// further apart than this.
const CLOSE: f64 = 1.15;

/// Puts in the place of each slot's factor the mean of all that are close to it.
pub(super) fn agree(factors: &mut [(u16, f64)]) {
    factors.sort_unstable_by(|(_, a), (_, b)| a.total_cmp(b));
    let sums: Vec<f64> = std::iter::once(0.0)
        .chain(factors.iter().scan(0.0, |sum, (_, factor)| {
            *sum += factor;
            Some(*sum)
        }))
        .collect();
    let learnt: Vec<f64> = factors.iter().map(|(_, factor)| *factor).collect();
    let (mut first, mut end) = (0, 0);
    for (at, (_, factor)) in factors.iter_mut().enumerate() {
        while learnt[first] * CLOSE < learnt[at] {
            first += 1;
        }
        while end < learnt.len() && learnt[end] < learnt[at] * CLOSE {
            end += 1;
        }
        *factor = (sums[end] - sums[first]) / (end - first) as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::agree;

    fn agreed(learnt: &[f64]) -> Vec<f64> {
        let mut factors: Vec<(u16, f64)> = (0..).zip(learnt.iter().copied()).collect();
        agree(&mut factors);
        factors.sort_unstable_by_key(|(slot, _)| *slot);
        factors.into_iter().map(|(_, factor)| (factor * 1000.0).round() / 1000.0).collect()
    }

    #[test]
    fn engines_of_one_kind_are_equally_fast() {
        assert_eq!(agreed(&[1.0, 1.02, 1.07, 0.99]), [1.02; 4]);
        assert_eq!(agreed(&[3.1]), [3.1]);
        assert!(agreed(&[]).is_empty());
    }

    #[test]
    fn kinds_are_told_apart() {
        assert_eq!(agreed(&[1.0, 3.0, 1.1, 3.2, 9.0]), [1.05, 3.1, 1.05, 3.1, 9.0]);
    }

    #[test]
    fn a_slower_engine_never_counts_as_faster() {
        let learnt: Vec<f64> = (0..40).map(|at| 1.04_f64.powi(at)).collect();
        assert!(agreed(&learnt).is_sorted());
    }
}
