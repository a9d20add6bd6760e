//! Findings about the gateway itself: a configuration that was refused, a store that fails,
//! upstreams with failing servers, routes whose requests fail, proxies that nobody trusts, denials that
//! pages cannot read, certificates that are about to end, and what the rooms of features find.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use weir_config::Settings;
use weir_console::findings::{GatewayFinding, GatewayFindingKind as Kind};
use weir_telemetry::{Metrics, RouteErrors, UpstreamSample, UpstreamServerSample};
use weir_yaml::{HumanDuration, pluralized};

use crate::app::features::ROOMS;
use crate::app::reloads::Snapshot;
use crate::app::stores::Stores;

/// From how many failures in a minute on, and from which share of a route's requests on, these are
/// worth a word.
const MIN_FAILURES: u64 = 5;
const MIN_FAILED_PERCENT: u64 = 1;

/// Upper bound on routes that are named: those with the greatest share of failures.
const MAX_ROUTES: usize = 4;

const MAX_SERVERS: usize = 3;

/// Upper bound on limits that a finding names.
const MAX_LIMITS: usize = 3;

/// All of them, the worst first.
pub(super) fn all(snapshot: &Snapshot, stores: &Stores, metrics: &Metrics) -> Vec<GatewayFinding> {
    let failures = metrics.failures();
    let (_, why_refused) = metrics.last_load();
    let mut found: Vec<_> = why_refused.map(configuration).into_iter().collect();
    found.extend(store(stores.trouble(), failures.failed_store_calls));
    found.extend(snapshot.upstreams.samples().iter().filter_map(upstream));
    let of_rooms = ROOMS.iter();
    found.extend(of_rooms.flat_map(|room| room.gateway_findings(&failures)));
    found.extend(errors(&snapshot.settings, &failures.routes));
    let forwarders = snapshot.layers.forwarding.untrusted_forwarders();
    found.extend(forwarders.into_iter().map(forwarder));
    found.extend(unreadable(&snapshot.layers.forwarding.unreadable_denials()));
    let certificates = snapshot.sockets.ending_certificates();
    found.extend(certificates.into_iter().map(|(listener, left)| {
        let text = match left {
            Duration::ZERO => format!("a certificate of the listener {listener} has expired"),
            left => {
                let left = HumanDuration(Duration::from_secs(left.as_secs().max(1)));
                format!("a certificate of the listener {listener} expires in {left}")
            }
        };
        let remedy = "Renew it: a new file is loaded by itself. ACME renews without you; if it \
                      fails, the log says why";
        GatewayFinding::new(Kind::Certificate, text, remedy)
    }));
    found.sort_by_key(|finding| finding.kind);
    found
}

fn configuration(error: String) -> GatewayFinding {
    let text = "the configuration was refused, and the one before stays in force".to_owned();
    let remedy = "Correct the files, and reload them if `watch` is off";
    GatewayFinding {
        detail: Some(error),
        ..GatewayFinding::new(Kind::Configuration, text, remedy)
    }
}

fn store(unreachable: Option<String>, failed_calls: u64) -> Option<GatewayFinding> {
    let calls = usize::try_from(failed_calls).unwrap_or(usize::MAX);
    let calls = pluralized(calls, "call");
    let text = match unreachable {
        Some(why) => format!("{why}; what on_failure says is in force until it is back"),
        None if failed_calls < MIN_FAILURES => return None,
        None => format!(
            "the store failed {calls} in the last minute; on_failure decided what depended on them"
        ),
    };
    let remedy = "Look at Redis, and at what the gateway's log says of the store";
    Some(GatewayFinding::new(Kind::Store, text, remedy))
}

/// An upstream some of whose servers are out of use, or fail although they are in use.
fn upstream(sample: &UpstreamSample) -> Option<GatewayFinding> {
    let all = sample.servers.len();
    if all == 0 {
        let text = format!(
            "upstream {} has no server: its requests get 503",
            sample.name
        );
        let remedy = "Look at what the gateway's log says of its SRV records";
        return Some(GatewayFinding::new(Kind::Upstream, text, remedy));
    }
    let is_out = |server: &&UpstreamServerSample| !server.available;
    let out = sample.servers.iter().filter(is_out).count();
    let troubled: Vec<_> = sample
        .servers
        .iter()
        .filter_map(|server| Some(format!("{} ({})", server.name, server.trouble?)))
        .collect();
    let named = troubled.get(..MAX_SERVERS).unwrap_or(&troubled).join(", ");
    let more = match troubled.len().saturating_sub(MAX_SERVERS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (failing, name) = (troubled.len().checked_sub(out)?, &sample.name);
    let what = match (out, failing) {
        (0, 0) => return None,
        (0, failing) => format!("{failing} of {all} fail"),
        (out, 0) => format!("{out} of {all} get no requests"),
        (out, failing) => format!("{out} of {all} get no requests, and {failing} fail"),
    };
    let text = format!("of the servers of upstream {name}, {what}: {named}{more}");
    let remedy = "Look at the app there. Its server is used again by itself once it answers";
    Some(GatewayFinding::new(Kind::Upstream, text, remedy))
}

/// A peer that names other clients although nobody trusts it.
fn forwarder(peer: IpAddr) -> GatewayFinding {
    let text = format!(
        "{peer} names other clients in its requests, but is no trusted proxy: limits count all of \
         them as one"
    );
    let remedy = "If it is your proxy, add it to client_address.trusted_proxies; do not raise its \
                  limits. If not, a client makes these names up, and nothing need be done";
    GatewayFinding::new(Kind::Proxy, text, remedy)
}

/// Limits that denied requests of web pages, which see an error in place of the denial.
fn unreadable(limits: &[Arc<str>]) -> Option<GatewayFinding> {
    let named = limits.get(..MAX_LIMITS).unwrap_or(limits).join(", ");
    let more = match limits.len().saturating_sub(MAX_LIMITS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let text = format!(
        "{named}{more} denied requests of web pages of another origin in the last ten minutes; \
         browsers report an error of CORS in place of the denial"
    );
    let remedy = "Write `cors: mirror` under `defaults`, or on the route: pages that the app allows can \
                  then read denials";
    (!limits.is_empty()).then(|| GatewayFinding::new(Kind::Unreadable, text, remedy))
}

/// The routes of upstreams of whose requests more than a few fail.
fn errors(
    settings: &Settings,
    routes: &[(Arc<str>, RouteErrors)],
) -> impl Iterator<Item = GatewayFinding> {
    let has_upstream = |name: &str| {
        let mut routes = settings.routes.iter();
        routes.any(|route| *route.policy.name == *name && route.upstream.is_some())
    };
    let mut failing: Vec<_> = routes
        .iter()
        .filter(|(name, route)| {
            let percent = route.failed.saturating_mul(100) / route.requests.max(1);
            route.failed >= MIN_FAILURES && percent >= MIN_FAILED_PERCENT && has_upstream(name)
        })
        .collect();
    // The sort is stable, and the names are in order.
    failing.sort_by(|(_, one), (_, other)| {
        let share =
            |of: &RouteErrors, whole: &RouteErrors| of.failed.saturating_mul(whole.requests);
        share(other, one).cmp(&share(one, other))
    });
    let failing = failing.into_iter().take(MAX_ROUTES);
    failing.map(|(name, route)| {
        let text = format!(
            "{} of {} requests of route {name} in the last minute ended with a server error (5xx), \
             those that limits denied left aside",
            route.failed, route.requests
        );
        let remedy = "Look at the app: the access log has `upstream_status` for what it answered, \
                      or `upstream_error` if it did not answer";
        GatewayFinding::new(Kind::Errors, text, remedy)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str, available: bool, trouble: Option<&'static str>) -> UpstreamServerSample {
        UpstreamServerSample {
            name: name.into(),
            in_flight: 0,
            available,
            trouble,
            ejections: 0,
        }
    }

    fn text(servers: Vec<UpstreamServerSample>) -> Option<String> {
        let sample = UpstreamSample {
            name: "app".into(),
            servers,
            retries: 0,
        };
        upstream(&sample).map(|finding| finding.text)
    }

    #[test]
    fn servers_that_are_out_and_those_that_fail_in_use_are_told_apart() {
        assert_eq!(text(vec![server("a:1", true, None)]), None);
        let both = text(vec![
            server("a:1", false, Some("its health checks fail")),
            server("b:1", true, Some("it cannot be connected to")),
            server("c:1", true, None),
        ]);
        let expected = "of the servers of upstream app, 1 of 3 get no requests, and 1 fail: a:1 \
                        (its health checks fail), b:1 (it cannot be connected to)";
        assert_eq!(both.as_deref(), Some(expected));
        let many = ["a", "b", "c", "d", "e"].map(|name| server(name, false, Some("x")));
        let expected = "of the servers of upstream app, 5 of 5 get no requests: a (x), b (x), c (x) \
                        and 2 more";
        assert_eq!(text(many.into()).as_deref(), Some(expected));
    }

    #[test]
    fn limits_whose_denials_pages_cannot_read_are_named_with_a_remedy() {
        assert_eq!(unreadable(&[]), None);
        let found = unreadable(&["A", "B", "C", "D"].map(Into::into)).unwrap();
        assert!(
            found
                .text
                .starts_with("A, B, C and 1 more denied requests of web pages")
        );
        assert!(found.remedy.contains("`cors: mirror`"));
    }

    #[test]
    fn a_store_that_fails_calls_is_told_of_though_it_is_in_reach() {
        assert_eq!(store(None, MIN_FAILURES - 1), None);
        let failing = store(None, MIN_FAILURES).unwrap();
        assert!(failing.text.starts_with("the store failed 5 calls"));
        let gone = store(Some("the store is out of reach".to_owned()), 0).unwrap();
        assert!(
            gone.text
                .starts_with("the store is out of reach; what on_failure says")
        );
    }
}
