//! Derives docs/openapi.json from the table of paths, and from the types of bodies and answers. To
//! write it anew: `UPDATE_OPENAPI=1 cargo test -p weir --lib openapi`.

use std::borrow::Cow;
use std::fs;

use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema, json_schema};
use serde_json::{Map, Value, json};

use crate::app::admin_api::responses::{self, DateTime};
use crate::app::admin_api::{endpoints, explain, process, request};
use crate::app::features::{bans, overrides};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/openapi.json");

/// Members that are null or absent; others that may be absent are never null.
const NULL_OR_ABSENT: [&str; 2] = ["name", "offences"];

impl JsonSchema for DateTime {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "DateTime".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let description = "In UTC, to the second.";
        json_schema!({"type": "string", "format": "date-time", "description": description})
    }
}

/// What a method of a path does.
struct Operation {
    described: Map<String, Value>,
    parameters: Vec<Value>,
    responses: Map<String, Value>,
}

fn operation(id: &str, summary: &str, tag: &str) -> Operation {
    let described = json!({"operationId": id, "summary": summary, "tags": [tag]});
    let operation = Operation {
        described: described.as_object().unwrap().clone(),
        parameters: Vec::new(),
        responses: Map::new(),
    };
    operation.refuses(&[400, 401, 403, 429])
}

impl Operation {
    fn parameters(mut self, names: &[&str]) -> Self {
        let refer = |name| json!({"$ref": format!("#/components/parameters/{name}")});
        self.parameters.extend(names.iter().map(refer));
        self
    }

    fn query(mut self, name: &str, description: &str, schema: Value) -> Self {
        self.parameters.push(query(name, description, schema));
        self
    }

    fn scope(self) -> Self {
        let words = json!({"enum": ["gateway", "fleet"], "default": "gateway"});
        self.query("scope", "Whose figures are counted.", words)
    }

    fn body<T: JsonSchema>(mut self, examples: Value) -> Self {
        let settings = SchemaSettings::draft2020_12().for_deserialize();
        let inline = settings.with(|settings| settings.inline_subschemas = true);
        let mut schema = T::json_schema(&mut inline.into_generator());
        RecursiveTransform(adapt).transform(&mut schema);
        let examples = examples.as_object().unwrap().iter();
        let examples = examples.map(|(name, value)| (name.clone(), json!({ "value": value })));
        let examples = Value::Object(examples.collect());
        let content = json!({"application/json": {"schema": schema, "examples": examples}});
        let body = json!({"required": false, "content": content});
        self.described.insert("requestBody".to_owned(), body);
        self
    }

    fn responses<T: JsonSchema>(self, description: &str, schemas: &mut SchemaGenerator) -> Self {
        let schema = schemas.subschema_for::<T>();
        self.responds(200, description, "application/json", json!(schema))
    }

    fn responds(mut self, status: u16, text: &str, media_type: &str, schema: Value) -> Self {
        let content = json!({ media_type: { "schema": schema } });
        let response = json!({"description": text, "content": content});
        self.responses.insert(status.to_string(), response);
        self
    }

    fn refuses(mut self, statuses: &[u16]) -> Self {
        for status in statuses {
            let (_, name, _) = REFUSALS.iter().find(|(of, ..)| of == status).unwrap();
            let refusal = json!({"$ref": format!("#/components/responses/{name}")});
            self.responses.insert(status.to_string(), refusal);
        }
        self
    }

    fn into_json(mut self) -> Value {
        if !self.parameters.is_empty() {
            let parameters = self.parameters.into();
            self.described.insert("parameters".to_owned(), parameters);
        }
        self.responses.sort_keys();
        let responses = self.responses.into();
        self.described.insert("responses".to_owned(), responses);
        self.described.into()
    }
}

/// What each method of each path does.
fn described(method: &str, path: &str, schemas: &mut SchemaGenerator) -> Operation {
    match (method, path) {
        ("GET", "/v1/top") => operation(
            "listTop",
            "Subjects that send most, are denied most, or are nearest to a limit",
            "buckets",
        )
        .query("limit", "Of this limit alone.", json!({"type": "string"}))
        .query(
            "sort",
            "What comes first.",
            json!({"enum": ["rate", "denied", "remaining"], "default": "rate"}),
        )
        .query(
            "period",
            "Over how long.",
            json!({"enum": ["minute", "hour"], "default": "minute"}),
        )
        .query(
            "count",
            "How many.",
            json!({"type": "integer", "minimum": 0, "default": 20}),
        )
        .scope()
        .responses::<weir_console::top::Top>("The subjects.", schemas)
        .refuses(&[404]),
        ("GET", "/v1/findings") => operation(
            "listFindings",
            "The subjects that need attention, the worst first, with what can be done about each",
            "buckets",
        )
        .scope()
        .responses::<weir_console::findings::Findings>("The findings.", schemas),
        ("GET", "/v1/gateways") => operation(
            "listGateways",
            "The gateways that share the store, and how their configurations differ",
            "process",
        )
        .responses::<weir_console::fleet::Gateways>("The gateways.", schemas),
        ("GET", "/v1/buckets/{limit}") => operation(
            "listBuckets",
            "Known subjects of a limit, each with what remains",
            "buckets",
        )
        .parameters(&["limit", "count", "cursor"])
        .responses::<responses::BucketPage>("A page of them.", schemas)
        .refuses(&[404, 503]),
        ("GET", "/v1/buckets/{limit}/{subject}") => {
            operation("getBucket", "A bucket, without spending from it", "buckets")
                .parameters(&["limit", "subject"])
                .responses::<responses::Bucket>("The bucket.", schemas)
                .refuses(&[404, 503])
        }
        ("DELETE", "/v1/buckets/{limit}/{subject}") => operation(
            "resetBucket",
            "Makes a bucket full, or releases all places of an in_flight limit",
            "buckets",
        )
        .parameters(&["limit", "subject"])
        .responses::<responses::Bucket>("The bucket afterwards.", schemas)
        .refuses(&[404, 503]),
        ("POST", "/v1/buckets/{limit}/{subject}/refund") => {
            operation("refundBucket", "Gives units back to a bucket", "buckets")
                .parameters(&["limit", "subject"])
                .body::<request::Refund>(json!({"units": {"cost": 5}}))
                .responses::<responses::Bucket>("The bucket afterwards.", schemas)
                .refuses(&[404, 409, 503])
        }
        ("GET", "/v1/bans") => operation(
            "listBans",
            "All bans that hold, on whichever gateway they began",
            "bans",
        )
        .parameters(&["count", "cursor"])
        .responses::<bans::BanPage>("A page of them.", schemas)
        .refuses(&[503]),
        ("GET", "/v1/bans/{ban}/{subject}") => operation(
            "getBan",
            "The ban, the strikes and the offences of a subject",
            "bans",
        )
        .parameters(&["ban", "banned"])
        .responses::<bans::Ban>("The ban.", schemas)
        .refuses(&[404, 503]),
        ("PUT", "/v1/bans/{ban}/{subject}") => operation(
            "setBan",
            "Bans a subject, or every address of a network, from now on",
            "bans",
        )
        .parameters(&["ban", "banned"])
        .body::<bans::Setting>(json!({
            "duration": {"for": "2h"},
            "forGood": {"for": "forever", "comment": "scrapers"},
            "until": {"until": "2099-12-31"},
        }))
        .responses::<bans::Ban>("The ban afterwards.", schemas)
        .refuses(&[404, 409, 503]),
        ("DELETE", "/v1/bans/{ban}/{subject}") => operation(
            "liftBan",
            "Deletes the ban, the strikes and the offences",
            "bans",
        )
        .parameters(&["ban", "banned"])
        .responses::<bans::Ban>("The ban afterwards.", schemas)
        .refuses(&[404, 503]),
        ("GET", "/v1/overrides") => operation(
            "listOverrides",
            "Overrides of files and of the admin API",
            "overrides",
        )
        .parameters(&["origin", "offset", "most"])
        .responses::<overrides::OverridePage>("A page of them.", schemas),
        ("GET", "/v1/overrides/{limit}") => {
            operation("listOverridesOfLimit", "Those of a limit", "overrides")
                .parameters(&["limit", "origin", "offset", "most"])
                .responses::<overrides::OverridePage>("A page of them.", schemas)
                .refuses(&[404])
        }
        ("GET", "/v1/overrides/{limit}/{id}") => {
            let response = "That of the admin API, and that of a file.";
            operation("getOverride", "Those of an id", "overrides")
                .parameters(&["limit", "id", "origin", "offset", "most"])
                .responses::<overrides::OverridePage>(response, schemas)
                .refuses(&[404])
        }
        ("PUT", "/v1/overrides/{limit}/{id}") => {
            let example = json!({
                "burst": 50, "count": 50, "period": "1m", "comment": "incident 7", "for": "2h",
            });
            operation("setOverride", "Gives an id other parameters", "overrides")
                .parameters(&["limit", "id"])
                .body::<overrides::OverrideBody>(json!({ "forATime": example }))
                .responses::<overrides::ListedOverride>("The override.", schemas)
                .refuses(&[404, 409, 500, 503])
        }
        ("DELETE", "/v1/overrides/{limit}/{id}") => operation(
            "deleteOverride",
            "Deletes an override of the admin API",
            "overrides",
        )
        .parameters(&["limit", "id"])
        .responses::<overrides::OverridePage>("Those of the id that are left.", schemas)
        .refuses(&[404, 500, 503]),
        ("POST", "/v1/explain") => {
            let example = json!({"path": "/a", "ip": "203.0.113.9", "headers": ["a: b"]});
            operation(
                "explain",
                "What would become of a request with the configuration in force",
                "process",
            )
            .body::<explain::Explained>(json!({ "request": example }))
            .responses::<responses::Explanation>("The text of `weir explain`.", schemas)
        }
        ("GET", "/v1/events") => {
            let text = || json!({"type": "string"});
            let busy = "As many clients watch as may.";
            operation(
                "streamEvents",
                "What the gateway does, as server-sent events",
                "process",
            )
            .query(
                "tail",
                "With the requests as they finish.",
                json!({"enum": ["true"]}),
            )
            .query("decision", "Those decided so, by comma.", text())
            .query("by", "Those that this limit or ban decided.", text())
            .query("route", "Those of this route.", text())
            .query("text", "Those with this text.", text())
            .responds(
                200,
                "A stream, until the gateway drains.",
                "text/event-stream",
                text(),
            )
            .responds(503, busy, PROBLEM, problem())
        }
        ("GET", "/v1/config") => operation(
            "getConfig",
            "The configuration in force, without its secrets",
            "process",
        )
        .query(
            "defaults",
            "With the defaults of keys that are left out.",
            json!({"enum": ["true"]}),
        )
        .responses::<responses::Config>("The configuration.", schemas),
        ("GET", "/v1/log-level") => operation("getLogLevel", "The level of the log", "process")
            .responses::<responses::LogLevel>("The level.", schemas),
        ("PUT", "/v1/log-level") => operation(
            "setLogLevel",
            "Logs by another level, until the process ends or for a time",
            "process",
        )
        .body::<process::Setting>(json!({
            "level": {"level": "info"},
            "forATime": {"level": "info,weir::proxy=debug", "for": "10m"},
        }))
        .responses::<responses::LogLevel>("The level from now on.", schemas),
        ("DELETE", "/v1/log-level") => operation(
            "restoreLogLevel",
            "Logs by the configured level again",
            "process",
        )
        .responses::<responses::LogLevel>("The level from now on.", schemas),
        ("GET", "/v1/openapi.json") => operation("getOpenApi", "This document", "process")
            .responds(
                200,
                "This document.",
                "application/json",
                json!({"type": "object"}),
            ),
        _ => panic!("{method} {path} is not described"),
    }
}

const PROBLEM: &str = "application/problem+json";

/// Statuses that mean the same wherever they occur: their names, and what they mean.
const REFUSALS: [(u16, &str, &str); 8] = [
    (
        400,
        "BadRequest",
        "Something does not have the right form; `detail` says what to write.",
    ),
    (401, "Unauthorized", "The token is missing or wrong."),
    (
        429,
        "TooManyRequests",
        "Wrong tokens come from the same address, and the request has waited ten seconds for its turn, \
         or sixteen others wait.",
    ),
    (
        403,
        "Forbidden",
        "The token may only read, or there is none and another machine asks.",
    ),
    (
        404,
        "NotFound",
        "There is no limit or ban of that name, or the limit does not count the subject.",
    ),
    (
        409,
        "InFlight",
        "A place of an in_flight limit cannot be refunded; or there are too many overrides, or standing \
         bans.",
    ),
    (
        500,
        "Storage",
        "The file of overrides cannot be read or written.",
    ),
    (
        503,
        "OutOfReach",
        "The store did not reply within a second.",
    ),
];

fn problem() -> Value {
    json!({"$ref": "#/components/schemas/Problem"})
}

fn query(name: &str, description: &str, schema: Value) -> Value {
    json!({
        "name": name, "in": "query", "required": false, "description": description, "schema": schema,
    })
}

fn path_parameter(name: &str, description: &str) -> Value {
    json!({
        "name": name,
        "in": "path",
        "required": true,
        "description": description,
        "schema": {"type": "string"},
    })
}

/// The parameters that several operations have.
fn parameters() -> Value {
    let from =
        |least: u64, default: u64| json!({"type": "integer", "minimum": least, "default": default});
    let mut page = from(1, 100);
    page["maximum"] = 1000.into();
    json!({
        "limit": path_parameter("limit", "The name of a limit that a route uses."),
        "subject": path_parameter(
            "subject",
            "As the id of an override is written, such as an address or an account.",
        ),
        "ban": path_parameter("ban", "The name of a ban."),
        "banned": path_parameter(
            "subject",
            "A subject of the ban; of one per address also a network, such as `203.0.113.0/24`.",
        ),
        "id": path_parameter("id", "The id of an override."),
        "origin": query("origin", "Where they come from.", json!({"enum": ["api", "file"]})),
        "offset": query("offset", "How many to skip.", from(0, 0)),
        "most": query("count", "How many at most.", from(0, 1000)),
        "count": query("count", "The most items of a page.", page),
        "cursor": query("cursor", "The `next` of the page before.", json!({"type": "string"})),
    })
}

/// The paths of the admin listener that are not of the API.
fn listener_paths() -> Value {
    let text = |description: &str| {
        let content = json!({"text/plain": {"schema": {"type": "string"}}});
        json!({"description": description, "content": content})
    };
    let mut metrics = text("All metrics.");
    metrics["content"]["application/openmetrics-text"] = json!({"schema": {"type": "string"}});
    let get = |id: &str, summary: &str, responses: Value| {
        json!({"get": {
            "operationId": id, "summary": summary, "responses": responses, "security": [],
        }})
    };
    json!({
        "/livez": get("livez", "Whether the process responds", json!({"200": text("It does.")})),
        "/readyz": get(
            "readyz",
            "Whether the gateway is ready for requests",
            json!({
                "200": text("It is; `ready`, and what it lacks."),
                "503": text("It is not, for this reason, or drains."),
            }),
        ),
        "/metrics": get("metrics", "Metrics for Prometheus", json!({ "200": metrics })),
    })
}

/// Says what holds in the whole document: all members are known, no number is negative, and the
/// width of integers is of no concern.
fn adapt(schema: &mut Schema) {
    let Some(members) = schema.as_object_mut() else {
        return;
    };
    members.retain(|name, value| name != "format" || value == "date-time");
    if let Some(Value::String(description)) = members.get_mut("description") {
        *description = description.replace('\n', " ");
    }
    if let Some(words) = members.get("oneOf").and_then(described_words) {
        *members = words;
    }
    if members
        .get("type")
        .is_some_and(|kinds| is_or_has(kinds, "number"))
    {
        members.insert("minimum".to_owned(), 0.into());
    }
    let required = members.get("required").cloned().unwrap_or_default();
    if let Some(Value::Object(properties)) = members.get_mut("properties") {
        for (name, property) in properties {
            if !is_or_has(&required, name) && !NULL_OR_ABSENT.contains(&name.as_str()) {
                remove_null(property);
            }
        }
        members.insert("additionalProperties".to_owned(), false.into());
    }
}

/// An enum of words whose descriptions are in one, as generators of clients know it.
fn described_words(alternatives: &Value) -> Option<Map<String, Value>> {
    let alternatives = alternatives.as_array()?;
    let words: Option<Vec<&Value>> = alternatives.iter().map(|one| one.get("const")).collect();
    let described = alternatives.iter().map(|one| {
        let description = one["description"].as_str()?.trim_end_matches('.');
        Some(format!("`{}`: {description}", one["const"].as_str()?))
    });
    let described: Option<Vec<String>> = described.collect();
    let description = described?.join("; ") + ".";
    let words = json!({"type": "string", "enum": words?, "description": description});
    words.as_object().cloned()
}

fn is_or_has(one_or_many: &Value, wanted: &str) -> bool {
    let many = one_or_many.as_array().map(Vec::as_slice);
    let mut all = many.unwrap_or(std::slice::from_ref(one_or_many)).iter();
    all.any(|value| value == wanted)
}

fn remove_null(property: &mut Value) {
    if property["type"] == json!([property["type"][0], "null"]) {
        property["type"] = property["type"][0].take();
    }
}

fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let settings =
        settings.with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut schemas = settings
        .with_transform(RecursiveTransform(adapt))
        .into_generator();
    let mut paths = listener_paths();
    for entry in endpoints() {
        for method in entry.methods.split(", ").filter(|method| *method != "HEAD") {
            let operation = described(method, entry.template, &mut schemas);
            paths[entry.template][method.to_lowercase()] = operation.into_json();
        }
    }
    let refusals = REFUSALS.iter().map(|(_, name, description)| {
        let content = json!({ PROBLEM: { "schema": problem() } });
        (
            (*name).to_owned(),
            json!({"description": description, "content": content}),
        )
    });
    let token = "One of `admin.token` and `admin.tokens`. Without any, only this machine may ask.";
    let mut definitions = schemas.take_definitions(true);
    let problem = json!({
        "type": "object",
        "description": "Problem details (RFC 9457).",
        "required": ["title", "status", "detail"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer", "minimum": 0},
            "detail": {"type": "string"},
        },
    });
    definitions.insert("Problem".to_owned(), problem);
    definitions.sort_keys();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Weir's admin API",
            "version": "1",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
            "description": "What has GET has HEAD. A `/` within a parameter of a path is written `%2F`.",
        },
        "servers": [{"url": "http://127.0.0.1:9901"}],
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": token},
            },
            "parameters": parameters(),
            "responses": Value::Object(refusals.collect()),
            "schemas": definitions,
        },
    })
}

#[test]
fn the_document_is_derived_from_the_types_of_bodies_and_answers() {
    let derived = format!("{}\n", serde_json::to_string_pretty(&document()).unwrap());
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        fs::write(FILE, &derived).unwrap();
    }
    let written = fs::read_to_string(FILE).unwrap();
    assert!(
        derived == written,
        "{FILE} is another: write it by UPDATE_OPENAPI=1"
    );
}
