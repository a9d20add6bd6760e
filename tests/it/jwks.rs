//! Key sets that are fetched: from a server that rotates its keys, fails, and comes back.

use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Response;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::json;

use crate::accounts::in_an_hour;
use crate::support::tls::Certificate;
use crate::support::upstream::{full, text};
use crate::support::*;

/// What the server of keys answers: keys of these ids, or 500.
type Answer = Arc<Mutex<Option<Vec<&'static str>>>>;

struct Issuer {
    server: Upstream,
    certificate: Certificate,
    answer: Answer,
}

fn secret(id: &str) -> String {
    format!("{id}: a secret of thirty-two bytes or more")
}

impl Issuer {
    fn start(answer: Option<Vec<&'static str>>) -> Self {
        let certificate = Certificate::of("localhost");
        let answer = Answer::new(Mutex::new(answer));
        let current = Arc::clone(&answer);
        let entrance = Entrance::Tls(certificate.server(&["http/1.1"], None));
        let server = Upstream::behind(entrance, move |_| {
            let current = current.lock().unwrap();
            let Some(ids) = current.as_ref() else {
                let failed = Response::builder().status(500);
                return failed.body(full("not now")).unwrap();
            };
            let key = |id: &&str| {
                let value = URL_SAFE_NO_PAD.encode(secret(id));
                json!({"kty": "oct", "kid": id, "alg": "HS256", "k": value})
            };
            let keys: Vec<_> = ids.iter().map(key).collect();
            text(&json!({ "keys": keys }).to_string())
        });
        Self {
            server,
            certificate,
            answer,
        }
    }

    fn answers(&self, answer: Option<Vec<&'static str>>) {
        *self.answer.lock().unwrap() = answer;
    }

    /// A gateway that refuses those without an account, and fetches keys each second.
    fn gateway(&self, upstream: &Upstream, max_stale: &str) -> Gateway {
        let port = self.server.address().port();
        let jwks = format!(
            "{{url: \"https://localhost:{port}/keys\", ca: ca.pem, refresh: 1s, \
             max_stale: {max_stale}}}"
        );
        Setup::before(upstream)
            .file("ca.pem", &self.certificate.certificate)
            .key(&format!(
                "account: [jwt: {{jwks: {jwks}, algorithms: [HS256]}}]"
            ))
            .limits(&["L: {per: account, missing: deny, burst: 100000, count: 1, period: 1h}"])
            .limited_by("L")
            .start()
    }
}

/// The status of a request with a token that this key has signed.
fn status(gateway: &Gateway, id: &str) -> u16 {
    let mut header = Header::new(Algorithm::HS256);
    header.kid = Some(id.to_owned());
    let key = EncodingKey::from_secret(secret(id).as_bytes());
    let claims = json!({"sub": "red", "exp": in_an_hour()});
    let token = encode(&header, &claims, &key).unwrap();
    let request = get("/").with("authorization", &format!("Bearer {token}"));
    gateway.send(&request).status
}

fn becomes(gateway: &Gateway, id: &str, expected: u16) {
    eventually(&format!("{expected} with key {id}"), || {
        (status(gateway, id) == expected).then_some(())
    });
}

fn ready(gateway: &Gateway) -> u16 {
    gateway.admin(&get("/readyz")).status
}

#[test]
fn tokens_are_verified_with_the_keys_that_the_issuer_has_now() {
    let (upstream, issuer) = (Upstream::start(), Issuer::start(Some(vec!["one"])));
    let gateway = issuer.gateway(&upstream, "1h");
    becomes(&gateway, "one", 200);
    assert_eq!(status(&gateway, "two"), 403);
    assert_eq!(ready(&gateway), 200);
    let request = issuer.server.last();
    assert_eq!(
        request.lines("host"),
        [format!("localhost:{}", issuer.server.address().port())]
    );
    issuer.answers(Some(vec!["two"]));
    becomes(&gateway, "two", 200);
    assert_eq!(status(&gateway, "one"), 403);
}

#[test]
fn a_gateway_starts_without_its_issuer_and_says_so() {
    let (upstream, issuer) = (Upstream::start(), Issuer::start(None));
    let gateway = issuer.gateway(&upstream, "1h");
    gateway.logs("a key set cannot be fetched", 1);
    assert_eq!(status(&gateway, "one"), 403);
    assert_eq!(ready(&gateway), 503);
    issuer.answers(Some(vec!["one"]));
    becomes(&gateway, "one", 200);
    assert_eq!(ready(&gateway), 200);
}

#[test]
fn keys_outlive_an_outage_of_their_issuer_and_a_reload_but_not_for_ever() {
    let (upstream, issuer) = (Upstream::start(), Issuer::start(Some(vec!["one"])));
    let gateway = issuer.gateway(&upstream, "1h");
    becomes(&gateway, "one", 200);
    issuer.answers(None);
    let port = issuer.server.address().port();
    let failures = format!(
        "weir_jwks_fetches_total{{url=\"https://localhost:{port}/keys\",outcome=\"failure\"}}"
    );
    eventually("a failure", || {
        gateway.metric(&failures).filter(|count| *count > 0.0)
    });
    assert_eq!(status(&gateway, "one"), 200);
    let text = gateway.read("gateway.yaml");
    gateway.write("gateway.yaml", &format!("{text}\ngrace: 29s\n"));
    gateway.reload();
    assert_eq!(status(&gateway, "one"), 200);

    gateway.write(
        "gateway.yaml",
        &text.replace("max_stale: 1h", "max_stale: 1s"),
    );
    gateway.reload();
    issuer.answers(Some(vec!["one"]));
    becomes(&gateway, "one", 200);
    issuer.answers(None);
    becomes(&gateway, "one", 403);
    gateway.logs("a key set is too old", 1);
    assert_eq!(ready(&gateway), 200, "others could not do better");
}
