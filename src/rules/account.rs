//! Which account a request belongs to.

use http::{HeaderMap, HeaderName};

pub use crate::rules::jwt::{Jwt, JwtAlgorithm, JwtError, JwtKeys};
use crate::rules::{HashKey, SecretHash, field};

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
///
/// Requests that repeat a header with different values are all of one account, so that no client
/// can show one name to Weir and another to the upstream; for [`AccountSource::Jwt`] there is
/// nothing to verify in them, and they name none.
#[derive(Clone, Debug)]
pub struct AccountRules {
    /// Asked in order; the first that yields a value names the account.
    pub sources: Vec<AccountSource>,
    /// The key that names are hashed with. Limits must hash their overrides' ids with the same.
    pub key: HashKey,
}

impl AccountRules {
    /// The account of a request with these headers.
    pub fn account(&self, headers: &HeaderMap) -> Option<Account> {
        let mut ids = self.sources.iter();
        ids.find_map(|source| source.hash(headers, &self.key))
            .map(|id| Account { id })
    }
}

impl AccountSource {
    fn hash(&self, headers: &HeaderMap, key: &HashKey) -> Option<SecretHash> {
        let hash = |value: &[u8]| key.hash(value);
        match self {
            Self::Header(name) => field::header(headers, name).map(hash),
            Self::Bearer => field::bearer(headers, &http::header::AUTHORIZATION).map(hash),
            Self::Cookie(name) => field::cookie(headers, name).map(|value| hash(&value)),
            Self::Jwt(jwt) => jwt.value(headers).map(|value| hash(value.as_bytes())),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

    fn rules() -> AccountRules {
        let session = AccountSource::Cookie("session".to_owned());
        AccountRules {
            sources: vec![
                AccountSource::Header(API_KEY),
                AccountSource::Bearer,
                session,
            ],
            key: HashKey::from_bytes(&[7; 16]).unwrap(),
        }
    }

    fn account(lines: &[(&'static str, &'static str)]) -> Option<Account> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        rules().account(&headers)
    }

    fn named(name: &str) -> Option<Account> {
        let id = rules().key.hash(name.as_bytes());
        Some(Account { id })
    }

    #[test]
    fn the_first_source_with_a_value_names_the_account() {
        let (key, cookie) = (("x-api-key", "acme"), ("cookie", "session=s"));
        assert_eq!(account(&[cookie, key]), named("acme"));
        assert_eq!(
            account(&[cookie, ("authorization", "bearer t")]),
            named("t")
        );
        assert_eq!(account(&[cookie]), named("s"));
    }

    #[test]
    fn empty_values_name_nobody() {
        assert_eq!(account(&[]), None);
        let empty = [
            ("x-api-key", ""),
            ("authorization", "Bearer "),
            ("cookie", "session="),
        ];
        assert_eq!(account(&empty), None);
    }

    #[test]
    fn nothing_of_the_value_is_shown() {
        let shown = format!("{:?}", account(&[("x-api-key", "hunter2")]));
        assert!(!shown.contains("hunter2"));
    }
}
