//! One backend's turn at a request: connect, send, read the answer's head, relay it.
//!
//! A connection from the pool may have been closed by the backend just now: whether a request without an answer is sent
//! again, and to whom, is `retry`'s to say.

use std::future::{Future, poll_fn};
use std::io::IoSlice;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use super::buffer::{Buffer, SMALL};
use super::client::Client;
use super::exchange::Observer;
use super::failure::Failure;
use super::forecast::Watch;
use super::lease::Scratch;
use super::relay::{self, Answer};
use super::request::{Request, Seen};
use super::retry::{self, Connection, Ended, Next, Sent};
use super::sabotage;
use super::socket::Got;
use super::tunnel;
use super::upstream::{ConnectFailure, Target, Upstream};
use crate::config::Via;
use crate::http::forward::{self, OutFraming, RequestOut, ResponseOut};
use crate::http::framing::{self, ResponseBody, ResponseFraming};
use crate::http::head::{Name, parse_response};
use crate::metrics::shard::ErrorKind;

/// A connection that was closed before the request came says so when that arrives. One that stands this long after, while the
/// peer's system has all of the request, was none of these: a large body is then let go of.
const KEPT_SENT: Duration = Duration::from_millis(500);

pub(super) struct Attempt<'a> {
    pub(super) target: Target<'a>,
    pub(super) request: &'a mut Request,
    pub(super) seen: Seen,
    /// `None` for the control plane.
    pub(super) observer: Option<Observer<'a>>,
    /// What the backend may have read of the request.
    pub(super) sent: Sent,
}

pub(super) struct Outcome {
    pub(super) status: u16,
    pub(super) keep_alive: bool,
}

pub(super) enum Trouble {
    /// No connection, or none that took a byte. What follows is another backend, or nothing.
    Connect(ErrorKind, String, Next),
    Failure(Failure),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Trouble::Failure(failure)
    }
}

/// How a backend can let an attempt down before its answer begins.
enum Fault {
    /// There is no byte of an answer, and none will come.
    Unanswered(Ended),
    Failure(Failure),
}

impl<F: Into<Failure>> From<F> for Fault {
    fn from(failure: F) -> Self {
        Fault::Failure(failure.into())
    }
}

/// An answer whose head has been read.
struct Begun {
    head_len: usize,
    framing: ResponseFraming,
    /// The request was sent to its end.
    sent_whole: bool,
}

impl Attempt<'_> {
    /// Runs to the end of the answer.
    pub(super) async fn run(&mut self, client: &mut Client, scratch: &mut Scratch) -> Result<Outcome, Trouble> {
        let mut upstream = match Upstream::pooled(&client.worker, self.target) {
            Some(pooled) => pooled,
            None => self.connect(client).await?,
        };
        if let Some(observer) = &mut self.observer {
            observer.connected(&client.worker, scratch, self.request);
        }
        let mut answer = Buffer::new(&client.worker.blocks, SMALL);
        loop {
            let reused = upstream.reused;
            let connection = if reused { Connection::Reused } else { Connection::Fresh };
            if let (true, Some(observer)) = (reused, &self.observer) {
                observer.lane.reuses.add(1);
            }
            match self.dispatch(client, scratch, &mut upstream, &mut answer).await {
                Ok(begun) => {
                    debug_assert_eq!(retry::next(self.sent, connection, Ended::Answered), Next::Relay);
                    return self.finish(client, scratch, upstream, answer, begun).await.map_err(Trouble::Failure);
                }
                Err(Fault::Unanswered(ended)) => match retry::next(self.sent, connection, ended) {
                    Next::SameBackend => upstream = self.connect(client).await?,
                    next => return Err(self.unanswered(ended, next)),
                },
                Err(Fault::Failure(failure)) => {
                    upstream.socket.shutdown();
                    return Err(failure.into());
                }
            }
        }
    }

    async fn connect(&self, client: &mut Client) -> Result<Upstream, Trouble> {
        if let Some(observer) = &self.observer {
            observer.lane.connects.add(1);
        }
        Upstream::connect(client, self.target).await.map_err(|failure| match failure {
            ConnectFailure::Backend(kind, detail) => {
                let ended = if kind == ErrorKind::ConnectTimeout { Ended::Silent } else { Ended::Refused };
                Trouble::Connect(kind, detail, retry::next(self.sent, Connection::Fresh, ended))
            }
            ConnectFailure::NotTheBackend(failure) => Trouble::Failure(failure),
        })
    }

    /// The request got no answer, and is not sent to this backend again.
    fn unanswered(&self, ended: Ended, next: Next) -> Trouble {
        if next == Next::OtherBackend {
            return Trouble::Connect(ErrorKind::Connect, "it took no byte of the request".to_owned(), next);
        }
        let (kind, what) = match ended {
            Ended::Silent => (ErrorKind::FirstByteTimeout, "did not answer in time"),
            Ended::Refused | Ended::Reset | Ended::Closed | Ended::Answered => {
                (ErrorKind::Broken, "closed the connection before it answered")
            }
        };
        Failure::Upstream(kind, self.describe(what)).into()
    }

    fn describe(&self, what: &str) -> std::borrow::Cow<'static, str> {
        match self.target {
            Target::Backend(backend) => format!("the backend {} {what}", backend.name).into(),
            Target::Control => format!("the router's control plane {what}").into(),
        }
    }

    /// Sends the request and reads until the answer's final head is there.
    async fn dispatch(
        &mut self,
        client: &mut Client,
        scratch: &mut Scratch,
        upstream: &mut Upstream,
        answer: &mut Buffer,
    ) -> Result<Begun, Fault> {
        self.write_head(client, scratch);
        let sent_whole = self.send(client, &scratch.out, upstream).await?;
        upstream.socket.due_in(client.worker.shared.config.times.first_byte);
        if sent_whole {
            upstream.socket.expect_silence();
            if !upstream.reused {
                self.release_body();
            }
        }
        let mut first = true;
        loop {
            if !answer.is_empty()
                && let Some(head_len) = parse_response(answer.filled(), &client.worker.limits, &mut scratch.response)?
            {
                let framing = framing::response(&scratch.response, answer.filled(), self.seen.method)?;
                let asked = self.websocket()
                    && tunnel::is_websocket(scratch.response.field_kind(answer.filled(), Name::Upgrade));
                if framing.switching && !asked {
                    return Err(Failure::Upstream(
                        ErrorKind::BadResponse,
                        self.describe("switched protocols without being asked"),
                    )
                    .into());
                }
                if !framing.interim {
                    return Ok(Begun { head_len, framing, sent_whole });
                }
                let paused = upstream.socket.pause_deadline();
                self.interim(client, scratch, answer.filled()).await?;
                upstream.socket.resume_deadline(&paused);
                answer.consume(head_len);
                continue;
            }
            answer.make_room();
            match upstream.socket.read(answer.spare()) {
                Ok(Got::Bytes(n)) => {
                    answer.commit(n);
                    if std::mem::take(&mut first) {
                        if sent_whole {
                            self.release_body();
                        }
                        if let Some(observer) = &mut self.observer {
                            observer.first_byte();
                        }
                    }
                }
                Ok(Got::Wait) => {
                    let waited = match sent_whole && self.request.is_large() {
                        true => {
                            let limited = monoio::time::timeout(KEPT_SENT, upstream.socket.readable());
                            match client.or_gone(limited).await? {
                                Ok(waited) => waited,
                                Err(_) => {
                                    if upstream.socket.is_acknowledged() {
                                        self.release_body();
                                    }
                                    continue;
                                }
                            }
                        }
                        false => client.or_gone(upstream.socket.readable()).await?,
                    };
                    if waited.is_err() {
                        return Err(Fault::Unanswered(Ended::Reset));
                    }
                }
                Ok(Got::End) if upstream.socket.timed_out() => return Err(Fault::Unanswered(Ended::Silent)),
                Ok(Got::End) if first => return Err(Fault::Unanswered(Ended::Closed)),
                Err(_) if first => return Err(Fault::Unanswered(Ended::Reset)),
                Ok(Got::End) | Err(_) => {
                    return Err(Failure::Upstream(
                        ErrorKind::Broken,
                        self.describe("broke off within the head of its answer"),
                    )
                    .into());
                }
            }
        }
    }

    /// The request was sent whole, and may not be sent again.
    fn release_body(&mut self) {
        if self.request.is_large() {
            self.request.release_body();
            self.sent = Sent::Released;
        }
    }

    /// A WebSocket is asked for, and may be had: the control plane has none.
    fn websocket(&self) -> bool {
        self.request.framing.websocket && matches!(self.target, Target::Backend(_))
    }

    /// Writes the head for this backend into `scratch.out`.
    fn write_head(&self, client: &Client, scratch: &mut Scratch) {
        let config = &client.worker.shared.config;
        let head = self.request.head();
        let (authority, base_path, authorization): (&[u8], &[u8], _) = match self.target {
            Target::Control => (b"trieway", b"", None),
            Target::Backend(backend) => {
                (backend.authority.as_bytes(), backend.url.base_path.as_bytes(), client.worker.authorization.as_deref())
            }
        };
        let target = &scratch.request.target.of(head)[self.request.root_len..];
        scratch.out.clear();
        forward::request(
            &mut scratch.out,
            &scratch.request,
            head,
            &RequestOut {
                authority,
                base_path,
                target,
                content_length: self.request.content_length(),
                request_id: &scratch.request_id,
                client_ip: client.address.as_bytes(),
                preserve_host: config.preserve_host && matches!(self.target, Target::Backend(_)),
                authorization,
                upgrade_websocket: self.websocket(),
                max_forwards: self.request.max_forwards,
                via: config.via != Via::Off && matches!(self.target, Target::Backend(_)),
            },
        );
    }

    /// Sends head and body. False: the answer, or an end, came before all was sent.
    async fn send(&mut self, client: &mut Client, head: &[u8], upstream: &mut Upstream) -> Result<bool, Fault> {
        let mut parts = [IoSlice::new(head), IoSlice::new(self.request.body())];
        let mut parts = &mut parts[..];
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            match upstream.socket.write(parts) {
                Ok(Some(n)) => {
                    self.sent = self.sent.max(Sent::Part);
                    IoSlice::advance_slices(&mut parts, n);
                }
                Ok(None) => {
                    upstream.socket.due_in(client.worker.shared.config.times.first_byte);
                    let mut writable = pin!(upstream.socket.writable());
                    let socket = &mut upstream.socket;
                    let early = client.or_gone(poll_fn(|cx| match writable.as_mut().poll(cx) {
                        Poll::Ready(_) => Poll::Ready(false),
                        Poll::Pending => socket.poll_readable(cx).map(|_| true),
                    }));
                    if early.await? {
                        return Ok(false);
                    }
                }
                // What the backend said before it closed may still be there to be read.
                Err(_) => return Ok(false),
            }
        }
        self.sent = self.sent.max(Sent::Whole);
        Ok(true)
    }

    /// Relays an interim answer, to clients that know them. 100 is not relayed: the router has said that itself.
    async fn interim(&self, client: &mut Client, scratch: &mut Scratch, bytes: &[u8]) -> Result<(), Fault> {
        if scratch.response.status == 100 || !self.seen.takes_chunks() {
            return Ok(());
        }
        let how = ResponseOut {
            framing: OutFraming::None,
            keep_alive: true,
            client_version: self.seen.version,
            request_id: &scratch.request_id,
            date: b"",
            via: false,
        };
        scratch.out.clear();
        forward::response(&mut scratch.out, &scratch.response, bytes, &how);
        Ok(client.send(&mut [IoSlice::new(&scratch.out)]).await?)
    }

    /// Relays the answer whose head has been read.
    async fn finish(
        &mut self,
        client: &mut Client,
        scratch: &mut Scratch,
        mut upstream: Upstream,
        mut bytes: Buffer,
        begun: Begun,
    ) -> Result<Outcome, Failure> {
        upstream.socket.no_deadline();
        let framing = match begun.framing.body {
            ResponseBody::None => OutFraming::None,
            ResponseBody::Fixed(length) => OutFraming::Fixed(length),
            ResponseBody::Chunked | ResponseBody::UntilClose if self.seen.takes_chunks() => OutFraming::Chunked,
            ResponseBody::Chunked | ResponseBody::UntilClose => OutFraming::Close,
        };
        let keep_alive =
            self.seen.keep_alive && begun.sent_whole && framing != OutFraming::Close && !client.worker.draining();
        let how = ResponseOut {
            framing,
            keep_alive,
            client_version: self.seen.version,
            request_id: &scratch.request_id,
            date: &client.worker.date(),
            via: client.worker.shared.config.via == Via::Both && matches!(self.target, Target::Backend(_)),
        };
        scratch.out.clear();
        forward::response(&mut scratch.out, &scratch.response, bytes.filled(), &how);
        let streamed = self.is_streamed(scratch, bytes.filled());
        bytes.consume(begun.head_len);
        if begun.framing.switching {
            return self.switch(client, &scratch.out, upstream, bytes).await;
        }
        let answer = Answer {
            head: &scratch.out,
            body: begun.framing.body,
            chunked: framing == OutFraming::Chunked,
            lane: self.observer.as_ref().map(|observer| observer.lane),
        };
        sabotage::strike("answering", &scratch.request, self.request.head());
        scratch.tail.clear();
        let succeeds = (200..300).contains(&scratch.response.status);
        let running = self.observer.as_mut().and_then(|observer| observer.running.as_mut()).filter(|_| succeeds);
        let mut watch = running.map(|running| Watch { running, tail: &mut scratch.tail, streamed });
        let relayed = relay::relay(client, &mut upstream.socket, &mut bytes, &answer, watch.as_mut()).await;
        if let (Ok(_), Some(watch)) = (&relayed, &mut watch) {
            watch.ended(&client.worker, &scratch.chunks);
        }
        match relayed {
            Ok(true) if begun.sent_whole && begun.framing.keep_alive => upstream.release(&client.worker, self.target),
            _ => upstream.socket.shutdown(),
        }
        if framing == OutFraming::Close && matches!(relayed, Err(Failure::Broken(_))) {
            client.socket.reset_on_close();
        }
        relayed.map(|_| Outcome { status: scratch.response.status, keep_alive })
    }

    /// Whether the answer comes as it is generated, so that its first byte is the first token: by its type, and by what was
    /// asked for where that says nothing. Its framing does not tell: an answer that is whole may come in chunks.
    fn is_streamed(&self, scratch: &Scratch, head: &[u8]) -> bool {
        let content_type = scratch.response.field(head, "content-type").unwrap_or_default();
        let is = |name: &[u8]| content_type.get(..name.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(name));
        is(b"text/event-stream") || scratch.scan.stream(self.request.body()) && !is(b"application/json")
    }

    /// Passes the 101 on, and then whatever either side sends.
    async fn switch(
        &self,
        client: &mut Client,
        head: &[u8],
        mut upstream: Upstream,
        early: Buffer,
    ) -> Result<Outcome, Failure> {
        client.send(&mut [IoSlice::new(head)]).await?;
        let carried = tunnel::run(client, &mut upstream.socket, early).await;
        upstream.socket.shutdown();
        let to_client_bytes = carried?;
        if let Some(observer) = &self.observer {
            observer.lane.response_bytes.add(to_client_bytes);
        }
        Ok(Outcome { status: 101, keep_alive: false })
    }
}
