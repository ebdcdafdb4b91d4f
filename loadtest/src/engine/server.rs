//! The loop of one thread: its engines' listeners, their connections and their timers.
//!
//! Must not know: HTTP. Each thing that happens leads to [`Server::drive`], which takes a connection as far as it goes and
//! then whatever that set free.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token};
use slab::Slab;

use super::conn::{Conn, LINGER, Phase};
use super::door::Door;
use super::faults::Fault;
use super::timers::{ConnId, Timers, Wake};
use super::{Engine, Options, exchange};

const SWEEP_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Server {
    poll: Poll,
    doors: Vec<Door>,
    engines: Vec<Engine>,
    conns: Slab<Conn>,
    timers: Timers,
    scratch: Vec<u8>,
    generation: u64,
    keep_alive: Duration,
    /// Connections to be taken further before the next wait.
    work: Vec<ConnId>,
}

impl Server {
    pub(crate) fn new(doors: Vec<Door>, options: &Arc<Options>) -> io::Result<Self> {
        let ports: Arc<[u16]> = doors.iter().map(Door::port).collect();
        let mut server = Self {
            poll: Poll::new()?,
            engines: ports.iter().map(|port| Engine::new(*port, &ports, options)).collect(),
            doors,
            conns: Slab::new(),
            timers: Timers::default(),
            scratch: vec![0; 64 * 1024],
            generation: 0,
            keep_alive: Duration::from_secs_f64(options.keep_alive_s.max(0.0)),
            work: Vec::new(),
        };
        for (index, door) in server.doors.iter_mut().enumerate() {
            if let Some(listener) = &mut door.listener {
                server.poll.registry().register(listener, Token(index), Interest::READABLE)?;
            }
        }
        for index in 0..server.doors.len() {
            if matches!(options.fault, Some(Fault::Refuse | Fault::Deaf)) {
                server.change_door(index, options.fault, None)?;
            }
        }
        Ok(server)
    }

    /// Serves for ever.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        self.timers.set(Instant::now() + SWEEP_EVERY, Wake::Sweep);
        loop {
            let timeout = self.timers.idle_for(Instant::now());
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            }
            for event in &events {
                match event.token().0.checked_sub(self.doors.len()) {
                    None => self.accept(event.token().0),
                    Some(index) => {
                        let closing = event.is_read_closed() || event.is_error();
                        self.on_socket(index, event.is_readable() || closing, closing);
                    }
                }
            }
            let now = Instant::now();
            while let Some(wake) = self.timers.pop_due(now) {
                self.on_timer(wake, now);
            }
        }
    }

    fn accept(&mut self, index: usize) {
        let now = Instant::now();
        while let Some(listener) = self.doors[index].listener.as_ref().filter(|_| !self.doors[index].deaf) {
            // Anything but a connection, out of descriptors included: the sweep tries again.
            let Ok((mut stream, _)) = listener.accept() else { return };
            let _ = stream.set_nodelay(true);
            let entry = self.conns.vacant_entry();
            let token = Token(self.doors.len() + entry.key());
            let interest = Interest::READABLE | Interest::WRITABLE;
            if self.poll.registry().register(&mut stream, token, interest).is_err() {
                continue;
            }
            self.generation += 1;
            let id = ConnId { index: entry.key(), generation: self.generation };
            entry.insert(Conn::new(id, index, stream, now));
            self.engines[index].journal.connections += 1;
            self.engines[index].journal.open += 1;
        }
    }

    fn on_socket(&mut self, index: usize, readable: bool, closing: bool) {
        let Some(conn) = self.conns.get_mut(index) else { return };
        if readable {
            conn.read(&mut self.scratch, closing);
        }
        let id = conn.id;
        self.drive(id, Instant::now());
    }

    fn on_timer(&mut self, wake: Wake, now: Instant) {
        match wake {
            Wake::Conn(id) => {
                if let Some(conn) = self.conns.get_mut(id.index).filter(|conn| conn.id == id) {
                    conn.wake_at = None;
                    self.drive(id, now);
                }
            }
            Wake::Engine(index) => {
                self.pump(index, now);
                self.drive_all(now);
            }
            Wake::Sweep => self.sweep(now),
        }
    }

    fn drive(&mut self, id: ConnId, now: Instant) {
        self.work.push(id);
        self.drive_all(now);
    }

    fn drive_all(&mut self, now: Instant) {
        while let Some(id) = self.work.pop() {
            let Some(conn) = self.conns.get_mut(id.index).filter(|conn| conn.id == id) else { continue };
            let index = conn.engine;
            self.step(id, now);
            if std::mem::take(&mut self.engines[index].pump_wanted) {
                self.pump(index, now);
                // It was left unsent what depends on whether its turn would come at once.
                if self.work.last() != Some(&id) {
                    self.work.push(id);
                }
            }
            if !self.engines[index].fault_orders.is_empty() {
                self.obey(index, id);
                self.work.push(id);
            }
        }
    }

    /// Takes one connection as far as it goes.
    fn step(&mut self, id: ConnId, now: Instant) {
        let conn = &mut self.conns[id.index];
        let engine = &mut self.engines[conn.engine];
        loop {
            if conn.gone {
                exchange::abandon(conn, engine, now);
            }
            let wake = exchange::advance(conn, engine, now);
            if !engine.fault_orders.is_empty() {
                // The order is carried out before its answer is sent.
                return;
            }
            let had_output = !conn.output.is_empty();
            let drip = conn.flush(now);
            if conn.resume() {
                conn.read(&mut self.scratch, false);
                continue;
            }
            if let Some(at) = wake.into_iter().chain(drip).min() {
                wake_at(&mut self.timers, conn, at);
            }
            // Room was made: a long answer, or the next of several requests, goes on.
            let more = matches!(conn.phase, Phase::Answering(_)) || !conn.input.is_empty();
            if !(had_output && conn.output.is_empty() && more && !conn.gone) {
                break;
            }
        }
        if conn.gone {
            exchange::abandon(conn, engine, now);
        }
        if conn.is_over(now) {
            self.drop_conn(id.index);
        } else if matches!(conn.phase, Phase::Ending) && conn.output.is_empty() {
            wake_at(&mut self.timers, conn, now + LINGER);
        }
    }

    /// Lets the next requests of an engine begin.
    fn pump(&mut self, index: usize, now: Instant) {
        let engine = &mut self.engines[index];
        while let Some(started) = engine.scheduler.start_next(now) {
            let id = started.conn;
            match self.conns.get_mut(id.index).filter(|conn| conn.id == id).map(|conn| &mut conn.phase) {
                Some(Phase::Answering(generation)) => {
                    let tokens = generation.answer.prompt_tokens as u64;
                    engine.counters.prompt_tokens += tokens;
                    engine.counters.cache_queries += tokens;
                    engine.counters.cache_hits += started.cached_tokens as u64;
                    generation.answer.cached_tokens = started.cached_tokens;
                    generation.started = Some(started);
                    self.work.push(id);
                }
                _ => engine.scheduler.finish(id, &started.lease, started.named, &[]),
            }
        }
        if let Some(until) = engine.scheduler.busy_until() {
            self.timers.set(until, Wake::Engine(index));
        }
    }

    fn sweep(&mut self, now: Instant) {
        self.timers.set(now + SWEEP_EVERY, Wake::Sweep);
        let idle: Vec<usize> = self
            .conns
            .iter()
            .filter(|(_, conn)| conn.is_idle() && now.saturating_duration_since(conn.since) >= self.keep_alive)
            .map(|(index, _)| index)
            .collect();
        for index in idle {
            self.drop_conn(index);
        }
        for index in 0..self.doors.len() {
            self.accept(index);
        }
    }

    fn drop_conn(&mut self, index: usize) {
        let mut conn = self.conns.remove(index);
        // Closing the descriptor takes it out of the queue in any case.
        let _ = self.poll.registry().deregister(&mut conn.stream);
        self.engines[conn.engine].journal.open -= 1;
    }

    /// Carries out what /debug/fault asked for, on connection `by`.
    fn obey(&mut self, index: usize, by: ConnId) {
        for (port, fault) in std::mem::take(&mut self.engines[index].fault_orders) {
            if let Some(target) = self.doors.iter().position(|door| door.port() == port) {
                self.engines[target].fault = fault;
                if let Err(error) = self.change_door(target, fault, Some(by)) {
                    eprintln!("trieway-loadtest: port {port}: {error}");
                }
            }
        }
    }

    /// Opens or closes an engine's door as its fault wants it. Closing ends its connections too, as a crash would,
    /// but for `spared`, which gets an answer.
    fn change_door(&mut self, index: usize, fault: Option<Fault>, spared: Option<ConnId>) -> io::Result<()> {
        let door = &mut self.doors[index];
        let (closed, deaf) = (fault == Some(Fault::Refuse), fault == Some(Fault::Deaf));
        if closed {
            door.listener = None;
            let now = Instant::now();
            let engine = &mut self.engines[index];
            let hit = |conn: &Conn| conn.engine == index && Some(conn.id) != spared;
            let crashed: Vec<usize> = self.conns.iter().filter(|(_, conn)| hit(conn)).map(|(key, _)| key).collect();
            for key in &crashed {
                exchange::abandon(&mut self.conns[*key], engine, now);
            }
            crashed.into_iter().for_each(|key| self.drop_conn(key));
        } else if let Some(listener) = door.reopen(deaf)? {
            self.poll.registry().register(listener, Token(index), Interest::READABLE)?;
        }
        Ok(())
    }
}

fn wake_at(timers: &mut Timers, conn: &mut Conn, at: Instant) {
    if conn.wake_at.is_none_or(|set| at < set) {
        conn.wake_at = Some(at);
        timers.set(at, Wake::Conn(conn.id));
    }
}
