//! Who is banned, on whichever gateway the ban began, and bans that operators set for networks and for
//! good.

use serde_json::{Value, json};

use crate::redis;
use crate::support::*;

const BANS: &str = "bans: {traps: {per: address, strikes: {paths: /trap, count: 1, period: 1h}, \
                    for: 1h}, abusers: {per: address, strikes: {limits: L, workers: 0, count: 2, period: 1h}, \
                    for: 2h}, absent: {per: address, strikes: {status: 404, count: 1, period: 1h}, \
                    for: 1h, max: 100d, factor: 2}}";

fn setup(upstream: &Upstream) -> Setup {
    Setup::before(upstream)
        .limits(&["L: {per: address, burst: 2, count: 1, period: 1000h}"])
        .limited_by("L")
        .key(BANS)
        .key("client_address: {trusted_proxies: [127.0.0.1]}")
}

/// The same where no limit denies.
fn unlimited(upstream: &Upstream) -> Setup {
    setup(upstream).limits(&["L: {per: address, burst: 1000, count: 1000, period: 1000h}"])
}

fn upstream() -> Upstream {
    Upstream::answering(|request| {
        let mut answer = http::Response::new(upstream::full("real"));
        if request.target == "/missing" {
            *answer.status_mut() = http::StatusCode::NOT_FOUND;
        }
        answer
    })
}

fn from(address: &str, path: &str) -> Request {
    get(path).with("x-forwarded-for", address)
}

fn ask(gateway: &Gateway, request: Request) -> Value {
    let response = gateway.admin(&request.with("host", "localhost"));
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

/// The bans of all pages of this size, by what they ban.
fn listed(gateway: &Gateway, count: usize) -> Vec<(String, Value)> {
    let mut bans = Vec::new();
    let mut target = format!("/v1/bans?count={count}");
    loop {
        let page = ask(gateway, get(&target));
        let found = page["bans"].as_array().unwrap();
        assert!(found.len() <= count, "{page}");
        let named = |ban: &Value| {
            let (ban_name, subject) = (ban["ban"].as_str(), ban["subject"].as_str());
            (
                format!("{} {}", ban_name.unwrap(), subject.unwrap()),
                ban.clone(),
            )
        };
        bans.extend(found.iter().map(named));
        match page["next"].as_str() {
            Some(next) => target = format!("/v1/bans?count={count}&cursor={next}"),
            None => break,
        }
    }
    bans.sort_by(|(one, _), (other, _)| one.cmp(other));
    bans
}

fn names(bans: &[(String, Value)]) -> Vec<&str> {
    bans.iter().map(|(name, _)| name.as_str()).collect()
}

/// Three clients are banned, each for another reason, through `one`; `other` lists them.
fn bans_are_listed_with_why(one: &Gateway, other: &Gateway) {
    assert!(listed(other, 10).is_empty());
    assert_eq!(one.send(&from("203.0.113.1", "/trap")).status, 200);
    assert_eq!(one.send(&from("203.0.113.2", "/missing")).status, 404);
    let abuser = from("203.0.113.3", "/");
    assert_eq!(one.statuses(&abuser, 4), [200, 200, 429, 429]);
    let bans = eventually("three bans", || {
        Some(listed(other, 10)).filter(|bans| bans.len() == 3)
    });
    let expected = [
        "abusers 203.0.113.3",
        "absent 203.0.113.2",
        "traps 203.0.113.1",
    ];
    let mut sorted = expected;
    sorted.sort_unstable();
    assert_eq!(names(&bans), sorted);
    let of = |name: &str| {
        &bans
            .iter()
            .find(|(known, _)| known.starts_with(name))
            .unwrap()
            .1
    };
    assert_eq!(
        of("traps")["why"],
        json!({"by": "path", "path": "/trap", "strikes": 1, "offence": 1})
    );
    assert_eq!(
        of("absent")["why"],
        json!({"by": "status", "status": 404, "strikes": 1, "offence": 1})
    );
    assert_eq!(
        of("abusers")["why"],
        json!({"by": "limit", "limit": "L", "strikes": 2, "offence": 1})
    );
    let left = of("abusers")["ends_in"].as_f64().unwrap();
    assert!((1.0..=7200.0).contains(&left), "{left}");
    assert_eq!(names(&listed(other, 1)), sorted);
    assert_eq!(names(&listed(other, 2)), sorted);

    // What is lifted is not listed, and what is set again is listed once.
    ask(other, request("DELETE", "/v1/bans/traps/203.0.113.1"));
    assert_eq!(listed(one, 10).len(), 2);
    for length in ["20m", "30m"] {
        let body = json!({"for": length, "comment": "\"<b>\n"}).to_string();
        ask(one, put("/v1/bans/traps/203.0.113.1", &body));
    }
    let again = listed(one, 10);
    assert_eq!(names(&again), sorted);
    let set = &again.last().unwrap().1;
    assert_eq!(
        set["why"],
        json!({"by": "operator", "name": "127.0.0.1", "comment": "\"<b>\n"})
    );
}

#[test]
fn bans_in_memory_are_listed_with_why() {
    let upstream = upstream();
    let gateway = setup(&upstream).start();
    bans_are_listed_with_why(&gateway, &gateway);
}

#[test]
fn bans_of_all_gateways_are_listed_with_why() {
    let server = RedisServer::start();
    let upstream = upstream();
    let setup = setup(&upstream).key(&redis::store(&server.url()));
    let (one, other) = (setup.start(), setup.start());
    bans_are_listed_with_why(&one, &other);
    // A list that has lost bans is not right, but one must never show bans that do not hold.
    server.command(&["DEL", "weir::ban:absent:203.0.113.2"]);
    assert_eq!(listed(&other, 10).len(), 2);
    server.command(&["FLUSHALL"]);
    // Each gateway knows that of the operator.
    assert_eq!(names(&listed(&other, 10)), ["traps 203.0.113.1"]);
}

const NETWORK: &str = "/v1/bans/abusers/203.0.113.0%2F24";

/// A network and a client are banned through `one`, and kept out by both.
fn standing_bans_hold(one: &Gateway, other: &Gateway) {
    let inside = [from("203.0.113.77", "/"), from("::ffff:203.0.113.9", "/")];
    let outside = from("203.0.112.1", "/");
    let set = ask(
        one,
        put(NETWORK, "{\"for\": \"forever\", \"comment\": \"scrapers\"}"),
    );
    assert_eq!(
        (&set["banned"], &set["ends_in"]),
        (&json!(true), &Value::Null)
    );
    for request in &inside {
        let refused = one.send(request);
        assert_eq!((refused.status, refused.field("retry-after")), (403, None));
    }
    eventually("a network that is banned elsewhere", || {
        let response = other.send(&inside[0]);
        let is_for_good = response.field("retry-after").is_none();
        (response.status == 403 && is_for_good).then_some(())
    });
    assert_eq!(other.send(&outside).status, 200);
    let shown = ask(other, get("/v1/bans/abusers/203.0.113.77"));
    assert_eq!(shown["banned"], true);
    assert_eq!(shown["standing"]["subject"], "203.0.113.0/24");
    assert_eq!(shown["standing"]["comment"], "scrapers");

    // Longer than the longest ban of this name.
    let client = "/v1/bans/traps/198.51.100.7";
    let long = ask(one, put(client, "{\"until\": \"2199-12-31\"}"));
    assert!(long["ends_in"].as_f64().unwrap() > 1e9, "{long}");
    let kept_out = one.send(&from("198.51.100.7", "/"));
    assert_eq!(kept_out.status, 429);
    assert!(kept_out.field("retry-after").is_some());
    eventually("both in the list", || {
        let bans = listed(other, 1);
        (names(&bans) == ["abusers 203.0.113.0/24", "traps 198.51.100.7"]).then_some(())
    });
}

/// A script that bans each address of an attack took all places, and the network was refused.
#[test]
fn short_bans_never_take_the_places_of_those_that_cannot_be_without_one() {
    let upstream = upstream();
    let gateway = unlimited(&upstream).start();
    let banned = |number: u32| {
        let client = format!("/v1/bans/traps/10.0.{}.{}", number >> 8, number & 255);
        ask(&gateway, put(&client, "{\"for\": \"1h\"}"))
    };
    for number in 0..900 {
        banned(number);
    }
    let last = banned(900);
    // Its bucket alone has it.
    assert_eq!(
        (&last["banned"], &last["standing"]),
        (&json!(true), &Value::Null)
    );
    assert_eq!(gateway.send(&from("10.0.3.132", "/")).status, 429);
    assert!(!banned(899)["standing"].is_null());
    let network = ask(&gateway, put(NETWORK, "{\"for\": \"forever\"}"));
    assert_eq!(network["standing"]["subject"], "203.0.113.0/24");
}

/// The command that is to lift it succeeded, and nothing was lifted.
#[test]
fn no_client_is_said_to_be_let_in_that_is_in_a_banned_network() {
    let upstream = upstream();
    let gateway = unlimited(&upstream).start();
    ask(&gateway, put(NETWORK, "{}"));
    let client = "/v1/bans/abusers/203.0.113.77";
    let lift = || gateway.admin(&request("DELETE", client).with("host", "localhost"));
    for own in [false, true] {
        if own {
            ask(&gateway, put(client, "{}"));
        }
        let refused = lift();
        assert_eq!(refused.status, 409, "{}", refused.text());
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        let remedy = "weir ban lift abusers 203.0.113.0/24";
        assert!(detail.contains(remedy), "{detail}");
        assert_eq!(gateway.send(&from("203.0.113.77", "/")).status, 429);
        gateway.logs("ban lifted", usize::from(own));
    }
    ask(&gateway, request("DELETE", NETWORK));
    assert_eq!(gateway.send(&from("203.0.113.77", "/")).status, 200);
    assert_eq!(lift().status, 200);
}

#[test]
fn the_bans_that_hold_while_redis_is_gone_are_shown_with_a_word_about_the_others() {
    let mut server = RedisServer::start();
    let upstream = upstream();
    let gateway = unlimited(&upstream)
        .key(&redis::store(&server.url()))
        .start();
    ask(&gateway, put(NETWORK, "{}"));
    server.kill();
    eventually("Redis found to be gone", || {
        let page = ask(&gateway, get("/v1/bans"));
        let warning = page["warning"].as_str()?.to_owned();
        assert!(warning.contains("other bans are not shown"), "{warning}");
        assert_eq!(page["bans"][0]["subject"], "203.0.113.0/24");
        Some(())
    });
    for banned in ["203.0.113.0%2F24", "203.0.113.77"] {
        let shown = ask(&gateway, get(&format!("/v1/bans/abusers/{banned}")));
        assert_eq!(shown["banned"], true, "{shown}");
    }
    let other = get("/v1/bans/abusers/198.51.100.7").with("host", "localhost");
    assert_eq!(gateway.admin(&other).status, 503);
}

fn standing_bans_are_lifted(one: &Gateway, other: &Gateway) {
    // A short ban takes the place of a long one.
    let client = "/v1/bans/traps/198.51.100.7";
    let short = ask(other, put(client, "{\"for\": \"10m\"}"));
    assert_eq!(short["standing"]["subject"], "198.51.100.7");
    let left = short["ends_in"].as_f64().unwrap();
    assert!((1.0..=600.0).contains(&left), "{left}");
    ask(other, request("DELETE", client));
    ask(other, request("DELETE", NETWORK));
    assert_eq!(other.send(&from("203.0.113.77", "/")).status, 200);
    eventually("what was lifted elsewhere", || {
        (one.send(&from("203.0.113.78", "/")).status == 200).then_some(())
    });
    assert!(listed(one, 10).is_empty());
}

#[test]
fn bans_of_networks_and_for_good_hold_in_memory() {
    let upstream = upstream();
    let gateway = unlimited(&upstream).start();
    standing_bans_hold(&gateway, &gateway);
    gateway.signal("HUP");
    assert_eq!(gateway.send(&from("203.0.113.77", "/")).status, 403);
    standing_bans_are_lifted(&gateway, &gateway);
}

#[test]
fn bans_of_networks_and_for_good_hold_on_all_gateways_and_after_a_restart() {
    let server = RedisServer::start();
    let upstream = upstream();
    let setup = unlimited(&upstream).key(&redis::store(&server.url()));
    let (one, other) = (setup.start(), setup.start());
    standing_bans_hold(&one, &other);
    drop(one);
    let restarted = setup.start();
    let first = restarted.send(&from("203.0.113.77", "/"));
    assert_eq!((first.status, first.field("retry-after")), (403, None));
    standing_bans_are_lifted(&restarted, &other);
}

#[test]
fn a_ban_of_a_network_that_is_not_enforced_keeps_nobody_out() {
    let upstream = upstream();
    let bans = BANS.replace("for: 2h}", "for: 2h, enforce: false}");
    let gateway = Setup::before(&upstream)
        .key(&bans)
        .key("client_address: {trusted_proxies: [127.0.0.1]}")
        .limits(&["L: {per: address, burst: 2, count: 1, period: 1000h}"])
        .limited_by("L")
        .start();
    ask(&gateway, put(NETWORK, "{\"for\": \"forever\"}"));
    assert_eq!(gateway.send(&from("203.0.113.77", "/")).status, 200);
}

/// A ban of one client behind a translator was one of all, and one of its IPv4 address held for none.
#[test]
fn a_ban_of_one_client_behind_a_translator_never_bans_another() {
    let upstream = upstream();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 1000, count: 1000, period: 1000h}"])
        .limited_by("L")
        .key(BANS)
        .key(
            "client_address: {trusted_proxies: [127.0.0.1], \
             nat64_prefixes: [\"2001:db8:64::/96\"]}",
        )
        .start();
    let spellings = |host: u8| {
        [
            format!("192.0.2.{host}"),
            format!("64:ff9b::192.0.2.{host}"),
            format!("2001:db8:64::192.0.2.{host}"),
        ]
    };
    gateway.send(&from("64:ff9b::192.0.2.1", "/trap"));
    ask(
        &gateway,
        put("/v1/bans/abusers/192.0.2.2", "{\"for\": \"1h\"}"),
    );
    ask(
        &gateway,
        put("/v1/bans/abusers/203.0.113.0%2F24", "{\"for\": \"1h\"}"),
    );
    for (address, status) in [spellings(1), spellings(2)]
        .concat()
        .into_iter()
        .chain([
            "64:ff9b::203.0.113.77".to_owned(),
            "2001:db8:64::203.0.113.78".to_owned(),
        ])
        .map(|address| (address, 429))
        .chain(spellings(3).map(|address| (address, 200)))
    {
        assert_eq!(
            gateway.send(&from(&address, "/")).status,
            status,
            "{address}"
        );
    }
    assert_eq!(
        ask(&gateway, get("/v1/bans/traps/192.0.2.1"))["banned"],
        true
    );
    // Ids have one form, which the error tells.
    for (id, told) in [
        ("64:ff9b::192.0.2.4", "write \"192.0.2.4\""),
        ("2001:db8:64::192.0.2.4", "write \"192.0.2.4\""),
        ("64:ff9b::%2F96", "stands for all IPv4 addresses"),
        ("2001:db8:64::%2F96", "stands for all IPv4 addresses"),
    ] {
        let request = put(&format!("/v1/bans/abusers/{id}"), "{\"for\": \"1h\"}");
        let refused = gateway.admin(&request.with("host", "localhost"));
        assert_eq!(refused.status, 400, "{id}");
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(told), "{id}: {detail}");
    }
}
