//! The errors of a request to an upstream, and the one table from these errors to the client's
//! response.

use std::error::Error as StdError;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::Full;
use thiserror::Error;
use tokio::time::Instant;
use weir_http::problem::{BROKEN_BODY, BodyTooLarge, INVALID_RESPONSE, Problem};
use weir_telemetry::UpstreamFailed;

use super::balance::{Attempt, Failure};
use super::exchange::ExchangeError;
use super::handshake::HandshakeError;
use super::http1::Malformed;

/// When a client may come back whose request found no connection or no server: at once, all of them
/// would find none again.
const RETRY_SECS: RangeInclusive<u64> = 1..=5;

/// Why the proxy itself must answer.
#[derive(Debug, Error)]
pub(super) enum ProxyError {
    #[error("the request has no usable Host")]
    Host,
    #[error("the request's target names no path")]
    Target,
    #[error("the request's method is not one that is forwarded")]
    Method,
    #[error("the request's body has a transfer coding other than chunked")]
    TransferCoding,
    #[error("{0}")]
    BodyTooLarge(BodyTooLarge),
    #[error("the request's body broke off")]
    RequestBody(#[source] Box<dyn StdError + Send + Sync>),
    #[error("no server is available")]
    NoServer,
    #[error("as many connections to upstreams are open as the limit of file descriptors allows")]
    TooManyConnections,
    #[error("cannot connect to {server}")]
    Connect {
        server: Arc<str>,
        #[source]
        source: io::Error,
    },
    #[error("cannot agree on TLS with {server}")]
    Tls {
        server: Arc<str>,
        #[source]
        source: io::Error,
    },
    #[error("connecting to {server} took too long")]
    ConnectTimeout { server: Arc<str> },
    #[error("{server} closed the connection without a response")]
    Closed {
        server: Arc<str>,
        #[source]
        source: io::Error,
    },
    #[error("{server} ended the connection before it got to the request")]
    Unprocessed {
        server: Arc<str>,
        #[source]
        source: io::Error,
    },
    #[error("{server} refused the request before processing it")]
    Refused {
        server: Arc<str>,
        #[source]
        source: io::Error,
    },
    #[error("{server} closed the connection in the middle of a response's head")]
    BrokenOff {
        server: Arc<str>,
        #[source]
        source: io::Error,
    },
    #[error("{server} sent no valid response")]
    BadResponse {
        server: Arc<str>,
        #[source]
        source: Malformed,
    },
    #[error("{server} sent a response that is larger than responses may be")]
    TooLarge {
        server: Arc<str>,
        /// The response's status, if it is known.
        status: Option<StatusCode>,
        #[source]
        source: Malformed,
    },
    #[error("{server} sent no valid HTTP/2")]
    Protocol {
        server: Arc<str>,
        #[source]
        source: hyper::Error,
    },
    #[error("{server} changed to a protocol that it was not asked for")]
    Upgraded { server: Arc<str> },
    #[error("{server} did not change the protocol as it was asked")]
    NotUpgraded { server: Arc<str> },
    #[error("{server} did not answer the handshake of a WebSocket as RFC 6455 demands")]
    Handshake {
        server: Arc<str>,
        #[source]
        source: HandshakeError,
    },
    #[error("{server} speaks HTTP/2, by which WebSockets are not forwarded")]
    UpgradeByHttp2 { server: Arc<str> },
    #[error("{server} took too long to respond")]
    ResponseTimeout { server: Arc<str> },
    #[error("{server} has as many connections as it may have")]
    ServerBusy { server: Arc<str> },
    #[error("all of it took too long")]
    TotalTimeout,
}

/// An error as the client, the access log and the metrics see it.
struct Report {
    status: StatusCode,
    reason: &'static str,
    detail: &'static str,
}

impl ProxyError {
    pub(super) fn from_connect(source: io::Error, server: Arc<str>) -> Self {
        match is_tls_error(&source) {
            true => Self::Tls { server, source },
            false => Self::Connect { server, source },
        }
    }

    /// Why the body of a request cannot be read to its end.
    pub(super) fn from_request_body(source: Box<dyn StdError + Send + Sync>) -> Self {
        match source.downcast::<BodyTooLarge>() {
            Ok(too_large) => Self::BodyTooLarge(*too_large),
            Err(source) => Self::RequestBody(source),
        }
    }

    pub(super) fn from_exchange(error: ExchangeError, server: Arc<str>) -> Self {
        match error {
            ExchangeError::RequestBody(source) => Self::from_request_body(source),
            ExchangeError::Malformed(source) => match source {
                Malformed::TooLarge { status, .. } => Self::TooLarge {
                    server,
                    status,
                    source,
                },
                source => Self::BadResponse { server, source },
            },
            // With TLS 1.3 a server says only now that it wants another certificate.
            ExchangeError::Closed(source) if is_tls_error(&source) => Self::Tls { server, source },
            ExchangeError::Closed(source) => Self::Closed { server, source },
            ExchangeError::Unprocessed(source) => Self::Unprocessed { server, source },
            ExchangeError::Refused(source) => Self::Refused { server, source },
            ExchangeError::Protocol(source) => Self::Protocol { server, source },
            ExchangeError::Host(_) => Self::Host,
            ExchangeError::Spent => {
                let source = io::Error::other(ExchangeError::Spent);
                Self::Refused { server, source }
            }
            ExchangeError::BrokenOff(source) => Self::BrokenOff { server, source },
            ExchangeError::Timeout => Self::ResponseTimeout { server },
        }
    }

    /// The failure of the server, if it is one.
    pub(super) fn failure(&self) -> Option<Failure> {
        match self {
            Self::Connect { source, .. } if is_refusal(source) => Some(Failure::Refused),
            Self::Connect { .. } | Self::ConnectTimeout { .. } => Some(Failure::Connect),
            Self::Tls { .. } => Some(Failure::Tls),
            Self::ResponseTimeout { .. } => Some(Failure::Timeout),
            Self::Closed { .. }
            | Self::BrokenOff { .. }
            | Self::BadResponse { .. }
            | Self::Protocol { .. } => Some(Failure::Response),
            _ => None,
        }
    }

    /// The status of a response that cannot be passed on, although its server did what was asked.
    pub(super) fn status(&self) -> Option<StatusCode> {
        match self {
            Self::TooLarge { status, .. } => *status,
            _ => None,
        }
    }

    /// Lets the server's state know what the error says about it.
    pub(super) fn settle(&self, attempt: &mut Attempt) {
        match (self.failure(), self.status()) {
            (Some(failure), _) => attempt.failed(failure),
            (None, Some(status)) => attempt.responded(status, Instant::now()),
            (None, None) => attempt.settle(),
        }
    }

    /// Whether the client caused the error, so that the operator need not act.
    pub(super) fn is_client_fault(&self) -> bool {
        self.report().status.is_client_error()
            || matches!(self, Self::Method | Self::TransferCoding)
    }

    /// The table. The details name no server, as clients need not know them.
    fn report(&self) -> Report {
        let (status, reason, detail) = match self {
            Self::Host => (
                StatusCode::BAD_REQUEST,
                "host",
                "The request must name one valid host, in a Host field or in its target.",
            ),
            Self::Target => (
                StatusCode::BAD_REQUEST,
                "target",
                "The request's target must be a path, or an absolute URI.",
            ),
            Self::Method => (
                StatusCode::NOT_IMPLEMENTED,
                "method",
                "CONNECT, TRACE and methods with lower-case letters are not forwarded.",
            ),
            Self::TransferCoding => (
                StatusCode::NOT_IMPLEMENTED,
                "transfer_coding",
                "No transfer coding but chunked is understood.",
            ),
            Self::RequestBody(_) => (StatusCode::BAD_REQUEST, "request_body", BROKEN_BODY),
            Self::BodyTooLarge(_) => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "body_too_large",
                "The request's body is too large.",
            ),
            Self::NoServer => (
                StatusCode::SERVICE_UNAVAILABLE,
                "no_server",
                "No upstream server is available at the moment.",
            ),
            Self::TooManyConnections => (
                StatusCode::SERVICE_UNAVAILABLE,
                "too_many_connections",
                "The gateway has too many requests in flight at the moment.",
            ),
            Self::Connect { .. } => (
                StatusCode::BAD_GATEWAY,
                "connect",
                "The upstream server cannot be reached.",
            ),
            Self::Tls { .. } => (
                StatusCode::BAD_GATEWAY,
                "tls",
                "The upstream server and the gateway cannot agree on TLS.",
            ),
            Self::Closed { .. } | Self::BrokenOff { .. } => (
                StatusCode::BAD_GATEWAY,
                "closed",
                "The upstream server closed the connection without a response.",
            ),
            Self::BadResponse { .. }
            | Self::Protocol { .. }
            | Self::Upgraded { .. }
            | Self::NotUpgraded { .. }
            | Self::Handshake { .. } => (StatusCode::BAD_GATEWAY, "bad_response", INVALID_RESPONSE),
            Self::TooLarge { .. } => (
                StatusCode::BAD_GATEWAY,
                "head_too_large",
                "The head of the upstream server's response is too large.",
            ),
            Self::Unprocessed { .. } | Self::Refused { .. } => (
                StatusCode::SERVICE_UNAVAILABLE,
                "refused",
                "The upstream server takes no more requests at the moment.",
            ),
            Self::ConnectTimeout { .. } => (
                StatusCode::GATEWAY_TIMEOUT,
                "connect_timeout",
                "The upstream server could not be reached in time.",
            ),
            Self::ResponseTimeout { .. } => (
                StatusCode::GATEWAY_TIMEOUT,
                "response_timeout",
                "The upstream server did not respond in time.",
            ),
            Self::UpgradeByHttp2 { .. } => (
                StatusCode::NOT_IMPLEMENTED,
                "upgrade",
                "WebSockets are not forwarded to this upstream, which is reached by HTTP/2.",
            ),
            Self::ServerBusy { .. } => (
                StatusCode::SERVICE_UNAVAILABLE,
                "server_busy",
                "The upstream server has too many requests in flight at the moment.",
            ),
            Self::TotalTimeout => (
                StatusCode::GATEWAY_TIMEOUT,
                "total_timeout",
                "The upstream servers did not respond in time.",
            ),
        };
        Report {
            status,
            reason,
            detail,
        }
    }

    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        let Report {
            status,
            reason,
            detail,
        } = self.report();
        let problem = match &self {
            Self::BodyTooLarge(too_large) => too_large.problem(),
            _ => Problem::new(status, detail),
        };
        let mut response = problem.into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            let seconds = HeaderValue::from(rand::random_range(RETRY_SECS));
            response.headers_mut().insert(RETRY_AFTER, seconds);
        }
        response.extensions_mut().insert(UpstreamFailed { reason });
        response
    }
}

/// Whether nothing listens at the address, or nobody has it.
fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable};
    matches!(error.kind(), ConnectionRefused | HostUnreachable)
}

/// Whether the session broke, as opposed to the connection below it.
fn is_tls_error(error: &io::Error) -> bool {
    let cause = error.get_ref();
    let cause = cause.and_then(|cause| cause.downcast_ref::<rustls::Error>());
    cause.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_need_not_look_after_what_the_client_causes() {
        let server: Arc<str> = "app:80".into();
        let broken = || Box::new(io::Error::from(io::ErrorKind::BrokenPipe));
        for error in [
            ProxyError::Host,
            ProxyError::Target,
            ProxyError::Method,
            ProxyError::TransferCoding,
            ProxyError::RequestBody(broken()),
        ] {
            assert!(error.is_client_fault(), "{error}");
        }
        for error in [
            ProxyError::NoServer,
            ProxyError::ConnectTimeout {
                server: Arc::clone(&server),
            },
            ProxyError::ResponseTimeout { server },
            ProxyError::TotalTimeout,
        ] {
            assert!(!error.is_client_fault(), "{error}");
        }
    }
}
