//! Access logs: what their lines tell of requests, and the forms that they come in.
//!
//! `forms` is the table of the forms; `combined`, `json`, `columns` and `pattern` read their lines,
//! `prefix` what collectors write before each, and `fields` makes requests of what was read.

mod client;
mod columns;
mod combined;
mod fields;
mod forms;
mod json;
mod pattern;
mod prefix;
mod seen;
mod time;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use bytes::BytesMut;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use smallvec::SmallVec;
use weir_limit::time::{Nanos, Timestamp};
use weir_rules::{ClientRules, canonical_address};
use weir_telemetry::Disposition;

use self::columns::Columns;
pub use self::columns::HEADER;
use self::fields::{NO_CLIENT, NO_TIME};
pub use self::forms::forms_table;
use self::forms::{FORMS, Form, OWN, Shape};
use self::json::{Layout, NameTree};
use self::pattern::Pattern;
use self::prefix::Prefix;
pub use self::seen::{LogNeeds, Seen};
use self::time::any_time;

const SECOND: u64 = 1_000_000_000;

/// The status that stands in logs, after nginx, for a client that left before the response.
const LEFT: u16 = 499;

/// The most bytes of a line, by far.
pub const MAX_LINE_BYTES: usize = 1 << 18;

/// The lines that a form is guessed by.
const GUESSED_LINES: usize = 50;

/// What editors on Windows begin a file with.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// The form of a log, and what stands before each of its lines.
#[derive(Clone, Debug)]
pub struct Format {
    form: &'static Form,
    /// The pattern of a form of the operator's.
    pattern: Option<Arc<str>>,
    prefix: Prefix,
}

/// A line of a log.
#[derive(Debug)]
pub enum Parsed {
    Request(LogLine),
    /// A change through the admin API, which is not replayed, and when it was made.
    OperatorChange(&'static str, Timestamp),
    /// A line of the log that is not about a request of HTTP.
    Other,
    /// A line that is not of this form.
    Malformed(&'static str),
}

/// What lines are parsed for.
#[derive(Clone, Copy, Debug, Default)]
pub struct ParseOptions<'n> {
    /// The names of the configurations' limits and bans.
    pub names: Option<&'n Names>,
    pub detail_set: DetailSet,
    /// Who the trusted proxies are, if there are any.
    pub clients: Option<&'n ClientRules>,
    /// The host of requests that the log has none of.
    pub host: Option<&'n str>,
}

impl Format {
    const fn new(form: &'static Form) -> Self {
        Self {
            form,
            pattern: None,
            prefix: Prefix::None,
        }
    }

    /// The form of a log that begins with these lines, which is `given` if the operator said so;
    /// none if it is of no form that is known.
    pub fn detect(lines: &[u8], given: Option<&Self>) -> Option<Self> {
        let lines = lines.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        let lines = lines.filter(|line| !line.is_empty());
        let lines: Vec<&[u8]> = lines.take(GUESSED_LINES).collect();
        let forms: Vec<Self> = match given {
            Some(given) => vec![given.clone()],
            None => FORMS.iter().map(Self::new).collect(),
        };
        let all = Prefix::ALL.into_iter().flat_map(|prefix| {
            let forms = forms.iter().cloned();
            forms.map(move |form| Self { prefix, ..form })
        });
        let all: Vec<(usize, Self)> = all.map(|form| (form.requests(&lines), form)).collect();
        // Programs may write into one log; its form is that of most lines.
        let most = all.iter().map(|(requests, _)| *requests).max()?;
        let mut good = all.into_iter().filter(|(requests, _)| *requests > 0);
        let found = good.find(|(requests, _)| 2 * requests >= most);
        found.map(|(_, form)| form).or_else(|| given.cloned())
    }

    /// How many of these lines it reads as requests.
    fn requests(&self, lines: &[&[u8]]) -> usize {
        let mut parser = self.parser(ParseOptions::default());
        let lines = lines.iter().map(|line| parser.parse(line));
        lines
            .filter(|parsed| matches!(parsed, Parsed::Request(_)))
            .count()
    }

    /// Whether it is Weir's own.
    pub const fn is_weir(&self) -> bool {
        matches!(self.form.shape, Shape::Weir)
    }

    /// Whether its client is the one that trusted proxies named.
    pub const fn knows_client(&self) -> bool {
        self.form.knows_client
    }

    /// Whether lines have all headers of requests but this one, if they hide it.
    pub fn has_all_headers_but(&self, name: &str) -> Option<bool> {
        const SECRET: [&str; 3] = ["authorization", "cookie", "proxy-authorization"];
        self.form.has_headers.then(|| SECRET.contains(&name))
    }

    /// A parser of the format's lines.
    pub fn parser<'n>(&'n self, options: ParseOptions<'n>) -> Parser<'n> {
        let compiled = |texts: &[&'n str]| {
            texts
                .iter()
                .map(|text| Pattern::new(text))
                .collect::<Vec<_>>()
        };
        let (patterns, repeated, others) = match &self.form.shape {
            Shape::Text(text) => (
                compiled(text.patterns),
                compiled(text.repeated),
                compiled(text.others),
            ),
            _ => (
                self.pattern.iter().map(|text| Pattern::new(text)).collect(),
                Vec::new(),
                Vec::new(),
            ),
        };
        Parser {
            format: self,
            make: LineMaker::new(options),
            last_time: (Vec::new(), None),
            layout: Layout::new(options.detail_set.headers),
            json_names: match &self.form.shape {
                Shape::Json(form) => NameTree::new(form),
                _ => NameTree::default(),
            },
            patterns,
            repeated,
            others,
            columns: Columns::default(),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.form.name)?;
        match self.prefix {
            Prefix::None => Ok(()),
            prefix => write!(f, ", behind the prefix of {}", prefix.name()),
        }
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('$') {
            let pattern = pattern::checked(text)?;
            return Ok(Self {
                pattern: Some(pattern),
                ..Self::new(&OWN)
            });
        }
        let found = FORMS.iter().find(|form| form.name == text);
        found.map(Self::new).ok_or_else(|| {
            let names: Vec<&str> = FORMS.iter().map(|form| form.name).collect();
            format!(
                "not a form of logs; write one of {}, or a pattern such as '$remote_addr \
                 [$time_local] \"$request\" $status'",
                names.join(", ")
            )
        })
    }
}

/// Parses lines of one form.
#[derive(Debug)]
pub struct Parser<'n> {
    format: &'n Format,
    make: LineMaker<'n>,
    /// The last time that was read in the common log format. Most lines have that of the line
    /// before.
    last_time: (Vec<u8>, Option<Timestamp>),
    /// The layout of the previous lines of Weir.
    layout: Layout,
    /// Where the fields of a form in JSON stand.
    json_names: NameTree,
    /// The patterns of lines of text.
    patterns: Vec<Pattern<'n>>,
    repeated: Vec<Pattern<'n>>,
    others: Vec<Pattern<'n>>,
    /// The columns that the last header named.
    columns: Columns,
}

impl Parser<'_> {
    /// Parses a line, which has no line break.
    pub fn parse(&mut self, line: &[u8]) -> Parsed {
        if line.trim_ascii().is_empty() {
            return Parsed::Other;
        }
        if line.len() > MAX_LINE_BYTES {
            return Parsed::Malformed("it is longer than 256 KiB");
        }
        let Ok(line) = str::from_utf8(line) else {
            return Parsed::Malformed("it is not UTF-8");
        };
        let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        let parsed = match self.format.prefix {
            Prefix::None => self.bare(line),
            prefix => match prefix.strip(line) {
                Some((line, time)) => {
                    self.make.outer = time;
                    self.bare(&line)
                }
                None => Err("it does not have the prefix of the first lines"),
            },
        };
        parsed.unwrap_or_else(Parsed::Malformed)
    }

    fn bare(&mut self, line: &str) -> Result<Parsed, &'static str> {
        match &self.format.form.shape {
            Shape::Weir => json::weir(line, &mut self.make, &mut self.layout),
            Shape::Combined => {
                let last = &mut self.last_time;
                combined::combined(line, &mut self.make, |text| time(last, text))
            }
            Shape::Json(form) => json::object(line, &self.json_names, form, &mut self.make),
            Shape::Text(_) | Shape::Own => self.text(line),
            Shape::Columns => self.in_columns(line),
        }
    }

    fn text(&mut self, line: &str) -> Result<Parsed, &'static str> {
        let has_any = |patterns: &[Pattern<'_>]| {
            let mut patterns = patterns.iter();
            patterns.any(|pattern| pattern.fields(line).is_some())
        };
        if has_any(&self.repeated) {
            return Ok(Parsed::Other);
        }
        let mut patterns = self.patterns.iter();
        match patterns.find_map(|pattern| pattern.fields(line)) {
            Some(texts) => self.make.parsed(&texts, &[]),
            None if has_any(&self.others) => Ok(Parsed::Other),
            None => Err("it is not of this form"),
        }
    }

    fn in_columns(&mut self, line: &str) -> Result<Parsed, &'static str> {
        if line.starts_with('#') {
            self.header(line);
            return Ok(Parsed::Other);
        }
        let texts = self.columns.fields(line)?;
        self.make.parsed(&texts, &[])
    }

    /// Takes the header that stands before the lines that come next, if it is one.
    pub fn header(&mut self, header: &str) {
        if let Some(columns) = Columns::new(header) {
            self.columns = columns;
        }
    }

    /// Whether the lines that were parsed have the queries of those requests that had one, whether
    /// or not any had.
    pub fn logs_queries(&self) -> bool {
        let tells_query = match &self.format.form.shape {
            Shape::Weir | Shape::Combined => true,
            Shape::Json(_) => self.make.had_query_field,
            Shape::Text(_) | Shape::Own => self.patterns.iter().all(|it| it.tells_query),
            Shape::Columns => self.columns.tells_query(),
        };
        tells_query && !self.format.form.may_omit_queries
    }

    /// How many requests had a list of addresses for a client, of which the leftmost was taken.
    pub const fn leftmost(&self) -> u64 {
        self.make.leftmost
    }

    /// Whether all times of these bytes are of whole seconds.
    pub fn is_coarse(&mut self, lines: &[u8]) -> bool {
        let is_whole = |time: Timestamp| time.as_nanos().is_multiple_of(SECOND);
        let mut lines = lines.split(|byte| *byte == b'\n');
        lines.all(|line| match self.parse(line) {
            Parsed::Request(line) => is_whole(line.ended) || is_whole(line.at),
            _ => true,
        })
    }

    /// The time of the first request of these bytes, by which files are put in order.
    pub fn first_time(&mut self, lines: &[u8]) -> Option<Timestamp> {
        let mut lines = lines.split(|byte| *byte == b'\n');
        lines.find_map(|line| match self.parse(line) {
            Parsed::Request(line) => Some(line.ended),
            _ => None,
        })
    }
}

/// A time in brackets, which is looked up if it is that of the line before.
fn time(last: &mut (Vec<u8>, Option<Timestamp>), text: &[u8]) -> Option<Timestamp> {
    if last.0 != text {
        *last = (text.to_vec(), str::from_utf8(text).ok().and_then(any_time));
    }
    last.1
}

/// Room for most targets without an allocation.
const TARGET_BYTES: usize = 36;

/// A request, with the details that the rules need.
#[derive(Debug)]
pub struct LogLine {
    /// When it was decided about, or arrived where the log does not say that.
    pub at: Timestamp,
    /// When its response began.
    pub answered: Timestamp,
    /// When its response was over.
    pub ended: Timestamp,
    pub client: IpAddr,
    pub method: Method,
    /// The path, and the query where it is logged. It is here as bytes, which lie beside the rest
    /// of the line: [`TargetMaker`] makes of it what requests have.
    pub target: SmallVec<[u8; TARGET_BYTES]>,
    /// The status of the response; none if the client left before.
    pub status: Option<StatusCode>,
    /// What only some rules ask for.
    pub details: Option<Box<Details>>,
    pub recorded: Option<Recorded>,
}

impl LogLine {
    /// Roughly the memory of the line.
    pub fn bytes(&self) -> usize {
        let target = if self.target.spilled() {
            self.target.len()
        } else {
            0
        };
        size_of::<Self>() + target + self.details.as_deref().map_or(0, Details::bytes)
    }
}

/// Details that only some rules need.
#[derive(Clone, Debug, Default)]
pub struct Details {
    /// The headers that the log has, `Host` among them.
    pub headers: HeaderMap,
    /// The account, as the log has it.
    pub account: Option<Box<str>>,
    /// The route that it took at the time.
    pub route: Option<Box<str>>,
}

impl Details {
    fn bytes(&self) -> usize {
        /// The bytes of a map for each header beside its value.
        const OF_HEADER: usize = 128;
        let headers = self.headers.values();
        let headers: usize = headers.map(|value| OF_HEADER + value.len()).sum();
        let texts = [&self.account, &self.route].into_iter().flatten();
        size_of::<Self>() + headers + texts.map(|text| text.len()).sum::<usize>()
    }
}

/// The details that are kept of each line.
#[derive(Clone, Copy, Debug, Default)]
pub struct DetailSet {
    pub host: bool,
    /// All other headers that the log has.
    pub headers: bool,
    pub account: bool,
    pub route: bool,
}

impl DetailSet {
    /// All that lines may have.
    pub const ALL: Self = Self {
        host: true,
        headers: true,
        account: true,
        route: true,
    };

    /// The details that either has.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self {
            host: self.host || other.host,
            headers: self.headers || other.headers,
            account: self.account || other.account,
            route: self.route || other.route,
        }
    }
}

/// A decision that Weir's log has.
#[derive(Clone, Copy, Debug)]
pub struct Recorded {
    pub decision: Disposition,
    pub by: Option<Name>,
}

/// The name of a limit or a ban, as a number of [`Names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(u16);

/// The names of all limits and bans of the configurations, of which lines know the numbers.
#[derive(Debug, Default)]
pub struct Names {
    names: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, Name>,
}

impl Name {
    /// A name that is in none of the configurations.
    pub const UNKNOWN: Self = Self(u16::MAX);
}

impl Names {
    /// The number of a name, which gets one if it has none.
    pub fn add(&mut self, name: &str) -> Name {
        if let Some(known) = self.numbers.get(name) {
            return *known;
        }
        let number = u16::try_from(self.names.len()).map_or(Name::UNKNOWN, Name);
        let name: Arc<str> = name.into();
        self.names.push(Arc::clone(&name));
        self.numbers.insert(name, number);
        number
    }

    pub fn find(&self, name: &str) -> Name {
        self.numbers.get(name).copied().unwrap_or(Name::UNKNOWN)
    }

    pub fn name(&self, name: Name) -> &str {
        let known = self.names.get(usize::from(name.0));
        known.map_or("(unknown)", |name| name)
    }
}

/// What a line says of its request. Where it does not say something, that is none.
#[derive(Debug, Default, PartialEq)]
struct RawLine<'l> {
    /// When it was decided about, or arrived.
    began: Option<Timestamp>,
    /// When its response was over.
    ended: Option<Timestamp>,
    /// From its beginning to its end.
    took: Option<Nanos>,
    /// From its beginning until an upstream was asked.
    waited: Option<Nanos>,
    /// From then to the head of the response.
    head: Option<Nanos>,
    client: Option<IpAddr>,
    method: Option<&'l str>,
    path: Option<&'l str>,
    query: Option<&'l str>,
    status: Option<u16>,
    host: Option<&'l str>,
    /// Other headers.
    headers: SmallVec<[(&'l str, &'l str); 3]>,
    account: Option<&'l str>,
    route: Option<&'l str>,
    /// What Weir decided, and by what.
    decision: Option<&'l str>,
    denied_by: Option<&'l str>,
}

/// Makes the targets of requests, one after the other: as long as only one of them is there, they
/// take the same room.
#[derive(Debug, Default)]
pub struct TargetMaker(BytesMut);

impl TargetMaker {
    /// The target of these bytes; none where HTTP does not allow it.
    pub fn target(&mut self, parts: &[&[u8]]) -> Option<PathAndQuery> {
        /// Room for the targets of many lines, so that it is rarely made anew.
        const ROOM: usize = 1 << 12;
        let bytes = parts.iter().map(|part| part.len()).sum();
        if self.0.capacity() < bytes {
            self.0.reserve(bytes.max(ROOM));
        }
        for part in parts {
            self.0.extend_from_slice(part);
        }
        PathAndQuery::from_maybe_shared(self.0.split().freeze()).ok()
    }
}

/// Makes lines of their parts.
#[derive(Debug)]
struct LineMaker<'n> {
    options: ParseOptions<'n>,
    targets: TargetMaker,
    /// The time of the prefix of the line, for forms that have none.
    outer: Option<Timestamp>,
    /// Whether a line in JSON had a field that tells the query.
    had_query_field: bool,
    /// How many requests had a list of addresses for a client, of which the leftmost was taken.
    leftmost: u64,
}

impl<'n> LineMaker<'n> {
    fn new(options: ParseOptions<'n>) -> Self {
        Self {
            options,
            targets: TargetMaker::default(),
            outer: None,
            had_query_field: false,
            leftmost: 0,
        }
    }

    /// The line with the details that are wanted. What HTTP does not allow got an error from the
    /// server, and met no limit.
    ///
    /// # Errors
    /// When it does not say when the request was, or who sent it.
    fn line(&mut self, raw: &RawLine<'_>) -> Result<Parsed, &'static str> {
        let span = raw.span().ok_or(NO_TIME)?;
        let client = raw.client.ok_or(NO_CLIENT)?;
        let request = self.request(raw, span, client);
        Ok(request.map_or(Parsed::Other, Parsed::Request))
    }

    fn request(
        &mut self,
        raw: &RawLine<'_>,
        span: (Timestamp, Timestamp),
        client: IpAddr,
    ) -> Option<LogLine> {
        let path = raw.path.unwrap_or_default().as_bytes();
        let target = match raw.query.filter(|query| !query.is_empty()) {
            Some(query) => self.targets.target(&[path, b"?", query.as_bytes()]),
            None => self.targets.target(&[path]),
        };
        let target = target?;
        let method = raw.method.unwrap_or_default();
        let status = raw.status.filter(|status| *status != LEFT);
        Some(LogLine {
            at: span.0,
            answered: raw.answered(span),
            ended: span.1,
            client: canonical_address(client),
            method: Method::from_bytes(method.as_bytes()).ok()?,
            target: SmallVec::from_slice(target.as_str().as_bytes()),
            status: status.and_then(|status| StatusCode::from_u16(status).ok()),
            details: raw.details(&self.options),
            recorded: raw.recorded(self.options.names),
        })
    }
}

impl RawLine<'_> {
    /// When the request began, and when its response ended.
    fn span(&self) -> Option<(Timestamp, Timestamp)> {
        let took = self.took.unwrap_or_default();
        match (self.began, self.ended) {
            (Some(began), Some(ended)) => Some((began.min(ended), ended)),
            (Some(began), None) => Some((began, began + took)),
            (None, ended) => ended.map(|ended| (ended.saturating_sub(took), ended)),
        }
    }

    /// When the response to a request of this span began.
    fn answered(&self, (at, ended): (Timestamp, Timestamp)) -> Timestamp {
        let waited = self.waited.unwrap_or_default();
        let head = self.head.map(|head| (at + waited + head).min(ended));
        head.unwrap_or(ended)
    }

    fn details(&self, options: &ParseOptions<'_>) -> Option<Box<Details>> {
        let detail_set = options.detail_set;
        let host = self.host.or(options.host).filter(|_| detail_set.host);
        let account = self.account.filter(|_| detail_set.account);
        let route = self.route.filter(|_| detail_set.route);
        let named: &[_] = if detail_set.headers {
            &self.headers
        } else {
            &[]
        };
        if host.is_none() && account.is_none() && route.is_none() && named.is_empty() {
            return None;
        }
        let mut headers = HeaderMap::new();
        if let Some(host) = host.and_then(|host| HeaderValue::from_str(host).ok()) {
            headers.insert(http::header::HOST, host);
        }
        for (name, value) in named {
            if let (Ok(name), Ok(value)) = (
                http::HeaderName::from_bytes(name.as_bytes()),
                HeaderValue::from_bytes(value.as_bytes()),
            ) {
                headers.append(name, value);
            }
        }
        Some(Box::new(Details {
            headers,
            account: account.map(Into::into),
            route: route.map(Into::into),
        }))
    }

    fn recorded(&self, names: Option<&Names>) -> Option<Recorded> {
        let decision = Disposition::from_word(self.decision?)?;
        let known = |name| names.map_or(Name::UNKNOWN, |names| names.find(name));
        Some(Recorded {
            decision,
            by: self.denied_by.map(known),
        })
    }
}

/// The path and the query of a request's target.
pub fn split_query(target: &str) -> (&str, Option<&str>) {
    match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    }
}

/// The host and the path of a request's target, which proxies write in absolute form.
fn split_target(target: &str) -> (Option<&str>, &str) {
    // Nearly all are paths, which are not searched for a scheme.
    if target.starts_with('/') {
        return (None, target);
    }
    let Some((_, rest)) = target.split_once("://") else {
        return (None, target);
    };
    match rest.find('/') {
        Some(slash) => (rest.get(..slash), rest.get(slash..).unwrap_or("/")),
        None => (Some(rest), "/"),
    }
}

fn is_given(text: &str) -> bool {
    !matches!(text, "" | "-")
}

/// Lines of logs in any form. The first line is the pattern of a form as well.
///
/// # Panics
/// When a line tells what no request can be.
#[cfg(any(test, fuzzing, feature = "fuzzing"))]
#[expect(clippy::panic, reason = "an invariant that breaks is a panic")]
pub fn fuzz_log(input: &[u8]) {
    let first = input
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let own = str::from_utf8(first)
        .ok()
        .and_then(|text| text.parse::<Format>().ok());
    let forms = FORMS.iter().map(Format::new).chain(own);
    let formats = forms.flat_map(|form| {
        Prefix::ALL.map(|prefix| Format {
            prefix,
            ..form.clone()
        })
    });
    let proxies = ClientRules::new([], weir_rules::AddressHeader::XForwardedFor);
    for format in formats {
        let mut parser = format.parser(ParseOptions {
            detail_set: DetailSet::ALL,
            clients: Some(&proxies),
            ..ParseOptions::default()
        });
        for line in input.split(|byte| *byte == b'\n') {
            if let Parsed::Request(line) = parser.parse(line)
                && (line.at > line.ended
                    || TargetMaker::default().target(&[&line.target]).is_none())
            {
                panic!("{format}: {line:?}");
            }
        }
    }
}

#[cfg(test)]
mod tests;
