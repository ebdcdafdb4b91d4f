//! The plain state in which the two planes meet. It lives as long as the process.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Instant;

use crate::config::{Config, MAX_BACKENDS};
use crate::fleet::Fleet;
use crate::fleet::tenants::Tenants;
use crate::metrics::shard::Shard;
use crate::trie::Trie;

pub struct Shared {
    pub config: Config,
    pub fleet: Fleet,
    pub trie: Trie,
    /// One a worker.
    pub shards: Box<[Shard]>,
    /// Abstract name of the unix socket on which the control plane answers.
    pub control_socket: String,
    /// How the workers wait for sockets, once they run.
    pub io_mode: &'static str,
    /// Open client connections, over all workers.
    pub connections: AtomicUsize,
    /// Requests that wait for a backend to get below its limit, over all workers.
    pub queued: AtomicUsize,
    /// Workers that still take connections off their listening sockets.
    pub listening: AtomicUsize,
    phase: AtomicU8,
    born: Instant,
}

/// What the process is doing; it only moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Running,
    /// No new connections; running requests finish.
    Draining,
}

impl Shared {
    pub fn new(config: Config, trie: Trie, control_socket: String, io_mode: &'static str) -> Self {
        let workers = config.workers;
        let tenants = Tenants::new(config.overload.inflight_per_key, RandomState::new().hash_one(workers));
        Shared {
            fleet: Fleet::new(MAX_BACKENDS, workers, tenants),
            trie,
            shards: (0..workers).map(|_| Shard::default()).collect(),
            control_socket,
            io_mode,
            connections: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            listening: AtomicUsize::new(0),
            phase: AtomicU8::new(Phase::Running as u8),
            born: Instant::now(),
            config,
        }
    }

    /// Microseconds since the start, the same for all workers.
    pub fn micros(&self) -> u64 {
        self.born.elapsed().as_micros() as u64
    }

    pub fn phase(&self) -> Phase {
        if self.phase.load(Ordering::Acquire) == Phase::Running as u8 { Phase::Running } else { Phase::Draining }
    }

    pub fn drain(&self) {
        self.phase.store(Phase::Draining as u8, Ordering::Release);
    }
}
