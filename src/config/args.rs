//! Every flag: its name, environment variable, default, unit and help.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use super::{CoalesceMode, IoMode, LogFormat, LogLevel, Policy, Secret, SpliceMode, Via, parse_size};

#[derive(Parser, Debug)]
#[command(
    name = "trieway",
    version,
    about = "A prefix-aware router for LLM inference",
    long_about = "A prefix-aware router for LLM inference: sends each conversation to the engine that already holds its prefix \
                  in the KV cache, and everything else to the least busy one.",
    after_help = "Every flag is also an environment variable: TRIEWAY_ and the flag's name in capitals, such as TRIEWAY_STATIC_BACKENDS. \
                  The command line wins over the environment, and that over the file of --config."
)]
pub(super) struct Args {
    /// YAML or JSON file with flags as keys; the environment and the command line win over it. Read again on SIGHUP
    #[arg(long, env = "TRIEWAY_CONFIG", help_heading = "Configuration files", value_name = "PATH")]
    pub(super) config: Option<PathBuf>,
    /// The same, but it wins over everything else and is watched: backends and routing change without a restart
    #[arg(
        long,
        env = "TRIEWAY_DYNAMIC_CONFIG_YAML",
        help_heading = "Configuration files",
        value_name = "PATH",
        conflicts_with = "dynamic_config_json"
    )]
    pub(super) dynamic_config_yaml: Option<PathBuf>,
    /// The same in JSON
    #[arg(long, env = "TRIEWAY_DYNAMIC_CONFIG_JSON", help_heading = "Configuration files", value_name = "PATH")]
    pub(super) dynamic_config_json: Option<PathBuf>,

    /// Address to listen on
    #[arg(long, env = "TRIEWAY_HOST", default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED), value_parser = host, help_heading = "Listening", value_name = "ADDRESS")]
    pub(super) host: IpAddr,
    /// Port to listen on; 0 takes a free one and prints it
    #[arg(long, env = "TRIEWAY_PORT", default_value_t = 8001, help_heading = "Listening")]
    pub(super) port: u16,
    /// Listen on a unix socket at this path instead
    #[arg(long, env = "TRIEWAY_UDS", help_heading = "Listening", value_name = "PATH", conflicts_with_all = ["host", "port"])]
    pub(super) uds: Option<PathBuf>,
    /// Path prefix under which the router is reached
    #[arg(long, env = "TRIEWAY_ROOT_PATH", default_value = "", help_heading = "Listening", value_name = "PATH")]
    pub(super) root_path: String,
    /// Clients must send this key as 'Authorization: Bearer KEY'
    #[arg(long, env = "TRIEWAY_API_KEY", hide_env_values = true, help_heading = "Listening", value_name = "KEY")]
    pub(super) api_key: Option<Secret>,

    /// How backends are found: static (by --static-backends) or k8s (ready pods; in builds with Kubernetes support)
    #[arg(long, env = "TRIEWAY_SERVICE_DISCOVERY", default_value = "static", value_parser = ["static", "k8s"], hide_possible_values = true, help_heading = "Backends")]
    pub(super) service_discovery: String,
    /// Backends: http://host:port[/base], separated by commas
    #[arg(
        long,
        env = "TRIEWAY_STATIC_BACKENDS",
        default_value = "",
        hide_default_value = true,
        help_heading = "Backends",
        value_name = "URL,…"
    )]
    pub(super) static_backends: String,
    /// Namespace of the pods that are backends
    #[arg(
        long,
        env = "TRIEWAY_K8S_NAMESPACE",
        default_value = "default",
        help_heading = "Kubernetes",
        value_name = "NAME"
    )]
    pub(super) k8s_namespace: String,
    /// Labels of the pods that are backends; left out: all pods of the namespace
    #[arg(
        long,
        env = "TRIEWAY_K8S_LABEL_SELECTOR",
        default_value = "",
        hide_default_value = true,
        help_heading = "Kubernetes",
        value_name = "KEY=VALUE,…"
    )]
    pub(super) k8s_label_selector: String,
    /// Port on which the engines listen in their pods
    #[arg(long, env = "TRIEWAY_K8S_PORT", default_value_t = 8000, value_parser = clap::value_parser!(u16).range(1..), help_heading = "Kubernetes", value_name = "PORT")]
    pub(super) k8s_port: u16,
    /// Seconds after which the watch is begun anew, at most 290; 0: 290
    #[arg(long, env = "TRIEWAY_K8S_WATCHER_TIMEOUT_SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=290), help_heading = "Kubernetes", value_name = "SECONDS")]
    pub(super) k8s_watcher_timeout_seconds: u32,
    /// What a backend is: pod-ip, each pod at its own address
    #[arg(long, env = "TRIEWAY_K8S_SERVICE_DISCOVERY_TYPE", default_value = "pod-ip", value_parser = ["pod-ip", "service-name"], hide_possible_values = true, help_heading = "Kubernetes", value_name = "TYPE")]
    pub(super) k8s_service_discovery_type: String,

    /// Models, one a backend, separated by commas; left out: asked from each backend's /v1/models
    #[arg(
        long,
        env = "TRIEWAY_STATIC_MODELS",
        default_value = "",
        hide_default_value = true,
        help_heading = "Backends",
        value_name = "MODEL,…"
    )]
    pub(super) static_models: String,
    /// Other names for models
    #[arg(
        long,
        env = "TRIEWAY_STATIC_ALIASES",
        default_value = "",
        hide_default_value = true,
        help_heading = "Backends",
        value_name = "ALIAS:MODEL,…"
    )]
    pub(super) static_aliases: String,
    /// What each backend serves: chat, completion, embeddings, rerank, score, transcription, vision, messages
    #[arg(
        long,
        env = "TRIEWAY_STATIC_MODEL_TYPES",
        default_value = "",
        hide_default_value = true,
        help_heading = "Backends",
        value_name = "TYPE,…"
    )]
    pub(super) static_model_types: String,
    /// Labels, one a backend, shown in /engines
    #[arg(
        long,
        env = "TRIEWAY_STATIC_MODEL_LABELS",
        default_value = "",
        hide_default_value = true,
        help_heading = "Backends",
        value_name = "LABEL,…"
    )]
    pub(super) static_model_labels: String,
    /// Those of the backends that get no more requests, while those that run there end
    #[arg(
        long,
        env = "TRIEWAY_DRAIN_BACKENDS",
        default_value = "",
        hide_default_value = true,
        help_heading = "Backends",
        value_name = "URL,…"
    )]
    pub(super) drain_backends: String,
    /// Accepted for the production stack's start line; no effect without disaggregated prefill
    #[arg(
        long,
        env = "TRIEWAY_PREFILL_MODEL_LABELS",
        default_value = "",
        hide_default_value = true,
        help_heading = "Backends",
        value_name = "LABEL,…"
    )]
    pub(super) prefill_model_labels: String,
    /// Accepted for the production stack's start line; no effect without disaggregated prefill
    #[arg(
        long,
        env = "TRIEWAY_DECODE_MODEL_LABELS",
        default_value = "",
        hide_default_value = true,
        help_heading = "Backends",
        value_name = "LABEL,…"
    )]
    pub(super) decode_model_labels: String,
    /// Send this key to the backends instead of the client's Authorization
    #[arg(
        long,
        env = "TRIEWAY_BACKEND_API_KEY",
        hide_env_values = true,
        help_heading = "Backends",
        value_name = "KEY"
    )]
    pub(super) backend_api_key: Option<Secret>,
    /// Send the client's Host field to the backends instead of their own
    #[arg(long, env = "TRIEWAY_PRESERVE_HOST", help_heading = "Backends")]
    pub(super) preserve_host: bool,
    /// Name the router in Via fields: off, requests, or both, which is answers, too
    #[arg(long, env = "TRIEWAY_VIA", default_value = "requests", value_enum, help_heading = "Backends")]
    pub(super) via: Via,

    /// Probe the backends (the default)
    #[arg(
        long,
        env = "TRIEWAY_STATIC_BACKEND_HEALTH_CHECKS",
        help_heading = "Health checks",
        overrides_with = "no_static_backend_health_checks"
    )]
    pub(super) static_backend_health_checks: bool,
    /// Do not probe the backends: a backend that refuses connections is tried again by requests
    #[arg(
        long,
        env = "TRIEWAY_NO_STATIC_BACKEND_HEALTH_CHECKS",
        default_value_if("static_backend_health_checks", "true", "false"),
        help_heading = "Health checks"
    )]
    pub(super) no_static_backend_health_checks: bool,
    /// Seconds between two probes of a backend
    #[arg(long, env = "TRIEWAY_STATIC_BACKEND_HEALTH_CHECK_INTERVAL", default_value = "5", value_parser = seconds, help_heading = "Health checks", value_name = "SECONDS")]
    pub(super) static_backend_health_check_interval: Duration,
    /// Seconds that a probe may take
    #[arg(long, alias = "backend-health-check-timeout-seconds", env = "TRIEWAY_STATIC_BACKEND_HEALTH_CHECK_TIMEOUT_SECONDS", default_value = "2", value_parser = seconds, help_heading = "Health checks", value_name = "SECONDS")]
    pub(super) static_backend_health_check_timeout_seconds: Duration,

    /// Seconds in which the share of a backend that came back, or came, grows from little to all; 0: it gets all at once
    #[arg(long, env = "TRIEWAY_SLOW_START_SECONDS", default_value = "0", value_parser = seconds_or_none, help_heading = "Health checks", value_name = "SECONDS")]
    pub(super) slow_start_seconds: Duration,

    /// Requests of a backend that fail in a row (5xx but 501 and 503, resets, answers that end early, time limits) until it gets
    /// none for a time; never the last one. 0: never
    #[arg(
        long,
        env = "TRIEWAY_OUTLIER_CONSECUTIVE_ERRORS",
        default_value_t = 5,
        help_heading = "Outlier ejection",
        value_name = "N"
    )]
    pub(super) outlier_consecutive_errors: u32,
    /// Seconds of the first ejection; each that follows soon takes this much longer
    #[arg(long, env = "TRIEWAY_OUTLIER_BASE_EJECTION_SECONDS", default_value = "10", value_parser = seconds, help_heading = "Outlier ejection", value_name = "SECONDS")]
    pub(super) outlier_base_ejection_seconds: Duration,
    /// Seconds of an ejection at most
    #[arg(long, env = "TRIEWAY_OUTLIER_MAX_EJECTION_SECONDS", default_value = "300", value_parser = seconds, help_heading = "Outlier ejection", value_name = "SECONDS")]
    pub(super) outlier_max_ejection_seconds: Duration,

    /// How a backend is chosen
    #[arg(long, env = "TRIEWAY_ROUTING_LOGIC", value_enum, default_value_t = Policy::Prefixaware, help_heading = "Routing", value_name = "POLICY")]
    pub(super) routing_logic: Policy,
    /// Bytes of a prompt that must match before it is pinned to the backends that hold them; set it above your shared system prompt
    #[arg(
        long,
        env = "TRIEWAY_PREFIX_MIN_MATCH_LENGTH",
        default_value_t = 0,
        help_heading = "Routing",
        value_name = "BYTES"
    )]
    pub(super) prefix_min_match_length: u64,
    /// Bytes of prompt text a trie step; a shorter rest does not count
    #[arg(
        long,
        env = "TRIEWAY_PREFIX_CHUNK_SIZE",
        default_value_t = 128,
        help_heading = "Routing",
        value_name = "BYTES"
    )]
    pub(super) prefix_chunk_size: usize,
    /// Hard bound on the trie's memory
    #[arg(long, env = "TRIEWAY_PREFIX_MEMORY", default_value = "512MiB", value_parser = parse_size, help_heading = "Routing", value_name = "SIZE")]
    pub(super) prefix_memory: usize,
    /// Seed of the hashes of prompts, known to nobody else, 16 characters or more; left out: the state file's, or random
    #[arg(
        long,
        env = "TRIEWAY_PREFIX_HASH_SEED",
        hide_env_values = true,
        help_heading = "Routing",
        value_name = "SEED"
    )]
    pub(super) prefix_hash_seed: Option<Secret>,
    /// File that keeps the trie from one run to the next: written when the router has drained, read when it starts
    #[arg(long, env = "TRIEWAY_STATE_FILE", help_heading = "Routing", value_name = "PATH")]
    pub(super) state_file: Option<PathBuf>,
    /// Header, or top-level key of the body, that names a session
    #[arg(long, env = "TRIEWAY_SESSION_KEY", help_heading = "Routing", value_name = "NAME")]
    pub(super) session_key: Option<String>,
    /// ttft: microseconds in which an engine computes a token of a prompt, before that is learnt (an 8B model on an H100)
    #[arg(long, env = "TRIEWAY_TTFT_TOKEN_US", default_value = "21.5", value_parser = positive, help_heading = "Routing by ttft", value_name = "US")]
    pub(super) ttft_token_us: f64,
    /// ttft: nanoseconds a pair of tokens of a prompt
    #[arg(long, env = "TRIEWAY_TTFT_ATTENTION_NS", default_value = "1", value_parser = positive, help_heading = "Routing by ttft", value_name = "NS")]
    pub(super) ttft_attention_ns: f64,
    /// ttft: milliseconds of a pass beside its tokens
    #[arg(long, env = "TRIEWAY_TTFT_PASS_MS", default_value = "7.5", value_parser = positive, help_heading = "Routing by ttft", value_name = "MS")]
    pub(super) ttft_pass_ms: f64,
    /// ttft: nanoseconds by which a token of context in decoding makes a pass longer
    #[arg(long, env = "TRIEWAY_TTFT_KV_TOKEN_NS", default_value = "49", value_parser = positive, help_heading = "Routing by ttft", value_name = "NS")]
    pub(super) ttft_kv_token_ns: f64,
    /// ttft: tokens of a pass (vLLM: --max-num-batched-tokens)
    #[arg(long, env = "TRIEWAY_TTFT_PASS_TOKENS", default_value = "8192", value_parser = positive, help_heading = "Routing by ttft", value_name = "TOKENS")]
    pub(super) ttft_pass_tokens: f64,
    /// ttft: price of a second of work where backends are busy: times the busy share over the idle share, in seconds of waiting
    #[arg(long, env = "TRIEWAY_TTFT_LOAD_PRICE", default_value = "7", value_parser = positive, help_heading = "Routing by ttft", value_name = "PRICE")]
    pub(super) ttft_load_price: f64,
    /// ttft: price of a second of work where all backends are idle, in seconds of waiting
    #[arg(long, env = "TRIEWAY_TTFT_IDLE_PRICE", default_value = "1.5", value_parser = positive, help_heading = "Routing by ttft", value_name = "PRICE")]
    pub(super) ttft_idle_price: f64,
    /// ttft: tokens of a prompt whose own wait counts double; shorter ones count more
    #[arg(long, env = "TRIEWAY_TTFT_FAIR_TOKENS", default_value = "50000", value_parser = positive, help_heading = "Routing by ttft", value_name = "TOKENS")]
    pub(super) ttft_fair_tokens: f64,
    /// ttft: tokens of an answer whose pace counts like a wait for the first
    #[arg(long, env = "TRIEWAY_TTFT_ANSWER_TOKENS", default_value = "60", value_parser = positive, help_heading = "Routing by ttft", value_name = "TOKENS")]
    pub(super) ttft_answer_tokens: f64,
    /// ttft: milliseconds that a prompt is held at most until a backend has computed what is before it; 0: sent at once
    #[arg(
        long,
        env = "TRIEWAY_TTFT_HOLD_MS",
        default_value = "5000",
        help_heading = "Routing by ttft",
        value_name = "MS"
    )]
    pub(super) ttft_hold_ms: u32,
    /// Compute what this policy would have chosen, count it, and do not follow it
    #[arg(long, env = "TRIEWAY_SHADOW_POLICY", value_enum, help_heading = "Routing", value_name = "POLICY")]
    pub(super) shadow_policy: Option<Policy>,
    /// Seconds of the QPS window
    #[arg(long, env = "TRIEWAY_REQUEST_STATS_WINDOW", default_value = "60", value_parser = seconds, help_heading = "Routing", value_name = "SECONDS")]
    pub(super) request_stats_window: Duration,
    /// Other backends tried when a request provably was not started
    #[arg(
        long,
        env = "TRIEWAY_MAX_INSTANCE_FAILOVER_REROUTE_ATTEMPTS",
        default_value_t = 2,
        help_heading = "Routing",
        value_name = "N"
    )]
    pub(super) max_instance_failover_reroute_attempts: usize,

    /// Largest request body
    #[arg(long, env = "TRIEWAY_MAX_BODY_SIZE", default_value = "64MiB", value_parser = parse_size, help_heading = "Limits", value_name = "SIZE")]
    pub(super) max_body_size: usize,
    /// Request bodies and large answer buffers in memory at a time, over all workers; by default a quarter of the memory that
    /// the process may use
    #[arg(long, env = "TRIEWAY_MAX_BUFFERED_BYTES", value_parser = parse_size, help_heading = "Limits", value_name = "SIZE")]
    pub(super) max_buffered_bytes: Option<usize>,
    /// Client connections at a time, over all workers
    #[arg(long, env = "TRIEWAY_MAX_CONNECTIONS", default_value_t = 65_536, help_heading = "Limits", value_name = "N")]
    pub(super) max_connections: usize,
    /// Requests in flight at one backend; beyond, requests wait. 0: no limit
    #[arg(long, env = "TRIEWAY_MAX_INFLIGHT", default_value_t = 0, help_heading = "Limits", value_name = "N")]
    pub(super) max_inflight: u32,
    /// Requests in flight and waiting of one API key (Authorization, else X-Api-Key); beyond: 429. 0: no limit
    #[arg(long, env = "TRIEWAY_MAX_INFLIGHT_PER_KEY", default_value_t = 0, help_heading = "Limits", value_name = "N")]
    pub(super) max_inflight_per_key: u32,
    /// Requests that wait for a backend below its --max-inflight, over all workers; beyond: 503
    #[arg(long, env = "TRIEWAY_QUEUE_SIZE", default_value_t = 1024, help_heading = "Limits", value_name = "N")]
    pub(super) queue_size: usize,
    /// Seconds that a request may wait so; then: 503
    #[arg(long, alias = "queue-timeout", env = "TRIEWAY_QUEUE_TIMEOUT_SECONDS", default_value = "30", value_parser = seconds, help_heading = "Limits", value_name = "SECONDS")]
    pub(super) queue_timeout_seconds: Duration,
    /// Largest request or response head
    #[arg(long, env = "TRIEWAY_MAX_HEAD_SIZE", default_value = "64KiB", value_parser = parse_size, help_heading = "Limits", value_name = "SIZE")]
    pub(super) max_head_size: usize,
    /// A client that closes its sending side still gets its answer (left out: it counts as gone)
    #[arg(long, env = "TRIEWAY_ALLOW_HALF_CLOSE", help_heading = "Limits")]
    pub(super) allow_half_close: bool,

    /// Seconds for a whole request head
    #[arg(long, env = "TRIEWAY_CLIENT_HEAD_TIMEOUT_SECONDS", default_value = "10", value_parser = seconds, help_heading = "Time limits", value_name = "SECONDS")]
    pub(super) client_head_timeout_seconds: Duration,
    /// Seconds without a byte of a request body
    #[arg(long, env = "TRIEWAY_CLIENT_BODY_TIMEOUT_SECONDS", default_value = "30", value_parser = seconds, help_heading = "Time limits", value_name = "SECONDS")]
    pub(super) client_body_timeout_seconds: Duration,
    /// Seconds that a client's connection may idle between requests
    #[arg(long, env = "TRIEWAY_CLIENT_IDLE_TIMEOUT_SECONDS", default_value = "75", value_parser = seconds, help_heading = "Time limits", value_name = "SECONDS")]
    pub(super) client_idle_timeout_seconds: Duration,
    /// Seconds that a client may take no bytes of an answer
    #[arg(long, env = "TRIEWAY_CLIENT_WRITE_TIMEOUT_SECONDS", default_value = "60", value_parser = seconds, help_heading = "Time limits", value_name = "SECONDS")]
    pub(super) client_write_timeout_seconds: Duration,
    /// Seconds to connect to a backend
    #[arg(long, env = "TRIEWAY_CONNECT_TIMEOUT_SECONDS", default_value = "2", value_parser = seconds, help_heading = "Time limits", value_name = "SECONDS")]
    pub(super) connect_timeout_seconds: Duration,
    /// Seconds until a backend's answer begins
    #[arg(long, alias = "first-byte-timeout", env = "TRIEWAY_FIRST_BYTE_TIMEOUT_SECONDS", default_value = "600", value_parser = seconds, help_heading = "Time limits", value_name = "SECONDS")]
    pub(super) first_byte_timeout_seconds: Duration,
    /// Seconds between two reads of a backend's answer
    #[arg(long, env = "TRIEWAY_BETWEEN_BYTES_TIMEOUT_SECONDS", default_value = "600", value_parser = seconds, help_heading = "Time limits", value_name = "SECONDS")]
    pub(super) between_bytes_timeout_seconds: Duration,
    /// Seconds that an unused connection to a backend is kept; below the engine's own limit (uvicorn: 5)
    #[arg(long, env = "TRIEWAY_UPSTREAM_IDLE_TIMEOUT_SECONDS", default_value = "4", value_parser = seconds, help_heading = "Time limits", value_name = "SECONDS")]
    pub(super) upstream_idle_timeout_seconds: Duration,
    /// Seconds that running requests get after SIGTERM
    #[arg(long, alias = "drain-timeout", env = "TRIEWAY_DRAIN_TIMEOUT_SECONDS", default_value = "60", value_parser = seconds, help_heading = "Time limits", value_name = "SECONDS")]
    pub(super) drain_timeout_seconds: Duration,

    /// Data-plane threads; left out: the CPUs that this process may use
    #[arg(long, env = "TRIEWAY_WORKERS", help_heading = "Workers", value_name = "N")]
    pub(super) workers: Option<usize>,
    /// How workers wait for sockets
    #[arg(long, env = "TRIEWAY_IO", value_enum, default_value_t = IoMode::Auto, help_heading = "Workers", value_name = "MODE")]
    pub(super) io: IoMode,
    /// CPUs that workers are bound to: auto (one each, when there are as many workers as CPUs), none, or a list such as 0,2-3
    #[arg(long, env = "TRIEWAY_PIN", default_value = "auto", help_heading = "Workers", value_name = "CPUS")]
    pub(super) pin: String,
    /// Whether large answers of known length go from socket to socket without a copy
    #[arg(long, env = "TRIEWAY_SPLICE", value_enum, default_value_t = SpliceMode::Auto, help_heading = "Workers", value_name = "MODE")]
    pub(super) splice: SpliceMode,
    /// Whether events of a stream that come faster than one a millisecond are sent on together
    #[arg(long, env = "TRIEWAY_COALESCE", value_enum, default_value_t = CoalesceMode::Auto, help_heading = "Workers", value_name = "MODE")]
    pub(super) coalesce: CoalesceMode,

    /// Seconds between two readings of the engines' /metrics
    #[arg(long, env = "TRIEWAY_ENGINE_STATS_INTERVAL", default_value = "5", value_parser = seconds, help_heading = "Observing", value_name = "SECONDS")]
    pub(super) engine_stats_interval: Duration,
    /// Log level
    #[arg(long, env = "TRIEWAY_LOG_LEVEL", value_enum, default_value_t = LogLevel::Info, help_heading = "Observing", value_name = "LEVEL")]
    pub(super) log_level: LogLevel,
    /// Log format
    #[arg(long, env = "TRIEWAY_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, help_heading = "Observing", value_name = "FORMAT")]
    pub(super) log_format: LogFormat,
    /// Log a line a request: which backend got it, and after how long in the router. Each worker writes it itself before it
    /// sends the request on, so a log that takes no more bytes holds the worker up
    #[arg(long, env = "TRIEWAY_LOG_REQUESTS", help_heading = "Observing")]
    pub(super) log_requests: bool,
    /// Print a table of per-backend figures periodically
    #[arg(long, env = "TRIEWAY_LOG_STATS", help_heading = "Observing")]
    pub(super) log_stats: bool,
    /// Seconds between two such tables
    #[arg(long, env = "TRIEWAY_LOG_STATS_INTERVAL", default_value = "10", value_parser = seconds, help_heading = "Observing", value_name = "SECONDS")]
    pub(super) log_stats_interval: Duration,
}

fn host(text: &str) -> Result<IpAddr, String> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    if bare == "localhost" {
        return Ok(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    bare.parse().map_err(|_| "write an IPv4 or IPv6 address, such as 0.0.0.0, 127.0.0.1 or ::".to_owned())
}

/// The same, or 0.
fn seconds_or_none(text: &str) -> Result<Duration, String> {
    if text.parse() == Ok(0.0) { Ok(Duration::ZERO) } else { seconds(text) }
}

/// Seconds, whole or with a fraction, more than zero and at most a day.
fn seconds(text: &str) -> Result<Duration, String> {
    const MOST_S: f64 = 86_400.0;
    match text.parse::<f64>() {
        Ok(s) if s > 0.0 && s <= MOST_S => Ok(Duration::from_secs_f64(s)),
        _ => Err(format!("write a number of seconds, more than 0 and at most {MOST_S}")),
    }
}

/// A number that is not negative, and no larger than makes sense for any of them.
fn positive(text: &str) -> Result<f64, String> {
    const MOST: f64 = 1e9;
    match text.parse::<f64>() {
        Ok(number) if (0.0..=MOST).contains(&number) => Ok(number),
        _ => Err(format!("write a number from 0 to {MOST}")),
    }
}
