//! The JSON Schemas of the files, by which editors complete keys and mark errors: derived from the
//! types that the files are read as, with their doc comments.

use std::fs;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use weir_rules::{JsonPointer, KeySource, Statuses};
use weir_yaml::{Diagnostics, Document, KeySchema};

use super::documented::{examples, top_level};
use super::reference::{KeyDoc, keys_of};
use crate::addresses::{DnsServer, ListenAddress, Nat64Prefix, Network, ServerUrl};
use crate::defaults::TAKES_RESTART;
use crate::foreign::{AccessFormat, Parsed};
use crate::gateway::schema::Gateway;
use crate::limits::schema::{DefaultLimits, Overrides};
use crate::routes::balancing::retries::RetryReason;
use crate::until::Until;

impl KeySchema for Parsed<Statuses> {
    fn key_schema(_: &mut SchemaGenerator) -> Option<Schema> {
        Some(json_schema!({"pattern": STATUSES}))
    }
}

const STATUSES: &str = r"^[1-5](xx|\d\d(-[1-5]\d\d)?)$";

weir_yaml::named_schemas! {
    Until, "Until": {
        "title": "day or moment",
        "description": "A day, to the end of it in UTC, or a moment such as 2026-12-31T18:00:00+01:00.",
        "type": "string",
        "pattern": "^\\d{4}-\\d{2}-\\d{2}([Tt].+)?$",
    }
    ListenAddress, "ListenAddress": {
        "title": "address and port",
        "type": "string",
        "pattern": "^(\\d+(\\.\\d+){3}|\\[[0-9A-Fa-f:.]+(%\\d+)?\\]):\\d+$",
    }
    DnsServer, "DnsServer": {
        "title": "address",
        "type": "string",
        "pattern": "^(\\d+(\\.\\d+){3}(:\\d+)?|[0-9A-Fa-f:.]+|\\[[0-9A-Fa-f:.]+\\]:\\d+)$",
    }
    Nat64Prefix, "Nat64Prefix": {
        "title": "prefix of a translator",
        "type": "string",
        "pattern": "^[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*/96$",
    }
    Network, "Network": {
        "title": "address or network",
        "type": "string",
        "pattern": "^(\\d+(\\.\\d+){3}|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)(/\\d+)?$",
    }
    ServerUrl, "ServerUrl": {
        "title": "URL",
        "type": "string",
        "pattern": "^(https?://[^/?@]+/?|unix:///.*[^/])$",
    }
    Parsed<Statuses>, "Statuses": {
        "title": "status",
        "description": "A status such as 404, a class such as 5xx, or a range such as 500-503.",
        "type": ["integer", "string"],
        "minimum": 100,
        "maximum": 599,
        "pattern": STATUSES,
    }
    Parsed<RetryReason>, "RetryReason": {
        "title": "reason",
        "description": "closed, timeout, or a status such as 503.",
        "type": ["integer", "string"],
        "minimum": 100,
        "maximum": 599,
        "pattern": format!("^(closed|timeout)$|{STATUSES}"),
    }
    Parsed<JsonPointer>, "JsonPointer": {
        "title": "JSON pointer",
        "type": "string",
        "pattern": "^/",
    }
    Parsed<AccessFormat>, "AccessFormat": {
        "title": "`combined`, template",
        "type": "string",
    }
}

/// What editors offer for `per`: each kind of source, with a name where it needs one.
pub(crate) const SOURCES: [&str; KeySource::WORDS.len()] = [
    "address",
    "account",
    "host",
    "domain",
    "method",
    "route",
    "header:X-Api-Key",
    "cookie:session",
    "query:key",
    "path:id",
    "global",
];

#[test]
fn no_source_that_editors_offer_is_refused_and_none_is_left_out() {
    for (source, word) in SOURCES.iter().zip(KeySource::WORDS) {
        assert!(source.starts_with(word), "{source}");
        KeySource::parse(source, 64).unwrap();
    }
}

/// What a type of its own is called in the reference of the configuration.
pub(super) fn reads_as(schema: &Value) -> Option<&str> {
    schema["title"]
        .as_str()
        .filter(|_| schema.get("properties").is_none())
}

/// The type of a key that is left empty.
const NULL: &str = "null";

fn is_null(schema: &Value) -> bool {
    schema["type"] == NULL
}

/// From what serde would read to what is read here: no key may be empty, a text may look like
/// anything, and a word that needs no value stands alone.
fn as_read(schema: &mut Value) {
    match schema {
        Value::Object(keywords) => {
            words_alone(keywords);
            without_null(keywords);
            keywords.remove("format");
            // The doc comment says what the default is.
            keywords.shift_remove("default");
            let is_text = keywords.get("type") == Some(&json!("string"));
            if is_text
                && !["const", "enum", "pattern"]
                    .iter()
                    .any(|key| keywords.contains_key(*key))
            {
                keywords.insert("type".into(), json!(["string", "number", "boolean"]));
            }
            for (keyword, value) in keywords {
                // These have names of the files for keys.
                match (keyword.as_str(), value) {
                    ("properties" | "$defs", Value::Object(named)) => {
                        named.values_mut().for_each(as_read);
                    }
                    (_, value) => as_read(value),
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(as_read),
        _ => {}
    }
}

/// A variant with a value that may be left out is a word as well.
fn words_alone(keywords: &mut Map<String, Value>) {
    let Some(Value::Array(variants)) = keywords.get_mut("oneOf") else {
        return;
    };
    let mut words = Vec::new();
    for variant in &mut *variants {
        let Some(properties) = variant.get_mut("properties").and_then(Value::as_object_mut) else {
            continue;
        };
        for (word, value) in properties {
            let options = value.get_mut("anyOf").and_then(Value::as_array_mut);
            if let Some(null) =
                options.and_then(|options| options.iter_mut().find(|one| is_null(one)))
            {
                *null = json!({"const": null});
                words.push(json!({"const": word}));
            }
        }
    }
    variants.extend(words);
}

fn without_null(keywords: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = keywords.get_mut("type") {
        types.retain(|name| name != NULL);
        if let [only] = types.as_slice() {
            let only = only.clone();
            keywords.insert("type".into(), only);
        }
    }
    if let Some(Value::Array(words)) = keywords.get_mut("enum") {
        words.retain(|word| !word.is_null());
    }
    let Some(Value::Array(options)) = keywords.get_mut("anyOf") else {
        return;
    };
    options.retain(|option| !is_null(option));
    if let [only] = options.as_slice() {
        let only = only.as_object().unwrap().clone();
        keywords.remove("anyOf");
        for (key, value) in only {
            keywords.entry(key).or_insert(value);
        }
    }
}

/// Which defaults a schema has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Defaults {
    /// Those of keys that may stand alone.
    Unconditional,
    /// Also those of keys that only some others can have beside them.
    All,
}

/// Puts doc comments into the form in which editors show them, with what they say beside.
fn describe(schema: &mut Value, defaults: Defaults) {
    match schema {
        Value::Object(keywords) => {
            if let Some(Value::String(comment)) = keywords.get("description") {
                let doc = KeyDoc::parse(comment);
                let applies = defaults == Defaults::All || !doc.is_conditional();
                if let Some(default) = doc.default_value().filter(|_| applies) {
                    keywords.insert("default".into(), default);
                }
                if doc.takes_restart {
                    keywords.insert(TAKES_RESTART.into(), true.into());
                }
                keywords.insert("description".into(), doc.plain_description().into());
            }
            for (keyword, value) in keywords {
                match (keyword.as_str(), value) {
                    ("default", _) => {}
                    // These have names of the files for keys.
                    ("properties" | "$defs", Value::Object(named)) => {
                        let named = named.values_mut();
                        named.for_each(|schema| describe(schema, defaults));
                    }
                    (_, value) => describe(value, defaults),
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|schema| describe(schema, defaults)),
        _ => {}
    }
}

fn commented_schema<T: JsonSchema>() -> Value {
    let mut schema = SchemaGenerator::default()
        .into_root_schema_for::<T>()
        .to_value();
    as_read(&mut schema);
    schema
}

/// The schemas with the doc comments of their keys for descriptions.
pub(super) fn commented_schemas() -> [(&'static str, Value); 3] {
    [
        ("gateway", commented_schema::<Gateway>()),
        ("defaults", commented_schema::<DefaultLimits>()),
        ("overrides", commented_schema::<Overrides>()),
    ]
}

pub(super) fn schemas(defaults: Defaults) -> [(&'static str, Value); 3] {
    commented_schemas().map(|(name, mut schema)| {
        let file = match name {
            "gateway" => "gateway.yaml",
            "defaults" => "limits/defaults.yaml",
            _ => "limits/overrides.yaml",
        };
        describe(&mut schema, defaults);
        schema["title"] = json!(format!("{file} of Weir"));
        (name, schema)
    })
}

/// `UPDATE_REFERENCE=1` writes them anew.
#[test]
fn the_checked_in_schemas_are_those_of_the_types() {
    for (name, schema) in schemas(Defaults::Unconditional) {
        let path = top_level(&format!("docs/schema/{name}.json"));
        let derived = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if std::env::var_os("UPDATE_REFERENCE").is_some() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &derived).unwrap();
        }
        let checked_in = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            checked_in == derived,
            "{} is not up to date: set UPDATE_REFERENCE=1",
            path.display()
        );
    }
}

/// Whether a file of this text is read without an error.
fn is_read<T: DeserializeOwned>(text: &str) -> bool {
    let mut found = Diagnostics::default();
    let read: Result<Option<T>, _> =
        Document::parse(0, "a.yaml", text, &mut found).read(&mut found);
    read.is_ok() && found.is_empty()
}

/// Each value of a document replaced by others in turn, and each mapping with a key more.
fn variations(root: &serde_yaml::Value) -> Vec<serde_yaml::Value> {
    let others = [
        "~",
        "7",
        "true",
        "some text",
        "20s",
        "[]",
        "{}",
        "[some text]",
        "{some: text}",
        "-1",
        "1.5",
    ];
    let mut all: Vec<_> = others
        .iter()
        .map(|text| serde_yaml::from_str(text).unwrap())
        .collect();
    match root {
        serde_yaml::Value::Mapping(map) => {
            let mut more = map.clone();
            more.insert("novel".into(), "key".into());
            all.push(more.into());
            for (key, value) in map {
                let mut less = map.clone();
                less.remove(key);
                all.push(less.into());
                all.extend(variations(value).into_iter().map(|value| {
                    let mut map = map.clone();
                    map.insert(key.clone(), value);
                    map.into()
                }));
            }
        }
        serde_yaml::Value::Sequence(list) => {
            for (at, value) in list.iter().enumerate() {
                all.extend(variations(value).into_iter().map(|value| {
                    let mut list = list.clone();
                    list[at] = value;
                    list.into()
                }));
            }
        }
        _ => {}
    }
    all
}

#[test]
fn a_schema_accepts_what_is_read_and_refuses_what_is_not() {
    let schemas = schemas(Defaults::All)
        .map(|(name, schema)| (name, jsonschema::validator_for(&schema).unwrap()));
    let mut wrong = Vec::new();
    let mut tried = 0;
    for (file, yaml) in examples() {
        let (of, is_read): (_, fn(&str) -> bool) = match file.as_str() {
            "gateway.yaml" => ("gateway", is_read::<Gateway>),
            "limits/defaults.yaml" => ("defaults", is_read::<DefaultLimits>),
            "limits/overrides.yaml" => ("overrides", is_read::<Overrides>),
            other => panic!("{other}"),
        };
        let (_, validator) = schemas.iter().find(|(name, _)| *name == of).unwrap();
        let root: serde_yaml::Value = serde_yaml::from_str(&yaml).unwrap();
        for document in variations(&root).into_iter().chain([root]) {
            let text = serde_yaml::to_string(&document).unwrap();
            let json = serde_json::to_value(&document).unwrap();
            tried += 1;
            if is_read(&text) != validator.is_valid(&json) {
                wrong.push(format!("{file}, read: {}\n{text}", is_read(&text)));
            }
        }
    }
    assert!(tried > 1000, "{tried}");
    let few: Vec<_> = wrong.iter().take(5).collect();
    assert!(wrong.is_empty(), "{} of {tried}\n{few:#?}", wrong.len());
}

/// The names of all keys that there are, each with its doc comment.
fn commented_keys() -> Vec<(String, Option<String>)> {
    let schemas = commented_schemas();
    let types = schemas.iter().flat_map(|(_, schema)| {
        let types = schema["$defs"].as_object().into_iter().flatten();
        types.map(|(_, of_type)| of_type).chain([schema])
    });
    let keys = types.flat_map(keys_of);
    keys.map(|key| (key.name.to_owned(), key.comment.map(str::to_owned)))
        .collect()
}

/// The names of all keys that there are, each with whether it is described.
pub(super) fn all_keys() -> Vec<(String, bool)> {
    let keys = commented_keys().into_iter();
    keys.map(|(name, comment)| (name, comment.is_some()))
        .collect()
}

/// What is said of each key.
pub(super) fn key_docs() -> Vec<(String, KeyDoc)> {
    let keys = commented_keys().into_iter();
    keys.filter_map(|(name, comment)| Some((name, KeyDoc::parse(&comment?))))
        .collect()
}

#[test]
fn every_key_of_a_schema_is_described() {
    let keys = all_keys().into_iter();
    let lacking: Vec<_> = keys.filter(|(_, is_described)| !is_described).collect();
    assert!(lacking.is_empty(), "{lacking:?}");
}
