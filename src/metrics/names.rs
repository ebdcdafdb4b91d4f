//! Every metric's name, once, with its type, its labels and its help.
//!
//! Dashboards and documents are held against [`ALL`]. Names that begin with `vllm:` are those of the production stack's
//! router, so that its boards keep working; `process_` is Prometheus' own convention; all others begin with `trieway_`.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

#[derive(Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    /// In the order in which the values are given.
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

macro_rules! metrics {
    ($($constant:ident $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(pub static $constant: Metric = Metric { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };)*

        /// All of them.
        pub static ALL: &[&Metric] = &[$(&$constant),*];
    };
}

metrics! {
    CURRENT_QPS Gauge "vllm:current_qps" ["server"]
        "Requests a second sent to the backend, over --request-stats-window.";
    NUM_PREFILL_REQUESTS Gauge "vllm:num_prefill_requests" ["server"]
        "Requests sent to the backend whose answer has not begun.";
    NUM_DECODING_REQUESTS Gauge "vllm:num_decoding_requests" ["server"]
        "Requests whose answer has begun and not ended.";
    NUM_REQUESTS_RUNNING Gauge "vllm:num_requests_running" ["server"]
        "Requests of this router that the backend has not answered in full.";
    NUM_REQUESTS_WAITING Gauge "vllm:num_requests_waiting" ["server"]
        "Requests in the engine's own queue, as the engine says.";
    AVG_LATENCY Gauge "vllm:avg_latency" ["server"]
        "Mean seconds from a request's head to the end of its answer, since the router's start.";
    AVG_ITL Gauge "vllm:avg_itl" ["server"]
        "Mean seconds between two reads of a streamed answer, since the router's start.";
    AVG_DECODING_LENGTH Gauge "vllm:avg_decoding_length" ["server"]
        "Mean latency less the mean time to the first byte: seconds of decoding, since the router's start.";
    HEALTHY_PODS_TOTAL Gauge "vllm:healthy_pods_total" ["server"]
        "1 when the backend takes requests, else 0.";
    GPU_PREFIX_CACHE_HIT_RATE Gauge "vllm:gpu_prefix_cache_hit_rate" ["server"]
        "Share of prompt tokens that the engine found in its prefix cache, since the engine's start.";
    GPU_PREFIX_CACHE_HITS_TOTAL Counter "vllm:gpu_prefix_cache_hits_total" ["server"]
        "Prompt tokens that the engine found in its prefix cache, as the engine says.";
    GPU_PREFIX_CACHE_QUERIES_TOTAL Counter "vllm:gpu_prefix_cache_queries_total" ["server"]
        "Prompt tokens that the engine looked up in its prefix cache, as the engine says.";
    NUM_INCOMING_REQUESTS_TOTAL Counter "vllm:num_incoming_requests_total" ["model"]
        "Requests that were sent to a backend, by the model's own name; a request that was tried again counts once.";
    REQUEST_ERRORS_TOTAL Counter "vllm:request_errors_total" ["server", "model", "error_type"]
        "Requests that failed, by what went wrong.";
    REQUEST_LATENCY_SECONDS Histogram "vllm:request_latency_seconds" ["server", "model", "status"]
        "Seconds from a request's head to the end of its answer; status is the class, such as 2xx.";

    REQUESTS_TOTAL Counter "trieway_requests_total" ["server", "model", "reason"]
        "Requests sent to the backend, every attempt, by the reason of the choice.";
    RESPONSES_TOTAL Counter "trieway_responses_total" ["server", "model", "status"]
        "Answers relayed to their end, by status class.";
    FIRST_BYTE_SECONDS Histogram "trieway_time_to_first_byte_seconds" ["server", "model"]
        "Seconds from sending a request to the first byte of its answer.";
    GAP_SECONDS Histogram "trieway_inter_chunk_gap_seconds" ["server", "model"]
        "Seconds between two reads of a streamed answer.";
    MATCH_BYTES Histogram "trieway_match_length_bytes" ["server", "model"]
        "Bytes of the prompt that the chosen backend was believed to hold.";
    RETRIES_TOTAL Counter "trieway_retries_total" ["server", "model"]
        "Requests tried again because they provably were not started.";
    CLIENT_ABORTS_TOTAL Counter "trieway_client_aborts_total" ["server", "model"]
        "Requests whose client left before the end of the answer.";
    UPSTREAM_CONNECTS_TOTAL Counter "trieway_upstream_connects_total" ["server", "model"]
        "Connections opened to the backend.";
    UPSTREAM_REUSES_TOTAL Counter "trieway_upstream_reuses_total" ["server", "model"]
        "Requests sent on a connection that was open already.";
    REQUEST_BYTES_TOTAL Counter "trieway_request_bytes_total" ["server", "model"]
        "Body bytes sent to the backend.";
    RESPONSE_BYTES_TOTAL Counter "trieway_response_bytes_total" ["server", "model"]
        "Body bytes received from the backend.";
    IN_FLIGHT_REQUESTS Gauge "trieway_in_flight_requests" ["server"]
        "Requests sent to the backend and not answered in full.";
    IN_FLIGHT_BYTES Gauge "trieway_in_flight_bytes" ["server"]
        "Body bytes of the requests in flight; images and the like count as the prompt text that they cost.";
    BACKEND_STATE Gauge "trieway_backend_state" ["server", "state"]
        "1 for the state that the backend is in: unknown, up, down, sleeping or draining.";
    BACKEND_RESTARTS_TOTAL Counter "trieway_backend_restarts_total" ["server"]
        "Restarts of the engine that were noticed; its prefixes are forgotten then.";
    BACKEND_EJECTED Gauge "trieway_backend_ejected" ["server"]
        "1 while the backend is ejected because its requests failed, until some have found it well again; else 0.";
    OUTLIER_EJECTIONS_TOTAL Counter "trieway_outlier_ejections_total" ["server"]
        "Ejections of the backend because its requests failed, one after another.";
    ENGINE_RUNNING Gauge "trieway_engine_requests_running" ["server"]
        "Requests that the engine computes, as the engine says.";
    ENGINE_KV_USAGE Gauge "trieway_engine_kv_cache_usage_ratio" ["server"]
        "Share of the engine's KV cache in use, as the engine says.";

    PREDICTED_CACHED_TOKENS_TOTAL Counter "trieway_predicted_cached_tokens_total" ["server"]
        "Prompt tokens that ttft believed to be in the backend's cache, of requests whose answers say what was.";
    REPORTED_CACHED_TOKENS_TOTAL Counter "trieway_reported_cached_tokens_total" ["server"]
        "Prompt tokens of the same requests that were in the backend's cache, as its answers say.";
    PREFILL_QUEUE_SECONDS Gauge "trieway_prefill_queue_seconds" ["server"]
        "Seconds that ttft expects a request sent now to wait for those before it.";
    PREFILL_BUSY_RATIO Gauge "trieway_prefill_busy_ratio" ["server"]
        "Share of its time that the backend spends on prompts, as ttft expects.";
    PREFILL_FACTOR Gauge "trieway_prefill_time_factor" ["server"]
        "How many times longer the backend computes than the --ttft flags say, as learnt from first tokens and whole answers.";
    CACHE_REACH_BYTES Gauge "trieway_cache_reach_bytes" ["server"]
        "Prompt bytes that the backend's cache keeps beside what runs: by the capacity that it tells, or as learnt from its answers.";
    TOKEN_BYTES Gauge "trieway_prompt_bytes_per_token" ["server"]
        "Bytes of prompt a token, as learnt from the backend's answers.";
    SHADOW_REQUESTS_TOTAL Counter "trieway_shadow_requests_total" ["policy", "agreed"]
        "Choices that --shadow-policy was asked for as well; agreed: both chose the same backend.";
    SHADOW_PROMPT_BYTES_TOTAL Counter "trieway_shadow_prompt_bytes_total" []
        "Prompt bytes of those requests.";
    SHADOW_MATCHED_BYTES_TOTAL Counter "trieway_shadow_matched_bytes_total" ["choice"]
        "Those of them that the backend of the real choice, and of the shadow's, was believed to hold.";

    WORKER_ACCEPTED_TOTAL Counter "trieway_worker_accepted_connections_total" ["worker"]
        "Client connections accepted.";
    WORKER_HANDED_OVER_TOTAL Counter "trieway_worker_handed_over_connections_total" ["worker"]
        "Client connections that the worker took off its queue and gave to another worker, which had clearly fewer.";
    WORKER_OPEN Gauge "trieway_worker_open_connections" ["worker"]
        "Client connections that are open.";
    WORKER_REQUESTS_TOTAL Counter "trieway_worker_requests_total" ["worker"]
        "Requests whose head was read, wherever they went.";
    WORKER_CPU_SECONDS_TOTAL Counter "trieway_worker_cpu_seconds_total" ["worker"]
        "CPU time of the worker's thread.";
    WORKER_LONGEST_TURN Gauge "trieway_worker_longest_turn_seconds" ["worker"]
        "The longest that the worker's tick was kept waiting by the worker's own work in the last half minute or more.";
    WORKER_SPLICED_BYTES_TOTAL Counter "trieway_worker_spliced_bytes_total" ["worker"]
        "Body bytes that went from a backend to a client by splice, without a copy.";
    WORKER_COALESCED_READS_TOTAL Counter "trieway_worker_coalesced_reads_total" ["worker"]
        "Reads of streams that waited a millisecond first, because events came faster than that.";
    WORKER_PIPES Gauge "trieway_worker_splice_pipes" ["worker", "state"]
        "Pipes for splicing: busy with an answer, or idle in the pool.";
    REFUSED_TOTAL Counter "trieway_refused_requests_total" ["status"]
        "Requests that the router answered with an error of its own, by status class.";
    REJECTED_TOTAL Counter "trieway_rejected_requests_total" ["reason"]
        "Refused requests that were turned away because of load: queue_full, queue_timeout, key_limit, control_limit or buffered_bytes.";
    QUEUE_DEPTH Gauge "trieway_queue_depth" []
        "Requests that wait for a backend to get below --max-inflight, or that ttft holds until one has computed others.";
    QUEUE_WAIT_SECONDS Histogram "trieway_queue_wait_seconds" []
        "Seconds that requests waited so, of those that had to wait, however the wait ended.";
    CONTROL_REQUESTS_TOTAL Counter "trieway_control_requests_total" []
        "Requests for the router's own paths: probes, pages such as /metrics, and calls to a named backend.";
    CONTROL_RENDERS_TOTAL Counter "trieway_control_renders_total" []
        "Times that /metrics, /engines or /v1/models was written out; who asks meanwhile shares the next one.";
    PANICS_TOTAL Counter "trieway_panics_total" []
        "Connections that ended by a fault in their code.";
    ACCEPT_ERRORS_TOTAL Counter "trieway_accept_errors_total" []
        "Connections that could not be accepted.";

    TRIE_LOOKUPS_TOTAL Counter "trieway_trie_lookups_total" []
        "Prompts that were looked up in the trie: one or two a request, however long it waits.";
    TRIE_USED_BYTES Gauge "trieway_trie_used_bytes" []
        "Memory of the prefix trie, with what waits for reclamation.";
    TRIE_LIMIT_BYTES Gauge "trieway_trie_limit_bytes" []
        "The bound on it: --prefix-memory.";
    TRIE_BACKLOG_BYTES Gauge "trieway_trie_backlog_bytes" []
        "The part of it that waits for reclamation.";
    TRIE_NODES Gauge "trieway_trie_nodes" []
        "Runs of chunks in the trie.";
    TRIE_CHUNKS Gauge "trieway_trie_chunks" []
        "Chunks in the trie.";
    TRIE_INSERTS_TOTAL Counter "trieway_trie_inserts_total" []
        "Prompts inserted.";
    TRIE_VOID_INSERTS_TOTAL Counter "trieway_trie_void_inserts_total" []
        "Inserts for a backend that was removed or restarted since it was chosen; they did nothing.";
    TRIE_REFUSED_INSERTS_TOTAL Counter "trieway_trie_refused_inserts_total" []
        "Inserts that left out the end of their prompt: memory was short, or too many others wrote at the same place.";
    TRIE_EVICTED_NODES_TOTAL Counter "trieway_trie_evicted_nodes_total" []
        "Runs evicted to keep the bound.";
    TRIE_SWEPT_NODES_TOTAL Counter "trieway_trie_swept_nodes_total" []
        "Runs cleared away because every backend that held them was removed or restarted.";

    INFO Gauge "trieway_info" ["version", "io", "policy"]
        "1; the labels say what runs.";
    PROCESS_CPU_SECONDS_TOTAL Counter "process_cpu_seconds_total" []
        "CPU time of the whole process.";
    PROCESS_RESIDENT_MEMORY_BYTES Gauge "process_resident_memory_bytes" []
        "Resident memory.";
    PROCESS_OPEN_FDS Gauge "process_open_fds" []
        "Open file descriptors.";
    PROCESS_START_TIME_SECONDS Gauge "process_start_time_seconds" []
        "Start of the process, in seconds since the epoch.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_apart_and_follow_the_conventions() {
        let mut names: Vec<_> = ALL.iter().map(|metric| metric.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        for metric in ALL {
            assert!(
                ["vllm:", "trieway_", "process_"].iter().any(|prefix| metric.name.starts_with(prefix)),
                "{metric:?}"
            );
            let legal = |b: u8| b.is_ascii_lowercase() || b == b'_' || b == b':';
            assert!(metric.name.bytes().all(legal), "{}", metric.name);
            assert!(metric.help.ends_with('.'), "{}", metric.name);
            // `vllm:healthy_pods_total` is a gauge in the stack, too.
            let total = metric.name.ends_with("_total") && metric.name != HEALTHY_PODS_TOTAL.name;
            assert_eq!(metric.kind == Kind::Counter, total, "{}", metric.name);
        }
    }
}
