//! The paths that the router answers itself: an ordinary HTTP application on the control socket.
//!
//! Workers relay to it as to a backend; it must not know that, nor who the client is.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri, header::CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::plane::Plane;
use super::socket::AdminSocket;
use super::{engines, exposition, models};
use crate::shared::Phase;

const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) async fn serve(socket: AdminSocket, plane: Arc<Plane>) {
    if let Err(error) = axum::serve(socket, app(plane)).await {
        tracing::error!("the control socket is closed: {error}");
    }
}

fn app(plane: Arc<Plane>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/health/live", get(async || Json(json!({ "status": "alive" }))))
        .route("/metrics", get(metrics))
        .route("/engines", get(async |State(plane): State<Arc<Plane>>| Json(engines::list(&plane))))
        .route("/version", get(async || Json(json!({ "version": env!("CARGO_PKG_VERSION") }))))
        .route("/v1/models", get(list_models))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(plane)
}

async fn health(State(plane): State<Arc<Plane>>) -> Response {
    match why_unhealthy(&plane) {
        None => Json(json!({ "status": "healthy" })).into_response(),
        Some(reason) => {
            let body = Json(json!({ "status": "unhealthy", "reason": reason }));
            (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
        }
    }
}

fn why_unhealthy(plane: &Plane) -> Option<&'static str> {
    if plane.shared.phase() == Phase::Draining {
        return Some("draining");
    }
    let fleet = &plane.shared.fleet;
    let snapshot = fleet.snapshot().load();
    let reachable = |member| !fleet.load(snapshot.backend(member).slot).is_unreachable();
    (!snapshot.any.usable.iter().copied().any(reachable)).then_some("no backend is usable")
}

async fn metrics(State(plane): State<Arc<Plane>>) -> Response {
    ([(CONTENT_TYPE, PROMETHEUS_TEXT)], exposition::text(&plane)).into_response()
}

async fn list_models(State(plane): State<Arc<Plane>>) -> Json<Value> {
    let members = plane.members();
    let known = members.iter().map(|member| &member.models);
    Json(models::merge(known, &plane.shared.config.aliases, plane.started_unix_s))
}

async fn unknown_path(uri: Uri) -> Response {
    error(StatusCode::NOT_FOUND, &format!("there is no path {}", uri.path()))
}

async fn wrong_method(uri: Uri) -> Response {
    error(StatusCode::METHOD_NOT_ALLOWED, &format!("{} answers GET and HEAD only", uri.path()))
}

fn error(status: StatusCode, message: &str) -> Response {
    let body = json!({ "error": { "message": message, "type": "invalid_request_error", "code": status.as_u16() } });
    (status, Json(body)).into_response()
}
