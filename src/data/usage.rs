//! What an engine says of a prompt at the end of its answer: how many tokens it had, and how many of them were cached.
//!
//! The last bytes of a relayed body are copied aside as they pass and searched once the answer has ended; the answer itself
//! is neither delayed nor changed. OpenAI's `usage` (vLLM, SGLang) and llama.cpp's `timings` are known. Knows bytes, not
//! sockets. Names within the generated text cannot be mistaken: their quotes are escaped there.

use memchr::memmem;

/// Bytes of the end of a body that are kept: a usage object stands in the last event or behind the whole text.
const KEPT: usize = 4096;

/// The last bytes of a body.
#[derive(Default)]
pub(super) struct Tail(Vec<u8>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: Option<u64>,
    pub(super) answer_tokens: u64,
}

impl Tail {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(KEPT)..];
        // Twice the size, so that each byte is moved once at most.
        if self.0.len() + bytes.len() > 2 * KEPT {
            let from = (self.0.len() + bytes.len() - KEPT).min(self.0.len());
            self.0.drain(..from);
        }
        self.0.extend_from_slice(bytes);
    }

    /// `None`: the engine has not said how long the prompt was.
    pub(super) fn usage(&self) -> Option<Usage> {
        let cached = self.number(b"\"cached_tokens\"");
        let (cache_n, prompt_n) = (self.number(b"\"cache_n\""), self.number(b"\"prompt_n\""));
        let timings = || Some(cache_n.unwrap_or(0) + prompt_n?);
        Some(Usage {
            prompt_tokens: self.number(b"\"prompt_tokens\"").or_else(timings)?,
            cached_tokens: cached.or(cache_n),
            answer_tokens: self.number(b"\"completion_tokens\"").or(self.number(b"\"predicted_n\"")).unwrap_or(0),
        })
    }

    /// The number behind the last key of this name.
    fn number(&self, name: &[u8]) -> Option<u64> {
        let at = memmem::rfind(&self.0, name)? + name.len();
        let rest = self.0[at..].trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        // An engine that breaks off within a number has not said it.
        let whole = digits > 0 && rest.len() > digits;
        std::str::from_utf8(&rest[..digits]).ok().filter(|_| whole)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(pieces: &[&[u8]]) -> Option<(u64, Option<u64>, u64)> {
        let mut tail = Tail::default();
        pieces.iter().for_each(|piece| tail.push(piece));
        tail.usage().map(|usage| (usage.prompt_tokens, usage.cached_tokens, usage.answer_tokens))
    }

    const VLLM: &[u8] = br#"{"choices":[{"text":"..."}],"usage":{"prompt_tokens":1200,"total_tokens":1210,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":1024}}}"#;

    #[test]
    fn reads_each_engines_way_of_saying_it() {
        assert_eq!(usage(&[VLLM]), Some((1200, Some(1024), 10)));
        let sglang = br#"data: {"usage":{"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 0}}}"#;
        assert_eq!(usage(&[sglang, b"\n\ndata: [DONE]\n\n"]), Some((7, Some(0), 0)));
        let llama = br#"{"timings":{"cache_n":236,"prompt_n":1,"predicted_n":35}}"#;
        assert_eq!(usage(&[llama]), Some((237, Some(236), 35)));
        let silent = br#"{"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":null}}"#;
        assert_eq!(usage(&[silent]), Some((9, None, 2)));
    }

    #[test]
    fn is_the_same_however_the_body_is_cut_and_whatever_came_before() {
        for cut in 0..VLLM.len() {
            assert_eq!(usage(&[VLLM[..cut].as_ref(), &VLLM[cut..]]), Some((1200, Some(1024), 10)), "cut at {cut}");
        }
        let long = vec![b'x'; 5 * KEPT + 3];
        assert_eq!(usage(&[&long, VLLM]), Some((1200, Some(1024), 10)));
        let mut tail = Tail::default();
        for piece in long.chunks(700).chain(VLLM.chunks(3)) {
            tail.push(piece);
            assert!(tail.0.len() <= 2 * KEPT);
        }
        assert!(tail.usage().is_some());
    }

    #[test]
    fn is_not_taken_in_by_text_or_by_half_a_number() {
        assert_eq!(usage(&[br#"{"content":"\"prompt_tokens\": 5, \"cached_tokens\": 5 "}"#]), None);
        assert_eq!(usage(&[br#"{"usage":{"prompt_tokens":12"#]), None);
        assert_eq!(usage(&[br#"{"usage":{"prompt_tokens":-1}}"#]), None);
        assert_eq!(usage(&[br#"{"usage":{"prompt_tokens":99999999999999999999999}}"#]), None);
        assert_eq!(usage(&[]), None);
    }
}
