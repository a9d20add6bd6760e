//! What browsers need: preflights that pass, answers that pages of other origins can read, and
//! pages for people.

use crate::support::*;

const PAGE: &str = "https://app.example.com";
const EXPOSED: &str = "Retry-After, RateLimit-Policy, RateLimit";
const HTML: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

fn cors(upstream: &Upstream, more: &str) -> Setup {
    let route = format!(
        "{{name: api, match: {{path: /api, methods: [POST]}}, upstream: app, limits: \
         [{{limit: PerAccount, missing: deny}}, Calls], cors: {{origins: [\"{PAGE}\"]{more}}}}}"
    );
    Setup::before(upstream)
        .key("account: [header: x-account]")
        .limits(&[
            "PerAccount: {per: account, burst: 50, count: 1, period: 1000h}",
            "Calls: {per: address, burst: 1, count: 1, period: 1000h}",
        ])
        .routes(&[
            &route,
            "{name: rest, match: {}, upstream: app, limits: [Calls]}",
        ])
}

fn preflight() -> Request {
    request("OPTIONS", "/api")
        .with("origin", PAGE)
        .with("access-control-request-method", "POST")
        .with("access-control-request-headers", "x-account")
}

fn call(origin: &str) -> Request {
    post("/api", "{}")
        .with("origin", origin)
        .with("x-account", "acme")
}

#[test]
fn a_preflight_is_neither_denied_nor_counted_and_takes_the_route_that_it_asks_about() {
    let upstream = Upstream::start();
    let gateway = cors(&upstream, "").start();
    assert_eq!(gateway.statuses(&preflight(), 4), [200; 4]);
    // The one call that the limit holds is still there.
    assert_eq!(gateway.statuses(&call(PAGE), 2), [200, 429]);
    assert_eq!(gateway.send(&preflight()).status, 200);
    let line = eventually("a preflight in the log", || {
        let mut lines = gateway.access("/api").into_iter();
        lines.find(|line| line["method"] == "OPTIONS")
    });
    assert_eq!(
        (&line["route"], &line["decision"]),
        (&"api".into(), &"unlimited".into())
    );
}

/// Whoever imitates a preflight has a way past the limits where the operator said so, and nowhere
/// else.
#[test]
fn what_resembles_a_preflight_is_counted_like_any_request() {
    let upstream = Upstream::start();
    let gateway = cors(&upstream, "").start();
    let foreign = request("OPTIONS", "/api")
        .with("origin", "https://evil.example")
        .with("access-control-request-method", "POST");
    for other in [
        // Not on the route with `cors`.
        request("OPTIONS", "/other")
            .with("origin", PAGE)
            .with("access-control-request-method", "POST"),
        request("OPTIONS", "/api").with("origin", PAGE),
    ] {
        gateway.statuses(&other, 1);
        assert_eq!(gateway.statuses(&other, 1), [429]);
    }
    assert_eq!(gateway.send(&foreign).status, 403);
    let with_body = post("/api", "a body")
        .with("origin", PAGE)
        .with("access-control-request-method", "POST");
    let text = String::from_utf8(with_body.bytes()).unwrap();
    let text = text.replacen("POST", "OPTIONS", 1);
    let mut client = gateway.client();
    client.write(text.as_bytes()).unwrap();
    assert_eq!(client.read("OPTIONS").unwrap().status, 403);
}

#[test]
fn preflights_are_counted_where_the_operator_wants_it_and_lack_no_account() {
    let upstream = Upstream::start();
    let gateway = cors(&upstream, ", count_preflights: true").start();
    assert_eq!(gateway.statuses(&preflight(), 2), [200, 429]);
}

#[test]
fn a_page_of_an_allowed_origin_can_read_a_denial_and_no_other_page_can() {
    let upstream = Upstream::start();
    let gateway = cors(&upstream, ", credentials: true").start();
    assert_eq!(
        gateway
            .send(&call(PAGE))
            .field("access-control-allow-origin"),
        None
    );
    let denied = gateway.send(&call(PAGE));
    for (name, value) in [
        ("access-control-allow-origin", PAGE),
        ("access-control-allow-credentials", "true"),
        ("access-control-expose-headers", EXPOSED),
    ] {
        assert_eq!(denied.field(name), Some(value), "{name}");
    }
    assert_eq!(denied.lines("vary"), ["origin", "accept"]);
    assert_eq!(denied.status, 429);
    assert!(denied.field("retry-after").is_some() && denied.field("ratelimit").is_some());
    let foreign = gateway.send(&call("https://evil.example"));
    assert_eq!(foreign.status, 429);
    assert_eq!(foreign.field("access-control-allow-origin"), None);
    assert_eq!(foreign.lines("vary"), ["origin", "accept"]);
}

#[test]
fn a_page_that_the_app_lets_read_its_answer_can_read_the_limits_too() {
    let upstream = Upstream::answering(|_| {
        let mut answer = upstream::text("real");
        let name = "access-control-allow-origin";
        answer.headers_mut().insert(name, PAGE.parse().unwrap());
        answer
    });
    let gateway = cors(&upstream, "").start();
    let answer = gateway.send(&call(PAGE));
    assert_eq!(answer.lines("access-control-allow-origin"), [PAGE]);
    assert_eq!(answer.field("access-control-expose-headers"), Some(EXPOSED));
}

#[test]
fn people_get_a_page_and_programs_a_problem_and_the_apps_own_errors_are_left_alone() {
    let upstream = Upstream::answering(|_| {
        let mut answer = upstream::text("the app's own");
        *answer.status_mut() = http::StatusCode::BAD_GATEWAY;
        answer
    });
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 2, count: 1, period: 1h}"])
        .limited_by("L")
        .key("errors: {4xx: client.html, 429: slow.html, 502: sorry.html}")
        .file("slow.html", "<h1>Slow down</h1>")
        .file("client.html", "<h1>Your mistake</h1>")
        .file("sorry.html", "<h1>Sorry</h1>")
        .start();
    let person = |path: &str| get(path).with("accept", HTML);
    assert_eq!(gateway.send(&person("/")).text(), "the app's own");
    assert_eq!(gateway.send(&person("/")).status, 502);
    let page = gateway.send(&person("/"));
    assert_eq!((page.status, page.text()), (429, "<h1>Slow down</h1>"));
    assert_eq!(page.field("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(page.field("vary"), Some("accept"));
    assert!(page.field("retry-after").is_some());
    let refused = gateway.send(&person("/a/../b"));
    assert_eq!(
        (refused.status, refused.text()),
        (400, "<h1>Your mistake</h1>")
    );
    for accept in [
        "*/*",
        "application/json",
        "text/html;q=0.1, application/problem+json",
    ] {
        let problem = gateway.send(&get("/").with("accept", accept));
        let content_type = problem.field("content-type");
        assert_eq!(content_type, Some("application/problem+json"), "{accept}");
        // No cache keeps a 429 of its own accord.
        assert_eq!(problem.field("vary"), None, "{accept}");
    }
}

/// People read JSON where a body was configured for programs.
#[test]
fn a_body_in_json_is_for_programs_and_people_get_a_page_in_its_place() {
    let upstream = Upstream::start();
    let json = "{headers: {content-type: application/json, cache-control: max-age=1}, \
                body: '{\"error\":{\"message\":\"slow down\"}}'}";
    let text = "{headers: {content-type: text/plain}, body: slow down}";
    for (rejection, for_people, vary) in [
        (json, "<h1>Slow down</h1>", Some("accept")),
        (text, "slow down", None),
    ] {
        let route = format!(
            "{{name: all, match: {{}}, upstream: app, limits: [L], \
             on_denied: {{reject: {rejection}}}}}"
        );
        let gateway = Setup::before(&upstream)
            .limits(&["L: {per: address, burst: 1, count: 1, period: 1h}"])
            .key("errors: {429: slow.html}")
            .file("slow.html", "<h1>Slow down</h1>")
            .routes(&[&route])
            .start();
        gateway.send(&get("/"));
        let page = gateway.send(&get("/").with("accept", HTML));
        assert_eq!((page.status, page.text()), (429, for_people));
        assert_eq!(page.field("vary"), vary);
        for accept in [
            "*/*",
            "application/json",
            "application/json, text/html;q=0.9",
        ] {
            let told = gateway.send(&get("/").with("accept", accept));
            assert!(told.text().contains("slow down"), "{accept}");
            assert_eq!(told.field("vary"), vary);
        }
    }
}

#[test]
fn without_pages_of_ones_own_people_are_told_when_to_come_back() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1h}"])
        .limited_by("L")
        .start();
    let person = get("/").with("accept", HTML);
    gateway.send(&person);
    let page = gateway.send(&person);
    let text = page.text();
    assert!(text.contains("<h1>429 Too Many Requests</h1>"), "{text}");
    let seconds = page.field("retry-after").unwrap();
    assert!(
        text.contains(&format!("try again in {seconds} seconds")),
        "{text}"
    );
}

/// A decoy that became a page for people, or told an origin what it may read, would be no decoy.
#[test]
fn a_decoy_is_the_same_for_browsers() {
    let upstream = Upstream::start();
    let route = format!(
        "{{name: all, match: {{}}, upstream: app, limits: [L], on_denied: {{shadow: sent}}, \
         cors: {{origins: [\"{PAGE}\"]}}}}"
    );
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 2, count: 1, period: 1000h}"])
        .key("decoys: {sent: {status: 429, body: real}}")
        .key("errors: {4xx: client.html}")
        .file("client.html", "<h1>Your mistake</h1>")
        .routes(&[&route])
        .start();
    let plain = get("/");
    let browser = get("/").with("accept", HTML).with("origin", PAGE);
    assert_eq!(gateway.statuses(&plain, 2), [200, 200]);
    for request in [plain, browser] {
        let decoy = gateway.send(&request);
        assert_eq!((decoy.status, decoy.text()), (429, "real"));
        for telling in ["access-control-allow-origin", "vary", "retry-after"] {
            assert_eq!(decoy.field(telling), None, "{telling}");
        }
    }
}
