//! One router: the product's trie, estimators and choices, or a rival's algorithm, over what a router can see.
//!
//! Ids of 512 tokens become the product's chunk hashes of 128 bytes, at 4 bytes a token.

use trieway::fleet::Fleet;
use trieway::fleet::arrivals::Window;
use trieway::fleet::belief::Lesson;
use trieway::fleet::cache::{APART, Leaves, Takes, Taking};
use trieway::fleet::load::InFlight;
use trieway::fleet::prefill::Computing;
use trieway::fleet::tenants::Tenants;
use trieway::route::hold::{self, Ask};
use trieway::route::{self, Candidate, ttft::Expected, ttft::Outlook};
use trieway::trie::{Holder, Match, Matches, Options, Trie};

use crate::engine::Engine;
use crate::policy::{Policy, Ttft};
use crate::pool::BLOCK_TOKENS;
use crate::random::{Random, mix};
use crate::rivals::Asked;
use crate::trace::{Request, SEGMENT_TOKENS};
use crate::view::{Ledger, View};

const CHUNK_BYTES: u32 = 128;
const TOKEN_BYTES: u32 = 4;
pub const CHUNK_TOKENS: u32 = CHUNK_BYTES / TOKEN_BYTES;
const TRIE_BYTES: usize = 256 << 20;
const WINDOW_MS: u64 = 60_000;
/// How often the control plane sums the arrivals and compares speeds.
const SUM_MS: u64 = 100;

/// The state that outlives the guards of running requests.
pub struct Plain {
    fleet: Fleet,
    trie: Trie,
}

impl Plain {
    /// `kv_tokens`: what the engines say of their memory, if they do.
    pub fn new(backends: usize, kv_tokens: Option<u32>) -> Plain {
        let options = Options { memory_bytes: TRIE_BYTES, slots: backends };
        let trie = Trie::new(&options).expect("these options are valid");
        let fleet = Fleet::new(backends, 1, Tenants::new(0, 0));
        for slot in 0..backends as u16 {
            kv_tokens.inspect(|&tokens| fleet.cache(slot).set_capacity_tokens(tokens.into()));
        }
        Plain { fleet, trie }
    }
}

/// A request under way.
struct Sent<'a> {
    backend: usize,
    uncached_tokens: u32,
    slowdown: f64,
    lesson: Lesson,
    taking: Option<Taking<'a>>,
    in_flight: InFlight<'a>,
    computing: Computing<'a>,
}

pub struct Router<'a> {
    plain: &'a Plain,
    policy: &'a Policy,
    pub ledgers: Vec<Ledger>,
    windows: Vec<Window>,
    summed_ms: u64,
    sent: Vec<Option<Sent<'a>>>,
    matches: Matches,
    key: Vec<u64>,
    outlooks: Vec<Outlook>,
    /// Seconds of work of a usual prompt.
    usual_s: f64,
    pub chosen: usize,
}

impl<'a> Router<'a> {
    pub fn new(plain: &'a Plain, policy: &'a Policy, backends: usize, requests: usize) -> Router<'a> {
        Router {
            plain,
            policy,
            ledgers: vec![Ledger::default(); backends],
            windows: (0..backends as u16).map(|slot| Window::new(WINDOW_MS, plain.fleet.load(slot), 0)).collect(),
            summed_ms: 0,
            sent: (0..requests).map(|_| None).collect(),
            matches: Matches::new(backends),
            key: Vec::new(),
            outlooks: Vec::new(),
            usual_s: 0.0,
            chosen: 0,
        }
    }

    /// Chooses a backend and counts the request there; `None`: it is held. `waited_s`: so long it has been. `others`: what other
    /// routers have in flight, as far as is known.
    pub fn send(
        &mut self,
        number: usize,
        request: &Request,
        (now_s, waited_s): (f64, f64),
        engines: &[Engine],
        others: &[Ledger],
        random: &mut Random,
    ) -> Option<usize> {
        let now_ns = (now_s * 1e9) as u64;
        self.sum_arrivals(now_s);
        write_key(request, &mut self.key);
        self.plain.trie.lookup(&self.key, &mut self.matches);
        self.chosen += 1;
        let (backend, work_s, slowdown) = match self.policy {
            Policy::Ttft(ttft) => {
                let expected = self.by_ttft(ttft, request, engines, now_ns, random);
                let ask = Ask {
                    index: expected.index,
                    work_s: expected.work_s,
                    waited_s,
                    usual_s: self.usual_s,
                    prompt_tokens: request.prompt_tokens.into(),
                };
                if waited_s < ttft.hold_s && hold::holds(&ask, &self.outlooks, &ttft.speed) {
                    return None;
                }
                self.usual_s = hold::usual(self.usual_s, expected.work_s);
                (expected.index, expected.work_s, expected.slowdown)
            }
            policy => (self.by_view(policy, request, engines, others, random), 0.0, 1.0),
        };
        let slot = backend as u16;
        let known = self.matches.of(slot).unwrap_or(Match::none(slot));
        let believed = self.believed(slot);
        let cache = self.plain.fleet.cache(slot);
        let new = self.key.len() as u32 - believed;
        if cache.capacity_tokens() > 0 {
            self.plain.trie.advance(slot, APART);
        }
        let holder = Holder { slot, generation: self.plain.trie.generation(slot) };
        let marked = self.plain.trie.insert_found(&self.key, holder, &self.matches);
        let uncached_tokens = request.prompt_tokens - cached(&engines[backend], request);
        let fleet = &self.plain.fleet;
        self.ledgers[backend].sent(request.prompt_tokens, uncached_tokens);
        self.sent[number] = Some(Sent {
            backend,
            uncached_tokens,
            slowdown,
            lesson: Lesson { marked: known.chunks, fresh: believed, age: known.age, found: 0 },
            taking: cache.begin(Takes {
                new,
                found: believed.saturating_sub(known.shared),
                found_marked: known.marked,
                marked,
            }),
            in_flight: fleet.begin(0, slot, u64::from(request.prompt_tokens * TOKEN_BYTES), 0).expect("no limit"),
            computing: fleet.prefill(slot).begin(work_s, u64::from(request.prompt_tokens), true, now_ns),
        });
        self.set_horizon(slot);
        Some(backend)
    }

    pub fn first_token(&mut self, number: usize, now_s: f64) {
        let Some(sent) = &mut self.sent[number] else { return };
        sent.in_flight.first_byte();
        sent.computing.first_token((now_s * 1e9) as u64, sent.slowdown);
        self.ledgers[sent.backend].first_token(sent.uncached_tokens);
    }

    /// The answer has ended; its usage says how many tokens were found in the cache.
    pub fn finished(&mut self, number: usize, request: &Request, cached_tokens: u32) {
        let Some(mut sent) = self.sent[number].take() else { return };
        self.ledgers[sent.backend].finished(request.prompt_tokens);
        if !matches!(self.policy, Policy::Ttft(_)) {
            return;
        }
        let slot = sent.backend as u16;
        let belief = self.plain.fleet.belief(slot);
        let lesson = Lesson { found: cached_tokens / CHUNK_TOKENS, ..sent.lesson };
        if belief.learn(lesson) {
            self.plain.trie.raise(slot);
        }
        let answer = request.output_tokens / CHUNK_TOKENS;
        if let Some(taking) = &mut sent.taking {
            write_key(request, &mut self.key);
            let holder = Holder { slot, generation: self.plain.trie.generation(slot) };
            self.plain.trie.advance(slot, APART);
            let clock = self.plain.trie.insert_let_go(&self.key, holder);
            taking.ended(Leaves { prompt: self.key.len() as u32, answer, clock });
            drop(sent);
        } else {
            let dropped = lesson.marked.saturating_sub(lesson.found);
            self.plain.trie.advance(slot, dropped + answer);
        }
        self.set_horizon(slot);
    }

    fn set_horizon(&self, slot: u16) {
        let clock = self.plain.trie.clock(slot);
        self.plain.trie.set_horizon(slot, self.plain.fleet.reach_chunks(slot, CHUNK_TOKENS.into(), clock));
    }

    /// Leading chunks of the key that the backend is believed to hold.
    fn believed(&self, slot: u16) -> u32 {
        let found = self.matches.of(slot);
        found.map_or(0, |found| self.plain.fleet.cache(slot).believed(found.chunks, found.fresh, found.marked))
    }

    fn by_ttft(
        &mut self,
        ttft: &Ttft,
        request: &Request,
        engines: &[Engine],
        now_ns: u64,
        random: &mut Random,
    ) -> Expected {
        let mut outlooks = std::mem::take(&mut self.outlooks);
        outlooks.clear();
        outlooks.extend((0..self.ledgers.len() as u16).map(|slot| {
            let held = self.believed(slot) * CHUNK_TOKENS;
            let held = if ttft.exact { cached(&engines[usize::from(slot)], request) } else { held };
            outlook(&self.plain.fleet, slot, now_ns, held)
        }));
        self.outlooks = outlooks;
        let prompt = f64::from(request.prompt_tokens);
        let expected = route::ttft::choose(prompt, &self.outlooks, &ttft.speed, &ttft.price, random.word());
        expected.expect("there are backends")
    }

    fn by_view(
        &self,
        policy: &Policy,
        request: &Request,
        engines: &[Engine],
        others: &[Ledger],
        random: &mut Random,
    ) -> usize {
        let views: Vec<View> =
            (0..self.ledgers.len()).map(|at| self.view(at, request, &engines[at], &others[at])).collect();
        if let Policy::Rival(rival) = policy {
            let asked = Asked { prompt_tokens: request.prompt_tokens, ids: &request.ids, turn: self.chosen };
            return rival.choose(&asked, &views, random);
        }
        let candidates: Vec<Candidate> = views
            .iter()
            .enumerate()
            .map(|(at, view)| Candidate {
                identity: mix(at as u64),
                in_window: view.in_window,
                in_flight: view.in_flight,
                in_flight_bytes: view.kv_tokens * u64::from(TOKEN_BYTES),
                matched_bytes: u64::from(view.sent_tokens * TOKEN_BYTES),
                cold_permille: 0,
                penalized: false,
            })
            .collect();
        let decision = match policy {
            Policy::Prefixaware { min_match_bytes } => route::prefixaware(&candidates, *min_match_bytes, random.word()),
            _ => route::leastload(&candidates, random.word()),
        };
        decision.expect("there are backends").index
    }

    fn view(&self, at: usize, request: &Request, engine: &Engine, others: &Ledger) -> View {
        let seen = self.ledgers[at].plus(others);
        let slot = at as u16;
        View {
            in_flight: seen.in_flight,
            waiting: seen.waiting,
            pending_tokens: seen.pending_tokens,
            kv_tokens: seen.kv_tokens,
            kv_use: f64::from(engine.pool.held()) / f64::from(engine.pool.capacity()),
            in_window: self.plain.fleet.load(slot).in_window(0),
            sent_tokens: (self.matches.chunks(slot) * CHUNK_TOKENS).min(request.prompt_tokens),
            cached_tokens: cached(engine, request),
        }
    }

    fn sum_arrivals(&mut self, now_s: f64) {
        let now_ms = (now_s * 1000.0) as u64;
        if now_ms >= self.summed_ms + SUM_MS {
            self.summed_ms = now_ms;
            for (slot, window) in (0..).zip(&mut self.windows) {
                window.sum(self.plain.fleet.load(slot), 0, now_ms);
            }
            self.plain.fleet.compare_speeds(0..self.windows.len() as u16);
        }
    }
}

/// What the router knows of a backend that holds so many tokens of the prompt.
#[inline]
pub fn outlook(fleet: &Fleet, slot: u16, now_ns: u64, held_tokens: u32) -> Outlook {
    let seen = fleet.prefill(slot).look(now_ns);
    Outlook {
        held_tokens: held_tokens.into(),
        queue_s: seen.queue_s,
        factor: seen.factor,
        busy: seen.busy,
        size_s: seen.size_s,
        computing: seen.computing,
        decoding: seen.decoding,
        kv_tokens: seen.kv_tokens,
        waiting: seen.waiting,
        waiting_tokens: seen.waiting_tokens,
        room_tokens: fleet.cache(slot).room_tokens(CHUNK_TOKENS.into()),
    }
}

/// Leading prompt tokens that an engine's cache has.
fn cached(engine: &Engine, request: &Request) -> u32 {
    engine.pool.find(&request.ids, request.prompt_tokens).blocks * BLOCK_TOKENS
}

/// The prompt's whole chunks.
fn write_key(request: &Request, key: &mut Vec<u64>) {
    key.clear();
    let mut left = request.prompt_tokens;
    for &id in &request.ids {
        let tokens = left.min(SEGMENT_TOKENS);
        key.extend((0..tokens / CHUNK_TOKENS).map(|chunk| mix(u64::from(id) << 8 | u64::from(chunk))));
        left -= tokens;
    }
}
