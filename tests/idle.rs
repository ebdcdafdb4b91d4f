//! Connections that wait cost next to nothing: no buffer, no state of a request.
//!
//! The router runs inside this process, so that an allocator of the test's own can count what its worker holds.

#![allow(unsafe_code, reason = "an allocator that counts, and the calling thread's id")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicI32, AtomicIsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::origin::ok;
use support::{Client, completion, eventually, in_process};
use trieway::shared::Shared;

struct Counting;

static WORKER: AtomicI32 = AtomicI32::new(0);
/// Bytes that the worker has asked for and not given back.
static HELD: AtomicIsize = AtomicIsize::new(0);

fn count(bytes: isize) {
    // SAFETY: gettid has no preconditions.
    if WORKER.load(SeqCst) != 0 && unsafe { libc::gettid() } == WORKER.load(SeqCst) {
        HELD.fetch_add(bytes, SeqCst);
    }
}

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise is the callee's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Client connections and as many to backends, where the limit of open files allows it: two descriptors each in this process.
const PAIRS: usize = 10_000;
/// The first of them fill what the worker keeps for running requests.
const FIRST: usize = 600;
/// A worker keeps at most 512 unused connections to one backend.
const BACKENDS: usize = 20;
/// User memory of one pair: the task that waits, two sockets with their waits, a place in the pool. The kernel's own is not in it.
const MOST_BYTES: isize = 1024;

/// Says to another process of this test that it is the clients, or the backends: each has a limit of open files of its own.
const ROLE: &str = "TRIEWAY_TEST_ROLE";

/// A process that does what a line tells it, and says a line when it is done.
struct Other {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Other {
    fn start(role: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args([THE_TEST, "--exact", "--nocapture"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let says = BufReader::new(child.stdout.take().expect("its output"));
        Other { child, says }
    }

    fn does(&mut self, what: &str) -> String {
        writeln!(self.child.stdin.as_mut().expect("its input"), "{what}").expect("takes a line");
        loop {
            let mut line = String::new();
            assert!(self.says.read_line(&mut line).expect("a line") > 0, "it ended instead of: {what}");
            // The harness of the test talks, too.
            if let Some(said) = line.trim_end().strip_prefix(SAYS) {
                return said.to_owned();
            }
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const SAYS: &str = "says ";

/// Carries out the lines that come until there are no more.
fn obey(mut does: impl FnMut(&str) -> String) {
    for line in std::io::stdin().lines() {
        println!("{SAYS}{}", does(&line.expect("a line")));
    }
}

/// Takes connections and lets them lie until it is told to answer what came on them. Says where it listens, and how many it
/// has answered.
fn be_backends() {
    let streams = Arc::new(Mutex::new(Vec::<TcpStream>::new()));
    let urls = (0..BACKENDS).map(|_| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        socket2::SockRef::from(&listener).listen(2048).expect("a longer backlog");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let taken = Arc::clone(&streams);
        std::thread::spawn(move || listener.incoming().flatten().for_each(|s| taken.lock().expect("list").push(s)));
        url
    });
    let urls: Vec<String> = urls.collect();
    obey(|line| match line {
        "listen" => urls.join(","),
        _ => {
            let mut answered = 0;
            for stream in &mut *streams.lock().expect("list") {
                stream.set_nonblocking(true).expect("mode");
                if stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {
                    stream.write_all(ok("{}").as_bytes()).expect("answers");
                    answered += 1;
                }
            }
            answered.to_string()
        }
    });
}

/// Told an address and a number: has so many connections there and sends a request on each. Else: reads an answer on each.
fn be_clients() {
    let mut clients: Vec<Client> = Vec::new();
    obey(|line| {
        match line.split_once(' ') {
            Some((address, count)) => {
                let address = address.parse().expect("an address");
                clients.resize_with(count.parse().expect("a number"), || Client::connect(address));
                for client in &mut clients {
                    client.send_post("/v1/completions", &completion("m", "x"), "");
                }
            }
            None => clients.iter_mut().for_each(|client| assert_eq!(client.response().status, 200)),
        }
        clients.len().to_string()
    });
}

/// A router with one worker in this process: where it listens.
fn router(urls: &str) -> (SocketAddr, &'static Shared) {
    let models = ["m"; BACKENDS].join(",");
    in_process::router(&format!(
        "--static-backends {urls} --static-models {models} --no-static-backend-health-checks --routing-logic roundrobin \
         --upstream-idle-timeout-seconds 300"
    ))
}

/// One request of `count` clients, all at the same time; then all wait.
fn pairs(clients: &mut Other, backends: &mut Other, count: usize, address: SocketAddr, shared: &Shared) {
    clients.does(&format!("{address} {count}"));
    let in_flight = || (0..BACKENDS as u16).map(|slot| shared.fleet.load(slot).in_flight() as usize).sum::<usize>();
    eventually("all requests run", || in_flight() == count);
    // Requests are there as soon as their connections are: the last ones may take a moment.
    eventually("all are answered", || {
        backends.does("answer");
        in_flight() == 0
    });
    assert_eq!(clients.does("read"), count.to_string());
}

/// What the worker holds once a burst's buffers have been given back, which is done little by little.
fn at_rest() -> isize {
    let (mut least, mut unchanged) = (isize::MAX, 0);
    while unchanged < 20 {
        let now = HELD.load(SeqCst);
        unchanged = if now < least { 0 } else { unchanged + 1 };
        least = least.min(now);
        std::thread::sleep(Duration::from_millis(100));
    }
    least
}

const THE_TEST: &str = "ten_thousand_idle_pairs_hold_no_buffers";

#[test]
fn ten_thousand_idle_pairs_hold_no_buffers() {
    let descriptors = rlimit::increase_nofile_limit(u64::MAX).expect("a limit");
    match std::env::var(ROLE).as_deref() {
        Ok("clients") => return be_clients(),
        Ok(_) => return be_backends(),
        Err(_) => {}
    }
    let count = PAIRS.min(usize::try_from(descriptors).expect("fits") / 2 - 100);
    let (mut clients, mut backends) = (Other::start("clients"), Other::start("backends"));
    let (address, shared) = router(&backends.does("listen"));
    eventually("the worker runs", || shared.shards[0].thread_id.load(SeqCst) != 0);
    WORKER.store(shared.shards[0].thread_id.load(SeqCst), SeqCst);
    pairs(&mut clients, &mut backends, FIRST, address, shared);
    let first = at_rest();
    pairs(&mut clients, &mut backends, count, address, shared);
    let bytes = (at_rest() - first) / (count - FIRST) as isize;
    println!("{bytes} bytes of user memory a pair, {count} pairs");
    assert!(bytes > 100, "the counter counts: {bytes}");
    assert!(bytes < MOST_BYTES, "{bytes} bytes a pair");
}
