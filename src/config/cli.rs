//! From the command line and the environment to a [`Config`]: what belongs together is checked here.

use std::collections::HashSet;

use clap::{CommandFactory, FromArgMatches};

use super::args::Args;
use super::backends::{aliases, backends, list};
use super::secret::{ConfigError, quoted_key, quoted_url};
use super::source::Source;
use super::{
    Config, HealthChecks, Kubernetes, Listen, Log, Outlier, Overload, Pin, Policy, Routing, Secret, Times, Ttft,
    unsupported,
};

/// The trie's smallest useful size; below it, the flag is refused.
const MIN_PREFIX_MEMORY_BYTES: usize = 1 << 20;
const MIN_CHUNK_BYTES: usize = 16;
const MIN_HASH_SEED_BYTES: usize = 16;
const MAX_CHUNK_BYTES: usize = 64 << 10;
/// 1 to 1,024 workers: more threads than any machine has cores are a slip of the finger.
const MAX_WORKERS: usize = 1024;

/// Why there is no configuration.
#[derive(Debug)]
pub enum Failure {
    /// `--help` or `--version`: print it on stdout and exit 0.
    Print(String),
    /// One line for stderr: names the flag, the value and what to do; exit 2.
    Refuse(ConfigError),
}

/// The command line as clap sees it; for tests that hold documents against it.
pub fn command() -> clap::Command {
    // One sentence at the end of the help says how variables are named; repeating it at each flag hides the flags.
    Args::command().mut_args(|arg| arg.hide_env(true))
}

/// The configuration that these arguments (the first is the program's name), the environment and the files that they name
/// ask for.
///
/// # Errors
/// [`Failure`]: help or version text, or the one line that says what is wrong.
pub fn from_args(args: &[String]) -> Result<Config, Failure> {
    if let Some(line) = unsupported::find(args.iter().skip(1).map(String::as_str)) {
        return Err(Failure::Refuse(ConfigError::new(&line)));
    }
    Source::read(args).map_err(Failure::Refuse)?.config()
}

/// The configuration that `args` ask for, with the defaults of this command.
pub(super) fn from_command(command: clap::Command, args: &[String]) -> Result<Config, Failure> {
    let matches = command.try_get_matches_from(args).map_err(clap_failure)?;
    let args = Args::from_arg_matches(&matches).map_err(clap_failure)?;
    config(args).map_err(|line| Failure::Refuse(ConfigError::new(&line)))
}

fn clap_failure(mut error: clap::Error) -> Failure {
    use clap::error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    let text = text_of(&mut error);
    if let Some(stray) = stray(&error) {
        return Failure::Refuse(ConfigError::new(&stray));
    }
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
    let line = line.trim_end_matches("For more information, try '--help'.").trim_end();
    Failure::Refuse(ConfigError::new(&format!("{line}; see trieway --help")))
}

/// What clap says, with the value as it may be shown.
pub(super) fn text_of(error: &mut clap::Error) -> String {
    use clap::error::{ContextKind, ContextValue};
    if let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) {
        let quoted = quoted_url(value, value);
        error.insert(ContextKind::InvalidValue, ContextValue::String(quoted));
    }
    error.render().to_string()
}

/// An argument that is no flag's is not quoted: a slip of the pen makes one of a key.
fn stray(error: &clap::Error) -> Option<String> {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return None };
    let name = argument.strip_prefix("--").map(|name| quoted_key(name) == name);
    match (error.kind(), name) {
        (ErrorKind::UnknownArgument, Some(false)) => {
            Some("there is a flag that is not known; see trieway --help".to_owned())
        }
        (ErrorKind::UnknownArgument, None) => Some(
            "there is an argument that belongs to no flag (is there a blank in a value?); see trieway --help"
                .to_owned(),
        ),
        _ => None,
    }
}

/// A body that grows is held twice for a moment: the largest must fit.
fn buffered(given: Option<usize>, max_body: usize) -> Result<usize, String> {
    match given {
        None => Ok(super::memory::default_buffered(max_body)),
        Some(bytes) if bytes >= max_body.saturating_mul(2) => Ok(bytes),
        Some(bytes) => Err(format!(
            "--max-buffered-bytes is {bytes}, less than twice --max-body-size, {max_body}: no body of that size could be taken; raise it, or lower --max-body-size"
        )),
    }
}

fn config(args: Args) -> Result<Config, String> {
    let kubernetes = kubernetes(&args)?;
    let backends = if kubernetes.is_some() { Vec::new() } else { backends(&args)? };
    let models: HashSet<&str> = backends.iter().flat_map(|b| b.models.iter().map(String::as_str)).collect();
    let aliases = aliases(&args.static_aliases, &models)?;
    if args.routing_logic == Policy::Session && args.session_key.is_none() {
        return Err(
            "--routing-logic session needs --session-key NAME: the header or body key that names a session".to_owned()
        );
    }
    if args.shadow_policy == Some(Policy::Session) && args.session_key.is_none() {
        return Err(
            "--shadow-policy session needs --session-key NAME: the header or body key that names a session".to_owned()
        );
    }
    range("--prefix-chunk-size", args.prefix_chunk_size, MIN_CHUNK_BYTES, MAX_CHUNK_BYTES)?;
    range("--prefix-memory", args.prefix_memory, MIN_PREFIX_MEMORY_BYTES, usize::MAX / 2)?;
    range("--max-head-size", args.max_head_size, 1024, 16 << 20)?;
    range("--max-body-size", args.max_body_size, 1024, 1 << 40)?;
    range("--max-connections", args.max_connections, 1, 16 << 20)?;
    let max_buffered_bytes = buffered(args.max_buffered_bytes, args.max_body_size)?;
    let pin = pin(&args.pin)?;
    let workers = workers(args.workers, &pin)?;
    let outlier = outlier(&args)?;
    Ok(Config {
        listen: args.uds.map_or(Listen::Tcp { host: args.host, port: args.port }, Listen::Unix),
        root_path: root_path(&args.root_path)?,
        workers,
        io: args.io,
        splice: args.splice,
        coalesce: args.coalesce,
        pin,
        backends,
        kubernetes,
        aliases,
        health: (!args.no_static_backend_health_checks).then_some(HealthChecks {
            interval: args.static_backend_health_check_interval,
            timeout: args.static_backend_health_check_timeout_seconds,
        }),
        slow_start: args.slow_start_seconds,
        outlier,
        routing: Routing {
            policy: args.routing_logic,
            prefix_min_match_bytes: args.prefix_min_match_length,
            prefix_chunk_bytes: args.prefix_chunk_size,
            prefix_memory_bytes: args.prefix_memory,
            session_key: args.session_key,
            ttft: Ttft {
                pass_s: args.ttft_pass_ms / 1e3,
                token_s: args.ttft_token_us / 1e6,
                attention_s: args.ttft_attention_ns / 1e9,
                kv_token_s: args.ttft_kv_token_ns / 1e9,
                pass_tokens: args.ttft_pass_tokens,
                load_price: args.ttft_load_price,
                idle_price: args.ttft_idle_price,
                fair_tokens: args.ttft_fair_tokens,
                answer_tokens: args.ttft_answer_tokens,
                hold_s: args.ttft_hold_ms as f64 / 1e3,
            },
            shadow: args.shadow_policy,
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
        overload: Overload {
            inflight_per_backend: args.max_inflight,
            inflight_per_key: args.max_inflight_per_key,
            queue_requests: args.queue_size,
            queue_timeout: args.queue_timeout_seconds,
        },
        max_head_bytes: args.max_head_size,
        max_body_bytes: args.max_body_size,
        max_buffered_bytes,
        max_connections: args.max_connections,
        allow_half_close: args.allow_half_close,
        preserve_host: args.preserve_host,
        via: args.via,
        api_key: key("--api-key", args.api_key)?,
        backend_api_key: key("--backend-api-key", args.backend_api_key)?,
        hash_seed: hash_seed(args.prefix_hash_seed)?,
        state_file: args.state_file,
        log: Log {
            level: args.log_level,
            format: args.log_format,
            requests: args.log_requests,
            stats_interval: args.log_stats.then_some(args.log_stats_interval),
        },
        source: Source::default(),
    })
}

fn outlier(args: &Args) -> Result<Outlier, String> {
    let (base, max) = (args.outlier_base_ejection_seconds, args.outlier_max_ejection_seconds);
    if base > max {
        return Err(format!(
            "--outlier-base-ejection-seconds ({}) is more than --outlier-max-ejection-seconds ({})",
            base.as_secs_f64(),
            max.as_secs_f64()
        ));
    }
    let consecutive_errors = args.outlier_consecutive_errors;
    Ok(Outlier { consecutive_errors, base_ejection: base, max_ejection: max })
}

fn kubernetes(args: &Args) -> Result<Option<Kubernetes>, String> {
    if args.service_discovery == "static" {
        return Ok(None);
    }
    let refuse = |what: &str| Err(format!("--service-discovery {}: {what}", args.service_discovery));
    if !cfg!(feature = "kubernetes") {
        return refuse(
            "this program was built without Kubernetes support; build it with --features kubernetes, or name the backends by --static-backends",
        );
    }
    if !args.static_backends.is_empty() || !args.static_models.is_empty() {
        return refuse(
            "the pods are the backends, each with the models that it serves; leave out --static-backends and --static-models",
        );
    }
    if args.k8s_service_discovery_type == "service-name" {
        return Err("--k8s-service-discovery-type service-name is not supported: a service hides which pod holds a prefix; use pod-ip".to_owned());
    }
    Ok(Some(Kubernetes {
        namespace: args.k8s_namespace.clone(),
        label_selector: args.k8s_label_selector.clone(),
        port: args.k8s_port,
        watch_timeout_s: (args.k8s_watcher_timeout_seconds > 0).then_some(args.k8s_watcher_timeout_seconds),
    }))
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

/// As many as were asked for; else one a CPU of `--pin`; else one a CPU.
fn workers(asked: Option<usize>, pin: &Pin) -> Result<usize, String> {
    let cpus = if let Pin::Cpus(cpus) = pin { Some(cpus.len()) } else { None };
    let workers = asked.or(cpus).unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    range("--workers", workers, 1, MAX_WORKERS)?;
    match cpus {
        Some(cpus) if cpus != workers => {
            Err(format!("--pin names {cpus} CPUs for {workers} workers: name one a worker, or leave --workers out"))
        }
        _ => Ok(workers),
    }
}

/// `auto`, `none`, or CPUs and ranges of them: `0,2-3`.
fn pin(text: &str) -> Result<Pin, String> {
    match text {
        "auto" => return Ok(Pin::Auto),
        "none" => return Ok(Pin::None),
        _ => {}
    }
    let wrong = || format!("--pin '{text}' is not auto, none or a list of CPUs such as 0,2-3");
    let cpu = |text: &str| text.trim().parse::<usize>().ok().filter(|&cpu| cpu < MAX_WORKERS).ok_or_else(wrong);
    let mut cpus = Vec::new();
    for item in list(text) {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        cpus.extend(cpu(first)?..=cpu(last)?);
    }
    let distinct: HashSet<_> = cpus.iter().collect();
    if cpus.is_empty() || distinct.len() != cpus.len() { Err(wrong()) } else { Ok(Pin::Cpus(cpus)) }
}

fn key(flag: &str, key: Option<Secret>) -> Result<Option<Secret>, String> {
    let printable = |key: &str| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
    match key {
        Some(key) if !printable(key.expose()) => {
            Err(format!("{flag} must be printable ASCII without blanks, and not empty"))
        }
        key => Ok(key),
    }
}

fn hash_seed(seed: Option<Secret>) -> Result<Option<Secret>, String> {
    let seed = key("--prefix-hash-seed", seed)?;
    match &seed {
        Some(seed) if seed.expose().len() < MIN_HASH_SEED_BYTES => Err(format!(
            "--prefix-hash-seed must have {MIN_HASH_SEED_BYTES} characters or more, such as openssl rand -hex 16 gives"
        )),
        _ => Ok(seed),
    }
}

fn range(flag: &str, value: usize, least: usize, most: usize) -> Result<(), String> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(format!("{flag} {value} is out of range: {least} to {most}"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn read(line: &str) -> Result<Config, String> {
        let args: Vec<String> = std::iter::once("trieway").chain(line.split_whitespace()).map(str::to_owned).collect();
        from_args(&args).map_err(|failure| match failure {
            Failure::Print(text) => text,
            Failure::Refuse(error) => error.to_string(),
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
            (&format!("{b} --prefix-hash-seed tooshort"), "--prefix-hash-seed must have 16"),
            (&format!("{b} --port 70000"), "70000"),
            (&format!("{b} --host example.com"), "example.com"),
            (&format!("{b} --workers 0"), "--workers 0"),
            (&format!("{b} --pin 0,x"), "--pin '0,x'"),
            (&format!("{b} --pin 3-1"), "--pin '3-1'"),
            (&format!("{b} --pin 0,0-1"), "--pin '0,0-1'"),
            (&format!("{b} --pin 0,1 --workers 3"), "--pin names 2 CPUs"),
            (&format!("{b} --connect-timeout-seconds 0"), "--connect-timeout-seconds"),
            (&format!("{b} --root-path v1"), "--root-path 'v1'"),
            (&format!("{b} --service-discovery k8s"), "--service-discovery k8s"),
            (&format!("{b} --callbacks mod.handler"), "--callbacks is not supported"),
            (&format!("{b} --drain-backends http://a:2"), "http://a:2 is not one of"),
            (&format!("{b} --sentry-dsn=x"), "--sentry-dsn is not supported"),
            (&format!("{b} --no-such-flag"), "--no-such-flag"),
        ] {
            let error = read(line).expect_err(line);
            assert!(error.contains(names), "{line}: {error}");
            assert_eq!(error.lines().count(), 1, "{line}: {error}");
        }
    }

    #[test]
    fn workers_follow_the_cpus_that_are_named() {
        let config = read("--static-backends http://a:1 --pin 4,0-2").expect("valid");
        assert_eq!((config.pin, config.workers), (Pin::Cpus(vec![4, 0, 1, 2]), 4));
        assert_eq!(read("--static-backends http://a:1").expect("valid").pin, Pin::Auto);
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
