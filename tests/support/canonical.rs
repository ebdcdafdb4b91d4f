//! What a backend may ever see: one canonical request after another. Reads the bytes of a whole connection with the naive
//! model of HTTP, which shares no code with the router.

#[path = "../http_model/mod.rs"]
pub(crate) mod http_model;

use http_model::Body;

/// Fields that are about one connection, or are the router's own business.
const NEVER_SENT: [&str; 8] = [
    "transfer-encoding",
    "keep-alive",
    "te",
    "trailer",
    "expect",
    "proxy-authorization",
    "proxy-connection",
    "proxy-x",
];

#[derive(Debug)]
pub struct Request {
    pub method: String,
    pub target: String,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn values(&self, name: &str) -> Vec<&str> {
        let named = self.fields.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str()).collect()
    }
}

/// The requests in `stream`, without probes and without a last one that is cut off.
///
/// # Panics
/// When there is anything that is not a canonical request to `authority`.
pub fn requests(stream: &[u8], authority: &str) -> Vec<Request> {
    let mut found = Vec::new();
    let mut rest = stream;
    while rest.windows(4).any(|w| w == b"\r\n\r\n") {
        let read = http_model::request(rest).unwrap_or_else(|| panic!("not a request: {}", rest.escape_ascii()));
        let body_length = match read.body {
            Body::None => 0,
            Body::Fixed(length) => length as usize,
            Body::Chunked => panic!("a chunked request: {}", rest.escape_ascii()),
        };
        let Some(body) = rest[read.length..].get(..body_length) else { break };
        let text = |bytes: &[u8]| bytes.iter().map(|&b| b as char).collect::<String>();
        let request = Request {
            method: text(&read.method),
            target: text(&read.path_and_query),
            fields: read.fields.iter().map(|(name, value)| (text(name), text(value))).collect(),
            body: body.to_vec(),
        };
        let is_probe = request.method == "GET"
            && ["/v1/models", "/health", "/metrics", "/is_sleeping"].contains(&&*request.target);
        if !is_probe {
            assert!(!rest.starts_with(b"\r\n"), "an empty line before a request: {}", rest.escape_ascii());
            check(&request, read.http_11 && read.keep_alive, authority);
            found.push(request);
        }
        rest = &rest[read.length + body_length..];
    }
    found
}

fn check(request: &Request, persistent: bool, authority: &str) {
    assert!(persistent, "a connection that is not kept: {request:?}");
    assert_eq!(request.values("host"), [authority], "{request:?}");
    assert_eq!(request.values("x-request-id").len(), 1, "{request:?}");
    assert_eq!(request.values("x-forwarded-for").len(), 1, "{request:?}");
    assert!(request.values("content-length").len() <= 1, "two lengths: {request:?}");
    for name in NEVER_SENT {
        assert!(request.values(name).is_empty(), "{name}: {request:?}");
    }
    let websocket = request.values("upgrade") == ["websocket"] && request.values("connection") == ["Upgrade"];
    let plain = request.values("upgrade").is_empty() && request.values("connection").is_empty();
    assert!(websocket || plain, "connection fields: {request:?}");
}
