//! Whole files, and what comes of them.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::{Imported, import};

/// What comes of these files, of which the first is imported.
fn imported(files: &[(&str, &str)]) -> Result<Imported, String> {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let found = import(&folder.path().join(files[0].0));
    let place = format!("{}/", folder.path().display());
    let without = |text: String| text.replace(&place, "");
    let found = found.map_err(|error| without(error.to_string()))?;
    let differences = found.differences.into_iter().map(|mut difference| {
        difference.place.file = without(difference.place.file);
        difference.what = without(difference.what);
        difference
    });
    Ok(Imported {
        gateway: without(found.gateway),
        differences: differences.collect(),
        ..found
    })
}

/// All of it as one text.
fn shown(imported: &Imported) -> String {
    let overrides = imported.overrides.as_deref().unwrap_or_default();
    let differences = imported.differences.iter().map(|it| format!("{it}\n"));
    let differences: String = differences.collect();
    let (gateway, defaults) = (&imported.gateway, &imported.defaults);
    format!(
        "{gateway}\n--- defaults\n{defaults}\n--- overrides\n{overrides}\n--- differences\n{differences}"
    )
}

fn checked_in(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests");
    fs::read_to_string(folder.join(name)).unwrap()
}

/// The routes of a server with these directives.
fn routes(server: &str) -> String {
    let text = format!("server {{ {server} }}");
    let gateway = imported(&[("nginx.conf", &text)]).unwrap().gateway;
    gateway.split("routes:\n").nth(1).unwrap().to_owned()
}

/// What is said about a server with these directives.
fn differences(server: &str) -> Vec<String> {
    let text = format!("server {{ {server} }}");
    let imported = imported(&[("nginx.conf", &text)]).unwrap();
    imported
        .differences
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn nothing_of_nginx_that_limits_or_protects_is_left_out_without_a_word() {
    let text = checked_in("nginx.conf");
    insta::assert_snapshot!(shown(&imported(&[("nginx.conf", &text)]).unwrap()));
}

#[test]
fn no_older_http_route_loses_its_requests_to_a_younger_one() {
    let text = checked_in("http_routes.yaml");
    insta::assert_snapshot!(shown(&imported(&[("routes.yaml", &text)]).unwrap()));
}

#[test]
fn an_included_file_is_not_forgotten_and_names_its_own_lines() {
    let files = [
        (
            "nginx.conf",
            "http {\n  include sites/*.conf;\n  include missing;\n}",
        ),
        (
            "sites/b.conf",
            "\nserver { location /b/ { proxy_pass http://b; limit_rate 1k; } }",
        ),
        (
            "sites/a.conf",
            "limit_req_zone $remote_addr zone=a:1m rate=1r/s; limit_req zone=a;",
        ),
        ("sites/c.txt", "no directive"),
    ];
    let imported = imported(&files).unwrap();
    let limit = "a: {per: address, burst: 1, count: 1, period: 1s}";
    assert!(imported.defaults.contains(limit), "{}", imported.defaults);
    assert!(
        imported.gateway.contains("limits: [a]"),
        "{}",
        imported.gateway
    );
    let told: Vec<_> = imported
        .differences
        .iter()
        .map(|it| it.place.to_string())
        .collect();
    assert_eq!(told, ["nginx.conf:3", "sites/b.conf:2"]);
}

#[test]
fn what_is_no_configuration_is_refused_at_its_line() {
    let nothing = "there is no `server` with a `location`, and no HTTPRoute with a rule";
    for (text, place, told) in [
        ("", "nginx.conf", nothing),
        ("{ }", "nginx.conf", nothing),
        (
            "server { return 301 https://$host; }",
            "nginx.conf",
            nothing,
        ),
        ("\nserver {\n  listen 80;\n", "nginx.conf:4", "expected '}'"),
        ("\na b", "nginx.conf:2", ""),
        (
            "include nginx.conf;",
            "nginx.conf:1",
            "the files include each other",
        ),
    ] {
        let error = imported(&[("nginx.conf", text)]).unwrap_err();
        let is_meant = error.starts_with(place) && error.ends_with(told);
        assert!(is_meant, "{text}: {error}");
    }
    let error = imported(&[("a.yaml", "kind: a\n---\nkind: a\nb: ]\n")]).unwrap_err();
    assert!(error.starts_with("a.yaml:4: "), "{error}");
}

/// An expression goes before a prefix in nginx, unless the prefix says `^~`; Weir looks at the
/// prefix first.
#[test]
fn a_location_with_an_expression_is_not_hidden_by_a_prefix() {
    let routes = routes(
        "location /a/ { proxy_pass http://a; } location ^~ /b/ { proxy_pass http://b; }
         location ~* \\.(gif|png)$ { proxy_pass http://c; }",
    );
    let matches: Vec<_> = routes
        .lines()
        .filter(|line| line.contains("match:"))
        .collect();
    let regex = r#"path_regex: ".*(?:\\.(gif|png)$).*""#;
    assert_eq!(
        matches,
        [
            "  - match: {path: \"/a/*\"}",
            "  - match: {path: \"/b/*\"}",
            &format!("  - match: {{path: \"/*\", {regex}}}"),
            &format!("  - match: {{path: \"/a/*\", {regex}}}"),
        ]
    );
}

#[test]
fn an_expression_that_nginx_finds_within_a_path_matches_all_of_it() {
    for (pattern, expected) in [
        ("^/a", "/a.*"),
        ("/a$", ".*/a"),
        ("^/a/$", "/a/?"),
        ("a", ".*a.*"),
        ("^/a|b$", ".*(?:^/a|b$).*"),
    ] {
        let routes = routes(&format!("location ~ {pattern} {{ proxy_pass http://a; }}"));
        let expected = format!("path_regex: \"{expected}\", case: sensitive");
        assert!(routes.contains(&expected), "{pattern}: {routes}");
    }
    let told = differences("location ~ (?!x) { proxy_pass http://a; } location / { internal; }");
    assert!(
        told[0].contains("has an expression that Weir does not know"),
        "{told:?}"
    );
}

/// What nginx counts together or denies otherwise would change without a word.
#[test]
fn no_limit_that_differs_goes_unsaid() {
    let text = "limit_req_zone $remote_addr zone=a:1m; limit_conn_zone $host zone=b:1m;
        server { limit_req_status 429; location / { limit_req zone=a; proxy_pass http://a; }
        location /b/ { limit_req zone=a burst=2 nodelay; limit_conn b 3; proxy_pass http://a; } }";
    let imported = imported(&[("nginx.conf", text)]).unwrap();
    let told: Vec<_> = imported
        .differences
        .iter()
        .map(|it| it.what.as_str())
        .collect();
    let expected = [
        "`limit_conn b 3` denies by 429, not 503",
        "`limit_req zone=a burst=2 nodelay` counts apart from other uses of the zone",
    ];
    assert_eq!(told, expected);
    let limits = "a: {per: address, burst: 1, count: 1, period: 1s}\n\
                  a-3: {per: address, burst: 3, count: 1, period: 1s}\n\
                  b: {per: host, in_flight: 3}";
    assert_eq!(imported.defaults.trim(), limits);
}

#[test]
fn a_location_that_keeps_clients_out_never_becomes_open() {
    for guard in [
        "deny all;",
        "allow 10.0.0.1; deny all;",
        "auth_basic x;",
        "auth_request /a;",
    ] {
        let routes = routes(&format!("{guard} location / {{ proxy_pass http://a; }}"));
        assert!(
            routes.contains("response: {status: 403}"),
            "{guard}: {routes}"
        );
    }
    let inner = "allow 10.0.0.1; auth_basic off; proxy_pass http://a;";
    let open = routes(&format!("deny all; auth_basic x; location / {{ {inner} }}"));
    assert!(open.contains("upstream: a"), "{open}");
}

#[test]
fn a_rewritten_path_keeps_no_part_of_the_prefix() {
    for (location, pass, expected) in [
        ("/api/", "http://a/", "rewrite: {strip_prefix: /api}"),
        (
            "/api/",
            "http://a/v1/",
            "rewrite: {strip_prefix: /api, add_prefix: /v1}",
        ),
        ("/", "http://a/v1/", "rewrite: {add_prefix: /v1}"),
        (
            "= /api",
            "http://a/x",
            "rewrite: {strip_prefix: /api, add_prefix: /x}",
        ),
        (
            "/api/",
            "http://unix:/run/a.sock:/",
            "rewrite: {strip_prefix: /api}",
        ),
    ] {
        let routes = routes(&format!("location {location} {{ proxy_pass {pass}; }}"));
        assert!(routes.contains(expected), "{location} {pass}: {routes}");
    }
    let routes = routes("location /api/ { proxy_pass http://a; }");
    assert!(!routes.contains("rewrite"), "{routes}");
}
