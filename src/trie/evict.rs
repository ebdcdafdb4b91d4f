//! Making room: sampled eviction.
//!
//! A victim is the worst of a small sample: no valid mark first, then oldest by the byte clock of the backend that used
//! it last, then deepest. Whoever marks a run marks all runs before it too, so a run is never older than what lies
//! behind it, up to the lag with which stamps are renewed; depth decides among equals.

use super::figures::Figure;
use super::mark::Mark;
use super::node::{Chain, NodeRef, OwnedNode, Shape};
use super::sync::Guard;
use super::table::{Edge, Published};
use super::{Trie, holders};

/// Runs that a sample should see, and buckets that it may read for them.
const SAMPLE_RUNS: usize = 6;
const SAMPLE_BUCKETS: usize = 12;

/// Victims that one reservation may take.
const MAX_VICTIMS: usize = 8;

/// Ages that differ by less than this many stamp units count as equal: stamps are renewed with such a lag.
const AGE_GRAIN: u32 = 8;

/// An answer to a request for memory.
pub(super) enum Room {
    Granted(Reserved),
    Refused,
}

/// Bytes that are in the budget for one node of this shape.
pub(super) struct Reserved(Shape);

impl Reserved {
    pub(super) fn build(self, depth: u32, head: &[u64], tail: &[u64]) -> OwnedNode {
        OwnedNode::new(self.0, depth, head, tail)
    }
}

/// How dispensable a run is; the greatest goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Dispensable {
    void: bool,
    age: u32,
    depth: u32,
}

impl Trie {
    /// Reserves memory for a node, after evicting what that takes. `seed` should differ from call to call; hashes do.
    pub(super) fn make_room(&self, shape: Shape, seed: u64, guard: &Guard) -> Room {
        let bytes = shape.bytes();
        self.reclaim.free_some();
        let mut excess = self.ledger().excess(bytes);
        for round in 0..MAX_VICTIMS as u64 {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(self.evict_one(seed, round, guard));
        }
        if self.ledger().reserve(bytes) {
            return Room::Granted(Reserved(shape));
        }
        self.reclaim.hand_over_all(guard);
        self.reclaim.free_some_of_all();
        if self.ledger().reserve(bytes) { Room::Granted(Reserved(shape)) } else { Room::Refused }
    }

    /// Puts `node` in the place of the most dispensable run of its full bucket.
    pub(super) fn displace(&self, node: OwnedNode, guard: &Guard) -> Published {
        let bucket = self.table.bucket_of(node.view().run()[0]);
        let Some(victim) = self.table.edges_in(bucket, guard).max_by_key(|edge| self.dispensable(edge.node)) else {
            return Published::Taken(node);
        };
        let outcome = self.table.displace(victim, node, guard, |old| self.retire(old, guard));
        if let Published::Done | Published::Withdrawn = outcome {
            self.ledger().figures.add(Figure::EvictedNodes, 1);
        }
        outcome
    }

    pub(super) fn retire(&self, node: Chain, guard: &Guard) {
        self.reclaim.retire(node, guard);
    }

    /// Evicts the worst run of a sample and returns its bytes.
    pub(super) fn evict_one(&self, seed: u64, round: u64, guard: &Guard) -> usize {
        let mut worst: Option<(Dispensable, Edge<'_>)> = None;
        let mut seen = 0;
        for probe in 0..SAMPLE_BUCKETS as u64 {
            let bucket = self.table.bucket_of(scatter(seed, round * SAMPLE_BUCKETS as u64 + probe));
            for edge in self.table.edges_in(bucket, guard) {
                seen += 1;
                let rank = self.dispensable(edge.node);
                if worst.is_none_or(|(least, _)| rank > least) {
                    worst = Some((rank, edge));
                }
            }
            if seen >= SAMPLE_RUNS {
                break;
            }
        }
        let Some(node) = worst.and_then(|(_, edge)| self.table.remove(edge)) else { return 0 };
        let bytes = node.first().bytes();
        self.ledger().figures.add(Figure::EvictedNodes, 1);
        self.retire(node, guard);
        bytes
    }

    fn dispensable(&self, node: NodeRef<'_>) -> Dispensable {
        let age = |mark: Mark| mark.stamp.age_units(self.slots.now(mark.slot)) / AGE_GRAIN;
        let youngest = holders::live(node.marks(), &self.slots).map(age).min();
        Dispensable { void: youngest.is_none(), age: youngest.unwrap_or(0), depth: node.depth() }
    }
}

/// The `count`-th of a sequence of well-spread numbers (splitmix64).
fn scatter(seed: u64, count: u64) -> u64 {
    let mut z = seed.wrapping_add((count + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
