//! Kinds, costs and responses that count, with a real store and a clock of ours.

use std::num::{NonZeroU64, NonZeroUsize};

use futures_util::FutureExt;
use http_body::Frame;
use http_body_util::StreamBody;
use smallvec::smallvec;
use weir_limit::time::ManualClock;
use weir_limit::{Algorithm, Alignment, Claims, Mode, Transaction};
use weir_rules::{Cost, Enforcement, MeasuredCost, SpendWhen, Statuses};
use weir_store::{
    DenialCached, Leased, Leases, Memory, MemoryLeases, MemorySettings, OwedBatch, Store,
};

use super::*;
use crate::{BackgroundTasks, Cors, Origins};

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

const TOKENS: &str = "x-tokens";

/// A service under limits, all of six units, one of which comes back every ten seconds.
struct Bench {
    store: Arc<Memory>,
    clock: ManualClock,
    metrics: Arc<Metrics>,
    layer: RateLimitLayer,
}

impl Bench {
    fn new(limits: Vec<LimitUse>) -> Self {
        Self::with_store(limits, |memory| memory)
    }

    fn with_store(limits: Vec<LimitUse>, wrap: impl Fn(Arc<Memory>) -> Arc<dyn Store>) -> Self {
        Self::denying(limits, Rejection::default(), wrap)
    }

    fn denying(
        limits: Vec<LimitUse>,
        rejection: Rejection,
        wrap: impl Fn(Arc<Memory>) -> Arc<dyn Store>,
    ) -> Self {
        let max_buckets = NonZeroUsize::new(100).unwrap();
        let store = Arc::new(Memory::new(MemorySettings { max_buckets }));
        let clock = ManualClock::new(Timestamp::from_nanos(1 << 60));
        let metrics = Metrics::new();
        let policy = policy(OnDenied::Reject(rejection), limits);
        let layer = RateLimitLayer::new(wrap(Arc::clone(&store)), policy, &metrics)
            .with_clock(Arc::new(clock.clone()));
        Self {
            store,
            clock,
            metrics,
            layer,
        }
    }

    /// Sends a request that the service answers so.
    async fn send(&self, answer: Response<()>) -> http::response::Parts {
        self.send_body(Full::from("").boxed_unsync(), answer).await
    }

    async fn send_body(&self, body: Body, answer: Response<()>) -> http::response::Parts {
        let answer = Arc::new(Mutex::new(Some(answer)));
        let service = service_fn(move |request: Request<Metered<Body>>| {
            let answer = answer.lock().take().unwrap();
            async move {
                request.into_body().collect().await.unwrap();
                Ok::<_, Infallible>(answer.map(|()| Full::from("real")))
            }
        });
        let service = self.layer.layer(service);
        let request = Request::new(body);
        service.oneshot(request).await.unwrap().into_parts().0
    }

    async fn statuses<const N: usize>(&self, answers: [u16; N]) -> [u16; N] {
        let mut statuses = [0; N];
        for (status, answer) in statuses.iter_mut().zip(answers) {
            *status = self.send(status_of(answer)).await.status.as_u16();
        }
        statuses
    }

    /// The units that a limit has left.
    fn left(&self, limit: &str) -> u64 {
        let quota = Quota::new(6, 6, Duration::from_secs(60)).unwrap();
        let key = format!("{limit}:*").as_str().into();
        let look = Transaction {
            mode: Mode::Peek,
            ..Transaction::new(key, quota, NonZeroU64::MIN)
        };
        let outcome = self.store.decide(&smallvec![look], self.clock.now());
        let outcome = outcome.now_or_never().unwrap().unwrap();
        outcome.decisions[0].unwrap().remaining
    }

    fn counted(&self, metric: &str) -> bool {
        let page = self.metrics.encode().unwrap();
        page.lines().any(|line| line == metric)
    }
}

fn six(name: &str) -> LimitUse {
    limit(name, KeySource::Global, Missing::Skip)
}

fn statuses(texts: &[&str]) -> weir_rules::StatusSet {
    let parsed = texts.iter().map(|text| text.parse::<Statuses>().unwrap());
    parsed.collect()
}

fn spend_on(name: &str, texts: &[&str]) -> LimitUse {
    LimitUse {
        spend: SpendWhen::On(statuses(texts)),
        ..six(name)
    }
}

fn refund_on(name: &str, texts: &[&str]) -> LimitUse {
    LimitUse {
        spend: SpendWhen::ExceptOn(statuses(texts)),
        ..six(name)
    }
}

fn costing(name: &str, cost: MeasuredCost) -> LimitUse {
    LimitUse {
        cost: Cost::Measured(Arc::new(cost)),
        ..six(name)
    }
}

/// What costs as many units as the response says, or two.
fn postpaid(name: &str) -> LimitUse {
    let response_header = Some(http::HeaderName::from_static(TOKENS));
    costing(
        name,
        MeasuredCost {
            response_header,
            default: 2,
            ..MeasuredCost::default()
        },
    )
}

fn dry(usage: LimitUse) -> LimitUse {
    LimitUse {
        enforcement: Enforcement::NONE,
        ..usage
    }
}

fn of_mode(mode: Mode, name: &str) -> LimitUse {
    LimitUse { mode, ..six(name) }
}

fn status_of(status: u16) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}

fn with_tokens(tokens: &'static str) -> Response<()> {
    let mut response = Response::new(());
    let tokens = HeaderValue::from_static(tokens);
    response.headers_mut().insert(TOKENS, tokens);
    response
}

fn field<'r>(response: &'r http::response::Parts, name: &str) -> Option<&'r str> {
    response
        .headers
        .get(name)
        .map(|value| value.to_str().unwrap())
}

fn verdict(response: &http::response::Parts) -> (Disposition, Option<&str>) {
    let verdict: &Verdict = response.extensions.get().unwrap();
    (verdict.disposition, verdict.denied_by.as_deref())
}

#[tokio::test]
async fn only_the_named_responses_spend_and_successes_never_count() {
    let bench = Bench::new(vec![spend_on("Failed", &["401", "403"])]);
    assert_eq!(bench.statuses([200; 20]).await, [200; 20]);
    assert_eq!(bench.left("Failed"), 6);
    let tried = bench
        .statuses([401, 200, 403, 401, 200, 401, 401, 403])
        .await;
    assert_eq!(tried, [401, 200, 403, 401, 200, 401, 401, 403]);
    assert_eq!(bench.statuses([401, 200]).await, [429, 429]);
    bench.clock.advance(Duration::from_secs(10));
    assert_eq!(bench.statuses([200, 401, 200]).await, [200, 401, 429]);
    let spent = "weir_settlements_total{limit=\"Failed\",outcome=\"spent\"} 7";
    assert!(bench.counted(spent), "{}", bench.metrics.encode().unwrap());
}

#[tokio::test]
async fn the_fields_of_a_response_show_what_it_has_cost() {
    let bench = Bench::new(vec![spend_on("Failed", &["401"])]);
    let success = bench.send(status_of(200)).await;
    assert_eq!(field(&success, "ratelimit"), Some("\"Failed\";r=6;t=0"));
    let failure = bench.send(status_of(401)).await;
    assert_eq!(field(&failure, "ratelimit"), Some("\"Failed\";r=5;t=10"));
    let bench = Bench::new(vec![refund_on("Calls", &["5xx"])]);
    let success = bench.send(status_of(200)).await;
    assert_eq!(field(&success, "ratelimit"), Some("\"Calls\";r=5;t=10"));
    let failure = bench.send(status_of(502)).await;
    assert_eq!(field(&failure, "ratelimit"), Some("\"Calls\";r=5;t=10"));
}

/// What costs as many units as the response's JSON or its trailer says, or two.
fn by_response_body(name: &str) -> LimitUse {
    costing(
        name,
        MeasuredCost {
            response_json: ["/usage/in", "/usage/out"]
                .map(|text| text.parse().unwrap())
                .into(),
            response_trailer: Some(http::HeaderName::from_static(TOKENS)),
            default: 2,
            ..MeasuredCost::default()
        },
    )
}

type Frames = Vec<Frame<Bytes>>;

fn data(pieces: &[&'static str]) -> Frames {
    let pieces = pieces
        .iter()
        .map(|piece| Frame::data(Bytes::from_static(piece.as_bytes())));
    pieces.collect()
}

impl Bench {
    /// Sends a request that is answered by a body of this type in these frames.
    async fn stream(
        &self,
        content_type: &'static str,
        frames: Frames,
    ) -> Response<impl http_body::Body<Data = Bytes, Error = Infallible> + Unpin + use<>> {
        let frames = Arc::new(Mutex::new(Some(frames)));
        let service = service_fn(move |request: Request<Metered<Body>>| {
            assert!(request.headers().get("accept-encoding").is_none());
            let frames = frames
                .lock()
                .take()
                .unwrap()
                .into_iter()
                .map(Ok::<_, Infallible>);
            let body = StreamBody::new(futures_util::stream::iter(frames));
            let mut response = Response::new(body);
            let content_type = HeaderValue::from_static(content_type);
            response.headers_mut().insert("content-type", content_type);
            std::future::ready(Ok::<_, Infallible>(response))
        });
        let mut request = Request::new(Full::from("").boxed_unsync());
        let gzip = HeaderValue::from_static("gzip");
        request.headers_mut().insert("accept-encoding", gzip);
        self.layer.layer(service).oneshot(request).await.unwrap()
    }
}

#[tokio::test]
async fn the_cost_that_a_body_says_is_taken_at_its_end_and_not_before() {
    let bench = Bench::new(vec![by_response_body("Tokens")]);
    let pieces = ["{\"usage\":{\"in\":1,\"ou", "t\":2}", "}"];
    let response = bench
        .stream("application/json; charset=utf-8", data(&pieces))
        .await;
    let mut body = response.into_body();
    for piece in pieces {
        assert_eq!(bench.left("Tokens"), 6);
        assert_eq!(
            body.frame().await.unwrap().unwrap().into_data().unwrap(),
            piece
        );
    }
    assert!(!http_body::Body::is_end_stream(&body) && body.frame().await.is_none());
    assert_eq!(bench.left("Tokens"), 3);
}

#[tokio::test]
async fn of_a_stream_that_the_client_leaves_what_was_said_by_then_is_charged() {
    let bench = Bench::new(vec![by_response_body("Tokens")]);
    let events = [
        "data: {\"usage\":{\"in\":4}}\n\n",
        "data: {\"usage\":{\"out\":2}}\n\n",
    ];
    let response = bench.stream("text/event-stream", data(&events)).await;
    let mut body = response.into_body();
    body.frame().await;
    drop(body);
    assert_eq!(bench.left("Tokens"), 2);
    drop(bench.stream("text/event-stream", data(&events)).await);
    assert_eq!(
        bench.left("Tokens"),
        0,
        "the default where nothing is said yet"
    );
}

#[tokio::test]
async fn a_body_that_says_nothing_costs_the_default_whatever_it_is() {
    for (content_type, text) in [
        ("text/html", "{\"usage\":{\"in\":5}}"),
        ("application/json", "{\"usage\":{\"in\":\"5\"}}"),
        ("application/json", "{\"usage\":"),
        ("text/event-stream", "{\"usage\":{\"in\":5}}"),
    ] {
        let bench = Bench::new(vec![by_response_body("Tokens")]);
        let response = bench.stream(content_type, data(&[text])).await;
        let whole = response.into_body().collect().await.unwrap();
        assert_eq!(whole.to_bytes(), text);
        assert_eq!(bench.left("Tokens"), 4, "{content_type}: {text}");
    }
}

#[tokio::test]
async fn a_trailer_says_the_cost_where_the_json_does_not_and_is_not_shown() {
    for (text, left) in [("{}", 1), ("{\"usage\":{\"out\":3}}", 3)] {
        let bench = Bench::new(vec![by_response_body("Tokens")]);
        let mut frames = data(&[text]);
        let trailers = [(TOKENS, "5"), ("x-other", "1")];
        let trailers = trailers.map(|(name, value)| {
            (
                http::HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        frames.push(Frame::trailers(trailers.into_iter().collect()));
        let response = bench.stream("application/json", frames).await;
        let whole = response.into_body().collect().await.unwrap();
        let trailers = whole.trailers().unwrap();
        assert!(!trailers.contains_key(TOKENS) && trailers.contains_key("x-other"));
        assert_eq!(bench.left("Tokens"), left, "{text}");
    }
}

#[tokio::test]
async fn a_denial_from_memory_tells_no_state_that_others_may_have_changed() {
    let by_byte = MeasuredCost {
        request_bytes: NonZeroU64::new(1),
        ..MeasuredCost::default()
    };
    let bench = Bench::with_store(vec![costing("Bytes", by_byte)], |memory| {
        Arc::new(DenialCached::new(memory, Arc::default()))
    });
    let send =
        |bytes: &'static str| bench.send_body(Full::from(bytes).boxed_unsync(), status_of(200));
    let states = async |bytes| field(&send(bytes).await, "ratelimit").map(str::to_owned);
    assert_eq!(
        states("more than six").await.as_deref(),
        Some("\"Bytes\";r=6;t=0")
    );
    let denied = send("more than six").await;
    assert_eq!(denied.status, StatusCode::FORBIDDEN);
    assert_eq!(field(&denied, "ratelimit"), None, "no six units");
    assert_eq!(
        field(&denied, "ratelimit-policy"),
        Some("\"Bytes\";q=6;w=60")
    );
    // What is empty stays so: that is told from memory, too.
    assert_eq!(states("two").await.as_deref(), Some("\"Bytes\";r=3;t=10"));
    assert_eq!(states("two").await.as_deref(), Some("\"Bytes\";r=0;t=10"));
    assert_eq!(states("1").await.as_deref(), Some("\"Bytes\";r=0;t=10"));
    // The wait is that for the unit after the one that the client before was told.
    assert_eq!(states("1").await.as_deref(), Some("\"Bytes\";r=0;t=20"));
}

/// The first cost of a window was shown as if the window began with it.
#[tokio::test]
async fn the_first_cost_of_a_window_is_shown_with_the_end_that_the_window_has() {
    let hourly = Algorithm::FixedWindow(Alignment::Period);
    let quota = Quota::windowed(hourly, 6, Duration::from_secs(3600)).unwrap();
    let key = HashKey::random();
    let limit = Limit::new("Calls", vec![KeySource::Global], quota, Missing::Skip, key).unwrap();
    let bench = Bench::new(vec![LimitUse {
        cost: postpaid("Calls").cost,
        ..LimitUse::new(Arc::new(limit))
    }]);
    let first = bench.send(with_tokens("3")).await;
    assert_eq!(field(&first, "ratelimit"), Some("\"Calls\";r=3;t=96"));
    let second = bench.send(with_tokens("1")).await;
    assert_eq!(field(&second, "ratelimit"), Some("\"Calls\";r=2;t=96"));
}

#[tokio::test]
async fn the_named_responses_are_given_their_cost_back() {
    let bench = Bench::new(vec![refund_on("Calls", &["5xx"])]);
    assert_eq!(bench.statuses([500; 20]).await, [500; 20]);
    assert_eq!(bench.left("Calls"), 6);
    assert_eq!(bench.statuses([200; 7]).await[5..], [200, 429]);
    assert!(bench.counted("weir_settlements_total{limit=\"Calls\",outcome=\"refunded\"} 20"));
}

#[tokio::test]
async fn what_has_come_back_by_itself_is_not_given_back_as_well() {
    let bench = Bench::new(vec![refund_on("Calls", &["5xx"])]);
    let (answer, answered) = tokio::sync::oneshot::channel();
    let answered = Arc::new(Mutex::new(Some(answered)));
    let service = service_fn(move |_: Request<Metered<Body>>| {
        let answered = answered.lock().take().unwrap();
        async move { Ok::<_, Infallible>(answered.await.unwrap()) }
    });
    let slow = bench
        .layer
        .layer(service)
        .oneshot(Request::new(Full::from("").boxed_unsync()));
    let slow = tokio::spawn(slow);
    tokio::task::yield_now().await;
    assert_eq!(bench.left("Calls"), 5);
    bench.clock.advance(Duration::from_secs(10));
    assert_eq!(bench.statuses([200; 6]).await, [200; 6]);
    answer
        .send(status_of(503).map(|()| Full::from("")))
        .unwrap();
    slow.await.unwrap().unwrap();
    assert_eq!(bench.left("Calls"), 0);
}

#[tokio::test]
async fn a_response_says_its_cost_to_the_gateway_alone() {
    let bench = Bench::new(vec![postpaid("Tokens")]);
    let response = bench.send(with_tokens("3")).await;
    assert_eq!(field(&response, TOKENS), None);
    assert_eq!(field(&response, "ratelimit"), Some("\"Tokens\";r=3;t=10"));
    assert_eq!(bench.left("Tokens"), 3);
    // What says nothing costs the default.
    bench.send(with_tokens("many")).await;
    assert_eq!(bench.left("Tokens"), 1);
}

#[tokio::test]
async fn a_cost_beyond_what_is_left_empties_the_bucket_and_no_more() {
    let bench = Bench::new(vec![postpaid("Tokens")]);
    bench.send(with_tokens("2")).await;
    let response = bench.send(with_tokens("1000")).await;
    assert_eq!(field(&response, "ratelimit"), Some("\"Tokens\";r=0;t=10"));
    assert_eq!(bench.left("Tokens"), 0);
    // The default has to fit: two units, which are there after twenty seconds.
    let denied = bench.send(with_tokens("0")).await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(field(&denied, "retry-after"), Some("20"));
    bench.clock.advance(Duration::from_secs(20));
    assert_eq!(bench.send(with_tokens("0")).await.status, StatusCode::OK);
    assert_eq!(bench.left("Tokens"), 2);
}

#[tokio::test]
async fn a_cost_that_no_limit_counts_is_kept_from_clients_too() {
    let per_tenant = KeySource::Header(http::HeaderName::from_static("x-tenant"));
    let usage = LimitUse {
        limit: limit("Tokens", per_tenant, Missing::Skip).limit,
        ..postpaid("Tokens")
    };
    let response = Bench::new(vec![usage]).send(with_tokens("3")).await;
    assert_eq!(verdict(&response).0, Disposition::Unlimited);
    assert_eq!(field(&response, TOKENS), None);
}

#[tokio::test]
async fn postpaid_costs_are_not_charged_for_what_is_refunded() {
    let usage = LimitUse {
        spend: SpendWhen::ExceptOn(statuses(&["5xx"])),
        ..postpaid("Tokens")
    };
    let bench = Bench::new(vec![usage]);
    let mut failed = with_tokens("3");
    *failed.status_mut() = StatusCode::BAD_GATEWAY;
    bench.send(failed).await;
    assert_eq!(bench.left("Tokens"), 6);
    bench.send(with_tokens("3")).await;
    assert_eq!(bench.left("Tokens"), 3);
}

/// What is left of each limit once a client has left before it was answered.
async fn left_after_leaving(limits: Vec<LimitUse>) -> Vec<u64> {
    let bench = Bench::new(limits.clone());
    let service = service_fn(|_: Request<Metered<Body>>| {
        std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>()
    });
    let request = Request::new(Full::from("").boxed_unsync());
    let sent = bench.layer.layer(service).oneshot(request);
    assert!(sent.now_or_never().is_none());
    limits
        .iter()
        .map(|it| bench.left(it.limit.name()))
        .collect()
}

#[tokio::test]
async fn when_the_client_leaves_the_spend_stands() {
    let left = left_after_leaving(vec![
        six("Plain"),
        spend_on("Failed", &["4xx"]),
        refund_on("Calls", &["5xx"]),
        postpaid("Tokens"),
    ]);
    assert_eq!(left.await, [5, 6, 5, 4]);
}

#[tokio::test]
async fn a_service_that_fails_counts_as_500() {
    let bench = Bench::new(vec![
        refund_on("Calls", &["500"]),
        spend_on("Failed", &["500"]),
    ]);
    let service =
        service_fn(|_: Request<Metered<Body>>| async { Err::<Response<Full<Bytes>>, _>("broken") });
    let request = Request::new(Full::from("").boxed_unsync());
    let answer = bench.layer.layer(service).oneshot(request).await;
    assert_eq!(answer.unwrap_err(), "broken");
    assert_eq!((bench.left("Calls"), bench.left("Failed")), (6, 5));
}

fn by_body() -> LimitUse {
    costing(
        "Bytes",
        MeasuredCost {
            request_bytes: NonZeroU64::new(10),
            default: 1,
            ..MeasuredCost::default()
        },
    )
}

#[tokio::test]
async fn a_body_of_known_size_costs_its_units_at_once() {
    let bench = Bench::new(vec![by_body()]);
    for (size, status, left) in [(0, 200, 6), (10, 200, 5), (31, 200, 1), (20, 429, 1)] {
        let body = Full::from(vec![b'x'; size]).boxed_unsync();
        let response = bench.send_body(body, status_of(200)).await;
        assert_eq!(
            (response.status.as_u16(), bench.left("Bytes")),
            (status, left)
        );
    }
}

/// It was a 429 without Retry-After, after which clients that retry come back at once.
#[tokio::test]
async fn what_never_fits_is_not_asked_to_come_again() {
    let statuses = [429, 503, 400].map(|status| StatusCode::from_u16(status).unwrap());
    for (status, told) in statuses.into_iter().zip([403, 403, 400]) {
        let rejection = Rejection {
            status,
            ..Rejection::default()
        };
        let bench = Bench::denying(vec![by_body()], rejection, |memory| memory);
        let body = Full::from(vec![b'x'; 61]).boxed_unsync();
        let denied = bench.send_body(body, status_of(200)).await;
        assert_eq!(denied.status.as_u16(), told);
        assert_eq!(field(&denied, "retry-after"), None);
    }
}

#[tokio::test]
async fn a_body_of_unknown_size_costs_what_has_passed_when_it_ends() {
    let bench = Bench::new(vec![by_body()]);
    let frames = ["0123456789", "0123456789", "0"].map(|it| Ok(Frame::data(Bytes::from(it))));
    let body = StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync();
    bench.send_body(body, status_of(200)).await;
    assert_eq!(bench.left("Bytes"), 3);
}

#[tokio::test]
async fn a_request_says_its_cost_and_may_cost_nothing() {
    let usage = costing(
        "Units",
        MeasuredCost {
            request_header: Some(http::HeaderName::from_static("x-cost")),
            default: 2,
            ..MeasuredCost::default()
        },
    );
    let bench = Bench::new(vec![usage]);
    let service = service_fn(|_: Request<Metered<Full<Bytes>>>| async {
        Ok::<_, Infallible>(Response::new(Full::from("real")))
    });
    let service = bench.layer.layer(service);
    for (cost, status, left) in [
        (Some("3"), 200, 3),
        (None, 200, 1),
        (Some("2"), 429, 1),
        (Some("0"), 200, 1),
        (Some("7"), 403, 1),
        (Some("1"), 200, 0),
        (Some("0"), 200, 0),
    ] {
        let mut request = Request::new(Full::from(""));
        if let Some(cost) = cost {
            let cost = HeaderValue::from_static(cost);
            request.headers_mut().insert("x-cost", cost);
        }
        let response = service.clone().oneshot(request).await.unwrap();
        let outcome = (response.status().as_u16(), bench.left("Units"));
        assert_eq!(outcome, (status, left), "{cost:?}");
    }
}

#[tokio::test]
async fn kinds_of_limits_check_and_spend_as_they_say() {
    let spending = Bench::new(vec![of_mode(Mode::SpendOnly, "A")]);
    assert_eq!(spending.statuses([200; 9]).await, [200; 9]);
    assert_eq!(spending.left("A"), 0);
    let checking = Bench::new(vec![of_mode(Mode::CheckOnly, "A")]);
    assert_eq!(checking.statuses([200; 9]).await, [200; 9]);
    assert_eq!(checking.left("A"), 6);
    let off = Bench::new(vec![of_mode(Mode::AllowOnly, "A")]);
    let passed = off.send(status_of(200)).await;
    assert_eq!(verdict(&passed).0, Disposition::Unlimited);
    assert_eq!(field(&passed, "ratelimit-policy"), None);
}

#[tokio::test]
async fn a_dry_run_passes_what_it_would_deny_and_says_so_to_the_operator_alone() {
    let bench = Bench::new(vec![dry(six("New"))]);
    assert_eq!(bench.statuses([200; 6]).await, [200; 6]);
    let passed = bench.send(status_of(200)).await;
    assert_eq!(verdict(&passed), (Disposition::WouldDeny, Some("New")));
    for telling in ["ratelimit", "ratelimit-policy", "retry-after"] {
        assert_eq!(field(&passed, telling), None);
    }
    assert!(bench.counted("weir_decisions_total{limit=\"New\",decision=\"allowed\"} 6"));
    assert!(bench.counted("weir_decisions_total{limit=\"New\",decision=\"would_deny\"} 1"));
}

fn costly(cost: u64, usage: LimitUse) -> LimitUse {
    LimitUse {
        cost: Cost::Fixed(NonZeroU64::new(cost).unwrap()),
        ..usage
    }
}

#[tokio::test]
async fn a_dry_run_does_not_get_in_the_way_of_other_limits() {
    let bench = Bench::new(vec![six("Old"), costly(4, dry(six("New")))]);
    let all = bench.statuses([200; 7]).await;
    assert_eq!(all, [200, 200, 200, 200, 200, 200, 429]);
    // It took what fitted, and then nothing.
    assert_eq!((bench.left("Old"), bench.left("New")), (0, 2));
}

#[tokio::test]
async fn what_an_enforced_limit_denies_takes_nothing_in_a_dry_run() {
    let bench = Bench::new(vec![costly(3, six("Old")), dry(six("New"))]);
    assert_eq!(bench.statuses([200; 5]).await, [200, 200, 429, 429, 429]);
    assert_eq!((bench.left("Old"), bench.left("New")), (0, 4));
}

#[tokio::test]
async fn a_dry_run_counts_responses_as_well() {
    let bench = Bench::new(vec![
        dry(spend_on("Failed", &["401"])),
        dry(postpaid("Tokens")),
    ]);
    assert_eq!(bench.statuses([401; 9]).await, [401; 9]);
    assert_eq!((bench.left("Failed"), bench.left("Tokens")), (0, 0));
    let passed = bench.send(status_of(200)).await;
    assert_eq!(verdict(&passed), (Disposition::WouldDeny, Some("Tokens")));
}

/// What was left was taken, so that the next request was said to be denied, and was not when the
/// limit was enforced.
#[tokio::test]
async fn a_dry_run_charges_nothing_for_what_it_would_have_denied() {
    for (tokens, left, next) in [("5", 1, "WouldDeny"), ("4", 2, "Allowed")] {
        let bench = Bench::new(vec![dry(postpaid("Tokens"))]);
        bench.send(with_tokens(tokens)).await;
        let second = bench.send(with_tokens("1")).await;
        assert_eq!(format!("{:?}", verdict(&second).0), next);
        let left = if next == "Allowed" { left - 1 } else { left };
        assert_eq!(bench.left("Tokens"), left);
    }
    // What is let through empties the bucket, as if the limit were enforced.
    let bench = Bench::new(vec![dry(postpaid("Tokens"))]);
    for tokens in ["3", "4"] {
        bench.send(with_tokens(tokens)).await;
    }
    assert_eq!(bench.left("Tokens"), 0);
}

#[tokio::test]
async fn a_cost_that_is_known_late_and_does_not_fit_takes_nothing_from_a_limit_that_only_spends() {
    let spend_only = LimitUse {
        mode: Mode::SpendOnly,
        ..postpaid("Tokens")
    };
    let bench = Bench::new(vec![spend_only]);
    for (tokens, shown) in [
        ("4", "r=2"),
        ("3", "r=2"),
        ("99", "r=2"),
        ("2", "r=0"),
        ("1", "r=0"),
    ] {
        let passed = bench.send(with_tokens(tokens)).await;
        assert_eq!(passed.status, StatusCode::OK);
        let state = field(&passed, "ratelimit").unwrap();
        assert!(state.contains(shown), "{tokens}: {state}");
        let left = shown.trim_start_matches("r=").parse::<u64>().unwrap();
        assert_eq!(bench.left("Tokens"), left, "{tokens}");
    }
}

#[tokio::test]
async fn clients_see_no_dry_run_whatever_its_kind_and_the_cost() {
    let by_byte = MeasuredCost {
        request_bytes: NonZeroU64::new(1),
        ..MeasuredCost::default()
    };
    let spend_only = of_mode(Mode::SpendOnly, "Spends");
    for usage in [costing("Bytes", by_byte), spend_only] {
        let shown = Bench::new(vec![usage.clone()]).send(status_of(200)).await;
        assert!(field(&shown, "ratelimit").is_some());
        let unseen = Bench::new(vec![dry(usage)]).send(status_of(200)).await;
        for telling in ["ratelimit", "ratelimit-policy"] {
            assert_eq!(field(&unseen, telling), None);
        }
    }
}

/// The window that a request came in has ended when its response says the cost.
#[tokio::test]
async fn what_a_slow_response_has_cost_is_shown_with_the_window_that_it_is_taken_from() {
    let hourly = Algorithm::FixedWindow(Alignment::Period);
    let quota = Quota::windowed(hourly, 6, Duration::from_secs(3600)).unwrap();
    let key = HashKey::random();
    let limit = Limit::new("Calls", vec![KeySource::Global], quota, Missing::Skip, key).unwrap();
    let bench = Bench::new(vec![LimitUse {
        cost: postpaid("Calls").cost,
        ..LimitUse::new(Arc::new(limit))
    }]);
    bench.send(with_tokens("3")).await;
    let clock = bench.clock.clone();
    let service = service_fn(move |_: Request<Metered<Body>>| {
        clock.advance(Duration::from_secs(3600));
        async { Ok::<_, Infallible>(with_tokens("2").map(|()| Full::from("real"))) }
    });
    let request = Request::new(Full::from("").boxed_unsync());
    let late = bench.layer.layer(service).oneshot(request).await.unwrap();
    let state = field(&late.into_parts().0, "ratelimit").unwrap().to_owned();
    assert!(state.starts_with("\"Calls\";r=4;t="), "{state}");
}

#[tokio::test]
async fn a_dry_run_wants_no_value_and_no_store() {
    let per_tenant = KeySource::Header(http::HeaderName::from_static("x-tenant"));
    let usage = dry(limit("PerTenant", per_tenant, Missing::Deny));
    let passed = Bench::new(vec![usage]).send(status_of(200)).await;
    assert_eq!(
        verdict(&passed),
        (Disposition::WouldDeny, Some("PerTenant"))
    );
    let policy = policy(
        OnDenied::Reject(Rejection::default()),
        vec![dry(six("New"))],
    );
    let passed = send(policy, Err(StoreError::OutOfReach)).await;
    assert_eq!(
        (passed.forwarded, passed.verdict().0),
        (1, Disposition::FailedOpen)
    );
}

#[tokio::test]
async fn what_the_store_fails_to_settle_is_counted() {
    let metrics = Metrics::new();
    let store = Arc::new(Scripted::default());
    let answers = [outcome([allowed(6)]), Err(StoreError::Deadline)];
    store.answers.lock().extend(answers);
    let limits = vec![spend_on("Failed", &["401"])];
    let policy = policy(OnDenied::Reject(Rejection::default()), limits);
    let layer = RateLimitLayer::new(Arc::clone(&store) as _, policy, &metrics);
    let service = service_fn(|_: Request<Metered<Full<Bytes>>>| async {
        Ok::<_, Infallible>(status_of(401).map(|()| Full::from("")))
    });
    let sent = layer.layer(service).oneshot(Request::new(Full::from("")));
    assert_eq!(sent.await.unwrap().status(), StatusCode::UNAUTHORIZED);
    let modes: Vec<Mode> = store
        .asked
        .lock()
        .iter()
        .map(|batch| batch[0].mode)
        .collect();
    assert_eq!(modes, [Mode::CheckOnly, Mode::SpendOnly]);
    // The request was let through, so the second is not given back when its answer is late.
    assert_eq!(store.admissions.load(Ordering::Relaxed), 1);
    let page = metrics.encode().unwrap();
    let failed = "weir_settlements_total{limit=\"Failed\",outcome=\"failed\"} 1";
    assert!(page.contains(failed), "{page}");
}

/// A store that answers decisions at once, and takes its time to take costs later.
pub(super) struct Slow {
    pub(super) memory: Memory,
    pub(super) may_go_on: Arc<tokio::sync::Semaphore>,
}

impl Store for Slow {
    fn decide(&self, batch: &Batch, now: Timestamp) -> StoreFuture<Outcome> {
        let answer = self.memory.decide(&batch.clone(), now);
        if batch.iter().any(|transaction| transaction.mode.checks()) {
            return answer;
        }
        let may_go_on = Arc::clone(&self.may_go_on);
        StoreFuture::waiting(async move {
            may_go_on.acquire().await.unwrap().forget();
            answer.await
        })
    }

    fn refund(&self, owed: OwedBatch, now: Timestamp) -> StoreFuture<()> {
        self.memory.refund(owed, now)
    }

    fn reset(&self, keys: BucketKeys) -> StoreFuture<()> {
        self.memory.reset(keys)
    }
}

#[tokio::test]
async fn a_response_waits_for_what_it_spends_and_so_does_a_drain_when_the_client_is_gone() {
    let max_buckets = NonZeroUsize::new(100).unwrap();
    let may_go_on = Arc::new(tokio::sync::Semaphore::new(0));
    let store = Slow {
        memory: Memory::new(MemorySettings { max_buckets }),
        may_go_on: Arc::clone(&may_go_on),
    };
    let limits = vec![spend_on("Failed", &["401"])];
    let policy = policy(OnDenied::Reject(Rejection::default()), limits);
    let tasks = BackgroundTasks::default();
    let layer =
        RateLimitLayer::new(Arc::new(store), policy, &Metrics::new()).with_tasks(tasks.clone());
    let service = service_fn(|_: Request<Metered<Full<Bytes>>>| async {
        Ok::<_, Infallible>(status_of(401).map(|()| Full::from("")))
    });
    let send = || {
        let sent = layer.layer(service).oneshot(Request::new(Full::from("")));
        Box::pin(sent)
    };
    let mut response = send();
    assert!((&mut response).now_or_never().is_none());
    may_go_on.add_permits(1);
    assert_eq!(response.await.unwrap().status(), StatusCode::UNAUTHORIZED);

    let mut response = send();
    assert!((&mut response).now_or_never().is_none());
    drop(response);
    assert_eq!(tasks.settled().now_or_never(), None);
    may_go_on.add_permits(1);
    tasks.settled().await;
}

/// It took nothing, so giving it back would let through what others have used up.
#[tokio::test]
async fn what_was_not_taken_from_an_empty_bucket_is_not_given_back() {
    let spend_only = LimitUse {
        mode: Mode::SpendOnly,
        ..refund_on("Calls", &["5xx"])
    };
    for usage in [spend_only, dry(refund_on("Calls", &["5xx"]))] {
        let bench = Bench::new(vec![usage]);
        assert_eq!(bench.statuses([200; 6]).await, [200; 6]);
        assert_eq!(bench.left("Calls"), 0);
        assert_eq!(bench.statuses([500; 3]).await, [500; 3]);
        assert_eq!(bench.left("Calls"), 0);
        // What was taken is.
        bench.clock.advance(Duration::from_secs(20));
        assert_eq!(bench.statuses([500, 500]).await, [500; 2]);
        assert_eq!(bench.left("Calls"), 2);
    }
}

/// A limit with so many places, of which one is taken by a request that is not answered.
fn places(most: u64) -> LimitUse {
    let quota = Quota::in_flight(most).unwrap();
    let key = HashKey::random();
    let limit = Limit::new("AtOnce", vec![KeySource::Global], quota, Missing::Skip, key);
    LimitUse::new(Arc::new(limit.unwrap()))
}

#[tokio::test]
async fn a_request_without_a_place_gives_back_what_it_took_and_no_more() {
    let spend_only = LimitUse {
        mode: Mode::SpendOnly,
        ..six("Counts")
    };
    let bench = Bench::new(vec![six("Calls"), costly(6, spend_only), places(1)]);
    let service = service_fn(|_: Request<Metered<Body>>| {
        std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>()
    });
    let request = Request::new(Full::from("").boxed_unsync());
    let mut held = Box::pin(bench.layer.layer(service).oneshot(request));
    assert!((&mut held).now_or_never().is_none());
    assert_eq!((bench.left("Calls"), bench.left("Counts")), (5, 0));
    assert_eq!(bench.statuses([200; 3]).await, [429; 3]);
    assert_eq!((bench.left("Calls"), bench.left("Counts")), (5, 0));
}

/// Leases whose answers take their time.
struct SlowLeases {
    memory: MemoryLeases,
    may_go_on: Arc<tokio::sync::Semaphore>,
}

impl Leases for SlowLeases {
    fn acquire(&self, claims: Claims, now: Timestamp) -> StoreFuture<Leased> {
        let answer = self.memory.acquire(claims, now);
        let may_go_on = Arc::clone(&self.may_go_on);
        StoreFuture::waiting(async move {
            may_go_on.acquire().await.unwrap().forget();
            answer.await
        })
    }

    fn delete(&self, keys: BucketKeys) -> StoreFuture<()> {
        self.memory.delete(keys)
    }

    fn end(&self) -> StoreFuture<()> {
        self.memory.end()
    }
}

/// All other limits charged it, and it was never forwarded.
#[tokio::test]
async fn a_client_that_leaves_before_it_has_its_place_is_charged_by_no_limit() {
    let bench = Bench::new(vec![six("Calls"), places(1)]);
    let may_go_on = Arc::new(tokio::sync::Semaphore::new(0));
    let leases = SlowLeases {
        memory: MemoryLeases::default(),
        may_go_on: Arc::clone(&may_go_on),
    };
    let layer = bench.layer.clone().with_leases(Arc::new(leases));
    let service = service_fn(|_: Request<Metered<Body>>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("")))
    });
    let send = || {
        let request = Request::new(Full::from("").boxed_unsync());
        Box::pin(layer.layer(service).oneshot(request))
    };
    let mut leaves = send();
    assert!((&mut leaves).now_or_never().is_none());
    assert_eq!(bench.left("Calls"), 5);
    drop(leaves);
    assert_eq!(bench.left("Calls"), 6);

    let mut stays = send();
    assert!((&mut stays).now_or_never().is_none());
    may_go_on.add_permits(1);
    assert_eq!(stays.await.unwrap().status(), StatusCode::OK);
    assert_eq!(bench.left("Calls"), 5);
}

/// The place was free when the response had been sent, so a client that asked again at once was denied
/// now and then.
#[tokio::test]
async fn who_has_all_of_a_response_is_not_denied_because_of_it() {
    for text in ["", "whole"] {
        let bench = Bench::new(vec![places(1)]);
        let service = service_fn(move |_: Request<Metered<Body>>| async move {
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(text)))
        });
        let send = async || {
            let request = Request::new(Full::from("").boxed_unsync());
            bench.layer.layer(service).oneshot(request).await.unwrap()
        };
        let mut first = send().await.into_body();
        if !text.is_empty() {
            assert_eq!(send().await.status(), StatusCode::TOO_MANY_REQUESTS);
            assert!(first.frame().await.is_some());
        }
        assert_eq!(send().await.status(), StatusCode::OK, "{text:?}");
        drop(first);
    }
}

/// What a late answer took is given back to those who were denied without it. A dry run denies
/// nobody, and what a response costs is owed by a request that was let through.
#[tokio::test]
async fn only_who_may_be_denied_gets_back_what_a_late_answer_takes() {
    let counts = || LimitUse {
        mode: Mode::SpendOnly,
        ..six("Counts")
    };
    let with = |limits| policy(OnDenied::Reject(Rejection::default()), limits);
    for (limits, admissions) in [
        (vec![six("A")], 1),
        (vec![dry(six("A")), six("B")], 1),
        (vec![dry(six("A"))], 0),
        (vec![counts()], 0),
    ] {
        let late = || Err(StoreError::Deadline);
        let answered = send(with(limits), late()).await;
        assert_eq!(answered.admissions, admissions);
        assert_eq!(answered.forwarded, 1 - admissions);
    }
}

/// It is asked beforehand what the request that takes a place may do.
#[tokio::test]
async fn an_uncounted_preflight_asks_for_no_place_and_takes_none() {
    let cors = Cors {
        origins: Origins::Any,
        credentials: false,
        counts_preflights: false,
        exposed: Cors::exposed(HeaderForms::default()).parse().unwrap(),
        preflights: None,
    };
    let policy = RoutePolicy {
        hook: Some(Arc::new(cors)),
        ..policy(OnDenied::default(), vec![places(1)])
    };
    let store = Arc::new(Memory::new(MemorySettings::default()));
    let layer = RateLimitLayer::new(store, policy, &Metrics::new());
    let pending = service_fn(|_: Request<Metered<Full<Bytes>>>| {
        std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>()
    });
    let send = |request: http::request::Builder| {
        let request = request.body(Full::from("")).unwrap();
        Box::pin(layer.layer(pending).oneshot(request))
    };
    let preflight = || {
        let request = Request::options("/").header("origin", "https://app.example.com");
        send(request.header("access-control-request-method", "POST"))
    };
    let (mut first, mut held) = (preflight(), send(Request::post("/")));
    let (mut second, mut denied) = (preflight(), send(Request::post("/")));
    for forwarded in [&mut first, &mut held, &mut second] {
        assert!(forwarded.now_or_never().is_none());
    }
    let denied = (&mut denied).now_or_never().unwrap().unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
}
