//! The JSON form of a log line, for machines: the bytes that tracing's own formatter would write,
//! with deceptive characters escaped.
//!
//! That formatter takes about 33,000 instructions for a line of the access log, as much as all else
//! that the gateway does for a request: a serializer writes each value in small pieces through
//! three writers. Here each goes straight into one buffer, and most need no escape.

use std::cell::Cell;
use std::fmt::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use tracing::field::{self, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use weir_telemetry::{
    ACCESS_TARGET, Field, FieldVisitor, Milliseconds, RequestFinished, escape, write_json_escape,
};

#[derive(Clone, Copy, Debug)]
pub(super) struct JsonFormatter;

impl<S, N> FormatEvent<S, N> for JsonFormatter
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = Vec::new();
        let metadata = event.metadata();
        let mut line = JsonLine::begin(&mut text, *metadata.level());
        event.record(&mut line);
        line.raw(",\"target\":\"");
        line.escaped(metadata.target());
        line.end();
        to.write_str(&String::from_utf8_lossy(&text))
    }
}

/// Appends the line of a request.
pub(super) fn write_request(request: &RequestFinished<'_>, text: &mut Vec<u8>) {
    let mut line = JsonLine::begin(text, Level::INFO);
    request.visit(&mut line);
    line.raw(",\"target\":\"");
    // It needs no escape.
    line.raw(ACCESS_TARGET);
    line.end();
}

/// A line while it is being written.
struct JsonLine<'t> {
    text: &'t mut Vec<u8>,
}

impl<'t> JsonLine<'t> {
    fn begin(text: &'t mut Vec<u8>, level: Level) -> Self {
        let mut line = Self { text };
        line.raw("{\"timestamp\":\"");
        line.timestamp(SystemTime::now());
        line.raw("\",\"level\":\"");
        line.raw(level.as_str());
        line.quote();
        line
    }

    /// Ends the line behind the text of its last field.
    fn end(mut self) {
        self.raw("\"}\n");
    }

    /// Appends without escapes.
    fn raw(&mut self, text: &str) {
        self.text.extend_from_slice(text.as_bytes());
    }

    fn quote(&mut self) {
        self.text.push(b'"');
    }

    /// Begins a field of the access log whose value is text.
    fn before_text(&mut self, field: &'static Field) {
        self.before(field, ",\"\":\"".len());
    }

    /// Begins a field of the access log whose value is none.
    fn before_value(&mut self, field: &'static Field) {
        self.before(field, ",\"\":".len());
    }

    #[inline]
    fn before(&mut self, field: &'static Field, around: usize) {
        let end = self.text.len() + field.name.len() + around;
        self.text.extend_from_slice(field.before_text);
        self.text.truncate(end);
    }

    /// Begins a field of an event.
    fn name(&mut self, field: &field::Field) {
        self.raw(",\"");
        self.escaped(field.name());
        self.raw("\":");
    }

    fn quoted_value(&mut self, value: fmt::Arguments<'_>) {
        self.quote();
        // A line takes whatever is written to it.
        let _ = Escaped(self).write_fmt(value);
        self.quote();
    }

    fn boolean_value(&mut self, value: bool) {
        self.raw(if value { "true" } else { "false" });
    }

    /// Appends with escapes, without quotes.
    fn escaped(&mut self, text: &str) {
        if is_plain(text.as_bytes()) {
            self.raw(text);
        } else {
            self.escape(text);
        }
    }

    #[cold]
    fn escape(&mut self, text: &str) {
        let quoted = serde_json::to_string(text).unwrap_or_default();
        let inside = quoted.get(1..quoted.len().saturating_sub(1));
        // A line takes whatever is written to it.
        let _ = escape(inside.unwrap_or_default(), self, write_json_escape);
    }

    fn integer_value(&mut self, number: impl itoa::Integer) {
        self.raw(itoa::Buffer::new().format(number));
    }

    /// Appends a time in UTC, to the microsecond. The text of the last second is cached.
    fn timestamp(&mut self, time: SystemTime) {
        thread_local! {
            static SECOND: Cell<(u64, [u8; SECOND_BYTES])> = Cell::new((0, second(0)));
        }
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (at, mut text) = SECOND.get();
        if at != since.as_secs() {
            text = second(since.as_secs());
            SECOND.set((since.as_secs(), text));
        }
        self.text.extend_from_slice(&text);
        self.text
            .extend_from_slice(&fraction(since.subsec_micros()));
    }
}

/// The microseconds of a time, and its zone.
fn fraction(micros: u32) -> [u8; 8] {
    // The first of seven digits keeps the zeros that the others begin with.
    match itoa::Buffer::new().format(1_000_000 + micros).as_bytes() {
        &[_, a, b, c, d, e, f] => [b'.', a, b, c, d, e, f, b'Z'],
        _ => *b".000000Z",
    }
}

const SECOND_BYTES: usize = "1970-01-01T00:00:00".len();

fn second(since_1970: u64) -> [u8; SECOND_BYTES] {
    let time = i64::try_from(since_1970).ok();
    let time = time.and_then(|time| Timestamp::from_second(time).ok());
    let text = time.unwrap_or_default().strftime("%Y-%m-%dT%H:%M:%S");
    // `jiff` has no years of more than four digits.
    text.to_string()
        .into_bytes()
        .try_into()
        .unwrap_or([b'0'; SECOND_BYTES])
}

/// Whether text is printable ASCII without a character that JSON escapes, as nearly all is. Most
/// texts are short, so eight bytes are checked at once, and some of the last ones twice.
fn is_plain(bytes: &[u8]) -> bool {
    let Some(last) = bytes.last_chunk::<8>() else {
        return is_short_plain(bytes);
    };
    // An iterator over both would be asked for each which of them it has come to.
    let (chunks, _) = bytes.as_chunks::<8>();
    for chunk in chunks {
        if !are_plain(*chunk) {
            return false;
        }
    }
    are_plain(*last)
}

/// [`is_plain`] for fewer than eight bytes.
#[inline]
fn is_short_plain(bytes: &[u8]) -> bool {
    match (bytes.first_chunk(), bytes.last_chunk()) {
        (Some(&[a, b, c, d]), Some(&[e, f, g, h])) => are_plain([a, b, c, d, e, f, g, h]),
        _ => {
            let of_plain =
                |byte: &u8| matches!(byte, b' '..=b'~') & (*byte != b'"') & (*byte != b'\\');
            bytes.iter().all(of_plain)
        }
    }
}

/// [`is_plain`] for eight bytes: `found` has the highest bit of some byte set if one is not plain.
fn are_plain(bytes: [u8; 8]) -> bool {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGHEST: u64 = u64::from_ne_bytes([0x80; 8]);
    let word = u64::from_ne_bytes(bytes);
    let has = |byte: u8| {
        let zero_where_it_is = word ^ u64::from_ne_bytes([byte; 8]);
        zero_where_it_is.wrapping_sub(ONES) & !zero_where_it_is
    };
    let below_blank = word.wrapping_sub(u64::from_ne_bytes([b' '; 8])) & !word;
    let found = word | below_blank | has(b'"') | has(b'\\') | has(0x7f);
    found & HIGHEST == 0
}

/// Appends without escapes.
impl Write for JsonLine<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.raw(text);
        Ok(())
    }
}

/// Appends with escapes.
struct Escaped<'l, 't>(&'l mut JsonLine<'t>);

impl Write for Escaped<'_, '_> {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        self.0.escaped(piece);
        Ok(())
    }
}

impl FieldVisitor for JsonLine<'_> {
    fn text(&mut self, field: &'static Field, value: &str) {
        self.before_text(field);
        self.escaped(value);
        self.quote();
    }

    fn word(&mut self, field: &'static Field, value: &str) {
        self.before_text(field);
        self.raw(value);
        self.quote();
    }

    fn bytes(&mut self, field: &'static Field, value: &[u8]) {
        self.before_text(field);
        match is_plain(value) {
            true => self.text.extend_from_slice(value),
            false => self.escape(&String::from_utf8_lossy(value)),
        }
        self.quote();
    }

    fn shown(&mut self, field: &'static Field, value: &dyn fmt::Display) {
        self.before_value(field);
        self.quoted_value(format_args!("{value}"));
    }

    fn integer(&mut self, field: &'static Field, value: u64) {
        self.before_value(field);
        self.integer_value(value);
    }

    fn milliseconds(&mut self, field: &'static Field, value: Milliseconds) {
        self.before_value(field);
        self.integer_value(value.whole());
        self.text.extend_from_slice(value.fraction(&mut [0; 4]));
    }

    fn boolean(&mut self, field: &'static Field, value: bool) {
        self.before_value(field);
        self.boolean_value(value);
    }
}

impl Visit for JsonLine<'_> {
    fn record_str(&mut self, field: &field::Field, value: &str) {
        self.name(field);
        self.quote();
        self.escaped(value);
        self.quote();
    }

    fn record_u64(&mut self, field: &field::Field, value: u64) {
        self.name(field);
        self.integer_value(value);
    }

    fn record_i64(&mut self, field: &field::Field, value: i64) {
        self.name(field);
        self.integer_value(value);
    }

    fn record_bool(&mut self, field: &field::Field, value: bool) {
        self.name(field);
        self.boolean_value(value);
    }

    fn record_f64(&mut self, field: &field::Field, value: f64) {
        self.name(field);
        // JSON has no infinity: it is null.
        self.raw(&serde_json::to_string(&value).unwrap_or_default());
    }

    fn record_debug(&mut self, field: &field::Field, value: &dyn fmt::Debug) {
        self.name(field);
        self.quoted_value(format_args!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use tracing::{Level, error, info, trace};

    use super::*;
    use crate::tests::Written;

    /// What is written but for the time.
    fn without_time(written: &Written) -> String {
        let text = String::from_utf8(written.0.lock().clone()).unwrap();
        let lines = text.lines().map(|line| {
            let (before, time) = line.split_once("\"timestamp\":\"").unwrap();
            format!("{before}{}\n", &time[time.find('"').unwrap()..])
        });
        lines.collect()
    }

    /// Of all kinds of values, and texts that JSON escapes.
    fn events() {
        info!("only a message");
        error!(target: "weir::other", text = "q\" b\\ n\n t\t 0\0 \u{e9} \u{65e5}", "with {}", "text");
        trace!(
            u = u64::MAX,
            small = 7_u16,
            i = i64::MIN,
            yes = true,
            no = false
        );
        let floats = [0.0, 3.0, 0.12, 1.234, -1.5e-9, 1e21, f64::MAX, f64::NAN];
        for float in floats {
            info!(float, "a number");
        }
        let refused = io::Error::other("a \"cause\"");
        let error: &(dyn std::error::Error + 'static) = &refused;
        info!(error, shown = %refused, seen = ?refused, wide = u128::MAX, "error");
        info!(
            there = Some("is"),
            not_there = None::<&str>,
            empty = "",
            dotted.name = 1
        );
    }

    #[test]
    fn a_line_is_the_one_that_tracing_would_write() {
        let (ours, theirs) = (Written::default(), Written::default());
        let (to_ours, to_theirs) = (ours.clone(), theirs.clone());
        let lines = tracing_subscriber::fmt()
            .with_max_level(Level::TRACE)
            .event_format(JsonFormatter)
            .with_writer(move || to_ours.clone());
        weir_testing::subscribed(lines.finish(), events);
        let lines = tracing_subscriber::fmt()
            .with_max_level(Level::TRACE)
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .with_writer(move || to_theirs.clone());
        weir_testing::subscribed(lines.finish(), events);
        let (ours, theirs) = (without_time(&ours), without_time(&theirs));
        assert_eq!(ours, theirs);
        assert_eq!(ours.lines().count(), 13);
    }

    #[test]
    fn a_byte_that_is_not_plain_is_found_wherever_it_stands() {
        for byte in 0..=0x7f_u8 {
            let is_plain_byte = matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
            for (length, at) in (1..20).flat_map(|length| (0..length).map(move |at| (length, at))) {
                let mut text = "a".repeat(length).into_bytes();
                text[at] = byte;
                let text = String::from_utf8(text).unwrap();
                assert_eq!(is_plain(text.as_bytes()), is_plain_byte, "{text:?}");
            }
        }
        let plain = |text: &str| is_plain(text.as_bytes());
        assert!(plain("") && !plain("caf\u{e9}") && !plain("a\u{e9}bcdefghijkl"));
    }

    #[test]
    fn a_time_has_all_its_digits() {
        let shown = |nanos: u64| {
            let mut text = Vec::new();
            let mut line = JsonLine { text: &mut text };
            line.timestamp(UNIX_EPOCH + Duration::from_nanos(nanos));
            String::from_utf8(text).unwrap()
        };
        assert_eq!(shown(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(
            shown(1_700_000_000_000_012_999),
            "2023-11-14T22:13:20.000012Z"
        );
        assert_eq!(
            shown(1_700_000_000_987_654_321),
            "2023-11-14T22:13:20.987654Z"
        );
        assert_eq!(
            shown(1_709_251_199_100_000_000),
            "2024-02-29T23:59:59.100000Z"
        );
    }
}
