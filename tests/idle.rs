//! Connections that wait cost next to nothing: no buffer, no state of a request.
//!
//! The router runs inside this process, so that an allocator of the test's own can count what its worker holds.

#![allow(unsafe_code, reason = "an allocator that counts, and the calling thread's id")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
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

/// Client connections and as many to backends: all of them open four descriptors in this one process.
const PAIRS: usize = 3_000;
/// The first of them fill what the worker keeps for running requests.
const FIRST: usize = 600;
/// A worker keeps at most 512 unused connections to one backend.
const BACKENDS: usize = 8;
/// User memory of one pair: the task that waits, two sockets with their waits, a place in the pool. The kernel's own is not in it.
const MOST_BYTES: isize = 1024;

/// Takes connections and lets them lie until it is told to answer what came on them.
struct Backends {
    urls: Vec<String>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Backends {
    fn start() -> Self {
        let streams = Arc::new(Mutex::new(Vec::new()));
        let urls = (0..BACKENDS).map(|_| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
            socket2::SockRef::from(&listener).listen(2048).expect("a longer backlog");
            let url = format!("http://{}", listener.local_addr().expect("an address"));
            let taken = Arc::clone(&streams);
            std::thread::spawn(move || listener.incoming().flatten().for_each(|s| taken.lock().expect("list").push(s)));
            url
        });
        Backends { urls: urls.collect(), streams }
    }

    /// Answers the request on each connection that has one; the control plane's have ended or are silent.
    fn answer_all(&self) {
        for stream in &mut *self.streams.lock().expect("list") {
            stream.set_nonblocking(true).expect("mode");
            if stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {
                stream.write_all(ok("{}").as_bytes()).expect("answers");
            }
        }
    }
}

/// A router with one worker in this process: where it listens.
fn router(backends: &Backends) -> (SocketAddr, &'static Shared) {
    let (list, models) = (backends.urls.join(","), ["m"; BACKENDS].join(","));
    in_process::router(&format!(
        "--static-backends {list} --static-models {models} --no-static-backend-health-checks --routing-logic roundrobin \
         --upstream-idle-timeout-seconds 300"
    ))
}

/// One request of `count` clients, all at the same time; then all wait.
fn pairs(clients: &mut Vec<Client>, count: usize, address: SocketAddr, shared: &Shared, backends: &Backends) {
    clients.resize_with(count, || Client::connect(address));
    for client in &mut *clients {
        client.send_post("/v1/completions", &completion("m", "x"), "");
    }
    let in_flight = || (0..BACKENDS as u16).map(|slot| shared.fleet.load(slot).in_flight() as usize).sum::<usize>();
    eventually("all requests run", || in_flight() == count);
    // Requests are there as soon as their connections are: the last ones may take a moment.
    eventually("all are answered", || {
        backends.answer_all();
        in_flight() == 0
    });
    for client in clients {
        assert_eq!(client.response().status, 200);
    }
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

#[test]
fn thousands_of_idle_pairs_hold_no_buffers() {
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let backends = Backends::start();
    let (address, shared) = router(&backends);
    eventually("the worker runs", || shared.shards[0].thread_id.load(SeqCst) != 0);
    WORKER.store(shared.shards[0].thread_id.load(SeqCst), SeqCst);
    let mut clients = Vec::new();
    pairs(&mut clients, FIRST, address, shared, &backends);
    let first = at_rest();
    pairs(&mut clients, PAIRS, address, shared, &backends);
    let bytes = (at_rest() - first) / (PAIRS - FIRST) as isize;
    println!("{bytes} bytes of user memory a pair");
    assert!(bytes > 100, "the counter counts: {bytes}");
    assert!(bytes < MOST_BYTES, "{bytes} bytes a pair");
}
