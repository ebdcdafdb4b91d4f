//! The router under test: its process, those that take over from it, and what each of them holds.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const STARTS_WITHIN: Duration = Duration::from_secs(20);
const KEPT_LINES: usize = 40;

/// What its log has said.
#[derive(Default)]
struct Said {
    address: Option<SocketAddr>,
    /// The processes that took over, in order.
    successors: Vec<u32>,
    last: VecDeque<String>,
}

pub(super) struct Router {
    child: Child,
    pub(super) address: SocketAddr,
    said: Arc<Mutex<Said>>,
}

impl Router {
    /// Starts it on a free port of loopback. Errors: it can't be started, or says no address.
    pub(super) fn start(binary: &Path, flags: &[String]) -> Result<Self, String> {
        let mut command = Command::new(binary);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TRIEWAY_")) {
            command.env_remove(name);
        }
        command.args(["--host", "127.0.0.1", "--port", "0"]).args(flags);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{}: {error}", binary.display()))?;
        let said = Arc::new(Mutex::new(Said::default()));
        if let Some(stderr) = child.stderr.take() {
            let said = Arc::clone(&said);
            std::thread::spawn(move || {
                BufReader::new(stderr).lines().map_while(Result::ok).for_each(|line| lock(&said).note(line));
            });
        }
        let began = Instant::now();
        loop {
            let found = lock(&said).address;
            if let Some(address) = found {
                return Ok(Router { child, address, said });
            }
            if began.elapsed() > STARTS_WITHIN || !matches!(child.try_wait(), Ok(None)) {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("the router does not start:\n{}", lock(&said).text()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The process that serves now.
    pub(super) fn pid(&self) -> u32 {
        lock(&self.said).successors.last().copied().unwrap_or(self.child.id())
    }

    pub(super) fn takeovers(&self) -> usize {
        lock(&self.said).successors.len()
    }

    /// Processes that gave way to another one and have not ended.
    pub(super) fn leaving(&mut self) -> usize {
        // Otherwise it stays as a zombie.
        let _ = self.child.try_wait();
        let present = self.pid();
        let said = lock(&self.said);
        let all = said.successors.iter().chain(std::iter::once(&self.child.id())).copied().collect::<Vec<_>>();
        all.into_iter().filter(|pid| *pid != present && is_alive(*pid)).count()
    }

    pub(super) fn is_alive(&self) -> bool {
        is_alive(self.pid())
    }

    pub(super) fn signal(&self, signal: Signal) {
        signal_to(self.pid(), signal);
    }

    pub(super) fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).map_or(0, Iterator::count)
    }

    pub(super) fn resident_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse().ok()).unwrap_or(0)
    }

    /// The last lines of its log.
    pub(super) fn log(&self) -> String {
        lock(&self.said).text()
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let pid = self.pid();
        if pid != self.child.id() && is_alive(pid) {
            signal_to(pid, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Said {
    fn note(&mut self, line: String) {
        if let Some((_, rest)) = line.split_once("listening on http://") {
            let address = rest.split(' ').next().unwrap_or_default().trim_end_matches(':').parse().ok();
            self.address = self.address.or(address);
        }
        if let Some((before, _)) = line.split_once(" has taken over") {
            self.successors.extend(before.rsplit_once("process ").and_then(|(_, pid)| pid.parse::<u32>().ok()));
        }
        if self.last.len() == KEPT_LINES {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }

    fn text(&self) -> String {
        self.last.iter().map(|line| format!("  {line}\n")).collect()
    }
}

fn lock(said: &Mutex<Said>) -> MutexGuard<'_, Said> {
    said.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

fn signal_to(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}
