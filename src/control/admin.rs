//! The paths that the router answers itself: an ordinary HTTP application on the control socket.
//!
//! Workers relay to it as to a backend; it must not know that, nor who the client is.

use std::sync::Arc;

use axum::extract::{FromRef, State};
use axum::http::{StatusCode, Uri, header::CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Serialize;
use serde_json::{Value, json};

use super::pages::Page;
use super::plane::Plane;
use super::socket::AdminSocket;
use super::{engines, exposition, models, sleep};

const JSON: &str = "application/json";
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) async fn serve(socket: AdminSocket, plane: Arc<Plane>) {
    if let Err(error) = axum::serve(socket, app(&plane)).await {
        tracing::error!("the control socket is closed: {error}");
    }
}

/// What the answers are made from.
#[derive(Clone)]
struct Sources {
    plane: Arc<Plane>,
    metrics: Arc<Page>,
    engines: Arc<Page>,
    models: Arc<Page>,
}

impl FromRef<Sources> for Arc<Plane> {
    fn from_ref(sources: &Sources) -> Self {
        sources.plane.clone()
    }
}

fn app(plane: &Arc<Plane>) -> Router {
    let sources = Sources {
        plane: plane.clone(),
        metrics: Page::new(plane, exposition::text),
        engines: Page::new(plane, |plane| json_text(&engines::list(plane))),
        models: Page::new(plane, |plane| json_text(&list_models(plane))),
    };
    Router::new()
        .route("/metrics", get(async |State(from): State<Sources>| page(&from.metrics, PROMETHEUS_TEXT).await))
        .route("/engines", get(async |State(from): State<Sources>| page(&from.engines, JSON).await))
        .route("/version", get(async || Json(json!({ "version": env!("CARGO_PKG_VERSION") }))))
        .route("/v1/models", get(async |State(from): State<Sources>| page(&from.models, JSON).await))
        .route("/sleep", post(sleep::relay))
        .route("/wake_up", post(sleep::relay))
        .route("/is_sleeping", get(sleep::relay))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(sources)
}

async fn page(page: &Page, kind: &'static str) -> Response {
    match page.text().await {
        Some(text) => ([(CONTENT_TYPE, kind)], text).into_response(),
        None => error(StatusCode::INTERNAL_SERVER_ERROR, "the page cannot be written out"),
    }
}

fn json_text(value: &impl Serialize) -> String {
    // Texts, numbers and lists of them always are JSON.
    serde_json::to_string(value).unwrap_or_default()
}

fn list_models(plane: &Plane) -> Value {
    let members = plane.members();
    let known = members.iter().map(|member| &member.models);
    models::merge(known, &members.rules().aliases, plane.started_unix_s)
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

    #[tokio::test]
    async fn what_there_is_not_is_told_in_the_openai_shape() {
        let (_plane, name) = served("--static-backends http://127.0.0.1:1").await;
        for (method, path, expected) in [("GET", "/v1/nothing?x=1", 404), ("POST", "/metrics", 405)] {
            let (status, body) = ask_socket(&name, method, path).await;
            let body: Value = serde_json::from_str(&body).expect("JSON");
            assert_eq!((status, &body["error"]["code"]), (expected, &json!(expected)), "{method} {path}");
            assert!(body["error"]["message"].is_string() && body["error"]["type"].is_string(), "{body}");
        }
    }

    #[tokio::test]
    async fn head_has_a_head_only() {
        let (_plane, name) = served("--static-backends http://127.0.0.1:1 --static-models m").await;
        for path in ["/metrics", "/engines", "/version", "/v1/models"] {
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
