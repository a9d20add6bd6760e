//! Sends telemetry to a collector by OTLP, over HTTP as to upstreams.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::uri::{PathAndQuery, Uri};
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use opentelemetry_http::{HttpClient, HttpError};
use tokio::runtime::Builder;
use tokio::time::timeout;
use tower::Service;
use weir_config::gateway::process::otlp::OtlpSettings;
use weir_proxy::{Proxy, Server, Upstream, UpstreamSettings};

use weir_telemetry::{Metrics, Tracer, TracerSettings, UpstreamFailed};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Bounds a collector's response.
const MAX_BYTES: usize = 1 << 20;

pub(super) fn start(settings: &OtlpSettings, metrics: &Metrics) -> io::Result<Arc<Tracer>> {
    let client = Arc::new(Collector(settings.server.clone()));
    let tracer = TracerSettings {
        endpoint: settings.endpoint.clone(),
        headers: settings.headers.clone(),
        sample: settings.sample,
        service_name: settings.service_name.clone(),
        interval: settings.interval,
    };
    let tracer = Tracer::start(tracer, client).map_err(io::Error::other)?;
    metrics.otlp_spans_dropped(tracer.dropped());
    Ok(Arc::new(tracer))
}

/// The server of a collector. It is asked by the threads that export, which have nothing else to
/// do meanwhile, and by a connection of its own each time.
struct Collector(Server);

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Collector").field(self.0.name()).finish()
    }
}

/// The future of a trait's `async fn`.
type Sent<'a> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'a>>;

impl HttpClient for Collector {
    fn send_bytes<'life0, 'async_trait>(&'life0 self, request: Request<Bytes>) -> Sent<'async_trait>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(async move {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async { timeout(TIMEOUT, self.send(request)).await? })
        })
    }
}

impl Collector {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let mut upstream = UpstreamSettings::new("otlp", vec![self.0.clone()]);
        upstream.timeouts.connect = TIMEOUT;
        upstream.timeouts.response = TIMEOUT;
        upstream.max_idle = 0;
        let mut proxy = Proxy::new(Upstream::new(upstream));
        let (mut head, body) = request.into_parts();
        let host = head
            .uri
            .authority()
            .map_or("", |authority| authority.as_str());
        head.headers.insert(HOST, HeaderValue::from_str(host)?);
        let target = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        head.uri = target.parse::<Uri>()?;
        let Ok(response) = proxy.call(Request::from_parts(head, Full::new(body))).await;
        let (head, body) = response.into_parts();
        if let Some(failed) = head.extensions.get::<UpstreamFailed>() {
            return Err(format!("the collector does not answer: {}", failed.reason).into());
        }
        let body = Limited::new(body, MAX_BYTES).collect().await?.to_bytes();
        Ok(Response::from_parts(head, body))
    }
}
