//! Logs in JSON: Weir's own, and those of nginx, Caddy and Traefik.
//!
//! nginx has a format of the operator's choice: its variables are found by their names, and by those
//! that are common for them.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::time::{any_time, milliseconds, nanoseconds, rfc3339, seconds};
use super::{LineMaker, Names, Parsed, RawLine, Recorded, split_query};
use crate::telemetry::Disposition;
use crate::time::{Nanos, Timestamp};

const NOT_JSON: &str = "it is not a JSON object";
const NO_CLIENT: &str = "it has no client address";
const NO_TIME: &str = "it has no time";
const NO_REQUEST: &str = "its method or path is not one of HTTP";

/// The target of lines about requests.
const ACCESS: &str = "weir::access";

/// A text, which is borrowed where nothing in it is escaped. (`Option<Cow>` would be a copy.)
#[derive(Debug, PartialEq, Deserialize)]
#[serde(transparent)]
struct Text<'l>(#[serde(borrow)] Cow<'l, str>);

fn text<'t>(text: &'t Option<Text<'_>>) -> Option<&'t str> {
    text.as_ref().map(|Text(text)| &**text)
}

/// The fields of a line of Weir.
#[derive(Debug, Default, PartialEq, Deserialize)]
struct WeirLine<'l> {
    #[serde(borrow)]
    timestamp: Option<Text<'l>>,
    #[serde(borrow)]
    target: Option<Text<'l>>,
    #[serde(borrow)]
    client: Option<Text<'l>>,
    #[serde(borrow)]
    method: Option<Text<'l>>,
    #[serde(borrow)]
    path: Option<Text<'l>>,
    #[serde(borrow)]
    query: Option<Text<'l>>,
    status: Option<u16>,
    #[serde(borrow)]
    route: Option<Text<'l>>,
    #[serde(borrow)]
    decision: Option<Text<'l>>,
    #[serde(borrow)]
    limit: Option<Text<'l>>,
    #[serde(borrow)]
    ban: Option<Text<'l>>,
    #[serde(borrow)]
    account: Option<Text<'l>>,
    #[serde(borrow)]
    host: Option<Text<'l>>,
    duration_ms: Option<f64>,
    upstream_ms: Option<f64>,
    delay_ms: Option<f64>,
    decided_ns: Option<u64>,
    #[serde(borrow)]
    user_agent: Option<Text<'l>>,
    #[serde(borrow)]
    referer: Option<Text<'l>>,
    #[serde(borrow)]
    request_id: Option<Text<'l>>,
}

impl<'l> WeirLine<'l> {
    /// The fields of a line as Weir writes nearly all: without blanks, and with nothing escaped. It takes
    /// a part of the time that is needed to read any JSON. None where the line is not of this kind, or not
    /// of JSON at all.
    fn plain(line: &'l str) -> Option<Self> {
        let mut fields = Self::default();
        let mut line = PlainJson { line, at: 0 };
        line.skip(b'{')?;
        loop {
            let name = line.text()?;
            line.skip(b':')?;
            fields.set(name, line.value()?)?;
            if line.skip(b',').is_none() {
                break;
            }
        }
        line.skip(b'}')?;
        line.peek().is_none().then_some(fields)
    }

    /// Sets a field; none if it has a value already, or this is not one for it.
    fn set(&mut self, name: &str, value: Plain<'l>) -> Option<()> {
        let place = match name {
            "timestamp" => &mut self.timestamp,
            "target" => &mut self.target,
            "client" => &mut self.client,
            "method" => &mut self.method,
            "path" => &mut self.path,
            "query" => &mut self.query,
            "route" => &mut self.route,
            "decision" => &mut self.decision,
            "limit" => &mut self.limit,
            "ban" => &mut self.ban,
            "account" => &mut self.account,
            "host" => &mut self.host,
            "user_agent" => &mut self.user_agent,
            "referer" => &mut self.referer,
            "request_id" => &mut self.request_id,
            "status" => return value.number(&mut self.status),
            "duration_ms" => return value.number(&mut self.duration_ms),
            "upstream_ms" => return value.number(&mut self.upstream_ms),
            "delay_ms" => return value.number(&mut self.delay_ms),
            "decided_ns" => return value.number(&mut self.decided_ns),
            _ => return Some(()),
        };
        match value {
            Plain::Text(text) if place.is_none() => *place = Some(Text(Cow::Borrowed(text))),
            _ => return None,
        }
        Some(())
    }
}

/// A value in a line of Weir that is plain.
enum Plain<'l> {
    Text(&'l str),
    Number(&'l str),
    True,
}

impl Plain<'_> {
    fn number<T: FromStr>(&self, place: &mut Option<T>) -> Option<()> {
        match self {
            Plain::Number(text) if place.is_none() => *place = Some(text.parse().ok()?),
            _ => return None,
        }
        Some(())
    }
}

/// Reads JSON that is plain, byte by byte: what `str` has for it costs more than all the rest.
struct PlainJson<'l> {
    line: &'l str,
    at: usize,
}

impl<'l> PlainJson<'l> {
    fn peek(&self) -> Option<u8> {
        self.line.as_bytes().get(self.at).copied()
    }

    /// Skips this byte; none if it is another.
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

/// How many bytes stand before the first quote, backslash or control character.
fn plain_bytes(text: &[u8]) -> usize {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const HIGHEST: u64 = 0x80 * EACH;
    // Marks bytes that are less than this; above the first of them, others may be marked too.
    let below = |bytes: u64, least: u64| bytes.wrapping_sub(least * EACH) & !bytes & HIGHEST;
    let mut plain = 0;
    let mut rest = text;
    while let Some((eight, others)) = rest.split_first_chunk::<8>() {
        let bytes = u64::from_le_bytes(*eight);
        let found = below(bytes, 0x20)
            | below(bytes ^ (u64::from(b'"') * EACH), 1)
            | below(bytes ^ (u64::from(b'\\') * EACH), 1);
        if found != 0 {
            return plain + found.trailing_zeros() as usize / 8;
        }
        plain += 8;
        rest = others;
    }
    let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | ..0x20);
    plain + rest.iter().position(is_special).unwrap_or(rest.len())
}

/// A line of Weir.
pub(super) fn weir(
    line: &str,
    names: &Names,
    make: &mut LineMaker,
) -> Result<Parsed, &'static str> {
    let any_json =
        || serde_json::from_str(line).map_err(|_| "it is not a JSON object of Weir's log");
    let fields = WeirLine::plain(line).map_or_else(any_json, Ok)?;
    match text(&fields.target) {
        Some(ACCESS) => {}
        Some(_) => return Ok(Parsed::Other),
        None => return Err("it is not a line of Weir's log: it has no target"),
    }
    let client = text(&fields.client).and_then(|text| text.parse().ok());
    let (at, answered, ended) = times(&fields).ok_or(NO_TIME)?;
    let line = make.line(&RawLine {
        at,
        answered,
        ended,
        client: client.ok_or(NO_CLIENT)?,
        method: text(&fields.method).unwrap_or_default().as_bytes(),
        path: text(&fields.path).unwrap_or_default(),
        query: text(&fields.query),
        status: fields.status,
        host: text(&fields.host),
        headers: &[
            ("user-agent", text(&fields.user_agent)),
            ("referer", text(&fields.referer)),
            ("x-request-id", text(&fields.request_id)),
        ],
        account: text(&fields.account),
        route: text(&fields.route),
        recorded: recorded(&fields, names),
    });
    line.map(Parsed::Request).ok_or(NO_REQUEST)
}

fn recorded(fields: &WeirLine<'_>, names: &Names) -> Option<Recorded> {
    let Text(word) = fields.decision.as_ref()?;
    let mut all = Disposition::ALL.into_iter();
    let decision = all.find(|known| known.as_str() == word)?;
    let by = fields.limit.as_ref().or(fields.ban.as_ref());
    let is_decided = !matches!(decision, Disposition::FailedOpen | Disposition::Unavailable);
    Some(Recorded {
        decision,
        by: by.map(|Text(name)| names.find(name)),
        is_comparable: is_decided,
    })
}

/// When the request was decided about, when its response began, and when that was over.
fn times(fields: &WeirLine<'_>) -> Option<(Timestamp, Timestamp, Timestamp)> {
    let span = |number: Option<f64>| Nanos::from(milliseconds(number.unwrap_or_default()));
    let took = span(fields.duration_ms);
    let at = match fields.decided_ns {
        Some(nanos) => Timestamp::from_nanos(nanos),
        None => rfc3339(text(&fields.timestamp)?)?.before(took),
    };
    let answered = match fields.upstream_ms {
        Some(_) => at + span(fields.delay_ms) + span(fields.upstream_ms),
        None => at + took,
    };
    Some((at, answered, at + took))
}

/// What nginx calls its variables, and what operators do, the best first.
const TIMES: [&str; 7] = [
    "msec",
    "time_iso8601",
    "time_local",
    "time",
    "timestamp",
    "@timestamp",
    "ts",
];
const CLIENTS: [&str; 5] = [
    "remote_addr",
    "client_ip",
    "clientip",
    "remote_ip",
    "client",
];
const METHODS: [&str; 2] = ["request_method", "method"];
const TARGETS: [&str; 4] = ["request_uri", "uri", "path", "url"];
const TOOK: [&str; 2] = ["request_time", "duration"];
const ANSWERED: [&str; 2] = ["upstream_header_time", "upstream_response_time"];
const HOSTS: [&str; 3] = ["host", "http_host", "server_name"];
const AGENTS: [&str; 2] = ["http_user_agent", "user_agent"];
const REFERERS: [&str; 3] = ["http_referer", "http_referrer", "referer"];
const USERS: [&str; 2] = ["remote_user", "user"];

/// A line of nginx.
pub(super) fn nginx(line: &str, make: &mut LineMaker) -> Result<Parsed, &'static str> {
    let fields: Fields<'_> = serde_json::from_str(line).map_err(|_| NOT_JSON)?;
    let first = |names: &[&str]| names.iter().find_map(|name| fields.get(name));
    let client = first(&CLIENTS).and_then(|text| text.parse().ok());
    let ended = first(&TIMES).and_then(any_time).ok_or(NO_TIME)?;
    let span = |names: &[&str]| first(names).and_then(seconds);
    let at = ended.before(span(&TOOK).unwrap_or(Nanos::ZERO));
    // `request` is the request line as a whole.
    let mut words = first(&["request"]).unwrap_or_default().split(' ');
    let (method, target) = (words.next(), words.next());
    let method = first(&METHODS).or(method).unwrap_or_default();
    let (path, query) = split_query(first(&TARGETS).or(target).unwrap_or_default());
    let answered = span(&ANSWERED).map_or(ended, |head| at + head);
    let line = make.line(&RawLine {
        at,
        answered: answered.min(ended),
        ended,
        client: client.ok_or(NO_CLIENT)?,
        method: method.as_bytes(),
        path,
        query,
        status: fields.get("status").and_then(|text| text.parse().ok()),
        host: first(&HOSTS),
        headers: &[
            ("user-agent", first(&AGENTS)),
            ("referer", first(&REFERERS)),
        ],
        account: first(&USERS),
        route: None,
        recorded: None,
    });
    line.map(Parsed::Request).ok_or(NO_REQUEST)
}

#[derive(Deserialize)]
struct CaddyLine<'l> {
    #[serde(borrow, default)]
    ts: Scalar<'l>,
    #[serde(borrow)]
    request: Option<CaddyRequest<'l>>,
    #[serde(borrow, default)]
    user_id: Scalar<'l>,
    #[serde(borrow, default)]
    duration: Scalar<'l>,
    status: Option<u16>,
}

#[derive(Deserialize)]
struct CaddyRequest<'l> {
    #[serde(borrow, default)]
    client_ip: Scalar<'l>,
    #[serde(borrow, default)]
    remote_ip: Scalar<'l>,
    #[serde(borrow, default)]
    remote_addr: Scalar<'l>,
    #[serde(borrow, default)]
    method: Scalar<'l>,
    #[serde(borrow, default)]
    host: Scalar<'l>,
    #[serde(borrow, default)]
    uri: Scalar<'l>,
    #[serde(borrow, default)]
    headers: Fields<'l>,
}

/// A line of Caddy.
pub(super) fn caddy(line: &str, make: &mut LineMaker) -> Result<Parsed, &'static str> {
    let fields: CaddyLine<'_> = serde_json::from_str(line).map_err(|_| NOT_JSON)?;
    let Some(asked) = &fields.request else {
        return Ok(Parsed::Other);
    };
    let client = asked.client_ip.text().or(asked.remote_ip.text());
    // Before 2.5 there was an address with its port alone.
    let client = client.or(asked.remote_addr.text()).and_then(address);
    let ended = fields.ts.text().and_then(any_time).ok_or(NO_TIME)?;
    let took = fields.duration.text().and_then(seconds);
    let (path, query) = split_query(asked.uri.text().unwrap_or_default());
    let headers = asked.headers.0.iter();
    let headers: Vec<_> = headers
        .map(|(Text(name), value)| (&**name, value.text()))
        .collect();
    let line = make.line(&RawLine {
        at: ended.before(took.unwrap_or(Nanos::ZERO)),
        answered: ended,
        ended,
        client: client.ok_or(NO_CLIENT)?,
        method: asked.method.text().unwrap_or_default().as_bytes(),
        path,
        query,
        // Zero stands for a connection that was closed without a response.
        status: fields.status.filter(|status| *status != 0),
        host: asked.host.text(),
        headers: &headers,
        account: fields.user_id.text(),
        route: None,
        recorded: None,
    });
    line.map(Parsed::Request).ok_or(NO_REQUEST)
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct TraefikLine<'l> {
    #[serde(rename = "StartUTC", borrow, default)]
    start: Scalar<'l>,
    #[serde(borrow, default)]
    duration: Scalar<'l>,
    #[serde(borrow, default)]
    client_host: Scalar<'l>,
    #[serde(borrow, default)]
    client_username: Scalar<'l>,
    #[serde(borrow, default)]
    request_method: Scalar<'l>,
    #[serde(borrow, default)]
    request_host: Scalar<'l>,
    #[serde(borrow, default)]
    request_path: Scalar<'l>,
    #[serde(borrow, default)]
    downstream_status: Scalar<'l>,
    #[serde(rename = "request_User-Agent", borrow, default)]
    user_agent: Scalar<'l>,
    #[serde(rename = "request_Referer", borrow, default)]
    referer: Scalar<'l>,
}

/// A line of Traefik.
pub(super) fn traefik(line: &str, make: &mut LineMaker) -> Result<Parsed, &'static str> {
    let fields: TraefikLine<'_> = serde_json::from_str(line).map_err(|_| NOT_JSON)?;
    if fields.request_method.text().is_none() && fields.start.text().is_none() {
        return Ok(Parsed::Other);
    }
    let at = fields.start.text().and_then(any_time).ok_or(NO_TIME)?;
    let took = fields.duration.text().and_then(nanoseconds);
    let ended = at + took.unwrap_or(Nanos::ZERO);
    let client = fields.client_host.text().and_then(address);
    let status = fields.downstream_status.text();
    let status = status.and_then(|text| text.parse().ok());
    let (path, query) = split_query(fields.request_path.text().unwrap_or_default());
    let line = make.line(&RawLine {
        at,
        answered: ended,
        ended,
        client: client.ok_or(NO_CLIENT)?,
        method: fields.request_method.text().unwrap_or_default().as_bytes(),
        path,
        query,
        status: status.filter(|status| *status != 0),
        host: fields.request_host.text(),
        headers: &[
            ("user-agent", fields.user_agent.text()),
            ("referer", fields.referer.text()),
        ],
        account: fields.client_username.text(),
        route: None,
        recorded: None,
    });
    line.map(Parsed::Request).ok_or(NO_REQUEST)
}

/// An address, with its port or without.
fn address(text: &str) -> Option<std::net::IpAddr> {
    let with_port = || {
        text.parse()
            .ok()
            .map(|socket: std::net::SocketAddr| socket.ip())
    };
    text.parse().ok().or_else(with_port)
}

/// All fields of an object, in their order. There are too few of them for a map to be worth it.
#[derive(Default)]
struct Fields<'l>(Vec<(Text<'l>, Scalar<'l>)>);

impl Fields<'_> {
    /// The text of a field; of two with the same name, that of the last.
    fn get(&self, name: &str) -> Option<&str> {
        let mut fields = self.0.iter().rev();
        let (_, value) = fields.find(|(Text(known), _)| known == name)?;
        value.text()
    }
}

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
        let mut fields = Vec::with_capacity(16);
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Fields(fields))
    }
}

/// A text or a number as it would be written, since what one server logs as a number another logs as a
/// text; anything else is nothing.
#[derive(Clone, Debug, Default, PartialEq)]
struct Scalar<'l>(Option<Cow<'l, str>>);

impl Scalar<'_> {
    /// The text, unless it is empty or a dash, which stands for nothing.
    fn text(&self) -> Option<&str> {
        self.0.as_deref().filter(|text| !matches!(*text, "" | "-"))
    }
}

impl<'de: 'l, 'l> Deserialize<'de> for Scalar<'l> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ScalarReader)
    }
}

struct ScalarReader;

impl<'l> Visitor<'l> for ScalarReader {
    type Value = Scalar<'l>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'l str) -> Result<Scalar<'l>, E> {
        Ok(Scalar(Some(Cow::Borrowed(text))))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Scalar<'l>, E> {
        Ok(Scalar(Some(Cow::Owned(text.to_owned()))))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Scalar<'l>, E> {
        Ok(Scalar(Some(Cow::Owned(number.to_string()))))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Scalar<'l>, E> {
        Ok(Scalar(Some(Cow::Owned(number.to_string()))))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Scalar<'l>, E> {
        Ok(Scalar(Some(Cow::Owned(number.to_string()))))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Scalar<'l>, E> {
        Ok(Scalar(None))
    }

    fn visit_unit<E: Error>(self) -> Result<Scalar<'l>, E> {
        Ok(Scalar(None))
    }

    /// Of several values, as caddy has for a header, the first.
    fn visit_seq<A: SeqAccess<'l>>(self, mut list: A) -> Result<Scalar<'l>, A::Error> {
        let first = list.next_element()?.unwrap_or_default();
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(first)
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<Scalar<'l>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar(None))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LINE: &str = r#"{"timestamp":"2026-11-21T10:00:00.027073Z","level":"INFO","client":"10.0.237.176","method":"GET","path":"/items/5","status":200,"aborted":true,"remaining":19,"duration_ms":9.073,"store_ms":0.0,"decided_ns":1795255200018000308,"user_agent":"Mozilla/5.0 (X11)","target":"weir::access"}"#;

    fn any_json(line: &str) -> Option<WeirLine<'_>> {
        serde_json::from_str(line).ok()
    }

    #[test]
    fn a_plain_line_is_read_as_any_json_is() {
        let plain = WeirLine::plain(LINE).expect("a plain line");
        assert_eq!(plain, any_json(LINE).unwrap());
        assert_eq!(plain.decided_ns, Some(1_795_255_200_018_000_308));
        assert_eq!(text(&plain.path), Some("/items/5"));
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
            assert!(WeirLine::plain(&line).is_none(), "{line}");
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
            if let Some(plain) = WeirLine::plain(&line) {
                prop_assert_eq!(Some(plain), any_json(&line), "{}", line);
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
