//! From a generating request to the answer and the job that it becomes, and from a finished answer to what it leaves in the
//! cache.
//!
//! Must not know: connections, the event loop.

use std::time::Instant;

use super::answer::{Answer, Form, Stage};
use super::conn::Generation;
use super::faults::Fault;
use super::http::{Framing, Head};
use super::journal::unix_s;
use super::prompt::{self, Chain, Kind, TOKEN_BYTES};
use super::routes::Reply;
use super::schedule::Job;
use super::{Engine, fault_acts};

/// Of a longer answer only this much is kept in the cache for the next turn.
const CACHED_ANSWER_TOKENS: u64 = 4096;

/// What a generating request becomes: the answer to come, and the scheduler's job. Err: the answer to one that is refused.
pub(super) fn prepare(
    engine: &mut Engine,
    head: &Head,
    body: &[u8],
    kind: Kind,
    fault: Option<Fault>,
    now: Instant,
) -> Result<(Generation, Job), Reply> {
    let block_tokens = engine.options.block_tokens;
    let prompt = prompt::read(body, kind, block_tokens).map_err(|why| Reply::error(400, "BadRequestError", &why))?;
    let model = engine.model_for(&prompt.model).map_err(|reply| *reply)?.to_owned();
    if engine.asleep {
        return Err(Reply::error(503, "ServiceUnavailable", "the engine is sleeping"));
    }
    let tokens = prompt.max_tokens.unwrap_or(engine.options.default_max_tokens);
    let kept_bytes = tokens.min(CACHED_ANSWER_TOKENS) as usize * TOKEN_BYTES;
    let unnamed = (prompt.chain.rest_bytes() + kept_bytes).div_ceil(block_tokens * TOKEN_BYTES);
    if !engine.scheduler.cache.can_hold(prompt.hashes.len() + unnamed) {
        let longest = engine.options.kv_tokens;
        let message = format!("This model's maximum context length is {longest} tokens; the request wants more.");
        return Err(Reply::error(400, "BadRequestError", &message));
    }
    engine.numbered += 1;
    let finish_reason = if prompt.max_tokens.is_some() { "length" } else { "stop" };
    let mut form = Form {
        kind,
        stream: prompt.stream,
        include_usage: prompt.include_usage,
        framing: (head.old && prompt.stream).then_some(Framing::Close),
        keep_alive: head.keep_alive && !(head.old && prompt.stream),
        early_head: !engine.options.late_head,
        cut_after: None,
        finish_reason,
    };
    fault_acts::shape(&mut form, fault);
    let answer = Answer {
        form,
        engine: engine.port,
        number: engine.numbered,
        created: unix_s() as u64,
        model,
        tag: head.tag.clone(),
        seed: prompt.chain.digest(),
        prompt_tokens: prompt.tokens,
        cached_tokens: 0,
        tokens,
        sent: 0,
        stage: Stage::Head,
    };
    let job = Job { hashes: prompt.hashes, prompt_tokens: prompt.tokens, unnamed };
    Ok((Generation { answer, started: None, arrived: now, chain: prompt.chain, first_sent: false, fault }, job))
}

/// The whole blocks that an answer has filled, behind the prompt that `chain` has read.
pub(super) fn written_blocks(answer: &Answer, mut chain: Chain) -> Vec<u64> {
    let mut text = Vec::new();
    answer.text(0, answer.sent.min(CACHED_ANSWER_TOKENS), &mut text);
    let mut written = Vec::new();
    chain.extend(&text, &mut written);
    written
}
