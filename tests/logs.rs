//! What the log says and what it never says: one line a change of state, few lines however many requests fail, no prompt.

mod support;

use std::time::Duration;

use support::origin::ok;
use support::{Origin, Router, chat, completion, eventually};

const FAST: [&str; 2] = ["--static-backend-health-check-interval", "0.1"];

/// The log's lines as text, whatever their form: of a JSON line, its message.
fn messages(router: &Router) -> Vec<String> {
    let message = |line: String| match serde_json::from_str::<serde_json::Value>(&line) {
        Ok(object) => object["message"].as_str().expect("a message").to_owned(),
        Err(_) => line,
    };
    router.log().into_iter().map(message).collect()
}

fn count(router: &Router, parts: &[&str]) -> usize {
    messages(router).iter().filter(|line| parts.iter().all(|part| line.contains(part))).count()
}

#[test]
fn each_change_of_state_is_one_line_in_text_and_in_json() {
    for format in ["text", "json"] {
        let origin = Origin::plain();
        let path = std::env::temp_dir().join(format!("trieway-logs-{}-{format}.yaml", std::process::id()));
        std::fs::write(&path, "prefix_min_match_length: 1\n").expect("written");
        let flags = ["--log-format", format, "--dynamic-config-yaml", &path.to_string_lossy()];
        let mut router = Router::in_front_of(&[origin.url()], &[&flags[..], &FAST].concat());
        let url = origin.url();
        let address = origin.kill();
        eventually("down", || router.get("/engines").body_text().contains("\"down\""));
        let origin = Origin::start_at(address, &["m"], |peer, _| peer.send(ok("{}")));
        router.wait_for_backends(1);
        std::fs::write(&path, "prefix_min_match_length: 2\n").expect("written");
        eventually("in force", || count(&router, &["configuration 2 is in force"]) == 1);
        // Probes go on meanwhile: what does not change is not told again.
        std::thread::sleep(Duration::from_millis(500));
        router.signal("TERM");
        router.wait();
        eventually("the end is logged", || count(&router, &["drained: every connection has ended"]) == 1);
        let found = [
            count(&router, &[&url, "is up"]),
            count(&router, &[&url, "is down", "connection refused"]),
            count(&router, &[&url, "has restarted"]),
            count(&router, &["is in force"]),
            count(&router, &["SIGTERM: draining"]),
        ];
        assert_eq!(found, [2, 1, 1, 1, 1], "{:#?}", router.log());
        if format == "json" {
            assert!(router.log().iter().all(|line| line.starts_with('{') && line.ends_with('}')), "{:?}", router.log());
        }
        assert_eq!(origin.count(), 0);
        let _ = std::fs::remove_file(&path);
    }
}

#[test]
fn however_many_requests_fail_there_is_a_line_a_second() {
    // It takes every request and closes the connection.
    let origin = Origin::start(&["m"], |_, _| false);
    let router = Router::in_front_of(&[origin.url()], &[]);
    let began = std::time::Instant::now();
    let mut failed = 0;
    while began.elapsed() < Duration::from_millis(2500) {
        assert_eq!(router.post("/v1/completions", &completion("m", "x")).status, 502);
        failed += 1;
    }
    std::thread::sleep(Duration::from_millis(1200));
    let told: Vec<u64> = messages(&router)
        .iter()
        .filter_map(|line| line.split_once("failed: ").map(|(before, _)| before.to_owned()))
        .map(|before| before.rsplit(' ').nth(2).and_then(|n| n.parse().ok()).expect("a number of requests"))
        .collect();
    assert!((2..=5).contains(&told.len()) && failed > 50, "{} lines for {failed} requests", told.len());
    assert_eq!(told.iter().sum::<u64>(), failed, "and none of them is left out");
}

#[test]
fn no_prompt_and_no_answer_is_logged_at_any_level_whatever_becomes_of_the_request() {
    const PROMPT: &str = "xyzzy-prompt";
    const ANSWER: &str = "xyzzy-answer";
    let origin = Origin::start(&["m"], |peer, received| {
        let act = received.fields("x-act").concat();
        let answer = match act.as_str() {
            "close" => String::new(),
            "break" => format!("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{ANSWER}"),
            "garbage" => format!("{ANSWER}\r\n\r\n"),
            _ => ok(&format!("{{\"text\":\"{ANSWER}\"}}")),
        };
        peer.send(answer) && act.is_empty()
    });
    for format in ["text", "json"] {
        let flags = ["--log-level", "trace", "--log-format", format, "--log-requests"];
        let router = Router::in_front_of(&[origin.url()], &flags);
        for act in ["", "close", "break", "garbage"] {
            for body in [
                chat("m", PROMPT),
                completion("m", PROMPT),
                completion("unknown", PROMPT),
                format!("{{\"model\": \"m\", \"prompt\": \"{PROMPT}"),
            ] {
                let fields = format!("X-Act: {act}\r\nAuthorization: Bearer xyzzy-key\r\nCookie: xyzzy-cookie\r\n");
                let mut client = router.client();
                client.send_post("/v1/chat/completions?q=xyzzy-query", &body, &fields);
                client.read_to_end_within(Duration::from_millis(300));
            }
        }
        eventually("failures are logged", || count(&router, &["failed: "]) > 0);
        std::thread::sleep(Duration::from_millis(1100));
        let log = router.log().join("\n");
        assert!(!log.contains("xyzzy"), "{log}");
    }
}
