//! What remembers buckets.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use super::{Lowered, Lowering};
use crate::config::duration::HumanDuration;
use crate::config::schema;
use crate::config::settings::{RedisStore, StoreSettings};
use crate::config::yaml::{Spanned, WordOr};
use crate::store::{GuardSettings, MemorySettings, OnFailure, RedisSettings};

/// As many buckets as the memory store keeps unless told otherwise: some 32 MB.
const DEFAULT_MAX_BUCKETS: NonZeroUsize = NonZeroUsize::new(1_000_000).unwrap();

/// A shorter lease could expire between two renewals on a gateway with much to do.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

impl Lowering<'_> {
    pub(super) fn store(
        &mut self,
        written: Option<&Spanned<schema::Store>>,
    ) -> Lowered<StoreSettings> {
        let memory = self.memory(written.and_then(|it| it.memory.as_ref()));
        match written.and_then(|it| it.redis.as_ref()) {
            Some(redis) => {
                let redis = self.redis(redis, memory)?;
                Ok(StoreSettings::Redis(Box::new(redis)))
            }
            None => memory.map(StoreSettings::Memory),
        }
    }

    fn memory(&mut self, written: Option<&schema::Memory>) -> Lowered<MemorySettings> {
        let Some(number) = written.and_then(|it| it.max_buckets) else {
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
                Err(self.error(number.span, message).into())
            }
        }
    }

    fn redis(
        &mut self,
        written: &Spanned<schema::Redis>,
        local: Lowered<MemorySettings>,
    ) -> Lowered<RedisStore> {
        let username = self.username(written);
        let password = written
            .password
            .as_ref()
            .map(|secret| self.secret(secret, secret.span));
        let ca = written
            .ca
            .as_ref()
            .map(|path| (path.span, self.read_file(path, path.span)));
        let guard = self.guard(written);
        let lease = self.lease(written.lease);
        let (username, password) = (username?, password.transpose()?);
        let prefix = written.prefix.as_ref().map(|it| it.value.clone());
        // What a file holds is read again for each connection, so a change of it makes no other store.
        let username_file = match written.username.as_deref() {
            Some(WordOr::More(secret)) => self.path_of(secret),
            Some(WordOr::Word(_)) | None => None,
        };
        let password_file = written.password.as_ref().and_then(|it| self.path_of(it));
        let ca_file = written
            .ca
            .as_ref()
            .map(|path| self.folder.join(&path.value));
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
        let mut settings = self.ok(written.url.span, settings)?;
        if let Some((span, pem)) = ca {
            settings = self.ok(span, settings.with_ca(pem?.as_bytes()))?;
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
    fn path_of(&self, secret: &schema::Secret) -> Option<PathBuf> {
        match secret {
            schema::Secret::File(path) => Some(self.folder.join(path)),
            schema::Secret::Env(_) => None,
        }
    }

    /// A user name is no secret, so it may be written as it is.
    fn username(&mut self, written: &schema::Redis) -> Lowered<Option<String>> {
        let Some(username) = &written.username else {
            return Ok(None);
        };
        match &username.value {
            WordOr::Word(name) => Ok(Some(name.clone())),
            WordOr::More(secret) => self.secret(secret, username.span).map(Some),
        }
    }

    /// How long a gateway that crashed goes on to take places among the requests in flight.
    fn lease(&mut self, written: Option<Spanned<HumanDuration>>) -> Option<Duration> {
        let lease = written?;
        if lease.value.0 < SHORTEST_LEASE {
            self.error(lease.span, "a lease must be at least 1s")
                .help("it is renewed three times in its length; leave it out for 30s");
        }
        Some(lease.value.0)
    }

    fn guard(&mut self, written: &schema::Redis) -> GuardSettings {
        let mut guard = GuardSettings::default();
        if let Some(timeout) = written.timeout {
            guard.timeout = self.positive(timeout);
        }
        guard.on_failure = match written.on_failure {
            Some(schema::OnFailure::Allow) => OnFailure::Allow,
            Some(schema::OnFailure::Deny) => OnFailure::Deny,
            None | Some(schema::OnFailure::Local) => OnFailure::Local,
        };
        guard
    }
}
