//! Plots as SVG, without a library: horizontal bars, one row a policy, one panel a figure.

use std::fmt::Write;

use crate::report::Row;
use crate::stats::{COLUMNS, over_seeds};

const LINE: usize = 18;
const LABELS: usize = 330;
const PANEL: usize = 260;
const TOP: usize = 46;

/// What is shown.
const SHOWN: [&str; 3] = ["ttft_mean_s", "slow99", "hit_rate"];

/// All policies at one rate.
pub fn bars(scale: f64, rows: &[&Row]) -> String {
    let (width, height) = (LABELS + SHOWN.len() * PANEL, TOP + rows.len() * LINE + 10);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"8\" y=\"18\" \
         font-size=\"14\">Rate ×{scale}</text>\n"
    );
    for (at, row) in rows.iter().enumerate() {
        let y = TOP + at * LINE + 12;
        _ = writeln!(svg, "<text x=\"{}\" y=\"{y}\" text-anchor=\"end\">{}</text>", LABELS - 8, row.policy);
    }
    for (panel, name) in SHOWN.iter().enumerate() {
        let x = LABELS + panel * PANEL;
        _ = writeln!(svg, "<text x=\"{x}\" y=\"38\" font-weight=\"bold\">{name}</text>");
        let column = COLUMNS.iter().position(|column| column == name).unwrap_or(0);
        let values: Vec<f64> = rows.iter().map(|row| over_seeds(&row.runs, column).0).collect();
        let most = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        for (at, (value, row)) in values.iter().zip(rows).enumerate() {
            let y = TOP + at * LINE;
            let long = value / most * (PANEL - 70) as f64;
            let colour = if row.policy.starts_with("ttft") { "#c0392b" } else { "#7f8c8d" };
            _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{long:.1}\" height=\"{}\" fill=\"{colour}\"/><text x=\"{:.1}\" \
                 y=\"{}\">{value:.3}</text>",
                LINE - 4,
                x as f64 + long + 4.0,
                y + 12
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}
