//! One request inside an engine: what of it is computed, and which blocks it holds.

use crate::pool::{BLOCK_TOKENS, Pool, SEGMENT_BLOCKS};
use crate::trace::{Request, SEGMENT_TOKENS};

/// What a sequence does in the present pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    Prefill,
    Decode,
}

#[derive(Debug)]
pub struct Sequence {
    pub number: usize,
    pub job: Job,
    /// Tokens of the prompt that the cache had at the first admission.
    pub cached_tokens: u32,
    admitted_before: bool,
    /// Tokens whose KV is computed, or will be at the end of the present pass.
    computed: u32,
    /// Tokens to compute before decoding goes on: the prompt, and after a preemption what had been generated.
    target: u32,
    generated: u32,
    /// Extents of the prompt's leading segments.
    extents: Vec<u32>,
    /// Segments up to here are shared, or were shared by others first.
    settled: usize,
    /// Blocks without an extent.
    own_blocks: u32,
}

impl Sequence {
    pub fn new(number: usize) -> Sequence {
        Sequence {
            number,
            job: Job::Prefill,
            cached_tokens: 0,
            admitted_before: false,
            computed: 0,
            target: 0,
            generated: 0,
            extents: Vec::new(),
            settled: 0,
            own_blocks: 0,
        }
    }

    pub fn is_prefilling(&self) -> bool {
        self.job == Job::Prefill
    }

    /// Prompt and generated tokens so far.
    pub fn tokens(&self, requests: &[Request]) -> u32 {
        requests[self.number].prompt_tokens + self.generated
    }

    /// Takes all blocks of the prompt. False: they don't fit, or would leave less than 1 % free beside others.
    pub fn admit(&mut self, requests: &[Request], pool: &mut Pool, alone: bool) -> bool {
        let request = &requests[self.number];
        self.target = self.tokens(requests);
        let found = pool.find(&request.ids, request.prompt_tokens);
        let needed = self.target.div_ceil(BLOCK_TOKENS) - found.blocks;
        let reserve = if alone { 0 } else { pool.capacity() / 100 };
        if needed + found.idle + reserve > pool.available() {
            assert!(!alone, "a prompt of {} tokens is larger than the engine's memory", self.target);
            return false;
        }
        let mut rest = found.blocks;
        for &id in &request.ids {
            if rest == 0 {
                break;
            }
            self.extents.extend(pool.hold(id));
            rest = rest.saturating_sub(SEGMENT_BLOCKS);
        }
        pool.take(needed);
        self.own_blocks = needed;
        self.settled = (found.blocks / SEGMENT_BLOCKS) as usize;
        self.computed = found.blocks * BLOCK_TOKENS;
        self.job = Job::Prefill;
        if !self.admitted_before {
            self.cached_tokens = self.computed;
            self.admitted_before = true;
        }
        true
    }

    /// Plans up to `budget` tokens of the prompt: (context before them, how many). Their blocks can be found from now on.
    pub fn plan_prefill(&mut self, requests: &[Request], pool: &mut Pool, budget: u32) -> (u32, u32) {
        let n = budget.min(self.target - self.computed);
        let context = self.computed;
        self.computed += n;
        self.share(&requests[self.number], pool);
        (context, n)
    }

    /// Gives names to the prompt's segments that are computed.
    fn share(&mut self, request: &Request, pool: &mut Pool) {
        let computed = self.computed.min(request.prompt_tokens);
        while self.settled < request.ids.len() {
            let begin = self.settled as u32 * SEGMENT_TOKENS;
            let end = (begin + SEGMENT_TOKENS).min(request.prompt_tokens);
            let blocks = (end - begin) / BLOCK_TOKENS;
            if computed < end || blocks == 0 {
                return;
            }
            let id = request.ids[self.settled];
            if let Some(&partial) = self.extents.get(self.settled) {
                // Found in part: the rest of it was computed here, unless another has been faster.
                let missing = blocks.saturating_sub(pool.blocks(partial)).min(self.own_blocks);
                pool.extend(partial, missing);
                self.own_blocks -= missing;
            } else if self.extents.len() == self.settled
                && let Some(extent) = pool.name(id, blocks)
            {
                self.own_blocks -= blocks;
                self.extents.push(extent);
            }
            self.settled += 1;
        }
    }

    /// A place for the token of this pass. False: there is no block for it.
    pub fn grow(&mut self, requests: &[Request], pool: &mut Pool) -> bool {
        // The KV of the newest token is written in the pass that follows it.
        if (self.tokens(requests) - 1).is_multiple_of(BLOCK_TOKENS) {
            if !pool.take(1) {
                return false;
            }
            self.own_blocks += 1;
        }
        true
    }

    /// The end of a pass: how many tokens have been generated, if this pass gave one.
    pub fn end_pass(&mut self) -> Option<u32> {
        if self.job == Job::Prefill {
            if self.computed < self.target {
                return None;
            }
            self.job = Job::Decode;
        }
        self.generated += 1;
        Some(self.generated)
    }

    /// Gives all blocks up; what the prompt's were can still be found.
    pub fn preempt(&mut self, pool: &mut Pool) {
        pool.give_back(std::mem::take(&mut self.own_blocks));
        for extent in self.extents.drain(..).rev() {
            pool.let_go(extent);
        }
        self.job = Job::Prefill;
        self.computed = 0;
        self.settled = 0;
    }

    /// Leaves prompt and answer in the cache: the answer under the ids of the next turn, when they are known.
    pub fn finish(&mut self, requests: &[Request], pool: &mut Pool) {
        let request = &requests[self.number];
        let whole = (request.prompt_tokens / SEGMENT_TOKENS) as usize;
        if let Some(ids) = &request.next_ids
            && self.extents.len() >= whole
        {
            // The prompt's last, unfilled segment goes on with the answer, under another id.
            while self.extents.len() > whole
                && let Some(blocks) = self.extents.last().and_then(|&last| pool.dissolve(last))
            {
                self.own_blocks += blocks;
                self.extents.pop();
            }
            let blocks = (request.prompt_tokens + self.generated) / BLOCK_TOKENS;
            for (segment, &id) in ids.iter().enumerate().skip(self.extents.len()) {
                let filled = blocks.saturating_sub(segment as u32 * SEGMENT_BLOCKS);
                let named = filled.min(SEGMENT_BLOCKS).min(self.own_blocks);
                let Some(extent) = (named > 0).then(|| pool.name(id, named)).flatten() else { break };
                self.own_blocks -= named;
                self.extents.push(extent);
            }
        }
        let answer = (self.generated / BLOCK_TOKENS).min(self.own_blocks);
        if request.next_ids.is_none() && answer > 0 {
            self.own_blocks -= answer;
            self.extents.push(pool.add_nameless(answer));
        }
        self.preempt(pool);
    }
}
