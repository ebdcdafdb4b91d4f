//! Whether a request that got no answer may be sent again, and to whom.
//!
//! Two ends of a connection look alike: one that the backend closed before the request came, and one of a backend that read
//! the request and died of it. The first is common where a connection is used again, so such a request goes once more, to the
//! same backend, on a fresh connection. To another backend it goes only when none can have read a byte of it: one request
//! must never end several backends.
//!
//! Must not know: sockets, HTTP. A table, tested row by row.

/// What may have been read of the request so far, by the backend that has its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sent {
    Nothing,
    Part,
    Whole,
    /// The whole, and its body is not kept any more.
    Released,
}

/// How the connection began on which it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connection {
    Fresh,
    /// It has served a request before.
    Reused,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// There was no connection.
    Refused,
    /// An error of the connection, before a byte of an answer.
    Reset,
    /// An end, before a byte of an answer.
    Closed,
    /// A time limit passed: of connecting where nothing was sent, else of the answer's first byte.
    Silent,
    /// A byte of an answer came.
    Answered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The answer is the client's, however it goes on.
    Relay,
    /// Once more, on a fresh connection.
    SameBackend,
    OtherBackend,
    Fail,
}

pub(super) fn next(sent: Sent, connection: Connection, outcome: Ended) -> Next {
    match (outcome, connection, sent) {
        (Ended::Answered, _, _) => Next::Relay,
        (Ended::Reset | Ended::Closed, Connection::Reused, Sent::Nothing | Sent::Part | Sent::Whole) => {
            Next::SameBackend
        }
        (_, Connection::Fresh, Sent::Nothing) => Next::OtherBackend,
        (Ended::Refused | Ended::Silent, Connection::Reused, _)
        | (_, Connection::Fresh, Sent::Part | Sent::Whole | Sent::Released)
        | (Ended::Reset | Ended::Closed, Connection::Reused, Sent::Released) => Next::Fail,
    }
}

#[cfg(test)]
mod tests {
    use super::Connection::{Fresh, Reused};
    use super::Ended::{Answered, Closed, Refused, Reset, Silent};
    use super::Next::{Fail, OtherBackend, Relay, SameBackend};
    use super::Sent::{Nothing, Part, Released, Whole};
    use super::next;

    #[test]
    fn every_transition() {
        let outcomes = [Refused, Reset, Closed, Silent, Answered];
        for (connection, sent, expected) in [
            (Fresh, Nothing, [OtherBackend, OtherBackend, OtherBackend, OtherBackend, Relay]),
            (Fresh, Part, [Fail, Fail, Fail, Fail, Relay]),
            (Fresh, Whole, [Fail, Fail, Fail, Fail, Relay]),
            (Fresh, Released, [Fail, Fail, Fail, Fail, Relay]),
            // What is reused is connected: the first of each row can't be.
            (Reused, Nothing, [Fail, SameBackend, SameBackend, Fail, Relay]),
            (Reused, Part, [Fail, SameBackend, SameBackend, Fail, Relay]),
            (Reused, Whole, [Fail, SameBackend, SameBackend, Fail, Relay]),
            (Reused, Released, [Fail, Fail, Fail, Fail, Relay]),
        ] {
            for (outcome, expected) in outcomes.into_iter().zip(expected) {
                assert_eq!(next(sent, connection, outcome), expected, "{sent:?} on {connection:?}, {outcome:?}");
            }
        }
    }

    /// A retry is on a fresh connection, and what was sent stays sent: no request goes a third time, nor to a second backend
    /// once it may have been read.
    #[test]
    fn a_request_goes_twice_at_most() {
        for sent in [Part, Whole, Released] {
            for outcome in [Refused, Reset, Closed, Silent] {
                assert_eq!(next(sent, Fresh, outcome), Fail);
                assert_ne!(next(sent, Reused, outcome), OtherBackend);
            }
        }
    }
}
