//! What is asked, and how to tell its own answer from every other.

use super::Random;
use super::wire::Answer;

pub(super) struct Request {
    pub(super) tag: String,
    path: &'static str,
    body: String,
    chunked: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Right,
    /// An explicit error; by whom: the router's code, or the engine's status.
    Error(String),
    /// It began right and broke off visibly.
    Cut,
    /// What must never happen.
    Wrong(String),
}

impl Request {
    pub(super) fn new(random: &mut Random, tag: String, long: bool) -> Self {
        let tokens = if long { 200 } else { random.below(12) };
        let stream = long || random.below(2) == 0;
        // A few conversations that many share, and an end of its own.
        let shared = "once upon a time ".repeat(1 + 40 * random.below(6));
        let text = format!("{} {shared}{}", random.below(8), random.next());
        let (path, body) = match random.below(5) {
            0 => (
                "/v1/completions",
                format!(r#"{{"model":"fake-llm","prompt":"{text}","max_tokens":{tokens},"stream":{stream}}}"#),
            ),
            1 if !long => ("/tokenize", format!(r#"{{"model":"fake-llm","prompt":"{text}"}}"#)),
            _ => (
                "/v1/chat/completions",
                format!(
                    r#"{{"model":"fake-llm","max_tokens":{tokens},"stream":{stream},"messages":[{{"role":"user","content":"{text}"}}]}}"#
                ),
            ),
        };
        Request { tag, path, body, chunked: random.below(4) == 0 }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let Request { tag, path, body, .. } = self;
        let head = format!("POST {path} HTTP/1.1\r\nHost: chaos\r\nX-Tag: {tag}\r\nContent-Type: application/json\r\n");
        if self.chunked {
            let (first, second) = body.split_at(body.len() / 3);
            let (a, b) = (first.len(), second.len());
            format!("{head}Transfer-Encoding: chunked\r\n\r\n{a:x}\r\n{first}\r\n{b:x}\r\n{second}\r\n0\r\n\r\n").into()
        } else {
            format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).into()
        }
    }

    /// What only the answer to this request holds.
    fn mark(&self) -> Option<String> {
        match self.path {
            "/tokenize" => Some(format!("{:016x}", xxhash_rust::xxh3::xxh3_64(self.body.as_bytes()))),
            // Without a token there is no text that could begin with the tag.
            _ if self.body.contains(r#""max_tokens":0,"#) => None,
            _ => Some(format!("[{}]", self.tag)),
        }
    }
}

/// Whose answer is this, and is it whole?
pub(super) fn verdict(answer: &Answer, request: &Request) -> Verdict {
    let body = String::from_utf8_lossy(&answer.body);
    if let Some(tag) = answer.field("x-tag")
        && tag != request.tag
    {
        return Verdict::Wrong(format!("{} got the head of {tag}", request.tag));
    }
    let own = format!("[{}]", request.tag);
    // Where the body was cut within its own tag, that is all there is of it.
    let is_own = |rest: &str| rest.starts_with(&own) || own.starts_with(rest);
    let names = |at: usize| body[at + 2..].starts_with(|c: char| c.is_ascii_digit()) && !is_own(&body[at..]);
    if let Some((at, _)) = body.match_indices("[c").find(|(at, _)| names(*at)) {
        let named: String = body[at..].chars().take(24).collect();
        return Verdict::Wrong(format!("{} got the body of {named}", request.tag));
    }
    match (answer.status, answer.field("x-tag").is_some()) {
        (200, true) if !answer.complete => Verdict::Cut,
        (200, true) => match request.mark() {
            Some(mark) if !body.contains(&mark) => {
                Verdict::Wrong(format!("{}: a whole answer without {mark}: {}", request.tag, short(&body)))
            }
            _ => Verdict::Right,
        },
        (status @ (429 | 500..=504), true) => Verdict::Error(format!("engine {status}")),
        (429 | 500..=504, false) => {
            let told: Option<serde_json::Value> = serde_json::from_slice(&answer.body).ok();
            match told.as_ref().and_then(|told| told["error"]["code"].as_str()) {
                Some(code) => Verdict::Error(code.to_owned()),
                None => Verdict::Wrong(format!("{}: {} without a code", request.tag, answer.head)),
            }
        }
        _ => Verdict::Wrong(format!("{}: {} {}", request.tag, answer.head, short(&body))),
    }
}

fn short(text: &str) -> String {
    text.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        let body = r#"{"model":"fake-llm","prompt":"x","max_tokens":3,"stream":true}"#.to_owned();
        Request { tag: "c1-2".to_owned(), path: "/v1/completions", body, chunked: false }
    }

    fn answer(head: &str, body: &str, complete: bool) -> Answer {
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        Answer { status, head: head.to_owned(), body: body.as_bytes().to_vec(), complete }
    }

    #[test]
    fn an_answer_is_right_cut_an_error_or_wrong() {
        let own = "HTTP/1.1 200 OK\r\nx-tag: c1-2";
        let cases = [
            (answer(own, r#""text":"[c1-2] bob ""#, true), "Right"),
            (answer(own, r#""text":"[c1"#, false), "Cut"),
            (answer(own, r#""text":"""#, true), "Wrong"),
            (answer(own, r#""text":"[c1-23] bob ""#, true), "Wrong"),
            (answer("HTTP/1.1 200 OK\r\nx-tag: c1-3", "[c1-2]", true), "Wrong"),
            (answer("HTTP/1.1 200 OK", "[c1-2]", true), "Wrong"),
            (answer("HTTP/1.1 502 Bad", r#"{"error":{"code":"bad_response"}}"#, true), "Error"),
            (answer("HTTP/1.1 502 Bad", "oh", true), "Wrong"),
            (answer("HTTP/1.1 400 Bad", r#"{"error":{"code":"bad_request"}}"#, true), "Wrong"),
        ];
        for (answer, expected) in cases {
            let verdict = format!("{:?}", verdict(&answer, &request()));
            assert!(verdict.starts_with(expected), "{answer:?}: {verdict}");
        }
    }
}
