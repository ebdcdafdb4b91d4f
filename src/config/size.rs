//! Sizes with a unit: `512MiB`, `64k`, `1048576`.

/// Bytes of a size such as `512MiB`, `1GB` or `4096`. Units: k, M, G (and with `B`) are powers of 1000; Ki, Mi, Gi (and
/// with `B`) are powers of 1024.
///
/// # Errors
/// A sentence that names the text and the units that are known.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let refuse = || {
        format!(
            "'{text}' is not a size: write a whole number of bytes, or one with a unit such as 64KiB, 512MiB, 2GiB, 1GB"
        )
    };
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: usize = number.parse().map_err(|_| refuse())?;
    let factor: usize = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1000,
        "m" | "mb" => 1000 * 1000,
        "g" | "gb" => 1000 * 1000 * 1000,
        "ki" | "kib" => 1 << 10,
        "mi" | "mib" => 1 << 20,
        "gi" | "gib" => 1 << 30,
        _ => return Err(refuse()),
    };
    number.checked_mul(factor).ok_or_else(refuse)
}

#[cfg(test)]
mod tests {
    use super::parse_size;

    #[test]
    fn reads_units() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64KiB", 65536),
            ("512MiB", 512 << 20),
            ("1 GiB", 1 << 30),
            ("2k", 2000),
            ("3MB", 3_000_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn refuses_by_name() {
        for text in ["", "MiB", "-1", "1.5GiB", "12XB", "99999999999999999999", "99999999999GiB"] {
            let error = parse_size(text).expect_err(text);
            assert!(error.contains(&format!("'{text}'")), "{error}");
        }
    }
}
