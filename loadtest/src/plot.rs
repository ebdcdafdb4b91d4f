//! The figures of `scripts/bench` as a picture: a panel a case, a bar a proxy.
//!
//! Must not know: how the figures came about.

use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

/// Which figures.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// What `scripts/bench --json` wrote
    #[arg(value_name = "FILE")]
    pub file: String,
}

/// A case as the JSON names it, its title, and what its bars show.
const PANELS: &[(&str, &str, Figure)] = &[
    ("short", "Short chat: CPU µs a request", Figure::Cpu),
    ("6k", "6 KB conversation: CPU µs a request", Figure::Cpu),
    ("100k", "100 KB prompt: CPU µs a request", Figure::Cpu),
    ("1m", "1 MB answer: CPU µs a request", Figure::Cpu),
    ("events", "Fast stream: CPU µs an event", Figure::Cpu),
    ("gaps", "Stream with 2 ms gaps: CPU µs an event", Figure::Cpu),
    ("gaps", "Stream with 2 ms gaps: p99 of an event's way, ms", Figure::P99),
    ("first", "First event of an engine that takes 3 ms: p50, ms", Figure::P50),
];

#[derive(Clone, Copy, PartialEq)]
enum Figure {
    Cpu,
    P50,
    P99,
}

const PANEL_W: usize = 460;
const BAR_H: usize = 18;
const LABEL_W: usize = 110;
const BARS_W: f64 = 270.0;
/// Bars are in this one's colour for the router, in the other for the rest.
const OURS: &str = "#0b6e4f";
const THEIRS: &str = "#9aa5b1";

/// Prints the picture as SVG. Errors: a file that cannot be read or holds no figures.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    let text = std::fs::read_to_string(&options.file).map_err(|error| format!("{}: {error}", options.file))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", options.file))?;
    print!("{}", svg(&value)?);
    Ok(ExitCode::SUCCESS)
}

fn svg(value: &Value) -> Result<String, String> {
    let rows = value["rows"].as_array().ok_or("no rows: not what scripts/bench writes")?;
    let names = proxies(rows);
    let panels: Vec<_> = PANELS.iter().filter(|(case, _, _)| rows.iter().any(|row| row["case"] == *case)).collect();
    let panel_h = 44 + names.len() * (BAR_H + 4);
    let (width, height) = (PANEL_W * 2, panel_h * panels.len().div_ceil(2) + 30);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (number, (case, title, figure)) in panels.iter().enumerate() {
        let (x, y) = (number % 2 * PANEL_W, number / 2 * panel_h);
        panel(&mut out, rows, &names, (case, title, *figure), x + 10, y + 20);
    }
    let text = |name: &str| value[name].as_str().unwrap_or("?").to_owned();
    let foot = format!("{}, Linux {}; medians; shorter is better", text("cpu"), text("kernel"));
    let _ = writeln!(out, "<text x=\"10\" y=\"{}\" fill=\"#555\">{foot}</text>\n</svg>", height - 10);
    Ok(out)
}

/// In the order in which they were measured.
fn proxies(rows: &[Value]) -> Vec<&str> {
    let mut names = Vec::new();
    for name in rows.iter().filter_map(|row| row["proxy"].as_str()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn panel(
    out: &mut String,
    rows: &[Value],
    names: &[&str],
    (case, title, figure): (&str, &str, Figure),
    x: usize,
    y: usize,
) {
    let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\" font-weight=\"bold\">{title}</text>");
    let values: Vec<_> = names.iter().map(|name| median(rows, case, name, figure)).collect();
    let longest = values.iter().flatten().fold(f64::MIN_POSITIVE, |most, value| value.max(most));
    for (row, (name, value)) in names.iter().zip(&values).enumerate() {
        let top = y + 10 + row * (BAR_H + 4);
        let base = top + BAR_H - 5;
        let _ = writeln!(out, "<text x=\"{}\" y=\"{base}\" text-anchor=\"end\">{name}</text>", x + LABEL_W - 6);
        // No proxy has no CPU of its own.
        let Some(value) = value.filter(|_| *name != "direct" || figure != Figure::Cpu) else { continue };
        let width = value / longest * BARS_W;
        let colour = if *name == "trieway" { OURS } else { THEIRS };
        let bar = x + LABEL_W;
        let _ = writeln!(
            out,
            "<rect x=\"{bar}\" y=\"{top}\" width=\"{width:.1}\" height=\"{BAR_H}\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{base}\">{value:.1}</text>",
            bar as f64 + width + 5.0
        );
    }
}

fn median(rows: &[Value], case: &str, proxy: &str, figure: Figure) -> Option<f64> {
    let (key, units) = match figure {
        Figure::Cpu => ("proxy_cpu_us", 1.0),
        Figure::P50 => ("p50_us", 1000.0),
        Figure::P99 => ("p99_us", 1000.0),
    };
    let here = rows.iter().filter(|row| row["case"] == case && row["proxy"] == proxy);
    let mut values: Vec<f64> = here.filter_map(|row| Some(row[key].as_f64()? / units)).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_bar_is_as_long_as_its_median() {
        let row = |proxy: &str, cpu: f64| json!({"case": "short", "proxy": proxy, "proxy_cpu_us": cpu});
        let rows = json!([
            row("direct", 0.0),
            row("nginx", 20.0),
            row("trieway", 10.0),
            row("trieway", 5.0),
            row("trieway", 11.0)
        ]);
        let picture = svg(&json!({"rows": rows, "cpu": "c", "kernel": "k"})).unwrap();
        assert!(picture.contains("width=\"270.0\" height=\"18\" fill=\"#9aa5b1\""), "{picture}");
        assert!(picture.contains("width=\"135.0\" height=\"18\" fill=\"#0b6e4f\"/>"), "{picture}");
        assert_eq!(picture.matches("<rect").count(), 3, "the ground, and a bar a proxy");
        assert!(svg(&json!({})).is_err());
    }
}
