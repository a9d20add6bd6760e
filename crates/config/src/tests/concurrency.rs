//! Limits on requests in flight beside priorities and what else is configured; their own keys have
//! their tests beside them.

use std::time::Duration;

use weir_limit::Priority;
use weir_rules::Enforcement;

use super::*;

fn gateway(upstream: &str, more: &str) -> Folder {
    let gateway = format!(
        "{more}\nupstreams:\n  app: {{servers: [\"http://a:1\"]{upstream}}}\n\
         routes:\n  - {{match: {{path: \"/*\"}}, upstream: app, limits: [], priority: high}}\n"
    );
    Folder::with(&[("gateway.yaml", &gateway)])
}

#[test]
fn nothing_is_limited_unless_it_is_asked_for_and_priorities_alone_are_warned_of() {
    let folder = gateway("", "");
    assert!(folder.settings().upstreams[0].concurrency.is_none());
    let found = folder.findings();
    assert!(found.contains("priorities make no difference"), "{found}");
    assert!(found.contains("`concurrency: adaptive`"), "{found}");
}

#[test]
fn a_limit_is_that_of_its_upstream_and_nothing_is_warned_of_beside_a_priority() {
    let settings = gateway(", concurrency: {limit: 8, max_wait: 1s}", "").settings();
    assert!(settings.warnings.is_empty(), "{}", settings.warnings);
    assert_eq!(settings.routes[0].priority, Priority::High);
    let limited = settings.upstreams[0].concurrency.unwrap();
    assert_eq!(limited.bounds.max.get(), 8);
    assert_eq!(limited.max_wait, Some(Duration::from_secs(1)));
}

#[test]
fn priorities_by_accounts_need_accounts() {
    let found = gateway(
        ", concurrency: adaptive",
        "priorities: {low: {accounts: [acme]}}",
    )
    .findings();
    assert!(found.contains("no request names an account"), "{found}");
    let found = gateway(
        ", concurrency: adaptive",
        "priorities: {low: {addresses: [192.0.2.0/24]}, critical: {addresses: [10.0.0.1]}}",
    )
    .findings();
    assert_eq!(found, "0 errors, 0 warnings");
}

#[test]
fn a_gateway_that_is_late_sheds_nothing_unless_it_is_asked_to() {
    let overload = |written: &str| {
        let settings = gateway("", written).settings();
        let overload = settings.shedding.overload;
        overload.map(|overload| (overload.max_delay.as_millis(), overload.enforcement))
    };
    assert_eq!(overload(""), None);
    assert_eq!(overload("overload: {}"), Some((50, Enforcement::FULL)));
    let dry = Some((20, Enforcement::NONE));
    assert_eq!(overload("overload: {max_delay: 20ms, enforce: false}"), dry);
    assert_eq!(overload("overload: {max_delay: 20ms}\nenforce: false"), dry);
    let found = gateway("", "overload: {}").findings();
    assert_eq!(found, "0 errors, 0 warnings");
}

/// A body that is kept back would keep a slot from others.
#[test]
fn bodies_are_read_ahead_where_requests_in_flight_are_limited_unless_that_is_turned_off() {
    let of = |upstream: &str| {
        let settings = gateway(upstream, "priorities: {}").settings();
        let of_route = settings.routes[0].request_buffering.is_some();
        (settings.upstreams[0].request_buffering.is_some(), of_route)
    };
    assert_eq!(of(""), (false, false));
    assert_eq!(of(", concurrency: 8"), (true, true));
    assert_eq!(
        of(", concurrency: 8, request_buffering: off"),
        (false, false)
    );
}
