//! How accounts are found.

use std::time::Duration;

use http::HeaderName;
use http::header::AUTHORIZATION;

use super::{Lowered, Lowering, Reported};
use crate::config::schema;
use crate::config::yaml::Spanned;
use crate::rules::{
    AccountRules, AccountSource, AccountWildcards, HashKey, Jwt, JwtAlgorithm, JwtKeys,
};

/// By how much clocks of issuers may be off, unless told otherwise.
const DEFAULT_LEEWAY: Duration = Duration::from_secs(60);

impl Lowering<'_> {
    pub(super) fn account_rules(
        &mut self,
        written: Option<&[Spanned<schema::AccountSource>]>,
        key: &Lowered<HashKey>,
        keeps_names: bool,
    ) -> Lowered<AccountRules> {
        let sources: Vec<_> = written
            .unwrap_or_default()
            .iter()
            .map(|source| self.account_source(source))
            .collect();
        Ok(AccountRules {
            sources: sources.into_iter().collect::<Lowered<_>>()?,
            key: key.clone()?,
            wildcards: AccountWildcards::default(),
            keeps_names,
        })
    }

    fn account_source(
        &mut self,
        source: &Spanned<schema::AccountSource>,
    ) -> Lowered<AccountSource> {
        match &source.value {
            schema::AccountSource::Header(name) => {
                self.header_name(name).map(AccountSource::Header)
            }
            schema::AccountSource::Bearer(_) => Ok(AccountSource::Bearer),
            schema::AccountSource::Cookie(name) => Ok(AccountSource::Cookie(name.clone())),
            schema::AccountSource::Jwt(jwt) => self.jwt(jwt).map(AccountSource::Jwt),
        }
    }

    fn jwt(&mut self, jwt: &Spanned<schema::Jwt>) -> Lowered<Jwt> {
        let keys = self.jwt_keys(jwt);
        let algorithms = self.jwt_algorithms(jwt);
        let header = match &jwt.header {
            Some(name) => self.header_name(name),
            None => Ok(AUTHORIZATION),
        };
        Ok(Jwt::new(
            jwt.claim.clone().unwrap_or_else(|| "sub".to_owned()),
            keys?,
            algorithms?,
            jwt.issuer.clone(),
            jwt.audience.clone(),
            header?,
            jwt.leeway.map_or(DEFAULT_LEEWAY, |leeway| leeway.0),
        ))
    }

    fn jwt_keys(&mut self, jwt: &Spanned<schema::Jwt>) -> Lowered<JwtKeys> {
        match (&jwt.secret, &jwt.jwks) {
            (Some(secret), None) => {
                let text = self.secret(secret, secret.span)?;
                self.ok(secret.span, JwtKeys::secret(text.as_bytes()))
            }
            (None, Some(path)) => {
                let json = self.read_file(path, path.span)?;
                self.ok(path.span, JwtKeys::jwks(&json))
            }
            _ => Err(self.not_one_key(jwt)),
        }
    }

    fn not_one_key(&mut self, jwt: &Spanned<schema::Jwt>) -> Reported {
        let in_error = self.sources.key_in_error(jwt.span, &["secret", "jwks"]);
        in_error.unwrap_or_else(|| {
            let message = "a token is verified by exactly one of `secret` and `jwks`";
            self.error(jwt.span, message)
                .help("say `secret: {file: jwt.key}` for HS256, or `jwks: keys.json`")
        })
    }

    /// The allowed algorithms; those that fit the kind of key when none are named.
    fn jwt_algorithms(&mut self, jwt: &schema::Jwt) -> Lowered<Vec<JwtAlgorithm>> {
        let Some(written) = &jwt.algorithms else {
            return Ok(default_algorithms(jwt.secret.is_some()));
        };
        let written = self.filled(
            written,
            "no algorithm is allowed, so no token is",
            "name some of HS256, RS256, ES256 and EdDSA, or leave `algorithms` out",
        )?;
        Ok(written.iter().map(|it| algorithm(*it)).collect())
    }

    pub(super) fn header_name(&mut self, name: &Spanned<String>) -> Lowered<HeaderName> {
        self.parse(name, "the name of a header")
    }
}

fn default_algorithms(secret: bool) -> Vec<JwtAlgorithm> {
    if secret {
        vec![JwtAlgorithm::Hs256]
    } else {
        vec![
            JwtAlgorithm::Rs256,
            JwtAlgorithm::Es256,
            JwtAlgorithm::EdDsa,
        ]
    }
}

fn algorithm(written: schema::JwtAlgorithm) -> JwtAlgorithm {
    match written {
        schema::JwtAlgorithm::Hs256 => JwtAlgorithm::Hs256,
        schema::JwtAlgorithm::Rs256 => JwtAlgorithm::Rs256,
        schema::JwtAlgorithm::Es256 => JwtAlgorithm::Es256,
        schema::JwtAlgorithm::EdDsa => JwtAlgorithm::EdDsa,
    }
}
