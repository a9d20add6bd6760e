//! The admin API from its other side, for commands.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST, HeaderValue};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir_config::Diagnostics;

use weir_rules::HashKey;

/// Longer than the deadline of the gateway's own store.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The error of a request to the admin API.
#[derive(Debug, Error)]
pub enum AdminError {
    /// The configuration, which would name the admin listener, is in error.
    #[error("{0}")]
    Configuration(Diagnostics),
    /// The configuration has no admin listener.
    #[error(
        "there is no admin listener; configure `admin: {{address: ...}}`, or say --admin ADDRESS"
    )]
    NoListener,
    /// The token cannot stand in a header.
    #[error("the token has characters that no token has")]
    Token,
    /// Nothing responds there.
    #[error("no gateway answers at {address}: {cause}")]
    Unreachable {
        /// The address of the admin listener.
        address: SocketAddr,
        /// Why.
        cause: String,
    },
    /// The gateway has no such thing.
    #[error("{0}")]
    NotFound(String),
    /// The gateway refuses.
    #[error("{0}")]
    Refused(String),
}

/// The address of an admin listener, and the token for it.
#[derive(Clone, Debug)]
pub struct AdminClient {
    address: SocketAddr,
    token: Option<String>,
}

impl AdminClient {
    /// The listener at this address, or that of the configuration at `path`.
    ///
    /// # Errors
    /// When the configuration cannot be read, or has none.
    pub fn new(
        path: &Path,
        address: Option<SocketAddr>,
        token: Option<String>,
    ) -> Result<Self, AdminError> {
        let configured = || {
            let settings = weir_config::load(path, &HashKey::random());
            let settings = settings.map_err(AdminError::Configuration)?;
            settings.process.admin.ok_or(AdminError::NoListener)
        };
        let address = address.map_or_else(configured, Ok)?;
        let address = SocketAddr::new(reachable(address.ip()), address.port());
        Ok(Self { address, token })
    }

    /// Sends a request for a path such as `/v1/top?count=10`, and returns the response of the API.
    ///
    /// # Errors
    /// When nothing responds, or the API refuses.
    pub fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, AdminError> {
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let (status, body) = self.response(method, path, body)?;
        let json: Option<Value> = serde_json::from_slice(&body).ok();
        match json {
            Some(json) if status.is_success() => Ok(json),
            Some(problem) => {
                let detail = problem
                    .get("detail")
                    .and_then(Value::as_str)
                    .map(str::to_owned);
                let detail = detail.unwrap_or_else(|| status.to_string());
                Err(match status {
                    StatusCode::NOT_FOUND => AdminError::NotFound(detail),
                    _ => AdminError::Refused(detail),
                })
            }
            None => Err(self.unreachable(format!("{status}, and not as an admin listener does"))),
        }
    }

    /// The status and the text of a page for monitors, such as `/livez`.
    ///
    /// # Errors
    /// When nothing responds.
    pub fn get_text(&self, path: &str) -> Result<(StatusCode, String), AdminError> {
        let (status, body) = self.response(Method::GET, path, Bytes::new())?;
        Ok((status, String::from_utf8_lossy(&body).trim_end().to_owned()))
    }

    fn response(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), AdminError> {
        let mut request = Request::builder().method(method).uri(path);
        request = request.header(HOST, self.address.to_string());
        if let Some(token) = &self.token {
            let bearer = HeaderValue::try_from(format!("Bearer {token}"));
            let mut bearer = bearer.map_err(|_| AdminError::Token)?;
            bearer.set_sensitive(true);
            request = request.header(AUTHORIZATION, bearer);
        }
        let request = request.body(Full::new(body));
        let request = request.map_err(|error| self.unreachable(error))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| self.unreachable(error))?;
        runtime.block_on(async {
            let response = timeout(TIMEOUT, self.send(request)).await;
            response.map_err(|_| self.unreachable("it takes too long"))?
        })
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), AdminError> {
        let stream = TcpStream::connect(self.address).await;
        let stream = TokioIo::new(stream.map_err(|error| self.unreachable(error))?);
        let connected = hyper::client::conn::http1::handshake(stream).await;
        let (mut sender, connection) = connected.map_err(|error| self.unreachable(error))?;
        // The connection ends with its sender.
        let exchange = async move {
            let response = sender.send_request(request).await?;
            let (head, body) = response.into_parts();
            Ok::<_, hyper::Error>((head.status, body.collect().await?.to_bytes()))
        };
        let (response, _) = tokio::join!(exchange, connection);
        response.map_err(|error| self.unreachable(error))
    }

    fn unreachable(&self, cause: impl ToString) -> AdminError {
        AdminError::Unreachable {
            address: self.address,
            cause: cause.to_string(),
        }
    }
}

/// The address by which this machine reaches a listener on it.
fn reachable(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) if v4.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        address => address,
    }
}
