//! Where log lines go: stderr, as text or JSON; a line is one `write(2)`.
//!
//! The writer is a descriptor of its own and not the standard library's `stderr`, which holds a lock while it writes: with
//! `--log-requests` the workers write lines, too, and shall not wait for one another there.

use std::fs::File;
use std::io::{IsTerminal, stderr};
use std::os::fd::AsFd;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::config::{Log, LogFormat, LogLevel};

/// Sends this process's log lines to stderr. A second call changes nothing.
pub fn init_logging(log: &Log) {
    let level = match log.level {
        LogLevel::Trace => LevelFilter::TRACE,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Warning => LevelFilter::WARN,
        LogLevel::Error => LevelFilter::ERROR,
    };
    let writer = match stderr().as_fd().try_clone_to_owned() {
        Ok(descriptor) => BoxMakeWriter::new(File::from(descriptor)),
        Err(_) => BoxMakeWriter::new(stderr),
    };
    // A line that cannot be written is lost. Telling so on stderr, which is where it was to go, would panic.
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_writer(writer)
        .log_internal_errors(false);
    // An error means that a subscriber is there already, as in a test: it stays.
    let _ = match log.format {
        LogFormat::Text => tracing::subscriber::set_global_default(builder.with_ansi(stderr().is_terminal()).finish()),
        LogFormat::Json => tracing::subscriber::set_global_default(builder.json().flatten_event(true).finish()),
    };
}
