//! The account that a verified JSON Web Token (RFC 7519) names.

mod keys;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str;
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use jsonwebtoken::{Algorithm, Header, Validation, decode, decode_header};
use serde_json::Value;

use crate::rules::field;

pub use keys::{JwtError, JwtKeys};

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

    /// The algorithm of this name in RFC 7518 and RFC 8037, such as `RS256`.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
    }

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

/// How a token is found, verified and read.
#[derive(Clone, Debug)]
pub struct Jwt {
    claim: String,
    keys: JwtKeys,
    /// What a token must fulfil besides its signature, by allowed algorithm.
    validations: Vec<(JwtAlgorithm, Validation)>,
    header: HeaderName,
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
        keys: JwtKeys,
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
            keys,
            validations: validations.collect(),
            header,
        }
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
            return field::bearer(headers, &self.header);
        }
        let value = field::header(headers, &self.header)?;
        Some(field::bearer_token(value).unwrap_or(value))
    }

    /// The claims of a token that a key of ours has signed.
    fn verified(&self, token: &[u8]) -> Option<Value> {
        let header = decode_header(token).ok().filter(has_no_demands)?;
        let (algorithm, validation) = self
            .validations
            .iter()
            .find(|(algorithm, _)| algorithm.library() == header.alg)?;
        // Keys are of one algorithm each, so no public key is ever taken for a shared secret.
        let verify = |key| decode::<Value>(token, key, validation).ok();
        self.keys
            .candidates(*algorithm, header.kid.as_deref())
            .find_map(verify)
            .map(|token| token.claims)
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
