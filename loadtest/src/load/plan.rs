//! Who says what when: everything that is decided before the first request, from the seed alone.

use std::time::Duration;

use serde_json::Value;

use super::{Options, transcripts};

/// The plan of a run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) system: String,
    pub(crate) turns: usize,
    /// When each conversation begins, since the start of the run.
    pub(crate) starts: Vec<Duration>,
    /// Recorded conversations; empty: made up.
    pub(crate) transcripts: Vec<Vec<Value>>,
    turn_bytes: usize,
    think: Duration,
    seed: u64,
}

impl Plan {
    /// Errors: a rate that is no rate.
    pub(crate) fn new(options: &Options) -> Result<Self, String> {
        if !options.rate.is_finite() || options.rate < 0.0 {
            return Err(format!("--rate {}: not a rate", options.rate));
        }
        let mut random = Random::new(options.seed, 0, 0);
        let mut at = 0.0;
        let starts = (0..options.conversations)
            .map(|_| {
                if options.rate > 0.0 {
                    at += -(1.0 - random.unit()).ln() / options.rate;
                }
                Duration::from_secs_f64(at)
            })
            .collect();
        Ok(Self {
            system: words(&mut Random::new(options.seed, 1, 0), options.system_bytes),
            turns: options.turns,
            starts,
            transcripts: options.transcripts.as_deref().map_or(Ok(Vec::new()), transcripts::read)?,
            turn_bytes: options.turn_bytes,
            think: Duration::from_millis(options.think_ms),
            seed: options.seed,
        })
    }

    /// What the user says.
    pub(crate) fn message(&self, conversation: usize, turn: usize) -> String {
        words(&mut Random::new(self.seed, 2 + conversation as u64, turn as u64), self.turn_bytes)
    }

    /// The pause before a turn.
    pub(crate) fn pause(&self, conversation: usize, turn: usize) -> Duration {
        let mut random = Random::new(!self.seed, 2 + conversation as u64, turn as u64);
        self.think.mul_f64(0.5 + random.unit())
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, and good enough for texts and arrivals.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn new(seed: u64, stream: u64, index: u64) -> Self {
        let mut random = Self(seed ^ stream.rotate_left(24) ^ index.rotate_left(48));
        // The first output of neighbouring seeds would show their likeness to the naked eye.
        random.0 = random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// In 0..1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn words(random: &mut Random, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 8);
    while text.len() < bytes {
        let mut bits = random.next();
        for _ in 0..3 + bits % 4 {
            bits >>= 5;
            text.push(char::from(b'a' + (bits % 26) as u8));
        }
        text.push(' ');
    }
    text.truncate(bytes);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        options: Options,
    }

    fn plan(flags: &str) -> Plan {
        let words = std::iter::once("load").chain(flags.split_whitespace());
        Plan::new(&Flags::parse_from(words).options).unwrap()
    }

    #[test]
    fn a_plan_is_its_seed() {
        let flags = "--seed 7 --conversations 5 --system-bytes 300 --turn-bytes 70";
        let other = flags.replace("seed 7", "seed 8");
        let (one, same, other) = (plan(flags), plan(flags), plan(&other));
        assert_eq!((one.system.len(), one.message(1, 1).len()), (300, 70));
        assert_eq!((&one.system, &one.starts), (&same.system, &same.starts));
        assert_ne!(one.starts, other.starts);
        assert_eq!(one.message(3, 2), same.message(3, 2));
        for (conversation, turn) in [(3, 1), (2, 2), (2, 3)] {
            assert_ne!(one.message(3, 2)[..20], one.message(conversation, turn)[..20]);
        }
    }

    #[test]
    fn arrivals_are_poisson_at_the_rate() {
        let plan = plan("--rate 50 --conversations 20000");
        let mut gaps: Vec<f64> = plan.starts.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        assert!((mean * 50.0 - 1.0).abs() < 0.03, "{mean}");
        // An exponential gap is below its mean with probability 1 − 1/e, and below its median ln 2 / rate in half.
        gaps.sort_by(f64::total_cmp);
        let median = gaps[gaps.len() / 2] * 50.0;
        assert!((median - std::f64::consts::LN_2).abs() < 0.03, "{median}");
        assert!(self::plan("--rate 0").starts.iter().all(Duration::is_zero));
    }

    #[test]
    fn pauses_lie_around_their_mean() {
        let plan = plan("--think-ms 100");
        for turn in 0..100 {
            let pause = plan.pause(1, turn).as_millis();
            assert!((50..=150).contains(&pause), "{pause}");
        }
    }
}
