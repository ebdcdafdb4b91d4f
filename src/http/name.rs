//! Field names that mean something to a proxy, told apart once while a head is parsed.
//!
//! Must not know: what is done with a field of a kind. Invariant: case never matters.

/// What a field is to this proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    Host,
    ContentLength,
    TransferEncoding,
    Connection,
    KeepAlive,
    Te,
    Trailer,
    Upgrade,
    /// Any name that begins with `Proxy-`.
    ProxyOther,
    Expect,
    Authorization,
    ContentType,
    ContentEncoding,
    RequestId,
    ForwardedFor,
    ForwardedProto,
    ForwardedHost,
    MaxForwards,
    Date,
    /// End to end, and of no interest here.
    Other,
}

impl Name {
    /// The kind of the field called `name`.
    pub fn of(name: &[u8]) -> Self {
        // Most names of a known length differ in the first letter; `known` is in lower case.
        let first = name.first().map_or(0, u8::to_ascii_lowercase);
        let is = |known: &[u8]| known[0] == first && name.eq_ignore_ascii_case(known);
        match name.len() {
            2 if is(b"te") => Self::Te,
            4 if is(b"host") => Self::Host,
            4 if is(b"date") => Self::Date,
            6 if is(b"expect") => Self::Expect,
            7 if is(b"upgrade") => Self::Upgrade,
            7 if is(b"trailer") => Self::Trailer,
            10 if is(b"connection") => Self::Connection,
            10 if is(b"keep-alive") => Self::KeepAlive,
            12 if is(b"content-type") => Self::ContentType,
            12 if is(b"max-forwards") => Self::MaxForwards,
            12 if is(b"x-request-id") => Self::RequestId,
            13 if is(b"authorization") => Self::Authorization,
            14 if is(b"content-length") => Self::ContentLength,
            15 if is(b"x-forwarded-for") => Self::ForwardedFor,
            16 if is(b"x-forwarded-host") => Self::ForwardedHost,
            16 if is(b"content-encoding") => Self::ContentEncoding,
            17 if is(b"transfer-encoding") => Self::TransferEncoding,
            17 if is(b"x-forwarded-proto") => Self::ForwardedProto,
            7.. if name[..6].eq_ignore_ascii_case(b"proxy-") => Self::ProxyOther,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart_in_any_case() {
        let check = |text: &str, expected: Name| {
            for name in [text.to_owned(), text.to_uppercase(), text.to_lowercase()] {
                assert_eq!(Name::of(name.as_bytes()), expected, "{name}");
            }
        };
        check("Host", Name::Host);
        check("Content-Length", Name::ContentLength);
        check("Transfer-Encoding", Name::TransferEncoding);
        check("Connection", Name::Connection);
        check("Keep-Alive", Name::KeepAlive);
        check("TE", Name::Te);
        check("Trailer", Name::Trailer);
        check("Upgrade", Name::Upgrade);
        check("Proxy-Connection", Name::ProxyOther);
        check("Proxy-Authorization", Name::ProxyOther);
        check("Proxy-Authenticate", Name::ProxyOther);
        check("Proxy-X", Name::ProxyOther);
        check("Expect", Name::Expect);
        check("Authorization", Name::Authorization);
        check("Content-Type", Name::ContentType);
        check("Content-Encoding", Name::ContentEncoding);
        check("X-Request-Id", Name::RequestId);
        check("Max-Forwards", Name::MaxForwards);
        check("Date", Name::Date);
        check("X-Forwarded-For", Name::ForwardedFor);
        check("X-Forwarded-Proto", Name::ForwardedProto);
        check("X-Forwarded-Host", Name::ForwardedHost);
    }

    #[test]
    fn near_misses_are_other() {
        for name in ["Hosts", "Content_Length", "Content-Lengt", "Proxy", "Proxy-", "Xproxy-a", "T", "x-request-ids"] {
            assert_eq!(Name::of(name.as_bytes()), Name::Other, "{name}");
        }
    }
}
