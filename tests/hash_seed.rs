//! The secret by which prompts are hashed: without it nobody makes prompts that collide, and lives that share it agree.

mod support;

use std::path::PathBuf;

use support::{Origin, Router, completion, text};

const SEED: &str = "a-seed-of-this-test-4711";

/// The first word of the secret of XXH3 that everybody knows. Where a chunk begins with it, its next eight bytes count for
/// nothing.
const KNOWN: [u8; 8] = 0xbe4b_a423_396c_feb8_u64.to_le_bytes();

/// A completion request for text that differs by `number` and has the same hashes as all of them under the known secret.
fn colliding(number: u64) -> Vec<u8> {
    let chunk = [&KNOWN[..], format!("{number:08}").as_bytes(), &[b'x'; 112]].concat();
    [b"{\"model\":\"m\",\"prompt\":\"", &chunk.repeat(10)[..], b"\"}"].concat()
}

/// Requests that went where their prefix was known.
fn by_prefix(router: &Router) -> f64 {
    let text = router.get("/metrics").body_text();
    let lines = text.lines().filter(|l| l.starts_with("trieway_requests_total{") && l.contains("reason=\"prefix\""));
    lines.map(|line| line.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok()).expect("a number")).sum()
}

#[test]
fn texts_that_collide_under_the_known_function_match_nothing() {
    let origins: Vec<_> = (0..4).map(|_| Origin::plain()).collect();
    let urls: Vec<_> = origins.iter().map(Origin::url).collect();
    for flags in [&[][..], &["--prefix-hash-seed", SEED]] {
        let router = Router::in_front_of(&urls, flags);
        let mut client = router.client();
        for number in 0..200 {
            let body = colliding(number);
            client.send(format!("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n", body.len()));
            assert_eq!(client.send(body).response().status, 200);
        }
        let counts: Vec<_> = origins.iter().map(Origin::count).collect();
        assert_eq!(by_prefix(&router), 0.0, "200 different texts, and none was sent before");
        assert!(counts.iter().all(|&count| count >= 30), "they are spread: {counts:?}");
        origins.iter().for_each(Origin::forget);
    }
}

/// A path of this test's own, removed with it.
struct StateFile(PathBuf);

impl StateFile {
    fn new() -> Self {
        StateFile(std::env::temp_dir().join(format!("trieway-test-{}-seed", std::process::id())))
    }
}

impl Drop for StateFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn lives_with_one_seed_agree_and_a_state_by_another_one_is_ignored() {
    let file = StateFile::new();
    let origin = Origin::plain();
    let prompts: Vec<_> = (0..8).map(|seed| completion("m", &text(seed, 1_000))).collect();
    // Whether prompts were known to a life with this seed, and what it said.
    let life = |seed: Option<&str>| {
        let path = file.0.to_str().expect("UTF-8");
        let flags = ["--state-file", path, "--prefix-hash-seed", seed.unwrap_or_default()];
        let mut router = Router::in_front_of(&[origin.url()], if seed.is_some() { &flags } else { &flags[..2] });
        prompts.iter().for_each(|prompt| assert_eq!(router.post("/v1/completions", prompt).status, 200));
        let matched = by_prefix(&router);
        router.signal("TERM");
        assert_eq!(router.wait().code(), Some(0));
        let log = router.log().join("\n");
        assert!(!log.contains(SEED), "a seed is shown: {log}");
        (matched > 0.0, log.contains("was made with another --prefix-hash-seed"))
    };
    assert_eq!(life(Some(SEED)), (false, false), "there is no file yet");
    assert_eq!(life(Some(SEED)), (true, false), "the same seed");
    assert_eq!(life(None), (true, false), "the file's seed");
    assert_eq!(life(Some("another-seed-of-this-test")), (false, true), "another seed");
    assert_eq!(life(Some(SEED)), (false, true), "what was left is of that other seed");
    std::fs::remove_file(&file.0).expect("it was written");
    assert_eq!(life(None), (false, false), "a random seed");
    assert_eq!(life(None), (true, false), "which the file keeps");
    std::fs::remove_file(&file.0).expect("it was written");
    assert_eq!(life(None), (false, false));
}
