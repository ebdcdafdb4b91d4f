//! The whole of /metrics, from shards and engines filled by hand.

use std::collections::BTreeSet;

use super::engine_stats::EngineStats;
use super::exposition::text;
use super::plane::Plane;
use super::testing::quiet_plane;
use crate::fleet::belief::Lesson;
use crate::metrics::names;
use crate::metrics::shard::{BOUNDS_US, ErrorKind, MATCH_BOUNDS_BYTES, Rejected};
use crate::route::Reason;
use crate::trie::Holder;

const ENGINE: &str = "\
vllm:num_requests_running 3
vllm:num_requests_waiting 1
vllm:kv_cache_usage_perc 0.5
vllm:prefix_cache_hits_total 30
vllm:prefix_cache_queries_total 40
";

/// A plane without tasks: two backends, of which the first has an engine that says all there is to say.
fn filled() -> Plane {
    let plane = quiet_plane("--static-backends http://a:1,http://b:2 --static-models m,m --shadow-policy ttft");
    let mut members = plane.members();
    for slot in 0..2 {
        members.get_mut(slot).expect("a member").addresses.push(([127, 0, 0, 1], 1).into());
    }
    members.publish(plane.shared);
    if let Some(first) = members.get_mut(0) {
        first.engine = Some(EngineStats::parse(ENGINE));
        first.restarts = 2;
    }
    drop(members);
    count(&plane);
    plane
}

fn count(plane: &Plane) {
    let snapshot = plane.shared.fleet.snapshot().load();
    let served = snapshot.served(snapshot.model(b"m"));
    let shard = &plane.shared.shards[0];
    let lane = shard.lane(served.usable[0].lane);
    lane.sent[Reason::Prefix as usize].add(5);
    lane.sent[Reason::Qps as usize].add(2);
    lane.errors[ErrorKind::Connect as usize].add(1);
    lane.errors[ErrorKind::ClientGone as usize].add(1);
    lane.duration[1].observe(2_000_000, &BOUNDS_US);
    lane.duration[1].observe(1_000_000, &BOUNDS_US);
    lane.duration[4].observe(900, &BOUNDS_US);
    lane.first_byte.observe(250_000, &BOUNDS_US);
    lane.gap.observe(20_000, &BOUNDS_US);
    lane.gap.observe(40_000, &BOUNDS_US);
    lane.matched.observe(4096, &MATCH_BOUNDS_BYTES);
    lane.retries.add(1);
    lane.connects.add(3);
    lane.reuses.add(4);
    lane.request_bytes.add(1000);
    lane.response_bytes.add(2000);
    shard.accepted.add(9);
    shard.closed.add(6);
    shard.requests.add(12);
    shard.refused[0].add(2);
    shard.rejected[Rejected::QueueTimeout as usize].add(2);
    shard.rejected[Rejected::KeyLimit as usize].add(1);
    shard.queue_wait.observe(300_000, &BOUNDS_US);
    plane.shared.queued.store(4, std::sync::atomic::Ordering::Relaxed);
    shard.shadow.requests.add(7);
    shard.shadow.agreed.add(4);
    shard.shadow.prompt_bytes.add(5000);
    shard.shadow.matched_bytes.add(3000);
    shard.shadow.shadow_matched_bytes.add(4000);
    let belief = plane.shared.fleet.belief(0);
    belief.count(100, 90);
    let wiped = belief.learn(Lesson { marked: 10, fresh: 10, age: 5000, found: 0 });
    assert!(!wiped, "one miss is no wipe");
    shard.control.add(3);
    shard.thread_id.store(std::process::id() as i32, std::sync::atomic::Ordering::Relaxed);
    let mut begun = plane.shared.fleet.begin(0, 0, 100, 0).expect("no limit");
    begun.first_byte();
    let waiting = plane.shared.fleet.begin(0, 0, 50, 0);
    // They stay in flight.
    std::mem::forget((begun, waiting));
}

/// The name of the metric that a line belongs to: of a sample or of a header.
fn metric(line: &str) -> &str {
    let line = line.strip_prefix("# HELP ").or(line.strip_prefix("# TYPE ")).unwrap_or(line);
    &line[..line.find(['{', ' ']).expect("a name")]
}

#[test]
fn the_text_is_this() {
    // What the kernel and the trie say of themselves is left out.
    let theirs = ["process_", "trieway_worker_cpu", "trieway_trie_"];
    let varies = |line: &str| theirs.iter().any(|prefix| metric(line).starts_with(prefix));
    let text = text(&filled());
    let steady: String = text.lines().filter(|line| !varies(line)).map(|line| format!("{line}\n")).collect();
    let expected = include_str!("testdata/metrics.txt").replace("VERSION", env!("CARGO_PKG_VERSION"));
    assert_eq!(steady, expected, "\n{steady}");
}

#[test]
fn every_name_of_the_table_is_used_and_no_other() {
    let text = text(&filled());
    let used: BTreeSet<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).map(metric).collect();
    let table: BTreeSet<&str> = names::ALL.iter().map(|metric| metric.name).collect();
    assert_eq!(used, table);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = metric(line);
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
        assert!(table.contains(name) || table.contains(family), "{line}");
    }
}

#[test]
fn what_an_engine_does_not_say_has_no_sample() {
    let text = text(&filled());
    let of = |server: &str, name: &str| {
        let begin = format!("{name}{{server=\"{server}\"");
        text.lines().any(|line| line.starts_with(&begin))
    };
    for name in ["vllm:num_requests_waiting", "vllm:gpu_prefix_cache_hit_rate", "trieway_engine_kv_cache_usage_ratio"] {
        assert!(of("http://a:1", name) && !of("http://b:2", name), "{name}");
    }
    assert!(of("http://b:2", "vllm:num_prefill_requests"));
}

#[test]
fn the_trie_counts_what_it_did_not_write_and_what_it_cleared() {
    let plane = quiet_plane("--static-backends http://a:1 --static-models m");
    let trie = &plane.shared.trie;
    let figure = |name: &str| {
        let page = text(&plane);
        let line = page.lines().find(|line| metric(line) == name && !line.starts_with('#'));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).expect("a sample")
    };
    let [void, refused, swept] = ["void_inserts", "refused_inserts", "swept_nodes"]
        .map(|name| move || figure(&format!("trieway_trie_{name}_total")));
    let now = Holder { slot: 0, generation: trie.generation(0) };
    trie.insert(&[1, 2, 3], now);
    assert_eq!([void(), refused(), swept()], [0; 3]);
    let generation = trie.raise(0);
    trie.insert(&[1, 2, 3], now);
    assert_eq!(void(), 1);
    // More ticks than it takes to go through the whole table once.
    (0..1_000).for_each(|_| trie.tick());
    assert_eq!([void(), refused(), swept()], [1, 0, 1]);
    let larger_than_the_trie: Vec<u64> = (1..1 << 20).collect();
    trie.insert(&larger_than_the_trie, Holder { slot: 0, generation });
    assert_eq!([void(), refused(), swept()], [1, 1, 1]);
}
