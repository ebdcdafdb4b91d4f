//! One request to a backend over a connection of its own, bounded in time and size; and the lookup of its addresses.
//!
//! A connection of its own because a probe must prove that the backend accepts one.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::body::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;

use crate::config::{BackendUrl, Secret};

/// The largest answer that is read: the metrics of a large engine are well below it.
const MAX_BODY_BYTES: usize = 8 << 20;
const AGENT: &str = concat!("trieway/", env!("CARGO_PKG_VERSION"));

/// Where and how a backend is asked.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) url: BackendUrl,
    /// In the order in which they are tried.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) key: Option<Secret>,
    /// For a whole request, the connect included.
    pub(super) timeout: Duration,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Bytes,
    /// The address that took the connection.
    pub(super) address: SocketAddr,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Failure {
    NoAddress,
    /// Nothing listens at any of its addresses.
    Refused,
    Connect(io::Error),
    Timeout(Duration),
    /// The connection broke, or what came is not HTTP.
    Broken(String),
}

impl Failure {
    pub(super) fn is_refused(&self) -> bool {
        matches!(self, Failure::Refused)
    }

    /// The time was up: it may be down, or only busy.
    pub(super) fn is_slow(&self) -> bool {
        matches!(self, Failure::Timeout(_))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::NoAddress => f.write_str("its name has no address"),
            Failure::Refused => f.write_str("connection refused"),
            Failure::Connect(error) => write!(f, "cannot connect: {error}"),
            Failure::Timeout(limit) => write!(f, "no answer within {limit:?}"),
            Failure::Broken(what) => write!(f, "broken answer: {what}"),
        }
    }
}

/// The answer to `GET {base}{path}`, whatever its status.
pub(super) async fn get(target: &Target, path: &str) -> Result<Answer, Failure> {
    ask(target, Method::GET, path, Bytes::new()).await
}

/// The answer to a request with this body, JSON if there is one, whatever its status.
pub(super) async fn ask(target: &Target, method: Method, path: &str, body: Bytes) -> Result<Answer, Failure> {
    let answer = tokio::time::timeout(target.timeout, exchange(target, request(target, method, path, body)?)).await;
    answer.unwrap_or(Err(Failure::Timeout(target.timeout)))
}

async fn exchange(target: &Target, request: Request<Full<Bytes>>) -> Result<Answer, Failure> {
    let broken = |error: hyper::Error| Failure::Broken(error.to_string());
    let (stream, address) = connect(&target.addresses).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // Dropping the set, also when the time is up, ends the connection.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let answer = sender.send_request(request).await.map_err(broken)?;
    let status = answer.status().as_u16();
    let body = Limited::new(answer.into_body(), MAX_BODY_BYTES).collect().await;
    let body = body.map_err(|error| Failure::Broken(error.to_string()))?.to_bytes();
    Ok(Answer { status, body, address })
}

fn request(target: &Target, method: Method, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, Failure> {
    let mut request = Request::builder()
        .method(method)
        .uri(format!("{}{path}", target.url.base_path))
        .header(HOST, target.url.authority())
        .header(USER_AGENT, AGENT)
        .header(CONNECTION, "close");
    if let Some(key) = &target.key {
        request = request.header(AUTHORIZATION, format!("Bearer {}", key.expose()));
    }
    if !body.is_empty() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    request.body(Full::new(body)).map_err(|error| Failure::Broken(error.to_string()))
}

/// A connection to the first address that takes one.
async fn connect(addresses: &[SocketAddr]) -> Result<(TcpStream, SocketAddr), Failure> {
    let mut failure = Failure::NoAddress;
    for &address in addresses {
        let error = match TcpStream::connect(address).await {
            Ok(stream) => return Ok((stream, address)),
            Err(error) => error,
        };
        failure = match (error.kind(), failure) {
            (io::ErrorKind::ConnectionRefused, Failure::NoAddress | Failure::Refused) => Failure::Refused,
            (io::ErrorKind::ConnectionRefused, other) => other,
            _ => Failure::Connect(error),
        };
    }
    Err(failure)
}

/// The addresses of a backend's host: IPv4 before IPv6, each kind sorted, so that the answer to the same records is the
/// same whatever order the name server gives.
pub(super) async fn resolve(url: &BackendUrl, timeout: Duration) -> Result<Vec<SocketAddr>, String> {
    if let Ok(ip) = url.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, url.port)]);
    }
    let found = match tokio::time::timeout(timeout, lookup_host((url.host.as_str(), url.port))).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => return Err(format!("cannot resolve '{}': {error}", url.host)),
        Err(_) => return Err(format!("cannot resolve '{}' within {timeout:?}", url.host)),
    };
    let mut addresses: Vec<_> = found.collect();
    addresses.sort_by_key(|address| (address.is_ipv6(), *address));
    addresses.dedup();
    if addresses.is_empty() { Err(format!("'{}' has no address", url.host)) } else { Ok(addresses) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv6Addr, TcpListener};

    use super::*;
    use crate::control::testing::Engine;

    /// A server that reads a request's first bytes from each connection and does this with it.
    fn server(mut answer: impl FnMut(std::net::TcpStream) + Send + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a client");
                let _ = stream.read(&mut [0; 1024]);
                answer(stream);
            }
        });
        address
    }

    /// Nothing listens there: the port was free a moment ago.
    fn refusing() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound")
    }

    fn target(addresses: Vec<SocketAddr>) -> Target {
        let url = BackendUrl::parse("http://engine:1/base").expect("valid");
        Target { url, addresses, key: None, timeout: Duration::from_millis(200) }
    }

    #[tokio::test]
    async fn the_first_address_that_takes_a_connection_answers() {
        let engine = Engine::start().await;
        let mut target = target(vec![refusing(), engine.address]);
        target.url.base_path.clear();
        let answer = get(&target, "/v1/models").await.expect("answers");
        assert_eq!((answer.status, answer.address), (200, engine.address));
        assert!(answer.body.starts_with(b"{\"data\""));
    }

    #[tokio::test]
    async fn the_base_path_and_the_host_are_those_of_the_url() {
        let address = server(|mut stream| {
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
        });
        assert_eq!(get(&target(vec![address]), "/health").await.expect("answers").status, 204);
        let request = request(&target(vec![]), Method::GET, "/health", Bytes::new()).expect("valid");
        assert_eq!(
            (request.uri().path(), &request.headers()[HOST]),
            ("/base/health", &"engine:1".parse().expect("valid"))
        );
    }

    #[tokio::test]
    async fn each_failure_has_its_name() {
        let mut open = Vec::new();
        let silent = server(move |stream| open.push(stream));
        let closing = server(drop);
        let endless = server(|mut stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
            while stream.write_all(&[b'x'; 65536]).is_ok() {}
        });
        let stalling = server(|mut stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab");
            std::thread::sleep(Duration::from_secs(1));
        });
        for (addresses, expected, refused) in [
            (vec![], "its name has no address", false),
            (vec![refusing(), refusing()], "connection refused", true),
            (vec![silent], "no answer within 200ms", false),
            (vec![stalling], "no answer within 200ms", false),
            (vec![closing], "broken answer", false),
        ] {
            let failure = get(&target(addresses), "/").await.expect_err(expected);
            assert!(failure.to_string().starts_with(expected), "{failure} and not {expected}");
            assert_eq!(failure.is_refused(), refused, "{failure}");
        }
        let patient = Target { timeout: Duration::from_secs(5), ..target(vec![endless]) };
        let failure = get(&patient, "/").await.expect_err("is cut");
        assert!(matches!(failure, Failure::Broken(_)), "{failure}");
    }

    #[tokio::test]
    async fn an_address_needs_no_lookup_and_names_list_ipv4_first() {
        let resolve = async |url: &str| resolve(&BackendUrl::parse(url).expect("valid"), Duration::from_secs(2)).await;
        assert_eq!(resolve("http://[::1]:9").await, Ok(vec![(Ipv6Addr::LOCALHOST, 9).into()]));
        let local = resolve("http://localhost:9").await.expect("every machine has it");
        assert!(local.is_sorted_by_key(SocketAddr::is_ipv6), "{local:?}");
    }
}
