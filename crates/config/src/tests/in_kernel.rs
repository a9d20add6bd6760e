//! Where the kernel may drop connections of the banned, and of what `weir check` warns elsewhere.

use weir_middleware::Treatment;

use super::*;

const BAN: &str = "bans: {scanners: {per: address, strikes: {paths: /x, count: 1, period: 1h}, for: 1h, \
     on_denied: {drop: {in_kernel: auto}}}}\n";

fn folder(more: &str) -> Folder {
    Folder::with(&[
        ("gateway.yaml", &format!("{more}{SMALLEST}")),
        ("limits/defaults.yaml", DEFAULTS),
    ])
}

/// Whether the kernel drops connections of the first ban, and of the block list.
fn in_kernel(more: &str) -> (Option<bool>, bool) {
    let settings = folder(more).load().unwrap();
    let is_in_kernel = |it: &Treatment| matches!(it, Treatment::Drop { in_kernel: true });
    let access = &settings.access;
    let ban = access.bans.first().map(|ban| is_in_kernel(&ban.treatment));
    (ban, is_in_kernel(&access.blocked))
}

#[test]
fn the_kernel_drops_only_what_it_is_told_to() {
    assert_eq!(in_kernel(BAN), (Some(true), false));
    for off in ["drop", "{drop: {}}", "{drop: {in_kernel: off}}", "reject"] {
        let ban = BAN.replace("{drop: {in_kernel: auto}}", off);
        assert_eq!(in_kernel(&ban), (Some(false), false), "{off}");
    }
    let block = "block: {addresses: [192.0.2.0/24], on_denied: {drop: {in_kernel: auto}}}\n";
    assert_eq!(in_kernel(block), (None, true));
}

#[test]
fn the_kernel_drops_nothing_where_a_connection_is_not_one_clients() {
    let block = "block: {addresses: [192.0.2.0/24], on_denied: {drop: {in_kernel: auto}}}\n";
    let trusted = "client_address: {trusted_proxies: [10.0.0.0/8]}\n";
    let proxied = "listen: [{address: \"127.0.0.1:0\", proxy_protocol: {trusted: [10.0.0.0/8]}}]\n";
    let accounts =
        "account: [{header: x-api-key}]\nhash_key: {env: PATH}\nallow: {accounts: [acme]}\n";
    for obstacle in [trusted, proxied, accounts] {
        let more = format!("{obstacle}{BAN}{block}");
        assert_eq!(in_kernel(&more), (Some(false), false), "{obstacle}");
        let found = folder(&more).findings();
        let warnings = found
            .matches("the kernel drops no connections here")
            .count();
        assert_eq!(warnings, 2, "{found}");
    }
    let none = "client_address: {trusted_proxies: []}\n";
    assert_eq!(in_kernel(&format!("{none}{BAN}")), (Some(true), false));
    let beside = "listen: [{address: \"127.0.0.1:0\"}, {address: \"127.0.0.1:0\", \
                  proxy_protocol: {trusted: [10.0.0.0/8]}}]\n";
    assert_eq!(in_kernel(&format!("{beside}{BAN}")), (Some(true), false));
}

#[test]
fn a_ban_of_more_than_addresses_is_warned_of_in_these_words() {
    let ban = BAN.replace("per: address", "per: [address, method]");
    assert_eq!(in_kernel(&ban), (Some(false), false));
    insta::assert_snapshot!(folder(&ban).findings(), @r#"
    gateway.yaml:1:126: warning: bans.scanners.on_denied.drop.in_kernel: the kernel drops no connections here: the ban is not per address alone
      write `per: address`, or leave `in_kernel` out
    0 errors, 1 warning
    "#);
}

#[test]
fn other_words_are_refused() {
    let ban = BAN.replace("auto", "always");
    insta::assert_snapshot!(folder(&ban).findings(), @r#"
    gateway.yaml:1:116: bans.scanners.on_denied.drop.in_kernel: "always" is not known here
      known here: auto, off
    1 error, 0 warnings
    "#);
}
