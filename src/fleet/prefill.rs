//! What a backend has to compute before the next prompt's turn comes, and how fast it really is.
//!
//! **Queue.** Each request adds its expected work when it is sent and takes it back when its first token is there, or when
//! it ends before; its guard does both. The work of the one that is being computed shrinks with time: its part is assumed
//! to be the mean of those that wait, since an exact one would need a list under a lock.
//!
//! **Factor.** Prompts are computed one after another, so the time from the first token before to a request's own is what
//! the engine took for it. The factor is such time over expected work, over a window of so many seconds of expected work.
//! Whoever compares all backends sets the one that choices go by.
//!
//! Of a whole answer the first token is not seen. It was there when the answer was, less the time of its steps. Where a step
//! is not known, the steps took so much longer or shorter as all of it did than expected. Where the steps are most of the
//! time, a small error in them is a large one in what is left: such an answer weighs less.
//!
//! **Step.** Seconds from one token of an answer to the next: by streams, and by what engines say of themselves.
//!
//! **Busy.** Work sent of late, fading: the share of its time that the backend spends on prompts. **Size.** The work of the
//! prompt to which a second of its work belonged on average, fading with work.
//!
//! One cache line a backend for what a choice reads, updated by every worker with relaxed read-modify-writes; the counters order
//! nothing else. What is learnt is a word each, written whole; of two that learn at once, one lesson is lost. Time is passed in,
//! in nanoseconds of one monotonic clock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::ratio::Ratio;

/// Seconds of expected work that the factor remembers.
const WINDOW_S: f32 = 30.0;

/// Seconds of expected work that the factor begins with, at 1.
const PRIOR_S: f32 = 0.5;

/// Bounds of the factor: engines a hundred times faster or slower than assumed are still told apart.
const FACTORS: (f32, f32) = (0.01, 100.0);

/// A prompt that took more than so many times what the factor says, or less than the part, teaches no more than that.
const MOST_SURPRISE: f64 = 8.0;

/// Tokens of answers whose steps are remembered, and the longest step there is.
const STEP_WINDOW_TOKENS: f32 = 4096.0;
const LONGEST_STEP_S: f64 = 10.0;

/// Below this share of the expected time, a prompt beside known steps weighs less.
const CLEAR_SHARE: f64 = 0.2;

/// No prompt is more work: a day.
const MOST_WORK_S: f64 = 86_400.0;

/// Seconds in which work of late fades to 1/e.
const LATE_S: f32 = 90.0;

/// Seconds of work in which what is known of its prompts' size fades to 1/e.
const SIZE_S: f32 = 15.0;

const NS: f64 = 1e9;

/// In the order of their declaration: what a choice reads is the first line.
#[repr(C, align(128))]
pub struct Prefill {
    queued_ns: AtomicU64,
    waiting: AtomicU32,
    /// Those of them whose first token will be seen.
    computing: AtomicU32,
    decoding: AtomicU32,
    kv_tokens: AtomicU64,
    /// Prompt tokens of those that wait.
    waiting_tokens: AtomicU64,
    /// When the request that is being computed had its turn.
    turn_ns: AtomicU64,
    /// Work of late: f32 seconds, and u32 the millisecond at which it was so much.
    late: AtomicU64,
    /// What choices go by: an f32.
    factor: AtomicU32,
    /// An f32, in seconds.
    size: AtomicU32,
    /// Seconds taken, seconds expected.
    learnt: Ratio,
    /// Seconds, tokens of answers; nothing before anything is known.
    step: Ratio,
}

impl Default for Prefill {
    fn default() -> Self {
        Prefill {
            queued_ns: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
            computing: AtomicU32::new(0),
            decoding: AtomicU32::new(0),
            kv_tokens: AtomicU64::new(0),
            waiting_tokens: AtomicU64::new(0),
            turn_ns: AtomicU64::new(0),
            late: AtomicU64::new(0),
            factor: AtomicU32::new(1.0_f32.to_bits()),
            size: AtomicU32::new(0.0_f32.to_bits()),
            learnt: Ratio::new(PRIOR_S, PRIOR_S),
            step: Ratio::new(0.0, 0.0),
        }
    }
}

/// One backend's prefill at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Seconds that a request sent now would have to wait for those before it.
    pub queue_s: f64,
    /// How many times longer work takes than expected.
    pub factor: f64,
    /// Share of its time that the backend spends on prompts, as of the last minute and a half.
    pub busy: f64,
    /// Seconds of work of the prompt to which a second of its work belonged lately.
    pub size_s: f64,
    /// Requests without a first token that will be seen to have one.
    pub computing: u32,
    pub decoding: u32,
    /// Prompt tokens of the requests that decode.
    pub kv_tokens: u64,
    /// Requests without a first token, and the tokens of their prompts.
    pub waiting: u32,
    pub waiting_tokens: u64,
}

/// The share of a queue of so many that is left when the first has had its part.
const fn rest(waiting: u32) -> f64 {
    1.0 - 1.0 / waiting as f64
}

/// The same, of those that are common: a division for each backend makes a choice a fifth longer.
const REST: [f64; 17] = {
    let mut table = [0.0; 17];
    let mut waiting = 1;
    while waiting < table.len() {
        table[waiting] = rest(waiting as u32);
        waiting += 1;
    }
    table
};

fn ms(now_ns: u64) -> u32 {
    (now_ns / 1_000_000) as u32
}

#[inline]
fn faded(word: u64, now_ns: u64) -> f32 {
    let then = word as u32;
    let passed_ms = ms(now_ns).wrapping_sub(then).cast_signed().max(0) as f32;
    let x = passed_ms * (1e-3 / LATE_S);
    // 1/eˣ by the first terms of its series: a choice asks for every backend, and far away it need not be exact.
    f32::from_bits((word >> 32) as u32) / (1.0 + x * (1.0 + x * (0.5 + x * (1.0 / 6.0))))
}

impl Prefill {
    /// Another backend begins with the speed of a first one. What is counted belongs to the guards that will release it.
    pub(super) fn forget(&self) {
        self.learnt.set(PRIOR_S, PRIOR_S);
        self.step.set(0.0, 0.0);
        self.set_factor(1.0);
        self.late.store(0, Relaxed);
        self.size.store(0.0_f32.to_bits(), Relaxed);
    }

    /// All that a choice at `now_ns` wants to know.
    #[inline]
    pub fn look(&self, now_ns: u64) -> Seen {
        let (waiting, factor) = (self.waiting(), self.factor());
        Seen {
            queue_s: self.queue_s(waiting, now_ns, factor),
            factor,
            busy: self.busy(now_ns),
            size_s: f64::from(f32::from_bits(self.size.load(Relaxed))),
            computing: self.computing.load(Relaxed),
            decoding: self.decoding.load(Relaxed),
            kv_tokens: self.kv_tokens.load(Relaxed),
            waiting,
            waiting_tokens: self.waiting_tokens.load(Relaxed),
        }
    }

    #[inline]
    fn queue_s(&self, waiting: u32, now_ns: u64, factor: f64) -> f64 {
        if waiting == 0 {
            return 0.0;
        }
        // Signed: the conversion of such words is one instruction.
        let queued_ns = self.queued_ns.load(Relaxed).cast_signed() as f64 * factor;
        let elapsed_ns = now_ns.saturating_sub(self.turn_ns.load(Relaxed)).cast_signed() as f64;
        let rest = REST.get(waiting as usize).copied().unwrap_or_else(|| rest(waiting));
        (queued_ns - elapsed_ns).max(queued_ns * rest) * (1.0 / NS)
    }

    /// How many times longer work takes than expected, as choices see it.
    #[inline]
    fn factor(&self) -> f64 {
        f64::from(f32::from_bits(self.factor.load(Relaxed)))
    }

    pub(super) fn set_factor(&self, factor: f64) {
        if factor.is_finite() {
            self.factor.store((factor as f32).clamp(FACTORS.0, FACTORS.1).to_bits(), Relaxed);
        }
    }

    /// How many times longer work has taken than expected.
    pub fn learnt_factor(&self) -> f64 {
        let (taken_s, expected_s) = self.learnt.sums();
        f64::from((taken_s / expected_s).clamp(FACTORS.0, FACTORS.1))
    }

    /// Learns that `tokens` of answers took `seconds`, one after another.
    pub fn learn_step(&self, seconds: f64, tokens: f64) {
        if tokens > 0.0 && tokens < f64::from(u32::MAX) {
            self.step.learn(seconds.min(LONGEST_STEP_S * tokens) as f32, tokens as f32, STEP_WINDOW_TOKENS);
        }
    }

    /// Seconds from one token of an answer to the next, if that is known.
    pub fn step_s(&self) -> Option<f64> {
        let (seconds, tokens) = self.step.sums();
        (tokens > 0.0).then(|| f64::from(seconds / tokens))
    }

    #[inline]
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Relaxed)
    }

    /// Counts a request until the guard is dropped: `work_s` of expected work, uncorrected, and `tokens` of prompt. Only of
    /// a streamed answer the first token is seen before the end.
    pub fn begin(&self, work_s: f64, tokens: u64, streamed: bool, now_ns: u64) -> Computing<'_> {
        let work_s = if work_s.is_finite() { work_s.clamp(0.0, MOST_WORK_S) } else { 0.0 };
        let work_ns = (work_s * NS) as u64;
        let ahead_ns = self.queued_ns.fetch_add(work_ns, Relaxed);
        self.waiting_tokens.fetch_add(tokens, Relaxed);
        self.add_late(work_s * self.factor(), now_ns);
        self.add_size(work_s as f32);
        if self.waiting.fetch_add(1, Relaxed) == 0 {
            self.turn_ns.store(now_ns, Relaxed);
        }
        self.computing.fetch_add(u32::from(streamed), Relaxed);
        Computing { prefill: self, work_ns, ahead_ns, tokens, streamed, sent_ns: now_ns, decoding: false, sample: None }
    }

    #[inline]
    fn busy(&self, now_ns: u64) -> f64 {
        f64::from(faded(self.late.load(Relaxed), now_ns) * (1.0 / LATE_S))
    }

    fn add_late(&self, work_s: f64, now_ns: u64) {
        let late = faded(self.late.load(Relaxed), now_ns) + work_s as f32;
        self.late.store(u64::from(late.to_bits()) << 32 | u64::from(ms(now_ns)), Relaxed);
    }

    fn add_size(&self, work_s: f32) {
        let size = f32::from_bits(self.size.load(Relaxed));
        let size = size + (work_s - size) * (work_s / SIZE_S).min(1.0);
        self.size.store(size.to_bits(), Relaxed);
    }

    fn learn(&self, taken_s: f64, expected_s: f64) {
        let usual_s = self.learnt_factor() * expected_s;
        let taken_s = taken_s.max(usual_s / MOST_SURPRISE).min(usual_s * MOST_SURPRISE);
        self.learnt.learn(taken_s as f32, expected_s as f32, WINDOW_S);
    }
}

/// A request that a backend computes, and then decodes; dropping it, on whatever path, ends either.
#[must_use]
pub struct Computing<'a> {
    prefill: &'a Prefill,
    work_ns: u64,
    /// What was queued when it was sent.
    ahead_ns: u64,
    tokens: u64,
    streamed: bool,
    sent_ns: u64,
    decoding: bool,
    /// Seconds taken and expected, learnt when the request ends.
    sample: Option<(f64, f64)>,
}

impl Computing<'_> {
    /// The first token is there. `slowdown`: how much longer decoding made the work take, which is not the engine's factor.
    pub fn first_token(&mut self, now_ns: u64, slowdown: f64) {
        if self.decoding {
            return;
        }
        let turn_ns = self.prefill.turn_ns.swap(now_ns, Relaxed).max(self.sent_ns);
        let taken_s = now_ns.saturating_sub(turn_ns) as f64 / NS;
        self.sample = Some((taken_s / slowdown, self.work_ns as f64 / NS));
        self.leave_queue();
        self.decoding = true;
        self.prefill.decoding.fetch_add(1, Relaxed);
        self.prefill.kv_tokens.fetch_add(self.tokens, Relaxed);
    }

    /// The whole answer is there, of `tokens` tokens. `step_s`: what a step takes by the flags, for an engine of which no step
    /// is known.
    pub fn whole(&mut self, now_ns: u64, slowdown: f64, tokens: u64, step_s: f64) {
        if self.decoding || self.sample.is_some() {
            return;
        }
        let factor = self.prefill.learnt_factor();
        let known_step_s = self.prefill.step_s();
        let steps_s = tokens.saturating_sub(1) as f64 * known_step_s.unwrap_or(step_s * factor);
        let expected_s = |work_ns: u64| work_ns as f64 / NS * factor * slowdown;
        let work_s = expected_s(self.work_ns);
        let total_s = now_ns.saturating_sub(self.sent_ns) as f64 / NS;
        // What was ahead of it may have been computed already: it explains as much as there is to explain.
        let waited_s = (total_s - steps_s - work_s).max(0.0).min(expected_s(self.ahead_ns));
        let (surprise, weight) = match known_step_s {
            Some(_) => (1.0, (work_s / (work_s + steps_s).max(1e-9) / CLEAR_SHARE).min(1.0)),
            None => (total_s / (waited_s + work_s + steps_s).max(1e-9), 1.0),
        };
        let first_ns = now_ns.saturating_sub((steps_s * surprise * NS) as u64);
        let turn_ns = self.prefill.turn_ns.fetch_max(first_ns, Relaxed).max(self.sent_ns);
        let taken_s = first_ns.saturating_sub(turn_ns) as f64 / NS;
        self.sample = Some((taken_s / slowdown * weight, self.work_ns as f64 / NS * weight));
    }

    /// Its answer is an error, or broke off: nothing is learnt of it.
    pub fn failed(&mut self) {
        self.sample = None;
    }

    fn leave_queue(&self) {
        self.prefill.queued_ns.fetch_sub(self.work_ns, Relaxed);
        self.prefill.waiting.fetch_sub(1, Relaxed);
        self.prefill.waiting_tokens.fetch_sub(self.tokens, Relaxed);
        self.prefill.computing.fetch_sub(u32::from(self.streamed), Relaxed);
    }
}

impl Drop for Computing<'_> {
    fn drop(&mut self) {
        if let Some((taken_s, expected_s)) = self.sample {
            self.prefill.learn(taken_s, expected_s);
        }
        if self.decoding {
            self.prefill.decoding.fetch_sub(1, Relaxed);
            self.prefill.kv_tokens.fetch_sub(self.tokens, Relaxed);
        } else {
            self.leave_queue();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn the_queue_is_what_waits_less_what_the_first_has_had() {
        let prefill = Prefill::default();
        assert_eq!(prefill.look(5 * S).queue_s, 0.0);
        let mut first = prefill.begin(2.0, 100, true, 10 * S);
        let second = prefill.begin(4.0, 100, true, 10 * S);
        assert_eq!(prefill.look(10 * S).queue_s, 6.0);
        assert_eq!(prefill.look(12 * S).queue_s, 4.0);
        assert_eq!(prefill.look(90 * S).queue_s, 3.0, "the first never counts less than nothing");
        first.first_token(12 * S, 1.0);
        first.first_token(13 * S, 1.0);
        assert_eq!(prefill.look(12 * S).computing, 1);
        assert_eq!((prefill.waiting(), prefill.look(0).decoding, prefill.look(0).kv_tokens), (1, 1, 100));
        assert_eq!(prefill.look(12 * S).queue_s, 4.0);
        drop(second);
        drop(first);
        assert_eq!(
            (prefill.look(12 * S).queue_s, prefill.waiting(), prefill.look(0).decoding, prefill.look(0).kv_tokens),
            (0.0, 0, 0, 0)
        );
    }

    #[test]
    fn the_factor_finds_an_engine_that_is_three_times_slower_through_a_queue() {
        let prefill = Prefill::default();
        let mut now = 0;
        for _ in 0..40 {
            let mut pair = [prefill.begin(1.0, 1, true, now), prefill.begin(1.0, 1, true, now)];
            for guard in &mut pair {
                now += 3 * S;
                guard.first_token(now, 1.0);
            }
            now += 7 * S;
        }
        assert!((prefill.learnt_factor() - 3.0).abs() < 0.05, "{}", prefill.learnt_factor());
    }

    /// What an engine that is so many times slower teaches by whole answers, with steps of 10 ms, several at a time.
    fn by_whole_answers(slower: f64, at_a_time: u64, knows_steps: bool) -> f64 {
        let prefill = Prefill::default();
        if knows_steps {
            prefill.learn_step(slower * 0.01 * 1000.0, 1000.0);
        }
        let ns = |seconds: f64| (seconds * 1e9) as u64;
        for round in 0..150 {
            let sent = round * 100 * S;
            let mut all: Vec<_> = (0..at_a_time).map(|_| prefill.begin(0.2, 1, false, sent)).collect();
            // Computed one after another, decoded together.
            for (before, one) in (1_u32..).zip(&mut all) {
                one.whole(sent + ns(slower * (0.2 * f64::from(before) + 0.5)), 1.0, 51, 0.01);
            }
        }
        prefill.learnt_factor()
    }

    #[test]
    fn whole_answers_teach_what_streams_do() {
        for slower in [0.5, 1.0, 3.0, 10.0] {
            for (at_a_time, knows_steps) in [(1, true), (1, false), (4, true), (4, false)] {
                let factor = by_whole_answers(slower, at_a_time, knows_steps);
                assert!((factor / slower - 1.0).abs() < 0.2, "{slower}, {at_a_time}, {knows_steps}: {factor}");
            }
        }
    }

    #[test]
    fn one_stall_teaches_little_and_no_figure_makes_it_no_number() {
        let prefill = Prefill::default();
        let mut now = 0;
        let mut send = |taken_ns: u64| {
            prefill.begin(0.1, 1, true, now).first_token(now + taken_ns, 1.0);
            now += 10_000 * S;
        };
        (0..200).for_each(|_| send(S / 10));
        send(9_000 * S);
        assert!(prefill.learnt_factor() < 1.1, "{}", prefill.learnt_factor());
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e300, 1e-300];
        for (&a, &b) in odd.iter().flat_map(|a| odd.iter().map(move |b| (a, b))) {
            prefill.learn_step(a, b);
            prefill.begin(a, 1 << 40, true, 0).first_token(u64::MAX, b);
            prefill.begin(a, 1 << 40, false, 0).whole(u64::MAX, b, u64::MAX, a);
            prefill.set_factor(a);
            let seen = prefill.look(u64::MAX);
            assert!(prefill.learnt_factor().is_finite() && seen.factor > 0.0, "{a} {b}: {seen:?}");
            assert!([seen.queue_s, seen.busy, seen.size_s, seen.factor].iter().all(|figure| figure.is_finite()));
            assert!(prefill.step_s().is_none_or(f64::is_finite));
        }
    }

    #[test]
    fn decoding_beside_it_is_not_held_against_the_engine() {
        let prefill = Prefill::default();
        for at in 0..40 {
            prefill.begin(1.0, 1, true, at * 10 * S).first_token(at * 10 * S + 2 * S, 2.0);
        }
        assert!((prefill.learnt_factor() - 1.0).abs() < 0.01);
    }

    #[test]
    fn busy_is_the_share_of_time_and_fades() {
        let prefill = Prefill::default();
        for at in 0..600 {
            prefill.begin(0.5, 1, true, at * S).first_token(at * S + S / 2, 1.0);
        }
        assert!((prefill.busy(599 * S) - 0.5).abs() < 0.02, "{}", prefill.busy(599 * S));
        assert!((prefill.busy(689 * S) - 0.5 / std::f64::consts::E).abs() < 0.02);
        assert!(prefill.busy(3000 * S) < 3e-3);
    }

    #[test]
    fn its_size_is_that_of_the_prompts_that_make_up_its_work() {
        let prefill = Prefill::default();
        let send = |work_s| drop(prefill.begin(work_s, 1, true, 0));
        (0..400).for_each(|_| send(0.1));
        assert!((prefill.look(0).size_s - 0.1).abs() < 0.01, "{}", prefill.look(0).size_s);
        // Twenty short ones for each long one: as much work of either.
        for _ in 0..40 {
            (0..20).for_each(|_| send(0.1));
            send(2.0);
        }
        assert!((prefill.look(0).size_s - 1.05).abs() < 0.15, "{}", prefill.look(0).size_s);
    }

    #[test]
    fn whose_first_token_is_not_seen_waits_and_is_not_counted_as_computing() {
        let prefill = Prefill::default();
        let whole = prefill.begin(1.0, 1, false, 0);
        let streamed = prefill.begin(1.0, 1, true, 0);
        assert_eq!((prefill.waiting(), prefill.look(0).computing), (2, 1));
        drop(streamed);
        assert_eq!((prefill.waiting(), prefill.look(0).computing), (1, 0));
        drop(whole);
        assert_eq!((prefill.waiting(), prefill.look(0).computing), (0, 0));
    }

    #[test]
    fn a_panic_releases_the_queue() {
        let prefill = Prefill::default();
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = prefill.begin(1.0, 1, true, 0);
            panic!("a request's code fails");
        }));
        assert!(unwound.is_err());
        assert_eq!((prefill.look(0).queue_s, prefill.waiting()), (0.0, 0));
    }
}
