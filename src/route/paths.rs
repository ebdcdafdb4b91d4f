//! Who answers a path: the router itself, a backend chosen by the prompt, or any backend.

/// The kind of a routed body: which of its fields make the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Chat,
    Completions,
    Responses,
    Messages,
    Embeddings,
    Rerank,
    Score,
    Tokenize,
    /// A JSON body with a model, without a prompt that this router knows.
    Unkeyed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The control plane answers.
    Control,
    /// A backend that serves the body's model, by the policy.
    Routed(Kind),
    /// Any usable backend, by load.
    Any,
}

/// The destination of a request. `path` is without root path and query; `get` is true for GET and HEAD, `post` for POST.
pub fn destination(get: bool, post: bool, path: &[u8]) -> Destination {
    if get && matches!(path, b"/health" | b"/health/live" | b"/metrics" | b"/engines" | b"/version" | b"/v1/models") {
        return Destination::Control;
    }
    if !post {
        return Destination::Any;
    }
    match path {
        b"/v1/chat/completions" => Destination::Routed(Kind::Chat),
        b"/v1/completions" => Destination::Routed(Kind::Completions),
        b"/v1/responses" => Destination::Routed(Kind::Responses),
        b"/v1/messages" => Destination::Routed(Kind::Messages),
        b"/v1/embeddings" => Destination::Routed(Kind::Embeddings),
        b"/v1/rerank" | b"/rerank" | b"/v2/rerank" => Destination::Routed(Kind::Rerank),
        b"/v1/score" | b"/score" => Destination::Routed(Kind::Score),
        b"/tokenize" | b"/detokenize" => Destination::Routed(Kind::Tokenize),
        b"/pooling" | b"/classify" => Destination::Routed(Kind::Embeddings),
        b"/v1/images/generations" | b"/v1/audio/speech" => Destination::Routed(Kind::Unkeyed),
        _ => Destination::Any,
    }
}

#[cfg(test)]
mod tests {
    use super::{Destination, Kind, destination};

    #[test]
    fn each_path_has_its_answerer() {
        for (method, path, expected) in [
            ("GET", "/health", Destination::Control),
            ("HEAD", "/metrics", Destination::Control),
            ("POST", "/health", Destination::Any),
            ("GET", "/health/", Destination::Any),
            ("GET", "/v1/models", Destination::Control),
            ("GET", "/v1/models/m", Destination::Any),
            ("POST", "/v1/chat/completions", Destination::Routed(Kind::Chat)),
            ("GET", "/v1/chat/completions", Destination::Any),
            ("OPTIONS", "/v1/chat/completions", Destination::Any),
            ("POST", "/v1/chat/completions/", Destination::Any),
            ("POST", "/v1/rerank", Destination::Routed(Kind::Rerank)),
            ("POST", "/v1/audio/transcriptions", Destination::Any),
            ("POST", "/inference/v1/generate", Destination::Any),
        ] {
            let is = |m: &str| method == m;
            assert_eq!(destination(is("GET") || is("HEAD"), is("POST"), path.as_bytes()), expected, "{method} {path}");
        }
    }
}
