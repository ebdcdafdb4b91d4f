//! The real binary as a child process.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::{Client, PATIENCE, Response, eventually};

pub struct Router {
    child: Child,
    pub address: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
}

/// The binary with these flags, not yet started; its environment holds no flags.
pub fn command(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trieway"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TRIEWAY_")) {
        command.env_remove(name);
    }
    command.args(flags);
    command
}

/// These flags, on a free port of loopback, with the driver that the test run asks for by `TRIEWAY_TEST_IO` and the number of
/// workers that it asks for by `TRIEWAY_TEST_WORKERS`.
fn local(flags: &[&str]) -> Vec<String> {
    let mut all: Vec<String> =
        ["--host", "127.0.0.1", "--port", "0"].iter().chain(flags).map(|&f| f.to_owned()).collect();
    for (name, flag) in [("TRIEWAY_TEST_IO", "--io"), ("TRIEWAY_TEST_WORKERS", "--workers")] {
        if let Ok(value) = std::env::var(name)
            && !flags.contains(&flag)
        {
            all.extend([flag.to_owned(), value]);
        }
    }
    all
}

/// The binary with flags under which tests talk to it, not yet started.
pub fn locally(flags: &[&str]) -> Command {
    let mut command = command(&[]);
    command.args(local(flags));
    command
}

/// The binary under a shell's `limits`, such as `ulimit -n 256`.
pub fn limited(limits: &str, flags: &[&str]) -> Command {
    let binary = command(&[]);
    let mut shell = Command::new("sh");
    for (name, value) in binary.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.args(["-c", &format!("{limits} && exec \"$0\" \"$@\"")]).arg(binary.get_program()).args(local(flags));
    shell
}

impl Router {
    /// Starts the router on a free port of loopback and waits until it listens.
    pub fn start(flags: &[&str]) -> Self {
        Self::start_by(locally(flags))
    }

    /// The same by a command that ends in running the binary, [`locally`] or [`limited`].
    pub fn start_by(command: Command) -> Self {
        Self::start_with(command, Stdio::null())
    }

    /// The same with this as standard input.
    pub fn start_with(mut command: Command, stdin: Stdio) -> Self {
        let mut child =
            command.stdin(stdin).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the router starts");
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let log = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                kept.lock().expect("log").push(line);
            }
        });
        let start = Instant::now();
        let address = loop {
            let found = log.lock().expect("log").iter().find_map(|line| {
                let (_, rest) = line.split_once("listening on http://")?;
                rest.split(' ').next()?.trim_end_matches(':').parse().ok()
            });
            if let Some(address) = found {
                break address;
            }
            assert!(
                start.elapsed() < PATIENCE && child.try_wait().expect("state").is_none(),
                "no start line: {:?}",
                log.lock().expect("log")
            );
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        Router { child, address, log }
    }

    /// Starts in front of these backends, and waits until all of them are usable.
    pub fn in_front_of(backends: &[String], flags: &[&str]) -> Self {
        let list = backends.join(",");
        let router = Self::start(&[&["--static-backends", &list][..], flags].concat());
        router.wait_for_backends(backends.len());
        router
    }

    /// Threads of the process, with those that the kernel runs for it.
    pub fn threads(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("proc").count()
    }

    pub fn wait_for_backends(&self, up: usize) {
        eventually("all backends are up", || self.engines().matches("\"state\":\"up\"").count() == up);
    }

    pub fn engines(&self) -> String {
        self.get("/engines").body_text().replace(": ", ":")
    }

    pub fn get(&self, path: &str) -> Response {
        self.client().get(path)
    }

    /// One request on a connection of its own.
    pub fn post(&self, path: &str, body: &str) -> Response {
        self.client().post(path, body)
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// The value of a metric's sample whose line begins with `sample`; 0 when there is none.
    pub fn metric(&self, sample: &str) -> f64 {
        let text = self.get("/metrics").body_text();
        let line = text.lines().find(|line| line.strip_prefix(sample).is_some_and(|rest| rest.starts_with(' ')));
        line.and_then(|line| line.rsplit(' ').next()).and_then(|value| value.parse().ok()).unwrap_or(0.0)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> Vec<String> {
        self.log.lock().expect("log").clone()
    }

    pub fn signal(&self, name: &str) {
        let status =
            Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status().expect("kill runs");
        assert!(status.success());
    }

    /// Waits until the process has ended.
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the router ends", || {
            status = self.child.try_wait().expect("state");
            status.is_some()
        });
        status.expect("ended")
    }

    /// Open descriptors of the process.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("proc").count()
    }

    /// Resident memory in KiB.
    pub fn resident_kib(&self) -> u64 {
        self.memory_kib("VmRSS:")
    }

    /// The most memory that was ever resident, in KiB.
    pub fn peak_resident_kib(&self) -> u64 {
        self.memory_kib("VmHWM:")
    }

    fn memory_kib(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("proc");
        let line = status.lines().find(|line| line.starts_with(name)).expect("a figure of memory");
        line.split_whitespace().nth(1).expect("value").parse().expect("number")
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("router log:\n{}", self.log().join("\n"));
        }
    }
}
