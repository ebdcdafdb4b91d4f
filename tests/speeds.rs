//! What `ttft` learns of an engine's speed, and what it does not: from whole answers as from streams, and nothing from
//! figures that cannot be.

mod support;

use std::time::Duration;

use serde_json::json;
use support::engine::{Answers, Engine};
use support::origin::ok;
use support::{Origin, Router, completion, eventually, text};

fn router(engines: &[Engine], flags: &[&str]) -> Router {
    let urls: Vec<String> = engines.iter().map(|engine| engine.origin.url()).collect();
    Router::in_front_of(&urls, &[&["--routing-logic", "ttft", "--workers", "1"], flags].concat())
}

fn post(router: &Router, prompt: &str) {
    let response = router.post("/v1/completions", &completion("m", prompt));
    assert_eq!(response.status, 200, "{}", response.body_text());
}

fn figure(router: &Router, name: &str, engine: &Engine) -> f64 {
    router.metric(&format!("{name}{{server=\"{}\"}}", engine.origin.url()))
}

/// The factor that one engine teaches whose prompts take this long, and its answers' tokens.
fn taught(answers: Answers, step: Duration, says_steps: bool) -> f64 {
    let engines = [Engine::answering(100_000, answers)];
    {
        let mut cache = engines[0].cache.lock().expect("no panic");
        cache.takes = Duration::from_millis(150);
        cache.step = step;
        cache.answer_tokens = 11;
    }
    let say = |count: u32| {
        let seconds = step.as_secs_f64() * f64::from(count);
        let name = "vllm:inter_token_latency_seconds";
        engines[0].origin.say_metrics(&format!("{name}_sum {seconds}\n{name}_count {count}\n"));
    };
    let router = router(&engines, &["--engine-stats-interval", "0.2"]);
    if says_steps {
        say(100);
        // It is read several times in this.
        std::thread::sleep(Duration::from_millis(700));
        say(5_000);
        std::thread::sleep(Duration::from_millis(700));
    }
    (0..12).for_each(|seed| post(&router, &text(seed, 16_000)));
    figure(&router, "trieway_prefill_time_factor", &engines[0])
}

/// Both are times, which a busy machine makes longer for one or the other: there are several goes.
#[test]
fn whole_answers_teach_the_factor_that_streams_teach() {
    // Slow steps are told by the engine; the others are as the flags say.
    for (step, says_steps) in [(Duration::from_millis(8), false), (Duration::from_millis(40), true)] {
        for answers in [Answers::Whole, Answers::Chunked] {
            let mut seen = Vec::new();
            let is_close = (0..6).any(|_| {
                let (streamed, whole) = (taught(Answers::Streamed, step, false), taught(answers, step, says_steps));
                seen.push((streamed, whole));
                (whole / streamed - 1.0).abs() < 0.2
            });
            assert!(is_close, "{answers:?}, steps of {step:?}: streams and whole answers taught {seen:?}");
        }
    }
}

#[test]
fn an_engine_that_is_ten_times_slower_is_found_by_whole_answers_alone() {
    for answers in [Answers::Whole, Answers::Chunked] {
        let engines: Vec<Engine> = (0..4).map(|_| Engine::answering(100_000, answers)).collect();
        for (engine, times) in engines.iter().zip([10, 1, 1, 1]) {
            let mut cache = engine.cache.lock().expect("no panic");
            cache.takes = Duration::from_millis(10 * times);
            cache.step = Duration::from_millis(times);
            cache.answer_tokens = 11;
        }
        let router = router(&engines, &[]);
        std::thread::scope(|scope| {
            for client in 0..4 {
                let router = &router;
                scope.spawn(move || (0..40).for_each(|n| post(router, &text(100 * client + n, 4_000))));
            }
        });
        let got: Vec<usize> = engines.iter().map(|engine| engine.origin.count()).collect();
        assert!(got[0] <= 16, "{answers:?}: of 160 the slow one got {got:?}");
    }
}

#[test]
fn absurd_figures_of_one_engine_move_nothing_and_take_no_time() {
    let engines: Vec<Engine> = (0..2).map(|_| Engine::start(100_000, false)).collect();
    let router = router(&engines, &[]);
    (0..20).for_each(|seed| post(&router, &text(seed, 4_000)));
    let token_bytes = || figure(&router, "trieway_prompt_bytes_per_token", &engines[0]);
    let before = token_bytes();
    let cpu = router.metric("process_cpu_seconds_total");
    let lies = [
        json!({"prompt_tokens": 1000, "completion_tokens": 100_000_000_000_u64}),
        json!({"prompt_tokens": 1000, "completion_tokens": u64::MAX, "prompt_tokens_details": {"cached_tokens": u64::MAX}}),
        json!({"prompt_tokens": 100_000_000_000_u64, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 5}}),
        json!({"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}}),
        json!({"prompt_tokens": 0, "completion_tokens": 0}),
    ];
    for round in 0..8 {
        for (at, lie) in lies.iter().enumerate() {
            engines.iter().for_each(|engine| engine.cache.lock().expect("no panic").lie = Some(lie.clone()));
            post(&router, &text(1000 + 10 * round + at as u64, 4_000));
        }
    }
    let took = router.metric("process_cpu_seconds_total") - cpu;
    assert!(took < 4.0, "forty answers took {took} s of CPU: none may take time by what it says");
    assert!((token_bytes() / before - 1.0).abs() < 0.02, "{before} and then {}", token_bytes());
    for name in ["prefill_time_factor", "prefill_queue_seconds", "prefill_busy_ratio", "cache_reach_bytes"] {
        for engine in &engines {
            assert!(figure(&router, &format!("trieway_{name}"), engine).is_finite(), "{name}");
        }
    }
}

#[test]
fn absurd_figures_at_an_engines_metrics_are_not_taken_over() {
    let engines: Vec<Engine> = (0..2).map(|_| Engine::start(100_000, false)).collect();
    for figure in ["NaN", "+Inf", "-5", "1e300", "0"] {
        engines[0].origin.say_metrics(&format!(
            "sglang:max_total_num_tokens {figure}\nvllm:inter_token_latency_seconds_sum {figure}\n\
             vllm:inter_token_latency_seconds_count {figure}\nvllm:kv_cache_usage_perc {figure}\n\
             vllm:num_requests_running {figure}\n"
        ));
        let router = router(&engines, &["--engine-stats-interval", "0.1"]);
        std::thread::sleep(Duration::from_millis(400));
        (0..40).for_each(|seed| post(&router, &text(seed, 2_000)));
        let page = router.get("/metrics").body_text();
        let odd = |line: &&str| !line.starts_with('#') && ["NaN", "Inf"].iter().any(|odd| line.ends_with(odd));
        assert_eq!(page.lines().filter(odd).collect::<Vec<_>>(), [""; 0], "{figure}");
        let explained = router.post("/debug/route?path=/v1/completions", &completion("m", "x")).json();
        for candidate in explained["candidates"].as_array().expect("a list") {
            // JSON has no other numbers than finite ones: what is none is null.
            assert!(candidate["ttft"]["expected_seconds"].is_number(), "{figure}: {candidate}");
        }
    }
}

/// A body of a megabyte that is a picture.
fn picture(seed: u64) -> String {
    let url = format!("data:image/png;base64,{}", text(seed, 1 << 20));
    json!({"model": "m", "messages": [{"role": "user", "content": [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": url}},
    ]}]})
    .to_string()
}

#[test]
fn a_picture_counts_as_what_the_engine_says_that_it_costs() {
    let (go, goes) = std::sync::mpsc::channel::<()>();
    let goes = std::sync::Mutex::new(goes);
    let origin = Origin::start(&["m"], move |peer, _| {
        let waited = goes.lock().expect("no panic").recv_timeout(support::PATIENCE);
        let body = json!({"choices": [], "usage": {"prompt_tokens": 320, "completion_tokens": 1}}).to_string();
        waited.is_ok() && peer.send(ok(&body))
    });
    let router = Router::in_front_of(&[origin.url()], &["--routing-logic", "ttft", "--workers", "1"]);
    let in_flight = || router.metric(&format!("trieway_in_flight_bytes{{server=\"{}\"}}", origin.url()));
    let token_bytes = || router.metric(&format!("trieway_prompt_bytes_per_token{{server=\"{}\"}}", origin.url()));
    let mut weighed = Vec::new();
    for seed in 0..8 {
        let mut client = router.client();
        client.send_post("/v1/chat/completions", &picture(seed), "");
        eventually("the engine has it", || origin.count() == seed as usize + 1);
        weighed.push(in_flight());
        go.send(()).expect("the engine lives");
        assert_eq!(client.response().status, 200);
    }
    assert!(weighed[0] < 8_192.0, "no megabyte of text: {weighed:?}");
    // 320 tokens of four bytes, and what the body has beside it.
    assert!((1_000.0..2_000.0).contains(&weighed[7]), "{weighed:?}");
    assert!((token_bytes() - 4.0).abs() < 0.01, "text stays what it is: {}", token_bytes());
}
