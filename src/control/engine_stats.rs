//! What an engine says of itself at `/metrics`, read from Prometheus text. Pure.
//!
//! A figure that an engine does not export is absent, never zero.

/// Gauges and counters that several engines have under their own names; the first name that is there counts.
const RUNNING: &[&str] = &["vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing"];
const WAITING: &[&str] = &["vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred"];
const KV_USAGE: &[&str] =
    &["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage", "llamacpp:kv_cache_usage_ratio"];
const KV_TOKENS: &[&str] = &["sglang:max_total_num_tokens"];
const PREFIX_HITS: &[&str] = &["vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"];
const PREFIX_QUERIES: &[&str] = &["vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"];
/// Histograms of the seconds between two tokens of an answer, by the name without `_sum` and `_count`.
const STEPS: &[&str] = &[
    "vllm:inter_token_latency_seconds",
    "vllm:time_per_output_token_seconds",
    "sglang:inter_token_latency_seconds",
    "sglang:time_per_output_token_seconds",
];
const START: &[&str] = &["process_start_time_seconds"];
/// Counters that begin at zero with the process.
const MONOTONIC: [&str; 4] = [
    "vllm:prompt_tokens_total",
    "vllm:prefix_cache_queries_total",
    "sglang:prompt_tokens_total",
    "llamacpp:prompt_tokens_total",
];

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct EngineStats {
    pub(super) running: Option<f64>,
    pub(super) waiting: Option<f64>,
    /// Share of the KV cache in use, 0 to 1.
    pub(super) kv_usage: Option<f64>,
    /// Tokens that the KV cache has room for.
    pub(super) kv_tokens: Option<f64>,
    /// Prompt tokens found in the engine's prefix cache.
    pub(super) prefix_hits: Option<f64>,
    /// Prompt tokens looked up there.
    pub(super) prefix_queries: Option<f64>,
    /// Seconds between tokens of answers and how many those were, since the engine's start.
    pub(super) steps: Option<(f64, f64)>,
    pub(super) marks: ProcessMarks,
}

/// What tells one run of an engine's process from the next.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ProcessMarks {
    pub(super) start_s: Option<f64>,
    counters: [Option<f64>; MONOTONIC.len()],
}

impl ProcessMarks {
    /// Why these marks are of a later process than `earlier` is.
    pub(super) fn differ(&self, earlier: &ProcessMarks) -> Option<&'static str> {
        if let (Some(then), Some(now)) = (earlier.start_s, self.start_s)
            && then != now
        {
            return Some("its start time is another one");
        }
        let back =
            |(then, now): (&Option<f64>, &Option<f64>)| matches!((then, now), (Some(then), Some(now)) if now < then);
        earlier.counters.iter().zip(&self.counters).any(back).then_some("its counters went back")
    }
}

impl EngineStats {
    /// Share of the looked-up tokens that were found, since the engine's start.
    pub(super) fn hit_rate(&self) -> Option<f64> {
        match (self.prefix_hits, self.prefix_queries) {
            (Some(hits), Some(queries)) if queries > 0.0 => Some(hits / queries),
            _ => None,
        }
    }

    /// Seconds between tokens since `earlier`, and how many tokens; `None`: none came, or one of them says what cannot be.
    pub(super) fn steps_since(&self, earlier: &EngineStats) -> Option<(f64, f64)> {
        let ((seconds, tokens), (seconds_then, tokens_then)) = (self.steps?, earlier.steps?);
        let since = (seconds - seconds_then, tokens - tokens_then);
        (since.0 >= 0.0 && since.1 >= 1.0).then_some(since)
    }

    /// Counts are summed over an engine's label sets (one a data-parallel rank), shares are averaged.
    pub(super) fn parse(text: &str) -> Self {
        EngineStats {
            running: sum(text, RUNNING),
            waiting: sum(text, WAITING),
            kv_usage: mean(text, KV_USAGE).filter(|share| *share <= 1.0),
            kv_tokens: vllm_kv_tokens(text).or_else(|| sum(text, KV_TOKENS)),
            prefix_hits: sum(text, PREFIX_HITS),
            prefix_queries: sum(text, PREFIX_QUERIES),
            steps: STEPS.iter().find_map(|name| {
                let part = |end: &str| sum(text, &[&format!("{name}_{end}")]);
                Some((part("sum")?, part("count")?))
            }),
            marks: ProcessMarks { start_s: mean(text, START), counters: MONOTONIC.map(|name| sum(text, &[name])) },
        }
    }
}

/// vLLM says it in labels: `vllm:cache_config_info{block_size="16",num_gpu_blocks="27000",…} 1`, one sample an engine.
fn vllm_kv_tokens(text: &str) -> Option<f64> {
    let engines = text.lines().filter_map(|line| line.strip_prefix("vllm:cache_config_info{"));
    let tokens = engines.filter_map(|labels| Some(label(labels, "block_size")? * label(labels, "num_gpu_blocks")?));
    Some(tokens.sum::<f64>()).filter(|&tokens| tokens > 0.0)
}

/// The number in a label.
fn label(labels: &str, name: &str) -> Option<f64> {
    let number = labels.split(',').find_map(|label| label.trim().strip_prefix(name)?.strip_prefix("=\""))?;
    number.split('"').next()?.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0)
}

fn sum(text: &str, names: &[&str]) -> Option<f64> {
    totals(text, names).map(|(sum, _)| sum).filter(|sum| sum.is_finite())
}

fn mean(text: &str, names: &[&str]) -> Option<f64> {
    totals(text, names).map(|(sum, count)| sum / count).filter(|mean| mean.is_finite())
}

/// Sum and number of the samples of the first of `names` that has some.
fn totals(text: &str, names: &[&str]) -> Option<(f64, f64)> {
    names.iter().find_map(|name| {
        let values = text.lines().filter_map(sample).filter(|(found, _)| found == name).map(|(_, value)| value);
        let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
        (count > 0.0).then_some((sum, count))
    })
}

/// Name and value of a sample line; comments, blank lines and values that are not finite or below zero are none: no engine
/// has less than no requests, tokens or seconds.
fn sample(line: &str) -> Option<(&str, f64)> {
    let name_end = line.find(|c: char| c == '{' || c.is_ascii_whitespace())?;
    let (name, rest) = line.split_at(name_end);
    let rest = if rest.starts_with('{') { &rest[labels_end(rest)?..] } else { rest };
    let value: f64 = rest.split_ascii_whitespace().next()?.parse().ok()?;
    (value.is_finite() && value >= 0.0 && !name.starts_with('#')).then_some((name, value))
}

/// The end of a label set; braces within quoted values do not count.
fn labels_end(text: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return Some(at + 1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const VLLM: &str = "\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine=\"0\",model_name=\"a } \\\" b\"} 3.0
vllm:num_requests_running{engine=\"1\",model_name=\"a\"} 2.0
vllm:num_requests_waiting{engine=\"0\"} 0.0
vllm:num_requests_waiting_by_reason{reason=\"capacity\"} 9.0
vllm:kv_cache_usage_perc{engine=\"0\"} 0.25
vllm:kv_cache_usage_perc{engine=\"1\"} 0.75
vllm:prefix_cache_queries_total{engine=\"0\"} 4e+02
vllm:prefix_cache_hits_total{engine=\"0\"} 100 1700000000000
process_start_time_seconds 1.75e+09
";

    #[test]
    fn reads_vllm() {
        let stats = EngineStats::parse(VLLM);
        assert_eq!((stats.running, stats.waiting, stats.kv_usage), (Some(5.0), Some(0.0), Some(0.5)));
        assert_eq!((stats.prefix_hits, stats.prefix_queries, stats.hit_rate()), (Some(100.0), Some(400.0), Some(0.25)));
        assert_eq!(stats.marks.start_s, Some(1.75e9));
    }

    #[test]
    fn reads_the_size_of_the_cache_however_it_is_said() {
        let kv_tokens = |text: &str| EngineStats::parse(text).kv_tokens;
        let vllm = "vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",num_gpu_blocks=\"27000\",\
                    num_gpu_blocks_override=\"None\"} 1.0\n";
        assert_eq!(kv_tokens(vllm), Some(432_000.0));
        assert_eq!(kv_tokens(&vllm.repeat(2)), Some(864_000.0));
        assert_eq!(kv_tokens(&vllm.replace("27000", "None")), None);
        assert_eq!(kv_tokens("sglang:max_total_num_tokens{model_name=\"m\"} 500000\n"), Some(500_000.0));
    }

    #[test]
    fn older_names_and_other_engines_are_known() {
        let stats = EngineStats::parse(
            "vllm:gpu_cache_usage_perc 0.5\nvllm:gpu_prefix_cache_hits_total 1\nvllm:gpu_prefix_cache_queries_total 2\n",
        );
        assert_eq!((stats.kv_usage, stats.hit_rate()), (Some(0.5), Some(0.5)));
        let stats = EngineStats::parse("llamacpp:requests_processing 1\nllamacpp:requests_deferred 4\n");
        assert_eq!((stats.running, stats.waiting), (Some(1.0), Some(4.0)));
    }

    #[test]
    fn steps_are_what_came_since_the_last_look() {
        let stats = |sum: &str, count: &str| {
            let name = "vllm:inter_token_latency_seconds";
            EngineStats::parse(&format!(
                "{name}_bucket{{le=\"1\"}} 3\n{name}_sum{{a=\"b\"}} {sum}\n{name}_count{{a=\"b\"}} {count}\n"
            ))
        };
        assert_eq!(stats("5", "500").steps_since(&stats("3", "300")), Some((2.0, 200.0)));
        for (sum, count) in [("3", "300"), ("1", "900"), ("NaN", "900"), ("+Inf", "900"), ("9", "-9"), ("9", "1")] {
            assert_eq!(stats(sum, count).steps_since(&stats("3", "300")), None, "{sum} {count}");
        }
        assert_eq!(stats("5", "500").steps_since(&EngineStats::default()), None);
    }

    #[test]
    fn what_cannot_be_is_not_there() {
        let stats = EngineStats::parse(
            "vllm:num_requests_running -3\nvllm:kv_cache_usage_perc 7\nsglang:max_total_num_tokens +Inf\n\
             vllm:num_requests_waiting{a=\"1\"} 1e308\nvllm:num_requests_waiting{a=\"2\"} 1e308\n",
        );
        assert_eq!(stats, EngineStats::default());
    }

    #[test]
    fn what_is_not_there_is_absent() {
        for text in [
            "",
            "# nothing\n",
            "garbage",
            "vllm:num_requests_running{a=\"",
            "vllm:num_requests_running NaN",
            "{} 1",
            "x",
        ] {
            assert_eq!(EngineStats::parse(text), EngineStats::default(), "{text}");
        }
        assert_eq!(
            EngineStats::parse("vllm:prefix_cache_queries_total 0\nvllm:prefix_cache_hits_total 0").hit_rate(),
            None
        );
    }

    #[test]
    fn a_later_process_is_told_by_its_start_or_its_counters() {
        let marks = |text: &str| EngineStats::parse(text).marks;
        let first = marks("process_start_time_seconds 5\nvllm:prompt_tokens_total 10");
        assert_eq!(first.differ(&ProcessMarks::default()), None);
        assert_eq!(ProcessMarks::default().differ(&first), None);
        assert_eq!(marks("process_start_time_seconds 5\nvllm:prompt_tokens_total 11").differ(&first), None);
        assert!(marks("process_start_time_seconds 6\nvllm:prompt_tokens_total 11").differ(&first).is_some());
        assert!(marks("vllm:prompt_tokens_total 9").differ(&first).is_some());
    }
}
