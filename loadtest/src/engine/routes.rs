//! The paths that an engine answers at once, without generating: models, health, metrics, sleep and the test's own doors.
//!
//! Must not know: connections, time.

use serde_json::{Value, json};

use super::Engine;
use super::http::{Head, Method};
use super::journal::unix_s;
use super::prompt::{self, Kind};

/// An answer that is complete from the start.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn json(value: &Value) -> Self {
        Self { status: 200, content_type: "application/json", body: value.to_string() }
    }

    pub(crate) fn error(status: u16, kind: &str, message: &str) -> Self {
        let body = json!({"error": {"message": message, "type": kind, "param": null, "code": status}});
        Self { status, content_type: "application/json", body: body.to_string() }
    }

    fn empty() -> Self {
        Self { status: 200, content_type: "text/plain; charset=utf-8", body: String::new() }
    }
}

/// Other paths of an engine that take a POST: answered with what came in, so that a router's every path can be tried.
const ECHOED: &[&str] = &[
    "/v1/responses",
    "/v1/messages",
    "/v1/rerank",
    "/rerank",
    "/v1/score",
    "/score",
    "/tokenize",
    "/detokenize",
    "/pooling",
    "/classify",
    "/generate",
];

/// Whether the path generates; Some: of which kind.
pub(crate) fn generates(head: &Head) -> Option<Kind> {
    match (head.method, head.path()) {
        (Method::Post, "/v1/chat/completions") => Some(Kind::Chat),
        (Method::Post, "/v1/completions") => Some(Kind::Completion),
        _ => None,
    }
}

/// Answers everything that does not generate.
pub(crate) fn reply(engine: &mut Engine, head: &Head, body: &[u8]) -> Reply {
    match (head.method, head.path()) {
        (Method::Post, "/v1/embeddings") => embeddings(engine, body),
        (Method::Get | Method::Head, "/health" | "/ping") => Reply::empty(),
        (Method::Get | Method::Head, "/v1/models") => models(engine),
        (Method::Get | Method::Head, "/metrics") => {
            let content_type = "text/plain; version=0.0.4; charset=utf-8";
            Reply { status: 200, content_type, body: engine.metrics_page() }
        }
        (Method::Get | Method::Head, "/version") => Reply::json(&json!({"version": env!("CARGO_PKG_VERSION")})),
        (Method::Get, "/is_sleeping") => Reply::json(&json!({"is_sleeping": engine.asleep})),
        (Method::Post, "/sleep") => {
            engine.asleep = true;
            Reply::empty()
        }
        (Method::Post, "/wake_up") => {
            engine.asleep = false;
            Reply::empty()
        }
        (_, path) if path.starts_with("/debug/") => debug(engine, head),
        (Method::Post, path) if ECHOED.contains(&path) => echo(engine, head, body),
        (_, path) => Reply::error(404, "NotFoundError", &format!("no such path: {path}")),
    }
}

fn models(engine: &Engine) -> Reply {
    let data: Vec<Value> = engine
        .options
        .model
        .iter()
        .map(|id| {
            let longest = engine.options.kv_tokens;
            json!({"id": id, "object": "model", "created": engine.started_unix_s as u64, "owned_by": "vllm", "root": id,
                   "parent": null, "max_model_len": longest})
        })
        .collect();
    Reply::json(&json!({"object": "list", "data": data}))
}

fn embeddings(engine: &mut Engine, body: &[u8]) -> Reply {
    let prompt = match prompt::read(body, Kind::Embedding, engine.options.block_tokens) {
        Ok(prompt) => prompt,
        Err(message) => return Reply::error(400, "BadRequestError", &message),
    };
    let model = match engine.model_for(&prompt.model) {
        Ok(model) => model.to_owned(),
        Err(reply) => return *reply,
    };
    let digest = prompt.chain.digest();
    let vector: Vec<f64> = (0..8).map(|n| ((digest >> (n * 8)) & 0xff) as f64 / 256.0).collect();
    engine.counters.prompt_tokens += prompt.tokens as u64;
    engine.counters.finished += 1;
    Reply::json(&json!({
        "object": "list", "model": model, "data": [{"object": "embedding", "index": 0, "embedding": vector}],
        "usage": {"prompt_tokens": prompt.tokens, "total_tokens": prompt.tokens},
    }))
}

fn echo(engine: &Engine, head: &Head, body: &[u8]) -> Reply {
    let hash = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(body));
    Reply::json(&json!({
        "object": "echo", "path": head.path(), "engine": engine.port, "tag": head.tag, "body_bytes": body.len(),
        "body_xxh3": hash,
    }))
}

fn debug(engine: &mut Engine, head: &Head) -> Reply {
    match (head.method, head.path()) {
        (Method::Get, "/debug/requests") => {
            let (running, waiting) = (engine.scheduler.running(), engine.scheduler.waiting());
            Reply::json(&engine.journal.render(running, waiting, engine.scheduler.cache.evictions))
        }
        (Method::Post, "/debug/reset") => {
            engine.scheduler.cache.wipe();
            Reply::empty()
        }
        (Method::Post, "/debug/restart") => {
            engine.scheduler.cache.wipe();
            engine.counters = Default::default();
            engine.started_unix_s = unix_s();
            engine.asleep = false;
            Reply::empty()
        }
        (Method::Post, "/debug/fault") => {
            let wanted = match head.query("set") {
                None | Some("none") => Ok(None),
                Some(text) => text.parse().map(Some),
            };
            let port = head.query("port").map_or(Ok(engine.port), str::parse);
            match (wanted, port) {
                (Ok(fault), Ok(port)) if engine.siblings.contains(&port) => {
                    engine.fault_orders.push((port, fault));
                    Reply::empty()
                }
                (Err(message), _) => Reply::error(400, "BadRequestError", &message),
                _ => Reply::error(404, "NotFoundError", "no engine with this port in this thread"),
            }
        }
        _ => Reply::error(404, "NotFoundError", "the debug paths: GET requests; POST reset, restart, fault"),
    }
}
