//! What the end of a request says of its backend.
//!
//! Only an answer of 2xx that came whole is a success: only that is learnt from, and only that keeps what was marked. A failure
//! is what another backend might not have done: 5xx, a reset, an early end, an answer that is no HTTP, a time limit. Not
//! failures: 4xx and 501, which say something of the request, so that a client could get healthy backends ejected by what it
//! sends; 429 and 503, which say that the backend is busy or guards itself: it is spared for a moment and not ejected; a
//! connection that could not be made, for which health checks are there; a client that left.

use super::attempt::{Outcome, Trouble};
use super::failure::Failure;
use super::plan::Plan;
use super::worker::Worker;
use crate::fleet::outlier::Probe;
use crate::metrics::shard::ErrorKind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Success,
    /// Nothing of the backend, but it did not do what it was asked to.
    Refused,
    Overloaded,
    Failed,
    /// It was not seen to fail.
    ClientGone,
}

pub(super) fn of(run: &Result<Outcome, Trouble>) -> Verdict {
    match run {
        Ok(outcome) => of_status(outcome.status),
        Err(Trouble::Connect(..)) => Verdict::Refused,
        Err(Trouble::Failure(failure)) => of_failure(failure),
    }
}

fn of_status(status: u16) -> Verdict {
    match status {
        101 | 200..=299 => Verdict::Success,
        429 | 503 => Verdict::Overloaded,
        501 => Verdict::Refused,
        500.. => Verdict::Failed,
        _ => Verdict::Refused,
    }
}

fn of_failure(failure: &Failure) -> Verdict {
    match failure.error_kind() {
        Some(
            ErrorKind::FirstByteTimeout | ErrorKind::BetweenBytesTimeout | ErrorKind::Broken | ErrorKind::BadResponse,
        ) => Verdict::Failed,
        Some(ErrorKind::ClientGone | ErrorKind::ClientTimeout) => Verdict::ClientGone,
        Some(ErrorKind::Connect | ErrorKind::ConnectTimeout | ErrorKind::Internal) | None => Verdict::Refused,
    }
}

impl Verdict {
    /// Counts it for or against the backend in `slot`. `probe`: the request was to find out whether that is well.
    pub(super) fn tell(self, worker: &Worker, plan: &Plan, slot: u16, probe: Option<&Probe<'_>>) {
        let shared = worker.shared;
        let outlier = shared.fleet.outlier(slot);
        let now_ms = || shared.micros() / 1000;
        match self {
            Verdict::Success => outlier.succeeded(probe, now_ms),
            Verdict::Overloaded => outlier.overloaded(&shared.config.outlier, now_ms()),
            Verdict::Failed => {
                let may_be_ejected = || plan.has_another(worker, slot);
                _ = outlier.failed(probe, &shared.config.outlier, now_ms(), may_be_ejected);
            }
            Verdict::Refused | Verdict::ClientGone => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_say_whose_fault_it_is() {
        for (verdict, statuses) in [
            (Verdict::Success, &[101, 200, 206, 299][..]),
            (Verdict::Refused, &[301, 400, 404, 422, 499, 501]),
            (Verdict::Overloaded, &[429, 503]),
            (Verdict::Failed, &[500, 502, 504, 599]),
        ] {
            for &status in statuses {
                assert_eq!(of_status(status), verdict, "{status}");
            }
        }
    }

    #[test]
    fn who_is_not_the_backend_is_not_held_against_it() {
        let of = |kind| of_failure(&Failure::Broken(kind));
        assert_eq!((of(ErrorKind::Broken), of(ErrorKind::ClientGone)), (Verdict::Failed, Verdict::ClientGone));
        assert_eq!((of(ErrorKind::BetweenBytesTimeout), of(ErrorKind::Internal)), (Verdict::Failed, Verdict::Refused));
    }
}
