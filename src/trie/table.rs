//! The edge table: from the first hash of a run to its node.
//!
//! Chunk hashes are chained, so a hash names a whole prefix and one flat table holds the edges of the whole trie. It is
//! set-associative: a hash belongs to one bucket, which is one cache line of tagged pointers. It never grows, and an
//! edge that is taken out leaves no trace. Knows pointers and runs; not marks, ages or budgets.
//!
//! Invariants: a cell is empty or holds a published node whose first hash belongs to this bucket and has the cell's
//! tag; on a quiet table no two cells hold the same first hash; whoever takes a node out of a cell (a successful CAS)
//! owns it, and must retire it.
#![allow(unsafe_code, reason = "cells hold tagged pointers to nodes that an epoch keeps alive")]

use std::ptr::NonNull;

use super::node::{Chain, Header, NodeRef, OwnedNode};
use super::sync::{AtomicPtr, Guard, Ordering, publication_fence, swing};

/// Cells in a bucket: a cache line of 64 bytes. Two suffice a model.
pub(super) const WAYS: usize = if cfg!(loom) { 2 } else { 8 };

/// Bits of an address in user space on x86-64 and AArch64; the tag lies above.
const ADDRESS_BITS: u32 = 48;
const ADDRESS_MASK: usize = (1 << ADDRESS_BITS) - 1;

#[repr(align(64))]
struct Bucket([AtomicPtr<Header>; WAYS]);

pub(super) struct Table {
    buckets: Box<[Bucket]>,
}

/// A cell as it was read, and the node that was in it.
#[derive(Clone, Copy)]
pub(super) struct Edge<'g> {
    cell: &'g AtomicPtr<Header>,
    word: *mut Header,
    pub(super) node: NodeRef<'g>,
}

impl Edge<'_> {
    pub(super) fn is_tagged_right(&self, table: &Table) -> bool {
        tag_of(self.word) == table.place(self.node.run()[0]).tag
    }
}

/// What became of a node that was offered to the table.
pub(super) enum Published {
    Done,
    /// Another node with this first hash was there first.
    Taken(OwnedNode),
    /// Every cell of the bucket is in use.
    Full(OwnedNode),
}

/// Where a hash lives and how its cell is tagged.
#[derive(Clone, Copy)]
struct Place {
    bucket: usize,
    tag: usize,
}

impl Table {
    pub(super) fn new(buckets: usize) -> Table {
        let empty = || Bucket(std::array::from_fn(|_| AtomicPtr::new(std::ptr::null_mut())));
        Table { buckets: (0..buckets.max(1)).map(|_| empty()).collect() }
    }

    pub(super) fn bytes(buckets: usize) -> usize {
        buckets * size_of::<Bucket>()
    }

    pub(super) fn buckets(&self) -> usize {
        self.buckets.len()
    }

    fn place(&self, hash: u64) -> Place {
        // Callers' hashes are good; folding a multiplication makes small integers good too.
        let product = u128::from(hash) * 0x9e37_79b9_7f4a_7c15;
        let mixed = (product >> 64) as u64 ^ product as u64;
        let bucket = ((mixed >> 32) * self.buckets.len() as u64) >> 32;
        // Never 0, so an empty cell matches no tag.
        let tag = (mixed as usize & 0xffff) | 1;
        Place { bucket: bucket as usize, tag }
    }

    pub(super) fn bucket_of(&self, hash: u64) -> usize {
        self.place(hash).bucket
    }

    pub(super) fn find<'g>(&'g self, hash: u64, guard: &'g Guard) -> Option<Edge<'g>> {
        self.matching(hash, self.place(hash), guard).next()
    }

    /// The edges of one bucket, as they are met.
    pub(super) fn edges_in<'g>(&'g self, bucket: usize, guard: &'g Guard) -> impl Iterator<Item = Edge<'g>> {
        self.buckets[bucket].0.iter().filter_map(move |cell| edge(cell, cell.load(Ordering::Acquire), guard))
    }

    /// Offers a node to its bucket. `duplicate` receives a node with the same first hash that a racing thread
    /// published in another cell meanwhile and that was taken out for this one, or the other way round.
    pub(super) fn publish(&self, node: OwnedNode, guard: &Guard, duplicate: impl FnMut(Chain)) -> Published {
        let hash = node.view().run()[0];
        let place = self.place(hash);
        if self.find(hash, guard).is_some() {
            return Published::Taken(node);
        }
        let word = pack(node, place.tag);
        for cell in &self.buckets[place.bucket].0 {
            if swing(cell, std::ptr::null_mut(), word) {
                self.part_twins(hash, place, guard, duplicate);
                return Published::Done;
            }
        }
        let node = unpack(word).expect("a packed node is not null");
        // SAFETY: no cell took the word, so this thread still owns the node.
        Published::Full(unsafe { OwnedNode::from_raw(node) })
    }

    /// Puts `node`, which begins with the same hash, in the place of the edge's node.
    pub(super) fn replace(&self, edge: Edge<'_>, node: OwnedNode) -> Result<Chain, OwnedNode> {
        debug_assert_eq!(edge.node.run()[0], node.view().run()[0], "an edge keeps its first hash");
        self.take_place(edge, node)
    }

    /// Puts `node`, which belongs to the same bucket, in the place of another one.
    pub(super) fn displace(
        &self,
        edge: Edge<'_>,
        node: OwnedNode,
        guard: &Guard,
        duplicate: impl FnMut(Chain),
    ) -> Result<Chain, OwnedNode> {
        let hash = node.view().run()[0];
        let old = self.take_place(edge, node)?;
        self.part_twins(hash, self.place(hash), guard, duplicate);
        Ok(old)
    }

    fn take_place(&self, edge: Edge<'_>, node: OwnedNode) -> Result<Chain, OwnedNode> {
        let place = self.place(node.view().run()[0]);
        let word = pack(node, place.tag);
        if swing(edge.cell, edge.word, word) {
            return Ok(unlinked(edge.word));
        }
        let node = unpack(word).expect("a packed node is not null");
        // SAFETY: the cell did not take the word, so this thread still owns the node.
        Err(unsafe { OwnedNode::from_raw(node) })
    }

    /// Takes the edge out, unless its cell has changed since it was read.
    pub(super) fn remove(&self, edge: Edge<'_>) -> Option<Chain> {
        swing(edge.cell, edge.word, std::ptr::null_mut()).then(|| unlinked(edge.word))
    }

    /// Leaves one cell with `hash`. Two threads can publish the same hash in two cells when a third one empties a
    /// cell between their scans. Each scans again after its own publication; the fence between makes at least one of
    /// the two see both, and both agree on the first cell.
    fn part_twins(&self, hash: u64, place: Place, guard: &Guard, mut duplicate: impl FnMut(Chain)) {
        publication_fence();
        // A removal that fails was overtaken by another thread's success: look again.
        while let Some(extra) = self.matching(hash, place, guard).nth(1) {
            if let Some(node) = self.remove(extra) {
                duplicate(node);
            }
        }
    }

    fn matching<'g>(&'g self, hash: u64, place: Place, guard: &'g Guard) -> impl Iterator<Item = Edge<'g>> {
        self.buckets[place.bucket].0.iter().filter_map(move |cell| {
            let word = cell.load(Ordering::Acquire);
            if tag_of(word) != place.tag {
                return None;
            }
            edge(cell, word, guard).filter(|edge| edge.node.run()[0] == hash)
        })
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        for cell in self.buckets.iter().flat_map(|bucket| &bucket.0) {
            // Relaxed: `&mut self` means that every other thread is done, and that this one knows it.
            if let Some(node) = unpack(cell.load(Ordering::Relaxed)) {
                // SAFETY: the node is in a cell, so nobody has retired it, and no reader is left.
                drop(unsafe { OwnedNode::from_raw(node) });
            }
        }
    }
}

fn tag_of(word: *mut Header) -> usize {
    word.addr() >> ADDRESS_BITS
}

fn pack(node: OwnedNode, tag: usize) -> *mut Header {
    let raw = node.into_raw().as_ptr();
    assert_eq!(raw.addr() & !ADDRESS_MASK, 0, "user space is below 2^48");
    raw.map_addr(|address| address | tag << ADDRESS_BITS)
}

fn unpack(word: *mut Header) -> Option<NonNull<Header>> {
    NonNull::new(word.map_addr(|address| address & ADDRESS_MASK))
}

fn edge<'g>(cell: &'g AtomicPtr<Header>, word: *mut Header, _guard: &'g Guard) -> Option<Edge<'g>> {
    let header = unpack(word)?;
    // SAFETY: the word was read from a cell under the guard, so the node was published by then and is retired, if at
    // all, through an epoch that this guard holds back.
    let node = unsafe { NodeRef::new(header) };
    Some(Edge { cell, word, node })
}

fn unlinked(word: *mut Header) -> Chain {
    let node = unpack(word).expect("an edge's word is not null");
    // SAFETY: a CAS took the word out of its cell, and no node is ever in two cells: nobody but readers has it.
    unsafe { Chain::of(node) }
}
