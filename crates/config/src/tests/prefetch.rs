//! How many units gateways take ahead, as it is written.

use std::time::Duration;

use weir_limit::Prefetch;
use weir_limit::time::Timestamp;

use super::*;

const GATEWAY: &str = r#"
store: {redis: {url: "redis://127.0.0.1:6379/0"}}
upstreams:
  app: {servers: ["http://127.0.0.1:3000"]}
routes:
  - match: {path: "/*"}
    upstream: app
    limits: [Calls]
"#;

fn calls(rest: &str) -> String {
    format!("Calls: {{per: address, burst: 20000, count: 20000, period: 1s, {rest}}}\n")
}

fn folder(gateway: &str, limits: &str, overrides: &str) -> Folder {
    Folder::with(&[
        ("gateway.yaml", gateway),
        ("limits/defaults.yaml", limits),
        ("limits/overrides.yaml", overrides),
    ])
}

#[test]
fn a_share_is_of_the_burst_of_the_limit_and_of_each_override() {
    let overrides = "
- Calls: {burst: 100000, count: 1, period: 1s, ids: [192.0.2.1]}
- Calls: {burst: 700, count: 1, period: 1s, ids: [192.0.2.2]}
";
    for (written, [own, greater, smaller]) in [
        ("prefetch: 1%", [Some(200), Some(1000), None]),
        ("prefetch: {units: 0.5%}", [Some(100), Some(500), None]),
        ("prefetch: 400", [Some(400), Some(400), Some(350)]),
    ] {
        let settings = folder(GATEWAY, &calls(written), overrides).settings();
        assert!(settings.warnings.is_empty(), "{}", settings.warnings);
        assert!(settings.prefetches());
        let limit = settings.limit("Calls").unwrap();
        let of = |id: &str| {
            let overridden = limit.override_of(id, Timestamp::default()).unwrap();
            overridden.unwrap().quota.prefetch().map(Prefetch::units)
        };
        assert_eq!(limit.quota().unwrap().prefetch().map(Prefetch::units), own);
        assert_eq!(
            [of("192.0.2.1"), of("192.0.2.2")],
            [greater, smaller],
            "{written}"
        );
    }
}

#[test]
fn units_are_held_for_a_quarter_of_a_second_or_as_long_as_is_said() {
    for (written, age) in [
        ("prefetch: 1%", Duration::from_millis(250)),
        (
            "prefetch: {units: 1%, max_age: 100ms}",
            Duration::from_millis(100),
        ),
    ] {
        let settings = folder(GATEWAY, &calls(written), "[]").settings();
        let prefetch = settings.limit("Calls").unwrap().quota().unwrap().prefetch();
        assert_eq!(prefetch.unwrap().max_age(), age.into());
    }
}

#[test]
fn what_cannot_be_prefetched_is_told_with_its_place() {
    let limits = "
Window: {per: address, algorithm: sliding_window, count: 2000, period: 1m, prefetch: 1%}
AtOnce: {per: address, in_flight: 2000, prefetch: 1%}
Small: {per: address, burst: 15, count: 15, period: 1s, prefetch: 50%}
Few: {per: address, burst: 700, count: 700, period: 1s, prefetch: 1%}
Many: {per: address, burst: 700, count: 700, period: 1s, prefetch: {units: 51%}}
Word: {per: address, burst: 700, count: 700, period: 1s, prefetch: many}
Long: {per: address, burst: 700, count: 700, period: 1s, prefetch: {units: 5%, max_age: 1m}}
Lacks: {per: address, burst: 700, count: 700, period: 1s, prefetch: {max_age: 1s}}
";
    let gateway = GATEWAY.replace(
        "[Calls]",
        "[Window, AtOnce, Small, Few, Many, Word, Long, Lacks]",
    );
    insta::assert_snapshot!(folder(&gateway, limits, "[]").findings(), @r#"
    limits/defaults.yaml:2:86: Window.prefetch: `prefetch` does not apply to sliding_window
      leave it out, or say `algorithm: gcra`
    limits/defaults.yaml:3:51: AtOnce.prefetch: `prefetch` does not apply beside `in_flight`
      leave it out, or use a limit of its own for the rate
    limits/defaults.yaml:4:67: Small.prefetch: a burst of 15 is too small to prefetch from
      leave `prefetch` out
    limits/defaults.yaml:5:67: Few.prefetch: 7 units of a burst of 700 save nothing
      say 8 at least, or leave `prefetch` out
    limits/defaults.yaml:6:58: Many.prefetch: a gateway would hold 357 units of a burst of 700
      say 50% or 350 at most
    limits/defaults.yaml:7:68: Word.prefetch: `many` is not a number of units
      write a share of the burst such as 1%, or a number such as 200
    limits/defaults.yaml:8:89: Long.prefetch.max_age: units cannot be held for 1m
      choose a duration from 10ms to 10s
    limits/defaults.yaml:9:59: Lacks.prefetch: the key "units" is missing
    8 errors, 0 warnings
    "#);
}

#[test]
fn without_other_gateways_it_has_no_effect_and_is_warned_of() {
    let gateway = GATEWAY.replace("store: {redis: {url: \"redis://127.0.0.1:6379/0\"}}", "");
    insta::assert_snapshot!(folder(&gateway, &calls("prefetch: 1%"), "[]").findings(), @r"
    limits/defaults.yaml:1:73: warning: Calls.prefetch: `prefetch` has no effect with the memory store
      it saves calls to Redis, and there are none; decisions are exact without them
    0 errors, 1 warning
    ");
}
