//! Recorded traffic: Mooncake's JSONL, one request a line.
//!
//! Timestamps are quantised; each is moved within its bucket by a seeded random share. A hash id names a prefix up to the end
//! of a segment of 512 tokens. An answer becomes part of the next turn's prompt, but a record does not say under which ids:
//! it is linked to the first later request that extends it by at least its answer, and its answer's blocks get that one's ids.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

use crate::random::Random;

/// Tokens of a segment that one hash id names.
pub const SEGMENT_TOKENS: u32 = 512;

/// Width of a bucket of the trace's clock.
const QUANTUM_MS: f64 = 3000.0;

#[derive(Deserialize)]
struct Record {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

#[derive(Clone, Debug, Default)]
pub struct Request {
    /// As recorded, in milliseconds.
    pub timestamp_ms: f64,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    /// Dense numbers of the hash ids.
    pub ids: Vec<u32>,
    /// The ids of its next turn, when one is found.
    pub next_ids: Option<Vec<u32>>,
}

#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub requests: Vec<Request>,
    /// How many different ids there are.
    pub ids: usize,
}

impl Trace {
    /// Reads files one after the other as one stream of requests. Errors name the file and the line.
    pub fn read<P: AsRef<Path>>(paths: &[P]) -> Result<Trace, String> {
        let mut trace = Trace::default();
        for path in paths {
            let name = path.as_ref().display();
            let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
            let begin = trace.requests.last().map_or(0.0, |last| last.timestamp_ms + QUANTUM_MS);
            trace.append(&text, begin).map_err(|error| format!("{name}: {error}"))?;
        }
        Ok(trace)
    }

    /// Adds the records of `text`, `begin_ms` later than they say.
    pub fn append(&mut self, text: &str, begin_ms: f64) -> Result<(), String> {
        let mut numbers: HashMap<u64, u32> = HashMap::new();
        let first = self.requests.len();
        for (line, text) in text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
            let record: Record = serde_json::from_str(text).map_err(|error| format!("line {}: {error}", line + 1))?;
            let ids = record.hash_ids.iter().map(|&id| {
                *numbers.entry(id).or_insert_with(|| {
                    self.ids += 1;
                    (self.ids - 1) as u32
                })
            });
            self.requests.push(Request {
                timestamp_ms: begin_ms + record.timestamp,
                prompt_tokens: record.input_length.max(1),
                output_tokens: record.output_length.max(1),
                ids: ids.collect(),
                next_ids: None,
            });
        }
        link(&mut self.requests[first..]);
        Ok(())
    }

    /// The part from `from` to `to`, shares of the number of requests, as a trace of its own.
    pub fn slice(&self, from: f64, to: f64) -> Trace {
        let at = |share: f64| ((self.requests.len() as f64 * share).round() as usize).min(self.requests.len());
        let mut requests = self.requests[at(from)..at(to).max(at(from))].to_vec();
        let begin = requests.first().map_or(0.0, |first| first.timestamp_ms);
        for request in &mut requests {
            request.timestamp_ms -= begin;
        }
        Trace { requests, ids: self.ids }
    }

    /// When each request arrives, in seconds, in order: (time, index of the request).
    pub fn arrivals(&self, scale: f64, seed: u64) -> Vec<(f64, usize)> {
        let mut random = Random::new(seed);
        let mut arrivals: Vec<(f64, usize)> = self
            .requests
            .iter()
            .enumerate()
            .map(|(at, request)| ((request.timestamp_ms + random.share() * QUANTUM_MS) / 1000.0 / scale, at))
            .collect();
        arrivals.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        arrivals
    }
}

/// Gives each request the ids of the first later one that goes on where it and its answer end.
fn link(requests: &mut [Request]) {
    // The last id of a prompt's whole segments names them all.
    let mut open: HashMap<u32, Vec<usize>> = HashMap::new();
    for at in 0..requests.len() {
        for depth in 0..requests[at].ids.len() {
            let Some(earlier) = open.get_mut(&requests[at].ids[depth]) else { continue };
            let whole = |r: &Request| (r.prompt_tokens / SEGMENT_TOKENS) as usize;
            earlier.retain(|&before| {
                let turn = &requests[before];
                let follows =
                    whole(turn) == depth + 1 && requests[at].prompt_tokens >= turn.prompt_tokens + turn.output_tokens;
                if follows {
                    let ids = requests[at].ids.clone();
                    requests[before].next_ids = Some(ids);
                }
                !follows
            });
        }
        let whole = (requests[at].prompt_tokens / SEGMENT_TOKENS) as usize;
        // One shared segment is a system prompt and says nothing of a conversation.
        if whole >= 2 {
            open.entry(requests[at].ids[whole - 1]).or_default().push(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = r#"{"timestamp": 0, "input_length": 1100, "output_length": 600, "hash_ids": [7, 8, 9]}
{"timestamp": 3000, "input_length": 1200, "output_length": 1, "hash_ids": [7, 8, 10]}
{"timestamp": 3000, "input_length": 1800, "output_length": 1, "hash_ids": [7, 8, 11, 12]}
"#;

    #[test]
    fn records_are_read_and_a_turn_is_linked_to_the_one_that_has_its_answer() {
        let mut trace = Trace::default();
        trace.append(LINES, 0.0).unwrap();
        assert_eq!((trace.requests.len(), trace.ids), (3, 6));
        assert_eq!(trace.requests[0].ids, [0, 1, 2]);
        // The second has no room for the first one's answer; the third has.
        assert_eq!(trace.requests[0].next_ids.as_deref(), Some(&[0, 1, 4, 5][..]));
        assert_eq!(trace.requests[2].next_ids, None);
        assert!(trace.append("{", 0.0).unwrap_err().starts_with("line 1"));
    }

    #[test]
    fn arrivals_stay_in_their_bucket_and_follow_the_seed() {
        let mut trace = Trace::default();
        trace.append(LINES, 0.0).unwrap();
        let times = trace.arrivals(2.0, 5);
        assert_eq!(times, trace.arrivals(2.0, 5));
        assert_ne!(times, trace.arrivals(2.0, 6));
        assert!((0.0..1.5).contains(&times[0].0) && times[0].1 == 0);
        assert!(times[1..].iter().all(|(time, _)| (1.5..3.0).contains(time)));
    }

    #[test]
    fn a_slice_begins_at_zero() {
        let mut trace = Trace::default();
        trace.append(LINES, 0.0).unwrap();
        let half = trace.slice(0.34, 1.0);
        assert_eq!((half.requests.len(), half.requests[0].timestamp_ms), (2, 0.0));
    }
}
