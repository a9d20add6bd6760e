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
      so much passes at once; choose at most 1000000
    limits/defaults.yaml:3:1: warning: Yearly: no route uses this limit
      list it under a route's `limits`, or under `defaults`
    limits/defaults.yaml:3:55: warning: Yearly.period: a period of 416d16h outlasts every store
      when the store forgets, everybody starts anew; choose at most 366d
    limits/defaults.yaml:4:1: warning: Fast: no route uses this limit
      list it under a route's `limits`, or under `defaults`
    limits/defaults.yaml:4:40: warning: Fast.count: this rate is rounded up by 66%
      units come back at intervals of whole nanoseconds; lower the count
    limits/overrides.yaml:1:52: warning: [0].RequestsPerAddress.period: a period of 400d outlasts every store
      when the store forgets, everybody starts anew; choose at most 366d
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
    gateway.yaml:8:1: warning: account: the hashes of accounts change at each restart
      make one with `openssl rand -hex 32 > hash.key`, give it to every gateway, and say `hash_key: {file: hash.key}`
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
    gateway.yaml:6:66: warning: decoys.sent.body: this body is no JSON where the request has no value to put in
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
