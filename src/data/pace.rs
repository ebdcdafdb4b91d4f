//! How fast a stream's events come, and whether the next ones are to be taken together.
//!
//! An event costs little work and much waking: the worker's own, and that of whoever waits for it. Where events come faster
//! than one a [`BEAT`], for longer than a short burst, the worker stops waiting for each: it lets a beat pass and takes what
//! has come, with one read and one write. A person reads ten tokens a second; a beat is no time for anybody.
//!
//! Knows no socket: it is told when bytes came, and asked.

use std::time::{Duration, Instant};

/// Events that are closer than this may be taken together. The driver's timer adds up to as much again.
pub(super) const BEAT: Duration = Duration::from_millis(1);

/// So many events in a row are taken at once, however close they are: an answer's last ones come in such a burst.
const BURST: u8 = 3;

/// A read of more than this is bulk, which waits for nobody.
const EVENTS_BYTES: usize = 8 << 10;

pub(super) struct Pace {
    last: Instant,
    /// Reads in a row that came within a beat.
    close: u8,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Pace { last: now, close: 0 }
    }

    /// `bytes` have come. How long after the ones before.
    pub(super) fn came(&mut self, now: Instant, bytes: usize) -> Duration {
        let gap = now.duration_since(self.last);
        self.last = now;
        // Taken on the beat, events are a beat apart whatever their own pace: the first beat without any ends it.
        if bytes > EVENTS_BYTES || (gap >= BEAT && !self.is_fast()) {
            self.close = 0;
        } else {
            self.close = (self.close + 1).min(BURST);
        }
        gap
    }

    /// Let a beat pass before the next read.
    pub(super) fn is_fast(&self) -> bool {
        self.close == BURST
    }

    /// A beat passed, and nothing came.
    pub(super) fn rests(&mut self) {
        self.close = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the pace is fast after reads of `bytes` at these milliseconds.
    fn fast_after(times_ms: &[f64], bytes: usize) -> bool {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        for &ms in times_ms {
            pace.came(start + Duration::from_secs_f64(ms / 1000.0), bytes);
        }
        pace.is_fast()
    }

    #[test]
    fn a_burst_is_taken_at_once_and_a_fast_stream_on_the_beat() {
        assert!(!fast_after(&[20.0, 20.1, 20.2], 200), "a token, the usage, the end");
        assert!(fast_after(&[20.0, 20.1, 20.2, 20.3], 200));
        assert!(!fast_after(&[2.0, 4.0, 6.0, 8.0, 10.0], 200), "500 events a second are none too many");
        assert!(!fast_after(&[0.1, 0.2, 2.0, 2.1, 2.2], 200), "a pause ends a burst");
    }

    #[test]
    fn it_stays_fast_on_the_beat_until_a_beat_brings_nothing() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        for beat in 0..50 {
            let at = if beat < 4 { Duration::from_micros(100) * beat } else { BEAT * 2 * beat };
            pace.came(start + at, 900);
        }
        assert!(pace.is_fast());
        pace.rests();
        assert!(!pace.is_fast());
    }

    #[test]
    fn bulk_waits_for_nobody() {
        assert!(!fast_after(&[0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 16 << 10));
    }
}
