//! The QPS windows: how many requests each backend got of late. Kept by the control plane, which sums them periodically;
//! [`super::load`] has what workers count and read.
//!
//! A window has two figures. **Requests** are those that were sent; they are reported. **Level** is what choices go by: the
//! same, but that each request at a backend that is warming up counts for more, and that a backend which joins begins with the
//! history of the one that has the least. So it gets a fair share from its first moment on: with an empty window it would get
//! every request until it had caught up, and with a lump that leaves its window all at once none until then.

use std::collections::VecDeque;

use super::load::Load;
use crate::route::slow_start::dearer;

/// What was counted up to a time.
#[derive(Clone, Copy)]
struct Mark {
    at_ms: u64,
    requests: u64,
    /// In thousandths of a request.
    level: u64,
}

/// The sliding window of one backend: its running totals, remembered once a bucket.
pub struct Window {
    length_ms: u64,
    bucket_ms: u64,
    /// Oldest first; the front is the newest one that is at least a window old.
    marks: VecDeque<Mark>,
    /// Up to the last sum.
    total: Mark,
    /// [`Load::begun`] at the last sum.
    begun: u64,
}

impl Window {
    /// A window of `length_ms` that starts at `at_ms`, with what was begun by then left out.
    pub fn new(length_ms: u64, load: &Load, at_ms: u64) -> Self {
        let total = Mark { at_ms, requests: 0, level: 0 };
        let window = Window {
            length_ms,
            bucket_ms: (length_ms / 60).clamp(100, 1000),
            marks: VecDeque::from([total]),
            total,
            begun: load.begun(),
        };
        window.publish(load);
        window
    }

    /// Takes in what was begun since the last sum and publishes the result. `cold_permille`: how much of its share the backend
    /// has lacked since.
    pub fn sum(&mut self, load: &Load, cold_permille: u16, now_ms: u64) {
        let new = load.begun_since(self.begun);
        self.begun = self.begun.wrapping_add(new);
        self.total.at_ms = now_ms;
        self.total.requests += new;
        self.total.level = self.total.level.saturating_add(dearer(new * 1000, cold_permille));
        let begin = now_ms.saturating_sub(self.length_ms);
        while self.marks.len() > 1 && self.marks[1].at_ms <= begin {
            self.marks.pop_front();
        }
        if self.marks.back().is_none_or(|mark| now_ms >= mark.at_ms + self.bucket_ms) {
            self.marks.push_back(self.total);
        }
        self.publish(load);
    }

    /// Begins with the level of `like`, and with its history, if that is more than the own. Both as of the same sum.
    pub fn join(&mut self, like: &Window, load: &Load) {
        if self.level() >= like.level() {
            return;
        }
        // The level's own total rises by so much that none of the marks falls below zero.
        self.total.level += like.milli();
        let mine = |mark: &Mark| Mark {
            at_ms: mark.at_ms,
            requests: self.requests_at(mark.at_ms),
            level: self.total.level - (like.total.level - mark.level),
        };
        self.marks = like.marks.iter().map(mine).collect();
        self.publish(load);
    }

    /// What choices go by, in requests.
    pub fn level(&self) -> u64 {
        self.milli() / 1000
    }

    fn milli(&self) -> u64 {
        self.total.level - self.marks.front().map_or(self.total.level, |mark| mark.level)
    }

    /// Requests sent within the window, as of the last sum.
    pub fn requests(&self) -> u64 {
        self.total.requests - self.marks.front().map_or(self.total.requests, |mark| mark.requests)
    }

    /// Requests up to a time, as the marks have it.
    fn requests_at(&self, at_ms: u64) -> u64 {
        let before = self.marks.iter().rev().find(|mark| mark.at_ms <= at_ms).or(self.marks.front());
        before.map_or(self.total.requests, |mark| mark.requests)
    }

    fn publish(&self, load: &Load) {
        load.publish_window(self.level(), self.begun);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::load::Part;

    fn send(load: &Load, requests: u64) {
        let part = Part::default();
        (0..requests).for_each(|_| drop(load.begin(&part, 1, 0)));
    }

    #[test]
    fn what_is_older_than_the_window_no_longer_counts() {
        let load = Load::default();
        let mut window = Window::new(10_000, &load, 0);
        for second in 0..30u64 {
            send(&load, 5);
            window.sum(&load, 0, second * 1000 + 999);
            let expected = 5 * (second + 1).min(10);
            assert!(
                window.requests().abs_diff(expected) <= 5 && load.in_window(0) == window.requests(),
                "second {second}: {} and not about {expected}",
                window.requests()
            );
        }
        window.sum(&load, 0, 60_000);
        assert_eq!((window.requests(), load.in_window(0)), (0, 0));
        assert!(window.marks.len() < 100, "{} marks", window.marks.len());
    }

    #[test]
    fn a_window_starts_without_what_its_slot_had_before() {
        let load = Load::default();
        send(&load, 70);
        let mut window = Window::new(10_000, &load, 0);
        assert_eq!(load.in_window(0), 0);
        window.sum(&load, 0, 100);
        assert_eq!((window.requests(), load.in_window(0)), (0, 0));
    }

    #[test]
    fn what_a_cold_backend_gets_counts_for_more_and_is_reported_as_it_is() {
        let load = Load::default();
        let mut window = Window::new(10_000, &load, 0);
        send(&load, 3);
        assert_eq!(load.in_window(900), 30);
        window.sum(&load, 900, 100);
        assert_eq!((load.in_window(0), window.requests()), (30, 3));
    }

    /// Sends one request at a time to the lowest level for a while, with a sum every 100 ms; gives how many each got.
    fn run(loads: &[Load], windows: &mut [Window], from_ms: u64, for_ms: u64) -> Vec<u64> {
        let before: Vec<u64> = loads.iter().map(Load::begun).collect();
        for at_ms in from_ms..from_ms + for_ms {
            if at_ms % 100 == 0 {
                windows.iter_mut().zip(loads).for_each(|(window, load)| window.sum(load, 0, at_ms));
            }
            let in_use = &loads[..windows.len()];
            let least = in_use.iter().map(|load| load.in_window(0)).min().expect("some");
            let equals: Vec<&Load> = in_use.iter().filter(|load| load.in_window(0) == least).collect();
            send(equals[at_ms as usize % equals.len()], 1);
        }
        loads.iter().zip(before).map(|(load, before)| load.begun_since(before)).collect()
    }

    #[test]
    fn who_joins_gets_its_share_from_its_first_moment_on() {
        let loads: [Load; 4] = Default::default();
        let mut windows: Vec<Window> = loads[..3].iter().map(|load| Window::new(10_000, load, 0)).collect();
        run(&loads, &mut windows, 0, 25_000);
        let mut fourth = Window::new(10_000, &loads[3], 25_000);
        fourth.join(&windows[0], &loads[3]);
        assert_eq!((fourth.level(), fourth.requests()), (windows[0].level(), 0));
        windows.push(fourth);
        for second in 25..50 {
            let got = run(&loads, &mut windows, second * 1000, 1000);
            assert!(got.iter().all(|n| (200..=300).contains(n)), "second {second}: {got:?}");
        }
    }

    #[test]
    fn who_has_more_keeps_what_it_has() {
        let loads: [Load; 2] = Default::default();
        let mut windows = loads.each_ref().map(|load| Window::new(10_000, load, 0));
        for (window, (load, requests)) in windows.iter_mut().zip(loads.iter().zip([9, 5])) {
            send(load, requests);
            window.sum(load, 0, 100);
        }
        let [more, less] = &mut windows;
        more.join(less, &loads[0]);
        assert_eq!(more.level(), 9);
        less.join(more, &loads[1]);
        assert_eq!((less.level(), less.requests(), loads[1].in_window(0)), (9, 5, 9));
    }
}
