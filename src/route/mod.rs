//! Which backend? Pure choices: candidates in, a decision and its reason out.
//!
//! A caller builds the candidates (only usable backends that serve the model, without those that the request has already
//! tried) and passes in what varies: a random number, for round robin a turn. Nothing here knows a socket, a clock or the trie.

pub mod hold;
pub mod penalty;
pub mod slow_start;
pub mod ttft;

/// A backend that could take the request, with what the policies look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// Stable identity of the backend: a hash of its URL.
    pub identity: u64,
    /// Requests sent to it within the QPS window.
    pub in_window: u64,
    pub in_flight: u32,
    /// Body bytes of its requests in flight.
    pub in_flight_bytes: u64,
    /// Leading bytes of the prompt that it probably holds.
    pub matched_bytes: u64,
    /// How much of its share it does not get yet; 0: it gets all. See [`slow_start`].
    pub cold_permille: u16,
    /// Its last requests failed. See [`penalty`].
    pub penalized: bool,
}

/// Why a backend was chosen. The order is the index into metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It holds the longest known prefix of the prompt.
    Prefix,
    /// It has the lowest QPS.
    Qps,
    RoundRobin,
    Session,
    LeastLoad,
    /// Its first token is expected soonest, and nobody holds more of the prompt.
    Ttft,
    /// Its first token is expected soonest although another backend holds more of the prompt.
    TtftSpill,
    /// Its first token is expected soonest, and nobody holds any of the prompt.
    TtftCold,
}

impl Reason {
    pub const ALL: [Reason; 8] = [
        Reason::Prefix,
        Reason::Qps,
        Reason::RoundRobin,
        Reason::Session,
        Reason::LeastLoad,
        Reason::Ttft,
        Reason::TtftSpill,
        Reason::TtftCold,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Prefix => "prefix",
            Reason::Qps => "qps",
            Reason::RoundRobin => "roundrobin",
            Reason::Session => "session",
            Reason::LeastLoad => "leastload",
            Reason::Ttft => "ttft",
            Reason::TtftSpill => "ttft_spill",
            Reason::TtftCold => "ttft_cold",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Index into the candidates.
    pub index: usize,
    pub reason: Reason,
}

/// More candidates than this, and `leastload` compares two random ones instead of all.
const COMPARE_ALL_UP_TO: usize = 8;

/// What one request in flight weighs beside its prompt's bytes: its decoding, as bytes of prompt.
const REQUEST_WEIGHT_BYTES: u64 = 4096;

/// The longest match, if it has at least `min_match_bytes`, else the lowest QPS.
///
/// Of several that match equally, the one with the fewest requests in flight, then the lowest QPS, then at random.
pub fn prefixaware(candidates: &[Candidate], min_match_bytes: u64, random: u64) -> Option<Decision> {
    let longest = candidates.iter().map(|c| c.matched_bytes).max()?;
    if longest == 0 || longest < min_match_bytes {
        return lowest_qps(candidates, random);
    }
    let index =
        least(candidates, random, |c| (c.matched_bytes == longest).then_some((u64::from(c.in_flight), c.in_window)))?;
    Some(Decision { index, reason: Reason::Prefix })
}

/// The fewest requests within the window; ties: the fewest in flight, then at random.
pub fn lowest_qps(candidates: &[Candidate], random: u64) -> Option<Decision> {
    let index = least(candidates, random, |c| Some((c.in_window, u64::from(c.in_flight))))?;
    Some(Decision { index, reason: Reason::Qps })
}

/// Strict alternation: the caller's turn numbers come from one sequence over all workers.
pub fn roundrobin(candidates: &[Candidate], turn: u64) -> Option<Decision> {
    let n = candidates.len() as u64;
    (n > 0).then(|| Decision { index: (turn % n) as usize, reason: Reason::RoundRobin })
}

/// Rendezvous hashing of the session: adding or removing a backend moves only its share. Without a session: lowest QPS.
///
/// Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
pub fn session(candidates: &[Candidate], session: Option<u64>, random: u64) -> Option<Decision> {
    let Some(session) = session else { return lowest_qps(candidates, random) };
    let index = (0..candidates.len()).max_by_key(|&i| mix(session ^ mix(candidates[i].identity)))?;
    Some(Decision { index, reason: Reason::Session })
}

/// The fewest requests in flight weighted by prompt bytes; among many, the better of two random ones. Ties: the lowest QPS,
/// so that idle backends share, then at random.
pub fn leastload(candidates: &[Candidate], random: u64) -> Option<Decision> {
    let weight =
        |c: &Candidate| (c.in_flight_bytes.saturating_add(u64::from(c.in_flight) * REQUEST_WEIGHT_BYTES), c.in_window);
    let n = candidates.len();
    let index = if n > COMPARE_ALL_UP_TO {
        let first = (random >> 32) as usize % n;
        let second = (first + 1 + (random as u32) as usize % (n - 1)) % n;
        if weight(&candidates[second]) < weight(&candidates[first]) { second } else { first }
    } else {
        least(candidates, random, |c| Some(weight(c)))?
    };
    Some(Decision { index, reason: Reason::LeastLoad })
}

/// The index of the least rank; among equals, at random: a rotation shared by requests of every kind would resonate with
/// them. Candidates without a rank are out.
fn least<R: Ord + Copy>(
    candidates: &[Candidate],
    random: u64,
    rank: impl Fn(&Candidate) -> Option<R>,
) -> Option<usize> {
    let best = candidates.iter().filter_map(&rank).min()?;
    let equals = || candidates.iter().enumerate().filter(|(_, c)| rank(c) == Some(best)).map(|(index, _)| index);
    let count = equals().count() as u64;
    equals().nth((random % count) as usize)
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood, 2014): every input bit moves every output bit.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(in_window: u64, in_flight: u32, matched_bytes: u64) -> Candidate {
        Candidate { in_window, in_flight, matched_bytes, ..Candidate::default() }
    }

    fn chosen(decision: Option<Decision>) -> Option<(usize, Reason)> {
        decision.map(|d| (d.index, d.reason))
    }

    #[test]
    fn an_empty_fleet_gives_nothing() {
        assert_eq!(prefixaware(&[], 0, 0), None);
        assert_eq!(lowest_qps(&[], 0), None);
        assert_eq!(roundrobin(&[], 3), None);
        assert_eq!(session(&[], Some(1), 0), None);
        assert_eq!(leastload(&[], 0), None);
    }

    #[test]
    fn the_longest_match_wins_over_qps_from_the_threshold_on() {
        let candidates = [candidate(0, 0, 0), candidate(50, 9, 256), candidate(99, 9, 512)];
        assert_eq!(chosen(prefixaware(&candidates, 0, 0)), Some((2, Reason::Prefix)));
        assert_eq!(chosen(prefixaware(&candidates, 512, 0)), Some((2, Reason::Prefix)));
        assert_eq!(chosen(prefixaware(&candidates, 513, 0)), Some((0, Reason::Qps)));
    }

    #[test]
    fn nothing_matched_goes_by_qps_even_at_threshold_zero() {
        assert_eq!(chosen(prefixaware(&[candidate(7, 0, 0), candidate(3, 5, 0)], 0, 0)), Some((1, Reason::Qps)));
    }

    #[test]
    fn among_equal_matches_the_least_busy_then_the_lowest_qps_then_at_random() {
        let candidates = [candidate(1, 5, 256), candidate(9, 2, 256), candidate(3, 2, 256), candidate(3, 2, 256)];
        assert_eq!(chosen(prefixaware(&candidates, 0, 0)), Some((2, Reason::Prefix)));
        assert_eq!(chosen(prefixaware(&candidates, 0, 1)), Some((3, Reason::Prefix)));
    }

    #[test]
    fn ties_in_qps_go_to_the_fewest_in_flight_and_share_fairly() {
        assert_eq!(chosen(lowest_qps(&[candidate(1, 2, 0), candidate(1, 1, 0)], 0)), Some((1, Reason::Qps)));
        let mut counts = [0; 4];
        for random in 0..400 {
            counts[lowest_qps(&[candidate(0, 0, 0); 4], random).expect("some").index] += 1;
        }
        assert_eq!(counts, [100; 4], "numbers that are spread evenly spread the requests evenly");
    }

    #[test]
    fn sessions_stay_when_a_backend_leaves_and_share_evenly() {
        let fleet: Vec<_> = (0..8).map(|i| Candidate { identity: mix(i + 1), ..Candidate::default() }).collect();
        let home = |fleet: &[Candidate], s: u64| fleet[session(fleet, Some(mix(s)), 0).expect("some").index].identity;
        let mut counts = std::collections::HashMap::new();
        for s in 0..8000 {
            let before = home(&fleet, s);
            *counts.entry(before).or_insert(0) += 1;
            let after = home(&fleet[1..], s);
            assert!(before == after || before == fleet[0].identity, "session {s} moved although its backend stayed");
        }
        assert!(counts.values().all(|n| (800..1200).contains(n)), "{counts:?}");
    }

    #[test]
    fn without_a_session_the_lowest_qps_is_taken() {
        assert_eq!(chosen(session(&[candidate(5, 0, 0), candidate(4, 0, 0)], None, 0)), Some((1, Reason::Qps)));
    }

    #[test]
    fn leastload_weighs_bytes() {
        let long = Candidate { in_flight: 1, in_flight_bytes: 100_000, ..Candidate::default() };
        let short = Candidate { in_flight: 5, in_flight_bytes: 5_000, ..Candidate::default() };
        assert_eq!(chosen(leastload(&[long, short], 0)), Some((1, Reason::LeastLoad)));
        let mut many = [long; 16];
        many[7] = short;
        let hits = (0..4096u64).filter(|&r| leastload(&many, mix(r)).expect("some").index == 7).count();
        assert!((350..700).contains(&hits), "two of sixteen meet the idle one in 1/8 of the draws, not {hits} of 4096");
    }

    #[test]
    fn idle_backends_share_by_the_window() {
        let fleet = [candidate(8, 0, 0), candidate(7, 0, 0), candidate(7, 1, 0)];
        for random in 0..100 {
            assert_eq!(chosen(leastload(&fleet, mix(random))), Some((1, Reason::LeastLoad)));
        }
    }

    #[test]
    fn reasons_index_their_table() {
        for (index, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
        }
    }
}
