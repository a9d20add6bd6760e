//! Requests that wait for their turn, in paused time.

use std::num::{NonZeroU32, NonZeroUsize};

use futures_util::future::join_all;
use tokio::time::Instant;

use super::*;
use crate::limit::{Algorithm, Alignment};
use crate::middleware::Delay;
use crate::store::{Memory, MemorySettings};

const MANY: NonZeroU32 = NonZeroU32::new(100).unwrap();

/// A unit at once, and one more each 100 ms.
fn ten_a_second() -> Quota {
    Quota::new(1, 10, Duration::from_secs(1)).unwrap()
}

fn limit_of(name: &str, quota: Quota) -> LimitUse {
    let (per, missing) = (vec![KeySource::Global], Missing::Skip);
    let limit = Limit::new(name, per, Some(quota), missing, HashKey::random()).unwrap();
    LimitUse::of(Arc::new(limit))
}

/// A service whose requests wait for at most 350 ms: three of them at once.
fn delayed(limits: Vec<LimitUse>, max_requests: NonZeroU32) -> RateLimitLayer {
    let max_buckets = NonZeroUsize::new(100).unwrap();
    let store = Arc::new(Memory::new(MemorySettings { max_buckets }));
    let delay = Delay::new(Duration::from_millis(350), max_requests, true);
    let policy = RoutePolicy {
        delay: Some(Arc::new(delay)),
        ..policy(OnDenied::Reject(Rejection::default()), limits)
    };
    let clock = ManualClock::at(Timestamp::from_nanos(1 << 60));
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
        cost: crate::rules::Cost::Fixed(2.try_into().unwrap()),
        ..limit_of("L", ten_a_second())
    };
    assert_eq!(send(&delayed(vec![used], MANY)).await, (429, 0, None));
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
