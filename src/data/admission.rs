//! Who may go to a backend now, who waits, and who is turned away: the limits a backend and an API key.
//!
//! Invariants: a request is counted at its backend from its choice on, and the count never passes the limit; a request is
//! counted at its key from before it waits on.

use std::rc::Rc;
use std::time::Duration;

use super::client::Client;
use super::failure::{Failure, Refusal};
use super::lease::Scratch;
use super::pending::Call;
use super::place::{Place, released, releases};
use super::plan::{Choice, Chosen, Plan};
use super::worker::Worker;
use crate::fleet::load::InFlight;
use crate::fleet::tenants::Tenant;
use crate::http::head::Name;
use crate::metrics::shard::Rejected;

/// Seconds after which a client that was turned away may try again.
const RETRY_AFTER_S: u32 = 1;

/// A request's share of its backend; dropping it makes room for the next.
pub(super) struct Admitted<'a> {
    /// Present until dropped.
    in_flight: Option<InFlight<'a>>,
    worker: &'a Worker,
    slot: u16,
    /// Where it has waited.
    place: Option<Place>,
}

impl Admitted<'_> {
    /// All that others look at is counted: the next one that waits may look.
    pub(super) fn goes(&mut self) {
        self.place = None;
    }

    /// The first byte of the answer is here.
    pub(super) fn first_byte(&mut self) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.first_byte();
        }
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        // In this order: who is called must find the room.
        releases(self.worker, self.slot);
        self.in_flight = None;
        self.goes();
        released(self.worker, self.slot);
    }
}

/// Counts the request at its API key.
pub(super) fn tenant(worker: &Worker, scratch: &Scratch, head: &[u8]) -> Result<Tenant<'static>, Refusal> {
    let tenants = &worker.shared.fleet.tenants;
    let key = if tenants.limit() == 0 { b"" } else { api_key(scratch, head) };
    tenants.begin(key).ok_or_else(|| {
        worker.shard().rejected[Rejected::KeyLimit as usize].add(1);
        Refusal {
            status: 429,
            kind: "rate_limit_error",
            code: "too_many_requests_in_flight",
            message: format!(
                "this API key has {} requests in flight, its limit; wait for some of them to end",
                tenants.limit()
            )
            .into(),
            retry_after_s: Some(RETRY_AFTER_S),
        }
    })
}

/// What names the tenant: the credentials of `Authorization` without their scheme, else `X-Api-Key`, else nothing.
fn api_key<'h>(scratch: &Scratch, head: &'h [u8]) -> &'h [u8] {
    match scratch.request.field_kind(head, Name::Authorization) {
        Some(field) => field.splitn(2, |&byte| byte == b' ').last().unwrap_or_default().trim_ascii(),
        None => scratch.request.field(head, "x-api-key").unwrap_or_default(),
    }
}

/// Chooses a backend that is not in `tried` and counts the request there; waits for one to get below its limit if need be, and
/// as long as `ttft` wants it held. `None`: no backend is usable.
pub(super) async fn admit<'w>(
    worker: &'w Rc<Worker>,
    client: &mut Client,
    scratch: &mut Scratch,
    plan: &mut Plan,
    tried: &[u16],
    body_bytes: u64,
) -> Result<Option<(Choice, Admitted<'w>)>, Failure> {
    let mut place: Option<Place> = None;
    let config = &worker.shared.config;
    let most_held = Duration::from_secs_f64(config.routing.ttft.hold_s);
    let mut may_hold = !most_held.is_zero();
    loop {
        // Who has waited for its place takes it: held now, it would stand before others in the queue.
        let is_queued = place.as_ref().is_some_and(Place::is_queued);
        let held_s = (may_hold && !is_queued).then(|| place.as_ref().map_or(0.0, Place::waited_s));
        match (plan.choose(worker, scratch, tried, place.as_ref().map(Place::ticket), held_s), &mut place) {
            (Chosen::Nobody, _) => return Ok(None),
            (Chosen::Backend(_), Some(place)) if place.is_overtaken() => {}
            (Chosen::Backend(choice), _) => {
                let slot = plan.snapshot.backend(choice.member).slot;
                let limit = config.overload.inflight_per_backend;
                // Another worker may have been faster; then the next choice sees that.
                if let Some(in_flight) = worker.shared.fleet.begin(worker.index, slot, body_bytes, limit) {
                    return Ok(Some((choice, Admitted { in_flight: Some(in_flight), worker, slot, place })));
                }
                continue;
            }
            (Chosen::Held(_), Some(place)) => place.stays(),
            // From each of these on it would be called; a look at what has happened before.
            (Chosen::Held(cold_s), None) => {
                place = Place::hold(worker, plan.slots(tried), cold_s);
                may_hold = place.is_some();
                continue;
            }
            (Chosen::AllBusy, None) => {
                place = Some(Place::queue(worker, plan.slots(tried)).ok_or_else(|| queue_full(worker))?);
                continue;
            }
            (Chosen::AllBusy, Some(place)) if !is_queued => {
                place.becomes_queued();
                continue;
            }
            (Chosen::AllBusy, Some(_)) => {}
        }
        let Some(place) = &mut place else { continue };
        let at_most = match is_queued {
            true => config.overload.queue_timeout,
            false => most_held,
        };
        loop {
            let call = client.or_gone(place.called(at_most)).await?;
            if call == Call::Expired && is_queued {
                return Err(queue_timeout(worker).into());
            }
            may_hold &= call != Call::Expired;
            if !plan.renew(worker) {
                return Ok(None);
            }
            if place.wants(plan.slots(tried)) || call != Call::Renew {
                break;
            }
        }
    }
}

fn queue_full(worker: &Worker) -> Refusal {
    worker.shard().rejected[Rejected::QueueFull as usize].add(1);
    let message = format!(
        "every backend has {} requests in flight, the limit, and no more requests may wait; try again",
        worker.shared.config.overload.inflight_per_backend
    );
    Refusal::unavailable("overloaded", message, RETRY_AFTER_S)
}

fn queue_timeout(worker: &Worker) -> Refusal {
    worker.shard().rejected[Rejected::QueueTimeout as usize].add(1);
    let waited = worker.shared.config.overload.queue_timeout;
    let message = format!("no backend became free within {waited:?}; try again");
    Refusal::unavailable("queue_timeout", message, RETRY_AFTER_S)
}
