//! The control plane as a whole: its socket answers, a real signal drains, a second one ends at once.
//!
//! One test, since signals are the process': a second test beside it would receive them too.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trieway::config::{MAX_BACKENDS, from_args};
use trieway::control::{Control, ExitReason};
use trieway::shared::{Phase, Shared};
use trieway::trie::{MIN_MEMORY_BYTES, Options, Trie};

const LINE: &str = "trieway --workers 1 --static-backends http://127.0.0.1:1 --static-models m --drain-timeout 20";

fn trie() -> Trie {
    let options = Options { memory_bytes: MIN_MEMORY_BYTES, slots: MAX_BACKENDS };
    Trie::new(&options).expect("valid")
}

/// A router without workers and with one open connection.
fn start() -> (&'static Shared, JoinHandle<ExitReason>) {
    let (control, name) = Control::bind().expect("binds");
    let args: Vec<String> = LINE.split(' ').map(str::to_owned).collect();
    let shared = Shared::new(from_args(&args).expect("valid"), trie(), name, "epoll");
    let shared: &'static Shared = Box::leak(Box::new(shared));
    shared.connections.store(1, Ordering::Release);
    (shared, std::thread::spawn(move || control.run(shared)))
}

fn version(shared: &Shared) -> String {
    let address = SocketAddr::from_abstract_name(&shared.control_socket).expect("a name");
    let mut stream = UnixStream::connect_addr(&address).expect("it listens");
    stream.write_all(b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("takes the request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answers");
    answer
}

fn signal(name: &str) {
    let sent = Command::new("kill").args(["-s", name, &std::process::id().to_string()]).status();
    assert!(sent.expect("kill is there").success());
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(5);
    while !holds() {
        assert!(Instant::now() < end, "still not: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_signal_drains_and_a_second_one_ends_at_once() {
    let (shared, running) = start();
    assert!(version(shared).starts_with("HTTP/1.1 200"));
    signal("TERM");
    until("draining", || shared.phase() == Phase::Draining);
    assert!(version(shared).starts_with("HTTP/1.1 200"), "who looks is answered until the end");
    assert!(!running.is_finished(), "a connection is open");
    shared.connections.store(0, Ordering::Release);
    assert_eq!(running.join().expect("no panic"), ExitReason::Drained);

    let (shared, running) = start();
    version(shared);
    signal("INT");
    until("draining", || shared.phase() == Phase::Draining);
    signal("INT");
    assert_eq!(running.join().expect("no panic"), ExitReason::Interrupted { connections: 1 });
}
