//! What an engine counts, under the names that vLLM gives it.
//!
//! Must not know: HTTP, connections.

use std::fmt::Write;

/// Upper bounds in seconds of the latency histograms.
const BOUNDS: [f64; 14] = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [u64; BOUNDS.len()],
    count: u64,
    sum: f64,
}

impl Histogram {
    pub(crate) fn observe(&mut self, seconds: f64) {
        if let Some(at) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            self.buckets[at] += 1;
        }
        self.count += 1;
        self.sum += seconds;
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) cache_queries: u64,
    pub(crate) cache_hits: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) generated_tokens: u64,
    pub(crate) finished: u64,
    pub(crate) aborted: u64,
    pub(crate) first_token: Histogram,
    pub(crate) duration: Histogram,
}

/// What is true at the moment of the scrape.
#[derive(Debug)]
pub(crate) struct Gauges<'a> {
    pub(crate) model: &'a str,
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    pub(crate) kv_used: f64,
    pub(crate) kv_blocks: usize,
    pub(crate) block_tokens: usize,
    pub(crate) started_unix_s: f64,
    pub(crate) asleep: bool,
}

/// The page for GET /metrics.
pub(crate) fn render(counters: &Counters, now: &Gauges<'_>) -> String {
    let mut page = String::with_capacity(4096);
    let labels = format!("engine=\"0\",model_name=\"{}\"", now.model);
    let mut line = |kind: &str, name: &str, extra: &str, value: f64| {
        let family = if kind == "counter" { name.trim_end_matches("_total") } else { name };
        let head = format!("# TYPE {family} {kind}\n");
        // A family's samples stand together below one line of type.
        if !page.contains(&head) {
            page.push_str(&head);
        }
        let _ = writeln!(page, "{name}{{{labels}{extra}}} {value}");
    };
    line("gauge", "vllm:num_requests_running", "", now.running as f64);
    line("gauge", "vllm:num_requests_waiting", "", now.waiting as f64);
    line("gauge", "vllm:kv_cache_usage_perc", "", now.kv_used);
    line("gauge", "vllm:engine_sleep_state", ",sleep_state=\"awake\"", f64::from(u8::from(!now.asleep)));
    line("counter", "vllm:prefix_cache_queries_total", "", counters.cache_queries as f64);
    line("counter", "vllm:prefix_cache_hits_total", "", counters.cache_hits as f64);
    line("counter", "vllm:prompt_tokens_total", "", counters.prompt_tokens as f64);
    line("counter", "vllm:generation_tokens_total", "", counters.generated_tokens as f64);
    line("counter", "vllm:request_success_total", ",finished_reason=\"length\"", counters.finished as f64);
    line("counter", "vllm:request_success_total", ",finished_reason=\"abort\"", counters.aborted as f64);
    let blocks = format!(",block_size=\"{}\",num_gpu_blocks=\"{}\"", now.block_tokens, now.kv_blocks);
    line("gauge", "vllm:cache_config_info", &blocks, 1.0);
    histogram(&mut page, "vllm:time_to_first_token_seconds", &labels, &counters.first_token);
    histogram(&mut page, "vllm:e2e_request_latency_seconds", &labels, &counters.duration);
    let _ =
        writeln!(page, "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {:.3}", now.started_unix_s);
    page
}

fn histogram(page: &mut String, name: &str, labels: &str, values: &Histogram) {
    let _ = writeln!(page, "# TYPE {name} histogram");
    let mut below = 0;
    for (bound, bucket) in BOUNDS.iter().zip(values.buckets) {
        below += bucket;
        let _ = writeln!(page, "{name}_bucket{{{labels},le=\"{bound}\"}} {below}");
    }
    let _ = writeln!(page, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", values.count);
    let _ = writeln!(page, "{name}_sum{{{labels}}} {}\n{name}_count{{{labels}}} {}", values.sum, values.count);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative() {
        let mut values = Histogram::default();
        for seconds in [0.0005, 0.001, 0.03, 99.0] {
            values.observe(seconds);
        }
        let mut page = String::new();
        histogram(&mut page, "h", "a=\"b\"", &values);
        for line in [
            "h_bucket{a=\"b\",le=\"0.001\"} 2",
            "le=\"0.04\"} 3",
            "le=\"10\"} 3",
            "le=\"+Inf\"} 4",
            "h_count{a=\"b\"} 4",
        ] {
            assert!(page.contains(line), "{line} not in {page}");
        }
    }
}
