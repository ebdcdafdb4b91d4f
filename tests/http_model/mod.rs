//! A second, naive reading of RFC 9112 for whole inputs: slow, allocating, and built in another way (whole lines, split
//! strings, recursive descent) than the parser that it judges. Tests and fuzz targets compare the two.

#![allow(dead_code, reason = "each test binary and fuzz target uses its part")]

/// What a chunked body comes to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Chunked {
    Complete { payload: Vec<u8>, consumed: usize },
    Incomplete,
    Invalid,
}

/// Decodes a chunked body, limits aside.
pub(crate) fn chunked(input: &[u8]) -> Chunked {
    let mut payload = Vec::new();
    let mut rest = input;
    let mut total = 0u64;
    loop {
        let line = match line(rest) {
            Line::Whole(line) => line,
            Line::Cut => return Chunked::Incomplete,
            Line::BadEnd => return Chunked::Invalid,
        };
        rest = &rest[line.len() + 2..];
        let Some(size) = size_line(line) else { return Chunked::Invalid };
        if size == 0 {
            break;
        }
        total = match total.checked_add(size) {
            Some(total) if total <= i64::MAX as u64 => total,
            _ => return Chunked::Invalid,
        };
        if (rest.len() as u64) < size {
            return Chunked::Incomplete;
        }
        payload.extend_from_slice(&rest[..size as usize]);
        rest = &rest[size as usize..];
        match rest {
            [b'\r', b'\n', ..] => rest = &rest[2..],
            [] | [b'\r'] => return Chunked::Incomplete,
            _ => return Chunked::Invalid,
        }
    }
    loop {
        match line(rest) {
            Line::Whole(b"") => return Chunked::Complete { payload, consumed: input.len() - rest.len() + 2 },
            Line::Whole(trailer) if field(trailer).is_some() => rest = &rest[trailer.len() + 2..],
            Line::Cut => return Chunked::Incomplete,
            Line::Whole(_) | Line::BadEnd => return Chunked::Invalid,
        }
    }
}

enum Line<'a> {
    Whole(&'a [u8]),
    Cut,
    BadEnd,
}

/// The first line; the first CR or LF must be the CR of its CRLF.
fn line(input: &[u8]) -> Line<'_> {
    match input.iter().position(|b| *b == b'\r' || *b == b'\n') {
        None => Line::Cut,
        Some(end) if input[end..].starts_with(b"\r\n") => Line::Whole(&input[..end]),
        Some(end) if &input[end..] == b"\r" => Line::Cut,
        Some(_) => Line::BadEnd,
    }
}

fn size_line(line: &[u8]) -> Option<u64> {
    let digits = line.iter().take_while(|b| b.is_ascii_hexdigit()).count();
    if digits == 0 || digits > 16 {
        return None;
    }
    extensions(&line[digits..])?;
    u64::from_str_radix(std::str::from_utf8(&line[..digits]).ok()?, 16).ok()
}

/// `*( BWS ";" BWS token [ BWS "=" BWS ( token / quoted-string ) ] )`, by recursive descent.
fn extensions(text: &[u8]) -> Option<()> {
    if text.is_empty() {
        return Some(());
    }
    let text = blank(blank(text).strip_prefix(b";")?);
    let text = token_off(text)?;
    match blank(text).strip_prefix(b"=") {
        None => extensions(text),
        Some(value) => match blank(value).strip_prefix(b"\"") {
            None => extensions(token_off(blank(value))?),
            Some(quoted) => extensions(quoted_off(quoted)?),
        },
    }
}

fn blank(text: &[u8]) -> &[u8] {
    &text[text.iter().take_while(|b| **b == b' ' || **b == b'\t').count()..]
}

fn token_off(text: &[u8]) -> Option<&[u8]> {
    let length = text.iter().take_while(|b| tchar(**b)).count();
    if length == 0 { None } else { Some(&text[length..]) }
}

fn quoted_off(text: &[u8]) -> Option<&[u8]> {
    match text {
        [b'"', rest @ ..] => Some(rest),
        [b'\\', c, rest @ ..] | [c, rest @ ..] if printable(*c) => quoted_off(rest),
        _ => None,
    }
}

fn tchar(c: u8) -> bool {
    c.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&c)
}

/// Space, tab, visible ASCII and everything above ASCII.
fn printable(c: u8) -> bool {
    c == b'\t' || (c >= 0x20 && c != 0x7f)
}

/// Name and trimmed value of a field line.
fn field(line: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let colon = line.iter().position(|c| *c == b':')?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if name.is_empty() || !name.iter().all(|c| tchar(*c)) || !value.iter().all(|c| printable(*c)) {
        return None;
    }
    let blanks: &[char] = &[' ', '\t'];
    // Latin-1, so that every byte is one character.
    let text: String = value.iter().map(|c| *c as char).collect();
    Some((name.to_vec(), text.trim_matches(blanks).chars().map(|c| c as u8).collect()))
}

/// How a message's body is delimited.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Body {
    None,
    Fixed(u64),
    Chunked,
}

/// An accepted request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) length: usize,
    pub(crate) method: Vec<u8>,
    pub(crate) path_and_query: Vec<u8>,
    pub(crate) http_11: bool,
    pub(crate) fields: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) body: Body,
    pub(crate) keep_alive: bool,
}

/// `None`: refused, or not whole. Limits other than the defaults' counts are not modelled; give it less than they allow.
pub(crate) fn request(input: &[u8]) -> Option<Request> {
    let empty = (0..4).take_while(|n| input[2 * n..].starts_with(b"\r\n")).count() * 2;
    let (lines, length) = head_lines(&input[empty..])?;
    let (first, field_lines) = lines.split_first()?;
    let words: Vec<&[u8]> = first.split(|c| *c == b' ').collect();
    let &[method, target, version] = words.as_slice() else { return None };
    if method.is_empty() || method.len() > 32 || !method.iter().all(|c| tchar(*c)) || method == b"CONNECT" {
        return None;
    }
    let http_11 = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        _ => return None,
    };
    let path_and_query = origin_form(method, target)?;
    let fields: Vec<_> = field_lines.iter().map(|line| field(line)).collect::<Option<_>>()?;
    let hosts = values(&fields, "host");
    if hosts.len() > 1 || (http_11 && hosts.is_empty()) || !hosts.iter().all(|host| host.is_empty() || authority(host))
    {
        return None;
    }
    let counted = method == b"OPTIONS" || method == b"TRACE";
    let limits = values(&fields, "max-forwards");
    if counted
        && (limits.len() > 1
            || limits.iter().any(|limit| limit.is_empty() || !limit.chars().all(|c| c.is_ascii_digit())))
    {
        return None;
    }
    if values(&fields, "expect").iter().any(|value| !value.eq_ignore_ascii_case("100-continue")) {
        return None;
    }
    Some(Request {
        length: empty + length,
        method: method.to_vec(),
        path_and_query,
        http_11,
        body: body(&fields, http_11)?,
        keep_alive: keep_alive(&fields, http_11)?,
        fields,
    })
}

/// The lines of a head without their CRLF, and the head's length.
fn head_lines(input: &[u8]) -> Option<(Vec<&[u8]>, usize)> {
    let mut lines = Vec::new();
    let mut at = 0;
    loop {
        let Line::Whole(line) = line(&input[at..]) else { return None };
        at += line.len() + 2;
        if line.is_empty() {
            return Some((lines, at));
        }
        lines.push(line);
    }
}

fn origin_form(method: &[u8], target: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(target).ok()?;
    if !text.chars().all(|c| ('!'..='~').contains(&c) && c != '#') {
        return None;
    }
    if text.starts_with('/') || (text == "*" && method == b"OPTIONS") {
        return Some(target.to_vec());
    }
    let (scheme, rest) = text.split_once("://")?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return None;
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    if !authority(&rest[..end]) {
        return None;
    }
    let slash = if rest[end..].starts_with('/') { "" } else { "/" };
    Some(format!("{slash}{}", &rest[end..]).into_bytes())
}

fn authority(text: &str) -> bool {
    let (host, port) = match text.rfind(':') {
        Some(colon) if !text[colon..].contains(']') => (&text[..colon], &text[colon + 1..]),
        _ => (text, ""),
    };
    let host_is_valid = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._~".contains(c)),
    };
    let port_is_valid = port.is_empty()
        || (port.len() <= 5
            && port.chars().all(|c| c.is_ascii_digit())
            && port.parse::<u32>().is_ok_and(|p| p < 65_536));
    host_is_valid && port_is_valid
}

/// All values of a field, one character a byte.
fn values(fields: &[(Vec<u8>, Vec<u8>)], name: &str) -> Vec<String> {
    let of_name = fields.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name.as_bytes()));
    of_name.map(|(_, value)| value.iter().map(|c| *c as char).collect()).collect()
}

fn body(fields: &[(Vec<u8>, Vec<u8>)], http_11: bool) -> Option<Body> {
    let lengths = values(fields, "content-length");
    let codings = values(fields, "transfer-encoding");
    match (lengths.as_slice(), codings.as_slice()) {
        ([], []) => Some(Body::None),
        ([], [coding]) if http_11 && coding.eq_ignore_ascii_case("chunked") => Some(Body::Chunked),
        ([first, others @ ..], []) if others.iter().all(|other| other == first) => {
            let digits = first.len() <= 20 && first.chars().all(|c| c.is_ascii_digit());
            if digits { first.parse().ok().map(Body::Fixed) } else { None }
        }
        _ => None,
    }
}

fn keep_alive(fields: &[(Vec<u8>, Vec<u8>)], http_11: bool) -> Option<bool> {
    let blanks: &[char] = &[' ', '\t'];
    let all = values(fields, "connection");
    let options: Vec<String> =
        all.iter().flat_map(|v| v.split(',')).map(|o| o.trim_matches(blanks).to_ascii_lowercase()).collect();
    if options.len() > 32 {
        return None;
    }
    let has = |option: &str| options.iter().any(|o| o == option);
    Some(!has("close") && (http_11 || has("keep-alive")))
}

/// How an answer's body is delimited, its status and method aside.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ResponseBody {
    Fixed(u64),
    Chunked,
    UntilClose,
}

/// The head of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) length: usize,
    pub(crate) status: u16,
    pub(crate) body: ResponseBody,
}

/// `None`: no head of an answer, or not whole.
pub(crate) fn response(input: &[u8]) -> Option<Head> {
    let (lines, length) = head_lines(input)?;
    let (first, field_lines) = lines.split_first()?;
    let (version, rest) = first.split_at_checked(8)?;
    let http_11 = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        _ => return None,
    };
    let status = match rest {
        [b' ', a, b, c] | [b' ', a, b, c, b' ', ..] if [a, b, c].iter().all(|digit| digit.is_ascii_digit()) => {
            [a, b, c].iter().fold(0, |status, digit| status * 10 + u16::from(**digit - b'0'))
        }
        _ => return None,
    };
    if !(100..600).contains(&status) || !rest[4..].iter().all(|c| printable(*c)) {
        return None;
    }
    let fields: Vec<_> = field_lines.iter().map(|line| field(line)).collect::<Option<_>>()?;
    keep_alive(&fields, http_11)?;
    let body = match body(&fields, http_11)? {
        Body::None => ResponseBody::UntilClose,
        Body::Fixed(length) => ResponseBody::Fixed(length),
        Body::Chunked => ResponseBody::Chunked,
    };
    Some(Head { length, status, body })
}
