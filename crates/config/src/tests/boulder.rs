//! What Boulder's validators refuse, and that it is refused here with a place and a help.

use super::*;

const GATEWAY: &str = r#"hash_key: {env: PATH}
account: [{header: x-account}]
upstreams: {app: {servers: ["http://127.0.0.1:3000"]}}
routes:
  - match: {path: "/orders/{domain}"}
    upstream: app
    limits:
      - {limit: NewRegistrationsPerIPAddress, per: address/128}
      - {limit: NewRegistrationsPerIPv6Range, per: address/48}
      - {limit: NewOrdersPerAccount, per: account}
      - {limit: CertificatesPerDomain, per: domain}
      - {limit: CertificatesPerDomainPerAccount, per: [account, domain]}
      - {limit: FailedAuthorizationsPerDomainPerAccount, per: [account, domain]}
"#;

const DEFAULTS: &str = "\
NewRegistrationsPerIPAddress: { burst: 20, count: 20, period: 168h0m0s }
NewRegistrationsPerIPv6Range: { burst: 40, count: 40, period: 168h }
NewOrdersPerAccount: { burst: 300, count: 300, period: 180m }
CertificatesPerDomain: { burst: 2, count: 2, period: 2160h }
FailedAuthorizationsPerDomainPerAccount: { burst: 5, count: 5, period: 1h }
";

/// An override that Boulder takes, and this gateway too, so that nothing else is wrong.
const FIT: &str = "\
- CertificatesPerDomainPerAccount: {burst: 9, count: 9, period: 168h, ids: [{id: 12345678}]}
";

fn findings(defaults: &str, overrides: &str) -> String {
    Folder::with(&[
        ("gateway.yaml", GATEWAY),
        ("limits/defaults.yaml", defaults),
        ("limits/overrides.yaml", &format!("{FIT}{overrides}")),
    ])
    .findings()
}

/// An item of `overrides.yaml`.
fn overriding(name: &str, parameters: &str, id: &str) -> String {
    format!("- {name}:\n    {parameters}\n    ids:\n      - id: {id}\n        comment: a note\n")
}

const PARAMETERS: &str = "burst: 5\n    count: 5\n    period: 1h";

#[test]
fn what_it_takes_is_fit() {
    for (name, id) in [
        ("NewRegistrationsPerIPAddress", "64.112.117.1"),
        ("NewRegistrationsPerIPAddress", "2602:80a:6000:666::1"),
        ("NewRegistrationsPerIPv6Range", "2602:80a:6000::/48"),
        ("NewOrdersPerAccount", "12345678"),
        ("CertificatesPerDomain", "example.com"),
        ("FailedAuthorizationsPerDomainPerAccount", "12345678"),
        (
            "FailedAuthorizationsPerDomainPerAccount",
            "12345678:example.com",
        ),
    ] {
        let found = findings(DEFAULTS, &overriding(name, PARAMETERS, id));
        assert_eq!(
            found.lines().last(),
            Some("0 errors, 0 warnings"),
            "{id}: {found}"
        );
    }
}

#[test]
fn an_override_that_it_refuses_is_refused_with_a_place_and_a_help() {
    for (name, id, place, help) in [
        (
            "NewRegistrationsPerIPAddress",
            "10.0.0.300",
            "7:9",
            "write one such as 203.0.113.9",
        ),
        (
            "NewRegistrationsPerIPAddress",
            "10.0.0.1/8",
            "7:9",
            "write \"10.0.0.0/8\"",
        ),
        (
            "NewRegistrationsPerIPAddress",
            "2001:0db8::1",
            "7:9",
            "write \"2001:db8::1\"",
        ),
        (
            "NewRegistrationsPerIPAddress",
            "::ffff:10.0.0.1",
            "7:9",
            "write \"10.0.0.1\"",
        ),
        (
            "NewRegistrationsPerIPv6Range",
            "2001:db8::/64",
            "7:9",
            "write \"2001:db8::/48\"",
        ),
        (
            "NewRegistrationsPerIPv6Range",
            "2001:db8::1/48",
            "7:9",
            "write \"2001:db8::/48\"",
        ),
        (
            "NewRegistrationsPerIPv6Range",
            "'2001:db8::'",
            "7:9",
            "write \"2001:db8::/48\"",
        ),
        (
            "NewRegistrationsPerIPv6Range",
            "lots",
            "7:9",
            "write one such as",
        ),
        ("NewOrdersPerAccount", "\"\"", "7:9", "write it as ACCOUNT"),
        ("NewOrdersPerAccount", "\" 12\"", "7:9", "write \"12\""),
        (
            "CertificatesPerDomain",
            "Example.com",
            "7:9",
            "write \"example.com\"",
        ),
        (
            "CertificatesPerDomain",
            "example..com",
            "7:9",
            "write it as app.example.com",
        ),
        (
            "CertificatesPerDomain",
            "https://example.com/",
            "7:9",
            "without scheme",
        ),
        (
            "FailedAuthorizationsPerDomainPerAccount",
            "'12:'",
            "7:9",
            "ACCOUNT:example.com",
        ),
        (
            "FailedAuthorizationsPerDomainPerAccount",
            "':example.com'",
            "7:9",
            "ACCOUNT:example.com",
        ),
        (
            "FailedAuthorizationsPerDomainPerAccount",
            "1:a.com:2",
            "7:9",
            "ACCOUNT:example.com",
        ),
        (
            "NewOrderPerAccount",
            "12",
            "2:3",
            "did you mean \"NewOrdersPerAccount\"?",
        ),
        ("Unknown", "12", "2:3", "limits are defined in"),
        ("\"\"", "12", "2:3", "limits are defined in"),
    ] {
        let found = findings(DEFAULTS, &overriding(name, PARAMETERS, id));
        let error = format!("limits/overrides.yaml:{place}: ");
        assert!(
            found.contains(&error) && found.contains(help),
            "{name} {id}: {found}"
        );
        assert_eq!(found.lines().last(), Some("1 error, 0 warnings"), "{found}");
    }
}

#[test]
fn parameters_of_nothing_are_refused_in_both_files() {
    for (parameters, column, said) in [
        (
            "burst: 0\n    count: 5\n    period: 1h",
            "3:12",
            "burst must be at least 1",
        ),
        (
            "burst: 5\n    count: 0\n    period: 1h",
            "4:12",
            "count must be at least 1",
        ),
        (
            "burst: 5\n    count: 5\n    period: 0s",
            "5:13",
            "period must be longer than zero",
        ),
        (
            "burst: -1\n    count: 5\n    period: 1h",
            "3:12",
            "a whole number",
        ),
        (
            "burst: 5\n    count: 5\n    period: 60",
            "5:13",
            "write `60s` for seconds",
        ),
        (
            "burst: 5\n    count: 5\n    period: -1h",
            "5:13",
            "write it like",
        ),
        (
            "burst: 5\n    count: 5",
            "2:3",
            "the key \"period\" is missing",
        ),
        (
            "burst: 5\n    period: 1h",
            "2:3",
            "the key \"count\" is missing",
        ),
    ] {
        let found = findings(
            DEFAULTS,
            &overriding("NewOrdersPerAccount", parameters, "12"),
        );
        let span = format!("limits/overrides.yaml:{column}: ");
        assert!(
            found.contains(&span) && found.contains(said),
            "{parameters}: {found}"
        );

        let defaults = DEFAULTS.replace(
            "NewOrdersPerAccount: { burst: 300, count: 300, period: 180m }",
            &format!("NewOrdersPerAccount:\n    {parameters}"),
        );
        let found = findings(&defaults, "");
        assert!(
            found.contains("limits/defaults.yaml:") && found.contains(said),
            "{found}"
        );
    }
}

#[test]
fn the_same_id_twice_and_a_limit_without_a_name_are_refused() {
    let twice = overriding("NewOrdersPerAccount", PARAMETERS, "12").repeat(2);
    insta::assert_snapshot!(findings(DEFAULTS, &twice), @r#"
    limits/overrides.yaml:14:9: [2].NewOrdersPerAccount.ids[0]: "12" is overridden already, by "12"
      remove one of them; the other is at limits/overrides.yaml:7:9: [1].NewOrdersPerAccount.ids[0]
    1 error, 0 warnings
    "#);
    let nameless = format!("{DEFAULTS}\"\": {{per: account, burst: 5, count: 5, period: 1h}}\n");
    let found = findings(&nameless, "");
    assert!(
        found.contains("a limit needs a name, such as RequestsPerAddress"),
        "{found}"
    );
}

/// A limit that no route uses says nowhere what it is counted per. It was not looked at at all.
#[test]
fn a_limit_that_no_route_uses_needs_a_name_and_no_empty_ids() {
    let defaults = format!(
        "{DEFAULTS}\"\": {{burst: 5, count: 5, period: 1h}}\n\
         CertificatesPerFQDNSet: {{burst: 5, count: 5, period: 1h}}\n"
    );
    let overrides = ["''", "'example.com,example.org'"]
        .map(|id| overriding("CertificatesPerFQDNSet", PARAMETERS, id))
        .concat();
    insta::assert_snapshot!(findings(&defaults, &overrides), @"
    limits/defaults.yaml:6:1: a limit needs a name, such as RequestsPerAddress
    limits/overrides.yaml:7:9: [1].CertificatesPerFQDNSet.ids[0]: the id is empty
      write whom the override is for, or leave it out
    limits/defaults.yaml:6:1: warning: no route uses this limit
      list it under a route's `limits`, or under `defaults`
    limits/defaults.yaml:7:1: warning: CertificatesPerFQDNSet: no route uses this limit
      list it under a route's `limits`, or under `defaults`
    2 errors, 2 warnings
    ");
}

#[test]
fn an_override_of_a_limit_in_error_is_not_complained_about() {
    let defaults = DEFAULTS.replace("burst: 300, ", "brust: 300, ");
    let found = findings(
        &defaults,
        &overriding("NewOrdersPerAccount", PARAMETERS, "12"),
    );
    assert!(!found.contains("overrides the unknown limit"), "{found}");
}

/// A limit may be there by its overrides alone; who cannot read those does not know that.
#[test]
fn a_limit_whose_overrides_are_in_error_is_not_called_unknown() {
    for overrides in [
        "- CertificatesPerDomainPerAccount: {burst: 9, count: 9, period: 168h}",
        "- CertificatesPerDomainPerAccount: {burst: 9, count: nine, period: 168h, ids: [12345678]}",
        "- CertificatesPerDomainPerAccount: {burst: 9, count: 9, period: 168h, ids: [1]",
    ] {
        let folder = Folder::with(&[
            ("gateway.yaml", GATEWAY),
            ("limits/defaults.yaml", DEFAULTS),
            ("limits/overrides.yaml", overrides),
        ]);
        let found = folder.findings();
        assert_eq!(found.lines().last(), Some("1 error, 0 warnings"), "{found}");
        assert!(found.starts_with("limits/overrides.yaml:"), "{found}");
    }
}

#[test]
fn what_a_limit_is_counted_per_may_be_said_by_any_of_its_routes() {
    let gateway = format!(
        "{GATEWAY}  - match: {{path: /first}}\n    upstream: app\n    limits: [NewOrdersPerAccount]\n"
    );
    let last_first = gateway.replace(
        "{limit: NewOrdersPerAccount, per: account}",
        "NewOrdersPerAccount",
    );
    let last_first = last_first.replace(
        "[NewOrdersPerAccount]",
        "[{limit: NewOrdersPerAccount, per: account}]",
    );
    for gateway in [&gateway, &last_first] {
        let folder = Folder::with(&[
            ("gateway.yaml", gateway),
            ("limits/defaults.yaml", DEFAULTS),
            ("limits/overrides.yaml", FIT),
        ]);
        let found = folder.findings();
        assert!(found.contains("0 errors"), "{found}");
    }
    let nobody = last_first.replace("NewOrdersPerAccount, per: account", "NewOrdersPerAccount");
    let folder = Folder::with(&[
        ("gateway.yaml", &nobody),
        ("limits/defaults.yaml", DEFAULTS),
        ("limits/overrides.yaml", FIT),
    ]);
    let found = folder.findings();
    assert!(
        found.contains("nothing says what \"NewOrdersPerAccount\" is counted per"),
        "{found}"
    );
}

/// Such a limit would deny nothing, or deny though it seems not to.
#[test]
fn a_limit_yields_to_one_that_denies_on_the_same_route_or_the_file_is_refused() {
    let found = |usage: &str, other: &str| {
        let gateway = GATEWAY.replace(
            "{limit: CertificatesPerDomain, per: domain}",
            &format!("{{limit: CertificatesPerDomain, per: domain, {usage}}}"),
        );
        let gateway = gateway.replace(
            "per: [account, domain]}",
            &format!("per: [account, domain]{other}}}"),
        );
        Folder::with(&[
            ("gateway.yaml", gateway.as_str()),
            ("limits/defaults.yaml", DEFAULTS),
            ("limits/overrides.yaml", FIT),
        ])
        .findings()
    };
    let yields = "yields_to: CertificatesPerDomainPerAccount";
    let fit = found(yields, "");
    assert_eq!(fit.lines().last(), Some("0 errors, 0 warnings"), "{fit}");
    for (usage, other, message) in [
        (
            "yields_to: CertificatesPerDomain",
            "",
            "no other limit of this route that denies",
        ),
        (
            "yields_to: Unknown",
            "",
            "no other limit of this route that denies is called \"Unknown\"",
        ),
        (
            yields,
            ", kind: spend_only",
            "no other limit of this route that denies",
        ),
        (
            yields,
            ", enabled: false",
            "no other limit of this route that denies",
        ),
        (
            yields,
            ", yields_to: CertificatesPerDomain",
            "\"CertificatesPerDomainPerAccount\" leaves denials to another limit itself",
        ),
        (
            "kind: spend_only, yields_to: CertificatesPerDomainPerAccount",
            "",
            "denies nothing here by the head of a request alone",
        ),
        (
            "spend_on: {status: 200}, yields_to: CertificatesPerDomainPerAccount",
            "",
            "denies nothing here by the head of a request alone",
        ),
    ] {
        let found = found(usage, other);
        assert!(found.contains(message), "{usage}{other}: {found}");
    }
}

/// What its own validator refuses is no mistake in Weir, but may be one of a file of Boulder's.
#[test]
fn an_id_that_boulder_alone_refuses_gets_a_warning() {
    for (name, id, told) in [
        (
            "NewRegistrationsPerIPAddress",
            "10.0.0.1",
            "the address is reserved",
        ),
        // Documentation, and what else IANA lists.
        (
            "NewRegistrationsPerIPAddress",
            "203.0.113.9",
            "the address is reserved",
        ),
        (
            "NewRegistrationsPerIPAddress",
            "100.64.0.1",
            "the address is reserved",
        ),
        (
            "NewRegistrationsPerIPAddress",
            "2001:db8::1",
            "the address is reserved",
        ),
        (
            "NewRegistrationsPerIPv6Range",
            "2001:db8:1::/48",
            "the address is reserved",
        ),
        (
            "NewRegistrationsPerIPAddress",
            "203.0.112.0/24",
            "it is no single address",
        ),
        (
            "NewRegistrationsPerIPv6Range",
            "10.0.0.0/16",
            "it is no network of IPv6",
        ),
        ("NewOrdersPerAccount", "lol", "an account is a number"),
        (
            "FailedAuthorizationsPerDomainPerAccount",
            "12ea5:example.com",
            "an account is a number",
        ),
        (
            "FailedAuthorizationsPerDomainPerAccount",
            "12345:examplecom",
            "it is no domain",
        ),
        ("CertificatesPerDomain", "examplecom", "it is no domain"),
    ] {
        let found = findings(DEFAULTS, &overriding(name, PARAMETERS, id));
        assert!(
            found.contains(&format!("Boulder refuses \"{id}\" here: {told}")),
            "{found}"
        );
        assert_eq!(found.lines().last(), Some("0 errors, 1 warning"), "{found}");
    }
}

/// Boulder's own test file has one.
#[test]
fn an_id_below_a_registrable_domain_is_no_reason_to_refuse_the_file() {
    let id = overriding("CertificatesPerDomain", PARAMETERS, "ecdsa.example.com");
    let found = findings(DEFAULTS, &id);
    assert!(found.contains("so this is for nobody"), "{found}");
    assert_eq!(found.lines().last(), Some("0 errors, 1 warning"), "{found}");
    let of_network = overriding(
        "CertificatesPerDomain",
        PARAMETERS,
        "\"2602:80a:6000:666::\"",
    );
    let found = findings(DEFAULTS, &of_network);
    assert_eq!(
        found.lines().last(),
        Some("0 errors, 0 warnings"),
        "{found}"
    );
    let higher = overriding("CertificatesPerDomain", PARAMETERS, "2602:80a:6000:666::5");
    let found = findings(DEFAULTS, &higher);
    assert!(found.contains("write \"2602:80a:6000:666::\""), "{found}");
}

#[test]
fn a_dump_of_its_database_is_called_what_it_is() {
    let found = Folder::with(&[
        ("gateway.yaml", GATEWAY),
        ("limits/defaults.yaml", DEFAULTS),
        (
            "limits/overrides.yaml",
            "name,id,count,burst,period,comment\nNewOrdersPerAccount,1,2,2,3h0m0s,\"a, b\"\n",
        ),
    ])
    .findings();
    let told = "limits/overrides.yaml: this is CSV, as Boulder dumps its database of overrides";
    assert!(found.contains(told), "{found}");
    assert!(found.contains("its ids are those of buckets"), "{found}");
}
