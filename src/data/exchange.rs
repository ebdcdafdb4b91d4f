//! One request from top to bottom: read, choose, send, relay, count.

use std::io::IoSlice;
use std::rc::Rc;
use std::time::Instant;

use super::admission::{self, Admitted};
use super::attempt::{Attempt, Outcome, Trouble};
use super::client::Client;
use super::control;
use super::explain;
use super::failure::{Failure, Refusal};
use super::forecast::Running;
use super::lease::Scratch;
use super::paths::Destination;
use super::plan::{self, Plan};
use super::request::{Request, Seen};
use super::request_log;
use super::retry::{Next, Sent};
use super::sabotage;
use super::upstream::Target;
use super::verdict::{self, Verdict};
use super::worker::Worker;
use crate::fleet::snapshot::Backend;
use crate::http::head::{Method, Version};
use crate::http::reply::{self, Reply};
use crate::metrics::shard::{BOUNDS_US, Lane, MATCH_BOUNDS_BYTES};
use crate::trie::Holder;

/// What becomes of the client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    KeepAlive,
    /// It ended before a request began.
    Gone,
    /// The answer is complete; nothing follows.
    Close,
    /// It was answered although it may still be sending its request.
    Refused,
    /// It is gone, or its answer broke off: no end that looks like one.
    Abort,
}

/// Serves the client's next request.
pub(super) async fn serve_one(client: &mut Client) -> After {
    let worker = Rc::clone(&client.worker);
    let mut lease = worker.leases.take();
    let mut seen = Seen::default();
    match exchange(&worker, client, &mut lease, &mut seen).await {
        Ok(None) => After::Gone,
        Ok(Some(keep_alive)) => match keep_alive {
            true => After::KeepAlive,
            false => After::Close,
        },
        Err(failure) => match failure.refusal() {
            Some(refusal) => refuse(&worker, client, &mut lease, seen, &refusal).await,
            None => After::Abort,
        },
    }
}

/// `None`: the connection ended before a request began. Else: whether the client may go on.
async fn exchange(
    worker: &Rc<Worker>,
    client: &mut Client,
    scratch: &mut Scratch,
    seen: &mut Seen,
) -> Result<Option<bool>, Failure> {
    let Some(head_len) = client.read_head(&mut scratch.request).await? else { return Ok(None) };
    let started = Instant::now();
    worker.coop.spend(0);
    worker.shard().requests.add(1);
    let mut request = Request::read(client, scratch, head_len, seen).await?;
    sabotage::strike("read", &scratch.request, request.head());
    match request.destination {
        Destination::Live | Destination::Health => {
            return control::answer(client, scratch, &request, *seen).await.map(Some);
        }
        Destination::Control(lane) => {
            return control::relay(client, scratch, &mut request, *seen, lane).await.map(Some);
        }
        Destination::Explain => return explain::answer(client, scratch, &request, *seen).await.map(Some),
        Destination::Routed(_) | Destination::Any => {}
    }
    if request.ends_here {
        return control::last_recipient(client, scratch, *seen).await.map(Some);
    }
    plan::scan(worker, scratch, request.body(), request.destination).await?;
    let mut plan = Plan::new(worker, scratch, request.head(), request.body(), request.destination)?;
    to_backends(worker, client, scratch, &mut request, &mut plan, *seen, started).await.map(Some)
}

/// Tries backends until one has answered or the attempts are used up. Another backend is tried only when none can have read
/// a byte of the request.
async fn to_backends(
    worker: &Rc<Worker>,
    client: &mut Client,
    scratch: &mut Scratch,
    request: &mut Request,
    plan: &mut Plan,
    seen: Seen,
    started: Instant,
) -> Result<bool, Failure> {
    let shared = worker.shared;
    let mut tried: Vec<u16> = Vec::new();
    let mut last_failure = None;
    let body_bytes = request.body().len() as u64;
    let load_bytes = plan.load_bytes(worker, scratch, body_bytes);
    while tried.len() <= shared.config.failover_attempts {
        let admitted = admission::admit(worker, client, scratch, plan, &tried, load_bytes).await?;
        let Some((choice, mut admitted)) = admitted else { break };
        let backend = plan.snapshot.backend(choice.member);
        let lane = worker.shard().lane(choice.member.lane);
        let load = shared.fleet.load(backend.slot);
        let holder = Holder { slot: backend.slot, generation: shared.trie.generation(backend.slot) };
        lane.sent[choice.reason as usize].add(1);
        if !tried.is_empty() {
            lane.retries.add(1);
        }
        lane.request_bytes.add(body_bytes);
        let outlier = shared.fleet.outlier(backend.slot);
        let probe = outlier.begin();
        lane.matched.observe(choice.matched_bytes, &MATCH_BOUNDS_BYTES);
        sabotage::strike("chosen", &scratch.request, request.head());
        let running = choice.forecast.map(|forecast| {
            let streamed = scratch.scan.stream(request.body());
            Running::begin(worker, forecast, streamed)
        });
        admitted.goes();
        let observer = Observer {
            running,
            lane,
            admitted,
            plan,
            backend,
            holder,
            marked: false,
            started,
            dispatched: Instant::now(),
        };
        let mut attempt = Attempt {
            target: Target::Backend(backend),
            request: &mut *request,
            seen,
            observer: Some(observer),
            sent: Sent::Nothing,
        };
        let run = attempt.run(client, scratch).await;
        let verdict = verdict::of(&run);
        if verdict != Verdict::Success
            && let Some(observer) = &mut attempt.observer
        {
            observer.failed(worker, scratch, verdict);
        }
        verdict.tell(worker, plan, backend.slot, probe.as_ref());
        match run {
            Ok(outcome) => {
                count_answer(lane, &outcome, started);
                return Ok(outcome.keep_alive);
            }
            Err(Trouble::Connect(kind, detail, next)) => {
                lane.errors[kind as usize].add(1);
                load.set_unreachable(true);
                tried.push(backend.slot);
                last_failure = Some((kind, format!("the backend {} cannot be reached: {detail}", backend.name)));
                if next != Next::OtherBackend {
                    break;
                }
            }
            Err(Trouble::Failure(failure)) => return Err(counted(lane, failure)),
        }
    }
    Err(match last_failure {
        Some((kind, detail)) => Failure::Upstream(kind, detail.into()),
        None => Failure::Refused(plan.nobody()),
    })
}

fn counted(lane: &Lane, failure: Failure) -> Failure {
    if let Some(kind) = failure.error_kind() {
        lane.errors[kind as usize].add(1);
    }
    failure
}

fn count_answer(lane: &Lane, outcome: &Outcome, started: Instant) {
    let class = usize::from((outcome.status / 100).clamp(1, 5)) - 1;
    lane.duration[class].observe(started.elapsed().as_micros() as u64, &BOUNDS_US);
}

/// What is counted while a backend has the request.
pub(super) struct Observer<'a> {
    pub(super) running: Option<Running<'a>>,
    pub(super) lane: &'a Lane,
    admitted: Admitted<'a>,
    plan: &'a Plan,
    backend: &'a Backend,
    holder: Holder,
    /// The prompt was marked as the backend's.
    marked: bool,
    started: Instant,
    dispatched: Instant,
}

impl Observer<'_> {
    /// There is a connection on which the request is going to be sent.
    pub(super) fn connected(&mut self, worker: &Worker, scratch: &mut Scratch, request: &Request) {
        self.running.iter().for_each(|running| running.sets_apart(worker));
        let marked = self.plan.seed(worker, scratch, self.holder);
        self.marked |= marked.is_some();
        if let (Some(running), Some(marked)) = (&mut self.running, marked) {
            running.takes(worker, marked);
        }
        if worker.shared.config.log.requests {
            request_log::routed(worker, scratch, request, self.plan, self.backend, self.started.elapsed());
        }
    }

    /// The request did not succeed: what it marked goes, so that a client that tries again may land elsewhere, and nothing is
    /// learnt. What the backend held before stays marked.
    fn failed(&mut self, worker: &Worker, scratch: &Scratch, verdict: Verdict) {
        if verdict == Verdict::ClientGone {
            return;
        }
        if self.marked {
            let held_before = scratch.matches.chunks(self.holder.slot) as usize;
            worker.shared.trie.forget(scratch.chunks.key(), self.holder, held_before);
        }
        if let Some(running) = &mut self.running {
            running.failed();
        }
    }

    /// The first byte of the answer is here.
    pub(super) fn first_byte(&mut self) {
        self.admitted.first_byte();
        self.lane.first_byte.observe(self.dispatched.elapsed().as_micros() as u64, &BOUNDS_US);
    }
}

/// Answers with an error of the router's own.
async fn refuse(worker: &Worker, client: &mut Client, scratch: &mut Scratch, seen: Seen, refusal: &Refusal) -> After {
    let keep_alive = seen.keep_alive && !worker.draining();
    worker.shard().refused[usize::from(refusal.status >= 500)].add(1);
    scratch.out.clear();
    reply::error(
        &mut scratch.out,
        &Reply {
            status: refusal.status,
            kind: refusal.kind,
            code: refusal.code,
            message: &refusal.message,
            request_id: &scratch.request_id,
            date: &worker.date(),
            retry_after_s: refusal.retry_after_s,
            keep_alive,
            head_only: seen.method == Method::Head,
            version: seen.version,
        },
    );
    client.socket.no_deadline();
    match client.send(&mut [IoSlice::new(&scratch.out)]).await {
        Ok(()) if keep_alive => After::KeepAlive,
        Ok(()) => After::Refused,
        Err(_) => After::Abort,
    }
}

impl Seen {
    /// Chunks are for 1.1 clients alone.
    pub(super) fn takes_chunks(self) -> bool {
        self.version == Version::Http11
    }
}
