//! Leases of places among the requests in flight: what gives them, and what holds them.

mod guarded;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use weir_limit::time::Timestamp;
use weir_limit::{BucketKeys, Claims};

use crate::{Decisions, Outcome, StoreFuture};

/// Remembers how many requests of each subject are in flight.
///
/// Every implementation is exact under concurrency: no subject ever holds more leases than it has
/// places. All pass the same contract tests.
pub trait Leases: Send + Sync + 'static {
    /// Takes a lease for each claim, or, when one is denied, for none. They are held until
    /// [`Leased::guard`] is dropped. An answer that no caller waits for holds nothing.
    fn acquire(&self, claims: Claims, now: Timestamp) -> StoreFuture<Leased>;

    /// Deletes all leases of these subjects. A remote store learns again of those that still are
    /// when their leases are renewed.
    fn delete(&self, keys: BucketKeys) -> StoreFuture<()>;

    /// Gives back all that is still held, because the process ends, and waits until that is done.
    fn end(&self) -> StoreFuture<()>;
}

/// What came of claims.
#[derive(Debug)]
pub struct Leased {
    /// A decision for each claim, in their order, as [`Store::decide`](crate::Store::decide) has
    /// them for transactions.
    pub outcome: Outcome,
    /// What was taken.
    pub guard: LeaseGuard,
}

/// Leases, released when this is dropped. It may be dropped anywhere; the release happens in the
/// background.
#[derive(Default)]
pub struct LeaseGuard(Option<Box<dyn Any + Send + Sync>>);

impl LeaseGuard {
    /// No leases.
    pub const EMPTY: Self = Self(None);

    /// What `guard` releases when it is dropped.
    pub fn new(guard: impl Send + Sync + 'static) -> Self {
        Self(Some(Box::new(guard)))
    }

    /// Whether it holds no leases.
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl fmt::Debug for LeaseGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holds = if self.is_empty() { "nothing" } else { "leases" };
        write!(f, "LeaseGuard({holds})")
    }
}

/// Shared leases are leases.
impl<L: Leases + ?Sized> Leases for Arc<L> {
    fn acquire(&self, claims: Claims, now: Timestamp) -> StoreFuture<Leased> {
        (**self).acquire(claims, now)
    }

    fn delete(&self, keys: BucketKeys) -> StoreFuture<()> {
        (**self).delete(keys)
    }

    fn end(&self) -> StoreFuture<()> {
        (**self).end()
    }
}

/// The decisions about claims, each beside this many other requests; and whether one of them
/// denies, so that none may take.
pub fn decide_claims(claims: &Claims, others: &[u64]) -> (Decisions, bool) {
    let pairs = || claims.iter().zip(others);
    let denied = pairs().any(|(claim, &others)| claim.is_denied_beside(others));
    let decisions = pairs().map(|(claim, &others)| {
        Some(if denied && !claim.is_denied_beside(others) {
            claim.untouched(others)
        } else {
            claim.decide(others)
        })
    });
    (decisions.collect(), denied)
}
