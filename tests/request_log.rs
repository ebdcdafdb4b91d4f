//! `--log-requests`: the line that the production stack's users parse, and its own end-to-end routing test, reproduced.
//!
//! The log is a file, as in that test, and it is read as soon as the last answer is there: nothing here waits for a line.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::{AtomicU32, Ordering};

use support::origin::ok;
use support::router::locally;
use support::{Client, Origin, completion, eventually};

const MODEL: &str = "facebook/opt-125m";
const CHUNK: usize = 128;

/// A router whose log is a file.
struct Logged {
    child: Child,
    address: SocketAddr,
    path: PathBuf,
}

impl Logged {
    fn start(flags: &[&str]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("trieway-request-log-{}-{number}", std::process::id()));
        let mut command = locally(flags);
        command.env("TRIEWAY_LOG_REQUESTS", "true").stderr(File::create(&path).expect("a file"));
        let child = command.spawn().expect("starts");
        let mut address = None;
        eventually("it listens", || {
            let text = fs::read_to_string(&path).expect("text");
            let found = text.split_once("listening on http://").map(|(_, rest)| rest.to_owned());
            address = found.and_then(|rest| rest.split_once(": ").and_then(|(address, _)| address.parse().ok()));
            address.is_some()
        });
        let router = Logged { child, address: address.expect("found"), path };
        eventually("backends are up", || {
            !Client::connect(router.address).get("/health").body_text().contains("no backend")
        });
        router
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.path).expect("text")
    }

    /// The requests that the log tells of, in its order.
    fn lines(&self) -> Vec<Line> {
        self.text().lines().filter_map(Line::parse).collect()
    }

    fn complete(&self, id: &str, prompt: &str) {
        let fields = format!("Authorization: Bearer dummy\r\nX-Request-Id: {id}\r\nx-user-id: {id}\r\n");
        let mut client = Client::connect(self.address);
        let answer = client.send_post("/v1/completions", &completion(MODEL, prompt), &fields).response();
        assert_eq!(answer.status, 200, "{}", answer.body_text());
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.path);
    }
}

struct Line {
    id: String,
    session: String,
    url: String,
    at: f64,
    seconds: f64,
}

impl Line {
    /// As the stack's test reads it: `Routing request ([^ ]*) with session id ([^ ]*) to ([^ ]*) at `, and both times.
    fn parse(line: &str) -> Option<Self> {
        let (_, rest) = line.split_once("Routing request ")?;
        let (id, rest) = rest.split_once(" with session id ")?;
        let (session, rest) = rest.split_once(" to ")?;
        let (url, rest) = rest.split_once(" at ")?;
        let (at, seconds) = rest.split_once(", process time = ")?;
        let blank_free = [id, session, url].iter().all(|part| !part.contains(' '));
        blank_free.then(|| Line {
            id: id.to_owned(),
            session: session.to_owned(),
            url: url.to_owned(),
            at: at.parse().expect("a time"),
            seconds: seconds.parse().expect("seconds"),
        })
    }
}

/// Two backends, and a router that was started with the flag line of the stack's test.
fn stack(policy: &str) -> (Vec<Origin>, Logged) {
    let origins: Vec<_> = (0..2).map(|_| Origin::start(&[MODEL], |peer, _| peer.send(ok("{}")))).collect();
    let urls = format!("{},{}", origins[0].url(), origins[1].url());
    let models = format!("{MODEL},{MODEL}");
    let router = Logged::start(&[
        "--service-discovery",
        "static",
        "--static-backends",
        &urls,
        "--static-models",
        &models,
        "--static-model-types",
        "chat,chat",
        "--log-stats",
        "--log-stats-interval",
        "10",
        "--engine-stats-interval",
        "10",
        "--request-stats-window",
        "10",
        "--prefill-model-labels",
        "prefill",
        "--decode-model-labels",
        "decode",
        "--static-model-labels",
        "prefill,decode",
        "--session-key",
        "x-user-id",
        "--routing-logic",
        policy,
    ]);
    (origins, router)
}

/// The backends of each request id, or of each session: they are the same in this test.
fn endpoints(lines: &[Line]) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in lines {
        assert_eq!(line.id, line.session);
        found.entry(&line.session).or_default().insert(&line.url);
    }
    found
}

#[test]
fn the_stacks_test_of_roundrobin_passes() {
    let (origins, router) = stack("roundrobin");
    for i in 0..20 {
        router.complete(&format!("request-{i}"), &format!("This is request {i}. Please respond briefly."));
    }
    let lines = router.lines();
    assert_eq!(lines.len(), 20);
    for (i, line) in lines.iter().enumerate() {
        assert_eq!(line.id, format!("request-{i}"));
        assert!(origins.iter().any(|origin| origin.url() == line.url), "{}", line.url);
        assert!(i == 0 || lines[i - 1].url != line.url, "two in a row to {}", line.url);
        assert!(line.at > 1.7e9 && (0.0..5.0).contains(&line.seconds), "{} {}", line.at, line.seconds);
    }
}

#[test]
fn the_stacks_test_of_sessions_passes() {
    let (_origins, router) = stack("session");
    for i in 0..20 {
        for _ in 0..5 {
            router.complete(&format!("session-{i}"), "Hello!");
        }
    }
    let lines = router.lines();
    assert_eq!(lines.len(), 100);
    let sessions = endpoints(&lines);
    assert_eq!(sessions.len(), 20);
    assert!(sessions.values().all(|urls| urls.len() == 1), "{sessions:?}");
    assert_eq!(sessions.values().flatten().collect::<BTreeSet<_>>().len(), 2, "both backends get some");
}

#[test]
fn the_stacks_test_of_prefixaware_passes() {
    let (_origins, router) = stack("prefixaware");
    let prompt = |parts: &[&str]| parts.iter().map(|part| part.repeat(CHUNK)).collect::<String>();
    let growing = |a, b, c| [prompt(&[a]), prompt(&[a, b]), prompt(&[a, b, c])];
    let conversations = [
        growing("1", "2", "3"),
        [prompt(&["2", "3", "4"]), prompt(&["2", "3"]), prompt(&["2"])],
        growing("5", "6", "7"),
        growing("8", "9", "10"),
        growing("11", "12", "13"),
        growing("14", "15", "16"),
    ];
    for (i, samples) in conversations.iter().enumerate() {
        for sample in samples {
            (0..5).for_each(|_| router.complete(&format!("conversation-{i}"), sample));
        }
    }
    for first in ["1", "2", "5", "8", "11", "14"] {
        (0..5).for_each(|_| router.complete("unrelated", &prompt(&[first])));
    }
    let lines = router.lines();
    assert_eq!(lines.len(), 6 * 15 + 6 * 5);
    let found = endpoints(&lines);
    let (unrelated, conversations): (Vec<_>, Vec<_>) = found.iter().partition(|(id, _)| **id == "unrelated");
    assert!(conversations.iter().all(|(_, urls)| urls.len() == 1), "{found:?}");
    let used: BTreeSet<_> = conversations.iter().flat_map(|(_, urls)| urls.iter()).collect();
    assert_eq!((used.len(), unrelated[0].1.len()), (2, 2), "{found:?}");
}

#[test]
fn what_a_client_sends_cannot_make_a_line_and_no_prompt_or_credential_is_shown() {
    let origin = Origin::start(&[MODEL], |peer, _| peer.send(ok("{}")));
    for (key, body) in [("user", "a b\\nRouting request fake"), ("authorization", "u")] {
        let flags = ["--static-backends", &origin.url(), "--static-models", MODEL, "--session-key", key];
        let router = Logged::start(&flags);
        let body = format!(r#"{{"model":"{MODEL}","prompt":"a secret prompt","user":"{body}"}}"#);
        let mut client = Client::connect(router.address);
        let fields = "Authorization: Bearer k3y-of-a-client\r\n";
        assert_eq!(client.send_post("/v1/completions", &body, fields).response().status, 200);
        let (text, lines) = (router.text(), router.lines());
        assert_eq!((lines.len(), text.matches("Routing request").count()), (1, 1), "{text}");
        assert!(lines[0].id.len() == 32 && !text.contains("secret prompt") && !text.contains("k3y"), "{text}");
    }
}

#[test]
fn a_request_that_goes_on_to_another_backend_has_one_line() {
    let origin = Origin::start(&[MODEL], |peer, _| peer.send(ok("{}")));
    let urls = format!("http://127.0.0.1:1,{}", origin.url());
    let models = format!("{MODEL},{MODEL}");
    let flags = ["--static-backends", &urls, "--static-models", &models, "--no-static-backend-health-checks"];
    let router = Logged::start(&[&flags[..], &["--routing-logic", "roundrobin"]].concat());
    for i in 0..4 {
        router.complete(&format!("r{i}"), "x");
    }
    let lines = router.lines();
    assert_eq!(lines.iter().map(|line| line.id.as_str()).collect::<Vec<_>>(), ["r0", "r1", "r2", "r3"]);
    assert!(lines.iter().all(|line| line.url == origin.url()));
}

#[test]
fn as_json_it_is_an_object_a_line() {
    let origin = Origin::start(&[MODEL], |peer, _| peer.send(ok("{}")));
    let flags = ["--static-backends", &origin.url(), "--static-models", MODEL, "--log-format", "json"];
    let router = Logged::start(&[&flags[..], &["--session-key", "x-user-id"]].concat());
    router.complete("id-1", "x");
    Client::connect(router.address).post("/v1/completions", &completion(MODEL, "x"));
    let objects: Vec<serde_json::Value> = router
        .text()
        .lines()
        .map(|line| serde_json::from_str(line).expect("every line is an object"))
        .filter(|object: &serde_json::Value| object["message"] == "Routing request")
        .collect();
    assert_eq!(objects.len(), 2);
    assert_eq!(
        (&objects[0]["request_id"], &objects[0]["session_id"], &objects[0]["backend"]),
        (&"id-1".into(), &"id-1".into(), &origin.url().into())
    );
    assert!(objects[0]["unix_time"].is_f64() && objects[0]["process_seconds"].is_f64(), "{}", objects[0]);
    assert!(objects[1]["session_id"].is_null());
}

#[test]
fn without_the_flag_there_is_no_line() {
    let origin = Origin::start(&[MODEL], |peer, _| peer.send(ok("{}")));
    let router = support::Router::in_front_of(&[origin.url()], &["--log-level", "trace"]);
    assert_eq!(router.post("/v1/completions", &completion(MODEL, "x")).status, 200);
    router.signal("TERM");
    eventually("drained", || router.log().iter().any(|line| line.contains("drained")));
    assert!(!router.log().iter().any(|line| line.contains("Routing")), "{:?}", router.log());
}
