//! Which override a subject gets.

mod reference;

use std::net::IpAddr;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use super::*;
use crate::{
    AccountRules, AccountSource, AccountWildcards, Captures, HashKey, IdError, KeySource, Limit,
    LimitMatch, LimitUse, Missing, OverrideScope, RequestAttributes,
};

const KEY_HEADER: HeaderName = HeaderName::from_static("x-api-key");

fn key() -> HashKey {
    HashKey::from_bytes(&[7; 16]).unwrap()
}

fn quota(burst: u64) -> Quota {
    Quota::new(burst, 1, Duration::from_secs(1)).unwrap()
}

fn at(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

fn limit_per(per: &[&str]) -> Limit {
    let per = per.iter().map(|text| KeySource::parse(text, 64).unwrap());
    Limit::new("L", per.collect(), quota(1), Missing::Skip, key()).unwrap()
}

fn added(mut limit: Limit, id: &str, until: Option<Timestamp>) -> Result<Limit, IdError> {
    let added = Override {
        quota: quota(2),
        comment: None,
        id: id.to_owned(),
        until,
        origin: OverrideOrigin::Configuration,
    };
    limit.add_override(added).map(|()| limit)
}

/// A limit with these overrides, which never end.
fn limit(per: &[&str], ids: &[&str]) -> Limit {
    let add = |limit, id: &&str| added(limit, id, None).unwrap_or_else(|error| panic!("{error}"));
    ids.iter().fold(limit_per(per), add)
}

fn refused(per: &[&str], id: &str) -> String {
    added(limit_per(per), id, None).unwrap_err().to_string()
}

/// What requests are told apart by.
#[derive(Clone, Debug)]
struct Sent<'a> {
    account: &'a str,
    client: IpAddr,
    host: &'a str,
    uri: &'a str,
}

const SENT: Sent<'_> = Sent {
    account: "acme",
    client: IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 9)),
    host: "app.example.com",
    uri: "/",
};

/// Bucket key, and the id of the override that applies.
fn found(limit: Limit, sent: &Sent<'_>, now: Timestamp) -> (String, Option<String>) {
    let value = |text: &str| HeaderValue::from_str(text).unwrap();
    let headers = HeaderMap::from_iter([
        (KEY_HEADER, value(sent.account)),
        (http::header::HOST, value(sent.host)),
        (http::header::COOKIE, value(&format!("s={}", sent.account))),
    ]);
    let accounts = AccountRules {
        sources: vec![AccountSource::Header(KEY_HEADER)],
        key: key(),
        wildcards: AccountWildcards::from_limits([&limit]),
        keeps_names: false,
    };
    let account = accounts.account(&headers);
    let uri: Uri = sent.uri.parse().unwrap();
    let attributes = RequestAttributes {
        method: &Method::POST,
        uri: &uri,
        headers: &headers,
        client: sent.client,
        secure: false,
        account: account.as_ref(),
        route: "login",
        captures: &Captures::from_iter([("team", "red:team")]),
        now,
    };
    let used = LimitUse::new(limit.into());
    match used.matching(&attributes, || None) {
        LimitMatch::Counted {
            admission,
            overridden,
        } => (
            admission.transaction.key.to_string(),
            overridden.map(|overridden| overridden.id.clone()),
        ),
        other => panic!("{other:?}"),
    }
}

fn picked(per: &[&str], ids: &[&str], sent: &Sent<'_>) -> Option<String> {
    found(limit(per, ids), sent, at(1)).1
}

fn from(client: &str) -> Sent<'_> {
    let client = client.parse().unwrap();
    Sent { client, ..SENT }
}

#[test]
fn the_longest_network_wins_and_each_address_keeps_its_bucket() {
    let ids = [
        "10.0.0.0/8",
        "10.1.0.0/16",
        "10.1.2.3",
        "2001:db8::/32",
        "2001:db8:0:1::/64",
    ];
    for (client, bucket, id) in [
        ("10.1.2.3", "L:10.1.2.3", Some("10.1.2.3")),
        ("10.1.2.4", "L:10.1.2.4", Some("10.1.0.0/16")),
        ("10.2.2.4", "L:10.2.2.4", Some("10.0.0.0/8")),
        ("11.2.2.4", "L:11.2.2.4", None),
        ("::ffff:10.2.2.4", "L:10.2.2.4", Some("10.0.0.0/8")),
        (
            "2001:db8:0:1::9",
            "L:2001:db8:0:1::/64",
            Some("2001:db8:0:1::/64"),
        ),
        (
            "2001:db8:0:2::9",
            "L:2001:db8:0:2::/64",
            Some("2001:db8::/32"),
        ),
        ("2001:db9::9", "L:2001:db9::/64", None),
    ] {
        let expected = (bucket.to_owned(), id.map(str::to_owned));
        assert_eq!(
            found(limit(&["address"], &ids), &from(client), at(1)),
            expected
        );
    }
}

#[test]
fn a_wildcard_matches_what_a_source_says_before_it_is_hashed_or_encoded() {
    for (per, id) in [
        (&["account"][..], "ac*"),
        (&["account"], "*"),
        (&["host"], "*.example.com"),
        (&["domain"], "exa*"),
        (&["route"], "log*"),
        (&["header:x-api-key"], "a*e"),
        (&["cookie:s"], "*me"),
        (&["query:key"], "a *"),
        (&["path:team"], "red:*"),
        (&["path:team", "account"], "red%3A*:*me"),
        (&["account", "query:key"], "ac*:a%20b*"),
        (&["method", "account"], "*:acme"),
        (&["address", "account"], "*:ac*"),
    ] {
        let uri = "/?key=a+bc";
        let id_found = picked(per, &[id], &Sent { uri, ..SENT });
        assert_eq!(id_found.as_deref(), Some(id), "{per:?}");
    }
}

#[test]
fn a_wildcard_matches_no_other_text() {
    for (per, id) in [
        (&["account"][..], "acme-*"),
        (&["account"], "*acme2"),
        (&["account"], "a\\*"),
        (&["host"], "*.app.example.com"),
        (&["account", "host"], "ac*:*.example.org"),
        (&["account", "host"], "b*"),
    ] {
        assert_eq!(picked(per, &[id], &SENT), None, "{id}");
    }
}

#[test]
fn a_star_that_is_meant_as_such_has_a_backslash() {
    let sent = |account| Sent { account, ..SENT };
    let ids = ["a\\*b", "a*b"];
    assert_eq!(
        picked(&["account"], &ids, &sent("a*b")).as_deref(),
        Some("a\\*b")
    );
    assert_eq!(
        picked(&["account"], &ids, &sent("axb")).as_deref(),
        Some("a*b")
    );
    let ids = ["a\\*:*"];
    assert_eq!(
        picked(&["account", "host"], &ids, &sent("a*")).as_deref(),
        Some("a\\*:*")
    );
}

#[test]
fn the_last_parts_of_an_id_may_be_left_out() {
    let ids = ["acme", "acme:app.example.com", "other"];
    let per = ["account", "host", "method"];
    assert_eq!(
        picked(&per, &ids, &SENT).as_deref(),
        Some("acme:app.example.com")
    );
    let elsewhere = Sent {
        host: "b.example.com",
        ..SENT
    };
    let bucket = format!("L:{}:b.example.com:POST", key().hash(b"acme"));
    assert_eq!(
        found(limit(&per, &ids), &elsewhere, at(1)),
        (bucket, Some("acme".to_owned()))
    );
    let other = Sent {
        account: "nobody",
        ..SENT
    };
    assert_eq!(picked(&per, &ids, &other), None);
}

#[test]
fn the_first_part_decides_and_then_the_next() {
    let per = ["account", "host"];
    let exact_to_default = [
        "acme:app.example.com",
        "acme:*.example.com",
        "acme:*",
        "acme",
        "acm*:app.example.com",
        "acm*",
        "a*:app.example.com",
        "*:app.example.com",
        "*",
    ];
    for at in 0..exact_to_default.len() {
        let ids: Vec<&str> = exact_to_default[at..].iter().rev().copied().collect();
        assert_eq!(
            picked(&per, &ids, &SENT).as_deref(),
            Some(exact_to_default[at])
        );
    }
}

#[test]
fn a_more_exact_branch_without_an_override_leads_back() {
    let ids = ["acme:other.example.com", "ac*:*.example.com"];
    let found = picked(&["account", "host"], &ids, &SENT);
    assert_eq!(found.as_deref(), Some("ac*:*.example.com"));
}

#[test]
fn an_override_that_has_ended_is_as_though_it_were_not_there() {
    let per = ["account", "host"];
    let limit = || {
        let limit = added(limit_per(&per), "acme:app.example.com", Some(at(100))).unwrap();
        let limit = added(limit, "acme", Some(at(200))).unwrap();
        added(limit, "ac*", Some(at(300))).unwrap()
    };
    for (now, id) in [
        (0, Some("acme:app.example.com")),
        (99, Some("acme:app.example.com")),
        (100, Some("acme")),
        (199, Some("acme")),
        (200, Some("ac*")),
        (300, None),
    ] {
        let id = id.map(str::to_owned);
        assert_eq!(found(limit(), &SENT, at(now)).1, id, "{now}");
        let named = limit();
        let of_id = named.override_of("acme:app.example.com", at(now)).unwrap();
        assert_eq!(of_id.map(|overridden| overridden.id.clone()), id, "{now}");
    }
}

#[test]
fn an_override_that_has_ended_is_still_a_second_one() {
    for id in ["acme", "ac*"] {
        let limit = added(limit_per(&["account"]), id, Some(at(1))).unwrap();
        let error = added(limit, id, None).unwrap_err();
        assert!(matches!(error, IdError::Duplicate { .. }), "{error}");
    }
}

#[test]
fn an_id_of_several_subjects_in_another_form_is_told_the_right_one() {
    for (per, id, help) in [
        (&["address"][..], "10.0.0.1/8", "write \"10.0.0.0/8\""),
        (&["address"], "2001:db8:1::/32", "write \"2001:db8::/32\""),
        (&["address"], "2001:0db8::/32", "write \"2001:db8::/32\""),
        (&["address"], "10.0.*", "write one such as 203.0.113.9"),
        (
            &["address/24/48"],
            "10.0.0.0/25",
            "counts address/24/48; write \"10.0.0.0/24\"",
        ),
        (
            &["address", "account"],
            "2001:db8::/32",
            "or [2001:db8::/64]",
        ),
        (&["account"], "a*b*", "more than one `*`; write one"),
        (&["account"], "ac* ", "write \"ac*\""),
        (&["host"], "*.Example.com", "write \"*.example.com\""),
        (&["host"], "https://*.example.com", "without scheme"),
        (&["domain"], "*.example.co.uk", "write \"example.co.uk\""),
        (&["domain"], "*.www.example.com", "write \"example.com\""),
        (&["method"], "P*", "such as GET, or other"),
        (&["path:team"], "r%65d*", "write \"red*\""),
        (
            &["account", "host"],
            "a:b:c",
            "write it as ACCOUNT:app.example.com",
        ),
        (&["account", "host"], "acme:", "ACCOUNT:app.example.com"),
        (&["global"], "a*", "change the limit itself"),
    ] {
        let said = refused(per, id);
        assert!(said.contains(help), "{per:?} {id:?}: {said}");
    }
    assert!(added(limit_per(&["domain"]), "*.co.uk", None).is_ok());
}

#[test]
fn how_far_an_override_reaches_can_be_told() {
    let reach = |per: &[&str], id: &str| {
        let limit = limit(per, &[id]);
        let overridden = limit.overrides().next().unwrap();
        limit.scope_of(overridden)
    };
    let subject = OverrideScope::default();
    assert_eq!(reach(&["address", "account"], "10.0.0.1:acme"), subject);
    let all = reach(&["address", "account", "host"], "10.0.0.0/8:a*");
    assert_eq!((all.network, all.wildcard, all.left_out), (true, true, 1));
    assert!(reach(&["account", "host"], "acme:*").wildcard);
}

#[test]
fn a_limit_with_overrides_alone_counts_no_other_subject() {
    let per = vec![KeySource::parse("account", 64).unwrap()];
    let limit = Limit::new("L", per, None, Missing::Skip, key()).unwrap();
    let mut limit = added(limit, "other", None).unwrap();
    let used = |limit: &Limit| {
        let used = LimitUse::new(limit.clone().into());
        let attributes = RequestAttributes {
            method: &Method::GET,
            uri: &Uri::from_static("/"),
            headers: &HeaderMap::new(),
            client: SENT.client,
            secure: false,
            account: Some(&key().hash(b"acme").into()),
            route: "all",
            captures: &Captures::default(),
            now: at(1),
        };
        matches!(used.matching(&attributes, || None), LimitMatch::Exempt)
    };
    assert!(used(&limit));
    limit = added(limit, "acme", None).unwrap();
    assert!(!used(&limit));
}

#[test]
fn a_number_stands_for_the_name_in_bucket_keys() {
    let limit = limit(&["address"], &["10.0.0.0/8"]).with_id(6);
    assert_eq!(limit.name(), "L");
    assert_eq!(limit.bucket_of("10.0.0.1").unwrap().as_str(), "6:10.0.0.1");
    let overridden = limit.override_of("10.0.0.1", at(1)).unwrap();
    assert_eq!(overridden.unwrap().id, "10.0.0.0/8");
    let (key, id) = found(limit, &from("10.0.0.1"), at(1));
    assert_eq!(
        (key.as_str(), id.as_deref()),
        ("6:10.0.0.1", Some("10.0.0.0/8"))
    );
}

/// An account is known by the wildcards of all limits, of which each asks for its own.
#[test]
fn limits_do_not_mix_up_their_wildcards() {
    let ids = [("ac*", "acme"), ("*me", "a*"), ("b*", "*")];
    let limits = ids.map(|(one, other)| limit(&["account"], &[one, other]));
    let accounts = AccountRules {
        sources: vec![AccountSource::Header(KEY_HEADER)],
        key: key(),
        wildcards: AccountWildcards::from_limits(&limits),
        keeps_names: false,
    };
    let headers = HeaderMap::from_iter([(KEY_HEADER, HeaderValue::from_static("acmeme"))]);
    let account = accounts.account(&headers);
    let picked = limits.map(|limit| {
        let attributes = RequestAttributes {
            method: &Method::GET,
            uri: &Uri::from_static("/"),
            headers: &headers,
            client: SENT.client,
            secure: false,
            account: account.as_ref(),
            route: "all",
            captures: &Captures::default(),
            now: at(1),
        };
        let used = LimitUse::new(limit.into());
        match used.matching(&attributes, || None) {
            LimitMatch::Counted { overridden, .. } => {
                overridden.map(|overridden| overridden.id.clone())
            }
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(
        picked.each_ref().map(Option::as_deref),
        [Some("ac*"), Some("*me"), Some("*")]
    );
}

/// A limit that is overridden for `acme` by a burst of 2 in the configuration, and by the admin API
/// by a burst of 3 until then.
fn replaced(id: &str, until: Option<Timestamp>) -> Limit {
    let mut limit = limit(&["account"], &[id]);
    let by_api = Override {
        quota: quota(3),
        comment: None,
        id: id.to_owned(),
        until,
        origin: OverrideOrigin::AdminApi,
    };
    limit.add_override(by_api).unwrap();
    limit
}

#[test]
fn one_by_the_admin_api_takes_the_place_of_the_configurations_until_it_ends() {
    for id in ["acme", "ac*"] {
        let limit = replaced(id, Some(at(10)));
        let burst = |now| {
            let found = limit.override_of("acme", now).unwrap();
            found.map(|found| found.quota.burst().get())
        };
        assert_eq!(
            [at(0), at(9), at(10)].map(burst),
            [Some(3), Some(3), Some(2)]
        );
        let in_force = |now| {
            let mut all: Vec<_> = limit
                .overrides_at(now)
                .map(|(known, in_force)| (known.quota.burst().get(), in_force))
                .collect();
            all.sort_unstable();
            all
        };
        assert_eq!(in_force(at(9)), [(2, false), (3, true)]);
        assert_eq!(in_force(at(10)), [(2, true), (3, false)]);
    }
}

#[test]
fn nothing_else_takes_the_place_of_an_override() {
    let mut limit = replaced("acme", None);
    for origin in [OverrideOrigin::AdminApi, OverrideOrigin::Configuration] {
        let again = Override {
            quota: quota(4),
            comment: None,
            id: "acme".to_owned(),
            until: None,
            origin,
        };
        let error = limit.add_override(again).unwrap_err();
        assert!(matches!(error, IdError::Duplicate { .. }), "{error}");
    }
    let found = limit.override_of("acme", at(0)).unwrap().unwrap();
    assert_eq!(found.quota.burst().get(), 3);
}
