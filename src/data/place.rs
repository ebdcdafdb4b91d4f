//! A request's place in the waiting room (`pending`): as long as it is there, and until it is dropped by whatever path.
//!
//! Each waits by its own timer, for `--queue-timeout-seconds` when it is queued and for `--ttft-hold-ms` when it is held: then
//! it goes wherever its choice falls. Both count in the same bound, `--queue-size`.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;
use std::time::Duration;

use super::call::deliver;
use super::pending::{Call, Entry, Standing};
use super::worker::Worker;
use crate::metrics::shard::BOUNDS_US;

/// How often held prompts look although nothing has happened.
const TICK: Duration = Duration::from_millis(5);

pub(super) struct Place {
    worker: Rc<Worker>,
    entry: Arc<Entry>,
    standing: Standing,
    /// It was called and has not said yet whether it stays.
    asked: Cell<bool>,
}

impl Place {
    /// Among those for which all of these backends are at their limit. `None`: as many wait, over all workers, as may.
    pub(super) fn queue(worker: &Rc<Worker>, slots: Box<[u16]>) -> Option<Self> {
        Self::take(worker, Standing { slots, is_queued: true }, 0.0)
    }

    /// Among those that are held. `cold_s`: seconds that the prompt takes on an idle backend that holds nothing.
    pub(super) fn hold(worker: &Rc<Worker>, slots: Box<[u16]>, cold_s: f64) -> Option<Self> {
        let place = Self::take(worker, Standing { slots, is_queued: false }, cold_s)?;
        worker.holding.set(worker.holding.get() + 1);
        if !worker.ticking.replace(true) {
            monoio::spawn(tick(Rc::clone(worker)));
        }
        Some(place)
    }

    fn take(worker: &Rc<Worker>, standing: Standing, cold_s: f64) -> Option<Self> {
        let shared = worker.shared;
        let limit = shared.config.overload.queue_requests;
        shared.queued.fetch_update(Relaxed, Relaxed, |now| (now < limit).then_some(now + 1)).ok()?;
        let bell = worker.bells.take();
        let entry = worker.pending.enter(&standing, (worker.index, bell), shared.micros(), cold_s);
        worker.bells.belongs_to(&entry);
        Some(Place { worker: Rc::clone(worker), entry, standing, asked: Cell::new(false) })
    }

    pub(super) fn ticket(&self) -> u64 {
        self.entry.ticket
    }

    pub(super) fn is_queued(&self) -> bool {
        self.standing.is_queued
    }

    pub(super) fn waited_s(&self) -> f64 {
        self.waited_us() as f64 / 1e6
    }

    fn waited_us(&self) -> u64 {
        self.worker.shared.micros().saturating_sub(self.entry.since_us)
    }

    /// It was held; now all backends are at their limit.
    pub(super) fn becomes_queued(&mut self) {
        self.worker.holding.set(self.worker.holding.get() - 1);
        let slots = self.standing.slots.clone();
        self.moves(Standing { slots, is_queued: true });
    }

    /// These are the backends that it can use from now on. True when they are others.
    pub(super) fn wants(&mut self, slots: Box<[u16]>) -> bool {
        let is_other = slots != self.standing.slots;
        if is_other {
            self.moves(Standing { slots, is_queued: self.standing.is_queued });
        }
        is_other
    }

    fn moves(&mut self, to: Standing) {
        deliver(&self.worker, self.worker.pending.moves(&self.entry, &self.standing, &to));
        self.standing = to;
    }

    /// It was called, is held, and something has changed since: others are asked before it.
    pub(super) fn is_overtaken(&self) -> bool {
        let is_asked = self.asked.get() && !self.standing.is_queued;
        is_asked && !self.worker.pending.is_in_turn(&self.entry, &self.standing)
    }

    /// It has looked and stays.
    pub(super) fn stays(&self) {
        if self.asked.take() && !self.standing.is_queued {
            deliver(&self.worker, self.worker.pending.stays(&self.standing, self.worker.shared.micros()));
        }
    }

    /// Waits until it is called, or has been there for `at_most`.
    pub(super) async fn called(&self, at_most: Duration) -> Call {
        let left = at_most.saturating_sub(Duration::from_micros(self.waited_us()));
        let heard = monoio::time::timeout(left, self.worker.bells.heard(&self.entry)).await;
        let call = heard.unwrap_or(Call::Expired);
        self.asked.set(call == Call::Look);
        call
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let worker = &self.worker;
        worker.bells.give_back(self.entry.bell);
        if !self.standing.is_queued {
            worker.holding.set(worker.holding.get() - 1);
        }
        let calls = worker.pending.leave(&self.entry, &self.standing, worker.shared.micros());
        worker.shared.queued.fetch_sub(1, Relaxed);
        worker.shard().queue_wait.observe(self.waited_us(), &BOUNDS_US);
        deliver(worker, calls);
    }
}

/// Something is about to end at the backend, which those may wait for who are held.
pub(super) fn releases(worker: &Worker, slot: u16) {
    if worker.pending.waits_for(slot) {
        worker.pending.releases(slot);
    }
}

/// A request has ended at the backend.
pub(super) fn released(worker: &Worker, slot: u16) {
    if worker.pending.waits_for(slot) {
        deliver(worker, worker.pending.released(slot, worker.shared.micros()));
    }
}

/// A first token is there: the backend computes the next prompt.
pub(super) fn computed(worker: &Worker, slot: u16) {
    // What is computed was counted with relaxed operations.
    fence(SeqCst);
    released(worker, slot);
}

/// What is noticed by looking: other backends, and those that can be reached again, or not any more. `changed`: so is the
/// snapshot.
pub(super) fn notice(worker: &Worker, changed: bool) {
    if !worker.bells.are_silent() {
        if changed {
            worker.bells.renew_all();
        }
        deliver(worker, worker.pending.check());
    }
}

/// Time passes, as long as this worker holds any.
async fn tick(worker: Rc<Worker>) {
    loop {
        monoio::time::sleep(TICK).await;
        if worker.holding.get() == 0 {
            worker.ticking.set(false);
            return;
        }
        deliver(&worker, worker.pending.clock(worker.shared.micros()));
    }
}
