//! One client's connection: its buffers and what it is in the middle of.
//!
//! Must not know: what the bytes mean. Invariants: an idle connection holds no buffers; input beyond a bound is left to
//! the kernel while an answer is under way.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use mio::net::TcpStream;

use super::answer::Answer;
use super::faults::Fault;
use super::http::{Chunks, Head};
use super::prompt::Chain;
use super::schedule::Started;
use super::timers::ConnId;

/// While an answer is under way, this much of further requests is read ahead.
const READ_AHEAD_BYTES: usize = 256 * 1024;
const KEPT_CAPACITY_BYTES: usize = 64 * 1024;
/// How long a connection whose write side is shut waits for the client's own end.
pub(crate) const LINGER: Duration = Duration::from_secs(2);

/// A generation that has been asked for.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) answer: Answer,
    /// None: it waits in the engine's queue.
    pub(crate) started: Option<Started>,
    pub(crate) arrived: Instant,
    pub(crate) chain: Chain,
    pub(crate) first_sent: bool,
    pub(crate) fault: Option<Fault>,
}

#[derive(Debug)]
pub(crate) enum Phase {
    /// Between requests, or in a request's head.
    Head,
    Body(Box<(Head, Chunks)>),
    /// The whole request is in the input; nothing happens before the instant.
    Delayed(Box<(Head, Chunks)>, Instant),
    Answering(Box<Generation>),
    /// Nothing more will ever be sent.
    Hung,
    /// The output is the last; whatever comes in is thrown away.
    Ending,
}

/// What follows when the output has been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Farewell {
    Stay,
    Fin,
    Reset,
}

#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) id: ConnId,
    pub(crate) engine: usize,
    pub(crate) stream: TcpStream,
    pub(crate) input: Vec<u8>,
    pub(crate) output: Vec<u8>,
    sent: usize,
    pub(crate) phase: Phase,
    pub(crate) farewell: Farewell,
    fin_sent: bool,
    /// The client has ended its side, or the connection broke.
    pub(crate) gone: bool,
    paused: bool,
    pub(crate) since: Instant,
    /// One byte of output an interval.
    pub(crate) drip: Option<Duration>,
    next_drip: Instant,
    /// The earliest wake-up that is already set.
    pub(crate) wake_at: Option<Instant>,
    /// Tag and arrival of the request in hand, for the journal.
    pub(crate) tag: Option<String>,
    pub(crate) arrived: Instant,
}

impl Conn {
    pub(crate) fn new(id: ConnId, engine: usize, stream: TcpStream, now: Instant) -> Self {
        Self {
            id,
            engine,
            stream,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            phase: Phase::Head,
            farewell: Farewell::Stay,
            fin_sent: false,
            gone: false,
            paused: false,
            since: now,
            drip: None,
            next_drip: now,
            wake_at: None,
            tag: None,
            arrived: now,
        }
    }

    /// Whether a request has been read whose answer is not complete.
    pub(crate) fn in_request(&self) -> bool {
        matches!(self.phase, Phase::Delayed(..) | Phase::Answering(_) | Phase::Hung)
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Head) && self.input.is_empty() && self.output.is_empty()
    }

    /// Nothing is left to say to a client that has ended its side, or will not within reason.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        let unsent = !self.output.is_empty();
        match self.phase {
            Phase::Ending => self.gone || (self.fin_sent && now >= self.since + LINGER),
            Phase::Head | Phase::Body(_) => self.gone && !unsent,
            _ => self.gone,
        }
    }

    /// Reads until the kernel has no more. `closing`: the event said that the client's end is in what is to be read.
    pub(crate) fn read(&mut self, scratch: &mut [u8], closing: bool) {
        loop {
            if self.input.len() >= READ_AHEAD_BYTES && self.in_request() {
                self.paused = true;
                self.gone |= closing;
                return;
            }
            match self.stream.read(scratch) {
                Ok(0) => {
                    self.gone = true;
                    return;
                }
                Ok(count) => {
                    if !matches!(self.phase, Phase::Ending) {
                        self.input.extend_from_slice(&scratch[..count]);
                    }
                    // A short read has emptied the socket: the next bytes make an event of their own.
                    if count < scratch.len() && !closing {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.gone = true;
                    self.output.clear();
                    return;
                }
            }
        }
    }

    /// Whether input was left in the kernel that can be read now.
    pub(crate) fn resume(&mut self) -> bool {
        self.paused && !self.in_request() && std::mem::take(&mut self.paused)
    }

    pub(crate) fn consume(&mut self, bytes: usize) {
        self.input.drain(..bytes);
        if self.input.is_empty() && self.input.capacity() > KEPT_CAPACITY_BYTES {
            self.input = Vec::new();
        }
    }

    /// Sends what the kernel takes. Some: when the next byte is due, of a response that drips.
    pub(crate) fn flush(&mut self, now: Instant) -> Option<Instant> {
        while self.sent < self.output.len() {
            let mut end = self.output.len();
            if let Some(interval) = self.drip {
                if now < self.next_drip {
                    return Some(self.next_drip);
                }
                self.next_drip = now + interval;
                end = self.sent + 1;
            }
            match self.stream.write(&self.output[self.sent..end]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) => {
                    self.gone = true;
                    break;
                }
            }
        }
        self.sent = 0;
        self.output.clear();
        if self.output.capacity() > KEPT_CAPACITY_BYTES {
            self.output = Vec::new();
        }
        if matches!(self.phase, Phase::Ending) && !self.fin_sent {
            self.say_farewell(now);
        }
        None
    }

    fn say_farewell(&mut self, now: Instant) {
        self.since = now;
        match self.farewell {
            Farewell::Stay => {}
            Farewell::Fin => {
                self.fin_sent = true;
                // An error means that the client was faster.
                self.gone |= self.stream.shutdown(Shutdown::Write).is_err();
            }
            Farewell::Reset => {
                // Closing with a linger time of zero sends RST.
                let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
                self.gone = true;
            }
        }
    }
}
