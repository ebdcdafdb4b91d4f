//! The small grammar that everything shares: tokens, whitespace, lists, numbers.
//!
//! Must not know: which field or line it is used for.

/// RFC 9110 `tchar`.
pub(super) const fn is_tchar(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z'
        | b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~')
}

/// RFC 9110 `token`: one or more `tchar`.
pub(super) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().copied().all(is_tchar)
}

/// What a field value may hold: visible characters, obs-text, space and tab.
pub(super) const fn is_field_byte(byte: u8) -> bool {
    matches!(byte, b'\t' | b' '..=0x7e | 0x80..=0xff)
}

/// Optional whitespace off both ends.
pub(super) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// The elements of a comma-separated value, trimmed, empty ones included: who calls decides what those mean.
///
/// Quoted strings are not understood: use it for lists of tokens only.
pub(super) fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim)
}

/// A whole number of decimal digits, and nothing else; `None` also when it does not fit.
pub(super) fn decimal(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() || bytes.len() > 20 {
        return None;
    }
    bytes.iter().try_fold(0u64, |number, &byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 { None } else { number.checked_mul(10)?.checked_add(u64::from(digit)) }
    })
}

/// Appends `number` in decimal.
pub(super) fn push_decimal(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_takes_digits_that_fit_and_nothing_else() {
        let max = u64::MAX.to_string();
        for (text, expected) in [
            ("0", Some(0)),
            ("007", Some(7)),
            ("42", Some(42)),
            (max.as_str(), Some(u64::MAX)),
            ("18446744073709551616", None),
            ("99999999999999999999", None),
            ("000000000000000000001", None),
            ("", None),
            ("+5", None),
            ("-1", None),
            ("5 5", None),
            ("5,5", None),
            ("0x5", None),
            ("5;", None),
            ("\u{665}", None),
        ] {
            assert_eq!(decimal(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn push_decimal_is_the_inverse() {
        for number in [0, 1, 9, 10, 99, 100, 12_345, u64::MAX] {
            let mut out = Vec::new();
            push_decimal(&mut out, number);
            assert_eq!(out, number.to_string().as_bytes());
        }
    }

    #[test]
    fn elements_are_trimmed_and_keep_the_empty_ones() {
        let list: Vec<&[u8]> = elements(b" a,\tb c ,,").collect();
        assert_eq!(list, [&b"a"[..], b"b c", b"", b""]);
    }
}
