//! A backend with a prefix cache: answers say how much of each prompt was found there.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Origin;
use super::origin::ok;

/// Bytes of a block: 16 tokens of 4 bytes.
pub const BLOCK: usize = 64;

/// An engine's prefix cache: blocks by the whole prefix up to their end, least recently used first.
#[derive(Default)]
pub struct Cache {
    pub blocks: VecDeque<u64>,
    pub capacity: usize,
    /// What an answer takes.
    pub takes: Duration,
}

impl Cache {
    /// Leading blocks of the prompt that were there; all of them are afterwards, the end older than the beginning.
    fn ask(&mut self, prompt: &str) -> usize {
        let mut hasher = DefaultHasher::new();
        let names: Vec<u64> = prompt
            .as_bytes()
            .chunks_exact(BLOCK)
            .map(|block| {
                block.hash(&mut hasher);
                hasher.finish()
            })
            .collect();
        let found = names.iter().take_while(|name| self.blocks.contains(name)).count();
        self.blocks.retain(|block| !names.contains(block));
        self.blocks.extend(names.iter().rev());
        let excess = self.blocks.len().saturating_sub(self.capacity);
        self.blocks.drain(..excess);
        found
    }
}

pub struct Engine {
    pub origin: Origin,
    pub cache: Arc<Mutex<Cache>>,
}

impl Engine {
    pub fn start(capacity: usize, streams: bool) -> Engine {
        let cache = Arc::new(Mutex::new(Cache { capacity, ..Cache::default() }));
        let own = Arc::clone(&cache);
        let origin = Origin::start(&["m"], move |peer, request| {
            let body: serde_json::Value = serde_json::from_slice(&request.body).expect("a completion");
            let prompt = body["prompt"].as_str().expect("a prompt");
            let (found, takes) = {
                let mut cache = own.lock().expect("no panic");
                (cache.ask(prompt), cache.takes)
            };
            std::thread::sleep(takes);
            let usage = serde_json::json!({"prompt_tokens": prompt.len() / 4, "completion_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": found * BLOCK / 4}});
            if !streams {
                return peer.send(ok(&serde_json::json!({"text": "x", "usage": usage}).to_string()));
            }
            let events = ["data: {\"text\":\"x\"}\n\n".to_owned(), format!("data: {{\"usage\":{usage}}}\n\n")];
            let chunks: String = events.iter().map(|event| format!("{:x}\r\n{event}\r\n", event.len())).collect();
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            peer.send(format!("{head}{chunks}0\r\n\r\n"))
        });
        Engine { origin, cache }
    }
}
