//! HTTP/1.1: bytes to values, and values back to bytes.
//!
//! A head is found and parsed ([`head`]), what decides how its message is carried is settled once ([`framing`]), a
//! chunked body is decoded in place ([`chunked`]), and what goes on is written anew from the parsed fields
//! ([`forward`]); the router's own answers come from [`reply`]. RFC 9110 and 9112 rule; where they leave a choice, the
//! strict one is taken: what two parsers could read in two ways is refused.
//!
//! Must not know: sockets, clocks, threads, backends, prompts.
//!
//! Invariants: nothing is forwarded that was not classified here; no received framing field is ever copied; every
//! function's cost is linear in its input; outputs go into values that the caller owns and reuses, so a request that
//! passes allocates nothing once those have grown.

#![forbid(unsafe_code)]

pub mod authority;
pub mod chunked;
pub mod date;
pub mod fault;
pub mod forward;
pub mod framing;
pub mod head;
pub mod limits;
mod name;
mod parse;
pub mod reply;
mod text;

pub use chunked::ChunkError;
pub use fault::{BadResponse, Reject};
pub use head::{Field, Method, Name, RequestHead, ResponseHead, Span, Version, parse_request, parse_response};
pub use limits::Limits;
