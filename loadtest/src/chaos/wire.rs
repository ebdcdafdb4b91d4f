//! A client's side of a connection: bytes out, answers in, as slowly as asked for.
//!
//! Must not know: what an answer should be.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How a client reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) bytes: usize,
    pub(super) pause: Duration,
}

impl Pace {
    pub(super) const FAST: Pace = Pace { bytes: 64 * 1024, pause: Duration::ZERO };
}

pub(super) struct Wire {
    pub(super) stream: TcpStream,
    rest: Vec<u8>,
    /// Answers that came on this connection.
    pub(super) answers: u64,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: Vec<u8>,
    /// The body ended as its framing says.
    pub(super) complete: bool,
}

/// What came in place of an answer.
#[derive(Debug)]
pub(super) enum Ended {
    /// The connection ended, and not a byte had come.
    Silently,
    /// What came is no answer.
    Wrongly(String),
}

impl std::fmt::Display for Ended {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ended::Silently => out.write_str("the connection ended"),
            Ended::Wrongly(came) => write!(out, "what came is no answer: {came:?}"),
        }
    }
}

impl Answer {
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let named = |line: &&str| line.split_once(':').is_some_and(|(n, _)| n.eq_ignore_ascii_case(name));
        self.head.lines().skip(1).find(named).and_then(|line| line.split_once(':')).map(|(_, value)| value.trim())
    }

    /// Another request may follow on this connection.
    pub(super) fn keeps(&self) -> bool {
        self.complete && !self.field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }
}

impl Wire {
    pub(super) async fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Wire { stream, rest: Vec::new(), answers: 0 })
    }

    /// False: the peer takes no more.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }

    /// The next final answer, with its body.
    pub(super) async fn answer(&mut self, pace: Pace) -> Result<Answer, Ended> {
        loop {
            let answer = self.any_answer(pace).await?;
            if answer.status >= 200 {
                self.answers += 1;
                return Ok(answer);
            }
        }
    }

    /// What comes until the connection ends or nothing has come for `silence`, up to `most` bytes.
    pub(super) async fn rest_within(&mut self, silence: Duration, most: usize) -> Vec<u8> {
        while self.rest.len() < most
            && matches!(tokio::time::timeout(silence, self.read_some(Pace::FAST)).await, Ok(true))
        {}
        std::mem::take(&mut self.rest)
    }

    async fn any_answer(&mut self, pace: Pace) -> Result<Answer, Ended> {
        let end = loop {
            if let Some(end) = self.rest.windows(4).position(|w| w == b"\r\n\r\n") {
                break end + 4;
            }
            if !self.read_some(pace).await {
                let came = String::from_utf8_lossy(&self.rest).into_owned();
                return Err(if came.is_empty() { Ended::Silently } else { Ended::Wrongly(came) });
            }
        };
        let head: Vec<u8> = self.rest.drain(..end).collect();
        let head = String::from_utf8_lossy(&head[..end - 4]).into_owned();
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).and_then(|code| code.parse().ok());
        let Some(status) = status else { return Err(Ended::Wrongly(head)) };
        let mut answer = Answer { status, head, body: Vec::new(), complete: true };
        if status < 200 || status == 204 || status == 304 {
            return Ok(answer);
        }
        if answer.field("transfer-encoding").is_some() {
            answer.complete = self.chunked(&mut answer.body, pace).await?;
        } else if let Some(length) = answer.field("content-length").and_then(|length| length.parse().ok()) {
            answer.complete = self.fill(length, pace).await;
            answer.body = self.rest.drain(..self.rest.len().min(length)).collect();
        } else {
            while self.read_some(pace).await {}
            answer.body = std::mem::take(&mut self.rest);
        }
        Ok(answer)
    }

    async fn chunked(&mut self, body: &mut Vec<u8>, pace: Pace) -> Result<bool, Ended> {
        loop {
            let Some(end) = self.rest.windows(2).position(|w| w == b"\r\n") else {
                if self.read_some(pace).await {
                    continue;
                }
                return Ok(false);
            };
            let line = String::from_utf8_lossy(&self.rest[..end]).into_owned();
            let size = usize::from_str_radix(&line, 16).map_err(|_| Ended::Wrongly(format!("chunk size {line:?}")))?;
            if !self.fill(end + 2 + size + 2, pace).await {
                body.extend_from_slice(self.rest.get(end + 2..).unwrap_or_default());
                return Ok(false);
            }
            body.extend_from_slice(&self.rest[end + 2..end + 2 + size]);
            self.rest.drain(..end + 4 + size);
            if size == 0 {
                return Ok(true);
            }
        }
    }

    async fn fill(&mut self, length: usize, pace: Pace) -> bool {
        while self.rest.len() < length {
            if !self.read_some(pace).await {
                return false;
            }
        }
        true
    }

    async fn read_some(&mut self, pace: Pace) -> bool {
        if !pace.pause.is_zero() {
            tokio::time::sleep(pace.pause).await;
        }
        let from = self.rest.len();
        self.rest.resize(from + pace.bytes, 0);
        let read = self.stream.read(&mut self.rest[from..]).await.unwrap_or(0);
        self.rest.truncate(from + read);
        read > 0
    }
}
