//! What the proxy tells of a request's stay at the upstream, for the access log and the metrics.
//! It travels in the response's extensions.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

/// An upstream server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstreamed {
    /// The server that answered, as `host:port`.
    pub server: Arc<str>,
    /// The status that it answered with.
    pub status: StatusCode,
    /// How long connecting took, servers tried in vain included; `None` on a kept-alive connection.
    pub connect: Option<Duration>,
    /// The time from the request's arrival at the proxy to the head of the response.
    pub head: Duration,
}

/// No upstream server answered; the proxy did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamFailed {
    /// Why, in a word from a small fixed set, such as `connect` or `response_timeout`.
    pub reason: &'static str,
}
