//! Backends that are pods: the router follows an API server that speaks the list-and-watch protocol, with its list, its
//! stream of events, its "too old" and its absence. Needs the feature `kubernetes`.
#![cfg(feature = "kubernetes")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use support::{Origin, Router, eventually};

/// What the API server knows, and what it was asked.
#[derive(Default)]
struct Cluster {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    pods: Vec<Value>,
    /// Every event so far; an event's place is its resource version.
    events: Vec<Value>,
    asked: Vec<String>,
    /// Watches end here and are answered with 410 until a list was asked for.
    expired: bool,
    /// Connections are closed without an answer.
    away: bool,
}

impl Cluster {
    fn start() -> (Arc<Cluster>, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let cluster = Arc::new(Cluster::default());
        let serving = Arc::clone(&cluster);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let cluster = Arc::clone(&serving);
                std::thread::spawn(move || cluster.serve(stream));
            }
        });
        (cluster, address)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().expect("state"));
        self.changed.notify_all();
    }

    /// Puts the pod in the place of its namesake.
    fn apply(&self, name: &str, ip: &str, ready: bool, terminating: bool) {
        self.change(|state| {
            let kind = if state.pods.iter().any(|pod| pod["metadata"]["name"] == name) { "MODIFIED" } else { "ADDED" };
            let mut pod = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": name, "namespace": "llm", "uid": name, "resourceVersion": version(state.events.len() + 1) },
                "status": { "podIP": ip, "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }] },
            });
            if terminating {
                pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            }
            state.pods.retain(|pod| pod["metadata"]["name"] != name);
            state.pods.push(pod.clone());
            state.events.push(json!({ "type": kind, "object": pod }));
        });
    }

    fn serve(&self, stream: TcpStream) {
        let mut lines = BufReader::new(stream.try_clone().expect("a second handle")).lines().map_while(Result::ok);
        let Some(first) = lines.next() else { return };
        let target = first.split(' ').nth(1).unwrap_or_default().to_owned();
        lines.by_ref().take_while(|line| !line.is_empty()).for_each(drop);
        let away = {
            let mut state = self.state.lock().expect("state");
            state.asked.push(target.clone());
            state.away
        };
        if away {
            return;
        }
        // Errors are the router's going away.
        let _ = if target.contains("watch=true") { self.watch(stream, &target) } else { self.list(stream) };
    }

    fn list(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let body = {
            let mut state = self.state.lock().expect("state");
            state.expired = false;
            let version = version(state.events.len());
            json!({ "apiVersion": "v1", "kind": "PodList", "metadata": { "resourceVersion": version }, "items": state.pods })
        };
        let body = body.to_string();
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    }

    fn watch(&self, mut stream: TcpStream, target: &str) -> std::io::Result<()> {
        let from = target.split(['?', '&']).find_map(|pair| pair.strip_prefix("resourceVersion="));
        let mut next: usize = from.and_then(|version| version.parse().ok()).unwrap_or(0);
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        loop {
            let mut state = self.state.lock().expect("state");
            while state.events.len() <= next && !state.expired && !state.away {
                state = self.changed.wait_timeout(state, Duration::from_secs(20)).expect("state").0;
            }
            if state.away {
                return Ok(());
            }
            let gone = json!({ "type": "ERROR", "object": {
                "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": "too old" } });
            let (event, last) = if state.expired { (gone, true) } else { (state.events[next].clone(), false) };
            drop(state);
            next += 1;
            let line = format!("{event}\n");
            write!(stream, "{:x}\r\n{line}\r\n", line.len())?;
            if last {
                return write!(stream, "0\r\n\r\n");
            }
        }
    }
}

fn version(number: usize) -> String {
    number.to_string()
}

/// Engines at the same port of several addresses, as pods are.
fn engines(addresses: &[&str]) -> (u16, Vec<Origin>) {
    for _ in 0..20 {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
        let places: Vec<SocketAddr> =
            addresses.iter().map(|ip| format!("{ip}:{port}").parse().expect("an address")).collect();
        if places.iter().all(|place| TcpListener::bind(place).is_ok()) {
            return (
                port,
                places
                    .iter()
                    .map(|&place| Origin::start_at(place, &["m"], |peer, _| peer.send(support::origin::ok("{}"))))
                    .collect(),
            );
        }
    }
    panic!("no port is free at all addresses");
}

fn start(api: SocketAddr, port: u16, folder: &std::path::Path) -> Router {
    let file = folder.join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{ "name": "test", "cluster": { "server": format!("http://{api}") } }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
        "users": [{ "name": "test", "user": { "token": "not-printed" } }],
    });
    std::fs::write(&file, config.to_string()).expect("writes the file");
    let port = port.to_string();
    let state = folder.join("state").display().to_string();
    let mut command = support::router::locally(&[
        "--service-discovery",
        "k8s",
        "--k8s-namespace",
        "llm",
        "--k8s-label-selector",
        "app=engine",
        "--k8s-port",
        &port,
        "--static-backend-health-check-interval",
        "0.2",
        "--state-file",
        &state,
    ]);
    command.env("KUBECONFIG", &file);
    Router::start_by(command)
}

fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("trieway-kubernetes-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// The backends that `/engines` names, in order.
fn known(router: &Router) -> Vec<String> {
    let engines: Value = serde_json::from_str(&router.engines()).expect("JSON");
    let list = engines.as_array().or_else(|| engines["engines"].as_array()).expect("a list").clone();
    list.iter().map(|engine| engine["url"].as_str().expect("a URL").to_owned()).collect()
}

#[test]
fn pods_come_and_go_as_they_get_ready_and_terminate() {
    let (port, origins) = engines(&["127.0.0.1", "127.0.0.2"]);
    let (cluster, api) = Cluster::start();
    cluster.apply("a", "127.0.0.1", true, false);
    cluster.apply("b", "127.0.0.2", false, false);
    let folder = folder("life");
    let router = start(api, port, &folder);
    router.wait_for_backends(1);
    assert_eq!(known(&router), [origins[0].url()]);
    let asked = cluster.state.lock().expect("state").asked.clone();
    assert!(asked.iter().all(|target| target.starts_with("/api/v1/namespaces/llm/pods?")), "{asked:?}");
    assert!(asked.iter().all(|target| target.contains("labelSelector=app%3Dengine")), "{asked:?}");

    cluster.apply("b", "127.0.0.2", true, false);
    router.wait_for_backends(2);
    cluster.apply("a", "127.0.0.1", true, true);
    eventually("only the other pod is left", || known(&router) == [origins[1].url()]);
    let answer = router.post("/v1/completions", r#"{"model":"m","prompt":"x"}"#);
    assert_eq!((answer.status, origins[0].count(), origins[1].count()), (200, 0, 1), "{}", answer.body_text());
    assert!(!router.log().join("\n").contains("not-printed"));
    std::fs::remove_dir_all(folder).expect("removes the folder");
}

#[test]
fn a_watch_that_is_too_old_begins_with_a_list_again() {
    let (port, origins) = engines(&["127.0.0.1", "127.0.0.2"]);
    let (cluster, api) = Cluster::start();
    cluster.apply("a", "127.0.0.1", true, false);
    let folder = folder("old");
    let router = start(api, port, &folder);
    router.wait_for_backends(1);
    // The watch ends while one pod is replaced by another: only a new list can tell.
    cluster.change(|state| {
        state.expired = true;
        state.pods.clear();
    });
    cluster.apply("b", "127.0.0.2", true, false);
    eventually("the new list counts", || known(&router) == [origins[1].url()]);
    std::fs::remove_dir_all(folder).expect("removes the folder");
}

#[test]
fn backends_stay_while_the_api_server_is_away() {
    let (port, origins) = engines(&["127.0.0.1", "127.0.0.2"]);
    let (cluster, api) = Cluster::start();
    cluster.apply("a", "127.0.0.1", true, false);
    let folder = folder("away");
    let router = start(api, port, &folder);
    router.wait_for_backends(1);
    cluster.change(|state| state.away = true);
    eventually("the router says that the API is away", || {
        router.log().iter().any(|line| line.contains("the Kubernetes API can't be asked"))
    });
    let answer = router.post("/v1/completions", r#"{"model":"m","prompt":"x"}"#);
    assert_eq!((answer.status, origins[0].count()), (200, 1), "{}", answer.body_text());
    cluster.change(|state| state.away = false);
    cluster.apply("b", "127.0.0.2", true, false);
    router.wait_for_backends(2);
    assert!(router.log().iter().any(|line| line.contains("the Kubernetes API answers again")));
    std::fs::remove_dir_all(folder).expect("removes the folder");
}

#[test]
fn a_reload_leaves_the_pods_alone() {
    let (port, origins) = engines(&["127.0.0.1"]);
    let (cluster, api) = Cluster::start();
    cluster.apply("a", "127.0.0.1", true, false);
    let folder = folder("reload");
    let router = start(api, port, &folder);
    router.wait_for_backends(1);
    router.signal("HUP");
    eventually("the configuration was read again", || router.log().iter().any(|line| line.contains("is in force")));
    assert_eq!(known(&router), [origins[0].url()]);
    std::fs::remove_dir_all(folder).expect("removes the folder");
}

#[test]
fn a_restart_while_the_api_server_is_away_serves_the_pods_of_the_state() {
    let (port, origins) = engines(&["127.0.0.1"]);
    let (cluster, api) = Cluster::start();
    cluster.apply("a", "127.0.0.1", true, false);
    let folder = folder("state");
    let mut router = start(api, port, &folder);
    router.wait_for_backends(1);
    let body = json!({ "model": "m", "prompt": "x".repeat(2_000) }).to_string();
    assert_eq!(router.post("/v1/completions", &body).status, 200);
    router.signal("TERM");
    assert!(router.wait().success());

    cluster.change(|state| state.away = true);
    let router = start(api, port, &folder);
    router.wait_for_backends(1);
    assert_eq!(router.post("/v1/completions", &body).status, 200);
    assert_eq!(origins[0].count(), 2);
    let pinned = format!("trieway_requests_total{{server=\"{}\",model=\"m\",reason=\"prefix\"}}", origins[0].url());
    assert_eq!(router.metric(&pinned), 1.0, "what the trie knew is known again");
    std::fs::remove_dir_all(folder).expect("removes the folder");
}
