//! One request after another on a connection: head, body, answer.
//!
//! Straight through the phases until one has to wait: for bytes, for room, for its turn or for an instant. Must not know:
//! the event loop.

use std::time::{Duration, Instant};

use super::answer::Progress;
use super::conn::{Conn, Farewell, Generation, Phase};
use super::faults::Fault;
use super::http::{self, BodyLength, Chunks, Framing, Head, Method, ResponseHead};
use super::routes::{self, Reply};
use super::{Engine, fault_acts, generate};

/// An answer is made in portions of about this size.
const OUTPUT_BYTES: usize = 64 * 1024;

/// Goes on as far as possible. Some: when to come back even if nothing happens on the socket.
pub(crate) fn advance(conn: &mut Conn, engine: &mut Engine, now: Instant) -> Option<Instant> {
    loop {
        match &mut conn.phase {
            Phase::Head if conn.output.len() >= OUTPUT_BYTES => return None,
            Phase::Head => {
                if !take_head(conn, engine, now) {
                    return None;
                }
            }
            Phase::Body(_) => {
                if !take_body(conn, engine, now) {
                    return None;
                }
            }
            Phase::Delayed(_, until) if now < *until => return Some(*until),
            Phase::Delayed(..) => begin(conn, engine, now),
            Phase::Answering(_) => match answer(conn, engine, now) {
                Next::Again => {}
                Next::Wait(until) => return until,
            },
            Phase::Hung | Phase::Ending => return None,
        }
    }
}

/// The client is gone: nothing of its request may go on.
pub(crate) fn abandon(conn: &mut Conn, engine: &mut Engine, now: Instant) {
    if !conn.in_request() {
        let partial = matches!(conn.phase, Phase::Body(_)) || !conn.input.is_empty();
        if partial && !matches!(conn.phase, Phase::Ending) {
            engine.journal.incomplete += 1;
            conn.phase = Phase::Ending;
        }
        return;
    }
    engine.journal.departure(conn.tag.take(), now - conn.arrived);
    engine.counters.aborted += 1;
    if let Phase::Answering(generation) = std::mem::replace(&mut conn.phase, Phase::Ending) {
        match &generation.started {
            Some(started) => engine.scheduler.finish(conn.id, &started.lease, started.named, &[]),
            None => engine.scheduler.forget(conn.id),
        }
        engine.pump_wanted = true;
    }
    conn.phase = Phase::Ending;
}

fn take_head(conn: &mut Conn, engine: &mut Engine, now: Instant) -> bool {
    if conn.input.is_empty() {
        return false;
    }
    let mut head = match http::parse_head(&conn.input) {
        Ok(None) => return false,
        Ok(Some(head)) => head,
        Err(why) => return refuse(conn, engine, why),
    };
    let fault = match head.fault.take() {
        Some(Err(message)) => {
            conn.farewell = Farewell::Fin;
            send(conn, engine, None, &Reply::error(400, "BadRequestError", &message));
            return end(conn, Farewell::Fin);
        }
        Some(Ok(fault)) => Some(fault),
        None => engine.fault_for(&head),
    };
    conn.arrived = now;
    if fault == Some(Fault::Early413) {
        conn.farewell = Farewell::Fin;
        send(conn, engine, head.tag.as_deref(), &Reply::error(413, "PayloadTooLarge", "too large"));
        return end(conn, Farewell::Fin);
    }
    if head.expects_continue && conn.input.len() == head.bytes {
        conn.output.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
    }
    head.fault = fault.map(Ok);
    conn.phase = Phase::Body(Box::new((head, Chunks::default())));
    true
}

fn take_body(conn: &mut Conn, engine: &mut Engine, now: Instant) -> bool {
    let Phase::Body(request) = &mut conn.phase else { return false };
    let (head, chunks) = request.as_mut();
    let bytes = &conn.input[head.bytes..];
    let whole = match head.body {
        BodyLength::Known(length) => bytes.len() >= length,
        BodyLength::Chunked => match chunks.advance(bytes) {
            Ok(whole) => whole,
            Err(why) => return refuse(conn, engine, why),
        },
    };
    if !whole {
        return false;
    }
    let delay = match head.fault {
        Some(Ok(Fault::Delay(ms))) => Duration::from_millis(ms),
        _ => Duration::ZERO,
    };
    conn.tag.clone_from(&head.tag);
    let phase = std::mem::replace(&mut conn.phase, Phase::Head);
    if let Phase::Body(request) = phase {
        conn.phase = Phase::Delayed(request, now + delay);
    }
    true
}

/// The request is complete: answers it, or submits it to the scheduler.
fn begin(conn: &mut Conn, engine: &mut Engine, now: Instant) {
    let Phase::Delayed(request, _) = std::mem::replace(&mut conn.phase, Phase::Head) else { return };
    let (head, chunks) = *request;
    let input = std::mem::take(&mut conn.input);
    let (body, taken) = match head.body {
        BodyLength::Known(length) => (&input[head.bytes..head.bytes + length], head.bytes + length),
        BodyLength::Chunked => (chunks.body.as_slice(), head.bytes + chunks.taken),
    };
    let path = head.path();
    if path.starts_with("/v1/") && head.method == Method::Post {
        engine.journal.request(&input[..head.bytes], body.len(), xxhash_rust::xxh3::xxh3_64(body));
    }
    conn.farewell = if head.keep_alive { Farewell::Stay } else { Farewell::Fin };
    let fault = head.fault.clone().and_then(Result::ok);
    if let Some(Fault::Status(status)) = fault {
        send_last(conn, engine, &head, &Reply::error(status as u16, "InjectedError", "a fault was asked for"));
    } else if !fault_acts::before(conn, fault) {
        match routes::generates(&head) {
            Some(kind) => match generate::prepare(engine, &head, body, kind, fault, now) {
                Ok((generation, job)) => {
                    engine.scheduler.submit(conn.id, job);
                    engine.pump_wanted = true;
                    conn.phase = Phase::Answering(Box::new(generation));
                }
                Err(reply) => send_last(conn, engine, &head, &reply),
            },
            None => {
                let reply = routes::reply(engine, &head, body);
                send_last(conn, engine, &head, &reply);
            }
        }
    }
    conn.input = input;
    conn.consume(taken);
}

enum Next {
    Again,
    Wait(Option<Instant>),
}

fn answer(conn: &mut Conn, engine: &mut Engine, now: Instant) -> Next {
    let Phase::Answering(generation) = &mut conn.phase else { return Next::Again };
    let due = match &generation.started {
        Some(started) => engine.scheduler.tokens_by(now, started.first_token_at),
        None => 0,
    };
    if generation.started.is_none() && (engine.pump_wanted || !generation.answer.form.stream) {
        // Its turn may come at once, and then head and tokens leave together.
        return Next::Wait(None);
    }
    let progress = generation.answer.fill(due, OUTPUT_BYTES, &mut conn.output);
    if due > 0 && !generation.first_sent {
        generation.first_sent = true;
        engine.counters.first_token.observe((now - generation.arrived).as_secs_f64());
    }
    match progress {
        Progress::Full => Next::Wait(None),
        Progress::NotYet => {
            let Some(started) = &generation.started else { return Next::Wait(None) };
            let answer = &generation.answer;
            let awaited = if answer.form.stream { answer.sent } else { answer.tokens.saturating_sub(1) };
            Next::Wait(Some(engine.scheduler.token_at(awaited, started.first_token_at)))
        }
        Progress::Cut | Progress::Done => {
            complete(conn, engine, progress == Progress::Cut, now);
            Next::Again
        }
    }
}

/// The last byte of an answer is in the output.
fn complete(conn: &mut Conn, engine: &mut Engine, cut: bool, now: Instant) {
    let Phase::Answering(generation) = std::mem::replace(&mut conn.phase, Phase::Head) else { return };
    let Generation { answer, started, arrived, chain, fault, .. } = *generation;
    if let Some(started) = started {
        let written = generate::written_blocks(&answer, chain);
        engine.scheduler.finish(conn.id, &started.lease, started.named, &written);
        engine.pump_wanted = true;
    } else {
        // An answer without a token is complete before its turn has come: the next request of this connection is another.
        engine.scheduler.forget(conn.id);
    }
    engine.counters.finished += u64::from(!cut);
    engine.counters.generated_tokens += answer.sent;
    engine.counters.duration.observe((now - arrived).as_secs_f64());
    engine.journal.answered += u64::from(!cut);
    conn.since = now;
    if !answer.form.keep_alive {
        conn.farewell = Farewell::Fin;
    }
    if conn.farewell != Farewell::Stay {
        conn.phase = Phase::Ending;
    }
    fault_acts::after(conn, fault, cut);
}

fn send(conn: &mut Conn, engine: &Engine, tag: Option<&str>, reply: &Reply) {
    let Reply { status, content_type, body } = reply;
    let framing = Framing::Length(body.len() as u64);
    let keep_alive = conn.farewell == Farewell::Stay;
    let head = ResponseHead { status: *status, content_type, framing, engine: engine.port, tag, keep_alive };
    head.write(&mut conn.output);
    conn.output.extend_from_slice(body.as_bytes());
}

/// A complete answer to a request that has been read.
fn send_last(conn: &mut Conn, engine: &mut Engine, head: &Head, reply: &Reply) {
    let body_from = conn.output.len();
    send(conn, engine, head.tag.as_deref(), reply);
    if head.method == Method::Head {
        let written = conn.output.len() - body_from;
        conn.output.truncate(body_from + written - reply.body.len());
    }
    engine.journal.answered += u64::from(head.method == Method::Post && head.path().starts_with("/v1/"));
    conn.phase = if conn.farewell == Farewell::Stay { Phase::Head } else { Phase::Ending };
}

fn refuse(conn: &mut Conn, engine: &mut Engine, why: &'static str) -> bool {
    engine.journal.malformed(why);
    conn.farewell = Farewell::Fin;
    send(conn, engine, None, &Reply::error(400, "BadRequestError", why));
    end(conn, Farewell::Fin)
}

fn end(conn: &mut Conn, farewell: Farewell) -> bool {
    conn.farewell = farewell;
    conn.phase = Phase::Ending;
    conn.input = Vec::new();
    false
}
