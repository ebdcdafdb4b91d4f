//! The promises of the prefix-aware policy, over real HTTP and real backends: what the router that this one replaces had to
//! fix once must stay fixed here.

mod support;

use support::{Origin, Router, chat, completion, eventually, text};

fn fleet(n: usize) -> (Vec<Origin>, Vec<String>) {
    let origins: Vec<_> = (0..n).map(|_| Origin::plain()).collect();
    let urls = origins.iter().map(Origin::url).collect();
    (origins, urls)
}

fn counts(origins: &[Origin]) -> Vec<usize> {
    origins.iter().map(Origin::count).collect()
}

fn send(router: &Router, prompt: &str) {
    let response = router.post("/v1/completions", &completion("m", prompt));
    assert_eq!(response.status, 200, "{}", response.body_text());
}

/// The index of the backend that got the request.
fn sent_to(router: &Router, origins: &[Origin], prompt: &str) -> usize {
    let before = counts(origins);
    send(router, prompt);
    let after = counts(origins);
    (0..origins.len()).find(|&i| after[i] > before[i]).expect("somebody got it")
}

#[test]
fn a_cold_trie_is_seeded_by_the_fallback_and_a_longer_follow_up_pins_although_qps_prefers_another() {
    let (origins, urls) = fleet(2);
    let router = Router::in_front_of(&urls, &["--prefix-min-match-length", "1000", "--workers", "2"]);
    let first = text(1, 2000);
    let home = sent_to(&router, &origins, &first);
    for i in 0..5 {
        send(&router, &format!("{first}{}", text(100 + i, 500)));
    }
    assert_eq!(
        origins[home].count(),
        6,
        "every follow-up goes where the fallback sent the first: {:?}",
        counts(&origins)
    );
    assert!(
        router.metric(&format!("trieway_requests_total{{server=\"{}\",model=\"m\",reason=\"prefix\"}}", urls[home]))
            >= 5.0
    );
}

#[test]
fn below_the_threshold_identical_prompts_balance() {
    let (origins, urls) = fleet(2);
    let router = Router::in_front_of(&urls, &["--prefix-min-match-length", "100000", "--workers", "1"]);
    for _ in 0..40 {
        send(&router, &text(7, 500));
    }
    assert_eq!(counts(&origins), [20, 20]);
}

#[test]
fn below_the_threshold_conversations_that_share_a_prefix_spread() {
    let (origins, urls) = fleet(2);
    let router = Router::in_front_of(&urls, &["--prefix-min-match-length", "100000", "--workers", "1"]);
    let shared = text(1, 40_000);
    for i in 0..20 {
        send(&router, &format!("{shared}{}", text(50 + i, 2_000)));
    }
    assert_eq!(counts(&origins), [10, 10]);
}

#[test]
fn beyond_the_threshold_a_conversation_stays() {
    let (origins, urls) = fleet(2);
    let router = Router::in_front_of(&urls, &["--prefix-min-match-length", "100000"]);
    let mut conversation = text(3, 100_500);
    let home = sent_to(&router, &origins, &conversation);
    for turn in 0..6 {
        send(&router, &text(1000 + turn, 300));
        conversation.push_str(&text(200 + turn, 1_000));
        assert_eq!(sent_to(&router, &origins, &conversation), home, "turn {turn}");
    }
}

#[test]
fn at_threshold_zero_any_whole_chunk_that_matches_pins() {
    let (origins, urls) = fleet(4);
    let router = Router::in_front_of(&urls, &[]);
    let first = text(1, 128);
    let home = sent_to(&router, &origins, &first);
    for i in 0..8 {
        assert_eq!(sent_to(&router, &origins, &format!("{first}{}", text(10 + i, 200))), home);
    }
}

#[test]
fn prompts_shorter_than_a_chunk_and_new_ones_go_by_qps() {
    let (origins, urls) = fleet(4);
    let router = Router::in_front_of(&urls, &["--workers", "1"]);
    for i in 0..200 {
        send(&router, "hi");
        send(&router, &text(5000 + i, 1_000));
    }
    let counts = counts(&origins);
    assert!(counts.iter().all(|n| (90..=110).contains(n)), "400 new prompts over four idle backends: {counts:?}");
}

#[test]
fn chat_turns_pin_and_the_models_have_keys_of_their_own() {
    let two = || Origin::start(&["m", "n"], |peer, _| peer.send(support::origin::ok("{}")));
    let origins = [two(), two(), two()];
    let urls: Vec<_> = origins.iter().map(Origin::url).collect();
    let router = Router::in_front_of(&urls, &[]);
    let mut messages = vec![serde_json::json!({"role": "system", "content": text(1, 700)})];
    let mut home = None;
    for turn in 0..5 {
        messages.push(serde_json::json!({"role": "user", "content": text(20 + turn, 300)}));
        let body = serde_json::json!({"model": "m", "messages": messages, "stream": false}).to_string();
        let before = counts(&origins);
        assert_eq!(router.post("/v1/chat/completions", &body).status, 200);
        let now = (0..3).find(|&i| origins[i].count() > before[i]);
        assert!(home.is_none() || home == now, "turn {turn}");
        home = now;
        messages.push(serde_json::json!({"role": "assistant", "content": null, "tool_calls": [{"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}));
        messages.push(serde_json::json!({"role": "tool", "tool_call_id": "t", "content": "42"}));
    }
    let prompt = chat("m", &text(9, 4_000));
    router.post("/v1/chat/completions", &prompt);
    let other = chat("n", &text(9, 4_000));
    router.post("/v1/chat/completions", &other);
    let matched = |model: &str| {
        urls.iter()
            .map(|url| {
                router
                    .metric(&format!("trieway_requests_total{{server=\"{url}\",model=\"{model}\",reason=\"prefix\"}}"))
            })
            .sum::<f64>()
    };
    assert_eq!(matched("n"), 0.0, "the same text under another model is another key");
    assert_eq!(matched("m"), 4.0);
}

#[test]
fn an_empty_fleet_answers_503_and_seeds_nothing() {
    let dead = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
        format!("http://{}", listener.local_addr().expect("address"))
    };
    let router =
        Router::start(&["--static-backends", &dead, "--static-models", "m", "--no-static-backend-health-checks"]);
    assert_eq!(router.post("/v1/completions", &completion("m", &text(2, 5_000))).status, 502);
    assert_eq!(router.metric("trieway_trie_nodes"), 0.0, "a backend that was not reached holds nothing");
    drop(router);
    let router = Router::start(&["--static-backends", &dead, "--static-models", "m"]);
    eventually("the dead backend is found", || router.engines().contains("\"state\":\"down\""));
    for _ in 0..5 {
        let response = router.post("/v1/completions", &completion("m", &text(1, 5_000)));
        assert_eq!(response.status, 503);
        assert!(response.field("retry-after").is_some_and(|v| v.parse::<u32>().is_ok()));
        assert_eq!(response.field("content-type"), Some("application/json"));
    }
    assert_eq!(router.metric("trieway_trie_nodes"), 0.0);
    assert_eq!(router.get("/health").status, 503);
    assert_eq!(router.get("/health/live").status, 200);
}

#[test]
fn a_backend_that_refuses_connections_gets_no_mark_and_the_request_goes_to_another() {
    let (origins, mut urls) = fleet(1);
    let dead = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
        format!("http://{}", listener.local_addr().expect("address"))
    };
    urls.push(dead);
    let list = urls.join(",");
    let router = Router::start(&[
        "--static-backends",
        &list,
        "--static-models",
        "m,m",
        "--static-backend-health-check-interval",
        "3600",
    ]);
    for i in 0..20 {
        send(&router, &text(i, 1_000));
    }
    assert_eq!(origins[0].count(), 20, "no request is lost");
}
