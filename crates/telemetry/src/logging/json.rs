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
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::format::escape;
use crate::access_log::ACCESS_TARGET;

/// Room for most lines.
const LINE_BYTES: usize = 768;

/// A buffer that has grown beyond this is not used again.
const MAX_KEPT_BYTES: usize = 8 * LINE_BYTES;

thread_local! {
    /// The buffer of the next line on this thread.
    static BUFFER: Cell<String> = const { Cell::new(String::new()) };
}

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
        let mut line = JsonLine {
            text: BUFFER.take(),
            names: Names::take(event.metadata()),
        };
        line.text.reserve(LINE_BYTES);
        line.raw("{\"timestamp\":\"");
        line.timestamp(SystemTime::now());
        line.raw("\",\"level\":\"");
        line.raw(event.metadata().level().as_str());
        line.quote();
        event.record(&mut line);
        line.raw(",\"target\":\"");
        line.escaped(event.metadata().target());
        line.raw("\"}\n");
        // One write is quicker than many.
        let written = to.write_str(&line.text);
        if line.text.capacity() <= MAX_KEPT_BYTES {
            line.text.clear();
            BUFFER.set(line.text);
        }
        if line.names.is_some() {
            NAMES.set(line.names);
        }
        written
    }
}

thread_local! {
    /// The names of the access log's fields, as nearly all lines are the access log's.
    static NAMES: Cell<Option<Names>> = const { Cell::new(None) };
}

/// The names of an event's fields, with what stands around them.
struct Names {
    callsite: Identifier,
    /// With the quote that begins a text.
    texts: Vec<String>,
}

impl Names {
    /// Takes the cached names for a line of the access log; `None` for other lines.
    fn take(metadata: &'static Metadata<'static>) -> Option<Self> {
        if metadata.target() != ACCESS_TARGET {
            return None;
        }
        let callsite = metadata.callsite();
        let cached = NAMES.take();
        if cached
            .as_ref()
            .is_some_and(|names| names.callsite == callsite)
        {
            return cached;
        }
        let text = |field: Field| {
            let mut line = JsonLine {
                text: String::new(),
                names: None,
            };
            line.name(&field);
            line.quote();
            line.text
        };
        Some(Self {
            callsite,
            texts: metadata.fields().iter().map(text).collect(),
        })
    }

    fn text(&self, field: &Field) -> Option<&str> {
        self.texts.get(field.index()).map(String::as_str)
    }
}

/// A line while it is being written.
struct JsonLine {
    text: String,
    names: Option<Names>,
}

impl JsonLine {
    /// Appends without escapes.
    fn raw(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn quote(&mut self) {
        self.text.push('"');
    }

    /// Begins a field whose value is no text.
    fn name(&mut self, field: &Field) {
        match self.names.as_ref().and_then(|names| names.text(field)) {
            Some(known) => self.text.push_str(known.strip_suffix('"').unwrap_or(known)),
            None => self.unknown_name(field),
        }
    }

    /// Begins a field whose value is text.
    fn name_of_text(&mut self, field: &Field) {
        match self.names.as_ref().and_then(|names| names.text(field)) {
            Some(known) => self.text.push_str(known),
            None => {
                self.unknown_name(field);
                self.quote();
            }
        }
    }

    fn unknown_name(&mut self, field: &Field) {
        self.raw(",\"");
        self.escaped(field.name());
        self.raw("\":");
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

    /// Appends three digits after the point, without the zeros at their end but for one.
    fn thousandths(&mut self, number: u32) {
        let mut digits = *b".000";
        let mut rest = number;
        for digit in digits.iter_mut().skip(1).rev() {
            *digit += u8::try_from(rest % 10).unwrap_or_default();
            rest /= 10;
        }
        let shown = match number {
            _ if number.is_multiple_of(100) => 2,
            _ if number.is_multiple_of(10) => 3,
            _ => 4,
        };
        self.ascii(digits.get(..shown).unwrap_or_default());
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
        self.ascii(&text);
        let mut digits = *b".000000Z";
        let mut rest = since.subsec_micros();
        for digit in digits.iter_mut().skip(1).rev().skip(1) {
            *digit += u8::try_from(rest % 10).unwrap_or_default();
            rest /= 10;
        }
        self.ascii(&digits);
    }

    fn ascii(&mut self, text: &[u8]) {
        self.raw(str::from_utf8(text).unwrap_or_default());
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
fn is_plain(text: &str) -> bool {
    let bytes = text.as_bytes();
    let Some(last) = bytes.last_chunk::<8>() else {
        let of_plain = |byte: &u8| matches!(byte, b' '..=b'~') & (*byte != b'"') & (*byte != b'\\');
        return bytes.iter().all(of_plain);
    };
    let (chunks, _) = bytes.as_chunks::<8>();
    chunks.iter().chain([last]).all(|chunk| are_plain(*chunk))
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

/// The thousandths of a number that is a whole number of them, and less than about four million.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what does not fit becomes another number, and so is found out"
)]
fn as_thousandths(number: f64) -> Option<u32> {
    let thousandths = (number * 1000.0 + 0.5) as u32;
    let is_same = f64::from(thousandths) / 1000.0 == number && number.is_sign_positive();
    is_same.then_some(thousandths)
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
        self.name_of_text(field);
        self.escaped(value);
        self.quote();
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
        // Durations are such numbers of milliseconds. No decimal with as few digits has a shorter
        // form, so this is the same text.
        if let Some(thousandths) = as_thousandths(value) {
            self.integer(thousandths / 1000);
            self.thousandths(thousandths % 1000);
            return;
        }
        // JSON has no infinity: it is null.
        self.raw(&serde_json::to_string(&value).unwrap_or_default());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.name_of_text(field);
        let _ = write!(Escaped(self), "{value:?}");
        self.quote();
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
        // Names are cached for one kind of line, and are no others'.
        for _ in 0..2 {
            info!(target: ACCESS_TARGET, status = 200, path = "/", "request");
            info!(first = "a", second = "b", "of another target");
            info!(target: ACCESS_TARGET, client = "c", route = "d", "of another place");
        }
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
        assert_eq!(ours.lines().count(), 19);
    }

    #[test]
    fn a_byte_that_is_not_plain_is_found_wherever_it_stands() {
        for byte in 0..=0x7f_u8 {
            let is_plain_byte = matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
            for (length, at) in (1..20).flat_map(|length| (0..length).map(move |at| (length, at))) {
                let mut text = "a".repeat(length).into_bytes();
                text[at] = byte;
                let text = String::from_utf8(text).unwrap();
                assert_eq!(is_plain(&text), is_plain_byte, "{text:?}");
            }
        }
        assert!(is_plain("") && !is_plain("caf\u{e9}") && !is_plain("a\u{e9}bcdefghijkl"));
    }

    #[test]
    fn a_number_of_milliseconds_is_the_text_of_any_other_number() {
        let few = [
            0,
            1,
            9,
            10,
            99,
            100,
            999,
            1000,
            1001,
            1010,
            1100,
            9990,
            u32::MAX,
        ];
        let many = (0..100_000_u32).map(|number| number.wrapping_mul(2_654_435_761));
        for number in few.into_iter().chain(many) {
            let milliseconds = f64::from(number) / 1000.0;
            let mut line = JsonLine {
                text: String::new(),
                names: None,
            };
            assert_eq!(as_thousandths(milliseconds), Some(number));
            line.integer(number / 1000);
            line.thousandths(number % 1000);
            let shown = serde_json::to_string(&milliseconds).unwrap();
            assert_eq!(line.text, shown, "{number}");
        }
        for other in [
            -0.0,
            -1.0,
            0.0005,
            1.0 / 3.0,
            4_294_967.296,
            f64::INFINITY,
            f64::NAN,
        ] {
            assert_eq!(as_thousandths(other), None, "{other}");
        }
    }

    #[test]
    fn a_time_has_all_its_digits() {
        let shown = |nanos: u64| {
            let mut line = JsonLine {
                text: String::new(),
                names: None,
            };
            line.timestamp(UNIX_EPOCH + Duration::from_nanos(nanos));
            line.text
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
