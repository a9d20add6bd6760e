//! What is doubtful, in which words.

use super::*;

fn findings(gateway: &str, defaults: &str, overrides: &str) -> String {
    let folder = Folder::with(&[
        ("gateway.yaml", gateway),
        ("limits/defaults.yaml", defaults),
    ]);
    if !overrides.is_empty() {
        folder.write("limits/overrides.yaml", overrides);
    }
    assert!(folder.load().is_ok(), "{}", folder.findings());
    folder.findings()
}

#[test]
fn what_looks_like_a_hash_in_a_list_file_is_told_line_by_line() {
    let gateway = format!(
        "account: [{{header: x-key}}]\nhash_key: {{env: PATH}}\nblock: {{accounts: [{{file: blocked.txt}}]}}{SMALLEST}"
    );
    let hash = |n: usize| format!("{n:032x}");
    let folder = Folder::with(&[
        ("gateway.yaml", &gateway),
        ("limits/defaults.yaml", DEFAULTS),
        (
            "blocked.txt",
            &format!("acme\n{} # of the log\nhash:{}\n", hash(10), hash(11)),
        ),
    ]);
    insta::assert_snapshot!(folder.findings(), @r#"
    blocked.txt:2:1: warning: "0000000000000000000000000000000a" is taken for a name, but looks like a hash
      for the hash, write "hash:0000000000000000000000000000000a"
    0 errors, 1 warning
    "#);
    let many: String = (0..30).map(|n| hash(n) + "\n").collect();
    folder.write("blocked.txt", &many);
    let found = folder.findings();
    assert!(found.contains("blocked.txt:10:1: "), "{found}");
    assert!(
        found.contains("20 more lines of blocked.txt look like hashes"),
        "{found}"
    );
    assert!(found.ends_with("\n0 errors, 11 warnings"), "{found}");
}

#[test]
fn a_limit_that_whole_seconds_make_slower_is_told() {
    let gateway = r#"
upstreams: {app: {servers: ["http://127.0.0.1:3000"]}}
defaults: {limits: [Slow]}
routes:
  - {match: {path: /slow}, upstream: app}
  - {match: {path: /again}, upstream: app}
  - {match: {path: /slower}, upstream: app, limits: [Slower]}
  - {match: {path: /ms}, upstream: app, limits: [Ms], ratelimit_headers: [draft, retry-after-ms]}
  - {match: {path: /wait}, upstream: app, limits: [Wait], on_denied: {delay: {up_to: 1s}}}
  - {match: {path: /enough}, upstream: app, limits: [Enough, Rare, Kept]}
  - {match: {path: /crowd}, upstream: app, limits: [Crowd]}
"#;
    let defaults = "
Slow: {per: address, burst: 1, count: 10, period: 1s}
Slower: {per: address, burst: 1, count: 100, period: 1m}
Ms: {per: address, burst: 1, count: 10, period: 1s}
Wait: {per: address, burst: 1, count: 10, period: 1s}
Enough: {per: address, burst: 10, count: 10, period: 1s}
Rare: {per: address, burst: 1, count: 1, period: 1s}
Kept: {per: address, burst: 3, count: 100, period: 1m}
Crowd: {per: global, burst: 2, count: 100, period: 1m}
";
    insta::assert_snapshot!(findings(gateway, defaults, ""), @r#"
    gateway.yaml:5:5: warning: routes[0]: a client that waits out Retry-After gets 1 a second of "Slow", of which 10 come back in that time
      Retry-After has whole seconds: give it a `burst` of 11, add `retry-after-ms` to `ratelimit_headers`, or say `on_denied: delay`
    gateway.yaml:7:5: warning: routes[2]: a client that waits out Retry-After gets 1 a second of "Slower", of which 2 come back in that time
      Retry-After has whole seconds: give it a `burst` of 3, add `retry-after-ms` to `ratelimit_headers`, or say `on_denied: delay`
    gateway.yaml:11:5: warning: routes[6]: clients that share a bucket of "Crowd" are all told the same second to come back, as it keeps less than a second of units
      for a bucket that clients share, give it a `burst` of 3, or add `retry-after-ms` to `ratelimit_headers`
    0 errors, 3 warnings
    "#);
}

#[test]
fn forms_of_headers_that_share_a_field_are_refused_together() {
    let of = |forms: &str| {
        let route =
            format!("{{match: {{}}, upstream: app, limits: [], ratelimit_headers: {forms}}}");
        let gateway = format!(
            "upstreams: {{app: {{servers: ['http://127.0.0.1:3000']}}}}\nroutes:\n  - {route}\n"
        );
        Folder::with(&[("gateway.yaml", &gateway)]).findings()
    };
    insta::assert_snapshot!(of("[draft, draft-06]"), @r#"
    gateway.yaml:3:71: routes[0].ratelimit_headers[1]: "draft" and "draft-06" both write RateLimit-Policy
      leave one of them out
    1 error, 0 warnings
    "#);
    let of_epoch = of("[x-ratelimit-epoch, x-ratelimit]");
    assert!(
        of_epoch.contains("\"x-ratelimit-epoch\" and \"x-ratelimit\" both write X-RateLimit-Limit"),
        "{of_epoch}"
    );
    let beside = of("[draft, draft-03, x-ratelimit-epoch, retry-after-ms, draft]");
    assert_eq!(beside, "0 errors, 0 warnings");
    for form in weir_middleware::HeaderForm::ALL {
        assert_eq!(of(form.name()), "0 errors, 0 warnings");
    }
}

#[test]
fn a_route_that_can_be_passed_by_leaving_something_out_is_told() {
    let gateway = r#"
account: [{header: x-api-key}]
upstreams: {app: {servers: ["http://127.0.0.1:3000"]}}
routes:
  - {match: {path: /open}, upstream: app, limits: [PerAccount, PerKey]}
  - {match: {path: /domains}, upstream: app, limits: [PerDomain]}
  - {match: {path: /domains, host: "*.example.com"}, upstream: app, limits: [PerDomain]}
  - {match: {path: /strict}, upstream: app, limits: [{limit: PerAccount, missing: deny}]}
  - {match: {path: /both}, upstream: app, limits: [PerAccount, PerAddress]}
hash_key: {env: PATH}
"#;
    let defaults = "
PerAccount: {per: account, burst: 1, count: 1, period: 1s}
PerKey: {per: [address, 'header:x-key'], burst: 1, count: 1, period: 1s}
PerDomain: {per: domain, burst: 1, count: 1, period: 1s}
PerAddress: {per: address, burst: 1, count: 1, period: 1s}
";
    insta::assert_snapshot!(findings(gateway, defaults, ""), @"
    gateway.yaml:5:5: warning: routes[0]: a client passes unlimited without an account and header:x-key
      add a limit per address, or say `missing: deny`
    gateway.yaml:6:5: warning: routes[1]: a client passes unlimited without a registrable domain as host
      add a limit per address, or say `missing: deny`
    0 errors, 2 warnings
    ");
}

/// Half of the accounts were others after each restart, and nothing said so.
#[test]
fn a_share_of_hashed_subjects_without_a_key_is_told_wherever_it_is_said() {
    let gateway = r#"
account: [{header: x-api-key}]
upstreams:
  app: {servers: ["http://127.0.0.1:3000"], concurrency: {limit: 9, enforce: 5%}}
overload: {enforce: 20%}
bans:
  keys: {per: account, strikes: {count: 5, period: 1m, limits: [Address]}, for: 10m, enforce: 40%}
  all: {per: account, strikes: {count: 5, period: 1m, limits: [Address]}, for: 10m}
  addresses: {per: address, strikes: {count: 5, period: 1m, limits: [Address]}, for: 10m, enforce: 40%}
routes:
  - {match: {path: /part}, upstream: app, limits: [Address, {limit: Account, enforce: 50%}]}
  - {match: {path: /tenant}, upstream: app, enforce: 10%, limits: [Address, Header]}
  - {match: {path: /none}, upstream: app, limits: [Address, {limit: Account, enforce: false}]}
  - {match: {path: /all}, upstream: app, limits: [{limit: Address, enforce: 50%}, Account]}
"#;
    let defaults = "
Address: {per: address, burst: 9, count: 9, period: 1s}
Account: {per: account, burst: 9, count: 9, period: 1s}
Header: {per: 'header:x-tenant', burst: 9, count: 9, period: 1s}
";
    let found = findings(gateway, defaults, "");
    let drawn = found
        .lines()
        .filter(|line| line.contains("draws other clients"));
    insta::assert_snapshot!(drawn.collect::<Vec<_>>().join("\n"), @r#"
    gateway.yaml:4:45: warning: upstreams.app.concurrency: each restart and each gateway draws other clients for the 5% that `concurrency` of upstream "app" is enforced on
    gateway.yaml:5:21: warning: overload.enforce: each restart and each gateway draws other clients for the 20% that `overload` is enforced on
    gateway.yaml:7:3: warning: bans.keys: each restart and each gateway draws other clients for the 40% that ban "keys" is enforced on
    gateway.yaml:11:5: warning: routes[0]: each restart and each gateway draws other clients for the 50% that limit "Account" is enforced on
    gateway.yaml:12:5: warning: routes[1]: each restart and each gateway draws other clients for the 10% that limit "Header" is enforced on
    "#);
    let keyed = findings(&format!("hash_key: {{env: PATH}}{gateway}"), defaults, "");
    assert!(!keyed.contains("draws other clients"), "{keyed}");
}

#[test]
fn a_route_that_can_be_passed_by_a_path_without_what_is_counted_is_told() {
    let said = |regex: &str, more: &str| {
        let gateway = format!(
            "{UPSTREAM}routes: [{{match: {{path: \"/users/*\", path_regex: \"{regex}\"}}, upstream: app, \
             limits: [{{limit: User{more}}}]}}]"
        );
        let defaults = "User: {per: 'path:id', burst: 9, count: 9, period: 1s}";
        gets(
            "a client passes unlimited without path:id",
            &gateway,
            defaults,
            "",
        )
    };
    for regex in [
        "/users(/(?<id>[0-9]+))?",
        "/users/(?<id>[0-9]*)(/x)?",
        "/users/(x|(?<id>[0-9]))",
    ] {
        assert!(said(regex, ""), "{regex}");
        assert!(!said(regex, ", missing: deny"), "{regex}");
    }
    assert!(!said("/users/(?<id>[0-9]+)(/.*)?", ""));
}

#[test]
fn a_decoy_that_counts_by_a_number_that_stands_still_is_told() {
    for (header, is_told) in [
        ("x-ratelimit-remaining: 97", true),
        ("x-rate-limit-remaining: 97", true),
        ("ratelimit: '\"L\";r=97'", true),
        ("x-powered-by: '97'", false),
    ] {
        let gateway = format!(
            "{UPSTREAM}decoys: {{sent: {{headers: {{{header}}}}}}}\nroutes: [{{match: {{path: /x}}, \
             upstream: app, limits: [RequestsPerAddress], on_denied: {{shadow: sent}}}}]"
        );
        let said = "is the same in each decoy";
        assert_eq!(gets(said, &gateway, DEFAULTS, ""), is_told, "{header}");
    }
}

#[test]
fn a_route_that_nobody_limits_is_told_unless_that_is_said() {
    let routes = r#"
upstreams: {app: {servers: ["http://127.0.0.1:3000"]}}
routes:
  - {match: {path: /forgotten}, upstream: app}
  - {match: {path: /open}, upstream: app, limits: []}
  - {match: {path: /limited}, upstream: app, limits: [L]}
  - {match: {path: /moved}, redirect: "https://example.com/"}
"#;
    let defaults = "L: {per: address, burst: 1, count: 1, period: 1s}";
    insta::assert_snapshot!(findings(routes, defaults, ""), @"
    gateway.yaml:4:5: warning: routes[0]: no limit applies to this route
      list its `limits`, or those of all routes under `defaults`; `[]` if none is meant
    0 errors, 1 warning
    ");
    let inherited = format!("defaults: {{limits: [L]}}{routes}");
    assert_eq!(findings(&inherited, defaults, ""), "0 errors, 0 warnings");
}

#[test]
fn an_admin_listener_for_other_machines_without_a_token_is_told() {
    let defaults = DEFAULTS;
    let admin = |admin: &str| findings(&format!("admin: {{{admin}}}{SMALLEST}"), defaults, "");
    insta::assert_snapshot!(admin("address: \"0.0.0.0:9901\""), @r"
    gateway.yaml:1:18: warning: admin.address: other machines may reach 0.0.0.0:9901, and there is no token
      all of them read health and metrics, and a forwarded port of this machine changes bans; configure `token`, or listen on 127.0.0.1
    0 errors, 1 warning
    ");
    for fine in [
        "address: \"127.0.0.1:9901\"",
        "address: \"[::1]:9901\"",
        "address: \"0.0.0.0:9901\", token: {env: PATH}",
    ] {
        assert_eq!(admin(fine), "0 errors, 0 warnings", "{fine}");
    }
}

/// All clients behind the proxy were one, and nobody was told.
#[test]
fn a_header_of_addresses_that_nobody_is_trusted_to_write_is_told() {
    let client = |keys: &str| {
        findings(
            &format!("client_address: {{{keys}}}{SMALLEST}"),
            DEFAULTS,
            "",
        )
    };
    insta::assert_snapshot!(client("header: x-real-ip"), @r"
    gateway.yaml:1:26: warning: client_address.header: this header is never read: no proxy is trusted
      list the networks of your proxies in `trusted_proxies`
    0 errors, 1 warning
    ");
    let trusted = client("header: x-real-ip, trusted_proxies: [10.0.0.0/8]");
    assert_eq!(trusted, "0 errors, 0 warnings");
}

/// One limit may count a request and, once more, what its response says.
#[test]
fn a_limit_that_counts_a_request_twice_is_told() {
    let gateway = r#"
upstreams: {app: {servers: ["http://127.0.0.1:3000"]}}
routes:
  - {match: {path: /twice}, upstream: app, limits: [L, {limit: L, cost: 2}]}
  - {match: {path: /failed}, upstream: app, limits: [L, {limit: L, spend_on: {status: 401}}]}
  - {match: {path: /off}, upstream: app, limits: [L, {limit: L, enabled: false}]}
"#;
    let defaults = "L: {per: address, burst: 9, count: 9, period: 1s}";
    insta::assert_snapshot!(findings(gateway, defaults, ""), @r#"
    gateway.yaml:4:5: warning: routes[0]: "L" counts each request twice
      list it once, with a `cost` if that is meant
    0 errors, 1 warning
    "#);
}

#[test]
fn what_limits_nothing_or_otherwise_than_it_says_is_told() {
    let defaults = "
RequestsPerAddress: {per: address, burst: 2000000, count: 100, period: 1m}
Yearly: {per: address, burst: 20, count: 100, period: 10000h}
Fast: {per: address, burst: 20, count: 600000000, period: 1s}
";
    let overrides = "- RequestsPerAddress: {burst: 3, count: 3, period: 400d, ids: [192.0.2.1]}";
    insta::assert_snapshot!(findings(SMALLEST, defaults, overrides), @r#"
    limits/defaults.yaml:2:43: warning: RequestsPerAddress.burst: a burst of 2000000 limits nothing
      that much passes at once; choose at most 1000000
    limits/defaults.yaml:3:1: warning: Yearly: no route uses this limit
      list it under a route's `limits`, or under `defaults`
    limits/defaults.yaml:3:55: warning: Yearly.period: a period of 416d16h outlasts every store
      when the store forgets, every client starts afresh; choose at most 366d
    limits/defaults.yaml:4:1: warning: Fast: no route uses this limit
      list it under a route's `limits`, or under `defaults`
    limits/defaults.yaml:4:40: warning: Fast.count: this rate is rounded up by 66%
      units come back at intervals of whole nanoseconds; lower the count
    limits/overrides.yaml:1:52: warning: [0].RequestsPerAddress.period: a period of 400d outlasts every store
      when the store forgets, every client starts afresh; choose at most 366d
    0 errors, 6 warnings
    "#);
}

#[test]
fn hashes_that_are_passing_or_taken_for_names_and_secrets_in_the_log_are_told() {
    let gateway = SMALLEST.to_owned()
        + "account: [{header: x-account}, {bearer: {}}]
allow: {accounts: [510e0c1b3bd7c9a8c1d5b5fb3a1c2d4e, acme, 'hash:510e0c1b3bd7c9a8c1d5b5fb3a1c2d4e']}
log: {account: plain}
";
    let gateway = gateway.replace(
        "[RequestsPerAddress]",
        "[{limit: RequestsPerAddress}, Calls]",
    );
    let defaults = DEFAULTS.to_owned() + "Calls: {per: account, burst: 1, count: 1, period: 1s}\n";
    let overrides = "
- Calls: {burst: 3, count: 3, period: 1s, ids: [510E0C1B3BD7C9A8C1D5B5FB3A1C2D4E, acme]}
";
    insta::assert_snapshot!(findings(&gateway, &defaults, overrides), @r#"
    gateway.yaml:8:1: warning: account: the hashes of accounts change at each restart: ids in the log, and overrides and bans by a hash, match no account then
      make a key with `openssl rand -hex 32 > hash.key`, give it to every gateway, and say `hash_key: {file: hash.key}`
    gateway.yaml:8:32: warning: account[1]: the log shows this secret to all who read it
      leave out `log.account: plain`, or name accounts by something else
    gateway.yaml:9:20: warning: allow.accounts[0]: "510e0c1b3bd7c9a8c1d5b5fb3a1c2d4e" is taken for a name, but looks like a hash
      for the hash, write "hash:510e0c1b3bd7c9a8c1d5b5fb3a1c2d4e"
    limits/overrides.yaml:2:49: warning: [0].Calls.ids[0]: "510e0c1b3bd7c9a8c1d5b5fb3a1c2d4e" is taken for a name, but looks like a hash
      for the hash, write "hash:510e0c1b3bd7c9a8c1d5b5fb3a1c2d4e"
    0 errors, 4 warnings
    "#);
    // A key of the operator's own, and hashes alone in the log.
    let keyed = gateway.replace("account: plain", "account: hash") + "hash_key: {env: PATH}\n";
    let keyed = keyed.replace("[510e0c1b3bd7c9a8c1d5b5fb3a1c2d4e, acme", "[acme");
    assert_eq!(findings(&keyed, &defaults, ""), "0 errors, 0 warnings");
}

#[test]
fn what_is_not_used_is_told() {
    let gateway = r#"
client_address: {trusted_proxies: [0.0.0.0/0]}
upstreams:
  app: {servers: ["http://127.0.0.1:3000"]}
  old: {servers: ["http://127.0.0.1:3001"]}
decoys: {sent: {headers: {Content-Type: application/json}, body: '{"id":{{ uuid() }}}'}}
routes:
  - {name: first, match: {path: /a, methods: [GET, POST]}, upstream: app, limits: []}
  - {name: second, match: {path: /a, methods: [POST, GET]}, upstream: app, limits: []}
"#;
    insta::assert_snapshot!(findings(gateway, DEFAULTS, ""), @r#"
    gateway.yaml:2:36: warning: client_address.trusted_proxies[0]: every client may claim any address
      name only the networks of your own proxies
    gateway.yaml:5:3: warning: upstreams.old: nothing uses this upstream
    gateway.yaml:6:10: warning: decoys.sent: nothing uses this decoy
      say `on_denied: {shadow: sent}` on a route or a ban
    gateway.yaml:6:66: warning: decoys.sent.body: this body is not JSON when the request lacks the values
      write "{{ body.name }}" for a text, and {{ body.count | default(0) }} for a number
    gateway.yaml:9:5: warning: routes[1]: this route is never taken: "first" matches the same
      of equal routes the first one wins
    limits/defaults.yaml:2:1: warning: RequestsPerAddress: no route uses this limit
      list it under a route's `limits`, or under `defaults`
    0 errors, 6 warnings
    "#);
}

#[test]
fn an_override_that_has_ended_is_told() {
    let overrides = "
- RequestsPerAddress: {burst: 3, count: 3, period: 1s, until: 2001-09-09, ids: [192.0.2.1]}
- RequestsPerAddress: {burst: 3, count: 3, period: 1s, until: 2200-01-01, ids: [192.0.2.2]}
";
    insta::assert_snapshot!(findings(SMALLEST, DEFAULTS, overrides), @r#"
    limits/overrides.yaml:2:63: warning: [0].RequestsPerAddress.until: this override ended at 2001-09-10T00:00:00Z
      it does not apply any more; remove it, or let it end later
    0 errors, 1 warning
    "#);
}

#[test]
fn a_route_with_nothing_but_overrides_can_be_passed_by_all_others() {
    let gateway = SMALLEST.replace("RequestsPerAddress", "{limit: OnlyForSome, per: address}");
    let overrides = "- OnlyForSome: {burst: 3, count: 3, period: 1s, ids: [10.0.0.0/8]}";
    insta::assert_snapshot!(findings(&gateway, "{}", overrides), @r#"
    gateway.yaml:5:5: warning: routes[0]: a client passes unlimited without an override of "OnlyForSome"
      add a limit per address, or say `missing: deny`
    0 errors, 1 warning
    "#);
}

/// Whether a configuration gets a warning; it must be fit in any case.
fn gets(said: &str, gateway: &str, defaults: &str, overrides: &str) -> bool {
    findings(gateway, defaults, overrides).contains(said)
}

const UPSTREAM: &str = "upstreams: {app: {servers: [\"http://127.0.0.1:3000\"]}}\n";

/// A gateway with one route, which uses these limits.
fn using(uses: &str) -> String {
    let route = format!("{{match: {{path: \"/{{team}}/x\"}}, upstream: app, limits: [{uses}]}}");
    format!("account: [{{header: x-api-key}}]\n{UPSTREAM}routes: [{route}]")
}

#[test]
fn parameters_are_doubtful_beyond_a_bound_and_not_at_it() {
    let said = ["limits nothing", "outlasts every store", "is rounded up by"];
    for (fit, doubtful, at) in [
        (
            "burst: 1000000, count: 1, period: 1s",
            "burst: 1000001, count: 1, period: 1s",
            0,
        ),
        (
            "burst: 1, count: 1, period: 8784h",
            "burst: 1, count: 1, period: 8784h0m1s",
            1,
        ),
        (
            "burst: 1, count: 99000000, period: 1s",
            "burst: 1, count: 98999999, period: 1s",
            2,
        ),
        // What has no emission interval has none to round.
        (
            "algorithm: fixed_window, count: 98999999, period: 1s",
            "algorithm: token_bucket, burst: 1, count: 98999999, period: 1s",
            2,
        ),
    ] {
        for (parameters, expected) in [(fit, false), (doubtful, true)] {
            let defaults = format!("A: {{per: address, {parameters}}}");
            for (at, said) in said.iter().enumerate().filter(|(it, _)| *it == at) {
                assert_eq!(
                    gets(said, &using("A"), &defaults, ""),
                    expected,
                    "{at} {parameters}"
                );
            }
            let Some(parameters) = parameters.strip_prefix("burst") else {
                continue;
            };
            let overrides = format!("- A: {{burst{parameters}, ids: [10.0.0.1]}}");
            let defaults = "A: {per: address, burst: 1, count: 1, period: 1s}";
            assert_eq!(
                gets(said[at], &using("A"), defaults, &overrides),
                expected,
                "{parameters}"
            );
        }
    }
    let rounded = "A: {per: address, burst: 1, count: 98999999, period: 1s}";
    assert!(gets("is rounded up by 1%", &using("A"), rounded, ""));
}

#[test]
fn a_limit_is_unused_only_where_neither_a_route_nor_the_defaults_list_it() {
    let defaults = "A: {per: address, burst: 1, count: 1, period: 1s}";
    let said = "no route uses this limit";
    assert!(gets(said, &using(""), defaults, ""));
    assert!(!gets(said, &using("A"), defaults, ""));
    let inherited =
        format!("{UPSTREAM}defaults: {{limits: [A]}}\nroutes: [{{match: {{}}, upstream: app}}]");
    assert!(!gets(said, &inherited, defaults, ""));
    let unheeded = inherited.replace("upstream: app}]", "upstream: app, limits: []}]");
    assert!(gets(said, &unheeded, defaults, ""));
}

#[test]
fn a_limit_that_nobody_defines_is_told_of_unless_an_override_does() {
    let said = "nothing defines or overrides \"A\"";
    let uses = using("{limit: A, per: address}");
    let overrides = "- A: {burst: 1, count: 1, period: 1s, ids: [10.0.0.1]}";
    assert!(gets(said, &uses, "{}", ""));
    assert!(!gets(said, &uses, "{}", overrides));
    assert!(!gets(
        said,
        &uses,
        "A: {burst: 1, count: 1, period: 1s}",
        ""
    ));
    assert!(!gets(
        said,
        &using(""),
        "A: {burst: 1, count: 1, period: 1s}",
        ""
    ));
}

#[test]
fn only_what_takes_from_a_bucket_twice_at_once_counts_a_request_twice() {
    let said = "counts each request twice";
    let defaults = "\
A: {per: address, burst: 9, count: 9, period: 1s}
B: {per: address, burst: 9, count: 9, period: 1s}
Off: {per: address, burst: 9, count: 9, period: 1s, enabled: false}
";
    for uses in [
        "A, A",
        "A, {limit: A, cost: 3}",
        "A, B, {limit: A, kind: check_and_spend}",
    ] {
        assert!(gets(said, &using(uses), defaults, ""), "{uses}");
    }
    for uses in [
        "A",
        "A, B",
        "Off, Off",
        "A, {limit: A, kind: check_only}",
        "A, {limit: A, kind: spend_only}",
        "A, {limit: A, enabled: false}",
        "A, {limit: A, spend_on: {status: 401}}",
        "A, {limit: A, refund_on: {status: 5xx}}",
    ] {
        assert!(!gets(said, &using(uses), defaults, ""), "{uses}");
    }
    let route = "{match: {path: /PATH}, upstream: app, limits: [A]}";
    let routes: Vec<String> = ["a", "b"].map(|path| route.replace("PATH", path)).into();
    let each = format!("{UPSTREAM}routes: [{}]", routes.join(", "));
    assert!(!gets(said, &each, defaults, ""));
}

#[test]
fn a_route_is_passable_if_every_limit_that_denies_can_be_left_out() {
    let said = |uses: &str| {
        let defaults = "\
Address: {per: address, burst: 9, count: 9, period: 1s}
Account: {per: account, burst: 9, count: 9, period: 1s}
Strict: {per: account, missing: deny, burst: 9, count: 9, period: 1s}
Header: {per: 'header:x', burst: 9, count: 9, period: 1s}
Cookie: {per: 'cookie:x', burst: 9, count: 9, period: 1s}
Query: {per: [address, 'query:x'], burst: 9, count: 9, period: 1s}
Domain: {per: domain, burst: 9, count: 9, period: 1s}
Team: {per: 'path:team', burst: 9, count: 9, period: 1s}
Rest: {per: [host, method, route], burst: 9, count: 9, period: 1s}
All: {per: global, burst: 9, count: 9, period: 1s}
";
        let found = findings(&using(uses), defaults, "");
        let (_, rest) = found.split_once("a client passes unlimited without ")?;
        rest.lines().next().map(str::to_owned)
    };
    for (uses, without) in [
        ("Account", "an account"),
        ("Header", "header:x"),
        ("Cookie", "cookie:x"),
        ("Query", "query:x"),
        ("Domain", "a registrable domain as host"),
        ("Header, Account, Header", "an account and header:x"),
        ("{limit: Strict, missing: skip}", "an account"),
        // None of these denies anybody.
        ("Account, {limit: Address, kind: spend_only}", "an account"),
        ("Account, {limit: Address, enabled: false}", "an account"),
    ] {
        assert_eq!(said(uses).as_deref(), Some(without), "{uses}");
    }
    for uses in [
        "",
        "Strict",
        "Team",
        "Rest",
        "All",
        "Account, Address",
        "{limit: Account, missing: deny}",
        "Account, {limit: Address, kind: check_only}",
        "{limit: Account, kind: spend_only}",
        "{limit: Account, enabled: false}",
    ] {
        assert_eq!(said(uses), None, "{uses}");
    }
}

/// As `weir import` writes for a header of a CDN.
#[test]
fn a_header_is_not_left_out_where_the_route_requires_a_value_of_it() {
    let defaults = "L: {per: 'header:x', burst: 9, count: 9, period: 1s}\n\
                    Q: {per: 'query:x', burst: 9, count: 9, period: 1s}";
    let said = |limit: &str, matches: &str| {
        let route = format!("{{match: {{{matches}}}, upstream: app, limits: [{limit}]}}");
        gets(
            &format!(
                "a client passes unlimited without {}",
                if limit == "L" { "header:x" } else { "query:x" }
            ),
            &format!("{UPSTREAM}routes: [{route}]"),
            defaults,
            "",
        )
    };
    for matches in ["headers: {x: {regex: '.+'}}", "headers: {x: a}"] {
        assert!(!said("L", matches), "{matches}");
    }
    for matches in [
        "headers: {x: {regex: '.*'}}",
        "headers: {x: {present: true}}",
        "headers: {x: {present: false}}",
        "headers: {y: a}",
        "query: {x: a}",
    ] {
        assert!(said("L", matches), "{matches}");
    }
    assert!(!said("Q", "query: {x: {regex: '.+'}}"));
    assert!(said("Q", "headers: {x: a}"));
}

#[test]
fn a_captured_segment_can_be_left_out_where_the_route_does_not_capture_it() {
    let defaults = "Team: {per: 'path:team', burst: 9, count: 9, period: 1s}";
    let inheriting = |path: &str| {
        format!(
            "{UPSTREAM}defaults: {{limits: [Team]}}\nroutes: [{{match: {{path: {path}}}, upstream: app}}]"
        )
    };
    let said = "a client passes unlimited without path:team";
    assert!(gets(said, &inheriting("/x"), defaults, ""));
    assert!(!gets(said, &inheriting("\"/{team}\""), defaults, ""));
}

#[test]
fn a_route_is_shadowed_by_one_that_matches_just_the_same() {
    let said = "this route is never taken";
    let both = |one: &str, other: &str| {
        let route = |name: &str, matches: &str| {
            format!("{{name: {name}, match: {{{matches}}}, upstream: app, limits: []}}")
        };
        let routes = [route("one", one), route("other", other)].join(", ");
        gets(said, &format!("{UPSTREAM}routes: [{routes}]"), "{}", "")
    };
    for (one, other) in [
        ("", "path: \"/*\""),
        ("path: /a, host: a.example", "host: A.example, path: /a"),
        ("methods: [GET, PUT]", "methods: [PUT, GET, PUT]"),
        ("headers: {a: x, b: y}", "headers: {b: y, A: x}"),
        ("path: /Users", "path: /users"),
        ("path: \"/Über/*\"", "path: \"/über/*\", case: insensitive"),
        ("path: \"/u/{a}\"", "path: \"/u/{b}\""),
        ("path: /A, case: sensitive", "path: /A, case: sensitive"),
    ] {
        assert!(both(one, other), "{one} | {other}");
    }
    for (one, other) in [
        ("path: /a", "path: /b"),
        ("path: /a", "path: \"/a/*\""),
        ("path: /A, case: sensitive", "path: /a, case: sensitive"),
        ("path: /a, case: sensitive", "path: /a"),
        ("path: \"/u/{a}\"", "path: /u/a"),
        ("path: \"/u/{a}\"", "path: \"/u/{a}/*\""),
        ("path: \"/{a}/b\"", "path: \"/a/{b}\""),
        ("host: a.example", "host: b.example"),
        ("host: a.example", ""),
        ("methods: [GET, PUT]", "methods: [GET]"),
        ("headers: {a: x}", "headers: {a: y}"),
        ("headers: {a: x}", "headers: {a: x, b: y}"),
    ] {
        assert!(!both(one, other), "{one} | {other}");
    }
}

/// What is used by a ban or a list alone is used.
#[test]
fn upstreams_and_decoys_are_unused_only_where_nothing_names_them() {
    let gateway = |more: &str, route: &str| {
        format!(
            "{more}\nupstreams: {{app: {{builtin: echo}}, other: {{builtin: echo}}}}\n\
             decoys: {{sent: {{}}}}\n\
             routes: [{{match: {{}}, upstream: app, limits: []{route}}}]"
        )
    };
    let ban = |on_denied: &str| {
        format!(
            "bans: {{a: {{per: address, strikes: {{paths: /x, count: 1, period: 1m}}, for: 1m, \
             on_denied: {on_denied}}}}}"
        )
    };
    let block =
        |on_denied: &str| format!("block: {{addresses: [10.0.0.1], on_denied: {on_denied}}}");
    let upstream = "other: nothing uses this upstream";
    let decoy = "sent: nothing uses this decoy";
    for unused in [upstream, decoy] {
        assert!(gets(unused, &gateway("", ""), "{}", ""));
        assert!(gets(unused, &gateway(&ban("reject"), ""), "{}", ""));
    }
    assert!(!gets("app: nothing uses", &gateway("", ""), "{}", ""));
    for divert in [ban("{divert: other}"), block("{divert: other}")] {
        assert!(!gets(upstream, &gateway(&divert, ""), "{}", ""), "{divert}");
        assert!(gets(decoy, &gateway(&divert, ""), "{}", ""), "{divert}");
    }
    let inherited = "defaults: {on_denied: {shadow: sent}}".to_owned();
    for shadow in [ban("{shadow: sent}"), block("{shadow: sent}"), inherited] {
        assert!(!gets(decoy, &gateway(&shadow, ""), "{}", ""), "{shadow}");
        assert!(gets(upstream, &gateway(&shadow, ""), "{}", ""), "{shadow}");
    }
    let own = ", on_denied: {shadow: sent}";
    assert!(!gets(decoy, &gateway("", own), "{}", ""));
    let other = gateway("", "").replace("upstream: app", "upstream: other");
    assert!(!gets(upstream, &other, "{}", "") && gets("app: nothing uses", &other, "{}", ""));
}

#[test]
fn only_proxies_that_are_everybody_are_told_of() {
    let gateway =
        |network: &str| format!("client_address: {{trusted_proxies: [\"{network}\"]}}{SMALLEST}");
    for network in ["0.0.0.0/0", "::/0"] {
        assert!(gets(
            "may claim any address",
            &gateway(network),
            DEFAULTS,
            ""
        ));
    }
    for network in ["0.0.0.0/1", "10.0.0.0/8", "::/1", "10.0.0.1"] {
        assert!(
            !gets("may claim any address", &gateway(network), DEFAULTS, ""),
            "{network}"
        );
    }
}

/// Each of its requests came back to it until no connection was left.
#[test]
fn a_server_that_is_the_gateway_itself_is_told_of() {
    let meets = |listen: &str, server: &str| {
        let gateway = format!("listen: [{{address: \"{listen}\"}}]{SMALLEST}");
        let gateway = gateway.replace("127.0.0.1:3000", server);
        gets("the gateway itself listens there", &gateway, DEFAULTS, "")
    };
    for (listen, server) in [
        ("127.0.0.1:8080", "127.0.0.1:8080"),
        ("127.0.0.1:8080", "localhost:8080"),
        ("0.0.0.0:8080", "127.0.0.1:8080"),
        ("0.0.0.0:8080", "localhost:8080"),
        ("127.0.0.1:8080", "0.0.0.0:8080"),
        ("[::]:80", "[::1]"),
        ("192.0.2.7:8080", "192.0.2.7:8080"),
    ] {
        assert!(meets(listen, server), "{listen} {server}");
    }
    for (listen, server) in [
        ("127.0.0.1:8080", "127.0.0.1:8081"),
        ("127.0.0.1:8080", "127.0.0.2:8080"),
        ("0.0.0.0:8080", "192.0.2.7:8080"),
        ("192.0.2.7:8080", "127.0.0.1:8080"),
        ("0.0.0.0:8080", "app:8080"),
    ] {
        assert!(!meets(listen, server), "{listen} {server}");
    }
    let unsaid = SMALLEST.replace("127.0.0.1:3000", "127.0.0.1:8080");
    assert!(gets(
        "the gateway itself listens there",
        &unsaid,
        DEFAULTS,
        ""
    ));
}

#[test]
fn an_override_ends_when_it_says_and_no_sooner() {
    let until = |until: &str| {
        let own = format!("- A: {{burst: 1, count: 1, period: 1s{until}, ids: [10.0.0.1]}}");
        gets(
            "this override ended",
            &using("A"),
            "A: {per: address, burst: 1, count: 1, period: 1s}",
            &own,
        )
    };
    assert!(until(", until: 2001-09-09") && until(", until: 2001-09-09T12:00:00Z"));
    assert!(!until("") && !until(", until: 2200-01-01"));
}

#[test]
fn a_limit_that_counts_denials_is_told_of_where_only_responses_are_counted() {
    let said = |uses: &str, denied: bool| {
        let defaults = format!(
            "A: {{per: address, algorithm: sliding_log, count: 5, period: 1h, count_denied: {denied}}}"
        );
        gets(
            "counts no denied requests here",
            &using(uses),
            &defaults,
            "",
        )
    };
    let on = "{limit: A, spend_on: {status: 401}}";
    let cost = "{limit: A, cost: {response_header: x-used}}";
    assert!(said(on, true) && said(cost, true));
    assert!(!said(on, false) && !said(cost, false));
    for uses in [
        "A",
        "{limit: A, refund_on: {status: 5xx}}",
        "{limit: A, cost: {request_header: x-cost}}",
    ] {
        assert!(!said(uses, true), "{uses}");
    }
}

#[test]
fn the_former_name_of_ratelimit_headers_is_understood_and_told() {
    let gateway = r#"
upstreams: {app: {servers: ["http://127.0.0.1:3000"]}}
defaults: {headers: none}
routes:
  - {match: {path: /own}, upstream: app, limits: [RequestsPerAddress], headers: draft-03}
  - {match: {path: /inherited}, upstream: app, limits: [RequestsPerAddress]}
"#;
    let folder = Folder::with(&[
        ("gateway.yaml", gateway),
        ("limits/defaults.yaml", DEFAULTS),
    ]);
    insta::assert_snapshot!(folder.findings(), @r"
    gateway.yaml:3:21: warning: defaults.headers: `headers` is called `ratelimit_headers` now
      rename it
    gateway.yaml:5:81: warning: routes[0].headers: `headers` is called `ratelimit_headers` now
      rename it
    0 errors, 2 warnings
    ");
    let routes = folder.settings().routes;
    let forms = [0, 1].map(|route: usize| routes[route].policy.header_forms);
    let none = weir_middleware::HeaderForms::NONE;
    assert_eq!(forms[0], none.with(weir_middleware::HeaderForm::Draft03));
    assert_eq!(forms[1], none);
    folder.write(
        "gateway.yaml",
        &gateway.replace("headers:", "ratelimit_headers:"),
    );
    assert_eq!(folder.findings(), "0 errors, 0 warnings");
}

/// Each override by the admin API failed, and nothing had said so before.
#[test]
fn overrides_must_have_a_folder_that_can_be_written() {
    let with = |admin: &str| {
        let text = format!("admin: {{address: \"127.0.0.1:9901\"{admin}}}{SMALLEST}");
        Folder::with(&[
            ("gateway.yaml", &text),
            ("limits/defaults.yaml", DEFAULTS),
            ("there/x", ""),
        ])
    };
    for there in ["", ", overrides_file: there/kept.json"] {
        assert!(!with(there).findings().contains("overrides"), "{there}");
    }
    let found = with(", overrides_file: missing/kept.json").findings();
    let message = "the admin API cannot keep overrides in missing: No such file or directory";
    assert!(found.contains(message), "{found}");
    assert!(found.contains("warning: admin.overrides_file"), "{found}");
}

#[test]
fn a_lone_route_that_leaves_paths_out_is_told() {
    let told = |path: &str, more: &str| {
        let gateway = SMALLEST.replace("/*", path) + more;
        findings(&gateway, DEFAULTS, "")
    };
    insta::assert_snapshot!(told("/api", ""), @r#"
    gateway.yaml:5:5: warning: routes[0]: `/api` matches this path alone; all others get 404
      for what is below it, write `/api/*`; for everything, `/*`
    0 errors, 1 warning
    "#);
    insta::assert_snapshot!(told("/api/*", ""), @r#"
    gateway.yaml:5:5: warning: routes[0]: paths outside of `/api/*` have no route, and get 404
      add a route for `/*`; with `response: {status: 404}` if no other path is meant
    0 errors, 1 warning
    "#);
    assert!(told("/", "").contains("for what is below it, write `/*`"));
    for (path, more) in [
        ("/*", ""),
        (
            "/api/*",
            "  - {match: {path: \"/*\"}, response: {status: 404}}\n",
        ),
        (
            "/api",
            "  - {match: {path: /login}, upstream: app, limits: []}\n",
        ),
    ] {
        assert_eq!(told(path, more), "0 errors, 0 warnings", "{path}");
    }
}

/// A route at `path`, with these keys.
fn limited(path: &str, keys: &str) -> String {
    format!(
        "upstreams: {{app: {{servers: [\"http://127.0.0.1:3000\"]}}}}\n\
         decoys: {{sent: {{body: ok}}}}\n\
         routes:\n\
         \x20 - {{match: {{path: {path}}}, upstream: app, limits: [L]{keys}}}\n\
         \x20 - {{match: {{path: /x}}, upstream: app, limits: [L], on_denied: {{shadow: sent}}}}\n\
         \x20 - {{match: {{}}, upstream: app, limits: []}}\n"
    )
}

const MANY: &str = "L: {per: address, burst: 20, count: 100, period: 1m}\n";

#[test]
fn a_denial_by_which_a_program_loses_what_it_delivers_is_told() {
    let told = |path: &str, keys: &str| findings(&limited(path, keys), MANY, "");
    let shadow = ", on_denied: {shadow: sent}";
    insta::assert_snapshot!(told("/v1/traces", shadow), @r#"
    gateway.yaml:4:5: warning: routes[0]: a decoy loses what clients deliver on this route
      they take it for success, and send nothing again: say `on_denied: reject`
    0 errors, 1 warning
    "#);
    insta::assert_snapshot!(told("/api/v1/write", ""), @r#"
    gateway.yaml:4:5: warning: routes[0]: Prometheus drops the samples for which it gets 429
      say `on_denied: {reject: {status: 503}}`, after which it sends them again
    0 errors, 1 warning
    "#);
    insta::assert_snapshot!(told("/healthz", ""), @r#"
    gateway.yaml:4:5: warning: routes[0]: a health check that is denied has the server taken for dead
      say `limits: []` on the route of health checks
    0 errors, 1 warning
    "#);
    let nothing = "0 errors, 0 warnings";
    for path in [
        "/prometheus/api/v1/write",
        "/loki/api/v1/push",
        "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
        "\"/v1/logs/*\", case: sensitive",
    ] {
        assert!(told(path, shadow).contains("a decoy loses"), "{path}");
    }
    assert!(told("/api/prom/push", "").contains("Prometheus drops"));
    assert!(told("/readyz", shadow).contains("a health check"));
    // Denials that these programs understand, and paths of others.
    for (path, keys) in [
        ("/v1/traces", ""),
        ("/loki/api/v1/push", ""),
        ("/api/v1/write", ", on_denied: {reject: {status: 503}}"),
        ("/api/v1/write", ", enforce: false"),
        ("/api/v1/writers", ""),
        ("/v1/tracing", shadow),
        ("/healthy-food", ""),
        ("/shop/health", ""),
        ("\"/{page}\"", shadow),
    ] {
        assert_eq!(told(path, keys), nothing, "{path}{keys}");
    }
    let free = limited("/healthz", "").replacen("limits: [L]", "limits: []", 1);
    assert_eq!(findings(&free, MANY, ""), nothing);
}

#[test]
fn a_ban_for_which_clients_sleep_in_silence_is_told() {
    let told = |keys: &str| {
        let ban = format!(
            "bans: {{a: {{per: address, strikes: {{status: 404, count: 9, period: 1m}}, {keys}}}}}\n"
        );
        findings(&(ban + &limited("/", "")), MANY, "")
    };
    insta::assert_snapshot!(told("for: 1d"), @r#"
    gateway.yaml:1:77: warning: bans.a.for: pip, urllib3 and others sleep for 1d if a ban tells them to, without a word
      say `on_denied: {reject: {status: 403}}`, at which clients stop and show the error
    0 errors, 1 warning
    "#);
    for keys in [
        "for: 61m, on_denied: reject",
        "for: 2h, on_denied: {reject: {body: no}}",
        "for: 2h, on_denied: {reject: {status: 503}}",
    ] {
        assert!(told(keys).contains("sleep for"), "{keys}");
    }
    for keys in [
        "for: 1h",
        "for: 10m, factor: 4, max: 1d",
        "for: 1d, on_denied: {reject: {status: 403}}",
        "for: 1d, on_denied: drop",
        "for: 1d, on_denied: tarpit",
        "for: 1d, on_denied: {shadow: sent}",
    ] {
        assert_eq!(told(keys), "0 errors, 0 warnings", "{keys}");
    }
}
