//! Bans, and lists of the allowed and the blocked: what is refused, and what comes of the rest.

use std::time::Duration;

use weir_middleware::Treatment;
use weir_rules::Access;

use super::*;

/// A gateway with a decoy, a second upstream, and more.
fn folder(more: &str, files: &[(&str, &str)]) -> Folder {
    let folder = Folder::with(&[
        (
            "gateway.yaml",
            &format!(
                "{more}\n\
                 upstreams:\n  app: {{servers: [\"http://127.0.0.1:3000\"]}}\n  trap: {{builtin: echo}}\n\
                 decoys: {{sent: {{body: \"{{{{ path.team }}}}\"}}, empty: {{}}}}\n\
                 routes:\n  - {{name: all, match: {{}}, upstream: app, limits: [RequestsPerAddress]}}\n"
            ),
        ),
        ("limits/defaults.yaml", DEFAULTS),
    ]);
    for (path, text) in files {
        folder.write(path, text);
    }
    folder
}

#[test]
fn a_ban_without_strikes_bans_by_hand_alone() {
    let settings = folder(
        "bans: {abusers: {per: address, for: 1h}}\nblock: {addresses: []}",
        &[],
    );
    let settings = settings.settings();
    let [ban] = &settings.access.bans[..] else {
        panic!("{:?}", settings.access.bans)
    };
    assert!(!ban.has_strikes());
    assert_eq!(ban.ban.schedule().first(), Duration::from_secs(3600));
    assert!(settings.access.lists.is_empty());
    let growing = folder("bans: {abusers: {per: address, for: 1h, factor: 4}}", &[]);
    let said = "bans.abusers.factor: `factor` does not apply to bans by hand\n  say by `strikes` what \
                bans by itself, or leave it out\n";
    let findings = growing.findings();
    assert!(findings.contains(said), "{findings}");
}

#[test]
fn every_error_of_bans_and_lists_is_told_with_its_help() {
    let more = r#"bans:
  one:
    per: account
    strikes: {limits: [RequestPerAddress], paths: ["wp-login.php"], count: 0, period: 1m}
    for: 10ms
    on_denied: {shadow: send}
  two:
    per: [address, global]
    strikes: {count: 1, period: 0s}
    for: 10m
    max: 1h
    enforce: 10
    on_denied: {divert: trapp}
  three:
    per: address
    strikes: {limits: RequestsPerAddress, count: 1, period: 1m}
    for: 10m
    factor: 0
    on_denied: {tarpit: {hold: 2h, most: 0}}
  four:
    per: address
    strikes: {paths: /x, status: [404, 6xx], count: 1, period: 1m}
    for: 10m
    factor: 2
    max: 5m
    on_denied: {shadow: sent}
  five: {per: address, strikes: {paths: /x, count: 1, period: 1m}, for: 10m, factor: 2, forget: 10m}
  "a:b": {per: address, strikes: {paths: [], status: [], count: 1, period: 1m}, for: 1m, then: reject}
allow: {addresses: [10.0.0.1/8, {file: none.txt}], acounts: [x]}
block: {addresses: [{file: blocked.txt}, 10.0.0.300], accounts: [acme], on_denied: {reject: {status: 600}}}
"#;
    let lines: String = (0..12).map(|line| format!("bad{line} # x\n")).collect();
    let folder = folder(more, &[("blocked.txt", &format!("10.0.0.1/8\n{lines}"))]);
    insta::assert_snapshot!(folder.findings(), @r#"
    blocked.txt:1:1: `10.0.0.1/8` is an address within its network
      write `10.0.0.0/8`
    blocked.txt:2:1: `bad0` is not an address or a network, such as 10.0.0.0/8
    blocked.txt:3:1: `bad1` is not an address or a network, such as 10.0.0.0/8
    blocked.txt:4:1: `bad2` is not an address or a network, such as 10.0.0.0/8
    blocked.txt:5:1: `bad3` is not an address or a network, such as 10.0.0.0/8
    blocked.txt:6:1: `bad4` is not an address or a network, such as 10.0.0.0/8
    blocked.txt:7:1: `bad5` is not an address or a network, such as 10.0.0.0/8
    blocked.txt:8:1: `bad6` is not an address or a network, such as 10.0.0.0/8
    blocked.txt:9:1: `bad7` is not an address or a network, such as 10.0.0.0/8
    blocked.txt:10:1: `bad8` is not an address or a network, such as 10.0.0.0/8
    gateway.yaml:2:3: bans.one: "one" bans per account, which is never there
      say under `account` where requests name their account
    gateway.yaml:4:24: bans.one.strikes.limits[0]: unknown limit "RequestPerAddress"
      did you mean "RequestsPerAddress"? limits are defined in limits/defaults.yaml
    gateway.yaml:4:52: bans.one.strikes.paths[0]: "wp-login.php" does not start with '/'
      write "/wp-login.php"
    gateway.yaml:4:76: bans.one.strikes.count: count must be at least 1
    gateway.yaml:5:10: bans.one.for: a ban is for a second at least
      write `1s`
    gateway.yaml:6:25: bans.one.on_denied.shadow: unknown decoy "send"
      did you mean "sent"? decoys are defined under `decoys`
    gateway.yaml:7:3: bans.two: "global" stands alone, as it is one bucket for all
      leave it out, or the others
    gateway.yaml:9:5: bans.two.strikes: nothing is a strike
      say what is: denials by `limits: [NAME]`, a `status` such as 404, or `paths`; a ban by hand needs no `strikes`
    gateway.yaml:9:33: bans.two.strikes.period: period must be longer than zero
      write a time such as `1m`
    gateway.yaml:11:10: bans.two.max: `max` does not apply to bans that do not grow
      say by how much they do, such as `factor: 4`, or leave it out
    gateway.yaml:12:14: bans.two.enforce: `10` has no unit
      write `10%`
    gateway.yaml:13:25: bans.two.on_denied.divert: unknown upstream "trapp"
      did you mean "trap"?
    gateway.yaml:18:13: bans.three.factor: expected a whole number from 1 to 4294967295, found 0
    gateway.yaml:19:32: bans.three.on_denied.tarpit.hold: no client waits for 2h
      a request is held for 1h at most
    gateway.yaml:19:42: bans.three.on_denied.tarpit.most: expected a whole number from 1 to 4294967295, found 0
    gateway.yaml:22:40: bans.four.strikes.status[1]: `6xx` is not a class of statuses
      they are 1xx, 2xx, 3xx, 4xx and 5xx
    gateway.yaml:25:10: bans.four.max: the longest ban is shorter than the first
      leave `max` out, or raise it
    gateway.yaml:26:25: bans.four.on_denied.shadow: decoy "sent" uses path.team, which few routes capture
      choose one without captured segments, as the banned get it on every route
    gateway.yaml:27:97: bans.five.forget: offences are forgotten before the first ban is over, so bans never grow
      raise `forget` above `for`
    gateway.yaml:28:3: bans.a:b: ':' cannot stand in a name
      write it in letters, digits, '-' and '_'
    gateway.yaml:28:25: bans.a:b.strikes: nothing is a strike
      say what is: denials by `limits: [NAME]`, a `status` such as 404, or `paths`; a ban by hand needs no `strikes`
    gateway.yaml:28:46: bans.a:b.strikes.status: there are no statuses
      name some, such as [401, 403] or 5xx
    gateway.yaml:28:90: bans.a:b.then: unknown key "then"
      known here: per, strikes, for, factor, max, forget, on_denied, enforce
    gateway.yaml:29:21: allow.addresses[0]: `10.0.0.1/8` is an address within its network
      write `10.0.0.0/8`
    gateway.yaml:29:40: allow.addresses[1].file: none.txt cannot be read: No such file or directory (os error 2)
      paths are relative to the folder of gateway.yaml
    gateway.yaml:29:52: allow.acounts: unknown key "acounts"
      did you mean "accounts"?
    gateway.yaml:30:28: block.addresses[0].file: 3 more lines of blocked.txt are in error
    gateway.yaml:30:42: block.addresses[1]: `10.0.0.300` is not an address or a network, such as 10.0.0.0/8
    gateway.yaml:30:66: block.accounts[0]: no request names an account
      say under `account` where requests name their account
    gateway.yaml:30:102: block.on_denied.reject.status: 600 is not the status of a response
      a status is a number from 200 to 599
    gateway.yaml:34:3: warning: upstreams.trap: nothing uses this upstream
    gateway.yaml:35:43: warning: decoys.empty: nothing uses this decoy
      say `on_denied: {shadow: empty}` on a route or a ban
    40 errors, 2 warnings
    "#);
}

#[test]
fn strikes_whose_only_status_is_in_error_are_not_said_to_be_missing_as_well() {
    let strikes = "{status: [6xx], count: 1, period: 1m}";
    let bans = format!("bans: {{a: {{per: address, strikes: {strikes}, for: 1m}}}}");
    let findings = folder(&bans, &[]).findings();
    assert!(findings.contains("`6xx`"), "{findings}");
    assert!(!findings.contains("nothing is a strike"), "{findings}");
}

#[test]
fn a_ban_comes_out_as_it_is_written() {
    let folder = folder(
        "bans: {abusers: {per: [address, host], strikes: {limits: [RequestsPerAddress], paths: \"/x/*\", \
         count: 10, period: 1m}, for: 10m, factor: 4, max: 1h, forget: 2h, on_denied: {divert: trap}}}",
        &[],
    );
    let settings = folder.settings();
    let [policy] = settings.access.bans.as_slice() else {
        panic!("{:?}", settings.access.bans);
    };
    let minutes = |count: u64| Duration::from_secs(60 * count);
    let schedule = policy.ban.schedule();
    assert_eq!(schedule.lengths(), [minutes(10), minutes(40), minutes(60)]);
    assert_eq!(policy.ban.strikes().burst().get(), 10);
    assert_eq!(*policy.limits[0], *"RequestsPerAddress");
    assert!(policy.paths.matches("/x/y"));
    assert!(matches!(&policy.treatment, Treatment::Divert(name) if &**name == "trap"));
}

#[test]
fn a_ban_is_enforced_no_further_than_everything_is() {
    let enforced = |all: &str, own: &str| {
        let ban = "{per: address, strikes: {paths: /x, count: 1, period: 1m}, for: 1m";
        let bans = format!("{all}\nbans: {{trapped: {ban}, enforce: {own}}}}}");
        folder(&bans, &[]).settings().access.bans[0]
            .enforcement
            .to_string()
    };
    assert_eq!(enforced("enforce: 50%", "true"), "50%");
    assert_eq!(enforced("enforce: 50%", "10%"), "10%");
    assert_eq!(enforced("", "10%"), "10%");
}

#[test]
fn lists_are_read_from_the_file_itself_and_from_others() {
    let folder = folder(
        "account: [{header: x-api-key}]\n\
         allow: {addresses: [10.0.0.0/8], accounts: [acme]}\n\
         block: {addresses: [{file: a.txt}, 192.0.2.1], accounts: [{file: b.txt}]}",
        &[
            ("a.txt", "# a list\n\n203.0.113.0/24 # theirs\r\n10.1.2.3\n"),
            ("b.txt", "\u{feff}key#1\n"),
        ],
    );
    let settings = folder.settings();
    let account = |name: &str| key().hash(name.as_bytes());
    let access = |address: &str, name: &str| {
        let address = address.parse().unwrap();
        match settings.access.lists.access(address, Some(account(name))) {
            Access::Allowed(_) => "allowed",
            Access::Blocked(_) => "blocked",
            Access::Unlisted => "unlisted",
        }
    };
    assert_eq!(access("203.0.113.9", "x"), "blocked");
    assert_eq!(access("203.0.113.9", "acme"), "allowed");
    assert_eq!(access("10.1.2.3", "x"), "allowed", "on both lists");
    assert_eq!(access("192.0.2.1", "x"), "blocked");
    assert_eq!(access("192.0.2.2", "key#1"), "blocked");
    assert_eq!(access("192.0.2.2", "key"), "unlisted");
}

#[test]
fn a_ban_per_a_segment_needs_a_route_that_captures_it() {
    let found = |path: &str| {
        let ban = "{per: \"path:team\", strikes: {paths: /x, count: 1, period: 1m}, for: 1m}";
        let folder = folder(&format!("bans: {{teams: {ban}}}"), &[]);
        let yaml = fs::read_to_string(folder.gateway()).unwrap();
        let matching = format!("match: {{path: \"{path}\"}}");
        folder.write("gateway.yaml", &yaml.replace("match: {}", &matching));
        folder.findings()
    };
    let error = "\"teams\" bans per path:team, which is never there";
    assert!(found("/teams/*").contains(error));
    assert!(!found("/teams/{team}").contains(error));
}

#[test]
fn bans_of_what_may_be_a_secret_need_a_shared_key_with_redis() {
    let folder = folder(
        "account: [{header: x-api-key}]\n\
         store: {redis: {url: \"redis://127.0.0.1\"}}\n\
         bans: {abusers: {per: account, strikes: {paths: /x, count: 1, period: 1m}, for: 1m}}",
        &[],
    );
    let found = folder.findings();
    assert!(
        found.contains("ban \"abusers\" is per a value that may be secret"),
        "{found}"
    );
}

#[test]
fn a_list_of_everybody_is_warned_of() {
    let folder = folder(
        "allow: {addresses: [\"::/0\"]}\nblock: {addresses: [192.0.2.1, {file: a.txt}]}",
        &[("a.txt", "203.0.113.0/24\n0.0.0.0/0\n")],
    );
    let found = folder.findings();
    for list in ["allow.addresses[0]", "block.addresses[1]"] {
        let warning = format!("{list}: every address is on this list");
        assert!(found.contains(&warning), "{found}");
    }
}

/// Nothing else made the file of limits necessary, and the gateway was refused without a word.
#[test]
fn a_ban_for_denials_by_an_unknown_limit_is_told_of_where_no_limits_are_defined() {
    let bans = "bans: {a: {per: address, strikes: {limits: [A], count: 1, period: 1m}, for: 1m}}";
    let gateway = format!("{bans}{}", SMALLEST.replace("[RequestsPerAddress]", "[]"));
    let folder = Folder::with(&[("gateway.yaml", &gateway)]);
    insta::assert_snapshot!(folder.findings(), @r#"
    gateway.yaml:1:45: bans.a.strikes.limits[0]: unknown limit "A"
      limits are defined in limits/defaults.yaml
    1 error, 0 warnings
    "#);
}

#[test]
fn twenty_workers_may_share_a_subject_unless_a_ban_says_how_many() {
    let with = |strikes: &str| {
        let gateway = format!(
            "bans: {{a: {{per: address, for: 1m, strikes: {{{strikes}, count: 3, period: 1m}}}}}}\n{SMALLEST}"
        );
        Folder::with(&[
            ("gateway.yaml", &gateway),
            ("limits/defaults.yaml", DEFAULTS),
        ])
    };
    let limits = "limits: RequestsPerAddress";
    for (more, workers) in [("", 20), (", workers: 0", 0), (", workers: 1000", 1000)] {
        let settings = with(&format!("{limits}{more}")).settings();
        assert_eq!(settings.access.bans[0].workers, workers, "{more}");
    }
    let found = with(&format!("{limits}, workers: 1001")).findings();
    assert!(found.contains("1001 workers are too many"), "{found}");
    let found = with("status: 404, workers: 1").findings();
    assert!(
        found.contains("`workers` does not apply without `limits`"),
        "{found}"
    );
}

#[test]
fn a_ban_that_clients_reach_which_wait_is_told() {
    let found = |strikes: &str, limit: &str| {
        let gateway = format!(
            "bans: {{a: {{per: address, for: 1m, strikes: {{limits: RequestsPerAddress, {strikes}}}}}}}\n{SMALLEST}"
        );
        let limits = format!("RequestsPerAddress: {{per: address, {limit}}}");
        let folder = Folder::with(&[
            ("gateway.yaml", &gateway),
            ("limits/defaults.yaml", &limits),
        ]);
        folder.findings()
    };
    let often = "burst: 20, count: 100, period: 1m";
    insta::assert_snapshot!(found("workers: 0, count: 10, period: 1m", often), @r#"
    gateway.yaml:1:82: warning: bans.a.strikes.workers: a client that waits as "RequestsPerAddress" tells it is denied 60 times in 1m, and banned
      leave `workers` out, so that only denials of those who do not wait are strikes
    0 errors, 1 warning
    "#);
    for (strikes, limit) in [
        ("count: 10, period: 1m", often),
        ("workers: 1, count: 10, period: 1m", often),
        ("workers: 0, count: 61, period: 1m", often),
        // A unit comes back each minute, and the units of a window together.
        (
            "workers: 0, count: 11, period: 10m",
            "burst: 5, count: 60, period: 1h",
        ),
        (
            "workers: 0, count: 2, period: 30m",
            "algorithm: fixed_window, count: 60, period: 1h",
        ),
    ] {
        assert_eq!(found(strikes, limit), "0 errors, 0 warnings", "{strikes}");
    }
}
