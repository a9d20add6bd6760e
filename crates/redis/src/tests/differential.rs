//! One random sequence through the pure algorithm, the memory store, Redis and a Redis Cluster:
//! equal answers.

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{
    Algorithm, Alignment, Batch, BucketKey, Calendar, CalendarUnit, Mode, Quota, Transaction,
};
use weir_store::tests::contract::NOW;
use weir_store::tests::support::eventually;
use weir_store::{Memory, MemorySettings, Outcome, Owed, Store, Unobserved};
use weir_testing::{RedisCluster, RedisServer};

use crate::tests::reference::Reference;
use crate::{Redis, RedisNodes, RedisSettings};

const STEPS: usize = 10_000;
const KEYS: u64 = 24;

/// How far the clock may step back without a bucket being removed that is not full.
const STEP_BACK: u64 = 900_000_000;

async fn connect(settings: RedisSettings) -> Redis {
    let redis = Redis::spawn(settings, Arc::new(Unobserved)).unwrap();
    redis.connected(Duration::from_secs(20)).await.unwrap();
    redis
}

struct Stores {
    reference: Reference,
    memory: Memory,
    redis: Redis,
    cluster: Redis,
    _servers: (RedisServer, RedisCluster),
}

impl Stores {
    async fn new() -> Self {
        let server = RedisServer::start();
        let redis = connect(RedisSettings::parse(&server.url(), None, None).unwrap()).await;
        let nodes = RedisCluster::start(0);
        let mut named = RedisNodes::default();
        named.add(&nodes.urls()[1]).unwrap();
        let cluster = connect(RedisSettings::cluster(named).unwrap()).await;
        let max_buckets = NonZeroUsize::new(1000).unwrap();
        Self {
            reference: Reference::default(),
            memory: Memory::new(MemorySettings { max_buckets }),
            redis,
            cluster,
            _servers: (server, nodes),
        }
    }

    async fn decide(&self, batch: Batch, now: Timestamp) -> [Outcome; 4] {
        let mut outcomes = Vec::new();
        for store in self.all() {
            outcomes.push(store.decide(&batch.clone(), now).await.unwrap());
        }
        self.settle().await;
        outcomes.try_into().unwrap()
    }

    async fn refund(&self, owed: Owed, now: Timestamp) {
        for store in self.all() {
            let owed = [owed.clone()].into_iter().collect();
            store.refund(owed, now).await.unwrap();
        }
    }

    async fn reset(&self, key: &BucketKey) {
        for store in self.all() {
            store.reset([key.clone()].into()).await.unwrap();
        }
    }

    fn all(&self) -> [&dyn Store; 4] {
        [&self.reference, &self.memory, &self.redis, &self.cluster]
    }

    async fn settle(&self) {
        let calls = || self.redis.background_calls() + self.cluster.background_calls();
        eventually("compensations end", || calls() == 0).await;
    }

    /// Whether all stores still know this bucket: a refund to an expired bucket leaves a full
    /// one in Redis, which a clock that then steps back finds not quite full.
    fn knows(&self, transaction: &Transaction, latest: Timestamp) -> bool {
        self.reference
            .full_at(transaction)
            .is_some_and(|full| full > latest)
    }
}

/// Makes the sequence, and keeps its clock.
struct Script {
    random: StdRng,
    now: Timestamp,
    latest: Timestamp,
    /// The clock does not step back behind the last refund, which raises a full bucket's TAT to
    /// its own moment in Redis and not in the others.
    last_refund: Timestamp,
}

impl Script {
    fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            now: NOW,
            latest: NOW,
            last_refund: NOW,
        }
    }

    fn tick(&mut self) {
        self.now = match self.random.random_range(0..10) {
            0..4 => self.now,
            4..8 => self.latest + Nanos::new(self.random.random_range(0..90_000_000_000)),
            8 => self.latest + Nanos::from_secs(self.random.random_range(0..3600)),
            _ => self.stepped_back(),
        };
        self.latest = self.latest.max(self.now);
    }

    fn stepped_back(&mut self) -> Timestamp {
        let back = self.random.random_range(0..STEP_BACK);
        Timestamp::from_nanos(self.latest.as_nanos() - back).max(self.last_refund)
    }

    fn key(&mut self) -> BucketKey {
        let number = self.random.random_range(0..KEYS);
        key(number)
    }

    /// Long enough that Redis, whose own clock goes on, expires nothing during the test.
    fn quota(&mut self) -> Quota {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        let (burst, count, period) = [
            (10, 1, minutes(1)),
            (3, 1, minutes(5)),
            (100, 7, minutes(3)),
            (20, 1, minutes(60)),
            (1 << 39, 1 << 39, minutes(10)),
        ][self.random.random_range(0..5)];
        Quota::new(burst, count, period).unwrap()
    }

    /// The period is the key's: what no longer counts by one period is removed at different times
    /// by different stores, and would count again by a longer one.
    fn window(&mut self, key: u64) -> Quota {
        let calendar = Calendar::new(CalendarUnit::Day, "America/Lima").unwrap();
        let count_denied = self.random.random_range(0..3) == 0;
        let algorithm = [
            Algorithm::FixedWindow(Alignment::Period),
            Algorithm::FixedWindow(Alignment::FirstRequest),
            Algorithm::FixedWindow(Alignment::Calendar(calendar)),
            Algorithm::SlidingWindow { count_denied },
            Algorithm::SlidingLog { count_denied },
        ][self.random.random_range(0..5)];
        let count = [1, 3, 10, 20][self.random.random_range(0..4)];
        let minutes = [10, 30, 60, 1000][usize::try_from(key % 4).unwrap()];
        Quota::windowed(algorithm, count, Duration::from_secs(60 * minutes)).unwrap()
    }

    fn transaction(&mut self) -> Transaction {
        let number = self.random.random_range(0..KEYS);
        let quota = match self.random.random_range(0..3) {
            0 => self.quota(),
            _ => self.window(number),
        };
        let burst = quota.burst().get();
        let cost = match self.random.random_range(0..10) {
            0 => burst + 1,
            1 => burst,
            _ => self.random.random_range(1..=burst.div_ceil(3)),
        };
        let modes = [
            Mode::CheckAndSpend,
            Mode::CheckOnly,
            Mode::SpendOnly,
            Mode::Peek,
            Mode::AllowOnly,
        ];
        let mode = modes[[0, 0, 0, 1, 2, 2, 3, 4][self.random.random_range(0..8)]];
        Transaction {
            mode,
            ..Transaction::new(key(number), quota, NonZeroU64::new(cost).unwrap())
        }
    }

    /// One to three transactions of different buckets.
    fn batch(&mut self) -> Batch {
        let mut all = Batch::new();
        for _ in 0..self.random.random_range(1..=3) {
            let transaction = self.transaction();
            if all.iter().all(|other| other.key != transaction.key) {
                all.push(transaction);
            }
        }
        all
    }
}

fn key(number: u64) -> BucketKey {
    format!("L:{number}").as_str().into()
}

#[tokio::test]
async fn memory_and_redis_answer_as_the_pure_algorithm_does() {
    let seed = rand::random();
    println!("seed {seed}");
    let stores = Stores::new().await;
    let mut script = Script::new(seed);
    let (mut allowed, mut denied) = (0, 0);
    for step in 0..STEPS {
        script.tick();
        match script.random.random_range(0..20) {
            0 => stores.reset(&script.key()).await,
            1..4 => {
                let transaction = script.transaction();
                if stores.knows(&transaction, script.latest) {
                    let until = script.now + Nanos::from_secs(script.random.random_range(0..600));
                    let owed = Owed { transaction, until };
                    stores.refund(owed, script.now).await;
                    script.last_refund = script.latest;
                    script.now = script.latest;
                }
            }
            _ => {
                let asked = script.batch();
                let outcomes = stores.decide(asked.clone(), script.now).await;
                let [expected, memory, redis, cluster] = outcomes;
                assert_eq!(memory, expected, "memory, step {step}: {asked:#?}");
                assert_eq!(redis, expected, "redis, step {step}: {asked:#?}");
                assert_eq!(cluster, expected, "Cluster, step {step}: {asked:#?}");
                if expected.is_allowed() {
                    allowed += 1;
                } else {
                    denied += 1;
                    script.last_refund = script.latest;
                }
            }
        }
    }
    // A sequence in which nothing much happens proves nothing.
    assert!(
        allowed > STEPS / 10 && denied > STEPS / 10,
        "{allowed} {denied}"
    );
}
