//! What is to be looked at later: a heap of instants.
//!
//! Nothing is ever cancelled. A wake-up that has lost its reason finds that out for itself, since a connection's id carries
//! a generation.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// A connection, told apart from a later one in the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnId {
    pub(crate) index: usize,
    pub(crate) generation: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wake {
    /// A connection may have something to send.
    Conn(ConnId),
    /// An engine's prefill is done: the next request may begin.
    Engine(usize),
    /// Time to close idle connections.
    Sweep,
}

#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, Wake)>>,
}

impl Timers {
    pub(crate) fn set(&mut self, at: Instant, wake: Wake) {
        self.heap.push(Reverse((at, wake)));
    }

    /// How long there is nothing to do; None: forever.
    pub(crate) fn idle_for(&self, now: Instant) -> Option<Duration> {
        self.heap.peek().map(|Reverse((at, _))| at.saturating_duration_since(now))
    }

    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Wake> {
        match self.heap.peek() {
            Some(Reverse((at, _))) if *at <= now => self.heap.pop().map(|Reverse((_, wake))| wake),
            _ => None,
        }
    }
}
