//! A whole connection: the input is what a client sends, to a real worker in this process, with an origin behind it that
//! records what it gets. That must be exactly the requests that the naive model accepts, in order, one canonical request
//! each, by the model of what a backend may see; and each must be answered, in order.
#![no_main]

#[path = "../../tests/connection_model/mod.rs"]
mod connection_model;
#[path = "../../tests/support/canonical.rs"]
#[allow(dead_code, reason = "a test reads more of a request")]
mod canonical;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use canonical::http_model;
use connection_model::{Expected, expected};
use libfuzzer_sys::fuzz_target;
use trieway::config;
use trieway::control::Control;
use trieway::data;
use trieway::shared::Shared;
use trieway::trie::{self, Trie};

/// Below the limits that the model does not have.
const LONGEST: usize = 1_000;

/// Requests as the origin read them, all connections together: inputs run one after the other.
static RECEIVED: Mutex<Vec<Expected>> = Mutex::new(Vec::new());

fuzz_target!(|input: &[u8]| {
    if input.len() > LONGEST {
        return;
    }
    static ROUTER: OnceLock<SocketAddr> = OnceLock::new();
    let address = *ROUTER.get_or_init(start);
    let wanted = expected(input);
    // Paths that the router answers itself, or reads the body of, are other targets' business.
    if wanted.iter().any(|request| answered_otherwise(&request.target)) {
        return;
    }
    RECEIVED.lock().expect("received").clear();
    let answers = talk(address, input, wanted.len());
    assert_eq!(*RECEIVED.lock().expect("received"), wanted, "{}", input.escape_ascii());
    assert_eq!(answers, wanted.len(), "answers to {}", input.escape_ascii());
});

fn answered_otherwise(target: &str) -> bool {
    let path = target.split('?').next().unwrap_or_default();
    path.starts_with("/v1") || path.starts_with("/v2") || path.len() > 4 || path.starts_with("/base")
}

/// Sends the input and counts the origin's answers, until the connection ends.
fn talk(address: SocketAddr, input: &[u8], wanted: usize) -> usize {
    let mut stream = TcpStream::connect(address).expect("connects");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("option");
    let _ = stream.write_all(input);
    let mut text = Vec::new();
    let count = |text: &[u8]| text.windows(ANSWER_MARK.len()).filter(|w| *w == ANSWER_MARK).count();
    let mut bytes = [0; 16384];
    while count(&text) < wanted {
        match stream.read(&mut bytes) {
            Ok(n @ 1..) => text.extend_from_slice(&bytes[..n]),
            Ok(_) => return count(&text),
            Err(error) => panic!("no answer ({error}) to {}", input.escape_ascii()),
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut text);
    count(&text)
}

const ANSWER_MARK: &[u8] = b"X-Origin-Answer: 1\r\n";

fn start() -> SocketAddr {
    let origin = TcpListener::bind("127.0.0.1:0").expect("binds");
    let backend = format!("http://{}", origin.local_addr().expect("address"));
    std::thread::spawn(move || {
        for stream in origin.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
    let flags = format!(
        "trieway --host 127.0.0.1 --port {port} --workers 1 --io epoll --prefix-memory 16MiB --static-models m \
         --no-static-backend-health-checks --engine-stats-interval 86400 --static-backends {backend}"
    );
    let args: Vec<String> = flags.split_whitespace().map(str::to_owned).collect();
    let config = config::from_args(&args).unwrap_or_else(|_| panic!("flags are valid"));
    let (driver, _) = data::pick(config.io, config.workers).expect("epoll");
    let options = trie::Options { memory_bytes: config.routing.prefix_memory_bytes, slots: config::MAX_BACKENDS };
    let trie = Trie::new(&options).expect("a trie");
    let listeners = data::listen(&config.listen, config.workers).expect("listens");
    let (control, socket) = Control::bind().expect("a socket");
    let shared: &'static Shared = Box::leak(Box::new(Shared::new(config, trie, socket, driver.as_str())));
    data::start(shared, listeners, driver).expect("a worker");
    std::thread::spawn(move || control.run(shared));
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    // Its backends become known within a moment.
    while !is_ready(address) {
        std::thread::sleep(Duration::from_millis(20));
    }
    address
}

fn is_ready(address: SocketAddr) -> bool {
    let mut text = String::new();
    let asked = TcpStream::connect(address).and_then(|mut stream| {
        stream.write_all(b"GET /r HTTP/1.0\r\n\r\n")?;
        stream.read_to_string(&mut text)
    });
    asked.is_ok() && text.starts_with("HTTP/1.1 200")
}

/// Answers each request; records those that are not the control plane's.
fn serve(mut stream: TcpStream) {
    let authority = stream.local_addr().map(|address| address.to_string()).unwrap_or_default();
    let mut rest = Vec::new();
    let mut bytes = [0; 16384];
    while let Ok(n @ 1..) = stream.read(&mut bytes) {
        rest.extend_from_slice(&bytes[..n]);
        while let Some((request, length)) = whole(&rest) {
            let bytes: Vec<u8> = rest.drain(..length).collect();
            // Panics, and so ends the process, at whatever a backend may never see.
            canonical::requests(&bytes, &authority);
            let head_only = request.method == "HEAD";
            if !["/v1/models", "/health", "/metrics"].contains(&request.target.as_str()) {
                RECEIVED.lock().expect("received").push(request);
            }
            let body = if head_only { "" } else { "{}" };
            let answer = format!("HTTP/1.1 200 OK\r\nX-Origin-Answer: 1\r\nContent-Length: 2\r\n\r\n{body}");
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}

/// The first request and its length; a head that the model refuses, or one in chunks, is a fault of the router.
fn whole(bytes: &[u8]) -> Option<(Expected, usize)> {
    bytes.windows(4).position(|w| w == b"\r\n\r\n")?;
    let Some(head) = http_model::request(bytes) else {
        eprintln!("not a canonical request: {}", bytes.escape_ascii());
        std::process::abort();
    };
    let body_length = match head.body {
        http_model::Body::None => 0,
        http_model::Body::Fixed(length) => length as usize,
        http_model::Body::Chunked => std::process::abort(),
    };
    let body = bytes.get(head.length..head.length + body_length)?.to_vec();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some((Expected { method: text(&head.method), target: text(&head.path_and_query), body }, head.length + body_length))
}
