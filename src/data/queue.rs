//! Requests that wait because every backend that could take them is at its limit.
//!
//! A line a worker and model, first in, first out. Who waits is called by a release on its own worker
//! or, for releases on other workers, by a tick while anybody waits; only the first for each model is called, and it looks
//! itself whether it can go. Whoever leaves, by whatever path, calls the next one.
//!
//! Across workers, the longest wait for a backend stands in its load: a request that came later than that, by more than
//! [`HEAD_START_US`], leaves the backend alone. So no worker's requests starve behind another's.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::call::{Bell, Call};
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
    /// None of them is empty. There are few: one a model that is at its limit.
    lines: RefCell<Vec<Line>>,
    ticking: Cell<bool>,
}

struct Line {
    /// Names what is waited for: requests with the same number can use the same backends.
    model: u64,
    waiting: VecDeque<Rc<Waiter>>,
}

struct Waiter {
    /// On the clock that all workers share.
    since_us: u64,
    bell: Bell,
}

/// Whether a request that has waited since then must leave the backend to one that has waited longer elsewhere.
pub(super) fn must_yield(load: &Load, since_us: u64) -> bool {
    since_us > load.wanted_since().saturating_add(HEAD_START_US)
}

impl Queue {
    /// Whether somebody waits for that model here.
    pub(super) fn has(&self, model: u64) -> bool {
        self.lines.borrow().iter().any(|line| line.model == model)
    }

    /// Calls the first request for each model.
    pub(super) fn call_next(&self) {
        for line in self.lines.borrow().iter() {
            line.waiting.iter().take(1).for_each(|first| first.bell.ring(Call::Look));
        }
    }

    /// Tells those who have waited since then or longer that their time is up.
    fn expire(&self, since_us: u64) {
        for line in self.lines.borrow().iter() {
            let expired = line.waiting.iter().take_while(|waiter| waiter.since_us <= since_us);
            expired.for_each(|waiter| waiter.bell.ring(Call::Expired));
        }
    }

    fn enter(&self, model: u64, waiter: Rc<Waiter>) {
        let mut lines = self.lines.borrow_mut();
        match lines.iter_mut().find(|line| line.model == model) {
            Some(line) => line.waiting.push_back(waiter),
            None => lines.push(Line { model, waiting: VecDeque::from([waiter]) }),
        }
    }

    fn leave(&self, model: u64, waiter: &Rc<Waiter>) {
        let mut lines = self.lines.borrow_mut();
        if let Some(line) = lines.iter_mut().find(|line| line.model == model) {
            // The first one leaves most often.
            if let Some(at) = line.waiting.iter().position(|other| Rc::ptr_eq(other, waiter)) {
                line.waiting.remove(at);
            }
        }
        lines.retain(|line| !line.waiting.is_empty());
    }
}

/// A place in the queue; dropping it leaves the queue.
pub(super) struct Place {
    worker: Rc<Worker>,
    model: u64,
    waiter: Rc<Waiter>,
    /// The load of some backends may say since when it waits.
    wants: Cell<bool>,
}

impl Place {
    /// The last place in the worker's line for the model. `None`: as many requests wait, over all workers, as may.
    pub(super) fn take(worker: &Rc<Worker>, model: u64) -> Option<Self> {
        let shared = worker.shared;
        let limit = shared.config.overload.queue_requests;
        shared.queued.fetch_update(Relaxed, Relaxed, |now| (now < limit).then_some(now + 1)).ok()?;
        let waiter = Rc::new(Waiter { since_us: shared.micros(), bell: Bell::default() });
        worker.queue.enter(model, Rc::clone(&waiter));
        if !worker.queue.ticking.replace(true) {
            monoio::spawn(tick(Rc::clone(worker)));
        }
        Some(Place { worker: Rc::clone(worker), model, waiter, wants: Cell::new(false) })
    }

    pub(super) fn since_us(&self) -> u64 {
        self.waiter.since_us
    }

    /// Nobody has waited longer for the same model here.
    fn is_first(&self) -> bool {
        let lines = self.worker.queue.lines.borrow();
        let line = lines.iter().find(|line| line.model == self.model);
        line.and_then(|line| line.waiting.front()).is_some_and(|first| Rc::ptr_eq(first, &self.waiter))
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
        self.waiter.bell.heard().await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let shared = self.worker.shared;
        self.worker.queue.leave(self.model, &self.waiter);
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
        if worker.queue.lines.borrow().is_empty() {
            worker.queue.ticking.set(false);
            return;
        }
        worker.queue.call_next();
        if let Some(since_us) = worker.shared.micros().checked_sub(timeout_us) {
            worker.queue.expire(since_us);
        }
    }
}
