//! Figures of runs: of one, and their means over seeds.

use crate::engine::Speed;
use crate::trace::Trace;

/// What one request met.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    pub router: usize,
    pub backend: usize,
    pub arrived_s: f64,
    pub first_token_s: f64,
    pub finished_s: f64,
    pub cached_tokens: u32,
}

#[derive(Clone, Debug)]
pub struct Run {
    pub outcomes: Vec<Outcome>,
    /// Seconds of prefill, by backend.
    pub prefill_s: Vec<f64>,
    /// Tokens of memory that nobody gave back: 0.
    pub held_tokens: u32,
    pub preemptions: u64,
    pub end_s: f64,
}

/// The columns of every table, in order.
pub const COLUMNS: [&str; 10] = [
    "hit_rate",
    "ttft_mean_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "slow99",
    "tpot_p50_ms",
    "tpot_p99_ms",
    "busiest_over_mean",
    "preemptions",
    "makespan_s",
];

/// One value a column.
pub type Figures = [f64; COLUMNS.len()];

impl Run {
    pub fn figures(&self, trace: &Trace, speed: &Speed) -> Figures {
        let mut ttft = Vec::with_capacity(self.outcomes.len());
        let mut slow = Vec::with_capacity(self.outcomes.len());
        let mut tpot = Vec::new();
        let (mut cached, mut prompts) = (0u64, 0u64);
        for (outcome, request) in self.outcomes.iter().zip(&trace.requests) {
            let waited_s = outcome.first_token_s - outcome.arrived_s;
            ttft.push(waited_s);
            slow.push(waited_s / speed.cold_prefill_s(request.prompt_tokens));
            if request.output_tokens > 1 {
                let rest = f64::from(request.output_tokens - 1);
                tpot.push((outcome.finished_s - outcome.first_token_s) / rest * 1000.0);
            }
            cached += u64::from(outcome.cached_tokens);
            prompts += u64::from(request.prompt_tokens);
        }
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let ttft_mean = mean(&ttft);
        let busiest = self.prefill_s.iter().copied().fold(0.0, f64::max);
        [
            cached as f64 / prompts.max(1) as f64,
            ttft_mean,
            quantile(&mut ttft, 0.5),
            quantile(&mut ttft, 0.99),
            quantile(&mut slow, 0.99),
            quantile(&mut tpot, 0.5),
            quantile(&mut tpot, 0.99),
            busiest / mean(&self.prefill_s),
            self.preemptions as f64,
            self.end_s,
        ]
    }
}

/// The value below which the share `q` of all lies; sorts them. 0 for none.
pub fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (q * values.len() as f64).ceil() as usize;
    values.get(at.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// Mean over runs, and half the width of its 95 % confidence interval (Student's t).
pub fn over_seeds(runs: &[Figures], column: usize) -> (f64, f64) {
    let n = runs.len() as f64;
    let mean = runs.iter().map(|run| run[column]).sum::<f64>() / n;
    if runs.len() < 2 {
        return (mean, 0.0);
    }
    let variance = runs.iter().map(|run| (run[column] - mean).powi(2)).sum::<f64>() / (n - 1.0);
    const T95: [f64; 10] = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23];
    let t = T95.get(runs.len() - 2).copied().unwrap_or(1.96);
    (mean, t * (variance / n).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occur() {
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(quantile(&mut values, 0.5), 50.0);
        assert_eq!(quantile(&mut values, 0.99), 99.0);
        assert_eq!(quantile(&mut values[..1], 0.99), 1.0);
        assert_eq!(quantile(&mut [], 0.99), 0.0);
    }

    #[test]
    fn the_interval_is_students() {
        let run = |value| [value; COLUMNS.len()];
        assert_eq!(over_seeds(&[run(3.0)], 0), (3.0, 0.0));
        let (mean, half) = over_seeds(&[run(1.0), run(2.0), run(3.0)], 4);
        assert!((mean - 2.0).abs() < 1e-9 && (half - 4.30 / 3f64.sqrt()).abs() < 1e-9);
    }
}
