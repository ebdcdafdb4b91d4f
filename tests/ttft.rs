//! `ttft` over real HTTP: it keeps conversations where their history is, and learns from what the answers say was found.

mod support;

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use support::engine::{BLOCK, Engine};
use support::origin::ok;
use support::{Origin, Router, completion, eventually, text};

fn router(engines: &[Engine], flags: &[&str]) -> Router {
    let urls: Vec<String> = engines.iter().map(|engine| engine.origin.url()).collect();
    Router::in_front_of(&urls, &[&["--routing-logic", "ttft", "--workers", "1"], flags].concat())
}

/// Sends a prompt; the index of the engine that got it.
fn send(router: &Router, engines: &[Engine], prompt: &str) -> usize {
    let before: Vec<usize> = engines.iter().map(|engine| engine.origin.count()).collect();
    let response = router.post("/v1/completions", &completion("m", prompt));
    assert_eq!(response.status, 200, "{}", response.body_text());
    (0..engines.len()).find(|&i| engines[i].origin.count() > before[i]).expect("somebody got it")
}

/// A figure of the table of metrics, summed over what has this in its labels.
fn sum(router: &Router, name: &str, label: &str) -> f64 {
    let text = router.get("/metrics").body_text();
    let of = |line: &&str| line.starts_with(&format!("{name}{{")) && line.contains(label);
    text.lines().filter(of).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[test]
fn conversations_that_share_a_system_prompt_spread_without_a_threshold_and_keep_their_history() {
    let engines: Vec<Engine> = (0..4).map(|_| Engine::start(100_000, false)).collect();
    for engine in &engines {
        engine.cache.lock().expect("no panic").takes = Duration::from_millis(20);
    }
    let router = router(&engines, &[]);
    let shared = text(1, 6_000);
    let turns = |i: u64| (0..5).map(move |turn| text(1000 * turn + i, 2_500));
    // Eight at a time, each by a client of its own.
    std::thread::scope(|scope| {
        for first in 0..8 {
            let (router, shared) = (&router, &shared);
            scope.spawn(move || {
                for i in (first..24).step_by(8) {
                    let mut talk = shared.clone();
                    for turn in turns(i) {
                        talk.push_str(&turn);
                        assert_eq!(router.post("/v1/completions", &completion("m", &talk)).status, 200);
                    }
                }
            });
        }
    });
    let counts: Vec<usize> = engines.iter().map(|engine| engine.origin.count()).collect();
    assert!(counts.iter().all(|&count| count <= 45), "none has more than 1.5 times its share of 120: {counts:?}");
    // What was found of the later turns: all that was said before, but for the part of a block at its end.
    let found = sum(&router, "trieway_reported_cached_tokens_total", "") * 4.0;
    let said: f64 = 24.0 * (1..5).map(|turn| 6_000.0 + f64::from(turn) * 2_500.0).sum::<f64>();
    assert!(found > 0.97 * said, "{found} of {said} bytes");
    let predicted = sum(&router, "trieway_predicted_cached_tokens_total", "") * 4.0;
    assert!((predicted / found - 1.0).abs() < 0.05, "predicted {predicted}, found {found}");
}

#[test]
fn an_engine_whose_cache_is_wiped_loses_its_affinity_after_a_few_answers() {
    let engines: Vec<Engine> = (0..2).map(|_| Engine::start(100_000, false)).collect();
    let router = router(&engines, &[]);
    let mut talks: Vec<String> = (0..20).map(|i| text(50 + i, 4_000)).collect();
    let homes: Vec<usize> = talks.iter().map(|talk| send(&router, &engines, talk)).collect();
    let cold = || sum(&router, "trieway_requests_total", "reason=\"ttft_cold\"");
    assert_eq!(cold(), 20.0);
    engines[0].cache.lock().expect("no panic").blocks.clear();
    let at_home = homes.iter().filter(|&&home| home == 0).count();
    assert!(at_home > 4, "{homes:?}");
    for (i, talk) in talks.iter_mut().enumerate() {
        talk.push_str(&text(900 + i as u64, 500));
        let now = send(&router, &engines, talk);
        assert!(homes[i] == 0 || now == 1, "the other engine keeps its conversations");
    }
    let told = 20.0 + at_home as f64 - cold();
    assert!((3.0..=4.0).contains(&told), "a few answers tell it, not {told}");
}

#[test]
fn the_reach_follows_an_engine_whose_capacity_is_halved() {
    let engines = [Engine::start(8_000, false)];
    let router = router(&engines, &[]);
    let prompts: Vec<String> = (0..160).map(|i| text(i, 8_192)).collect();
    let mut draw = 1u64;
    for blocks in [8_000usize, 4_000] {
        engines[0].cache.lock().expect("no panic").capacity = blocks;
        for _ in 0..600 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            send(&router, &engines, &prompts[(draw >> 40) as usize % prompts.len()]);
        }
        let reach = sum(&router, "trieway_cache_reach_bytes", "");
        let capacity = (blocks * BLOCK) as f64;
        assert!((reach / capacity - 1.0).abs() < 0.2, "reach {reach}, capacity {capacity}");
    }
}

#[test]
fn streamed_answers_tell_the_pace_and_pass_unchanged() {
    let engines = [Engine::start(100_000, true)];
    let router = router(&engines, &[]);
    let prompt = text(3, 40_000);
    for _ in 0..2 {
        let response = router.post("/v1/completions", &completion("m", &prompt));
        assert!(response.body_text().contains("\"cached_tokens\""));
    }
    assert!(sum(&router, "trieway_reported_cached_tokens_total", "") > 9_000.0);
    // 10,000 tokens in no time: much faster than an H100.
    assert!(sum(&router, "trieway_prefill_time_factor", "") < 0.9);
    assert_eq!(sum(&router, "trieway_prefill_queue_seconds", ""), 0.0, "nothing is left behind");
}

#[test]
fn an_engine_that_turns_out_to_be_slow_gets_what_the_others_leave() {
    let engines: Vec<Engine> = (0..2).map(|_| Engine::start(100_000, true)).collect();
    for (engine, ms) in engines.iter().zip([20, 150]) {
        engine.cache.lock().expect("no panic").takes = Duration::from_millis(ms);
    }
    let router = router(&engines, &[]);
    let mut prompts = (0..).map(|seed| text(seed, 12_000));
    let mut send_some = |count: usize| -> usize {
        let to: Vec<usize> = prompts.by_ref().take(count).map(|prompt| send(&router, &engines, &prompt)).collect();
        to.into_iter().filter(|&to| to == 0).count()
    };
    // Each has shown its speed, and the control plane has compared them.
    send_some(12);
    std::thread::sleep(Duration::from_millis(300));
    let fast: Vec<usize> = (0..4).map(|_| send_some(20)).take_while(|&fast| fast < 18).collect();
    assert!(fast.len() < 4, "of 20 each went to the fast one: {fast:?}");
}

#[test]
fn a_shadow_policy_is_counted_and_not_followed() {
    let engines: Vec<Engine> = (0..2).map(|_| Engine::start(100_000, false)).collect();
    let urls: Vec<String> = engines.iter().map(|engine| engine.origin.url()).collect();
    let router = Router::in_front_of(
        &urls,
        &["--routing-logic", "roundrobin", "--shadow-policy", "prefixaware", "--workers", "1"],
    );
    let prompt = text(1, 4_096);
    for turn in 0..10 {
        assert_eq!(send(&router, &engines, &prompt), if turn % 2 == 0 { 0 } else { 1 }, "round robin goes on");
    }
    assert_eq!(sum(&router, "trieway_shadow_requests_total", "policy=\"prefixaware\""), 10.0);
    assert_eq!(sum(&router, "trieway_shadow_prompt_bytes_total", ""), 0.0, "it has no labels");
    assert_eq!(router.metric("trieway_shadow_prompt_bytes_total"), 40_960.0);
    // Both were blind at the first; the real one once more, when the prompt was new to the second engine.
    assert_eq!(sum(&router, "trieway_shadow_matched_bytes_total", "choice=\"shadow\""), 9.0 * 4_096.0);
    assert_eq!(sum(&router, "trieway_shadow_matched_bytes_total", "choice=\"real\""), 8.0 * 4_096.0);
}

#[test]
fn an_engine_that_tells_its_capacity_is_believed_to_hold_that_much_and_no_more() {
    // No answer says what was found.
    let origin = Origin::start(&["m"], |peer, _| peer.send(ok("{\"text\":\"x\"}")));
    origin.say_metrics("vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1250\"} 1\n");
    let flags = ["--routing-logic", "ttft", "--workers", "1", "--engine-stats-interval", "1"];
    let router = Router::in_front_of(&[origin.url()], &flags);
    // Its figures are read once a second.
    std::thread::sleep(Duration::from_millis(1500));
    let fresh = |prompt: &str| {
        let explained = router.post("/debug/route?path=/v1/completions", &completion("m", prompt)).json();
        explained["candidates"][0]["fresh_bytes"].as_u64().expect("a number")
    };
    let prompts: Vec<String> = (0..40).map(|i| text(i, 8_192)).collect();
    for prompt in &prompts {
        assert_eq!(router.post("/v1/completions", &completion("m", prompt)).status, 200);
    }
    // 20,000 tokens of four bytes are nearly ten prompts.
    let held = prompts.iter().filter(|prompt| fresh(prompt) == 8_192).count();
    assert!((8..=11).contains(&held), "{held} prompts");
    assert_eq!((fresh(&prompts[0]), fresh(&prompts[39])), (0, 8_192));
    let reach = sum(&router, "trieway_cache_reach_bytes", "");
    assert!((reach / 80_000.0 - 1.0).abs() < 0.25, "{reach} bytes");
}

/// The answer's end renews the marks of what its backend computed: not for the life that has begun meanwhile.
#[test]
fn an_engine_that_restarted_is_not_believed_to_hold_what_the_one_before_was_asked() {
    let (go, goes) = channel::<()>();
    let goes = Mutex::new(goes);
    let origin = Origin::start(&["m"], move |peer, _| {
        let waited = goes.lock().expect("no panic").recv_timeout(Duration::from_secs(30));
        waited.is_ok() && peer.send(ok("{\"text\":\"x\"}"))
    });
    let started = |at: u32| {
        origin.say_metrics(&format!(
            "vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"1250\"}} 1\nprocess_start_time_seconds {at}\n"
        ));
    };
    started(1);
    let flags = ["--routing-logic", "ttft", "--workers", "1", "--engine-stats-interval", "1"];
    let router = Router::in_front_of(&[origin.url()], &flags);
    // Its figures are read once a second.
    std::thread::sleep(Duration::from_millis(1500));
    let matched = |prompt: &str| {
        let explained = router.post("/debug/route?path=/v1/completions", &completion("m", prompt)).json();
        explained["candidates"][0]["fresh_bytes"].as_u64().expect("a number")
    };
    let [before, over] = [1, 2].map(|seed| text(seed, 8_192));
    go.send(()).expect("the engine lives");
    assert_eq!(router.post("/v1/completions", &completion("m", &before)).status, 200);
    assert_eq!(matched(&before), 8_192);
    let mut client = router.client();
    client.send_post("/v1/completions", &completion("m", &over), "");
    eventually("the engine has it", || origin.count() == 2);
    started(2);
    eventually("the restart is noticed", || sum(&router, "trieway_backend_restarts_total", "") == 1.0);
    go.send(()).expect("the engine lives");
    assert_eq!(client.response().status, 200);
    assert_eq!((matched(&before), matched(&over)), (0, 0));
}
