//! `weir top` on a terminal: the table, refreshed each second, with bars for used units.
//!
//! Three threads feed the loop that draws: one reads keys, one queries the gateway, so that a slow
//! gateway does not hold up the keys, and one waits for signals.

use std::collections::BTreeSet;
use std::env;
use std::io::{self, IsTerminal};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use weir_console::findings::FindingSeverity;
use weir_telemetry::printable;

use super::admin::{Period, Sort, TopQuery};
use super::findings::{self, Finding};
use super::tables::{counted_line, name_or_id};
use super::wrap::{cells_of, continued, fitted, wrapped};
use crate::app::{AdminClient, AdminError};

/// How often the gateway is asked.
const REFRESH: Duration = Duration::from_secs(1);

/// Subjects per query: more than a screen has, so that one can scroll.
const COUNT: u32 = 100;

/// Cells of a bar, and of the number behind it.
const BAR: u16 = 20;
const PERCENT: u16 = 5;

/// For how many cells of a subject other columns give way: for all addresses and networks, and not
/// for whatever a client has made up.
const MAX_SUBJECT: u16 = 45;

/// Cells between columns.
const GAP: u16 = 2;

/// Which columns give way to the subject on a narrow terminal, one after the other, and the cells
/// that each of them has then; none if it goes.
const GIVE_WAY: [(Column, u16); 7] = [
    (Column::Used, PERCENT),
    (Column::Rate, 0),
    (Column::Limit, 5),
    (Column::Used, 0),
    (Column::Denied, 0),
    (Column::Limit, 0),
    (Column::Requests, 0),
];

/// The share of a bucket from which on a subject counts as near its limit.
const NEAR: f64 = 0.8;

const KEYS: &str =
    "q quit  r requests  d denied  u used  p period  l limit  f fleet  \u{2191}\u{2193} scroll";

/// Rows that findings leave to the table, if it has as many, and unless that is over half of all.
const TABLE_ROWS: u16 = 8;

/// Cells before the text of a finding, and the terminal that is too narrow for them.
const INDENT: usize = 12;
const NARROW: usize = 2 * INDENT;

/// Whether input and output are a terminal.
pub(super) fn is_possible() -> bool {
    let is_dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && io::stdin().is_terminal() && !is_dumb
}

/// An input of the loop.
enum Message {
    Key(KeyEvent),
    Resized,
    Response(Result<Value, String>),
    /// A signal, or a terminal that is gone.
    End,
}

/// Shows the view until a key or a signal ends it.
pub(super) fn run(client: AdminClient, query: TopQuery) -> Result<(), AdminError> {
    // An error of the first query is printed like all errors of commands.
    let first = fetch(&client, &query)?;
    let mut view = View::new(query, !is_colorless());
    view.update(Ok(first));
    let of_terminal = |error: io::Error| AdminError::Refused(format!("the terminal: {error}"));
    // It has a panic restore the terminal first.
    let mut terminal = ratatui::try_init().map_err(of_terminal)?;
    let _restored = Restored;
    let (messages, received) = channel();
    let (queries, asked) = channel();
    let query = view.query.clone();
    thread::spawn({
        let messages = messages.clone();
        move || poll_gateway(&client, query, &asked, &messages)
    });
    thread::spawn({
        let messages = messages.clone();
        move || read_keys(&messages)
    });
    thread::spawn(move || wait_for_signals(&messages));
    loop {
        let drawn = terminal.draw(|frame| view.draw(frame));
        drawn.map_err(of_terminal)?;
        match received.recv() {
            Ok(Message::Key(key)) => match view.pressed(key) {
                Pressed::End => return Ok(()),
                // The asking thread ends with the process alone.
                Pressed::Ask => drop(queries.send(view.query.clone())),
                Pressed::Redraw => {}
            },
            Ok(Message::Resized) => {}
            Ok(Message::Response(response)) => view.update(response),
            Ok(Message::End) | Err(_) => return Ok(()),
        }
    }
}

/// The subjects, and what needs attention among them.
fn fetch(client: &AdminClient, query: &TopQuery) -> Result<Value, AdminError> {
    let mut answer = query.ask(client, COUNT)?;
    let mut found = findings::ask(client, !query.alone)?;
    for name in ["gateway", "findings"] {
        let found = found.get_mut(name).map(Value::take);
        if let (Some(members), Some(found)) = (answer.as_object_mut(), found) {
            members.insert(name.to_owned(), found);
        }
    }
    Ok(answer)
}

struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Whether colours are unwanted (no-color.org).
fn is_colorless() -> bool {
    env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Asks each second, and at once after the query has changed.
fn poll_gateway(
    client: &AdminClient,
    mut query: TopQuery,
    asked: &Receiver<TopQuery>,
    messages: &Sender<Message>,
) {
    loop {
        match asked.recv_timeout(REFRESH) {
            // Only the last of several counts.
            Ok(other) => query = asked.try_iter().last().unwrap_or(other),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let answer = fetch(client, &query).map_err(|error| error.to_string());
        if messages.send(Message::Response(answer)).is_err() {
            return;
        }
    }
}

fn read_keys(messages: &Sender<Message>) {
    loop {
        let message = match event::read() {
            Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => Message::Key(key),
            Ok(Event::Resize(..)) => Message::Resized,
            Ok(_) => continue,
            Err(_) => Message::End,
        };
        let is_end = matches!(message, Message::End);
        if messages.send(message).is_err() || is_end {
            return;
        }
    }
}

fn wait_for_signals(messages: &Sender<Message>) {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let Ok(runtime) = { runtime }.enable_io().build() else {
        return;
    };
    let received = runtime.block_on(async {
        let mut hangup = signal(SignalKind::hangup())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            _ = hangup.recv() => {}
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        Ok::<_, io::Error>(())
    });
    if received.is_ok() {
        // The loop may have ended meanwhile.
        let _ = messages.send(Message::End);
    }
}

struct View {
    query: TopQuery,
    is_colored: bool,
    findings: Vec<Finding>,
    subjects: Vec<Subject>,
    /// The limits that subjects were seen of.
    limits: BTreeSet<String>,
    error: Option<String>,
    /// Which gateways are counted, if there are several.
    counted: Option<String>,
    /// How many subjects are above the first that is shown.
    scrolled: usize,
}

#[derive(Clone, Debug, Default)]
struct Subject {
    limit: String,
    name: String,
    requests: u64,
    denied: u64,
    rate: f64,
    /// The share of the bucket.
    used: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Limit,
    Subject,
    Requests,
    Denied,
    Rate,
    Used,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pressed {
    End,
    Ask,
    Redraw,
}

impl View {
    fn new(query: TopQuery, is_colored: bool) -> Self {
        Self {
            limits: query.limit.iter().cloned().collect(),
            query,
            is_colored,
            findings: Vec::new(),
            subjects: Vec::new(),
            error: None,
            counted: None,
            scrolled: 0,
        }
    }

    /// Takes a response. The last rows stay after an error.
    fn update(&mut self, response: Result<Value, String>) {
        match response {
            Ok(answer) => {
                self.findings = Finding::all(&answer, self.query.limit.as_deref());
                let subjects = answer.get("subjects").and_then(Value::as_array);
                let subjects = subjects.into_iter().flatten();
                self.subjects = subjects.map(Subject::from_json).collect();
                self.counted = counted_line(&answer);
                let limits = self.subjects.iter().map(|subject| subject.limit.clone());
                self.limits.extend(limits);
                self.error = None;
                self.scroll(0);
            }
            Err(error) => self.error = Some(error),
        }
    }

    fn pressed(&mut self, key: KeyEvent) -> Pressed {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if is_control => return Pressed::End,
            KeyCode::Char('q') | KeyCode::Esc => return Pressed::End,
            KeyCode::Char('r') => self.query.sort = Sort::Rate,
            KeyCode::Char('d') => self.query.sort = Sort::Denied,
            KeyCode::Char('u') => self.query.sort = Sort::Remaining,
            KeyCode::Char('p') => {
                self.query.period = match self.query.period {
                    Period::Minute => Period::Hour,
                    Period::Hour => Period::Minute,
                }
            }
            KeyCode::Char('l') => self.query.limit = self.next_limit(),
            KeyCode::Char('f') => self.query.alone = !self.query.alone,
            KeyCode::Up => return self.scroll(-1),
            KeyCode::Down => return self.scroll(1),
            KeyCode::PageUp => return self.scroll(-10),
            KeyCode::PageDown => return self.scroll(10),
            _ => return Pressed::Redraw,
        }
        self.scrolled = 0;
        Pressed::Ask
    }

    /// All limits, then each of them, then all again.
    fn next_limit(&self) -> Option<String> {
        let mut limits = self.limits.iter();
        let next = match &self.query.limit {
            None => limits.next(),
            Some(limit) => limits.find(|next| *next > limit),
        };
        next.cloned()
    }

    fn scroll(&mut self, rows: isize) -> Pressed {
        let last = self.subjects.len().saturating_sub(1);
        self.scrolled = self.scrolled.saturating_add_signed(rows).min(last);
        Pressed::Redraw
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let error_lines = u16::from(self.error.is_some());
        let width = usize::from(area.width);
        let title = match width < NARROW {
            true => vec![fitted(&self.title(), width)],
            false => wrapped(&self.title(), width),
        };
        let title_lines = u16::try_from(title.len()).unwrap_or(1);
        let rest = area
            .height
            .saturating_sub(title_lines + error_lines)
            .saturating_sub(1);
        let findings = self.attention(width, rest);
        let finding_lines = u16::try_from(findings.len()).unwrap_or_default();
        let [titles, error, attention, table, keys] = Layout::vertical([
            Constraint::Length(title_lines),
            Constraint::Length(error_lines),
            Constraint::Length(finding_lines),
            Constraint::Fill(1),
            Constraint::Length(1),
        ])
        .areas(area);
        let title = title.into_iter().map(|line| Line::styled(line, bold()));
        frame.render_widget(Text::from_iter(title), titles);
        if let Some(cause) = &self.error {
            let text = format!("{} (asked again each second)", printable(cause));
            let style = self.colored(Color::Red).add_modifier(Modifier::BOLD);
            frame.render_widget(Line::styled(text, style), error);
        }
        frame.render_widget(Text::from_iter(findings), attention);
        self.draw_subjects(frame, table);
        frame.render_widget(Line::styled(KEYS, self.colored(Color::DarkGray)), keys);
    }

    /// As many findings as there is room for above the table, each with all of its text, and how
    /// many more there are.
    fn attention(&self, width: usize, rest: u16) -> Vec<Line<'static>> {
        let heads_and_rows = u16::try_from(self.subjects.len().max(1)).unwrap_or(u16::MAX);
        let table = heads_and_rows
            .saturating_add(1)
            .min(TABLE_ROWS)
            .min(rest / 2);
        let room = usize::from(rest - table);
        let mut lines = Vec::new();
        let mut findings = self.findings.iter();
        while let Some(finding) = findings.next() {
            let own = self.lines(finding, width);
            let more = findings.len();
            let needed = lines.len() + own.len() + usize::from(more > 0);
            if needed <= room {
                lines.extend(own);
                continue;
            }
            if lines.is_empty() {
                let (more, room) = (more, room.saturating_sub(usize::from(more > 0)));
                lines.extend(self.two_lines(finding, width).into_iter().take(room));
                lines.extend(more_findings(more));
            } else {
                lines.extend(more_findings(more + 1));
            }
            break;
        }
        lines.truncate(room);
        lines
    }

    /// The finding, and its remedy.
    fn lines(&self, finding: &Finding, cells: usize) -> Vec<Line<'static>> {
        if cells < NARROW {
            return self.two_lines(finding, cells).into();
        }
        let cells = cells - INDENT;
        let mut texts = wrapped(&finding.text, cells).into_iter();
        let first = Span::raw(texts.next().unwrap_or_default());
        let first = Line::from(vec![self.kind(finding), first]);
        let command = finding.command.as_deref();
        let remedy = command.and_then(|command| continued(command, cells));
        let remedy = remedy.unwrap_or_else(|| wrapped(&finding.advice, cells));
        let remedy = remedy.into_iter().map(|text| indented(&text, bold()));
        let texts = texts.map(|text| indented(&text, Style::new()));
        std::iter::once(first).chain(texts).chain(remedy).collect()
    }

    /// The finding and its remedy as far as two lines have them. A command that is cut at the edge is
    /// another command.
    fn two_lines(&self, finding: &Finding, cells: usize) -> [Line<'static>; 2] {
        let cells = cells.saturating_sub(INDENT);
        let text = Span::raw(fitted(&finding.text, cells));
        let command = finding.command.as_deref();
        let command = command.filter(|command| cells_of(command) <= cells);
        let remedy = command.map_or_else(|| fitted(&finding.advice, cells), str::to_owned);
        [
            Line::from(vec![self.kind(finding), text]),
            indented(&remedy, bold()),
        ]
    }

    fn kind(&self, finding: &Finding) -> Span<'static> {
        let color = match finding.label.severity {
            FindingSeverity::Critical => Color::Red,
            FindingSeverity::Warning => Color::Yellow,
            FindingSeverity::Notice => Color::Cyan,
            FindingSeverity::Resolved => Color::Green,
        };
        let title = format!("{:<10}  ", finding.label.title);
        Span::styled(title, self.colored(color).add_modifier(Modifier::BOLD))
    }

    fn title(&self) -> String {
        let sort = match self.query.sort {
            Sort::Rate => "most requests a second",
            Sort::Denied => "most denied",
            Sort::Remaining => "most used, near or over the limit",
        };
        let period = match self.query.period {
            Period::Minute => "last minute",
            Period::Hour => "last hour",
        };
        let limit = self.query.limit.as_deref();
        let limit = limit.map_or("all limits".into(), printable);
        let counted = self.counted.as_deref();
        let counted = counted.map_or_else(String::new, |counted| format!(", {counted}"));
        format!("weir top: {sort}, {period}, {limit}{counted}")
    }

    fn draw_subjects(&self, frame: &mut Frame<'_>, area: Rect) {
        if self.subjects.is_empty() {
            frame.render_widget(Paragraph::new("no subjects"), area);
            return;
        }
        let columns = self.columns(area.width);
        let shown = self.subjects.iter().skip(self.scrolled);
        let rows = shown.map(|subject| {
            let cells = columns.iter();
            Row::new(cells.map(|(column, width)| self.cell(subject, *column, *width)))
        });
        let heads = Row::new(columns.iter().map(|(column, _)| column.head()));
        let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
        let table = Table::new(rows, widths).header(heads.style(bold()));
        frame.render_widget(table.column_spacing(GAP), area);
    }

    /// The columns for this width, each with its own. The bar gives way first, and last of all that
    /// by which subjects are ordered, and then the subject.
    fn columns(&self, width: u16) -> Vec<(Column, u16)> {
        let longest = |text: fn(&Subject) -> &str| {
            let widths = self.subjects.iter().map(|subject| cells_of(text(subject)));
            u16::try_from(widths.max().unwrap_or_default()).unwrap_or(u16::MAX)
        };
        let subject = longest(|subject| &subject.name).clamp(7, MAX_SUBJECT);
        let mut others = vec![
            (
                Column::Limit,
                longest(|subject| &subject.limit).clamp(5, 30),
            ),
            (Column::Requests, 8),
            (Column::Denied, 8),
            (Column::Rate, 10),
            (Column::Used, BAR + PERCENT),
        ];
        let taken =
            |others: &[(Column, u16)]| -> u16 { others.iter().map(|(_, width)| width + GAP).sum() };
        let sorted = match self.query.sort {
            Sort::Rate => Column::Rate,
            Sort::Denied => Column::Denied,
            Sort::Remaining => Column::Used,
        };
        for (column, least) in GIVE_WAY {
            // The column of the order and that of requests change places.
            let column = match column {
                Column::Requests => sorted,
                column if column == sorted && least == 0 => Column::Requests,
                column => column,
            };
            let over = subject.saturating_add(taken(&others)).saturating_sub(width);
            let given = others.iter_mut().find(|(other, _)| *other == column);
            if let Some((_, width)) = given.filter(|_| over > 0) {
                // A number that is cut is another number.
                *width = match least {
                    0 => 0,
                    least => width.saturating_sub(over).max(least.min(*width)),
                };
            }
            others.retain(|(_, width)| *width > 0);
        }
        let rest = width.saturating_sub(taken(&others));
        let first = others.first().map(|(first, _)| *first);
        let place = usize::from(first == Some(Column::Limit));
        others.insert(place, (Column::Subject, rest));
        others
    }

    fn cell(&self, subject: &Subject, column: Column, width: u16) -> Cell<'static> {
        let number = |text: String| Cell::new(Text::from(text).right_aligned());
        match column {
            Column::Limit => Cell::new(fitted(&subject.limit, width.into())),
            Column::Subject => Cell::new(fitted(&subject.name, width.into())),
            Column::Requests => number(subject.requests.to_string()),
            Column::Denied if subject.denied == 0 => number("0".to_owned()),
            Column::Denied => number(subject.denied.to_string()).style(self.colored(Color::Red)),
            Column::Rate => number(format!("{:.2}", subject.rate)),
            Column::Used => Cell::new(self.bar(subject.used, width.saturating_sub(PERCENT))),
        }
    }

    /// How much of a bucket is used, as a bar of so many cells and in percent.
    fn bar(&self, used: f64, cells: u16) -> Line<'static> {
        let color = match used {
            used if used >= 1.0 => Color::Red,
            used if used >= NEAR => Color::Yellow,
            _ => Color::Green,
        };
        let full = full_cells(used, cells);
        let empty = usize::from(cells).saturating_sub(full);
        let (full, empty) = ("█".repeat(full), "░".repeat(empty));
        let percent = format!(" {:>3.0}%", used * 100.0);
        Line::from(vec![
            Span::styled(full, self.colored(color)),
            Span::styled(empty, self.colored(Color::DarkGray)),
            Span::raw(percent),
        ])
    }

    fn colored(&self, color: Color) -> Style {
        match self.is_colored {
            true => Style::new().fg(color),
            false => Style::new(),
        }
    }
}

/// The cells of a bar that are full: all of them only at the limit, and one at least where anything
/// is used.
fn full_cells(used: f64, cells: u16) -> usize {
    let share = |cell: usize| cell as f64 / f64::from(cells);
    let full = (0..=usize::from(cells)).take_while(|cell| share(*cell) <= used);
    let least = usize::from(used > 0.0 && cells > 0);
    full.last().unwrap_or_default().max(least)
}

impl Column {
    fn head(self) -> Cell<'static> {
        let number = |text: &'static str| Cell::new(Text::from(text).right_aligned());
        match self {
            Self::Limit => "LIMIT".into(),
            Self::Subject => "SUBJECT".into(),
            Self::Requests => number("REQUESTS"),
            Self::Denied => number("DENIED"),
            Self::Rate => number("PER SECOND"),
            Self::Used => "USED".into(),
        }
    }
}

fn more_findings(more: usize) -> Option<Line<'static>> {
    let text = format!("{more} more, which `weir top --once` shows");
    (more > 0).then(|| indented(&text, Style::new()))
}

fn indented(text: &str, style: Style) -> Line<'static> {
    Line::styled(format!("{:INDENT$}{text}", ""), style)
}

impl Subject {
    fn from_json(subject: &Value) -> Self {
        let text = |value: &Value| printable(value.as_str().unwrap_or_default()).into_owned();
        let count = |name| subject[name].as_u64().unwrap_or_default();
        let number = |name| subject[name].as_f64().unwrap_or_default();
        Self {
            limit: text(&subject["limit"]),
            name: text(name_or_id(subject)),
            requests: count("requests"),
            denied: count("denied"),
            rate: number("rate"),
            used: number("used"),
        }
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;

    fn subject(limit: &str, subject: &str, requests: u32, denied: u32, used: f64) -> Value {
        let rate = f64::from(requests) / 60.0;
        json!({
            "limit": limit, "subject": subject, "requests": requests, "denied": denied,
            "rate": rate, "used": used,
        })
    }

    fn answer() -> Value {
        json!({"period": 60, "subjects": [
            subject("RequestsPerAddress", "203.0.113.9", 4120, 3988, 1.0),
            subject("Logins", "198.51.100.7", 50, 0, 0.85),
            subject("Logins", "a\u{1b}[2Jb", 1, 0, 0.001),
        ]})
    }

    fn view(is_colored: bool) -> View {
        let mut view = View::new(TopQuery::default(), is_colored);
        view.update(Ok(answer()));
        view
    }

    fn drawn(view: &View, width: u16, height: u16) -> Terminal<TestBackend> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal
    }

    fn text(view: &View) -> String {
        let lines = drawn(view, 100, 8).backend().to_string();
        let lines = lines.lines().map(|line| line.trim_matches('"').trim_end());
        lines.collect::<Vec<_>>().join("\n")
    }

    fn press(view: &mut View, key: char) -> Pressed {
        view.pressed(KeyCode::Char(key).into())
    }

    #[test]
    fn each_subject_is_a_row_with_a_bar_of_what_it_has_used() {
        insta::assert_snapshot!(text(&view(true)), @r"
        weir top: most requests a second, last minute, all limits
        LIMIT               SUBJECT                REQUESTS    DENIED  PER SECOND  USED
        RequestsPerAddress  203.0.113.9                4120      3988       68.67  ████████████████████ 100%
        Logins              198.51.100.7                 50         0        0.83  █████████████████░░░  85%
        Logins              a\u{1b}[2Jb                   1         0        0.02  █░░░░░░░░░░░░░░░░░░░   0%


        q quit  r requests  d denied  u used  p period  l limit  f fleet  ↑↓ scroll
        ");
    }

    #[test]
    fn what_needs_attention_stands_above_the_table_as_far_as_there_is_room() {
        let mut view = view(true);
        let finding = |kind: &str, text: &str| {
            json!({
                "kind": kind, "limit": "Logins", "subject": "203.0.113.9", "name": null,
                "text": text, "remedy": {"text": "Ban it", "command": "weir ban add a 203.0.113.9"},
            })
        };
        let mut of_all = answer();
        of_all["findings"] = json!([
            finding("abuse", "goes on"),
            finding("near_limit", "is near")
        ]);
        view.update(Ok(of_all));
        let text = |height| drawn(&view, 100, height).backend().to_string();
        let all = text(20);
        assert!(all.contains("ABUSE       203.0.113.9 goes on"), "{all}");
        assert!(all.contains("weir ban add a 203.0.113.9"), "{all}");
        assert!(
            all.contains("NEAR LIMIT") && all.contains("RequestsPerAddress"),
            "{all}"
        );
        let some = text(8);
        assert!(
            some.contains("ABUSE") && !some.contains("NEAR LIMIT"),
            "{some}"
        );
        assert!(some.contains("SUBJECT"), "{some}");
        // With one limit chosen, others are left out.
        view.query.limit = Some("RequestsPerAddress".to_owned());
        let mut of_another = answer();
        of_another["findings"] = json!([finding("abuse", "goes on")]);
        view.update(Ok(of_another));
        assert!(view.findings.is_empty());
    }

    #[test]
    fn a_command_is_never_cut_at_the_edge_of_the_terminal() {
        let mut view = view(true);
        let mut of_all = answer();
        let command = "weir override set Calls acme --burst 300 --count 1800 --period 1m --for 1h";
        of_all["findings"] = json!([{
            "kind": "over_limit", "limit": "Calls", "subject": "acme", "name": null,
            "text": "wants more", "remedy": {"text": "Raise its limit", "command": command},
        }]);
        view.update(Ok(of_all));
        let shown = |width| {
            let screen = drawn(&view, width, 20).backend().to_string();
            let lines = screen.lines().map(|line| line.trim_matches('"').trim());
            let lines = lines.skip_while(|line| !line.starts_with("OVER")).skip(1);
            let lines = lines.take_while(|line| !line.starts_with("LIMIT"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(shown(86), [command]);
        // A shell takes these for one.
        for width in [85, 80, 60, 40] {
            let lines = shown(width);
            assert!(lines.len() > 1, "{width}: {lines:?}");
            assert_eq!(lines.join("\n").replace(" \\\n", " "), command, "{width}");
        }
        assert_eq!(shown(23).first().unwrap(), "Raise its \u{2026}");
    }

    /// Of a terminal with 80 columns and nine free lines, sentences and commands were cut.
    #[test]
    fn a_finding_has_all_of_its_words_while_there_are_free_lines() {
        let mut view = view(true);
        let text = "keeps sending although RequestsPerAddress denies 96% of its 4120 requests in the last \
                    minute, and is denied by two other limits as well";
        let finding = |subject: &str| {
            json!({
                "kind": "abuse", "limit": "Logins", "subject": subject, "name": null, "text": text,
                "remedy": {"text": "Ban it for a while", "command": format!("weir ban add abusers {subject} --for 1h")},
            })
        };
        let with = |count: usize| {
            let subjects: Vec<_> = (0..count).map(|n| format!("203.0.113.{n}")).collect();
            let mut all = answer();
            all["findings"] = subjects.iter().map(|it| finding(it)).collect();
            all
        };
        view.update(Ok(with(2)));
        let screen = drawn(&view, 80, 24).backend().to_string();
        let words: Vec<&str> = screen.split_whitespace().collect();
        for word in text.split(' ').chain(["--for", "SUBJECT"]) {
            assert!(words.contains(&word), "{word}: {screen}");
        }
        assert!(!screen.contains('\u{2026}'), "{screen}");
        // What there is no room for is counted, and each that is shown is whole.
        view.update(Ok(with(9)));
        for height in 6..40 {
            let screen = drawn(&view, 80, height).backend().to_string();
            let shown = screen.matches("ABUSE").count();
            assert!(shown > 0, "{height}: {screen}");
            let more = format!("{} more, which `weir top --once` shows", 9 - shown);
            assert_eq!(screen.contains(&more), shown < 9, "{height}: {screen}");
            assert!(
                screen.contains("203.0.113.9  "),
                "the table: {height}: {screen}"
            );
        }
    }

    /// At 60 columns the order was that of a column which was not there.
    #[test]
    fn subjects_are_never_ordered_by_a_column_that_is_hidden_while_others_are_shown() {
        for (sort, head) in [
            (Sort::Rate, "PER SECOND"),
            (Sort::Denied, "DENIED"),
            (Sort::Remaining, "USED"),
        ] {
            let mut view = view(true);
            view.query.sort = sort;
            for width in 1..=120 {
                let screen = drawn(&view, width, 12).backend().to_string();
                let all = ["LIMIT", "REQUESTS", "DENIED", "PER SECOND", "USED"];
                let shown = all.into_iter().filter(|head| screen.contains(head));
                let shown: Vec<_> = shown.collect();
                let is_shown = shown.contains(&head);
                assert!(is_shown || shown.is_empty(), "{width}: {shown:?}");
            }
        }
    }

    #[test]
    fn the_title_says_which_gateways_are_counted() {
        let title = |members: Value| {
            let mut view = view(true);
            let mut of_all = answer();
            of_all
                .as_object_mut()
                .unwrap()
                .extend(members.as_object().unwrap().clone());
            view.update(Ok(of_all));
            view.title()
        };
        let fleet = |counted: u32, known: u32, is_fleet: bool, alone: Value| {
            title(json!({
                "scope": "fleet", "gateways": counted, "known": known, "is_fleet": is_fleet,
                "alone": alone,
            }))
        };
        let of_one = "weir top: most requests a second, last minute, all limits";
        assert_eq!(
            fleet(3, 3, true, Value::Null),
            format!("{of_one}, 3 gateways")
        );
        assert_eq!(
            fleet(2, 3, true, Value::Null),
            format!("{of_one}, 2 of 3 gateways")
        );
        assert_eq!(
            fleet(1, 1, true, json!("Redis is out of reach")),
            format!("{of_one}, this gateway alone: Redis is out of reach")
        );
        // Where there is no fleet, nothing is said of one.
        assert_eq!(fleet(1, 1, true, Value::Null), of_one);
        assert_eq!(fleet(1, 1, false, json!("the store is memory")), of_one);
        assert_eq!(
            title(json!({"scope": "gateway", "gateways": 1, "known": 1})),
            of_one
        );
        assert_eq!(
            title(json!({"scope": "gateway", "gateways": 1, "known": 3})),
            format!("{of_one}, this gateway of 3")
        );
    }

    #[test]
    fn an_outage_of_the_gateway_is_a_line_above_the_last_rows_until_it_is_over() {
        let mut view = view(true);
        view.update(Err("no gateway answers at 127.0.0.1:9901".to_owned()));
        let during = text(&view);
        assert!(
            during.contains("no gateway answers at 127.0.0.1:9901 (asked again"),
            "{during}"
        );
        assert!(during.contains("203.0.113.9"), "{during}");
        view.update(Ok(answer()));
        assert!(!text(&view).contains("no gateway"));
    }

    /// A terminal of 90 columns showed 203.0.113.14 as 203.0.113.1, and one of 60 nothing of it.
    #[test]
    fn a_subject_is_never_cut_into_another_and_is_the_last_to_give_way() {
        let mut view = view(true);
        view.update(Ok(json!({"subjects": [
            subject("RequestsPerAddress", "203.0.113.14", 4120, 3988, 1.0),
            subject("RequestsPerAddress", "2001:db8:1:2::/64", 50, 0, 0.85),
        ], "findings": [{
            "kind": "abuse", "limit": "Logins", "subject": "203.0.113.14", "name": null,
            "text": "goes on", "remedy": {"text": "Ban it", "command": null},
        }]})));
        for width in 1..=120 {
            let screen = drawn(&view, width, 12).backend().to_string();
            for (part, next) in [("203.0.113.1", '4'), ("2001:db8:1:2::/6", '4')] {
                for (place, _) in screen.match_indices(part) {
                    let next_char = screen[place + part.len()..].chars().next().unwrap();
                    let is_whole = next_char == next || next_char == '\u{2026}';
                    assert!(is_whole, "{width}:\n{screen}");
                }
            }
            let rows = screen
                .lines()
                .filter(|line| line.contains("2001:db8:1:2::/64"));
            assert_eq!(rows.count(), usize::from(width >= 17), "{width}:\n{screen}");
        }
        let table = |width| {
            let screen = drawn(&view, width, 12).backend().to_string();
            let lines = screen.lines().skip(3).take(3);
            let lines = lines.map(|line| line.trim_matches('"').trim_end().to_owned());
            lines.collect::<Vec<_>>().join("\n")
        };
        insta::assert_snapshot!(table(80), @r"
        LIMIT               SUBJECT            REQUESTS    DENIED  PER SECOND  USED
        RequestsPerAddress  203.0.113.14           4120      3988       68.67  ████ 100%
        RequestsPerAddress  2001:db8:1:2::/64        50         0        0.83  ███░  85%
        ");
        insta::assert_snapshot!(table(60), @r"
        LIMIT         SUBJECT              DENIED  PER SECOND  USED
        RequestsPer…  203.0.113.14           3988       68.67   100%
        RequestsPer…  2001:db8:1:2::/64         0        0.83    85%
        ");
        insta::assert_snapshot!(table(16), @r"
        SUBJECT
        203.0.113.14
        2001:db8:1:2::/…
        ");
        // Nor does a client that chose a long one hide the numbers.
        view.update(Ok(
            json!({"subjects": [subject("Teams", &"a".repeat(300), 41, 7, 1.0)]}),
        ));
        let screen = drawn(&view, 80, 12).backend().to_string();
        assert!(
            screen.contains("aaa…") && screen.contains(" 7 "),
            "{screen}"
        );
    }

    #[test]
    fn what_is_wrong_with_the_gateway_stands_above_all_that_clients_do() {
        let mut view = view(true);
        let mut of_all = answer();
        of_all["gateway"] = json!([{
            "kind": "upstream", "text": "of the servers of upstream app, 1 of 1 fail",
            "detail": null, "remedy": "Look at the app there",
        }]);
        view.update(Ok(of_all));
        let screen = drawn(&view, 100, 8).backend().to_string();
        assert!(screen.contains("UPSTREAM    of the servers"), "{screen}");
        assert!(screen.contains("Look at the app there"), "{screen}");
    }

    #[test]
    fn keys_change_what_is_asked_for() {
        let mut view = view(true);
        for (key, path) in [
            (
                'd',
                "/v1/top?sort=denied&period=minute&count=100&scope=fleet",
            ),
            ('p', "/v1/top?sort=denied&period=hour&count=100&scope=fleet"),
            (
                'p',
                "/v1/top?sort=denied&period=minute&count=100&scope=fleet",
            ),
            (
                'u',
                "/v1/top?sort=remaining&period=minute&count=100&scope=fleet",
            ),
            ('r', "/v1/top?sort=rate&period=minute&count=100&scope=fleet"),
            (
                'l',
                "/v1/top?sort=rate&period=minute&count=100&limit=Logins&scope=fleet",
            ),
            (
                'l',
                "/v1/top?sort=rate&period=minute&count=100&limit=RequestsPerAddress&scope=fleet",
            ),
            ('l', "/v1/top?sort=rate&period=minute&count=100&scope=fleet"),
            ('f', "/v1/top?sort=rate&period=minute&count=100"),
            ('f', "/v1/top?sort=rate&period=minute&count=100&scope=fleet"),
        ] {
            assert_eq!(press(&mut view, key), Pressed::Ask, "{key}");
            assert_eq!(view.query.path(COUNT), path, "{key}");
        }
        assert_eq!(press(&mut view, 'x'), Pressed::Redraw);
        assert_eq!(press(&mut view, 'q'), Pressed::End);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(view.pressed(interrupt), Pressed::End);
    }

    #[test]
    fn scrolling_stops_at_both_ends_and_when_rows_go() {
        let mut view = view(true);
        for (key, scrolled) in [
            (KeyCode::Up, 0),
            (KeyCode::Down, 1),
            (KeyCode::PageDown, 2),
            (KeyCode::PageUp, 0),
            (KeyCode::PageDown, 2),
        ] {
            assert_eq!(view.pressed(key.into()), Pressed::Redraw);
            assert_eq!(view.scrolled, scrolled, "{key:?}");
        }
        view.update(Ok(json!({"subjects": []})));
        assert!(text(&view).contains("no subjects"));
    }

    #[test]
    fn no_terminal_is_too_small() {
        let mut view = view(true);
        view.update(Err("gone".to_owned()));
        for width in 0..40 {
            for height in 0..6 {
                drawn(&view, width, height);
            }
        }
    }

    #[test]
    fn without_colors_no_cell_has_one() {
        let colors = |is_colored| {
            let terminal = drawn(&view(is_colored), 100, 8);
            let cells = terminal.backend().buffer().content.iter();
            cells.filter(|cell| cell.fg != Color::Reset).count()
        };
        assert!(colors(true) > 0);
        assert_eq!(colors(false), 0);
    }

    #[test]
    fn a_bar_is_full_only_at_the_limit_and_empty_only_when_nothing_is_used() {
        let all = usize::from(BAR);
        for (used, full) in [
            (0.0, 0),
            (0.001, 1),
            (0.5, all / 2),
            (0.999, all - 1),
            (1.0, all),
        ] {
            assert_eq!(full_cells(used, BAR), full, "{used}");
        }
        assert_eq!(full_cells(7.0, BAR), all);
        assert_eq!(full_cells(0.5, 0), 0);
    }
}
