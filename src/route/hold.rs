//! Send a prompt now, or hold it until a backend has computed what is before it?
//!
//! An engine computes prompts in the order in which they were sent. What is held by the router can still be overtaken by a
//! shorter prompt, and go to whichever backend turns out to be free first; what was sent can not. So a prompt is held
//!
//! - while its backend computes others that don't fit into one pass together with it: in one pass they disturb each other
//!   little, and passes that are not full waste the engine's time;
//! - while its backend's memory has no room for it: there it would wait in front of whatever comes after it;
//! - while it would take the last backend that computes nothing, if it is longer than usual and has not waited half its own
//!   work: whoever comes meanwhile would have to wait for all of it.
//!
//! Held prompts go in the order of their [`urgency`]: the highest response ratio next (Brinch Hansen, 1971), which prefers
//! short ones and lets nobody starve.
//!
//! Only prompts whose first token will be seen count as being computed: nobody tells when another is over.

use super::ttft::{Outlook, Speed};

/// A backend whose queue is shorter than this is as good as free.
const FREE_S: f64 = 0.01;

/// With fewer backends than this, one is too large a part to keep free.
const RESERVE_FROM: usize = 6;

/// How long a long prompt leaves the last free backend to others, as a share of its own work.
const PATIENCE: f64 = 0.5;

/// The part of the usual work that one prompt makes up.
const STEP: f64 = 0.01;

/// A prompt that has been given a backend.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// The backend.
    pub index: usize,
    /// Seconds of work there, by the [`Speed`], undisturbed and uncorrected.
    pub work_s: f64,
    /// For so long it has been held.
    pub waited_s: f64,
    /// Seconds of work of a usual prompt.
    pub usual_s: f64,
    pub prompt_tokens: f64,
}

/// Whether the prompt should be held, or held longer.
pub fn holds(ask: &Ask, outlooks: &[Outlook], speed: &Speed) -> bool {
    let outlook = &outlooks[ask.index];
    let work_s = ask.work_s * outlook.factor;
    let pass_s = (speed.pass_s + speed.token_s * speed.pass_tokens) * outlook.factor;
    if outlook.lacks_room(ask.prompt_tokens) && outlook.computing + outlook.decoding > 0 {
        return true;
    }
    let is_long = ask.work_s > ask.usual_s;
    if outlook.computing > 0 {
        return outlook.queue_s > FREE_S && outlook.queue_s + work_s > pass_s;
    }
    is_long && ask.waited_s < PATIENCE * work_s && outlooks.len() >= RESERVE_FROM && is_last_free(outlooks)
}

/// Exactly one backend computes nothing.
fn is_last_free(outlooks: &[Outlook]) -> bool {
    outlooks.iter().filter(|outlook| outlook.computing == 0).take(2).count() == 1
}

/// Who goes first: time waited over the time that the prompt takes, on an idle backend that holds nothing.
pub fn urgency(waited_s: f64, cold_s: f64) -> f64 {
    waited_s / cold_s
}

/// The usual work after one more prompt has been sent; 0 before the first.
pub fn usual(before_s: f64, work_s: f64) -> f64 {
    usual_after(before_s, work_s, 1)
}

/// The same after `prompts` more, of this mean work.
pub fn usual_after(before_s: f64, mean_s: f64, prompts: u64) -> f64 {
    let kept = (1.0 - STEP).powf(prompts as f64);
    if before_s == 0.0 { mean_s } else { mean_s + kept * (before_s - mean_s) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pass takes 168 ms.
    const SPEED: Speed =
        Speed { pass_s: 8e-3, token_s: 20e-6, attention_s: 1e-9, kv_token_s: 50e-9, pass_tokens: 8000.0 };
    const FREE: Outlook = Outlook::IDLE;

    fn busy(queue_s: f64) -> Outlook {
        Outlook { queue_s, computing: 1, ..FREE }
    }

    /// For the first of the outlooks, when 0.3 s are usual.
    fn asked(work_s: f64, waited_s: f64, outlooks: &[Outlook]) -> bool {
        holds(&Ask { index: 0, work_s, waited_s, usual_s: 0.3, prompt_tokens: 4000.0 }, outlooks, &SPEED)
    }

    #[test]
    fn a_prompt_waits_for_a_backend_that_computes_unless_both_fit_into_a_pass() {
        assert!(!asked(0.1, 0.0, &[FREE, busy(1.0)]));
        assert!(asked(0.1, 0.0, &[busy(1.0), FREE]));
        assert!(asked(0.1, 60.0, &[busy(1.0), FREE]), "however long it has waited: its urgency rises");
        assert!(!asked(0.1, 0.0, &[busy(0.06)]) && asked(0.1, 0.0, &[busy(0.07)]));
        assert!(!asked(9.0, 0.0, &[busy(0.009)]), "it is as good as free");
        assert!(!asked(0.1, 0.0, &[Outlook { factor: 2.0, ..busy(0.12) }]), "a slow engine's pass takes longer");
    }

    #[test]
    fn a_prompt_waits_for_room_in_the_backends_memory() {
        let full = Outlook { room_tokens: 3999.0, decoding: 9, ..FREE };
        assert!(asked(0.1, 0.0, &[full]) && !asked(0.1, 0.0, &[Outlook { room_tokens: 4000.0, ..full }]));
        assert!(!asked(0.1, 0.0, &[Outlook { held_tokens: 1.0, ..full }]), "so much of it is there");
        assert!(!asked(0.1, 0.0, &[Outlook { decoding: 0, ..full }]), "nothing will end there");
    }

    #[test]
    fn what_will_not_be_seen_to_end_is_not_waited_for() {
        assert!(!asked(0.1, 0.0, &[Outlook { queue_s: 9.0, computing: 0, ..FREE }]));
    }

    #[test]
    fn a_long_prompt_leaves_the_last_free_backend_to_others_for_a_while() {
        let mut fleet = [busy(1.0); RESERVE_FROM];
        fleet[0] = FREE;
        assert!(asked(2.0, 0.0, &fleet) && asked(2.0, 0.9, &fleet));
        assert!(!asked(2.0, 1.1, &fleet), "it has waited for half its work");
        assert!(!asked(0.2, 0.0, &fleet), "a short one goes");
        assert!(!asked(2.0, 0.0, &fleet[..RESERVE_FROM - 1]), "of few, none is kept free");
        fleet[3] = FREE;
        assert!(!asked(2.0, 0.0, &fleet), "there is another one");
    }

    #[test]
    fn short_prompts_and_long_waits_are_urgent() {
        assert!(urgency(1.0, 0.1) > urgency(5.0, 2.0) && urgency(30.0, 2.0) > urgency(1.0, 0.1));
    }

    #[test]
    fn usual_follows_what_is_sent() {
        let after = (0..300).fold(usual(0.0, 4.0), |before, _| usual(before, 1.0));
        assert!(usual(0.0, 4.0) == 4.0 && (1.0..1.3).contains(&after));
        assert!((usual_after(4.0, 1.0, 300) - after).abs() < 1e-9, "as one by one");
    }
}
