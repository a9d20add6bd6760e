//! Access logs: what their lines tell of requests, and the forms that they come in.

mod json;
mod time;

use std::collections::HashMap;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use bytes::BytesMut;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use smallvec::SmallVec;
use weir_limit::time::Timestamp;
use weir_telemetry::Disposition;

use self::json::Layout;
use self::time::common_log;

const SECOND: u64 = 1_000_000_000;

/// The status that stands in logs, after nginx, for a client that left before the response.
const LEFT: u16 = 499;

/// The most bytes of a line, by far.
pub const MAX_LINE_BYTES: usize = 1 << 18;

/// The form of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Weir's own, in JSON.
    Weir,
    /// The combined log format of Apache and nginx, or the common one.
    Combined,
    /// nginx's, in a JSON of the operator's.
    NginxJson,
    /// Caddy's, in JSON.
    Caddy,
    /// Traefik's, in JSON.
    Traefik,
}

/// A line of a log.
#[derive(Debug)]
pub enum Parsed {
    Request(LogLine),
    /// A change through the admin API, which is not replayed, and when it was made.
    OperatorChange(&'static str, Timestamp),
    /// A line of the log that is not about a request.
    Other,
    /// A line that is not of this form.
    Malformed(&'static str),
}

impl Format {
    /// All formats and their names.
    pub const ALL: [(&'static str, Self); 5] = [
        ("weir", Self::Weir),
        ("combined", Self::Combined),
        ("nginx-json", Self::NginxJson),
        ("caddy", Self::Caddy),
        ("traefik", Self::Traefik),
    ];

    /// The name.
    pub fn name(self) -> &'static str {
        let mut all = Self::ALL.iter();
        all.find(|(_, format)| *format == self)
            .map_or("", |(name, _)| name)
    }

    /// The form of a log whose first line is this; none if it is of none of them.
    pub fn guess(line: &[u8]) -> Option<Self> {
        let names = Names::default();
        let is_of = |format: Self| {
            let mut parser = format.parser(&names, DetailSet::default());
            matches!(parser.parse(line), Parsed::Request(_))
        };
        // nginx's names are common ones, so its form comes last.
        let all = [
            Self::Weir,
            Self::Combined,
            Self::Caddy,
            Self::Traefik,
            Self::NginxJson,
        ];
        all.into_iter().find(|format| is_of(*format))
    }

    /// Whether it has this header of requests.
    pub fn has_header(self, name: &str) -> bool {
        // Caddy writes REDACTED in place of what is secret.
        const SECRET: [&str; 3] = ["authorization", "cookie", "proxy-authorization"];
        match self {
            Self::Caddy => !SECRET.contains(&name),
            Self::Weir => matches!(name, "host" | "user-agent" | "referer" | "x-request-id"),
            _ => matches!(name, "host" | "user-agent" | "referer"),
        }
    }

    /// A parser of the format's lines.
    pub fn parser(self, names: &Names, detail_set: DetailSet) -> Parser<'_> {
        Parser {
            format: self,
            names,
            make: LineMaker {
                detail_set,
                targets: TargetMaker::default(),
            },
            last_time: (Vec::new(), None),
            layout: Layout::default(),
        }
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Self::ALL.iter();
        let found = all.find(|(name, _)| *name == text);
        found.map(|(_, format)| *format).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|(name, _)| *name).collect();
            format!("not a form of logs; write one of {}", names.join(", "))
        })
    }
}

/// Parses lines of one form.
#[derive(Debug)]
pub struct Parser<'n> {
    format: Format,
    names: &'n Names,
    make: LineMaker,
    /// The last time that was read in the common log format. Most lines have that of the line
    /// before.
    last_time: (Vec<u8>, Option<Timestamp>),
    /// The layout of the previous lines of Weir.
    layout: Layout,
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
        let parsed = match self.format {
            Format::Weir => json::weir(line, self.names, &mut self.make, &mut self.layout),
            Format::Combined => self.combined(line),
            Format::NginxJson => json::nginx(line, &mut self.make),
            Format::Caddy => json::caddy(line, &mut self.make),
            Format::Traefik => json::traefik(line, &mut self.make),
        };
        parsed.unwrap_or_else(Parsed::Malformed)
    }

    /// Whether all times of these bytes are of whole seconds.
    pub fn is_coarse(&mut self, lines: &[u8]) -> bool {
        let mut lines = lines.split(|byte| *byte == b'\n');
        lines.all(|line| match self.parse(line) {
            Parsed::Request(line) => line.ended.as_nanos().is_multiple_of(SECOND),
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

    /// A line of the combined log format of Apache, nginx and others, or of the common one, which
    /// ends before the referrer. What stands after the user agent is skipped. Apache's
    /// `vhost_combined` has the virtual host before the client.
    fn combined(&mut self, line: &str) -> Result<Parsed, &'static str> {
        let (first, rest) = line.split_once(' ').ok_or("it has one word")?;
        let (virtual_host, client, rest) = match first.parse() {
            Ok(client) => (None, client, rest),
            Err(_) => {
                let (client, rest) = rest.split_once(' ').ok_or("it has two words")?;
                let client = client.parse();
                let client = client.map_err(|_| "it does not begin with an address")?;
                (Some(first), client, rest)
            }
        };
        let (names, rest) = rest.split_once('[').ok_or("it has no time in brackets")?;
        let (time, rest) = rest.split_once(']').ok_or("its time has no end")?;
        let at = self.time(time.as_bytes()).ok_or("its time is not one")?;
        let (request, rest) = quoted(rest).ok_or("it has no request in quotes")?;
        let mut rest_of = rest.trim_ascii_start().splitn(3, ' ');
        let status = rest_of.next().unwrap_or_default();
        let status = status.parse().map_err(|_| "it has no status")?;
        let rest = match self.make.detail_set.headers {
            true => rest_of.nth(1).unwrap_or_default(),
            false => "",
        };
        let (referer, rest) = quoted(rest).unwrap_or(("-", ""));
        let (user_agent, _) = quoted(rest).unwrap_or(("-", ""));
        // What was no request of HTTP got an error, and met no limit.
        let mut words = request.split(' ');
        let (Some(method), Some(target)) = (words.next(), words.next()) else {
            return Ok(Parsed::Other);
        };
        let (host, target) = split_target(target);
        let (path, query) = split_query(target);
        let headers = [("referer", referer), ("user-agent", user_agent)];
        let headers =
            headers.map(|(name, value)| (name, Some(value).filter(|text| is_given(text))));
        let user = names.split_ascii_whitespace().nth(1);
        let raw = RawLine {
            at,
            answered: at,
            ended: at,
            client,
            method: method.as_bytes(),
            path,
            query,
            status: Some(status),
            host: host.or(virtual_host),
            headers: &headers,
            account: user.filter(|user| is_given(user)),
            route: None,
            recorded: None,
        };
        Ok(self.make.line(&raw).map_or(Parsed::Other, Parsed::Request))
    }

    fn time(&mut self, text: &[u8]) -> Option<Timestamp> {
        if self.last_time.0 != text {
            self.last_time = (text.to_vec(), common_log(text));
        }
        self.last_time.1
    }
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
    /// Whether the store decided. Without it, as when Redis was out of reach, nothing can be
    /// compared.
    pub is_comparable: bool,
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

/// The fields of a line.
#[derive(Debug)]
struct RawLine<'l> {
    at: Timestamp,
    answered: Timestamp,
    ended: Timestamp,
    client: IpAddr,
    method: &'l [u8],
    path: &'l str,
    query: Option<&'l str>,
    status: Option<u16>,
    host: Option<&'l str>,
    /// Other headers, those among them that the log has.
    headers: &'l [(&'l str, Option<&'l str>)],
    account: Option<&'l str>,
    route: Option<&'l str>,
    recorded: Option<Recorded>,
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
struct LineMaker {
    detail_set: DetailSet,
    targets: TargetMaker,
}

impl LineMaker {
    /// The line with the details that are wanted; none where it is not a request that HTTP allows.
    fn line(&mut self, raw: &RawLine<'_>) -> Option<LogLine> {
        let path = raw.path.as_bytes();
        let target = match raw.query.filter(|query| !query.is_empty()) {
            Some(query) => self.targets.target(&[path, b"?", query.as_bytes()]),
            None => self.targets.target(&[path]),
        };
        let target = target?;
        let status = raw.status.filter(|status| *status != LEFT);
        Some(LogLine {
            at: raw.at,
            answered: raw.answered,
            ended: raw.ended,
            client: raw.client.to_canonical(),
            method: Method::from_bytes(raw.method).ok()?,
            target: SmallVec::from_slice(target.as_str().as_bytes()),
            status: status.and_then(|status| StatusCode::from_u16(status).ok()),
            details: raw.details(self.detail_set),
            recorded: raw.recorded,
        })
    }
}

impl RawLine<'_> {
    fn details(&self, detail_set: DetailSet) -> Option<Box<Details>> {
        let host = self.host.filter(|_| detail_set.host);
        let account = self.account.filter(|_| detail_set.account);
        let route = self.route.filter(|_| detail_set.route);
        let named = if detail_set.headers {
            self.headers
        } else {
            &[]
        };
        let is_named = named.iter().any(|(_, value)| value.is_some());
        if host.is_none() && account.is_none() && route.is_none() && !is_named {
            return None;
        }
        let mut headers = HeaderMap::new();
        if let Some(host) = host.and_then(|host| HeaderValue::from_str(host).ok()) {
            headers.insert(http::header::HOST, host);
        }
        for (name, value) in named {
            if let (Ok(name), Some(Ok(value))) = (
                http::HeaderName::from_bytes(name.as_bytes()),
                value.map(HeaderValue::from_str),
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
    let Some((_, rest)) = target
        .split_once("://")
        .filter(|_| !target.starts_with('/'))
    else {
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

/// The text in the next quotes, and what follows them. A backslash escapes a quote.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let (_, inside) = text.split_once('"')?;
    let mut end = 0;
    loop {
        let rest = inside.as_bytes().get(end..)?;
        end += memchr::memchr2(b'"', b'\\', rest)?;
        match inside.as_bytes().get(end)? {
            b'"' => return Some((inside.get(..end)?, inside.get(end + 1..)?)),
            _ => end += 2,
        }
    }
}
