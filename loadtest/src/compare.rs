//! Reports of the client side by side: one column a report, one row a figure.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

/// Which reports.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Reports that `load --json` wrote, each with the name of its column
    #[arg(required = true, value_name = "NAME=FILE")]
    pub reports: Vec<String>,
}

const WIDTH: usize = 18;

/// Prints the table. Errors: a file that cannot be read or is no report.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    let mut columns = Vec::new();
    for report in &options.reports {
        let (name, path) = report.split_once('=').ok_or_else(|| format!("{report:?}: not of the form NAME=FILE"))?;
        let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        let value: Value = serde_json::from_str(&text).map_err(|error| format!("{path}: not a report: {error}"))?;
        columns.push((name.to_owned(), value));
    }
    print!("{}", table(&columns));
    Ok(ExitCode::SUCCESS)
}

type Cell = fn(&Value) -> Option<String>;

const ROWS: &[(&str, Cell)] = &[
    ("prompt tokens found in cache", |report| percent(&report["cached_share"])),
    ("  in turns behind the first", |report| percent(&report["cached_share_later_turns"])),
    ("time to first token, p50", |report| milliseconds(&report["ttft_ms"]["p50"])),
    ("  p90", |report| milliseconds(&report["ttft_ms"]["p90"])),
    ("  p99", |report| milliseconds(&report["ttft_ms"]["p99"])),
    ("whole request, p50", |report| milliseconds(&report["duration_ms"]["p50"])),
    ("load: busiest engine / mean", |report| Some(format!("{:.2}", report["busiest_over_mean"].as_f64()?))),
    ("conversations on one engine", |report| {
        let (stayed, all) = (&report["conversations_on_one_engine"], &report["conversations_followed"]);
        Some(format!("{stayed} of {all}"))
    }),
    ("requests answered", |report| Some(format!("{} of {}", report["answered"], report["requests"]))),
    ("run took", |report| Some(format!("{:.1} s", report["elapsed_s"].as_f64()?))),
];

fn table(columns: &[(String, Value)]) -> String {
    let heads: String = columns.iter().map(|(name, _)| format!("{name:>WIDTH$}")).collect();
    let mut text = format!("{:<30}{heads}\n{}\n", "", "─".repeat(30 + WIDTH * columns.len()));
    for (label, cell) in ROWS {
        let cells: String = columns
            .iter()
            .map(|(_, report)| format!("{:>WIDTH$}", cell(report).unwrap_or_else(|| "–".into())))
            .collect();
        text.push_str(&format!("{label:<30}{cells}\n"));
    }
    text
}

fn percent(value: &Value) -> Option<String> {
    Some(format!("{:.1} %", value.as_f64()? * 100.0))
}

fn milliseconds(value: &Value) -> Option<String> {
    Some(format!("{:.0} ms", value.as_f64()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_report_has_its_column() {
        let one = json!({"cached_share": 0.4567, "ttft_ms": {"p50": 12.4}, "conversations_on_one_engine": 1,
            "conversations_followed": 2});
        let text = table(&[("one".into(), one), ("none".into(), json!({}))]);
        let row = |label: &str| -> Vec<&str> {
            let line = text.lines().find(|line| line.starts_with(label)).unwrap();
            line[label.len()..].split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
        };
        assert_eq!(row("prompt tokens found in cache"), ["45.7 %", "–"]);
        assert_eq!(row("time to first token, p50"), ["12 ms", "–"]);
        assert_eq!(row("conversations on one engine"), ["1 of 2", "null of null"]);
    }
}
