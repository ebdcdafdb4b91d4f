//! API keys: who has none is told so and nothing more, and no key is ever shown or sent to the wrong side.

mod support;

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;

use support::router::command;
use support::{Client, Origin, PATIENCE, Response, Router, chat, completion, eventually};

const KEY: &str = "client-key-4711";
const BACKEND_KEY: &str = "backend-key-0815";
const HASH_SEED: &str = "hash-seed-of-16-or-more";

fn ask(client: &mut Client, path: &str, fields: &str) -> Response {
    client.send(format!("GET {path} HTTP/1.1\r\nHost: t\r\n{fields}\r\n")).response()
}

#[test]
fn without_the_key_only_probes_and_metrics_are_open() {
    let origin = Origin::plain();
    let router = Router::start(&["--static-backends", &origin.url(), "--static-models", "m", "--api-key", KEY]);
    let good = format!("Authorization: Bearer {KEY}\r\n");
    let wrong = [
        String::new(),
        "Authorization: Bearer \r\n".to_owned(),
        "Authorization: Bearer\r\n".to_owned(),
        format!("Authorization: {KEY}\r\n"),
        format!("Authorization: Basic {KEY}\r\n"),
        format!("Authorization: Bearer {}\r\n", &KEY[..KEY.len() - 1]),
        format!("Authorization: Bearer {KEY}1\r\n"),
        format!("Authorization: Bearer {KEY} {KEY}\r\n"),
        format!("Authorization: Bearer {}\r\n", KEY.to_uppercase()),
        format!("Authorization: Bearer x\r\nAuthorization: Bearer {KEY}\r\n"),
        format!("X-Api-Key: {KEY}\r\n"),
        format!("Proxy-Authorization: Bearer {KEY}\r\n"),
    ];
    for fields in &wrong {
        for path in [
            "/engines",
            "/v1/models",
            "/v1/x",
            "/health/",
            "/HEALTH",
            "//health",
            "/x/health",
            "/metrics/x",
            "/health%2f",
        ] {
            let answer = ask(&mut router.client(), path, fields);
            assert_eq!((answer.status, answer.error_code().as_str()), (401, "invalid_api_key"), "{path} {fields}");
            assert!(!answer.body_text().contains(KEY));
        }
        let mut client = router.client();
        assert_eq!(client.send_post("/v1/chat/completions", &chat("m", "x"), fields).response().status, 401);
        assert_eq!(
            client.send_post("/health", "", fields).try_response_status(),
            None,
            "a refusal ends the connection"
        );
    }
    assert_eq!(origin.count(), 0);
    for path in ["/health", "/health/live", "/metrics", "/version", "/health?probe=1"] {
        let status = ask(&mut router.client(), path, "").status;
        assert!(matches!(status, 200 | 503), "{path}: {status}");
    }
    for scheme in ["Bearer", "bearer", "BEARER"] {
        let answer = ask(&mut router.client(), "/v1/models", &format!("authorization: {scheme} {KEY}\r\n"));
        assert_eq!(answer.status, 200, "{scheme}");
    }
    assert_eq!(ask(&mut router.client(), "/engines", &good).status, 200);
    assert_eq!(router.client().send_post("/v1/completions", &completion("m", "x"), &good).response().status, 200);
    let received = origin.received().pop().expect("a request");
    assert!(received.fields("authorization").is_empty(), "the router's key is not the backend's: {}", received.head);
}

#[test]
fn the_backends_key_replaces_the_clients() {
    let origin = Origin::plain();
    let router = Router::in_front_of(&[origin.url()], &["--backend-api-key", BACKEND_KEY]);
    for fields in ["", "Authorization: Bearer mine\r\n", "Authorization: a\r\nauthorization: b\r\n"] {
        router.client().send_post("/v1/completions", &completion("m", "x"), fields).response();
        let received = origin.received().pop().expect("a request");
        assert_eq!(received.fields("authorization"), [format!("Bearer {BACKEND_KEY}")]);
    }
}

#[test]
fn no_key_appears_in_a_log_a_metric_a_list_or_an_answer() {
    let origin = Origin::start(&["m"], |_, _| false);
    for format in ["text", "json"] {
        let router = Router::start(&[
            "--static-backends",
            &format!("{},http://127.0.0.1:1", origin.url()),
            "--static-models",
            "m,m",
            "--api-key",
            KEY,
            "--backend-api-key",
            BACKEND_KEY,
            "--prefix-hash-seed",
            HASH_SEED,
            "--log-level",
            "trace",
            "--log-format",
            format,
            "--log-stats",
            "--log-stats-interval",
            "1",
        ]);
        let good = format!("Authorization: Bearer {KEY}\r\n");
        let mut shown = String::new();
        for fields in [&*good, "", &format!("Authorization: Bearer {KEY}x\r\n")] {
            for path in ["/metrics", "/engines", "/v1/models", "/version", "/health", "/any", "/nothing"] {
                let answer = ask(&mut router.client(), path, fields);
                shown.push_str(&answer.head);
                shown.push_str(&answer.body_text());
            }
            let failed = router.client().send_post("/v1/completions", &completion("m", "x"), fields).response();
            shown.push_str(&failed.body_text());
            router.client().try_send(format!("GET / HTTP/1.1\r\n{fields} folded\r\n\r\n"));
        }
        eventually("a failure is logged", || router.log().iter().any(|line| line.contains("failed")));
        shown.push_str(&router.log().join("\n"));
        for key in [KEY, BACKEND_KEY, HASH_SEED] {
            assert!(!shown.contains(key), "{key} is shown: {shown}");
        }
    }
}

#[test]
fn a_bad_key_and_the_help_show_no_key() {
    for (flags, variable) in [
        (vec!["--api-key", "se cret"], None),
        (vec!["--backend-api-key", "se\u{e9}cret"], None),
        (vec!["--prefix-hash-seed", "se\u{e9}cret"], None),
        (vec!["--prefix-hash-seed", "secret"], None),
        (vec!["--help"], Some(KEY)),
        (vec!["--port", "x"], Some(KEY)),
    ] {
        let mut command = command(&flags);
        if let Some(key) = variable {
            command
                .env("TRIEWAY_API_KEY", key)
                .env("TRIEWAY_BACKEND_API_KEY", key)
                .env("TRIEWAY_PREFIX_HASH_SEED", key);
        }
        let output = command.output().expect("it runs");
        let mut text = output.stdout;
        text.write_all(&output.stderr).expect("appends");
        let text = String::from_utf8_lossy(&text);
        assert!(!text.is_empty() && !text.contains("cret") && !text.contains(KEY), "{flags:?}: {text}");
    }
}

/// The name, in the abstract namespace, of the listening unix socket of this process.
fn abstract_socket(pid: u32) -> String {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors").flatten();
    let open: Vec<_> = links.filter_map(|fd| std::fs::read_link(fd.path()).ok()).collect();
    let sockets = std::fs::read_to_string("/proc/net/unix").expect("the list of sockets");
    let owned = sockets.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [.., inode, name] = fields[..] else { return None };
        let is_open = open.iter().any(|link| link.as_os_str() == format!("socket:[{inode}]").as_str());
        name.strip_prefix("@trieway-").filter(|_| is_open)
    });
    format!("trieway-{}", owned.expect("it listens on one"))
}

#[test]
fn another_process_is_shut_out_of_the_control_planes_socket() {
    let origin = Origin::plain();
    let router = Router::in_front_of(&[origin.url()], &[]);
    let address = std::os::unix::net::SocketAddr::from_abstract_name(abstract_socket(router.pid())).expect("a name");
    let mut stream = std::os::unix::net::UnixStream::connect_addr(&address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    // The router may have closed it already.
    let _ = stream.write_all(b"GET /version HTTP/1.1\r\nHost: t\r\n\r\n");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(String::from_utf8_lossy(&answer), "");
    assert_eq!(router.get("/version").status, 200, "its own workers are let in");
}
