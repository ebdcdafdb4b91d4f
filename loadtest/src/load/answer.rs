//! What an answer says: its text, its usage, and when its pieces came.
//!
//! Must not know: HTTP, the clock. Err: the kind of failure under which it is counted.

use std::time::Instant;

use serde_json::Value;

use super::stats::Sample;

/// An answer that was not streamed.
pub(crate) fn whole(body: &[u8]) -> Result<Sample, String> {
    let answer: Value = serde_json::from_slice(body).map_err(|_| "malformed answer")?;
    let text = answer["choices"][0]["message"]["content"].as_str().ok_or("malformed answer")?;
    let mut sample = Sample { text: text.to_owned(), ..Sample::default() };
    read_usage(&answer, &mut sample);
    Ok(sample)
}

/// A stream of events on its way in, cut anywhere.
#[derive(Debug)]
pub(crate) struct Events {
    intended: Instant,
    sample: Sample,
    /// What is not a whole event yet.
    rest: Vec<u8>,
    last_text: Option<Instant>,
    done: bool,
}

impl Events {
    /// Of a request that was meant to be sent at `intended`.
    pub(crate) fn new(intended: Instant) -> Self {
        Self { intended, sample: Sample::default(), rest: Vec::new(), last_text: None, done: false }
    }

    /// Takes bytes that came at `now`.
    pub(crate) fn take(&mut self, bytes: &[u8], now: Instant) -> Result<(), String> {
        self.rest.extend_from_slice(bytes);
        let rest = std::mem::take(&mut self.rest);
        let mut taken = 0;
        while let Some(length) = memchr::memmem::find(&rest[taken..], b"\n\n") {
            self.event(&rest[taken..taken + length], now)?;
            taken += length + 2;
        }
        self.rest.extend_from_slice(&rest[taken..]);
        Ok(())
    }

    /// The stream has ended in good order; whether it was complete shows here.
    pub(crate) fn finish(self) -> Result<Sample, String> {
        if self.done && self.rest.is_empty() { Ok(self.sample) } else { Err("stream ended early".into()) }
    }

    fn event(&mut self, event: &[u8], now: Instant) -> Result<(), String> {
        // Comments keep a connection alive and say nothing.
        let Some(data) = event.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else { return Ok(()) };
        if data == b"[DONE]" {
            self.done = true;
            return Ok(());
        }
        let event: Value = serde_json::from_slice(data).map_err(|_| "malformed answer")?;
        if event.get("error").is_some() {
            return Err("error event".into());
        }
        read_usage(&event, &mut self.sample);
        let text = event["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
        if !text.is_empty() {
            self.sample.text.push_str(text);
            match self.last_text.replace(now) {
                None => self.sample.first_token = Some(now.saturating_duration_since(self.intended)),
                Some(before) => self.sample.gaps.push(now - before),
            }
        }
        Ok(())
    }
}

fn read_usage(answer: &Value, sample: &mut Sample) {
    let usage = &answer["usage"];
    if let Some(tokens) = usage["prompt_tokens"].as_u64() {
        sample.prompt_tokens = tokens;
        sample.answer_tokens = usage["completion_tokens"].as_u64().unwrap_or(0);
        sample.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const STREAM: &str = concat!(
        ": ping\n\n",
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n",
        "data:{\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n",
        "data: [DONE]\n\n"
    );

    #[test]
    fn a_stream_says_the_same_wherever_it_is_cut() {
        let start = Instant::now();
        for cut in 0..STREAM.len() {
            let mut events = Events::new(start);
            events.take(&STREAM.as_bytes()[..cut], start + Duration::from_millis(3)).unwrap();
            events.take(&STREAM.as_bytes()[cut..], start + Duration::from_millis(5)).unwrap();
            let sample = events.finish().unwrap();
            assert_eq!((sample.text.as_str(), sample.prompt_tokens, sample.cached_tokens), ("ab", 9, Some(4)));
            // An event counts from the bytes that complete it.
            let at = |mark: &str| if STREAM.find(mark).unwrap() + mark.len() <= cut { 3 } else { 5 };
            let (a, b) = (at("\"a\"}}]}\n\n"), at("\"b\"}}]}\n\n"));
            assert_eq!(sample.first_token, Some(Duration::from_millis(a)));
            assert_eq!(sample.gaps, [Duration::from_millis(b - a)]);
        }
    }

    #[test]
    fn an_incomplete_stream_is_a_failure() {
        let start = Instant::now();
        for end in 0..STREAM.len() {
            let mut events = Events::new(start);
            events.take(&STREAM.as_bytes()[..end], start).unwrap();
            assert!(events.finish().is_err(), "{end}");
        }
        for (data, kind) in [("{", "malformed answer"), ("{\"error\":{}}", "error event")] {
            let wire = format!("data: {data}\n\n");
            assert_eq!(Events::new(start).take(wire.as_bytes(), start), Err(kind.to_owned()));
        }
    }
}
