//! Requests in flight by API key, in a table of fixed size that stores no key.
//!
//! A count-min sketch (Cormode and Muthukrishnan, 2005) whose counters go down again: a key has one counter in each of two
//! rows, found by two halves of its seeded hash, and the smaller one is an upper bound on what the key has in flight. So a
//! key never passes its limit; another key is refused in its place only when both of its counters are shared with keys that
//! are at their limits. The seed is the process's own: nobody can choose keys that share counters.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Counters in a row: 512 KiB for both rows.
const ROW: usize = 1 << 16;

pub struct Tenants {
    seed: u64,
    /// Requests that one key may have in flight.
    limit: u32,
    /// Empty when there is no limit.
    rows: [Box<[AtomicU32]>; 2],
}

impl Tenants {
    /// A limit of 0 is none. `seed` should be random.
    pub fn new(limit: u32, seed: u64) -> Self {
        let row = || (0..if limit == 0 { 0 } else { ROW }).map(|_| AtomicU32::new(0)).collect();
        Tenants { seed, limit, rows: [row(), row()] }
    }

    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Counts a request of this key until the guard is dropped. `None`: the key is at its limit. Requests without a key are
    /// those of one more key, the empty one.
    pub fn begin(&self, key: &[u8]) -> Option<Tenant<'_>> {
        if self.limit == 0 {
            return Some(Tenant([None, None]));
        }
        let hash = xxh3_64_with_seed(key, self.seed);
        let counters = [&self.rows[0][hash as usize % ROW], &self.rows[1][(hash >> 32) as usize % ROW]];
        let before = counters.map(|counter| counter.fetch_add(1, Relaxed));
        // Dropped at once if it is refused: then it gives back what it has just taken.
        let tenant = Tenant(counters.map(Some));
        (before.into_iter().min() < Some(self.limit)).then_some(tenant)
    }
}

/// One request of a key in flight; dropping it releases its share.
#[must_use]
pub struct Tenant<'a>([Option<&'a AtomicU32>; 2]);

impl Drop for Tenant<'_> {
    fn drop(&mut self) {
        for counter in self.0.into_iter().flatten() {
            counter.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stops_at_its_limit_and_others_do_not_notice() {
        let tenants = Tenants::new(3, 7);
        let held: Vec<_> = (0..3).map(|_| tenants.begin(b"greedy").expect("below the limit")).collect();
        for _ in 0..100 {
            assert!(tenants.begin(b"greedy").is_none());
        }
        let others = (0..1_000u32).filter(|n| tenants.begin(&n.to_le_bytes()).is_some()).count();
        assert_eq!(others, 1_000);
        drop(held);
        assert!(tenants.begin(b"greedy").is_some());
        assert!(tenants.rows.iter().flat_map(|row| row.iter()).all(|counter| counter.load(Relaxed) == 0));
    }

    #[test]
    fn few_are_refused_in_anothers_place_even_among_many_greedy_ones() {
        let tenants = Tenants::new(1, 7);
        let held: Vec<_> = (0..1_000u32).map(|n| tenants.begin(&n.to_le_bytes())).collect();
        let refused = (1_000..101_000u32).filter(|n| tenants.begin(&n.to_le_bytes()).is_none()).count();
        // (1000 / 65,536)² of 100,000 is 23.
        assert!(held.iter().flatten().count() > 990 && refused < 80, "{refused} of 100,000");
    }

    #[test]
    fn without_a_limit_nothing_is_counted() {
        let tenants = Tenants::new(0, 7);
        let held: Vec<_> = (0..1_000).map(|_| tenants.begin(b"x").expect("no limit")).collect();
        assert!(held.len() == 1_000 && tenants.rows.iter().all(|row| row.is_empty()));
    }
}
