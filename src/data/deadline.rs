//! Time limits without a timer a read.
//!
//! Every socket of a worker has one entry in a flat table: its descriptor and when it is due. Setting a deadline is one
//! store. The worker's tick looks through the table and shuts down what is overdue, either its reading side alone (the
//! peer can still be told why) or all of it; the task that waits on that socket wakes, reads an end and unwinds by its
//! ordinary path. An entry belongs to its socket from registration until just
//! before the descriptor is closed, so no reused descriptor can be hit.
//!
//! A time runs from the first tick after it was set: it is never cut short, not even when the worker was busy for long
//! before, and it ends at most two ticks late.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, RawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::coop::Coop;

const NEVER: u64 = u64::MAX;

/// What a deadline ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// The reading side: the peer can still be told why.
    Reading,
    All,
    /// All of a connection that waits for its next request; a drain ends it early.
    Idle,
}

struct Entry {
    fd: RawFd,
    /// When it is due; while `fresh`, how long after the next tick.
    due_ms: Cell<u64>,
    fresh: Cell<bool>,
    ends: Cell<Ends>,
    fired: Cell<bool>,
    used: bool,
}

impl Entry {
    /// Of an entry that is used.
    fn descriptor(&self) -> BorrowedFd<'_> {
        debug_assert!(self.used);
        // SAFETY: a used entry's descriptor is open: its ticket is dropped before its socket is.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    fn has_bytes(&self) -> bool {
        matches!(SockRef::from(&self.descriptor()).peek(&mut [MaybeUninit::uninit(); 1]), Ok(n) if n > 0)
    }
}

pub(super) struct Deadlines {
    start: Instant,
    /// The time of the last tick.
    now_ms: Cell<u64>,
    /// The worker's turns: a socket reaches them by its entry, and stays small.
    coop: Rc<Coop>,
    entries: RefCell<Vec<Entry>>,
    free: RefCell<Vec<u32>>,
}

/// One socket's entry; dropping it frees the entry.
pub(super) struct Ticket {
    table: Rc<Deadlines>,
    index: u32,
}

/// What was left of a deadline when its clock was stopped.
pub(super) struct Paused {
    left_ms: u64,
    fresh: bool,
}

impl Deadlines {
    pub(super) fn new(coop: Rc<Coop>) -> Rc<Self> {
        Rc::new(Deadlines {
            coop,
            start: Instant::now(),
            now_ms: Cell::new(0),
            entries: RefCell::default(),
            free: RefCell::default(),
        })
    }

    pub(super) fn register(table: &Rc<Self>, fd: RawFd) -> Ticket {
        let entry = Entry {
            fd,
            due_ms: Cell::new(NEVER),
            fresh: Cell::new(false),
            ends: Cell::new(Ends::All),
            fired: Cell::new(false),
            used: true,
        };
        let mut entries = table.entries.borrow_mut();
        let index = match table.free.borrow_mut().pop() {
            Some(index) => {
                entries[index as usize] = entry;
                index
            }
            None => {
                entries.push(entry);
                u32::try_from(entries.len() - 1).expect("descriptors fit 32 bits")
            }
        };
        Ticket { table: Rc::clone(table), index }
    }

    /// Shuts down every socket that is overdue.
    pub(super) fn tick(&self) {
        let now_ms = self.start.elapsed().as_millis() as u64;
        self.now_ms.set(now_ms);
        self.end(|entry| {
            if entry.fresh.take() {
                entry.due_ms.set(now_ms + entry.due_ms.get());
            }
            entry.due_ms.get() <= now_ms
        });
    }

    /// Shuts down every connection that waits for its next request, unless that is there already or the wait began since the
    /// last tick: a request that was sent in good faith is served.
    pub(super) fn end_idle(&self) {
        self.end(|entry| {
            entry.due_ms.get() != NEVER && entry.ends.get() == Ends::Idle && !entry.fresh.get() && !entry.has_bytes()
        });
    }

    fn end(&self, overdue: impl Fn(&Entry) -> bool) {
        for entry in self.entries.borrow().iter().filter(|entry| entry.used && overdue(entry)) {
            entry.due_ms.set(NEVER);
            entry.fresh.set(false);
            entry.fired.set(true);
            let how = if entry.ends.get() == Ends::Reading { Shutdown::Read } else { Shutdown::Both };
            let _ = SockRef::from(&entry.descriptor()).shutdown(how);
        }
    }

    pub(super) fn coop(&self) -> Rc<Coop> {
        Rc::clone(&self.coop)
    }

    /// Milliseconds of the worker's clock, as of the last tick.
    pub(super) fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }
}

impl Ticket {
    /// The deadline is that far from now; what it ends is `ends`.
    pub(super) fn set(&self, time: Duration, ends: Ends) {
        let entry = &self.table.entries.borrow()[self.index as usize];
        entry.due_ms.set(time.as_millis() as u64);
        entry.fresh.set(true);
        entry.ends.set(ends);
    }

    pub(super) fn clear(&self) {
        let entry = &self.table.entries.borrow()[self.index as usize];
        entry.due_ms.set(NEVER);
        entry.fresh.set(false);
    }

    /// Stops the clock while somebody else is waited for.
    pub(super) fn pause(&self) -> Paused {
        let entry = &self.table.entries.borrow()[self.index as usize];
        let since = if entry.fresh.get() { 0 } else { self.table.now_ms.get() };
        let left_ms = entry.due_ms.replace(NEVER).saturating_sub(since);
        Paused { left_ms, fresh: entry.fresh.take() }
    }

    /// Goes on with what was left. No tick in between: nothing has changed.
    pub(super) fn resume(&self, paused: &Paused) {
        let entry = &self.table.entries.borrow()[self.index as usize];
        let since = if paused.fresh { 0 } else { self.table.now_ms.get() };
        entry.due_ms.set(paused.left_ms.saturating_add(since));
        entry.fresh.set(paused.fresh);
    }

    pub(super) fn coop(&self) -> &Rc<Coop> {
        &self.table.coop
    }

    pub(super) fn fired(&self) -> bool {
        self.table.entries.borrow()[self.index as usize].fired.get()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.table.entries.borrow_mut()[self.index as usize].used = false;
        self.table.free.borrow_mut().push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::super::coop::Coop;
    use super::{Deadlines, Ends};

    #[test]
    fn only_the_overdue_socket_is_shut_down_and_its_entry_is_reused() {
        let table = Deadlines::new(Coop::new().expect("a descriptor"));
        let (mut late, _late_peer) = UnixStream::pair().expect("pair");
        let (mut idle, _idle_peer) = UnixStream::pair().expect("pair");
        idle.set_nonblocking(true).expect("mode");
        let late_ticket = Deadlines::register(&table, late.as_raw_fd());
        let idle_ticket = Deadlines::register(&table, idle.as_raw_fd());
        late_ticket.set(Duration::from_millis(1), Ends::Reading);
        idle_ticket.set(Duration::from_millis(1), Ends::Reading);
        idle_ticket.clear();
        std::thread::sleep(Duration::from_millis(3));
        table.tick();
        assert!(!late_ticket.fired(), "a time runs from the first tick on");
        std::thread::sleep(Duration::from_millis(3));
        table.tick();
        assert!(late_ticket.fired() && !idle_ticket.fired());
        assert_eq!(late.read(&mut [0; 4]).expect("an end"), 0);
        assert!(idle.read(&mut [0; 4]).is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock));
        drop(late_ticket);
        let again = Deadlines::register(&table, idle.as_raw_fd());
        assert!(!again.fired() && table.entries.borrow().len() == 2);
    }

    #[test]
    fn a_clock_that_stands_still_does_not_count() {
        let table = Deadlines::new(Coop::new().expect("a descriptor"));
        let (ours, _peer) = UnixStream::pair().expect("pair");
        let ticket = Deadlines::register(&table, ours.as_raw_fd());
        let pass = |ms| {
            std::thread::sleep(Duration::from_millis(ms));
            table.tick();
        };
        ticket.set(Duration::from_millis(40), Ends::All);
        for _ in 0..2 {
            let paused = ticket.pause();
            pass(60);
            ticket.resume(&paused);
            assert!(!ticket.fired());
            table.tick();
        }
        pass(60);
        assert!(ticket.fired(), "it goes on with what was left");
        let paused = ticket.pause();
        ticket.resume(&paused);
        pass(1);
        assert_eq!(table.entries.borrow()[0].due_ms.get(), super::NEVER, "none stays none");
    }

    #[test]
    fn a_drain_ends_who_waits_but_not_whose_request_is_there() {
        let table = Deadlines::new(Coop::new().expect("a descriptor"));
        let pairs: Vec<_> = (0..3).map(|_| UnixStream::pair().expect("pair")).collect();
        let tickets: Vec<_> = pairs.iter().map(|(ours, _)| Deadlines::register(&table, ours.as_raw_fd())).collect();
        pairs.iter().for_each(|(ours, _)| ours.set_nonblocking(true).expect("mode"));
        pairs[1].1.try_clone().expect("clone").write_all(b"GET").expect("sent");
        tickets[0].set(Duration::from_secs(60), Ends::Idle);
        tickets[1].set(Duration::from_secs(60), Ends::Idle);
        table.tick();
        tickets[2].set(Duration::from_secs(60), Ends::Idle);
        table.end_idle();
        assert_eq!(tickets.iter().map(super::Ticket::fired).collect::<Vec<_>>(), [true, false, false]);
        table.tick();
        table.end_idle();
        assert_eq!(tickets.iter().map(super::Ticket::fired).collect::<Vec<_>>(), [true, false, true]);
    }
}
