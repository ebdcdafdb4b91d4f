//! The rooms under test, built from their sources alone: Dynamo's router pins an older tokio than the product needs, so
//! the two could not be linked as packages. The rooms are pure, so nothing else of the crate is missed.

#[path = "../src/prompt/mod.rs"]
pub mod prompt;
#[path = "../src/trie/mod.rs"]
pub mod trie;
