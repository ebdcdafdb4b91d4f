//! One run: arrivals, routers and engines on one clock.

use trieway::route::hold;

use crate::engine::{Engine, Event, Speed};
use crate::policy::Policy;
use crate::pool::BLOCK_TOKENS;
use crate::random::Random;
use crate::router::{Plain, Router};
use crate::stats::{Outcome, Run};
use crate::trace::Trace;
use crate::view::Ledger;

/// Requests that a router tries again when one thing has changed.
const MOST_ASKED: usize = 16;

/// The fleet and the traffic of a run.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub backends: usize,
    pub kv_tokens: u32,
    pub speed: Speed,
    /// How many times faster requests arrive than recorded.
    pub scale: f64,
    /// Routers side by side; each request goes to one of them at random.
    pub routers: usize,
    /// How old a router's view of what the others have in flight may be; they see nothing of each other's tries.
    pub stale_s: f64,
}

/// Plays the whole trace and returns what each request met.
pub fn play(trace: &Trace, setup: &Setup, policy: &Policy, seed: u64) -> Run {
    let told = matches!(policy, Policy::Ttft(ttft) if ttft.told_kv).then_some(setup.kv_tokens);
    let plains: Vec<Plain> = (0..setup.routers).map(|_| Plain::new(setup.backends, told)).collect();
    let mut world = World::new(trace, setup, policy, &plains, seed);
    for (now_s, request) in trace.arrivals(setup.scale, seed) {
        world.run_until(now_s);
        world.arrive(now_s, request);
    }
    world.run_until(f64::INFINITY);
    world.into_run()
}

struct World<'a> {
    trace: &'a Trace,
    setup: &'a Setup,
    routers: Vec<Router<'a>>,
    /// What each router knows of the others, and since when.
    others: Vec<Vec<Ledger>>,
    others_s: f64,
    engines: Vec<Engine>,
    /// When each engine's pass ends; infinite for an idle one.
    ends_s: Vec<f64>,
    outcomes: Vec<Outcome>,
    events: Vec<Event>,
    random: Random,
    now_s: f64,
    /// By router, what it holds.
    held: Vec<Vec<usize>>,
}

impl<'a> World<'a> {
    fn new(trace: &'a Trace, setup: &'a Setup, policy: &'a Policy, plains: &'a [Plain], seed: u64) -> World<'a> {
        let engine = || Engine::new(setup.speed, setup.kv_tokens, trace.ids);
        World {
            trace,
            setup,
            routers: plains
                .iter()
                .map(|plain| Router::new(plain, policy, setup.backends, trace.requests.len()))
                .collect(),
            others: vec![vec![Ledger::default(); setup.backends]; setup.routers],
            others_s: 0.0,
            engines: (0..setup.backends).map(|_| engine()).collect(),
            ends_s: vec![f64::INFINITY; setup.backends],
            outcomes: vec![Outcome::default(); trace.requests.len()],
            events: Vec::new(),
            random: Random::new(seed ^ 0x5eed),
            now_s: 0.0,
            held: vec![Vec::new(); setup.routers],
        }
    }

    /// Ends all passes up to `until_s`.
    fn run_until(&mut self, until_s: f64) {
        loop {
            let next = (0..self.engines.len()).min_by(|&a, &b| self.ends_s[a].total_cmp(&self.ends_s[b]));
            let Some(at) = next.filter(|&at| self.ends_s[at] <= until_s && self.ends_s[at].is_finite()) else { return };
            self.now_s = self.ends_s[at];
            self.engines[at].end_pass(&self.trace.requests, &mut self.events);
            let stirred = self.tell_events();
            self.start_pass(at, self.now_s);
            self.release(stirred);
        }
    }

    fn start_pass(&mut self, at: usize, now_s: f64) {
        let pass_s = self.engines[at].start_pass(&self.trace.requests);
        self.ends_s[at] = pass_s.map_or(f64::INFINITY, |pass_s| now_s + pass_s);
    }

    fn arrive(&mut self, now_s: f64, number: usize) {
        self.refresh_others(now_s);
        let router = if self.routers.len() > 1 { self.random.below(self.routers.len()) } else { 0 };
        self.outcomes[number] = Outcome { arrived_s: now_s, router, ..Outcome::default() };
        if !self.send(number, now_s) {
            self.held[router].push(number);
        }
    }

    /// False: the router holds it.
    fn send(&mut self, number: usize, now_s: f64) -> bool {
        let Outcome { router, arrived_s, .. } = self.outcomes[number];
        let request = &self.trace.requests[number];
        let (others, times) = (&self.others[router], (now_s, now_s - arrived_s));
        let sent = self.routers[router].send(number, request, times, &self.engines, others, &mut self.random);
        let Some(at) = sent else { return false };
        self.outcomes[number].backend = at;
        self.engines[at].submit(number);
        if self.ends_s[at].is_infinite() {
            self.start_pass(at, now_s);
        }
        true
    }

    /// Something has changed for these routers: the most urgent of what they hold is tried again. The engines have begun
    /// their next passes by then.
    fn release(&mut self, mut stirred: Vec<usize>) {
        stirred.sort_unstable();
        stirred.dedup();
        for router in stirred {
            let mut held = std::mem::take(&mut self.held[router]);
            let urgency = |&number: &usize| {
                let cold_s = self.setup.speed.cold_prefill_s(self.trace.requests[number].prompt_tokens);
                hold::urgency(self.now_s - self.outcomes[number].arrived_s, cold_s)
            };
            held.sort_by(|a, b| urgency(b).total_cmp(&urgency(a)));
            let mut asked = 0;
            held.retain(|&number| {
                asked += 1;
                asked > MOST_ASKED || !self.send(number, self.now_s)
            });
            self.held[router] = held;
        }
    }

    /// The routers that were told something.
    fn tell_events(&mut self) -> Vec<usize> {
        let mut told = Vec::new();
        for event in self.events.drain(..) {
            match event {
                Event::FirstToken { request, cached_tokens } => {
                    let outcome = &mut self.outcomes[request];
                    outcome.first_token_s = self.now_s;
                    outcome.cached_tokens = cached_tokens;
                    told.push(outcome.router);
                    self.routers[outcome.router].first_token(request, self.now_s);
                }
                Event::Finished { request } => {
                    let outcome = &mut self.outcomes[request];
                    outcome.finished_s = self.now_s;
                    let of = &self.trace.requests[request];
                    told.push(outcome.router);
                    self.routers[outcome.router].finished(request, of, outcome.cached_tokens);
                }
            }
        }
        told
    }

    fn refresh_others(&mut self, now_s: f64) {
        if self.routers.len() == 1 || now_s < self.others_s + self.setup.stale_s {
            return;
        }
        self.others_s = now_s;
        for (own, others) in self.others.iter_mut().enumerate() {
            for (at, sum) in others.iter_mut().enumerate() {
                let rest = self.routers.iter().enumerate().filter(|(router, _)| *router != own);
                *sum = rest.fold(Ledger::default(), |sum, (_, router)| sum.plus(&router.ledgers[at]));
            }
        }
    }

    fn into_run(self) -> Run {
        assert!(self.engines.iter().all(Engine::is_idle), "every request has ended");
        Run {
            outcomes: self.outcomes,
            prefill_s: self.engines.iter().map(|engine| engine.prefill_s).collect(),
            held_tokens: self.engines.iter().map(|engine| engine.pool.held() * BLOCK_TOKENS).sum(),
            preemptions: self.engines.iter().map(|engine| engine.preemptions).sum(),
            end_s: self.now_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Request;

    /// Conversations of five turns, a second apart, that all begin with one system prompt.
    fn conversations(count: u32) -> Trace {
        let mut requests: Vec<Request> = (0..count * 5)
            .map(|at| {
                let (conversation, turn) = (at % count, at / count);
                let own = (0..4 * (turn + 1)).map(|segment| 1 + conversation * 20 + segment);
                let ids: Vec<u32> = std::iter::once(0).chain(own).collect();
                Request {
                    timestamp_ms: f64::from(turn) * 20_000.0 + f64::from(conversation) * 100.0,
                    prompt_tokens: ids.len() as u32 * 512,
                    output_tokens: 20,
                    ids,
                    next_ids: None,
                }
            })
            .collect();
        requests.sort_by(|a, b| a.timestamp_ms.total_cmp(&b.timestamp_ms));
        Trace { requests, ids: 1 + count as usize * 20 }
    }

    fn run(policy: &str, routers: usize, seed: u64) -> (Run, Trace) {
        let trace = conversations(40);
        let setup = Setup { backends: 4, kv_tokens: 200_000, speed: Speed::A100, scale: 1.0, routers, stale_s: 0.1 };
        let policy = Policy::parse(policy, Speed::A100).unwrap();
        (play(&trace, &setup, &policy, seed), trace)
    }

    #[test]
    fn a_run_follows_its_seed_and_leaves_nothing_behind() {
        for policy in ["ttft", "prefixaware", "dynamo", "llmd"] {
            let (run_a, trace) = run(policy, 2, 3);
            assert_eq!(run_a.outcomes, run(policy, 2, 3).0.outcomes, "{policy}");
            assert_ne!(run_a.outcomes, run(policy, 2, 4).0.outcomes, "{policy}");
            assert_eq!(run_a.held_tokens, 0);
            for (outcome, request) in run_a.outcomes.iter().zip(&trace.requests) {
                assert!(outcome.arrived_s < outcome.first_token_s && outcome.first_token_s < outcome.finished_s);
                assert!(outcome.cached_tokens < request.prompt_tokens);
            }
        }
    }

    #[test]
    fn with_one_system_prompt_shared_by_all_ttft_spreads_and_still_finds_histories() {
        let (spread, trace) = run("ttft", 1, 1);
        let figures = spread.figures(&trace, &Speed::A100);
        assert!(figures[7] < 1.25, "busiest over mean: {}", figures[7]);
        let turns = spread.outcomes.iter().zip(&trace.requests).filter(|(_, request)| request.ids.len() > 5);
        let (all, found) = turns.fold((0, 0), |(all, found), (outcome, request)| {
            (all + 1, found + usize::from(outcome.cached_tokens >= request.prompt_tokens - 4 * 512))
        });
        assert!(found * 100 >= all * 95, "{found} of {all} later turns found their history");
        let (herd, _) = run("prefixaware", 1, 1);
        assert!(herd.figures(&trace, &Speed::A100)[7] > 3.9, "the threshold of 0 herds");
    }
}
