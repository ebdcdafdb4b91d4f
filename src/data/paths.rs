//! Who answers a path: the router itself, a backend chosen by the prompt, or any backend.

use crate::prompt::Endpoint;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// The worker answers: the process lives.
    Live,
    /// The worker answers: can a request be served?
    Health,
    /// The control plane answers.
    Control(Lane),
    /// The worker answers: where would this request go?
    Explain,
    /// A backend that serves the body's model, by the policy.
    Routed(Endpoint),
    /// Any usable backend, by load.
    Any,
}

/// What the control plane is asked for. Each kind has its own limit: calls take as long as a backend does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// What it knows.
    Pages,
    /// A call to the backend that the query names.
    Calls,
}

/// The destination of a request. `path` is without root path and query; `get` is true for GET and HEAD, `post` for POST.
pub(super) fn destination(get: bool, post: bool, path: &[u8]) -> Destination {
    match path {
        b"/health" if get => return Destination::Health,
        b"/health/live" if get => return Destination::Live,
        b"/metrics" | b"/engines" | b"/version" | b"/v1/models" if get => return Destination::Control(Lane::Pages),
        b"/is_sleeping" if get => return Destination::Control(Lane::Calls),
        b"/sleep" | b"/wake_up" if post => return Destination::Control(Lane::Calls),
        _ => {}
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
    use super::{Destination, Lane, destination};
    use crate::prompt::Endpoint;

    #[test]
    fn each_path_has_its_answerer() {
        for (method, path, expected) in [
            ("GET", "/health", Destination::Health),
            ("HEAD", "/health/live", Destination::Live),
            ("HEAD", "/metrics", Destination::Control(Lane::Pages)),
            ("POST", "/health", Destination::Any),
            ("POST", "/sleep", Destination::Control(Lane::Calls)),
            ("GET", "/sleep", Destination::Any),
            ("POST", "/debug/route", Destination::Explain),
            ("GET", "/debug/route", Destination::Any),
            ("GET", "/is_sleeping", Destination::Control(Lane::Calls)),
            ("GET", "/health/", Destination::Any),
            ("GET", "/v1/models", Destination::Control(Lane::Pages)),
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
