//! Request body → prompt key: which bytes decide what the engine computes, as chained chunk hashes.
//!
//! `Scan` checks the body once and remembers where the top-level values stand; `namespace` seeds the hash chain with
//! what no two engines' caches share (model, LoRA, salt, kind of prompt); `key` feeds the prompt to `Chunks` in the
//! engine's own order. Nothing is copied but what has escapes or crosses a chunk border, and nothing is allocated once the
//! caller's `Scan` and `Chunks` have grown to the size of its traffic.
//!
//! All of it is hashed with a secret of the deployment (`secret`).
//!
//! **Must not know** sockets, clocks, the trie, models or backends: bytes in, hashes out.
//!
//! **Invariants.** Time is linear in the body whatever its content, the scan can be made in steps, and the key takes a bounded
//! amount of work beside the hashing; depth of nesting costs no stack. A key is never an
//! error: content that nobody can key adds nothing, and a body that is not JSON has no key at all. Turn n + 1 of a
//! conversation extends the key of turn n.

mod block;
mod chunks;
mod cursor;
mod digits;
mod escape;
mod grammar;
mod hash;
mod key;
mod message;
mod namespace;
#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable;
mod scan;
mod secret;
#[cfg(target_arch = "x86_64")]
mod simd;
mod strings;
mod writer;

pub use chunks::{Chunks, DEFAULT_CHUNK_BYTES, MIN_CHUNK_BYTES};
pub use key::{Endpoint, key};
pub use namespace::namespace;
pub use scan::{NotObject, Progress, Scan};
pub use secret::{HashKeys, HashSeed, UNKEYED};
