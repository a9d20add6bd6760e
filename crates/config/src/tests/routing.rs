//! Which requests routes match, what they do beside forwarding, and combinations that make no
//! sense.

use weir_middleware::{LocalResponse, Origins};

use super::*;

fn folder(top: &str, route: &str) -> Folder {
    let gateway = format!(
        "account: [{{header: x-api-key}}]\nhash_key: {{env: PATH}}\n\
         upstreams: {{app: {{servers: [\"http://127.0.0.1:3000\"]}}}}\n\
         {top}\nroutes:\n  - {{limits: [], {route}}}\n"
    );
    Folder::with(&[("gateway.yaml", &gateway)])
}

/// The errors of one route.
#[track_caller]
fn refused(route: &str, told: &[&str]) {
    let found = folder("", route).findings();
    for told in told {
        assert!(found.contains(told), "{route}\n{found}");
    }
    assert!(found.contains("gateway.yaml:6:"), "{route}\n{found}");
    assert!(found.contains("\n1 error, "), "{route}\n{found}");
}

#[test]
fn what_cannot_be_matched_is_refused() {
    for (matches, told) in [
        (
            "path_regex: \"(\"",
            ["match.path_regex: \"(\" is not", "unclosed group"],
        ),
        (
            "path_regex: \"\"",
            ["the expression is empty", "leave the key out"],
        ),
        ("path_regex: \"(?=x)\"", ["look-around", "docs.rs/regex"]),
        (
            "path_regex: '\\w{1000}'",
            ["more than 1 MiB", "[0-9A-Za-z_]"],
        ),
        (
            "path: \"/{id}\", path_regex: \"/(?<id>.*)\"",
            ["`id` is captured by `path`", "another name"],
        ),
        (
            "path: \"^/api/.*$\"",
            ["match.path: ", "or say it by `path_regex`"],
        ),
        (
            "query: {a: {}}",
            ["match.query.a: nothing says", "{present: true}"],
        ),
        (
            "query: {a: {regex: x, present: true}}",
            ["by `regex` or by `present`", "leave one"],
        ),
        (
            "query: {a: {regx: x}}",
            ["unknown key \"regx\"", "did you mean \"regex\"?"],
        ),
        (
            "headers: {x-a: {regex: \"[\"}}",
            ["match.headers.x-a.regex", "unclosed character class"],
        ),
        (
            "headers: {\"x a\": b}",
            ["match.headers.x a", "not the name of a header"],
        ),
        (
            "headers: {x-a: \"b\\r\\nc\"}",
            ["match.headers.x-a", "control characters"],
        ),
    ] {
        refused(&format!("match: {{{matches}}}, upstream: app"), &told);
    }
}

#[test]
fn a_route_leads_to_one_place() {
    refused(
        "match: {}",
        &["the route leads nowhere", "name its `upstream`"],
    );
    let both = [
        "routes[0].redirect: a route has either `upstream` or `redirect`",
        "leave one",
    ];
    refused("match: {}, upstream: app, redirect: /x", &both);
    let both = [
        "routes[0].response: a route has either `redirect` or `response`",
        "leave one",
    ];
    refused("match: {path: /}, redirect: /x, response: {}", &both);
    for (route, told) in [
        (
            "redirect: /x, request_headers: {set: {a: b}}",
            ["`redirect` sends nothing", "leave `request_headers` out"],
        ),
        (
            "redirect: /x, total_timeout: 1s",
            ["`redirect` sends nothing", "leave `total_timeout` out"],
        ),
        (
            "response: {}, rewrite: {add_prefix: /x}",
            ["`response` sends nothing", "leave `rewrite` out"],
        ),
        (
            "response: {status: 204, body: x}",
            ["204 has no body", "leave `body` out"],
        ),
        (
            "response: {status: 99}",
            ["99 is not the status", "200 to 599"],
        ),
        (
            "response: {headers: {content-length: \"1\"}}",
            ["`content-length` is set by", "leave it out"],
        ),
    ] {
        refused(&format!("match: {{path: /}}, {route}"), &told);
    }
}

#[test]
fn a_redirect_that_clients_could_lead_elsewhere_is_refused() {
    for (redirect, told) in [
        (
            "\"https://a.example{{ path.x }}\"",
            ["clients could choose the host", "end the host"],
        ),
        ("\"new\"", ["neither a path nor a URL", "https://"]),
        (
            "\"//evil.example\"",
            ["neither a path nor a URL", "begin it with"],
        ),
        ("\"/a b\"", ["only percent-encoded", "%20"]),
        ("\"/a\\r\\nx: y\"", ["only percent-encoded", "%0D"]),
        ("\"/{{ path.y }}\"", ["captures no `y`", "`{y}`"]),
        ("\"/{{ hots }}\"", ["no value `hots`", "those that it has"]),
        ("\"/{{ host\"", ["without `}}`", "{{ host }}"]),
        (
            "{to: /x, status: 200}",
            [
                "redirect.status: 200 is not the status of a redirect",
                "301",
            ],
        ),
        ("{status: 301}", ["routes[0].redirect", "to"]),
    ] {
        refused(
            &format!("match: {{path: \"/{{x}}\"}}, redirect: {redirect}"),
            &told,
        );
    }
}

#[test]
fn a_rewrite_must_fit_the_path() {
    for (rewrite, told) in [
        (
            "strip_prefix: /apx",
            [
                "not all paths of the route begin with `/apx`",
                "match `path: \"/apx/*\"`",
            ],
        ),
        ("strip_prefix: /api/v2/x", ["not all paths", "/api/v2/x"]),
        ("strip_prefix: /api/", ["normal form", "write \"/api\""]),
        (
            "strip_prefix: /",
            ["not a prefix of whole segments", "/api"],
        ),
        (
            "strip_prefix: \"/api/*\"",
            ["not a prefix of whole segments", "/api"],
        ),
        (
            "strip_prefix: \"/{id}\"",
            ["not a prefix of whole segments", "/api"],
        ),
        ("add_prefix: v2", ["does not start with '/'", "\"/v2\""]),
        ("add_prefix: \"/a?b\"", ["more than a path", "\"/a\""]),
        ("", ["nothing is rewritten", "`strip_prefix`"]),
    ] {
        let route =
            format!("match: {{path: \"/api/v2/*\"}}, upstream: app, rewrite: {{{rewrite}}}");
        refused(&route, &told);
    }
}

#[test]
fn headers_that_break_messages_are_not_edited() {
    for (edits, told) in [
        (
            "request_headers: {set: {host: a}}",
            [
                "`host` is set for all requests",
                "say `host` on the upstream",
            ],
        ),
        (
            "request_headers: {remove: Content-Length}",
            ["`content-length` is of one connection", "leave it out"],
        ),
        (
            "response_headers: {set: {transfer-encoding: x}}",
            ["`transfer-encoding` is of", "leave it out"],
        ),
        (
            "response_headers: {add: {connection: close}}",
            ["`connection` is of", "leave it out"],
        ),
        (
            "request_headers: {set: {expect: 100-continue}}",
            ["`expect` is of", "leave it out"],
        ),
        (
            "request_headers: {set: {\"a b\": c}}",
            ["not the name of a header", "set.a b"],
        ),
        (
            "request_headers: {set: {a: \"b\\nc\"}}",
            ["control characters", "set.a"],
        ),
        (
            "request_headers: {set: {a: \"{{ host }}\\r\\nc\"}}",
            ["control characters", "set.a"],
        ),
        (
            "request_headers: {set: {a: \"\"}}",
            ["without a value is not sent", "under `remove`"],
        ),
        (
            "request_headers: {set: {a: \"{{ path.x }}\"}}",
            ["captures no `x`", "`{x}`"],
        ),
        (
            "request_headers: {remove: [a], always: true}",
            ["is for `response_headers`", "leave it out"],
        ),
        (
            "response_headers: {always: true}",
            ["no header is changed", "`set`"],
        ),
    ] {
        refused(&format!("match: {{}}, upstream: app, {edits}"), &told);
    }
}

#[test]
fn cors_that_browsers_would_not_understand_is_refused() {
    let origin = "origins: [\"https://a.example\"]";
    for (cors, told) in [
        (
            format!("{origin}, headers: x-a"),
            ["the app answers preflights", "say which `methods`"],
        ),
        (
            format!("{origin}, max_age: 1h"),
            ["`max_age` is its own", "say which `methods`"],
        ),
        (
            format!("{origin}, methods: []"),
            ["pages may use no method", "name some"],
        ),
        (
            format!("{origin}, methods: get"),
            ["case-sensitive", "\"GET\""],
        ),
        (
            format!("{origin}, methods: \"*\", credentials: true"),
            ["browsers read `*` as a name", "one by one"],
        ),
        (
            format!("{origin}, methods: GET, headers: [\"*\", x-a]"),
            ["stands for all names", "one by one"],
        ),
        (
            format!("{origin}, methods: GET, expose: [\"x a\"]"),
            ["not the name of a header", "cors.expose"],
        ),
        (
            "origins: \"*\", methods: GET, credentials: true".to_owned(),
            ["no credentials for all origins", "name the origins"],
        ),
        (
            "origins: \"https://*.com\"".to_owned(),
            ["not a pattern of origins", "https://*.example.com"],
        ),
        (
            "origins: \"https://a*.example.com\"".to_owned(),
            ["not a pattern of origins", "any port"],
        ),
        (
            "origins: \"*.example.com\"".to_owned(),
            ["not a pattern of origins", "any port"],
        ),
        (
            "origins: \"https://a.*.com\"".to_owned(),
            ["not a pattern of origins", "any port"],
        ),
    ] {
        refused(
            &format!("match: {{}}, upstream: app, cors: {{{cors}}}"),
            &told,
        );
    }
    let edits = format!(
        "match: {{}}, upstream: app, cors: {{{origin}, methods: GET}}, \
         response_headers: {{set: {{access-control-allow-origin: \"*\"}}}}"
    );
    refused(
        &edits,
        &[
            "`access-control-allow-origin` is set by `cors`",
            "leave it out here",
        ],
    );
}

#[test]
fn cors_with_methods_is_as_written() {
    let cors = "cors: {origins: [\"https://*.example.com\", \"http://localhost:*\", \"https://a.example:8443\"], \
                methods: [GET, PUT], headers: [X-A, x-b], expose: x-total, max_age: 1h30m}";
    let settings = folder("", &format!("match: {{}}, upstream: app, {cors}")).settings();
    let cors = settings.routes[0].policy.cors.as_ref().unwrap();
    assert!(matches!(&cors.origins, Origins::Listed(listed) if listed.len() == 3));
    let answer = cors.preflights.as_ref().unwrap();
    assert_eq!(
        (&answer.methods, &answer.max_age),
        (&"GET, PUT".parse().unwrap(), &Some("5400".parse().unwrap()))
    );
    assert_eq!(answer.headers.as_ref().unwrap(), "x-a, x-b");
    assert_eq!(
        cors.exposed,
        "Retry-After, RateLimit-Policy, RateLimit, x-total"
    );
}

#[test]
fn a_redirect_has_a_status_and_a_fixed_response_is_plain_text() {
    let route = "match: {path: /}, redirect: /x";
    let settings = folder("", route).settings();
    let Some(LocalResponse::Redirect(redirect)) = &settings.routes[0].action.answer else {
        panic!("no redirect");
    };
    assert_eq!(
        (
            redirect.status().as_u16(),
            redirect.to().to_string().as_str()
        ),
        (302, "/x")
    );
    let route = "match: {path: /}, response: {body: \"<h1>x</h1>\"}";
    let settings = folder("", route).settings();
    let Some(LocalResponse::Fixed(fixed)) = &settings.routes[0].action.answer else {
        panic!("no fixed response");
    };
    assert_eq!(fixed.headers["content-type"], "text/plain; charset=utf-8");
}

#[test]
fn https_that_is_not_there_is_told() {
    let route = "match: {}, upstream: app";
    let findings = |top: &str| folder(top, route).findings();
    let trusted = "client_address: {trusted_proxies: [10.0.0.1]}";
    let hsts = findings("hsts: {max_age: 1d}");
    assert!(hsts.contains("hsts: nothing comes by HTTPS"), "{hsts}");
    assert_eq!(
        findings(&format!("hsts: {{max_age: 1d}}\n{trusted}")),
        "0 errors, 0 warnings"
    );
    let preload = findings(&format!("hsts: {{max_age: 1d, preload: true}}\n{trusted}"));
    assert!(
        preload.contains("hsts.preload: `preload` needs"),
        "{preload}"
    );
    let listen = |value: &str| {
        format!("listen: [{{address: \"127.0.0.1:80\", redirect_to_https: {value}}}]")
    };
    let warned = findings(&listen("true"));
    assert!(
        warned.contains("warning: listen[0].redirect_to_https: no listener has `tls`"),
        "{warned}"
    );
    assert!(warned.contains("redirected for ever"), "{warned}");
    assert_eq!(findings(&listen("false")), "0 errors, 0 warnings");
    let with_port = format!("{}\n{trusted}", listen("{port: 8443}"));
    let settings = folder(&with_port, route).settings();
    let redirect = settings.listen[0].redirect_to_https.as_ref().unwrap();
    assert_eq!(
        redirect.to().to_string(),
        "https://{{ host }}:8443{{ uri }}"
    );
    assert!(
        settings.listen[0]
            .to_string()
            .ends_with(" redirecting to HTTPS")
    );
    for (value, told) in [
        ("8443", "expected true, false or a port"),
        ("{port: 0}", "redirect_to_https.port"),
    ] {
        let found = findings(&listen(value));
        assert!(found.contains(told) && found.contains("1 error"), "{found}");
    }
}

#[test]
fn routes_that_differ_in_conditions_are_not_called_the_same() {
    let gateway = r#"
upstreams: {app: {servers: ["http://127.0.0.1:3000"]}}
routes:
  - {name: a, match: {path: "/*", path_regex: "/a.*"}, upstream: app, limits: []}
  - {name: b, match: {path: "/*", query: {a: "1"}}, upstream: app, limits: []}
  - {name: c, match: {path: "/*", query: {a: {present: true}}}, upstream: app, limits: []}
  - {name: d, match: {path: "/*", query: {a: "1"}}, upstream: app, limits: []}
"#;
    let found = Folder::with(&[("gateway.yaml", gateway)]).findings();
    assert!(
        found.contains("routes[3]: this route is never taken: \"b\" matches the same"),
        "{found}"
    );
    assert!(found.ends_with("0 errors, 1 warning"), "{found}");
}

#[test]
fn redirects_that_lead_to_themselves_are_told() {
    let warned = |route: &str| {
        let found = folder("", route).findings();
        found.contains("warning: routes[0]: the redirect leads to this route again")
    };
    for route in [
        "match: {path: \"/*\"}, redirect: /maintenance",
        "match: {path: \"/a/*\", host: a.example}, redirect: /A//b?c",
        "match: {path: /a}, redirect: \"{{ uri }}\"",
        // Paths with and without a slash at the end are the same to routes.
        "match: {path: /a}, redirect: \"{{ path }}/\"",
        "match: {path: \"/*\"}, redirect: \"https://{{ host }}{{ uri }}\"",
        "match: {path: \"/{x}\", methods: [POST]}, redirect: {to: \"/{{ path.x }}2\", status: 308}",
    ] {
        assert!(warned(route), "{route}");
    }
    for route in [
        "match: {path: /a}, redirect: \"{{ path }}/b\"",
        // The client asks again by GET.
        "match: {path: \"/{x}\", methods: [POST]}, redirect: \"/{{ path.x }}2\"",
        "match: {path: \"/a/*\"}, redirect: \"{{ uri }}\", rewrite: {strip_prefix: /a}",
        "match: {path: \"/a/*\"}, redirect: /b",
        "match: {path: \"/*\"}, redirect: \"https://b.example/\"",
    ] {
        assert!(!warned(route), "{route}");
    }
}

#[test]
fn only_an_app_can_say_what_a_request_has_cost() {
    let gateway = r#"
upstreams: {app: {servers: ["http://127.0.0.1:3000"]}}
routes:
  - match: {path: /x}
    response: {}
    limits: [{limit: RequestsPerAddress, cost: {response_header: x-cost}}]
  - {match: {}, upstream: app}
"#;
    let folder = Folder::with(&[
        ("gateway.yaml", gateway),
        ("limits/defaults.yaml", DEFAULTS),
    ]);
    let found = folder.findings();
    assert!(
        found.contains("routes[0].limits[0]: no app responds on this route"),
        "{found}"
    );
}

#[test]
fn ids_of_requests_have_a_header_of_their_own() {
    let findings = |keys: &str| {
        let gateway = format!("{SMALLEST}{keys}\n");
        Folder::with(&[
            ("gateway.yaml", &*gateway),
            ("limits/defaults.yaml", DEFAULTS),
        ])
        .load()
        .map(|settings| settings.request_id.map(|header| header.to_string()))
        .map_err(|found| found.to_string())
    };
    let default = Some("x-request-id".to_owned());
    assert_eq!(findings("").unwrap(), None);
    assert_eq!(findings("request_id: false").unwrap(), None);
    assert_eq!(findings("request_id: true").unwrap(), default);
    let own = findings("request_id: {header: X-Correlation-Id}").unwrap();
    assert_eq!(own.as_deref(), Some("x-correlation-id"));
    for (keys, told) in [
        (
            "request_id: yes please",
            ["found `yes please`", "{header: X-Correlation-Id}"],
        ),
        (
            "request_id: {header: a b}",
            ["not the name of a header", "1"],
        ),
        (
            "request_id: {header: Host}",
            ["`host` has a meaning of its own", "X-Request-Id"],
        ),
        (
            "request_id: {header: X-Forwarded-Id}",
            ["has a meaning", "X-Request-Id"],
        ),
        (
            "request_id: {header: x-my-ip}\nclient_address: {header: X-My-IP}",
            ["`x-my-ip` has a meaning", "X-Request-Id"],
        ),
        (
            "request_id: true\ndefaults: {request_headers: {set: {X-Request-Id: a}}}",
            ["`x-request-id` is set by `request_id`", "leave it out here"],
        ),
        (
            "request_id: true\ndefaults: {request_headers: {remove: x-request-id}}",
            ["`x-request-id` is set by `request_id`", "leave it out here"],
        ),
    ] {
        let found = findings(keys).unwrap_err();
        for part in told {
            assert!(found.contains(part), "{part} in {found}");
        }
    }
}
