//! Decimal digits, eight at a time, and lists of numbers, sixty-four bytes at a time.
//!
//! Knows nothing of JSON. Token ids are short numbers by the thousand, of lengths that no branch predictor foresees:
//! within a word nothing here branches on how many digits there are.

const ONES: u64 = u64::from_le_bytes([1; 8]);
const HIGHS: u64 = ONES << 7;

/// The word at `at`; bytes behind the end of `text` are zeros.
#[inline(always)]
fn word_at(text: &[u8], at: usize) -> u64 {
    let rest = text.get(at..).unwrap_or_default();
    rest.first_chunk().copied().map_or_else(|| padded(rest), u64::from_le_bytes)
}

#[cold]
#[inline(never)]
fn padded(rest: &[u8]) -> u64 {
    rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// How many digits `word` begins with.
#[inline(always)]
fn leading_digits(word: u64) -> usize {
    let values = word ^ (ONES * u64::from(b'0'));
    // Seven bits of each byte cannot overflow into the next one.
    let others = (((values & !HIGHS) + ONES * (0x80 - 10)) | values) & HIGHS;
    others.trailing_zeros() as usize / 8
}

/// How many digits stand at `at`.
#[inline(always)]
pub(super) fn digits_at(text: &[u8], at: usize) -> usize {
    match leading_digits(word_at(text, at)) {
        8 => 8 + span_of(text.get(at + 8..).unwrap_or_default(), |byte| byte.is_ascii_digit()),
        len => len,
    }
}

/// How many bytes `text` begins with that are all `of` a kind, many at a time.
pub(super) fn span_of(text: &[u8], of: impl Fn(u8) -> bool) -> usize {
    let (blocks, _) = text.as_chunks::<LIST_BYTES>();
    let whole = blocks.iter().take_while(|block| block.iter().fold(true, |all, &byte| all & of(byte))).count();
    let at = whole * LIST_BYTES;
    at + text[at..].iter().take_while(|&&byte| of(byte)).count()
}

const LIST_BYTES: usize = 64;

/// Steps from the first digit of a number over what is surely a list of numbers, with nothing between them but a comma
/// or a comma and a space, and without zeros before them: to the last number's first digit, or not at all.
#[inline(never)]
pub(super) fn after_plain_list(text: &[u8], at: usize, stop: usize) -> usize {
    let mut end = at;
    // At the beginning a zero has nothing before it to be told by.
    if text.get(at).is_some_and(|first| (b'1'..=b'9').contains(first)) {
        while end < stop && text.get(end..).and_then(<[u8]>::first_chunk).is_some_and(is_plain_list) {
            end += LIST_BYTES;
        }
    }
    let list = &text[at..end];
    let last = list.iter().rposition(|byte| !byte.is_ascii_digit()).map_or(at, |place| at + place + 1);
    // The separator may go on with a space behind the blocks.
    last + usize::from(last > at && text.get(last) == Some(&b' '))
}

/// Looks at all neighbours at once: no byte but digits, commas and spaces; a space follows a comma alone, and a digit
/// both; no zero between one of them and a digit.
#[inline(always)]
fn is_plain_list(block: &[u8; LIST_BYTES + 2]) -> bool {
    let digit = |byte: u8| byte.wrapping_sub(b'0') < 10;
    let odd = |at: usize| {
        let (one, two, three) = (block[at], block[at + 1], block[at + 2]);
        let follows = digit(two) | (one == b',') & (two == b' ') & digit(three) | digit(one) & (two == b',');
        let known = digit(one) | (one == b',') | (one == b' ');
        !(known & follows) | !digit(one) & (two == b'0') & digit(three)
    };
    (0..LIST_BYTES).fold(true, |all, at| all & !odd(at))
}

/// A number of up to seven digits at `at`, and its length; `None` for none and for a longer one.
#[inline(always)]
pub(super) fn short_number(text: &[u8], at: usize) -> Option<(u32, usize)> {
    let word = word_at(text, at);
    let len = leading_digits(word);
    // Moved up, the digits have zeros before them.
    (1..8).contains(&len).then(|| (eight_digits((word ^ (ONES * u64::from(b'0'))) << (64 - 8 * len)), len))
}

/// The value of eight bytes that are the values of digits, the first one highest: neighbours are joined to pairs, pairs
/// to fours, fours to the whole, each time by one multiplication for all of them.
#[inline(always)]
fn eight_digits(values: u64) -> u32 {
    let pairs = (values * 10 + (values >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    (fours * 10_000 + (fours >> 32)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_counted_before_every_other_byte() {
        for len in 0..20 {
            for end in 0..=255_u8 {
                let text = [&b"x1234567890123456789"[..=len], &[end], b"0"].concat();
                let more = if end.is_ascii_digit() { 2 } else { 0 };
                assert_eq!(digits_at(&text, 1), len + more, "{len} digits, then {end}");
                assert_eq!(digits_at(&text[..=len], 1), len, "{len} digits, then the end");
            }
        }
    }

    /// What `after_plain_list` promises, byte by byte: what it stepped over is numbers and separators.
    fn is_list(text: &[u8]) -> bool {
        let Some(text) = text.strip_suffix(b", ").or(text.strip_suffix(b",")) else { return text.is_empty() };
        text.split(|&byte| byte == b',').enumerate().all(|(place, number)| {
            let number = if place > 0 { number.strip_prefix(b" ").unwrap_or(number) } else { number };
            let zeros = number.len() > 1 && number[0] == b'0';
            !zeros && !number.is_empty() && number.iter().all(u8::is_ascii_digit)
        })
    }

    #[test]
    fn plain_lists_are_stepped_over_and_nothing_else() {
        let list: Vec<String> = (0..90_u32).map(|i| (i * i * 37 % 50_021).to_string()).collect();
        for separator in [",", ", "] {
            let list = format!("7{separator}{}", list.join(separator)).into_bytes();
            let whole = after_plain_list(&list, 0, usize::MAX);
            assert!(whole > list.len() - 80 && list[whole].is_ascii_digit(), "{whole}");
            for place in 0..list.len() {
                for odd in *b"0 ,-.e]\"\xff" {
                    let mut other = list.clone();
                    other[place] = odd;
                    let end = after_plain_list(&other, 0, usize::MAX);
                    assert!(is_list(&other[..end]), "{}", String::from_utf8_lossy(&other[..end]));
                    assert!(end == 0 || other[end].is_ascii_digit());
                }
            }
        }
    }

    #[test]
    fn short_numbers_are_those_of_the_library() {
        let numbers = (0..100_000).chain([999_999, 1_000_000, 9_999_999]).chain((0..300).map(|i| i * 33_331));
        for number in numbers {
            let text = format!("{number}");
            for tail in ["", ",", "]", " 1", "\u{ff}9999999"] {
                let body = [&text, tail].concat();
                assert_eq!(short_number(body.as_bytes(), 0), Some((number, text.len())), "{body}");
            }
        }
        assert_eq!(short_number(b"0000007,", 0), Some((7, 7)));
        assert_eq!(short_number(b"12345678", 0), None);
        assert_eq!(short_number(b",1", 0), None);
        assert_eq!(short_number(b"", 0), None);
    }
}
