//! The room `trie`, and nothing else of the crate.

#[allow(dead_code)]
#[path = "../../src/trie/mod.rs"]
pub mod trie;
