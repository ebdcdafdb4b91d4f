//! How the workers wait: what happens where io_uring is forbidden or its memory is short.

mod support;

use std::process::{Command, Stdio};

use support::router::{command, limited, locally};
use support::{Origin, Router, completion};

/// Makes the kernel answer `errno` to every system call of io_uring in the child process.
#[allow(unsafe_code, reason = "installs a seccomp filter between fork and exec")]
fn forbid_io_uring(command: &mut Command, errno: i32) {
    use std::os::unix::process::CommandExt;
    const FIRST: u32 = libc::SYS_io_uring_setup as u32;
    const LAST: u32 = libc::SYS_io_uring_register as u32;
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    // The call's number is the first word of the filter's data.
    let filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 2, FIRST),
        step(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, 1, 0, LAST),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let install = move || {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // SAFETY: plain integers; the call changes this process's flag alone.
        if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: `program` and its filter outlive the call, and the kernel copies both.
        if unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(())
    };
    // SAFETY: `install` makes system calls only, allocates nothing and takes no lock.
    unsafe { command.pre_exec(install) };
}

fn info(router: &Router) -> String {
    let text = router.get("/metrics").body_text();
    text.lines().find(|line| line.starts_with("trieway_info{")).unwrap_or_default().to_owned()
}

#[test]
fn where_io_uring_is_forbidden_the_router_falls_back_whole_and_says_so_once() {
    let origin = Origin::plain();
    for errno in [libc::EPERM, libc::ENOSYS] {
        let mut start = locally(&["--static-backends", &origin.url(), "--io", "auto", "--workers", "4"]);
        forbid_io_uring(&mut start, errno);
        let router = Router::start_by(start);
        router.wait_for_backends(1);
        let said: Vec<_> = router.log().into_iter().filter(|line| line.contains("running on epoll")).collect();
        assert_eq!(said.len(), 1, "{said:?}");
        let names = if errno == libc::EPERM { "seccomp" } else { "no io_uring" };
        assert!(said[0].contains(names), "{said:?}");
        assert!(info(&router).contains("io=\"epoll\""), "{}", info(&router));
        for _ in 0..20 {
            assert_eq!(router.post("/v1/completions", &completion("m", "x")).status, 200);
        }
    }
}

#[test]
fn where_io_uring_is_forbidden_and_demanded_the_start_is_refused_in_one_line() {
    let mut start = locally(&["--static-backends", "http://127.0.0.1:1", "--io", "uring"]);
    forbid_io_uring(&mut start, libc::EPERM);
    let output = start.stdin(Stdio::null()).output().expect("runs");
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), line.lines().count()), (Some(2), 1), "{line}");
    assert!(line.contains("--io uring") && line.contains("seccomp") && line.contains("--io epoll"), "{line}");
}

/// A kernel that accounts rings to the memlock limit has no room for them, another one has: either way all workers run on
/// the same driver, or none does.
#[test]
fn a_low_memlock_limit_and_many_workers_never_leave_half_of_them_dead() {
    let origin = Origin::plain();
    for (limit, workers) in [("64", "2"), ("64", "64"), ("8192", "64")] {
        let start = limited(
            &format!("ulimit -l {limit}"),
            &["--static-backends", &origin.url(), "--workers", workers, "--io", "auto"],
        );
        let router = Router::start_by(start);
        router.wait_for_backends(1);
        let said = router.log().iter().any(|line| line.contains("running on epoll"));
        assert_eq!(info(&router).contains("io=\"epoll\""), said, "a fallback is said: {}", info(&router));
        for _ in 0..100 {
            assert_eq!(router.post("/v1/completions", &completion("m", "x")).status, 200, "{limit} {workers}");
        }
    }
}

#[test]
fn two_routers_of_one_user_start_side_by_side() {
    let origin = Origin::plain();
    let limit = "ulimit -l 64";
    let flags = ["--static-backends", &origin.url(), "--workers", "16", "--io", "auto"];
    let routers = [(); 2].map(|()| Router::start_by(limited(limit, &flags)));
    for router in &routers {
        router.wait_for_backends(1);
        assert_eq!(router.post("/v1/completions", &completion("m", "x")).status, 200);
    }
}

#[test]
fn the_driver_that_is_asked_for_is_the_one_that_runs() {
    let origin = Origin::plain();
    let router = Router::start(&["--static-backends", &origin.url(), "--io", "epoll"]);
    assert!(info(&router).contains("io=\"epoll\""));
    assert!(!router.log().iter().any(|line| line.contains("running on epoll:")), "a choice is no fallback");
    drop(router);
    // Where the kernel has no io_uring, or a container forbids it, there is nothing more to see.
    let output =
        command(&["--io", "uring", "--static-backends", &origin.url(), "--host", "192.0.2.1"]).output().expect("runs");
    if !String::from_utf8_lossy(&output.stderr).contains("--io uring") {
        let router = Router::start(&["--static-backends", &origin.url(), "--io", "uring"]);
        assert!(info(&router).contains("io=\"io_uring"), "{}", info(&router));
    }
}
