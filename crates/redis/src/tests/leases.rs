use std::sync::Arc;

use weir_limit::time::{Clock, Nanos, SystemClock};
use weir_limit::{Claim, Mode};
use weir_store::tests::contract::NOW;
use weir_store::tests::lease_contract::{Subject, claim, claims, lease_contract};
use weir_store::tests::support::{eventually, eventually_some};
use weir_store::{Leased, Leases, Unobserved};

use super::*;
use crate::RedisSettings;

/// A gateway's leases in a Redis.
struct Gateway {
    redis: Redis,
    server: Arc<RedisServer>,
}

impl Gateway {
    async fn new() -> Self {
        Self::on(Arc::new(RedisServer::start())).await
    }

    async fn on(server: Arc<RedisServer>) -> Self {
        Self::leasing(server, Duration::from_secs(30)).await
    }

    async fn leasing(server: Arc<RedisServer>, lease: Duration) -> Self {
        let mut settings = RedisSettings::parse(&server.url(), None, None).unwrap();
        settings.lease = lease;
        let redis = Redis::spawn(settings, Arc::new(Unobserved)).unwrap();
        redis.connected(Duration::from_secs(20)).await.unwrap();
        Self { redis, server }
    }

    async fn take(&self, now: Timestamp) -> Leased {
        let all = claims([claim("L:a", 1)]);
        self.redis.acquire(all, now).await.unwrap()
    }

    /// The number that is the reply to a command.
    fn number(&self, words: &[&str]) -> u64 {
        let reply = self.server.command(words);
        let number = reply.lines().next().unwrap().strip_prefix(':');
        number.unwrap().parse().unwrap()
    }

    async fn is_free(&self, now: Timestamp) -> bool {
        let look = Claim {
            mode: Mode::CheckOnly,
            ..claim("L:a", 1)
        };
        let looked = self.redis.acquire(claims([look]), now).await.unwrap();
        looked.outcome.is_allowed()
    }
}

impl Subject for Gateway {
    fn leases(&self) -> &dyn Leases {
        &self.redis
    }

    fn settled(&self) -> StoreFuture<()> {
        let leases = self.redis.renewer.leases();
        StoreFuture::waiting(async move {
            eventually("releases end", || leases.unreleased() == 0).await;
            Ok(())
        })
    }
}

lease_contract!(Gateway::new().await);

#[tokio::test]
async fn gateways_share_their_places() {
    let one = Gateway::new().await;
    let other = Gateway::on(Arc::clone(&one.server)).await;
    let held = one.take(NOW).await;
    assert!(!other.take(NOW).await.outcome.is_allowed());
    drop(held);
    one.settled().await.unwrap();
    assert!(other.take(NOW).await.outcome.is_allowed());
}

#[tokio::test]
async fn a_lease_of_a_gateway_that_is_gone_expires_and_no_sooner() {
    let crashed = Gateway::new().await;
    let other = Gateway::on(Arc::clone(&crashed.server)).await;
    let held = crashed.take(NOW).await;
    drop(crashed);
    drop(held);
    // Its clock may have been ahead by the clock tolerance.
    let last = NOW + Nanos::from_secs(31);
    assert!(!other.take(last).await.outcome.is_allowed());
    assert!(!other.is_free(last).await);
    let expired = last + Nanos::new(1_000_000);
    assert!(other.is_free(expired).await);
    let leased = other.take(expired).await;
    assert!(leased.outcome.is_allowed());
    assert_eq!(other.number(&["ZCARD", "weir:L:a%i"]), 1);
}

#[tokio::test]
async fn redis_forgets_what_nobody_asks_about() {
    let gateway = Gateway::new().await;
    let _held = gateway.take(NOW).await;
    let left = gateway.number(&["PTTL", "weir:L:a%i"]);
    assert!((20_000..=32_000).contains(&left), "{left}");
}

#[tokio::test]
async fn who_is_refused_leaves_nothing_behind() {
    let gateway = Gateway::new().await;
    let _held = gateway.take(NOW).await;
    for _ in 0..10 {
        assert!(!gateway.take(NOW).await.outcome.is_allowed());
    }
    assert_eq!(gateway.number(&["ZCARD", "weir:L:a%i"]), 1);
}

#[tokio::test]
async fn a_lease_is_renewed_while_it_is_held() {
    let server = Arc::new(RedisServer::start());
    // A release is given up when the lease is over, so a pause has to be shorter.
    let gateway = Gateway::leasing(server, Duration::from_secs(3)).await;
    let now = SystemClock.now();
    // Without a renewal it would have expired an hour ago.
    let hour = Nanos::from_secs(3600).get();
    let long_ago = Timestamp::from_nanos(now.as_nanos() - hour);
    let held = gateway.take(long_ago).await;
    eventually_some("the lease is renewed", async || {
        (!gateway.is_free(now).await).then_some(())
    })
    .await;
    drop(held);
    gateway.settled().await.unwrap();
    assert!(gateway.is_free(now).await);
}

#[tokio::test]
async fn a_lease_that_redis_has_lost_is_there_again_after_a_renewal() {
    let server = Arc::new(RedisServer::start());
    let gateway = Gateway::leasing(server, Duration::from_millis(300)).await;
    let start = SystemClock.now();
    let _held = gateway.take(start).await;
    gateway.server.command(&["FLUSHALL"]);
    eventually_some("the lease is there again", async || {
        (!gateway.is_free(start).await).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_release_waits_for_a_redis_that_does_not_answer() {
    let gateway = Gateway::new().await;
    let held = gateway.take(NOW).await;
    gateway.server.stop();
    drop(held);
    gateway.server.resume();
    gateway.settled().await.unwrap();
    assert!(gateway.is_free(NOW).await);
}

#[tokio::test]
async fn all_is_given_back_at_the_end() {
    let gateway = Gateway::new().await;
    let held = gateway.take(NOW).await;
    gateway.redis.end().await.unwrap();
    assert!(gateway.is_free(NOW).await);
    drop(held);
    gateway.redis.end().await.unwrap();
    assert_eq!(gateway.number(&["EXISTS", "weir:L:a%i"]), 0);
}

#[tokio::test]
async fn one_round_trip_takes_all_leases_of_a_request() {
    let gateway = Gateway::new().await;
    let all = claims(["L:a", "L:b", "L:c"].map(|key| claim(key, 1)));
    let _held = gateway.redis.acquire(all, NOW).await.unwrap();
    assert_eq!(gateway.server.calls("exec"), 3);
    assert_eq!(gateway.server.calls("eval"), 0);
}

#[tokio::test]
async fn another_type_of_value_is_a_failure_and_no_decision() {
    let gateway = Gateway::new().await;
    gateway.server.command(&["SET", "weir:L:a%i", "1"]);
    let refused = gateway.redis.acquire(claims([claim("L:a", 1)]), NOW).await;
    assert!(refused.unwrap_err().is_wrong_type());
}
