//! When an engine's requests get their tokens: a first-come queue in front of one prefill at a time, and a fixed pace of
//! decoding.
//!
//! A prompt costs `tokens that are not cached / prefill rate` seconds of the one prefill server; so the time to the first
//! token depends on what is cached and on who came before. From then on its tokens come at the decode rate, however many
//! others decode. A rate of 0 means that it takes no time.
//!
//! Must not know: sockets, text. Time is passed in.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::cache::{Cache, Lease};
use super::timers::ConnId;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) prefill_tokens_per_s: f64,
    pub(crate) decode_tokens_per_s: f64,
    pub(crate) block_tokens: usize,
    /// Requests that may be prefilling or decoding at once; 0: no limit.
    pub(crate) max_running: usize,
}

/// A request as the scheduler sees it.
#[derive(Debug)]
pub(crate) struct Job {
    /// The prompt's whole blocks.
    pub(crate) hashes: Vec<u64>,
    pub(crate) prompt_tokens: usize,
    /// Blocks for the prompt's rest and for the answer.
    pub(crate) unnamed: usize,
}

/// A request that has left the queue.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) conn: ConnId,
    pub(crate) lease: Lease,
    /// How many of the lease's blocks have been named by the prompt.
    pub(crate) named: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) first_token_at: Instant,
}

#[derive(Debug)]
pub(crate) struct Scheduler {
    pub(crate) pace: Pace,
    pub(crate) cache: Cache,
    queue: VecDeque<(ConnId, Job)>,
    running: usize,
    /// Whose prefill ends when.
    prefill: Option<(ConnId, Instant)>,
}

impl Scheduler {
    pub(crate) fn new(pace: Pace, kv_tokens: usize) -> Self {
        let cache = Cache::new(kv_tokens / pace.block_tokens);
        Self { pace, cache, queue: VecDeque::new(), running: 0, prefill: None }
    }

    pub(crate) fn running(&self) -> usize {
        self.running
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn submit(&mut self, conn: ConnId, job: Job) {
        self.queue.push_back((conn, job));
    }

    /// When the prefill that is under way ends.
    pub(crate) fn busy_until(&self) -> Option<Instant> {
        self.prefill.map(|(_, until)| until)
    }

    /// The next request whose prefill can begin now. Call until None.
    pub(crate) fn start_next(&mut self, now: Instant) -> Option<Started> {
        match self.prefill {
            Some((_, until)) if until > now => return None,
            _ => self.prefill = None,
        }
        if self.pace.max_running > 0 && self.running >= self.pace.max_running {
            return None;
        }
        let (_, job) = self.queue.front()?;
        // The last token is always computed: its output is what is wanted.
        let most_hits = job.prompt_tokens.saturating_sub(1) / self.pace.block_tokens;
        let lease = self.cache.admit(&job.hashes, job.unnamed, most_hits)?;
        let (conn, job) = self.queue.pop_front()?;
        let cached_tokens = lease.hits * self.pace.block_tokens;
        let took = duration(job.prompt_tokens - cached_tokens, self.pace.prefill_tokens_per_s);
        let first_token_at = now + took;
        if !took.is_zero() {
            self.prefill = Some((conn, first_token_at));
        }
        self.running += 1;
        Some(Started { conn, lease, named: job.hashes.len(), cached_tokens, first_token_at })
    }

    /// A request that had been started has ended: `written` names the whole blocks it filled.
    pub(crate) fn finish(&mut self, conn: ConnId, lease: &Lease, named: usize, written: &[u64]) {
        self.cache.release(lease, named, written);
        self.running -= 1;
        // A client that leaves during its own prefill frees the engine.
        if self.prefill.is_some_and(|(whose, _)| whose == conn) {
            self.prefill = None;
        }
    }

    /// A request whose client left while it waited.
    pub(crate) fn forget(&mut self, conn: ConnId) {
        self.queue.retain(|(whose, _)| *whose != conn);
    }

    /// How many tokens have come by now, of a request whose first came at `first`.
    pub(crate) fn tokens_by(&self, now: Instant, first: Instant) -> u64 {
        if now < first {
            return 0;
        }
        if self.pace.decode_tokens_per_s <= 0.0 {
            return u64::MAX;
        }
        // The small addition keeps a token from being missed when its own instant is asked for.
        1 + ((now - first).as_secs_f64() * self.pace.decode_tokens_per_s + 1e-6) as u64
    }

    /// When token `index` (from 0) comes.
    pub(crate) fn token_at(&self, index: u64, first: Instant) -> Instant {
        first + duration(index as usize, self.pace.decode_tokens_per_s)
    }
}

fn duration(tokens: usize, tokens_per_s: f64) -> Duration {
    if tokens_per_s <= 0.0 { Duration::ZERO } else { Duration::from_secs_f64(tokens as f64 / tokens_per_s) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn(index: usize) -> ConnId {
        ConnId { index, generation: 0 }
    }

    fn submit(engine: &mut Scheduler, index: usize, hashes: &[u64], prompt_tokens: usize) {
        engine.submit(conn(index), Job { hashes: hashes.to_vec(), prompt_tokens, unnamed: 1 });
    }

    fn scheduler(max_running: usize) -> Scheduler {
        let pace = Pace { prefill_tokens_per_s: 1000.0, decode_tokens_per_s: 100.0, block_tokens: 16, max_running };
        Scheduler::new(pace, 1600)
    }

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn the_first_token_waits_for_what_is_not_cached_and_for_those_before() {
        let mut engine = scheduler(0);
        let start = Instant::now();
        submit(&mut engine, 1, &[1, 2], 40);
        submit(&mut engine, 2, &[1, 2], 40);
        let first = engine.start_next(start).unwrap();
        assert_eq!((first.cached_tokens, first.first_token_at - start), (0, ms(40)));
        assert!(engine.start_next(start + ms(39)).is_none());
        assert_eq!((engine.running(), engine.waiting()), (1, 1));
        let second = engine.start_next(start + ms(40)).unwrap();
        assert_eq!((second.cached_tokens, second.first_token_at - start), (32, ms(48)));
    }

    #[test]
    fn the_last_token_is_computed_even_when_all_is_cached() {
        let mut engine = scheduler(0);
        let start = Instant::now();
        submit(&mut engine, 1, &[1, 2], 32);
        let first = engine.start_next(start).unwrap();
        engine.finish(first.conn, &first.lease, first.named, &[]);
        submit(&mut engine, 2, &[1, 2], 32);
        assert_eq!(engine.start_next(start + ms(40)).unwrap().cached_tokens, 16);
    }

    #[test]
    fn tokens_come_at_the_decode_rate() {
        let engine = scheduler(0);
        let first = Instant::now();
        assert_eq!(engine.tokens_by(first - ms(1), first), 0);
        assert_eq!(engine.tokens_by(first, first), 1);
        assert_eq!(engine.tokens_by(first + ms(9), first), 1);
        for index in 0..1000 {
            assert_eq!(engine.tokens_by(engine.token_at(index, first), first), index + 1);
        }
    }

    #[test]
    fn a_client_that_leaves_frees_the_prefill() {
        let mut engine = scheduler(0);
        let start = Instant::now();
        for index in 1..=3 {
            submit(&mut engine, index, &[index as u64], 20);
        }
        let first = engine.start_next(start).unwrap();
        engine.forget(conn(2));
        engine.finish(first.conn, &first.lease, first.named, &[]);
        assert_eq!(engine.start_next(start + ms(1)).unwrap().conn, conn(3));
    }

    #[test]
    fn no_more_run_than_allowed_or_than_fit() {
        let mut engine = scheduler(1);
        let start = Instant::now();
        submit(&mut engine, 1, &[1], 20);
        submit(&mut engine, 2, &[2], 20);
        let first = engine.start_next(start).unwrap();
        assert!(engine.start_next(start + ms(500)).is_none());
        engine.finish(first.conn, &first.lease, first.named, &[]);
        assert!(engine.start_next(start + ms(500)).is_some());

        let mut engine = scheduler(0);
        let sixty: Vec<u64> = (0..60).collect();
        let others: Vec<u64> = (100..160).collect();
        submit(&mut engine, 1, &sixty, 960);
        submit(&mut engine, 2, &others, 960);
        let first = engine.start_next(start).unwrap();
        assert!(engine.start_next(start + ms(5000)).is_none());
        engine.finish(first.conn, &first.lease, first.named, &[]);
        assert!(engine.start_next(start + ms(5000)).is_some());
    }
}
