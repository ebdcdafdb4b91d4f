//! A node: one run of chunk hashes and the marks on it, in one allocation.
//!
//! ```text
//! | length u16 | room u16 | depth u32 | next | marks: room × AtomicU64 | run: length × u64 |
//! ```
//!
//! `next` links nodes that are out of the table, on their way through the epoch. Everything but it and the marks is written before the node is published and never again: a run that grows and marks that
//! need more room become a new node which takes the old one's place. Knows neither the table nor reclamation.
//!
//! Invariants: 1 ≤ length ≤ [`MAX_RUN`]; room ≥ 1; an [`OwnedNode`] is the only handle of its allocation, or no other
//! handle will be used any more when it is dropped.
#![allow(unsafe_code, reason = "a node is a header followed by two arrays, which safe Rust can't place in one block")]

use std::alloc::{Layout, alloc};
use std::marker::PhantomData;
use std::mem::size_of;
use std::ptr::{NonNull, null_mut};

use super::mark::{MAX_HELD, NO_MARK};
use super::sync::{AtomicPtr, AtomicU64, Guard, Ordering, Tracked};

/// Chunks in a run. A full node with two marks takes 1,024 bytes, which is a size class of the allocator. Four
/// suffice a model.
pub(super) const MAX_RUN: usize = if cfg!(any(loom, shuttle)) { 4 } else { 124 };

const _: () = assert!(MAX_RUN <= MAX_HELD, "a mark can count a whole run");

const WORD: usize = size_of::<u64>();
const CELL: usize = size_of::<AtomicU64>();

#[repr(C, align(8))]
pub(super) struct Header {
    length: u16,
    room: u16,
    depth: u32,
    /// Stands for the run in a model; empty otherwise.
    tracked: Tracked,
    next: AtomicPtr<Header>,
}

/// The lengths of a node's two arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    length: u16,
    room: u16,
}

impl Shape {
    /// A run of `length` chunks with room for at least `marks` marks; what the size class leaves over becomes room.
    pub(super) fn new(length: usize, marks: usize) -> Shape {
        debug_assert!((1..=MAX_RUN).contains(&length) && (1..=usize::from(u16::MAX)).contains(&marks));
        let needed = size_of::<Header>() + marks * CELL + length * WORD;
        let spare = (size_class(needed) - needed) / CELL;
        Shape { length: length as u16, room: (marks + spare).min(usize::from(u16::MAX)) as u16 }
    }

    /// What the allocator takes for it.
    pub(super) fn bytes(self) -> usize {
        size_class(self.layout().size())
    }

    fn marks_offset() -> usize {
        size_of::<Header>()
    }

    fn run_offset(self) -> usize {
        Shape::marks_offset() + usize::from(self.room) * CELL
    }

    fn layout(self) -> Layout {
        let size = self.run_offset() + usize::from(self.length) * WORD;
        // The largest node (65,535 marks) is under 1 MiB, far from the limits of `Layout`.
        Layout::from_size_align(size, align_of::<Header>().max(align_of::<AtomicU64>()))
            .expect("a node's size is small")
    }
}

/// The block that mimalloc 2 and 3 serve for `bytes`: 16-byte steps up to 128, then four classes to each doubling.
/// Other allocators are close to it (jemalloc has the same classes).
fn size_class(bytes: usize) -> usize {
    if bytes <= 128 {
        return bytes.next_multiple_of(16);
    }
    let quarter = 1 << ((bytes - 1).ilog2() - 2);
    bytes.next_multiple_of(quarter)
}

/// A node that one handle owns: not published yet, or unlinked and out of every reader's sight.
pub(super) struct OwnedNode(NonNull<Header>);

// SAFETY: a node is plain words; its owner may move to any thread and be dropped there.
unsafe impl Send for OwnedNode {}

impl OwnedNode {
    /// A node whose run is `head` followed by `tail`, without marks.
    pub(super) fn new(shape: Shape, depth: u32, head: &[u64], tail: &[u64]) -> OwnedNode {
        assert_eq!(head.len() + tail.len(), usize::from(shape.length), "the run fills its shape");
        let layout = shape.layout();
        // SAFETY: the layout's size is not zero: it holds the header.
        let block = unsafe { alloc(layout) };
        let Some(header) = NonNull::new(block.cast::<Header>()) else { std::alloc::handle_alloc_error(layout) };
        let Shape { length, room } = shape;
        // SAFETY: the block is large enough and aligned for a header, and nobody else knows it.
        unsafe {
            header.write(Header { length, room, depth, tracked: Tracked::new(), next: AtomicPtr::new(null_mut()) });
        };
        let node = OwnedNode(header);
        let parts = node.view();
        for at in 0..usize::from(room) {
            // SAFETY: `at` < room, so the cell lies inside the block.
            let cell = unsafe { parts.marks_start().add(at) };
            // SAFETY: the cell is aligned and not initialised: nothing is dropped by writing it.
            unsafe { cell.write(AtomicU64::new(NO_MARK)) };
        }
        let run = parts.run_start();
        // SAFETY: head.len() ≤ length words of the block start at `run`, and a fresh block overlaps no slice.
        unsafe { run.copy_from_nonoverlapping(NonNull::from(head).cast(), head.len()) };
        // SAFETY: head.len() ≤ length: inside the block or one past its end.
        let run = unsafe { run.add(head.len()) };
        // SAFETY: the remaining tail.len() words of the run start here, and a fresh block overlaps no slice.
        unsafe { run.copy_from_nonoverlapping(NonNull::from(tail).cast(), tail.len()) };
        node
    }

    /// The node behind a handle, for its owner alone.
    pub(super) fn view(&self) -> NodeRef<'_> {
        NodeRef(self.0, PhantomData)
    }

    pub(super) fn into_raw(self) -> NonNull<Header> {
        let header = self.0;
        std::mem::forget(self);
        header
    }

    /// # Safety
    /// `header` came from [`OwnedNode::into_raw`], no other `OwnedNode` has it, and no [`NodeRef`] of it is used after
    /// the result is dropped.
    pub(super) unsafe fn from_raw(header: NonNull<Header>) -> OwnedNode {
        OwnedNode(header)
    }
}

impl Drop for OwnedNode {
    #[cfg(not(any(loom, shuttle)))]
    fn drop(&mut self) {
        let layout = self.view().shape().layout();
        // SAFETY: the block was allocated by `new` with this very layout, and its owner frees it once. A header, atomic
        // words and plain words have no destructors.
        unsafe { std::alloc::dealloc(self.0.as_ptr().cast(), layout) };
    }

    /// Leaves the block behind as a witness.
    #[cfg(any(loom, shuttle))]
    fn drop(&mut self) {
        self.view().header().tracked.free();
    }
}

/// A node that stays allocated for `'g`.
#[derive(Clone, Copy)]
pub(super) struct NodeRef<'g>(NonNull<Header>, PhantomData<&'g Header>);

impl<'g> NodeRef<'g> {
    /// # Safety
    /// `header` came from [`OwnedNode::into_raw`], and the node is not freed during `'g`.
    pub(super) unsafe fn new(header: NonNull<Header>) -> NodeRef<'g> {
        NodeRef(header, PhantomData)
    }

    fn header(self) -> &'g Header {
        // SAFETY: the node stays allocated for 'g, and its header is never written after `OwnedNode::new`.
        unsafe { self.0.as_ref() }
    }

    fn marks_start(self) -> NonNull<AtomicU64> {
        // SAFETY: the marks follow the header inside the block.
        unsafe { self.0.byte_add(Shape::marks_offset()) }.cast()
    }

    fn run_start(self) -> NonNull<u64> {
        // SAFETY: the run follows the marks inside the block.
        unsafe { self.0.byte_add(self.shape().run_offset()) }.cast()
    }

    pub(super) fn shape(self) -> Shape {
        Shape { length: self.header().length, room: self.header().room }
    }

    pub(super) fn bytes(self) -> usize {
        self.shape().bytes()
    }

    /// The position of the run's first chunk in every key that goes through it.
    pub(super) fn depth(self) -> u32 {
        self.header().depth
    }

    pub(super) fn marks(self) -> &'g [AtomicU64] {
        self.header().tracked.read();
        let start = self.marks_start().as_ptr();
        // SAFETY: room cells start here, all initialised by `new`, and live for 'g.
        unsafe { std::slice::from_raw_parts(start, usize::from(self.shape().room)) }
    }

    pub(super) fn run(self) -> &'g [u64] {
        self.header().tracked.read();
        let start = self.run_start().as_ptr();
        // SAFETY: length words start here, all written by `new` and never again, and live for 'g.
        unsafe { std::slice::from_raw_parts(start, usize::from(self.shape().length)) }
    }
}

/// Nodes that were taken out of the table and that readers may still see, linked by `next`. Dropping it leaks them.
#[must_use = "unlinked nodes leak unless they ripen"]
pub(super) struct Chain {
    first: NonNull<Header>,
    last: NonNull<Header>,
}

// SAFETY: nobody else links or frees the nodes of a chain, and what readers share of them is atomic or never written.
unsafe impl Send for Chain {}

impl Chain {
    /// # Safety
    /// `header` came from [`OwnedNode::into_raw`], and no handle but readers' [`NodeRef`]s has it.
    pub(super) unsafe fn of(header: NonNull<Header>) -> Chain {
        let chain = Chain { first: header, last: header };
        chain.first().header().tracked.unlink();
        chain
    }

    /// The chain's first node; its bytes and run, for the books.
    pub(super) fn first(&self) -> NodeRef<'_> {
        NodeRef(self.first, PhantomData)
    }

    fn into_ends(self) -> (NonNull<Header>, NonNull<Header>) {
        (self.first, self.last)
    }

    /// Hands the nodes to `then` once no guard that may have seen them is left.
    pub(super) fn ripen(self, guard: &Guard, then: impl FnOnce(RipeChain) + Send + 'static) {
        guard.defer(move || then(RipeChain(Some(self))));
    }
}

/// Nodes that nobody can see any more.
pub(super) struct RipeChain(Option<Chain>);

impl RipeChain {
    pub(super) fn pop(&mut self) -> Option<OwnedNode> {
        let Chain { first, last } = self.0.take()?;
        let node = OwnedNode(first);
        // Relaxed: whoever built the chain has handed it over to this thread.
        let next = node.view().header().next.load(Ordering::Relaxed);
        self.0 = NonNull::new(next).filter(|_| first != last).map(|first| Chain { first, last });
        Some(node)
    }
}

impl Drop for RipeChain {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

/// A lock-free stack of chains (Treiber's). It is only ever taken as a whole, so a head that comes back means no harm.
pub(super) struct Stack(AtomicPtr<Header>);

impl Stack {
    pub(super) fn new() -> Stack {
        Stack(AtomicPtr::new(null_mut()))
    }

    pub(super) fn push(&self, chain: Chain) {
        let (first, last) = chain.into_ends();
        // SAFETY: the nodes of a chain are allocated.
        let last = unsafe { last.as_ref() };
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            last.next.store(head, Ordering::Relaxed);
            // Release: pairs with the Acquire of `take`, which then sees the links.
            match self.0.compare_exchange(head, first.as_ptr(), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    pub(super) fn take(&self) -> Option<Chain> {
        if self.0.load(Ordering::Relaxed).is_null() {
            return None;
        }
        let first = NonNull::new(self.0.swap(null_mut(), Ordering::Acquire))?;
        let mut last = first;
        loop {
            // SAFETY: the nodes on the stack are allocated, and their links were made before the head was.
            let next = unsafe { last.as_ref() }.next.load(Ordering::Relaxed);
            match NonNull::new(next) {
                Some(next) => last = next,
                None => return Some(Chain { first, last }),
            }
        }
    }
}

/// A stack of nodes that nobody can see any more.
pub(super) struct RipeStack(Stack);

impl RipeStack {
    pub(super) fn new() -> RipeStack {
        RipeStack(Stack::new())
    }

    pub(super) fn push(&self, mut nodes: RipeChain) {
        if let Some(chain) = nodes.0.take() {
            self.0.push(chain);
        }
    }

    /// A figure: another thread may push or take at any time.
    pub(super) fn is_empty(&self) -> bool {
        self.0.0.load(Ordering::Relaxed).is_null()
    }

    pub(super) fn take(&self) -> RipeChain {
        RipeChain(self.0.take())
    }
}

impl Drop for RipeStack {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_are_the_allocators() {
        for (bytes, class) in
            [(1, 16), (16, 16), (17, 32), (128, 128), (129, 160), (160, 160), (161, 192), (256, 256), (257, 320)]
        {
            assert_eq!(size_class(bytes), class, "{bytes}");
        }
        assert_eq!(size_class(1016), 1024);
        assert_eq!(size_class(1025), 1280);
    }

    #[cfg(not(any(loom, shuttle)))]
    #[test]
    fn a_full_run_with_two_marks_fills_a_kibibyte() {
        let shape = Shape::new(MAX_RUN, 1);
        assert_eq!(shape.bytes(), 1024);
        assert_eq!(shape.room, 2);
    }

    #[test]
    fn a_node_keeps_its_parts_apart() {
        for length in 1..=MAX_RUN {
            for marks in [1, 2, 5, 64] {
                let run: Vec<u64> = (0..length as u64).map(|at| at + 1_000).collect();
                let (head, tail) = run.split_at(length / 2);
                let node = OwnedNode::new(Shape::new(length, marks), 7, head, tail);
                assert!(node.view().marks().len() >= marks);
                for cell in node.view().marks() {
                    assert_eq!(cell.swap(u64::MAX, super::super::sync::Ordering::Relaxed), NO_MARK);
                }
                assert_eq!(node.view().run(), run);
                assert_eq!(node.view().depth(), 7);
            }
        }
    }
}
