//! Buckets in Redis, shared by many gateways.
//!
//! A batch is one pipeline: for each transaction a `BITFIELD` that checks and takes at once, and a
//! `PEXPIRE` where the bucket's expiry has to be set. What concurrent batches ask in a turn of the
//! event loop is one write on one connection. When one limit denies, what the batch took from the
//! others is given back by a second pipeline, off the response's path: for that moment a bucket is
//! too strict, never too lax. It is too strict as well when the connection breaks between the two.

mod ask;
mod asked;
mod channel;
mod check;
mod commands;
mod connection;
mod expiry;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod giving_back;
mod leases;
mod link;
mod mixed;
mod replies;
mod request;
mod settings;
mod socket;
mod windows;

use std::sync::Arc;
use std::time::Duration;

use tokio::time;

use crate::limit::{Batch, BucketKeys, Mode};
use crate::store::{Observer, Outcome, Remote, Store, StoreError, StoreFuture};
use crate::time::{Nanos, Timestamp};
use ask::{Asking, unasked};
use channel::{Client, in_time};
use commands::Expiry;
use leases::LeaseRenewer;
use link::{ConnectionManager, Supervisor};
use mixed::has_windows;
use request::Request;
pub use settings::{RedisSettings, RedisUrlError};

/// The name of a key that is no bucket's, because it names no subject.
const PROBE: &str = "probe";

/// A connection to Redis, kept up by a task of its own: one for each worker.
///
/// Calls have no deadline here, and fail at once when there is no connection; see
/// [`crate::store::Guarded`].
pub struct Redis {
    channel: Arc<Client>,
    lessee: LeaseRenewer,
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
        if settings.is_tls() {
            choose_crypto();
        }
        let (link, supervisor) =
            ConnectionManager::supervised(settings.clone(), Arc::clone(&observer));
        let channel = Arc::new(Client::new(link, &settings, observer));
        Ok(Self {
            lessee: LeaseRenewer::spawn(&channel, settings.lease),
            channel,
            _supervisor: supervisor,
        })
    }

    /// Waits for a connection, at most so long.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn connected(&self, within: Duration) -> Result<(), StoreError> {
        let _ = time::timeout(within, self.channel.link().connected()).await;
        self.channel.link().connection().map(drop)
    }

    /// How many refunds, clamps and releases are under way that no caller waits for.
    pub fn unsettled(&self) -> usize {
        self.channel.unsettled() + self.lessee.unsettled()
    }

    /// Sends commands and reads their replies, with a connection that is there.
    fn call(&self, request: Request) -> StoreFuture<()> {
        match self.channel.link().connection() {
            Err(error) => StoreFuture::failed(error),
            Ok(live) => {
                let channel = Arc::clone(&self.channel);
                StoreFuture::waiting(async move { channel.send(&live, request).await.map(drop) })
            }
        }
    }

    /// Checks the connection, and then sends commands, with a deadline. A connection that does not
    /// answer is given up: the server may be gone without a word.
    fn examine(&self, request: Request) -> StoreFuture<()> {
        let live = match self.channel.link().connection() {
            Err(error) => return StoreFuture::failed(error),
            Ok(live) => live,
        };
        let channel = Arc::clone(&self.channel);
        StoreFuture::waiting(async move {
            let answer = in_time(async {
                channel.check(&live).await?;
                match request.is_empty() {
                    true => Ok(()),
                    false => channel.send(&live, request).await.map(drop),
                }
            });
            let answer = answer.await;
            if matches!(answer, Err(StoreError::Deadline)) {
                channel.link().give_up(&live, None);
            }
            answer
        })
    }
}

/// The TLS library panics when no cryptographic back end is chosen and its features leave it none
/// or several, which other packages of a program have a say in. A choice already made stays.
fn choose_crypto() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

impl Store for Redis {
    fn decide(&self, batch: Batch, now: Timestamp) -> StoreFuture<Outcome> {
        if batch.iter().all(|one| one.kind == Mode::AllowOnly) {
            return StoreFuture::ready(unasked(&batch));
        }
        match self.channel.link().connection() {
            Ok(live) => {
                let channel = Arc::clone(&self.channel);
                if has_windows(&batch) {
                    StoreFuture::waiting(channel.ask_mixed(live, batch, now))
                } else {
                    StoreFuture::waiting(Asking::new(channel, live, batch, now))
                }
            }
            Err(error) => StoreFuture::failed(error),
        }
    }

    fn refund(&self, batch: Batch, now: Timestamp) -> StoreFuture<()> {
        if has_windows(&batch) {
            return match self.channel.link().connection() {
                Ok(live) => {
                    StoreFuture::waiting(Arc::clone(&self.channel).refund_mixed(live, batch, now))
                }
                Err(error) => StoreFuture::failed(error),
            };
        }
        let mut request = Request::default();
        for one in batch.iter().filter(|one| one.kind.spends()) {
            if let Some(increment) = one.quota.increment(one.cost) {
                self.channel
                    .add_give_back(&mut request, one, increment, now);
            }
        }
        if request.is_empty() {
            return StoreFuture::ready(());
        }
        self.call(request)
    }

    fn reset(&self, keys: BucketKeys) -> StoreFuture<()> {
        if keys.is_empty() {
            return StoreFuture::ready(());
        }
        let mut request = Request::default();
        for key in &keys {
            let key = self.channel.key(key);
            commands::forget(&mut request, &key);
            // The algorithms of the buckets are not known here. One command each, as the keys of
            // a command to a Cluster must be in one place.
            for mark in windows::MARKS {
                commands::forget(&mut request, &[&key, mark.as_bytes()].concat());
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
        let key = self.channel.key(&PROBE.into());
        let nothing = (Nanos::ZERO, Nanos::ZERO);
        let then = Timestamp::default();
        commands::take(&mut request, &key, nothing, Expiry::Set, then);
        self.examine(request)
    }

    fn lost(&self) -> StoreFuture<()> {
        let channel = Arc::clone(&self.channel);
        StoreFuture::waiting(async move {
            channel.link().lost().await;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
