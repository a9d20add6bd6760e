//! How an upstream is reached and what it is sent: what the configuration makes up its mind about.

use std::time::Duration;

use http::HeaderValue;

use super::server::Server;

/// An upstream's servers, and the times and bounds that hold for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamSettings {
    /// The upstream's name, as logs show it.
    pub name: String,
    /// The servers that take turns.
    pub servers: Vec<Server>,
    /// How long a request may take to get a new connection, to any of the servers.
    pub connect_timeout: Duration,
    /// How long the upstream may keep a request waiting for the head of the response, or an
    /// unfinished request body waiting to be taken further. Waiting for the client does not count.
    pub response_timeout: Duration,
    /// How long an unused connection is kept.
    pub idle_timeout: Duration,
    /// How many unused connections are kept, per server and worker.
    pub max_idle: usize,
    /// What the upstream sees as the request's host.
    pub host: HostHeader,
}

impl UpstreamSettings {
    /// Unless configured otherwise, 5 s to connect.
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
    /// Unless configured otherwise, 60 s until the response's head.
    pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
    /// Unless configured otherwise, 60 s without use.
    pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
    /// Unless configured otherwise, 128 unused connections.
    pub const MAX_IDLE: usize = 128;

    /// An upstream of these servers with the times and bounds that hold unless configured otherwise.
    pub fn new(name: impl Into<String>, servers: Vec<Server>) -> Self {
        Self {
            name: name.into(),
            servers,
            connect_timeout: Self::CONNECT_TIMEOUT,
            response_timeout: Self::RESPONSE_TIMEOUT,
            idle_timeout: Self::IDLE_TIMEOUT,
            max_idle: Self::MAX_IDLE,
            host: HostHeader::default(),
        }
    }
}

/// The `Host` that the upstream gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostHeader {
    /// The one that the client sent.
    #[default]
    Preserve,
    /// The server's own `host:port`.
    Upstream,
    /// Always this one.
    Fixed(HeaderValue),
}
