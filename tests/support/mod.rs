//! What the behaviour tests share: the real router as a process, scripted origins, a raw client.
//!
//! Everything listens on loopback, on free ports, and ends with its value.

#![allow(dead_code, unused_imports, unreachable_pub, reason = "each test file uses its share")]

pub mod canonical;
pub mod client;
pub mod engine;
pub mod in_process;
pub mod leaks;
pub mod origin;
pub mod router;

use std::time::{Duration, Instant};

pub use client::{Client, Response};
pub use leaks::{AtRest, RESTS_SOON};
pub use origin::{Origin, Received};
pub use router::Router;

/// Longer than anything that a test waits for on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Between two pieces that are to be read one by one.
pub const APART: Duration = Duration::from_millis(2);

/// Makes the end of this connection a reset, whoever drops it.
pub fn reset_on_close(stream: &std::net::TcpStream) {
    socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).expect("option");
}

/// A connection that its peer closes within a moment, or not: whether it is open is told by an end or by silence.
pub const MOMENT: Duration = Duration::from_millis(60);

/// Waits until `condition` holds.
///
/// # Panics
/// When it does not within [`PATIENCE`].
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A chat request's body with one user message.
pub fn chat(model: &str, text: &str) -> String {
    serde_json::json!({"model": model, "messages": [{"role": "user", "content": text}]}).to_string()
}

/// A completion request's body.
pub fn completion(model: &str, prompt: &str) -> String {
    serde_json::json!({"model": model, "prompt": prompt}).to_string()
}

/// Text of `bytes` bytes that is different for each `seed` from its beginning on.
pub fn text(seed: u64, bytes: usize) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..bytes)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(b'a' + ((state >> 33) % 26) as u8)
        })
        .collect()
}
