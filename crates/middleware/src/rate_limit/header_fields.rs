//! The headers that show a client where it stands.

use http::header::{HeaderName, HeaderValue};
use smallvec::SmallVec;
use weir_limit::time::Nanos;
use weir_limit::{Decision, Quota};

use crate::header_text::{Fields, HeaderText};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// The three headers of the older forms, for the strictest limit alone.
struct HeaderNames {
    limit: HeaderName,
    remaining: HeaderName,
    reset: HeaderName,
}

const DRAFT_03: HeaderNames = HeaderNames {
    limit: HeaderName::from_static("ratelimit-limit"),
    remaining: HeaderName::from_static("ratelimit-remaining"),
    reset: HeaderName::from_static("ratelimit-reset"),
};

const X_RATELIMIT: HeaderNames = HeaderNames {
    limit: HeaderName::from_static("x-ratelimit-limit"),
    remaining: HeaderName::from_static("x-ratelimit-remaining"),
    reset: HeaderName::from_static("x-ratelimit-reset"),
};

const NANOS_PER_MICRO: u64 = 1_000;

/// Which headers show a client where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderForms {
    /// `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers, from -08 on.
    pub draft: bool,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset` of its -03.
    pub draft_03: bool,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, the last in seconds from now.
    pub x_ratelimit: bool,
}

impl HeaderForms {
    /// No header at all.
    pub const NONE: Self = Self {
        draft: false,
        draft_03: false,
        x_ratelimit: false,
    };
}

/// The current draft's headers.
impl Default for HeaderForms {
    fn default() -> Self {
        Self {
            draft: true,
            ..Self::NONE
        }
    }
}

/// The name of a limit in the draft's headers, prepared at load time.
#[derive(Clone, Debug)]
pub(super) struct Label {
    /// The limit's name as a structured-field string, quotes included.
    quoted_name: String,
    /// The policy of those that no override applies to.
    usual: Option<(Quota, HeaderValue)>,
}

impl Label {
    /// The label of a limit with a quota for those that no override applies to.
    pub(super) fn new(name: &str, usual: Option<Quota>) -> Self {
        let quoted_name = quoted(name);
        let policy = |quota| {
            let mut item = HeaderText::default();
            put_policy(&mut item, &quoted_name, quota);
            Some((quota, item.into_value()?))
        };
        Self {
            usual: usual.and_then(policy),
            quoted_name,
        }
    }

    /// The policy, where it is the usual one.
    fn usual_policy(&self, quota: Quota) -> Option<&HeaderValue> {
        let usual = self.usual.as_ref().filter(|(usual, _)| *usual == quota);
        usual.map(|(_, policy)| policy)
    }
}

/// A name as a structured field's string (RFC 9651, section 3.3.3). A limit's name always is one.
fn quoted(name: &str) -> String {
    let escaped = name.replace('\\', r"\\").replace('"', r#"\""#);
    format!("\"{escaped}\"")
}

/// Where a request stands with one limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitStatus<'a> {
    /// The limit's name.
    pub(super) label: &'a Label,
    /// The parameters that applied.
    pub(super) quota: Quota,
    /// The decision; none when the bucket was not asked.
    pub(super) decision: Option<Decision>,
    /// Whether the bucket may have changed since.
    pub(super) is_stale: bool,
}

/// Appends the headers for these limits, the strictest first; those that the upstream set stay.
pub(super) fn append(
    fields: &mut Fields<'_>,
    forms: HeaderForms,
    statuses: &mut [LimitStatus<'_>],
) {
    statuses.sort_by_key(|status| {
        std::cmp::Reverse(status.decision.map(|decision| decision.strictness()))
    });
    let statuses = &*statuses;
    let Some(strictest) = strictest_of_old(statuses) else {
        return;
    };
    if forms.draft {
        match statuses {
            [single] if let Some(policy) = single.label.usual_policy(single.quota) => {
                fields.append(&POLICY, policy);
            }
            several => append_list(fields, &POLICY, several, LimitStatus::write_policy),
        }
        append_list(fields, &RATE_LIMIT, statuses, LimitStatus::write_state);
    }
    if forms.draft_03 {
        fields.append_text(&DRAFT_03.limit, strictest.draft_03_limit());
        strictest.append_state(fields, &DRAFT_03);
    }
    if forms.x_ratelimit {
        fields.append_integer(&X_RATELIMIT.limit, strictest.quota.burst().get());
        strictest.append_state(fields, &X_RATELIMIT);
    }
}

/// The limit that the older forms show: the strictest. They know of no requests in flight, so a
/// limit on those is shown only where it denies, or where there is no other.
fn strictest_of_old<'s, 'a>(sorted: &'s [LimitStatus<'a>]) -> Option<&'s LimitStatus<'a>> {
    let denies =
        |status: &LimitStatus<'_>| status.decision.is_some_and(|decision| !decision.allowed);
    let mut telling = sorted.iter();
    let found = telling.find(|status| !status.quota.is_in_flight() || denies(status));
    found.or_else(|| sorted.first())
}

fn append_list<'a>(
    fields: &mut Fields<'_>,
    name: &HeaderName,
    statuses: &[LimitStatus<'a>],
    write: impl Fn(&LimitStatus<'a>, &mut HeaderText),
) {
    let mut list = HeaderText::default();
    for status in statuses {
        write(status, &mut list);
    }
    fields.append_text(name, list);
}

impl LimitStatus<'_> {
    fn write_policy(&self, list: &mut HeaderText) {
        start_item(list);
        match self.label.usual_policy(self.quota) {
            Some(policy) => list.push_bytes(policy.as_bytes()),
            None => put_policy(list, &self.label.quoted_name, self.quota),
        }
    }

    fn write_state(&self, list: &mut HeaderText) {
        if let Some(decision) = self.state() {
            start_item(list);
            list.push(&self.label.quoted_name);
            put_parameter(list, ";r=", decision.remaining);
            if !self.quota.is_in_flight() {
                put_parameter(list, ";t=", seconds(decision.reset_in));
            }
        }
    }

    /// The state of the bucket, as far as it is known.
    fn state(&self) -> Option<&Decision> {
        self.decision.as_ref().filter(|_| !self.is_stale)
    }

    /// The -03 form has the quota twice: alone, and with its window.
    fn draft_03_limit(&self) -> HeaderText {
        let mut value = HeaderText::default();
        let burst = self.quota.burst().get();
        put_parameter(&mut value, "", burst);
        if !self.quota.is_in_flight() {
            put_parameter(&mut value, ", ", burst);
            put_parameter(&mut value, ";w=", self.quota.tolerance().ceil_secs());
        }
        value
    }

    fn append_state(&self, fields: &mut Fields<'_>, names: &HeaderNames) {
        if let Some(decision) = self.state() {
            fields.append_integer(&names.remaining, decision.remaining);
            fields.append_integer(&names.reset, seconds(decision.reset_in));
        }
    }
}

/// Whole seconds until a bucket is full, rounded up. Windows end with whole microseconds, so less
/// than one is no time to wait for.
fn seconds(span: Nanos) -> u64 {
    Nanos::new(span.get() / NANOS_PER_MICRO * NANOS_PER_MICRO).ceil_secs()
}

fn start_item(list: &mut HeaderText) {
    if !list.is_empty() {
        list.push(", ");
    }
}

fn put_policy(list: &mut HeaderText, quoted_name: &str, quota: Quota) {
    list.push(quoted_name);
    put_parameter(list, ";q=", quota.burst().get());
    if quota.is_in_flight() {
        // A unit of the draft's own, for a quota that comes back in no window of time.
        list.push(";qu=\"concurrent-requests\"");
    } else {
        put_parameter(list, ";w=", quota.tolerance().ceil_secs());
    }
}

fn put_parameter(list: &mut HeaderText, name: &str, number: u64) {
    list.push(name);
    list.push_integer(number);
}

/// In the order of the route's limits; few, and so kept on the stack.
pub(super) type LimitStatuses<'a> = SmallVec<[LimitStatus<'a>; 3]>;

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use http::HeaderMap;
    use weir_limit::time::Timestamp;
    use weir_limit::{Algorithm, Alignment, BucketKey, Claim, Transaction, Usage, Window};

    use super::*;

    fn status(name: &str, burst: u64, count: u64, debt: Nanos) -> LimitStatus<'static> {
        let quota = Quota::new(burst, count, Duration::from_secs(60)).unwrap();
        let usual = Quota::new(1000, 1000, Duration::from_secs(60)).unwrap();
        let transaction = Transaction::new(BucketKey::default(), quota, NonZeroU64::MIN);
        LimitStatus {
            // Some have the usual quota, and some another.
            label: Box::leak(Box::new(Label::new(name, Some(usual)))),
            quota,
            decision: Some(transaction.decide(debt)),
            is_stale: false,
        }
    }

    fn fields(forms: HeaderForms, statuses: &mut [LimitStatus<'_>]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        headers.insert(RATE_LIMIT, HeaderValue::from_static("\"upstream\";r=1"));
        append(&mut Fields::Map(&mut headers), forms, statuses);
        let line = |(name, value): (&HeaderName, &HeaderValue)| {
            format!("{name}: {}", value.to_str().unwrap())
        };
        headers.iter().map(line).collect()
    }

    #[test]
    fn the_draft_form_lists_the_strictest_limit_first_and_keeps_the_upstreams_fields() {
        let forms = HeaderForms::default();
        let loose = status("Loose", 1000, 1000, Nanos::ZERO);
        let strict = status("RequestsPerAddress", 20, 100, Nanos::ZERO);
        insta::assert_snapshot!(fields(forms, &mut [loose, strict]).join("\n"), @r#"
        ratelimit: "upstream";r=1
        ratelimit: "RequestsPerAddress";r=19;t=1, "Loose";r=999;t=1
        ratelimit-policy: "RequestsPerAddress";q=20;w=12, "Loose";q=1000;w=60
        "#);
    }

    #[test]
    fn the_draft_form_is_a_list_of_strings_with_integers() {
        let loose = status("Loose", 1000, 1000, Nanos::ZERO);
        let strict = status("Strict", 20, 100, Nanos::ZERO);
        let mut headers = HeaderMap::new();
        let fields = &mut Fields::Map(&mut headers);
        append(fields, HeaderForms::default(), &mut [loose, strict]);
        for (name, keys) in [(POLICY, ["q", "w"]), (RATE_LIMIT, ["r", "t"])] {
            let list: sfv::List = sfv::Parser::new(headers[name].as_bytes()).parse().unwrap();
            assert_eq!(list.len(), 2);
            for entry in list {
                let sfv::ListEntry::Item(item) = entry else {
                    panic!("{entry:?}")
                };
                assert!(item.bare_item.as_string().is_some());
                let found = item.params.iter().map(|(key, value)| (key.as_str(), value));
                let integers = found.filter(|(_, value)| value.as_integer().is_some());
                assert_eq!(integers.map(|(key, _)| key).collect::<Vec<_>>(), keys);
            }
        }
    }

    #[test]
    fn a_policy_alone_is_the_same_prepared_or_not() {
        for (usual, shown) in [(1000, "\"A\";q=1000;w=60"), (20, "\"A\";q=20;w=60")] {
            let one = status("A", usual, usual, Nanos::ZERO);
            let shown = format!("ratelimit-policy: {shown}");
            assert!(fields(HeaderForms::default(), &mut [one]).contains(&shown));
        }
    }

    #[test]
    fn a_limit_that_was_not_asked_shows_its_policy_alone() {
        let unasked = LimitStatus {
            decision: None,
            ..status("A", 5, 5, Nanos::ZERO)
        };
        let denied = status("B", 1, 1, Nanos::from_secs(60));
        insta::assert_snapshot!(fields(HeaderForms::default(), &mut [unasked, denied]).join("\n"), @r#"
        ratelimit: "upstream";r=1
        ratelimit: "B";r=0;t=60
        ratelimit-policy: "B";q=1;w=60, "A";q=5;w=60
        "#);
    }

    #[test]
    fn the_older_forms_show_the_strictest_limit_alone() {
        let forms = HeaderForms {
            draft_03: true,
            x_ratelimit: true,
            draft: false,
        };
        let loose = status("Loose", 1000, 1000, Nanos::ZERO);
        let strict = status("Strict", 20, 100, Nanos::ZERO);
        insta::assert_snapshot!(fields(forms, &mut [loose, strict]).join("\n"), @r#"
        ratelimit: "upstream";r=1
        ratelimit-limit: 20, 20;w=12
        ratelimit-remaining: 19
        ratelimit-reset: 1
        x-ratelimit-limit: 20
        x-ratelimit-remaining: 19
        x-ratelimit-reset: 1
        "#);
    }

    /// Where a request of cost 1 stands that is the first, or comes when all units are taken.
    fn windowed(algorithm: Algorithm, taken: u64, now: Timestamp) -> LimitStatus<'static> {
        let quota = Quota::windowed(algorithm, 5, Duration::from_secs(60)).unwrap();
        let transaction = Transaction::new(BucketKey::default(), quota, NonZeroU64::MIN);
        let mut window = Window::full(&quota).unwrap();
        (0..taken).for_each(|_| window.take(&transaction, now));
        let usage: Usage = window.usage(&transaction, now);
        LimitStatus {
            label: Box::leak(Box::new(Label::new("W", Some(quota)))),
            quota,
            decision: Some(transaction.decide_in_window(&usage)),
            is_stale: false,
        }
    }

    /// `t` was the time to the next unit for some algorithms, and to a full bucket for others.
    #[test]
    fn whatever_the_algorithm_t_is_when_all_of_the_quota_is_there_again() {
        // A part of a microsecond is no further second.
        let now = Timestamp::from_nanos(1_750_000_020_000_000_001);
        let first = Algorithm::FixedWindow(Alignment::FirstRequest);
        let log = Algorithm::SlidingLog {
            count_denied: false,
        };
        for (algorithm, taken) in [(first, 0), (first, 5), (log, 0), (log, 5)] {
            let told = fields(
                HeaderForms::default(),
                &mut [windowed(algorithm, taken, now)],
            );
            let left = 4_u64.saturating_sub(taken);
            assert_eq!(
                told[1],
                format!("ratelimit: \"W\";r={left};t=60"),
                "{algorithm:?}"
            );
        }
        let sliding = Algorithm::SlidingWindow {
            count_denied: false,
        };
        for taken in [0, 5] {
            let told = fields(HeaderForms::default(), &mut [windowed(sliding, taken, now)]);
            assert!(told[1].ends_with(";t=61"), "a sub-window more: {}", told[1]);
        }
        for debt in [0, 60 - 12] {
            let gcra = status("G", 5, 5, Nanos::from_secs(debt));
            let told = fields(HeaderForms::default(), &mut [gcra]);
            assert!(
                told[1].ends_with(&format!(";t={}", debt + 12)),
                "{}",
                told[1]
            );
        }
    }

    #[test]
    fn what_may_have_changed_since_is_not_told() {
        let stale = LimitStatus {
            is_stale: true,
            ..status("A", 5, 5, Nanos::from_secs(60))
        };
        let forms = HeaderForms {
            draft: true,
            draft_03: false,
            x_ratelimit: true,
        };
        insta::assert_snapshot!(fields(forms, &mut [stale])[1..].join("\n"), @r#"
        ratelimit-policy: "A";q=5;w=60
        x-ratelimit-limit: 5
        "#);
    }

    fn in_flight(name: &str, others: u64) -> LimitStatus<'static> {
        let quota = Quota::in_flight(3).unwrap();
        let claim = Claim::new(BucketKey::default(), quota.burst());
        LimitStatus {
            label: Box::leak(Box::new(Label::new(name, Some(quota)))),
            quota,
            decision: Some(claim.decide(others)),
            is_stale: false,
        }
    }

    #[test]
    fn requests_in_flight_are_a_quota_without_a_window() {
        let forms = HeaderForms {
            draft_03: true,
            x_ratelimit: true,
            draft: true,
        };
        let rate = status("RequestsPerAddress", 20, 100, Nanos::ZERO);
        let text = |statuses: &mut [LimitStatus<'_>]| fields(forms, statuses)[1..].join("\n");
        insta::assert_snapshot!(text(&mut [rate, in_flight("AtOnce", 1)]), @r#"
        ratelimit: "AtOnce";r=1, "RequestsPerAddress";r=19;t=1
        ratelimit-policy: "AtOnce";q=3;qu="concurrent-requests", "RequestsPerAddress";q=20;w=12
        ratelimit-limit: 20, 20;w=12
        ratelimit-remaining: 19
        ratelimit-reset: 1
        x-ratelimit-limit: 20
        x-ratelimit-remaining: 19
        x-ratelimit-reset: 1
        "#);
        insta::assert_snapshot!(text(&mut [rate, in_flight("AtOnce", 3)]), @r#"
        ratelimit: "AtOnce";r=0, "RequestsPerAddress";r=19;t=1
        ratelimit-policy: "AtOnce";q=3;qu="concurrent-requests", "RequestsPerAddress";q=20;w=12
        ratelimit-limit: 3
        ratelimit-remaining: 0
        ratelimit-reset: 1
        x-ratelimit-limit: 3
        x-ratelimit-remaining: 0
        x-ratelimit-reset: 1
        "#);
        insta::assert_snapshot!(text(&mut [in_flight("AtOnce", 0)]), @r#"
        ratelimit: "AtOnce";r=2
        ratelimit-policy: "AtOnce";q=3;qu="concurrent-requests"
        ratelimit-limit: 3
        ratelimit-remaining: 2
        ratelimit-reset: 1
        x-ratelimit-limit: 3
        x-ratelimit-remaining: 2
        x-ratelimit-reset: 1
        "#);
    }
}
