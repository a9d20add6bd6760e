//! CORS for a whole route: Weir answers preflights and says which pages may read responses.

use crate::support::*;

const PAGE: &str = "https://app.example.com";
const LISTED: &str = "Retry-After, RateLimit-Policy, RateLimit, x-total";

fn setup(upstream: &Upstream, more: &str) -> Setup {
    let cors = format!(
        "cors: {{origins: [\"{PAGE}\", \"https://*.preview.example.com\"], methods: [GET, PUT], \
         headers: [authorization, x-account], expose: x-total, max_age: 10m{more}}}"
    );
    Setup::before(upstream)
        .limits(&["Calls: {per: address, burst: 1, count: 1, period: 1000h}"])
        .routes(&[
            &format!("{{name: api, match: {{path: /api}}, upstream: app, limits: [Calls], {cors}}}"),
            &format!("{{name: fixed, match: {{path: /fixed}}, response: {{body: x}}, limits: [], {cors}}}"),
            &format!("{{name: moved, match: {{path: /moved}}, redirect: /fixed, limits: [], {cors}}}"),
        ])
}

fn preflight(origin: &str) -> Request {
    request("OPTIONS", "/api")
        .with("origin", origin)
        .with("access-control-request-method", "PUT")
        .with("access-control-request-headers", "x-account")
}

#[test]
fn preflights_are_answered_without_the_app_and_not_counted() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream, "").start();
    for origin in [PAGE, "https://x.preview.example.com"] {
        let answer = gateway.send(&preflight(origin));
        assert_eq!(answer.status, 204);
        for (name, value) in [
            ("access-control-allow-origin", origin),
            ("access-control-allow-methods", "GET, PUT"),
            ("access-control-allow-headers", "authorization, x-account"),
            ("access-control-max-age", "600"),
            ("vary", "origin"),
        ] {
            assert_eq!(answer.lines(name), [value], "{name}");
        }
        assert_eq!(answer.field("access-control-allow-credentials"), None);
        assert_eq!(answer.field("content-length"), None);
    }
    assert_eq!(upstream.count(), 0);
    // The one call that the limit holds is still there.
    assert_eq!(gateway.statuses(&get("/api"), 2), [200, 429]);
}

#[test]
fn preflights_of_other_pages_are_counted_and_refused() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream, "").start();
    let foreign = preflight("https://preview.example.com.evil.example");
    let refused = gateway.send(&foreign);
    assert_eq!(refused.status, 403);
    for name in [
        "access-control-allow-origin",
        "access-control-allow-methods",
    ] {
        assert_eq!(refused.field(name), None, "{name}");
    }
    assert_eq!(gateway.send(&foreign).status, 429);
    assert_eq!(upstream.count(), 0);
    let gateway = setup(&upstream, ", count_preflights: true").start();
    assert_eq!(gateway.statuses(&preflight(PAGE), 2), [204, 429]);
}

#[test]
fn allowed_pages_can_read_every_response_and_other_pages_none() {
    let app = |_: &upstream::Received| {
        let mut answer = upstream::text("real");
        let headers = answer.headers_mut();
        headers.insert("access-control-allow-origin", "*".parse().unwrap());
        headers.insert(
            "access-control-expose-headers",
            "x-internal".parse().unwrap(),
        );
        answer
    };
    let upstream = Upstream::answering(app);
    let gateway = setup(&upstream, ", credentials: true").start();
    for (target, status) in [
        ("/api", 200),
        ("/api", 429),
        ("/fixed", 200),
        ("/moved", 302),
    ] {
        let response = gateway.send(&get(target).with("origin", PAGE));
        assert_eq!(response.status, status, "{target}");
        for (name, value) in [
            ("access-control-allow-origin", PAGE),
            ("access-control-allow-credentials", "true"),
            ("access-control-expose-headers", LISTED),
        ] {
            assert_eq!(response.lines(name), [value], "{target} {name}");
        }
        assert_eq!(response.lines("vary").first(), Some(&"origin"), "{target}");
        let foreign = gateway.send(&get(target).with("origin", "https://evil.example"));
        assert_eq!(
            foreign.field("access-control-allow-origin"),
            None,
            "{target}"
        );
        assert_eq!(foreign.lines("vary").first(), Some(&"origin"), "{target}");
    }
    // Nobody's page asks, and a cache may keep the response for those that do.
    let plain = gateway.send(&get("/fixed"));
    assert_eq!(plain.lines("vary"), ["origin"]);
    assert_eq!(plain.field("access-control-allow-origin"), None);
}

/// What only the app's responses had would tell a decoy, and the page could not read it.
#[test]
fn a_page_can_read_a_decoy_as_it_reads_the_app_s_responses() {
    let upstream = Upstream::start();
    let route = format!(
        "{{name: all, match: {{}}, upstream: app, limits: [L], on_denied: {{shadow: sent}}, \
         cors: {{origins: [\"{PAGE}\"], methods: [GET]}}}}"
    );
    let gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 2, count: 1, period: 1000h}"])
        .key("decoys: {sent: {body: decoy}}")
        .routes(&[&route])
        .start();
    let call = get("/").with("origin", PAGE);
    let responses = [0, 1, 2].map(|_| gateway.send(&call));
    let texts: Vec<_> = responses.iter().map(Response::text).collect();
    assert_eq!(texts, ["real", "real", "decoy"]);
    let cors = |response: &Response| {
        let mut lines = response.fields.clone();
        lines.retain(|(name, _)| name.starts_with("access-control-") || name == "vary");
        lines
    };
    assert_eq!(cors(&responses[2]), cors(&responses[0]));
    assert_eq!(responses[2].lines("access-control-allow-origin"), [PAGE]);
}
