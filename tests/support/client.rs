//! A raw HTTP client: sends the bytes it is given, reads responses as they stand on the wire.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use super::PATIENCE;

pub struct Client {
    pub stream: TcpStream,
    /// Read and not used.
    rest: Vec<u8>,
}

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// The head as it came, without the empty line.
    pub head: String,
    pub body: Vec<u8>,
    /// The body ended as its framing says.
    pub complete: bool,
}

impl Response {
    /// The first field of this name.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .skip(1)
            .find_map(|line| line.split_once(':').filter(|(n, _)| n.eq_ignore_ascii_case(name)))
            .map(|(_, v)| v.trim())
    }

    pub fn body_text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {} {}", self.head, self.body_text()))
    }

    /// `error.code` of an error in OpenAI's shape.
    pub fn error_code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("connects");
        stream.set_nodelay(true).expect("option");
        stream.set_read_timeout(Some(PATIENCE)).expect("option");
        stream.set_write_timeout(Some(PATIENCE)).expect("option");
        Client { stream, rest: Vec::new() }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.stream.write_all(bytes.as_ref()).expect("sends");
        self
    }

    /// Sends what the peer takes; an error is not one of the test's.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    pub fn get(&mut self, path: &str) -> Response {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n")).response()
    }

    pub fn post(&mut self, path: &str, body: &str) -> Response {
        self.send_post(path, body, "").response()
    }

    /// Sends a JSON request; `fields` are more field lines, each with its line end.
    pub fn send_post(&mut self, path: &str, body: &str, fields: &str) -> &mut Self {
        let length = body.len();
        self.send(format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n{fields}Content-Length: {length}\r\n\r\n{body}"))
    }

    /// Sends the pieces one by one, far enough apart to be read one by one.
    pub fn send_in_pieces<'a>(&mut self, pieces: impl IntoIterator<Item = &'a [u8]>) -> &mut Self {
        for piece in pieces {
            self.try_send(piece);
            std::thread::sleep(super::APART);
        }
        self
    }

    /// Leaves by a reset.
    pub fn reset(self) {
        super::reset_on_close(&self.stream);
    }

    /// Whether the connection is still open and silent after a moment.
    pub fn stays_open(&mut self) -> bool {
        self.stream.set_read_timeout(Some(super::MOMENT)).expect("option");
        let quiet = matches!(self.stream.peek(&mut [0; 1]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock);
        self.stream.set_read_timeout(Some(PATIENCE)).expect("option");
        quiet && self.rest.is_empty()
    }

    pub fn half_close(&mut self) {
        self.stream.shutdown(Shutdown::Write).expect("shuts down");
    }

    /// Reads one final response, with its body.
    pub fn response(&mut self) -> Response {
        loop {
            let response = self.response_to("POST");
            if response.status >= 200 || response.status == 101 {
                return response;
            }
        }
    }

    /// The status of the next response; `None` when the connection ends instead.
    pub fn try_response_status(&mut self) -> Option<u16> {
        let more = self.rest.len() >= 4 || self.read_some();
        more.then(|| self.response().status)
    }

    /// Reads one response, interim or final, to a request of this method.
    pub fn response_to(&mut self, method: &str) -> Response {
        let (status, head) = self.head();
        let mut response = Response { status, head, body: Vec::new(), complete: true };
        if method == "HEAD" || status < 200 || status == 204 || status == 304 {
            return response;
        }
        if response.field("transfer-encoding").is_some_and(|v| v.eq_ignore_ascii_case("chunked")) {
            response.complete = self.chunked(&mut response.body);
        } else if let Some(length) = response.field("content-length").map(|v| v.parse::<usize>().expect("a length")) {
            response.complete = self.fill(length);
            let take = length.min(self.rest.len());
            response.body = self.rest.drain(..take).collect();
        } else {
            response.body = self.read_to_end();
        }
        response
    }

    /// Reads a response's head: its status and its text.
    pub fn head(&mut self) -> (u16, String) {
        let end = loop {
            if let Some(end) = self.rest.windows(4).position(|w| w == b"\r\n\r\n") {
                break end;
            }
            assert!(self.read_some(), "the connection ended within a head: {:?}", String::from_utf8_lossy(&self.rest));
        };
        let head: Vec<u8> = self.rest.drain(..end + 4).collect();
        let head = String::from_utf8(head[..end].to_vec()).expect("ASCII");
        let status =
            head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("no status: {head:?}"));
        (status, head)
    }

    /// What has come of an answer when its first bytes are there; nothing when the connection ended without any.
    pub fn read_some_head(&mut self) -> Vec<u8> {
        while self.rest.len() < 16 && self.read_some() {}
        std::mem::take(&mut self.rest)
    }

    /// The payload of the next chunk.
    pub fn next_chunk(&mut self) -> Vec<u8> {
        let line = self.until(b"\r\n");
        let line = String::from_utf8(line[..line.len() - 2].to_vec()).expect("ASCII");
        let size = usize::from_str_radix(&line, 16).unwrap_or_else(|_| panic!("not a chunk size: {line:?}"));
        assert!(self.fill(size + 2), "the connection ended within a chunk");
        let chunk = self.rest.drain(..size).collect();
        assert_eq!(self.rest.drain(..2).collect::<Vec<_>>(), b"\r\n");
        chunk
    }

    /// The rest of a chunked answer, as it stands on the wire.
    pub fn response_rest(&mut self) -> Vec<u8> {
        self.until(b"0\r\n\r\n")
    }

    /// Bytes up to and with `end`.
    pub fn until(&mut self, end: &[u8]) -> Vec<u8> {
        loop {
            if let Some(at) = self.rest.windows(end.len()).position(|w| w == end) {
                return self.rest.drain(..at + end.len()).collect();
            }
            assert!(
                self.read_some(),
                "the connection ended before {:?}: {:?}",
                String::from_utf8_lossy(end),
                String::from_utf8_lossy(&self.rest)
            );
        }
    }

    /// Everything until the connection ends, by FIN or by reset.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        while self.read_some() {}
        std::mem::take(&mut self.rest)
    }

    /// The same, or until nothing has come for `limit`.
    pub fn read_to_end_within(&mut self, limit: std::time::Duration) -> Vec<u8> {
        self.stream.set_read_timeout(Some(limit)).expect("option");
        let mut bytes = [0; 4096];
        while let Ok(n) = self.stream.read(&mut bytes)
            && n > 0
        {
            self.rest.extend_from_slice(&bytes[..n]);
        }
        self.stream.set_read_timeout(Some(PATIENCE)).expect("option");
        std::mem::take(&mut self.rest)
    }

    /// What was read behind a head and is not used yet.
    pub fn read_buffered(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.rest)
    }

    /// Whether the peer has ended the connection and sent nothing more.
    pub fn ends_silently(&mut self) -> bool {
        self.read_to_end().is_empty()
    }

    fn chunked(&mut self, body: &mut Vec<u8>) -> bool {
        loop {
            let Some(end) = self.rest.windows(2).position(|w| w == b"\r\n") else {
                if self.read_some() {
                    continue;
                }
                return false;
            };
            let line = String::from_utf8(self.rest[..end].to_vec()).expect("ASCII");
            let size = usize::from_str_radix(&line, 16).unwrap_or_else(|_| panic!("not a chunk size: {line:?}"));
            if !self.fill(end + 2 + size + 2) {
                body.extend_from_slice(&self.rest[end + 2..(end + 2 + size).min(self.rest.len())]);
                return false;
            }
            body.extend_from_slice(&self.rest[end + 2..end + 2 + size]);
            assert_eq!(&self.rest[end + 2 + size..end + 4 + size], b"\r\n", "a chunk's end");
            self.rest.drain(..end + 4 + size);
            if size == 0 {
                return true;
            }
        }
    }

    fn fill(&mut self, length: usize) -> bool {
        while self.rest.len() < length {
            if !self.read_some() {
                return false;
            }
        }
        true
    }

    fn read_some(&mut self) -> bool {
        let mut bytes = [0; 65536];
        match self.stream.read(&mut bytes) {
            Ok(0) => false,
            Ok(n) => {
                self.rest.extend_from_slice(&bytes[..n]);
                true
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("nothing came within {PATIENCE:?}; so far {:?}", String::from_utf8_lossy(&self.rest))
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => self.read_some(),
            Err(_) => false,
        }
    }
}
