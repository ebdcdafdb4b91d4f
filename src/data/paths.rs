//! Who answers a path: the router itself, a backend chosen by the prompt, or any backend.

use crate::prompt::Endpoint;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// The control plane answers.
    Control,
    /// The worker answers: where would this request go?
    Explain,
    /// A backend that serves the body's model, by the policy.
    Routed(Endpoint),
    /// Any usable backend, by load.
    Any,
}

/// The destination of a request. `path` is without root path and query; `get` is true for GET and HEAD, `post` for POST.
pub(super) fn destination(get: bool, post: bool, path: &[u8]) -> Destination {
    if get && matches!(path, b"/health" | b"/health/live" | b"/metrics" | b"/engines" | b"/version" | b"/v1/models") {
        return Destination::Control;
    }
    if get && path == b"/is_sleeping" || post && matches!(path, b"/sleep" | b"/wake_up") {
        return Destination::Control;
    }
    if !post {
        return Destination::Any;
    }
    match path {
        b"/debug/route" => Destination::Explain,
        b"/v1/chat/completions" => Destination::Routed(Endpoint::Chat),
        b"/v1/completions" => Destination::Routed(Endpoint::Completions),
        b"/v1/responses" => Destination::Routed(Endpoint::Responses),
        b"/v1/messages" => Destination::Routed(Endpoint::Messages),
        b"/v1/embeddings" => Destination::Routed(Endpoint::Embeddings),
        b"/v1/rerank" | b"/rerank" | b"/v2/rerank" => Destination::Routed(Endpoint::Rerank),
        b"/v1/score" | b"/score" => Destination::Routed(Endpoint::Score),
        b"/tokenize" | b"/detokenize" => Destination::Routed(Endpoint::Tokenize),
        b"/pooling" | b"/classify" => Destination::Routed(Endpoint::Embeddings),
        b"/v1/images/generations" | b"/v1/audio/speech" => Destination::Routed(Endpoint::Other),
        _ => Destination::Any,
    }
}

#[cfg(test)]
mod tests {
    use super::{Destination, destination};
    use crate::prompt::Endpoint;

    #[test]
    fn each_path_has_its_answerer() {
        for (method, path, expected) in [
            ("GET", "/health", Destination::Control),
            ("HEAD", "/metrics", Destination::Control),
            ("POST", "/health", Destination::Any),
            ("POST", "/sleep", Destination::Control),
            ("GET", "/sleep", Destination::Any),
            ("POST", "/debug/route", Destination::Explain),
            ("GET", "/debug/route", Destination::Any),
            ("GET", "/is_sleeping", Destination::Control),
            ("GET", "/health/", Destination::Any),
            ("GET", "/v1/models", Destination::Control),
            ("GET", "/v1/models/m", Destination::Any),
            ("POST", "/v1/chat/completions", Destination::Routed(Endpoint::Chat)),
            ("GET", "/v1/chat/completions", Destination::Any),
            ("OPTIONS", "/v1/chat/completions", Destination::Any),
            ("POST", "/v1/chat/completions/", Destination::Any),
            ("POST", "/v1/rerank", Destination::Routed(Endpoint::Rerank)),
            ("POST", "/v1/audio/transcriptions", Destination::Any),
            ("POST", "/inference/v1/generate", Destination::Any),
        ] {
            let is = |m: &str| method == m;
            assert_eq!(destination(is("GET") || is("HEAD"), is("POST"), path.as_bytes()), expected, "{method} {path}");
        }
    }
}
