//! What the router holds when nobody talks to it.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::Shared;
use super::wire::{Pace, Wire};

/// It comes to rest within this: limits of its own flags, a drain, and time for a busy machine.
const RESTS_WITHIN: Duration = Duration::from_secs(60);
/// Memory that may stay: the trie by its flag, pools of buffers, what the allocator keeps.
const KEPT_KIB: u64 = 96 << 10;
/// Descriptors of a process that took over and of one that did not may differ by as many.
const KEPT_DESCRIPTORS: usize = 8;
/// A connection that ends is known to an engine within this.
const ENGINES_REST_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Rest {
    pub(super) descriptors: usize,
    pub(super) resident_kib: u64,
}

/// Waits until the router is at rest: at first until its descriptors stay as they are, later until it is back where it was.
pub(super) async fn settled(shared: &Shared, before: Option<&Rest>) -> Rest {
    let began = Instant::now();
    loop {
        sleep(Duration::from_millis(500)).await;
        let now = now(shared);
        let Some(before) = before else {
            if began.elapsed() > Duration::from_secs(2) && page(shared).await.is_some() {
                return now;
            }
            continue;
        };
        let missing = missing(shared, before, &now).await;
        let Some(what) = missing else { return now };
        if began.elapsed() > RESTS_WITHIN {
            shared.violated(format!("not at rest {RESTS_WITHIN:?} after the last client: {what}"));
            return now;
        }
    }
}

fn now(shared: &Shared) -> Rest {
    let router = shared.router.borrow();
    Rest { descriptors: router.descriptors(), resident_kib: router.resident_kib() }
}

/// What is not back where it was.
async fn missing(shared: &Shared, before: &Rest, now: &Rest) -> Option<String> {
    if !shared.router.borrow().is_alive() {
        return Some("the process that served last has ended".to_owned());
    }
    let leaving = shared.router.borrow_mut().leaving();
    if leaving > 0 {
        return Some(format!("{leaving} processes that gave way are still there"));
    }
    let Some(page) = page(shared).await else { return Some("/metrics is not answered".to_owned()) };
    for gauge in ["trieway_in_flight_requests{", "trieway_in_flight_bytes{", "trieway_queue_depth"] {
        if let Some(line) = page.lines().find(|line| line.starts_with(gauge) && !line.ends_with(" 0")) {
            return Some(line.to_owned());
        }
    }
    let bad = |line: &&str| !line.starts_with('#') && line.rsplit(' ').next().and_then(finite).is_none();
    if let Some(line) = page.lines().find(bad) {
        return Some(format!("no number: {line}"));
    }
    if now.descriptors > before.descriptors + KEPT_DESCRIPTORS {
        return Some(format!("{} descriptors, and {} at the beginning", now.descriptors, before.descriptors));
    }
    let (kib, then) = (now.resident_kib, before.resident_kib);
    (kib > then + KEPT_KIB).then(|| format!("{kib} KiB of memory, and {then} KiB at the beginning"))
}

fn finite(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value: &f64| value.is_finite())
}

async fn page(shared: &Shared) -> Option<String> {
    let mut wire = Wire::connect(shared.address).await.ok()?;
    wire.send(b"GET /metrics HTTP/1.1\r\nHost: chaos\r\nConnection: close\r\n\r\n").await;
    let answer = tokio::time::timeout(Duration::from_secs(10), wire.answer(Pace::FAST)).await.ok()?.ok()?;
    (answer.status == 200).then(|| String::from_utf8_lossy(&answer.body).into_owned())
}

/// No engine ever got what is no request, and none works for a client that has gone.
pub(super) async fn check_engines(shared: &Shared) -> Result<(), String> {
    for port in &shared.engines.ports {
        let began = Instant::now();
        while let Some(what) = wrong_at(shared, *port).await? {
            if began.elapsed() > ENGINES_REST_WITHIN {
                shared.violated(what);
                break;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }
    Ok(())
}

async fn wrong_at(shared: &Shared, port: u16) -> Result<Option<String>, String> {
    for name in ["malformed", "running", "waiting"] {
        let count = shared.engines.count(port, name).await?;
        if count > 0 {
            return Ok(Some(format!("engine {port} counts {count} requests that are {name}")));
        }
    }
    Ok(None)
}
