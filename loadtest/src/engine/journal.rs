//! What an engine has seen, for tests to read at GET /debug/requests.
//!
//! Must not know: why anything happened. Bounded: the last few heads and departures are kept.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

const KEPT: usize = 32;

/// A client that went away before its answer was complete.
#[derive(Debug)]
struct Departure {
    tag: Option<String>,
    after: Duration,
    seen_unix_ms: f64,
}

#[derive(Debug, Default)]
pub(crate) struct Journal {
    pub(crate) connections: u64,
    pub(crate) open: u64,
    /// Requests for generation and embeddings, read to their end.
    pub(crate) requests: u64,
    pub(crate) answered: u64,
    pub(crate) aborted: u64,
    /// Requests whose client left before they were complete.
    pub(crate) incomplete: u64,
    /// What was no request.
    pub(crate) malformed: u64,
    last_malformed: &'static str,
    heads: VecDeque<(Vec<u8>, u64, u64)>,
    departures: VecDeque<Departure>,
}

impl Journal {
    /// A request has been read: its raw head, its body's length and hash.
    pub(crate) fn request(&mut self, head: &[u8], body_bytes: usize, body_hash: u64) {
        self.requests += 1;
        // The oldest buffer becomes the newest: no allocation in the steady state.
        let mut slot = if self.heads.len() < KEPT { None } else { self.heads.pop_front() }.unwrap_or_default();
        slot.0.clear();
        slot.0.extend_from_slice(head);
        (slot.1, slot.2) = (body_bytes as u64, body_hash);
        self.heads.push_back(slot);
    }

    pub(crate) fn departure(&mut self, tag: Option<String>, after: Duration) {
        self.aborted += 1;
        if self.departures.len() == KEPT {
            self.departures.pop_front();
        }
        self.departures.push_back(Departure { tag, after, seen_unix_ms: unix_s() * 1000.0 });
    }

    pub(crate) fn malformed(&mut self, why: &'static str) {
        self.malformed += 1;
        self.last_malformed = why;
    }

    pub(crate) fn render(&self, running: usize, waiting: usize, evictions: u64) -> Value {
        let heads: Vec<Value> = self
            .heads
            .iter()
            .map(|(head, bytes, hash)| {
                let head = String::from_utf8_lossy(head);
                json!({"head": head, "body_bytes": bytes, "body_xxh3": format!("{hash:016x}")})
            })
            .collect();
        let departures: Vec<Value> = self
            .departures
            .iter()
            .map(|gone| {
                let after_ms = gone.after.as_secs_f64() * 1000.0;
                json!({"tag": gone.tag, "after_ms": after_ms, "seen_unix_ms": gone.seen_unix_ms})
            })
            .collect();
        json!({
            "connections": self.connections, "open": self.open, "count": self.requests, "answered": self.answered,
            "running": running, "waiting": waiting, "aborted": self.aborted, "incomplete": self.incomplete, "malformed": self.malformed,
            "last_malformed": self.last_malformed, "evictions": evictions, "aborts": departures, "requests": heads,
        })
    }
}

pub(crate) fn unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
