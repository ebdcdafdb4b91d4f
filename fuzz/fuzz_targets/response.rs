//! A response's head and framing: the same under any split, and what is forwarded is framed as it was decided.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trieway::http::forward::{self, OutFraming, ResponseOut};
use trieway::http::framing::{self, ResponseBody};
use trieway::http::{Limits, Method, Name, ResponseHead, Version, parse_response};

fuzz_target!(|data: &[u8]| {
    let Some((&cut, input)) = data.split_first() else { return };
    let limits = Limits::default();
    let mut head = ResponseHead::new();
    let whole = parse_response(input, &limits, &mut head);
    let mut split_head = ResponseHead::new();
    let first = parse_response(&input[..usize::from(cut).min(input.len())], &limits, &mut split_head);
    let split = if first == Ok(None) { parse_response(input, &limits, &mut split_head) } else { first };
    assert_eq!(split, whole);
    let Ok(Some(length)) = whole else { return };
    assert_eq!(split_head, head);
    assert!(input[..length].ends_with(b"\r\n\r\n") && (100..600).contains(&head.status));
    for method in [Method::Get, Method::Head] {
        check_forwarded(input, &head, method);
    }
});

fn check_forwarded(input: &[u8], head: &ResponseHead, method: Method) {
    let Ok(decided) = framing::response(head, input, method) else { return };
    if decided.interim || decided.switching || head.fields.len() > 120 {
        return;
    }
    let out_framing = match decided.body {
        ResponseBody::None => OutFraming::None,
        ResponseBody::Fixed(length) => OutFraming::Fixed(length),
        ResponseBody::Chunked | ResponseBody::UntilClose => OutFraming::Chunked,
    };
    let how =
        ResponseOut { framing: out_framing, keep_alive: true, client_version: Version::Http11, request_id: b"id", date: b"", via: true };
    let mut out = Vec::new();
    forward::response(&mut out, head, input, &how);
    let mut again = ResponseHead::new();
    let limits = Limits { head_bytes: 128 << 10, ..Limits::default() };
    assert_eq!(parse_response(&out, &limits, &mut again), Ok(Some(out.len())));
    assert_eq!(again.status, head.status);
    let forwarded = framing::response(&again, &out, method).expect("a forwarded response is acceptable");
    let expected = if decided.body == ResponseBody::UntilClose { ResponseBody::Chunked } else { decided.body };
    assert_eq!((forwarded.body, forwarded.keep_alive), (expected, true));
    let count = |kind: Name| again.fields.iter().filter(|field| field.kind == kind).count();
    let gone = [Name::Connection, Name::KeepAlive, Name::Te, Name::Trailer, Name::Upgrade, Name::ProxyOther];
    assert!(gone.iter().all(|kind| count(*kind) == 0));
    assert_eq!(count(Name::RequestId), 1);
}
