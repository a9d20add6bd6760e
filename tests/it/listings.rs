//! What the admin API lists: the subjects of a limit, the configuration in force, and the level of
//! the log.

use serde_json::{Value, json};

use crate::redis;
use crate::support::*;

const LIMIT: &str = "Calls: {per: 'query:key', burst: 5, count: 1, period: 1000h}";

fn setup(upstream: &Upstream) -> Setup {
    Setup::before(upstream)
        .limits(&[
            LIMIT,
            "Paths: {per: 'path:name', burst: 5, count: 1, period: 1000h}",
        ])
        .routes(&["{name: all, match: {path: '/{name}'}, upstream: app, limits: [Paths]}"])
}

fn ask(gateway: &Gateway, request: Request) -> Response {
    gateway.admin(&request.with("host", "127.0.0.1:9901"))
}

fn answer(gateway: &Gateway, target: &str) -> Value {
    let response = ask(gateway, get(target));
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

/// All pages of this many buckets, and how many pages there were.
fn paged(gateway: &Gateway, count: usize) -> (Vec<Value>, usize) {
    let mut buckets = Vec::new();
    let mut cursor = String::new();
    for page in 1.. {
        let target = format!("/v1/buckets/Paths?count={count}{cursor}");
        let answer = answer(gateway, &target);
        let list = answer["buckets"].as_array().unwrap();
        assert!(list.len() <= count, "{answer}");
        buckets.extend(list.iter().cloned());
        match answer["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return (buckets, page),
        }
    }
    unreachable!()
}

/// What holds on every store: subjects that requests have made up, each with what remains.
fn subjects_are_listed_with_what_remains(gateway: &Gateway) {
    let hostile = [
        "/a",
        "/%22%3Cb%3E%27",
        "/c%E2%80%AE",
        "/%7Bd%7D*%3F",
        "/e%3Af",
    ];
    for (index, path) in hostile.iter().enumerate() {
        assert_eq!(gateway.statuses(&get(path), index + 1).last(), Some(&200));
    }
    for count in [1, 2, 100] {
        let (buckets, _) = paged(gateway, count);
        let mut left: Vec<(String, u64)> = buckets
            .iter()
            .map(|bucket| {
                let subject = bucket["subject"].as_str().unwrap().to_owned();
                (subject, bucket["remaining"].as_u64().unwrap())
            })
            .collect();
        left.sort_by_key(|(_, remaining)| *remaining);
        let names = ["e:f", "{d}*?", "c\u{202e}", "\"<b>'", "a"];
        let expected = names.into_iter().map(str::to_owned).zip(0..5);
        assert_eq!(left, expected.collect::<Vec<_>>(), "{count}");
    }
    // Nothing was spent by looking.
    let (again, _) = paged(gateway, 100);
    let listed = again
        .iter()
        .find(|bucket| bucket["subject"] == "a")
        .unwrap();
    let alone = answer(gateway, "/v1/buckets/Paths/a");
    assert_eq!(listed["remaining"], alone["remaining"]);
    assert_eq!(listed["burst"], alone["burst"]);
}

#[test]
fn the_heaviest_subjects_in_memory_are_listed() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    subjects_are_listed_with_what_remains(&gateway);
    assert_eq!(answer(&gateway, "/v1/buckets/Paths")["source"], "top");
}

#[test]
fn all_subjects_in_redis_are_listed_and_other_keys_are_not() {
    let server = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = setup(&upstream).key(&redis::store(&server.url())).start();
    subjects_are_listed_with_what_remains(&gateway);
    for number in 0..3000 {
        server.command(&["SET", &format!("other:{number}"), "1"]);
    }
    assert_eq!(paged(&gateway, 1000).0.len(), 5);
    assert_eq!(server.calls("keys"), 0);
    assert_eq!(answer(&gateway, "/v1/buckets/Paths")["source"], "store");
}

#[test]
fn subjects_on_all_nodes_of_a_cluster_are_listed() {
    let cluster = RedisCluster::start(0);
    let upstream = Upstream::start();
    let store = crate::redis_cluster::store(&cluster, "deny");
    let gateway = setup(&upstream).key(&store).start();
    for number in 0..40 {
        assert_eq!(gateway.send(&get(&format!("/n{number}"))).status, 200);
    }
    let (buckets, pages) = paged(&gateway, 7);
    let mut subjects: Vec<&str> = buckets
        .iter()
        .map(|bucket| bucket["subject"].as_str().unwrap())
        .collect();
    subjects.sort_unstable();
    subjects.dedup();
    assert_eq!((subjects.len(), buckets.len()), (40, 40));
    assert!(pages >= 6, "{pages}");
}

#[test]
fn a_store_that_is_down_or_stands_still_is_a_clear_error_and_no_endless_wait() {
    let mut server = RedisServer::start();
    let upstream = Upstream::start();
    let url = server.url();
    let store = format!("store: {{redis: {{url: \"{url}\", timeout: 3s, on_failure: deny}}}}");
    let gateway = setup(&upstream).key(&store).start();
    assert_eq!(gateway.send(&get("/a")).status, 200);
    answer(&gateway, "/v1/buckets/Paths");
    server.stop();
    let still = ask(&gateway, get("/v1/buckets/Paths"));
    assert_eq!(still.status, 503, "{}", still.text());
    server.resume();
    server.kill();
    let down = eventually("an answer without a store", || {
        let down = ask(&gateway, get("/v1/buckets/Paths"));
        (down.status == 503).then_some(down)
    });
    let detail = down.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("out of reach"), "{detail}");
}

#[test]
fn what_is_not_a_page_or_a_limit_is_refused() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    for (target, status, detail) in [
        ("/v1/buckets/Paths?cursor=zz", 400, "cursor=NEXT"),
        ("/v1/buckets/Paths?count=1001", 400, "1 to 1000"),
        ("/v1/buckets/Paths?page=1", 400, "cursor=NEXT"),
        ("/v1/buckets/Path", 404, "did you mean"),
        ("/v1/config?secrets=1", 400, "defaults=true alone"),
        ("/v1/config?defaults=no", 400, "defaults=true alone"),
        ("/v1/nothing", 404, "/v1/buckets/{limit}"),
    ] {
        let response = ask(&gateway, get(target));
        let text = response.text().to_owned();
        assert_eq!(response.status, status, "{text}");
        assert!(text.contains(detail), "{target}: {text}");
    }
}

/// Where names are shown, lists had hashes all the same.
#[test]
fn accounts_are_listed_by_their_names_only_where_names_are_shown() {
    let upstream = Upstream::start();
    for (log, name) in [("plain", json!("acme")), ("hash", Value::Null)] {
        let gateway = Setup::before(&upstream)
            .limits(&["Keys: {per: account, burst: 5, count: 1, period: 1000h}"])
            .routes(&["{name: all, match: {}, upstream: app, limits: [Keys]}"])
            .key("account: [header: x-api-key]")
            .key(&format!("log: {{account: {log}}}"))
            .start();
        assert_eq!(
            gateway.send(&get("/").with("x-api-key", "acme")).status,
            200
        );
        let listed = answer(&gateway, "/v1/buckets/Keys?count=5");
        assert_eq!(listed["buckets"][0]["name"], name, "{listed}");
        assert_ne!(listed["buckets"][0]["subject"], "acme", "{listed}");
    }
}

#[test]
fn the_configuration_in_force_is_shown_with_what_was_refused_since() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let shown = answer(&gateway, "/v1/config");
    let files = &shown["files"];
    assert_eq!(files["gateway.yaml"]["workers"], 2);
    assert_eq!(files["limits/defaults.yaml"]["Calls"]["burst"], 5);
    assert_eq!(shown["refused"], Value::Null);
    let warnings = shown["warnings"].as_array().unwrap();
    assert!(
        warnings.len() == 1 && warnings[0].to_string().contains("no route uses this limit"),
        "{warnings:?}"
    );
    assert!(shown["loaded_at"].as_str().unwrap().ends_with('Z'));
    let text = gateway.read("gateway.yaml");
    let broken =
        format!("{text}store: {{redis: {{url: 'redis://me:planted@ho st'}}}}\nworkerz: 3\n");
    gateway.write("gateway.yaml", &broken);
    gateway.signal("HUP");
    let refused = eventually("a load that was refused", || {
        let shown = answer(&gateway, "/v1/config");
        (shown["refused"] != Value::Null).then_some(shown)
    });
    let errors = refused["refused"]["errors"].as_array().unwrap();
    let shown = refused["refused"]["errors"].to_string();
    assert!(!shown.contains("planted"), "{shown}");
    // Each error is one item, with its remedy.
    let unknown = errors.iter().filter_map(Value::as_str);
    let unknown: Vec<&str> = unknown.filter(|error| error.contains("workerz")).collect();
    assert!(
        matches!(unknown[..], [error] if error.ends_with("\n  did you mean \"workers\"?")),
        "{errors:#?}"
    );
    assert!(
        errors
            .iter()
            .all(|error| error.as_str().unwrap().contains(".yaml:")),
        "{errors:#?}"
    );
    assert!(!shown.contains("warning: "), "no error: {shown}");
    assert_eq!(refused["files"], *files);
    gateway.write(
        "gateway.yaml",
        &text.replace("workers: 2", "grace: 9s\nworkers: 2"),
    );
    gateway.signal("HUP");
    eventually("a load that is in force", || {
        let shown = answer(&gateway, "/v1/config");
        let grace = &shown["files"]["gateway.yaml"]["grace"];
        (shown["refused"] == Value::Null && grace == "9s").then_some(())
    });
}

/// A value that a default stands for was nowhere to be seen but in the documentation.
#[test]
fn the_configuration_in_force_is_shown_with_its_defaults_and_what_takes_a_restart() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let written = answer(&gateway, "/v1/config");
    let shown = answer(&gateway, "/v1/config?defaults=true");
    let (before, after) = (&written["files"], &shown["files"]);
    assert_eq!(before["gateway.yaml"]["grace"], Value::Null);
    let file = &after["gateway.yaml"];
    assert_eq!(file["grace"], "30s");
    assert_eq!(file["workers"], 2);
    assert_eq!(file["connections"]["header_timeout"], "10s");
    assert_eq!(file["store"]["memory"]["max_buckets"], 1_000_000);
    assert_eq!(file["upstreams"]["app"]["ejection"]["failures"], 5);
    let limit = &after["limits/defaults.yaml"]["Calls"];
    assert_eq!(
        (&limit["burst"], &limit["missing"]),
        (&json!(5), &json!("skip"))
    );
    let restart = shown["restart_keys"].as_array().unwrap();
    for key in ["admin.address", "grace", "listen", "log.level", "store"] {
        assert!(restart.contains(&json!(key)), "{key}: {restart:?}");
    }
    for key in ["watch", "log", "log.account", "routes"] {
        assert!(!restart.contains(&json!(key)), "{key}: {restart:?}");
    }
    assert_eq!(written["restart_keys"], shown["restart_keys"]);
}

#[test]
fn the_level_of_the_log_is_changed_without_a_restart_and_comes_back() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let set = |body: &str| ask(&gateway, put("/v1/log-level", body));
    let level = |response: &Response| response.json()["level"].as_str().unwrap().to_owned();
    let shown = ask(&gateway, get("/v1/log-level"));
    let configured = json!({"level": "info", "configured": "info", "until": null});
    assert_eq!(shown.json(), configured);
    // A reload is logged at `info`, which is off for the first two of three. The line of the second
    // may be written when it is on already.
    let text = gateway.read("gateway.yaml");
    let reload = |grace: &str| {
        let new = text.replace("workers: 2", &format!("grace: {grace}\nworkers: 2"));
        gateway.write("gateway.yaml", &new);
        gateway.signal("HUP");
        eventually("a reload", || {
            let shown = answer(&gateway, "/v1/config");
            (shown["files"]["gateway.yaml"]["grace"] == grace).then_some(())
        });
    };
    assert_eq!(level(&set("{\"level\": \"error\"}")), "error");
    reload("7s");
    reload("8s");
    let level_with_modules = "{\"level\": \"info,weir::proxy=debug\"}";
    assert_eq!(level(&set(level_with_modules)), "info,weir::proxy=debug");
    reload("9s");
    let reloads = || gateway.log_text().matches("configuration reloaded").count();
    eventually("a line of the level that was set", || {
        (reloads() > 0).then_some(())
    });
    assert!(reloads() < 3);
    for wrong in [
        "{\"level\": \"loud\"}",
        "{}",
        "debug",
        "{\"level\": \"info\", \"for\": 3}",
    ] {
        let refused = set(wrong);
        assert_eq!(refused.status, 400, "{wrong}: {}", refused.text());
    }
    let set_for_long = set("{\"level\": \"debug\", \"for\": \"1h\"}");
    assert!(
        set_for_long.json()["until"]
            .as_str()
            .unwrap()
            .ends_with('Z')
    );
    set("{\"level\": \"trace\", \"for\": \"1s\"}");
    eventually("the configured level", || {
        (level(&ask(&gateway, get("/v1/log-level"))) == "info").then_some(())
    });
    set("{\"level\": \"off\"}");
    let restored = ask(&gateway, request("DELETE", "/v1/log-level"));
    assert_eq!(restored.json(), configured);
}
