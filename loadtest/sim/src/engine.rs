//! A model of an LLM engine: continuous batching with chunked prefill over a paged, prefix-cached KV memory.
//!
//! The engine works in passes. Each pass spends a budget of tokens: one for each running decode first, then the prompts that
//! have begun, then new ones, first come first served while their blocks fit. A pass takes
//! `t0 + a·tokens + b·Σ n(context + n/2) + c·Σ KV of decodes` seconds; its tokens are there at its end. When a decode finds
//! no block, the request that was admitted last gives its blocks up and is computed again later.
//!
//! Must not know: routing. Time is the caller's: [`Engine::start_pass`] and [`Engine::end_pass`] alternate.

use std::collections::VecDeque;

use crate::pool::{BLOCK_TOKENS, Pool};
use crate::sequence::{Job, Sequence};
use crate::trace::Request;

/// The speed of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// Seconds of a pass beside its work.
    pub pass_s: f64,
    /// Seconds a token.
    pub token_s: f64,
    /// Seconds a pair of tokens of attention in prefill.
    pub attention_s: f64,
    /// Seconds a token of context and pass in decoding.
    pub kv_token_s: f64,
    /// Tokens of a pass.
    pub pass_tokens: u32,
}

impl Speed {
    /// An 8B model on an H100.
    pub const H100: Speed =
        Speed { pass_s: 7.5e-3, token_s: 21.5e-6, attention_s: 1.0e-9, kv_token_s: 49e-9, pass_tokens: 8192 };
    /// An 8B model on an A100.
    pub const A100: Speed =
        Speed { pass_s: 11.5e-3, token_s: 69e-6, attention_s: 3.1e-9, kv_token_s: 82e-9, pass_tokens: 8192 };

    /// Seconds in which an idle engine computes a prompt of which it has nothing.
    pub fn cold_prefill_s(&self, tokens: u32) -> f64 {
        let (mut seconds, mut context) = (0.0, 0);
        while context < tokens {
            let n = (tokens - context).min(self.pass_tokens);
            seconds += self.pass_s + self.token_s * f64::from(n) + self.attention(context, n);
            context += n;
        }
        seconds
    }

    fn attention(&self, context: u32, n: u32) -> f64 {
        self.attention_s * f64::from(n) * (f64::from(context) + f64::from(n) / 2.0)
    }
}

/// What became of a request in a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// Its first token is there; so many tokens of its prompt were found in the cache.
    FirstToken {
        request: usize,
        cached_tokens: u32,
    },
    Finished {
        request: usize,
    },
}

#[derive(Debug)]
pub struct Engine {
    pub speed: Speed,
    pub pool: Pool,
    most_running: usize,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    /// Seconds spent on prefill alone, and how often a request was preempted.
    pub prefill_s: f64,
    pub preemptions: u64,
}

impl Engine {
    pub fn new(speed: Speed, kv_tokens: u32, ids: usize) -> Engine {
        Engine {
            speed,
            pool: Pool::new(kv_tokens / BLOCK_TOKENS, ids),
            most_running: 256,
            waiting: VecDeque::new(),
            running: Vec::new(),
            prefill_s: 0.0,
            preemptions: 0,
        }
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    pub fn submit(&mut self, number: usize) {
        self.waiting.push_back(Sequence::new(number));
    }

    /// Plans the next pass; how long it takes, or `None` when there is nothing to do.
    pub fn start_pass(&mut self, requests: &[Request]) -> Option<f64> {
        if self.is_idle() {
            return None;
        }
        let mut budget = self.speed.pass_tokens;
        let mut kv_tokens = 0u64;
        let mut decoding = 0;
        while let Some(at) = self.next_decode(decoding) {
            decoding = at + 1;
            if self.room_for_token(at, requests) {
                kv_tokens += u64::from(self.running[at].tokens(requests));
                budget = budget.saturating_sub(1);
            }
        }
        let (mut tokens, mut attention_s) = (0, 0.0);
        let mut plan = |sequence: &mut Sequence, pool: &mut Pool, budget: &mut u32, speed: &Speed| {
            let (context, n) = sequence.plan_prefill(requests, pool, *budget);
            *budget -= n;
            tokens += n;
            attention_s += speed.attention(context, n);
        };
        for sequence in self.running.iter_mut().filter(|sequence| sequence.is_prefilling()) {
            plan(sequence, &mut self.pool, &mut budget, &self.speed);
        }
        while budget > 0 && self.running.len() < self.most_running {
            let Some(next) = self.waiting.front_mut() else { break };
            if !next.admit(requests, &mut self.pool, self.running.is_empty()) {
                break;
            }
            plan(next, &mut self.pool, &mut budget, &self.speed);
            self.running.extend(self.waiting.pop_front());
        }
        let decodes = self.running.iter().filter(|sequence| sequence.job == Job::Decode).count();
        self.prefill_s += self.speed.token_s * f64::from(tokens) + attention_s;
        Some(
            self.speed.pass_s
                + self.speed.token_s * f64::from(tokens + decodes as u32)
                + attention_s
                + self.speed.kv_token_s * kv_tokens as f64,
        )
    }

    /// The pass is over: adds what happened to `events`.
    pub fn end_pass(&mut self, requests: &[Request], events: &mut Vec<Event>) {
        let pool = &mut self.pool;
        self.running.retain_mut(|sequence| {
            let request = sequence.number;
            let Some(tokens) = sequence.end_pass() else { return true };
            if tokens == 1 {
                events.push(Event::FirstToken { request, cached_tokens: sequence.cached_tokens });
            }
            let goes_on = tokens < requests[request].output_tokens;
            if !goes_on {
                sequence.finish(requests, pool);
                events.push(Event::Finished { request });
            }
            goes_on
        });
    }

    fn next_decode(&self, from: usize) -> Option<usize> {
        (from..self.running.len()).find(|&at| self.running[at].job == Job::Decode)
    }

    /// A place for the next token of a running decode; preempts the requests admitted last until there is one. False: it
    /// was itself preempted.
    fn room_for_token(&mut self, at: usize, requests: &[Request]) -> bool {
        while !self.running[at].grow(requests, &mut self.pool) {
            let Some(mut last) = self.running.pop() else { return false };
            last.preempt(&mut self.pool);
            self.waiting.push_front(last);
            self.preemptions += 1;
            if self.running.len() <= at {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pass takes a second, a token of prompt or answer a thousandth: schedules can be counted on fingers.
    const SLOW: Speed = Speed { pass_s: 1.0, token_s: 1e-3, attention_s: 0.0, kv_token_s: 0.0, pass_tokens: 1000 };

    fn request(prompt_tokens: u32, output_tokens: u32, ids: &[u32]) -> Request {
        Request { prompt_tokens, output_tokens, ids: ids.to_vec(), ..Request::default() }
    }

    /// Submits each request at its time and plays to the end: (time, event).
    fn play(engine: &mut Engine, requests: &[Request], at_s: &[f64]) -> Vec<(f64, Event)> {
        let (mut now, mut next, mut log, mut events) = (0.0, 0, Vec::new(), Vec::new());
        loop {
            while next < requests.len() && at_s[next] <= now + 1e-9 {
                engine.submit(next);
                next += 1;
            }
            match engine.start_pass(requests) {
                Some(pass_s) => now += pass_s,
                None if next < requests.len() => {
                    now = at_s[next];
                    continue;
                }
                None => return log,
            }
            engine.end_pass(requests, &mut events);
            log.extend(events.drain(..).map(|event| ((now * 1000.0_f64).round() / 1000.0, event)));
        }
    }

    fn first(request: usize, cached_tokens: u32) -> Event {
        Event::FirstToken { request, cached_tokens }
    }

    fn finished(request: usize) -> Event {
        Event::Finished { request }
    }

    #[test]
    fn a_long_prompt_takes_passes_and_a_short_one_behind_it_shares_the_last() {
        let mut engine = Engine::new(SLOW, 100_000, 10);
        let requests = [request(1500, 2, &[0, 1, 2]), request(100, 1, &[3])];
        let log = play(&mut engine, &requests, &[0.0, 0.0]);
        // 1000 tokens, then 500 + 100, then one decode.
        let expected = [(2.0 + 1.6, first(0, 0)), (3.6, first(1, 0)), (3.6, finished(1)), (4.601, finished(0))];
        assert_eq!(log, expected.map(|(at, event): (f64, Event)| ((at * 1000.0).round() / 1000.0, event)));
        assert!((engine.prefill_s - 1.6).abs() < 1e-9);
    }

    #[test]
    fn decodes_come_first_and_leave_the_rest_of_the_budget_to_prompts() {
        let mut engine = Engine::new(SLOW, 100_000, 10);
        let requests = [request(100, 3, &[0]), request(1000, 1, &[1, 2])];
        // The second arrives within the first pass: 999 tokens fit beside a decode, one is left for the next pass.
        let log = play(&mut engine, &requests, &[0.0, 0.5]);
        let expected = [(1.1, first(0, 0)), (4.102, first(1, 0)), (4.102, finished(0)), (4.102, finished(1))];
        assert_eq!(log.len(), 4);
        for entry in expected {
            assert!(log.contains(&entry), "{entry:?} in {log:?}");
        }
    }

    #[test]
    fn attention_and_context_cost_what_the_formula_says() {
        let speed = Speed { attention_s: 1e-6, kv_token_s: 1e-5, ..SLOW };
        let mut engine = Engine::new(speed, 100_000, 10);
        let requests = [request(1200, 2, &[0, 1, 2])];
        let prefill_s: f64 = (1.0 + 1.0 + 1e-6 * 1000.0 * 500.0) + (1.0 + 0.2 + 1e-6 * 200.0 * (1000.0 + 100.0));
        let decode_s = 1.0 + 1e-3 + 1e-5 * 1201.0;
        let log = play(&mut engine, &requests, &[0.0]);
        assert!((log[0].0 - prefill_s).abs() < 2e-3 && (log[1].0 - prefill_s - decode_s).abs() < 2e-3, "{log:?}");
        assert!((speed.cold_prefill_s(1200) - prefill_s).abs() < 1e-9);
    }

    #[test]
    fn a_second_prompt_finds_the_first_ones_blocks_and_the_next_turn_its_answer() {
        let mut engine = Engine::new(SLOW, 100_000, 10);
        let mut requests = [
            request(1000, 100, &[0, 1]),
            request(1000, 1, &[0, 1]),
            request(1700, 1, &[0, 2, 3, 4]),
            request(1024, 1, &[0, 2]),
        ];
        requests[0].next_ids = Some(requests[2].ids.clone());
        let log = play(&mut engine, &requests, &[0.0, 50.0, 300.0, 300.0]);
        // All of the 62 full blocks; then prompt and answer: (1000 + 100) / 16 = 68 blocks.
        // It arrives within the pass that ends at 2 + 48 × 1.001, and shares the next one with a decode.
        assert!(log.contains(&(51.057, first(1, 992))), "{log:?}");
        let found: Vec<Event> = log.iter().map(|entry| entry.1).collect();
        assert!(found.contains(&first(2, 1088)) && found.contains(&first(3, 1008)), "{log:?}");
    }

    #[test]
    fn who_does_not_fit_waits_and_who_was_admitted_last_makes_way() {
        // 100 blocks: two prompts of 40 blocks fit, a third waits; their answers then outgrow the memory.
        let mut engine = Engine::new(SLOW, 1600, 10);
        let requests = [request(640, 200, &[0, 1]), request(640, 200, &[2, 3]), request(640, 1, &[4, 5])];
        let log = play(&mut engine, &requests, &[0.0, 0.0, 0.0]);
        assert_eq!(engine.preemptions, 1);
        let at = |wanted: Event| log.iter().find(|entry| entry.1 == wanted).unwrap().0;
        assert!(at(finished(0)) < at(finished(1)) && at(finished(0)) <= at(first(2, 0)));
        let firsts = log.iter().filter(|entry| matches!(entry.1, Event::FirstToken { .. })).count();
        assert_eq!((firsts, engine.pool.held()), (3, 0), "a preempted request has one first token");
    }
}
