//! The OpenAPI document of the admin listener: each path and method of it is asked of a gateway, and the
//! responses are as it says. That it has all paths is tested beside the paths.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::support::*;

const BANS: &str = "bans: {traps: {per: address, strikes: {paths: /trap, count: 1, period: 1h}, \
                    for: 1h, max: 10h, factor: 2}}";

fn gateway(upstream: &Upstream) -> Gateway {
    Setup::before(upstream)
        .limits(&[
            "Calls: {per: address, burst: 5, count: 1, period: 1000h}",
            "Places: {per: address, in_flight: 3}",
            "Days: {per: address, algorithm: fixed_window, burst: 5, count: 5, calendar: day}",
        ])
        .limited_by("Calls, Places, Days")
        .key(BANS)
        .key("client_address: {trusted_proxies: [127.0.0.1]}")
        .overrides(
            "- Calls: {burst: 8, count: 2, period: 24h, ids: [{id: 203.0.113.1, comment: c}]}",
        )
        .start()
}

/// What is sent for each operation: paths, bodies and the statuses to expect.
fn requests() -> HashMap<&'static str, Vec<(&'static str, &'static str, u16)>> {
    const BUCKET: &str = "/v1/buckets/Calls/203.0.113.1";
    const BAN: &str = "/v1/bans/traps/203.0.113.7";
    const OVERRIDE: &str = "/v1/overrides/Calls/203.0.113.8";
    const NETWORK: &str = "/v1/bans/traps/198.51.100.0%2F24";
    HashMap::from([
        ("livez", vec![("/livez", "", 200)]),
        ("readyz", vec![("/readyz", "", 200)]),
        ("metrics", vec![("/metrics", "", 200)]),
        (
            "listTop",
            vec![
                ("/v1/top", "", 200),
                ("/v1/top?limit=Calls&period=hour&sort=rate&count=1", "", 200),
                ("/v1/top?scope=fleet", "", 200),
                ("/v1/top?sort=most", "", 400),
                ("/v1/top?limit=None", "", 404),
            ],
        ),
        (
            "listFindings",
            vec![
                ("/v1/findings", "", 200),
                ("/v1/findings?scope=fleet", "", 200),
                ("/v1/findings?all=1", "", 400),
            ],
        ),
        (
            "listGateways",
            vec![("/v1/gateways", "", 200), ("/v1/gateways?all=1", "", 400)],
        ),
        (
            "listBuckets",
            vec![
                ("/v1/buckets/Calls", "", 200),
                ("/v1/buckets/Calls?count=1", "", 200),
                ("/v1/buckets/Places", "", 200),
                ("/v1/buckets/Days", "", 200),
                ("/v1/buckets/Calls?cursor=x", "", 400),
                ("/v1/buckets/None", "", 404),
            ],
        ),
        (
            "getBucket",
            vec![
                (BUCKET, "", 200),
                ("/v1/buckets/Places/203.0.113.1", "", 200),
                ("/v1/buckets/Days/203.0.113.2", "", 200),
                ("/v1/buckets/Calls/acme", "", 400),
                ("/v1/buckets/None/acme", "", 404),
            ],
        ),
        (
            "refundBucket",
            vec![
                ("/v1/buckets/Calls/203.0.113.1/refund", "", 200),
                ("/v1/buckets/Calls/203.0.113.1/refund", "{\"cost\":-1}", 400),
                ("/v1/buckets/None/203.0.113.1/refund", "", 404),
                ("/v1/buckets/Places/203.0.113.1/refund", "", 409),
            ],
        ),
        (
            "resetBucket",
            vec![
                (BUCKET, "", 200),
                ("/v1/buckets/Places/203.0.113.1", "", 200),
                ("/v1/buckets/Calls/acme", "", 400),
                ("/v1/buckets/None/acme", "", 404),
            ],
        ),
        (
            "setBan",
            vec![
                (BAN, "", 200),
                (NETWORK, "", 200),
                (BAN, "{\"for\": \"2\"}", 400),
                ("/v1/bans/none/203.0.113.7", "", 404),
            ],
        ),
        (
            "getBan",
            vec![
                (BAN, "", 200),
                (NETWORK, "", 200),
                ("/v1/bans/traps/198.51.100.9", "", 200),
                ("/v1/bans/traps/acme", "", 400),
                ("/v1/bans/none/203.0.113.7", "", 404),
            ],
        ),
        (
            "listBans",
            vec![
                ("/v1/bans", "", 200),
                ("/v1/bans?count=1", "", 200),
                ("/v1/bans?count=0", "", 400),
            ],
        ),
        (
            "liftBan",
            vec![
                (BAN, "", 200),
                (NETWORK, "", 200),
                ("/v1/bans/traps/acme", "", 400),
                ("/v1/bans/none/203.0.113.7", "", 404),
            ],
        ),
        (
            "getConfig",
            vec![
                ("/v1/config", "", 200),
                ("/v1/config?defaults=true", "", 200),
                ("/v1/config?all=1", "", 400),
            ],
        ),
        (
            "setOverride",
            vec![
                (
                    OVERRIDE,
                    "{\"burst\": 9, \"count\": 9, \"period\": \"1h\"}",
                    200,
                ),
                (OVERRIDE, "{\"bursts\": 9}", 400),
                (
                    "/v1/overrides/None/203.0.113.8",
                    "{\"burst\": 9, \"count\": 9, \"period\": \"1h\"}",
                    404,
                ),
            ],
        ),
        (
            "listOverrides",
            vec![
                ("/v1/overrides", "", 200),
                ("/v1/overrides?origin=none", "", 400),
            ],
        ),
        (
            "listOverridesOfLimit",
            vec![
                ("/v1/overrides/Calls?origin=file&count=1", "", 200),
                ("/v1/overrides/None", "", 404),
            ],
        ),
        (
            "getOverride",
            vec![
                (OVERRIDE, "", 200),
                ("/v1/overrides/Calls/203.0.113.99", "", 404),
            ],
        ),
        (
            "deleteOverride",
            vec![(OVERRIDE, "", 200), (OVERRIDE, "", 404)],
        ),
        (
            "explain",
            vec![
                (
                    "/v1/explain",
                    "{\"path\": \"/a\", \"ip\": \"203.0.113.9\"}",
                    200,
                ),
                ("/v1/explain", "{}", 400),
            ],
        ),
        // A stream has no end; that it is one is tested with the dashboard.
        ("streamEvents", vec![("/v1/events?tail=1&by=", "", 400)]),
        ("getLogLevel", vec![("/v1/log-level", "", 200)]),
        (
            "setLogLevel",
            vec![
                ("/v1/log-level", "", 400),
                ("/v1/log-level", "{\"level\":\"loud\"}", 400),
            ],
        ),
        ("restoreLogLevel", vec![("/v1/log-level", "", 200)]),
        ("getOpenApi", vec![("/v1/openapi.json", "", 200)]),
    ])
}

/// The part of the document at a place, or the one that it refers to.
fn resolved<'d>(document: &'d Value, place: &'d Value) -> &'d Value {
    match place["$ref"].as_str() {
        Some(reference) => document.pointer(&reference[1..]).unwrap(),
        None => place,
    }
}

/// Fails unless the response is one that the document has for the operation.
fn check(document: &Value, operation: &Value, response: &Response, what: &str) {
    let status = response.status.to_string();
    let described = resolved(document, &operation["responses"][&status]);
    assert!(described.is_object(), "{what}: {status} is not documented");
    let content_type = response.field("content-type").unwrap();
    let media_type = content_type.split(';').next().unwrap();
    let content = &described["content"][media_type];
    assert!(
        content.is_object(),
        "{what}: {media_type} is not documented"
    );
    if !media_type.ends_with("json") {
        return;
    }
    let mut schema = content["schema"].clone();
    schema["components"] = document["components"].clone();
    let validator = jsonschema::draft202012::options()
        .should_validate_formats(true)
        .build(&schema)
        .unwrap();
    let answer = response.json();
    let errors: Vec<String> = validator
        .iter_errors(&answer)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{what}: {answer:#}\n{errors:#?}");
}

#[test]
fn each_response_of_the_admin_api_is_as_the_document_says() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream);
    for subject in ["203.0.113.1", "203.0.113.2"] {
        let request = get("/").with("x-forwarded-for", subject);
        assert_eq!(gateway.send(&request).status, 200);
    }
    // Those of 203.0.113.3 are a finding.
    let abuser = get("/").with("x-forwarded-for", "203.0.113.3");
    gateway.statuses(&abuser, 12);
    let trapped = get("/trap").with("x-forwarded-for", "203.0.113.4");
    assert_eq!(gateway.send(&trapped).status, 200);
    let ask = |method: &str, path: &str, body: &str| {
        let request = match method {
            "POST" => post(path, body),
            "PUT" => put(path, body),
            method => request(method, path),
        };
        gateway.admin(&request.with("host", "localhost"))
    };
    let document = ask("GET", "/v1/openapi.json", "").json();
    assert_eq!(document["openapi"], "3.1.0");
    let requests = requests();
    // What is banned is asked for before it is lifted.
    let order = ["post", "put", "get", "delete"];
    for method in order {
        for (path, operations) in document["paths"].as_object().unwrap() {
            let operation = &operations[method];
            let Some(id) = operation["operationId"].as_str() else {
                continue;
            };
            let asked = requests.get(id);
            let asked = asked.unwrap_or_else(|| panic!("{method} {path} is never asked"));
            for (target, body, status) in asked {
                let what = format!("{method} {target} {body}");
                let response = ask(&method.to_uppercase(), target, body);
                assert_eq!(response.status, *status, "{what}: {}", response.text());
                check(&document, operation, &response, &what);
            }
            // So do the examples of the document itself.
            let examples = operation.pointer("/requestBody/content/application~1json/examples");
            for (name, example) in examples.and_then(Value::as_object).into_iter().flatten() {
                let what = format!("{method} {path}, example {name}");
                let (target, ..) = asked[0];
                let body = example["value"].to_string();
                let response = ask(&method.to_uppercase(), target, &body);
                assert_eq!(response.status, 200, "{what}: {}", response.text());
                check(&document, operation, &response, &what);
            }
        }
    }
    let refused = gateway.admin(&get("/v1/config").with("host", "evil.example.com"));
    check(
        &document,
        &document["paths"]["/v1/config"]["get"],
        &refused,
        "a web page",
    );
    assert_eq!(refused.status, 403);
}

#[test]
fn an_answer_that_the_document_does_not_have_is_noticed() {
    let schema = json!({"type": "object", "additionalProperties": false, "properties": {}});
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    assert!(!validator.is_valid(&json!({"more": 1})));
}
