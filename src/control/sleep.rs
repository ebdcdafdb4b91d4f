//! Backends that sleep: `/sleep`, `/wake_up` and `/is_sleeping`, relayed to the one that `?id=` names, and the probe that
//! asks an engine itself.
//!
//! vLLM has these paths when it runs with `VLLM_SERVER_DEV_MODE=1`. A backend counts as asleep from the moment in which it
//! is asked to, so that no request is sent to one that is about to be.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::{Method, StatusCode, Uri, header::CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::admin::error;
use super::fetch::{self, Target};
use super::members::Member;
use super::plane::Plane;
use crate::config::BackendUrl;

const PATH: &str = "/is_sleeping";
/// Weights are moved between memories: that takes a while.
const CALL_TIMEOUT: Duration = Duration::from_secs(300);

/// Whether the engine has the path, and what it says there. Neither is known when it did not answer.
pub(super) async fn ask(target: &Target) -> (Option<bool>, Option<bool>) {
    let Ok(answer) = fetch::get(target, PATH).await else { return (None, None) };
    let said = serde_json::from_slice::<Value>(&answer.body).ok();
    let sleeping = said.filter(|_| answer.status == 200).and_then(|said| said.get("is_sleeping")?.as_bool());
    (Some(sleeping.is_some()), sleeping)
}

/// Relays the call to the backend that it names, and takes note of what it does.
pub(super) async fn relay(
    State(plane): State<Arc<Plane>>,
    Query(query): Query<Vec<(String, String)>>,
    method: Method,
    uri: Uri,
    body: Bytes,
) -> Response {
    let id = query.iter().find(|(key, _)| key == "id").map(|(_, id)| id.as_str());
    let found = match id {
        None => Err((StatusCode::BAD_REQUEST, format!("{} needs ?id=, the backend's", uri.path()))),
        Some(id) => find(&plane, id).ok_or_else(|| (StatusCode::NOT_FOUND, format!("no backend has the id '{id}'"))),
    };
    let (slot, mut target) = match found {
        Ok(found) => found,
        Err((status, what)) => return error(status, &format!("{what}; the ids are {}", ids(&plane))),
    };
    target.timeout = CALL_TIMEOUT;
    let path = format!("{}{}", uri.path(), rest_of_query(&uri));
    // As a task of its own: a client that goes away must not leave the call half noted.
    let call = async move {
        let changes = match uri.path() {
            "/sleep" => Some(true),
            "/wake_up" => Some(false),
            _ => None,
        };
        let before = changes.map(|to_sleep| plane.sleep_call_begins(slot, to_sleep));
        let answer = fetch::ask(&target, method, &path, body).await;
        let done = answer.as_ref().is_ok_and(|answer| (200..300).contains(&answer.status));
        if let Some(sleeping) = if done { changes } else { before } {
            plane.sleep_call_ends(slot, sleeping);
        }
        answer
    };
    match tokio::spawn(call).await {
        Ok(Ok(answer)) => {
            let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::BAD_GATEWAY);
            let kind = if answer.body.starts_with(b"{") { "application/json" } else { "text/plain; charset=utf-8" };
            (status, [(CONTENT_TYPE, kind)], answer.body).into_response()
        }
        Ok(Err(failure)) => error(StatusCode::BAD_GATEWAY, &format!("the backend did not answer: {failure}")),
        Err(failed) => error(StatusCode::INTERNAL_SERVER_ERROR, &format!("the call failed: {failed}")),
    }
}

fn find(plane: &Plane, id: &str) -> Option<(u16, Target)> {
    let url = BackendUrl::parse(id).ok();
    let members = plane.members();
    let is_meant = |member: &&Member| member.engine_id() == id || url.as_ref() == Some(&member.spec.url);
    members.iter().find(is_meant).map(|member| (member.slot, plane.target(member)))
}

fn ids(plane: &Plane) -> String {
    let members = plane.members();
    members.iter().map(|member| format!("{} ({})", member.engine_id(), member.name)).collect::<Vec<_>>().join(", ")
}

/// The query as it came, without the id, which is the router's.
fn rest_of_query(uri: &Uri) -> String {
    let pairs: Vec<_> = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.starts_with("id=")).collect();
    let rest = pairs.join("&");
    if rest.is_empty() { rest } else { format!("?{rest}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_not_passed_on() {
        for (uri, rest) in [
            ("/sleep?id=1", ""),
            ("/sleep?level=2&id=a%2Fb", "?level=2"),
            ("/sleep?id=1&level=1&mode=abort", "?level=1&mode=abort"),
            ("/sleep", ""),
        ] {
            assert_eq!(rest_of_query(&uri.parse().expect("valid")), rest, "{uri}");
        }
    }
}
