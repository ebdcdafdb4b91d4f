//! The waiting room: requests that no backend may have now, of all workers, in one order.
//!
//! **Queued** are those whose backends are all at their limit: first in, first out among those that can use the same
//! backends, and a backend goes to the one that has waited longest of all that can use it. **Held** are prompts that `ttft`
//! wants sent later: the most urgent goes first (`route::hold`). One may become queued when it finds all at their limit.
//!
//! Who waits is called only when something has changed at a backend that it can use, and only who is next. It looks itself,
//! with what the trie has told it already; then it goes and leaves the room, which calls the next one, or it stays. A
//! queued one that is called finds its place: who comes later leaves alone a backend that somebody waits for. Of held ones
//! each passes the call on, up to [`MOST_ASKED`] of them in a round. What changes begins a round, before it is to be seen and
//! from the most urgent on: who was called in an earlier round does not go, even if it finds that it could.
//!
//! Concurrency: one mutex, which only those touch who wait, and who releases a backend that somebody waits for: that is a
//! word on the backend's load line. Nothing is called, and nothing waits, under it. Nobody is forgotten: who enters tells the
//! load lines first and looks at the backends once more afterwards; who releases a backend does so first and looks at the word
//! afterwards. Both pairs are sequentially consistent, so that one of the two sees the other.
//!
//! Must not know: what a request is, sockets, tasks. It gives back whom to call.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU8, AtomicU64, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::fleet::Fleet;
use crate::fleet::load::{Load, NOBODY};
use crate::route::hold;

/// Held requests that look when one thing has changed.
const MOST_ASKED: u32 = 16;

/// Between two looks that time alone is the reason for.
const CLOCK_US: u64 = 5_000;

/// Bits of a call.
const LOOK: u8 = 1;
const RENEW: u8 = 2;

/// What a waiting request is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// There may be a place for it.
    Look,
    /// The backends may be others.
    Renew,
    /// It has waited as long as it may.
    Expired,
}

/// One that waits.
#[derive(Debug)]
pub(super) struct Entry {
    /// In the order in which they came.
    pub(super) ticket: u64,
    pub(super) since_us: u64,
    /// Seconds that the prompt takes on an idle backend that holds nothing; of a held one.
    cold_s: f64,
    pub(super) worker: usize,
    /// Where its worker has its bell.
    pub(super) bell: usize,
    call: AtomicU8,
    /// The round of its line in which it was called last; under the room's lock.
    round: AtomicU64,
}

impl Entry {
    /// False: that call waits already to be heard.
    fn calls(&self, call: u8) -> bool {
        self.call.fetch_or(call, AcqRel) & call == 0
    }

    pub(super) fn renews(&self) {
        self.calls(RENEW);
    }

    /// The call that has come since the last one was heard.
    pub(super) fn heard(&self) -> Option<Call> {
        match self.call.swap(0, AcqRel) {
            0 => None,
            RENEW => Some(Call::Renew),
            _ => Some(Call::Look),
        }
    }

    fn waited_s(&self, now_us: u64) -> f64 {
        now_us.saturating_sub(self.since_us) as f64 / 1e6
    }
}

/// Where an entry stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// The backends that it can use, sorted.
    pub(super) slots: Box<[u16]>,
    pub(super) is_queued: bool,
}

/// Those that can use the same backends. Never empty.
struct Line {
    slots: Box<[u16]>,
    /// By ticket.
    queued: VecDeque<Arc<Entry>>,
    held: Vec<Arc<Entry>>,
    /// Counts what has changed, and how many held ones were called since.
    round: u64,
    asked: u32,
}

impl Line {
    fn has(&self, slot: u16) -> bool {
        self.slots.binary_search(&slot).is_ok()
    }

    fn first(&self) -> u64 {
        self.queued.front().map_or(NOBODY, |entry| entry.ticket)
    }

    /// Something changes: the held ones are asked from the most urgent on.
    fn begin_round(&mut self) {
        self.round += 1;
        self.asked = 0;
    }

    /// Calls the most urgent of those that were not called in this round.
    fn call_held(&mut self, now_us: u64, calls: &mut Calls) {
        if self.asked == MOST_ASKED {
            return;
        }
        let not_asked = self.held.iter().filter(|entry| entry.round.load(Relaxed) < self.round);
        let urgency = |entry: &Entry| hold::urgency(entry.waited_s(now_us), entry.cold_s);
        let next = not_asked.max_by(|a, b| urgency(a).total_cmp(&urgency(b)).then(b.ticket.cmp(&a.ticket)));
        if let Some(next) = next {
            next.round.store(self.round, Relaxed);
            self.asked += 1;
            calls.add(next);
        }
    }
}

/// Whom to call, once the room is left.
#[derive(Default)]
#[must_use]
pub(super) struct Calls(pub(super) Vec<Arc<Entry>>);

impl Calls {
    fn add(&mut self, entry: &Arc<Entry>) {
        if entry.calls(LOOK) {
            self.0.push(Arc::clone(entry));
        }
    }
}

#[derive(Default)]
struct Room {
    /// Few: one a set of backends that are waited for.
    lines: Vec<Line>,
    tickets: u64,
}

pub(super) struct Pending {
    fleet: &'static Fleet,
    /// Of a backend; 0: none.
    limit: u32,
    room: Mutex<Room>,
    /// When time alone was the last reason to look.
    clock_us: AtomicU64,
}

impl Pending {
    pub(super) fn new(fleet: &'static Fleet, limit: u32) -> Self {
        Pending { fleet, limit, room: Mutex::default(), clock_us: AtomicU64::new(0) }
    }

    /// Each step leaves the room whole, so that it stays usable after a panic.
    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody waits for that backend. For whoever has just released it.
    pub(super) fn waits_for(&self, slot: u16) -> bool {
        self.fleet.load(slot).is_awaited()
    }

    /// The last one of all. It must look at the backends once more before it waits.
    pub(super) fn enter(
        &self,
        standing: &Standing,
        (worker, bell): (usize, usize),
        now_us: u64,
        cold_s: f64,
    ) -> Arc<Entry> {
        let mut room = self.room();
        room.tickets += 1;
        let (ticket, call, round) = (room.tickets, AtomicU8::new(0), AtomicU64::new(0));
        let entry = Arc::new(Entry { ticket, since_us: now_us, cold_s, worker, bell, call, round });
        room.put(self.fleet, &entry, standing);
        entry
    }

    /// Stands elsewhere from now on, in the order of when it came. It must look once more as well.
    pub(super) fn moves(&self, entry: &Arc<Entry>, from: &Standing, to: &Standing) -> Calls {
        let mut room = self.room();
        room.take(self.fleet, entry, from);
        room.put(self.fleet, entry, to);
        self.call_for(&room, &from.slots)
    }

    pub(super) fn leave(&self, entry: &Arc<Entry>, from: &Standing, now_us: u64) -> Calls {
        let mut room = self.room();
        room.take(self.fleet, entry, from);
        let mut calls = self.call_for(&room, &from.slots);
        // Another backend may be free, too; and who was called and is gone has not looked.
        if let Some(line) = room.lines.iter_mut().find(|line| !from.is_queued && line.slots == from.slots) {
            line.call_held(now_us, &mut calls);
        }
        calls
    }

    /// A held one has looked and stays.
    pub(super) fn stays(&self, standing: &Standing, now_us: u64) -> Calls {
        let mut calls = Calls::default();
        if let Some(line) = self.room().lines.iter_mut().find(|line| line.slots == standing.slots) {
            line.call_held(now_us, &mut calls);
        }
        calls
    }

    /// Whether a held one that was called is still the one whose turn it is.
    pub(super) fn is_in_turn(&self, entry: &Entry, standing: &Standing) -> bool {
        let room = self.room();
        let line = room.lines.iter().find(|line| line.slots == standing.slots);
        line.is_some_and(|line| line.round == entry.round.load(Relaxed))
    }

    /// Something is about to end at a backend.
    pub(super) fn releases(&self, slot: u16) {
        self.room().lines.iter_mut().filter(|line| line.has(slot)).for_each(Line::begin_round);
    }

    /// It has ended.
    pub(super) fn released(&self, slot: u16, now_us: u64) -> Calls {
        let mut room = self.room();
        let mut calls = self.call_for(&room, &[slot]);
        room.lines.iter_mut().filter(|line| line.has(slot)).for_each(|line| line.call_held(now_us, &mut calls));
        calls
    }

    /// Lets the held ones look after some time in which nothing has happened: what is computed is nearer to its end.
    pub(super) fn clock(&self, now_us: u64) -> Calls {
        let mut calls = Calls::default();
        let then = self.clock_us.load(Relaxed);
        let is_due = now_us.saturating_sub(then) >= CLOCK_US;
        if is_due && self.clock_us.compare_exchange(then, now_us, Relaxed, Relaxed).is_ok() {
            for line in &mut self.room().lines {
                line.begin_round();
                line.call_held(now_us, &mut calls);
            }
        }
        calls
    }

    /// What no release tells of: a backend that can be reached again, and that none of a line's can be.
    pub(super) fn check(&self) -> Calls {
        let room = self.room();
        let mut calls = Calls::default();
        for line in room.lines.iter().filter(|line| !line.queued.is_empty()) {
            if line.slots.iter().all(|&slot| self.fleet.load(slot).is_unreachable()) {
                line.queued.iter().for_each(|entry| calls.add(entry));
            } else {
                calls.0.extend(self.call_for(&room, &line.slots).0);
            }
        }
        calls
    }

    /// Calls who is next for each of these backends that has a place.
    fn call_for(&self, room: &Room, slots: &[u16]) -> Calls {
        let mut calls = Calls::default();
        for &slot in slots {
            let load = self.fleet.load(slot);
            if load.first_awaiting() != NOBODY && !load.is_unreachable() && load.in_flight() < self.limit {
                let lines = room.lines.iter().filter(|line| line.has(slot));
                let next = lines.filter_map(|line| line.queued.front()).min_by_key(|entry| entry.ticket);
                next.into_iter().for_each(|entry| calls.add(entry));
            }
        }
        calls
    }
}

impl Room {
    fn put(&mut self, fleet: &Fleet, entry: &Arc<Entry>, standing: &Standing) {
        let known = self.lines.iter().position(|line| line.slots == standing.slots);
        let at = known.unwrap_or_else(|| {
            let slots = standing.slots.clone();
            slots.iter().for_each(|&slot| fleet.load(slot).await_more());
            self.lines.push(Line { slots, queued: VecDeque::new(), held: Vec::new(), round: 0, asked: 0 });
            self.lines.len() - 1
        });
        let line = &mut self.lines[at];
        if standing.is_queued {
            let behind = line.queued.iter().rposition(|other| other.ticket < entry.ticket).map_or(0, |at| at + 1);
            line.queued.insert(behind, Arc::clone(entry));
            if behind == 0 {
                self.tell_first(fleet, &standing.slots);
            }
        } else {
            // It has just chosen.
            entry.round.store(line.round, Relaxed);
            line.held.push(Arc::clone(entry));
        }
        fence(SeqCst);
    }

    fn take(&mut self, fleet: &Fleet, entry: &Arc<Entry>, standing: &Standing) {
        let Some(at) = self.lines.iter().position(|line| line.slots == standing.slots) else { return };
        let line = &mut self.lines[at];
        let mut was_first = false;
        if standing.is_queued {
            // The first one leaves most often.
            let place = line.queued.iter().position(|other| Arc::ptr_eq(other, entry));
            place.and_then(|place| line.queued.remove(place));
            was_first = place == Some(0);
        } else {
            line.held.retain(|other| !Arc::ptr_eq(other, entry));
        }
        if line.queued.is_empty() && line.held.is_empty() {
            let line = self.lines.swap_remove(at);
            line.slots.iter().for_each(|&slot| fleet.load(slot).await_less());
        }
        if was_first {
            self.tell_first(fleet, &standing.slots);
        }
    }

    /// Lets all workers know who has waited longest for each of these backends.
    fn tell_first(&self, fleet: &Fleet, slots: &[u16]) {
        for &slot in slots {
            let first = self.lines.iter().filter(|line| line.has(slot)).map(Line::first).min().unwrap_or(NOBODY);
            fleet.load(slot).set_first_awaiting(first);
        }
    }
}

/// Whether a request with this ticket must leave the backend to one that has waited longer.
pub(super) fn must_yield(load: &Load, ticket: u64) -> bool {
    load.first_awaiting() < ticket
}

#[cfg(test)]
#[path = "pending_tests.rs"]
mod tests;
