//! Leases of a store that may be out of reach.
//!
//! Those that the store gave are its own affair when it is gone: they are released there as soon as it
//! is back, or expire. Meanwhile the memory store counts only those that it gave itself.

use std::sync::Arc;

use smallvec::smallvec;

use super::late::NoAnswer;
use super::{Guarded, Inner, OnFailure};
use crate::limit::{BucketKeys, Claims};
use crate::store::{
    Call, DecisionSource, Held, Leased, Leases, Outcome, Remote, StoreError, StoreFuture,
};
use crate::time::Timestamp;

impl<S: Remote> Inner<S> {
    fn acquire_without(&self, claims: &Claims, error: StoreError) -> StoreFuture<Leased> {
        match self.settings.on_failure {
            OnFailure::Deny => StoreFuture::failed(error),
            OnFailure::Allow => StoreFuture::ready(Leased {
                outcome: Outcome {
                    decisions: smallvec![None; claims.len()],
                    basis: DecisionSource::FailedOpen,
                },
                held: Held::NOTHING,
            }),
            OnFailure::Local => {
                let mut leased = self.local.leases().acquire_now(claims);
                leased.outcome.basis = DecisionSource::Local;
                StoreFuture::ready(leased)
            }
        }
    }
}

impl<S: Remote + Leases> Leases for Guarded<S> {
    fn acquire(&self, claims: Claims, now: Timestamp) -> StoreFuture<Leased> {
        let inner = Arc::clone(&self.inner);
        if inner.breaker.is_open() {
            return inner.acquire_without(&claims, StoreError::OutOfReach);
        }
        StoreFuture::waiting(async move {
            let answer = inner.store.acquire(claims.clone(), now);
            match inner.in_time(Call::Acquire, answer).await {
                Ok(leased) => Ok(leased),
                // A lease that comes too late is released when it is there: a release that got to
                // the store before it would leave it held.
                Err(none) => inner.acquire_without(&claims, none.finished()).await,
            }
        })
    }

    /// Forgets them here and in the store; a store that is out of reach is an error even so.
    fn forget(&self, keys: BucketKeys) -> StoreFuture<()> {
        let local = self.inner.local.leases().forget(keys.clone());
        if self.inner.breaker.is_open() {
            return StoreFuture::failed(StoreError::OutOfReach);
        }
        let inner = Arc::clone(&self.inner);
        StoreFuture::waiting(async move {
            local.await?;
            let answer = inner.store.forget(keys);
            let answer = inner.in_time(Call::Reset, answer).await;
            answer.map_err(NoAnswer::finished)
        })
    }

    fn end(&self) -> StoreFuture<()> {
        self.inner.store.end()
    }
}
