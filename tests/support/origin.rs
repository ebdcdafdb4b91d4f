//! A scripted backend: answers probes by itself, records every other request as it stood on the wire, and answers it by
//! the test's handler.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::canonical;

/// One request as the backend got it.
#[derive(Clone, Debug)]
pub struct Received {
    /// The head as it came, without the empty line.
    pub head: String,
    pub body: Vec<u8>,
    /// Number of the connection on which it came, from 0 on.
    pub connection: usize,
}

impl Received {
    /// All fields of this name.
    pub fn fields(&self, name: &str) -> Vec<&str> {
        let named = |line: &&str| line.split_once(':').is_some_and(|(n, _)| n.eq_ignore_ascii_case(name));
        self.head.lines().skip(1).filter(named).map(|line| line.split_once(':').expect("a field").1.trim()).collect()
    }

    pub fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }
}

/// The connection on which a handler answers.
pub struct Peer {
    pub stream: TcpStream,
    connection: usize,
    shared: Arc<Shared>,
}

struct Shared {
    received: Mutex<Vec<Received>>,
    /// Everything that came, a connection an entry.
    streams: Mutex<Vec<Vec<u8>>>,
    /// Every connection, to be cut when the process is killed.
    open: Mutex<HashMap<usize, TcpStream>>,
    /// When a client's end was seen while a handler watched for it.
    gone: Mutex<Vec<Instant>>,
    stop: AtomicBool,
    /// Requests are taken and nothing is answered, probes included.
    frozen: AtomicBool,
    /// What `/is_sleeping` says; `None`: there is no such path.
    sleeping: Mutex<Option<bool>>,
    metrics: Mutex<String>,
}

pub struct Origin {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

/// An ordinary answer.
pub fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

impl Peer {
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    /// Everything that has been read of this connection so far.
    pub fn came(&self) -> Vec<u8> {
        self.shared.streams.lock().expect("streams")[self.connection].clone()
    }

    /// Whether a moment passes without a byte of the router's.
    pub fn is_quiet(&self) -> bool {
        let _ = self.stream.set_read_timeout(Some(super::MOMENT));
        let quiet = matches!(self.stream.peek(&mut [0; 1]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock);
        let _ = self.stream.set_read_timeout(None);
        quiet
    }

    /// Sends the pieces one by one, far enough apart to be read one by one.
    pub fn send_in_pieces<'a>(&mut self, pieces: impl IntoIterator<Item = &'a [u8]>) -> bool {
        pieces.into_iter().all(|piece| {
            let sent = self.send(piece);
            std::thread::sleep(super::APART);
            sent
        })
    }

    /// Waits until the router ends the connection, and notes when.
    pub fn wait_for_end(&mut self) {
        let mut bytes = [0; 4096];
        while matches!(self.stream.read(&mut bytes), Ok(n) if n > 0) {}
        self.shared.gone.lock().expect("gone").push(Instant::now());
    }

    /// Ends as a process does that dies of this request: connecting is refused once this returns, and every connection ends.
    /// Returns false, so that a handler can end with it.
    pub fn die(&mut self) -> bool {
        self.shared.stop.store(true, Ordering::SeqCst);
        let address = self.stream.local_addr().expect("an address");
        // The listener's thread looks whether it is to stop once a connection has come.
        super::eventually("it refuses", || TcpStream::connect(address).is_err());
        for (_, stream) in self.shared.open.lock().expect("open").drain() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        false
    }

    /// Makes the connection's end a reset. Returns false, so that a handler can end with it.
    pub fn reset(&mut self) -> bool {
        super::reset_on_close(&self.stream);
        false
    }
}

impl Origin {
    /// A backend for the model `m` that answers every request with 200 and `{}`.
    pub fn plain() -> Self {
        Self::start(&["m"], |peer, _| peer.send(ok("{}")))
    }

    /// `handler` answers a request; false ends the connection.
    pub fn start(models: &[&str], handler: impl Fn(&mut Peer, &Received) -> bool + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        // The library's backlog is too short for tests that send hundreds of requests at once.
        socket2::SockRef::from(&listener).listen(2048).expect("a longer backlog");
        Self::on(listener, models, handler)
    }

    /// The same at an address that was in use before: a backend that comes back.
    pub fn start_at(
        address: SocketAddr,
        models: &[&str],
        handler: impl Fn(&mut Peer, &Received) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self::on(TcpListener::bind(address).expect("binds again"), models, handler)
    }

    fn on(
        listener: TcpListener,
        models: &[&str],
        handler: impl Fn(&mut Peer, &Received) -> bool + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().expect("address");
        let shared = Arc::new(Shared {
            received: Mutex::default(),
            streams: Mutex::default(),
            open: Mutex::default(),
            gone: Mutex::default(),
            stop: AtomicBool::new(false),
            frozen: AtomicBool::new(false),
            sleeping: Mutex::default(),
            metrics: Mutex::default(),
        });
        let list: Vec<_> = models.iter().map(|m| serde_json::json!({"id": m, "object": "model"})).collect();
        let models = ok(&serde_json::json!({"object": "list", "data": list}).to_string());
        let handler = Arc::new(handler);
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for (connection, stream) in listener.incoming().enumerate() {
                if accepting.stop.load(Ordering::SeqCst) {
                    return;
                }
                accepting.streams.lock().expect("streams").push(Vec::new());
                let Ok(stream) = stream else { continue };
                let (shared, models, handler) = (Arc::clone(&accepting), models.clone(), Arc::clone(&handler));
                std::thread::spawn(move || {
                    let _open = Open::new(&shared, connection, &stream);
                    serve(Peer { stream, connection, shared: Arc::clone(&shared) }, connection, &models, &*handler);
                });
            }
        });
        Origin { address, shared }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What has been received so far, without probes.
    pub fn received(&self) -> Vec<Received> {
        self.shared.received.lock().expect("received").clone()
    }

    pub fn count(&self) -> usize {
        self.shared.received.lock().expect("received").len()
    }

    /// Forgets what has been received. Call it while nothing is being sent.
    pub fn forget(&self) {
        self.shared.received.lock().expect("received").clear();
        self.shared.streams.lock().expect("streams").iter_mut().for_each(Vec::clear);
    }

    /// Ends as a killed process does: it refuses connections, and those that it had are reset.
    pub fn kill(self) -> SocketAddr {
        let (address, shared) = (self.address, Arc::clone(&self.shared));
        // Its listener is closed once its thread has noticed.
        drop(self);
        super::eventually("it refuses", || TcpStream::connect(address).is_err());
        for (_, stream) in shared.open.lock().expect("open").drain() {
            super::reset_on_close(&stream);
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        address
    }

    /// Answers nothing any more, not even probes, until it is thawed.
    pub fn freeze(&self, frozen: bool) {
        self.shared.frozen.store(frozen, Ordering::SeqCst);
    }

    /// What it says at /metrics from now on.
    pub fn say_metrics(&self, text: &str) {
        text.clone_into(&mut self.shared.metrics.lock().expect("metrics"));
    }

    /// From here on it has the path `/is_sleeping`, and says this there.
    pub fn say_sleeping(&self, sleeping: bool) {
        *self.shared.sleeping.lock().expect("state") = Some(sleeping);
    }

    /// Every request that came, read once more from the connections' bytes by a reader of its own. Requests that were cut
    /// off by the router are left out, and so are probes.
    ///
    /// # Panics
    /// When what came on a connection is anything else than one canonical request after another.
    pub fn canonical(&self) -> Vec<canonical::Request> {
        let streams = self.shared.streams.lock().expect("streams");
        streams.iter().flat_map(|stream| canonical::requests(stream, &self.address.to_string())).collect()
    }

    pub fn gone(&self) -> Vec<Instant> {
        self.shared.gone.lock().expect("gone").clone()
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_millis(200));
    }
}

/// Keeps a second hold on a connection while it is served, by which it can be cut.
struct Open(Arc<Shared>, usize);

impl Open {
    fn new(shared: &Arc<Shared>, connection: usize, stream: &TcpStream) -> Self {
        shared.open.lock().expect("open").extend(stream.try_clone().map(|stream| (connection, stream)));
        Open(Arc::clone(shared), connection)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.lock().expect("open").remove(&self.1);
    }
}

fn serve(mut peer: Peer, connection: usize, models: &str, handler: &dyn Fn(&mut Peer, &Received) -> bool) {
    let _ = peer.stream.set_nodelay(true);
    let mut rest = Vec::new();
    let shared = Arc::clone(&peer.shared);
    let record = |bytes: &[u8]| shared.streams.lock().expect("streams")[connection].extend_from_slice(bytes);
    while let Some(received) = read(&mut peer.stream, &mut rest, connection, &record) {
        let stopped = || shared.stop.load(Ordering::SeqCst);
        while shared.frozen.load(Ordering::SeqCst) && !stopped() {
            std::thread::sleep(Duration::from_millis(10));
        }
        if stopped() {
            return;
        }
        let probe = ["GET /v1/models ", "GET /health ", "GET /metrics ", "GET /is_sleeping "]
            .iter()
            .position(|line| received.head.starts_with(line));
        let go_on = match probe {
            Some(0) => peer.send(models),
            Some(2) => peer.send(ok(&shared.metrics.lock().expect("metrics"))),
            Some(3) => peer.send(sleep_answer(*shared.sleeping.lock().expect("state"))),
            Some(_) => peer.send(ok("")),
            None => {
                peer.shared.received.lock().expect("received").push(received.clone());
                handler(&mut peer, &received)
            }
        };
        if !go_on {
            return;
        }
    }
}

fn sleep_answer(sleeping: Option<bool>) -> String {
    match sleeping {
        Some(sleeping) => ok(&format!("{{\"is_sleeping\":{sleeping}}}")),
        None => "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned(),
    }
}

/// Reads one request; it must have at most one `Content-Length` and no other framing.
fn read(stream: &mut TcpStream, rest: &mut Vec<u8>, connection: usize, record: &dyn Fn(&[u8])) -> Option<Received> {
    let mut bytes = [0; 65536];
    let mut more = |rest: &mut Vec<u8>| match stream.read(&mut bytes) {
        Ok(n) if n > 0 => {
            rest.extend_from_slice(&bytes[..n]);
            record(&bytes[..n]);
            true
        }
        _ => false,
    };
    let end = loop {
        match rest.windows(4).position(|w| w == b"\r\n\r\n") {
            Some(end) => break end,
            None if more(rest) => {}
            None => return None,
        }
    };
    let head = String::from_utf8_lossy(&rest[..end]).into_owned();
    let mut received = Received { head, body: Vec::new(), connection };
    assert!(received.fields("transfer-encoding").is_empty(), "a request with a transfer encoding: {}", received.head);
    let lengths = received.fields("content-length");
    assert!(lengths.len() <= 1, "two lengths: {}", received.head);
    let length: usize = lengths.first().map_or(0, |l| l.parse().expect("digits"));
    while rest.len() < end + 4 + length {
        if !more(rest) {
            return None;
        }
    }
    received.body = rest[end + 4..end + 4 + length].to_vec();
    rest.drain(..end + 4 + length);
    Some(received)
}
