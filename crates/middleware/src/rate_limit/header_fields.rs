//! The headers that show a client where it stands.

use std::time::{SystemTime, UNIX_EPOCH};

use http::header::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;
use weir_limit::time::Nanos;
use weir_limit::{Decision, Quota};

use crate::header_text::{Fields, HeaderText};

pub(super) const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(super) const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

const NANOS_PER_MICRO: u64 = 1_000;

/// One way to show a client where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HeaderForm {
    /// `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers, from -08 on.
    Draft,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset` of its -03, in which the limit is a list.
    Draft03,
    /// The same fields as of its -06, in which the limit is a number, and `RateLimit-Policy`.
    Draft06,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, the last in seconds from now.
    XRateLimit,
    /// The same fields, the last as the Unix time in seconds, as GitHub writes it.
    XRateLimitEpoch,
    /// `Retry-After-Ms` of denials: `Retry-After` in milliseconds.
    RetryAfterMs,
}

impl HeaderForm {
    /// All forms, in the order in which they are written.
    pub const ALL: [Self; 6] = [
        Self::Draft,
        Self::Draft03,
        Self::Draft06,
        Self::XRateLimit,
        Self::XRateLimitEpoch,
        Self::RetryAfterMs,
    ];

    /// The name, as it is written in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Draft => "draft",
            Self::Draft03 => "draft-03",
            Self::Draft06 => "draft-06",
            Self::XRateLimit => "x-ratelimit",
            Self::XRateLimitEpoch => "x-ratelimit-epoch",
            Self::RetryAfterMs => "retry-after-ms",
        }
    }

    /// The header fields that it writes. Two forms that share one exclude each other.
    pub const fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Draft => &["RateLimit-Policy", "RateLimit"],
            Self::Draft03 => &["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"],
            Self::Draft06 => &[
                "RateLimit-Policy",
                "RateLimit-Limit",
                "RateLimit-Remaining",
                "RateLimit-Reset",
            ],
            Self::XRateLimit | Self::XRateLimitEpoch => &[
                "X-RateLimit-Limit",
                "X-RateLimit-Remaining",
                "X-RateLimit-Reset",
            ],
            Self::RetryAfterMs => &["Retry-After-Ms"],
        }
    }
}

/// Which forms of headers show a client where it stands: a set of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderForms(u8);

impl HeaderForms {
    /// No header at all.
    pub const NONE: Self = Self(0);

    /// These and one more.
    #[must_use]
    pub const fn with(self, form: HeaderForm) -> Self {
        Self(self.0 | 1 << form as u8)
    }

    /// Whether a form is among these.
    pub const fn contains(self, form: HeaderForm) -> bool {
        self.0 & 1 << form as u8 != 0
    }

    /// The forms, in the order in which they are written.
    pub fn iter(self) -> impl Iterator<Item = HeaderForm> {
        let all = HeaderForm::ALL.into_iter();
        all.filter(move |form| self.contains(*form))
    }
}

impl FromIterator<HeaderForm> for HeaderForms {
    fn from_iter<I: IntoIterator<Item = HeaderForm>>(forms: I) -> Self {
        forms.into_iter().fold(Self::NONE, Self::with)
    }
}

/// The current draft's headers.
impl Default for HeaderForms {
    fn default() -> Self {
        Self::NONE.with(HeaderForm::Draft)
    }
}

/// The three fields that show one limit alone, the strictest. Each holds one value: clients read
/// a second line as part of it, or instead of it.
struct SingleFields {
    limit: HeaderName,
    remaining: HeaderName,
    reset: HeaderName,
}

const RATELIMIT_FIELDS: SingleFields = SingleFields {
    limit: HeaderName::from_static("ratelimit-limit"),
    remaining: HeaderName::from_static("ratelimit-remaining"),
    reset: HeaderName::from_static("ratelimit-reset"),
};

const X_RATELIMIT_FIELDS: SingleFields = SingleFields {
    limit: HeaderName::from_static("x-ratelimit-limit"),
    remaining: HeaderName::from_static("x-ratelimit-remaining"),
    reset: HeaderName::from_static("x-ratelimit-reset"),
};

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
            item.push(&quoted_name);
            put_policy(&mut item, quota);
            Some((quota, item.into_value()?))
        };
        Self {
            usual: usual.and_then(policy),
            quoted_name,
        }
    }

    /// The quoted name with a number behind it, from 2 on.
    fn numbered(&self, number: u8) -> String {
        let name = self.quoted_name.trim_end_matches('"');
        match number {
            0 | 1 => self.quoted_name.clone(),
            _ => format!("{name}-{number}\""),
        }
    }

    pub(super) fn quoted_name(&self) -> &str {
        &self.quoted_name
    }

    /// The quota of those that no override applies to, and their policy.
    pub(super) fn usual(&self) -> Option<(Quota, &HeaderValue)> {
        let usual = self.usual.as_ref();
        usual.map(|(quota, policy)| (*quota, policy))
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
    /// How long they apply, if they are those of an override that ends; else [`Nanos::NEVER`].
    pub(super) quota_ends_in: Nanos,
    /// The decision; none when the bucket was not asked.
    pub(super) decision: Option<Decision>,
    /// Whether the bucket may have changed since.
    pub(super) is_stale: bool,
}

/// Appends the headers for these limits, the strictest first. Those that the upstream set stay
/// beside the draft's, which are lists, under names that differ from ours. Of fields with a single
/// value the stricter one stays.
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
    if forms == HeaderForms::default() {
        return append_draft(fields, statuses);
    }
    for form in forms.iter() {
        match form {
            HeaderForm::Draft => append_draft(fields, statuses),
            HeaderForm::Draft03 => _ = strictest.put_single(fields, &RATELIMIT_FIELDS, form),
            HeaderForm::Draft06 => append_draft_06(fields, statuses, strictest),
            HeaderForm::XRateLimit | HeaderForm::XRateLimitEpoch => {
                strictest.put_single(fields, &X_RATELIMIT_FIELDS, form);
            }
            HeaderForm::RetryAfterMs => append_retry_after_ms(fields, statuses),
        }
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

/// Appends the draft's two lists, of limits in the order of their strictness.
fn append_draft(fields: &mut Fields<'_>, sorted: &[LimitStatus<'_>]) {
    let upstream_has_policy = match sorted {
        [single] if let Some(policy) = single.label.usual_policy(single.quota) => {
            fields.append(&POLICY, policy)
        }
        several => append_list(fields, &POLICY, several, LimitStatus::write_policy),
    };
    let latest = wait_of_denial(sorted).map(|wait| wait.ceil_secs().max(1));
    let write_state =
        |status: &LimitStatus<'_>, list: &mut HeaderText| status.write_state(list, latest);
    let upstream_has_state = append_list(fields, &RATE_LIMIT, sorted, write_state);
    if (upstream_has_policy || upstream_has_state)
        && let Fields::Map(headers) = fields
    {
        tell_apart(headers, sorted);
    }
}

/// How long a denied request has to wait, if any wait helps.
fn wait_of_denial(sorted: &[LimitStatus<'_>]) -> Option<Nanos> {
    sorted.first()?.decision?.wait_of_denial()
}

/// Gives our limits other names where the upstream tells of limits with the same ones, as a gateway
/// with the same configuration does. Our lines are the last.
#[cold]
fn tell_apart(headers: &mut HeaderMap, sorted: &[LimitStatus<'_>]) {
    let has_state = sorted.iter().any(|status| status.state().is_some());
    let lists = [(POLICY, true), (RATE_LIMIT, has_state)].map(|(name, has_ours)| {
        let mut lines: Vec<_> = headers.get_all(&name).iter().cloned().collect();
        let ours = if has_ours { lines.pop() } else { None };
        (name, lines, ours)
    });
    let theirs = || lists.iter().flat_map(|(_, lines, _)| lines);
    let is_taken = |number: u8| {
        let mut names = sorted.iter().map(|status| status.label.numbered(number));
        names.any(|name| theirs().any(|line| contains(line, &name)))
    };
    let Some(number) = (1..=u8::MAX).find(|number| !is_taken(*number)) else {
        return;
    };
    if number == 1 {
        return;
    }
    for (name, lines, ours) in &lists {
        headers.remove(name);
        let renamed = ours
            .as_ref()
            .and_then(|ours| renumbered(ours, sorted, number));
        for line in lines.iter().cloned().chain(renamed) {
            headers.append(name, line);
        }
    }
}

fn contains(line: &HeaderValue, text: &str) -> bool {
    line.to_str().is_ok_and(|line| line.contains(text))
}

/// A list of ours with the limits' names numbered. No name is within another, as both are quoted.
fn renumbered(ours: &HeaderValue, sorted: &[LimitStatus<'_>], number: u8) -> Option<HeaderValue> {
    let mut list = ours.to_str().ok()?.to_owned();
    let mut labels: Vec<_> = sorted.iter().map(|status| status.label).collect();
    // The longest first, for `A-2` may be a limit of ours beside `A`.
    labels.sort_by_key(|label| std::cmp::Reverse(label.quoted_name.len()));
    for label in labels {
        list = list.replace(&label.quoted_name, &label.numbered(number));
    }
    list.parse().ok()
}

/// Whether there was such a field before.
fn append_list<'a>(
    fields: &mut Fields<'_>,
    name: &HeaderName,
    statuses: &[LimitStatus<'a>],
    write: impl Fn(&LimitStatus<'a>, &mut HeaderText),
) -> bool {
    let mut list = HeaderText::default();
    for status in statuses {
        write(status, &mut list);
    }
    fields.append_text(name, list)
}

fn append_draft_06(
    fields: &mut Fields<'_>,
    sorted: &[LimitStatus<'_>],
    strictest: &LimitStatus<'_>,
) {
    if strictest.put_single(fields, &RATELIMIT_FIELDS, HeaderForm::Draft06) {
        append_list(fields, &POLICY, sorted, LimitStatus::write_draft_06_policy);
    }
}

fn append_retry_after_ms(fields: &mut Fields<'_>, sorted: &[LimitStatus<'_>]) {
    if let Some(wait) = wait_of_denial(sorted) {
        fields.append_integer(&RETRY_AFTER_MS, wait.ceil_millis().max(1));
    }
}

impl LimitStatus<'_> {
    /// Shows a limit that denies as one that has nothing left: a decoy must not tell more.
    pub(super) fn conceal_denial(&mut self) {
        if let Some(decision) = self.decision.as_mut().filter(|decision| !decision.allowed) {
            decision.allowed = true;
            decision.retry_in = Nanos::ZERO;
        }
    }

    fn write_policy(&self, list: &mut HeaderText) {
        start_item(list);
        match self.label.usual_policy(self.quota) {
            Some(policy) => list.push_bytes(policy.as_bytes()),
            None => {
                list.push(&self.label.quoted_name);
                put_policy(list, self.quota);
            }
        }
    }

    /// `t` of another limit than the one that denies is left out if it is later than `Retry-After`
    /// (section 6 of the draft): the request would pass before.
    fn write_state(&self, list: &mut HeaderText, latest: Option<u64>) {
        let Some(decision) = self.state() else {
            return;
        };
        start_item(list);
        list.push(&self.label.quoted_name);
        put_parameter(list, ";r=", decision.remaining);
        let more_in = self.more_in_secs(decision);
        if !self.quota.is_in_flight() && latest.is_none_or(|latest| more_in <= latest) {
            put_parameter(list, ";t=", more_in);
        }
    }

    /// In how many seconds more quota is there, or a denied request would pass.
    pub(super) fn more_in_secs(&self, decision: &Decision) -> u64 {
        seconds(decision.more_in(&self.quota).min(self.quota_ends_in))
    }

    fn write_draft_06_policy(&self, list: &mut HeaderText) {
        if !self.quota.is_in_flight() {
            start_item(list);
            put_windowed_limit(list, self.quota);
        }
    }

    /// The state of the bucket, as far as it is known.
    pub(super) fn state(&self) -> Option<&Decision> {
        self.decision.as_ref().filter(|_| !self.is_stale)
    }

    /// Writes the fields of a single limit, unless those of the upstream are stricter. Returns
    /// whether it did.
    fn put_single(&self, fields: &mut Fields<'_>, names: &SingleFields, form: HeaderForm) -> bool {
        if let Fields::Map(headers) = fields {
            if self.is_looser_than(headers.get(&names.remaining)) {
                return false;
            }
            for name in [&names.limit, &names.remaining, &names.reset] {
                headers.remove(name);
            }
        }
        fields.append_text(&names.limit, self.single_limit(form));
        if let Some(decision) = self.state() {
            fields.append_integer(&names.remaining, decision.remaining);
            fields.append_integer(&names.reset, self.reset(decision, form));
        }
        true
    }

    /// Whether fewer units are left of the upstream's own limit, by its field.
    fn is_looser_than(&self, remaining: Option<&HeaderValue>) -> bool {
        let theirs = remaining.and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
        let ours = self.state().map(|decision| decision.remaining);
        theirs.is_some_and(|theirs| ours.is_none_or(|ours| theirs < ours))
    }

    /// The -03 form has the quota twice: alone, and with its window.
    fn single_limit(&self, form: HeaderForm) -> HeaderText {
        let mut value = HeaderText::default();
        value.push_integer(self.quota.burst().get());
        if form == HeaderForm::Draft03 && !self.quota.is_in_flight() {
            value.push(", ");
            put_windowed_limit(&mut value, self.quota);
        }
        value
    }

    /// `-Reset` of the older forms: when a denied request would pass, and otherwise, as they were
    /// made for windows that end, when the whole quota is there again.
    fn reset(&self, decision: &Decision, form: HeaderForm) -> u64 {
        let wait = decision.wait_of_denial().unwrap_or(decision.reset_in);
        let wait = wait.min(self.quota_ends_in);
        match form {
            HeaderForm::XRateLimitEpoch => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                (Nanos::from(now.unwrap_or_default()) + wait).ceil_secs()
            }
            _ => seconds(wait),
        }
    }
}

/// Whole seconds, rounded up. Windows end with whole microseconds, so less than one is no time to
/// wait for.
fn seconds(span: Nanos) -> u64 {
    Nanos::new(span.get() / NANOS_PER_MICRO * NANOS_PER_MICRO).ceil_secs()
}

fn start_item(list: &mut HeaderText) {
    if !list.is_empty() {
        list.push(", ");
    }
}

fn put_policy(list: &mut HeaderText, quota: Quota) {
    put_parameter(list, ";q=", quota.burst().get());
    if quota.is_in_flight() {
        // A unit of the draft's own, for a quota that comes back in no window of time.
        list.push(";qu=\"concurrent-requests\"");
    } else {
        put_parameter(list, ";w=", quota.tolerance().ceil_secs());
    }
}

/// A quota with its window, as drafts before -08 write it.
fn put_windowed_limit(list: &mut HeaderText, quota: Quota) {
    list.push_integer(quota.burst().get());
    put_parameter(list, ";w=", quota.tolerance().ceil_secs());
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
            quota_ends_in: Nanos::NEVER,
            decision: Some(transaction.decide(debt)),
            is_stale: false,
        }
    }

    fn of<const N: usize>(forms: [HeaderForm; N]) -> HeaderForms {
        forms.into_iter().collect()
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
        let forms = of([HeaderForm::Draft03, HeaderForm::XRateLimit]);
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
            quota_ends_in: Nanos::NEVER,
            decision: Some(transaction.decide_in_window(&usage)),
            is_stale: false,
        }
    }

    /// `t` was the time to a full bucket: a client that obeyed it waited for all units in place of
    /// one.
    #[test]
    fn t_is_when_there_is_more_and_never_later_than_retry_after() {
        // A part of a microsecond is no further second.
        let now = Timestamp::from_nanos(1_750_000_020_000_000_001);
        let told = |status| fields(HeaderForms::default(), &mut [status])[1].clone();
        let first = Algorithm::FixedWindow(Alignment::FirstRequest);
        let log = Algorithm::SlidingLog {
            count_denied: false,
        };
        for (algorithm, taken) in [(first, 0), (first, 5), (log, 0), (log, 5)] {
            let left = 4_u64.saturating_sub(taken);
            let told = told(windowed(algorithm, taken, now));
            assert_eq!(
                told,
                format!("ratelimit: \"W\";r={left};t=60"),
                "{algorithm:?}"
            );
        }
        let sliding = Algorithm::SlidingWindow {
            count_denied: false,
        };
        for taken in [0, 5] {
            let told = told(windowed(sliding, taken, now));
            assert!(told.ends_with(";t=61"), "a sub-window more: {told}");
        }
        // A unit each 12 s. The request takes one where it is allowed.
        for (debt, rt) in [
            (0, "r=4;t=12"),
            (5, "r=3;t=5"),
            (36, "r=1;t=12"),
            (48, "r=0;t=12"),
            (50, "r=0;t=2"),
            (60, "r=0;t=12"),
        ] {
            let told = told(status("G", 5, 5, Nanos::from_secs(debt)));
            assert_eq!(told, format!("ratelimit: \"G\";{rt}"), "{debt}");
        }
    }

    #[test]
    fn a_looser_limit_does_not_keep_a_client_waiting_beyond_retry_after() {
        let wide = status("Wide", 3, 3, Nanos::ZERO);
        let denied = status("Tight", 5, 5, Nanos::from_secs(60));
        insta::assert_snapshot!(fields(HeaderForms::default(), &mut [wide, denied])[1..].join("\n"), @r#"
        ratelimit: "Tight";r=0;t=12, "Wide";r=2
        ratelimit-policy: "Tight";q=5;w=60, "Wide";q=3;w=60
        "#);
        insta::assert_snapshot!(fields(HeaderForms::default(), &mut [wide])[1..].join("\n"), @r#"
        ratelimit: "Wide";r=2;t=20
        ratelimit-policy: "Wide";q=3;w=60
        "#);
    }

    /// The order of the limits and the times are those of an answer that the app gave.
    #[test]
    fn a_decoy_shows_a_limit_that_denies_as_one_that_is_used_up() {
        let forms = of([
            HeaderForm::Draft,
            HeaderForm::XRateLimit,
            HeaderForm::RetryAfterMs,
        ]);
        let now = Timestamp::from_nanos(1_750_000_020_000_000_000);
        let log = Algorithm::SlidingLog {
            count_denied: false,
        };
        let mut denied = windowed(log, 5, now);
        denied.decision.as_mut().unwrap().retry_in = Nanos::from_secs(7);
        denied.conceal_denial();
        let last = windowed(log, 4, now);
        assert_eq!(fields(forms, &mut [denied]), fields(forms, &mut [last]));
    }

    #[test]
    fn a_denial_in_milliseconds_is_no_shorter_than_the_wait() {
        let forms = of([HeaderForm::RetryAfterMs]);
        let text = |status| fields(forms, &mut [status])[1..].join("\n");
        let late = Nanos::new(47_999_999_999);
        assert_eq!(text(status("G", 5, 5, late)), "", "an admitted request");
        let denied = status("G", 5, 5, Nanos::new(48_000_000_001));
        assert_eq!(text(denied), "retry-after-ms: 1");
        let denied = status("G", 5, 5, Nanos::new(50_500_000_001));
        assert_eq!(text(denied), "retry-after-ms: 2501");
        let never = LimitStatus {
            decision: Some(Decision {
                retry_in: Nanos::NEVER,
                ..denied.decision.unwrap()
            }),
            ..denied
        };
        assert_eq!(text(never), "");
    }

    #[test]
    fn of_the_older_forms_a_reset_is_when_a_denied_request_passes_and_else_when_all_is_back() {
        let forms = of([HeaderForm::Draft06, HeaderForm::XRateLimit]);
        let loose = status("Loose", 1000, 1000, Nanos::ZERO);
        let passes = status("Strict", 5, 5, Nanos::from_secs(24));
        insta::assert_snapshot!(fields(forms, &mut [loose, passes])[1..].join("\n"), @"
        ratelimit-limit: 5
        ratelimit-remaining: 2
        ratelimit-reset: 36
        ratelimit-policy: 5;w=60, 1000;w=60
        x-ratelimit-limit: 5
        x-ratelimit-remaining: 2
        x-ratelimit-reset: 36
        ");
        let denied = status("Strict", 5, 5, Nanos::from_secs(55));
        let told = fields(forms, &mut [denied]);
        assert!(told.contains(&"ratelimit-reset: 7".to_owned()), "{told:?}");
    }

    #[test]
    fn an_epoch_is_the_unix_time_of_the_same_moment() {
        let forms = of([HeaderForm::XRateLimitEpoch]);
        let now = || {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_secs()
        };
        let denied = status("G", 5, 5, Nanos::from_secs(3653));
        let earliest = now();
        let told = fields(forms, &mut [denied]).pop().unwrap();
        let told: u64 = told
            .strip_prefix("x-ratelimit-reset: ")
            .unwrap()
            .parse()
            .unwrap();
        assert!((earliest + 3605..=now() + 3606).contains(&told), "{told}");
    }

    fn beside(upstream: &[(&'static str, &str)], forms: HeaderForms) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in upstream {
            headers.append(*name, value.parse().unwrap());
        }
        let ours = &mut [status("L", 5, 5, Nanos::ZERO)];
        append(&mut Fields::Map(&mut headers), forms, ours);
        let line = |(name, value): (&HeaderName, &HeaderValue)| {
            format!("{name}: {}", value.to_str().unwrap())
        };
        headers.iter().map(line).collect()
    }

    /// Python's `int()` fails on `2, 99`, as two lines of a field are read.
    #[test]
    fn a_field_with_one_value_never_gets_a_second_line() {
        let forms = of([HeaderForm::XRateLimit]);
        let upstream = |remaining| {
            [
                ("x-ratelimit-limit", "100"),
                ("x-ratelimit-remaining", remaining),
                ("x-ratelimit-reset", "1795857980"),
            ]
        };
        let stricter = ["x-ratelimit-limit: 100", "x-ratelimit-remaining: 3"];
        let told = beside(&upstream("3"), forms);
        assert_eq!(told[..2], stricter);
        assert_eq!(told[2..], ["x-ratelimit-reset: 1795857980"]);
        let ours = [
            "x-ratelimit-limit: 5",
            "x-ratelimit-remaining: 4",
            "x-ratelimit-reset: 12",
        ];
        for looser in ["4", "99", "many", ""] {
            assert_eq!(beside(&upstream(looser), forms), ours, "{looser:?}");
        }
        let half = [("x-ratelimit-limit", "1"), ("x-ratelimit-limit", "2")];
        assert_eq!(beside(&half, forms), ours);
    }

    #[test]
    fn the_drafts_lists_have_no_name_twice() {
        let upstream = [
            ("ratelimit-policy", "\"L\";q=9;w=9, \"L-2\";q=8;w=8"),
            ("ratelimit", "\"L\";r=9;t=9"),
            ("ratelimit", "\"L-2\";r=8;t=8"),
        ];
        let told = beside(&upstream, HeaderForms::default());
        insta::assert_snapshot!(told.join("\n"), @r#"
        ratelimit-policy: "L";q=9;w=9, "L-2";q=8;w=8
        ratelimit-policy: "L-3";q=5;w=60
        ratelimit: "L";r=9;t=9
        ratelimit: "L-2";r=8;t=8
        ratelimit: "L-3";r=4;t=12
        "#);
    }

    #[test]
    fn what_may_have_changed_since_is_not_told() {
        let stale = LimitStatus {
            is_stale: true,
            ..status("A", 5, 5, Nanos::from_secs(60))
        };
        let forms = of([HeaderForm::Draft, HeaderForm::XRateLimit]);
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
            quota_ends_in: Nanos::NEVER,
            decision: Some(claim.decide(others)),
            is_stale: false,
        }
    }

    #[test]
    fn requests_in_flight_are_a_quota_without_a_window() {
        let forms = of([
            HeaderForm::Draft,
            HeaderForm::Draft03,
            HeaderForm::XRateLimit,
        ]);
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
