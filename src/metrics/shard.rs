//! One worker's counters. One writer, the worker; any reader, at any time.
//!
//! Writes are a relaxed load and a relaxed store (no read-modify-write: there is one writer). A reader sees each counter
//! at some recent value; counters that belong together may be apart by the request that is being counted.
//!
//! Counters by server and model stand in **lanes**: the control plane numbers the (server, model) pairs, and a worker
//! makes a lane when it counts in it first.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

use crate::route::Reason;

/// How many (server, model) pairs are counted apart; those beyond share the last lane.
pub const MAX_LANES: usize = 4096;

/// Upper bounds of the buckets of every time histogram, in microseconds; one more bucket holds the rest.
pub const BOUNDS_US: [u64; 18] = [
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    120_000_000,
    600_000_000,
];

/// Upper bounds of the buckets of the match-length histogram, in bytes.
pub const MATCH_BOUNDS_BYTES: [u64; 10] = [0, 128, 512, 2048, 4096, 8192, 16_384, 65_536, 262_144, 1_048_576];

#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// For a gauge.
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counts of values up to each of `N - 1` bounds, and of those beyond, and their sum.
pub struct Histogram<const N: usize> {
    counts: [Counter; N],
    sum: Counter,
}

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Histogram { counts: std::array::from_fn(|_| Counter::default()), sum: Counter::default() }
    }
}

impl<const N: usize> Histogram<N> {
    /// Counts `value` in the first bucket whose bound is not below it. `bounds` has `N - 1` entries, ascending.
    pub fn observe(&self, value: u64, bounds: &[u64]) {
        debug_assert_eq!(bounds.len() + 1, N);
        self.counts[bounds.partition_point(|&bound| bound < value)].add(1);
        self.sum.add(value);
    }

    /// Adds this histogram's counts to `counts` and returns its sum.
    pub fn add_to(&self, counts: &mut [u64; N]) -> u64 {
        for (into, from) in counts.iter_mut().zip(&self.counts) {
            *into += from.get();
        }
        self.sum.get()
    }
}

pub const TIME_BUCKETS: usize = BOUNDS_US.len() + 1;
pub type TimeHistogram = Histogram<TIME_BUCKETS>;
pub type MatchHistogram = Histogram<{ MATCH_BOUNDS_BYTES.len() + 1 }>;

/// Why a request failed, as a metric's label. The order is the index into [`Lane::errors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    Connect,
    ConnectTimeout,
    FirstByteTimeout,
    BetweenBytesTimeout,
    /// The backend's connection ended or broke before or within its answer.
    Broken,
    /// The backend's answer is not valid HTTP.
    BadResponse,
    ClientGone,
    ClientTimeout,
    /// A fault of the router itself.
    Internal,
}

impl ErrorKind {
    pub const ALL: [ErrorKind; 9] = [
        ErrorKind::Connect,
        ErrorKind::ConnectTimeout,
        ErrorKind::FirstByteTimeout,
        ErrorKind::BetweenBytesTimeout,
        ErrorKind::Broken,
        ErrorKind::BadResponse,
        ErrorKind::ClientGone,
        ErrorKind::ClientTimeout,
        ErrorKind::Internal,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            ErrorKind::Connect => "connect",
            ErrorKind::ConnectTimeout => "connect_timeout",
            ErrorKind::FirstByteTimeout => "first_byte_timeout",
            ErrorKind::BetweenBytesTimeout => "between_bytes_timeout",
            ErrorKind::Broken => "broken",
            ErrorKind::BadResponse => "bad_response",
            ErrorKind::ClientGone => "client_gone",
            ErrorKind::ClientTimeout => "client_timeout",
            ErrorKind::Internal => "internal",
        }
    }
}

/// Why a request was turned away because of load, as a metric's label. The order is the index into [`Shard::rejected`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// As many requests wait as may.
    QueueFull,
    /// It has waited as long as it may.
    QueueTimeout,
    /// Its API key is at its limit.
    KeyLimit,
    /// The control plane has as many requests as it may.
    ControlLimit,
    /// The buffers have no room for its body.
    BufferedBytes,
}

impl Rejected {
    pub const ALL: [Rejected; 5] = [
        Rejected::QueueFull,
        Rejected::QueueTimeout,
        Rejected::KeyLimit,
        Rejected::ControlLimit,
        Rejected::BufferedBytes,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Rejected::QueueFull => "queue_full",
            Rejected::QueueTimeout => "queue_timeout",
            Rejected::KeyLimit => "key_limit",
            Rejected::ControlLimit => "control_limit",
            Rejected::BufferedBytes => "buffered_bytes",
        }
    }
}

/// Status classes 1xx to 5xx: `status / 100 - 1`.
pub const CLASSES: usize = 5;

/// What one worker counted for one server and model.
#[derive(Default)]
pub struct Lane {
    /// Attempts sent, by the reason of the choice.
    pub sent: [Counter; Reason::ALL.len()],
    pub errors: [Counter; ErrorKind::ALL.len()],
    /// Time from the request's head to the end of the answer, by status class: its counts are the answers.
    pub duration: [TimeHistogram; CLASSES],
    /// Time from the dispatch to the first byte of the answer.
    pub first_byte: TimeHistogram,
    /// Time between two reads of a streamed answer.
    pub gap: TimeHistogram,
    pub retries: Counter,
    pub connects: Counter,
    pub reuses: Counter,
    pub matched: MatchHistogram,
    pub request_bytes: Counter,
    pub response_bytes: Counter,
}

/// What the shadow policy would have chosen, beside what was chosen.
#[derive(Default)]
pub struct Shadow {
    pub requests: Counter,
    /// Both chose the same backend.
    pub agreed: Counter,
    pub prompt_bytes: Counter,
    /// Bytes of prompts that the chosen backends were believed to hold, and those of the shadow's choice.
    pub matched_bytes: Counter,
    pub shadow_matched_bytes: Counter,
}

/// On lines of its own: two workers never write one line.
#[repr(align(128))]
pub struct Shard {
    lanes: Box<[OnceLock<Box<Lane>>]>,
    /// Connections that the worker serves or served.
    pub accepted: Counter,
    /// Connections that another worker got, since it had clearly fewer.
    pub handed_over: Counter,
    /// Client connections that ended; `accepted - closed` are open.
    pub closed: Counter,
    /// Requests whose head was read in full, wherever they went.
    pub requests: Counter,
    /// Requests that the router answered with an error of its own, by status class (4xx, 5xx).
    pub refused: [Counter; 2],
    /// Those of them that were turned away because of load.
    pub rejected: [Counter; Rejected::ALL.len()],
    /// Time that requests waited for a backend to get below its limit; of those that had to wait, however it ended.
    pub queue_wait: TimeHistogram,
    pub shadow: Shadow,
    /// Requests for probes and pages, whether the worker or the control plane answers.
    pub control: Counter,
    /// Connections that ended by a panic in their code.
    pub panics: Counter,
    pub accept_errors: Counter,
    /// Prompts that were looked up in the trie.
    pub lookups: Counter,
    /// Body bytes that were spliced from socket to socket; `response_bytes` of a lane has them, too.
    pub spliced_bytes: Counter,
    /// Reads of streams that waited for a beat.
    pub beats: Counter,
    /// Pipes for splicing that are open, and those of them that carry an answer now.
    pub pipes_open: Counter,
    pub pipes_busy: Counter,
    /// The longest time that the worker was lately busy in one go, as its ticks saw it.
    pub longest_turn_us: Counter,
    /// The worker's thread id, for its CPU time; 0 until it runs.
    pub thread_id: AtomicI32,
}

impl Default for Shard {
    fn default() -> Self {
        Shard {
            lanes: (0..MAX_LANES).map(|_| OnceLock::new()).collect(),
            accepted: Counter::default(),
            handed_over: Counter::default(),
            closed: Counter::default(),
            requests: Counter::default(),
            refused: Default::default(),
            rejected: Default::default(),
            queue_wait: TimeHistogram::default(),
            shadow: Shadow::default(),
            control: Counter::default(),
            panics: Counter::default(),
            accept_errors: Counter::default(),
            lookups: Counter::default(),
            spliced_bytes: Counter::default(),
            beats: Counter::default(),
            pipes_open: Counter::default(),
            pipes_busy: Counter::default(),
            longest_turn_us: Counter::default(),
            thread_id: AtomicI32::new(0),
        }
    }
}

impl Shard {
    /// The lane of this number, made on first use.
    pub fn lane(&self, number: u32) -> &Lane {
        let at = (number as usize).min(MAX_LANES - 1);
        self.lanes[at].get_or_init(Box::default)
    }

    /// The lanes that the worker has counted in, with their numbers.
    pub fn lanes(&self) -> impl Iterator<Item = (u32, &Lane)> {
        (0..).zip(&self.lanes).filter_map(|(number, lane)| lane.get().map(|lane| (number, &**lane)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_belongs_below_it() {
        let histogram = MatchHistogram::default();
        for value in [0, 1, 128, 129, 1_048_576, 1_048_577] {
            histogram.observe(value, &MATCH_BOUNDS_BYTES);
        }
        let mut counts = [0; MATCH_BOUNDS_BYTES.len() + 1];
        assert_eq!(histogram.add_to(&mut counts), 1 + 128 + 129 + 1_048_576 + 1_048_577);
        assert_eq!(counts, [1, 2, 1, 0, 0, 0, 0, 0, 0, 1, 1]);
    }

    #[test]
    fn only_used_lanes_are_listed() {
        let shard = Shard::default();
        shard.lane(3).retries.add(2);
        shard.lane(u32::MAX).retries.add(1);
        let seen: Vec<_> = shard.lanes().map(|(number, lane)| (number, lane.retries.get())).collect();
        assert_eq!(seen, [(3, 2), (MAX_LANES as u32 - 1, 1)]);
    }

    #[test]
    fn labels_are_apart() {
        let labels: std::collections::HashSet<_> = ErrorKind::ALL.iter().map(|kind| kind.as_str()).collect();
        assert_eq!(labels.len(), ErrorKind::ALL.len());
        for (index, kind) in ErrorKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, index);
        }
        for (index, why) in Rejected::ALL.iter().enumerate() {
            assert_eq!(*why as usize, index);
        }
    }
}
