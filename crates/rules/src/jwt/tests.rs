//! Tokens that name an account, and those that must not.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use jsonwebtoken::jwk::{Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, get_current_timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Jwt, JwtAlgorithm, JwtError, JwtKeys};

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

fn rsa() -> EncodingKey {
    EncodingKey::from_rsa_pem(include_bytes!("testdata/rsa.pem")).unwrap()
}

fn ec() -> EncodingKey {
    EncodingKey::from_ec_pem(include_bytes!("testdata/ec.pem")).unwrap()
}

fn ed() -> EncodingKey {
    EncodingKey::from_ed_pem(include_bytes!("testdata/ed25519.pem")).unwrap()
}

fn jwk(key: &EncodingKey, algorithm: Algorithm, id: &str) -> Jwk {
    let mut jwk = Jwk::from_encoding_key(key, algorithm).unwrap();
    jwk.common.key_id = (!id.is_empty()).then(|| id.to_owned());
    jwk
}

fn key_set(keys: Vec<Jwk>) -> JwtKeys {
    JwtKeys::jwks(&serde_json::to_string(&JwkSet { keys }).unwrap()).unwrap()
}

fn jwt(claim: &str, keys: JwtKeys, algorithms: &[JwtAlgorithm]) -> Jwt {
    Jwt::new(
        claim.to_owned(),
        keys,
        algorithms.to_vec(),
        None,
        None,
        header::AUTHORIZATION,
        Duration::ZERO,
    )
}

fn by_secret(claim: &str) -> Jwt {
    jwt(
        claim,
        JwtKeys::secret(SECRET).unwrap(),
        &[JwtAlgorithm::Hs256],
    )
}

fn sign(key: &EncodingKey, algorithm: Algorithm, kid: Option<&str>, claims: &Value) -> String {
    let mut header = Header::new(algorithm);
    header.kid = kid.map(str::to_owned);
    encode(&header, claims, key).unwrap()
}

fn hs256(claims: &Value) -> String {
    sign(
        &EncodingKey::from_secret(SECRET),
        Algorithm::HS256,
        None,
        claims,
    )
}

fn value(jwt: &Jwt, token: &str) -> Option<String> {
    let mut headers = HeaderMap::new();
    let credentials = HeaderValue::try_from(format!("Bearer {token}")).unwrap();
    headers.insert(header::AUTHORIZATION, credentials);
    jwt.value(&headers)
}

#[test]
fn a_token_of_each_algorithm_names_its_claim() {
    let keys = key_set(vec![
        jwk(&rsa(), Algorithm::RS256, "r"),
        jwk(&ec(), Algorithm::ES256, "e"),
        jwk(&ed(), Algorithm::EdDSA, "d"),
        jwk(&EncodingKey::from_secret(SECRET), Algorithm::HS256, "h"),
    ]);
    let jwt = jwt("sub", keys, &JwtAlgorithm::ALL);
    let claims = json!({"sub": "acme"});
    let tokens = [
        sign(&rsa(), Algorithm::RS256, Some("r"), &claims),
        sign(&ec(), Algorithm::ES256, Some("e"), &claims),
        sign(&ed(), Algorithm::EdDSA, Some("d"), &claims),
        hs256(&claims),
    ];
    for token in tokens {
        assert_eq!(value(&jwt, &token).as_deref(), Some("acme"), "{token}");
    }
}

#[test]
fn an_algorithm_that_is_not_allowed_verifies_nothing() {
    let keys = key_set(vec![jwk(&rsa(), Algorithm::RS256, "")]);
    let token = sign(&rsa(), Algorithm::RS256, None, &json!({"sub": "acme"}));
    assert_eq!(
        value(&jwt("sub", keys.clone(), &[JwtAlgorithm::Es256]), &token),
        None
    );
    let stronger = sign(&rsa(), Algorithm::RS512, None, &json!({"sub": "acme"}));
    assert_eq!(
        value(&jwt("sub", keys, &JwtAlgorithm::ALL), &stronger),
        None
    );
}

#[test]
fn a_public_key_is_never_taken_for_a_shared_secret() {
    let public = jwk(&rsa(), Algorithm::RS256, "r");
    let shown = serde_json::to_vec(&public).unwrap();
    let forged = sign(
        &EncodingKey::from_secret(&shown),
        Algorithm::HS256,
        Some("r"),
        &json!({"sub": "acme"}),
    );
    let jwt = jwt("sub", key_set(vec![public]), &JwtAlgorithm::ALL);
    assert_eq!(value(&jwt, &forged), None);
}

#[test]
fn a_token_without_signature_names_no_account() {
    // {"alg":"none"} and {"sub":"acme"}.
    let none = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhY21lIn0.";
    assert_eq!(value(&by_secret("sub"), none), None);
    let signed = hs256(&json!({"sub": "acme"}));
    let (unsigned, _) = signed.rsplit_once('.').unwrap();
    assert_eq!(value(&by_secret("sub"), &format!("{unsigned}.")), None);
    assert_eq!(value(&by_secret("sub"), unsigned), None);
}

#[test]
fn a_key_id_selects_the_key_and_none_tries_all() {
    let other = EncodingKey::from_secret(b"another secret of 32 or more bytes");
    let keys = key_set(vec![
        jwk(&other, Algorithm::HS256, "old"),
        jwk(&EncodingKey::from_secret(SECRET), Algorithm::HS256, "new"),
    ]);
    let jwt = jwt("sub", keys, &[JwtAlgorithm::Hs256]);
    let signed = |kid| {
        let key = EncodingKey::from_secret(SECRET);
        sign(&key, Algorithm::HS256, kid, &json!({"sub": "acme"}))
    };
    assert!(value(&jwt, &signed(Some("new"))).is_some());
    assert!(value(&jwt, &signed(None)).is_some());
    assert!(value(&jwt, &signed(Some("old"))).is_none());
}

#[test]
fn tokens_hold_between_their_times_only() {
    let now = get_current_timestamp();
    let named = |claims: Value| value(&by_secret("sub"), &hs256(&claims)).is_some();
    assert!(named(
        json!({"sub": "a", "exp": now + 1000, "nbf": now - 1000})
    ));
    assert!(!named(json!({"sub": "a", "exp": now - 1000})));
    assert!(!named(json!({"sub": "a", "nbf": now + 1000})));
    assert!(!named(json!({"sub": "a", "exp": "tomorrow"})));
    assert!(!named(json!({"sub": "a", "exp": -1})));
}

#[test]
fn the_greatest_leeway_is_a_day() {
    let mut forgiving = by_secret("sub");
    forgiving.validations = vec![(
        JwtAlgorithm::Hs256,
        super::validation(JwtAlgorithm::Hs256, &None, &None, Duration::MAX),
    )];
    let ended = |ago: u64| hs256(&json!({"sub": "a", "exp": get_current_timestamp() - ago}));
    assert!(value(&forgiving, &ended(80_000)).is_some());
    assert!(value(&forgiving, &ended(100_000)).is_none());
}

#[test]
fn a_configured_issuer_and_audience_must_be_in_the_token() {
    let strict = Jwt::new(
        "sub".to_owned(),
        JwtKeys::secret(SECRET).unwrap(),
        vec![JwtAlgorithm::Hs256],
        Some("me".to_owned()),
        Some("api".to_owned()),
        header::AUTHORIZATION,
        Duration::ZERO,
    );
    let named = |claims: Value| value(&strict, &hs256(&claims)).is_some();
    assert!(named(json!({"sub": "a", "iss": "me", "aud": "api"})));
    assert!(named(json!({"sub": "a", "iss": "me", "aud": ["x", "api"]})));
    assert!(!named(json!({"sub": "a", "iss": "me"})));
    assert!(!named(json!({"sub": "a", "aud": "api"})));
    assert!(!named(json!({"sub": "a", "iss": 7, "aud": "api"})));
    assert!(!named(json!({"sub": "a", "iss": "you", "aud": "api"})));
    let loose = value(
        &by_secret("sub"),
        &hs256(&json!({"sub": "a", "aud": "api"})),
    );
    assert!(loose.is_some());
}

#[test]
fn a_claim_is_a_string_or_a_whole_number_and_may_be_nested() {
    let claims = json!({
        "id": 42, "half": 1.5, "empty": "", "list": ["a"], "yes": true,
        "realm": {"id": "r"}, "https://acme.example/id": "url",
    });
    let named = |claim: &str| value(&by_secret(claim), &hs256(&claims));
    assert_eq!(named("id").as_deref(), Some("42"));
    assert_eq!(named("realm.id").as_deref(), Some("r"));
    assert_eq!(named("https://acme.example/id").as_deref(), Some("url"));
    for claim in [
        "half", "empty", "list", "yes", "realm", "realm.x", "id.x", "none", "",
    ] {
        assert_eq!(named(claim), None, "{claim}");
    }
}

#[test]
fn extensions_that_are_critical_are_not_understood() {
    let mut header = Header::new(Algorithm::HS256);
    header.crit = Some(vec!["b64".to_owned()]);
    let key = EncodingKey::from_secret(SECRET);
    let token = encode(&header, &json!({"sub": "acme"}), &key).unwrap();
    assert_eq!(value(&by_secret("sub"), &token), None);
}

#[test]
fn other_headers_carry_the_token_with_or_without_bearer() {
    let name = HeaderName::from_static("x-token");
    let mut jwt = by_secret("sub");
    jwt.header = name.clone();
    let token = hs256(&json!({"sub": "acme"}));
    for text in [token.clone(), format!("bearer {token}")] {
        let headers = HeaderMap::from_iter([(name.clone(), text.try_into().unwrap())]);
        assert_eq!(jwt.value(&headers).as_deref(), Some("acme"));
    }
}

#[test]
fn keys_that_cannot_verify_are_refused_with_what_would_do() {
    assert_eq!(
        JwtKeys::secret(b"short").unwrap_err(),
        JwtError::ShortSecret(5)
    );
    assert_eq!(
        JwtKeys::jwks("{\n  \"keys\": 5}").unwrap_err(),
        JwtError::Malformed {
            line: 2,
            column: 11
        }
    );
    let short = EncodingKey::from_secret(b"short");
    let mut encryption = jwk(&ec(), Algorithm::ES256, "");
    encryption.common.public_key_use = Some(PublicKeyUse::Encryption);
    let keys = vec![jwk(&short, Algorithm::HS256, ""), encryption];
    let set = serde_json::to_string(&JwkSet { keys }).unwrap();
    assert_eq!(JwtKeys::jwks(&set).unwrap_err(), JwtError::NoUsableKey(2));
}

/// A key of another curve, or with less of a point than the curve has, verifies nothing.
#[test]
fn public_keys_that_are_cut_or_of_another_curve_are_not_taken() {
    let set = |key: &Value| JwtKeys::jwks(&json!({ "keys": [key] }).to_string());
    let ec = json!(jwk(&ec(), Algorithm::ES256, ""));
    let ed = json!(jwk(&ed(), Algorithm::EdDSA, ""));
    for (whole, changes) in [
        (
            &ec,
            &[("crv", "P-384"), ("x", "AAAA"), ("y", "AAAA")] as &[(&str, &str)],
        ),
        (&ed, &[("x", "AAAA")]),
    ] {
        assert!(set(whole).is_ok());
        for (name, value) in changes {
            let mut cut = whole.clone();
            cut[*name] = json!(value);
            assert_eq!(set(&cut).unwrap_err(), JwtError::NoUsableKey(1), "{cut}");
        }
    }
}

#[test]
fn debug_shows_no_secret() {
    let shown = format!("{:?}", by_secret("sub"));
    assert!(
        !shown.contains("0123456789") && !shown.contains("48, 49, 50"),
        "{shown}"
    );
}

proptest! {
    #[test]
    fn arbitrary_tokens_are_survived_and_name_no_account(
        token in "[\\x20-\\x7e]{0,80}|[A-Za-z0-9_-]{0,40}(\\.[A-Za-z0-9_-]{0,40}){0,3}"
    ) {
        prop_assert_eq!(value(&by_secret("sub"), &token), None);
    }
}
