//! From a whole request to where it goes: path, key, candidates, choice. Synchronous; nothing here waits but the scan of a
//! long body, which gives way.

use std::cell::Cell;
use std::rc::Rc;

use xxhash_rust::xxh3::xxh3_64;

use super::failure::Refusal;
use super::forecast::{Forecast, expect, holds, load_bytes};
use super::lease::Scratch;
use super::paths::{Destination, destination};
use super::pending::must_yield;
use super::worker::{View, Worker};
use crate::config::Policy;
use crate::fleet::load::{Load, NOBODY};
use crate::fleet::outlier::Verdict;
use crate::fleet::snapshot::{Member, ModelNumber, Snapshot};
use crate::http::head::{Method, RequestHead};
use crate::prompt::{self, Endpoint, NotObject, Progress};
use crate::route::ttft::Expected;
use crate::route::{self, Candidate, Decision, Reason};
use crate::route::{penalty, slow_start};
use crate::trie::Holder;

/// Seconds after which a client may try again when no backend is usable: a probe period.
const RETRY_AFTER_S: u32 = 5;

/// For so long a request goes by what the trie has told it.
const LOOKUP_LASTS_US: u64 = 1_000_000;

/// A request that is to be sent to a backend.
pub(super) struct Plan {
    pub(super) snapshot: Rc<View>,
    /// `None`: it names none, and any usable backend will do.
    pub(super) model: Option<ModelNumber>,
    pub(super) session: Option<u64>,
    pub(super) policy: Policy,
    /// When the trie was asked, on the clock of all workers; its answer is in the scratch.
    looked_up_us: Cell<Option<u64>>,
}

/// What a look at the backends came to.
pub(super) enum Chosen {
    Backend(Choice),
    /// One should have it, but not yet; the seconds that the prompt takes by itself.
    Held(f64),
    /// Some are usable, and all of those are at their limit, or others have waited longer for them.
    AllBusy,
    Nobody,
}

/// Whether a usable backend can have a request now.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Ready,
    Unreachable,
    /// It is at its limit, or others have waited longer for it.
    Busy,
    /// Its requests failed, one after another.
    Ejected,
    /// Its last requests failed: others that hold as much of the prompt go first.
    Penalized,
}

/// What the limit a backend says to a request.
struct Gate {
    /// 0: none.
    limit: u32,
    /// In the order of those that wait; of one that has just come, [`NOBODY`]'s.
    ticket: u64,
}

impl Gate {
    fn standing(&self, load: &Load) -> Standing {
        let full = |load: &Load| load.in_flight() >= self.limit || must_yield(load, self.ticket);
        match load.is_unreachable() {
            true => Standing::Unreachable,
            false if self.limit > 0 && full(load) => Standing::Busy,
            false => Standing::Ready,
        }
    }
}

/// One chosen backend.
#[derive(Clone, Copy)]
pub(super) struct Choice {
    pub(super) member: Member,
    pub(super) reason: Reason,
    /// Bytes of the prompt that the backend probably holds.
    pub(super) matched_bytes: u64,
    /// Under `ttft`.
    pub(super) forecast: Option<Forecast>,
}

/// The target without the configured root path, and where it leads.
pub(super) fn place(worker: &Worker, head: &RequestHead, bytes: &[u8]) -> (usize, Destination) {
    let path = head.path(bytes);
    let root = worker.shared.config.root_path.as_bytes();
    let below = path.strip_prefix(root).filter(|rest| rest.is_empty() || rest[0] == b'/');
    let (cut, path) = below.map_or((0, path), |rest| (root.len(), rest));
    let get = matches!(head.method, Method::Get | Method::Head);
    (cut, destination(get, head.method == Method::Post, path))
}

/// A body is read in steps of so many bytes; each counts as moving that many. The worst step takes a third of a millisecond.
const STEP_BYTES: usize = 64 << 10;
const STEP_COSTS: usize = 512 << 10;

/// Reads the body of a request for `destination` into `scratch`. Between the steps of a long one others have their turn.
pub(super) async fn scan(
    worker: &Worker,
    scratch: &mut Scratch,
    body: &[u8],
    destination: Destination,
) -> Result<(), Refusal> {
    let Destination::Routed(_) = destination else { return Ok(()) };
    let refuse =
        |error: NotObject| Refusal::invalid(400, "invalid_json", format!("the body is not a JSON object: {error}"));
    worker.keeper.before_body(&worker.shared.trie, body.len());
    if body.len() <= STEP_BYTES {
        return scratch.scan.read(body).map_err(refuse);
    }
    scratch.scan.begin();
    while scratch.scan.step(body, STEP_BYTES).map_err(refuse)? == Progress::More {
        worker.coop.worked(STEP_COSTS).await;
    }
    // What a step steps over in one go, and the key.
    worker.coop.worked(body.len()).await;
    Ok(())
}

impl Plan {
    /// Computes the key into `scratch`, which has read the body.
    pub(super) fn new(
        worker: &Worker,
        scratch: &mut Scratch,
        head: &[u8],
        body: &[u8],
        destination: Destination,
    ) -> Result<Self, Refusal> {
        let snapshot = worker.snapshot();
        let routing = &snapshot.rules.routing;
        scratch.chunks.start(0);
        let Destination::Routed(endpoint) = destination else {
            return Ok(Plan {
                snapshot,
                model: None,
                session: None,
                policy: Policy::Leastload,
                looked_up_us: Cell::default(),
            });
        };
        let model = model(&snapshot, scratch, body)?;
        let session = routing.session_key.as_deref().and_then(|key| session(key, scratch, head, body)).map(xxh3_64);
        if endpoint != Endpoint::Other {
            let name = snapshot.served(Some(model)).name.as_bytes();
            let process = worker.shared.hash_keys().namespace();
            let seed = prompt::namespace(process, name, &scratch.scan, body, endpoint);
            scratch.chunks.start(seed);
            prompt::key(endpoint, &scratch.scan, body, &mut scratch.chunks);
        }
        let policy = routing.policy;
        Ok(Plan { snapshot, model: Some(model), session, policy, looked_up_us: Cell::default() })
    }

    /// Chooses among the usable backends that are not in `tried` and below their limit. `ticket`: the request waits, in this
    /// order. `held_s`: for so long it has been held, and may be held on.
    ///
    /// What the trie has told is kept while it waits: who looks often pays for it once. Only before it goes after a long wait
    /// the trie is asked once more.
    pub(super) fn choose(
        &self,
        worker: &Worker,
        scratch: &mut Scratch,
        tried: &[u16],
        ticket: Option<u64>,
        held_s: Option<f64>,
    ) -> Chosen {
        let before = self.looked_up_us.get();
        let busy = self.gather(worker, scratch, tried, ticket);
        worker.shard().lookups.add(u64::from(self.looked_up_us.get() != before));
        match self.decide(self.policy, worker, scratch, || worker.shared.fleet.next_turn()) {
            Some((Decision { index, reason }, forecast)) => {
                let holds = |(held_s, chosen)| holds(worker, scratch, index, chosen, held_s);
                if let Some(cold_s) = held_s.zip(forecast.as_ref()).and_then(holds) {
                    return Chosen::Held(cold_s);
                }
                if self.forgets_lookup(worker) {
                    return self.choose(worker, scratch, tried, ticket, held_s);
                }
                self.shadow(worker, scratch, index);
                Chosen::Backend(Choice {
                    member: scratch.members[index],
                    reason,
                    matched_bytes: scratch.candidates[index].matched_bytes,
                    forecast,
                })
            }
            None if busy => Chosen::AllBusy,
            None => Chosen::Nobody,
        }
    }

    /// What `choose` would choose for a request that has just come, without a trace: no turn is taken and nothing counted.
    pub(super) fn preview(&self, worker: &Worker, scratch: &mut Scratch) -> Option<(Decision, Option<Forecast>)> {
        self.gather(worker, scratch, &[], None);
        self.decide(self.policy, worker, scratch, || worker.shared.fleet.coming_turn())
    }

    /// Looks the key up and fills the candidates. Whether some backend was left out because it is at its limit, or because
    /// others have waited longer for it.
    fn gather(&self, worker: &Worker, scratch: &mut Scratch, tried: &[u16], ticket: Option<u64>) -> bool {
        let shared = worker.shared;
        let by_prefix = self.asks_prefixes() && !scratch.chunks.key().is_empty();
        if by_prefix && self.looked_up_us.get().is_none() {
            worker.keeper.keep(&shared.trie);
            shared.trie.lookup(scratch.chunks.key(), &mut scratch.matches);
            self.looked_up_us.set(Some(shared.micros()));
        } else if !by_prefix {
            // It may have been looked up by the rules before these.
            scratch.matches.clear();
        }
        let (mut busy, ejected) = self.fill(worker, scratch, tried, ticket, by_prefix, false);
        // Nobody else is left: better one that fails than none.
        if ejected && !busy && scratch.members.is_empty() {
            (busy, _) = self.fill(worker, scratch, tried, ticket, by_prefix, true);
        }
        if self.minds_penalties() {
            penalty::avoid(&mut scratch.candidates, &mut scratch.members);
        }
        let draw = self.session.unwrap_or_else(|| worker.random());
        slow_start::weigh(
            &mut scratch.candidates,
            &mut scratch.members,
            self.snapshot.rules.routing.prefix_min_match_bytes,
            draw,
        );
        busy
    }

    /// Fills the candidates. Whether some were left out because they are busy, and whether because they are ejected.
    fn fill(
        &self,
        worker: &Worker,
        scratch: &mut Scratch,
        tried: &[u16],
        ticket: Option<u64>,
        by_prefix: bool,
        with_ejected: bool,
    ) -> (bool, bool) {
        let shared = worker.shared;
        let gate = self.gate(worker, ticket);
        let (mut busy, mut ejected) = (false, false);
        scratch.members.clear();
        scratch.candidates.clear();
        for &member in &self.snapshot.served(self.model).usable {
            let backend = self.snapshot.backend(member);
            let load = shared.fleet.load(backend.slot);
            match gate.standing(load) {
                Standing::Ready if !tried.contains(&backend.slot) => {}
                Standing::Busy => {
                    busy |= !tried.contains(&backend.slot);
                    continue;
                }
                _ => continue,
            }
            let verdict = verdict(worker, backend.slot);
            if verdict == Verdict::Ejected && !with_ejected {
                ejected = true;
                continue;
            }
            let chunks = if by_prefix { scratch.matches.chunks(backend.slot) } else { 0 };
            scratch.members.push(member);
            scratch.candidates.push(Candidate {
                identity: backend.identity,
                in_window: load.in_window(backend.cold_permille),
                in_flight: load.in_flight(),
                in_flight_bytes: load.in_flight_bytes(),
                matched_bytes: u64::from(chunks) * shared.config.routing.prefix_chunk_bytes as u64,
                cold_permille: backend.cold_permille,
                penalized: verdict == Verdict::Penalized,
            });
        }
        (busy, ejected)
    }

    /// Whether the policy goes by load, so that a backend that fails fast would draw what comes.
    fn minds_penalties(&self) -> bool {
        matches!(self.policy, Policy::Prefixaware | Policy::Leastload | Policy::Ttft)
    }

    /// Whether another usable backend that serves the model is not ejected.
    pub(super) fn has_another(&self, worker: &Worker, slot: u16) -> bool {
        let fleet = &worker.shared.fleet;
        let others = self.snapshot.served(self.model).usable.iter().map(|&member| self.snapshot.backend(member).slot);
        others
            .filter(|&other| other != slot)
            .any(|other| !fleet.load(other).is_unreachable() && !fleet.outlier(other).is_ejected())
    }

    /// True when what the trie has told is too old to go by; then it is asked anew.
    fn forgets_lookup(&self, worker: &Worker) -> bool {
        let is_old = |then: u64| worker.shared.micros().saturating_sub(then) > LOOKUP_LASTS_US;
        let is_old = self.looked_up_us.get().is_some_and(is_old);
        if is_old {
            self.looked_up_us.set(None);
        }
        is_old
    }

    /// How a backend that serves the model stands to a request that has just come.
    pub(super) fn standing(&self, worker: &Worker, member: Member) -> Standing {
        let slot = self.snapshot.backend(member).slot;
        match (self.gate(worker, None).standing(worker.shared.fleet.load(slot)), verdict(worker, slot)) {
            (Standing::Ready, Verdict::Ejected) => Standing::Ejected,
            (Standing::Ready, Verdict::Penalized) if self.minds_penalties() => Standing::Penalized,
            (standing, _) => standing,
        }
    }

    fn gate(&self, worker: &Worker, ticket: Option<u64>) -> Gate {
        Gate { limit: worker.shared.config.overload.inflight_per_backend, ticket: ticket.unwrap_or(NOBODY) }
    }

    /// Whether the policy, or its shadow, looks at the trie.
    pub(super) fn asks_prefixes(&self) -> bool {
        self.policy.asks_prefixes() || self.snapshot.rules.routing.shadow.is_some_and(Policy::asks_prefixes)
    }

    /// The slots of the backends that could serve the request, without those in `tried`; sorted.
    pub(super) fn slots(&self, tried: &[u16]) -> Box<[u16]> {
        let slots = self.snapshot.served(self.model).usable.iter().map(|&member| self.snapshot.backend(member).slot);
        let mut slots: Vec<u16> = slots.filter(|slot| !tried.contains(slot)).collect();
        slots.sort_unstable();
        slots.into()
    }

    /// What a request with a body of so many bytes counts as load.
    pub(super) fn load_bytes(&self, worker: &Worker, scratch: &Scratch, body_bytes: u64) -> u64 {
        let slots = self.snapshot.served(self.model).usable.iter().map(|&member| self.snapshot.backend(member).slot);
        load_bytes(worker, &scratch.chunks, body_bytes, slots)
    }

    /// Takes the present snapshot, after a wait. False: the model is not served any more.
    pub(super) fn renew(&mut self, worker: &Worker) -> bool {
        let present = worker.snapshot();
        if Rc::ptr_eq(&present, &self.snapshot) {
            return true;
        }
        if let Some(model) = &mut self.model {
            let name = self.snapshot.served(Some(*model)).name.as_bytes();
            let Some(now) = present.model(name) else { return false };
            *model = now;
        }
        self.snapshot = present;
        true
    }

    /// `turn` gives the number of a rotation over all workers.
    fn decide(
        &self,
        policy: Policy,
        worker: &Worker,
        scratch: &mut Scratch,
        turn: impl Fn() -> u64,
    ) -> Option<(Decision, Option<Forecast>)> {
        let candidates = &scratch.candidates;
        let decision = match policy {
            Policy::Prefixaware => {
                route::prefixaware(candidates, self.snapshot.rules.routing.prefix_min_match_bytes, worker.random())
            }
            Policy::Roundrobin => route::roundrobin(candidates, turn()),
            Policy::Session => route::session(candidates, self.session, worker.random()),
            Policy::Leastload => route::leastload(candidates, worker.random()),
            Policy::Ttft => {
                let (Expected { index, reason, .. }, forecast) = expect(worker, scratch, &self.snapshot)?;
                return Some((Decision { index, reason }, Some(forecast)));
            }
        };
        decision.map(|decision| (decision, None))
    }

    /// Counts what the shadow policy would have chosen in place of `index`. Takes no turn that the real one would miss.
    fn shadow(&self, worker: &Worker, scratch: &mut Scratch, index: usize) {
        let Some(policy) = self.snapshot.rules.routing.shadow.filter(|_| self.model.is_some()) else { return };
        let Some((other, _)) = self.decide(policy, worker, scratch, || worker.random()) else { return };
        let counts = &worker.shard().shadow;
        counts.requests.add(1);
        counts.agreed.add(u64::from(other.index == index));
        counts.prompt_bytes.add(scratch.chunks.bytes());
        counts.matched_bytes.add(scratch.candidates[index].matched_bytes);
        counts.shadow_matched_bytes.add(scratch.candidates[other.index].matched_bytes);
    }

    /// Marks the prompt as held by the backend that gets it, on the prefix path and on the fallback alike. Called once
    /// there is a connection: a backend that cannot be reached must not be believed to hold anything.
    /// Gives what the trie's clock of the backend said.
    pub(super) fn seed(&self, worker: &Worker, scratch: &Scratch, holder: Holder) -> Option<u64> {
        let seeds = self.asks_prefixes() && self.model.is_some() && !scratch.chunks.key().is_empty();
        seeds.then(|| worker.shared.trie.insert_found(scratch.chunks.key(), holder, &scratch.matches))
    }

    /// The key and the name of the request's session, if it has one.
    pub(super) fn session<'a>(
        &'a self,
        scratch: &'a mut Scratch,
        head: &'a [u8],
        body: &'a [u8],
    ) -> Option<(&'a str, &'a [u8])> {
        self.session?;
        let key = self.snapshot.rules.routing.session_key.as_deref()?;
        session(key, scratch, head, body).map(|name| (key, name))
    }

    /// What a client is told when no backend is left.
    pub(super) fn nobody(&self) -> Refusal {
        let served = self.snapshot.served(self.model);
        let message = if self.model.is_some() {
            format!("no backend that serves the model '{}' is usable now; try again", served.name)
        } else {
            "no backend is usable now; try again".to_owned()
        };
        Refusal::unavailable("no_backend", message, RETRY_AFTER_S)
    }
}

fn verdict(worker: &Worker, slot: u16) -> Verdict {
    worker.shared.fleet.outlier(slot).verdict(|| worker.shared.micros() / 1000)
}

/// The model that the body asks for.
fn model(snapshot: &Snapshot, scratch: &mut Scratch, body: &[u8]) -> Result<ModelNumber, Refusal> {
    let Some(name) = scratch.scan.model(body, &mut scratch.text) else {
        return snapshot.sole_model().ok_or_else(|| match snapshot.backends.iter().all(|b| b.models.is_empty()) {
            true => Refusal::unavailable("no_backend", "no backend has answered yet; try again", RETRY_AFTER_S),
            false => Refusal::invalid(
                400,
                "model_required",
                "the body names no model: give the key 'model' one of the names at /v1/models",
            ),
        });
    };
    snapshot.model(name).ok_or_else(|| {
        let name: String = String::from_utf8_lossy(name).chars().take(200).collect();
        if snapshot.learning {
            Refusal::unavailable("no_backend", format!("no backend that has answered so far serves the model '{name}'; some have not answered yet; try again"), RETRY_AFTER_S)
        } else {
            Refusal { kind: "not_found_error", ..Refusal::invalid(404, "model_not_found", format!("the model '{name}' does not exist; see /v1/models")) }
        }
    })
}

/// The session's name: the header's value, or else the body's top-level key. The body must have been scanned.
fn session<'a>(key: &str, scratch: &'a mut Scratch, head: &'a [u8], body: &'a [u8]) -> Option<&'a [u8]> {
    let value = match scratch.request.field(head, key) {
        Some(value) => value,
        None => scratch.scan.string_field(key, body, &mut scratch.text)?,
    };
    (!value.is_empty()).then_some(value)
}
