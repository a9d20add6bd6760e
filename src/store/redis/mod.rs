//! Buckets in Redis, shared by many gateways.
//!
//! A batch is one pipeline: for each transaction a `BITFIELD` that checks and takes at once, and a
//! `PEXPIRE` where the bucket's expiry has to be set. What concurrent batches ask in a turn of the
//! event loop is one write on one connection. When one limit denies, what the batch took from the
//! others is given back by a second pipeline, off the response's path: for that moment a bucket is
//! too strict, never too lax. It is too strict as well when the connection breaks between the two.

mod access;
mod batch;
mod check;
mod client;
mod command;
mod connection;
mod dialer;
mod endpoint;
mod expiry;
mod fixed_window;
mod gcra;
mod lease_commands;
mod leases;
mod manager;
mod resp;
mod sentinel;
mod settings;
mod sliding_log;
mod sliding_window;
mod window;

use std::sync::Arc;
use std::time::Duration;

use tokio::time;

use crate::limit::{Batch, BucketKeys, Mode};
use crate::store::{Observer, Outcome, Remote, Store, StoreError, StoreFuture};
use crate::time::{Nanos, Timestamp};
pub use access::{LoginPart, RedisLogin};
use batch::{BatchCall, unasked};
use client::{Client, in_time};
pub use endpoint::{RedisNodes, RedisUrlError};
use expiry::Expiry;
use leases::LeaseRenewer;
use manager::{ConnectionManager, Location, Session, Supervisor};
use resp::Request;
#[cfg(any(test, fuzzing))]
pub use resp::fuzzing;
use settings::Deployment;
pub use settings::RedisSettings;

/// The name of a key that is not a bucket's, because it does not name a subject.
const PROBE: &str = "probe";

/// A connection to Redis, kept up by a task of its own: one for each worker.
///
/// Calls have no deadline here, and fail at once when there is no connection; see
/// [`crate::store::Guarded`].
pub struct Redis {
    client: Arc<Client>,
    renewer: LeaseRenewer,
    _supervisor: Supervisor,
}

impl Redis {
    /// Connects, and connects again whenever the connection is lost, until this is dropped.
    ///
    /// Must be called on a tokio runtime.
    ///
    /// # Errors
    /// [`StoreError::Failed`] when the settings cannot be used at all.
    pub fn spawn(settings: RedisSettings, observer: Arc<dyn Observer>) -> Result<Self, StoreError> {
        let settings = settings.shared(&observer);
        let location = match (&settings.deployment, &settings.primary) {
            (Deployment::Single(address), _) => Location::Fixed(address.clone()),
            (Deployment::Sentinel(_), Some(primary)) => Location::Primary(primary.address()),
            (Deployment::Cluster(_) | Deployment::Sentinel(_), _) => {
                return Err(StoreError::Failed(
                    format!("{settings} cannot be used by this version of Weir").into(),
                ));
            }
        };
        let (manager, supervisor) =
            ConnectionManager::supervised(location, settings.clone(), Arc::clone(&observer));
        let client = Arc::new(Client::new(manager, &settings, observer));
        Ok(Self {
            renewer: LeaseRenewer::spawn(&client, settings.lease),
            client,
            _supervisor: supervisor,
        })
    }

    /// Waits at most `within` for a connection.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn connected(&self, within: Duration) -> Result<(), StoreError> {
        let _ = time::timeout(within, self.client.manager().connected()).await;
        self.client.manager().session().map(drop)
    }

    /// How many refunds, clamps and releases are under way that no caller waits for.
    pub fn background_calls(&self) -> usize {
        self.client.background_calls() + self.renewer.leases().unreleased()
    }

    /// Makes a call with the connection that is there, or fails at once.
    fn with_session<T, F>(
        &self,
        call: impl FnOnce(Arc<Client>, Arc<Session>) -> F,
    ) -> StoreFuture<T>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        match self.client.manager().session() {
            Ok(session) => StoreFuture::waiting(call(Arc::clone(&self.client), session)),
            Err(error) => StoreFuture::failed(error),
        }
    }

    /// Sends commands and reads their replies.
    fn call(&self, request: Request) -> StoreFuture<()> {
        self.with_session(async move |client, session| {
            client.send(&session, request).await.map(drop)
        })
    }

    /// Checks the connection, and then sends commands, with a deadline. A connection that does not
    /// answer is given up: the server may be gone without a word.
    fn examine(&self, request: Request) -> StoreFuture<()> {
        self.with_session(async move |client, session| {
            let answer = in_time(async {
                client.check(&session).await?;
                match request.is_empty() {
                    true => Ok(()),
                    false => client.send(&session, request).await.map(drop),
                }
            });
            let answer = answer.await;
            if matches!(answer, Err(StoreError::Deadline)) {
                client.manager().give_up(&session, None);
            }
            answer
        })
    }
}

impl Store for Redis {
    fn decide(&self, batch: Batch, now: Timestamp) -> StoreFuture<Outcome> {
        if batch
            .iter()
            .all(|transaction| transaction.mode == Mode::AllowOnly)
        {
            return StoreFuture::ready(unasked(&batch));
        }
        self.with_session(|client, session| BatchCall::new(client, session, batch, now))
    }

    fn refund(&self, batch: Batch, now: Timestamp) -> StoreFuture<()> {
        if !batch.iter().any(|transaction| transaction.mode.spends()) {
            return StoreFuture::ready(());
        }
        self.with_session(|client, session| client.refund_batch(session, batch, now))
    }

    fn reset(&self, keys: BucketKeys) -> StoreFuture<()> {
        if keys.is_empty() {
            return StoreFuture::ready(());
        }
        let mut request = Request::default();
        for key in &keys {
            let key = self.client.key(key);
            gcra::delete(&mut request, &key);
            // The algorithms of the buckets are not known here. One command each, as the keys of
            // a command to a Cluster must be in one place.
            for mark in window::MARKS {
                gcra::delete(&mut request, &[&key, mark.as_bytes()].concat());
            }
        }
        self.call(request)
    }
}

impl Remote for Redis {
    fn ping(&self) -> StoreFuture<()> {
        self.examine(Request::default())
    }

    /// Writes as a decision would: a server whose memory is full says what time it has, but cannot
    /// decide.
    fn probe(&self) -> StoreFuture<()> {
        let mut request = Request::default();
        let key = self.client.key(&PROBE.into());
        let nothing = (Nanos::ZERO, Nanos::ZERO);
        let then = Timestamp::default();
        gcra::take(&mut request, &key, nothing, Expiry::Set, then);
        self.examine(request)
    }

    fn lost(&self) -> StoreFuture<()> {
        let client = Arc::clone(&self.client);
        StoreFuture::waiting(async move {
            client.manager().lost().await;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
