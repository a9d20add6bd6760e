//! The challenges of ACME servers, which verify that this gateway serves a name.
//!
//! `http-01` (RFC 8555, section 8.3) asks by HTTP for the key authorization of a token.
//! `tls-alpn-01` (RFC 8737) shakes hands, and looks at the certificate: no request follows, so none
//! of these connections reaches HTTP.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use http::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http_body_util::Full;
use parking_lot::Mutex;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::ClientHello;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use thiserror::Error;
use weir_http::request::HttpRequest;

/// The ALPN protocol of `tls-alpn-01`.
const ACME_TLS: &[u8] = b"acme-tls/1";

/// Where `http-01` asks for a token.
const WELL_KNOWN: &str = "/.well-known/acme-challenge/";

/// How long a SHA-256 digest is.
const DIGEST_BYTES: usize = 32;

/// The challenges that wait for an answer, on all listeners. Clones are the same ones.
#[derive(Clone, Debug, Default)]
pub struct Challenges(Arc<ChallengeTable>);

#[derive(Debug, Default)]
struct ChallengeTable {
    in_use: AtomicBool,
    /// The length of `waiting`, to be read without the lock.
    count: AtomicUsize,
    waiting: Mutex<Vec<Arc<PendingChallenge>>>,
}

/// A challenge of an ACME server.
#[derive(Clone)]
pub enum Challenge {
    /// A request for the token gets the key authorization.
    Http01 {
        /// The token in the request's path.
        token: String,
        /// The token and the thumbprint of the account's key (RFC 8555, section 8.1).
        key_authorization: String,
    },
    /// A handshake for the domain is shown the digest of the key authorization.
    TlsAlpn01 {
        /// The SNI of the handshake.
        domain: String,
        /// The content of the certificate's extension.
        digest: Vec<u8>,
    },
}

enum PendingChallenge {
    Http {
        token: String,
        answer: Bytes,
    },
    Tls {
        domain: String,
        config: Arc<ServerConfig>,
    },
}

/// It holds secrets until it is answered.
impl fmt::Debug for PendingChallenge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingChallenge")
    }
}

/// A challenge is answered for as long as this is held.
#[derive(Debug)]
pub struct ChallengeGuard {
    challenges: Challenges,
    waiting: Arc<PendingChallenge>,
}

impl Drop for ChallengeGuard {
    fn drop(&mut self) {
        let mut waiting = self.challenges.0.waiting.lock();
        waiting.retain(|other| !Arc::ptr_eq(other, &self.waiting));
        self.challenges
            .0
            .count
            .store(waiting.len(), Ordering::Release);
    }
}

/// Why a challenge cannot be answered.
#[derive(Debug, Error)]
pub enum ChallengeError {
    /// The certificate that `tls-alpn-01` looks at cannot be made.
    #[error("the certificate of the challenge cannot be made")]
    Certificate(#[from] rcgen::Error),
    /// rustls does not take it.
    #[error("the certificate of the challenge cannot be shown")]
    Tls(#[from] rustls::Error),
    /// The digest is not one of SHA-256.
    #[error("the digest of the challenge does not have 32 bytes")]
    Digest,
}

impl Challenges {
    /// Whether any listener has certificates by ACME, so that connections look for challenges.
    pub fn set_in_use(&self, in_use: bool) {
        self.0.in_use.store(in_use, Ordering::Relaxed);
    }

    /// These, for a new connection that has to look for challenges.
    pub(super) fn for_connection(&self) -> Option<Self> {
        self.0.in_use.load(Ordering::Relaxed).then(|| self.clone())
    }

    /// Answers a challenge from now on.
    ///
    /// # Errors
    /// When the certificate that `tls-alpn-01` looks at cannot be made.
    pub fn answer(&self, challenge: Challenge) -> Result<ChallengeGuard, ChallengeError> {
        let waiting = Arc::new(match challenge {
            Challenge::Http01 {
                token,
                key_authorization,
            } => PendingChallenge::Http {
                token,
                answer: key_authorization.into(),
            },
            Challenge::TlsAlpn01 { domain, digest } => {
                let config = Arc::new(server_config(&domain, &digest)?);
                PendingChallenge::Tls { domain, config }
            }
        });
        let mut all = self.0.waiting.lock();
        all.push(Arc::clone(&waiting));
        self.0.count.store(all.len(), Ordering::Release);
        drop(all);
        Ok(ChallengeGuard {
            challenges: self.clone(),
            waiting,
        })
    }

    pub(super) fn are_waiting(&self) -> bool {
        self.0.count.load(Ordering::Acquire) > 0
    }

    /// The response to a request that is `http-01`'s. All others are the app's, also those for
    /// unknown tokens: another ACME client may run behind the gateway.
    pub(super) fn response(&self, request: &impl HttpRequest) -> Option<Response<Full<Bytes>>> {
        if !self.are_waiting() {
            return None;
        }
        let asked = request.uri().path().strip_prefix(WELL_KNOWN)?;
        let body = self.find(|waiting| match waiting {
            PendingChallenge::Http { token, answer } => (token == asked).then(|| answer.clone()),
            PendingChallenge::Tls { .. } => None,
        })?;
        let mut response = Response::new(Full::new(body));
        let headers = response.headers_mut();
        let content_type = HeaderValue::from_static("application/octet-stream");
        headers.insert(CONTENT_TYPE, content_type);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Some(response)
    }

    /// The configuration for a handshake of `tls-alpn-01`.
    pub(super) fn tls(&self, hello: &ClientHello<'_>) -> Option<Arc<ServerConfig>> {
        let mut protocols = hello.alpn()?;
        let is_challenge = protocols.next() == Some(ACME_TLS) && protocols.next().is_none();
        let name = hello.server_name().filter(|_| is_challenge)?;
        self.find(|waiting| match waiting {
            PendingChallenge::Tls { domain, config } => {
                (domain == name).then(|| Arc::clone(config))
            }
            PendingChallenge::Http { .. } => None,
        })
    }

    /// The last is the newest, if an earlier one of the same name still waits.
    fn find<T>(&self, matching: impl Fn(&PendingChallenge) -> Option<T>) -> Option<T> {
        let waiting = self.0.waiting.lock();
        waiting.iter().rev().find_map(|waiting| matching(waiting))
    }
}

/// Shows a certificate with the digest, to clients without one: no ACME server has one to show.
fn server_config(domain: &str, digest: &[u8]) -> Result<ServerConfig, ChallengeError> {
    if digest.len() != DIGEST_BYTES {
        return Err(ChallengeError::Digest);
    }
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new([domain.to_owned()])?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let certificate = params.self_signed(&key)?.der().clone();
    let provider = default_provider();
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let key = provider.key_provider.load_private_key(key)?;
    // rustls itself refuses a certificate with a critical extension that it does not know.
    let shown = SingleCertAndKey::from(CertifiedKey::new(vec![certificate], key));
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(shown));
    config.alpn_protocols = vec![ACME_TLS.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http_body_util::BodyExt;

    use super::*;

    fn http01(token: &str) -> Challenge {
        Challenge::Http01 {
            token: token.to_owned(),
            key_authorization: format!("{token}.thumbprint"),
        }
    }

    async fn answer(challenges: &Challenges, path: &str) -> Option<Bytes> {
        let request = Request::get(path).body(()).unwrap();
        let body = challenges.response(&request)?.into_body();
        Some(body.collect().await.unwrap().to_bytes())
    }

    #[tokio::test]
    async fn a_token_is_answered_until_its_challenge_is_over_and_no_other_ever() {
        let challenges = Challenges::default();
        let path = format!("{WELL_KNOWN}one");
        assert_eq!(answer(&challenges, &path).await, None);
        let first = challenges.answer(http01("one")).unwrap();
        let second = challenges.answer(http01("two")).unwrap();
        assert_eq!(answer(&challenges, &path).await.unwrap(), "one.thumbprint");
        for other in ["/one", "/.well-known/acme-challenge/", "/.well-known/one"] {
            assert_eq!(answer(&challenges, other).await, None, "{other}");
        }
        drop(first);
        assert_eq!(answer(&challenges, &path).await, None);
        assert!(challenges.are_waiting());
        drop(second);
        assert!(!challenges.are_waiting());
    }

    #[test]
    fn connections_look_for_challenges_only_where_certificates_come_by_acme() {
        let challenges = Challenges::default();
        assert!(challenges.for_connection().is_none());
        challenges.set_in_use(true);
        assert!(challenges.for_connection().is_some());
    }

    #[test]
    fn a_digest_that_is_none_is_refused() {
        let challenge = Challenge::TlsAlpn01 {
            domain: "a.example.com".to_owned(),
            digest: vec![0; 31],
        };
        let error = Challenges::default().answer(challenge).unwrap_err();
        assert!(matches!(error, ChallengeError::Digest), "{error}");
    }
}
