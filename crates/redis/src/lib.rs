//! Buckets in Redis, shared by many gateways.
//!
//! A batch is one pipeline: for each transaction a `BITFIELD` that checks and takes at once, and a
//! `PEXPIRE` where the bucket's expiry has to be set. Batches that are sent within one poll are one
//! write on one connection. When one limit denies, what the batch took from the
//! others is given back by a second pipeline, off the response's path: for that moment a bucket is
//! too strict, never too lax. It is too strict as well when the connection breaks between the two.
//!
//! Each worker has a `Node` for each server, and the node a `Session` for its present connection. A
//! call keeps its session when the connection breaks and the node gets another one. In a Cluster, the
//! map of slots has a `ClusterNode` for each node, which drops its `Node` when it leaves the map. What
//! sessions and calls need for longer is in its `Member`: address, slots and circuit breaker.
//!
//! The crate `weir` has what is promised of it to users, as `weir::store`; what else is public here
//! serves Weir's other crates.

#![forbid(unsafe_code)]

mod access;
mod awaited_nodes;
mod batch;
mod batch_plan;
mod check;
mod checked_call;
mod client;
mod cluster;
mod command;
mod connection;
mod dialer;
mod eight_bytes;
mod endpoint;
mod expiry;
mod fixed_window;
mod gcra;
mod lease_commands;
mod leases;
mod levels;
mod login;
mod manager;
mod needed_commands;
mod node;
mod node_requests;
mod prefetch;
mod refund;
mod resolve;
mod resp;
mod scan;
mod sentinel;
mod server_error;
mod settings;
mod shared_list;
mod shared_text;
mod sliding_log;
mod sliding_window;
mod window;

use std::sync::Arc;
use std::time::Duration;

use tokio::time;
use weir_limit::time::Timestamp;
use weir_limit::{Batch, BucketKeys, Mode, Transaction};
use weir_store::{
    DecisionSource, GuardSettings, HealthCheck, Observer, Outcome, OwedBatch, Reachability, Remote,
    Store, StoreError, StoreFuture,
};

pub use access::{LoginPart, RedisLogin};
use batch::{BatchCall, untouched_outcome};
use checked_call::{CheckedCall, reads_first};
use client::{Client, Key, Nodes};
use cluster::Cluster;
#[cfg(feature = "internals")]
pub use dialer::{Connect, Socket, Stream};
pub use endpoint::{RedisNodes, RedisUrlError};
use leases::LeaseRenewer;
use manager::{Location, Supervisor};
pub use needed_commands::UsedAlgorithms;
use node::Node;
pub use prefetch::{HotBuckets, PrefetchStore, Prefetching};
use resp::Request;
#[cfg(any(test, fuzzing, feature = "fuzzing"))]
pub use resp::fuzzing;
pub use server_error::ErrorReply;
use settings::Deployment;
pub use settings::RedisSettings;

/// A connection to Redis, or to each node of a Redis Cluster, kept up by tasks of their own: one
/// for each worker.
///
/// Calls have no deadline here, and fail at once when there is no connection; see
/// [`weir_store::Guarded`].
pub struct Redis {
    client: Arc<Client>,
    renewer: LeaseRenewer,
    /// Learns which nodes there are, in a Cluster.
    _learner: Option<Supervisor>,
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
        let alone = |location| {
            let node = Node::spawn(location, settings.clone(), Arc::clone(&observer), None);
            (Nodes::One(Arc::new(node)), None)
        };
        let (nodes, learner) = match (settings.deployment.clone(), &settings.primary) {
            (Deployment::Single(address), _) => alone(Location::Fixed(address)),
            (Deployment::Sentinel(_), Some(primary)) => alone(Location::Primary(primary.address())),
            (Deployment::Cluster(seeds), _) => {
                let (cluster, learner) =
                    Cluster::spawn(settings.clone(), seeds, Arc::clone(&observer));
                (Nodes::Cluster(cluster), Some(learner))
            }
            (Deployment::Sentinel(_), None) => {
                return Err(StoreError::Failed("no Sentinel is asked".into()));
            }
        };
        let client = Arc::new(Client::new(nodes, &settings, observer));
        Ok(Self {
            renewer: LeaseRenewer::spawn(&client, settings.lease),
            client,
            _learner: learner,
        })
    }

    /// Waits at most `within` for a connection, or one to each node.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn connected(&self, within: Duration) -> Result<(), StoreError> {
        match self.client.nodes() {
            Nodes::One(node) => {
                let _ = time::timeout(within, node.manager().connected()).await;
                node.session().map(drop)
            }
            Nodes::Cluster(cluster) => {
                let _ = time::timeout(within, cluster.connected()).await;
                let topology = cluster.topology();
                let mut sessions = topology.nodes().map(|node| node.session().map(drop));
                cluster
                    .check_known()
                    .and_then(|()| sessions.try_for_each(|session| session))
            }
        }
    }

    /// How many refunds, clamps and releases are under way that no caller waits for.
    pub fn background_calls(&self) -> usize {
        self.client.background_calls() + self.renewer.leases().unreleased()
    }

    /// Deletes keys. One command each, as the keys of a command to a Cluster must be in one slot.
    fn delete(&self, keys: impl Iterator<Item = Key>) -> StoreFuture<()> {
        let requests = || {
            let mut requests = self.client.node_requests()?;
            for key in keys {
                let index = requests.index_for(&key)?;
                if let Some(node) = requests.get_mut(index) {
                    gcra::delete(&mut node.request, &key);
                }
            }
            Ok(requests)
        };
        match requests() {
            Ok(requests) if requests.is_empty() => StoreFuture::ready(()),
            Ok(requests) => self.client.tracked(move |client, awaited| {
                Ok(async move { client.call(requests, &awaited).await })
            }),
            Err(error) => StoreFuture::failed(error),
        }
    }
}

impl Store for Redis {
    fn decide(&self, batch: &Batch, now: Timestamp) -> StoreFuture<Outcome> {
        if batch
            .iter()
            .all(|transaction| transaction.mode == Mode::AllowOnly)
        {
            return StoreFuture::ready(untouched_outcome(batch));
        }
        let client = Arc::clone(&self.client);
        if reads_first(batch) {
            return match CheckedCall::new(client, batch.clone(), now) {
                Ok(call) => StoreFuture::pending(call),
                Err(error) => StoreFuture::failed(error),
            };
        }
        match BatchCall::new(client, batch.clone(), now) {
            Ok(call) => StoreFuture::pending(call),
            Err(error) => StoreFuture::failed(error),
        }
    }

    fn refund(&self, owed: OwedBatch, now: Timestamp) -> StoreFuture<()> {
        if !owed.iter().any(|owed| owed.transaction.mode.spends()) {
            return StoreFuture::ready(());
        }
        match self.client.node_requests() {
            Ok(requests) => self.client.refund_batch(requests, owed, now),
            Err(error) => StoreFuture::failed(error),
        }
    }

    fn refund_last(
        &self,
        transaction: Transaction,
        _: DecisionSource,
        latest: Timestamp,
        now: Timestamp,
    ) -> StoreFuture<()> {
        let Some(increment) = transaction.quota.increment(transaction.cost) else {
            return StoreFuture::ready(());
        };
        let key = self.client.key(&transaction.key);
        let tolerance = transaction.quota.tolerance();
        self.client.tracked(move |client, awaited| {
            let mut requests = client.node_requests()?;
            requests.index_for(&key)?;
            Ok(async move {
                let give_back = |_, session, mut request| {
                    let (client, key) = (&client, &key);
                    async move {
                        gcra::refund_last(&mut request, key, increment, latest);
                        let replies = client.send_checked(&session, request).await?;
                        if replies.first().is_some_and(gcra::never_expires) {
                            let mut renewal = Request::default();
                            gcra::renew(&mut renewal, key, tolerance, now);
                            client.send_checked(&session, renewal).await?;
                        }
                        Ok(())
                    }
                };
                client
                    .each_node(requests.into_requests(), &awaited, give_back)
                    .await
                    .map(drop)
            })
        })
    }

    /// The algorithms of the buckets are not known here.
    fn reset(&self, keys: BucketKeys) -> StoreFuture<()> {
        let marks = || [""].into_iter().chain(window::MARKS);
        let of_key = |key| marks().map(move |mark| self.client.marked_key(key, mark));
        self.delete(keys.iter().flat_map(of_key))
    }

    fn is_shared(&self) -> bool {
        true
    }
}

impl HealthCheck for Redis {
    fn ping(&self) -> StoreFuture<()> {
        match self.client.nodes() {
            Nodes::One(node) => node.health().ping(),
            Nodes::Cluster(cluster) => StoreFuture::Ready(Some(cluster.check_known())),
        }
    }

    fn probe(&self) -> StoreFuture<()> {
        match self.client.nodes() {
            Nodes::One(node) => node.health().probe(),
            Nodes::Cluster(cluster) => StoreFuture::Ready(Some(cluster.check_known())),
        }
    }

    fn lost(&self) -> StoreFuture<()> {
        match self.client.nodes() {
            Nodes::One(node) => node.health().lost(),
            // A map that is known stays known. That nodes are lost is the affair of their own
            // circuit breakers.
            Nodes::Cluster(_) => StoreFuture::waiting(std::future::pending()),
        }
    }
}

impl Remote for Redis {
    fn guard_nodes(&self, settings: GuardSettings, reachability: &Arc<Reachability>) {
        if let Nodes::Cluster(cluster) = self.client.nodes() {
            cluster.guard(settings, reachability);
        }
    }
}

#[cfg(test)]
mod tests;
