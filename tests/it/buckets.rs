//! Buckets by hand: looked at, refunded and reset on the admin listener.

use serde_json::{Value, json};

use crate::redis;
use crate::support::*;

const LIMIT: &str = "Calls: {per: account, burst: 5, count: 1, period: 1000h}";
const ACME: &str = "/v1/buckets/Calls/acme";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A gateway that counts `x-api-key`.
fn setup(upstream: &Upstream) -> Setup {
    Setup::before(upstream)
        .limits(&[LIMIT])
        .limited_by("Calls")
        .key("account: [header: x-api-key]")
        .file("hash.key", "a key that gateways share")
        .key("hash_key: {file: hash.key}")
}

fn acme() -> Request {
    get("/").with("x-api-key", "acme")
}

/// The request as this machine's own tools send it.
fn local(request: Request) -> Request {
    request.with("host", "127.0.0.1:9901")
}

/// Asks the admin listener, and expects a bucket.
fn bucket(gateway: &Gateway, request: Request) -> Value {
    let response = gateway.admin(&local(request));
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

fn refund(gateway: &Gateway, cost: u64) -> u64 {
    let body = json!({ "cost": cost }).to_string();
    remaining(&bucket(gateway, post(&format!("{ACME}/refund"), &body)))
}

fn remaining(bucket: &Value) -> u64 {
    bucket["remaining"].as_u64().unwrap()
}

/// What holds on every store.
fn buckets_are_shown_refunded_and_reset(gateway: &Gateway) {
    assert_eq!(remaining(&bucket(gateway, get(ACME))), 5);
    // The sixth is denied, which a process may remember.
    assert_eq!(gateway.statuses(&acme(), 6), [200, 200, 200, 200, 200, 429]);
    assert_eq!(remaining(&bucket(gateway, get(ACME))), 0);

    assert_eq!(refund(gateway, 2), 2);
    assert_eq!(gateway.statuses(&acme(), 3), [200, 200, 429]);

    // Never above full, however much is given back.
    assert_eq!(refund(gateway, 1_000_000), 5);
    assert_eq!(refund(gateway, 1), 5);
    assert_eq!(gateway.statuses(&acme(), 6), [200, 200, 200, 200, 200, 429]);

    let reset = bucket(gateway, request("DELETE", ACME));
    assert_eq!(
        (remaining(&reset), reset["reset_in"].as_f64()),
        (5, Some(0.0))
    );
    assert_eq!(gateway.statuses(&acme(), 1), [200]);
    let nothing = bucket(gateway, post(&format!("{ACME}/refund"), "{\"cost\": 0}"));
    assert_eq!(remaining(&nothing), 4);
    let unit = bucket(gateway, post(&format!("{ACME}/refund"), ""));
    assert_eq!(remaining(&unit), 5);
}

#[test]
fn buckets_in_memory_are_shown_refunded_and_reset() {
    let upstream = Upstream::start();
    buckets_are_shown_refunded_and_reset(&setup(&upstream).start());
}

#[test]
fn buckets_in_redis_are_shown_refunded_and_reset() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let setup = setup(&upstream).key(&redis::store(&server.url()));
    let (gateway, other) = (setup.start(), setup.start());
    buckets_are_shown_refunded_and_reset(&gateway);
    assert_eq!(other.statuses(&acme(), 6), [200, 200, 200, 200, 200, 429]);
    // What another gateway reset is seen as soon as this one forgets the denial.
    bucket(&gateway, request("DELETE", ACME));
    eventually("a bucket that was reset elsewhere", || {
        (other.statuses(&acme(), 1) == [200]).then_some(())
    });
}

/// The hash of the access log was taken for the name of an account, and another bucket was shown.
#[test]
fn a_hash_from_the_log_leads_to_the_account_that_it_was_logged_for() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    assert_eq!(gateway.statuses(&acme(), 3), [200, 200, 200]);
    let line = gateway.logged("/");
    let hash = line["account"].as_str().unwrap();
    let by_hash = bucket(&gateway, get(&format!("/v1/buckets/Calls/hash:{hash}")));
    assert_eq!(
        (remaining(&by_hash), &by_hash["warning"]),
        (2, &Value::Null)
    );
    let bare = bucket(&gateway, get(&format!("/v1/buckets/Calls/{hash}")));
    let warning = bare["warning"].as_str().unwrap();
    assert!(
        remaining(&bare) == 5 && warning.ends_with(&format!("\"hash:{hash}\"")),
        "{warning}"
    );
    let reset = request("DELETE", &format!("/v1/buckets/Calls/hash:{hash}"));
    assert_eq!(remaining(&bucket(&gateway, reset)), 5);
    assert_eq!(gateway.statuses(&acme(), 1), [200]);
    let slip = gateway.admin(&local(get("/v1/buckets/Calls/hash:510e")));
    assert_eq!(slip.status, 400, "{}", slip.text());
}

#[test]
fn a_bucket_is_told_with_its_override_and_no_account_in_its_key() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream)
        .overrides(
            "- Calls: {burst: 8, count: 2, period: 24h, ids: [{id: acme, comment: a contract}]}",
        )
        .start();
    assert_eq!(gateway.statuses(&acme(), 1), [200]);
    let mut shown = bucket(&gateway, get(ACME));
    let key = shown["key"].take();
    let reset_in = shown["reset_in"].take().as_f64().unwrap();
    assert_eq!(
        shown,
        json!({
            "limit": "Calls", "subject": "acme", "key": null,
            "override": {"id": "acme", "comment": "a contract", "until": null, "origin": "file"},
            "algorithm": "gcra", "burst": 8, "count": 2, "period": "1d",
            "remaining": 7, "retry_in": 0.0, "reset_in": null,
        })
    );
    let key = key.as_str().unwrap();
    assert!(key.starts_with("Calls:") && !key.contains("acme"), "{key}");
    // One unit takes twelve hours.
    assert!(reset_in > 0.0 && reset_in <= 12.0 * 3600.0, "{reset_in}");
    let other = bucket(&gateway, get("/v1/buckets/Calls/other"));
    assert_eq!(
        (&other["burst"], &other["override"]),
        (&json!(5), &Value::Null)
    );
}

#[test]
fn what_cannot_be_asked_is_refused_with_a_remedy() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream)
        .limits(&[LIMIT, "Net: {per: address, burst: 5, count: 1, period: 1h}"])
        .limited_by("Calls, Net")
        .start();
    for (request, status, detail) in [
        (get("/v1/buckets/Cals/acme"), 404, "did you mean \"Calls\"?"),
        (
            get("/v1/buckets/Net/2001:db8::1"),
            400,
            "write \"2001:db8::/64\"",
        ),
        (get("/v1/buckets/Net/acme"), 400, "is not an address"),
        (get("/v1/buckets/Net/"), 400, "the id is empty"),
        (get("/v1/other"), 404, "/v1/buckets/{limit}/{subject}"),
        (
            get("/v1/buckets/Net/2001:db8::/64"),
            404,
            "a `/` in a parameter is written %2F",
        ),
        (post(ACME, "{}"), 405, "GET, HEAD, DELETE"),
        (get(&format!("{ACME}/refund")), 405, "POST"),
        (
            post(&format!("{ACME}/refund"), "{\"cost\": -1}"),
            400,
            "invalid value",
        ),
        (
            post(&format!("{ACME}/refund"), &" ".repeat(10_000)),
            400,
            "length limit",
        ),
        (
            post(&format!("{ACME}/refund?cost=0"), ""),
            400,
            "a JSON body such as {\"cost\": 1}",
        ),
    ] {
        let response = gateway.admin(&local(request));
        assert_eq!(response.status, status, "{}", response.text());
        assert_eq!(
            response.field("content-type"),
            Some("application/problem+json")
        );
        assert!(
            response.text().contains(&detail.replace('"', "\\\"")),
            "{}",
            response.text()
        );
    }
    let network = bucket(&gateway, get("/v1/buckets/Net/2001:db8::%2F64"));
    assert_eq!(network["key"], "Net:2001:db8::/64");
}

#[test]
fn a_web_page_gets_at_no_bucket() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    assert_eq!(gateway.statuses(&acme(), 1), [200]);
    let host = |host: &str| request("DELETE", ACME).with("host", host);
    for attempt in [
        host("rebound.example.com"),
        host("127.0.0.1").with("origin", "https://example.com"),
        host("127.0.0.1").with("sec-fetch-site", "cross-site"),
        host("127.0.0.1").with("x-forwarded-for", "192.0.2.1"),
    ] {
        assert_eq!(gateway.admin(&attempt).status, 403, "{attempt:?}");
    }
    assert_eq!(remaining(&bucket(&gateway, get(ACME))), 4);
    // Other pages are for everybody whom the listener can be reached by.
    assert_eq!(gateway.admin(&get("/livez")).status, 200);
}

#[test]
fn with_a_token_everybody_has_to_show_it() {
    let upstream = Upstream::start();
    let setup = setup(&upstream);
    let gateway = setup.clone().start();
    assert_eq!(gateway.admin(&local(get(ACME))).status, 200);
    // It is taken over by a reload.
    gateway.write("admin.token", TOKEN);
    let text = gateway.read("gateway.yaml");
    let with = text.replace(
        "admin: {address: \"127.0.0.1:0\"}",
        "admin: {address: \"127.0.0.1:0\", token: {file: admin.token}}",
    );
    gateway.write("gateway.yaml", &with);
    gateway.reload();
    let refused = gateway.admin(&local(get(ACME)));
    assert_eq!(
        (refused.status, refused.field("www-authenticate")),
        (401, Some("Bearer realm=\"weir\""))
    );
    let wrong = get(ACME).with("authorization", "Bearer 0123456789abcdef");
    assert_eq!(gateway.admin(&wrong).status, 401);
    // Thirty guesses left no trace.
    assert_eq!(gateway.metric("weir_admin_wrong_tokens_total"), Some(1.0));
    gateway.logs("a wrong token was shown to the admin API", 1);
    let right = get(ACME).with("authorization", &format!("Bearer {TOKEN}"));
    assert_eq!(gateway.admin(&right).status, 200);
    assert_eq!(gateway.admin(&get("/metrics")).status, 200);
    assert!(!gateway.log_text().contains(TOKEN));
}

#[test]
fn a_store_out_of_reach_is_said_and_found_again() {
    let mut server = RedisServer::start();
    let upstream = Upstream::start();
    // Requests are decided by memory meanwhile, of which an operator is told nothing.
    let store = format!(
        "store: {{redis: {{url: \"{}\", on_failure: local}}}}",
        server.url()
    );
    let gateway = setup(&upstream).key(&store).start();
    let status = |request| gateway.admin(&local(request)).status;
    eventually("a store within reach", || {
        (status(get(ACME)) == 200).then_some(())
    });
    server.kill();
    eventually("a store out of reach", || {
        (status(get(ACME)) == 503).then_some(())
    });
    for request in [request("DELETE", ACME), post(&format!("{ACME}/refund"), "")] {
        let refused = gateway.admin(&local(request));
        assert_eq!(
            (refused.status, refused.field("retry-after")),
            (503, Some("1"))
        );
    }
    server.restart();
    eventually("the store", || (status(get(ACME)) == 200).then_some(()));
}

fn top(gateway: &Gateway, query: &str) -> Value {
    bucket(gateway, get(&format!("/v1/top?{query}")))["subjects"].clone()
}

#[test]
fn the_subjects_that_send_most_and_are_denied_most_come_first() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let of = |name: &str| get("/").with("x-api-key", name);
    until_left(MINUTE, HOUR);
    gateway.statuses(&of("heavy"), 5);
    gateway.statuses(&of("abuser"), 9);
    gateway.statuses(&of("honest"), 1);
    // The order by the rate of the last seconds may be another one on a slow machine.
    let all = top(&gateway, "period=hour");
    let requests: Vec<_> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["requests"])
        .collect();
    assert_eq!(requests, [9, 5, 1]);
    let denied = top(&gateway, "sort=denied&limit=Calls&period=hour");
    assert_eq!(denied.as_array().unwrap().len(), 1, "{denied}");
    assert_eq!(
        (&denied[0]["requests"], &denied[0]["denied"]),
        (&json!(9), &json!(4))
    );
    let near = top(&gateway, "sort=remaining&count=2");
    assert_eq!(
        (&near[0]["used"], &near[1]["used"]),
        (&json!(1.0), &json!(1.0))
    );
    assert_eq!(near[0]["key"], all[0]["key"]);
    assert_eq!(near.as_array().unwrap().len(), 2);
    // What is shown can be asked for.
    let subject = all[0]["subject"].as_str().unwrap();
    let shown = bucket(&gateway, get(&format!("/v1/buckets/Calls/{subject}")));
    assert_eq!(shown["key"], all[0]["key"]);
}

#[test]
fn a_parameter_of_the_top_that_is_not_known_is_refused_by_name() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    for (query, status, part) in [
        ("sort=most", 400, "sort=most"),
        ("period=", 400, "minute or hour"),
        ("count=-1", 400, "count=-1"),
        ("n=5", 400, "count=NUMBER"),
        ("limit=Cals", 404, "Calls"),
    ] {
        let response = gateway.admin(&local(get(&format!("/v1/top?{query}"))));
        assert_eq!(response.status, status, "{query}");
        assert!(response.text().contains(part), "{}", response.text());
    }
    assert_eq!(gateway.admin(&local(post("/v1/top", ""))).status, 405);
    assert_eq!(
        gateway
            .admin(&get("/v1/top").with("host", "example.com"))
            .status,
        403
    );
}
