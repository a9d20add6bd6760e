//! The account that a verified JSON Web Token (RFC 7519) names.

use http::{HeaderMap, HeaderName};
use std::time::Duration;
use thiserror::Error;

/// The signature algorithms that can be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JwtAlgorithm {
    /// HMAC with SHA-256, by a shared secret.
    Hs256,
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// EdDSA on Ed25519.
    EdDsa,
}

/// Why keys cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum JwtError {
    /// The shared secret is shorter than a hash of HS256.
    #[error("the secret has {0} bytes; HS256 needs at least 32 (RFC 7518, section 3.2)")]
    ShortSecret(usize),
    /// The key set is no JSON Web Key Set.
    #[error("this is no JSON Web Key Set (RFC 7517): {0}")]
    Malformed(String),
    /// The key set has no key that an algorithm of ours could use.
    #[error("the key set has no signature key for RS256, ES256, EdDSA or HS256")]
    NoUsableKey,
}

/// The keys that tokens are verified with.
#[derive(Clone, Debug)]
pub struct JwtKeys {}

impl JwtKeys {
    /// A secret that is shared with the issuer, for HS256.
    ///
    /// # Errors
    /// When the secret is shorter than 32 bytes.
    pub fn secret(secret: &[u8]) -> Result<Self, JwtError> {
        if secret.len() < 32 {
            return Err(JwtError::ShortSecret(secret.len()));
        }
        Ok(Self {})
    }

    /// A JSON Web Key Set (RFC 7517).
    ///
    /// # Errors
    /// When it cannot be read, or no key of it can be used.
    pub fn jwks(_json: &str) -> Result<Self, JwtError> {
        Ok(Self {})
    }
}

/// How a token is found, verified and read.
#[derive(Clone, Debug)]
pub struct Jwt {}

impl Jwt {
    /// Tokens of `header`, verified by `keys` and one of the `algorithms`, name the account by `claim`.
    pub fn new(
        _claim: String,
        _keys: JwtKeys,
        _algorithms: Vec<JwtAlgorithm>,
        _issuer: Option<String>,
        _audience: Option<String>,
        _header: HeaderName,
        _leeway: Duration,
    ) -> Self {
        Self {}
    }

    /// The claim's value in a verified token.
    pub(super) fn value(&self, _headers: &HeaderMap) -> Option<String> {
        None
    }
}
