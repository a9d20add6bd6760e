//! Weir's own access log, in JSON.

use std::borrow::Cow;

use serde::Deserialize;

use super::super::line::{Names, RawLine, Recorded, Wants};
use super::Parsed;
use super::time::{milliseconds, rfc3339};
use crate::telemetry::Disposition;
use crate::time::{Nanos, Timestamp};

/// The target of lines about requests.
const ACCESS: &str = "weir::access";

/// Parses lines of Weir's log.
#[derive(Debug)]
pub struct WeirLog<'n> {
    pub(super) names: &'n Names,
    pub(super) wants: Wants,
}

/// The fields of a line, most of them without a copy.
#[derive(Deserialize)]
struct Fields<'l> {
    #[serde(borrow, default)]
    timestamp: Cow<'l, str>,
    #[serde(borrow, default)]
    target: Cow<'l, str>,
    #[serde(borrow)]
    client: Option<Cow<'l, str>>,
    #[serde(borrow)]
    method: Option<Cow<'l, str>>,
    #[serde(borrow)]
    path: Option<Cow<'l, str>>,
    #[serde(borrow)]
    query: Option<Cow<'l, str>>,
    status: Option<u16>,
    #[serde(borrow)]
    route: Option<Cow<'l, str>>,
    #[serde(borrow)]
    decision: Option<Cow<'l, str>>,
    #[serde(borrow)]
    limit: Option<Cow<'l, str>>,
    #[serde(borrow)]
    ban: Option<Cow<'l, str>>,
    #[serde(borrow)]
    account: Option<Cow<'l, str>>,
    #[serde(borrow)]
    host: Option<Cow<'l, str>>,
    duration_ms: Option<f64>,
    upstream_ms: Option<f64>,
    delay_ms: Option<f64>,
    decided_ns: Option<u64>,
    #[serde(borrow)]
    user_agent: Option<Cow<'l, str>>,
    #[serde(borrow)]
    referer: Option<Cow<'l, str>>,
    #[serde(borrow)]
    request_id: Option<Cow<'l, str>>,
}

impl WeirLog<'_> {
    pub(super) fn parse(&self, line: &[u8]) -> Parsed {
        if line.is_empty() {
            return Parsed::Other;
        }
        let Ok(line) = str::from_utf8(line) else {
            return Parsed::Malformed("it is not UTF-8");
        };
        match serde_json::from_str::<Fields<'_>>(line) {
            Ok(fields) if fields.target == ACCESS => self.request(&fields),
            Ok(fields) if !fields.target.is_empty() => Parsed::Other,
            Ok(_) => Parsed::Malformed("it is not a line of Weir's log: it has no target"),
            Err(_) => Parsed::Malformed("it is not a JSON object of Weir's log"),
        }
    }

    fn request(&self, fields: &Fields<'_>) -> Parsed {
        let Some(client) = fields.client.as_ref().and_then(|text| text.parse().ok()) else {
            return Parsed::Malformed("it has no client address");
        };
        let Some((at, answered, ended)) = times(fields) else {
            return Parsed::Malformed("it has no time");
        };
        let headers = [
            ("user-agent", fields.user_agent.as_deref()),
            ("referer", fields.referer.as_deref()),
            ("x-request-id", fields.request_id.as_deref()),
        ];
        let mut known = [("", ""); 3];
        let mut count = 0;
        if self.wants.headers {
            let given = headers
                .iter()
                .filter_map(|(name, text)| Some((*name, (*text)?)));
            for (place, header) in known.iter_mut().zip(given) {
                *place = header;
                count += 1;
            }
        }
        let raw = RawLine {
            at,
            answered,
            ended,
            client,
            method: fields.method.as_deref().unwrap_or_default().as_bytes(),
            path: fields.path.as_deref().unwrap_or_default(),
            query: fields.query.as_deref(),
            status: fields.status,
            host: fields.host.as_deref(),
            headers: known.get(..count).unwrap_or_default(),
            account: fields.account.as_deref(),
            route: fields.route.as_deref(),
            recorded: self.recorded(fields),
        };
        match raw.line(self.wants) {
            Some(line) => Parsed::Request(line),
            None => Parsed::Malformed("its method or path is not one of HTTP"),
        }
    }

    fn recorded(&self, fields: &Fields<'_>) -> Option<Recorded> {
        let word = fields.decision.as_deref()?;
        let mut all = Disposition::ALL.into_iter();
        let decision = all.find(|known| known.as_str() == word)?;
        let by = fields.limit.as_deref().or(fields.ban.as_deref());
        let is_decided = !matches!(decision, Disposition::FailedOpen | Disposition::Unavailable);
        Some(Recorded {
            decision,
            by: by.map(|name| self.names.find(name)),
            is_comparable: is_decided,
        })
    }
}

/// When the request was decided about, when its response began, and when that was over.
fn times(fields: &Fields<'_>) -> Option<(Timestamp, Timestamp, Timestamp)> {
    let span = |number: Option<f64>| Nanos::from(milliseconds(number.unwrap_or_default()));
    let took = span(fields.duration_ms);
    let at = match fields.decided_ns {
        Some(nanos) => Timestamp::from_nanos(nanos),
        None => rfc3339(&fields.timestamp)?.before(took),
    };
    let answered = match fields.upstream_ms {
        Some(_) => at + span(fields.delay_ms) + span(fields.upstream_ms),
        None => at + took,
    };
    Some((at, answered, at + took))
}
