//! The defaults that the doc comments of keys state are those of the code.

use std::collections::BTreeSet;

use serde_json::Value;
use weir_yaml::Diagnostics;

use super::documented::{beside, completed, examples};
use super::json_schema::{Defaults, key_docs, schemas};
use super::*;
use crate::defaults::{add_defaults, for_each_mapping};

/// What doc comments say in the place of a default that is a value, by why it is none.
const NO_VALUES: [(&str, &[&str]); 5] = [
    (
        "there is nothing to write",
        &["none", "never", "any", "all responses", "both"],
    ),
    (
        "another key, or another place, says it",
        &[
            "the route's",
            "as defined",
            "the defaults",
            "the upstream's",
            "the URL's",
            "the longest",
            "the host connected to",
            "the server's own",
            "the browser's",
            "the browser's session",
            "half of the upstream's latency, at most 500 ms",
            "made from what it matches",
            "those that fit the keys",
            "with `concurrency` [16 KiB](#shedding), else none",
            "`64MiB`, or `max`",
            "the listener's",
            "`{address: 127.0.0.1:8080}`, or none beside `decide`",
        ],
    ),
    (
        "one of several keys is required",
        &[
            "required for `gcra`",
            "required, except with `in_flight`",
            "required, except with `calendar` or `in_flight`",
            "required as for the limit",
            "one of the three is required",
        ],
    ),
    (
        "the program or the system brings it",
        &["random", "public authorities", "those of the system"],
    ),
    (
        "it depends on where the key stands",
        &[
            "`reject` with 429",
            "`reject` with 403",
            "`429` for a denial, `403` for a blocked client, `200` for a response of a route",
            "a problem document; empty for a response of a route",
        ],
    ),
];

const CHANGES: &str = "it changes something";

/// What the settings of a configuration are; none if it is in error.
fn loaded(folder: &Folder) -> Result<Vec<String>, String> {
    let mut settings = folder.load().map_err(|found| found.to_string())?;
    // These say how it is written.
    settings.files.clear();
    settings.warnings = Diagnostics::default();
    let routes = settings.routes.iter_mut();
    routes.for_each(|route| route.description.clear());
    settings.loaded_at = weir_limit::time::Timestamp::default();
    // The hash of a token has another key each time, and maps have another order.
    settings.admin_tokens.clear();
    let shown = format!("{settings:#?}");
    let mut lines: Vec<String> = shown.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    Ok(lines)
}

/// The keys that `filled` has and `value` lacks, each with the document that has it as well.
fn additions(value: &Value, filled: &Value) -> Vec<(String, Value, Value)> {
    let mut added = Vec::new();
    match (value, filled) {
        (Value::Object(keys), Value::Object(all)) => {
            for (key, filled) in all {
                let with = |value| {
                    let mut keys = keys.clone();
                    keys.insert(key.clone(), value);
                    Value::Object(keys)
                };
                match keys.get(key) {
                    None => added.push((key.clone(), filled.clone(), with(filled.clone()))),
                    Some(value) => {
                        let below = additions(value, filled).into_iter();
                        added.extend(below.map(|(key, filled, value)| (key, filled, with(value))));
                    }
                }
            }
        }
        (Value::Array(items), Value::Array(all)) => {
            for (at, (item, filled)) in items.iter().zip(all).enumerate() {
                let within = additions(item, filled).into_iter();
                added.extend(within.map(|(key, filled, item)| {
                    let mut items = items.clone();
                    items[at] = item;
                    (key, filled, Value::Array(items))
                }));
            }
        }
        _ => {}
    }
    added
}

/// What leaves out what all examples have.
const SPARSE: &str = r#"
listen:
  - {address: "127.0.0.1:8080"}
  - {address: "127.0.0.1:8443", tls: {acme: {domains: www.example.com}}, client_auth: {ca: clients-ca.pem}}
hsts: {max_age: 1h}
account: [{header: x-api-key}]
bans:
  scanners: {per: address, strikes: {status: 404, count: 9, period: 1m}, for: 1m, factor: 2, on_denied: {tarpit: {}}}
  bots: {per: address, strikes: {status: 404, count: 9, period: 1m}, for: 1m, on_denied: {drop: {}}}
limits:
  Days: {per: address, algorithm: fixed_window, count: 9, calendar: day}
  Hours: {per: address, algorithm: fixed_window, count: 9, period: 1h}
  Calls: {per: address, burst: 9, count: 9, period: 1h}
upstreams: {app: {servers: ["http://127.0.0.1:3000"]}}
routes:
  - match: {path: /a}
    upstream: app
    limits: [Days, Hours, Calls]
    on_denied: {delay: {up_to: 1s}}
    response_headers: {set: {x-frame-options: DENY}}
  - {match: {path: /b}, redirect: {to: /a}, limits: []}
"#;

const TELEMETRY: &str = "telemetry: {otlp: {endpoint: \"http://localhost:4318\"}}\n";

const HTTP3: &str = r#"
listen: [{address: "127.0.0.1:8443", tls: {certificate: fullchain.pem, key: privkey.pem}, http3: {port: 443}}]
"#;

/// A file of a configuration, in a folder with what it needs.
struct Example {
    folder: Folder,
    file: String,
    value: Value,
    schema: Value,
}

impl Example {
    /// What the settings are with this in the place of the file.
    fn loaded(&self, value: &Value) -> Result<Vec<String>, String> {
        self.folder.write(&self.file, &value.to_string());
        loaded(&self.folder)
    }

    /// The same without the keys that have defaults, as far as they are no mappings.
    fn stripped(&self) -> Value {
        let mut value = self.value.clone();
        for_each_mapping(
            &mut value,
            &self.schema,
            &self.schema,
            &mut |keys, known| {
                keys.retain(|key, value| known[key].get("default").is_none() || value.is_object());
            },
        );
        value
    }
}

/// The examples of the reference, with schemas that have these defaults.
fn documents(defaults: Defaults) -> Vec<Example> {
    let schemas = schemas(defaults);
    let sparse =
        [SPARSE, TELEMETRY, HTTP3].map(|yaml| ("gateway.yaml".to_owned(), yaml.to_owned()));
    let examples = examples().into_iter().chain(sparse);
    let examples = examples
        .filter(|(_, yaml)| cfg!(feature = "otlp") || !yaml.contains("telemetry:"))
        .filter(|(_, yaml)| cfg!(feature = "http3") || !yaml.contains("http3:"));
    let documents = examples.map(|(file, yaml)| {
        let whole = match file.as_str() {
            "gateway.yaml" => completed(&yaml),
            _ => yaml.clone(),
        };
        let mut schemas = schemas.iter();
        let (_, schema) = schemas.find(|(name, _)| file.contains(name)).unwrap();
        Example {
            value: serde_yaml::from_str(&whole).unwrap(),
            folder: beside(&file, &yaml),
            schema: schema.clone(),
            file,
        }
    });
    documents.collect()
}

/// Adds all defaults to each example, and to what is left of it without them; then one at a time
/// where that changes something or is refused.
fn differing(defaults: Defaults, mut found: impl FnMut(String, Result<(), String>)) {
    for example in documents(defaults) {
        for value in [example.value.clone(), example.stripped()] {
            let Ok(before) = example.loaded(&value) else {
                continue;
            };
            let mut filled = value.clone();
            add_defaults(&mut filled, &example.schema, &example.schema);
            let is_same = example.loaded(&filled).as_ref() == Ok(&before);
            for (key, default, with) in additions(&value, &filled) {
                let same = match is_same {
                    true => Ok(()),
                    false => example
                        .loaded(&with)
                        .and_then(|after| match after == before {
                            true => Ok(()),
                            false => Err(CHANGES.to_owned()),
                        }),
                };
                for (key, default) in below(&key, &default) {
                    found(described(key, default), same.clone());
                }
            }
        }
    }
}

/// A key with its value, and all keys below it.
fn below<'v>(key: &'v str, value: &'v Value) -> Vec<(&'v str, &'v Value)> {
    let keys = value.as_object().into_iter().flatten();
    let keys = keys.flat_map(|(key, value)| below(key, value));
    [(key, value)].into_iter().chain(keys).collect()
}

/// What a key's default is, in short.
fn described(key: &str, default: &Value) -> String {
    match default {
        Value::Object(_) => format!("{key}: keys"),
        default => format!("{key}: {default}"),
    }
}

/// A key with a condition may be refused where that does not hold, and must hold somewhere.
#[test]
fn no_default_is_stated_that_is_not_what_a_key_left_out_means() {
    let (mut held, mut wrong) = (BTreeSet::new(), BTreeSet::new());
    differing(Defaults::Unconditional, |key, same| match same {
        Ok(()) => drop(held.insert(key)),
        Err(error) => drop(wrong.insert(format!("{key}: {error}"))),
    });
    differing(Defaults::All, |key, same| match same {
        Ok(()) => drop(held.insert(key)),
        Err(error) if error == CHANGES => drop(wrong.insert(format!("{key}: {error}"))),
        Err(_) => {}
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
    let lacking: BTreeSet<_> = stated().difference(&held).cloned().collect();
    assert!(lacking.is_empty(), "nothing leaves out {lacking:#?}");
}

/// The keys with defaults that are values.
fn stated() -> BTreeSet<String> {
    let docs = key_docs().into_iter();
    let stated = docs.filter_map(|(key, doc)| Some(described(&key, &doc.default_value()?)));
    // A build without OTLP refuses them.
    let of_otlp = [
        "sample: \"100%\"",
        "service_name: \"weir\"",
        "interval: \"60s\"",
    ];
    stated
        .filter(|key| cfg!(feature = "otlp") || !of_otlp.contains(&key.as_str()))
        // As a build without HTTP/3 refuses these.
        .filter(|key| {
            cfg!(feature = "http3")
                || !["max_age: \"1d\"", "early_data: false"].contains(&key.as_str())
        })
        .collect()
}

#[test]
fn a_default_that_is_no_value_is_known_for_a_reason() {
    let docs = key_docs().into_iter();
    let texts = docs.filter(|(_, doc)| doc.default_value().is_none());
    let found: BTreeSet<String> = texts.filter_map(|(_, doc)| doc.default).collect();
    let known = NO_VALUES.iter().flat_map(|(_, texts)| *texts);
    let known: BTreeSet<String> = known.map(ToString::to_string).collect();
    assert_eq!(found, known);
}
