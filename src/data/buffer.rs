//! Read buffers: a filled range in a block from the worker's pool.
//!
//! A connection that waits holds none. A buffer grows with what has arrived, by the next class, never by an announced
//! length. Blocks of the pooled classes go back to the pool; larger ones are freed. All but the smallest are counted (`credit`),
//! whether they are in use or in the pool.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::credit::Credit;

/// Sizes of pooled blocks.
const CLASSES: [usize; 3] = [16 << 10, 64 << 10, 256 << 10];

/// The smallest block.
pub(super) const SMALL: usize = CLASSES[0];
/// The block for bulk copies.
pub(super) const LARGE: usize = CLASSES[2];

/// Beyond the classes, blocks are so many bytes or a multiple.
const STEP: usize = 64 << 10;

#[derive(Default)]
pub(super) struct Blocks {
    credit: Credit,
    free: [RefCell<Vec<Box<[u8]>>>; CLASSES.len()],
    /// The fewest free blocks of each class since the last trim: so many were not needed.
    spare: [Cell<usize>; CLASSES.len()],
}

impl Blocks {
    pub(super) fn new(credit: Credit) -> Self {
        Blocks { credit, ..Blocks::default() }
    }

    /// A block of at least `size` bytes, whatever the bound is.
    fn take(&self, size: usize) -> Box<[u8]> {
        let (class, size) = fitting(size);
        self.pooled(class).unwrap_or_else(|| {
            if class != Some(0) {
                self.credit.force(size);
            }
            vec![0; size].into_boxed_slice()
        })
    }

    /// The same within the bound. `None`: there is no room for it.
    fn try_take(&self, size: usize) -> Option<Box<[u8]>> {
        let (class, size) = fitting(size);
        if let Some(block) = self.pooled(class) {
            return Some(block);
        }
        if class != Some(0) && !self.credit.take(size) {
            self.clear();
            if !self.credit.take(size) {
                return None;
            }
        }
        Some(vec![0; size].into_boxed_slice())
    }

    fn pooled(&self, class: Option<usize>) -> Option<Box<[u8]>> {
        let at = class?;
        let mut free = self.free[at].borrow_mut();
        let block = free.pop();
        self.spare[at].set(self.spare[at].get().min(free.len()));
        block
    }

    fn give(&self, block: Box<[u8]>) {
        match CLASSES.iter().position(|&class| class == block.len()) {
            Some(at) => self.free[at].borrow_mut().push(block),
            None => self.credit.give(block.len()),
        }
    }

    /// Whether there is room for that much more.
    pub(super) fn have(&self, bytes: usize) -> bool {
        self.credit.has(bytes) || {
            self.clear();
            self.credit.has(bytes)
        }
    }

    /// Frees the large blocks that are not in use.
    fn clear(&self) {
        for (free, class) in self.free.iter().zip(CLASSES).skip(1) {
            let freed = std::mem::take(&mut *free.borrow_mut()).len();
            self.credit.give(freed * class);
        }
    }

    /// Frees a part of what was not needed since the last call: a burst's blocks go, those in steady use stay.
    pub(super) fn trim(&self) {
        for (at, (free, spare)) in self.free.iter().zip(&self.spare).enumerate() {
            let mut free = free.borrow_mut();
            let keep = free.len() - spare.get().min(free.len()).div_ceil(8);
            if at > 0 && keep < free.len() {
                self.credit.give((free.len() - keep) * CLASSES[at]);
            }
            free.truncate(keep);
            spare.set(free.len());
        }
    }
}

/// The class of a block for `size` bytes, if there is one, and the block's length.
fn fitting(size: usize) -> (Option<usize>, usize) {
    let class = CLASSES.iter().position(|&class| class >= size);
    (class, class.map_or(size.next_multiple_of(STEP), |at| CLASSES[at]))
}

pub(super) struct Buffer {
    pool: Rc<Blocks>,
    block: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Buffer {
    /// An empty buffer with room for at least `size` bytes.
    pub(super) fn new(pool: &Rc<Blocks>, size: usize) -> Self {
        Buffer { pool: Rc::clone(pool), block: pool.take(size), start: 0, end: 0 }
    }

    /// The same within the bound on all large buffers. `None`: there is no room for it.
    pub(super) fn try_new(pool: &Rc<Blocks>, size: usize) -> Option<Self> {
        Some(Buffer { pool: Rc::clone(pool), block: pool.try_take(size)?, start: 0, end: 0 })
    }

    pub(super) fn filled(&self) -> &[u8] {
        &self.block[self.start..self.end]
    }

    pub(super) fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.block[self.start..self.end]
    }

    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The room behind the filled range.
    pub(super) fn spare(&mut self) -> &mut [u8] {
        &mut self.block[self.end..]
    }

    /// `n` bytes of the room have been filled.
    pub(super) fn commit(&mut self, n: usize) {
        debug_assert!(self.end + n <= self.block.len());
        self.end += n;
    }

    /// Drops the first `n` bytes.
    pub(super) fn consume(&mut self, n: usize) {
        debug_assert!(self.start + n <= self.end);
        self.start += n;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Keeps the first `n` bytes and gives the others. Copies the shorter of the two parts.
    pub(super) fn split_off(&mut self, n: usize) -> Buffer {
        let behind = self.len() - n;
        let short = if n < behind { &self.filled()[..n] } else { &self.filled()[n..] };
        let mut other = Buffer::new(&self.pool, short.len());
        other.block[..short.len()].copy_from_slice(short);
        other.end = short.len();
        if n < behind {
            self.consume(n);
            std::mem::swap(self, &mut other);
        } else {
            self.end = self.start + n;
        }
        other
    }

    /// Moves the bytes at `from..` to `to`, where `to <= from`; both count from the filled range's start.
    pub(super) fn close_gap(&mut self, to: usize, from: usize) {
        debug_assert!(to <= from && self.start + from <= self.end);
        self.block.copy_within(self.start + from..self.end, self.start + to);
        self.end -= from - to;
    }

    /// Keeps the first `n` bytes only, in a block that is no larger than they need.
    pub(super) fn shrink(&mut self, n: usize) {
        let mut kept = Buffer::new(&self.pool, n);
        kept.block[..n].copy_from_slice(&self.filled()[..n]);
        kept.end = n;
        *self = kept;
    }

    /// Whether there is room, or some can be made in the block: at a cost that what was consumed has paid for.
    pub(super) fn has_room(&mut self) -> bool {
        if self.end == self.block.len() && self.start >= self.block.len() / 4 {
            self.make_room();
        }
        self.end < self.block.len()
    }

    /// Makes room: moves the filled range to the front, and takes a larger block when that alone does not give a quarter
    /// of the block.
    pub(super) fn make_room(&mut self) {
        if self.block.len() - self.end > 0 {
            return;
        }
        if self.start >= self.block.len() / 4 {
            self.block.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        } else {
            self.move_to(self.pool.take(self.next_size(None)));
        }
    }

    /// The same within the bound on all large buffers; `whole` is what there will be in the end, if that is known. False: there
    /// is no room.
    pub(super) fn try_make_room(&mut self, whole: Option<usize>) -> bool {
        if self.end < self.block.len() || self.start >= self.block.len() / 4 {
            self.make_room();
            return true;
        }
        let larger = self.pool.try_take(self.next_size(whole));
        larger.map(|larger| self.move_to(larger)).is_some()
    }

    /// A full block's successor: the next class, and beyond the classes twice as much, but no more than there will be. What has
    /// arrived decides that a long body is coming, and it is then moved once instead of at each class.
    fn next_size(&self, whole: Option<usize>) -> usize {
        let len = self.block.len();
        match whole {
            Some(whole) if whole > len && len < LARGE => LARGE.min(whole),
            Some(whole) if whole > len => whole.min(2 * len),
            _ if len < LARGE => len + 1,
            _ => 2 * len,
        }
    }

    fn move_to(&mut self, mut larger: Box<[u8]>) {
        larger[..self.end - self.start].copy_from_slice(&self.block[self.start..self.end]);
        self.pool.give(std::mem::replace(&mut self.block, larger));
        self.end -= self.start;
        self.start = 0;
    }

    pub(super) fn capacity(&self) -> usize {
        self.block.len()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.give(std::mem::take(&mut self.block));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(buffer: &mut Buffer, bytes: &[u8]) {
        for &byte in bytes {
            buffer.make_room();
            buffer.spare()[0] = byte;
            buffer.commit(1);
        }
    }

    #[test]
    fn grows_with_what_arrives_and_keeps_it() {
        let pool = Rc::new(Blocks::default());
        let mut buffer = Buffer::new(&pool, SMALL);
        let bytes: Vec<u8> = (0..LARGE * 2 + 5).map(|i| (i % 251) as u8).collect();
        fill(&mut buffer, &bytes);
        assert_eq!(buffer.filled(), &bytes[..]);
        assert_eq!(buffer.capacity(), LARGE * 4);
        drop(buffer);
        assert_eq!(pool.free.iter().map(|f| f.borrow().len()).collect::<Vec<_>>(), [1, 1, 1]);
    }

    #[test]
    fn blocks_that_nobody_needs_are_freed_and_the_others_stay() {
        let pool = Rc::new(Blocks::default());
        let burst: Vec<_> = (0..40).map(|_| Buffer::new(&pool, SMALL)).collect();
        drop(burst);
        for _ in 0..60 {
            let in_use = [Buffer::new(&pool, SMALL), Buffer::new(&pool, SMALL)];
            pool.trim();
            drop(in_use);
            pool.trim();
        }
        let kept = pool.free[0].borrow().len();
        assert!((2..=4).contains(&kept), "{kept} blocks are kept for two in use");
    }

    #[test]
    fn consumed_room_is_used_again_before_growing() {
        let pool = Rc::new(Blocks::default());
        let mut buffer = Buffer::new(&pool, SMALL);
        fill(&mut buffer, &vec![7; SMALL]);
        buffer.consume(SMALL / 2);
        fill(&mut buffer, &[1, 2, 3]);
        assert_eq!((buffer.capacity(), buffer.len()), (SMALL, SMALL / 2 + 3));
        assert_eq!(&buffer.filled()[SMALL / 2..], [1, 2, 3]);
    }

    /// The bytes stay where they are, but for the shorter part.
    #[test]
    fn a_split_copies_the_shorter_part_and_keeps_both() {
        let pool = Rc::new(Blocks::default());
        for (length, at) in [(100, 1), (100, 50), (100, 99), (60_000, 20), (60_000, 59_000), (10, 0), (10, 10)] {
            let mut buffer = Buffer::new(&pool, SMALL);
            let bytes: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            fill(&mut buffer, &bytes);
            let block = buffer.block.as_ptr();
            let rest = buffer.split_off(at);
            assert_eq!((buffer.filled(), rest.filled()), (&bytes[..at], &bytes[at..]), "{length} at {at}");
            let longer = if at < length - at { &rest } else { &buffer };
            assert_eq!(longer.block.as_ptr(), block, "{length} at {at}");
        }
    }

    #[test]
    fn room_is_made_when_a_quarter_was_consumed_and_never_by_a_larger_block() {
        let pool = Rc::new(Blocks::default());
        let mut buffer = Buffer::new(&pool, SMALL);
        fill(&mut buffer, &vec![7; SMALL]);
        assert!(!buffer.has_room());
        buffer.consume(SMALL / 4 - 1);
        assert!(!buffer.has_room());
        buffer.consume(1);
        assert!(buffer.has_room() && buffer.capacity() == SMALL && buffer.spare().len() == SMALL / 4);
    }

    #[test]
    fn a_gap_is_closed() {
        let pool = Rc::new(Blocks::default());
        let mut buffer = Buffer::new(&pool, SMALL);
        fill(&mut buffer, b"head<junk>rest");
        buffer.close_gap(4, 10);
        assert_eq!(buffer.filled(), b"headrest");
        let rest = buffer.split_off(4);
        assert_eq!((buffer.filled(), rest.filled()), (&b"head"[..], &b"rest"[..]));
        buffer.consume(4);
        assert!(buffer.is_empty());
    }
}
