//! Configuration: the only room that knows flags, environment variables, files and defaults.
//!
//! `source` merges the command line, the environment and the files (`file`), `cli` turns that into a validated, plain
//! [`Config`]; everything else reads that. A value that is here has been checked: no other room validates configuration or
//! knows a default.

mod args;
mod backends;
mod cli;
mod file;
mod memory;
mod secret;
mod size;
mod source;
mod top;
mod unsupported;
mod url;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use cli::{Failure, command, from_args};
pub use secret::{ConfigError, Secret};
pub use size::parse_size;
pub use source::Source;
pub use top::{TopOptions, top_from_args};
pub use url::{BackendUrl, UrlError};

/// How many backends the router can know at a time.
pub const MAX_BACKENDS: usize = 512;

/// A router that hands over names its listening sockets in this variable, for the process that takes over; that one's
/// standard input is then the stream between the two.
pub const HANDOVER_VARIABLE: &str = "TRIEWAY_HANDOVER";

#[derive(Clone, Debug)]
pub struct Config {
    pub listen: Listen,
    /// Accepted path prefix, without a slash at its end; empty when there is none.
    pub root_path: String,
    pub workers: usize,
    pub io: IoMode,
    pub splice: SpliceMode,
    pub coalesce: CoalesceMode,
    pub pin: Pin,
    /// Empty when they are discovered.
    pub backends: Vec<StaticBackend>,
    /// Where backends are discovered, if they are.
    pub kubernetes: Option<Kubernetes>,
    /// Alias → model.
    pub aliases: Vec<(String, String)>,
    pub health: Option<HealthChecks>,
    /// How long a backend's share grows once it is back; zero: not at all.
    pub slow_start: Duration,
    pub outlier: Outlier,
    pub routing: Routing,
    pub request_stats_window: Duration,
    pub engine_stats_interval: Duration,
    pub failover_attempts: usize,
    pub times: Times,
    pub overload: Overload,
    pub max_head_bytes: usize,
    pub max_body_bytes: usize,
    /// Large buffers of all workers together.
    pub max_buffered_bytes: usize,
    pub max_connections: usize,
    pub allow_half_close: bool,
    pub preserve_host: bool,
    pub via: Via,
    pub api_key: Option<Secret>,
    pub backend_api_key: Option<Secret>,
    /// From which the hashes of prompts are derived, if it was given.
    pub hash_seed: Option<Secret>,
    pub log: Log,
    /// From where it can be read again.
    pub source: Source,
    /// Where the trie's beliefs are kept from one run to the next.
    pub state_file: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    Tcp { host: IpAddr, port: u16 },
    Unix(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum IoMode {
    /// io_uring where the kernel allows it, else epoll.
    Auto,
    /// io_uring, or refuse to start.
    Uring,
    Epoll,
}

/// Which pods are backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubernetes {
    pub namespace: String,
    /// As the API takes it: `key=value,…`; empty: all pods.
    pub label_selector: String,
    /// Where the engine listens in each pod.
    pub port: u16,
    /// Seconds after which a watch is begun anew; `None`: the client library's own limit.
    pub watch_timeout_s: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SpliceMode {
    /// Large bodies of known length are spliced.
    Auto,
    /// Every body is copied.
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CoalesceMode {
    /// Events of a stream that come faster than one a millisecond are taken together.
    Auto,
    /// Each is taken as it comes.
    Never,
}

/// Where `Via` says that a message came through the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Via {
    /// Nowhere.
    Off,
    /// In requests, as RFC 9110 asks it of a gateway.
    Requests,
    /// In answers, too.
    Both,
}

/// Whether and where worker threads are bound to CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pin {
    /// One CPU each, when there are as many workers as CPUs that the process may use.
    Auto,
    None,
    /// One a worker.
    Cpus(Vec<usize>),
}

/// One backend as the command line names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticBackend {
    pub url: BackendUrl,
    /// Empty: asked from the backend's `/v1/models`.
    pub models: Vec<String>,
    pub model_type: Option<ModelType>,
    pub label: Option<String>,
    /// It gets no more requests; those that run there end.
    pub draining: bool,
}

impl StaticBackend {
    /// One that nobody has named: everything else about it is asked from it.
    pub fn discovered(url: BackendUrl, label: Option<String>) -> Self {
        StaticBackend { url, models: Vec::new(), model_type: None, label, draining: false }
    }
}

/// What a backend serves; decides how it is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ModelType {
    Chat,
    Completion,
    Embeddings,
    Rerank,
    Score,
    Transcription,
    Vision,
    Messages,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthChecks {
    pub interval: Duration,
    pub timeout: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Policy {
    /// The longest known prefix wins; short and unknown prompts go to the backend with the lowest QPS.
    #[default]
    Prefixaware,
    /// Strict alternation.
    Roundrobin,
    /// The same session, the same backend (see --session-key).
    Session,
    /// The fewest prompt bytes and requests in flight.
    Leastload,
    /// The first token is expected soonest, with a price on work (see docs/ROUTING.md).
    Ttft,
}

impl Policy {
    pub fn as_str(self) -> &'static str {
        match self {
            Policy::Prefixaware => "prefixaware",
            Policy::Roundrobin => "roundrobin",
            Policy::Session => "session",
            Policy::Leastload => "leastload",
            Policy::Ttft => "ttft",
        }
    }

    /// Whether it asks the trie.
    pub fn asks_prefixes(self) -> bool {
        matches!(self, Policy::Prefixaware | Policy::Ttft)
    }
}

/// As `--routing-logic` has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routing {
    pub policy: Policy,
    pub prefix_min_match_bytes: u64,
    pub prefix_chunk_bytes: usize,
    pub prefix_memory_bytes: usize,
    pub session_key: Option<String>,
    pub ttft: Ttft,
    /// A policy whose choices are computed beside, counted and not followed.
    pub shadow: Option<Policy>,
}

/// What `ttft` assumes of the engines before it has learnt better, and its prices.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ttft {
    pub pass_s: f64,
    pub token_s: f64,
    pub attention_s: f64,
    pub kv_token_s: f64,
    pub pass_tokens: f64,
    pub load_price: f64,
    pub idle_price: f64,
    pub fair_tokens: f64,
    pub answer_tokens: f64,
    /// How long a prompt is held at most; 0: none is.
    pub hold_s: f64,
}

/// What happens when there is more to do than the backends should get at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overload {
    /// Requests that one backend has in flight at most; 0: no limit.
    pub inflight_per_backend: u32,
    /// The same for one API key, over all backends, with what waits.
    pub inflight_per_key: u32,
    /// Requests that wait for a backend at most, over all workers.
    pub queue_requests: usize,
    pub queue_timeout: Duration,
}

/// When a backend whose requests fail gets none, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlier {
    /// Failures in a row; 0: never.
    pub consecutive_errors: u32,
    pub base_ejection: Duration,
    /// At least the base.
    pub max_ejection: Duration,
}

/// Every time limit of the wire. Zero is not allowed for any of them.
#[derive(Clone, Debug)]
pub struct Times {
    pub client_head: Duration,
    pub client_body_progress: Duration,
    pub client_idle: Duration,
    pub client_write_stall: Duration,
    pub connect: Duration,
    pub first_byte: Duration,
    pub between_bytes: Duration,
    pub upstream_idle: Duration,
    pub drain: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    pub level: LogLevel,
    pub format: LogFormat,
    /// A line a request.
    pub requests: bool,
    /// Period of the table of per-backend figures, when it is on.
    pub stats_interval: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogLevel {
    Trace,
    Debug,
    Info,
    #[value(alias = "warn")]
    Warning,
    #[value(alias = "critical")]
    Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}
