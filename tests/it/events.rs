//! What the gateway does, as server-sent events on the admin listener, and the explanation of a
//! request by the configuration in force.

use std::time::Instant;

use serde_json::{Value, json};

use crate::support::*;

const LIMIT: &str = "Calls: {per: address, burst: 3, count: 1, period: 1000h}";

fn setup(upstream: &Upstream) -> Setup {
    Setup::before(upstream)
        .limits(&[LIMIT])
        .limited_by("Calls")
        .key("client_address: {trusted_proxies: [127.0.0.1]}")
}

/// The request as this machine's own tools send it.
fn local(request: Request) -> Request {
    request.with("host", "127.0.0.1:9901")
}

/// A stream of events.
struct Events {
    client: Client,
    text: String,
    opened: Instant,
}

impl Events {
    fn open(gateway: &Gateway, query: &str) -> Self {
        let mut client = gateway.admin_client();
        let request = local(get(&format!("/v1/events?{query}")));
        client.write(&request.bytes()).unwrap();
        let head = client.read_head().unwrap();
        assert_eq!(head.status, 200);
        assert_eq!(head.field("content-type"), Some("text/event-stream"));
        assert_eq!(head.field("cache-control"), Some("no-store"));
        let text = String::new();
        Self {
            client,
            text,
            opened: Instant::now(),
        }
    }

    /// The next event; none after the last.
    fn next(&mut self) -> Option<(String, Value)> {
        // Events come for ever, whether the awaited one is among them or not.
        assert!(self.opened.elapsed() < PATIENCE, "not seen in time");
        while !self.text.contains("\n\n") {
            let chunk = self.client.read_chunk().unwrap()?;
            self.text.push_str(&String::from_utf8(chunk).unwrap());
        }
        let (event, rest) = self.text.split_once("\n\n").unwrap();
        let (name, data) = event.split_once('\n').unwrap();
        let name = name.strip_prefix("event: ").unwrap().to_owned();
        let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        self.text = rest.to_owned();
        Some((name, data))
    }

    /// Reads on until an event of this name, of which something holds.
    fn until(&mut self, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
        loop {
            let (found, data) = self.next().expect("another event");
            if found == name && holds(&data) {
                return data;
            }
        }
    }
}

fn from(address: &str, path: &str) -> Request {
    get(path).with("x-forwarded-for", address)
}

#[test]
fn each_second_tells_what_was_counted_in_it() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let mut events = Events::open(&gateway, "");
    let (name, configuration) = events.next().unwrap();
    assert_eq!(name, "configuration");
    assert_eq!(configuration["limits"][0]["name"], "Calls");
    assert_eq!(
        configuration["limits"][0]["uses"],
        json!([{"route": "all", "enforce": "true"}])
    );
    assert_eq!(
        gateway.statuses(&from("192.0.2.1", "/"), 5),
        [200, 200, 200, 429, 429]
    );
    // A limit counts a request when it decides, and the decisions when its response is over.
    let (mut allowed, mut denied, mut by_limit) = (0, 0, 0);
    while (allowed, denied, by_limit) != (3, 2, 2) {
        let second = events.until("second", |_| true);
        let decisions = |word: &str| second["decisions"][word].as_u64().unwrap_or(0);
        allowed += decisions("allowed");
        denied += decisions("denied");
        by_limit += second["limits"]["Calls"]["second"]["denied"]
            .as_u64()
            .unwrap();
        assert!(allowed <= 3 && denied <= 2 && by_limit <= 2, "{second}");
        assert_eq!(second["tail"], json!([]));
        assert_eq!(second["upstreams"][0]["servers"][0]["available"], true);
    }
    // What was counted is told once, and remains in the sum.
    let quiet = events.until("second", |_| true);
    assert_eq!(quiet["decisions"], json!({}));
    assert_eq!(quiet["limits"]["Calls"]["total"]["denied"], 2);
    let counted = events.until("second", |second| !second["subjects"].is_null());
    assert_eq!(counted["subjects"]["Calls"], 1);
}

/// Whoever opened the dashboard saw nothing of the time before.
#[test]
fn what_was_counted_before_a_page_is_opened_is_in_its_history_once() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).admin("dashboard: true").start();
    let counted = |points: &Value, word: &str| -> u64 {
        let points = points["points"].as_array().unwrap().iter();
        let counts = points.map(|point| point["decisions"][word].as_u64().unwrap_or(0));
        counts.sum()
    };
    let mut watching = Events::open(&gateway, "");
    gateway.statuses(&from("192.0.2.1", "/"), 5);
    let points = watching.until("history", |points| counted(points, "denied") > 0);
    assert_eq!(
        (counted(&points, "allowed"), counted(&points, "denied")),
        (3, 2)
    );
    assert_eq!(points["seconds"], 10);
    let mut later = Events::open(&gateway, "");
    assert_eq!(later.next().unwrap().0, "configuration");
    let (name, all) = later.next().unwrap();
    assert_eq!((name.as_str(), counted(&all, "denied")), ("history", 2));
    // The next ones are told as they are counted.
    let new = later.until("history", |_| true);
    assert_eq!(
        (
            new["points"].as_array().unwrap().len(),
            counted(&new, "denied")
        ),
        (1, 0)
    );
}

#[test]
fn requests_that_fail_are_told_apart_from_those_that_limits_let_through() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let mut events = Events::open(&gateway, "");
    events.until("configuration", |_| true);
    upstream.die();
    let statuses = gateway.statuses(&from("192.0.2.1", "/"), 5);
    assert!(
        statuses[..3].iter().all(|status| *status >= 500),
        "{statuses:?}"
    );
    let (mut failed, mut allowed, mut errors) = (0, 0, 0);
    while failed < 3 {
        let second = events.until("second", |_| true);
        let count = |value: &Value| value.as_u64().unwrap_or(0);
        failed += count(&second["failed"]["allowed"]);
        allowed += count(&second["decisions"]["allowed"]);
        errors += count(&second["routes"]["all"]["server_errors"]);
        assert!(second["failed"]["denied"].is_null(), "{second}");
    }
    assert_eq!((failed, allowed, errors), (3, 3, 3));
    let told = events.until("second", |_| true);
    let server = &told["upstreams"][0]["servers"][0];
    assert_eq!(server["trouble"], "it cannot be connected to", "{server}");
}

#[test]
fn the_tail_shows_finished_requests_that_match() {
    let upstream = Upstream::start();
    // Nothing of it depends on the log.
    let gateway = setup(&upstream).key("log: {access: false}").start();
    let mut all = Events::open(&gateway, "tail=true");
    let mut denied = Events::open(&gateway, "decision=denied&by=Calls&text=192.0.2.7");
    all.until("configuration", |_| true);
    denied.until("configuration", |_| true);
    gateway.statuses(&from("192.0.2.1", "/a?secret"), 4);
    gateway.statuses(&from("192.0.2.7", "/b?secret"), 4);
    let mut shown = Vec::new();
    while shown.len() < 8 {
        let second = all.until("second", |_| true);
        shown.extend(second["tail"].as_array().unwrap().clone());
    }
    let first = &shown[0];
    for (name, value) in [
        ("client", json!("192.0.2.1")),
        ("path", json!("/a")),
        ("status", json!(200)),
        ("decision", json!("allowed")),
        ("route", json!("all")),
    ] {
        assert_eq!(first[name], value, "{first}");
    }
    assert!(first["upstream_ms"].as_f64().unwrap() <= first["ms"].as_f64().unwrap());
    let second = denied.until("second", |second| second["tail"] != json!([]));
    let lines = second["tail"].as_array().unwrap();
    assert_eq!(lines.len(), 1, "{second}");
    assert_eq!(
        (&lines[0]["path"], &lines[0]["limit"]),
        (&json!("/b"), &json!("Calls"))
    );
    // Weir's own part is measured while somebody watches.
    assert_eq!(gateway.log_text().matches("\"path\"").count(), 0);
}

#[test]
fn a_reload_and_its_errors_are_told_at_once() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let mut events = Events::open(&gateway, "");
    events.until("configuration", |_| true);
    let good = gateway.read("limits/defaults.yaml");
    gateway.write("limits/defaults.yaml", "Calls: {per: nonsense}\n");
    gateway.signal("HUP");
    let refused = events.until("second", |second| second["load"]["error"].is_string());
    let error = refused["load"]["error"].as_str().unwrap();
    assert!(
        error.contains("limits/defaults.yaml:1") && error.contains("nonsense"),
        "{error}"
    );
    gateway.write(
        "limits/defaults.yaml",
        &good.replace("burst: 3", "burst: 4"),
    );
    gateway.signal("HUP");
    let described = events.until("configuration", |_| true);
    assert_eq!(described["limits"][0]["burst"], 4);
    events.until("second", |second| second["load"]["error"].is_null());
}

#[test]
fn streams_are_bounded_and_end_when_the_gateway_drains() {
    let upstream = Upstream::start();
    let mut gateway = setup(&upstream).start();
    let mut streams: Vec<_> = (0..8).map(|_| Events::open(&gateway, "")).collect();
    let refused = gateway.admin(&local(get("/v1/events")));
    assert_eq!(
        (refused.status, refused.field("retry-after")),
        (503, Some("1"))
    );
    // A client that leaves makes room for another.
    streams.pop();
    eventually("room for another stream", || {
        let mut client = gateway.admin_client();
        client.write(&local(get("/v1/events")).bytes()).unwrap();
        (client.read_head().unwrap().status == 200).then_some(())
    });
    gateway.signal("TERM");
    let mut last = streams.pop().unwrap();
    last.until("end", |_| true);
    assert!(last.next().is_none());
    assert!(gateway.ended().success());
}

#[test]
fn events_are_for_those_who_may_see_buckets() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    for (path, status) in [
        ("/v1/events?limit=Calls", 400),
        ("/v1/events?decision=nonsense", 400),
    ] {
        assert_eq!(gateway.admin(&local(get(path))).status, status, "{path}");
    }
    assert_eq!(gateway.admin(&local(post("/v1/events", "{}"))).status, 405);
    let page = local(get("/v1/events")).with("origin", "http://127.0.0.1:9901");
    assert_eq!(gateway.admin(&page).status, 403);
    assert_eq!(gateway.admin(&get("/v1/events")).status, 403);
}

#[test]
fn a_request_is_explained_by_the_configuration_in_force() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let ask = |body: &str| gateway.admin(&local(post("/v1/explain", body)));
    let body = json!({"path": "/a?b", "ip": "192.0.2.1", "headers": ["host: shop.example"]});
    let explained = ask(&body.to_string());
    assert_eq!(explained.status, 200, "{}", explained.text());
    let text = explained.json()["explanation"].as_str().unwrap().to_owned();
    for line in [
        "GET /a?b from 192.0.2.1",
        "route: all",
        "limit Calls: applies",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let limits = gateway.read("limits/defaults.yaml");
    gateway.write(
        "limits/defaults.yaml",
        &limits.replace("burst: 3", "burst: 77"),
    );
    gateway.reload();
    let text = ask(&body.to_string()).json()["explanation"].to_string();
    assert!(text.contains("burst 77"), "{text}");
    for (body, problem) in [
        ("{}", "path"),
        (
            "{\"path\": \"a\", \"ip\": \"192.0.2.1\"}",
            "begins with a slash",
        ),
        ("{\"path\": \"/\", \"ip\": \"here\"}", "IP address"),
    ] {
        let refused = ask(body);
        assert_eq!(refused.status, 400, "{body}");
        assert!(refused.text().contains(problem), "{}", refused.text());
    }
    assert_eq!(gateway.admin(&local(get("/v1/explain"))).status, 405);
}
