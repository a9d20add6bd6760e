//! Makes a store that may be out of reach safe to wait for.
//!
//! Every call has a deadline. After some failures in a row, or when the connection is lost, the
//! breaker opens: from then on no call waits at all, until a task in the background finds that
//! the store decides again, and within the deadline. What happens to requests meanwhile is up to
//! [`OnFailure`].
//!
//! A call that ran into its deadline may have taken its units all the same. Its answer is awaited
//! in the background: a request that was denied without it gets back what it took, from the servers
//! that took it. An answer that never comes, because the connection broke, tells nothing, and
//! nothing is given back. That is too strict by those units; it is never too lax.

use std::sync::Arc;
use std::time::Duration;

use smallvec::smallvec;
use tokio::runtime::Handle;
use tokio::time::{self, Instant};
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Batch, BucketKeys, Transaction};

use crate::breaker::{Breaker, BreakerSettings, CircuitSupervisor, Reachability};
use crate::{
    Call, ChangedList, DecisionSource, HealthCheck, KeyScan, Memory, Outcome, Owed, OwedBatch,
    Remote, ScanPosition, ScannedKeys, SharedEntry, SharedLists, SharedTexts, Store, StoreError,
    StoreFuture,
};

/// How long it is tried to send a refund to a server that is out of reach: one that is frozen or
/// restarted may be back by then, and is not replaced yet by another.
const RETRY_REFUNDS_FOR: Duration = Duration::from_secs(2);

/// How long to wait for a store and what to do without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardSettings {
    /// The deadline of a call.
    pub timeout: Duration,
    /// What becomes of requests while the store gives no answer.
    pub on_failure: OnFailure,
    /// When to stop asking.
    pub breaker: BreakerSettings,
}

impl Default for GuardSettings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_millis(20),
            on_failure: OnFailure::Local,
            breaker: BreakerSettings::default(),
        }
    }
}

/// What becomes of requests while the store gives no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// They are let through: [`DecisionSource::FailedOpen`].
    Allow,
    /// They are failed: the call returns the [`StoreError`].
    Deny,
    /// The memory store decides them, with the same limits: [`DecisionSource::Local`].
    Local,
}

/// A remote store with a deadline, a breaker, and something to do on failure: one for each worker.
pub struct Guarded<S> {
    pub(super) guard: Arc<Guard<S>>,
    _supervisor: CircuitSupervisor,
}

pub(super) struct Guard<S> {
    pub(super) store: S,
    pub(super) settings: GuardSettings,
    pub(super) breaker: Arc<Breaker>,
    pub(super) local: Arc<Memory>,
}

impl<S: Remote> Guarded<S> {
    /// Guards a store. `reachability` and `local` are shared by all workers of the process;
    /// `local` is used with [`OnFailure::Local`] only.
    ///
    /// Must be called on a tokio runtime, where a task then supervises the store.
    pub fn spawn(
        store: S,
        settings: GuardSettings,
        reachability: Arc<Reachability>,
        local: Arc<Memory>,
    ) -> Self {
        store.guard_nodes(settings, &reachability);
        let breaker = Arc::new(Breaker::new(settings.breaker, reachability));
        let guard = Arc::new(Guard {
            store,
            settings,
            breaker: Arc::clone(&breaker),
            local,
        });
        let supervised = Arc::clone(&guard);
        Self {
            guard,
            _supervisor: CircuitSupervisor::spawn(supervised, breaker, settings.timeout),
        }
    }

    /// The store that is guarded.
    pub fn get_ref(&self) -> &S {
        &self.guard.store
    }

    /// Whether this worker reaches the store, for all it knows.
    pub fn is_reachable(&self) -> bool {
        !self.guard.breaker.is_open()
    }
}

impl<S: HealthCheck> HealthCheck for Guard<S> {
    fn ping(&self) -> StoreFuture<()> {
        self.store.ping()
    }

    fn probe(&self) -> StoreFuture<()> {
        self.store.probe()
    }

    fn lost(&self) -> StoreFuture<()> {
        self.store.lost()
    }
}

impl<S: Remote> Guard<S> {
    /// Clears something here, which `local` does, and in the store; a store that is out of reach is
    /// an error even so.
    pub(super) fn clear(
        self: &Arc<Self>,
        local: StoreFuture<()>,
        in_store: impl FnOnce(&S) -> StoreFuture<()> + Send + 'static,
    ) -> StoreFuture<()> {
        if self.breaker.is_open() {
            return StoreFuture::failed(StoreError::OutOfReach);
        }
        let guard = Arc::clone(self);
        StoreFuture::waiting(async move {
            local.await?;
            let answer = guard.in_time(Call::Reset, in_store(&guard.store)).await;
            answer.map_err(CallFailure::finish)
        })
    }

    /// Waits for an answer, until the deadline, and counts how it went.
    pub(super) async fn in_time<T: Unpin>(
        &self,
        call: Call,
        mut answer: StoreFuture<T>,
    ) -> Result<T, CallFailure<T>> {
        let asked_at = Instant::now();
        let done = time::timeout(self.settings.timeout, &mut answer).await;
        let is_late = done.is_err();
        let done = done.unwrap_or_else(|_| Err(answer.overdue()));
        let failure = done.as_ref().err();
        if !failure.is_some_and(StoreError::is_unasked) {
            self.breaker
                .observer()
                .called(call, asked_at.elapsed(), failure);
        }
        self.breaker.record(failure);
        done.map_err(|error| CallFailure {
            error,
            call: FailedCall {
                answer,
                is_late,
                asked_at,
            },
        })
    }

    fn decide_without(
        &self,
        batch: &Batch,
        now: Timestamp,
        error: StoreError,
    ) -> Result<Outcome, StoreError> {
        match self.settings.on_failure {
            OnFailure::Deny => Err(error),
            OnFailure::Allow => Ok(Outcome {
                decisions: smallvec![None; batch.len()],
                source: DecisionSource::FailedOpen,
            }),
            OnFailure::Local => Ok(Outcome {
                source: DecisionSource::Local,
                ..self.local.decide_now(batch, now)
            }),
        }
    }

    /// Decides what the store refuses to decide of a batch. When that denies, what the store took
    /// for the others is given back.
    async fn decide_rest(
        &self,
        batch: &Batch,
        (mut answer, mut decided): (StoreFuture<Outcome>, Outcome),
        now: Timestamp,
        error: StoreError,
    ) -> Result<Outcome, StoreError> {
        let both = batch.iter().zip(&decided.decisions);
        let missing = both.filter(|(_, decision)| decision.is_none());
        let rest: Batch = missing
            .map(|(transaction, _)| transaction.clone())
            .collect();
        let rest = self.decide_without(&rest, now, error);
        let denied = !rest.as_ref().is_ok_and(Outcome::is_allowed);
        if denied {
            let taken = owed(batch, &decided, now, now);
            self.give_back(&mut answer, taken, now).await;
        }
        let mut rest = rest?;
        let mut missing = rest.decisions.drain(..);
        for (transaction, decision) in batch.iter().zip(&mut decided.decisions) {
            *decision = match *decision {
                None => missing.next().flatten(),
                Some(before) if denied && transaction.has_taken(&before) => {
                    Some(before.after_giving_back(&transaction.quota, transaction.cost.get()))
                }
                some => some,
            };
        }
        decided.source = rest.source;
        Ok(decided)
    }

    /// Refunds what a reply shows as taken, to the servers that took it.
    async fn give_back(&self, answer: &mut StoreFuture<Outcome>, taken: OwedBatch, now: Timestamp) {
        if !taken.is_empty() {
            let refunded = answer.refund(taken, now);
            let refunded = self.in_time(Call::Refund, refunded).await;
            let _ = refunded.map_err(CallFailure::finish);
        }
    }

    /// Gives back what a request took that is denied although it is `allowed` by some nodes, and
    /// what a late answer shows as taken.
    async fn refund_denied(
        self: Arc<Self>,
        batch: Batch,
        then: Timestamp,
        allowed: Option<Outcome>,
        call: FailedCall<Outcome>,
    ) {
        let FailedCall {
            mut answer,
            is_late,
            asked_at,
        } = call;
        let now = || then + Nanos::from(asked_at.elapsed());
        if let Some(allowed) = allowed {
            let taken = owed(&batch, &allowed, then, now());
            self.give_back(&mut answer, taken, now()).await;
        }
        if !is_late {
            return;
        }
        let outcome = match (&mut answer).await {
            Ok(outcome) => outcome,
            // Some limits lack a right; the others have taken their costs.
            Err(StoreError::Undecided { outcome, .. }) => *outcome,
            // So have the limits on other nodes.
            Err(StoreError::Node {
                allowed: Some(outcome),
                ..
            }) => *outcome,
            Err(_) => return,
        };
        let taken = owed(&batch, &outcome, then, now());
        self.give_back(&mut answer, taken, now()).await;
    }

    fn refund_without(
        &self,
        owed: OwedBatch,
        now: Timestamp,
        error: StoreError,
    ) -> StoreFuture<()> {
        match self.settings.on_failure {
            OnFailure::Local => self.local.refund(owed, now),
            OnFailure::Allow | OnFailure::Deny => StoreFuture::failed(error),
        }
    }

    /// Tries again to give back what could not be sent, as some server is out of reach: to each of
    /// them what it took, and nothing where another store stands in.
    fn retry_refund(self: &Arc<Self>, batch: &OwedBatch, now: Timestamp) {
        if self.settings.on_failure != OnFailure::Local {
            for owed in batch {
                tokio::spawn(Arc::clone(self).refund_later(owed.clone(), now));
            }
        }
    }

    /// Gives back what one transaction took as soon as that can be sent. By some time another
    /// server may be in the place of the one that took, or the units have come back by themselves.
    async fn refund_later(self: Arc<Self>, owed: Owed, then: Timestamp) {
        let since = Instant::now();
        let end = owed.until.min(then + Nanos::from(RETRY_REFUNDS_FOR));
        loop {
            let now = then + Nanos::from(since.elapsed());
            if end <= now {
                return;
            }
            let refunded = self.store.refund(smallvec![owed.clone()], now);
            if !refunded.is_failed() {
                let refunded = self.in_time(Call::Refund, refunded).await;
                let _ = refunded.map_err(CallFailure::finish);
                return;
            }
            time::sleep(self.settings.breaker.retry).await;
        }
    }

    /// Refunds while the breaker is open. Where no other store stands in, the units were taken from
    /// this one: it is told, since it may only be slow, and no caller waits for it.
    fn refund_unreachable(self: &Arc<Self>, owed: OwedBatch, now: Timestamp) -> StoreFuture<()> {
        if self.settings.on_failure != OnFailure::Local {
            let refunded = self.store.refund(owed.clone(), now);
            match refunded.is_failed() {
                true => self.retry_refund(&owed, now),
                false => finish(refunded),
            }
        }
        self.refund_without(owed, now, StoreError::OutOfReach)
    }
}

impl<S: Remote> Guarded<S> {
    /// Decides in time. With `refunds_late`, a request that is denied because the answer comes too
    /// late, or not from all nodes, gets back what was taken.
    fn decide_or_fall_back(
        &self,
        batch: &Batch,
        now: Timestamp,
        refunds_late: bool,
    ) -> StoreFuture<Outcome> {
        let guard = Arc::clone(&self.guard);
        if guard.breaker.is_open() {
            let outcome = guard.decide_without(batch, now, StoreError::OutOfReach);
            return StoreFuture::Ready(Some(outcome));
        }
        let batch = batch.clone();
        StoreFuture::waiting(async move {
            let answer = guard.store.decide(&batch, now);
            let CallFailure { error, call } = match guard.in_time(Call::Decide, answer).await {
                Ok(outcome) => return Ok(outcome),
                Err(failure) => failure,
            };
            if let StoreError::Undecided { outcome, source } = error {
                let decided = (call.answer, *outcome);
                return guard.decide_rest(&batch, decided, now, *source).await;
            }
            let (error, allowed) = error.split_allowed();
            let outcome = guard.decide_without(&batch, now, error);
            let takes = call.is_late || allowed.is_some();
            if refunds_late && takes && !outcome.as_ref().is_ok_and(Outcome::is_allowed) {
                tokio::spawn(guard.refund_denied(batch, now, allowed, call));
            }
            outcome
        })
    }
}

impl<S: Remote> Store for Guarded<S> {
    /// What is taken for an answer that comes too late stays taken.
    fn decide(&self, batch: &Batch, now: Timestamp) -> StoreFuture<Outcome> {
        self.decide_or_fall_back(batch, now, false)
    }

    fn admit(&self, batch: &Batch, now: Timestamp) -> StoreFuture<Outcome> {
        self.decide_or_fall_back(batch, now, true)
    }

    /// A refund goes where decisions go at that moment. When the store went or came back between
    /// the two, it gives back at most what is owed there.
    fn refund(&self, owed: OwedBatch, now: Timestamp) -> StoreFuture<()> {
        if self.guard.breaker.is_open() {
            return self.guard.refund_unreachable(owed, now);
        }
        let guard = Arc::clone(&self.guard);
        StoreFuture::waiting(async move {
            let answer = guard.store.refund(owed.clone(), now);
            if answer.is_failed() {
                guard.retry_refund(&owed, now);
            }
            match guard.in_time(Call::Refund, answer).await {
                Ok(()) => Ok(()),
                Err(failure) => guard.refund_without(owed, now, failure.finish()).await,
            }
        })
    }

    /// Another than the one that lent would give out the same turns once more.
    fn refund_last(
        &self,
        transaction: Transaction,
        by: DecisionSource,
        latest: Timestamp,
        now: Timestamp,
    ) -> StoreFuture<()> {
        let guard = Arc::clone(&self.guard);
        match by {
            DecisionSource::Local => return guard.local.refund_last(transaction, by, latest, now),
            _ if guard.breaker.is_open() => return StoreFuture::failed(StoreError::OutOfReach),
            _ => {}
        }
        StoreFuture::waiting(async move {
            let answer = guard.store.refund_last(transaction, by, latest, now);
            let answer = guard.in_time(Call::Refund, answer).await;
            answer.map_err(CallFailure::finish)
        })
    }

    fn reset(&self, keys: BucketKeys) -> StoreFuture<()> {
        let local = self.guard.local.reset(keys.clone());
        self.guard.clear(local, |store| store.reset(keys))
    }

    fn is_shared(&self) -> bool {
        true
    }
}

impl<S: Remote + KeyScan> KeyScan for Guarded<S> {
    fn scan(&self, prefix: &str, from: ScanPosition) -> StoreFuture<ScannedKeys> {
        self.call(Call::List, |store| store.scan(prefix, from))
    }
}

impl<S: Remote> Guarded<S> {
    /// Makes a call that no other store can stand in for.
    fn call<T: Send + Unpin + 'static>(
        &self,
        call: Call,
        ask: impl FnOnce(&S) -> StoreFuture<T>,
    ) -> StoreFuture<T> {
        if self.guard.breaker.is_open() {
            return StoreFuture::failed(StoreError::OutOfReach);
        }
        let (guard, answer) = (Arc::clone(&self.guard), ask(&self.guard.store));
        StoreFuture::waiting(async move {
            let answer = guard.in_time(call, answer).await;
            answer.map_err(CallFailure::finish)
        })
    }
}

impl<S: Remote + SharedLists> SharedLists for Guarded<S> {
    fn change(
        &self,
        list: &str,
        add: Vec<SharedEntry>,
        remove: Vec<String>,
        now: Timestamp,
    ) -> StoreFuture<ChangedList> {
        self.call(Call::Share, |store| store.change(list, add, remove, now))
    }

    fn version(&self, list: &str) -> StoreFuture<u64> {
        self.call(Call::Share, |store| store.version(list))
    }

    fn entries(
        &self,
        list: &str,
        from: u64,
        skip: usize,
        count: usize,
    ) -> StoreFuture<Vec<SharedEntry>> {
        let entries = |store: &S| store.entries(list, from, skip, count);
        self.call(Call::List, entries)
    }
}

impl<S: Remote + SharedTexts> SharedTexts for Guarded<S> {
    fn put(&self, name: &str, text: String, length: Duration) -> StoreFuture<()> {
        self.call(Call::Share, |store| store.put(name, text, length))
    }

    fn text(&self, name: &str) -> StoreFuture<Option<Vec<u8>>> {
        self.call(Call::List, |store| store.text(name))
    }
}

impl<S: Remote> Guarded<S> {
    /// Decides like [`Store::decide`], as the kind of call that is named, with nothing in place of a
    /// store that gives no answer. What a late reply shows as taken is given back.
    #[doc(hidden)]
    pub fn decide_remote(&self, call: Call, batch: Batch, now: Timestamp) -> StoreFuture<Outcome> {
        let guard = Arc::clone(&self.guard);
        if guard.breaker.is_open() {
            return StoreFuture::failed(StoreError::OutOfReach);
        }
        StoreFuture::waiting(async move {
            let answer = guard.store.decide(&batch, now);
            match guard.in_time(call, answer).await {
                Ok(outcome) => Ok(outcome),
                Err(CallFailure { error, call }) => {
                    if call.is_late {
                        tokio::spawn(guard.refund_denied(batch, now, None, call));
                    }
                    Err(error)
                }
            }
        })
    }

    /// Gives back to the store alone all that a batch took.
    #[doc(hidden)]
    pub fn refund_remote(&self, batch: Batch, now: Timestamp) -> StoreFuture<()> {
        let guard = Arc::clone(&self.guard);
        if guard.breaker.is_open() {
            return StoreFuture::failed(StoreError::OutOfReach);
        }
        StoreFuture::waiting(async move {
            let owed = batch.into_iter().map(Owed::whole).collect();
            let answer = guard.store.refund(owed, now);
            let answer = guard.in_time(Call::Refund, answer).await;
            answer.map_err(CallFailure::finish)
        })
    }
}

/// Why a call failed, and the call.
pub(super) struct CallFailure<T> {
    error: StoreError,
    call: FailedCall<T>,
}

/// A call that failed, and knows which servers were asked.
struct FailedCall<T> {
    answer: StoreFuture<T>,
    /// The answer may still come.
    is_late: bool,
    asked_at: Instant,
}

impl<T: Send + Unpin + 'static> CallFailure<T> {
    /// The error, while the call is brought to its end in the background.
    pub(super) fn finish(self) -> StoreError {
        if self.call.is_late {
            finish(self.call.answer);
        }
        self.error
    }
}

/// Awaits a call in the background. A connection that breaks ends it as well.
fn finish<T: Send + Unpin + 'static>(answer: StoreFuture<T>) {
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(async move { drop(answer.await) });
    }
}

/// The units that were taken and are still owed. What has come back by itself is not owed.
fn owed(batch: &Batch, outcome: &Outcome, taken_at: Timestamp, now: Timestamp) -> OwedBatch {
    if !outcome.is_allowed() {
        return OwedBatch::new();
    }
    let owed = outcome.taken(batch).map(|(transaction, decision)| Owed {
        transaction: transaction.clone(),
        until: taken_at + decision.reset_in,
    });
    owed.filter(|owed| owed.until > now).collect()
}

#[cfg(test)]
mod tests;
