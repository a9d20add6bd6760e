//! Events that are rare enough to be logged one by one. Each is a function that logs and counts at
//! once, so that neither is forgotten where something happens.

use std::collections::HashMap;
use std::error::Error;
use std::fmt::{self, Display};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{debug, error, field, info, warn};

use super::{Handshake, Metrics, ProxyHeader, ServerMetrics};

/// The target of these lines, as filters of the log name it.
pub const TARGET: &str = "weir::telemetry::events";

/// The size of a loaded configuration.
#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    /// Its routes.
    pub routes: usize,
    /// Its limits.
    pub limits: usize,
}

/// The gateway listens and has its first configuration.
pub fn started(
    metrics: &Metrics,
    listening: &[SocketAddr],
    admin: Option<SocketAddr>,
    workers: usize,
    loaded: Loaded,
) {
    metrics.loaded(true);
    let Loaded { routes, limits } = loaded;
    info!(target: TARGET,
        listening = %Commas(listening),
        admin = admin.map(field::display),
        workers,
        routes,
        limits,
        version = env!("CARGO_PKG_VERSION"),
        "started"
    );
}

/// A new configuration is in force.
pub fn reloaded(metrics: &Metrics, loaded: Loaded) {
    metrics.loaded(true);
    let Loaded { routes, limits } = loaded;
    info!(target: TARGET, routes, limits, "configuration reloaded");
}

/// A new configuration was refused, for a cause of which each line is logged as one.
pub fn reload_failed(metrics: &Metrics, cause: &impl Display) {
    let cause = cause.to_string();
    // First, for who reads the log and then the metrics.
    metrics.load_refused(cause.clone());
    error!(target: TARGET, "configuration not reloaded; the old one stays in force");
    for line in cause.lines().filter(|line| !line.is_empty()) {
        error!(target: TARGET, "{line}");
    }
}

/// The configuration was read again and is the one in force: after a load that was refused, all is
/// well again.
pub fn unchanged(metrics: &Metrics) {
    metrics.in_force();
    info!(target: TARGET, "configuration unchanged; its files say what is in force");
}

/// Many requests of a peer that is not trusted name other clients.
pub fn untrusted_forwarder(peer: IpAddr) {
    warn!(target: TARGET,
        %peer,
        "requests of a peer that is not trusted name other clients, and all count as the \
         peer's; if it is your proxy, add it to client_address.trusted_proxies"
    );
}

/// No more connections are accepted; those that are open are finished within `grace`.
pub fn draining(grace: Duration) {
    info!(target: TARGET, ?grace, "draining: no new connections, finishing the open ones");
}

/// The drain is over. `aborted` connections outlasted the grace period.
pub fn drained(aborted: usize) {
    match aborted {
        0 => info!(target: TARGET, "drained"),
        cut_off => {
            warn!(target: TARGET, cut_off, "the grace period is over; connections were cut off");
        }
    }
}

/// The store, or this node of it, went out of reach for the nth time since that was logged last.
/// `on_failure` is the policy for requests meanwhile, as the configuration calls it.
pub fn store_unreachable(
    node: Option<&str>,
    cause: Option<&dyn Error>,
    on_failure: &str,
    times: u64,
) {
    warn!(target: TARGET,
        node,
        cause = cause.map(|cause| field::display(Chain(cause))),
        on_failure,
        times = (times > 1).then_some(times),
        "the store is out of reach"
    );
}

/// The store that went out of reach cannot be reached for another cause than was logged.
pub fn store_still_unreachable(node: Option<&str>, cause: &str) {
    warn!(target: TARGET, node, cause, "the store remains out of reach, for another reason");
}

/// The store, or this node of it, can be reached, and does not carry out commands that limits need.
pub fn store_refuses_commands(node: Option<&str>, cause: &dyn Error, on_failure: &str) {
    warn!(target: TARGET,
        node,
        cause = %Chain(cause),
        on_failure,
        "the store does not carry out all commands that the limits need; the gateway is not ready"
    );
}

/// It carries out all of them again.
pub fn store_refuses_no_command(node: Option<&str>) {
    info!(target: TARGET, node, "the store carries out all commands that the limits need");
}

/// The store can be used, but not in every way in which others can.
pub fn store_is_peculiar(what: &str) {
    warn!(target: TARGET, what, "the store cannot be used in every way; told once a minute at most");
}

/// The store, or this node of it, is within reach again.
pub fn store_reachable(node: Option<&str>) {
    info!(target: TARGET, node, "the store is within reach again");
}

/// The store went out of reach and came back, so often since that was logged last.
pub fn store_flapped(node: Option<&str>, times: u64) {
    warn!(target: TARGET,
        node,
        times, "the store went out of reach and came back; told once a minute at most"
    );
}

/// A node that was out of reach is not one of the store's any more, or the gateway ends.
pub fn store_node_left(node: &str) {
    info!(target: TARGET, node, "a node that was out of reach is no longer asked");
}

/// This gateway's clock is far ahead of the store's, or behind it (negative).
pub fn store_clock_differs(offset_seconds: f64, follows_store: bool) {
    if follows_store {
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

/// The clock of decisions followed a jump of the store's, which is negative if it went backward.
pub fn store_clock_stepped(by_seconds: f64) {
    warn!(target: TARGET, by_seconds, "the store's clock has jumped: limits go by its new time");
}

/// The store does not report its time.
pub fn store_clock_unknown(cause: &dyn Error) {
    warn!(target: TARGET,
        cause = %Chain(cause),
        "the store does not say what time it has, so limits go by this gateway's clock, and a \
         wrong one would not be noticed: grant its user the right to TIME"
    );
}

/// A connection could not be accepted.
pub fn accept_failed(metrics: &ServerMetrics, listener: SocketAddr, cause: &std::io::Error) {
    metrics.accept_errors.inc();
    error!(target: TARGET, %listener, %cause, "cannot accept a connection");
}

/// A handshake failed. Clients of all kinds cause that, so it is logged for debugging alone.
pub fn handshake_failed(
    metrics: &ServerMetrics,
    peer: SocketAddr,
    outcome: Handshake,
    cause: &impl Display,
) {
    metrics.handshakes(outcome).inc();
    debug!(target: TARGET, %peer, %cause, "no TLS handshake");
}

/// A connection of a trusted peer had no PROXY header.
pub fn proxy_header_refused(
    metrics: &ServerMetrics,
    peer: SocketAddr,
    outcome: ProxyHeader,
    cause: &impl Display,
    warn: bool,
) {
    metrics.proxy_headers(outcome).inc();
    if warn {
        warn!(target: TARGET,
            %peer,
            %cause,
            "a trusted peer sent no PROXY header; logged once a minute at most"
        );
    } else {
        debug!(target: TARGET, %peer, %cause, "no PROXY header");
    }
}

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

/// The times of the last warnings of several kinds.
#[derive(Debug, Default)]
pub struct LastWarnings(Mutex<HashMap<String, Instant>>);

/// The most kinds that are told apart within a minute.
const MAX_KINDS: usize = 32;

impl LastWarnings {
    /// Whether to warn of this kind now: once a minute at most.
    pub fn is_due(&self, kind: &str) -> bool {
        let mut warned = self.0.lock();
        warned.retain(|_, last| last.elapsed() < WARN_EVERY);
        let may = warned.len() < MAX_KINDS && !warned.contains_key(kind);
        if may {
            warned.insert(kind.to_owned(), Instant::now());
        }
        may
    }
}

/// Items with commas between them.
struct Commas<'a, T>(&'a [T]);

impl<T: Display> Display for Commas<'_, T> {
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

impl Display for Chain<'_> {
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
    #[tokio::test(start_paused = true)]
    async fn each_kind_is_warned_of_once_a_minute_and_no_flood_of_kinds_of_all() {
        let warned = LastWarnings::default();
        assert!(warned.is_due("list") && warned.is_due("limit"));
        assert!(!warned.is_due("list") && !warned.is_due("limit"));
        let others = (0..100).map(|number| number.to_string());
        let due = others.filter(|kind| warned.is_due(kind)).count();
        assert_eq!(due, MAX_KINDS - 2);
        tokio::time::advance(WARN_EVERY).await;
        assert!(warned.is_due("list"));
    }
}
