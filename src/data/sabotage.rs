//! Panics on demand, so that tests can see what one costs.
//!
//! It exists in builds with debug assertions alone, and acts there only when the process was started with
//! `TRIEWAY_TEST_PANICS` set. In a release build there is nothing to be asked.

use crate::http::head::RequestHead;

/// Panics when the request's `X-Test-Panic` names this point of its way.
#[cfg(debug_assertions)]
pub(super) fn strike(point: &str, request: &RequestHead, head: &[u8]) {
    static ARMED: std::sync::LazyLock<bool> =
        std::sync::LazyLock::new(|| std::env::var_os("TRIEWAY_TEST_PANICS").is_some());
    if *ARMED && request.field(head, "x-test-panic") == Some(point.as_bytes()) {
        panic!("a test asked for this panic at '{point}'");
    }
}

#[cfg(not(debug_assertions))]
#[inline(always)]
pub(super) fn strike(_: &str, _: &RequestHead, _: &[u8]) {}
