//! HTTP to the upstream.
//!
//! A request that reaches [`Proxy`] passes through these modules:
//!
//! 1. `request` makes it fit for the upstream: one host, origin form, HTTP/1.1, a length that agrees
//!    with the body, `Via`; `hop` takes away what concerned only the client's connection. What a
//!    client must not ask of a reverse proxy is refused here; `refusal` tells of it beforehand.
//! 2. `upstream` picks the server whose turn it is (`peers`), takes an idle connection of it (`peer`,
//!    `pool`) or opens one (`connection`), and sends the request. If a kept-alive connection turns
//!    out to be closed and nothing was sent, the request goes out on a fresh one. If a server
//!    cannot be connected to, the next one is tried, and the server passed over for a moment.
//! 3. `exchange` sends the request and reads the head of the response, both by `http1`, and notes whose
//!    turn it is, the upstream's or the client's: the response timeout counts the upstream's only.
//! 4. `response` makes the response fit for the client; `body` streams it (`download`) and, when it
//!    was read to the end, gives the connection back. Dropping the future or the body at any time
//!    closes the connection instead, so an upstream notices that the client has gone.
//! 5. When both sides agree on a WebSocket, `upgrade` carries bytes between them, and `websocket` knows where its frames end.
//!
//! Whatever fails up to the response's head becomes a response by the table in `error`; what fails
//! later breaks off the body. Nothing in here knows of limits, accounts or routes, buffers a body,
//! or trusts the client's `Connection` field further than `hop` says.
//!
//! Interim responses of an upstream end here: hyper's server cannot send any, but for the `100 Continue` that it
//! sends itself when the body is asked for. It also drops trailers of a response over HTTP/1.1 that are not
//! announced in `Trailer`.

mod alarm;
mod body;
mod connection;
mod connection_budget;
pub mod demo;
mod download;
mod error;
mod exchange;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod hop;
mod http1;
mod peer;
mod peers;
mod pool;
mod refusal;
mod request;
mod response;
mod server;
mod service;
mod settings;
mod upgrade;
mod upstream;
mod websocket;

#[cfg(test)]
pub use body::ProxyBody;
pub use connection_budget::ConnectionBudget;
pub use refusal::refusal;
pub use server::Server;
pub use service::Proxy;
pub use settings::{HostHeader, UpstreamSettings};
pub use upgrade::Leaving;
pub use upstream::Upstream;

#[cfg(test)]
mod tests;
