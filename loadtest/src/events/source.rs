//! The source: an engine that streams what the prompt orders, and answers every probe.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use super::{DONE, Order, now_us};

#[derive(Args, Clone, Debug)]
pub struct Source {
    /// Port on loopback; 0 takes a free one
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// End when the process that started this one does
    #[arg(long)]
    die_with_parent: bool,
}

impl Source {
    pub(super) fn run(&self) -> Result<(), String> {
        if self.die_with_parent {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
                .map_err(|error| format!("--die-with-parent: {error}"))?;
        }
        let listener = TcpListener::bind(("127.0.0.1", self.port)).map_err(|error| format!("--port: {error}"))?;
        println!("{}", listener.local_addr().map_err(|error| error.to_string())?.port());
        serve(&listener);
        Ok(())
    }
}

/// Serves every connection that comes, for as long as the process lives.
pub(super) fn serve(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        // A connection that breaks ends its thread alone.
        thread::spawn(move || connection(stream));
    }
}

fn connection(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut out = stream.try_clone()?;
    let mut input = BufReader::new(stream);
    while let Some((line, body)) = request(&mut input)? {
        match Order::find(&body).filter(|_| line.starts_with("POST ")) {
            Some(order) => answer(&mut out, order)?,
            None => probe(&mut out, &line)?,
        }
    }
    Ok(())
}

/// The request line and the body; `None` at the connection's end.
fn request(input: &mut impl BufRead) -> io::Result<Option<(String, String)>> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut length = 0;
    loop {
        let mut field = String::new();
        input.read_line(&mut field)?;
        let Some((name, value)) = field.split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(io::ErrorKind::Unsupported.into());
        }
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body)?;
    Ok(Some((line, String::from_utf8_lossy(&body).into_owned())))
}

fn probe(out: &mut impl Write, line: &str) -> io::Result<()> {
    let body = match line.contains("/v1/models") {
        true => r#"{"object":"list","data":[{"id":"fake-llm","object":"model","owned_by":"vllm"}]}"#,
        false => "{}",
    };
    let length = body.len();
    write!(out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
}

/// The head leaves at once, as an engine's does; each event in a write of its own.
fn answer(out: &mut impl Write, order: Order) -> io::Result<()> {
    out.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n",
    )?;
    thread::sleep(Duration::from_micros(order.wait_us));
    let began = Instant::now();
    let mut chunk = Vec::with_capacity(512);
    for number in 0..order.events {
        let due = Duration::from_micros(order.gap_us * number);
        thread::sleep(due.saturating_sub(began.elapsed()));
        let event = format!(
            "data: {{\"id\":\"chatcmpl-0\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"fake-llm\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"sent_us={:016}\"}},\"finish_reason\":null}}]}}\n\n",
            now_us()
        );
        frame(&mut chunk, event.as_bytes());
        out.write_all(&chunk)?;
        if order.gap_us == 0 {
            // The other streams' turn: else each would send many events before anybody could read one.
            thread::yield_now();
        }
    }
    frame(&mut chunk, DONE);
    chunk.extend_from_slice(b"0\r\n\r\n");
    out.write_all(&chunk)
}

fn frame(chunk: &mut Vec<u8>, payload: &[u8]) {
    chunk.clear();
    chunk.extend_from_slice(format!("{:x}\r\n", payload.len()).as_bytes());
    chunk.extend_from_slice(payload);
    chunk.extend_from_slice(b"\r\n");
}
