//! Prompts: what a router is called with.

use std::cell::RefCell;

use trieway_benches::prompt::{Chunks, UNKEYED};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of a prompt that one chunk hash stands for; the product's default.
pub const CHUNK: usize = 128;

pub const BACKENDS: u16 = 8;

/// One request: its whole prompt, and the backend that its conversation is on.
pub struct Call {
    pub text: String,
    pub backend: u16,
}

/// The chunk hashes of a prompt, each seeded by the one before; the rest that fills no chunk is left out.
pub fn chain(text: &[u8], key: &mut Vec<u64>) {
    key.clear();
    let mut previous = 0x7472_6965;
    for chunk in text.chunks_exact(CHUNK) {
        previous = xxh3_64_with_seed(chunk, previous);
        key.push(previous);
    }
}

/// The product's: chunks hashed by themselves, so that the processor works on several at once, and then folded together by one
/// wide multiplication each.
pub fn fold_chain(text: &[u8], key: &mut Vec<u64>) {
    thread_local! {
        static CHUNKS: RefCell<Chunks> = RefCell::new(Chunks::new(CHUNK, &UNKEYED));
    }
    CHUNKS.with_borrow_mut(|chunks| {
        chunks.start(0x7472_6965);
        chunks.feed(text);
        key.clear();
        key.extend_from_slice(chunks.key());
    });
}

/// Growing conversations, each assistant turn one call, in `copies` copies that share only the system prompt.
pub fn text_calls(copies: usize) -> Vec<Call> {
    let talks = traced().unwrap_or_else(|| {
        println!("(TRIEWAY_TRACES holds no tau_bench_airline.json: synthetic conversations instead)");
        synthetic()
    });
    let mut calls = Vec::new();
    for copy in 0..copies {
        for (at, talk) in talks.iter().enumerate() {
            let backend = ((copy + at) % usize::from(BACKENDS)) as u16;
            let mut text = String::new();
            for (role, content) in talk {
                if role == "assistant" {
                    calls.push(Call { text: text.clone(), backend });
                }
                text.push_str(role);
                text.push_str(content);
                if role == "system" {
                    text.push_str(&format!("conversation {copy}/{at}"));
                }
            }
        }
    }
    calls
}

/// Bytes of prompt text that differ: each conversation's last call, with the shared system prompt counted once.
pub fn distinct_bytes(calls: &[Call]) -> usize {
    let mut names = std::collections::HashSet::new();
    let mut key = Vec::new();
    for call in calls {
        chain(call.text.as_bytes(), &mut key);
        names.extend(key.iter().copied());
    }
    names.len() * CHUNK
}

type Talk = Vec<(String, String)>;

fn traced() -> Option<Vec<Talk>> {
    let folder = std::env::var("TRIEWAY_TRACES").ok()?;
    let file = std::fs::read(format!("{folder}/tau_bench_airline.json")).ok()?;
    let tasks: serde_json::Value = serde_json::from_slice(&file).expect("the trace is JSON");
    let message = |message: &serde_json::Value| {
        let mut content = message["content"].as_str().unwrap_or("").to_owned();
        if !message["tool_calls"].is_null() {
            content.push_str(&message["tool_calls"].to_string());
        }
        (message["role"].as_str().unwrap_or("").to_owned(), content)
    };
    let talk = |task: &serde_json::Value| task["traj"].as_array().expect("messages").iter().map(message).collect();
    Some(tasks.as_array().expect("tasks").iter().map(talk).collect())
}

/// 200 conversations of 12 turns behind a system prompt of 6 KB, turns of 50 to 1,400 bytes: mean call 11 KB.
fn synthetic() -> Vec<Talk> {
    let mut dice = Dice(7);
    let system = words(&mut dice, 6_150);
    (0..200)
        .map(|_| {
            let mut talk = vec![("system".to_owned(), system.clone())];
            for _ in 0..12 {
                let (asked, answered) = (50 + dice.roll(250), 100 + dice.roll(1_300));
                talk.push(("user".to_owned(), words(&mut dice, asked)));
                talk.push(("assistant".to_owned(), words(&mut dice, answered)));
            }
            talk
        })
        .collect()
}

/// Prompts of `bytes` bytes of which the first 90 % are shared.
pub fn shared_prefix(bytes: usize, count: usize) -> Vec<Call> {
    let mut dice = Dice(11);
    let head = words(&mut dice, bytes * 9 / 10);
    (0..count)
        .map(|at| {
            let tail = words(&mut dice, bytes - head.len());
            Call { text: format!("{head}{tail}"), backend: (at % usize::from(BACKENDS)) as u16 }
        })
        .collect()
}

fn words(dice: &mut Dice, bytes: usize) -> String {
    (0..bytes).map(|_| char::from(b" abcdefghijklmnopqrstuvwxyz"[dice.roll(27)])).collect()
}

/// xorshift64*.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn roll(&mut self, sides: usize) -> usize {
        (self.next() >> 33) as usize % sides
    }
}
