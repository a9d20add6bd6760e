//! Events that are rare enough to be logged one by one.

use std::error::Error;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use super::{AcmeMetrics, BanMetrics, Handshake, JwksMetrics, Metrics, ProxyHeader, ServerMetrics};

/// The target of these lines, as filters of the log name it.
const TARGET: &str = "weir::telemetry::events";

/// The minimum interval of warnings that would otherwise come with each request.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The time of the last warning of a kind.
#[derive(Debug, Default)]
pub struct LastWarning(Mutex<Option<Instant>>);

impl LastWarning {
    /// Whether to warn now: once a minute at most.
    pub fn is_due(&self) -> bool {
        let mut warned = self.0.lock();
        let may = warned.is_none_or(|last| last.elapsed() >= WARN_EVERY);
        if may {
            *warned = Some(Instant::now());
        }
        may
    }
}

/// The gateway listens and has its first configuration.
#[derive(Clone, Copy, Debug)]
pub struct Started<'a> {
    /// Where clients are served.
    pub listening: &'a [SocketAddr],
    /// Where the admin listener is.
    pub admin: Option<SocketAddr>,
    /// How many workers there are.
    pub workers: usize,
    /// How many routes are loaded.
    pub routes: usize,
    /// How many limits are loaded.
    pub limits: usize,
}

/// A new configuration is in force.
#[derive(Clone, Copy, Debug)]
pub struct Reloaded {
    /// How many routes are loaded.
    pub routes: usize,
    /// How many limits are loaded.
    pub limits: usize,
}

/// A new configuration was refused; the old one stays in force.
#[derive(Clone, Copy, Debug)]
pub struct ReloadFailed<'a, E> {
    /// Why. Each of its lines is logged as one.
    pub cause: &'a E,
}

/// The configuration was read again and is the one in force.
#[derive(Clone, Copy, Debug)]
pub struct Unchanged;

/// Many requests of a peer that is not trusted name other clients.
#[derive(Clone, Copy, Debug)]
pub struct UntrustedForwarder {
    /// The peer.
    pub peer: IpAddr,
}

/// No more connections are accepted; those that are open are finished.
#[derive(Clone, Copy, Debug)]
pub struct Draining {
    /// How long they are waited for.
    pub grace: Duration,
}

/// The drain is over.
#[derive(Clone, Copy, Debug)]
pub struct Drained {
    /// Connections that were aborted because the grace period was over.
    pub aborted: usize,
}

/// The store went out of reach.
#[derive(Clone, Copy)]
pub struct StoreUnreachable<'a> {
    /// Which of its nodes did, if it has several.
    pub node: Option<&'a str>,
    /// Why.
    pub cause: Option<&'a (dyn Error + 'a)>,
    /// What is done about requests meanwhile, as the configuration calls it.
    pub on_failure: &'a str,
    /// How often it went out of reach since that was logged last, this time included.
    pub times: u64,
}

/// The store that went out of reach cannot be reached for another cause than was logged.
#[derive(Clone, Copy, Debug)]
pub struct StoreStillUnreachable<'a> {
    /// Which of its nodes, if it has several.
    pub node: Option<&'a str>,
    /// Why.
    pub cause: &'a str,
}

/// The store is within reach again.
#[derive(Clone, Copy, Debug)]
pub struct StoreReachable<'a> {
    /// Which of its nodes is, if it has several.
    pub node: Option<&'a str>,
}

/// A node that was out of reach is not one of the store's any more, or the gateway ends.
#[derive(Clone, Copy, Debug)]
pub struct StoreNodeLeft<'a> {
    /// Which one.
    pub node: &'a str,
}

/// This gateway's clock was held against the store's.
#[derive(Clone, Copy, Debug)]
pub struct StoreClockMeasured {
    /// By how many seconds it is ahead; negative when it is behind.
    pub seconds: f64,
    /// Whether it is so far off, for the first time, that it has to be told.
    pub is_suspicious: bool,
    /// Whether decisions go by the store's clock, so that limits do not depend on this one.
    pub follows_store: bool,
    /// By how many seconds the time of decisions is ahead of the store's.
    pub slew: f64,
}

/// The clock by which decisions are taken followed a jump of the store's.
#[derive(Clone, Copy, Debug)]
pub struct StoreClockStepped {
    /// By how many seconds; negative if it went backward.
    pub seconds: f64,
}

/// The store does not report its time.
#[derive(Clone, Copy)]
pub struct StoreClockUnknown<'a> {
    /// Why.
    pub cause: &'a (dyn Error + 'a),
}

/// The store went out of reach and came back, again and again.
#[derive(Clone, Copy, Debug)]
pub struct StoreFlapped<'a> {
    /// Which of its nodes did, if it has several.
    pub node: Option<&'a str>,
    /// How often since that was logged last.
    pub times: u64,
}

/// A connection could not be accepted.
#[derive(Clone, Copy, Debug)]
pub struct AcceptFailed<'a> {
    /// Where.
    pub listener: SocketAddr,
    /// Why.
    pub cause: &'a std::io::Error,
}

/// A ban begins.
#[derive(Clone, Copy, Debug)]
pub struct BanBegun<'a> {
    /// The ban's name.
    pub ban: &'a str,
    /// The subject, in which what may be a secret is hashed.
    pub subject: &'a str,
    /// Which offence it was, of those that are not forgotten.
    pub offence: usize,
    /// How long it lasts.
    pub length: Duration,
}

/// A handshake that failed. Clients of all kinds cause them, so they are logged for debugging
/// alone.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeFailed<'a, C> {
    /// The client.
    pub peer: SocketAddr,
    /// How it ended.
    pub how: Handshake,
    /// Why.
    pub cause: &'a C,
}

/// A connection of a trusted peer without a PROXY header.
#[derive(Clone, Copy, Debug)]
pub struct ProxyHeaderRefused<'a, C> {
    /// The peer.
    pub peer: SocketAddr,
    /// What became of it.
    pub how: ProxyHeader,
    /// Why.
    pub cause: &'a C,
    /// Whether to warn of it.
    pub warn: bool,
}

/// A certificate was obtained by ACME.
#[derive(Clone, Copy)]
pub struct CertificateObtained<'a> {
    /// For which domain.
    pub domain: &'a str,
    /// The challenge that was answered.
    pub challenge: &'a dyn fmt::Display,
    /// Until when it is valid.
    pub expires: &'a dyn fmt::Display,
}

/// A certificate could not be obtained by ACME.
#[derive(Clone, Copy)]
pub struct CertificateUnavailable<'a> {
    /// For which domain.
    pub domain: &'a str,
    /// Why.
    pub cause: &'a (dyn Error + 'a),
    /// How long until the next attempt.
    pub retry_in: Duration,
    /// Whether there is one that could not be renewed.
    pub has_certificate: bool,
}

/// A key set was fetched.
#[derive(Clone, Copy, Debug)]
pub struct JwksFetched<'a> {
    /// From where.
    pub url: &'a str,
    /// When.
    pub at: SystemTime,
    /// Whether there were no keys before.
    pub is_first: bool,
}

/// A key set could not be fetched.
#[derive(Clone, Copy)]
pub struct JwksUnavailable<'a> {
    /// From where.
    pub url: &'a str,
    /// Why.
    pub cause: &'a (dyn Error + 'a),
    /// Whether to warn of it.
    pub warn: bool,
}

/// Keys were not fetched again for too long, and verify nothing any more.
#[derive(Clone, Copy, Debug)]
pub struct JwksExpired<'a> {
    /// From where they came.
    pub url: &'a str,
}

impl Started<'_> {
    /// Logs and counts it.
    pub fn emit(&self, metrics: &Metrics) {
        metrics.loaded(true);
        info!(target: TARGET,
            listening = %Commas(self.listening),
            admin = self.admin.map(tracing::field::display),
            workers = self.workers,
            routes = self.routes,
            limits = self.limits,
            version = env!("CARGO_PKG_VERSION"),
            "started"
        );
    }
}

impl Reloaded {
    /// Logs and counts it.
    pub fn emit(&self, metrics: &Metrics) {
        metrics.loaded(true);
        info!(target: TARGET,
            routes = self.routes,
            limits = self.limits,
            "configuration reloaded"
        );
    }
}

impl<E: fmt::Display> ReloadFailed<'_, E> {
    /// Logs and counts it.
    pub fn emit(&self, metrics: &Metrics) {
        let cause = self.cause.to_string();
        // First, for who reads the log and then the metrics.
        metrics.load_refused(cause.clone());
        error!(target: TARGET, "configuration not reloaded; the old one stays in force");
        for line in cause.lines().filter(|line| !line.is_empty()) {
            error!(target: TARGET, "{line}");
        }
    }
}

impl Unchanged {
    /// Logs it. After a load that was refused, all is well again.
    pub fn emit(&self, metrics: &Metrics) {
        metrics.in_force();
        info!(target: TARGET, "configuration unchanged; its files say what is in force");
    }
}

impl UntrustedForwarder {
    /// Logs it.
    pub fn emit(self) {
        warn!(target: TARGET,
            peer = %self.peer,
            "requests of a peer that is not trusted name other clients, and all count as the \
             peer's; if it is your proxy, add it to client_address.trusted_proxies"
        );
    }
}

impl Draining {
    /// Logs it.
    pub fn emit(&self) {
        info!(target: TARGET, grace = ?self.grace, "draining: no new connections, finishing the open ones");
    }
}

impl Drained {
    /// Logs it.
    pub fn emit(&self) {
        match self.aborted {
            0 => info!(target: TARGET, "drained"),
            aborted => warn!(target: TARGET,
                cut_off = aborted,
                "the grace period is over; connections were cut off"
            ),
        }
    }
}

impl StoreUnreachable<'_> {
    /// Logs it.
    pub fn emit(&self) {
        warn!(target: TARGET,
            node = self.node,
            cause = self
                .cause
                .map(|cause| tracing::field::display(Chain(cause))),
            on_failure = self.on_failure,
            times = (self.times > 1).then_some(self.times),
            "the store is out of reach"
        );
    }
}

impl StoreStillUnreachable<'_> {
    /// Logs it.
    pub fn emit(&self) {
        warn!(target: TARGET,
            node = self.node,
            cause = self.cause,
            "the store remains out of reach, for another reason"
        );
    }
}

impl StoreNodeLeft<'_> {
    /// Logs it.
    pub fn emit(&self) {
        info!(target: TARGET,
            node = self.node,
            "a node that was out of reach is no longer asked"
        );
    }
}

impl StoreReachable<'_> {
    /// Logs it.
    pub fn emit(&self) {
        info!(target: TARGET, node = self.node, "the store is within reach again");
    }
}

impl StoreClockMeasured {
    /// Counts it, and logs it if it has to be told.
    pub fn emit(&self, metrics: &Metrics) {
        let offset_seconds = self.seconds;
        metrics.store_clock_offset(offset_seconds);
        metrics.store_clock_slew.set(self.slew);
        if !self.is_suspicious {
            return;
        }
        if self.follows_store {
            info!(target: TARGET,
                offset_seconds,
                "this gateway's clock and the store's differ: limits go by the store's; told once"
            );
        } else {
            warn!(target: TARGET,
                offset_seconds,
                "this gateway's clock and the store's differ: set them by NTP; told once"
            );
        }
    }
}

impl StoreClockStepped {
    /// Logs it.
    pub fn emit(&self) {
        warn!(target: TARGET,
            by_seconds = self.seconds,
            "the store's clock has jumped: limits go by its new time"
        );
    }
}

impl StoreClockUnknown<'_> {
    /// Logs it.
    pub fn emit(&self) {
        warn!(target: TARGET,
            cause = %Chain(self.cause),
            "the store does not say what time it has, so limits go by this gateway's clock, and a \
             wrong one would not be noticed: grant its user the right to TIME"
        );
    }
}

impl StoreFlapped<'_> {
    /// Logs it.
    pub fn emit(&self) {
        let times = self.times;
        warn!(target: TARGET,
            node = self.node,
            times, "the store went out of reach and came back; told once a minute at most"
        );
    }
}

impl AcceptFailed<'_> {
    /// Logs and counts it.
    pub fn emit(&self, metrics: &ServerMetrics) {
        metrics.accept_errors.inc();
        error!(target: TARGET, listener = %self.listener, cause = %self.cause, "cannot accept a connection");
    }
}

impl BanBegun<'_> {
    /// Logs and counts it.
    pub fn emit(&self, metrics: &BanMetrics) {
        metrics.begun();
        let Self {
            ban,
            subject,
            offence,
            length,
        } = *self;
        let duration_s = length.as_secs_f64();
        info!(target: TARGET, ban, subject, offence, duration_s, "ban begun");
    }
}

impl<C: fmt::Display> HandshakeFailed<'_, C> {
    /// Logs and counts it.
    pub fn emit(&self, metrics: &ServerMetrics) {
        metrics.handshakes.ended(self.how);
        debug!(target: TARGET, peer = %self.peer, cause = %self.cause, "no TLS handshake");
    }
}

impl<C: fmt::Display> ProxyHeaderRefused<'_, C> {
    /// Logs and counts it.
    pub fn emit(&self, metrics: &ServerMetrics) {
        metrics.proxy_headers.read(self.how);
        let Self { peer, cause, .. } = *self;
        if self.warn {
            warn!(
                target: TARGET,
                %peer,
                %cause,
                "a trusted peer sent no PROXY header; logged once a minute at most"
            );
        } else {
            debug!(target: TARGET, %peer, %cause, "no PROXY header");
        }
    }
}

impl CertificateObtained<'_> {
    /// Logs and counts it.
    pub fn emit(&self, metrics: &AcmeMetrics) {
        metrics.ordered(true);
        let Self {
            domain,
            challenge,
            expires,
        } = *self;
        info!(target: TARGET, domain, %challenge, %expires, "certificate obtained");
    }
}

impl CertificateUnavailable<'_> {
    /// Logs and counts it.
    pub fn emit(&self, metrics: &AcmeMetrics) {
        metrics.ordered(false);
        let (domain, cause) = (self.domain, Chain(self.cause));
        let retry_in = self.retry_in.as_secs();
        if self.has_certificate {
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
}

impl JwksFetched<'_> {
    /// Logs and counts it.
    pub fn emit(&self, metrics: &JwksMetrics) {
        let at = self.at.duration_since(UNIX_EPOCH).unwrap_or_default();
        metrics.fetched(at.as_secs());
        let url = self.url;
        if self.is_first {
            info!(target: TARGET, url, "key set fetched");
        } else {
            debug!(target: TARGET, url, "key set fetched again");
        }
    }
}

impl JwksUnavailable<'_> {
    /// Logs and counts it.
    pub fn emit(&self, metrics: &JwksMetrics) {
        metrics.failed();
        let (url, cause) = (self.url, Chain(self.cause));
        if self.warn {
            warn!(target: TARGET, url, %cause, "a key set cannot be fetched; logged once a minute at most");
        } else {
            debug!(target: TARGET, url, %cause, "a key set cannot be fetched");
        }
    }
}

impl JwksExpired<'_> {
    /// Logs it.
    pub fn emit(&self) {
        let url = self.url;
        error!(target: TARGET,
            url,
            "a key set is too old; no token is verified with it until it can be fetched"
        );
    }
}

/// Items with commas between them.
struct Commas<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for Commas<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{item}")?;
        }
        Ok(())
    }
}

/// An error and all of its sources on one line, without repetitions.
pub struct Chain<'a>(pub &'a (dyn Error + 'a));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = self.0.to_string();
        f.write_str(&last)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            let text = error.to_string();
            if text != last {
                write!(f, ": {text}")?;
            }
            last = text;
            source = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use weir_store::StoreError;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Repeating(#[source] io::Error);

    #[test]
    fn a_cause_that_repeats_the_one_before_is_not_logged_twice() {
        let cause = Repeating(io::ErrorKind::UnexpectedEof.into());
        let error = StoreError::Lost(Box::new(cause));
        assert_eq!(
            Chain(&error).to_string(),
            "the store is out of reach: unexpected end of file"
        );
    }
}
