//! The recipes of `docs/LIMITS.md` keep what they promise, as they stand there.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::process::Command;
use std::thread;

use http::{HeaderValue, StatusCode};
use jsonwebtoken::Algorithm;
use serde_json::json;

use crate::accounts::{SECRET, in_an_hour, token};
use crate::support::gateway::WEIR;
use crate::support::recipe::Recipe;
use crate::support::upstream::{Received, text};
use crate::support::*;

/// An app that answers as it is asked to: with the status of `x-answer`, and with the fields in
/// which it tells what an answer has cost.
fn app() -> Upstream {
    Upstream::answering(|request: &Received| {
        let mut response = text("real");
        if let [status] = *request.lines("x-answer") {
            *response.status_mut() = status.parse().unwrap();
        }
        for name in ["x-db-ms", "x-tokens", "x-invited"] {
            if let Some(cost) = request.headers.get(name) {
                response.headers_mut().insert(name, cost.clone());
            }
        }
        response
    })
}

fn recipe(heading: &str) -> Recipe {
    Recipe::named(heading)
}

/// A client of another network for each `network`, of another address for each `address`.
fn client(gateway: &Gateway, network: u8, address: u8) -> Client {
    let source = Ipv4Addr::new(127, 0, network, address);
    Client::connect_from(source, gateway.address())
}

/// The units that are left of a limit, as the response tells.
fn left(response: &Response, limit: &str) -> u64 {
    let field = response.field("ratelimit").unwrap_or_default();
    let after = field.split_once(&format!("\"{limit}\";r="));
    let (_, number) = after.unwrap_or_else(|| panic!("no {limit} in {field:?}"));
    number.split(';').next().unwrap().parse().unwrap()
}

/// The limits that denied a request.
fn violated(response: &Response) -> serde_json::Value {
    assert_eq!(response.status, 429);
    response.json()["violated-policies"].clone()
}

/// Begins a request, and leaves it unfinished until the client is dropped.
fn begin(gateway: &Gateway, request: Request) -> Client {
    let mut client = gateway.client();
    client
        .write(&request.with("content-length", "1").bytes())
        .unwrap();
    client
}

/// Waits until so many requests hold a place.
fn in_flight(gateway: &Gateway, limit: &str, requests: f64) {
    let gauge = format!("weir_leases_held{{limit=\"{limit}\"}}");
    eventually("the requests in flight", || {
        (gateway.metric(&gauge) == Some(requests)).then_some(())
    });
}

/// Only so many requests pass as long as none of them is over, and then others do.
fn admits_at_once(gateway: &Gateway, limit: &str, most: u8, request: &Request) {
    let begun: Vec<_> = (0..most).map(|_| begin(gateway, request.clone())).collect();
    in_flight(gateway, limit, most.into());
    assert_eq!(violated(&gateway.send(request)), json!([limit]));
    drop(begun);
    in_flight(gateway, limit, 0.0);
    assert_eq!(gateway.send(request).status, 200);
    in_flight(gateway, limit, 0.0);
}

fn would_deny(gateway: &Gateway, limit: &str) -> Option<f64> {
    let labels = format!("{{limit=\"{limit}\",decision=\"would_deny\"}}");
    gateway.metric(&format!("weir_decisions_total{labels}"))
}

#[test]
fn every_recipe_is_exercised_here_and_every_one_that_is_stands_there() {
    let here: BTreeSet<String> = include_str!("recipes.rs")
        .split("recipe(\"")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap().to_owned())
        .filter(|heading| !heading.is_empty())
        .collect();
    let there: BTreeSet<String> = Recipe::all().into_iter().map(|it| it.heading).collect();
    assert_eq!(here, there);
}

#[test]
fn weir_check_has_nothing_to_say_about_any_recipe() {
    for recipe in Recipe::all() {
        let recipe = recipe
            .file("hash.key", "0123456789abcdef0123456789abcdef")
            .file("jwt.key", SECRET);
        let told = recipe.checked();
        let first = told.lines().next();
        assert!(
            first.is_some_and(|line| line.ends_with("; configuration OK")),
            "{}: {told}",
            recipe.heading
        );
    }
}

#[test]
fn the_first_limit_denies_the_fourth_request_and_says_when_to_come_back() {
    let upstream = app();
    let to_app =
        recipe("The first limit").with("{builtin: echo}", "{servers: [\"http://127.0.0.1:3000\"]}");
    let gateway = to_app.start(&upstream);
    let mut client = client(&gateway, 0, 1);
    for remaining in [2, 1, 0] {
        let response = client.send(&get("/"));
        assert_eq!(response.status, 200);
        assert_eq!(left(&response, "RequestsPerAddress"), remaining);
    }
    let denied = client.send(&get("/"));
    assert_eq!(violated(&denied), json!(["RequestsPerAddress"]));
    // Ten seconds as printed: the recipe's periods are 10,000 times as long here.
    let retry_after: u64 = denied.field("retry-after").unwrap().parse().unwrap();
    assert!((99_000..=100_000).contains(&retry_after), "{retry_after}");
}

#[test]
fn a_limit_on_trial_tells_what_it_would_deny_beside_one_that_denies() {
    let upstream = app();
    let gateway = recipe("Trying a limit first").start(&upstream);
    for address in 1..=11 {
        let mut client = client(&gateway, 0, address);
        for _ in 0..20 {
            assert_eq!(client.send(&get("/")).status, 200);
        }
        assert_eq!(client.send(&get("/")).status, 429);
    }
    assert_eq!(would_deny(&gateway, "RequestsPerNetwork"), Some(20.0));
    assert_eq!(would_deny(&gateway, "RequestsPerAddress"), Some(0.0));
    eventually("the last of them in the log", || {
        let mut lines = gateway.access("/");
        lines.retain(|it| it["decision"] == "would_deny" && it["limit"] == "RequestsPerNetwork");
        (lines.len() == 20).then_some(())
    });
}

#[test]
fn two_gateways_count_together() {
    let (upstream, redis) = (app(), RedisServer::start());
    // A deadline that no machine misses.
    let recipe = recipe("Several gateways")
        .with("redis://redis.internal:6379/0", &redis.url())
        .with("on_failure: local", "on_failure: deny, timeout: 10s")
        .file("hash.key", "0123456789abcdef0123456789abcdef");
    let gateways = [recipe.start(&upstream), recipe.start(&upstream)];
    let call = get("/").with("x-api-key", "alice");
    for number in 0..10 {
        let gateway = &gateways[usize::from(number) % 2];
        let answer = client(gateway, 0, 1 + number).send(&call);
        assert_eq!(answer.status, 200);
        assert_eq!(left(&answer, "CallsPerAccount"), 9 - u64::from(number));
    }
    for gateway in &gateways {
        let denied = client(gateway, 0, 20).send(&call);
        assert_eq!(violated(&denied), json!(["CallsPerAccount"]));
    }
}

#[test]
fn a_hot_bucket_is_counted_together_and_check_says_how_far_it_may_be_off() {
    let (upstream, redis) = (app(), RedisServer::start());
    let recipe = recipe("Hot buckets").file("hash.key", "0123456789abcdef0123456789abcdef");
    let told = recipe.checked();
    assert_eq!(
        told.lines().nth(1),
        Some(
            "CallsPerAccount: prefetched; \
             N gateways admit at most N x 200 units beyond the limit, per bucket"
        )
    );
    let recipe = recipe
        .with("redis://redis.internal:6379/0", &redis.url())
        .with("on_failure: local", "on_failure: deny, timeout: 10s")
        .with("burst: 20, ", "burst: 20000, ")
        // Nothing comes back, however slow the machine is.
        .with("count: 20000, period: 1s", "count: 20000, period: 1h");
    let gateways = [recipe.start(&upstream), recipe.start(&upstream)];
    let call = get("/").with("x-api-key", "alice");
    for gateway in &gateways {
        let mut client = gateway.client();
        for _ in 0..200 {
            assert_eq!(client.send(&call).status, 200);
        }
    }
    let seen = left(&gateways[0].send(&call), "CallsPerAccount");
    assert!(
        (20_000 - 401 - 2 * 200..=20_000 - 201).contains(&seen),
        "{seen}"
    );
}

fn login(name: &str, answer: &str) -> Request {
    post("/login", "")
        .with("x-login", name)
        .with("x-answer", answer)
}

#[test]
fn the_sixth_failed_login_is_denied_from_any_address_and_successes_never_count() {
    let upstream = app();
    let gateway = recipe("Logins").start(&upstream);
    let log_in = |address, request: &Request| client(&gateway, 0, address).send(request);
    for address in 0..20 {
        assert_eq!(log_in(1 + address, &login("alice", "303")).status, 303);
    }
    for (address, answer) in ["401", "403", "401", "401", "401"].into_iter().enumerate() {
        let failed = log_in(30 + u8::try_from(address).unwrap(), &login("alice", answer));
        assert_eq!(failed.status.to_string(), answer);
        assert_eq!(failed.field("ratelimit"), None);
    }
    let reached = upstream.count();
    for answer in ["401", "303"] {
        let denied = log_in(40, &login("alice", answer));
        assert_eq!(violated(&denied), json!(["FailedLogins"]));
        assert!(denied.field("retry-after").is_some());
    }
    let nameless = log_in(41, &post("/login", "").with("x-answer", "303"));
    assert_eq!(nameless.status, 403);
    assert_eq!(upstream.count(), reached);
    assert_eq!(log_in(42, &login("bob", "303")).status, 303);
    assert_eq!(log_in(42, &get("/")).status, 200);
}

#[test]
fn an_address_that_tries_one_password_on_many_accounts_is_denied() {
    let upstream = app();
    let gateway = recipe("Logins").start(&upstream);
    let mut client = client(&gateway, 0, 1);
    for number in 0..20 {
        let failed = client.send(&login(&format!("user-{number}"), "401"));
        assert_eq!(failed.status, 401);
    }
    let denied = client.send(&login("user-20", "401"));
    assert_eq!(violated(&denied), json!(["LoginsPerAddress"]));
}

#[test]
fn of_many_guesses_at_once_five_get_through() {
    let upstream = app();
    let gateway = recipe("Logins, many at once").start(&upstream);
    for answer in ["200", "303", "500"] {
        for address in 0..10 {
            let mut client = client(&gateway, 0, 1 + address);
            let answered = client.send(&login("alice", answer)).status;
            assert_eq!(answered.to_string(), answer);
        }
    }
    let reached = upstream.count();
    let statuses: Vec<u16> = thread::scope(|scope| {
        let guess = |address| client(&gateway, 1, address).send(&login("alice", "401"));
        let guesses: Vec<_> = (1..=20)
            .map(|it| scope.spawn(move || guess(it).status))
            .collect();
        guesses.into_iter().map(|it| it.join().unwrap()).collect()
    });
    let of = |status| statuses.iter().filter(|it| **it == status).count();
    assert_eq!((of(401), of(429)), (5, 15), "{statuses:?}");
    assert_eq!(upstream.count(), reached + 5);
}

fn sign_up(answer: &str) -> Request {
    post("/signup", "").with("x-answer", answer)
}

#[test]
fn accounts_that_were_made_count_per_address_and_network() {
    let upstream = app();
    let gateway = recipe("Sign-ups").start(&upstream);
    let mut first = client(&gateway, 0, 1);
    for number in 0..3 {
        assert_eq!(first.send(&sign_up("422")).status, 422);
        let made = first.send(&sign_up("201"));
        assert_eq!(made.status, 201);
        assert_eq!(left(&made, "SignUpsPerAddress"), 2 - number);
    }
    let denied = first.send(&sign_up("201"));
    assert_eq!(violated(&denied), json!(["SignUpsPerAddress"]));
    for number in 3..20 {
        let mut neighbour = client(&gateway, 0, 2 + number);
        assert_eq!(neighbour.send(&sign_up("201")).status, 201);
    }
    let denied = client(&gateway, 0, 99).send(&sign_up("201"));
    assert_eq!(violated(&denied), json!(["SignUpsPerNetwork"]));
    assert_eq!(client(&gateway, 1, 1).send(&sign_up("201")).status, 201);
}

#[test]
fn who_asks_which_names_are_taken_is_denied_though_nothing_was_made() {
    let upstream = app();
    let gateway = recipe("Sign-ups").start(&upstream);
    let statuses = gateway.statuses(&sign_up("409"), 21);
    assert_eq!(statuses, [[409; 20].as_slice(), &[429]].concat());
}

#[test]
fn more_sign_ups_than_ever_raise_an_alarm_and_nothing_else() {
    let upstream = app();
    let gateway = recipe("Sign-ups").start(&upstream);
    for number in 0..201_u16 {
        let [network, address] = (number / 3 * 64).to_be_bytes();
        let mut client = client(&gateway, network, address + 1);
        assert_eq!(client.send(&sign_up("201")).status, 201, "{number}");
    }
    assert_eq!(would_deny(&gateway, "SignUps"), Some(1.0));
}

fn invite(account: &str) -> Request {
    let claims = json!({"sub": account, "exp": in_an_hour()});
    let token = token(&claims, SECRET, Algorithm::HS256);
    post("/teams/red/invites", "{}")
        .with("authorization", &format!("Bearer {token}"))
        .with("x-answer", "201")
}

/// What an app answers to invitations.
fn invitations() -> Upstream {
    Upstream::answering(|request: &Received| {
        let mut response =
            text(r#"{"id":"6f1f2ab0-5c3e-4b60-9d6e-0c1f7f1c9a11","team":"red","status":"sent"}"#);
        *response.status_mut() = match request.lines("x-answer")[..] {
            ["500"] => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::CREATED,
        };
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert("content-type", json);
        response
    })
}

#[test]
fn the_26th_invitation_is_answered_like_the_others_and_never_sent() {
    let upstream = invitations();
    let gateway = recipe("Invitations")
        .file("jwt.key", SECRET)
        .start(&upstream);
    let mut client = client(&gateway, 0, 1);
    let failing = post("/teams/red/invites", "{}").with("x-answer", "500");
    for _ in 0..3 {
        assert_eq!(client.send(&failing).status, 500);
    }
    let before = upstream.count();
    let real: Vec<_> = (0..25).map(|_| client.send(&invite("mallory"))).collect();
    let decoys: Vec<_> = (0..3).map(|_| client.send(&invite("mallory"))).collect();
    assert_eq!(upstream.count(), before + 25);
    let real = real.last().unwrap();
    for decoy in &decoys {
        assert_eq!((decoy.status, decoy.names()), (201, real.names()));
        assert_eq!(decoy.body.len(), real.body.len());
        assert_eq!(decoy.json()["team"], "red");
        assert_ne!(decoy.json()["id"], real.json()["id"]);
    }
    for _ in 0..30 {
        client.send(&invite("acme"));
    }
    assert_eq!(upstream.count(), before + 25 + 30);
}

#[test]
fn new_accounts_from_the_old_network_send_no_more_than_the_network_may() {
    let upstream = invitations();
    let gateway = recipe("Invitations")
        .file("jwt.key", SECRET)
        .start(&upstream);
    let mut first = client(&gateway, 0, 1);
    for account in 0..5 {
        let invite = invite(&format!("throwaway-{account}"));
        for _ in 0..21 {
            assert_eq!(first.send(&invite).status, 201);
        }
    }
    assert_eq!(upstream.count(), 100);
    assert_eq!(client(&gateway, 1, 1).send(&invite("else")).status, 201);
    assert_eq!(upstream.count(), 101);
}

#[test]
fn searches_cost_by_their_kind_and_by_what_the_database_took() {
    let upstream = app();
    let gateway = recipe("Search").start(&upstream);
    let mut client = client(&gateway, 0, 1);
    let quick = |path: &str| get(path).with("x-db-ms", "12");
    let suggested = client.send(&get("/search/suggest?q=a"));
    assert_eq!(left(&suggested, "SearchPoints"), 99);
    let found = client.send(&quick("/search?q=a"));
    assert_eq!(left(&found, "SearchPoints"), 94);
    assert_eq!(left(&found, "DatabaseTime"), 9988);
    assert_eq!(found.field("x-db-ms"), None);
    let exported = client.send(&quick("/search/export"));
    assert_eq!(left(&exported, "SearchPoints"), 44);
    assert_eq!(left(&exported, "DatabaseTime"), 9976);
    let denied = client.send(&quick("/search/export"));
    assert_eq!(violated(&denied), json!(["SearchPoints"]));
    let slow = client.send(&get("/search").with("x-db-ms", "30000"));
    assert_eq!(left(&slow, "DatabaseTime"), 0);
    let denied = client.send(&get("/search"));
    assert_eq!(violated(&denied), json!(["DatabaseTime"]));
    assert_eq!(client.send(&get("/search/suggest")).status, 200);
}

#[test]
fn what_is_paid_afterwards_is_bounded_while_it_is_under_way() {
    let upstream = app();
    let gateway = recipe("Search").start(&upstream);
    admits_at_once(&gateway, "ExportsAtOnce", 1, &get("/search/export"));
    let gateway = recipe("Tokens of a language model").start(&upstream);
    admits_at_once(&gateway, "AnswersAtOnce", 4, &chat("k1"));
}

fn chat(key: &str) -> Request {
    post("/v1/chat", "").with("x-api-key", key)
}

#[test]
fn tokens_are_charged_by_the_answer_that_told_them() {
    let upstream = app();
    let gateway = recipe("Tokens of a language model").start(&upstream);
    let mut client = client(&gateway, 0, 1);
    let first = client.send(&chat("k1").with("x-tokens", "700"));
    assert_eq!((first.status, first.field("x-tokens")), (200, None));
    assert_eq!(left(&first, "TokensPerMinute"), 19_300);
    assert_eq!(left(&first, "TokensPerMonth"), 4_999_300);
    let silent = client.send(&chat("k1"));
    assert_eq!(left(&silent, "TokensPerMinute"), 15_300);
    let failed = client.send(&chat("k1").with("x-answer", "500").with("x-tokens", "900"));
    assert_eq!(left(&failed, "TokensPerMinute"), 15_300);
    let greedy = client.send(&chat("k1").with("x-tokens", "90000"));
    assert_eq!(left(&greedy, "TokensPerMinute"), 0);
    let reached = upstream.count();
    let denied = client.send(&chat("k1"));
    assert_eq!(violated(&denied), json!(["TokensPerMinute"]));
    assert_eq!(client.send(&post("/v1/chat", "{}")).status, 403);
    assert_eq!(upstream.count(), reached);
    // What was estimated too high is given back when it is known.
    let refund = post("/v1/buckets/TokensPerMinute/k1/refund", "{\"cost\": 4000}");
    let refund = refund.with("host", "localhost");
    assert_eq!(gateway.admin(&refund).json()["remaining"], 4000);
    assert_eq!(client.send(&chat("k1")).status, 200);
}

#[test]
fn keys_that_are_made_up_meet_the_limit_of_their_address() {
    let upstream = app();
    let gateway = recipe("Tokens of a language model").start(&upstream);
    let mut client = client(&gateway, 0, 1);
    for number in 0..60 {
        assert_eq!(client.send(&chat(&format!("k{number}"))).status, 200);
    }
    let denied = client.send(&chat("k60"));
    assert_eq!(violated(&denied), json!(["RequestsPerAddress"]));
}

/// How many calls each of some keys has.
fn quotas(gateway: &Gateway, keys: &[&str]) -> Vec<u64> {
    let quota = |key: &&str| {
        let first = gateway.send(&get("/api/things").with("x-api-key", key));
        assert_eq!(first.status, 200, "{key}");
        left(&first, "CallsPerAccount") + 1
    };
    keys.iter().map(quota).collect()
}

#[test]
fn each_tenant_has_its_tier_while_it_lasts() {
    let upstream = app();
    let keys = ["anybody", "gold-7f3a", "acme-web", "acme-batch", "globex"];
    let tiers = recipe("Tiers of tenants");
    let during = tiers.clone().with("until: 2026-12-31", "until: 2999-12-31");
    let during = during.start(&upstream);
    assert_eq!(quotas(&during, &keys), [10, 100, 100, 20, 50]);
    let after = tiers.with("until: 2026-12-31", "until: 2000-12-31");
    assert_eq!(
        quotas(&after.start(&upstream), &keys),
        [10, 100, 100, 20, 10]
    );
    for _ in 0..19 {
        let call = get("/api/things").with("x-api-key", "acme-batch");
        assert_eq!(during.send(&call).status, 200);
    }
    for (key, most) in [("globex", 2), ("acme-web", 20)] {
        let call = get("/api/things").with("x-api-key", key);
        admits_at_once(&during, "CallsAtOnce", most, &call);
    }
    let call = get("/api/things").with("x-api-key", "acme-batch");
    assert_eq!(violated(&during.send(&call)), json!(["CallsPerAccount"]));
    assert_eq!(during.send(&get("/api/things")).status, 403);
}

#[test]
fn uploads_cost_by_their_size_unless_they_fail() {
    let upstream = app();
    let gateway = recipe("Uploads").start(&upstream);
    let mut client = client(&gateway, 0, 1);
    let mut upload = |answer: &str, length: usize| {
        let head = request("PUT", "/files/a").with("x-api-key", "alice");
        let head = head.with("x-answer", answer);
        let head = head.with("content-length", &length.to_string());
        client.write(&head.bytes()).unwrap();
        if length < 10_000_000 {
            client.write(&vec![b'x'; length]).unwrap();
        }
        client.read("PUT").unwrap()
    };
    let stored = upload("200", 3_000_000);
    assert_eq!(left(&stored, "MegabytesPerAccount"), 97);
    let refused = upload("413", 5_000_000);
    assert_eq!(left(&refused, "MegabytesPerAccount"), 97);
    // It is denied by its length, before its body is sent.
    let never = upload("200", 101 << 20);
    assert_eq!(never.status, 403);
    let violated = &never.json()["violated-policies"];
    assert_eq!(*violated, json!(["MegabytesPerAccount"]));
    assert_eq!(never.field("retry-after"), None);
    assert_eq!(upstream.count(), 2);
}

#[test]
fn who_asks_for_what_only_intruders_ask_for_is_shut_out_with_his_next_request() {
    let upstream = app();
    let gateway = recipe("Scanners").start(&upstream);
    let trap = get("/.git/config").with("x-answer", "404");
    assert_eq!(client(&gateway, 0, 1).send(&trap).status, 404);
    gateway.logs("ban begun", 1);
    assert!(client(&gateway, 0, 1).try_send(&get("/")).is_err());
    assert_eq!(client(&gateway, 0, 2).send(&get("/")).status, 200);
    assert_eq!(upstream.count(), 2);
}

#[test]
fn who_finds_nothing_thirty_times_is_held_and_not_answered() {
    let upstream = app();
    let gateway = recipe("Scanners").start(&upstream);
    let mut scanner = client(&gateway, 0, 1);
    for number in 0..30 {
        let miss = get(&format!("/{number}")).with("x-answer", "404");
        assert_eq!(scanner.send(&get("/")).status, 200);
        assert_eq!(scanner.send(&miss).status, 404);
    }
    gateway.logs("ban begun", 1);
    scanner.write(&get("/").bytes()).unwrap();
    eventually("the scanner in the tarpit", || {
        (gateway.metric("weir_tarpit_held") == Some(1.0)).then_some(())
    });
    assert_eq!(upstream.count(), 60);
}

/// The openai package shows `error.message`, octokit `message`, and people a page.
#[test]
fn a_denial_of_an_sdk_says_why_where_sdks_look_and_people_get_a_page() {
    let upstream = app();
    let gateway = recipe("Errors that SDKs show").start(&upstream);
    let request = get("/v1/models").with("accept", "application/json");
    assert_eq!(gateway.statuses(&request, 20), [200; 20]);
    let denied = gateway.send(&request);
    assert_eq!(denied.status, 429);
    assert_eq!(denied.field("content-type"), Some("application/json"));
    let told = denied.json();
    assert_eq!(told["message"], told["error"]["message"]);
    assert!(told["message"].as_str().unwrap().contains("Retry-After"));
    for field in ["retry-after", "retry-after-ms"] {
        assert!(denied.field(field).is_some(), "{field}");
    }
    let page = gateway.send(&get("/v1/models").with("accept", "text/html"));
    assert_eq!(page.status, 429);
    assert!(page.text().contains("<h1>429 Too Many Requests</h1>"));
}

#[test]
fn telemetry_is_denied_so_that_it_is_sent_again_and_health_checks_are_not() {
    let upstream = app();
    let gateway = recipe("Telemetry").start(&upstream);
    for (path, status) in [("/api/v1/write", 503), ("/v1/traces", 429)] {
        let request = post(path, "samples");
        assert_eq!(gateway.statuses(&request, 50), [200; 50], "{path}");
        let denied = gateway.send(&request);
        assert_eq!(denied.status, status, "{path}");
        assert!(denied.field("retry-after").is_some(), "{path}");
    }
    assert_eq!(gateway.statuses(&get("/healthz"), 60), [200; 60]);
}

#[test]
fn an_abuser_who_goes_on_after_eleven_denials_finds_nothing_any_more() {
    let upstream = app();
    let gateway = recipe("Abusers that go on").start(&upstream);
    let statuses = gateway.statuses(&get("/search"), 31);
    assert_eq!(statuses, [[200; 20].as_slice(), &[429; 11]].concat());
    gateway.logs("ban begun", 1);
    for path in ["/search", "/"] {
        let decoy = gateway.send(&get(path));
        assert_eq!((decoy.status, decoy.text()), (200, "{\"results\":[]}"));
    }
    assert_eq!(client(&gateway, 0, 2).send(&get("/search")).text(), "real");
    assert_eq!(upstream.count(), 21);
}

/// Nothing but the slots of the app is short here, as its limit has not fallen below its beginning.
#[test]
fn overload_sheds_no_request_of_an_app_that_keeps_up() {
    let upstream = app();
    let gateway = recipe("Overload").start(&upstream);
    for path in ["/", "/checkout", "/recommendations"] {
        let request = get(path).with("x-account", "acme");
        // Fewer than 20 in all: with so few, no window of the adaptive limit ends.
        assert_eq!(gateway.statuses(&request, 6), [200; 6], "{path}");
    }
    let limit = gateway.metric("weir_upstream_concurrency_limit{upstream=\"app\"}");
    assert_eq!(limit, Some(20.0));
    let explained = |path: &str, account: &str| {
        let mut explain = Command::new(WEIR);
        let header = format!("x-account: {account}");
        explain.args([
            "explain",
            "--path",
            path,
            "--ip",
            "127.0.0.1",
            "--header",
            &header,
        ]);
        let explained = explain
            .arg("--config")
            .arg(gateway.folder().join("gateway.yaml"));
        String::from_utf8(explained.output().unwrap().stdout).unwrap()
    };
    assert!(explained("/", "acme").contains("shed with priority high"));
    assert!(explained("/checkout", "nightly-export").contains("shed with priority low"));
}
