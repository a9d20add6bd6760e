//! The keys that tokens are verified with.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::DecodingKey;
use jsonwebtoken::crypto::{CryptoProvider, aws_lc};
use jsonwebtoken::jwk::{
    AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, KeyOperations, PublicKeyUse,
};
use thiserror::Error;

use crate::rules::JwtAlgorithm;

/// HS256 needs a key as long as its hash (RFC 7518, section 3.2).
const MIN_SECRET_BYTES: usize = 32;

/// RS256 needs 2048 bits (RFC 7518, section 3.3).
const MIN_MODULUS_BYTES: usize = 256;

/// A coordinate on P-256, or a public key of Ed25519.
const CURVE_BYTES: usize = 32;

/// Why keys cannot be used, and what would do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum JwtError {
    /// The shared secret is shorter than a hash of HS256.
    #[error(
        "the secret has {0} bytes; HS256 needs at least 32 random ones (RFC 7518, section 3.2), \
         such as `openssl rand -base64 32` prints"
    )]
    ShortSecret(usize),
    /// The text is no JSON Web Key Set. What it says is not shown, since it may be secret.
    #[error(
        "line {line}, column {column} breaks the form of a JSON Web Key Set (RFC 7517); it should \
         read {{\"keys\": [...]}}"
    )]
    Malformed {
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
    },
    /// The key set has no key that can be used.
    #[error(
        "none of the {0} keys can verify signatures; give an RSA key of at least 2048 bits \
         (RS256), a P-256 key (ES256), an Ed25519 key (EdDSA) or a secret of at least 32 bytes \
         (HS256)"
    )]
    NoUsableKey(usize),
}

/// The keys that tokens are verified with. Each verifies by one algorithm only.
#[derive(Clone)]
pub struct JwtKeys(Arc<[Key]>);

struct Key {
    id: Option<String>,
    algorithm: JwtAlgorithm,
    decoding: DecodingKey,
}

impl JwtKeys {
    /// A secret that is shared with the issuer, for HS256.
    ///
    /// # Errors
    /// When the secret is shorter than 32 bytes.
    pub fn secret(secret: &[u8]) -> Result<Self, JwtError> {
        if secret.len() < MIN_SECRET_BYTES {
            return Err(JwtError::ShortSecret(secret.len()));
        }
        Ok(Self::new(vec![Key {
            id: None,
            algorithm: JwtAlgorithm::Hs256,
            decoding: DecodingKey::from_secret(secret),
        }]))
    }

    /// A JSON Web Key Set (RFC 7517). Its keys for other algorithms or purposes are passed over.
    ///
    /// # Errors
    /// When it cannot be read, or no key of it can be used.
    pub fn jwks(json: &str) -> Result<Self, JwtError> {
        let set: JwkSet = serde_json::from_str(json).map_err(|error| JwtError::Malformed {
            line: error.line(),
            column: error.column(),
        })?;
        let keys: Vec<_> = set.keys.iter().filter_map(Key::of).collect();
        if keys.is_empty() {
            return Err(JwtError::NoUsableKey(set.keys.len()));
        }
        Ok(Self::new(keys))
    }

    fn new(keys: Vec<Key>) -> Self {
        // Without this, jsonwebtoken panics when some other crate of a program that embeds Weir
        // turns on its second implementation. Whoever chose before us is left with their choice.
        let _ = CryptoProvider::install_default(&aws_lc::DEFAULT_PROVIDER);
        Self(keys.into())
    }

    /// The algorithms that the keys verify by; an allow-list without any of them allows nothing.
    pub fn algorithms(&self) -> impl Iterator<Item = JwtAlgorithm> {
        self.0.iter().map(|key| key.algorithm)
    }

    /// The keys that a token of this algorithm and `kid` may have been signed with. A token or key
    /// without an id may belong to any.
    pub(super) fn candidates(
        &self,
        algorithm: JwtAlgorithm,
        kid: Option<&str>,
    ) -> impl Iterator<Item = &DecodingKey> {
        let may_fit = move |key: &&Key| {
            let named = key.id.as_deref().zip(kid);
            key.algorithm == algorithm && named.is_none_or(|(key, token)| key == token)
        };
        self.0.iter().filter(may_fit).map(|key| &key.decoding)
    }
}

/// Shows the keys' ids and algorithms only.
impl fmt::Debug for JwtKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.0.iter().map(|key| (key.algorithm, key.id.as_deref()));
        f.debug_map().entries(keys).finish()
    }
}

impl Key {
    /// The key, when it can be used for signatures by an algorithm of ours.
    fn of(jwk: &Jwk) -> Option<Self> {
        let algorithm = algorithm(jwk)?;
        (is_for_signatures(jwk) && is_for(jwk, algorithm)).then_some(())?;
        Some(Self {
            id: jwk.common.key_id.clone(),
            algorithm,
            decoding: DecodingKey::from_jwk(jwk).ok()?,
        })
    }
}

/// The algorithm that goes with a key's type and strength.
fn algorithm(jwk: &Jwk) -> Option<JwtAlgorithm> {
    let has = |text: &str, bytes: usize| byte_len(text) == Some(bytes);
    match &jwk.algorithm {
        AlgorithmParameters::RSA(key) => {
            (byte_len(&key.n)? >= MIN_MODULUS_BYTES).then_some(JwtAlgorithm::Rs256)
        }
        AlgorithmParameters::EllipticCurve(key) => (key.curve == EllipticCurve::P256
            && has(&key.x, CURVE_BYTES)
            && has(&key.y, CURVE_BYTES))
        .then_some(JwtAlgorithm::Es256),
        AlgorithmParameters::OctetKeyPair(key) => (key.curve == EllipticCurve::Ed25519
            && has(&key.x, CURVE_BYTES))
        .then_some(JwtAlgorithm::EdDsa),
        AlgorithmParameters::OctetKey(key) => {
            (byte_len(&key.value)? >= MIN_SECRET_BYTES).then_some(JwtAlgorithm::Hs256)
        }
        _ => None,
    }
}

fn byte_len(text: &str) -> Option<usize> {
    URL_SAFE_NO_PAD.decode(text).ok().map(|bytes| bytes.len())
}

fn is_for_signatures(jwk: &Jwk) -> bool {
    let common = &jwk.common;
    let used = |usage: &PublicKeyUse| *usage == PublicKeyUse::Signature;
    let verifies = |operations: &Vec<_>| operations.contains(&KeyOperations::Verify);
    common.public_key_use.as_ref().is_none_or(used)
        && common.key_operations.as_ref().is_none_or(verifies)
}

fn is_for(jwk: &Jwk, algorithm: JwtAlgorithm) -> bool {
    let own = KeyAlgorithm::from(algorithm.library());
    jwk.common.key_algorithm.is_none_or(|named| named == own)
}
