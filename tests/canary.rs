//! No secret leaves the process: many faulty configurations, each with a canary in a place where a secret or a URL can
//! stand, and every way out is searched for it.

mod support;

use std::path::PathBuf;
use std::process::Output;

use support::router::{command, locally};
use support::{Origin, Router, chat, eventually};

/// Whatever is left of a canary holds one of these.
const PIECES: [&str; 2] = ["CANARY", "4711471147"];

/// Secrets of every kind that cuts a text somewhere.
const SECRETS: [&str; 11] = [
    "CANARYa",
    "CANARYa,CANARYb",
    "CANARYa\nCANARYb",
    "CANARYa CANARYb",
    "CANARYa@CANARYb",
    "CANARYa/CANARYb",
    "CANARYa:CANARYb",
    "CANARYa?CANARYb#CANARYc",
    "CANARYa'CANARYb\"CANARYc",
    "CANARYa\u{e9}\u{7f}CANARYb",
    "471147114711471147114711471147114711",
];

/// Where a secret stands in a URL; `{}` is its place.
const URLS: [&str; 9] = [
    "http://user:{}@h:1",
    "http://{}@h:1/base",
    "http://user:{}",
    "user:{}@h:1",
    "https://user:{}@h:1",
    "http://h:1/?key={}",
    "http://h:1#{}",
    "http://a:1,http://user:{}@b:2,http://c:3",
    "http://user:{}@[::1:9",
];

/// Files that are no configuration, or a wrong one; `{}` is a secret's place.
const FILES: [&str; 26] = [
    "api_key: {}\nport: [\n",
    "api_key: {x: {}}\n",
    "api_key:\n  {}: x\n",
    "api_key: [\"{}\", x]\n",
    "api_key: [\"{},x\", y]\n",
    "api_key: *{}\n",
    "api_key: &{} *x\n",
    "api_key: !{} x\n",
    "api_key: !!int {}\n",
    "api_key: \"{}\n",
    "api_key: \"{}\\q\"\n",
    "api_key: {}\napi_key: {}\n",
    "{}: x\n{}: y\n",
    "{}: x\n",
    "{}\n",
    "? {}\n: [\n",
    "api_key {}\n",
    "api_key: {}: {}\n",
    "api_key: |\n  {}\n bad\n",
    "- {}\n",
    "api_key: @{}\n",
    "api_key: `{}`\n",
    "backend-api-key: {}\nbackend_api_key: {}\nworkers: x\n",
    "static_models:\n  http://user:{}@h:1: x\n",
    "static_models:\n  m:\n    static_backends: [\"http://user:{}@h:1\", \"\"]\n",
    "{\"api_key\": \"{}\" \"x\"}",
];

fn clean(what: &str, shown: &str) {
    for piece in PIECES {
        assert!(!shown.contains(piece), "{what}: {shown}");
    }
}

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("canary-{name}"));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn refused(what: &str, output: &Output) {
    let shown = [&output.stdout[..], &output.stderr].concat();
    let shown = String::from_utf8_lossy(&shown);
    assert_eq!(output.status.code(), Some(2), "{what}: {shown}");
    assert!(!shown.trim().is_empty(), "{what}");
    clean(what, &shown);
}

/// A value as it stands in double quotes in YAML and JSON.
fn quoted(value: &str) -> String {
    serde_json::Value::from(value).to_string()
}

#[test]
fn a_start_that_is_refused_shows_no_secret() {
    // What is wrong with these comes last, so that every place before it is looked at.
    let wrong = "--workers=0";
    let backends = "--static-backends=http://a:1";
    let folder = folder("start");
    let path = folder.join("file.yaml");
    let place = path.to_str().expect("UTF-8");
    for secret in SECRETS {
        for flag in ["api-key", "backend-api-key", "prefix-hash-seed"] {
            let what = format!("--{flag} {secret:?}");
            refused(&what, &command(&[&format!("--{flag}={secret}"), backends, wrong]).output().expect("runs"));
            refused(&what, &command(&[&format!("--{flag}"), secret, secret, backends]).output().expect("runs"));
            let misspelt = format!("--{}={secret}", flag.replace('-', "_"));
            refused(&what, &command(&[&misspelt, backends]).output().expect("runs"));
            let mut by_variable = command(&[backends, wrong]);
            by_variable.env(format!("TRIEWAY_{}", flag.to_uppercase().replace('-', "_")), secret);
            refused(&what, &by_variable.output().expect("runs"));
            std::fs::write(&path, format!("{flag}: {}\n", quoted(secret))).expect("written");
            for file in ["--config", "--dynamic-config-yaml"] {
                refused(&what, &command(&[file, place, backends, wrong]).output().expect("runs"));
            }
        }
        refused("a stray one", &command(&[backends, secret]).output().expect("runs"));
        for url in URLS {
            let url = url.replace("{}", secret);
            for flag in ["static-backends", "drain-backends"] {
                let what = format!("--{flag} {url:?}");
                let given = format!("--{flag}={url}");
                refused(&what, &command(&[backends, &given, wrong]).output().expect("runs"));
                std::fs::write(&path, format!("{flag}: {}\n", quoted(&url))).expect("written");
                refused(&what, &command(&[backends, "--dynamic-config-yaml", place, wrong]).output().expect("runs"));
            }
            refused(&url, &command(&["top", "--url", &url]).output().expect("runs"));
        }
    }
}

#[test]
fn files_with_faults_show_no_secret_at_the_start() {
    let folder = folder("files");
    let path = folder.join("file.yaml");
    let place = path.to_str().expect("UTF-8");
    for file in FILES {
        for secret in SECRETS {
            std::fs::write(&path, file.replace("{}", secret)).expect("written");
            for flag in ["--config", "--dynamic-config-yaml", "--dynamic-config-json"] {
                let flags = [flag, place, "--static-backends", "http://a:1", "--workers=0"];
                refused(&format!("{flag} with {file:?} and {secret:?}"), &command(&flags).output().expect("runs"));
            }
        }
    }
}

#[test]
fn a_running_router_shows_no_secret_of_a_file_that_it_refuses() {
    let origin = Origin::plain();
    let folder = folder("running");
    let path = folder.join("dynamic.yaml");
    std::fs::write(&path, "prefix_min_match_length: 0\n").expect("written");
    let mut command = locally(&[
        "--static-backends",
        &origin.url(),
        "--dynamic-config-yaml",
        path.to_str().expect("UTF-8"),
        "--log-level",
        "trace",
    ]);
    command.env("TRIEWAY_BACKEND_API_KEY", SECRETS[0]);
    let router = Router::start_by(command);
    router.wait_for_backends(1);
    let urls = URLS.iter().map(|url| format!("static_backends: \"{url}\"\n"));
    let texts: Vec<_> = FILES.iter().map(|file| (*file).to_owned()).chain(urls).collect();
    let outcomes = |log: &[String]| {
        log.iter()
            .filter(|line| line.contains("the configuration stays as it is") || line.contains("is in force:"))
            .count()
    };
    for (number, text) in texts.iter().enumerate() {
        let before = outcomes(&router.log());
        std::fs::write(&path, text.replace("{}", SECRETS[number % SECRETS.len()])).expect("written");
        router.signal("HUP");
        eventually("the file is looked at", || outcomes(&router.log()) > before);
        clean(text, &router.get("/health").body_text());
    }
    let health = router.get("/health").json();
    assert!(health["config"]["last_error"].as_str().is_some_and(|error| error.contains("dynamic.yaml:1")), "{health}");
    for path in ["/engines", "/metrics", "/v1/models", "/version", "/nothing"] {
        clean(path, &router.get(path).body_text());
    }
    clean("/debug/route", &router.post("/debug/route", &chat("m", "x")).body_text());
    clean("the log", &router.log().join("\n"));
}
