//! The invariants of a quiet trie, checked from outside the code that keeps them.

use std::collections::HashSet;

use super::Trie;
use super::mark::Mark;
use super::node::{MAX_RUN, NodeRef};
use super::sync::{Ordering, pin};

/// What a check went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    pub nodes: usize,
    pub chunks: usize,
    /// Valid marks.
    pub marks: usize,
    /// Bytes of all nodes.
    pub node_bytes: usize,
}

impl Trie {
    /// Checks every invariant, and that the books agree with what is there to the byte. For a trie that nobody writes
    /// to meanwhile; says what is wrong otherwise.
    pub fn check(&self) -> Result<Checked, String> {
        let mut seen = Checked::default();
        let guard = pin();
        for bucket in 0..self.table.buckets() {
            let mut firsts = HashSet::new();
            for edge in self.table.edges_in(bucket, &guard) {
                let first = edge.node.run().first().copied().ok_or("an empty run")?;
                if self.table.bucket_of(first) != bucket {
                    return Err(format!("run {first:#x} is in bucket {bucket}, where no lookup finds it"));
                }
                if !edge.is_tagged_right(&self.table) {
                    return Err(format!("run {first:#x} has another run's tag"));
                }
                if !firsts.insert(first) {
                    return Err(format!("two runs begin with {first:#x}"));
                }
                self.check_node(edge.node, &mut seen)?;
            }
        }
        self.check_books(seen)?;
        Ok(seen)
    }

    fn check_node(&self, node: NodeRef<'_>, seen: &mut Checked) -> Result<(), String> {
        let length = node.run().len();
        if length > MAX_RUN {
            return Err(format!("a run of {length} chunks"));
        }
        for word in node.marks().iter().map(|cell| cell.load(Ordering::Relaxed)) {
            let Some(mark) = Mark::unpack(word) else { continue };
            if mark.held == 0 || usize::from(mark.held) > length {
                return Err(format!("{mark:?} on a run of {length} chunks"));
            }
            if usize::from(mark.slot) >= self.slots.len() {
                return Err(format!("{mark:?} names no slot"));
            }
            seen.marks += usize::from(self.slots.is_live(mark));
        }
        seen.nodes += 1;
        seen.chunks += length;
        seen.node_bytes += node.bytes();
        Ok(())
    }

    fn check_books(&self, seen: Checked) -> Result<(), String> {
        let stats = self.stats();
        let expected = self.ledger().fixed() + seen.node_bytes + stats.backlog_bytes;
        if stats.used_bytes != expected {
            return Err(format!("{} bytes are in the books, {expected} in use: {stats:?}", stats.used_bytes));
        }
        if stats.used_bytes > stats.limit_bytes {
            return Err(format!("the limit is passed: {stats:?}"));
        }
        if (stats.nodes, stats.chunks) != (seen.nodes, seen.chunks) {
            return Err(format!("{} nodes of {} chunks are there: {stats:?}", seen.nodes, seen.chunks));
        }
        Ok(())
    }
}
