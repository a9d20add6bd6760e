//! The subjects that send most, are denied most, or are nearest to a limit.

use std::cmp::Ordering;

use weir_config::Settings;
use weir_rules::Limit;
use weir_telemetry::{Period, SubjectActivity};

use super::bucket::limit_named;
use super::error::ApiError;
use super::request::parameters;
use super::responses::{Counted, CountedScope, Top, TopSubject, rounded_down};
use crate::app::fleet::{CountedSubject, Scope};

const PARAMETERS: &str = "there are limit=NAME, sort=rate, denied or remaining, period=minute or \
     hour, scope=gateway or fleet, and count=NUMBER";

/// Subjects that an answer lists where the request does not say.
const COUNT: usize = 20;

pub(super) struct TopQuery {
    limit: Option<String>,
    sort: Sort,
    period: Period,
    pub(super) scope: CountedScope,
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
    pub(super) fn parse(text: Option<&str>, settings: &Settings) -> Result<Self, ApiError> {
        let mut query = Self {
            limit: None,
            sort: Sort::Rate,
            period: Period::Minute,
            scope: CountedScope::Gateway,
            count: COUNT,
        };
        for (pair, (name, value)) in parameters(text) {
            let refused = || ApiError::parameter(pair, PARAMETERS);
            match (name, &*value) {
                ("limit", name) => {
                    query.limit = Some(limit_named(settings, name)?.name().to_owned());
                }
                ("sort", "rate") => query.sort = Sort::Rate,
                ("sort", "denied") => query.sort = Sort::Denied,
                ("sort", "remaining") => query.sort = Sort::Remaining,
                ("period", "minute") => query.period = Period::Minute,
                ("period", "hour") => query.period = Period::Hour,
                ("scope", word) => query.scope = CountedScope::parse(word).ok_or_else(refused)?,
                ("count", number) => query.count = number.parse().map_err(|_| refused())?,
                _ => return Err(refused()),
            }
        }
        Ok(query)
    }

    pub(super) fn response(&self, settings: &Settings, scope: Scope<'_>, counted: Counted) -> Top {
        let limits = settings.limits().into_iter();
        let limits = limits.filter(|limit| {
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
        // What was named before a reload may not be shown any more.
        let shows_names = settings.account.keeps_names;
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
