//! Requests to an upstream whose requests in flight are limited, in paused time.

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};

use futures_util::FutureExt;
use http_body::Frame;
use http_body_util::StreamBody;
use proptest::prelude::*;
use smallvec::smallvec;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::sleep;
use weir_limit::{Algorithm, Alignment, ConcurrencyBounds, Mode, Priority, Transaction};
use weir_rules::{Cost, Enforcement, MeasuredCost};
use weir_runtime::send_gate::SendGate;
use weir_store::{Memory, MemorySettings};
use weir_telemetry::UpstreamOutcome;

use super::counting::Slow;
use super::*;
use crate::identify::identity;
use crate::{ConcurrencyLimiter, ConcurrencySettings, Shedding, SheddingSettings};

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

/// So long that no unit comes back meanwhile.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

fn limiter(slots: NonZeroU32) -> ConcurrencyLimiter {
    let settings = ConcurrencySettings {
        bounds: ConcurrencyBounds {
            min: slots,
            max: slots,
        },
        max_wait: None,
        enforcement: Enforcement::default(),
    };
    ConcurrencyLimiter::new("app", settings)
}

/// A layer for a route of this priority, above a service that sends requests on at once.
fn layer(
    store: &Arc<Memory>,
    limits: Vec<LimitUse>,
    limiter: &ConcurrencyLimiter,
    priority: Priority,
) -> RateLimitLayer {
    layer_above(false, store, limits, limiter, priority)
}

/// The same above a service that reads bodies first, or does not.
fn layer_above(
    reads_bodies_first: bool,
    store: &Arc<impl Store>,
    limits: Vec<LimitUse>,
    limiter: &ConcurrencyLimiter,
    priority: Priority,
) -> RateLimitLayer {
    let metrics = Metrics::new();
    counted_layer(
        &metrics,
        reads_bodies_first,
        store,
        limits,
        limiter,
        priority,
    )
}

/// The same, with these metrics.
fn counted_layer(
    metrics: &Arc<Metrics>,
    reads_bodies_first: bool,
    store: &Arc<impl Store>,
    limits: Vec<LimitUse>,
    limiter: &ConcurrencyLimiter,
    priority: Priority,
) -> RateLimitLayer {
    let policy = policy(OnDenied::Reject(Rejection::default()), limits);
    let clock = ManualClock::new(Timestamp::from_nanos(1 << 60));
    let shedding = Shedding::new(&SheddingSettings::default(), metrics);
    let shedding = shedding.of_route(&policy.name, priority, Some(limiter), reads_bodies_first);
    RateLimitLayer::new(Arc::clone(store) as _, policy, metrics)
        .with_clock(Arc::new(clock))
        .with(|settings| {
            let route = settings.route.take();
            settings.route = route.map(|route| route.with_shedding(shedding));
        })
}

fn limit_of(name: &str, quota: Quota, cost: u64) -> LimitUse {
    let limit = Limit::new(
        name,
        vec![KeySource::Global],
        Some(quota),
        Missing::Skip,
        HashKey::random(),
    );
    LimitUse {
        cost: Cost::Fixed(NonZeroU64::new(cost).unwrap()),
        ..LimitUse::new(Arc::new(limit.unwrap()))
    }
}

/// By name: what a request costs, and how much there is of it.
fn quotas(units: u64) -> [(&'static str, u64, Quota); 4] {
    let windowed = |algorithm, count| Quota::windowed(algorithm, count, YEAR).unwrap();
    let fixed = Algorithm::FixedWindow(Alignment::FirstRequest);
    let log = Algorithm::SlidingLog {
        count_denied: false,
    };
    [
        ("A", 1, Quota::new(units, units, YEAR).unwrap()),
        ("B", 2, Quota::new(100, 100, YEAR).unwrap()),
        ("C", 1, windowed(fixed, 100)),
        ("D", 3, windowed(log, 200)),
    ]
}

fn left(store: &Memory, name: &str, quota: Quota) -> u64 {
    let key = format!("{name}:*").as_str().into();
    let look = Transaction {
        mode: Mode::Peek,
        ..Transaction::new(key, quota, NonZeroU64::MIN)
    };
    let outcome = store.decide(&smallvec![look], Timestamp::from_nanos(1 << 60));
    let outcome = outcome.now_or_never().unwrap().unwrap();
    outcome.decisions[0].unwrap().remaining
}

#[derive(Clone, Debug)]
enum Step {
    /// With a body or without.
    Arrive(Priority, u8, bool),
    /// The app responds to a request with this status, or breaks down.
    Respond(usize, Option<u16>),
    /// The client of a request leaves, whether it waits or the app works on it.
    Leave(usize),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let priority = prop::sample::select(Priority::ALL.to_vec());
    let status = prop::option::weighted(0.9, prop::sample::select(vec![200, 404, 500, 503]));
    let step = prop_oneof![
        6 => (priority, 0..4_u8, any::<bool>())
            .prop_map(|(priority, client, has_body)| Step::Arrive(priority, client, has_body)),
        2 => (any::<usize>(), status).prop_map(|(index, status)| Step::Respond(index, status)),
        1 => any::<usize>().prop_map(Step::Leave),
        1 => (1..15_u64).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..80)
}

type ResponseSender = oneshot::Sender<Option<u16>>;

/// An app whose requests wait for what the test says.
async fn app(
    sender: mpsc::UnboundedSender<ResponseSender>,
) -> Result<Response<Full<Bytes>>, &'static str> {
    let (respond, told) = oneshot::channel();
    sender.send(respond).unwrap();
    let status = told.await.ok().flatten().ok_or("broken down")?;
    let mut response = Response::new(Full::from("real"));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    Ok(response)
}

/// Takes the steps, and returns how many requests the app got.
async fn run(store: &Arc<Memory>, limiter: &ConcurrencyLimiter, steps: Vec<Step>) -> u64 {
    let quotas = quotas(25);
    let limits = || quotas.map(|(name, cost, quota)| limit_of(name, quota, cost));
    let layers =
        Priority::ALL.map(|priority| layer_above(true, store, limits().into(), limiter, priority));
    let (sender, mut admitted) = mpsc::unbounded_channel();
    let service = service_fn(move |mut request: Request<Metered<Full<Bytes>>>| {
        let sender = sender.clone();
        async move {
            let gate = request.extensions_mut().remove::<SendGate>();
            request.into_body().collect().await.unwrap();
            if let Some(gate) = gate {
                gate.pass().await;
            }
            app(sender).await
        }
    });
    let mut at_app: Vec<ResponseSender> = Vec::new();
    let mut clients: Vec<JoinHandle<()>> = Vec::new();
    let mut reached = 0;
    for step in steps {
        match step {
            Step::Arrive(priority, client, has_body) => {
                let identity = identity(Some([192, 0, 2, client].into()), None);
                let body = if has_body { "body" } else { "" };
                let mut request = Request::new(Full::from(body));
                request.extensions_mut().insert(identity);
                let response = layers[priority as usize].layer(service.clone());
                let response = response.oneshot(request);
                clients.push(tokio::spawn(async move { drop(response.await) }));
            }
            Step::Respond(index, status) if !at_app.is_empty() => {
                let _ = at_app.remove(index % at_app.len()).send(status);
            }
            Step::Leave(index) if !clients.is_empty() => {
                clients.swap_remove(index % clients.len()).abort();
            }
            Step::Wait(millis) => sleep(Duration::from_millis(millis)).await,
            Step::Respond(..) | Step::Leave(_) => {}
        }
        for _ in 0..5 {
            yield_now().await;
        }
        while let Ok(respond) = admitted.try_recv() {
            at_app.push(respond);
            reached += 1;
        }
    }
    sleep(Duration::from_secs(1)).await;
    while let Ok(_respond) = admitted.try_recv() {
        reached += 1;
    }
    reached
}

proptest! {
    /// Whether it is shed at once, after it has waited, or leaves while it waits; and a request
    /// that the app got is charged, whatever comes of it.
    #[test]
    fn a_request_that_never_gets_to_the_app_is_never_charged(slots in 1..4_u32, steps in steps()) {
        let max_buckets = NonZeroUsize::new(100).unwrap();
        let store = Arc::new(Memory::new(MemorySettings { max_buckets }));
        let limiter = limiter(NonZeroU32::new(slots).unwrap());
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let reached = runtime.unwrap().block_on(run(&store, &limiter, steps));
        for (name, cost, quota) in quotas(25) {
            let taken = quota.burst().get() - left(&store, name, quota);
            prop_assert_eq!(taken, reached * cost, "{} of {}", name, reached);
        }
    }
}

/// The slots that a request has after 0.9, 1.8, 2.7, 3.6 and 4.5 seconds if its body takes three,
/// once the app is connected to. With HTTP/2, the body is read by the connection's task.
async fn taken_by_upload(connecting: Duration) -> Vec<u32> {
    let store = Arc::new(Memory::new(MemorySettings {
        max_buckets: NonZeroUsize::MIN,
    }));
    let limiter = limiter(NonZeroU32::MIN);
    let app = service_fn(move |request: Request<Metered<Body>>| async move {
        sleep(connecting).await;
        tokio::spawn(request.into_body().collect());
        sleep(Duration::from_secs(10)).await;
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("real")))
    });
    let upload = futures_util::stream::once(async {
        sleep(Duration::from_secs(3)).await;
        Ok(Frame::data(Bytes::from_static(b"body")))
    });
    let request = Request::new(StreamBody::new(upload).boxed_unsync());
    let service = layer(&store, Vec::new(), &limiter, Priority::Normal).layer(app);
    let response = tokio::spawn(service.oneshot(request));
    let mut taken = Vec::new();
    for _ in 0..5 {
        sleep(Duration::from_millis(900)).await;
        taken.push(limiter.sample().taken);
    }
    response.await.unwrap().unwrap();
    assert_eq!(limiter.sample().taken, 0);
    taken
}

#[tokio::test(start_paused = true)]
async fn a_body_that_another_task_reads_does_not_leave_its_request_without_a_slot() {
    let taken = taken_by_upload(Duration::ZERO).await;
    assert_eq!(taken, [1, 0, 0, 1, 1]);
}

/// A second after its arrival its body had not begun, and it kept the slot to the end.
#[tokio::test(start_paused = true)]
async fn a_slow_body_keeps_no_slot_although_the_upstream_took_long_to_connect_to() {
    let taken = taken_by_upload(Duration::from_millis(1200)).await;
    assert_eq!(taken, [1, 1, 0, 0, 1]);
}

/// A service that reads bodies first for so long, and then sends requests to an app that takes 20
/// ms.
async fn reading_first(
    mut request: Request<Metered<Body>>,
    patience: Duration,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let gate = request.extensions_mut().remove::<SendGate>().unwrap();
    let mut body = request.into_body();
    let read = async { while body.frame().await.is_some() {} };
    let _ = tokio::time::timeout(patience, read).await;
    gate.pass().await;
    while body.frame().await.is_some() {}
    sleep(Duration::from_millis(20)).await;
    let mut response = Response::new(Full::from("real"));
    response.extensions_mut().insert(UpstreamOutcome {
        server: "app:80".into(),
        status: StatusCode::OK,
        connect: None,
        arrived: tokio::time::Instant::now(),
        head: Duration::from_millis(20),
    });
    Ok(response)
}

/// A request whose body comes after a while.
fn upload_after(wait: Duration) -> Request<Body> {
    let upload = futures_util::stream::once(async move {
        sleep(wait).await;
        Ok(Frame::data(Bytes::from_static(b"body")))
    });
    Request::new(StreamBody::new(upload).boxed_unsync())
}

fn no_store() -> Arc<Memory> {
    Arc::new(Memory::new(MemorySettings {
        max_buckets: NonZeroUsize::MIN,
    }))
}

#[tokio::test(start_paused = true)]
async fn a_request_holds_no_slot_before_its_body_has_been_read() {
    let limiter = limiter(NonZeroU32::MIN);
    let service = layer_above(true, &no_store(), Vec::new(), &limiter, Priority::Normal)
        .layer(service_fn(|request| reading_first(request, YEAR)));
    let slow = upload_after(Duration::from_millis(900));
    let response = tokio::spawn(service.oneshot(slow));
    for millis in [1, 889] {
        sleep(Duration::from_millis(millis)).await;
        assert_eq!(limiter.sample().taken, 0);
    }
    sleep(Duration::from_millis(15)).await;
    assert_eq!(limiter.sample().taken, 1);
    assert_eq!(response.await.unwrap().unwrap().status(), 200);
    assert_eq!(limiter.sample().taken, 0);
}

/// What a client takes to send its body was taken for the app's latency, or taken off it although
/// the slot was asked for later.
#[tokio::test(start_paused = true)]
async fn neither_the_part_of_a_body_that_was_read_first_nor_the_rest_counts_as_latency() {
    for (patience, upload) in [(YEAR, 500), (Duration::from_millis(300), 700)] {
        let limiter = limiter(NonZeroU32::MIN);
        let service = layer_above(true, &no_store(), Vec::new(), &limiter, Priority::Normal)
            .layer(service_fn(move |request| reading_first(request, patience)));
        for _ in 0..60 {
            let request = upload_after(Duration::from_millis(upload));
            service.clone().oneshot(request).await.unwrap();
        }
        let latency = limiter.baseline().unwrap();
        assert!((20..22).contains(&latency.as_millis()), "{latency:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_shed_when_its_body_has_been_read_is_charged_by_no_limit() {
    let store = Arc::new(Memory::new(MemorySettings {
        max_buckets: NonZeroUsize::new(100).unwrap(),
    }));
    let limiter = limiter(NonZeroU32::MIN);
    let quotas = quotas(25);
    let limits = || {
        quotas
            .map(|(name, cost, quota)| limit_of(name, quota, cost))
            .into()
    };
    let reading = service_fn(|request| reading_first(request, YEAR));
    let service = layer_above(true, &store, limits(), &limiter, Priority::Normal).layer(reading);
    let upload = |millis| {
        service
            .clone()
            .oneshot(upload_after(Duration::from_millis(millis)))
    };
    let first = tokio::spawn(upload(100));
    let second = upload(101).await.unwrap();
    assert_eq!(second.status(), 503);
    let verdict = second.extensions().get::<Verdict>().unwrap();
    assert_eq!(verdict.disposition, Disposition::Shed);
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    for (name, cost, quota) in quotas {
        assert_eq!(
            quota.burst().get() - left(&store, name, quota),
            cost,
            "{name}"
        );
    }
}

/// An app that never responds, behind a proxy that may read bodies first.
async fn silent(mut request: Request<Metered<Body>>) -> Result<Response<Full<Bytes>>, Infallible> {
    let gate = request.extensions_mut().remove::<SendGate>();
    let _ = request.into_body().collect().await;
    if let Some(gate) = gate {
        gate.pass().await;
    }
    std::future::pending().await
}

/// What findings tell of a route's requests when one of two finds no slot.
async fn found_of_one_shed(
    reads_bodies_first: bool,
    limits: Vec<LimitUse>,
) -> Vec<(Arc<str>, u64)> {
    let store = Arc::new(Memory::new(MemorySettings {
        max_buckets: NonZeroUsize::new(100).unwrap(),
    }));
    let (metrics, limiter) = (Metrics::new(), limiter(NonZeroU32::MIN));
    let (reads, priority) = (reads_bodies_first, Priority::Normal);
    let layer = counted_layer(&metrics, reads, &store, limits, &limiter, priority);
    let service = layer.layer(service_fn(silent));
    let send = || service.clone().oneshot(upload_after(Duration::ZERO));
    let waiting = tokio::spawn(send());
    sleep(Duration::from_millis(1)).await;
    assert_eq!(send().await.unwrap().status(), 503);
    waiting.abort();
    Vec::from_iter(metrics.failures().shed.by_upstreams)
}

/// Each of these ways counts by a call of its own.
#[tokio::test(start_paused = true)]
async fn no_request_that_is_shed_is_missing_from_findings_whichever_way_it_went() {
    let (name, cost, quota) = quotas(25)[0];
    let limited = || vec![limit_of(name, quota, cost)];
    let unlimited = found_of_one_shed(false, Vec::new()).await;
    let before = found_of_one_shed(false, limited()).await;
    let after = found_of_one_shed(true, limited()).await;
    let one = || vec![(Arc::from("all"), 1)];
    assert_eq!([unlimited, before, after], [one(), one(), one()]);
}

/// Its request was never let through, and its body had been read.
#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_it_waits_for_a_slot_is_not_charged_for_its_body() {
    let store = Arc::new(Memory::new(MemorySettings {
        max_buckets: NonZeroUsize::new(100).unwrap(),
    }));
    let limiter = limiter(NonZeroU32::MIN);
    let (name, _, quota) = quotas(25)[0];
    let by_byte = LimitUse {
        cost: Cost::Measured(Arc::new(MeasuredCost {
            request_bytes: NonZeroU64::new(1),
            ..MeasuredCost::default()
        })),
        ..limit_of(name, quota, 1)
    };
    let first = layer_above(true, &no_store(), Vec::new(), &limiter, Priority::Normal);
    let app = service_fn(|request| reading_first(request, YEAR));
    let first = tokio::spawn(first.layer(app).oneshot(upload_after(Duration::ZERO)));
    sleep(Duration::from_millis(1)).await;
    let limited = layer_above(true, &store, vec![by_byte], &limiter, Priority::Normal);
    let waiting = tokio::spawn(limited.layer(app).oneshot(upload_after(Duration::ZERO)));
    sleep(Duration::from_millis(1)).await;
    assert_eq!(limiter.sample().waiting, 1);
    waiting.abort();
    let _ = waiting.await;
    // What is charged in the background has been charged by then.
    sleep(Duration::from_millis(1)).await;
    assert_eq!(left(&store, name, quota), quota.burst().get());
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
}

/// A limit R whose cost the response says.
fn by_response(quota: Quota) -> LimitUse {
    LimitUse {
        cost: Cost::Measured(Arc::new(MeasuredCost {
            response_header: Some(http::HeaderName::from_static("x-cost")),
            ..MeasuredCost::default()
        })),
        ..limit_of("R", quota, 1)
    }
}

/// A response that did not wait for the request's body, and costs seven units.
async fn answered_early() -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new(Full::from("early"));
    let cost = HeaderValue::from_static("7");
    response.headers_mut().insert("x-cost", cost);
    Ok(response)
}

/// The slot holds on to the charges. If it learned of the response after them, it would charge when
/// the client has its response, which could ask again meanwhile.
#[tokio::test]
async fn a_response_that_comes_before_the_body_is_read_waits_for_its_charge() {
    let max_buckets = NonZeroUsize::new(100).unwrap();
    let may_go_on = Arc::new(tokio::sync::Semaphore::new(0));
    let store = Arc::new(Slow {
        memory: Memory::new(MemorySettings { max_buckets }),
        may_go_on: Arc::clone(&may_go_on),
    });
    let (_, _, quota) = quotas(25)[0];
    let (limits, limiter) = (vec![by_response(quota)], limiter(NonZeroU32::MIN));
    let app = service_fn(|_: Request<Metered<Body>>| answered_early());
    let service = layer_above(true, &store, limits, &limiter, Priority::Normal).layer(app);
    let mut response = Box::pin(service.oneshot(upload_after(YEAR)));
    assert!((&mut response).now_or_never().is_none());
    may_go_on.add_permits(1);
    assert_eq!(response.await.unwrap().status(), 200);
    assert_eq!(left(&store.memory, "R", quota), quota.burst().get() - 7);
}

/// It never got to the app.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_answered_while_it_waits_for_a_slot_gets_all_back_and_is_not_charged() {
    let store = Arc::new(Memory::new(MemorySettings {
        max_buckets: NonZeroUsize::new(100).unwrap(),
    }));
    let limiter = limiter(NonZeroU32::MIN);
    let (fixed, cost, quota) = quotas(25)[0];
    let first = layer_above(true, &no_store(), Vec::new(), &limiter, Priority::Normal);
    let reading = service_fn(|request| reading_first(request, YEAR));
    let first = tokio::spawn(first.layer(reading).oneshot(upload_after(Duration::ZERO)));
    sleep(Duration::from_millis(1)).await;
    let impatient = service_fn(async |mut request: Request<Metered<Body>>| {
        let gate = request.extensions_mut().remove::<SendGate>().unwrap();
        let passed = tokio::time::timeout(Duration::from_millis(5), gate.pass()).await;
        assert!(passed.is_err());
        answered_early().await
    });
    let limits = vec![limit_of(fixed, quota, cost), by_response(quota)];
    let limited = layer_above(true, &store, limits, &limiter, Priority::Normal);
    let early = limited.layer(impatient).oneshot(upload_after(YEAR)).await;
    assert_eq!(early.unwrap().status(), 200);
    // What is charged in the background has been charged by then.
    sleep(Duration::from_millis(1)).await;
    for name in [fixed, "R"] {
        assert_eq!(left(&store, name, quota), quota.burst().get(), "{name}");
    }
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
}

/// It could ask as often as it likes, and keep the gateway busy with each body.
#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_before_its_body_has_come_is_charged() {
    let store = Arc::new(Memory::new(MemorySettings {
        max_buckets: NonZeroUsize::new(100).unwrap(),
    }));
    let limiter = limiter(NonZeroU32::MIN);
    let (name, cost, quota) = quotas(25)[0];
    let limits = vec![limit_of(name, quota, cost)];
    let reading = service_fn(|request| reading_first(request, YEAR));
    let service = layer_above(true, &store, limits, &limiter, Priority::Normal).layer(reading);
    let response = tokio::spawn(service.oneshot(upload_after(YEAR)));
    sleep(Duration::from_secs(1)).await;
    response.abort();
    let _ = response.await;
    assert_eq!(quota.burst().get() - left(&store, name, quota), cost);
}
