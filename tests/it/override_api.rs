//! Overrides by the admin API: in force everywhere, for as long as they should be, and checked as
//! those of files are.

use std::fs;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::redis;
use crate::support::gateway::WEIR;
use crate::support::*;

const LIMIT: &str = "Calls: {per: account, burst: 3, count: 1, period: 1000h}";
const ACME: &str = "/v1/overrides/Calls/acme";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// What Redis has of overrides.
fn kept(server: &RedisServer) -> String {
    server.command(&["ZRANGE", "weir::list:overrides", "0", "-1"])
}

/// A gateway that counts `x-api-key`.
fn setup(upstream: &Upstream) -> Setup {
    Setup::before(upstream)
        .limits(&[LIMIT])
        .limited_by("Calls")
        .key("account: [header: x-api-key]")
        .file("hash.key", "a key that gateways share")
        .key("hash_key: {file: hash.key}")
}

fn on_redis(upstream: &Upstream, server: &RedisServer) -> Setup {
    setup(upstream).key(&redis::store(&server.url()))
}

fn account(name: &str) -> Request {
    get("/").with("x-api-key", name)
}

/// Asks as this machine's own tools do.
fn ask(gateway: &Gateway, request: Request) -> Response {
    gateway.admin(&request.with("host", "127.0.0.1:9901"))
}

fn body(burst: u64) -> Value {
    json!({ "burst": burst, "count": 1, "period": "1000h" })
}

fn set(gateway: &Gateway, path: &str, body: &Value) -> Value {
    let response = ask(gateway, put(path, &body.to_string()));
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

fn delete(gateway: &Gateway, path: &str) {
    let response = ask(gateway, request("DELETE", path));
    assert_eq!(response.status, 200, "{}", response.text());
}

fn listed(gateway: &Gateway, path: &str) -> Vec<Value> {
    let response = ask(gateway, get(path));
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()["overrides"].as_array().unwrap().clone()
}

/// The burst that a gateway goes by for an account.
fn burst(gateway: &Gateway, name: &str) -> u64 {
    let response = ask(gateway, get(&format!("/v1/buckets/Calls/{name}")));
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()["burst"].as_u64().unwrap()
}

fn holds(gateway: &Gateway, name: &str, expected: u64) {
    eventually(&format!("a burst of {expected} for {name}"), || {
        (burst(gateway, name) == expected).then_some(())
    });
}

/// So many pass, and not one more.
fn admits(gateway: &Gateway, name: &str, burst: usize) {
    let statuses = gateway.statuses(&account(name), burst + 1);
    let expected: Vec<u16> = (0..burst).map(|_| 200).chain([429]).collect();
    assert_eq!(statuses, expected, "{name}");
}

#[test]
fn an_override_holds_on_all_gateways_of_a_redis_until_it_is_deleted_on_any() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let setup = on_redis(&upstream, &server);
    let (one, other) = (setup.start(), setup.start());
    set(&one, ACME, &body(5));
    // It holds at once where it was set.
    assert_eq!(burst(&one, "acme"), 5);
    holds(&other, "acme", 5);
    admits(&other, "acme", 5);
    assert_eq!(one.statuses(&account("acme"), 1), [429]);
    admits(&other, "someone", 3);

    drop((one, other));
    let (one, other) = (setup.start(), setup.start());
    // It was read before the first request.
    assert_eq!((burst(&one, "acme"), burst(&other, "acme")), (5, 5));
    let listed = listed(&other, "/v1/overrides?origin=api");
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (&listed[0]["id"], &listed[0]["in_force"]),
        (&json!("acme"), &json!(true))
    );

    delete(&other, ACME);
    assert_eq!(burst(&other, "acme"), 3);
    holds(&one, "acme", 3);
    let again = ask(&one, request("DELETE", ACME));
    assert_eq!(again.status, 404, "{}", again.text());
}

#[test]
fn an_override_ends_by_itself_and_is_removed_from_redis() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let setup = on_redis(&upstream, &server);
    let (one, other) = (setup.start(), setup.start());
    let lasting = json!({ "burst": 5, "count": 1, "period": "1000h", "for": "3s" });
    // On a slow machine it may have ended before it is kept, which is refused.
    eventually("an override for three seconds", || {
        let response = ask(&one, put(ACME, &lasting.to_string()));
        (response.status == 200).then_some(())
    });
    for gateway in [&one, &other] {
        holds(gateway, "acme", 3);
    }
    eventually("the override is removed", || {
        (!kept(&server).contains("acme")).then_some(())
    });
    let ended = one.times_logged("override ended") + other.times_logged("override ended");
    assert!(ended <= 1, "{ended}");
    eventually("the list without it", || {
        listed(&one, "/v1/overrides").is_empty().then_some(())
    });
}

#[test]
fn overrides_outlive_a_redis_that_forgets_them() {
    let mut server = RedisServer::start();
    let upstream = Upstream::start();
    let store = redis::store(&server.url()).replace("deny", "local");
    let gateway = setup(&upstream).key(&store).start();
    set(&gateway, ACME, &body(5));
    server.kill();
    let refused = eventually("a refusal while Redis is out of reach", || {
        let response = ask(
            &gateway,
            put("/v1/overrides/Calls/other", &body(9).to_string()),
        );
        (response.status == 503).then_some(response)
    });
    assert_eq!(refused.field("retry-after"), Some("1"));
    gateway.logs("overrides by the admin API cannot be read", 1);
    // The memory store decides meanwhile.
    eventually("the fallback", || {
        (gateway.send(&account("probe")).status == 200).then_some(())
    });
    admits(&gateway, "acme", 5);
    server.restart();
    eventually("the override is in Redis again", || {
        kept(&server).contains("acme").then_some(())
    });
    gateway.logs("overrides by the admin API can be read again", 1);
    assert_eq!(listed(&gateway, "/v1/overrides").len(), 1);
}

#[test]
fn a_redis_user_without_the_rights_is_told_of_and_limits_go_on() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    server.command(&["ACL", "SETUSER", "default", "-zscore"]);
    let gateway = on_redis(&upstream, &server).start();
    admits(&gateway, "acme", 3);
    let refused = ask(&gateway, put(ACME, &body(5).to_string()));
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("zscore"), "{}", refused.text());
    gateway.logs("overrides by the admin API cannot be read", 1);
    server.command(&["ACL", "SETUSER", "default", "+@all"]);
    set(&gateway, ACME, &body(5));
}

/// A setup whose overrides are kept in this folder.
fn in_memory(upstream: &Upstream, folder: &TempDir) -> Setup {
    let path = folder.path().join("kept.json");
    let setup = setup(upstream);
    let listener = "admin: {address: \"127.0.0.1:0\"";
    let text = format!("{listener}, overrides_file: \"{}\"", path.display());
    setup.basis_with(listener, &text)
}

#[test]
fn with_the_memory_store_overrides_are_in_a_file_that_survives_a_restart() {
    let folder = TempDir::new().unwrap();
    let upstream = Upstream::start();
    let setup = in_memory(&upstream, &folder);
    let gateway = setup.start();
    set(&gateway, ACME, &body(5));
    set(&gateway, "/v1/overrides/Calls/caf%C3%A9%2Fa", &body(4));
    drop(gateway);
    let gateway = setup.start();
    admits(&gateway, "acme", 5);
    let ids = listed(&gateway, "/v1/overrides/Calls");
    let ids: Vec<_> = ids
        .iter()
        .map(|listed| listed["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["acme", "caf\u{e9}/a"]);
    delete(&gateway, "/v1/overrides/Calls/caf%C3%A9%2Fa");

    // Another process with the same file follows it.
    let other = setup.start();
    delete(&other, ACME);
    holds(&gateway, "acme", 3);
}

#[test]
fn a_corrupt_file_is_named_and_neither_replaced_nor_believed() {
    let folder = TempDir::new().unwrap();
    let upstream = Upstream::start();
    let setup = in_memory(&upstream, &folder);
    let path = folder.path().join("kept.json");
    let gateway = setup.start();
    set(&gateway, ACME, &body(5));
    let whole = fs::read_to_string(&path).unwrap();
    let half = &whole[..whole.len() / 2];
    fs::write(&path, half).unwrap();
    gateway.logs("overrides by the admin API cannot be read", 1);
    let refused = ask(&gateway, put(ACME, &body(9).to_string()));
    assert_eq!(refused.status, 500);
    assert!(refused.text().contains("kept.json"), "{}", refused.text());
    assert_eq!(burst(&gateway, "acme"), 5);
    assert_eq!(fs::read_to_string(&path).unwrap(), half);

    // A gateway that starts serves without them, and says so.
    let other = setup.start();
    other.logs("overrides by the admin API cannot be read", 1);
    assert_eq!(burst(&other, "acme"), 3);
    fs::write(&path, &whole).unwrap();
    holds(&other, "acme", 5);
}

#[test]
fn an_override_takes_the_place_of_a_files_for_the_same_id_and_the_most_exact_one_applies() {
    let upstream = Upstream::start();
    let setup = setup(&upstream).overrides(
        "- Calls: {burst: 4, count: 1, period: 1000h, ids: [{id: acme, comment: contract}]}\n",
    );
    let gateway = setup.start();
    assert_eq!(burst(&gateway, "acme"), 4);
    set(&gateway, "/v1/overrides/Calls/acm%2A", &body(9));
    // A file's is more exact.
    assert_eq!((burst(&gateway, "acme"), burst(&gateway, "acmx")), (4, 9));
    admits(&gateway, "acmx", 9);
    set(&gateway, ACME, &body(6));
    assert_eq!(burst(&gateway, "acme"), 6);
    let all = listed(&gateway, "/v1/overrides/Calls/acme");
    let shown: Vec<_> = all
        .iter()
        .map(|listed| (&listed["origin"], &listed["in_force"]))
        .collect();
    let (yes, no) = (json!(true), json!(false));
    assert_eq!(shown, [(&json!("api"), &yes), (&json!("file"), &no)]);
    // Another spelling of the same subject would be a second one for it.
    let bucket = ask(&gateway, get("/v1/buckets/Calls/acme")).json();
    let hash = bucket["key"]
        .as_str()
        .unwrap()
        .strip_prefix("Calls:")
        .unwrap();
    let twice = ask(
        &gateway,
        put(
            &format!("/v1/overrides/Calls/hash:{hash}"),
            &body(7).to_string(),
        ),
    );
    assert_eq!(twice.status, 400);
    assert!(
        twice.text().contains("overridden already"),
        "{}",
        twice.text()
    );

    let explained = weir(
        &gateway,
        &[
            "explain",
            "--path",
            "/",
            "--ip",
            "192.0.2.1",
            "--header",
            "x-api-key:acme",
        ],
    );
    let explained = String::from_utf8(explained.stdout).unwrap();
    assert!(
        explained.contains("overridden for acme (by the admin API)"),
        "{explained}"
    );
    delete(&gateway, ACME);
    assert_eq!(burst(&gateway, "acme"), 4);
}

#[test]
fn a_reload_keeps_overrides_and_those_that_do_not_fit_any_more_wait() {
    let upstream = Upstream::start();
    let setup = setup(&upstream).limits(&[
        LIMIT,
        "Logins: {per: address, burst: 3, count: 1, period: 1h}",
    ]);
    let setup = setup.limited_by("Calls, Logins");
    let gateway = setup.start();
    set(&gateway, ACME, &body(5));
    set(&gateway, "/v1/overrides/Logins/10.0.0.0%2F8", &body(7));
    let in_force = |limit: &str| {
        let listed = listed(&gateway, "/v1/overrides?origin=api");
        let of_limit = listed.iter().find(|listed| listed["limit"] == limit);
        of_limit.unwrap()["in_force"].as_bool().unwrap()
    };
    gateway.write(
        "gateway.yaml",
        &setup.clone().limited_by("Calls").gateway_yaml(),
    );
    gateway.write("limits/defaults.yaml", &format!("{LIMIT}\n"));
    gateway.reload();
    gateway.logs("this override by the admin API is not in force", 1);
    assert_eq!((in_force("Calls"), in_force("Logins")), (true, false));
    assert_eq!(burst(&gateway, "acme"), 5);
    gateway.write("gateway.yaml", &setup.gateway_yaml());
    // The ids are of another kind now.
    gateway.write(
        "limits/defaults.yaml",
        &format!("{LIMIT}\nLogins: {{per: method, burst: 3, count: 1, period: 1h}}\n"),
    );
    gateway.reload();
    assert!(!in_force("Logins"));
    gateway.write(
        "limits/defaults.yaml",
        &format!("{LIMIT}\nLogins: {{per: address, burst: 3, count: 1, period: 1h}}\n"),
    );
    gateway.reload();
    assert!(in_force("Logins"));
}

#[test]
fn what_is_not_an_override_is_refused_with_what_to_write() {
    let upstream = Upstream::start();
    let setup = setup(&upstream).limits(&[
        LIMIT,
        "PerAddress: {per: address, burst: 3, count: 1, period: 1h}",
        "Exports: {per: account, in_flight: 2}",
        "Daily: {per: account, algorithm: fixed_window, calendar: day, count: 5}",
    ]);
    let setup = setup.limited_by("Calls, PerAddress, Exports, Daily");
    let gateway = setup.start();
    let long = "x".repeat(2_000);
    let huge = format!("{{\"comment\": \"{}\"}}", "x".repeat(100_000));
    for (path, body, status, said) in [
        ("Callz/a", "{}", 404, "did you mean"),
        ("Calls/a", "", 400, "The body must be such as"),
        ("Calls/a", "[]", 400, "The body must be such as"),
        ("Calls/a", "{\"brust\": 5}", 400, "not a key"),
        ("Calls/a", "{}", 400, "burst"),
        (
            "Calls/a",
            "{\"burst\": 0, \"count\": 1, \"period\": \"1h\"}",
            400,
            "at least 1",
        ),
        (
            "Calls/a",
            "{\"burst\": -1, \"count\": 1, \"period\": \"1h\"}",
            400,
            "burst: ",
        ),
        (
            "Calls/a",
            "{\"burst\": \"many\", \"count\": 1, \"period\": \"1h\"}",
            400,
            "burst: ",
        ),
        (
            "Calls/a",
            "{\"burst\": 5, \"count\": 1, \"period\": \"soon\"}",
            400,
            "period: ",
        ),
        (
            "Calls/a",
            "{\"burst\": 5, \"count\": 1, \"period\": {}}",
            400,
            "period: ",
        ),
        (
            "Calls/a",
            "{\"burst\": 5, \"count\": 1, \"period\": \"1h\", \"comment\": [1]}",
            400,
            "comment",
        ),
        (
            "Calls/a",
            "{\"burst\": 5, \"count\": 1, \"period\": \"1h\", \"until\": \"2001-01-01\"}",
            400,
            "in the past",
        ),
        (
            "Calls/a",
            "{\"burst\": 5, \"count\": 1, \"period\": \"1h\", \"until\": \"soon\"}",
            400,
            "until: ",
        ),
        ("Calls/a", "{\"in_flight\": 5}", 400, "in_flight: "),
        (
            "Exports/a",
            "{\"burst\": 5, \"count\": 1, \"period\": \"1h\"}",
            400,
            "in_flight",
        ),
        (
            "Daily/a",
            "{\"count\": 5, \"period\": \"1h\"}",
            400,
            "period: ",
        ),
        (
            "PerAddress/acme",
            "{\"burst\": 5, \"count\": 1, \"period\": \"1h\"}",
            400,
            "not an address",
        ),
        (
            "PerAddress/10.0.0.1%2F8",
            "{\"burst\": 5, \"count\": 1, \"period\": \"1h\"}",
            400,
            "10.0.0.0/8",
        ),
        (
            "Calls/",
            "{\"burst\": 5, \"count\": 1, \"period\": \"1h\"}",
            400,
            "the id is empty",
        ),
        (
            "Calls/a%2Ab%2A",
            "{\"burst\": 5, \"count\": 1, \"period\": \"1h\"}",
            400,
            "more than one `*`",
        ),
        ("Calls/%FF", "{}", 400, "UTF-8"),
        ("Calls/a/b", "{}", 404, "%2F"),
        (
            &format!("Calls/{long}"),
            "{\"burst\": 5, \"count\": 1, \"period\": \"1h\"}",
            400,
            "shorten",
        ),
        ("Calls/a", &huge, 400, "limit"),
    ] {
        let response = ask(&gateway, put(&format!("/v1/overrides/{path}"), body));
        let text = response.text();
        assert_eq!(response.status, status, "{path} {body:.80}: {text}");
        assert!(text.contains(said), "{path} {body:.80}: {text}");
        assert_eq!(
            response.field("content-type"),
            Some("application/problem+json")
        );
    }
    assert!(listed(&gateway, "/v1/overrides").is_empty());
    set(
        &gateway,
        "/v1/overrides/Exports/a",
        &json!({ "in_flight": 5 }),
    );
    set(&gateway, "/v1/overrides/Daily/a", &json!({ "count": 50 }));
    let text = "a \"b\" 'c' \\ \t\n\r\u{1}\u{7f}\u{85}\u{2028}\u{1f600} # : - {";
    let odd = json!({ "burst": 5, "count": 1, "period": "1h", "comment": text });
    let shown = set(&gateway, "/v1/overrides/Calls/a%22%0A%7B%F0%9F%98%80", &odd);
    assert_eq!(
        (&shown["comment"], &shown["in_force"]),
        (&json!(text), &json!(true))
    );
    assert_eq!(shown["id"], "a\"\n{\u{1f600}");
    let tall = json!({ "burst": 2_000_000, "count": 1_000_000, "period": "1h" });
    let warned = set(&gateway, "/v1/overrides/Calls/tall", &tall);
    assert!(
        warned["warnings"][0]
            .as_str()
            .unwrap()
            .contains("limits nothing"),
        "{warned}"
    );
}

/// What a client sees of a limit, request by request.
fn seen(gateway: &Gateway, name: &str) -> Vec<(u16, Option<String>, Option<String>)> {
    let mut client = gateway.client();
    let one = |_| {
        let response = client.send(&account(name));
        let policy = response.field("ratelimit-policy").map(str::to_owned);
        let remaining = response.field("ratelimit").and_then(|field| {
            let (_, rest) = field.split_once(";r=")?;
            Some(rest.split(';').next()?.to_owned())
        });
        (response.status, policy, remaining)
    };
    (0..8).map(one).collect()
}

#[test]
fn an_override_decides_as_the_same_one_in_a_file_does() {
    let upstream = Upstream::start();
    let limits = [
        (
            "burst: 3, count: 1, period: 1000h",
            "burst: 5, count: 2, period: 2000h",
        ),
        (
            "burst: 3, count: 1, period: 1000h",
            "burst: 1, count: 1, period: 1000h",
        ),
        (
            "algorithm: fixed_window, align: first_request, count: 3, period: 1000h",
            "count: 6, period: 900h",
        ),
        (
            "algorithm: sliding_window, count: 3, period: 1000h",
            "count: 2, period: 500h",
        ),
        (
            "algorithm: sliding_log, count: 3, period: 1000h",
            "count: 4, period: 1000h",
        ),
    ];
    let names = ["acme", "acme-eu", "other"];
    for (limit, parameters) in limits {
        let setup = setup(&upstream).limits(&[&format!("Calls: {{per: account, {limit}}}")]);
        let ids = ["acme", "acme-*"];
        let in_file: String = ids
            .iter()
            .map(|id| format!("- Calls: {{{parameters}, ids: [\"{id}\"]}}\n"))
            .collect();
        let by_file = setup.clone().overrides(&in_file).start();
        let by_api = setup.start();
        let members = parameters.split(", ").map(|member| {
            let (key, value) = member.split_once(": ").unwrap();
            let number: Option<u64> = value.parse().ok();
            (
                key.to_owned(),
                number.map_or_else(|| json!(value), Value::from),
            )
        });
        let body = Value::Object(members.collect());
        for id in ids {
            set(
                &by_api,
                &format!("/v1/overrides/Calls/{}", id.replace('*', "%2A")),
                &body,
            );
        }
        for name in names {
            assert_eq!(seen(&by_api, name), seen(&by_file, name), "{limit}: {name}");
        }
    }
}

/// It was told the time until the override's own quota had a unit again, which was weeks after the
/// override ended.
#[test]
fn no_client_is_told_to_wait_for_longer_than_its_override_lasts() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let lasting = || json!({ "burst": 1, "count": 1, "period": "1000h", "for": "1h" });
    let until = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let in_file = format!(
        "- Calls: {{burst: 1, count: 1, period: 1000h, until: \"{until}\", ids: [by-file]}}\n"
    );
    let on_memory = setup(&upstream).overrides(&in_file).start();
    let on_redis = on_redis(&upstream, &server).overrides(&in_file).start();
    for gateway in [&on_memory, &on_redis] {
        set(gateway, "/v1/overrides/Calls/by-api", &lasting());
        for name in ["by-api", "by-file"] {
            let mut client = gateway.client();
            let passed = client.send(&account(name));
            let denied = client.send(&account(name));
            assert_eq!((passed.status, denied.status), (200, 429), "{name}");
            let seconds = |text: &str| text.parse::<u64>().unwrap();
            let reset = |response: &Response| {
                let field = response.field("ratelimit").unwrap().to_owned();
                seconds(field.split_once(";t=").unwrap().1)
            };
            let told = [
                reset(&passed),
                reset(&denied),
                seconds(denied.field("retry-after").unwrap()),
            ];
            assert!(
                told.iter().all(|told| (1..=3600).contains(told)),
                "{name}: {told:?}"
            );
        }
    }
}

#[test]
fn changes_are_logged_with_the_name_of_the_token_and_secrets_are_hashed() {
    let upstream = Upstream::start();
    let listener = "admin: {address: \"127.0.0.1:0\"";
    let tokens = "tokens: {alice: {file: alice.token}, grafana: {file: grafana.token}}, read_only: [grafana]";
    let setup = setup(&upstream)
        .basis_with(listener, &format!("{listener}, {tokens}"))
        .file("alice.token", TOKEN)
        .file("grafana.token", "fedcba9876543210fedcba9876543210");
    let gateway = setup.start();
    let with = |token: &str, request: Request| {
        gateway.admin(&request.with("authorization", &format!("Bearer {token}")))
    };
    let grafana = "fedcba9876543210fedcba9876543210";
    let change = || put(ACME, &body(5).to_string());
    assert_eq!(with(grafana, change()).status, 403);
    assert_eq!(with("wrong-wrong-wrong", change()).status, 401);
    assert_eq!(with(TOKEN, change()).status, 200);
    assert_eq!(with(grafana, get("/v1/overrides")).status, 200);
    assert_eq!(with(TOKEN, request("DELETE", ACME)).status, 200);
    let bucket = "/v1/buckets/Calls/acme";
    assert_eq!(with(TOKEN, request("DELETE", bucket)).status, 200);
    for message in ["override set", "override deleted", "bucket reset"] {
        gateway.logs(message, 1);
    }
    let log = gateway.log();
    let audit: Vec<_> = log
        .iter()
        .filter(|line| line["target"] == "weir::audit")
        .collect();
    assert_eq!(audit.len(), 3, "{audit:?}");
    for line in &audit {
        assert_eq!(line["by"], "alice");
        assert!(!line.to_string().contains("acme"), "{line}");
    }
    assert!(audit[0]["id"].as_str().unwrap().starts_with("hash:"));
    assert!(
        audit[0]["parameters"]
            .as_str()
            .unwrap()
            .contains("\"burst\":5")
    );
}

fn weir(gateway: &Gateway, arguments: &[&str]) -> Output {
    let mut command = Command::new(WEIR);
    command.current_dir(gateway.folder()).args(arguments);
    command.output().unwrap()
}

#[test]
fn commands_list_set_and_delete_overrides() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let admin = gateway.admin_address().to_string();
    let asked = |arguments: &[&str]| {
        let arguments = [arguments, &["--admin", &admin]].concat();
        let output = weir(&gateway, &arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), text, errors)
    };
    let rate = ["--burst", "5", "--count", "1", "--period", "1000h"];
    let set = [
        &[
            "override",
            "set",
            "Calls",
            "acme",
            "--comment",
            "incident 7",
        ],
        &rate[..],
    ]
    .concat();
    let (code, text, _) = asked(&set);
    assert!(code == Some(0) && text.contains("burst: 5\n"), "{text}");
    let (_, text, _) = asked(&["override", "list"]);
    assert!(
        text.contains("acme") && text.contains("in force") && text.contains("incident 7"),
        "{text}"
    );
    let (_, text, _) = asked(&["override", "list", "Calls", "--json"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["overrides"][0]["id"], "acme");
    let (code, text, _) = asked(&["override", "delete", "Calls", "acme"]);
    assert_eq!((code, text.as_str()), (Some(0), "deleted\n"));
    let (code, _, errors) = asked(&["override", "delete", "Calls", "acme"]);
    assert!(
        code == Some(1) && errors.contains("no override"),
        "{errors}"
    );
    let (code, _, errors) = asked(&["override", "set", "Calls", "acme", "--burst", "5"]);
    assert!(code == Some(1) && errors.contains("count"), "{errors}");
}
