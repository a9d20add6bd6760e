//! Leases of a store that may be out of reach.

use std::sync::Arc;

use smallvec::smallvec;
use weir_limit::time::Timestamp;
use weir_limit::{BucketKeys, Claims};

use super::{LeaseGuard, Leased, Leases};
use crate::guarded::Guard;
use crate::{Call, DecisionSource, Guarded, OnFailure, Outcome, Remote, StoreError, StoreFuture};

impl<S: Remote> Guard<S> {
    fn acquire_without(&self, claims: &Claims, error: StoreError) -> StoreFuture<Leased> {
        match self.settings.on_failure {
            OnFailure::Deny => StoreFuture::failed(error),
            OnFailure::Allow => StoreFuture::ready(Leased {
                outcome: Outcome {
                    decisions: smallvec![None; claims.len()],
                    source: DecisionSource::FailedOpen,
                },
                guard: LeaseGuard::EMPTY,
            }),
            OnFailure::Local => {
                let mut leased = self.local.leases().acquire_now(claims);
                leased.outcome.source = DecisionSource::Local;
                StoreFuture::ready(leased)
            }
        }
    }
}

/// Leases that the store gave are its own affair when it is out of reach: they are released there
/// as soon as it is back, or expire. Meanwhile the memory store counts only those that it gave
/// itself.
impl<S: Remote + Leases> Leases for Guarded<S> {
    fn acquire(&self, claims: Claims, now: Timestamp) -> StoreFuture<Leased> {
        let guard = Arc::clone(&self.guard);
        if guard.breaker.is_open() {
            return guard.acquire_without(&claims, StoreError::OutOfReach);
        }
        StoreFuture::waiting(async move {
            let answer = guard.store.acquire(claims.clone(), now);
            match guard.in_time(Call::Acquire, answer).await {
                Ok(leased) => Ok(leased),
                // A lease that comes too late is released when it is there: a release that got to
                // the store before it would leave it held.
                Err(failure) => guard.acquire_without(&claims, failure.finish()).await,
            }
        })
    }

    fn delete(&self, keys: BucketKeys) -> StoreFuture<()> {
        let local = self.guard.local.leases().delete(keys.clone());
        self.guard.clear(local, |store| store.delete(keys))
    }

    fn end(&self) -> StoreFuture<()> {
        self.guard.store.end()
    }
}
