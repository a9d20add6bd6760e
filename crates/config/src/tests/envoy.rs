//! Limits for Envoy's rate limit service.

use std::fs;
use std::sync::Arc;

use weir_limit::time::Timestamp;
use weir_middleware::HeaderForms;

use super::*;

const LIMITS: &str = "\
PerAddress: {per: address, burst: 20, count: 20, period: 1m}
PerNumber: {per: 'path:to_number', burst: 5, count: 5, period: 1d}
PerKey: {per: 'header:x-api-key', burst: 5, count: 5, period: 1m}
PerSession: {per: 'cookie:session', burst: 5, count: 5, period: 1m}
InFlight: {per: global, in_flight: 5}
Log: {per: global, algorithm: sliding_log, count: 5, period: 1m}
";

fn folder(descriptors: &str) -> Folder {
    let gateway = format!(
        "decide:\n  address: '127.0.0.1:9000'\n  trusted_proxies: [127.0.0.1]\n  envoy:\n  - domain: \
         edge\n    descriptors:\n{descriptors}\nroutes: [{{match: {{path: '/*'}}, limits: []}}]\n"
    );
    Folder::with(&[("gateway.yaml", &gateway), ("limits/defaults.yaml", LIMITS)])
}

fn limit(settings: &Settings, domain: &str, entries: &[(&str, &str)]) -> Option<String> {
    let envoy = settings.envoy.as_ref().unwrap();
    let index = envoy.domains.get(domain)?.find(entries)?;
    let usage = &envoy.route.policy.limits[index];
    Some(usage.limit.name().to_owned())
}

#[test]
fn a_descriptor_leads_to_the_limit_of_its_last_entry() {
    let settings = folder(
        "    - {key: remote_address, value: 50.0.0.5}\n\
         \x20   - {key: remote_address, limit: PerAddress}\n\
         \x20   - key: message_type\n\
         \x20     value: marketing\n\
         \x20     descriptors: [{key: to_number, limit: {limit: PerNumber, enforce: false}}]\n\
         \x20   - {key: X-Api-Key, limit: PerKey}",
    )
    .settings();
    let found = |entries: &[(&str, &str)]| limit(&settings, "edge", entries);
    let address = [("remote_address", "203.0.113.9")];
    assert_eq!(found(&address).as_deref(), Some("PerAddress"));
    assert_eq!(found(&[("remote_address", "50.0.0.5")]), None);
    let marketing = [("message_type", "marketing"), ("to_number", "7")];
    assert_eq!(found(&marketing).as_deref(), Some("PerNumber"));
    assert_eq!(found(&marketing[..1]), None);
    assert_eq!(limit(&settings, "elsewhere", &address), None);
    let names: Vec<_> = settings.limits().iter().map(|it| it.name()).collect();
    assert_eq!(names, ["PerAddress", "PerKey", "PerNumber"]);
}

/// They had their own, and no key to leave them out.
#[test]
fn calls_have_the_ratelimit_headers_of_the_defaults() {
    for (defaults, expected) in [
        ("", HeaderForms::default()),
        ("defaults: {ratelimit_headers: none}\n", HeaderForms::NONE),
    ] {
        let plain = folder("    - {key: remote_address, limit: PerAddress}");
        let gateway = fs::read_to_string(plain.gateway()).unwrap();
        plain.write("gateway.yaml", &format!("{defaults}{gateway}"));
        let envoy = plain.settings().envoy.unwrap();
        assert_eq!(envoy.route.policy.header_forms, expected, "{defaults}");
    }
}

#[test]
fn rules_are_shown_in_their_order_with_the_entries_above_them() {
    let settings = folder(
        "    - {key: remote_address, value: 50.0.0.5}\n\
         \x20   - key: remote_address\n\
         \x20     limit: PerAddress\n\
         \x20     descriptors: [{key: to_number, value: '4*', limit: PerNumber}]\n\
         \x20   - {key: tenant, descriptors: [{key: X-Api-Key, limit: PerKey}]}",
    )
    .settings();
    let envoy = settings.envoy.as_ref().unwrap();
    let shown = envoy.rules.iter().map(|rule| {
        let limit = envoy.limit_of(rule).map(|usage| usage.limit.name());
        (rule.domain.as_str(), rule.entries.as_str(), limit)
    });
    let shown: Vec<_> = shown.collect();
    assert_eq!(
        shown,
        [
            ("edge", "remote_address=50.0.0.5", None),
            ("edge", "remote_address", Some("PerAddress")),
            ("edge", "remote_address, to_number=4*", Some("PerNumber")),
            ("edge", "tenant, X-Api-Key", Some("PerKey")),
        ]
    );
}

#[test]
fn an_override_by_the_admin_api_holds_for_descriptors() {
    let settings = folder("    - {key: remote_address, limit: PerAddress}").settings();
    let overriding = ApiOverride {
        limit: "PerAddress".to_owned(),
        id: "203.0.113.9".to_owned(),
        parameters: serde_json::json!({"burst": 7, "count": 7, "period": "1m"})
            .as_object()
            .unwrap()
            .clone(),
    };
    let (settings, checks) = settings.with_overrides(&[Arc::new(overriding)], Timestamp::default());
    assert!(checks[0].is_ok(), "{checks:?}");
    let limit = &settings.envoy.unwrap().route.policy.limits[0].limit;
    let bursts: Vec<_> = limit.overrides().map(|it| it.quota.burst().get()).collect();
    assert_eq!(bursts, [7]);
}

#[test]
fn what_descriptors_cannot_do_is_an_error() {
    let findings = |descriptor: &str| folder(descriptor).findings();
    for (descriptor, said) in [
        ("    - {key: path, limit: PerAddress}", "give it that key"),
        (
            "    - {key: session, limit: PerSession}",
            "neither cookies nor queries",
        ),
        (
            "    - {key: a, limit: InFlight}",
            "limits on requests in flight",
        ),
        (
            "    - {key: a, limit: Log}",
            "choose `algorithm: sliding_window`",
        ),
        (
            "    - {key: remote_address, limit: {limit: PerAddress, spend_on: {status: 401}}}",
            "leave `spend_on`",
        ),
        (
            "    - {key: remote_address, limit: {limit: PerAddress, cost: {request_bytes: 1KiB}}}",
            "a measured",
        ),
        ("    - {key: a, limit: PerAdress}", "PerAddress"),
        (
            "    - {key: Remote_Address, limit: PerAddress}",
            "give it that key",
        ),
        (
            "    - {key: a, value: b}\n    - {key: a, value: b}",
            "is there twice",
        ),
        (
            "    - {key: a}\n  - {domain: edge, descriptors: []}",
            "domain \"edge\" is there twice",
        ),
    ] {
        let found = findings(descriptor);
        assert!(found.contains(said) && found.contains("1 error"), "{found}");
    }
}
