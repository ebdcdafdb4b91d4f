//! Trieway: a prefix-aware router for LLM inference.
//!
//! A request goes through the rooms of this crate from the left to the right:
//!
//! ```text
//! data (sockets) → http (bytes → head, framing) → prompt (body → key) → trie (key → who holds it) → route (which backend)
//! ```
//!
//! `control` is the second plane: health, models, metrics, signals. `shared`, with `fleet` and `metrics`, is the plain state
//! in which the two planes meet. `top` is a program of its own: it looks at a running router from outside.
//!
//! **Layer rule.** Imports go only downwards: `main` → `control`, `data` → `shared` → `fleet`, `metrics` → `route`, `trie`,
//! `prompt`, `http` → `config`, std. `http`, `prompt`, `trie` and `route` know no sockets, no clock and no sibling.
//! `tests/tidy.rs` checks it.

pub mod config;
pub mod control;
pub mod data;
pub mod fleet;
pub mod http;
pub mod metrics;
pub mod prompt;
pub mod route;
pub mod shared;
#[cfg(feature = "top")]
pub mod top;
pub mod trie;
