//! An open-loop client: conversations arrive when the plan says so, whatever the server does, and every latency counts from
//! the instant at which its request was meant to be sent.
//!
//! ```text
//! plan (who says what when) → talk (one conversation) → client (HTTP) → answer → stats → report
//! ```
//!
//! Must not know: what stands behind the URL. An engine's name is read from the response header `X-Engine`, if it is there.

mod answer;
mod client;
mod options;
mod plan;
mod report;
mod stats;
mod talk;
mod transcripts;

use std::cell::RefCell;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

pub use options::Options;
use plan::Plan;
use stats::Stats;

/// Replays the planned conversations and prints the report. Exit code 1: some requests failed.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    let target = client::Target::parse(&options.url, options.api_key.as_deref(), &options.header)?;
    let plan = Plan::new(options)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let stats = Rc::new(RefCell::new(Stats::default()));
    let start = Instant::now();
    runtime.block_on(tokio::task::LocalSet::new().run_until(replay(options, target, plan, Rc::clone(&stats))));
    let elapsed = start.elapsed();

    let stats = stats.borrow();
    let report = report::build(options, &stats, elapsed);
    let to_stdout = options.json.as_deref() == Some("-");
    match options.json.as_deref() {
        Some("-") => println!("{report:#}"),
        Some(path) => std::fs::write(path, format!("{report:#}\n")).map_err(|error| format!("{path}: {error}"))?,
        None => {}
    }
    if !to_stdout {
        print!("{}", report::table(&report));
    }
    let failed = stats.errors.values().sum::<u64>() > 0;
    Ok(if failed && !options.allow_errors { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn replay(options: &Options, target: client::Target, plan: Plan, stats: Rc<RefCell<Stats>>) {
    let start = Instant::now();
    let client = Rc::new(client::Client::new(target, options));
    let plan = Rc::new(plan);
    let show = std::io::stderr().is_terminal().then(|| {
        let (stats, total) = (Rc::clone(&stats), options.conversations * options.turns);
        tokio::task::spawn_local(progress(stats, total, start))
    });
    let bounded = options.at_once.is_some();
    let places = Rc::new(Semaphore::new(options.at_once.unwrap_or(options.conversations)));
    let talks: Vec<_> = (0..options.conversations)
        .map(|index| {
            let (places, plan) = (Rc::clone(&places), Rc::clone(&plan));
            let (client, stats) = (Rc::clone(&client), Rc::clone(&stats));
            tokio::task::spawn_local(async move {
                let planned = start + plan.starts[index];
                tokio::time::sleep_until(planned.into()).await;
                // With a place for everyone this takes no time; otherwise the conversation is meant to begin now.
                let _place = places.acquire().await;
                let begins = if bounded { Instant::now() } else { planned };
                talk::run(index, begins, &plan, &client, &stats).await;
            })
        })
        .collect();
    for talk in talks {
        // A conversation that panicked has said so on stderr; the others count.
        let _ = talk.await;
    }
    if let Some(show) = show {
        show.abort();
        eprint!("\r\x1b[K");
    }
}

async fn progress(stats: Rc<RefCell<Stats>>, total: usize, start: Instant) {
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let (done, failed) = {
            let stats = stats.borrow();
            (stats.requests, stats.errors.values().sum::<u64>())
        };
        let seconds = start.elapsed().as_secs_f64();
        eprint!("\r\x1b[K{done} of {total} requests, {failed} failed, {seconds:.1} s");
        let _ = std::io::stderr().flush();
    }
}
