//! A custom store: buckets in a map behind a lock.
//!
//! A store owns atomicity: it takes a batch's costs from all buckets or from none. The arithmetic
//! is the transaction's. This store counts every limit by GCRA; the stores of the package also keep
//! windows.
//!
//! `cargo run --example store`, then `curl -i http://127.0.0.1:3000/` a dozen times.

use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use weir::limit::{Batch, BucketKey, BucketKeys, Quota, Transaction};
use weir::middleware::RateLimitLayer;
use weir::store::{DecisionSource, Outcome, Owed, OwedBatch, Store, StoreFuture};
use weir::time::{Nanos, Timestamp};

/// For each bucket the time at which it is full again. It forgets none, so clients that rotate
/// their keys fill the memory: a store for production needs a bound.
#[derive(Default)]
struct MapStore(Mutex<HashMap<BucketKey, Timestamp>>);

fn debt(buckets: &HashMap<BucketKey, Timestamp>, key: &BucketKey, now: Timestamp) -> Nanos {
    buckets.get(key).map_or(Nanos::ZERO, |full| full.since(now))
}

impl Store for MapStore {
    fn decide(&self, batch: &Batch, now: Timestamp) -> StoreFuture<Outcome> {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let decide = |transaction: &Transaction| {
            let debt = debt(&buckets, &transaction.key, now);
            (transaction.decide(debt), transaction.untouched(debt))
        };
        let decisions: Vec<_> = batch.iter().map(decide).collect();
        let is_allowed = decisions.iter().all(|(decision, _)| decision.allowed);
        let told = decisions.iter().map(|(decision, untouched)| {
            // What this bucket allows is not taken if another one denies.
            match decision.allowed && !is_allowed {
                true => Some(*untouched),
                false => Some(*decision),
            }
        });
        let outcome = Outcome {
            decisions: told.collect(),
            source: DecisionSource::Store,
        };
        if is_allowed {
            for (transaction, decision) in outcome.taken(batch) {
                buckets.insert(transaction.key.clone(), now + decision.reset_in);
            }
        }
        StoreFuture::ready(outcome)
    }

    fn refund(&self, owed: OwedBatch, now: Timestamp) -> StoreFuture<()> {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let spent = |owed: &&Owed| owed.transaction.mode.spends();
        for Owed { transaction, until } in owed.iter().filter(spent) {
            let debt = debt(&buckets, &transaction.key, now);
            let taken = transaction.quota.increment(transaction.cost);
            // The rest has come back by itself.
            let refund = taken.unwrap_or(Nanos::ZERO).min(until.since(now));
            let left = debt.saturating_sub(refund);
            buckets.insert(transaction.key.clone(), now + left);
        }
        StoreFuture::ready(())
    }

    fn reset(&self, keys: BucketKeys) -> StoreFuture<()> {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for key in &keys {
            buckets.remove(key);
        }
        StoreFuture::ready(())
    }
}

/// The service, with limits whose buckets are in a [`MapStore`].
pub fn app() -> Result<Router, Box<dyn Error>> {
    // Five at once, then one a second, for each client address.
    let limits = RateLimitLayer::per_address(Quota::per_minute(60).burst(5))?
        .with_peer(|peer: &ConnectInfo<SocketAddr>| peer.0.ip())
        .with_store(Arc::new(MapStore::default()));
    Ok(Router::new().route("/", get(|| async { "hello\n" }).layer(limits)))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    let service = app()?.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}
