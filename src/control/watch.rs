//! One backend's prober: looks up its name, learns its models, asks for its health; again and again.
//!
//! A round only finds out; what follows from it is the plane's to say. It never touches a load counter.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::engine_stats::EngineStats;
use super::fetch::{self, Answer, Failure, Target};
use super::models::{self, Models};
use super::plane::Plane;
use super::{scrape, sleep};

/// A model list older than this is asked for again: engines load adapters while they run.
const MODELS_AGE: Duration = Duration::from_secs(30);
/// Between two rounds without health checks.
pub(super) const LEARN_EVERY: Duration = Duration::from_secs(1);

const MODELS_PATH: &str = "/v1/models";
const HEALTH_PATH: &str = "/health";

/// What one round found out.
pub(super) struct Round {
    pub(super) began: Instant,
    pub(super) failure: Option<RoundFailure>,
    /// Where it is to be reached, the address that took the probe first; `None`: not known better than before.
    pub(super) addresses: Option<Vec<SocketAddr>>,
    pub(super) models: Option<Models>,
    pub(super) lacks_health: Option<bool>,
    /// Whether it has a path that tells whether it sleeps, when it was asked.
    pub(super) tells_sleep: Option<bool>,
    pub(super) sleeping: Option<bool>,
    /// The engine's own figures, asked for when it had been away.
    pub(super) engine: Option<EngineStats>,
}

impl Round {
    pub(super) fn new() -> Self {
        Round {
            began: Instant::now(),
            failure: None,
            addresses: None,
            models: None,
            lacks_health: None,
            tells_sleep: None,
            sleeping: None,
            engine: None,
        }
    }

    pub(super) fn failed(failure: RoundFailure) -> Self {
        Round { failure: Some(failure), ..Round::new() }
    }
}

#[derive(Debug)]
pub(super) struct RoundFailure {
    pub(super) why: String,
    /// Nothing listens there.
    pub(super) refused: bool,
    /// There was no answer in time.
    pub(super) slow: bool,
}

impl From<Failure> for RoundFailure {
    fn from(failure: Failure) -> Self {
        RoundFailure { refused: failure.is_refused(), slow: failure.is_slow(), why: failure.to_string() }
    }
}

/// What a round has to know beforehand.
struct Task {
    target: Target,
    /// Nothing is known of its models: without them it cannot be used.
    models_unknown: bool,
    models_due: bool,
    lacks_health: bool,
    may_tell_sleep: bool,
    away: bool,
    probed: bool,
}

pub(super) async fn run(plane: Arc<Plane>, slot: u16) {
    loop {
        let Some(mut task) = task(&plane, slot) else { return };
        let round = match addresses(&task).await {
            Ok(found) => {
                // Known before the probe has ended: a backend that is assumed to be up takes requests from here on.
                plane.record_addresses(slot, &found);
                task.target.addresses = found;
                round(&task).await
            }
            Err(why) => Round::failed(RoundFailure { why, refused: false, slow: false }),
        };
        plane.record_round(slot, &round);
        if !wait(&plane, slot).await {
            return;
        }
    }
}

/// Waits until the next probe is due, also when that moves meanwhile; false when the backend is no longer a member.
async fn wait(plane: &Plane, slot: u16) -> bool {
    loop {
        let (due, wake) = match plane.members().get_mut(slot) {
            Some(member) => (member.next_probe, member.wake.clone()),
            None => return false,
        };
        tokio::select! {
            () = tokio::time::sleep_until(due) => return true,
            () = wake.notified() => {}
        }
    }
}

fn task(plane: &Plane, slot: u16) -> Option<Task> {
    let mut members = plane.members();
    let member = members.get_mut(slot)?;
    Some(Task {
        target: plane.target(member),
        models_unknown: member.models.is_empty(),
        models_due: member.health.is_away() || member.models_at.is_none_or(|at| at.elapsed() >= MODELS_AGE),
        lacks_health: member.lacks_health && !member.health.is_away(),
        may_tell_sleep: member.tells_sleep != Some(false) || member.health.is_away(),
        away: member.health.is_away(),
        probed: plane.shared.config.health.is_some(),
    })
}

/// Where it is to be reached now. The order of addresses that are still the same ones stays: the first one worked.
async fn addresses(task: &Task) -> Result<Vec<SocketAddr>, String> {
    let known = &task.target.addresses;
    match fetch::resolve(&task.target.url, task.target.timeout).await {
        Ok(found) if !same_set(&found, known) => Ok(found),
        Ok(_) => Ok(known.clone()),
        Err(why) if known.is_empty() => Err(why),
        // A name server that is away takes no backend out.
        Err(why) => {
            tracing::debug!("backend {}: {why}; its last addresses are kept", task.target.url);
            Ok(known.clone())
        }
    }
}

async fn round(task: &Task) -> Round {
    let mut round = Round::new();
    round.addresses = Some(task.target.addresses.clone());
    if let Err(failure) = ask(task, &mut round).await {
        round.failure = Some(failure);
    }
    round
}

/// Asks what there is to ask, in the order in which it matters.
async fn ask(task: &Task, round: &mut Round) -> Result<(), RoundFailure> {
    if task.models_unknown {
        learn(task, round).await?;
    }
    if task.probed {
        health(task, round).await?;
    }
    if task.probed && task.may_tell_sleep {
        // Whatever this answers is no failure either: many engines do not know the path.
        (round.tells_sleep, round.sleeping) = sleep::ask(&task.target).await;
    }
    if task.models_due && round.models.is_none() {
        // It is healthy by its own word, and its models are known: whatever this answers is no failure.
        if let Err(failure) = learn(task, round).await {
            tracing::debug!("backend {}: {}", task.target.url, failure.why);
        }
    }
    if task.away && task.probed {
        round.engine = scrape::read(&task.target).await.ok();
    }
    Ok(())
}

async fn learn(task: &Task, round: &mut Round) -> Result<(), RoundFailure> {
    let answer = fetch::get(&task.target, MODELS_PATH).await?;
    prefer(round, &answer);
    if answer.status != 200 {
        let hint = match answer.status {
            401 | 403 => " (--backend-api-key gives it a key)",
            404 => " (--static-models names its models)",
            _ => "",
        };
        return Err(answered(MODELS_PATH, &format!("with status {}{hint}", answer.status)));
    }
    let found =
        models::parse(&answer.body).map_err(|what| answered(MODELS_PATH, &format!("with a body that {what}")))?;
    round.models = Some(found);
    Ok(())
}

/// Any answer below 500 is one of a server that lives.
async fn health(task: &Task, round: &mut Round) -> Result<(), RoundFailure> {
    let mut path = if task.lacks_health { MODELS_PATH } else { HEALTH_PATH };
    let mut answer = fetch::get(&task.target, path).await?;
    prefer(round, &answer);
    if answer.status == 404 && path == HEALTH_PATH {
        round.lacks_health = Some(true);
        path = MODELS_PATH;
        answer = fetch::get(&task.target, path).await?;
    } else if path == HEALTH_PATH {
        round.lacks_health = Some(false);
    }
    if answer.status >= 500 { Err(answered(path, &format!("with status {}", answer.status))) } else { Ok(()) }
}

fn answered(path: &str, how: &str) -> RoundFailure {
    RoundFailure { why: format!("{path} answered {how}"), refused: false, slow: false }
}

/// The address that took the connection is the one that workers should try first.
fn prefer(round: &mut Round, answer: &Answer) {
    if let Some(addresses) = &mut round.addresses
        && let Some(at) = addresses.iter().position(|address| *address == answer.address)
    {
        addresses[..=at].rotate_right(1);
    }
}

pub(super) fn same_set(a: &[SocketAddr], b: &[SocketAddr]) -> bool {
    a.len() == b.len() && a.iter().all(|address| b.contains(address))
}
