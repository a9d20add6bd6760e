//! One random sequence through a plain list, memory and Redis: equal answers.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::lease_contract::{claim, claims};
use super::lease_reference::Reference;
use crate::limit::{BucketKey, Claim, Claims, Mode};
use crate::store::tests::contract::NOW;
use crate::store::tests::support::{RedisServer, eventually};
use crate::store::{LeaseGuard, Leases, MemoryLeases, Outcome, Redis, RedisSettings, Unobserved};

const STEPS: usize = 4000;
const KEYS: u32 = 5;

struct All {
    reference: Reference,
    memory: MemoryLeases,
    redis: Redis,
    _server: RedisServer,
}

impl All {
    async fn new() -> Self {
        let server = RedisServer::start();
        let mut settings = RedisSettings::parse(&server.url(), None, None).unwrap();
        // Nothing is renewed meanwhile, as that would count deleted leases again.
        settings.lease = Duration::from_secs(24 * 3600);
        let redis = Redis::spawn(settings, Arc::new(Unobserved)).unwrap();
        redis.connected(Duration::from_secs(20)).await.unwrap();
        Self {
            reference: Reference::default(),
            memory: MemoryLeases::default(),
            redis,
            _server: server,
        }
    }

    fn each(&self) -> [&dyn Leases; 3] {
        [&self.reference, &self.memory, &self.redis]
    }

    async fn acquire(&self, all: &Claims) -> ([Outcome; 3], [LeaseGuard; 3]) {
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
        eventually("releases end", || self.redis.background_calls() == 0).await;
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
                let ([expected, memory, redis], leases) = all.acquire(&wanted).await;
                assert_eq!(memory, expected, "memory, seed {seed}, step {step}");
                assert_eq!(redis, expected, "Redis, seed {seed}, step {step}");
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
