//! The subjects that send most, are denied most, or are nearest to a limit.

#![allow(
    missing_docs,
    reason = "docs/openapi.json describes members by their comments, and some need none"
)]

use std::cmp::Ordering;
use std::sync::Arc;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::Serialize;
use weir_rules::Limit;
use weir_telemetry::{Period, SubjectActivity};

use crate::query::{RefusedParameter, parameters};
use crate::rounded_down;
use crate::scope::{Counted, CountedScope, Scope};
use crate::subjects::CountedSubject;

const PARAMETERS: &str = "there are limit=NAME, sort=rate, denied or remaining, period=minute or \
     hour, scope=gateway or fleet, and count=NUMBER";

/// Subjects that an answer lists where the request does not say.
const COUNT: usize = 20;

#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct Top {
    #[cfg_attr(feature = "schema", schemars(extend("enum" = [60, 3600])))]
    pub period: u32,
    #[serde(flatten)]
    pub counted: Counted,
    pub subjects: Vec<TopSubject>,
}

#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct TopSubject {
    pub limit: String,
    pub subject: String,
    /// The name of the account, where log.account is plain.
    pub name: Option<String>,
    pub requests: u64,
    pub denied: u64,
    /// Requests a second: of the last minute, on average over its last 3 to 6 seconds.
    pub rate: f64,
    /// The most of the burst that was taken.
    #[cfg_attr(feature = "schema", schemars(range(max = 1)))]
    pub used: f64,
    pub key: String,
    /// How many of its requests may be missing, at most, as there was no room for all subjects;
    /// null where a gateway is not counted.
    pub uncounted: Option<u64>,
    /// The same for its rate.
    pub uncounted_rate: Option<f64>,
}

/// What a request asks for.
pub struct TopQuery {
    limit: Option<String>,
    sort: Sort,
    period: Period,
    /// Whose figures are counted.
    pub scope: CountedScope,
    count: usize,
}

/// The order of subjects.
#[derive(Clone, Copy)]
enum Sort {
    Rate,
    Denied,
    /// Least left of the bucket, and only those that were near the limit or over it.
    Remaining,
}

impl TopQuery {
    /// Reads a query, in which `limit_named` finds the limit.
    ///
    /// # Errors
    /// When there is no such parameter or limit.
    pub fn parse<'l, E: From<RefusedParameter>>(
        text: Option<&str>,
        limit_named: impl Fn(&str) -> Result<&'l Limit, E>,
    ) -> Result<Self, E> {
        let mut query = Self {
            limit: None,
            sort: Sort::Rate,
            period: Period::Minute,
            scope: CountedScope::Gateway,
            count: COUNT,
        };
        for (pair, (name, value)) in parameters(text) {
            let refused = || RefusedParameter::new(pair, PARAMETERS);
            match (name, &*value) {
                ("limit", name) => {
                    query.limit = Some(limit_named(name)?.name().to_owned());
                }
                ("sort", "rate") => query.sort = Sort::Rate,
                ("sort", "denied") => query.sort = Sort::Denied,
                ("sort", "remaining") => query.sort = Sort::Remaining,
                ("period", "minute") => query.period = Period::Minute,
                ("period", "hour") => query.period = Period::Hour,
                ("scope", word) => query.scope = CountedScope::parse(word).ok_or_else(refused)?,
                ("count", number) => query.count = number.parse().map_err(|_| refused())?,
                _ => return Err(refused().into()),
            }
        }
        Ok(query)
    }

    /// The subjects of these limits. What was named before a reload may not be shown any more.
    pub fn response(
        &self,
        limits: &[&Arc<Limit>],
        shows_names: bool,
        scope: Scope<'_>,
        counted: Counted,
    ) -> Top {
        let limits = limits.iter().copied().filter(|limit| {
            self.limit
                .as_deref()
                .is_none_or(|name| name == limit.name())
        });
        let mut subjects: Vec<(&Limit, CountedSubject)> = limits
            .flat_map(|limit| {
                let subjects = scope.subjects(limit.name(), self.period);
                subjects.into_iter().map(|subject| (&**limit, subject))
            })
            .filter(|(_, subject)| self.sort.lists(&subject.activity))
            .collect();
        subjects.sort_by(|(_, one), (_, other)| {
            let order = self.sort.order(one, other);
            order.then_with(|| one.activity.key.cmp(&other.activity.key))
        });
        subjects.truncate(self.count);
        let subjects = subjects.into_iter();
        let describe = |(limit, counted): (&Limit, CountedSubject)| {
            let subject = counted.activity;
            TopSubject {
                limit: limit.name().to_owned(),
                subject: limit.id_of(&subject.key),
                name: subject.name.filter(|_| shows_names),
                requests: subject.requests,
                denied: subject.denied,
                rate: rounded_down(counted.rate, 100.0),
                used: f64::from(subject.used_percent) / 100.0,
                key: subject.key,
                uncounted: counted.uncounted.map(|(requests, _)| requests),
                uncounted_rate: counted
                    .uncounted
                    .map(|(_, rate)| (rate * 100.0 - 1e-6).ceil().abs() / 100.0),
            }
        };
        Top {
            period: self.period.seconds(),
            counted,
            subjects: subjects.map(describe).collect(),
        }
    }
}

impl Sort {
    fn lists(self, subject: &SubjectActivity) -> bool {
        match self {
            Self::Rate => true,
            Self::Denied => subject.denied > 0,
            Self::Remaining => subject.is_near_limit(),
        }
    }

    /// `Less` is listed first.
    fn order(self, one: &CountedSubject, other: &CountedSubject) -> Ordering {
        let by_rate = match self {
            Self::Rate => other.rate.total_cmp(&one.rate),
            _ => Ordering::Equal,
        };
        let counts = |subject: &CountedSubject| {
            let SubjectActivity {
                requests, denied, ..
            } = subject.activity;
            match self {
                Self::Rate => (requests, denied),
                Self::Denied => (denied, requests),
                Self::Remaining => (subject.activity.used_percent.into(), requests),
            }
        };
        by_rate.then_with(|| counts(other).cmp(&counts(one)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(key: &str, requests: u64, rate: f64) -> CountedSubject {
        let activity = SubjectActivity {
            key: key.to_owned(),
            name: None,
            requests,
            denied: 0,
            used_percent: 0,
        };
        CountedSubject {
            activity,
            rate,
            uncounted: None,
        }
    }

    #[test]
    fn who_has_ended_is_never_listed_before_who_sends_now() {
        let mut subjects = [
            subject("ended", 1000, 0.0),
            subject("few", 2, 0.5),
            subject("ended-before", 3, 0.0),
            subject("flood", 90, 30.0),
        ];
        subjects.sort_by(|one, other| Sort::Rate.order(one, other));
        let keys = subjects.map(|subject| subject.activity.key);
        assert_eq!(keys, ["flood", "few", "ended", "ended-before"]);
    }
}
