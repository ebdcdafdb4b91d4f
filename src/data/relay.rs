//! The answer's way to the client: one read, one write, one buffer; a large body of known length goes by `splice`.
//!
//! While the client takes no bytes, nothing is read from the backend. Each read is forwarded at once; a stream whose events
//! come faster than anybody reads is read on a beat (`pace`). What comes after the framed end is never forwarded. A body that
//! ends early ends early for the client too.

use std::io::IoSlice;
use std::time::Instant;

use super::buffer::{Buffer, LARGE};
use super::client::Client;
use super::failure::Failure;
use super::forecast::Watch;
use super::pace::{BEAT, Pace};
use super::socket::{Got, Socket};
use super::splice;
use crate::config::CoalesceMode;
use crate::http::chunked::{Decoder, LAST_CHUNK, Step, write_size};
use crate::http::fault::BadResponse;
use crate::http::framing::ResponseBody;
use crate::http::limits::Limits;
use crate::metrics::shard::{BOUNDS_US, ErrorKind, Lane};

/// From this many bytes on, a body of known length is copied through a large buffer.
const BULK: u64 = 64 << 10;

/// How the rest of a backend's body is delimited.
enum Rest {
    Fixed(u64),
    Chunked(Decoder),
    UntilClose,
}

impl Rest {
    fn new(body: ResponseBody, limits: &Limits) -> Self {
        match body {
            ResponseBody::None => Rest::Fixed(0),
            ResponseBody::Fixed(length) => Rest::Fixed(length),
            ResponseBody::Chunked => Rest::Chunked(Decoder::new(limits)),
            ResponseBody::UntilClose => Rest::UntilClose,
        }
    }

    /// Takes the body's bytes from the front of `bytes`: the payload is then at its front.
    fn take(&mut self, bytes: &mut [u8]) -> Result<Step, BadResponse> {
        match self {
            Rest::Fixed(remaining) => {
                let payload = usize::try_from(*remaining).map_or(bytes.len(), |r| r.min(bytes.len()));
                *remaining -= payload as u64;
                Ok(Step { consumed: payload, payload, done: *remaining == 0 })
            }
            Rest::Chunked(decoder) => Ok(decoder.decode(bytes)?),
            Rest::UntilClose => Ok(Step { consumed: bytes.len(), payload: bytes.len(), done: false }),
        }
    }

    fn is_stream(&self) -> bool {
        !matches!(self, Rest::Fixed(_))
    }
}

/// What is to be relayed.
pub(super) struct Answer<'a> {
    /// The head for the client, ready.
    pub(super) head: &'a [u8],
    pub(super) body: ResponseBody,
    /// The client gets the body in chunks.
    pub(super) chunked: bool,
    pub(super) lane: Option<&'a Lane>,
}

/// Sends the answer, whose first bytes may be in `bytes` already. True: the backend's connection is at a clean end and may
/// serve again.
pub(super) async fn relay(
    client: &mut Client,
    upstream: &mut Socket,
    bytes: &mut Buffer,
    answer: &Answer<'_>,
    mut watch: Option<&mut Watch<'_, '_>>,
) -> Result<bool, Failure> {
    let mut rest = Rest::new(answer.body, &client.worker.limits);
    let mut head = answer.head;
    // The clock is asked for streams alone.
    let mut pace = rest.is_stream().then(|| Pace::new(Instant::now()));
    loop {
        let step = rest.take(bytes.filled_mut()).map_err(|bad| match head {
            [] => Failure::Broken(ErrorKind::BadResponse),
            _ => Failure::from(bad),
        })?;
        if step.payload > 0 || step.done || !head.is_empty() {
            send(client, head, &bytes.filled()[..step.payload], answer.chunked, step.done).await?;
            if let Some(watch) = &mut watch {
                watch.payload(&client.worker, &bytes.filled()[..step.payload]);
            }
            if let Some(lane) = answer.lane {
                lane.response_bytes.add(step.payload as u64);
            }
            head = &[];
        }
        client.worker.coop.spend_framing(step.consumed - step.payload);
        bytes.consume(step.consumed);
        if step.done {
            return Ok(bytes.is_empty() && !matches!(rest, Rest::UntilClose));
        }
        if let (Rest::Fixed(remaining), true) = (&rest, bytes.is_empty()) {
            if splice::to_client(client, upstream, *remaining, answer.lane).await? {
                return Ok(true);
            }
            if *remaining >= BULK
                && bytes.capacity() < LARGE
                && let Some(large) = Buffer::try_new(&client.worker.blocks, LARGE)
            {
                *bytes = large;
            }
        }
        let held = bytes.len();
        let more = read(client, upstream, bytes, pace.as_mut()).await?;
        if let (Some(pace), Some(lane)) = (&mut pace, answer.lane) {
            let gap = pace.came(Instant::now(), bytes.len() - held);
            lane.gap.observe(gap.as_micros() as u64, &BOUNDS_US);
        }
        if !more {
            return match rest {
                Rest::UntilClose => {
                    send(client, head, &[], answer.chunked, true).await?;
                    Ok(false)
                }
                Rest::Fixed(_) | Rest::Chunked(_) => Err(Failure::Broken(ErrorKind::Broken)),
            };
        }
    }
}

/// One write: what is left of the head, the payload in the client's framing, and the end if it is reached.
async fn send(client: &mut Client, head: &[u8], payload: &[u8], chunked: bool, done: bool) -> Result<(), Failure> {
    let mut size = [0; 18];
    let in_chunk = chunked && !payload.is_empty();
    let size_len = if in_chunk { write_size(payload.len(), &mut size) } else { 0 };
    let end: &[u8] = match (in_chunk, chunked && done) {
        (true, true) => b"\r\n0\r\n\r\n",
        (true, false) => b"\r\n",
        (false, true) => LAST_CHUNK,
        (false, false) => b"",
    };
    let mut parts = [IoSlice::new(head), IoSlice::new(&size[..size_len]), IoSlice::new(payload), IoSlice::new(end)];
    client.send(&mut parts).await
}

/// Waits for the backend's next bytes, with an eye on the client. False: its end.
async fn read(
    client: &mut Client,
    upstream: &mut Socket,
    bytes: &mut Buffer,
    pace: Option<&mut Pace>,
) -> Result<bool, Failure> {
    bytes.make_room();
    let mut pace = pace.filter(|pace| pace.is_fast() && client.worker.shared.config.coalesce == CoalesceMode::Auto);
    if pace.is_some() {
        client.or_gone(monoio::time::sleep(BEAT)).await?;
        client.worker.shard().beats.add(1);
        upstream.expect_bytes();
    }
    loop {
        match upstream.read(bytes.spare()) {
            Ok(Got::Bytes(n)) => {
                // From here on the client is waited for.
                upstream.no_deadline();
                bytes.commit(n);
                return Ok(true);
            }
            Ok(Got::Wait) => {
                if let Some(pace) = pace.take() {
                    pace.rests();
                }
                upstream.due_in(client.worker.shared.config.times.between_bytes);
                client.or_gone(upstream.readable()).await?.map_err(|_| Failure::Broken(ErrorKind::Broken))?;
            }
            Ok(Got::End) if upstream.timed_out() => return Err(Failure::Broken(ErrorKind::BetweenBytesTimeout)),
            Ok(Got::End) => return Ok(false),
            Err(_) => return Err(Failure::Broken(ErrorKind::Broken)),
        }
    }
}
