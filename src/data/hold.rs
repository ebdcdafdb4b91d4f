//! Prompts that are held under `ttft` until a backend has computed what is before them (`route::hold` says which, and who
//! goes first).
//!
//! One list a worker. When a first token is there or a request has ended, the most urgent is called and chooses anew; it goes,
//! or passes the call on to the next, up to [`MOST_ASKED`] of them. What happens on other workers is noticed by a tick while
//! anybody is held. Each is held for `--ttft-hold-ms` at most: then it goes wherever its choice falls. That also bounds what
//! workers that know nothing of each other's lists can do to each other.
//!
//! They count among the requests that wait for a backend, within the same bound; who finds it reached is sent at once.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::call::{Bell, Call};
use super::worker::Worker;
use crate::metrics::shard::BOUNDS_US;
use crate::route::hold;

/// How late a first token on another worker is noticed.
const TICK: Duration = Duration::from_millis(5);

/// Requests that choose anew when one thing has changed.
const MOST_ASKED: u32 = 16;

#[derive(Default)]
pub(super) struct Held {
    waiting: RefCell<Vec<Rc<Waiter>>>,
    /// Counts what has changed, and how many were called since.
    round: Cell<u64>,
    asked: Cell<u32>,
    ticking: Cell<bool>,
}

struct Waiter {
    since_us: u64,
    /// Seconds that the prompt takes on an idle backend that holds nothing.
    cold_s: f64,
    /// The round in which it was called last.
    round: Cell<u64>,
    bell: Bell,
}

impl Waiter {
    fn waited_s(&self, now_us: u64) -> f64 {
        now_us.saturating_sub(self.since_us) as f64 / 1e6
    }
}

impl Held {
    /// A backend may have become free.
    pub(super) fn stir(&self, worker: &Worker) {
        if !self.waiting.borrow().is_empty() {
            self.round.set(self.round.get() + 1);
            self.asked.set(0);
            self.call_next(worker.shared.micros());
        }
    }

    /// Calls the most urgent of those that were not called in this round.
    fn call_next(&self, now_us: u64) {
        if self.asked.get() == MOST_ASKED {
            return;
        }
        let waiting = self.waiting.borrow();
        let not_asked = waiting.iter().filter(|waiter| waiter.round.get() < self.round.get());
        let urgency = |waiter: &Waiter| hold::urgency(waiter.waited_s(now_us), waiter.cold_s);
        let next = not_asked.max_by(|a, b| urgency(a).total_cmp(&urgency(b)));
        if let Some(next) = next {
            next.round.set(self.round.get());
            self.asked.set(self.asked.get() + 1);
            next.bell.ring(Call::Look);
        }
    }

    fn expire(&self, before_us: u64) {
        let waiting = self.waiting.borrow();
        waiting.iter().filter(|waiter| waiter.since_us <= before_us).for_each(|waiter| waiter.bell.ring(Call::Expired));
    }
}

/// A held request's place in the list; dropping it leaves the list.
pub(super) struct Seat {
    worker: Rc<Worker>,
    waiter: Rc<Waiter>,
}

impl Seat {
    /// `None`: as many requests wait, over all workers, as may.
    pub(super) fn take(worker: &Rc<Worker>, cold_s: f64) -> Option<Self> {
        let shared = worker.shared;
        let limit = shared.config.overload.queue_requests;
        shared.queued.fetch_update(Relaxed, Relaxed, |now| (now < limit).then_some(now + 1)).ok()?;
        let waiter = Rc::new(Waiter {
            since_us: shared.micros(),
            cold_s,
            // It has just chosen.
            round: Cell::new(worker.held.round.get()),
            bell: Bell::default(),
        });
        worker.held.waiting.borrow_mut().push(Rc::clone(&waiter));
        if !worker.held.ticking.replace(true) {
            monoio::spawn(tick(Rc::clone(worker)));
        }
        Some(Seat { worker: Rc::clone(worker), waiter })
    }

    pub(super) fn waited_s(&self) -> f64 {
        self.waiter.waited_s(self.worker.shared.micros())
    }

    /// Stays after a call.
    pub(super) fn pass_on(&self) {
        self.worker.held.call_next(self.worker.shared.micros());
    }

    /// Waits until it is called.
    pub(super) async fn called(&self) -> Call {
        self.waiter.bell.heard().await
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let held = &self.worker.held;
        held.waiting.borrow_mut().retain(|other| !Rc::ptr_eq(other, &self.waiter));
        let shared = self.worker.shared;
        shared.queued.fetch_sub(1, Relaxed);
        let now_us = shared.micros();
        self.worker.shard().queue_wait.observe(now_us.saturating_sub(self.waiter.since_us), &BOUNDS_US);
        // Another backend may be free, too; and who was called and is gone has not looked.
        held.call_next(now_us);
    }
}

/// Calls and expires, as long as anybody is held.
async fn tick(worker: Rc<Worker>) {
    let most_us = (worker.shared.config.routing.ttft.hold_s * 1e6) as u64;
    loop {
        monoio::time::sleep(TICK).await;
        if worker.held.waiting.borrow().is_empty() {
            worker.held.ticking.set(false);
            return;
        }
        worker.held.stir(&worker);
        // After that, so that who is called for both reasons hears this one.
        if let Some(before_us) = worker.shared.micros().checked_sub(most_us) {
            worker.held.expire(before_us);
        }
    }
}
