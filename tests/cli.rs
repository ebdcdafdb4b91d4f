//! A bad start: one line on stderr that names the thing and what to do, exit code 2, nothing half-started.

mod support;

use std::net::TcpListener;

use support::{Origin, Router, eventually, router::command};

fn refused(flags: &[&str]) -> String {
    let output = command(flags).output().expect("runs");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{flags:?}: {error}");
    assert!(error.starts_with("trieway: ") && error.lines().count() == 1, "{flags:?}: {error}");
    error
}

#[test]
fn a_wrong_flag_is_one_line_and_exit_code_2() {
    assert!(refused(&[]).contains("--static-backends is missing"));
    assert!(refused(&["--static-backends", "nonsense"]).contains("'nonsense'"));
    assert!(
        refused(&["--static-backends", "http://a:1", "--callbacks", "x.y"]).contains("--callbacks is not supported")
    );
    assert!(refused(&["--static-backends", "http://a:1", "--prefix-memory", "64KiB"]).contains("--prefix-memory"));
}

#[test]
fn top_says_what_it_needs() {
    let what = if cfg!(feature = "top") { "top needs a terminal" } else { "--features top" };
    // A session of its own has no terminal.
    let output = std::process::Command::new("setsid")
        .args(["--wait", env!("CARGO_BIN_EXE_trieway"), "top", "--url", "http://127.0.0.1:9"])
        .stdin(std::process::Stdio::null())
        .output()
        .expect("runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && error.contains(what) && error.lines().count() == 1, "{error}");
    assert!(refused(&["top", "--url", "ftp://x"]).contains("the scheme is not http"));
}

#[test]
fn a_port_in_use_is_refused_even_when_another_router_holds_it() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("binds");
    let port = taken.local_addr().expect("address").port().to_string();
    let flags = ["--static-backends", "http://127.0.0.1:9", "--host", "127.0.0.1", "--port", &port];
    assert!(refused(&flags).contains(&format!("--port {port} is in use")));
    drop(taken);
    let origin = Origin::plain();
    let router = Router::in_front_of(&[origin.url()], &[]);
    let port = router.address.port().to_string();
    assert!(
        refused(&["--static-backends", "http://127.0.0.1:9", "--host", "127.0.0.1", "--port", &port])
            .contains("in use")
    );
    assert!(refused(&["--static-backends", "http://127.0.0.1:9", "--host", "192.0.2.1"]).contains("--host 192.0.2.1"));
}

#[test]
fn the_environment_gives_flags_and_the_command_line_wins() {
    let mut by_environment = command(&[]);
    by_environment.env("TRIEWAY_STATIC_BACKENDS", "http://a:1").env("TRIEWAY_PREFIX_CHUNK_SIZE", "1");
    let output = by_environment.output().expect("runs");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--prefix-chunk-size 1 is out of range"));
    let mut both = command(&["--prefix-chunk-size", "2"]);
    both.env("TRIEWAY_STATIC_BACKENDS", "http://a:1").env("TRIEWAY_PREFIX_CHUNK_SIZE", "1");
    assert!(String::from_utf8_lossy(&both.output().expect("runs").stderr).contains("--prefix-chunk-size 2"));
}

#[test]
fn help_is_grouped_and_version_is_one_line() {
    let help = command(&["--help"]).output().expect("runs");
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(help.status.success() && help.stderr.is_empty());
    for group in
        ["Listening:", "Backends:", "Health checks:", "Routing:", "Limits:", "Time limits:", "Workers:", "Observing:"]
    {
        assert!(text.contains(group), "{group}");
    }
    let version = command(&["--version"]).output().expect("runs");
    assert_eq!(String::from_utf8_lossy(&version.stdout), format!("trieway {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_start_line_says_address_workers_io_backends_and_policy() {
    let origin = Origin::plain();
    let router =
        Router::in_front_of(&[origin.url()], &["--workers", "2", "--io", "epoll", "--prefix-min-match-length", "4096"]);
    let line = router.log().into_iter().find(|line| line.contains("listening on")).expect("start line");
    let address = format!("http://{}", router.address);
    for part in [address.as_str(), "2 workers", "epoll", "1 backend", "prefixaware from 4096 matched bytes"] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[test]
fn a_unix_socket_is_listened_on_and_a_stale_one_replaced() {
    use std::io::{Read, Write};
    let origin = Origin::plain();
    let folder = std::env::temp_dir().join(format!("trieway-cli-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("folder");
    let path = folder.join("router.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a stale socket"));
    let path_text = path.to_string_lossy().into_owned();
    let mut child = command(&["--uds", &path_text, "--static-backends", &origin.url()]).spawn().expect("starts");
    let mut answer = String::new();
    eventually("it answers", || {
        let Ok(mut stream) = std::os::unix::net::UnixStream::connect(&path) else { return false };
        answer.clear();
        stream.write_all(b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").is_ok()
            && stream.read_to_string(&mut answer).is_ok()
            && answer.starts_with("HTTP/1.1 200")
    });
    let in_use = command(&["--uds", &path_text, "--static-backends", &origin.url()]).output().expect("runs");
    assert_eq!(in_use.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&in_use.stderr).contains("another process listens there"), "{in_use:?}");
    assert!(std::os::unix::net::UnixStream::connect(&path).is_ok(), "it still has its path");
    child.kill().expect("ends");
    let _ = child.wait();
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn whatever_is_no_stale_socket_is_left_where_it_is() {
    use std::os::unix::fs::{FileTypeExt, symlink};
    use std::os::unix::net::{UnixDatagram, UnixListener};
    let folder = std::env::temp_dir().join(format!("trieway-uds-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("folder");
    let path = |name: &str| folder.join(name);
    std::fs::write(path("file"), "precious").expect("written");
    std::fs::create_dir(path("folder")).expect("made");
    drop(UnixListener::bind(path("stale")).expect("binds"));
    symlink(path("stale"), path("link")).expect("linked");
    symlink(path("nothing"), path("dangling")).expect("linked");
    let _datagrams = UnixDatagram::bind(path("datagrams")).expect("binds");
    // Nobody accepts here, and its queue is full.
    let full = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).expect("a socket");
    full.bind(&socket2::SockAddr::unix(path("full")).expect("a path")).expect("binds");
    full.listen(0).expect("listens");
    let _waiting: Vec<_> = (0..4)
        .map(|_| {
            let client = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).expect("a socket");
            client.set_nonblocking(true).expect("option");
            let _ = client.connect(&socket2::SockAddr::unix(path("full")).expect("a path"));
            client
        })
        .collect();
    for (name, why) in [
        ("file", "no socket"),
        ("folder", "no socket"),
        ("link", "no socket"),
        ("dangling", "no socket"),
        ("datagrams", "another process"),
        ("full", "another process"),
    ] {
        let at = path(name);
        let before = std::fs::symlink_metadata(&at).expect("it is there").file_type();
        let flags = ["--uds", at.to_str().expect("UTF-8"), "--static-backends", "http://127.0.0.1:1"];
        let refused = command(&flags).output().expect("runs");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{name}: {said}");
        assert!(said.contains("--uds") && said.contains(name) && said.contains(why), "{name}: {said}");
        assert_eq!(std::fs::symlink_metadata(&at).expect("it is still there").file_type(), before, "{name}");
    }
    assert_eq!(std::fs::read(path("file")).expect("still there"), b"precious");
    assert!(std::fs::symlink_metadata(path("stale")).expect("still there").file_type().is_socket());
    let _ = std::fs::remove_dir_all(&folder);
}
