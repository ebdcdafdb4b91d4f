//! The sink: streams in parallel for a time, and what their stamps say.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use super::{DIGITS, DONE, Order, STAMP, now_us};

#[derive(Args, Clone, Debug)]
pub struct Sink {
    /// Address of the proxy, HOST:PORT
    #[arg(long)]
    to: String,
    /// Streams at a time, each on a connection of its own that is kept
    #[arg(long, default_value_t = 32)]
    streams: u64,
    /// Microseconds from the request to the first event
    #[arg(long, default_value_t = 0)]
    wait_us: u64,
    /// Microseconds between events; 0: as fast as they are taken
    #[arg(long, default_value_t = 2000)]
    gap_us: u64,
    /// Events of a stream
    #[arg(long, default_value_t = 500)]
    events: u64,
    /// No stream begins later than this
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

/// A stream that says nothing for this long has failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a reader saw.
#[derive(Debug, Default)]
struct Seen {
    /// An event's way, µs.
    way_us: Vec<u64>,
    /// From sending a request to its first event, µs.
    first_us: Vec<u64>,
    failed: u64,
}

impl Sink {
    pub(super) fn run(&self) -> Result<(), String> {
        let began = Instant::now();
        let order = Order { wait_us: self.wait_us, gap_us: self.gap_us, events: self.events };
        let until = began + Duration::from_secs_f64(self.seconds);
        let readers: Vec<_> = (0..self.streams)
            .map(|number| {
                let to = self.to.clone();
                // Streams that begin together would send all their events together.
                let stagger = Duration::from_micros(self.gap_us * number / self.streams);
                thread::spawn(move || {
                    thread::sleep(stagger);
                    read_until(&to, order, until)
                })
            })
            .collect();
        let mut all = Seen::default();
        for reader in readers {
            let seen = reader.join().map_err(|_| "a reader panicked")?;
            all.way_us.extend(seen.way_us);
            all.first_us.extend(seen.first_us);
            all.failed += seen.failed;
        }
        println!(
            "RESULT requests={} us={} p50={} p99={} first={} failed={}",
            all.way_us.len(),
            began.elapsed().as_micros(),
            percentile(&mut all.way_us, 50),
            percentile(&mut all.way_us, 99),
            percentile(&mut all.first_us, 50),
            all.failed
        );
        Ok(())
    }
}

fn percentile(values: &mut [u64], percent: usize) -> u64 {
    values.sort_unstable();
    values.get(values.len() * percent / 100).or(values.last()).copied().unwrap_or(0)
}

fn read_until(to: &str, order: Order, until: Instant) -> Seen {
    let mut seen = Seen::default();
    let mut connection = None;
    while Instant::now() < until && seen.failed < 10 {
        let stream = match connection.take().map_or_else(|| connect(to), Ok) {
            Ok(stream) => stream,
            Err(_) => {
                seen.failed += 1;
                continue;
            }
        };
        match read_stream(stream, to, order, &mut seen) {
            Ok(stream) => connection = Some(stream),
            Err(_) => seen.failed += 1,
        }
    }
    seen
}

fn connect(to: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Asks for one stream and reads it to its end. The connection, for the next one.
///
/// # Errors
/// The connection ended or fell silent before the stream was complete, or the answer was none.
fn read_stream(mut stream: TcpStream, to: &str, order: Order, seen: &mut Seen) -> io::Result<TcpStream> {
    let body = order.body();
    let length = body.len();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {to}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    let sent = Instant::now();
    stream.write_all(request.as_bytes())?;
    let (mut answer, mut block, mut events) = (Answer::default(), [0; 65536], 0);
    loop {
        let count = stream.read(&mut block)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let now_us = now_us();
        answer.raw.extend_from_slice(&block[..count]);
        let complete = answer.unframe()?;
        while let Some(stamp_us) = answer.next_stamp() {
            if events == 0 {
                seen.first_us.push(sent.elapsed().as_micros() as u64);
            }
            events += 1;
            seen.way_us.push(now_us.saturating_sub(stamp_us));
        }
        if complete {
            let whole = events == order.events && answer.text.ends_with(DONE) && answer.raw.is_empty();
            return if whole { Ok(stream) } else { Err(io::ErrorKind::InvalidData.into()) };
        }
    }
}

/// An answer as far as it has come. A proxy may cut chunks wherever it likes.
#[derive(Debug, Default)]
struct Answer {
    /// As it came, without what has been taken off.
    raw: Vec<u8>,
    /// Its head has been taken off.
    begun: bool,
    /// The body, without what has been read off.
    text: Vec<u8>,
}

impl Answer {
    /// Moves whole chunks from `raw` to `text`. True: the last one was there.
    fn unframe(&mut self) -> io::Result<bool> {
        let mut used = 0;
        if !self.begun {
            let Some(end) = memchr::memmem::find(&self.raw, b"\r\n\r\n") else { return Ok(false) };
            let head = String::from_utf8_lossy(&self.raw[..end]).to_ascii_lowercase();
            if !head.contains(" 200 ") || !head.contains("transfer-encoding: chunked") {
                return Err(io::Error::other(format!("not a stream: {head}")));
            }
            self.begun = true;
            used = end + 4;
        }
        let complete = loop {
            let rest = &self.raw[used..];
            let Some(line) = memchr::memmem::find(rest, b"\r\n") else { break false };
            let digits = std::str::from_utf8(&rest[..line]).map_err(io::Error::other)?;
            let size = usize::from_str_radix(digits, 16).map_err(io::Error::other)?;
            let Some(payload) = rest.get(line + 2..line + 4 + size) else { break false };
            self.text.extend_from_slice(&payload[..size]);
            used += line + 4 + size;
            if size == 0 {
                break true;
            }
        };
        self.raw.drain(..used);
        Ok(complete)
    }

    fn next_stamp(&mut self) -> Option<u64> {
        let digits = memchr::memmem::find(&self.text, STAMP)? + STAMP.len();
        let stamp_us = std::str::from_utf8(self.text.get(digits..digits + DIGITS)?).ok()?.parse().ok()?;
        self.text.drain(..digits + DIGITS);
        Some(stamp_us)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_connection_carries_stream_after_stream_and_every_stamp_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap().to_string();
        thread::spawn(move || super::super::source::serve(&listener));
        let mut seen = Seen::default();
        let mut stream = connect(&to).unwrap();
        for (gap_us, events) in [(0, 3000), (1000, 20)] {
            stream = read_stream(stream, &to, Order { wait_us: 5000, gap_us, events }, &mut seen).unwrap();
        }
        assert_eq!((seen.way_us.len(), seen.first_us.len(), seen.failed), (3020, 2, 0));
        assert!(seen.first_us.iter().all(|first| (5_000..5_000_000).contains(first)), "{:?}", seen.first_us);
        assert!(seen.way_us.iter().all(|way| *way < 5_000_000));
    }

    #[test]
    fn a_stamp_that_is_cut_by_a_chunk_is_put_together() {
        let mut answer = Answer::default();
        let whole =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n12\r\nx sent_us=00000000\r\na\r\n00000042\"}\r\n0\r\n\r\n";
        for (at, byte) in whole.iter().enumerate() {
            answer.raw.push(*byte);
            assert_eq!(answer.unframe().unwrap(), at + 1 == whole.len());
        }
        assert_eq!((answer.next_stamp(), answer.next_stamp()), (Some(42), None));
        answer = Answer { raw: b"HTTP/1.1 502 Bad Gateway\r\n\r\n".to_vec(), ..Answer::default() };
        assert!(answer.unframe().is_err());
    }
}
