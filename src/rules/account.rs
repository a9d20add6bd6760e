//! Which account a request belongs to.

use http::{HeaderMap, HeaderName};

pub use crate::rules::jwt::{Jwt, JwtAlgorithm, JwtError, JwtKeys};
use crate::rules::{HashKey, SecretHash};

/// An account, known only by the hash of what names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Account {
    /// The keyed hash of the API key, token, cookie or claim.
    pub id: SecretHash,
}

/// Where an account's name may stand in a request.
#[derive(Clone, Debug)]
pub enum AccountSource {
    /// The value of a header, such as `X-API-Key`.
    Header(HeaderName),
    /// The token of `Authorization: Bearer`.
    Bearer,
    /// The value of a cookie.
    Cookie(String),
    /// A claim of a verified token.
    Jwt(Jwt),
}

/// How accounts are found.
#[derive(Clone, Debug)]
pub struct AccountRules {
    /// Asked in order; the first that yields a value names the account.
    pub sources: Vec<AccountSource>,
    /// The key that names are hashed with.
    pub key: HashKey,
}

impl AccountRules {
    /// The account of a request with these headers.
    pub fn account(&self, headers: &HeaderMap) -> Option<Account> {
        let _ = headers;
        None
    }
}
