//! Another configuration while the router runs: what changes, what stays, what is refused and how it is told.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use support::origin::ok;
use support::router::command;
use support::{Client, Origin, Router, chat, completion, eventually, text};

/// A folder that is gone with its value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("trieway-reload-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    /// Writes a file whole: aside, then in place of the one of this name.
    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(self.0.join("aside"), text).expect("written");
        fs::rename(self.0.join("aside"), &path).expect("renamed");
        path.to_string_lossy().into_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The part of `/health` on the configuration.
fn config(router: &Router) -> serde_json::Value {
    router.get("/health").json()["config"].clone()
}

fn wait_for_generation(router: &Router, generation: u64) {
    eventually("the configuration is in force", || config(router)["generation"].as_u64() == Some(generation));
}

fn wait_for_refusal(router: &Router, what: &str) {
    eventually("the configuration is refused", || {
        config(router)["last_error"].as_str().is_some_and(|error| error.contains(what))
    });
}

fn lines_with(router: &Router, what: &str) -> usize {
    router.log().iter().filter(|line| line.contains(what)).count()
}

fn server(model: &'static str) -> Origin {
    Origin::start(&[model], |peer, _| peer.send(ok("{}")))
}

fn yaml(backends: &[&Origin], more: &str) -> String {
    let list: String = backends.iter().map(|origin| format!("  - {}\n", origin.url())).collect();
    format!("static_backends:\n{list}{more}")
}

#[test]
fn backends_come_and_go_while_prefixes_counters_and_streams_stay() {
    // The second one answers by a stream that lasts until the test lets go of its client.
    let (a, c) = (server("m"), server("m"));
    let b = Origin::start(&["m"], |peer, received| {
        if !String::from_utf8_lossy(&received.body).contains("stream") {
            return peer.send(ok("{}"));
        }
        peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
        // Until the test has the backend removed, and longer.
        std::thread::sleep(std::time::Duration::from_secs(3));
        peer.send("4\r\nlast\r\n0\r\n\r\n")
    });
    let folder = Folder::new();
    let path = folder.write("dynamic.yaml", &yaml(&[&a, &b], ""));
    let router = Router::start(&["--dynamic-config-yaml", &path]);
    router.wait_for_backends(2);
    assert_eq!((config(&router)["generation"].as_u64(), config(&router)["last_error"].is_null()), (Some(1), true));

    let mut held = None;
    let mut streaming: Option<Client> = None;
    for seed in 0..20 {
        let prompt = text(seed, 1000);
        let before = a.count();
        router.post("/v1/chat/completions", &chat("m", &prompt));
        if a.count() > before {
            held = Some(prompt);
        }
        let mut client = router.client();
        let before = b.count();
        client.send_post("/v1/chat/completions", &chat("m", &format!("{} stream", text(seed + 100, 1000))), "");
        let (status, head) = client.head();
        assert_eq!(status, 200);
        if b.count() > before && head.contains("chunked") {
            streaming = Some(client);
        }
        if held.is_some() && streaming.is_some() {
            break;
        }
    }
    let (held, mut stream) = (held.expect("one went to a"), streaming.expect("one streams from b"));
    let sent_to_a =
        router.metric(&format!("trieway_requests_total{{server=\"{}\",model=\"m\",reason=\"qps\"}}", a.url()));
    assert!(sent_to_a >= 1.0);

    folder.write("dynamic.yaml", &yaml(&[&c, &a], "static_aliases:\n  nickname: m\n"));
    wait_for_generation(&router, 2);
    router.wait_for_backends(2);
    let engines = router.engines();
    assert!(engines.contains(&c.url()) && engines.contains(&a.url()) && !engines.contains(&b.url()), "{engines}");
    assert_eq!(stream.next_chunk(), b"first");
    assert_eq!(stream.next_chunk(), b"last", "the stream of the removed backend goes on to its end");
    let (before, removed) = (a.count(), b.count());
    for _ in 0..4 {
        let longer = format!("{held} and more");
        assert_eq!(router.post("/v1/chat/completions", &chat("nickname", &longer)).status, 200);
    }
    assert_eq!(a.count() - before, 4, "a holds the prompt, and the alias is known");
    assert_eq!(b.count(), removed);
    let now = router.metric(&format!("trieway_requests_total{{server=\"{}\",model=\"m\",reason=\"qps\"}}", a.url()));
    assert!(now >= sent_to_a, "counters never go back");
    assert_eq!((lines_with(&router, "configuration 2 is in force"), lines_with(&router, "is removed")), (1, 1));
}

#[test]
fn policy_and_threshold_change() {
    let (a, b) = (server("m"), server("m"));
    let folder = Folder::new();
    let path = folder.write("dynamic.json", "{\"routing_logic\": \"roundrobin\"}");
    let urls = format!("{},{}", a.url(), b.url());
    let router = Router::start(&["--static-backends", &urls, "--dynamic-config-json", &path]);
    router.wait_for_backends(2);
    let same = |n: usize| {
        a.forget();
        b.forget();
        let prompt = completion("m", &text(n as u64, 600));
        (0..n).for_each(|_| assert_eq!(router.post("/v1/completions", &prompt).status, 200));
        (a.count(), b.count())
    };
    assert_eq!(same(8), (4, 4));
    folder.write("dynamic.json", "{\"routing_logic\": \"prefixaware\"}");
    wait_for_generation(&router, 2);
    assert!([(8, 0), (0, 8)].contains(&same(8)), "one backend holds the prompt");
    assert!(router.get("/metrics").body_text().contains("policy=\"prefixaware\""));
    folder.write("dynamic.json", "{\"routing_logic\": \"prefixaware\", \"prefix_min_match_length\": 100000}");
    wait_for_generation(&router, 3);
    let (to_a, to_b) = same(24);
    assert!(to_a > 0 && to_b > 0, "no match is long enough: {to_a} {to_b}");
}

#[test]
fn a_fault_changes_nothing_and_is_told_once_with_file_line_and_key() {
    let a = server("m");
    let folder = Folder::new();
    let path = folder.write("dynamic.yaml", &yaml(&[&a], ""));
    let router = Router::start(&["--dynamic-config-yaml", &path]);
    router.wait_for_backends(1);
    for (text, what) in [
        (yaml(&[&a], "routing_logic: fastest\n"), "dynamic.yaml:3: invalid value 'fastest' for '--routing-logic"),
        (yaml(&[&a], "static_aliases: [x]\n"), "dynamic.yaml:3: --static-aliases: 'x' is not of the form"),
        (yaml(&[&a], "callbacks: my.module\n"), "dynamic.yaml:3: 'callbacks' is not supported"),
        (yaml(&[&a], "routing_logik: session\n"), "dynamic.yaml:3: the key 'routing_logik' is not known"),
        ("static_backends: [http://a:1\nx: y\n".to_owned(), "dynamic.yaml:2: "),
        ("static_backends:\n  - https://a\n".to_owned(), "dynamic.yaml:1: --static-backends: backend 'https://a'"),
    ] {
        folder.write("dynamic.yaml", &text);
        wait_for_refusal(&router, what);
        assert_eq!(router.post("/v1/completions", &completion("m", "x")).status, 200);
        assert_eq!(config(&router)["generation"].as_u64(), Some(1));
    }
    fs::remove_file(&path).expect("removed");
    wait_for_refusal(&router, "dynamic.yaml: cannot be read");
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(
        lines_with(&router, "the configuration stays as it is"),
        7,
        "each fault is told once: {:?}",
        router.log()
    );
    folder.write("dynamic.yaml", &yaml(&[&a], "workers: 3\nroot_path: /x\n"));
    wait_for_generation(&router, 2);
    assert!(config(&router)["last_error"].is_null());
    assert_eq!(lines_with(&router, "only after a restart: root_path, workers"), 1);
}

#[test]
fn a_link_that_is_swapped_is_seen() {
    let (a, b) = (server("m"), server("n"));
    let folder = Folder::new();
    // As Kubernetes mounts a ConfigMap: the file is a link through a link, and the latter is replaced.
    let version = |name: &str, text: &str| {
        fs::create_dir(folder.0.join(name)).expect("a folder");
        fs::write(folder.0.join(name).join("router.yaml"), text).expect("written");
        std::os::unix::fs::symlink(name, folder.0.join("..swap")).expect("a link");
        fs::rename(folder.0.join("..swap"), folder.0.join("..data")).expect("swapped");
    };
    version("..v1", &yaml(&[&a], ""));
    let path = folder.0.join("router.yaml");
    std::os::unix::fs::symlink(Path::new("..data").join("router.yaml"), &path).expect("a link");
    let router = Router::start(&["--dynamic-config-yaml", &path.to_string_lossy()]);
    router.wait_for_backends(1);
    assert_eq!(router.post("/v1/completions", &completion("m", "x")).status, 200);
    version("..v2", &yaml(&[&b], ""));
    wait_for_generation(&router, 2);
    router.wait_for_backends(1);
    assert_eq!(router.post("/v1/completions", &completion("n", "x")).status, 200);
    assert_eq!(router.post("/v1/completions", &completion("m", "x")).status, 404);
}

#[test]
fn hangup_reads_the_general_file_and_ends_nothing() {
    let (a, b) = (server("m"), server("m"));
    let folder = Folder::new();
    let path = folder.write("router.yaml", &yaml(&[&a], "routing_logic: roundrobin\n"));
    let router = Router::start(&["--config", &path]);
    router.wait_for_backends(1);
    folder.write("router.yaml", &yaml(&[&a, &b], "routing_logic: roundrobin\n"));
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(config(&router)["generation"].as_u64(), Some(1), "it is not watched");
    router.signal("HUP");
    wait_for_generation(&router, 2);
    router.wait_for_backends(2);
    let plain = Router::in_front_of(&[a.url()], &[]);
    plain.signal("HUP");
    wait_for_generation(&plain, 2);
}

#[test]
fn of_all_that_names_a_flag_the_dynamic_file_wins_and_the_general_one_loses() {
    let folder = Folder::new();
    // Each value is out of range, and the refusal tells which one counts.
    let general = folder.write("general.yaml", "static_backends: http://a:1\nprefix_chunk_size: 1\n");
    let dynamic = folder.write("dynamic.yaml", "prefix_chunk_size: 4\n");
    let refusal = |flags: &[&str], environment: bool| {
        let mut router = command(flags);
        router.env("TRIEWAY_CONFIG", &general);
        if environment {
            router.env("TRIEWAY_PREFIX_CHUNK_SIZE", "2");
        }
        let output = router.output().expect("runs");
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let line = refusal(&[], false);
    assert_eq!(line, format!("trieway: {general}:2: --prefix-chunk-size 1 is out of range: 16 to 65536\n"));
    assert!(refusal(&[], true).contains("--prefix-chunk-size 2 "));
    assert!(refusal(&["--prefix-chunk-size", "3"], true).contains("--prefix-chunk-size 3 "));
    let all = ["--prefix-chunk-size", "3", "--dynamic-config-yaml", &dynamic];
    let line = refusal(&all, true);
    assert!(line.starts_with(&format!("trieway: {dynamic}:1: --prefix-chunk-size 4 ")), "{line}");
    let missing = refusal(&["--dynamic-config-json", "/no/such.json"], false);
    assert!(missing.starts_with("trieway: /no/such.json: cannot be read") && missing.lines().count() == 1, "{missing}");
}

#[test]
fn a_file_can_switch_and_hold_keys_that_are_shown_nowhere() {
    let a = server("m");
    let folder = Folder::new();
    let path = folder.write("router.yaml", &yaml(&[&a], "api_key: hunter2\nstatic_backend_health_checks: false\n"));
    let router = Router::start(&["--config", &path, "--log-level", "trace"]);
    let mut client = router.client();
    assert_eq!(client.send_post("/v1/completions", &completion("m", "x"), "").response().status, 401);
    let key = "Authorization: Bearer hunter2\r\n";
    eventually("its models are known", || {
        router.client().send_post("/v1/completions", &completion("m", "x"), key).response().status == 200
    });
    router.signal("HUP");
    eventually("read again", || lines_with(&router, "configuration 2 is in force") == 1);
    let help = command(&["--config", &path, "--help"]).output().expect("runs");
    let shown = router.log().join("\n") + &String::from_utf8_lossy(&help.stdout);
    assert!(!shown.contains("hunter2"), "{shown}");
}
