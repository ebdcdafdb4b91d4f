//! The control plane: tokio, everything that may wait. One thread works; another one answers people, so that no number of
//! questions holds up a probe, a signal or a sum.
//!
//! It owns the list of backends and says what is known of them: `watch` probes each one, `health` turns probe results into
//! states, `members` keeps the list and publishes it as a fleet snapshot. `scrape` reads the engines' own metrics,
//! `aggregate` sums the workers' arrivals, `reload` takes over another configuration, `admin` answers the router's own paths on
//! a unix socket, by `pages`, `sleep` those that are for one backend, `state` keeps the trie's beliefs over the end of the process,
//! `handover` follows one process by another, `drain` ends it all. With the feature `kubernetes`, `kubernetes` finds pods.
//!
//! It must not know how a request is relayed: it meets the workers only in `shared`. It never touches a load counter.
//! Everything mutable lives in `plane::Plane`, behind one lock that is never held across an `.await`.

mod admin;
mod aggregate;
mod drain;
mod engine_stats;
mod engines;
mod error_log;
mod exposition;
mod fetch;
mod figures;
#[cfg(fuzzing)]
mod fuzzed;
mod handover;
mod health;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod lanes;
mod logging;
mod members;
mod models;
mod notify;
mod pages;
mod plane;
mod process;
mod reload;
mod scrape;
mod sleep;
mod socket;
mod state;
mod state_file;
mod table;
mod watch;

#[cfg(test)]
mod exposition_tests;
#[cfg(test)]
mod plane_tests;
#[cfg(test)]
mod testing;

#[cfg(fuzzing)]
pub use fuzzed::{read_state, write_state};

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::config::HANDOVER_VARIABLE;
use crate::shared::{Phase, Shared};
use drain::Cause;
use handover::Predecessor;
use notify::notify;
use plane::Plane;
use socket::AdminSocket;

pub use drain::ExitReason;
pub use logging::init_logging;
pub use state_file::{check as check_state_file, seed as seed_of_state_file};

/// Threads for name lookups, which block. More of them than this wait for one another.
const LOOKUP_THREADS: usize = 8;

/// Period of the process's upkeep.
const UPKEEP: Duration = Duration::from_secs(2);

/// The control plane before it runs: its socket is bound, so that its name can be told to the workers.
pub struct Control {
    runtime: Runtime,
    /// The thread that answers people waits for what it shall answer from.
    admin: mpsc::Sender<Arc<Plane>>,
    listeners: Vec<OwnedFd>,
    upkeep: fn(),
}

impl Control {
    /// Binds the admin socket, starts the thread that answers there, and returns the socket's name in the abstract namespace, for [`Shared::control_socket`].
    ///
    /// # Errors
    /// When the kernel refuses the socket, an event loop or the thread.
    pub fn bind() -> io::Result<(Control, String)> {
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(LOOKUP_THREADS).build()?;
        let answering = Builder::new_current_thread().enable_all().build()?;
        let (socket, name) = {
            let _entered = answering.enter();
            AdminSocket::bind()?
        };
        let (admin, plane) = mpsc::channel();
        let answer = move || {
            if let Ok(plane) = plane.recv() {
                answering.block_on(admin::serve(socket, plane));
            }
        };
        thread::Builder::new().name("admin".to_owned()).spawn(answer)?;
        Ok((Control { runtime, admin, listeners: Vec::new(), upkeep: || () }, name))
    }

    /// These are the workers' listening sockets, to be passed on in a handover.
    #[must_use]
    pub fn with_listeners(self, listeners: Vec<OwnedFd>) -> Self {
        Control { listeners, ..self }
    }

    /// What the process wants done now and then.
    #[must_use]
    pub fn with_upkeep(self, upkeep: fn()) -> Self {
        Control { upkeep, ..self }
    }

    /// Runs on the calling thread until a signal has asked for the end and the workers' connections have ended, or their
    /// time is up.
    pub fn run(self, shared: &'static Shared) -> ExitReason {
        let Control { runtime, admin, listeners, upkeep } = self;
        let reason = runtime.block_on(async {
            let plane = Arc::new(Plane::new(shared));
            // First of all: from here on a signal drains instead of killing.
            let mut signals = drain::signals();
            plane.set_backends(&shared.config.backends);
            #[cfg(feature = "kubernetes")]
            if let Some(options) = &shared.config.kubernetes {
                tokio::spawn(kubernetes::run(plane.clone(), options.clone()));
            }
            let state_file = shared.config.state_file.as_deref();
            begin(&plane, state_file);
            tokio::spawn(aggregate::run(plane.clone()));
            tokio::spawn(keep_up(upkeep));
            tokio::spawn(reload::run(plane.clone(), reload::hangups()));
            if admin.send(plane.clone()).is_err() {
                tracing::error!("the thread that answers the router's own paths has ended");
            }
            if let Some(interval) = shared.config.log.stats_interval {
                tokio::spawn(table::run(plane.clone(), interval));
            }
            let cause = handover::until_asked_to_end(&plane, &listeners, &mut signals).await;
            // While this process has them, too, a connection could wait in a queue that no worker empties any more.
            drop(listeners);
            let reason = drain::run(shared, cause, signals).await;
            if let (Some(path), Cause::Signal(_)) = (state_file, cause)
                && !matches!(reason, ExitReason::Interrupted { .. })
            {
                state_file::save(&plane, path);
            }
            reason
        });
        // A name lookup that hangs must not hold up the exit.
        runtime.shutdown_background();
        reason
    }
}

async fn keep_up(upkeep: fn()) {
    let mut period = tokio::time::interval(UPKEEP);
    loop {
        period.tick().await;
        upkeep();
    }
}

/// Takes in what an earlier process knew, and serves: at once, or when that process can be followed.
fn begin(plane: &Arc<Plane>, state_file: Option<&Path>) {
    if plane.shared.phase() == Phase::Starting {
        match Predecessor::meet() {
            Ok(predecessor) => {
                predecessor.restore(plane);
                let plane = plane.clone();
                tokio::spawn(async move { predecessor.take_over(&plane).await });
                return;
            }
            Err(error) => {
                tracing::warn!("{HANDOVER_VARIABLE} is set and standard input is no stream: {error}");
                plane.shared.advance(Phase::Running);
            }
        }
    }
    if let Some(path) = state_file {
        state_file::load(plane, path);
    }
    notify("READY=1");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_on_a_thread_and_answers_on_its_socket() {
        let (control, name) = Control::bind().expect("binds");
        let shared = testing::shared("--static-backends http://127.0.0.1:1 --static-models m");
        std::thread::spawn(move || control.run(shared));
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (status, body) = runtime.block_on(testing::ask_socket(&name, "GET", "/version"));
        assert_eq!((status, body), (200, format!(r#"{{"version":"{}"}}"#, env!("CARGO_PKG_VERSION"))));
    }
}
