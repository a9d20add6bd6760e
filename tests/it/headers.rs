//! What a response says of limits, to the letter.

use std::time::{Duration, Instant};

use http::{HeaderValue, Response as Answer};

use crate::support::upstream::full;
use crate::support::*;

/// A bucket of three that fills in three hours, told in these forms.
fn start(upstream: &Upstream, forms: &str) -> Gateway {
    Setup::before(upstream)
        .limits(&["L: {per: address, burst: 3, count: 1, period: 1h}"])
        .routes(&[&format!(
            "{{match: {{}}, upstream: app, limits: [L], ratelimit_headers: {forms}}}"
        )])
        .start()
}

/// Whether a response has a field that tells of limits.
fn tells_nothing(response: &Response) -> bool {
    let tells = |name: &&str| name.contains("ratelimit") || *name == "retry-after";
    !response.names().iter().any(tells)
}

/// The seconds at the end of a field's value, and what is before them.
fn seconds(value: &str) -> (&str, u64) {
    let digits = value
        .rfind(|it: char| !it.is_ascii_digit())
        .map_or(0, |at| at + 1);
    (&value[..digits], value[digits..].parse().expect("seconds"))
}

/// Time goes on while a test runs, so a wait of up to `hours` may be some seconds shorter.
fn about(seconds: u64, hours: u64) -> bool {
    (hours * 3600 - 60..=hours * 3600).contains(&seconds)
}

#[test]
fn the_draft_form_tells_policy_and_state() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "draft");
    for remaining in [2, 1, 0] {
        let response = gateway.send(&get("/"));
        assert_eq!(response.status, 200);
        assert_eq!(response.lines("ratelimit-policy"), ["\"L\";q=3;w=10800"]);
        let (start, until) = seconds(response.field("ratelimit").unwrap());
        assert_eq!(start, format!("\"L\";r={remaining};t="));
        assert!(about(until, 1), "{until}");
        assert_eq!(response.field("retry-after"), None);
        assert_eq!(response.field("ratelimit-limit"), None);
        assert_eq!(response.field("x-ratelimit-limit"), None);
    }
    let denied = gateway.send(&get("/"));
    assert_eq!(denied.status, 429);
    assert_eq!(denied.lines("ratelimit-policy"), ["\"L\";q=3;w=10800"]);
    let (start, until) = seconds(denied.field("ratelimit").unwrap());
    assert_eq!(start, "\"L\";r=0;t=");
    // huggingface_hub waits for it, and not for Retry-After.
    assert_eq!(denied.field("retry-after").unwrap(), until.to_string());
    assert!(about(until, 1), "{until}");
}

#[test]
fn several_limits_are_told_strictest_first() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&[
            "Wide: {per: address, burst: 9, count: 1, period: 1h}",
            "Tight: {per: method, burst: 2, count: 1, period: 30m}",
            "Unused: {per: account, burst: 1, count: 1, period: 1h}",
        ])
        .limited_by("Wide, Unused, Tight")
        .key("account: [header: x-api-key]")
        .start();
    let response = gateway.send(&get("/"));
    assert_eq!(
        response.lines("ratelimit-policy"),
        ["\"Tight\";q=2;w=3600, \"Wide\";q=9;w=32400"]
    );
    let state = response.field("ratelimit").unwrap();
    let (tight, wide) = state.split_once(", ").expect("two limits");
    assert_eq!(seconds(tight).0, "\"Tight\";r=1;t=");
    assert_eq!(seconds(wide).0, "\"Wide\";r=8;t=");
}

#[test]
fn the_draft_03_form_is_three_fields() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "draft-03");
    for (status, remaining, hours) in [(200, "2", 1), (200, "1", 2), (200, "0", 3), (429, "0", 1)] {
        let response = gateway.send(&get("/"));
        assert_eq!(response.status, status);
        assert_eq!(response.lines("ratelimit-limit"), ["3, 3;w=10800"]);
        assert_eq!(response.lines("ratelimit-remaining"), [remaining]);
        let reset = response.field("ratelimit-reset").unwrap().parse().unwrap();
        assert!(about(reset, hours), "{reset}");
        assert_eq!(response.field("ratelimit"), None);
        assert_eq!(response.field("ratelimit-policy"), None);
        assert_eq!(response.field("retry-after").is_some(), status == 429);
    }
}

#[test]
fn the_x_ratelimit_form_is_three_fields_of_numbers() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "[x-ratelimit]");
    for (status, remaining, hours) in [(200, "2", 1), (200, "1", 2), (200, "0", 3), (429, "0", 1)] {
        let response = gateway.send(&get("/"));
        assert_eq!(response.status, status);
        assert_eq!(response.lines("x-ratelimit-limit"), ["3"]);
        assert_eq!(response.lines("x-ratelimit-remaining"), [remaining]);
        let reset = response
            .field("x-ratelimit-reset")
            .unwrap()
            .parse()
            .unwrap();
        assert!(about(reset, hours), "{reset}");
        assert_eq!(response.field("ratelimit"), None);
    }
}

#[test]
fn the_draft_06_form_is_fields_of_one_number_and_a_policy() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "draft-06");
    let response = gateway.send(&get("/"));
    assert_eq!(response.lines("ratelimit-limit"), ["3"]);
    assert_eq!(response.lines("ratelimit-policy"), ["3;w=10800"]);
    assert_eq!(response.lines("ratelimit-remaining"), ["2"]);
    assert_eq!(response.field("ratelimit"), None);
}

#[test]
fn an_epoch_and_milliseconds_are_the_moment_of_retry_after() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "[x-ratelimit-epoch, retry-after-ms]");
    let unix = || {
        let since = std::time::UNIX_EPOCH.elapsed();
        since.expect("a clock after 1970").as_secs()
    };
    for _ in 0..3 {
        let admitted = gateway.send(&get("/"));
        assert_eq!(
            (admitted.status, admitted.field("retry-after-ms")),
            (200, None)
        );
    }
    let before = unix();
    let denied = gateway.send(&get("/"));
    let number = |name| denied.field(name).unwrap().parse::<u64>().unwrap();
    let (retry_after, reset) = (number("retry-after"), number("x-ratelimit-reset"));
    assert!((before + retry_after - 1..=unix() + retry_after + 1).contains(&reset));
    assert_eq!(number("retry-after-ms").div_ceil(1000), retry_after);
}

/// Clients read the second line as a part of the first, or in its place.
#[test]
fn a_field_with_one_value_is_never_sent_twice_beside_the_apps() {
    let upstream = Upstream::answering(|request| {
        let mut answer = Answer::new(full("real"));
        let left = request.target.trim_start_matches("/?").parse();
        let fields = answer.headers_mut();
        fields.insert("x-ratelimit-limit", HeaderValue::from_static("10"));
        fields.insert("x-ratelimit-remaining", left.expect("a number"));
        answer
    });
    let gateway = start(&upstream, "x-ratelimit");
    let looser = gateway.send(&get("/?9"));
    assert_eq!(looser.lines("x-ratelimit-remaining"), ["2"]);
    assert_eq!(looser.lines("x-ratelimit-limit"), ["3"]);
    let stricter = gateway.send(&get("/?0"));
    assert_eq!(stricter.lines("x-ratelimit-remaining"), ["0"]);
    assert_eq!(stricter.lines("x-ratelimit-limit"), ["10"]);
}

/// A gateway behind another has the same limits, if its configuration is the same.
#[test]
fn gateways_in_a_row_do_not_tell_of_two_limits_by_one_name() {
    let upstream = Upstream::start();
    let inner = start(&upstream, "draft");
    let address = inner.address();
    let outer = Setup::with_upstreams(&format!("{{app: {{servers: ['http://{address}']}}}}"))
        .limits(&["L: {per: address, burst: 3, count: 1, period: 1h}"])
        .routes(&["{match: {}, upstream: app, limits: [L]}"])
        .start();
    let response = outer.send(&get("/"));
    assert_eq!(
        response.lines("ratelimit-policy"),
        ["\"L\";q=3;w=10800", "\"L-2\";q=3;w=10800"]
    );
    let state = response.lines("ratelimit");
    assert!(state[1].starts_with("\"L-2\";r=2;t="), "{state:?}");
}

#[test]
fn edits_of_a_route_concern_the_apps_fields_and_not_those_of_limits() {
    let upstream = Upstream::answering(|_| {
        let mut answer = Answer::new(full("real"));
        let theirs = HeaderValue::from_static("1");
        answer.headers_mut().insert("x-ratelimit-remaining", theirs);
        answer
            .headers_mut()
            .insert("ratelimit", HeaderValue::from_static("\"theirs\";r=0"));
        answer
    });
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 3, count: 1, period: 1h}"])
        .routes(&[
            "{match: {}, upstream: app, limits: [L], ratelimit_headers: [draft, x-ratelimit], \
             response_headers: {remove: [ratelimit, x-ratelimit-remaining], always: true}}",
        ])
        .start();
    for left in [2, 1, 0, 0] {
        let response = gateway.send(&get("/"));
        assert_eq!(response.lines("x-ratelimit-remaining"), [left.to_string()]);
        let state = response.lines("ratelimit");
        assert!(state.len() == 1 && state[0].starts_with(&format!("\"L\";r={left};t=")));
    }
}

#[test]
fn forms_may_be_told_together_or_not_at_all() {
    let upstream = Upstream::start();
    let all = start(&upstream, "[draft, draft-03, x-ratelimit]").send(&get("/"));
    for name in [
        "ratelimit",
        "ratelimit-policy",
        "ratelimit-limit",
        "x-ratelimit-limit",
    ] {
        assert!(all.field(name).is_some(), "{name}");
    }
    let silent = start(&upstream, "none");
    assert!(tells_nothing(&silent.send(&get("/"))));
    let denied = silent.statuses(&get("/"), 3).pop();
    assert_eq!(denied, Some(429));
    // A refusal without fields still says when to come back.
    let denied = silent.send(&get("/"));
    assert!(denied.field("retry-after").is_some() && denied.field("ratelimit").is_none());
}

#[test]
fn a_route_without_limits_tells_nothing() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    assert!(tells_nothing(&gateway.send(&get("/"))));
}

#[test]
fn fields_of_the_upstream_are_kept_beside_ours() {
    let upstream = Upstream::answering(|_| {
        let mut answer = Answer::new(full("real"));
        let theirs = HeaderValue::from_static("\"theirs\";r=7;t=8");
        answer.headers_mut().insert("ratelimit", theirs);
        answer
    });
    let gateway = start(&upstream, "draft");
    let response = gateway.send(&get("/"));
    let lines = response.lines("ratelimit");
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0], "\"theirs\";r=7;t=8");
    assert!(lines[1].starts_with("\"L\";r=2;t="));
}

#[test]
fn a_refusal_is_a_problem_document_that_names_the_violated_limits() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&[
            "A: {per: address, burst: 1, count: 1, period: 1h}",
            "B: {per: method, burst: 1, count: 1, period: 2h}",
            "C: {per: global, burst: 9, count: 1, period: 2h}",
        ])
        .limited_by("A, B, C")
        .start();
    gateway.send(&get("/"));
    let denied = gateway.send(&get("/"));
    assert_eq!(denied.status, 429);
    assert_eq!(
        denied.field("content-type"),
        Some("application/problem+json")
    );
    let problem = denied.json();
    assert_eq!(
        problem["type"],
        "https://iana.org/assignments/http-problem-types#quota-exceeded"
    );
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], serde_json::json!(["B", "A"]));
    // B takes the longest, so it says when to come back.
    let wait = denied.field("retry-after").unwrap().parse().unwrap();
    assert!(about(wait, 2), "{wait}");
}

#[test]
fn who_waits_as_long_as_told_is_admitted() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1500ms}"])
        .limited_by("L")
        .start();
    let mut client = gateway.client();
    let denied = eventually("a denied request", || {
        Some(client.send(&get("/"))).filter(|it| it.status == 429)
    });
    let told = denied.field("retry-after").unwrap().parse().unwrap();
    // A second and a half or a little less, rounded up.
    assert!((1..=2).contains(&told), "{told}");
    let due = Instant::now() + Duration::from_secs(told);
    eventually("an admitted request", || {
        let is_due = Instant::now() >= due;
        let admitted = client.send(&get("/")).status == 200;
        assert!(admitted || !is_due, "denied after the wait");
        admitted.then_some(())
    });
}

#[test]
fn retry_after_is_at_least_a_second() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 100, count: 100, period: 10s}"])
        .limited_by("L")
        .start();
    let mut client = gateway.client();
    let denied = eventually("a denied request", || {
        (0..200)
            .map(|_| client.send(&get("/")))
            .find(|it| it.status == 429)
    });
    assert_eq!(denied.field("retry-after"), Some("1"));
}

#[test]
fn a_rejection_is_as_it_is_configured() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1h}"])
        .routes(&[
            "{match: {}, upstream: app, limits: [L], on_denied: {reject: {status: 403, \
             headers: {content-type: text/plain, x-why: limits}, body: Too many attempts.}}}",
        ])
        .start();
    gateway.send(&get("/"));
    let denied = gateway.send(&get("/"));
    assert_eq!((denied.status, denied.text()), (403, "Too many attempts."));
    assert_eq!(denied.lines("content-type"), ["text/plain"]);
    assert_eq!(denied.field("x-why"), Some("limits"));
    assert!(denied.field("retry-after").is_some() && denied.field("ratelimit").is_some());
}

#[test]
fn a_refusal_of_head_has_no_body_and_keeps_the_connection() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "draft");
    let mut client = gateway.client();
    let statuses = [(); 5].map(|()| client.send(&request("HEAD", "/")).status);
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
}

#[test]
fn a_refused_upload_does_not_get_in_the_way_of_the_next_request() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "draft");
    let mut client = gateway.client();
    let upload = post("/", &"x".repeat(10_000));
    let statuses = [(); 6].map(|()| client.send(&upload).status);
    assert_eq!(statuses, [200, 200, 200, 429, 429, 429]);
}

#[test]
fn a_request_that_costs_nothing_is_told_where_it_stands() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 3, count: 1, period: 1h}"])
        .limited_by("{limit: L, cost: {request_header: x-cost}}")
        .start();
    let costing = |cost: &str| get("/").with("x-cost", cost);
    let told = |cost: &str| {
        let response = gateway.send(&costing(cost));
        let state = response.field("ratelimit").expect("a state").to_owned();
        let policy = response.field("ratelimit-policy").map(str::to_owned);
        assert_eq!(policy.as_deref(), Some("\"L\";q=3;w=10800"));
        (response.status, seconds(&state).0.to_owned())
    };
    assert_eq!(told("0"), (200, "\"L\";r=3;t=".to_owned()));
    assert_eq!(told("3"), (200, "\"L\";r=0;t=".to_owned()));
    assert_eq!(
        told("0"),
        (200, "\"L\";r=0;t=".to_owned()),
        "and is not denied"
    );
}

/// A denial, without its digits: time goes on between two of them.
fn without_digits(denied: &Response) -> String {
    assert_eq!(denied.status, 429);
    let body = String::from_utf8_lossy(&denied.body);
    let mut text = format!("{:?} {body}", denied.fields);
    text.retain(|it| !it.is_ascii_digit());
    text
}

/// Denials of plain requests are made of lines, and those of others of a map of headers.
#[test]
fn a_client_cannot_tell_by_a_denial_whether_its_request_was_a_plain_one() {
    let upstream = Upstream::start();
    for forms in ["none", "draft", "[draft, draft-03, x-ratelimit]"] {
        let gateway = start(&upstream, forms);
        gateway.statuses(&get("/"), 3);
        for method in ["GET", "HEAD"] {
            let plain = request(method, "/");
            let other = plain.clone().with("te", "trailers");
            let [plain, other] = [plain, other].map(|it| without_digits(&gateway.send(&it)));
            assert_eq!(plain, other, "{forms}");
        }
    }
}

/// Redis is not asked again within a second of a denial. Others may have taken of what was left
/// then, so the second denial says nothing of it; that the bucket of a cost of one is empty, it says.
#[test]
fn a_remembered_denial_tells_what_is_left_only_if_that_is_nothing() {
    let redis = RedisServer::start();
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: \"path:id\", burst: 5, count: 1, period: 1000h}"])
        .routes(&[
            "{match: {path: \"/{id}\"}, upstream: app, limits: [{limit: L, cost: {request_header: x-cost}}]}",
        ])
        .key(&crate::redis::store(&redis.url()))
        .start();
    let costing = |path: &str, cost: &str| get(path).with("x-cost", cost);
    let lines = |path: &str| {
        let mut lines = gateway.access(path);
        lines.retain(|line| line["status"] == 429);
        lines
    };
    let denied = |path: &str, cost: &str| {
        let earlier = lines(path).len();
        let response = gateway.send(&costing(path, cost));
        assert_eq!(response.status, 429);
        assert!(response.field("retry-after").is_some());
        assert!(response.field("ratelimit-policy").is_some());
        let state = response.field("ratelimit").map(str::to_owned);
        let left = state.map(|state| state.split(';').nth(1).unwrap().to_owned());
        let line = eventually("the line of a denial", || lines(path).get(earlier).cloned());
        (left, line["decided_by"].clone())
    };
    // A denial is remembered for a second, which a busy machine may let pass between the two.
    eventually("a remembered denial of several units", || {
        gateway.admin(&request("DELETE", "/v1/buckets/L/many").with("host", "localhost"));
        assert_eq!(gateway.send(&costing("/many", "3")).status, 200);
        let (first, second) = (denied("/many", "3"), denied("/many", "3"));
        assert_eq!(first.0.as_deref(), Some("r=2"));
        (second.1 == "remembered").then(|| assert_eq!(second.0, None))
    });
    assert_eq!(gateway.send(&costing("/one", "5")).status, 200);
    for _ in 0..3 {
        assert_eq!(denied("/one", "1").0.as_deref(), Some("r=0"));
    }
}
