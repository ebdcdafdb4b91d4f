//! An engine process and a raw client, for tests that look at bytes.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

pub(crate) struct Engine {
    process: Child,
    pub(crate) ports: Vec<u16>,
}

impl Engine {
    /// Starts one engine; `flags` are separated by blanks.
    pub(crate) fn start(flags: &str) -> Self {
        Self::start_many(1, flags)
    }

    pub(crate) fn start_many(count: usize, flags: &str) -> Self {
        Self::launch(count, "60", flags)
    }

    /// Starts one engine that stops by itself.
    pub(crate) fn start_for(seconds: &str) -> Self {
        Self::launch(1, seconds, "")
    }

    fn launch(count: usize, seconds: &str, flags: &str) -> Self {
        let ports = vec!["0"; count].join(",");
        let mut process = Command::new(env!("CARGO_BIN_EXE_trieway-loadtest"))
            .args(["engine", "--ports", &ports, "--die-with-parent", "--stop-after", seconds])
            .args(flags.split_whitespace())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let ports = lines.take(count).map(|line| line.unwrap().parse().unwrap()).collect();
        Self { process, ports }
    }

    pub(crate) fn port(&self) -> u16 {
        self.ports[0]
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.port())
    }

    /// One request on a connection of its own.
    pub(crate) fn get(&self, path: &str) -> Response {
        self.connect().exchange(&format!("GET {path} HTTP/1.1\r\nHost: e\r\n\r\n"))
    }

    pub(crate) fn post(&self, path: &str, fields: &str, body: &str) -> Response {
        self.connect().exchange(&post(path, fields, body))
    }

    pub(crate) fn journal(&self) -> serde_json::Value {
        serde_json::from_str(&self.get("/debug/requests").text()).unwrap()
    }

    /// The journal once it is as it should be, or after two seconds as it is.
    pub(crate) fn journal_when(&self, wanted: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        let deadline = std::time::Instant::now() + Duration::from_secs(2);
        loop {
            let journal = self.journal();
            if wanted(&journal) || std::time::Instant::now() > deadline {
                return journal;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn terminate(&mut self) -> ExitStatus {
        Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status().unwrap();
        self.wait()
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.process.wait().unwrap()
    }

    pub(crate) fn resident_kb(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A POST request's bytes; `fields` are whole lines.
pub(crate) fn post(path: &str, fields: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: e\r\nContent-Length: {}\r\n{fields}\r\n{body}", body.len())
}

/// A chat body with one user message; `extra` are more keys, each behind a comma.
pub(crate) fn chat_body(content: &str, max_tokens: u32, extra: &str) -> String {
    format!(r#"{{"messages":[{{"role":"user","content":"{content}"}}],"max_tokens":{max_tokens}{extra}}}"#)
}

pub(crate) fn chat(fields: &str, content: &str, extra: &str) -> String {
    post("/v1/chat/completions", fields, &chat_body(content, 8, extra))
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// The JSON events of a stream, without the [DONE] that must end it.
    pub(crate) fn events(&self) -> Vec<serde_json::Value> {
        let text = self.text();
        let mut events: Vec<&str> =
            text.split_terminator("\n\n").map(|line| line.strip_prefix("data: ").unwrap()).collect();
        assert_eq!(events.pop(), Some("[DONE]"));
        events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    kept: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, kept: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: &str) {
        self.stream.write_all(bytes.as_bytes()).unwrap();
    }

    pub(crate) fn exchange(&mut self, request: &str) -> Response {
        self.send(request);
        self.response().unwrap()
    }

    /// Everything until the end of the connection; Err: it ended with a reset, or not in time.
    pub(crate) fn rest(&mut self) -> std::io::Result<String> {
        let mut bytes = std::mem::take(&mut self.kept);
        self.stream.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(crate) fn head(&mut self) -> std::io::Result<String> {
        let end = self.until(|kept| find(kept, b"\r\n\r\n").map(|at| at + 4))?;
        Ok(String::from_utf8(self.kept.drain(..end).collect()).unwrap())
    }

    pub(crate) fn response(&mut self) -> std::io::Result<Response> {
        let head = self.head()?;
        let status = head[9..12].parse().unwrap();
        let mut response = Response { status, head, body: Vec::new() };
        if let Some(length) = response.field("content-length").map(|digits| digits.parse().unwrap()) {
            self.until(|kept| (kept.len() >= length).then_some(length))?;
            response.body = self.kept.drain(..length).collect();
        } else if response.field("transfer-encoding") == Some("chunked") {
            loop {
                let line = self.until(|kept| find(kept, b"\r\n").map(|at| at + 2))?;
                let digits: Vec<u8> = self.kept.drain(..line).collect();
                let size = usize::from_str_radix(std::str::from_utf8(&digits).unwrap().trim(), 16).unwrap();
                self.until(|kept| (kept.len() >= size + 2).then_some(0))?;
                response.body.extend(self.kept.drain(..size));
                self.kept.drain(..2);
                if size == 0 {
                    break;
                }
            }
        }
        Ok(response)
    }

    fn until(&mut self, found: impl Fn(&[u8]) -> Option<usize>) -> std::io::Result<usize> {
        loop {
            if let Some(at) = found(&self.kept) {
                return Ok(at);
            }
            let mut buffer = [0; 16 * 1024];
            match self.stream.read(&mut buffer)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                count => self.kept.extend_from_slice(&buffer[..count]),
            }
        }
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
