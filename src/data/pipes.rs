//! Pipes for splicing, a pool a worker.
//!
//! Invariants: a pipe in the pool is empty; one that was left with bytes in it is closed; a worker has at most [`MOST`], so
//! that the kernel's budget of pipe pages a user is never what decides their size.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use super::worker::Worker;

/// Open pipes a worker. The budget is 16,384 pages a user; beyond it new pipes have two.
const MOST: usize = 16;

/// What a pipe holds: as much as one read of a large buffer.
pub(super) const SIZE: usize = 256 << 10;

struct Ends {
    reads: OwnedFd,
    writes: OwnedFd,
}

impl Ends {
    fn open() -> io::Result<Self> {
        let (reads, writes) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        fcntl_setpipe_size(&writes, SIZE)?;
        Ok(Ends { reads, writes })
    }
}

#[derive(Default)]
pub(super) struct Pipes {
    free: RefCell<Vec<Ends>>,
    open: Cell<usize>,
    /// The fewest free ones since the last trim: so many were not needed.
    spare: Cell<usize>,
}

/// A pipe in use by one transfer.
pub(super) struct Pipe {
    worker: Rc<Worker>,
    ends: Option<Ends>,
    held: usize,
}

impl Pipe {
    /// An empty one; `None` when the worker has its share in use, or the kernel gives none.
    pub(super) fn take(worker: &Rc<Worker>) -> Option<Self> {
        let pipes = &worker.pipes;
        let pooled = pipes.free.borrow_mut().pop();
        let ends = match pooled {
            Some(ends) => ends,
            None if pipes.open.get() < MOST => {
                let ends = Ends::open().ok()?;
                pipes.open.set(pipes.open.get() + 1);
                ends
            }
            None => return None,
        };
        pipes.spare.set(pipes.spare.get().min(pipes.free.borrow().len()));
        let pipe = Pipe { worker: Rc::clone(worker), ends: Some(ends), held: 0 };
        pipe.worker.count_pipes();
        Some(pipe)
    }

    /// Bytes that went in and have not come out.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    pub(super) fn filled(&mut self, n: usize) {
        self.held += n;
    }

    pub(super) fn emptied(&mut self, n: usize) {
        debug_assert!(n <= self.held);
        self.held -= n;
    }

    pub(super) fn writes(&self) -> BorrowedFd<'_> {
        self.ends().writes.as_fd()
    }

    pub(super) fn reads(&self) -> BorrowedFd<'_> {
        self.ends().reads.as_fd()
    }

    fn ends(&self) -> &Ends {
        self.ends.as_ref().expect("present until dropped")
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let pipes = &self.worker.pipes;
        match self.ends.take() {
            Some(ends) if self.held == 0 => pipes.free.borrow_mut().push(ends),
            _ => pipes.open.set(pipes.open.get() - 1),
        }
        self.worker.count_pipes();
    }
}

impl Pipes {
    pub(super) fn open(&self) -> usize {
        self.open.get()
    }

    pub(super) fn busy(&self) -> usize {
        self.open.get() - self.free.borrow().len()
    }

    /// Closes one that was not needed since the last call. True: there was one.
    pub(super) fn trim(&self) -> bool {
        let unneeded = self.spare.get() > 0;
        if unneeded && self.free.borrow_mut().pop().is_some() {
            self.open.set(self.open.get() - 1);
        }
        self.spare.set(self.free.borrow().len());
        unneeded
    }

    /// Closes all that are not in use.
    pub(super) fn clear(&self) {
        let closed = std::mem::take(&mut *self.free.borrow_mut()).len();
        self.open.set(self.open.get() - closed);
        self.spare.set(0);
    }
}
