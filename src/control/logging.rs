//! Where log lines go: stderr, as text or JSON.

use std::io::IsTerminal;

use tracing::level_filters::LevelFilter;

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
    let builder = tracing_subscriber::fmt().with_max_level(level).with_target(false).with_writer(std::io::stderr);
    // An error means that a subscriber is there already, as in a test: it stays.
    let _ = match log.format {
        LogFormat::Text => {
            tracing::subscriber::set_global_default(builder.with_ansi(std::io::stderr().is_terminal()).finish())
        }
        LogFormat::Json => tracing::subscriber::set_global_default(builder.json().flatten_event(true).finish()),
    };
}
