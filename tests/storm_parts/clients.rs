//! Clients that hold conversations, with short prompts between the turns: each knows which answer is its own, and tries
//! again when it is told of a failure.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use crate::connection_model::Random;
use crate::support::{Client, Response, text};

const TRIES: usize = 4;

#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) right: AtomicU64,
    /// Answered by an error, or visibly cut off.
    pub(crate) failed: AtomicU64,
    /// Not answered right in any of the tries.
    pub(crate) lost: AtomicU64,
}

/// One client's conversations until told to stop. Text and manners are the seed's.
///
/// # Panics
/// When an answer is another request's, or neither an answer nor an explicit failure.
pub(crate) fn converse(address: SocketAddr, number: u64, seed: u64, stop: &AtomicBool, tally: &Arc<Tally>) {
    let mut random = Random(seed ^ number.wrapping_mul(0x5851_f42d_4c95_7f2d));
    let mut talk = Talk { address, client: None, name: format!("s{number}"), sent: 0, tally: Arc::clone(tally) };
    while !stop.load(SeqCst) {
        let bytes = random.one_of(&[300, 1_500, 6_000]);
        let mut prompt = text(random.next(), bytes);
        let mut unseen = true;
        for _ in 0..=random.below(4) {
            talk.ask(&prompt, random.below(2) == 0, unseen);
            unseen = false;
            prompt.push_str(&text(random.next(), 200));
            if random.below(2) == 0 {
                talk.ask(&format!("hi {}", random.next()), random.below(2) == 0, true);
            }
            if stop.load(SeqCst) {
                return;
            }
        }
        if random.below(6) == 0 {
            talk.client = None;
        }
    }
}

struct Talk {
    address: SocketAddr,
    client: Option<Client>,
    name: String,
    sent: u64,
    tally: Arc<Tally>,
}

impl Talk {
    fn ask(&mut self, prompt: &str, stream: bool, unseen: bool) {
        let body = format!("{{\"model\":\"m\",\"prompt\":\"{prompt}\",\"stream\":{stream}}}");
        for attempt in 0..TRIES {
            let unseen = unseen && attempt == 0;
            if self.once(&body, unseen) {
                self.tally.right.fetch_add(1, SeqCst);
                return;
            }
            self.tally.failed.fetch_add(1, SeqCst);
        }
        self.tally.lost.fetch_add(1, SeqCst);
    }

    /// Sends it once. False: an explicit failure.
    fn once(&mut self, body: &str, unseen: bool) -> bool {
        self.sent += 1;
        let tag = format!("{}-{}", self.name, self.sent);
        let fields = format!("X-Tag: {tag}\r\n{}", if unseen { "X-Unseen: 1\r\n" } else { "" });
        let client = self.client.get_or_insert_with(|| Client::connect(self.address));
        client.send_post("/v1/completions", body, &fields);
        let answer = client.response();
        if !answer.complete || answer.field("connection") == Some("close") {
            self.client = None;
        }
        is_right(&answer, &tag)
    }
}

fn is_right(answer: &Response, tag: &str) -> bool {
    let body = answer.body_text();
    let own = format!("[{tag}]");
    assert!(body.matches('[').count() <= 3, "more than one answer: {body}");
    match (answer.status, answer.field("x-tag")) {
        (200 | 500, Some(named)) => {
            assert_eq!(named, tag, "another request's answer: {body}");
            assert!(!answer.complete || body.contains(&own), "the body of another answer: {body}");
            answer.status == 200 && answer.complete
        }
        (429 | 500..=504, None) => {
            assert!(answer.complete && !answer.error_code().is_empty(), "an error without a code: {}", answer.head);
            false
        }
        _ => panic!("neither an answer nor an error: {}\n{body}", answer.head),
    }
}
