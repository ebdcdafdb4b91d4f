//! A request's body as the engine sees it: the prompt's canonical text, cut into hashed blocks, and the wishes for the answer.
//!
//! Canonical text: the tools, then `<|role|>` line and content of each message, then the assistant's opening. The answer
//! continues it, and the next turn of the conversation begins with both, as under a real chat template. A token is four
//! bytes of it.
//!
//! Must not know: HTTP, time.

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub(crate) const TOKEN_BYTES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Chat,
    Completion,
    Embedding,
}

#[derive(Debug)]
pub(crate) struct Prompt {
    /// Empty: the body names none.
    pub(crate) model: String,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) max_tokens: Option<u64>,
    pub(crate) tokens: usize,
    /// The hashes of the whole blocks, each naming all that comes before it too.
    pub(crate) hashes: Vec<u64>,
    /// Where the chain stands: the last hash and the text behind the last whole block.
    pub(crate) chain: Chain,
}

/// Reads a request body. Err: why it is not one, for a 400.
pub(crate) fn read(body: &[u8], kind: Kind, block_tokens: usize) -> Result<Prompt, String> {
    let value: Value = serde_json::from_slice(body).map_err(|error| format!("the body is not JSON: {error}"))?;
    let Value::Object(fields) = &value else { return Err("the body is not a JSON object".into()) };
    let text_of = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
    let count_of = |name: &str| fields.get(name).and_then(Value::as_u64);
    let mut text = Vec::with_capacity(body.len());
    match kind {
        Kind::Chat => chat(fields, &mut text)?,
        Kind::Completion => plain(fields.get("prompt").ok_or("prompt is missing")?, &mut text),
        Kind::Embedding => plain(fields.get("input").ok_or("input is missing")?, &mut text),
    }
    if text.is_empty() {
        return Err("the prompt is empty".into());
    }
    let model = text_of("model");
    let mut chain = Chain::new(model, text_of("cache_salt"), block_tokens);
    let mut hashes = Vec::with_capacity(text.len() / (block_tokens * TOKEN_BYTES));
    chain.extend(&text, &mut hashes);
    Ok(Prompt {
        model: model.to_owned(),
        stream: fields.get("stream").and_then(Value::as_bool).unwrap_or(false),
        include_usage: value.pointer("/stream_options/include_usage").and_then(Value::as_bool).unwrap_or(false),
        max_tokens: count_of("max_completion_tokens").or_else(|| count_of("max_tokens")),
        tokens: text.len().div_ceil(TOKEN_BYTES),
        hashes,
        chain,
    })
}

fn chat(fields: &serde_json::Map<String, Value>, text: &mut Vec<u8>) -> Result<(), String> {
    let messages = fields.get("messages").and_then(Value::as_array).ok_or("messages is missing or not a list")?;
    if let Some(tools) = fields.get("tools").filter(|tools| !tools.is_null()) {
        text.extend_from_slice(tools.to_string().as_bytes());
    }
    for message in messages {
        open(message.get("role").and_then(Value::as_str).unwrap_or_default(), text);
        match message.get("content") {
            None | Some(Value::Null) => {}
            Some(Value::String(content)) => text.extend_from_slice(content.as_bytes()),
            Some(Value::Array(parts)) => {
                for part in parts {
                    match part.get("text").and_then(Value::as_str) {
                        Some(content) => text.extend_from_slice(content.as_bytes()),
                        None => text.extend_from_slice(part.to_string().as_bytes()),
                    }
                }
            }
            Some(_) => return Err("content is neither text nor a list of parts".into()),
        }
        if let Some(calls) = message.get("tool_calls").filter(|calls| !calls.is_null()) {
            text.extend_from_slice(calls.to_string().as_bytes());
        }
        text.extend_from_slice(b"<|end|>\n");
    }
    open("assistant", text);
    Ok(())
}

fn open(role: &str, text: &mut Vec<u8>) {
    text.extend_from_slice(b"<|");
    text.extend_from_slice(role.as_bytes());
    text.extend_from_slice(b"|>\n");
}

/// A string, a list of strings, token ids, or lists of those.
fn plain(value: &Value, text: &mut Vec<u8>) {
    match value {
        Value::String(content) => text.extend_from_slice(content.as_bytes()),
        Value::Number(id) => text.extend_from_slice(&(id.as_u64().unwrap_or(0) as u32).to_le_bytes()),
        Value::Array(items) => items.iter().for_each(|item| plain(item, text)),
        _ => {}
    }
}

/// Text cut into blocks of which each hash continues the one before.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    hash: u64,
    /// What fills no block yet.
    rest: Vec<u8>,
    block_bytes: usize,
}

impl Chain {
    fn new(model: &str, salt: &str, block_tokens: usize) -> Self {
        let seed = xxh3_64_with_seed(salt.as_bytes(), xxh3_64_with_seed(model.as_bytes(), 0));
        Self { hash: seed, rest: Vec::new(), block_bytes: block_tokens * TOKEN_BYTES }
    }

    /// Appends text; the hashes of the blocks that it completes go to `hashes`.
    pub(crate) fn extend(&mut self, mut text: &[u8], hashes: &mut Vec<u64>) {
        if !self.rest.is_empty() {
            let wanted = (self.block_bytes - self.rest.len()).min(text.len());
            self.rest.extend_from_slice(&text[..wanted]);
            text = &text[wanted..];
            if self.rest.len() < self.block_bytes {
                return;
            }
            self.hash = xxh3_64_with_seed(&self.rest, self.hash);
            hashes.push(self.hash);
            self.rest.clear();
        }
        let mut blocks = text.chunks_exact(self.block_bytes);
        for block in &mut blocks {
            self.hash = xxh3_64_with_seed(block, self.hash);
            hashes.push(self.hash);
        }
        self.rest.extend_from_slice(blocks.remainder());
    }

    /// How much text has filled no block.
    pub(crate) fn rest_bytes(&self) -> usize {
        self.rest.len()
    }

    /// A number that depends on everything in the chain.
    pub(crate) fn digest(&self) -> u64 {
        xxh3_64_with_seed(&self.rest, self.hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat_of(body: &str) -> Prompt {
        read(body.as_bytes(), Kind::Chat, 16).unwrap()
    }

    #[test]
    fn a_next_turn_continues_prompt_and_answer() {
        let long = "x".repeat(1000);
        let first = chat_of(&format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{long}"}}]}}"#));
        let mut known = first.hashes.clone();
        let mut chain = first.chain.clone();
        chain.extend(&b"the answer ".repeat(20), &mut known);
        let answer = "the answer ".repeat(20);
        let second = chat_of(&format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":[{{"type":"text","text":"{long}"}}]}},
               {{"role":"assistant","content":"{answer}"}},{{"role":"user","content":"and?"}}]}}"#
        ));
        assert!(known.len() > first.hashes.len() + 2);
        assert_eq!(second.hashes[..known.len()], known);
    }

    #[test]
    fn model_and_salt_keep_prompts_apart() {
        let body =
            |extra: &str| format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]{extra}}}"#, "y".repeat(200));
        let plain = chat_of(&body(""));
        for extra in [r#","model":"n""#, r#","cache_salt":"s""#, r#","tools":[{"a":1}]"#] {
            assert_ne!(chat_of(&body(extra)).hashes[0], plain.hashes[0], "{extra}");
        }
        assert_eq!(chat_of(&body(r#","temperature":1"#)).hashes, plain.hashes);
    }

    #[test]
    fn tokens_are_four_bytes_and_token_ids_one_each() {
        let count = |body: &str| read(body.as_bytes(), Kind::Completion, 16).unwrap().tokens;
        assert_eq!(count(r#"{"prompt":"abcdefghi"}"#), 3);
        assert_eq!(count(r#"{"prompt":[1,2,3]}"#), 3);
        assert_eq!(count(r#"{"prompt":[[1,2],[3,4]]}"#), 4);
    }

    #[test]
    fn a_chain_does_not_care_how_its_text_comes() {
        let text: Vec<u8> = (0..500u32).map(|n| (n % 251) as u8).collect();
        let mut whole = Vec::new();
        let mut chain = Chain::new("m", "", 16);
        chain.extend(&text, &mut whole);
        assert_eq!(whole.len(), 500 / 64);
        for cut in 0..text.len() {
            let mut parts = Vec::new();
            let mut pieces = Chain::new("m", "", 16);
            pieces.extend(&text[..cut], &mut parts);
            pieces.extend(&text[cut..], &mut parts);
            assert_eq!((parts, pieces.digest()), (whole.clone(), chain.digest()));
        }
    }
}
