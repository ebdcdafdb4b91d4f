//! A storm over HTTP: engines that are slow, fail at once, lie, leave, join, die and come back, under conversations and short
//! prompts, whole and streamed; every policy that looks at load or prefixes, with 1, 2 and 8 workers.
//!
//! What must hold meanwhile: each answer is its own request's, or an explicit failure, and who tries again is served; no
//! backend gets beyond twice its share without a reason that `/debug/route` can name; every figure that is shown is a number;
//! no worker is busy for long in one go. And at the end: everything is back as it was before.
//!
//! `TEST_SEED` is the seed of weather, prompts and manners (what threads do in which order is the machine's own), and
//! `TEST_SECONDS` how long each storm takes.

mod connection_model;
mod storm_parts;
mod support;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use connection_model::Random;
use storm_parts::clients::{Tally, converse};
use storm_parts::engines::{Engine, Mood};
use storm_parts::watch::{Slice, longest_turn, look};
use support::canonical::http_model;
use support::{AtRest, RESTS_SOON, Router};

const ENGINES: usize = 5;
/// Engines that stay well, so that a client who tries again finds one.
const STEADY: usize = 2;
const CLIENTS: u64 = 12;
const A_WEATHER: Duration = Duration::from_millis(600);
/// Until what has changed is known.
const SETTLING: Duration = Duration::from_millis(300);
/// The longest that a worker may be busy in one go: 10 ms in an optimised build.
const LONGEST_TURN_S: f64 = if cfg!(debug_assertions) { 0.1 } else { 0.01 };

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// The dynamic configuration: which engines there are.
struct Members(PathBuf);

impl Members {
    fn write(&self, engines: &[Engine]) {
        let there = engines.iter().filter(|engine| engine.mood() != Mood::Left);
        let list: String = there.map(|engine| format!("  - {}\n", engine.url())).collect();
        let aside = self.0.with_extension("aside");
        fs::write(&aside, format!("static_backends:\n{list}")).expect("written");
        fs::rename(aside, &self.0).expect("renamed");
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// What broke an invariant, with the seed that made it.
fn storm(policy: &str, workers: usize) {
    let (seed, seconds) = (number("TEST_SEED", 1), number("TEST_SECONDS", 2));
    let mut random = Random(seed ^ workers as u64);
    let mut engines: Vec<_> = (0..ENGINES).map(|_| Engine::start()).collect();
    let members =
        Members(std::env::temp_dir().join(format!("trieway-storm-{}-{policy}-{workers}.yaml", std::process::id())));
    members.write(&engines);
    let path = members.0.to_string_lossy().into_owned();
    let count = workers.to_string();
    let flags = ["--dynamic-config-yaml", &path, "--workers", &count, "--routing-logic", policy];
    let often = ["--static-backend-health-check-interval", "0.2", "--engine-stats-interval", "1"];
    let router = Router::start(&[&flags[..], &often, &RESTS_SOON].concat());
    router.wait_for_backends(ENGINES);
    let at_rest = AtRest::of(&router);

    let (stop, tally) = (Arc::new(AtomicBool::new(false)), Arc::new(Tally::default()));
    let address = router.address;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (stop, tally) = (Arc::clone(&stop), Arc::clone(&tally));
            std::thread::spawn(move || converse(address, number, seed, &stop, &tally))
        })
        .collect();
    let began = Instant::now();
    let (mut slices, mut looks, mut unfair, mut longest) = (0, 0, Vec::new(), 0.0_f64);
    while began.elapsed() < Duration::from_secs(seconds) && !clients.iter().any(std::thread::JoinHandle::is_finished) {
        let before: Vec<Mood> = engines.iter().map(Engine::mood).collect();
        for engine in &mut engines[STEADY..] {
            engine.become_(random.one_of(&Mood::ALL));
        }
        members.write(&engines);
        router.signal("HUP");
        std::thread::sleep(SETTLING);
        let slice = watch(&router, &engines, &mut looks);
        unfair.extend(slice.unfair().map(|what| format!("slice {slices}, after {before:?}: {what}")));
        longest = longest.max(longest_turn(&router));
        slices += 1;
    }
    stop.store(true, SeqCst);
    for client in clients {
        client.join().unwrap_or_else(|_| panic!("seed {seed}, {policy}, {workers} workers: a client was not served"));
    }
    let [right, failed, lost] = [&tally.right, &tally.failed, &tally.lost].map(|count| count.load(SeqCst));
    println!(
        "{policy}, {workers} workers, seed {seed}: {right} right, {failed} failed, {lost} lost, {slices} slices, {} \
         beyond their share, longest turn {:.1} ms",
        unfair.len(),
        longest * 1e3
    );
    assert!(right > 50, "the storm leaves engines that are well: {right} right, {failed} failed");
    assert!(lost * 50 <= right, "{lost} were not served in {right} although two engines are well");
    assert!(unfair.is_empty(), "seed {seed}, {policy}, {workers} workers:\n{}", unfair.join("\n"));
    assert!(longest < LONGEST_TURN_S, "a worker was busy for {longest} s in one go");
    for engine in &mut engines {
        engine.become_(Mood::Well);
    }
    members.write(&engines);
    router.signal("HUP");
    router.wait_for_backends(ENGINES);
    at_rest.is_back_but_for_marks(&router);
}

/// What a weather's engines get once it is known.
fn watch(router: &Router, engines: &[Engine], looks: &mut u64) -> Slice {
    let counts = || engines.iter().map(Engine::counts).collect::<Vec<_>>();
    let (before, began) = (counts(), Instant::now());
    let mut explained = Vec::new();
    while began.elapsed() < A_WEATHER {
        *looks += 1;
        explained.push(look(router, *looks));
        std::thread::sleep(Duration::from_millis(20));
    }
    let grown = counts().iter().zip(&before).map(|(now, then)| [now[0] - then[0], now[1] - then[1]]).collect();
    Slice {
        urls: engines.iter().map(Engine::url).collect(),
        moods: engines.iter().map(Engine::mood).collect(),
        counts: grown,
        explained,
    }
}

fn with_each_number_of_workers(policy: &str) {
    for workers in [1, 2, 8] {
        storm(policy, workers);
    }
}

#[test]
fn ttft() {
    with_each_number_of_workers("ttft");
}

#[test]
fn prefixaware() {
    with_each_number_of_workers("prefixaware");
}

#[test]
fn leastload() {
    with_each_number_of_workers("leastload");
}
