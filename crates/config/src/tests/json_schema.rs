//! The JSON Schemas of the files, by which editors complete keys and mark errors: derived from the
//! types that the files are read as, with their doc comments.

use std::borrow::Cow;
use std::fs;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use weir_rules::{Enforcement, JsonPointer, Statuses};
use weir_telemetry::Template;

use super::documented::{examples, top_level};
use super::reference::{keys_of, plain_description};
use crate::diagnostics::Diagnostics;
use crate::gateway::schema::Gateway;
use crate::limits::schema::{DefaultLimits, Overrides};
use crate::values::{
    ByteSize, FieldName, HumanDuration, Parsed, PositiveDuration, PositiveSize, ResponseStatus,
    SIZE_UNITS, Until, Within,
};
use crate::words::{Word, Words};
use crate::yaml::{Document, Entries, Note, OneOrMany, Spanned, WordOr};

impl<T: JsonSchema> JsonSchema for Spanned<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<T>()
    }
}

impl<T: JsonSchema> JsonSchema for OneOrMany<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("OneOrMany{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<T>();
        json_schema!({"anyOf": [one, {"type": "array", "items": one}]})
    }
}

impl<T: JsonSchema> JsonSchema for WordOr<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("WordOr{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let more = generator.subschema_for::<T>();
        json_schema!({"anyOf": [{"type": "string"}, more]})
    }
}

impl<T: JsonSchema> JsonSchema for Entries<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Entries{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let value = generator.subschema_for::<T>();
        json_schema!({"type": "object", "additionalProperties": value})
    }
}

impl<T: Words> JsonSchema for Word<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Word{}", T::WORDS.join("")).into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "enum": T::WORDS})
    }
}

impl JsonSchema for Note {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Note".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "string"}, {"const": null}]})
    }
}

impl JsonSchema for HumanDuration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "title": "duration",
            "description": "A duration with its unit, such as 1h30m; units are ns, us, ms, s, m, h and d.",
            "type": "string",
            "pattern": "^((\\d+\\.?\\d*|\\.\\d+)(d|h|m|s|ms|us|\u{b5}s|\u{3bc}s|ns))+$",
        })
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let units: Vec<_> = SIZE_UNITS.iter().map(|(unit, _)| *unit).collect();
        json_schema!({
            "title": "size",
            "description": "A size in bytes, such as 512, 64kB or 1MiB.",
            "type": ["integer", "string"],
            "minimum": 0,
            "pattern": format!("^\\d+({})$", units.join("|")),
        })
    }
}

impl JsonSchema for PositiveDuration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "PositiveDuration".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<HumanDuration>()
    }
}

impl JsonSchema for PositiveSize {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "PositiveSize".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<ByteSize>()
    }
}

impl<const LEAST: u32, const MOST: u32> JsonSchema for Within<LEAST, MOST> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("From{LEAST}To{MOST}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "minimum": LEAST, "maximum": MOST})
    }
}

impl JsonSchema for ResponseStatus {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ResponseStatus".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let (least, most) = Self::NUMBERS.into_inner();
        json_schema!({"type": "integer", "minimum": least, "maximum": most})
    }
}

impl JsonSchema for FieldName {
    fn schema_name() -> Cow<'static, str> {
        "HeaderName".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "title": "header name",
            "type": ["string", "number", "boolean"],
            "pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$",
        })
    }
}

/// What a type of another module reads.
trait Read {
    const NAME: &str;

    fn schema() -> Schema;
}

impl<T: Read> JsonSchema for Parsed<T> {
    fn schema_name() -> Cow<'static, str> {
        T::NAME.into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        T::schema()
    }
}

impl Read for Enforcement {
    const NAME: &str = "Enforce";

    fn schema() -> Schema {
        json_schema!({
            "title": "`true`, `false` or a percentage",
            "type": ["boolean", "string"],
            "pattern": "^(true|false|\\d+(\\.\\d{1,2})?%)$",
        })
    }
}

impl Read for Statuses {
    const NAME: &str = "Statuses";

    fn schema() -> Schema {
        json_schema!({
            "title": "status",
            "description": "A status such as 404, a class such as 5xx, or a range such as 500-503.",
            "type": ["integer", "string"],
            "minimum": 100,
            "maximum": 599,
            "pattern": "^[1-5](xx|\\d\\d(-[1-5]\\d\\d)?)$",
        })
    }
}

impl Read for JsonPointer {
    const NAME: &str = "JsonPointer";

    fn schema() -> Schema {
        json_schema!({"title": "JSON pointer", "type": "string", "pattern": "^/"})
    }
}

impl Read for Template {
    const NAME: &str = "AccessFormat";

    fn schema() -> Schema {
        json_schema!({"title": "`combined`, template", "type": "string"})
    }
}

impl JsonSchema for Until {
    fn schema_name() -> Cow<'static, str> {
        "Until".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "title": "day or moment",
            "description": "A day, to the end of it in UTC, or a moment such as 2026-12-31T18:00:00+01:00.",
            "type": "string",
            "pattern": "^\\d{4}-\\d{2}-\\d{2}([Tt].+)?$",
        })
    }
}

/// What a type of its own is called in docs/CONFIG.md.
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

/// Puts doc comments into the form in which editors show them.
fn describe(schema: &mut Value) {
    match schema {
        Value::Object(keywords) => {
            for (keyword, value) in keywords {
                match (keyword.as_str(), value) {
                    ("description", Value::String(comment)) => {
                        *comment = plain_description(comment);
                    }
                    // These have names of the files for keys.
                    ("properties" | "$defs", Value::Object(named)) => {
                        named.values_mut().for_each(describe);
                    }
                    (_, value) => describe(value),
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(describe),
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

fn schemas() -> [(&'static str, Value); 3] {
    commented_schemas().map(|(name, mut schema)| {
        let file = match name {
            "gateway" => "gateway.yaml",
            "defaults" => "limits/defaults.yaml",
            _ => "limits/overrides.yaml",
        };
        describe(&mut schema);
        schema["title"] = json!(format!("{file} of Weir"));
        (name, schema)
    })
}

/// `UPDATE_REFERENCE=1` writes them anew.
#[test]
fn the_checked_in_schemas_are_those_of_the_types() {
    for (name, schema) in schemas() {
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
    let schemas =
        schemas().map(|(name, schema)| (name, jsonschema::validator_for(&schema).unwrap()));
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

/// The names of all keys that there are, each with whether it is described.
pub(super) fn all_keys() -> Vec<(String, bool)> {
    let schemas = commented_schemas();
    let types = schemas.iter().flat_map(|(_, schema)| {
        let types = schema["$defs"].as_object().into_iter().flatten();
        types.map(|(_, of_type)| of_type).chain([schema])
    });
    let keys = types.flat_map(keys_of);
    keys.map(|key| (key.name.to_owned(), key.comment.is_some()))
        .collect()
}

#[test]
fn every_key_of_a_schema_is_described() {
    let keys = all_keys().into_iter();
    let lacking: Vec<_> = keys.filter(|(_, is_described)| !is_described).collect();
    assert!(lacking.is_empty(), "{lacking:?}");
}
