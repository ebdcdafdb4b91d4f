//! The router's metrics as Prometheus text: which figure goes under which name.
//!
//! A figure that is not known has no sample. Series of a (server, model) pair begin when a worker counts in it first.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use super::engine_stats::EngineStats;
use super::engines::qps;
use super::figures::{self, TimeBuckets, Totals};
use super::members::Member;
use super::plane::Plane;
use super::process;
use crate::config::Policy;
use crate::fleet::Fleet;
use crate::fleet::belief::{Belief, ENDLESS};
use crate::fleet::snapshot::State;
use crate::metrics::names::{self, Metric};
use crate::metrics::render::{Distribution, Writer};
use crate::metrics::shard::{BOUNDS_US, Counter, ErrorKind, MATCH_BOUNDS_BYTES, Rejected, Shadow, Shard};
use crate::route::Reason;

const CLASS_NAMES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
const REFUSED_NAMES: [&str; 2] = ["4xx", "5xx"];
const MICROSECONDS: f64 = 1e6;

type Pairs<'a> = BTreeMap<(&'a str, &'a str), Totals>;

pub(super) fn text(plane: &Plane) -> String {
    let members = plane.members();
    let pairs = figures::by_pair(&plane.shared.shards, members.lanes());
    let servers = figures::by_server(&pairs);
    let members: Vec<&Member> = members.iter().collect();
    let mut writer = Writer::default();
    backends(&mut writer, plane, &members);
    means(&mut writer, &servers);
    engines(&mut writer, &members);
    ttft(&mut writer, plane, &members);
    shadow(&mut writer, plane);
    requests(&mut writer, &pairs);
    counters(&mut writer, &pairs);
    histograms(&mut writer, &pairs);
    workers(&mut writer, plane);
    overload(&mut writer, plane);
    trie(&mut writer, plane);
    process(&mut writer, plane);
    writer.into_text()
}

fn backends(writer: &mut Writer, plane: &Plane, members: &[&Member]) {
    let load = |member: &Member| plane.shared.fleet.load(member.slot);
    let mut loads = |metric: &'static Metric, figure: fn(&Fleet, u16) -> u64| {
        let mut family = writer.family(metric);
        for member in members {
            family.count(&[&member.name], figure(&plane.shared.fleet, member.slot));
        }
    };
    loads(&names::NUM_PREFILL_REQUESTS, |fleet, slot| fleet.waiting(slot).into());
    loads(&names::NUM_DECODING_REQUESTS, |fleet, slot| fleet.answering(slot).into());
    loads(&names::NUM_REQUESTS_RUNNING, |fleet, slot| fleet.load(slot).in_flight().into());
    loads(&names::IN_FLIGHT_REQUESTS, |fleet, slot| fleet.load(slot).in_flight().into());
    loads(&names::IN_FLIGHT_BYTES, Fleet::in_flight_bytes);
    let mut family = writer.family(&names::CURRENT_QPS);
    for member in members {
        family.value(&[&member.name], qps(plane, member));
    }
    let mut family = writer.family(&names::HEALTHY_PODS_TOTAL);
    for member in members {
        let usable = member.state() == State::Up && !load(member).is_unreachable();
        family.count(&[&member.name], usable.into());
    }
    let mut family = writer.family(&names::BACKEND_STATE);
    for member in members {
        family.count(&[&member.name, member.state().as_str()], 1);
    }
    let mut family = writer.family(&names::BACKEND_RESTARTS_TOTAL);
    for member in members {
        family.count(&[&member.name], member.restarts);
    }
    let outlier = |member: &Member| plane.shared.fleet.outlier(member.slot);
    let mut family = writer.family(&names::BACKEND_EJECTED);
    for member in members {
        family.count(&[&member.name], outlier(member).is_ejected().into());
    }
    let mut family = writer.family(&names::OUTLIER_EJECTIONS_TOTAL);
    for member in members {
        family.count(&[&member.name], outlier(member).ejections());
    }
}

fn means(writer: &mut Writer, servers: &BTreeMap<&str, Totals>) {
    let mut means = |metric: &'static Metric, figure: fn(&Totals) -> Option<f64>| {
        let mut family = writer.family(metric);
        for (server, totals) in servers {
            family.optional(&[server], figure(totals).map(|mean_us| mean_us / MICROSECONDS));
        }
    };
    means(&names::AVG_LATENCY, |totals| totals.answers().mean());
    means(&names::AVG_ITL, |totals| totals.gap.mean());
    means(&names::AVG_DECODING_LENGTH, |totals| {
        // The two means are of slightly different requests while some are in flight: never below zero.
        Some((totals.answers().mean()? - totals.first_byte.mean()?).max(0.0))
    });
}

fn engines(writer: &mut Writer, members: &[&Member]) {
    let mut figures = |metric: &'static Metric, figure: fn(&EngineStats) -> Option<f64>| {
        let mut family = writer.family(metric);
        for member in members {
            family.optional(&[&member.name], member.engine.as_ref().and_then(figure));
        }
    };
    figures(&names::NUM_REQUESTS_WAITING, |engine| engine.waiting);
    figures(&names::ENGINE_RUNNING, |engine| engine.running);
    figures(&names::ENGINE_KV_USAGE, |engine| engine.kv_usage);
    figures(&names::GPU_PREFIX_CACHE_HIT_RATE, EngineStats::hit_rate);
    figures(&names::GPU_PREFIX_CACHE_HITS_TOTAL, |engine| engine.prefix_hits);
    figures(&names::GPU_PREFIX_CACHE_QUERIES_TOTAL, |engine| engine.prefix_queries);
}

/// What `ttft` has learnt; nothing of a backend that it has not been told anything by.
fn ttft(writer: &mut Writer, plane: &Plane, members: &[&Member]) {
    let shared = plane.shared;
    let snapshot = shared.fleet.snapshot().load();
    let routing = &snapshot.rules.routing;
    if ![Some(routing.policy), routing.shadow].contains(&Some(Policy::Ttft)) {
        return;
    }
    let now_ns = shared.micros() * 1000;
    let mut count = |metric: &'static Metric, figure: fn(&Belief) -> u64| {
        let mut family = writer.family(metric);
        for member in members {
            family.count(&[&member.name], figure(shared.fleet.belief(member.slot)));
        }
    };
    count(&names::PREDICTED_CACHED_TOKENS_TOTAL, Belief::predicted_tokens);
    count(&names::REPORTED_CACHED_TOKENS_TOTAL, Belief::reported_tokens);
    let fleet = &shared.fleet;
    let mut figures = |metric: &'static Metric, figure: &dyn Fn(u16) -> Option<f64>| {
        let mut family = writer.family(metric);
        for member in members {
            family.optional(&[&member.name], figure(member.slot));
        }
    };
    figures(&names::PREFILL_QUEUE_SECONDS, &|slot| Some(fleet.prefill(slot).look(now_ns).queue_s));
    figures(&names::PREFILL_BUSY_RATIO, &|slot| Some(fleet.prefill(slot).look(now_ns).busy));
    figures(&names::PREFILL_FACTOR, &|slot| Some(fleet.prefill(slot).learnt_factor()));
    let chunk_bytes = routing.prefix_chunk_bytes as f64;
    let token_bytes = |slot: u16| {
        let (bytes, tokens) = fleet.belief(slot).bytes_and_tokens();
        bytes / tokens
    };
    figures(&names::CACHE_REACH_BYTES, &|slot| {
        let room_bytes = fleet.cache(slot).room_tokens(chunk_bytes / token_bytes(slot)) * token_bytes(slot);
        let learnt = Some(fleet.belief(slot).reach_chunks()).filter(|&chunks| chunks != ENDLESS);
        let learnt_bytes = learnt.map(|chunks| f64::from(chunks) * chunk_bytes);
        if room_bytes.is_finite() { Some(room_bytes.max(0.0)) } else { learnt_bytes }
    });
    figures(&names::TOKEN_BYTES, &|slot| Some(token_bytes(slot)));
}

fn shadow(writer: &mut Writer, plane: &Plane) {
    let Some(policy) = plane.shared.config.routing.shadow else { return };
    let sum = |counter: fn(&Shadow) -> &Counter| -> u64 {
        plane.shared.shards.iter().map(|shard| counter(&shard.shadow).get()).sum()
    };
    let agreed = sum(|shadow| &shadow.agreed);
    let mut family = writer.family(&names::SHADOW_REQUESTS_TOTAL);
    family.count(&[policy.as_str(), "yes"], agreed);
    family.count(&[policy.as_str(), "no"], sum(|shadow| &shadow.requests).saturating_sub(agreed));
    writer.family(&names::SHADOW_PROMPT_BYTES_TOTAL).count(&[], sum(|shadow| &shadow.prompt_bytes));
    let mut family = writer.family(&names::SHADOW_MATCHED_BYTES_TOTAL);
    family.count(&["real"], sum(|shadow| &shadow.matched_bytes));
    family.count(&["shadow"], sum(|shadow| &shadow.shadow_matched_bytes));
}

fn requests(writer: &mut Writer, pairs: &Pairs<'_>) {
    let mut incoming: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for ((_, model), totals) in pairs {
        let (sent, retries) = incoming.entry(model).or_default();
        *sent += totals.sent();
        *retries += totals.retries;
    }
    let mut family = writer.family(&names::NUM_INCOMING_REQUESTS_TOTAL);
    for (model, (sent, retries)) in incoming {
        family.count(&[model], sent.saturating_sub(retries));
    }
    let mut family = writer.family(&names::REQUESTS_TOTAL);
    for ((server, model), totals) in pairs {
        for (reason, sent) in Reason::ALL.iter().zip(totals.sent).filter(|(_, sent)| *sent > 0) {
            family.count(&[server, model, reason.as_str()], sent);
        }
    }
    let mut family = writer.family(&names::REQUEST_ERRORS_TOTAL);
    for ((server, model), totals) in pairs {
        for (kind, errors) in ErrorKind::ALL.iter().zip(totals.errors).filter(|(_, errors)| *errors > 0) {
            family.count(&[server, model, kind.as_str()], errors);
        }
    }
    let mut family = writer.family(&names::RESPONSES_TOTAL);
    for ((server, model), totals) in pairs {
        for (class, duration) in CLASS_NAMES.iter().zip(&totals.duration).filter(|(_, duration)| duration.count() > 0) {
            family.count(&[server, model, class], duration.count());
        }
    }
}

fn counters(writer: &mut Writer, pairs: &Pairs<'_>) {
    let mut counters = |metric: &'static Metric, figure: fn(&Totals) -> u64| {
        let mut family = writer.family(metric);
        for ((server, model), totals) in pairs {
            family.count(&[server, model], figure(totals));
        }
    };
    counters(&names::RETRIES_TOTAL, |totals| totals.retries);
    counters(&names::CLIENT_ABORTS_TOTAL, |totals| totals.errors[ErrorKind::ClientGone as usize]);
    counters(&names::UPSTREAM_CONNECTS_TOTAL, |totals| totals.connects);
    counters(&names::UPSTREAM_REUSES_TOTAL, |totals| totals.reuses);
    counters(&names::REQUEST_BYTES_TOTAL, |totals| totals.request_bytes);
    counters(&names::RESPONSE_BYTES_TOTAL, |totals| totals.response_bytes);
}

fn histograms(writer: &mut Writer, pairs: &Pairs<'_>) {
    let mut family = writer.family(&names::REQUEST_LATENCY_SECONDS);
    for ((server, model), totals) in pairs {
        for (class, duration) in CLASS_NAMES.iter().zip(&totals.duration).filter(|(_, duration)| duration.count() > 0) {
            family.distribution(&[server, model, class], &times(duration));
        }
    }
    let mut distributions = |metric: &'static Metric, figure: fn(&Totals) -> Distribution<'_>| {
        let mut family = writer.family(metric);
        for ((server, model), totals) in pairs {
            family.distribution(&[server, model], &figure(totals));
        }
    };
    distributions(&names::FIRST_BYTE_SECONDS, |totals| times(&totals.first_byte));
    distributions(&names::GAP_SECONDS, |totals| times(&totals.gap));
    distributions(&names::MATCH_BYTES, |totals| Distribution {
        bounds: &MATCH_BOUNDS_BYTES,
        counts: &totals.matched.counts,
        sum: totals.matched.sum,
        units: 1.0,
    });
}

fn times(buckets: &TimeBuckets) -> Distribution<'_> {
    Distribution { bounds: &BOUNDS_US, counts: &buckets.counts, sum: buckets.sum, units: MICROSECONDS }
}

fn workers(writer: &mut Writer, plane: &Plane) {
    let shards = &plane.shared.shards;
    let numbers: Vec<String> = (0..shards.len()).map(|number| number.to_string()).collect();
    let mut per_worker = |metric: &'static Metric, figure: fn(&Shard) -> u64| {
        let mut family = writer.family(metric);
        for (number, shard) in numbers.iter().zip(shards) {
            family.count(&[number], figure(shard));
        }
    };
    per_worker(&names::WORKER_ACCEPTED_TOTAL, |shard| shard.accepted.get());
    per_worker(&names::WORKER_HANDED_OVER_TOTAL, |shard| shard.handed_over.get());
    // Read in this order, a connection that ends in between cannot make the difference negative.
    per_worker(&names::WORKER_OPEN, |shard| {
        let closed = shard.closed.get();
        shard.accepted.get().saturating_sub(closed)
    });
    per_worker(&names::WORKER_REQUESTS_TOTAL, |shard| shard.requests.get());
    per_worker(&names::WORKER_SPLICED_BYTES_TOTAL, |shard| shard.spliced_bytes.get());
    per_worker(&names::WORKER_COALESCED_READS_TOTAL, |shard| shard.beats.get());
    let mut family = writer.family(&names::WORKER_CPU_SECONDS_TOTAL);
    for (number, shard) in numbers.iter().zip(shards) {
        let thread = Some(shard.thread_id.load(Relaxed)).filter(|id| *id != 0);
        family.optional(&[number], thread.and_then(process::thread_cpu_seconds));
    }
    let mut family = writer.family(&names::WORKER_LONGEST_TURN);
    for (number, shard) in numbers.iter().zip(shards) {
        family.value(&[number], shard.longest_turn_us.get() as f64 / 1e6);
    }
    let mut family = writer.family(&names::WORKER_PIPES);
    for (number, shard) in numbers.iter().zip(shards) {
        let busy = shard.pipes_busy.get();
        family.count(&[number, "busy"], busy);
        family.count(&[number, "idle"], shard.pipes_open.get().saturating_sub(busy));
    }
    let sum = |counter: fn(&Shard) -> &Counter| shards.iter().map(|shard| counter(shard).get()).sum();
    let mut family = writer.family(&names::REFUSED_TOTAL);
    family.count(&[REFUSED_NAMES[0]], sum(|shard| &shard.refused[0]));
    family.count(&[REFUSED_NAMES[1]], sum(|shard| &shard.refused[1]));
    writer.family(&names::CONTROL_REQUESTS_TOTAL).count(&[], sum(|shard| &shard.control));
    writer.family(&names::CONTROL_RENDERS_TOTAL).count(&[], plane.renders.load(Relaxed));
    writer.family(&names::PANICS_TOTAL).count(&[], sum(|shard| &shard.panics));
    writer.family(&names::ACCEPT_ERRORS_TOTAL).count(&[], sum(|shard| &shard.accept_errors));
    writer.family(&names::TRIE_LOOKUPS_TOTAL).count(&[], sum(|shard| &shard.lookups));
}

fn overload(writer: &mut Writer, plane: &Plane) {
    let mut family = writer.family(&names::REJECTED_TOTAL);
    for why in Rejected::ALL {
        let rejected = plane.shared.shards.iter().map(|shard| shard.rejected[why as usize].get()).sum();
        family.count(&[why.as_str()], rejected);
    }
    writer.family(&names::QUEUE_DEPTH).count(&[], plane.shared.queued.load(Relaxed) as u64);
    let waits = figures::queue_waits(&plane.shared.shards);
    writer.family(&names::QUEUE_WAIT_SECONDS).distribution(&[], &times(&waits));
}

fn trie(writer: &mut Writer, plane: &Plane) {
    let stats = plane.shared.trie.stats();
    for (metric, value) in [
        (&names::TRIE_USED_BYTES, stats.used_bytes as f64),
        (&names::TRIE_LIMIT_BYTES, stats.limit_bytes as f64),
        (&names::TRIE_BACKLOG_BYTES, stats.backlog_bytes as f64),
        (&names::TRIE_NODES, stats.nodes as f64),
        (&names::TRIE_CHUNKS, stats.chunks as f64),
        (&names::TRIE_INSERTS_TOTAL, stats.inserts as f64),
        (&names::TRIE_VOID_INSERTS_TOTAL, stats.void_inserts as f64),
        (&names::TRIE_REFUSED_INSERTS_TOTAL, stats.refused_inserts as f64),
        (&names::TRIE_EVICTED_NODES_TOTAL, stats.evicted_nodes as f64),
        (&names::TRIE_SWEPT_NODES_TOTAL, stats.swept_nodes as f64),
    ] {
        writer.family(metric).value(&[], value);
    }
}

fn process(writer: &mut Writer, plane: &Plane) {
    let shared = plane.shared;
    let policy = shared.fleet.snapshot().load().rules.routing.policy;
    writer.family(&names::INFO).count(&[env!("CARGO_PKG_VERSION"), shared.io_mode, policy.as_str()], 1);
    writer.family(&names::PROCESS_CPU_SECONDS_TOTAL).optional(&[], process::process_cpu_seconds());
    let resident = process::resident_bytes().map(|bytes| bytes as f64);
    writer.family(&names::PROCESS_RESIDENT_MEMORY_BYTES).optional(&[], resident);
    let open = process::open_descriptors().map(|open| open as f64);
    writer.family(&names::PROCESS_OPEN_FDS).optional(&[], open);
    writer.family(&names::PROCESS_START_TIME_SECONDS).count(&[], plane.started_unix_s);
}
