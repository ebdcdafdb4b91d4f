//! The router's own paths. Probes are answered by the worker itself, from what is shared: they never wait for anybody.
//! Everything else is relayed to the control plane as to a backend.
//!
//! Invariant: of each lane a worker has at most so many requests at the control plane; more are turned away at once. So its
//! work, its connections and its memory are bounded, whoever asks and however often.

use std::cell::Cell;
use std::io::IoSlice;

use super::attempt::{Attempt, Trouble};
use super::client::Client;
use super::failure::{Failure, Refusal};
use super::lease::Scratch;
use super::paths::{Destination, Lane};
use super::request::{Request, Seen};
use super::retry::Sent;
use super::upstream::Target;
use super::worker::Worker;
use crate::http::head::Method;
use crate::http::reply::{self, Answer};
use crate::metrics::shard::{ErrorKind, Rejected};
use crate::shared::{Phase, Shared};

/// Requests for pages that a worker has at the control plane at a time.
const PAGES_AT_A_TIME: usize = 32;
/// The same for calls to backends.
const CALLS_AT_A_TIME: usize = 8;
/// Seconds after which a client that was turned away may try again.
const RETRY_AFTER_S: u32 = 1;

/// How many requests a worker has at the control plane.
#[derive(Default)]
pub(super) struct Lanes {
    pages: Cell<usize>,
    calls: Cell<usize>,
}

/// A request's place in its lane until dropped.
struct InLane<'a>(&'a Cell<usize>);

impl Lanes {
    fn enter(&self, lane: Lane) -> Option<InLane<'_>> {
        let (running, limit) = match lane {
            Lane::Pages => (&self.pages, PAGES_AT_A_TIME),
            Lane::Calls => (&self.calls, CALLS_AT_A_TIME),
        };
        if running.get() >= limit {
            return None;
        }
        running.set(running.get() + 1);
        Some(InLane(running))
    }
}

impl Drop for InLane<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Has the control plane answer. Gives whether the client may go on.
pub(super) async fn relay(
    client: &mut Client,
    scratch: &mut Scratch,
    request: &mut Request,
    seen: Seen,
    lane: Lane,
) -> Result<bool, Failure> {
    let worker = client.worker.clone();
    worker.shard().control.add(1);
    let _place = worker.control.enter(lane).ok_or_else(|| turned_away(&worker))?;
    let mut attempt = Attempt { target: Target::Control, request, seen, observer: None, sent: Sent::Nothing };
    match attempt.run(client, scratch).await {
        Ok(outcome) => Ok(outcome.keep_alive),
        Err(Trouble::Connect(_, detail, _)) => Err(Failure::Upstream(ErrorKind::Internal, detail.into())),
        Err(Trouble::Failure(failure)) => Err(failure),
    }
}

fn turned_away(worker: &Worker) -> Refusal {
    worker.shard().rejected[Rejected::ControlLimit as usize].add(1);
    let message = "the router has as many requests for its own pages as it answers at a time; try again";
    Refusal::unavailable("router_busy", message, RETRY_AFTER_S)
}

/// Answers a probe. Gives whether the client may go on.
pub(super) async fn answer(
    client: &mut Client,
    scratch: &mut Scratch,
    request: &Request,
    seen: Seen,
) -> Result<bool, Failure> {
    let worker = client.worker.clone();
    worker.shard().control.add(1);
    let keep_alive = seen.keep_alive && !worker.draining();
    scratch.text.clear();
    let status = match request.destination {
        Destination::Health => health(worker.shared, &mut scratch.text),
        _ => {
            scratch.text.extend_from_slice(br#"{"status":"alive"}"#);
            200
        }
    };
    scratch.out.clear();
    let answer = Answer {
        status,
        body: &scratch.text,
        request_id: &scratch.request_id,
        date: &worker.date(),
        keep_alive,
        head_only: seen.method == Method::Head,
        version: seen.version,
    };
    reply::json(&mut scratch.out, &answer);
    client.send(&mut [IoSlice::new(&scratch.out)]).await?;
    Ok(keep_alive)
}

/// Answers a request that may not be sent on any more. Gives whether the client may go on.
pub(super) async fn last_recipient(client: &mut Client, scratch: &mut Scratch, seen: Seen) -> Result<bool, Failure> {
    if seen.method == Method::Trace {
        let message = "TRACE with Max-Forwards: 0 ends here, and the router answers no TRACE";
        return Err(Refusal::invalid(405, "method_not_allowed", message).into());
    }
    let worker = client.worker.clone();
    let keep_alive = seen.keep_alive && !worker.draining();
    scratch.out.clear();
    reply::options(&mut scratch.out, &scratch.request_id, &worker.date(), keep_alive, seen.version);
    client.send(&mut [IoSlice::new(&scratch.out)]).await?;
    Ok(keep_alive)
}

/// Writes whether a request can be served, and what is in force; gives the status.
fn health(shared: &Shared, out: &mut Vec<u8>) -> u16 {
    let why = why_unhealthy(shared);
    match why {
        None => out.extend_from_slice(br#"{"status":"healthy""#),
        Some(reason) => {
            out.extend_from_slice(br#"{"status":"unhealthy","reason":""#);
            out.extend_from_slice(reason.as_bytes());
            out.push(b'"');
        }
    }
    out.extend_from_slice(br#","config":"#);
    out.extend_from_slice(shared.configuration.load().as_bytes());
    out.push(b'}');
    if why.is_none() { 200 } else { 503 }
}

fn why_unhealthy(shared: &Shared) -> Option<&'static str> {
    if shared.phase() == Phase::Draining {
        return Some("draining");
    }
    let fleet = &shared.fleet;
    let snapshot = fleet.snapshot().load();
    let reachable = |member| !fleet.load(snapshot.backend(member).slot).is_unreachable();
    (!snapshot.served(None).usable.iter().copied().any(reachable)).then_some("no backend is usable")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::BackendUrl;
    use crate::fleet::snapshot::{Backend, Snapshot, State};

    fn shared() -> Shared {
        let args = ["trieway", "--static-backends", "http://127.0.0.1:1", "--workers", "1"].map(str::to_owned);
        let config = crate::config::from_args(&args).expect("valid");
        let options = crate::trie::Options { memory_bytes: crate::trie::MIN_MEMORY_BYTES, slots: 4 };
        Shared::new(config, crate::trie::Trie::new(&options).expect("valid"), String::new(), "epoll")
    }

    fn snapshot() -> Snapshot {
        let url = BackendUrl::parse("http://127.0.0.1:1").expect("valid");
        let backend = Backend {
            slot: 0,
            name: url.to_string(),
            authority: url.authority(),
            url,
            addresses: vec![([127, 0, 0, 1], 1).into()],
            models: vec!["m".to_owned()],
            model_type: None,
            label: None,
            state: State::Up,
            cold_permille: 0,
            identity: 0,
        };
        Snapshot::new(vec![Arc::new(backend)], Arc::default(), |_, _| 0)
    }

    #[test]
    fn health_follows_the_backends_and_the_drain() {
        let shared = shared();
        let state = || {
            let mut out = Vec::new();
            (health(&shared, &mut out), String::from_utf8(out).expect("UTF-8"))
        };
        let none = r#"{"status":"unhealthy","reason":"no backend is usable","config":null}"#;
        assert_eq!(state(), (503, none.to_owned()));
        shared.fleet.publish(snapshot());
        assert_eq!(state(), (200, r#"{"status":"healthy","config":null}"#.to_owned()));
        shared.fleet.load(0).set_unreachable(true);
        assert_eq!(state(), (503, none.to_owned()), "a worker could not reach it");
        shared.fleet.load(0).set_unreachable(false);
        shared.configuration.store(Arc::new(r#"{"generation":2}"#.to_owned()));
        assert_eq!(state().1, r#"{"status":"healthy","config":{"generation":2}}"#);
        shared.advance(Phase::Draining);
        let draining = r#"{"status":"unhealthy","reason":"draining","config":{"generation":2}}"#;
        assert_eq!(state(), (503, draining.to_owned()));
    }

    #[test]
    fn each_lane_has_its_own_limit_and_its_places_come_back() {
        let lanes = Lanes::default();
        let pages: Vec<_> = std::iter::from_fn(|| lanes.enter(Lane::Pages)).collect();
        assert_eq!(pages.len(), PAGES_AT_A_TIME);
        let calls: Vec<_> = std::iter::from_fn(|| lanes.enter(Lane::Calls)).collect();
        assert_eq!(calls.len(), CALLS_AT_A_TIME);
        drop(pages);
        assert!(lanes.enter(Lane::Pages).is_some() && lanes.enter(Lane::Calls).is_none());
    }
}
