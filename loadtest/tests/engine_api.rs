//! What an engine answers, as a client of vLLM would see it.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod support;

use std::time::{Duration, Instant};

use support::{Client, Engine, chat, chat_body, post};

#[test]
fn usage_tells_what_was_cached() {
    let engine = Engine::start("--block-tokens 16");
    // "<|user|>\n" + 400 + "<|end|>\n" + "<|assistant|>\n" = 431 bytes = 108 tokens, 6 whole blocks.
    let body = chat_body(&"a".repeat(400), 8, "");
    let first = engine.post("/v1/chat/completions", "", &body).json();
    assert_eq!(first["usage"]["prompt_tokens"], 108);
    assert_eq!(first["usage"]["completion_tokens"], 8);
    assert_eq!(first["usage"]["total_tokens"], 116);
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let second = engine.post("/v1/chat/completions", "", &body).json();
    assert_eq!(second["usage"]["prompt_tokens_details"]["cached_tokens"], 96);
    assert_eq!(first["choices"][0]["message"]["content"], second["choices"][0]["message"]["content"]);

    let page = engine.get("/metrics").text();
    for line in [
        "prefix_cache_queries_total{engine=\"0\",model_name=\"fake-llm\"} 216",
        "prefix_cache_hits_total{engine=\"0\",model_name=\"fake-llm\"} 96",
    ] {
        assert!(page.contains(&format!("vllm:{line}\n")), "{line} not in {page}");
    }
    engine.post("/debug/reset", "", "");
    let third = engine.post("/v1/chat/completions", "", &body).json();
    assert_eq!(third["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

#[test]
fn a_next_turn_finds_the_answer_of_the_one_before() {
    let engine = Engine::start("");
    let question = "q".repeat(100);
    let first = engine.post("/v1/chat/completions", "", &chat_body(&question, 64, "")).json();
    let answer = first["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(answer.len(), 64 * 4);
    let body = serde_json::json!({"messages": [{"role": "user", "content": question},
        {"role": "assistant", "content": answer}, {"role": "user", "content": "and then?"}]});
    let second = engine.post("/v1/chat/completions", "", &body.to_string()).json();
    // 131 bytes of prompt and 256 of answer: 6 whole blocks of 64 bytes.
    assert_eq!(second["usage"]["prompt_tokens_details"]["cached_tokens"], 96);
}

#[test]
fn an_answer_without_a_token_leaves_nothing_in_the_queue() {
    let engine = Engine::start("--prefill-tokens-per-s 1000");
    let mut long = engine.connect();
    long.send(&post("/v1/completions", "", &format!(r#"{{"prompt":"{}","max_tokens":1}}"#, "a".repeat(2_000))));
    // It computes for half a second; what has no token is answered meanwhile.
    let mut short = engine.connect();
    for tokens in [0, 0, 2] {
        let body = format!(r#"{{"prompt":"b","max_tokens":{tokens},"stream":true}}"#);
        assert_eq!(short.exchange(&post("/v1/completions", "", &body)).status, 200);
    }
    assert_eq!(long.response().unwrap().status, 200);
    let seen = engine.get("/debug/requests").json();
    assert_eq!((&seen["running"], &seen["waiting"]), (&serde_json::json!(0), &serde_json::json!(0)), "{seen}");
}

#[test]
fn a_stream_adds_up_to_the_whole_answer() {
    let engine = Engine::start("");
    for (path, body) in [
        ("/v1/chat/completions", chat_body("hello", 8, "")),
        ("/v1/completions", r#"{"prompt":"hello there","max_tokens":8}"#.to_owned()),
    ] {
        let whole = engine.post(path, "X-Tag: t7\r\n", &body).json();
        let choice = &whole["choices"][0];
        let text = choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap().to_owned();
        assert!(text.starts_with("[t7] ") && text.len() == 5 + 32, "{text}");

        let streamed = body.replace("\"max_tokens\"", "\"stream\":true,\"max_tokens\"");
        let response = engine.post(path, "X-Tag: t7\r\n", &streamed);
        assert_eq!(
            (response.field("x-tag"), response.field("x-engine")),
            (Some("t7"), Some(engine.port().to_string().as_str()))
        );
        let events = response.events();
        assert!(events.iter().all(|event| event.get("usage").is_none()), "usage was not asked for");
        let mut parts = String::new();
        for choice in events.iter().map(|event| &event["choices"][0]) {
            parts += choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default();
        }
        assert_eq!(parts, text);

        let asked = streamed.replace("\"stream\":true", "\"stream\":true,\"stream_options\":{\"include_usage\":true}");
        let events = engine.post(path, "", &asked).events();
        let (last, others) = events.split_last().unwrap();
        assert!(others.iter().all(|event| event["usage"].is_null()));
        assert_eq!(
            (last["usage"]["completion_tokens"].as_u64(), last["choices"].as_array().unwrap().len()),
            (Some(8), 0)
        );
    }
}

#[test]
fn the_first_token_comes_sooner_when_the_prompt_is_cached() {
    // 4,031 bytes of prompt are 1,008 tokens: a second when new, 16 ms when cached.
    let engine = Engine::start("--prefill-tokens-per-s 1000 --decode-tokens-per-s 100");
    let mut took = Vec::new();
    for least_ms in [1008, 16] {
        let start = Instant::now();
        let mut client = engine.connect();
        client.send(&chat("", &"z".repeat(4000), r#","stream":true"#));
        client.head().unwrap();
        assert!(start.elapsed() < Duration::from_millis(800), "a stream's head comes at once");
        client.stream.peek(&mut [0]).unwrap();
        took.push(start.elapsed());
        assert!(start.elapsed() >= Duration::from_millis(least_ms));
        client.rest_of_stream();
        // Eight tokens at 100 a second: seven gaps.
        assert!(start.elapsed() >= Duration::from_millis(least_ms + 70));
    }
    assert!(took[1] < Duration::from_millis(800), "{took:?}");
}

impl Client {
    fn rest_of_stream(&mut self) {
        let mut seen = Vec::new();
        let mut buffer = [0; 4096];
        while !seen.ends_with(b"0\r\n\r\n") {
            let count = std::io::Read::read(&mut self.stream, &mut buffer).unwrap();
            assert!(count > 0, "the stream broke");
            seen.extend_from_slice(&buffer[..count]);
        }
    }
}

#[test]
fn requests_are_read_wherever_they_are_cut_and_answered_in_order() {
    let engine = Engine::start("");
    let chunked = "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\nX-Tag: two\r\n\r\n5\r\n{\"pro\r\ne\r\nmpt\":\"chunks\"}\r\n0\r\n\r\n";
    let wire = format!("{}{chunked}GET /health HTTP/1.1\r\n\r\n", chat("X-Tag: one\r\n", "hi", ""));
    for cut in (1..wire.len()).step_by(7) {
        let mut client = engine.connect();
        client.send(&wire[..cut]);
        std::thread::sleep(Duration::from_millis(1));
        client.send(&wire[cut..]);
        assert_eq!(client.response().unwrap().field("x-tag"), Some("one"));
        assert_eq!(client.response().unwrap().field("x-tag"), Some("two"));
        assert_eq!(client.response().unwrap().status, 200);
    }
}

#[test]
fn old_and_unusual_requests_are_framed_as_they_must_be() {
    let engine = Engine::start("");
    // HTTP/1.0 never gets chunks: the stream ends with the connection.
    let mut client = engine.connect();
    client.send(&chat("", "hi", r#","stream":true"#).replace("HTTP/1.1", "HTTP/1.0"));
    let text = client.rest().unwrap();
    assert!(
        !text.contains("chunked") && text.contains("connection: close\r\n") && text.ends_with("data: [DONE]\n\n"),
        "{text}"
    );
    // HEAD announces the length of a body that does not come.
    let mut client = engine.connect();
    client.send("HEAD /v1/models HTTP/1.1\r\nConnection: close\r\n\r\n");
    let text = client.rest().unwrap();
    assert!(text.contains("content-length: 1") && text.ends_with("\r\n\r\n"), "{text}");
    // A body that waits to be asked for is asked for.
    let body = chat_body("hi", 4, "");
    let whole = post("/v1/chat/completions", "Expect: 100-continue\r\n", &body);
    let mut client = engine.connect();
    client.send(&whole[..whole.len() - body.len()]);
    assert_eq!(client.head().unwrap(), "HTTP/1.1 100 Continue\r\n\r\n");
    client.send(&body);
    assert_eq!(client.response().unwrap().status, 200);
}

#[test]
fn errors_are_those_of_a_real_engine() {
    let engine = Engine::start("--model a,b --kv-tokens 1000");
    let status = |path: &str, body: &str| engine.post(path, "", body).status;
    assert_eq!(status("/v1/chat/completions", "not json"), 400);
    assert_eq!(status("/v1/chat/completions", "{}"), 400);
    assert_eq!(status("/v1/chat/completions", &chat_body("x", 1, r#","model":"c""#)), 404);
    assert_eq!(status("/v1/chat/completions", &chat_body("x", 1, r#","model":"b""#)), 200);
    assert_eq!(status("/v1/chat/completions", &chat_body(&"x".repeat(5000), 1, "")), 400);
    assert_eq!(status("/nothing", ""), 404);
    assert_eq!(engine.get("/v1/models").json()["data"].as_array().unwrap().len(), 2);
    let embedding = engine.post("/v1/embeddings", "", r#"{"model":"a","input":["abcd","efgh"]}"#).json();
    assert_eq!(embedding["usage"]["prompt_tokens"], 2);
    // What is no request is counted, answered and closed.
    let mut client = engine.connect();
    client.send("POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc");
    assert!(client.rest().unwrap().starts_with("HTTP/1.1 400"));
    assert_eq!(engine.journal()["malformed"], 1);
    // A request that breaks off is none of both.
    let mut client = engine.connect();
    client.send("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nab");
    drop(client);
    let journal = engine.journal_when(|journal| journal["incomplete"] == 1);
    assert_eq!((journal["incomplete"].as_u64(), journal["aborted"].as_u64()), (Some(1), Some(0)));
    // Asleep it generates nothing.
    engine.post("/sleep", "", "");
    assert_eq!(engine.get("/is_sleeping").json()["is_sleeping"], true);
    assert_eq!(status("/v1/chat/completions", &chat_body("x", 1, "")), 503);
    engine.post("/wake_up", "", "");
    assert_eq!(status("/v1/chat/completions", &chat_body("x", 1, "")), 200);
}

#[test]
fn a_client_that_leaves_is_seen_at_once_and_its_work_ends() {
    let engine = Engine::start("--prefill-tokens-per-s 100 --decode-tokens-per-s 1");
    // The first prefills for seconds, the second waits behind it; a third streams nothing yet either.
    let mut clients: Vec<Client> = Vec::new();
    for (n, extra) in ["", r#","stream":true"#].iter().enumerate() {
        let mut client = engine.connect();
        client.send(&chat(&format!("X-Tag: c{n}\r\n"), &"p".repeat(2000), extra));
        clients.push(client);
    }
    let before = engine.journal_when(|journal| journal["count"] == 2);
    assert_eq!((before["running"].as_u64(), before["waiting"].as_u64()), (Some(1), Some(1)));
    let left = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64() * 1000.0;
    drop(clients);
    let after = engine.journal_when(|journal| journal["aborted"] == 2);
    assert_eq!(
        (after["running"].as_u64(), after["waiting"].as_u64(), after["aborted"].as_u64()),
        (Some(0), Some(0), Some(2))
    );
    for abort in after["aborts"].as_array().unwrap() {
        assert!(abort["seen_unix_ms"].as_f64().unwrap() - left < 250.0, "{abort}");
    }
}

#[test]
fn many_slow_streams_run_side_by_side() {
    let engine = Engine::start("--decode-tokens-per-s 20");
    let start = Instant::now();
    let mut clients: Vec<Client> = (0..500).map(|_| engine.connect()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.send(&chat(&format!("X-Tag: s{n}\r\n"), "slow", r#","stream":true"#));
    }
    for (n, client) in clients.iter_mut().enumerate() {
        let response = client.response().unwrap();
        assert_eq!(
            response.events()[1]["choices"][0]["delta"]["content"].as_str().unwrap()[..3],
            format!("[s{n}] ")[..3]
        );
        assert!(response.text().contains(&format!("[s{n}] ")));
    }
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(340) && took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn an_answer_that_nobody_reads_takes_no_memory() {
    let engine = Engine::start("");
    let clients: Vec<Client> = (0..20)
        .map(|n| {
            let mut client = engine.connect();
            let stream = if n % 2 == 0 { "" } else { r#","stream":true"# };
            client.send(&post("/v1/chat/completions", "", &chat_body("big", 50_000_000, stream)));
            client
        })
        .collect();
    assert_eq!(engine.journal_when(|journal| journal["count"] == 20)["running"], 20);
    std::thread::sleep(Duration::from_millis(200));
    assert!(engine.resident_kb() < 40_000, "{} KB", engine.resident_kb());
    drop(clients);
}

#[test]
fn a_large_answer_has_the_announced_length() {
    let engine = Engine::start("");
    let response = engine.post("/v1/chat/completions", "X-Tag: big\r\n", &chat_body("big", 1_000_000, ""));
    let content = response.json()["choices"][0]["message"]["content"].as_str().unwrap().len();
    assert_eq!(content, 4_000_000 + "[big] ".len());
}

#[test]
fn idle_connections_are_closed_after_their_time() {
    let engine = Engine::start("--keep-alive-s 0.3");
    let mut client = engine.connect();
    assert_eq!(client.exchange("GET /health HTTP/1.1\r\n\r\n").status, 200);
    let start = Instant::now();
    assert_eq!(client.rest().unwrap(), "");
    assert!(start.elapsed() > Duration::from_millis(250) && start.elapsed() < Duration::from_secs(4));
}

#[test]
fn an_engine_ends_by_a_signal_or_in_its_time() {
    let start = Instant::now();
    let mut engine = Engine::start("");
    assert!(engine.terminate().success());
    assert!(start.elapsed() < Duration::from_secs(2));
    let mut engine = Engine::start_for("0.2");
    assert!(engine.wait().success());
}
