//! What the RFCs make of a vector: by the naive model of HTTP, which shares no code with the router.

use crate::support::canonical::http_model::{self, Body, Chunked, Head};

/// One request that must reach the backend, and what must reach it of its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarded {
    pub method: String,
    pub target: String,
    pub body: Vec<u8>,
    /// End to end, in their order; those that the router writes itself are left out.
    pub fields: Vec<(String, String)>,
}

/// What is to become of the bytes of a connection.
#[derive(Debug)]
pub struct Verdict {
    pub forwarded: Vec<Forwarded>,
    /// What stands behind them cannot become a request: it is to be answered with an error.
    pub refused: bool,
}

/// About one connection, or written by the router itself.
const NOT_COPIED: [&str; 17] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "via",
    "x-request-id",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "proxy-connection",
    "proxy-authorization",
    "max-forwards",
];

/// Fields that are copied: not those of the router, not those that `Connection` names.
pub fn end_to_end(fields: &[(String, String)]) -> Vec<(String, String)> {
    let named: Vec<String> = fields
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case("connection"))
        .flat_map(|(_, value)| value.split(',').map(|option| option.trim_matches([' ', '\t']).to_ascii_lowercase()))
        .collect();
    let copied = |name: &str| {
        let name = name.to_ascii_lowercase();
        !NOT_COPIED.contains(&name.as_str())
            && !name.starts_with("proxy-")
            && (!named.contains(&name) || name == "authorization")
    };
    fields.iter().filter(|(name, _)| copied(name)).cloned().collect()
}

/// The verdict on everything that comes on a connection.
pub fn requests(input: &[u8]) -> Verdict {
    let mut forwarded = Vec::new();
    let mut rest = input;
    loop {
        let Some(request) = http_model::request(rest) else {
            return Verdict { forwarded, refused: cannot_become_a_head(rest) };
        };
        rest = &rest[request.length..];
        let body = match request.body {
            Body::None => Some((Vec::new(), 0)),
            Body::Fixed(length) => usize::try_from(length).ok().and_then(|length| {
                let body = rest.get(..length)?;
                Some((body.to_vec(), length))
            }),
            Body::Chunked => match http_model::chunked(rest) {
                Chunked::Complete { payload, consumed } => Some((payload, consumed)),
                Chunked::Incomplete => None,
                Chunked::Invalid => return Verdict { forwarded, refused: true },
            },
        };
        let Some((body, length)) = body else { return Verdict { forwarded, refused: false } };
        rest = &rest[length..];
        let text = |bytes: &[u8]| bytes.iter().map(|&byte| byte as char).collect::<String>();
        let fields: Vec<_> = request.fields.iter().map(|(name, value)| (text(name), text(value))).collect();
        forwarded.push(Forwarded {
            method: text(&request.method),
            target: text(&request.path_and_query),
            body,
            fields: end_to_end(&fields),
        });
        if !request.keep_alive {
            return Verdict { forwarded, refused: false };
        }
    }
}

/// A blank line has come, and the model made no request of what stands before it.
fn cannot_become_a_head(rest: &[u8]) -> bool {
    let mut rest = rest;
    for _ in 0..4 {
        rest = rest.strip_prefix(b"\r\n").unwrap_or(rest);
    }
    rest.windows(4).any(|window| window == b"\r\n\r\n")
}

/// What is to become of a backend's bytes, after which its connection ends.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// The client gets this, whole.
    Whole { status: u16, body: Vec<u8> },
    /// The client gets an error of the router's, or sees that the answer broke off.
    Broken,
}

/// The verdict on an answer to a GET.
pub fn answer(bytes: &[u8]) -> Answer {
    let mut rest = bytes;
    loop {
        let Some(Head { status, body, length }) = http_model::response(rest) else { return Answer::Broken };
        rest = &rest[length..];
        if status == 101 {
            return Answer::Broken;
        }
        if status < 200 {
            continue;
        }
        let body = match body {
            _ if matches!(status, 204 | 304) => Some(Vec::new()),
            http_model::ResponseBody::Fixed(length) => {
                usize::try_from(length).ok().and_then(|length| rest.get(..length)).map(<[u8]>::to_vec)
            }
            http_model::ResponseBody::UntilClose => Some(rest.to_vec()),
            http_model::ResponseBody::Chunked => match http_model::chunked(rest) {
                Chunked::Complete { payload, .. } => Some(payload),
                Chunked::Incomplete | Chunked::Invalid => None,
            },
        };
        return body.map_or(Answer::Broken, |body| Answer::Whole { status, body });
    }
}
