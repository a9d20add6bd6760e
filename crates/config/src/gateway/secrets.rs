//! What is not written into the file: keys, passwords and the admin listener's tokens.

use std::sync::Arc;

use weir_rules::{HashKey, KeySource, Limit};
use weir_yaml::{Lowered, Lowering, Secret, Span, Spanned, all, suggest};

use super::schema::{Admin, Gateway};
use crate::secret::secret;
use crate::settings::AdminToken;

pub(super) const MAKE_A_KEY: &str = "make a key with `openssl rand -hex 32 > hash.key`, \
    give it to every gateway, and say `hash_key: {file: hash.key}`";

const MAKE_A_TOKEN: &str = "make one with `openssl rand -hex 32 > admin.token`, \
and say `token: {file: admin.token}`";

/// How the log calls the token that has no name.
const UNNAMED: &str = "admin";

const MAX_NAME_BYTES: usize = 64;

/// The key of hashes; none when none is configured.
pub(super) fn hash_key(
    cx: &mut Lowering<'_>,
    written: Option<&Spanned<Secret>>,
) -> Lowered<Option<HashKey>> {
    let Some(written) = written else {
        return Ok(None);
    };
    let key = HashKey::from_bytes(secret(cx, written, written.span)?.as_bytes());
    let report = || {
        cx.error(written.span, "the key has fewer than 16 bytes")
            .help(MAKE_A_KEY)
    };
    key.map(Some).ok_or_else(report)
}

/// The admin listener's tokens; none when none is configured.
pub(super) fn admin_tokens(
    cx: &mut Lowering<'_>,
    admin: Option<&Admin>,
) -> Lowered<Vec<AdminToken>> {
    let Some(admin) = admin else {
        return Ok(Vec::new());
    };
    let named = || admin.tokens.iter().flat_map(|tokens| &tokens.0);
    let unnamed = admin.token.as_ref().map(|token| {
        if let Some((name, _)) = named().find(|(name, _)| name.value == UNNAMED) {
            let message = format!("the log would show \"{UNNAMED}\" for this one and for `token`");
            cx.error(name.span, message)
                .help("give it another name, or leave `token` out");
        }
        admin_token(cx, UNNAMED, token)
    });
    let named: Vec<_> = named()
        .map(|(name, token)| {
            check_token_name(cx, name)?;
            admin_token(cx, name, token)
        })
        .collect();
    let tokens: Vec<AdminToken> = all(unnamed.into_iter().chain(named))?;
    let reading = admin.read_only.iter().flatten();
    for name in reading.filter(|name| tokens.iter().all(|token| *token.name != *name.value)) {
        let nearest = suggest(name, tokens.iter().map(|token| &*token.name));
        cx.error(name.span, format!("there is no token \"{}\"", name.value))
            .maybe_help(nearest);
    }
    let is_read_only = |token: &AdminToken| {
        let mut reading = admin.read_only.iter().flatten();
        reading.any(|name| *token.name == *name.value)
    };
    let tokens = tokens.into_iter().map(|token| match is_read_only(&token) {
        true => token.read_only(),
        false => token,
    });
    Ok(tokens.collect())
}

fn admin_token(
    cx: &mut Lowering<'_>,
    name: &str,
    written: &Spanned<Secret>,
) -> Lowered<AdminToken> {
    let token = AdminToken::new(name, &secret(cx, written, written.span)?);
    token.ok_or_else(|| {
        cx.error(written.span, "the token has fewer than 16 bytes")
            .help(MAKE_A_TOKEN)
    })
}

/// A name stands in the log.
fn check_token_name(cx: &mut Lowering<'_>, name: &Spanned<String>) -> Lowered<()> {
    let fits = (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_graphic());
    match fits {
        true => Ok(()),
        false => Err(cx
            .error(name.span, "a token's name stands in the log")
            .help(format!(
                "write 1 to {MAX_NAME_BYTES} visible ASCII characters, such as alice"
            ))),
    }
}

/// Gateways that share a store must hash alike, or each would count on its own; and an account
/// that an operator looks for in the log should keep its hash. `other` is what beside limits goes by
/// a hash, as errors call it.
pub(super) fn require_key(
    cx: &mut Lowering<'_>,
    gateway: &Spanned<Gateway>,
    limits: &[Arc<Limit>],
    other: Option<String>,
) {
    let in_error = cx.sources.key_in_error(gateway.span, &["hash_key"]);
    if gateway.hash_key.is_some() || in_error.is_some() {
        return;
    }
    let redis = gateway
        .store
        .as_ref()
        .and_then(|store| store.redis.as_ref());
    let shared = redis.is_some_and(|redis| lacks_shared_key(cx, redis.span, limits, other));
    // The demo upstream has no accounts to protect.
    let serves = gateway
        .upstreams()
        .iter()
        .any(|(_, upstream)| upstream.servers.is_some());
    let accounts = gateway
        .account
        .as_ref()
        .filter(|sources| !sources.is_empty());
    if let Some(accounts) = accounts.filter(|_| serves && !shared) {
        cx.warn(
            accounts.span,
            "the hashes of accounts change at each restart: ids in the log, and overrides and bans \
             by a hash, match no account then",
        )
        .help(MAKE_A_KEY);
    }
}

fn lacks_shared_key(
    cx: &mut Lowering<'_>,
    redis: Span,
    limits: &[Arc<Limit>],
    other: Option<String>,
) -> bool {
    let hashed = limits
        .iter()
        .find(|limit| limit.per().iter().any(KeySource::is_hashed));
    if let Some(limit) = hashed {
        shared_key_is_missing(cx, redis, format!("limit \"{}\" counts", limit.name()));
    }
    let is_missing = hashed.is_some() || other.is_some();
    if let Some(other) = other {
        shared_key_is_missing(cx, redis, other);
    }
    is_missing
}

fn shared_key_is_missing(cx: &mut Lowering<'_>, span: Span, who: String) {
    let message = format!(
        "{who} a value that may be secret; gateways that share Redis need the same key to hash it"
    );
    cx.error(span, message).help(MAKE_A_KEY);
}
