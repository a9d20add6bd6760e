//! What is counted and logged of certificates by ACME.

use std::error::Error;
use std::fmt::Display;
use std::time::Duration;

use tracing::{info, warn};
use weir_telemetry::events::{Chain, TARGET};
use weir_telemetry::{Counter, Metrics, Name};

const ORDERS: Name = Name::new(
    "weir_acme_orders",
    "Attempts to obtain or renew a certificate by ACME, by domain and outcome",
);

/// The metrics of the certificate of one domain.
#[derive(Clone, Debug)]
pub(in crate::app) struct AcmeMetrics {
    succeeded: Counter,
    failed: Counter,
}

impl AcmeMetrics {
    /// The same counters for the same domain.
    pub(in crate::app) fn new(metrics: &Metrics, domain: &str) -> Self {
        let orders = metrics.counters(ORDERS);
        let counter = |outcome| orders.member([("domain", domain), ("outcome", outcome)]);
        Self {
            succeeded: counter("success"),
            failed: counter("failure"),
        }
    }

    /// Counts an attempt to obtain it.
    pub(in crate::app) fn ordered(&self, succeeded: bool) {
        match succeeded {
            true => self.succeeded.inc(),
            false => self.failed.inc(),
        };
    }
}

/// A certificate was obtained by ACME.
pub(super) fn certificate_obtained(
    metrics: &AcmeMetrics,
    domain: &str,
    challenge: &impl Display,
    expires: &impl Display,
) {
    metrics.ordered(true);
    info!(target: TARGET, domain, %challenge, %expires, "certificate obtained");
}

/// A certificate could not be obtained by ACME, or not renewed.
pub(super) fn certificate_unavailable(
    metrics: &AcmeMetrics,
    domain: &str,
    cause: &dyn Error,
    retry_in: Duration,
    has_certificate: bool,
) {
    metrics.ordered(false);
    let (cause, retry_in) = (Chain(cause), retry_in.as_secs());
    if has_certificate {
        warn!(target: TARGET,
            domain,
            %cause,
            retry_in,
            "the certificate cannot be renewed yet; the old one is shown until its end"
        );
    } else {
        warn!(target: TARGET,
            domain,
            %cause,
            retry_in,
            "no certificate can be obtained yet; TLS handshakes fail until then"
        );
    }
}
