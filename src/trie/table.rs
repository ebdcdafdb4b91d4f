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
    /// Whether the cell still leads to the node.
    pub(super) fn is_current(&self) -> bool {
        // Relaxed: nothing is read through the word.
        self.cell.load(Ordering::Relaxed) == self.word
    }

    fn begins_with(&self, hash: u64) -> bool {
        self.node.run()[0] == hash
    }

    pub(super) fn is_tagged_right(&self, table: &Table) -> bool {
        tag_of(self.word) == table.place(self.node.run()[0]).tag
    }
}

/// What became of a node that was offered to the table.
pub(super) enum Published {
    Done,
    /// Another node with this first hash was there first, or the place is not what it was.
    Taken(OwnedNode),
    /// It was published, met another node with this first hash, and was taken out again.
    Withdrawn,
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
        Table { buckets: empty(buckets.max(1)) }
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

    /// Offers a node to its bucket. `unlinked` receives the nodes that this takes out.
    pub(super) fn publish(&self, node: OwnedNode, guard: &Guard, unlinked: impl FnMut(Chain)) -> Published {
        let hash = node.view().run()[0];
        let place = self.place(hash);
        if self.find(hash, guard).is_some() {
            return Published::Taken(node);
        }
        let word = pack(node, place.tag);
        for cell in &self.buckets[place.bucket].0 {
            let mut before = cell.load(Ordering::Acquire);
            if before.is_null() {
                if swing(cell, before, word) {
                    return self.part_twins(edge(cell, word, guard), place, guard, unlinked);
                }
                before = cell.load(Ordering::Acquire);
            }
            // Another thread may have published this hash since the look above, and then in the first free cell.
            if tag_of(before) == place.tag && edge(cell, before, guard).is_some_and(|edge| edge.begins_with(hash)) {
                return Published::Taken(unpublished(word));
            }
        }
        Published::Full(unpublished(word))
    }

    /// Puts `node`, which begins with the same hash, in the place of the edge's node.
    pub(super) fn replace(&self, edge: Edge<'_>, node: OwnedNode) -> Result<Chain, OwnedNode> {
        debug_assert_eq!(edge.node.run()[0], node.view().run()[0], "an edge keeps its first hash");
        let word = pack(node, tag_of(edge.word));
        if swing(edge.cell, edge.word, word) { Ok(unlink(edge.word)) } else { Err(unpublished(word)) }
    }

    /// Puts `node`, which belongs to the same bucket, in the place of another one. `unlinked` receives that one, and
    /// whatever else this takes out.
    pub(super) fn displace(
        &self,
        victim: Edge<'_>,
        node: OwnedNode,
        guard: &Guard,
        mut unlinked: impl FnMut(Chain),
    ) -> Published {
        let place = self.place(node.view().run()[0]);
        let word = pack(node, place.tag);
        if !swing(victim.cell, victim.word, word) {
            return Published::Taken(unpublished(word));
        }
        unlinked(unlink(victim.word));
        self.part_twins(edge(victim.cell, word, guard), place, guard, unlinked)
    }

    /// Takes the edge out, unless its cell has changed since it was read.
    pub(super) fn remove(&self, edge: Edge<'_>) -> Option<Chain> {
        swing(edge.cell, edge.word, std::ptr::null_mut()).then(|| unlink(edge.word))
    }

    /// Leaves one cell with the first hash of `own`, which has just been published. Two threads can publish the same
    /// hash in two cells when a third one empties a cell between their scans. Each scans again after its own
    /// publication; the fence between makes at least one of the two see both. Whoever does takes its own node out, since
    /// it knows that it must begin again, where the other one may be content already.
    fn part_twins(
        &self,
        own: Option<Edge<'_>>,
        place: Place,
        guard: &Guard,
        mut unlinked: impl FnMut(Chain),
    ) -> Published {
        let own = own.expect("a published word is not null");
        let hash = own.node.run()[0];
        publication_fence();
        while let Some(extra) = self.matching(hash, place, guard).nth(1) {
            if let Some(node) = self.remove(own) {
                unlinked(node);
                return Published::Withdrawn;
            }
            // A copy has taken the place of `own`; it may be the first of the two. If this removal fails too, it was
            // overtaken by another thread's success: look again.
            if let Some(node) = self.remove(extra) {
                unlinked(node);
            }
        }
        Published::Done
    }

    fn matching<'g>(&'g self, hash: u64, place: Place, guard: &'g Guard) -> impl Iterator<Item = Edge<'g>> {
        self.buckets[place.bucket].0.iter().filter_map(move |cell| {
            let word = cell.load(Ordering::Acquire);
            if tag_of(word) != place.tag {
                return None;
            }
            edge(cell, word, guard).filter(|edge| edge.begins_with(hash))
        })
    }
}

/// Pages of zeros from the system: whatever the table's size, only what is written becomes resident, and nothing is filled at
/// the start.
#[cfg(not(any(loom, shuttle)))]
fn empty(buckets: usize) -> Box<[Bucket]> {
    let zeros = Box::<[Bucket]>::new_zeroed_slice(buckets);
    // SAFETY: a bucket is an array of atomic pointers, and a word of zeros is the null pointer.
    unsafe { zeros.assume_init() }
}

/// A model's atomics are more than a word.
#[cfg(any(loom, shuttle))]
fn empty(buckets: usize) -> Box<[Bucket]> {
    let empty = || Bucket(std::array::from_fn(|_| AtomicPtr::new(std::ptr::null_mut())));
    (0..buckets).map(|_| empty()).collect()
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

/// The node of a word that no cell took.
fn unpublished(word: *mut Header) -> OwnedNode {
    let node = unpack(word).expect("a packed node is not null");
    // SAFETY: the word came from `pack` in this thread and no cell took it, so this thread still owns the node.
    unsafe { OwnedNode::from_raw(node) }
}

fn unlink(word: *mut Header) -> Chain {
    let node = unpack(word).expect("an edge's word is not null");
    // SAFETY: a CAS took the word out of its cell, and no node is ever in two cells: nobody but readers has it.
    unsafe { Chain::of(node) }
}
