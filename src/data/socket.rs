//! A socket of the data plane: bytes by plain non-blocking system calls, readiness by monoio.
//!
//! The kernel never owns a buffer: a future that is dropped while it waits loses no bytes. The wait for readability stays
//! armed across calls and drops, so that one pending poll serves as the watch for a client that goes away while its engine
//! works, and as the wait for its next request afterwards.
//!
//! Each call takes from the turn's budget (`coop`); once that is spent, a socket reads and writes nothing until its wait has
//! given way.
//!
//! Each socket has one deadline. When it passes, the worker's sweeper shuts the socket down; whoever waits on it then
//! reads an end, and `timed_out` tells why.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use monoio::net::UnixStream;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg};
use rustix::pipe::{SpliceFlags, splice};
use socket2::SockRef;

use super::coop::{Coop, Yield};
use super::deadline::{Deadlines, Ends, Paused, Ticket};

/// Unacknowledged bytes and keep-alive probes without an answer for this long mean that the peer is gone.
const SILENT_PEER: Duration = Duration::from_secs(30);

/// Pause when the process or the machine has no descriptor or memory left for another connection.
pub(super) const EXHAUSTED_PAUSE: Duration = Duration::from_millis(50);

/// What one call moves at most: a call can't be broken off.
const CALL_BYTES: usize = 256 << 10;

pub(super) struct Socket {
    deadline: Ticket,
    reader: Pin<Box<dyn Rearm>>,
    /// A descriptor registered with the driver; of the stream's own reads and writes none is used, so that any kind of
    /// socket may stand behind it. A TCP one would keep both of its addresses.
    io: Rc<UnixStream>,
    /// The turn's budget was spent when it was to be read.
    read_yields: Cell<Yield>,
    /// The same when it was to be written.
    write_yields: Cell<bool>,
    /// The last read took all there was: the next one would find nothing.
    drained: Cell<bool>,
    /// Its close is a reset.
    resets: Cell<bool>,
}

/// A wait for readability that can be started again in place.
trait Rearm {
    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

pin_project_lite::pin_project! {
    struct Wait<M, F> {
        make: M,
        #[pin]
        armed: Option<F>,
    }
}

impl<M: Fn() -> F, F: Future<Output = io::Result<()>>> Rearm for Wait<M, F> {
    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut this = self.project();
        if this.armed.is_none() {
            this.armed.set(Some((this.make)()));
        }
        let result = ready!(this.armed.as_mut().as_pin_mut().map_or(Poll::Ready(Ok(())), |wait| wait.poll(cx)));
        this.armed.set(None);
        Poll::Ready(result)
    }
}

/// What one read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Got {
    Bytes(usize),
    /// The peer has closed its sending side.
    End,
    /// Nothing yet, or others have a turn first: wait until it is readable.
    Wait,
}

impl Socket {
    /// Takes over a connected or connecting socket, which must be non-blocking.
    pub(super) fn new(socket: socket2::Socket, deadlines: &Rc<Deadlines>) -> io::Result<Self> {
        let io = Rc::new(UnixStream::from_std(OwnedFd::from(socket).into())?);
        let waited = Rc::clone(&io);
        let make = move || {
            let io = Rc::clone(&waited);
            async move { io.readable(false).await }
        };
        Ok(Socket {
            deadline: Deadlines::register(deadlines, io.as_raw_fd()),
            reader: Box::pin(Wait { make, armed: None }),
            io,
            read_yields: Cell::default(),
            write_yields: Cell::new(false),
            drained: Cell::new(false),
            resets: Cell::new(false),
        })
    }

    fn coop(&self) -> &Rc<Coop> {
        self.deadline.coop()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        let fd: RawFd = self.io.as_raw_fd();
        // SAFETY: `self.io` keeps the descriptor open at least as long as the borrow of `self`.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Reads what is there, without waiting.
    pub(super) fn read(&self, into: &mut [u8]) -> io::Result<Got> {
        debug_assert!(!into.is_empty(), "a read into nothing looks like the end");
        if self.drained.get() || self.read_gives_way() {
            return Ok(Got::Wait);
        }
        let room = into.len().min(CALL_BYTES);
        let into = &mut into[..room];
        match now(|| recv(self.fd(), &mut *into, RecvFlags::empty()))? {
            Some((_, 0)) => Ok(Got::End),
            Some((_, n)) => {
                self.drained.set(n < room);
                self.coop().spend(n);
                Ok(Got::Bytes(n))
            }
            None => Ok(Got::Wait),
        }
    }

    /// Others have their turn before the next read.
    fn read_gives_way(&self) -> bool {
        let spent = self.coop().is_spent();
        if spent {
            self.read_yields.set(Yield::DUE);
        }
        spent
    }

    /// The same before the next write.
    fn write_gives_way(&self) -> bool {
        let spent = self.coop().is_spent();
        self.write_yields.set(spent);
        spent
    }

    /// Writes what the kernel takes, without waiting. `None`: it takes nothing now, or others have a turn first.
    pub(super) fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        if self.write_gives_way() {
            return Ok(None);
        }
        let written = match parts {
            [part] => now(|| send(self.fd(), &part[..part.len().min(CALL_BYTES)], SendFlags::NOSIGNAL)),
            [first, second] if first.len() + second.len() > CALL_BYTES => {
                let first = &first[..first.len().min(CALL_BYTES)];
                let parts = [IoSlice::new(first), IoSlice::new(&second[..second.len().min(CALL_BYTES - first.len())])];
                now(|| sendmsg(self.fd(), &parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL))
            }
            _ => now(|| sendmsg(self.fd(), parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)),
        };
        self.coop().spend(written.as_ref().map_or(0, |n| n.unwrap_or_default()));
        written
    }

    /// Moves what is there, `most` bytes at most, into a pipe that is empty.
    pub(super) fn splice_into(&self, pipe: BorrowedFd<'_>, most: usize) -> io::Result<Got> {
        debug_assert!(most > 0, "nothing looks like the end");
        if self.drained.get() || self.read_gives_way() {
            return Ok(Got::Wait);
        }
        let moved = splice_now(self.fd(), pipe, most)?;
        self.coop().spend(moved.unwrap_or_default());
        Ok(match moved {
            Some(0) => Got::End,
            Some(n) => Got::Bytes(n),
            None => Got::Wait,
        })
    }

    /// Moves up to `held` bytes out of a pipe that holds as many. `None`: the kernel takes nothing now, or others have a turn
    /// first.
    pub(super) fn splice_from(&self, pipe: BorrowedFd<'_>, held: usize) -> io::Result<Option<usize>> {
        if self.write_gives_way() {
            return Ok(None);
        }
        let moved = splice_now(pipe, self.fd(), held)?;
        self.coop().spend(moved.unwrap_or_default());
        Ok(moved)
    }

    /// A connection that waits at this listening socket, tuned and non-blocking.
    pub(super) fn accept(&self) -> io::Result<(socket2::Socket, socket2::SockAddr)> {
        let (socket, address) = SockRef::from(&self.fd()).accept()?;
        socket.set_nonblocking(true)?;
        if !address.is_unix() {
            tune(&socket)?;
        }
        Ok((socket, address))
    }

    /// Nothing can be there yet: the next read waits first.
    pub(super) fn expect_silence(&self) {
        self.drained.set(true);
    }

    /// Time has passed since the last read: there may be something again.
    pub(super) fn expect_bytes(&self) {
        self.drained.set(false);
    }

    /// The peer's system has acknowledged all that was written. False also when that can't be told.
    pub(super) fn is_acknowledged(&self) -> bool {
        let mut outstanding: libc::c_int = 0;
        // SAFETY: the descriptor is open, and the request writes one int.
        let asked = unsafe { libc::ioctl(self.io.as_raw_fd(), libc::TIOCOUTQ, &raw mut outstanding) };
        asked == 0 && outstanding == 0
    }

    /// Looks at what a read would bring, without taking it.
    pub(super) fn peek(&self) -> io::Result<Got> {
        match now(|| recv(self.fd(), &mut [0_u8; 1], RecvFlags::PEEK))? {
            Some((_, 0)) => Ok(Got::End),
            Some((_, n)) => Ok(Got::Bytes(n)),
            None => Ok(Got::Wait),
        }
    }

    /// Ready when a read would bring something: bytes, an end or an error.
    pub(super) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.deadline.coop().poll_yield(&self.read_yields, cx));
        let ready = self.reader.as_mut().poll_ready(cx);
        if ready.is_ready() {
            self.expect_bytes();
        }
        ready
    }

    pub(super) async fn readable(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_readable(cx)).await
    }

    /// Ready when a write would be taken. Unlike the wait for readability it is not kept when dropped.
    pub(super) fn writable(&self) -> impl Future<Output = io::Result<()>> + use<> {
        let io = Rc::clone(&self.io);
        let yields = self.write_yields.take().then(|| Rc::clone(self.coop()));
        async move {
            if let Some(coop) = yields {
                coop.give_way().await;
            }
            io.writable(false).await
        }
    }

    /// The error of a connect that has become writable, if it failed.
    pub(super) fn connect_error(&self) -> io::Result<()> {
        match SockRef::from(&self.fd()).take_error()? {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Sets the deadline that far from now, in place of the last one: both directions end.
    pub(super) fn due_in(&self, time: Duration) {
        self.deadline.set(time, Ends::All);
    }

    /// The same for the reading side alone: the peer can still be told why.
    pub(super) fn read_due_in(&self, time: Duration) {
        self.deadline.set(time, Ends::Reading);
    }

    /// The same for a connection that waits for its next request: a drain ends it early.
    pub(super) fn idle_for(&self, time: Duration) {
        self.deadline.set(time, Ends::Idle);
    }

    pub(super) fn no_deadline(&self) {
        self.deadline.clear();
    }

    /// Stops the deadline's clock while the other side is waited for.
    pub(super) fn pause_deadline(&self) -> Paused {
        self.deadline.pause()
    }

    pub(super) fn resume_deadline(&self, paused: &Paused) {
        self.deadline.resume(paused);
    }

    pub(super) fn timed_out(&self) -> bool {
        self.deadline.fired()
    }

    /// Ends both directions at once, whoever else holds the descriptor. One that is to be reset is left to its close: the
    /// peer would read an ordinary end first.
    pub(super) fn shutdown(&self) {
        if self.resets.get() {
            return;
        }
        let _ = SockRef::from(&self.fd()).shutdown(Shutdown::Both);
    }

    pub(super) fn shutdown_write(&self) {
        let _ = SockRef::from(&self.fd()).shutdown(Shutdown::Write);
    }

    /// Makes the close a reset: a peer that reads until the end must not take the end for a complete answer.
    pub(super) fn reset_on_close(&self) {
        self.resets.set(SockRef::from(&self.fd()).set_linger(Some(Duration::ZERO)).is_ok());
    }
}

/// Makes a call that does not wait. `None`: it would have to.
///
/// The calls are the kernel's own: the C library makes each a cancellation point, which costs as much as a small copy.
fn now<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<Option<T>> {
    loop {
        return match call() {
            Ok(value) => Ok(Some(value)),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR) => continue,
            Err(error) => Err(error.into()),
        };
    }
}

/// Splices without waiting. `None`: it would have to wait.
fn splice_now(from: BorrowedFd<'_>, to: BorrowedFd<'_>, most: usize) -> io::Result<Option<usize>> {
    now(|| splice(from, None, to, None, most, SpliceFlags::NONBLOCK | SpliceFlags::MOVE))
}

/// Nothing is wrong with the peer: there is no descriptor or memory left here.
pub(super) fn is_exhaustion(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// A non-blocking TCP socket that is connecting to `address`; wait until it is writable, then ask `connect_error`.
pub(super) fn connect_tcp(address: SocketAddr) -> io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(address),
        socket2::Type::STREAM.nonblocking(),
        Some(socket2::Protocol::TCP),
    )?;
    tune(&socket)?;
    start_connect(&socket, &address.into())?;
    Ok(socket)
}

/// A non-blocking unix socket that is connecting to an abstract name.
pub(super) fn connect_unix(name: &str) -> io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM.nonblocking(), None)?;
    start_connect(&socket, &socket2::SockAddr::unix(format!("\0{name}"))?)?;
    Ok(socket)
}

fn start_connect(socket: &socket2::Socket, address: &socket2::SockAddr) -> io::Result<()> {
    match socket.connect(address) {
        Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => Err(e),
        _ => Ok(()),
    }
}

/// Options of every TCP connection: no Nagle delay, and a silent peer is found.
pub(super) fn tune(socket: &socket2::Socket) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(SILENT_PEER))?;
    let third = SILENT_PEER / 3;
    socket.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(third).with_interval(third).with_retries(2))
}
