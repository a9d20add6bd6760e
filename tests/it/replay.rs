//! `weir replay`, over logs that a gateway has written, and over those of other servers.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;

use serde_json::Value;

use crate::support::gateway::WEIR;
use crate::support::*;

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(WEIR);
    command.current_dir(folder).arg("replay").args(arguments);
    command.output().expect("the weir binary")
}

/// The report of a replay that succeeds.
fn report(folder: &Path, arguments: &[&str]) -> Value {
    let output = run(folder, &[arguments, &["--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn limit<'r>(report: &'r Value, name: &str) -> &'r Value {
    let mut limits = report["limits"].as_array().unwrap().iter();
    limits.find(|limit| limit["name"] == name).expect("a limit")
}

/// Waits for this many lines of the access log, and writes the log to a file.
fn written_log(gateway: &Gateway, requests: usize) {
    eventually("all lines of the access log", || {
        let lines = gateway.log_text();
        (lines.matches("weir::access").count() >= requests).then_some(())
    });
    gateway.write("access.log", &gateway.log_text());
}

const KEY: &str = "hash_key: {file: hash.key}";

/// Every kind of limit that a log tells enough for, with units that come back while the test runs.
fn varied(upstream: &Upstream) -> Setup {
    Setup::before(upstream)
        .file("hash.key", "0123456789abcdef0123")
        .key(KEY)
        .key("client_address: {trusted_proxies: [127.0.0.1]}")
        .key("account: [{header: x-api-key}]")
        .key("block: {addresses: [203.0.113.7]}")
        .key("allow: {accounts: [root]}")
        .key(
            "bans: {guessers: {per: address, strikes: {limits: Failures, workers: 0, count: 6, period: 1h}, \
             for: 1h}, trapped: {per: address, strikes: {paths: /trap, count: 1, period: 1h}, \
             for: 1h, enforce: false}}",
        )
        .limits(&[
            "Steady: {per: address, burst: 4, count: 200, period: 1s}",
            "Everyone: {per: global, burst: 60, count: 300, period: 1s}",
            "Fixed: {per: address, algorithm: fixed_window, count: 20, period: 1s}",
            "Sliding: {per: account, algorithm: sliding_window, count: 15, period: 2s}",
            "Logged: {per: [method, 'path:team'], algorithm: sliding_log, count: 2, period: 1h}",
            "Failures: {per: address, burst: 3, count: 1, period: 1h}",
            "Dry: {per: host, burst: 10, count: 10, period: 1s, enforce: false}",
            "Some: {per: address, burst: 2, count: 1, period: 1h, enforce: 50%}",
        ])
        .overrides("- Steady: {burst: 1, count: 1, period: 1h, ids: [203.0.113.3]}\n")
        .routes(&[
            "{name: all, match: {}, upstream: app, limits: [Everyone, Dry, Steady]}",
            "{name: windows, match: {path: /windows}, upstream: app, \
             limits: [Fixed, {limit: Sliding, cost: 2}]}",
            "{name: teams, match: {path: '/teams/{team}'}, upstream: app, limits: [Logged, Everyone]}",
            "{name: login, match: {path: /login}, upstream: app, \
             limits: [{limit: Failures, spend_on: {status: [401]}}]}",
            "{name: some, match: {host: some.example.com}, upstream: app, limits: [Some]}",
            "{name: free, match: {path: /free}, upstream: app, limits: []}",
        ])
}

/// A request that depends on nothing but its number.
fn numbered(number: usize) -> Request {
    let path = match number % 11 {
        0 => "/login".to_owned(),
        1 | 2 => "/windows".to_owned(),
        3 => format!("/teams/{}", number % 3),
        4 => "/free?a=1".to_owned(),
        5 if number.is_multiple_of(5) => "/trap".to_owned(),
        _ => format!("/page/{number}"),
    };
    let method = if number.is_multiple_of(4) {
        "POST"
    } else {
        "GET"
    };
    let request = request(method, &path)
        .with("x-forwarded-for", &format!("203.0.113.{}", number % 8))
        .with("x-api-key", ["one", "two", "root", "three"][number % 4]);
    match number % 13 {
        0 => request.with("host", "some.example.com"),
        _ => request,
    }
}

/// An upstream that knows no login.
fn refusing() -> Upstream {
    Upstream::answering(|request| {
        let mut answer = upstream::text("real");
        if request.target == "/login" {
            *answer.status_mut() = http::StatusCode::UNAUTHORIZED;
        }
        answer
    })
}

#[test]
fn a_replay_of_a_log_makes_every_decision_that_the_gateway_made() {
    const CLIENTS: usize = 4;
    const REQUESTS: usize = 300;
    let upstream = refusing();
    let folder = varied(&upstream).written();
    let path = folder.path().join("gateway.yaml");
    // Two workers may read the clock in one order, and decide in the other.
    let text = fs::read_to_string(&path)
        .unwrap()
        .replace("workers: 2", "workers: 1");
    fs::write(&path, text).unwrap();
    let gateway = Gateway::start(folder);
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let mut connection = gateway.client();
            scope.spawn(move || {
                for number in 0..REQUESTS {
                    connection.send(&numbered(client + number));
                }
            });
        }
    });
    written_log(&gateway, CLIENTS * REQUESTS);
    let report = report(gateway.folder(), &["--log", "access.log"]);
    let changes = &report["changes"];
    assert_eq!(report["baseline"], "recorded");
    assert_eq!(changes["compared"], CLIENTS * REQUESTS, "{report:#}");
    assert_eq!(changes["same"], changes["compared"], "{changes:#}");
    assert_eq!(report["log"]["malformed"], 0);
    for name in [
        "Steady", "Everyone", "Fixed", "Sliding", "Logged", "Failures", "Some",
    ] {
        let limit = limit(&report, name);
        assert_ne!(limit["allowed"], 0, "{name} in {report:#}");
    }
    for name in ["Steady", "Logged", "Failures", "Some"] {
        assert_ne!(limit(&report, name)["denied"], 0, "{name} in {report:#}");
    }
    assert_ne!(report["bans"]["guessers"], 0);
    assert_ne!(report["requests"]["blocked"], 0);
    // One partition or 64, one thread or many: the result is the same.
    let again = report_of_two_runs(gateway.folder());
    assert_eq!(again.0, again.1);
}

/// The reports of one thread and of three.
fn report_of_two_runs(folder: &Path) -> (Value, Value) {
    let of = |threads| report(folder, &["--log", "access.log", "--threads", threads]);
    (of("1"), of("3"))
}

/// Lines of the combined log format: so many requests of each of these clients, a second apart.
fn combined(clients: &[&str], requests: usize) -> String {
    let mut log = String::new();
    for second in 0..requests {
        for client in clients {
            let (minute, second) = (second / 60, second % 60);
            writeln!(
                log,
                "{client} - - [21/Nov/2026:10:{minute:02}:{second:02} +0100] \"GET /a?b=c HTTP/1.1\" \
                 200 12 \"-\" \"test/1.0\""
            )
            .unwrap();
        }
    }
    log
}

fn one_limit(definition: &str) -> Setup {
    Setup::with_upstreams("{app: {servers: [\"http://127.0.0.1:1\"]}}")
        .limits(&[definition])
        .limited_by("L")
}

#[test]
fn clients_behind_a_translator_are_never_one_client_of_a_log() {
    let clients = [
        "64:ff9b::192.0.2.1",
        "2001:db8:64::192.0.2.2",
        "2001:db8:64::192.0.2.3",
    ];
    let folder = one_limit("L: {per: address, burst: 2, count: 1, period: 1h}")
        .key("client_address: {nat64_prefixes: [\"2001:db8:64::/96\"]}")
        .key("block: {addresses: [192.0.2.3]}")
        .file("access.log", &combined(&clients, 2))
        .written();
    let arguments = ["--log", "access.log", "--format", "combined"];
    let report = report(folder.path(), &arguments);
    assert_eq!(report["log"]["requests"], 6);
    assert_eq!(limit(&report, "L")["denied"], 0, "{report}");
    assert_eq!(report["requests"]["blocked"], 2, "{report}");
}

#[test]
fn the_log_of_another_server_shows_whom_a_limit_would_deny() {
    let setup = one_limit("L: {per: address, burst: 5, count: 1, period: 1h}");
    let folder = setup
        .file("access.log", &combined(&["192.0.2.1", "2001:db8::1"], 8))
        .written();
    let report = report(
        folder.path(),
        &["--log", "access.log", "--format", "combined"],
    );
    assert_eq!(report["log"]["requests"], 16);
    let limit = limit(&report, "L");
    for (field, expected) in [
        ("requests", 16),
        ("allowed", 10),
        ("denied", 6),
        ("would_deny", 0),
    ] {
        assert_eq!(limit[field], expected, "{field} in {limit:#}");
    }
    let top = &limit["top"][0];
    assert_eq!(top["subject"], "192.0.2.1");
    assert_eq!((&top["requests"], &top["denied"]), (&8.into(), &3.into()));
    // The sixth request came at five seconds past nine in UTC.
    assert_eq!(top["first"], "2026-11-21T09:00:05.000Z");
    assert_eq!(report["baseline"], Value::Null);
}

#[test]
fn a_limit_that_is_looser_than_the_baseline_denies_fewer() {
    let setup = one_limit("L: {per: address, burst: 5, count: 1, period: 1h}");
    let old = setup.gateway_yaml();
    let folder = setup
        .file("old.yaml", &old.replace("routes:", "limits: old\nroutes:"))
        .file("access.log", &combined(&["192.0.2.1"], 8))
        .written();
    fs::create_dir(folder.path().join("old")).unwrap();
    let tight = "L: {per: address, burst: 2, count: 1, period: 1h}";
    fs::write(folder.path().join("old/defaults.yaml"), tight).unwrap();
    let report = report(
        folder.path(),
        &["--baseline", "old.yaml", "--log", "access.log"],
    );
    let changes = &report["changes"];
    assert_eq!(changes["compared"], 8, "{report:#}");
    assert_eq!(
        (&changes["same"], &changes["no_longer_denied"]),
        (&5.into(), &3.into())
    );
    assert_eq!(limit(&report, "L")["baseline_denied"], 6);
    assert_eq!(report["baseline_requests"]["denied"], 6);
}

#[test]
fn lines_that_cannot_be_read_are_counted_and_shown_with_their_places() {
    let good = combined(&["192.0.2.1"], 3);
    let log = format!("{good}what is this?\n\n{good}\u{fffd} - - [x] \"\"\n{good}no end");
    let setup = one_limit("L: {per: address, burst: 50, count: 1, period: 1h}");
    let folder = setup.file("access.log", &log).written();
    let report = report(folder.path(), &["--log", "access.log"]);
    let log = &report["log"];
    assert_eq!(
        (&log["requests"], &log["malformed"]),
        (&9.into(), &3.into()),
        "{log:#}"
    );
    let places: Vec<_> = log["examples"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["line"])
        .collect();
    assert_eq!(places, [4, 9, 13]);
    assert_eq!(log["examples"][0]["file"], "access.log");
    let text = run(folder.path(), &["--log", "access.log"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("access.log:4: "), "{text}");
}

#[test]
fn packed_files_in_any_order_are_the_same_log() {
    let log = combined(&["192.0.2.1", "192.0.2.2"], 100);
    let half = log.len() / 200 * 100;
    let (first, second) = log.split_at(half);
    let setup = one_limit("L: {per: address, burst: 5, count: 6, period: 1m}");
    let folder = setup
        .file("whole.log", &log)
        .file("2.log", second)
        .written();
    let gz = fs::File::create(folder.path().join("1.gz")).unwrap();
    let mut gz = flate2::write::GzEncoder::new(gz, flate2::Compression::fast());
    gz.write_all(first.as_bytes()).unwrap();
    gz.finish().unwrap();
    let zstd = zstd::encode_all(second.as_bytes(), 1).unwrap();
    fs::write(folder.path().join("2.zst"), zstd).unwrap();
    let whole = report(folder.path(), &["--log", "whole.log"]);
    assert_ne!(limit(&whole, "L")["denied"], 0);
    for files in [["2.log", "1.gz"], ["1.gz", "2.zst"]] {
        let parts = report(folder.path(), &["--log", files[0], files[1]]);
        assert_eq!(parts["limits"], whole["limits"], "{files:?}");
    }
}

#[test]
fn what_logs_do_not_tell_is_said_and_not_guessed() {
    let setup = Setup::with_upstreams("{app: {servers: [\"http://127.0.0.1:1\"]}}")
        .limits(&[
            "ByHeader: {per: 'header:x-tenant', missing: deny, burst: 1, count: 1, period: 1h}",
            "ByCost: {per: address, burst: 1, count: 1, period: 1h}",
            "L: {per: address, burst: 2, count: 1, period: 1h}",
        ])
        .limited_by("ByHeader, {limit: ByCost, cost: {response_header: x-cost}}, L");
    let folder = setup
        .file("access.log", &combined(&["192.0.2.1"], 3))
        .written();
    let report = report(folder.path(), &["--log", "access.log"]);
    let gaps = report["not_replayed"].as_array().unwrap();
    let names: Vec<_> = gaps.iter().map(|gap| &gap["what"]).collect();
    assert_eq!(names, ["limit ByCost", "limit ByHeader"]);
    assert_eq!(report["limits"].as_array().unwrap().len(), 1);
    assert_eq!(report["requests"]["denied"], 1);
}

#[test]
fn a_bad_configuration_or_a_missing_log_is_an_error() {
    let folder = one_limit("L: {per: address, burst: 0, count: 1, period: 1h}")
        .file("access.log", "")
        .written();
    let output = run(folder.path(), &["--log", "access.log"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("limits/defaults.yaml:1"));
    let folder = one_limit("L: {per: address, burst: 1, count: 1, period: 1h}").written();
    let output = run(folder.path(), &["--log", "none.log"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("none.log"));
}

/// The JSON of another server, about the same requests as a log in the combined format.
fn same_in_json(form: &str, clients: &[&str], requests: u64) -> String {
    const START: u64 = 1_795_251_600;
    let mut log = String::new();
    for second in (0..requests).map(|number| START + number) {
        for client in clients {
            let line = match form {
                "nginx-json" => format!(
                    r#"{{"msec":"{second}.500","remote_addr":"{client}","request":"GET /a?b=c HTTP/1.1","status":"200","request_time":"0.500"}}"#
                ),
                "caddy" => format!(
                    r#"{{"level":"info","ts":{second}.5,"logger":"http.log.access","request":{{"remote_ip":"{client}","method":"GET","host":"a","uri":"/a?b=c","headers":{{"User-Agent":["test"]}}}},"duration":0.5,"status":200}}"#
                ),
                _ => {
                    let time = jiff::Timestamp::from_second(second.try_into().unwrap()).unwrap();
                    format!(
                        r#"{{"ClientHost":"{client}","StartUTC":"{time}","Duration":500000000,"RequestMethod":"GET","RequestPath":"/a?b=c","DownstreamStatus":200}}"#
                    )
                }
            };
            writeln!(log, "{line}").unwrap();
        }
    }
    log
}

#[test]
fn the_logs_of_other_servers_are_read_alike_and_their_forms_are_found() {
    let clients = ["192.0.2.1", "2001:db8::1"];
    let setup = one_limit("L: {per: address, burst: 5, count: 1, period: 1h}");
    let folder = setup.file("access.log", &combined(&clients, 8)).written();
    let expected = report(folder.path(), &["--log", "access.log"]);
    for form in ["nginx-json", "caddy", "traefik"] {
        fs::write(folder.path().join(form), same_in_json(form, &clients, 8)).unwrap();
        let found = report(folder.path(), &["--log", form]);
        assert_eq!(found["log"]["format"], form);
        assert_eq!(found["requests"], expected["requests"], "{form}");
        let denied = |report: &Value| limit(report, "L")["top"][1]["denied"].clone();
        assert_eq!(denied(&found), denied(&expected), "{form}");
    }
}

/// Many honest clients, of which some send two requests at once, and one that floods.
fn mixed_log() -> String {
    let mut log = String::new();
    for second in 0..600_u32 {
        let (minute, second_of) = (second / 60, second % 60);
        let mut line = |client: String| {
            writeln!(
                log,
                "{client} - - [21/Nov/2026:10:{minute:02}:{second_of:02} +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"-\""
            )
            .unwrap();
        };
        let client = second % 200;
        for _ in 0..=client % 7 {
            line(format!("192.0.2.{client}"));
        }
        (0..20).for_each(|_| line("198.51.100.1".to_owned()));
    }
    log
}

#[test]
fn a_suggested_limit_denies_whom_it_was_said_to_deny() {
    let setup = one_limit("L: {per: address, burst: 1, count: 10, period: 1m}");
    let folder = setup.file("access.log", &mixed_log()).written();
    for target in ["0%", "1%", "30%"] {
        let defaults = folder.path().join("limits/defaults.yaml");
        fs::write(
            &defaults,
            "L: {per: address, burst: 1, count: 10, period: 1m}",
        )
        .unwrap();
        let arguments = ["--log", "access.log", "--target", target];
        let before = report(folder.path(), &arguments);
        let suggested = &limit(&before, "L")["need"]["suggested"];
        fs::write(&defaults, suggested["yaml"].as_str().unwrap()).unwrap();
        let after = report(folder.path(), &arguments);
        let after = limit(&after, "L");
        assert_eq!(
            after["denied_subjects"], suggested["denied_subjects"],
            "{suggested:#}"
        );
        let at_most = suggested["denied_at_most"].as_u64().unwrap();
        assert!(after["denied"].as_u64().unwrap() <= at_most, "{after:#}");
        assert_eq!(target == "0%", after["denied"] == 0, "{after:#}");
    }
}

#[test]
fn a_sweep_replays_each_value_of_a_parameter() {
    let setup = one_limit("L: {per: address, burst: 5, count: 1, period: 1h}");
    let folder = setup
        .file("access.log", &combined(&["192.0.2.1"], 8))
        .written();
    let arguments = ["--log", "access.log", "--sweep", "L.burst=2..8"];
    let swept = report(folder.path(), &arguments);
    let denied: Vec<_> = swept["sweep"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["limit"]["denied"])
        .collect();
    assert_eq!(denied, [6, 5, 4, 3, 2, 1, 0]);
    let unknown = run(
        folder.path(),
        &["--log", "access.log", "--sweep", "M.burst=1,2"],
    );
    assert_eq!(unknown.status.code(), Some(2));
}

#[test]
fn a_condition_that_is_met_fails_the_command() {
    let setup = one_limit("L: {per: address, burst: 5, count: 1, period: 1h}");
    let folder = setup
        .file("access.log", &combined(&["192.0.2.1"], 8))
        .written();
    for (condition, code) in [
        ("denied>37%", 1),
        ("denied>37.5%", 0),
        ("denied>=37.5%", 1),
        ("L.denied>2", 1),
        ("L.denied>3", 0),
        ("M.denied>3", 2),
        ("denied>137%", 2),
    ] {
        let output = run(
            folder.path(),
            &["--log", "access.log", "--fail-if", condition],
        );
        assert_eq!(output.status.code(), Some(code), "{condition}");
    }
    // Nobody waits for a replay whose condition is about a limit that is not there.
    let condition = ["--fail-if", "M.denied>3"];
    let output = run(
        folder.path(),
        &[&["--log", "access.log"], &condition[..]].concat(),
    );
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("no limit M is replayed; those are L"),
        "{errors}"
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    // A log of another day holds nothing that could fail.
    let other_day = ["--log", "access.log", "--from", "2027-01-01"];
    let output = run(
        folder.path(),
        &[&other_day[..], &["--fail-if", "denied>0"]].concat(),
    );
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let said = "no request was judged by a limit: 8 outside of --from and --to";
    assert!(errors.contains(said), "{errors}");
    assert_eq!(run(folder.path(), &other_day).status.code(), Some(1));
}

/// The gate of the documentation passed on every log of another server.
#[test]
fn a_gate_on_what_is_newly_denied_never_passes_where_nobody_knows_what_was_denied_before() {
    let setup = one_limit("L: {per: address, burst: 5, count: 1, period: 1h}");
    let folder = setup
        .file("access.log", &combined(&["192.0.2.1"], 8))
        .written();
    let judged = |more: &[&str], condition| {
        let arguments = [&["--log", "access.log"], more, &["--fail-if", condition]];
        let output = run(folder.path(), &arguments.concat());
        let errors = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), errors)
    };
    for condition in ["newly_denied>0", "no_longer_denied>=0%", "L.newly_denied>0"] {
        let (code, errors) = judged(&[], condition);
        assert_eq!(code, Some(2), "{condition}: {errors}");
        assert!(errors.contains("--baseline"), "{condition}: {errors}");
    }
    let report = report(folder.path(), &["--log", "access.log"]);
    assert_eq!(report["changes"], Value::Null);
    assert_eq!(limit(&report, "L")["newly_denied"], Value::Null);
    assert_eq!(limit(&report, "L")["no_longer_denied"], Value::Null);
    let table = run(folder.path(), &["--log", "access.log", "--csv"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("\nL,,8,5,3,0,37.5,,,,1,1,"), "{table}");
    // With a baseline it is known.
    let baseline = ["--baseline", "gateway.yaml"];
    for (condition, code) in [("newly_denied>0", 0), ("L.newly_denied>=0", 1)] {
        assert_eq!(judged(&baseline, condition).0, Some(code), "{condition}");
    }
}

/// A replay that knows nothing of them says so, as its decisions differ from the gateway's.
#[test]
fn what_operators_changed_is_never_left_out_in_silence() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .admin("")
        .key("bans: {abusers: {per: address, strikes: {paths: /trap, count: 9, period: 1h}, for: 1h}}")
        .limits(&["L: {per: address, burst: 2, count: 1, period: 1000h}"])
        .limited_by("L")
        .start();
    let change = |request: Request| {
        let response = gateway.admin(&request.with("host", "localhost"));
        assert_eq!(response.status, 200, "{}", response.text());
    };
    let delete = |path: &str| change(request("DELETE", path));
    let bucket = "/v1/buckets/L/127.0.0.1";
    assert_eq!(gateway.statuses(&get("/"), 3), [200, 200, 429]);
    delete(bucket);
    assert_eq!(gateway.statuses(&get("/"), 3), [200, 200, 429]);
    change(post(&format!("{bucket}/refund"), r#"{"cost": 1}"#));
    change(put("/v1/bans/abusers/192.0.2.1", "{}"));
    delete("/v1/bans/abusers/192.0.2.1");
    let definition = r#"{"burst": 9, "count": 1, "period": "1h"}"#;
    change(put("/v1/overrides/L/192.0.2.1", definition));
    change(put("/v1/overrides/L/192.0.2.2", definition));
    delete("/v1/overrides/L/192.0.2.1");
    gateway.logs("override deleted", 1);
    written_log(&gateway, 6);
    let replayed = report(gateway.folder(), &["--log", "access.log"]);
    assert_eq!(replayed["changes"]["newly_denied"], 2, "{replayed:#}");
    let gap = &replayed["not_replayed"][0];
    assert_eq!(gap["what"], "changes by operators");
    let why = gap["why"].as_str().unwrap();
    assert!(
        why.contains(
            "ban lifted (1), ban set (1), bucket refunded (1), bucket reset (1), override deleted \
             (1), override set (2)"
        ),
        "{why}"
    );
    assert_eq!(
        replayed["log"]["operator_changes"]["override set"], 2,
        "{replayed:#}"
    );
    let text = run(gateway.folder(), &["--log", "access.log"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("changes by operators: the log has"), "{text}");
    let earlier = run(
        gateway.folder(),
        &["--log", "access.log", "--to", "2020-01-01", "--json"],
    );
    let earlier: Value = serde_json::from_slice(&earlier.stdout).unwrap();
    assert_eq!(earlier["not_replayed"].as_array().unwrap().len(), 0);
}

/// A bound that was higher than what was denied was taken for a forecast.
#[test]
fn a_bound_of_denials_that_exceeds_what_is_denied_says_what_it_is_a_bound_of() {
    let setup = one_limit("L: {per: address, burst: 2, count: 30, period: 1m}");
    let light = combined(&["192.0.2.2", "192.0.2.3", "192.0.2.4"], 1);
    let log = light + &combined(&["192.0.2.1"], 60);
    let folder = setup.file("access.log", &log).written();
    let arguments = ["--log", "access.log", "--target", "50%"];
    let replayed = report(folder.path(), &arguments);
    let limit = limit(&replayed, "L");
    let bound = limit["need"]["smallest"]["denied_at_most"].as_u64();
    assert!(bound > limit["denied"].as_u64(), "{limit:#}");
    let caveat = "an upper bound of what the smallest or the suggested definition";
    assert!(replayed["caveats"].to_string().contains(caveat));
    let text = run(folder.path(), &arguments);
    assert!(String::from_utf8(text.stdout).unwrap().contains(caveat));
    // Without a bound there is nothing to explain.
    let all = report(folder.path(), &["--log", "access.log", "--target", "0%"]);
    assert!(!all["caveats"].to_string().contains(caveat));
}

#[test]
fn tables_have_a_row_for_each_limit_and_pages_show_no_markup_of_a_log() {
    let hostile = "192.0.2.1 - - [21/Nov/2026:10:00:00 +0000] \"GET /a'b/c HTTP/1.1\" \
                   200 1 \"-\" \"-\"\n<script>alert(2)</script>\n";
    let setup = Setup::with_upstreams("{app: {servers: [\"http://127.0.0.1:1\"]}}")
        .limits(&["L: {per: 'path:name', burst: 1, count: 1, period: 1h}"])
        .routes(&["{name: all, match: {path: '/{name}/{rest}'}, upstream: app, limits: [L]}"]);
    let folder = setup.file("access.log", &hostile.repeat(3)).written();
    let arguments = ["--log", "access.log", "--csv", "--html", "report.html"];
    let output = run(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(0));
    let table = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<&str> = table.lines().collect();
    assert_eq!(rows.len(), 2, "{table}");
    assert!(rows[1].starts_with("L,,3,1,2,0,66.667,"), "{table}");
    let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("&lt;script"), "{page}");
    for absent in ["<script", "http:", "https:", "src=", "@import", "url("] {
        assert!(!page.contains(absent), "{absent}");
    }
    assert!(page.contains("<svg"));
}

#[test]
fn routes_without_limits_get_suggestions_that_load() {
    let setup = Setup::with_upstreams("{app: {servers: [\"http://127.0.0.1:1\"]}}")
        .limits(&["L: {per: address, burst: 5, count: 1, period: 1h}"])
        .routes(&[
            "{name: limited, match: {path: /a}, upstream: app, limits: [L]}",
            "{name: free, match: {}, upstream: app}",
        ]);
    let folder = setup.file("access.log", &mixed_log()).written();
    let suggest = |arguments: &[&str]| {
        let mut command = Command::new(WEIR);
        command
            .current_dir(folder.path())
            .args(["suggest", "--log", "access.log"]);
        let output = command.args(arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    let found: Value = serde_json::from_str(&suggest(&["--json"])).unwrap();
    let routes = found["routes"].as_array().unwrap();
    assert_eq!(routes.len(), 1, "{found:#}");
    assert_eq!(routes[0]["route"], "free");
    let yaml = routes[0]["need"]["suggested"]["yaml"].as_str().unwrap();
    assert!(yaml.ends_with("period: 1m}"), "{yaml}");
    // What comes by a pipe can be read only once, and nothing of it is lost.
    let whole = found["requests"].clone();
    let piped = |arguments: &[&str]| -> Value {
        let mut command = Command::new(WEIR);
        command
            .current_dir(folder.path())
            .args(["suggest", "--log", "-", "--json"]);
        let log = fs::File::open(folder.path().join("access.log")).unwrap();
        let output = command.args(arguments).stdin(log).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let made = piped(&["--config", "none.yaml"]);
    assert_eq!(made["requests"], whole, "{made:#}");
    // Without a configuration, the limits and routes that are printed are one.
    fs::remove_file(folder.path().join("gateway.yaml")).unwrap();
    let text = suggest(&[]);
    let (limits, routes) = text.split_once("# gateway.yaml, routes\n").unwrap();
    fs::write(folder.path().join("limits/defaults.yaml"), limits).unwrap();
    fs::write(folder.path().join("limits/overrides.yaml"), "[]").unwrap();
    let head = "upstreams: {app: {servers: [\"http://127.0.0.1:1\"]}}\nroutes:\n";
    fs::write(
        folder.path().join("gateway.yaml"),
        format!("{head}{routes}"),
    )
    .unwrap();
    let replayed = report(folder.path(), &["--log", "access.log"]);
    let limits = replayed["limits"].as_array().unwrap();
    let asked = limits
        .iter()
        .find(|limit| limit["requests"] != 0)
        .expect("a limit that is asked");
    assert!(asked["denied_subjects"].as_u64().unwrap() <= 2, "{asked:#}");
    assert_ne!(asked["denied"], 0);
}

/// How a command ends, and what it prints.
fn suggest_and_write(folder: &Path) -> (Option<i32>, String) {
    let mut command = Command::new(WEIR);
    command
        .current_dir(folder)
        .args(["suggest", "--write", "--log", "access.log"]);
    let output = command.output().unwrap();
    let told = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(told).unwrap())
}

#[test]
fn a_configuration_that_suggest_writes_loads_and_denies_nothing_yet() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("access.log"), mixed_log()).unwrap();
    let (code, told) = suggest_and_write(folder.path());
    assert_eq!(code, Some(0), "{told}");
    let replayed = report(folder.path(), &["--log", "access.log"]);
    let limits = replayed["limits"].as_array().unwrap();
    assert!(
        limits.iter().any(|limit| limit["requests"] != 0),
        "{replayed:#}"
    );
    let text = fs::read_to_string(folder.path().join("gateway.yaml")).unwrap();
    assert!(text.contains("\nenforce: false\n"), "{text}");
    // A file of the user's is never replaced.
    fs::remove_file(folder.path().join("gateway.yaml")).unwrap();
    let before = fs::read_to_string(folder.path().join("limits/defaults.yaml")).unwrap();
    let (code, told) = suggest_and_write(folder.path());
    assert_eq!(code, Some(1), "{told}");
    assert!(!folder.path().join("gateway.yaml").exists());
    let after = fs::read_to_string(folder.path().join("limits/defaults.yaml")).unwrap();
    assert_eq!(after, before);
}

#[test]
fn limits_that_suggest_adds_stand_behind_the_old_ones_and_nothing_is_lost() {
    let old = "# mine\nL: {per: address, burst: 5, count: 1, period: 1h} # five\n";
    let folder = Setup::with_upstreams("{app: {servers: [\"http://127.0.0.1:1\"]}}")
        .limits(&["L: {per: address, burst: 5, count: 1, period: 1h}"])
        .routes(&[
            "{name: limited, match: {path: /a}, upstream: app, limits: [L]}",
            "{name: free, match: {}, upstream: app}",
        ])
        .file("access.log", &mixed_log())
        .written();
    let defaults = folder.path().join("limits/defaults.yaml");
    fs::write(&defaults, old).unwrap();
    let (code, told) = suggest_and_write(folder.path());
    assert_eq!(code, Some(0), "{told}");
    assert!(
        told.contains("# route free: limits: [RequestsOfFreePerAddress]"),
        "{told}"
    );
    let text = fs::read_to_string(&defaults).unwrap();
    assert!(text.starts_with(old), "{text}");
    assert!(text.contains("\nRequestsOfFreePerAddress: {"), "{text}");
    // A second time, the names are there already, and the file stays as it is.
    let (code, told) = suggest_and_write(folder.path());
    assert_eq!(code, Some(1), "{told}");
    let known =
        "defaults.yaml: RequestsOfFreePerAddress is there already; list it on the route free";
    assert!(told.contains(known), "{told}");
    assert_eq!(fs::read_to_string(&defaults).unwrap(), text);
}

/// Each file got a route and a limit, and what had none was unlimited.
#[test]
fn suggestions_never_have_a_limit_for_each_static_file_and_always_one_for_the_rest() {
    let paths = [
        "/static/app.js",
        "/static/img/logo.png",
        "/static/a.css",
        "/login",
    ];
    let lines: String = (0..40)
        .map(|n| {
            let path = paths[n % paths.len()];
            format!(
                "shop.example.com:443 192.0.2.{} - - [22/Nov/2026:12:00:{:02} +0000] \"GET {path} HTTP/1.1\" 200 5\n",
                n % 5, n
            )
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("access.log"), lines).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(WEIR);
        command
            .current_dir(folder.path())
            .args(["suggest", "--log", "access.log"]);
        let output = command.args(arguments).output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(0),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    };
    let found: Value = serde_json::from_str(&run(&["--json"])).unwrap();
    let routes: Vec<_> = found["routes"].as_array().unwrap().iter().collect();
    let named: Vec<_> = routes
        .iter()
        .map(|route| {
            (
                route["route"].as_str().unwrap(),
                route["requests"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        named,
        [("static-below", 30), ("login", 10), ("everything", 0)]
    );
    let text = run(&[]);
    let (limits, routes) = text.split_once("# gateway.yaml, routes\n").unwrap();
    assert!(
        limits.contains("RequestsOfEverythingPerAddress: {per: address"),
        "{limits}"
    );
    let rest =
        "# path /*: 0 requests of 0 clients\n# a guess, for paths that the log does not have\n";
    assert!(limits.contains(rest), "{limits}");
    assert!(routes.contains("match: {path: \"/*\"}"), "{routes}");
}

/// Apache's `vhost_combined` begins with the virtual host.
#[test]
fn a_virtual_host_before_the_client_is_the_host_of_the_request() {
    let line = |host: &str| {
        format!(
            "{host} 192.0.2.1 - - [22/Nov/2026:12:00:00 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"curl\"\n"
        )
    };
    let log = line("a.example:443").repeat(3) + &line("b.example:443");
    let setup = one_limit("L: {per: host, burst: 2, count: 1, period: 1h}");
    let folder = setup.file("access.log", &log).written();
    let report = report(folder.path(), &["--log", "access.log"]);
    assert_eq!(report["log"]["format"], "combined");
    assert_eq!(report["requests"]["denied"], 1, "{report:#}");
}

/// A line of nginx in JSON, of a request that ended at `end` seconds and took `took`.
fn timed(client: &str, end: f64, took: f64) -> String {
    let end = 1_795_251_600.0 + end;
    format!(
        "{{\"msec\":\"{end:.3}\",\"remote_addr\":\"{client}\",\"request\":\"GET /a HTTP/1.1\",\
         \"status\":\"200\",\"request_time\":\"{took:.3}\"}}\n"
    )
}

#[test]
fn requests_in_flight_are_counted_until_they_end() {
    // Three at once, of which the third is too many; a fourth when one of them is over.
    let log = [
        timed("192.0.2.1", 4.0, 4.0),
        timed("192.0.2.1", 9.0, 8.0),
        timed("192.0.2.1", 9.5, 7.5),
        timed("192.0.2.1", 10.0, 5.0),
        timed("192.0.2.2", 11.0, 9.0),
    ];
    // As many others as it takes to say what is normal.
    let others = (0..20).map(|n| timed(&format!("198.51.100.{n}"), 20.0, 1.0));
    let log: String = log.into_iter().chain(others).collect();
    let setup = one_limit("L: {per: address, in_flight: 2}");
    let folder = setup.file("access.log", &log).written();
    let report = report(folder.path(), &["--log", "access.log"]);
    let limit = limit(&report, "L");
    assert_eq!(
        (&limit["allowed"], &limit["denied"]),
        (&24.into(), &1.into())
    );
    assert_eq!(
        limit["first_denied"], "2026-11-21T09:00:02.000Z",
        "{limit:#}"
    );
    let need = &limit["need"];
    assert_eq!(
        (&need["of"], &need["max"]),
        (&"in_flight".into(), &3.into())
    );
    let suggested = need["suggested"]["yaml"].as_str().unwrap();
    assert!(suggested.ends_with("in_flight: 3}"), "{suggested}");
}

#[test]
fn requests_that_would_wait_for_their_turn_are_delayed_or_denied() {
    let log: String = (0..5).map(|_| timed("192.0.2.1", 1.5, 0.0)).collect();
    let folder = Setup::with_upstreams("{app: {servers: [\"http://127.0.0.1:1\"]}}")
        .limits(&["L: {per: address, burst: 1, count: 60, period: 1m}"])
        .routes(&["{name: all, match: {}, upstream: app, limits: [L], on_denied: {delay: 2s}}"])
        .file("access.log", &log)
        .written();
    let report = report(folder.path(), &["--log", "access.log"]);
    // One passes at once, two wait for one second and for two, and the others would wait longer.
    let totals = &report["requests"];
    let counts = ["total", "allowed", "delayed", "denied"].map(|count| &totals[count]);
    assert_eq!(counts, [5, 3, 2, 2], "{totals:#}");
}

#[test]
fn requests_before_and_after_the_given_times_do_not_count() {
    let setup = one_limit("L: {per: address, burst: 1, count: 1, period: 1h}");
    let folder = setup
        .file("access.log", &combined(&["192.0.2.1"], 8))
        .written();
    let span = [
        "--from",
        "2026-11-21T09:00:02Z",
        "--to",
        "2026-11-21T09:00:05Z",
    ];
    let report = report(
        folder.path(),
        &[&["--log", "access.log"], &span[..]].concat(),
    );
    let log = &report["log"];
    assert_eq!((&log["requests"], &log["outside"]), (&3.into(), &5.into()));
    assert_eq!(log["from"], "2026-11-21T09:00:02.000Z");
    assert_eq!(report["requests"]["denied"], 2);
    let output = run(
        folder.path(),
        &["--log", "access.log", "--from", "yesterday"],
    );
    assert_eq!(output.status.code(), Some(2));
    let turned = ["--from", "2026-11-22", "--to", "2026-11-21"];
    let output = run(
        folder.path(),
        &[&["--log", "access.log"], &turned[..]].concat(),
    );
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("is not before --to"), "{errors}");
}

#[test]
fn a_log_that_is_given_under_two_names_does_not_count_twice() {
    let log = combined(&["192.0.2.1"], 100);
    let setup = one_limit("L: {per: address, burst: 5, count: 1, period: 100h}");
    let folder = setup.file("access.log", &log).written();
    let path = |name| folder.path().join(name);
    fs::hard_link(path("access.log"), path("linked.log")).unwrap();
    let packed = zstd::encode_all(log.as_bytes(), 1).unwrap();
    fs::write(path("access.log.zst"), packed).unwrap();
    // However short it is, and if more was written since.
    let few: String = log.split_inclusive('\n').take(20).collect();
    fs::write(path("short.log"), &few).unwrap();
    fs::write(
        path("short.log.zst"),
        zstd::encode_all(few.as_bytes(), 1).unwrap(),
    )
    .unwrap();
    let others = ["linked.log", "access.log.zst", "short.log", "short.log.zst"];
    for other in others {
        let output = run(folder.path(), &["--log", "access.log", other]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{other}: {errors}");
        let said = format!("{other}: it begins as access.log does");
        assert!(errors.contains(&said), "{errors}");
    }
}

#[test]
fn logs_that_overlap_in_time_are_merged_and_those_of_any_year_are_replayed() {
    let log = combined(&["192.0.2.1", "192.0.2.2"], 400);
    let lines: Vec<&str> = log.split_inclusive('\n').collect();
    let every_other =
        |first: usize| -> String { lines.iter().skip(first).step_by(2).copied().collect() };
    let setup = one_limit("L: {per: address, burst: 2, count: 1, period: 7s}");
    let folder = setup
        .file("one.log", &every_other(0))
        .file("other.log", &every_other(1))
        .file("both.log", &log)
        .file("future.log", &log.replace("/2026:", "/2199:"))
        .written();
    let both = report(folder.path(), &["--log", "both.log"]);
    assert_ne!(both["requests"]["denied"], 0);
    let merged = report(folder.path(), &["--log", "one.log", "other.log"]);
    assert_eq!(merged["limits"], both["limits"]);
    assert_eq!(merged["log"]["late"], 0);
    let future = report(folder.path(), &["--log", "future.log"]);
    assert_eq!(future["requests"], both["requests"]);
}

#[test]
fn a_clock_that_was_set_back_by_hours_makes_lines_late_and_the_report_says_so() {
    const LINES: usize = 12_000;
    let page = format!("GET /{} ", "a".repeat(1000));
    let line = |end: f64| timed("192.0.2.1", end, 0.0).replace("GET /a ", &page);
    let log: String = (0..LINES)
        .map(|number| match number < LINES / 2 {
            true => line(20_000.0 + number as f64),
            false => line(number as f64),
        })
        .collect();
    let setup = one_limit("L: {per: address, burst: 1, count: 1, period: 1s}");
    let folder = setup.file("access.log", &log).written();
    let report = report(folder.path(), &["--log", "access.log", "--threads", "1"]);
    let late = report["log"]["late"].as_u64().unwrap();
    assert!(late > LINES as u64 / 4, "{late}");
    let caveats = report["caveats"].to_string();
    assert!(caveats.contains("were replayed late"), "{caveats}");
}

#[test]
fn a_long_request_is_replayed_when_it_came_unless_that_is_longer_ago_than_the_window() {
    const LINES: usize = 8000;
    // Long lines, so that they are read in several rounds.
    let page = format!("GET /{} ", "a".repeat(1000));
    let line = |end: f64, took: f64| timed("192.0.2.1", end, took).replace("GET /a ", &page);
    let mut log: String = (0..LINES)
        .map(|number| line(number as f64 * 0.3, 0.0))
        .collect();
    // It came near the beginning, and was logged when it was over.
    log.push_str(&line(2400.0, 2390.0));
    let setup = one_limit("L: {per: address, burst: 1, count: 1, period: 100h}");
    let folder = setup.file("access.log", &log).written();
    let late = |window| {
        let arguments = ["--log", "access.log", "--window", window, "--threads", "1"];
        report(folder.path(), &arguments)["log"]["late"].clone()
    };
    assert_eq!((late("60s"), late("1h")), (1.into(), 0.into()));
    // A clock that is wrong once does not make all that follows late.
    log.insert_str(0, &timed("192.0.2.1", 1e9, 0.0));
    fs::write(folder.path().join("access.log"), &log).unwrap();
    assert_eq!(late("1h"), 0);
}

#[test]
fn a_sweep_beside_a_baseline_has_its_own_counts() {
    let setup = one_limit("L: {per: address, burst: 5, count: 1, period: 1h}");
    let old = setup.gateway_yaml();
    let folder = setup
        .file("old.yaml", &old.replace("routes:", "limits: old\nroutes:"))
        .file("access.log", &combined(&["192.0.2.1"], 8))
        .written();
    fs::create_dir(folder.path().join("old")).unwrap();
    let tight = "L: {per: address, burst: 2, count: 1, period: 1h}";
    fs::write(folder.path().join("old/defaults.yaml"), tight).unwrap();
    let arguments = [
        "--baseline",
        "old.yaml",
        "--log",
        "access.log",
        "--sweep",
        "L.burst=3,7",
    ];
    let swept = report(folder.path(), &arguments);
    let denied = |variant: &Value| variant["limit"]["denied"].clone();
    let variants: Vec<Value> = swept["sweep"]
        .as_array()
        .unwrap()
        .iter()
        .map(denied)
        .collect();
    assert_eq!(variants, [5, 1]);
    assert_eq!(limit(&swept, "L")["denied"], 3);
    assert_eq!(limit(&swept, "L")["baseline_denied"], 6);
    assert_eq!(swept["changes"]["no_longer_denied"], 3);
    let table = run(folder.path(), &[&arguments[..], &["--csv"]].concat());
    let table = String::from_utf8(table.stdout).unwrap();
    let rows: Vec<&str> = table.lines().map(str::trim_end).collect();
    assert_eq!(rows.len(), 4, "{table}");
    assert!(rows[0].starts_with("limit,variant,requests,"), "{table}");
    assert!(rows[1].starts_with("L,,8,5,3,0,37.5,6,0,3,1,1,"), "{table}");
    assert!(rows[3].starts_with("L,burst=7,8,7,1,0,12.5,,"), "{table}");
}

#[test]
fn odd_logs_are_read_or_refused_with_their_names() {
    let log = combined(&["192.0.2.1"], 8);
    let long = format!("{log}{}\n{log}", "x".repeat(10 << 20));
    let setup = one_limit("L: {per: address, burst: 5, count: 1, period: 100h}");
    let folder = setup
        .file("whole", &log)
        .file("empty", "")
        .file("blank", "\n\n\r\n")
        .file("unended", log.trim_end())
        .file("windows", &log.replace('\n', "\r\n"))
        .file("long", &long)
        .file("garbage", "\u{1}\u{2}\u{3}\n\u{4}")
        .file("log.bz2", "BZh91AY&SY")
        .written();
    fs::write(folder.path().join("log.xz"), b"\xfd7zXZ\0 and what follows").unwrap();
    for (file, requests, malformed) in [("unended", 8, 0), ("windows", 8, 0)] {
        let report = report(folder.path(), &["--log", file]);
        let log = &report["log"];
        assert_eq!(log["requests"], requests, "{file}: {log:#}");
        assert_eq!(log["malformed"], malformed, "{file}: {log:#}");
    }
    let report = report(folder.path(), &["--log", "long"]);
    let counts = &report["log"];
    assert_eq!(counts["requests"], 16, "{counts:#}");
    assert_eq!(counts["malformed"], 1, "{counts:#}");
    let example = &counts["examples"][0];
    assert_eq!(
        (&example["line"], &example["why"]),
        (&9.into(), &"it is longer than 256 KiB".into())
    );
    let packed = zstd::encode_all(log.repeat(1000).as_bytes(), 1).unwrap();
    fs::write(folder.path().join("cut.zst"), &packed[..packed.len() / 2]).unwrap();
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(log.repeat(1000).as_bytes()).unwrap();
    let packed = gz.finish().unwrap();
    fs::write(folder.path().join("cut.gz"), &packed[..packed.len() / 2]).unwrap();
    for (files, said) in [
        (&["empty"][..], "empty: it has no lines"),
        (&["blank"], "blank: it has no lines"),
        (&["garbage"], "garbage: its first lines are of no form"),
        (&["limits"], "limits: it is a directory"),
        (&["whole", "./whole"], "./whole: it is given twice"),
        (&["whole", "none"], "none: No such file"),
        (&["cut.gz"], "cut.gz: it is packed by gzip, and cut off"),
        (&["cut.zst"], "cut.zst: it is packed by zstd, and cut off"),
        (&["log.xz"], "log.xz: it is packed by xz; unpack it"),
        (&["log.bz2"], "log.bz2: it is packed by bzip2; unpack it"),
    ] {
        let output = run(folder.path(), &[&["--log"], files].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{files:?}: {errors}");
        assert!(errors.contains(said), "{files:?}: {errors}");
    }
}

#[test]
fn standard_input_is_a_log_too() {
    let setup = one_limit("L: {per: address, burst: 5, count: 1, period: 100h}");
    let folder = setup.written();
    let mut command = Command::new(WEIR);
    command
        .current_dir(folder.path())
        .args(["replay", "--log", "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut replay = command.spawn().unwrap();
    let log = combined(&["192.0.2.1"], 8);
    replay
        .stdin
        .take()
        .unwrap()
        .write_all(log.as_bytes())
        .unwrap();
    let output = replay.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["requests"]["denied"], 3);
}

#[test]
fn offsets_and_years_that_change_do_not_move_requests() {
    let line = |time: &str| format!("192.0.2.1 - - [{time}] \"GET / HTTP/1.1\" 200 1\n");
    // The clock is set back by an hour, and the year ends.
    let log = [
        line("25/Oct/2026:02:30:00 +0200"),
        line("25/Oct/2026:02:10:00 +0100"),
        line("31/Dec/2026:23:59:59 -0500"),
        line("01/Jan/2027:05:00:00 +0000"),
    ];
    let setup = one_limit("L: {per: address, burst: 1, count: 1, period: 30m}");
    let folder = setup.file("access.log", &log.concat()).written();
    let report = report(folder.path(), &["--log", "access.log"]);
    let limit = limit(&report, "L");
    assert_eq!(limit["denied"], 1, "{limit:#}");
    assert_eq!(limit["first_denied"], "2027-01-01T05:00:00.000Z");
    assert_eq!(report["log"]["late"], 0);
    assert_eq!(report["log"]["from"], "2026-10-25T00:30:00.000Z");
}

/// A log of one form with a line for each of these clients, whose place is `CLIENT`, and the second
/// of the minute, `NN`.
fn lines(line: &str, clients: &[&str]) -> String {
    let line = |(second, client): (usize, &&str)| {
        let line = line.replace("CLIENT", client);
        line.replace("NN", &format!("{second:02}")) + "\n"
    };
    clients.iter().enumerate().map(line).collect()
}

const XFF: &str =
    r#"CLIENT, 10.0.0.1 - - [21/Nov/2026:10:00:NN +0000] "GET /a HTTP/1.1" 200 5 "-" "curl""#;

/// The client was taken for a virtual host, and the proxy for the only client.
#[test]
fn a_list_in_place_of_the_client_never_makes_the_proxy_the_only_client() {
    let clients = [
        "203.0.113.1",
        "203.0.113.2",
        "203.0.113.1",
        "2001:db8::1",
        "203.0.113.1",
        "198.51.100.1, 203.0.113.9",
        "[2001:db8:0:1::1]:4711",
    ];
    let setup = one_limit("L: {per: address, burst: 2, count: 1, period: 1h}");
    let trusting = "client_address: {trusted_proxies: [10.0.0.0/8]}\n";
    let gateway = setup.gateway_yaml();
    let folder = setup
        .file("trusting.yaml", &format!("{trusting}{gateway}"))
        .file("access.log", &lines(XFF, &clients))
        .file("compact.log", &lines(&XFF.replace(", ", ","), &clients))
        .written();
    for (log, config) in [
        ("access.log", "trusting.yaml"),
        ("compact.log", "trusting.yaml"),
        ("access.log", "gateway.yaml"),
    ] {
        let report = report(folder.path(), &["--log", log, "--config", config]);
        let found = limit(&report, "L");
        assert_eq!(
            (&found["requests"], &found["subjects"], &found["denied"]),
            (&7.into(), &5.into(), &1.into()),
            "{log} by {config}: {report:#}"
        );
        assert_eq!(found["top"][0]["subject"], "203.0.113.1");
        // Without trusted proxies nobody says which address to believe.
        let is_told = report["caveats"]
            .to_string()
            .contains("the leftmost counts");
        assert_eq!(is_told, config == "gateway.yaml", "{report:#}");
    }
    let judged = run(
        folder.path(),
        &["--log", "access.log", "--fail-if", "denied>0"],
    );
    assert_eq!(judged.status.code(), Some(1));
    let mut suggest = Command::new(WEIR);
    suggest.current_dir(folder.path());
    suggest.args([
        "suggest",
        "--log",
        "access.log",
        "--config",
        "none.yaml",
        "--json",
    ]);
    let found: Value = serde_json::from_slice(&suggest.output().unwrap().stdout).unwrap();
    assert_eq!(found["routes"][0]["need"]["subjects"], 5, "{found:#}");
    assert!(
        found["notes"].to_string().contains("the leftmost counts"),
        "{found:#}"
    );
}

/// What a replay of `access.log` ends with, and says.
fn judged(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = run(folder, &[&["--log", "access.log"], arguments].concat());
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn with_routes(routes: &[&str]) -> Setup {
    Setup::with_upstreams("{app: {servers: [\"http://127.0.0.1:1\"]}}")
        .limits(&["L: {per: address, burst: 5, count: 1, period: 1h}"])
        .routes(routes)
}

/// Every request was without a route, and a gate on denials passed.
#[test]
fn a_log_without_hosts_never_passes_where_routes_are_found_by_theirs() {
    let routes = ["{name: shop, match: {host: shop.example.com}, upstream: app, limits: [L]}"];
    let log = combined(&["192.0.2.1"], 8);
    let folder = with_routes(&routes).file("access.log", &log).written();
    for arguments in [
        &[][..],
        &["--fail-if", "denied>90%"],
        &["--fail-if", "malformed>0"],
    ] {
        let (code, errors) = judged(folder.path(), arguments);
        assert_eq!(code, Some(1), "{arguments:?}: {errors}");
        assert!(errors.contains("8 without a route"), "{errors}");
        assert!(errors.contains("say by --host"), "{errors}");
    }
    let output = run(folder.path(), &["--log", "access.log", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["judged"], 0);
    let gap = &report["not_replayed"][0];
    assert_eq!(gap["what"], "route shop");
    assert!(
        gap["why"].to_string().contains("found by its host"),
        "{gap}"
    );
    let host = ["--host", "shop.example.com"];
    let of_host = |condition| [&host[..], &["--fail-if", condition]].concat();
    assert_eq!(judged(folder.path(), &of_host("denied>40%")).0, Some(0));
    assert_eq!(judged(folder.path(), &of_host("denied>30%")).0, Some(1));
    let (code, errors) = judged(folder.path(), &["--host", "not a host"]);
    assert_eq!(code, Some(2), "{errors}");
    // A route that takes all others judges requests that are not its own.
    let routes = [
        routes[0],
        "{name: rest, match: {}, upstream: app, limits: [L]}",
    ];
    let folder = with_routes(&routes).file("access.log", &log).written();
    let (code, errors) = judged(folder.path(), &["--fail-if", "denied>90%"]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("the log does not have hosts"), "{errors}");
}

/// Requests for such a route took another one, and a gate on denials passed.
#[test]
fn a_gate_never_passes_where_routes_are_found_by_what_the_log_does_not_have() {
    for (matches, missing) in [
        ("{headers: {x-plan: pro}}", "headers"),
        ("{query: {plan: pro}}", "query parameters"),
    ] {
        let own = format!("{{name: own, match: {matches}, upstream: app, limits: [L]}}");
        let rest = "{name: rest, match: {}, upstream: app, limits: [L]}";
        let log = granian(8);
        let folder = with_routes(&[&own, rest])
            .file("access.log", &log)
            .written();
        let (code, errors) = judged(folder.path(), &["--fail-if", "denied>90%"]);
        assert_eq!(code, Some(1), "{matches}: {errors}");
        let said = format!("the log does not have {missing}, by which routes are found");
        assert!(errors.contains(&said), "{errors}");
        assert!(
            errors.contains("replay a configuration without those"),
            "{errors}"
        );
        // Without a condition nothing is judged, and the report lists it.
        assert_eq!(judged(folder.path(), &[]).0, Some(0));
        let report = report(folder.path(), &["--log", "access.log"]);
        assert_eq!(report["not_replayed"][0]["what"], "route own", "{report:#}");
    }
    // Weir's own log names the route that requests took: `pro` once, now `own`.
    let own = "{name: own, match: {headers: {x-plan: pro}}, upstream: app, limits: [L]}";
    let rest = "{name: rest, match: {}, upstream: app, limits: []}";
    for (named, code, said) in [
        ("own", 1, "denied>0: "),
        (
            "pro",
            1,
            "the names of the routes that requests took: own is new",
        ),
        (
            "rest",
            1,
            "the names of the routes that requests took: own is new",
        ),
    ] {
        let line = |second: usize| {
            format!(
                r#"{{"timestamp":"2026-11-21T10:00:{second:02}Z","target":"weir::access","client":"192.0.2.1","method":"GET","path":"/a","route":"{named}","status":200,"decision":"allowed"}}"#
            )
        };
        let log: Vec<String> = (0..8).map(line).collect();
        let folder = with_routes(&[own, rest])
            .file("access.log", &log.join("\n"))
            .written();
        let (found, errors) = judged(folder.path(), &["--fail-if", "denied>0"]);
        assert_eq!(found, Some(code), "{named}: {errors}");
        assert!(errors.contains(said), "{named}: {errors}");
    }
}

/// A form whose whole target is logged has the queries of requests, if they had one.
#[test]
fn a_gate_is_judged_where_no_request_of_a_log_has_a_query() {
    let own = "{name: own, match: {query: {plan: pro}}, upstream: app, limits: [L]}";
    let rest = "{name: rest, match: {}, upstream: app, limits: [L]}";
    let log = combined(&["192.0.2.1"], 8).replace("?b=c", "");
    let folder = with_routes(&[own, rest]).file("access.log", &log).written();
    let (code, errors) = judged(folder.path(), &["--fail-if", "denied>90%"]);
    assert_eq!(code, Some(0), "{errors}");
    let report = report(folder.path(), &["--log", "access.log"]);
    let why = report["not_replayed"][0]["why"]
        .as_str()
        .unwrap_or_default();
    assert!(
        why.contains("no request at the log's beginning has a query"),
        "{report:#}"
    );
}

/// Lines of a server that logs neither queries nor headers, a second apart.
fn granian(requests: usize) -> String {
    let line = |second: usize| {
        format!("[2026-11-21 10:00:{second:02} +0000] 192.0.2.1 - \"GET /a HTTP/1.1\" 200 1.5\n")
    };
    (0..requests).map(line).collect()
}

#[test]
fn a_gate_never_passes_where_most_of_a_log_was_judged_by_no_limit() {
    let log = combined(&["192.0.2.1"], 6) + &combined(&["192.0.2.2"], 4).replace("/a?", "/free?");
    let routes = [
        "{name: limited, match: {path: /a}, upstream: app, limits: [L]}",
        "{name: free, match: {path: /free}, upstream: app, limits: []}",
    ];
    let bound = |max: &'static str| ["--max-unjudged", max, "--fail-if", "denied>90%"];
    let folder = with_routes(&routes).file("access.log", &log).written();
    assert_eq!(
        judged(folder.path(), &["--fail-if", "denied>90%"]).0,
        Some(0)
    );
    let (code, errors) = judged(folder.path(), &bound("30%"));
    assert_eq!(code, Some(1), "{errors}");
    let said = "40% of the log was judged by no limit (4 that no limit applies to), which is more \
                than --max-unjudged 30%";
    assert!(errors.contains(said), "{errors}");
    // Lines that cannot be read, and requests without a route, were judged by none either.
    for more in [
        "what is this?\n",
        &combined(&["192.0.2.3"], 1).replace("/a?", "/x?"),
    ] {
        let log = log.clone() + &more.repeat(5);
        let folder = with_routes(&routes).file("access.log", &log).written();
        let (code, errors) = judged(folder.path(), &["--fail-if", "denied>90%"]);
        assert_eq!(code, Some(1), "{errors}");
        assert!(errors.contains("60% of the log"), "{errors}");
        assert_eq!(judged(folder.path(), &bound("60%")).0, Some(0));
        // Nothing is judged where no condition is given, but for nothing at all.
        assert_eq!(judged(folder.path(), &[]).0, Some(0));
    }
    // A condition about a limit that no request met.
    let routes = [
        routes[0],
        "{name: unused, match: {path: /unused}, upstream: app, limits: [M]}",
    ];
    let folder = with_routes(&routes)
        .limits(&[
            "L: {per: address, burst: 5, count: 1, period: 1h}",
            "M: {per: address, burst: 5, count: 1, period: 1h}",
        ])
        .file("access.log", &combined(&["192.0.2.1"], 6))
        .written();
    let (code, errors) = judged(folder.path(), &["--fail-if", "M.denied>0"]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(
        errors.contains("a limit that no request was judged by"),
        "{errors}"
    );
}

/// With `missing: deny` such a limit denied every request, and else it was silent.
#[test]
fn a_limit_on_what_a_log_does_not_have_is_listed_and_denies_nothing() {
    let folder = Setup::with_upstreams("{app: {servers: [\"http://127.0.0.1:1\"]}}")
        .key("account: [{header: x-api-key}]")
        .limits(&[
            "ByAgent: {per: 'header:user-agent', missing: deny, burst: 1, count: 1, period: 1h}",
            "ByAccount: {per: account, missing: deny, burst: 1, count: 1, period: 1h}",
            "ByHost: {per: host, burst: 1, count: 1, period: 1h}",
            "ByQuery: {per: 'query:q', burst: 1, count: 1, period: 1h}",
            "Flying: {per: address, in_flight: 1}",
            "L: {per: address, burst: 3, count: 1, period: 1h}",
        ])
        .limited_by("ByAgent, ByAccount, ByHost, ByQuery, Flying, L")
        .written();
    let listed = |log: &str, arguments: &[&str]| {
        fs::write(folder.path().join("access.log"), log).unwrap();
        let report = report(
            folder.path(),
            &[&["--log", "access.log"], arguments].concat(),
        );
        assert_eq!(report["requests"]["denied"], 1, "{report:#}");
        let gaps = report["not_replayed"].as_array().unwrap().iter();
        let names = gaps.map(|gap| gap["what"].as_str().unwrap().replace("limit ", ""));
        names.collect::<Vec<_>>().join(" ")
    };
    let common = |more: &str| {
        let line =
            format!(r#"CLIENT - - [21/Nov/2026:10:00:NN +0000] "GET /a HTTP/1.1" 200 5{more}"#);
        lines(&line, &["192.0.2.1"; 4])
    };
    let all = "ByAccount ByAgent ByHost Flying";
    assert_eq!(listed(&common(""), &[]), all);
    // The common form has queries, if requests have one.
    assert_eq!(listed(&granian(4), &[]), "ByAccount ByAgent ByHost ByQuery");
    // As Traefik writes it, whose logs have no headers by default.
    assert_eq!(listed(&common(r#" "-" "-""#), &[]), all);
    // What the lines have is asked about: here are as many of each as requests.
    let line = |n: usize| {
        format!(
            r#"192.0.2.1 h{n}.example u{n} [21/Nov/2026:10:00:0{n} +0000] "GET /a?q={n} HTTP/1.1" 200 5 "-" "a{n}""#
        )
    };
    let log: Vec<String> = (0..4).map(line).collect();
    assert_eq!(listed(&log.join("\n"), &[]), "Flying");
    // One host for all is one subject, which denies the other three.
    let output = run(
        folder.path(),
        &["--log", "access.log", "--host", "x.example", "--json"],
    );
    assert_eq!(output.status.code(), Some(0));
    fs::write(folder.path().join("access.log"), common("")).unwrap();
    let hosted = report(
        folder.path(),
        &["--log", "access.log", "--host", "x.example"],
    );
    assert_eq!(limit(&hosted, "ByHost")["denied"], 3, "{hosted:#}");
}

#[test]
fn a_trusted_proxy_counts_as_one_client_only_where_the_report_says_so() {
    let trusting = "client_address: {trusted_proxies: [10.0.0.0/8]}";
    let setup = one_limit("L: {per: address, burst: 1, count: 1, period: 1h}").key(trusting);
    let main =
        r#"10.0.0.1 - - [21/Nov/2026:10:00:NN +0000] "GET /a HTTP/1.1" 200 5 "-" "curl" "CLIENT""#;
    let json = r#"{"msec":"1795255200.0NN","remote_addr":"10.0.0.1","request":"GET /a HTTP/1.1","status":"200","http_x_forwarded_for":"CLIENT"}"#;
    let traefik = r#"{"ClientHost":"10.0.0.1","StartUTC":"2026-11-21T10:00:NNZ","Duration":5,"RequestMethod":"GET","RequestPath":"/a","DownstreamStatus":200,"request_X-Forwarded-For":"CLIENT"}"#;
    let clients = [
        "203.0.113.1",
        "203.0.113.2",
        "203.0.113.1",
        "198.51.100.1, 203.0.113.3",
    ];
    let folder = setup.written();
    for (line, form) in [
        (main, "combined"),
        (json, "nginx-json"),
        (traefik, "traefik"),
    ] {
        fs::write(folder.path().join("access.log"), lines(line, &clients)).unwrap();
        let found = report(folder.path(), &["--log", "access.log"]);
        assert_eq!(found["log"]["format"], form);
        assert_eq!(limit(&found, "L")["subjects"], 3, "{form}: {found:#}");
        assert_eq!(found["requests"]["denied"], 1, "{form}: {found:#}");
        assert_eq!(found["log"]["of_proxies"], 0, "{form}: {found:#}");
        // Where the line does not say it, the report does.
        let log = lines(line, &["-"; 4]);
        fs::write(folder.path().join("access.log"), log).unwrap();
        let blind = report(folder.path(), &["--log", "access.log"]);
        assert_eq!(blind["log"]["of_proxies"], 4, "{form}: {blind:#}");
        let caveats = blind["caveats"].to_string();
        assert!(
            caveats.contains("4 of 4 requests have one of `trusted_proxies`"),
            "{caveats}"
        );
    }
}

/// They are in the log of each public server, and a gate on malformed lines failed by them in JSON.
#[test]
fn requests_that_were_none_of_http_are_malformed_in_no_form() {
    let setup = one_limit("L: {per: address, burst: 5, count: 1, period: 1h}");
    let text = r#"192.0.2.1 - - [21/Nov/2026:10:00:NN +0000] "CLIENT" 400 5 "-" "-""#;
    let json =
        r#"{"msec":"1795255200.0NN","remote_addr":"192.0.2.1","request":"CLIENT","status":"400"}"#;
    let folder = setup.written();
    for line in [text, json] {
        let requests = [
            "GET /a HTTP/1.1",
            "GARBAGE",
            "",
            "GET /a b HTTP/1.1",
            "GET /b HTTP/1.1",
        ];
        fs::write(folder.path().join("access.log"), lines(line, &requests)).unwrap();
        let (code, errors) = judged(folder.path(), &["--fail-if", "malformed>0"]);
        assert_eq!(code, Some(0), "{errors}");
        let report = report(folder.path(), &["--log", "access.log"]);
        let log = &report["log"];
        assert_eq!(
            (&log["requests"], &log["other"]),
            (&2.into(), &3.into()),
            "{log:#}"
        );
    }
}

#[test]
fn logs_of_collectors_and_of_ones_own_form_are_read_to_their_end() {
    let setup = one_limit("L: {per: address, burst: 5, count: 1, period: 100h}");
    let folder = setup.written();
    let written = |line: &str| {
        let log = lines(line, &["203.0.113.1"; 8]);
        fs::write(folder.path().join("access.log"), log).unwrap();
    };
    let haproxy = r#"CLIENT:57530 [21/Nov/2026:10:00:NN.150] plain app/a 0/0/0/1/5 200 103 - - ---- 1/1/0/0/0 0/0 "GET /a HTTP/1.1""#;
    let docker = serde_json::json!({
        "log": format!("{haproxy}\n"), "stream": "stdout", "time": "2026-11-21T10:00:00Z",
    });
    for (line, form) in [
        (haproxy.to_owned(), "haproxy"),
        (
            format!("Nov 21 10:00:00 vm haproxy[9]: {haproxy}"),
            "haproxy, behind the prefix of syslog",
        ),
        (
            format!("2026-11-21T10:00:00Z stdout F {haproxy}"),
            "haproxy, behind the prefix of CRI",
        ),
        (
            format!("lb-1  | {haproxy}"),
            "haproxy, behind the prefix of compose",
        ),
        (docker.to_string(), "haproxy, behind the prefix of Docker"),
    ] {
        written(&line);
        let report = report(folder.path(), &["--log", "access.log"]);
        assert_eq!(report["log"]["format"], form);
        assert_eq!(report["requests"]["denied"], 3, "{form}: {report:#}");
    }
    written("2026-11-21T10:00:NNZ;CLIENT;GET /a HTTP/1.1;200");
    let pattern = ["--format", "$time_iso8601;$remote_addr;$request;$status"];
    let own = report(
        folder.path(),
        &[&["--log", "access.log"], &pattern[..]].concat(),
    );
    assert_eq!(own["log"]["format"], "pattern");
    assert_eq!(own["requests"]["denied"], 3, "{own:#}");
    let (code, errors) = judged(
        folder.path(),
        &["--format", "$remote_adr $time_local $request"],
    );
    assert_eq!(code, Some(2), "{errors}");
    assert!(
        errors.contains("the pattern has no client; write one of $remote_addr"),
        "{errors}"
    );
    let (code, errors) = judged(folder.path(), &[]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(
        errors.contains("describe it by a pattern: --format"),
        "{errors}"
    );
}

/// Lines of a later chunk stand far behind the line that names their columns.
#[test]
fn columns_keep_their_names_until_another_line_names_them() {
    let header = "#Version: 1.0\n#Fields: date time c-ip cs-method cs-uri-stem sc-status\n";
    let other = "#Fields: time date cs-method cs-uri-stem c-ip sc-status\n";
    let line = "2026-11-21 10:00:00 203.0.113.1 GET /a 200\n";
    let turned = "10:00:01 2026-11-21 GET /a 203.0.113.1 200\n";
    let log = format!(
        "{header}{}{other}{}",
        line.repeat(40_000),
        turned.repeat(40_000)
    );
    let setup = one_limit("L: {per: address, burst: 5, count: 1, period: 100h}");
    let folder = setup.file("access.log", &log).written();
    let report = report(folder.path(), &["--log", "access.log"]);
    let log = &report["log"];
    assert_eq!(log["format"], "w3c");
    assert_eq!(
        (&log["requests"], &log["malformed"]),
        (&80_000.into(), &0.into()),
        "{log:#}"
    );
    assert_eq!(report["requests"]["denied"], 79_995);
}

/// Twenty-five users who log in once or twice a minute, a few of them with a wrong password, and a
/// guesser.
fn login_log(guesser: bool, users: u32) -> String {
    let mut log = String::new();
    for second in 0..120_u32 {
        let mut line = |client: String, status: u16| {
            let (minute, second) = (second / 60, second % 60);
            writeln!(
                log,
                "{client} - - [21/Nov/2026:10:{minute:02}:{second:02} +0000] \"POST /login HTTP/1.1\" \
                 {status} 1 \"-\" \"-\""
            )
            .unwrap();
        };
        let user = second % 30;
        if user < users {
            line(
                format!("192.0.2.{user}"),
                if second < 5 { 401 } else { 302 },
            );
        }
        if guesser {
            (0..7).for_each(|_| line("198.51.100.66".to_owned(), 401));
        }
    }
    log
}

/// A guesser got a login limit of 400 a minute that "denies 0".
#[test]
fn an_attack_is_never_learned_as_normal() {
    let folder = tempfile::tempdir().unwrap();
    let suggest = |log: &str, arguments: &[&str]| {
        fs::write(folder.path().join("access.log"), log).unwrap();
        let mut command = Command::new(WEIR);
        command.current_dir(folder.path());
        command.args(["suggest", "--log", "access.log", "--config", "none.yaml"]);
        let output = command.args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).unwrap()
    };
    let need = |log: &str| -> Value {
        let found: Value = serde_json::from_str(&suggest(log, &["--json"])).unwrap();
        let routes = found["routes"].as_array().unwrap();
        let route = routes.iter().find(|route| route["route"] == "write-login");
        route.expect("the route of logins")["need"].clone()
    };
    let quiet = need(&login_log(false, 25));
    let attacked = need(&login_log(true, 25));
    let yaml = |need: &Value| need["suggested"]["yaml"].as_str().unwrap().to_owned();
    assert_eq!(yaml(&attacked), yaml(&quiet));
    assert_eq!(attacked["subjects"], 25, "{attacked:#}");
    assert_eq!(attacked["suggested"]["denied_left_out"], 1, "{attacked:#}");
    assert_eq!(attacked["left_out"][0]["subject"], "198.51.100.66");
    assert_eq!(attacked["left_out"][0]["refused"], 840);
    let text = suggest(&login_log(true, 25), &[]);
    assert!(
        text.contains("198.51.100.66: 840 of 840 requests"),
        "{text}"
    );
    // Too few others say what is normal: no limit, and no list of limits that names one.
    for guesser in [true, false] {
        let few = suggest(&login_log(guesser, 19), &[]);
        assert!(
            few.contains("no limit: 19 clients are too few to say what is normal"),
            "{few}"
        );
        let limits = few.lines().filter(|line| line.starts_with("RequestsOf"));
        assert_eq!(limits.count(), 1, "{few}");
        assert!(
            few.contains("{name: write-login, ") && few.contains("limits: []}"),
            "{few}"
        );
    }
    assert_eq!(suggest_and_write(folder.path()).0, Some(0));
    // A replay says the same of a limit that is there.
    let setup = one_limit("L: {per: address, burst: 5, count: 5, period: 1m}");
    let folder = setup.file("access.log", &login_log(true, 25)).written();
    let replayed = report(folder.path(), &["--log", "access.log"]);
    let need = &limit(&replayed, "L")["need"];
    assert_eq!(
        (&need["subjects"], &need["left_out_subjects"]),
        (&25.into(), &1.into())
    );
    let text = run(
        folder.path(),
        &["--log", "access.log", "--html", "report.html"],
    );
    let text = String::from_utf8(text.stdout).unwrap();
    let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
    for (shown, text) in [
        ("198.51.100.66: 840 of 840 requests", text),
        ("no measure", page),
    ] {
        assert!(text.contains(shown), "{text}");
    }
}
