//! A call's way from its message to the response: what is asked about each descriptor, and how what
//! was decided is told.

use std::borrow::Cow;
use std::sync::Arc;

use http::{HeaderMap, header};
use weir_limit::Quota;
use weir_limit::time::Nanos;
use weir_middleware::{
    AskedDescriptor, DecidedDescriptors, DescriptorDecision, RouteState, ShownLimit, Verdict,
};
use weir_telemetry::Disposition;

use super::messages::{
    Code, CurrentLimit, Descriptor, DescriptorStatus, Duration, Entry, HeaderField,
    RateLimitRequest, RateLimitResponse, Unit,
};
use super::{CallError, Settings};

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;

impl Settings {
    /// Decides about a call. The response has its verdict, whatever came of the call.
    pub(super) async fn should_rate_limit(
        &self,
        route: &Arc<RouteState>,
        call: &RateLimitRequest,
    ) -> (Result<RateLimitResponse, CallError>, Verdict) {
        let is_unsupported =
            |descriptor: &Descriptor| descriptor.limit.is_some() || descriptor.is_negative_hits;
        let is_ours = self.limits.has_domain(&call.domain);
        if is_ours && call.descriptors.iter().any(is_unsupported) {
            let verdict = Verdict::new(Disposition::Unlimited);
            return (Err(CallError::Unsupported), verdict);
        }
        let asked = call.descriptors.iter().map(|descriptor| AskedDescriptor {
            entries: descriptor.entries.iter().map(Entry::texts).collect(),
            hits: descriptor.hits(call),
        });
        let asked: Vec<_> = asked.collect();
        let (decided, verdict) = self.limits.decide(route, &call.domain, &asked).await;
        let response = decided.map(RateLimitResponse::from);
        (response.ok_or(CallError::Unavailable), verdict)
    }
}

impl Descriptor {
    /// Those of the call, unless the descriptor has its own. A call without a number has zero.
    fn hits(&self, call: &RateLimitRequest) -> u64 {
        self.hits_addend
            .unwrap_or_else(|| call.hits_addend.max(1).into())
    }
}

impl Entry {
    /// Key and value. What is no text becomes some, and is counted.
    fn texts(&self) -> (Cow<'_, str>, Cow<'_, str>) {
        let [key, value] = [&self.key, &self.value].map(|bytes| String::from_utf8_lossy(bytes));
        (key, value)
    }
}

impl From<DecidedDescriptors> for RateLimitResponse {
    fn from(decided: DecidedDescriptors) -> Self {
        let mut response = Self {
            statuses: decided.descriptors.iter().map(Into::into).collect(),
            response_headers_to_add: header_fields(&decided.headers),
            ..Self::default()
        };
        response.set_overall_code(Code::of(decided.is_denied));
        response
    }
}

impl Code {
    const fn of(is_denied: bool) -> Self {
        match is_denied {
            true => Self::OverLimit,
            false => Self::Ok,
        }
    }
}

impl From<&DescriptorDecision> for DescriptorStatus {
    fn from(decided: &DescriptorDecision) -> Self {
        let mut status = decided.limit.as_ref().map(Self::of).unwrap_or_default();
        status.set_code(Code::of(decided.is_denied));
        status
    }
}

impl DescriptorStatus {
    fn of(limit: &ShownLimit) -> Self {
        Self {
            current_limit: Some(CurrentLimit::new(&limit.name, &limit.quota)),
            limit_remaining: u32::try_from(limit.remaining).unwrap_or(u32::MAX),
            duration_until_reset: Some(limit.reset_in.into()),
            ..Self::default()
        }
    }
}

impl CurrentLimit {
    /// The rate of a quota in the shortest unit in which it is a whole number, or else about so
    /// many in the shortest unit that has one. Intervals are whole nanoseconds.
    pub(super) fn new(name: &str, quota: &Quota) -> Self {
        let interval = quota.emission_interval().get().max(1);
        let units = [
            (Unit::Second, SECOND),
            (Unit::Minute, 60 * SECOND),
            (Unit::Hour, 3_600 * SECOND),
            (Unit::Day, DAY),
            (Unit::Month, 30 * DAY),
            (Unit::Year, 365 * DAY),
        ];
        let counts = units.map(|(unit, length)| (unit, length / interval, length % interval));
        let is_some = |(_, count, _): &&(Unit, u64, u64)| *count > 0;
        let is_whole = |(_, count, rest): &&(Unit, u64, u64)| rest < count;
        let found = counts.iter().find(is_whole);
        let found = found.or_else(|| counts.iter().find(is_some));
        let (unit, count) = found.map_or((Unit::Unknown, 0), |(unit, count, _)| (*unit, *count));
        Self {
            requests_per_unit: u32::try_from(count).unwrap_or(u32::MAX),
            unit: unit.into(),
            name: name.to_owned(),
        }
    }
}

impl From<Nanos> for Duration {
    fn from(span: Nanos) -> Self {
        let (seconds, nanos) = (span.get() / SECOND, span.get() % SECOND);
        Self {
            seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
            nanos: i32::try_from(nanos).unwrap_or_default(),
        }
    }
}

fn header_fields(headers: &HeaderMap) -> Vec<HeaderField> {
    let field = |(name, value): (&header::HeaderName, &header::HeaderValue)| HeaderField {
        key: name.to_string(),
        value: String::from_utf8_lossy(value.as_bytes()).into_owned(),
    };
    headers.iter().map(field).collect()
}
