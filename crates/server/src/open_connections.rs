//! The connections of one listener and worker that are open.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use weir_telemetry::GaugeGuard;

use super::driver::ConnectionContext;

pub(super) struct OpenConnections {
    context: Arc<ConnectionContext>,
    /// Every open connection holds a token.
    tracker: TaskTracker,
    aborted: Arc<AtomicUsize>,
}

/// Held while a connection is open.
pub(super) struct Open {
    _gauge: GaugeGuard,
    _permit: Option<OwnedSemaphorePermit>,
    _token: TaskTrackerToken,
}

impl OpenConnections {
    pub(super) fn new(context: &Arc<ConnectionContext>) -> Self {
        Self {
            context: Arc::clone(context),
            tracker: TaskTracker::new(),
            aborted: Arc::default(),
        }
    }

    pub(super) fn begin(&self, permit: Option<OwnedSemaphorePermit>) -> Open {
        self.context.metrics.accepted.inc();
        Open {
            _gauge: GaugeGuard::new(&self.context.metrics.open),
            _permit: permit,
            _token: self.tracker.token(),
        }
    }

    /// Counts the connections that were still busy at the end of the grace period.
    pub(super) fn aborted(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.aborted)
    }

    /// Waits until all connections are closed, including upgraded ones. Returns how many were
    /// aborted.
    pub(super) async fn finished(&self) -> usize {
        // Connections end with the grace period by themselves, except upgraded ones. The extra
        // moment lets them finish first.
        let moment = Duration::from_millis(100);
        self.tracker.close();
        let _ = timeout(self.context.drain.grace + moment, self.tracker.wait()).await;
        self.aborted.load(Ordering::Relaxed) + self.tracker.len()
    }
}
