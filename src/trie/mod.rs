//! The lock-free hash trie from prompt prefixes to the backends that probably hold them; no IO, no clock, no threads.
//!
//! A key is a sequence of chained chunk hashes, each naming the whole prefix up to it. A node is a run of up to
//! [`node::MAX_RUN`] consecutive hashes with, for each backend that holds some of it, a mark: how many of its chunks,
//! and when on that backend's byte clock. Because a hash names its whole prefix, the node that goes on after any chunk
//! is found in one flat table by the next hash alone: other runs can branch off the middle of a run, and since each
//! mark carries its own length, a run is never split.
//!
//! A backend's byte clock counts chunks that were sent to it and that it was not believed to hold: what displaces
//! other content of its cache. A mark's age is what the clock has moved since.
//!
//! # Concurrency contract
//!
//! Every method may be called from any thread at any time. Each operation is synchronous, bounded, and under one pin, which
//! ends with it unless the thread asked to keep it ([`Trie::keep`]). No guard and no reference to a node leaves this
//! module. Nobody waits for anybody: a lost CAS means that another thread got on.
//!
//! | field | written by | with | read with |
//! |---|---|---|---|
//! | table cell | insert (publish, displace, replace by a copy), eviction, sweep: [`sync::swing`] | CAS, Release | Acquire |
//! | run, length, room, depth of a node | whoever makes the node, before it is published; then never | plain | plain, behind the cell's Acquire |
//! | mark | insert, forget, sweep | CAS, Relaxed | Relaxed: a mark is whole in its word and leads nowhere |
//! | frozen bit of a mark's cell | insert, before it copies the run: [`sync::freeze`] | or, Relaxed; then the cell never changes | by the CAS that fails |
//! | raises of a slot | raise | add, Release | Acquire: [`sync::read_raises`] |
//! | head and links of the reclaimer's stacks, one pair a thread | retiring, the epoch's destructors | CAS, Release | swap, Acquire |
//! | horizon, clock of a slot; sweep position | anyone, when it has something to write | Relaxed | Relaxed: figures, nothing hangs on their order |
//! | figures, allowances of the ledger | one thread each, as long as there are at most 64 | Relaxed | Relaxed: sums |
//! | what is taken of the budget; backlog | a thread for some 64 KiB, or 32 nodes | Relaxed | Relaxed: the limit hangs on one counter alone |
//!
//! A lookup writes nothing that another thread reads, and an insert that finds its marks young writes one figure on a line of its
//! own thread.
//!
//! Whoever takes a node out of a cell by a successful CAS is its only owner and hands it to the epoch ([`reclaim`]); it
//! is freed when no guard from before is left. Between publishing a node and looking for a second cell with the same
//! hash stands a SeqCst fence ([`sync::publication_fence`]), so that of two racing publishers at least one sees both;
//! whoever does withdraws its own node and begins again.
//!
//! A run is copied (to grow, or for more marks) only after all its mark cells are frozen. Every change of a cell is a
//! read-modify-write, so each mark either came before and is in the copy, or finds the cell frozen and its insert makes
//! a copy too: no mark falls between, and nobody waits.
//!
//! **Errors allowed, and their direction.** A mark may be *forgotten*: when its node is evicted, when memory is short,
//! when an insert has lost 64 races; and when an eviction or a raise empties a cell in the middle of a race of inserts, so
//! that two cells held one hash or two marks one backend. While nothing is evicted, raised or forgotten, an insert that
//! has returned is found. A mark may be *stale*: the backend has dropped the content, or a forget lost 64 races to
//! copies. A mark is never *invented*: each one was put by an insert for that backend in that generation, and survives
//! only with its generation.
//!
//! Each pair of operations is a loom model with a twin that must fail (`loom_tests.rs`).

mod check;
mod evict;
mod export;
#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod export_tests;
mod figures;
mod holders;
mod insert;
mod ledger;
#[cfg(test)]
#[cfg(loom)]
mod loom_tests;
mod mark;
mod matches;
mod node;
mod reclaim;
#[cfg(test)]
#[cfg(shuttle)]
mod shuttle_tests;
mod slots;
#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod stress_tests;
mod sweep;
mod sync;
mod table;
#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
#[doc(hidden)]
pub mod twin;

use std::fmt;
use std::sync::Arc;

use figures::Figure;
use ledger::Ledger;
use reclaim::Reclaim;
use slots::Slots;
use sweep::Sweep;
use sync::{keep, pin, rest};
use table::Table;

pub use check::Checked;
pub use export::ImportError;
pub use mark::MAX_SLOTS;
pub use matches::{Match, Matches};

/// The least memory that a trie can be given.
pub const MIN_MEMORY_BYTES: usize = 1 << 20;

/// The part of the memory that the edge table takes: 1/8, so one edge for each 64 bytes.
const TABLE_SHARE: usize = 8;

/// A backend in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    pub slot: u16,
    pub generation: u16,
}

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Hard limit for everything: table, slots, nodes, and nodes that wait for reclamation. At least
    /// [`MIN_MEMORY_BYTES`].
    pub memory_bytes: usize,
    /// Backend slots, at most [`MAX_SLOTS`]; holders with a higher slot are ignored.
    pub slots: usize,
}

/// Why a trie can't be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionsError {
    MemoryTooSmall { given: usize },
    TooManySlots { given: usize },
}

impl fmt::Display for OptionsError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionsError::MemoryTooSmall { given } => {
                write!(out, "prefix memory of {given} bytes is below the minimum of {MIN_MEMORY_BYTES} bytes")
            }
            OptionsError::TooManySlots { given } => {
                write!(out, "{given} backend slots are more than the maximum of {MAX_SLOTS}")
            }
        }
    }
}

impl std::error::Error for OptionsError {}

/// The figures of a trie. Each is exact on a quiet trie; while others write, they may be apart by what is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub limit_bytes: usize,
    /// Table, slots and nodes, including those that wait for reclamation.
    pub used_bytes: usize,
    /// The part of `used_bytes` that waits for reclamation.
    pub backlog_bytes: usize,
    pub nodes: usize,
    /// Chunk hashes in all nodes.
    pub chunks: usize,
    /// Calls of insert with a current generation.
    pub inserts: u64,
    /// Calls of insert with an old generation, which did nothing.
    pub void_inserts: u64,
    /// Calls of insert that left out some of the key, for want of memory or because they lost too many races.
    pub refused_inserts: u64,
    /// Nodes that were taken out to make room.
    pub evicted_nodes: u64,
    /// Nodes that were taken out because no backend held them any more.
    pub swept_nodes: u64,
}

/// See the module's page. One trie is shared by all workers; every method may be called from any thread at any time.
pub struct Trie {
    table: Table,
    slots: Slots,
    reclaim: Arc<Reclaim>,
    sweep: Sweep,
}

impl Trie {
    pub fn new(options: &Options) -> Result<Trie, OptionsError> {
        if options.memory_bytes < MIN_MEMORY_BYTES {
            return Err(OptionsError::MemoryTooSmall { given: options.memory_bytes });
        }
        if options.slots > MAX_SLOTS {
            return Err(OptionsError::TooManySlots { given: options.slots });
        }
        let buckets = options.memory_bytes / TABLE_SHARE / Table::bytes(1);
        Ok(Trie::with_table(buckets.min(u32::MAX as usize), options.memory_bytes, options.slots))
    }

    fn with_table(buckets: usize, limit: usize, slots: usize) -> Trie {
        let fixed = size_of::<Trie>() + Table::bytes(buckets) + Slots::bytes(slots) + Reclaim::bytes();
        Trie {
            table: Table::new(buckets),
            slots: Slots::new(slots),
            reclaim: Arc::new(Reclaim::new(Ledger::new(limit, fixed))),
            sweep: Sweep::new(),
        }
    }

    /// Fills `found` with how many leading chunks of `key` each backend holds.
    pub fn lookup(&self, key: &[u64], found: &mut Matches) {
        found.begin_key(key);
        let guard = pin();
        let mut start = 0;
        while let Some(edge) = key.get(start).and_then(|&hash| self.table.find(hash, &guard)) {
            let matched = common(edge.node.run(), &key[start..]);
            if !found.advance(start as u32, matched as u32, edge.node.marks(), &self.slots) {
                break;
            }
            start += matched;
        }
    }

    /// The generation that marks of `slot` must have to be valid; 0 for a slot that does not exist.
    pub fn generation(&self, slot: u16) -> u16 {
        self.slots.generation(slot).unwrap_or(0)
    }

    /// Tells how many chunks back the cache of `slot` is believed to reach; see [`Match::fresh`].
    pub fn set_horizon(&self, slot: u16, chunks: u32) {
        self.slots.set_horizon(slot, chunks);
    }

    /// The clock of `slot`, in chunks; 0 for a slot that does not exist.
    pub fn clock(&self, slot: u16) -> u64 {
        self.slots.clock(slot)
    }

    /// Moves the clock of `slot`: its cache took up so many chunks more than the inserts could tell, such as an answer, or
    /// what it had dropped and was sent again; or marks from now on are to be told from those before.
    pub fn advance(&self, slot: u16, chunks: u32) {
        self.slots.advance(slot, chunks);
    }

    /// Housekeeping, to be called by every worker now and then (every 100 ms, say): sweeps a little after a raise, and
    /// helps what waits for reclamation on its way. Implies [`Trie::rest`].
    pub fn tick(&self) {
        self.sweep_some();
        self.reclaim.hand_over_all(&pin());
        self.reclaim.free_some_of_all();
        self.rest();
    }

    /// The calling thread keeps an epoch pinned from one operation to the next, which makes them cheaper, until it calls
    /// [`Trie::rest`]. Meanwhile nothing that anybody evicts can be freed unless the thread goes on with operations: it must
    /// rest soon, and before it waits or does something long.
    pub fn keep(&self) {
        keep();
    }

    /// The end of [`Trie::keep`].
    pub fn rest(&self) {
        rest();
    }

    fn ledger(&self) -> &Ledger {
        &self.reclaim.ledger
    }

    pub fn stats(&self) -> Stats {
        let ledger = self.ledger();
        let figure = |figure| ledger.figures.sum(figure);
        Stats {
            limit_bytes: ledger.limit(),
            used_bytes: ledger.used(),
            backlog_bytes: self.reclaim.backlog(),
            nodes: figure(Figure::Nodes) as usize,
            chunks: figure(Figure::Chunks) as usize,
            inserts: figure(Figure::Inserts),
            void_inserts: figure(Figure::VoidInserts),
            refused_inserts: figure(Figure::RefusedInserts),
            evicted_nodes: figure(Figure::EvictedNodes),
            swept_nodes: figure(Figure::SweptNodes),
        }
    }
}

impl Drop for Trie {
    fn drop(&mut self) {
        // While a panic unwinds, leaking is the lesser evil.
        if !std::thread::panicking() {
            self.reclaim.hand_over_all(&pin());
        }
    }
}

/// How many leading chunks two sequences share.
fn common(run: &[u64], rest: &[u64]) -> usize {
    let length = run.len().min(rest.len());
    let (run, rest) = (&run[..length], &rest[..length]);
    // Whole blocks first: comparing eight words at once is a few vector instructions.
    let blocks = run.chunks_exact(8).zip(rest.chunks_exact(8)).take_while(|(a, b)| a == b).count() * 8;
    blocks + run[blocks..].iter().zip(&rest[blocks..]).take_while(|(a, b)| a == b).count()
}
