//! A restart that forgets nothing: the state file.

mod support;

use std::path::PathBuf;

use support::{Origin, Router, completion, text};

/// A path of this test's own, removed with it.
struct StateFile(PathBuf);

impl StateFile {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trieway-test-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        StateFile(path)
    }

    fn flags(&self) -> [&str; 2] {
        ["--state-file", self.0.to_str().expect("UTF-8")]
    }
}

impl Drop for StateFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn prompts() -> Vec<String> {
    (0..24).map(|seed| completion("m", &text(seed, 1_000))).collect()
}

/// Sends each prompt once; the index of the backend that got it.
fn homes(router: &Router, origins: &[Origin], prompts: &[String]) -> Vec<usize> {
    let mut client = router.client();
    let mut home = |prompt: &String| {
        let before: Vec<_> = origins.iter().map(Origin::count).collect();
        assert_eq!(client.post("/v1/completions", prompt).status, 200);
        (0..origins.len()).find(|&at| origins[at].count() > before[at]).expect("somebody got it")
    };
    prompts.iter().map(&mut home).collect()
}

/// Requests that went where their prefix was known.
fn by_prefix(router: &Router) -> f64 {
    let text = router.get("/metrics").body_text();
    let lines = text.lines().filter(|l| l.starts_with("trieway_requests_total{") && l.contains("reason=\"prefix\""));
    lines.map(|line| line.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok()).expect("a number")).sum()
}

fn end(mut router: Router) -> Vec<String> {
    router.signal("TERM");
    assert_eq!(router.wait().code(), Some(0));
    router.log()
}

fn says(log: &[String], what: &str) -> usize {
    log.iter().filter(|line| line.contains(what)).count()
}

#[test]
fn after_a_restart_every_prompt_goes_where_its_prefix_is() {
    let (file, prompts) = (StateFile::new("restart"), prompts());
    let origins: Vec<_> = (0..3).map(|_| Origin::plain()).collect();
    let mut urls: Vec<_> = origins.iter().map(Origin::url).collect();
    let router = Router::in_front_of(&urls, &file.flags());
    assert_eq!(says(&router.log(), "none yet"), 1);
    let before = homes(&router, &origins, &prompts);
    assert_eq!(by_prefix(&router), 0.0);
    end(router);
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&file.0).expect("written"));
    assert_eq!(mode & 0o777, 0o600, "its owner alone reads it");
    // The same backends in another order, and one more: they have other slots.
    urls.reverse();
    let newcomer = Origin::plain();
    urls.insert(0, newcomer.url());
    let router = Router::in_front_of(&urls, &file.flags());
    assert_eq!(says(&router.log(), "of 3 backends are known again"), 1, "{:?}", router.log());
    assert_eq!(homes(&router, &origins, &prompts), before);
    assert_eq!(by_prefix(&router), prompts.len() as f64);
    assert_eq!(newcomer.count(), 0);
    end(router);
}

#[test]
fn a_bad_file_is_ignored_with_one_line_and_replaced_at_the_end() {
    let (file, prompts) = (StateFile::new("bad"), prompts());
    let origin = [Origin::plain()];
    let urls = [origin[0].url()];
    let router = Router::in_front_of(&urls, &file.flags());
    homes(&router, &origin, &prompts);
    end(router);
    let good = std::fs::read(&file.0).expect("written");
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    let damaged: [&[u8]; 4] = [&flipped, &good[..good.len() - 9], b"", b"# not a state\n"];
    for bytes in damaged {
        std::fs::write(&file.0, bytes).expect("writes");
        let router = Router::in_front_of(&urls, &file.flags());
        assert_eq!(says(&router.log(), "is ignored: "), 1, "{:?}", router.log());
        homes(&router, &origin, &prompts);
        assert_eq!(by_prefix(&router), 0.0, "nothing of it is believed");
        end(router);
    }
    let router = Router::in_front_of(&urls, &file.flags());
    homes(&router, &origin, &prompts);
    assert_eq!((says(&router.log(), "is ignored: "), by_prefix(&router)), (0, prompts.len() as f64));
    let other = Router::in_front_of(&urls, &[&file.flags()[..], &["--prefix-chunk-size", "64"]].concat());
    assert_eq!(says(&other.log(), "was made with --prefix-chunk-size 128"), 1, "{:?}", other.log());
}

#[test]
fn a_path_without_a_folder_is_refused_at_the_start() {
    let output =
        support::router::locally(&["--static-backends", "http://127.0.0.1:1", "--state-file", "/no/such/folder/x"])
            .output()
            .expect("runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("--state-file /no/such/folder/x"), "{said}");
    assert_eq!(said.lines().count(), 1);
}
