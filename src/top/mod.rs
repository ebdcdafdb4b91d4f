//! `trieway top`: what a running router does, live in the terminal.
//!
//! Reads `/engines` and `/metrics` of the router at `--url` once an interval (`fetch`), understands them (`scrape`), turns
//! the difference of two scrapes into figures (`board`, pure) and draws those (`view`).
//!
//! Must not know the router's inside: it sees what every client of those two paths sees, so it can look at another machine's
//! router, and at one of another version.

mod board;
mod fetch;
mod scrape;
mod view;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use crate::config::TopOptions;
use board::Board;
use scrape::Scrape;

/// Rates and quantiles are of so many intervals: of a single one they would jump.
const INTERVALS: usize = 10;

/// Above it, the router counts as gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs until somebody quits.
///
/// # Errors
/// A sentence: standard output is no terminal.
pub fn run(options: &TopOptions) -> Result<(), String> {
    let mut terminal = ratatui::try_init().map_err(|error| format!("top needs a terminal: {error}"))?;
    let ended = watch(&mut terminal, options);
    ratatui::restore();
    ended.map_err(|error| format!("the terminal failed: {error}"))
}

fn watch(terminal: &mut DefaultTerminal, options: &TopOptions) -> std::io::Result<()> {
    let mut history: VecDeque<(Instant, Scrape)> = VecDeque::new();
    let mut board = Board::default();
    loop {
        let due = Instant::now() + options.interval;
        let fault = match fetch::scrape(options) {
            Ok(scrape) => {
                history.push_back((Instant::now(), scrape));
                history.drain(..history.len().saturating_sub(INTERVALS + 1));
                board = latest(&history);
                None
            }
            Err(fault) => Some(fault),
        };
        loop {
            terminal.draw(|frame| view::draw(frame, &options.url.to_string(), &board, fault.as_deref()))?;
            let left = due.saturating_duration_since(Instant::now());
            if !event::poll(left)? {
                break;
            }
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
                && (matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
                    || key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL))
            {
                return Ok(());
            }
        }
    }
}

fn latest(history: &VecDeque<(Instant, Scrape)>) -> Board {
    match (history.front(), history.back()) {
        (Some((then, before)), Some((now, after))) => Board::between(before, after, now.duration_since(*then)),
        _ => Board::default(),
    }
}
