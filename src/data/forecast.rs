//! `ttft` on a worker: gathers what its choice looks at, counts what it expects while the request runs, and learns from what
//! came of it. Synchronous; nothing here waits.

use super::lease::Scratch;
use super::place;
use super::usage::{Tail, Usage};
use super::worker::Worker;
use crate::config;
use crate::fleet::belief::Lesson;
use crate::fleet::cache::{APART, Leaves, Takes, Taking};
use crate::fleet::prefill::Computing;
use crate::fleet::snapshot::Snapshot;
use crate::prompt::Chunks;
use crate::route::hold;
use crate::route::ttft::{Expected, Outlook, Price, Speed, choose};
use crate::trie::{Holder, Match};

/// What was expected of the chosen backend.
#[derive(Clone, Copy)]
pub(super) struct Forecast {
    slot: u16,
    work_s: f64,
    /// Without anything held, on an idle backend.
    cold_s: f64,
    slowdown: f64,
    prompt_tokens: f64,
    /// What a step of an answer takes there by the flags.
    step_s: f64,
    /// Of the prompt, and the tokens of each in the mean of all prompts.
    chunks: u32,
    chunk_tokens: f64,
    predicted_tokens: f64,
    /// When the backend was sent what it holds, by the trie's clock.
    marked: u64,
    /// What of it was sent again since, with other prompts.
    shared: u32,
    lesson: Lesson,
}

fn speed(ttft: &config::Ttft) -> Speed {
    Speed {
        pass_s: ttft.pass_s,
        token_s: ttft.token_s,
        attention_s: ttft.attention_s,
        kv_token_s: ttft.kv_token_s,
        pass_tokens: ttft.pass_tokens.max(1.0),
    }
}

fn price(ttft: &config::Ttft) -> Price {
    Price {
        idle: ttft.idle_price,
        load: ttft.load_price,
        fair_tokens: ttft.fair_tokens,
        answer_tokens: ttft.answer_tokens,
    }
}

/// The choice among `scratch.members`, of a prompt that `scratch.matches` knows.
pub(super) fn expect(worker: &Worker, scratch: &mut Scratch, snapshot: &Snapshot) -> Option<(Expected, Forecast)> {
    let shared = worker.shared;
    let routing = &shared.config.routing;
    let now_ns = shared.micros() * 1000;
    let slots = || scratch.members.iter().map(|&member| snapshot.backend(member).slot);
    let (bytes, tokens) = slots().map(|slot| shared.fleet.belief(slot).bytes_and_tokens()).fold((0.0, 0.0), add);
    let token_bytes = bytes / tokens;
    let chunk_tokens = routing.prefix_chunk_bytes as f64 / token_bytes;
    let prompt_tokens = tokens_of(worker, &scratch.chunks, token_bytes, slots());
    // Images make some chunks much longer than others: each of this prompt counts as its mean.
    let own_chunk_tokens = match scratch.chunks.media() {
        0 => chunk_tokens,
        _ => prompt_tokens * routing.prefix_chunk_bytes as f64 / (scratch.chunks.bytes() as f64).max(1.0),
    };
    scratch.outlooks.clear();
    scratch.outlooks.extend(slots().map(|slot| {
        let seen = shared.fleet.prefill(slot).look(now_ns);
        let cache = shared.fleet.cache(slot);
        let held_tokens = scratch
            .matches
            .of(slot)
            .map_or(0.0, |found| f64::from(cache.believed(found.chunks, found.fresh, found.marked)) * own_chunk_tokens);
        Outlook {
            held_tokens,
            queue_s: seen.queue_s,
            factor: seen.factor,
            busy: seen.busy,
            size_s: seen.size_s,
            computing: seen.computing,
            decoding: seen.decoding,
            kv_tokens: seen.kv_tokens,
            waiting: seen.waiting,
            waiting_tokens: seen.waiting_tokens,
            room_tokens: cache.room_tokens(chunk_tokens),
        }
    }));
    let expected =
        choose(prompt_tokens, &scratch.outlooks, &speed(&routing.ttft), &price(&routing.ttft), worker.random())?;
    let slot = snapshot.backend(scratch.members[expected.index]).slot;
    let found = scratch.matches.of(slot).unwrap_or(Match::none(slot));
    let fresh = shared.fleet.cache(slot).believed(found.chunks, found.fresh, found.marked);
    let forecast = Forecast {
        slot,
        work_s: expected.work_s,
        cold_s: speed(&routing.ttft).work_s(prompt_tokens, 0.0),
        slowdown: expected.slowdown,
        prompt_tokens,
        step_s: routing.ttft.pass_s,
        chunks: scratch.chunks.key().len() as u32,
        chunk_tokens,
        predicted_tokens: scratch.outlooks[expected.index].held_tokens,
        marked: found.marked,
        shared: found.shared,
        lesson: Lesson { marked: found.chunks, fresh, age: found.age, found: 0 },
    };
    Some((expected, forecast))
}

/// Whether the request should be held until backends have computed more; it has been held for `waited_s`. If so: the seconds
/// that its prompt takes by itself.
pub(super) fn holds(
    worker: &Worker,
    scratch: &Scratch,
    index: usize,
    forecast: &Forecast,
    waited_s: f64,
) -> Option<f64> {
    let speed = speed(&worker.shared.config.routing.ttft);
    let ask = hold::Ask {
        index,
        work_s: forecast.work_s,
        waited_s,
        usual_s: worker.shared.fleet.usual.seconds(worker.index),
        prompt_tokens: forecast.prompt_tokens,
    };
    hold::holds(&ask, &scratch.outlooks, &speed).then_some(forecast.cold_s)
}

/// What is expected of one of the backends that the choice of `forecast` looked at.
pub(super) fn of_one(worker: &Worker, forecast: &Forecast, outlook: &Outlook) -> Option<Expected> {
    let ttft = &worker.shared.config.routing.ttft;
    choose(forecast.prompt_tokens, &[*outlook], &speed(ttft), &price(ttft), 0)
}

/// Tokens of a prompt for these slots' backends: its text, and the images in it at what they have told of those before.
fn tokens_of(worker: &Worker, chunks: &Chunks, token_bytes: f64, slots: impl Iterator<Item = u16>) -> f64 {
    let text = chunks.bytes() as f64 / token_bytes;
    if chunks.media() == 0 {
        return text;
    }
    let (tokens, media) = slots.map(|slot| worker.shared.fleet.belief(slot).media_tokens()).fold((0.0, 0.0), add);
    text + f64::from(chunks.media()) * tokens / media
}

/// Bytes of a request as load: an image counts as so many bytes of text as it has tokens.
pub(super) fn load_bytes(
    worker: &Worker,
    chunks: &Chunks,
    body_bytes: u64,
    slots: impl Iterator<Item = u16> + Clone,
) -> u64 {
    if chunks.media() == 0 {
        return body_bytes;
    }
    let (bytes, tokens) =
        slots.clone().map(|slot| worker.shared.fleet.belief(slot).bytes_and_tokens()).fold((0.0, 0.0), add);
    let media_tokens = tokens_of(worker, chunks, bytes / tokens, slots) - chunks.bytes() as f64 * tokens / bytes;
    body_bytes.saturating_sub(chunks.media_bytes()).saturating_add((media_tokens * bytes / tokens) as u64)
}

fn add(a: (f64, f64), b: (f64, f64)) -> (f64, f64) {
    (a.0 + b.0, a.1 + b.1)
}

fn set_horizon(worker: &Worker, forecast: &Forecast) {
    let trie = &worker.shared.trie;
    let reach = worker.shared.fleet.reach_chunks(forecast.slot, forecast.chunk_tokens, trie.clock(forecast.slot));
    trie.set_horizon(forecast.slot, reach);
}

/// A request that was sent under a forecast; dropping it, on whatever path, releases what it counts.
pub(super) struct Running<'a> {
    forecast: Forecast,
    computing: Computing<'a>,
    /// Of the backend's life that computes the prompt.
    generation: u16,
    /// When the first byte of a streamed answer's body was here.
    first_us: Option<u64>,
    /// When bytes of a whole answer's body were here last.
    last_us: u64,
    /// What it takes of the backend's cache, if the capacity of that is known.
    taking: Option<Taking<'a>>,
    /// Chunks of the answer, as far as it has told.
    answer: u32,
}

impl<'a> Running<'a> {
    /// `streamed`: the client asks for a streamed answer.
    pub(super) fn begin(worker: &Worker, forecast: Forecast, streamed: bool) -> Running<'a> {
        let shared = worker.shared;
        let prefill = shared.fleet.prefill(forecast.slot);
        let tokens = forecast.prompt_tokens as u64;
        shared.fleet.usual.sends(worker.index, forecast.work_s);
        Running {
            forecast,
            computing: prefill.begin(forecast.work_s, tokens, streamed, shared.micros() * 1000),
            generation: shared.trie.generation(forecast.slot),
            first_us: None,
            last_us: 0,
            taking: None,
            answer: 0,
        }
    }

    /// The prompt is about to be marked as the backend's.
    pub(super) fn sets_apart(&self, worker: &Worker) {
        if worker.shared.fleet.cache(self.forecast.slot).capacity_tokens() > 0 {
            worker.shared.trie.advance(self.forecast.slot, APART);
        }
    }

    /// The prompt was marked, at this clock.
    pub(super) fn takes(&mut self, worker: &Worker, marked: u64) {
        let Forecast { slot, chunks, marked: found_marked, shared, lesson, .. } = self.forecast;
        let new = chunks.saturating_sub(lesson.fresh);
        let takes = Takes { new, found: lesson.fresh.saturating_sub(shared), found_marked, marked };
        self.taking = worker.shared.fleet.cache(slot).begin(takes);
        set_horizon(worker, &self.forecast);
    }

    /// The request failed: what it took says nothing of the backend's speed.
    pub(super) fn failed(&mut self) {
        self.computing.failed();
    }

    /// The first byte of a streamed answer's body is here.
    fn first_token(&mut self, worker: &Worker) {
        if self.first_us.is_some() {
            return;
        }
        let now_us = worker.shared.micros();
        self.first_us = Some(now_us);
        place::releases(worker, self.forecast.slot);
        self.computing.first_token(now_us * 1000, self.forecast.slowdown);
        place::computed(worker, self.forecast.slot);
    }

    /// Learns what the answer's time says of the backend's speed.
    fn learn_speed(&mut self, worker: &Worker, answer_tokens: u64) {
        match self.first_us {
            Some(first_us) if answer_tokens > 1 => {
                let seconds = worker.shared.micros().saturating_sub(first_us) as f64 / 1e6;
                worker.shared.fleet.prefill(self.forecast.slot).learn_step(seconds, (answer_tokens - 1) as f64);
            }
            Some(_) => {}
            None => {
                let Forecast { slowdown, step_s, .. } = self.forecast;
                self.computing.whole(self.last_us * 1000, slowdown, answer_tokens, step_s);
            }
        }
    }

    /// Learns from what the answer says at its end.
    fn learn(&mut self, worker: &Worker, chunks: &Chunks, usage: Usage) {
        let key_bytes = chunks.bytes();
        let Forecast { slot, predicted_tokens, lesson, .. } = self.forecast;
        let shared = worker.shared;
        let belief = shared.fleet.belief(slot);
        if key_bytes == 0 || usage.prompt_tokens == 0 {
            return;
        }
        belief.learn_token_bytes(key_bytes, chunks.media(), usage.prompt_tokens);
        let Some(cached_tokens) = usage.cached_tokens else { return };
        belief.count(predicted_tokens as u64, cached_tokens);
        let chunk_bytes = shared.config.routing.prefix_chunk_bytes as f64;
        let chunks = |tokens: u64| (tokens as f64 * key_bytes as f64 / usage.prompt_tokens as f64 / chunk_bytes) as u32;
        let lesson = Lesson { found: chunks(cached_tokens), ..lesson };
        if belief.learn(lesson) {
            self.generation = shared.trie.raise(slot);
        }
        self.answer = chunks(usage.answer_tokens);
        if self.taking.is_none() {
            let dropped = lesson.marked.saturating_sub(lesson.found);
            shared.trie.advance(slot, dropped.saturating_add(self.answer));
        }
        set_horizon(worker, &self.forecast);
    }

    /// The answer has ended as it should: what the backend computed is the newest of what it has let go of.
    fn let_go(&mut self, worker: &Worker, key: &[u64]) {
        let Some(mut taking) = self.taking.take() else { return };
        let trie = &worker.shared.trie;
        let slot = self.forecast.slot;
        trie.advance(slot, APART);
        let clock = trie.insert_let_go(key, Holder { slot, generation: self.generation });
        taking.ended(Leaves { prompt: key.len() as u32, answer: self.answer, clock });
        drop(taking);
        set_horizon(worker, &self.forecast);
    }
}

/// Watches an answer's body pass.
pub(super) struct Watch<'r, 'a> {
    pub(super) running: &'r mut Running<'a>,
    pub(super) tail: &'r mut Tail,
    /// The body comes piece by piece, as it is generated; else its first byte is not the first token.
    pub(super) streamed: bool,
}

impl Watch<'_, '_> {
    pub(super) fn payload(&mut self, worker: &Worker, bytes: &[u8]) {
        match self.streamed {
            _ if bytes.is_empty() => {}
            true => self.running.first_token(worker),
            false => self.running.last_us = worker.shared.micros(),
        }
        self.tail.push(bytes);
    }

    /// The answer has ended as it should.
    pub(super) fn ended(&mut self, worker: &Worker, chunks: &Chunks) {
        let body_bytes = self.tail.body_bytes();
        let usage = self.tail.usage().and_then(|usage| usage.plausible(chunks.bytes(), chunks.media(), body_bytes));
        if let Some(usage) = usage {
            self.running.learn_speed(worker, usage.answer_tokens);
            self.running.learn(worker, chunks, usage);
        }
        self.running.let_go(worker, chunks.key());
    }
}
