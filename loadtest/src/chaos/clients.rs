//! Clients of every manner. Those that behave insist: a request is sent again until it has its own answer.

use std::rc::Rc;
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};

use super::request::{Request, Verdict, verdict};
use super::wire::{Ended, Pace, Wire};
use super::{Random, Shared, hostile};

/// One attempt never takes longer: the limits of the router's own flags, and time for a busy machine.
const BOUND: Duration = Duration::from_secs(20);
/// Nor do all attempts of a request together.
const SERVED_WITHIN: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    Well,
    SlowReader,
    SlowWriter,
    Pipelines,
    Aborts,
    HalfCloses,
    Hostile,
}

impl Manner {
    /// Four of ten behave well; the others are one of six.
    pub(super) fn of(number: usize) -> Self {
        match number % 10 {
            0..4 => Manner::Well,
            4 => Manner::SlowReader,
            5 => Manner::SlowWriter,
            6 => Manner::Pipelines,
            7 => Manner::Aborts,
            8 => Manner::HalfCloses,
            _ => Manner::Hostile,
        }
    }
}

pub(super) struct Client {
    shared: Rc<Shared>,
    pub(super) name: String,
    pub(super) random: Random,
    wire: Option<Wire>,
    sent: u64,
}

/// Talks to the router until the time is over.
pub(super) async fn run(shared: Rc<Shared>, number: usize, seed: u64) {
    let manner = Manner::of(number);
    let random = Random(seed.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ number as u64);
    let mut client = Client { shared, name: format!("c{number}"), random, wire: None, sent: 0 };
    sleep(Duration::from_millis(client.random.below(500) as u64)).await;
    while !client.shared.over() {
        match manner {
            Manner::Well | Manner::SlowReader | Manner::SlowWriter => client.insist(manner).await,
            Manner::Pipelines => client.pipeline().await,
            Manner::Aborts => client.abort().await,
            Manner::HalfCloses => client.half_close().await,
            Manner::Hostile => client.attack().await,
        }
        let pause = Duration::from_millis(20 + client.random.below(180) as u64);
        sleep(pause).await;
    }
}

impl Client {
    fn next_request(&mut self, long: bool) -> Request {
        self.sent += 1;
        Request::new(&mut self.random, format!("{}-{}", self.name, self.sent), long)
    }

    /// The connection that is kept, or another one; none: the router does not take it, which is wrong.
    async fn connected(&mut self) -> Option<Wire> {
        if let Some(wire) = self.wire.take() {
            return Some(wire);
        }
        match timeout(BOUND, Wire::connect(self.shared.address)).await {
            Ok(Ok(wire)) => Some(wire),
            other => {
                self.shared.violated(format!("{}: no connection: {:?}", self.name, other.map(|r| r.map(drop))));
                None
            }
        }
    }

    /// A request until it is answered right.
    async fn insist(&mut self, manner: Manner) {
        let request = self.next_request(manner == Manner::SlowReader);
        let began = Instant::now();
        for attempt in 0_u32.. {
            let one = Instant::now();
            let tried = timeout(BOUND, self.attempt(&request, manner)).await;
            self.shared.tally.borrow_mut().waited(one.elapsed());
            match tried {
                Ok(true) => {
                    self.shared.tally.borrow_mut().right += 1;
                    return;
                }
                Ok(false) => {}
                Err(_) => {
                    self.wire = None;
                    self.shared.violated(format!("{}: neither an answer nor an error in {BOUND:?}", request.tag));
                }
            }
            if began.elapsed() > SERVED_WITHIN {
                self.shared.violated(format!("{}: not served in {} tries", request.tag, attempt + 1));
            }
            if self.shared.over() && began.elapsed() > BOUND {
                return;
            }
            sleep(Duration::from_millis(20 << attempt.min(5))).await;
        }
    }

    /// True: answered right.
    async fn attempt(&mut self, request: &Request, manner: Manner) -> bool {
        let Some(mut wire) = self.connected().await else { return false };
        let bytes = request.bytes();
        let slowly = manner == Manner::SlowWriter;
        let size = if slowly { bytes.len().div_ceil(8) } else { bytes.len() };
        for piece in bytes.chunks(size.max(1)) {
            if !wire.send(piece).await {
                break;
            }
            if slowly {
                sleep(Duration::from_millis(30)).await;
            }
        }
        let pace = match manner {
            Manner::SlowReader => Pace { bytes: 2_048, pause: Duration::from_millis(8) },
            _ => Pace::FAST,
        };
        self.receive(wire, request, pace).await
    }

    /// Reads and judges one answer; keeps the connection if it may go on.
    async fn receive(&mut self, mut wire: Wire, request: &Request, pace: Pace) -> bool {
        let reused = wire.answers > 0;
        match wire.answer(pace).await {
            Ok(answer) => {
                let verdict = verdict(&answer, request);
                self.shared.judge(&verdict);
                if answer.keeps() && self.random.below(20) > 0 {
                    self.wire = Some(wire);
                }
                verdict == Verdict::Right
            }
            // Who closes an idle connection may cross with a request.
            Err(Ended::Silently) if reused => {
                self.shared.tally.borrow_mut().crossed += 1;
                false
            }
            Err(ended) => {
                self.shared.violated(format!("{}: {ended}", request.tag));
                false
            }
        }
    }

    /// A few requests at once; the answers come in their order, each its own, until one says that it is the last.
    async fn pipeline(&mut self) {
        let requests: Vec<Request> = (0..2 + self.random.below(4)).map(|_| self.next_request(false)).collect();
        let Some(mut wire) = self.connected().await else { return };
        let bytes: Vec<u8> = requests.iter().flat_map(Request::bytes).collect();
        let mut reused = wire.answers > 0;
        wire.send(&bytes).await;
        for request in &requests {
            match timeout(BOUND, wire.answer(Pace::FAST)).await {
                Ok(Ok(answer)) => {
                    let verdict = verdict(&answer, request);
                    self.shared.judge(&verdict);
                    self.shared.tally.borrow_mut().right += u64::from(verdict == Verdict::Right);
                    if !answer.keeps() {
                        return;
                    }
                    reused = false;
                }
                Ok(Err(Ended::Silently)) if reused => {
                    self.shared.tally.borrow_mut().crossed += 1;
                    return;
                }
                Ok(Err(ended)) => {
                    self.shared.violated(format!("{}, pipelined: {ended}", request.tag));
                    return;
                }
                Err(_) => {
                    self.shared
                        .violated(format!("{}, pipelined: neither an answer nor an error in {BOUND:?}", request.tag));
                    return;
                }
            }
        }
        self.wire = Some(wire);
    }

    /// Leaves anywhere: within the request, before the answer or within it.
    async fn abort(&mut self) {
        let request = self.next_request(self.random.0.is_multiple_of(2));
        let Some(mut wire) = self.connected().await else { return };
        let bytes = request.bytes();
        let until = if self.random.below(3) == 0 { self.random.below(bytes.len()) } else { bytes.len() };
        wire.send(&bytes[..until]).await;
        let moment = Duration::from_millis(self.random.below(60) as u64);
        let _ = timeout(moment, wire.answer(Pace { bytes: 512, pause: Duration::from_millis(1) })).await;
        if self.random.below(2) == 0 {
            let _ = SockRef::from(&wire.stream).set_linger(Some(Duration::ZERO));
        }
        self.shared.tally.borrow_mut().aborted += 1;
    }

    /// Sends no more once its request is out. It may be told so by an end, and never by another's answer.
    async fn half_close(&mut self) {
        let request = self.next_request(false);
        let Some(mut wire) = self.connected().await else { return };
        wire.send(&request.bytes()).await;
        let _ = wire.stream.shutdown().await;
        match timeout(BOUND, wire.answer(Pace::FAST)).await {
            Ok(Ok(answer)) => {
                let verdict = verdict(&answer, &request);
                self.shared.judge(&verdict);
            }
            Ok(Err(Ended::Silently)) => self.shared.tally.borrow_mut().dismissed += 1,
            Ok(Err(ended)) => self.shared.violated(format!("{}, half-closed: {ended}", request.tag)),
            Err(_) => {
                self.shared
                    .violated(format!("{}, half-closed: neither an answer nor an end in {BOUND:?}", request.tag));
            }
        }
    }

    /// Bytes that are nearly right, or not at all. What comes back names nobody else.
    async fn attack(&mut self) {
        let bytes = hostile::bytes(&mut self.random, &self.name);
        let Some(mut wire) = self.connected().await else { return };
        wire.send(&bytes).await;
        if self.random.below(2) == 0 {
            let _ = wire.stream.shutdown().await;
        }
        let came = wire.rest_within(Duration::from_millis(300), 1 << 20).await;
        let text = String::from_utf8_lossy(&came).to_ascii_lowercase();
        // What was changed around its own tag may have become part of it.
        let own = format!("{}-", self.name);
        let mut tags = text.split("x-tag: ").skip(1).map(|rest| rest.lines().next().unwrap_or_default());
        if let Some(named) = tags.find(|tag| !tag.contains(&own)) {
            self.shared.violated(format!("{} got the answer of {named}", self.name));
        }
        self.shared.tally.borrow_mut().attacks += 1;
    }
}
