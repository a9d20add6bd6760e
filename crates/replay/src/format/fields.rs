//! The fields that lines of other servers have, by the names that their logs give them, and the
//! request that the fields of a line make up.

use std::borrow::Cow;

use weir_limit::time::{Nanos, Timestamp};

use super::time::{any_time, date_and_time, milliseconds, nanoseconds, seconds};
use super::{LineMaker, Parsed, RawLine, is_given, split_query, split_target};

pub(super) const NO_CLIENT: &str = "it has no client address";
pub(super) const NO_TIME: &str = "it has no time";

/// What a field of a line says of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// When the request began.
    Began,
    /// When its response ended.
    Ended,
    /// The day of its end, in UTC, beside [`Field::Clock`].
    Date,
    Clock,
    TookSeconds,
    TookMillis,
    TookNanos,
    /// From the beginning to the head of the response, in seconds.
    HeadSeconds,
    /// An address, perhaps with a port, or the list of `X-Forwarded-For`.
    Client,
    /// An address with a port behind its last colon.
    ClientWithPort,
    /// The list of `X-Forwarded-For`.
    Forwarded,
    Method,
    /// Path and query, or an absolute URI.
    Target,
    /// A query that stands apart from its path.
    Query,
    /// The request line.
    Request,
    Status,
    Host,
    UserAgent,
    Referer,
    User,
}

impl Field {
    /// Whether it tells the query, by the name of this rank among those of the field. The first name
    /// of a target is that of the whole one; others may stand for its path.
    pub(super) const fn tells_query(self, rank: usize) -> bool {
        matches!(
            (self, rank),
            (Self::Request | Self::Query, _) | (Self::Target, 0)
        )
    }
}

pub(super) const FIELDS: usize = Field::User as usize + 1;

/// The names of fields. Of several names, the first that a line has counts.
pub type FieldNames = &'static [(Field, &'static [&'static str])];

/// nginx's variables, and the names that operators give them. Patterns use the same ones.
pub const VARIABLES: FieldNames = &[
    (
        Field::Ended,
        &[
            "msec",
            "time_iso8601",
            "time_local",
            "time",
            "timestamp",
            "@timestamp",
            "ts",
        ],
    ),
    (Field::Began, &["time_begin"]),
    (
        Field::Client,
        &[
            "remote_addr",
            "client_ip",
            "clientip",
            "remote_ip",
            "client",
        ],
    ),
    (Field::ClientWithPort, &["remote_addr_port"]),
    (
        Field::Forwarded,
        &[
            "http_x_forwarded_for",
            "x_forwarded_for",
            "proxy_add_x_forwarded_for",
        ],
    ),
    (Field::Method, &["request_method", "method"]),
    (Field::Target, &["request_uri", "uri", "path", "url"]),
    (Field::Query, &["args", "query_string"]),
    (Field::Request, &["request", "request_line"]),
    (Field::Status, &["status"]),
    (Field::TookSeconds, &["request_time", "duration"]),
    (Field::TookMillis, &["request_time_ms"]),
    (
        Field::HeadSeconds,
        &["upstream_header_time", "upstream_response_time"],
    ),
    (Field::Host, &["host", "http_host", "server_name"]),
    (Field::UserAgent, &["http_user_agent", "user_agent"]),
    (
        Field::Referer,
        &["http_referer", "http_referrer", "referer"],
    ),
    (Field::User, &["remote_user", "user"]),
];

/// The texts of a line's fields.
#[derive(Debug, Default)]
pub struct Texts<'l>([Option<Cow<'l, str>>; FIELDS]);

impl<'l> Texts<'l> {
    pub fn set(&mut self, field: Field, text: impl Into<Cow<'l, str>>) {
        if let Some(place) = self.0.get_mut(field as usize) {
            *place = Some(text.into());
        }
    }

    /// The text of a field, unless it is empty or a dash.
    pub fn get(&self, field: Field) -> Option<&str> {
        let text = self.0.get(field as usize)?.as_deref()?;
        is_given(text).then_some(text)
    }

    fn time(&self, field: Field) -> Option<Timestamp> {
        self.get(field).and_then(any_time)
    }

    fn took(&self) -> Option<Nanos> {
        let seconds = self.get(Field::TookSeconds).and_then(seconds);
        // HAProxy writes a plus where it logs before the end.
        let millis = || {
            self.get(Field::TookMillis)
                .map(|text| text.trim_start_matches('+'))
        };
        let millis = || millis().and_then(milliseconds);
        let nanos = || self.get(Field::TookNanos).and_then(nanoseconds);
        seconds.or_else(millis).or_else(nanos)
    }

    /// A line with the times alone.
    fn times(&self) -> RawLine<'static> {
        let date_time = || date_and_time(self.get(Field::Date)?, self.get(Field::Clock)?);
        RawLine {
            began: self.time(Field::Began),
            ended: self.time(Field::Ended).or_else(date_time),
            took: self.took(),
            head: self.get(Field::HeadSeconds).and_then(seconds),
            ..RawLine::default()
        }
    }

    /// The method and the target; none where the client sent no request of HTTP.
    fn request(&self) -> Option<(&str, &str)> {
        let line = self.get(Field::Request).and_then(request_line);
        let method = self.get(Field::Method).or(line.map(|(method, _)| method));
        let target = self.get(Field::Target).or(line.map(|(_, target)| target));
        method.zip(target)
    }
}

/// The method and the target of a request line. Servers refuse one with further blanks, and some
/// log no version.
pub(super) fn request_line(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next());
    let is_version = |text: &str| {
        let number = text.strip_prefix("HTTP/").unwrap_or(text);
        number.starts_with(|first: char| first.is_ascii_digit())
    };
    let is_whole = words.next().is_none() && version.is_none_or(is_version);
    is_whole.then_some((method, target))
}

impl LineMaker<'_> {
    /// The line that has these fields, and these headers beside those that are fields.
    pub(super) fn parsed(
        &mut self,
        texts: &Texts<'_>,
        headers: &[(&str, Option<&str>)],
    ) -> Result<Parsed, &'static str> {
        let mut times = texts.times();
        if times.span().is_none() {
            let outer = self.outer.ok_or(NO_TIME)?;
            (times.began, times.ended) = (Some(outer), Some(outer));
        }
        let Some((method, target)) = texts.request() else {
            return Ok(Parsed::Other);
        };
        let client = self.client(texts)?;
        let (host, target) = split_target(target);
        let (path, query) = split_query(target);
        let status = texts.get(Field::Status);
        let status = status.and_then(|text| text.parse().ok());
        let named = [
            ("user-agent", texts.get(Field::UserAgent)),
            ("referer", texts.get(Field::Referer)),
        ];
        let headers = named.iter().chain(headers);
        self.line(&RawLine {
            client: Some(client),
            method: Some(method),
            path: Some(path),
            query: query.or(texts.get(Field::Query)),
            // Zero stands for a client that left, or a connection that was closed, and 460 for the
            // former in the logs of AWS.
            status: status.filter(|status| !matches!(status, 0 | 460)),
            host: host.or(texts.get(Field::Host)),
            headers: headers
                .filter_map(|(name, value)| Some((*name, (*value)?)))
                .collect(),
            account: texts.get(Field::User),
            ..times
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_line_with_further_blanks_is_none() {
        assert_eq!(request_line("GET /a HTTP/1.1"), Some(("GET", "/a")));
        assert_eq!(request_line("GET /a 1.1"), Some(("GET", "/a")));
        assert_eq!(request_line("GET /a"), Some(("GET", "/a")));
        for line in [
            "",
            "GARBAGE",
            "GET /a b",
            "GET /a b HTTP/1.1",
            "GET /a x y z",
        ] {
            assert_eq!(request_line(line), None, "{line}");
        }
    }
}
