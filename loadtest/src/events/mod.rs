//! What a proxy does to single events: a source that stamps each with the time at which it was sent, and a sink that
//! reads the stamps.
//!
//! Both ask the same machine's clock, so the difference is the event's way through whatever stands between. A thread a
//! stream and blocking calls: nothing here waits for a timer that is coarser than the kernel's own.
//!
//! Must not know: which proxy stands between. What the source is to do stands in the prompt, the one place that every
//! router passes on unchanged.

mod sink;
mod source;

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};

pub use sink::Sink;
pub use source::Source;

/// Streams of stamped events: their source or their reader.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(subcommand)]
    side: Side,
}

#[derive(Subcommand, Clone, Debug)]
enum Side {
    /// Serve them: prints its port
    Source(Source),
    /// Read them: prints one line of figures
    Sink(Sink),
}

/// Runs one side. Errors: an address that cannot be had, or a stream that is not one.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    match &options.side {
        Side::Source(source) => source.run(),
        Side::Sink(sink) => sink.run(),
    }
    .map(|()| ExitCode::SUCCESS)
}

/// What the source is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    /// Before the first event.
    wait_us: u64,
    /// Between two events; 0: as fast as the connection takes them, each in a write of its own.
    gap_us: u64,
    events: u64,
}

impl Order {
    fn body(self) -> String {
        let Order { wait_us, gap_us, events } = self;
        format!(
            r#"{{"model":"fake-llm","stream":true,"messages":[{{"role":"user","content":"wait_us={wait_us} gap_us={gap_us} events={events} "}}]}}"#
        )
    }

    /// None: the body orders nothing.
    fn find(body: &str) -> Option<Self> {
        let number = |name: &str| {
            let (_, rest) = body.split_once(name)?;
            rest.split(' ').next()?.parse().ok()
        };
        Some(Order { wait_us: number("wait_us=")?, gap_us: number("gap_us=")?, events: number("events=")? })
    }
}

/// What stands before a stamp in an event, and the stamp's length.
const STAMP: &[u8] = b"sent_us=";
const DIGITS: usize = 16;
/// The last event.
const DONE: &[u8] = b"data: [DONE]\n\n";

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_found_in_the_prompt() {
        let order = Order { wait_us: 3000, gap_us: 0, events: 77 };
        assert_eq!(Order::find(&order.body()), Some(order));
        assert_eq!(Order::find("{}"), None);
    }
}
