//! The router's process: read the configuration, start the workers, run the control plane until it has drained.

#[allow(unsafe_code, reason = "asks the allocator, which is C, to give memory back")]
mod allocator;

use std::process::ExitCode;

use trieway::config::{self, Config, Failure, Policy, TopOptions};
use trieway::control::{self, Control};
use trieway::data;
use trieway::shared::Shared;
use trieway::trie::{self, Trie};

/// A wrong flag, an address in use, a limit that is too low: nothing was started.
const BAD_START: u8 = 2;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    if let Some(options) = config::top_from_args(&args) {
        return top(options);
    }
    let config = match config::from_args(&args) {
        Ok(config) => config,
        Err(Failure::Print(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(Failure::Refuse(error)) => return refuse(&error.to_string()),
    };
    control::init_logging(&config.log);
    match start(config) {
        Ok((control, shared)) => {
            control.run(shared);
            // Rings and connections end with the process.
            std::process::exit(0);
        }
        Err(line) => refuse(&line),
    }
}

/// `trieway top`.
fn top(options: Result<TopOptions, Failure>) -> ExitCode {
    match options.map(|options| look(&options)) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(line)) => refuse(&line),
        Err(Failure::Refuse(error)) => refuse(&error.to_string()),
        Err(Failure::Print(text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
    }
}

#[cfg(feature = "top")]
fn look(options: &TopOptions) -> Result<(), String> {
    trieway::top::run(options)
}

#[cfg(not(feature = "top"))]
fn look(_: &TopOptions) -> Result<(), String> {
    Err("top is not in this build: cargo build --release --features top".to_owned())
}

fn refuse(line: &str) -> ExitCode {
    eprintln!("trieway: {line}");
    ExitCode::from(BAD_START)
}

fn start(mut config: Config) -> Result<(Control, &'static Shared), String> {
    // First of all: nothing may be opened before the descriptors that were passed on are taken.
    let inherited = data::inherited(config.workers)?;
    if let Some(path) = &config.state_file {
        control::check_state_file(path)?;
    }
    let descriptors = rlimit::increase_nofile_limit(u64::MAX).unwrap_or(u64::MAX);
    let fewer_connections = data::fit(&mut config, descriptors);
    let (driver, why_not_uring) = data::pick(config.io, config.workers)?;
    let trie =
        Trie::new(&trie::Options { memory_bytes: config.routing.prefix_memory_bytes, slots: config::MAX_BACKENDS })
            .map_err(|error| format!("--prefix-memory: {error}"))?;
    let takes_over = std::env::var_os(config::HANDOVER_VARIABLE).is_some();
    let listeners = match inherited {
        Some(listeners) => listeners,
        None => data::listen(&config.listen, config.workers)?,
    };
    let (control, socket) =
        Control::bind().map_err(|error| format!("the control plane's socket cannot be made: {error}"))?;
    let shown = listeners.shown.clone();
    let heirlooms =
        listeners.duplicate().map_err(|error| format!("the listening sockets cannot be duplicated: {error}"))?;
    let shared = Shared::new(config, trie, socket, driver.as_str());
    // Before any prompt is hashed; a process that takes over is told with the state.
    if let (Some(path), false) = (&shared.config.state_file, takes_over)
        && let Some(seed) = control::seed_of_state_file(path, shared.config.routing.prefix_chunk_bytes)
    {
        shared.adopt(&seed);
    }
    let shared: &'static Shared = Box::leak(Box::new(if takes_over { shared.starting() } else { shared }));
    data::start(shared, listeners, driver)?;
    if let Some(why) = why_not_uring {
        tracing::warn!("running on epoll: {why}");
    }
    if let Some(line) = fewer_connections {
        tracing::warn!("{line}");
    }
    tracing::info!("trieway {} listening on {shown}: {}", env!("CARGO_PKG_VERSION"), summary(&shared.config, driver));
    Ok((control.with_listeners(heirlooms).with_upkeep(allocator::give_back), shared))
}

/// The start line's facts: workers, io mode, backends, policy.
fn summary(config: &Config, driver: data::Driver) -> String {
    let routing = &config.routing;
    let policy = match routing.policy {
        Policy::Prefixaware => format!("prefixaware from {} matched bytes on", routing.prefix_min_match_bytes),
        Policy::Session => format!("session by {}", routing.session_key.as_deref().unwrap_or_default()),
        other => other.as_str().to_owned(),
    };
    let plural = |n: usize, what: &str| if n == 1 { format!("{n} {what}") } else { format!("{n} {what}s") };
    format!(
        "{} on {driver}, {}, policy {policy}",
        plural(config.workers, "worker"),
        plural(config.backends.len(), "backend")
    )
}
