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
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::format::escape;

/// Room for most lines.
const LINE_BYTES: usize = 768;

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
        let mut line = JsonLine(Vec::with_capacity(LINE_BYTES));
        line.raw("{\"timestamp\":\"");
        line.timestamp(SystemTime::now());
        line.raw("\",\"level\":\"");
        line.raw(event.metadata().level().as_str());
        line.raw("\"");
        event.record(&mut line);
        line.raw(",\"target\":");
        line.text(event.metadata().target());
        line.raw("}\n");
        to.write_str(str::from_utf8(&line.0).map_err(|_| fmt::Error)?)
    }
}

struct JsonLine(Vec<u8>);

impl JsonLine {
    /// Appends without escapes.
    fn raw(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    fn name(&mut self, field: &Field) {
        self.raw(",");
        self.text(field.name());
        self.raw(":");
    }

    fn text(&mut self, text: &str) {
        self.raw("\"");
        self.escaped(text);
        self.raw("\"");
    }

    /// Appends with escapes, without quotes.
    fn escaped(&mut self, text: &str) {
        if is_plain(text) {
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
        let _ = escape(inside.unwrap_or_default(), self, |character, line| {
            let mut units = [0; 2];
            let mut units = character.encode_utf16(&mut units).iter();
            units.try_for_each(|unit| write!(line, "\\u{unit:04x}"))
        });
    }

    fn integer(&mut self, number: impl itoa::Integer) {
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
        self.0.extend_from_slice(&text);
        let mut digits = *b".000000Z";
        let mut rest = since.subsec_micros();
        for digit in digits.iter_mut().skip(1).rev().skip(1) {
            *digit += u8::try_from(rest % 10).unwrap_or_default();
            rest /= 10;
        }
        self.0.extend_from_slice(&digits);
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

/// Whether text is printable ASCII without a character that JSON escapes, as nearly all is. The
/// fold reads all bytes, several at once, which costs less than to stop at the first other one.
fn is_plain(text: &str) -> bool {
    let of_plain = |byte: u8| matches!(byte, b' '..=b'~') & (byte != b'"') & (byte != b'\\');
    text.bytes()
        .fold(true, |plain, byte| plain & of_plain(byte))
}

/// Appends without escapes.
impl Write for JsonLine {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.raw(text);
        Ok(())
    }
}

/// Appends with escapes.
struct Escaped<'l>(&'l mut JsonLine);

impl Write for Escaped<'_> {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        self.0.escaped(piece);
        Ok(())
    }
}

impl Visit for JsonLine {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.name(field);
        self.text(value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.name(field);
        self.integer(value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.name(field);
        self.integer(value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.name(field);
        self.raw(if value { "true" } else { "false" });
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.name(field);
        // JSON has no infinity: it is null.
        let _ = serde_json::to_writer(&mut self.0, &value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.name(field);
        self.raw("\"");
        let _ = write!(Escaped(self), "{value:?}");
        self.raw("\"");
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::time::Duration;

    use parking_lot::Mutex;
    use tracing::{Level, error, info, trace};
    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'w> MakeWriter<'w> for Written {
        type Writer = Self;

        fn make_writer(&'w self) -> Self {
            self.clone()
        }
    }

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
        let lines = tracing_subscriber::fmt()
            .with_max_level(Level::TRACE)
            .event_format(JsonFormatter)
            .with_writer(ours.clone());
        tracing::subscriber::with_default(lines.finish(), events);
        let lines = tracing_subscriber::fmt()
            .with_max_level(Level::TRACE)
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .with_writer(theirs.clone());
        tracing::subscriber::with_default(lines.finish(), events);
        let (ours, theirs) = (without_time(&ours), without_time(&theirs));
        assert_eq!(ours, theirs);
        assert_eq!(ours.lines().count(), 13);
    }

    #[test]
    fn a_time_has_all_its_digits() {
        let shown = |nanos: u64| {
            let mut line = JsonLine(Vec::new());
            line.timestamp(UNIX_EPOCH + Duration::from_nanos(nanos));
            String::from_utf8(line.0).unwrap()
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
