//! Connections to backends and to the control plane: taken from the pool or made.
//!
//! A pool a worker and target, last in, first out. A connection goes back only when its response was framed to its end,
//! nothing is left over and the request was sent whole; at checkout it must still be silent.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::client::Client;
use super::failure::{Failure, Refusal};
use super::socket::{EXHAUSTED_PAUSE, Got, Socket, connect_tcp, connect_unix, is_exhaustion};
use super::worker::Worker;
use crate::fleet::snapshot::Backend;
use crate::metrics::shard::ErrorKind;

/// Unused connections that a worker keeps for one target.
const KEPT: usize = 512;

/// Where a request goes.
#[derive(Clone, Copy)]
pub(super) enum Target<'a> {
    Control,
    Backend(&'a Backend),
}

struct Idle {
    socket: Socket,
    /// Where it leads: a slot may have moved to another address meanwhile.
    address: Option<SocketAddr>,
    since_ms: u64,
}

/// By slot; the last one is the control plane's.
pub(super) struct Pools(Vec<Vec<Idle>>);

impl Pools {
    pub(super) fn new(slots: usize) -> Self {
        Pools((0..=slots).map(|_| Vec::new()).collect())
    }

    fn of(&mut self, target: Target<'_>) -> &mut Vec<Idle> {
        let last = self.0.len() - 1;
        match target {
            Target::Control => &mut self.0[last],
            Target::Backend(backend) => &mut self.0[usize::from(backend.slot)],
        }
    }

    fn clear(&mut self) {
        self.0.iter_mut().for_each(Vec::clear);
    }

    /// Closes what has been unused for longer than `limit`.
    pub(super) fn expire(&mut self, now_ms: u64, limit: Duration) {
        let limit_ms = limit.as_millis() as u64;
        for pool in &mut self.0 {
            let fresh =
                pool.iter().position(|idle| now_ms.saturating_sub(idle.since_ms) < limit_ms).unwrap_or(pool.len());
            pool.drain(..fresh);
        }
    }
}

/// A connection in use.
pub(super) struct Upstream {
    pub(super) socket: Socket,
    /// It has served a request before: it may turn out to be dead without anybody's fault.
    pub(super) reused: bool,
    address: Option<SocketAddr>,
}

/// Why there is no connection.
pub(super) enum ConnectFailure {
    /// Nothing was sent: another backend may be tried.
    Backend(ErrorKind, String),
    /// The client has gone, or this process has no descriptor left: the backend is not to blame.
    NotTheBackend(Failure),
}

impl Upstream {
    /// A pooled connection that is still good, if there is one.
    pub(super) fn pooled(worker: &Worker, target: Target<'_>) -> Option<Self> {
        let mut pools = worker.pools.borrow_mut();
        let pool = pools.of(target);
        while let Some(idle) = pool.pop() {
            let leads_there = match target {
                Target::Control => true,
                Target::Backend(backend) => idle.address.is_some_and(|address| backend.addresses.contains(&address)),
            };
            if leads_there && matches!(idle.socket.peek(), Ok(Got::Wait)) {
                return Some(Upstream { socket: idle.socket, reused: true, address: idle.address });
            }
        }
        None
    }

    /// A fresh connection; each of the backend's addresses is tried.
    pub(super) async fn connect(client: &mut Client, target: Target<'_>) -> Result<Self, ConnectFailure> {
        match target {
            Target::Control => {
                let worker = client.worker.clone();
                let started = open(&worker, || connect_unix(&worker.shared.control_socket)).await;
                Self::finish(client, started, None).await
            }
            Target::Backend(backend) => {
                let mut failure =
                    ConnectFailure::Backend(ErrorKind::Connect, "its name could not be resolved".to_owned());
                for &address in &backend.addresses {
                    let started = open(&client.worker, || connect_tcp(address)).await;
                    match Self::finish(client, started, Some(address)).await {
                        Err(next @ ConnectFailure::Backend(..)) => failure = next,
                        other => return other,
                    }
                }
                Err(failure)
            }
        }
    }

    async fn finish(
        client: &mut Client,
        started: io::Result<socket2::Socket>,
        address: Option<SocketAddr>,
    ) -> Result<Self, ConnectFailure> {
        let failed = |error: io::Error| match is_exhaustion(&error) {
            true => ConnectFailure::NotTheBackend(exhausted().into()),
            false => ConnectFailure::Backend(ErrorKind::Connect, error.to_string()),
        };
        let socket = Socket::new(started.map_err(failed)?, &client.worker.deadlines).map_err(failed)?;
        socket.due_in(client.worker.shared.config.times.connect);
        let waited = client.or_gone(socket.writable()).await.map_err(ConnectFailure::NotTheBackend)?;
        if socket.timed_out() {
            return Err(ConnectFailure::Backend(
                ErrorKind::ConnectTimeout,
                "it did not accept the connection in time".to_owned(),
            ));
        }
        waited.and_then(|()| socket.connect_error()).map_err(failed)?;
        socket.no_deadline();
        Ok(Upstream { socket, reused: false, address })
    }

    /// Puts the connection back for the next request.
    pub(super) fn release(self, worker: &Worker, target: Target<'_>) {
        self.socket.no_deadline();
        let mut pools = worker.pools.borrow_mut();
        let pool = pools.of(target);
        if pool.len() < KEPT && !worker.draining() {
            pool.push(Idle { socket: self.socket, address: self.address, since_ms: worker.deadlines.now_ms() });
        }
    }
}

/// Opens a socket. When there are no descriptors left, the worker's unused connections go first, and after a pause it is
/// tried once more.
async fn open(worker: &Worker, make: impl Fn() -> io::Result<socket2::Socket>) -> io::Result<socket2::Socket> {
    match make() {
        Err(error) if is_exhaustion(&error) => {
            worker.pools.borrow_mut().clear();
            worker.pipes.clear();
            monoio::time::sleep(EXHAUSTED_PAUSE).await;
            make()
        }
        made => made,
    }
}

fn exhausted() -> Refusal {
    let message = "the router has no descriptors left for a connection to a backend; try again";
    Refusal::unavailable("out_of_descriptors", message, 1)
}
