//! The line a request of `--log-requests`: which backend gets it, and after how long in the router.
//!
//! It is written by the worker itself, once there is a connection and before the request is sent: so it is in the log
//! before the answer's first byte is at the client, and a request that goes on to another backend has one line, of the one
//! that got it. The text form is the production stack's, whose users parse it.
//!
//! Invariants: a line is one line, whatever the client sent; no prompt and no credential is in it.

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use xxhash_rust::xxh3::xxh3_64;

use super::lease::Scratch;
use super::plan::Plan;
use super::request::Request;
use super::worker::Worker;
use crate::config::LogFormat;
use crate::fleet::snapshot::Backend;

/// What is shown of a session's name, at most.
const MAX_SESSION_CHARS: usize = 128;

/// Fields whose values are credentials: a session that is named by one of them is shown as a hash.
const CREDENTIALS: [&str; 5] = ["authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"];

/// Writes the line of a request that is about to be sent to `backend`, `elapsed` after its head was read.
pub(super) fn routed(
    worker: &Worker,
    scratch: &mut Scratch,
    request: &Request,
    plan: &Plan,
    backend: &Backend,
    elapsed: Duration,
) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let seconds = elapsed.as_secs_f64();
    // Lent out, since the session is read by way of the same scratch.
    let id = std::mem::take(&mut scratch.request_id);
    let session = plan.session(scratch, request.head(), request.body()).map(|(key, name)| shown(key, name));
    let (session, request_id) = (session.as_deref(), String::from_utf8_lossy(&id));
    match worker.shared.config.log.format {
        LogFormat::Text => tracing::info!(
            "Routing request {request_id} with session id {} to {} at {now:.6}, process time = {seconds:.6}",
            session.unwrap_or("None"),
            backend.name,
        ),
        LogFormat::Json => tracing::info!(
            request_id = &*request_id,
            session_id = session,
            backend = &*backend.name,
            unix_time = now,
            process_seconds = seconds,
            "Routing request"
        ),
    }
    scratch.request_id = id;
}

/// A session's name without what would split the line, or a part of it.
fn shown<'a>(key: &str, name: &'a [u8]) -> Cow<'a, str> {
    if CREDENTIALS.iter().any(|field| field.eq_ignore_ascii_case(key)) {
        return format!("{:016x}", xxh3_64(name)).into();
    }
    match std::str::from_utf8(name) {
        Ok(text) if text.len() <= MAX_SESSION_CHARS && text.bytes().all(|byte| byte.is_ascii_graphic()) => text.into(),
        _ => {
            let plain = |c: char| if c.is_whitespace() || c.is_control() { '_' } else { c };
            String::from_utf8_lossy(name).chars().take(MAX_SESSION_CHARS).map(plain).collect::<String>().into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_shown_as_one_word_and_never_as_a_credential() {
        assert_eq!(shown("x-user-id", b"u-1"), "u-1");
        assert_eq!(shown("user", b"a b\nRouting\x1b[0m request"), "a_b_Routing_[0m_request");
        assert_eq!(shown("user", &[0xff, b'x']), "\u{fffd}x");
        assert_eq!(shown("user", "é".repeat(500).as_bytes()), "é".repeat(MAX_SESSION_CHARS));
        let hidden = shown("Authorization", b"Bearer hunter2");
        assert!(hidden.len() == 16 && hidden.bytes().all(|b| b.is_ascii_hexdigit()), "{hidden}");
        assert_eq!(hidden, shown("authorization", b"Bearer hunter2"), "the same session looks the same");
    }
}
