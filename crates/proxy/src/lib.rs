//! HTTP to the upstream.
//!
//! A request that reaches [`Proxy`] passes through these modules:
//!
//! 1. `request` makes it fit for the upstream: one host, origin form, HTTP/1.1, a length that
//!    agrees with the body, `Via`; `hop_by_hop` takes away what concerned only the client's
//!    connection. What a client must not ask of a reverse proxy is refused here, or beforehand by
//!    [`refusal`], as the gateway's stack does.
//! 2. `upstream` picks the next server (`endpoint`), takes an idle connection from its `pool` or
//!    opens one (`connection`), as far as `connection_limit` allows, and sends the request. If a
//!    reused connection turns out to be closed and nothing was sent, the request goes out on a new
//!    one. If a server cannot be connected to, the next one is tried, and the server is passed over
//!    for a moment.
//! 3. `exchange` sends the request and reads the head of the response, both by `http1`.
//!    `outgoing_body` has the request's body for both protocols, and counts the response timeout
//!    only while the upstream, not the client, is waited for.
//! 4. `service` makes the response fit for the client; `response_body` streams it and, when it was
//!    read to the end, releases the connection. Dropping the future or the body at any time closes
//!    the connection instead, so an upstream notices that the client has gone.
//! 5. With HTTP/2, `http2` takes the place of the connection, `exchange` and body of HTTP/1.1;
//!    `channel` is either. Their bytes pass through a `stream`, perhaps with `tls`, to one of the
//!    `addresses` of the server, which a `resolver` looks up if the system does not.
//! 6. A `sticky` cookie leads a client back to the server that it had.
//! 7. When both sides agree on a WebSocket, `websocket` carries bytes between them. For a client of
//!    HTTP/2, `handshake` holds the server's response against the request.
//!
//! An error before the response's head becomes a response by the table in `error`; a later one
//! breaks off the body. Nothing in here knows of limits, accounts or routes, or trusts the client's
//! `Connection` header further than `hop_by_hop` says; and no body is kept without
//! `request_buffering`.
//!
//! Interim responses of an upstream end here: hyper's server cannot send any, but for the `100
//! Continue` that it sends itself when the body is asked for. It also drops trailers of a response
//! over HTTP/1.1 that are not announced in `Trailer`.

#![forbid(unsafe_code)]

mod addresses;
mod attempt;
mod balance;
mod channel;
mod connection;
mod connection_limit;
pub mod demo;
mod endpoint;
mod error;
mod exchange;
#[cfg(any(test, fuzzing, feature = "fuzzing"))]
pub mod fuzzing;
mod handshake;
mod health_check;
mod hop_by_hop;
mod http1;
mod http2;
mod outgoing_body;
mod pool;
mod proxy_header;
mod request;
mod request_buffering;
mod resolver;
mod response_body;
mod response_bounds;
mod retry;
mod service;
mod settings;
mod sticky;
mod stream;
mod tls;
mod tried;
mod upstream;
mod websocket;

pub use balance::{Balance, Ejection, HealthCheck, Retries, Sticky, UpstreamState};
pub use endpoint::ConnectionBudget;
pub use health_check::start_health_checks;
pub use proxy_header::{ConnectionAddrs, ProxyProtocol};
pub use request::refusal;
pub use request_buffering::RequestBuffering;
pub use resolver::lookup_srv;
#[cfg(test)]
pub use response_body::ProxyBody;
pub use service::Proxy;
pub use settings::{HostHeader, Server, ServerError, SrvRecord, Timeouts, UpstreamSettings};
pub use tls::{Authorities, Protocol, TlsError, TlsSettings, UpstreamTls};
pub use upstream::Upstream;
pub use websocket::ShutdownSignal;

#[cfg(test)]
mod tests;
