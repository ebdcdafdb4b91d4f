//! Rules about the code itself: which rooms may know which, where `unsafe` stands, sizes, and documents that name every
//! flag.

use std::fs;
use std::path::{Path, PathBuf};

/// Each room with the rooms that it may use.
const LAYERS: &[(&str, &[&str])] = &[
    ("config", &[]),
    ("http", &[]),
    ("prompt", &[]),
    ("trie", &[]),
    ("route", &[]),
    ("fleet", &["config", "route"]),
    ("metrics", &["route"]),
    ("shared", &["config", "fleet", "metrics", "prompt", "trie"]),
    ("data", &["config", "http", "prompt", "trie", "route", "fleet", "metrics", "shared"]),
    ("control", &["config", "http", "prompt", "trie", "route", "fleet", "metrics", "shared"]),
    ("top", &["config", "metrics"]),
    ("allocator", &[]),
];

/// Libraries that one room alone may know, or a file.
const OWNERS: &[(&str, &[&str])] = &[
    ("monoio", &["data"]),
    ("io_uring", &["data"]),
    ("socket2", &["data", "control"]),
    ("tokio", &["control"]),
    ("axum", &["control"]),
    ("hyper", &["control"]),
    ("serde_json", &["control", "data/explain.rs", "top"]),
    ("ratatui", &["top"]),
    ("crossbeam_epoch", &["trie"]),
    ("httparse", &["http"]),
    ("clap", &["config"]),
    ("mimalloc", &["allocator"]),
    ("serde_saphyr", &["config"]),
    ("arc_swap", &["fleet", "shared"]),
];

/// The only files that may hold `unsafe`.
const UNSAFE: &[&str] = &[
    "allocator.rs",
    "data/deadline.rs",
    "data/inherit.rs",
    "data/socket.rs",
    "prompt/simd.rs",
    "trie/node.rs",
    "trie/table.rs",
];

/// Lines; a file that grows beyond has two jobs.
const LONGEST_FILE: usize = 500;

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("folder") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// (path below src, room, code without comments and tests)
fn rooms() -> Vec<(String, String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    sources(&root)
        .into_iter()
        .map(|path| {
            let below = path.strip_prefix(&root).expect("below src").to_string_lossy().into_owned();
            let room = below.split('/').next().expect("room").trim_end_matches(".rs").to_owned();
            let text = fs::read_to_string(&path).expect("text");
            let code: Vec<&str> = text
                .lines()
                .take_while(|line| *line != "#[cfg(test)]")
                .filter(|line| !line.trim_start().starts_with("//"))
                .collect();
            (below, room, code.join("\n"))
        })
        .filter(|(below, _, _)| !matches!(below.as_str(), "lib.rs" | "main.rs") && !is_for_tests(below))
        .collect()
}

fn is_for_tests(below: &str) -> bool {
    below.ends_with("tests.rs") || below == "trie/sync/model.rs"
}

/// The names that follow `prefix` in the code.
fn names_after<'a>(code: &'a str, prefix: &str) -> Vec<&'a str> {
    let end = |text: &str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    code.match_indices(prefix).map(|(at, _)| &code[at + prefix.len()..]).map(|rest| &rest[..end(rest)]).collect()
}

#[test]
fn rooms_use_only_what_lies_below_them() {
    for (below, room, code) in rooms() {
        let (_, allowed) =
            LAYERS.iter().find(|(name, _)| *name == room).unwrap_or_else(|| panic!("{below}: a room without a layer"));
        for used in names_after(&code, "crate::") {
            assert!(used == room || allowed.contains(&used), "src/{below} uses crate::{used}");
        }
    }
}

#[test]
fn libraries_stay_in_their_rooms() {
    for (below, room, code) in rooms() {
        for (library, owners) in OWNERS {
            assert!(
                owners.contains(&room.as_str())
                    || owners.contains(&below.as_str())
                    || !code.contains(&format!("{library}::")),
                "src/{below} uses {library}"
            );
        }
    }
}

/// The only files that may take a secret out of its type: those that send it or compare it.
const EXPOSES: &[&str] = &[
    "config/cli.rs",
    "config/secret.rs",
    "control/fetch.rs",
    "data/request.rs",
    "data/worker.rs",
    "shared.rs",
    "top/fetch.rs",
];

#[test]
fn a_secret_is_taken_out_of_its_type_where_it_is_sent_or_compared() {
    for (below, _, code) in rooms() {
        assert!(!code.contains("expose()") || EXPOSES.contains(&below.as_str()), "src/{below} exposes a secret");
    }
}

#[test]
fn pure_rooms_know_no_sockets_no_clock_and_no_threads() {
    for (below, room, code) in rooms() {
        if ["http", "prompt", "trie", "route"].contains(&room.as_str()) {
            for word in
                ["std::net", "std::io", "std::time", "Instant::now", "SystemTime", "std::thread", "std::fs", "async "]
            {
                assert!(!code.contains(word), "src/{below} knows {word}");
            }
        }
    }
}

#[test]
fn unsafe_stands_in_named_files_with_an_argument_each() {
    for (below, _, _) in rooms() {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(&below)).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        for (number, _) in lines
            .iter()
            .enumerate()
            .filter(|(_, line)| line.contains("unsafe {") && !line.trim_start().starts_with("//"))
        {
            assert!(UNSAFE.contains(&below.as_str()), "src/{below}:{} has unsafe", number + 1);
            let argued = lines[number.saturating_sub(6)..number].iter().any(|line| line.contains("SAFETY:"));
            assert!(argued, "src/{below}:{}: no SAFETY argument", number + 1);
        }
    }
}

#[test]
fn no_file_has_two_jobs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in ["src", "tests", "loadtest/src"] {
        for path in sources(&root.join(folder)) {
            let lines = fs::read_to_string(&path).expect("text").lines().count();
            assert!(lines <= LONGEST_FILE, "{} has {lines} lines", path.display());
        }
    }
}

#[test]
fn the_readme_names_every_flag() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).expect("README.md");
    for arg in trieway::config::command().get_arguments() {
        let flag = format!("`--{}", arg.get_long().expect("long name"));
        assert!(readme.contains(&flag), "README.md does not name {flag}`");
    }
}

/// Snake-case literals of the code that answers with errors, which are no error's `code`.
const NO_CODES: &[&str] = &[
    "authentication_error",
    "invalid_request_error",
    "not_found_error",
    "rate_limit_error",
    "server_error",
    "timeout_error",
];

/// The string literals in code, as they are written.
fn literals(code: &str) -> Vec<&str> {
    let (mut found, mut rest) = (Vec::new(), code);
    while let Some((_, after)) = rest.split_once('"') {
        let bytes = after.as_bytes();
        let end = (0..bytes.len()).find(|&at| bytes[at] == b'"' && (at == 0 || bytes[at - 1] != b'\\'));
        let Some(end) = end else { break };
        found.push(&after[..end]);
        rest = &after[end + 1..];
    }
    found
}

fn operations() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/OPERATIONS.md")).expect("OPERATIONS.md")
}

#[test]
fn the_operations_page_names_every_error_code() {
    let page = operations();
    let mut codes = 0;
    for (below, room, code) in rooms() {
        if room != "data" && below != "http/fault.rs" && below != "http/chunked.rs" {
            continue;
        }
        let word = |text: &&str| {
            text.contains('_') && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        };
        for literal in literals(&code).into_iter().filter(word).filter(|word| !NO_CODES.contains(word)) {
            assert!(
                page.contains(&format!("`{literal}`")),
                "docs/OPERATIONS.md does not name the code {literal} of src/{below}"
            );
            codes += 1;
        }
    }
    assert!(codes > 40, "{codes} codes: this test looks in the wrong places");
}

#[test]
fn the_operations_page_has_every_line_that_asks_for_somebody() {
    let page = operations();
    let main = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/main.rs")).expect("main.rs");
    let main = ("main.rs".to_owned(), "main".to_owned(), main);
    let mut lines = 0;
    for (below, _, code) in rooms().into_iter().chain([main]) {
        for (at, _) in code.match_indices("tracing::warn!(").chain(code.match_indices("tracing::error!(")) {
            let Some(text) = literals(&code[at..]).into_iter().next() else { continue };
            // What stands between the values; the longest piece tells the line.
            let pieces = text.split('{').map(|piece| piece.split_once('}').map_or(piece, |(_, fixed)| fixed));
            let piece = pieces.max_by_key(|piece| piece.len()).unwrap_or_default();
            let piece = piece.trim_matches(|c: char| !c.is_alphanumeric());
            if !piece.is_empty() {
                assert!(page.contains(piece), "docs/OPERATIONS.md has no line with '{piece}' (src/{below})");
                lines += 1;
            }
        }
    }
    assert!(lines > 10, "{lines} lines: this test looks in the wrong places");
    for kind in trieway::metrics::shard::ErrorKind::ALL {
        assert!(page.contains(&format!("`{}`", kind.as_str())), "docs/OPERATIONS.md does not name {}", kind.as_str());
    }
}

#[test]
fn each_decision_has_a_number_of_its_own() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/decisions");
    let mut seen = std::collections::HashSet::new();
    for entry in folder.read_dir().expect("the folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let number: u32 = name.split('-').next().and_then(|number| number.parse().ok()).expect("a number in front");
        let text = std::fs::read_to_string(&path).expect("text");
        assert!(text.starts_with(&format!("# {number}. ")), "{name} begins with its number");
        assert!(seen.insert(number), "there are two decisions {number}");
    }
    assert!(seen.len() > 10);
}

#[test]
fn the_check_has_all_its_steps_and_is_what_ci_calls() {
    let read = |path: &str| {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect(path);
        assert!(text.starts_with("#!") && text.trim_end().lines().count() > 5, "{path} is no script");
        text
    };
    let check = read("scripts/check");
    for step in [
        "cargo fmt --all --check",
        "cargo clippy --workspace --all-targets",
        "cargo nextest run --workspace",
        "TRIEWAY_TEST_IO=epoll cargo nextest run",
        "cargo update --quiet --workspace --locked",
        "loom_tests",
        "benches/instructions",
        "cargo doc",
    ] {
        assert!(check.contains(step), "scripts/check has no step '{step}'");
    }
    assert!(read(".ci/run").trim_end().ends_with("exec scripts/check"));
    for script in ["scripts/demo", "scripts/bench", "scripts/prove"] {
        read(script);
    }
}
