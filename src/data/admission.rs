//! Who may go to a backend now, who waits, and who is turned away: the limits a backend and an API key.
//!
//! Invariants: a request is counted at its backend from its choice on, and the count never passes the limit; a request is
//! counted at its key from before it waits on.

use std::rc::Rc;

use super::call::Call;
use super::client::Client;
use super::failure::{Failure, Refusal};
use super::hold::Seat;
use super::lease::Scratch;
use super::plan::{Choice, Chosen, Plan};
use super::queue::Place;
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
}

impl Admitted<'_> {
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
        self.in_flight = None;
        self.worker.queue.call_next();
        self.worker.held.stir(self.worker);
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
    let mut seat: Option<Seat> = None;
    let mut may_hold = worker.shared.config.routing.ttft.hold_s > 0.0;
    loop {
        // Who has waited for its place takes it: held now, it would stand before others in the queue.
        let held_s = (may_hold && place.is_none()).then(|| seat.as_ref().map_or(0.0, Seat::waited_s));
        match plan.choose(worker, scratch, tried, place.as_ref().map(Place::since_us), held_s) {
            Chosen::Nobody => return Ok(None),
            Chosen::Backend(choice) => {
                let (shared, slot) = (worker.shared, plan.snapshot.backend(choice.member).slot);
                let limit = shared.config.overload.inflight_per_backend;
                // Another worker may have been faster; then the next choice sees that.
                if let Some(in_flight) = shared.fleet.begin(worker.index, slot, body_bytes, limit) {
                    return Ok(Some((choice, Admitted { in_flight: Some(in_flight), worker })));
                }
                continue;
            }
            Chosen::Held(cold_s) => {
                match &seat {
                    Some(seat) => seat.pass_on(),
                    None => seat = Seat::take(worker, cold_s),
                }
                may_hold = match &seat {
                    Some(seat) => client.or_gone(seat.called()).await? == Call::Look,
                    None => false,
                };
                if !plan.renew(worker) {
                    return Ok(None);
                }
                continue;
            }
            Chosen::AllBusy => seat = None,
        }
        if place.is_none() {
            place = Some(Place::take(worker, plan.model_identity()).ok_or_else(|| queue_full(worker))?);
        }
        if let Some(place) = &place {
            place.want(plan.loads(worker, tried));
            if client.or_gone(place.called()).await? == Call::Expired {
                return Err(queue_timeout(worker).into());
            }
        }
        if !plan.renew(worker) {
            return Ok(None);
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
