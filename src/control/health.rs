//! When is a backend up? Pure: probe results and worker marks in, states and the time of the next probe out.
//!
//! - One failed probe never takes a backend out: the second in a row does. The second one is asked for early.
//! - A worker that could not connect takes it out at once.
//! - A process that was away (refused, or unreachable for a worker) is back with its first answer. One that was there all
//!   the time but failed comes back with the second.
//! - A probe without an answer in time says nothing against a backend that answers requests meanwhile: it is busy.
//! - What goes out again soon after it came back waits twice as long for the next probe, up to the interval.

use std::time::Duration;

use tokio::time::Instant;

use crate::fleet::snapshot::State;

/// First wait for a probe of a backend that refuses connections.
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// Wait for the second opinion on a probe that failed otherwise.
const SECOND_OPINION: Duration = Duration::from_secs(1);
/// Up for this long, a backend counts as steady: the waits begin anew.
const STEADY: Duration = Duration::from_secs(10);
const FAILURES_TO_GO_DOWN: u32 = 2;
const SUCCESSES_TO_RETURN: u32 = 2;

#[derive(Debug)]
pub(super) struct Health {
    state: State,
    interval: Duration,
    failures: u32,
    successes: u32,
    retry: Duration,
    up_since: Option<Instant>,
    /// Connections were refused, or failed for a worker, since the last answer.
    away: bool,
}

/// What follows from an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// The state is another one now.
    pub(super) changed: bool,
    /// The process answers after it was away: it may be another process.
    pub(super) returned: bool,
    pub(super) next_probe: Duration,
}

impl Health {
    /// `assumed_up`: its models are known, so it can take requests before the first probe has answered.
    pub(super) fn new(assumed_up: bool, interval: Duration) -> Self {
        Health {
            state: if assumed_up { State::Up } else { State::Unknown },
            interval,
            failures: 0,
            successes: 0,
            retry: FIRST_RETRY.min(interval),
            up_since: None,
            away: false,
        }
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    pub(super) fn is_away(&self) -> bool {
        self.away
    }

    /// Whether it was away, which is thereby dealt with.
    pub(super) fn take_away(&mut self) -> bool {
        std::mem::take(&mut self.away)
    }

    /// A probe was answered well.
    pub(super) fn alive(&mut self, now: Instant) -> Step {
        self.failures = 0;
        let returned = self.take_away();
        if self.state == State::Up {
            return Step { changed: false, returned, next_probe: self.interval };
        }
        self.successes += 1;
        if self.state == State::Down && !returned && self.successes < SUCCESSES_TO_RETURN {
            return Step { changed: false, returned, next_probe: FIRST_RETRY.min(self.interval) };
        }
        self.state = State::Up;
        self.up_since = Some(now);
        Step { changed: true, returned, next_probe: self.interval }
    }

    /// A probe failed; `refused`: nothing listens there.
    pub(super) fn failed(&mut self, refused: bool, now: Instant) -> Step {
        self.successes = 0;
        self.failures += 1;
        self.away |= refused;
        if self.state == State::Down {
            self.retry = (self.retry * 2).min(self.interval);
            return Step { changed: false, returned: false, next_probe: self.retry };
        }
        if self.failures < FAILURES_TO_GO_DOWN {
            let wait = if refused { FIRST_RETRY } else { SECOND_OPINION };
            return Step { changed: false, returned: false, next_probe: wait.min(self.interval) };
        }
        self.go_down(now)
    }

    /// A probe was not answered in time, while requests were.
    pub(super) fn busy(&self) -> Step {
        Step { changed: false, returned: false, next_probe: SECOND_OPINION.min(self.interval) }
    }

    /// A worker could not connect.
    pub(super) fn unreachable(&mut self, now: Instant) -> Step {
        self.away = true;
        self.successes = 0;
        if self.state == State::Down {
            return Step { changed: false, returned: false, next_probe: self.retry };
        }
        self.go_down(now)
    }

    /// Without probes there are only two states: its models are known, or not yet.
    pub(super) fn admit_unprobed(&mut self) -> bool {
        let changed = self.state != State::Up;
        self.state = State::Up;
        changed
    }

    /// Without probes a worker's mark changes no state; that its process was away is remembered.
    pub(super) fn note_away(&mut self) {
        self.away = true;
    }

    fn go_down(&mut self, now: Instant) -> Step {
        self.state = State::Down;
        let steady = self.up_since.is_none_or(|since| now.duration_since(since) >= STEADY);
        let retry = if steady { FIRST_RETRY } else { self.retry * 2 };
        self.retry = retry.min(self.interval);
        Step { changed: true, returned: false, next_probe: self.retry }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(5);

    fn at(seconds: u64) -> Instant {
        use std::sync::OnceLock;
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        *ORIGIN.get_or_init(Instant::now) + Duration::from_secs(seconds)
    }

    fn up() -> Health {
        let mut health = Health::new(false, INTERVAL);
        assert!(health.alive(at(0)).changed);
        health
    }

    #[test]
    fn the_first_answer_brings_it_up() {
        let mut health = Health::new(false, INTERVAL);
        assert_eq!(health.state(), State::Unknown);
        assert_eq!(health.alive(at(0)), Step { changed: true, returned: false, next_probe: INTERVAL });
        assert_eq!(health.state(), State::Up);
    }

    #[test]
    fn known_models_make_it_up_until_probes_say_otherwise() {
        let mut health = Health::new(true, INTERVAL);
        assert_eq!(health.state(), State::Up);
        health.failed(true, at(0));
        assert!(health.failed(true, at(0)).changed);
        assert_eq!(health.state(), State::Down);
    }

    #[test]
    fn one_failure_never_flaps() {
        for refused in [false, true] {
            let mut health = up();
            for round in 0..20 {
                let step = health.failed(refused, at(round));
                assert!(!step.changed && step.next_probe <= SECOND_OPINION, "{step:?}");
                assert!(!health.alive(at(round)).changed);
            }
            assert_eq!(health.state(), State::Up);
        }
    }

    #[test]
    fn refused_twice_is_down_and_the_first_answer_is_a_return() {
        let mut health = up();
        assert_eq!(health.failed(true, at(20)).next_probe, FIRST_RETRY);
        assert!(health.failed(true, at(20)).changed);
        let waits: Vec<_> = (0..7).map(|_| health.failed(true, at(20)).next_probe.as_millis()).collect();
        assert_eq!(waits, [200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(health.alive(at(30)), Step { changed: true, returned: true, next_probe: INTERVAL });
        assert_eq!(health.alive(at(31)), Step { changed: false, returned: false, next_probe: INTERVAL });
    }

    #[test]
    fn one_that_failed_without_going_away_needs_two_answers_and_has_not_returned() {
        let mut health = up();
        assert_eq!(health.failed(false, at(20)).next_probe, SECOND_OPINION);
        assert!(health.failed(false, at(21)).changed);
        assert!(!health.alive(at(22)).changed);
        health.failed(false, at(23));
        assert!(!health.alive(at(24)).changed);
        assert_eq!(health.alive(at(25)), Step { changed: true, returned: false, next_probe: INTERVAL });
    }

    #[test]
    fn a_workers_mark_takes_it_out_at_once_and_repeats_wait_longer() {
        let mut health = up();
        let mut waits = Vec::new();
        for round in 0..8 {
            let step = health.unreachable(at(100 + round));
            assert!(step.changed);
            waits.push(step.next_probe.as_millis());
            assert!(health.alive(at(100 + round)).returned);
        }
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(health.unreachable(at(200)).next_probe, FIRST_RETRY);
    }
}
