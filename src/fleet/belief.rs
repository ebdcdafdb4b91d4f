//! How far what was sent to a backend may be believed to be there still: learnt from what its answers say was found.
//!
//! **Reach.** Ages and the reach are in chunks on the backend's byte clock: what its cache has taken up since. Something
//! younger than the reach that was not found pulls the reach down towards its age, something older that was found pulls it
//! up. So the reach comes to rest where both are as frequent: at the engine's capacity less what running requests hold.
//!
//! **Wipe.** An engine that has just computed a prompt holds it again, so a miss says nothing against this prompt's marks:
//! it speaks against the others'. A few misses in a row of what is much younger than the reach mean that the cache is gone:
//! then all marks are void.
//!
//! Also here: bytes of key a token, tokens an image or other medium, and the counters of predicted and reported tokens.
//!
//! Relaxed throughout: nothing hangs on the order. What two learn into at once keeps one of the lessons.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::ratio::Ratio;

/// Nothing is known: whatever was sent is believed to be there.
pub const ENDLESS: u32 = u32::MAX;

/// The part of the way to a contradicting age that the reach goes.
const STEP: f64 = 0.1;

/// The least reach. Ages are right to within 160 chunks.
const LEAST_CHUNKS: u32 = 160;

/// Chunks at the end of a match that an engine may leave out without having dropped them.
const SLACK_CHUNKS: u32 = 2;

/// Misses in a row that mean that the cache is gone.
const WIPED_AFTER: u32 = 3;

/// Bytes a token before anything is known, and how many tokens' worth of evidence is remembered.
const TOKEN_BYTES: f32 = 4.0;
const WINDOW_TOKENS: f32 = 1e6;
const PRIOR_TOKENS: f32 = 1e3;

/// The part of what is known that one answer may add, and how many times more or less than what is known it may say. So one
/// that lies, or is odd, moves what is known by an eighth at most, and a hundredth once the window is full.
const MOST_WEIGHT: f32 = 0.25;
const MOST_TIMES: f32 = 2.0;
const MOST_LESSON_TOKENS: f32 = 16_384.0;

/// Tokens of an image before anything is known, and how many of them are remembered. An image has at least a token, and
/// not more than a long prompt.
const MEDIUM_TOKENS: f32 = 1000.0;
const MEDIUM_WINDOW: f32 = 64.0;
const MEDIUM_BOUNDS: (f32, f32) = (1.0, 131_072.0);

/// On lines of its own: what one backend's answers teach does not slow choices of another one.
#[repr(align(128))]
pub struct Belief {
    reach_chunks: AtomicU32,
    misses: AtomicU32,
    /// Bytes of key, tokens of prompt.
    ratio: Ratio,
    /// Tokens, media.
    media: Ratio,
    predicted_tokens: AtomicU64,
    reported_tokens: AtomicU64,
}

impl Default for Belief {
    fn default() -> Self {
        Belief {
            reach_chunks: AtomicU32::new(ENDLESS),
            misses: AtomicU32::new(0),
            ratio: Ratio::new(PRIOR_TOKENS * TOKEN_BYTES, PRIOR_TOKENS),
            media: Ratio::new(MEDIUM_TOKENS, 1.0),
            predicted_tokens: AtomicU64::new(0),
            reported_tokens: AtomicU64::new(0),
        }
    }
}

/// What was believed of a prompt on the backend that got it, and what of it was found; in chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lesson {
    /// Marked, whatever its age.
    pub marked: u32,
    /// Marked and younger than the reach.
    pub fresh: u32,
    /// Age of the end of what is marked.
    pub age: u32,
    pub found: u32,
}

impl Belief {
    /// Another backend begins with what a first one would.
    pub(super) fn forget(&self) {
        self.reach_chunks.store(ENDLESS, Relaxed);
        self.misses.store(0, Relaxed);
        self.ratio.set(PRIOR_TOKENS * TOKEN_BYTES, PRIOR_TOKENS);
        self.media.set(MEDIUM_TOKENS, 1.0);
        self.predicted_tokens.store(0, Relaxed);
        self.reported_tokens.store(0, Relaxed);
    }

    pub fn reach_chunks(&self) -> u32 {
        self.reach_chunks.load(Relaxed)
    }

    /// Bytes of key, and the tokens of prompt that they were: to be summed over backends that serve the same model.
    #[inline]
    pub fn bytes_and_tokens(&self) -> (f64, f64) {
        let (bytes, tokens) = self.ratio.sums();
        (f64::from(bytes), f64::from(tokens))
    }

    pub fn predicted_tokens(&self) -> u64 {
        self.predicted_tokens.load(Relaxed)
    }

    pub fn reported_tokens(&self) -> u64 {
        self.reported_tokens.load(Relaxed)
    }

    /// Counts what one answer was predicted and reported to find.
    pub fn count(&self, predicted_tokens: u64, reported_tokens: u64) {
        self.predicted_tokens.fetch_add(predicted_tokens, Relaxed);
        self.reported_tokens.fetch_add(reported_tokens, Relaxed);
    }

    /// Tokens, and the media that they were: to be summed in the same way.
    #[inline]
    pub fn media_tokens(&self) -> (f64, f64) {
        let (tokens, media) = self.media.sums();
        (f64::from(tokens), f64::from(media))
    }

    /// Learns how many tokens a key of so many bytes has, with so many media, which are in the key by their digests alone.
    pub fn learn_token_bytes(&self, key_bytes: u64, media: u32, prompt_tokens: u64) {
        let (bytes, tokens) = self.ratio.sums();
        let known = bytes / tokens;
        if media > 0 {
            let each = (prompt_tokens as f32 - key_bytes as f32 / known) / media as f32;
            let (known, count) = self.media.sums();
            let known = known / count;
            let each = each.clamp(known / MOST_TIMES, known * MOST_TIMES).clamp(MEDIUM_BOUNDS.0, MEDIUM_BOUNDS.1);
            // The first ones count in full: what is assumed is no more than a guess.
            let media = (media as f32).min((count * MOST_WEIGHT).max(1.0));
            self.media.learn(each * media, media, MEDIUM_WINDOW);
            return;
        }
        let said = (key_bytes as f32 / prompt_tokens as f32).clamp(known / MOST_TIMES, known * MOST_TIMES);
        let weight = (prompt_tokens as f32).min(MOST_LESSON_TOKENS).min(tokens * MOST_WEIGHT);
        self.ratio.learn(said * weight, weight, WINDOW_TOKENS);
    }

    /// Learns from an answer. True: the cache is gone, and so should be all marks.
    #[must_use]
    pub fn learn(&self, lesson: Lesson) -> bool {
        let reach = self.reach_chunks();
        let age = lesson.age.max(LEAST_CHUNKS);
        let missed = lesson.found < lesson.fresh.div_ceil(2);
        // An engine finds whole blocks of its own size, which end a little before the chunks do.
        let found_all =
            lesson.marked > SLACK_CHUNKS && lesson.found + SLACK_CHUNKS >= lesson.marked - lesson.marked / 8;
        // Of a match that is fresh in part, the age of its fresh end is not known.
        if missed && lesson.fresh == lesson.marked && age < reach {
            let down = if reach == ENDLESS { age } else { toward(reach, age) };
            self.reach_chunks.store(down, Relaxed);
        } else if found_all && age > reach {
            self.reach_chunks.store(toward(reach, age), Relaxed);
        }
        if lesson.fresh == 0 {
            return false;
        }
        let misses = match missed {
            true if lesson.age < reach / 2 || lesson.age <= LEAST_CHUNKS => self.misses.load(Relaxed) + 1,
            true => self.misses.load(Relaxed),
            false => 0,
        };
        let wiped = misses >= WIPED_AFTER;
        self.misses.store(if wiped { 0 } else { misses }, Relaxed);
        wiped
    }
}

fn toward(from: u32, to: u32) -> u32 {
    (f64::from(from) + STEP * (f64::from(to) - f64::from(from))) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an engine that keeps `capacity` chunks says of something of this age.
    fn ask(belief: &Belief, capacity: u32, age: u32) -> bool {
        let marked = 100;
        let fresh = if age < belief.reach_chunks() { marked } else { 0 };
        belief.learn(Lesson { marked, fresh, age, found: if age < capacity { marked } else { 0 } })
    }

    /// Ages between 0 and 20,000, spread evenly and in no order.
    fn ages(count: u64) -> impl Iterator<Item = u32> {
        (0..count).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 % 20_000)
    }

    #[test]
    fn the_reach_finds_the_capacity_and_follows_it_down_and_up() {
        let belief = Belief::default();
        for capacity in [10_000, 5_000, 9_000] {
            let wiped = ages(400).filter(|&age| ask(&belief, capacity, age)).count();
            let reach = f64::from(belief.reach_chunks());
            assert!((reach / f64::from(capacity) - 1.0).abs() < 0.2, "{reach} and not {capacity}");
            assert_eq!(wiped, 0, "a smaller cache is not an empty one");
        }
    }

    #[test]
    fn a_few_misses_of_young_content_mean_a_wipe() {
        let belief = Belief::default();
        ages(200).for_each(|age| _ = ask(&belief, 10_000, age));
        assert!(!ask(&belief, 0, 500) && !ask(&belief, 0, 1500));
        assert!(!ask(&belief, 10_000, 500), "one hit, and the row begins anew");
        assert!(!ask(&belief, 0, 500) && !ask(&belief, 0, 1500) && ask(&belief, 0, 100));
    }

    #[test]
    fn one_absurd_answer_moves_what_is_hardly_known_by_little() {
        for (bytes, tokens) in [(8_000, 1), (8_000, 8_000_000), (1, 1_000_000), (u64::MAX, 1), (0, 5), (7, 0), (0, 0)] {
            let belief = Belief::default();
            belief.learn_token_bytes(bytes, 0, tokens);
            let (bytes, tokens) = belief.bytes_and_tokens();
            assert!((bytes / tokens / 4.0 - 1.0).abs() < 0.25, "{bytes} of {tokens}");
        }
    }

    #[test]
    fn an_image_counts_as_what_the_engine_says() {
        let belief = Belief::default();
        let each = || belief.media_tokens().0 / belief.media_tokens().1;
        for _ in 0..30 {
            // 400 bytes of text are 100 tokens.
            belief.learn_token_bytes(400, 2, 100 + 2 * 300);
        }
        assert!((each() / 300.0 - 1.0).abs() < 0.2, "{}", each());
        assert!(
            (belief.bytes_and_tokens().0 / belief.bytes_and_tokens().1 - 4.0).abs() < 1e-3,
            "text stays what it is"
        );
        belief.learn_token_bytes(400, 1, u64::MAX);
        belief.learn_token_bytes(400, u32::MAX, 0);
        assert!((each() / 300.0 - 1.0).abs() < 0.5, "{}", each());
    }

    #[test]
    fn bytes_a_token_follow_the_answers() {
        let belief = Belief::default();
        let token_bytes = || belief.bytes_and_tokens().0 / belief.bytes_and_tokens().1;
        assert!((token_bytes() - 4.0).abs() < 1e-6);
        (0..100).for_each(|_| belief.learn_token_bytes(25_000, 0, 10_000));
        assert!((token_bytes() - 2.5).abs() < 0.01);
        belief.learn_token_bytes(25_000, 0, 25_000_000);
        belief.learn_token_bytes(25_000, 0, 1);
        assert!((token_bytes() - 2.5).abs() < 0.05, "an answer that lies moves little: {}", token_bytes());
        belief.count(7, 5);
        belief.count(1, 1);
        assert_eq!((belief.predicted_tokens(), belief.reported_tokens()), (8, 6));
    }
}
