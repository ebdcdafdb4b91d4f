//! How good is a routing policy? Recorded traffic over a model of engines, the router's own code and its rivals' algorithms
//! in the middle, on a simulated clock.
//!
//! `trace` is the traffic, `engine` (with `sequence` and `pool`) the engines, `router` one router with the product's parts or
//! one of the `rivals`, `world` a run, `stats`, `report` and `plot` what comes out. A run is a function of its seed.

pub mod engine;
pub mod plot;
pub mod policy;
pub mod pool;
pub mod random;
pub mod report;
pub mod rivals;
pub mod router;
pub mod sequence;
pub mod stats;
pub mod trace;
pub mod view;
pub mod world;
