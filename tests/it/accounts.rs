//! Who an account is: a header, a bearer token, a cookie, or a claim that is verified.

use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use crate::support::*;

pub(crate) const SECRET: &str = "correct horse battery staple and then some";

/// One request per account; who names none is refused.
fn start(upstream: &Upstream, sources: &str) -> Gateway {
    Setup::before(upstream)
        .limits(&["L: {per: account, missing: deny, burst: 1, count: 1, period: 1h}"])
        .limited_by("L")
        .key(&format!("account: {sources}"))
        .file("jwt.key", &format!("{SECRET}\n"))
        .start()
}

fn bearer(token: &str) -> Request {
    get("/").with("authorization", &format!("Bearer {token}"))
}

pub(crate) fn token(claims: &Value, secret: &str, algorithm: Algorithm) -> String {
    let key = EncodingKey::from_secret(secret.as_bytes());
    encode(&Header::new(algorithm), claims, &key).expect("a token")
}

pub(crate) fn in_an_hour() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_secs() + 3600
}

fn statuses(gateway: &Gateway, requests: &[Request]) -> Vec<u16> {
    let send = |request| gateway.send(request).status;
    requests.iter().map(send).collect()
}

#[test]
fn the_first_source_that_yields_a_value_names_the_account() {
    let upstream = Upstream::start();
    let gateway = start(
        &upstream,
        "[header: x-api-key, bearer: {}, cookie: session]",
    );
    let key = get("/").with("x-api-key", "red");
    let with_all = key
        .clone()
        .with("authorization", "Bearer blue")
        .with("cookie", "session=green");
    let cookie = get("/").with("cookie", "a=b; session=green");
    let requests = [
        with_all,
        key,
        bearer("blue"),
        bearer("blue"),
        cookie.clone(),
        cookie,
        get("/"),
        get("/").with("authorization", "Basic Ymx1ZQ=="),
    ];
    let expected = [200, 429, 200, 429, 200, 429, 403, 403];
    assert_eq!(statuses(&gateway, &requests), expected);
}

#[test]
fn a_verified_claim_names_the_account_and_a_token_that_is_not_verified_names_none() {
    let upstream = Upstream::start();
    let gateway = start(
        &upstream,
        "[jwt: {claim: sub, secret: {file: jwt.key}, issuer: \"https://id.example.com\"}]",
    );
    let claims = |subject: &str, expires: u64| json!({"sub": subject, "exp": expires, "iss": "https://id.example.com"});
    let good = |subject| token(&claims(subject, in_an_hour()), SECRET, Algorithm::HS256);
    // Another token for the same subject is the same account.
    let again = token(&claims("red", in_an_hour() + 60), SECRET, Algorithm::HS256);
    let requests = [bearer(&good("red")), bearer(&again), bearer(&good("blue"))];
    assert_eq!(statuses(&gateway, &requests), [200, 429, 200]);

    let tampered = {
        let (mine, theirs) = (good("green"), good("victim"));
        let parts: Vec<_> = mine.split('.').collect();
        let payload = theirs.split('.').nth(1).unwrap();
        format!("{}.{payload}.{}", parts[0], parts[2])
    };
    let unsigned = {
        let parts = good("green");
        let payload = parts.split('.').nth(1).unwrap();
        // {"alg":"none","typ":"JWT"}
        format!("eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{payload}.")
    };
    let foreign = json!({"sub": "green", "exp": in_an_hour(), "iss": "https://evil.example"});
    let bad = [
        tampered,
        unsigned,
        token(&claims("green", 1_000_000_000), SECRET, Algorithm::HS256),
        token(
            &claims("green", in_an_hour()),
            "another secret of 32 bytes or more",
            Algorithm::HS256,
        ),
        token(&claims("green", in_an_hour()), SECRET, Algorithm::HS512),
        token(&foreign, SECRET, Algorithm::HS256),
        "not.a.token".to_owned(),
    ];
    for token in bad {
        assert_eq!(gateway.send(&bearer(&token)).status, 403, "{token}");
    }
    assert_eq!(upstream.count(), 2);
}

#[test]
fn what_names_an_account_is_forwarded_but_never_logged() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "[bearer: {}]");
    gateway.send(&bearer("sesame"));
    assert_eq!(upstream.last().lines("authorization"), ["Bearer sesame"]);
    let line = gateway.logged("/");
    let account = line["account"].as_str().expect("a hash");
    assert_eq!(account.len(), 32);
    assert!(!gateway.log_text().contains("sesame"));
    assert!(!gateway.metrics().contains(account));
}

#[test]
fn what_names_an_account_is_logged_where_the_operator_wants_it_and_a_reload_ends_that() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .key("account: [header: x-account]")
        .key("log: {account: plain}")
        .start();
    let logged = |path: &str| {
        gateway.send(&get(path).with("x-account", "acme"));
        gateway.logged(path)["account"].clone()
    };
    assert_eq!(logged("/one"), "acme");
    let text = gateway.read("gateway.yaml");
    gateway.write(
        "gateway.yaml",
        &text.replace("account: plain", "account: hash"),
    );
    gateway.reload();
    assert_eq!(logged("/two").as_str().map(str::len), Some(32));
}
