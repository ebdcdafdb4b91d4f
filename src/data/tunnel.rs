//! A WebSocket connection after the backend's 101: bytes in both directions, until both have ended.
//!
//! Must not know: WebSocket's frames.
//!
//! Invariants: a direction reads only when what it read before is sent; the limit on silence runs while either side may send,
//! that on a client which takes nothing while there are bytes for it; an end of one direction is passed on and leaves the
//! other open; neither connection serves anything else afterwards.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::buffer::{Buffer, SMALL};
use super::client::Client;
use super::failure::Failure;
use super::socket::{Got, Socket};
use crate::metrics::shard::ErrorKind;

/// Whether a 101's field values switch to what was asked for.
pub(super) fn is_websocket(upgrade: Option<&[u8]>) -> bool {
    upgrade.is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"))
}

/// Carries bytes until both sides have ended. `early` is what the backend sent behind its 101. Gives the bytes that went to
/// the client.
pub(super) async fn run(client: &mut Client, upstream: &mut Socket, early: Buffer) -> Result<u64, Failure> {
    let times = &client.worker.shared.config.times;
    let (idle_limit, stall_limit) = (times.between_bytes, times.client_write_stall);
    let pipelined = client.input.take().unwrap_or_else(|| Buffer::new(&client.worker.blocks, SMALL));
    let (mut to_backend, mut to_client) = (Way::new(pipelined), Way::new(early));
    let socket = &mut client.socket;
    socket.due_in(idle_limit);
    upstream.due_in(idle_limit);
    let mut stalled = false;
    let carried = poll_fn(|cx| {
        let before = (to_backend.moved_bytes, to_client.moved_bytes);
        let out = to_backend.poll(socket, upstream, cx).map_err(|end| end.failure(true, stalled))?;
        let back = to_client.poll(upstream, socket, cx).map_err(|end| end.failure(false, stalled))?;
        let (moved, taken) =
            ((to_backend.moved_bytes, to_client.moved_bytes) != before, to_client.moved_bytes > before.1);
        let stalls = to_client.writable.is_some();
        if stalls && (taken || !stalled) {
            // While the client does not take what there is for it, nothing can be said of the backend.
            socket.due_in(stall_limit);
            upstream.no_deadline();
        } else if !stalls && (moved || stalled) {
            socket.due_in(idle_limit);
            upstream.due_in(idle_limit);
        }
        stalled = stalls;
        if out.is_ready() && back.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await;
    socket.no_deadline();
    carried.map(|()| to_client.moved_bytes)
}

/// Which socket of a direction ended it.
enum End {
    Source,
    Sink,
    Idle,
}

impl End {
    /// `stalled`: it was the client's turn, to take bytes.
    fn failure(self, from_client: bool, stalled: bool) -> Failure {
        match (self, from_client) {
            (End::Idle, _) if stalled => Failure::ClientStalled,
            (End::Idle, _) => Failure::Broken(ErrorKind::BetweenBytesTimeout),
            (End::Source, true) | (End::Sink, false) => Failure::ClientGone,
            (End::Source, false) | (End::Sink, true) => Failure::Broken(ErrorKind::Broken),
        }
    }
}

/// One direction.
struct Way {
    /// Read and not yet sent.
    bytes: Buffer,
    moved_bytes: u64,
    source_ended: bool,
    sink_ended: bool,
    writable: Option<Pin<Box<dyn Future<Output = io::Result<()>>>>>,
}

impl Way {
    fn new(bytes: Buffer) -> Self {
        Way { bytes, moved_bytes: 0, source_ended: false, sink_ended: false, writable: None }
    }

    /// Moves bytes until either socket must be waited for. Ready once the end has been passed on.
    fn poll(&mut self, from: &mut Socket, to: &Socket, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        loop {
            if self.sink_ended {
                return Poll::Ready(Ok(()));
            }
            if !self.bytes.is_empty() {
                ready!(self.poll_send(to, cx)).map_err(|_| if to.timed_out() { End::Idle } else { End::Sink })?;
                continue;
            }
            if self.source_ended {
                to.shutdown_write();
                self.sink_ended = true;
                continue;
            }
            match from.read(self.bytes.spare()) {
                Ok(Got::Bytes(n)) => self.bytes.commit(n),
                Ok(Got::Wait) => ready!(from.poll_readable(cx)).map_err(|_| End::Source)?,
                Ok(Got::End) if from.timed_out() => return Poll::Ready(Err(End::Idle)),
                Ok(Got::End) => self.source_ended = true,
                Err(_) => return Poll::Ready(Err(End::Source)),
            }
        }
    }

    fn poll_send(&mut self, to: &Socket, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(writable) = &mut self.writable {
            ready!(writable.as_mut().poll(cx))?;
            self.writable = None;
        }
        match to.write(&[IoSlice::new(self.bytes.filled())])? {
            Some(n) => {
                self.bytes.consume(n);
                self.moved_bytes += n as u64;
            }
            None => self.writable = Some(Box::pin(to.writable())),
        }
        Poll::Ready(Ok(()))
    }
}
