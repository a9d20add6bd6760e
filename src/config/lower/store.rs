//! What remembers buckets.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::Lowering;
use crate::config::duration::Span;
use crate::config::schema;
use crate::config::settings::{RedisStore, StoreSettings};
use crate::config::yaml::{Placed, WordOr};
use crate::store::{GuardSettings, MemorySettings, OnFailure, RedisSettings};

/// As many buckets as the memory store keeps unless told otherwise: some 32 MB.
const DEFAULT_MAX_BUCKETS: NonZeroUsize = NonZeroUsize::new(1_000_000).unwrap();

/// A shorter lease could expire between two renewals on a gateway with much to do.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

impl Lowering<'_> {
    pub(super) fn store(
        &mut self,
        written: Option<&Placed<schema::Store>>,
    ) -> Option<StoreSettings> {
        let memory = self.memory(written.and_then(|it| it.memory.as_ref()));
        match written.and_then(|it| it.redis.as_ref()) {
            Some(redis) => {
                let redis = self.redis(redis, memory)?;
                Some(StoreSettings::Redis(Box::new(redis)))
            }
            None => memory.map(StoreSettings::Memory),
        }
    }

    fn memory(&mut self, written: Option<&schema::Memory>) -> Option<MemorySettings> {
        let Some(number) = written.and_then(|it| it.max_buckets) else {
            return Some(MemorySettings {
                max_buckets: DEFAULT_MAX_BUCKETS,
            });
        };
        let max_buckets = usize::try_from(number.value)
            .ok()
            .and_then(NonZeroUsize::new);
        if max_buckets.is_none() {
            self.error(number.place, "there must be room for at least one bucket");
        }
        max_buckets.map(|max_buckets| MemorySettings { max_buckets })
    }

    fn redis(
        &mut self,
        written: &Placed<schema::Redis>,
        local: Option<MemorySettings>,
    ) -> Option<RedisStore> {
        let username = self.username(written);
        let password = written.password.as_ref().map(|it| self.secret(it));
        let ca = written
            .ca
            .as_ref()
            .map(|path| (path.place, self.read_file(path, path.place)));
        let guard = self.guard(written);
        let lease = self.lease(written.lease);
        let (username, password) = (transposed(username)?, transposed(password)?);
        let prefix = written.prefix.as_ref().map(|it| it.value.clone());
        let identity = (
            written.url.value.clone(),
            username.clone(),
            password.clone(),
        );
        let settings = RedisSettings::parse(&written.url, username, password);
        let mut settings = self.ok(written.url.place, settings)?;
        if let Some(lease) = lease {
            settings.lease = lease;
        }
        if let Some(prefix) = &prefix {
            settings = settings.with_prefix(prefix);
        }
        let pem = match ca {
            Some((place, pem)) => Some((place, pem?)),
            None => None,
        };
        if let Some((place, pem)) = &pem {
            settings = self.ok(*place, settings.with_ca(pem.as_bytes()))?;
        }
        let identity = (identity, prefix, lease, pem.map(|(_, pem)| pem));
        Some(RedisStore::new(settings, guard, local?, identity))
    }

    /// A user name is no secret, so it may be written as it is.
    fn username(&mut self, written: &schema::Redis) -> Option<Option<String>> {
        written.username.as_ref().map(|it| match it {
            WordOr::Word(name) => Some(name.clone()),
            WordOr::More(secret) => self.secret(secret),
        })
    }

    /// How long a gateway that crashed goes on to take places among the requests in flight.
    fn lease(&mut self, written: Option<Placed<Span>>) -> Option<Duration> {
        let lease = written?;
        if lease.value.0 < SHORTEST_LEASE {
            self.error(lease.place, "a lease must be at least 1s")
                .remedy("it is renewed three times in its length; leave it out for 30s");
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

/// Nothing where something is in error.
fn transposed<T>(value: Option<Option<T>>) -> Option<Option<T>> {
    match value {
        Some(None) => None,
        Some(Some(value)) => Some(Some(value)),
        None => Some(None),
    }
}
