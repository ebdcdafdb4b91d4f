//! The seed of a key's hash chain: what keeps the caches of one engine apart even for the same prompt.
//!
//! Invariant: each part is hashed by itself and chained with its tag, so that no two parts can run into each other.

use super::cursor::{Text, Value};
use super::key::{Endpoint, is_list};
use super::scan::{Field, Scan};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// The engines' own names for what splits their prefix caches: LoRA adapters (SGLang, llama.cpp, TGI), salts (vLLM,
/// SGLang).
const SPLITTERS: [Field; 6] =
    [Field::LoraName, Field::LoraPath, Field::Lora, Field::AdapterId, Field::CacheSalt, Field::ExtraKey];

/// Longer texts are hashed as they stand, whether they have escapes or not.
const MAX_DECODED: usize = 64 << 10;

/// The seed for [`Chunks::start`](super::Chunks::start). `model` is the name after aliases are resolved; an empty or
/// null salt or LoRA name is an absent one.
pub fn namespace(process_seed: u64, model: &[u8], scan: &Scan, body: &[u8], endpoint: Endpoint) -> u64 {
    let kind = [endpoint as u8, u8::from(is_list(endpoint, scan, body))];
    let mut link = xxh3_64_with_seed(&kind, process_seed);
    link = xxh3_64_with_seed(model, link);
    for field in SPLITTERS {
        let Some(value) = scan.field(field, body) else { continue };
        if !matches!(value.raw, b"null" | b"\"\"") {
            link = chain(link, field, value);
        }
    }
    link
}

fn chain(link: u64, field: Field, value: Value<'_>) -> u64 {
    match value.text() {
        Some(text) => text_hash(text, xxh3_64_with_seed(&[field as u8, b's'], link)),
        None => xxh3_64_with_seed(value.raw, xxh3_64_with_seed(&[field as u8, b'r'], link)),
    }
}

/// Hash of the decoded text, unless it is long.
pub(super) fn text_hash(text: Text<'_>, seed: u64) -> u64 {
    if !text.escaped || text.raw.len() > MAX_DECODED {
        return xxh3_64_with_seed(text.raw, seed);
    }
    let mut hasher = Xxh3::with_seed(seed);
    text.decode(|piece| hasher.update(piece));
    hasher.digest()
}
