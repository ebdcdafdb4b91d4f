//! The control plane's state, and what each observation changes in it.
//!
//! Observations come from the probers, the scrapers and the aggregation; every one that changes what the workers should
//! know publishes a snapshot and writes one log line. The lock is held for one synchronous step at a time.
//!
//! Order at a return: first the old process' marks are void, then the workers see the backend as up, then the mark that it
//! is unreachable is cleared. No worker can so send a prompt by a mark that the old process left.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::engine_stats::EngineStats;
use super::fetch::Target;
use super::health::Step;
use super::members::{Member, Members};
use super::state::{self, Known, Restored};
use super::watch::Round;
use super::{figures, scrape, watch};
use crate::config::{BackendUrl, Config, ConfigError, StaticBackend};
use crate::fleet::snapshot::State;
use crate::shared::Shared;

/// Without health checks, a backend that a worker could not reach is tried by requests again after this long.
const UNPROBED_PAUSE: Duration = Duration::from_secs(1);
/// For requests to engines when there are no health checks to give a limit.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Plane {
    pub(super) shared: &'static Shared,
    members: Mutex<Members>,
    /// How often a page was written out.
    pub(super) renders: AtomicU64,
    started: Instant,
    pub(super) started_unix_s: u64,
}

impl Plane {
    pub(super) fn new(shared: &'static Shared) -> Self {
        let started_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let members = Members::new(shared.fleet.slots(), &shared.config, started_unix_s);
        show_configuration(shared, &members);
        Plane {
            shared,
            members: Mutex::new(members),
            renders: AtomicU64::new(0),
            started: Instant::now(),
            started_unix_s,
        }
    }

    /// The list, until the guard is dropped. It stays usable after a panic under the lock: each step leaves it whole.
    pub(super) fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now_unix_s(&self) -> u64 {
        self.started_unix_s + self.started.elapsed().as_secs()
    }

    /// Makes these the backends.
    pub(super) fn set_backends(self: &Arc<Self>, wanted: &[StaticBackend]) {
        let mut members = self.members();
        self.adopt(&mut members, wanted);
        members.publish(self.shared);
    }

    /// Puts into force what of another configuration can be without a restart: all of it at once, for the workers.
    pub(super) fn configure(self: &Arc<Self>, config: &Config) -> u64 {
        let mut members = self.members();
        let generation = members.load(config, self.now_unix_s());
        show_configuration(self.shared, &members);
        // Pods are found by their own watch.
        if self.shared.config.kubernetes.is_none() {
            self.adopt(&mut members, &config.backends);
        }
        members.publish(self.shared);
        generation
    }

    /// Another configuration was refused; the present one stays.
    pub(super) fn refuse(&self, why: ConfigError) {
        let mut members = self.members();
        members.refuse(why);
        show_configuration(self.shared, &members);
    }

    /// Each backend that came gets its prober and its scraper.
    fn adopt(self: &Arc<Self>, members: &mut Members, wanted: &[StaticBackend]) {
        for slot in members.set(wanted, self.shared, Instant::now()) {
            let tasks = [
                tokio::spawn(watch::run(self.clone(), slot)).abort_handle(),
                tokio::spawn(scrape::run(self.clone(), slot)).abort_handle(),
            ];
            if let Some(member) = members.get_mut(slot) {
                tasks.into_iter().for_each(|task| member.own_task(task));
            }
        }
    }

    /// The backends as a state names them.
    pub(super) fn known(&self) -> Vec<Known> {
        let known =
            |member: &Member| Known { slot: member.slot, url: member.name.clone(), start_s: member.marks.start_s };
        self.members().iter().map(known).collect()
    }

    /// Writes what this process believes, for another one; returns how many bytes that is.
    pub(super) fn save(&self, out: impl Write) -> io::Result<u64> {
        let (shared, routing) = (self.shared, &self.shared.config.routing);
        state::write(&shared.trie, routing.prefix_chunk_bytes, shared.hash_seed(), &self.known(), out)
    }

    /// Takes in what another process believed of the same backends. From here on they count as known: an engine that proves
    /// to be another process than the one in the state loses its prefixes, as it would have in that process.
    pub(super) fn restore(self: &Arc<Self>, input: impl Read) -> Result<Restored, String> {
        let slots = |known: &[Known]| {
            if self.shared.config.kubernetes.is_some() {
                self.assume(known);
            }
            let members = self.members();
            let slot = |url: &str| members.iter().find(|member| member.name == url).map(|member| member.slot);
            known.iter().map(|known| slot(&known.url)).collect()
        };
        let routing = &self.shared.config.routing;
        // A run takes no more room in a state than in the trie, but for what names its marks.
        let limit = 2 * routing.prefix_memory_bytes as u64 + (1 << 20);
        let adopt = |seed: &_| self.shared.adopt(seed);
        let restored = state::read(&self.shared.trie, routing.prefix_chunk_bytes, limit, input, adopt, slots)?;
        let mut members = self.members();
        for known in &restored.backends {
            if let Some(member) = members.get_mut(known.slot) {
                member.answered = true;
                member.marks.start_s = known.start_s;
            }
        }
        Ok(restored)
    }

    /// Until the cluster says which pods there are, they are the ones that another process knew: if it cannot say, better
    /// these than none.
    pub(super) fn assume(self: &Arc<Self>, known: &[Known]) {
        let backend = |known: &Known| Some(StaticBackend::discovered(BackendUrl::parse(&known.url).ok()?, None));
        let assumed: Vec<_> = known.iter().filter_map(backend).collect();
        if self.members().iter().next().is_none() {
            self.set_backends(&assumed);
        }
    }

    /// How a member is asked, by whoever asks it.
    pub(super) fn target(&self, member: &Member) -> Target {
        Target {
            url: member.spec.url.clone(),
            addresses: member.addresses.clone(),
            key: self.shared.config.backend_api_key.clone(),
            timeout: self.shared.config.health.as_ref().map_or(DEFAULT_TIMEOUT, |health| health.timeout),
        }
    }

    /// Takes in where a backend is to be reached.
    pub(super) fn record_addresses(&self, slot: u16, found: &[SocketAddr]) {
        let mut members = self.members();
        let Some(member) = members.get_mut(slot) else { return };
        if found == member.addresses {
            return;
        }
        if !member.addresses.is_empty() && !watch::same_set(found, &member.addresses) {
            tracing::info!("backend {} is at other addresses now: {found:?}", member.name);
        }
        member.addresses = found.to_vec();
        members.publish(self.shared);
    }

    /// Shows the workers how far the shares of backends that came back have grown.
    pub(super) fn grow_shares(&self) {
        let mut members = self.members();
        if members.are_warming(self.shared.config.slow_start, Instant::now()) {
            members.publish(self.shared);
        }
    }

    /// Takes in what a round of probing found out.
    pub(super) fn record_round(&self, slot: u16, round: &Round) {
        let now = Instant::now();
        // A worker may have failed to connect while the probe ran: that is the later word.
        self.notice_unreachable(slot, now);
        let mut members = self.members();
        let reads = self.reads_if_slow(&members, slot, round);
        let Some(member) = members.get_mut(slot) else { return };
        if member.unreachable_at.is_some_and(|at| at >= round.began) {
            return;
        }
        let mut publish = learn(member, round, now);
        publish |= self.hear_of_sleep(member, round);
        let mut clear = false;
        if self.shared.config.health.is_none() {
            publish |= unprobed(member, round, now);
            publish |= self.returned_unprobed(member, round);
        } else {
            let before = std::mem::replace(&mut member.reads_when_slow, reads);
            let busy = member.health.state() == State::Up && before.is_some() && reads > before;
            let step = self.judge(member, round, busy, now);
            publish |= step.changed;
            clear = round.failure.is_none() && member.health.state() == State::Up;
        }
        if publish {
            members.publish(self.shared);
        }
        if clear {
            self.shared.fleet.load(slot).set_unreachable(false);
        }
    }

    /// Reads of a backend's answers up to now, when its probe was not answered in time.
    fn reads_if_slow(&self, members: &Members, slot: u16, round: &Round) -> Option<u64> {
        round.failure.as_ref().filter(|failure| failure.slow)?;
        let member = members.iter().find(|member| member.slot == slot)?;
        Some(figures::reads(&self.shared.shards, members.lanes(), &member.name))
    }

    /// The round's verdict, put into the member's health; says in the log what changed. `busy`: it answered requests while
    /// it left the probe waiting.
    fn judge(&self, member: &mut Member, round: &Round, busy: bool, now: Instant) -> Step {
        let step = match &round.failure {
            None => {
                member.last_error = None;
                member.health.alive(now)
            }
            Some(failure) => {
                member.last_error = Some(failure.why.clone());
                member.is_absent();
                if busy { member.health.busy() } else { member.health.failed(failure.refused, now) }
            }
        };
        member.next_probe = now + step.next_probe;
        if step.returned {
            self.returned(member, round.engine.as_ref());
        }
        member.answered |= round.failure.is_none();
        if step.changed {
            log_state(member, step.next_probe);
        }
        step
    }

    /// The engine's own word on whether it sleeps, unless something later is known.
    fn hear_of_sleep(&self, member: &mut Member, round: &Round) -> bool {
        if let Some(tells) = round.tells_sleep {
            member.tells_sleep = Some(tells);
        }
        let current = member.sleep_known_at.is_some_and(|at| at < round.began);
        match round.sleeping {
            Some(sleeping) if current => self.note_sleep(member, sleeping, "by its own word"),
            _ => false,
        }
    }

    /// A call that changes whether the backend sleeps begins: until it has ended, the engine's own word does not count. What
    /// is going to sleep gets no more requests from here on. Gives whether it slept before.
    pub(super) fn sleep_call_begins(&self, slot: u16, to_sleep: bool) -> bool {
        let mut members = self.members();
        let Some(member) = members.get_mut(slot) else { return false };
        member.sleep_known_at = None;
        let before = member.sleeping;
        if to_sleep && self.note_sleep(member, true, "as it was asked to") {
            members.publish(self.shared);
        }
        before
    }

    /// It has ended, and this is what is true now.
    pub(super) fn sleep_call_ends(&self, slot: u16, sleeping: bool) {
        let mut members = self.members();
        let Some(member) = members.get_mut(slot) else { return };
        member.sleep_known_at = Some(Instant::now());
        if self.note_sleep(member, sleeping, "as it was asked to") {
            members.publish(self.shared);
        }
    }

    /// True when that is another state. An engine that goes to sleep drops its cache.
    fn note_sleep(&self, member: &mut Member, sleeping: bool, why: &str) -> bool {
        if std::mem::replace(&mut member.sleeping, sleeping) == sleeping {
            return false;
        }
        self.shared.trie.raise(member.slot);
        let what = if sleeping { "sleeps" } else { "is awake" };
        tracing::info!("backend {} {what}, {why}", member.name);
        true
    }

    /// The process answers again. Only where its start time is known and the same as before is it surely the same one. At
    /// its first answer ever there is no earlier process, only marks of prompts that never reached it.
    fn returned(&self, member: &mut Member, engine: Option<&EngineStats>) {
        if !member.answered {
            self.shared.trie.raise(member.slot);
            return;
        }
        let start = engine.and_then(|engine| engine.marks.start_s);
        if start.is_some() && start == member.marks.start_s {
            return;
        }
        self.restarted(member, "it was away and is back");
        if let Some(engine) = engine {
            member.marks = engine.marks.clone();
        }
    }

    /// Without probes, a model list is a sign of life, too. Where the start time is known, the scraper sees more.
    /// True when what takes requests there is another process.
    fn returned_unprobed(&self, member: &mut Member, round: &Round) -> bool {
        if round.models.is_none() {
            member.is_absent();
            return false;
        }
        let returned = member.marks.start_s.is_none() && member.health.take_away();
        if returned {
            self.returned(member, None);
        }
        member.answered = true;
        returned
    }

    /// What the process had cached is gone.
    fn restarted(&self, member: &mut Member, why: &str) {
        self.shared.trie.raise(member.slot);
        self.shared.fleet.outlier(member.slot).restarted(self.shared.micros() / 1000);
        member.restarts += 1;
        member.marks = Default::default();
        member.sleeping = false;
        member.tells_sleep = None;
        member.health.take_away();
        member.begins_anew();
        tracing::info!("backend {} has restarted ({why}): its prefixes are forgotten", member.name);
    }

    /// Looks whether a worker has marked the backend as unreachable since the last look.
    pub(super) fn notice_unreachable(&self, slot: u16, now: Instant) {
        if !self.shared.fleet.load(slot).is_unreachable() {
            return;
        }
        let mut members = self.members();
        let Some(member) = members.get_mut(slot) else { return };
        if self.shared.config.health.is_none() {
            self.pause_unprobed(member, now);
            return;
        }
        if member.health.state() != State::Up {
            return;
        }
        let step = member.health.unreachable(now);
        member.last_error = Some("a request could not connect".to_owned());
        member.next_probe = now + step.next_probe;
        member.unreachable_at = Some(now);
        member.wake.notify_one();
        log_state(member, step.next_probe);
        members.publish(self.shared);
    }

    /// Without probes: the mark is cleared after a pause, and requests find out.
    fn pause_unprobed(&self, member: &mut Member, now: Instant) {
        member.health.note_away();
        let until = *member.paused_until.get_or_insert(now + UNPROBED_PAUSE);
        if now >= until {
            member.paused_until = None;
            self.shared.fleet.load(member.slot).set_unreachable(false);
        }
    }

    /// Takes in what an engine says of itself; `None` when it did not answer.
    pub(super) fn record_scrape(&self, slot: u16, engine: Option<EngineStats>) {
        let mut members = self.members();
        let Some(member) = members.get_mut(slot) else { return };
        let Some(engine) = engine else {
            member.engine = None;
            return;
        };
        let restarts = member.restarts;
        if let Some(why) = engine.marks.differ(&member.marks) {
            self.restarted(member, why);
        } else if self.shared.config.health.is_none() && member.health.take_away() {
            self.returned(member, Some(&engine));
        }
        member.answered = true;
        if let Some((seconds, tokens)) = member.engine.as_ref().and_then(|earlier| engine.steps_since(earlier)) {
            self.shared.fleet.prefill(slot).learn_step(seconds, tokens);
        }
        if let Some(tokens) = engine.kv_tokens {
            self.shared.fleet.cache(slot).set_capacity_tokens(tokens as u64);
        }
        member.marks = engine.marks.clone();
        member.engine = Some(engine);
        if member.restarts > restarts {
            members.publish(self.shared);
        }
    }
}

/// Shows the workers, for `/health`, which configuration is in force.
fn show_configuration(shared: &Shared, members: &Members) {
    // Numbers and a text always are JSON.
    let text = serde_json::to_string(members.loaded()).unwrap_or_else(|_| "null".to_owned());
    shared.configuration.store(Arc::new(text));
}

/// Takes over addresses and models; true when a worker should know.
fn learn(member: &mut Member, round: &Round, now: Instant) -> bool {
    let mut changed = false;
    if let Some(addresses) = &round.addresses
        && *addresses != member.addresses
    {
        member.addresses.clone_from(addresses);
        changed = true;
    }
    if let Some(lacks_health) = round.lacks_health {
        member.lacks_health = lacks_health;
    }
    if let Some(models) = &round.models {
        let before = member.model_names();
        member.models_at = Some(now);
        if member.spec.models.is_empty() {
            member.models.clone_from(models);
        } else {
            // The command line says which models count; the engine only what they are like.
            let known = models.iter().filter(|(name, _)| member.spec.models.contains(name));
            member.models.extend(known.map(|(name, entry)| (name.clone(), entry.clone())));
        }
        let after = member.model_names();
        if before != after {
            changed = true;
            if member.health.state() == State::Up {
                tracing::info!("backend {} serves other models now: {}", member.name, after.join(", "));
            }
        }
    }
    changed
}

/// A round without health checks: it only learns, until everything is known.
fn unprobed(member: &mut Member, round: &Round, now: Instant) -> bool {
    member.last_error = round.failure.as_ref().map(|failure| failure.why.clone());
    member.next_probe = now + watch::LEARN_EVERY;
    let known = !member.models.is_empty() && !member.addresses.is_empty();
    let changed = known && member.health.admit_unprobed();
    if changed {
        log_state(member, watch::LEARN_EVERY);
    }
    changed
}

fn log_state(member: &Member, next_probe: Duration) {
    let name = &member.name;
    match member.health.state() {
        State::Up => tracing::info!("backend {name} is up: models {}", member.model_names().join(", ")),
        state => tracing::warn!(
            "backend {name} is {}: {}, next probe in {:.1} s",
            state.as_str(),
            member.last_error.as_deref().unwrap_or("no reason known"),
            next_probe.as_secs_f64()
        ),
    }
}
