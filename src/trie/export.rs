//! The trie's content as bytes, and back: for a process that begins where another one ended.
//!
//! ```text
//! run: | length u16 | marks u16 | depth u32 | marks × { slot u16, held u8, age u32 } | length × hash u64 |
//! ```
//!
//! All little-endian. An age is what a mark has on its slot's byte clock, in stamp units; so nothing of a clock or of a
//! generation leaves the process. Knows bytes, not files; who checks that they are whole is the caller.
//!
//! Invariants: an export is made in steps of [`EXPORT_BUCKETS`] buckets, each under a pin of its own, and may run beside
//! everything else; it shows each run that is there all the time once. An import never passes the memory's bound and never
//! changes a run that is there already; what it leaves out is forgotten.

use std::fmt;

use super::evict::Room;
use super::mark::{Mark, Stamp};
use super::node::{MAX_RUN, NodeRef, Shape};
use super::sync::{Ordering, pin};
use super::table::Published;
use super::{Holder, Trie, holders};

/// Buckets that one step of an export visits: up to 512 runs.
const EXPORT_BUCKETS: usize = 64;

const HEAD_BYTES: usize = 8;
const MARK_BYTES: usize = 7;

/// Marks of a run: one a slot, and no trie has more slots. Each is compared with those before it.
const MAX_MARKS: usize = 1024;

/// Why bytes are no run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportError {
    CutOff,
    RunLength {
        length: u16,
    },
    /// More marks than there are slots, or two of one slot.
    Marks {
        marks: u16,
    },
    Held {
        held: u8,
        length: u16,
    },
}

impl fmt::Display for ImportError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImportError::CutOff => write!(out, "a run is cut off"),
            ImportError::RunLength { length } => write!(out, "a run of {length} chunks"),
            ImportError::Marks { marks } => write!(out, "a run with {marks} marks, more than one a backend"),
            ImportError::Held { held, length } => write!(out, "a mark of {held} chunks on a run of {length}"),
        }
    }
}

impl std::error::Error for ImportError {}

impl Trie {
    /// Appends the runs of some buckets to `out`, beginning with bucket `from`. Returns with which to go on; `None` at the
    /// end. Runs that nobody holds are left out.
    pub fn export(&self, from: usize, out: &mut Vec<u8>) -> Option<usize> {
        let end = self.table.buckets().min(from.saturating_add(EXPORT_BUCKETS));
        let guard = pin();
        for bucket in from..end {
            for edge in self.table.edges_in(bucket, &guard) {
                self.export_run(edge.node, out);
            }
        }
        (end < self.table.buckets()).then_some(end)
    }

    fn export_run(&self, node: NodeRef<'_>, out: &mut Vec<u8>) {
        let marks: Vec<Mark> = holders::live(node.marks(), &self.slots).collect();
        if marks.is_empty() {
            return;
        }
        out.extend_from_slice(&(node.run().len() as u16).to_le_bytes());
        out.extend_from_slice(&(marks.len() as u16).to_le_bytes());
        out.extend_from_slice(&node.depth().to_le_bytes());
        for mark in marks {
            out.extend_from_slice(&mark.slot.to_le_bytes());
            out.push(mark.held);
            out.extend_from_slice(&mark.stamp.age_units(self.slots.now(mark.slot)).to_le_bytes());
        }
        out.extend(node.run().iter().flat_map(|hash| hash.to_le_bytes()));
    }

    /// Takes the runs of an export, all that `bytes` holds; returns how many. `holder` says who an exported slot is here;
    /// marks of those who are nobody are left out, and so are marks of an old generation.
    ///
    /// # Errors
    /// At the first run that is none; those before it were taken.
    pub fn import(&self, bytes: &[u8], holder: impl Fn(u16) -> Option<Holder>) -> Result<usize, ImportError> {
        let (mut rest, mut runs) = (bytes, 0);
        let (mut run, mut marks) = (Vec::with_capacity(MAX_RUN), Vec::new());
        while !rest.is_empty() {
            let depth = read_run(&mut rest, &mut run, &mut marks)?;
            let known = marks.iter().filter_map(|exported| self.mark_here(*exported, &holder));
            let known: Vec<Mark> = known.collect();
            if !known.is_empty() {
                self.import_run(depth, &run, &known);
                runs += 1;
            }
        }
        Ok(runs)
    }

    fn mark_here(&self, exported: Exported, holder: impl Fn(u16) -> Option<Holder>) -> Option<Mark> {
        let Holder { slot, generation } = holder(exported.slot)?;
        let stamp = Stamp::behind(self.slots.now(slot), exported.age_units);
        let mark = Mark { slot, generation, held: exported.held, stamp };
        self.slots.is_live(mark).then_some(mark)
    }

    fn import_run(&self, depth: u32, run: &[u64], marks: &[Mark]) {
        let guard = pin();
        let Room::Granted(room) = self.make_room(Shape::new(run.len(), marks.len()), run[0], &guard) else { return };
        let node = room.build(depth, run, &[]);
        self.ledger().built(run.len());
        for (cell, mark) in node.view().marks().iter().zip(marks) {
            cell.store(mark.pack(), Ordering::Relaxed);
        }
        let mut outcome = self.table.publish(node, &guard, |twin| self.retire(twin, &guard));
        if let Published::Full(node) = outcome {
            outcome = self.displace(node, &guard);
        }
        if let Published::Taken(node) | Published::Full(node) = outcome {
            let bytes = node.view().bytes();
            drop(node);
            self.ledger().discarded(bytes, run.len());
        }
    }
}

#[derive(Clone, Copy)]
struct Exported {
    slot: u16,
    held: u8,
    age_units: u32,
}

/// Takes one run off `rest`: its hashes and marks, and its depth.
fn read_run(rest: &mut &[u8], run: &mut Vec<u64>, marks: &mut Vec<Exported>) -> Result<u32, ImportError> {
    let head = take::<HEAD_BYTES>(rest)?;
    let [l0, l1, m0, m1, d0, d1, d2, d3] = *head;
    let length = u16::from_le_bytes([l0, l1]);
    if !(1..=MAX_RUN).contains(&usize::from(length)) {
        return Err(ImportError::RunLength { length });
    }
    marks.clear();
    let count = u16::from_le_bytes([m0, m1]);
    if usize::from(count) > MAX_MARKS {
        return Err(ImportError::Marks { marks: count });
    }
    for _ in 0..count {
        let [s0, s1, held, a0, a1, a2, a3] = *take::<MARK_BYTES>(rest)?;
        if held == 0 || u16::from(held) > length {
            return Err(ImportError::Held { held, length });
        }
        let slot = u16::from_le_bytes([s0, s1]);
        if marks.iter().any(|known: &Exported| known.slot == slot) {
            return Err(ImportError::Marks { marks: count });
        }
        marks.push(Exported { slot, held, age_units: u32::from_le_bytes([a0, a1, a2, a3]) });
    }
    run.clear();
    for _ in 0..length {
        run.push(u64::from_le_bytes(*take::<8>(rest)?));
    }
    Ok(u32::from_le_bytes([d0, d1, d2, d3]))
}

fn take<'b, const N: usize>(rest: &mut &'b [u8]) -> Result<&'b [u8; N], ImportError> {
    let (taken, left) = rest.split_first_chunk::<N>().ok_or(ImportError::CutOff)?;
    *rest = left;
    Ok(taken)
}
