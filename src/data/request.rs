//! A request as it was read: its head, its whole body, and what decides how it is carried.

use std::rc::Rc;

use super::admission;
use super::buffer::{Buffer, SMALL};
use super::client::{Client, READ_AHEAD, buffers_full};
use super::failure::{Failure, Refusal};
use super::lease::Scratch;
use super::paths::Destination;
use super::plan;
use crate::fleet::tenants::Tenant;
use crate::http::chunked::Decoder;
use crate::http::fault::Reject;
use crate::http::forward::valid_request_id;
use crate::http::framing::{self, BodyLength, MaxForwards, RequestFraming};
use crate::http::head::{Method, Name, Version};
use crate::http::reply::CONTINUE;
use crate::metrics::shard::Rejected;

/// The largest body of a request that the router answers itself: it reads none of them.
const CONTROL_BODY: usize = 64 << 10;

pub(super) struct Request {
    /// Exactly head and body, or the head alone once the body was let go.
    bytes: Buffer,
    head_len: usize,
    body_len: usize,
    /// Its share of what its API key may have in flight.
    _tenant: Option<Tenant<'static>>,
    pub(super) framing: RequestFraming,
    pub(super) destination: Destination,
    /// `Max-Forwards` as it is sent on, if the request has one that counts.
    pub(super) max_forwards: Option<u64>,
    /// It may not be sent on any more.
    pub(super) ends_here: bool,
    /// Length of the root path at the front of the target.
    pub(super) root_len: usize,
}

/// What is known of a request as soon as its head is: enough to answer it, whatever happens later.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    pub(super) version: Version,
    pub(super) method: Method,
    /// The client wants to go on, and the whole request has been taken off the connection.
    pub(super) keep_alive: bool,
}

impl Default for Seen {
    fn default() -> Self {
        Seen { version: Version::Http11, method: Method::Get, keep_alive: false }
    }
}

impl Request {
    pub(super) fn head(&self) -> &[u8] {
        &self.bytes.filled()[..self.head_len]
    }

    pub(super) fn body(&self) -> &[u8] {
        &self.bytes.filled()[self.head_len..]
    }

    /// The length to announce to the backend; a request that had no body gets none.
    pub(super) fn content_length(&self) -> Option<u64> {
        (self.framing.body != BodyLength::None).then_some(self.body_len as u64)
    }

    /// Whether letting the body go would free memory.
    pub(super) fn is_large(&self) -> bool {
        self.bytes.capacity() > SMALL && self.head_len <= SMALL && self.bytes.len() > self.head_len
    }

    /// Lets go of a body that will not be sent again.
    pub(super) fn release_body(&mut self) {
        if self.is_large() {
            self.bytes.shrink(self.head_len);
        }
    }

    /// Reads the rest of a request whose head is the first `head_len` bytes of the client's input.
    pub(super) async fn read(
        client: &mut Client,
        scratch: &mut Scratch,
        head_len: usize,
        seen: &mut Seen,
    ) -> Result<Self, Failure> {
        let worker = Rc::clone(&client.worker);
        let bytes = client.input();
        let head = &bytes.filled()[..head_len];
        (seen.version, seen.method) = (scratch.request.version, scratch.request.method);
        set_request_id(scratch, head, || [worker.random(), worker.random()]);
        let framing = framing::request(&scratch.request, head)?;
        let max_forwards = framing::max_forwards(&scratch.request, head)?;
        let (root_len, destination) = plan::place(&worker, &scratch.request, head);
        authorize(&worker.shared.config, scratch, head, destination)?;
        // What the head refuses is refused before the body. A short one is taken all the same: then the client may go on.
        let tenant = match destination {
            Destination::Live | Destination::Health | Destination::Control(_) | Destination::Explain => Ok(None),
            Destination::Routed(_) | Destination::Any => admission::tenant(&worker, scratch, head).map(Some),
        };
        let tenant = if is_short(&framing) { tenant } else { Ok(tenant?) };
        client.socket.no_deadline();
        let limit = match destination {
            Destination::Live | Destination::Health | Destination::Control(_) => {
                worker.shared.config.max_body_bytes.min(CONTROL_BODY)
            }
            _ => worker.shared.config.max_body_bytes,
        };
        let body_len = match framing.body {
            BodyLength::None => 0,
            BodyLength::Fixed(length) => read_fixed(client, head_len, length, limit, framing.expect_continue).await?,
            BodyLength::Chunked => read_chunked(client, head_len, limit, framing.expect_continue).await?,
        };
        client.socket.no_deadline();
        let bytes = client.split_input(head_len + body_len);
        seen.keep_alive = framing.keep_alive;
        let left = if let MaxForwards::Left(left) = max_forwards { Some(left) } else { None };
        Ok(Request {
            bytes,
            head_len,
            body_len,
            _tenant: tenant?,
            framing,
            destination,
            max_forwards: left,
            ends_here: max_forwards == MaxForwards::Zero,
            root_len,
        })
    }
}

/// No more than is read ahead anyway, and the client does not wait for a word before it sends it.
fn is_short(framing: &RequestFraming) -> bool {
    match framing.body {
        BodyLength::None => true,
        BodyLength::Fixed(length) => length <= READ_AHEAD as u64 && !framing.expect_continue,
        BodyLength::Chunked => false,
    }
}

/// The client's id if it is valid, else one of our own.
fn set_request_id(scratch: &mut Scratch, head: &[u8], random: impl Fn() -> [u64; 2]) {
    scratch.request_id.clear();
    match scratch.request.field_kind(head, Name::RequestId) {
        Some(id) if valid_request_id(id) => scratch.request_id.extend_from_slice(id),
        _ => {
            const HEX: &[u8; 16] = b"0123456789abcdef";
            for word in random() {
                scratch.request_id.extend((0..16).map(|i| HEX[(word >> (60 - 4 * i)) as usize & 15]));
            }
        }
    }
}

/// With `--api-key`, everything but probes and metrics needs it.
fn authorize(
    config: &crate::config::Config,
    scratch: &Scratch,
    head: &[u8],
    destination: Destination,
) -> Result<(), Failure> {
    let Some(key) = &config.api_key else { return Ok(()) };
    let path = scratch.request.path(head);
    match destination {
        Destination::Live | Destination::Health => return Ok(()),
        Destination::Control(_) if path.ends_with(b"/metrics") || path.ends_with(b"/version") => return Ok(()),
        _ => {}
    }
    let given = scratch.request.field_kind(head, Name::Authorization).unwrap_or_default();
    let (scheme, given) = given.split_at_checked(7).unwrap_or_default();
    if scheme.eq_ignore_ascii_case(b"Bearer ") && same_secret(key.expose().as_bytes(), given) {
        return Ok(());
    }
    let message = "the API key is missing or wrong: send it as 'Authorization: Bearer KEY'";
    Err(Failure::Refused(Refusal { kind: "authentication_error", ..Refusal::invalid(401, "invalid_api_key", message) }))
}

/// Compares in a time that depends on the lengths alone, not on where the two differ.
fn same_secret(expected: &[u8], given: &[u8]) -> bool {
    if expected.len() != given.len() {
        return false;
    }
    // The barrier keeps the compiler from leaving the loop at the first difference.
    let differing = expected.iter().zip(given).fold(0, |acc, (a, b)| std::hint::black_box(acc | (a ^ b)));
    differing == 0
}

fn too_large(limit: usize) -> Failure {
    Reject::BodyTooLarge { limit: limit as u64 }.into()
}

/// Reads until `length` bytes follow the head.
async fn read_fixed(
    client: &mut Client,
    head_len: usize,
    length: u64,
    limit: usize,
    expect_continue: bool,
) -> Result<usize, Failure> {
    let length = usize::try_from(length).ok().filter(|&l| l <= limit).ok_or_else(|| too_large(limit))?;
    if length > READ_AHEAD && !client.worker.blocks.have(length) {
        client.worker.shard().rejected[Rejected::BufferedBytes as usize].add(1);
        return Err(buffers_full().into());
    }
    if expect_continue && client.input().len() == head_len && length > 0 {
        send_continue(client).await?;
    }
    while client.input().len() < head_len + length {
        let missing = head_len + length - client.input().len();
        more_body(client, missing, Some(head_len + length)).await?;
    }
    Ok(length)
}

/// Reads and decodes a chunked body in place, behind the head.
async fn read_chunked(
    client: &mut Client,
    head_len: usize,
    limit: usize,
    expect_continue: bool,
) -> Result<usize, Failure> {
    let mut decoder = Decoder::new(&client.worker.limits);
    let mut body_len = 0;
    if expect_continue && client.input().len() == head_len {
        send_continue(client).await?;
    }
    loop {
        let at = head_len + body_len;
        let input = client.input();
        let step = decoder.decode(&mut input.filled_mut()[at..])?;
        input.close_gap(at + step.payload, at + step.consumed);
        body_len += step.payload;
        client.worker.coop.spend_framing(step.consumed - step.payload);
        if decoder.announced() > limit as u64 {
            return Err(too_large(limit));
        }
        if step.done {
            return Ok(body_len);
        }
        // What a chunk has announced and not brought; where the body ends is not known.
        let missing = usize::try_from(decoder.announced()).map_or(limit, |announced| announced - body_len);
        more_body(client, missing, None).await?;
    }
}

async fn more_body(client: &mut Client, missing: usize, whole: Option<usize>) -> Result<(), Failure> {
    client.socket.read_due_in(client.worker.shared.config.times.client_body_progress);
    if client.read_more("body", missing + READ_AHEAD, whole).await? { Ok(()) } else { Err(Failure::ClientGone) }
}

async fn send_continue(client: &mut Client) -> Result<(), Failure> {
    client.send(&mut [std::io::IoSlice::new(CONTINUE)]).await
}
