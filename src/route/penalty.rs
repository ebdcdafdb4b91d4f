//! Backends that have failed of late count for less: the others go first.
//!
//! A backend that fails fast is idle, so that each policy that weighs load would send it everything. It keeps only the
//! requests of which it holds more than every other backend: what it holds is worth a try, and the others are none the
//! wiser.

use super::Candidate;

/// Leaves out of `candidates`, and of `members` with them, those with a penalty that hold no more of the prompt than some
/// candidate without one. When all have one, all stay. The order is lost.
pub fn avoid<M>(candidates: &mut Vec<Candidate>, members: &mut Vec<M>) {
    if candidates.iter().all(|candidate| !candidate.penalized) {
        return;
    }
    let well = candidates.iter().filter(|candidate| !candidate.penalized);
    let Some(most_matched) = well.map(|candidate| candidate.matched_bytes).max() else { return };
    let mut at = 0;
    while let Some(candidate) = candidates.get(at) {
        if candidate.penalized && candidate.matched_bytes <= most_matched {
            candidates.swap_remove(at);
            members.swap_remove(at);
        } else {
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that are left of candidates with a penalty or none, and matches.
    fn left(of: &[(bool, u64)]) -> Vec<usize> {
        let candidate =
            |&(penalized, matched_bytes): &_| Candidate { penalized, matched_bytes, ..Candidate::default() };
        let mut candidates: Vec<Candidate> = of.iter().map(candidate).collect();
        let mut members: Vec<usize> = (0..of.len()).collect();
        avoid(&mut candidates, &mut members);
        assert!(members.iter().zip(&candidates).all(|(&at, left)| *left == candidate(&of[at])));
        members.sort_unstable();
        members
    }

    #[test]
    fn who_failed_stays_only_for_what_it_alone_holds() {
        assert_eq!(left(&[(false, 0), (true, 0), (true, 128)]), [0, 2]);
        assert_eq!(left(&[(true, 128), (false, 128), (true, 64), (false, 0)]), [1, 3]);
        assert_eq!(left(&[(false, 0), (false, 9)]), [0, 1]);
        assert_eq!(left(&[(true, 0), (true, 9)]), [0, 1], "there is nobody else");
        assert_eq!(left(&[]), [0; 0]);
    }
}
