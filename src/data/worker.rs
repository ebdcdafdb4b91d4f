//! What one data-plane thread has: its share of the process's state, its pools, its clock. One a thread, shared by its
//! tasks, never by another thread.

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::buffer::Blocks;
use super::call::Bells;
use super::control::Lanes;
use super::coop::Coop;
use super::credit::Credit;
use super::deadline::Deadlines;
use super::keep::Keeper;
use super::lease::Leases;
use super::mailbox::{Mailboxes, Seat};
use super::pending::Pending;
use super::pipes::Pipes;
use super::place;
use super::stall::Stalls;
use super::turn::Turns;
use super::upstream::Pools;
use crate::config::Config;
use crate::fleet::snapshot::Snapshot;
use crate::http::date;
use crate::http::limits::Limits;
use crate::metrics::shard::Shard;
use crate::shared::{Phase, Shared};

/// Housekeeping period: deadlines are exact to it, and a drain is noticed within it.
pub(super) const TICK: Duration = Duration::from_millis(50);

pub(super) struct Worker {
    pub(super) shared: &'static Shared,
    pub(super) index: usize,
    pub(super) mailboxes: &'static Mailboxes,
    pub(super) limits: Limits,
    pub(super) blocks: Rc<Blocks>,
    pub(super) pipes: Pipes,
    pub(super) leases: Leases,
    pub(super) keeper: Keeper,
    pub(super) turns: Turns,
    pub(super) control: Lanes,
    /// Where requests of all workers wait, and how this worker's are called.
    pub(super) pending: &'static Pending,
    pub(super) bells: Bells,
    /// How many of them are held, and whether somebody lets time pass for them.
    pub(super) holding: Cell<usize>,
    pub(super) ticking: Cell<bool>,
    pub(super) deadlines: Rc<Deadlines>,
    pub(super) coop: Rc<Coop>,
    pub(super) pools: RefCell<Pools>,
    snapshot: RefCell<Rc<View>>,
    random: Cell<u64>,
    date: Cell<[u8; date::LENGTH]>,
    /// What the backends get in place of the client's `Authorization`; empty: they get none.
    pub(super) authorization: Option<Vec<u8>>,
}

/// A snapshot as requests hold it.
pub(super) struct View(Arc<Snapshot>);

impl Deref for View {
    type Target = Snapshot;

    fn deref(&self) -> &Snapshot {
        &self.0
    }
}

impl Worker {
    pub(super) fn new(
        shared: &'static Shared,
        mailboxes: &'static Mailboxes,
        pending: &'static Pending,
        index: usize,
    ) -> io::Result<Rc<Self>> {
        let coop = Coop::new()?;
        let seed = std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), index);
        Ok(Rc::new(Worker {
            shared,
            index,
            mailboxes,
            limits: Limits { head_bytes: shared.config.max_head_bytes, ..Limits::default() },
            blocks: Rc::new(Blocks::new(Credit::of(
                &shared.buffered_bytes,
                shared.config.max_buffered_bytes,
                shared.config.workers,
            ))),
            pipes: Pipes::default(),
            leases: Leases::new(shared),
            keeper: Keeper::default(),
            turns: Turns::default(),
            control: Lanes::default(),
            pending,
            bells: Bells::default(),
            holding: Cell::new(0),
            ticking: Cell::new(false),
            deadlines: Deadlines::new(Rc::clone(&coop)),
            coop,
            pools: RefCell::new(Pools::new(shared.fleet.slots())),
            snapshot: RefCell::new(Rc::new(View(shared.fleet.snapshot().load_full()))),
            random: Cell::new(seed),
            date: Cell::new(today()),
            authorization: authorization(&shared.config),
        }))
    }

    pub(super) fn shard(&self) -> &'static Shard {
        &self.shared.shards[self.index]
    }

    /// The present snapshot, held by a count that only this core touches.
    pub(super) fn snapshot(&self) -> Rc<View> {
        let mut held = self.snapshot.borrow_mut();
        let present = self.shared.fleet.snapshot().load();
        if !Arc::ptr_eq(&held.0, &present) {
            *held = Rc::new(View(Arc::clone(&present)));
        }
        Rc::clone(&held)
    }

    /// SplitMix64 (Steele, Lea, Flood, 2014): for choices and request ids, not for secrets.
    pub(super) fn random(&self) -> u64 {
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Publishes how many pipes there are.
    pub(super) fn count_pipes(&self) {
        self.shard().pipes_open.set(self.pipes.open() as u64);
        self.shard().pipes_busy.set(self.pipes.busy() as u64);
    }

    /// The date for answers, as it was at the last tick.
    pub(super) fn date(&self) -> [u8; date::LENGTH] {
        self.date.get()
    }

    pub(super) fn draining(&self) -> bool {
        self.shared.phase() >= Phase::Leaving
    }

    /// The worker's housekeeping, until the process ends.
    pub(super) async fn housekeep(self: Rc<Self>) {
        let mut stalls = Stalls::new();
        let mut seen = self.snapshot();
        loop {
            stalls.sleeps();
            monoio::time::sleep(TICK).await;
            self.shard().longest_turn_us.set(stalls.woke(TICK).as_micros() as u64);
            let before = std::mem::replace(&mut seen, self.snapshot());
            place::notice(&self, !Rc::ptr_eq(&before, &seen));
            if self.shared.phase() == Phase::Draining {
                self.deadlines.end_idle();
            }
            self.deadlines.tick();
            self.date.set(today());
            self.pools.borrow_mut().expire(self.deadlines.now_ms(), self.shared.config.times.upstream_idle);
            self.shared.trie.tick();
            self.blocks.trim();
            if self.pipes.trim() {
                self.count_pipes();
            }
        }
    }
}

fn today() -> [u8; date::LENGTH] {
    date::of(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// The backends' key if there is one. The router's own is for the router: it is not sent on.
fn authorization(config: &Config) -> Option<Vec<u8>> {
    match (&config.backend_api_key, &config.api_key) {
        (Some(key), _) => Some(format!("Bearer {}", key.expose()).into_bytes()),
        (None, Some(_)) => Some(Vec::new()),
        (None, None) => None,
    }
}

/// One open client connection of this worker, counted as long as it lives.
pub(super) struct Counted {
    worker: Rc<Worker>,
    _seat: Seat,
}

impl Counted {
    pub(super) fn new(worker: &Rc<Worker>, seat: Seat) -> Self {
        worker.shard().accepted.add(1);
        Counted { worker: Rc::clone(worker), _seat: seat }
    }

    pub(super) fn worker(&self) -> &Worker {
        &self.worker
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.worker.shard().closed.add(1);
    }
}
