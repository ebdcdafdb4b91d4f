//! Request bodies and what their keys must have in common, case by case.

use trieway::prompt::{Chunks, Endpoint, Scan, key, namespace};

const CHUNK_BYTES: usize = 16;

/// The key of one body, its namespace included.
fn key_of(endpoint: Endpoint, body: &str) -> Vec<u64> {
    let mut scan = Scan::default();
    scan.read(body.as_bytes()).unwrap_or_else(|fault| panic!("{fault}: {body}"));
    let mut scratch = Vec::new();
    let model = scan.model(body.as_bytes(), &mut scratch).unwrap_or_default();
    let mut chunks = Chunks::new(CHUNK_BYTES);
    chunks.start(namespace(1, model, &scan, body.as_bytes(), endpoint));
    key(endpoint, &scan, body.as_bytes(), &mut chunks);
    chunks.key().to_vec()
}

#[test]
fn a_string_prompt_is_keyed_by_its_bytes_alone() {
    let text = "x".repeat(40);
    assert_eq!(key_of(Endpoint::Completions, &format!(r#"{{"prompt":"{text}"}}"#)).len(), 2);
}
