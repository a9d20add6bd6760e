//! What works, but hardly as it was meant.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::duration::HumanDuration;
use super::lower::{LimitTable, LoweredRoute, Lowering, ParsedFiles};
use super::schema::{AccountSource, Gateway, LogAccount, OnDenied, Treatment};
use super::settings::Listener;
use super::until::Until;
use super::yaml::Spanned;
use crate::limit::{Algorithm, Mode};
use crate::proxy::Server;
use crate::rules::{KeySource, Limit, Missing, RouteMatcher, SpendWhen};

/// With a longer period, a limit remembers for longer than anybody keeps a gateway's store.
const LONGEST_PERIOD: Duration = Duration::from_secs(366 * 24 * 3600);

/// A greater burst lets through more at once than a gateway forwards in minutes.
const GREATEST_BURST: u64 = 1_000_000;

/// Percent by which rounding may change a rate before it is worth a word.
const ROUNDING_PERCENT: u128 = 1;

/// Reports everything that is doubtful.
pub(super) fn all(
    lowering: &mut Lowering<'_>,
    written: &ParsedFiles,
    table: &LimitTable,
    routes: &[LoweredRoute],
    listen: &[Listener],
) {
    trusted_by_all(lowering, &written.gateway);
    own_listeners(lowering, &written.gateway, listen);
    logged_secrets(lowering, &written.gateway);
    for entry in &table.entries {
        if !entry.used && entry.written.is_some() {
            lowering
                .warn(entry.name.span, "no route uses this limit")
                .help("list it under a route's `limits`, or under `defaults`");
        }
        if entry.used && entry.is_nowhere() {
            let message = format!(
                "nothing defines or overrides \"{}\", so it counts nobody",
                entry.name.value
            );
            let hint = format!("define it in {}, or leave it out", table.file);
            let nearest = lowering.suggest(&entry.name, table.span());
            let help = match nearest.filter(|it| it.ends_with('?')) {
                Some(question) => format!("{question} {hint}"),
                None => hint,
            };
            lowering.warn(entry.name.span, message).help(help);
        }
        let rounds = entry.algorithm == Ok(Algorithm::Gcra);
        if let Some(limit) = &entry.written {
            parameters(lowering, limit.burst, limit.count, limit.period, rounds);
        }
        for overriding in &entry.overrides {
            let it = &overriding.written;
            parameters(lowering, it.burst, it.count, it.period, rounds);
            ended(lowering, it.until);
        }
    }
    counted_twice(lowering, routes);
    passable(lowering, routes);
    shadowed(lowering, routes);
    unused_upstreams(lowering, &written.gateway);
    unused_decoys(lowering, &written.gateway);
}

fn trusted_by_all(lowering: &mut Lowering<'_>, gateway: &Gateway) {
    let proxies = gateway
        .client_address
        .iter()
        .filter_map(|it| it.trusted_proxies.as_ref());
    for proxy in proxies.flatten().filter(|it| it.value.ends_with("/0")) {
        lowering
            .warn(proxy.span, "every client may claim any address")
            .help("name only the networks of your own proxies");
    }
}

/// Servers that are the gateway itself: each request would come back until connections run out.
fn own_listeners(lowering: &mut Lowering<'_>, gateway: &Gateway, listen: &[Listener]) {
    let upstreams = gateway.upstreams.0.iter();
    let servers = upstreams.filter_map(|(_, it)| it.servers.as_ref());
    for written in servers.flat_map(|it| &it.value) {
        let uri = written.value.parse().ok();
        let Some(server) = uri.and_then(|uri| Server::try_from(&uri).ok()) else {
            continue;
        };
        if let Some(own) = listen.iter().find(|it| is_reached_by(it.address, &server)) {
            let message = format!("the gateway itself listens there, on {}", own.address);
            lowering
                .warn(written.span, message)
                .help("requests would go round and round; name the app's own address");
        }
    }
}

/// Secrets that are written into the log.
fn logged_secrets(lowering: &mut Lowering<'_>, gateway: &Gateway) {
    let account = gateway.log.as_ref().and_then(|log| log.account);
    if account != Some(LogAccount::Plain) {
        return;
    }
    for source in gateway.account.iter().flat_map(|it| &it.value) {
        if matches!(
            source.value,
            AccountSource::Bearer(_) | AccountSource::Cookie(_)
        ) {
            lowering
                .warn(source.span, "the log shows this secret to all who read it")
                .help("leave out `log.account: plain`, or name accounts by something else");
        }
    }
}

/// Whether a server is certainly what listens on an address.
fn is_reached_by(address: SocketAddr, server: &Server) -> bool {
    let (host, port) = server.endpoint();
    let host: Option<IpAddr> = match host {
        "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        host => host.parse().ok(),
    };
    let meets = |host: IpAddr| {
        let here = host.is_loopback() || host.is_unspecified();
        host == address.ip()
            || (here && address.ip().is_unspecified())
            || (host.is_unspecified() && address.ip().is_loopback())
    };
    port == address.port() && host.is_some_and(meets)
}

/// Parameters that limit nothing, or not what they say.
fn parameters(
    lowering: &mut Lowering<'_>,
    burst: Option<Spanned<u64>>,
    count: Option<Spanned<u64>>,
    period: Option<Spanned<HumanDuration>>,
    rounds: bool,
) {
    if let Some(burst) = burst.filter(|it| it.value > GREATEST_BURST) {
        let message = format!("a burst of {} limits nothing", burst.value);
        lowering.warn(burst.span, message).help(format!(
            "so much passes at once; choose at most {GREATEST_BURST}"
        ));
    }
    let Some(period) = period else { return };
    if period.value.0 > LONGEST_PERIOD {
        let message = format!("a period of {} outlasts every store", period.value);
        lowering
            .warn(period.span, message)
            .help("when the store forgets, everybody starts anew; choose at most 366d");
    }
    if let Some(count) = count.filter(|_| rounds) {
        rounding(lowering, count, period);
    }
}

/// Overrides that are there for nothing.
fn ended(lowering: &mut Lowering<'_>, until: Option<Spanned<Until>>) {
    if let Some(until) = until.filter(|it| it.value.0 <= lowering.now) {
        let message = format!("this override ended at {}", until.value);
        lowering
            .warn(until.span, message)
            .help("it does not apply any more; remove it, or let it end later");
    }
}

/// The emission interval has whole nanoseconds; a very high rate is rounded up to fit.
fn rounding(lowering: &mut Lowering<'_>, count: Spanned<u64>, period: Spanned<HumanDuration>) {
    let nanos = period.value.0.as_nanos();
    let Some(interval) = nanos
        .checked_div(u128::from(count.value))
        .filter(|it| *it > 0)
    else {
        return;
    };
    let lost = nanos - interval * u128::from(count.value);
    if lost * 100 > nanos * ROUNDING_PERCENT {
        let percent = lost * 100 / (nanos - lost);
        let message = format!("this rate is rounded up by {percent}%");
        lowering
            .warn(count.span, message)
            .help("units come back at intervals of whole nanoseconds; lower the count");
    }
}

/// Limits that a route takes from twice for the same thing, which its clients see listed twice.
fn counted_twice(lowering: &mut Lowering<'_>, routes: &[LoweredRoute]) {
    for route in routes {
        let mut seen = HashSet::new();
        let plain = route.limits.iter().flatten().filter(|it| {
            // What a response costs beside that may well be counted by the same limit.
            it.kind == Mode::CheckAndSpend && it.spend == SpendWhen::Always
        });
        for usage in plain {
            let name = usage.limit.name();
            if !seen.insert(name) {
                lowering
                    .warn(route.span, format!("\"{name}\" counts each request twice"))
                    .help("list it once, with a `cost` if that is meant");
            }
        }
    }
}

/// Routes whose every limit is skipped for a client that leaves something out.
fn passable(lowering: &mut Lowering<'_>, routes: &[LoweredRoute]) {
    for route in routes {
        let complete = route.limits.iter().all(Result::is_ok);
        // What is switched off or never denies stops nobody.
        let denying = route.limits.iter().flatten().filter(|it| it.kind.checks());
        let limits: Vec<&Limit> = denying.map(|it| &*it.limit).collect();
        let matcher = route.matcher.as_ref().ok();
        let Some(matcher) = matcher.filter(|_| complete && !limits.is_empty()) else {
            continue;
        };
        let ways: Option<Vec<String>> = limits.iter().map(|it| way_around(it, matcher)).collect();
        if let Some(ways) = ways {
            let without: HashSet<String> = ways.into_iter().collect();
            let mut without: Vec<String> = without.into_iter().collect();
            without.sort();
            let message = format!(
                "a client passes unlimited without {}",
                without.join(" and ")
            );
            lowering
                .warn(route.span, message)
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
        KeySource::Path(name) if !matcher.path.capture_names().any(|it| it == name) => {
            Some(source.to_string())
        }
        KeySource::Domain if matcher.host.is_none() => {
            Some("a registrable domain as host".to_owned())
        }
        _ => None,
    })
}

/// Routes that match the very same requests as an earlier one.
fn shadowed(lowering: &mut Lowering<'_>, routes: &[LoweredRoute]) {
    let mut first: HashMap<String, &LoweredRoute> = HashMap::new();
    for route in routes {
        let Ok(matcher) = &route.matcher else {
            continue;
        };
        if let Some(earlier) = first.get(&alike(matcher)) {
            let message = format!(
                "this route is never taken: \"{}\" matches the same",
                earlier.name
            );
            lowering
                .warn(route.span, message)
                .help("of equal routes the first one wins");
        } else {
            first.insert(alike(matcher), route);
        }
    }
}

/// The same text for matchers that match the same requests.
fn alike(matcher: &RouteMatcher) -> String {
    let mut methods: Vec<&str> = matcher.methods.iter().map(http::Method::as_str).collect();
    methods.sort_unstable();
    methods.dedup();
    let mut headers: Vec<String> = matcher.headers.iter().map(|it| format!("{it:?}")).collect();
    headers.sort_unstable();
    format!(
        "{:?} {:?} {methods:?} {headers:?}",
        matcher.host,
        matcher.path.form()
    )
}

fn unused_upstreams(lowering: &mut Lowering<'_>, gateway: &Gateway) {
    let routes = gateway.routes.iter().map(|it| it.upstream.as_str());
    let diverted = treatments(gateway).filter_map(|it| match it {
        Treatment::Divert(name) => Some(name.as_str()),
        _ => None,
    });
    let used: HashSet<&str> = routes.chain(diverted).collect();
    for (name, _) in &gateway.upstreams.0 {
        if !used.contains(name.as_str()) {
            lowering.warn(name.span, "nothing uses this upstream");
        }
    }
}

fn unused_decoys(lowering: &mut Lowering<'_>, gateway: &Gateway) {
    let inherited = gateway
        .defaults
        .iter()
        .filter_map(|it| it.on_denied.as_ref());
    let own = gateway.routes.iter().filter_map(|it| it.on_denied.as_ref());
    let on_routes = inherited.chain(own).filter_map(|it| decoy_of(it));
    let of_the_banned = treatments(gateway).filter_map(|it| match it {
        Treatment::Shadow(name) => Some(name.as_str()),
        _ => None,
    });
    let used: HashSet<&str> = on_routes.chain(of_the_banned).collect();
    for (name, _) in gateway.decoys.iter().flat_map(|it| &it.value.0) {
        if !used.contains(name.as_str()) {
            lowering
                .warn(name.span, "nothing uses this decoy")
                .help(format!(
                    "say `on_denied: {{shadow: {}}}` on a route or a ban",
                    name.value
                ));
        }
    }
}

/// What the banned and the blocked get.
fn treatments(gateway: &Gateway) -> impl Iterator<Item = &Treatment> {
    let bans = gateway.bans.iter().flat_map(|it| &it.value.0);
    let bans = bans.filter_map(|(_, ban)| ban.on_denied.as_ref());
    let block = gateway.block.iter().filter_map(|it| it.on_denied.as_ref());
    bans.chain(block).map(|it| &it.value)
}

fn decoy_of(on_denied: &OnDenied) -> Option<&str> {
    match on_denied {
        OnDenied::Shadow(name) => Some(name),
        OnDenied::Reject(_) => None,
    }
}
