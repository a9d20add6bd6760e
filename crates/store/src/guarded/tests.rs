use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::Notify;
use weir_limit::{Claim, Claims, Mode, Transaction};

use super::*;
use crate::tests::contract::{NOW, batch, minutes, of_mode, owed, spend};
use crate::tests::support::Recorder;
use crate::{LeaseGuard, Leased, Leases, MemorySettings, Observer, PendingReply};

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
    /// The debt of all buckets, in minutes.
    debt: AtomicU64,
    refunds: Mutex<Vec<(Batch, Timestamp)>>,
    /// What late answers left owed.
    owed: Mutex<Vec<Nanos>>,
    /// The bucket on a node that is out of reach.
    lost_node: Mutex<Option<&'static str>>,
    /// The connection is lost.
    lost: Notify,
    /// Leases that are held.
    held: AtomicUsize,
    released: AtomicUsize,
}

/// A lease of a puppet's.
struct PuppetLease(Arc<Strings>);

impl Drop for PuppetLease {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::SeqCst);
        self.0.released.fetch_add(1, Ordering::SeqCst);
    }
}

impl Puppet {
    fn answer<T: Send + 'static>(&self, value: T) -> StoreFuture<T> {
        let strings = Arc::clone(&self.0);
        StoreFuture::waiting(async move {
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

/// An answer of a puppet's, which knows who gave it.
struct PuppetAnswer {
    puppet: Puppet,
    answer: StoreFuture<Outcome>,
}

impl Future for PuppetAnswer {
    type Output = Result<Outcome, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.answer).poll(cx)
    }
}

impl PendingReply<Outcome> for PuppetAnswer {
    fn refund(self: Pin<&mut Self>, taken: OwedBatch, now: Timestamp) -> StoreFuture<()> {
        let owed = taken.iter().map(|owed| owed.until.since(now));
        self.puppet.0.owed.lock().extend(owed);
        self.puppet.refund(taken, now)
    }
}

impl Store for Puppet {
    fn decide(&self, batch: &Batch, _: Timestamp) -> StoreFuture<Outcome> {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        let debt = minutes(self.0.debt.load(Ordering::SeqCst));
        let answer = self.answer(Outcome {
            decisions: batch
                .iter()
                .map(|transaction| Some(transaction.decide(debt)))
                .collect(),
            source: DecisionSource::Store,
        });
        let puppet = self.clone();
        StoreFuture::pending(PuppetAnswer { puppet, answer })
    }

    fn refund(&self, owed: OwedBatch, now: Timestamp) -> StoreFuture<()> {
        let batch: Batch = owed.into_iter().map(|owed| owed.transaction).collect();
        let strings = Arc::clone(&self.0);
        let lost = strings.lost_node.lock();
        if batch.iter().any(|one| Some(one.key.as_str()) == *lost) {
            return StoreFuture::failed(StoreError::Node {
                node: "a:1".into(),
                allowed: None,
                source: Box::new(StoreError::OutOfReach),
            });
        }
        drop(lost);
        let answer = self.answer(());
        StoreFuture::waiting(async move {
            answer.await?;
            strings.refunds.lock().push((batch, now));
            Ok(())
        })
    }

    fn reset(&self, _: BucketKeys) -> StoreFuture<()> {
        self.answer(())
    }
}

impl Remote for Puppet {}

impl HealthCheck for Puppet {
    fn ping(&self) -> StoreFuture<()> {
        self.answer(())
    }

    fn probe(&self) -> StoreFuture<()> {
        self.answer(())
    }

    fn lost(&self) -> StoreFuture<()> {
        let strings = Arc::clone(&self.0);
        StoreFuture::waiting(async move {
            strings.lost.notified().await;
            Ok(())
        })
    }
}

impl Leases for Puppet {
    fn acquire(&self, claims: Claims, _: Timestamp) -> StoreFuture<Leased> {
        let outcome = Outcome {
            decisions: claims.iter().map(|claim| Some(claim.decide(0))).collect(),
            source: DecisionSource::Store,
        };
        let strings = Arc::clone(&self.0);
        let answer = self.answer(());
        StoreFuture::waiting(async move {
            answer.await?;
            strings.held.fetch_add(1, Ordering::SeqCst);
            Ok(Leased {
                outcome,
                guard: LeaseGuard::new(PuppetLease(strings)),
            })
        })
    }

    fn delete(&self, _: BucketKeys) -> StoreFuture<()> {
        self.answer(())
    }

    fn end(&self) -> StoreFuture<()> {
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
        self.guarded.decide(&batch([spend("L:a", 1)]), NOW).await
    }

    async fn admit(
        &self,
        all: impl IntoIterator<Item = Transaction>,
    ) -> Result<Outcome, StoreError> {
        let all: Batch = all.into_iter().collect();
        self.guarded.admit(&all, NOW).await
    }

    /// Lets each answer take so long.
    fn slow_down(&self, to: Duration) {
        let millis = usize::try_from(to.as_millis()).unwrap();
        self.puppet.0.slow.store(millis, Ordering::SeqCst);
    }

    /// What was given back so far.
    fn refunds(&self) -> Vec<(Batch, Timestamp)> {
        self.puppet.0.refunds.lock().clone()
    }

    /// Lets all answers come, and tells what was given back then.
    async fn refunds_after(&self, time: Duration) -> Vec<(Batch, Timestamp)> {
        time::sleep(time).await;
        self.refunds()
    }

    async fn source(&self) -> DecisionSource {
        self.decide().await.unwrap().source
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
    assert_eq!(fixture.source().await, DecisionSource::Store);
    assert_eq!(fixture.recorder.changes(), [false, true]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_opens_the_breaker_at_the_first_call() {
    let fixture = Fixture::new(OnFailure::Allow);
    time::sleep(Duration::from_millis(1)).await;
    fixture.puppet.0.cut.store(true, Ordering::SeqCst);
    assert_eq!(fixture.source().await, DecisionSource::FailedOpen);
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
        assert_eq!(outcome.source, DecisionSource::Local);
        assert_eq!(outcome.decisions[0].unwrap().remaining, left);
    }
    assert!(!fixture.decide().await.unwrap().is_allowed());
    let taken = batch([spend("L:a", 1)]);
    fixture.guarded.refund(owed(taken), NOW).await.unwrap();
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
    let taken = batch([spend("L:a", 1)]);
    assert!(fixture.guarded.refund(owed(taken), NOW).await.is_err());
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
    assert_eq!(before.outcome.source, DecisionSource::Store);
    fixture.puppet.0.cut.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let local = fixture.lease().await.unwrap();
        assert_eq!(local.outcome.source, DecisionSource::Local);
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
    assert_eq!(undecided.outcome.source, DecisionSource::FailedOpen);
    assert_eq!(undecided.outcome.decisions[..], [None]);
    assert!(undecided.guard.is_empty());
    let closed = Fixture::new(OnFailure::Deny);
    closed.silence().await;
    assert!(closed.lease().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn calls_for_leases_are_reported() {
    let fixture = Fixture::new(OnFailure::Local);
    fixture.lease().await.unwrap();
    let deleted = fixture.guarded.delete(["L:a".into()].into());
    deleted.await.unwrap();
    let calls = fixture.recorder.calls();
    assert_eq!(calls, [(Call::Acquire, true), (Call::Reset, true)]);
}

const DEADLINE: Duration = Duration::from_millis(20);
const TOO_LATE: Duration = Duration::from_millis(30);

/// Five requests that a stalled Redis left with a 503 used to empty a bucket of five for an hour.
#[tokio::test(start_paused = true)]
async fn what_a_late_answer_took_from_a_request_that_was_denied_without_it_is_given_back() {
    let fixture = Fixture::new(OnFailure::Deny);
    fixture.slow_down(TOO_LATE);
    let both = || [spend("L:a", 1), spend("L:b", 3)];
    assert!(fixture.admit(both()).await.is_err());
    assert_eq!(fixture.refunds(), []);
    let refunds = fixture.refunds_after(2 * TOO_LATE).await;
    assert_eq!(refunds, [(batch(both()), NOW + TOO_LATE.into())]);
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_gives_back_no_more_than_it_shows_as_taken() {
    let taking_none = [
        (0, vec![of_mode(Mode::CheckOnly, "L:a", 1)], "a check"),
        (10, vec![spend("L:a", 1)], "a denial"),
        (10, vec![of_mode(Mode::SpendOnly, "L:a", 1)], "no room"),
        (5, vec![spend("L:a", 1), spend("L:b", 6)], "denied by one"),
    ];
    for (debt, all, why) in taking_none {
        let fixture = Fixture::new(OnFailure::Deny);
        fixture.puppet.0.debt.store(debt, Ordering::SeqCst);
        fixture.slow_down(TOO_LATE);
        assert!(fixture.admit(all).await.is_err());
        assert_eq!(fixture.refunds_after(2 * TOO_LATE).await, [], "{why}");
    }
    let fixture = Fixture::new(OnFailure::Deny);
    fixture.slow_down(TOO_LATE);
    let mixed = [spend("L:a", 1), of_mode(Mode::CheckOnly, "L:b", 1)];
    assert!(fixture.admit(mixed).await.is_err());
    let refunds = fixture.refunds_after(2 * TOO_LATE).await;
    assert_eq!(refunds, [(batch([spend("L:a", 1)]), NOW + TOO_LATE.into())]);
}

#[tokio::test(start_paused = true)]
async fn what_has_come_back_by_itself_before_a_late_answer_is_not_given_back_as_well() {
    let fixture = Fixture::new(OnFailure::Deny);
    let minute = Duration::from_secs(60);
    fixture.slow_down(minute);
    assert!(
        fixture
            .admit([spend("L:a", 1), spend("L:b", 2)])
            .await
            .is_err()
    );
    time::sleep(minute / 2).await;
    fixture.slow_down(Duration::ZERO);
    let refunds = fixture.refunds_after(minute).await;
    let batches: Vec<_> = refunds.into_iter().map(|(batch, _)| batch).collect();
    assert_eq!(batches, [batch([spend("L:b", 2)])]);
    // The second of its two units comes back within the next minute.
    assert_eq!(*fixture.puppet.0.owed.lock(), [minutes(1)]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_let_through_without_the_answer_is_charged() {
    for on_failure in [OnFailure::Allow, OnFailure::Local] {
        let fixture = Fixture::new(on_failure);
        fixture.slow_down(TOO_LATE);
        let outcome = fixture.admit([spend("L:a", 1)]).await.unwrap();
        assert!(outcome.is_allowed());
        assert_eq!(
            fixture.refunds_after(2 * TOO_LATE).await,
            [],
            "{on_failure:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_the_stand_in_denied_is_not_charged_by_a_late_answer() {
    let fixture = Fixture::new(OnFailure::Local);
    fixture.slow_down(TOO_LATE);
    assert!(
        fixture
            .admit([spend("L:a", 10)])
            .await
            .unwrap()
            .is_allowed()
    );
    let denied = fixture.admit([spend("L:a", 1)]).await.unwrap();
    assert_eq!(
        (denied.source, denied.is_allowed()),
        (DecisionSource::Local, false)
    );
    let refunds = fixture.refunds_after(2 * TOO_LATE).await;
    assert_eq!(refunds, [(batch([spend("L:a", 1)]), NOW + TOO_LATE.into())]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_is_charged() {
    let fixture = Fixture::new(OnFailure::Deny);
    fixture.slow_down(TOO_LATE);
    let left = time::timeout(DEADLINE / 2, fixture.admit([spend("L:a", 1)]));
    assert!(left.await.is_err());
    assert_eq!(fixture.refunds_after(2 * TOO_LATE).await, []);
}

/// What responses or strikes cost is owed by requests that were let through.
#[tokio::test(start_paused = true)]
async fn what_no_request_waits_for_is_charged_however_late_the_answer_comes() {
    let fixture = Fixture::new(OnFailure::Deny);
    fixture.slow_down(TOO_LATE);
    assert!(fixture.decide().await.is_err());
    assert_eq!(fixture.refunds_after(2 * TOO_LATE).await, []);
}

#[tokio::test(start_paused = true)]
async fn what_late_answers_took_is_given_back_although_the_breaker_is_open() {
    let fixture = Fixture::new(OnFailure::Deny);
    fixture.slow_down(TOO_LATE);
    let asked = (0..5).map(|_| fixture.admit([spend("L:a", 1)]));
    assert!(join_all(asked).await.iter().all(Result::is_err));
    assert!(!fixture.guarded.is_reachable());
    let refunds = fixture.refunds_after(Duration::from_secs(5)).await;
    assert!(!fixture.guarded.is_reachable());
    assert_eq!(refunds.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn of_an_answer_that_never_comes_nothing_is_given_back() {
    let fixture = Fixture::new(OnFailure::Deny);
    fixture.puppet.0.silent.store(true, Ordering::SeqCst);
    assert!(fixture.admit([spend("L:a", 1)]).await.is_err());
    fixture.puppet.0.silent.store(false, Ordering::SeqCst);
    assert_eq!(fixture.refunds_after(Duration::from_secs(60)).await, []);
}

/// A request that found no place gives back what its other limits took, although the store fell
/// behind in between.
#[tokio::test(start_paused = true)]
async fn a_refund_gets_to_a_store_that_is_slow_and_nobody_waits_for_it() {
    let fixture = Fixture::new(OnFailure::Deny);
    fixture.slow_down(TOO_LATE);
    let start = Instant::now();
    let refund = async || fixture.guarded.refund(owed([spend("L:a", 1)]), NOW).await;
    assert!(refund().await.is_err());
    assert_eq!((start.elapsed(), fixture.refunds().len()), (DEADLINE, 0));
    assert_eq!(fixture.refunds_after(2 * TOO_LATE).await.len(), 1);
    for _ in 0..5 {
        let _ = fixture.decide().await;
    }
    assert!(!fixture.guarded.is_reachable());
    let start = Instant::now();
    assert!(refund().await.is_err());
    assert_eq!(
        (start.elapsed(), fixture.refunds().len()),
        (Duration::ZERO, 1)
    );
    assert_eq!(fixture.refunds_after(2 * TOO_LATE).await.len(), 2);
}

/// One node out of reach used to keep what a denied request had taken on all of them.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_given_back_to_one_node_is_given_back_to_others_and_later_to_it() {
    for (minutes_out, given_back) in [(0, 2), (2, 1)] {
        let fixture = Fixture::new(OnFailure::Deny);
        *fixture.puppet.0.lost_node.lock() = Some("L:b");
        let both = owed([spend("L:a", 1), spend("L:b", 1)]);
        assert!(fixture.guarded.refund(both, NOW).await.is_err());
        let refunds = fixture.refunds_after(Duration::from_secs(1)).await;
        assert_eq!(refunds, [(batch([spend("L:a", 1)]), NOW)]);
        // A unit of this bucket comes back by itself in a minute.
        time::sleep(minutes_out * Duration::from_secs(60)).await;
        *fixture.puppet.0.lost_node.lock() = None;
        let refunds = fixture.refunds_after(Duration::from_secs(1)).await;
        assert_eq!(refunds.len(), given_back);
    }
    let fixture = Fixture::new(OnFailure::Local);
    *fixture.puppet.0.lost_node.lock() = Some("L:b");
    let both = owed([spend("L:a", 1), spend("L:b", 1)]);
    fixture.guarded.refund(both, NOW).await.unwrap();
    *fixture.puppet.0.lost_node.lock() = None;
    let refunds = fixture.refunds_after(Duration::from_secs(5)).await;
    assert_eq!(refunds, [], "memory had given them");
}

/// It took a unit off the next window, of which another request had it.
#[tokio::test(start_paused = true)]
async fn what_is_no_longer_owed_is_not_given_back_when_the_store_is_within_reach_again() {
    for (millis_left, given_back) in [(400, 0), (1500, 1)] {
        let fixture = Fixture::new(OnFailure::Deny);
        *fixture.puppet.0.lost_node.lock() = Some("L:a");
        let taken = Owed {
            transaction: spend("L:a", 1),
            until: NOW + Duration::from_millis(millis_left).into(),
        };
        let refund = fixture.guarded.refund([taken].into_iter().collect(), NOW);
        assert!(refund.await.is_err());
        time::sleep(Duration::from_millis(500)).await;
        *fixture.puppet.0.lost_node.lock() = None;
        let refunds = fixture.refunds_after(Duration::from_secs(5)).await;
        assert_eq!(refunds.len(), given_back, "{millis_left}");
    }
}

#[tokio::test(start_paused = true)]
async fn while_another_store_stands_in_refunds_are_its_affair_alone() {
    let fixture = Fixture::new(OnFailure::Local);
    fixture.silence().await;
    fixture.puppet.0.silent.store(false, Ordering::SeqCst);
    let refund = fixture.guarded.refund(owed([spend("L:a", 1)]), NOW);
    refund.await.unwrap();
    assert_eq!(fixture.refunds_after(Duration::from_secs(5)).await, []);
}

/// A turn that Redis had lent to a client that left was given out again by the memory store, which
/// had lent it to nobody, and the other way round.
#[tokio::test(start_paused = true)]
async fn what_one_store_lent_is_not_given_back_to_the_one_that_stands_in_nor_the_other_way_round() {
    let fixture = Fixture::new(OnFailure::Local);
    let local = Arc::clone(&fixture.guarded.guard.local);
    let take = || local.decide_now(&batch([spend("L:lent", 4)]), NOW);
    let left = |outcome: Outcome| outcome.decisions[0].unwrap().remaining;
    assert_eq!(left(take()), 6);
    let give_back = async |by, then| {
        let latest = NOW + minutes(60);
        let given = fixture
            .guarded
            .refund_last(spend("L:lent", 4), by, latest, then);
        let _ = given.await;
    };
    for is_out in [false, true] {
        if is_out {
            fixture.silence().await;
        }
        give_back(DecisionSource::Store, NOW).await;
        assert_eq!(left(take()), 2, "{is_out}");
        give_back(DecisionSource::Local, NOW).await;
    }
    assert_eq!(left(take()), 2);
    assert_eq!(fixture.refunds(), []);
}

/// A release that got to the store before its lease would leave the lease held until it expires.
#[tokio::test(start_paused = true)]
async fn a_lease_that_comes_too_late_is_released_when_it_is_there() {
    for on_failure in [OnFailure::Deny, OnFailure::Local, OnFailure::Allow] {
        let fixture = Fixture::new(on_failure);
        fixture.slow_down(TOO_LATE);
        let leased = fixture.lease().await;
        assert_eq!(leased.is_err(), on_failure == OnFailure::Deny);
        time::sleep(TOO_LATE).await;
        let Strings { held, released, .. } = &*fixture.puppet.0;
        let counts = [held, released].map(|count| count.load(Ordering::SeqCst));
        assert_eq!(counts, [0, 1], "{on_failure:?}");
    }
}

/// Of two workers, the one without traffic used to notice up to a second later. The store was told
/// to be within reach again when the other one had found it back, and then was out of reach for the
/// next request.
#[tokio::test(start_paused = true)]
async fn a_connection_that_is_lost_without_traffic_opens_the_breaker_at_once() {
    let fixture = Fixture::new(OnFailure::Deny);
    time::sleep(Duration::from_millis(1)).await;
    let start = Instant::now();
    fixture.puppet.0.cut.store(true, Ordering::SeqCst);
    fixture.puppet.0.lost.notify_waiters();
    fixture.guarded.guard.breaker.opened().await;
    assert_eq!((start.elapsed(), fixture.asked()), (Duration::ZERO, 0));
}
