//! Backend URLs: `http://host:port[/base]`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::secret::quoted_url;

/// Where a backend listens. Two URLs that name the same place compare equal: the host is lower case, the port is always
/// there, and the base path has no slash at its end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BackendUrl {
    /// Name or address, without brackets.
    pub host: String,
    pub port: u16,
    /// Prefix of every path, empty or beginning with a slash.
    pub base_path: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlError(String);

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UrlError {}

impl BackendUrl {
    /// # Errors
    /// A sentence that names the URL, without what may be a secret in it, and what is wrong.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        Self::parse_item(text, text)
    }

    /// One of a list, which says what may be shown of it.
    pub(super) fn parse_item(text: &str, list: &str) -> Result<Self, UrlError> {
        let refuse = |what: &str| {
            let quoted = quoted_url(text, list);
            UrlError(format!("backend '{quoted}': {what}; write http://host:port or http://host:port/base"))
        };
        if text.bytes().any(|b| b <= b' ' || b == 0x7f) {
            return Err(refuse("it holds a space or a control character"));
        }
        let rest = match text.split_once("://") {
            Some(("http", rest)) => rest,
            Some(("https", _)) => return Err(refuse("https to backends is not supported")),
            Some(_) => return Err(refuse("the scheme is not http")),
            None => return Err(refuse("it has no scheme")),
        };
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        // Also behind a slash, which a password may hold.
        if text.contains('@') {
            return Err(refuse("it holds an at sign; user names and passwords are not supported"));
        }
        if path.contains(['?', '#']) || authority.contains(['?', '#']) {
            return Err(refuse("a query or a fragment is not allowed"));
        }
        let (host, port) = split_port(authority).ok_or_else(|| refuse("its address is not valid"))?;
        let port = match port {
            None => 80,
            Some(port) => port
                .parse()
                .ok()
                .filter(|&p: &u16| p != 0)
                .ok_or_else(|| refuse("the port is not a number from 1 to 65535"))?,
        };
        if host.is_empty() {
            return Err(refuse("it has no host"));
        }
        Ok(BackendUrl { host, port, base_path: path.trim_end_matches('/').to_owned() })
    }

    /// Where to connect, when the host is an address and no name has to be looked up.
    pub fn literal_address(&self) -> Option<SocketAddr> {
        self.host.parse().ok().map(|ip: IpAddr| SocketAddr::new(ip, self.port))
    }

    /// `host:port` as it stands in a `Host` field.
    pub fn authority(&self) -> String {
        if self.host.parse::<Ipv6Addr>().is_ok() {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for BackendUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority(), self.base_path)
    }
}

/// Host (lower case, unbracketed) and the text of the port.
fn split_port(authority: &str) -> Option<(String, Option<&str>)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, after) = rest.split_once(']')?;
        let host: Ipv6Addr = host.parse().ok()?;
        return match after.strip_prefix(':') {
            Some(port) => Some((host.to_string(), Some(port))),
            None if after.is_empty() => Some((host.to_string(), None)),
            None => None,
        };
    }
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    };
    let numeric = host.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let valid = if numeric {
        host.parse::<IpAddr>().is_ok()
    } else {
        host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
    };
    valid.then(|| (host.to_ascii_lowercase(), port))
}

#[cfg(test)]
mod tests {
    use super::{BackendUrl, quoted_url};

    #[test]
    fn one_form_for_one_place() {
        for (text, shown) in [
            ("http://10.0.0.1:8000", "http://10.0.0.1:8000"),
            ("http://10.0.0.1:8000/", "http://10.0.0.1:8000"),
            ("http://Engine-0:8000/v/", "http://engine-0:8000/v"),
            ("http://vllm", "http://vllm:80"),
            ("http://[::1]:9000/a/b", "http://[::1]:9000/a/b"),
            ("http://[0:0::1]", "http://[::1]:80"),
            ("http://engine_1.default.svc:8000", "http://engine_1.default.svc:8000"),
        ] {
            assert_eq!(BackendUrl::parse(text).map(|u| u.to_string()).as_deref(), Ok(shown), "{text}");
        }
    }

    #[test]
    fn refuses_by_name() {
        for text in [
            "",
            "host:8000",
            "https://h:1",
            "ftp://h:1",
            "http://",
            "http://:80",
            "http://h:",
            "http://h:0",
            "http://h:65536",
            "http://h:80:80",
            "http://u@h:1",
            "http://u:p/w@h:1",
            "http://h:1/?q",
            "http://h:1#f",
            "http://[::1",
            "http://[::g]:1",
            "http://1.2.3:1",
            "http://a b:1",
            "http://h\n:1",
        ] {
            let error = BackendUrl::parse(text).expect_err(text).to_string();
            assert!(error.starts_with(&format!("backend '{}': ", quoted_url(text, text))), "{error}");
        }
    }
}
