//! A generated answer on its way out, whole or as a stream of events.
//!
//! The text is a function of the prompt alone: four-byte words, one a token, behind the request's tag. Bytes are made when
//! there is room for them, so an answer of any length takes no memory.
//!
//! Must not know: sockets, the clock. What may be sent by now is passed in as a number of tokens.

use std::io::Write;

use super::http::{Framing, ResponseHead};
use super::prompt::{Kind, TOKEN_BYTES};

/// What an answer is to look like.
#[derive(Debug)]
pub(crate) struct Form {
    pub(crate) kind: Kind,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) framing: Option<Framing>,
    pub(crate) keep_alive: bool,
    /// A stream's head goes out before its first token is there.
    pub(crate) early_head: bool,
    /// No more than this many tokens are sent, whatever was announced.
    pub(crate) cut_after: Option<u64>,
    pub(crate) finish_reason: &'static str,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) form: Form,
    pub(crate) engine: u16,
    pub(crate) number: u64,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) tag: Option<String>,
    pub(crate) seed: u64,
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) tokens: u64,
    pub(crate) sent: u64,
    pub(crate) stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Head,
    Opening,
    Tokens,
    Closing,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The buffer has its share.
    Full,
    /// The next token is not there yet.
    NotYet,
    /// The cut has been reached.
    Cut,
    Done,
}

impl Answer {
    /// Appends to `out` what may be sent once `due` tokens exist, until `out` is `limit` bytes long or a little more.
    pub(crate) fn fill(&mut self, due: u64, limit: usize, out: &mut Vec<u8>) -> Progress {
        let due = due.min(self.tokens);
        loop {
            if out.len() >= limit {
                return Progress::Full;
            }
            let ready = if self.form.stream { due > 0 || self.tokens == 0 } else { due == self.tokens };
            match self.stage {
                Stage::Head if ready || (self.form.stream && self.form.early_head) => {
                    self.head(out);
                    self.stage = Stage::Opening;
                }
                Stage::Opening if self.form.cut_after == Some(0) => return Progress::Cut,
                Stage::Opening if ready => {
                    self.opening(out);
                    self.stage = Stage::Tokens;
                }
                Stage::Tokens if self.form.cut_after.is_some_and(|cut| self.sent >= cut) => return Progress::Cut,
                Stage::Tokens if self.sent == self.tokens => self.stage = Stage::Closing,
                Stage::Tokens if self.sent < due => self.some_tokens(due, limit, out),
                Stage::Closing => {
                    self.closing(out);
                    self.stage = Stage::Done;
                }
                Stage::Done => return Progress::Done,
                _ => return Progress::NotYet,
            }
        }
    }

    /// The text of tokens `from..to`, as it is sent.
    pub(crate) fn text(&self, from: u64, to: u64, out: &mut Vec<u8>) {
        if from == 0 && to > 0 {
            out.extend_from_slice(self.tag_text().as_bytes());
        }
        for index in from..to {
            out.extend_from_slice(&word(self.seed, index));
        }
    }

    fn tag_text(&self) -> String {
        self.tag.as_ref().map_or_else(String::new, |tag| format!("[{tag}] "))
    }

    fn framing(&self) -> Framing {
        self.form.framing.unwrap_or(match self.form.stream {
            true => Framing::Chunked,
            false => Framing::Length(self.whole_length()),
        })
    }

    /// The length of an answer that is not streamed.
    pub(crate) fn whole_length(&self) -> u64 {
        let tag = if self.tokens > 0 { self.tag_text().len() } else { 0 };
        (self.whole_opening().len() + tag + self.whole_closing().len()) as u64 + self.tokens * TOKEN_BYTES as u64
    }

    fn head(&self, out: &mut Vec<u8>) {
        let content_type = if self.form.stream { "text/event-stream; charset=utf-8" } else { "application/json" };
        let (engine, tag, keep_alive) = (self.engine, self.tag.as_deref(), self.form.keep_alive);
        ResponseHead { status: 200, content_type, framing: self.framing(), engine, tag, keep_alive }.write(out);
    }

    fn opening(&self, out: &mut Vec<u8>) {
        if !self.form.stream {
            self.piece(self.whole_opening().as_bytes(), out);
        } else if self.form.kind == Kind::Chat {
            self.event(br#""delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]"#, out);
        }
    }

    /// As many tokens as exist and fit: an event each in a stream, one piece otherwise.
    fn some_tokens(&mut self, due: u64, limit: usize, out: &mut Vec<u8>) {
        let most = self.form.cut_after.unwrap_or(u64::MAX).min(due);
        if !self.form.stream {
            let room = ((limit - out.len()) / TOKEN_BYTES).max(1) as u64;
            let to = most.min(self.sent + room);
            let mut text = Vec::with_capacity((to - self.sent) as usize * TOKEN_BYTES);
            self.text(self.sent, to, &mut text);
            self.piece(&text, out);
            self.sent = to;
            return;
        }
        let mut choice = Vec::with_capacity(128);
        while self.sent < most && out.len() < limit {
            choice.clear();
            choice.extend_from_slice(match self.form.kind {
                Kind::Chat => br#""delta":{"content":""#.as_slice(),
                _ => br#""text":""#,
            });
            self.text(self.sent, self.sent + 1, &mut choice);
            choice.extend_from_slice(match self.form.kind {
                Kind::Chat => br#""},"logprobs":null,"finish_reason":null}]"#.as_slice(),
                _ => br#"","logprobs":null,"finish_reason":null}]"#,
            });
            self.event(&choice, out);
            self.sent += 1;
        }
    }

    fn closing(&self, out: &mut Vec<u8>) {
        if self.form.stream {
            let content = if self.form.kind == Kind::Chat { r#""delta":{"content":""}"# } else { r#""text":"""# };
            let last = format!(r#"{content},"logprobs":null,"finish_reason":"{}"}}]"#, self.form.finish_reason);
            self.event(last.as_bytes(), out);
            if self.form.include_usage {
                self.piece(
                    format!("data: {{{},\"choices\":[],{}}}\n\n", self.identity(), self.usage()).as_bytes(),
                    out,
                );
            }
            self.piece(b"data: [DONE]\n\n", out);
        } else {
            self.piece(self.whole_closing().as_bytes(), out);
        }
        if self.chunked() {
            out.extend_from_slice(b"0\r\n\r\n");
        }
    }

    fn event(&self, choice: &[u8], out: &mut Vec<u8>) {
        let mut event = Vec::with_capacity(320);
        let null_usage = if self.form.include_usage { ",\"usage\":null" } else { "" };
        let _ = write!(event, "data: {{{},\"choices\":[{{\"index\":0,", self.identity());
        event.extend_from_slice(choice);
        let _ = write!(event, "{null_usage}}}\n\n");
        self.piece(&event, out);
    }

    /// Bytes of the body, framed.
    fn piece(&self, bytes: &[u8], out: &mut Vec<u8>) {
        if !self.chunked() {
            out.extend_from_slice(bytes);
        } else if !bytes.is_empty() {
            let _ = write!(out, "{:x}\r\n", bytes.len());
            out.extend_from_slice(bytes);
            out.extend_from_slice(b"\r\n");
        }
    }

    fn chunked(&self) -> bool {
        self.form.framing.map_or(self.form.stream, |framing| matches!(framing, Framing::Chunked | Framing::Both(_)))
    }

    fn identity(&self) -> String {
        let (prefix, object) = match (self.form.kind, self.form.stream) {
            (Kind::Chat, true) => ("chatcmpl", "chat.completion.chunk"),
            (Kind::Chat, false) => ("chatcmpl", "chat.completion"),
            _ => ("cmpl", "text_completion"),
        };
        let (engine, number, created, model) = (self.engine, self.number, self.created, &self.model);
        format!(r#""id":"{prefix}-{engine}-{number}","object":"{object}","created":{created},"model":"{model}""#,)
    }

    fn whole_opening(&self) -> String {
        let content = match self.form.kind {
            Kind::Chat => r#""message":{"role":"assistant","content":""#,
            _ => r#""text":""#,
        };
        format!(r#"{{{},"choices":[{{"index":0,{content}"#, self.identity())
    }

    fn whole_closing(&self) -> String {
        let end = if self.form.kind == Kind::Chat { r#""}"# } else { r#"""# };
        format!(r#"{end},"logprobs":null,"finish_reason":"{}"}}],{}}}"#, self.form.finish_reason, self.usage())
    }

    fn usage(&self) -> String {
        let (prompt, cached) = (self.prompt_tokens, self.cached_tokens);
        let total = prompt as u64 + self.tokens;
        format!(
            r#""usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{},"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#,
            self.tokens
        )
    }
}

/// Token `index` of the answer with this seed: three letters and a blank.
fn word(seed: u64, index: u64) -> [u8; TOKEN_BYTES] {
    const CONSONANTS: &[u8; 16] = b"bcdfghjklmnprstv";
    const VOWELS: &[u8; 4] = b"aeio";
    let mixed = (seed ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let pick = |shift: u64| (mixed >> shift) as usize;
    [CONSONANTS[pick(0) & 15], VOWELS[pick(4) & 3], CONSONANTS[pick(6) & 15], b' ']
}
