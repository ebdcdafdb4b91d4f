//! What an engine says of a prompt at the end of its answer: how many tokens it had, and how many of them were cached.
//!
//! The last bytes of a relayed body are copied aside as they pass and searched once the answer has ended; the answer itself
//! is neither delayed nor changed. OpenAI's `usage` (vLLM, SGLang) and llama.cpp's `timings` are known. Knows bytes, not
//! sockets. What cannot be is not believed ([`Usage::plausible`]): a figure that an engine sends by mistake, or to lie, must
//! neither move what is known of others nor take time. Names within the generated text cannot be mistaken: their quotes are escaped there.

use memchr::memmem;

/// Bytes of the end of a body that are kept: a usage object stands in the last event or behind the whole text.
const KEPT: usize = 4096;

/// A token has at least a byte of text, since tokenizers fall back to bytes; and templates add some to each prompt that no
/// client wrote: headers of messages, default system prompts, tools.
const TEMPLATE_TOKENS: u64 = 8192;

/// And not more bytes than this, but for runs of one character.
const MOST_TOKEN_BYTES: u64 = 64;

/// An image, a video or a file that is in the key by its digest has no more tokens than the longest prompts have.
const MOST_MEDIUM_TOKENS: u64 = 131_072;

/// The last bytes of a body.
#[derive(Default)]
pub(super) struct Tail {
    kept: Vec<u8>,
    /// Bytes of the whole body.
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: Option<u64>,
    pub(super) answer_tokens: u64,
}

impl Usage {
    /// What can be true of it, for a key of so many bytes with so many media, and a body of so many; `None` when the prompt's
    /// length cannot.
    pub(super) fn plausible(self, key_bytes: u64, media: u32, body_bytes: u64) -> Option<Usage> {
        let most = key_bytes + TEMPLATE_TOKENS + u64::from(media) * MOST_MEDIUM_TOKENS;
        let least = (key_bytes / MOST_TOKEN_BYTES).max(1);
        (least..=most).contains(&self.prompt_tokens).then(|| Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens.map(|cached| cached.min(self.prompt_tokens)),
            answer_tokens: self.answer_tokens.min(body_bytes),
        })
    }
}

impl Tail {
    pub(super) fn clear(&mut self) {
        self.kept.clear();
        self.bytes = 0;
    }

    /// Bytes of the whole body.
    pub(super) fn body_bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        let bytes = &bytes[bytes.len().saturating_sub(KEPT)..];
        // Twice the size, so that each byte is moved once at most.
        if self.kept.len() + bytes.len() > 2 * KEPT {
            let from = (self.kept.len() + bytes.len() - KEPT).min(self.kept.len());
            self.kept.drain(..from);
        }
        self.kept.extend_from_slice(bytes);
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
        let at = memmem::rfind(&self.kept, name)? + name.len();
        let rest = self.kept[at..].trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
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
            assert!(tail.kept.len() <= 2 * KEPT);
        }
        assert!(tail.usage().is_some());
    }

    #[test]
    fn what_cannot_be_is_not_believed() {
        let said = |prompt_tokens, cached, answer_tokens| {
            let usage = Usage { prompt_tokens, cached_tokens: Some(cached), answer_tokens };
            let usage = usage.plausible(8000, 0, 500)?;
            Some((usage.prompt_tokens, usage.cached_tokens.unwrap_or(0), usage.answer_tokens))
        };
        assert_eq!(said(2000, 1900, 50), Some((2000, 1900, 50)));
        assert_eq!(said(2000, u64::MAX, 100_000_000_000), Some((2000, 2000, 500)));
        for absurd in [0, 1, 100, 100_000, 1_000_000_000_000, u64::MAX] {
            assert_eq!(said(absurd, 0, 0), None, "{absurd}");
        }
        let image = Usage { prompt_tokens: 30_000, cached_tokens: None, answer_tokens: 1 };
        assert!(image.plausible(40, 0, 9).is_none() && image.plausible(40, 1, 9) == Some(image));
        let short = Usage { prompt_tokens: 30, cached_tokens: None, answer_tokens: 1 };
        assert_eq!(short.plausible(4, 0, 9), Some(short), "a template is longer than a word");
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
