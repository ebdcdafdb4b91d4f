//! Results as a table, as CSV and as plots.

use std::fmt::Write;
use std::path::Path;

use crate::plot;
use crate::stats::{COLUMNS, Figures, over_seeds};

/// One policy at one rate.
pub struct Row {
    pub scale: f64,
    pub policy: String,
    /// One a seed.
    pub runs: Vec<Figures>,
}

pub struct Report {
    pub rows: Vec<Row>,
}

impl Report {
    pub fn table(&self) -> String {
        let width = self.rows.iter().map(|row| row.policy.len()).max().unwrap_or(0).max(6);
        let mut text = format!("{:>5} {:width$}", "rate", "policy");
        COLUMNS.iter().for_each(|name| _ = write!(text, " {name:>17}"));
        text.push('\n');
        for row in &self.rows {
            _ = write!(text, "{:>5} {:width$}", format!("×{}", row.scale), row.policy);
            for column in 0..COLUMNS.len() {
                let (mean, half) = over_seeds(&row.runs, column);
                let digits = if mean >= 100.0 { 1 } else { 3 };
                _ = write!(text, " {:>17}", format!("{mean:.digits$} ±{half:.digits$}"));
            }
            text.push('\n');
        }
        text
    }

    pub fn csv(&self) -> String {
        let mut text = "scale,policy,seeds".to_owned();
        COLUMNS.iter().for_each(|name| _ = write!(text, ",{name},{name}_ci95"));
        text.push('\n');
        for row in &self.rows {
            _ = write!(text, "{},\"{}\",{}", row.scale, row.policy, row.runs.len());
            for column in 0..COLUMNS.len() {
                let (mean, half) = over_seeds(&row.runs, column);
                _ = write!(text, ",{mean:.6},{half:.6}");
            }
            text.push('\n');
        }
        text
    }

    /// Writes results.csv and one plot a rate.
    pub fn write(&self, folder: &Path) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        std::fs::create_dir_all(folder).map_err(failed)?;
        std::fs::write(folder.join("results.csv"), self.csv()).map_err(failed)?;
        let mut scales: Vec<f64> = self.rows.iter().map(|row| row.scale).collect();
        scales.dedup();
        for scale in scales {
            let rows: Vec<&Row> = self.rows.iter().filter(|row| row.scale == scale).collect();
            std::fs::write(folder.join(format!("rate-{scale}.svg")), plot::bars(scale, &rows)).map_err(failed)?;
        }
        Ok(())
    }
}
