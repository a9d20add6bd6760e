//! CORS for a whole route: Weir answers preflights and says which pages may read responses, or
//! mirrors what the app says.

use std::time::Instant;

use crate::support::browser::Browser;
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

/// An app with CORS of its own, for this origin alone, which answers preflights.
fn app_for(origin: String) -> Upstream {
    Upstream::answering(move |request: &upstream::Received| {
        let mut answer = upstream::text("real");
        let asks = request.lines("origin") == [origin.as_str()];
        if request.method == "OPTIONS" {
            *answer.status_mut() = http::StatusCode::NO_CONTENT;
            *answer.body_mut() = upstream::full("");
        }
        if asks {
            let headers = answer.headers_mut();
            for (name, value) in [
                ("access-control-allow-origin", origin.as_str()),
                ("access-control-allow-credentials", "true"),
                ("access-control-allow-methods", "GET, PUT"),
                ("access-control-allow-headers", "x-account"),
                ("vary", "origin"),
            ] {
                headers.insert(name, value.parse().unwrap());
            }
        }
        answer
    })
}

fn mirroring(upstream: &Upstream, cors: &str) -> Setup {
    Setup::before(upstream)
        .limits(&["Calls: {per: address, burst: 2, count: 1, period: 1000h}"])
        .key("defaults: {cors: mirror}")
        .key("block: {addresses: [192.0.2.2]}")
        .key("client_address: {trusted_proxies: [127.0.0.1]}")
        .routes(&[&format!(
            "{{name: api, match: {{path: /api}}, upstream: app, limits: [Calls]{cors}}}"
        )])
}

const OTHER: &str = "https://evil.example";

#[test]
fn a_page_that_the_app_allows_can_read_denials_and_no_other_page_can() {
    let upstream = app_for(PAGE.to_owned());
    let gateway = mirroring(&upstream, "").start();
    let call = |address: &str, origin: &str| {
        let request = get("/api").with("x-forwarded-for", address);
        gateway.send(&request.with("origin", origin))
    };
    let allowed = call("192.0.2.1", PAGE);
    assert_eq!(allowed.status, 200);
    let shown = "Retry-After, RateLimit-Policy, RateLimit";
    assert_eq!(allowed.lines("access-control-expose-headers"), [shown]);
    assert_eq!(call("192.0.2.1", OTHER).status, 200);
    let denied = call("192.0.2.1", PAGE);
    assert_eq!(denied.status, 429);
    for (name, value) in [
        ("access-control-allow-origin", PAGE),
        ("access-control-allow-credentials", "true"),
        ("access-control-expose-headers", shown),
    ] {
        assert_eq!(denied.lines(name), [value], "{name}");
    }
    assert_eq!(denied.lines("vary").first(), Some(&"origin"));
    assert!(denied.field("retry-after").is_some());
    for origin in [OTHER, "*", "null", "https://app.example.com.evil.example"] {
        let foreign = call("192.0.2.1", origin);
        assert_eq!(foreign.status, 429);
        assert_eq!(
            foreign.field("access-control-allow-origin"),
            None,
            "{origin}"
        );
        assert_eq!(foreign.field("access-control-allow-credentials"), None);
        assert_eq!(foreign.lines("vary").first(), Some(&"origin"), "{origin}");
    }
    // Another client, who is blocked, and then an app that is gone.
    let blocked = call("192.0.2.2", PAGE);
    assert_eq!(blocked.status, 403);
    assert_eq!(blocked.lines("access-control-allow-origin"), [PAGE]);
    let _ = upstream.die();
    let unreachable = call("192.0.2.3", PAGE);
    assert_eq!(unreachable.status, 502);
    assert_eq!(unreachable.lines("access-control-allow-origin"), [PAGE]);
}

#[test]
fn preflights_of_pages_that_the_app_allows_take_nothing_and_a_flood_of_them_is_counted() {
    let upstream = app_for(PAGE.to_owned());
    let gateway = mirroring(&upstream, "").start();
    // The first one is a request like any other, as nothing is known of the app.
    assert_eq!(gateway.send(&preflight(PAGE)).status, 204);
    assert_eq!(gateway.statuses(&preflight(PAGE), 3), [204; 3]);
    let call = get("/api").with("origin", PAGE);
    assert_eq!(gateway.statuses(&call, 2), [200, 429]);
    assert_eq!(gateway.send(&preflight(PAGE)).status, 204);
    // Nobody else's pass.
    assert_eq!(gateway.send(&preflight(OTHER)).status, 429);
    let started = Instant::now();
    let flood = gateway.statuses(&preflight(PAGE), 2_000);
    let most = 201 + 20 * started.elapsed().as_millis() / 1000;
    let passed = flood.iter().filter(|status| **status == 204).count();
    assert!(
        passed >= 150 && passed as u128 <= most,
        "{passed} of {most}"
    );
    assert_eq!(flood.iter().max(), Some(&429));
    // A page whose first preflight comes when its limit is used up.
    let gateway = mirroring(&upstream, "").start();
    assert_eq!(gateway.statuses(&call, 3), [200, 200, 429]);
    assert_eq!(gateway.send(&preflight(PAGE)).status, 204);
    let counted = mirroring(
        &upstream,
        ", cors: {origins: mirror, count_preflights: true}",
    );
    let gateway = counted.start();
    assert_eq!(gateway.statuses(&preflight(PAGE), 3), [204, 204, 429]);
}

/// A page saw `TypeError: Failed to fetch` in place of a 429.
#[test]
fn a_script_of_another_origin_reads_a_denial_where_the_app_lets_it_read_responses() {
    let pages = Upstream::start();
    let origin = format!("http://{}", pages.address());
    let upstream = app_for(origin.clone());
    let seen = |cors: &str| {
        let gateway = mirroring(&upstream, cors).start();
        let browser = Browser::start();
        browser.open(&origin);
        let seen = browser.run(&format!(
            "const ask = {{method: 'PUT', credentials: 'include', headers: {{'x-account': 'a'}}}};
            const has = (response, name) => response.headers.has(name) ? ` ${{name}}` : '';
            return (async () => {{
                const seen = [];
                for (let n = 0; n < 3; n++) {{
                    await fetch('http://{}/api', ask).then(
                        (got) => seen.push(got.status + has(got, 'retry-after') + has(got, 'ratelimit')),
                        (error) => seen.push(error.name));
                }}
                return seen.join();
            }})()",
            gateway.address()
        ));
        (seen.as_str().unwrap().to_owned(), unreadable(&gateway))
    };
    let (read, finding) = seen("");
    assert_eq!(
        read,
        "200 ratelimit,429 retry-after ratelimit,429 retry-after ratelimit"
    );
    assert_eq!(finding, None);
    let (read, finding) = seen(", cors: {origins: []}");
    assert_eq!(read, "200,TypeError,TypeError");
    let finding = finding.unwrap();
    assert!(
        finding.starts_with("Calls denied requests of web pages"),
        "{finding}"
    );
}

/// What the gateway says of denials that pages cannot read.
fn unreadable(gateway: &Gateway) -> Option<String> {
    let response = gateway.admin(&get("/v1/findings").with("host", "localhost"));
    let found = response.json();
    let mut found = found["gateway"].as_array().unwrap().iter();
    let found = found.find(|found| found["kind"] == "unreadable")?;
    Some(found["text"].as_str().unwrap().to_owned())
}
