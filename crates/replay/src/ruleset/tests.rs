//! What a log has, and which rules are replayed by it.

use std::fs;

use tempfile::TempDir;

use super::*;
use crate::format::{ParseOptions, Parsed};

const COMBINED: &str =
    r#"192.0.2.1 - - [21/Nov/2026:10:00:00 +0000] "GET /a HTTP/1.1" 200 5 "-" "-""#;

const WEIR: &str = r#"{"timestamp":"2026-11-21T10:00:00Z","target":"weir::access","client":"192.0.2.1","method":"GET","path":"/a","status":200,"decision":"allowed"}"#;

const GRANIAN: &str = r#"[2026-11-21 10:00:00 +0000] 192.0.2.1 - "GET /a HTTP/1.1" 200 1.5"#;

/// The rules of `gateway.yaml`, to which `keys` are added, as a log of this text replays them.
fn ruleset(line: &str, keys: &str) -> Ruleset {
    let folder = TempDir::new().unwrap();
    let gateway = "listen: [{address: '127.0.0.1:0'}]\n\
                   upstreams: {app: {servers: ['http://127.0.0.1:1']}}\n";
    let path = folder.path().join("gateway.yaml");
    fs::write(&path, format!("{gateway}{keys}")).unwrap();
    let key = HashKey::from_bytes(&[7; 16]).unwrap();
    let format = Format::detect(line.as_bytes(), None).unwrap();
    let mut seen = Seen::new(&format);
    let mut parser = format.parser(ParseOptions {
        detail_set: DetailSet::ALL,
        ..ParseOptions::default()
    });
    let mut lines = line.lines().map(|line| parser.parse(line.as_bytes()));
    let Some(Parsed::Request(request)) = lines.find(|it| matches!(it, Parsed::Request(_))) else {
        panic!("not a request: {line}");
    };
    drop(lines);
    seen.note(&request);
    seen.note_form(&parser);
    drop(parser);
    let log = LogFields {
        format,
        seen,
        is_host_given: false,
    };
    let rules = Ruleset::load(&path, &key, &log, &mut Names::default(), |_, _| None);
    rules.unwrap_or_else(|errors| panic!("{errors}"))
}

fn routes(matches: &str) -> String {
    format!(
        "routes: [{{name: own, match: {matches}, upstream: app}}, {{match: {{}}, upstream: app}}]"
    )
}

fn with_match(line: &str, matches: &str) -> Option<String> {
    ruleset(line, &routes(matches)).unlogged_matches
}

/// Such a route was listed, and its requests were judged by others: every gate passed.
#[test]
fn each_condition_of_routes_that_a_log_lacks_is_named() {
    for (matches, missing) in [
        ("{host: a.test}", "hosts,"),
        ("{headers: {x-plan: pro}}", "headers,"),
        ("{headers: {x-plan: {present: false}}}", "headers,"),
        ("{query: {plan: pro}}", "query parameters,"),
        (
            "{host: a.test, headers: {x-plan: pro}, query: {plan: pro}}",
            "hosts and headers and query parameters,",
        ),
    ] {
        let found = with_match(GRANIAN, matches).unwrap_or_default();
        let expected = format!("the log does not have {missing} by which routes are found");
        assert!(found.starts_with(&expected), "{matches}: {found}");
    }
    let with_query = WEIR.replace(r#""status""#, r#""query":"plan=pro","status""#);
    let with_agent = COMBINED.replace(r#""-" "-""#, r#""-" "curl""#);
    for (line, matches) in [
        (COMBINED, "{methods: [POST], path: /a/*}"),
        (&*with_query, "{query: {plan: pro}}"),
        (&*with_agent, "{headers: {user-agent: curl}}"),
        (WEIR, "{host: a.test}"),
    ] {
        assert_eq!(with_match(line, matches), None, "{matches}");
    }
}

/// A route that was new, or had another name in the log, was taken by no request, and every gate
/// passed.
#[test]
fn headers_are_concluded_only_from_a_log_that_names_the_route() {
    let of_route =
        |name: &str| WEIR.replace(r#""status""#, &format!(r#""route":"{name}","status""#));
    let (named, other) = (of_route("own"), of_route("old"));
    for pattern in ["pro", "{present: true}"] {
        let matches = format!("{{headers: {{x-plan: {pattern}}}}}");
        assert_eq!(with_match(&named, &matches), None, "{matches}");
        for line in [WEIR, &other] {
            let found = with_match(line, &matches).unwrap_or_default();
            assert!(
                found.contains("of the routes that requests took: own is new"),
                "{found}"
            );
        }
    }
    // What an expression matches, or whether a header was absent, cannot be concluded from that.
    for pattern in ["{regex: 'p.*'}", "{present: false}"] {
        let matches = format!("{{headers: {{x-plan: {pattern}}}}}");
        assert!(with_match(&named, &matches).is_some(), "{matches}");
    }
}

/// Gates on a route by query failed where no request of the log had a query.
#[test]
fn the_form_of_a_log_says_whether_it_has_queries() {
    let columns = "#Fields: date time c-ip cs-method cs-uri-stem cs-uri-query sc-status";
    let line = "2026-11-21 10:00:00 192.0.2.1 GET /a - 200";
    let w3c = format!("{columns}\n{line}");
    let json = |target: &str| {
        format!(r#"{{"msec":"1795255200.1","remote_addr":"192.0.2.1","status":"200",{target}}}"#)
    };
    let request = json(r#""request":"GET /a HTTP/1.1""#);
    let uri = r#""request_method":"GET","uri":"/a""#;
    let args = json(&format!(r#"{uri},"args":"""#));
    let squid = "1795255200.123    44 192.0.2.1 TCP_MISS/200 5 GET http://a.test/a - \
                 HIER_DIRECT/192.0.2.9 text/html";
    for (line, has) in [
        (COMBINED, true),
        (&w3c, true),
        (&w3c.replace(" cs-uri-query", "").replace(" - ", " "), false),
        (&request, true),
        (&args, true),
        (&json(uri), false),
        (GRANIAN, false),
        (squid, false),
        (WEIR, false),
    ] {
        let found = ruleset(line, &routes("{query: {plan: pro}}"));
        assert_eq!(found.unlogged_matches.is_none(), has, "{line}");
        // It is listed in any case, as a server may be told to leave queries out.
        assert_eq!(found.gaps.len(), 1, "{line}: {:?}", found.gaps);
    }
    for (pattern, has) in [
        ("$request_uri", true),
        ("$uri", false),
        ("$uri?$args", true),
    ] {
        let pattern = format!("$remote_addr [$time_local] $request_method {pattern} $status");
        let format: Format = pattern.parse().unwrap();
        let parser = format.parser(ParseOptions::default());
        assert_eq!(parser.logs_queries(), has, "{pattern}");
    }
}

#[test]
fn bans_and_lists_judge_alone_only_where_the_log_has_what_they_ask_for() {
    let judges = |keys: &str| ruleset(COMBINED, keys).judges_by_access_alone();
    let route = "routes: [{match: {}, upstream: app}]\n";
    let limited = |per: &str| {
        format!(
            "limits: {{L: {{per: '{per}', burst: 1, count: 1, period: 1h}}}}\n\
             routes: [{{match: {{}}, upstream: app, limits: [L]}}]\n"
        )
    };
    let ban = |per: &str| {
        format!(
            "bans: {{b: {{per: '{per}', for: 1h, \
             strikes: {{paths: /trap, count: 1, period: 1h}}}}}}\n"
        )
    };
    let block = "block: {addresses: [192.0.2.0/24]}\n";
    let accounts = "account: [{header: x-api-key}]\nblock: {accounts: [a]}\n";
    assert!(judges(&format!("{route}{block}")));
    assert!(judges(&format!("{route}{}", ban("address"))));
    assert!(!judges(route));
    assert!(!judges(&format!("{route}{}", ban("header:x-key"))));
    assert!(!judges(&format!("{route}{accounts}")));
    // Requests that meet none of the limits were judged by nothing.
    assert!(!judges(&format!("{}{block}", limited("address"))));
    // Nor were they where the only limit is not replayed.
    let unlogged = ruleset(COMBINED, &format!("{}{block}", limited("cookie:c")));
    assert!(unlogged.limits().is_empty() && !unlogged.gaps.is_empty());
    assert!(!unlogged.judges_by_access_alone());
}

/// A limit that left denials to one which is not replayed denied nothing.
#[test]
fn a_limit_denies_itself_where_the_one_that_it_yields_to_is_not_replayed() {
    let rules = |per: &str| {
        let keys = format!(
            "limits:\n  Own: {{per: address, burst: 1, count: 1, period: 1h}}\n  \
             Other: {{per: '{per}', burst: 1, count: 1, period: 1h}}\n\
             routes: [{{match: {{}}, upstream: app, \
             limits: [{{limit: Own, yields_to: Other}}, Other]}}]\n"
        );
        ruleset(COMBINED, &keys)
    };
    let of_own = |rules: &Ruleset| {
        let own = rules.policies[0].limits.first().unwrap();
        assert_eq!(own.limit.name(), "Own");
        own.yields_to.is_some()
    };
    let replayed = rules("address");
    assert!(of_own(&replayed));
    assert!(replayed.gaps.is_empty(), "{:?}", replayed.gaps);
    let unlogged = rules("cookie:c");
    assert!(!of_own(&unlogged));
    let gap = Gap {
        what: "limit Own".to_owned(),
        why: "it leaves denials to Other, which is not replayed".to_owned(),
    };
    assert!(unlogged.gaps.contains(&gap), "{:?}", unlogged.gaps);
}
