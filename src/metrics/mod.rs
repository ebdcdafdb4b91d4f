//! Counting: what the workers write, what the control plane reads.
//!
//! `shard` holds the counters: one shard a worker, written by that worker alone. `names` has every metric's name once.
//! `render` turns families of samples into Prometheus text.

pub mod names;
pub mod render;
pub mod shard;
