//! What is counted and logged of key sets.

use std::error::Error;
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::{debug, error, info, warn};
use weir_telemetry::events::{Chain, TARGET};
use weir_telemetry::{Counter, Gauge, Metrics, Name};

const FETCHES: Name = Name::new(
    "weir_jwks_fetches",
    "Fetches of the key sets that tokens are verified with, by URL and outcome",
);

const FETCHED_AT: Name = Name::new(
    "weir_jwks_fetched_timestamp_seconds",
    "When the key set was fetched last, in seconds since the Unix epoch; 0 before",
);

/// The metrics of one key set.
#[derive(Clone, Debug)]
pub(in crate::app) struct JwksMetrics {
    succeeded: Counter,
    failed: Counter,
    fetched_at: Gauge,
}

impl JwksMetrics {
    /// The same counters for the same URL.
    pub(in crate::app) fn new(metrics: &Metrics, url: &str) -> Self {
        let all = metrics.counters(FETCHES);
        let fetches = |outcome| all.member([("url", url), ("outcome", outcome)]);
        Self {
            succeeded: fetches("success"),
            failed: fetches("failure"),
            fetched_at: metrics.gauges(FETCHED_AT).member([("url", url)]),
        }
    }

    /// Counts a fetch, and when it was, in seconds since the Unix epoch.
    pub(in crate::app) fn fetched(&self, at: u64) {
        self.succeeded.inc();
        self.fetched_at.set(i64::try_from(at).unwrap_or(i64::MAX));
    }

    /// Counts a fetch that failed.
    pub(in crate::app) fn failed(&self) {
        self.failed.inc();
    }
}

/// A key set was fetched now.
pub(super) fn fetched(metrics: &JwksMetrics, url: &str, is_first: bool) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    metrics.fetched(now.unwrap_or_default().as_secs());
    if is_first {
        info!(target: TARGET, url, "key set fetched");
    } else {
        debug!(target: TARGET, url, "key set fetched again");
    }
}

/// A key set could not be fetched.
pub(super) fn unavailable(metrics: &JwksMetrics, url: &str, cause: &dyn Error, warn: bool) {
    metrics.failed();
    let cause = Chain(cause);
    if warn {
        warn!(target: TARGET, url, %cause, "a key set cannot be fetched; logged once a minute at most");
    } else {
        debug!(target: TARGET, url, %cause, "a key set cannot be fetched");
    }
}

/// Keys were not fetched again for too long, and verify nothing any more.
pub(super) fn expired(url: &str) {
    error!(target: TARGET,
        url,
        "a key set is too old; no token is verified with it until it can be fetched"
    );
}
