//! How each fault is carried out: before the answer, in its form, and behind it.
//!
//! What concerns a whole engine (`refuse`, `deaf`) is the server's business; `delay`, `early-413` and `status` act in the
//! exchange, where their moment is.

use std::time::Duration;

use super::answer::Form;
use super::conn::{Conn, Farewell, Phase};
use super::faults::Fault;
use super::http::Framing;

const BIG_HEAD_BYTES: usize = 200 * 1024;

/// What happens once the request has been read. True: that was all.
pub(crate) fn before(conn: &mut Conn, fault: Option<Fault>) -> bool {
    conn.drip = None;
    match fault {
        Some(Fault::Hang) => conn.phase = Phase::Hung,
        Some(Fault::ResetBeforeHead) => leave(conn, Farewell::Reset),
        Some(Fault::FinBeforeHead) => leave(conn, Farewell::Fin),
        Some(Fault::BadHead) => {
            conn.output.extend_from_slice(b"HTP/1.1 2OO OK\r\ncontent-length 0\r\n\r\n");
            leave(conn, Farewell::Fin);
        }
        Some(Fault::BigHead) => {
            conn.output.extend_from_slice(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-filler: ");
            conn.output.resize(conn.output.len() + BIG_HEAD_BYTES, b'x');
            conn.output.extend_from_slice(b"\r\n\r\n");
            leave(conn, Farewell::Fin);
        }
        Some(Fault::Unasked101) => {
            let head = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
            conn.output.extend_from_slice(head);
            conn.phase = Phase::Hung;
        }
        Some(Fault::Informational) => {
            conn.output.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            conn.output.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\nlink: </hint>; rel=preload\r\n\r\n");
            return false;
        }
        Some(Fault::SlowBytes(ms)) => {
            conn.drip = Some(Duration::from_millis(ms));
            return false;
        }
        Some(Fault::Close) => {
            conn.farewell = Farewell::Fin;
            return false;
        }
        _ => return false,
    }
    true
}

/// Bends the form of a generated answer.
pub(crate) fn shape(form: &mut Form, fault: Option<Fault>) {
    match fault {
        Some(Fault::HangAfterHead | Fault::ResetAfterHead) => form.cut_after = Some(0),
        Some(Fault::ResetAfter(tokens) | Fault::FinAfter(tokens)) => form.cut_after = Some(tokens),
        Some(Fault::FinInChunk | Fault::BadChunk) => {
            form.framing = Some(Framing::Chunked);
            form.cut_after = Some(1);
        }
        // Longer than any answer that a test asks for.
        Some(Fault::ShortLength) => form.framing = Some(Framing::Length(1 << 40)),
        Some(Fault::BothLengths) => form.framing = Some(Framing::Both(10)),
        Some(Fault::NoLength) => {
            form.framing = Some(Framing::Close);
            form.keep_alive = false;
        }
        Some(Fault::Close) => form.keep_alive = false,
        _ => {}
    }
}

/// What follows behind a generated answer, or behind what was sent of it when it was cut.
pub(crate) fn after(conn: &mut Conn, fault: Option<Fault>, cut: bool) {
    match fault {
        Some(Fault::HangAfterHead) => conn.phase = Phase::Hung,
        Some(Fault::ResetAfterHead) => leave(conn, Farewell::Reset),
        Some(Fault::ResetAfter(_)) if cut => leave(conn, Farewell::Reset),
        Some(Fault::FinAfter(_)) if cut => leave(conn, Farewell::Fin),
        Some(Fault::ShortLength) => leave(conn, Farewell::Fin),
        Some(Fault::FinInChunk) => {
            conn.output.extend_from_slice(b"40\r\nhalf a chunk");
            leave(conn, Farewell::Fin);
        }
        Some(Fault::BadChunk) => {
            conn.output.extend_from_slice(b"-5\r\nwrong\r\n0\r\n\r\n");
            leave(conn, Farewell::Fin);
        }
        Some(Fault::Surplus) => {
            let another = b"HTTP/1.1 200 OK\r\nx-surplus: 1\r\ncontent-length: 7\r\n\r\nsurplus";
            conn.output.extend_from_slice(another);
        }
        _ => {}
    }
}

fn leave(conn: &mut Conn, farewell: Farewell) {
    conn.farewell = farewell;
    conn.phase = Phase::Ending;
}
