//! How a request can fail, and what follows from it: the status, the label, whether the answer can still be given. Decided
//! in one place.

use std::borrow::Cow;

use crate::http::chunked::ChunkError;
use crate::http::fault::{BadResponse, Reject};
use crate::metrics::shard::ErrorKind;

/// An answer that the router gives itself.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: u16,
    /// `type` in the error's JSON.
    pub(super) kind: &'static str,
    pub(super) code: &'static str,
    pub(super) message: Cow<'static, str>,
    pub(super) retry_after_s: Option<u32>,
}

#[derive(Debug)]
pub(super) enum Failure {
    /// The client is gone: nobody is left to answer.
    ClientGone,
    /// The client takes no bytes of its answer.
    ClientStalled,
    /// The request is refused, or no backend can serve it; nothing of an answer has been sent.
    Refused(Refusal),
    /// The backend failed before its answer began.
    Upstream(ErrorKind, Cow<'static, str>),
    /// The backend failed within its answer: the client must see it break.
    Broken(ErrorKind),
}

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";

impl Refusal {
    pub(super) fn invalid(status: u16, code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Refusal { status, kind: INVALID, code, message: message.into(), retry_after_s: None }
    }

    pub(super) fn unavailable(code: &'static str, message: impl Into<Cow<'static, str>>, retry_after_s: u32) -> Self {
        Refusal { status: 503, kind: SERVER, code, message: message.into(), retry_after_s: Some(retry_after_s) }
    }

    pub(super) fn timeout(what: &str) -> Self {
        Refusal {
            status: 408,
            kind: "timeout_error",
            code: "request_timeout",
            message: format!("the request's {what} did not arrive in time").into(),
            retry_after_s: None,
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Failure::Refused(refusal)
    }
}

impl From<Reject> for Failure {
    fn from(reject: Reject) -> Self {
        Failure::Refused(Refusal::invalid(reject.status(), reject.code(), reject.message()))
    }
}

impl From<ChunkError> for Failure {
    fn from(error: ChunkError) -> Self {
        Reject::Chunk(error).into()
    }
}

impl From<BadResponse> for Failure {
    fn from(bad: BadResponse) -> Self {
        Failure::Upstream(ErrorKind::BadResponse, bad.message())
    }
}

impl Failure {
    /// What the client is told; `None`: it is gone, or its answer has begun.
    pub(super) fn refusal(self) -> Option<Refusal> {
        match self {
            Failure::ClientGone | Failure::ClientStalled | Failure::Broken(_) => None,
            Failure::Refused(refusal) => Some(refusal),
            Failure::Upstream(kind, detail) => {
                let (status, code) = match kind {
                    ErrorKind::FirstByteTimeout => (504, "backend_timeout"),
                    ErrorKind::Connect | ErrorKind::ConnectTimeout => (502, "backend_unreachable"),
                    ErrorKind::BadResponse => (502, "backend_bad_response"),
                    ErrorKind::BetweenBytesTimeout
                    | ErrorKind::Broken
                    | ErrorKind::ClientGone
                    | ErrorKind::ClientTimeout
                    | ErrorKind::Internal => (502, "backend_failed"),
                };
                Some(Refusal { status, kind: SERVER, code, message: detail, retry_after_s: None })
            }
        }
    }

    /// The label under which it is counted against the backend; `None`: it is not about a backend.
    pub(super) fn error_kind(&self) -> Option<ErrorKind> {
        match self {
            Failure::ClientGone => Some(ErrorKind::ClientGone),
            Failure::ClientStalled => Some(ErrorKind::ClientTimeout),
            Failure::Upstream(kind, _) | Failure::Broken(kind) => Some(*kind),
            Failure::Refused(_) => None,
        }
    }
}
