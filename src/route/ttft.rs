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
//! score = ttft·(1 + fair/cold) + w·price + company + 5 s·ρ
//! ```
//!
//! **Price.** A second of work in a fleet that is busy a share ρ̄ of its time delays those who come later by about
//! ρ̄/(1 − ρ̄) seconds in all: the mean of a single-server queue. It makes hits worth waiting for under load. **Fairness.** A
//! short prompt is slowed down more by the same wait; `cold` is what its work would be on an idle backend that holds nothing.
//! **Company.** The seconds by which its own decoding and the others' will hold each other up. **Ahead.** A backend that has
//! had more work of late than others stands back: one that draws too much (a prefix that all prompts share) does so until the
//! prefix has spread, and among idle backends not all prompts with a common beginning follow the first. **Room.** What ends
//! makes room as fast as prompts come in: ρ/a tokens a second.
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
        1.0 / (self.pass_s + self.token_s * self.pass_tokens)
    }
}

/// What work and company cost, in seconds of waiting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// Of a second of work where all have been idle.
    pub idle: f64,
    /// Of a second of work, times ρ̄/(1 − ρ̄).
    pub load: f64,
    /// Seconds of work at which a prompt's own wait counts double; shorter ones count more.
    pub fair_s: f64,
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
    /// Prompts before this one whose first token will be seen.
    pub computing: u32,
    pub decoding: u32,
    /// Context of the requests that decode, in tokens.
    pub kv_tokens: u64,
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
        computing: 0,
        decoding: 0,
        kv_tokens: 0,
        room_tokens: f64::INFINITY,
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
    /// How many times longer decoding makes it.
    pub slowdown: f64,
    /// Seconds to the first token.
    pub ttft_s: f64,
}

/// What it costs, in seconds of waiting, to be busy all the time while the others are idle.
const AHEAD_S: f64 = 5.0;

/// Where in a step of its answers a backend is found.
const REST_OF_STEP: f64 = 0.25;

/// How many times longer it takes than on average until what runs has made room.
const ROOM: f64 = 3.0;

/// The least share of its time for that.
const LEAST_BUSY: f64 = 0.1;

/// Scores that are closer than this are equal.
const EQUAL_S: f64 = 1e-6;

/// The lowest score; among equals, at random.
pub fn choose(prompt_tokens: f64, outlooks: &[Outlook], speed: &Speed, price: &Price, random: u64) -> Option<Expected> {
    let fairness = 1.0 + price.fair_s / speed.work_s(prompt_tokens, 0.0);
    let mut best: Option<Expected> = None;
    let (mut best_score, mut equals, mut most_held) = (f64::INFINITY, 0, 0.0_f64);
    // Divisions that are the same for all.
    let per_token = 1.0 / speed.pass_tokens;
    let (token_s, per_pass) = (speed.token_s + speed.pass_s * per_token, speed.per_pass());
    let mean_busy = outlooks.iter().map(|outlook| outlook.busy).sum::<f64>() / outlooks.len() as f64;
    let busy = mean_busy.min(BUSIEST);
    let work_price = price.idle + price.load * busy / (1.0 - busy);
    for (index, outlook) in outlooks.iter().enumerate() {
        most_held = most_held.max(outlook.held_tokens);
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
        let mut ttft_s = (outlook.queue_s + corrected_s) * slowdown + (step_s * unfilled + rest_s) * outlook.factor;
        let shortage = outlook.shortage(prompt_tokens);
        if shortage > 0.0 {
            ttft_s += ROOM * speed.token_s * outlook.factor * shortage / outlook.busy.max(LEAST_BUSY);
        }
        let pace_s = 2.0 * speed.token_s * decoding + speed.kv_token_s * (kv_tokens + decoding * prompt_tokens);
        let company_s = price.answer_tokens * pace_s * outlook.factor;
        let score = ttft_s * fairness + corrected_s * work_price + company_s + AHEAD_S * outlook.busy;
        if score > best_score + EQUAL_S {
            continue;
        }
        equals = if score < best_score - EQUAL_S { 1 } else { equals + 1 };
        // Each of n equals is kept with probability 1/n.
        if equals == 1 || mix(random ^ index as u64).is_multiple_of(equals) {
            best_score = score;
            best = Some(Expected { index, reason: Reason::Ttft, work_s, slowdown, ttft_s });
        }
    }
    best.map(|best| Expected { reason: reason(outlooks[best.index].held_tokens, most_held), ..best })
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
    const PRICE: Price = Price { idle: 0.25, load: 1.0, fair_s: 0.3, answer_tokens: 9.0 };
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
