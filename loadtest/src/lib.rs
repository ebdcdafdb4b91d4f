//! Tools that stand on both sides of an LLM router.
//!
//! - [`engine`]: fake engines that speak OpenAI's API, keep a real block prefix cache and misbehave on demand.
//! - [`load`]: an open-loop client that replays conversations and reports what they met.
//! - [`events`]: streams of stamped events, and what a proxy does to each.
//! - [`compare`]: such reports side by side.
//! - [`plot`]: the figures of `scripts/bench` as a picture.
//! - [`chaos`]: faults from both sides, and whether the router keeps its promises meanwhile.
//!
//! All but the last know nothing of the router: whatever they show about it, they show of any HTTP proxy in its place.

pub mod chaos;
pub mod compare;
pub mod engine;
pub mod events;
pub mod load;
pub mod plot;
