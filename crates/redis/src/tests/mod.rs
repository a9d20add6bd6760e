mod clocks;
mod cluster;
mod connecting;
mod differential;
mod failures;
mod fake_nodes;
mod lease_differential;
mod leases;
mod reference;
mod rights;
mod sentinel;
mod strange_servers;

use std::num::{NonZeroU32, NonZeroU64};

use futures_util::FutureExt;
use futures_util::future::join_all;
use redis::Value;
use weir_limit::time::{Clock, Nanos, SystemClock};
use weir_limit::{Algorithm, Alignment, Quota, SubWindow, Transaction};
use weir_rules::{Ban, BanSchedule, HashKey};
use weir_store::tests::contract::{
    NOW, Subject, batch, decide, of_mode, owed, remaining, spend, store_contract,
};
use weir_store::tests::support::{Recorder, eventually, eventually_some};
use weir_store::{Call, DecisionSource, Owed, SharedEntry, SharedLists, SharedTexts, Unobserved};
use weir_testing::certificates::Certificate;
use weir_testing::{RedisServer, free_port};

use super::resp::Request;
use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

/// A handle and the server that it is connected to.
struct Fixture {
    redis: Redis,
    server: Arc<RedisServer>,
}

impl Fixture {
    async fn new() -> Self {
        Self::on(Arc::new(RedisServer::start())).await
    }

    async fn on(server: Arc<RedisServer>) -> Self {
        let redis = connect(RedisSettings::parse(&server.url(), None, None).unwrap()).await;
        Self { redis, server }
    }

    /// One that has tried the server's commands, as gateways do.
    async fn introduced() -> Self {
        let fixture = Self::new().await;
        fixture.redis.ping().await.unwrap();
        fixture
    }

    fn ttl(&self, key: &str) -> i64 {
        let reply = self.server.command(&["PTTL", key]);
        let digits = reply.lines().next().unwrap().trim_start_matches(':');
        digits.parse().unwrap()
    }
}

async fn connect(settings: RedisSettings) -> Redis {
    let redis = Redis::spawn(settings, Arc::new(Unobserved)).unwrap();
    redis.connected(PATIENCE).await.unwrap();
    redis
}

impl Redis {
    /// The only connection.
    fn session(&self) -> Arc<manager::Session> {
        let requests = self.client.node_requests().unwrap();
        Arc::clone(&requests.as_slice()[0].session)
    }

    fn manager(&self) -> &manager::ConnectionManager {
        match self.client.nodes() {
            Nodes::One(node) => node.manager(),
            Nodes::Cluster(_) => panic!("one server"),
        }
    }
}

impl Subject for Fixture {
    fn store(&self) -> &dyn Store {
        &self.redis
    }

    fn settled(&self) -> StoreFuture<()> {
        let client = Arc::clone(&self.redis.client);
        StoreFuture::waiting(async move {
            let settled = || client.background_calls() == 0;
            eventually("background calls end", settled).await;
            Ok(())
        })
    }
}

store_contract!(Fixture::introduced().await);

/// A Redis that evicts by what expires the soonest evicted a ban of ten minutes for buckets of a
/// day.
#[tokio::test]
async fn a_flood_that_redis_has_no_memory_for_evicts_no_ban() {
    const MINUTE: Duration = Duration::from_secs(60);
    let fixture = Fixture::new().await;
    let day = Quota::new(100, 100, Duration::from_secs(86_400)).unwrap();
    let schedule =
        BanSchedule::new(10 * MINUTE, NonZeroU32::MIN, 10 * MINUTE, 10 * MINUTE).unwrap();
    let schedule = schedule.outliving(day.tolerance().into());
    let strikes = Quota::new(2, 2, MINUTE).unwrap();
    let ban = Ban::new("B", Vec::new(), HashKey::random(), strikes, schedule).unwrap();
    let subject = "203.0.113.9".into();
    // Redis has a clock of its own, by which it expires.
    let now = SystemClock.now();
    decide(&fixture, batch([ban.begin(&subject, 10 * MINUTE)]), now).await;
    decide(&fixture, batch([spend("Before:it", 1)]), now).await;
    let config = |key, value| fixture.server.command(&["CONFIG", "SET", key, value]);
    config("maxmemory-policy", "volatile-ttl");
    config("maxmemory", "1800kb");
    for number in 0..20_000_u32 {
        let transaction = Transaction {
            quota: day,
            ..spend(&format!("Daily:{number}"), 1)
        };
        assert!(
            decide(&fixture, batch([transaction]), now)
                .await
                .is_allowed()
        );
    }
    let evicted = fixture.server.command(&["INFO", "stats"]);
    let evicted = evicted
        .lines()
        .find_map(|line| line.strip_prefix("evicted_keys:"));
    assert!(
        evicted.unwrap().parse::<u64>().unwrap() > 5000,
        "{evicted:?}"
    );
    assert!(
        !decide(&fixture, batch([ban.check(&subject)]), now)
            .await
            .is_allowed()
    );
}

#[tokio::test]
async fn two_gateways_on_a_bucket_of_100_admit_exactly_100_again_and_again() {
    let one = Fixture::new().await;
    let other = Fixture::on(Arc::clone(&one.server)).await;
    let quota = Quota::new(100, 1, Duration::from_secs(3600)).unwrap();
    for round in 0..100 {
        let key = format!("L:{round}");
        let requests = (0..160).map(|number| {
            let gateway = if number % 2 == 0 { &one } else { &other };
            let transaction = Transaction {
                quota,
                ..spend(&key, 1)
            };
            decide(gateway, batch([transaction]), NOW)
        });
        let outcomes = join_all(requests).await;
        let allowed = outcomes.iter().filter(|outcome| outcome.is_allowed());
        assert_eq!(allowed.count(), 100);
    }
}

/// A quota of a hundred units, of one algorithm after the other.
fn hundred(round: usize) -> Quota {
    let hour = Duration::from_secs(3600);
    let windowed = |algorithm| Quota::windowed(algorithm, 100, hour).unwrap();
    match round % 6 {
        0 => windowed(Algorithm::FixedWindow(Alignment::Period)),
        1 => windowed(Algorithm::FixedWindow(Alignment::FirstRequest)),
        2 => windowed(Algorithm::SlidingWindow {
            count_denied: false,
        }),
        3 => windowed(Algorithm::SlidingLog {
            count_denied: false,
        }),
        4 => windowed(Algorithm::SlidingLog { count_denied: true }),
        _ => Quota::new(100, 1, hour).unwrap(),
    }
}

/// As gateways run it: each worker is a thread with a runtime and a connection of its own.
#[test]
fn eight_workers_on_a_bucket_of_100_admit_exactly_100_again_and_again() {
    const ROUNDS: usize = 30;
    let server = RedisServer::start();
    let worker = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let settings = RedisSettings::parse(&server.url(), None, None).unwrap();
            let redis = connect(settings).await;
            let mut allowed = [0; ROUNDS];
            for (round, allowed) in allowed.iter_mut().enumerate() {
                let transaction = Transaction {
                    quota: hundred(round),
                    ..spend(&format!("L:{round}"), 1)
                };
                let requests = (0..25).map(|_| redis.decide(&batch([transaction.clone()]), NOW));
                let outcomes = join_all(requests).await;
                let passed = outcomes
                    .iter()
                    .flatten()
                    .filter(|outcome| outcome.is_allowed());
                *allowed = passed.count();
            }
            allowed
        })
    };
    let counts: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(worker)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    for round in 0..ROUNDS {
        let allowed: usize = counts.iter().map(|worker| worker[round]).sum();
        assert_eq!(allowed, 100, "round {round}");
    }
}

#[tokio::test]
async fn what_is_put_right_in_the_background_is_observed() {
    let server = RedisServer::start();
    let settings = RedisSettings::parse(&server.url(), None, None).unwrap();
    let recorder = Arc::<Recorder>::default();
    let observer: Arc<dyn Observer> = Arc::<Recorder>::clone(&recorder);
    let redis = Redis::spawn(settings, observer).unwrap();
    redis.connected(PATIENCE).await.unwrap();
    let window = |period| {
        let windows = Algorithm::FixedWindow(Alignment::Period);
        Transaction {
            quota: Quota::windowed(windows, 10, Duration::from_secs(period)).unwrap(),
            ..spend("L:a", 10)
        }
    };
    let lowered = batch([spend("L:b", 1), window(60)]);
    for all in [batch([window(864_000)]), lowered] {
        redis.decide(&all, NOW).await.unwrap();
    }
    eventually("the background is at rest", || {
        redis.background_calls() == 0
    })
    .await;
    let mut calls = recorder.calls();
    calls.sort_by_key(|(call, _)| *call == Call::Clamp);
    assert_eq!(calls, [(Call::Refund, true), (Call::Clamp, true)]);
}

/// A request that was denied by a log sent as many entries as its cost, which its client chose, and
/// removed them again: half a megabyte and 20 ms of Redis.
#[tokio::test]
async fn a_denied_request_costs_redis_the_same_whatever_its_cost_is() {
    let fixture = Fixture::new().await;
    let log = Algorithm::SlidingLog {
        count_denied: false,
    };
    let take = |cost| Transaction {
        quota: Quota::windowed(log, 10_000, Duration::from_secs(3600)).unwrap(),
        ..spend("L:a", cost)
    };
    let received = || {
        let stats = fixture.server.command(&["INFO", "stats"]);
        let bytes = stats
            .lines()
            .find_map(|line| line.strip_prefix("total_net_input_bytes:"));
        bytes.unwrap().parse::<u64>().unwrap()
    };
    assert!(
        decide(&fixture, batch([take(5000)]), NOW)
            .await
            .is_allowed()
    );
    let before = received();
    for cost in [5001, 9_999, 6000, 10_000] {
        let both = batch([take(cost), spend("L:b", 1)]);
        assert!(!decide(&fixture, both, NOW).await.is_allowed());
        fixture.settled().await.unwrap();
    }
    let bytes = received() - before;
    assert!(bytes < 4000, "four denied requests sent {bytes} bytes");
    assert_eq!(fixture.server.calls("zadd"), 1);
}

#[tokio::test]
async fn a_shared_text_is_never_there_after_its_time_nor_taken_for_a_bucket() {
    let fixture = Fixture::new().await;
    let put = async |text: &str, length| {
        let put = fixture.redis.put("gateway:a", text.to_owned(), length);
        put.await.unwrap();
    };
    let text = async |name| fixture.redis.text(name).await.unwrap();
    put("one", PATIENCE).await;
    put("{\"a\": \"\r\n\"}", PATIENCE).await;
    assert_eq!(
        text("gateway:a").await.as_deref(),
        Some(b"{\"a\": \"\r\n\"}".as_slice())
    );
    assert!(fixture.ttl("weir::gateway:a") > 0);
    assert_eq!(text("gateway:b").await, None);
    put("two", Duration::from_millis(1)).await;
    eventually("the end of the text", || {
        fixture.ttl("weir::gateway:a") == -2
    })
    .await;
    assert_eq!(text("gateway:a").await, None);
}

/// Others may write there too.
#[tokio::test]
async fn what_cannot_be_read_in_a_shared_list_or_text_never_hides_the_rest_or_fails_the_store() {
    let fixture = Fixture::new().await;
    let list = "weir::list:l";
    for (score, member) in [
        ("1", "past"),
        ("5000.5", "fraction"),
        ("6000", "\"\\xff\\xfe\""),
        ("1e18", "late"),
        ("+inf", "endless"),
    ] {
        fixture.server.command(&["ZADD", list, score, member]);
    }
    let entries = fixture.redis.entries("l", 2000, 0, 10).await.unwrap();
    let expected = [
        (5000, "fraction"),
        (6000, ""),
        (1_000_000_000_000_000_000, "late"),
        (u64::MAX, "endless"),
    ];
    let expected = expected.map(|(until, text)| SharedEntry {
        until,
        text: text.to_owned(),
    });
    assert_eq!(entries, expected);

    let key = "weir::gateway:a";
    fixture.server.command(&["SET", key, "\"\\xff\\xfe\""]);
    let text = fixture.redis.text("gateway:a").await.unwrap();
    assert_eq!(text.as_deref(), Some(b"\xff\xfe".as_slice()));
    fixture.server.command(&["DEL", key]);
    fixture.server.command(&["LPUSH", key, "1"]);
    let error = fixture.redis.text("gateway:a").await.unwrap_err();
    assert!(error.is_wrong_type() && error.is_partial(), "{error:?}");
}

/// It ended the connection, and with it what else was asked by it.
#[tokio::test]
async fn a_text_that_is_far_too_long_is_named_and_neither_read_whole_nor_in_the_way_of_others() {
    let fixture = Fixture::new().await;
    let put = fixture.redis.put("gateway:b", "{}".to_owned(), PATIENCE);
    put.await.unwrap();
    let sent = || {
        let stats = fixture.server.command(&["INFO", "stats"]);
        let bytes = stats
            .lines()
            .find_map(|line| line.strip_prefix("total_net_output_bytes:"));
        bytes.unwrap().parse::<u64>().unwrap()
    };
    let last = (50_u64 << 20).to_string();
    let set = ["SETRANGE", "weir::gateway:a", &last, "x"];
    fixture.server.command(&set);
    let (session, before) = (fixture.redis.session(), sent());
    let error = fixture.redis.text("gateway:a").await.unwrap_err();
    assert!(error.is_wrong_type(), "{error:?}");
    let why = std::error::Error::source(&error).unwrap().to_string();
    assert!(why.contains("weir::gateway:a"), "{why}");
    assert!(sent() - before < 2 << 20);
    let other = fixture.redis.text("gateway:b").await.unwrap();
    assert_eq!(other.as_deref(), Some(b"{}".as_slice()));
    assert!(Arc::ptr_eq(&session, &fixture.redis.session()));
}

#[tokio::test]
async fn three_limits_are_one_round_trip() {
    let fixture = Fixture::new().await;
    let three = || batch(["L:a", "L:b", "L:c"].map(|key| spend(key, 1)));
    fixture.server.stop();
    let mut answer = fixture.redis.decide(&three(), NOW);
    // Everything is sent before the first reply can have come.
    assert!((&mut answer).now_or_never().is_none());
    fixture.server.resume();
    assert!(answer.await.unwrap().is_allowed());
    assert_eq!(fixture.server.calls("bitfield"), 3);
    assert_eq!(fixture.server.calls("pexpire"), 3);
    assert_eq!(fixture.server.calls("multi"), 0);
}

#[tokio::test]
async fn the_expiry_of_a_bucket_is_set_once_and_again_before_it_could_be_too_short() {
    let fixture = Fixture::new().await;
    let at = |secs| NOW + Nanos::from_secs(secs);
    // The bucket takes ten minutes to fill, and is given 75 seconds more than it needs.
    for secs in [0, 0, 1, 74] {
        decide(&fixture, batch([spend("L:a", 1)]), at(secs)).await;
        assert_eq!(fixture.server.calls("pexpire"), 1, "after {secs} s");
    }
    decide(&fixture, batch([spend("L:a", 1)]), at(76)).await;
    assert_eq!(fixture.server.calls("pexpire"), 2);
    assert_eq!(fixture.server.calls("bitfield"), 5);
}

/// As `PERSIST` takes it away. The other algorithms set it with each take, and GCRA as often as it
/// has to move: what else would be seen of a key that another client has changed costs a command.
#[tokio::test]
async fn an_expiry_that_was_taken_away_is_back_before_long_if_the_bucket_is_asked_for() {
    let fixture = Fixture::new().await;
    let at = |secs| NOW + Nanos::from_secs(secs);
    for round in 0..6 {
        let name = format!("L:{round}");
        let take = |cost| Transaction {
            quota: hundred(round),
            ..spend(&name, cost)
        };
        let key = format!("weir:{name}{}", rights::MARKS[round]);
        // It goes on to be asked for, whether it lets pass or denies.
        for cost in [1, 101] {
            decide(&fixture, batch([take(1)]), NOW).await;
            fixture.server.command(&["PERSIST", &key]);
            assert_eq!(fixture.ttl(&key), -1, "{round}");
            for secs in [3, 601] {
                decide(&fixture, batch([take(1)]), at(secs)).await;
                decide(&fixture, batch([take(cost)]), at(secs)).await;
            }
            fixture.settled().await.unwrap();
            assert!(fixture.ttl(&key) > 0, "{round}");
        }
    }
}

/// A refused increment of `BITFIELD` creates the key all the same, and so without an end.
#[tokio::test]
async fn no_bucket_or_lease_is_left_without_an_end_whatever_was_done_to_it() {
    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};

    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let fixture = Fixture::introduced().await;
    let clock = SystemClock;
    let schedule = BanSchedule::new(
        Duration::from_secs(600),
        NonZeroU32::MIN,
        Duration::from_secs(600),
        Duration::from_secs(600),
    );
    let strikes = Quota::new(2, 2, Duration::from_secs(60)).unwrap();
    let ban = Ban::new(
        "B",
        Vec::new(),
        HashKey::random(),
        strikes,
        schedule.unwrap(),
    )
    .unwrap();
    for _ in 0..1500 {
        let round = random.random_range(0..6);
        let name = format!("L:{}", random.random_range(0..12));
        let hours = random.random_range(1..4);
        let other = hundred(round).algorithm();
        let quota = match other {
            Algorithm::Gcra => Quota::new(hours, 1, Duration::from_secs(3600)),
            other => Quota::windowed(other, hours, Duration::from_secs(3600 * hours)),
        };
        let transaction = Transaction {
            quota: quota.unwrap(),
            mode: [
                Mode::CheckAndSpend,
                Mode::SpendOnly,
                Mode::CheckOnly,
                Mode::Peek,
            ][random.random_range(0..4)],
            ..spend(&name, random.random_range(1..6))
        };
        let subject = format!("203.0.113.{}", random.random_range(0..9))
            .as_str()
            .into();
        let now = clock.now();
        match random.random_range(0..8) {
            0 => drop(fixture.redis.reset([transaction.key].into()).await),
            1 => drop(fixture.redis.refund(owed([transaction]), now).await),
            2 => {
                let refund =
                    fixture
                        .redis
                        .refund_last(transaction, DecisionSource::Store, now, now);
                drop(refund.await);
            }
            3 => {
                let all = batch([
                    ban.begin(&subject, Duration::from_secs(60)),
                    ban.check(&subject),
                ]);
                drop(fixture.redis.decide(&all, now).await);
            }
            4 => {
                let claim = weir_limit::Claim::new(name.as_str().into(), NonZeroU64::MIN);
                let claims = weir_limit::Claims::from_iter([claim.clone(), claim]);
                drop(weir_store::Leases::acquire(&fixture.redis, claims, now).await);
            }
            5 => ask_and_leave(&fixture, batch([transaction])).await,
            _ => {
                let beside = spend(&format!("L:{}", random.random_range(0..12)), 1);
                drop(
                    fixture
                        .redis
                        .decide(&batch([beside, transaction]), now)
                        .await,
                );
            }
        }
    }
    fixture.settled().await.unwrap();
    let keys = fixture.server.command(&["KEYS", "*"]);
    let keys: Vec<_> = keys.lines().filter(|key| key.contains(':')).collect();
    assert!(keys.len() > 12, "{keys:?}");
    for key in keys {
        assert_ne!(fixture.ttl(key), -1, "{key}");
    }
}

#[tokio::test]
async fn a_bucket_that_is_lost_unseen_gets_an_expiry_when_it_comes_again() {
    let fixture = Fixture::new().await;
    decide(&fixture, batch([spend("L:a", 10)]), NOW).await;
    for lose in [["DEL", "weir:L:a"], ["UNLINK", "weir:L:a"]] {
        fixture.server.command(&lose);
        assert!(
            decide(&fixture, batch([spend("L:a", 10)]), NOW)
                .await
                .is_allowed()
        );
        fixture.settled().await.unwrap();
        assert!(fixture.ttl("weir:L:a") >= 602_000);
    }
    fixture.redis.reset(["L:a".into()].into()).await.unwrap();
    assert!(
        decide(&fixture, batch([spend("L:a", 10)]), NOW)
            .await
            .is_allowed()
    );
    fixture.settled().await.unwrap();
    assert!(fixture.ttl("weir:L:a") >= 602_000);
}

#[tokio::test]
async fn an_expiry_that_a_gateway_with_a_lower_limit_has_shortened_is_set_again() {
    let one = Fixture::new().await;
    let other = Fixture::on(Arc::clone(&one.server)).await;
    // Its tolerance explains the debt of a minute, by the clocks alone.
    let lower = Transaction {
        quota: Quota::new(58, 58, Duration::from_secs(58)).unwrap(),
        ..spend("L:a", 1)
    };
    decide(&one, batch([spend("L:a", 1)]), NOW).await;
    decide(&other, batch([lower]), NOW).await;
    other.settled().await.unwrap();
    assert!(one.ttl("weir:L:a") < 130_000);
    decide(&one, batch([spend("L:a", 1)]), NOW).await;
    one.settled().await.unwrap();
    assert!(one.ttl("weir:L:a") >= 602_000);
}

#[tokio::test]
async fn a_new_bucket_gets_its_expiry_although_nobody_waits_for_the_answer_any_more() {
    let fixture = Fixture::new().await;
    decide(&fixture, batch([spend("L:a", 1)]), NOW).await;
    fixture.server.command(&["FLUSHALL"]);
    ask_and_leave(&fixture, batch([spend("L:a", 1)])).await;
    eventually("the bucket has an expiry", || {
        fixture.ttl("weir:L:a") >= 602_000
    })
    .await;
}

/// Asks about a batch while the server is stopped, and waits no longer when it goes on.
async fn ask_and_leave(fixture: &Fixture, batch: Batch) {
    fixture.server.stop();
    let mut answer = fixture.redis.decide(&batch, NOW);
    assert!((&mut answer).now_or_never().is_none());
    // The server will read the request although its caller is gone by then.
    tokio::task::yield_now().await;
    drop(answer);
    fixture.server.resume();
}

#[tokio::test]
async fn a_denied_batch_takes_nothing_although_nobody_waits_for_the_answer_any_more() {
    let fixture = Fixture::new().await;
    decide(&fixture, batch([spend("L:empty", 10)]), NOW).await;
    let denied = batch([spend("L:a", 4), spend("L:empty", 1)]);
    ask_and_leave(&fixture, denied).await;
    eventually("what was taken is given back", || {
        fixture.server.calls("bitfield") == 4
    })
    .await;
    assert_eq!(remaining(&fixture, "L:a", NOW).await, 10);
}

#[tokio::test]
async fn a_full_log_grows_no_fuller_although_nobody_waits_for_the_answer_any_more() {
    let fixture = Fixture::new().await;
    let take = |cost| Transaction {
        quota: hundred(3),
        ..spend("L:a", cost)
    };
    assert!(decide(&fixture, batch([take(100)]), NOW).await.is_allowed());
    ask_and_leave(&fixture, batch([take(7)])).await;
    eventually("what was added is taken off again", || {
        fixture.server.calls("zrem") == 1
    })
    .await;
    let length = fixture.server.command(&["ZCARD", "weir:L:a%l"]);
    assert!(length.starts_with(":100\r\n"), "{length}");
}

#[tokio::test]
async fn what_is_asked_in_one_turn_is_one_write() {
    let fixture = Fixture::new().await;
    let ask = |number: u8| {
        let key = format!("L:{number}");
        fixture.redis.decide(&batch([spend(&key, 1)]), NOW)
    };
    fixture.server.command(&["CONFIG", "RESETSTAT"]);
    let outcomes = join_all((0..50).map(ask)).await;
    assert_eq!(outcomes.len(), 50);
    assert!(outcomes.iter().all(Result::is_ok));
    let stats = fixture.server.command(&["INFO", "stats"]);
    let reads = stats
        .lines()
        .find_map(|line| line.strip_prefix("total_reads_processed:"));
    // The question for the figure is a read as well.
    let reads: u32 = reads.unwrap().parse().unwrap();
    assert!(reads <= 3, "{reads}");
}

#[tokio::test]
async fn limits_of_all_algorithms_are_one_round_trip() {
    let fixture = Fixture::new().await;
    let all = || {
        batch((0..6).map(|number| Transaction {
            quota: hundred(number),
            ..spend(&format!("L:{number}"), 1)
        }))
    };
    fixture.server.stop();
    let mut answer = fixture.redis.decide(&all(), NOW);
    // Everything is sent before the first reply can have come.
    assert!((&mut answer).now_or_never().is_none());
    fixture.server.resume();
    assert!(answer.await.unwrap().is_allowed());
    assert_eq!(fixture.server.calls("bitfield"), 3);
    assert_eq!(fixture.server.calls("hincrby"), 1);
    assert_eq!(fixture.server.calls("zadd"), 2);
    assert_eq!(fixture.server.calls("exec"), 3);
    for (number, mark) in ["%f", "%f", "%w", "%l", "%l", ""].into_iter().enumerate() {
        let ttl = fixture.ttl(&format!("weir:L:{number}{mark}"));
        assert!(
            ttl > 0 && ttl <= 1000 * (100 * 3600 + 603),
            "{number} {ttl}"
        );
    }
}

#[tokio::test]
async fn an_undo_after_a_reset_leaves_no_bucket_with_less_than_nothing() {
    let fixture = Fixture::new().await;
    let transaction = Transaction {
        quota: hundred(2),
        ..spend("L:a", 7)
    };
    let never = Transaction {
        quota: hundred(3),
        ..spend("L:b", 101)
    };
    let client = Arc::clone(&fixture.redis.client);
    let outcome = BatchCall::new(client, batch([transaction.clone(), never]), NOW);
    assert!(!outcome.unwrap().await.unwrap().is_allowed());
    // The undo is a task of this thread, so it has not begun yet.
    fixture.server.command(&["DEL", "weir:L:a%w"]);
    fixture.settled().await.unwrap();
    let start = SubWindow::start_at(&transaction.quota, NOW).to_string();
    let left = fixture.server.command(&["HGET", "weir:L:a%w", &start]);
    assert_eq!(left.lines().nth(1), Some("0"), "{left:?}");
    assert!(fixture.ttl("weir:L:a%w") > 0);
}

/// Two undos of a window that was reset: one has taken off its units and not made up for it yet.
#[tokio::test]
async fn an_undo_makes_up_for_no_more_than_it_took_off() {
    let fixture = Fixture::new().await;
    let transaction = Transaction {
        quota: hundred(2),
        ..spend("L:a", 3)
    };
    let never = Transaction {
        quota: hundred(3),
        ..spend("L:b", 101)
    };
    let start = SubWindow::start_at(&transaction.quota, NOW).to_string();
    let client = Arc::clone(&fixture.redis.client);
    let outcome = BatchCall::new(client, batch([transaction, never]), NOW).unwrap();
    assert!(!outcome.await.unwrap().is_allowed());
    // The undo is a task of this thread, so it has not begun yet.
    fixture
        .server
        .command(&["HSET", "weir:L:a%w", &start, "-7"]);
    fixture.settled().await.unwrap();
    let left = fixture.server.command(&["HGET", "weir:L:a%w", &start]);
    assert_eq!(left.lines().nth(1), Some("-7"), "{left:?}");
}

#[tokio::test]
async fn what_is_given_back_to_a_bucket_that_is_gone_leaves_no_key_for_ever() {
    let fixture = Fixture::new().await;
    let all = (0..6).map(|round| Transaction {
        quota: hundred(round),
        ..spend(&format!("L:{round}"), 5)
    });
    let all = batch(all);
    decide(&fixture, all.clone(), NOW).await;
    fixture.server.command(&["FLUSHALL"]);
    for transaction in &all {
        let refund = fixture.redis.refund(owed([transaction.clone()]), NOW);
        refund.await.unwrap();
    }
    let last = fixture
        .redis
        .refund_last(spend("L:last", 5), DecisionSource::Store, NOW, NOW);
    last.await.unwrap();
    assert!(fixture.ttl("weir:L:last") > 0);
    fixture.settled().await.unwrap();
    for (round, mark) in ["%f", "%f", "%w", "%l", "%l", ""].into_iter().enumerate() {
        let key = format!("weir:L:{round}{mark}");
        let ttl = fixture.ttl(&key);
        // -2 is a key that is not there; -1 is one that is there for ever.
        assert!(ttl > 0 || ttl == -2, "{key} {ttl}");
        assert_eq!(ttl > 0, ["%f", ""].contains(&mark), "{key} {ttl}");
    }
}

#[tokio::test]
async fn sub_windows_that_count_no_more_are_forgotten() {
    let fixture = Fixture::new().await;
    let transaction = Transaction {
        quota: hundred(2),
        ..spend("L:a", 1)
    };
    for minute in 0..200 {
        let now = NOW + weir_store::tests::contract::minutes(minute);
        assert!(
            decide(&fixture, batch([transaction.clone()]), now)
                .await
                .is_allowed()
        );
        fixture.settled().await.unwrap();
    }
    let length = fixture.server.command(&["HLEN", "weir:L:a%w"]);
    let length = length.lines().next().unwrap().trim_start_matches(':');
    let length: usize = length.parse().unwrap();
    assert!((61..=70).contains(&length), "{length}");
}

#[tokio::test]
async fn nothing_is_asked_about_limits_that_are_switched_off() {
    let fixture = Fixture::new().await;
    let off = batch([of_mode(Mode::AllowOnly, "L:a", 1)]);
    assert!(decide(&fixture, off, NOW).await.is_allowed());
    assert_eq!(fixture.server.calls("bitfield"), 0);
}

#[tokio::test]
async fn a_bucket_outlives_its_tat_and_then_is_forgotten() {
    let fixture = Fixture::new().await;
    decide(&fixture, batch([spend("L:a", 10)]), NOW).await;
    let ttl = fixture.ttl("weir:L:a");
    assert!((640_000..=678_000).contains(&ttl), "{ttl}");
}

#[tokio::test]
async fn looking_creates_no_key_and_every_key_that_is_written_expires() {
    let fixture = Fixture::new().await;
    let look = batch([of_mode(Mode::CheckOnly, "L:a", 1), spend("L:b", 11)]);
    decide(&fixture, look, NOW).await;
    assert!(fixture.server.command(&["DBSIZE"]).starts_with(":0"));
    let never_seen = batch([spend("L:c", 1)]);
    fixture.redis.refund(owed(never_seen), NOW).await.unwrap();
    fixture.redis.probe().await.unwrap();
    for key in ["weir:L:c", "weir:probe"] {
        assert!(fixture.ttl(key) > 0, "{key}");
    }
}

/// A reset between the two calls of a look left a bucket that nothing ever removed.
#[tokio::test]
async fn a_look_that_begins_a_level_leaves_no_bucket_without_an_expiry() {
    let fixture = Fixture::new().await;
    decide(&fixture, batch([spend("L:a", 10)]), NOW).await;
    fixture.server.command(&["PERSIST", "weir:L:a"]);
    let strict = Transaction {
        quota: Quota::new(2, 1, Duration::from_secs(1)).unwrap(),
        ..of_mode(Mode::CheckOnly, "L:a", 1)
    };
    decide(&fixture, batch([strict]), NOW).await;
    fixture.settled().await.unwrap();
    let lasting = i64::try_from(spend("L:a", 1).quota.tolerance().ceil_millis()).unwrap();
    assert!(fixture.ttl("weir:L:a") >= lasting);
}

/// With its own tolerance in the expiry, a stricter definition let the bucket expire that a laxer
/// one had drained for hours.
#[tokio::test]
async fn a_stricter_definition_does_not_shorten_the_life_of_a_bucket() {
    let fixture = Fixture::new().await;
    let lasting = i64::try_from(spend("L:a", 1).quota.tolerance().ceil_millis()).unwrap();
    decide(&fixture, batch([spend("L:a", 10)]), NOW).await;
    let strict = Transaction {
        quota: Quota::new(2, 1, Duration::from_secs(1)).unwrap(),
        ..spend("L:a", 1)
    };
    for later in [0, 1, 1] {
        let at = NOW + Nanos::from_secs(later);
        decide(&fixture, batch([strict.clone()]), at).await;
        fixture.settled().await.unwrap();
        assert!(fixture.ttl("weir:L:a") >= lasting);
    }
    let at = NOW + Nanos::from_secs(1);
    let refund = fixture.redis.refund(owed([strict.clone()]), at);
    refund.await.unwrap();
    assert!(fixture.ttl("weir:L:a") >= lasting - 1000);
    // As a client does that leaves a delay.
    let last = fixture
        .redis
        .refund_last(strict, DecisionSource::Store, at, at);
    last.await.unwrap();
    assert!(fixture.ttl("weir:L:a") >= lasting - 2000);
}

#[tokio::test]
async fn a_clamp_is_the_lesser_of_two_and_never_raises_a_tat() {
    let fixture = Fixture::new().await;
    let session = fixture.redis.session();
    for (tat, greatest) in [(5, 9), (9, 5), (7, 7), (0, 3), (i64::MAX, 3), (3, i64::MAX)] {
        let written = tat.to_string();
        let set = ["BITFIELD", "k", "SET", "u63", "0", &written];
        fixture.server.command(&set);
        let mut request = Request::default();
        let bound = Nanos::new(greatest.try_into().unwrap());
        gcra::clamp(&mut request, b"k", bound, Timestamp::default());
        gcra::read(&mut request, b"k", gcra::ReadBy::Bitfield);
        let replies = fixture
            .redis
            .client
            .send_checked(&session, request)
            .await
            .unwrap();
        let read = Value::Array(vec![Value::Int(tat.min(greatest))]);
        assert_eq!(replies[2], read, "{tat} {greatest}");
    }
}

#[tokio::test]
async fn keys_begin_with_the_prefix() {
    let server = RedisServer::start();
    let settings = RedisSettings::parse(&server.url(), None, None).unwrap();
    let redis = connect(settings.with_prefix("shop")).await;
    let answer = redis.decide(&batch([spend("L:a", 1)]), NOW).await;
    assert!(answer.unwrap().is_allowed());
    assert!(server.command(&["KEYS", "*"]).contains("shop:L:a"));
}

#[tokio::test]
async fn a_restarted_server_is_found_again() {
    let server = RedisServer::start();
    let redis = connect(RedisSettings::parse(&server.url(), None, None).unwrap()).await;
    let mut server = server;
    server.kill();
    let answer = redis.decide(&batch([spend("L:a", 1)]), NOW).await;
    assert!(answer.unwrap_err().is_out_of_reach());
    server.restart();
    redis.connected(PATIENCE).await.unwrap();
    let answer = redis.decide(&batch([spend("L:a", 1)]), NOW).await;
    assert!(answer.unwrap().is_allowed());
}

/// What is taken by one connection is given back by the next, if that leads to the same server.
#[tokio::test]
async fn a_refund_outlasts_the_connection_that_took() {
    let fixture = Fixture::new().await;
    for round in 0..6 {
        let take = || Transaction {
            quota: hundred(round),
            ..spend("L:a", 100)
        };
        let mut taken = fixture.redis.decide(&batch([take()]), NOW);
        assert!((&mut taken).await.unwrap().is_allowed(), "{round}");
        let session = fixture.redis.session();
        let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
        fixture.server.command(&kill);
        session.connection.ended().await;
        let lost_at = time::Instant::now();
        let taken = taken.refund(owed([take()]), NOW);
        taken.await.unwrap();
        let now = NOW + lost_at.elapsed().into();
        let again = decide(&fixture, batch([take()]), now).await;
        assert!(again.is_allowed(), "{round}");
        fixture.redis.reset(["L:a".into()].into()).await.unwrap();
    }
}

/// Another request that took meanwhile lost the part that had come back, so that more passed than
/// the limit admits.
#[tokio::test]
async fn the_part_of_a_late_unit_that_came_back_with_time_is_not_given_back_again() {
    let fixture = Fixture::new().await;
    let after = |seconds| NOW + Nanos::from_secs(seconds);
    let mut late = fixture.redis.decide(&batch([spend("L:a", 1)]), NOW);
    assert!((&mut late).await.unwrap().is_allowed());
    decide(&fixture, batch([spend("L:a", 1)]), after(45)).await;
    let taken = Owed {
        transaction: spend("L:a", 1),
        until: after(60),
    };
    let refund = late.refund([taken].into_iter().collect(), after(50));
    refund.await.unwrap();
    let look = decide(&fixture, batch([of_mode(Mode::Peek, "L:a", 1)]), after(50)).await;
    let left = look.decisions[0].unwrap().reset_in;
    assert_eq!(left, Nanos::from_secs(60), "the other's unit, and no less");
}

#[tokio::test]
async fn an_error_of_one_command_is_the_answer_and_the_connection_stays() {
    let fixture = Fixture::new().await;
    let session = fixture.redis.session();
    fixture.server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = fixture.redis.decide(&batch([spend("L:a", 1)]), NOW).await;
    assert!(matches!(error, Err(StoreError::Failed(_))), "{error:?}");
    fixture.server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(remaining(&fixture, "L:b", NOW).await, 10);
    assert!(Arc::ptr_eq(&session, &fixture.redis.session()));
}

/// `BITFIELD` is refused then, even if it only reads.
#[tokio::test]
async fn a_server_whose_memory_is_full_is_still_asked_who_is_banned() {
    for round in [5, 0, 2] {
        let fixture = Fixture::introduced().await;
        let of = |mode, name: &str| Transaction {
            quota: hundred(round),
            mode,
            ..spend(name, 100)
        };
        let banned = || of(Mode::CheckOnly, "B:banned");
        decide(&fixture, batch([of(Mode::SpendOnly, "B:banned")]), NOW).await;
        fixture.server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        for (check, allowed) in [
            (banned(), false),
            (of(Mode::CheckOnly, "B:other"), true),
            (of(Mode::Peek, "B:banned"), true),
        ] {
            let outcome = decide(&fixture, batch([check]), NOW).await;
            assert_eq!(outcome.is_allowed(), allowed, "{round}");
        }
        let take = fixture
            .redis
            .decide(&batch([of(Mode::CheckAndSpend, "B:other")]), NOW);
        assert!(take.await.is_err(), "{round}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_know_the_command_that_only_reads_is_asked_by_the_other() {
    let server = RedisServer::start();
    server.command(&["ACL", "SETUSER", "default", "-bitfield_ro"]);
    let fixture = Fixture::on(Arc::new(server)).await;
    fixture.redis.ping().await.unwrap();
    let spent = batch([of_mode(Mode::SpendOnly, "L:a", 10)]);
    decide(&fixture, spent, NOW).await;
    let check = batch([of_mode(Mode::CheckOnly, "L:a", 1)]);
    assert!(!decide(&fixture, check, NOW).await.is_allowed());
}

#[tokio::test]
async fn a_server_that_cannot_write_passes_a_ping_and_fails_a_probe() {
    let fixture = Fixture::new().await;
    let full = ["CONFIG", "SET", "maxmemory", "1"];
    fixture.server.command(&full);
    fixture.redis.ping().await.unwrap();
    let answer = fixture.redis.probe().await;
    assert!(matches!(answer, Err(StoreError::Failed(_))), "{answer:?}");
}

#[tokio::test]
async fn a_user_with_a_password_logs_in_over_tcp_and_a_wrong_password_is_named() {
    let port = free_port();
    let _server = RedisServer::start_with(|_| {
        let user = "ann on >se:cret ~weir:* -@all +bitfield +pexpire +del +time";
        let user = user.split(' ').map(str::to_owned);
        let base = ["--port", &port.to_string(), "--user"].map(str::to_owned);
        base.into_iter().chain(user).collect()
    });
    let url = format!("redis://ann:se%3Acret@127.0.0.1:{port}");
    let redis = connect(RedisSettings::parse(&url, None, None).unwrap()).await;
    redis.probe().await.unwrap();
    let answer = redis.decide(&batch([spend("L:a", 1)]), NOW).await;
    assert!(answer.unwrap().is_allowed());
    redis.reset(["L:a".into()].into()).await.unwrap();

    let wrong = RedisSettings::parse(&url, None, Some("wrong".to_owned())).unwrap();
    let refused = Redis::spawn(wrong, Arc::new(Unobserved)).unwrap();
    let why = |error: StoreError| std::error::Error::source(&error).unwrap().to_string();
    let named = async || match refused.connected(Duration::from_millis(50)).await {
        Err(error @ StoreError::Lost(_)) => Some(why(error)),
        _ => None,
    };
    let message = eventually_some("a refusal", named).await;
    assert!(message.contains("uthentication"), "{message}");
    assert!(!message.contains("wrong"), "{message}");
}

#[tokio::test]
async fn a_server_with_a_private_ca_is_reached_over_tls_and_no_other_is() {
    let (server, port) = serve_tls(&[]);
    let pem = std::fs::read(server.socket().with_file_name("cert.pem")).unwrap();
    let url = format!("rediss://127.0.0.1:{port}");
    let settings = RedisSettings::parse(&url, None, None).unwrap();
    let redis = connect(settings.clone().with_ca(&pem).unwrap()).await;
    let asked = (0..2000).map(|number| {
        let key = format!("L:{}", number % 100);
        redis.decide(&batch([spend(&key, 1)]), NOW)
    });
    let answers = join_all(asked).await;
    let allowed = answers
        .iter()
        .flatten()
        .filter(|outcome| outcome.is_allowed());
    assert_eq!(allowed.count(), 1000);
    assert!(answers.iter().all(Result::is_ok));

    let stranger = Redis::spawn(settings, Arc::new(Unobserved)).unwrap();
    let why = async || match stranger.connected(Duration::from_millis(50)).await {
        Err(error @ StoreError::Lost(_)) => Some(format!("{error:?}")),
        _ => None,
    };
    let message = eventually_some("a refusal", why).await;
    assert!(message.contains("ertificate"), "{message}");
}

/// A server with TLS alone, and its port. The certificate is in its folder.
fn serve_tls(extra: &[&str]) -> (RedisServer, u16) {
    let port = free_port();
    let server = RedisServer::start_with(|folder| {
        Certificate::write_for_loopback(folder.path());
        let port = port.to_string();
        let tls = ["--port", "0", "--tls-port", &port];
        let files = ["--tls-cert-file", "cert.pem", "--tls-key-file", "key.pem"];
        let clients = ["--tls-auth-clients", "no"];
        let words = tls.iter().chain(&files).chain(&clients).chain(extra);
        words.map(|&word| word.to_owned()).collect()
    });
    (server, port)
}

#[tokio::test]
async fn a_unit_of_a_greatest_bucket_is_taken_or_denied_and_never_both() {
    let fixture = Fixture::new().await;
    let quota = Quota::new(1 << 62, 1 << 62, Duration::from_nanos(1 << 62)).unwrap();
    let ask = |cost: u64| Transaction {
        quota,
        cost: NonZeroU64::new(cost).unwrap(),
        ..spend("L:a", 1)
    };
    let almost_all = decide(&fixture, batch([ask((1 << 62) - 2_000_000_000)]), NOW).await;
    assert!(almost_all.is_allowed());
    let mut allowed = 0;
    for _ in 0..5 {
        let outcome = decide(&fixture, batch([ask(400_000_000)]), NOW).await;
        allowed += u64::from(outcome.is_allowed());
    }
    assert_eq!(allowed, 2, "all but the last of 146 years' seconds");
}

#[tokio::test]
async fn a_database_is_selected_on_each_connection() {
    let mut server = RedisServer::start();
    let url = format!("{}?db=3&protocol=resp3", server.url());
    let redis = connect(RedisSettings::parse(&url, None, None).unwrap()).await;
    for _ in 0..2 {
        let answer = redis.decide(&batch([spend("L:a", 1)]), NOW).await;
        assert!(answer.unwrap().is_allowed());
        let keys = server.command(&["INFO", "keyspace"]);
        assert!(
            keys.contains("db3:keys=1") && !keys.contains("db0"),
            "{keys}"
        );
        server.kill();
        assert!(redis.ping().await.is_err());
        server.restart();
        redis.connected(PATIENCE).await.unwrap();
    }
}
