use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use crate::limit::{Claim, Claims};
use crate::store::contract::{NOW, batch, spend};
use crate::store::testing::Recorder;
use crate::store::{Held, Leased, Leases, MemorySettings, Observer};

/// A remote store of whom a test says how it fares.
#[derive(Clone, Default)]
struct Puppet(Arc<Strings>);

#[derive(Default)]
struct Strings {
    silent: AtomicBool,
    cut: AtomicBool,
    /// Milliseconds that an answer takes.
    slow: AtomicUsize,
    asked: AtomicUsize,
}

impl Puppet {
    fn answer<T: Send + 'static>(&self, value: T) -> Pending<T> {
        let strings = Arc::clone(&self.0);
        Pending::waiting(async move {
            if strings.cut.load(Ordering::SeqCst) {
                return Err(StoreError::Lost("cut".into()));
            }
            if strings.silent.load(Ordering::SeqCst) {
                time::sleep(Duration::from_secs(1)).await;
                return Err(StoreError::Deadline);
            }
            let slow = strings.slow.load(Ordering::SeqCst) as u64;
            time::sleep(Duration::from_millis(slow)).await;
            Ok(value)
        })
    }
}

impl Store for Puppet {
    fn decide(&self, _: Batch, _: Timestamp) -> Pending<Outcome> {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        self.answer(Outcome {
            decisions: smallvec![],
            basis: Basis::Store,
        })
    }

    fn refund(&self, _: Batch, _: Timestamp) -> Pending<()> {
        self.answer(())
    }

    fn reset(&self, _: BucketKeys) -> Pending<()> {
        self.answer(())
    }
}

impl Remote for Puppet {
    fn ping(&self) -> Pending<()> {
        self.answer(())
    }

    fn probe(&self) -> Pending<()> {
        self.answer(())
    }
}

impl Leases for Puppet {
    fn acquire(&self, claims: Claims, _: Timestamp) -> Pending<Leased> {
        let outcome = Outcome {
            decisions: claims.iter().map(|claim| Some(claim.decide(0))).collect(),
            basis: Basis::Store,
        };
        let strings = Arc::clone(&self.0);
        let answer = self.answer(());
        Pending::waiting(async move {
            answer.await?;
            Ok(Leased {
                outcome,
                held: Held::new(strings),
            })
        })
    }

    fn forget(&self, _: BucketKeys) -> Pending<()> {
        self.answer(())
    }

    fn end(&self) -> Pending<()> {
        self.answer(())
    }
}

struct Fixture {
    puppet: Puppet,
    recorder: Arc<Recorder>,
    guarded: Guarded<Puppet>,
}

impl Fixture {
    fn new(on_failure: OnFailure) -> Self {
        let (puppet, recorder) = (Puppet::default(), Arc::<Recorder>::default());
        let observer: Arc<dyn Observer> = Arc::<Recorder>::clone(&recorder);
        let settings = GuardSettings {
            on_failure,
            ..GuardSettings::default()
        };
        let max_buckets = NonZeroUsize::MIN.saturating_add(99);
        let guarded = Guarded::spawn(
            puppet.clone(),
            settings,
            Arc::new(Reachability::new(observer)),
            Arc::new(Memory::new(MemorySettings { max_buckets })),
        );
        Self {
            puppet,
            recorder,
            guarded,
        }
    }

    async fn decide(&self) -> Result<Outcome, StoreError> {
        self.guarded.decide(batch([spend("L:a", 1)]), NOW).await
    }

    async fn basis(&self) -> Basis {
        self.decide().await.unwrap().basis
    }

    /// Asks for the only place.
    async fn lease(&self) -> Result<Leased, StoreError> {
        let claim = Claim::new("L:a".into(), std::num::NonZeroU64::MIN);
        self.guarded.acquire([claim].into(), NOW).await
    }

    fn asked(&self) -> usize {
        self.puppet.0.asked.load(Ordering::SeqCst)
    }

    /// Lets the store fall silent until the breaker is open.
    async fn silence(&self) {
        self.puppet.0.silent.store(true, Ordering::SeqCst);
        for _ in 0..5 {
            assert!(self.guarded.is_reachable());
            let _ = self.decide().await;
        }
        assert!(!self.guarded.is_reachable());
    }
}

#[tokio::test(start_paused = true)]
async fn no_call_takes_longer_than_the_deadline() {
    let fixture = Fixture::new(OnFailure::Deny);
    fixture.puppet.0.silent.store(true, Ordering::SeqCst);
    let start = Instant::now();
    assert!(matches!(fixture.decide().await, Err(StoreError::Deadline)));
    assert!(start.elapsed() <= Duration::from_millis(21));
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_asks_nothing_and_makes_nobody_wait() {
    let fixture = Fixture::new(OnFailure::Deny);
    fixture.silence().await;
    let (start, asked) = (Instant::now(), fixture.asked());
    for _ in 0..1000 {
        assert!(matches!(
            fixture.decide().await,
            Err(StoreError::OutOfReach)
        ));
    }
    assert_eq!((start.elapsed(), fixture.asked()), (Duration::ZERO, asked));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_back_is_asked_again_without_a_request_as_the_probe() {
    let fixture = Fixture::new(OnFailure::Local);
    fixture.silence().await;
    let asked = fixture.asked();
    time::sleep(Duration::from_secs(60)).await;
    assert!(!fixture.guarded.is_reachable());
    fixture.puppet.0.silent.store(false, Ordering::SeqCst);
    time::sleep(Duration::from_secs(2)).await;
    assert!(fixture.guarded.is_reachable());
    assert_eq!(fixture.asked(), asked);
    assert_eq!(fixture.basis().await, Basis::Store);
    assert_eq!(fixture.recorder.changes(), [false, true]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_opens_the_breaker_at_the_first_call() {
    let fixture = Fixture::new(OnFailure::Allow);
    time::sleep(Duration::from_millis(1)).await;
    fixture.puppet.0.cut.store(true, Ordering::SeqCst);
    assert_eq!(fixture.basis().await, Basis::FailedOpen);
    assert!(!fixture.guarded.is_reachable());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_lost_without_traffic_is_noticed_within_seconds() {
    let fixture = Fixture::new(OnFailure::Deny);
    time::sleep(Duration::from_millis(1)).await;
    fixture.puppet.0.silent.store(true, Ordering::SeqCst);
    time::sleep(Duration::from_secs(3)).await;
    assert!(!fixture.guarded.is_reachable());
    assert_eq!(fixture.recorder.changes(), [false]);
    assert_eq!(fixture.asked(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_too_slowly_stays_out_of_reach() {
    let fixture = Fixture::new(OnFailure::Deny);
    fixture.puppet.0.slow.store(30, Ordering::SeqCst);
    for _ in 0..5 {
        assert!(fixture.decide().await.is_err());
    }
    time::sleep(Duration::from_secs(60)).await;
    assert!(!fixture.guarded.is_reachable());
    assert_eq!(fixture.recorder.changes(), [false]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_again_and_again_is_not_reported_without_end() {
    let fixture = Fixture::new(OnFailure::Deny);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) {
        // Probes pass, and every decision fails.
        fixture.puppet.0.slow.store(30, Ordering::SeqCst);
        while fixture.guarded.is_reachable() {
            let _ = fixture.decide().await;
        }
        fixture.puppet.0.slow.store(0, Ordering::SeqCst);
        time::sleep(Duration::from_millis(5)).await;
    }
    let changes = fixture.recorder.changes().len();
    assert!(changes < 60, "{changes}");
}

#[tokio::test(start_paused = true)]
async fn local_limits_as_the_store_would_until_it_is_back() {
    let fixture = Fixture::new(OnFailure::Local);
    fixture.silence().await;
    // The five that ran into the deadline were decided by the memory store, too.
    for left in (0..5).rev() {
        let outcome = fixture.decide().await.unwrap();
        assert_eq!(outcome.basis, Basis::Local);
        assert_eq!(outcome.decisions[0].unwrap().remaining, left);
    }
    assert!(!fixture.decide().await.unwrap().is_allowed());
    let one = batch([spend("L:a", 1)]);
    fixture.guarded.refund(one, NOW).await.unwrap();
    assert!(fixture.decide().await.unwrap().is_allowed());
    let reset = fixture.guarded.reset(["L:a".into()].into()).await;
    assert!(reset.is_err(), "the store still holds the bucket");
    assert!(fixture.decide().await.unwrap().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn calls_are_observed_with_how_they_went() {
    let fixture = Fixture::new(OnFailure::Deny);
    fixture.decide().await.unwrap();
    fixture.guarded.reset(["L:a".into()].into()).await.unwrap();
    fixture.puppet.0.silent.store(true, Ordering::SeqCst);
    let one = batch([spend("L:a", 1)]);
    assert!(fixture.guarded.refund(one, NOW).await.is_err());
    let calls = fixture.recorder.calls();
    assert_eq!(
        calls,
        [
            (Call::Decide, true),
            (Call::Reset, true),
            (Call::Refund, false)
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn leases_are_had_from_memory_while_the_store_is_gone() {
    let fixture = Fixture::new(OnFailure::Local);
    let before = fixture.lease().await.unwrap();
    assert_eq!(before.outcome.basis, Basis::Store);
    fixture.puppet.0.cut.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let local = fixture.lease().await.unwrap();
        assert_eq!(local.outcome.basis, Basis::Local);
        assert!(local.outcome.is_allowed());
        let refused = fixture.lease().await.unwrap();
        assert!(!refused.outcome.is_allowed());
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_store_leases_are_not_needed_or_not_had_as_it_is_configured() {
    let open = Fixture::new(OnFailure::Allow);
    open.silence().await;
    let undecided = open.lease().await.unwrap();
    assert_eq!(undecided.outcome.basis, Basis::FailedOpen);
    assert_eq!(undecided.outcome.decisions[..], [None]);
    assert!(undecided.held.is_nothing());
    let closed = Fixture::new(OnFailure::Deny);
    closed.silence().await;
    assert!(closed.lease().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn calls_for_leases_are_reported() {
    let fixture = Fixture::new(OnFailure::Local);
    fixture.lease().await.unwrap();
    let forgotten = fixture.guarded.forget(["L:a".into()].into());
    forgotten.await.unwrap();
    let calls = fixture.recorder.calls();
    assert_eq!(calls, [(Call::Acquire, true), (Call::Reset, true)]);
}
