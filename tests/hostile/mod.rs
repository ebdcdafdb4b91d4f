//! Messages from a grammar of RFC 9112 with faults in it, and what the RFC makes of them. A vector is its seed's alone.

#![allow(unreachable_pub, reason = "a module of one test")]

pub mod grammar;
pub mod requests;
pub mod responses;
pub mod verdict;
