//! An engine that is well, slow, failing in one of several ways, lying, or gone, as the weather says.
//!
//! It computes prompts one after the other, as long as what of them it has not seen, and names the request in its answer.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use crate::support::origin::Peer;
use crate::support::{Origin, Received};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    Well,
    /// Computes and decodes ten times slower.
    Slow,
    /// Answers 500 at once.
    Fails,
    /// The same, in chunks: what looks like a first token.
    FailsInChunks,
    Resets,
    EndsEarly,
    /// Says absurd things of what it has computed.
    Lies,
    /// Its process has gone.
    Down,
    /// It is not in the configuration.
    Left,
}

impl Mood {
    pub(crate) const ALL: [Mood; 9] = [
        Mood::Well,
        Mood::Slow,
        Mood::Fails,
        Mood::FailsInChunks,
        Mood::Resets,
        Mood::EndsEarly,
        Mood::Lies,
        Mood::Down,
        Mood::Left,
    ];

    /// Not one request that it gets is answered right.
    pub(crate) fn fails(self) -> bool {
        matches!(self, Mood::Fails | Mood::FailsInChunks | Mood::Resets | Mood::EndsEarly | Mood::Down)
    }
}

const BLOCK_BYTES: usize = 256;
/// Of a prompt that the engine has not seen.
const NANOSECONDS_A_BYTE: u64 = 400;
const TOKENS: usize = 3;
const A_TOKEN: Duration = Duration::from_millis(2);

/// What an engine that lies says: physically impossible, or no number at all in JSON's eyes.
const LIES: [&str; 6] = [
    r#"{"prompt_tokens":90,"completion_tokens":100000000000,"prompt_tokens_details":{"cached_tokens":0}}"#,
    r#"{"prompt_tokens":100000000000,"completion_tokens":100000000000,"prompt_tokens_details":{"cached_tokens":100000000000}}"#,
    r#"{"prompt_tokens":-1,"completion_tokens":-5,"prompt_tokens_details":{"cached_tokens":-7}}"#,
    r#"{"prompt_tokens":1e308,"completion_tokens":1e308,"prompt_tokens_details":{"cached_tokens":1e308}}"#,
    r#"{"prompt_tokens":18446744073709551615,"completion_tokens":0,"prompt_tokens_details":{"cached_tokens":18446744073709551615}}"#,
    r#"{"prompt_tokens":1,"completion_tokens":0,"prompt_tokens_details":{"cached_tokens":99}}"#,
];

const LYING_METRICS: &str = "vllm:kv_cache_usage_perc NaN\nvllm:num_requests_running 1e300\nvllm:num_requests_waiting -4\n\
    vllm:prefix_cache_queries_total 10\nvllm:prefix_cache_hits_total 1e308\n";

struct State {
    mood: Mutex<Mood>,
    requests: AtomicUsize,
    /// Those of them whose prompt no engine can have seen.
    unseen: AtomicUsize,
    answered: AtomicU64,
    seen: Mutex<HashSet<u64>>,
    /// Held while it computes a prompt.
    computing: Mutex<()>,
}

pub(crate) struct Engine {
    pub(crate) address: SocketAddr,
    origin: Option<Origin>,
    state: Arc<State>,
    lives: u32,
}

impl Engine {
    pub(crate) fn start() -> Self {
        let state = Arc::new(State {
            mood: Mutex::new(Mood::Well),
            requests: AtomicUsize::new(0),
            unseen: AtomicUsize::new(0),
            answered: AtomicU64::new(0),
            seen: Mutex::default(),
            computing: Mutex::default(),
        });
        let origin = Origin::start(&["m"], handler(&state));
        let engine = Engine { address: origin.address, origin: Some(origin), state, lives: 1 };
        engine.say_metrics(Mood::Well);
        engine
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn mood(&self) -> Mood {
        *self.state.mood.lock().expect("mood")
    }

    /// Requests so far, and those of them with a prompt that nobody had seen.
    pub(crate) fn counts(&self) -> [usize; 2] {
        [self.state.requests.load(SeqCst), self.state.unseen.load(SeqCst)]
    }

    /// A process that was gone comes back at the same address, with an empty cache.
    pub(crate) fn become_(&mut self, mood: Mood) {
        *self.state.mood.lock().expect("mood") = mood;
        if mood == Mood::Down {
            if let Some(origin) = self.origin.take() {
                origin.kill();
            }
            self.state.seen.lock().expect("seen").clear();
            return;
        }
        if self.origin.is_none() {
            self.lives += 1;
            self.origin = Some(Origin::start_at(self.address, &["m"], handler(&self.state)));
        }
        self.say_metrics(mood);
    }

    fn say_metrics(&self, mood: Mood) {
        let start = 1_000_000 + self.lives;
        let lies = if mood == Mood::Lies { LYING_METRICS } else { "" };
        if let Some(origin) = &self.origin {
            let cache = "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"20000\"} 1";
            origin.say_metrics(&format!("process_start_time_seconds {start}\n{cache}\n{lies}"));
        }
    }
}

fn handler(state: &Arc<State>) -> impl Fn(&mut Peer, &Received) -> bool + Send + Sync + 'static {
    let state = Arc::clone(state);
    move |peer, request| {
        state.requests.fetch_add(1, SeqCst);
        if !request.fields("x-unseen").is_empty() {
            state.unseen.fetch_add(1, SeqCst);
        }
        let mood = *state.mood.lock().expect("mood");
        answer(peer, request, mood, &state)
    }
}

fn answer(peer: &mut Peer, request: &Received, mood: Mood, state: &State) -> bool {
    let tag = request.fields("x-tag").join("+");
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let error = format!("{{\"error\":{{\"message\":\"[{tag}]\",\"code\":\"engine\"}}}}");
    match mood {
        Mood::Fails => {
            let head = format!("HTTP/1.1 500 Oh\r\nX-Tag: {tag}\r\nContent-Length: {}\r\n\r\n", error.len());
            return peer.send(format!("{head}{error}"));
        }
        Mood::FailsInChunks => {
            let head = format!("HTTP/1.1 500 Oh\r\nX-Tag: {tag}\r\nTransfer-Encoding: chunked\r\n\r\n");
            return peer.send(format!("{head}{}0\r\n\r\n", chunk(&error)));
        }
        Mood::Resets => return peer.reset(),
        Mood::EndsEarly => {
            peer.send(format!(
                "HTTP/1.1 200 OK\r\nX-Tag: {tag}\r\nTransfer-Encoding: chunked\r\n\r\n{}",
                chunk(&format!("[{tag}]"))
            ));
            return false;
        }
        Mood::Well | Mood::Slow | Mood::Lies | Mood::Down | Mood::Left => {}
    }
    let times = if mood == Mood::Slow { 10 } else { 1 };
    let [prompt_bytes, cached_bytes] = compute(&request.body, times, state);
    let answered = state.answered.fetch_add(1, SeqCst) as usize;
    let usage = if mood == Mood::Lies {
        LIES[answered % LIES.len()].to_owned()
    } else {
        let [prompt, cached] = [prompt_bytes, cached_bytes].map(|bytes| bytes / 4);
        format!(
            r#"{{"prompt_tokens":{prompt},"completion_tokens":{TOKENS},"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#
        )
    };
    let streamed = request.body.windows(13).any(|w| w == b"\"stream\":true");
    let last = format!("{{\"choices\":[],\"usage\":{usage}}}");
    if !streamed {
        std::thread::sleep(A_TOKEN * TOKENS as u32 * times);
        let body = format!("{{\"text\":\"[{tag}]\",{}", &last[1..]);
        let head = format!(
            "HTTP/1.1 200 OK\r\nX-Tag: {tag}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        return peer.send(format!("{head}{body}"));
    }
    let head = format!(
        "HTTP/1.1 200 OK\r\nX-Tag: {tag}\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    let mut sent = peer.send(format!("{head}{}", chunk(&format!("data: {{\"text\":\"[{tag}]\"}}\n\n"))));
    for _ in 1..TOKENS {
        std::thread::sleep(A_TOKEN * times);
        sent = sent && peer.send(chunk("data: {\"text\":\"word\"}\n\n"));
    }
    sent && peer.send(format!("{}0\r\n\r\n", chunk(&format!("data: {last}\n\ndata: [DONE]\n\n"))))
}

/// Takes the time that the prompt takes; gives its bytes, and those of them that were cached.
fn compute(prompt: &[u8], times: u32, state: &State) -> [usize; 2] {
    let _turn = state.computing.lock().expect("a turn");
    let mut seen = state.seen.lock().expect("seen");
    let blocks: Vec<u64> = (1..=prompt.len() / BLOCK_BYTES).map(|n| xxh3_64(&prompt[..n * BLOCK_BYTES])).collect();
    let cached = blocks.iter().take_while(|block| seen.contains(block)).count() * BLOCK_BYTES;
    seen.extend(blocks);
    drop(seen);
    let work = (prompt.len() - cached) as u64 * NANOSECONDS_A_BYTE;
    std::thread::sleep(Duration::from_nanos(work) * times);
    [prompt.len(), cached]
}
