//! A request's head and framing: the same under any split, the same as a naive second reading, and what is forwarded is
//! one canonical request.
#![no_main]

#[path = "../../tests/http_model/mod.rs"]
mod http_model;

use http_model::Body;
use libfuzzer_sys::fuzz_target;
use trieway::http::forward::{self, RequestOut};
use trieway::http::framing::{self, BodyLength, RequestFraming};
use trieway::http::{Limits, Name, RequestHead, Version, parse_request};

/// Shorter than every limit can bite at, so that the model needs none: 250 fields of 4 bytes, say.
const LONGEST: usize = 1_000;
const LIMITS: Limits =
    Limits { head_bytes: 64 << 10, fields: 256, target_bytes: 16 << 10, chunk_extension_bytes: 0, trailer_bytes: 0 };

fuzz_target!(|data: &[u8]| {
    let Some((&cut, input)) = data.split_first() else { return };
    if input.len() > LONGEST {
        return;
    }
    let mut head = RequestHead::new();
    let verdict = parse_request(input, &LIMITS, &mut head);
    check_split(input, usize::from(cut), &verdict, &head);
    let accepted = match verdict {
        Ok(Some(length)) => framing::request(&head, input).ok().map(|framing| (length, framing)),
        _ => None,
    };
    check_model(input, &head, accepted);
    if let Some((_, framing)) = accepted {
        check_forwarded(input, &head, framing);
    }
});

fn check_split(
    input: &[u8],
    cut: usize,
    whole: &Result<Option<usize>, trieway::http::Reject>,
    whole_head: &RequestHead,
) {
    let mut head = RequestHead::new();
    let first = parse_request(&input[..cut.min(input.len())], &LIMITS, &mut head);
    let verdict = if first == Ok(None) { parse_request(input, &LIMITS, &mut head) } else { first };
    assert_eq!(verdict, *whole);
    if matches!(whole, Ok(Some(_))) {
        assert_eq!(head, *whole_head);
    }
}

fn check_model(input: &[u8], head: &RequestHead, accepted: Option<(usize, RequestFraming)>) {
    let ours = accepted.map(|(length, framing)| http_model::Request {
        length,
        method: head.method_span.of(input).to_vec(),
        path_and_query: [
            if head.target.of(input).starts_with(b"?") { "/" } else { "" }.as_bytes(),
            head.target.of(input),
        ]
        .concat(),
        http_11: head.version == Version::Http11,
        fields: head.fields.iter().map(|f| (f.name.of(input).to_vec(), f.value.of(input).to_vec())).collect(),
        body: match framing.body {
            BodyLength::None => Body::None,
            BodyLength::Fixed(length) => Body::Fixed(length),
            BodyLength::Chunked => Body::Chunked,
        },
        keep_alive: framing.keep_alive,
    });
    assert_eq!(ours, http_model::request(input));
}

fn check_forwarded(input: &[u8], head: &RequestHead, framing: RequestFraming) {
    let how = RequestOut {
        authority: b"backend:1",
        base_path: b"/base",
        target: head.target.of(input),
        content_length: (framing.body != BodyLength::None).then_some(7),
        request_id: b"id",
        client_ip: b"::1",
        preserve_host: false,
        authorization: None,
        upgrade_websocket: framing.websocket,
        max_forwards: None,
        via: true,
    };
    let mut out = Vec::new();
    forward::request(&mut out, head, input, &how);
    // What is added may exceed the limits of a client's head.
    let limits = Limits { target_bytes: 32 << 10, ..LIMITS };
    let mut again = RequestHead::new();
    if head.fields.len() > 240 {
        return;
    }
    assert_eq!(parse_request(&out, &limits, &mut again), Ok(Some(out.len())));
    let forwarded = framing::request(&again, &out).expect("a forwarded request is acceptable");
    let expected = if how.content_length.is_some() { BodyLength::Fixed(7) } else { BodyLength::None };
    assert_eq!(forwarded.body, expected);
    assert!(forwarded.keep_alive && !forwarded.expect_continue && forwarded.websocket == framing.websocket);
    let count = |kind: Name| again.fields.iter().filter(|field| field.kind == kind).count();
    assert_eq!((count(Name::Host), count(Name::RequestId), count(Name::ForwardedFor)), (1, 1, 1));
    let hop_by_hop = [Name::TransferEncoding, Name::KeepAlive, Name::Te, Name::Trailer, Name::ProxyOther, Name::Expect];
    assert!(hop_by_hop.iter().all(|kind| count(*kind) == 0));
    let authorizations = head.fields.iter().filter(|field| field.kind == Name::Authorization).count();
    assert_eq!(count(Name::Authorization), authorizations);
}
