//! What `--prefix-memory` costs before any prompt has come: nothing that grows with it.

mod support;

use support::Router;

/// Resident memory that a larger trie may add at the start.
const MORE_KIB: u64 = 10 << 10;

/// CPU time that it may add: to fill its table with zeros takes many times as much.
const MORE_CPU_MS: u64 = 300;

struct Started {
    resident_kib: u64,
    cpu_ms: u64,
}

/// A router with this memory for prefixes, right after it has begun to listen.
fn start(prefix_memory: &str) -> Started {
    let backend = ["--static-backends", "http://127.0.0.1:9", "--static-models", "m", "--workers", "2"];
    let router = Router::start(&[&backend[..], &["--prefix-memory", prefix_memory]].concat());
    let at_start = Started { resident_kib: router.peak_resident_kib(), cpu_ms: cpu_ms(router.pid()) };
    assert!(router.metric("trieway_trie_limit_bytes") > 0.0, "it serves");
    at_start
}

/// CPU time of the process, in clock ticks of 10 ms (`proc_pid_stat(5)`, fields 14 and 15).
fn cpu_ms(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("proc");
    let (_, fields) = stat.rsplit_once(") ").expect("a name");
    fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number") * 10).sum()
}

#[test]
fn a_large_trie_costs_neither_memory_nor_time_before_it_is_used() {
    let smallest = start("1MiB");
    for prefix_memory in ["64MiB", "8GiB"] {
        let large = start(prefix_memory);
        assert!(
            large.resident_kib <= smallest.resident_kib + MORE_KIB,
            "{prefix_memory}: {} KiB are resident, and {} with the smallest",
            large.resident_kib,
            smallest.resident_kib
        );
        assert!(
            large.cpu_ms <= smallest.cpu_ms + MORE_CPU_MS,
            "{prefix_memory}: {} ms of CPU time, and {} with the smallest",
            large.cpu_ms,
            smallest.cpu_ms
        );
    }
}
