use std::collections::VecDeque;
use std::convert::Infallible;
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use parking_lot::Mutex;
use serde_json::Value;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use weir_limit::time::{Clock, ManualClock, Nanos, Timestamp};
use weir_limit::{Algorithm, Alignment, Batch, BucketKeys, Decision, Quota};
use weir_rules::{Cost, HashKey, KeySource, Limit, LimitUse, Missing, Override};
use weir_store::{
    DecisionSource, Memory, MemorySettings, Outcome, OwedBatch, Store, StoreError, StoreFuture,
};
use weir_telemetry::{Disposition, Metrics};

use super::*;
use crate::decoy::{Decoy, Shadow};
use crate::{HeaderForm, Rejection, Verdict};

/// A store that gives the answers that it was told to give, and remembers what it was asked.
#[derive(Default)]
struct Scripted {
    answers: Mutex<VecDeque<Result<Outcome, StoreError>>>,
    asked: Mutex<Vec<Batch>>,
    /// How many of these would be given back if the answer came too late.
    admissions: AtomicUsize,
}

impl Store for Scripted {
    fn decide(&self, batch: &Batch, _: Timestamp) -> StoreFuture<Outcome> {
        self.asked.lock().push(batch.clone());
        StoreFuture::Ready(self.answers.lock().pop_front())
    }

    fn admit(&self, batch: &Batch, now: Timestamp) -> StoreFuture<Outcome> {
        self.admissions.fetch_add(1, Ordering::Relaxed);
        self.decide(batch, now)
    }

    fn refund(&self, _: OwedBatch, _: Timestamp) -> StoreFuture<()> {
        StoreFuture::ready(())
    }

    fn reset(&self, _: BucketKeys) -> StoreFuture<()> {
        StoreFuture::ready(())
    }
}

fn allowed(remaining: u64) -> Option<Decision> {
    let owed = Nanos::from_secs(10 * (6 - remaining));
    Some(Decision {
        allowed: true,
        remaining,
        retry_in: Nanos::ZERO,
        reset_in: owed,
        reset_before_secs: 0,
    })
}

fn denied(retry_secs: u64) -> Option<Decision> {
    let (retry_in, reset_in) = (Nanos::from_secs(retry_secs), Nanos::from_secs(60));
    Some(Decision {
        allowed: false,
        remaining: 0,
        retry_in,
        reset_in,
        reset_before_secs: 0,
    })
}

fn outcome<const N: usize>(decisions: [Option<Decision>; N]) -> Result<Outcome, StoreError> {
    let decisions = decisions.into_iter().collect();
    Ok(Outcome {
        decisions,
        source: DecisionSource::Store,
    })
}

/// Six a minute, for everybody together or for each value of a header.
fn limit(name: &str, per: KeySource, missing: Missing) -> LimitUse {
    let quota = Quota::new(6, 6, Duration::from_secs(60)).unwrap();
    let limit = Limit::new(name, vec![per], quota, missing, HashKey::random()).unwrap();
    LimitUse::new(Arc::new(limit))
}

fn policy(on_denied: OnDenied, limits: Vec<LimitUse>) -> RoutePolicy {
    RoutePolicy {
        name: "all".into(),
        limits,
        on_denied,
        ..RoutePolicy::default()
    }
}

fn reject(names: &[&str]) -> RoutePolicy {
    let limits = names
        .iter()
        .map(|name| limit(name, KeySource::Global, Missing::Skip))
        .collect();
    policy(OnDenied::Reject(Rejection::default()), limits)
}

fn shadow(headers: HeaderForms) -> RoutePolicy {
    let decoy = Decoy::new("sent", StatusCode::CREATED, http::HeaderMap::new(), "sent").unwrap();
    let on_denied = OnDenied::Shadow(Arc::new(Shadow::new(Arc::new(decoy))));
    let limits = vec![limit("Invites", KeySource::Global, Missing::Skip)];
    RoutePolicy {
        header_forms: headers,
        ..policy(on_denied, limits)
    }
}

/// What came of one request.
struct Answered {
    response: http::response::Parts,
    body: String,
    forwarded: usize,
    asked: Vec<Batch>,
    admissions: usize,
}

impl Answered {
    fn field(&self, name: &str) -> Option<&str> {
        self.response
            .headers
            .get(name)
            .map(|value| value.to_str().unwrap())
    }

    fn verdict(&self) -> (Disposition, Option<&str>) {
        let verdict: &Verdict = self.response.extensions.get().unwrap();
        (verdict.disposition, verdict.denied_by.as_deref())
    }

    fn problem(&self) -> Value {
        assert_eq!(self.field("content-type"), Some("application/problem+json"));
        serde_json::from_str(&self.body).unwrap()
    }
}

async fn send(policy: RoutePolicy, answer: Result<Outcome, StoreError>) -> Answered {
    let store = Arc::new(Scripted::default());
    store.answers.lock().push_back(answer);
    let forwarded = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&forwarded);
    let upstream = service_fn(move |_: Request<Metered<Full<Bytes>>>| {
        count.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, Infallible>(Response::new(Full::from("real"))) }
    });
    let layer = RateLimitLayer::new(Arc::clone(&store) as _, policy, &Metrics::new());
    let service = ServiceBuilder::new().layer(layer).service(upstream);
    let response = service
        .oneshot(Request::new(Full::from("request")))
        .await
        .unwrap();
    let (response, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answered {
        response,
        body: String::from_utf8(body.to_vec()).unwrap(),
        forwarded: forwarded.load(Ordering::Relaxed),
        asked: std::mem::take(&mut *store.asked.lock()),
        admissions: store.admissions.load(Ordering::Relaxed),
    }
}

#[tokio::test]
async fn an_allowed_request_is_forwarded_and_told_where_it_stands() {
    let answered = send(reject(&["A"]), outcome([allowed(5)])).await;
    assert_eq!((answered.body.as_str(), answered.forwarded), ("real", 1));
    assert_eq!(answered.field("ratelimit-policy"), Some("\"A\";q=6;w=60"));
    assert_eq!(answered.field("ratelimit"), Some("\"A\";r=5;t=10"));
    assert_eq!(answered.verdict(), (Disposition::Allowed, None));
}

#[tokio::test]
async fn all_limits_of_a_request_are_asked_about_at_once() {
    let answered = send(reject(&["A", "B", "C"]), outcome([allowed(5); 3])).await;
    let [batch] = answered.asked.as_slice() else {
        panic!("{:?}", answered.asked)
    };
    let keys: Vec<_> = batch
        .iter()
        .map(|transaction| transaction.key.as_str())
        .collect();
    assert_eq!(keys, ["A:*", "B:*", "C:*"]);
}

#[tokio::test]
async fn a_denied_request_gets_429_with_a_problem_and_is_not_forwarded() {
    let answered = send(reject(&["A"]), outcome([denied(7)])).await;
    assert_eq!(
        (answered.response.status, answered.forwarded),
        (StatusCode::TOO_MANY_REQUESTS, 0)
    );
    assert_eq!(answered.field("retry-after"), Some("7"));
    assert_eq!(answered.field("ratelimit"), Some("\"A\";r=0;t=7"));
    let problem = answered.problem();
    assert_eq!(
        problem["type"],
        "https://iana.org/assignments/http-problem-types#quota-exceeded"
    );
    assert_eq!(problem["violated-policies"], serde_json::json!(["A"]));
    assert_eq!(answered.verdict(), (Disposition::Denied, Some("A")));
}

#[tokio::test]
async fn of_several_denials_the_longest_wait_counts_and_all_limits_are_named() {
    let answered = send(
        reject(&["A", "B", "C"]),
        outcome([denied(7), allowed(5), denied(30)]),
    )
    .await;
    assert_eq!(answered.field("retry-after"), Some("30"));
    assert_eq!(
        answered.problem()["violated-policies"],
        serde_json::json!(["C", "A"])
    );
    assert_eq!(answered.verdict(), (Disposition::Denied, Some("C")));
}

#[tokio::test]
async fn a_wait_of_less_than_a_second_is_told_as_one() {
    let soon = denied(0).map(|it| Decision {
        retry_in: Nanos::new(1),
        ..it
    });
    assert_eq!(
        send(reject(&["A"]), outcome([soon]))
            .await
            .field("retry-after"),
        Some("1")
    );
}

#[tokio::test]
async fn a_request_that_will_never_fit_is_told_no_time_to_retry() {
    let never = denied(0).map(|it| Decision {
        retry_in: Nanos::NEVER,
        ..it
    });
    let answered = send(reject(&["A"]), outcome([never])).await;
    assert_eq!(answered.field("retry-after"), None);
    assert!(
        answered.body.contains("costs more") && !answered.body.contains("Retry-After"),
        "{}",
        answered.body
    );
}

#[tokio::test]
async fn a_route_can_have_a_rejection_of_its_own() {
    let headers = [(
        http::header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain"),
    )];
    let rejection = Rejection {
        status: StatusCode::SERVICE_UNAVAILABLE,
        headers: headers.into_iter().collect(),
        body: Some("slow down".into()),
    };
    let policy = RoutePolicy {
        on_denied: OnDenied::Reject(rejection),
        ..reject(&["A"])
    };
    let answered = send(policy, outcome([denied(7)])).await;
    assert_eq!(answered.response.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answered.field("content-type"), Some("text/plain"));
    assert_eq!(answered.field("retry-after"), Some("7"));
    assert_eq!(answered.body, "slow down");
}

#[tokio::test]
async fn when_the_store_fails_the_request_gets_503_and_is_not_forwarded() {
    let answered = send(reject(&["A"]), Err(StoreError::OutOfReach)).await;
    assert_eq!(
        (answered.response.status, answered.forwarded),
        (StatusCode::SERVICE_UNAVAILABLE, 0)
    );
    let seconds: u64 = answered.field("retry-after").unwrap().parse().unwrap();
    assert!((1..=5).contains(&seconds), "{seconds}");
    assert_eq!(
        answered.problem()["type"],
        "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
    );
    assert_eq!(answered.verdict().0, Disposition::Unavailable);
}

#[tokio::test]
async fn a_request_that_is_let_through_undecided_is_told_the_policy_alone() {
    let open = Outcome {
        decisions: [None].into_iter().collect(),
        source: DecisionSource::FailedOpen,
    };
    let answered = send(reject(&["A"]), Ok(open)).await;
    assert_eq!(answered.forwarded, 1);
    assert_eq!(answered.field("ratelimit-policy"), Some("\"A\";q=6;w=60"));
    assert_eq!(answered.field("ratelimit"), None);
    assert_eq!(answered.verdict().0, Disposition::FailedOpen);
}

#[tokio::test]
async fn who_decided_in_the_stores_place_is_told() {
    let by = |source| async move {
        let decisions = [allowed(5)].into_iter().collect();
        let answered = send(reject(&["A"]), Ok(Outcome { decisions, source })).await;
        let verdict: &Verdict = answered.response.extensions.get().unwrap();
        verdict.decided_by
    };
    assert_eq!(by(DecisionSource::Store).await, None);
    assert_eq!(by(DecisionSource::Local).await, Some("local"));
    assert_eq!(by(DecisionSource::Remembered).await, Some("remembered"));
}

#[tokio::test]
async fn a_limit_without_its_value_is_skipped_or_denies_as_it_says() {
    let per = || KeySource::Header(http::HeaderName::from_static("x-tenant"));
    let with = |missing| {
        let limits = vec![limit("PerTenant", per(), missing)];
        policy(OnDenied::Reject(Rejection::default()), limits)
    };
    let skipped = send(with(Missing::Skip), outcome([])).await;
    assert_eq!((skipped.forwarded, skipped.asked.len()), (1, 0));
    let refused = send(with(Missing::Deny), outcome([])).await;
    assert_eq!(
        (refused.response.status, refused.forwarded),
        (StatusCode::FORBIDDEN, 0)
    );
    assert_eq!(
        refused.problem()["detail"],
        "The limit PerTenant counts per header:x-tenant, and the request has none."
    );
    assert_eq!(refused.verdict(), (Disposition::Denied, Some("PerTenant")));
}

#[tokio::test(start_paused = true)]
async fn a_shadow_banned_request_gets_the_decoy_and_is_not_forwarded() {
    let answered = send(shadow(HeaderForms::NONE), outcome([denied(7)])).await;
    assert_eq!(
        (answered.response.status, answered.forwarded),
        (StatusCode::CREATED, 0)
    );
    assert_eq!(answered.body, "sent");
    for telling in ["retry-after", "ratelimit", "ratelimit-policy"] {
        assert_eq!(answered.field(telling), None);
    }
    assert_eq!(answered.verdict(), (Disposition::Shadowed, Some("Invites")));
}

#[tokio::test(start_paused = true)]
async fn a_decoy_on_a_route_that_shows_its_limits_shows_what_a_real_answer_could() {
    let answered = send(shadow(HeaderForms::default()), outcome([denied(7)])).await;
    assert_eq!(answered.field("ratelimit"), Some("\"Invites\";r=0;t=10"));
    assert_eq!(answered.field("retry-after"), None);
}

#[tokio::test]
async fn a_request_without_a_route_passes_where_policies_are_those_of_routes() {
    let store = Arc::new(Scripted::default());
    let layer = RateLimitLayer::by_route(Arc::clone(&store) as _, &Metrics::new());
    let upstream = service_fn(|_: Request<Metered<Full<Bytes>>>| async {
        Ok::<_, Infallible>(Response::new(Full::from("real")))
    });
    let service = ServiceBuilder::new().layer(layer).service(upstream);
    let response = service.oneshot(Request::new(Full::from(""))).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert!(store.asked.lock().is_empty());
}

/// Nothing is loaded anew: the quota that the store is asked about changes with the clock.
#[tokio::test]
async fn an_override_ends_while_the_gateway_runs() {
    let until = Timestamp::from_nanos(1_000);
    let clock = ManualClock::new(Timestamp::from_nanos(999));
    let Ok(mut limit) = Arc::try_unwrap(limit("A", KeySource::Global, Missing::Skip).limit) else {
        panic!("a limit of its own");
    };
    let added = Override {
        quota: Quota::new(50, 6, Duration::from_secs(60)).unwrap(),
        comment: None,
        id: "*".to_owned(),
        until: Some(until),
        origin: weir_rules::OverrideOrigin::Configuration,
    };
    limit.add_override(added).unwrap();
    let usage = LimitUse::new(Arc::new(limit));
    let store = Arc::new(Scripted::default());
    let policy = policy(OnDenied::Reject(Rejection::default()), vec![usage]);
    let layer = RateLimitLayer::new(Arc::clone(&store) as _, policy, &Metrics::new())
        .with_clock(Arc::new(clock.clone()));
    let upstream = service_fn(|_: Request<Metered<Full<Bytes>>>| async {
        Ok::<_, Infallible>(Response::new(Full::from("real")))
    });
    let service = ServiceBuilder::new().layer(layer).service(upstream);
    for (now, burst) in [(until, 6), (Timestamp::from_nanos(999), 50)] {
        clock.set(now);
        store.answers.lock().push_back(outcome([allowed(5)]));
        let request = Request::new(Full::from("request"));
        service.clone().oneshot(request).await.unwrap();
        let batch = store.asked.lock().pop().unwrap();
        let bursts: Vec<u64> = batch.iter().map(|it| it.quota.burst().get()).collect();
        assert_eq!(bursts, [burst], "{now:?}");
    }
}

/// It was told the 14 hours to the end of the day, and passed four seconds later.
#[tokio::test]
async fn a_client_of_an_override_that_ends_is_told_no_wait_beyond_its_end_by_any_algorithm() {
    let start = Timestamp::from_nanos(1_800_000_000_000_000_000);
    let day = Duration::from_secs(24 * 3600);
    let algorithms = [
        Algorithm::Gcra,
        Algorithm::FixedWindow(Alignment::FirstRequest),
        Algorithm::FixedWindow(Alignment::Period),
        Algorithm::SlidingWindow {
            count_denied: false,
        },
        Algorithm::SlidingLog { count_denied: true },
    ];
    for algorithm in algorithms {
        // The second would not fit the bucket of the override however long it waits.
        for cost in [1, 2] {
            let clock = ManualClock::new(start);
            let quota = Quota::windowed(algorithm, 1, day).unwrap();
            let layer = overridden_layer(quota, cost, start + Nanos::from_secs(4), &clock);
            let upstream = service_fn(|_: Request<Metered<Full<Bytes>>>| async {
                Ok::<_, Infallible>(Response::new(Full::from("real")))
            });
            let service = ServiceBuilder::new().layer(layer).service(upstream);
            let send = async || {
                let request = Request::new(Full::from("request"));
                service.clone().oneshot(request).await.unwrap()
            };
            let fields = |response: &Response<_>| {
                let field = |name: &str| Some(response.headers().get(name)?.to_str().unwrap());
                ["retry-after", "ratelimit", "x-ratelimit-reset"]
                    .map(|name| field(name).unwrap_or_default().to_owned())
            };
            let first = send().await;
            let told = fields(&first);
            if cost == 1 {
                assert_eq!(first.status(), StatusCode::OK, "{algorithm:?}");
                assert_eq!(told, ["", "\"A\";r=0;t=4", "4"], "{algorithm:?}");
                clock.advance(Duration::from_millis(900));
            } else {
                // A log that counts denied requests has counted this one.
                let left = u8::from(!algorithm.counts_denied());
                let state = format!("\"A\";r={left};t=4");
                assert_eq!(told, ["4", &*state, "4"], "{algorithm:?}");
            }
            let denied = send().await;
            assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(fields(&denied)[0], "4", "{algorithm:?}, {cost}");
            // With GCRA the limit counts in a level of its own from then on, which begins empty.
            clock.set(start + Nanos::from_secs(4));
            let by_limit = send().await;
            if by_limit.status() != StatusCode::OK {
                assert_eq!((algorithm, &*fields(&by_limit)[0]), (Algorithm::Gcra, "1"));
                clock.advance(Duration::from_secs(1));
                assert_eq!(send().await.status(), StatusCode::OK);
            }
        }
    }
}

/// A hundred a minute, and this in their place until then.
fn overridden_layer(
    quota: Quota,
    cost: u64,
    until: Timestamp,
    clock: &ManualClock,
) -> RateLimitLayer {
    let usual = Quota::new(100, 100, Duration::from_secs(60)).unwrap();
    let (key, per) = (HashKey::random(), vec![KeySource::Global]);
    let mut limit = Limit::new("A", per, usual, Missing::Skip, key).unwrap();
    let added = Override {
        quota,
        comment: None,
        id: "*".to_owned(),
        until: Some(until),
        origin: weir_rules::OverrideOrigin::AdminApi,
    };
    limit.add_override(added).unwrap();
    let usage = LimitUse {
        cost: Cost::Fixed(NonZeroU64::new(cost).unwrap()),
        ..LimitUse::new(Arc::new(limit))
    };
    let policy = RoutePolicy {
        header_forms: [HeaderForm::Draft, HeaderForm::XRateLimit]
            .into_iter()
            .collect(),
        ..policy(OnDenied::Reject(Rejection::default()), vec![usage])
    };
    let max_buckets = NonZeroUsize::new(1000).unwrap();
    let store = Arc::new(Memory::new(MemorySettings { max_buckets }));
    RateLimitLayer::new(store, policy, &Metrics::new()).with_clock(Arc::new(clock.clone()))
}

mod counting;
mod crowds;
mod delay;
mod library;
mod overload;
mod shedding;
mod timing;
