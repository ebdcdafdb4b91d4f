//! The control plane's state, and what each observation changes in it.
//!
//! Observations come from the probers, the scrapers and the aggregation; every one that changes what the workers should
//! know publishes a snapshot and writes one log line. The lock is held for one synchronous step at a time.
//!
//! Order at a return: first the old process' marks are void, then the workers see the backend as up, then the mark that it
//! is unreachable is cleared. No worker can so send a prompt by a mark that the old process left.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::engine_stats::EngineStats;
use super::fetch::Target;
use super::health::Step;
use super::members::{Member, Members};
use super::watch::Round;
use super::{scrape, watch};
use crate::config::StaticBackend;
use crate::fleet::snapshot::State;
use crate::shared::Shared;

/// Without health checks, a backend that a worker could not reach is tried by requests again after this long.
const UNPROBED_PAUSE: Duration = Duration::from_secs(1);
/// For requests to engines when there are no health checks to give a limit.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Plane {
    pub(super) shared: &'static Shared,
    members: Mutex<Members>,
    started: Instant,
    pub(super) started_unix_s: u64,
}

impl Plane {
    pub(super) fn new(shared: &'static Shared) -> Self {
        Plane {
            shared,
            members: Mutex::new(Members::new(shared.fleet.slots())),
            started: Instant::now(),
            started_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        }
    }

    /// The list, until the guard is dropped. It stays usable after a panic under the lock: each step leaves it whole.
    pub(super) fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn now_unix_s(&self) -> u64 {
        self.started_unix_s + self.started.elapsed().as_secs()
    }

    /// Makes these the backends; each one that came gets its prober and its scraper.
    pub(super) fn set_backends(self: &Arc<Self>, wanted: &[StaticBackend]) {
        let mut members = self.members();
        for slot in members.set(wanted, self.shared, Instant::now(), self.now_ms()) {
            let tasks = [
                tokio::spawn(watch::run(self.clone(), slot)).abort_handle(),
                tokio::spawn(scrape::run(self.clone(), slot)).abort_handle(),
            ];
            if let Some(member) = members.get_mut(slot) {
                tasks.into_iter().for_each(|task| member.own_task(task));
            }
        }
        members.publish(self.shared);
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

    /// Takes in what a round of probing found out.
    pub(super) fn record_round(&self, slot: u16, round: &Round) {
        let now = Instant::now();
        // A worker may have failed to connect while the probe ran: that is the later word.
        self.notice_unreachable(slot, now);
        let mut members = self.members();
        let Some(member) = members.get_mut(slot) else { return };
        if member.unreachable_at.is_some_and(|at| at >= round.began) {
            return;
        }
        let mut publish = learn(member, round, now);
        let mut clear = false;
        if self.shared.config.health.is_none() {
            publish |= unprobed(member, round, now);
        } else {
            let step = self.judge(member, round, now);
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

    /// The round's verdict, put into the member's health; says in the log what changed.
    fn judge(&self, member: &mut Member, round: &Round, now: Instant) -> Step {
        let step = match &round.failure {
            None => {
                member.last_error = None;
                member.health.alive(now)
            }
            Some(failure) => {
                member.last_error = Some(failure.why.clone());
                member.health.failed(failure.refused, now)
            }
        };
        member.next_probe = now + step.next_probe;
        if step.returned {
            self.returned(member, round.engine.as_ref());
        }
        if step.changed {
            log_state(member, step.next_probe);
        }
        step
    }

    /// The process answers again. Only where its start time is known and the same as before is it surely the same one.
    fn returned(&self, member: &mut Member, engine: Option<&EngineStats>) {
        let start = engine.and_then(|engine| engine.marks.start_s);
        if start.is_some() && start == member.marks.start_s {
            return;
        }
        self.restarted(member, "it was away and is back");
        if let Some(engine) = engine {
            member.marks = engine.marks.clone();
        }
    }

    /// What the process had cached is gone.
    fn restarted(&self, member: &mut Member, why: &str) {
        self.shared.trie.raise(member.slot);
        member.restarts += 1;
        member.marks = Default::default();
        member.health.take_away();
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
        if let Some(why) = engine.marks.differ(&member.marks) {
            self.restarted(member, why);
        } else if self.shared.config.health.is_none() && member.health.take_away() {
            self.returned(member, Some(&engine));
        }
        member.marks = engine.marks.clone();
        member.engine = Some(engine);
    }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::control::testing::{Engine, plane, state, until};

    const FAST: &str = "--static-backend-health-check-interval 0.05 --static-backend-health-check-timeout-seconds 0.2 \
                        --engine-stats-interval 0.05";

    fn restarts(plane: &Plane) -> u64 {
        plane.members().iter().map(|member| member.restarts).sum()
    }

    fn last_error(plane: &Plane) -> String {
        plane.members().iter().next().and_then(|member| member.last_error.clone()).unwrap_or_default()
    }

    fn models(plane: &Plane) -> Vec<String> {
        plane.shared.fleet.snapshot().load().backends[0].models.clone()
    }

    async fn up(engine: &Engine, more: &str) -> Arc<Plane> {
        let plane = plane(&format!("--static-backends {} {FAST} {more}", engine.url()));
        until("up", || state(&plane) == State::Up).await;
        plane
    }

    #[tokio::test]
    async fn models_are_learnt_before_a_backend_is_up() {
        let engine = Engine::start().await;
        engine.script.models_status.store(500, Relaxed);
        let plane = plane(&format!("--static-backends {} {FAST}", engine.url()));
        assert_eq!(state(&plane), State::Unknown);
        until("down", || state(&plane) == State::Down).await;
        assert!(last_error(&plane).contains("/v1/models answered with status 500"), "{}", last_error(&plane));
        assert!(plane.shared.fleet.snapshot().load().learning);
        engine.script.models_status.store(200, Relaxed);
        until("up", || state(&plane) == State::Up).await;
        assert_eq!(models(&plane), ["m"]);
        assert_eq!((restarts(&plane), last_error(&plane).as_str()), (0, ""));
    }

    #[tokio::test]
    async fn named_models_are_up_at_once_and_down_when_probes_say_so() {
        let plane = plane(&format!("--static-backends http://127.0.0.1:1 --static-models s {FAST}"));
        assert_eq!((state(&plane), models(&plane)), (State::Up, vec!["s".to_owned()]));
        until("down", || state(&plane) == State::Down).await;
        assert_eq!(last_error(&plane), "connection refused");
    }

    #[tokio::test]
    async fn the_key_is_sent() {
        let engine = Engine::start().await;
        let _plane = up(&engine, "--backend-api-key k3y").await;
        assert_eq!(engine.script.authorization.lock().expect("whole").as_deref(), Some("Bearer k3y"));
    }

    #[tokio::test]
    async fn without_a_health_path_the_models_path_is_asked() {
        let engine = Engine::start().await;
        engine.script.health_status.store(404, Relaxed);
        let plane = up(&engine, "").await;
        let asked = engine.script.models_asked.load(Relaxed);
        until("probed by models", || engine.script.models_asked.load(Relaxed) > asked + 2).await;
        assert_eq!((state(&plane), engine.script.health_asked.load(Relaxed)), (State::Up, 1));
    }

    #[tokio::test]
    async fn an_engine_that_is_not_ready_goes_down_and_returns_with_its_prefixes() {
        let engine = Engine::start().await;
        let plane = up(&engine, "").await;
        engine.script.health_status.store(503, Relaxed);
        until("down", || state(&plane) == State::Down).await;
        assert_eq!(models(&plane), ["m"], "a model stays known while its backend is down");
        engine.script.health_status.store(401, Relaxed);
        until("up again", || state(&plane) == State::Up).await;
        assert_eq!(restarts(&plane), 0);
    }

    #[tokio::test]
    async fn a_process_that_went_away_and_is_back_counts_as_restarted_once() {
        let mut engine = Engine::start().await;
        let plane = up(&engine, "").await;
        engine.stop().await;
        until("down", || state(&plane) == State::Down).await;
        *engine.script.models.lock().expect("whole") = r#"{"data":[{"id":"n"}]}"#.to_owned();
        engine.start_again().await;
        until("up again", || state(&plane) == State::Up).await;
        assert_eq!(models(&plane), ["n"], "another process may serve other models");
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(restarts(&plane), 1);
    }

    #[tokio::test]
    async fn one_start_time_is_one_process_however_it_was_reached() {
        let engine = Engine::start().await;
        *engine.script.metrics.lock().expect("whole") = "process_start_time_seconds 7".to_owned();
        let plane = up(&engine, "").await;
        let scraped = || plane.members().iter().all(|member| member.engine.is_some());
        until("scraped", scraped).await;
        plane.shared.fleet.load(0).set_unreachable(true);
        plane.notice_unreachable(0, Instant::now());
        assert_eq!(state(&plane), State::Down);
        until("up again", || state(&plane) == State::Up).await;
        assert!(!plane.shared.fleet.load(0).is_unreachable());
        assert_eq!(restarts(&plane), 0);
        *engine.script.metrics.lock().expect("whole") = "process_start_time_seconds 8".to_owned();
        until("restarted", || restarts(&plane) == 1).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!((restarts(&plane), state(&plane)), (1, State::Up));
    }

    #[tokio::test]
    async fn a_workers_mark_takes_a_backend_out_and_a_probe_readmits_it() {
        let engine = Engine::start().await;
        let plane = up(&engine, "").await;
        plane.shared.fleet.load(0).set_unreachable(true);
        plane.notice_unreachable(0, Instant::now());
        assert_eq!(state(&plane), State::Down);
        until("up again", || state(&plane) == State::Up).await;
        assert_eq!((restarts(&plane), plane.shared.fleet.load(0).is_unreachable()), (1, false));
    }

    #[tokio::test]
    async fn a_failing_scrape_is_no_failing_probe_and_its_figures_are_gone() {
        let engine = Engine::start().await;
        *engine.script.metrics.lock().expect("whole") = "vllm:num_requests_running 3".to_owned();
        let plane = up(&engine, "").await;
        let running = || plane.members().iter().find_map(|member| member.engine.as_ref()?.running);
        until("scraped", || running() == Some(3.0)).await;
        engine.script.metrics_status.store(501, Relaxed);
        until("forgotten", || running().is_none()).await;
        assert_eq!(state(&plane), State::Up);
    }

    #[tokio::test]
    async fn without_health_checks_models_are_learnt_and_marks_are_cleared() {
        let mut engine = Engine::start().await;
        let plane = up(&engine, "--no-static-backend-health-checks").await;
        assert_eq!(engine.script.health_asked.load(Relaxed), 0);
        engine.stop().await;
        let began = Instant::now();
        plane.shared.fleet.load(0).set_unreachable(true);
        let cleared = || {
            plane.notice_unreachable(0, Instant::now());
            !plane.shared.fleet.load(0).is_unreachable()
        };
        until("cleared", cleared).await;
        assert!(began.elapsed() >= UNPROBED_PAUSE, "{:?}", began.elapsed());
        assert_eq!(state(&plane), State::Up);
    }

    #[tokio::test]
    async fn members_that_stay_keep_their_slot_and_a_slot_given_up_is_taken_last() {
        let plane = plane("--static-backends http://127.0.0.1:1,http://127.0.0.1:2 --static-models a,b");
        let mut wanted = plane.shared.config.backends.clone();
        wanted.remove(0);
        wanted.push(StaticBackend { models: vec!["c".to_owned()], ..plane.shared.config.backends[0].clone() });
        plane.set_backends(&wanted);
        let snapshot = plane.shared.fleet.snapshot().load_full();
        let seen: Vec<_> = snapshot.backends.iter().map(|backend| (backend.slot, backend.models[0].as_str())).collect();
        assert_eq!(seen, [(1, "b"), (2, "c")]);
    }
}
