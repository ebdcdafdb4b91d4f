//! A router between engines that fail and clients of every manner, for minutes: whoever behaves well is served, and what the
//! router holds at the end is what it held at the beginning.
//!
//! ```text
//! clients (manners) → wire → router (the process) → engines ← weather (faults, restarts, reloads, takeovers)
//!          request, hostile
//! ```
//!
//! This tool knows Trieway, unlike the others: it starts the binary, reads its log, and sends it SIGHUP and SIGUSR2. Engines and
//! clients live in this process. What each client and the weather do follows from the seed; their order is the machine's own.

mod clients;
mod hostile;
mod request;
mod rest;
mod router;
mod weather;
mod wire;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::{Args, Parser};

use super::engine;
use request::Verdict;
use rest::Rest;
use router::Router;
use weather::{Engines, Happened};

/// How long, how many, and of what.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The router's binary
    #[arg(long, value_name = "PATH")]
    router: PathBuf,
    /// How long clients talk to it
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// The router's driver: auto, epoll or uring
    #[arg(long, default_value = "auto", value_name = "MODE")]
    io: String,
    /// Clients at a time; four of ten behave well, the others read or write slowly, pipeline, leave, half-close or attack
    #[arg(long, default_value_t = 200, value_name = "COUNT", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    clients: usize,
    /// Engines behind it; the first is well but for moments in which all are gone
    #[arg(long, default_value_t = 4, value_name = "COUNT", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(2..))]
    engines: usize,
    /// The router's workers
    #[arg(long, default_value_t = 2, value_name = "COUNT", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    workers: usize,
    /// The router's policy
    #[arg(long, default_value = "ttft", value_name = "POLICY")]
    routing_logic: String,
    /// Faults, texts and manners are the same for the same seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// So many violations end the run.
const ENOUGH: usize = 5;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

#[derive(Debug, Default)]
struct Tally {
    right: u64,
    cut: u64,
    errors: BTreeMap<String, u64>,
    /// An idle connection was closed as a request was on its way.
    crossed: u64,
    /// Half-closed, and taken for gone.
    dismissed: u64,
    aborted: u64,
    attacks: u64,
    longest_wait: Duration,
}

impl Tally {
    fn waited(&mut self, time: Duration) {
        self.longest_wait = self.longest_wait.max(time);
    }
}

/// What clients, weather and the run itself share; one thread.
struct Shared {
    address: SocketAddr,
    began: Instant,
    lasts: Duration,
    engines: Engines,
    router: RefCell<Router>,
    tally: RefCell<Tally>,
    violations: RefCell<Vec<String>>,
    stopped: Cell<bool>,
}

impl Shared {
    fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    fn over(&self) -> bool {
        self.stopped.get() || self.elapsed() >= self.lasts
    }

    fn violated(&self, what: String) {
        let mut violations = self.violations.borrow_mut();
        eprintln!("trieway-loadtest: after {:.1} s: {what}", self.elapsed().as_secs_f64());
        violations.push(what);
        if violations.len() >= ENOUGH {
            self.stopped.set(true);
        }
    }

    fn judge(&self, verdict: &Verdict) {
        let mut tally = self.tally.borrow_mut();
        match verdict {
            Verdict::Right => {}
            Verdict::Cut => tally.cut += 1,
            Verdict::Error(code) => *tally.errors.entry(code.clone()).or_default() += 1,
            Verdict::Wrong(what) => {
                drop(tally);
                self.violated(what.clone());
            }
        }
    }
}

/// Runs it and prints the report. Exit code 1: a promise was broken. Errors: what kept it from running.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    engine::raise_descriptor_limit();
    let mut ports = start_engines(options.engines + 1)?;
    let door = ports.pop().ok_or("no engine")?;
    let config = std::env::temp_dir().join(format!("trieway-chaos-{}.yaml", std::process::id()));
    let engines = Engines { ports, door, config };
    engines.write_config(&engines.ports)?;
    let outcome = run_with(options, engines);
    let _ = std::fs::remove_file(std::env::temp_dir().join(format!("trieway-chaos-{}.yaml", std::process::id())));
    outcome
}

fn run_with(options: &Options, engines: Engines) -> Result<ExitCode, String> {
    let router = Router::start(&options.router, &flags(options, &engines.config))?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let shared = Rc::new(Shared {
        address: router.address,
        began: Instant::now(),
        lasts: Duration::from_secs(options.seconds),
        engines,
        router: RefCell::new(router),
        tally: RefCell::default(),
        violations: RefCell::default(),
        stopped: Cell::new(false),
    });
    let local = tokio::task::LocalSet::new();
    let told = runtime.block_on(local.run_until(storm(options, Rc::clone(&shared))));
    let (happened, rests) = told.map_err(|error| format!("{error}\n{}", shared.router.borrow().log()))?;
    print!("{}", report(options, &shared, &happened, &rests));
    let kept = shared.violations.borrow().is_empty();
    if !kept {
        eprint!("the router's last lines:\n{}", shared.router.borrow().log());
    }
    Ok(if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn storm(options: &Options, shared: Rc<Shared>) -> Result<(Happened, [Rest; 2]), String> {
    let before = rest::settled(&shared, None).await;
    let talks: Vec<_> = (0..options.clients)
        .map(|number| tokio::task::spawn_local(clients::run(Rc::clone(&shared), number, options.seed)))
        .collect();
    let happened = weather::change(&shared, options.seed).await?;
    for talk in talks {
        talk.await.map_err(|error| format!("a client failed: {error}"))?;
    }
    let after = rest::settled(&shared, Some(&before)).await;
    rest::check_engines(&shared).await?;
    Ok((happened, [before, after]))
}

/// Limits that end within seconds, so that a stalled engine is an error soon.
fn flags(options: &Options, config: &std::path::Path) -> Vec<String> {
    let fixed = "--first-byte-timeout-seconds 4 --between-bytes-timeout-seconds 4 --connect-timeout-seconds 2 \
        --client-head-timeout-seconds 5 --client-body-timeout-seconds 5 --client-idle-timeout-seconds 30 \
        --upstream-idle-timeout-seconds 0.5 --static-backend-health-check-interval 0.5 --engine-stats-interval 1 \
        --drain-timeout-seconds 20 --prefix-memory 32MiB";
    let mut flags: Vec<String> = fixed.split_whitespace().map(str::to_owned).collect();
    let workers = options.workers.to_string();
    let given = [("--io", &*options.io), ("--workers", &*workers), ("--routing-logic", &*options.routing_logic)];
    for (name, value) in given.into_iter().chain([("--dynamic-config-yaml", &*config.to_string_lossy())]) {
        flags.extend([name.to_owned(), value.to_owned()]);
    }
    flags
}

fn start_engines(count: usize) -> Result<Vec<u16>, String> {
    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        options: engine::Options,
    }
    let ports = vec!["0"; count].join(",");
    let rates = ["--prefill-tokens-per-s", "200000", "--decode-tokens-per-s", "1000"];
    let parsed = Flags::try_parse_from(["engine", "--port", &ports].iter().chain(&rates));
    engine::spawn(parsed.map_err(|error| error.to_string())?.options)
}

fn report(options: &Options, shared: &Shared, happened: &Happened, rests: &[Rest; 2]) -> String {
    let (tally, violations) = (shared.tally.borrow(), shared.violations.borrow());
    let errors: Vec<String> = tally.errors.iter().map(|(code, count)| format!("{code} {count}")).collect();
    let Happened { faults, restarts, blackouts, reloads, takeovers } = happened;
    let [before, after] = rests;
    let mut text = format!(
        "chaos: {} s, {} clients, {} engines, io {}, seed {}\n\
         weather     {faults} faults, {restarts} restarts, {blackouts} moments without any engine, {reloads} reloads, {takeovers} takeovers\n\
         answers     {} right, {} cut off visibly, {} explicit errors ({})\n\
         manners     {} aborted, {} attacks, {} half-closed and taken for gone, {} requests that crossed with a close\n\
         longest     {:.2} s for one try of a well-behaved client\n\
         memory      {:.1} MiB before, {:.1} MiB after\n\
         descriptors {} before, {} after\n",
        options.seconds,
        options.clients,
        options.engines,
        options.io,
        options.seed,
        tally.right,
        tally.cut,
        tally.errors.values().sum::<u64>(),
        errors.join(", "),
        tally.aborted,
        tally.attacks,
        tally.dismissed,
        tally.crossed,
        tally.longest_wait.as_secs_f64(),
        before.resident_kib as f64 / 1024.0,
        after.resident_kib as f64 / 1024.0,
        before.descriptors,
        after.descriptors,
    );
    for what in violations.iter() {
        text.push_str(&format!("violation   {what}\n"));
    }
    if violations.is_empty() {
        text.push_str("every promise was kept\n");
    }
    text
}
