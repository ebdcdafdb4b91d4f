//! How long a worker keeps its pin of the trie's epoch from one operation to the next.
//!
//! While requests come one after another, a pin that stands makes each operation cheaper. But nothing that anybody evicts is
//! freed while a worker that has nothing to do, or that does something long, has one.
//!
//! Invariant: a pin stands for [`KEPT`] at most, and never while a long body is read.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use super::worker::Worker;
use crate::trie::Trie;

/// A timer for each of these stretches costs a busy worker a thousandth of its time, and in one of them 100,000 prompts of 6 KB
/// a second leave 100 KB to be freed.
const KEPT: Duration = Duration::from_millis(2);

/// A body of this length takes some 10 µs to be read.
const LONG_BODY_BYTES: usize = 64 << 10;

#[derive(Default)]
pub(super) struct Keeper {
    keeps: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Keeper {
    /// To be called before operations on the trie.
    pub(super) fn keep(&self, trie: &Trie) {
        if !self.keeps.replace(true) {
            trie.keep();
            if let Some(waker) = self.waker.take() {
                waker.wake();
            }
        }
    }

    /// To be called before a body of this length is read.
    pub(super) fn before_body(&self, trie: &Trie, bytes: usize) {
        if bytes >= LONG_BODY_BYTES {
            trie.rest();
        }
    }

    async fn began(&self) {
        poll_fn(|cx| match self.keeps.get() {
            true => Poll::Ready(()),
            false => {
                self.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await;
    }
}

/// Ends each pin in time, as long as the process runs.
pub(super) async fn run(worker: Rc<Worker>) {
    loop {
        worker.keeper.began().await;
        monoio::time::sleep(KEPT).await;
        worker.keeper.keeps.set(false);
        worker.shared.trie.rest();
    }
}
