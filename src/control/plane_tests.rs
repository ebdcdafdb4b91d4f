//! Probes, learning, restarts and membership against an engine on the loopback.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::Instant;

use super::aggregate;
use super::engine_stats::EngineStats;
use super::members::Members;
use super::plane::Plane;
use super::testing::{Engine, plane, quiet_plane, state, until};
use super::watch::{Round, RoundFailure};
use crate::config::{BackendUrl, MAX_BACKENDS, StaticBackend};
use crate::fleet::belief::{ENDLESS, Lesson};
use crate::fleet::snapshot::{Backend, State};
use crate::metrics::shard::BOUNDS_US;

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

/// What a round that went well found out, if it began `before_now` ago.
fn good_round(before_now: Duration) -> Round {
    Round { began: Instant::now() - before_now, ..Round::new() }
}

/// What an engine says whose prompt tokens are so many.
fn tokens(count: u32) -> EngineStats {
    EngineStats::parse(&format!("vllm:prompt_tokens_total {count}"))
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
    assert_eq!(plane.shared.fleet.snapshot().load().served(None).usable.len(), 1, "it takes requests before any probe");
    until("down", || state(&plane) == State::Down).await;
    assert_eq!(last_error(&plane), "connection refused");
}

#[tokio::test]
async fn a_name_is_looked_up_and_the_address_that_answers_comes_first() {
    let engine = Engine::start().await;
    let plane = plane(&format!("--static-backends http://localhost:{} {FAST}", engine.address.port()));
    until("up", || state(&plane) == State::Up).await;
    assert_eq!(plane.shared.fleet.snapshot().load().backends[0].addresses[0], engine.address);
    let unknown = self::plane(&format!("--static-backends http://no-such-host.invalid:80 {FAST}"));
    until("down", || state(&unknown) == State::Down).await;
    assert!(last_error(&unknown).contains("no-such-host.invalid"), "{}", last_error(&unknown));
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
    engine.script.metrics_status.store(501, Relaxed);
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
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!((state(&plane), restarts(&plane)), (State::Up, 0));
    engine.start_again().await;
    until("restarted", || restarts(&plane) == 1).await;
}

#[tokio::test]
async fn members_that_stay_keep_their_slot_and_a_slot_given_up_is_taken_last() {
    let line = "--static-backends http://127.0.0.1:1,http://127.0.0.1:2,http://127.0.0.1:3 --static-models a,b,c";
    let plane = plane(line);
    let backend = |port: u16, model: &str| StaticBackend {
        url: BackendUrl::parse(&format!("http://127.0.0.1:{port}")).expect("valid"),
        models: vec![model.to_owned()],
        model_type: None,
        label: None,
        draining: false,
    };
    let seen = || {
        let snapshot = plane.shared.fleet.snapshot().load();
        let of = |backend: &Arc<Backend>| (backend.url.port, backend.slot, backend.models.join(" "));
        snapshot.backends.iter().map(of).collect::<Vec<_>>()
    };
    let expect = |port, slot, model: &str| (port, slot, model.to_owned());
    plane.set_backends(&[backend(4, "d"), backend(3, "other"), backend(2, "b")]);
    assert_eq!(seen(), [expect(4, 3, "d"), expect(3, 2, "other"), expect(2, 1, "b")]);
    let many: Vec<_> = (10..=10 + MAX_BACKENDS as u16).map(|port| backend(port, "m")).collect();
    plane.set_backends(&many);
    let mut slots: Vec<u16> = seen().iter().map(|(_, slot, _)| *slot).collect();
    assert_eq!((slots[0], slots.len()), (4, MAX_BACKENDS), "fresh slots first, and no more backends than slots");
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), MAX_BACKENDS);
}

#[tokio::test]
async fn a_probe_that_began_before_a_workers_mark_proves_nothing() {
    let plane = quiet_plane("--static-backends http://127.0.0.1:1 --static-models m");
    plane.shared.fleet.load(0).set_unreachable(true);
    plane.record_round(0, &good_round(Duration::from_millis(50)));
    assert_eq!((state(&plane), plane.shared.fleet.load(0).is_unreachable()), (State::Down, true));
    plane.record_round(0, &good_round(Duration::from_millis(50)));
    assert_eq!(state(&plane), State::Down);
    plane.record_round(0, &good_round(Duration::ZERO));
    assert_eq!((state(&plane), plane.shared.fleet.load(0).is_unreachable()), (State::Up, false));
}

#[tokio::test]
async fn a_restart_that_a_scrape_saw_is_not_counted_again_by_the_next_probe() {
    let plane = quiet_plane("--static-backends http://127.0.0.1:1 --static-models m");
    plane.record_scrape(0, Some(tokens(10)));
    let refused = RoundFailure { why: "connection refused".to_owned(), refused: true, slow: false };
    plane.record_round(0, &Round::failed(refused));
    plane.record_scrape(0, Some(tokens(1)));
    assert_eq!(restarts(&plane), 1);
    plane.record_round(0, &Round { engine: Some(tokens(2)), ..good_round(Duration::ZERO) });
    assert_eq!((restarts(&plane), state(&plane)), (1, State::Up));
}

#[tokio::test]
async fn a_restart_that_a_probe_saw_is_not_counted_again_by_the_next_scrape() {
    let plane = quiet_plane("--static-backends http://127.0.0.1:1 --static-models m");
    plane.record_scrape(0, Some(tokens(10)));
    let refused = RoundFailure { why: "connection refused".to_owned(), refused: true, slow: false };
    plane.record_round(0, &Round::failed(refused));
    plane.record_round(0, &good_round(Duration::ZERO));
    assert_eq!(restarts(&plane), 1);
    plane.record_scrape(0, Some(tokens(1)));
    assert_eq!(restarts(&plane), 1);
    plane.record_scrape(0, Some(tokens(0)));
    assert_eq!(restarts(&plane), 2, "its counters went back once more");
}

#[tokio::test]
async fn the_share_of_a_backend_that_came_back_grows() {
    let plane = quiet_plane("--static-backends http://127.0.0.1:1 --static-models m --slow-start-seconds 0.6");
    let cold = || plane.shared.fleet.snapshot().load().backends[0].cold_permille;
    plane.record_round(0, &good_round(Duration::ZERO));
    assert_eq!(cold(), 0, "it was there from the start");
    let refused = || Round::failed(RoundFailure { why: "connection refused".to_owned(), refused: true, slow: false });
    (0..2).for_each(|_| plane.record_round(0, &refused()));
    plane.record_round(0, &good_round(Duration::ZERO));
    assert!((900..=990).contains(&cold()), "{}", cold());
    tokio::time::sleep(Duration::from_millis(300)).await;
    plane.grow_shares();
    assert!((1..=500).contains(&cold()), "{}", cold());
    tokio::time::sleep(Duration::from_millis(350)).await;
    plane.grow_shares();
    assert_eq!(cold(), 0);
}

#[tokio::test]
async fn the_first_start_of_a_process_is_no_restart() {
    let plane = quiet_plane("--static-backends http://127.0.0.1:1 --static-models m");
    for expected in 0..3 {
        for _ in 0..3 {
            let refused = RoundFailure { why: "connection refused".to_owned(), refused: true, slow: false };
            plane.record_round(0, &Round::failed(refused));
        }
        assert_eq!(state(&plane), State::Down);
        plane.record_round(0, &good_round(Duration::ZERO));
        assert_eq!((state(&plane), restarts(&plane)), (State::Up, expected));
    }
}

#[tokio::test]
async fn the_short_period_sums_arrivals_and_notices_marks() {
    let plane = Arc::new(quiet_plane("--static-backends http://127.0.0.1:1 --static-models m"));
    tokio::spawn(aggregate::run(plane.clone()));
    for _ in 0..3 {
        drop(plane.shared.fleet.begin(0, 0, 1, 0));
    }
    until("summed", || plane.members().iter().next().is_some_and(|member| member.window.requests() == 3)).await;
    plane.shared.fleet.load(0).set_unreachable(true);
    until("down", || state(&plane) == State::Down).await;
}

#[tokio::test]
async fn a_backend_that_answers_requests_is_busy_and_not_down() {
    let plane = quiet_plane("--static-backends http://127.0.0.1:1 --static-models m");
    let slow = || Round::failed(RoundFailure { why: "no answer".to_owned(), refused: false, slow: true });
    let answer = || plane.shared.shards[0].lane(0).gap.observe(1, &BOUNDS_US);
    for _ in 0..5 {
        plane.record_round(0, &slow());
        assert_eq!(state(&plane), State::Up);
        answer();
    }
    plane.record_round(0, &slow());
    assert_eq!(state(&plane), State::Up);
    plane.record_round(0, &slow());
    assert_eq!(state(&plane), State::Down, "nothing came since the last probe");
    answer();
    plane.record_round(0, &slow());
    assert_eq!(state(&plane), State::Down, "an old stream's end readmits nothing");
}

#[test]
fn a_backend_that_gets_a_slot_gets_nothing_that_was_learnt_of_the_last_one() {
    let plane = quiet_plane("--static-backends http://first:1 --static-models m");
    let shared = plane.shared;
    let mut members = Members::new(1, &shared.config, 0);
    let named = |url: &str| [StaticBackend::discovered(BackendUrl::parse(url).expect("valid"), None)];
    let now = Instant::now();
    assert_eq!(members.set(&named("http://first:1"), shared, now), [0]);
    let (belief, prefill) = (shared.fleet.belief(0), shared.fleet.prefill(0));
    let lesson = Lesson { marked: 100, fresh: 100, age: 500, found: 0 };
    assert!(!belief.learn(lesson));
    belief.count(7, 5);
    prefill.begin(1.0, 10, true, 0).first_token(50_000_000_000, 1.0);
    shared.fleet.load(0).set_unreachable(true);
    let learnt = || (belief.reach_chunks() != ENDLESS, belief.predicted_tokens(), prefill.learnt_factor() > 2.0);
    assert_eq!(learnt(), (true, 7, true));
    assert_eq!(members.set(&named("http://second:1"), shared, now), [0]);
    assert_eq!(learnt(), (false, 0, false));
    assert!(!shared.fleet.load(0).is_unreachable());
}
