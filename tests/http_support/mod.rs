//! What the tests of requests share: a verdict on bytes that is the same under every split.

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests, too, may fail by a panic")]

use trieway::http::framing::{self, RequestFraming};
use trieway::http::{Limits, Reject, RequestHead, parse_request};

pub(crate) type Verdict = Result<Option<usize>, Reject>;

/// Parses `input` as it arrives in the given pieces; stops at a verdict.
pub(crate) fn parse_in_pieces(input: &[u8], cuts: &[usize], limits: &Limits) -> (Verdict, RequestHead) {
    let mut head = RequestHead::new();
    for &cut in cuts.iter().chain([&input.len()]) {
        let verdict = parse_request(&input[..cut], limits, &mut head);
        if verdict != Ok(None) {
            return (verdict, head);
        }
    }
    (Ok(None), head)
}

/// The verdict on `input`, the same under every split.
pub(crate) fn parse(input: &[u8], limits: &Limits) -> (Verdict, RequestHead) {
    let whole = parse_in_pieces(input, &[], limits);
    let agree = |cuts: &[usize]| {
        let split = parse_in_pieces(input, cuts, limits);
        assert_eq!(split.0, whole.0, "cut at {cuts:?}: {}", input.escape_ascii());
        if matches!(whole.0, Ok(Some(_))) {
            assert_eq!(split.1, whole.1, "cut at {cuts:?}: {}", input.escape_ascii());
        }
    };
    if input.len() < 2_000 {
        (0..input.len()).for_each(|cut| agree(&[cut]));
        agree(&(0..input.len()).collect::<Vec<_>>());
    }
    whole
}

/// Head and framing together, as a connection judges a request.
pub(crate) fn judge(input: &[u8]) -> Result<(RequestHead, RequestFraming), Reject> {
    let (verdict, head) = parse(input, &Limits::default());
    verdict?.unwrap_or_else(|| panic!("needs more: {}", input.escape_ascii()));
    let framing = framing::request(&head, input)?;
    Ok((head, framing))
}

pub(crate) fn refused(input: &str, status: u16) {
    match judge(input.as_bytes()) {
        Ok(accepted) => panic!("accepted: {input:?} as {accepted:?}"),
        Err(reject) => {
            assert_eq!(reject.status(), status, "{input:?}: {reject:?}");
            assert!(
                !reject.message().is_empty()
                    && !reject.code().contains(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit() && c != '_')
            );
        }
    }
}
