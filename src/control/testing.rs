//! For the tests of this room: a router's shared state without workers, and an engine to probe.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net as unix;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::plane::Plane;
use crate::config::from_args;
use crate::fleet::snapshot;
use crate::shared::Shared;
use crate::trie;

/// The shared state of a router with one worker and this command line.
pub(super) fn shared(line: &str) -> &'static Shared {
    let words = std::iter::once("trieway").chain(line.split_whitespace()).chain(["--workers", "1"]);
    let args: Vec<String> = words.map(str::to_owned).collect();
    let options = trie::Options { memory_bytes: trie::MIN_MEMORY_BYTES, slots: crate::config::MAX_BACKENDS };
    let trie = trie::Trie::new(&options).expect("valid");
    Box::leak(Box::new(Shared::new(from_args(&args).expect("valid"), trie, "none".to_owned(), "epoll")))
}

pub(super) fn plane(line: &str) -> Arc<Plane> {
    let plane = Arc::new(Plane::new(shared(line)));
    plane.set_backends(&plane.shared.config.backends);
    plane
}

/// The same without probers and scrapers: nothing happens to it but what the test does.
pub(super) fn quiet_plane(line: &str) -> Plane {
    let plane = Plane::new(shared(line));
    let mut members = plane.members();
    members.set(&plane.shared.config.backends, plane.shared, Instant::now());
    members.publish(plane.shared);
    drop(members);
    plane
}

/// State of the first backend as the workers see it.
pub(super) fn state(plane: &Plane) -> snapshot::State {
    plane.shared.fleet.snapshot().load().backends[0].state
}

/// Waits until `holds`, at most three seconds.
pub(super) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..600 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("still not: {what}");
}

/// Status and body of a request on the control socket of this name.
pub(super) async fn ask_socket(name: &str, method: &str, path: &str) -> (u16, String) {
    let address = unix::SocketAddr::from_abstract_name(name).expect("a name");
    let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let ask = move || {
        let mut stream = unix::UnixStream::connect_addr(&address).expect("it listens");
        stream.write_all(request.as_bytes()).expect("takes the request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answers");
        answer
    };
    let answer = tokio::task::spawn_blocking(ask).await.expect("no panic");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head[9..12].parse().expect("a status"), body.to_owned())
}

/// What the engine answers, and what it saw.
pub(super) struct Script {
    pub(super) models: Mutex<String>,
    pub(super) models_status: AtomicU16,
    pub(super) health_status: AtomicU16,
    pub(super) metrics: Mutex<String>,
    pub(super) metrics_status: AtomicU16,
    pub(super) health_asked: AtomicUsize,
    pub(super) models_asked: AtomicUsize,
    pub(super) authorization: Mutex<Option<String>>,
}

pub(super) struct Engine {
    pub(super) script: Arc<Script>,
    pub(super) address: SocketAddr,
    server: Option<JoinHandle<()>>,
}

impl Engine {
    pub(super) async fn start() -> Engine {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let script = Arc::new(Script {
            models: Mutex::new(r#"{"data":[{"id":"m","max_model_len":4096}]}"#.to_owned()),
            models_status: AtomicU16::new(200),
            health_status: AtomicU16::new(200),
            metrics: Mutex::new(String::new()),
            metrics_status: AtomicU16::new(200),
            health_asked: AtomicUsize::new(0),
            models_asked: AtomicUsize::new(0),
            authorization: Mutex::new(None),
        });
        let mut engine = Engine { script, address: listener.local_addr().expect("bound"), server: None };
        engine.serve(listener);
        engine
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The process ends: connections are refused.
    pub(super) async fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
            // Its listener is closed once the task is gone.
            let _ = server.await;
        }
    }

    /// Another process takes the same port.
    pub(super) async fn start_again(&mut self) {
        let listener = TcpListener::bind(self.address).await.expect("the port is free again");
        self.serve(listener);
    }

    fn serve(&mut self, listener: TcpListener) {
        let app = Router::new()
            .route("/health", get(health))
            .route("/v1/models", get(models))
            .route("/metrics", get(metrics))
            .with_state(self.script.clone());
        self.server = Some(tokio::spawn(async move {
            axum::serve(listener, app).await.expect("serves until it is stopped");
        }));
    }
}

fn with(status: &AtomicU16, body: String) -> Response {
    (StatusCode::from_u16(status.load(Relaxed)).expect("a status"), body).into_response()
}

async fn health(State(script): State<Arc<Script>>, headers: HeaderMap) -> Response {
    script.health_asked.fetch_add(1, Relaxed);
    let key = headers.get("authorization").and_then(|value| value.to_str().ok()).map(str::to_owned);
    *script.authorization.lock().expect("whole") = key;
    with(&script.health_status, String::new())
}

async fn models(State(script): State<Arc<Script>>) -> Response {
    script.models_asked.fetch_add(1, Relaxed);
    with(&script.models_status, script.models.lock().expect("whole").clone())
}

async fn metrics(State(script): State<Arc<Script>>) -> Response {
    with(&script.metrics_status, script.metrics.lock().expect("whole").clone())
}
