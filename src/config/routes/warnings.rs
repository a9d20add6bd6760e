//! Routes that work, but hardly as they were meant, and what no route uses.

use std::collections::{HashMap, HashSet};

use super::LoweredRoute;
use super::schema::OnDenied;
use super::upstreams::warn_of_loops;
use crate::config::bans::schema::Treatment;
use crate::config::gateway::schema::Gateway;
use crate::config::lowering::Lowering;
use crate::config::settings::Listener;
use crate::config::yaml::WordOr;
use crate::limit::Mode;
use crate::rules::{KeySource, Limit, Missing, RouteMatcher, SpendWhen};

/// Reports what is doubtful about routes, upstreams and decoys.
pub(crate) fn warn_of_routes(
    cx: &mut Lowering<'_>,
    gateway: &Gateway,
    routes: &[LoweredRoute],
    listen: &[Listener],
) {
    warn_of_loops(cx, gateway, listen);
    warn_of_double_counting(cx, routes);
    warn_of_unlimited(cx, routes);
    warn_of_unreachable(cx, routes);
    unused_upstreams(cx, gateway);
    unused_decoys(cx, gateway);
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
        KeySource::Header(_) | KeySource::Cookie(_) | KeySource::Query(_) => {
            Some(source.to_string())
        }
        KeySource::Path(name)
            if !matcher
                .path
                .capture_names()
                .any(|captured| captured == name) =>
        {
            Some(source.to_string())
        }
        KeySource::Domain if matcher.host.is_none() => {
            Some("a registrable domain as host".to_owned())
        }
        _ => None,
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

/// The same text for matchers that match the same requests.
fn match_key(matcher: &RouteMatcher) -> String {
    let mut methods: Vec<&str> = matcher.methods.iter().map(http::Method::as_str).collect();
    methods.sort_unstable();
    methods.dedup();
    let mut headers: Vec<String> = matcher
        .headers
        .iter()
        .map(|header| format!("{header:?}"))
        .collect();
    headers.sort_unstable();
    format!(
        "{:?} {:?} {methods:?} {headers:?}",
        matcher.host,
        matcher.path.form()
    )
}

fn unused_upstreams(cx: &mut Lowering<'_>, gateway: &Gateway) {
    let routes = gateway.routes.iter().map(|route| route.upstream.as_str());
    let diverted = treatments(gateway).filter_map(|treatment| match treatment {
        Treatment::Divert(name) => Some(name.as_str()),
        _ => None,
    });
    let used: HashSet<&str> = routes.chain(diverted).collect();
    for (name, _) in &gateway.upstreams.0 {
        if !used.contains(name.as_str()) {
            cx.warn(name.span, "nothing uses this upstream");
        }
    }
}

fn unused_decoys(cx: &mut Lowering<'_>, gateway: &Gateway) {
    let inherited = gateway
        .defaults
        .iter()
        .filter_map(|defaults| defaults.on_denied.as_ref());
    let own = gateway
        .routes
        .iter()
        .filter_map(|route| route.on_denied.as_ref());
    let on_routes = inherited
        .chain(own)
        .filter_map(|on_denied| decoy_of(on_denied));
    let of_the_banned = treatments(gateway).filter_map(|treatment| match treatment {
        Treatment::Shadow(name) => Some(name.as_str()),
        _ => None,
    });
    let used: HashSet<&str> = on_routes.chain(of_the_banned).collect();
    for (name, _) in gateway.decoys.iter().flat_map(|decoys| &decoys.value.0) {
        if !used.contains(name.as_str()) {
            cx.warn(name.span, "nothing uses this decoy").help(format!(
                "say `on_denied: {{shadow: {}}}` on a route or a ban",
                name.value
            ));
        }
    }
}

/// What the banned and the blocked get.
fn treatments(gateway: &Gateway) -> impl Iterator<Item = &Treatment> {
    let bans = gateway.bans.iter().flat_map(|bans| &bans.value.0);
    let bans = bans.filter_map(|(_, ban)| ban.on_denied.as_ref());
    let block = gateway
        .block
        .iter()
        .filter_map(|block| block.on_denied.as_ref());
    bans.chain(block).map(|treatment| &treatment.value)
}

fn decoy_of(on_denied: &OnDenied) -> Option<&str> {
    match on_denied {
        OnDenied::Shadow(name) => Some(name),
        OnDenied::Reject(_) => None,
        OnDenied::Delay(delay) => match &delay.value {
            WordOr::More(delay) => decoy_of(delay.otherwise.as_deref()?),
            WordOr::Word(_) => None,
        },
    }
}
