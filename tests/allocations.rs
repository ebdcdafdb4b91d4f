//! A request in the steady state allocates nothing on its worker's thread.
//!
//! The router runs inside this process, so that an allocator of the test's own can count.

#![allow(unsafe_code, reason = "an allocator that counts, and the calling thread's id")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

use support::origin::ok;
use support::{Client, Origin, chat, eventually, in_process, text};

struct Counting;

static ON: AtomicBool = AtomicBool::new(false);
static WORKER: AtomicI32 = AtomicI32::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn count() {
    // SAFETY: gettid has no preconditions.
    if ON.load(SeqCst) && unsafe { libc::gettid() } == WORKER.load(SeqCst) {
        COUNT.fetch_add(1, SeqCst);
    }
}

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is the callee's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of the worker while `turns` requests run, after as many that warm it up; and how many its housekeeping may
/// have made meanwhile: a few timers a tick of 50 ms.
fn allocations(turns: usize, mut request: impl FnMut(usize)) -> (usize, usize) {
    (0..turns).for_each(&mut request);
    COUNT.store(0, SeqCst);
    let start = Instant::now();
    ON.store(true, SeqCst);
    (turns..2 * turns).for_each(&mut request);
    ON.store(false, SeqCst);
    let ticks = start.elapsed().as_millis() as usize / 50 + 1;
    (COUNT.load(SeqCst), 4 * ticks)
}

#[test]
fn a_request_in_the_steady_state_allocates_nothing() {
    let origins: Vec<_> = (0..2)
        .map(|_| {
            Origin::start(&["m"], |peer, request| {
                if request.body.ends_with(b"stream\"}]}") {
                    let events: String = (0..20).map(|i| format!("9\r\ndata: {i:02}\n\r\n")).collect();
                    peer.send(format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{events}0\r\n\r\n"))
                } else {
                    peer.send(ok("{\"choices\":[]}"))
                }
            })
        })
        .collect();
    let backends = origins.iter().map(Origin::url).collect::<Vec<_>>().join(",");
    let (address, shared) = in_process::router(&format!("--static-backends {backends}"));
    eventually("both backends are up", || shared.fleet.snapshot().load().served(None).usable.len() == 2);
    WORKER.store(shared.shards[0].thread_id.load(SeqCst), SeqCst);

    let mut client = Client::connect(address);
    let long = text(1, 100_000);
    for (what, body) in
        [("short chat", chat("m", "hi")), ("stream", chat("m", "stream")), ("100 KB prompt", chat("m", &long))]
    {
        let (counted, by_ticks) = allocations(300, |_| {
            assert_eq!(client.post("/v1/chat/completions", &body).status, 200, "{what}");
        });
        assert!(by_ticks < 150 && counted <= by_ticks, "{what}: {counted} allocations in 300 requests");
    }
    let (counted, _) = allocations(300, |_| assert_eq!(Client::connect(address).get("/version").status, 200));
    assert!(counted >= 300, "the counter counts: each connection is allocated, and it saw {counted}");
}
