//! Sixty-four bytes at a time: which of them equal a given one, as the bits of a word, and what backslashes do to them.
//!
//! Knows nothing of JSON but its quotes and escapes. Without a branch for each byte, text full of escapes costs little
//! more than plain text. The loops over arrays are shaped so that the compiler makes vector code of them.

pub(super) const BLOCK: usize = 64;
type Block = [u8; BLOCK];

/// One bit of eight for each byte of a word of eight.
const BITS: Block = {
    let mut bits = [0; BLOCK];
    let mut at = 0;
    while at < BLOCK {
        bits[at] = 1 << (at % 8);
        at += 1;
    }
    bits
};

/// What `look` sees in the block that begins at `at`, filled up with zeros behind the end of `text`.
#[inline(always)]
fn block_at<T>(text: &[u8], at: usize, look: impl Fn(&Block) -> T) -> T {
    let rest = text.get(at..).unwrap_or_default();
    match rest.first_chunk() {
        Some(block) => look(block),
        None => {
            let mut block = [0; BLOCK];
            block[..rest.len()].copy_from_slice(rest);
            look(&block)
        }
    }
}

/// Bit `i` says whether byte `i` equals `BYTE`. A function by itself: merged with its surroundings, the compiler no longer
/// sees that the sums of eight bytes are one instruction each.
#[inline(never)]
fn equal<const BYTE: u8>(block: &Block) -> u64 {
    let marked: Block = std::array::from_fn(|at| if block[at] == BYTE { BITS[at] } else { 0 });
    // A sum of distinct bits is their union.
    let union = |bits: &[u8]| bits.iter().fold(0_u8, |sum, &bit| sum.wrapping_add(bit));
    u64::from_le_bytes(std::array::from_fn(|word| union(&marked[word * 8..][..8])))
}

#[inline(never)]
fn has<const BYTE: u8>(block: &Block) -> bool {
    block.iter().fold(false, |any, &byte| any | (byte == BYTE))
}

/// The same as [`equal`], for bytes of which most blocks have none.
#[inline(always)]
fn rarely_equal<const BYTE: u8>(block: &Block) -> u64 {
    if has::<BYTE>(block) { equal::<BYTE>(block) } else { 0 }
}

/// Which backslashes begin an escape, and whether the last one's second byte is the next block's first. `carried` says
/// so of the block before.
///
/// In a row of backslashes each second one is escaped by the one before it. A subtraction runs along all rows at once:
/// simdjson's `json_escape_scanner`, after Langdale and Lemire, "Parsing gigabytes of JSON per second", §3.1.1.
#[inline(always)]
fn escapes(backslashes: u64, carried: bool) -> (u64, bool) {
    const ODD: u64 = 0xaaaa_aaaa_aaaa_aaaa;
    let free = backslashes & !u64::from(carried);
    let begins = (((free << 1) | ODD).wrapping_sub(free) ^ ODD) & backslashes;
    (begins, begins >> 63 == 1)
}

/// The backslashes that begin an escape in the block at `base`, and what is carried into the next.
#[inline(always)]
pub(super) fn escapes_at(text: &[u8], base: usize, carried: bool) -> (u64, bool) {
    escapes(block_at(text, base, rarely_equal::<b'\\'>), carried)
}

/// Quotes and escapes of one block, which begins inside a string.
#[derive(Debug)]
pub(super) struct Marks {
    pub(super) base: usize,
    /// Quotes that no backslash stands before.
    quotes: u64,
    /// Backslashes that begin an escape.
    escapes: u64,
    /// The last byte begins an escape.
    carried: bool,
}

impl Marks {
    /// Of no block yet: so far away that no position lies in it.
    pub(super) const NONE: Self = Self { base: usize::MAX / 2, quotes: 0, escapes: 0, carried: false };

    /// Turns to the block at `base`. Field by field: a copy of the whole would wait for the stores of its parts.
    #[inline(always)]
    pub(super) fn set(&mut self, text: &[u8], base: usize, carried: bool) {
        let (quotes, backslashes) =
            block_at(text, base, |block| (rarely_equal::<b'"'>(block), rarely_equal::<b'\\'>(block)));
        let (escapes, carry) = escapes(backslashes, carried);
        self.base = base;
        self.quotes = quotes & !(escapes << 1 | u64::from(carried));
        self.escapes = escapes;
        self.carried = carry;
    }

    /// Does `at` lie in the block?
    #[inline(always)]
    pub(super) fn cover(&self, at: usize) -> bool {
        at.wrapping_sub(self.base) < BLOCK
    }

    /// Of the text from `at`, which the block covers, up to the next quote or the block's end: its length, the escapes
    /// that begin in it, and whether a quote ends it.
    #[inline(always)]
    pub(super) fn stretch(&self, at: usize) -> (usize, u64, bool) {
        let offset = at.wrapping_sub(self.base) % BLOCK;
        let ahead = self.quotes >> offset;
        let len = (ahead.trailing_zeros() as usize).min(BLOCK - offset);
        // The bits under the first quote; all of them when there is none.
        let within = ahead.wrapping_sub(1) & !ahead;
        (len, (self.escapes >> offset) & within, ahead != 0)
    }

    /// Turns to the block behind.
    #[inline(always)]
    pub(super) fn next(&mut self, text: &[u8]) {
        self.set(text, self.base + BLOCK, self.carried);
    }

    /// Nothing but plain text in the whole block?
    pub(super) fn is_plain(&self) -> bool {
        self.quotes == 0 && self.escapes == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (quote that ends the string, or none; beginnings of escapes before it), byte by byte.
    fn naive(text: &[u8]) -> (Option<usize>, Vec<usize>) {
        let (mut at, mut escapes) = (0, Vec::new());
        while at < text.len() {
            match text[at] {
                b'"' => return (Some(at), escapes),
                b'\\' => {
                    escapes.push(at);
                    at += 2;
                }
                _ => at += 1,
            }
        }
        (None, escapes)
    }

    fn by_blocks(text: &[u8]) -> (Option<usize>, Vec<usize>) {
        let (mut at, mut found, mut marks) = (0, Vec::new(), Marks::NONE);
        marks.set(text, 0, false);
        while at < text.len() {
            let (len, escapes, quote) = marks.stretch(at);
            found.extend((0..BLOCK).filter(|bit| escapes >> bit & 1 == 1).map(|bit| at + bit));
            at += len;
            if quote {
                return (Some(at), found);
            }
            marks.next(text);
        }
        (None, found)
    }

    #[test]
    fn blocks_see_what_single_steps_see() {
        let mut random = 1_u64;
        for round in 0..20_000 {
            let text: Vec<u8> = (0..round % 300)
                .map(|_| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let odds = [b"\\\\\\a", b"\\aaa", b"aaab", b"\\\"aa"][round % 4];
                    if random >> 56 == 0 { b'"' } else { odds[(random >> 40) as usize % 4] }
                })
                .collect();
            assert_eq!(by_blocks(&text), naive(&text), "{}", String::from_utf8_lossy(&text));
        }
    }

    #[test]
    fn rows_of_backslashes_cross_blocks() {
        for before in 0..130 {
            for row in 0..140 {
                let text = [&vec![b'a'; before][..], &vec![b'\\'; row], b"\"\""].concat();
                assert_eq!(by_blocks(&text), naive(&text), "{before} {row}");
                assert_eq!(
                    escapes_at(&text, 0, false).0.count_ones() as usize,
                    (row.min(64_usize.saturating_sub(before)) + 1) / 2
                );
            }
        }
    }
}
