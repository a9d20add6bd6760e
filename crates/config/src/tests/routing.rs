//! Which requests routes match, what they do beside forwarding, and combinations that make no
//! sense.

use weir_middleware::LocalResponse;

use super::*;

pub(super) fn folder(top: &str, route: &str) -> Folder {
    let gateway = format!(
        "account: [{{header: x-api-key}}]\nhash_key: {{env: PATH}}\n\
         upstreams: {{app: {{servers: [\"http://127.0.0.1:3000\"]}}}}\n\
         {top}\nroutes:\n  - {{limits: [], {route}}}\n"
    );
    Folder::with(&[("gateway.yaml", &gateway)])
}

/// The errors of one route.
#[track_caller]
pub(super) fn refused(route: &str, told: &[&str]) {
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
            "path: \"http://x:80/login?next=a\"",
            [
                "is a URL, and not a path",
                "write \"/login\", and `host: \"x\"` beside it",
            ],
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
fn a_redirect_has_a_status_and_a_fixed_response_is_plain_text() {
    let route = "match: {path: /}, redirect: /x";
    let settings = folder("", route).settings();
    let Some(LocalResponse::Redirect(redirect)) = &settings.routes[0].action.response else {
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
    let Some(LocalResponse::Fixed(fixed)) = &settings.routes[0].action.response else {
        panic!("no fixed response");
    };
    assert_eq!(fixed.headers["content-type"], "text/plain; charset=utf-8");
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
