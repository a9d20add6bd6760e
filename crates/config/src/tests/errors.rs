//! What is refused, in which words.

use proptest::prelude::*;
use weir_yaml::Severity;

use super::*;

/// The findings of a gateway.yaml that stands beside some limits.
fn findings(gateway: &str) -> String {
    Folder::with(&[
        ("gateway.yaml", gateway),
        ("limits/defaults.yaml", DEFAULTS),
    ])
    .findings()
}

#[test]
fn an_error_in_one_step_on_responses_never_hides_that_of_another() {
    let gateway = "\
hsts: {max_age: 1d}
errors: {503: lost.html}
upstreams: {app: {servers: [\"http://a:1\"]}}
routes:
  - match: {path: \"/*\"}
    upstream: app
    limits: [RequestsPerAddress]
    request_headers: {set: {host: a}}
    response_headers: {set: {content-length: 1}}
    cors: {origins: [nowhere]}
    compression: on
";
    let found = findings(gateway);
    for place in [
        "hsts: ",
        "errors.503: ",
        "routes[0].request_headers.set.host: ",
        "routes[0].response_headers.set.content-length: ",
        "routes[0].cors.origins",
        "routes[0].compression: ",
    ] {
        assert!(found.contains(place), "{place}: {found}");
    }
    assert!(found.contains("6 errors, "), "{found}");
}

#[test]
fn a_source_that_is_left_empty_never_makes_its_list_an_empty_one() {
    let defaults = "RequestsPerAddress: {per: [~], burst: 1, count: 1, period: 1s}\n";
    let files = [
        ("gateway.yaml", SMALLEST),
        ("limits/defaults.yaml", defaults),
    ];
    let found = Folder::with(&files).findings();
    assert!(
        found.contains("RequestsPerAddress.per[0]: expected a text, found nothing\n  write one\n"),
        "{found}"
    );
    assert!(found.contains("1 error, "), "{found}");
}

/// Overrides are found, and dropped, by a recursion as deep as the list.
#[test]
fn a_limit_is_not_counted_per_more_sources_than_a_stack_can_hold() {
    let sources: Vec<_> = (0..17).map(|n| format!("\"header:x-{n}\"")).collect();
    let found = |sources: &[String]| {
        let per = sources.join(", ");
        let defaults = format!("A: {{per: [{per}], burst: 1, count: 1, period: 1s}}\n");
        let gateway = &SMALLEST.replace("RequestsPerAddress", "A");
        Folder::with(&[
            ("gateway.yaml", gateway),
            ("limits/defaults.yaml", &defaults),
        ])
    };
    let refused = found(&sources).findings();
    assert!(
        refused.contains("`per` lists more than 16 sources"),
        "{refused}"
    );
    assert!(found(&sources[..16]).load().is_ok());
}

#[test]
fn every_error_of_every_file_is_told_at_once() {
    let gateway = r#"listen: [{address: "8080"}]
workers: many
grace: 30
client_address:
  trusted_proxies: [10.0.0.1/8]
  header: "x real ip"
acount:
  - header: x-api-key
hash_key: {env: WEIR_TEST_NO_SUCH_VARIABLE}
store:
  redis: {url: "localhost:6379", on_failure: alow}
upstreams:
  app: {servers: ["ftp://127.0.0.1:3000"]}
  api: {}
decoys:
  sent: {status: 99, headers: {content-length: 2}, body: "{{ 1 + }}"}
defaults:
  ratelimit_headers: [draft, none]
routes:
  - match: {path: "/*", methods: [post]}
    upstream: app
    limits: [RequestPerAddress]
  - name: login
    match: {path: /login}
    upstream: ap
    limits:
      - {limit: RequestsPerAddress, cost: 21}
      - {limit: Requests, cost: 0}
      - {limit: RequestsPerAddress, spent_on: {status: [401]}}
    on_denied: {shadow: send}
  - name: login
    match: {path: /login2}
    upstream: app
    on_denied: {block: true}
"#;
    let defaults = "\
RequestsPerAddress: {per: address, burst: 20, count: 100, period: 1m}
Requests: {per: adress, burst: 0, count: 100, period: 60}
Logins: {per: address, burst: 5, count: 2000000000, period: 1s, perr: host}
";
    let overrides = "\
- RequestsPerAddress: {burst: 5, count: 5, period: 1s, ids: [10.0.0.300, {id: 10.0.0.2, note: x}]}
- RequestsPerAdress: {burst: 5, count: 5, period: 1s, ids: [10.0.0.3]}
- RequestsPerAddress: {burst: 5, count: 5}
";
    let folder = Folder::with(&[
        ("gateway.yaml", gateway),
        ("limits/defaults.yaml", defaults),
        ("limits/overrides.yaml", overrides),
    ]);
    insta::assert_snapshot!(folder.findings(), @r#"
    gateway.yaml:1:20: listen[0].address: `8080` is not an IP address and a port
      write `"0.0.0.0:8080"`
    gateway.yaml:2:10: workers: expected auto or 1 to 1024, found `many`
    gateway.yaml:3:8: grace: the duration `30` has no unit
      write `30s` for seconds; units are ns, us, ms, s, m, h and d
    gateway.yaml:5:21: client_address.trusted_proxies[0]: `10.0.0.1/8` is an address within its network
      write `10.0.0.0/8`
    gateway.yaml:6:11: client_address.header: `x real ip` is not the name of a header
    gateway.yaml:7:1: acount: unknown key "acount"
      did you mean "account"?
    gateway.yaml:9:1: hash_key: the environment variable WEIR_TEST_NO_SUCH_VARIABLE is not set
      set it wherever weir is started, for `weir check` as well
    gateway.yaml:11:16: store.redis.url: not the URL of a Redis: write redis://HOST:PORT/DATABASE, rediss://HOST:PORT/DATABASE for TLS, or unix:///PATH/OF/THE.SOCK?db=DATABASE
    gateway.yaml:11:46: store.redis.on_failure: "alow" is not known here
      did you mean "allow"?
    gateway.yaml:13:19: upstreams.app.servers[0]: `ftp://127.0.0.1:3000`: a server's URI begins with http://, https://, unix://, http+srv:// or https+srv://
      write it like http://127.0.0.1:3000
    gateway.yaml:14:3: upstreams.api: an upstream has one of `servers`, `servers_file` and `builtin`
      say `servers: ["http://127.0.0.1:3000"]`, or `builtin: echo`
    gateway.yaml:16:18: decoys.sent.status: 99 is not the status of a response
      a status is a number from 200 to 599
    gateway.yaml:16:32: decoys.sent.headers.content-length: `content-length` is set by the server itself
      leave it out
    gateway.yaml:16:58: decoys.sent.body: syntax error: unexpected end of variable block (line 1 of the body)
    gateway.yaml:18:3: defaults.ratelimit_headers: "none" stands alone
      leave it out, or leave the others out
    gateway.yaml:20:35: routes[0].match.methods[0]: methods are case-sensitive: `post`
      did you mean "POST"?
    gateway.yaml:22:14: routes[0].limits[0]: unknown limit "RequestPerAddress"
      did you mean "RequestsPerAddress"? limits are defined in limits/defaults.yaml
    gateway.yaml:25:15: routes[1].upstream: unknown upstream "ap"
      did you mean "api"?
    gateway.yaml:27:43: routes[1].limits[0].cost: a cost of 21 never passes "RequestsPerAddress"
      its burst is only 5 at limits/overrides.yaml:1:31: [0].RequestsPerAddress.burst
    gateway.yaml:28:33: routes[1].limits[1].cost: expected a whole number that is at least 1, found 0
    gateway.yaml:29:37: routes[1].limits[2].spent_on: unknown key "spent_on"
      did you mean "spend_on"?
    gateway.yaml:30:25: routes[1].on_denied.shadow: unknown decoy "send"
      did you mean "sent"? decoys are defined under `decoys`
    gateway.yaml:31:11: routes[2].name: another route is called "login" already
      give one of them another `name`; the other is at gateway.yaml:23:11: routes[1].name
    gateway.yaml:34:17: routes[2].on_denied.block: "block" is not known here
      known here: reject, shadow, delay
    limits/defaults.yaml:2:17: Requests.per: unknown source "adress"
      did you mean "address"?
    limits/defaults.yaml:2:32: Requests.burst: burst must be at least 1
    limits/defaults.yaml:2:55: Requests.period: the duration `60` has no unit
      write `60s` for seconds; units are ns, us, ms, s, m, h and d
    limits/defaults.yaml:3:41: Logins.count: count must be at most one per nanosecond of the period
    limits/defaults.yaml:3:65: Logins.perr: unknown key "perr"
      did you mean "per"?
    limits/overrides.yaml:1:62: [0].RequestsPerAddress.ids[0]: "10.0.0.300" is not an address
      write one such as 203.0.113.9 or 2001:db8::/64
    limits/overrides.yaml:1:89: [0].RequestsPerAddress.ids[1].note: unknown key "note"
      known here: id, comment
    limits/overrides.yaml:2:3: [1].RequestsPerAdress: this overrides the unknown limit "RequestsPerAdress"
      did you mean "RequestsPerAddress"? limits are defined in limits/defaults.yaml
    limits/overrides.yaml:3:3: [2].RequestsPerAddress: the key "ids" is missing
    gateway.yaml:14:3: warning: upstreams.api: nothing uses this upstream
    gateway.yaml:16:3: warning: decoys.sent: nothing uses this decoy
      say `on_denied: {shadow: sent}` on a route or a ban
    gateway.yaml:31:5: warning: routes[2]: no limit applies to this route
      list its `limits`, or those of all routes under `defaults`; `[]` if none is meant
    limits/defaults.yaml:3:1: warning: Logins: no route uses this limit
      list it under a route's `limits`, or under `defaults`
    33 errors, 4 warnings
    "#);
}

/// A listener whose address was in error was left out, with all that was wrong with it.
#[test]
fn a_leaf_in_error_hides_no_error_beside_it_and_brings_no_other() {
    let gateway = r#"
listen: [{address: "8443", tls: {certificate: none.pem, key: none.key}, client_auth: {ca: none.pem}}]
admin: {address: localhost, token: {file: none.token}}
hsts: {max_age: 1h}
account: [{certificate: subject_cn}]
client_address: {trusted_proxies: [10.0.0.1/8], header: x-real-ip}
"#;
    insta::assert_snapshot!(findings(&format!("{gateway}{SMALLEST}")), @r#"
    gateway.yaml:2:20: listen[0].address: `8443` is not an IP address and a port
      write `"0.0.0.0:8443"`
    gateway.yaml:2:47: listen[0].tls.certificate: none.pem cannot be read: No such file or directory (os error 2)
      paths are relative to the folder of gateway.yaml
    gateway.yaml:2:62: listen[0].tls.key: none.key cannot be read: No such file or directory (os error 2)
      paths are relative to the folder of gateway.yaml
    gateway.yaml:2:91: listen[0].client_auth.ca: none.pem cannot be read: No such file or directory (os error 2)
      paths are relative to the folder of gateway.yaml
    gateway.yaml:3:18: admin.address: `localhost` is not an IP address and a port
      write `"127.0.0.1:8080"`
    gateway.yaml:3:29: admin.token: none.token cannot be read: No such file or directory (os error 2)
      paths are relative to the folder of gateway.yaml
    gateway.yaml:6:36: client_address.trusted_proxies[0]: `10.0.0.1/8` is an address within its network
      write `10.0.0.0/8`
    gateway.yaml:5:1: warning: account: the hashes of accounts change at each restart: ids in the log, and overrides and bans by a hash, match no account then
      make a key with `openssl rand -hex 32 > hash.key`, give it to every gateway, and say `hash_key: {file: hash.key}`
    7 errors, 1 warning
    "#);
    let gateway = r#"
upstreams: {app: {servers: ["http://127.0.0.1:3000", "127.0.0.1:3001"], balance: least_requests}}
routes:
  - {match: {methods: [get], headers: {"x y": z}}, upstream: app, limits: [RequestsPerAddress]}
  - match: {path: /a}
    upstream: app
    limits: [RequestsPerAddress]
    response_headers: {set: {"a b": c}, always: true}
bans:
  scanners: {per: address, for: 10, max: 1h, strikes: {count: many, period: 1, limits: [Request]}}
"#;
    insta::assert_snapshot!(findings(gateway), @r#"
    gateway.yaml:2:54: upstreams.app.servers[1]: `127.0.0.1:3001` lacks its scheme
      write `"http://127.0.0.1:3001"`
    gateway.yaml:4:24: routes[0].match.methods[0]: methods are case-sensitive: `get`
      did you mean "GET"?
    gateway.yaml:4:40: routes[0].match.headers.x y: `x y` is not the name of a header
    gateway.yaml:8:30: routes[1].response_headers.set.a b: `a b` is not the name of a header
    gateway.yaml:10:33: bans.scanners.for: the duration `10` has no unit
      write `10s` for seconds; units are ns, us, ms, s, m, h and d
    gateway.yaml:10:42: bans.scanners.max: `max` does not apply to bans that do not grow
      say by how much they do, such as `factor: 4`, or leave it out
    gateway.yaml:10:63: bans.scanners.strikes.count: expected a whole number, found `many`
    gateway.yaml:10:77: bans.scanners.strikes.period: the duration `1` has no unit
      write `1s` for seconds; units are ns, us, ms, s, m, h and d
    gateway.yaml:10:89: bans.scanners.strikes.limits[0]: unknown limit "Request"
      the only one known here is "RequestsPerAddress"; limits are defined in limits/defaults.yaml
    9 errors, 0 warnings
    "#);
}

#[test]
fn a_password_in_the_url_of_a_server_is_refused_and_not_repeated() {
    for url in [
        "http://deploy:hunter2@10.0.0.5:3000",
        "deploy:hunter2@10.0.0.5:3000",
        "http://deploy:hun ter2@10.0.0.5:3000",
        "http://deploy:hunter2/@10.0.0.5:3000",
        "ftp://deploy:hunter2@10.0.0.5",
        "unix:deploy:hunter2@app.sock",
    ] {
        let found = findings(&SMALLEST.replace("http://127.0.0.1:3000", url));
        assert!(found.contains("servers[0]: "), "{found}");
        for part in ["deploy", "hun", "ter2"] {
            assert!(!found.contains(part), "{found}");
        }
    }
}

#[test]
fn a_password_in_another_url_is_refused_and_not_repeated() {
    let gateway = r#"
account: [{jwt: {jwks: {url: "http://deploy:hunter2@10.0.0.5/keys"}}}]
otlp: {endpoint: "ftp://deploy:hunter2@10.0.0.5"}
"#;
    let found = findings(&format!("{gateway}{SMALLEST}"));
    assert!(found.contains("`http://***@10.0.0.5/keys` is"), "{found}");
    if cfg!(feature = "otlp") {
        assert!(found.contains("`ftp://***@10.0.0.5` is"), "{found}");
    }
    assert!(!found.contains("hunter2"), "{found}");
}

/// Characters that end a URL, names of things, and values of another type showed what they are for.
#[test]
fn no_error_repeats_a_secret_however_it_is_written() {
    for wrong in [
        r#"account: [{jwt: {jwks: {url: "http://u:open sesame@10.0.0.5/keys"}}}]"#,
        r#"account: [{jwt: {jwks: {url: "http://u:open?sesame@10.0.0.5/keys"}}}]"#,
        r#"account: [{jwt: {jwks: {url: "http://u:open\"sesame@10.0.0.5/keys"}}}]"#,
        r#"upstreams: {b: {servers: ["http://a"], host: "http://u:open/sesame@x/"}}"#,
        r#"listen: [{address: "http://u:open-sesame@x/"}]"#,
        "admin: {address: \"127.0.0.1:1\", tokens: open-sesame}",
        "admin: {address: \"127.0.0.1:1\", tokens: [open-sesame]}",
        "defaults: {request_headers: {set: Bearer open-sesame}}",
        "block: {accounts: {open-sesame: 1}}",
    ] {
        let found = Folder::with(&[("gateway.yaml", wrong)]).findings();
        assert!(!found.contains("sesame"), "{found}");
    }
    let unknown = SMALLEST.replace("upstream: app", "upstream: \"http://u:open sesame@x\"");
    let found = findings(&unknown);
    assert!(found.contains("unknown upstream"), "{found}");
    assert!(!found.contains("sesame"), "{found}");
}

#[test]
fn a_secret_in_the_file_is_refused_and_not_repeated() {
    let gateway = r#"
hash_key: hunter2
store: {redis: {url: "redis://localhost", password: hunter2}}
account: [{jwt: {secret: hunter2}}]
"#;
    insta::assert_snapshot!(findings(&format!("{gateway}{SMALLEST}")), @r#"
    gateway.yaml:2:11: hash_key: a secret is not written into the configuration
      write {file: PATH} or {env: NAME}
    gateway.yaml:3:53: store.redis.password: a secret is not written into the configuration
      write {file: PATH} or {env: NAME}
    gateway.yaml:4:26: account[0].jwt.secret: a secret is not written into the configuration
      write {file: PATH} or {env: NAME}
    3 errors, 0 warnings
    "#);
}

#[test]
fn a_value_in_the_wrong_shape_is_told_the_right_one() {
    let gateway = r"
listen: [127.0.0.1:8080]
admin: 127.0.0.1:9901
log: json
account: {header: x-api-key}
defaults: {on_denied: shadow}
";
    insta::assert_snapshot!(findings(&format!("{gateway}{SMALLEST}")), @r#"
    gateway.yaml:2:10: listen[0]: expected keys and values, found `127.0.0.1:8080`
      write `listen: [{address: "127.0.0.1:8080"}]`
    gateway.yaml:3:8: admin: expected keys and values, found `127.0.0.1:9901`
      its keys are address, token, tokens, read_only, dashboard, hosts, overrides_file
    gateway.yaml:4:6: log: expected keys and values, found `json`
      its keys are format, access, access_format, level, account, query, denied_per_second
    gateway.yaml:5:1: account: expected a list, found keys and values
      begin each item with `- `
    gateway.yaml:6:23: defaults.on_denied: "shadow" needs a value
      write {shadow: ...}
    5 errors, 0 warnings
    "#);
}

#[test]
fn a_missing_file_is_told_with_what_to_do() {
    // Where the package is installed, its own configuration is named as well.
    let told = Folder::with(&[]).findings();
    let places =
        "gateway.yaml: there is no such file\n  name it with --config, or run in its folder; ";
    assert!(told.starts_with(places), "{told}");
    assert!(
        told.ends_with("; `weir init` writes a new one\n1 error, 0 warnings"),
        "{told}"
    );
    insta::assert_snapshot!(Folder::with(&[("gateway.yaml", SMALLEST)]).findings(), @r#"
    limits/defaults.yaml: there is no such file
      limits are defined there, or in gateway.yaml; `limits` has them or names the folder
    1 error, 0 warnings
    "#);
}

#[test]
fn an_empty_file_is_told_with_an_example() {
    insta::assert_snapshot!(findings("# nothing yet\n"), @r#"
    gateway.yaml: the file is empty
      the smallest useful gateway.yaml is:
        upstreams:
          app: {servers: ["http://127.0.0.1:3000"]}
        routes:
          - {match: {path: "/*"}, upstream: app, limits: [RequestsPerAddress]}
        limits:
          RequestsPerAddress: {per: address, burst: 20, count: 100, period: 1m}
    1 error, 0 warnings
    "#);
    let folder = Folder::with(&[("gateway.yaml", SMALLEST), ("limits/defaults.yaml", "")]);
    insta::assert_snapshot!(folder.findings(), @r#"
    limits/defaults.yaml: the file is empty
      define a limit, such as:
        RequestsPerAddress: {per: address, burst: 20, count: 100, period: 1m}
    1 error, 0 warnings
    "#);
}

#[test]
fn a_folder_in_the_place_of_a_file_is_told() {
    let folder = Folder::with(&[("gateway.yaml/x", "")]);
    insta::assert_snapshot!(folder.findings(), @r#"
    gateway.yaml: the file cannot be read: Is a directory (os error 21)
    1 error, 0 warnings
    "#);
}

#[test]
fn gateways_that_share_redis_need_one_key_when_secrets_are_counted() {
    let gateway = r#"
account: [{header: x-api-key}]
store: {redis: {url: "redis://127.0.0.1:6379/0"}}
upstreams: {app: {servers: ["http://127.0.0.1:3000"]}}
routes:
  - match: {path: "/*"}
    upstream: app
    limits: [{limit: Requests, per: account, missing: deny}]
"#;
    let limits = "Requests: {burst: 1, count: 1, period: 1s}";
    let folder = Folder::with(&[("gateway.yaml", gateway), ("limits/defaults.yaml", limits)]);
    insta::assert_snapshot!(folder.findings(), @r#"
    gateway.yaml:3:9: store.redis: limit "Requests" counts a value that may be secret; gateways that share Redis need the same key to hash it
      make a key with `openssl rand -hex 32 > hash.key`, give it to every gateway, and say `hash_key: {file: hash.key}`
    1 error, 0 warnings
    "#);
    folder.write("hash.key", "short\n");
    folder.write(
        "gateway.yaml",
        &format!("hash_key: {{file: hash.key}}{gateway}"),
    );
    insta::assert_snapshot!(folder.findings(), @r#"
    gateway.yaml:1:1: hash_key: the key has fewer than 16 bytes
      make a key with `openssl rand -hex 32 > hash.key`, give it to every gateway, and say `hash_key: {file: hash.key}`
    1 error, 0 warnings
    "#);
    folder.write("hash.key", "0123456789abcdef0123456789abcdef\n");
    folder.settings();
}

#[test]
fn a_dashboard_that_nobody_could_use_is_an_error() {
    let with = |admin: &str| {
        Folder::with(&[
            ("gateway.yaml", &format!("admin: {{{admin}}}{SMALLEST}")),
            ("limits/defaults.yaml", DEFAULTS),
            ("t", "0123456789abcdef"),
        ])
    };
    let unreachable = with("address: \"10.0.0.5:9901\", dashboard: true");
    insta::assert_snapshot!(unreachable.findings(), @r"
    gateway.yaml:1:46: admin.dashboard: without a token the dashboard answers this machine only, which cannot reach 10.0.0.5:9901 by a loopback address
      configure `token` beside it, or listen on 127.0.0.1
    gateway.yaml:1:18: warning: admin.address: other machines may reach 10.0.0.5:9901, and there is no token
      all of them read health and metrics, and a forwarded port of this machine changes bans; configure `token`, or listen on 127.0.0.1
    1 error, 1 warning
    ");
    for admin in [
        "address: \"10.0.0.5:9901\", dashboard: true, token: {file: t}",
        "address: \"10.0.0.5:9901\", dashboard: true, tokens: {alice: {file: t}}",
        "address: \"0.0.0.0:9901\", dashboard: true",
        "address: \"[::1]:9901\", dashboard: true",
    ] {
        assert!(with(admin).settings().admin_dashboard, "{admin}");
    }
    let named = with("address: \"127.0.0.1:9901\", hosts: [Weir.example.com, \"*.corp.example\"]");
    let hosts: Vec<_> = named
        .settings()
        .admin_hosts
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(hosts, ["weir.example.com", "*.corp.example"]);
    let with_port = with("address: \"127.0.0.1:9901\", hosts: [\"weir.example.com:9901\"]");
    insta::assert_snapshot!(with_port.findings(), @r#"
    gateway.yaml:1:44: admin.hosts[0]: "weir.example.com:9901" is more than a host
      write "weir.example.com", without scheme, port and path
    1 error, 0 warnings
    "#);
    let off = with("address: \"10.0.0.5:9901\", dashboard: false");
    assert!(!off.settings().admin_dashboard);
}

#[test]
fn the_admin_token_is_a_secret_that_cannot_be_guessed() {
    let gateway = format!("admin: {{address: \"127.0.0.1:9901\", token: {{file: t}}}}{SMALLEST}");
    let folder = Folder::with(&[
        ("gateway.yaml", &gateway),
        ("limits/defaults.yaml", DEFAULTS),
        ("t", "hunter2\n"),
    ]);
    insta::assert_snapshot!(folder.findings(), @r"
    gateway.yaml:1:36: admin.token: the token has fewer than 16 bytes
      make one with `openssl rand -hex 32 > admin.token`, and say `token: {file: admin.token}`
    1 error, 0 warnings
    ");
    folder.write("t", "0123456789abcdef\n");
    let token = folder.settings().admin_tokens.remove(0);
    assert!(token.is(b"0123456789abcdef"));
    assert!(!format!("{token:?}").contains("0123456789abcdef"));
}

#[test]
fn tokens_have_names_that_tell_them_apart_in_the_log() {
    let gateway =
        |admin: &str| format!("admin: {{address: \"127.0.0.1:9901\", {admin}}}{SMALLEST}");
    let wrong =
        "token: {file: t}, tokens: {admin: {file: t}, \"a b\": {file: t}, short: {file: s}}";
    let folder = Folder::with(&[
        ("gateway.yaml", &gateway(wrong)),
        ("limits/defaults.yaml", DEFAULTS),
        ("t", "0123456789abcdef"),
        ("s", "hunter2"),
    ]);
    insta::assert_snapshot!(folder.findings(), @r#"
    gateway.yaml:1:63: admin.tokens.admin: the log would show "admin" for this one and for `token`
      give it another name, or leave `token` out
    gateway.yaml:1:81: admin.tokens.a b: a token's name stands in the log
      write 1 to 64 visible ASCII characters, such as alice
    gateway.yaml:1:99: admin.tokens.short: the token has fewer than 16 bytes
      make one with `openssl rand -hex 32 > admin.token`, and say `token: {file: admin.token}`
    3 errors, 0 warnings
    "#);
    folder.write(
        "gateway.yaml",
        &gateway("tokens: {alice: {file: t}}, read_only: [alise]"),
    );
    insta::assert_snapshot!(folder.findings(), @r#"
    gateway.yaml:1:76: admin.read_only[0]: there is no token "alise"
      did you mean "alice"?
    1 error, 0 warnings
    "#);
    folder.write(
        "gateway.yaml",
        &gateway("tokens: {alice: {file: t}, bob: {file: t}}, read_only: [bob]"),
    );
    let tokens = folder.settings().admin_tokens;
    let found: Vec<_> = tokens
        .iter()
        .map(|token| (&*token.name, token.is_read_only))
        .collect();
    assert_eq!(found, [("alice", false), ("bob", true)]);
}

#[test]
fn a_limit_must_be_counted_per_something_that_is_there() {
    let gateway = r#"
upstreams: {app: {servers: ["http://127.0.0.1:3000"]}}
defaults: {limits: [PerTeam]}
routes:
  - match: {path: "/teams/{team}"}
    upstream: app
  - match: {path: "/other/*"}
    upstream: app
  - match: {path: "/third/*"}
    upstream: app
    limits: [PerTeam, PerAccount, PerNothing, {limit: PerTeam, per: address}]
"#;
    let limits = "
PerTeam: {per: 'path:team', burst: 1, count: 1, period: 1s}
PerAccount: {per: account, burst: 1, count: 1, period: 1s}
PerNothing: {burst: 1, count: 1, period: 1s}
";
    let folder = Folder::with(&[("gateway.yaml", gateway), ("limits/defaults.yaml", limits)]);
    insta::assert_snapshot!(folder.findings(), @r#"
    gateway.yaml:11:14: routes[2].limits[0]: "PerTeam" is counted per path:team, which is never there
      capture it in the route's path as `{team}`
    gateway.yaml:11:23: routes[2].limits[1]: "PerAccount" is counted per account, which is never there
      say under `account` where requests name their account
    gateway.yaml:11:35: routes[2].limits[2]: nothing says what "PerNothing" is counted per
      add `per: address` or the like, here or where it is defined
    gateway.yaml:11:55: routes[2].limits[3].limit: "PerTeam" is counted per something else already
      leave `per` out here, or define a limit of another name
    gateway.yaml:7:5: warning: routes[1]: a client passes unlimited without path:team
      add a limit per address, or say `missing: deny`
    4 errors, 1 warning
    "#);
}

#[test]
fn a_cost_that_an_override_could_never_let_pass_is_refused() {
    let gateway = SMALLEST.replace(
        "[RequestsPerAddress]",
        "[{limit: RequestsPerAddress, cost: 5}]",
    );
    let overrides = "- RequestsPerAddress: {burst: 3, count: 3, period: 1s, ids: [192.0.2.1]}";
    let folder = Folder::with(&[
        ("gateway.yaml", &gateway),
        ("limits/defaults.yaml", DEFAULTS),
        ("limits/overrides.yaml", overrides),
    ]);
    insta::assert_snapshot!(folder.findings(), @r#"
    gateway.yaml:7:48: routes[0].limits[0].cost: a cost of 5 never passes "RequestsPerAddress"
      its burst is only 3 at limits/overrides.yaml:1:31: [0].RequestsPerAddress.burst
    1 error, 0 warnings
    "#);
}

#[test]
fn what_is_there_but_in_error_is_not_called_missing() {
    let gateway = r#"
account: x-api-key
hash_key: [hash.key]
store: {redis: {url: "redis://127.0.0.1"}}
upstreams: {app: {servers: "http://127.0.0.1:3000"}}
routes: [{match: {}, upstream: app, limits: [{limit: PerAccount, missing: deny}, PerNothing]}]
"#;
    let limits = "
PerAccount: {per: account, burst: 1, count: 1, period: 1s}
PerNothing: {per: [acount, adress], burst: 1, count: 1, period: 1s}
";
    let folder = Folder::with(&[("gateway.yaml", gateway), ("limits/defaults.yaml", limits)]);
    insta::assert_snapshot!(folder.findings(), @r#"
    gateway.yaml:2:10: account: expected a list, found `x-api-key`
      put [ ] around it
    gateway.yaml:3:1: hash_key: expected one of: file, env
    gateway.yaml:5:28: upstreams.app.servers: expected a list, found `http://127.0.0.1:3000`
      put [ ] around it
    limits/defaults.yaml:3:20: PerNothing.per[0]: unknown source "acount"
      did you mean "account"?
    limits/defaults.yaml:3:28: PerNothing.per[1]: unknown source "adress"
      did you mean "address"?
    5 errors, 0 warnings
    "#);
}

#[test]
fn an_origin_is_written_as_browsers_do_and_all_of_them_bring_no_credentials() {
    let cors = |text: &str| {
        let route = "upstream: app\n";
        findings(&SMALLEST.replace(route, &format!("{route}    cors: {text}\n")))
    };
    for (text, told) in [
        (
            "{origins: https://app.example.com/}",
            "write `https://app.example.com`",
        ),
        (
            "{origins: ['HTTPS://App.example.com:443']}",
            "write `https://app.example.com`",
        ),
        (
            "{origins: ['http://App.example.com:80']}",
            "write `http://app.example.com`",
        ),
        (
            "{origins: 'ftp://app.example.com'}",
            "`ftp://app.example.com` is not an origin",
        ),
        (
            "{origins: app.example.com}",
            "`app.example.com` is not an origin",
        ),
        (
            "{origins: [\"*\", https://a.example]}",
            "`*` is not an origin",
        ),
        (
            "{origins: \"*\", credentials: true}",
            "browsers take no credentials for all origins",
        ),
    ] {
        let found = cors(text);
        assert!(
            found.contains(told) && found.contains("1 error, "),
            "{text}: {found}"
        );
    }
    for fit in [
        "{origins: [https://a.example:8443], credentials: true}",
        "{origins: [http://a.example, 'https://a.example:80']}",
    ] {
        assert_eq!(cors(fit), "0 errors, 0 warnings", "{fit}");
    }
}

#[test]
fn a_page_that_is_not_there_and_a_status_that_is_none_are_told() {
    let found = findings(&format!(
        "errors: {{429: none.html, 6xx: none.html}}{SMALLEST}"
    ));
    assert!(
        found.contains("errors.429: none.html cannot be read"),
        "{found}"
    );
    assert!(
        found.contains("`6xx` is not a class of statuses"),
        "{found}"
    );
}

#[test]
fn a_token_must_be_verifiable() {
    let jwt = |text: &str| {
        findings(&format!(
            "account: [{{jwt: {text}}}]{SMALLEST}hash_key: {{env: PATH}}\n"
        ))
    };
    insta::assert_snapshot!(jwt("{claim: sub}"), @r#"
    gateway.yaml:1:12: account[0].jwt: a token is verified by exactly one of `secret` and `jwks`
      say `secret: {file: jwt.key}` for HS256, or `jwks: keys.json`
    1 error, 0 warnings
    "#);
    insta::assert_snapshot!(jwt("{jwks: nowhere.json}"), @r#"
    gateway.yaml:1:24: account[0].jwt.jwks: nowhere.json cannot be read: No such file or directory (os error 2)
      paths are relative to the folder of gateway.yaml
    1 error, 0 warnings
    "#);
    insta::assert_snapshot!(jwt("{secret: {env: PATH}, algorithms: [none]}"), @r#"
    gateway.yaml:1:52: account[0].jwt.algorithms[0]: "none" is not known here
      known here: HS256, RS256, ES256, EdDSA
    1 error, 0 warnings
    "#);
}

proptest! {
    /// Every line of a good configuration in turn is replaced by something else.
    #[test]
    fn no_configuration_makes_loading_panic(
        line in 0_usize..9,
        text in "( {0,6}|- |[a-z_]{1,8}: )?[-{}\\[\\]:,*&\"'#a-z0-9 /.]{0,40}",
        limits in "([A-Z][a-z]{0,5}: )?[-{}\\[\\]:,a-z0-9 ]{0,60}",
    ) {
        let mut lines: Vec<&str> = SMALLEST.lines().collect();
        let at = line % lines.len();
        lines[at] = &text;
        let folder = Folder::with(&[
            ("gateway.yaml", &lines.join("\n")),
            ("limits/defaults.yaml", &format!("{DEFAULTS}{limits}")),
            ("limits/overrides.yaml", &limits),
        ]);
        if let Err(found) = folder.load() {
            prop_assert!(found.has_errors(), "{found}");
        }
    }
}

/// They went to port 80.
#[test]
fn a_server_with_what_is_no_port_is_refused_with_a_place() {
    let found = |server: &str| findings(&SMALLEST.replace("http://127.0.0.1:3000", server));
    for server in [
        "http://127.0.0.1:8o80",
        "http://h:70000",
        "http://h:-1",
        "http://h:0",
        "http://h:12ab",
        "http://h:",
    ] {
        let found = found(server);
        let span = "gateway.yaml:3:19: upstreams.app.servers[0]: ";
        assert!(
            found.starts_with(span) && found.ends_with("1 error, 0 warnings"),
            "{found}"
        );
        assert!(
            found.contains("a server's port is a number from 1 to 65535"),
            "{found}"
        );
    }
    assert_eq!(found("http://h:65535"), "0 errors, 0 warnings");
    let host = |host: &str| {
        let server = format!("\"http://127.0.0.1:3000\"], host: \"{host}\"");
        findings(&SMALLEST.replace("\"http://127.0.0.1:3000\"]", &server))
    };
    for wrong in ["a:8o80", "a/b", "a:0", ""] {
        assert!(
            host(wrong).contains("is not preserve, upstream, or a host name"),
            "{wrong}"
        );
    }
    for fit in ["app.internal:8080", "preserve", "upstream"] {
        assert_eq!(host(fit), "0 errors, 0 warnings", "{fit}");
    }
    for redis in ["redis://h:0", "redis://h:", "redis://h/99999999999"] {
        let found = findings(&format!("store: {{redis: {{url: \"{redis}\"}}}}{SMALLEST}"));
        assert!(
            found.starts_with("gateway.yaml:1:22: store.redis.url: the "),
            "{found}"
        );
    }
}

/// What is taken over from another gateway is told in one step how it is written here.
#[test]
fn what_others_write_is_told_how_it_is_written_here() {
    let gateway = r#"
listen: 8080
admin: {address: localhost:9901}
upstreams:
  app: {servers: ["127.0.0.1:3000", "app:80/", "unix:/run/a.sock"]}
  api: {url: "http://127.0.0.1:3000"}
routes:
  - {match: {path: "^/api/.*$"}, upstream: app, limits: []}
  - {match: {path: "/users/:id"}, upstream: app, limits: []}
  - {match: {path: "/teams/<id>"}, backend: app, limits: []}
bans: {a: {per: ip, strikes: {paths: ["/x/:y", "/x.*"], count: 1, period: 1m}, for: 1m}}
"#;
    let defaults = r#"
A: {per: ip, rate: 10r/s}
B: {per: [user, api_key], rps: 5}
C: {per: remote_addr, burst: "20", count: 100, period: 1m, enabled: "true"}
D: {<<: {per: address}, per: address, limit: 5, window: 1m}
E: {per: $binary_remote_addr, rate: lots}
"#;
    let folder = Folder::with(&[
        ("gateway.yaml", gateway),
        ("limits/defaults.yaml", defaults),
    ]);
    let found = folder.findings();
    let errors = found.split("gateway.yaml:6:3: warning").next().unwrap();
    insta::assert_snapshot!(errors, @r#"
    gateway.yaml:2:9: listen: expected keys and values, found `8080`
      write `listen: [{address: "0.0.0.0:8080"}]`
    gateway.yaml:3:18: admin.address: `localhost:9901` is not an IP address and a port
      write `"127.0.0.1:9901"`
    gateway.yaml:5:19: upstreams.app.servers[0]: `127.0.0.1:3000` lacks its scheme
      write `"http://127.0.0.1:3000"`
    gateway.yaml:5:37: upstreams.app.servers[1]: `app:80/` lacks its scheme
      write `"http://app:80/"`
    gateway.yaml:5:48: upstreams.app.servers[2]: `unix:/run/a.sock`: a socket is named by its absolute path, after unix://
      write it like unix:///run/app.sock
    gateway.yaml:6:9: upstreams.api.url: unknown key "url"
      did you mean "servers"?
    gateway.yaml:8:20: routes[0].match.path: "^/api/.*$" is a regular expression, and paths are none
      write "/api/*", or say it by `path_regex`
    gateway.yaml:9:20: routes[1].match.path: ":id" captures nothing here, and would match only itself
      write {id}
    gateway.yaml:10:20: routes[2].match.path: "<id>" captures nothing here, and would match only itself
      write {id}
    gateway.yaml:10:36: routes[2].backend: unknown key "backend"
      did you mean "upstream"?
    gateway.yaml:11:17: bans.a.per: unknown source "ip"
      did you mean "address"?
    gateway.yaml:11:39: bans.a.strikes.paths[0]: ":y" captures nothing here, and would match only itself
      write {y}
    gateway.yaml:11:48: bans.a.strikes.paths[1]: "/x.*" is a regular expression, and paths are none
      write "/api/*" for all below /api, or {name} for one segment
    limits/defaults.yaml:2:10: A.per: unknown source "ip"
      did you mean "address"?
    limits/defaults.yaml:2:14: A.rate: unknown key "rate"
      a rate is written as `burst: 10, count: 10, period: 1s`
    limits/defaults.yaml:3:11: B.per[0]: unknown source "user"
      did you mean "account"?
    limits/defaults.yaml:3:17: B.per[1]: unknown source "api_key"
      did you mean "account"?
    limits/defaults.yaml:3:27: B.rps: unknown key "rps"
      a rate is written as `burst: 5, count: 5, period: 1s`
    limits/defaults.yaml:4:10: C.per: unknown source "remote_addr"
      did you mean "address"?
    limits/defaults.yaml:4:30: C.burst: expected a whole number, found "20"
      leave the quotes out: 20
    limits/defaults.yaml:4:69: C.enabled: expected true or false, found "true"
      leave the quotes out: true
    limits/defaults.yaml:5:5: merge keys are not known here
      repeat the keys that are meant, or give the whole value an alias
    limits/defaults.yaml:5:39: D.limit: unknown key "limit"
      did you mean "count"?
    limits/defaults.yaml:5:49: D.window: unknown key "window"
      did you mean "period"?
    limits/defaults.yaml:6:10: E.per: unknown source "$binary_remote_addr"
      did you mean "address"?
    limits/defaults.yaml:6:31: E.rate: unknown key "rate"
      a rate is written as `burst: 10, count: 10, period: 1s`
    "#);
}

/// What follows from one mistake sent its author looking for others.
#[test]
fn a_key_that_an_unknown_one_or_a_merge_key_stands_for_is_not_called_missing() {
    let gateway = SMALLEST.replace("[R", "[RatePerAddress, MergedPerAddress, R");
    for (name, written, told) in [
        ("rate", "{per: address, rate: 10r/s}", "unknown key"),
        ("merge key", "{<<: {burst: 1}, per: address}", "merge keys"),
        (
            "slip",
            "{per: address, burst: 1, limit: 5, period: 1s}",
            "did you mean \"count\"?",
        ),
        (
            "merge key for all",
            "{<<: {per: address, burst: 1}, period: 1m}",
            "merge keys",
        ),
    ] {
        let folder = Folder::with(&[
            ("gateway.yaml", &gateway.replace("MergedPerAddress, ", "")),
            (
                "limits/defaults.yaml",
                &format!("{DEFAULTS}RatePerAddress: {written}\n"),
            ),
        ]);
        let found = folder.findings();
        assert!(found.contains(told), "{name}: {found}");
        assert!(found.ends_with("\n1 error, 0 warnings"), "{name}: {found}");
    }
    // What it does not stand for is missing all the same.
    let folder = Folder::with(&[
        ("gateway.yaml", SMALLEST),
        (
            "limits/defaults.yaml",
            "RequestsPerAddress: {rate: 10r/s}\n",
        ),
    ]);
    let found = folder.findings();
    assert!(found.contains("is counted per"), "{found}");
    let found = findings(&SMALLEST.replace("upstream: app", "<<: {upstream: app}"));
    assert!(found.contains("merge keys"), "{found}");
    assert!(found.contains("1 error, "), "{found}");
}

#[test]
fn a_rate_as_others_write_it_is_told_in_each_of_its_units() {
    let told = |rate: &str| {
        let defaults = format!("RequestsPerAddress: {{per: address, {rate}}}");
        let folder = Folder::with(&[
            ("gateway.yaml", SMALLEST),
            ("limits/defaults.yaml", &defaults),
        ]);
        let found = folder.findings();
        let (_, rest) = found.split_once("a rate is written as `burst: ")?;
        let (written, _) = rest.split_once('`')?;
        let (burst, rest) = written.split_once(", count: ")?;
        let (count, period) = rest.split_once(", period: ")?;
        assert_eq!(burst, count, "{found}");
        Some(format!("{count} {period}"))
    };
    for (rate, written) in [
        ("rate: 7r/s", "7 1s"),
        ("rate: 7/sec", "7 1s"),
        ("rate: 7 per second", "7 1s"),
        ("rate: 7r/m", "7 1m"),
        ("rate: 7 requests/min", "7 1m"),
        ("rate: 7 per minute", "7 1m"),
        ("rate: 7/h", "7 1h"),
        ("rate_limit: 7/hour", "7 1h"),
        ("rate_limit: 7/d", "7 1d"),
        ("rate: 7 per day", "7 1d"),
        ("rps: 7", "7 1s"),
        ("requests_per_second: 7", "7 1s"),
        ("per_second: 7", "7 1s"),
        ("rpm: 7", "7 1m"),
        ("requests_per_minute: 7", "7 1m"),
        ("per_minute: 7", "7 1m"),
        ("rph: 7", "7 1h"),
        ("requests_per_hour: 7", "7 1h"),
        ("per_hour: 7", "7 1h"),
        // What is no rate gets an example.
        ("rate: 0r/s", "10 1s"),
        ("rate: 7/fortnight", "10 1s"),
        ("rate: [7]", "10 1s"),
    ] {
        assert_eq!(told(rate).as_deref(), Some(written), "{rate}");
    }
    assert_eq!(told("speed: 7r/s"), None);
}

#[test]
fn each_way_to_listen_that_others_have_is_told_how_it_is_written_here() {
    for (listen, help) in [
        ("8080", "listen: [{address: \"0.0.0.0:8080\"}]"),
        ("[8080]", "listen: [{address: \"0.0.0.0:8080\"}]"),
        ("\":8080\"", "listen: [{address: \"0.0.0.0:8080\"}]"),
        ("127.0.0.1:8081", "listen: [{address: \"127.0.0.1:8081\"}]"),
        ("localhost:8081", "listen: [{address: \"127.0.0.1:8081\"}]"),
        ("\"[::1]:8081\"", "listen: [{address: \"[::1]:8081\"}]"),
        ("{address: \"*:8081\"}", "`\"0.0.0.0:8081\"`"),
        ("[{address: 127.0.0.1}]", "`\"127.0.0.1:8080\"`"),
        ("[{address: http}]", "one such as `0.0.0.0:8080`"),
    ] {
        let found = findings(&format!("listen: {listen}{SMALLEST}"));
        assert!(found.contains(help), "{listen}: {found}");
        assert!(found.ends_with("\n1 error, 0 warnings"), "{found}");
    }
    let one = format!("listen: {{address: \"127.0.0.1:8081\"}}{SMALLEST}");
    assert_eq!(findings(&one), "0 errors, 0 warnings");
}

#[test]
fn what_lacks_quotes_is_told_of_them() {
    for text in [
        "host: *.example.com",
        "path: /a/{b}, upstream: x",
        "path: @a",
    ] {
        let found = findings(&SMALLEST.replace("path: \"/*\"", text));
        assert!(found.contains("stands in quotes"), "{text}: {found}");
    }
}

/// A list of ids that is in error from end to end printed megabytes, in every log as well.
#[test]
fn so_many_errors_are_shown_and_no_more() {
    let ids: Vec<String> = (0..5_000).map(|n| format!("10.0.0.{n}.x")).collect();
    let overrides = format!(
        "- RequestsPerAddress: {{burst: 1, count: 1, period: 1s, ids: [{}]}}",
        ids.join(", ")
    );
    let folder = Folder::with(&[
        ("gateway.yaml", SMALLEST),
        ("limits/defaults.yaml", DEFAULTS),
        ("limits/overrides.yaml", &overrides),
    ]);
    let found = folder.load().unwrap_err();
    let shown = found.to_string();
    assert_eq!(found.count(Severity::Error), 5_000);
    assert!(
        shown.ends_with("\n... and 4900 more errors\n5000 errors, 0 warnings"),
        "{shown}"
    );
    assert_eq!(shown.matches("is not an address").count(), 100);
    let long = SMALLEST.replace("http://127.0.0.1:3000", &"a".repeat(100_000));
    assert!(findings(&long).len() < 2_000);
}

#[test]
fn so_many_warnings_are_shown_and_no_more() {
    let defaults: String = (0..150)
        .map(|n| format!("L{n}: {{per: address, burst: 1, count: 1, period: 1s}}\n"))
        .collect();
    let folder = Folder::with(&[
        ("gateway.yaml", SMALLEST),
        ("limits/defaults.yaml", &format!("{DEFAULTS}{defaults}")),
    ]);
    let lines: Vec<String> = folder.settings().warnings.lines().collect();
    assert_eq!(lines.len(), 101);
    assert_eq!(lines.last().unwrap(), "... and 50 more warnings");
}

/// Each was looked for among all, and compared with all: ten thousand took half a minute.
#[test]
fn many_unknown_names_among_many_known_ones_are_not_all_compared() {
    let name = |n: usize| format!("RequestsPerAddressOfKind{n}");
    let defaults: String = (0..2_000)
        .map(|n| {
            format!(
                "{}: {{per: address, burst: 1, count: 1, period: 1s}}\n",
                name(n)
            )
        })
        .collect();
    let uses: Vec<String> = (2_000..4_000).map(name).collect();
    let gateway = SMALLEST.replace("[RequestsPerAddress]", &format!("[{}]", uses.join(", ")));
    let folder = Folder::with(&[
        ("gateway.yaml", &gateway),
        ("limits/defaults.yaml", &defaults),
    ]);
    let found = folder.load().unwrap_err();
    let asked = found.iter().filter(|found| {
        found
            .help
            .iter()
            .any(|found| found.contains("did you mean"))
    });
    assert_eq!(asked.count(), 10);
    assert_eq!(found.count(Severity::Error), 2_000);
    // These may each have had an override, so they are warned of, and no more are compared.
    let uses: Vec<String> = (2_000..4_000)
        .map(|n| format!("{{limit: {}, per: address}}", name(n)))
        .collect();
    let gateway = SMALLEST.replace("[RequestsPerAddress]", &format!("[{}]", uses.join(", ")));
    folder.write("gateway.yaml", &gateway);
    let warnings = folder.settings().warnings;
    let asked = warnings.iter().filter(|warning| {
        warning
            .help
            .iter()
            .any(|warning| warning.contains("did you mean"))
    });
    assert_eq!(asked.count(), 10);
}

/// They were told apart from keys that are not there, and taken for ones whose error was told.
#[test]
fn a_parameter_that_is_left_empty_is_told_at_its_place() {
    let gateway = r#"
store: {redis: }
limits: ~
upstreams: {app: {servers: }, demo: {builtin: }}
routes:
  - {match: {path: /a}, upstream: app, limits: ~}
  - {match: {path: /b}, upstream: demo, limits: [{limit: A, spend_on: ~, refund_on: {status: }}]}
"#;
    let defaults = "\
A: {per: address, burst: , count: , period: }
B: {per: address, in_flight: }
C: {per: address, algorithm: fixed_window, calendar: , count: 1}
D: {per: , burst: 1, count: 1, period: 1s}
";
    let overrides = "\
- A: {burst: , count: 1, period: 1h, ids: [10.0.0.1]}
- A: {burst: 1, count: 1, period: 1h, until: , ids: [{id: 10.0.0.2, comment: }]}
- A: {burst: 1, count: 1, period: 1h, ids: [10.0.0.3, ~]}
- A: {burst: 1, count: 1, period: 1h, ids: }
- A:
";
    let folder = Folder::with(&[
        ("gateway.yaml", gateway),
        ("limits/defaults.yaml", defaults),
        ("limits/overrides.yaml", overrides),
    ]);
    let found = folder.findings();
    let errors = found
        .lines()
        .take_while(|found| !found.contains("warning:"));
    let errors: Vec<&str> = errors.filter(|error| !error.starts_with("  ")).collect();
    insta::assert_snapshot!(errors.join("\n"), @"
    gateway.yaml:2:14: store.redis: there is no value
    gateway.yaml:3:9: limits: there is no value
    gateway.yaml:4:26: upstreams.app.servers: there is no value
    gateway.yaml:4:45: upstreams.demo.builtin: there is no value
    gateway.yaml:6:48: routes[0].limits: there is no value
    gateway.yaml:7:71: routes[1].limits[0].spend_on: there is no value
    gateway.yaml:7:92: routes[1].limits[0].refund_on.status: expected a text, found nothing
    limits/defaults.yaml:1:24: A.burst: there is no value
    limits/defaults.yaml:1:33: A.count: there is no value
    limits/defaults.yaml:1:43: A.period: there is no value
    limits/defaults.yaml:2:28: B.in_flight: there is no value
    limits/defaults.yaml:3:52: C.calendar: there is no value
    limits/defaults.yaml:4:8: D.per: there is no value
    limits/overrides.yaml:1:12: [0].A.burst: there is no value
    limits/overrides.yaml:2:44: [1].A.until: there is no value
    limits/overrides.yaml:3:55: [2].A.ids[1]: expected a text, or keys and values, found nothing
    limits/overrides.yaml:4:42: [3].A.ids: expected a list, found nothing
    limits/overrides.yaml:5:4: [4].A: expected keys and values, found nothing
    ");
}

#[test]
fn an_address_that_is_listened_on_twice_is_told_of() {
    let addresses = |listen: &str, admin: &str| {
        let own = format!("listen: [{listen}]\nadmin: {{address: {admin}}}\n{SMALLEST}");
        findings(&own)
    };
    let both = "{address: 0.0.0.0:8080}, {address: \"[::]:8080\"}";
    let nothing = "0 errors, 0 warnings";
    assert_eq!(addresses(both, "127.0.0.1:9901"), nothing);
    assert_eq!(addresses("{address: 127.0.0.1:0}", "127.0.0.1:0"), nothing);
    for (listen, admin, is_taken) in [
        ("127.0.0.1:8080", "127.0.0.1:8080", true),
        ("127.0.0.1:8080", "0.0.0.0:8080", true),
        ("127.0.0.1:8080", "127.0.0.2:8080", false),
        ("127.0.0.1:8080", "127.0.0.1:8081", false),
        ("\"[::1]:8080\"", "\"[::]:8080\"", true),
        ("\"[::1]:8080\"", "0.0.0.0:8080", false),
    ] {
        let found = addresses(&format!("{{address: {listen}}}"), admin);
        assert_eq!(
            found.contains("is taken already"),
            is_taken,
            "{listen} {admin}"
        );
    }
    assert_eq!(
        addresses(both, "127.0.0.1:8080"),
        "gateway.yaml:2:18: admin.address: 127.0.0.1:8080 is taken already, by 0.0.0.0:8080\n  \
         choose another port\n1 error, 0 warnings"
    );
}

#[test]
fn a_body_where_the_status_allows_none_is_told_of() {
    let decoy = |decoy: &str| {
        let route = "on_denied: {shadow: sent}";
        findings(&format!("decoys: {{sent: {decoy}}}{SMALLEST}    {route}\n"))
    };
    assert_eq!(decoy("{status: 204}"), "0 errors, 0 warnings");
    let told = decoy("{status: 204, body: hi}");
    let expected = "gateway.yaml:1:25: decoys.sent.status: a response of status 204 has no body";
    assert!(told.starts_with(expected), "{told}");
    let reject =
        |reject: &str| findings(&format!("{SMALLEST}    on_denied: {{reject: {reject}}}\n"));
    assert_eq!(reject("{status: 304, body: ''}"), "0 errors, 0 warnings");
    assert!(reject("{status: 304}").contains("a response of status 304 has no body"));
}

/// It was to be written where a status may stand.
#[test]
fn a_number_that_is_no_status_is_not_taken_for_one() {
    let found = |word: &str| findings(&format!("{SMALLEST}    on_denied: {word}\n"));
    let remedy = "for another status than 429";
    assert!(found("403").contains(remedy));
    for word in ["9999", "99", "600"] {
        let found = found(word);
        assert!(
            found.contains("is not known here") && !found.contains(remedy),
            "{found}"
        );
    }
}

#[test]
fn a_quota_beyond_measure_is_told_at_the_parameter_that_makes_it_so() {
    let found = |parameters: &str| {
        let defaults = format!("RequestsPerAddress: {{per: address, {parameters}}}");
        Folder::with(&[
            ("gateway.yaml", SMALLEST),
            ("limits/defaults.yaml", &defaults),
        ])
        .findings()
    };
    for (parameters, key) in [
        ("burst: 5000000000, count: 1, period: 1s", "burst"),
        ("burst: 1, count: 1, period: 1800000h", "period"),
        ("burst: 1, count: 2000000000, period: 1s", "count"),
        (
            "algorithm: sliding_window, count: 1, period: 10ms",
            "period",
        ),
        ("algorithm: sliding_log, count: 20000, period: 1s", "count"),
    ] {
        let told = format!("RequestsPerAddress.{key}: ");
        let found = found(parameters);
        assert!(
            found.contains(&told) && found.contains("1 error, "),
            "{parameters}: {found}"
        );
    }
}

#[test]
fn every_parameter_that_is_nothing_is_told() {
    let defaults = "\
RequestsPerAddress: {per: address, burst: 0, count: 0, period: 0s}
A: {per: address, algorithm: sliding_log, burst: 0, count: 0, period: 0s}
B: {per: address, algorithm: fixed_window, calendar: day, count: 0}
";
    let folder = Folder::with(&[
        ("gateway.yaml", SMALLEST),
        ("limits/defaults.yaml", defaults),
    ]);
    let findings = folder.findings();
    let errors: Vec<&str> = findings
        .split("limits/defaults.yaml:2:1: warning")
        .collect();
    insta::assert_snapshot!(errors[0], @r#"
    limits/defaults.yaml:1:43: RequestsPerAddress.burst: burst must be at least 1
    limits/defaults.yaml:1:53: RequestsPerAddress.count: count must be at least 1
    limits/defaults.yaml:1:64: RequestsPerAddress.period: period must be longer than zero
      write a time such as `1m`
    limits/defaults.yaml:2:60: A.count: count must be at least 1
    limits/defaults.yaml:2:71: A.period: period must be longer than zero
      write a time such as `1m`
    limits/defaults.yaml:3:66: B.count: count must be at least 1
    "#);
}

#[test]
fn a_key_of_another_algorithm_is_told_with_what_to_do() {
    let defaults = "\
RequestsPerAddress: {per: address, burst: 20, count: 100, period: 1m}
A: {per: address, burst: 20, count: 100, period: 1m, align: period, count_denied: false}
B: {per: address, algorithm: fixed_window, burst: 20, count: 100, period: 1m, count_denied: true}
C: {per: address, algorithm: fixed_window, calendar: day, align: period, count: 100, period: 1d}
D: {per: address, algorithm: fixed_window, calendar: day, time_zone: Europe/Atlantis, count: 1}
E: {per: address, algorithm: fixed_window, time_zone: UTC, count: 1, period: 500ms}
F: {per: address, algorithm: sliding_log, count: 10001, period: 1h}
G: {per: address, algorithm: sliding_windows, count: 1, period: 1h}
H: {per: address, algorithm: sliding_window, count: 0}
I: {per: address, count: 1}
";
    let overrides = "\
- F: {burst: 1, count: 2, period: 1h, ids: [10.0.0.1]}
- C: {count: 2, ids: [10.0.0.1]}
- D: {count: 2, ids: [10.0.0.1]}
";
    let folder = Folder::with(&[
        ("gateway.yaml", SMALLEST),
        ("limits/defaults.yaml", defaults),
        ("limits/overrides.yaml", overrides),
    ]);
    let findings = folder.findings();
    let errors: Vec<&str> = findings
        .split("limits/defaults.yaml:2:1: warning")
        .collect();
    insta::assert_snapshot!(errors[0], @r#"
    limits/defaults.yaml:2:61: A.align: `align` does not apply to gcra
      leave it out, or say `algorithm: fixed_window`
    limits/defaults.yaml:2:83: A.count_denied: `count_denied` does not apply to gcra
      leave it out, or say `algorithm: sliding_window` or `sliding_log`
    limits/defaults.yaml:3:51: B.burst: the burst of a fixed_window is its count
      leave `burst` out, or say 100
    limits/defaults.yaml:3:93: B.count_denied: `count_denied` does not apply to fixed_window
      leave it out, or say `algorithm: sliding_window` or `sliding_log`
    limits/defaults.yaml:4:66: C.align: a calendar window begins with its calendar
      leave `align` out, or `calendar`
    limits/defaults.yaml:4:94: C.period: a window of this limit is as long as its day
      leave `period` out, or `calendar`
    limits/defaults.yaml:5:70: D.time_zone: there is no time zone "Europe/Atlantis"
      write a name of the IANA time zone database, such as Europe/Berlin or UTC
    limits/defaults.yaml:6:55: E.time_zone: only a calendar window has a time zone
      say `calendar: day`, `week` or `month`, or leave it out
    limits/defaults.yaml:6:78: E.period: a window's period must be at least 1s
    limits/defaults.yaml:7:50: F.count: a sliding_log's count must be at most 10000, as it remembers each unit
      choose sliding_window, which remembers some sixty numbers
    limits/defaults.yaml:8:30: G.algorithm: "sliding_windows" is not known here
      did you mean "sliding_window"?
    limits/defaults.yaml:9:1: H: the key "period" is missing
      write in which time `count` come back, such as `period: 1m`
    limits/defaults.yaml:9:53: H.count: count must be at least 1
    limits/defaults.yaml:10:1: I: the key "burst" is missing
      write how many pass at once: `burst: 1` for as many as the count, or fewer
    limits/defaults.yaml:10:1: I: the key "period" is missing
      write in which time `count` come back, such as `period: 1m`
    limits/overrides.yaml:1:14: [0].F.burst: the burst of a sliding_log is its count
      leave `burst` out, or say 2
    "#);
}

#[test]
fn limits_whose_buckets_would_be_the_same_are_refused() {
    let defaults = "
RequestsPerAddress: {per: address, id: 6, burst: 20, count: 100, period: 1m}
'6': {per: address, burst: 20, count: 100, period: 1m}
Other: {per: address, burst: 20, count: 100, period: 1m, id: 6}
'7': {per: address, burst: 20, count: 100, period: 1m, id: 8}
Seventh: {per: address, burst: 20, count: 100, period: 1m, id: 7}
Negative: {per: address, burst: 20, count: 100, period: 1m, id: -1}
";
    let folder = Folder::with(&[
        ("gateway.yaml", SMALLEST),
        ("limits/defaults.yaml", defaults),
    ]);
    let found = folder.findings();
    let errors: Vec<&str> = found
        .lines()
        .take_while(|found| !found.contains("warning:"))
        .collect();
    insta::assert_snapshot!(errors.join("\n"), @r#"
    limits/defaults.yaml:3:1: 6: the buckets of "RequestsPerAddress" begin with "6:" already
      give "6" another `id`; the other is at limits/defaults.yaml:2:40: RequestsPerAddress.id
    limits/defaults.yaml:4:62: Other.id: the buckets of "RequestsPerAddress" begin with "6:" already
      give "Other" another `id`; the other is at limits/defaults.yaml:2:40: RequestsPerAddress.id
    limits/defaults.yaml:7:65: Negative.id: expected a whole number, found `-1`
    "#);
}

#[test]
fn bounds_of_connections_that_cannot_hold_are_refused_in_their_places() {
    let connections = [
        "max_connections: 0",
        "max_connections: many",
        "header_timeout: 0s",
        "max_header_bytes: 8191",
        "max_header_bytes: 2MiB",
        "max_header_bytes: 8",
        "max_headers: 0",
        "max_streams: 10001",
        "idle_timeout: 0s",
        "stall_timeout: 75",
    ];
    for written in connections {
        let gateway = format!("connections:\n  {written}\n{SMALLEST}");
        let findings = findings(&gateway);
        let span = "gateway.yaml:2:";
        assert!(findings.starts_with(span), "{written}: {findings}");
        assert!(findings.contains("1 error,"), "{written}: {findings}");
    }
    let fine = "connections: {max_connections: auto, max_header_bytes: 1MiB, max_streams: 1}";
    let findings = findings(&format!("{fine}\n{SMALLEST}"));
    assert!(findings.contains("0 errors"), "{findings}");
}

#[test]
fn a_key_is_not_written_by_both_of_its_names() {
    let gateway = r#"
upstreams: {app: {servers: ["http://127.0.0.1:3000"]}}
routes:
  - {match: {}, upstream: app, limits: [], headers: none, ratelimit_headers: draft}
"#;
    let folder = Folder::with(&[("gateway.yaml", gateway)]);
    insta::assert_snapshot!(folder.findings(), @r"
    gateway.yaml:4:53: routes[0].headers: `headers` is the former name of `ratelimit_headers`, which is there too
      leave `headers` out
    1 error, 0 warnings
    ");
}

/// What a collector is written as, and what is wrong with it.
#[cfg(feature = "otlp")]
#[test]
fn a_collector_that_cannot_be_sent_to_is_refused() {
    let findings = |otlp: &str| {
        let gateway = format!("{SMALLEST}telemetry: {{otlp: {{{otlp}}}}}\n");
        let folder = Folder::with(&[
            ("gateway.yaml", &*gateway),
            ("limits/defaults.yaml", DEFAULTS),
        ]);
        folder.load().map_err(|found| found.to_string())
    };
    let settings = findings("endpoint: \"http://localhost:4318/otel\", sample: 0.25%").unwrap();
    let otlp = settings.process.otlp.unwrap();
    assert_eq!(otlp.sample, 2500);
    assert_eq!(otlp.endpoint, "http://localhost:4318/otel");
    for (written, told) in [
        (
            "endpoint: \"localhost:4318\"",
            "is not the URL of a collector",
        ),
        (
            "endpoint: \"http://a/?b=c\"",
            "is not the URL of a collector",
        ),
        (
            "endpoint: \"http://a:4318\", sample: 101%",
            "is not a share of traces",
        ),
        (
            "endpoint: \"http://a:4318\", sample: \"0.5\"",
            "is not a share of traces",
        ),
        (
            "endpoint: \"http://a:4318\", sample: 1.23456%",
            "is not a share of traces",
        ),
        (
            "endpoint: \"http://a:4318\", ca: a.pem",
            "shows no certificate",
        ),
        ("endpoint: \"http://a:4318\", interval: 0s", "interval"),
        (
            "endpoint: \"http://a:4318\", headers: {\"a b\": c}",
            "the name of a header",
        ),
    ] {
        let found = findings(written).unwrap_err();
        assert!(found.contains(told), "{told} in {found}");
    }
}

#[test]
fn what_is_no_yaml_gets_the_remedy_for_its_cause() {
    let said = |gateway: &str| Folder::with(&[("gateway.yaml", gateway)]).findings();
    let tab = said("upstreams:\n\tapp: {servers: []}\n");
    assert!(
        tab.contains("gateway.yaml:2:2: ") && tab.contains("indent with spaces"),
        "{tab}"
    );
    for column in [
        "routes:\n  - match: {}\n upstream: app\n",
        "a:\n  b: 1\n c: 2\n",
    ] {
        let column = said(column);
        assert!(
            column.contains("\n  check the indentation: the keys of a mapping"),
            "{column}"
        );
        assert!(!column.contains("stands in quotes"), "{column}");
    }
    let deeper = said("grace: 1s\n  watch: true\n");
    assert!(
        deeper.contains("or the line is indented too far"),
        "{deeper}"
    );
    let unquoted = said("routes: [@app]\n");
    assert!(unquoted.contains("stands in quotes"), "{unquoted}");
}

/// It was eleven errors, the first of them without a remedy.
#[test]
fn a_ban_that_lacks_indentation_is_one_error() {
    let bans = "
bans:
  abusers:
  per: address
  for: 1h
  strikes: {limits: RequestsPerAddress, count: 10, period: 1m}
  scanners: {per: address, for: 1h}
";
    insta::assert_snapshot!(findings(&format!("{SMALLEST}{bans}")), @r"
    gateway.yaml:10:10: bans.abusers: expected keys and values, found nothing
      indent its keys deeper than `abusers`
    1 error, 0 warnings
    ");
}

/// What nginx, Envoy, Traefik and compose files have, and where it belongs here.
#[test]
fn what_other_gateways_write_gets_the_remedy() {
    let gateway = r#"
listen: [{address: "127.0.0.1:${PORT}"}]
workers: ${WORKERS}
max_bodies: ${BODIES}
upstreams:
  app: {servers: ["${APP}"], timeout: 5s, weights: [1, 2]}
routes:
  - {path: "/*", host: a.example, upstream: app, limits: [RequestsPerAddress]}
  - {match: {path: /a}, upstream: app, limits: [RequestsPerAddress], timeout: 3s, on_denied: 403}
"#;
    let folder = Folder::with(&[
        ("gateway.yaml", gateway),
        ("limits/defaults.yaml", DEFAULTS),
    ]);
    insta::assert_snapshot!(folder.findings(), @r#"
    gateway.yaml:2:20: listen[0].address: the variable ${PORT} is not filled in here
      write the value; for a secret, write {env: NAME}; or fill the file in before: `envsubst < FILE | weir --config -`
    gateway.yaml:3:10: workers: the variable ${WORKERS} is not filled in here
      write the value; for a secret, write {env: NAME}; or fill the file in before: `envsubst < FILE | weir --config -`
    gateway.yaml:4:13: max_bodies: the variable ${BODIES} is not filled in here
      write the value; for a secret, write {env: NAME}; or fill the file in before: `envsubst < FILE | weir --config -`
    gateway.yaml:6:19: upstreams.app.servers[0]: the variable ${APP} is not filled in here
      write the value; for a secret, write {env: NAME}; or fill the file in before: `envsubst < FILE | weir --config -`
    gateway.yaml:6:30: upstreams.app.timeout: unknown key "timeout"
      choose `connect_timeout`, `response_timeout`, `body_timeout` or `total_timeout`
    gateway.yaml:6:43: upstreams.app.weights: unknown key "weights"
      each server has a weight of its own: `servers: [{url: URL, weight: 2}]`
    gateway.yaml:8:6: routes[0].path: unknown key "path"
      write it below `match`, as in `match: {path: ...}`
    gateway.yaml:8:18: routes[0].host: unknown key "host"
      write it below `match`, as in `match: {host: ...}`
    gateway.yaml:9:70: routes[1].timeout: unknown key "timeout"
      choose `connect_timeout`, `response_timeout`, `body_timeout` or `total_timeout`
    gateway.yaml:9:94: routes[1].on_denied: "403" is not known here
      for another status than 429, write `{reject: {status: 403}}`
    10 errors, 0 warnings
    "#);
}

/// A name or a header was served with the variable in it.
#[test]
fn a_variable_is_an_error_also_where_any_text_will_do() {
    let gateway = |value: &str| {
        format!(
            "{SMALLEST}    name: '{value}'\n    response_headers: {{set: {{x-env: '{value}'}}}}\n"
        )
    };
    let found = |value: &str| {
        let files = [
            ("gateway.yaml", &*gateway(value)),
            ("limits/defaults.yaml", DEFAULTS),
        ];
        Folder::with(&files).findings()
    };
    for value in ["${NAME}", "a ${NAME:-b}", "${x}${NAME}"] {
        let found = found(value);
        assert!(
            found.contains("routes[0].name: the variable ${NAME} is not filled in"),
            "{found}"
        );
        assert!(
            found.contains("routes[0].response_headers.set.x-env: the variable"),
            "{found}"
        );
        assert!(found.ends_with("2 errors, 0 warnings"), "{found}");
    }
    for value in ["${name}", "$NAME", "${", "${NAME", "${}", "{NAME}"] {
        assert_eq!(found(value), "0 errors, 0 warnings", "{value}");
    }
}

/// Scripts in pages have such marks of their own.
#[test]
fn a_variable_in_a_body_or_a_comment_is_text() {
    let gateway = r#"
routes:
  - {match: {path: "/*"}, response: {status: 200, body: "<script>`${WIDTH}`</script>"}, limits: [L]}
"#;
    let overrides =
        "- L: {burst: 2, count: 2, period: 1s, ids: [{id: 1.2.3.4, comment: '${WHO}'}]}";
    let folder = Folder::with(&[
        ("gateway.yaml", gateway),
        (
            "limits/defaults.yaml",
            "L: {per: address, burst: 1, count: 1, period: 1s}",
        ),
        ("limits/overrides.yaml", overrides),
    ]);
    assert_eq!(folder.findings(), "0 errors, 0 warnings");
}

/// YAML has them, and other readers of YAML take them for texts or for other numbers.
#[test]
fn a_number_that_is_not_written_in_decimal_digits_is_an_error() {
    let found = |written: &str| {
        Folder::with(&[
            ("gateway.yaml", SMALLEST),
            (
                "limits/defaults.yaml",
                &format!(
                    "RequestsPerAddress: {{per: address, burst: {written}, count: 1, period: 1s}}"
                ),
            ),
        ])
        .findings()
    };
    insta::assert_snapshot!(found("0x10"), @r#"
    limits/defaults.yaml:1:43: RequestsPerAddress.burst: expected a whole number, found `0x10`
      write it in decimal digits: 16
    1 error, 0 warnings
    "#);
    for (written, meant) in [("0o10", 8), ("+5", 5), ("0b11", 3)] {
        let help = format!("write it in decimal digits: {meant}");
        assert!(found(written).contains(&help), "{}", found(written));
    }
    assert_eq!(found("5"), "0 errors, 0 warnings");
    for (uses, key) in [
        ("{limit: RequestsPerAddress, cost: +5}", "cost"),
        (
            "{limit: RequestsPerAddress, cost: {request_header: x-cost, default: 0x5}}",
            "default",
        ),
    ] {
        let gateway = SMALLEST.replace("[RequestsPerAddress]", &format!("[{uses}]"));
        assert!(
            findings(&gateway).contains(&format!("{key}: ")),
            "{}",
            findings(&gateway)
        );
    }
}

#[test]
fn what_other_gateways_have_in_a_place_is_told_as_it_is_written_here() {
    let gateway = r#"
upstreams: {app: "http://127.0.0.1:3000", api: {servers: ["$API_URL"]}}
block: [203.0.113.9]
defaults: {limits: [A, B, C, D]}
routes: [{upstream: app}, {match: {path: "/api/*"}, upstream: api}]
"#;
    let defaults = r"
A: {per: x-api-key, burst: 1, count: 1, period: 1s, status: 503}
B: {per: $http_x_api_key, burst: 1, count: 1, period: 1s, exempt: [10.0.0.0/8]}
C: {per: $cookie_session, burst: 1, count: 1, period: 1s}
D: {per: $arg_key, burst: 1, count: 1, period: 1s}
";
    let folder = Folder::with(&[
        ("gateway.yaml", gateway),
        ("limits/defaults.yaml", defaults),
    ]);
    insta::assert_snapshot!(folder.findings(), @r#"
    gateway.yaml:2:18: upstreams.app: expected keys and values, found `http://127.0.0.1:3000`
      write {servers: ["http://127.0.0.1:3000"]}
    gateway.yaml:2:59: upstreams.api.servers[0]: `$API_URL` is a variable, which is not filled in here
      write the URL; or fill the file in before: `envsubst < FILE | weir --config -`
    gateway.yaml:3:1: block: expected keys and values, found a list
      write {addresses: [...]}, or {accounts: [...]}
    gateway.yaml:5:10: routes[0]: the key "match" is missing
    limits/defaults.yaml:2:10: A.per: unknown source "x-api-key"
      if it is a header, write `header:x-api-key`
    limits/defaults.yaml:2:53: A.status: unknown key "status"
      what a denied request gets is said on a route, or under `defaults` for all: `on_denied: {reject: {status: 503}}`
    limits/defaults.yaml:3:10: B.per: unknown source "$http_x_api_key"
      write `header:x-api-key`
    limits/defaults.yaml:3:59: B.exempt: unknown key "exempt"
      clients that no limit holds are listed in gateway.yaml: `allow: {addresses: [10.0.0.0/8]}`; those that may send more have an override
    limits/defaults.yaml:4:10: C.per: unknown source "$cookie_session"
      write `cookie:session`
    limits/defaults.yaml:5:10: D.per: unknown source "$arg_key"
      write `query:key`
    10 errors, 0 warnings
    "#);
}

#[test]
fn the_example_for_an_empty_file_is_a_configuration() {
    let folder = Folder::with(&[("gateway.yaml", "")]);
    let found = folder.findings();
    let example = found.lines().filter_map(|line| line.strip_prefix("    "));
    let example: String = example.map(|line| line.to_owned() + "\n").collect();
    let folder = Folder::with(&[("gateway.yaml", &example)]);
    assert_eq!(folder.findings(), "0 errors, 0 warnings", "{example}");
}
