//! The configuration of a gateway as others compare it with theirs: a digest of it, and its limits.

use std::fmt::Write as _;

use hmac_sha256::Hash;
use serde_json::Value;
use weir_config::{FileSchemas, Settings};
use weir_console::fleet::{LimitDefinition, PublishedLimits};
use weir_rules::{KeySource, Limit};

use crate::app::schemas;
use crate::app::wording::describe_quota;

/// Bytes of the digest that are shown.
const DIGEST_BYTES: usize = 6;

/// The digest of what a reload applies. Gateways may differ in the other keys, such as addresses
/// and threads. It is made of what is shown of the configuration, so nobody can guess a secret by
/// it.
pub(super) fn digest(settings: &Settings) -> String {
    let mut files = settings.to_json(None);
    let files = files
        .as_object_mut()
        .map(std::mem::take)
        .unwrap_or_default();
    let mut files: Vec<Value> = files.into_iter().map(|(_, file)| file).collect();
    if let Some(gateway) = files.first_mut() {
        let schema = serde_json::from_str(schemas::GATEWAY).unwrap_or_default();
        let schemas = FileSchemas {
            gateway: &schema,
            defaults: &Value::Null,
            overrides: &Value::Null,
        };
        for key in schemas.restart_keys() {
            let keys: Vec<&str> = key.split('.').collect();
            remove(gateway, &keys);
        }
        // Where a gateway listens is its own.
        remove(gateway, &["listen"]);
    }
    let text = Value::from(files).to_string();
    let mut digest = String::new();
    for byte in Hash::hash(text.as_bytes()).iter().take(DIGEST_BYTES) {
        // Writing to a `String` never fails.
        let _ = write!(digest, "{byte:02x}");
    }
    digest
}

/// What tells other gateways whether their `hash_key` is the same.
pub(super) fn hash_key(settings: &Settings) -> Option<String> {
    let fingerprint = settings.hash_key_fingerprint?;
    Some(format!("{fingerprint:08x}"))
}

fn remove(value: &mut Value, keys: &[&str]) {
    match (value, keys) {
        (Value::Object(members), [key]) => drop(members.shift_remove(*key)),
        (Value::Object(members), [key, below @ ..]) => {
            if let Some(value) = members.get_mut(*key) {
                remove(value, below);
            }
        }
        (Value::Array(items), _) => items.iter_mut().for_each(|item| remove(item, keys)),
        _ => {}
    }
}

/// The limits that routes use.
pub(super) fn limits(settings: &Settings) -> PublishedLimits {
    let limits = settings.limits().into_iter();
    let limits = limits.map(|limit| (limit.name().to_owned(), definition(limit)));
    PublishedLimits::new(limits.collect())
}

fn definition(limit: &Limit) -> LimitDefinition {
    let per: Vec<_> = limit.per().iter().map(KeySource::to_string).collect();
    let per = per.join(" and ");
    let Some(quota) = limit.quota() else {
        return LimitDefinition {
            text: format!("for overrides alone, per {per}"),
            per,
            algorithm: "none".to_owned(),
            burst: 0,
            period: 0,
        };
    };
    LimitDefinition {
        text: format!("{}, per {per}", describe_quota(quota)),
        per,
        algorithm: quota.algorithm().name().to_owned(),
        burst: quota.burst().get(),
        period: quota.tolerance().get(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_config::testing::Folder;
    use weir_console::fleet::differences;

    const GATEWAY: &str = r#"
listen: [{address: "127.0.0.1:8080"}]
admin: {address: 127.0.0.1:9901}
workers: 2
store: {redis: {url: "redis://ann:secret@127.0.0.1:1"}}
upstreams: {app: {servers: ["http://127.0.0.1:3000"]}}
routes: [{name: all, match: {}, upstream: app, limits: [A, B, C, D, E]}]
"#;

    const LIMITS: &str = "A: {per: address, burst: 10, count: 60, period: 1m}\n\
                          B: {per: address, algorithm: fixed_window, count: 5, period: 1h}\n\
                          C: {per: address, in_flight: 5}\n\
                          D: {per: address, algorithm: sliding_window, count: 5, period: 1h}\n\
                          E: {per: address, burst: 10, count: 60, period: 1m}\n";

    fn settings(gateway: &str, limits: &str) -> Settings {
        let files = [("gateway.yaml", gateway), ("limits/defaults.yaml", limits)];
        Folder::with(&files).settings()
    }

    #[test]
    fn gateways_on_other_addresses_never_look_as_if_they_had_another_configuration() {
        let one = digest(&settings(GATEWAY, LIMITS));
        assert_eq!(one.len(), 2 * DIGEST_BYTES);
        let moved = GATEWAY
            .replace("8080", "8081")
            .replace("9901", "9902")
            .replace("workers: 2", "workers: 3")
            .replace("secret", "other");
        assert_eq!(digest(&settings(&moved, LIMITS)), one);
        let raised = LIMITS.replace("burst: 10", "burst: 11");
        assert_ne!(digest(&settings(GATEWAY, &raised)), one);
        let routed = GATEWAY.replace("match: {}", "match: {path: /a}");
        assert_ne!(digest(&settings(&routed, LIMITS)), one);
    }

    #[test]
    fn each_limit_that_differs_is_named_with_what_passes_meanwhile() {
        let here = limits(&settings(GATEWAY, LIMITS));
        assert_eq!(differences(&here, &here), []);
        let there = LIMITS
            .replace("burst: 10, count: 60", "burst: 20, count: 120")
            .replace("count: 5, period: 1h", "count: 7, period: 2h")
            .replace("in_flight: 5", "in_flight: 9")
            .replace("E: {per: address,", "E: {per: address/24/48,");
        let gateway = GATEWAY.replace(", D,", ",");
        let there = limits(&settings(&gateway, &there.replace("D: ", "# ")));
        let found = differences(&here, &there);
        let shown: Vec<_> = found
            .iter()
            .map(|found| {
                let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
                let (here, there) = (text(&found.here), text(&found.there));
                format!("{}: {here} | {there} | {}", found.limit, found.bound)
            })
            .collect();
        insta::assert_snapshot!(shown.join("\n"), @r"
        A: 10 at once, then one each 1s, per address/64 | 20 at once, then one each 500ms, per address/64 | at most 30 at once, then one each 500ms
        B: 5 in each 1h, counted from the Unix epoch, per address/64 | 7 in each 2h, counted from the Unix epoch, per address/64 | at most 7 in 1h, and windows end by both definitions
        C: 5 in flight, per address/64 | 9 in flight, per address/64 | at most 9 in flight
        D: 5 in any 1h, per address/64 | - | a gateway without the limit lets everything through
        E: 10 at once, then one each 1s, per address/64 | 20 at once, then one each 500ms, per address/24/48 | each counts for itself: what both allow passes in all
        ");
    }
}
