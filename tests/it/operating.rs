//! Operating a gateway: what its commands print of one that runs, what they say when they cannot, who
//! is named as needing attention, and what the admin API does with requests that are meant to harm.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::thread;

use serde_json::{Value, json};

use crate::redis;
use crate::support::gateway::weir;
use crate::support::*;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Only operators ban here: nobody gets that many strikes.
const BANS: &str = "bans: {abusers: {per: address, for: 30m, \
                    strikes: {limits: [Logins], workers: 0, count: 4000, period: 1h}}}";

fn setup(upstream: &Upstream) -> Setup {
    Setup::before(upstream)
        .limits(&[
            "Logins: {per: address, burst: 2, count: 1, period: 1000h}",
            "Calls: {per: account, burst: 3, count: 1, period: 1000h}",
        ])
        .limited_by("Logins, Calls")
        .key("client_address: {trusted_proxies: [127.0.0.1]}")
        .key(BANS)
        .key("account: [header: x-api-key]")
        .key("log: {account: plain}")
        .file("hash.key", "a key that gateways share")
        .key("hash_key: {file: hash.key}")
}

fn with_token(upstream: &Upstream) -> Setup {
    let listener = "admin: {address: \"127.0.0.1:0\"";
    setup(upstream)
        .basis_with(
            listener,
            &format!("{listener}, token: {{file: admin.token}}"),
        )
        .file("admin.token", TOKEN)
}

fn from(address: &str) -> Request {
    get("/").with("x-forwarded-for", address)
}

fn ask(gateway: &Gateway, request: Request) -> Response {
    gateway.admin(&request.with("host", "localhost"))
}

fn findings(gateway: &Gateway) -> Vec<Value> {
    let response = ask(gateway, get("/v1/findings"));
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()["findings"].as_array().unwrap().clone()
}

/// A command that asks this gateway.
fn command(gateway: &Gateway, arguments: &[&str]) -> Command {
    let mut command = weir();
    command.current_dir(gateway.folder()).args(arguments);
    command.args(["--admin", &gateway.admin_address().to_string()]);
    command
}

/// How it ends, and what it prints to each stream.
fn outcome(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(!stderr.contains("panicked"), "{stderr}");
    (output.status.code(), stdout, stderr)
}

fn run(gateway: &Gateway, arguments: &[&str]) -> (Option<i32>, String, String) {
    outcome(&command(gateway, arguments).output().unwrap())
}

/// What it prints, which must be all that there is to say.
fn printed(gateway: &Gateway, arguments: &[&str]) -> String {
    let (code, stdout, stderr) = run(gateway, arguments);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{arguments:?}");
    stdout
}

fn printed_json(gateway: &Gateway, arguments: &[&str]) -> Value {
    serde_json::from_str(&printed(gateway, arguments)).unwrap()
}

#[test]
fn bans_and_buckets_are_listed_as_tables_and_as_json() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    assert_eq!(printed(&gateway, &["ban", "list"]), "no bans\n");
    assert_eq!(
        printed(&gateway, &["bucket", "list", "Logins"]),
        "no subjects\n"
    );
    for address in ["203.0.113.1", "203.0.113.2", "203.0.113.3"] {
        assert_eq!(gateway.statuses(&from(address), 1), [200]);
    }
    let list = printed(&gateway, &["bucket", "list", "Logins"]);
    let rows: Vec<&str> = list.lines().collect();
    assert!(rows[0].starts_with("SUBJECT"), "{list}");
    assert!(
        rows[1].starts_with("203.0.113.1 ") && rows.len() == 4,
        "{list}"
    );
    let one = printed(&gateway, &["bucket", "list", "Logins", "--count", "1"]);
    assert!(one.contains("and others; see --count"), "{one}");
    let all = printed_json(&gateway, &["bucket", "list", "Logins", "--json"]);
    assert_eq!(all["buckets"].as_array().unwrap().len(), 3);
    assert_eq!(all["buckets"][0]["remaining"], 1);

    let add = [
        "ban",
        "add",
        "abusers",
        "203.0.113.0/24",
        "--for",
        "forever",
    ];
    let added = printed(&gateway, &[&add[..], &["--comment", "scrapers"]].concat());
    assert!(added.contains("banned: true\n"), "{added}");
    printed(&gateway, &["ban", "add", "abusers", "198.51.100.7"]);
    let list = printed(&gateway, &["ban", "list"]);
    assert!(
        list.contains("127.0.0.1: scrapers") && list.contains("never"),
        "{list}"
    );
    assert!(list.contains("198.51.100.7"), "{list}");
    let bans = printed_json(&gateway, &["ban", "list", "--json"]);
    assert_eq!(bans["bans"].as_array().unwrap().len(), 2);
    let one = printed_json(&gateway, &["ban", "list", "--json", "--count", "1"]);
    assert_eq!(one["bans"][0]["subject"], "198.51.100.7");
    assert_eq!(gateway.statuses(&from("203.0.113.200"), 1), [403]);
    printed(&gateway, &["ban", "lift", "abusers", "203.0.113.0/24"]);
    assert_eq!(gateway.statuses(&from("203.0.113.200"), 1), [200]);
}

#[test]
fn a_command_without_the_token_or_with_another_changes_nothing_and_says_so() {
    let upstream = Upstream::start();
    let gateway = with_token(&upstream)
        .file("wrong.token", "wrong-wrong-wrong-wrong")
        .start();
    let override_set = [
        "override", "set", "Calls", "acme", "--burst", "9", "--count", "1", "--period", "1000h",
    ];
    for arguments in [
        &["top"][..],
        &["ban", "list"],
        &["ban", "add", "abusers", "203.0.113.1"],
        &["bucket", "list", "Logins", "--json"],
        &["override", "list"],
        &override_set,
    ] {
        for token in [&[][..], &["--token-file", "wrong.token"]] {
            let (code, stdout, stderr) = run(&gateway, &[arguments, token].concat());
            assert_eq!((code, stdout.as_str()), (Some(1), ""), "{arguments:?}");
            assert!(stderr.contains("Authorization: Bearer"), "{stderr}");
        }
    }
    let right = ["--token-file", "admin.token"];
    assert_eq!(
        printed(&gateway, &[&["ban", "list"], &right[..]].concat()),
        "no bans\n"
    );
    assert_eq!(
        printed(&gateway, &[&["override", "list"], &right[..]].concat()),
        "no overrides\n"
    );
    let mut by_variable = command(&gateway, &["ban", "list", "--json"]);
    by_variable.env("WEIR_ADMIN_TOKEN", TOKEN);
    let (code, stdout, _) = outcome(&by_variable.output().unwrap());
    assert_eq!(code, Some(0));
    assert!(stdout.contains("\"bans\":[]"), "{stdout}");
}

#[test]
fn a_command_that_reaches_no_admin_listener_says_where_it_looked() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    // Something else listens there, or nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let elsewhere = silent.local_addr().unwrap().to_string();
    let hangs_up = thread::spawn(move || drop(silent.accept()));
    for admin in ["127.0.0.1:1", &*elsewhere, &*gateway.address().to_string()] {
        let mut command = weir();
        command
            .current_dir(gateway.folder())
            .args(["ban", "list", "--admin", admin]);
        let (code, stdout, stderr) = outcome(&command.output().unwrap());
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{admin}");
        assert!(
            stderr.starts_with(&format!("no gateway answers at {admin}: ")),
            "{stderr}"
        );
    }
    hangs_up.join().unwrap();
}

#[test]
fn a_reader_that_leaves_early_is_not_an_error() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    for host in 0..100 {
        gateway.statuses(&from(&format!("203.0.113.{host}")), 1);
    }
    for arguments in [
        &["bucket", "list", "Logins"][..],
        &["bucket", "list", "Logins", "--json"],
        &["top", "--count", "100"],
        &["ban", "list"],
    ] {
        let mut command = command(&gateway, arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // As `head -c 0` does.
        drop(child.stdout.take());
        let mut said = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert_eq!(
            (child.wait().unwrap().code(), said.as_str()),
            (Some(0), ""),
            "{arguments:?}"
        );
    }
}

fn attack_from_a_network_is_named_until_it_is_banned(gateway: &Gateway) {
    for host in 1..=4 {
        let attacker = from(&format!("203.0.113.{host}"));
        // So many that a new minute, which counts the last one by its share, changes nothing.
        assert_eq!(gateway.statuses(&attacker, 40)[2..], [429; 38]);
    }
    assert_eq!(gateway.statuses(&from("198.51.100.1"), 1), [200]);
    let found = findings(gateway);
    let worst = &found[0];
    assert_eq!(
        (&worst["kind"], &worst["subject"]),
        (&json!("abuse"), &json!("203.0.113.0/24"))
    );
    assert_eq!(
        (&worst["limit"], &worst["subjects"]),
        (&json!("Logins"), &json!(4))
    );
    let remedy = worst["remedy"]["command"].as_str().unwrap();
    assert_eq!(remedy, "weir ban add abusers 203.0.113.0/24 --for 30m");
    let top = printed(gateway, &["top"]);
    let first: Vec<&str> = top.lines().take(3).collect();
    assert!(first[0].starts_with("ABUSE       203.0.113.0/24 "), "{top}");
    assert_eq!(first[2].trim(), remedy, "{top}");

    // The remedy works as it stands there.
    let words: Vec<&str> = remedy.split(' ').skip(1).collect();
    printed(gateway, &words);
    assert_eq!(gateway.statuses(&from("203.0.113.99"), 1), [429]);
    let found = findings(gateway);
    let of_network = found
        .iter()
        .find(|found| found["subject"] == "203.0.113.0/24");
    let of_network = of_network.unwrap();
    assert_eq!(of_network["kind"], "banned", "{of_network}");
    assert_eq!(of_network["banned"]["ban"], "abusers");
    let lift = of_network["remedy"]["command"].as_str().unwrap();
    assert_eq!(lift, "weir ban lift abusers 203.0.113.0/24");

    // A client that alone goes on is banned by its network's ban, which is the one to lift.
    let alone = found.iter().filter(|found| found["kind"] == "banned");
    let commands = alone.map(|found| found["remedy"]["command"].clone());
    assert_eq!(commands.collect::<Vec<_>>(), [json!(lift)], "{found:#?}");
}

#[test]
fn a_banned_client_that_keeps_sending_never_vanishes_and_never_hides_a_dry_run() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream)
        .limits(&[
            "Logins: {per: address, burst: 4, count: 1, period: 1000h}",
            "Calls: {per: account, burst: 3, count: 1, period: 1000h}",
            "Trial: {per: address, burst: 1, count: 1, period: 1000h}",
        ])
        .limited_by("Logins, Calls, {limit: Trial, enforce: false}")
        .start();
    let client = from("203.0.113.7");
    // Nothing is denied before it is banned, and no limit decides after that. So few requests are no
    // finding, and of those that would be denied some are left when the minute turns.
    assert_eq!(gateway.statuses(&client, 4), [200; 4]);
    printed(&gateway, &["ban", "add", "abusers", "203.0.113.7"]);
    assert_eq!(gateway.statuses(&client, 40), [429; 40]);
    let found = findings(&gateway);
    let banned = found.iter().find(|found| found["kind"] == "banned");
    let banned = banned.unwrap();
    assert_eq!(banned["subject"], "203.0.113.7", "{banned}");
    let text = banned["text"].as_str().unwrap();
    assert!(text.ends_with(" requests in the last minute"), "{text}");
    let dry = found.iter().find(|found| found["kind"] == "dry_run");
    assert_eq!(dry.unwrap()["limit"], "Trial", "{found:#?}");
}

/// Twenty workers that waited as they were told were an abuser, and the command banned them.
#[test]
fn a_crowd_that_waits_is_told_of_by_its_number_and_banned_only_when_it_goes_on() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream)
        .limits(&["Logins: {per: address, burst: 10, count: 10, period: 1m}"])
        .limited_by("Logins")
        .start();
    let customer = from("203.0.113.7");
    assert_eq!(gateway.statuses(&customer, 10), [200; 10]);
    // A person who tries again is no crowd.
    assert_eq!(gateway.statuses(&customer, 4), [429; 4]);
    let table = printed(&gateway, &["top"]);
    let wants = "OVER LIMIT  203.0.113.7 wants more than Logins allows: ";
    assert!(table.starts_with(wants), "{table}");
    // Each of so many workers is told when to come back.
    assert_eq!(gateway.statuses(&customer, 16), [429; 16]);
    let table = printed(&gateway, &["top"]);
    let (found, rest) = table.split_once('\n').unwrap();
    let of = |workers: u32| {
        format!(
            "OVER LIMIT  203.0.113.7 may be about {workers} workers that wait as they are told, for \
             which Logins is too small: it denies "
        )
    };
    assert!(
        (19..=21).any(|workers| found.starts_with(&of(workers))),
        "{found}"
    );
    let remedy = rest.lines().nth(1).unwrap().trim();
    assert!(
        remedy.starts_with("weir override set Logins 203.0.113.7 --burst 40 --count 40"),
        "{remedy}"
    );
    let words: Vec<&str> = remedy.split(' ').skip(1).collect();
    printed(&gateway, &words);
    let bucket = printed_json(
        &gateway,
        &["bucket", "get", "Logins", "203.0.113.7", "--json"],
    );
    assert_eq!(bucket["burst"], 40, "{bucket}");

    let hammerer = from("198.51.100.7");
    assert_eq!(gateway.statuses(&hammerer, 60)[10..], [429; 50]);
    let worst = &findings(&gateway)[0];
    assert_eq!(
        (
            &worst["kind"],
            &worst["subject"],
            &worst["remedy"]["command"]
        ),
        (
            &json!("abuse"),
            &json!("198.51.100.7"),
            &json!("weir ban add abusers 198.51.100.7 --for 30m")
        )
    );
}

#[test]
fn large_networks_that_are_banned_are_never_named_as_abusers_again() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let networks = ["198.51.100", "203.0.113"];
    for network in networks {
        for host in 1..=65 {
            gateway.statuses(&from(&format!("{network}.{host}")), 12);
        }
    }
    let kinds = || {
        let found = findings(&gateway).into_iter();
        let kinds = found.map(|found| (found["kind"].clone(), found["subject"].clone()));
        let mut kinds: Vec<_> = kinds.collect();
        kinds.sort_by_key(|(_, subject)| subject.to_string());
        kinds
    };
    let all = |kind: &str| networks.map(|of| (json!(kind), json!(format!("{of}.0/24"))));
    assert_eq!(kinds(), all("abuse"));
    for network in networks {
        let network = format!("{network}.0/24");
        printed(
            &gateway,
            &["ban", "add", "abusers", &network, "--for", "30m"],
        );
    }
    assert_eq!(kinds(), all("banned"));
}

#[test]
fn an_attack_is_named_with_a_remedy_that_works() {
    let upstream = Upstream::start();
    attack_from_a_network_is_named_until_it_is_banned(&setup(&upstream).start());
}

#[test]
fn an_attack_is_named_with_a_remedy_that_works_with_redis_and_without_it_still_named() {
    let mut server = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = setup(&upstream).key(&redis::store(&server.url())).start();
    attack_from_a_network_is_named_until_it_is_banned(&gateway);
    server.kill();
    // The ban of the network holds then, and is shown as one that does.
    let found = findings(&gateway);
    let of_network = found.iter().find(|it| it["subject"] == "203.0.113.0/24");
    assert_eq!(of_network.unwrap()["kind"], "banned", "{found:#?}");
}

#[test]
fn an_account_is_named_where_the_log_names_it_and_the_remedy_raises_its_limit() {
    let upstream = Upstream::start();
    let folder = setup(&upstream).written();
    let path = folder.path().join("gateway.yaml");
    let hashed = fs::read_to_string(&path)
        .unwrap()
        .replace("account: plain", "account: hash");
    fs::write(path, hashed).unwrap();
    let gateway = Gateway::start(folder);
    let acme = |from: &str| {
        get("/")
            .with("x-api-key", "acme")
            .with("x-forwarded-for", from)
    };
    gateway.statuses(&acme("192.0.2.1"), 1);
    let answer = ask(&gateway, get("/v1/top?limit=Calls"));
    assert!(!answer.text().contains("acme"), "{}", answer.text());

    let gateway = setup(&upstream).start();
    for host in 1..=10 {
        gateway.statuses(&acme(&format!("192.0.{host}.1")), 1);
    }
    let top = printed_json(&gateway, &["top", "--limit", "Calls", "--json"]);
    assert_eq!(top["subjects"][0]["name"], "acme");
    assert!(
        top["subjects"][0]["subject"]
            .as_str()
            .unwrap()
            .starts_with("hash:")
    );
    let table = printed(&gateway, &["top", "--limit", "Calls"]);
    assert!(
        table.starts_with("OVER LIMIT  acme wants more than Calls allows"),
        "{table}"
    );
    assert!(
        table.lines().last().unwrap().contains("  acme  "),
        "{table}"
    );
    let remedy = table.lines().nth(2).unwrap().trim();
    let words: Vec<&str> = remedy.split(' ').skip(1).collect();
    assert_eq!(words[..4], ["override", "set", "Calls", "acme"]);
    printed(&gateway, &words);
    let bucket = printed_json(&gateway, &["bucket", "get", "Calls", "acme", "--json"]);
    assert_eq!(bucket["override"]["origin"], "api");
    assert!(bucket["burst"].as_u64().unwrap() >= 6, "{bucket}");
    let listed = printed(&gateway, &["override", "list", "Calls"]);
    assert!(listed.contains("in force"), "{listed}");
}

#[test]
fn two_gateways_that_set_overrides_at_once_lose_none_and_agree() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let setup = setup(&upstream).key(&redis::store(&server.url()));
    let (one, other) = (setup.start(), setup.start());
    let body = |burst: u64| json!({"burst": burst, "count": 1, "period": "1000h"}).to_string();
    let set = |gateway: &Gateway, burst: u64| {
        for round in 0..5 {
            for id in ["same".to_owned(), format!("own-{burst}-{round}")] {
                let path = format!("/v1/overrides/Calls/{id}");
                let response = ask(gateway, put(&path, &body(burst)));
                assert_eq!(response.status, 200, "{}", response.text());
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| set(&one, 50));
        scope.spawn(|| set(&other, 70));
    });
    let listed = |gateway: &Gateway| {
        let page = ask(gateway, get("/v1/overrides?origin=api")).json();
        page["overrides"].as_array().unwrap().clone()
    };
    eventually("the same overrides on both", || {
        let (of_one, of_other) = (listed(&one), listed(&other));
        (of_one.len() == 11 && of_one == of_other).then_some(())
    });
    let of_one = listed(&one);
    let same: Vec<&Value> = of_one
        .iter()
        .filter(|listed| listed["id"] == "same")
        .collect();
    assert_eq!(same.len(), 1);
    assert!(same[0]["burst"] == 50 || same[0]["burst"] == 70, "{same:?}");
}

#[test]
fn numbers_that_are_too_great_are_refused_and_never_wrap_around() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    for (burst, count, period) in [
        ("18446744073709551615", "1", "1s"),
        ("1", "18446744073709551615", "1s"),
        ("18446744073709551616", "1", "1s"),
        ("1e300", "1", "1s"),
        ("1.5", "1", "1s"),
        ("10", "1", "99999999999999999999d"),
        ("9223372036854775807", "1", "1000000h"),
    ] {
        let body = format!("{{\"burst\": {burst}, \"count\": {count}, \"period\": \"{period}\"}}");
        let response = ask(&gateway, put("/v1/overrides/Calls/acme", &body));
        assert_eq!(response.status, 400, "{body}: {}", response.text());
    }
    let cost = post(
        "/v1/buckets/Calls/acme/refund",
        "{\"cost\": 18446744073709551615}",
    );
    let refunded = ask(&gateway, cost).json();
    assert_eq!(refunded["remaining"], 3, "never above full: {refunded}");
    for length in ["99999999999999999999d", "-1s", "0s"] {
        let body = json!({ "for": length }).to_string();
        let response = ask(&gateway, put("/v1/bans/abusers/203.0.113.1", &body));
        assert_eq!(response.status, 400, "{length}: {}", response.text());
    }
    let bucket = ask(&gateway, get("/v1/buckets/Calls/acme")).json();
    assert_eq!(bucket["override"], Value::Null);
}

#[test]
fn a_body_of_ten_megabytes_is_refused_without_being_kept() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let before = gateway.peak_resident();
    let body = format!("{{\"comment\": \"{}\"}}", "x".repeat(10_000_000));
    for request in [
        put("/v1/overrides/Calls/acme", &body),
        put("/v1/bans/abusers/203.0.113.1", &body),
        put("/v1/log-level", &body),
        post("/v1/buckets/Calls/acme/refund", &body),
        post("/v1/explain", &body),
    ] {
        let bytes = request.with("host", "localhost").bytes();
        let mut client = gateway.admin_client();
        // The listener may close the connection before it has all of the body.
        let _ = client.write(&bytes);
        if let Ok(head) = client.read_head() {
            assert_eq!(head.status, 400);
        }
    }
    let grown = gateway.peak_resident().saturating_sub(before);
    assert!(grown < 8_000_000, "{grown} bytes");
    assert_eq!(ask(&gateway, get("/v1/overrides")).json()["total"], 0);
}

#[test]
fn a_token_in_the_url_is_no_token_and_is_not_logged() {
    let upstream = Upstream::start();
    let gateway = with_token(&upstream).start();
    for target in [
        format!("/v1/top?token={TOKEN}"),
        format!("/v1/top?access_token={TOKEN}"),
        format!("/v1/events?authorization=Bearer%20{TOKEN}"),
    ] {
        assert_eq!(ask(&gateway, get(&target)).status, 401, "{target}");
    }
    let basic = get("/v1/top").with("authorization", &format!("Basic {TOKEN}"));
    assert_eq!(ask(&gateway, basic).status, 401);
    assert!(!gateway.log_text().contains(TOKEN));
}

/// What a form of another page sends without asking first, and what a page sends whose name leads
/// here.
#[test]
fn what_a_web_page_can_send_changes_nothing() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let form = |path: &str| {
        post(path, "{\"cost\": 1}")
            .with("content-type", "text/plain")
            .with("origin", "http://evil.example")
    };
    for request in [
        form("/v1/buckets/Calls/acme/refund"),
        form("/v1/explain"),
        form("/v1/buckets/Calls/acme/refund").with("origin", "null"),
    ] {
        assert_eq!(ask(&gateway, request).status, 403);
    }
    for host in [
        "evil.example",
        "evil.example:9901",
        "127.0.0.1.evil.example",
        "203.0.113.1",
        "",
    ] {
        for request in [
            put("/v1/bans/abusers/203.0.113.1", ""),
            put(
                "/v1/overrides/Calls/acme",
                "{\"burst\": 9, \"count\": 1, \"period\": \"1h\"}",
            ),
            get("/v1/findings"),
        ] {
            assert_eq!(
                gateway.admin(&request.with("host", host)).status,
                403,
                "{host:?}"
            );
        }
    }
    assert_eq!(printed(&gateway, &["ban", "list"]), "no bans\n");
    assert_eq!(printed(&gateway, &["override", "list"]), "no overrides\n");
}
