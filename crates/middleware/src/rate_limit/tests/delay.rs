//! Requests that wait for their turn, in paused time.

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::ops::Range;

use futures_util::FutureExt;
use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep};
use weir_limit::time::SystemClock;
use weir_limit::{Algorithm, Alignment, Mode, Transaction};
use weir_redis::{Redis, RedisSettings};
use weir_store::{Memory, MemorySettings, Unobserved};
use weir_testing::RedisServer;

use super::*;
use crate::Delay;
use crate::backend::Backend;
use crate::rate_limit::decision::PendingDecision;
use crate::route::RouteState;

const MANY: NonZeroU32 = NonZeroU32::new(100).unwrap();

/// A unit at once, and one more each 100 ms.
fn ten_a_second() -> Quota {
    Quota::new(1, 10, Duration::from_secs(1)).unwrap()
}

fn limit_of(name: &str, quota: Quota) -> LimitUse {
    let (per, missing) = (vec![KeySource::Global], Missing::Skip);
    let limit = Limit::new(name, per, Some(quota), missing, HashKey::random()).unwrap();
    LimitUse::new(Arc::new(limit))
}

/// A service whose requests wait for at most 350 ms: three of them at once.
fn delayed(limits: Vec<LimitUse>, max_requests: NonZeroU32) -> RateLimitLayer {
    let max_buckets = NonZeroUsize::new(100).unwrap();
    let store = Memory::new(MemorySettings { max_buckets });
    delayed_on(Arc::new(store), limits, max_requests)
}

fn delayed_on(
    store: Arc<Memory>,
    limits: Vec<LimitUse>,
    max_requests: NonZeroU32,
) -> RateLimitLayer {
    let delay = Delay::new(Duration::from_millis(350), max_requests, true);
    let policy = RoutePolicy {
        delay: Some(Arc::new(delay)),
        ..policy(OnDenied::Reject(Rejection::default()), limits)
    };
    let clock = ManualClock::new(Timestamp::from_nanos(1 << 60));
    RateLimitLayer::new(store, policy, &Metrics::new()).with_clock(Arc::new(clock))
}

/// The status of a response, when it came in milliseconds, and what it says of the delay.
async fn send(layer: &RateLimitLayer) -> (u16, u128, Option<String>) {
    let start = Instant::now();
    let service = layer.layer(service_fn(async |_: Request<Metered<Full<Bytes>>>| {
        Ok::<_, Infallible>(Response::new(Full::from("real")))
    }));
    let response = service.oneshot(Request::new(Full::from(""))).await.unwrap();
    let told = response.headers().get("server-timing");
    let told = told.map(|value| value.to_str().unwrap().to_owned());
    let took = start.elapsed().as_millis();
    (response.status().as_u16(), took, told)
}

#[tokio::test(start_paused = true)]
async fn no_request_gets_its_turn_before_its_units_are_back_or_waits_longer_than_it_may() {
    let layer = delayed(vec![limit_of("L", ten_a_second())], MANY);
    let answers = join_all((0..6).map(|_| send(&layer))).await;
    let told = |dur: u64| Some(format!("ratelimit;dur={dur}"));
    assert_eq!(answers[0], (200, 0, None));
    for (place, (status, took, header)) in (1..).zip(&answers[1..4]) {
        assert_eq!((*status, header.clone()), (200, told(place * 100)));
        // The timers of the runtime have milliseconds.
        assert!((u128::from(place) * 100..=u128::from(place) * 100 + 1).contains(took));
    }
    for (status, took, header) in &answers[4..] {
        assert_eq!((*status, *took, header.clone()), (429, 0, None));
    }
}

/// What the access log shows of a client that leaves: it asks when it drops the request.
#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_before_its_turn_was_never_decided_about_and_one_that_leaves_after_it_was()
 {
    let layer = delayed(vec![limit_of("L", ten_a_second())], MANY);
    send(&layer).await;
    let mut service = layer.layer(service_fn(async |_: Request<Metered<Full<Bytes>>>| {
        std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>().await
    }));
    let mut request = Box::pin(service.call(Request::new(Full::from(""))));
    assert!(request.as_mut().now_or_never().is_none());
    assert_eq!(request.verdict(), None);
    sleep(Duration::from_millis(101)).await;
    assert!(request.as_mut().now_or_never().is_none());
    let decided = request.verdict().map(|verdict| verdict.disposition);
    assert_eq!(decided, Some(Disposition::Delayed));
}

/// What could be lent was shown as if it were left.
#[tokio::test(start_paused = true)]
async fn a_response_never_shows_more_left_than_a_full_bucket_holds() {
    let second = Duration::from_secs(1);
    let window = Algorithm::SlidingLog {
        count_denied: false,
    };
    let limits = vec![
        limit_of("L", Quota::new(2, 10, second).unwrap()),
        limit_of("W", Quota::windowed(window, 3, second).unwrap()),
    ];
    let layer = delayed(limits, MANY);
    let mut shown = Vec::new();
    for _ in 0..4 {
        let service = layer.layer(service_fn(async |_: Request<Metered<Full<Bytes>>>| {
            Ok::<_, Infallible>(Response::new(Full::from("real")))
        }));
        let response = service.oneshot(Request::new(Full::from(""))).await.unwrap();
        let field = response.headers()["ratelimit"].to_str().unwrap();
        let of_l = field.split(", ").find(|item| item.starts_with("\"L\""));
        shown.push(of_l.unwrap().to_owned());
    }
    // The last is denied by the other limit, while the clock of decisions stands still.
    let r = |r: u64| format!("\"L\";r={r};t=1");
    assert_eq!(shown, [r(1), r(0), r(0), r(0)]);
}

/// So it was to those for whom no place in flight was left.
#[tokio::test(start_paused = true)]
async fn who_gets_no_place_in_flight_is_not_shown_what_could_be_lent() {
    let quota = Quota::new(2, 10, Duration::from_secs(1)).unwrap();
    let places = limit_of("P", Quota::in_flight(1).unwrap());
    let layer = delayed(vec![limit_of("L", quota), places], MANY);
    let service = service_fn(|_: Request<Metered<Full<Bytes>>>| {
        std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>()
    });
    let request = || Request::new(Full::from(""));
    let mut held = Box::pin(layer.layer(service).oneshot(request()));
    assert!((&mut held).now_or_never().is_none());
    let denied = layer.layer(service).oneshot(request()).await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    let field = denied.headers()["ratelimit"].to_str().unwrap();
    assert!(field.contains("\"L\";r=1;t=1"), "{field}");
}

/// A refund took a unit off the window behind it.
#[test]
fn a_wait_makes_no_unit_of_a_window_owed_for_longer() {
    let route = RouteState::without_access_control(RoutePolicy::default(), &Metrics::new());
    let arrived = Timestamp::from_nanos(1 << 60);
    let mut pending = PendingDecision::new(&Arc::new(route), arrived);
    let store = Memory::new(MemorySettings::default());
    pending.has_waited(Duration::from_millis(300), &Backend::new(Arc::new(store)));
    let window = Algorithm::FixedWindow(Alignment::FirstRequest);
    let quota = Quota::windowed(window, 6, Duration::from_secs(10)).unwrap();
    let taken = Transaction::new("W:*".into(), quota, NonZeroU64::MIN);
    let decision = allowed(5).unwrap();
    let until = pending.owed_until(&taken, &decision);
    assert_eq!(until, arrived + decision.reset_in);
}

/// A debt that another definition of the limit made held up requests that could not be denied, and
/// with no place left they passed while other limits got their units back.
#[tokio::test(start_paused = true)]
async fn a_limit_that_never_denies_holds_no_request_up() {
    let max_buckets = NonZeroUsize::new(100).unwrap();
    let of = |burst, seconds| Quota::new(burst, 10, Duration::from_secs(seconds)).unwrap();
    let never = [
        LimitUse {
            mode: Mode::SpendOnly,
            ..limit_of("L", of(1, 1))
        },
        LimitUse {
            enforcement: weir_rules::Enforcement::NONE,
            ..limit_of("L", of(1, 1))
        },
    ];
    for used in never {
        let store = Arc::new(Memory::new(MemorySettings { max_buckets }));
        let before = delayed_on(Arc::clone(&store), vec![limit_of("L", of(2, 10))], MANY);
        for _ in 0..2 {
            assert_eq!(send(&before).await.1, 0);
        }
        let (status, took, _) = send(&delayed_on(store, vec![used], NonZeroU32::MIN)).await;
        assert_eq!((status, took), (200, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_it_waits_takes_no_turn_from_others() {
    let layer = delayed(vec![limit_of("L", ten_a_second())], MANY);
    send(&layer).await;
    for _ in 0..9 {
        let waits = tokio::time::timeout(Duration::from_millis(20), send(&layer));
        assert!(waits.await.is_err());
    }
    assert_eq!(send(&layer).await.2.as_deref(), Some("ratelimit;dur=100"));
}

#[tokio::test(start_paused = true)]
async fn no_more_requests_wait_than_may_and_those_that_may_not_take_nothing() {
    let layer = delayed(vec![limit_of("L", ten_a_second())], NonZeroU32::MIN);
    send(&layer).await;
    let (first, second) = tokio::join!(send(&layer), send(&layer));
    assert_eq!((first.0, second.0, second.1), (200, 429, 0));
    // The manual clock stands still: the next turn is the one that the second did not get.
    assert_eq!(send(&layer).await.2.as_deref(), Some("ratelimit;dur=200"));
}

#[tokio::test(start_paused = true)]
async fn limits_that_lend_nothing_deny_at_once_and_nothing_stays_lent() {
    let minute = Duration::from_secs(60);
    let fixed = Algorithm::FixedWindow(Alignment::Period);
    let window = Quota::windowed(fixed, 2, minute).unwrap();
    let limits = vec![limit_of("L", ten_a_second()), limit_of("W", window)];
    let layer = delayed(limits, MANY);
    assert_eq!(send(&layer).await.0, 200);
    assert_eq!(send(&layer).await.2.as_deref(), Some("ratelimit;dur=100"));
    for _ in 0..9 {
        assert_eq!(send(&layer).await, (429, 0, None));
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_full_bucket_does_not_hold_is_denied_however_long_it_could_wait() {
    let used = LimitUse {
        cost: Cost::Fixed(2.try_into().unwrap()),
        ..limit_of("L", ten_a_second())
    };
    assert_eq!(send(&delayed(vec![used], MANY)).await, (403, 0, None));
}

#[tokio::test(start_paused = true)]
async fn the_slowest_of_several_limits_has_the_request_wait() {
    let slow = Quota::new(2, 5, Duration::from_secs(1)).unwrap();
    let layer = delayed(
        vec![limit_of("L", ten_a_second()), limit_of("S", slow)],
        MANY,
    );
    let answers = join_all((0..4).map(|_| send(&layer))).await;
    let waits: Vec<_> = answers.iter().map(|answer| answer.2.as_deref()).collect();
    let first = [None, Some("ratelimit;dur=100"), Some("ratelimit;dur=200")];
    assert_eq!(waits[..3], first);
    assert_eq!(answers[3].0, 429, "400 ms are too long");
}

/// The paused time of timers.
struct TimerClock(Instant);

impl Clock for TimerClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(1 << 60) + Nanos::from(self.0.elapsed())
    }
}

/// Gateways on one store, whose requests wait for at most two seconds: two at once, and one more each
/// 100 ms.
fn gateways<const N: usize>() -> [RateLimitLayer; N] {
    let max_buckets = NonZeroUsize::new(100).unwrap();
    let store = Arc::new(Memory::new(MemorySettings { max_buckets }));
    let quota = Quota::new(2, 10, Duration::from_secs(1)).unwrap();
    let clock = Arc::new(TimerClock(Instant::now()));
    [(); N].map(|()| {
        let delay = Delay::new(Duration::from_secs(2), MANY, true);
        let policy = RoutePolicy {
            delay: Some(Arc::new(delay)),
            ..policy(
                OnDenied::Reject(Rejection::default()),
                vec![limit_of("L", quota)],
            )
        };
        let store = Arc::<Memory>::clone(&store);
        RateLimitLayer::new(store, policy, &Metrics::new()).with_clock(clock.clone())
    })
}

/// Clients that come now, one after the other; each says when it was let through, in milliseconds of
/// the timers' clock, unless it was denied.
async fn come(layer: &RateLimitLayer, count: usize) -> Vec<JoinHandle<Option<u64>>> {
    let clients = (0..count).map(|_| {
        let layer = layer.clone();
        tokio::spawn(async move {
            let (status, ..) = send(&layer).await;
            let now = layer.0.backend.now().since(Timestamp::from_nanos(1 << 60));
            (status == 200).then(|| now.get() / 1_000_000)
        })
    });
    let clients = clients.collect();
    yield_now().await;
    clients
}

async fn leave(clients: &mut Vec<JoinHandle<Option<u64>>>, who: Range<usize>) {
    clients.drain(who).for_each(|client| client.abort());
    yield_now().await;
}

async fn passed(clients: Vec<JoinHandle<Option<u64>>>) -> Vec<Option<u64>> {
    let passed = join_all(clients).await;
    passed.into_iter().map(|client| client.unwrap()).collect()
}

/// Nothing passed for 1.1 s, and then twice as many as may: those behind the leavers and newcomers.
#[tokio::test(start_paused = true)]
async fn those_behind_clients_that_leave_move_up_in_their_order_and_newcomers_come_behind_them() {
    let [gateway] = gateways();
    let mut first = come(&gateway, 22).await;
    leave(&mut first, 2..12).await;
    let newcomers = come(&gateway, 12).await;
    let all = [passed(first).await, passed(newcomers).await].concat();
    for (place, passed) in (0..).zip(&all[2..22]) {
        // The timers of the runtime have milliseconds.
        let due = 100 * (place + 1);
        let passed = passed.unwrap();
        assert!((due..=due + 2).contains(&passed), "{place} {all:?}");
    }
    assert_eq!(all[..2], [Some(0); 2]);
    assert_eq!(all[22..], [None; 2], "they would have to wait too long");
}

/// Of each batch all but the last left, and the last of all batches passed at once.
#[tokio::test(start_paused = true)]
async fn the_last_of_each_batch_moves_up_behind_those_of_the_batches_before() {
    let [gateway] = gateways();
    let first = come(&gateway, 2).await;
    let mut last = Vec::new();
    for number in 0..10 {
        let mut batch = come(&gateway, 20 - number).await;
        leave(&mut batch, 0..19 - number).await;
        last.append(&mut batch);
    }
    assert_eq!(passed(first).await, [Some(0); 2]);
    for (place, passed) in (1..).zip(passed(last).await) {
        let (due, passed) = (100 * place, passed.unwrap());
        assert!((due..=due + 2).contains(&passed), "{place} {passed}");
    }
}

/// Waits, while timers stand still, until something holds.
async fn soon(what: &str, holds: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "not in time: {what}");
        yield_now().await;
    }
}

/// Of ten that left at once, two units came back: each worker gave back by a connection of its own.
#[tokio::test]
async fn with_redis_no_unit_is_lost_of_those_who_leave_at_once_through_several_workers() {
    let server = RedisServer::start();
    let quota = Quota::new(1, 20, Duration::from_secs(3)).unwrap();
    let delay = Arc::new(Delay::new(Duration::from_secs(2), MANY, true));
    let policy = RoutePolicy {
        delay: Some(Arc::clone(&delay)),
        ..policy(
            OnDenied::Reject(Rejection::default()),
            vec![limit_of("L", quota)],
        )
    };
    let clock = Arc::new(ManualClock::new(SystemClock.now()));
    let mut workers = Vec::new();
    for _ in 0..3 {
        let settings = RedisSettings::parse(&server.url(), None, None).unwrap();
        let redis = Redis::spawn(settings, Arc::new(Unobserved)).unwrap();
        redis.connected(Duration::from_secs(20)).await.unwrap();
        let layer = RateLimitLayer::new(Arc::new(redis), policy.clone(), &Metrics::new());
        workers.push(layer.with_clock(clock.clone()));
    }
    // A blocking task that waits keeps the runtime from moving paused time by itself.
    let (_stands, ends) = oneshot::channel::<()>();
    tokio::task::spawn_blocking(move || ends.blocking_recv());
    tokio::time::pause();
    assert_eq!(send(&workers[0]).await.0, 200);
    let key = server.command(&["KEYS", "weir:L:*"]);
    let key = key.lines().nth(2).unwrap();
    let tat = || server.command(&["BITFIELD", key, "GET", "u63", "0"]);
    let before = tat();
    let clients = (0..12).map(|number| {
        let worker = workers[number % 3].clone();
        tokio::spawn(async move { send(&worker).await })
    });
    let clients: Vec<_> = clients.collect();
    soon("all wait", || delay.waiting.load(Ordering::Relaxed) == 12).await;
    assert_ne!(tat(), before);
    clients.iter().for_each(JoinHandle::abort);
    soon("all units are back", || tat() == before).await;
}

/// At one gateway, and at two that share a store and do not know who waits at the other.
#[tokio::test(start_paused = true)]
async fn whoever_leaves_no_more_pass_in_any_stretch_than_the_limit_admits() {
    for seed in 0..20 {
        let [one, other] = gateways();
        let mut random = StdRng::seed_from_u64(seed);
        let mut clients = Vec::new();
        for _ in 0..200 {
            let gateway = if seed % 2 == 0 || random.random_bool(0.5) {
                &one
            } else {
                &other
            };
            let count = random.random_range(0..5);
            clients.append(&mut come(gateway, count).await);
            if random.random_bool(0.5) && !clients.is_empty() {
                let from = random.random_range(0..clients.len());
                let to = clients.len().min(from + random.random_range(0..12));
                leave(&mut clients, from..to).await;
            }
            sleep(Duration::from_millis(random.random_range(0..120))).await;
        }
        let passed: Vec<u64> = passed(clients).await.into_iter().flatten().collect();
        let is_ordered = passed.is_sorted_by(|one, other| *one <= other + 2);
        assert!(seed % 2 == 1 || is_ordered, "seed {seed}: {passed:?}");
        let mut sorted = passed;
        sorted.sort_unstable();
        for (from, start) in sorted.iter().enumerate() {
            for (count, end) in (1..).zip(&sorted[from..]) {
                let admitted = 2 + (end - start + 2) / 100;
                assert!(
                    count <= admitted,
                    "seed {seed}: {count} from {start} to {end}"
                );
            }
        }
    }
}
