//! Explains which limits apply to the request, and from which buckets they take.

use std::fmt::{self, Write};
use std::time::Duration;

use http::HeaderMap;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use weir_config::{Route, Settings, Until};
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Mode, Quota, Transaction};
use weir_middleware::OnDenied;
use weir_rules::{
    Admission, Cost, Estimate, KeySource, Limit, LimitMatch, LimitUse, MeasuredCost, Override,
    OverrideOrigin, OverrideScope, PendingCost, RequestAttributes, SpendWhen,
};
use weir_telemetry::Disposition;
use weir_yaml::{ByteSize, HumanDuration};

use super::decision::FirstDecision;
use crate::app::wording::{describe_quota, in_words, reach, write_enforcement};

pub(super) fn write_limits(
    out: &mut String,
    settings: &Settings,
    route: &Route,
    facts: &RequestAttributes<'_>,
    decision: &FirstDecision,
) -> fmt::Result {
    let body_bytes = || body_bytes(facts.headers);
    if (route.policy).exempts(facts.method, facts.headers, body_bytes) {
        return writeln!(out, "\nlimits: none counts a preflight of an allowed page");
    }
    if route.policy.limits.is_empty() {
        writeln!(out, "\nlimits: none")?;
    }
    let hook = route.policy.hook.as_deref();
    let caveat = hook.and_then(|hook| hook.caveat(facts.method, facts.headers, &body_bytes));
    if let Some(caveat) = caveat {
        writeln!(out, "\n{caveat}")?;
    }
    let limits: Vec<_> = route.policy.matches(facts, body_bytes).collect();
    let mut denying = limits.iter().filter(|(_, found)| is_denial(found));
    let denying = denying.next().map(|(usage, _)| usage.limit.name());
    for (index, (usage, found)) in limits.iter().enumerate() {
        match (found, denying) {
            (LimitMatch::Counted { .. }, Some(denying)) => {
                let name = usage.limit.name();
                writeln!(out, "\nlimit {name}: is not asked, as {denying} denies")?;
            }
            _ => {
                write_limit(out, settings, route, (usage, found), facts)?;
                write_hopeless(out, route, (decision.of_limit(index), decision))?;
            }
        }
    }
    Ok(())
}

/// Whether it denies by itself, so that no bucket is asked.
fn is_denial(found: &LimitMatch<'_>) -> bool {
    matches!(found, LimitMatch::Missing { acts: true, .. })
}

/// Writes that a limit denies the request although nobody has taken anything, as one does that a
/// request costs more than its bucket ever holds.
fn write_hopeless(
    out: &mut String,
    route: &Route,
    (disposition, decision): (Option<Disposition>, &FirstDecision),
) -> fmt::Result {
    let denies = match disposition {
        Some(Disposition::Denied) => "denies",
        Some(Disposition::WouldDeny) => "would deny",
        _ => return Ok(()),
    };
    write!(out, "  {denies} this request even while its bucket is full")?;
    match &route.policy.on_denied {
        OnDenied::Reject(rejection) if disposition == Some(Disposition::Denied) => {
            writeln!(
                out,
                ", with {}",
                rejection.status_after(decision.told_wait())
            )
        }
        _ => writeln!(out),
    }
}

pub(super) fn write_limit(
    out: &mut String,
    settings: &Settings,
    route: &Route,
    (usage, found): (&LimitUse, &LimitMatch<'_>),
    facts: &RequestAttributes<'_>,
) -> fmt::Result {
    let name = usage.limit.name();
    match *found {
        LimitMatch::Off => writeln!(out, "\nlimit {name}: is switched off"),
        LimitMatch::Counted {
            ref admission,
            overridden,
        } => {
            writeln!(out, "\nlimit {name}: applies")?;
            writeln!(out, "  is counted per {}", in_words(usage.limit.per()))?;
            write_bucket(out, settings, usage, admission)?;
            write_override(out, &usage.limit, overridden)?;
            write_ended(out, usage, facts, overridden)?;
            write_enforcement(out, usage.enforcement, &admission.transaction.key)
        }
        LimitMatch::Exempt => {
            writeln!(
                out,
                "\nlimit {name}: has only overrides, and none that holds here"
            )?;
            write_ended(out, usage, facts, None)
        }
        LimitMatch::Skipped(source) => {
            writeln!(
                out,
                "\nlimit {name}: skipped, as the request has no {source}"
            )
        }
        LimitMatch::Missing {
            source,
            acts: false,
        } => writeln!(
            out,
            "\nlimit {name}: would deny, as the request has no {source}\n  is enforced on {}",
            reach(usage.enforcement)
        ),
        LimitMatch::Missing { source, acts: true } => {
            writeln!(
                out,
                "\nlimit {name}: denies, as the request has no {source}"
            )?;
            // Waiting would not help, so the status is not 429.
            match route.policy.on_denied.looks_real() {
                false => writeln!(out, "  with 403 Forbidden"),
                true => Ok(()),
            }
        }
    }
}

fn write_bucket(
    out: &mut String,
    settings: &Settings,
    usage: &LimitUse,
    admission: &Admission,
) -> fmt::Result {
    let transaction = &admission.transaction;
    let quota = &transaction.quota;
    let cost = cost(admission.estimate);
    writeln!(out, "  bucket {}", transaction.key)?;
    if quota.is_in_flight() {
        writeln!(out, "  in_flight: at most {} at once", quota.burst())?;
        return write_use(out, usage, admission);
    }
    if quota.algorithm().is_windowed() {
        write_window(out, transaction, &cost)?;
        return write_use(out, usage, admission);
    }
    write!(out, "  burst {}", quota.burst())?;
    if let Some(written) = settings.parameters_of(usage.limit.name(), quota) {
        if let Some(count) = written.count {
            write!(out, ", count {count}")?;
        }
        if let Some(period) = written.period {
            write!(out, ", period {period}")?;
        }
    }
    writeln!(out, ", cost {cost}")?;
    write_pace(out, quota)?;
    write_use(out, usage, admission)
}

fn write_window(out: &mut String, transaction: &Transaction, cost: &str) -> fmt::Result {
    let quota = transaction.quota;
    let algorithm = quota.algorithm();
    writeln!(
        out,
        "  {}: {}, cost {cost}",
        algorithm.name(),
        describe_quota(quota)
    )?;
    let denied = match algorithm.counts_denied() {
        true => "counted as well",
        false => "not counted",
    };
    writeln!(out, "  what it denies is {denied}")
}

fn write_pace(out: &mut String, quota: &Quota) -> fmt::Result {
    let interval = span(quota.emission_interval());
    let tolerance = span(quota.tolerance());
    writeln!(
        out,
        "  one unit comes back every {interval}; an empty bucket is full after {tolerance}"
    )?;
    if let Some(prefetch) = quota.prefetch() {
        let (units, age) = (prefetch.units(), span(prefetch.max_age()));
        writeln!(
            out,
            "  prefetched: a gateway holds at most {units} units, for {age}"
        )?;
    }
    Ok(())
}

/// The origin of an override that is in no file.
const BY_ADMIN_API: &str = "by the admin API";

fn write_override(out: &mut String, limit: &Limit, overridden: Option<&Override>) -> fmt::Result {
    let Some(overridden) = overridden else {
        return Ok(());
    };
    write!(out, "  overridden for {}", overridden.id)?;
    let why = match (
        overridden.origin,
        why(&limit.scope_of(overridden), limit.per()),
    ) {
        (OverrideOrigin::Configuration, why) => why,
        (OverrideOrigin::AdminApi, why) if why.is_empty() => BY_ADMIN_API.to_owned(),
        (OverrideOrigin::AdminApi, why) => format!("{why}, {BY_ADMIN_API}"),
    };
    if !why.is_empty() {
        write!(out, " ({why})")?;
    }
    if let Some(until) = overridden.until {
        write!(out, ", until {}", Until(until))?;
    }
    match &overridden.comment {
        Some(comment) => writeln!(out, ": {comment}"),
        None => writeln!(out),
    }
}

/// Why an override applies to a subject that it does not name literally.
fn why(scope: &OverrideScope, per: &[KeySource]) -> String {
    let left_out = per.iter().rev().take(scope.left_out).rev();
    let left_out: Vec<String> = left_out.map(|source| format!("any {source}")).collect();
    let others = [(scope.network, "a network"), (scope.wildcard, "a wildcard")];
    let others = others.into_iter().filter(|(applies, _)| *applies);
    let mut all: Vec<String> = others.map(|(_, name)| name.to_owned()).collect();
    all.extend(left_out);
    all.join(", ")
}

/// Writes the override that would apply if it had not expired.
fn write_ended(
    out: &mut String,
    usage: &LimitUse,
    facts: &RequestAttributes<'_>,
    overridden: Option<&Override>,
) -> fmt::Result {
    let before_all_ends = RequestAttributes {
        now: Timestamp::default(),
        ..*facts
    };
    let LimitMatch::Counted {
        overridden: Some(ended),
        ..
    } = usage.matching(&before_all_ends, || None)
    else {
        return Ok(());
    };
    match ended.until.filter(|_| Some(ended) != overridden) {
        Some(until) => {
            let (id, until) = (&ended.id, Until(until));
            writeln!(
                out,
                "  the override for {id} ended at {until}, and does not apply"
            )
        }
        None => Ok(()),
    }
}

fn span(nanos: Nanos) -> HumanDuration {
    HumanDuration(Duration::from(nanos))
}

/// The cost of the request, as far as its head determines it.
fn cost(estimate: Estimate) -> String {
    let units = estimate.units;
    match estimate.pending {
        PendingCost::Nothing => units.to_string(),
        PendingCost::Response => format!("{units} until the response says it"),
        PendingCost::Body => format!("{units} until the size of the body is known"),
    }
}

/// The size of the body, as declared by the head.
pub(super) fn body_bytes(headers: &HeaderMap) -> Option<u64> {
    if headers.contains_key(TRANSFER_ENCODING) {
        return None;
    }
    let length = headers.get(CONTENT_LENGTH);
    length.map_or(Some(0), |length| length.to_str().ok()?.parse().ok())
}

/// Writes how this use differs from one that checks and spends at once.
fn write_use(out: &mut String, usage: &LimitUse, admission: &Admission) -> fmt::Result {
    if let Cost::Measured(measured) = &usage.cost {
        writeln!(out, "  the cost is said by {}", cost_sources(measured))?;
    }
    if let Some(to) = &usage.yields_to {
        let name = to.limit.name();
        match usage.mode == admission.mode {
            true => writeln!(
                out,
                "  would leave denials to {name}, of which no override applies"
            )?,
            false => writeln!(
                out,
                "  leaves denials to {name}, of which an override applies"
            )?,
        }
    }
    match admission.mode {
        Mode::CheckOnly => writeln!(out, "  check only: denies without room, and takes nothing")?,
        Mode::SpendOnly => writeln!(out, "  spend only: never denies, and takes what fits")?,
        _ => {}
    }
    match &usage.spend {
        SpendWhen::Always => Ok(()),
        SpendWhen::On(set) => writeln!(out, "  takes its cost when the response is {set}"),
        SpendWhen::ExceptOn(set) => {
            writeln!(out, "  gives its cost back when the response is {set}")
        }
    }
}

fn cost_sources(measured: &MeasuredCost) -> String {
    let mut ways = Vec::new();
    if !measured.response_json.is_empty() {
        let pointers = measured.response_json.iter().map(ToString::to_string);
        let pointers: Vec<_> = pointers.collect();
        ways.push(format!("{} in the response's JSON", pointers.join(" + ")));
    }
    if let Some(name) = &measured.response_trailer {
        ways.push(format!("the response's trailer {name}"));
    }
    if let Some(name) = &measured.response_header {
        ways.push(format!("the response's {name}"));
    }
    if let Some(name) = &measured.request_header {
        ways.push(format!("the request's {name}"));
    }
    if let Some(bytes) = measured.request_bytes {
        ways.push(format!("each {} of the body", ByteSize(bytes.get())));
    }
    ways.push(measured.default.to_string());
    ways.join(", or else ")
}

#[cfg(test)]
mod tests {
    use http::header::{ACCESS_CONTROL_REQUEST_METHOD, HeaderName, ORIGIN};
    use http::{HeaderMap, HeaderValue, Method};
    use weir_config::testing::Folder;

    use super::CONTENT_LENGTH;
    use crate::app::{explain, request_head};

    /// Explains a preflight with another header.
    fn explained(cors: &str, other: (HeaderName, &'static str)) -> String {
        let gateway = format!(
            "account: [{{header: x-api-key}}]\n\
             upstreams: {{app: {{servers: ['http://127.0.0.1:3000']}}}}\n\
             routes: [{{match: {{}}, upstream: app, cors: {cors}, limits: [Calls]}}]\n"
        );
        let folder = Folder::with(&[
            ("gateway.yaml", gateway.as_str()),
            (
                "limits/defaults.yaml",
                "Calls: {per: account, missing: deny, burst: 5, count: 5, period: 1h}\n",
            ),
        ]);
        let headers = [
            (ORIGIN, "https://app.example"),
            (ACCESS_CONTROL_REQUEST_METHOD, "POST"),
            other,
        ];
        let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value)));
        let uri = "/".parse().unwrap();
        let peer = "203.0.113.9".parse().unwrap();
        let request = request_head(Method::OPTIONS, uri, HeaderMap::from_iter(headers));
        explain(&folder.gateway(), (&request, peer)).unwrap()
    }

    /// A browser sends no credentials with its preflights, so the gateway denies none for that.
    #[test]
    fn a_preflight_that_is_counted_is_not_denied_for_want_of_an_account() {
        let counted = "{origins: '*', count_preflights: true}";
        let told = explained(counted, (CONTENT_LENGTH, "0"));
        let skipped = "limit Calls: skipped, as the request has no account";
        assert!(told.contains(skipped), "{told}");
    }

    /// What the app answers is not known to a configuration.
    #[test]
    fn a_preflight_of_mirrored_origins_is_counted_until_the_app_has_allowed_its_page() {
        let told = explained("mirror", (CONTENT_LENGTH, "0"));
        let skipped = "limit Calls: skipped, as the request has no account";
        let caveat = "limits leave this preflight alone once the app has let";
        assert!(told.contains(skipped) && told.contains(caveat), "{told}");
        let told = explained("mirror", (CONTENT_LENGTH, "5"));
        assert!(!told.contains(caveat), "{told}");
    }

    #[test]
    fn a_request_with_a_body_is_no_preflight_that_limits_leave_alone() {
        let told = explained("{origins: '*'}", (CONTENT_LENGTH, "0"));
        assert!(told.contains("none counts a preflight"), "{told}");
        let told = explained("{origins: '*'}", (CONTENT_LENGTH, "5"));
        let denied = "limit Calls: denies, as the request has no account";
        assert!(told.contains(denied), "{told}");
    }
}
