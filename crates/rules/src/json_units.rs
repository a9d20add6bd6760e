//! Numbers within JSON that comes in pieces: the usage in a language model's response.
//!
//! Responses may be endless, and the usage may be at their beginning or at their end. So the reader
//! keeps nothing but its position: its memory is bounded by the length of the pointers. serde_json
//! needs a whole text, and readers of events, such as `actson`, keep each string whole, which may
//! have megabytes. The text is not checked: in malformed JSON any number may be found, or none.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use smallvec::SmallVec;
use thiserror::Error;

/// The growth of a key of which all characters are escaped (`\u0061`).
const ESCAPED: usize = 6;

/// More digits than the greatest number of units has.
const MAX_NUMBER: usize = 32;

/// The name of a value in JSON (RFC 6901), such as `/usage/total_tokens`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPointer {
    text: String,
    tokens: Vec<Token>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Token {
    key: String,
    index: Option<u64>,
}

/// Why a text is not a pointer.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum JsonPointerError {
    /// It does not begin with a slash.
    #[error("a JSON pointer begins with a slash; write it as `/usage/total_tokens`")]
    NoSlash,
    /// A `~` that is not followed by 0 or 1.
    #[error("a `~` in a JSON pointer is written as `~0`, and a slash within a key as `~1`")]
    Escape,
    /// It has too many keys or bytes.
    #[error("a JSON pointer has at most {MAX_TOKENS} keys and {MAX_BYTES} bytes")]
    TooLong,
}

const MAX_TOKENS: usize = 16;
const MAX_BYTES: usize = 256;

impl FromStr for JsonPointer {
    type Err = JsonPointerError;

    fn from_str(text: &str) -> Result<Self, JsonPointerError> {
        let path = text.strip_prefix('/').ok_or(JsonPointerError::NoSlash)?;
        let tokens: Vec<_> = path.split('/').map(token).collect::<Result<_, _>>()?;
        if tokens.len() > MAX_TOKENS || text.len() > MAX_BYTES {
            return Err(JsonPointerError::TooLong);
        }
        let text = text.to_owned();
        Ok(Self { text, tokens })
    }
}

impl fmt::Display for JsonPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl JsonPointer {
    /// Whether it names the value at this depth, if so many of its tokens match.
    fn leads_to(&self, depth: usize, matched: usize) -> bool {
        self.tokens.len() == depth && matched == depth
    }
}

fn token(escaped: &str) -> Result<Token, JsonPointerError> {
    let mut after_tilde = escaped.split('~').skip(1);
    if !after_tilde.all(|rest| rest.starts_with(['0', '1'])) {
        return Err(JsonPointerError::Escape);
    }
    let key = escaped.replace("~1", "/").replace("~0", "~");
    let is_index = key == "0" || !key.starts_with(['0', '+']);
    Ok(Token {
        index: key.parse().ok().filter(|_| is_index),
        key,
    })
}

/// Reads the values that pointers name, in one JSON text after another. The last number of each
/// pointer counts.
#[derive(Debug)]
pub struct JsonUnits {
    pointers: Arc<[JsonPointer]>,
    /// For each pointer, the number of its tokens that lead to the reader's position.
    matched: SmallVec<[usize; 2]>,
    found: SmallVec<[Option<u64>; 2]>,
    /// The open objects and arrays, as far as pointers reach.
    open: SmallVec<[Container; 4]>,
    /// The number of all that are open.
    depth: usize,
    state: ScanState,
    /// An unfinished key or number.
    pending: SmallVec<[u8; MAX_NUMBER]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Container {
    Object,
    /// With the index of the current element.
    Array(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScanState {
    /// Before a value, or between values.
    Between,
    BeforeKey,
    Key {
        escaped: bool,
    },
    Text {
        escaped: bool,
    },
    Number,
}

impl JsonUnits {
    /// A reader of the values that these pointers name.
    pub fn new(pointers: Arc<[JsonPointer]>) -> Self {
        Self {
            matched: SmallVec::from_elem(0, pointers.len()),
            found: SmallVec::from_elem(None, pointers.len()),
            pointers,
            open: SmallVec::new(),
            depth: 0,
            state: ScanState::Between,
            pending: SmallVec::new(),
        }
    }

    /// The sum of the numbers, if one was found.
    pub fn units(&self) -> Option<u64> {
        let found = self.found.iter().copied().flatten();
        found.reduce(u64::saturating_add)
    }

    /// Reads the next piece.
    pub fn read(&mut self, mut piece: &[u8]) {
        while let Some((&byte, rest)) = piece.split_first() {
            piece = match self.state {
                ScanState::Text { escaped: false } => {
                    let skipped = piece
                        .iter()
                        .take_while(|byte| !matches!(byte, b'"' | b'\\'));
                    let skipped = skipped.count();
                    self.end_of_text(piece.get(skipped).copied());
                    piece.get(skipped + 1..).unwrap_or_default()
                }
                ScanState::Text { escaped: true } => {
                    self.state = ScanState::Text { escaped: false };
                    rest
                }
                ScanState::Key { escaped } => {
                    self.in_key(byte, escaped);
                    rest
                }
                ScanState::Number if is_of_number(byte) => {
                    self.keep(byte, MAX_NUMBER);
                    rest
                }
                // The byte is the next one's.
                ScanState::Number => {
                    self.end_of_number();
                    piece
                }
                ScanState::Between | ScanState::BeforeKey => {
                    self.between(byte);
                    rest
                }
            };
        }
    }

    /// Ends the text, whatever is open. The next piece begins another one.
    pub fn end(&mut self) {
        if self.state == ScanState::Number {
            self.end_of_number();
        }
        self.depth = 0;
        self.open.clear();
        self.matched.fill(0);
        self.pending.clear();
        self.state = ScanState::Between;
    }

    fn end_of_text(&mut self, byte: Option<u8>) {
        match byte {
            Some(b'"') => self.state = ScanState::Between,
            Some(_) => self.state = ScanState::Text { escaped: true },
            None => {}
        }
    }

    fn in_key(&mut self, byte: u8, escaped: bool) {
        if byte == b'"' && !escaped {
            self.state = ScanState::Between;
            return self.end_of_key();
        }
        self.keep(byte, MAX_BYTES * ESCAPED);
        self.state = ScanState::Key {
            escaped: byte == b'\\' && !escaped,
        };
    }

    /// Keeps a byte of a key or a number. If it exceeds `max` bytes, no pointer names it.
    fn keep(&mut self, byte: u8, max: usize) {
        if self.pending.len() <= max {
            self.pending.push(byte);
        }
    }

    fn between(&mut self, byte: u8) {
        match byte {
            b'{' => self.enter(Container::Object),
            b'[' => self.enter(Container::Array(0)),
            b'}' | b']' => self.leave(),
            b',' => self.next(),
            b'"' if self.state == ScanState::BeforeKey => {
                self.state = ScanState::Key { escaped: false }
            }
            b'"' => self.state = ScanState::Text { escaped: false },
            b'-' | b'0'..=b'9' if self.is_named() => {
                self.pending.push(byte);
                self.state = ScanState::Number;
            }
            _ => {}
        }
    }

    fn enter(&mut self, container: Container) {
        self.depth = self.depth.saturating_add(1);
        if self.depth <= MAX_TOKENS {
            self.open.push(container);
        }
        match container {
            Container::Object if self.depth <= MAX_TOKENS => self.state = ScanState::BeforeKey,
            Container::Object => self.state = ScanState::Between,
            Container::Array(index) => {
                self.state = ScanState::Between;
                self.step(|token| token.index == Some(index));
            }
        }
    }

    fn leave(&mut self) {
        if self.depth <= MAX_TOKENS {
            self.open.pop();
        }
        self.depth = self.depth.saturating_sub(1);
        let depth = self.depth;
        for matched in &mut self.matched {
            *matched = (*matched).min(depth);
        }
        self.state = ScanState::Between;
    }

    fn next(&mut self) {
        if self.depth > MAX_TOKENS {
            return;
        }
        match self.open.last_mut() {
            Some(Container::Object) => self.state = ScanState::BeforeKey,
            Some(Container::Array(index)) => {
                *index += 1;
                let index = *index;
                self.step(|token| token.index == Some(index));
            }
            None => {}
        }
    }

    fn end_of_key(&mut self) {
        let raw = std::mem::take(&mut self.pending);
        let key = match raw.contains(&b'\\') {
            false => String::from_utf8(raw.to_vec()).ok(),
            true => {
                let quoted = [b"\"", &*raw, b"\""].concat();
                serde_json::from_slice(&quoted).ok()
            }
        };
        self.step(|token| Some(&token.key) == key.as_ref());
    }

    /// Moves to another value of the innermost object or array.
    fn step(&mut self, leads: impl Fn(&Token) -> bool) {
        // No pointer reaches so deep.
        let Some(above) = self
            .depth
            .checked_sub(1)
            .filter(|above| *above < MAX_TOKENS)
        else {
            return;
        };
        for (pointer, matched) in self.pointers.iter().zip(&mut self.matched) {
            *matched = (*matched).min(above);
            if *matched == above && pointer.tokens.get(above).is_some_and(&leads) {
                *matched += 1;
            }
        }
    }

    /// Whether a pointer names the value that begins here.
    fn is_named(&self) -> bool {
        let mut pointers = self.pointers.iter().zip(&self.matched);
        pointers.any(|(pointer, matched)| pointer.leads_to(self.depth, *matched))
    }

    fn end_of_number(&mut self) {
        self.state = ScanState::Between;
        let number = std::mem::take(&mut self.pending);
        let Some(units) = units(&number) else { return };
        let depth = self.depth;
        let pointers = self.pointers.iter().zip(&self.matched);
        for ((pointer, matched), found) in pointers.zip(&mut self.found) {
            if pointer.leads_to(depth, *matched) {
                *found = Some(units);
            }
        }
    }
}

const fn is_of_number(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-')
}

/// The units of a number, if it is a whole one as JSON writes it: `7.5`, `1e2` and `007` have none.
/// A number beyond `u64` is greater than any bucket.
fn units(number: &[u8]) -> Option<u64> {
    let is_whole = match number {
        [b'0'] => true,
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    let text = std::str::from_utf8(number).ok()?;
    is_whole.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Reads a stream of events (`text/event-stream`) with JSON as their data.
#[derive(Debug)]
pub struct EventUnits {
    json: JsonUnits,
    line: EventLine,
    /// Whether the last byte was a CR: an LF after it belongs to the same line end.
    after_cr: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventLine {
    /// The line so far is this many bytes of `data:`.
    Name(usize),
    /// After that name, where a blank does not count.
    Blank,
    Data,
    /// Another field, or a comment.
    Other,
}

const DATA: &[u8] = b"data:";

impl EventUnits {
    /// A reader of the values that these pointers name in the data of events.
    pub fn new(pointers: Arc<[JsonPointer]>) -> Self {
        Self {
            json: JsonUnits::new(pointers),
            line: EventLine::Name(0),
            after_cr: false,
        }
    }

    /// As [`JsonUnits::units`].
    pub fn units(&self) -> Option<u64> {
        self.json.units()
    }

    /// As [`JsonUnits::end`].
    pub fn end(&mut self) {
        self.json.end();
    }

    /// Reads the next piece.
    pub fn read(&mut self, mut piece: &[u8]) {
        while let Some((&byte, rest)) = piece.split_first() {
            let after_cr = std::mem::replace(&mut self.after_cr, byte == b'\r');
            piece = match (self.line, byte) {
                (_, b'\n') if after_cr => rest,
                (line, b'\r' | b'\n') => {
                    self.end_of_line(line);
                    rest
                }
                (EventLine::Name(read), _) => {
                    self.line = match DATA.get(read) {
                        Some(expected) if *expected != byte => EventLine::Other,
                        Some(_) if read + 1 < DATA.len() => EventLine::Name(read + 1),
                        Some(_) => EventLine::Blank,
                        None => EventLine::Other,
                    };
                    rest
                }
                (EventLine::Blank, b' ') => {
                    self.line = EventLine::Data;
                    rest
                }
                (line, _) => {
                    let end = piece.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
                    let end = end.unwrap_or(piece.len());
                    if line != EventLine::Other {
                        self.line = EventLine::Data;
                        self.json.read(piece.get(..end).unwrap_or_default());
                    }
                    piece.get(end..).unwrap_or_default()
                }
            };
        }
    }

    /// An empty line ends an event. Several lines of data are one text.
    fn end_of_line(&mut self, line: EventLine) {
        match line {
            EventLine::Name(0) => self.json.end(),
            EventLine::Data => self.json.read(b"\n"),
            EventLine::Name(_) | EventLine::Blank | EventLine::Other => {}
        }
        self.line = EventLine::Name(0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn pointers(texts: &[&str]) -> Arc<[JsonPointer]> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn of_json(pointer: &str, text: &str) -> Option<u64> {
        let mut reader = JsonUnits::new(pointers(&[pointer]));
        reader.read(text.as_bytes());
        reader.end();
        reader.units()
    }

    fn of_events(pointer: &str, text: &str) -> Option<u64> {
        let mut reader = EventUnits::new(pointers(&[pointer]));
        reader.read(text.as_bytes());
        reader.end();
        reader.units()
    }

    #[test]
    fn a_number_is_found_where_the_pointer_says_and_nowhere_else() {
        let text = r#"{"id":"usage","total_tokens":1,"a":{"usage":{"total_tokens":2}},
            "b":"{\"usage\":{\"total_tokens\":3}}","usage":{"x":[{"total_tokens":4}],
            "total_tokens":5,"y":{"total_tokens":6}},"total_tokens":7}"#;
        assert_eq!(of_json("/usage/total_tokens", text), Some(5));
        assert_eq!(of_json("/total_tokens", text), Some(7));
        assert_eq!(of_json("/usage/x/0/total_tokens", text), Some(4));
        assert_eq!(of_json("/a/usage/total_tokens", text), Some(2));
        for elsewhere in [
            "/usage",
            "/usage/x",
            "/usage/x/1/total_tokens",
            "/b/usage",
            "/id",
        ] {
            assert_eq!(of_json(elsewhere, text), None, "{elsewhere}");
        }
    }

    #[test]
    fn keys_are_the_same_however_they_are_escaped() {
        assert_eq!(of_json("/a~1b~0c", r#"{"a/b~c": 3}"#), Some(3));
        assert_eq!(of_json("/usage", r#"{"\u0075s\u0061ge": 3}"#), Some(3));
        assert_eq!(of_json("/a\"b\\", r#"{"a\"b\\": 3}"#), Some(3));
        assert_eq!(of_json("/", r#"{"": 3}"#), Some(3));
        assert_eq!(of_json("/01", "[1, 2]"), None);
    }

    #[test]
    fn what_is_no_number_of_units_costs_nothing_that_is_not_there() {
        for (number, units) in [
            ("0", Some(0)),
            ("12", Some(12)),
            ("12.0", None),
            ("7.5", None),
            ("1e2", None),
            ("007", None),
            ("-1", None),
            ("99999999999999999999999999999999999999999", Some(u64::MAX)),
            ("\"12\"", None),
            ("null", None),
            ("true", None),
            ("[1]", None),
            ("{\"n\": 1}", None),
        ] {
            assert_eq!(
                of_json("/n", &format!("{{\"n\":{number}}}")),
                units,
                "{number}"
            );
        }
    }

    #[test]
    fn of_several_texts_the_last_number_counts_and_of_several_pointers_the_sum() {
        let lines = "{\"n\":1}\n{\"m\":7}\n{\"n\":3}\n{}\n";
        assert_eq!(of_json("/n", lines), Some(3));
        let mut reader = JsonUnits::new(pointers(&["/n", "/m", "/o"]));
        reader.read(lines.as_bytes());
        assert_eq!(reader.units(), Some(10));
    }

    #[test]
    fn of_a_stream_of_events_the_last_that_says_it_counts() {
        let stream = "data: {\"usage\":null}\n\nevent: x\ndata:{\"usage\":{\"n\":5}}\n\n\
                      : {\"usage\":{\"n\":6}}\n\ndata: {\"usage\":\ndata:  {\"n\":7\ndata:}}\n\n\
                      datum: {\"usage\":{\"n\":8}}\n\ndata: [DONE]\n\n";
        assert_eq!(of_events("/usage/n", stream), Some(7));
        assert_eq!(
            of_events("/usage/n", &stream.replace('\n', "\r\n")),
            Some(7)
        );
        assert_eq!(of_events("/usage/n", &stream.replace('\n', "\r")), Some(7));
    }

    #[test]
    fn an_event_that_is_cut_off_hides_none_that_follows() {
        let stream = "data: {\"usage\":{\"text\":\"cut\n\ndata: {\"usage\":{\"n\":2}}\n\n";
        assert_eq!(of_events("/usage/n", stream), Some(2));
    }

    #[test]
    fn memory_is_bounded_whatever_is_read() {
        let mut reader = JsonUnits::new(pointers(&["/a/b"]));
        for piece in ["{\"a\":", "[", "{\"", &"k".repeat(10_000), "\":\"", "1"] {
            for _ in 0..10_000 {
                reader.read(piece.as_bytes());
            }
        }
        assert!(reader.open.len() <= MAX_TOKENS);
        assert!(reader.pending.len() <= MAX_BYTES * ESCAPED + 1);
    }

    #[test]
    fn a_pointer_that_is_none_is_told_why() {
        let parse = |text: &str| text.parse::<JsonPointer>().unwrap_err();
        assert_eq!(parse("usage.total_tokens"), JsonPointerError::NoSlash);
        assert_eq!(parse(""), JsonPointerError::NoSlash);
        assert_eq!(parse("/a~2"), JsonPointerError::Escape);
        assert_eq!(parse("/a~"), JsonPointerError::Escape);
        assert_eq!(parse(&"/a".repeat(17)), JsonPointerError::TooLong);
    }

    fn json() -> impl Strategy<Value = Value> {
        let key = prop::sample::select(vec!["a", "b", "\"", "\\", "é"]).prop_map(str::to_owned);
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<u32>().prop_map(Value::from),
            "[ab\"\\\\{}\\[\\],:0]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map(key.clone(), inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// Whatever the JSON and wherever it is cut, the same is found as in the whole tree.
        #[test]
        fn pieces_hide_nothing_and_invent_nothing(
            value in json(),
            pointer in prop::collection::vec(
                prop::sample::select(vec!["a", "b", "\"", "\\", "é", "0", "1"]), 1..4),
            pretty: bool,
            cut in 1..8_usize,
        ) {
            let pointer = format!("/{}", pointer.join("/"));
            let text = match pretty {
                true => serde_json::to_string_pretty(&value).unwrap(),
                false => value.to_string(),
            };
            let mut reader = JsonUnits::new(pointers(&[&pointer]));
            for piece in text.as_bytes().chunks(cut) {
                reader.read(piece);
            }
            reader.end();
            prop_assert_eq!(reader.units(), value.pointer(&pointer).and_then(Value::as_u64));
        }

        #[test]
        fn no_bytes_make_reading_panic(bytes: Vec<u8>) {
            let mut json = JsonUnits::new(pointers(&["/a/0"]));
            json.read(&bytes);
            let mut events = EventUnits::new(pointers(&["/a/0"]));
            events.read(&bytes);
            json.end();
            events.end();
        }
    }
}
