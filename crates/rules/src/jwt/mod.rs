//! The account that a verified JSON Web Token (RFC 7519) names.

#[cfg(test)]
mod tests;

use std::fmt;
use std::str;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderName};
use jsonwebtoken::crypto::{CryptoProvider, aws_lc};
use jsonwebtoken::jwk::{
    AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, KeyOperations, PublicKeyUse,
};
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode, decode_header};
use parking_lot::RwLock;
use serde_json::Value;
use thiserror::Error;

use crate::request_values;

/// Longer tokens are not looked at; they would cost more than they are worth.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// More leeway than a day is none of a clock's faults.
const MAX_LEEWAY: Duration = Duration::from_secs(24 * 60 * 60);

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

impl JwtAlgorithm {
    /// All that there are.
    pub const ALL: [Self; 4] = [Self::Hs256, Self::Rs256, Self::Es256, Self::EdDsa];

    /// The name in RFC 7518 and RFC 8037.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hs256 => "HS256",
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
        }
    }

    const fn library(self) -> Algorithm {
        match self {
            Self::Hs256 => Algorithm::HS256,
            Self::Rs256 => Algorithm::RS256,
            Self::Es256 => Algorithm::ES256,
            Self::EdDsa => Algorithm::EdDSA,
        }
    }
}

impl fmt::Display for JwtAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The source of tokens, and how they are verified.
#[derive(Clone, Debug)]
pub struct Jwt {
    claim: String,
    keys: TokenKeys,
    /// The conditions on a token besides its signature, by allowed algorithm.
    validations: Vec<(JwtAlgorithm, Validation)>,
    header: HeaderName,
}

/// The source of keys.
#[derive(Clone, Debug)]
pub enum TokenKeys {
    /// They are in the configuration.
    Local(JwtKeys),
    /// They are fetched.
    Remote(RemoteKeys),
}

impl From<JwtKeys> for TokenKeys {
    fn from(keys: JwtKeys) -> Self {
        Self::Local(keys)
    }
}

impl From<RemoteKeys> for TokenKeys {
    fn from(keys: RemoteKeys) -> Self {
        Self::Remote(keys)
    }
}

impl TokenKeys {
    /// Calls `verify` with the keys in force, and requests others if none has this id.
    fn with<T>(&self, id: Option<&str>, verify: impl FnOnce(&JwtKeys) -> Option<T>) -> Option<T> {
        match self {
            Self::Local(keys) => verify(keys),
            Self::Remote(remote) => {
                let keys = remote.get()?;
                if id.is_some_and(|id| !keys.knows(id)) {
                    remote.miss();
                }
                verify(&keys)
            }
        }
    }
}

impl Jwt {
    /// Tokens in `header` that one of `keys` verifies by one of `algorithms` name the account by
    /// `claim`.
    ///
    /// The claim is a string or a whole number; `realm.id` is the claim `id` within `realm` unless
    /// there is a claim of just that name. `exp` and `nbf` hold where a token has them, with
    /// `leeway` (a day at most) for clocks that differ. A configured `issuer` or `audience` must be
    /// in the token; without one, the token's own is not looked at. `Bearer` before the token is
    /// stripped, and must be there in `Authorization`.
    pub fn new(
        claim: String,
        keys: impl Into<TokenKeys>,
        algorithms: Vec<JwtAlgorithm>,
        issuer: Option<String>,
        audience: Option<String>,
        header: HeaderName,
        leeway: Duration,
    ) -> Self {
        let validation = |algorithm| validation(algorithm, &issuer, &audience, leeway);
        let validations = algorithms
            .into_iter()
            .map(|algorithm| (algorithm, validation(algorithm)));
        Self {
            claim,
            keys: keys.into(),
            validations: validations.collect(),
            header,
        }
    }

    /// The header that has the token.
    pub(super) fn header(&self) -> &HeaderName {
        &self.header
    }

    /// The claim's value in a verified token.
    pub(super) fn value(&self, headers: &HeaderMap) -> Option<String> {
        let token = self
            .token(headers)
            .filter(|token| token.len() <= MAX_TOKEN_BYTES)?;
        let claims = self.verified(token)?;
        text(find_claim(&claims, &self.claim)?)
    }

    fn token<'h>(&self, headers: &'h HeaderMap) -> Option<&'h [u8]> {
        if self.header == http::header::AUTHORIZATION {
            return request_values::bearer(headers, &self.header);
        }
        let value = request_values::header(headers, &self.header)?;
        Some(request_values::bearer_token(value).unwrap_or(value))
    }

    /// The claims of a token that a key of ours has signed.
    fn verified(&self, token: &[u8]) -> Option<Value> {
        let header = decode_header(token).ok().filter(has_no_demands)?;
        let (algorithm, validation) = self
            .validations
            .iter()
            .find(|(algorithm, _)| algorithm.library() == header.alg)?;
        // Keys are of one algorithm each, so no public key is ever taken for a shared secret.
        let verify = |key: &DecodingKey| decode::<Value>(token, key, validation).ok();
        let id = header.kid.as_deref();
        let by = |keys: &JwtKeys| keys.candidates(*algorithm, id).find_map(verify);
        self.keys.with(id, by).map(|token| token.claims)
    }
}

/// Extensions that a token calls critical have to be understood (RFC 7515, section 4.1.11), and
/// none is.
fn has_no_demands(header: &Header) -> bool {
    header.crit.is_none()
}

fn validation(
    algorithm: JwtAlgorithm,
    issuer: &Option<String>,
    audience: &Option<String>,
    leeway: Duration,
) -> Validation {
    let mut validation = Validation::new(algorithm.library());
    validation.leeway = leeway.min(MAX_LEEWAY).as_secs();
    validation.validate_nbf = true;
    validation.validate_aud = audience.is_some();
    // An issuer or audience that is merely allowed to be checked passes when it is left out.
    let required = [
        issuer.as_ref().map(|_| "iss"),
        audience.as_ref().map(|_| "aud"),
    ];
    let required: Vec<_> = required.into_iter().flatten().collect();
    validation.set_required_spec_claims(&required);
    validation.iss = issuer.clone().map(|issuer| [issuer].into());
    validation.aud = audience.clone().map(|audience| [audience].into());
    validation
}

/// The claim of this name, or else along this dotted path.
fn find_claim<'v>(claims: &'v Value, path: &str) -> Option<&'v Value> {
    let along = || {
        path.split('.')
            .try_fold(claims, |value, name| value.get(name))
    };
    claims.get(path).or_else(along)
}

/// A claim's value as text. Fractions are refused: numbers that differ could read alike.
fn text(claim: &Value) -> Option<String> {
    match claim {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) if !number.is_f64() => Some(number.to_string()),
        _ => None,
    }
}

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
    /// The text is not a JSON Web Key Set. What it says is not shown, since it may be secret.
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
        let keys: Vec<_> = set.keys.iter().filter_map(Key::from_jwk).collect();
        if keys.is_empty() {
            return Err(JwtError::NoUsableKey(set.keys.len()));
        }
        Ok(Self::new(keys))
    }

    fn new(keys: Vec<Key>) -> Self {
        // Without this, jsonwebtoken panics when some other crate of a program that embeds Weir
        // turns on its second implementation. A choice made before stays.
        let _ = CryptoProvider::install_default(&aws_lc::DEFAULT_PROVIDER);
        Self(keys.into())
    }

    /// The algorithms that the keys verify by; an allow-list without any of them allows nothing.
    pub fn algorithms(&self) -> impl Iterator<Item = JwtAlgorithm> {
        self.0.iter().map(|key| key.algorithm)
    }

    fn knows(&self, id: &str) -> bool {
        self.0.iter().any(|key| key.id.as_deref() == Some(id))
    }

    /// The keys that a token of this algorithm and `kid` may have been signed with. A token or key
    /// without an id may belong to any.
    fn candidates(
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

/// Keys that are fetched from elsewhere; clones share them. Before the first fetch no token is
/// verified.
#[derive(Clone, Default)]
pub struct RemoteKeys(Arc<SharedKeys>);

#[derive(Default)]
struct SharedKeys {
    keys: RwLock<Option<JwtKeys>>,
    on_unknown: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl RemoteKeys {
    /// No keys yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The keys in force.
    pub fn get(&self) -> Option<JwtKeys> {
        self.0.keys.read().clone()
    }

    /// Replaces the keys, or removes them.
    pub fn set(&self, keys: Option<JwtKeys>) {
        *self.0.keys.write() = keys;
    }

    /// Calls `wanted` whenever a token names a key that is not there. It is called while a request
    /// waits, perhaps often, and must return at once. Only the first call of this counts.
    pub fn on_unknown_key(&self, wanted: impl Fn() + Send + Sync + 'static) {
        let _ = self.0.on_unknown.set(Box::new(wanted));
    }

    fn miss(&self) {
        if let Some(wanted) = self.0.on_unknown.get() {
            wanted();
        }
    }
}

impl fmt::Debug for RemoteKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemoteKeys").field(&self.get()).finish()
    }
}

impl Key {
    /// `None` unless an algorithm of ours can verify signatures with the key.
    fn from_jwk(jwk: &Jwk) -> Option<Self> {
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
