//! What is kept out of the file: keys and passwords.

use std::env::VarError;

use super::{Lowered, LoweredRoute, Lowering};
use crate::config::AdminToken;
use crate::config::schema::{Admin, Gateway, Secret};
use crate::config::yaml::{Span, Spanned};
use crate::middleware::BanPolicy;
use crate::rules::HashKey;

const MAKE_A_KEY: &str = "make one with `openssl rand -hex 32 > hash.key`, give it to every gateway, \
and say `hash_key: {file: hash.key}`";

const MAKE_A_TOKEN: &str = "make one with `openssl rand -hex 32 > admin.token`, \
and say `token: {file: admin.token}`";

impl Lowering<'_> {
    /// The text of a secret, without the line end that editors put after it.
    pub(super) fn secret(&mut self, secret: &Secret, span: Span) -> Lowered<String> {
        let text = match secret {
            Secret::File(path) => self.read_file(path, span)?,
            Secret::Env(name) => self.variable(name, span)?,
        };
        let text = text.trim_end_matches(['\r', '\n']);
        if text.is_empty() {
            return Err(self.error(span, "the secret is empty").into());
        }
        Ok(text.to_owned())
    }

    fn variable(&mut self, name: &str, span: Span) -> Lowered<String> {
        std::env::var(name).map_err(|error| {
            let why = match error {
                VarError::NotPresent => "is not set",
                VarError::NotUnicode(_) => "is no text in UTF-8",
            };
            let message = format!("the environment variable {name} {why}");
            self.error(span, message)
                .help("set it wherever weir is started, for `weir check` as well")
        })
    }

    /// The key of hashes; none when none is configured.
    pub(super) fn hash_key(
        &mut self,
        written: Option<&Spanned<Secret>>,
    ) -> Lowered<Option<HashKey>> {
        let Some(written) = written else {
            return Ok(None);
        };
        let key = HashKey::from_bytes(self.secret(written, written.span)?.as_bytes());
        let report = || {
            self.error(written.span, "the key has fewer than 16 bytes")
                .help(MAKE_A_KEY)
        };
        key.map(Some).ok_or_else(report)
    }

    /// The admin listener's token; none when none is configured.
    pub(super) fn admin_token(&mut self, admin: Option<&Admin>) -> Lowered<Option<AdminToken>> {
        let Some(written) = admin.and_then(|it| it.token.as_ref()) else {
            return Ok(None);
        };
        let token = AdminToken::new(&self.secret(written, written.span)?);
        let report = || {
            self.error(written.span, "the token has fewer than 16 bytes")
                .help(MAKE_A_TOKEN)
        };
        token.map(Some).ok_or_else(report)
    }

    /// Gateways that share a store must hash alike, or each would count on its own; and whoever looks
    /// for an account in the log wants its hash to last.
    pub(super) fn require_key(
        &mut self,
        gateway: &Spanned<Gateway>,
        routes: &[LoweredRoute],
        bans: &[Lowered<BanPolicy>],
    ) {
        let in_error = self.sources.key_in_error(gateway.span, &["hash_key"]);
        if gateway.hash_key.is_some() || in_error.is_some() {
            return;
        }
        let redis = gateway.store.as_ref().and_then(|it| it.redis.as_ref());
        let shared = redis.is_some_and(|redis| self.lacks_shared_key(redis.span, routes, bans));
        // A demo has no accounts of anybody's.
        let serves = gateway
            .upstreams
            .0
            .iter()
            .any(|(_, it)| it.servers.is_some());
        let accounts = gateway.account.as_ref().filter(|it| !it.is_empty());
        if let Some(accounts) = accounts.filter(|_| serves && !shared) {
            self.warn(
                accounts.span,
                "the hashes of accounts change at each restart",
            )
            .help(MAKE_A_KEY);
        }
    }

    fn lacks_shared_key(
        &mut self,
        redis: Span,
        routes: &[LoweredRoute],
        bans: &[Lowered<BanPolicy>],
    ) -> bool {
        let hashed = routes
            .iter()
            .flat_map(LoweredRoute::limits)
            .find(|it| it.per().iter().any(is_hashed));
        if let Some(limit) = hashed {
            self.shared_key_is_missing(redis, format!("limit \"{}\" counts", limit.name()));
        }
        let mut bans = bans.iter().flatten().map(|it| &it.ban);
        let ban = bans.find(|it| it.per().iter().any(is_hashed));
        if let Some(ban) = ban {
            self.shared_key_is_missing(redis, format!("ban \"{}\" is per", ban.name()));
        }
        hashed.is_some() || ban.is_some()
    }

    fn shared_key_is_missing(&mut self, span: Span, who: String) {
        let message = format!(
            "{who} what may be a secret, and gateways that share Redis need one key to hash it with"
        );
        self.error(span, message).help(MAKE_A_KEY);
    }
}

/// Whether values of a source are only ever shown and stored as hashes.
fn is_hashed(source: &crate::rules::KeySource) -> bool {
    use crate::rules::KeySource::{Account, Cookie, Header, Query};
    matches!(source, Account | Header(_) | Cookie(_) | Query(_))
}
