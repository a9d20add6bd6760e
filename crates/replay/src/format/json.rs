//! Logs in JSON: Weir's own, and those that a table of their fields describes.
//!
//! A line that is as Weir writes it is read by [`LogEntry::plain`], in 0.17 us. serde_json takes
//! 0.73 us for it, which would add a third to the CPU time of a replay. It reads all other lines.

use std::borrow::Cow;
use std::fmt;

use memchr::memchr2;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use weir_limit::time::{Nanos, Timestamp};
use weir_telemetry::{ACCESS_LOG_FIELDS, field};

use super::fields::{FIELDS, Field, Texts};
use super::forms::JsonForm;
use super::time::{milliseconds, rfc3339};
use super::{LineMaker, Parsed, RawLine, is_given};

const NOT_JSON: &str = "it is not a JSON object";

/// The target of lines about requests.
const ACCESS: &str = "weir::access";

/// The target of lines about changes through the admin API.
const AUDIT: &str = "weir::audit";

/// The messages of changes that decisions depend on.
const OPERATOR_CHANGES: [&str; 6] = [
    "ban lifted",
    "ban set",
    "bucket refunded",
    "bucket reset",
    "override deleted",
    "override set",
];

/// A text, which is borrowed where nothing in it is escaped. (`Option<Cow>` would be a copy.)
#[derive(Debug, PartialEq, Deserialize)]
#[serde(transparent)]
struct Text<'l>(#[serde(borrow)] Cow<'l, str>);

/// A line of Weir's log: what lines of all kinds have, and the request of those that are about one.
#[derive(Debug, Default, PartialEq)]
struct LogEntry<'l> {
    timestamp: Option<&'l str>,
    target: Option<&'l str>,
    message: Option<&'l str>,
    /// Whether it is an address does not matter where the line is about no request.
    client: Option<&'l str>,
    /// Told if no limit is.
    ban: Option<&'l str>,
    /// The headers that the line has and that are not kept, a bit for each.
    unread_headers: u8,
    request: RawLine<'l>,
}

/// What is done with the value of a field.
#[derive(Clone, Copy, Debug)]
enum Use {
    /// It is this text.
    Text(for<'e, 'l> fn(&'e mut LogEntry<'l>) -> &'e mut Option<&'l str>),
    /// It is this span, in milliseconds.
    Span(for<'e> fn(&'e mut LogEntry<'_>) -> &'e mut Option<Nanos>),
    /// It is something else. `None` if it is there already, or the value is not one for it.
    Other(for<'l> fn(&mut LogEntry<'l>, Plain<'l>) -> Option<()>),
    /// It is this header of the request.
    Header(&'static str),
    /// It is a header that is not kept: the one with this bit. A line that has it twice is refused all
    /// the same, whatever is asked of the log.
    UnreadHeader(u8),
    Nothing,
}

/// The uses of the fields that are read, apart from headers. To compare a name with constants, one after
/// the other, takes a quarter of the time of a search in a table.
macro_rules! uses {
    ($($name:expr => $of_field:expr,)*) => {
        /// The use of the field with this name, if it is read and no header.
        fn read(name: &str) -> Option<Use> {
            $(if name == $name {
                return Some($of_field);
            })*
            None
        }
    };
}

uses! {
    "timestamp" => Use::Text(|line| &mut line.timestamp),
    "target" => Use::Text(|line| &mut line.target),
    "message" => Use::Text(|line| &mut line.message),
    field::client.name => Use::Text(|line| &mut line.client),
    field::method.name => Use::Text(|line| &mut line.request.method),
    field::path.name => Use::Text(|line| &mut line.request.path),
    field::query.name => Use::Text(|line| &mut line.request.query),
    field::status.name => Use::Other(status),
    field::route.name => Use::Text(|line| &mut line.request.route),
    field::decision.name => Use::Text(|line| &mut line.request.decision),
    field::limit.name => Use::Text(|line| &mut line.request.denied_by),
    field::ban.name => Use::Text(|line| &mut line.ban),
    field::account.name => Use::Text(|line| &mut line.request.account),
    field::host.name => Use::Text(|line| &mut line.request.host),
    field::duration_ms.name => Use::Span(|line| &mut line.request.took),
    field::delay_ms.name => Use::Span(|line| &mut line.request.waited),
    field::upstream_ms.name => Use::Span(|line| &mut line.request.head),
    field::decided_ns.name => Use::Other(decided),
}

fn status(line: &mut LogEntry<'_>, value: Plain<'_>) -> Option<()> {
    set(&mut line.request.status, value.number()?.parse().ok()?)
}

fn decided(line: &mut LogEntry<'_>, value: Plain<'_>) -> Option<()> {
    let nanos = value.number()?.parse().ok()?;
    set(&mut line.request.began, Timestamp::from_nanos(nanos))
}

fn set<T>(field: &mut Option<T>, value: T) -> Option<()> {
    field.is_none().then(|| *field = Some(value))
}

impl Use {
    /// Takes a value. `None` if there is one already, or it is not one for the field. It is inlined, as
    /// the call would take as long as many a field.
    #[inline(always)]
    fn take<'l>(self, line: &mut LogEntry<'l>, value: Plain<'l>) -> Option<()> {
        match self {
            Self::Text(of) => set(of(line), value.text()?),
            Self::Span(of) => set(of(line), milliseconds(value.number()?)?),
            Self::Other(take) => take(line, value),
            Self::Header(name) => {
                let headers = &mut line.request.headers;
                let is_new = headers.iter().all(|(known, _)| *known != name);
                let value = value.text()?;
                is_new.then(|| headers.push((name, value)))
            }
            Self::UnreadHeader(bit) => {
                value.text()?;
                let is_new = line.unread_headers & bit == 0;
                line.unread_headers |= bit;
                is_new.then_some(())
            }
            Self::Nothing => Some(()),
        }
    }
}

/// The uses of all fields that are read.
#[derive(Debug)]
struct Uses {
    /// Those of the fields that show headers, by the names of the fields.
    headers: Vec<(&'static str, Use)>,
}

impl Uses {
    fn new(wants_headers: bool) -> Self {
        let fields = ACCESS_LOG_FIELDS.iter();
        let shown = fields.filter_map(|field| Some((field.name, field.header?)));
        let bits = (0..u8::BITS).map(|index| 1 << index);
        let headers = shown
            .zip(bits)
            .map(|((field, header), bit)| match wants_headers {
                true => (field, Use::Header(header)),
                false => (field, Use::UnreadHeader(bit)),
            });
        Self {
            headers: headers.collect(),
        }
    }

    /// The use of the field with this name.
    fn of(&self, name: &str) -> Use {
        let header = || {
            let mut headers = self.headers.iter();
            let found = headers.find(|(field, _)| *field == name);
            found.map(|(_, of_field)| *of_field)
        };
        read(name).or_else(header).unwrap_or(Use::Nothing)
    }
}

/// The names of fields, in the order of lines. Nearly every line has those of the line before it,
/// and to compare a name takes less time than to find its end and its use.
#[derive(Debug)]
pub(super) struct Layout {
    known: Vec<(Box<str>, Use)>,
    uses: Uses,
}

const MAX_NAMES: usize = 64;

/// Names of the line before that are looked at for one name.
const MAX_MISSING_NAMES: usize = 4;

impl Layout {
    pub(super) fn new(wants_headers: bool) -> Self {
        Self {
            known: Vec::new(),
            uses: Uses::new(wants_headers),
        }
    }

    /// Reads the next name of a line, which is expected at `index`.
    fn next(&mut self, line: &mut PlainJson<'_>, index: &mut usize) -> Option<Use> {
        let rest = line.line.as_bytes().get(line.at..)?;
        let expected = self
            .known
            .iter()
            .skip(*index)
            .take(MAX_MISSING_NAMES)
            .zip(*index..);
        for ((name, of_field), known) in expected {
            if rest.starts_with(name.as_bytes()) {
                line.at += name.len();
                *index = known + 1;
                return Some(*of_field);
            }
        }
        let start = line.at;
        let of_field = self.uses.of(line.text()?);
        line.skip(b':')?;
        if self.known.len() < MAX_NAMES {
            let name = line.line.get(start..line.at)?.into();
            let place = (*index).min(self.known.len());
            self.known.insert(place, (name, of_field));
            *index += 1;
        }
        Some(of_field)
    }
}

impl<'l> LogEntry<'l> {
    /// The fields of a line as Weir writes nearly all: without blanks and escapes. `None` for any
    /// other line.
    fn plain(line: &'l str, layout: &mut Layout) -> Option<Self> {
        let mut entry = Self::default();
        let mut line = PlainJson { line, at: 0 };
        let mut index = 0;
        line.skip(b'{')?;
        loop {
            let of_field = layout.next(&mut line, &mut index)?;
            of_field.take(&mut entry, line.value()?)?;
            if line.skip(b',').is_none() {
                break;
            }
        }
        line.skip(b'}')?;
        line.peek().is_none().then_some(entry)
    }

    /// The same for any JSON. `None` if a field has a value that is not one for it.
    fn from_fields(all: &'l Fields<'_>, uses: &Uses) -> Option<Self> {
        let mut entry = Self::default();
        for (Text(name), value) in &all.0 {
            if let Value::Text(value) = value {
                uses.of(name).take(&mut entry, Plain::Either(value))?;
            }
        }
        Some(entry)
    }

    fn parsed(mut self, make: &mut LineMaker<'_>) -> Result<Parsed, &'static str> {
        match self.target {
            Some(ACCESS) => {}
            Some(AUDIT) => return Ok(self.operator_change().unwrap_or(Parsed::Other)),
            Some(_) => return Ok(Parsed::Other),
            None => return Err("it is not a line of Weir's log: it has no target"),
        }
        let request = &mut self.request;
        request.client = self.client.and_then(|text| text.parse().ok());
        request.denied_by = request.denied_by.or(self.ban);
        if request.began.is_none() {
            request.ended = self.timestamp.and_then(rfc3339);
        }
        make.line(request)
    }

    fn operator_change(&self) -> Option<Parsed> {
        let mut known = OPERATOR_CHANGES.into_iter();
        let change = known.find(|change| self.message == Some(change))?;
        Some(Parsed::OperatorChange(change, rfc3339(self.timestamp?)?))
    }
}

enum Plain<'l> {
    Text(&'l str),
    Number(&'l str),
    /// A text or a number; [`Value`] does not tell which.
    Either(&'l str),
    True,
}

impl<'l> Plain<'l> {
    fn text(self) -> Option<&'l str> {
        match self {
            Plain::Text(text) | Plain::Either(text) => Some(text),
            _ => None,
        }
    }

    fn number(self) -> Option<&'l str> {
        match self {
            Plain::Number(text) | Plain::Either(text) => Some(text),
            _ => None,
        }
    }
}

/// Reads plain JSON byte by byte, as the methods of `str` would cost more than all the rest.
struct PlainJson<'l> {
    line: &'l str,
    at: usize,
}

impl<'l> PlainJson<'l> {
    fn peek(&self) -> Option<u8> {
        self.line.as_bytes().get(self.at).copied()
    }

    /// Skips this byte. `None` if it is another.
    fn skip(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn value(&mut self) -> Option<Plain<'l>> {
        match self.peek()? {
            b'"' => self.text().map(Plain::Text),
            b't' => {
                b"true"
                    .iter()
                    .try_for_each(|byte| self.skip(*byte).ok_or(()))
                    .ok()?;
                Some(Plain::True)
            }
            _ => self.number().map(Plain::Number),
        }
    }

    /// A text in quotes with nothing escaped.
    fn text(&mut self) -> Option<&'l str> {
        self.skip(b'"')?;
        let start = self.at;
        self.at += plain_bytes(self.line.as_bytes().get(start..)?);
        let text = self.line.get(start..self.at)?;
        self.skip(b'"')?;
        Some(text)
    }

    /// A number without sign and exponent.
    fn number(&mut self) -> Option<&'l str> {
        let start = self.at;
        let is_zero = self.peek()? == b'0';
        let whole = self.digits();
        let is_whole = whole == 1 || whole > 1 && !is_zero;
        let is_ended = self.skip(b'.').is_none() || self.digits() > 0;
        (is_whole && is_ended).then(|| self.line.get(start..self.at))?
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        self.at - start
    }
}

/// The number of bytes before the first quote, backslash or control character.
fn plain_bytes(text: &[u8]) -> usize {
    let end = memchr2(b'"', b'\\', text).unwrap_or(text.len());
    let plain = text.get(..end).unwrap_or_default();
    let is_control = |byte: &u8| *byte < b' ';
    // The fold reads several bytes at once, and control characters are rare.
    match plain
        .iter()
        .fold(false, |found, byte| found | is_control(byte))
    {
        true => plain.iter().position(is_control).unwrap_or(end),
        false => end,
    }
}

pub(super) fn weir(
    line: &str,
    make: &mut LineMaker<'_>,
    layout: &mut Layout,
) -> Result<Parsed, &'static str> {
    const NOT_WEIR: &str = "it is not a JSON object of Weir's log";
    if let Some(entry) = LogEntry::plain(line, layout) {
        return entry.parsed(make);
    }
    let fields: Fields<'_> = serde_json::from_str(line).map_err(|_| NOT_WEIR)?;
    let entry = LogEntry::from_fields(&fields, &layout.uses).ok_or(NOT_WEIR)?;
    entry.parsed(make)
}

/// A line of a form that a table describes.
pub(super) fn object(
    line: &str,
    names: &NameTree,
    form: &JsonForm,
    make: &mut LineMaker<'_>,
) -> Result<Parsed, &'static str> {
    let mut found = Found {
        wants_headers: make.options.detail_set.headers,
        ..Found::default()
    };
    let reader = ObjectReader {
        names,
        is_headers: false,
        found: &mut found,
    };
    let mut json = serde_json::Deserializer::from_str(line);
    let is_object = reader.deserialize(&mut json).map_err(|_| NOT_JSON)?;
    json.end().map_err(|_| NOT_JSON)?;
    if !is_object {
        return Err(NOT_JSON);
    }
    make.had_query_field |= found.tells_query;
    let mut marks = form.marks.iter();
    if !marks.all(|mark| found.texts.get(*mark).is_some()) {
        return Ok(Parsed::Other);
    }
    let headers = found.headers.iter();
    let headers: Vec<_> = headers
        .map(|(name, value)| (&**name, value.text()))
        .collect();
    make.parsed(&found.texts, &headers)
}

/// The names of a form's fields, by the objects that they stand in, in alphabetical order.
#[derive(Debug, Default)]
pub(super) struct NameTree(Vec<(&'static str, Place)>);

/// What a name stands for.
#[derive(Debug, Default)]
struct Place {
    /// The field, and the place of the name among those that the field has.
    field: Option<(Field, usize)>,
    /// Whether it is the object with all headers.
    is_headers: bool,
    /// The names in the object.
    inside: NameTree,
}

impl NameTree {
    pub(super) fn new(form: &JsonForm) -> Self {
        let mut tree = Self::default();
        for (field, names) in form.fields {
            for (rank, name) in names.iter().enumerate() {
                tree.add(name, |place| place.field = Some((*field, rank)));
            }
        }
        if let Some(name) = form.headers {
            tree.add(name, |place| place.is_headers = true);
        }
        tree
    }

    fn add(&mut self, path: &'static str, change: impl FnOnce(&mut Place)) {
        let (name, rest) = path.split_once('.').unwrap_or((path, ""));
        if let Err(missing) = self.search(name) {
            self.0.insert(missing, (name, Place::default()));
        }
        let place = self.search(name).ok().and_then(|at| self.0.get_mut(at));
        match place {
            Some((_, place)) if rest.is_empty() => change(place),
            Some((_, place)) => place.inside.add(rest, change),
            None => {}
        }
    }

    fn search(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| (*known).cmp(name))
    }

    fn find(&self, name: &str) -> Option<&Place> {
        let at = self.search(name).ok()?;
        self.0.get(at).map(|(_, place)| place)
    }
}

/// What was found of a line.
#[derive(Debug, Default)]
struct Found<'l> {
    texts: Texts<'l>,
    /// The places of the names that the texts were found by.
    ranks: [usize; FIELDS],
    /// Whether a field tells the query of the request, if it has one.
    tells_query: bool,
    wants_headers: bool,
    headers: Vec<(Cow<'l, str>, Value<'l>)>,
}

impl<'l> Found<'l> {
    /// Takes the text of a field, unless one of a better name is there.
    fn set(&mut self, field: Field, rank: usize, text: Cow<'l, str>) {
        let Some(best) = self.ranks.get_mut(field as usize) else {
            return;
        };
        if is_given(&text) && (rank <= *best || self.texts.get(field).is_none()) {
            *best = rank;
            self.texts.set(field, text);
        }
    }

    fn value(&mut self, place: Option<&Place>, header: Option<Cow<'l, str>>, value: Value<'l>) {
        let field = place.and_then(|place| place.field);
        // The host is a field of its own.
        let header = header.filter(|name| !name.eq_ignore_ascii_case("host"));
        self.tells_query |= field.is_some_and(|(field, rank)| field.tells_query(rank));
        match (field, header, value) {
            (Some((field, rank)), header, Value::Text(text)) => {
                if let Some(name) = header {
                    self.headers.push((name, Value::Text(text.clone())));
                }
                self.set(field, rank, text);
            }
            (_, Some(name), value) => self.headers.push((name, value)),
            _ => {}
        }
    }
}

/// Reads what a form has of an object. All else is skipped, and nothing is made of it.
struct ObjectReader<'f, 'l> {
    names: &'f NameTree,
    /// Whether all fields are headers that are wanted.
    is_headers: bool,
    found: &'f mut Found<'l>,
}

impl<'l> DeserializeSeed<'l> for ObjectReader<'_, 'l> {
    /// Whether it is an object.
    type Value = bool;

    fn deserialize<D: Deserializer<'l>>(self, from: D) -> Result<bool, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'l> Visitor<'l> for ObjectReader<'_, 'l> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<bool, A::Error> {
        while let Some(Text(name)) = map.next_key()? {
            let place = self.names.find(&name);
            let is_headers = self.found.wants_headers && place.is_some_and(|it| it.is_headers);
            match place {
                Some(place) if is_headers || !place.inside.0.is_empty() => {
                    map.next_value_seed(ObjectReader {
                        names: &place.inside,
                        is_headers,
                        found: &mut *self.found,
                    })?;
                }
                place if self.is_headers || place.is_some_and(|it| it.field.is_some()) => {
                    let value = map.next_value()?;
                    let header = self.is_headers.then_some(name);
                    self.found.value(place, header, value);
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(true)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_unit<E: Error>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_seq<A: SeqAccess<'l>>(self, mut list: A) -> Result<bool, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(false)
    }
}

/// All fields of an object, in their order.
#[derive(Debug, Default, PartialEq)]
struct Fields<'l>(Vec<(Text<'l>, Value<'l>)>);

impl<'de: 'l, 'l> Deserialize<'de> for Fields<'l> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(FieldsReader)
    }
}

struct FieldsReader;

impl<'l> Visitor<'l> for FieldsReader {
    type Value = Fields<'l>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<Fields<'l>, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Fields(fields))
    }
}

/// A value. A number is a text as it would be written, since what one server logs as a number
/// another logs as a text.
#[derive(Debug, Default, PartialEq)]
enum Value<'l> {
    #[default]
    Nothing,
    Text(Cow<'l, str>),
}

impl Value<'_> {
    /// The text, unless it is empty or a dash, which stands for nothing.
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => is_given(text).then_some(text),
            Self::Nothing => None,
        }
    }
}

impl<'de: 'l, 'l> Deserialize<'de> for Value<'l> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ValueReader)
    }
}

struct ValueReader;

impl<'l> Visitor<'l> for ValueReader {
    type Value = Value<'l>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'l str) -> Result<Value<'l>, E> {
        Ok(Value::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value<'l>, E> {
        Ok(Value::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value<'l>, E> {
        Ok(Value::Text(Cow::Owned(number.to_string())))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value<'l>, E> {
        Ok(Value::Text(Cow::Owned(number.to_string())))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value<'l>, E> {
        Ok(Value::Text(Cow::Owned(number.to_string())))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Value<'l>, E> {
        Ok(Value::Nothing)
    }

    fn visit_unit<E: Error>(self) -> Result<Value<'l>, E> {
        Ok(Value::Nothing)
    }

    /// Of several values, as caddy has for a header, the first.
    fn visit_seq<A: SeqAccess<'l>>(self, mut list: A) -> Result<Value<'l>, A::Error> {
        let first = list.next_element()?.unwrap_or_default();
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(first)
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<Value<'l>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Value::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::ParseOptions;
    use super::*;

    const LINE: &str = r#"{"timestamp":"2026-11-21T10:00:00.027073Z","level":"INFO","client":"10.0.237.176","method":"GET","path":"/items/5","status":200,"aborted":true,"remaining":19,"duration_ms":9.073,"store_ms":0.0,"decided_ns":1795255200018000308,"user_agent":"Mozilla/5.0 (X11)","target":"weir::access"}"#;

    fn plain(line: &str) -> Option<LogEntry<'_>> {
        LogEntry::plain(line, &mut Layout::new(true))
    }

    #[test]
    fn a_plain_line_is_read_as_any_json_is() {
        let fields: Fields<'_> = serde_json::from_str(LINE).unwrap();
        let plain = plain(LINE).expect("a plain line");
        let uses = Uses::new(true);
        assert_eq!(Some(&plain), LogEntry::from_fields(&fields, &uses).as_ref());
        let request = plain.request;
        let decided = Timestamp::from_nanos(1_795_255_200_018_000_308);
        assert_eq!(request.began, Some(decided));
        assert_eq!(request.took, Some(Nanos::new(9_073_000)));
        assert_eq!(request.path, Some("/items/5"));
    }

    #[test]
    fn a_field_that_is_there_twice_is_refused_even_where_the_first_means_nothing() {
        let client = "\"client\":\"10.0.237.176\"";
        let twice = LINE.replace(client, &format!("\"client\":\"nobody\",{client}"));
        let options = ParseOptions::default();
        let read = weir(&twice, &mut LineMaker::new(options), &mut Layout::new(true));
        assert_eq!(read.err(), Some("it is not a JSON object of Weir's log"));
    }

    #[test]
    fn a_header_that_is_there_twice_is_never_read_even_where_no_rule_goes_by_headers() {
        for wants_headers in [true, false] {
            let mut layout = Layout::new(wants_headers);
            let read = |line: &str, layout: &mut Layout| {
                weir(line, &mut LineMaker::new(ParseOptions::default()), layout).err()
            };
            for field in ["user_agent", "referer", "request_id"] {
                let other = format!("\"{field}\":\"other\",\"target\"");
                let once = LINE
                    .replace("\"user_agent\":\"Mozilla/5.0 (X11)\",", "")
                    .replace("\"target\"", &other);
                let twice = once.replace("\"target\"", &other);
                let blank = twice.replace("\"status\":", "\"status\": ");
                assert_eq!(read(&once, &mut layout), None, "{once}");
                for line in [twice, blank] {
                    let error = read(&line, &mut layout);
                    assert_eq!(
                        error,
                        Some("it is not a JSON object of Weir's log"),
                        "{line}"
                    );
                }
            }
        }
    }

    /// Each has a bit.
    #[test]
    fn the_headers_of_a_line_are_never_more_than_there_are_bits_for() {
        let headers = ACCESS_LOG_FIELDS.iter().filter_map(|field| field.header);
        assert!(headers.count() <= u8::BITS as usize);
    }

    #[test]
    fn lines_with_other_fields_in_another_order_are_read_as_by_themselves() {
        let mut layout = Layout::new(true);
        let without = |part: &str| LINE.replace(part, "");
        let denied = LINE.replace("\"status\":200", "\"status\":429,\"limit\":\"L\"");
        let turned = r#"{"target":"weir::access","path":"/","status":204,"client":"::1"}"#;
        let many: Vec<String> = (0..MAX_NAMES)
            .map(|name| format!("{{\"x{name}\":1,\"path\":\"/{name}\"}}"))
            .collect();
        let lines = [
            LINE,
            &denied,
            LINE,
            &without("\"aborted\":true,"),
            turned,
            &without("\"client\":\"10.0.237.176\",\"method\":\"GET\",\"path\":\"/items/5\","),
            turned,
            LINE,
        ];
        let lines = lines.into_iter().chain(many.iter().map(String::as_str));
        for line in lines.chain([LINE, turned, &denied]) {
            let read = LogEntry::plain(line, &mut layout);
            assert!(read.is_some(), "{line}");
            assert_eq!(read, plain(line), "{line}");
            assert!(layout.known.len() <= MAX_NAMES);
        }
    }

    #[test]
    fn what_is_not_plain_is_left_to_what_reads_any_json() {
        for (part, other) in [
            ("/items/5", r"/items/\u0035"),
            ("/items/5", "/items/\u{7}"),
            ("\"status\":200", "\"status\": 200"),
            ("\"status\":200", "\"status\":\"200\""),
            ("\"status\":200", "\"status\":0200"),
            ("\"status\":200", "\"status\":200."),
            ("\"status\":200", "\"status\":2e2"),
            ("\"status\":200", "\"status\":70000"),
            ("\"status\":200", "\"status\":null"),
            ("\"status\":200", "\"status\":200,\"status\":200"),
            ("\"status\":200", "\"status\""),
            ("\"level\":\"INFO\"", "\"level\":{}"),
            ("access\"}", "access\"}}"),
            ("access\"}", "access\","),
            ("access\"}", "access"),
        ] {
            let line = LINE.replace(part, other);
            assert_ne!(line, LINE, "{part}");
            assert!(plain(&line).is_none(), "{line}");
        }
    }

    proptest! {
        #[test]
        fn a_line_that_was_changed_anywhere_is_never_read_otherwise(
            place in 0..LINE.len(),
            removed in 0..20_usize,
            added in r#"["\\,:{}tru0-9.eE é-]{0,4}"#,
        ) {
            let end = LINE.len().min(place + removed);
            let line = format!("{}{added}{}", &LINE[..place], &LINE[end..]);
            let fields = serde_json::from_str::<Fields<'_>>(&line);
            let mut layout = Layout::new(true);
            LogEntry::plain(LINE, &mut layout);
            let read = LogEntry::plain(&line, &mut layout);
            prop_assert_eq!(&read, &plain(&line), "{}", line);
            if let Some(read) = read {
                let fields = fields.as_ref().unwrap();
                prop_assert_eq!(Some(read), LogEntry::from_fields(fields, &layout.uses), "{}", line);
            }
        }

        #[test]
        fn the_first_special_byte_is_found(text in "[a\"\\\\\u{1f} \u{7f}é]{0,40}") {
            let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | ..0x20);
            let expected = text.bytes().position(|byte| is_special(&byte));
            prop_assert_eq!(plain_bytes(text.as_bytes()), expected.unwrap_or(text.len()));
        }
    }
}
