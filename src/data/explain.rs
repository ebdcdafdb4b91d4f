//! `POST /debug/route`: where a request would go now, and why. Answered by the worker itself, by the code that would choose.
//!
//! The body, and the fields that name a session, are those of the request in question; its path is in the query,
//! `?path=/v1/completions`, below the root path, and `/v1/chat/completions` when left out.
//!
//! Invariants: nothing is sent; the trie, loads, arrivals and rotation stay as they are. What would be refused is refused
//! here in the same words. No prompt, session or credential is in the answer.

use std::borrow::Cow;
use std::io::IoSlice;

use serde::Serialize;

use super::client::Client;
use super::failure::{Failure, Refusal};
use super::forecast;
use super::lease::Scratch;
use super::paths::{Destination, destination};
use super::plan::{self, Plan, Standing};
use super::request::{Request, Seen};
use super::worker::Worker;
use crate::fleet::snapshot::{Backend, Member, State};
use crate::http::reply;

const DEFAULT_PATH: &[u8] = b"/v1/chat/completions";

#[derive(Serialize)]
struct Explained<'a> {
    path: Cow<'a, str>,
    /// The model's own name; none when the path is for any backend.
    model: Option<&'a str>,
    policy: &'static str,
    key: Key,
    /// The request names a session by `--session-key`.
    session: bool,
    prefix_min_match_bytes: u64,
    window_seconds: f64,
    chosen: Option<Chosen<'a>>,
    candidates: Vec<Considered<'a>>,
    others: Vec<LeftOut<'a>>,
}

/// What of the prompt is looked up.
#[derive(Serialize)]
struct Key {
    /// The prompt's length as the key sees it; what fills no chunk is not looked up.
    bytes: u64,
    chunks: usize,
    chunk_bytes: usize,
}

#[derive(Serialize)]
struct Chosen<'a> {
    url: &'a str,
    reason: &'static str,
}

#[derive(Serialize)]
struct Considered<'a> {
    url: &'a str,
    matched_bytes: u64,
    /// Those of them that the backend's cache is believed to reach back to.
    fresh_bytes: u64,
    in_flight: u32,
    in_flight_bytes: u64,
    requests_in_window: u64,
    /// Below 1 while it warms up: load and window count for more by the inverse.
    share: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttft: Option<Ttft>,
}

/// Seconds that `ttft` expects.
#[derive(Serialize)]
struct Ttft {
    expected_seconds: f64,
    queue_seconds: f64,
    work_seconds: f64,
    busy: f64,
}

#[derive(Serialize)]
struct LeftOut<'a> {
    url: &'a str,
    why: &'static str,
}

/// Answers, and tells whether the client may go on.
pub(super) async fn answer(
    client: &mut Client,
    scratch: &mut Scratch,
    request: &Request,
    seen: Seen,
) -> Result<bool, Failure> {
    let keep_alive = seen.keep_alive && !client.worker.draining();
    let body = explain(&client.worker, scratch, request).await?;
    scratch.out.clear();
    let answer = reply::Answer {
        status: 200,
        body: &body,
        request_id: &scratch.request_id,
        date: &client.worker.date(),
        keep_alive,
        head_only: false,
        version: seen.version,
    };
    reply::json(&mut scratch.out, &answer);
    client.send(&mut [IoSlice::new(&scratch.out)]).await?;
    Ok(keep_alive)
}

async fn explain(worker: &Worker, scratch: &mut Scratch, request: &Request) -> Result<Vec<u8>, Refusal> {
    let path = path_in_question(scratch.request.query(request.head()).unwrap_or_default());
    let destination = destination(false, true, &path);
    if !matches!(destination, Destination::Routed(_) | Destination::Any) {
        return Err(Refusal::invalid(
            400,
            "not_routed",
            "the router answers that path itself: it is sent to no backend",
        ));
    }
    plan::scan(worker, scratch, request.body(), destination).await?;
    let plan = Plan::new(worker, scratch, request.head(), request.body(), destination)?;
    let decided = plan.preview(worker, scratch);
    // Once more: what policies that ask no prefixes did not look up is told as well.
    worker.shared.trie.lookup(scratch.chunks.key(), &mut scratch.matches);
    let chosen = decided.map(|(decision, _)| Chosen {
        url: &plan.snapshot.backend(scratch.members[decision.index]).name,
        reason: decision.reason.as_str(),
    });
    let forecast = decided.and_then(|(_, forecast)| forecast);
    let candidates = scratch.members.iter().enumerate().map(|(index, &member)| {
        let outlook = forecast.and_then(|forecast| Some((forecast, scratch.outlooks.get(index)?)));
        let ttft = outlook.and_then(|(forecast, outlook)| {
            let expected = forecast::of_one(worker, &forecast, outlook)?;
            let (queue_seconds, busy) = (outlook.queue_s, outlook.busy);
            let work_seconds = expected.work_s * outlook.factor;
            Some(Ttft { expected_seconds: expected.ttft_s, queue_seconds, work_seconds, busy })
        });
        Considered { ttft, ..considered(worker, scratch, plan.snapshot.backend(member)) }
    });
    let routing = &worker.shared.config.routing;
    let explained = Explained {
        path: String::from_utf8_lossy(&path),
        model: plan.model.map(|model| &*plan.snapshot.served(Some(model)).name),
        policy: plan.policy.as_str(),
        key: Key {
            bytes: scratch.chunks.bytes(),
            chunks: scratch.chunks.key().len(),
            chunk_bytes: routing.prefix_chunk_bytes,
        },
        session: plan.session.is_some(),
        prefix_min_match_bytes: plan.snapshot.rules.routing.prefix_min_match_bytes,
        window_seconds: worker.shared.config.request_stats_window.as_secs_f64(),
        chosen,
        candidates: candidates.collect(),
        others: others(worker, scratch, &plan),
    };
    serde_json::to_vec(&explained)
        .map_err(|error| Refusal { kind: "server_error", ..Refusal::invalid(500, "internal", error.to_string()) })
}

fn considered<'a>(worker: &Worker, scratch: &Scratch, backend: &'a Backend) -> Considered<'a> {
    let shared = worker.shared;
    let load = shared.fleet.load(backend.slot);
    let found = scratch.matches.of(backend.slot);
    let bytes = |chunks: u32| u64::from(chunks) * shared.config.routing.prefix_chunk_bytes as u64;
    Considered {
        url: &backend.name,
        matched_bytes: found.map_or(0, |found| bytes(found.chunks)),
        fresh_bytes: found.map_or(0, |found| bytes(found.fresh)),
        in_flight: load.in_flight(),
        in_flight_bytes: shared.fleet.in_flight_bytes(backend.slot),
        requests_in_window: load.in_window(backend.cold_permille),
        share: 1.0 - f64::from(backend.cold_permille) / 1000.0,
        ttft: None,
    }
}

/// The backends that are no candidates, each with the first reason that keeps it out.
fn others<'a>(worker: &Worker, scratch: &Scratch, plan: &'a Plan) -> Vec<LeftOut<'a>> {
    let serving = &plan.snapshot.served(plan.model).usable;
    let mut left_out = Vec::new();
    for (index, backend) in (0_u16..).zip(&plan.snapshot.backends) {
        if scratch.members.iter().any(|member| member.backend == index) {
            continue;
        }
        let why = match serving.iter().find(|member| member.backend == index) {
            Some(&member) => why_passed_over(worker, plan, member),
            None => why_unusable(plan, backend),
        };
        left_out.push(LeftOut { url: &backend.name, why });
    }
    left_out
}

fn why_passed_over(worker: &Worker, plan: &Plan, member: Member) -> &'static str {
    match plan.standing(worker, member) {
        Standing::Unreachable => "a connection to it failed, and no probe has looked since",
        Standing::Busy => "it is at --max-inflight, or others have waited longer for it",
        Standing::Ejected => "it is ejected: its requests failed, one after another",
        Standing::Penalized => "its last requests failed, and another holds as much of the prompt",
        Standing::Ready => "it warms up, and this request did not fall to its share",
    }
}

fn why_unusable(plan: &Plan, backend: &Backend) -> &'static str {
    match backend.state {
        State::Unknown => "no probe has answered yet",
        State::Down => "it is down",
        State::Sleeping => "it sleeps",
        State::Draining => "it is draining",
        State::Up if backend.addresses.is_empty() => "its name has no address",
        State::Up if plan.model.is_some() => "it does not serve the model",
        State::Up => "it came up a moment ago",
    }
}

/// The value of `path` in the query, percent-decoded.
fn path_in_question(query: &[u8]) -> Cow<'static, [u8]> {
    let value = query.split(|&byte| byte == b'&').find_map(|pair| pair.strip_prefix(b"path="));
    match value.filter(|value| !value.is_empty()) {
        Some(value) => Cow::Owned(percent_decoded(value)),
        None => Cow::Borrowed(DEFAULT_PATH),
    }
}

fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let hex = |digits: &[u8]| Some(digit(digits[0])? << 4 | digit(digits[1])?);
    let (mut decoded, mut rest) = (Vec::with_capacity(text.len()), text);
    while let [first, behind @ ..] = rest {
        let escaped = (*first == b'%').then(|| hex(behind.get(..2)?)).flatten();
        decoded.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &behind[2..] } else { behind };
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_in_question_is_in_the_query() {
        for (query, path) in [
            ("", "/v1/chat/completions"),
            ("path=", "/v1/chat/completions"),
            ("path=/v1/completions", "/v1/completions"),
            ("x=1&path=%2Fv1%2fcompletions&y=2", "/v1/completions"),
            ("path=%2", "%2"),
            ("path=%zz%+1", "%zz%+1"),
            ("xpath=/a", "/v1/chat/completions"),
        ] {
            assert_eq!(String::from_utf8_lossy(&path_in_question(query.as_bytes())), path, "{query}");
        }
    }
}
