//! Makes a store that may be out of reach safe to wait for.
//!
//! Every call has a deadline. After some failures in a row, or when the connection is lost, the
//! breaker opens: from then on no call waits at all, until a task in the background finds that
//! the store decides again, and within the deadline. What happens to requests meanwhile is up to
//! [`OnFailure`].
//!
//! A call that ran into its deadline may have taken its units all the same. Its answer is awaited
//! in the background: a request that was denied without it gets back what it took. An
//! answer that never comes, because the connection broke, tells nothing, and nothing is given back.
//! That is too strict by those units; it is never too lax.

use std::sync::Arc;
use std::time::Duration;

use smallvec::smallvec;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{self, Instant};

use crate::limit::{Batch, BucketKeys, Claims};
use crate::store::breaker::{Backoff, Breaker, BreakerSettings, Reachability};
use crate::store::{
    Call, DecisionSource, LeaseGuard, Leased, Leases, Memory, Outcome, Remote, Store, StoreError,
    StoreFuture,
};
use crate::time::{Nanos, Timestamp};

/// How often the store is pinged while it is reachable and nothing else shows that it is.
const PING_EVERY: Duration = Duration::from_secs(1);

/// A store that fails sooner than this after it came back did not really come back.
const STEADY: Duration = Duration::from_secs(10);

/// The longest that such a store is left alone before it is probed again.
const LONGEST_REST: Duration = Duration::from_secs(5);

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
    guard: Arc<Guard<S>>,
    watch: JoinHandle<()>,
}

struct Guard<S> {
    store: S,
    settings: GuardSettings,
    breaker: Breaker,
    local: Arc<Memory>,
}

impl<S: Remote> Guarded<S> {
    /// Guards a store. `reachability` and `local` are shared by all workers of the process;
    /// `local` is used with [`OnFailure::Local`] only.
    ///
    /// Must be called on a tokio runtime, where a task then watches over the store.
    pub fn spawn(
        store: S,
        settings: GuardSettings,
        reachability: Arc<Reachability>,
        local: Arc<Memory>,
    ) -> Self {
        let guard = Arc::new(Guard {
            store,
            settings,
            breaker: Breaker::new(settings.breaker, reachability),
            local,
        });
        let watch = tokio::spawn(watch_over(Arc::clone(&guard)));
        Self { guard, watch }
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

impl<S> Drop for Guarded<S> {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl<S: Remote> Guard<S> {
    /// Waits for an answer, until the deadline, and counts how it went.
    async fn in_time<T: Unpin>(
        &self,
        call: Call,
        mut answer: StoreFuture<T>,
    ) -> Result<T, NoAnswer<T>> {
        let start = Instant::now();
        let answer = match time::timeout(self.settings.timeout, &mut answer).await {
            Ok(answer) => answer.map_err(NoAnswer::from),
            Err(_) => Err(NoAnswer::late(answer, start)),
        };
        let failure = answer.as_ref().err().map(|none| &none.error);
        self.breaker
            .observer()
            .called(call, start.elapsed(), failure);
        self.breaker.record(failure);
        answer
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
        mut decided: Outcome,
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
        let taken: Batch = decided
            .taken(batch)
            .map(|(transaction, _)| transaction.clone())
            .collect();
        if denied && !taken.is_empty() {
            let refunded = self.store.refund(taken, now);
            let refunded = self.in_time(Call::Refund, refunded).await;
            let _ = refunded.map_err(NoAnswer::finished);
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

    fn refund_without(&self, batch: Batch, now: Timestamp, error: StoreError) -> StoreFuture<()> {
        match self.settings.on_failure {
            OnFailure::Local => self.local.refund(batch, now),
            OnFailure::Allow | OnFailure::Deny => StoreFuture::failed(error),
        }
    }

    /// Refunds while the breaker is open. Where no other store stands in, the units were taken from
    /// this one: it is told, since it may only be slow, and no caller waits for it.
    fn refund_unreachable(&self, batch: Batch, now: Timestamp) -> StoreFuture<()> {
        if self.settings.on_failure != OnFailure::Local {
            finish(self.store.refund(batch.clone(), now));
        }
        self.refund_without(batch, now, StoreError::OutOfReach)
    }

    /// Whether the store decides now, and as fast as calls need it.
    async fn decides_in_time(&self) -> bool {
        let start = Instant::now();
        self.store.probe().await.is_ok() && start.elapsed() <= self.settings.timeout
    }
}

/// Opens the breaker of a store that is silently gone, and closes it when the store is back.
async fn watch_over<S: Remote>(guard: Arc<Guard<S>>) {
    let retry = guard.settings.breaker.retry;
    let patience = || Backoff::new(retry, LONGEST_REST);
    let mut rest = patience();
    loop {
        let closed_at = Instant::now();
        while_closed(&guard).await;
        if closed_at.elapsed() < STEADY {
            // A store that fails as soon as it is asked again is given a longer rest each time.
            time::sleep(rest.wait()).await;
        } else {
            rest = patience();
        }
        while_open(&guard).await;
        guard.breaker.close();
    }
}

/// Returns when the breaker is open; pings the store meanwhile. The first ping comes at once, so
/// that a store that was never there is known before a request comes.
async fn while_closed<S: Remote>(guard: &Guard<S>) {
    while !guard.breaker.is_open() {
        if let Err(error) = guard.store.ping().await {
            guard.breaker.open(&error);
        }
        tokio::select! {
            () = guard.breaker.opened() => {}
            // Were it left to the next call, the store would be called within reach again as soon
            // as the other workers have found it back.
            _ = guard.store.lost() => {}
            () = time::sleep(PING_EVERY) => {}
        }
    }
}

/// Returns when the store decides again. The first waits are shorter than asked for, in case the
/// connection was only cut.
async fn while_open<S: Remote>(guard: &Guard<S>) {
    let retry = guard.settings.breaker.retry;
    let mut backoff = Backoff::new(retry / 8, retry);
    while !guard.decides_in_time().await {
        time::sleep(backoff.wait()).await;
    }
}

impl<S: Remote> Guarded<S> {
    /// Decides in time, and hands on the answer that comes too late.
    fn ask(
        &self,
        batch: Batch,
        now: Timestamp,
        when_late: fn(LateDecision<S>, &Result<Outcome, StoreError>),
    ) -> StoreFuture<Outcome> {
        let guard = Arc::clone(&self.guard);
        if guard.breaker.is_open() {
            let outcome = guard.decide_without(&batch, now, StoreError::OutOfReach);
            return StoreFuture::Ready(Some(outcome));
        }
        StoreFuture::waiting(async move {
            let answer = guard.store.decide(batch.clone(), now);
            let NoAnswer { error, late } = match guard.in_time(Call::Decide, answer).await {
                Ok(outcome) => return Ok(outcome),
                Err(NoAnswer {
                    error: StoreError::Undecided { outcome, source },
                    ..
                }) => {
                    let error = StoreError::Forbidden(source);
                    return guard.decide_rest(&batch, *outcome, now, error).await;
                }
                Err(none) => none,
            };
            let outcome = guard.decide_without(&batch, now, error);
            if let Some(Late { answer, asked_at }) = late {
                let asked = LateDecision {
                    guard,
                    batch,
                    now,
                    asked_at,
                    answer,
                };
                when_late(asked, &outcome);
            }
            outcome
        })
    }
}

impl<S: Remote> Store for Guarded<S> {
    /// What is taken for an answer that comes too late stays taken.
    fn decide(&self, batch: Batch, now: Timestamp) -> StoreFuture<Outcome> {
        self.ask(batch, now, |_, _| {})
    }

    fn admit(&self, batch: Batch, now: Timestamp) -> StoreFuture<Outcome> {
        self.ask(batch, now, |asked, outcome| {
            if !outcome.as_ref().is_ok_and(Outcome::is_allowed) {
                asked.give_back();
            }
        })
    }

    /// A refund goes where decisions go at that moment. When the store went or came back between
    /// the two, it gives back at most what is owed there.
    fn refund(&self, batch: Batch, now: Timestamp) -> StoreFuture<()> {
        if self.guard.breaker.is_open() {
            return self.guard.refund_unreachable(batch, now);
        }
        let guard = Arc::clone(&self.guard);
        StoreFuture::waiting(async move {
            let answer = guard.store.refund(batch.clone(), now);
            match guard.in_time(Call::Refund, answer).await {
                Ok(()) => Ok(()),
                Err(none) => guard.refund_without(batch, now, none.finished()).await,
            }
        })
    }

    /// Resets the buckets here and in the store; a store that is out of reach is an error even so.
    fn reset(&self, keys: BucketKeys) -> StoreFuture<()> {
        let local = self.guard.local.reset(keys.clone());
        if self.guard.breaker.is_open() {
            return StoreFuture::failed(StoreError::OutOfReach);
        }
        let guard = Arc::clone(&self.guard);
        StoreFuture::waiting(async move {
            local.await?;
            let answer = guard.store.reset(keys);
            let answer = guard.in_time(Call::Reset, answer).await;
            answer.map_err(NoAnswer::finished)
        })
    }
}

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
                Err(none) => guard.acquire_without(&claims, none.finished()).await,
            }
        })
    }

    /// Deletes them here and in the store; a store that is out of reach is an error even so.
    fn delete(&self, keys: BucketKeys) -> StoreFuture<()> {
        let local = self.guard.local.leases().delete(keys.clone());
        if self.guard.breaker.is_open() {
            return StoreFuture::failed(StoreError::OutOfReach);
        }
        let guard = Arc::clone(&self.guard);
        StoreFuture::waiting(async move {
            local.await?;
            let answer = guard.store.delete(keys);
            let answer = guard.in_time(Call::Reset, answer).await;
            answer.map_err(NoAnswer::finished)
        })
    }

    fn end(&self) -> StoreFuture<()> {
        self.guard.store.end()
    }
}

/// Why there is no answer, and the answer itself where it may still come.
struct NoAnswer<T> {
    error: StoreError,
    late: Option<Late<T>>,
}

/// An answer that was not there by the deadline.
struct Late<T> {
    answer: StoreFuture<T>,
    asked_at: Instant,
}

impl<T> From<StoreError> for NoAnswer<T> {
    fn from(error: StoreError) -> Self {
        Self { error, late: None }
    }
}

impl<T> NoAnswer<T> {
    /// There was none by the deadline.
    fn late(answer: StoreFuture<T>, asked_at: Instant) -> Self {
        Self {
            error: StoreError::Deadline,
            late: Some(Late { answer, asked_at }),
        }
    }
}

impl<T: Send + Unpin + 'static> NoAnswer<T> {
    /// The error, while the call is brought to its end in the background.
    fn finished(self) -> StoreError {
        if let Some(late) = self.late {
            finish(late.answer);
        }
        self.error
    }
}

/// Brings a call to its end that no caller waits for. A connection that breaks ends it, too.
fn finish<T: Send + Unpin + 'static>(answer: StoreFuture<T>) {
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(async move { drop(answer.await) });
    }
}

/// A batch that was not decided in time, with the answer that may still come.
struct LateDecision<S> {
    guard: Arc<Guard<S>>,
    batch: Batch,
    now: Timestamp,
    asked_at: Instant,
    answer: StoreFuture<Outcome>,
}

impl<S: Remote> LateDecision<S> {
    /// Gives back what the answer will show as taken.
    fn give_back(self) {
        tokio::spawn(self.give_back_taken());
    }

    async fn give_back_taken(self) {
        let outcome = match self.answer.await {
            Ok(outcome) => outcome,
            // Some limits lack a right; the others have taken their costs.
            Err(StoreError::Undecided { outcome, .. }) => *outcome,
            Err(_) => return,
        };
        // By the connection that brought the answer there may be no way back.
        self.guard.breaker.closed().await;
        let now = self.now + Nanos::from(self.asked_at.elapsed());
        let owed = owed(&self.batch, &outcome, self.now, now);
        if !owed.is_empty() {
            let refunded = self.guard.store.refund(owed, now);
            let refunded = self.guard.in_time(Call::Refund, refunded).await;
            let _ = refunded.map_err(NoAnswer::finished);
        }
    }
}

/// What was taken at a time and is still owed now. What has come back by itself meanwhile is not.
fn owed(batch: &Batch, outcome: &Outcome, taken_at: Timestamp, now: Timestamp) -> Batch {
    if !outcome.is_allowed() {
        return Batch::new();
    }
    let taken = outcome.taken(batch);
    let owed = taken.filter(|(_, decision)| taken_at + decision.reset_in > now);
    owed.map(|(transaction, _)| transaction.clone()).collect()
}

#[cfg(test)]
mod tests;
