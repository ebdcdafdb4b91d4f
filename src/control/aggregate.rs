//! The short period: sums the arrivals, compares the backends' speeds, notices those that could not be reached, and
//! tells failed requests.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use super::error_log::ErrorLog;
use super::figures;
use super::plane::Plane;

const PERIOD: Duration = Duration::from_millis(100);
/// Periods from one look at the failed requests to the next: a second.
const ERRORS_EVERY: u32 = 10;
/// Periods from one step of a growing share to the next.
const SHARES_EVERY: u32 = 3;

pub(super) async fn run(plane: Arc<Plane>) {
    let mut period = interval(PERIOD);
    period.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut errors = ErrorLog::default();
    let mut round: u32 = 0;
    loop {
        period.tick().await;
        sum_arrivals(&plane);
        compare_speeds(&plane);
        notice_marks(&plane);
        tell_ejections(&plane);
        round = round.wrapping_add(1);
        if round.is_multiple_of(SHARES_EVERY) {
            plane.grow_shares();
        }
        if round.is_multiple_of(ERRORS_EVERY) {
            tell_errors(&plane, &mut errors);
        }
    }
}

fn sum_arrivals(plane: &Plane) {
    plane.members().sum_windows(plane.shared);
    plane.shared.fleet.usual.sum();
}

fn compare_speeds(plane: &Plane) {
    plane.shared.fleet.compare_speeds(plane.members().iter().map(|member| member.slot));
}

fn notice_marks(plane: &Plane) {
    let slots: Vec<u16> = plane.members().iter().map(|member| member.slot).collect();
    for slot in slots {
        plane.notice_unreachable(slot, Instant::now());
    }
}

/// Workers eject by themselves; the log says so.
fn tell_ejections(plane: &Plane) {
    let mut members = plane.members();
    let slots: Vec<u16> = members.iter().map(|member| member.slot).collect();
    for slot in slots {
        let Some(member) = members.get_mut(slot) else { continue };
        let outlier = plane.shared.fleet.outlier(member.slot);
        let (ejections, ejected) = (outlier.ejections(), outlier.is_ejected());
        if ejections > std::mem::replace(&mut member.ejections_told, ejections) {
            let rules = &plane.shared.config.outlier;
            let time = rules.base_ejection.saturating_mul(outlier.multiple()).min(rules.max_ejection);
            tracing::warn!(
                "backend {} is ejected for {:.1} s: its requests failed, one after another",
                member.name,
                time.as_secs_f64()
            );
        }
        if std::mem::replace(&mut member.was_ejected, ejected) && !ejected {
            tracing::info!("backend {} is no longer ejected: requests have found it well", member.name);
        }
    }
}

fn tell_errors(plane: &Plane, errors: &mut ErrorLog) {
    let members = plane.members();
    let servers = figures::by_server(&figures::by_pair(&plane.shared.shards, members.lanes()));
    for failed in errors.since_last(servers.iter().map(|(server, totals)| (*server, totals))) {
        failed.log();
    }
}
