//! The data plane: worker threads that accept, read, choose and relay. The only room that knows monoio and sockets.
//!
//! `accept` takes a connection and spawns `conn`, or hands it to another worker by `mailbox`; `exchange` is one request from
//! top to bottom, with `request` (reading it), `plan` (where it goes), `admission`, `pending` and `place` (whether it may go
//! now), `attempt` (one backend's turn; `retry`: may it go again; `verdict`: what its end says of the backend), `relay` (the
//! answer; `splice` where it is large, `pace` where it is a stream), `tunnel` (a
//! WebSocket), `forecast` and `usage` (what `ttft` expects and learns), `request_log` (its line, if it is asked for) and
//! `explain` (what would be chosen). Below them: `call`, `client`, `upstream`, `socket`, `buffer`, `credit`, `pipes`, `lease`, `keep`,
//! `deadline`, and `coop`, by which each task leaves turns to the others.
//!
//! Invariants: a worker waits only for its own sockets; nothing is locked but the waiting room, by who waits or is
//! waited for; and no guard of the trie is held, across an await;
//! a request's load is released by a guard on every path.

mod accept;
mod admission;
mod attempt;
mod budget;
mod buffer;
mod call;
mod client;
mod conn;
mod control;
mod coop;
mod credit;
#[allow(unsafe_code, reason = "shuts down descriptors that sockets of this worker own")]
mod deadline;
mod exchange;
mod explain;
mod failure;
mod forecast;
#[allow(unsafe_code, reason = "takes over descriptors that the environment names")]
mod inherit;
mod keep;
mod lease;
mod mailbox;
mod pace;
mod paths;
mod pending;
mod pin;
mod pipes;
mod place;
mod plan;
mod relay;
mod request;
mod request_log;
mod retry;
mod ring;
mod sabotage;
#[allow(unsafe_code, reason = "borrows the descriptor that monoio keeps open")]
mod socket;
mod splice;
mod stall;
mod tunnel;
mod turn;
mod upstream;
mod usage;
mod verdict;
mod worker;

use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

pub use accept::{Listeners, listen};
pub use budget::fit;
pub use inherit::inherited;
pub use ring::{Driver, pick};

use crate::shared::Shared;
use mailbox::Mailboxes;
use pending::Pending;
use worker::Worker;

/// Starts one thread for each worker's listeners and returns once all of them run. They run until the process ends.
///
/// # Errors
/// One line, when a worker could not start.
pub fn start(shared: &'static Shared, listeners: Listeners, driver: Driver) -> Result<(), String> {
    let (report, reports) = mpsc::channel();
    let workers = listeners.sockets.len();
    let cpus = pin::plan(&shared.config.pin, workers)?;
    let mailboxes =
        Mailboxes::new(workers).map_err(|error| format!("no descriptors for {workers} workers: {error}"))?;
    let mailboxes: &'static Mailboxes = Box::leak(Box::new(mailboxes));
    let pending = Pending::new(&shared.fleet, shared.config.overload.inflight_per_backend);
    let pending: &'static Pending = Box::leak(Box::new(pending));
    shared.listening.store(listeners.sockets.iter().map(Vec::len).sum(), Ordering::Relaxed);
    for (index, own) in listeners.sockets.into_iter().enumerate() {
        let report = report.clone();
        let cpu = cpus.as_ref().map(|cpus| cpus[index]);
        let run = move || {
            cpu.inspect(|&cpu| pin::pin(cpu));
            match Worker::new(shared, mailboxes, pending, index) {
                Ok(worker) => run(worker, own, driver, report),
                Err(error) => drop(report.send(Err(error))),
            }
        };
        std::thread::Builder::new()
            .name(format!("worker-{index}"))
            .spawn(run)
            .map_err(|error| format!("worker {index} of {workers} cannot be started: {error}"))?;
    }
    drop(report);
    for _ in 0..workers {
        match reports.recv() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(format!("a worker cannot start on {driver}: {error}")),
            Err(_) => return Err("a worker ended while it started".to_owned()),
        }
    }
    Ok(())
}

fn run(worker: Rc<Worker>, listeners: Vec<socket2::Socket>, driver: Driver, report: mpsc::Sender<io::Result<()>>) {
    let _fails = FailVisibly { index: worker.index };
    worker.shard().thread_id.store(thread_id(), Ordering::Relaxed);
    let ready = move |result| drop(report.send(result));
    driver.block_on(ready, || async move {
        for listener in listeners {
            monoio::spawn(accept::run(Rc::clone(&worker), listener));
        }
        monoio::spawn(coop::run(Rc::clone(&worker.deadlines)));
        monoio::spawn(mailbox::run(Rc::clone(&worker)));
        monoio::spawn(keep::run(Rc::clone(&worker)));
        worker.housekeep().await;
    });
}

/// A worker never ends before its process: if one does, so does the process, since its connections would hang.
struct FailVisibly {
    index: usize,
}

impl Drop for FailVisibly {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("worker {} has failed; the process ends", self.index);
            std::process::exit(70);
        }
    }
}

/// The calling thread's id, as under `/proc/self/task`; 0 where there is none.
fn thread_id() -> i32 {
    let link = std::fs::read_link("/proc/thread-self").unwrap_or_default();
    link.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok()).unwrap_or(0)
}
