//! Failed requests as log lines: at most one a backend and kind of failure a second, with the count.

use std::collections::HashMap;

use super::figures::{Totals, is_backends};
use crate::metrics::shard::ErrorKind;

#[derive(Default)]
pub(super) struct ErrorLog {
    seen: HashMap<String, [u64; ErrorKind::ALL.len()]>,
}

/// So many requests to a server failed in this way since the last look.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failed<'a> {
    pub(super) server: &'a str,
    pub(super) kind: ErrorKind,
    pub(super) count: u64,
}

impl ErrorLog {
    /// What has failed since the last call.
    pub(super) fn since_last<'a>(&mut self, servers: impl Iterator<Item = (&'a str, &'a Totals)>) -> Vec<Failed<'a>> {
        let mut failed = Vec::new();
        for (server, totals) in servers {
            let seen = self.seen.entry(server.to_owned()).or_default();
            for kind in ErrorKind::ALL {
                let (now, before) = (totals.errors[kind as usize], &mut seen[kind as usize]);
                if now > *before {
                    failed.push(Failed { server, kind, count: now - *before });
                    *before = now;
                }
            }
        }
        failed
    }
}

impl Failed<'_> {
    /// Clients that leave are daily business; a fault of the router's own is an error.
    pub(super) fn log(&self) {
        let Failed { server, kind, count } = self;
        let requests = if *count == 1 { "request" } else { "requests" };
        let text = format!("backend {server}: {count} {requests} failed: {} (last second)", kind.as_str());
        match kind {
            ErrorKind::Internal => tracing::error!("{text}"),
            kind if is_backends(*kind) => tracing::warn!("{text}"),
            _ => tracing::debug!("{text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_is_told_once() {
        let mut log = ErrorLog::default();
        let mut totals = Totals::default();
        let look = |log: &mut ErrorLog, totals: &Totals| {
            log.since_last(std::iter::once(("s", totals))).iter().map(|f| (f.kind, f.count)).collect::<Vec<_>>()
        };
        assert_eq!(look(&mut log, &totals), []);
        totals.errors[ErrorKind::Connect as usize] = 5;
        totals.errors[ErrorKind::Broken as usize] = 1;
        assert_eq!(look(&mut log, &totals), [(ErrorKind::Connect, 5), (ErrorKind::Broken, 1)]);
        assert_eq!(look(&mut log, &totals), []);
        totals.errors[ErrorKind::Connect as usize] = 7;
        assert_eq!(look(&mut log, &totals), [(ErrorKind::Connect, 2)]);
    }
}
