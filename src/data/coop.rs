//! How much a task does before the worker's other tasks have their turn: a budget of work a turn, and a yield.
//!
//! A turn begins when the runtime polls a connection's task. Each system call on a socket and each request takes from the
//! turn's budget. Once the budget is spent, sockets neither read nor write: they say that they must be waited for, and their
//! waits end in a later round. So no loop over sockets needs a yield of its own. Code that works long without a socket
//! says what it has done by [`Coop::worked`].
//!
//! The runtime has no yield: it looks for I/O and timers only when its queue of tasks is empty, a task that wakes itself
//! goes to the front of that queue, and under epoll a socket with bytes left is ready at once. So who gives way waits for
//! an event of the driver. One descriptor a worker is made readable in each round; its event comes together with those of
//! all other sockets, and then everybody who waits is woken.
//!
//! Must not know: HTTP, connections.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use rustix::event::{EventfdFlags, eventfd};

use super::deadline::Deadlines;
use super::socket::Socket;

/// What a turn may take, in bytes moved: about a quarter of a millisecond. With 64 connections that always have work, a
/// round is 16 ms.
const TURN: usize = 2 << 20;

/// What a system call costs beside the bytes that it moves, and a request beside its calls: as much as moving so many bytes.
const CALL: usize = 32 << 10;

/// What a byte of chunked framing costs: as much as moving so many.
const FRAMING: usize = 32;

/// The worker's turns.
pub(super) struct Coop {
    /// What is left of the present turn.
    left: Cell<usize>,
    round: Cell<Yield>,
    waiting: RefCell<Vec<Waker>>,
    /// Readable while somebody waits for the next round.
    bell: OwnedFd,
}

/// Whether somebody has to give way before it goes on: a round's number, in four bytes, since every socket has one.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Yield(u32);

impl Yield {
    const NO: Yield = Yield(0);
    pub(super) const DUE: Yield = Yield(1);
    /// Numbers below have a meaning of their own.
    const FIRST_ROUND: u32 = 2;
}

impl Coop {
    pub(super) fn new() -> io::Result<Rc<Self>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Rc::new(Coop {
            left: Cell::new(TURN),
            round: Cell::new(Yield(Yield::FIRST_ROUND)),
            waiting: RefCell::default(),
            bell,
        }))
    }

    /// The runtime polls a task: its budget is whole.
    pub(super) fn begin_turn(&self) {
        self.left.set(TURN);
    }

    /// So many bytes between payloads have been read one by one.
    pub(super) fn spend_framing(&self, bytes: usize) {
        self.left.set(self.left.get().saturating_sub(bytes * FRAMING));
    }

    /// A system call has moved so many bytes, or a request of as many has been read.
    pub(super) fn spend(&self, bytes: usize) {
        self.left.set(self.left.get().saturating_sub(CALL + bytes));
    }

    pub(super) fn is_spent(&self) -> bool {
        self.left.get() == 0
    }

    /// For work without sockets: so many bytes have been worked through, at the cost of moving them. Gives way if the turn's
    /// budget is spent.
    pub(super) async fn worked(&self, bytes: usize) {
        self.spend(bytes);
        if self.is_spent() {
            self.give_way().await;
        }
    }

    /// Lets every other task that can run have a turn, and the driver tell of new I/O and timers.
    pub(super) async fn give_way(&self) {
        let due = Cell::new(Yield::DUE);
        poll_fn(|cx| self.poll_yield(&due, cx)).await;
    }

    /// Ready if nothing is due, or once the round in which it fell due is over.
    pub(super) fn poll_yield(&self, due: &Cell<Yield>, cx: &mut Context<'_>) -> Poll<()> {
        let (was, round) = (due.get(), self.round.get());
        if was == Yield::NO {
            return Poll::Ready(());
        }
        if was != Yield::DUE && was != round {
            due.set(Yield::NO);
            return Poll::Ready(());
        }
        due.set(round);
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() {
            // It can't be full: it is emptied in each round.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
        // A task may wait at several sockets.
        if !waiting.last().is_some_and(|last| last.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    fn end_round(&self) {
        let next = self.round.get().0.wrapping_add(1).max(Yield::FIRST_ROUND);
        self.round.set(Yield(next));
        self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
    }
}

/// Ends one round after another, until the process ends.
///
/// # Panics
/// When the driver fails: those who give way would hang.
pub(super) async fn run(deadlines: Rc<Deadlines>) {
    let coop = deadlines.coop();
    let bell = coop.bell.try_clone().and_then(|bell| Socket::new(bell.into(), &deadlines));
    let mut bell = bell.expect("a worker has its descriptors when it starts");
    loop {
        bell.readable().await.expect("the driver waits");
        // Silent first: who gives way from now on rings again.
        let _ = rustix::io::read(&coop.bell, &mut [0_u8; 8]);
        coop.end_round();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn is_rung(coop: &Coop) -> bool {
        rustix::io::read(&coop.bell, &mut [0_u8; 8]).is_ok()
    }

    #[test]
    fn a_turn_is_so_many_calls_or_so_many_bytes() {
        let coop = Coop::new().expect("a descriptor");
        for (bytes, calls) in [(0, TURN / CALL), (300, 64), (16 << 10, 43), (256 << 10, 8), (TURN, 1)] {
            coop.begin_turn();
            let made = std::iter::repeat_with(|| coop.spend(bytes)).take_while(|()| !coop.is_spent()).count() + 1;
            assert_eq!(made, calls, "{bytes} bytes a call");
        }
    }

    #[test]
    fn who_gives_way_is_woken_once_at_the_end_of_the_round() {
        let coop = Coop::new().expect("a descriptor");
        let woken = Arc::new(Woken::default());
        let waker = Arc::clone(&woken).into();
        let mut cx = Context::from_waker(&waker);
        let (first, second, never) = (Cell::new(Yield::DUE), Cell::new(Yield::DUE), Cell::new(Yield::NO));
        assert!(coop.poll_yield(&never, &mut cx).is_ready() && !is_rung(&coop));
        for _ in 0..3 {
            assert!(coop.poll_yield(&first, &mut cx).is_pending());
            assert!(coop.poll_yield(&second, &mut cx).is_pending());
        }
        assert!(is_rung(&coop) && woken.0.load(Ordering::Relaxed) == 0);
        coop.end_round();
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "one task at two sockets");
        assert!(coop.poll_yield(&first, &mut cx).is_ready() && coop.poll_yield(&second, &mut cx).is_ready());
        assert!(coop.poll_yield(&first, &mut cx).is_ready(), "once is enough");
    }
}
