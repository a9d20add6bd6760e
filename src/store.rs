//! What keeps buckets: memory or Redis, and the wrappers that make a remote store safe to wait for.
//!
//! A [`Store`] owns atomicity and [`crate::limit`] owns arithmetic: a batch is checked and taken by
//! one call, never by a read and a later write.
//!
//! ```
//! use std::num::NonZeroU64;
//! use std::time::Duration;
//!
//! use weir::limit::{Batch, BucketKey, Quota, Transaction};
//! use weir::store::{Memory, MemorySettings, Store};
//! use weir::time::{Clock, SystemClock};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Memory::new(MemorySettings::default());
//! let now = SystemClock.now();
//! let quota = Quota::new(1, 1, Duration::from_secs(60))?;
//! let take = |key| Transaction::new(BucketKey::from(key), quota, NonZeroU64::MIN);
//!
//! let alice = Batch::from_iter([take("alice")]);
//! assert!(store.decide(&alice, now).await?.is_allowed());
//! // A batch takes from all of its buckets or from none.
//! let both = Batch::from_iter([take("alice"), take("bob")]);
//! assert!(!store.decide(&both, now).await?.is_allowed());
//! let bob = Batch::from_iter([take("bob")]);
//! assert!(store.decide(&bob, now).await?.is_allowed());
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "redis")]
pub use weir_redis::{
    HotBuckets, LoginPart, PrefetchStore, Prefetching, Redis, RedisLogin, RedisNodes,
    RedisSettings, RedisUrlError,
};
pub use weir_store::{
    BreakerSettings, Call, ChangedList, ClockOffset, ClockSource, DecisionClock, DecisionSource,
    DenialCache, DenialCached, GuardSettings, Guarded, HealthCheck, KeyScan, LeaseGuard, Leased,
    Leases, Memory, MemoryLeases, MemorySettings, MemoryStats, NodeChange, Observer, OnFailure,
    Outcome, Owed, OwedBatch, PendingReply, Reachability, Remote, ScanPosition, ScannedKeys,
    SharedEntry, SharedLists, SharedTexts, Store, StoreClock, StoreError, StoreFuture, Unobserved,
};
