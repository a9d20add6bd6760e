//! What the JSON Schemas of the files say of keys: their defaults, and which take a restart.

use std::collections::HashSet;

use serde_json::{Map, Value};

/// The keyword of a key whose change takes a restart.
pub(super) const TAKES_RESTART: &str = "x-takes-restart";

/// The JSON Schemas of the files, as `docs/schema` has them.
#[derive(Clone, Copy, Debug)]
pub struct FileSchemas<'s> {
    /// That of `gateway.yaml`.
    pub gateway: &'s Value,
    /// That of `defaults.yaml`.
    pub defaults: &'s Value,
    /// That of `overrides.yaml`.
    pub overrides: &'s Value,
}

impl FileSchemas<'_> {
    /// The schema of the file of this name; `gateway.yaml`, which may have another, is the first.
    pub(super) fn of_file(&self, index: usize, name: &str) -> &Value {
        match index {
            0 => self.gateway,
            _ if name.ends_with("defaults.yaml") => self.defaults,
            _ => self.overrides,
        }
    }

    /// The keys whose changes take a restart, such as `admin.address`. What is below them does as
    /// well.
    pub fn restart_keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        collect_restart_keys(
            self.gateway,
            self.gateway,
            "",
            &mut HashSet::new(),
            &mut keys,
        );
        keys
    }
}

/// Adds the keys that a value lacks, with their defaults. Keys that depend on others have none in
/// the schema.
pub(super) fn add_defaults(value: &mut Value, schema: &Value, root: &Value) {
    for_each_mapping(value, schema, root, &mut |keys, known| {
        for (key, schema) in known {
            if let (None, Some(default)) = (keys.get(key), schema.get("default")) {
                keys.insert(key.clone(), default.clone());
            }
        }
    });
}

/// Gets a mapping and the schemas of its keys.
type Visit<'v> = dyn FnMut(&mut Map<String, Value>, &Map<String, Value>) + 'v;

/// Visits each mapping, with the schemas of its keys, before what is below it.
pub(super) fn for_each_mapping(
    value: &mut Value,
    schema: &Value,
    root: &Value,
    visit: &mut Visit<'_>,
) {
    for alternative in alternatives(schema, root) {
        for_each_mapping(value, alternative, root, visit);
    }
    let schema = resolved(schema, root);
    match value {
        Value::Object(keys) => {
            if let Some(of_names) = schema.get("additionalProperties") {
                let values = keys.values_mut();
                values.for_each(|value| for_each_mapping(value, of_names, root, visit));
            }
            let known = schema["properties"].as_object();
            let fits = |known: &&Map<_, _>| keys.keys().all(|key| known.contains_key(key));
            let Some(known) = known.filter(fits) else {
                return;
            };
            visit(keys, known);
            for (key, value) in keys {
                for_each_mapping(value, known.get(key).unwrap_or(&Value::Null), root, visit);
            }
        }
        Value::Array(items) => {
            let items = items.iter_mut();
            items.for_each(|item| for_each_mapping(item, &schema["items"], root, visit));
        }
        _ => {}
    }
}

fn collect_restart_keys<'s>(
    schema: &'s Value,
    root: &'s Value,
    path: &str,
    seen: &mut HashSet<&'s str>,
    found: &mut Vec<String>,
) {
    if schema["$ref"]
        .as_str()
        .is_some_and(|name| !seen.insert(name))
    {
        return;
    }
    for alternative in alternatives(schema, root) {
        collect_restart_keys(alternative, root, path, seen, found);
    }
    let properties = resolved(schema, root)["properties"].as_object();
    for (key, schema) in properties.into_iter().flatten() {
        let path = format!("{path}{key}");
        if schema[TAKES_RESTART] == true {
            found.push(path.clone());
        }
        collect_restart_keys(schema, root, &format!("{path}."), seen, found);
    }
}

/// The schema that a reference stands for.
fn resolved<'s>(schema: &'s Value, root: &'s Value) -> &'s Value {
    let pointer = schema["$ref"]
        .as_str()
        .and_then(|name| name.strip_prefix('#'));
    let referred = pointer.and_then(|pointer| root.pointer(pointer));
    referred.unwrap_or(schema)
}

fn alternatives<'s>(schema: &'s Value, root: &'s Value) -> impl Iterator<Item = &'s Value> {
    let schema = resolved(schema, root);
    let all = ["anyOf", "oneOf"].into_iter();
    all.filter_map(|keyword| schema[keyword].as_array())
        .flatten()
}
