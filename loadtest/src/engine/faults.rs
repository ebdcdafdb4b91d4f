//! The ways in which an engine can misbehave on demand, by name.
//!
//! Must not know: how a fault is carried out; that is the exchange's and the answer's business.

use std::str::FromStr;

/// One kind of misbehaviour. Times are milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Refuse,
    Deaf,
    Hang,
    HangAfterHead,
    ResetBeforeHead,
    FinBeforeHead,
    ResetAfterHead,
    ResetAfter(u64),
    FinAfter(u64),
    FinInChunk,
    ShortLength,
    BothLengths,
    NoLength,
    BadChunk,
    BadHead,
    BigHead,
    SlowBytes(u64),
    Delay(u64),
    Surplus,
    Early413,
    Informational,
    Unasked101,
    Close,
    Status(u64),
}

/// Name, whether it takes `=NUMBER`, meaning. The order is that of the help.
const TABLE: &[(&str, bool, &str)] = &[
    ("refuse", false, "the port is closed: connecting is refused (whole engine only)"),
    ("deaf", false, "listens and never accepts; a full backlog then drops SYNs (whole engine only)"),
    ("hang", false, "reads the request and never answers"),
    ("hang-after-head", false, "sends the response head and nothing more"),
    ("reset-before-head", false, "RST once the request has been read"),
    ("fin-before-head", false, "FIN once the request has been read"),
    ("reset-after-head", false, "RST behind the response head"),
    ("reset-after", true, "RST after N tokens (streamed: N events)"),
    ("fin-after", true, "FIN after N tokens, short of the announced end"),
    ("fin-in-chunk", false, "FIN in the middle of a chunk"),
    ("short-length", false, "announces more bytes by Content-Length than it sends, then FIN"),
    ("both-lengths", false, "a response with Content-Length and Transfer-Encoding"),
    ("no-length", false, "a response without length that ends with the connection"),
    ("bad-chunk", false, "a chunk whose size is not a number"),
    ("bad-head", false, "a response head that is not HTTP"),
    ("big-head", false, "a response head of 200 KB"),
    ("slow-bytes", true, "the response comes byte by byte, N ms apart"),
    ("delay", true, "begins N ms late"),
    ("surplus", false, "another response's bytes follow behind the response"),
    ("early-413", false, "413 and FIN before the body has been read"),
    ("1xx", false, "100 and 103 precede the response"),
    ("101", false, "101 Switching Protocols that nobody asked for"),
    ("close", false, "a good response with Connection: close, then FIN"),
    ("status", true, "answers status N with an error body"),
];

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, number) = match text.split_once('=') {
            Some((name, digits)) => {
                (name, Some(digits.parse::<u64>().map_err(|_| format!("fault {name} takes a number, not {digits:?}"))?))
            }
            None => (text, None),
        };
        let Some((_, takes_number, _)) = TABLE.iter().find(|(known, ..)| *known == name) else {
            let known: Vec<&str> = TABLE.iter().map(|(name, ..)| *name).collect();
            return Err(format!("unknown fault {name:?}; known: {}", known.join(", ")));
        };
        if *takes_number != number.is_some() {
            let wants = if *takes_number { "wants a number: NAME=N" } else { "takes no number" };
            return Err(format!("fault {name} {wants}"));
        }
        let n = number.unwrap_or(0);
        Ok(match name {
            "refuse" => Self::Refuse,
            "deaf" => Self::Deaf,
            "hang" => Self::Hang,
            "hang-after-head" => Self::HangAfterHead,
            "reset-before-head" => Self::ResetBeforeHead,
            "fin-before-head" => Self::FinBeforeHead,
            "reset-after-head" => Self::ResetAfterHead,
            "reset-after" => Self::ResetAfter(n),
            "fin-after" => Self::FinAfter(n),
            "fin-in-chunk" => Self::FinInChunk,
            "short-length" => Self::ShortLength,
            "both-lengths" => Self::BothLengths,
            "no-length" => Self::NoLength,
            "bad-chunk" => Self::BadChunk,
            "bad-head" => Self::BadHead,
            "big-head" => Self::BigHead,
            "slow-bytes" => Self::SlowBytes(n),
            "delay" => Self::Delay(n),
            "surplus" => Self::Surplus,
            "early-413" => Self::Early413,
            "1xx" => Self::Informational,
            "101" => Self::Unasked101,
            "close" => Self::Close,
            "status" if (200..600).contains(&n) => Self::Status(n),
            _ => return Err(format!("fault {text} is out of range")),
        })
    }
}

/// The table for `--help`.
pub(crate) fn help() -> String {
    let mut text = String::from("Faults, for --fault, the request header X-Fault and POST /debug/fault?set=:\n");
    for (name, takes_number, meaning) in TABLE {
        let name = if *takes_number { format!("{name}=N") } else { (*name).to_owned() };
        text.push_str(&format!("  {name:<18} {meaning}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_of_the_table_can_be_named() {
        for (name, takes_number, _) in TABLE {
            let text = if *takes_number { format!("{name}=429") } else { (*name).to_owned() };
            assert!(text.parse::<Fault>().is_ok(), "{text}");
            let wrong = if *takes_number { (*name).to_owned() } else { format!("{name}=1") };
            assert!(wrong.parse::<Fault>().is_err(), "{wrong}");
        }
        assert_eq!("reset-after=3".parse(), Ok(Fault::ResetAfter(3)));
        assert!("explode".parse::<Fault>().unwrap_err().contains("hang-after-head"));
    }
}
