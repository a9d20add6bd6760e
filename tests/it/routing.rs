//! What a request must be like to take a route, and what the route makes of it: another path,
//! other headers, or a response without an upstream.

use crate::support::*;

const LIMIT: &str = "L: {per: address, burst: 2, count: 1, period: 1000h}";

fn setup(upstream: &Upstream, routes: &[&str]) -> Setup {
    let all = "{name: all, match: {}, upstream: app, limits: []}";
    let routes: Vec<&str> = routes.iter().copied().chain([all]).collect();
    Setup::before(upstream).limits(&[LIMIT]).routes(&routes)
}

/// What the upstream was asked for.
fn forwarded(gateway: &Gateway, upstream: &Upstream, target: &str) -> String {
    assert_eq!(gateway.send(&get(target)).status, 200, "{target}");
    upstream.last().target
}

#[test]
fn a_prefix_is_taken_away_however_it_is_spelled_and_the_rest_stays() {
    let upstream = Upstream::start();
    let strip = "{name: strip, match: {path: \"/api/*\"}, upstream: app, limits: [], \
                 rewrite: {strip_prefix: /api}}";
    let replace = "{name: replace, match: {path: \"/old/v1/*\"}, upstream: app, limits: [], \
                   rewrite: {strip_prefix: /old/v1, add_prefix: /new}}";
    let gateway = setup(&upstream, &[strip, replace]).start();
    for (sent, expected) in [
        ("/api", "/"),
        ("/api?q=/api", "/?q=/api"),
        ("/api/", "/"),
        ("/API/x%2Fy/?q=%2e", "/x%2Fy/?q=%2e"),
        ("/%61pi;v=1/x", "/x"),
        ("/api//evil.example/x", "/evil.example/x"),
        ("//api/./x", "/x"),
        ("/api%2Fx", "/x"),
        ("/old/v1", "/new"),
        ("/old/v1/", "/new/"),
        ("/old//v1//x", "/new/x"),
        ("/apix", "/apix"),
        ("/other//x", "/other//x"),
    ] {
        assert_eq!(forwarded(&gateway, &upstream, sent), expected, "{sent}");
    }
    let claim = get("/api/x").with("x-forwarded-prefix", "/evil");
    gateway.send(&claim);
    assert_eq!(upstream.last().lines("x-forwarded-prefix"), ["/api"]);
    for refused in [
        "/api/../x",
        "/api/%2e%2e/x",
        "/api%2f..%2fx",
        "/api/x%0d%0a",
    ] {
        assert_eq!(gateway.send(&get(refused)).status, 400, "{refused}");
    }
}

#[test]
fn http2_and_absolute_targets_are_rewritten_alike() {
    let upstream = Upstream::start();
    let strip = "{name: strip, match: {path: \"/api/*\"}, upstream: app, limits: [], \
                 rewrite: {strip_prefix: /api}, request_headers: {set: {x-host: \"{{ host }}\", x-uri: \"{{ uri }}\"}}}";
    let moved = "{name: moved, match: {path: /moved}, redirect: \"{{ path }}/x\", limits: []}";
    let gateway = setup(&upstream, &[strip, moved]).start();
    forwarded(&gateway, &upstream, "http://other.example.com/api/x?q");
    assert_eq!(upstream.last().target, "/x?q");
    assert_eq!(upstream.last().lines("x-host"), ["other.example.com"]);
    assert_eq!(upstream.last().lines("host"), ["other.example.com"]);
    assert_eq!(upstream.last().lines("x-uri"), ["/api/x?q"]);
    http2::run(async {
        let mut sender = http2::connect(gateway.address()).await;
        let answer = sender.send_request(http2::get("/api//x?q")).await.unwrap();
        assert_eq!(http2::read(answer).await.head.status, 200);
        let answer = sender.send_request(http2::get("/moved")).await.unwrap();
        let head = http2::read(answer).await.head;
        assert_eq!(
            (head.status.as_u16(), &head.headers["location"]),
            (302, &"/moved/x".parse().unwrap())
        );
    });
    assert_eq!(upstream.last().target, "/x?q");
    assert_eq!(upstream.last().lines("x-host"), ["app.example.com"]);
}

#[test]
fn expressions_queries_and_headers_choose_a_route() {
    let upstream = Upstream::start();
    let marked = |name: &str, matches: &str| {
        format!(
            "{{name: {name}, match: {{{matches}}}, upstream: app, limits: [], \
             request_headers: {{set: {{x-route: \"{{{{ route }}}} {{{{ path.id }}}}\"}}}}}}"
        )
    };
    let by_path = "{name: number, match: {path: \"/users/*\", path_regex: \"/users/(?<id>[0-9]+)\"}, \
                   upstream: app, limits: [], \
                   request_headers: {set: {x-route: \"number {{ path.id }}\"}}}";
    let routes = [
        by_path.to_owned(),
        marked(
            "beta",
            "path: \"/users/{id}\", query: {beta: {present: true}}",
        ),
        marked(
            "old",
            "path: \"/users/{id}\", headers: {user-agent: {regex: \"curl/[67][.].*\"}}",
        ),
        marked("two", "path: \"/users/{id}\", query: {page: 2}"),
    ];
    let routes: Vec<&str> = routes.iter().map(String::as_str).collect();
    let gateway = setup(&upstream, &routes).start();
    let taken = |request: &Request| {
        assert_eq!(gateway.send(request).status, 200);
        let lines = upstream.last().lines("x-route").join(",");
        lines.split(' ').next().unwrap().to_owned()
    };
    assert_eq!(taken(&get("/users/x?beta")), "beta");
    assert_eq!(taken(&get("/users/x?%70age=%32")), "two");
    assert_eq!(taken(&get("/users/x?page=1&page=2")), "two");
    assert_eq!(taken(&get("/users/x?page=22")), "");
    assert_eq!(
        taken(&get("/users/x").with("user-agent", "curl/7.88")),
        "old"
    );
    assert_eq!(taken(&get("/users/x").with("user-agent", "xcurl/7.88")), "");
    assert_eq!(taken(&get("/USERS//17/")), "number");
    assert_eq!(upstream.last().lines("x-route"), ["number 17"]);
    // A pattern goes before an open path with an expression.
    assert_eq!(taken(&get("/users/17?page=2")), "two");
}

/// A limit on a route with an expression must hold for what the upstream may take for it.
#[test]
fn no_spelling_evades_the_limit_of_an_expression() {
    let upstream = Upstream::start();
    let route =
        "{name: admin, match: {path_regex: \"/(admin|intern)/.*\"}, upstream: app, limits: [L]}";
    let gateway = setup(&upstream, &[route]).start();
    assert_eq!(gateway.statuses(&get("/admin/x"), 2), [200, 200]);
    for spelling in [
        "/admin/x",
        "/ADMIN//x",
        "/intern/%78",
        "/admin%2Fx",
        "/admin%5cx",
        "/./admin;a/x",
    ] {
        assert_eq!(gateway.send(&get(spelling)).status, 429, "{spelling}");
    }
    assert_eq!(gateway.send(&get("/admin")).status, 200);
}

#[test]
fn headers_of_requests_are_set_added_and_removed_and_clients_cannot_fill_in_for_them() {
    let upstream = Upstream::start();
    let route = "{name: api, match: {path: \"/teams/{team}\"}, upstream: app, limits: [], request_headers: {\
                 set: {x-client: \"{{ client_address }}\", x-account: \"{{ account }}\", x-team: \"<{{ path.team }}>\", \
                 x-from: \"{{ scheme }} {{ host }} {{ method }} {{ path }} {{ query }}\"}, \
                 add: {x-tag: weir}, remove: [cookie, x-secret]}}";
    let gateway = setup(&upstream, &[route])
        .key("account: [header: x-api-key]")
        .start();
    let request = get("/teams/Caf%C3%A9%20x?q=1")
        .with("host", "App.Example.com:8080")
        .with("x-account", "root")
        .with("x-client", "1.1.1.1")
        .with("cookie", "a=b")
        .with("x-secret", "1")
        .with("x-secret", "2")
        .with("x-tag", "client");
    assert_eq!(gateway.send(&request).status, 200);
    let received = upstream.last();
    assert_eq!(received.lines("x-client"), ["127.0.0.1"]);
    assert!(received.lines("x-account").is_empty());
    assert_eq!(
        received.headers["x-team"].as_bytes(),
        "<Caf\u{e9} x>".as_bytes()
    );
    let from = "http app.example.com GET /teams/Caf%C3%A9%20x q=1";
    assert_eq!(received.lines("x-from"), [from]);
    assert_eq!(received.lines("x-tag"), ["client", "weir"]);
    assert!(received.lines("cookie").is_empty() && received.lines("x-secret").is_empty());
    let known = get("/teams/x")
        .with("x-api-key", "k")
        .with("x-account", "root");
    gateway.send(&known);
    let account = upstream.last().lines("x-account").join(",");
    assert!(account.len() == 32 && account != "root", "{account}");
}

/// Behind CGI, WSGI and their like, an app cannot tell `x_account` from `x-account`.
#[test]
fn a_client_must_not_fill_in_for_a_header_by_underscores() {
    let upstream = Upstream::start();
    let route = "{name: api, match: {path: /api}, upstream: app, limits: [], request_headers: {\
                 set: {x-account: \"{{ account }}\"}, add: {x-tag: weir}, remove: [x-secret]}}";
    let by_header = "{name: beta, match: {path: /beta, headers: {x-beta: '1'}}, upstream: app, \
                     limits: []}";
    let gateway = setup(&upstream, &[route, by_header])
        .key("account: [header: x-api-key]")
        .start();
    let claims = [
        "x_account",
        "X_Secret",
        "x_api-key",
        "x_beta",
        "x_tag",
        "x_other",
    ];
    let passed = |target| {
        let request = claims
            .iter()
            .fold(get(target), |request, name| request.with(name, "1"));
        assert_eq!(gateway.send(&request).status, 200);
        let received = upstream.last();
        let mut names = claims.map(str::to_ascii_lowercase).to_vec();
        names.retain(|name| !received.lines(name).is_empty());
        names
    };
    assert_eq!(passed("/api"), ["x_tag", "x_other"]);
    // What accounts are named and routes are chosen by goes on every route.
    let all_but_these = ["x_account", "x_secret", "x_tag", "x_other"];
    assert_eq!(passed("/"), all_but_these);
}

/// A header for the app's responses, such as how long they may be cached, would be wrong on a 429.
#[test]
fn headers_of_responses_change_what_the_app_sends_and_denials_only_if_asked() {
    let app = |_: &upstream::Received| {
        let mut answer = upstream::text("real");
        for (name, value) in [
            ("server", "app/1.0"),
            ("x-frame-options", "ALLOW"),
            ("link", "a"),
        ] {
            answer.headers_mut().insert(name, value.parse().unwrap());
        }
        answer
    };
    let upstream = Upstream::answering(app);
    let edits = |more: &str| {
        format!(
            "{{name: a, match: {{path: /a}}, upstream: app, limits: [L], response_headers: {{\
             set: {{x-frame-options: DENY, cache-control: max-age=60}}, \
             add: {{link: \"{{{{ uri }}}}\"}}, remove: [server]{more}}}}}"
        )
    };
    let gateway = setup(&upstream, &[&edits("")]).start();
    let response = gateway.send(&get("/a?b"));
    assert_eq!(response.field("server"), None);
    assert_eq!(response.lines("x-frame-options"), ["DENY"]);
    assert_eq!(response.lines("link"), ["a", "/a?b"]);
    assert_eq!(response.field("cache-control"), Some("max-age=60"));
    assert!(response.field("ratelimit").is_some());
    assert_eq!(gateway.send(&get("/a")).status, 200);
    let denied = gateway.send(&get("/a"));
    assert_eq!((denied.status, denied.field("cache-control")), (429, None));
    assert_eq!(denied.field("x-frame-options"), None);
    let gateway = setup(&upstream, &[&edits(", always: true")]).start();
    gateway.statuses(&get("/a"), 2);
    let denied = gateway.send(&get("/a"));
    assert_eq!(
        (denied.status, denied.field("x-frame-options")),
        (429, Some("DENY"))
    );
}

/// What the app's responses have and a decoy lacks would tell it.
#[test]
fn a_decoy_gets_the_headers_that_the_app_s_responses_get() {
    let upstream = Upstream::start();
    let route = "{name: a, match: {path: /a}, upstream: app, limits: [L], on_denied: {shadow: sent}, \
                 response_headers: {set: {x-frame-options: DENY}, remove: [server]}}";
    let gateway = setup(&upstream, &[route])
        .key("decoys: {sent: {body: decoy}}")
        .start();
    let names = |response: &Response| {
        let mut names = response.names();
        names.sort_unstable();
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
    };
    let real = gateway.send(&get("/a"));
    assert_eq!(gateway.send(&get("/a")).text(), "real");
    let decoy = gateway.send(&get("/a"));
    assert_eq!(
        (decoy.text(), decoy.field("x-frame-options")),
        ("decoy", Some("DENY"))
    );
    assert_eq!(names(&decoy), names(&real));
}

#[test]
fn redirects_tell_where_to_go_and_count() {
    let upstream = Upstream::start();
    let gateway = setup(
        &upstream,
        &[
            "{name: moved, match: {path: \"/old/*\"}, redirect: {to: \"https://{{ host }}{{ uri }}\", status: 301}, \
             rewrite: {strip_prefix: /old, add_prefix: /new}, limits: [L]}",
            "{name: page, match: {path: /docs}, redirect: \"{{ path }}.html\", limits: []}",
            "{name: search, match: {path: \"/find/{words}\"}, \
             redirect: {to: \"/search?q={{ path.words }}&{{ query }}\", status: 303}, limits: []}",
        ],
    )
    .start();
    let moved = gateway.send(&get("/old//evil.example/?q=1"));
    assert_eq!(moved.status, 301);
    assert_eq!(
        moved.field("location"),
        Some("https://app.example.com/new/evil.example/?q=1")
    );
    assert_eq!(
        (moved.field("content-length"), moved.text()),
        (Some("0"), "")
    );
    assert!(moved.field("ratelimit").is_some());
    let posted = gateway.send(&post("/old", "a body"));
    assert_eq!(
        (posted.status, posted.field("location")),
        (301, Some("https://app.example.com/new"))
    );
    assert_eq!(gateway.send(&get("/old")).status, 429);
    let location = |target: &str| {
        let response = gateway.send(&get(target));
        (
            response.status,
            response.field("location").map(str::to_owned),
        )
    };
    assert_eq!(location("/docs"), (302, Some("/docs.html".to_owned())));
    // A browser takes what follows two slashes for a host.
    assert_eq!(location("//docs"), (302, Some("/docs.html".to_owned())));
    let found = location("/find/a%26b%3D%20%E2%82%AC%3F?x=1");
    assert_eq!(
        found,
        (
            303,
            Some("/search?q=a%26b%3D%20%E2%82%AC%3F&x=1".to_owned())
        )
    );
    assert_eq!(upstream.count(), 0);
}

#[test]
fn fixed_responses_count_and_have_no_body_for_head() {
    let upstream = Upstream::start();
    let gateway = setup(
        &upstream,
        &[
            "{name: robots, match: {path: /robots.txt}, limits: [L], \
             response: {body: \"User-agent: *\", headers: {cache-control: max-age=60}}}",
            "{name: gone, match: {path: /gone}, limits: [], response: {status: 410}}",
        ],
    )
    .start();
    let robots = gateway.send(&get("/robots.txt"));
    assert_eq!((robots.status, robots.text()), (200, "User-agent: *"));
    assert_eq!(
        robots.field("content-type"),
        Some("text/plain; charset=utf-8")
    );
    assert_eq!(robots.field("cache-control"), Some("max-age=60"));
    assert!(robots.field("ratelimit").is_some());
    let mut client = gateway.client();
    let head = client.send(&request("HEAD", "/robots.txt"));
    assert_eq!(
        (head.status, head.field("content-length"), head.text()),
        (200, Some("13"), "")
    );
    // The connection goes on, and the limit has counted both.
    assert_eq!(client.send(&get("/robots.txt")).status, 429);
    let gone = client.send(&post("/gone", "a body"));
    assert_eq!(
        (gone.status, gone.text(), gone.field("content-type")),
        (410, "", None)
    );
    let line = gateway.logged("/gone");
    assert_eq!(
        (&line["route"], &line["status"]),
        (&"gone".into(), &410.into())
    );
    assert_eq!(upstream.count(), 0);
}

#[test]
fn defaults_change_headers_of_all_routes_that_do_not_say_otherwise() {
    let upstream = Upstream::start();
    let gateway = setup(
        &upstream,
        &[
            "{name: own, match: {path: /own}, upstream: app, limits: [], response_headers: {}}",
            "{name: fixed, match: {path: /fixed}, limits: [], response: {status: 204}}",
        ],
    )
    .key(
        "defaults: {request_headers: {set: {x-a: b}}, \
         response_headers: {set: {x-content-type-options: nosniff}}}",
    )
    .start();
    let options = |target: &str| {
        let response = gateway.send(&get(target));
        response.field("x-content-type-options").map(str::to_owned)
    };
    assert_eq!(options("/"), Some("nosniff".to_owned()));
    assert_eq!(upstream.last().lines("x-a"), ["b"]);
    assert_eq!(options("/fixed"), Some("nosniff".to_owned()));
    assert_eq!(options("/own"), None);
}
