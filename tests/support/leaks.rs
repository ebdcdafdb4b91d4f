//! What a router has at rest, taken before a test's faults and compared after them: whatever happened, it must be back there.

use std::time::{Duration, Instant};

use super::{Router, eventually};

/// Flags under which a router comes to rest quickly: unused connections to backends do not outlive a moment.
pub const RESTS_SOON: [&str; 2] = ["--upstream-idle-timeout-seconds", "0.2"];

/// Resident memory that may stay behind: pools of buffers and what the allocator keeps of one body of 20 MiB.
const KEPT_KIB: u64 = 96 << 10;

pub struct AtRest {
    descriptors: usize,
    resident_kib: u64,
    trie_bytes: f64,
}

impl AtRest {
    /// Waits until nothing has changed for a while.
    pub fn of(router: &Router) -> Self {
        let trie_bytes = router.metric("trieway_trie_used_bytes");
        let (mut fewest, mut since) = (router.descriptors(), Instant::now());
        while since.elapsed() < Duration::from_millis(500) {
            std::thread::sleep(Duration::from_millis(20));
            let now = router.descriptors();
            if now < fewest {
                (fewest, since) = (now, Instant::now());
            }
        }
        AtRest { descriptors: fewest, resident_kib: router.resident_kib(), trie_bytes }
    }

    /// Every descriptor closed, no load counted, no client open, memory and the trie as before. The test's prompts must be
    /// shorter than a chunk: longer ones leave marks, as they should.
    ///
    /// # Panics
    /// When one of them does not come back.
    pub fn is_back(&self, router: &Router) {
        self.is_back_but_for_marks(router);
        let trie_bytes = router.metric("trieway_trie_used_bytes");
        assert!(trie_bytes <= self.trie_bytes, "the trie held {} bytes and now {trie_bytes}", self.trie_bytes);
    }

    /// The same when prompts have left marks in the trie.
    pub fn is_back_but_for_marks(&self, router: &Router) {
        eventually("no request is counted as in flight", || all_zero(router, "trieway_in_flight_requests{"));
        eventually("no byte is counted as in flight", || all_zero(router, "trieway_in_flight_bytes{"));
        eventually("only the one that asks is open", || open_connections(router) == 1.0);
        eventually("nothing in the trie waits to be freed", || router.metric("trieway_trie_backlog_bytes") == 0.0);
        eventually("all descriptors are closed", || router.descriptors() <= self.descriptors);
        let resident_kib = router.resident_kib();
        assert!(
            resident_kib < self.resident_kib + KEPT_KIB,
            "resident memory was {} KiB and is {resident_kib} KiB",
            self.resident_kib
        );
    }
}

fn all_zero(router: &Router, gauge: &str) -> bool {
    let text = router.get("/metrics").body_text();
    let mut samples = text.lines().filter(|line| line.starts_with(gauge)).peekable();
    assert!(samples.peek().is_some(), "no sample of {gauge}");
    samples.all(|line| line.ends_with(" 0"))
}

/// Open client connections, over all workers.
pub fn open_connections(router: &Router) -> f64 {
    per_worker(router, "trieway_worker_open_connections").iter().sum()
}

/// A metric's samples, one a worker.
pub fn per_worker(router: &Router, metric: &str) -> Vec<f64> {
    let text = router.get("/metrics").body_text();
    let samples = text.lines().filter(|line| line.strip_prefix(metric).is_some_and(|rest| rest.starts_with('{')));
    samples.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect()
}
