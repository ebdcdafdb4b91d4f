//! The workers' counters, summed: what /metrics, /engines, the log table and the error lines are made of.

use std::collections::BTreeMap;

use super::lanes::Lanes;
use crate::metrics::shard::{CLASSES, ErrorKind, Histogram, Lane, MATCH_BOUNDS_BYTES, Shard, TIME_BUCKETS};
use crate::route::Reason;

/// Counts of a histogram's buckets and the sum of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Buckets<const N: usize> {
    pub(super) counts: [u64; N],
    pub(super) sum: u64,
}

impl<const N: usize> Default for Buckets<N> {
    fn default() -> Self {
        Buckets { counts: [0; N], sum: 0 }
    }
}

impl<const N: usize> Buckets<N> {
    pub(super) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// In the histogram's unit; none of nothing.
    pub(super) fn mean(&self) -> Option<f64> {
        let count = self.count();
        (count > 0).then(|| self.sum as f64 / count as f64)
    }

    fn add(&mut self, histogram: &Histogram<N>) {
        self.sum += histogram.add_to(&mut self.counts);
    }

    fn merge(&mut self, other: &Self) {
        self.sum += other.sum;
        self.counts.iter_mut().zip(other.counts).for_each(|(into, from)| *into += from);
    }
}

pub(super) type TimeBuckets = Buckets<TIME_BUCKETS>;
pub(super) type MatchBuckets = Buckets<{ MATCH_BOUNDS_BYTES.len() + 1 }>;

/// One lane over all workers, or several of them.
#[derive(Clone, Default)]
pub(super) struct Totals {
    pub(super) sent: [u64; Reason::ALL.len()],
    pub(super) errors: [u64; ErrorKind::ALL.len()],
    pub(super) duration: [TimeBuckets; CLASSES],
    pub(super) first_byte: TimeBuckets,
    pub(super) gap: TimeBuckets,
    pub(super) matched: MatchBuckets,
    pub(super) retries: u64,
    pub(super) connects: u64,
    pub(super) reuses: u64,
    pub(super) request_bytes: u64,
    pub(super) response_bytes: u64,
}

impl Totals {
    pub(super) fn sent(&self) -> u64 {
        self.sent.iter().sum()
    }

    /// Durations of all answers, whatever their status.
    pub(super) fn answers(&self) -> TimeBuckets {
        self.duration.iter().fold(TimeBuckets::default(), |mut all, class| {
            all.merge(class);
            all
        })
    }

    /// Failures that are the backend's, or the way's to it.
    pub(super) fn backend_errors(&self) -> u64 {
        ErrorKind::ALL.iter().filter(|kind| is_backends(**kind)).map(|kind| self.errors[*kind as usize]).sum()
    }

    fn add(&mut self, lane: &Lane) {
        self.sent.iter_mut().zip(&lane.sent).for_each(|(into, from)| *into += from.get());
        self.errors.iter_mut().zip(&lane.errors).for_each(|(into, from)| *into += from.get());
        self.duration.iter_mut().zip(&lane.duration).for_each(|(into, from)| into.add(from));
        self.first_byte.add(&lane.first_byte);
        self.gap.add(&lane.gap);
        self.matched.add(&lane.matched);
        self.retries += lane.retries.get();
        self.connects += lane.connects.get();
        self.reuses += lane.reuses.get();
        self.request_bytes += lane.request_bytes.get();
        self.response_bytes += lane.response_bytes.get();
    }

    fn merge(&mut self, other: &Totals) {
        self.sent.iter_mut().zip(other.sent).for_each(|(into, from)| *into += from);
        self.errors.iter_mut().zip(other.errors).for_each(|(into, from)| *into += from);
        self.duration.iter_mut().zip(&other.duration).for_each(|(into, from)| into.merge(from));
        self.first_byte.merge(&other.first_byte);
        self.gap.merge(&other.gap);
        self.matched.merge(&other.matched);
        self.retries += other.retries;
        self.connects += other.connects;
        self.reuses += other.reuses;
        self.request_bytes += other.request_bytes;
        self.response_bytes += other.response_bytes;
    }
}

/// Whether an error of this kind is to be looked for at the backend.
pub(super) fn is_backends(kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::Connect
        | ErrorKind::ConnectTimeout
        | ErrorKind::FirstByteTimeout
        | ErrorKind::BetweenBytesTimeout
        | ErrorKind::Broken
        | ErrorKind::BadResponse => true,
        ErrorKind::ClientGone | ErrorKind::ClientTimeout | ErrorKind::Internal => false,
    }
}

/// How often a worker read something of a server's answers: grows while the server answers requests.
pub(super) fn reads(shards: &[Shard], lanes: &Lanes, server: &str) -> u64 {
    let mut totals = Totals::default();
    for (number, lane) in shards.iter().flat_map(Shard::lanes) {
        if lanes.pair(number).0 == server {
            totals.add(lane);
        }
    }
    totals.first_byte.count() + totals.gap.count()
}

/// Waits for a backend to get below its limit, over all workers.
pub(super) fn queue_waits(shards: &[Shard]) -> TimeBuckets {
    let mut waits = TimeBuckets::default();
    shards.iter().for_each(|shard| waits.add(&shard.queue_wait));
    waits
}

/// Totals of each (server, model) that was counted in, in that order.
pub(super) fn by_pair<'a>(shards: &[Shard], lanes: &'a Lanes) -> BTreeMap<(&'a str, &'a str), Totals> {
    let mut pairs: BTreeMap<_, Totals> = BTreeMap::new();
    for (number, lane) in shards.iter().flat_map(Shard::lanes) {
        pairs.entry(lanes.pair(number)).or_default().add(lane);
    }
    pairs
}

/// The same, over all models of a server.
pub(super) fn by_server<'a>(pairs: &BTreeMap<(&'a str, &'a str), Totals>) -> BTreeMap<&'a str, Totals> {
    let mut servers: BTreeMap<_, Totals> = BTreeMap::new();
    for ((server, _), totals) in pairs {
        servers.entry(*server).or_default().merge(totals);
    }
    servers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::shard::BOUNDS_US;

    #[test]
    fn lanes_add_up_over_workers_and_models() {
        let mut lanes = Lanes::default();
        let (any, model) = (lanes.number("s", ""), lanes.number("s", "m"));
        let shards = [Shard::default(), Shard::default()];
        for (shard, lane, n) in [(&shards[0], any, 1), (&shards[0], model, 2), (&shards[1], model, 4)] {
            shard.lane(lane).sent[0].add(n);
            shard.lane(lane).errors[ErrorKind::ClientGone as usize].add(n);
            shard.lane(lane).errors[ErrorKind::Broken as usize].add(1);
            shard.lane(lane).duration[n as usize % CLASSES].observe(1000 * n, &BOUNDS_US);
        }
        let pairs = by_pair(&shards, &lanes);
        assert_eq!(pairs.keys().collect::<Vec<_>>(), [&("s", ""), &("s", "m")]);
        assert_eq!(pairs[&("s", "m")].sent(), 6);
        let server = &by_server(&pairs)["s"];
        assert_eq!(
            (server.sent(), server.backend_errors(), server.answers().sum, server.answers().count()),
            (7, 3, 7000, 3)
        );
    }
}
