//! Where requests name their account.

pub mod jwt;

use serde::Deserialize;
use weir_passwords::BasicAuth;
use weir_rules::{AccountRules, AccountSource, AccountWildcards, CertificateField, HashKey};
use weir_yaml::{FieldName, Lowered, Lowering, Spanned, all, words};

use self::jwt::{Jwks, JwtKeys, jwt};
use crate::foreign::{Config, Word};

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "AccountSource"))]
#[serde(rename_all = "snake_case")]
pub(crate) enum AccountSourceKeys {
    /// The header's value.
    Header(FieldName),
    /// The token of `Authorization: Bearer`. Type: nothing: `bearer: {}`.
    Bearer(#[expect(dead_code, reason = "it only checks that nothing is set")] Option<Bearer>),
    /// The user of `Authorization: Basic`, if the password is right; a wrong one names no account.
    /// Type: keys, below.
    Basic(Basic),
    /// The cookie's value. Type: cookie name.
    Cookie(String),
    /// What the [client's certificate](#certificates-of-clients) says: the common name of its
    /// subject, the first alternative name of a kind, or the SHA-256 hash of the certificate, in
    /// lower-case hex digits. Type: `subject_cn`, `san_dns`, `san_email`, `san_uri`, `fingerprint`.
    Certificate(Word<CertificateField>),
    /// A claim of a JSON Web Token, which is verified; an invalid token names no account. Type:
    /// keys, below.
    Jwt(Box<Spanned<JwtKeys>>),
}

/// Users with passwords.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Basic {
    /// The users, as `htpasswd -B -c FILE NAME` writes them: a name, a colon, and a hash of bcrypt
    /// or Argon2 on each line. Type: path.
    pub(crate) file: Spanned<String>,
}

/// A bearer token has nothing to set.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Bearer {}

words!(CertificateField, by Config:
    "subject_cn" => Self::SubjectCn,
    "san_dns" => Self::SanDns,
    "san_email" => Self::SanEmail,
    "san_uri" => Self::SanUri,
    "fingerprint" => Self::Fingerprint,
);

/// Key sets that are to be fetched are added to `jwks`.
pub(super) fn account_rules(
    cx: &mut Lowering<'_>,
    jwks: &mut Vec<Jwks>,
    written: Option<&[Spanned<AccountSourceKeys>]>,
    key: &Lowered<HashKey>,
    keeps_names: bool,
) -> Lowered<AccountRules> {
    let sources = written.unwrap_or_default().iter();
    let sources = all(sources.map(|source| account_source(cx, jwks, source)));
    Ok(AccountRules {
        sources: sources?,
        key: key.clone()?,
        wildcards: AccountWildcards::default(),
        keeps_names,
    })
}

fn account_source(
    cx: &mut Lowering<'_>,
    jwks: &mut Vec<Jwks>,
    source: &Spanned<AccountSourceKeys>,
) -> Lowered<AccountSource> {
    match &source.value {
        AccountSourceKeys::Header(name) => Ok(AccountSource::Header(name.0.clone())),
        AccountSourceKeys::Bearer(_) => Ok(AccountSource::Bearer),
        AccountSourceKeys::Cookie(name) => Ok(AccountSource::Cookie(name.clone())),
        AccountSourceKeys::Certificate(field) => Ok(AccountSource::Certificate(field.0)),
        AccountSourceKeys::Basic(written) => {
            let text = cx.read_file(&written.file, written.file.span)?;
            let users = BasicAuth::from_htpasswd(&text);
            let users = users.map_err(|error| format!("{}: {error}", written.file.value));
            cx.ok(written.file.span, users).map(AccountSource::from)
        }
        AccountSourceKeys::Jwt(written) => jwt(cx, jwks, written).map(AccountSource::Jwt),
    }
}
