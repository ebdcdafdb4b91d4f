//! One backend's scraper: reads the engine's own figures. A scrape that fails says nothing of the backend's health.

use std::sync::Arc;
use std::time::Duration;

use super::engine_stats::EngineStats;
use super::fetch::{self, Target};
use super::plane::Plane;
use crate::fleet::snapshot::State;

const PATH: &str = "/metrics";
/// A backend that is not up yet is looked at again this soon, so that its figures come with it.
const SOON: Duration = Duration::from_millis(500);

pub(super) async fn run(plane: Arc<Plane>, slot: u16) {
    let interval = plane.shared.config.engine_stats_interval;
    loop {
        let target = match plane.members().get_mut(slot) {
            None => return,
            Some(member) if member.health.state() != State::Up || member.addresses.is_empty() => None,
            Some(member) => Some(plane.target(member)),
        };
        let pause = if target.is_some() { interval } else { interval.min(SOON) };
        let engine = match &target {
            Some(target) => read(target).await.inspect_err(|why| tracing::debug!("backend {}: {why}", target.url)).ok(),
            None => None,
        };
        plane.record_scrape(slot, engine);
        tokio::time::sleep(pause).await;
    }
}

/// The engine's figures as it says them now.
///
/// # Errors
/// Why there are none, for a log line.
pub(super) async fn read(target: &Target) -> Result<EngineStats, String> {
    let answer = fetch::get(target, PATH).await.map_err(|failure| format!("{PATH}: {failure}"))?;
    if answer.status != 200 {
        return Err(format!("{PATH} answered with status {}", answer.status));
    }
    Ok(EngineStats::parse(&String::from_utf8_lossy(&answer.body)))
}
