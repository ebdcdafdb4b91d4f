//! One GET after another, on a connection each: asked in HTTP/1.0, so that an answer ends with its connection.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};

use super::PATIENCE;
use super::scrape::Scrape;
use crate::config::TopOptions;

/// More than any router's `/metrics`.
const MAX_BYTES: u64 = 64 << 20;

/// Both pages as of now. The error is a sentence.
pub(super) fn scrape(options: &TopOptions) -> Result<Scrape, String> {
    Scrape::read(&get(options, "/engines")?, &get(options, "/metrics")?)
}

fn get(options: &TopOptions, path: &str) -> Result<String, String> {
    let fault = |error: std::io::Error| format!("{}{path}: {error}", options.url);
    let place = (options.url.host.as_str(), options.url.port);
    let address = place.to_socket_addrs().map_err(fault)?.next();
    let address = address.ok_or_else(|| format!("{} has no address", options.url.host))?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(fault)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(fault)?;
    let authorization = options.api_key.as_ref().map(|key| format!("Authorization: Bearer {}\r\n", key.expose()));
    let request = format!(
        "GET {}{path} HTTP/1.0\r\nHost: {}\r\n{}\r\n",
        options.url.base_path,
        options.url.authority(),
        authorization.unwrap_or_default()
    );
    stream.write_all(request.as_bytes()).map_err(fault)?;
    let mut answer = Vec::new();
    stream.take(MAX_BYTES).read_to_end(&mut answer).map_err(fault)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or_else(|| format!("{}{path}: no HTTP comes from there; is --url the router's?", options.url))?;
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        status => Err(format!("{}{path}: status {}", options.url, status.unwrap_or("missing"))),
    }
}
