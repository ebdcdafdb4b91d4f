//! The list of backends: who is known, in which slot, and what is known of each.
//!
//! It must not know how any of it is found out. A backend keeps its slot as long as it is a member; a slot that was given
//! up is taken again last, so that what still runs under it has ended by then. Whatever changes here is seen by the workers
//! only once `publish` has swapped the snapshot.

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use super::engine_stats::{EngineStats, ProcessMarks};
use super::health::Health;
use super::lanes::Lanes;
use super::models::{Models, named};
use crate::config::{Config, ConfigError, StaticBackend};
use crate::fleet::arrivals::Window;
use crate::fleet::belief::ENDLESS;
use crate::fleet::outlier::Verdict;
use crate::fleet::snapshot::{Backend, Rules, Snapshot, State};
use crate::route::slow_start::MAX_COLD_PERMILLE;
use crate::shared::Shared;

/// Between two rounds of learning, when there are no health checks to set the pace.
const UNPROBED_INTERVAL: Duration = Duration::from_secs(5);

pub(super) struct Member {
    pub(super) slot: u16,
    pub(super) spec: StaticBackend,
    /// The URL's text: label, log lines.
    pub(super) name: String,
    pub(super) identity: u64,
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) models: Models,
    /// When the engine last told its models.
    pub(super) models_at: Option<Instant>,
    pub(super) health: Health,
    /// Asked for by `/sleep`, or told by the engine.
    pub(super) sleeping: bool,
    /// Whether it has `/is_sleeping`; not known before its first answer.
    pub(super) tells_sleep: Option<bool>,
    /// Since when `sleeping` is as it is; `None` while a call that changes it runs.
    pub(super) sleep_known_at: Option<Instant>,
    /// It is not one of those that were there when the router started, or not any more: when it begins to take requests, its
    /// share grows slowly.
    is_late: bool,
    /// It takes requests, as the workers last saw it.
    takes_requests: bool,
    /// Since when its share grows, while it does.
    warms_since: Option<Instant>,
    /// It has no `/health`: its model list is asked for instead.
    pub(super) lacks_health: bool,
    pub(super) next_probe: Instant,
    /// Wakes the prober when `next_probe` moved.
    pub(super) wake: Arc<Notify>,
    /// When a worker's mark was noticed last: a probe that began before it proves nothing.
    pub(super) unreachable_at: Option<Instant>,
    /// It has answered a probe or a scrape at least once.
    pub(super) answered: bool,
    /// Reads of its answers when the last probe was not answered in time; none when that was another round.
    pub(super) reads_when_slow: Option<u64>,
    /// Without health checks: when a worker's mark is cleared.
    pub(super) paused_until: Option<Instant>,
    pub(super) last_error: Option<String>,
    pub(super) window: Window,
    pub(super) since: Instant,
    pub(super) engine: Option<EngineStats>,
    pub(super) marks: ProcessMarks,
    pub(super) restarts: u64,
    /// Ejections that were told in the log; whether it was ejected then.
    pub(super) ejections_told: u64,
    pub(super) was_ejected: bool,
    tasks: Vec<AbortHandle>,
}

impl Member {
    fn new(spec: &StaticBackend, slot: u16, is_late: bool, shared: &Shared, now: Instant) -> Self {
        let name = spec.url.to_string();
        let window_ms = u64::try_from(shared.config.request_stats_window.as_millis()).unwrap_or(u64::MAX);
        let interval = shared.config.health.as_ref().map_or(UNPROBED_INTERVAL, |health| health.interval);
        Member {
            slot,
            identity: xxh3_64(name.as_bytes()),
            name,
            addresses: spec.url.literal_address().into_iter().collect(),
            models: named(&spec.models),
            models_at: None,
            health: Health::new(!spec.models.is_empty(), interval),
            is_late,
            takes_requests: false,
            warms_since: None,
            sleeping: false,
            tells_sleep: None,
            sleep_known_at: Some(now),
            lacks_health: false,
            next_probe: now,
            wake: Arc::new(Notify::new()),
            unreachable_at: None,
            answered: false,
            reads_when_slow: None,
            paused_until: None,
            last_error: None,
            window: Window::new(window_ms, shared.fleet.load(slot), now_ms(shared)),
            since: now,
            engine: None,
            marks: ProcessMarks::default(),
            restarts: 0,
            ejections_told: 0,
            was_ejected: false,
            tasks: Vec::new(),
            spec: spec.clone(),
        }
    }

    /// The configuration says something else of it now. Its models stay until the engine has told others, unless they are
    /// named.
    fn respecify(&mut self, spec: &StaticBackend, now: Instant) {
        if self.spec == *spec {
            return;
        }
        if !spec.models.is_empty() {
            let mut models = named(&spec.models);
            for (name, entry) in &mut models {
                if let Some(known) = self.models.remove(name) {
                    *entry = known;
                }
            }
            self.models = models;
        }
        match (self.spec.draining, spec.draining) {
            (false, true) => tracing::info!("backend {} is draining: it gets no more requests", self.name),
            (true, false) => tracing::info!("backend {} is no longer draining", self.name),
            _ => {}
        }
        self.models_at = None;
        self.next_probe = now;
        self.wake.notify_one();
        self.spec = spec.clone();
    }

    pub(super) fn own_task(&mut self, task: AbortHandle) {
        self.tasks.push(task);
    }

    /// How `?id=` names it; the same in every process.
    pub(super) fn engine_id(&self) -> String {
        format!("{:016x}", self.identity)
    }

    /// It was not there when it was looked for: whenever it comes, it comes late.
    pub(super) fn is_absent(&mut self) {
        self.is_late = true;
    }

    /// What takes requests there now is another process: from the next `publish` on it is as one that has just come.
    pub(super) fn begins_anew(&mut self) {
        self.takes_requests = false;
    }

    /// How much of its share it does not get yet.
    pub(super) fn cold_permille(&self, slow_start: Duration, now: Instant) -> u16 {
        let Some(since) = self.warms_since else { return 0 };
        let left = slow_start.saturating_sub(now.duration_since(since)).as_millis() * 1000;
        let permille = left.checked_div(slow_start.as_millis()).unwrap_or(0);
        u16::try_from(permille).map_or(MAX_COLD_PERMILLE, |permille| permille.min(MAX_COLD_PERMILLE))
    }

    /// What the workers are to know of it.
    pub(super) fn state(&self) -> State {
        match self.health.state() {
            State::Up if self.sleeping => State::Sleeping,
            State::Up if self.spec.draining => State::Draining,
            state => state,
        }
    }

    pub(super) fn model_names(&self) -> Vec<String> {
        self.models.keys().cloned().collect()
    }

    /// Both serve some model.
    fn shares(&self, other: &Member) -> bool {
        self.models.keys().any(|model| other.models.contains_key(model))
    }

    fn backend(&self, slow_start: Duration, now: Instant) -> Backend {
        Backend {
            slot: self.slot,
            url: self.spec.url.clone(),
            name: self.name.clone(),
            authority: self.spec.url.authority(),
            addresses: self.addresses.clone(),
            models: self.model_names(),
            model_type: self.spec.model_type,
            label: self.spec.label.clone(),
            state: self.state(),
            cold_permille: self.cold_permille(slow_start, now),
            identity: self.identity,
        }
    }
}

/// What `/health` says of the configuration.
#[derive(Clone, Serialize)]
pub(super) struct Loaded {
    /// How many times one was put into force, from 1 on.
    pub(super) generation: u64,
    /// When the present one was, as a unix time.
    #[serde(rename = "loaded_at")]
    pub(super) at_unix_s: u64,
    /// Why a later one was refused.
    pub(super) last_error: Option<ConfigError>,
}

pub(super) struct Members {
    list: Vec<Member>,
    rules: Arc<Rules>,
    loaded: Loaded,
    /// Slots that no member has; the one that was given up last is at the end.
    free: VecDeque<u16>,
    /// Slots that were given up at least once.
    given_up: HashSet<u16>,
    lanes: Lanes,
}

impl Members {
    pub(super) fn new(slots: usize, config: &Config, now_unix_s: u64) -> Self {
        let slots = u16::try_from(slots).unwrap_or(u16::MAX);
        Members {
            list: Vec::new(),
            rules: rules(config),
            loaded: Loaded { generation: 1, at_unix_s: now_unix_s, last_error: None },
            free: (0..slots).collect(),
            given_up: HashSet::new(),
            lanes: Lanes::default(),
        }
    }

    pub(super) fn rules(&self) -> &Rules {
        &self.rules
    }

    pub(super) fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Another configuration is in force from the next `publish` on; gives its number.
    pub(super) fn load(&mut self, config: &Config, now_unix_s: u64) -> u64 {
        self.rules = rules(config);
        self.loaded = Loaded { generation: self.loaded.generation + 1, at_unix_s: now_unix_s, last_error: None };
        self.loaded.generation
    }

    /// A configuration was refused; the present one stays.
    pub(super) fn refuse(&mut self, why: ConfigError) {
        self.loaded.last_error = Some(why);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Member> {
        self.list.iter()
    }

    /// Takes in the requests that were begun since the last sum. Who is passed over because its requests failed keeps
    /// up with the one that has the least: what it did not get meanwhile is not made up for at once when it comes back.
    pub(super) fn sum_windows(&mut self, shared: &Shared) {
        let (now, now_ms) = (Instant::now(), now_ms(shared));
        for member in &mut self.list {
            let cold_permille = member.cold_permille(shared.config.slow_start, now);
            member.window.sum(shared.fleet.load(member.slot), cold_permille, now_ms);
        }
        let is_well = |member: &Member| shared.fleet.outlier(member.slot).verdict(|| now_ms) == Verdict::Well;
        for at in 0..self.list.len() {
            if !is_well(&self.list[at]) {
                self.join_least(at, shared, is_well);
            }
        }
    }

    /// Gives one the window of the one that has the least, of those which take requests for a model of its own.
    fn join_least(&mut self, at: usize, shared: &Shared, counts: impl Fn(&Member) -> bool) {
        let (before, rest) = self.list.split_at_mut(at);
        let Some((member, after)) = rest.split_first_mut() else { return };
        let others = before.iter().chain(after.iter());
        let others = others.filter(|other| other.takes_requests && other.shares(member) && counts(other));
        if let Some(least) = others.min_by_key(|other| other.window.level()) {
            member.window.join(&least.window, shared.fleet.load(member.slot));
        }
    }

    pub(super) fn get_mut(&mut self, slot: u16) -> Option<&mut Member> {
        self.list.iter_mut().find(|member| member.slot == slot)
    }

    pub(super) fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// Makes the list what `wanted` says, in that order: members whose URL stays keep their slot and all that is known of
    /// them, the others are gone with their marks. Returns the slots of those that came. Those without a free slot are left
    /// out, with a log line.
    pub(super) fn set(&mut self, wanted: &[StaticBackend], shared: &Shared, now: Instant) -> Vec<u16> {
        let late = !self.list.is_empty() || !self.given_up.is_empty();
        let stays = |member: &Member| wanted.iter().any(|spec| spec.url == member.spec.url);
        let (mut known, leave): (Vec<_>, Vec<_>) = std::mem::take(&mut self.list).into_iter().partition(stays);
        for member in leave {
            self.release(&member, shared);
        }
        let mut came = Vec::new();
        for spec in wanted {
            if let Some(at) = known.iter().position(|member| member.spec.url == spec.url) {
                let mut member = known.swap_remove(at);
                member.respecify(spec, now);
                self.list.push(member);
            } else if let Some(slot) = self.take_slot(shared) {
                self.list.push(Member::new(spec, slot, late, shared, now));
                came.push(slot);
            } else {
                tracing::error!("backend {} is left out: {} backends are the limit", spec.url, shared.fleet.slots());
            }
        }
        came
    }

    /// A free slot, if possible one under which nothing runs any more. What was learnt of its last owner is forgotten. A worker
    /// that still had the old snapshot may have left marks for that one after it was removed: they are void, too.
    fn take_slot(&mut self, shared: &Shared) -> Option<u16> {
        let idle = self.free.iter().position(|slot| shared.fleet.load(*slot).in_flight() == 0);
        let slot = self.free.remove(idle.unwrap_or(0))?;
        if self.given_up.contains(&slot) {
            shared.trie.raise(slot);
            shared.trie.set_horizon(slot, ENDLESS);
            shared.fleet.forget(slot);
        }
        Some(slot)
    }

    fn release(&mut self, member: &Member, shared: &Shared) {
        for task in &member.tasks {
            task.abort();
        }
        shared.trie.raise(member.slot);
        self.free.push_back(member.slot);
        self.given_up.insert(member.slot);
        tracing::info!("backend {} is removed", member.name);
    }

    /// Whether some share is still growing; those that have grown up no longer count.
    pub(super) fn are_warming(&mut self, slow_start: Duration, now: Instant) -> bool {
        let mut warming = false;
        for member in &mut self.list {
            warming |= member.warms_since.is_some();
            if member.cold_permille(slow_start, now) == 0 {
                member.warms_since = None;
            }
        }
        warming
    }

    /// Those that are about to take requests and did not before. Each begins with the window of the one that has the least of
    /// those which serve a model of its own, and with a small share if it is late. Whatever made it take requests comes here.
    fn admit_arrivals(&mut self, shared: &Shared, now: Instant) {
        let takes = |member: &Member| member.state() == State::Up && !member.addresses.is_empty();
        if self.list.iter().any(|member| takes(member) && !member.takes_requests) {
            self.sum_windows(shared);
        }
        for at in 0..self.list.len() {
            let takes = takes(&self.list[at]);
            if std::mem::replace(&mut self.list[at].takes_requests, takes) || !takes {
                continue;
            }
            self.join_least(at, shared, |_| true);
            let member = &mut self.list[at];
            if std::mem::replace(&mut member.is_late, true) {
                member.warms_since = Some(now);
            }
        }
    }

    /// Shows the workers what is known now.
    pub(super) fn publish(&mut self, shared: &Shared) {
        let (slow_start, now) = (shared.config.slow_start, Instant::now());
        self.admit_arrivals(shared, now);
        let backends = self.list.iter().map(|member| Arc::new(member.backend(slow_start, now))).collect();
        let lanes = &mut self.lanes;
        let snapshot = Snapshot::new(backends, self.rules.clone(), |server, model| lanes.number(server, model));
        shared.fleet.publish(snapshot);
    }
}

/// The clock of the windows.
fn now_ms(shared: &Shared) -> u64 {
    shared.micros() / 1000
}

fn rules(config: &Config) -> Arc<Rules> {
    Arc::new(Rules { aliases: config.aliases.clone(), routing: config.routing.clone() })
}
