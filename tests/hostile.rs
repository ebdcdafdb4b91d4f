//! Thousands of hostile requests and answers over real sockets, on both drivers: each is refused or forwarded in one
//! canonical form, as an independent model of the RFCs says, and whoever comes next gets an answer of his own.
//!
//! A failure names its seed. `TEST_SEED` starts there, `TEST_CASES` says how many follow.

#[path = "hostile/mod.rs"]
mod hostile;
mod support;

use hostile::grammar::Random;
use hostile::verdict::{self, Answer, Forwarded, Verdict, end_to_end};
use hostile::{requests, responses};
use support::origin::{Peer, ok};
use support::{Client, Origin, Received, Router};

const REQUESTS: u64 = 5_200;
const ANSWERS: u64 = 2_400;
/// Routers at a time, each with a backend of its own.
const LANES: u64 = 4;
const MANY: u64 = 1_000;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Those of the drivers that the machine has.
fn drivers() -> Vec<String> {
    match std::env::var("TRIEWAY_TEST_IO") {
        Ok(driver) => vec![driver],
        Err(_) => ["epoll", "uring"].map(str::to_owned).into(),
    }
}

/// Runs all seeds on every driver, several at a time; what is counted for each is summed.
fn over<const N: usize>(
    cases: u64,
    lane: impl Fn(&str, &mut dyn Iterator<Item = u64>) -> [usize; N] + Sync,
) -> [usize; N] {
    let (cases, first) = (number("TEST_CASES", cases), number("TEST_SEED", 1));
    let mut sum = [0; N];
    for driver in drivers() {
        let counts = std::thread::scope(|scope| {
            let lanes: Vec<_> = (0..LANES)
                .map(|number| {
                    let (lane, driver) = (&lane, &driver);
                    scope.spawn(move || lane(driver, &mut (first..first + cases).filter(|seed| seed % LANES == number)))
                })
                .collect();
            lanes.into_iter().map(|lane| lane.join().expect("no vector fails")).collect::<Vec<_>>()
        });
        counts.iter().flat_map(|counts| counts.iter().enumerate()).for_each(|(at, count)| sum[at] += count);
    }
    sum
}

/// Names the request in its answer.
fn echo(peer: &mut Peer, request: &Received) -> bool {
    let name = name(request.line(), &request.body);
    let body = if request.line().starts_with("HEAD ") { "" } else { &name };
    peer.send(format!("HTTP/1.1 200 OK\r\nX-Name: {name}\r\nContent-Length: {}\r\n\r\n{body}", name.len()))
}

fn name(line: &str, body: &[u8]) -> String {
    let words: Vec<_> = line.split(' ').take(2).collect();
    format!("{} [{}]", words.join(" "), body.escape_ascii())
}

#[test]
fn a_request_is_refused_or_forwarded_in_one_form() {
    let [alone, followed, nothing] = over(REQUESTS, |driver, seeds| {
        let origin = Origin::start(&["m"], echo);
        let router = Router::in_front_of(&[origin.url()], &["--workers", "1", "--io", driver]);
        let mut witness = router.client();
        let mut counts = [0; 3];
        for seed in seeds {
            let vector = requests::vector(seed);
            let bytes = [&vector[..], &requests::follower(seed)].concat();
            let verdict = verdict::requests(&bytes);
            counts[[2, 0, 1][verdict.forwarded.len().min(2)]] += 1;
            if let Err(what) = request(&router, &origin, &mut witness, seed, &bytes, &verdict) {
                panic!("{driver}, seed {seed}: {what}\nsent {}\nthe model says {verdict:?}", bytes.escape_ascii());
            }
            origin.forget();
        }
        counts
    });
    let all = alone + followed + nothing;
    if all as u64 >= MANY {
        let enough = [alone, followed, nothing].iter().all(|count| count * 40 > all);
        assert!(enough, "all kinds are there: {alone} forwarded alone, {followed} with others, {nothing} refused");
    }
}

/// Sends the bytes in a few pieces; then somebody else asks. What is wrong, if anything is.
fn request(
    router: &Router,
    origin: &Origin,
    witness: &mut Client,
    seed: u64,
    bytes: &[u8],
    verdict: &Verdict,
) -> Result<(), String> {
    let mut client = router.client();
    let mut random = Random(seed ^ 0xabcd);
    let mut rest = bytes;
    for _ in 0..random.below(3) {
        let (piece, behind) = rest.split_at(random.below(rest.len().max(1)));
        client.try_send(piece);
        rest = behind;
    }
    client.try_send(rest);
    for wanted in &verdict.forwarded {
        let own = name(&format!("{} {}", wanted.method, wanted.target), &wanted.body);
        let answer = final_answer(&mut client, &wanted.method);
        if answer != (200, own.clone()) {
            return Err(format!("the answer is {answer:?} and not of {own:?}"));
        }
    }
    client.half_close();
    let last = client.read_to_end();
    let last = last.strip_prefix(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap_or(&last);
    let error = last.starts_with(b"HTTP/1.1 4") || last.starts_with(b"HTTP/1.1 5");
    let answers =
        last.windows(10).filter(|window| window.starts_with(b"HTTP/1.1 ") && window[9].is_ascii_digit()).count();
    if !(error || last.is_empty() && !verdict.refused) || answers > 1 {
        return Err(format!("behind the answers came {}", last.escape_ascii()));
    }
    let asked = format!("/witness-{seed}");
    let other = witness.get(&asked);
    if other.field("x-name") != Some(&name(&format!("GET {asked}"), b"")) {
        return Err(format!("somebody else got {}", other.head));
    }
    let mut received: Vec<Forwarded> = origin
        .canonical()
        .into_iter()
        .map(|r| Forwarded { method: r.method, target: r.target, body: r.body, fields: end_to_end(&r.fields) })
        .collect();
    received.retain(|request| request.target != asked);
    if received == verdict.forwarded { Ok(()) } else { Err(format!("the backend got {received:?}")) }
}

fn final_answer(client: &mut Client, method: &str) -> (u16, String) {
    loop {
        let answer = client.response_to(method);
        if answer.status >= 200 {
            return (answer.status, answer.field("x-name").unwrap_or_default().to_owned());
        }
    }
}

#[test]
fn an_answer_is_relayed_whole_or_breaks_for_its_client_alone() {
    let [whole, broken] = over(ANSWERS, |driver, seeds| {
        let origin = Origin::start(&["m"], hostile_or_own);
        let router = Router::in_front_of(&[origin.url()], &["--workers", "1", "--io", driver]);
        let mut witness = router.client();
        let mut counts = [0; 2];
        for seed in seeds {
            let bytes = responses::vector(seed);
            let verdict = verdict::answer(&bytes);
            counts[usize::from(verdict == Answer::Broken)] += 1;
            if let Err(what) = answer(&router, &mut witness, seed, &verdict) {
                panic!("{driver}, seed {seed}: {what}\nanswered {}\nthe model says {verdict:?}", bytes.escape_ascii());
            }
            if seed % 64 == 0 {
                origin.forget();
            }
        }
        counts
    });
    if (whole + broken) as u64 >= MANY {
        assert!(whole * 5 > broken && broken * 5 > whole, "both kinds are there: {whole} {broken}");
    }
}

/// The vector that the target names, and then the end; anybody else gets an answer of his own.
fn hostile_or_own(peer: &mut Peer, request: &Received) -> bool {
    let target = request.line().split(' ').nth(1).unwrap_or_default();
    match target.strip_prefix("/hostile-").and_then(|seed| seed.parse().ok()) {
        Some(seed) => {
            peer.send(responses::vector(seed));
            false
        }
        None => peer.send(ok(target)),
    }
}

fn answer(router: &Router, witness: &mut Client, seed: u64, verdict: &Answer) -> Result<(), String> {
    let mut client = router.client();
    client.send(format!("GET /hostile-{seed} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"));
    let got = seen(&client.read_to_end());
    if got != *verdict {
        return Err(format!("the client got {got:?}"));
    }
    let asked = format!("/witness-{seed}");
    let other = witness.get(&asked);
    if (other.status, other.body_text()) != (200, asked) {
        return Err(format!("somebody else got {} {}", other.head, other.body_text()));
    }
    Ok(())
}

/// What a client makes of all that it got, by the same model; the router's own errors count as broken.
fn seen(bytes: &[u8]) -> Answer {
    let own_error = bytes.windows(12).any(|window| window == b"\"code\":\"back");
    if own_error { Answer::Broken } else { verdict::answer(bytes) }
}
