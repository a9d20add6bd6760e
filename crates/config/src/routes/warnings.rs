//! Routes that work, but hardly as they were meant, and what no route uses.

use std::collections::{HashMap, HashSet};

use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method, Uri};
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Algorithm, Mode, Quota, WaitForm};
use weir_middleware::{ClientIdentity, HeaderForm, LocalResponse, Redirect};
use weir_rules::{
    HostPattern, KeySource, Limit, Missing, PathRegex, RequestAttributes, RouteId, RouteMatcher,
    RouteTable, SpendWhen, ValuePattern,
};
use weir_yaml::Lowering;

use super::LoweredRoute;
use super::machine_clients::warn_of_machine_clients;
use super::upstreams::warn_of_loops;
use crate::gateway::listen::Listener;
use crate::gateway::schema::Gateway;
use crate::named::Named;
use crate::settings::Route;

/// A burst that may have been chosen without a thought of clients that wait whole seconds.
const SMALL_BURST: u64 = 4;

/// Reports what is doubtful about routes, and about what they could refer to by name.
pub(crate) fn warn_of_routes(
    cx: &mut Lowering<'_>,
    gateway: &Gateway,
    named: &Named<'_>,
    routes: &[LoweredRoute],
    listen: &[Listener],
) {
    warn_of_loops(cx, gateway, listen);
    warn_of_double_counting(cx, routes);
    warn_of_no_limits(cx, gateway);
    warn_of_unlimited(cx, routes);
    warn_of_whole_seconds(cx, routes);
    warn_of_machine_clients(cx, routes);
    warn_of_unreachable(cx, routes);
    warn_of_lone_path(cx, gateway, routes);
    warn_of_redirect_loops(cx, routes);
    named.warn_of_unused(cx, gateway);
}

/// Limits that a route takes from twice for the same thing, which its clients see listed twice.
fn warn_of_double_counting(cx: &mut Lowering<'_>, routes: &[LoweredRoute]) {
    for route in routes {
        let mut seen = HashSet::new();
        let plain = route.limits.iter().flatten().filter(|usage| {
            // What a response costs beside that may well be counted by the same limit.
            usage.mode == Mode::CheckAndSpend && usage.spend == SpendWhen::Always
        });
        for usage in plain {
            let name = usage.limit.name();
            if !seen.insert(name) {
                cx.warn(route.span, format!("\"{name}\" counts each request twice"))
                    .help("list it once, with a `cost` if that is meant");
            }
        }
    }
}

/// Routes that forward everything because nobody said otherwise.
fn warn_of_no_limits(cx: &mut Lowering<'_>, gateway: &Gateway) {
    let defaults = gateway.defaults.as_ref();
    if defaults.is_some_and(|defaults| defaults.limits.is_some()) {
        return;
    }
    for route in &gateway.routes.value {
        let decided = gateway.decide.is_some() && !route.has_target();
        let unlimited = (route.upstream.is_some() || decided) && route.limits.is_none();
        if unlimited && cx.sources.key_in_error(route.span, &["limits"]).is_none() {
            cx.warn(route.span, "no limit applies to this route").help(
                "list its `limits`, or those of all routes under `defaults`; `[]` if none is meant",
            );
        }
    }
}

/// Routes whose every limit is skipped for a client that leaves something out.
fn warn_of_unlimited(cx: &mut Lowering<'_>, routes: &[LoweredRoute]) {
    for route in routes {
        let complete = route.limits.iter().all(Result::is_ok);
        // A limit that is switched off or never denies stops no client.
        let denying = route
            .limits
            .iter()
            .flatten()
            .filter(|usage| usage.mode.checks());
        let limits: Vec<&Limit> = denying.map(|usage| &*usage.limit).collect();
        let matcher = route.matcher.as_ref().ok();
        let Some(matcher) = matcher.filter(|_| complete && !limits.is_empty()) else {
            continue;
        };
        let ways: Option<Vec<String>> = limits
            .iter()
            .map(|limit| way_around(limit, matcher))
            .collect();
        if let Some(ways) = ways {
            let without: HashSet<String> = ways.into_iter().collect();
            let mut without: Vec<String> = without.into_iter().collect();
            without.sort();
            let message = format!(
                "a client passes unlimited without {}",
                without.join(" and ")
            );
            cx.warn(route.span, message)
                .help("add a limit per address, or say `missing: deny`");
        }
    }
}

/// Limits whose units come back faster than clients that wait for whole seconds can take them.
fn warn_of_whole_seconds(cx: &mut Lowering<'_>, routes: &[LoweredRoute]) {
    let mut seen = HashSet::new();
    for route in routes {
        let tells_seconds = |settings: &Route| {
            let policy = &settings.policy;
            !policy.on_denied.looks_real()
                && policy.delay.is_none()
                && !policy.header_forms.contains(HeaderForm::RetryAfterMs)
        };
        if !route.settings.as_ref().is_ok_and(tells_seconds) {
            continue;
        }
        for usage in route.limits.iter().flatten() {
            let quota = usage.limit.quota().filter(|_| usage.mode.checks());
            let is_small = |quota: &Quota| {
                quota.algorithm() == Algorithm::Gcra && quota.burst().get() <= SMALL_BURST
            };
            let name = usage.limit.name();
            let Some(quota) = quota.filter(is_small) else {
                continue;
            };
            if let Some((message, remedy)) = lost_to_whole_seconds(name, &quota)
                && seen.insert(name)
            {
                cx.warn(route.span, message).help(remedy);
            }
        }
    }
}

/// What clients lose that wait out `Retry-After`, and the remedy: one client, as more units come
/// back in a second than the bucket holds, or several that share the bucket, as it keeps too few of
/// them for a client that is late.
fn lost_to_whole_seconds(name: &str, quota: &Quota) -> Option<(String, String)> {
    let second = Nanos::from_secs(1);
    let comes_back = second
        .get()
        .div_ceil(quota.emission_interval().get().max(1));
    // With one unit more a bucket keeps a second of them behind the one that it gives.
    let enough = comes_back + 1;
    let burst = quota.burst();
    if quota.tolerance() < second {
        let message = format!(
            "a client that waits out Retry-After gets {burst} a second of \"{name}\", of which \
             {comes_back} come back in that time"
        );
        let remedy = format!(
            "Retry-After has whole seconds: give it a `burst` of {enough}, add `retry-after-ms` to \
             `ratelimit_headers`, or say `on_denied: delay`"
        );
        return Some((message, remedy));
    }
    (!WaitForm::Seconds.can_order(quota, 1)).then(|| {
        let message = format!(
            "clients that share a bucket of \"{name}\" are all told the same second to come back, \
             as it keeps less than a second of units"
        );
        let remedy = format!(
            "for a bucket that clients share, give it a `burst` of {enough}, or add \
             `retry-after-ms` to `ratelimit_headers`"
        );
        (message, remedy)
    })
}

/// What a client leaves out so that a limit does not count it.
fn way_around(limit: &Limit, matcher: &RouteMatcher) -> Option<String> {
    if limit.quota().is_none() {
        return Some(format!("an override of \"{}\"", limit.name()));
    }
    if limit.missing() == Missing::Deny {
        return None;
    }
    limit.per().iter().find_map(|source| match source {
        KeySource::Account => Some("an account".to_owned()),
        KeySource::Header(name) if requires(&matcher.headers, name.as_str()) => None,
        KeySource::Query(name) if requires(&matcher.query, name) => None,
        KeySource::Header(_) | KeySource::Cookie(_) | KeySource::Query(_) => {
            Some(source.to_string())
        }
        KeySource::Path(name) if matcher.may_lack(name) => Some(source.to_string()),
        KeySource::Domain if matcher.host.is_none() => {
            Some("a registrable domain as host".to_owned())
        }
        _ => None,
    })
}

/// Whether only requests match that have a value of this name which is not empty.
fn requires<N: AsRef<str>>(conditions: &[(N, ValuePattern)], name: &str) -> bool {
    let mut own = conditions
        .iter()
        .filter(|(other, _)| other.as_ref() == name);
    own.any(|(_, pattern)| {
        !matches!(pattern, ValuePattern::Absent) && !pattern.accepts([""].iter())
    })
}

/// Routes that match the very same requests as an earlier one.
fn warn_of_unreachable(cx: &mut Lowering<'_>, routes: &[LoweredRoute]) {
    let mut first: HashMap<String, &LoweredRoute> = HashMap::new();
    for route in routes {
        let Ok(matcher) = &route.matcher else {
            continue;
        };
        if let Some(earlier) = first.get(&match_key(matcher)) {
            let message = format!(
                "this route is never taken: \"{}\" matches the same",
                earlier.name
            );
            cx.warn(route.span, message)
                .help("of equal routes the first one wins");
        } else {
            first.insert(match_key(matcher), route);
        }
    }
}

/// The only route, if it forwards a part of the paths: the others get 404. Whoever captures segments
/// knows that.
fn warn_of_lone_path(cx: &mut Lowering<'_>, gateway: &Gateway, routes: &[LoweredRoute]) {
    let all = &gateway.routes;
    if cx.sources.child_in_error(all.span).is_some() {
        return;
    }
    let ([route], [written]) = (routes, all.value.as_slice()) else {
        return;
    };
    let Some(matcher) = route
        .matcher
        .as_ref()
        .ok()
        .filter(|_| written.upstream.is_some())
    else {
        return;
    };
    let path = matcher.path.to_string();
    match path.strip_suffix("/*") {
        Some("") => {}
        _ if path.contains('{') => {}
        Some(_) => {
            let message = format!("paths outside of `{path}` have no route, and get 404");
            cx.warn(route.span, message).help(
                "add a route for `/*`; with `response: {status: 404}` if no other path is meant",
            );
        }
        None => {
            let message = format!("`{path}` matches this path alone; all others get 404");
            let below = path.trim_end_matches('/');
            let help = format!("for what is below it, write `{below}/*`; for everything, `/*`");
            cx.warn(route.span, message).help(help);
        }
    }
}

/// Redirects to a path that takes the same route again.
fn warn_of_redirect_loops(cx: &mut Lowering<'_>, routes: &[LoweredRoute]) {
    let matchers = routes.iter().map(|route| route.matcher.clone().ok());
    let matchers: Option<Vec<RouteMatcher>> = matchers.collect();
    let Some(matchers) = matchers else { return };
    let table = RouteTable::new(matchers);
    for (index, route) in routes.iter().enumerate() {
        if let Ok(settings) = &route.settings
            && let Some(LocalResponse::Redirect(redirect)) = &settings.action.response
            && leads_back(redirect, settings, &table) == Some(RouteId(index))
        {
            cx.warn(route.span, "the redirect leads to this route again")
                .help(
                    "browsers give up; match fewer paths, or lead elsewhere (for HTTPS, say \
                     `redirect_to_https` on the listener)",
                );
        }
    }
}

/// The route that a client takes twice, as an example shows.
fn leads_back(redirect: &Redirect, route: &Route, table: &RouteTable) -> Option<RouteId> {
    let matcher = &route.matcher;
    let host = match &matcher.host {
        Some(HostPattern::Exact(host)) => &**host,
        _ => "host.invalid",
    };
    let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_str(host).ok()?)]);
    let uri: Uri = matcher.path.example().parse().ok()?;
    let method = matcher.methods.first().unwrap_or(&Method::GET);
    let found = table.find(method, &uri, &headers)?;
    let rewritten = route.action.rewrite.as_ref();
    let rewritten = rewritten.and_then(|rewrite| rewrite.rewritten(&uri));
    let location = redirect.location(&RequestAttributes {
        method,
        uri: rewritten.as_ref().unwrap_or(&uri),
        headers: &headers,
        client: ClientIdentity::UNKNOWN,
        secure: false,
        account: None,
        route: "",
        captures: &found.captures,
        now: Timestamp::default(),
    })?;
    let location: Uri = location.to_str().ok()?.parse().ok()?;
    if location.host().is_some_and(|other| other != host) {
        return None;
    }
    let target: Uri = location.path_and_query()?.as_str().parse().ok()?;
    let keeps_method = matches!(redirect.status().as_u16(), 307 | 308);
    let method = if keeps_method { method } else { &Method::GET };
    let again = table.find(method, &target, &headers)?;
    (again.id == found.id).then_some(again.id)
}

/// The same text for matchers that match the same requests.
fn match_key(matcher: &RouteMatcher) -> String {
    let mut methods: Vec<&str> = matcher.methods.iter().map(Method::as_str).collect();
    methods.sort_unstable();
    methods.dedup();
    let headers = matcher.headers.iter();
    let headers = headers.map(|(name, pattern)| format!("{name}{pattern}"));
    let query = matcher.query.iter();
    let query = query.map(|(name, pattern)| format!("?{name}{pattern}"));
    let mut conditions: Vec<String> = headers.chain(query).collect();
    conditions.sort_unstable();
    format!(
        "{:?} {:?} {:?} {methods:?} {conditions:?}",
        matcher.host,
        matcher.path.form(),
        matcher.path_regex.as_ref().map(PathRegex::as_str),
    )
}
