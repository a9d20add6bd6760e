//! The state of one server of an upstream, for all workers: its requests in flight, whether
//! failures have ejected it, and the result of active health checks.
//!
//! An ejection ends by a probe: when its time is over, one request is sent to the server. If it is
//! answered, the server is back; if it fails, the server is out for twice as long, or for as long
//! again if it is out beyond the share. While a probe is in flight, the next one waits for as long as
//! the last ejection took, so a probe whose client leaves needs no clean-up, and one that takes long
//! does not hold up the others.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;
use weir_runtime::sync::Mutex;
use weir_runtime::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed,
};

use super::settings::Ejection;
use crate::addresses::CachedAddresses;
use crate::connection_limit::ConnectionLimit;
use crate::settings::{Server, UpstreamSettings};

/// The target of log lines, which filters name.
const TARGET: &str = "weir::proxy::balance::server_state";

/// A weight in these units, so that a fraction of the least one is a whole number.
const WEIGHT_UNIT: u64 = 1024;

/// The least share of its weight that a server gets while it starts slowly.
const MIN_SHARE: u64 = WEIGHT_UNIT / 16;

/// A client that leaves after this time, while the server responds to no one, counts as a failure:
/// otherwise clients that are less patient than the response timeout would hide a server that never
/// answers.
const ABANDONED_AFTER: Duration = Duration::from_secs(1);

pub(crate) struct ServerState {
    upstream: Arc<str>,
    name: Arc<str>,
    weight: AtomicU64,
    slow_start: Duration,
    ejection: Arc<EjectionBound>,
    /// Times are counted from here.
    epoch: Instant,
    in_flight: AtomicUsize,
    /// Failures since the last success. From the ejection's number on the server counts as failing,
    /// even if it cannot be ejected.
    failures: AtomicU32,
    last_failure: Mutex<Option<Failure>>,
    responded_at: AtomicU64,
    /// When the next probe may be sent; 0 for a server that is not ejected.
    next_probe: AtomicU64,
    /// How long the last ejection takes or took, in nanoseconds; 0 before the first one.
    ejected_for: AtomicU64,
    /// Whether it was ejected beyond the share.
    beyond_share: AtomicBool,
    /// When the last ejection or failing health check ended; 0 before the first.
    returned_at: AtomicU64,
    unhealthy: AtomicBool,
    /// Whether it is on the list no more, so that requests in flight decide nothing.
    has_left: AtomicBool,
    /// Whether its last failure was that it accepts requests and does not answer them.
    silent: AtomicBool,
    ejections: AtomicU64,
    /// How many connections it may have, if that is bounded.
    connections: Option<Arc<ConnectionLimit>>,
    addresses: CachedAddresses,
}

/// The settings, and how many servers of the upstream are ejected.
pub(super) struct EjectionBound {
    settings: Ejection,
    max: AtomicUsize,
    /// As many if those beyond the others refuse connections: they serve nobody in any case, and a
    /// server that is overloaded does not refuse any.
    max_refusing: AtomicUsize,
    ejected: AtomicUsize,
}

impl EjectionBound {
    /// Without settings, failures are counted, and eject none of the servers.
    pub(super) fn new(settings: Option<&Ejection>) -> Self {
        Self {
            max: AtomicUsize::new(0),
            max_refusing: AtomicUsize::new(0),
            settings: settings.cloned().unwrap_or_default(),
            ejected: AtomicUsize::new(0),
        }
    }

    /// Sets which servers the upstream has from now on. All may be ejected that have backups.
    pub(super) fn set_servers(&self, servers: &[Server]) {
        let last = servers.iter().map(Server::priority).max();
        let without_backup = |server: &&Server| Some(server.priority()) == last;
        let last = servers.iter().filter(without_backup).count();
        let max = servers.len() - last + self.settings.max_ejected_servers(last);
        self.max.store(max, Relaxed);
        let max_refusing = servers.len().saturating_sub(1);
        self.max_refusing.store(max_refusing, Relaxed);
    }

    /// Takes the place of one more that is ejected, if there is one. Tells whether that is beyond
    /// the share.
    fn take(&self, failure: Failure) -> Option<bool> {
        let share = self.max.load(Relaxed);
        let max = match failure {
            Failure::Refused => self.max_refusing.load(Relaxed),
            _ => share,
        };
        let more = |ejected| (ejected < max).then_some(ejected + 1);
        let before = self.ejected.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(before >= share)
    }

    /// Whether more are ejected than the share.
    fn is_exceeded(&self) -> bool {
        self.ejected.load(Relaxed) > self.max.load(Relaxed)
    }

    fn give_back(&self) {
        self.ejected.fetch_sub(1, Relaxed);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nothing listens at its address.
    Refused,
    /// It cannot be connected to for another reason, or not in time.
    Connect,
    /// It and the gateway cannot agree on TLS, as where it speaks plain HTTP.
    Tls,
    Timeout,
    /// It closed the connection, or what it sent is not a response.
    Response,
    Status,
    /// The client left before the server responded.
    Abandoned,
}

impl Failure {
    fn as_str(self) -> &'static str {
        match self {
            Self::Refused | Self::Connect => "it cannot be connected to",
            Self::Tls => "it and the gateway cannot agree on TLS",
            Self::Timeout => "it does not respond in time",
            Self::Response => "it closes connections, or sends no valid responses",
            Self::Status => "it responds with statuses that are failures",
            Self::Abandoned => "it does not respond before clients leave",
        }
    }
}

/// Whether a server should get a request now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerStatus {
    Available,
    /// Its ejection is over: the next request is a probe.
    ProbeDue,
    Unavailable,
}

/// Decides what the outcome of a request does to an ejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttemptKind {
    Regular,
    Probe,
    /// No server is available, so that all are tried.
    LastResort,
}

impl ServerState {
    pub(super) fn new(
        server: &Server,
        settings: &UpstreamSettings,
        ejection: Arc<EjectionBound>,
        epoch: Instant,
    ) -> Self {
        let max_connections = settings.max_connections;
        Self {
            upstream: settings.name.as_str().into(),
            name: Arc::clone(server.name()),
            weight: AtomicU64::new(u64::from(server.weight()) * WEIGHT_UNIT),
            slow_start: settings.slow_start,
            ejection,
            epoch,
            in_flight: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            last_failure: Mutex::default(),
            responded_at: AtomicU64::new(0),
            next_probe: AtomicU64::new(0),
            ejected_for: AtomicU64::new(0),
            beyond_share: AtomicBool::new(false),
            returned_at: AtomicU64::new(0),
            unhealthy: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            ejections: AtomicU64::new(0),
            connections: max_connections.map(|most| Arc::new(ConnectionLimit::new(most))),
            addresses: CachedAddresses::new(&settings.resolvers),
        }
    }

    /// How many connections it may have, if that is bounded.
    pub(crate) fn connections(&self) -> Option<&Arc<ConnectionLimit>> {
        self.connections.as_ref()
    }

    pub(crate) fn addresses(&self) -> &CachedAddresses {
        &self.addresses
    }

    /// Nanoseconds since just before the epoch, so never 0.
    fn stamp(&self, at: Instant) -> u64 {
        nanos(at.saturating_duration_since(self.epoch)) + 1
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    pub(crate) fn status(&self, now: Instant) -> ServerStatus {
        if self.unhealthy.load(Relaxed) {
            return ServerStatus::Unavailable;
        }
        match self.next_probe.load(Relaxed) {
            0 => ServerStatus::Available,
            next if next <= self.stamp(now) => ServerStatus::ProbeDue,
            _ => ServerStatus::Unavailable,
        }
    }

    /// Whether it is ejected because it does not answer, so that trying it costs a time-out.
    pub(crate) fn is_silent(&self) -> bool {
        self.next_probe.load(Relaxed) != 0 && self.silent.load(Relaxed)
    }

    /// Whether it has responded, and not failed since.
    pub(crate) fn is_proven(&self) -> bool {
        self.responded_at.load(Relaxed) != 0 && self.failures.load(Relaxed) == 0
    }

    /// Its weight, unless that changes while it starts slowly.
    pub(crate) fn constant_weight(&self) -> Option<u64> {
        let weight = || self.weight.load(Relaxed);
        self.slow_start.is_zero().then(weight)
    }

    /// Its weight, which grows to the whole while it starts slowly.
    pub(crate) fn weight(&self, now: Instant) -> u64 {
        let weight = self.weight.load(Relaxed);
        let returned_at = self.returned_at.load(Relaxed);
        let window = nanos(self.slow_start);
        if returned_at == 0 || window == 0 {
            return weight;
        }
        let since = self.stamp(now).saturating_sub(returned_at);
        if since >= window {
            return weight;
        }
        let share = u128::from(since) * u128::from(WEIGHT_UNIT) / u128::from(window);
        let share = u64::try_from(share).map_or(WEIGHT_UNIT, |share| share.max(MIN_SHARE));
        (weight * share / WEIGHT_UNIT).max(1)
    }

    /// The server is off the list: it is none of those that are ejected, and never will be.
    pub(super) fn leave(&self) {
        self.has_left.store(true, Relaxed);
        if self.next_probe.swap(0, Relaxed) != 0 {
            self.ejection.give_back();
        }
    }

    /// The server has joined others that serve already.
    pub(super) fn join(&self, now: Instant) {
        self.returned_at.store(self.stamp(now), Relaxed);
    }

    pub(super) fn set_weight(&self, weight: u32) {
        let weight = u64::from(weight) * WEIGHT_UNIT;
        self.weight.store(weight, Relaxed);
    }

    /// Begins a request to this server, unless another one has become its probe meanwhile.
    pub(crate) fn begin(self: &Arc<Self>, now: Instant) -> Option<Attempt> {
        let next = self.next_probe.load(Relaxed);
        if next == 0 {
            return Some(self.enter(AttemptKind::Regular, now));
        }
        let after = self.stamp(now) + self.ejected_for.load(Relaxed);
        let claimed = self
            .next_probe
            .compare_exchange(next, after, Relaxed, Relaxed);
        claimed.ok().map(|_| self.enter(AttemptKind::Probe, now))
    }

    /// Begins a request although the server may be out, because no other is available.
    pub(crate) fn begin_as_last_resort(self: &Arc<Self>, now: Instant) -> Attempt {
        self.enter(AttemptKind::LastResort, now)
    }

    fn enter(self: &Arc<Self>, kind: AttemptKind, began: Instant) -> Attempt {
        self.in_flight.fetch_add(1, Relaxed);
        Attempt {
            server: Arc::clone(self),
            kind,
            began,
            settled: false,
        }
    }

    /// Takes the result of an active health check.
    pub(crate) fn set_healthy(&self, healthy: bool, cause: &str) {
        let was_unhealthy = self.unhealthy.swap(!healthy, Relaxed);
        let (upstream, server) = (&*self.upstream, &*self.name);
        match (was_unhealthy, healthy) {
            (true, true) => {
                self.returned_at.store(self.stamp(Instant::now()), Relaxed);
                tracing::info!(target: TARGET, upstream, server, "server healthy");
            }
            (false, false) => {
                tracing::warn!(target: TARGET, upstream, server, cause, "server unhealthy");
            }
            _ => {}
        }
    }

    fn responded(&self, kind: AttemptKind, now: Instant) {
        self.responded_at.store(self.stamp(now), Relaxed);
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
        }
        if kind != AttemptKind::Regular {
            self.readmit(now);
        }
    }

    fn readmit(&self, now: Instant) {
        if self.next_probe.swap(0, Relaxed) == 0 {
            return;
        }
        self.ejection.give_back();
        self.returned_at.store(self.stamp(now), Relaxed);
        let (upstream, server) = (&*self.upstream, &*self.name);
        tracing::info!(target: TARGET, upstream, server, "server readmitted");
    }

    fn failed(&self, failure: Failure, kind: AttemptKind, began: Instant) {
        if self.has_left.load(Relaxed) {
            return;
        }
        let bound = &self.ejection;
        *self.last_failure.lock() = Some(failure);
        let now = self.stamp(Instant::now());
        let silent = matches!(failure, Failure::Timeout | Failure::Abandoned);
        if self.next_probe.load(Relaxed) != 0 {
            self.silent.store(silent, Relaxed);
            if kind == AttemptKind::Probe {
                self.probe_failed(failure, now);
            }
            return;
        }
        let failures = self.failures.fetch_add(1, Relaxed).saturating_add(1);
        let is_enough = match failure {
            Failure::Refused | Failure::Connect | Failure::Tls => true,
            // It has answered nothing in all this time, so it is not just one request that takes
            // long.
            Failure::Timeout if self.responded_at.load(Relaxed) < self.stamp(began) => true,
            _ => failures >= bound.settings.failures,
        };
        if is_enough {
            self.failures.fetch_max(bound.settings.failures, Relaxed);
            if let Some(beyond_share) = bound.take(failure) {
                self.silent.store(silent, Relaxed);
                self.beyond_share.store(beyond_share, Relaxed);
                self.eject(bound, failure, now);
            }
        }
    }

    /// Keeps an ejected server out, unless another request has readmitted it meanwhile: it does not
    /// count as ejected any more, and would be readmitted once more.
    pub(super) fn probe_failed(&self, failure: Failure, now: u64) {
        let time = self.next_ejection(failure, now);
        self.ejected_for.store(time, Relaxed);
        let later = |next| (next != 0).then_some(now + time);
        let _ = self.next_probe.fetch_update(Relaxed, Relaxed, later);
    }

    fn eject(&self, bound: &EjectionBound, failure: Failure, now: u64) {
        let time = self.next_ejection(failure, now);
        let until = now + time;
        let ejected = self.next_probe.compare_exchange(0, until, Relaxed, Relaxed);
        if ejected.is_err() {
            return bound.give_back();
        }
        self.ejected_for.store(time, Relaxed);
        self.failures.store(0, Relaxed);
        self.ejections.fetch_add(1, Relaxed);
        tracing::warn!(
            target: TARGET,
            upstream = &*self.upstream,
            server = &*self.name,
            cause = failure.as_str(),
            seconds = Duration::from_nanos(time).as_secs_f64(),
            "server ejected"
        );
    }

    /// How long the next ejection takes: twice as long as the last one, unless the server has been
    /// back for twice as long as it was out.
    ///
    /// Those beyond the share stay out for the base time alone: when all have refused connections
    /// and are back, the one that could not be ejected would serve all clients meanwhile. To learn
    /// that a server still refuses takes next to no time.
    fn next_ejection(&self, failure: Failure, now: u64) -> u64 {
        let settings = &self.ejection.settings;
        let (base, max) = (nanos(settings.base_time), nanos(settings.max_time));
        let is_beyond = self.beyond_share.load(Relaxed) && self.ejection.is_exceeded();
        if is_beyond && failure == Failure::Refused {
            return base;
        }
        let is_out = self.next_probe.load(Relaxed) != 0;
        let back_for = now.saturating_sub(self.returned_at.load(Relaxed));
        match self.ejected_for.load(Relaxed) {
            0 => base,
            last if !is_out && back_for > last.saturating_mul(2) => base,
            last => last.saturating_mul(2),
        }
        .min(max.max(base))
    }

    /// Whether it is in use by requests: neither ejected nor unhealthy.
    pub(super) fn is_available(&self) -> bool {
        !self.unhealthy.load(Relaxed) && self.next_probe.load(Relaxed) == 0
    }

    /// Why it is out of use, or why requests to it fail, if so.
    pub(super) fn trouble(&self) -> Option<&'static str> {
        if self.unhealthy.load(Relaxed) {
            return Some("its health checks fail");
        }
        let is_failing = self.failures.load(Relaxed) >= self.ejection.settings.failures;
        let failure = self.last_failure.lock().map(Failure::as_str);
        failure.filter(|_| is_failing || !self.is_available())
    }

    pub(super) fn ejections(&self) -> u64 {
        self.ejections.load(Relaxed)
    }

    pub(super) fn inherit(&self, earlier: &Self) {
        self.ejections.store(earlier.ejections(), Relaxed);
        self.addresses.inherit(&earlier.addresses);
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn upstream(&self) -> &Arc<str> {
        &self.upstream
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}

/// An attempt at a server: a request to it, for as long as it or its response lasts.
pub(crate) struct Attempt {
    server: Arc<ServerState>,
    kind: AttemptKind,
    began: Instant,
    /// Whether its outcome is known.
    settled: bool,
}

impl Attempt {
    pub(crate) fn server(&self) -> &ServerState {
        &self.server
    }

    /// It begins again, on a new connection.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.began = now;
    }

    pub(crate) fn responded(&mut self, status: StatusCode, now: Instant) {
        self.settled = true;
        if self.server.ejection.settings.status.contains(status) {
            self.server.failed(Failure::Status, self.kind, self.began);
        } else {
            self.server.responded(self.kind, now);
        }
    }

    pub(crate) fn failed(&mut self, failure: Failure) {
        self.settled = true;
        self.server.failed(failure, self.kind, self.began);
    }

    /// The outcome says nothing about the server.
    pub(crate) fn settle(&mut self) {
        self.settled = true;
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.server.in_flight.fetch_sub(1, Relaxed);
        if self.settled {
            return;
        }
        let is_silent = self.server.responded_at.load(Relaxed) < self.server.stamp(self.began);
        if is_silent && self.began.elapsed() >= ABANDONED_AFTER {
            self.server
                .failed(Failure::Abandoned, self.kind, self.began);
        }
    }
}

#[cfg(all(test, feature = "interleavings"))]
mod interleavings {
    use shuttle::rand::{Rng, thread_rng};
    use shuttle::thread;
    use weir_runtime::sync::in_random_orders;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn upstream(servers: usize) -> Vec<Arc<ServerState>> {
        let address: std::net::SocketAddr = "10.0.0.1:80".parse().unwrap();
        let settings = UpstreamSettings::new("app", vec![Server::from(address); servers]);
        let bound = Arc::new(EjectionBound::new(Some(&Ejection::default())));
        bound.set_servers(&settings.servers);
        let state = |server: &Server| {
            ServerState::new(server, &settings, Arc::clone(&bound), Instant::now())
        };
        settings.servers.iter().map(state).map(Arc::new).collect()
    }

    /// A request, or a probe, that is answered or fails while others do.
    fn request(server: &Arc<ServerState>) {
        let later = Instant::now() + HOUR;
        let mut attempt = match thread_rng().gen_bool(0.5) {
            true => server.begin_as_last_resort(later),
            false => match server.begin(later) {
                Some(attempt) => attempt,
                None => return,
            },
        };
        match thread_rng().gen_bool(0.5) {
            true => attempt.responded(StatusCode::OK, later),
            false => attempt.failed(Failure::Connect),
        }
    }

    /// The count of ejected servers used to wrap, and none was ever ejected again.
    #[test]
    fn the_count_of_ejected_servers_is_never_another_than_their_number() {
        let law = || {
            let servers = upstream(3);
            let requests = |servers: Vec<Arc<ServerState>>| {
                for _ in 0..3 {
                    request(&servers[thread_rng().gen_range(0..2)]);
                }
            };
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let servers = servers.clone();
                    thread::spawn(move || requests(servers))
                })
                .collect();
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
            let ejected = servers.iter().filter(|server| !server.is_available());
            let bound = &servers[0].ejection;
            assert_eq!(bound.ejected.load(Relaxed), ejected.count());
            assert!(bound.ejected.load(Relaxed) <= bound.max.load(Relaxed));
            assert!(servers.iter().all(|server| server.in_flight() == 0));
        };
        in_random_orders(law, 5_000);
    }
}
