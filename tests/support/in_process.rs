//! The router with one worker inside the test's own process, for tests that count what its thread does.

use std::net::SocketAddr;

use trieway::config::{MAX_BACKENDS, from_args};
use trieway::control::Control;
use trieway::data;
use trieway::shared::Shared;
use trieway::trie::{Options, Trie};

/// Starts it with these flags; gives where it listens. It runs as long as the process.
pub fn router(flags: &str) -> (SocketAddr, &'static Shared) {
    let line = format!("trieway --host 127.0.0.1 --port 0 --workers 1 --prefix-memory 16MiB {flags}");
    let config = from_args(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).expect("valid");
    let (driver, _) = data::pick(config.io, 1).expect("a driver");
    let trie =
        Trie::new(&Options { memory_bytes: config.routing.prefix_memory_bytes, slots: MAX_BACKENDS }).expect("a trie");
    let listeners = data::listen(&config.listen, 1).expect("listens");
    let address = listeners.shown.trim_start_matches("http://").parse().expect("an address");
    let (control, socket) = Control::bind().expect("binds");
    let shared: &'static Shared = Box::leak(Box::new(Shared::new(config, trie, socket, driver.as_str())));
    data::start(shared, listeners, driver).expect("starts");
    std::thread::spawn(move || control.run(shared));
    (address, shared)
}
