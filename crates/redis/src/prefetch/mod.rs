//! Takes units from hot buckets ahead of the requests that spend them.
//!
//! A gateway that asks the store about every request of a bucket with tens of thousands of them a
//! second keeps a core of it busy with that bucket alone. For a limit that allows it
//! ([`Prefetch`](weir_limit::Prefetch)), a gateway that has seen several requests of a bucket in
//! a moment takes units in advance, by one call, and lets requests spend them without a call, until
//! they are used up or too old. What is not spent is given back.
//!
//! Units are taken from the shared bucket *before* they are spent, so gateways never let more pass
//! than the bucket has given out. What passes in a time can exceed the quota only by what was held
//! when that time began: at most the limit's units for each gateway. `docs/ALGORITHMS.md` has the
//! proof, and the tests of this module hold to it.
//!
//! Each hot bucket has a task, on the worker that found it hot, which alone asks the store for its
//! units. Requests that find none wait for that task's answer and not for one of their own.

mod hot_bucket;
mod hot_buckets;

use std::sync::Arc;

use smallvec::smallvec;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{self, Instant};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Batch, BucketKeys, Mode, Transaction};
use weir_store::{
    Call, DecisionSource, Decisions, Guarded, Outcome, OwedBatch, Remote, Store, StoreError,
    StoreFuture,
};

use hot_bucket::IdleCheck;
pub use hot_buckets::HotBuckets;
use hot_buckets::{LastSeen, Lookup, Refiller};

/// The number of takes that a request waits for before it asks the store itself.
const MAX_WAITS: usize = 3;

/// A store that units can be taken from ahead of requests.
///
/// No other store stands in for it: units of another store are not taken from this one.
pub trait PrefetchStore: Store {
    /// Takes units. What a late reply shows as taken is given back.
    fn take_ahead(&self, batch: Batch, now: Timestamp) -> StoreFuture<Outcome>;

    /// Gives back units that were taken ahead.
    fn give_back(&self, batch: Batch, now: Timestamp) -> StoreFuture<()>;
}

impl<S: Remote> PrefetchStore for Guarded<S> {
    fn take_ahead(&self, batch: Batch, now: Timestamp) -> StoreFuture<Outcome> {
        self.decide_remote(Call::Prefetch, batch, now)
    }

    fn give_back(&self, batch: Batch, now: Timestamp) -> StoreFuture<()> {
        self.refund_remote(batch, now)
    }
}

/// A store whose hot buckets are prefetched: one for each worker, over hot buckets that workers
/// share.
pub struct Prefetching<S>(Arc<Prefetcher<S>>);

struct Prefetcher<S> {
    store: Arc<S>,
    buckets: Arc<HotBuckets>,
    keepers: TaskTracker,
    closing: CancellationToken,
}

/// The call that decides without local units.
type Ask<S> = fn(&S, &Batch, Timestamp) -> StoreFuture<Outcome>;

/// How far local units decide a batch.
enum Attempt {
    /// The store decides the transactions that have no decision.
    Decided(Decisions),
    /// One of the limits denies the request, so nothing is taken for the others.
    Denied(Decisions),
    Wait(watch::Receiver<()>),
}

impl<S: PrefetchStore> Prefetching<S> {
    /// Prefetches from a store. It has to be used on a tokio runtime; elsewhere the store decides
    /// everything.
    pub fn new(store: Arc<S>, buckets: Arc<HotBuckets>) -> Self {
        Self(Arc::new(Prefetcher {
            store,
            buckets,
            keepers: TaskTracker::new(),
            closing: CancellationToken::new(),
        }))
    }

    /// Gives back all that was taken by this worker and is not spent, and waits until that is done.
    /// From then on the store decides everything, unless another worker takes units.
    pub async fn end(&self) {
        self.0.closing.cancel();
        self.0.keepers.close();
        self.0.keepers.wait().await;
    }
}

impl<S: PrefetchStore> Store for Prefetching<S> {
    fn decide(&self, batch: &Batch, now: Timestamp) -> StoreFuture<Outcome> {
        self.decide_by(S::decide, batch, now)
    }

    fn admit(&self, batch: &Batch, now: Timestamp) -> StoreFuture<Outcome> {
        self.decide_by(S::admit, batch, now)
    }

    fn refund(&self, mut owed: OwedBatch, now: Timestamp) -> StoreFuture<()> {
        owed.retain(|owed| !self.0.put_back(&owed.transaction));
        if owed.is_empty() {
            return StoreFuture::ready(());
        }
        self.0.store.refund(owed, now)
    }

    /// Units that are lent are never prefetched ones, so the store alone takes them back.
    fn refund_last(
        &self,
        transaction: Transaction,
        by: DecisionSource,
        latest: Timestamp,
        now: Timestamp,
    ) -> StoreFuture<()> {
        self.0.store.refund_last(transaction, by, latest, now)
    }

    /// Other gateways do not learn of it; they hold what they have for a moment longer.
    fn reset(&self, keys: BucketKeys) -> StoreFuture<()> {
        keys.iter().for_each(|key| self.0.buckets.forget(key));
        self.0.store.reset(keys)
    }
}

impl<S: PrefetchStore> Prefetching<S> {
    fn decide_by(&self, ask: Ask<S>, batch: &Batch, now: Timestamp) -> StoreFuture<Outcome> {
        if !batch.iter().any(may_be_held) {
            return ask(&self.0.store, batch, now);
        }
        match self.0.attempt(batch, now) {
            Attempt::Wait(taken) => {
                let prefetcher = Arc::clone(&self.0);
                StoreFuture::waiting(prefetcher.wait(taken, ask, batch.clone(), now))
            }
            Attempt::Decided(decisions) => self.0.ask_rest(ask, batch, decisions, now),
            Attempt::Denied(decisions) => StoreFuture::ready(by_local_units(decisions)),
        }
    }
}

impl<S: PrefetchStore> Prefetcher<S> {
    /// Waits for units, and then decides by the time of that moment.
    async fn wait(
        self: Arc<Self>,
        mut taken: watch::Receiver<()>,
        ask: Ask<S>,
        batch: Batch,
        came: Timestamp,
    ) -> Result<Outcome, StoreError> {
        let waits = Instant::now();
        let mut now = came;
        for _ in 0..MAX_WAITS {
            // The task that takes units may have ended, which is as good a reason to go on.
            let _ = taken.changed().await;
            now = came + Nanos::from(waits.elapsed());
            match self.attempt(&batch, now) {
                Attempt::Wait(again) => taken = again,
                Attempt::Decided(decisions) => {
                    return self.ask_rest(ask, &batch, decisions, now).await;
                }
                Attempt::Denied(decisions) => return Ok(by_local_units(decisions)),
            }
        }
        ask(&self.store, &batch, now).await
    }

    /// Decides as far as local units suffice, and takes the costs from them.
    fn attempt(self: &Arc<Self>, batch: &Batch, now: Timestamp) -> Attempt {
        // Where denials are counted, every one of them has to reach the store.
        let asks_all = batch.iter().any(Transaction::is_counted_when_denied);
        let mut decisions: Decisions = smallvec![None; batch.len()];
        for (index, transaction) in batch.iter().enumerate() {
            let decision = match self.answer(transaction, now) {
                Lookup::Decided(decision) => decision,
                Lookup::Wait(taken) => {
                    self.put_back_all(batch, &decisions, now);
                    return Attempt::Wait(taken);
                }
                Lookup::Ask => continue,
                Lookup::Heated(refiller) => {
                    self.refill(refiller);
                    continue;
                }
            };
            if !decision.allowed && asks_all {
                continue;
            }
            if !decision.allowed {
                self.put_back_all(batch, &decisions, now);
                decisions.fill(None);
            }
            if let Some(place) = decisions.get_mut(index) {
                *place = Some(decision);
            }
            if !decision.allowed {
                return Attempt::Denied(decisions);
            }
        }
        Attempt::Decided(decisions)
    }

    fn answer(&self, transaction: &Transaction, now: Timestamp) -> Lookup {
        match transaction.quota.prefetch() {
            Some(limit) if may_be_held(transaction) => self.buckets.decide(transaction, limit, now),
            _ => Lookup::Ask,
        }
    }

    /// Asks the store about transactions without a decision. When it denies the request, or fails,
    /// local units are put back.
    fn ask_rest(
        self: &Arc<Self>,
        ask: Ask<S>,
        batch: &Batch,
        held: Decisions,
        now: Timestamp,
    ) -> StoreFuture<Outcome> {
        if held.iter().all(Option::is_some) {
            return StoreFuture::ready(by_local_units(held));
        }
        if held.iter().all(Option::is_none) {
            return ask(&self.store, batch, now);
        }
        let both = batch.iter().zip(&held);
        let rest = both.filter(|(_, decision)| decision.is_none());
        let rest: Batch = rest.map(|(transaction, _)| transaction.clone()).collect();
        match ask(&self.store, &rest, now) {
            StoreFuture::Ready(answer) => {
                StoreFuture::Ready(answer.map(|rest| self.join(batch, &held, rest, now)))
            }
            StoreFuture::Waiting(answer) => {
                let (prefetcher, batch) = (Arc::clone(self), batch.clone());
                StoreFuture::waiting(
                    async move { prefetcher.join(&batch, &held, answer.await, now) },
                )
            }
        }
    }

    /// The decisions of both, in the batch's order.
    fn join(
        &self,
        batch: &Batch,
        held: &Decisions,
        rest: Result<Outcome, StoreError>,
        now: Timestamp,
    ) -> Result<Outcome, StoreError> {
        let allowed = rest.as_ref().is_ok_and(Outcome::is_allowed);
        if !allowed {
            self.put_back_all(batch, held, now);
        }
        let rest = rest?;
        let mut others = rest.decisions.iter().copied();
        let both = batch.iter().zip(held);
        let decisions = both.map(|(transaction, held)| match held {
            None => others.next().flatten(),
            Some(held) if !allowed && transaction.has_taken(held) => {
                Some(held.after_giving_back(&transaction.quota, transaction.cost.get()))
            }
            some => *some,
        });
        Ok(Outcome {
            decisions: decisions.collect(),
            source: rest.source,
        })
    }

    /// Puts back what decisions by local units have taken. Units that have no room any more go back
    /// to the store.
    fn put_back_all(&self, batch: &Batch, decisions: &Decisions, now: Timestamp) {
        let both = batch.iter().zip(decisions);
        let taken = both.filter(|(transaction, decision)| {
            decision.is_some_and(|decision| transaction.has_taken(&decision))
        });
        let left = taken.filter(|(transaction, _)| !self.put_back(transaction));
        let left: Batch = left.map(|(transaction, _)| transaction.clone()).collect();
        if let (false, Ok(runtime)) = (left.is_empty(), Handle::try_current()) {
            let answer = self.store.give_back(left, now);
            self.keepers
                .spawn_on(async move { drop(answer.await) }, &runtime);
        }
    }

    fn put_back(&self, transaction: &Transaction) -> bool {
        may_be_held(transaction) && transaction.mode.spends() && self.buckets.put_back(transaction)
    }

    /// Refills a hot bucket in a task on this worker.
    fn refill(&self, refiller: Refiller) {
        if self.closing.is_cancelled() {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            let (store, closing) = (Arc::clone(&self.store), self.closing.clone());
            self.keepers
                .spawn_on(refill(refiller, store, closing), &runtime);
        }
    }
}

/// Takes units from a hot bucket when they are wanted. Gives back the rest when the bucket is no
/// longer hot, or the worker ends.
async fn refill<S: PrefetchStore>(refiller: Refiller, store: Arc<S>, closing: CancellationToken) {
    let mut clock = LastSeen::new();
    loop {
        tokio::select! {
            () = refiller.wanted() => {}
            () = time::sleep(refiller.check_interval()) => {}
            () = closing.cancelled() => refiller.retire(),
        }
        if let Some((first, now)) = refiller.begin() {
            let mut next = Some(first);
            while let Some(take) = next {
                let answer = store.take_ahead(smallvec![take], now).await;
                next = refiller.taken(&answer);
            }
        }
        if let (IdleCheck::Idle(unspent), now) = refiller.check_idle(&mut clock) {
            if let Some(unspent) = unspent {
                // The store reports its failures itself; without it the units are lost.
                let _ = store.give_back(smallvec![unspent], now).await;
            }
            return;
        }
    }
}

fn may_be_held(transaction: &Transaction) -> bool {
    transaction.quota.prefetch().is_some() && transaction.mode != Mode::AllowOnly
}

fn by_local_units(decisions: Decisions) -> Outcome {
    Outcome {
        decisions,
        source: DecisionSource::Prefetched,
    }
}

#[cfg(test)]
mod bound;
#[cfg(test)]
mod tests;
