//! The plain state in which the two planes meet. It lives as long as the process.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Instant;

use arc_swap::ArcSwap;

use crate::config::{Config, MAX_BACKENDS};
use crate::fleet::Fleet;
use crate::fleet::tenants::Tenants;
use crate::metrics::shard::Shard;
use crate::prompt::{HashKeys, HashSeed};
use crate::trie::Trie;

pub struct Shared {
    pub config: Config,
    pub fleet: Fleet,
    pub trie: Trie,
    /// One a worker.
    pub shards: Box<[Shard]>,
    /// Abstract name of the unix socket on which the control plane answers.
    pub control_socket: String,
    /// What `/health` says of the configuration, as JSON.
    pub configuration: ArcSwap<String>,
    /// How the workers wait for sockets, once they run.
    pub io_mode: &'static str,
    /// Open client connections, over all workers.
    pub connections: AtomicUsize,
    /// Requests that wait for a backend to get below its limit, over all workers.
    pub queued: AtomicUsize,
    /// What the workers' large buffers take together, with what each has in reserve.
    pub buffered_bytes: AtomicUsize,
    /// Listening sockets off which connections are still taken.
    pub listening: AtomicUsize,
    hashing: OnceLock<Hashing>,
    phase: AtomicU8,
    born: Instant,
}

/// By which prompts are hashed, from the first one to the end of the process.
struct Hashing {
    seed: HashSeed,
    keys: HashKeys,
}

impl Hashing {
    fn new(seed: HashSeed) -> Self {
        Hashing { keys: HashKeys::new(&seed), seed }
    }

    /// By a seed that nobody can foresee: the standard library has the system's random numbers as keys of SipHash.
    fn random() -> Self {
        let random = RandomState::new();
        Hashing::new(HashSeed::of_words(std::array::from_fn(|at| random.hash_one(at))))
    }
}

/// What the process is doing; it only moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It takes over from another process, which still serves: it accepts nothing yet.
    Starting,
    Running,
    /// Another process has taken over. No new connections; each open one is served once more, and told to close.
    Leaving,
    /// No new connections; running requests finish, connections that wait for the next one are closed.
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
            configuration: ArcSwap::from_pointee("null".to_owned()),
            io_mode,
            connections: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            buffered_bytes: AtomicUsize::new(0),
            listening: AtomicUsize::new(0),
            hashing: config
                .hash_seed
                .as_ref()
                .map_or_else(OnceLock::new, |text| OnceLock::from(Hashing::new(HashSeed::of_text(text.expose())))),
            phase: AtomicU8::new(Phase::Running as u8),
            born: Instant::now(),
            config,
        }
    }

    /// Hashes prompts by this seed, as another life of the router did, unless another one is settled. Whether this one is.
    pub fn adopt(&self, seed: &HashSeed) -> bool {
        self.hashing.get_or_init(|| Hashing::new(seed.clone())).seed == *seed
    }

    /// The seed by which prompts are hashed; settled from now on.
    pub fn hash_seed(&self) -> &HashSeed {
        &self.hashing.get_or_init(Hashing::random).seed
    }

    /// The keys of that seed.
    pub fn hash_keys(&self) -> &HashKeys {
        &self.hashing.get_or_init(Hashing::random).keys
    }

    /// Microseconds since the start, the same for all workers.
    pub fn micros(&self) -> u64 {
        self.born.elapsed().as_micros() as u64
    }

    pub fn phase(&self) -> Phase {
        const PHASES: [Phase; 4] = [Phase::Starting, Phase::Running, Phase::Leaving, Phase::Draining];
        PHASES[usize::from(self.phase.load(Ordering::Acquire))]
    }

    /// The process begins in [`Phase::Starting`] instead.
    #[must_use]
    pub fn starting(mut self) -> Self {
        self.phase = AtomicU8::new(Phase::Starting as u8);
        self
    }

    /// Moves on to `phase`, unless it is further already.
    pub fn advance(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
    }
}
