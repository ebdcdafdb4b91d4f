//! The command line: every flag with its environment variable, default, unit and help, and the way from there to a
//! [`Config`].

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches, Parser};

use super::url::BackendUrl;
use super::{
    Config, HealthChecks, IoMode, Listen, Log, LogFormat, LogLevel, MAX_BACKENDS, ModelType, Policy, Routing, Secret,
    StaticBackend, Times, parse_size, unsupported,
};

/// The trie's smallest useful size; below it, the flag is refused.
const MIN_PREFIX_MEMORY_BYTES: usize = 1 << 20;
const MIN_CHUNK_BYTES: usize = 16;
const MAX_CHUNK_BYTES: usize = 64 << 10;
/// 1 to 1,024 workers: more threads than any machine has cores are a slip of the finger.
const MAX_WORKERS: usize = 1024;

#[derive(Parser, Debug)]
#[command(
    name = "trieway",
    version,
    about = "A prefix-aware router for LLM inference",
    long_about = "A prefix-aware router for LLM inference: sends each conversation to the engine that already holds its prefix \
                  in the KV cache, and everything else to the least busy one.",
    after_help = "Every flag is also an environment variable: TRIEWAY_ and the flag's name in capitals, such as TRIEWAY_STATIC_BACKENDS. \
                  The command line wins over the environment."
)]
struct Args {
    /// Address to listen on
    #[arg(long, env = "TRIEWAY_HOST", default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED), value_parser = host, help_heading = "Listening", value_name = "ADDRESS")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one and prints it
    #[arg(long, env = "TRIEWAY_PORT", default_value_t = 8001, help_heading = "Listening")]
    port: u16,
    /// Listen on a unix socket at this path instead
    #[arg(long, env = "TRIEWAY_UDS", help_heading = "Listening", value_name = "PATH", conflicts_with_all = ["host", "port"])]
    uds: Option<PathBuf>,
    /// Path prefix under which the router is reached
    #[arg(long, env = "TRIEWAY_ROOT_PATH", default_value = "", help_heading = "Listening", value_name = "PATH")]
    root_path: String,
    /// Clients must send this key as 'Authorization: Bearer KEY'
    #[arg(long, env = "TRIEWAY_API_KEY", hide_env_values = true, help_heading = "Listening", value_name = "KEY")]
    api_key: Option<String>,

    /// How backends are found
    #[arg(long, env = "TRIEWAY_SERVICE_DISCOVERY", default_value = "static", value_parser = ["static", "k8s"], hide_possible_values = true, help_heading = "Backends")]
    service_discovery: String,
    /// Backends: http://host:port[/base], separated by commas
    #[arg(
        long,
        env = "TRIEWAY_STATIC_BACKENDS",
        default_value = "",
        hide_default_value = true,
        help_heading = "Backends",
        value_name = "URL,…"
    )]
    static_backends: String,
    /// Models, one a backend, separated by commas; left out: asked from each backend's /v1/models
    #[arg(
        long,
        env = "TRIEWAY_STATIC_MODELS",
        default_value = "",
        hide_default_value = true,
        help_heading = "Backends",
        value_name = "MODEL,…"
    )]
    static_models: String,
    /// Other names for models
    #[arg(
        long,
        env = "TRIEWAY_STATIC_ALIASES",
        default_value = "",
        hide_default_value = true,
        help_heading = "Backends",
        value_name = "ALIAS:MODEL,…"
    )]
    static_aliases: String,
    /// What each backend serves: chat, completion, embeddings, rerank, score, transcription, vision, messages
    #[arg(
        long,
        env = "TRIEWAY_STATIC_MODEL_TYPES",
        default_value = "",
        hide_default_value = true,
        help_heading = "Backends",
        value_name = "TYPE,…"
    )]
    static_model_types: String,
    /// Labels, one a backend, shown in /engines
    #[arg(
        long,
        env = "TRIEWAY_STATIC_MODEL_LABELS",
        default_value = "",
        hide_default_value = true,
        help_heading = "Backends",
        value_name = "LABEL,…"
    )]
    static_model_labels: String,
    /// Accepted for the production stack's start line; no effect without disaggregated prefill
    #[arg(
        long,
        env = "TRIEWAY_PREFILL_MODEL_LABELS",
        default_value = "",
        hide_default_value = true,
        help_heading = "Backends",
        value_name = "LABEL,…"
    )]
    prefill_model_labels: String,
    /// Accepted for the production stack's start line; no effect without disaggregated prefill
    #[arg(
        long,
        env = "TRIEWAY_DECODE_MODEL_LABELS",
        default_value = "",
        hide_default_value = true,
        help_heading = "Backends",
        value_name = "LABEL,…"
    )]
    decode_model_labels: String,
    /// Send this key to the backends instead of the client's Authorization
    #[arg(
        long,
        env = "TRIEWAY_BACKEND_API_KEY",
        hide_env_values = true,
        help_heading = "Backends",
        value_name = "KEY"
    )]
    backend_api_key: Option<String>,
    /// Send the client's Host field to the backends instead of their own
    #[arg(long, env = "TRIEWAY_PRESERVE_HOST", help_heading = "Backends")]
    preserve_host: bool,

    /// Probe the backends (the default)
    #[arg(
        long,
        env = "TRIEWAY_STATIC_BACKEND_HEALTH_CHECKS",
        help_heading = "Health checks",
        overrides_with = "no_static_backend_health_checks"
    )]
    static_backend_health_checks: bool,
    /// Do not probe the backends: a backend that refuses connections is tried again by requests
    #[arg(long, env = "TRIEWAY_NO_STATIC_BACKEND_HEALTH_CHECKS", help_heading = "Health checks")]
    no_static_backend_health_checks: bool,
    /// Seconds between two probes of a backend
    #[arg(long, env = "TRIEWAY_STATIC_BACKEND_HEALTH_CHECK_INTERVAL", default_value = "5", value_parser = seconds, help_heading = "Health checks", value_name = "SECONDS")]
    static_backend_health_check_interval: Duration,
    /// Seconds that a probe may take
    #[arg(long, alias = "backend-health-check-timeout-seconds", env = "TRIEWAY_STATIC_BACKEND_HEALTH_CHECK_TIMEOUT_SECONDS", default_value = "2", value_parser = seconds, help_heading = "Health checks", value_name = "SECONDS")]
    static_backend_health_check_timeout_seconds: Duration,

    /// How a backend is chosen
    #[arg(long, env = "TRIEWAY_ROUTING_LOGIC", value_enum, default_value_t = Policy::Prefixaware, help_heading = "Routing", value_name = "POLICY")]
    routing_logic: Policy,
    /// Bytes of a prompt that must match before it is pinned to the backends that hold them; set it above your shared system prompt
    #[arg(
        long,
        env = "TRIEWAY_PREFIX_MIN_MATCH_LENGTH",
        default_value_t = 0,
        help_heading = "Routing",
        value_name = "BYTES"
    )]
    prefix_min_match_length: u64,
    /// Bytes of prompt text a trie step; a shorter rest does not count
    #[arg(
        long,
        env = "TRIEWAY_PREFIX_CHUNK_SIZE",
        default_value_t = 128,
        help_heading = "Routing",
        value_name = "BYTES"
    )]
    prefix_chunk_size: usize,
    /// Hard bound on the trie's memory
    #[arg(long, env = "TRIEWAY_PREFIX_MEMORY", default_value = "512MiB", value_parser = parse_size, help_heading = "Routing", value_name = "SIZE")]
    prefix_memory: usize,
    /// Header, or top-level key of the body, that names a session
    #[arg(long, env = "TRIEWAY_SESSION_KEY", help_heading = "Routing", value_name = "NAME")]
    session_key: Option<String>,
    /// Seconds of the QPS window
    #[arg(long, env = "TRIEWAY_REQUEST_STATS_WINDOW", default_value = "60", value_parser = seconds, help_heading = "Routing", value_name = "SECONDS")]
    request_stats_window: Duration,
    /// Other backends tried when a request provably was not started
    #[arg(
        long,
        env = "TRIEWAY_MAX_INSTANCE_FAILOVER_REROUTE_ATTEMPTS",
        default_value_t = 2,
        help_heading = "Routing",
        value_name = "N"
    )]
    max_instance_failover_reroute_attempts: usize,

    /// Largest request body
    #[arg(long, env = "TRIEWAY_MAX_BODY_SIZE", default_value = "64MiB", value_parser = parse_size, help_heading = "Limits", value_name = "SIZE")]
    max_body_size: usize,
    /// Client connections at a time, over all workers
    #[arg(long, env = "TRIEWAY_MAX_CONNECTIONS", default_value_t = 65_536, help_heading = "Limits", value_name = "N")]
    max_connections: usize,
    /// Largest request or response head
    #[arg(long, env = "TRIEWAY_MAX_HEAD_SIZE", default_value = "64KiB", value_parser = parse_size, help_heading = "Limits", value_name = "SIZE")]
    max_head_size: usize,
    /// A client that closes its sending side still gets its answer (left out: it counts as gone)
    #[arg(long, env = "TRIEWAY_ALLOW_HALF_CLOSE", help_heading = "Limits")]
    allow_half_close: bool,

    /// Seconds for a whole request head
    #[arg(long, env = "TRIEWAY_CLIENT_HEAD_TIMEOUT_SECONDS", default_value = "10", value_parser = seconds, help_heading = "Time limits", value_name = "SECONDS")]
    client_head_timeout_seconds: Duration,
    /// Seconds without a byte of a request body
    #[arg(long, env = "TRIEWAY_CLIENT_BODY_TIMEOUT_SECONDS", default_value = "30", value_parser = seconds, help_heading = "Time limits", value_name = "SECONDS")]
    client_body_timeout_seconds: Duration,
    /// Seconds that a client's connection may idle between requests
    #[arg(long, env = "TRIEWAY_CLIENT_IDLE_TIMEOUT_SECONDS", default_value = "75", value_parser = seconds, help_heading = "Time limits", value_name = "SECONDS")]
    client_idle_timeout_seconds: Duration,
    /// Seconds that a client may take no bytes of an answer
    #[arg(long, env = "TRIEWAY_CLIENT_WRITE_TIMEOUT_SECONDS", default_value = "60", value_parser = seconds, help_heading = "Time limits", value_name = "SECONDS")]
    client_write_timeout_seconds: Duration,
    /// Seconds to connect to a backend
    #[arg(long, env = "TRIEWAY_CONNECT_TIMEOUT_SECONDS", default_value = "2", value_parser = seconds, help_heading = "Time limits", value_name = "SECONDS")]
    connect_timeout_seconds: Duration,
    /// Seconds until a backend's answer begins
    #[arg(long, alias = "first-byte-timeout", env = "TRIEWAY_FIRST_BYTE_TIMEOUT_SECONDS", default_value = "600", value_parser = seconds, help_heading = "Time limits", value_name = "SECONDS")]
    first_byte_timeout_seconds: Duration,
    /// Seconds between two reads of a backend's answer
    #[arg(long, env = "TRIEWAY_BETWEEN_BYTES_TIMEOUT_SECONDS", default_value = "600", value_parser = seconds, help_heading = "Time limits", value_name = "SECONDS")]
    between_bytes_timeout_seconds: Duration,
    /// Seconds that an unused connection to a backend is kept; below the engine's own limit (uvicorn: 5)
    #[arg(long, env = "TRIEWAY_UPSTREAM_IDLE_TIMEOUT_SECONDS", default_value = "4", value_parser = seconds, help_heading = "Time limits", value_name = "SECONDS")]
    upstream_idle_timeout_seconds: Duration,
    /// Seconds that running requests get after SIGTERM
    #[arg(long, alias = "drain-timeout", env = "TRIEWAY_DRAIN_TIMEOUT_SECONDS", default_value = "60", value_parser = seconds, help_heading = "Time limits", value_name = "SECONDS")]
    drain_timeout_seconds: Duration,

    /// Data-plane threads; left out: the CPUs that this process may use
    #[arg(long, env = "TRIEWAY_WORKERS", help_heading = "Workers", value_name = "N")]
    workers: Option<usize>,
    /// How workers wait for sockets
    #[arg(long, env = "TRIEWAY_IO", value_enum, default_value_t = IoMode::Auto, help_heading = "Workers", value_name = "MODE")]
    io: IoMode,

    /// Seconds between two readings of the engines' /metrics
    #[arg(long, env = "TRIEWAY_ENGINE_STATS_INTERVAL", default_value = "5", value_parser = seconds, help_heading = "Observing", value_name = "SECONDS")]
    engine_stats_interval: Duration,
    /// Log level
    #[arg(long, env = "TRIEWAY_LOG_LEVEL", value_enum, default_value_t = LogLevel::Info, help_heading = "Observing", value_name = "LEVEL")]
    log_level: LogLevel,
    /// Log format
    #[arg(long, env = "TRIEWAY_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, help_heading = "Observing", value_name = "FORMAT")]
    log_format: LogFormat,
    /// Print a table of per-backend figures periodically
    #[arg(long, env = "TRIEWAY_LOG_STATS", help_heading = "Observing")]
    log_stats: bool,
    /// Seconds between two such tables
    #[arg(long, env = "TRIEWAY_LOG_STATS_INTERVAL", default_value = "10", value_parser = seconds, help_heading = "Observing", value_name = "SECONDS")]
    log_stats_interval: Duration,
}

/// Why there is no configuration.
#[derive(Debug)]
pub enum Failure {
    /// `--help` or `--version`: print it on stdout and exit 0.
    Print(String),
    /// One line for stderr: names the flag, the value and what to do; exit 2.
    Refuse(String),
}

/// The command line as clap sees it; for tests that hold documents against it.
pub fn command() -> clap::Command {
    Args::command()
}

/// The configuration that these arguments (the first is the program's name) and the environment ask for.
///
/// # Errors
/// [`Failure`]: help or version text, or the one line that says what is wrong.
pub fn from_args(args: &[String]) -> Result<Config, Failure> {
    if let Some(line) = unsupported::find(args.iter().skip(1).map(String::as_str)) {
        return Err(Failure::Refuse(line));
    }
    let matches = Args::command().try_get_matches_from(args).map_err(|error| clap_failure(&error))?;
    let args = Args::from_arg_matches(&matches).map_err(|error| clap_failure(&error))?;
    config(args).map_err(Failure::Refuse)
}

fn clap_failure(error: &clap::Error) -> Failure {
    use clap::error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    let text = error.render().to_string();
    if matches!(error.kind(), DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand) {
        return Failure::Print(text);
    }
    let line = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage"))
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    Failure::Refuse(format!(
        "{}; see trieway --help",
        line.trim_end_matches("For more information, try '--help'.").trim_end()
    ))
}

fn config(args: Args) -> Result<Config, String> {
    if args.service_discovery != "static" {
        return Err(format!(
            "--service-discovery {} is not supported: name the backends by --static-backends",
            args.service_discovery
        ));
    }
    let backends = backends(&args)?;
    let models: HashSet<&str> = backends.iter().flat_map(|b| b.models.iter().map(String::as_str)).collect();
    let aliases = aliases(&args.static_aliases, &models)?;
    if args.routing_logic == Policy::Session && args.session_key.is_none() {
        return Err(
            "--routing-logic session needs --session-key NAME: the header or body key that names a session".to_owned()
        );
    }
    range("--prefix-chunk-size", args.prefix_chunk_size, MIN_CHUNK_BYTES, MAX_CHUNK_BYTES)?;
    range("--prefix-memory", args.prefix_memory, MIN_PREFIX_MEMORY_BYTES, usize::MAX / 2)?;
    range("--max-head-size", args.max_head_size, 1024, 16 << 20)?;
    range("--max-body-size", args.max_body_size, 1024, 1 << 40)?;
    range("--max-connections", args.max_connections, 1, 16 << 20)?;
    let workers = args.workers.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    range("--workers", workers, 1, MAX_WORKERS)?;
    Ok(Config {
        listen: args.uds.map_or(Listen::Tcp { host: args.host, port: args.port }, Listen::Unix),
        root_path: root_path(&args.root_path)?,
        workers,
        io: args.io,
        backends,
        aliases,
        health: (!args.no_static_backend_health_checks).then_some(HealthChecks {
            interval: args.static_backend_health_check_interval,
            timeout: args.static_backend_health_check_timeout_seconds,
        }),
        routing: Routing {
            policy: args.routing_logic,
            prefix_min_match_bytes: args.prefix_min_match_length,
            prefix_chunk_bytes: args.prefix_chunk_size,
            prefix_memory_bytes: args.prefix_memory,
            session_key: args.session_key,
        },
        request_stats_window: args.request_stats_window,
        engine_stats_interval: args.engine_stats_interval,
        failover_attempts: args.max_instance_failover_reroute_attempts,
        times: Times {
            client_head: args.client_head_timeout_seconds,
            client_body_progress: args.client_body_timeout_seconds,
            client_idle: args.client_idle_timeout_seconds,
            client_write_stall: args.client_write_timeout_seconds,
            connect: args.connect_timeout_seconds,
            first_byte: args.first_byte_timeout_seconds,
            between_bytes: args.between_bytes_timeout_seconds,
            upstream_idle: args.upstream_idle_timeout_seconds,
            drain: args.drain_timeout_seconds,
        },
        max_head_bytes: args.max_head_size,
        max_body_bytes: args.max_body_size,
        max_connections: args.max_connections,
        allow_half_close: args.allow_half_close,
        preserve_host: args.preserve_host,
        api_key: key("--api-key", args.api_key)?,
        backend_api_key: key("--backend-api-key", args.backend_api_key)?,
        log: Log {
            level: args.log_level,
            format: args.log_format,
            stats_interval: args.log_stats.then_some(args.log_stats_interval),
        },
    })
}

fn backends(args: &Args) -> Result<Vec<StaticBackend>, String> {
    let urls = list(&args.static_backends);
    if urls.is_empty() {
        return Err(
            "--static-backends is missing: name at least one backend, such as --static-backends http://localhost:8000"
                .to_owned(),
        );
    }
    if urls.len() > MAX_BACKENDS {
        return Err(format!("--static-backends names {} backends; the limit is {MAX_BACKENDS}", urls.len()));
    }
    let models = one_each("--static-models", &args.static_models, urls.len())?;
    let types = one_each("--static-model-types", &args.static_model_types, urls.len())?;
    let labels = one_each("--static-model-labels", &args.static_model_labels, urls.len())?;
    let mut seen = HashSet::new();
    urls.iter()
        .enumerate()
        .map(|(i, text)| {
            let url = BackendUrl::parse(text).map_err(|error| format!("--static-backends: {error}"))?;
            if !seen.insert(url.clone()) {
                return Err(format!("--static-backends names {url} twice"));
            }
            let model_type = types.as_ref().map(|t| model_type(t[i])).transpose()?;
            Ok(StaticBackend {
                url,
                models: models.iter().map(|m| m[i].to_owned()).collect(),
                model_type,
                label: labels.as_ref().map(|l| l[i].to_owned()),
            })
        })
        .collect()
}

fn model_type(text: &str) -> Result<ModelType, String> {
    <ModelType as clap::ValueEnum>::from_str(text, true).map_err(|_| {
        format!("--static-model-types: '{text}' is not a type; write chat, completion, embeddings, rerank, score, transcription, vision or messages")
    })
}

/// The items of a comma-separated list, without blanks around them and without empty ones.
fn list(text: &str) -> Vec<&str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect()
}

fn one_each<'a>(flag: &str, text: &'a str, backends: usize) -> Result<Option<Vec<&'a str>>, String> {
    let items = list(text);
    match items.len() {
        0 => Ok(None),
        n if n == backends => Ok(Some(items)),
        n => Err(format!(
            "{flag} has {n} entries and --static-backends has {backends}: write one for each backend, or leave the flag out"
        )),
    }
}

/// `alias:model,…`; the alias ends at the first colon, since model names may hold some.
fn aliases(text: &str, models: &HashSet<&str>) -> Result<Vec<(String, String)>, String> {
    let mut seen = HashSet::new();
    list(text)
        .into_iter()
        .map(|item| {
            let (alias, model) = item
                .split_once(':')
                .map(|(a, m)| (a.trim(), m.trim()))
                .filter(|(a, m)| !a.is_empty() && !m.is_empty())
                .ok_or_else(|| format!("--static-aliases: '{item}' is not of the form alias:model"))?;
            if !seen.insert(alias) {
                return Err(format!("--static-aliases names the alias '{alias}' twice"));
            }
            if models.contains(alias) {
                return Err(format!("--static-aliases: '{alias}' is also the name of a model in --static-models"));
            }
            Ok((alias.to_owned(), model.to_owned()))
        })
        .collect()
}

fn root_path(text: &str) -> Result<String, String> {
    let path = text.trim_end_matches('/');
    if !path.is_empty() && !path.starts_with('/')
        || !path.bytes().all(|b| (0x21..0x7f).contains(&b) && b != b'?' && b != b'#')
    {
        return Err(format!(
            "--root-path '{text}' is not a path: it begins with a slash and holds no blanks, queries or fragments"
        ));
    }
    Ok(path.to_owned())
}

fn key(flag: &str, key: Option<String>) -> Result<Option<Secret>, String> {
    match key {
        Some(key) if key.is_empty() || !key.bytes().all(|b| (0x21..0x7f).contains(&b)) => {
            Err(format!("{flag} must be printable ASCII without blanks, and not empty"))
        }
        key => Ok(key.map(Secret)),
    }
}

fn range(flag: &str, value: usize, least: usize, most: usize) -> Result<(), String> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(format!("{flag} {value} is out of range: {least} to {most}"))
    }
}

fn host(text: &str) -> Result<IpAddr, String> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    if bare == "localhost" {
        return Ok(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    bare.parse().map_err(|_| "write an IPv4 or IPv6 address, such as 0.0.0.0, 127.0.0.1 or ::".to_owned())
}

/// Seconds, whole or with a fraction, more than zero and at most a day.
fn seconds(text: &str) -> Result<Duration, String> {
    const MOST_S: f64 = 86_400.0;
    match text.parse::<f64>() {
        Ok(s) if s > 0.0 && s <= MOST_S => Ok(Duration::from_secs_f64(s)),
        _ => Err(format!("write a number of seconds, more than 0 and at most {MOST_S}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Config, String> {
        let args: Vec<String> = std::iter::once("trieway").chain(line.split_whitespace()).map(str::to_owned).collect();
        from_args(&args).map_err(|failure| match failure {
            Failure::Print(text) | Failure::Refuse(text) => text,
        })
    }

    #[test]
    fn one_backend_is_enough() {
        let config = read("--static-backends http://127.0.0.1:8000").expect("valid");
        assert_eq!(config.listen, Listen::Tcp { host: "0.0.0.0".parse().expect("address"), port: 8001 });
        assert_eq!(config.routing.policy, Policy::Prefixaware);
        assert_eq!(
            (
                config.routing.prefix_min_match_bytes,
                config.routing.prefix_chunk_bytes,
                config.routing.prefix_memory_bytes
            ),
            (0, 128, 512 << 20)
        );
        assert_eq!(
            config.health,
            Some(HealthChecks { interval: Duration::from_secs(5), timeout: Duration::from_secs(2) })
        );
        assert!(config.backends[0].models.is_empty());
    }

    #[test]
    fn takes_the_stacks_start_line() {
        let config = read(
            "--host 0.0.0.0 --port 8001 --service-discovery static --static-backends http://a:8000,http://b:8000 --static-models m1,m1 \
             --static-model-types chat,chat --static-aliases x:m1 --static-backend-health-checks --log-stats --log-stats-interval 10 \
             --engine-stats-interval 10 --request-stats-window 10 --routing-logic session --session-key x-user-id \
             --prefill-model-labels p --decode-model-labels d",
        )
        .expect("valid");
        assert_eq!(config.backends[1].models, ["m1"]);
        assert_eq!(config.aliases, [("x".to_owned(), "m1".to_owned())]);
        assert_eq!(config.log.stats_interval, Some(Duration::from_secs(10)));
    }

    #[test]
    fn refuses_in_one_line_that_names_the_flag() {
        let b = "--static-backends http://a:1";
        for (line, names) in [
            ("", "--static-backends is missing"),
            ("--static-backends ftp://a:1", "'ftp://a:1'"),
            ("--static-backends http://a:1,http://a:1/", "http://a:1 twice"),
            (&format!("{b} --static-models m1,m2"), "--static-models has 2 entries"),
            (&format!("{b} --static-model-types chat,poetry"), "--static-model-types"),
            (&format!("{b} --static-model-types poetry"), "'poetry'"),
            (&format!("{b} --static-aliases x"), "'x'"),
            (&format!("{b} --static-aliases x:a,x:b"), "'x' twice"),
            (&format!("{b} --routing-logic session"), "--session-key"),
            (&format!("{b} --routing-logic kvaware"), "kvaware"),
            (&format!("{b} --prefix-chunk-size 4"), "--prefix-chunk-size 4"),
            (&format!("{b} --prefix-memory lots"), "'lots'"),
            (&format!("{b} --prefix-memory 5"), "--prefix-memory 5"),
            (&format!("{b} --port 70000"), "70000"),
            (&format!("{b} --host example.com"), "example.com"),
            (&format!("{b} --workers 0"), "--workers 0"),
            (&format!("{b} --connect-timeout-seconds 0"), "--connect-timeout-seconds"),
            (&format!("{b} --root-path v1"), "--root-path 'v1'"),
            (&format!("{b} --service-discovery k8s"), "--service-discovery k8s"),
            (&format!("{b} --callbacks mod.handler"), "--callbacks is not supported"),
            (&format!("{b} --sentry-dsn=x"), "--sentry-dsn is not supported"),
            (&format!("{b} --no-such-flag"), "--no-such-flag"),
        ] {
            let error = read(line).expect_err(line);
            assert!(error.contains(names), "{line}: {error}");
            assert_eq!(error.lines().count(), 1, "{line}: {error}");
        }
    }

    #[test]
    fn help_and_version_are_printed() {
        assert!(read("--help").expect_err("help").contains("--prefix-min-match-length"));
        assert!(read("--version").expect_err("version").starts_with("trieway "));
    }

    #[test]
    fn every_flag_has_its_environment_variable_and_a_heading() {
        for arg in command().get_arguments().filter(|a| !matches!(a.get_id().as_str(), "help" | "version")) {
            let long = arg.get_long().expect("long name");
            let expected = format!("TRIEWAY_{}", long.to_uppercase().replace('-', "_"));
            assert_eq!(arg.get_env().and_then(|e| e.to_str()), Some(expected.as_str()), "--{long}");
            assert!(arg.get_help_heading().is_some(), "--{long}");
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let config = read("--static-backends http://a:1 --api-key hunter2").expect("valid");
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
