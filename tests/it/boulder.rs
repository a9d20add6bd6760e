//! Files in the form of Boulder's rate limits, loaded as they are: `gateway.yaml` alone says what
//! each limit is counted per.

use std::process::Command;

use crate::support::gateway::WEIR;
use crate::support::*;

const DEFAULTS: &str = include_str!("boulder/defaults.yaml");
const OVERRIDES: &str = include_str!("boulder/overrides.yaml");

fn setup(upstream: &Upstream) -> Setup {
    Setup::before(upstream)
        .limits(&[DEFAULTS])
        .overrides(OVERRIDES)
        .key("client_address: {trusted_proxies: [127.0.0.0/8]}")
        .key("account: [header: x-account]")
        .key("hash_key: {env: PATH}")
        .routes(&[
            "{match: {path: /new-account}, upstream: app, limits: [\
             {limit: NewRegistrationsPerIPAddress, per: address/128}, \
             {limit: NewRegistrationsPerIPv6Range, per: address/48}]}",
            "{match: {path: /new-order}, upstream: app, limits: [\
             {limit: NewOrdersPerAccount, per: account}]}",
            "{match: {path: \"/failed/{domain}\"}, upstream: app, limits: [\
             {limit: FailedAuthorizationsPerDomainPerAccount, per: [account, \"path:domain\"]}, \
             {limit: FailedAuthorizationsForPausingPerDomainPerAccount, \
             per: [account, \"path:domain\"]}]}",
            "{match: {path: \"/certificates/{domain}\"}, upstream: app, limits: [\
             {limit: CertificatesPerDomain, per: \"path:domain\", \
             yields_to: CertificatesPerDomainPerAccount}, \
             {limit: CertificatesPerDomainPerAccount, per: [account, \"path:domain\"]}]}",
            "{match: {path: /finalize}, upstream: app, limits: [\
             {limit: CertificatesPerFQDNSet, per: \"header:x-names\"}]}",
        ])
}

/// How many of ten requests pass.
fn admitted(gateway: &Gateway, request: &Request) -> usize {
    let statuses = gateway.statuses(request, 10);
    let admitted = statuses.iter().take_while(|status| **status == 200).count();
    assert!(
        statuses[admitted..].iter().all(|status| *status == 429),
        "{statuses:?}"
    );
    admitted
}

fn registration(from: &str) -> Request {
    get("/new-account").with("x-forwarded-for", from)
}

fn by(account: &str, path: &str) -> Request {
    get(path).with("x-account", account)
}

#[test]
fn its_files_load_without_an_error_or_a_warning() {
    let upstream = Upstream::start();
    let folder = setup(&upstream).written();
    let check = Command::new(WEIR)
        .current_dir(&folder)
        .arg("check")
        .output()
        .unwrap();
    let said = String::from_utf8(check.stdout).unwrap();
    assert_eq!(check.status.code(), Some(0), "{said}");
    // Who needs no account for these is told of.
    let warnings = said.lines().filter(|line| line.contains("warning:"));
    let others: Vec<_> = warnings
        .filter(|it| !it.contains("passes unlimited"))
        .collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn registrations_are_counted_per_address_and_per_range() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    assert_eq!(admitted(&gateway, &registration("203.0.113.9")), 3);
    assert_eq!(admitted(&gateway, &registration("64.112.117.1")), 4);
    assert_eq!(admitted(&gateway, &registration("64.112.117.2")), 3);
    // Two of the five that a range has are left for the second address in it.
    assert_eq!(admitted(&gateway, &registration("2001:db8:1::1")), 3);
    assert_eq!(admitted(&gateway, &registration("2001:db8:1::2")), 2);
    assert_eq!(admitted(&gateway, &registration("2602:80a:6001::1")), 4);
    assert_eq!(admitted(&gateway, &registration("2602:80a:6001::2")), 3);
}

#[test]
fn orders_are_counted_per_account() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    for (account, burst) in [("12345678", 3), ("87654321", 3), ("11111111", 2)] {
        assert_eq!(
            admitted(&gateway, &by(account, "/new-order")),
            burst,
            "{account}"
        );
    }
}

#[test]
fn an_account_alone_is_overridden_for_each_of_its_domains() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    for domain in ["example.com", "example.net"] {
        let path = &format!("/failed/{domain}");
        assert_eq!(admitted(&gateway, &by("12345678", path)), 2, "{domain}");
        assert_eq!(admitted(&gateway, &by("11111111", path)), 1, "{domain}");
    }
}

#[test]
fn a_limit_with_overrides_alone_counts_those_only() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let path = "/certificates/example.com";
    assert_eq!(admitted(&gateway, &by("12345678", path)), 6);
    assert_eq!(admitted(&gateway, &by("11111111", path)), 10);
    assert_eq!(
        admitted(&gateway, &by("11111111", "/certificates/example.net")),
        4
    );
}

/// Boulder checks such an account by its own bucket, and spends the domain's.
#[test]
fn an_account_with_its_own_limit_is_not_denied_by_that_of_the_domain() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let path = "/certificates/example.net";
    assert_eq!(admitted(&gateway, &by("12345678", path)), 6);
    // What it took is missing to others, who have four.
    assert_eq!(admitted(&gateway, &by("11111111", path)), 0);
    let path = "/certificates/example.org";
    assert_eq!(admitted(&gateway, &by("11111111", path)), 4);
    assert_eq!(admitted(&gateway, &by("12345678", path)), 6);
    for (account, expected) in [
        (
            "12345678",
            "leaves denials to CertificatesPerDomainPerAccount, of which an override",
        ),
        (
            "11111111",
            "would leave denials to CertificatesPerDomainPerAccount, of which no",
        ),
    ] {
        let header = format!("x-account: {account}");
        let arguments = [
            "explain",
            "--path",
            path,
            "--ip",
            "203.0.113.9",
            "--header",
            &header,
        ];
        let explained = Command::new(WEIR)
            .current_dir(gateway.folder())
            .args(arguments)
            .output()
            .unwrap();
        let said = String::from_utf8(explained.stdout).unwrap();
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn a_set_of_names_is_overridden_as_it_is_sent() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let names = |names| get("/finalize").with("x-names", names);
    assert_eq!(admitted(&gateway, &names("example.com,example.org")), 2);
    assert_eq!(admitted(&gateway, &names("example.com")), 1);
}

/// Boulder counts an address as an identifier by its /64.
#[test]
fn an_override_for_an_ipv6_network_is_for_all_of_its_addresses() {
    let upstream = Upstream::start();
    let overrides = "- CertificatesPerDomain: {burst: 3, count: 3, period: 2160h, \
                     ids: [\"2602:80a:6000:666::\"]}\n";
    let gateway = Setup::before(&upstream)
        .limits(&["CertificatesPerDomain: {per: domain, burst: 1, count: 1, period: 2160h}"])
        .overrides(overrides)
        .limited_by("CertificatesPerDomain")
        .start();
    let to = |host| get("/").with("host", host);
    assert_eq!(admitted(&gateway, &to("[2602:80a:6000:666::5]")), 3);
    assert_eq!(admitted(&gateway, &to("[2602:80a:6000:666::6]")), 0);
    assert_eq!(admitted(&gateway, &to("[2602:80a:6000:667::5]")), 1);
}
