//! How many instructions the pure parts of a request take, held against a baseline.
//!
//! `instructions`            counts every case under valgrind's cachegrind; exit 1 when one is 5 % above its baseline
//! `instructions --save`     writes what was counted as the baseline
//! `instructions run CASE N` does the case N times: what is counted
//!
//! A case is run for two numbers of turns, and the difference is what counts: start and preparation fall out. Counts do not
//! depend on what else the machine does, but on the compiler: a baseline of another one informs and does not fail.

mod cases;

// The rooms as they stand, without the packages of the product: they are pure, so nothing else of it is missed.
#[allow(unused_imports, reason = "a part of each room is used")]
#[path = "../../src/http/mod.rs"]
mod http;
#[allow(unused_imports, reason = "a part of each room is used")]
#[path = "../../src/prompt/mod.rs"]
mod prompt;
#[allow(unused_imports, reason = "a part of each room is used")]
#[path = "../../src/route/mod.rs"]
mod route;
#[allow(unused_imports, reason = "a part of each room is used")]
#[path = "../../src/trie/mod.rs"]
mod trie;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/baseline.txt");
const TURNS: [u64; 2] = [200, 1200];
/// A case may take this much more than its baseline.
const TOLERANCE_PERCENT: f64 = 5.0;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["run", case, turns] => match (cases::find(case), turns.parse()) {
            (Some(case), Ok(turns)) => {
                case(turns);
                ExitCode::SUCCESS
            }
            _ => ExitCode::from(2),
        },
        [] => gate(false),
        ["--save"] => gate(true),
        _ => {
            eprintln!("usage: instructions [--save | run CASE TURNS]");
            ExitCode::from(2)
        }
    }
}

fn gate(save: bool) -> ExitCode {
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: instruction counts (valgrind is missing: apt-get install valgrind)");
        return ExitCode::SUCCESS;
    }
    let counted: Result<BTreeMap<_, _>, String> =
        cases::ALL.iter().map(|(name, _)| Ok(((*name).to_owned(), per_turn(name)?))).collect();
    let counted = match counted {
        Ok(counted) => counted,
        Err(error) => {
            eprintln!("instructions: {error}");
            return ExitCode::from(2);
        }
    };
    let compiler = compiler();
    if save {
        let lines: String = counted.iter().map(|(name, count)| format!("{name} {count:.0}\n")).collect();
        return match std::fs::write(BASELINE, format!("{compiler}\n{lines}")) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("instructions: {}: {error}", Path::new(BASELINE).display());
                ExitCode::from(2)
            }
        };
    }
    let stored = std::fs::read_to_string(BASELINE).unwrap_or_default();
    let (their_compiler, lines) = stored.split_once('\n').unwrap_or_default();
    let baseline: BTreeMap<_, f64> =
        lines.lines().filter_map(|line| line.split_once(' ')).filter_map(|(n, c)| Some((n, c.parse().ok()?))).collect();
    println!("{:<16} {:>14} {:>14} {:>8}", "case", "instructions", "baseline", "");
    let mut worse = 0;
    for (name, count) in &counted {
        let Some(before) = baseline.get(name.as_str()) else {
            println!("{name:<16} {count:>14.0} {:>14}", "none");
            worse += 1;
            continue;
        };
        let percent = (count / before - 1.0) * 100.0;
        worse += usize::from(percent > TOLERANCE_PERCENT);
        println!("{name:<16} {count:>14.0} {before:>14.0} {percent:>+7.1}%");
    }
    if their_compiler != compiler {
        println!("skipped: the comparison. The baseline is of {their_compiler}, and this is {compiler}.");
        return ExitCode::SUCCESS;
    }
    if worse > 0 {
        println!(
            "{worse} above the baseline by more than {TOLERANCE_PERCENT} %, or without one: see benches/README.md"
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Instructions that one turn of the case takes.
fn per_turn(case: &str) -> Result<f64, String> {
    let [few, many] = TURNS.map(|turns| total(case, turns));
    Ok((many? - few?) as f64 / (TURNS[1] - TURNS[0]) as f64)
}

/// Instructions that the process takes for so many turns.
fn total(case: &str, turns: u64) -> Result<i64, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"])
        .arg(this)
        .args(["run", case, &turns.to_string()])
        .output()
        .map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find_map(|line| line.split_once("refs:")).filter(|_| output.status.success());
    let (_, count) = line.ok_or_else(|| format!("{case}: valgrind gave no count: {said}"))?;
    count.trim().replace(',', "").parse().map_err(|error| format!("{case}: {count}: {error}"))
}

fn compiler() -> String {
    let output = Command::new("rustc").arg("--version").output();
    output.map_or_else(|_| "no rustc".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
