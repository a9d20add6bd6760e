//! Whole files, and what comes of them.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::{Effect, Imported, import};

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
        for (place, _) in &mut difference.also {
            place.file = without(std::mem::take(&mut place.file));
        }
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
    let expected = [
        "nginx.conf:3",
        "sites/b.conf:2",
        "sites/b.conf:2",
        "sites/b.conf:2",
    ];
    assert_eq!(told, expected);
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
        ("server { root /srv; }", "nginx.conf", nothing),
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
        "`limit_req zone=a burst=2 nodelay` counts apart from other uses of the zone",
        "`limit_conn b 3` denies by 429, not 503",
    ];
    assert_eq!(told[..2], expected);
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
        ("location ~ ^/x/(?!api)", r#"path_regex: "/x/.*|/x""#),
        (r"location ~ /\.(?!well-known)", r#"path_regex: ".*/\\..*""#),
        ("location ~ ^/x/(?!a[)]b)", r#"path_regex: "/x.*""#),
        ("location ~ ^/ab?(?!c)", r#"path_regex: "/ab?.*""#),
        ("location '/a b/'", r#"path_regex: "/a.*b.*""#),
        ("location ^~ /wp-admin", r#"path_regex: "/wp\\-admin.*""#),
    ] {
        let server = format!("location / {{ proxy_pass http://a; }} {location} {{ deny all; }}");
        let routes = routes(&server);
        let route = routes.split("- match").find(|route| route.contains(closed));
        let is_closed = route.is_some_and(|route| route.contains("response: {status: 403}"));
        assert!(is_closed, "{location}: {routes}");
        // The last one is closed for exactly the paths that nginx closes.
        let mut told = differences(&server).into_iter();
        let is_told = told.any(|it| it.contains("`location "));
        assert_eq!(is_told, !location.contains("wp-admin"), "{location}");
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
            "{path: \"/*\"}\n    response: {status: 444}",
            "closes the connection in nginx, and Weir responds",
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
    let other = "server { listen 81; limit_req zone=one; location / { proxy_pass http://b; } }
        server { listen 80; server_name c; limit_req zone=a; limit_req zone=b;
            location / { proxy_pass http://a; } }";
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
        ("limit_req_zone $request_uri zone=a:1m;", "{}"),
        ("limit_req_zone $uri$http_x zone=a:1m;", "{}"),
        (
            "limit_req_zone $binary_remote_addr$request_uri zone=a:1m;",
            "per: address",
        ),
        (
            "limit_req_zone $scheme$binary_remote_addr zone=a:1m;",
            "per: address",
        ),
        (
            "geo $g { default $remote_addr; } limit_req_zone $g zone=a:1m;",
            "{}",
        ),
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
            "geo $g { ranges; default 1; 10.0.0.1-10.0.0.9 0; } map $g $k { 0 ''; 1 $remote_addr; }
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
        server { location / { proxy_set_header X-User $a; proxy_pass http://u; } }";
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
        ("http://a:3000", "", "host: \"a:3000\","),
        ("http://a:80", "", "host: a,"),
        ("http://a", "proxy_set_header Host $proxy_host;", "host: a,"),
        (
            "http://a",
            "proxy_set_header host b.example;",
            "host: b.example,",
        ),
        ("http://a", "proxy_set_header X-A 1;", "host: a,"),
        ("http://unix:/run/a.sock", "", "host: localhost,"),
        ("http://upstream", "", "host: \"upstream:80\","),
        (
            "http://a",
            "proxy_set_header Host $host;",
            "servers: [\"http://a\"],",
        ),
        (
            "http://a",
            "proxy_set_header Host $http_host;",
            "servers: [\"http://a\"],",
        ),
    ] {
        let text = format!("server {{ location / {{ {header} proxy_pass {pass}; }} }}");
        let gateway = imported(&[("nginx.conf", &text)]).unwrap().gateway;
        assert!(gateway.contains(host), "{pass} {header}: {gateway}");
    }
    let told = differences("location / { proxy_set_header Host $a; proxy_pass http://a; }");
    assert!(
        told[0].contains("the app gets the name that clients send"),
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
    let folder = told("/api/", "http://a/v1/");
    assert!(!folder.contains("sends `"), "{folder}");
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
    let told = differences(&open).join("\n");
    assert!(!told.contains("its path with a slash"), "{told}");
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
            "limit_except GET { allow 10.0.0.1; }",
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

/// What comes of directives in the block `http`.
fn imported_http(text: &str) -> Imported {
    imported(&[("nginx.conf", text), ("site.pem", "a"), ("site.key", "b")]).unwrap()
}

/// The differences with an effect, each without its remedy.
fn with_effect(imported: &Imported, effect: Effect) -> Vec<&str> {
    let differences = imported.differences.iter();
    let differences = differences.filter(|it| it.effect == effect);
    differences.map(|it| it.what.as_str()).collect()
}

const TLS: &str = "ssl_certificate site.pem; ssl_certificate_key site.key;";

/// Of equal servers, the redirect stood first, and the app and its limits were gone.
#[test]
fn a_redirect_to_https_never_takes_the_place_of_the_app_and_its_limits() {
    let app = format!(
        "server {{ listen 443 ssl; server_name s.test; {TLS} location / {{
           limit_req zone=a burst=20 nodelay; proxy_pass http://127.0.0.1:3000; }} }}"
    );
    for redirect in [
        "location / { return 301 https://$host$request_uri; }",
        "return 301 https://s.test$request_uri;",
        "return 301 https://$server_name$request_uri;",
        "rewrite ^ https://$http_host$request_uri? permanent;",
        "rewrite ^/(.*)$ https://s.test/$1 permanent;",
        "if ($host = s.test) { return 301 https://$host$request_uri; } return 404;",
        "location / { return 301 https://$host$request_uri; }
         location /old/ { return 301 https://$host$request_uri; }",
    ] {
        let redirect = format!("server {{ listen 80; server_name s.test; {redirect} }}");
        for servers in [format!("{redirect} {app}"), format!("{app} {redirect}")] {
            let zone = "limit_req_zone $binary_remote_addr zone=a:1m rate=10r/s;";
            let imported = imported_http(&format!("{zone} {servers}"));
            let gateway = &imported.gateway;
            for expected in [
                "- {address: \"0.0.0.0:443\", tls: {certificate: /site.pem",
                "- {address: \"0.0.0.0:80\", redirect_to_https: true}",
                "limits: [a]",
            ] {
                let found = gateway
                    .replace(": site.pem", ": /site.pem")
                    .contains(expected);
                assert!(found, "{expected}: {}", shown(&imported));
            }
            assert!(!gateway.contains("upstream: nginx"), "{gateway}");
            assert_eq!(with_effect(&imported, Effect::LeavesOut), [""; 0]);
            assert_eq!(with_effect(&imported, Effect::Opens), [""; 0]);
        }
    }
}

/// The listener redirects whatever it is asked for.
#[test]
fn what_a_redirecting_server_does_besides_is_not_left_out_without_a_word() {
    let imported_with = |redirect: &str| {
        imported_http(&format!(
            "server {{ listen 80; server_name s.test; {redirect} }}
             server {{ listen 443 ssl; server_name s.test; {TLS}
             location / {{ proxy_pass http://127.0.0.1:3000; }} }}"
        ))
    };
    for within in ["proxy_pass http://127.0.0.1:9000;", "root /srv;"] {
        let imported = imported_with(&format!(
            "location /.well-known/ {{ {within} }}
             location / {{ return 301 https://$host$request_uri; }}"
        ));
        assert_eq!(
            with_effect(&imported, Effect::LeavesOut),
            ["`location /.well-known/` is left out: the listener redirects all paths"]
        );
    }
    // As certbot writes it.
    let by_host =
        imported_with("if ($host = s.test) { return 301 https://$host$request_uri; } return 404;");
    assert_eq!(with_effect(&by_host, Effect::Opens), [""; 0]);
    let told = with_effect(&by_host, Effect::Differs).join("\n");
    let expected = "`server` redirects all hosts and paths, of which others get 404 in nginx";
    assert!(told.contains(expected), "{told}");
    // A host that is kept out is none of those.
    let kept_out = imported_with(
        "if ($http_user_agent ~ bot) { return 403; } return 301 https://$host$request_uri;",
    );
    let told = with_effect(&kept_out, Effect::Opens).join("\n");
    assert!(told.contains("`if ($http_user_agent ~ bot)`"), "{told}");
}

#[test]
fn a_redirect_by_tls_to_another_host_is_a_route() {
    let imported = imported_http(&format!(
        "server {{ listen 443 ssl; server_name www.s.test; {TLS} return 301 https://s.test$request_uri; }}
         server {{ listen 443 ssl; server_name s.test; {TLS} location / {{ proxy_pass http://a; }} }}"
    ));
    let route = "{host: www.s.test, path: \"/*\"}\n    redirect: {to: \"https://s.test{{ uri }}\"";
    assert!(imported.gateway.contains(route), "{}", imported.gateway);
    assert_eq!(with_effect(&imported, Effect::LeavesOut), [""; 0]);
}

#[test]
fn no_server_with_an_app_is_left_out_without_a_word_that_comes_first() {
    let text = "limit_req_zone $remote_addr zone=a:1m;
        server { listen 81; location /a { root /a; } location /b { root /b; } }
        server { listen 80; location / { limit_req zone=a; proxy_pass http://a; } }";
    let imported = imported_http(text);
    assert!(
        imported.gateway.contains("limits: [a]"),
        "{}",
        imported.gateway
    );
    let first = &imported.differences[0];
    assert_eq!(
        (first.effect, first.place.line),
        (Effect::LeavesOut, 2),
        "{first}"
    );
}

#[test]
fn nothing_that_is_served_by_tls_or_to_this_machine_is_open_to_the_network() {
    let location = "location / { proxy_pass http://a; }";
    for (listen, more) in [
        ("127.0.0.1:8443 ssl", ""),
        (
            "443 ssl",
            "ssl_certificate missing.pem; ssl_certificate_key missing.key;",
        ),
        ("unix:/run/a.sock", ""),
        ("127.0.0.1:8080 proxy_protocol", ""),
        (
            "127.0.0.1:8080 proxy_protocol",
            "set_real_ip_from 10.0.0.0/8;",
        ),
        ("443 quic", ""),
    ] {
        let imported = imported_http(&format!("server {{ listen {listen}; {more} {location} }}"));
        let expected = "listen: [{address: \"127.0.0.1:8080\"}]";
        assert!(
            imported.gateway.contains(expected),
            "{listen}: {}",
            imported.gateway
        );
        let told = with_effect(&imported, Effect::LeavesOut).join("\n");
        assert!(
            told.contains("listens at 127.0.0.1:8080"),
            "{listen}: {told}"
        );
    }
    let balanced = imported_http(&format!(
        "server {{ listen 8080 proxy_protocol; set_real_ip_from 10.0.0.1/8;
         real_ip_header proxy_protocol; {location} }}"
    ));
    let expected = "{address: \"0.0.0.0:8080\", proxy_protocol: {trusted: [\"10.0.0.0/8\"]}}";
    assert!(balanced.gateway.contains(expected), "{}", balanced.gateway);
}

/// Until nginx 1.25.1, `ssl on` is another form of `listen ... ssl`.
#[test]
fn no_listener_with_ssl_on_becomes_one_without_tls() {
    let app = "location / { proxy_pass http://a; }";
    for (text, address) in [
        (
            format!("server {{ listen 443; ssl on; {TLS} {app} }}"),
            "443",
        ),
        (
            format!("ssl on; {TLS} server {{ listen 443; {app} }}"),
            "443",
        ),
        (
            format!("http {{ ssl on; {TLS} server {{ listen 443; {app} }} }}"),
            "443",
        ),
        (format!("server {{ ssl on; {TLS} {app} }}"), "80"),
    ] {
        let imported = imported_http(&text);
        let expected = format!("listen: [{{address: \"0.0.0.0:{address}\", tls: {{certificate:");
        let found = imported.gateway.contains(&expected);
        assert!(found, "{expected}: {}", shown(&imported));
        let told = with_effect(&imported, Effect::Differs).join("\n");
        assert!(!told.contains("ssl,"), "{told}");
    }
    let missing = imported_http(&format!("server {{ listen 443; ssl on; {app} }}"));
    let told = with_effect(&missing, Effect::LeavesOut).join("\n");
    assert!(
        told.contains("it has no certificate"),
        "{}",
        shown(&missing)
    );
    let off = imported_http(&format!("ssl on; server {{ listen 80; ssl off; {app} }}"));
    let expected = "listen: [{address: \"0.0.0.0:80\"}]";
    assert!(off.gateway.contains(expected), "{}", off.gateway);
    let redirect = imported_http(&format!(
        "server {{ listen 80; return 301 https://$host$request_uri; }}
         server {{ listen 443; ssl on; {TLS} {app} }}"
    ));
    let expected = "redirect_to_https: true";
    assert!(redirect.gateway.contains(expected), "{}", redirect.gateway);
}

/// What a zone of clients by `geo` and `map` becomes.
fn zone_of_clients(definitions: &str) -> Imported {
    let server = "server { location / { limit_req zone=a; proxy_pass http://a; } }";
    imported_http(&format!(
        "{definitions} limit_req_zone $k zone=a:1m; {server}"
    ))
}

#[test]
fn an_exempt_network_in_any_spelling_is_that_network_and_no_other() {
    let map = "map $w $k { 0 \"\"; 1 $binary_remote_addr; }";
    for (networks, ids) in [
        ("::1 0;", "\"::/64\""),
        ("2001:DB8:1:2::/64 0;", "\"2001:db8:1:2::/64\""),
        ("2001:db8::/32 0;", "\"2001:db8::/32\""),
        ("10.0.0.0/8 0; 10.0.0.0/8 0;", "\"10.0.0.0/8\""),
        ("10.0.0.1/8 0;", "\"10.0.0.0/8\""),
        ("::/0 0;", "\"::/0\""),
        ("::ffff:10.0.0.1 0; 10.0.0.2 0;", "\"10.0.0.2\""),
    ] {
        let imported = zone_of_clients(&format!("geo $w {{ default 1; {networks} }} {map}"));
        let overrides = imported.overrides.as_deref().unwrap_or_default();
        let expected = format!("period: 1s, ids: [{ids}]}}\n");
        assert!(overrides.ends_with(&expected), "{networks}: {overrides}");
        assert_eq!(with_effect(&imported, Effect::Opens), [""; 0], "{networks}");
    }
    let neighbours = zone_of_clients(&format!("geo $w {{ default 1; 2001:db8::1 0; }} {map}"));
    let told = with_effect(&neighbours, Effect::Opens).join("\n");
    assert!(
        told.contains("exempts all of the /64 of 2001:db8::1"),
        "{told}"
    );
}

/// Weir refuses overrides for networks that no client is in, and so did the import.
#[test]
fn no_network_of_a_translator_ends_the_import_or_exempts_more_than_its_clients() {
    let map = "map $w $k { 0 ''; 1 $binary_remote_addr; }";
    for (networks, ids) in [
        ("default 1; 64:ff9b::192.0.2.1 0;", Some("\"192.0.2.1\"")),
        (
            "default 1; 64:ff9b::10.0.0.1/104 0;",
            Some("\"10.0.0.0/8\""),
        ),
        // One of the two is counted, whichever stands first.
        ("default 1; 64:ff9b::192.0.2.1 0; 192.0.2.1 1;", None),
        ("default 1; 192.0.2.1 1; 64:ff9b::192.0.2.1 0;", None),
        ("default 1; 64:ff9b::/96 0;", None),
        ("default 1; 64:ff9b::/64 0;", None),
        ("default 1; 64:ff9b::/80 0;", None),
        ("default 1; 64:ff9b::1:0:0/95 0;", None),
        ("default 1; 64:ff9b::/32 0;", None),
        ("default 0; 64:ff9b::/96 1;", None),
    ] {
        let imported = zone_of_clients(&format!("geo $w {{ {networks} }} {map}"));
        let overrides = imported.overrides.as_deref().unwrap_or_default();
        let found = overrides.split("ids: [").nth(1);
        let found = found.map(|it| it.split(']').next().unwrap());
        assert_eq!(found, ids, "{networks}: {overrides}");
        let told = with_effect(&imported, Effect::Opens).join("\n");
        assert!(
            told.contains("counts the clients of 64:ff9b:"),
            "{networks}: {told}"
        );
    }
}

#[test]
fn a_network_that_alone_is_counted_or_that_is_counted_again_is_no_exempt_one() {
    let alone = zone_of_clients("geo $w { 10.0.0.0/8 1; } map $w $k { 1 $binary_remote_addr; }");
    let expected = "- a: {burst: 1, count: 1, period: 1s, ids: [\"10.0.0.0/8\"]}\n";
    assert_eq!(alone.overrides.as_deref().unwrap().trim_start(), expected);
    assert!(
        alone.gateway.contains("limits: [{limit: a, per: address}]"),
        "{}",
        alone.gateway
    );
    assert!(!alone.defaults.contains("a: {"), "{}", alone.defaults);
    let again = zone_of_clients(
        "geo $w { default 1; 10.0.0.0/8 0; 10.1.0.0/16 1; }
         map $w $k { 0 ''; default $binary_remote_addr; }",
    );
    let overrides = again.overrides.as_deref().unwrap_or_default();
    for expected in [
        "period: 1s, ids: [\"10.0.0.0/8\"]}",
        "- a: {burst: 1, count: 1, period: 1s, ids: [\"10.1.0.0/16\"]}",
    ] {
        assert!(overrides.contains(expected), "{overrides}");
    }
    let by_address = zone_of_clients("map $remote_addr $k { 10.0.0.1 ''; default $remote_addr; }");
    assert!(
        by_address
            .overrides
            .unwrap()
            .contains("ids: [\"10.0.0.1\"]")
    );
}

#[test]
fn each_reason_why_a_limit_is_left_out_is_the_reason() {
    for (definitions, reason) in [
        (
            "geo $k { default $binary_remote_addr; }",
            "nginx expands no variable in `geo`",
        ),
        (
            "geo $w { ranges; 10.0.0.1-10.0.0.9 0; } map $w $k { 0 ''; default $remote_addr; }",
            "`geo $w` has `ranges`",
        ),
        (
            "geo $w { default 1; 10.0.0.0/8 0; } map $w $k { ~^1 $remote_addr; default ''; }",
            "chooses by more than networks",
        ),
        (
            "geo $realip_remote_addr $w { default 1; 10.0.0.0/8 0; }
             map $w $k { 0 ''; default $remote_addr; }",
            "`geo $realip_remote_addr $w` is not about the client's address",
        ),
        (
            "geo $http_x_remote_addr $w { default 1; 10.0.0.0/8 0; }
             map $w $k { 0 ''; default $remote_addr; }",
            "`geo $http_x_remote_addr $w` is not about the client's address",
        ),
        // nginx reads no address in these bytes.
        (
            "geo $binary_remote_addr $w { default 1; 10.0.0.0/8 0; }
             map $w $k { 0 ''; default $remote_addr; }",
            "`geo $binary_remote_addr $w` is not about the client's address",
        ),
        (
            "map $host $k { a.test x; default $remote_addr; }",
            "chooses by more than networks",
        ),
    ] {
        let imported = zone_of_clients(definitions);
        let told = with_effect(&imported, Effect::LeavesOut).join("\n");
        assert!(told.contains(reason), "{definitions}: {told}");
    }
    let bounds = imported_http(
        "limit_conn_zone $remote_addr zone=c:1m; server {
         location / { limit_conn c 1; proxy_pass http://a; }
         location /b/ { limit_conn c 2; proxy_pass http://a; } }",
    );
    let opened = bounds
        .differences
        .iter()
        .find(|it| it.effect == Effect::Opens);
    let remedy = "nginx counts them together; give them one number for that";
    assert_eq!(opened.map(|it| it.remedy.as_str()), Some(remedy));
}

#[test]
fn no_body_is_longer_than_in_nginx_unless_a_file_says_so() {
    for (size, expected) in [
        ("", "max_body_bytes: 1MiB"),
        ("client_max_body_size 100;", "max_body_bytes: 100B"),
        ("client_max_body_size 16k;", "max_body_bytes: 16KiB"),
        ("client_max_body_size 2G;", "max_body_bytes: 2GiB"),
    ] {
        let text = format!("server {{ {size} location / {{ proxy_pass http://a; }} }}");
        let gateway = imported_http(&text).gateway;
        assert!(gateway.contains(expected), "{size}: {gateway}");
    }
    let two = "client_max_body_size 0; location / { proxy_pass http://a; }
        location /up/ { client_max_body_size 5m; proxy_pass http://a; }";
    let routes = routes(two);
    let (open, bound) = routes.split_once("/up/*").unwrap();
    assert!(!open.contains("max_body_bytes"), "{routes}");
    assert!(bound.contains("max_body_bytes: 5MiB"), "{routes}");
}

#[test]
fn the_requests_to_a_server_without_a_name_are_not_counted_by_its_name() {
    let limits = "limit_req_zone $server_name zone=s:1m rate=1r/m;
        limit_conn_zone $server_name zone=c:1m;";
    let location = "location / { limit_req zone=s burst=2 nodelay; limit_conn c 1;
        proxy_pass http://a; }";
    let nameless = imported_http(&format!("{limits} server {{ {location} }}"));
    assert!(
        nameless.gateway.contains("limits: []"),
        "{}",
        nameless.gateway
    );
    assert!(
        !nameless.gateway.contains("on_denied"),
        "{}",
        nameless.gateway
    );
    let two = format!(
        "{limits} server {{ server_name a.test; {location} }} server {{ server_name b.test; {location} }}"
    );
    let two = imported_http(&two);
    for name in [
        "s-a-test: {per: global",
        "s-b-test: {per: global",
        "c-b-test: {per: global",
    ] {
        assert!(two.defaults.contains(name), "{}", two.defaults);
    }
    assert_eq!(with_effect(&two, Effect::LeavesOut), [""; 0]);
}

/// The route denied by 429, which was the status of a limit that it did not have.
#[test]
fn no_limit_denies_by_the_status_of_one_that_was_not_translated() {
    let imported = imported_http(
        "limit_req_zone $request_uri zone=t:1m; limit_conn_zone $remote_addr zone=c:1m;
         server { location / { limit_req zone=t; limit_req_status 429; limit_conn c 1;
         proxy_pass http://a; } }",
    );
    let expected = "limits: [c]\n    on_denied: {reject: {status: 503}}";
    assert!(imported.gateway.contains(expected), "{}", imported.gateway);
    assert!(
        !shown(&imported).contains("denies by"),
        "{}",
        shown(&imported)
    );
}

#[test]
fn a_header_of_nginx_reaches_the_app_as_it_was() {
    let server = "location / { proxy_set_header X-Real-IP $remote_addr; proxy_pass http://a;
        proxy_set_header X-Forwarded-Proto https; proxy_set_header Authorization '';
        proxy_set_header X-Url $scheme://$host$request_uri; proxy_set_header X-Id $http_x_id; }";
    let expected = "request_headers: {set: {x-real-ip: \"{{ client_address }}\", \
                    x-forwarded-proto: https, \
                    x-url: \"{{ scheme }}://{{ host }}{{ uri }}\"}, remove: [authorization]}";
    assert!(routes(server).contains(expected), "{}", routes(server));
    assert_eq!(differences(server), [""; 0]);
}

#[test]
fn a_return_is_what_nginx_returns_and_is_not_counted() {
    for (directive, expected) in [
        ("return 404;", "response: {status: 404}\n    limits: []"),
        (
            "return 200 ok;",
            "response: {status: 200, headers: {content-type: text/plain}, body: ok}",
        ),
        (
            "return 301 https://b.test$request_uri;",
            "{to: \"https://b.test{{ uri }}\", status: 301}",
        ),
        ("return 302 /b;", "{to: /b, status: 302}"),
        (
            "return https://b.test/;",
            "{to: \"https://b.test/\", status: 302}",
        ),
        ("return 200 $hostname;", "upstream: nginx"),
    ] {
        let routes = routes(&format!(
            "location / {{ proxy_pass http://a; }} location /x/ {{ {directive} }}"
        ));
        let route = routes
            .split("- match")
            .find(|route| route.contains("/x/*"))
            .unwrap();
        assert!(route.contains(expected), "{directive}: {route}");
    }
    // The type goes by the extension, where there is one path.
    let returned = "location = /a.html { add_header X-B b; return 200 ok; }";
    let expected = "{status: 200, headers: {x-b: b, content-type: text/html}, body: ok}";
    assert!(routes(returned).contains(expected), "{}", routes(returned));
    assert!(!differences(returned).join("").contains("one type"));
    let several = differences("location /x/ { return 200 ok; }").join("");
    assert!(several.contains("gets one type for all paths"), "{several}");
    // Weir takes both for one path, and would redirect for ever.
    let loops =
        routes("location = /blog { return 301 /blog/; } location /blog/ { proxy_pass http://a; }");
    assert!(!loops.contains("redirect:"), "{loops}");
}

#[test]
fn a_limit_for_one_method_does_not_hold_for_the_others() {
    let post = zone_of_clients("map $request_method $k { default ''; POST $binary_remote_addr; }");
    for expected in [
        "{path: \"/*\", methods: [POST]}\n    upstream: a\n    limits: [a]",
        "{path: \"/*\"}\n    name: \"/* 2\"\n    upstream: a\n    limits: []",
    ] {
        let gateway = post.gateway.replace("    name: \"[POST]/* 1\"\n", "");
        let found = gateway.contains(expected)
            || gateway.contains(&expected.replace("    name: \"/* 2\"\n", ""));
        assert!(found, "{expected}: {gateway}");
    }
    assert_eq!(with_effect(&post, Effect::LeavesOut), [""; 0]);
    for (directive, open, closed) in [
        (
            "limit_except GET { deny all; }",
            "methods: [HEAD, GET]",
            "response: {status: 403}",
        ),
        (
            "if ($request_method !~ ^(GET|HEAD)$) { return 405; }",
            "methods: [HEAD, GET]",
            "response: {status: 405}\n    limits: []",
        ),
    ] {
        let server = format!("location / {{ {directive} proxy_pass http://a; }}");
        let routes = routes(&server);
        let (first, rest) = routes.split_once("  - match: {path: \"/*\"}").unwrap();
        assert!(
            first.contains(open) && first.contains("upstream: a"),
            "{routes}"
        );
        assert!(
            rest.contains(closed) && !rest.contains("upstream: a"),
            "{routes}"
        );
        assert_eq!(differences(&server), [""; 0]);
    }
}

/// An equal text goes before an expression that stands first.
#[test]
fn a_limit_for_a_method_by_its_name_does_not_yield_to_an_earlier_expression() {
    for map in [
        "~^(GET|POST)$ ''; POST $binary_remote_addr;",
        "POST $binary_remote_addr; ~^(GET|POST)$ '';",
    ] {
        let post = zone_of_clients(&format!("map $request_method $k {{ default ''; {map} }}"));
        let expected = "methods: [POST]}\n    upstream: a\n    limits: [a]";
        assert!(post.gateway.contains(expected), "{map}: {}", post.gateway);
    }
}

/// By the address alone, clients behind the CDN would share a bucket.
#[test]
fn clients_of_a_cdn_are_counted_by_its_header_and_others_by_their_address() {
    let cdn = zone_of_clients(
        "map $http_cf_connecting_ip $k { '' $binary_remote_addr; default $http_cf_connecting_ip; }",
    );
    for expected in [
        "headers: {cf-connecting-ip: {regex: \".+\"}}}",
        "limits: [a]",
        "limits: [a-2]",
    ] {
        assert!(
            cdn.gateway.contains(expected),
            "{expected}: {}",
            shown(&cdn)
        );
    }
    assert!(
        cdn.defaults.contains("per: \"header:cf-connecting-ip\""),
        "{}",
        cdn.defaults
    );
}

#[test]
fn a_client_behind_a_trusted_proxy_is_who_nginx_says_it_is() {
    let location = "location / { proxy_pass http://a; }";
    let imported = imported_http(&format!(
        "set_real_ip_from 10.0.0.1/8; set_real_ip_from 2001:db8::/32; real_ip_recursive on;
         real_ip_header X-Forwarded-For; server {{ {location} }}"
    ));
    let expected = "client_address: {trusted_proxies: [\"10.0.0.0/8\", \"2001:db8::/32\"], \
                    header: x-forwarded-for}";
    assert!(imported.gateway.contains(expected), "{}", imported.gateway);
    assert!(imported.differences.is_empty(), "{}", shown(&imported));
    // Weir looks at one header for all requests.
    let apart = imported_http(&format!(
        "server {{ set_real_ip_from 10.0.0.0/8; {location} }} server {{ server_name b; {location} }}"
    ));
    assert!(
        !apart.gateway.contains("client_address"),
        "{}",
        apart.gateway
    );
    let told = with_effect(&apart, Effect::Opens).join("\n");
    assert!(told.contains("`set_real_ip_from 10.0.0.0/8` is not translated"));
    // The proxy may be exempt, and then all of its clients are.
    let by_name = imported_http(&format!(
        "set_real_ip_from proxy.test; server {{ {location} }}"
    ));
    let told = with_effect(&by_name, Effect::Opens).join("\n");
    assert!(told.contains("`set_real_ip_from proxy.test` is not"));
}

/// nginx takes the last address, which the proxy wrote; Weir walks on, to one that a client wrote.
#[test]
fn no_client_chooses_its_address_behind_a_proxy_without_a_word() {
    let imported_with = |network: &str, is_recursive: &str| {
        imported_http(&format!(
            "set_real_ip_from {network}; real_ip_header X-Forwarded-For;
             real_ip_recursive {is_recursive}; server {{ location / {{ proxy_pass http://a; }} }}"
        ))
    };
    for network in ["0.0.0.0/0", "::/0"] {
        let all = imported_with(network, "off");
        assert!(!all.gateway.contains("client_address:"), "{}", all.gateway);
        let told = with_effect(&all, Effect::LeavesOut).join("\n");
        let expected = "`real_ip_header X-Forwarded-For` is left out: it takes the last address";
        assert!(told.contains(expected), "{}", shown(&all));
    }
    let some = imported_with("10.0.0.0/8", "off");
    assert!(some.gateway.contains("client_address:"), "{}", some.gateway);
    let told = with_effect(&some, Effect::Opens).join("\n");
    assert!(told.contains("takes the last address"), "{}", shown(&some));
    // There, clients choose in nginx as well.
    let recursive = imported_with("0.0.0.0/0", "on");
    assert!(
        recursive.gateway.contains("client_address:"),
        "{}",
        recursive.gateway
    );
}

/// A limited location has the paths that only begin with its own.
#[test]
fn a_path_that_begins_with_a_limited_one_evades_no_limit() {
    let imported = imported_http(
        "limit_req_zone $remote_addr zone=a:1m; server { location / { proxy_pass http://a; }
         location /login { limit_req zone=a; proxy_pass http://a; } }",
    );
    let route = imported
        .gateway
        .split("- match")
        .find(|it| it.contains("/login.*"));
    assert!(
        route.is_some_and(|it| it.contains("limits: [a]")),
        "{}",
        imported.gateway
    );
}

/// `GET /LOGIN` is for `location /` in nginx, and has its limit.
#[test]
fn no_paths_beside_a_location_for_one_case_evade_the_limit_of_another_case() {
    let routes_with = |map: &str| {
        let imported = imported_http(&format!(
            "map $request_method $m {{ {map} }}
             limit_req_zone $remote_addr zone=a:1m; limit_req_zone $m zone=m:1m;
             server {{ limit_req zone=a; location / {{ proxy_pass http://a; }}
             location /login {{ limit_req zone=m; proxy_pass http://a; }} }}"
        ));
        imported.gateway
    };
    let for_post = routes_with("default ''; POST $binary_remote_addr;");
    assert!(for_post.contains("(?-i:/login.*)"), "{for_post}");
    assert!(!for_post.contains("\"/login.*\""), "{for_post}");
    // Here, a variant alone has no limit.
    let not_for_get = routes_with("default $binary_remote_addr; GET '';");
    let routes: Vec<_> = not_for_get.split("- match").collect();
    let own = routes.iter().filter(|it| it.contains("/login/*"));
    assert_eq!(own.clone().count(), 3, "{not_for_get}");
    assert!(
        own.clone().all(|it| it.contains("case: sensitive")),
        "{not_for_get}"
    );
    assert!(not_for_get.contains("(?-i:/login.*)"), "{not_for_get}");
    assert!(!not_for_get.contains("\"/login.*\""), "{not_for_get}");
}

#[test]
fn one_directive_that_is_repeated_is_one_difference() {
    let location = |number: usize| {
        format!("location /{number}/ {{ proxy_set_header X-A $a; proxy_pass http://a; }}\n")
    };
    let locations: String = (0..12).map(location).collect();
    let text = format!("server {{\nlocation / {{ proxy_pass http://a; }}\n{locations} }}");
    let imported = imported_http(&text);
    let told: Vec<_> = imported
        .differences
        .iter()
        .filter(|it| it.what.contains("X-A"))
        .collect();
    let [one] = told[..] else { panic!("{told:?}") };
    let shown = one.to_string();
    assert!(
        shown.contains("also nginx.conf:4, nginx.conf:5,"),
        "{shown}"
    );
    assert!(shown.contains(", and 5 more"), "{shown}");
}

#[test]
fn an_http_route_that_only_redirects_is_imported_whatever_is_beside_it() {
    let redirect =
        "filters: [{type: RequestRedirect, requestRedirect: {scheme: https, statusCode: 301}}]";
    let section = |route: String, name: &str| {
        route.replace(
            "parentRefs: [{name: g}]",
            &format!("parentRefs: [{{name: g, sectionName: {name}}}]"),
        )
    };
    let redirect = section(http_route("redirect", "g", redirect), "http");
    let app = "backendRefs: [{name: app, port: 80}]";
    let app = section(http_route("app", "g", app), "https");
    let alone = imported(&[("a.yaml", &redirect)]).unwrap();
    assert!(
        alone.gateway.contains("redirect_to_https: true"),
        "{}",
        alone.gateway
    );
    assert_eq!(with_effect(&alone, Effect::Opens), [""; 0]);
    for both in [format!("{redirect}{app}"), format!("{app}{redirect}")] {
        let both = imported(&[("a.yaml", &both)]).unwrap();
        assert!(both.gateway.contains("app.default.svc"), "{}", both.gateway);
        let [told] = with_effect(&both, Effect::Opens)[..] else {
            panic!("{}", shown(&both))
        };
        assert!(
            told.contains("another scheme of the same host is left out"),
            "{told}"
        );
    }
}

#[test]
fn a_denied_client_gets_the_page_that_nginx_has_for_the_status_of_the_limit() {
    let zone = "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/m;\n";
    let denied = |directives: &str| {
        let text = format!("{zone}server {{ limit_req zone=a; {directives} }}");
        let imported = imported(&[("nginx.conf", &text)]).unwrap();
        let mut lines = imported.gateway.lines();
        let reject = lines.find_map(|line| line.split_once("on_denied: {reject: "));
        let reject = reject.map_or("none", |(_, reject)| reject.strip_suffix('}').unwrap());
        let is_listed = shown(&imported).contains("error_page");
        (reject.to_owned(), is_listed, shown(&imported))
    };
    let json = "default_type application/json; return 418 '{}';";
    for (directives, reject) in [
        // Without `=`, the status is that of the limit; with one, that of the text.
        (
            format!("error_page 503 @p; location @p {{ {json} }}"),
            "{status: 503, headers: {content-type: application/json}, body: '{}'}",
        ),
        (
            format!("error_page 503 = @p; location @p {{ {json} }}"),
            "{status: 418, headers: {content-type: application/json}, body: '{}'}",
        ),
        (
            format!("error_page 502 503 =429 /p; location = /p {{ {json} }}"),
            "{status: 429, headers: {content-type: application/json}, body: '{}'}",
        ),
        (
            "error_page 503 =429 @p; location @p { return 418; }".to_owned(),
            "{status: 418}",
        ),
        (
            "error_page 503 https://a.test/slow;".to_owned(),
            "{status: 302, headers: {location: https://a.test/slow}}",
        ),
        (
            "error_page 503 =429 @p; location @p { add_header Retry-After 9 always; \
             add_header X-B b; return 429 slow; }"
                .to_owned(),
            "{status: 429, headers: {retry-after: '9', content-type: text/plain}, body: slow}",
        ),
    ] {
        let (found, is_listed, _) = denied(&directives);
        let loose = |text: &str| text.replace(['\'', '"'], "");
        assert_eq!(loose(&found), loose(reject), "{directives}");
        assert!(!is_listed || directives.contains("502"), "{directives}");
    }
    for directives in [
        "error_page 503 /50x.html;",
        "error_page 503 =429 @p; location @p { proxy_pass http://a; }",
        "error_page 503 /p; location /p { return 200 $host; }",
        "error_page 503 @p; location @p { return 200; }",
        "error_page 503 =429 @p; location @p { return 204; }",
        "error_page 503 @p; location @p { return 444; }",
        "error_page 503 https://a.test/$host;",
    ] {
        let (found, is_listed, _) = denied(directives);
        assert!(found.contains("503"), "{directives}: {found}");
        assert!(is_listed, "{directives}");
    }
    let pages = "error_page 503 =429 /p.JSON; location = /p.JSON";
    let types = "types { application/json json js; text/x j; }";
    for (directives, reject, listed) in [
        // By the extension, if a type is known for it.
        (
            format!("{types} default_type text/x; {pages} {{ return 200 x; }}"),
            "{status: 429, headers: {content-type: application/json}, body: x}",
            "",
        ),
        (
            format!("{types} {pages} {{ types {{ text/y y; }} return 200 x; }}"),
            "{status: 429, headers: {content-type: text/plain}, body: x}",
            "",
        ),
        (
            format!("{pages} {{ default_type text/x; return 200 x; }}"),
            "{status: 429, headers: {content-type: text/x}, body: x}",
            "",
        ),
        (
            "error_page 503 =429 /p.html; location = /p.html { return 200 x; }".to_owned(),
            "{status: 429, headers: {content-type: text/html}, body: x}",
            "",
        ),
        // A location by its name has paths of all kinds.
        (
            "error_page 503 =429 @p; location @p { return 200 x; }".to_owned(),
            "{status: 429, headers: {content-type: text/plain}, body: x}",
            "gets one type for all paths",
        ),
        (
            "error_page 503 =429 @p; location @p { types {} return 200 x; }".to_owned(),
            "{status: 429, headers: {content-type: text/plain}, body: x}",
            "",
        ),
        // Without `always`, by the status that clients get.
        (
            "error_page 503 =200 /p; location = /p { add_header X-B b; return 200 x; }".to_owned(),
            "{status: 200, headers: {x-b: b, content-type: text/plain}, body: x}",
            "",
        ),
        (
            "add_header X-B b; error_page 503 https://a.test/slow;".to_owned(),
            "{status: 302, headers: {x-b: b, location: https://a.test/slow}}",
            "",
        ),
        (
            "error_page 503 /p; location = /p { add_header X-B b always; return 302 /slow; }"
                .to_owned(),
            "{status: 302, headers: {x-b: b, location: /slow}}",
            "",
        ),
        (
            "error_page 503 @p; location @p { types {} add_header X-B $host always; \
             add_header Content-Type text/x always; add_header X-C '' always; return 429 x; }"
                .to_owned(),
            "{status: 503, headers: {content-type: text/plain}, body: x}",
            "also nginx.conf:2 `add_header X-B $host always`",
        ),
    ] {
        let (found, _, shown) = denied(&directives);
        let loose = |text: &str| text.replace(['\'', '"'], "");
        assert_eq!(loose(&found), loose(reject), "{directives}");
        let is_quiet = !shown.contains("one type for all") && !shown.contains("responses without");
        match listed {
            "" => assert!(is_quiet, "{directives}: {shown}"),
            listed => assert!(shown.contains(listed), "{directives}: {shown}"),
        }
    }
    // Of another status.
    assert!(
        denied("error_page 404 @p; location @p { return 418 x; }")
            .0
            .contains("503")
    );
}

/// Only one of the headers was looked at, and the limit by the other one denied nothing.
#[test]
fn limits_by_several_headers_are_routes_for_each_choice_of_them() {
    let text = "map $http_a $a { '' ''; default $http_a; }
        map $arg_b $b { '' $binary_remote_addr; default ''; }
        limit_req_zone $a zone=by_a:1m rate=1r/m;
        limit_req_zone $b zone=by_b:1m rate=1r/m;
        server { limit_req zone=by_a; limit_req zone=by_b; proxy_pass http://app; }";
    let imported = imported(&[("nginx.conf", text)]).unwrap();
    let routes = imported.gateway.split("routes:\n").nth(1).unwrap();
    let routes: String = routes.split_whitespace().collect();
    let (a, b) = ("headers:{a:{regex:\".+\"}}", "query:{b:{regex:\".+\"}}");
    for (matches, limits) in [
        (String::new(), "[by_b]"),
        (format!(",{a}"), "[by_a,by_b]"),
        (format!(",{b}"), "[]"),
        (format!(",{a},{b}"), "[by_a]"),
    ] {
        let own = format!("match:{{path:\"/*\"{matches}}}");
        let route = routes
            .split("-match")
            .find(|it| format!("-match{it}").starts_with(&format!("-{own}")));
        let route = route.unwrap_or_else(|| panic!("no {own}: {routes}"));
        assert!(
            route.contains(&format!("limits:{limits}")),
            "{own}: {route}"
        );
    }
    assert!(with_effect(&imported, Effect::LeavesOut).is_empty());
}

#[test]
fn each_listen_of_an_address_has_tls_where_another_one_says_so() {
    let text = "server { listen 8443; server_name a.test; location / { proxy_pass http://a; } }
        server { listen *:8443 ssl; server_name b.test;
            ssl_certificate c.pem; ssl_certificate_key c.key;
            location / { proxy_pass http://b; } }";
    let listens = |text: &str| {
        let files = [("nginx.conf", text), ("c.pem", ""), ("c.key", "")];
        let gateway = imported(&files).unwrap().gateway;
        let listen = gateway.split("listen:").nth(1).unwrap();
        let listen = listen.split('#').next().unwrap();
        (listen.split_whitespace().collect::<String>(), gateway)
    };
    let tls = r#"[{address:"0.0.0.0:8443",tls:{certificate:c.pem,key:c.key}}]"#;
    let (listen, gateway) = listens(text);
    assert_eq!(listen, tls);
    assert!(gateway.contains("host: a.test") && gateway.contains("host: b.test"));
    assert_eq!(listens(&format!("http {{ {text} }}")).0, tls);
    // HTTP/3 has a socket of its own.
    let quic = "server { listen 8443; listen 8443 quic; location / { proxy_pass http://c; } }";
    assert_eq!(listens(quic).0, r#"[{address:"0.0.0.0:8443"}]"#);
}

#[test]
fn a_zone_that_is_defined_elsewhere_is_not_said_to_be_untranslated() {
    let said = |zone: &str| {
        let text = format!("{zone} server {{ limit_req zone=a; proxy_pass http://app; }}");
        let imported = imported(&[("nginx.conf", &text)]).unwrap();
        let found = imported.differences.iter().map(ToString::to_string);
        found
            .filter(|it| it.contains("limits nothing"))
            .collect::<String>()
    };
    let elsewhere = said("");
    assert!(
        elsewhere.contains("no zone of this name is defined"),
        "{elsewhere}"
    );
    assert!(elsewhere.contains("import nginx.conf"), "{elsewhere}");
    let untranslated = said("limit_req_zone $request_uri zone=a:1m rate=1r/s;");
    assert!(
        untranslated.contains("its zone was not translated"),
        "{untranslated}"
    );
}

#[test]
fn a_dump_of_the_overrides_of_boulder_is_called_what_it_is() {
    let text = "name,id,count,burst,period,comment\nNewOrdersPerAccount,1,2,2,3h0m0s,\"a, b\"\n";
    for text in [text.to_owned(), format!("\u{feff}{text}")] {
        let error = imported(&[("overrides.csv", &text)]).unwrap_err();
        assert!(
            error.starts_with("overrides.csv:1: this is CSV, as Boulder dumps"),
            "{error}"
        );
    }
}

/// What editors on Windows begin a file with was taken for a part of the first word.
#[test]
fn a_byte_order_mark_is_no_part_of_a_file() {
    let server = "server { listen 80; location / { proxy_pass http://a; } }";
    let nginx = format!("\u{feff}{server}");
    assert!(imported(&[("nginx.conf", &nginx)]).is_ok());
    let included = [
        ("nginx.conf", "http { include a.conf; }"),
        ("a.conf", &nginx),
    ];
    assert!(imported(&included).is_ok());
}

/// A server without a name has an empty `$server_name`, which nginx does not count.
#[test]
fn a_limit_that_counts_nothing_is_not_said_to_hold_no_request() {
    let zone = "limit_req_zone $server_name zone=a:1m rate=1r/m;";
    let limited = |name: &str| {
        let server = format!("server {{ {name} limit_req zone=a burst=5; proxy_pass http://a; }}");
        shown(&imported_http(&format!("{zone} {server}")))
    };
    assert!(limited("server_name a.test;").contains("holds no request"));
    assert!(!limited("").contains("holds no request"), "{}", limited(""));
}
