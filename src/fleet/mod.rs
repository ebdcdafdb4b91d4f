//! The backends as both planes see them.
//!
//! `snapshot` is what is known of them: immutable, made by the control plane, swapped whole. `load` is what they are doing:
//! exact counters that every worker updates. `arrivals` is how often each was chosen: counted per worker, summed by the
//! control plane. `prefill` is what they have to compute and how fast they are, `belief` how far back their caches reach:
//! both learnt from answers. A backend keeps its **slot** (an index into all of these) as long as it is known.

pub mod arrivals;
pub mod belief;
pub mod load;
pub mod prefill;
pub mod snapshot;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use arc_swap::ArcSwap;

use arrivals::Arrivals;
use belief::Belief;
use load::Load;
use prefill::Prefill;
use snapshot::Snapshot;

pub struct Fleet {
    snapshot: ArcSwap<Snapshot>,
    load: Box<[Load]>,
    prefill: Box<[Prefill]>,
    belief: Box<[Belief]>,
    pub arrivals: Arrivals,
    turn: AtomicU64,
    born: Instant,
}

impl Fleet {
    /// A fleet that knows no backend yet.
    pub fn new(slots: usize, workers: usize) -> Self {
        Fleet {
            snapshot: ArcSwap::from_pointee(Snapshot::default()),
            load: (0..slots).map(|_| Load::default()).collect(),
            prefill: (0..slots).map(|_| Prefill::default()).collect(),
            belief: (0..slots).map(|_| Belief::default()).collect(),
            arrivals: Arrivals::new(slots, workers),
            turn: AtomicU64::new(0),
            born: Instant::now(),
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

    pub fn prefill(&self, slot: u16) -> &Prefill {
        &self.prefill[usize::from(slot)]
    }

    pub fn belief(&self, slot: u16) -> &Belief {
        &self.belief[usize::from(slot)]
    }

    pub fn slots(&self) -> usize {
        self.load.len()
    }

    /// Nanoseconds since the fleet was made: the clock of [`Prefill`].
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The next number of one sequence over all workers: round robin and the rotation among equals.
    pub fn next_turn(&self) -> u64 {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }
}
