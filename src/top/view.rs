//! Draws the board. Knows nothing of where its figures come from.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table};

use super::board::{Board, Router, Row};

const UNKNOWN: &str = "-";
/// Titles and widths behind the backend's name; where there is no room, the last ones are left out.
const COLUMNS: [(&str, u16); 9] = [
    ("state", 8),
    ("qps", 7),
    ("flight", 6),
    ("wait", 5),
    ("err/s", 6),
    ("match", 5),
    ("engine", 6),
    ("ttfb50", 6),
    ("99 %", 6),
];

/// Of a name, at least so many columns are shown: an address and a port.
const NAME: u16 = 16;

/// `fault`: why the figures are not of now.
pub(super) fn draw(frame: &mut Frame, url: &str, board: &Board, fault: Option<&str>) {
    let [head, table, foot] =
        Layout::vertical([Constraint::Length(4), Constraint::Min(1), Constraint::Length(1)]).areas(frame.area());
    frame.render_widget(Paragraph::new(header(url, &board.router, fault)), head);
    frame.render_widget(backends(&board.rows, table), table);
    let over = format!(
        "q quits · over {:.0} s · cached: match believed, engine told · ttfb: to first byte",
        board.over.as_secs_f64()
    );
    frame.render_widget(Paragraph::new(over).style(Style::new().add_modifier(Modifier::DIM)), foot);
}

fn header<'a>(url: &'a str, router: &Router, fault: Option<&'a str>) -> Vec<Line<'a>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let title = Line::from(vec![
        Span::styled(format!("trieway {}", router.version), bold),
        Span::raw(format!(" at {url} · {} · {}", router.policy, router.io)),
    ]);
    let load = format!(
        "clients {}   queued {}   refused/s {}   cpu {} cores   memory {}",
        whole(router.connections),
        whole(router.queued),
        number(router.refused),
        router.cores.map_or(UNKNOWN.to_owned(), |cores| format!("{cores:.2}")),
        bytes(router.resident_bytes),
    );
    let full = router.trie_used_bytes.zip(router.trie_limit_bytes).map(|(used, limit)| used / limit);
    let trie = format!(
        "trie {} of {} ({})   evicted/s {}",
        bytes(router.trie_used_bytes),
        bytes(router.trie_limit_bytes),
        percent(full),
        number(router.evicted),
    );
    let fault = fault.map_or(Line::default(), |fault| Line::styled(fault, Style::new().fg(Color::Red)));
    vec![title, Line::raw(load), Line::raw(trie), fault]
}

fn backends<'a>(rows: &'a [Row], area: Rect) -> Table<'a> {
    let ends = COLUMNS.iter().scan(NAME, |end, (_, width)| {
        *end += width + 1;
        Some(*end)
    });
    let shown = ends.take_while(|end| *end <= area.width).count();
    let columns = &COLUMNS[..shown];
    let figures: u16 = columns.iter().map(|(_, width)| width + 1).sum();
    let name = Constraint::Length(area.width.saturating_sub(figures));
    let widths = std::iter::once(name).chain(columns.iter().map(|&(_, width)| Constraint::Length(width)));
    let titles = columns.iter().enumerate();
    let titles = titles.map(|(at, (title, _))| if at == 0 { Line::raw(*title) } else { right(*title) });
    let header = TableRow::new(std::iter::once(Line::raw("backend")).chain(titles));
    let rows = rows.iter().map(|row| TableRow::new(cells(row).into_iter().take(1 + shown)));
    Table::new(rows, widths).column_spacing(1).header(header.style(Style::new().add_modifier(Modifier::REVERSED)))
}

/// In the order of [`COLUMNS`], behind the name.
fn cells(row: &Row) -> [Cell<'_>; 1 + COLUMNS.len()] {
    let color = match row.state.as_str() {
        "up" => Color::Green,
        "down" | "refuses" => Color::Red,
        "" => Color::Reset,
        _ => Color::Yellow,
    };
    let errors = Style::new().fg(if row.errors.is_some_and(|errors| errors > 0.0) { Color::Red } else { Color::Reset });
    [
        Cell::from(row.name.strip_prefix("http://").unwrap_or(&row.name)),
        Cell::from(row.state.as_str()).style(Style::new().fg(color)),
        Cell::from(right(number(row.qps))),
        Cell::from(right(row.in_flight.to_string())),
        Cell::from(right(row.waiting.to_string())),
        Cell::from(right(number(row.errors))).style(errors),
        Cell::from(right(percent(row.hit))),
        Cell::from(right(percent(row.engine_hit))),
        Cell::from(right(seconds(row.ttfb_p50_s))),
        Cell::from(right(seconds(row.ttfb_p99_s))),
    ]
}

fn right<'a>(text: impl Into<Line<'a>>) -> Line<'a> {
    text.into().right_aligned()
}

fn number(value: Option<f64>) -> String {
    value
        .map_or(UNKNOWN.to_owned(), |value| if value >= 1000.0 { format!("{value:.0}") } else { format!("{value:.1}") })
}

fn whole(value: Option<f64>) -> String {
    value.map_or(UNKNOWN.to_owned(), |value| format!("{value:.0}"))
}

fn percent(share: Option<f64>) -> String {
    share.map_or(UNKNOWN.to_owned(), |share| format!("{:.0} %", share * 100.0))
}

fn seconds(value: Option<f64>) -> String {
    value.map_or(UNKNOWN.to_owned(), |s| match s {
        s if s < 0.001 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s => format!("{s:.1} s"),
    })
}

fn bytes(value: Option<f64>) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let Some(mut value) = value else { return UNKNOWN.to_owned() };
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value < 10.0 && unit > 0 { format!("{value:.1} {}", UNITS[unit]) } else { format!("{value:.0} {}", UNITS[unit]) }
}
