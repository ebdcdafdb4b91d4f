//! `ttft`: where is the first token expected soonest, with a price on the work that the choice costs the others?
//!
//! The model is an engine that batches continuously: prompts are computed first come first served, in passes of a bounded
//! number of tokens, beside the decoding of everything that has begun.
//!
//! ```text
//! u = L − h                                        tokens to compute: the prompt less what the backend holds
//! w = u·(a + t0/T) + b·u·(L − u/2)                 seconds of work, times the backend's learnt factor
//! d = a·n + c·kv                                   what n decoding answers add to a pass, in seconds
//! s = 1 + d/(t0 + a·T)                             how much they slow a pass full of prompt down
//! ttft  = (W + w)·s + d·(1 − u/T)⁺ + g + v         W: seconds of work that wait before it; at least one pass
//! g = (t0 + d)/4                                   if answers are decoded and no prompt is computed: the rest of their step
//! v = 3·a·(u − room)⁺/ρ                            until enough that runs has ended, if its memory lacks room
//! price = idle + load·ρ̄/(1 − ρ̄)                    ρ: share of its time that a backend has spent on prompts lately; ρ̄: mean
//! score = ttft·(1 + fair/cold) + w·(price − alike) + company + ahead·ρ/ρ̄
//! alike = 0.05·min(size/mean size, 4)              size: of the prompts that make up a backend's work lately
//! ```
//!
//! **Price.** A second of work in a fleet that is busy a share ρ̄ of its time delays those who come later by about
//! ρ̄/(1 − ρ̄) seconds in all: the mean of a single-server queue. It makes hits worth waiting for under load. **Fairness.** A
//! short prompt is slowed down more by the same wait; `cold` is what its work would be on an idle backend that holds nothing.
//! **Company.** The seconds by which its own answer and the others' will hold each other up, those included whose prompts
//! still wait. **Ahead.** A backend that has had more work of late than the mean stands back. One that draws too much (a prefix
//! that all prompts share) does so until the prefix has spread. And caches are renewed at one pace: one that is renewed faster
//! than the others forgets what they would still have. **Alike.** Long prompts go where long ones have been: there they are in the
//! way of fewer short ones, and displace less of what conversations will ask for. **Room.** What ends makes room as fast as
//! prompts come in: ρ/a tokens a second.
//!
//! Must not know: where the figures come from, who learns them. `docs/decisions/0030` says what was tried.

use super::{Reason, mix};

/// What an engine's time goes into. A learnt factor for each backend corrects it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Seconds of a pass beside its work (t0).
    pub pass_s: f64,
    /// Seconds to compute a token (a).
    pub token_s: f64,
    /// Seconds a pair of tokens of attention in a prompt (b).
    pub attention_s: f64,
    /// Seconds by which a token of context in decoding makes a pass longer (c).
    pub kv_token_s: f64,
    /// Tokens of a pass (T).
    pub pass_tokens: f64,
}

impl Speed {
    /// Seconds to compute the rest of a prompt of `prompt` tokens of which `held` are in the cache; the last token is
    /// always computed.
    pub fn work_s(&self, prompt: f64, held: f64) -> f64 {
        self.work_at(self.token_s + self.pass_s / self.pass_tokens, prompt, held)
    }

    fn work_at(&self, token_s: f64, prompt: f64, held: f64) -> f64 {
        let rest = (prompt - held).max(1.0);
        rest * (token_s + self.attention_s * (prompt - rest / 2.0))
    }

    /// Seconds that `decoding` answers with `kv_tokens` of context add to a pass.
    fn step_s(&self, decoding: f64, kv_tokens: f64) -> f64 {
        self.token_s * decoding + self.kv_token_s * kv_tokens
    }

    /// One over the seconds of a pass full of prompt.
    fn per_pass(&self) -> f64 {
        1.0 / (self.pass_s + self.token_s * self.pass_tokens).max(LEAST_WORK_S)
    }
}

/// What work and company cost, in seconds of waiting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// Of a second of work where all have been idle.
    pub idle: f64,
    /// Of a second of work, times ρ̄/(1 − ρ̄).
    pub load: f64,
    /// Tokens of a prompt whose own wait counts double; shorter ones count more.
    pub fair_tokens: f64,
    /// Tokens of an answer whose pace counts like a wait.
    pub answer_tokens: f64,
}

/// Above this share of the backends' time the price does not rise any more: 19 times its load's.
const BUSIEST: f64 = 0.95;

/// One backend, as far as the first token goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outlook {
    /// Leading tokens of the prompt that it probably holds.
    pub held_tokens: f64,
    /// Seconds of work that wait before the request.
    pub queue_s: f64,
    /// How many times slower than its [`Speed`] it is.
    pub factor: f64,
    /// Share of its time that it has spent on prompts lately.
    pub busy: f64,
    /// Seconds of work of the prompt to which a second of its work belonged lately.
    pub size_s: f64,
    /// Prompts before this one whose first token will be seen.
    pub computing: u32,
    pub decoding: u32,
    /// Context of the requests that decode, in tokens.
    pub kv_tokens: u64,
    /// Requests without a first token, and the tokens of their prompts.
    pub waiting: u32,
    pub waiting_tokens: u64,
    /// Tokens for which its memory has room beside what runs; infinite if that is not known.
    pub room_tokens: f64,
}

impl Outlook {
    /// A backend that does nothing and holds nothing, of unknown memory.
    #[cfg(test)]
    pub(super) const IDLE: Outlook = Outlook {
        held_tokens: 0.0,
        queue_s: 0.0,
        factor: 1.0,
        busy: 0.0,
        size_s: 0.0,
        computing: 0,
        decoding: 0,
        kv_tokens: 0,
        waiting: 0,
        waiting_tokens: 0,
        room_tokens: f64::INFINITY,
    };

    /// What no backend is.
    #[cfg(debug_assertions)]
    pub const NO_NUMBERS: Outlook = Outlook {
        held_tokens: f64::NAN,
        queue_s: f64::NAN,
        factor: f64::NAN,
        busy: f64::NAN,
        size_s: f64::NAN,
        computing: u32::MAX,
        decoding: u32::MAX,
        kv_tokens: u64::MAX,
        waiting: u32::MAX,
        waiting_tokens: u64::MAX,
        room_tokens: f64::NAN,
    };

    /// Tokens of the prompt for which its memory has no room.
    fn shortage(&self, prompt_tokens: f64) -> f64 {
        (prompt_tokens - self.held_tokens - self.room_tokens).max(0.0)
    }

    pub(super) fn lacks_room(&self, prompt_tokens: f64) -> bool {
        self.shortage(prompt_tokens) > 0.0
    }
}

/// The choice, and what is expected of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    pub index: usize,
    pub reason: Reason,
    /// Seconds of work by the [`Speed`], undisturbed and uncorrected.
    pub work_s: f64,
    /// How many times longer the answers' steps make it.
    pub slowdown: f64,
    /// Seconds to the first token.
    pub ttft_s: f64,
}

/// What it costs to have had twice as much work of late as the mean: the time of so many tokens of prompt.
const AHEAD_TOKENS: f64 = 13_000.0;

/// Below this mean share nobody is much ahead: one prompt makes up all of it.
const LEAST_MEAN: f64 = 1e-3;

/// A mean size below this, in seconds, says nothing.
const LEAST_SIZE_S: f64 = 1e-3;

/// What a second of work costs less, in seconds of waiting, where prompts have been of the mean size lately than where they have been
/// small; and how many times the mean counts.
const ALIKE: f64 = 0.05;
const MOST_ALIKE: f64 = 4.0;

/// Where in a step of its answers a backend is found.
const REST_OF_STEP: f64 = 0.25;

/// How many times longer it takes than on average until what runs has made room.
const ROOM: f64 = 3.0;

/// The least share of its time for that.
const LEAST_BUSY: f64 = 0.1;

/// What is left of an answer that is being decoded.
const LEFT: f64 = 0.5;

/// A prompt is at least so much work, in seconds: with all flags at 0 it would be none.
const LEAST_WORK_S: f64 = 1e-9;

/// Scores that are closer than this are equal.
const EQUAL_S: f64 = 1e-6;

/// The lowest score; among equals, at random.
pub fn choose(prompt_tokens: f64, outlooks: &[Outlook], speed: &Speed, price: &Price, random: u64) -> Option<Expected> {
    let mut best: Option<Expected> = None;
    let (mut best_score, mut best_steps_s, mut equals, mut most_held) = (f64::INFINITY, 0.0, 0, 0.0_f64);
    // Divisions that are the same for all.
    let per_token = 1.0 / speed.pass_tokens;
    let (token_s, per_pass) = (speed.token_s + speed.pass_s * per_token, speed.per_pass());
    let fairness = 1.0 + price.fair_tokens * token_s / speed.work_at(token_s, prompt_tokens, 0.0).max(LEAST_WORK_S);
    let (mean_busy, mean_size_s) = means(outlooks);
    let busy = mean_busy.min(BUSIEST);
    let ahead_s = AHEAD_TOKENS * token_s / (mean_busy + LEAST_MEAN);
    let alike = ALIKE / mean_size_s.max(LEAST_SIZE_S);
    let work_price = price.idle + price.load * busy / (1.0 - busy);
    // What a token of context beside the prompt, a decode and a prompt that waits cost as company.
    let context_s = price.answer_tokens * speed.kv_token_s;
    let (own_s, others_s) =
        (price.answer_tokens * speed.token_s, price.answer_tokens * speed.step_s(1.0, prompt_tokens));
    let (decode_s, waiting_s) = (own_s + LEFT * others_s, own_s + others_s);
    for (index, outlook) in outlooks.iter().enumerate() {
        if outlook.held_tokens > most_held {
            most_held = outlook.held_tokens;
        }
        // Signed: the conversion of such words is one instruction.
        let (decoding, kv_tokens) = (f64::from(outlook.decoding), outlook.kv_tokens.cast_signed() as f64);
        let work_s = speed.work_at(token_s, prompt_tokens, outlook.held_tokens);
        let corrected_s = work_s * outlook.factor;
        let step_s = speed.step_s(decoding, kv_tokens);
        let slowdown = 1.0 + step_s * per_pass;
        // A prompt that fills no pass shares the last one with a whole step of every answer.
        let unfilled = (1.0 - (prompt_tokens - outlook.held_tokens) * per_token).clamp(0.0, 1.0);
        let is_in_step = decoding > 0.0 && outlook.queue_s <= 0.0;
        let rest_s = if is_in_step { REST_OF_STEP * (speed.pass_s + step_s) } else { 0.0 };
        let steps_s = step_s * unfilled + rest_s;
        let mut ttft_s = (outlook.queue_s + corrected_s) * slowdown + steps_s * outlook.factor;
        let shortage = outlook.shortage(prompt_tokens);
        if shortage > 0.0 {
            ttft_s += ROOM * speed.token_s * outlook.factor * shortage / outlook.busy.max(LEAST_BUSY);
        }
        let context_tokens = (outlook.kv_tokens + outlook.waiting_tokens).cast_signed() as f64;
        let company_s = context_s * context_tokens + decode_s * decoding + waiting_s * f64::from(outlook.waiting);
        let alike_price = (alike * outlook.size_s).min(ALIKE * MOST_ALIKE);
        let score = ttft_s * fairness
            + corrected_s * (work_price - alike_price)
            + company_s * outlook.factor
            + ahead_s * outlook.busy;
        // What is no number is worse than every number, so that one backend of which nonsense is known loses to all others.
        let score = if score.is_finite() { score } else { f64::MAX };
        if score > best_score + EQUAL_S {
            continue;
        }
        equals = if score < best_score - EQUAL_S { 1 } else { equals + 1 };
        // Each of n equals is kept with probability 1/n.
        if equals == 1 || mix(random ^ index as u64).is_multiple_of(equals) {
            best_score = score;
            best_steps_s = steps_s;
            best = Some(Expected { index, reason: Reason::Ttft, work_s, slowdown, ttft_s });
        }
    }
    best.map(|best| Expected {
        reason: reason(outlooks[best.index].held_tokens, most_held),
        slowdown: best.slowdown + best_steps_s / best.work_s.max(LEAST_WORK_S),
        ..best
    })
}

/// Of the shares and of the sizes. By fours, which do not wait for each other.
fn means(outlooks: &[Outlook]) -> (f64, f64) {
    let sum = |four: &[Outlook]| {
        four.iter().fold((0.0, 0.0), |(busy, size_s), outlook| (busy + outlook.busy, size_s + outlook.size_s))
    };
    let (busy, size_s) = outlooks.chunks(4).map(sum).fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
    (busy / outlooks.len() as f64, size_s / outlooks.len() as f64)
}

fn reason(held: f64, most_held: f64) -> Reason {
    match (most_held > 0.0, held < most_held) {
        (false, _) => Reason::TtftCold,
        (true, true) => Reason::TtftSpill,
        (true, false) => Reason::Ttft,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEED: Speed =
        Speed { pass_s: 8e-3, token_s: 20e-6, attention_s: 1e-9, kv_token_s: 50e-9, pass_tokens: 8000.0 };
    const PRICE: Price = Price { idle: 0.25, load: 1.0, fair_tokens: 15_000.0, answer_tokens: 9.0 };
    const IDLE: Outlook = Outlook::IDLE;

    fn pick(prompt: f64, outlooks: &[Outlook]) -> (usize, Reason) {
        let chosen = choose(prompt, outlooks, &SPEED, &PRICE, 7).expect("some");
        (chosen.index, chosen.reason)
    }

    #[test]
    fn work_and_slowdown_are_the_formulas() {
        // 1000 of 3000 tokens: 1000·(20 + 1) µs and 1000·2500 ns of attention.
        assert!((SPEED.work_s(3000.0, 2000.0) - (0.021 + 0.0025)).abs() < 1e-12);
        assert!(SPEED.work_s(3000.0, 3000.0) > 0.0, "the last token is computed");
        assert!((SPEED.step_s(10.0, 100_000.0) * SPEED.per_pass() - (0.2e-3 + 5e-3) / 0.168).abs() < 1e-12);
    }

    #[test]
    fn whatever_is_said_of_a_backend_one_is_chosen_and_not_the_one_of_which_nonsense_is_known() {
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0, 1e300];
        let set = |at: usize, value: f64| {
            let mut outlook = IDLE;
            let figures =
                [&mut outlook.held_tokens, &mut outlook.queue_s, &mut outlook.factor, &mut outlook.room_tokens];
            *figures.into_iter().nth(at).expect("a figure") = value;
            outlook
        };
        for turn in 0..2000 {
            let draw = |n: u64| mix(turn * 7 + n) as usize;
            let outlooks: Vec<Outlook> = (0..4).map(|n| set(draw(n) % 4, odd[draw(n + 9) % odd.len()])).collect();
            let chosen = choose(1000.0, &outlooks, &SPEED, &PRICE, mix(turn)).expect("one of them");
            assert!(chosen.index < outlooks.len());
        }
        for turn in 0..100 {
            let nonsense = Outlook { factor: f64::NAN, ..IDLE };
            assert_eq!(choose(1000.0, &[nonsense, IDLE, nonsense], &SPEED, &PRICE, mix(turn)).expect("one").index, 1);
        }
        let nothing = Speed { pass_s: 0.0, token_s: 0.0, attention_s: 0.0, kv_token_s: 0.0, pass_tokens: 1.0 };
        let expected = choose(1000.0, &[IDLE], &nothing, &PRICE, 0).expect("one");
        assert!(expected.ttft_s.is_finite() && expected.slowdown.is_finite(), "{expected:?}");
    }

    #[test]
    fn nobody_gives_nothing_and_equals_share() {
        assert_eq!(choose(100.0, &[], &SPEED, &PRICE, 0), None);
        let mut counts = [0; 4];
        for turn in 0..8000 {
            counts[choose(100.0, &[IDLE; 4], &SPEED, &PRICE, mix(turn)).expect("some").index] += 1;
        }
        assert!(counts.iter().all(|n| (1800..2200).contains(n)), "{counts:?}");
    }

    #[test]
    fn the_holder_is_taken_until_waiting_costs_more_than_computing() {
        let holder = Outlook { held_tokens: 9000.0, ..IDLE };
        assert_eq!(pick(10_000.0, &[IDLE, holder]), (1, Reason::Ttft));
        assert_eq!(pick(10_000.0, &[IDLE, Outlook { queue_s: 0.1, ..holder }]), (1, Reason::Ttft));
        assert_eq!(pick(10_000.0, &[IDLE, Outlook { queue_s: 0.5, ..holder }]), (0, Reason::TtftSpill));
        assert_eq!(pick(10_000.0, &[IDLE, Outlook { queue_s: 0.5, ..IDLE }]), (0, Reason::TtftCold));
    }

    #[test]
    fn under_load_a_hit_is_worth_a_longer_wait() {
        let wait = |busy: f64| {
            let holder = Outlook { held_tokens: 9000.0, queue_s: 0.35, busy, ..IDLE };
            pick(10_000.0, &[Outlook { busy, ..IDLE }, holder]).0
        };
        assert_eq!((wait(0.0), wait(0.8)), (0, 1));
    }

    #[test]
    fn a_backend_that_draws_more_than_the_others_loses_a_small_match() {
        let hot = Outlook { held_tokens: 1000.0, busy: 0.5, ..IDLE };
        assert_eq!(pick(8000.0, &[Outlook { busy: 0.1, ..IDLE }, hot]), (0, Reason::TtftSpill));
        assert_eq!(pick(8000.0, &[Outlook { busy: 0.5, ..IDLE }, hot]), (1, Reason::Ttft));
    }

    #[test]
    fn being_ahead_counts_by_how_many_times_the_mean_it_is() {
        for busy in [0.005, 0.05, 0.5] {
            let hot = Outlook { held_tokens: 1000.0, busy, ..IDLE };
            assert_eq!(pick(8000.0, &[Outlook { busy: busy / 5.0, ..IDLE }, hot]).0, 0, "{busy}");
        }
    }

    #[test]
    fn long_prompts_go_where_long_ones_have_been_and_short_ones_do_not_care() {
        let (long, short) = (Outlook { size_s: 1.0, ..IDLE }, Outlook { size_s: 0.1, ..IDLE });
        let a_bit = Outlook { queue_s: 0.01, ..long };
        assert_eq!((pick(30_000.0, &[short, a_bit]).0, pick(1000.0, &[short, a_bit]).0), (1, 0));
    }

    #[test]
    fn prompts_that_wait_will_be_company() {
        let waiting = Outlook { waiting: 3, waiting_tokens: 9000, ..IDLE };
        for turn in 0..100 {
            let chosen = choose(3000.0, &[waiting, IDLE, waiting], &SPEED, &PRICE, mix(turn)).expect("some");
            assert_eq!(chosen.index, 1);
        }
    }

    #[test]
    fn what_slows_a_prompt_down_is_told_in_full_so_that_the_factor_does_not_learn_it() {
        let beside = Outlook { decoding: 10, kv_tokens: 50_000, factor: 1.5, ..IDLE };
        for prompt in [100.0, 3000.0, 30_000.0] {
            let expected = choose(prompt, &[beside], &SPEED, &PRICE, 0).expect("one");
            assert!((expected.ttft_s - 1.5 * expected.work_s * expected.slowdown).abs() < 1e-9);
            assert!(expected.slowdown > 1.0 && (prompt > 100.0 || expected.slowdown > 3.0), "{expected:?}");
        }
    }

    #[test]
    fn a_slow_backend_and_a_crowded_one_are_avoided() {
        assert_eq!(pick(1000.0, &[Outlook { factor: 1.5, ..IDLE }, IDLE]).0, 1);
        assert_eq!(pick(1000.0, &[Outlook { decoding: 20, kv_tokens: 20_000, ..IDLE }, IDLE]).0, 1);
    }

    #[test]
    fn a_backend_whose_memory_is_full_is_avoided_unless_it_holds_the_prompt() {
        let full = Outlook { room_tokens: 500.0, ..IDLE };
        let pressed = Outlook { queue_s: 0.02, ..IDLE };
        assert_eq!(pick(4000.0, &[full, pressed]).0, 1);
        assert_eq!(pick(500.0, &[full, pressed]).0, 0, "there is room for so much");
        assert_eq!(pick(4000.0, &[Outlook { held_tokens: 3500.0, ..full }, pressed]).0, 0);
    }

    #[test]
    fn an_idle_backend_is_taken_rather_than_one_within_a_step() {
        assert_eq!(pick(9000.0, &[Outlook { decoding: 1, kv_tokens: 100, ..IDLE }, IDLE]).0, 1);
    }

    #[test]
    fn a_short_prompt_does_not_wait_for_what_it_saves() {
        let holder = |held| Outlook { held_tokens: held, queue_s: 0.04, busy: 0.3, ..IDLE };
        let other = Outlook { busy: 0.3, ..IDLE };
        assert_eq!(pick(1000.0, &[other, holder(900.0)]).0, 0);
        assert_eq!(pick(10_000.0, &[other, holder(2000.0)]).0, 1);
    }
}
