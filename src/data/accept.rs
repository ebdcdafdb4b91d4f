//! Listening sockets and the accept loop of each worker.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Type};

use super::conn;
use super::mailbox::{Handed, Seat};
use super::socket::{EXHAUSTED_PAUSE, Socket, is_exhaustion};
use super::worker::{Counted, TICK, Worker};
use crate::config::Listen;
use crate::http::head::Version;
use crate::http::reply::{self, Reply};
use crate::shared::Phase;

const BACKLOG: i32 = 4096;

/// Accepts in a row before the worker's other tasks get their turn.
pub(super) const BATCH: usize = 16;

/// How late the end of the start is noticed.
const STARTING_PAUSE: Duration = Duration::from_millis(5);

/// The workers' listening sockets, and where they listen.
pub struct Listeners {
    /// Those of each worker, at least one.
    pub(super) sockets: Vec<Vec<socket2::Socket>>,
    /// As a URL or a path.
    pub shown: String,
}

impl Listeners {
    /// All of the sockets once more, to be passed on to another process.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn duplicate(&self) -> io::Result<Vec<OwnedFd>> {
        self.sockets.iter().flatten().map(|socket| socket.try_clone().map(OwnedFd::from)).collect()
    }
}

/// Starts to listen. The port is refused if any other process listens on it.
///
/// # Errors
/// One line that names the address and what to do.
pub fn listen(listen: &Listen, workers: usize) -> Result<Listeners, String> {
    match listen {
        Listen::Tcp { host, port } => tcp(*host, *port, workers),
        Listen::Unix(path) => unix(path, workers).map_err(|error| format!("--uds {}: {error}", path.display())),
    }
}

fn tcp(host: IpAddr, port: u16, workers: usize) -> Result<Listeners, String> {
    let refuse = |error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("--port {port} is in use on {host}: stop what listens there, or choose another port")
        }
        io::ErrorKind::AddrNotAvailable => format!("--host {host} is not an address of this machine"),
        io::ErrorKind::PermissionDenied => {
            format!("--port {port}: not permitted; ports below 1024 need CAP_NET_BIND_SERVICE")
        }
        _ => format!("cannot listen on {}: {error}", SocketAddr::new(host, port)),
    };
    // SO_REUSEPORT would let two routers share the port in silence: a socket without it finds the other one.
    let address = {
        let probe = bind(SocketAddr::new(host, port), false).map_err(refuse)?;
        probe.listen(1).map_err(refuse)?;
        probe.local_addr().map_err(refuse)?.as_socket().ok_or_else(|| format!("cannot listen on {host}"))?
    };
    let sockets = (0..workers)
        .map(|_| {
            let socket = bind(address, true)?;
            socket.listen(BACKLOG)?;
            Ok(vec![socket])
        })
        .collect::<io::Result<_>>()
        .map_err(refuse)?;
    Ok(Listeners { sockets, shown: format!("http://{address}") })
}

fn bind(address: SocketAddr, shared: bool) -> io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn unix(path: &Path, workers: usize) -> io::Result<Listeners> {
    let address = SockAddr::unix(path)?;
    let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    if let Err(error) = socket.bind(&address) {
        if error.kind() != io::ErrorKind::AddrInUse {
            return Err(error);
        }
        remove_stale(path, &address)?;
        socket.bind(&address)?;
    }
    socket.listen(BACKLOG)?;
    let sockets = (0..workers).map(|_| Ok(vec![socket.try_clone()?])).collect::<io::Result<_>>()?;
    Ok(Listeners { sockets, shown: format!("unix:{}", path.display()) })
}

/// Removes a socket on which nobody listens any more, and nothing else.
fn remove_stale(path: &Path, address: &SockAddr) -> io::Result<()> {
    let refuse = |what: &str| Err(io::Error::new(io::ErrorKind::AddrInUse, what.to_owned()));
    // Not followed: what a link leads to is not this router's to remove.
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return refuse("something that is no socket is there: choose another path, or remove it");
    }
    let knock = socket2::Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    match knock.connect(address) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        // Whatever else it says, somebody has it.
        _ => refuse("another process listens there: stop it, or choose another path"),
    }
}

/// Accepts from when the process runs until it drains; then empties the queue once more and closes the socket.
pub(super) async fn run(worker: Rc<Worker>, listener: socket2::Socket) -> io::Result<()> {
    let mut listener = Socket::new(listener, &worker.deadlines)?;
    while worker.shared.phase() == Phase::Starting {
        monoio::time::sleep(STARTING_PAUSE).await;
        if worker.shared.phase() == Phase::Draining {
            // It never ran: who waits is still served by the process before.
            worker.shared.listening.fetch_sub(1, Release);
            return Ok(());
        }
    }
    loop {
        // The wait ends now and then to see whether the process drains; the pending poll stays armed.
        let _ = monoio::time::timeout(TICK, listener.readable()).await;
        let draining = worker.draining();
        let emptied = accept_batch(&worker, &listener).await;
        if draining && emptied {
            drop(listener);
            worker.shared.listening.fetch_sub(1, Release);
            return Ok(());
        }
        if !emptied {
            worker.coop.give_way().await;
        }
    }
}

/// True: nobody waits any more.
async fn accept_batch(worker: &Rc<Worker>, listener: &Socket) -> bool {
    for _ in 0..BATCH {
        match listener.accept() {
            Ok((socket, address)) => admit(worker, socket, address),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
            Err(error) if is_exhaustion(&error) => {
                worker.shard().accept_errors.add(1);
                monoio::time::sleep(EXHAUSTED_PAUSE).await;
                return false;
            }
            // The connection died before it was taken, or its options could not be set: it alone is lost.
            Err(_) => worker.shard().accept_errors.add(1),
        }
    }
    false
}

fn admit(worker: &Rc<Worker>, socket: socket2::Socket, address: SockAddr) {
    if worker.shared.connections.load(Relaxed) >= worker.shared.config.max_connections {
        return turn_away(worker, &socket);
    }
    let home = worker.mailboxes.home(worker.index);
    // Counted here and not when its task first runs: the next accept of this batch must see it.
    let handed = Handed { seat: Seat::take(worker, home), socket, address };
    if home == worker.index {
        return settle(worker, handed);
    }
    match worker.mailboxes.post(home, handed) {
        None => worker.shard().handed_over.add(1),
        Some(Handed { socket, address, .. }) => {
            settle(worker, Handed { seat: Seat::take(worker, worker.index), socket, address });
        }
    }
}

/// Serves the connection on this worker.
pub(super) fn settle(worker: &Rc<Worker>, handed: Handed) {
    let Handed { seat, socket, address } = handed;
    let address = address.as_socket().map(|address| address.ip().to_canonical().to_string()).unwrap_or_default();
    match Socket::new(socket, &worker.deadlines) {
        Ok(socket) => {
            monoio::spawn(conn::serve(Counted::new(worker, seat), Rc::clone(worker), socket, address));
        }
        Err(_) => worker.shard().accept_errors.add(1),
    }
}

/// Answers at once that there are too many connections; what the socket does not take is lost.
fn turn_away(worker: &Worker, mut socket: &socket2::Socket) {
    worker.shard().refused[1].add(1);
    let mut out = Vec::new();
    let limit = worker.shared.config.max_connections;
    reply::error(
        &mut out,
        &Reply {
            status: 503,
            kind: "server_error",
            code: "too_many_connections",
            message: &format!("the router has {limit} connections open, its limit (--max-connections); try again"),
            request_id: b"",
            date: &worker.date(),
            retry_after_s: Some(1),
            keep_alive: false,
            head_only: false,
            version: Version::Http11,
        },
    );
    let _ = socket.write(&out);
}
