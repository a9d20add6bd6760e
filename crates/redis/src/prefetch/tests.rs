use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use weir_limit::time::Nanos;
use weir_limit::{Algorithm, Decision, Prefetch, Quota};
use weir_store::tests::contract::{NOW, owed};
use weir_store::{Memory, MemorySettings};

use super::*;

/// Memory has its answer at once.
fn decide_now(memory: &Memory, batch: &Batch, now: Timestamp) -> Outcome {
    let outcome = memory.decide(batch, now).now_or_never();
    outcome.unwrap().unwrap()
}

const MAX_AGE: Duration = Duration::from_millis(100);

/// A memory store that several gateways share. It can be slow, and out of reach.
pub(super) struct Shared {
    pub(super) memory: Memory,
    /// Units that were taken ahead, call by call.
    pub(super) taken: Mutex<Vec<u64>>,
    pub(super) given_back: Mutex<Vec<u64>>,
    /// Calls ahead of requests, those that got nothing included.
    ahead: AtomicUsize,
    /// Batches that were decided for requests.
    pub(super) asked: AtomicUsize,
    /// Calls ahead of requests wait for a permit.
    pub(super) gate: Semaphore,
    fails: Mutex<bool>,
}

impl Shared {
    pub(super) fn new() -> Arc<Self> {
        let max_buckets = NonZeroUsize::MIN.saturating_add(99);
        Arc::new(Self {
            memory: Memory::new(MemorySettings { max_buckets }),
            taken: Mutex::default(),
            given_back: Mutex::default(),
            ahead: AtomicUsize::new(0),
            asked: AtomicUsize::new(0),
            gate: Semaphore::new(1_000_000),
            fails: Mutex::new(false),
        })
    }

    pub(super) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

/// One gateway's way to the shared store.
pub(super) struct Way(pub(super) Arc<Shared>);

impl Store for Way {
    fn decide(&self, batch: &Batch, now: Timestamp) -> StoreFuture<Outcome> {
        self.0.asked.fetch_add(1, Ordering::Relaxed);
        if *self.0.fails.lock() {
            return StoreFuture::failed(StoreError::OutOfReach);
        }
        self.0.memory.decide(batch, now)
    }

    fn refund(&self, owed: OwedBatch, now: Timestamp) -> StoreFuture<()> {
        self.0.memory.refund(owed, now)
    }

    fn reset(&self, keys: BucketKeys) -> StoreFuture<()> {
        self.0.memory.reset(keys)
    }
}

impl PrefetchStore for Way {
    fn take_ahead(&self, batch: Batch, now: Timestamp) -> StoreFuture<Outcome> {
        let shared = Arc::clone(&self.0);
        StoreFuture::waiting(async move {
            shared.gate.acquire().await.unwrap().forget();
            if *shared.fails.lock() {
                return Err(StoreError::OutOfReach);
            }
            shared.ahead.fetch_add(1, Ordering::Relaxed);
            let outcome = decide_now(&shared.memory, &batch, now);
            let taken = outcome.taken(&batch);
            let units = taken.map(|(transaction, _)| transaction.cost.get());
            shared.taken.lock().extend(units);
            Ok(outcome)
        })
    }

    fn give_back(&self, batch: Batch, now: Timestamp) -> StoreFuture<()> {
        let units = batch.iter().map(|transaction| transaction.cost.get());
        self.0.given_back.lock().extend(units);
        self.0.memory.refund(owed(batch), now)
    }
}

pub(super) fn gateway(shared: &Arc<Shared>) -> Prefetching<Way> {
    Prefetching::new(Arc::new(Way(Arc::clone(shared))), Arc::default())
}

/// Twenty thousand a second.
pub(super) fn quota() -> Quota {
    let second = Duration::from_secs(1);
    let prefetch = Prefetch::new(200, MAX_AGE);
    Quota::new(20_000, 20_000, second)
        .unwrap()
        .with_prefetch(prefetch)
}

pub(super) fn spend(quota: Quota, cost: u64) -> Transaction {
    Transaction::new("L:hot".into(), quota, NonZeroU64::new(cost).unwrap())
}

fn after(micros: u64) -> Timestamp {
    NOW + Nanos::new(micros * 1000)
}

async fn decide(gateway: &Prefetching<Way>, transaction: Transaction, now: Timestamp) -> Outcome {
    gateway.admit(&smallvec![transaction], now).await.unwrap()
}

/// Lets the tasks of all gateways do what there is to do now.
pub(super) async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// One request each 100 us, until the gateway has taken as many units at once as it may.
async fn heat(gateway: &Prefetching<Way>, requests: u64) -> Timestamp {
    for number in 0..requests {
        assert!(
            decide(gateway, spend(quota(), 1), after(number * 100))
                .await
                .is_allowed()
        );
        settle().await;
    }
    after(requests * 100)
}

fn only(outcome: &Outcome) -> Decision {
    outcome.decisions[0].unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_is_not_hot_is_decided_by_the_store() {
    let shared = Shared::new();
    let gateway = gateway(&shared);
    for number in 0..100 {
        // Seven in the time that a take should last.
        let now = after(number * 7_200);
        let outcome = decide(&gateway, spend(quota(), 1), now).await;
        assert_eq!(outcome.source, DecisionSource::Store);
    }
    assert!(shared.taken.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_hot_bucket_is_spent_without_calls_and_by_ever_greater_takes() {
    let shared = Shared::new();
    let gateway = gateway(&shared);
    heat(&gateway, 2000).await;
    assert!(shared.asked() < 10, "{}", shared.asked());
    let taken = shared.taken.lock().clone();
    assert!(taken.len() < 25, "{taken:?}");
    assert!(taken[0] <= 16, "{taken:?}");
    assert!(taken.iter().max() >= Some(&150), "{taken:?}");
    assert!(taken.iter().all(|&units| units <= 200), "{taken:?}");
}

/// Fifty thousand requests a second for a limit of twenty thousand: the bucket is empty after two
/// thirds of a second.
#[tokio::test(start_paused = true)]
async fn two_gateways_under_a_flood_admit_what_the_limit_says_by_a_call_for_twenty_requests_at_most()
 {
    const REQUESTS: u64 = 75_000;
    const HELD: u64 = 2 * 200;
    let shared = Shared::new();
    let gateways = [gateway(&shared), gateway(&shared)];
    let mut admitted = 0;
    for number in 0..REQUESTS {
        let gateway = &gateways[usize::from(number % 2 == 0)];
        let outcome = decide(gateway, spend(quota(), 1), after(number * 20)).await;
        admitted += u64::from(outcome.is_allowed());
        if number % 8 == 0 {
            settle().await;
        }
    }
    let exact = 20_000 + 20_000 * REQUESTS / 50_000;
    assert!(admitted <= exact + HELD, "{admitted} of {exact}");
    assert!(admitted >= exact - 2 * HELD, "{admitted} of {exact}");
    let calls = shared.asked() + shared.ahead.load(Ordering::Relaxed);
    assert!(calls as u64 * 20 <= REQUESTS, "{calls}");
}

#[tokio::test(start_paused = true)]
async fn decisions_show_what_the_store_has_and_what_is_held() {
    let shared = Shared::new();
    let gateway = gateway(&shared);
    let now = heat(&gateway, 300).await;
    let outcome = decide(&gateway, spend(quota(), 1), now).await;
    assert_eq!(outcome.source, DecisionSource::Prefetched);
    let shown = only(&outcome);
    let store = spend(quota(), 1).decide(Nanos::ZERO);
    // The bucket has been refilled faster than it was spent.
    assert!(shown.remaining > 20_000 - 200, "{shown:?}");
    assert!(shown.remaining <= store.remaining, "{shown:?}");
    let next = only(&decide(&gateway, spend(quota(), 3), now).await);
    assert_eq!(next.remaining, shown.remaining - 3);
    assert_eq!(next.reset_in.get(), shown.reset_in.get() + 3 * 50_000);
    let peek = Transaction {
        mode: Mode::Peek,
        ..spend(quota(), 1)
    };
    assert_eq!(
        only(&decide(&gateway, peek, now).await).remaining,
        next.remaining
    );
}

#[tokio::test(start_paused = true)]
async fn requests_that_find_nothing_wait_for_one_take_and_not_for_one_each() {
    let shared = Shared::new();
    let gateway = gateway(&shared);
    for _ in 0..8 {
        decide(&gateway, spend(quota(), 1), NOW).await;
    }
    let asked = shared.asked();
    let waiting: Vec<_> = (0..100)
        .map(|_| gateway.admit(&smallvec![spend(quota(), 1)], NOW))
        .collect();
    let all = futures_util::future::join_all(waiting).await;
    assert!(
        all.iter()
            .all(|outcome| outcome.as_ref().unwrap().is_allowed())
    );
    assert_eq!(shared.asked(), asked);
    let taken = shared.taken.lock().clone();
    assert!(taken.len() <= 3, "{taken:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_spent_is_given_back_when_it_is_too_old() {
    let shared = Shared::new();
    let gateway = gateway(&shared);
    let before = heat(&gateway, 300).await;
    assert!(shared.given_back.lock().is_empty());
    time::sleep(Duration::from_millis(99)).await;
    assert!(shared.given_back.lock().is_empty());
    time::sleep(Duration::from_millis(30)).await;
    // The bucket has become full by itself meanwhile, and nothing is owed any more.
    assert!(shared.given_back.lock().is_empty());
    let now = before + Nanos::new(130_000_000);
    let outcome = decide(&gateway, spend(quota(), 1), now).await;
    assert_eq!(outcome.source, DecisionSource::Store);
}

/// Twenty thousand an hour: nothing comes back by itself for some time.
fn slow() -> Quota {
    let prefetch = Prefetch::new(200, MAX_AGE);
    let hour = Duration::from_secs(3600);
    Quota::new(20_000, 20_000, hour)
        .unwrap()
        .with_prefetch(prefetch)
}

async fn left(shared: &Shared, now: Timestamp) -> u64 {
    let peek = Transaction {
        mode: Mode::Peek,
        ..spend(slow(), 1)
    };
    let outcome = decide_now(&shared.memory, &smallvec![peek], now);
    only(&outcome).remaining
}

/// Spends so many units, one each 100 us.
async fn spend_slowly(gateway: &Prefetching<Way>, requests: u64) -> Timestamp {
    for number in 0..requests {
        assert!(
            decide(gateway, spend(slow(), 1), after(number * 100))
                .await
                .is_allowed()
        );
        settle().await;
    }
    after(requests * 100)
}

#[tokio::test(start_paused = true)]
async fn every_unit_that_is_not_spent_comes_back() {
    for ends in [false, true] {
        let shared = Shared::new();
        let gateway = gateway(&shared);
        let now = spend_slowly(&gateway, 500).await;
        assert!(left(&shared, now).await < 19_500);
        match ends {
            true => gateway.end().await,
            false => time::sleep(Duration::from_millis(130)).await,
        }
        assert_eq!(left(&shared, now).await, 19_500, "{ends}");
        let asked = shared.asked();
        let outcome = decide(&gateway, spend(slow(), 1), now).await;
        assert_eq!(
            (outcome.source, shared.asked()),
            (DecisionSource::Store, asked + 1)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn another_quota_gives_back_what_was_taken_under_the_old_one() {
    let shared = Shared::new();
    let gateway = gateway(&shared);
    let now = spend_slowly(&gateway, 500).await;
    let lower = Quota::new(10_000, 10_000, Duration::from_secs(3600)).unwrap();
    let lower = lower.with_prefetch(slow().prefetch());
    let outcome = decide(&gateway, spend(lower, 1), now).await;
    assert_eq!(outcome.source, DecisionSource::Store);
    time::sleep(Duration::from_millis(26)).await;
    assert!(!shared.given_back.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_refund_is_held_again_and_a_reset_loses_what_is_held() {
    let shared = Shared::new();
    let gateway = gateway(&shared);
    let now = spend_slowly(&gateway, 500).await;
    let before = left(&shared, now).await;
    let shown = only(&decide(&gateway, spend(slow(), 1), now).await).remaining;
    gateway.refund(owed([spend(slow(), 1)]), now).await.unwrap();
    assert_eq!(left(&shared, now).await, before, "the store was not asked");
    let again = only(&decide(&gateway, spend(slow(), 1), now).await).remaining;
    assert_eq!(again, shown);
    gateway.reset(["L:hot".into()].into()).await.unwrap();
    let outcome = decide(&gateway, spend(slow(), 1), now).await;
    assert_eq!(outcome.source, DecisionSource::Store);
    assert_eq!(only(&outcome).remaining, 19_999);
    time::sleep(Duration::from_millis(130)).await;
    assert!(shared.given_back.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_refund_of_more_than_may_be_held_goes_to_the_store() {
    let shared = Shared::new();
    let gateway = gateway(&shared);
    let now = spend_slowly(&gateway, 500).await;
    let before = left(&shared, now).await;
    gateway
        .refund(owed([spend(slow(), 201)]), now)
        .await
        .unwrap();
    assert_eq!(left(&shared, now).await, before + 201);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_another_limit_denies_takes_nothing_of_what_is_held() {
    let shared = Shared::new();
    let gateway = gateway(&shared);
    let now = spend_slowly(&gateway, 500).await;
    let once = Quota::new(1, 1, Duration::from_secs(60)).unwrap();
    let other = Transaction::new("M:a".into(), once, NonZeroU64::MIN);
    let both = |cost| -> Batch { smallvec![spend(slow(), cost), other.clone()] };
    let allowed = gateway.admit(&both(1), now).await.unwrap();
    assert!(allowed.is_allowed());
    assert_eq!(allowed.source, DecisionSource::Store);
    let remaining = only(&allowed).remaining;
    for _ in 0..300 {
        let denied = gateway.admit(&both(1), now).await.unwrap();
        assert!(!denied.is_allowed());
        assert_eq!(only(&denied).remaining, remaining);
    }
    settle().await;
    let next = decide(&gateway, spend(slow(), 1), now).await;
    assert_eq!(only(&next).remaining, remaining - 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_held_units_deny_takes_nothing_from_other_limits() {
    let shared = Shared::new();
    let gateway = gateway(&shared);
    exhaust(&gateway).await;
    let minute = Duration::from_secs(60);
    let gcra = Quota::new(5, 5, minute).unwrap();
    let counts_denied = Algorithm::SlidingWindow { count_denied: true };
    let window = Quota::windowed(counts_denied, 5, minute).unwrap();
    let now = after(1);
    for (quota, source) in [
        (gcra, DecisionSource::Prefetched),
        // A denial that is to be counted has to reach the store.
        (window, DecisionSource::Store),
    ] {
        let other = Transaction::new("M:a".into(), quota, NonZeroU64::MIN);
        let batch: Batch = smallvec![other.clone(), spend(small(), 1)];
        let denied = gateway.admit(&batch, now).await.unwrap();
        assert!(!denied.is_allowed());
        assert_eq!(denied.source, source);
        let peek = Transaction {
            mode: Mode::Peek,
            ..other
        };
        let full = decide_now(&shared.memory, &smallvec![peek], now);
        assert_eq!(only(&full).remaining, 5);
    }
}

/// A hundred units, one a second.
fn small() -> Quota {
    let prefetch = Prefetch::new(50, MAX_AGE);
    Quota::new(100, 100, Duration::from_secs(100))
        .unwrap()
        .with_prefetch(prefetch)
}

/// Spends all there is; how many units that were.
async fn exhaust(gateway: &Prefetching<Way>) -> u64 {
    let mut admitted = 0;
    let mut now = NOW;
    for _ in 0..1000 {
        let outcome = decide(gateway, spend(small(), 1), now).await;
        admitted += u64::from(outcome.is_allowed());
        settle().await;
        // A pause is 5 ms long; the last units come after some of them.
        now = now + Nanos::new(100_000);
    }
    admitted
}

#[tokio::test(start_paused = true)]
async fn the_whole_bucket_is_spent_and_not_a_unit_more() {
    let shared = Shared::new();
    let gateway = gateway(&shared);
    assert_eq!(exhaust(&gateway).await, 100);
    // Near the bound the store is asked for less each time, and not by every request.
    assert!(shared.asked() < 12, "{}", shared.asked());
    let denied = decide(&gateway, spend(small(), 1), NOW + Nanos::new(100_000_000)).await;
    assert!(!denied.is_allowed());
    assert!(only(&denied).retry_in > Nanos::ZERO);
}

/// A cost that is charged after the response must be charged as long as the store has units.
#[tokio::test(start_paused = true)]
async fn what_never_denies_is_decided_by_the_store_when_nothing_is_held() {
    let shared = Shared::new();
    let gateway = gateway(&shared);
    let mut now = NOW;
    // The first denial comes while others are left half of what there was.
    while decide(&gateway, spend(small(), 1), now).await.is_allowed() {
        settle().await;
        now = now + Nanos::new(1000);
    }
    let charge = Transaction {
        mode: Mode::SpendOnly,
        ..spend(small(), 1)
    };
    let outcome = decide(&gateway, charge.clone(), now).await;
    assert_eq!(outcome.source, DecisionSource::Store);
    assert!(charge.has_taken(&only(&outcome)));
}

#[tokio::test(start_paused = true)]
async fn costs_that_are_great_beside_the_units_are_decided_by_the_store() {
    let shared = Shared::new();
    let gateway = gateway(&shared);
    let now = spend_slowly(&gateway, 500).await;
    for (cost, source) in [
        (25, DecisionSource::Prefetched),
        (26, DecisionSource::Store),
    ] {
        assert_eq!(
            decide(&gateway, spend(slow(), cost), now).await.source,
            source,
            "{cost}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_out_of_reach_leaves_what_is_held_and_then_decides_by_its_fallback() {
    let shared = Shared::new();
    let gateway = gateway(&shared);
    let now = spend_slowly(&gateway, 500).await;
    *shared.fails.lock() = true;
    let mut by_held_units = 0;
    loop {
        let answer = gateway.admit(&smallvec![spend(slow(), 1)], now).await;
        settle().await;
        match answer {
            Ok(outcome) => by_held_units += u64::from(outcome.is_allowed()),
            Err(error) => {
                assert!(error.is_out_of_reach());
                break;
            }
        }
    }
    assert!((1..=200).contains(&by_held_units), "{by_held_units}");
    // The gateway tries again, and goes on when the store is back.
    *shared.fails.lock() = false;
    let later = now + Nanos::new(20_000_000);
    decide(&gateway, spend(slow(), 1), later).await;
    settle().await;
    let outcome = decide(&gateway, spend(slow(), 1), later).await;
    assert_eq!(outcome.source, DecisionSource::Prefetched);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_waits_goes_on_when_the_worker_ends() {
    let shared = Shared::new();
    let gateway = gateway(&shared);
    for _ in 0..8 {
        decide(&gateway, spend(quota(), 1), NOW).await;
    }
    shared.gate.forget_permits(1_000_000);
    let mut waiting = gateway.admit(&smallvec![spend(quota(), 1)], NOW);
    settle().await;
    assert!((&mut waiting).now_or_never().is_none());
    shared.gate.add_permits(1);
    gateway.end().await;
    assert!(waiting.await.unwrap().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn without_a_runtime_for_its_task_a_bucket_is_never_hot() {
    let shared = Shared::new();
    let gateway = gateway(&shared);
    std::thread::spawn(move || {
        for _ in 0..100 {
            let outcome = gateway.admit(&smallvec![spend(quota(), 1)], NOW);
            let outcome = outcome.now_or_never().unwrap().unwrap();
            assert_eq!(outcome.source, DecisionSource::Store);
        }
    })
    .join()
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn subjects_that_come_once_do_not_drive_out_a_hot_bucket() {
    let shared = Shared::new();
    let gateway = gateway(&shared);
    for number in 0..20_000u64 {
        let key = format!("L:{number}");
        let once = Transaction::new(key.as_str().into(), quota(), NonZeroU64::MIN);
        decide(&gateway, once, NOW).await;
        if number % 10 == 0 {
            decide(&gateway, spend(quota(), 1), NOW).await;
            settle().await;
        }
    }
    let outcome = decide(&gateway, spend(quota(), 1), NOW).await;
    assert_eq!(outcome.source, DecisionSource::Prefetched);
}
