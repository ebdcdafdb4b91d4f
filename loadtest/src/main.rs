//! The command line of the load-testing tools: one subcommand a tool.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use trieway_loadtest::{chaos, compare, engine, events, load, plot};

#[derive(Parser)]
#[command(name = "trieway-loadtest", version, about = "Fake LLM engines and load for trying out LLM routers")]
struct Cli {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(Subcommand)]
enum Tool {
    /// Run fake OpenAI-style engines with a real block prefix cache
    Engine(engine::Options),
    /// Replay conversations against a server and report latency, cache hits and errors
    Load(load::Options),
    /// Stream stamped events through a proxy, and see what it does to each
    Events(events::Options),
    /// Print reports of `load` side by side
    Compare(compare::Options),
    /// Print the figures of scripts/bench as SVG
    Plot(plot::Options),
    /// Throw faults at the router from both sides, and hold it to its promises
    Chaos(chaos::Options),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().tool {
        Tool::Engine(options) => engine::run(options),
        Tool::Load(options) => load::run(&options),
        Tool::Events(options) => events::run(&options),
        Tool::Compare(options) => compare::run(&options),
        Tool::Plot(options) => plot::run(&options),
        Tool::Chaos(options) => chaos::run(&options),
    };
    match outcome {
        Ok(code) => code,
        Err(message) => {
            eprintln!("trieway-loadtest: {message}");
            ExitCode::from(2)
        }
    }
}
