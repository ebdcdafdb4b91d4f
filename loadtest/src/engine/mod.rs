//! Fake LLM engines: OpenAI's API over a model of an engine's time and KV cache.
//!
//! ```text
//! server (sockets, timers) → exchange (request → answer) → prompt, schedule → cache
//!                                                        → answer, routes
//! ```
//!
//! Each thread runs its share of the engines in one loop; an engine belongs to one thread, and nothing is shared.

mod answer;
mod cache;
mod conn;
mod door;
mod exchange;
mod fault_acts;
mod faults;
mod generate;
mod http;
mod journal;
mod metrics;
mod options;
mod prompt;
mod routes;
mod schedule;
mod server;
mod timers;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

pub use faults::Fault;
pub use options::Options;

use http::{Head, Method};
use journal::Journal;
use metrics::{Counters, Gauges};
use routes::Reply;
use schedule::{Pace, Scheduler};

/// One engine: all that it knows but its sockets.
#[derive(Debug)]
pub(crate) struct Engine {
    port: u16,
    options: Arc<Options>,
    scheduler: Scheduler,
    counters: Counters,
    journal: Journal,
    asleep: bool,
    started_unix_s: f64,
    fault: Option<Fault>,
    /// The ports of all engines of this thread.
    siblings: Arc<[u16]>,
    /// Changes of fault that came by /debug/fault: for which port, which.
    fault_orders: Vec<(u16, Option<Fault>)>,
    /// Requests that the engine's fault might have hit.
    exposed: u64,
    /// Generations so far, for their ids.
    numbered: u64,
    /// The queue or the room in the cache has changed.
    pump_wanted: bool,
}

impl Engine {
    fn new(port: u16, siblings: &Arc<[u16]>, options: &Arc<Options>) -> Self {
        let pace = Pace {
            prefill_tokens_per_s: options.prefill_tokens_per_s,
            decode_tokens_per_s: options.decode_tokens_per_s,
            block_tokens: options.block_tokens,
            max_running: options.max_running,
        };
        Self {
            port,
            options: Arc::clone(options),
            scheduler: Scheduler::new(pace, options.kv_tokens),
            counters: Counters::default(),
            journal: Journal::default(),
            asleep: false,
            started_unix_s: journal::unix_s(),
            fault: options.fault,
            siblings: Arc::clone(siblings),
            fault_orders: Vec::new(),
            exposed: 0,
            numbered: 0,
            pump_wanted: false,
        }
    }

    /// The engine's own fault, if it hits this request.
    fn fault_for(&mut self, head: &Head) -> Option<Fault> {
        let fault = self.fault?;
        let path = head.path();
        let generates = head.method == Method::Post && path.starts_with("/v1/");
        if path.starts_with("/debug/") || !(generates || self.options.fault_all) {
            return None;
        }
        self.exposed += 1;
        self.exposed.is_multiple_of(self.options.fault_every).then_some(fault)
    }

    /// The model that a request's name stands for.
    fn model_for(&self, name: &str) -> Result<&str, Box<Reply>> {
        let known = &self.options.model;
        let found = if name.is_empty() { known.first() } else { known.iter().find(|model| *model == name) };
        found
            .map(String::as_str)
            .ok_or_else(|| Box::new(Reply::error(404, "NotFoundError", &format!("The model `{name}` does not exist."))))
    }

    fn metrics_page(&self) -> String {
        let cache = &self.scheduler.cache;
        let now = Gauges {
            model: self.options.model.first().map_or("", String::as_str),
            running: self.scheduler.running(),
            waiting: self.scheduler.waiting(),
            kv_used: cache.held() as f64 / cache.capacity().max(1) as f64,
            kv_blocks: cache.capacity(),
            block_tokens: self.options.block_tokens,
            started_unix_s: self.started_unix_s,
            asleep: self.asleep,
        };
        metrics::render(&self.counters, &now)
    }
}

/// Starts engines on threads of their own and returns their ports, in the order of the flags.
///
/// They run until the process ends. Errors: no port named, or a port that cannot be had.
pub fn spawn(options: Options) -> Result<Vec<u16>, String> {
    let options = Arc::new(options);
    let mut doors = Vec::new();
    for port in options.ports()? {
        let address = std::net::SocketAddr::new(options.host, port);
        doors.push(door::Door::open(address).map_err(|error| format!("cannot listen on {address}: {error}"))?);
    }
    let ports = doors.iter().map(door::Door::port).collect();
    let threads = options.threads.clamp(1, doors.len());
    let mut shares: Vec<Vec<door::Door>> = (0..threads).map(|_| Vec::new()).collect();
    for (index, door) in doors.into_iter().enumerate() {
        shares[index % threads].push(door);
    }
    for share in shares {
        let mut server = server::Server::new(share, &options).map_err(|error| format!("no event queue: {error}"))?;
        let run = move || {
            if let Err(error) = server.run() {
                eprintln!("trieway-loadtest: the engines' event queue failed: {error}");
                std::process::exit(1);
            }
        };
        std::thread::Builder::new().name("engines".into()).spawn(run).map_err(|error| format!("no thread: {error}"))?;
    }
    Ok(ports)
}

/// Runs engines until a signal or `--stop-after`.
pub fn run(options: Options) -> Result<ExitCode, String> {
    if options.die_with_parent {
        let signal = Some(rustix::process::Signal::TERM);
        rustix::process::set_parent_process_death_signal(signal)
            .map_err(|error| format!("--die-with-parent: {error}"))?;
    }
    raise_descriptor_limit();
    let stop_after = options.stop_after;
    let model = options.model.join(",");
    let host = options.host;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        use tokio::signal::unix::{SignalKind, signal};
        // Before the ports are known to anyone: whoever knows them may send a signal.
        let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
        let ports = spawn(options)?;
        eprintln!("trieway-loadtest: {} engine(s) of {model} on {host}", ports.len());
        for port in ports {
            println!("{port}");
        }
        let limit = async {
            match stop_after {
                Some(seconds) => tokio::time::sleep(Duration::from_secs_f64(seconds)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = limit => {}
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Thousands of streams need as many descriptors as the machine grants.
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Without it the engines still serve as many as the limit allows.
    let _ = setrlimit(Resource::Nofile, limit);
}
