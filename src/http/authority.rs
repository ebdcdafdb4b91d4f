//! Who a request is for: `host[:port]`, as in `Host` and in the absolute form of a target.
//!
//! Must not know: which backend answers; the client's authority never chooses one.
//!
//! Narrower than RFC 3986: no user information, no percent-encoding and no sub-delimiters in a name, because two
//! readers disagree about those and no name in use has them.

/// Whether `bytes` is a host name or IPv4 address, or an IPv6 address in brackets, and maybe a port.
pub fn is_valid(bytes: &[u8]) -> bool {
    let (host_is_valid, port) = match bytes {
        [b'[', rest @ ..] => match memchr::memchr(b']', rest) {
            Some(end) => (is_ip_v6(&rest[..end]), &rest[end + 1..]),
            None => return false,
        },
        _ => {
            let end = memchr::memchr(b':', bytes).unwrap_or(bytes.len());
            (is_name(&bytes[..end]), &bytes[end..])
        }
    };
    host_is_valid && is_port_suffix(port)
}

fn is_name(host: &[u8]) -> bool {
    !host.is_empty()
        && host.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~'))
}

fn is_ip_v6(inside: &[u8]) -> bool {
    std::str::from_utf8(inside).is_ok_and(|text| text.parse::<core::net::Ipv6Addr>().is_ok())
}

/// Nothing, or a colon and a port; RFC 3986 lets the digits be absent.
fn is_port_suffix(suffix: &[u8]) -> bool {
    match suffix {
        [] => true,
        [b':', digits @ ..] => {
            digits.len() <= 5
                && digits.iter().all(u8::is_ascii_digit)
                && digits.iter().fold(0, |port, digit| port * 10 + u32::from(digit - b'0')) <= 65_535
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_with_and_without_a_port() {
        for good in
            ["a", "a.b-c.example", "A_b", "127.0.0.1:80", "a:", "a:65535", "[::1]", "[2001:db8::1]:8000", "svc.ns"]
        {
            assert!(is_valid(good.as_bytes()), "{good}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for bad in [
            "",
            ":80",
            "a b",
            "a,b",
            "a/b",
            "a@b",
            "u:p@a",
            "a:80:80",
            "a:x",
            "a:-1",
            "a:65536",
            "a:000080",
            "[::1",
            "::1",
            "[::1]x",
            "[::g]",
            "[]",
            "a?b",
            "a#b",
            "a\\b",
            "a%41",
            "a\tb",
            "é",
            "a;b",
            "http://a",
            "[fe80::1%eth0]",
        ] {
            assert!(!is_valid(bad.as_bytes()), "{bad:?}");
        }
    }
}
