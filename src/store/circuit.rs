//! What opens and closes the circuit breaker of a remote store, or of one of its nodes: a task that
//! pings while it is closed, and probes while it is open.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{self, Instant};

use crate::store::HealthCheck;
use crate::store::breaker::{Backoff, Breaker};

/// How often a server is pinged while it is reachable and nothing else shows that it is.
const PING_EVERY: Duration = Duration::from_secs(1);

/// A server that fails sooner than this after it came back did not really come back.
const STEADY: Duration = Duration::from_secs(10);

/// The longest that that server is left alone before it is probed again.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A task that ends when this is dropped.
pub(super) struct CircuitSupervisor(JoinHandle<()>);

impl Drop for CircuitSupervisor {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl CircuitSupervisor {
    /// Supervises a breaker by what the server says. An answer that takes longer than `timeout` is
    /// not one. Must be called on a tokio runtime.
    pub(super) fn spawn(
        server: Arc<impl HealthCheck>,
        breaker: Arc<Breaker>,
        timeout: Duration,
    ) -> Self {
        let circuit = Circuit {
            server,
            breaker,
            timeout,
        };
        Self(tokio::spawn(circuit.supervise()))
    }
}

struct Circuit<S> {
    server: Arc<S>,
    breaker: Arc<Breaker>,
    timeout: Duration,
}

impl<S: HealthCheck> Circuit<S> {
    /// Opens the breaker of a server that is silently gone, and closes it when the server is back.
    async fn supervise(self) {
        let retry = self.breaker.settings().retry;
        let backoff = || Backoff::new(retry, LONGEST_PAUSE);
        let mut pause = backoff();
        loop {
            let closed_at = Instant::now();
            self.while_closed().await;
            if closed_at.elapsed() < STEADY {
                // A server that fails as soon as it is asked again is given a longer pause each
                // time.
                time::sleep(pause.wait()).await;
            } else {
                pause = backoff();
            }
            self.while_open().await;
            self.breaker.close();
        }
    }

    /// Returns when the breaker is open; pings the server meanwhile. The first ping comes at once,
    /// so that a server that was never there is known before a request comes.
    async fn while_closed(&self) {
        while !self.breaker.is_open() {
            if let Err(error) = self.server.ping().await {
                self.breaker.open(&error);
            }
            tokio::select! {
                () = self.breaker.opened() => {}
                // Were it left to the next call, the server would be called within reach again as
                // soon as the other workers have found it back.
                _ = self.server.lost() => {}
                () = time::sleep(PING_EVERY) => {}
            }
        }
    }

    /// Returns when the server decides again. The first waits are shorter than asked for, in case
    /// the connection was only cut.
    async fn while_open(&self) {
        let retry = self.breaker.settings().retry;
        let mut backoff = Backoff::new(retry / 8, retry);
        while !self.decides_in_time().await {
            time::sleep(backoff.wait()).await;
        }
    }

    /// Whether the server decides now, and as fast as calls need it.
    async fn decides_in_time(&self) -> bool {
        let start = Instant::now();
        self.server.probe().await.is_ok() && start.elapsed() <= self.timeout
    }
}
