//! The end of the process: signals, and the wait for running requests.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::notify::notify;
use crate::shared::{Phase, Shared};

/// How often the number of open connections is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The signal that asks for a handover.
pub(super) const HAND_OVER: &str = "SIGUSR2";

/// After a handover, connections that wait for their next request stay open for so long: a request that is on its way is
/// served, and the client then told to connect anew.
const LEAVING: Duration = Duration::from_secs(5);

/// Why the process is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Signal(&'static str),
    /// That process serves now.
    HandedOver {
        pid: u32,
    },
}

/// Why [`super::Control::run`] has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// Every connection has ended.
    Drained,
    /// The time for it was up; so many connections were still open.
    TimeUp { connections: usize },
    /// A second signal asked for the end at once.
    Interrupted { connections: usize },
}

/// The names of the signals as they arrive. From here on, SIGTERM and SIGINT no longer kill the process.
pub(super) fn signals() -> mpsc::Receiver<&'static str> {
    let (sender, receiver) = mpsc::channel(4);
    let kinds = [
        (SignalKind::terminate(), "SIGTERM"),
        (SignalKind::interrupt(), "SIGINT"),
        (SignalKind::user_defined2(), HAND_OVER),
    ];
    for (kind, name) in kinds {
        match signal(kind) {
            Ok(mut arrivals) => {
                let sender = sender.clone();
                tokio::spawn(
                    async move { while arrivals.recv().await.is_some() && sender.send(name).await.is_ok() {} },
                );
            }
            Err(error) => tracing::error!("{name} will end the process at once, it cannot be handled: {error}"),
        }
    }
    receiver
}

/// Drains for this cause, and returns when it is over.
pub(super) async fn run(shared: &Shared, cause: Cause, mut signals: mpsc::Receiver<&'static str>) -> ExitReason {
    let open = || shared.connections.load(Ordering::Acquire);
    let listening = || shared.listening.load(Ordering::Acquire);
    let limit = shared.config.times.drain;
    let says = match cause {
        Cause::Signal(name) => {
            notify("STOPPING=1");
            name.to_owned()
        }
        Cause::HandedOver { pid } => format!("process {pid} has taken over"),
    };
    tracing::info!("{says}: draining for up to {limit:?}, a second signal ends at once; open connections: {}", open());
    let closes_idle = async {
        if let Cause::HandedOver { .. } = cause {
            shared.advance(Phase::Leaving);
            tokio::time::sleep(LEAVING).await;
        }
        shared.advance(Phase::Draining);
        std::future::pending().await
    };
    let reason = tokio::select! {
        biased;
        never = closes_idle => never,
        _ = next_to_end(&mut signals) => ExitReason::Interrupted { connections: open() },
        reason = drained(&open, &listening, limit) => reason,
    };
    match reason {
        ExitReason::Drained => tracing::info!("drained: every connection has ended"),
        ExitReason::TimeUp { connections } => {
            tracing::warn!("the time to drain is up; connections cut: {connections}");
        }
        ExitReason::Interrupted { connections } => {
            tracing::warn!("second signal: ending now; connections cut: {connections}");
        }
    }
    reason
}

/// The next signal; never, when none can be handled.
pub(super) async fn next(signals: &mut mpsc::Receiver<&'static str>) -> &'static str {
    match signals.recv().await {
        Some(name) => name,
        None => std::future::pending().await,
    }
}

/// The next signal that asks for the end.
pub(super) async fn next_to_end(signals: &mut mpsc::Receiver<&'static str>) -> &'static str {
    loop {
        match next(signals).await {
            HAND_OVER => {}
            name => return name,
        }
    }
}

/// `listening`: sockets whose accept queues are not emptied yet; who waits there is served, too.
async fn drained(open: &impl Fn() -> usize, listening: &impl Fn() -> usize, limit: Duration) -> ExitReason {
    let end = Instant::now() + limit;
    loop {
        // The workers look at the phase between two requests: a connection accepted just before it changed counts.
        tokio::time::sleep(LOOK_EVERY).await;
        // In this order: what left an accept queue in between is counted as open.
        let (listening, connections) = (listening(), open());
        if listening == 0 && connections == 0 {
            return ExitReason::Drained;
        }
        if Instant::now() >= end {
            return ExitReason::TimeUp { connections };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::testing::shared;

    /// The reason of a drain with `connections` open, of which `leave` end after 60 ms, and the signals that come.
    async fn drain(connections: usize, leave: usize, signals: &[&'static str]) -> (ExitReason, Duration) {
        let shared = shared("--static-backends http://127.0.0.1:1 --drain-timeout 0.3");
        shared.connections.store(connections, Ordering::Release);
        let (sender, receiver) = mpsc::channel(4);
        for name in signals {
            sender.send(*name).await.expect("room");
        }
        assert_eq!(shared.phase(), Phase::Running);
        let leaver = async {
            tokio::time::sleep(Duration::from_millis(60)).await;
            shared.connections.fetch_sub(leave, Ordering::AcqRel);
        };
        let began = Instant::now();
        let mut receiver = receiver;
        let cause = Cause::Signal(next(&mut receiver).await);
        let (reason, ()) = tokio::join!(run(shared, cause, receiver), leaver);
        assert_eq!(shared.phase(), Phase::Draining);
        (reason, began.elapsed())
    }

    #[tokio::test]
    async fn ends_with_the_last_connection() {
        let (reason, took) = drain(2, 2, &["SIGTERM"]).await;
        assert_eq!(reason, ExitReason::Drained);
        assert!((60..250).contains(&took.as_millis()), "{took:?}");
    }

    #[tokio::test]
    async fn cuts_what_is_left_when_the_time_is_up() {
        let (reason, took) = drain(5, 2, &["SIGINT"]).await;
        assert_eq!(reason, ExitReason::TimeUp { connections: 3 });
        assert!(took >= Duration::from_millis(300), "{took:?}");
    }

    #[tokio::test]
    async fn a_second_signal_ends_at_once() {
        let (reason, took) = drain(5, 0, &["SIGTERM", "SIGTERM"]).await;
        assert_eq!(reason, ExitReason::Interrupted { connections: 5 });
        assert!(took < Duration::from_millis(200), "{took:?}");
    }
}
