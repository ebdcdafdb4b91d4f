//! The backends as both planes see them.
//!
//! `snapshot` is what is known of them: immutable, made by the control plane, swapped whole. `load` is what they are doing:
//! exact counters that every worker updates. `arrivals` is how often each was chosen of late: the control plane sums what
//! `load` counts. `prefill` is what they have to compute and how fast they are, `belief` how far back their caches reach:
//! both learnt from answers; `factors` compares the former, `cache` is the latter for those whose capacity is known. `outlier`
//! says which of them fail, `tenants` what each API key has in flight. A backend keeps its **slot** (an index into what is said
//! of backends) as long as it is
//! known.

pub mod arrivals;
pub mod belief;
pub mod cache;
mod factors;
pub mod load;
pub mod outlier;
pub mod prefill;
mod ratio;
pub mod snapshot;
pub mod tenants;
mod usual;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

use belief::Belief;
use cache::Cache;
use load::{InFlight, Load, Part};
use outlier::Outlier;
use prefill::Prefill;
use snapshot::Snapshot;
use tenants::Tenants;
use usual::Usual;

pub struct Fleet {
    snapshot: ArcSwap<Snapshot>,
    load: Box<[Load]>,
    prefill: Box<[Prefill]>,
    belief: Box<[Belief]>,
    cache: Box<[Cache]>,
    outlier: Box<[Outlier]>,
    /// What each worker counts of every slot's load.
    parts: Box<[Box<[Part]>]>,
    pub usual: Usual,
    pub tenants: Tenants,
    /// Of round robin, which alone is one rotation over all workers.
    turn: AtomicU64,
}

impl Fleet {
    /// A fleet that knows no backend yet.
    pub fn new(slots: usize, workers: usize, tenants: Tenants) -> Self {
        Fleet {
            snapshot: ArcSwap::from_pointee(Snapshot::unknown()),
            load: (0..slots).map(|_| Load::default()).collect(),
            prefill: (0..slots).map(|_| Prefill::default()).collect(),
            belief: (0..slots).map(|_| Belief::default()).collect(),
            cache: (0..slots).map(|_| Cache::default()).collect(),
            parts: (0..workers).map(|_| (0..slots).map(|_| Part::default()).collect()).collect(),
            usual: Usual::new(workers),
            outlier: (0..slots).map(|_| Outlier::default()).collect(),
            tenants,
            turn: AtomicU64::new(0),
        }
    }

    /// The present snapshot; workers keep it in an `arc_swap::Cache`.
    pub fn snapshot(&self) -> &ArcSwap<Snapshot> {
        &self.snapshot
    }

    /// Makes `snapshot` the present one. Requests that have read the old one finish with it.
    pub fn publish(&self, snapshot: Snapshot) {
        self.snapshot.store(Arc::new(snapshot));
    }

    pub fn load(&self, slot: u16) -> &Load {
        &self.load[usize::from(slot)]
    }

    /// Counts a request at the slot's backend, as [`Load::begin`].
    pub fn begin(&self, worker: usize, slot: u16, bytes: u64, limit: u32) -> Option<InFlight<'_>> {
        self.load(slot).begin(&self.parts[worker][usize::from(slot)], bytes, limit)
    }

    /// Requests whose answer has begun.
    pub fn answering(&self, slot: u16) -> u32 {
        self.parts.iter().map(|parts| parts[usize::from(slot)].answering()).sum()
    }

    /// Requests that have no first byte of an answer yet.
    pub fn waiting(&self, slot: u16) -> u32 {
        // Read apart, the two may differ by what is under way.
        let answering = self.answering(slot);
        self.load(slot).in_flight().saturating_sub(answering)
    }

    /// Body bytes of the requests in flight.
    pub fn in_flight_bytes(&self, slot: u16) -> u64 {
        self.parts.iter().map(|parts| parts[usize::from(slot)].bytes()).fold(0, u64::wrapping_add)
    }

    #[inline]
    pub fn prefill(&self, slot: u16) -> &Prefill {
        &self.prefill[usize::from(slot)]
    }

    pub fn belief(&self, slot: u16) -> &Belief {
        &self.belief[usize::from(slot)]
    }

    pub fn cache(&self, slot: u16) -> &Cache {
        &self.cache[usize::from(slot)]
    }

    #[inline]
    pub fn outlier(&self, slot: u16) -> &Outlier {
        &self.outlier[usize::from(slot)]
    }

    /// How far back the slot's cache is believed to reach when the trie's clock says `clock`, by its capacity if that is known.
    /// A learnt reach that is less than half of that outweighs it: then others fill the cache as well, whom this process does
    /// not see.
    pub fn reach_chunks(&self, slot: u16, chunk_tokens: f64, clock: u64) -> u32 {
        let learnt = self.belief(slot).reach_chunks();
        match self.cache(slot).reach(chunk_tokens, clock) {
            Some(known) if known == u32::MAX || learnt >= known / 2 => known,
            _ => learnt,
        }
    }

    /// From now on choices go by what these slots' backends have learnt of their speed, as far as they differ.
    pub fn compare_speeds(&self, slots: impl Iterator<Item = u16>) {
        let mut factors: Vec<(u16, f64)> = slots.map(|slot| (slot, self.prefill(slot).learnt_factor())).collect();
        factors::agree(&mut factors);
        for (slot, factor) in factors {
            self.prefill(slot).set_factor(factor);
        }
    }

    /// Forgets what was learnt of the slot's backend: it goes to another one.
    pub fn forget(&self, slot: u16) {
        self.load(slot).set_unreachable(false);
        self.prefill(slot).forget();
        self.belief(slot).forget();
        self.cache(slot).forget();
        self.outlier(slot).forget();
    }

    pub fn slots(&self) -> usize {
        self.load.len()
    }

    /// The next number of one sequence over all workers.
    pub fn next_turn(&self) -> u64 {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// The number that comes next, left where it is.
    pub fn coming_turn(&self) -> u64 {
        self.turn.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::{Fleet, Tenants};

    #[test]
    fn choices_go_by_speeds_as_far_as_they_differ() {
        const S: u64 = 1_000_000_000;
        let fleet = Fleet::new(4, 1, Tenants::new(0, 0));
        let took = [1.0, 1.08, 3.0, 1.0];
        for at in 0..60 {
            for (slot, took_s) in (0..).zip(took) {
                let (sent, taken_ns) = (at * 10 * S, (took_s * 1e9) as u64);
                fleet.prefill(slot).begin(1.0, 1, true, sent).first_token(sent + taken_ns, 1.0);
            }
        }
        fleet.compare_speeds(0..3);
        let factors: Vec<f64> = (0..4).map(|slot| fleet.prefill(slot).look(0).factor).collect();
        assert!((factors[0] - 1.04).abs() < 0.01 && factors[0] == factors[1], "{factors:?}");
        assert!((factors[2] - 3.0).abs() < 0.05 && factors[3] == 1.0, "the last was not compared: {factors:?}");
        fleet.forget(2);
        assert_eq!(fleet.prefill(2).look(0).factor, 1.0);
    }

    #[test]
    fn before_anything_is_known_no_model_is_said_to_be_absent() {
        let fleet = Fleet::new(4, 1, Tenants::new(0, 0));
        assert!(fleet.snapshot().load().learning);
    }
}
