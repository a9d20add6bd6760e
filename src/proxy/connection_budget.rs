//! How many connections to upstreams the process may have, so that they leave file descriptors to
//! everything else.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::error::ProxyError;

/// What upstreams may have; all workers share it. Without bounds by default.
#[derive(Clone, Debug, Default)]
pub struct ConnectionBudget {
    permits: Option<Arc<Semaphore>>,
    /// As in [`UpstreamSettings`](super::UpstreamSettings).
    max_idle: Option<usize>,
}

impl ConnectionBudget {
    /// At most `open` connections at a time, of which `max_idle` per server and worker may be
    /// unused, whatever an upstream's settings allow.
    pub fn new(open: usize, max_idle: usize) -> Self {
        let permits = Semaphore::new(open.min(Semaphore::MAX_PERMITS));
        Self {
            permits: Some(Arc::new(permits)),
            max_idle: Some(max_idle),
        }
    }

    /// How many connections may be unused where the settings allow `wanted`.
    pub(super) fn max_idle(&self, wanted: usize) -> usize {
        self.max_idle.map_or(wanted, |most| most.min(wanted))
    }

    /// Waits for leave to open a connection, which is given back when the permit is dropped.
    pub(super) async fn permit(
        &self,
        within: Duration,
    ) -> Result<Option<OwnedSemaphorePermit>, ProxyError> {
        let Some(permits) = &self.permits else {
            return Ok(None);
        };
        let permit = timeout(within, Arc::clone(permits).acquire_owned()).await;
        permit.map_or(
            Err(ProxyError::TooManyConnections),
            |permit| Ok(permit.ok()),
        )
    }
}
