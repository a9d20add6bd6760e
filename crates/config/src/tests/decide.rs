//! The listener that decides for other proxies.

use weir_testing::certificates::{Authority, Certificate};

use super::*;

const DECIDE: &str =
    "decide: {address: '127.0.0.1:9000', trusted_proxies: [127.0.0.1, 10.0.0.0/8]}";

fn folder(gateway: &str) -> Folder {
    Folder::with(&[
        ("gateway.yaml", gateway),
        ("limits/defaults.yaml", DEFAULTS),
    ])
}

fn addresses(settings: &Settings) -> Vec<String> {
    let listeners = settings.listen.iter();
    listeners.map(ToString::to_string).collect()
}

#[test]
fn beside_decide_nothing_is_forwarded_unless_a_listener_is_configured() {
    let alone = folder(&format!("{DECIDE}{SMALLEST}")).settings();
    assert_eq!(addresses(&alone), ["127.0.0.1:9000 for decisions"]);
    let trusted = alone.decides_for().unwrap();
    assert_eq!(trusted.len(), 2);
    let both = folder(&format!(
        "listen: {{address: '127.0.0.1:80'}}\n{DECIDE}{SMALLEST}"
    ));
    let both = both.settings();
    assert_eq!(
        addresses(&both),
        ["127.0.0.1:80", "127.0.0.1:9000 for decisions"]
    );
    let neither = folder(SMALLEST).settings();
    assert_eq!(addresses(&neither), ["127.0.0.1:8080"]);
    assert_eq!(neither.decides_for(), None);
}

#[test]
fn a_route_may_lead_nowhere_beside_decide_alone() {
    let routes = "routes: [{match: {path: '/*'}, limits: [RequestsPerAddress]}]";
    let decided = folder(&format!("{DECIDE}\n{routes}"));
    assert_eq!(decided.findings(), "0 errors, 0 warnings");
    assert!(decided.settings().routes[0].upstream.is_none());
    insta::assert_snapshot!(folder(routes).findings(), @r#"
    gateway.yaml:1:10: routes[0]: the route leads nowhere
      name its `upstream`, or say `redirect` or `response`
    1 error, 0 warnings
    "#);
    let unlimited = format!("{DECIDE}\nroutes: [{{match: {{path: '/*'}}}}]");
    insta::assert_snapshot!(folder(&unlimited).findings(), @r#"
    gateway.yaml:2:10: warning: routes[0]: no limit applies to this route
      list its `limits`, or those of all routes under `defaults`; `[]` if none is meant
    limits/defaults.yaml:2:1: warning: RequestsPerAddress: no route uses this limit
      list it under a route's `limits`, or under `defaults`
    0 errors, 2 warnings
    "#);
}

#[test]
fn a_listener_that_nobody_may_ask_or_that_is_taken_is_refused() {
    let gateway = format!(
        "admin: {{address: '127.0.0.1:9000'}}\n\
         decide: {{address: '127.0.0.1:9000', trusted_proxies: []}}{SMALLEST}"
    );
    insta::assert_snapshot!(folder(&gateway).findings(), @r#"
    gateway.yaml:1:18: admin.address: 127.0.0.1:9000 is taken already, by 127.0.0.1:9000
      choose another port
    gateway.yaml:2:37: decide.trusted_proxies: no proxy may ask
      name the addresses or networks of the proxies that ask, such as 127.0.0.1
    2 errors, 0 warnings
    "#);
    let gateway = format!("decide: {{address: ':9000', trusted_proxies: [nginx]}}{SMALLEST}");
    insta::assert_snapshot!(folder(&gateway).findings(), @r#"
    gateway.yaml:1:19: decide.address: `:9000` is not an IP address and a port
      write `"0.0.0.0:9000"`
    gateway.yaml:1:46: decide.trusted_proxies[0]: `nginx` is not an address or a network, such as 10.0.0.0/8
    2 errors, 0 warnings
    "#);
    let gateway = format!("decide: {{address: '127.0.0.1:9000'}}{SMALLEST}");
    insta::assert_snapshot!(folder(&gateway).findings(), @r#"
    gateway.yaml:1:1: decide: the key "trusted_proxies" is missing
    1 error, 0 warnings
    "#);
    let gateway =
        format!("decide: {{address: '127.0.0.1:9000', trusted_proxies: [0.0.0.0/0]}}{SMALLEST}");
    insta::assert_snapshot!(folder(&gateway).findings(), @r#"
    gateway.yaml:1:55: warning: decide.trusted_proxies[0]: every client may claim any address
      name only the networks of your own proxies
    0 errors, 1 warning
    "#);
}

#[test]
fn a_listener_for_proxies_has_certificates_from_files_alone() {
    let pair = Certificate::of("a");
    let findings = |keys: &str| {
        let decide = DECIDE.replace('}', &format!(", {keys}}}"));
        let folder = folder(&format!("{decide}{SMALLEST}"));
        folder.write("a.pem", &pair.certificate);
        folder.write("a.key", &pair.key);
        folder.write("ca.pem", &Authority::new("test").pem());
        folder
    };
    let tls = "tls: {certificate: a.pem, key: a.key}";
    let both = findings(&format!("{tls}, client_auth: {{ca: ca.pem}}"));
    assert_eq!(both.findings(), "0 errors, 0 warnings");
    let settings = both.settings();
    assert_eq!(
        addresses(&settings),
        ["127.0.0.1:9000 with TLS for decisions"]
    );
    insta::assert_snapshot!(findings("client_auth: {ca: ca.pem}").findings(), @r"
    gateway.yaml:1:79: decide.client_auth: clients show certificates by TLS alone
      add `tls` to this listener, or leave `client_auth` out
    1 error, 0 warnings
    ");
    insta::assert_snapshot!(findings("tls: {acme: www.example.com}").findings(), @r"
    gateway.yaml:1:91: decide.tls.acme: this listener has certificates from files alone
      name `certificate` and `key`
    1 error, 0 warnings
    ");
}

#[test]
fn what_a_decision_cannot_do_is_told_once_for_each_limit() {
    let gateway = format!(
        "{DECIDE}
listen: [{{address: '127.0.0.1:8443', tls: {{certificate: a.pem, key: a.key}}, client_auth: {{ca: ca.pem}}}}]
account: [certificate: subject_cn]
hash_key: {{file: hash.key}}
decoys: {{sent: {{body: sent}}}}
bans:
  scanners: {{per: address, strikes: {{status: 404, count: 9, period: 1m}}, for: 1h, on_denied: drop}}
block: {{addresses: [203.0.113.9], on_denied: {{shadow: sent}}}}
routes:
  - {{match: {{path: /a}}, upstream: app, limits: [{{limit: Failures, spend_on: {{status: 401}}}}, AtOnce]}}
  - {{match: {{path: /b}}, upstream: app, limits: [{{limit: Failures, spend_on: {{status: 401}}}}]}}
  - {{match: {{path: /c}}, upstream: app, limits: [{{limit: Tries, refund_on: {{status: 2xx}}}}]}}
  - {{match: {{path: /d}}, upstream: app, limits: [{{limit: Bytes, cost: {{request_bytes: 1KiB}}}}]}}
  - {{match: {{path: /e}}, upstream: app, limits: [{{limit: Units, cost: {{request_header: x-units}}}}], on_denied: {{shadow: sent}}}}
upstreams: {{app: {{servers: ['http://127.0.0.1:3000']}}}}
"
    );
    let limits = ["Failures", "Tries", "Bytes", "Units"];
    let limits =
        limits.map(|name| format!("{name}: {{per: address, burst: 9, count: 9, period: 1m}}\n"));
    let limits = limits.concat() + "AtOnce: {per: address, in_flight: 3}\n";
    let pair = Certificate::of("a");
    let folder = Folder::with(&[
        ("gateway.yaml", &gateway),
        ("limits/defaults.yaml", &limits),
        ("a.pem", &pair.certificate),
        ("a.key", &pair.key),
        ("ca.pem", &Authority::new("test").pem()),
        ("hash.key", "0123456789abcdef0123456789abcdef"),
    ]);
    insta::assert_snapshot!(folder.findings(), @r#"
    gateway.yaml:3:11: warning: account[0]: `decide` sees no certificates of clients, and so no such account
      let Weir forward such requests, if that matters
    gateway.yaml:7:46: warning: bans.scanners.strikes.status: `decide` counts no strikes by status, as it sees no responses
      let Weir forward such requests, if that matters
    gateway.yaml:7:94: warning: bans.scanners.on_denied: `decide` cannot close connections of clients, and denies with 429
      let Weir forward such requests, if that matters
    gateway.yaml:8:35: warning: block.on_denied: `decide` cannot send decoys, and denies with 403
      let Weir forward such requests, if that matters
    gateway.yaml:10:5: warning: routes[0]: `decide` checks "Failures" and takes nothing, as it sees neither bodies nor responses
      let Weir forward such requests, if that matters
    gateway.yaml:10:5: warning: routes[0]: `decide` does not apply "AtOnce", as it does not see when requests end
      let Weir forward such requests, if that matters
    gateway.yaml:12:5: warning: routes[2]: `decide` gives nothing back to "Tries", as it sees no responses
      let Weir forward such requests, if that matters
    gateway.yaml:13:5: warning: routes[3]: `decide` checks "Bytes" and takes nothing, as it sees neither bodies nor responses
      let Weir forward such requests, if that matters
    gateway.yaml:14:5: warning: routes[4]: `decide` denies with 429 what this route answers with a decoy
      let Weir forward such requests, if that matters
    0 errors, 9 warnings
    "#);
    folder.write("gateway.yaml", &gateway.replace(DECIDE, ""));
    assert_eq!(folder.findings(), "0 errors, 0 warnings");
}

/// What requests are judged by: all that `decide` may do less of.
fn judged_by(settings: &Settings) -> String {
    let policies = settings.routes.iter().map(|route| {
        let policy = &route.policy;
        format!(
            "{:?} {:?} {:?}",
            policy.limits, policy.on_denied, policy.delay
        )
    });
    let policies: Vec<_> = policies.collect();
    format!(
        "{policies:?} {:?} {:?}",
        settings.access, settings.account.sources
    )
}

/// A gateway with these keys, and with this limit and these keys on its route.
fn with_feature(keys: &str, usage: &str, route: &str) -> Folder {
    let defaults = "L: {per: address, burst: 9, count: 9, period: 1m}\n\
                    AtOnce: {per: address, in_flight: 3}\n";
    let pair = Certificate::of("a");
    Folder::with(&[
        (
            "gateway.yaml",
            &format!(
                "{DECIDE}\nlisten: [{{address: '127.0.0.1:8443', tls: {{certificate: a.pem, \
                 key: a.key}}, client_auth: {{ca: ca.pem}}}}]\n{keys}\n\
                 decoys: {{sent: {{body: sent}}}}\nhash_key: {{file: hash.key}}\n\
                 upstreams: {{app: {{servers: ['http://127.0.0.1:3000']}}}}\n\
                 routes: [{{match: {{path: /a}}, upstream: app, limits: [{usage}]{route}}}]\n"
            ),
        ),
        ("limits/defaults.yaml", defaults),
        ("a.pem", &pair.certificate),
        ("a.key", &pair.key),
        ("ca.pem", &Authority::new("test").pem()),
        ("hash.key", "0123456789abcdef0123456789abcdef"),
    ])
}

/// A ban with these strikes and this treatment.
fn ban(strikes: &str, on_denied: &str) -> String {
    format!(
        "bans: {{b: {{per: address, strikes: {{{strikes}, count: 9, period: 1m}}, for: 1h, \
         on_denied: {on_denied}}}}}"
    )
}

/// The listener and `weir check` went by a list each, which had to agree by hand.
#[test]
fn decide_does_less_than_is_configured_just_where_a_warning_says_so() {
    let paths = |on_denied: &str| ban("paths: /trap", on_denied);
    let block =
        |on_denied: &str| format!("block: {{addresses: [192.0.2.1], on_denied: {on_denied}}}");
    for (keys, usage, route, is_reduced) in [
        ("", "L", "", false),
        ("", "AtOnce", "", true),
        ("", "{limit: L, spend_on: {status: 401}}", "", true),
        ("", "{limit: L, refund_on: {status: 401}}", "", true),
        ("", "{limit: L, cost: {response_header: x}}", "", true),
        ("", "{limit: L, cost: {request_bytes: 1KiB}}", "", true),
        ("", "{limit: L, cost: {request_header: x}}", "", false),
        ("", "{limit: L, enforce: false}", "", false),
        ("", "{limit: AtOnce, enabled: false}", "", false),
        ("", "L", ", on_denied: {shadow: sent}", true),
        ("", "L", ", on_denied: {delay: 1s}", false),
        ("", "L", ", on_denied: {reject: {status: 503}}", false),
        (&paths("drop"), "L", "", true),
        (&paths("{shadow: sent}"), "L", "", true),
        (&paths("{divert: app}"), "L", "", true),
        (&paths("{tarpit: {hold: 1s}}"), "L", "", false),
        (&paths("{reject: {status: 404}}"), "L", "", false),
        (
            &ban("status: 404", "{reject: {status: 429}}"),
            "L",
            "",
            true,
        ),
        (&block("drop"), "L", "", true),
        (&block("{shadow: sent}"), "L", "", true),
        (&block("{reject: {status: 404}}"), "L", "", false),
        ("account: [certificate: subject_cn]", "L", "", true),
        ("account: [header: x-account]", "L", "", false),
    ] {
        let folder = with_feature(keys, usage, route);
        let found = folder.findings();
        let settings = folder.settings();
        let decided = settings.for_decisions();
        let told = found.matches("`decide` ").count();
        assert_eq!(
            told,
            usize::from(is_reduced),
            "{keys} {usage} {route}: {found}"
        );
        let is_other = judged_by(&decided) != judged_by(&settings);
        assert_eq!(is_other, is_reduced, "{keys} {usage} {route}");
        // Nothing is left to be reduced.
        assert_eq!(judged_by(&decided.for_decisions()), judged_by(&decided));
        assert!(decided.routes[0].upstream.is_none());
    }
}

#[test]
fn calls_of_envoy_are_for_no_list_no_ban_and_no_route_but_their_own() {
    let keys = ban("paths: /trap", "drop") + "\nblock: {addresses: [192.0.2.1]}";
    let settings = with_feature(&keys, "L", "").settings();
    let own = Route {
        description: "calls".to_owned(),
        ..settings.routes[0].clone()
    };
    let calls = settings.for_calls(&own);
    assert_eq!(calls.routes.len(), 1);
    assert_eq!(calls.routes[0].description, "calls");
    assert!(calls.access.bans.is_empty());
    assert_eq!(calls.access.lists.block.len(), (0, 0));
    assert_eq!(settings.access.lists.block.len(), (1, 0));
}
