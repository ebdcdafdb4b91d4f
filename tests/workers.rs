//! Workers: connections are spread over them whatever the kernel's hash does, and each runs where it is told to.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::leaks::per_worker;
use support::{AtRest, Client, Origin, RESTS_SOON, Router, chat, eventually};

const STREAM_HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
const EVENT: &str = "9\r\ndata: x\n\n\r\n";

/// A backend whose streams last until the gate is open.
fn streaming(gate: &Arc<AtomicBool>) -> Origin {
    let gate = Arc::clone(gate);
    Origin::start(&["m"], move |peer, _| {
        peer.send(STREAM_HEAD);
        while !gate.load(Ordering::SeqCst) {
            peer.send(EVENT);
            std::thread::sleep(Duration::from_millis(20));
        }
        peer.send("0\r\n\r\n")
    })
}

#[test]
fn long_streams_are_spread_evenly_over_the_workers_and_run_where_they_were_handed_to() {
    let gate = Arc::new(AtomicBool::new(false));
    let origin = streaming(&gate);
    let router = Router::in_front_of(&[origin.url()], &[&["--workers", "4"][..], &RESTS_SOON].concat());
    let at_rest = AtRest::of(&router);
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..64 {
        let mut client = router.client();
        client.send_post("/v1/chat/completions", &chat("m", "x"), "");
        clients.push(client);
    }
    for client in &mut clients {
        assert_eq!(client.head().0, 200);
        assert!(client.next_chunk().starts_with(b"data: x\n\n"));
    }
    let mut open = Vec::new();
    eventually("only the streams and the one that asks are open", || {
        open = per_worker(&router, "trieway_worker_open_connections");
        open.iter().sum::<f64>() == 65.0
    });
    let (most, least) = (open.iter().copied().fold(0.0, f64::max), open.iter().copied().fold(65.0, f64::min));
    // 12 % of a worker's share is below the slack of four; the one that asks may be on top.
    assert!(most - least <= 5.0, "{open:?}");
    gate.store(true, Ordering::SeqCst);
    for client in &mut clients {
        client.until(b"0\r\n\r\n");
        assert!(client.stays_open());
    }
    drop(clients);
    at_rest.is_back(&router);
}

/// The hash alone would leave more of a difference, again and again.
#[test]
fn connections_that_were_handed_over_are_counted_once() {
    let origin = Origin::plain();
    let router = Router::in_front_of(&[origin.url()], &[&["--workers", "2"][..], &RESTS_SOON].concat());
    let mut clients: Vec<Client> = (0..400).map(|_| router.client()).collect();
    for client in &mut clients {
        assert_eq!(client.post("/v1/chat/completions", &chat("m", "x")).status, 200);
    }
    let open = per_worker(&router, "trieway_worker_open_connections");
    assert_eq!(open.iter().sum::<f64>(), 401.0, "{open:?}");
    assert!((open[0] - open[1]).abs() <= 201.0 * 0.12 + 2.0, "{open:?}");
    drop(clients);
    eventually("all are closed", || per_worker(&router, "trieway_worker_open_connections").iter().sum::<f64>() == 1.0);
    // Dozens at a time, again and again: one worker's surplus goes to the other.
    for _ in 0..20 {
        let clients: Vec<Client> = (0..20).map(|_| router.client()).collect();
        eventually("all are taken", || {
            per_worker(&router, "trieway_worker_open_connections").iter().sum::<f64>() == 21.0
        });
        drop(clients);
        eventually("all are closed", || {
            per_worker(&router, "trieway_worker_open_connections").iter().sum::<f64>() == 1.0
        });
    }
    let handed: f64 = per_worker(&router, "trieway_worker_handed_over_connections_total").iter().sum();
    assert!(handed > 0.0, "none was handed over in 20 rounds");
}

/// The CPUs that each worker's thread may use.
fn cpus_of_workers(router: &Router) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", router.pid())).expect("proc");
    let mut found = Vec::new();
    for task in tasks {
        let path = task.expect("task").path();
        let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        let status = std::fs::read_to_string(path.join("status")).unwrap_or_default();
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        if let (true, Some(cpus)) = (name.starts_with("worker-"), cpus) {
            found.push((name, cpus.trim().to_owned()));
        }
    }
    found.sort();
    found.into_iter().map(|(_, cpus)| cpus).collect()
}

#[test]
fn a_worker_runs_on_the_cpu_that_it_is_pinned_to() {
    let origin = Origin::plain();
    let url = origin.url();
    let started = |flags: &[&str]| Router::start(&[&["--static-backends", &url][..], flags].concat());
    let all = std::fs::read_to_string("/proc/self/status").expect("proc");
    let all = all.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a mask").trim();
    let first = all.split(['-', ',']).next().expect("a CPU");
    assert_eq!(cpus_of_workers(&started(&["--pin", first])), [first]);
    assert_eq!(cpus_of_workers(&started(&["--pin", "none", "--workers", "2"])), [all, all]);
}

#[test]
fn a_cpu_that_may_not_be_used_is_refused() {
    let output = support::router::command(&["--static-backends", "http://127.0.0.1:1", "--port", "0", "--pin", "1023"])
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--pin") && said.contains("1023") && said.lines().count() == 1, "{said}");
}
