//! What a run has met: samples and counts.

use std::collections::BTreeMap;
use std::time::Duration;

/// One answered request.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    /// Until the first text of the answer; None: it was not streamed, or has no text.
    pub(crate) first_token: Option<Duration>,
    pub(crate) duration: Duration,
    /// Between one piece of text and the next.
    pub(crate) gaps: Vec<Duration>,
    pub(crate) prompt_tokens: u64,
    /// None: the server does not say.
    pub(crate) cached_tokens: Option<u64>,
    pub(crate) answer_tokens: u64,
    pub(crate) engine: Option<String>,
    pub(crate) text: String,
}

#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) requests: u64,
    pub(crate) answered: u64,
    pub(crate) errors: BTreeMap<String, u64>,
    /// Turns that were not tried since an earlier one had failed.
    pub(crate) skipped: u64,
    pub(crate) first_token: Vec<Duration>,
    /// The same, of turns behind a conversation's first.
    pub(crate) later_first_token: Vec<Duration>,
    pub(crate) duration: Vec<Duration>,
    pub(crate) gaps: Vec<Duration>,
    pub(crate) tokens: Share,
    /// The same, of turns behind a conversation's first.
    pub(crate) later_tokens: Share,
    pub(crate) answer_tokens: u64,
    pub(crate) engines: BTreeMap<String, u64>,
    /// Conversations with two answers or more from named engines, and how many had them all from one.
    pub(crate) followed: u64,
    pub(crate) stayed: u64,
}

/// Prompt tokens, and how many of them were cached.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    pub(crate) cached: u64,
    pub(crate) all: u64,
}

impl Share {
    fn add(&mut self, sample: &Sample) {
        if let Some(cached) = sample.cached_tokens {
            self.cached += cached;
            self.all += sample.prompt_tokens;
        }
    }

    pub(crate) fn ratio(self) -> Option<f64> {
        (self.all > 0).then(|| self.cached as f64 / self.all as f64)
    }
}

impl Stats {
    pub(crate) fn answer(&mut self, turn: usize, sample: &Sample) {
        self.requests += 1;
        self.answered += 1;
        self.first_token.extend(sample.first_token);
        self.duration.push(sample.duration);
        self.gaps.extend(&sample.gaps);
        self.tokens.add(sample);
        if turn > 0 {
            self.later_tokens.add(sample);
            self.later_first_token.extend(sample.first_token);
        }
        self.answer_tokens += sample.answer_tokens;
        if let Some(engine) = &sample.engine {
            *self.engines.entry(engine.clone()).or_default() += 1;
        }
    }

    pub(crate) fn error(&mut self, kind: String) {
        self.requests += 1;
        *self.errors.entry(kind).or_default() += 1;
    }

    /// A conversation is over; `engines` answered its turns.
    pub(crate) fn conversation(&mut self, engines: &[String]) {
        if let [first, others @ ..] = engines
            && !others.is_empty()
        {
            self.followed += 1;
            self.stayed += u64::from(others.iter().all(|engine| engine == first));
        }
    }

    /// Requests of the busiest engine over the mean of `count` engines, or of those seen.
    pub(crate) fn spread(&self, count: Option<usize>) -> Option<f64> {
        let busiest = *self.engines.values().max()? as f64;
        let engines = count.unwrap_or(0).max(self.engines.len());
        Some(busiest * engines as f64 / self.engines.values().sum::<u64>() as f64)
    }
}

/// The summary of some durations, in milliseconds. Percentiles by nearest rank: the smallest value that as many percent
/// do not exceed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) count: usize,
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

/// None: there are none.
pub(crate) fn summarise(values: &[Duration]) -> Option<Summary> {
    let mut ms: Vec<f64> = values.iter().map(|value| value.as_secs_f64() * 1000.0).collect();
    ms.sort_by(f64::total_cmp);
    let max = *ms.last()?;
    let rank = |percent: usize| ms[(ms.len() * percent).div_ceil(100).max(1) - 1];
    let mean = ms.iter().sum::<f64>() / ms.len() as f64;
    Some(Summary { count: ms.len(), mean, p50: rank(50), p90: rank(90), p99: rank(99), max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let ms = |values: &[u64]| summarise(&values.iter().map(|ms| Duration::from_millis(*ms)).collect::<Vec<_>>());
        assert_eq!(ms(&[]), None);
        let one = ms(&[7]).unwrap();
        assert_eq!((one.p50, one.p90, one.p99, one.max, one.mean), (7.0, 7.0, 7.0, 7.0, 7.0));
        let ten = ms(&[10, 9, 8, 7, 6, 5, 4, 3, 2, 1]).unwrap();
        assert_eq!((ten.p50, ten.p90, ten.p99, ten.max, ten.mean), (5.0, 9.0, 10.0, 10.0, 5.5));
        let many = ms(&(1..=1000).collect::<Vec<_>>()).unwrap();
        assert_eq!((many.p50, many.p90, many.p99, many.max), (500.0, 900.0, 990.0, 1000.0));
    }

    fn sample(engine: &str, prompt_tokens: u64, cached_tokens: Option<u64>) -> Sample {
        Sample { engine: Some(engine.into()), prompt_tokens, cached_tokens, ..Sample::default() }
    }

    #[test]
    fn shares_and_spread_are_those_of_the_samples() {
        let mut stats = Stats::default();
        stats.answer(0, &sample("a", 100, Some(0)));
        stats.answer(1, &sample("a", 200, Some(150)));
        stats.answer(1, &sample("a", 1000, None));
        stats.answer(1, &sample("b", 100, Some(50)));
        assert_eq!(stats.tokens.ratio(), Some(0.5));
        assert_eq!(stats.later_tokens.ratio(), Some(200.0 / 300.0));
        assert_eq!(stats.spread(None), Some(1.5));
        assert_eq!(stats.spread(Some(4)), Some(3.0));
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for engines in [&["a"][..], &[], &["a", "a"], &["a", "b", "a"]] {
            stats.conversation(&names(engines));
        }
        assert_eq!((stats.followed, stats.stayed), (2, 1));
    }
}
