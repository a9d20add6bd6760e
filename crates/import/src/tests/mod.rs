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
    assert_eq!(told, ["nginx.conf:3", "sites/b.conf:2", "sites/b.conf:2"]);
}

#[test]
fn an_include_that_finds_nothing_is_never_left_out_without_a_word() {
    let told = differences("include guards/*.conf; location / { proxy_pass http://a; }");
    assert!(
        told.join(" ")
            .contains("`include guards/*.conf` finds no file"),
        "{told:?}"
    );
}

#[test]
fn no_listener_of_http_3_becomes_one_without_tls() {
    let text = "server { listen 80; listen 443 quic; location / { proxy_pass http://a; } }";
    let imported = imported(&[("nginx.conf", text)]).unwrap();
    assert!(!imported.gateway.contains("443"), "{}", imported.gateway);
    assert!(shown(&imported).contains("`listen 443 quic` is left out"));
}

#[test]
fn no_group_with_a_name_makes_an_expression_that_weir_refuses() {
    let told = differences(
        "location / { proxy_pass http://a; } location ~ ^/(?<lang>en|de)/$ { proxy_pass http://a; }",
    );
    assert!(
        told[0].contains("has an expression that Weir does not know"),
        "{told:?}"
    );
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
            "  - match: {path: \"/*\"}",
        ]
    );
}

#[test]
fn an_expression_that_nginx_finds_within_a_path_matches_all_of_it() {
    for (pattern, expected) in [
        ("^/a", "/a.*"),
        ("/a$", ".*/a"),
        ("^/a/$", "/a/|/a"),
        ("a", ".*a.*"),
        ("^/a|b$", ".*(?:^/a|b$).*"),
        ("^/a/", "/a/.*|/a"),
        ("(?i)^/a/", ".*(?i)^/a/.*|.*(?:(?i)^/a)"),
        ("^/(a|b)/", ".*(?:^/(a|b)/).*|.*(?:^/(a|b))"),
        (
            "/[^a]+/?$",
            ".*/[^a]+/?|.*(?:/[^a]+(?:/)*)|.*(?:/(?:[^a])*)",
        ),
    ] {
        let routes = routes(&format!("location ~ {pattern} {{ proxy_pass http://a; }}"));
        let expected = format!("path_regex: \"(?-i:{expected})\"");
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
        "deny 0.0.0.0/0;",
        "modsecurity on;",
        "access_by_lua_block { ngx.exit(403) }",
        "js_access a.b;",
        "auth_pam x;",
        "secure_link_secret x;",
        "ssl_verify_client on;",
        "return 403;",
    ] {
        let routes = routes(&format!("{guard} location / {{ proxy_pass http://a; }}"));
        assert!(!routes.contains("upstream: a"), "{guard}: {routes}");
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

/// nginx keeps the slash at the end of a path, and Weir does not.
#[test]
fn an_expression_that_closes_a_folder_does_not_open_its_root() {
    for (pattern, path) in [
        ("^/admin/", "/admin"),
        ("^/(priv|sec)/", "/sec"),
        ("(?i)^/ci/", "/CI"),
        (r"/(a|b)\d{2}/$", "/x/a12"),
        ("^/[^/]+/edit/$", "/x/edit"),
        ("^/a/|^/b/", "/b"),
        ("^/x/y*(/|$)", "/x"),
    ] {
        let routes = routes(&format!(
            "location / {{ proxy_pass http://a; }} location ~ \"{pattern}\" {{ deny all; }}"
        ));
        let regex = routes
            .split("path_regex: ")
            .nth(1)
            .unwrap()
            .split("}\n")
            .next()
            .unwrap();
        let regex: String = serde_yaml::from_str(regex).unwrap();
        let regex = regex::Regex::new(&format!("^(?:{regex})$")).unwrap();
        assert!(regex.is_match(path), "{pattern}: {regex}");
        assert!(!regex.is_match("/other"), "{pattern}: {regex}");
    }
}

#[test]
fn a_location_that_weir_does_not_match_is_closed_not_forgotten() {
    for (location, closed) in [
        ("location ~ ^/x/(?!api)", r#"path_regex: "/x.*""#),
        ("location ~ ^/ab?(?!c)", r#"path_regex: "/a.*""#),
        ("location '/a b/'", r#"path_regex: "/a.*b.*""#),
        ("location ^~ /wp-admin", r#"path_regex: "/wp\\-admin.*""#),
    ] {
        let server = format!("location / {{ proxy_pass http://a; }} {location} {{ deny all; }}");
        let routes = routes(&server);
        let route = routes.split("- match").find(|route| route.contains(closed));
        let is_closed = route.is_some_and(|route| route.contains("response: {status: 403}"));
        assert!(is_closed, "{location}: {routes}");
        assert!(
            differences(&server)
                .iter()
                .any(|it| it.contains("`location ")),
            "{location}"
        );
    }
}

#[test]
fn no_server_is_forgotten_for_another() {
    let a = "server { listen 80; location / { proxy_pass http://a; } location /x { internal; } }";
    let imported_of = |other: &str| imported(&[("nginx.conf", &format!("{a} {other}"))]).unwrap();
    for (server, route, told) in [
        // It has no location.
        (
            "listen 80; server_name b; deny all;",
            "{host: b, path: \"/*\"}\n    response",
            "",
        ),
        (
            "listen 80 default_server; return 444;",
            "{path: \"/*\"}\n    upstream: nginx",
            "return",
        ),
        // Its other paths have no location.
        (
            "listen 80; server_name b; location /health { proxy_pass http://b; }",
            "{host: b, path: \"/*\"}\n    upstream: nginx",
            "`server` has no `proxy_pass`",
        ),
        // It listens elsewhere, on one address of several.
        (
            "listen 80; listen 81; server_name b; location / { proxy_pass http://b; }",
            "{host: b, path: \"/*\"}\n    response: {status: 403}",
            "`server` is left out",
        ),
        // Nobody can tell which hosts it has.
        (
            "listen 80; server_name ~^b; location / { proxy_pass http://b; }",
            "{path: \"/*\"}\n    response: {status: 403}",
            "403 for all hosts that no route names",
        ),
    ] {
        let shown = shown(&imported_of(&format!("server {{ {server} }}")));
        assert!(shown.contains(route), "{server}: {shown}");
        let differences = shown.split("--- differences").nth(1).unwrap();
        assert!(differences.contains(told), "{server}: {shown}");
    }
    let other = "server { listen 81; limit_req zone=one; location / { proxy_pass http://b; } }";
    let shown = shown(&imported_of(other));
    assert!(
        !shown.contains("upstream: b") && !shown.contains(":81"),
        "{shown}"
    );
    assert!(shown.contains("`server` is left out"), "{shown}");
    assert!(
        shown.contains("`limit_req zone=one` holds for no route"),
        "{shown}"
    );
}

#[test]
fn the_default_server_does_not_lose_its_own_host_to_a_wildcard() {
    let text = "server { listen 80 default_server; server_name api.example.com; deny all;
        location / { proxy_pass http://a; } }
        server { listen 80; server_name *.example.com; location / { proxy_pass http://b; } }";
    let gateway = imported(&[("nginx.conf", text)]).unwrap().gateway;
    for expected in [
        "{host: api.example.com, path: \"/*\"}\n    response: {status: 403}",
        "{path: \"/*\"}\n    response: {status: 403}",
    ] {
        assert!(gateway.contains(expected), "{gateway}");
    }
}

#[test]
fn no_limit_or_guard_that_reaches_no_route_is_left_out_without_a_word() {
    for directive in [
        "limit_req zone=one;",
        "limit_conn one 1;",
        "deny all;",
        "auth_basic x;",
    ] {
        let server = format!(
            "location / {{ try_files $uri @app; }}
             location @app {{ {directive} proxy_pass http://a; }}"
        );
        let told = differences(&server);
        let is_told = told.iter().any(|it| it.contains("holds for no route"));
        assert!(is_told, "{directive}: {told:?}");
    }
    let told = differences("deny all; location / { proxy_pass http://a; }");
    assert!(told.is_empty(), "{told:?}");
}

#[test]
fn an_expression_before_another_stays_before_it_for_every_prefix() {
    let routes = routes(
        "location / { proxy_pass http://a; } location ~ /ab { deny all; }
         location /private/ { deny all; } location ~ /abc { proxy_pass http://b; }",
    );
    let first = routes.find(r#"{path: "/private/*", path_regex: "(?-i:.*/ab.*)""#);
    let second = routes.find(r#"{path: "/private/*", path_regex: "(?-i:.*/abc.*)""#);
    assert!(first.is_some() && first < second, "{routes}");
}

#[test]
fn an_expression_within_a_location_does_not_hold_for_the_whole_site() {
    let routes = routes(
        "location / { deny all; } location ~ p { deny all; }
         location ^~ /blog/ { proxy_pass http://a; location ~ php { proxy_pass http://c; }
             location /blog/x/ { proxy_pass http://b; } }
         location ~ ^/r { proxy_pass http://a; location ~ x { proxy_pass http://d; } }",
    );
    let paths: Vec<_> = routes
        .split("- match: ")
        .filter(|it| it.contains(".*php.*"))
        .collect();
    assert_eq!(paths.len(), 2, "{routes}");
    assert!(
        paths.iter().all(|it| it.contains("{path: \"/blog/")),
        "{routes}"
    );
    assert!(!routes.contains("upstream: d"), "{routes}");
    assert!(
        !routes.contains("path: \"/blog/*\", path_regex: \"(?-i:.*p.*)\""),
        "{routes}"
    );
}

#[test]
fn of_two_spellings_of_a_path_no_closed_one_is_opened_by_the_other() {
    let server = "location = /api { proxy_pass http://a; } location /api/ { deny all; }
        location / { proxy_pass http://b; }";
    let routes = routes(server);
    assert!(!routes.contains("upstream: a"), "{routes}");
    let told = differences(server);
    assert!(
        told.iter()
            .any(|it| it.contains("with and without a slash")),
        "{told:?}"
    );
}

#[test]
fn a_zone_with_no_equal_is_never_one_that_clients_can_evade() {
    for (definitions, limit) in [
        ("limit_req_zone $server_name zone=a:1m;", "per: global"),
        (
            "limit_req_zone $binary_remote_addr$http_x zone=a:1m;",
            "per: address",
        ),
        ("limit_req_zone k-$http_x zone=a:1m;", "{}"),
        ("limit_req_zone $http_x$http_y zone=a:1m;", "{}"),
        (
            "geo $http_x $g { default 1; 10.0.0.0/8 0; } map $g $k { 0 ''; 1 $remote_addr; }
          limit_req_zone $k zone=a:1m;",
            "{}",
        ),
        (
            "geo $g { default 1; 10.0.0.0/8 0; } map $g $k { 0 ''; 1 $http_x; }
          limit_req_zone $k zone=a:1m;",
            "{}",
        ),
        (
            "geo $g { default 1; 10.0.0.1/8 0; } map $g $k { 0 ''; 1 $remote_addr; }
          limit_req_zone $k zone=a:1m;",
            "{}",
        ),
    ] {
        let server = "server { location / { limit_req zone=a; proxy_pass http://a; } }";
        let imported = imported(&[("nginx.conf", &format!("{definitions} {server}"))]).unwrap();
        assert!(
            imported.defaults.contains(limit),
            "{definitions}: {}",
            imported.defaults
        );
        assert!(
            !imported.differences.is_empty() && imported.overrides.is_none(),
            "{definitions}"
        );
    }
}

#[test]
fn nothing_of_an_upstream_or_of_a_header_is_left_out_without_a_word() {
    let text = "upstream u { ip_hash; queue 5; server a max_conns=1; server b down; }
        server { location / { proxy_set_header X-User ''; proxy_pass http://u; } }";
    let shown = shown(&imported(&[("nginx.conf", text)]).unwrap());
    for told in [
        "`ip_hash`",
        "`queue 5`",
        "does not do `max_conns=1`",
        "b down",
        "X-User",
    ] {
        assert!(
            shown.split("--- diff").nth(1).unwrap().contains(told),
            "{told}: {shown}"
        );
    }
}

#[test]
fn no_number_or_nesting_ends_the_import_without_an_error() {
    let burst = "limit_req_zone $remote_addr zone=a:1m; server { location / {
        limit_req zone=a burst=18446744073709551615 nodelay; proxy_pass http://a; } }";
    assert!(imported(&[("nginx.conf", burst)]).is_ok());
    let deep = "a {\n".repeat(20_000);
    let error = imported(&[("nginx.conf", &deep)]).unwrap_err();
    assert!(error.starts_with("nginx.conf:201: "), "{error}");
}

#[test]
fn no_encoding_of_a_comment_and_no_line_end_refuses_a_file() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("nginx.conf");
    fs::write(
        &path,
        b"# \xe9\r\nserver {\r\n location / { internal; }\r\n}\r\n",
    )
    .unwrap();
    assert!(import(&path).is_ok());
}

/// The app chose its virtual host by it, and got another one.
#[test]
fn the_host_that_the_app_gets_is_never_another_than_that_of_nginx() {
    for (pass, header, host) in [
        ("http://a:3000", "", "host: \"a:3000\"}"),
        ("http://a:80", "", "host: a}"),
        ("http://a", "proxy_set_header Host $proxy_host;", "host: a}"),
        (
            "http://a",
            "proxy_set_header host b.example;",
            "host: b.example}",
        ),
        ("http://a", "proxy_set_header X-A 1;", "host: a}"),
        ("http://unix:/run/a.sock", "", "host: localhost}"),
        ("http://upstream", "", "host: \"upstream:80\"}"),
        (
            "http://a",
            "proxy_set_header Host $host;",
            "servers: [\"http://a\"]}",
        ),
        (
            "http://a",
            "proxy_set_header Host $http_host;",
            "servers: [\"http://a\"]}",
        ),
    ] {
        let text = format!("server {{ location / {{ {header} proxy_pass {pass}; }} }}");
        let gateway = imported(&[("nginx.conf", &text)]).unwrap().gateway;
        assert!(gateway.contains(host), "{pass} {header}: {gateway}");
    }
    let told = differences("location / { proxy_set_header Host $a; proxy_pass http://a; }");
    assert!(
        told[0].contains("the app gets what the client sent"),
        "{told:?}"
    );
}

#[test]
fn no_path_is_joined_otherwise_than_by_nginx_without_a_word() {
    let told = |location: &str, pass: &str| {
        differences(&format!(
            "location / {{ proxy_pass http://b; }} location {location} {{ proxy_pass {pass}; }}"
        ))
        .join(" ")
    };
    for (location, pass, expected) in [
        (
            "/api/",
            "http://a/v1",
            "sends `/api/x` on as `/v1/x`, and nginx as `/v1x`",
        ),
        (
            "/api",
            "http://a/",
            "sends `/api/x` on as `/x`, and nginx as `//x`",
        ),
        (
            "/api/",
            "http://a/v1/?k=1",
            "responds with 403: Weir does not put `/v1/?k=1` in front",
        ),
    ] {
        assert!(
            told(location, pass).contains(expected),
            "{}",
            told(location, pass)
        );
    }
    assert_eq!(told("/api/", "http://a/v1/"), "");
    assert_eq!(told("= /api", "http://a/v1/"), "");
}

#[test]
fn two_zones_or_upstreams_never_become_one_by_their_names() {
    let text = "limit_req_zone $remote_addr zone=a.b:1m; limit_req_zone $host zone=a/b:1m;
        limit_req_zone $remote_addr zone=c:1m; limit_req_zone $host zone=c-3:1m;
        server { location / { limit_req zone=a.b; limit_req zone=a/b; limit_req zone=c;
            proxy_pass http://app; }
        location /1/ { limit_req zone=c burst=2 nodelay; limit_req zone=c-3 nodelay;
            proxy_pass https://app; }
        location /2/ { proxy_pass http://app-2; } }";
    let imported = imported(&[("nginx.conf", text)]).unwrap();
    let names = |text: &str| -> Vec<String> {
        let names = text.lines().filter_map(|line| line.split_once(": {"));
        names.map(|(name, _)| name.trim().to_owned()).collect()
    };
    let limits = ["a-b", "a-b-2", "c", "c-3", "c-3-2"];
    assert_eq!(names(&imported.defaults), limits, "{}", imported.defaults);
    let (upstreams, _) = imported.gateway.split_once("defaults:").unwrap();
    let (_, upstreams) = upstreams.split_once("upstreams:").unwrap();
    assert_eq!(names(upstreams), ["app", "app-2", "app-2-2"], "{upstreams}");
}

/// A hundred lines took all memory.
#[test]
fn no_product_of_hosts_prefixes_and_expressions_is_without_a_bound() {
    let many =
        |count: usize, text: &dyn Fn(usize) -> String| -> String { (0..count).map(text).collect() };
    let server = |hosts: usize, prefixes: usize, expressions: usize| {
        let hosts = many(hosts, &|number| format!(" h{number}.example"));
        let prefixes = many(prefixes, &|number| {
            format!("location /{number}/ {{ proxy_pass http://a; }}\n")
        });
        let expressions = many(expressions, &|number| {
            format!("location ~ x{number} {{ proxy_pass http://b; }}\n")
        });
        let text = format!("server {{\nserver_name {hosts};\n{prefixes}{expressions} }}");
        imported(&[("nginx.conf", &text)]).map(drop)
    };
    assert_eq!(server(1, 60, 60), Ok(()));
    for (hosts, prefixes, expressions) in [(1, 120, 120), (200, 20, 20)] {
        let error = server(hosts, prefixes, expressions).unwrap_err();
        assert!(error.contains("takes more than 10000 routes"), "{error}");
        assert!(error.starts_with("nginx.conf:"), "{error}");
    }
    // What it repeats grows with the square of its length.
    let nested = format!("{}/{}", "(".repeat(120), ")*".repeat(120));
    let told = differences(&format!(
        "location ~ \"{nested}\" {{ proxy_pass http://a; }}"
    ));
    assert!(
        told[0].contains("an expression that Weir does not know"),
        "{}",
        told[0].len()
    );
    let hosts = many(101, &|number| format!("h{number}.example,"));
    let matches = many(101, &|number| format!("{{path: {{value: /{number}}}}},"));
    let rule = format!("matches: [{matches}], backendRefs: [{{name: a, port: 80}}]");
    let route = http_route("a", "g", &rule);
    let route = route.replace("spec:\n", &format!("spec:\n  hostnames: [{hosts}]\n"));
    let error = imported(&[("a.yaml", &route)]).unwrap_err();
    assert!(error.contains("takes more than 10000 routes"), "{error}");
}

/// nginx denies or limits `/PUB/a` and `/exact/` here.
#[test]
fn another_case_or_a_slash_never_opens_what_nginx_keeps_closed_without_a_word() {
    let server =
        "location /pub/ { proxy_pass http://a; } location = /exact { proxy_pass http://a; }";
    for around in ["location / { deny all; }", "deny all;"] {
        let open = server.replace("proxy_pass", "allow all; auth_basic off; proxy_pass");
        let text = format!("{around} {open}");
        let routes = routes(&text);
        for path in ["\"/pub/*\"", "/exact"] {
            let expected = format!("{{path: {path}, case: sensitive}}\n    upstream: a");
            assert!(routes.contains(&expected), "{text}: {routes}");
        }
        assert!(
            routes.contains("{path: \"/*\"}\n    response"),
            "{text}: {routes}"
        );
        let told = differences(&text);
        let expected = "`location = /exact` has the requests for its path with a slash at the end";
        assert!(told.iter().any(|it| it.contains(expected)), "{told:?}");
    }
    // Here, the case is of no use to anybody.
    let open = format!("location / {{ proxy_pass http://b; }} {server}");
    assert!(
        !routes(&open).contains("case: sensitive"),
        "{}",
        routes(&open)
    );
    assert!(differences(&open).is_empty(), "{:?}", differences(&open));
    let limited = "limit_req_zone $remote_addr zone=a:1m;
        server { location / { limit_req zone=a; proxy_pass http://a; }
        location /pub/ { proxy_pass http://a; } location ~* /TOP { proxy_pass http://b; } }";
    let gateway = imported(&[("nginx.conf", limited)]).unwrap().gateway;
    assert!(
        gateway.contains("{path: \"/pub/*\", case: sensitive}"),
        "{gateway}"
    );
    assert!(gateway.contains("path_regex: \".*/TOP.*\"}"), "{gateway}");
    let two = "location /pub/ { proxy_pass http://a; } location /PUB/ { deny all; }";
    for expected in [
        "{path: \"/pub/*\", case: sensitive}\n    upstream: a",
        "{path: \"/PUB/*\", case: sensitive}\n    response",
    ] {
        assert!(routes(two).contains(expected), "{}", routes(two));
    }
}

/// With `case`, a route goes before equal ones of the file.
#[test]
fn no_route_for_one_case_goes_before_an_earlier_one_that_keeps_clients_out() {
    let routes = routes(
        "location ~* \\.sql$ { deny all; } location ~ ^/app/ { proxy_pass http://a; }
         location / { proxy_pass http://a; }",
    );
    let closed = routes.find("path_regex: \".*\\\\.sql\"}\n    response");
    let open = routes.find("path_regex: \"(?-i:/app/.*|/app)\"}");
    assert!(closed.is_some() && closed < open, "{routes}");
    let matches = "matches: [{path: {value: /a}}]";
    let closed = format!("{matches}, filters: [{{type: ExtensionRef}}]");
    let both = [
        closed,
        format!("{matches}, backendRefs: [{{name: a, port: 80}}]"),
    ];
    let both = both.map(|rule| http_route("a", "g", &rule)).concat();
    let shown = shown(&imported(&[("a.yaml", &both)]).unwrap());
    assert!(!shown.contains("upstream: "), "{shown}");
    assert!(
        shown.contains("a route is left out: an earlier one matches"),
        "{shown}"
    );
}

#[test]
fn each_line_about_what_keeps_clients_out_says_what_its_absence_lets_in() {
    for (directive, effect) in [
        (
            "if ($http_a) { return 403; }",
            "requests that it would deny, limit or send elsewhere",
        ),
        (
            "limit_except GET { deny all; }",
            "the methods that it keeps out are let in",
        ),
        ("deny 10.0.0.1;", "these clients are let in"),
        ("valid_referers none;", "requests of any referer are let in"),
        (
            "satisfy any; deny all; auth_basic x;",
            "responds with 403 to everyone",
        ),
        (
            "satisfy any; auth_basic x;",
            "responds with 403 to everyone",
        ),
    ] {
        let server = format!("location / {{ {directive} proxy_pass http://a; }}");
        let told = differences(&server).join("\n");
        assert!(told.contains(effect), "{directive}: {told}");
        let is_closed = effect.contains("403");
        assert_eq!(
            routes(&server).contains("response: "),
            is_closed,
            "{directive}"
        );
    }
}

/// An HTTPRoute with a rule of these keys, for a Gateway.
fn http_route(name: &str, gateway: &str, rule: &str) -> String {
    format!(
        "---\nkind: HTTPRoute\nmetadata: {{name: {name}}}\nspec:\n  \
         parentRefs: [{{name: {gateway}}}]\n  rules:\n  - {{{rule}}}\n"
    )
}

#[test]
fn no_http_route_of_another_gateway_is_served() {
    let public = http_route("public", "outside", "backendRefs: [{name: app, port: 80}]");
    let internal = http_route(
        "internal",
        "inside",
        "backendRefs: [{name: admin, port: 80}]",
    );
    let shown = shown(&imported(&[("a.yaml", &format!("{public}{internal}"))]).unwrap());
    assert!(
        shown.contains("app.default.svc") && !shown.contains("admin.default.svc"),
        "{shown}"
    );
    let told = "internal is left out: its Gateway is default/inside, not default/outside";
    assert!(shown.contains(told), "{shown}");
}

#[test]
fn no_filter_that_is_unknown_lets_requests_through() {
    for rule in [
        "filters: [{type: Auth}], backendRefs: [{name: a, port: 80}]",
        "filters: [{}], backendRefs: [{name: a, port: 80}]",
        "backendRefs: [{name: a, port: 80, filters: [{type: ExtensionRef}]}]",
        "backendRefs: [{name: a, port: 80, filters: [{type: Auth}]}]",
    ] {
        let shown = shown(&imported(&[("a.yaml", &http_route("a", "g", rule))]).unwrap());
        assert!(!shown.contains("upstream: "), "{rule}: {shown}");
        assert!(
            shown.contains("is not translated: the route responds with 500"),
            "{shown}"
        );
    }
    let weights =
        "backendRefs: [{name: a, port: 80, weight: 18446744073709551615}, {name: b, port: 80}]";
    assert!(imported(&[("a.yaml", &http_route("a", "g", weights))]).is_ok());
}
