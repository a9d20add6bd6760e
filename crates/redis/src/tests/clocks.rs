//! Gateways whose clocks differ, on one real server.

use std::sync::atomic::{AtomicI64, Ordering};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use weir_limit::time::{Clock, SystemClock};
use weir_limit::{Calendar, CalendarUnit};
use weir_store::{
    DecisionClock, GuardSettings, Guarded, Memory, MemorySettings, OnFailure, Reachability,
};

use super::connecting::first_reason;
use super::*;

const PERIOD: u64 = 60;

/// The machine's clock, off by so many milliseconds.
#[derive(Clone, Default)]
struct OffClock(Arc<AtomicI64>);

impl OffClock {
    fn set_off_by(&self, millis: i64) {
        self.0.store(millis, Ordering::SeqCst);
    }
}

impl Clock for OffClock {
    fn now(&self) -> Timestamp {
        shifted(SystemClock.now(), self.0.load(Ordering::SeqCst))
    }
}

/// A gateway with a clock of its own, which was right when it connected.
struct Gateway {
    fixture: Fixture,
    clock: OffClock,
    recorder: Arc<Recorder>,
}

impl Gateway {
    async fn on(server: &Arc<RedisServer>) -> Self {
        let (clock, recorder) = (OffClock::default(), Arc::<Recorder>::default());
        let observer: Arc<dyn Observer> = Arc::<Recorder>::clone(&recorder);
        let redis = Redis::spawn(settings(server, &clock), observer).unwrap();
        redis.connected(PATIENCE).await.unwrap();
        let server = Arc::clone(server);
        Self {
            fixture: Fixture { redis, server },
            clock,
            recorder,
        }
    }

    /// Its clock is off by so many seconds from now on.
    async fn off_by(server: &Arc<RedisServer>, seconds: i64) -> Self {
        let gateway = Self::on(server).await;
        gateway.clock.set_off_by(seconds * 1000);
        gateway
    }

    async fn ask(&self, transaction: Transaction) -> weir_limit::Decision {
        self.ask_at(self.clock.now(), transaction).await
    }

    async fn ask_at(&self, now: Timestamp, transaction: Transaction) -> weir_limit::Decision {
        let outcome = decide(&self.fixture, batch([transaction]), now).await;
        self.fixture.settled().await.unwrap();
        outcome.decisions[0].unwrap()
    }

    async fn reset(&self) {
        let reset = self.fixture.redis.reset(["L:a".into()].into());
        reset.await.unwrap();
    }
}

fn settings(server: &RedisServer, clock: &OffClock) -> RedisSettings {
    RedisSettings {
        clock: DecisionClock::local(Arc::new(clock.clone())),
        ..RedisSettings::parse(&server.url(), None, None).unwrap()
    }
}

fn shifted(time: Timestamp, millis: i64) -> Timestamp {
    let nanos = time.as_nanos().checked_add_signed(millis * 1_000_000);
    Timestamp::from_nanos(nanos.unwrap())
}

/// Ten units a minute, by each algorithm; and a day's, by the calendar.
fn quotas() -> Vec<Quota> {
    let day = Calendar::new(CalendarUnit::Day, "Europe/Berlin").unwrap();
    let sliding = |count_denied| {
        [
            Algorithm::SlidingWindow { count_denied },
            Algorithm::SlidingLog { count_denied },
        ]
    };
    let fixed = [
        Alignment::Period,
        Alignment::FirstRequest,
        Alignment::Calendar(day),
    ];
    let all = fixed.map(Algorithm::FixedWindow).into_iter();
    let all = all.chain(sliding(false)).chain(sliding(true));
    let period = Duration::from_secs(PERIOD);
    let mut all: Vec<_> = all
        .map(|algorithm| Quota::windowed(algorithm, 10, period).unwrap())
        .collect();
    all.push(Quota::new(10, 10, period).unwrap());
    all
}

fn of(quota: Quota, mode: Mode, cost: u64) -> Transaction {
    Transaction {
        quota,
        mode,
        ..spend("L:a", cost)
    }
}

/// A single denied request through a gateway an hour behind made the others answer a banned
/// client, and let 2,942 of 66 pass where windows are fixed.
#[tokio::test]
async fn a_gateway_an_hour_off_lifts_nothing_by_what_it_denies_or_looks_at() {
    for seconds in [-3600, -30, 30, 3600] {
        let server = Arc::new(RedisServer::start());
        let sane = Gateway::on(&server).await;
        let off = Gateway::off_by(&server, seconds).await;
        for quota in quotas() {
            let take = || of(quota, Mode::CheckAndSpend, 1);
            let allowed = while_nothing_comes_back(&quota, seconds, async || {
                assert!(sane.ask(of(quota, Mode::SpendOnly, 10)).await.allowed);
                let mut allowed = Vec::new();
                for _ in 0..3 {
                    off.ask(of(quota, Mode::CheckOnly, 1)).await;
                    off.ask(of(quota, Mode::Peek, 1)).await;
                    if seconds < 0 {
                        allowed.push(off.ask(take()).await.allowed);
                    }
                    allowed.push(sane.ask(take()).await.allowed);
                }
                sane.reset().await;
                Some(allowed)
            })
            .await;
            assert!(!allowed.contains(&true), "{seconds} {quota:?}: {allowed:?}");
        }
    }
}

/// Repeats a round until it is one in which time gave no unit back, by the right clock and by one
/// that is off by so many seconds: no window of the calendar or the period ended, and no machine
/// paused for as long as a unit takes.
async fn while_nothing_comes_back<T>(
    quota: &Quota,
    seconds: i64,
    mut round: impl AsyncFnMut() -> Option<T>,
) -> T {
    let is_aligned = matches!(
        quota.algorithm(),
        Algorithm::FixedWindow(Alignment::Period | Alignment::Calendar(_))
    );
    let ends = |now| {
        let clocks = [0, seconds * 1000].map(|millis| shifted(now, millis));
        is_aligned.then(|| clocks.map(|now| weir_limit::window_end(quota, now)))
    };
    eventually_some("a round in which no unit comes back", async || {
        let start = SystemClock.now();
        let result = round().await;
        let end = SystemClock.now();
        let took = end.since(start);
        result.filter(|_| ends(start) == ends(end) && took < Nanos::from_secs(PERIOD / 10))
    })
    .await
}

/// Sub-windows that are long dead for a gateway ahead count for all others.
#[tokio::test]
async fn a_gateway_an_hour_ahead_forgets_no_sub_windows_by_looking_or_taking() {
    let server = Arc::new(RedisServer::start());
    let sane = Gateway::on(&server).await;
    let sliding = quotas()[3];
    for second in 0..10 {
        let before = shifted(SystemClock.now(), 1000 * (second - 10));
        let taken = sane.ask_at(before, of(sliding, Mode::CheckAndSpend, 1));
        assert!(taken.await.allowed);
    }
    let off = Gateway::off_by(&server, 3600).await;
    for mode in [Mode::CheckOnly, Mode::Peek, Mode::CheckAndSpend] {
        off.ask(of(sliding, mode, 1)).await;
    }
    assert!(!sane.ask(of(sliding, Mode::CheckAndSpend, 1)).await.allowed);
}

#[tokio::test]
async fn a_window_that_was_shortened_is_not_cut_by_a_gateway_that_only_looks() {
    let server = Arc::new(RedisServer::start());
    let sane = Gateway::on(&server).await;
    let (greater, lower) = (long_window(), quotas()[0]);
    sane.ask(of(greater, Mode::CheckAndSpend, 10)).await;
    for mode in [Mode::CheckOnly, Mode::Peek] {
        sane.ask(of(lower, mode, 1)).await;
    }
    let before = sane.ask(of(greater, Mode::Peek, 1)).await;
    assert!(before.reset_in > Nanos::from_secs(PERIOD), "{before:?}");
    // Who would take is denied, and then holds to the lower limit.
    assert!(!sane.ask(of(lower, Mode::CheckAndSpend, 1)).await.allowed);
    let after = sane.ask(of(greater, Mode::Peek, 1)).await;
    assert!(after.reset_in <= Nanos::from_secs(PERIOD), "{after:?}");
}

/// One of ten days, which ends later than any of [`quotas`].
fn long_window() -> Quota {
    let period = Duration::from_secs(864_000);
    Quota::windowed(Algorithm::FixedWindow(Alignment::Period), 10, period).unwrap()
}

/// What passed, by true time in milliseconds, when three gateways with clocks off by so much are
/// asked about one bucket in turn, without end.
async fn passed(quota: Quota, offsets: [i64; 3]) -> Vec<u64> {
    let server = Arc::new(RedisServer::start());
    let mut gateways = Vec::new();
    for offset in offsets {
        let gateway = Gateway::on(&server).await;
        gateway.clock.set_off_by(offset);
        gateways.push((offset, gateway));
    }
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let (mut now, mut passed) = (0, Vec::new());
    for _ in 0..700 {
        now += random.random_range(1..900);
        let (offset, gateway) = &gateways[random.random_range(0..3)];
        let there = shifted(NOW, i64::try_from(now).unwrap() + offset);
        let transaction = of(quota, Mode::CheckAndSpend, 1);
        if gateway.ask_at(there, transaction).await.allowed {
            passed.push(now);
        }
    }
    passed
}

/// The most of these moments that lie within a span of so many milliseconds.
fn most_within(passed: &[u64], span: u64) -> usize {
    let from = |&first: &u64| {
        passed
            .iter()
            .filter(move |&&at| at >= first && at < first + span)
    };
    passed
        .iter()
        .map(|first| from(first).count())
        .max()
        .unwrap_or(0)
}

#[tokio::test]
async fn clocks_within_the_bound_blur_the_edges_of_windows_and_admit_no_more() {
    let spread = 3_800;
    let minute = PERIOD * 1000;
    for quota in quotas() {
        let passed = passed(quota, [-1900, 0, 1900]).await;
        let all = passed.len();
        // Over five minutes of a bucket that is asked more often than it allows.
        assert!(all >= 10, "{quota:?}");
        match quota.algorithm() {
            // A window begins a period after the last at the earliest, whoever begins it.
            Algorithm::FixedWindow(Alignment::Calendar(_)) => assert!(all <= 20, "{all}"),
            Algorithm::FixedWindow(_) => {
                assert!(most_within(&passed, minute - spread) <= 20, "{quota:?}");
                assert!(most_within(&passed, 3 * minute - spread) <= 40, "{quota:?}");
            }
            Algorithm::Gcra => {
                // The burst, and what comes back in the span and the spread.
                let most = 10 + (2 * minute + spread).div_ceil(minute / 10);
                assert!(most_within(&passed, 2 * minute) as u64 <= most);
            }
            _ => assert!(most_within(&passed, minute - spread) <= 10, "{quota:?}"),
        }
    }
}

/// The clock is measured when the connection is made, before a request can be decided by it.
#[tokio::test]
async fn a_gateway_whose_clock_is_beyond_the_bound_is_not_connected_until_it_is_right() {
    for seconds in [-3600, -3, 3, 3600] {
        let server = RedisServer::start();
        let clock = OffClock::default();
        clock.set_off_by(seconds * 1000);
        let recorder = Arc::<Recorder>::default();
        let observer: Arc<dyn Observer> = Arc::<Recorder>::clone(&recorder);
        let redis = Redis::spawn(settings(&server, &clock), observer).unwrap();
        eventually("it was measured twice", || recorder.offsets().len() > 1).await;
        let why = first_reason(&redis).await;
        let side = if seconds < 0 { "behind" } else { "ahead of" };
        assert!(why.contains("clock") && why.contains(side), "{why}");
        let offset = recorder.offsets()[0].unwrap().seconds();
        assert!((offset.abs() - 1.0) < seconds.abs() as f64 && offset.abs() > 2.0);
        let batch = batch([spend("L:a", 1)]);
        assert!(redis.decide(&batch, clock.now()).await.is_err());
        assert_eq!(server.calls("bitfield"), 0);

        clock.set_off_by(0);
        redis.connected(PATIENCE).await.unwrap();
    }
}

#[tokio::test]
async fn a_clock_that_is_set_wrong_is_noticed_by_the_next_ping_and_one_within_the_bound_is_told_of()
{
    let server = Arc::new(RedisServer::start());
    let gateway = Gateway::on(&server).await;
    let redis = &gateway.fixture.redis;
    let measured = || gateway.recorder.offsets().pop().unwrap().unwrap();
    for (millis, suspicious) in [(0, false), (1500, true), (-1500, true)] {
        gateway.clock.set_off_by(millis);
        redis.ping().await.unwrap();
        assert_eq!(measured().is_suspicious(), suspicious, "{millis}");
        redis.probe().await.unwrap();
    }
    gateway.clock.set_off_by(-3_600_000);
    let answer = redis.ping().await.unwrap_err();
    assert!(answer.is_out_of_reach(), "{answer:?}");
    assert!(measured().is_beyond_bound());
}

#[tokio::test]
async fn without_a_right_clock_requests_go_by_on_failure_and_come_back_with_it() {
    let server = Arc::new(RedisServer::start());
    let gateway = Gateway::on(&server).await;
    let clock = gateway.clock.clone();
    let recorder = Arc::<Recorder>::default();
    let reachability = Arc::new(Reachability::new(Arc::<Recorder>::clone(&recorder)));
    let max_buckets = std::num::NonZeroUsize::MIN.saturating_add(99);
    let guarded = Guarded::spawn(
        gateway.fixture.redis,
        GuardSettings {
            timeout: Duration::from_secs(10),
            on_failure: OnFailure::Local,
            ..GuardSettings::default()
        },
        reachability,
        Arc::new(Memory::new(MemorySettings { max_buckets })),
    );
    let all_are = async |wanted| {
        eventually_some("requests are decided so", async || {
            let batch = batch([of_mode(Mode::SpendOnly, "L:a", 1)]);
            let outcome = guarded.decide(&batch, clock.now()).await;
            (outcome.unwrap().source == wanted).then_some(())
        })
        .await;
    };
    for (millis, source) in [
        (0, DecisionSource::Store),
        (-3_600_000, DecisionSource::Local),
        (0, DecisionSource::Store),
    ] {
        clock.set_off_by(millis);
        all_are(source).await;
    }
    assert_eq!(recorder.changes(), [false, true]);
}

/// The limit is cut by the store's time or not at all.
#[tokio::test]
async fn a_server_that_does_not_tell_its_time_is_used_and_nothing_is_cut_there() {
    let server = RedisServer::start();
    server.command(&["ACL", "SETUSER", "default", "-time"]);
    let recorder = Arc::<Recorder>::default();
    let observer: Arc<dyn Observer> = Arc::<Recorder>::clone(&recorder);
    let settings = RedisSettings::parse(&server.url(), None, None).unwrap();
    let redis = Redis::spawn(settings, observer).unwrap();
    redis.connected(PATIENCE).await.unwrap();
    redis.probe().await.unwrap();
    assert_eq!(recorder.offsets(), [None, None]);
    let ask = async |quota, mode, cost| {
        let answer = redis.decide(&batch([of(quota, mode, cost)]), NOW).await;
        eventually("the background is at rest", || {
            redis.background_calls() == 0
        })
        .await;
        answer.unwrap().decisions[0].unwrap()
    };
    ask(long_window(), Mode::CheckAndSpend, 10).await;
    assert!(!ask(quotas()[0], Mode::CheckAndSpend, 1).await.allowed);
    let after = ask(long_window(), Mode::Peek, 1).await;
    assert!(after.reset_in > Nanos::from_secs(PERIOD), "{after:?}");
}

/// With less in the expiry, the gateway that is behind lets the window expire that the other
/// has begun, a few seconds after the end of its own.
#[tokio::test]
async fn a_gateway_that_is_behind_forgets_no_window_that_another_has_begun() {
    let server = Arc::new(RedisServer::start());
    let fixture = Fixture::on(server).await;
    for quota in [quotas()[0], quotas()[2]] {
        let end = weir_limit::window_end(&quota, NOW);
        let [ahead, behind] = [1, -3_900].map(|millis| shifted(end, millis));
        for now in [ahead, behind] {
            decide(&fixture, batch([of(quota, Mode::CheckAndSpend, 1)]), now).await;
        }
        let left = weir_limit::window_end(&quota, ahead).since(ahead);
        let ttl = fixture.ttl("weir:L:a%f");
        assert!(ttl >= i64::try_from(left.ceil_millis()).unwrap(), "{ttl}");
        fixture.redis.reset(["L:a".into()].into()).await.unwrap();
    }
}

#[tokio::test]
async fn a_gateway_ahead_and_then_one_behind_forget_no_unit_that_counts() {
    // The eighth sub-window ends, after which pruning is worth a command, and the first unit.
    for (quota, key, units, edge) in [
        (quotas()[3], "weir:L:a%w", 9, 61_000 + 7_000),
        (quotas()[4], "weir:L:a%l", 5, 60_000),
    ] {
        let fixture = Fixture::new().await;
        let ask = async |millis, mode| {
            let now = shifted(weir_store::tests::window_contract::HOUR, millis);
            let outcome = decide(&fixture, batch([of(quota, mode, 1)]), now).await;
            fixture.settled().await.unwrap();
            outcome.decisions[0].unwrap().remaining
        };
        for second in 0..units {
            ask(1_000 * second, Mode::CheckAndSpend).await;
        }
        let before = ask(edge - 1, Mode::Peek).await;
        for ahead in [0, 900] {
            ask(edge + ahead, Mode::CheckAndSpend).await;
        }
        let after = ask(edge - 1, Mode::Peek).await;
        assert_eq!(after, before - 2, "{key}");
        let ttl = fixture.ttl(key);
        assert!(ttl > 61_000, "{key} {ttl}");
    }
}

/// The window has ended for the gateway that gives back, and for no other.
#[tokio::test]
async fn what_a_gateway_ahead_gives_back_empties_no_window_that_is_in_force() {
    let server = Arc::new(RedisServer::start());
    let fixture = Fixture::on(server).await;
    for quota in &quotas()[..3] {
        let taking = |cost| batch([of(*quota, Mode::CheckAndSpend, cost)]);
        decide(&fixture, taking(10), NOW).await;
        let end = weir_limit::window_end(quota, NOW);
        let [before, ahead] = [-1_900, 1_900].map(|millis| shifted(end, millis));
        fixture.redis.refund(owed(taking(1)), ahead).await.unwrap();
        let left = decide(&fixture, batch([of(*quota, Mode::CheckOnly, 1)]), before).await;
        assert_eq!(left.decisions[0].unwrap().remaining, 1, "{quota:?}");
        fixture.redis.reset(["L:a".into()].into()).await.unwrap();
    }
}

/// A gateway that goes by the store's clock, on a machine whose clock is off by so many seconds.
async fn following(server: &Arc<RedisServer>, seconds: i64) -> (Gateway, DecisionClock) {
    let (clock, recorder) = (OffClock::default(), Arc::<Recorder>::default());
    clock.set_off_by(seconds * 1000);
    let decisions = DecisionClock::following(Arc::new(clock.clone()));
    let settings = RedisSettings {
        clock: decisions.clone(),
        ..settings(server, &clock)
    };
    let observer: Arc<dyn Observer> = Arc::<Recorder>::clone(&recorder);
    let redis = Redis::spawn(settings, observer).unwrap();
    redis.connected(PATIENCE).await.unwrap();
    let server = Arc::clone(server);
    let gateway = Gateway {
        fixture: Fixture { redis, server },
        clock,
        recorder,
    };
    (gateway, decisions)
}

#[tokio::test]
async fn by_the_stores_clock_gateways_an_hour_apart_are_connected_and_agree() {
    let server = Arc::new(RedisServer::start());
    let mut gateways = Vec::new();
    for seconds in [-3600, 0, 3600] {
        let (gateway, clock) = following(&server, seconds).await;
        let shown = gateway.recorder.offsets().pop().unwrap().unwrap().seconds();
        assert!((shown - seconds as f64).abs() < 1.0, "{shown}");
        gateways.push((gateway, clock));
    }
    eventually_some("clocks that agree within 5 ms", async || {
        for (gateway, _) in &gateways {
            // A machine that pauses does not keep the deadline.
            let _ = gateway.fixture.redis.ping().await;
        }
        let [first, second, third] = [0, 1, 2].map(|number| gateways[number].1.now());
        // They are read in this order.
        let spread = third.since(first) + first.since(second) + second.since(third);
        let apart = Nanos::from(Duration::from_millis(5));
        (spread <= apart && first.since(SystemClock.now()) <= apart).then_some(())
    })
    .await;
    for (gateway, _) in &gateways {
        assert!(gateway.recorder.steps().is_empty());
        assert!(gateway.recorder.changes().is_empty());
    }
}

/// A window that was shortened is cut, because the clock of decisions is right, whatever the
/// machine's says.
#[tokio::test]
async fn by_the_stores_clock_an_hour_off_does_not_keep_leftovers_from_being_cut() {
    let server = Arc::new(RedisServer::start());
    let (gateway, clock) = following(&server, 3600).await;
    let ask = async |quota, mode, cost| gateway.ask_at(clock.now(), of(quota, mode, cost)).await;
    ask(long_window(), Mode::CheckAndSpend, 10).await;
    // At first it cannot know whether others go by the same time.
    eventually_some("the leftover is cut", async || {
        assert!(!ask(quotas()[0], Mode::CheckAndSpend, 1).await.allowed);
        let after = ask(long_window(), Mode::Peek, 1).await;
        (after.reset_in <= Nanos::from_secs(PERIOD)).then_some(())
    })
    .await;
}

/// How many units two gateways let through in turn of a bucket of ten while one of them, which has
/// just started, is in the store's new time, and the other, which is off by so many seconds and was
/// asked so often before, has not noticed yet that the store's clock was set.
async fn passed_while_the_clock_is_set(quota: Quota, seconds: i64, asked: usize) -> usize {
    while_nothing_comes_back(&quota, seconds, async || {
        let server = Arc::new(RedisServer::start());
        let before = Gateway::off_by(&server, seconds).await;
        let mut passed = 0;
        let mut ask = async |gateway: &Gateway, now| {
            let take = of(quota, Mode::CheckAndSpend, 1);
            passed += usize::from(gateway.ask_at(now, take).await.allowed);
        };
        for _ in 0..asked {
            ask(&before, before.clock.now()).await;
        }
        if seconds < 0 {
            // What Redis does with keys whose time is over by the new clock.
            server.command(&["FLUSHALL"]);
        }
        let (starter, clock) = following(&server, 0).await;
        for _ in 0..40 {
            ask(&starter, clock.now()).await;
            ask(&before, before.clock.now()).await;
        }
        // On a slow machine the other one would have noticed by then.
        (!clock.is_settled()).then_some(passed)
    })
    .await
}

/// The one that started used to cut what the other one wrote, which handed it out again: 136 of 60,
/// and 242 where windows are fixed.
#[tokio::test]
async fn a_gateway_that_starts_while_the_stores_clock_goes_back_hands_out_nothing_again() {
    for quota in quotas() {
        let passed = passed_while_the_clock_is_set(quota, 3600, 10).await;
        assert!(passed <= 10, "{passed} {quota:?}");
    }
}

/// As docs/REDIS.md says: once before, once when Redis has let the key expire, and once by the
/// new time.
#[tokio::test]
async fn when_the_stores_clock_goes_forward_at_most_three_bursts_pass() {
    for quota in quotas() {
        let passed = passed_while_the_clock_is_set(quota, -3600, 10).await;
        assert!(passed <= 3 * 10, "{passed} {quota:?}");
    }
}

/// A bucket that is first asked for by the one that is in the new time.
#[tokio::test]
async fn of_a_new_bucket_two_bursts_pass_at_most_while_the_stores_clock_goes_back() {
    for quota in quotas() {
        let passed = passed_while_the_clock_is_set(quota, 3600, 0).await;
        assert!(passed <= 2 * 10, "{passed} {quota:?}");
    }
}

#[tokio::test]
async fn where_the_server_does_not_tell_its_time_decisions_go_by_the_machines_clock() {
    let server = Arc::new(RedisServer::start());
    server.command(&["ACL", "SETUSER", "default", "-time"]);
    let (gateway, clock) = following(&server, -3600).await;
    let is_followed = || {
        clock
            .now()
            .as_nanos()
            .abs_diff(gateway.clock.now().as_nanos())
            < 2_000_000_000
    };
    assert!(is_followed());
    // It is set right, and followed when that has lasted for a second.
    gateway.clock.set_off_by(0);
    eventually_some("a clock that has followed", async || {
        // A machine that pauses does not keep the deadline.
        let _ = gateway.fixture.redis.ping().await;
        is_followed().then_some(())
    })
    .await;
    let steps = gateway.recorder.steps();
    assert!(
        matches!(*steps, [by] if (by - 3600.0).abs() < 5.0),
        "{steps:?}"
    );
}

/// The other nodes' clocks are shown, and nothing goes by them.
#[tokio::test]
async fn of_several_nodes_one_is_followed_and_all_are_measured() {
    let server = Arc::new(RedisServer::start());
    let clock = OffClock::default();
    clock.set_off_by(3_600_000);
    let decisions = DecisionClock::following(Arc::new(clock.clone()));
    let [one, other] = ["a:1", "b:1"].map(Arc::<str>::from);
    decisions.refer_to(&other);
    let recorder = Arc::<Recorder>::default();
    let connect = async |node: &Arc<str>| {
        let settings = RedisSettings {
            clock: decisions.of_node(Arc::clone(node)),
            ..settings(&server, &clock)
        };
        let observer: Arc<dyn Observer> = Arc::<Recorder>::clone(&recorder);
        let redis = Redis::spawn(settings, observer).unwrap();
        redis.connected(PATIENCE).await.unwrap();
        redis
    };
    let is_local = || decisions.now().since(SystemClock.now()) > Nanos::from_secs(3000);
    let first = connect(&one).await;
    assert!(is_local() && recorder.offsets().is_empty());
    assert_eq!(recorder.measured_nodes(), ["a:1"]);
    let _second = connect(&other).await;
    assert!(!is_local());
    assert_eq!(recorder.offsets().len(), 1);
    assert_eq!(recorder.measured_nodes(), ["a:1", "b:1"]);
    // The first takes the other's place.
    decisions.refer_to(&one);
    first.ping().await.unwrap();
    assert_eq!(recorder.offsets().len(), 2);
}
