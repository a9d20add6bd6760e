//! A proxy made with pingora that does what the comparison asks of every proxy: forward to one
//! upstream, tell it of the client, and limit with `pingora-limits`, the framework's own limiter.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST};
use pingora::ErrorType::HTTPStatus;
use pingora::apps::HttpServerOptions;
use pingora::listeners::TcpSocketOptions;
use pingora::listeners::tls::TlsSettings;
use pingora::prelude::{Error, HttpPeer, RequestHeader, ResponseHeader, Result, Server, Session};
use pingora::proxy::{ProxyHttp, http_proxy_service};
use pingora::server::configuration::ServerConf;
use pingora_limits::rate::Rate;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const USAGE: &str = "usage: weir-pingora --listen 127.0.0.1:PORT --upstream 127.0.0.1:PORT \
    [--threads 1] [--limits 0] [--most REQUESTS --seconds PERIOD] [--decoy JSON] [--http2 no] \
    [--certificate FILE --key FILE]";
const FORWARDED_FOR: &str = "x-forwarded-for";
const FORWARDED_PROTO: &str = "x-forwarded-proto";

struct Options {
    listen: SocketAddr,
    upstream: SocketAddr,
    threads: usize,
    /// How many limits apply: per address, per host, and one for all.
    limits: usize,
    /// Requests that a limit admits in a period.
    most: isize,
    period: Duration,
    /// The body of a response with status 200 that takes the place of a 429.
    decoy: Option<Bytes>,
    http2: bool,
    certificate: Option<String>,
    key: Option<String>,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut options = Self {
            listen: nowhere,
            upstream: nowhere,
            threads: 1,
            limits: 0,
            most: 1,
            period: Duration::from_secs(1),
            decoy: None,
            http2: false,
            certificate: None,
            key: None,
        };
        while let Some(name) = words.next() {
            let value = words.next().ok_or(USAGE)?;
            match name.as_str() {
                "--listen" => options.listen = parsed(&value)?,
                "--upstream" => options.upstream = parsed(&value)?,
                "--threads" => options.threads = parsed(&value)?,
                "--limits" => options.limits = parsed(&value)?,
                "--most" => options.most = parsed(&value)?,
                "--seconds" => options.period = Duration::from_secs(parsed(&value)?),
                "--decoy" => options.decoy = Some(value.into()),
                "--http2" => options.http2 = value == "yes",
                "--certificate" => options.certificate = Some(value),
                "--key" => options.key = Some(value),
                _ => return Err(USAGE.into()),
            }
        }
        let addresses = [options.listen, options.upstream];
        if addresses
            .iter()
            .any(|address| address.port() == 0 || !address.ip().is_loopback())
        {
            return Err(format!("two loopback addresses are needed\n{USAGE}"));
        }
        Ok(options)
    }
}

fn parsed<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("not understood: {text}\n{USAGE}"))
}

/// What a limit counts requests by.
enum Key {
    Address,
    Host,
    Everyone,
}

struct Gateway {
    upstream: SocketAddr,
    scheme: &'static str,
    limits: Vec<(Key, Rate)>,
    most: isize,
    denial: ResponseHeader,
    body: Bytes,
}

impl Gateway {
    fn new(options: &Options) -> Result<Self> {
        let keys = [Key::Address, Key::Host, Key::Everyone];
        let limits = keys
            .into_iter()
            .take(options.limits)
            .map(|key| (key, Rate::new(options.period)))
            .collect();
        let (status, kind, body) = match &options.decoy {
            Some(decoy) => (200, "application/json", decoy.clone()),
            None => (
                429,
                "text/plain",
                Bytes::from_static(b"Too Many Requests\n"),
            ),
        };
        let mut denial = ResponseHeader::build(status, Some(4))?;
        denial.insert_header(CONTENT_TYPE, kind)?;
        denial.insert_header(CONTENT_LENGTH, body.len())?;
        Ok(Self {
            upstream: options.upstream,
            scheme: if options.certificate.is_some() {
                "https"
            } else {
                "http"
            },
            limits,
            most: options.most,
            denial,
            body,
        })
    }

    /// Whether any limit denies the request. Every limit counts it, as with the other proxies.
    fn denies(&self, session: &Session) -> bool {
        let mut is_denied = false;
        for (key, rate) in &self.limits {
            let counted = match key {
                Key::Address => rate.observe(&client(session), 1),
                Key::Host => rate.observe(&host(session), 1),
                Key::Everyone => rate.observe(&(), 1),
            };
            is_denied |= counted > self.most;
        }
        is_denied
    }
}

fn client(session: &Session) -> Option<IpAddr> {
    Some(session.client_addr()?.as_inet()?.ip())
}

fn host(session: &Session) -> &[u8] {
    let request = session.req_header();
    match request.headers.get(HOST) {
        Some(host) => host.as_bytes(),
        // HTTP/2 has it in the URI.
        None => request
            .uri
            .authority()
            .map_or(b"", |own| own.as_str().as_bytes()),
    }
}

#[async_trait]
impl ProxyHttp for Gateway {
    type CTX = ();

    fn new_ctx(&self) -> Self::CTX {}

    async fn request_filter(&self, session: &mut Session, _: &mut Self::CTX) -> Result<bool> {
        if !self.denies(session) {
            return Ok(false);
        }
        // The connection stays open, as with the other proxies.
        let head = Box::new(self.denial.clone());
        session.write_response_header(head, false).await?;
        let body = Some(self.body.clone());
        session.write_response_body(body, true).await?;
        Ok(true)
    }

    async fn upstream_peer(&self, _: &mut Session, _: &mut Self::CTX) -> Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(self.upstream, false, String::new())))
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        request: &mut RequestHeader,
        _: &mut Self::CTX,
    ) -> Result<()> {
        let address = client(session).ok_or_else(|| Error::new(HTTPStatus(400)))?;
        let before = request.headers.get(FORWARDED_FOR);
        let list = match before.and_then(|before| before.to_str().ok()) {
            Some(before) => format!("{before}, {address}"),
            None => address.to_string(),
        };
        request.insert_header(FORWARDED_FOR, list)?;
        request.insert_header(FORWARDED_PROTO, self.scheme)
    }
}

fn serve(options: &Options) -> Result<()> {
    let conf = ServerConf {
        threads: options.threads,
        grace_period_seconds: Some(0),
        graceful_shutdown_timeout_seconds: Some(1),
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let mut service = http_proxy_service(&server.configuration, Gateway::new(options)?);
    if let Some(proxy) = service.app_logic_mut() {
        let mut allowed = HttpServerOptions::default();
        allowed.h2c = options.http2;
        proxy.server_options = Some(allowed);
    }
    let listen = options.listen.to_string();
    match (&options.certificate, &options.key) {
        (Some(certificate), Some(key)) => {
            let settings = TlsSettings::intermediate(certificate, key)?;
            service.add_tls_with_settings(&listen, Some(TcpSocketOptions::default()), settings);
        }
        _ => service.add_tcp(&listen),
    }
    server.add_service(service);
    server.run_forever()
}

fn main() -> ExitCode {
    let words = std::env::args().skip(1);
    if words.len() == 1 {
        println!("pingora {}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    let served = Options::parse(words)
        .and_then(|options| serve(&options).map_err(|error| error.to_string()));
    if let Err(error) = served {
        eprintln!("weir-pingora: {error}");
    }
    ExitCode::FAILURE
}
