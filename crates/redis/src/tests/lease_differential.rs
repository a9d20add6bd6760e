//! One random sequence of claims through a plain list, memory, Redis and a Redis Cluster: equal
//! answers.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use weir_limit::time::Timestamp;
use weir_limit::{BucketKey, BucketKeys, Claim, Claims, Mode};
use weir_store::tests::contract::NOW;
use weir_store::tests::lease_contract::{Subject, claim, claims, lease_contract};
use weir_store::tests::support::eventually;
use weir_store::{
    DecisionSource, LeaseGuard, Leased, Leases, MemoryLeases, Outcome, StoreFuture, Unobserved,
};
use weir_testing::{RedisCluster, RedisServer};

use crate::{Redis, RedisNodes, RedisSettings};

const STEPS: usize = 4000;
const KEYS: u32 = 5;

/// Leases as plainly as they can be written down: the list of those that are held.
#[derive(Default)]
struct Reference(Arc<Mutex<List>>);

#[derive(Default)]
struct List {
    held: Vec<(BucketKey, u64)>,
    next: u64,
}

struct Ids(Arc<Mutex<List>>, Vec<u64>);

impl Drop for Ids {
    fn drop(&mut self) {
        self.0.lock().held.retain(|(_, id)| !self.1.contains(id));
    }
}

impl Leases for Reference {
    fn acquire(&self, claims: Claims, _: Timestamp) -> StoreFuture<Leased> {
        let mut list = self.0.lock();
        let before = list.held.len();
        let mut others = Vec::new();
        for claim in &claims {
            let in_flight = list.held.iter().filter(|(key, _)| *key == claim.key);
            let in_flight = match claim.mode {
                Mode::AllowOnly => 0,
                _ => in_flight.count() as u64,
            };
            others.push(in_flight);
            if claim.mode.spends() && in_flight < claim.most.get() {
                list.next += 1;
                let id = list.next;
                list.held.push((claim.key.clone(), id));
            }
        }
        let pairs = || claims.iter().zip(others.iter().copied());
        let denied = pairs().any(|(claim, others)| !passes(claim, others));
        let decision = |(claim, others)| match denied && passes(claim, others) {
            true => Some(claim.untouched(others)),
            false => Some(claim.decide(others)),
        };
        let decisions = pairs().map(decision).collect();
        if denied {
            list.held.truncate(before);
        }
        let ids: Vec<u64> = list.held.iter().skip(before).map(|(_, id)| *id).collect();
        let guard = match ids.is_empty() {
            true => LeaseGuard::EMPTY,
            false => LeaseGuard::new(Ids(Arc::clone(&self.0), ids)),
        };
        StoreFuture::ready(Leased {
            outcome: Outcome {
                decisions,
                source: DecisionSource::Store,
            },
            guard,
        })
    }

    fn delete(&self, keys: BucketKeys) -> StoreFuture<()> {
        self.0.lock().held.retain(|(key, _)| !keys.contains(key));
        StoreFuture::ready(())
    }

    fn end(&self) -> StoreFuture<()> {
        StoreFuture::ready(())
    }
}

fn passes(claim: &Claim, others: u64) -> bool {
    !claim.mode.checks() || others < claim.most.get()
}

impl Subject for Reference {
    fn leases(&self) -> &dyn Leases {
        self
    }
}

lease_contract!(Reference::default());

struct All {
    reference: Reference,
    memory: MemoryLeases,
    redis: Redis,
    cluster: Redis,
    _servers: (RedisServer, RedisCluster),
}

async fn connect(mut settings: RedisSettings) -> Redis {
    // Nothing is renewed meanwhile, as that would count deleted leases again.
    settings.lease = Duration::from_secs(24 * 3600);
    let redis = Redis::spawn(settings, Arc::new(Unobserved)).unwrap();
    redis.connected(Duration::from_secs(20)).await.unwrap();
    redis
}

impl All {
    async fn new() -> Self {
        let (server, nodes) = (RedisServer::start(), RedisCluster::start(0));
        let mut named = RedisNodes::default();
        named.add(&nodes.urls()[1]).unwrap();
        Self {
            reference: Reference::default(),
            memory: MemoryLeases::default(),
            redis: connect(RedisSettings::parse(&server.url(), None, None).unwrap()).await,
            cluster: connect(RedisSettings::cluster(named).unwrap()).await,
            _servers: (server, nodes),
        }
    }

    fn each(&self) -> [&dyn Leases; 4] {
        [&self.reference, &self.memory, &self.redis, &self.cluster]
    }

    async fn acquire(&self, all: &Claims) -> ([Outcome; 4], [LeaseGuard; 4]) {
        let (mut outcomes, mut held) = (Vec::new(), Vec::new());
        for leases in self.each() {
            let leased = leases.acquire(all.clone(), NOW).await.unwrap();
            outcomes.push(leased.outcome);
            held.push(leased.guard);
        }
        self.settle().await;
        (outcomes.try_into().unwrap(), held.try_into().unwrap())
    }

    async fn settle(&self) {
        let calls = || self.redis.background_calls() + self.cluster.background_calls();
        eventually("releases end", || calls() == 0).await;
    }
}

fn any_claim(random: &mut StdRng) -> Claim {
    let mode = match random.random_range(0..10) {
        0 => Mode::CheckOnly,
        1 => Mode::SpendOnly,
        2 => Mode::AllowOnly,
        3 => Mode::Peek,
        _ => Mode::CheckAndSpend,
    };
    let key = format!("L:{}", random.random_range(0..KEYS));
    Claim {
        mode,
        ..claim(&key, random.random_range(1..6))
    }
}

#[tokio::test]
async fn a_random_sequence_of_claims_is_answered_alike_by_all() {
    let seed = rand::random();
    let mut random = StdRng::seed_from_u64(seed);
    let all = All::new().await;
    let mut held = Vec::new();
    for step in 0..STEPS {
        match random.random_range(0..100) {
            0..55 => {
                let wanted = claims((0..random.random_range(1..4)).map(|_| any_claim(&mut random)));
                let ([expected, memory, redis, cluster], leases) = all.acquire(&wanted).await;
                assert_eq!(memory, expected, "memory, seed {seed}, step {step}");
                assert_eq!(redis, expected, "Redis, seed {seed}, step {step}");
                assert_eq!(cluster, expected, "Cluster, seed {seed}, step {step}");
                held.push(leases);
            }
            55..97 if !held.is_empty() => {
                held.swap_remove(random.random_range(0..held.len()));
                all.settle().await;
            }
            55..97 => {}
            _ => {
                let key = BucketKey::from(&*format!("L:{}", random.random_range(0..KEYS)));
                for leases in all.each() {
                    leases.delete([key.clone()].into()).await.unwrap();
                }
            }
        }
    }
}
