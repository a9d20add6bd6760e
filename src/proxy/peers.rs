//! Whose turn it is among the servers of an upstream, and what happens when one cannot be reached.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::connection::Connection;
use super::connection_budget::ConnectionBudget;
use super::error::ProxyError;
use super::peer::Endpoint;
use super::server::Server;
use super::settings::UpstreamSettings;

/// The servers of an upstream, which take turns.
pub(super) struct Endpoints {
    peers: Box<[Arc<Endpoint>]>,
    next: AtomicUsize,
}

impl Endpoints {
    pub(super) fn new(settings: &UpstreamSettings, budget: &ConnectionBudget) -> Self {
        let max_idle = budget.max_idle(settings.max_idle);
        let peer = |server: &Server| {
            Arc::new(Endpoint::new(
                server.clone(),
                max_idle,
                settings.idle_timeout,
            ))
        };
        let peers = settings.servers.iter().map(peer).collect();
        Self {
            peers,
            next: AtomicUsize::new(0),
        }
    }

    /// The servers to try, the one whose turn it is first. Those that could not be reached lately
    /// are left out; but the only server there is always gets its chance.
    pub(super) fn in_turn(&self, now: Instant) -> impl Iterator<Item = &Arc<Endpoint>> + Clone {
        let first = self.next.fetch_add(1, Ordering::Relaxed) % self.peers.len().max(1);
        let (before, from) = self.peers.split_at(first);
        let only = self.peers.len() == 1;
        let in_turn = from.iter().chain(before);
        in_turn.filter(move |peer| only || peer.is_available(now))
    }
}

/// Opens a connection to the first of the servers that can be reached. Each gets its share of the
/// time, so that one that does not answer leaves some to the others.
pub(super) async fn connect<'p>(
    peers: impl Iterator<Item = &'p Arc<Endpoint>> + Clone,
    within: Duration,
) -> Result<(&'p Arc<Endpoint>, Box<Connection>), ProxyError> {
    let deadline = Instant::now() + within;
    let mut failure = None;
    for (left, peer) in shares(peers) {
        if let Some(error) = failure.take() {
            log_passed_over(&error);
        }
        let share = deadline.saturating_duration_since(Instant::now()) / left;
        match connect_to(peer, share).await {
            Ok(connection) => return Ok((peer, connection)),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or(ProxyError::NoServer))
}

/// The servers, each with the number of those that are left from it on. The last one gets 1, unless
/// servers drop out meanwhile.
fn shares<I: Iterator + Clone>(peers: I) -> impl Iterator<Item = (u32, I::Item)> {
    let count = u32::try_from(peers.clone().count()).unwrap_or(u32::MAX);
    (1..=count).rev().zip(peers)
}

/// The error of the last server is logged with the request that it fails; the others' are not.
fn log_passed_over(error: &ProxyError) {
    let cause = error.source().map(tracing::field::display);
    tracing::warn!(%error, cause, "passing over a server of the upstream");
}

async fn connect_to(peer: &Arc<Endpoint>, within: Duration) -> Result<Box<Connection>, ProxyError> {
    let server = || Arc::clone(peer.server().name());
    let error = match timeout(within, peer.connect()).await {
        Ok(Ok(connection)) => return Ok(connection),
        Ok(Err(source)) => ProxyError::Connect {
            server: server(),
            source,
        },
        Err(_) => ProxyError::ConnectTimeout { server: server() },
    };
    peer.back_off();
    Err(error)
}
