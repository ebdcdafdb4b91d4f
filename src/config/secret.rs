//! What must not leave the process: keys, by a type that cannot be written out, and what stands in a URL beside the place
//! that it names, by the one function that all quotations go through.
//!
//! Invariants: a [`Secret`] has no text form, only `expose`, and `tests/tidy.rs` names the files that may call it. A
//! [`ConfigError`] holds no userinfo and no query of a URL, whatever it was made from.

use std::fmt;

use serde::Serialize;

/// A value that must not be shown. It has neither `Display` nor `Serialize`, and `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(value: String) -> Self {
        Secret(value)
    }

    /// The value itself, for whoever sends it or compares it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Secret(value)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What is wrong with a configuration: a line for people. It may be shown to everybody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ConfigError(String);

impl ConfigError {
    pub fn new(line: &str) -> Self {
        ConfigError(without_userinfo(line))
    }

    /// What a library says of a file with secrets, without what it quotes.
    pub fn of_library(message: &str) -> Self {
        Self::new(&without_quotations(message))
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

/// Characters of a quotation; beyond, it is cut.
const LONGEST: usize = 200;

/// A text that is meant to be a URL, as an error may quote it; `whole` is the list that it is an item of. Left out is what
/// may be a password, also where the text is no URL at all: everything but the scheme where there is an `@`, which may stand in
/// a password, too; a port that is no number, a query, a fragment. In a list with an `@`, any item may be a part of a password
/// with a comma.
pub(super) fn quoted_url(text: &str, whole: &str) -> String {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            (format!("{scheme}://"), rest)
        }
        _ => (String::new(), text),
    };
    let rest = if whole.contains('@') || rest.contains('@') { "…".to_owned() } else { rest.to_owned() };
    let (authority, path) = rest.find('/').map_or((rest.as_str(), ""), |at| rest.split_at(at));
    let port_at = authority.rfind(']').unwrap_or(0);
    let port = authority[port_at..].find(':').map(|at| port_at + at);
    let place = match port.map(|at| authority.split_at(at)) {
        // What begins as a password may go on behind a slash.
        Some((host, port)) if port.len() > 6 || !port[1..].bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("{host}:…")
        }
        _ => format!("{authority}{path}"),
    };
    cut(&format!("{scheme}{place}"))
}

/// A key of a file, as an error may quote it: only what looks like a flag's name, since a slip of the pen can make a key of
/// a value.
pub(super) fn quoted_key(key: &str) -> &str {
    let plain = key.trim_start_matches("k8s");
    let is_name = key.len() <= 60 && plain.bytes().all(|byte| byte.is_ascii_lowercase() || matches!(byte, b'-' | b'_'));
    if is_name { key } else { "…" }
}

/// A library's message without what it quotes of the text. Single characters are what the parser stumbled over.
pub(super) fn without_quotations(message: &str) -> String {
    const MARKS: [char; 3] = ['\'', '"', '`'];
    let mut out = String::new();
    let mut rest = message;
    while let Some(open) = rest.find(MARKS) {
        let mark = rest[open..].chars().next().unwrap_or_default();
        out.push_str(&rest[..=open]);
        let inside = &rest[open + 1..];
        // A quotation that does not end goes to the end of the message; one that holds its own mark, to its last one.
        let Some(close) = inside.find(mark) else {
            out.push('…');
            return out;
        };
        out.push_str(if inside[..close].chars().count() <= 1 { &inside[..close] } else { "…" });
        out.push(mark);
        rest = &inside[close + 1..];
    }
    out.push_str(rest);
    out
}

/// The line without the words that hold an `@`, but for their schemes. A word ends at a quotation mark or a blank.
fn without_userinfo(line: &str) -> String {
    let mut out = String::new();
    for word in line.split_inclusive([' ', '\'', '"', '\n']) {
        if !word.contains('@') {
            out.push_str(word);
            continue;
        }
        out.push_str(word.find("://").map_or("", |end| &word[..end + 3]));
        out.push('…');
        out.extend(word.chars().last().filter(|end| [' ', '\'', '"', '\n'].contains(end)));
    }
    out
}

fn cut(text: &str) -> String {
    let mut shown: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST).collect();
    if text.chars().count() > LONGEST {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_url_names_its_place_and_nothing_else() {
        for (text, quoted) in [
            ("http://h:1/base", "http://h:1/base"),
            ("http://[::1]:9000/a", "http://[::1]:9000/a"),
            ("http://user:pass@h:1/base", "http://…"),
            ("http://us@er:pa/ss@h:1", "http://…"),
            ("http://user:pass", "http://user:…"),
            ("http://user:pa/ss", "http://user:…"),
            ("user:pass@h", "…"),
            ("user:pass", "user:…"),
            ("http://h:1?key=x", "http://h:1"),
            ("http://h:1/a#x", "http://h:1/a"),
            ("http://h\n:1", "http://h :1"),
            ("h:8000", "h:8000"),
            ("http://h:80:80", "http://h:…"),
            ("http://h:65536", "http://h:65536"),
            ("http://user:123456", "http://user:…"),
            ("", ""),
        ] {
            assert_eq!(quoted_url(text, text), quoted, "{text}");
        }
        let list = "http://user:12,345@h:1";
        let quoted: Vec<_> = list.split(',').map(|item| quoted_url(item, list)).collect();
        assert_eq!(quoted, ["http://…", "…"]);
        assert_eq!(quoted_url(&"x".repeat(999), "").chars().count(), LONGEST + 1);
    }

    #[test]
    fn an_error_holds_no_userinfo() {
        for (line, shown) in [
            ("nothing of that kind", "nothing of that kind"),
            ("invalid value 'http://u:p@h:1' for '--url'", "invalid value 'http://…' for '--url'"),
            ("a u:p@h b", "a … b"),
        ] {
            assert_eq!(ConfigError::new(line).to_string(), shown);
        }
    }

    #[test]
    fn a_librarys_message_loses_its_quotations() {
        for (message, left) in [
            ("expected ':' here", "expected ':' here"),
            ("invalid type: integer `99999` as u128", "invalid type: integer `…` as u128"),
            ("unknown 'a b' and \"c\"", "unknown '…' and \"c\""),
            ("found 'open", "found '…"),
        ] {
            assert_eq!(without_quotations(message), left);
        }
        assert_eq!(
            (quoted_key("static_backends"), quoted_key("k8s-port"), quoted_key("Hunter2")),
            ("static_backends", "k8s-port", "…")
        );
    }

    #[test]
    fn a_secret_has_no_text_form() {
        assert_eq!(format!("{:?}", Some(Secret::new("hunter2".to_owned()))), "Some(Secret(…))");
    }
}
