//! One router after another: SIGUSR2, systemd's sockets, and what the service manager is told.

mod support;

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use support::origin::ok;
use support::{Client, Origin, PATIENCE, Router, completion, eventually, text};

/// A folder of this test's own, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trieway-test-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).expect("a folder");
        Folder(path)
    }

    /// The path at which the router is installed.
    fn binary(&self) -> PathBuf {
        self.0.join("trieway")
    }

    fn install(&self) {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_trieway"), self.binary()).expect("a link");
    }

    /// Another version: a script in the binary's place.
    fn replace(&self, script: &str) {
        let path = self.0.join("other");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("writes");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("a mode");
        std::fs::rename(&path, self.binary()).expect("in its place");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The installed router in front of these backends.
fn installed(folder: &Folder, origins: &[Origin], flags: &[&str]) -> Router {
    let urls: Vec<_> = origins.iter().map(Origin::url).collect();
    let list = urls.join(",");
    let with_driver = support::router::locally(&[&["--static-backends", &list][..], flags].concat());
    let mut here = Command::new(folder.binary());
    here.args(with_driver.get_args());
    for (name, value) in with_driver.get_envs() {
        match value {
            Some(value) => here.env(name, value),
            None => here.env_remove(name),
        };
    }
    let router = Router::start_by(here);
    router.wait_for_backends(origins.len());
    router
}

/// A process that took over; ended with its value.
struct Successor(u32);

impl Successor {
    /// The one that the router names in its `nth` line about it.
    fn of(router: &Router, nth: usize) -> Self {
        let mut found = None;
        eventually("another process has taken over", || {
            let log = router.log();
            let mut lines = log.iter().filter_map(|line| {
                let (before, _) = line.split_once(" has taken over")?;
                before.rsplit_once("process ")?.1.parse().ok()
            });
            found = lines.nth(nth);
            found.is_some()
        });
        Successor(found.expect("found"))
    }

    fn signal(&self, name: &str) {
        let _ = Command::new("kill").args([&format!("-{name}"), &self.0.to_string()]).status();
    }

    fn has_ended(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z'))
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.signal("KILL");
        }
    }
}

fn says(router: &Router, what: &str) -> usize {
    router.log().iter().filter(|line| line.contains(what)).count()
}

fn by_prefix(router: &Router) -> f64 {
    let text = router.get("/metrics").body_text();
    let lines = text.lines().filter(|l| l.starts_with("trieway_requests_total{") && l.contains("reason=\"prefix\""));
    lines.map(|line| line.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok()).expect("a number")).sum()
}

/// Requests one after another until told to stop; each must be answered with 200. `keep`: on one connection as long as
/// the router lets it.
fn load(address: std::net::SocketAddr, stop: &Arc<AtomicBool>, keep: bool) -> std::thread::JoinHandle<usize> {
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        let mut sent = 0;
        let mut client = Client::connect(address);
        while !stop.load(SeqCst) {
            let response = client.post("/v1/completions", &completion("m", "x"));
            assert_eq!(response.status, 200, "{}", response.body_text());
            sent += 1;
            if !keep || response.field("connection") == Some("close") {
                client = Client::connect(address);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        sent
    })
}

fn origin() -> Origin {
    origin_at(([127, 0, 0, 1], 0).into())
}

fn origin_at(address: std::net::SocketAddr) -> Origin {
    Origin::start_at(address, &["m"], |peer, request| {
        if !String::from_utf8_lossy(&request.body).contains("slow") {
            return peer.send(ok("{}"));
        }
        peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        let sent = (0..20).all(|_| {
            std::thread::sleep(Duration::from_millis(100));
            peer.send("5\r\nevent\r\n")
        });
        sent && peer.send("0\r\n\r\n")
    })
}

#[test]
fn upgrades_under_load_lose_no_request_no_stream_and_no_prefix() {
    let folder = Folder::new("upgrade");
    folder.install();
    let origins = [origin(), origin()];
    let mut router = installed(&folder, &origins, &[]);
    let prompts: Vec<_> = (0..16).map(|seed| completion("m", &text(seed, 1_000))).collect();
    let send_all = |client: &mut Client| -> Vec<usize> {
        let mut home = |prompt: &String| {
            let holds = |origin: &Origin| origin.received().iter().filter(|r| r.body == prompt.as_bytes()).count();
            let before = origins.each_ref().map(holds);
            assert_eq!(client.post("/v1/completions", prompt).status, 200);
            (0..2).find(|&at| holds(&origins[at]) > before[at]).expect("somebody got it")
        };
        prompts.iter().map(&mut home).collect()
    };
    let homes = send_all(&mut router.client());
    let stop = Arc::new(AtomicBool::new(false));
    let loads: Vec<_> = (0..6).map(|number| load(router.address, &stop, number % 2 == 0)).collect();
    let mut stream = router.client();
    stream.send_post("/v1/completions", &completion("m", "slow"), "");
    stream.head();
    stream.next_chunk();
    // Another number of workers each time: fewer sockets than workers, then more.
    let real = env!("CARGO_BIN_EXE_trieway");
    folder.replace(&format!("TRIEWAY_WORKERS=5 exec {real} \"$@\""));
    router.signal("USR2");
    let second = Successor::of(&router, 0);
    let whole = stream.response_rest();
    assert!(whole.ends_with(b"0\r\n\r\n"), "the stream ends as it should: {}", whole.escape_ascii());
    assert_eq!(router.wait().code(), Some(0));
    assert_eq!(says(&router, "runs of 2 backends are taken over"), 1);
    assert_eq!(send_all(&mut router.client()), homes, "hits continue at once");
    assert_eq!(by_prefix(&router), 16.0);
    folder.replace(&format!("TRIEWAY_WORKERS=1 exec {real} \"$@\""));
    second.signal("USR2");
    let third = Successor::of(&router, 1);
    eventually("the second process ends", || second.has_ended());
    assert_eq!(send_all(&mut router.client()), homes);
    stop.store(true, SeqCst);
    let sent: Vec<_> = loads.into_iter().map(|load| load.join().expect("no request failed")).collect();
    assert!(sent.iter().all(|&sent| sent > 100), "{sent:?}");
    third.signal("TERM");
    eventually("the third process drains", || third.has_ended());
    assert!(std::net::TcpStream::connect(router.address).is_err(), "nobody listens any more");
}

#[test]
fn engines_and_router_are_upgraded_one_after_another_under_load_and_no_request_fails() {
    let folder = Folder::new("rolling");
    folder.install();
    let mut engines = vec![origin(), origin()];
    let file = folder.0.join("dynamic.yaml");
    let drain = |url: &str| std::fs::write(&file, format!("drain_backends: \"{url}\"\n")).expect("writes");
    drain("");
    let flags = ["--dynamic-config-yaml", &file.display().to_string(), "--static-backend-health-check-interval", "0.2"];
    let mut router = installed(&folder, &engines, &flags);
    let stop = Arc::new(AtomicBool::new(false));
    let loads: Vec<_> = (0..6).map(|number| load(router.address, &stop, number % 2 == 0)).collect();
    for at in 0..engines.len() {
        let url = engines[at].url();
        let shown = |key: &str| {
            let all = router.get("/engines").json();
            all.as_array().expect("a list").iter().find(|one| one["url"] == url.as_str()).expect("known")[key].clone()
        };
        drain(&url);
        eventually("nothing runs there any more", || shown("state") == "draining" && shown("in_flight") == 0);
        let address = engines.remove(at).kill();
        eventually("that is seen", || shown("state") == "down");
        engines.insert(at, origin_at(address));
        drain("");
        eventually("it serves again", || engines[at].count() > 20);
        assert_eq!(shown("restarts"), 1, "what the old process had cached is forgotten");
    }
    router.signal("USR2");
    let second = Successor::of(&router, 0);
    assert_eq!(router.wait().code(), Some(0));
    let before = engines.iter().map(Origin::count).sum::<usize>();
    eventually("the new router serves", || engines.iter().map(Origin::count).sum::<usize>() > before + 50);
    stop.store(true, SeqCst);
    let sent: Vec<_> = loads.into_iter().map(|load| load.join().expect("no request failed")).collect();
    assert!(sent.iter().all(|&sent| sent > 100), "{sent:?}");
    second.signal("TERM");
    eventually("it drains", || second.has_ended());
}

#[test]
fn a_connection_that_was_idle_meanwhile_is_served_once_more_and_then_told_to_close() {
    let folder = Folder::new("idle");
    folder.install();
    let origins = [Origin::plain()];
    let mut router = installed(&folder, &origins, &[]);
    let mut clients = [router.client(), router.client()];
    for client in &mut clients {
        assert_eq!(client.get("/version").status, 200);
    }
    router.signal("USR2");
    let _second = Successor::of(&router, 0);
    std::thread::sleep(Duration::from_millis(300));
    let [asks, idles] = &mut clients;
    assert_eq!(asks.get("/health").status, 200, "the service as a whole is well");
    let mut again = Client::connect(router.address);
    assert_eq!(again.get("/health").field("connection"), None);
    assert!(asks.ends_silently());
    assert!(idles.ends_silently(), "it is not waited for for ever");
    assert_eq!(router.wait().code(), Some(0));
}

#[test]
fn a_process_that_does_not_start_leaves_the_old_one_serving() {
    let folder = Folder::new("broken");
    folder.install();
    let origins = [Origin::plain()];
    let router = installed(&folder, &origins, &[]);
    let mut client = router.client();
    assert_eq!(client.get("/version").status, 200);
    let descriptors = router.descriptors();
    let refused = "no handover, this process goes on";
    for (number, script) in ["exit 3", "echo broken >&2; exec sleep 0.2"].iter().enumerate() {
        folder.replace(script);
        router.signal("USR2");
        eventually("it is said", || says(&router, refused) == number + 1);
        assert_eq!(client.post("/v1/completions", &completion("m", "x")).status, 200, "the same connection");
        assert_eq!(router.post("/v1/completions", &completion("m", "x")).status, 200, "a new one");
    }
    assert_eq!(says(&router, "exit status: 3"), 1);
    std::fs::remove_file(folder.binary()).expect("removed");
    router.signal("USR2");
    eventually("it is said", || says(&router, "cannot be started") == 1);
    // With a flag that it refuses, its own line is in the log, too.
    folder.replace(&format!("exec {} --no-such-flag \"$@\"", env!("CARGO_BIN_EXE_trieway")));
    router.signal("USR2");
    eventually("it is said", || says(&router, refused) == 4);
    assert_eq!(says(&router, "--no-such-flag"), 1);
    eventually("nothing stays open", || router.descriptors() <= descriptors + 1);
    assert_eq!(client.post("/v1/completions", &completion("m", "x")).status, 200);
}

#[test]
fn a_signal_to_end_during_a_handover_ends_both() {
    let folder = Folder::new("interrupted");
    folder.install();
    let origins = [Origin::plain()];
    let mut router = installed(&folder, &origins, &[]);
    folder.replace(&format!("echo $$ > {}; exec sleep 1000", folder.0.join("pid").display()));
    router.signal("USR2");
    let pid = || std::fs::read_to_string(folder.0.join("pid")).ok()?.trim().parse().ok();
    eventually("the new process runs", || pid().is_some());
    let heir = Successor(pid().expect("a number"));
    router.signal("TERM");
    assert_eq!(router.wait().code(), Some(0));
    eventually("the new process is gone", || heir.has_ended());
}

#[test]
fn the_socket_that_systemd_passes_is_served() {
    let origin = Origin::plain();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = listener.local_addr().expect("an address");
    // Who connects before there is a router waits for it.
    let mut early = Client::connect(address);
    let plain = support::router::locally(&["--static-backends", &origin.url(), "--workers", "2"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec 3<&0 0</dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\""]);
    shell.arg(plain.get_program()).args(plain.get_args());
    let router = Router::start_with(shell, Stdio::from(OwnedFd::from(listener)));
    assert_eq!(router.address, address);
    assert_eq!(early.get("/version").status, 200);
    router.wait_for_backends(1);
    for _ in 0..20 {
        assert_eq!(router.post("/v1/completions", &completion("m", "x")).status, 200);
    }
}

#[test]
fn the_service_manager_is_told_of_start_handover_and_end() {
    let folder = Folder::new("notify");
    folder.install();
    let path = folder.0.join("notify");
    let manager = UnixDatagram::bind(&path).expect("binds");
    manager.set_read_timeout(Some(PATIENCE)).expect("option");
    let heard = || {
        let mut bytes = [0; 256];
        let length = manager.recv(&mut bytes).expect("a message");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let origin = Origin::plain();
    let with_driver = support::router::locally(&["--static-backends", &origin.url()]);
    let mut command = Command::new(folder.binary());
    command.args(with_driver.get_args()).env("NOTIFY_SOCKET", &path);
    let mut router = Router::start_by(command);
    assert_eq!(heard(), "READY=1");
    router.signal("USR2");
    let second = Successor::of(&router, 0);
    assert_eq!(heard(), format!("READY=1\nMAINPID={}", second.0));
    assert_eq!(router.wait().code(), Some(0));
    second.signal("TERM");
    assert_eq!(heard(), "STOPPING=1");
    let started = Instant::now();
    eventually("it ends", || second.has_ended());
    assert!(started.elapsed() < Duration::from_secs(5));
}
