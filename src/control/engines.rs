//! The backends as `/engines` shows them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::engine_stats::EngineStats;
use super::figures::{self, Totals};
use super::members::Member;
use super::plane::Plane;
use crate::config::ModelType;

/// One object a backend, in the order of the configuration. `engine_id`, `serving_models` and `created` are the keys that
/// the production stack's router has there.
pub(super) fn list(plane: &Plane) -> Value {
    let members = plane.members();
    let servers = figures::by_server(&figures::by_pair(&plane.shared.shards, members.lanes()));
    members.iter().map(|member| engine(plane, member, &servers)).collect()
}

fn engine(plane: &Plane, member: &Member, servers: &BTreeMap<&str, Totals>) -> Value {
    let fleet = &plane.shared.fleet;
    let load = fleet.load(member.slot);
    let totals = servers.get(member.name.as_str());
    let age_s = member.since.elapsed().as_secs();
    json!({
        "engine_id": format!("{:016x}", member.identity),
        "serving_models": member.model_names(),
        "created": plane.now_unix_s().saturating_sub(age_s),
        "url": member.name,
        "slot": member.slot,
        "generation": plane.shared.trie.generation(member.slot),
        "restarts": member.restarts,
        "state": member.health.state().as_str(),
        "unreachable": load.is_unreachable(),
        "addresses": member.addresses,
        "models": member.model_names(),
        "type": member.spec.model_type.map(type_name),
        "label": member.spec.label,
        "in_flight": load.in_flight(),
        "waiting": load.waiting(),
        "answering": load.answering(),
        "in_flight_bytes": load.in_flight_bytes(),
        "qps": qps(plane, member),
        "requests_total": totals.map_or(0, Totals::sent),
        "errors_total": totals.map_or(0, Totals::backend_errors),
        "mean_latency_seconds": totals.and_then(|totals| totals.answers().mean()).map(|mean_us| mean_us / 1e6),
        "mean_time_to_first_byte_seconds": totals.and_then(|totals| totals.first_byte.mean()).map(|mean_us| mean_us / 1e6),
        "last_probe_error": member.last_error,
        "engine": member.engine.as_ref().map(engine_stats),
    })
}

/// Only the figures that the engine exports.
fn engine_stats(stats: &EngineStats) -> Value {
    let figures = [
        ("requests_running", stats.running),
        ("requests_waiting", stats.waiting),
        ("kv_cache_usage", stats.kv_usage),
        ("prefix_cache_hits", stats.prefix_hits),
        ("prefix_cache_queries", stats.prefix_queries),
        ("prefix_cache_hit_rate", stats.hit_rate()),
        ("process_start_time_seconds", stats.marks.start_s),
    ];
    figures.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value?)))).collect::<Map<_, _>>().into()
}

/// Requests a second over the window, or over the time since the backend is known where that is shorter.
pub(super) fn qps(plane: &Plane, member: &Member) -> f64 {
    let window = plane.shared.config.request_stats_window;
    let seen = member.since.elapsed().min(window).max(Duration::from_secs(1).min(window));
    plane.shared.fleet.arrivals.published(member.slot) as f64 / seen.as_secs_f64()
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
