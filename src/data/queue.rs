//! Requests that wait because every backend that could take them is at its limit.
//!
//! A queue a worker, first in, first out among the requests for one model. Who waits is called by a release on its own worker
//! or, for releases on other workers, by a tick while anybody waits; only the first for each model is called, and it looks
//! itself whether it can go. Whoever leaves, by whatever path, calls the next one.
//!
//! Across workers, the longest wait for a backend stands in its load: a request that came later than that, by more than
//! [`HEAD_START_US`], leaves the backend alone. So no worker's requests starve behind another's.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Poll, Waker};
use std::time::Duration;

use super::worker::Worker;
use crate::fleet::load::Load;
use crate::metrics::shard::BOUNDS_US;

/// How late a release on another worker is noticed.
const TICK: Duration = Duration::from_millis(5);

/// By how much a request may overtake one that waits at another worker: that one sees a free backend a tick later, and
/// meanwhile the backend would idle.
const HEAD_START_US: u64 = 20_000;

#[derive(Default)]
pub(super) struct Queue {
    waiting: RefCell<VecDeque<Rc<Waiter>>>,
    ticking: Cell<bool>,
}

/// What a waiting request is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// There may be room.
    Look,
    /// It has waited as long as it may.
    Expired,
}

struct Waiter {
    /// On the clock that all workers share.
    since_us: u64,
    /// Names what it waits for: requests with the same number can use the same backends.
    model: u64,
    call: Cell<Option<Call>>,
    waker: Cell<Option<Waker>>,
}

impl Waiter {
    fn call(&self, call: Call) {
        self.call.set(Some(call));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Whether a request that has waited since then must leave the backend to one that has waited longer elsewhere.
pub(super) fn must_yield(load: &Load, since_us: u64) -> bool {
    since_us > load.wanted_since().saturating_add(HEAD_START_US)
}

impl Queue {
    /// Whether somebody waits for that model here.
    pub(super) fn has(&self, model: u64) -> bool {
        self.waiting.borrow().iter().any(|waiter| waiter.model == model)
    }

    /// Calls the first request for each model.
    pub(super) fn call_next(&self) {
        let waiting = self.waiting.borrow();
        let mut called: Vec<u64> = Vec::new();
        for waiter in waiting.iter() {
            if !called.contains(&waiter.model) {
                called.push(waiter.model);
                waiter.call(Call::Look);
            }
        }
    }

    fn expire(&self, since_us: u64) {
        let waiting = self.waiting.borrow();
        waiting.iter().take_while(|waiter| waiter.since_us <= since_us).for_each(|waiter| waiter.call(Call::Expired));
    }
}

/// A place in the queue; dropping it leaves the queue.
pub(super) struct Place {
    worker: Rc<Worker>,
    waiter: Rc<Waiter>,
    /// The load of some backends may say since when it waits.
    wants: Cell<bool>,
}

impl Place {
    /// The last place in the worker's queue. `None`: as many requests wait, over all workers, as may.
    pub(super) fn take(worker: &Rc<Worker>, model: u64) -> Option<Self> {
        let shared = worker.shared;
        let limit = shared.config.overload.queue_requests;
        shared.queued.fetch_update(Relaxed, Relaxed, |now| (now < limit).then_some(now + 1)).ok()?;
        let waiter = Waiter { since_us: shared.micros(), model, call: Cell::new(None), waker: Cell::new(None) };
        let waiter = Rc::new(waiter);
        worker.queue.waiting.borrow_mut().push_back(Rc::clone(&waiter));
        if !worker.queue.ticking.replace(true) {
            monoio::spawn(tick(Rc::clone(worker)));
        }
        Some(Place { worker: Rc::clone(worker), waiter, wants: Cell::new(false) })
    }

    pub(super) fn since_us(&self) -> u64 {
        self.waiter.since_us
    }

    /// Nobody has waited longer for the same model here.
    fn is_first(&self) -> bool {
        let waiting = self.worker.queue.waiting.borrow();
        waiting.iter().find(|waiter| waiter.model == self.waiter.model).is_some_and(|w| Rc::ptr_eq(w, &self.waiter))
    }

    /// Lets all workers know that this request waits for these backends, if it is its turn next here.
    pub(super) fn want<'l>(&self, loads: impl Iterator<Item = &'l Load>) {
        if self.is_first() {
            self.wants.set(true);
            loads.for_each(|load| load.want(self.waiter.since_us));
        }
    }

    /// Waits until it is called.
    pub(super) async fn called(&self) -> Call {
        poll_fn(|cx| match self.waiter.call.take() {
            Some(call) => Poll::Ready(call),
            None => {
                self.waiter.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let shared = self.worker.shared;
        let mut waiting = self.worker.queue.waiting.borrow_mut();
        if let Some(at) = waiting.iter().position(|waiter| Rc::ptr_eq(waiter, &self.waiter)) {
            waiting.remove(at);
        }
        drop(waiting);
        shared.queued.fetch_sub(1, Relaxed);
        if self.wants.get() {
            // The backends may be others by now than when it wanted them.
            for slot in 0..shared.fleet.slots() {
                shared.fleet.load(slot as u16).unwant(self.waiter.since_us);
            }
        }
        let waited_us = shared.micros().saturating_sub(self.waiter.since_us);
        self.worker.shard().queue_wait.observe(waited_us, &BOUNDS_US);
        self.worker.queue.call_next();
    }
}

/// Calls and expires, as long as anybody waits.
async fn tick(worker: Rc<Worker>) {
    let timeout_us = worker.shared.config.overload.queue_timeout.as_micros() as u64;
    loop {
        monoio::time::sleep(TICK).await;
        if worker.queue.waiting.borrow().is_empty() {
            worker.queue.ticking.set(false);
            return;
        }
        worker.queue.call_next();
        if let Some(since_us) = worker.shared.micros().checked_sub(timeout_us) {
            worker.queue.expire(since_us);
        }
    }
}
