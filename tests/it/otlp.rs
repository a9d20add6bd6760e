//! Traces and metrics as a collector of OpenTelemetry gets them.

use std::collections::HashMap;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;

use crate::support::tls::Certificate;
use crate::support::upstream::{Entrance, text};
use crate::support::*;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A server that takes what is sent to it, and what it was sent.
struct Collector(Upstream);

/// The key of a configuration that sends to this collector.
fn otlp(endpoint: &str, more: &str) -> String {
    format!("telemetry: {{otlp: {{endpoint: \"{endpoint}\"{more}}}}}")
}

impl Collector {
    fn start() -> Self {
        Self(Upstream::start())
    }

    /// The key of a configuration that sends here.
    fn key(&self, more: &str) -> String {
        otlp(&format!("http://{}", self.0.address()), more)
    }

    fn received<M: Message + Default>(&self, path: &str) -> Vec<M> {
        let all = self.0.all().into_iter();
        let of_path = all.filter(|received| received.target == path);
        of_path
            .map(|received| M::decode(received.body).unwrap())
            .collect()
    }

    fn spans(&self) -> Vec<Span> {
        let requests: Vec<ExportTraceServiceRequest> = self.received("/v1/traces");
        let of_resources = requests
            .into_iter()
            .flat_map(|request| request.resource_spans);
        let of_scopes = of_resources.flat_map(|resource| resource.scope_spans);
        of_scopes.flat_map(|scope| scope.spans).collect()
    }

    /// The spans of a trace, as soon as there are so many.
    fn trace(&self, id: &str, count: usize) -> Vec<Span> {
        eventually("the spans of a trace", || {
            let mut spans = self.spans();
            spans.retain(|span| hex(&span.trace_id) == id);
            (spans.len() == count).then_some(spans)
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(attributes: &[KeyValue]) -> HashMap<String, String> {
    let text = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    let pairs = attributes.iter().filter_map(|pair| {
        let value = pair.value.as_ref()?.value.as_ref()?;
        Some((pair.key.clone(), text(value)))
    });
    pairs.collect()
}

fn of_kind(spans: &[Span], kind: SpanKind) -> &Span {
    let mut found = spans.iter().filter(|span| span.kind == kind as i32);
    found.next().expect("a span of this kind")
}

fn traced(path: &str, flags: &str) -> Request {
    get(path)
        .with("traceparent", &format!("00-{TRACE}-{PARENT}-{flags}"))
        .with("tracestate", "vendor=1")
}

/// The trace, the span and the flags that the upstream is told.
fn parent_of(upstream: &Upstream) -> (String, String, String) {
    let received = upstream.last();
    let lines = received.lines("traceparent");
    let parts: Vec<&str> = lines[0].split('-').collect();
    assert_eq!(
        (lines.len(), parts.len(), parts[0]),
        (1, 4, "00"),
        "{lines:?}"
    );
    (parts[1].into(), parts[2].into(), parts[3].into())
}

#[test]
fn a_trace_goes_on_through_the_gateway_to_the_upstream() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    let gateway = Setup::before(&upstream)
        .key(&collector.key(", headers: {x-key: abc}, service_name: edge"))
        .key("client_address: {trusted_proxies: [127.0.0.1]}")
        .limits(&["L: {per: address, burst: 5, count: 1, period: 1000h}"])
        .limited_by("L")
        .start();
    gateway.send(&traced("/path?secret=1", "01").with("connection", "traceparent"));
    let (trace, parent, flags) = parent_of(&upstream);
    assert_eq!((&*trace, &*flags), (TRACE, "01"));
    assert_eq!(upstream.last().lines("tracestate"), ["vendor=1"]);
    let spans = collector.trace(TRACE, 3);
    let server = of_kind(&spans, SpanKind::Server);
    assert_eq!(server.name, "GET all");
    assert_eq!(hex(&server.parent_span_id), PARENT);
    let of_server = attributes(&server.attributes);
    for (name, value) in [
        ("http.request.method", "GET"),
        ("http.response.status_code", "200"),
        ("http.route", "all"),
        ("url.path", "/path"),
        ("client.address", "127.0.0.1"),
        ("weir.decision", "allowed"),
        ("weir.remaining", "4"),
    ] {
        assert_eq!(
            of_server.get(name).map(String::as_str),
            Some(value),
            "{name}"
        );
    }
    assert!(!of_server.contains_key("url.query"), "{of_server:?}");
    let decide = of_kind(&spans, SpanKind::Internal);
    assert_eq!(
        (&*decide.name, &decide.parent_span_id),
        ("decide", &server.span_id)
    );
    let client = of_kind(&spans, SpanKind::Client);
    assert_eq!(client.parent_span_id, server.span_id);
    assert_eq!(
        hex(&client.span_id),
        parent,
        "the upstream's parent is the client span"
    );
    let of_client = attributes(&client.attributes);
    assert_eq!(of_client["http.request.method"], "GET");
    assert_eq!(
        of_client["server.port"],
        upstream.address().port().to_string()
    );
    assert!(server.start_time_unix_nano <= client.start_time_unix_nano);
    assert!(client.end_time_unix_nano <= server.end_time_unix_nano);
    for sent in collector.0.all() {
        assert_eq!(sent.lines("x-key"), ["abc"], "{}", sent.target);
    }
}

#[test]
fn what_weir_answers_itself_has_no_span_of_an_upstream() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    let gateway = Setup::before(&upstream)
        .key(&collector.key(""))
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1000h}"])
        .limited_by("L")
        .start();
    assert_eq!(gateway.send(&get("/")).status, 200);
    let (first, _, _) = parent_of(&upstream);
    assert_eq!(collector.trace(&first, 3).len(), 3);
    assert_eq!(gateway.send(&traced("/denied", "01")).status, 429);
    let spans = collector.trace(TRACE, 2);
    let of_server = attributes(&of_kind(&spans, SpanKind::Server).attributes);
    assert_eq!(of_server["weir.decision"], "denied");
    assert_eq!(of_server["weir.limit"], "L");
    assert_eq!(of_server["http.response.status_code"], "429");
}

#[test]
fn the_time_of_redis_is_a_span_within_the_decision() {
    let (upstream, collector, redis) =
        (Upstream::start(), Collector::start(), RedisServer::start());
    let gateway = Setup::before(&upstream)
        .key(&collector.key(""))
        .key("client_address: {trusted_proxies: [127.0.0.1]}")
        .key(&format!(
            "store: {{redis: {{url: \"{}\", timeout: 10s}}}}",
            redis.url()
        ))
        .limits(&["L: {per: address, burst: 5, count: 1, period: 1000h}"])
        .limited_by("L")
        .start();
    assert_eq!(gateway.send(&traced("/", "01")).status, 200);
    let spans = collector.trace(TRACE, 4);
    let named = |name: &str| {
        let mut found = spans.iter().filter(|span| span.name == name);
        found.next().expect("a span of this name")
    };
    let (decide, store) = (named("decide"), named("store"));
    assert_eq!(store.parent_span_id, decide.span_id);
    assert_eq!(store.kind, SpanKind::Client as i32);
    assert_eq!(attributes(&store.attributes)["db.system.name"], "redis");
    assert!(store.start_time_unix_nano < store.end_time_unix_nano);
    assert!(store.end_time_unix_nano <= decide.end_time_unix_nano);
}

#[test]
fn spans_go_to_no_collector_by_tls_whose_authority_is_not_trusted() {
    let upstream = Upstream::start();
    let certificate = Certificate::of("localhost");
    let entrance = Entrance::Tls(certificate.server(&["http/1.1"], None));
    let collector = Collector(Upstream::behind(entrance, |_| text("{}")));
    let endpoint = format!("https://localhost:{}", collector.0.address().port());
    let start = |more: &str| {
        Setup::before(&upstream)
            .key(&otlp(&endpoint, more))
            .file("ca.pem", &certificate.certificate)
            .start()
    };

    let stranger = start("");
    assert_eq!(stranger.send(&get("/")).status, 200);
    eventually("spans that are dropped", || {
        let dropped = stranger.metric("weir_otlp_spans_dropped_total")?;
        (dropped >= 2.0).then_some(())
    });
    assert_eq!(collector.0.count(), 0);

    let trusting = start(", ca: ca.pem");
    assert_eq!(trusting.send(&get("/")).status, 200);
    eventually("spans by TLS", || {
        (collector.spans().len() == 2).then_some(())
    });
}

#[test]
fn a_trusted_proxy_decides_what_is_sampled_and_other_clients_do_not() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    let setup = Setup::before(&upstream).key(&collector.key(", sample: 0%"));
    let trusting = setup
        .clone()
        .key("client_address: {trusted_proxies: [127.0.0.1]}");
    let (gateway, trusting) = (setup.start(), trusting.start());
    gateway.send(&traced("/", "01"));
    assert_eq!(
        parent_of(&upstream).2,
        "00",
        "nobody can make it send traces"
    );
    gateway.send(&get("/"));
    assert_eq!(parent_of(&upstream).2, "00");
    trusting.send(&traced("/", "00"));
    assert_eq!(parent_of(&upstream).2, "00");
    trusting.send(&traced("/sampled", "01"));
    assert_eq!(parent_of(&upstream).2, "01");
    let spans = collector.trace(TRACE, 2);
    let of_server = attributes(&of_kind(&spans, SpanKind::Server).attributes);
    assert_eq!(of_server["url.path"], "/sampled");
}

#[test]
fn methods_that_clients_invent_never_make_more_values_of_an_attribute() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    let gateway = Setup::before(&upstream)
        .key(&collector.key(""))
        .key("client_address: {trusted_proxies: [127.0.0.1]}")
        .start();
    let invented = request("BREW", "/").with("traceparent", &format!("00-{TRACE}-{PARENT}-01"));
    gateway.send(&invented);
    let spans = collector.trace(TRACE, 2);
    let server = of_kind(&spans, SpanKind::Server);
    assert_eq!(server.name, "HTTP all");
    let of_server = attributes(&server.attributes);
    assert_eq!(of_server["http.request.method"], "_OTHER");
    assert_eq!(of_server["http.request.method_original"], "BREW");
}

#[test]
fn metrics_are_sent_by_the_semantic_conventions() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    let gateway = Setup::before(&upstream)
        .key(&collector.key(", sample: 0%, interval: 100ms"))
        .start();
    assert_eq!(gateway.send(&get("/")).status, 200);
    let metrics = eventually("metrics", || {
        let requests: Vec<ExportMetricsServiceRequest> = collector.received("/v1/metrics");
        let resources = requests
            .into_iter()
            .flat_map(|request| request.resource_metrics);
        let scopes = resources.flat_map(|resource| resource.scope_metrics);
        let metrics: Vec<_> = scopes.flat_map(|scope| scope.metrics).collect();
        // The first export may come between what two of them count of the request.
        let first = metrics.first()?.name.clone();
        let has_others = metrics.iter().any(|metric| metric.name != first);
        has_others.then_some(metrics)
    });
    let mut names: Vec<_> = metrics.iter().map(|metric| &*metric.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names, ["http.server.request.duration", "weir.decisions"]);
    let duration = metrics.iter().find_map(|metric| match &metric.data {
        Some(Data::Histogram(duration)) => duration.data_points.first(),
        _ => None,
    });
    let of_request = attributes(&duration.expect("a duration").attributes);
    assert_eq!(of_request["http.request.method"], "GET");
    assert_eq!(of_request["http.response.status_code"], "200");
}

#[test]
fn a_collector_that_is_away_costs_spans_and_no_request() {
    let upstream = Upstream::start();
    let address = refusing_address();
    let mut gateway = Setup::before(&upstream)
        .key(&otlp(&format!("http://{address}"), ""))
        .start();
    assert_eq!(gateway.statuses(&get("/"), 20), [200; 20]);
    eventually("spans that are dropped", || {
        let dropped = gateway.metric("weir_otlp_spans_dropped_total")?;
        (dropped >= 40.0).then_some(())
    });
    gateway.logs("traces are not taken; told once a minute at most", 1);
    gateway.signal("TERM");
    assert!(gateway.ended().success());
}

#[test]
fn the_last_spans_are_sent_before_the_process_ends() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    let mut gateway = Setup::before(&upstream).key(&collector.key("")).start();
    gateway.send(&traced("/", "01"));
    gateway.signal("TERM");
    assert!(gateway.ended().success());
    assert_eq!(collector.trace(TRACE, 2).len(), 2);
}
