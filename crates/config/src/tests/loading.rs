//! Configurations that are fit.

use std::net::IpAddr;

use std::num::NonZeroU32;
use std::sync::Arc;

use weir_middleware::{Cors, OnDenied};
use weir_rules::KeySource;
use weir_store::ClockSource;
use weir_yaml::Inputs;

use super::*;

/// All that `gateway.yaml` can say, more or less.
const FULL: &str = r#"
listen:
  - address: 0.0.0.0:8080
admin: {address: 127.0.0.1:9901}
workers: 3
grace: 10s
watch: false

client_address:
  trusted_proxies: [10.0.0.0/8, 192.0.2.7]
  header: x-forwarded-for
  ipv6_prefix: 56

account:
  - header: x-api-key
  - bearer: {}
  - cookie: session
  - jwt: {claim: sub, secret: {file: jwt.key}, issuer: us, leeway: 5s}

hash_key: {env: PATH}

store:
  memory: {max_buckets: 1000000}

limits: limits

upstreams:
  app: {servers: ["http://127.0.0.1:3000"], connect_timeout: 1s, host: upstream}

decoys:
  invite-sent: {status: 200, headers: {content-type: application/json}, body: '{"status":"sent"}'}

defaults:
  limits: [RequestsPerAddress]
  on_denied: reject
  ratelimit_headers: [draft]

routes:
  - name: login
    match: {host: app.example.com, path: /login, methods: [POST]}
    upstream: app
    limits:
      - LoginsPerAddress
      - {limit: InvitesPerAccount, cost: 2, missing: deny}
    on_denied: {reject: {status: 403, headers: {x-why: limits}, body: "no"}}
    ratelimit_headers: [draft, x-ratelimit]
  - name: invite
    match: {path: "/teams/{team}/invites", methods: [POST]}
    upstream: app
    limits: [{limit: InvitesPerAccount, cost: 1}, RequestsPerAddress]
    on_denied: {shadow: invite-sent}
  - name: static
    match: {path: "/static/*"}
    upstream: app
    limits: []
  - {name: rest, match: {}, upstream: app}

log: {format: json, access: false, level: warn}
"#;

const FULL_DEFAULTS: &str = r"
RequestsPerAddress: {per: address, burst: 20, count: 100, period: 1m}
LoginsPerAddress:   {per: [address, host], burst: 5, count: 10, period: 1h}
InvitesPerAccount:  {per: account, burst: 25, count: 25, period: 24h}
";

const FULL_OVERRIDES: &str = r"
- InvitesPerAccount:
    burst: 500
    count: 500
    period: 24h
    ids:
      - id: acme
        comment: contract of 2026
      - 0123
";

const ALL_FILES: [(&str, &str); 4] = [
    ("gateway.yaml", FULL),
    ("jwt.key", "a secret that is long enough for HS256\n"),
    ("limits/defaults.yaml", FULL_DEFAULTS),
    ("limits/overrides.yaml", FULL_OVERRIDES),
];

fn full() -> Folder {
    Folder::with(&ALL_FILES)
}

#[test]
fn the_smallest_configuration_loads_with_every_default() {
    let folder = Folder::with(&[
        ("gateway.yaml", SMALLEST),
        ("limits/defaults.yaml", DEFAULTS),
    ]);
    let settings = folder.settings();
    assert!(settings.warnings.is_empty(), "{}", settings.warnings);
    let [listener] = settings.listen.as_slice() else {
        panic!("{:?}", settings.listen);
    };
    assert_eq!(listener.to_string(), "127.0.0.1:8080");
    assert_eq!(settings.process.admin, None);
    assert_eq!(settings.grace.as_secs(), 30);
    assert!(settings.watch && settings.admin_tokens.is_empty());
    assert_eq!(&*settings.routes[0].policy.name, "/*");
    let only_draft = weir_middleware::HeaderForms::default();
    assert_eq!(settings.routes[0].policy.header_forms, only_draft);
    let limit = &settings.routes[0].policy.limits[0].limit;
    let whole = KeySource::Address {
        v4_prefix: 32,
        v6_prefix: 64,
    };
    assert_eq!(limit.per(), [whole]);
}

#[test]
fn translators_of_ones_own_are_named_by_their_prefixes_and_nothing_else_is_one() {
    let gateway = |keys: &str| {
        let text = format!("{keys}{SMALLEST}");
        Folder::with(&[("gateway.yaml", &text), ("limits/defaults.yaml", DEFAULTS)])
    };
    let prefixes = "client_address: {trusted_proxies: [10.0.0.0/8], \
                    nat64_prefixes: [\"2001:db8:64::/96\", \"64:ff9b:1:2::/96\"]}";
    let settings = gateway(prefixes).settings();
    let trusts = |text: &str| settings.client.trusts(text.parse().unwrap());
    assert!(trusts("2001:db8:64::10.0.0.1") && trusts("64:ff9b:1:2::10.0.0.1"));
    assert!(!trusts("2001:db8:65::10.0.0.1"));
    for (wrong, told) in [
        (
            "client_address: {nat64_prefixes: [\"2001:db8:64::/64\"]}",
            "write one of 96 bits",
        ),
        (
            "client_address: {nat64_prefixes: [10.0.0.0/8]}",
            "write one of 96 bits",
        ),
        (
            "client_address: {nat64_prefixes: [\"2001:db8:64::1/96\"]}",
            "write one of 96 bits",
        ),
        (
            "block: {addresses: [\"64:ff9b::/96\"]}",
            "stands for all IPv4 addresses",
        ),
        (
            "client_address: {nat64_prefixes: [\"2001:db8:64::/96\"]}\n\
             allow: {addresses: [\"2001:db8:64::/96\"]}",
            "stands for all IPv4 addresses",
        ),
        (
            "client_address: {trusted_proxies: [\"64:ff9b::/96\"]}",
            "stands for all IPv4 addresses",
        ),
    ] {
        let errors = gateway(wrong).findings();
        assert!(errors.contains(told), "{wrong}: {errors}");
    }
}

#[test]
fn everything_that_can_be_said_is_understood() {
    let settings = full().settings();
    assert!(settings.warnings.is_empty(), "{}", settings.warnings);
    assert_eq!(settings.process.workers.get(), 3);
    assert_eq!(settings.grace.as_secs(), 10);
    assert!(!settings.watch);
    assert!(
        settings
            .client
            .trusts("192.0.2.7".parse::<IpAddr>().unwrap())
    );
    assert_eq!(settings.account.sources.len(), 4);
    assert_eq!(settings.upstreams[0].settings.timeouts.connect.as_secs(), 1);
    assert_eq!(settings.process.log.level, "warn");
    assert_eq!(settings.limits().len(), 3);
}

#[test]
fn a_route_has_its_own_limits_or_the_defaults() {
    let settings = full().settings();
    let names = |route: usize| -> Vec<&str> {
        let limits = settings.routes[route].policy.limits.iter();
        limits.map(|limit| limit.limit.name()).collect()
    };
    assert_eq!(names(0), ["LoginsPerAddress", "InvitesPerAccount"]);
    assert_eq!(names(2), Vec::<&str>::new());
    assert_eq!(names(3), ["RequestsPerAddress"]);
}

#[test]
fn a_route_that_shadow_bans_sends_no_fields_unless_it_asks_for_them() {
    let folder = full();
    let forms = |folder: &Folder| folder.settings().routes[1].policy.header_forms;
    assert_eq!(forms(&folder), weir_middleware::HeaderForms::NONE);
    let asks = FULL.replace(
        "on_denied: {shadow: invite-sent}",
        "on_denied: {shadow: invite-sent}\n    ratelimit_headers: draft-03",
    );
    folder.write("gateway.yaml", &asks);
    let only = weir_middleware::HeaderForms::NONE.with(weir_middleware::HeaderForm::Draft03);
    assert_eq!(forms(&folder), only);
}

#[test]
fn what_a_denied_request_gets_is_as_written() {
    let settings = full().settings();
    match &settings.routes[0].policy.on_denied {
        OnDenied::Reject(rejection) => {
            assert_eq!(rejection.status, 403);
            assert_eq!(rejection.headers["x-why"], "limits");
            assert_eq!(rejection.body.as_deref(), Some(&b"no"[..]));
        }
        OnDenied::Shadow(_) => panic!("the route rejects"),
    }
    match &settings.routes[1].policy.on_denied {
        OnDenied::Shadow(shadow) => assert_eq!(shadow.decoy().name(), "invite-sent"),
        OnDenied::Reject(_) => panic!("the route shadow-bans"),
    }
}

#[test]
fn override_ids_are_text_with_or_without_a_comment() {
    let settings = full().settings();
    let limit = &settings.routes[1].policy.limits[0].limit;
    let mut ids: Vec<_> = limit
        .overrides()
        .map(|item| (&*item.id, item.comment.as_deref()))
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, [("0123", None), ("acme", Some("contract of 2026"))]);
}

#[test]
fn a_pair_of_boulders_own_files_loads_when_the_route_says_what_to_count() {
    let gateway = r#"
account: [{header: x-account}]
upstreams: {acme: {servers: ["http://127.0.0.1:4001"]}}
routes:
  - match: {path: /new-account}
    upstream: acme
    limits: [{limit: NewRegistrationsPerIPAddress, per: address}]
  - match: {path: /new-order}
    upstream: acme
    limits: [{limit: NewOrdersPerAccount, per: account, missing: deny}]
hash_key: {env: PATH}
"#;
    let defaults = "
NewRegistrationsPerIPAddress:
  burst: 20
  count: 20
  period: 1s
NewOrdersPerAccount:
  burst: 300
  count: 300
  period: 180m
";
    let overrides = "
- NewRegistrationsPerIPAddress:
    burst: 20
    count: 40
    period: 1s
    ids:
      - 64.112.117.2
      - 64.112.117.5
- NewOrdersPerAccount:
    burst: 300
    count: 600
    period: 180m
    ids:
      - 12345678
      - 87654321
";
    let folder = Folder::with(&[
        ("gateway.yaml", gateway),
        ("limits/defaults.yaml", defaults),
        ("limits/overrides.yaml", overrides),
    ]);
    let settings = folder.settings();
    assert!(settings.warnings.is_empty(), "{}", settings.warnings);
    let overrides: usize = settings
        .limits()
        .iter()
        .map(|limit| limit.overrides().count())
        .sum();
    assert_eq!(overrides, 4);
}

#[test]
fn limits_may_lie_in_another_folder_and_overrides_may_be_missing_or_empty() {
    let gateway = SMALLEST.replace("upstreams:", "limits: etc/rates\nupstreams:");
    let folder = Folder::with(&[
        ("gateway.yaml", &gateway),
        ("etc/rates/defaults.yaml", DEFAULTS),
    ]);
    folder.settings();
    folder.write("etc/rates/overrides.yaml", "# none yet\n");
    folder.settings();
}

/// One file, as containers and small set-ups want it.
const INLINE: &str = r#"
limits:
  RequestsPerAddress: {per: address, burst: 20, count: 100, period: 1m}
  LoginsPerAddress: {per: address, burst: 5, count: 5, period: 1h}
overrides:
  - RequestsPerAddress: {burst: 200, count: 1000, period: 1m, ids: [192.0.2.7, 192.0.2.8]}
upstreams:
  app: {servers: ["http://127.0.0.1:3000"]}
routes:
  - {match: {path: "/*"}, upstream: app, limits: [RequestsPerAddress]}
  - {match: {path: /login}, upstream: app, limits: [LoginsPerAddress]}
"#;

#[test]
fn limits_and_overrides_within_gateway_yaml_need_no_folder_and_read_none() {
    let folder = Folder::with(&[
        ("gateway.yaml", INLINE),
        ("limits/defaults.yaml", "nonsense"),
    ]);
    let settings = folder.settings();
    insta::assert_snapshot!(folder.relative(&settings.warnings.to_string()), @r"
    limits/defaults.yaml: warning: this file is not read: gateway.yaml has its own `limits`
      move what it says there, or delete the file
    0 errors, 1 warning
    ");
    let limits = settings.limits();
    let overrides: usize = limits.iter().map(|limit| limit.overrides().count()).sum();
    assert_eq!((limits.len(), overrides), (2, 2));
    let inputs = read(&folder.gateway(), &key(), None).inputs;
    let alone = Inputs::default().same_contents(&inputs);
    assert!(!alone && !format!("{inputs:?}").contains("defaults.yaml"));
}

#[test]
fn an_error_in_a_limit_within_gateway_yaml_is_told_where_it_stands_and_once() {
    let gateway = INLINE.replace("burst: 5,", "burst: 0, brst: 5,");
    let findings = Folder::with(&[("gateway.yaml", &gateway)]).findings();
    assert!(findings.contains("gateway.yaml:4"), "{findings}");
    let gateway = INLINE.replace("[LoginsPerAddress]", "[LoginPerAddress]");
    let findings = Folder::with(&[("gateway.yaml", &gateway)]).findings();
    insta::assert_snapshot!(findings, @r#"
    gateway.yaml:11:53: routes[1].limits[0]: unknown limit "LoginPerAddress"
      did you mean "LoginsPerAddress"? limits are defined in gateway.yaml
    gateway.yaml:4:3: warning: limits.LoginsPerAddress: no route uses this limit
      list it under a route's `limits`, or under `defaults`
    1 error, 1 warning
    "#);
    let gateway = INLINE.replace("overrides:", "overides:");
    let findings = Folder::with(&[("gateway.yaml", &gateway)]).findings();
    insta::assert_snapshot!(findings, @r#"
    gateway.yaml:5:1: overides: unknown key "overides"
      did you mean "overrides"?
    1 error, 0 warnings
    "#);
    let gateway = "limits: [RequestsPerAddress]\n".to_owned() + SMALLEST;
    let findings = Folder::with(&[("gateway.yaml", &gateway)]).findings();
    insta::assert_snapshot!(findings, @r#"
    gateway.yaml:1:1: limits: expected a text, or keys and values, found a list
    1 error, 0 warnings
    "#);
}

#[test]
fn overrides_within_gateway_yaml_are_not_lost_when_the_limits_are_in_a_folder() {
    let overrides = "overrides: []\n".to_owned() + SMALLEST;
    let folder = Folder::with(&[
        ("gateway.yaml", &overrides),
        ("limits/defaults.yaml", DEFAULTS),
    ]);
    insta::assert_snapshot!(folder.findings(), @r#"
    gateway.yaml:1:1: overrides: `overrides` stands here, while the limits are in a folder
      move it to limits/overrides.yaml, or the limits into `limits`
    1 error, 0 warnings
    "#);
}

#[test]
fn without_limits_no_file_of_limits_is_needed() {
    let gateway = SMALLEST.replace("[RequestsPerAddress]", "[]");
    Folder::with(&[("gateway.yaml", &gateway)]).settings();
}

#[test]
fn only_some_settings_need_a_restart() {
    let folder = full();
    let before = folder.settings().process;
    assert_eq!(before, folder.settings().process);
    folder.write(
        "gateway.yaml",
        &FULL.replace("ipv6_prefix: 56", "ipv6_prefix: 64"),
    );
    assert_eq!(before, folder.settings().process);
    folder.write("gateway.yaml", &FULL.replace("workers: 3", "workers: 4"));
    assert_ne!(before, folder.settings().process);
}

#[test]
fn a_redis_is_the_same_when_its_login_files_change_and_another_when_their_names_do() {
    let redis = "store: {redis: {url: \"redis://127.0.0.1/\", username: {file: user}, \
                 password: {file: password}}}\n";
    let folder = Folder::with(&[
        ("gateway.yaml", &format!("{redis}{SMALLEST}")),
        ("limits/defaults.yaml", DEFAULTS),
        ("user", "ann\n"),
        ("password", "one\n"),
    ]);
    let before = folder.settings().process;
    assert_eq!(before, folder.settings().process);
    // They are read for each connection, so nothing has to be started again.
    folder.write("user", "bob\n");
    folder.write("password", "two\n");
    assert_eq!(before, folder.settings().process);
    folder.write("other", "one\n");
    for name in ["user", "password"] {
        let other = redis.replace(&format!("file: {name}"), "file: other");
        folder.write("gateway.yaml", &format!("{other}{SMALLEST}"));
        assert_ne!(before, folder.settings().process, "{name}");
    }
}

/// Whatever a load reads is watched.
#[test]
fn every_file_that_a_load_reads_is_among_its_inputs() {
    let folder = full();
    let inputs = || read(&folder.gateway(), &key(), None).inputs;
    let before = inputs();
    assert!(before.same_contents(&inputs()));
    for (name, text) in ALL_FILES {
        folder.write(name, &format!("{text}\n"));
        assert_ne!(before.stamps(), before.stamps_now(), "{name}");
        assert!(!before.same_contents(&inputs()), "{name}");
        folder.write(name, text);
        assert!(before.same_contents(&inputs()), "{name}");
    }
}

const SOME: &str = "- RequestsPerAddress: {burst: 5, count: 5, period: 1m, ids: [192.0.2.1]}";

/// The overrides that there are when these configurations are read one after the other, and what
/// was said of the last.
fn overridden_after(texts: &[Option<&str>]) -> (usize, String) {
    let folder = Folder::with(&[
        ("gateway.yaml", SMALLEST),
        ("limits/defaults.yaml", DEFAULTS),
    ]);
    let mut in_force: Option<Settings> = None;
    for text in texts {
        match text {
            Some(text) => folder.write("limits/overrides.yaml", text),
            None => {
                fs::remove_file(folder.gateway().with_file_name("limits/overrides.yaml")).unwrap();
            }
        }
        let read = read(&folder.gateway(), &key(), in_force.as_ref());
        in_force = Some(read.outcome.unwrap());
    }
    let settings = in_force.unwrap();
    let count = settings
        .limits()
        .iter()
        .map(|limit| limit.overrides().count())
        .sum();
    (count, folder.relative(&settings.warnings.to_string()))
}

/// A file that is being written is empty for a moment, and all customers had the default limit.
#[test]
fn overrides_stay_in_force_when_their_file_is_emptied_or_gone() {
    for gone in [Some(""), Some("# soon\n"), None] {
        let (overridden, said) = overridden_after(&[Some(SOME), gone]);
        assert_eq!(overridden, 1, "{gone:?}");
        insta::allow_duplicates! {
            insta::assert_snapshot!(said, @"
            limits/overrides.yaml: warning: the file is empty or missing; the overrides in force are kept
              write `[]` if nothing is to be overridden
            0 errors, 1 warning
            ");
        }
    }
    let (overridden, _) = overridden_after(&[Some(SOME), Some(""), Some("# still\n")]);
    assert_eq!(overridden, 1);
    let (overridden, said) = overridden_after(&[Some(SOME), Some(""), Some(SOME)]);
    assert_eq!((overridden, said.as_str()), (1, "0 errors, 0 warnings"));
}

#[test]
fn overrides_go_when_their_file_says_that_there_are_none() {
    let (overridden, said) = overridden_after(&[Some(SOME), Some("[]")]);
    assert_eq!(overridden, 0);
    assert!(
        said.contains("warning: nothing is overridden any more"),
        "{said}"
    );
    let (overridden, said) = overridden_after(&[Some(SOME), Some("[]"), Some("[]\n")]);
    assert_eq!((overridden, said.as_str()), (0, "0 errors, 0 warnings"));
}

#[test]
fn a_file_that_overrides_nothing_is_warned_of_from_the_start() {
    let (overridden, said) = overridden_after(&[Some("")]);
    assert_eq!(overridden, 0);
    assert!(
        said.contains("overrides.yaml: warning: the file overrides nothing"),
        "{said}"
    );
    let (_, said) = overridden_after(&[Some("[]")]);
    assert_eq!(said, "0 errors, 0 warnings");
}

/// The limit went in the same reload, and the overrides that were kept refused all the rest.
#[test]
fn overrides_that_are_kept_do_not_refuse_what_no_longer_has_their_limit() {
    let windowed = "Reads: {per: address, algorithm: sliding_window, count: 9, period: 1m}\n";
    let of_reads = "- Reads: {count: 99, period: 1m, ids: [192.0.2.1]}\n";
    let gateway = SMALLEST.replace("[R", "[Reads, R");
    let folder = Folder::with(&[
        ("gateway.yaml", &gateway),
        ("limits/defaults.yaml", &format!("{DEFAULTS}{windowed}")),
        (
            "limits/overrides.yaml",
            &format!("{SOME}\n{of_reads}{}", of_reads.replace("2.1", "2.2")),
        ),
    ]);
    let before = read(&folder.gateway(), &key(), None).outcome.unwrap();
    folder.write("gateway.yaml", SMALLEST);
    folder.write("limits/defaults.yaml", DEFAULTS);
    folder.write("limits/overrides.yaml", "");
    let settings = read(&folder.gateway(), &key(), Some(&before))
        .outcome
        .unwrap();
    insta::assert_snapshot!(folder.relative(&settings.warnings.to_string()), @r#"
    limits/overrides.yaml: warning: the file is empty or missing; the overrides in force are kept
      write `[]` if nothing is to be overridden
    limits/overrides.yaml as it was:2:3: warning: [1].Reads: left out: this overrides the unknown limit "Reads"
      limits are defined in limits/defaults.yaml
    0 errors, 2 warnings
    "#);
    let limits = settings.limits();
    assert_eq!(limits.len(), 1);
    assert_eq!(limits[0].overrides().count(), 1);
    // An override of nothing is an error all the same where it is written.
    folder.write("limits/overrides.yaml", of_reads);
    let refused = read(&folder.gateway(), &key(), Some(&before)).outcome;
    assert!(refused.unwrap_err().to_string().contains("unknown limit"));
}

/// A limit that counted otherwise from then on could not be loaded for an override that no file
/// had.
#[test]
fn overrides_that_are_kept_refuse_nothing_when_their_limit_changes() {
    let kept = "
- RequestsPerAddress: {burst: 3, count: 30, period: 1m, ids: [192.0.2.1]}
- RequestsPerAddress: {burst: 40, count: 40, period: 1m, ids: [192.0.2.2, 192.0.2.3]}
";
    let folder = Folder::with(&[
        ("gateway.yaml", SMALLEST),
        ("limits/defaults.yaml", DEFAULTS),
        ("limits/overrides.yaml", kept),
    ]);
    let before = read(&folder.gateway(), &key(), None).outcome.unwrap();
    folder.write("limits/overrides.yaml", "");
    let reload = |gateway: &str, defaults: &str| {
        folder.write("gateway.yaml", gateway);
        folder.write("limits/defaults.yaml", defaults);
        let settings = read(&folder.gateway(), &key(), Some(&before)).outcome;
        let settings = settings.unwrap_or_else(|found| panic!("{found}"));
        let said = folder.relative(&settings.warnings.to_string());
        let (_, said) = said.split_once("to be overridden\n").unwrap();
        (settings.limits()[0].overrides().count(), said.to_owned())
    };
    let windows = DEFAULTS.replace("burst: 20,", "algorithm: sliding_window,");
    let (overridden, said) = reload(SMALLEST, &windows);
    assert_eq!(overridden, 2);
    insta::assert_snapshot!(said, @"
    limits/overrides.yaml as it was:2:31: warning: [0].RequestsPerAddress.burst: left out: the burst of a sliding_window is its count
      leave `burst` out, or say 30
    0 errors, 2 warnings
    ");
    let global = DEFAULTS.replace("per: address", "per: global");
    let (overridden, said) = reload(SMALLEST, &global);
    assert_eq!(overridden, 0);
    assert_eq!(said.matches("ids[").count(), 3, "{said}");
    assert_eq!(said.matches(": left out: ").count(), 3, "{said}");
    let costly = SMALLEST
        .replace("[R", "[{cost: 5, limit: R")
        .replace("ss]", "ss}]");
    let (overridden, said) = reload(&costly, DEFAULTS);
    assert_eq!(overridden, 2);
    insta::assert_snapshot!(said, @"
    limits/overrides.yaml as it was:2:31: warning: [0].RequestsPerAddress.burst: left out: a cost of 5 never passes a burst of 3
    0 errors, 2 warnings
    ");
    // Where it is written, it is an error all the same.
    folder.write("limits/overrides.yaml", kept);
    let refused = read(&folder.gateway(), &key(), Some(&before)).outcome;
    assert!(refused.unwrap_err().to_string().contains("never passes"));
}

#[test]
fn routes_inherit_cors_unless_they_say_otherwise() {
    let gateway = r#"
upstreams: {app: {servers: ["http://127.0.0.1:3000"]}}
defaults: {cors: {origins: ["https://app.example.com"], credentials: true}}
routes:
  - {match: {path: /all}, upstream: app, limits: []}
  - {match: {path: /public}, upstream: app, limits: [], cors: {origins: "*"}}
  - {match: {path: /own}, upstream: app, limits: [], cors: {origins: []}}
"#;
    let folder = Folder::with(&[("gateway.yaml", gateway)]);
    assert_eq!(folder.findings(), "0 errors, 0 warnings");
    let routes = folder.settings().routes;
    let cors: Vec<_> = routes
        .iter()
        .map(|route| route.response_steps.find::<Arc<Cors>>())
        .collect();
    assert!(cors[0].as_ref().is_some_and(|cors| cors.credentials));
    assert!(cors[1].as_ref().is_some_and(|cors| !cors.credentials));
    assert!(cors[2].is_none());
    let preflights: Vec<bool> = routes
        .iter()
        .map(|route| route.matcher.preflights)
        .collect();
    assert_eq!(preflights, [true, true, false]);
    // What is wrong with it is told once, in its own place.
    folder.write("gateway.yaml", &gateway.replace("https://app.", "app."));
    let found = folder.findings();
    assert!(found.contains("defaults.cors.origins[0]: "), "{found}");
    assert!(found.ends_with("\n1 error, 0 warnings"), "{found}");
}

/// Without its last override, such a limit refused the whole configuration.
#[test]
fn the_last_override_of_a_limit_that_has_nothing_else_may_go() {
    let gateway = SMALLEST.replace("[R", "[{limit: OnlyForSome, per: address}, R");
    let only = "- OnlyForSome: {burst: 5, count: 5, period: 1m, ids: [192.0.2.1]}\n";
    let folder = Folder::with(&[
        ("gateway.yaml", &gateway),
        ("limits/defaults.yaml", DEFAULTS),
        ("limits/overrides.yaml", &format!("{only}{SOME}")),
    ]);
    assert_eq!(folder.findings(), "0 errors, 0 warnings");
    folder.write("limits/overrides.yaml", SOME);
    insta::assert_snapshot!(folder.findings(), @r#"
    gateway.yaml:7:22: warning: routes[0].limits[0].limit: nothing defines or overrides "OnlyForSome", so it counts nothing
      define it in limits/defaults.yaml, or leave it out
    0 errors, 1 warning
    "#);
    let limits = folder.settings().limits().len();
    assert_eq!(limits, 2);
}

/// A slip lifts a limit, so what was meant is told. It refuses nothing, as it may be no slip.
#[test]
fn a_limit_that_is_misspelt_is_told_of_though_the_route_says_what_it_counts() {
    let gateway = SMALLEST.replace(
        "[RequestsPerAddress]",
        "[{limit: RequestPerAdress, per: address}]",
    );
    let folder = Folder::with(&[
        ("gateway.yaml", &gateway),
        ("limits/defaults.yaml", DEFAULTS),
    ]);
    insta::assert_snapshot!(folder.findings(), @r#"
    gateway.yaml:5:5: warning: routes[0]: a client passes unlimited without an override of "RequestPerAdress"
      add a limit per address, or say `missing: deny`
    gateway.yaml:7:22: warning: routes[0].limits[0].limit: nothing defines or overrides "RequestPerAdress", so it counts nothing
      did you mean "RequestsPerAddress"? define it in limits/defaults.yaml, or leave it out
    limits/defaults.yaml:2:1: warning: RequestsPerAddress: no route uses this limit
      list it under a route's `limits`, or under `defaults`
    0 errors, 3 warnings
    "#);
    // Without `per`, nothing says that it could be a limit.
    folder.write(
        "gateway.yaml",
        &SMALLEST.replace("[RequestsPerAddress]", "[RequestPerAdress]"),
    );
    let found = folder.findings();
    assert!(
        found.contains("unknown limit \"RequestPerAdress\""),
        "{found}"
    );
    assert!(folder.load().is_err());
}

/// With the name of another limit but for a letter, it refused the whole configuration.
#[test]
fn the_last_override_of_a_limit_may_go_whatever_the_others_are_called() {
    let gateway = SMALLEST.replace("[R", "[PlanA, {limit: PlanB, per: address}, R");
    let plan = "PlanA: {per: address, burst: 5, count: 5, period: 1m}\n";
    let only = "- PlanB: {burst: 5, count: 5, period: 1m, ids: [192.0.2.1]}\n";
    let folder = Folder::with(&[
        ("gateway.yaml", &gateway),
        ("limits/defaults.yaml", &format!("{DEFAULTS}{plan}")),
        ("limits/overrides.yaml", only),
    ]);
    assert_eq!(folder.findings(), "0 errors, 0 warnings");
    folder.write("limits/overrides.yaml", "[]");
    insta::assert_snapshot!(folder.findings(), @r#"
    gateway.yaml:7:29: warning: routes[0].limits[1].limit: nothing defines or overrides "PlanB", so it counts nothing
      did you mean "PlanA"? define it in limits/defaults.yaml, or leave it out
    0 errors, 1 warning
    "#);
}

#[test]
fn each_form_of_the_log_is_read_under_the_name_that_is_documented() {
    use weir_logging::LogFormat;
    for (word, format) in [("human", LogFormat::Text), ("json", LogFormat::Json)] {
        let gateway = format!("{SMALLEST}log: {{format: {word}}}\n");
        let folder = Folder::with(&[
            ("gateway.yaml", gateway.as_str()),
            ("limits/defaults.yaml", DEFAULTS),
        ]);
        assert_eq!(folder.settings().process.log.format, format, "{word}");
    }
}

#[test]
fn a_bound_on_the_lines_of_the_denied_is_one_at_least() {
    let with = |bound: &str| {
        let gateway = format!("{SMALLEST}log: {{denied_per_second: {bound}}}\n");
        Folder::with(&[
            ("gateway.yaml", gateway.as_str()),
            ("limits/defaults.yaml", DEFAULTS),
        ])
    };
    let bound = with("100").settings().log_denied_per_second;
    assert_eq!(bound.map(NonZeroU32::get), Some(100));
    for wrong in ["0", "-1", "all", "100000000000"] {
        let findings = with(wrong).findings();
        assert!(findings.contains("1 error, "), "{wrong}: {findings}");
        assert!(findings.contains("gateway.yaml:"), "{findings}");
    }
    // It said "at least 1" of this.
    let findings = with("100000000000").findings();
    let found = "expected a whole number from 1 to 4294967295, found 100000000000";
    assert!(findings.contains(found), "{findings}");
}

#[test]
fn a_format_of_the_access_log_that_cannot_be_used_is_refused_at_its_place() {
    let findings = |log: &str| {
        let gateway = format!("{SMALLEST}log: {log}\n");
        let folder = Folder::with(&[
            ("gateway.yaml", gateway.as_str()),
            ("limits/defaults.yaml", DEFAULTS),
        ]);
        folder.findings()
    };
    assert_eq!(
        findings("{access_format: '{client} {status}', access: true}"),
        "0 errors, 0 warnings"
    );
    for (log, told) in [
        (
            "{access_format: '{client} {stats}'}",
            "there is no field \"stats\"\n  docs/LOGS.md has the table of fields\n",
        ),
        (
            "{access_format: combined, access: false}",
            "`access: false` leaves nothing to format\n  remove one of the two\n",
        ),
        (
            "{access_format: ''}",
            "expected one line that is not empty\n",
        ),
    ] {
        let place = format!("gateway.yaml:8:22: log.access_format: {told}");
        let found = findings(log);
        assert!(
            found.starts_with(&place) && found.ends_with("1 error, 0 warnings"),
            "{found}"
        );
    }
}

#[test]
fn limits_go_by_the_stores_clock_unless_the_local_one_is_asked_for() {
    let settings = |store: &str| {
        let folder = Folder::with(&[
            ("gateway.yaml", &format!("store: {store}\n{SMALLEST}")),
            ("limits/defaults.yaml", DEFAULTS),
        ]);
        folder.load()
    };
    let clock = |written: &str| {
        let store = format!("{{redis: {{url: \"redis://127.0.0.1/\"}}{written}}}");
        match settings(&store).unwrap().process.store {
            StoreSettings::Redis(redis) => redis.clock,
            StoreSettings::Memory(_) => panic!("a Redis was configured"),
        }
    };
    assert_eq!(clock(""), ClockSource::Store);
    assert_eq!(clock(", clock: store"), ClockSource::Store);
    assert_eq!(clock(", clock: local"), ClockSource::Local);
    let refused = settings("{clock: store}").unwrap_err().to_string();
    let place = "gateway.yaml:1:16: store.clock: the memory store has no clock of its own";
    assert!(refused.contains(place), "{refused}");
    assert!(refused.contains("remove `clock`"), "{refused}");
}
