//! One router after another without a pause: SIGUSR2 starts the binary at the same path, which may be a newer one, with the
//! same arguments, and passes the listening sockets and what the trie believes on to it.
//!
//! The two talk over a stream that is the new process' standard input: the state comes down, one word goes back once the new
//! process has learnt of its backends and accepts. Until then the old one serves as before; if the word does not come, it goes
//! on. Both accept from the same queues for a moment, and a queue outlives its processes, so nobody who connects is refused.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::drain::{self, Cause};
use super::notify::notify;
use super::plane::Plane;
use crate::config::HANDOVER_VARIABLE;
use crate::fleet::snapshot::State;
use crate::shared::Phase;

/// The word of a process that has taken over.
const READY: &[u8] = b"ready\n";

/// A new process that has not taken over by then never will.
const LIMIT: Duration = Duration::from_secs(60);

/// So long a new process waits for every backend; then those that have failed a probe are left to themselves.
const ALL_UP_LIMIT: Duration = Duration::from_secs(3);
const SETTLE_LIMIT: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Hands over at each SIGUSR2, until that has succeeded or another signal asks for the end.
pub(super) async fn until_asked_to_end(
    plane: &Arc<Plane>,
    listeners: &[OwnedFd],
    signals: &mut mpsc::Receiver<&'static str>,
) -> Cause {
    loop {
        let name = drain::next(signals).await;
        if name != drain::HAND_OVER {
            return Cause::Signal(name);
        }
        tracing::info!("{name}: starting the process that is to take over");
        tokio::select! {
            handed_over = hand_over(plane, listeners) => match handed_over {
                Ok(pid) => return Cause::HandedOver { pid },
                Err(why) => tracing::error!("no handover, this process goes on: {why}"),
            },
            name = drain::next_to_end(signals) => return Cause::Signal(name),
        }
    }
}

/// Starts the new process and waits for its word; returns its process id.
async fn hand_over(plane: &Arc<Plane>, listeners: &[OwnedFd]) -> Result<u32, String> {
    let (stream, mut heir) = spawn(listeners)?;
    let plane = plane.clone();
    let talked = tokio::task::spawn_blocking(move || talk(&stream, &plane)).await;
    match talked.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
        Ok(()) => {
            let pid = heir.0.take().map_or(0, |child| child.id());
            notify(&format!("READY=1\nMAINPID={pid}"));
            Ok(pid)
        }
        Err(error) => Err(heir.epitaph(&error)),
    }
}

fn spawn(listeners: &[OwnedFd]) -> Result<(UnixStream, Heir), String> {
    let mut arguments = std::env::args_os();
    let binary = arguments.next().ok_or("this process does not know its own path")?;
    let failed = |error: io::Error| format!("{} cannot be started: {error}", binary.display());
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let list: Vec<String> = listeners.iter().map(|listener| listener.as_raw_fd().to_string()).collect();
    let mut command = Command::new(&binary);
    command.args(arguments).stdin(Stdio::from(OwnedFd::from(theirs)));
    command.env(HANDOVER_VARIABLE, list.join(",")).env_remove("LISTEN_FDS").env_remove("LISTEN_PID");
    let keep_open = |keep: bool| listeners.iter().try_for_each(|fd| SockRef::from(fd).set_cloexec(!keep));
    keep_open(true).map_err(failed)?;
    let child = command.spawn();
    keep_open(false).map_err(failed)?;
    Ok((ours, Heir(Some(child.map_err(failed)?))))
}

/// Sends the state and waits for the word.
fn talk(stream: &UnixStream, plane: &Plane) -> io::Result<()> {
    stream.set_write_timeout(Some(LIMIT))?;
    stream.set_read_timeout(Some(LIMIT))?;
    let out = BufWriter::with_capacity(64 << 10, stream);
    plane.save(out)?;
    let mut word = [0; READY.len()];
    (&mut &*stream).read_exact(&mut word)?;
    if word == READY { Ok(()) } else { Err(io::Error::other("it said something else")) }
}

/// The new process, ended again unless it takes over.
struct Heir(Option<Child>);

impl Heir {
    /// Ends the process and says what became of it.
    fn epitaph(&mut self, error: &io::Error) -> String {
        let Some(mut child) = self.0.take() else { return error.to_string() };
        // A process that ends by itself closes the stream a moment before.
        std::thread::sleep(Duration::from_millis(50));
        match child.try_wait() {
            Ok(Some(status)) => format!("the new process ended before it was ready ({status})"),
            _ => {
                end(&mut child);
                format!("the new process did not get ready: {error}")
            }
        }
    }
}

impl Drop for Heir {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(end);
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// The process that this one takes over from.
pub(super) struct Predecessor(UnixStream);

impl Predecessor {
    /// # Errors
    /// When standard input is no stream from another process.
    pub(super) fn meet() -> io::Result<Self> {
        let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        stream.peer_addr()?;
        stream.set_read_timeout(Some(LIMIT))?;
        Ok(Predecessor(stream))
    }

    /// Takes in what it believes. To be called when the backends have their slots.
    pub(super) fn restore(&self, plane: &Arc<Plane>) {
        match plane.restore(BufReader::with_capacity(64 << 10, &self.0)) {
            Ok(state) => tracing::info!("{} runs of {} backends are taken over", state.runs, state.backends.len()),
            Err(why) => tracing::warn!("the state of the process before is ignored: {why}"),
        }
    }

    /// Begins to accept as soon as the backends are known, and says so.
    pub(super) async fn take_over(self, plane: &Plane) {
        let began = Instant::now();
        while !settled(plane, began.elapsed()) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        plane.shared.advance(Phase::Running);
        match (&self.0).write_all(READY) {
            Ok(()) => tracing::info!("took over after {:.2} s", began.elapsed().as_secs_f64()),
            Err(error) => tracing::warn!("the process before has gone, this one serves: {error}"),
        }
    }
}

fn settled(plane: &Plane, waited: Duration) -> bool {
    let members = plane.members();
    let known = members.iter().next().is_some();
    waited >= SETTLE_LIMIT
        || known
            && members.iter().all(|member| {
                let usable = member.health.state() == State::Up && !member.addresses.is_empty();
                usable || waited >= ALL_UP_LIMIT && member.last_error.is_some()
            })
}
