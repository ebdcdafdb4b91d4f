//! Bodies of the LLM endpoints, ordinary and odd: forwarded byte for byte, keyed by what engines can share, judged by the
//! backend and not by the router.

mod support;

use serde_json::{Value, json};
use support::{Origin, Router, chat, completion, text};

struct Stage {
    origins: Vec<Origin>,
    router: Router,
}

impl Stage {
    fn new(backends: usize, models: &[&str]) -> Self {
        let answer = |peer: &mut support::origin::Peer, _: &support::Received| peer.send(support::origin::ok("{}"));
        let origins: Vec<_> = (0..backends).map(|_| Origin::start(models, answer)).collect();
        let urls: Vec<_> = origins.iter().map(Origin::url).collect();
        Stage { origins, router: Router::in_front_of(&urls, &["--workers", "2"]) }
    }

    /// Sends the body, which must arrive once and unchanged. The index of the backend that got it.
    fn send(&self, path: &str, body: &str) -> usize {
        let before: Vec<_> = self.origins.iter().map(Origin::count).collect();
        let response = self.router.post(path, body);
        assert_eq!(response.status, 200, "{path} {}: {}", &body[..body.len().min(200)], response.body_text());
        let got: Vec<_> = (0..self.origins.len()).filter(|&i| self.origins[i].count() > before[i]).collect();
        assert_eq!(got.len(), 1, "one backend gets it: {body:.200}");
        let received = self.origins[got[0]].received();
        assert_eq!(received.len(), before[got[0]] + 1, "once: {body:.200}");
        assert!(received.last().is_some_and(|r| r.body == body.as_bytes()), "unchanged: {body:.200}");
        got[0]
    }

    /// The body goes to one backend, however often, whatever else is sent between.
    fn sticks(&self, path: &str, body: &str) -> usize {
        let home = self.send(path, body);
        for i in 0..8 {
            self.send("/v1/completions", &completion("m", &text(home as u64 * 1000 + i + 77, 300)));
            assert_eq!(self.send(path, body), home, "repetition {i} of {body:.200}");
        }
        home
    }

    fn by_prefix(&self) -> f64 {
        let metrics = self.router.get("/metrics").body_text();
        let lines =
            metrics.lines().filter(|l| l.starts_with("trieway_requests_total") && l.contains("reason=\"prefix\""));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

const CHAT: &str = "/v1/chat/completions";

fn turns(messages: &Value) -> String {
    json!({"model": "m", "messages": messages}).to_string()
}

#[test]
fn assistant_turns_without_content_pass_and_the_conversation_stays() {
    let stage = Stage::new(4, &["m"]);
    let call = json!([{"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let answers = [
        json!({"role": "assistant", "content": null, "tool_calls": call}),
        json!({"role": "assistant", "tool_calls": call}),
        json!({"role": "assistant", "content": "", "tool_calls": call}),
        json!({"role": "assistant", "content": 7}),
        json!({"role": "assistant", "content": {}}),
        json!({"role": "assistant", "content": {"text": ["deep", null]}}),
        json!({"role": null, "content": true}),
        json!("a message that is a string"),
        json!(null),
        json!([]),
    ];
    for (case, answer) in answers.iter().enumerate() {
        let user = json!({"role": "user", "content": text(case as u64, 600)});
        let first = turns(&json!([user, answer]));
        let home = stage.send(CHAT, &first);
        let tool = json!({"role": "tool", "tool_call_id": "t", "content": "42"});
        for next in [
            turns(&json!([user, answer, tool])),
            turns(&json!([user, answer, tool, {"role": "user", "content": "on"}])),
        ] {
            assert_eq!(stage.send(CHAT, &next), home, "the next turn after {answer}");
        }
    }
}

#[test]
fn content_that_is_nothing_is_no_prefix_that_strangers_share() {
    let stage = Stage::new(4, &["m"]);
    for content in [json!(null), json!(""), json!([]), json!({}), json!(7)] {
        for i in 0..4 {
            let messages = json!([{"role": "user", "content": content}, {"role": "user", "content": text(i, 40)}]);
            stage.send(CHAT, &turns(&messages));
        }
    }
    assert_eq!(stage.by_prefix(), 0.0);
}

#[test]
fn parts_of_content_are_keyed_in_order_and_an_image_ends_the_match() {
    let stage = Stage::new(4, &["m"]);
    let said = text(5, 2048);
    let image = |seed: u64| json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{}", text(seed, 1 << 20))}});
    let body = |content: Value| turns(&json!([{"role": "user", "content": content}]));
    let with = |seed| body(json!([{"type": "text", "text": said}, image(seed), {"type": "text", "text": "q"}]));
    let home = stage.send(CHAT, &with(1));
    for same_text in [with(1), with(2), body(json!(said)), body(json!([{"type": "text", "text": said}]))] {
        assert_eq!(stage.send(CHAT, &same_text), home, "{same_text:.100}");
    }
    let half = said.len() / 2;
    let two = body(json!([{"type": "text", "text": said[..half]}, {"type": "text", "text": said[half..]}]));
    assert_eq!(stage.send(CHAT, &two), home, "the text before the first part's end is shared");
    for odd in [
        json!([]),
        json!([{"type": "text"}]),
        json!([{"type": "text", "text": null}]),
        json!([{"type": "text", "text": 5}]),
        json!([{"type": "unknown", "data": [1, 2]}]),
        json!([null, 1, "text", {}, [[]]]),
        json!([{"text": said}]),
        json!([{"type": 5, "text": said}]),
    ] {
        stage.send(CHAT, &body(odd));
    }
}

#[test]
fn each_shape_of_a_prompt_sticks_to_one_backend() {
    let stage = Stage::new(4, &["m"]);
    let tokens: Vec<u32> = (0..400).map(|i| i * 7 % 32_000).collect();
    for (path, field) in [("/v1/completions", "prompt"), ("/v1/embeddings", "input")] {
        for prompt in [json!(text(1, 900)), json!([text(2, 500), text(3, 500)]), json!(tokens), json!([tokens, tokens])]
        {
            stage.sticks(path, &json!({"model": "m", field: prompt}).to_string());
        }
        for short in [
            json!("abc"),
            json!(["abc", "xyz"]),
            json!([1, 2, 3]),
            json!([[1, 2], [3, 4]]),
            json!([]),
            json!(null),
            json!({}),
        ] {
            for _ in 0..3 {
                stage.send(path, &json!({"model": "m", field: short}).to_string());
            }
        }
    }
}

#[test]
fn a_body_without_a_prompt_is_answered_at_once_and_seeds_nothing() {
    let stage = Stage::new(2, &["m"]);
    let before = stage.router.metric("trieway_trie_nodes");
    for path in
        [CHAT, "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages", "/tokenize", "/rerank", "/score"]
    {
        for body in [
            "{\"model\":\"m\"}",
            "{\"model\":\"m\",\"messages\":[]}",
            "{\"model\":\"m\",\"messages\":{}}",
            "{\"model\":\"m\",\"messages\":null,\"prompt\":null,\"input\":null}",
            "{\"prompt\":null}",
            "{\"input\":\"x\"}",
            "{}",
            " { } ",
            "{\"model\":\"m\",\"model\":\"m\"}",
            "\u{feff}{}",
        ] {
            stage.send(path, body);
        }
        for body in ["[]", "\"hi\"", "123", "null", "", "{\"model\":\"m\"", "{\"model\":\"m\"}{}", "{'model':'m'}"] {
            let refused = stage.router.post(path, body);
            assert_eq!((refused.status, refused.error_code().as_str()), (400, "invalid_json"), "{path} {body:?}");
            assert!(!refused.json()["error"]["message"].as_str().unwrap_or_default().is_empty());
        }
    }
    assert_eq!(stage.router.get("/v1/models").status, 200);
    assert_eq!(stage.router.metric("trieway_trie_nodes"), before);
    for i in 0..8 {
        stage.send(CHAT, &chat("m", &text(i, 500)));
    }
}

#[test]
fn model_salt_and_tools_are_namespaces_of_their_own() {
    let stage = Stage::new(4, &["base", "lora-1", "x"]);
    let prompt = text(1, 8 << 10);
    let tools =
        |seed: u64| json!([{"type": "function", "function": {"name": "f", "description": text(seed, 4 << 10)}}]);
    let messages = json!([{"role": "user", "content": prompt}]);
    let strangers = [
        json!({"model": "base", "messages": messages}),
        json!({"model": "lora-1", "messages": messages}),
        json!({"model": "base", "messages": messages, "cache_salt": "t1"}),
        json!({"model": "base", "messages": messages, "cache_salt": "t2"}),
        json!({"model": "base", "messages": messages, "tools": tools(1)}),
        json!({"model": "base", "messages": messages, "tools": tools(2)}),
        json!({"model": "x", "messages": messages}),
        json!({"model": "base", "messages": messages, "cache_salt": "x"}),
        json!({"messages": messages, "model": "base", "cache_salt": "lora-1"}),
    ];
    let homes: Vec<_> = strangers.iter().map(|body| stage.send(CHAT, &body.to_string())).collect();
    assert_eq!(stage.by_prefix(), 0.0, "a hit in one namespace is none in another");
    for (body, home) in strangers.iter().zip(&homes) {
        assert_eq!(stage.send(CHAT, &body.to_string()), *home);
    }
    assert_eq!(stage.by_prefix(), strangers.len() as f64);
    let empty = json!({"model": "base", "messages": messages, "cache_salt": ""});
    assert_eq!(stage.send(CHAT, &empty.to_string()), homes[0], "an empty salt is none");
    assert_eq!(stage.by_prefix(), strangers.len() as f64 + 1.0);
}

#[test]
fn unusual_json_arrives_byte_for_byte() {
    let stage = Stage::new(2, &["m"]);
    let deep = format!("{{\"model\":\"m\",\"x\":{}{}}}", "[".repeat(100), "]".repeat(100));
    for body in [
        "{\"model\":\"m\",\"prompt\":\"\\ud83d\\ude00 \u{1f600} \\u0000 \\/ \\b\"}",
        "{ \"mod\\u0065l\" : \"m\" , \"prompt\":\"x\" , \"n\" : 1E+2 }",
        "\r\n\t {\"model\":\"m\",\"prompt\":\"x\"}\r\n",
        "{\"prompt\":\"x\",\"model\":\"m\",\"prompt\":\"y\"}",
        "{\"model\":\"m\",\"prompt\":\"lone \\ud800 surrogate\"}",
        "{\"model\":\"m\",\"big\":123456789012345678901234567890.5e-300}",
        &deep,
    ] {
        stage.send("/v1/completions", body);
    }
    for origin in &stage.origins {
        origin.canonical();
    }
}
