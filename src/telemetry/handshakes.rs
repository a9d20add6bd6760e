//! What is counted of TLS handshakes with clients.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::handles::{Labels, owned};
use super::{ServerMetrics, names, page};

/// How a handshake ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// With keys that were agreed upon anew.
    Full,
    /// With a session that the client had before, which costs far less.
    Resumed,
    /// Client and gateway could not agree, or the client went away.
    Failed,
    /// It took too long.
    TooSlow,
    /// The client did not begin one.
    Plain,
}

impl Handshake {
    const ALL: [Self; 5] = [
        Self::Full,
        Self::Resumed,
        Self::Failed,
        Self::TooSlow,
        Self::Plain,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Resumed => "resumed",
            Self::Failed => "failed",
            Self::TooSlow => "too_slow",
            Self::Plain => "plain_text",
        }
    }
}

/// A handshake that led to no connection. Clients of all kinds cause them, so they are told to
/// those who debug alone.
#[derive(Clone, Copy, Debug)]
pub struct NoHandshake<'a, C> {
    /// The client.
    pub peer: SocketAddr,
    /// How it ended.
    pub how: Handshake,
    /// Why.
    pub cause: &'a C,
}

impl<C: Display> NoHandshake<'_, C> {
    /// Logs and counts it.
    pub fn emit(&self, metrics: &ServerMetrics) {
        metrics.handshakes.ended(self.how);
        tracing::debug!(peer = %self.peer, cause = %self.cause, "no TLS handshake");
    }
}

/// Handshakes by how they ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handshakes(Family<Labels, Counter>);

impl Handshakes {
    /// Counts one.
    pub(crate) fn ended(&self, how: Handshake) {
        self.counter(how).inc();
    }

    fn counter(&self, how: Handshake) -> Counter {
        let labels = vec![(names::OUTCOME, Arc::from(how.as_str()))];
        owned(&self.0, &labels)
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        for how in Handshake::ALL {
            self.counter(how);
        }
        page::register(registry, names::HANDSHAKES, &self.0);
    }
}
