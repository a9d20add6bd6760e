//! What becomes of requests when a real Redis is killed, stopped, restarted and flushed.

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::watch;
use weir_limit::{Batch, Claim, Claims};
use weir_store::tests::contract::{NOW, batch, spend};
use weir_store::tests::support::{Recorder, eventually_some};
use weir_store::{
    DecisionSource, DenialCache, DenialCached, GuardSettings, Guarded, Leases, Memory,
    MemorySettings, Observer, OnFailure, Outcome, Reachability, Store,
};
use weir_testing::RedisServer;

use crate::{Redis, RedisSettings};

/// A worker's store, as a gateway puts it together.
type Worker = Arc<DenialCached<Guarded<Redis>>>;

struct Gateway {
    server: RedisServer,
    recorder: Arc<Recorder>,
    reachability: Arc<Reachability>,
    workers: [Worker; 2],
}

impl Gateway {
    async fn new() -> Self {
        let server = RedisServer::start();
        let recorder = Arc::<Recorder>::default();
        let observer: Arc<dyn Observer> = Arc::<Recorder>::clone(&recorder);
        let reachability = Arc::new(Reachability::new(observer));
        let local = Arc::new(Memory::new(MemorySettings {
            max_buckets: NonZeroUsize::new(1000).unwrap(),
        }));
        let denials = Arc::<DenialCache>::default();
        let worker = async || {
            let redis = connect(&server, reachability.observer()).await;
            let (reachability, local) = (Arc::clone(&reachability), Arc::clone(&local));
            let guarded = Guarded::spawn(redis, settings(), reachability, local);
            Arc::new(DenialCached::new(guarded, Arc::clone(&denials)))
        };
        let workers = [worker().await, worker().await];
        Self {
            server,
            recorder,
            reachability,
            workers,
        }
    }

    async fn decide(&self, worker: usize, batch: Batch) -> Outcome {
        self.workers[worker].decide(&batch, NOW).await.unwrap()
    }

    /// Asks both workers until both answer on this basis.
    async fn until_all_are(&self, source: DecisionSource) {
        let attempt = async || {
            let asked = [0, 1].map(|worker| self.decide(worker, batch([spend("L:poll", 1)])));
            let outcomes = join_all(asked).await;
            let is_there = |outcome: &Outcome| outcome.source == source;
            outcomes.iter().all(is_there).then_some(())
        };
        // The bucket that is asked for must not be remembered as empty.
        eventually_some("all answer on the other basis", async || {
            let answer = attempt().await;
            let _ = self.workers[0].reset(["L:poll".into()].into()).await;
            answer
        })
        .await;
    }

    async fn assert_exact(&self, key: &str) {
        let asked = (0..40).map(|number| self.decide(number % 2, batch([spend(key, 1)])));
        let outcomes = join_all(asked).await;
        let allowed = outcomes.iter().filter(|outcome| outcome.is_allowed());
        assert_eq!(allowed.count(), 10);
    }

    /// Two workers share three places, and a place that is given back is there again.
    async fn assert_places(&self, key: &str) {
        let claim = || Claims::from([Claim::new(key.into(), NonZeroU64::new(3).unwrap())]);
        let workers = self.workers.iter().map(|worker| worker.get_ref());
        let asked = workers
            .cycle()
            .take(10)
            .map(|worker| worker.acquire(claim(), NOW));
        let leased = join_all(asked).await.into_iter().map(Result::unwrap);
        let held: Vec<_> = leased
            .filter(|leased| leased.outcome.is_allowed())
            .collect();
        assert_eq!(held.len(), 3);
        drop(held);
        eventually_some("a place is free", async || {
            let leased = self.workers[0].get_ref().acquire(claim(), NOW).await;
            leased.unwrap().outcome.is_allowed().then_some(())
        })
        .await;
    }
}

async fn connect(server: &RedisServer, observer: &Arc<dyn Observer>) -> Redis {
    let settings = RedisSettings::parse(&server.url(), None, None).unwrap();
    let redis = Redis::spawn(settings, Arc::clone(observer)).unwrap();
    redis.connected(Duration::from_secs(20)).await.unwrap();
    redis
}

/// A deadline that a machine which pauses for a moment keeps while Redis runs.
fn settings() -> GuardSettings {
    GuardSettings {
        timeout: Duration::from_secs(5),
        on_failure: OnFailure::Local,
        ..GuardSettings::default()
    }
}

#[tokio::test]
async fn a_killed_redis_is_replaced_by_memory_until_it_is_restarted() {
    let mut gateway = Gateway::new().await;
    gateway.assert_exact("L:before").await;
    gateway.server.kill();
    gateway.until_all_are(DecisionSource::Local).await;
    gateway.assert_exact("L:meanwhile").await;
    assert!(!gateway.reachability.is_reachable());
    gateway.server.restart();
    gateway.until_all_are(DecisionSource::Store).await;
    gateway.assert_exact("L:after").await;
    assert!(gateway.reachability.is_reachable());
    assert_eq!(gateway.recorder.changes(), [false, true]);
}

#[tokio::test]
async fn no_request_under_load_fails_or_hangs_whatever_becomes_of_redis() {
    let mut gateway = Gateway::new().await;
    let (over, is_over) = watch::channel(false);
    let load: Vec<_> = (0..8)
        .map(|client| {
            tokio::spawn(keep_asking(
                gateway.workers[client % 2].clone(),
                is_over.clone(),
            ))
        })
        .collect();
    gateway.server.kill();
    gateway.until_all_are(DecisionSource::Local).await;
    gateway.server.restart();
    gateway.until_all_are(DecisionSource::Store).await;
    gateway.server.command(&["FLUSHALL"]);
    gateway.server.stop();
    gateway.until_all_are(DecisionSource::Local).await;
    gateway.server.resume();
    gateway.until_all_are(DecisionSource::Store).await;
    gateway.assert_exact("L:after").await;
    over.send(true).unwrap();
    for client in join_all(load).await {
        let longest = client.unwrap();
        // The deadline is five seconds; the rest is for a machine that is busy.
        assert!(longest < Duration::from_secs(20), "{longest:?}");
    }
    assert_eq!(gateway.recorder.changes(), [false, true, false, true]);
}

/// Asks without end, and tells how long the longest answer took.
async fn keep_asking(worker: Worker, is_over: watch::Receiver<bool>) -> Duration {
    let mut longest = Duration::ZERO;
    for number in 0_u64.. {
        if *is_over.borrow() {
            break;
        }
        let key = format!("L:load{}", number % 1000);
        let start = Instant::now();
        let outcome = worker.decide(&batch([spend(&key, 1)]), NOW).await;
        assert!(outcome.is_ok(), "{outcome:?}");
        longest = longest.max(start.elapsed());
        // A request has more to do, and answers that are there at once must not hold up others.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    longest
}

#[tokio::test]
async fn a_stopped_redis_is_replaced_by_memory_until_it_goes_on() {
    let gateway = Gateway::new().await;
    gateway.server.stop();
    gateway.until_all_are(DecisionSource::Local).await;
    gateway.assert_exact("L:meanwhile").await;
    gateway.server.resume();
    gateway.until_all_are(DecisionSource::Store).await;
    gateway.assert_exact("L:after").await;
    assert_eq!(gateway.recorder.changes(), [false, true]);
}

#[tokio::test]
async fn calls_do_not_pile_up_behind_a_stopped_redis() {
    let gateway = Gateway::new().await;
    gateway.server.stop();
    let ask = |number: usize| {
        let key = format!("L:{number}");
        gateway.decide(0, batch([spend(&key, 1)]))
    };
    join_all((0..5).map(ask)).await;
    for number in 0..5000 {
        assert_eq!(ask(number).await.source, DecisionSource::Local);
    }
    gateway.server.resume();
    gateway.until_all_are(DecisionSource::Store).await;
    let calls = gateway.server.calls("bitfield");
    assert!(calls < 500, "{calls}");
}

#[tokio::test]
async fn places_in_flight_are_exact_before_while_and_after_redis_is_gone() {
    let mut gateway = Gateway::new().await;
    gateway.assert_places("L:before").await;
    gateway.server.kill();
    gateway.until_all_are(DecisionSource::Local).await;
    gateway.assert_places("L:meanwhile").await;
    gateway.server.restart();
    gateway.until_all_are(DecisionSource::Store).await;
    gateway.assert_places("L:after").await;
}

#[tokio::test]
async fn a_flushed_redis_starts_afresh_and_exact() {
    let gateway = Gateway::new().await;
    gateway.assert_exact("L:a").await;
    gateway.server.command(&["FLUSHALL"]);
    // What was denied before the flush is remembered for a moment; this bucket was not.
    gateway.assert_exact("L:b").await;
    assert!(gateway.recorder.changes().is_empty());
}

#[tokio::test]
async fn a_remembered_denial_costs_redis_nothing() {
    let gateway = Gateway::new().await;
    gateway.decide(0, batch([spend("L:a", 10)])).await;
    assert!(
        !gateway
            .decide(0, batch([spend("L:a", 1)]))
            .await
            .is_allowed()
    );
    let calls = gateway.server.calls("bitfield");
    for number in 0..100 {
        let outcome = gateway.decide(number % 2, batch([spend("L:a", 1)])).await;
        assert_eq!(outcome.source, DecisionSource::Remembered);
    }
    assert_eq!(gateway.server.calls("bitfield"), calls);
}
