//! Pipelines with random faults against the real binary: what reaches the backend is exactly what the naive model accepts,
//! one canonical request each, and each is answered with its own answer. `TEST_CASES` sets how many; a failure names its
//! seed, and `TEST_SEED` starts there.

mod connection_model;
mod support;

use connection_model::{Expected, Random, expected, pipeline};
use support::canonical::http_model;
use support::origin::Peer;
use support::{Client, Origin, Received, Router};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Names the request in its answer.
fn echo(peer: &mut Peer, request: &Received) -> bool {
    let mut words = request.line().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let text = name(method, target, &request.body);
    let body = if method == "HEAD" { "" } else { &text };
    peer.send(format!("HTTP/1.1 200 OK\r\nX-Name: {text}\r\nContent-Length: {}\r\n\r\n{body}", text.len()))
}

fn name(method: &str, target: &str, body: &[u8]) -> String {
    format!("{method} {target} [{}]", body.escape_ascii())
}

/// Sends the bytes in a few pieces and reads all answers; then leaves. What is wrong, if anything is.
fn run(router: &Router, origin: &Origin, bytes: &[u8], wanted: &[Expected], random: &mut Random) -> Result<(), String> {
    let mut client = router.client();
    let mut rest = bytes;
    for _ in 0..random.below(3) {
        let (piece, behind) = rest.split_at(random.below(rest.len().max(1)));
        client.try_send(piece);
        rest = behind;
        if random.below(8) == 0 {
            std::thread::sleep(support::APART);
        }
    }
    client.try_send(rest);
    for (i, request) in wanted.iter().enumerate() {
        let answer = final_answer(&mut client, &request.method);
        let own = name(&request.method, &request.target, &request.body);
        if answer != (200, own.clone()) {
            return Err(format!("answer {i} is {answer:?} and not of {own:?}"));
        }
    }
    client.half_close();
    let last = client.read_to_end();
    let refused = last.is_empty() || last.starts_with(b"HTTP/1.1 4") || last.starts_with(b"HTTP/1.1 5");
    let interim = last.starts_with(b"HTTP/1.1 100 ");
    if !(refused || interim) || last.windows(12).any(|w| w == b"HTTP/1.1 200") {
        return Err(format!("more than the answers: {:?}", String::from_utf8_lossy(&last)));
    }
    let got: Vec<_> =
        origin.canonical().into_iter().map(|r| Expected { method: r.method, target: r.target, body: r.body }).collect();
    if got == wanted { Ok(()) } else { Err(format!("the backend got {got:?}")) }
}

fn final_answer(client: &mut Client, method: &str) -> (u16, String) {
    loop {
        let answer = client.response_to(method);
        if answer.status >= 200 {
            return (answer.status, answer.field("x-name").unwrap_or_default().trim().to_owned());
        }
    }
}

#[test]
fn what_reaches_the_backend_is_what_the_model_accepts() {
    let (cases, first) = (number("TEST_CASES", 3_000), number("TEST_SEED", 1));
    let threads = 3;
    let workers: Vec<_> = (0..threads)
        .map(|thread| {
            std::thread::spawn(move || {
                let origin = Origin::start(&["m"], echo);
                let router = Router::in_front_of(&[origin.url()], &["--workers", "1"]);
                let mut counts = [0; 5];
                for seed in (first..first + cases).filter(|seed| seed % threads == thread) {
                    let mut random = Random(seed);
                    let bytes = pipeline(&mut random);
                    let wanted = expected(&bytes);
                    counts[wanted.len().min(4)] += 1;
                    if let Err(what) = run(&router, &origin, &bytes, &wanted, &mut random) {
                        panic!("seed {seed}: {what}; wanted {wanted:?}; sent {}", bytes.escape_ascii());
                    }
                    origin.forget();
                }
                counts
            })
        })
        .collect();
    for worker in workers {
        let counts = worker.join().expect("no case fails");
        if cases >= 1_000 {
            assert!(counts[..4].iter().all(|count| *count > 20), "the generator makes all kinds: {counts:?}");
        }
    }
}
