//! What remembers buckets.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use super::schema;
use super::secrets::secret;
use crate::config::diagnostics::Lowered;
use crate::config::lowering::Lowering;
use crate::config::settings::{RedisStore, StoreSettings};
use crate::config::values::HumanDuration;
use crate::config::yaml::{Spanned, WordOr};
use crate::store::{GuardSettings, MemorySettings, OnFailure, RedisSettings};

/// As many buckets as the memory store keeps unless told otherwise: some 32 MB.
const DEFAULT_MAX_BUCKETS: NonZeroUsize = NonZeroUsize::new(1_000_000).unwrap();

/// A shorter lease could expire between two renewals on a gateway with much to do.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

pub(super) fn store(
    cx: &mut Lowering<'_>,
    written: Option<&Spanned<schema::Store>>,
) -> Lowered<StoreSettings> {
    let memory = memory(cx, written.and_then(|written| written.memory.as_ref()));
    match written.and_then(|written| written.redis.as_ref()) {
        Some(written) => {
            let redis = redis(cx, written, memory)?;
            Ok(StoreSettings::Redis(Box::new(redis)))
        }
        None => memory.map(StoreSettings::Memory),
    }
}

fn memory(cx: &mut Lowering<'_>, written: Option<&schema::Memory>) -> Lowered<MemorySettings> {
    let Some(number) = written.and_then(|written| written.max_buckets) else {
        return Ok(MemorySettings {
            max_buckets: DEFAULT_MAX_BUCKETS,
        });
    };
    let max_buckets = usize::try_from(number.value)
        .ok()
        .and_then(NonZeroUsize::new);
    match max_buckets {
        Some(max_buckets) => Ok(MemorySettings { max_buckets }),
        None => {
            let message = "there must be room for at least one bucket";
            Err(cx.error(number.span, message).into())
        }
    }
}

fn redis(
    cx: &mut Lowering<'_>,
    written: &Spanned<schema::Redis>,
    local: Lowered<MemorySettings>,
) -> Lowered<RedisStore> {
    let username = username(cx, written);
    let password = written.password.as_ref();
    let password = password.map(|written| secret(cx, written, written.span));
    let ca = written
        .ca
        .as_ref()
        .map(|path| (path.span, cx.read_file(path, path.span)));
    let guard = guard(cx, written);
    let lease = lease(cx, written.lease);
    let (username, password) = (username?, password.transpose()?);
    let prefix = written.prefix.as_ref().map(|prefix| prefix.value.clone());
    // What a file holds is read again for each connection, so a change of it makes no other store.
    let username_file = match written.username.as_deref() {
        Some(WordOr::More(secret)) => path_of(cx, secret),
        Some(WordOr::Word(_)) | None => None,
    };
    let password_file = written.password.as_ref();
    let password_file = password_file.and_then(|secret| path_of(cx, secret));
    let ca_file = written.ca.as_ref();
    let ca_file = ca_file.map(|path| cx.folder.join(&path.value));
    let identity = (
        written.url.value.clone(),
        username.clone().filter(|_| username_file.is_none()),
        password.clone().filter(|_| password_file.is_none()),
        (
            username_file.clone(),
            password_file.clone(),
            ca_file.clone(),
        ),
        prefix.clone(),
        lease,
    );
    let settings = RedisSettings::parse(&written.url, username, password);
    let mut settings = cx.ok(written.url.span, settings)?;
    if let Some((span, pem)) = ca {
        settings = cx.ok(span, settings.with_ca(pem?.as_bytes()))?;
    }
    if let Some(path) = username_file {
        settings = settings.with_username_file(path);
    }
    if let Some(path) = password_file {
        settings = settings.with_password_file(path);
    }
    if let Some(path) = ca_file {
        settings = settings.with_ca_file(path);
    }
    if let Some(lease) = lease {
        settings.lease = lease;
    }
    if let Some(prefix) = &prefix {
        settings = settings.with_prefix(prefix);
    }
    Ok(RedisStore::new(settings, guard, local?, identity))
}

/// The file that a secret is in.
fn path_of(cx: &Lowering<'_>, secret: &schema::Secret) -> Option<PathBuf> {
    match secret {
        schema::Secret::File(path) => Some(cx.folder.join(path)),
        schema::Secret::Env(_) => None,
    }
}

/// A user name is not secret, so it may be written as it is.
fn username(cx: &mut Lowering<'_>, written: &schema::Redis) -> Lowered<Option<String>> {
    let Some(username) = &written.username else {
        return Ok(None);
    };
    match &username.value {
        WordOr::Word(name) => Ok(Some(name.clone())),
        WordOr::More(written) => secret(cx, written, username.span).map(Some),
    }
}

/// How long a gateway that crashed goes on to take places among the requests in flight.
fn lease(cx: &mut Lowering<'_>, written: Option<Spanned<HumanDuration>>) -> Option<Duration> {
    let lease = written?;
    if lease.value.0 < SHORTEST_LEASE {
        cx.error(lease.span, "a lease must be at least 1s")
            .help("it is renewed three times in its length; leave it out for 30s");
    }
    Some(lease.value.0)
}

fn guard(cx: &mut Lowering<'_>, written: &schema::Redis) -> GuardSettings {
    let mut guard = GuardSettings::default();
    if let Some(timeout) = written.timeout {
        guard.timeout = cx.positive(timeout);
    }
    guard.on_failure = match written.on_failure {
        Some(schema::OnFailure::Allow) => OnFailure::Allow,
        Some(schema::OnFailure::Deny) => OnFailure::Deny,
        None | Some(schema::OnFailure::Local) => OnFailure::Local,
    };
    guard
}
