//! The admin listener: `/livez`, `/readyz`, and `/metrics` for Prometheus. Requests below `/v1/`,
//! and for the dashboard, go to a service that it is given.
//!
//! `/metrics` names limits and routes. A web page can have its visitor's browser ask for it, by a
//! name of the page's own that resolves to this machine (DNS rebinding). Such a name is in `Host`,
//! and no page can write another; so only names that no page can have, and those that are
//! configured, are answered.
//!
//! It has its own thread and runtime, so that it answers even when all workers are busy, and until
//! the process ends.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, VARY};
use http::uri::Authority;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;
use weir_http::media_type::prefers;
use weir_http::problem::Problem;
use weir_telemetry::{Metrics, PageFormat, ServerMetrics};

use super::drain::Draining;
use super::request_body::RequestBody;
use super::serve::{Connection, Http, Transport};
use super::service::service_fn;
use super::settings::HttpSettings;
use super::supervise::runtime;

/// The prefixes of the paths that go to the service, and the path of the dashboard's page.
const API: [&str; 2] = ["/v1/", "/dashboard."];
const DASHBOARD: &str = "/";

/// How many connections there may be. New ones evict idle ones.
const MAX_CONNECTIONS: NonZeroUsize = NonZeroUsize::new(32).unwrap();

/// Whether the gateway is ready for requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It serves.
    Ready,
    /// It is, but lacks this.
    ReadyWithout(String),
    /// It should get no requests, for this reason.
    NotReady(String),
}

/// The body of an answer.
pub type AdminBody = UnsyncBoxBody<Bytes, Infallible>;

/// Answers the requests below `/v1/` and for the dashboard. It finds the [`Connection`] in their
/// extensions.
pub type AdminApi = BoxCloneSyncService<Request<RequestBody>, Response<AdminBody>, Infallible>;

/// Answers the admin listener's requests.
#[derive(Clone)]
pub struct Admin {
    metrics: Arc<Metrics>,
    readiness: Arc<dyn Fn() -> Readiness + Send + Sync>,
    draining: Draining,
    api: Option<AdminApi>,
    hosts: Arc<dyn Fn(&str) -> bool + Send + Sync>,
}

/// The thread that serves an [`Admin`].
#[derive(Debug)]
pub struct AdminThread {
    address: SocketAddr,
}

impl Admin {
    /// `readiness` tells whether the store can be reached; a gateway that drains is never ready.
    pub fn new(
        metrics: Arc<Metrics>,
        draining: Draining,
        readiness: impl Fn() -> Readiness + Send + Sync + 'static,
    ) -> Self {
        Self {
            metrics,
            readiness: Arc::new(readiness),
            draining,
            api: None,
            hosts: Arc::new(|_| false),
        }
    }

    /// Shows metrics by these names as well, which are in lower case.
    #[must_use]
    pub fn with_hosts(self, hosts: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self {
            hosts: Arc::new(hosts),
            ..self
        }
    }

    /// Sends requests below `/v1/` and for the dashboard to this service.
    #[must_use]
    pub fn with_api(self, api: AdminApi) -> Self {
        Self {
            api: Some(api),
            ..self
        }
    }

    async fn respond(
        self,
        connection: Connection,
        mut request: Request<RequestBody>,
    ) -> Result<Response<AdminBody>, Infallible> {
        // Two could be read in two ways, and one of them decides whether this machine is asked.
        if request.headers().get_all(HOST).iter().nth(1).is_some() {
            let problem = Problem::new(StatusCode::BAD_REQUEST, "The request has two Host fields.");
            return Ok(problem.into_response().map(Full::boxed_unsync));
        }
        match self.api.clone() {
            Some(api) if is_for_api(request.uri().path()) => {
                request.extensions_mut().insert(connection);
                api.oneshot(request).await
            }
            _ => Ok(self.page(&request).map(Full::boxed_unsync)),
        }
    }

    /// The response to a request that is not for the API.
    pub fn page<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let page: fn(&Self, &HeaderMap) -> Response<Full<Bytes>> = match request.uri().path() {
            "/livez" => |_, _| text(StatusCode::OK, "alive\n"),
            "/readyz" => Self::readyz,
            "/metrics" if !self.is_known_host(request) => return unknown_host(),
            "/metrics" => Self::metrics,
            path => return not_found(path),
        };
        match *request.method() {
            Method::GET | Method::HEAD => page(self, request.headers()),
            ref method => method_not_allowed(method),
        }
    }

    fn readyz(&self, _: &HeaderMap) -> Response<Full<Bytes>> {
        if self.draining.has_begun() {
            return text(StatusCode::SERVICE_UNAVAILABLE, "draining\n");
        }
        match (self.readiness)() {
            Readiness::Ready => text(StatusCode::OK, "ready\n"),
            Readiness::ReadyWithout(what) => {
                text(StatusCode::OK, format!("ready, without {what}\n"))
            }
            Readiness::NotReady(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        }
    }

    /// Whether a request names a host that no web page can have, or a configured one. Browsers
    /// always name one.
    fn is_known_host<B>(&self, request: &Request<B>) -> bool {
        let authority = request.uri().authority().map(Authority::as_str);
        let host = request.headers().get(HOST).map(HeaderValue::as_bytes);
        let Some(host) = authority.map(str::as_bytes).or(host) else {
            return true;
        };
        let Ok(host) = Authority::try_from(host) else {
            return false;
        };
        let host = host.host().trim_matches(['[', ']']).to_ascii_lowercase();
        let host = host.strip_suffix('.').unwrap_or(&host);
        is_private(host) || (self.hosts)(host)
    }

    /// OpenMetrics for scrapers that ask for it, such as Prometheus, and the older text format for
    /// others.
    fn metrics(&self, headers: &HeaderMap) -> Response<Full<Bytes>> {
        let format = match prefers(headers, "application/openmetrics-text", "text/plain") {
            true => PageFormat::OpenMetrics,
            false => PageFormat::Text,
        };
        let Ok(page) = self.metrics.page(format) else {
            let detail = "The metrics cannot be written as text.";
            return Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail).into_response();
        };
        let mut response = text(StatusCode::OK, page);
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static(format.content_type()),
        );
        headers.insert(VARY, HeaderValue::from_static("accept"));
        response
    }
}

impl AdminThread {
    /// Starts the thread, which ends with the process. It serves through a drain of the workers,
    /// and stops accepting when a successor has been `handed` its socket.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn spawn(listener: TcpListener, admin: Admin, handed: Draining) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let runtime = runtime()?;
        let thread = thread::Builder::new().name("weir-admin".to_owned());
        thread.spawn(move || runtime.block_on(serve(listener, admin, handed)))?;
        Ok(Self { address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn serve(listener: TcpListener, admin: Admin, handed: Draining) -> io::Result<usize> {
    // Separate counters, so that scrapes are not counted among the clients' connections.
    let settings = HttpSettings {
        max_connections: Some(MAX_CONNECTIONS),
        ..HttpSettings::default()
    };
    let http = Http::new(&settings, ServerMetrics::default());
    let make = move |connection: &Connection| {
        let (admin, connection) = (admin.clone(), connection.clone());
        service_fn(move |request| admin.clone().respond(connection.clone(), request))
    };
    http.serve(listener, &Transport::default(), make, handed)
        .await
}

/// Whether no web page can have this host: an address, a name without a dot, or one below a domain
/// that is not delegated (RFC 6761, RFC 6762, ICANN's `internal`, `svc` of Kubernetes).
fn is_private(host: &str) -> bool {
    let last = host.rsplit_once('.').map(|(_, last)| last);
    host.parse::<IpAddr>().is_ok()
        || last.is_none_or(|last| matches!(last, "localhost" | "local" | "internal" | "svc"))
}

fn unknown_host() -> Response<Full<Bytes>> {
    let detail = "A web page may have this host. Ask by an address, by `localhost` or by a name \
        without a dot, or list the name in `admin: {hosts: [...]}`.";
    Problem::new(StatusCode::FORBIDDEN, detail).into_response()
}

fn is_for_api(path: &str) -> bool {
    path == DASHBOARD || API.iter().any(|prefix| path.starts_with(prefix))
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let content_type = HeaderValue::from_static("text/plain; charset=utf-8");
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn not_found(path: &str) -> Response<Full<Bytes>> {
    let detail = format!(
        "There is /livez, /readyz, /metrics and the admin API below /v1/ here, but no {path}."
    );
    Problem::new(StatusCode::NOT_FOUND, detail).into_response()
}

fn method_not_allowed(method: &Method) -> Response<Full<Bytes>> {
    let detail = format!("{method} is not allowed here; use GET.");
    let mut response = Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail).into_response();
    let allowed = HeaderValue::from_static("GET, HEAD");
    response.headers_mut().insert(ALLOW, allowed);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Drain;
    use http_body_util::BodyExt;

    fn admin(readiness: Readiness) -> (Admin, Drain) {
        let (drain, draining) = Drain::new();
        let admin = Admin::new(Metrics::new(), draining, move || readiness.clone());
        (admin, drain)
    }

    fn request(method: Method, path: &str) -> Request<()> {
        Request::builder()
            .method(method)
            .uri(path)
            .body(())
            .unwrap()
    }

    async fn get(admin: &Admin, path: &str) -> (u16, String) {
        let (head, body) = admin.page(&request(Method::GET, path)).into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (
            head.status.as_u16(),
            String::from_utf8(body.into()).unwrap(),
        )
    }

    fn expect(status: u16, text: &str) -> (u16, String) {
        (status, text.to_owned())
    }

    #[tokio::test]
    async fn a_gateway_is_alive_even_when_it_is_not_ready() {
        let (admin, _drain) = admin(Readiness::NotReady("the store is out of reach".to_owned()));
        assert_eq!(get(&admin, "/livez").await, expect(200, "alive\n"));
        let not_ready = expect(503, "the store is out of reach\n");
        assert_eq!(get(&admin, "/readyz").await, not_ready);
    }

    #[tokio::test]
    async fn a_gateway_that_drains_is_alive_but_not_ready() {
        let (admin, drain) = admin(Readiness::Ready);
        assert_eq!(get(&admin, "/readyz").await, expect(200, "ready\n"));
        drain.start();
        assert_eq!(get(&admin, "/readyz").await, expect(503, "draining\n"));
        assert_eq!(get(&admin, "/livez").await, expect(200, "alive\n"));
    }

    #[test]
    fn the_metrics_have_the_form_that_the_scraper_asks_for_and_else_the_one_that_all_read() {
        let (admin, _drain) = admin(Readiness::Ready);
        let prometheus = "application/openmetrics-text;version=1.0.0,\
            application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let telegraf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
            encoding=delimited;q=0.7,text/plain;version=0.0.4;q=0.3";
        for (accept, format) in [
            (prometheus, PageFormat::OpenMetrics),
            (telegraf, PageFormat::Text),
            ("*/*", PageFormat::Text),
        ] {
            let mut request = request(Method::GET, "/metrics");
            let accepts = HeaderValue::from_static(accept);
            request.headers_mut().insert("accept", accepts);
            let answer = admin.page(&request);
            assert_eq!(answer.headers()[CONTENT_TYPE], format.content_type());
        }
        let answer = admin.page(&request(Method::GET, "/metrics"));
        let content_type = answer.headers()[CONTENT_TYPE].to_str().unwrap();
        assert_eq!(content_type, PageFormat::Text.content_type());
    }

    /// They were shown to any page whose name its owner had resolve to this machine.
    #[test]
    fn metrics_are_shown_by_no_name_that_a_web_page_may_have_unless_it_is_listed() {
        let (admin, _drain) = admin(Readiness::Ready);
        let admin = admin.with_hosts(|host| host == "weir.example.com");
        let status = |path: &str, host: &'static str| {
            let mut request = request(Method::GET, path);
            let host = HeaderValue::from_static(host);
            request.headers_mut().insert(HOST, host);
            admin.page(&request).status().as_u16()
        };
        for host in [
            "127.0.0.1:9901",
            "10.0.0.5",
            "[fd00::1]:9901",
            "localhost:9901",
            "weir",
            "weir:9901",
            "weir.monitoring.svc",
            "weir.monitoring.svc.cluster.local:9901",
            "gateway.internal.",
            "Weir.Example.com:9901",
        ] {
            assert_eq!(status("/metrics", host), 200, "{host}");
        }
        for host in [
            "rebound.example.com",
            "rebound.example.com.:9901",
            "localhost.example.com",
            "127.0.0.1.example.com",
            "other.weir.example.com",
            "",
        ] {
            assert_eq!(status("/metrics", host), 403, "{host}");
            // These tell nothing, and probes ask by any name.
            assert_eq!(status("/livez", host), 200, "{host}");
            assert_eq!(status("/readyz", host), 200, "{host}");
        }
        let without = admin.page(&request(Method::GET, "/metrics"));
        assert_eq!(without.status(), StatusCode::OK);
    }

    #[test]
    fn other_paths_and_methods_are_problems() {
        let (admin, _drain) = admin(Readiness::Ready);
        let post = admin.page(&request(Method::POST, "/metrics"));
        assert_eq!(post.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(post.headers()[ALLOW], "GET, HEAD");
        let other = admin.page(&request(Method::GET, "/"));
        assert_eq!(other.status(), StatusCode::NOT_FOUND);
        assert_eq!(other.headers()[CONTENT_TYPE], "application/problem+json");
    }

    #[tokio::test]
    async fn the_admin_thread_answers_over_tcp() {
        use std::io::{Read, Write};
        let (admin, _drain) = admin(Readiness::Ready);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let thread = AdminThread::spawn(listener, admin, Draining::never()).unwrap();
        let mut stream = std::net::TcpStream::connect(thread.address()).unwrap();
        stream
            .write_all(b"GET /livez HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nalive\n"), "{answer}");
    }
}
