//! The backends as `/engines` shows them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::engine_stats::EngineStats;
use super::figures::{self, Totals};
use super::members::Member;
use super::plane::Plane;
use crate::config::ModelType;

/// One backend. `engine_id`, `serving_models` and `created` are the keys that the production stack's router has there.
#[derive(Serialize)]
pub(super) struct Engine {
    url: String,
    state: &'static str,
    /// A worker could not connect, and no probe has looked since.
    unreachable: bool,
    /// Its requests failed, one after another: it gets none until some have found it well.
    ejected: bool,
    ejections: u64,
    models: Vec<String>,
    #[serde(rename = "type")]
    kind: Option<&'static str>,
    label: Option<String>,
    slot: u16,
    generation: u16,
    restarts: u64,
    addresses: Vec<SocketAddr>,
    /// How much of its share of the requests it gets, from 0 to 1: less while it warms up.
    share: f64,
    qps: f64,
    in_flight: u32,
    waiting: u32,
    answering: u32,
    in_flight_bytes: u64,
    requests_total: u64,
    errors_total: u64,
    mean_latency_seconds: Option<f64>,
    mean_time_to_first_byte_seconds: Option<f64>,
    last_probe_error: Option<String>,
    engine: Option<Figures>,
    engine_id: String,
    serving_models: Vec<String>,
    created: u64,
}

/// What the engine says of itself; what it does not export is left out.
#[derive(Serialize)]
#[serde(transparent)]
struct Figures(BTreeMap<&'static str, f64>);

/// Every backend, in the order of the configuration.
pub(super) fn list(plane: &Plane) -> Vec<Engine> {
    let members = plane.members();
    let servers = figures::by_server(&figures::by_pair(&plane.shared.shards, members.lanes()));
    let none = Totals::default();
    members.iter().map(|member| engine(plane, member, servers.get(member.name.as_str()).unwrap_or(&none))).collect()
}

fn engine(plane: &Plane, member: &Member, totals: &Totals) -> Engine {
    let fleet = &plane.shared.fleet;
    let load = fleet.load(member.slot);
    let seconds = |mean_us: f64| mean_us / 1e6;
    Engine {
        url: member.name.clone(),
        state: member.state().as_str(),
        unreachable: load.is_unreachable(),
        ejected: plane.shared.fleet.outlier(member.slot).is_ejected(),
        ejections: plane.shared.fleet.outlier(member.slot).ejections(),
        models: member.model_names(),
        kind: member.spec.model_type.map(type_name),
        label: member.spec.label.clone(),
        slot: member.slot,
        generation: plane.shared.trie.generation(member.slot),
        restarts: member.restarts,
        addresses: member.addresses.clone(),
        share: 1.0 - f64::from(member.cold_permille(plane.shared.config.slow_start, Instant::now())) / 1000.0,
        qps: qps(plane, member),
        in_flight: load.in_flight(),
        waiting: fleet.waiting(member.slot),
        answering: fleet.answering(member.slot),
        in_flight_bytes: fleet.in_flight_bytes(member.slot),
        requests_total: totals.sent(),
        errors_total: totals.backend_errors(),
        mean_latency_seconds: totals.answers().mean().map(seconds),
        mean_time_to_first_byte_seconds: totals.first_byte.mean().map(seconds),
        last_probe_error: member.last_error.clone(),
        engine: member.engine.as_ref().map(figures_of),
        engine_id: member.engine_id(),
        serving_models: member.model_names(),
        created: plane.now_unix_s().saturating_sub(member.since.elapsed().as_secs()),
    }
}

fn figures_of(stats: &EngineStats) -> Figures {
    let figures = [
        ("requests_running", stats.running),
        ("requests_waiting", stats.waiting),
        ("kv_cache_usage", stats.kv_usage),
        ("prefix_cache_hits", stats.prefix_hits),
        ("prefix_cache_queries", stats.prefix_queries),
        ("prefix_cache_hit_rate", stats.hit_rate()),
        ("process_start_time_seconds", stats.marks.start_s),
    ];
    Figures(figures.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
}

/// Requests a second over the window, or over the time since the backend is known where that is shorter.
pub(super) fn qps(plane: &Plane, member: &Member) -> f64 {
    let window = plane.shared.config.request_stats_window;
    let seen = member.since.elapsed().min(window).max(Duration::from_secs(1).min(window));
    member.window.requests() as f64 / seen.as_secs_f64()
}

fn type_name(kind: ModelType) -> &'static str {
    match kind {
        ModelType::Chat => "chat",
        ModelType::Completion => "completion",
        ModelType::Embeddings => "embeddings",
        ModelType::Rerank => "rerank",
        ModelType::Score => "score",
        ModelType::Transcription => "transcription",
        ModelType::Vision => "vision",
        ModelType::Messages => "messages",
    }
}
