//! One GET to a backend over a connection of its own, bounded in time and size; and the lookup of its addresses.
//!
//! A connection of its own because a probe must prove that the backend accepts one.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::body::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONNECTION, HOST, USER_AGENT};
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
    tokio::time::timeout(target.timeout, exchange(target, path)).await.unwrap_or(Err(Failure::Timeout(target.timeout)))
}

async fn exchange(target: &Target, path: &str) -> Result<Answer, Failure> {
    let broken = |error: hyper::Error| Failure::Broken(error.to_string());
    let (stream, address) = connect(&target.addresses).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // Dropping the set, also when the time is up, ends the connection.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let answer = sender.send_request(request(target, path)?).await.map_err(broken)?;
    let status = answer.status().as_u16();
    let body = Limited::new(answer.into_body(), MAX_BODY_BYTES).collect().await;
    let body = body.map_err(|error| Failure::Broken(error.to_string()))?.to_bytes();
    Ok(Answer { status, body, address })
}

fn request(target: &Target, path: &str) -> Result<Request<Empty<Bytes>>, Failure> {
    let mut request = Request::get(format!("{}{path}", target.url.base_path))
        .header(HOST, target.url.authority())
        .header(USER_AGENT, AGENT)
        .header(CONNECTION, "close");
    if let Some(Secret(key)) = &target.key {
        request = request.header(AUTHORIZATION, format!("Bearer {key}"));
    }
    request.body(Empty::new()).map_err(|error| Failure::Broken(error.to_string()))
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
