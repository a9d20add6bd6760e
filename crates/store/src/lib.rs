//! What keeps buckets: the traits of a store, memory, and the wrappers that make a remote store, as
//! that of `weir-redis`, safe to wait for.
//!
//! A [`Store`] owns atomicity and [`weir_limit`] owns arithmetic: a batch is checked and taken by
//! one call, never by a read and a later write. The crate `weir` has what is promised of it to
//! users, as `weir::store`; what else is public here serves Weir's other crates.

#![forbid(unsafe_code)]

mod breaker;
mod clock;
mod denial_cache;
mod guarded;
mod hashed_key;
mod leases;
mod memory;
mod observer;
#[cfg(any(test, feature = "testing"))]
pub mod tests;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use smallvec::SmallVec;
use thiserror::Error;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Batch, BucketKeys, Decision, Transaction};

pub use breaker::{Backoff, Breaker, BreakerSettings, CircuitSupervisor, Reachability};
pub use clock::{ClockSource, DecisionClock, StoreClock};
pub use denial_cache::{DenialCache, DenialCached};
pub use guarded::{GuardSettings, Guarded, OnFailure};
pub use hashed_key::{HashedKey, KeyHasher};
pub use leases::{LeaseGuard, Leased, Leases, decide_claims};
pub use memory::{Memory, MemoryLeases, MemorySettings, MemoryStats};
pub use observer::{Call, ClockOffset, NodeChange, Observer, Unobserved};

/// Remembers buckets.
///
/// Clones of a batch's buckets may be worked on by other threads and other gateways at the same
/// time; every implementation is exact under that, and passes the same contract tests.
pub trait Store: Send + Sync + 'static {
    /// Decides a batch and takes its costs: from all of its buckets, or, when one denies, from
    /// none.
    fn decide(&self, batch: &Batch, now: Timestamp) -> StoreFuture<Outcome>;

    /// Decides like [`Store::decide`] whether to let a request through that waits for the answer.
    ///
    /// The request is not charged unless it is let through: if the answer comes after its deadline,
    /// when the request was denied without it, then what it took is given back. A caller that stops
    /// waiting is charged all the same. A store whose answers are never late has nothing to add.
    fn admit(&self, batch: &Batch, now: Timestamp) -> StoreFuture<Outcome> {
        self.decide(batch, now)
    }

    /// Gives back what transactions took, as far as it is still owed when it is carried out, which
    /// may be later than `now`; a bucket never gets fuller than full. Transactions of a mode that
    /// spends nothing give nothing back.
    fn refund(&self, owed: OwedBatch, now: Timestamp) -> StoreFuture<()>;

    /// Gives back what a transaction of GCRA took, to the store that decided it, unless the
    /// bucket's TAT is later than `latest`: what comes behind has been promised to others. A store
    /// that cannot tell gives nothing back.
    fn refund_last(
        &self,
        _: Transaction,
        _by: DecisionSource,
        _latest: Timestamp,
        _now: Timestamp,
    ) -> StoreFuture<()> {
        StoreFuture::ready(())
    }

    /// Makes buckets full again.
    fn reset(&self, keys: BucketKeys) -> StoreFuture<()>;

    /// Whether other processes have the same buckets.
    fn is_shared(&self) -> bool {
        false
    }
}

/// A store that may be out of reach, or one of its nodes; and can be asked whether it is.
pub trait HealthCheck: Send + Sync + 'static {
    /// Whether it is there. It gives up by itself on one that does not answer. One that is there and
    /// refuses commands that only some limits need is [`StoreError::Forbidden`].
    fn ping(&self) -> StoreFuture<()>;

    /// Whether it would decide a batch now. It gives up by itself, too.
    fn probe(&self) -> StoreFuture<()>;

    /// Waits until there is no connection to it.
    fn lost(&self) -> StoreFuture<()>;
}

/// A store on other machines.
pub trait Remote: Store + HealthCheck {
    /// Gives each node a circuit breaker of its own, if the store has several. Their failures are
    /// [`StoreError::Node`] and tell nothing about the store as a whole.
    fn guard_nodes(&self, _: GuardSettings, _: &Arc<Reachability>) {}
}

/// A store that has the keys of its buckets, and can list them.
pub trait KeyScan: Send + Sync + 'static {
    /// The next keys of buckets that begin with `prefix`, sorted, each once. There may be none of
    /// them among those that the store went through, and a key may be shown again at another
    /// position. A bucket that is there from the first position to the last is shown.
    fn scan(&self, prefix: &str, from: ScanPosition) -> StoreFuture<ScannedKeys>;
}

/// A store that keeps lists of texts beside the buckets, for all gateways to see.
pub trait SharedLists: Send + Sync + 'static {
    /// Removes texts from a list, and entries that have ended by `now`, and adds others: all at
    /// once. An entry whose text is there already gets the new end.
    fn change(
        &self,
        list: &str,
        add: Vec<SharedEntry>,
        remove: Vec<String>,
        now: Timestamp,
    ) -> StoreFuture<ChangedList>;

    /// A number that each change replaces by another; 0 if there is no list.
    fn version(&self, list: &str) -> StoreFuture<u64>;

    /// At most `count` entries that end at a moment or later, in their order, without the first
    /// ones. The text of one that cannot be read is empty, so that it keeps its place.
    fn entries(
        &self,
        list: &str,
        from: u64,
        skip: usize,
        count: usize,
    ) -> StoreFuture<Vec<SharedEntry>>;
}

/// A store that keeps texts beside the buckets, each for a time, for all gateways to see.
pub trait SharedTexts: Send + Sync + 'static {
    /// Keeps a text by this name for so long, in place of an earlier one.
    fn put(&self, name: &str, text: String, length: Duration) -> StoreFuture<()>;

    /// The text by this name, as bytes, since others may write there too; none if it is over or
    /// empty. One that is longer than any that a gateway writes is [`StoreError::WrongType`].
    fn text(&self, name: &str) -> StoreFuture<Option<Vec<u8>>>;
}

/// What came of a change of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedList {
    /// How many entries were removed.
    pub removed: u64,
    /// The version that was changed.
    pub before: u64,
    /// The version since.
    pub after: u64,
}

/// An entry of a list. They are ordered by their ends, and then by their texts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedEntry {
    /// When it ends, in milliseconds since the Unix epoch; the greatest number is never.
    pub until: u64,
    /// What it says.
    pub text: String,
}

/// How far a store has been gone through; the default is the beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanPosition {
    /// Where, by the count of the store.
    pub position: u64,
    /// In which of its nodes, if it has several.
    pub node: String,
}

/// Some keys of buckets, as [`BucketKey`](weir_limit::BucketKey)s are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScannedKeys {
    /// The keys.
    pub keys: Vec<String>,
    /// Where to go on; none when the store was gone through to its end.
    pub next: Option<ScanPosition>,
}

/// A shared store is a store.
impl<S: Store + ?Sized> Store for Arc<S> {
    fn decide(&self, batch: &Batch, now: Timestamp) -> StoreFuture<Outcome> {
        (**self).decide(batch, now)
    }

    fn admit(&self, batch: &Batch, now: Timestamp) -> StoreFuture<Outcome> {
        (**self).admit(batch, now)
    }

    fn refund(&self, owed: OwedBatch, now: Timestamp) -> StoreFuture<()> {
        (**self).refund(owed, now)
    }

    fn refund_last(
        &self,
        transaction: Transaction,
        by: DecisionSource,
        latest: Timestamp,
        now: Timestamp,
    ) -> StoreFuture<()> {
        (**self).refund_last(transaction, by, latest, now)
    }

    fn reset(&self, keys: BucketKeys) -> StoreFuture<()> {
        (**self).reset(keys)
    }

    fn is_shared(&self) -> bool {
        (**self).is_shared()
    }
}

/// A decision for each transaction of a batch; see [`Outcome::decisions`].
pub type Decisions = SmallVec<[Option<Decision>; 3]>;

/// What a store decided about a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// A decision for each transaction, in the batch's order; none for a bucket that was not
    /// asked, because another's denial was already known or because the store is out of reach.
    pub decisions: Decisions,
    /// Where the decisions come from.
    pub source: DecisionSource,
}

impl Outcome {
    /// Whether no limit denies the request.
    pub fn is_allowed(&self) -> bool {
        self.decisions
            .iter()
            .flatten()
            .all(|decision| decision.allowed)
    }

    /// The transactions of an allowed batch that took their cost, each with its decision.
    pub fn taken<'o>(
        &'o self,
        batch: &'o Batch,
    ) -> impl Iterator<Item = (&'o Transaction, Decision)> {
        let both = batch.iter().zip(self.decisions.iter().copied());
        both.filter_map(|(transaction, decision)| {
            Some((
                transaction,
                decision.filter(|decision| transaction.has_taken(decision))?,
            ))
        })
    }
}

/// Where decisions come from; the further from the configured store, the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DecisionSource {
    /// The configured store answered.
    Store,
    /// Units that this process had taken from the store before decided; it was not asked.
    Prefetched,
    /// A denial that this process remembers answered; the store was not asked.
    Remembered,
    /// The memory store stood in for a store that is out of reach.
    Local,
    /// The store is out of reach, and the request is let through undecided.
    FailedOpen,
}

impl DecisionSource {
    /// The word for what decided in the store's place, if anything did.
    pub const fn stand_in(self) -> Option<&'static str> {
        match self {
            Self::Prefetched => Some("prefetched"),
            Self::Remembered => Some("remembered"),
            Self::Local => Some("local"),
            Self::Store | Self::FailedOpen => None,
        }
    }
}

/// Why a store gave no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No answer within the deadline.
    #[error("no answer within the deadline")]
    Deadline,
    /// Not asked: there is no connection, or the circuit breaker is open.
    #[error("the store is out of reach")]
    OutOfReach,
    /// The connection broke, or cannot be made.
    #[error("the store is out of reach")]
    Lost(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The store answered with an error.
    #[error("the store failed")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The store refuses a command that this call needs and others do not.
    #[error("the store refuses a command")]
    Forbidden(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A key holds something else than a bucket, which is no failure of the store.
    #[error("a key in the store holds something else than a bucket")]
    WrongType(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// `Forbidden` or `WrongType` for some transactions of a batch, while the others were decided,
    /// and took their costs. No probe at connect can replace it, as one key of another type is
    /// known only by its reply. If the whole batch failed in its place, that key, or a missing
    /// right, would switch off all limits of a route whose requests pass while the store fails.
    #[error("{source}")]
    Undecided {
        /// What was decided; none for what was not.
        outcome: Box<Outcome>,
        /// Why the rest was not.
        source: Box<StoreError>,
    },
    /// One of the store's nodes gave no answer, while others may have decided their transactions
    /// of the batch, and taken their costs. The node's own circuit breaker has counted it.
    #[error("node {node}: {source}")]
    Node {
        /// The node's address.
        node: Arc<str>,
        /// What other nodes allowed; none for what was not decided.
        allowed: Option<Box<Outcome>>,
        /// Why there is no answer.
        source: Box<StoreError>,
    },
}

impl StoreError {
    /// The words for all kinds of failures.
    pub const KINDS: [&'static str; 5] =
        ["deadline", "out_of_reach", "lost", "failed", "forbidden"];

    /// A word for the kind of failure, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Node { source, .. } | Self::Undecided { source, .. } => source.kind(),
            Self::Deadline => "deadline",
            Self::OutOfReach => "out_of_reach",
            Self::Lost(_) => "lost",
            Self::Failed(_) | Self::WrongType(_) => "failed",
            Self::Forbidden(_) => "forbidden",
        }
    }
}

impl StoreError {
    /// Whether there is no connection, so that the next call would fail like this one.
    pub fn is_out_of_reach(&self) -> bool {
        match self {
            Self::Node { source, .. } => source.is_out_of_reach(),
            error => matches!(error, Self::OutOfReach | Self::Lost(_)),
        }
    }

    /// Whether the store works, and only refuses a command that other calls do not need.
    pub fn is_forbidden(&self) -> bool {
        match self {
            Self::Node { source, .. } | Self::Undecided { source, .. } => source.is_forbidden(),
            error => matches!(error, Self::Forbidden(_)),
        }
    }

    /// Whether the store works, and one key holds something else than a bucket.
    pub fn is_wrong_type(&self) -> bool {
        match self {
            Self::Node { source, .. } | Self::Undecided { source, .. } => source.is_wrong_type(),
            error => matches!(error, Self::WrongType(_)),
        }
    }

    /// Whether it tells nothing about the store as a whole.
    pub fn is_partial(&self) -> bool {
        self.is_forbidden() || self.is_wrong_type() || matches!(self, Self::Node { .. })
    }

    /// The failure of a node in a call of which other nodes allowed their part.
    #[doc(hidden)]
    pub fn with_allowed(self, outcome: Outcome) -> Self {
        match self {
            Self::Node { node, source, .. } => Self::Node {
                node,
                allowed: Some(Box::new(outcome)),
                source,
            },
            error => error,
        }
    }

    /// The same without what other nodes allowed, and that.
    #[doc(hidden)]
    pub fn split_allowed(self) -> (Self, Option<Outcome>) {
        match self {
            Self::Node {
                node,
                allowed,
                source,
            } => {
                let error = Self::Node {
                    node,
                    allowed: None,
                    source,
                };
                (error, allowed.map(|allowed| *allowed))
            }
            error => (error, None),
        }
    }

    /// The same with the name of the key that holds something else: whoever looks for it has to know
    /// it.
    #[doc(hidden)]
    pub fn about_key(self, key: &dyn fmt::Display) -> Self {
        match self {
            Self::WrongType(error) => Self::WrongType(format!("{key}: {error}").into()),
            Self::Node {
                node,
                allowed,
                source,
            } => Self::Node {
                node,
                allowed,
                source: Box::new(source.about_key(key)),
            },
            error => error,
        }
    }

    /// Whether nothing was asked, because a node is known to be out of reach.
    pub fn is_unasked(&self) -> bool {
        matches!(self, Self::Node { source, .. } if matches!(**source, Self::OutOfReach))
    }
}

/// A store's answer, now or later.
///
/// The memory store's answer is there at once and costs no allocation; a remote store's is boxed.
#[must_use = "a remote store need not have been asked before this is awaited"]
pub enum StoreFuture<T> {
    /// The answer; taken by the first poll.
    Ready(Option<Result<T, StoreError>>),
    /// The answer is on its way.
    Waiting(Pin<Box<dyn PendingReply<T>>>),
}

/// An answer that is on its way.
pub trait PendingReply<T>: Future<Output = Result<T, StoreError>> + Send {
    /// The caller's deadline is over: why there is no answer. One that comes late still comes.
    fn overdue(self: Pin<&mut Self>) -> StoreError {
        StoreError::Deadline
    }

    /// Gives back what the answer has shown as taken to the servers that took it, whichever serve
    /// these buckets by now. What went with its server is forgotten.
    fn refund(self: Pin<&mut Self>, taken: OwedBatch, now: Timestamp) -> StoreFuture<()>;
}

/// A transaction that took its cost, and until when that is owed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owed {
    /// The transaction.
    pub transaction: Transaction,
    /// When all of the cost has come back by itself: the end of a window, whose units the next one
    /// does not owe; for GCRA the time at which the bucket that the cost was taken from is full.
    pub until: Timestamp,
}

/// What is owed of a batch.
pub type OwedBatch = SmallVec<[Owed; 3]>;

impl Owed {
    /// All that the transaction took, whenever that was.
    pub const fn whole(transaction: Transaction) -> Self {
        Self {
            transaction,
            until: Timestamp::MAX,
        }
    }

    /// The part of a GCRA bucket's debt that the cost makes up now.
    #[doc(hidden)]
    pub fn debt(&self, now: Timestamp) -> Option<Nanos> {
        let increment = self.transaction.quota.increment(self.transaction.cost)?;
        Some(increment.min(self.until.since(now)))
    }
}

pin_project! {
    /// A future that can tell nothing more of itself.
    struct FutureReply<F> {
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for FutureReply<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().future.poll(cx)
    }
}

impl<T, F: Future<Output = Result<T, StoreError>> + Send> PendingReply<T> for FutureReply<F> {
    fn refund(self: Pin<&mut Self>, _: OwedBatch, _: Timestamp) -> StoreFuture<()> {
        StoreFuture::failed(StoreError::OutOfReach)
    }
}

impl<T> StoreFuture<T> {
    /// An answer that is there already.
    pub fn ready(answer: T) -> Self {
        Self::Ready(Some(Ok(answer)))
    }

    /// A failure that is known already.
    pub fn failed(error: StoreError) -> Self {
        Self::Ready(Some(Err(error)))
    }

    /// An answer that has to be waited for.
    pub fn waiting(answer: impl Future<Output = Result<T, StoreError>> + Send + 'static) -> Self {
        Self::pending(FutureReply { future: answer })
    }

    /// The same, of one that can say why it is late.
    pub fn pending(answer: impl PendingReply<T> + 'static) -> Self {
        Self::Waiting(Box::pin(answer))
    }

    /// Whether it failed before anything was asked.
    fn is_failed(&self) -> bool {
        matches!(self, Self::Ready(Some(Err(_))))
    }

    /// Why there is no answer yet, although the deadline is over.
    pub fn overdue(&mut self) -> StoreError {
        match self {
            Self::Ready(_) => StoreError::Deadline,
            Self::Waiting(answer) => answer.as_mut().overdue(),
        }
    }

    /// Gives back what the answer has shown as taken, where it was taken.
    pub fn refund(&mut self, taken: OwedBatch, now: Timestamp) -> StoreFuture<()> {
        match self {
            Self::Ready(_) => StoreFuture::failed(StoreError::OutOfReach),
            Self::Waiting(answer) => answer.as_mut().refund(taken, now),
        }
    }
}

impl<T: Unpin> Future for StoreFuture<T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            // A second poll after the answer has no answer to give; it stays pending, as a fused
            // future would.
            Self::Ready(answer) => answer.take().map_or(Poll::Pending, Poll::Ready),
            Self::Waiting(answer) => answer.as_mut().poll(cx),
        }
    }
}
