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
    /// What an answer takes until its first token.
    pub takes: Duration,
    /// Tokens of an answer, and what each but the first takes.
    pub answer_tokens: u32,
    pub step: Duration,
    /// What it says of each prompt instead of the truth.
    pub lie: Option<serde_json::Value>,
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

/// How an engine answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    Whole,
    /// Whole, in chunks.
    Chunked,
    Streamed,
}

pub struct Engine {
    pub origin: Origin,
    pub cache: Arc<Mutex<Cache>>,
}

impl Engine {
    pub fn start(capacity: usize, streams: bool) -> Engine {
        Self::answering(capacity, if streams { Answers::Streamed } else { Answers::Whole })
    }

    pub fn answering(capacity: usize, answers: Answers) -> Engine {
        let cache = Arc::new(Mutex::new(Cache { capacity, answer_tokens: 1, ..Cache::default() }));
        let own = Arc::clone(&cache);
        let origin = Origin::start(&["m"], move |peer, request| {
            let body: serde_json::Value = serde_json::from_slice(&request.body).expect("a completion");
            let prompt = body["prompt"].as_str().expect("a prompt");
            let (found, takes, answer_tokens, step, lie) = {
                let mut cache = own.lock().expect("no panic");
                let found = cache.ask(prompt);
                (found, cache.takes, cache.answer_tokens, cache.step, cache.lie.clone())
            };
            std::thread::sleep(takes);
            let decodes = step * (answer_tokens - 1);
            let usage = serde_json::json!({"prompt_tokens": prompt.len() / 4, "completion_tokens": answer_tokens,
                "prompt_tokens_details": {"cached_tokens": found * BLOCK / 4}});
            let usage = lie.unwrap_or(usage);
            let words = "x".repeat(answer_tokens as usize);
            let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
            if answers != Answers::Streamed {
                std::thread::sleep(decodes);
                let body = serde_json::json!({"text": words, "usage": usage}).to_string();
                if answers == Answers::Whole {
                    return peer.send(ok(&body));
                }
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
                return peer.send(format!("{head}{}0\r\n\r\n", chunk(&body)));
            }
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            let first = chunk("data: {\"text\":\"x\"}\n\n");
            let rest = chunk(&format!("data: {{\"text\":\"{words}\"}}\n\ndata: {{\"usage\":{usage}}}\n\n"));
            if decodes.is_zero() {
                return peer.send(format!("{head}{first}{rest}0\r\n\r\n"));
            }
            peer.send(format!("{head}{first}")) && {
                std::thread::sleep(decodes);
                peer.send(format!("{rest}0\r\n\r\n"))
            }
        });
        Engine { origin, cache }
    }
}
