//! The command line of the simulator.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use trieway_sim::engine::Speed;
use trieway_sim::policy::{GRID, Policy};
use trieway_sim::report::{Report, Row};
use trieway_sim::stats::Figures;
use trieway_sim::trace::Trace;
use trieway_sim::world::{Setup, play};

#[derive(Parser)]
#[command(name = "sim", version, about = "Compare routing policies on recorded traffic over simulated LLM engines")]
struct Cli {
    /// Recorded traffic in Mooncake's format: JSONL of timestamp (ms), input_length, output_length, hash_ids
    #[arg(required = true, value_name = "FILE")]
    traces: Vec<PathBuf>,
    /// Which part of it, as shares of its requests
    #[arg(long, default_value = "0..1", value_parser = part, value_name = "FROM..TO")]
    part: (f64, f64),
    /// A policy, as NAME or NAME:KEY=VALUE,…; may be repeated; left out: every policy at every point of its grid
    #[arg(long, value_name = "POLICY")]
    policy: Vec<String>,
    /// How many times faster requests arrive than recorded; may be repeated
    #[arg(long, default_values_t = [1.0], value_delimiter = ',', value_name = "TIMES")]
    scale: Vec<f64>,
    #[arg(long, default_value_t = 8, value_name = "COUNT")]
    backends: usize,
    /// KV memory of each engine
    #[arg(long, default_value_t = 400_000, value_name = "TOKENS")]
    kv_tokens: u32,
    /// Speed of the engines: h100 or a100, an 8B model each
    #[arg(long, default_value = "a100", value_parser = speed)]
    engine: Speed,
    /// Runs of each, with seeds 1, 2, …
    #[arg(long, default_value_t = 5, value_name = "COUNT")]
    seeds: u64,
    /// Routers side by side that know nothing of each other's choices but their load
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    routers: usize,
    /// How old that knowledge may be
    #[arg(long, default_value_t = 0.0, value_name = "SECONDS")]
    stale_s: f64,
    /// Threads; left out: one a core
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
    /// Write results.csv and plots there
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("sim: {message}");
            ExitCode::from(2)
        }
    }
}

fn run(cli: &Cli) -> Result<(), String> {
    let trace = Trace::read(&cli.traces)?.slice(cli.part.0, cli.part.1);
    let names: Vec<&str> = match cli.policy.is_empty() {
        true => GRID.to_vec(),
        false => cli.policy.iter().map(String::as_str).collect(),
    };
    let policies = names.iter().map(|name| Policy::parse(name, cli.engine)).collect::<Result<Vec<_>, _>>()?;
    let longest = trace.requests.iter().map(|r| r.prompt_tokens + r.output_tokens).max().unwrap_or(0);
    if trace.requests.is_empty() || longest + 16 > cli.kv_tokens || cli.backends == 0 || cli.routers == 0 {
        return Err(format!("nothing to play, or a request of {longest} tokens that no engine can hold"));
    }
    let mut jobs = Vec::new();
    for &scale in &cli.scale {
        for policy in 0..policies.len() {
            jobs.extend((1..=cli.seeds).map(|seed| (scale, policy, seed)));
        }
    }
    let figures = play_all(cli, &trace, &policies, &jobs);
    let mut rows: Vec<Row> = Vec::new();
    for ((scale, policy, _), figures) in jobs.into_iter().zip(figures) {
        match rows.last_mut() {
            Some(row) if row.scale == scale && row.policy == names[policy] => row.runs.push(figures),
            _ => rows.push(Row { scale, policy: names[policy].to_owned(), runs: vec![figures] }),
        }
    }
    let report = Report { rows };
    print!("{}", report.table());
    cli.out.as_ref().map_or(Ok(()), |folder| report.write(folder))
}

/// Plays all jobs on several threads; the figures are in the jobs' order.
fn play_all(cli: &Cli, trace: &Trace, policies: &[Policy], jobs: &[(f64, usize, u64)]) -> Vec<Figures> {
    let bar = ProgressBar::new(jobs.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {eta} left") {
        bar.set_style(style);
    }
    let done = Mutex::new(vec![Figures::default(); jobs.len()]);
    let next = AtomicUsize::new(0);
    let threads = cli.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some(&(scale, policy, seed)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let at = jobs.iter().position(|job| *job == (scale, policy, seed)).unwrap_or(0);
                    let setup = Setup {
                        backends: cli.backends,
                        kv_tokens: cli.kv_tokens,
                        speed: cli.engine,
                        scale,
                        routers: cli.routers,
                        stale_s: cli.stale_s,
                    };
                    let figures = play(trace, &setup, &policies[policy], seed).figures(trace, &cli.engine);
                    if let Ok(mut done) = done.lock() {
                        done[at] = figures;
                    }
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    done.into_inner().unwrap_or_default()
}

fn part(text: &str) -> Result<(f64, f64), String> {
    let wrong = || format!("{text:?} is not of the form 0.5..1");
    let (from, to) = text.split_once("..").ok_or_else(wrong)?;
    let (from, to) = (from.parse().map_err(|_| wrong())?, to.parse().map_err(|_| wrong())?);
    if (0.0..=1.0).contains(&from) && from < to && to <= 1.0 { Ok((from, to)) } else { Err(wrong()) }
}

fn speed(text: &str) -> Result<Speed, String> {
    match text {
        "h100" => Ok(Speed::H100),
        "a100" => Ok(Speed::A100),
        _ => Err("write h100 or a100".to_owned()),
    }
}
