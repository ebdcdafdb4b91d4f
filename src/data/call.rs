//! How a request that waits is woken, by its own worker or by another one.
//!
//! A waker belongs to its thread. So each worker keeps those of its own waiting requests, by number; another worker puts the
//! number into the worker's mailbox and rings. A number that was given to another request meanwhile wakes that one for
//! nothing: what a request is told stands in its entry of the waiting room.

use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::pending::{Call, Calls, Entry};
use super::worker::Worker;

/// The bells of one worker's waiting requests.
#[derive(Default)]
pub(super) struct Bells(RefCell<Vec<Option<Bell>>>);

#[derive(Default)]
struct Bell {
    entry: Option<Arc<Entry>>,
    waker: Option<Waker>,
}

impl Bells {
    /// Takes a number.
    pub(super) fn take(&self) -> usize {
        let mut bells = self.0.borrow_mut();
        let at = bells.iter().position(Option::is_none).unwrap_or(bells.len());
        if at == bells.len() {
            bells.push(None);
        }
        bells[at] = Some(Bell::default());
        at
    }

    pub(super) fn belongs_to(&self, entry: &Arc<Entry>) {
        if let Some(bell) = &mut self.0.borrow_mut()[entry.bell] {
            bell.entry = Some(Arc::clone(entry));
        }
    }

    pub(super) fn give_back(&self, number: usize) {
        let mut bells = self.0.borrow_mut();
        bells[number] = None;
        while bells.last().is_some_and(Option::is_none) {
            bells.pop();
        }
    }

    pub(super) fn ring(&self, number: usize) {
        let waker = self.0.borrow_mut().get_mut(number).and_then(|bell| bell.as_mut()?.waker.take());
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Tells all of this worker's that the backends may be others.
    pub(super) fn renew_all(&self) {
        let numbers: Vec<usize> = {
            let bells = self.0.borrow();
            let entries = bells.iter().flatten().filter_map(|bell| bell.entry.as_ref());
            entries.map(|entry| (entry.renews(), entry.bell).1).collect()
        };
        numbers.into_iter().for_each(|number| self.ring(number));
    }

    pub(super) fn are_silent(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Waits until the entry is called.
    pub(super) async fn heard(&self, entry: &Entry) -> Call {
        poll_fn(|cx| match entry.heard() {
            Some(call) => Poll::Ready(call),
            None => {
                if let Some(Some(bell)) = self.0.borrow_mut().get_mut(entry.bell) {
                    bell.waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        })
        .await
    }
}

/// Wakes those who are called, wherever they are.
pub(super) fn deliver(worker: &Worker, calls: Calls) {
    for entry in calls.0 {
        if entry.worker == worker.index {
            worker.bells.ring(entry.bell);
        } else {
            worker.mailboxes.call(entry.worker, entry.bell);
        }
    }
}
