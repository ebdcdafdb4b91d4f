//! The router's own answers: exact heads, valid JSON.

#![allow(clippy::unwrap_used, reason = "helpers of tests, too, may fail by a panic")]

use trieway::http::reply::{self, Reply};
use trieway::http::{ChunkError, Limits, Reject, ResponseHead, Version, parse_response};

const REPLY: Reply<'_> = Reply {
    status: 404,
    kind: "invalid_request_error",
    code: "model_not_found",
    message: "no model",
    request_id: b"id-1",
    date: b"Sun, 06 Nov 1994 08:49:37 GMT",
    retry_after_s: None,
    keep_alive: true,
    head_only: false,
    version: Version::Http11,
};

fn written(reply: &Reply<'_>) -> String {
    let mut out = Vec::new();
    reply::error(&mut out, reply);
    String::from_utf8(out).unwrap()
}

#[test]
fn an_error_is_json_in_the_shape_of_openai() {
    let expected = "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 88\r\nX-Request-Id: id-1\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n\
                    {\"error\":{\"message\":\"no model\",\"type\":\"invalid_request_error\",\"code\":\"model_not_found\"}}";
    assert_eq!(written(&REPLY), expected);
}

#[test]
fn any_message_is_valid_json_of_the_announced_length() {
    for message in [
        "",
        "plain",
        "\"quoted\\\"",
        "a\r\nX: y\0\u{1f}\u{7f}\t",
        "\u{e9}\u{1f600}\u{2028}",
        "</script>",
        "ends with \\",
    ] {
        let text = written(&Reply { message, kind: message, code: message, ..REPLY });
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let value: serde_json::Value = serde_json::from_str(body).unwrap();
        for key in ["message", "type", "code"] {
            assert_eq!(value["error"][key], message);
        }
        assert!(!body.bytes().any(|byte| byte.is_ascii_control()), "{body:?}");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        let mut parsed = ResponseHead::new();
        let end = parse_response(text.as_bytes(), &Limits::default(), &mut parsed).unwrap().unwrap();
        assert_eq!(end, head.len() + 4);
    }
}

#[test]
fn the_head_says_what_the_reply_says() {
    let head = |reply: Reply<'_>| written(&reply).split_once("\r\n\r\n").unwrap().0.to_owned();
    assert!(head(Reply { retry_after_s: Some(7), ..REPLY }).contains("\r\nRetry-After: 7"));
    assert!(head(Reply { keep_alive: false, ..REPLY }).ends_with("\r\nConnection: close"));
    assert!(head(Reply { version: Version::Http10, ..REPLY }).ends_with("\r\nConnection: keep-alive"));
    assert!(!head(REPLY).contains("Connection") && !head(REPLY).contains("Retry-After"));
    assert!(head(REPLY).contains("\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT"));
    assert!(!head(Reply { date: b"", ..REPLY }).contains("Date"));
    assert!(!head(Reply { request_id: b"", ..REPLY }).contains("X-Request-Id"));
    assert!(head(Reply { status: 405, ..REPLY }).contains("\r\nAllow: GET, "));
}

#[test]
fn the_answer_to_head_has_the_same_head_and_no_body() {
    let whole = written(&REPLY);
    let head_only = written(&Reply { head_only: true, ..REPLY });
    assert!(head_only.ends_with("\r\n\r\n") && whole.starts_with(&head_only));
}

#[test]
fn refusals_name_the_limit() {
    for (reject, status, figure) in [
        (Reject::HeadTooLarge { limit: 65_536 }, 431, "65536"),
        (Reject::TooManyFields { limit: 128 }, 431, "128"),
        (Reject::TargetTooLong { limit: 16_384 }, 414, "16384"),
        (Reject::BodyTooLarge { limit: 1 << 40 }, 413, "1099511627776"),
        (Reject::MethodTooLong { limit: 32 }, 501, "32"),
        (Reject::Chunk(ChunkError::ExtensionsTooLong { limit: 16_385 }), 400, "16385"),
        (Reject::Chunk(ChunkError::TrailersTooLong { limit: 77 }), 400, "77"),
        (Reject::TooManyConnectionOptions { limit: 33 }, 400, "33"),
    ] {
        assert_eq!(reject.status(), status);
        assert!(reject.message().contains(figure), "{}", reject.message());
        assert!(!reply::reason_phrase(status).is_empty());
    }
}
