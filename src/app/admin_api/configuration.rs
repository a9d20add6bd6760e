//! What is in force, as the dashboard shows it: limits and how they are enforced, routes and the
//! store, and what rooms show of theirs. No secret is in it.

use serde_json::{Map, Value, json};
use weir_config::{Route, Settings, StoreSettings};
use weir_rules::{Limit, LimitUse};

use crate::app::features::ROOMS;
use crate::app::wording::{describe_quota, source_names};

pub(super) fn describe(settings: &Settings) -> Value {
    let limits = settings.limits().into_iter();
    let routes = settings.routes.iter();
    let store = match &settings.process.store {
        StoreSettings::Memory(_) => "memory".to_owned(),
        StoreSettings::Redis(store) => store.redis.to_string(),
    };
    let limits = limits.map(|limit| describe_limit(settings, limit));
    let routes = routes.map(describe_route);
    let mut members = Map::new();
    let mut add = |name: &str, value| members.insert(name.to_owned(), value);
    add("version", json!(env!("CARGO_PKG_VERSION")));
    add("store", json!(store));
    add("is_shared", json!(settings.process.store.is_shared()));
    add("limits", limits.collect());
    for room in ROOMS {
        room.describe(&mut members, settings);
    }
    members.insert("routes".to_owned(), routes.collect());
    members.insert("warnings".to_owned(), json!(settings.warnings.to_string()));
    members.into()
}

fn describe_limit(settings: &Settings, limit: &Limit) -> Value {
    let quota = limit.quota();
    let written = quota.and_then(|quota| settings.parameters_of(limit.name(), &quota));
    let period = written.and_then(|written| written.period);
    let uses = settings.all_routes().flat_map(|route| {
        let uses = route.policy.limits.iter();
        let uses = uses.filter(|usage| usage.limit.name() == limit.name());
        uses.map(|usage| json!({"route": &*route.policy.name, "enforce": enforcement(usage)}))
    });
    json!({
        "name": limit.name(),
        "per": source_names(limit.per()),
        "quota": quota.map(describe_quota),
        "burst": quota.map(|quota| quota.burst()),
        "count": written.and_then(|written| written.count),
        "period": period.map(|period| period.to_string()),
        "is_in_flight": quota.is_some_and(|quota| quota.is_in_flight()),
        "overrides": limit.overrides().count(),
        "uses": uses.collect::<Vec<_>>(),
    })
}

/// `true`, `false`, a percentage, or `off`, as `enforce` and `enabled` are written.
fn enforcement(usage: &LimitUse) -> String {
    match usage.is_enabled() {
        true => usage.enforcement.to_string(),
        false => "off".to_owned(),
    }
}

fn describe_route(route: &Route) -> Value {
    let limits = route.policy.limits.iter();
    json!({
        "name": &*route.policy.name,
        "matches": route.description,
        "upstream": route.upstream_name(),
        "limits": limits.map(|usage| usage.limit.name()).collect::<Vec<_>>(),
        "shadow_bans": route.policy.on_denied.looks_real(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_config::testing::Folder;

    const GATEWAY: &str = r#"
admin: {address: 127.0.0.1:9901, token: {file: admin.token}, dashboard: true}
account: [{header: x-api-key}]
hash_key: {file: hash.key}
upstreams: {app: {servers: ["http://127.0.0.1:3000"]}}
bans:
  abusers:
    per: address
    strikes: {limits: [PerAddress], count: 10, period: 1m}
    for: 10m
    factor: 4
    enforce: 20%
routes:
  - {name: api, match: {path: /api}, upstream: app, limits: [PerAddress, {limit: PerAccount, enforce: false}]}
  - {name: old, match: {path: /old}, upstream: app, limits: [{limit: PerAddress, enforce: 10%}]}
  - {name: rest, match: {}, upstream: app, limits: [{limit: PerAddress, enabled: false}]}
"#;

    #[test]
    fn what_is_in_force_is_described_without_secrets() {
        let folder = Folder::with(&[
            ("gateway.yaml", GATEWAY),
            (
                "limits/defaults.yaml",
                "PerAddress: {per: address, burst: 20, count: 100, period: 1m}\n\
                 PerAccount: {per: account, burst: 5, count: 5, period: 1h}\n",
            ),
            ("admin.token", "0123456789abcdef"),
            ("hash.key", "fedcba9876543210"),
        ]);
        let described = describe(&folder.settings());
        let text = described.to_string();
        assert!(!text.contains("0123456789abcdef") && !text.contains("fedcba9876543210"));
        let limit = &described["limits"][1];
        assert_eq!(
            (&limit["name"], &limit["burst"], &limit["period"]),
            (&json!("PerAddress"), &json!(20), &json!("1m"))
        );
        let enforced: Vec<&str> = limit["uses"]
            .as_array()
            .unwrap()
            .iter()
            .map(|usage| usage["enforce"].as_str().unwrap())
            .collect();
        assert_eq!(enforced, ["true", "10%", "off"]);
        assert_eq!(described["limits"][0]["uses"][0]["enforce"], "false");
        let ban = &described["bans"][0];
        assert_eq!(
            (&ban["lengths"][1], &ban["within"], &ban["enforce"]),
            (&json!("40m"), &json!("1m"), &json!("20%"))
        );
        assert_eq!(
            described["routes"][0]["limits"],
            json!(["PerAddress", "PerAccount"])
        );
    }
}
