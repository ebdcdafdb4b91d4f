//! The room by itself: who is called, and who is not.

use super::*;
use crate::fleet::load::{InFlight, Part};
use crate::fleet::tenants::Tenants;

const LIMIT: u32 = 1;

struct Rig {
    pending: Pending,
    part: Part,
}

impl Rig {
    fn new() -> Rig {
        let fleet = Box::leak(Box::new(Fleet::new(4, 1, Tenants::new(0, 0))));
        Rig { pending: Pending::new(fleet, LIMIT), part: Part::default() }
    }

    fn fill(&self, slot: u16) -> InFlight<'_> {
        self.pending.fleet.load(slot).begin(&self.part, 1, LIMIT).expect("a place")
    }

    fn first(&self, slot: u16) -> u64 {
        self.pending.fleet.load(slot).first_awaiting()
    }

    fn queue(&self, slots: &[u16]) -> (Arc<Entry>, Standing) {
        self.enter(Standing { slots: slots.into(), is_queued: true }, 0, 0.0)
    }

    fn enter(&self, standing: Standing, now_us: u64, cold_s: f64) -> (Arc<Entry>, Standing) {
        (self.pending.enter(&standing, (0, 0), now_us, cold_s), standing)
    }

    /// Whom the end of something at the backend calls, when all have waited for a second.
    fn ends(&self, slot: u16) -> Calls {
        self.pending.releases(slot);
        self.pending.released(slot, 1_000_000)
    }

    fn leaves(&self, (entry, standing): &(Arc<Entry>, Standing)) -> Vec<u64> {
        tickets(&self.pending.leave(entry, standing, 1_000_000))
    }
}

fn tickets(calls: &Calls) -> Vec<u64> {
    calls.0.iter().map(|entry| entry.ticket).collect()
}

#[test]
fn a_backend_goes_to_the_one_that_has_waited_longest_of_all_that_can_use_it() {
    let rig = Rig::new();
    let running = [0, 1, 2].map(|slot| rig.fill(slot));
    let waiting = [rig.queue(&[0, 1]), rig.queue(&[0, 1]), rig.queue(&[1, 2])];
    assert_eq!([0, 1, 2, 3].map(|slot| rig.first(slot)), [1, 1, 3, NOBODY]);
    assert!(rig.pending.waits_for(2) && !rig.pending.waits_for(3));
    assert!(rig.pending.released(0, 0).0.is_empty(), "it is not free");
    let [zero, one, two] = running;
    drop(two);
    assert_eq!(tickets(&rig.pending.released(2, 0)), [3], "neither of those before can use it");
    drop(zero);
    assert_eq!(tickets(&rig.pending.released(0, 0)), [1]);
    assert!(rig.pending.released(0, 0).0.is_empty(), "it was called and has not looked yet");
    assert_eq!(waiting[0].0.heard(), Some(Call::Look));
    let _taken = rig.fill(0);
    assert!(rig.leaves(&waiting[0]).is_empty(), "no place for the next one");
    assert_eq!([0, 1, 2].map(|slot| rig.first(slot)), [2, 2, 3]);
    drop(one);
    assert_eq!(tickets(&rig.pending.released(1, 0)), [2]);
    drop(waiting);
}

#[test]
fn who_leaves_without_looking_passes_the_place_on() {
    let rig = Rig::new();
    let running = rig.fill(0);
    let waiting = [rig.queue(&[0]), rig.queue(&[0])];
    drop(running);
    assert_eq!(tickets(&rig.pending.released(0, 0)), [1]);
    assert_eq!(rig.leaves(&waiting[0]), [2]);
    assert!(rig.leaves(&waiting[1]).is_empty());
    assert!(!rig.pending.waits_for(0) && rig.first(0) == NOBODY);
}

#[test]
fn who_moves_keeps_its_order() {
    let rig = Rig::new();
    let _running = [0, 1].map(|slot| rig.fill(slot));
    let early = rig.queue(&[0]);
    let _late = [rig.queue(&[0, 1]), rig.queue(&[0, 1])];
    let to = Standing { slots: [0, 1].into(), is_queued: true };
    assert!(rig.pending.moves(&early.0, &early.1, &to).0.is_empty());
    assert_eq!((rig.first(0), rig.first(1)), (1, 1));
    assert!(rig.leaves(&(early.0, to)).is_empty());
    assert_eq!((rig.first(0), rig.first(1)), (2, 2));
}

#[test]
fn held_ones_are_asked_one_after_the_other_from_the_most_urgent_on() {
    let rig = Rig::new();
    let standing = || Standing { slots: [0, 1].into(), is_queued: false };
    let held: Vec<_> = [4.0, 1.0, 2.0].iter().map(|&cold_s| rig.enter(standing(), 0, cold_s)).collect();
    let other = rig.enter(Standing { slots: [2].into(), is_queued: false }, 0, 0.1);
    let stays = |of: usize| {
        assert_eq!(held[of].0.heard(), Some(Call::Look));
        tickets(&rig.pending.stays(&held[of].1, 1_000_000))
    };
    assert_eq!(tickets(&rig.ends(1)), [2]);
    assert_eq!(stays(1), [3]);
    assert_eq!(stays(2), [1]);
    assert!(stays(0).is_empty(), "each once, and the one of another backend not at all");
    assert_eq!(tickets(&rig.ends(1)), [2]);
    let in_turn = || [0, 1, 2].map(|of| rig.pending.is_in_turn(&held[of].0, &held[of].1));
    assert_eq!(in_turn(), [false, true, false], "who was asked before something changed is asked anew");
    assert_eq!(rig.leaves(&held[1]), [3], "who goes calls the next one");
    assert_eq!(held[2].0.heard(), Some(Call::Look));
    assert_eq!(tickets(&rig.pending.clock(2_000_000)).len(), 2, "time calls the first of each line");
    assert!(rig.pending.clock(2_000_001).0.is_empty(), "not again at once");
    drop(other);
}

#[test]
fn what_no_release_tells_of_is_noticed() {
    let rig = Rig::new();
    let load = rig.pending.fleet.load(0);
    let running = rig.fill(0);
    let waiting = [rig.queue(&[0]), rig.queue(&[0])];
    assert!(rig.pending.check().0.is_empty());
    load.set_unreachable(true);
    assert_eq!(tickets(&rig.pending.check()), [1, 2], "nobody can serve them: all are told");
    waiting.iter().for_each(|(entry, _)| assert_eq!(entry.heard(), Some(Call::Look)));
    drop(running);
    load.set_unreachable(false);
    assert_eq!(tickets(&rig.pending.check()), [1]);
}

/// Threads enter, are called, take the place and leave. None is forgotten, and the limit holds.
#[test]
fn nobody_is_forgotten_over_threads() {
    let rig = &Rig::new();
    let started = std::time::Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let (load, part) = (rig.pending.fleet.load(0), Part::default());
                let release = |place: InFlight<'_>| {
                    drop(place);
                    if rig.pending.waits_for(0) {
                        let _ = rig.pending.released(0, 0);
                    }
                };
                for _ in 0..2_000 {
                    let free = load.first_awaiting() == NOBODY;
                    if let Some(place) = free.then(|| load.begin(&part, 1, LIMIT)).flatten() {
                        release(place);
                        continue;
                    }
                    let waits = rig.queue(&[0]);
                    let place = loop {
                        let may = !must_yield(load, waits.0.ticket);
                        if let Some(place) = may.then(|| load.begin(&part, 1, LIMIT)).flatten() {
                            break place;
                        }
                        while waits.0.heard().is_none() {
                            assert!(started.elapsed().as_secs() < 60, "it is never called");
                            std::thread::yield_now();
                        }
                    };
                    let _ = rig.pending.leave(&waits.0, &waits.1, 0);
                    release(place);
                }
            });
        }
    });
    assert!(!rig.pending.waits_for(0) && rig.first(0) == NOBODY && rig.pending.room().lines.is_empty());
}
