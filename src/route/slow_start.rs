//! Backends that are warming up: they came back, or came, a moment ago, and their share of the requests grows.
//!
//! Nothing runs there, so that each policy would send them everything at once, while their caches are empty. Two measures, for
//! as long as they are cold: a request that a backend does not hold a match for considers it only with the probability of its
//! warmth, and what it has counts for more, by the inverse of its warmth. So it gets at most its warmth's share of the requests,
//! and has at most the same share of what the others have. In the QPS window it is each request that counts for more, from when
//! it was sent on (`fleet/arrivals`): were it the whole window, a share that grows would leave a gap to be filled at once.

use super::Candidate;

/// What `cold_permille` can be at most: a backend without any share would never warm up.
pub const MAX_COLD_PERMILLE: u16 = 990;

/// Prepares `candidates`, and `members` with them, for a policy. A match from `pinned_from_bytes` on keeps a candidate in;
/// so does a request for which there would be no other. `draw` is a random number, or a session's, which then stays where
/// it is.
pub fn weigh<M>(candidates: &mut Vec<Candidate>, members: &mut Vec<M>, pinned_from_bytes: u64, draw: u64) {
    if candidates.iter().all(|c| c.cold_permille == 0) {
        return;
    }
    let pinned = |c: &Candidate| c.matched_bytes >= pinned_from_bytes.max(1);
    let stays = |c: &Candidate| pinned(c) || mixed(draw ^ c.identity) % 1000 >= u64::from(c.cold_permille);
    if candidates.iter().any(stays) {
        let mut verdicts = candidates.iter().map(stays).collect::<Vec<_>>().into_iter();
        members.retain(|_| verdicts.next().unwrap_or(true));
        candidates.retain(stays);
    }
    for candidate in candidates.iter_mut().filter(|c| c.cold_permille > 0) {
        let dearer = |n: u64| dearer(n, candidate.cold_permille);
        candidate.in_flight = u32::try_from(dearer(candidate.in_flight.into())).unwrap_or(u32::MAX);
        candidate.in_flight_bytes = dearer(candidate.in_flight_bytes);
    }
}

/// What `n` counts for at a backend that is so cold.
pub fn dearer(n: u64, cold_permille: u16) -> u64 {
    n.saturating_mul(1000) / u64::from(1000 - cold_permille.min(MAX_COLD_PERMILLE))
}

/// Two draws of one session are the same, those of two backends are not.
fn mixed(x: u64) -> u64 {
    super::mix(x) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::{lowest_qps, roundrobin, session};

    /// How many of `n` requests each of four backends gets by `choose`, the first being this cold at each of them. All begin
    /// with the same window, which none of the requests leaves.
    fn shares(cold_permille: impl Fn(u64) -> u16, n: u64, choose: impl Fn(&[Candidate], u64) -> usize) -> [u64; 4] {
        // In thousandths of a request.
        let (mut window, mut counts) = ([250_000; 4], [0; 4]);
        for turn in 0..n {
            let cold_permille = cold_permille(turn);
            let mut candidates: Vec<_> = (0..4u64)
                .map(|i| Candidate { identity: i + 1, in_window: window[i as usize], ..Candidate::default() })
                .collect();
            candidates[0].cold_permille = cold_permille;
            let mut members = vec![0, 1, 2, 3];
            weigh(&mut candidates, &mut members, 1, turn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let chosen = members[choose(&candidates, turn)];
            counts[chosen] += 1;
            window[chosen] += if chosen == 0 { dearer(1000, cold_permille) } else { 1000 };
        }
        counts
    }

    #[test]
    fn a_cold_backend_gets_its_warmths_share_and_nothing_is_made_up_for_later() {
        let qps = |candidates: &[Candidate], turn| lowest_qps(candidates, turn).expect("some").index;
        let [cold, others @ ..] = shares(|_| 900, 2000, qps);
        assert!((45..85).contains(&cold), "{cold} of 2000: a tenth of what each of the others has, {others:?}");
        assert_eq!(shares(|_| 0, 200, qps), [50; 4]);
        let [warming, ..] = shares(|turn| 990 - (turn / 10) as u16, 9900, qps);
        let [warm, ..] = shares(|turn| 990_u16.saturating_sub((turn / 10) as u16), 11_900, qps);
        // The integral of w/(3 + w), the share at a warmth of w, is 0.137.
        assert!((1250..1450).contains(&warming), "{warming} of 9900 on the way");
        assert!((warm - warming).abs_diff(500) < 50, "{} of 2000: a fourth once it is warm", warm - warming);
        let turns = |candidates: &[Candidate], turn| roundrobin(candidates, turn).expect("some").index;
        let [half, ..] = shares(|_| 500, 4000, turns);
        assert!((400..600).contains(&half), "{half} of 4000 in rotation: half of a fourth");
    }

    #[test]
    fn sessions_move_once_to_a_backend_that_warms_up() {
        let home = |cold_permille, id: u64| {
            let mut candidates: Vec<_> =
                (1..5).map(|identity| Candidate { identity, ..Candidate::default() }).collect();
            candidates[0].cold_permille = cold_permille;
            let mut members = vec![0, 1, 2, 3];
            weigh(&mut candidates, &mut members, 1, id);
            members[session(&candidates, Some(id), 0).expect("some").index]
        };
        for number in 0..500u64 {
            let id = super::super::mix(number);
            let way: Vec<_> = [990, 700, 400, 100, 0].map(|cold| home(cold, id)).into();
            let moves = way.windows(2).filter(|pair| pair[0] != pair[1]).count();
            assert!(moves == 0 || moves == 1 && way[4] == 0, "{way:?}");
        }
    }

    #[test]
    fn a_match_keeps_it_in_and_so_does_a_request_without_another_choice() {
        let cold = Candidate { cold_permille: MAX_COLD_PERMILLE, identity: 1, ..Candidate::default() };
        for (matched_bytes, threshold, expected) in [(512, 256, 1000), (256, 512, 0), (0, 0, 0)] {
            let kept = (0..1000u64)
                .filter(|draw| {
                    let warm = Candidate { identity: 2, ..Candidate::default() };
                    let (mut candidates, mut members) =
                        (vec![Candidate { matched_bytes, ..cold }, warm], vec!["cold", "warm"]);
                    weigh(&mut candidates, &mut members, threshold, draw << 20);
                    assert_eq!(candidates.len(), members.len());
                    members.contains(&"cold")
                })
                .count();
            assert!(kept.abs_diff(expected) <= 30, "{kept} of 1000 at {matched_bytes} bytes of {threshold}");
        }
        let (mut candidates, mut members) = (vec![Candidate { in_flight: 3, in_window: 2, ..cold }], vec!["cold"]);
        (0..100).for_each(|draw| weigh(&mut candidates, &mut members, 1, draw << 32));
        assert_eq!(members, ["cold"]);
    }
}
