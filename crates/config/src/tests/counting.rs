//! What limits of a route count, and on whom they are enforced.

use std::sync::Arc;

use http::StatusCode;
use weir_limit::Mode;
use weir_rules::{Cost, Enforcement, LimitUse, Missing, SpendWhen};

use super::*;

const LIMITS: &str = "\
L: {per: address, burst: 20, count: 100, period: 1m}
Off: {per: address, burst: 20, count: 100, period: 1m, enabled: false}
Tried: {per: address, burst: 20, count: 100, period: 1m, enforce: 20%}
Strict: {per: address, algorithm: sliding_log, count_denied: true, count: 5, period: 10m}
";

/// A route with these limits, an item a line, and what stands before the routes.
fn folder(top: &str, limits: &[&str]) -> Folder {
    let mut gateway = format!(
        "{top}upstreams: {{app: {{servers: [\"http://127.0.0.1:3000\"]}}}}\n\
         routes:\n  - match: {{}}\n    upstream: app\n    limits:\n"
    );
    for limit in limits {
        gateway += &format!("      - {limit}\n");
    }
    Folder::with(&[("gateway.yaml", &gateway), ("limits/defaults.yaml", LIMITS)])
}

fn uses(top: &str, limits: &[&str]) -> Vec<LimitUse> {
    let mut settings = folder(top, limits).settings();
    settings.routes.remove(0).policy.limits
}

#[test]
fn a_use_is_of_a_kind_or_switched_off() {
    let kinds: Vec<Mode> = uses(
        "",
        &[
            "L",
            "{limit: L, kind: check_and_spend}",
            "{limit: L, kind: check_only}",
            "{limit: L, kind: spend_only}",
            "{limit: L, kind: check_only, enabled: false}",
            "{limit: Off, enabled: true}",
        ],
    )
    .iter()
    .map(|usage| usage.mode)
    .collect();
    assert_eq!(
        kinds,
        [
            Mode::CheckAndSpend,
            Mode::CheckAndSpend,
            Mode::CheckOnly,
            Mode::SpendOnly,
            Mode::AllowOnly,
            Mode::AllowOnly
        ]
    );
}

#[test]
fn statuses_may_be_one_or_many_of_any_form() {
    let uses = uses(
        "",
        &[
            "{limit: L, spend_on: {status: 401}}",
            "{limit: L, refund_on: {status: [404, 5xx, 301-303]}}",
        ],
    );
    let status = |number| StatusCode::from_u16(number).ok();
    let SpendWhen::On(_) = &uses[0].spend else {
        panic!("{:?}", uses[0].spend)
    };
    assert!(uses[0].spend.counts(status(401)) && !uses[0].spend.counts(status(403)));
    let SpendWhen::ExceptOn(set) = &uses[1].spend else {
        panic!("{:?}", uses[1].spend)
    };
    assert_eq!(set.to_string(), "404, 5xx, 301-303");
}

#[test]
fn a_measured_cost_is_1_where_nothing_says_it() {
    let uses = uses(
        "",
        &[
            "{limit: L, cost: {request_header: X-Cost, response_header: x-used, request_bytes: 1KiB, default: 20}}",
            "{limit: L, cost: {request_bytes: 512}}",
            "{limit: L, cost: {response_header: x-used, default: 0}}",
            "{limit: L, cost: {response_json: [/usage/a, /usage/b], response_trailer: X-Units}}",
            "{limit: L, cost: {response_json: /usage}}",
        ],
    );
    let measured = |at: usize| match &uses[at].cost {
        Cost::Measured(measured) => measured,
        cost @ Cost::Fixed(_) => panic!("{cost:?}"),
    };
    let all = measured(0);
    assert_eq!(all.request_header.as_ref().unwrap(), "x-cost");
    assert_eq!(all.response_header.as_ref().unwrap(), "x-used");
    assert_eq!(all.request_bytes.unwrap().get(), 1024);
    assert_eq!(all.default, 20);
    assert_eq!((measured(1).default, measured(2).default), (1, 0));
    let pointers = |at: usize| measured(at).response_json.iter().map(ToString::to_string);
    assert_eq!(pointers(3).collect::<Vec<_>>(), ["/usage/a", "/usage/b"]);
    assert_eq!(measured(3).response_trailer.as_ref().unwrap(), "x-units");
    assert_eq!(pointers(4).collect::<Vec<_>>(), ["/usage"]);
}

#[test]
fn a_delay_is_read_in_both_forms_and_refused_where_nothing_can_wait() {
    let on_denied = |text: &str, limit: &str| {
        let folder = folder("", &[limit]);
        let gateway = fs::read_to_string(folder.gateway()).unwrap();
        folder.write("gateway.yaml", &format!("{gateway}    on_denied: {text}\n"));
        folder
    };
    let delay = |text: &str| {
        let mut settings = on_denied(text, "L").settings();
        let delay = settings.routes.remove(0).policy.delay.unwrap();
        (
            delay.longest.as_millis(),
            delay.max_requests.get(),
            delay.server_timing,
        )
    };
    assert_eq!(delay("{delay: 2s}"), (2000, 1000, false));
    let all = "{delay: {up_to: 1500ms, max_requests: 5, server_timing: true, otherwise: reject}}";
    assert_eq!(delay(all), (1500, 5, true));
    let errors = [
        ("{delay: soon}", "L"),
        ("{delay: 0s}", "L"),
        ("{delay: 3s}", "L"),
        ("{delay: {up_to: 1s, otherwise: {delay: 1s}}}", "L"),
        ("{delay: 1s}", "Strict"),
        ("{delay: 1s}", "{limit: L, kind: check_only}"),
    ];
    let errors = errors.map(|(text, limit)| {
        let found = on_denied(text, limit).findings();
        let lines = found.lines().take_while(|line| !line.contains("warning:"));
        lines.collect::<Vec<_>>().join("\n")
    });
    insta::assert_snapshot!(errors.join("\n"), @"
    gateway.yaml:7:24: routes[0].on_denied.delay: `soon` is not a duration
      write it like `20ms`, `1.5s`, `1h30m` or `7d`
    gateway.yaml:7:24: routes[0].on_denied.delay: a time of zero leaves no time at all
      leave it out for the default
    gateway.yaml:7:24: routes[0].on_denied.delay: a delay is at most 2s
      clients give up sooner or later; let them try again after a 429 instead
    gateway.yaml:7:55: routes[0].on_denied.delay.otherwise.delay: a request does not wait twice
      say `reject` or `shadow` here
    gateway.yaml:7:5: routes[0].on_denied: no limit of this route can delay a request
      only limits of the algorithm gcra that check and spend do; list one, or leave `delay` out
    gateway.yaml:7:5: routes[0].on_denied: no limit of this route can delay a request
      only limits of the algorithm gcra that check and spend do; list one, or leave `delay` out
    ");
}

#[test]
fn of_several_shares_the_least_holds() {
    let shares = |top: &str| -> Vec<String> {
        let limits = [
            "L",
            "Tried",
            "{limit: L, enforce: 30%}",
            "{limit: Tried, enforce: false}",
        ];
        let uses = uses(top, &limits);
        uses.iter()
            .map(|usage| usage.enforcement.to_string())
            .collect()
    };
    assert_eq!(shares(""), ["true", "20%", "30%", "false"]);
    assert_eq!(shares("enforce: 25%\n"), ["25%", "20%", "25%", "false"]);
    assert_eq!(shares("enforce: false\n"), ["false"; 4]);
    assert_eq!(Enforcement::default().to_string(), "true");
}

#[test]
fn what_makes_no_sense_is_told_with_its_place_and_a_help() {
    let folder = folder(
        "enforce: sometimes\n",
        &[
            "{limit: L, kind: check_first}",
            "{limit: L, spend_on: {status: [6xx, 99, 503-500, many]}}",
            "{limit: L, spend_on: {status: []}}",
            "{limit: L, spend_on: {}}",
            "{limit: L, spend_on: {status: 401}, refund_on: {status: 5xx}}",
            "{limit: L, kind: check_only, spend_on: {status: 401}}",
            "{limit: L, kind: check_only, cost: {response_header: x-used}}",
            "{limit: L, cost: {default: 5}}",
            "{limit: L, cost: {request_header: x cost, default: 21}}",
            "{limit: L, cost: {request_bytes: 0}}",
            "{limit: L, cost: {request_bytes: 1kib}}",
            "{limit: L, cost: much}",
            "{limit: L, enforce: 10}",
            "{limit: L, enforce: 101%}",
            "{limit: Strict, spend_on: {status: 401}}",
            "{limit: L, cost: {response_json: usage.tokens}}",
            "{limit: L, cost: {response_json: []}}",
            "{limit: L, kind: check_only, cost: {response_json: /a, response_trailer: b}}",
        ],
    );
    insta::assert_snapshot!(folder.findings(), @r#"
    gateway.yaml:1:10: enforce: `sometimes` is not a share of subjects
      write true, false, or a percentage such as 10%
    gateway.yaml:7:26: routes[0].limits[0].kind: "check_first" is not known here
      known here: check_and_spend, check_only, spend_only
    gateway.yaml:8:40: routes[0].limits[1].spend_on.status[0]: `6xx` is not a class of statuses
      they are 1xx, 2xx, 3xx, 4xx and 5xx
    gateway.yaml:8:45: routes[0].limits[1].spend_on.status[1]: `99` is not a status
      they are 100 to 599
    gateway.yaml:8:49: routes[0].limits[1].spend_on.status[2]: the range `503-500` ends before it begins
      write the lesser status first
    gateway.yaml:8:58: routes[0].limits[1].spend_on.status[3]: `many` names no statuses
      write one such as 404, 5xx or 500-503
    gateway.yaml:9:31: routes[0].limits[2].spend_on.status: there are no statuses
      name some, such as [401, 403] or 5xx
    gateway.yaml:10:20: routes[0].limits[3].spend_on: the key "status" is missing
    gateway.yaml:11:45: routes[0].limits[4].refund_on: `spend_on` and `refund_on` do not go together
      what only some responses spend need not be given back; leave one out
    gateway.yaml:12:38: routes[0].limits[5].spend_on: `spend_on` has no effect, as `kind: check_only` spends nothing
      leave one of them out
    gateway.yaml:13:62: routes[0].limits[6].cost.response_header: `response_header` has no effect, as `kind: check_only` spends nothing
      leave one of them out
    gateway.yaml:14:20: routes[0].limits[7].cost: nothing says what a request costs
      add `response_json`, `response_trailer`, `response_header`, `request_header` or `request_bytes`, or write the number alone
    gateway.yaml:15:43: routes[0].limits[8].cost.request_header: `x cost` is not the name of a header
    gateway.yaml:15:60: routes[0].limits[8].cost.default: a cost of 21 never passes "L"
      its burst is only 20 at limits/defaults.yaml:1:26: L.burst
    gateway.yaml:16:42: routes[0].limits[9].cost.request_bytes: a unit has at least one byte
      say how many bytes cost 1, such as 1KiB
    gateway.yaml:17:42: routes[0].limits[10].cost.request_bytes: the size `1kib` has the unknown unit `kib`
      units are B, kB, KiB, MB, MiB, GB and GiB
    gateway.yaml:18:26: routes[0].limits[11].cost: expected a whole number that is at least 1, found `much`
    gateway.yaml:19:29: routes[0].limits[12].enforce: `10` has no unit
      write `10%`
    gateway.yaml:20:29: routes[0].limits[13].enforce: `101%` exceeds 100%
      write true for all
    gateway.yaml:22:42: routes[0].limits[15].cost.response_json: a JSON pointer begins with a slash
      write it as `/usage/total_tokens`
    gateway.yaml:23:27: routes[0].limits[16].cost.response_json: there are no JSON pointers
      write one such as /usage/total_tokens
    gateway.yaml:24:60: routes[0].limits[17].cost.response_json: `response_json` has no effect, as `kind: check_only` spends nothing
      leave one of them out
    gateway.yaml:24:82: routes[0].limits[17].cost.response_trailer: `response_trailer` has no effect, as `kind: check_only` spends nothing
      leave one of them out
    gateway.yaml:21:25: warning: routes[0].limits[14].spend_on: "Strict" counts no denied requests here
      with `spend_on` only answered requests are counted, whatever `count_denied` says
    limits/defaults.yaml:2:1: warning: Off: no route uses this limit
      list it under a route's `limits`, or under `defaults`
    limits/defaults.yaml:3:1: warning: Tried: no route uses this limit
      list it under a route's `limits`, or under `defaults`
    23 errors, 3 warnings
    "#);
}

#[test]
fn a_share_of_a_limit_that_is_none_is_told_once_however_often_it_is_used() {
    let limits = LIMITS.replace("20%", "20");
    let folder = folder("", &["Tried", "Tried"]);
    folder.write("limits/defaults.yaml", &limits);
    insta::assert_snapshot!(folder.findings(), @r#"
    limits/defaults.yaml:3:67: Tried.enforce: `20` has no unit
      write `20%`
    limits/defaults.yaml:1:1: warning: L: no route uses this limit
      list it under a route's `limits`, or under `defaults`
    limits/defaults.yaml:2:1: warning: Off: no route uses this limit
      list it under a route's `limits`, or under `defaults`
    limits/defaults.yaml:4:1: warning: Strict: no route uses this limit
      list it under a route's `limits`, or under `defaults`
    1 error, 3 warnings
    "#);
}

/// Errors of uses of limits: what gets one, and what is next to it and gets none.
#[test]
fn what_a_use_says_has_an_effect_or_is_refused() {
    let limits = format!("{LIMITS}AtOnce: {{per: address, in_flight: 9}}\n");
    let errors = |uses: &[&str]| {
        let folder = folder("", uses);
        folder.write("limits/defaults.yaml", &limits);
        let found = folder.findings();
        let lines = found
            .lines()
            .take_while(|found| !found.contains(" warning: "));
        lines.filter(|line| line.contains("routes[")).count()
    };
    for refused in [
        "{limit: L, kind: check_only, spend_on: {status: 401}}",
        "{limit: L, kind: check_only, refund_on: {status: 401}}",
        "{limit: L, kind: check_only, cost: {response_header: x}}",
        "{limit: AtOnce, spend_on: {status: 401}}",
        "{limit: AtOnce, refund_on: {status: 401}}",
        "{limit: AtOnce, cost: 1}",
        "{limit: L, per: host}",
        "{limit: L, per: [address, address]}",
    ] {
        assert_eq!(errors(&[refused]), 1, "{refused}");
    }
    for fit in [
        "{limit: L, kind: spend_only, spend_on: {status: 401}}",
        "{limit: L, kind: check_and_spend, refund_on: {status: 401}}",
        "{limit: L, kind: check_only, cost: {request_header: x}}",
        "{limit: L, kind: check_only, cost: 2}",
        "{limit: AtOnce, kind: check_and_spend}",
        "{limit: L, per: address}",
    ] {
        assert_eq!(errors(&[fit]), 0, "{fit}");
    }
}

#[test]
fn what_a_route_says_of_a_missing_value_goes_before_what_the_limit_says() {
    let limits = "\
Skips: {per: 'header:x', burst: 1, count: 1, period: 1s}
Denies: {per: 'header:x', missing: deny, burst: 1, count: 1, period: 1s}
";
    let folder = folder(
        "hash_key: {file: hash.key}\n",
        &[
            "Skips",
            "{limit: Skips, missing: deny}",
            "{limit: Skips, missing: skip}",
            "Denies",
            "{limit: Denies, missing: skip}",
            "{limit: Denies, missing: deny}",
        ],
    );
    folder.write("limits/defaults.yaml", limits);
    folder.write("hash.key", "0123456789abcdef");
    let uses = folder.settings().routes.remove(0).policy.limits;
    let missing: Vec<Missing> = uses.iter().map(|usage| usage.limit.missing()).collect();
    use Missing::{Deny, Skip};
    assert_eq!(missing, [Skip, Deny, Skip, Deny, Skip, Deny]);
    // Uses that agree share a limit, with its overrides.
    assert!(Arc::ptr_eq(&uses[0].limit, &uses[2].limit));
    assert!(!Arc::ptr_eq(&uses[0].limit, &uses[1].limit));
}

/// A limit is built twice where uses disagree; what is wrong with its ids is told once, and its
/// other build has the overrides, too.
#[test]
fn each_build_of_a_limit_has_its_overrides_and_errors_are_told_once() {
    let uses = ["{limit: K, missing: deny}", "K"];
    let limits = "K: {per: 'header:x', id: 7, burst: 1, count: 1, period: 1s}";
    let key = "hash_key: {file: hash.key}\n";
    let folder = folder(key, &uses);
    folder.write("limits/defaults.yaml", limits);
    folder.write("hash.key", "0123456789abcdef");
    folder.write(
        "limits/overrides.yaml",
        "- K: {burst: 2, count: 2, period: 1s, ids: [a, b]}",
    );
    let built = folder.settings().routes.remove(0).policy.limits;
    for usage in &built {
        assert_eq!(usage.limit.overrides().count(), 2);
    }
    folder.write(
        "limits/overrides.yaml",
        "- K: {burst: 2, count: 2, period: 1s, ids: [a, a]}",
    );
    let found = folder.findings();
    assert_eq!(found.matches("is overridden already").count(), 1, "{found}");
}

/// One request kept Redis, and with it all limits, busy for 20 ms.
#[test]
fn a_route_on_which_one_request_may_fill_long_logs_is_an_error() {
    let found = |limits: &str, uses: &str| {
        let gateway = format!(
            "upstreams: {{app: {{servers: [\"http://127.0.0.1:3000\"]}}}}\n\
             routes: [{{match: {{path: \"/*\"}}, upstream: app, limits: [{uses}]}}]"
        );
        let limits = limits.replace("log,", "per: address, algorithm: sliding_log, period: 1h,");
        Folder::with(&[
            ("gateway.yaml", &gateway),
            ("limits/defaults.yaml", &limits),
        ])
        .findings()
    };
    let fine = "0 errors, 0 warnings";
    let measured = "{limit: A, cost: {request_header: x-cost}}";
    insta::assert_snapshot!(found("A: {log, count: 1001}", measured), @r"
    gateway.yaml:2:56: routes[0].limits[0]: one request may add 1001 entries to sliding logs, more than 1000
      choose `algorithm: sliding_window`, a smaller `count`, or a fixed `cost` in place of one that is measured
    1 error, 0 warnings
    ");
    insta::assert_snapshot!(found("A: {log, count: 17, count_denied: true}", measured), @r"
    gateway.yaml:2:56: routes[0].limits[0]: one request may add 17 entries to sliding logs, more than 16 where denied requests are counted
      choose `algorithm: sliding_window`, a smaller `count`, or a fixed `cost` in place of one that is measured
    1 error, 0 warnings
    ");
    let two = "A: {log, count: 600}\nB: {log, count: 600}";
    assert!(found(two, &format!("{measured}, {{limit: B, cost: 500}}")).contains("1100 entries"));
    assert_eq!(
        found(two, &format!("{measured}, {{limit: B, cost: 400}}")),
        fine
    );
    assert_eq!(found("A: {log, count: 1000}", measured), fine);
    assert_eq!(found("A: {log, count: 10000}", "A"), fine);
    assert_eq!(
        found("A: {log, count: 10000}", "{limit: A, cost: 1000}"),
        fine
    );
    assert_eq!(
        found(
            "A: {log, count: 17, count_denied: true}",
            "{limit: A, cost: 16}"
        ),
        fine
    );
    let check = "{limit: A, kind: check_only, cost: {request_header: x-cost}}";
    assert_eq!(found("A: {log, count: 10000}", check), fine);
    let window = "A: {per: address, algorithm: sliding_window, period: 1h, count: 10000}";
    assert_eq!(found(window, measured), fine);
}
