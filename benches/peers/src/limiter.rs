//! The limiters, each by its own public way of deciding about one key.

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Mutex;
use std::time::SystemTime;

use futures_util::FutureExt;
use governor::clock::{Clock as GovernorClock, DefaultClock, SystemClock as GovernorSystemClock};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;
use throttlecrab::PeriodicStore;
use weir::limit::{Batch, BucketKey, Transaction};
use weir::store::{Memory, MemorySettings, Store};
use weir::time::{Clock, SystemClock};

use crate::job::{BURST, DAY, UNITS_A_DAY};

/// Decides about one key at a time, for all threads of a process. Each decision reads a clock.
pub trait Limiter: Sync {
    const NAME: &'static str;

    /// What a decision is asked with; it is made before the time is taken.
    type Query;

    fn new(buckets: u32) -> Self;

    fn query(&self, key: &str) -> Self::Query;

    /// Whether the request may pass.
    fn decide(&self, query: &mut Self::Query) -> bool;
}

/// What is done with a limiter of whatever type.
pub trait Visit {
    fn visit<L: Limiter>(self);
}

/// Those that have one bucket for a key, the first being Weir's.
pub const NAMES: [&str; 4] = [
    Weir::NAME,
    WallClockGovernor::NAME,
    DefaultGovernor::NAME,
    Throttlecrab::NAME,
];

/// Visits the limiter of this name, if there is one.
pub fn visit(name: &str, visit: impl Visit) {
    match name {
        Weir::NAME => visit.visit::<Weir>(),
        WeirThrice::NAME => visit.visit::<WeirThrice>(),
        WallClockGovernor::NAME => visit.visit::<WallClockGovernor>(),
        DefaultGovernor::NAME => visit.visit::<DefaultGovernor>(),
        Throttlecrab::NAME => visit.visit::<Throttlecrab>(),
        _ => {}
    }
}

/// Weir's memory store. It answers with the units left and two waits, too.
pub struct Weir {
    store: Memory,
    quota: weir::limit::Quota,
}

impl Limiter for Weir {
    const NAME: &'static str = "weir";
    type Query = Batch;

    fn new(buckets: u32) -> Self {
        let (burst, count) = (BURST.get().into(), UNITS_A_DAY.get().into());
        // Shards fill unevenly, and none may evict here.
        let max_buckets = NonZeroUsize::new(buckets as usize * 5 / 4).unwrap_or(NonZeroUsize::MIN);
        Self {
            store: Memory::new(MemorySettings { max_buckets }),
            quota: weir::limit::Quota::new(burst, count, DAY).expect("a day's quota"),
        }
    }

    fn query(&self, key: &str) -> Batch {
        [self.transaction(key.into())].into_iter().collect()
    }

    fn decide(&self, asked: &mut Batch) -> bool {
        let batch = std::mem::take(asked);
        let outcome = self.store.decide(&batch, SystemClock.now()).now_or_never();
        outcome.is_some_and(|outcome| outcome.is_ok_and(|outcome| outcome.is_allowed()))
    }
}

impl Weir {
    fn transaction(&self, key: BucketKey) -> Transaction {
        Transaction::new(key, self.quota, NonZeroU64::MIN)
    }
}

/// Weir's memory store for a request with three limits, so that each decision is about three
/// buckets.
pub struct WeirThrice(Weir);

impl Limiter for WeirThrice {
    const NAME: &'static str = "weir, three limits";
    type Query = Batch;

    fn new(buckets: u32) -> Self {
        Self(Weir::new(3 * buckets))
    }

    fn query(&self, key: &str) -> Batch {
        let of_limit = |limit| BucketKey::from(format!("{limit}{key}").as_str());
        let limits = ["First", "Second", "Third"].map(of_limit);
        let transactions = limits.map(|key| self.0.transaction(key));
        transactions.into_iter().collect()
    }

    fn decide(&self, asked: &mut Batch) -> bool {
        self.0.decide(asked)
    }
}

type Keyed<C> = governor::RateLimiter<
    String,
    DashMapStateStore<String>,
    C,
    NoOpMiddleware<<C as GovernorClock>::Instant>,
>;

/// governor's keyed limiter, with its default store and hasher. It answers yes or no.
pub struct Governor<C: GovernorClock>(Keyed<C>);

/// On the wall clock, as Weir.
pub type WallClockGovernor = Governor<GovernorSystemClock>;

/// On the clock that it uses by default, which is read in less time.
pub type DefaultGovernor = Governor<DefaultClock>;

fn quota() -> governor::Quota {
    let interval = governor::Quota::with_period(DAY / UNITS_A_DAY.get());
    interval.expect("a day's quota").allow_burst(BURST)
}

macro_rules! governor_with {
    ($clock:ty, $name:literal) => {
        impl Limiter for Governor<$clock> {
            const NAME: &'static str = $name;
            type Query = String;

            fn new(_buckets: u32) -> Self {
                let store = DashMapStateStore::default();
                Self(Keyed::new(quota(), store, <$clock>::default()))
            }

            fn query(&self, key: &str) -> String {
                key.to_owned()
            }

            fn decide(&self, key: &mut String) -> bool {
                self.0.check_key(key).is_ok()
            }
        }
    };
}

governor_with!(GovernorSystemClock, "governor");
governor_with!(DefaultClock, "governor, its own clock");

/// throttlecrab's limiter. It must be had alone to decide, so it is behind the lock that any server
/// with threads would need. It answers with the units left and two waits.
///
/// It is on its periodic store: the adaptive one sweeps its whole table at each decision while that
/// is more than three quarters full, so a million buckets take it more than minutes.
pub struct Throttlecrab(Mutex<throttlecrab::RateLimiter<PeriodicStore>>);

impl Limiter for Throttlecrab {
    const NAME: &'static str = "throttlecrab";
    type Query = String;

    fn new(_buckets: u32) -> Self {
        Self(Mutex::new(throttlecrab::RateLimiter::new(
            PeriodicStore::new(),
        )))
    }

    fn query(&self, key: &str) -> String {
        key.to_owned()
    }

    fn decide(&self, key: &mut String) -> bool {
        let (burst, count) = (BURST.get().into(), UNITS_A_DAY.get().into());
        let period = DAY.as_secs() as i64;
        let mut limiter = self.0.lock().expect("nobody panics with the lock");
        let decision = limiter.rate_limit(key, burst, count, period, 1, SystemTime::now());
        decision.is_ok_and(|(allowed, _)| allowed)
    }
}
