//! The client's side of a connection: its socket, what has been read of it and not yet used, and the watch for its going
//! away.

use std::future::{Future, poll_fn};
use std::io::IoSlice;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::buffer::{Buffer, SMALL};
use super::failure::{Failure, Refusal};
use super::socket::{Got, Socket};
use super::worker::Worker;
use crate::http::head::RequestHead;
use crate::http::head::parse_request;
use crate::metrics::shard::Rejected;

/// A client that is refused may go on sending for this long, so that it gets to read why.
pub(super) const LINGER_REFUSED: Duration = Duration::from_secs(10);

/// The same for one whose last answer is complete, and who may not know yet that nothing more is read.
pub(super) const LINGER_ANSWERED: Duration = Duration::from_secs(2);

/// What is read at most beyond what the present request is known to need.
pub(super) const READ_AHEAD: usize = SMALL;

/// All large buffers are in use.
pub(super) fn buffers_full() -> Refusal {
    let message = "the bodies of other requests take all the memory that they may (--max-buffered-bytes); try again";
    Refusal::unavailable("too_many_buffered_bytes", message, 1)
}

pub(super) struct Client {
    pub(super) worker: Rc<Worker>,
    pub(super) socket: Socket,
    /// Bytes read and not used: the request that runs, and what was pipelined behind it. `None` while idle.
    pub(super) input: Option<Buffer>,
    /// The peer's address as text; empty for a unix socket.
    pub(super) address: String,
    /// It has closed its sending side, and that is allowed.
    half_closed: bool,
    /// Reading ahead has stopped: the buffer has no more room.
    full: bool,
}

impl Client {
    pub(super) fn new(worker: Rc<Worker>, socket: Socket, address: String) -> Self {
        Client { worker, socket, input: None, address, half_closed: false, full: false }
    }

    pub(super) fn input(&mut self) -> &mut Buffer {
        self.input.get_or_insert_with(|| Buffer::new(&self.worker.blocks, SMALL))
    }

    /// Takes the first `length` bytes of the input; what is pipelined behind them stays. The shorter of the two is copied: a
    /// request costs what it is long, however much stands behind it.
    pub(super) fn split_input(&mut self, length: usize) -> Buffer {
        let mut taken = self.input.take().unwrap_or_else(|| Buffer::new(&self.worker.blocks, SMALL));
        if taken.len() > length {
            self.input = Some(taken.split_off(length));
        }
        taken
    }

    /// Waits for the first byte of a request, holding no buffer. False: there will be none.
    pub(super) async fn wait_for_request(&mut self, limit: Duration) -> bool {
        self.full = false;
        if self.input.as_ref().is_some_and(|input| !input.is_empty()) {
            return true;
        }
        self.input = None;
        if self.half_closed {
            return false;
        }
        self.socket.idle_for(limit);
        self.socket.readable().await.is_ok() && !self.socket.timed_out()
    }

    /// Reads until a whole head is there and gives its length. `None`: the connection ended before a request began.
    pub(super) async fn read_head(&mut self, head: &mut RequestHead) -> Result<Option<usize>, Failure> {
        self.socket.read_due_in(self.worker.shared.config.times.client_head);
        let limits = self.worker.limits;
        loop {
            let input = self.input();
            if !input.is_empty()
                && let Some(length) = parse_request(input.filled(), &limits, head)?
            {
                return Ok(Some(length));
            }
            if !self.read_more("head", READ_AHEAD, None).await? {
                return if self.input().is_empty() { Ok(None) } else { Err(Failure::ClientGone) };
            }
        }
    }

    /// Waits for more bytes and takes `most` of them at most; `whole` is what there will be in the end, if that is known. False:
    /// there are no more.
    pub(super) async fn read_more(&mut self, what: &str, most: usize, whole: Option<usize>) -> Result<bool, Failure> {
        if self.half_closed {
            return Ok(false);
        }
        loop {
            let input = self.input.get_or_insert_with(|| Buffer::new(&self.worker.blocks, SMALL));
            let before = input.capacity();
            let has_room = input.try_make_room(whole);
            if input.capacity() > before {
                self.worker.coop.spend(input.len());
            }
            if !has_room {
                self.worker.shard().rejected[Rejected::BufferedBytes as usize].add(1);
                return Err(buffers_full().into());
            }
            let room = input.spare();
            let room_len = room.len().min(most);
            match self.socket.read(&mut room[..room_len]) {
                Ok(Got::Bytes(n)) => {
                    input.commit(n);
                    return Ok(true);
                }
                Ok(Got::End) if self.socket.timed_out() => {
                    return if self.input().is_empty() {
                        Ok(false)
                    } else {
                        Err(Failure::Refused(Refusal::timeout(what)))
                    };
                }
                Ok(Got::End) => return Ok(false),
                Ok(Got::Wait) => self.socket.readable().await.map_err(|_| Failure::ClientGone)?,
                Err(_) => return Err(Failure::ClientGone),
            }
        }
    }

    /// Looks after the client while its request runs. Ready with a failure once it is gone; pipelined bytes are read ahead
    /// as far as there is room.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        while !self.full && !self.half_closed {
            if self.socket.poll_readable(cx).is_pending() {
                return Poll::Pending;
            }
            let input = self.input.get_or_insert_with(|| Buffer::new(&self.worker.blocks, SMALL));
            let most = READ_AHEAD.saturating_sub(input.len());
            if most == 0 || !input.has_room() {
                self.full = true;
                return Poll::Pending;
            }
            let room = input.spare();
            let room_len = room.len().min(most);
            match self.socket.read(&mut room[..room_len]) {
                Ok(Got::Bytes(n)) => input.commit(n),
                Ok(Got::Wait) => {}
                Ok(Got::End) if self.worker.shared.config.allow_half_close && !self.socket.timed_out() => {
                    self.half_closed = true;
                }
                Ok(Got::End) | Err(_) => return Poll::Ready(Failure::ClientGone),
            }
        }
        Poll::Pending
    }

    /// Waits for `wait`, unless the client goes away before.
    pub(super) async fn or_gone<T>(&mut self, wait: impl Future<Output = T>) -> Result<T, Failure> {
        let mut wait = pin!(wait);
        poll_fn(|cx| match wait.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Ok(value)),
            Poll::Pending => self.poll_gone(cx).map(Err),
        })
        .await
    }

    /// Sends all of `parts`. While the client takes nothing, nothing else happens for it; after the write-stall limit it
    /// counts as gone.
    pub(super) async fn send(&mut self, mut parts: &mut [IoSlice<'_>]) -> Result<(), Failure> {
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            match self.socket.write(parts) {
                Ok(Some(n)) => IoSlice::advance_slices(&mut parts, n),
                Ok(None) => self.takes_more().await?,
                Err(_) => return Err(Failure::ClientGone),
            }
        }
        Ok(())
    }

    /// Waits until the client takes bytes again.
    pub(super) async fn takes_more(&mut self) -> Result<(), Failure> {
        self.socket.due_in(self.worker.shared.config.times.client_write_stall);
        let waited = self.socket.writable().await;
        let stalled = self.socket.timed_out();
        self.socket.no_deadline();
        if stalled {
            return Err(Failure::ClientStalled);
        }
        waited.map_err(|_| Failure::ClientGone)
    }

    /// Lets a client that is still sending read its answer: ends our side, then takes and drops its bytes until it ends its
    /// own, for `limit` at most. A close at once would answer its bytes by a reset, and take the unread answer with it.
    pub(super) async fn linger(&mut self, limit: Duration) {
        self.socket.shutdown_write();
        self.socket.due_in(limit);
        while self.drop_bytes() {
            if self.socket.readable().await.is_err() {
                return;
            }
        }
    }

    /// Takes what is there and drops it. False: nothing more will come.
    fn drop_bytes(&mut self) -> bool {
        let mut sink = Buffer::new(&self.worker.blocks, SMALL);
        loop {
            match self.socket.read(sink.spare()) {
                Ok(Got::Bytes(_)) => {}
                Ok(Got::Wait) => return true,
                Ok(Got::End) | Err(_) => return false,
            }
        }
    }
}
