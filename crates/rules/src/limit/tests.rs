//! Subjects of requests, and overrides by id.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use proptest::prelude::*;

use super::*;
use crate::{Account, Captures, LimitMatch, LimitUse};

const NOW: Timestamp = Timestamp::from_nanos(1_000);

/// A request, as its parts are given to limits.
struct Request {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    client: IpAddr,
    account: Option<Account>,
    captures: Captures,
}

impl Request {
    fn new() -> Self {
        Self {
            method: Method::POST,
            uri: "http://App.example.co.uk:80/teams/red?key=a%20b"
                .parse()
                .unwrap(),
            headers: HeaderMap::from_iter([
                header("x-api-key", "acme"),
                header("cookie", "session=s1"),
            ]),
            client: "2001:db8::1:2".parse().unwrap(),
            account: Some(key().hash(b"acme").into()),
            captures: Captures::from_iter([("team", "red:team")]),
        }
    }

    fn attributes(&self) -> RequestAttributes<'_> {
        RequestAttributes {
            method: &self.method,
            uri: &self.uri,
            headers: &self.headers,
            client: self.client,
            secure: false,
            account: self.account.as_ref(),
            route: "login",
            captures: &self.captures,
            now: NOW,
        }
    }
}

fn header(name: &'static str, value: &'static str) -> (HeaderName, HeaderValue) {
    (
        HeaderName::from_static(name),
        HeaderValue::from_static(value),
    )
}

fn key() -> HashKey {
    HashKey::from_bytes(&[7; 16]).unwrap()
}

fn quota(burst: u64) -> Quota {
    Quota::new(burst, 1, Duration::from_secs(1)).unwrap()
}

fn limit(per: &[&str], missing: Missing) -> Limit {
    let per = per.iter().map(|text| KeySource::parse(text, 64).unwrap());
    Limit::new("L", per.collect(), quota(1), missing, key()).unwrap()
}

fn with_override(per: &[&str], id: &str) -> Result<Limit, IdError> {
    let mut limit = limit(per, Missing::Skip);
    limit.add_override(overriding(id, 500)).map(|()| limit)
}

fn overriding(id: &str, burst: u64) -> Override {
    Override {
        quota: quota(burst),
        comment: None,
        id: id.to_owned(),
        until: None,
        origin: crate::OverrideOrigin::Configuration,
    }
}

fn used(limit: Limit) -> LimitUse {
    LimitUse::new(Arc::new(limit))
}

/// The bucket key of a request, or what became of it instead.
fn counted(limit: Limit, request: &Request) -> String {
    match used(limit).matching(&request.attributes(), || None) {
        LimitMatch::Counted { admission, .. } => admission.transaction.key.to_string(),
        other => format!("{other:?}"),
    }
}

fn subject(per: &[&str]) -> String {
    counted(limit(per, Missing::Skip), &Request::new())
}

fn hash(secret: &str) -> String {
    key().hash(secret.as_bytes()).to_string()
}

fn is_overridden(per: &[&str], id: &str) -> bool {
    let limit = used(with_override(per, id).unwrap());
    let request = Request::new();
    match limit.matching(&request.attributes(), || None) {
        LimitMatch::Counted {
            admission,
            overridden,
        } => overridden.is_some() && admission.transaction.quota == quota(500),
        other => panic!("{other:?}"),
    }
}

/// `Host: :80` and `Host: .` name no host and yet reach the upstream; counted per host they passed
/// every limit.
#[test]
fn a_request_that_names_no_host_is_counted_like_any_other() {
    let nameless = |host: Option<&'static str>| {
        let mut request = Request::new();
        request.uri = Uri::from_static("/");
        let host = host.map(HeaderValue::from_static);
        request
            .headers
            .extend(host.map(|host| (http::header::HOST, host)));
        let limit = limit(&["address", "host"], Missing::Skip);
        limit.bucket(&request.attributes()).unwrap().to_string()
    };
    let of_no_host = "L:[2001:db8::/64]:";
    for host in [None, Some(":80"), Some("."), Some("\t")] {
        assert_eq!(nameless(host), of_no_host, "{host:?}");
    }
    assert_eq!(nameless(Some("a")), format!("{of_no_host}a"));
    let domain = limit(&["domain"], Missing::Deny);
    let request = Request {
        uri: Uri::from_static("/"),
        ..Request::new()
    };
    assert_eq!(domain.bucket(&request.attributes()).unwrap().as_str(), "L:");
}

#[test]
fn each_source_gives_its_part() {
    assert_eq!(subject(&["address"]), "L:2001:db8::/64");
    assert_eq!(subject(&["address/128"]), "L:2001:db8::1:2");
    assert_eq!(subject(&["account"]), format!("L:{}", hash("acme")));
    assert_eq!(subject(&["host"]), "L:app.example.co.uk");
    assert_eq!(subject(&["domain"]), "L:example.co.uk");
    assert_eq!(subject(&["method"]), "L:POST");
    assert_eq!(subject(&["route"]), "L:login");
    assert_eq!(
        subject(&["header:x-api-key"]),
        format!("L:{}", hash("acme"))
    );
    assert_eq!(subject(&["cookie:session"]), format!("L:{}", hash("s1")));
    assert_eq!(subject(&["query:key"]), format!("L:{}", hash("a b")));
    assert_eq!(subject(&["path:team"]), "L:red%3Ateam");
    assert_eq!(subject(&["global"]), "L:*");
    assert_eq!(subject(&[]), "L:*");
}

#[test]
fn parts_are_joined_by_colons_with_ipv6_in_brackets() {
    assert_eq!(
        subject(&["address", "path:team", "method"]),
        "L:[2001:db8::/64]:red%3Ateam:POST"
    );
}

#[test]
fn a_request_without_a_value_is_skipped_or_denied() {
    let limit_use = |missing| used(limit(&["address", "header:x-none"], missing));
    let request = Request::new();
    let absent = KeySource::parse("header:x-none", 64).unwrap();
    let (skip, deny) = (limit_use(Missing::Skip), limit_use(Missing::Deny));
    assert_eq!(
        skip.matching(&request.attributes(), || None),
        LimitMatch::Skipped(&absent)
    );
    assert_eq!(
        deny.matching(&request.attributes(), || None),
        LimitMatch::Missing {
            source: &absent,
            acts: true
        }
    );
}

/// A hash that was copied from the log to an override or to the admin listener was answered about
/// an account of that name.
#[test]
fn an_id_may_be_a_hash_as_the_log_shows_it() {
    let id = |name: &str| format!("hash:{}", hash(name));
    for (per, id) in [
        (&["account"][..], id("acme")),
        (&["header:x-api-key"], id("acme")),
        (&["cookie:session"], id("s1")),
        (&["query:key"], id("a b")),
        (&["account", "method"], format!("{}:POST", id("acme"))),
        (&["method", "account"], format!("POST:{}", id("acme"))),
        (
            &["account", "method"],
            format!("{}:POST", id("acme").replace(':', "%3A")),
        ),
    ] {
        assert!(is_overridden(per, &id), "{per:?} {id}");
    }
    assert!(!is_overridden(&["account"], &hash("acme")));
    let limit = limit(&["account"], Missing::Skip);
    let bucket = |id: &str| limit.bucket_of(id).map(|key| key.to_string());
    assert_eq!(bucket(&id("acme")), bucket("acme"));
    assert_eq!(
        bucket("hash:510e"),
        Err(IdError::NotAHash("hash:510e".to_owned()))
    );
}

#[test]
fn an_id_that_looks_like_a_hash_is_doubted_and_so_are_wildcards_behind_one() {
    let bare = hash("acme");
    let plain = limit(&["account", "method"], Missing::Skip);
    let looks = Some(IdWarning::LooksHashed(bare.clone()));
    assert_eq!(plain.id_warning(&format!("{bare}:POST")), looks);
    assert_eq!(
        plain.id_warning(&format!("{}:POST", bare.to_uppercase())),
        looks
    );
    assert_eq!(plain.id_warning("acme:POST"), None);
    assert_eq!(plain.id_warning(&format!("hash:{bare}:POST")), None);
    let hosts = limit(&["host"], Missing::Skip);
    assert_eq!(hosts.id_warning(&bare), None);
    let wild = with_override(&["account"], "ac*").unwrap();
    assert_eq!(
        wild.id_warning(&format!("hash:{bare}")),
        Some(IdWarning::Wildcards)
    );
    assert_eq!(wild.id_warning("acme"), None);
    // The override is for a name that is not known here, even if its hash begins like that.
    let wild = with_override(&["account"], "h*").unwrap();
    let found = wild
        .override_of(&format!("hash:{bare}"), Timestamp::from_nanos(1))
        .unwrap();
    assert_eq!(found, None);
}

#[test]
fn an_override_applies_to_its_id_in_every_form() {
    for (per, id) in [
        (&["address"][..], "2001:db8::/64"),
        (&["address/128"], "2001:db8::1:2"),
        (&["account"], "acme"),
        (&["host"], "app.example.co.uk"),
        (&["domain"], "example.co.uk"),
        (&["method"], "POST"),
        (&["route"], "login"),
        (&["header:x-api-key"], "acme"),
        (&["cookie:session"], "s1"),
        (&["query:key"], "a b"),
        (&["path:team"], "red:team"),
        (&["global"], "*"),
        (&["address", "account"], "[2001:db8::/64]:acme"),
        (
            &["path:team", "method", "query:key"],
            "red%3Ateam:POST:a%20b",
        ),
    ] {
        assert!(is_overridden(per, id), "{per:?} {id}");
    }
}

#[test]
fn an_id_names_the_bucket_that_its_requests_take_from() {
    for (per, id) in [
        (&["account"][..], "acme"),
        (&["address"], "2001:db8::/64"),
        (
            &["path:team", "method", "query:key"],
            "red%3Ateam:POST:a%20b",
        ),
    ] {
        let limit = limit(per, Missing::Skip);
        let bucket = limit.bucket_of(id).unwrap();
        assert_eq!(bucket.to_string(), subject(per), "{per:?} {id}");
    }
    let other = limit(&["address"], Missing::Skip).bucket_of("2001:db8::1");
    assert!(
        matches!(other, Err(IdError::NotCanonical { .. })),
        "{other:?}"
    );
}

/// An operator who sees a bucket and asks for it must not get another.
#[test]
fn the_id_of_a_bucket_names_that_bucket_again() {
    for per in [
        &["account"][..],
        &["address"],
        &["global"],
        &["path:team"],
        &["route"],
        &["host"],
        &["query:key"],
        &["address", "account"],
        &["path:team", "method", "query:key"],
    ] {
        let limit = limit(per, Missing::Skip);
        let bucket = subject(per);
        let id = limit.id_of(&bucket);
        let again = limit.bucket_of(&id).unwrap();
        assert_eq!(again.to_string(), bucket, "{per:?} {id}");
    }
}

#[test]
fn an_override_applies_to_no_other_id() {
    assert!(!is_overridden(&["account"], "acme2"));
    assert!(!is_overridden(&["address"], "2001:db8:0:1::/64"));
    assert!(!is_overridden(&["address", "account"], "203.0.113.9:acme"));
}

#[test]
fn an_id_in_another_form_is_told_the_right_one() {
    for (per, id, help) in [
        (
            &["address/128"][..],
            "2001:0db8:0000::1",
            "write \"2001:db8::1\"",
        ),
        (&["address/128"], "2001:DB8::1", "write \"2001:db8::1\""),
        (&["address"], "2001:db8::1", "write \"2001:db8::/64\""),
        (&["address"], "2001:db8::1/64", "write \"2001:db8::/64\""),
        (
            &["address"],
            "2001:db8::/80",
            "counts address/64; write \"2001:db8::/64\"",
        ),
        (
            &["address"],
            "[2001:db8::/64]",
            "such as 203.0.113.9 or 2001:db8::/64",
        ),
        (&["address"], "::ffff:203.0.113.9", "write \"203.0.113.9\""),
        (&["address"], "::ffff:10.0.0.0/104", "write \"10.0.0.0/8\""),
        (
            &["address"],
            "64:ff9b::203.0.113.9",
            "write \"203.0.113.9\"",
        ),
        (
            &["address"],
            "64:ff9b::10.0.0.0/104",
            "write \"10.0.0.0/8\"",
        ),
        (
            &["address"],
            "64:ff9b::/96",
            "stands for all IPv4 addresses",
        ),
        (
            &["address"],
            "64:ff9b::/64",
            "stands for all IPv4 addresses",
        ),
        (
            &["address/32/128"],
            "64:ff9b::/96",
            "stands for all IPv4 addresses",
        ),
        (
            &["address", "method"],
            "[64:ff9b::203.0.113.9]:GET",
            "write \"203.0.113.9\"",
        ),
        (&["address"], "::203.0.113.9", "write \"203.0.113.9\""),
        (&["address"], "::ffff:10.0.0.9/128", "write \"10.0.0.9\""),
        (&["address"], "203.0.113.9/32", "write \"203.0.113.9\""),
        (
            &["address/24/64"],
            "203.0.113.9",
            "write \"203.0.113.0/24\"",
        ),
        (
            &["address"],
            "localhost",
            "such as 203.0.113.9 or 2001:db8::/64",
        ),
        (&["host"], "App.example.com", "write \"app.example.com\""),
        (&["host"], "app.example.com:80", "without scheme, port"),
        (&["domain"], "www.example.co.uk", "write \"example.co.uk\""),
        (&["method"], "post", "write \"POST\""),
        (&["method"], "PROPFIND", "or other"),
        (&["path:team"], "a/b", "write \"a%2Fb\""),
        (&["path:team"], "r%65d", "write \"red\""),
        (&["account", "path:team"], "x:a/b", "write \"a%252Fb\""),
        (&["account", "path:team"], "*:a/b*", "write \"a%252Fb*\""),
        (&["path:team", "account"], "a%3A/ :x", "write \"a%3A/\""),
        (&["account"], " acme", "write \"acme\""),
        (&["account"], "", "ACCOUNT"),
        (&["account"], " ", "the id is empty; write it as ACCOUNT"),
        (&["global"], "all", "change the limit itself"),
        (
            &["address", "account"],
            "acme",
            "write one such as 203.0.113.9 or [2001:db8::/64]",
        ),
        (
            &["address", "account"],
            "203.0.113.9:",
            "203.0.113.9 or [2001:db8::/64]:ACCOUNT",
        ),
        (
            &["account", "method"],
            "a:b:GET",
            "write it as ACCOUNT:POST",
        ),
        (&["account", "method"], "%ff:GET", "write \"%25ff\""),
    ] {
        let said = with_override(per, id).unwrap_err().to_string();
        assert!(said.contains(help), "{per:?} {id:?}: {said}");
    }
}

/// Within an id of several parts, what stood behind `write` was the value itself, which is refused
/// again.
#[test]
fn what_is_told_to_write_in_a_part_is_accepted() {
    for id in ["x:a%252Fb", "*:a%252Fb*"] {
        assert!(with_override(&["account", "path:team"], id).is_ok(), "{id}");
    }
}

#[test]
fn a_subject_is_overridden_only_once() {
    let mut limit = with_override(&["account", "method"], "a%3Ab:GET").unwrap();
    let again = overriding("%61%3ab:GET", 2);
    let error = limit.add_override(again).unwrap_err();
    assert!(error.to_string().contains("\"a%3Ab:GET\""), "{error}");
}

#[test]
fn names_that_would_break_headers_or_keys_are_refused() {
    let named = |name: &str| Limit::new(name, Vec::new(), quota(1), Missing::Skip, key());
    assert_eq!(
        named("Requests.Per-Address_2").unwrap().name(),
        "Requests.Per-Address_2"
    );
    assert!(named(&"x".repeat(64)).is_ok());
    assert_eq!(named("").unwrap_err(), LimitNameError::Empty);
    assert_eq!(
        named(&"x".repeat(65)).unwrap_err(),
        LimitNameError::TooLong(65)
    );
    for bad in ['"', '\\', ':', '\n', '\u{e9}'] {
        let error = named(&format!("a{bad}")).unwrap_err();
        assert_eq!(error, LimitNameError::Character(bad));
    }
}

#[test]
fn the_parts_of_a_subject_can_be_explained() {
    let limit = limit(&["address", "account", "query:x"], Missing::Skip);
    let request = Request::new();
    let parts: Vec<_> = limit
        .parts(&request.attributes())
        .into_iter()
        .map(|(source, value)| (source.to_string(), value))
        .collect();
    assert_eq!(
        parts,
        [
            ("address/64".to_owned(), Some("[2001:db8::/64]".to_owned())),
            ("account".to_owned(), Some(hash("acme"))),
            ("query:x".to_owned(), None),
        ]
    );
}

/// What a made-up request is told apart by.
fn distinct() -> impl Strategy<Value = (String, String, u128)> {
    let text = "[a:%#\\[\\]]{1,3}";
    (text, text, 0u128..4)
}

fn made_up((team, id, client): &(String, String, u128)) -> String {
    let mut request = Request::new();
    request.captures = Captures::from_iter([("team", team.as_str()), ("id", id.as_str())]);
    request.client = IpAddr::V6((client << 64).into());
    let limit = limit(&["path:team", "address", "path:id"], Missing::Skip);
    counted(limit, &request)
}

proptest! {
    #[test]
    fn different_subjects_never_share_a_key(one in distinct(), other in distinct()) {
        prop_assert_eq!(one == other, made_up(&one) == made_up(&other));
    }

    #[test]
    fn no_id_is_too_odd_to_be_refused_in_order(id in "([a:%/\\[\\]0-9.]|\\PC){0,20}") {
        for per in [&["address"][..], &["host", "address"], &["account", "path:x"], &["domain"]] {
            let _ = with_override(per, &id);
        }
    }

    #[test]
    fn the_key_of_any_account_is_that_of_its_override(name in "\\PC{1,20}") {
        prop_assume!(name.trim() == name);
        let mut request = Request::new();
        request.account = Some(key().hash(name.as_bytes()).into());
        let id = name.replace('*', "\\*");
        let limit = with_override(&["account"], &id).unwrap();
        let limit = used(limit);
        let found = limit.matching(&request.attributes(), || None);
        let is_overridden = matches!(found, LimitMatch::Counted { overridden: Some(_), .. });
        prop_assert!(is_overridden);
    }
}
