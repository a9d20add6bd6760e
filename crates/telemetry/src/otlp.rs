//! Traces and metrics by OTLP, the protocol of OpenTelemetry.
//!
//! All that spans say is known when a request is over, as it is what the access log shows. So they
//! are made then, in one go; only the ids are made when it begins, because the upstream gets them.
//! Spans wait in a queue for a thread that sends them in batches. Where the queue is full or the
//! collector does not take a batch, spans are dropped and counted; no request waits.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, Version};
use opentelemetry::metrics::{Counter, Histogram, MeterProvider};
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId,
};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_http::HttpClient;
use opentelemetry_otlp::{
    ExporterBuildError, MetricExporter, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, IdGenerator, RandomIdGenerator, SpanData, SpanEvents,
    SpanLinks, SpanProcessor,
};

use super::access_log::{FieldVisitor, RequestFinished};
use super::events::LastWarning;
use super::log_field::Field;

/// The target of these lines, as filters of the log name it.
const TARGET: &str = "weir::telemetry::otlp";

/// Upper bound on spans that wait.
const QUEUE: usize = 8192;

/// The most spans of a batch.
const BATCH: usize = 512;

/// Upper bound on the wait of a span for others.
const BATCH_EVERY: Duration = Duration::from_secs(1);

/// Bounds the wait for the last spans when the process ends.
const LAST_WITHIN: Duration = Duration::from_secs(2);

/// The boundaries of the semantic conventions for durations in seconds.
const SECONDS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
];

/// The destination and the rate of telemetry.
pub struct TracerSettings {
    /// The URL of the collector, without the path of a signal.
    pub endpoint: String,
    /// Headers of each request to it.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Sampled traces of a million that begin here.
    pub sample: u32,
    /// The name of the service in traces and metrics.
    pub service_name: String,
    /// Interval of metrics.
    pub interval: Duration,
}

/// Traces requests, and records their metrics.
pub struct Tracer {
    processor: BatchSpanProcessor,
    queue: Arc<Queue>,
    sample: u32,
    scope: InstrumentationScope,
    ids: RandomIdGenerator,
    propagator: TraceContextPropagator,
    meters: SdkMeterProvider,
    duration: Histogram<f64>,
    decisions: Counter<u64>,
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer").finish_non_exhaustive()
    }
}

/// The spans that wait, and those that were dropped.
#[derive(Debug, Default)]
struct Queue {
    waiting: AtomicUsize,
    dropped: AtomicU64,
    warned: LastWarning,
}

impl Tracer {
    /// Sends by this client, from threads of its own.
    ///
    /// # Errors
    /// When the endpoint is not a URL.
    pub fn start(
        settings: TracerSettings,
        client: Arc<dyn HttpClient>,
    ) -> Result<Self, ExporterBuildError> {
        let headers = settings
            .headers
            .iter()
            .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())));
        let headers = headers.collect::<std::collections::HashMap<_, _>>();
        let endpoint = settings.endpoint.trim_end_matches('/');
        let exporter = SpanExporter::builder()
            .with_http()
            .with_endpoint(format!("{endpoint}/v1/traces"))
            .with_headers(headers.clone())
            .with_shared_http_client(Arc::clone(&client))
            .with_retry_policy(RetryPolicy::disabled())
            .build()?;
        let queue = Arc::<Queue>::default();
        let exporter = CountingExporter {
            exporter,
            queue: Arc::clone(&queue),
        };
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE)
            .with_max_export_batch_size(BATCH)
            .with_scheduled_delay(BATCH_EVERY)
            .build();
        let mut processor = BatchSpanProcessor::builder(exporter)
            .with_batch_config(batches)
            .build();
        let resource = Resource::builder()
            .with_service_name(settings.service_name)
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        processor.set_resource(&resource);
        let exporter = MetricExporter::builder()
            .with_http()
            .with_endpoint(format!("{endpoint}/v1/metrics"))
            .with_headers(headers)
            .with_shared_http_client(client)
            .with_retry_policy(RetryPolicy::disabled())
            .build()?;
        let reader = PeriodicReader::builder(exporter).with_interval(settings.interval);
        let meters = SdkMeterProvider::builder()
            .with_resource(resource)
            .with_reader(reader.build())
            .build();
        let meter = meters.meter("weir");
        Ok(Self {
            processor,
            queue,
            sample: settings.sample,
            scope: InstrumentationScope::builder("weir").build(),
            ids: RandomIdGenerator::default(),
            propagator: TraceContextPropagator::new(),
            duration: meter
                .f64_histogram("http.server.request.duration")
                .with_unit("s")
                .with_description("Duration of HTTP server requests.")
                .with_boundaries(SECONDS.to_vec())
                .build(),
            decisions: meter
                .u64_counter("weir.decisions")
                .with_unit("{request}")
                .with_description("What was decided about requests.")
                .build(),
            meters,
        })
    }

    /// A closure that returns the number of dropped spans.
    pub fn dropped(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let queue = Arc::clone(&self.queue);
        move || queue.dropped.load(Relaxed)
    }

    /// Sends what waits, if the collector takes it in time.
    pub fn end(&self) {
        for ended in [
            self.processor.shutdown_with_timeout(LAST_WITHIN),
            self.meters.shutdown_with_timeout(LAST_WITHIN),
        ] {
            if let Err(error) = ended {
                tracing::debug!(target: TARGET, %error, "the last telemetry is not sent");
            }
        }
    }

    /// Begins the trace of a request, or continues that of the client. Only a trusted client decides
    /// whether the trace is sampled: others could make the gateway send all of theirs.
    pub fn begin(self: &Arc<Self>, headers: &HeaderMap, is_trusted: bool) -> ActiveTrace {
        let extractor = &Extracted(headers);
        let context = self
            .propagator
            .extract_with_context(&Context::new(), extractor);
        let parent = context.span().span_context().clone();
        let trace = match parent.is_valid() {
            true => parent.trace_id(),
            false => self.ids.new_trace_id(),
        };
        let is_sampled = match parent.is_valid() && is_trusted {
            true => parent.is_sampled(),
            false => is_in_sample(trace, self.sample),
        };
        ActiveTrace {
            tracer: Arc::clone(self),
            server: self.ids.new_span_id(),
            upstream: self.ids.new_span_id(),
            flags: TraceFlags::default().with_sampled(is_sampled),
            trace,
            parent,
            began: SystemTime::now(),
        }
    }

    fn record(&self, request: &RequestFinished<'_>) {
        let status = i64::from(request.counted.status.as_u16());
        let method = semantic_method(request);
        let attributes = [
            KeyValue::new("http.request.method", method),
            KeyValue::new("http.response.status_code", status),
            KeyValue::new("http.route", request.counted.route.name().to_owned()),
            KeyValue::new("url.scheme", request.logged.scheme.unwrap_or("http")),
        ];
        let seconds = request.took.as_secs_f64();
        self.duration.record(seconds, &attributes);
        let mut attributes = vec![
            KeyValue::new("http.route", request.counted.route.name().to_owned()),
            KeyValue::new("weir.decision", request.counted.decision.as_str()),
        ];
        let limit = request
            .denied_by()
            .map(|limit| KeyValue::new("weir.limit", limit.to_owned()));
        attributes.extend(limit);
        self.decisions.add(1, &attributes);
    }

    fn send(&self, span: SpanData) {
        let queue = &self.queue;
        if queue.waiting.fetch_add(1, Relaxed) >= QUEUE {
            queue.waiting.fetch_sub(1, Relaxed);
            queue.dropped.fetch_add(1, Relaxed);
            return;
        }
        self.processor.on_end(span);
    }
}

/// Whether a trace is one of so many in a million. The ids of others' traces may have their
/// randomness in the last 7 bytes alone (W3C Trace Context Level 2).
fn is_in_sample(trace: TraceId, sample: u32) -> bool {
    const MILLION: u128 = 1_000_000;
    let random = u128::from_be_bytes(trace.to_bytes()) & ((1 << 56) - 1);
    random * MILLION < u128::from(sample) << 56
}

/// A request's place in its trace.
pub struct ActiveTrace {
    tracer: Arc<Tracer>,
    trace: TraceId,
    /// The client's span; not valid if there is none.
    parent: SpanContext,
    server: SpanId,
    upstream: SpanId,
    flags: TraceFlags,
    began: SystemTime,
}

impl fmt::Debug for ActiveTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActiveTrace")
            .field("trace", &self.trace)
            .finish_non_exhaustive()
    }
}

impl ActiveTrace {
    /// Adds the headers by which the upstream continues the trace.
    pub fn inject(&self, headers: &mut HeaderMap) {
        let context = Context::new().with_remote_span_context(self.context(self.upstream));
        let propagator = &self.tracer.propagator;
        propagator.inject_context(&context, &mut Injected(headers));
    }

    fn context(&self, span: SpanId) -> SpanContext {
        let state = self.parent.trace_state().clone();
        SpanContext::new(self.trace, span, self.flags, false, state)
    }

    /// Records a request that is over.
    pub fn finish(&self, request: &RequestFinished<'_>) {
        self.tracer.record(request);
        if !self.flags.is_sampled() {
            return;
        }
        let end = self.began + request.took;
        let asked = request.verdict(|verdict| verdict.store);
        let store = asked.filter(|took| !took.is_zero());
        let delay = request.verdict(|verdict| verdict.delay);
        let delay = delay.unwrap_or_default();
        let decided = self.began + store.unwrap_or_default() + delay;
        let mut server = self.span(SpanKind::Server, self.server, (self.began, end));
        server.parent_span_id = self.parent.span_id();
        server.parent_span_is_remote = self.parent.is_valid();
        server.name = server_name(request);
        server.attributes = server_attributes(request);
        server.status = server_status(request);
        self.tracer.send(server);
        // A request without a decision was not asked about.
        if asked.is_some() {
            let id = self.tracer.ids.new_span_id();
            let mut decide = self.span(SpanKind::Internal, id, (self.began, decided));
            decide.name = "decide".into();
            decide.attributes = decision_attributes(request);
            self.tracer.send(decide);
            if let Some(store) = store {
                let times = (self.began, self.began + store);
                let store = self.tracer.ids.new_span_id();
                let mut store = self.span(SpanKind::Client, store, times);
                store.parent_span_id = id;
                store.name = "store".into();
                store.attributes = vec![KeyValue::new("db.system.name", "redis")];
                self.tracer.send(store);
            }
        }
        if let Some(upstream) = self.upstream_span(request, decided, end) {
            self.tracer.send(upstream);
        }
    }

    /// The span of the upstream, if the request was forwarded.
    fn upstream_span(
        &self,
        request: &RequestFinished<'_>,
        decided: SystemTime,
        end: SystemTime,
    ) -> Option<SpanData> {
        let upstream = request.upstream();
        if upstream.is_none() && request.logged.upstream_error.is_none() {
            return None;
        }
        let since = request.counted.since;
        let begun = upstream.map(|upstream| upstream.arrived.saturating_duration_since(since));
        let begun = begun.map_or(decided, |begun| self.began + begun);
        let mut span = self.span(SpanKind::Client, self.upstream, (begun, end));
        let method = semantic_method(request);
        span.name = method.into();
        span.attributes
            .push(KeyValue::new("http.request.method", method));
        if let Some(upstream) = upstream {
            let (host, port) = upstream
                .server
                .rsplit_once(':')
                .unwrap_or((&upstream.server, ""));
            span.attributes
                .push(KeyValue::new("server.address", host.to_owned()));
            let port = port
                .parse()
                .ok()
                .map(|port: i64| KeyValue::new("server.port", port));
            span.attributes.extend(port);
            let status = upstream.status;
            let code = i64::from(status.as_u16());
            span.attributes
                .push(KeyValue::new("http.response.status_code", code));
            // To a client, an error of the server's or of its own is an error.
            if status.is_client_error() || status.is_server_error() {
                let kind = status.as_str().to_owned();
                span.attributes.push(KeyValue::new("error.type", kind));
                span.status = Status::error("");
            }
        }
        if let Some(error) = request.logged.upstream_error {
            span.attributes.push(KeyValue::new("error.type", error));
            span.status = Status::error(error);
        }
        Some(span)
    }

    /// A span below that of the request, without a name.
    fn span(&self, kind: SpanKind, id: SpanId, times: (SystemTime, SystemTime)) -> SpanData {
        SpanData {
            span_context: self.context(id),
            parent_span_id: self.server,
            parent_span_is_remote: false,
            span_kind: kind,
            name: Cow::Borrowed(""),
            start_time: times.0,
            end_time: times.1,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.tracer.scope.clone(),
        }
    }
}

/// The method, or `_OTHER`: clients may invent any number of them.
fn semantic_method(request: &RequestFinished<'_>) -> &'static str {
    const KNOWN: [&str; 9] = [
        "CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE",
    ];
    let mut known = KNOWN.into_iter();
    known
        .find(|known| request.logged.method == *known)
        .unwrap_or("_OTHER")
}

fn server_name(request: &RequestFinished<'_>) -> Cow<'static, str> {
    let method = match semantic_method(request) {
        "_OTHER" => "HTTP",
        method => method,
    };
    format!("{method} {}", request.counted.route.name()).into()
}

fn server_status(request: &RequestFinished<'_>) -> Status {
    match request.counted.status.is_server_error() {
        true => Status::error(request.logged.upstream_error.unwrap_or_default()),
        false => Status::Unset,
    }
}

/// By the semantic conventions of HTTP, and what was decided.
fn server_attributes(request: &RequestFinished<'_>) -> Vec<KeyValue> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let header = |value: &Option<HeaderValue>| Some(text(value.as_ref()?.as_bytes()));
    let status = request.counted.status;
    let version = match request.logged.version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        Version::HTTP_3 => "3",
        _ => "1.1",
    };
    let method = semantic_method(request);
    let mut attributes = vec![
        KeyValue::new("http.request.method", method),
        KeyValue::new("url.path", request.logged.uri.path().to_owned()),
        KeyValue::new("url.scheme", request.logged.scheme.unwrap_or("http")),
        KeyValue::new("http.route", request.counted.route.name().to_owned()),
        KeyValue::new("network.protocol.version", version),
        KeyValue::new("http.response.status_code", i64::from(status.as_u16())),
        KeyValue::new("http.response.body.size", as_i64(request.sent())),
    ];
    let mut add = |name: &'static str, value: Option<String>| {
        attributes.extend(value.map(|value| KeyValue::new(name, value)));
    };
    let original = (method == "_OTHER").then(|| request.logged.method.to_string());
    add("http.request.method_original", original);
    add("url.query", request.logged.query().map(str::to_owned));
    add(
        "client.address",
        request.logged.client.map(|client| client.to_string()),
    );
    add("server.address", request.logged.asked_host().map(text));
    add("user_agent.original", header(&request.logged.user_agent));
    add("weir.request_id", header(&request.logged.request_id));
    let error = status.is_server_error().then(|| {
        let error = request.logged.upstream_error.map(str::to_owned);
        error.unwrap_or_else(|| status.as_str().to_owned())
    });
    add("error.type", error);
    attributes.extend(decision_attributes(request));
    attributes
}

/// The decision, by the names of the access log.
fn decision_attributes(request: &RequestFinished<'_>) -> Vec<KeyValue> {
    let mut attributes = DecisionAttributes(Vec::new());
    request.visit(&mut attributes);
    attributes.0
}

struct DecisionAttributes(Vec<KeyValue>);

impl DecisionAttributes {
    fn add<V: Into<opentelemetry::Value>>(
        &mut self,
        field: &'static Field,
        value: impl FnOnce() -> V,
    ) {
        if let Some(attribute) = field.attribute {
            self.0.push(KeyValue::new(attribute, value()));
        }
    }
}

impl FieldVisitor for DecisionAttributes {
    fn text(&mut self, field: &'static Field, value: &str) {
        self.add(field, || value.to_owned());
    }

    fn shown(&mut self, field: &'static Field, value: &dyn fmt::Display) {
        self.add(field, || value.to_string());
    }

    fn integer(&mut self, field: &'static Field, value: u64) {
        self.add(field, || as_i64(value));
    }
}

fn as_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Headers as OpenTelemetry reads them.
struct Extracted<'a>(&'a HeaderMap);

impl Extractor for Extracted<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

/// Headers as OpenTelemetry writes them.
struct Injected<'a>(&'a mut HeaderMap);

impl Injector for Injected<'_> {
    fn set(&mut self, key: &str, value: String) {
        let name = HeaderName::from_bytes(key.as_bytes());
        let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) else {
            return;
        };
        match value.is_empty() {
            true => self.0.remove(name),
            false => self.0.insert(name, value),
        };
    }
}

#[derive(Debug)]
struct CountingExporter {
    exporter: SpanExporter,
    queue: Arc<Queue>,
}

impl opentelemetry_sdk::trace::SpanExporter for CountingExporter {
    fn export(&self, batch: Vec<SpanData>) -> impl Future<Output = OTelSdkResult> + Send {
        let spans = batch.len();
        self.queue.waiting.fetch_sub(spans, Relaxed);
        let exported = self.exporter.export(batch);
        async move {
            let exported = exported.await;
            if let Err(error) = &exported {
                self.queue.dropped.fetch_add(spans as u64, Relaxed);
                if self.queue.warned.is_due() {
                    tracing::warn!(
                        target: TARGET,
                        %error,
                        "traces are not taken; told once a minute at most"
                    );
                }
            }
            exported
        }
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_traces_is_sampled_by_their_ids() {
        let trace = |last: u64| TraceId::from_bytes((u128::from(last) | 1 << 100).to_be_bytes());
        let top = (1_u64 << 56) - 1;
        assert!(is_in_sample(trace(top), 1_000_000));
        assert!(!is_in_sample(trace(0), 0));
        for (share, sample) in [(2, 500_000), (10, 100_000)] {
            assert!(is_in_sample(trace(top / share - 1), sample));
            assert!(!is_in_sample(trace(top / share + 2), sample));
        }
    }
}
