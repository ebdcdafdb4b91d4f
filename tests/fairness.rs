//! No client holds up another: a connection that always has work takes turns with the others of its worker.
//!
//! What an attacker moves is counted, not the time that a victim waits: a busy machine slows both.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use support::origin::{Peer, ok};
use support::{Origin, Received, Router, completion};

const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const ASK: &str = "GET /socket HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const STREAM: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

/// A request that the router answers itself, and goes on.
const UNKNOWN: &str = "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 13\r\n\r\n{\"model\":\"?\"}";

/// What an attacker may move while a victim's request is answered: some turns of 2 MiB, and what lies in the kernel's buffers.
const SOME_TURNS: usize = 48 << 20;

/// Sends without an end where the target says so, and answers everything else.
fn origin() -> Origin {
    Origin::start(&["m"], |peer: &mut Peer, request: &Received| {
        let chunk = format!("{:x}\r\n{}\r\n", 256 << 10, "x".repeat(256 << 10));
        match request.line().split(' ').nth(1) {
            Some("/chunked") => {
                peer.send(STREAM);
                while peer.send(&chunk) {}
                false
            }
            Some("/long") => {
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n");
                while peer.send(&chunk) {}
                false
            }
            Some("/socket") => {
                peer.send(SWITCH);
                while peer.send(&chunk) {}
                false
            }
            Some("/echo") => {
                peer.send(SWITCH);
                while matches!(peer.stream.read(&mut [0; 65536]), Ok(1..)) {}
                false
            }
            _ => peer.send(ok("{}")),
        }
    })
}

fn router(origin: &Origin) -> Router {
    Router::in_front_of(&[origin.url()], &["--workers", "1"])
}

/// Moves bytes on one connection until it is dropped.
struct Attacker {
    stream: TcpStream,
    moved: Arc<AtomicUsize>,
    ends: Arc<AtomicBool>,
}

impl Attacker {
    /// Sends `first`, then moves without an end by `step`, which says how much it has moved; 0 ends it.
    fn start(router: &Router, first: &str, mut step: impl FnMut(&mut TcpStream) -> usize + Send + 'static) -> Self {
        let mut client = router.client();
        client.send(first);
        let (moved, ends) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let mut stream = client.stream.try_clone().expect("a handle");
        let (counts, ended) = (Arc::clone(&moved), Arc::clone(&ends));
        std::thread::spawn(move || {
            loop {
                match step(&mut stream) {
                    0 => break,
                    n => drop(counts.fetch_add(n, SeqCst)),
                }
            }
            ended.store(true, SeqCst);
        });
        Attacker { stream: client.stream, moved, ends }
    }

    fn reads(router: &Router, first: &str) -> Self {
        let mut bytes = vec![0; 1 << 20];
        Self::start(router, first, move |stream| stream.read(&mut bytes).unwrap_or(0))
    }

    fn writes(router: &Router, first: &str, what: &str) -> Self {
        let bytes = what.repeat((256 << 10) / what.len());
        Self::start(router, first, move |stream| stream.write(bytes.as_bytes()).unwrap_or(0))
    }

    fn moved(&self) -> usize {
        self.moved.load(SeqCst)
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// Asks beside the attacker, again and again; gives what the attacker moved while most of the requests were answered.
fn moved_beside(router: &Router, attacker: &Attacker) -> usize {
    support::eventually("the attack runs", || attacker.moved() > 8 << 20 || attacker.ends.load(SeqCst));
    let mut victim = router.client();
    let mut moved: Vec<usize> = (0..12)
        .map(|_| {
            let before = attacker.moved();
            assert_eq!(victim.post("/v1/completions", &completion("m", "x")).status, 200);
            attacker.moved() - before
        })
        .collect();
    assert!(!attacker.ends.load(SeqCst), "the attack goes on");
    moved.sort_unstable();
    moved[moved.len() / 2]
}

#[test]
fn a_pipeline_that_the_router_answers_itself_takes_turns_with_others() {
    const REQUESTS: usize = 60_000;
    let origin = origin();
    let router = router(&origin);
    let mut victims: Vec<_> = (0..3).map(|_| router.client()).collect();
    victims.iter_mut().for_each(|victim| assert_eq!(victim.get("/any").status, 200));
    let mut answer = router.client();
    let answer_bytes = answer.send(UNKNOWN).response();
    assert_eq!((answer_bytes.status, answer_bytes.error_code().as_str()), (404, "model_not_found"));
    let answer_bytes = answer_bytes.head.len() + 4 + answer_bytes.body.len();
    // Everything lies ready when the router looks: the attacker's requests first.
    router.signal("STOP");
    let attacker = Attacker::reads(&router, "");
    let mut sender = attacker.stream.try_clone().expect("a handle");
    let sending = std::thread::spawn(move || {
        let some = UNKNOWN.repeat(100);
        (0..REQUESTS / 100).all(|_| sender.write_all(some.as_bytes()).is_ok())
    });
    std::thread::sleep(std::time::Duration::from_millis(200));
    for victim in &mut victims {
        victim.send("GET /any HTTP/1.1\r\nHost: t\r\n\r\n");
    }
    router.signal("CONT");
    victims.iter_mut().for_each(|victim| assert_eq!(victim.response().status, 200));
    let answered = attacker.moved() / answer_bytes;
    assert!(answered < REQUESTS / 4, "{answered} of {REQUESTS} pipelined requests were answered before");
    drop(attacker);
    let _ = sending.join();
}

#[test]
fn a_download_takes_turns_with_others_whether_it_is_copied_or_spliced() {
    let origin = origin();
    let router = router(&origin);
    for path in ["/chunked", "/long"] {
        let attacker = Attacker::reads(&router, &format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n"));
        let moved = moved_beside(&router, &attacker);
        assert!(moved < SOME_TURNS, "{path}: {moved} bytes");
    }
}

#[test]
fn a_websocket_takes_turns_with_others_in_both_directions() {
    let origin = origin();
    let router = router(&origin);
    let down = Attacker::reads(&router, ASK);
    let moved = moved_beside(&router, &down);
    assert!(moved < SOME_TURNS, "down: {moved} bytes");
    drop(down);
    let up = Attacker::writes(&router, &ASK.replace("/socket", "/echo"), "x");
    let moved = moved_beside(&router, &up);
    assert!(moved < SOME_TURNS, "up: {moved} bytes");
}

#[test]
fn bytes_that_are_dropped_after_a_refusal_take_turns_with_others() {
    let origin = origin();
    let router = router(&origin);
    let attacker = Attacker::writes(&router, "BAD\r\n\r\n", "x");
    let moved = moved_beside(&router, &attacker);
    assert!(moved < SOME_TURNS, "{moved} bytes");
}

#[test]
fn bodies_of_one_byte_chunks_take_turns_with_others() {
    let origin = origin();
    let router = router(&origin);
    let head = "POST /any HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
    let attacker = Attacker::writes(&router, head, "1\r\nx\r\n");
    let moved = moved_beside(&router, &attacker);
    assert!(moved < SOME_TURNS, "{moved} bytes");
}

/// With many at once: each has its turn in a round, and no victim waits for more than some rounds.
#[test]
fn beside_64_attackers_a_request_is_answered_within_some_rounds() {
    let origin = origin();
    let router = router(&origin);
    let attackers: Vec<_> = (0..64)
        .map(|i| match i % 2 {
            0 => Attacker::writes(&router, "", UNKNOWN),
            _ => Attacker::writes(&router, "BAD\r\n\r\n", "x"),
        })
        .collect();
    let mut victim = router.client();
    let all = || attackers.iter().map(Attacker::moved).sum::<usize>();
    let mut moved: Vec<usize> = (0..8)
        .map(|_| {
            let before = all();
            assert_eq!(victim.post("/v1/completions", &completion("m", "x")).status, 200);
            all() - before
        })
        .collect();
    moved.sort_unstable();
    let half = moved[moved.len() / 2];
    assert!(half < 16 * SOME_TURNS, "{half} bytes");
}

#[test]
fn others_have_their_turns_while_a_body_is_read_that_takes_long() {
    let origin = origin();
    let router = router(&origin);
    // Parts of five bytes; no such model.
    let parts = r#""\n","#.repeat(16 << 17);
    let body = format!(r#"{{"model":"?","messages":[{{"content":[{parts}"x"]}}]}}"#);
    let (sent, answered) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut meanwhile = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut attacker = router.client();
            attacker.send_post("/v1/chat/completions", &body, "");
            sent.store(true, SeqCst);
            assert_eq!(attacker.response().status, 404);
            answered.store(true, SeqCst);
        });
        let mut victim = router.client();
        while !answered.load(SeqCst) {
            let counts = sent.load(SeqCst);
            assert_eq!(victim.post("/v1/completions", &completion("m", "hello")).status, 200);
            meanwhile += usize::from(counts);
        }
    });
    assert!(meanwhile >= 20, "{meanwhile} requests were answered while 10 MB were read");
}
