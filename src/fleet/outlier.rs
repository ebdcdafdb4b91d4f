//! Outlier ejection: a backend whose requests fail, one after another, gets none for a time, and then a few that find out
//! whether it is well. As Envoy and HAProxy have it.
//!
//! **Penalty.** From its first failure on a backend counts for less: for a second, and a second more with each failure that
//! follows, it gets only requests of which it holds more than every other one. A success ends that. A backend that fails fast is idle all
//! the time, so that without a penalty every choice by load would go to it.
//!
//! **Ejection.** So many failures without a success in between eject it, for the base time the first time, for a multiple
//! of it when it is ejected again soon; the multiple goes down by one with each base time that it was well.
//!
//! **Probation.** When the time is over, at most [`MOST_PROBES`] requests at a time go to it. [`PASSES`] of them that succeed end the
//! ejection, one that fails begins the next. The bound is by what workers see of each other: it can be passed by one request
//! a worker that chooses at the same moment.
//!
//! It must not know what a failure is, nor who else serves a model: the caller says so. The last backend of a model is never
//! ejected, and when all are out all are used.
//!
//! One line a backend, shared by all workers: what one sees holds for all at once. While a backend is well, one flag is read and
//! nothing is written. Relaxed throughout: a figure that is a moment old costs a request more or less. Time is passed in, in
//! milliseconds of one clock.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::config;

/// Requests that may find out at a time whether a backend is well.
const MOST_PROBES: u32 = 2;

/// Successes that end an ejection.
const PASSES: u32 = 2;

/// What a failure in a row adds to the penalty's time.
const PENALTY_MS: u64 = 1000;

/// The penalty's time at most.
const MOST_PENALTY_MS: u64 = 30_000;

/// How a backend stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Well,
    /// It has failed of late.
    Penalized,
    /// It gets no requests, or as many find out now how it is as may.
    Ejected,
    /// A request may find out how it is.
    Probation,
}

#[derive(Default)]
#[repr(align(128))]
pub struct Outlier {
    /// Anything below says more than that it is well.
    suspect: AtomicBool,
    /// Without a success in between.
    failures: AtomicU32,
    penalized_until_ms: AtomicU64,
    /// 0: it is not ejected. Passed: it is on probation.
    ejected_until_ms: AtomicU64,
    /// The multiple of the base time of the last ejection, and when that was over.
    multiple: AtomicU32,
    returned_ms: AtomicU64,
    /// Requests that find out how it is, and those of them that have succeeded.
    probes: AtomicU32,
    passed: AtomicU32,
    ejections: AtomicU64,
}

impl Outlier {
    /// Another backend begins without a past. Probes belong to the guards that end them.
    pub(super) fn forget(&self) {
        self.clear();
        self.multiple.store(0, Relaxed);
        self.ejections.store(0, Relaxed);
    }

    /// What failed was another process: this one begins well. How often its backend was ejected stays known, so that one
    /// that dies again and again is ejected for longer each time.
    pub fn restarted(&self, now_ms: u64) {
        if self.suspect.load(Relaxed) {
            self.returned_ms.store(now_ms, Relaxed);
            self.clear();
        }
    }

    fn clear(&self) {
        self.failures.store(0, Relaxed);
        self.penalized_until_ms.store(0, Relaxed);
        self.ejected_until_ms.store(0, Relaxed);
        self.passed.store(0, Relaxed);
        self.suspect.store(false, Relaxed);
    }

    /// How it stands; the clock is asked only when there is something to tell.
    #[inline]
    pub fn verdict(&self, now_ms: impl FnOnce() -> u64) -> Verdict {
        if !self.suspect.load(Relaxed) {
            return Verdict::Well;
        }
        let (now_ms, until_ms) = (now_ms(), self.ejected_until_ms.load(Relaxed));
        match until_ms {
            0 if now_ms < self.penalized_until_ms.load(Relaxed) => Verdict::Penalized,
            0 => Verdict::Well,
            _ if now_ms >= until_ms && self.probes.load(Relaxed) < MOST_PROBES => Verdict::Probation,
            _ => Verdict::Ejected,
        }
    }

    /// Until it has been found well again.
    #[inline]
    pub fn is_ejected(&self) -> bool {
        self.suspect.load(Relaxed) && self.ejected_until_ms.load(Relaxed) > 0
    }

    /// How often it was ejected.
    pub fn ejections(&self) -> u64 {
        self.ejections.load(Relaxed)
    }

    /// The multiple of the base time of its last ejection.
    pub fn multiple(&self) -> u32 {
        self.multiple.load(Relaxed)
    }

    /// A request is sent to it. Some: its outcome tells whether it is well, as long as the guard lives.
    #[inline]
    pub fn begin(&self) -> Option<Probe<'_>> {
        self.is_ejected().then(|| {
            self.probes.fetch_add(1, Relaxed);
            Probe(self)
        })
    }

    /// A request succeeded. Of those that were sent before it was ejected this says nothing of what it is now.
    #[inline]
    pub fn succeeded(&self, probe: Option<&Probe<'_>>, now_ms: impl FnOnce() -> u64) {
        if !self.suspect.load(Relaxed) {
            return;
        }
        if self.ejected_until_ms.load(Relaxed) == 0 {
            self.clear();
        } else if probe.is_some() && self.passed.fetch_add(1, Relaxed) + 1 >= PASSES {
            self.returned_ms.store(now_ms(), Relaxed);
            self.clear();
        }
    }

    /// It turned a request away because of its load: nothing is wrong with it, but others go first for a moment.
    pub fn overloaded(&self, rules: &config::Outlier, now_ms: u64) {
        if rules.consecutive_errors > 0 {
            self.penalized_until_ms.fetch_max(now_ms + PENALTY_MS, Relaxed);
            self.suspect.store(true, Relaxed);
        }
    }

    /// A request failed. `may_be_ejected`: others serve what it serves. True: it is ejected now.
    pub fn failed(
        &self,
        probe: Option<&Probe<'_>>,
        rules: &config::Outlier,
        now_ms: u64,
        may_be_ejected: impl FnOnce() -> bool,
    ) -> bool {
        if rules.consecutive_errors == 0 {
            return false;
        }
        let until_ms = self.ejected_until_ms.load(Relaxed);
        if until_ms > 0 && (probe.is_none() || now_ms < until_ms) {
            return false;
        }
        let failures = self.failures.fetch_add(1, Relaxed).saturating_add(1);
        let penalty_ms = (PENALTY_MS * u64::from(failures)).min(MOST_PENALTY_MS);
        self.penalized_until_ms.store(now_ms + penalty_ms, Relaxed);
        self.suspect.store(true, Relaxed);
        let is_over = until_ms > 0 || failures >= rules.consecutive_errors;
        is_over && may_be_ejected() && self.eject(until_ms, rules, now_ms)
    }

    fn eject(&self, before_ms: u64, rules: &config::Outlier, now_ms: u64) -> bool {
        let base_ms = (rules.base_ejection.as_millis() as u64).max(1);
        let well_ms = if before_ms > 0 { 0 } else { now_ms.saturating_sub(self.returned_ms.load(Relaxed)) };
        let well = u32::try_from(well_ms / base_ms).unwrap_or(u32::MAX);
        let multiple = self.multiple.load(Relaxed).saturating_sub(well).saturating_add(1);
        let most_ms = (rules.max_ejection.as_millis() as u64).max(base_ms);
        let until_ms = now_ms + base_ms.saturating_mul(u64::from(multiple)).min(most_ms);
        // Of several that find this out at once, one ejects.
        if self.ejected_until_ms.compare_exchange(before_ms, until_ms, Relaxed, Relaxed).is_err() {
            return false;
        }
        self.multiple.store(multiple, Relaxed);
        self.passed.store(0, Relaxed);
        self.ejections.fetch_add(1, Relaxed);
        true
    }
}

/// One request to a backend that is ejected; dropping it, on whatever path, makes room for the next.
#[must_use]
pub struct Probe<'a>(&'a Outlier);

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        self.0.probes.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const RULES: config::Outlier = config::Outlier {
        consecutive_errors: 3,
        base_ejection: Duration::from_secs(10),
        max_ejection: Duration::from_secs(25),
    };

    fn at(outlier: &Outlier, now_ms: u64) -> Verdict {
        outlier.verdict(|| now_ms)
    }

    fn fail(outlier: &Outlier, now_ms: u64) -> bool {
        let probe = outlier.begin();
        outlier.failed(probe.as_ref(), &RULES, now_ms, || true)
    }

    fn succeed(outlier: &Outlier, now_ms: u64) {
        let probe = outlier.begin();
        outlier.succeeded(probe.as_ref(), || now_ms);
    }

    #[test]
    fn one_failure_is_a_penalty_that_fades_and_that_a_success_ends() {
        let outlier = Outlier::default();
        assert_eq!(at(&outlier, 0), Verdict::Well);
        assert!(!fail(&outlier, 0));
        assert_eq!((at(&outlier, 999), at(&outlier, 1000)), (Verdict::Penalized, Verdict::Well));
        assert!(!fail(&outlier, 2000));
        assert_eq!((at(&outlier, 3999), at(&outlier, 4000)), (Verdict::Penalized, Verdict::Well));
        succeed(&outlier, 2500);
        assert_eq!(at(&outlier, 2500), Verdict::Well);
        assert!(!fail(&outlier, 3000) && !fail(&outlier, 3000), "the row began anew");
        outlier.overloaded(&RULES, 9000);
        assert_eq!((at(&outlier, 9999), at(&outlier, 10_000)), (Verdict::Penalized, Verdict::Well));
    }

    #[test]
    fn failures_in_a_row_eject_and_a_few_requests_find_out() {
        let outlier = Outlier::default();
        assert!(!fail(&outlier, 0) && !fail(&outlier, 0) && fail(&outlier, 0));
        assert!(!outlier.failed(None, &RULES, 1, || true), "what was under way changes nothing");
        outlier.succeeded(None, || 5);
        assert_eq!((at(&outlier, 9_999), at(&outlier, 10_000)), (Verdict::Ejected, Verdict::Probation));
        let probes = [outlier.begin(), outlier.begin()];
        assert_eq!(at(&outlier, 10_000), Verdict::Ejected, "as many find out as may");
        drop(probes);
        succeed(&outlier, 10_500);
        assert!(outlier.is_ejected());
        succeed(&outlier, 10_500);
        assert_eq!((at(&outlier, 10_500), outlier.ejections()), (Verdict::Well, 1));
    }

    #[test]
    fn another_process_begins_well_and_is_ejected_for_longer_if_it_fails_as_well() {
        let outlier = Outlier::default();
        (0..3).for_each(|_| _ = fail(&outlier, 0));
        assert!(outlier.is_ejected());
        outlier.restarted(2000);
        assert_eq!((at(&outlier, 2000), outlier.ejections()), (Verdict::Well, 1));
        (0..3).for_each(|_| _ = fail(&outlier, 3000));
        assert_eq!((outlier.multiple(), at(&outlier, 22_999)), (2, Verdict::Ejected));
    }

    #[test]
    fn the_time_grows_up_to_its_bound_and_is_forgiven_while_it_is_well() {
        let outlier = Outlier::default();
        (0..3).for_each(|_| _ = fail(&outlier, 0));
        assert!(fail(&outlier, 10_000), "one failure on probation is enough");
        assert_eq!((at(&outlier, 29_999), at(&outlier, 30_000)), (Verdict::Ejected, Verdict::Probation));
        assert!(fail(&outlier, 30_000));
        assert_eq!((at(&outlier, 54_999), at(&outlier, 55_000)), (Verdict::Ejected, Verdict::Probation));
        (0..2).for_each(|_| succeed(&outlier, 55_000));
        // Well for two times the base.
        (0..3).for_each(|_| _ = fail(&outlier, 75_000));
        assert_eq!((at(&outlier, 94_999), at(&outlier, 95_000)), (Verdict::Ejected, Verdict::Probation));
    }

    #[test]
    fn the_last_one_is_not_ejected_and_what_is_off_does_nothing() {
        let outlier = Outlier::default();
        assert!((0..9).all(|_| !outlier.failed(None, &RULES, 0, || false)));
        assert_eq!(at(&outlier, 0), Verdict::Penalized);
        let off = config::Outlier { consecutive_errors: 0, ..RULES };
        let outlier = Outlier::default();
        outlier.overloaded(&off, 0);
        assert!((0..9).all(|_| !outlier.failed(None, &off, 0, || true)));
        assert_eq!(at(&outlier, 0), Verdict::Well);
    }

    #[test]
    fn many_threads_eject_once_and_leave_no_probe_behind() {
        let outlier = Outlier::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| _ = fail(&outlier, 7)));
            }
        });
        assert_eq!((outlier.ejections(), at(&outlier, 10_007)), (1, Verdict::Probation));
    }
}
