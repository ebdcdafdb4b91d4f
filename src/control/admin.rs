//! The paths that the router answers itself: an ordinary HTTP application on the control socket.
//!
//! Workers relay to it as to a backend; it must not know that, nor who the client is.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri, header::CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::plane::Plane;
use super::socket::AdminSocket;
use super::{engines, exposition, models, sleep};
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
        .route("/sleep", post(sleep::relay))
        .route("/wake_up", post(sleep::relay))
        .route("/is_sleeping", get(sleep::relay))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(plane)
}

async fn health(State(plane): State<Arc<Plane>>) -> Response {
    let config = plane.members().loaded().clone();
    match why_unhealthy(&plane) {
        None => Json(json!({ "status": "healthy", "config": config })).into_response(),
        Some(reason) => {
            let body = Json(json!({ "status": "unhealthy", "reason": reason, "config": config }));
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
    (!snapshot.served(None).usable.iter().copied().any(reachable)).then_some("no backend is usable")
}

async fn metrics(State(plane): State<Arc<Plane>>) -> Response {
    ([(CONTENT_TYPE, PROMETHEUS_TEXT)], exposition::text(&plane)).into_response()
}

async fn list_models(State(plane): State<Arc<Plane>>) -> Json<Value> {
    let members = plane.members();
    let known = members.iter().map(|member| &member.models);
    Json(models::merge(known, &members.rules().aliases, plane.started_unix_s))
}

async fn unknown_path(uri: Uri) -> Response {
    error(StatusCode::NOT_FOUND, &format!("there is no path {}", uri.path()))
}

async fn wrong_method(uri: Uri) -> Response {
    error(StatusCode::METHOD_NOT_ALLOWED, &format!("{} answers GET and HEAD only", uri.path()))
}

pub(super) fn error(status: StatusCode, message: &str) -> Response {
    let body = json!({ "error": { "message": message, "type": "invalid_request_error", "code": status.as_u16() } });
    (status, Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::control::testing::{Engine, ask_socket, plane, until};

    async fn served(line: &str) -> (Arc<Plane>, String) {
        let plane = plane(line);
        let (socket, name) = AdminSocket::bind().expect("binds");
        tokio::spawn(serve(socket, plane.clone()));
        (plane, name)
    }

    async fn json(name: &str, path: &str) -> (u16, Value) {
        let (status, body) = ask_socket(name, "GET", path).await;
        (status, serde_json::from_str(&body).expect("JSON"))
    }

    /// `/health` without what it says of the configuration.
    async fn state(name: &str) -> (u16, Value) {
        let (status, mut body) = json(name, "/health").await;
        let config = body.as_object_mut().and_then(|body| body.remove("config")).expect("a part on the configuration");
        assert_eq!((&config["generation"], &config["last_error"]), (&json!(1), &Value::Null));
        assert!(config["loaded_at"].as_u64() > Some(1_700_000_000), "{config}");
        (status, body)
    }

    #[tokio::test]
    async fn health_follows_the_backends_and_the_drain() {
        let (plane, name) = served("--static-backends http://127.0.0.1:1 --static-models m").await;
        assert_eq!(state(&name).await, (200, json!({"status": "healthy"})));
        assert_eq!(json(&name, "/health/live").await.0, 200);
        let none = json!({"status": "unhealthy", "reason": "no backend is usable"});
        plane.shared.fleet.load(0).set_unreachable(true);
        assert_eq!(state(&name).await, (503, none.clone()), "a worker could not reach it");
        until("probed", || plane.shared.fleet.snapshot().load().served(None).usable.is_empty()).await;
        plane.shared.fleet.load(0).set_unreachable(false);
        assert_eq!(state(&name).await, (503, none));
        plane.shared.advance(Phase::Draining);
        assert_eq!(state(&name).await, (503, json!({"status": "unhealthy", "reason": "draining"})));
        assert_eq!(json(&name, "/health/live").await.0, 200, "it lives");
    }

    #[tokio::test]
    async fn what_there_is_not_is_told_in_the_openai_shape() {
        let (_plane, name) = served("--static-backends http://127.0.0.1:1").await;
        for (method, path, expected) in [("GET", "/v1/nothing?x=1", 404), ("POST", "/health", 405)] {
            let (status, body) = ask_socket(&name, method, path).await;
            let body: Value = serde_json::from_str(&body).expect("JSON");
            assert_eq!((status, &body["error"]["code"]), (expected, &json!(expected)), "{method} {path}");
            assert!(body["error"]["message"].is_string() && body["error"]["type"].is_string(), "{body}");
        }
    }

    #[tokio::test]
    async fn head_has_a_head_only() {
        let (_plane, name) = served("--static-backends http://127.0.0.1:1 --static-models m").await;
        for path in ["/health", "/health/live", "/metrics", "/engines", "/version", "/v1/models"] {
            assert_eq!(ask_socket(&name, "HEAD", path).await, (200, String::new()), "{path}");
        }
    }

    #[tokio::test]
    async fn models_and_engines_show_what_is_known() {
        let engine = Engine::start().await;
        *engine.script.metrics.lock().expect("whole") = "vllm:num_requests_running 2".to_owned();
        let line = format!(
            "--static-backends {},http://127.0.0.1:1 --static-aliases a:m --static-model-labels x,y \
             --engine-stats-interval 0.05",
            engine.url()
        );
        let (plane, name) = served(&line).await;
        until("scraped", || plane.members().iter().any(|member| member.engine.is_some())).await;
        until("down", || plane.members().iter().any(|member| member.last_error.is_some())).await;
        plane.shared.shards[0].lane(0).sent[0].add(1);
        let guard = plane.shared.fleet.begin(0, 0, 10, 0);
        let (_, models) = json(&name, "/v1/models").await;
        let names: Vec<_> = models["data"].as_array().expect("a list").iter().map(|model| &model["id"]).collect();
        assert_eq!(names, ["a", "m"]);
        assert_eq!((&models["data"][0]["root"], &models["data"][1]["max_model_len"]), (&json!("m"), &json!(4096)));
        let (_, engines) = json(&name, "/engines").await;
        let (first, second) = (&engines[0], &engines[1]);
        assert_eq!(
            (&first["url"], &first["state"], &first["label"]),
            (&json!(engine.url()), &json!("up"), &json!("x"))
        );
        assert_eq!((&first["in_flight"], &first["in_flight_bytes"]), (&json!(1), &json!(10)));
        assert_eq!(first["engine"], json!({"requests_running": 2.0}));
        assert_eq!((&second["slot"], &second["last_probe_error"]), (&json!(1), &json!("connection refused")));
        assert_eq!((&second["engine"], &second["models"]), (&Value::Null, &json!([])));
        drop(guard);
        assert_eq!(engine.script.health_asked.load(Relaxed), 1, "nothing here probes");
    }
}
