//! Which account a request belongs to.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, HeaderName};

#[cfg(feature = "jwt")]
use crate::jwt::Jwt;
use crate::overrides::{Wildcard, WildcardMap};
use crate::{CertificateField, ClientCertificate, HashKey, SecretHash, request_values};

/// An account, known only by the hash of what names it, and by the wildcards of overrides that the
/// name was found to match before it was hashed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Account {
    /// The keyed hash of the API key, token, cookie or claim.
    pub id: SecretHash,
    /// `None` for nearly all accounts.
    details: Option<Arc<AccountDetails>>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct AccountDetails {
    /// The wildcards that it matches, the best first.
    wildcards: Vec<Wildcard>,
    /// The name itself, where it is to be logged.
    name: Option<String>,
}

/// An account that matches no wildcards.
impl From<SecretHash> for Account {
    fn from(id: SecretHash) -> Self {
        Self { id, details: None }
    }
}

/// As the log shows it: its name where that is kept, and else its hash.
impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => self.id.fmt(f),
        }
    }
}

impl Account {
    /// The name itself, where names are kept for the log.
    pub fn name(&self) -> Option<&str> {
        self.details.as_ref()?.name.as_deref()
    }

    pub(super) fn wildcards(&self) -> &[Wildcard] {
        let details = self.details.as_ref();
        details
            .map(|details| &*details.wildcards)
            .unwrap_or_default()
    }
}

/// The wildcards that the names of accounts are matched with when they are read.
///
/// Only the hash of a name is kept, so the wildcards of overrides must be matched when an account
/// is found.
#[derive(Clone, Debug, Default)]
pub struct AccountWildcards(Arc<WildcardMap<()>>);

impl AccountWildcards {
    fn matching(&self, name: &[u8]) -> Vec<Wildcard> {
        self.0
            .matching(name)
            .map(|(wildcard, ())| wildcard.clone())
            .collect()
    }
}

impl<'w> FromIterator<&'w Wildcard> for AccountWildcards {
    fn from_iter<I: IntoIterator<Item = &'w Wildcard>>(wildcards: I) -> Self {
        let mut all = WildcardMap::default();
        for wildcard in wildcards {
            *all.entry(wildcard.clone()) = ();
        }
        Self(Arc::new(all))
    }
}

/// Verifies the credentials of a request. That takes a fraction of a second of computing, so it
/// must not be called where others wait.
pub type Verification = Box<dyn FnOnce() + Send>;

/// Credentials by which requests name accounts, such as passwords, and which take long to verify.
/// What was verified is remembered; until then a request has to wait for its account. `Display`
/// says what is verified.
pub trait Credentials: fmt::Debug + fmt::Display + Send + Sync + Any {
    /// The name of a request's account, if its credentials were verified before and are right.
    fn name(&self, headers: &HeaderMap) -> Option<String>;

    /// The work to do before [`name`](Self::name) knows the credentials of a request.
    fn unverified(&self, headers: &HeaderMap) -> Option<Verification>;

    /// These credentials with the results of `earlier` ones that still hold; none if those are of
    /// another kind.
    fn with_results_of(&self, earlier: &dyn Credentials) -> Option<Arc<dyn Credentials>>;
}

/// The place of an account's name in a request.
#[derive(Clone, Debug)]
pub enum AccountSource {
    /// The value of a header, such as `X-API-Key`.
    Header(HeaderName),
    /// The token of `Authorization: Bearer`.
    Bearer,
    /// The value of a cookie.
    Cookie(String),
    /// Credentials that take long to verify. A request whose credentials have not been
    /// [verified](AccountRules::unverified) has no account by them.
    Verified(Arc<dyn Credentials>),
    /// The certificate that the client has shown.
    Certificate(CertificateField),
    /// A claim of a verified token.
    #[cfg(feature = "jwt")]
    Jwt(Jwt),
}

impl fmt::Display for AccountSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header {name}"),
            Self::Bearer => f.write_str("bearer token"),
            Self::Verified(credentials) => write!(f, "verified {credentials}"),
            Self::Cookie(name) => write!(f, "cookie {name}"),
            Self::Certificate(field) => write!(f, "{field} of the certificate"),
            #[cfg(feature = "jwt")]
            Self::Jwt(_) => f.write_str("verified JWT"),
        }
    }
}

/// The sources of accounts, the first with a value first.
///
/// Requests that repeat a header with different values are all of one account, so that no client
/// can show one name to Weir and another to the upstream; for `AccountSource::Jwt` there is
/// nothing to verify in them, and they name none.
#[derive(Clone, Debug)]
pub struct AccountRules {
    /// Asked in order; the first that yields a value names the account.
    pub sources: Vec<AccountSource>,
    /// The key that names are hashed with. Limits must hash their overrides' ids with the same.
    pub key: HashKey,
    /// The wildcards of the limits' overrides; without them, those match no account.
    pub wildcards: AccountWildcards,
    /// Whether names are kept beside their hashes, for the log.
    pub keeps_names: bool,
}

impl AccountRules {
    /// The account of a request with these headers.
    pub fn account(&self, headers: &HeaderMap) -> Option<Account> {
        self.account_of(headers, None)
    }

    /// The source that names the account of a request with these headers.
    pub fn source(&self, headers: &HeaderMap) -> Option<&AccountSource> {
        let mut sources = self.sources.iter();
        sources.find(|source| source.read(headers, None, |_| ()).is_some())
    }

    /// Whether no request has an account.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// The account of a request with these headers, on a connection whose client has shown this
    /// certificate.
    pub fn account_of(
        &self,
        headers: &HeaderMap,
        certificate: Option<&ClientCertificate>,
    ) -> Option<Account> {
        let mut accounts = self.sources.iter();
        accounts.find_map(|source| source.read(headers, certificate, |name| self.named(name)))
    }

    /// The account that an access log shows so: by the hash of its name, or by the name itself.
    pub fn logged(&self, shown: &str) -> Account {
        let hash = SecretHash::parse(shown).filter(|_| !self.keeps_names);
        hash.map_or_else(|| self.named(shown.as_bytes()), Account::from)
    }

    /// The account of this name.
    pub(super) fn named(&self, name: &[u8]) -> Account {
        Account {
            id: self.key.hash(name),
            details: self.details(name),
        }
    }

    /// Goes on with what was verified by `earlier` rules, as far as it still holds.
    pub fn inherit(&mut self, earlier: &Self) {
        let mut before = earlier.sources.iter().filter_map(AccountSource::verified);
        for source in &mut self.sources {
            if let AccountSource::Verified(credentials) = source
                && let Some(before) = before.next()
                && let Some(inherited) = credentials.with_results_of(before)
            {
                *credentials = inherited;
            }
        }
    }

    /// Whether there are credentials that take long to verify.
    pub fn verifies_passwords(&self) -> bool {
        self.sources
            .iter()
            .any(|source| source.verified().is_some())
    }

    /// The work to do before the account of a request is known. `None` if it is known already, or
    /// never will be.
    pub fn unverified(
        &self,
        headers: &HeaderMap,
        certificate: Option<&ClientCertificate>,
    ) -> Option<Verification> {
        for source in &self.sources {
            let credentials = source.verified();
            if let Some(work) = credentials.and_then(|it| it.unverified(headers)) {
                return Some(work);
            }
            // An earlier source names the account.
            source
                .read(headers, certificate, |_| ())
                .map_or(Some(()), |()| None)?;
        }
        None
    }

    fn details(&self, name: &[u8]) -> Option<Arc<AccountDetails>> {
        let wildcards = self.wildcards.matching(name);
        let kept = || String::from_utf8_lossy(name).into_owned();
        let name = self.keeps_names.then(kept);
        let nothing = wildcards.is_empty() && name.is_none();
        (!nothing).then(|| Arc::new(AccountDetails { wildcards, name }))
    }
}

impl AccountSource {
    /// The header that is the account's name, or a token that has it, unless it is one of HTTP's
    /// own.
    pub fn header(&self) -> Option<&HeaderName> {
        match self {
            Self::Header(name) => Some(name),
            #[cfg(feature = "jwt")]
            Self::Jwt(jwt) => Some(jwt.header()),
            Self::Bearer | Self::Cookie(_) | Self::Verified(_) | Self::Certificate(_) => None,
        }
    }

    fn verified(&self) -> Option<&dyn Credentials> {
        match self {
            Self::Verified(credentials) => Some(&**credentials),
            _ => None,
        }
    }

    /// Calls `read` with the name that the source yields.
    fn read<T>(
        &self,
        headers: &HeaderMap,
        certificate: Option<&ClientCertificate>,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Option<T> {
        match self {
            Self::Header(name) => request_values::header(headers, name).map(read),
            Self::Bearer => request_values::bearer(headers, &http::header::AUTHORIZATION).map(read),
            Self::Cookie(name) => request_values::cookie(headers, name).map(|value| read(&value)),
            Self::Verified(credentials) => {
                let name = credentials.name(headers)?;
                Some(read(name.as_bytes()))
            }
            Self::Certificate(field) => {
                let value = certificate?.value(*field)?;
                Some(read(value.as_bytes()))
            }
            #[cfg(feature = "jwt")]
            Self::Jwt(jwt) => jwt.value(headers).map(|value| read(value.as_bytes())),
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
            wildcards: AccountWildcards::default(),
            keeps_names: false,
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
        Some(rules().key.hash(name.as_bytes()).into())
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
    fn empty_values_name_no_account() {
        assert_eq!(account(&[]), None);
        let empty = [
            ("x-api-key", ""),
            ("authorization", "Bearer "),
            ("cookie", "session="),
        ];
        assert_eq!(account(&empty), None);
    }

    #[test]
    fn a_name_is_shown_only_where_names_are_kept() {
        let shown = |keeps_names: bool| {
            let rules = AccountRules {
                keeps_names,
                ..rules()
            };
            let headers = [(API_KEY, HeaderValue::from_static("acme"))];
            let account = rules.account(&headers.into_iter().collect());
            account.unwrap().to_string()
        };
        assert_eq!(shown(true), "acme");
        assert_eq!(shown(false), rules().key.hash(b"acme").to_string());
    }

    #[test]
    fn nothing_of_the_value_is_shown() {
        let shown = format!("{:?}", account(&[("x-api-key", "hunter2")]));
        assert!(!shown.contains("hunter2"));
    }
}
