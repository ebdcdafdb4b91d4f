//! Accepted connections on their way from one worker to another, and calls to requests that wait at another one.
//!
//! The kernel spreads connections over the workers' listening sockets by a hash: with few of them, or with streams that last
//! for hours, one worker gets twice its share. So each worker that accepts looks at how many connections each has, and
//! hands the new one to the idlest when it has clearly more itself.
//!
//! Concurrency: `active` is raised by whoever gives the worker a connection and lowered by the worker when that ends; it is
//! a hint, so its order against anything else does not matter. A connection that is posted is in the queue before the
//! bell rings; the worker empties the queue after it has silenced the bell, so none is left lying. Nobody waits for anybody.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crossbeam_queue::{ArrayQueue, SegQueue};
use rustix::event::{EventfdFlags, eventfd};
use socket2::SockAddr;

use super::accept;
use super::socket::Socket;
use super::worker::Worker;
use crate::shared::Shared;

/// Connections on their way to one worker; beyond, they stay where they are.
const ROOM: usize = 1024;

/// A difference below this is not worth a hand-over, whatever the share.
const LEAST_SLACK: usize = 4;
/// Nor is one below this share of what the worker has.
const SLACK_PERCENT: usize = 12;

pub(super) struct Mailbox {
    count: Count,
    queue: ArrayQueue<Handed>,
    /// Waiting requests of this worker that others call, by the numbers of their bells (`call`).
    calls: SegQueue<usize>,
    bell: OwnedFd,
}

/// On a cache line of its own: every accepting worker reads it.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicUsize);

pub(super) struct Handed {
    pub(super) seat: Seat,
    pub(super) socket: socket2::Socket,
    pub(super) address: SockAddr,
}

/// All workers' mailboxes, by their index.
pub(super) struct Mailboxes(Box<[Mailbox]>);

impl Mailboxes {
    pub(super) fn new(workers: usize) -> io::Result<Self> {
        let boxes = (0..workers).map(|_| {
            Ok(Mailbox {
                count: Count::default(),
                queue: ArrayQueue::new(ROOM),
                calls: SegQueue::new(),
                bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            })
        });
        Ok(Mailboxes(boxes.collect::<io::Result<_>>()?))
    }

    /// The worker that is to have the connection which worker `index` has accepted.
    pub(super) fn home(&self, index: usize) -> usize {
        home(index, self.0.iter().map(|mailbox| mailbox.count.0.load(Relaxed)))
    }

    /// Hands the connection over. It comes back when there is no room.
    pub(super) fn post(&self, to: usize, handed: Handed) -> Option<Handed> {
        let mailbox = &self.0[to];
        let refused = mailbox.queue.push(handed).err();
        mailbox.ring();
        refused
    }

    /// Calls a waiting request of that worker.
    pub(super) fn call(&self, to: usize, bell: usize) {
        self.0[to].calls.push(bell);
        self.0[to].ring();
    }

    fn bell(&self, index: usize) -> BorrowedFd<'_> {
        self.0[index].bell.as_fd()
    }
}

impl Mailbox {
    fn ring(&self) {
        // A bell that cannot count any further rings already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

/// The idlest worker if `index` has clearly more connections, else `index`.
fn home(index: usize, counts: impl Iterator<Item = usize>) -> usize {
    let mut idlest = (index, usize::MAX);
    let mut mine = 0;
    for (other, count) in counts.enumerate() {
        if other == index {
            mine = count;
        } else if count < idlest.1 {
            idlest = (other, count);
        }
    }
    let slack = LEAST_SLACK.max(mine * SLACK_PERCENT / 100);
    if mine + 1 > idlest.1.saturating_add(slack) { idlest.0 } else { index }
}

/// A connection's place at a worker, counted for the whole process and for that worker as long as it lives.
pub(super) struct Seat {
    shared: &'static Shared,
    mailboxes: &'static Mailboxes,
    index: usize,
}

impl Seat {
    pub(super) fn take(worker: &Worker, index: usize) -> Self {
        let (shared, mailboxes) = (worker.shared, worker.mailboxes);
        shared.connections.fetch_add(1, Relaxed);
        mailboxes.0[index].count.0.fetch_add(1, Relaxed);
        Seat { shared, mailboxes, index }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.mailboxes.0[self.index].count.0.fetch_sub(1, Relaxed);
        self.shared.connections.fetch_sub(1, Relaxed);
    }
}

/// Takes what others hand to this worker, until the process ends.
pub(super) async fn run(worker: Rc<Worker>) -> io::Result<()> {
    let mailbox = &worker.mailboxes.0[worker.index];
    let mut bell = Socket::new(worker.mailboxes.bell(worker.index).try_clone_to_owned()?.into(), &worker.deadlines)?;
    loop {
        bell.readable().await?;
        // Silent first: who posts from now on rings again.
        let _ = rustix::io::read(&mailbox.bell, &mut [0_u8; 8]);
        let mut settled = 0;
        while let Some(bell) = mailbox.calls.pop() {
            worker.bells.ring(bell);
        }
        while let Some(handed) = mailbox.queue.pop() {
            accept::settle(&worker, handed);
            settled += 1;
            if settled % accept::BATCH == 0 {
                worker.coop.give_way().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::home;

    #[test]
    fn the_idlest_gets_what_a_clearly_busier_one_accepts() {
        for (index, counts, expected) in [
            (0, vec![0], 0),
            (0, vec![3, 0], 0),
            (0, vec![4, 0], 1),
            (1, vec![4, 0], 1),
            (0, vec![9, 6, 5, 7], 2),
            (0, vec![8, 6, 5, 7], 0),
            (0, vec![1000, 900], 0),
            (0, vec![1000, 880], 1),
        ] {
            assert_eq!(home(index, counts.iter().copied()), expected, "{index} of {counts:?}");
        }
    }

    /// However the kernel's hash falls, no worker is further above the idlest than the slack.
    #[test]
    fn a_hash_that_prefers_one_worker_is_levelled() {
        let mut counts = [0_usize; 4];
        for n in 0..1000_usize {
            let accepting = if n % 3 == 0 { n % 4 } else { 2 };
            counts[home(accepting, counts.iter().copied())] += 1;
            let (most, least) = (counts.iter().max().expect("four"), counts.iter().min().expect("four"));
            assert!(most - least <= 4_usize.max(most * 12 / 100), "{counts:?}");
        }
    }
}
