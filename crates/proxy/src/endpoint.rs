//! The servers of an upstream as one worker sees them: their idle connections, which of them is
//! next, and how many connections they may have in all.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::balance::{Attempt, Balance, Picker, ServerState, ServerStatus, UpstreamState};
use super::channel::{Channel, speaks_http2};
use super::connection::{Connection, ConnectionPool};
use super::connection_limit::Slot;
use super::error::ProxyError;
use super::http2::Connections;
use super::pool::Evict;
use super::proxy_header::ConnectionAddrs;
use super::settings::{Server, UpstreamSettings};
use super::stream::Stream;
use super::tls::Protocol;
use super::tried::Tried;

/// The share of the connections to upstreams that is kept free of idle ones: a quarter.
const RESERVE: usize = 4;

/// How many connections to upstreams the process may have, so that they leave file descriptors to
/// everything else. All workers share it. Without bounds by default.
#[derive(Clone, Default)]
pub struct ConnectionBudget {
    permits: Option<Arc<Semaphore>>,
    /// With fewer permits left than this, each new connection takes the place of an idle one.
    reserve: usize,
    /// The idle connections of each server and worker, in the order in which they give some up.
    idle: Arc<Mutex<VecDeque<Weak<dyn Evict>>>>,
}

impl ConnectionBudget {
    /// At most `open` connections at a time, idle ones included.
    pub fn new(open: usize) -> Self {
        let permits = Semaphore::new(open.min(Semaphore::MAX_PERMITS));
        Self {
            permits: Some(Arc::new(permits)),
            reserve: open / RESERVE,
            idle: Arc::default(),
        }
    }

    /// Lets these idle connections be closed for others.
    fn watch(&self, pool: &Arc<ConnectionPool>) {
        let mut idle = self.idle.lock();
        if idle.len() == idle.capacity() {
            // Drops the pools of earlier configurations.
            idle.retain(|pool| pool.strong_count() > 0);
        }
        let pool: Weak<dyn Evict> = Arc::<ConnectionPool>::downgrade(pool);
        idle.push_back(pool);
    }

    fn evict(&self) {
        let mut idle = self.idle.lock();
        for _ in 0..idle.len() {
            let Some(pool) = idle.pop_front() else { return };
            let Some(alive) = pool.upgrade() else {
                continue;
            };
            idle.push_back(pool);
            if alive.evict() {
                return;
            }
        }
    }

    /// Waits until `deadline` for the permit to open a connection, which ends when it is dropped.
    async fn permit(&self, deadline: Instant) -> Result<Option<OwnedSemaphorePermit>, ProxyError> {
        let Some(permits) = &self.permits else {
            return Ok(None);
        };
        if permits.available_permits() <= self.reserve {
            self.evict();
        }
        let permit = timeout_at(deadline, Arc::clone(permits).acquire_owned()).await;
        permit.map_or(
            Err(ProxyError::TooManyConnections),
            |permit| Ok(permit.ok()),
        )
    }
}

impl fmt::Debug for ConnectionBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionBudget")
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}

/// Which requests may share the connection of HTTP/2 that a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    Shared,
    /// No other request, as this one may have ended a shared connection.
    Alone,
    /// It is to change the protocol, which streams cannot.
    Upgrade,
}

/// One server of an upstream with its idle connections, as one worker sees it.
pub(super) struct Endpoint {
    server: Server,
    state: Arc<ServerState>,
    pool: Arc<ConnectionPool>,
    /// How long a connection is used, if the server has a name that may move.
    resolve_interval: Option<Duration>,
    /// Unless the server speaks only HTTP/1.1.
    http2: Option<Arc<Connections>>,
}

impl Endpoint {
    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// Takes an idle connection, or a stream on one that has room, unless the server has as many
    /// requests as it may have connections.
    pub(super) fn idle(&self, now: Instant, is_upgrade: bool) -> Option<Channel> {
        let mut slot = match self.state.connections() {
            None => None,
            Some(limit) => Some(limit.try_slot()?),
        };
        self.idle_for(&mut slot, now, is_upgrade)
    }

    /// As [`Self::idle`], for a request that has its slot.
    pub(super) fn idle_for(
        &self,
        slot: &mut Slot,
        now: Instant,
        is_upgrade: bool,
    ) -> Option<Channel> {
        if let Some(http2) = self.http2(is_upgrade)
            && let Some(stream) = http2.stream()
        {
            return Some(Channel::Http2(stream));
        }
        let mut connection = self.pool.take(now, |connection| connection.is_ready())?;
        if slot.is_some() {
            connection.slot = slot.take();
        }
        Some(Channel::Http1(connection))
    }

    /// Waits until `deadline` for the slot that a request needs to use a connection.
    pub(super) async fn slot(&self, deadline: Instant) -> Result<Slot, ProxyError> {
        let Some(limit) = self.state.connections() else {
            return Ok(None);
        };
        let slot = limit.slot(deadline).await;
        let server = || Arc::clone(self.server.name());
        slot.map(Some)
            .ok_or_else(|| ProxyError::ServerBusy { server: server() })
    }

    /// The server's HTTP/2, unless the connection is to change its protocol.
    fn http2(&self, is_upgrade: bool) -> Option<&Arc<Connections>> {
        let leaves_it = is_upgrade && self.server.protocol() == Protocol::Auto;
        self.http2.as_ref().filter(|_| !leaves_it)
    }

    /// Opens a connection within its share of the time until `deadline`, as soon as there may be
    /// another.
    pub(super) async fn connect(
        &self,
        budget: &ConnectionBudget,
        share: u32,
        deadline: Instant,
        sharing: Sharing,
        slot: Slot,
        client: Option<&ConnectionAddrs>,
    ) -> Result<Channel, ProxyError> {
        let permit = budget.permit(deadline).await?;
        let now = Instant::now();
        let deadline = now + deadline.saturating_duration_since(now) / share.max(1);
        let server = Arc::clone(self.server.name());
        let opened = self.open(permit, sharing, slot, client, deadline);
        match timeout_at(deadline, opened).await {
            Ok(opened) => opened.map_err(|source| ProxyError::from_connect(source, server)),
            Err(_) => Err(ProxyError::ConnectTimeout { server }),
        }
    }

    async fn open(
        &self,
        permit: Option<OwnedSemaphorePermit>,
        sharing: Sharing,
        slot: Slot,
        client: Option<&ConnectionAddrs>,
        deadline: Instant,
    ) -> io::Result<Channel> {
        if let Some(http2) = self.http2(sharing == Sharing::Upgrade) {
            let is_alone = sharing == Sharing::Alone;
            return Box::pin(self.open_http2(http2, permit, is_alone, deadline)).await;
        }
        let open = match self.state.connections() {
            None => None,
            Some(limit) => Some(limit.open().await),
        };
        let addresses = self.state.addresses();
        let stream = Stream::connect(&self.server, addresses, true, client, deadline).await?;
        let mut connection = self.http1(stream, permit);
        (connection.open, connection.slot) = (open, slot);
        Ok(Channel::Http1(connection))
    }

    /// Requests that come while a connection is opened wait for it if they can share it.
    async fn open_http2(
        &self,
        http2: &Arc<Connections>,
        permit: Option<OwnedSemaphorePermit>,
        is_alone: bool,
        deadline: Instant,
    ) -> io::Result<Channel> {
        let mut _opening = None;
        if !is_alone {
            _opening = http2.opening().await;
            http2.settle().await;
            if let Some(stream) = http2.stream() {
                return Ok(Channel::Http2(stream));
            }
        }
        let addresses = self.state.addresses();
        let stream = Stream::connect(&self.server, addresses, false, None, deadline).await?;
        if speaks_http2(&stream, self.server.protocol())? {
            let stream = http2.add(stream, permit).await?;
            if is_alone {
                stream.keep_alone();
            }
            return Ok(Channel::Http2(stream));
        }
        http2.declined();
        Ok(Channel::Http1(self.http1(stream, permit)))
    }

    fn http1(&self, stream: Stream, permit: Option<OwnedSemaphorePermit>) -> Box<Connection> {
        let mut connection = Connection::new(stream, Arc::downgrade(&self.pool), permit);
        connection.retires_at = self.resolve_interval.map(|time| Instant::now() + time);
        connection
    }
}

/// A request that could not be sent to so many servers, or twice, four times as many, goes to one
/// that has responded lately, if there is one: many may be dead of which nobody knows.
const MAX_UNPROVEN: usize = 4;

/// With fewer tries than this, a request for which no server is available is sent to one that is
/// out.
const MAX_LAST_RESORTS: usize = 8;

/// What decides which servers a request may get first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Affinity {
    /// The hash of its subject.
    pub(super) key: Option<u64>,
    /// The index of the server that its cookie names.
    pub(super) server: Option<usize>,
}

pub(super) struct Endpoints {
    all: Box<[Arc<Endpoint>]>,
    picker: Picker,
    /// The priority of each server, and each one once, in order.
    priorities: Box<[u16]>,
    tiers: Box<[u16]>,
    /// Whether a server with as many requests as it may have connections is passed over. What goes
    /// by a hash waits for its own server.
    skips_full: bool,
}

/// The server that was chosen for a request.
pub(super) struct Picked<'e> {
    pub(super) endpoint: &'e Endpoint,
    pub(super) index: usize,
    pub(super) attempt: Attempt,
}

impl Endpoints {
    /// Servers whose state is that of an `earlier` one keep its connections.
    pub(super) fn new(
        settings: &UpstreamSettings,
        budget: &ConnectionBudget,
        state: &UpstreamState,
        earlier: Option<&Self>,
    ) -> Self {
        let servers = settings.servers.iter().zip(state.servers());
        let endpoint = |(server, state): (&Server, &Arc<ServerState>)| {
            let mut earlier = earlier.iter().flat_map(|earlier| &earlier.all);
            if let Some(kept) = earlier.find(|kept| Arc::ptr_eq(&kept.state, state)) {
                return Arc::clone(kept);
            }
            // A connection of one client is none for another.
            let max_idle = server.proxy_protocol().map_or(settings.max_idle, |_| 0);
            let pool = Arc::new(ConnectionPool::new(max_idle, settings.idle_timeout));
            if budget.permits.is_some() {
                budget.watch(&pool);
            }
            if let Some(limit) = state.connections() {
                let idle: Weak<dyn Evict> = Arc::<ConnectionPool>::downgrade(&pool);
                limit.watch(idle);
            }
            Arc::new(Endpoint {
                server: server.clone(),
                state: Arc::clone(state),
                pool,
                resolve_interval: server.is_named().then_some(settings.resolve_interval),
                http2: (server.protocol() != Protocol::Http1).then(|| {
                    let lifetime = server.is_named().then_some(settings.resolve_interval);
                    Arc::new(Connections::new(settings.idle_timeout, lifetime))
                }),
            })
        };
        let priorities: Box<[u16]> = settings.servers.iter().map(Server::priority).collect();
        let tiers: BTreeSet<u16> = priorities.iter().copied().collect();
        Self {
            all: servers.map(endpoint).collect(),
            priorities,
            tiers: tiers.into_iter().collect(),
            picker: Picker::new(settings.balance, state.servers()),
            skips_full: settings.max_connections.is_some() && settings.balance != Balance::Hash,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// The next server for a request with this affinity, if there is one that it has not tried. If
    /// no other is left, servers that are out are chosen, but not many, and not those that would
    /// most likely keep the request waiting.
    pub(super) fn pick(
        &self,
        affinity: Affinity,
        tried: &Tried,
        now: Instant,
    ) -> Option<Picked<'_>> {
        if self.len() == 1 {
            return tried.is_empty().then(|| self.only(now)).flatten();
        }
        if let Some(own) = affinity.server
            && let Some(picked) = self.begin_own(own, tried, now)
        {
            return Some(picked);
        }
        let available = self.pick_available(affinity.key, tried, now);
        if available.is_some() || tried.len() >= MAX_LAST_RESORTS {
            return available;
        }
        let index = self.choose(affinity.key, tried, now, |server| !server.is_silent())?;
        self.begin(index, |state| Some(state.begin_as_last_resort(now)))
    }

    /// The next server that is in use, or whose probe is due. A request that has failed already is
    /// the probe of another server only if nothing else is left: of thousands that are dead, many
    /// are due at any time.
    fn pick_available(&self, key: Option<u64>, tried: &Tried, now: Instant) -> Option<Picked<'_>> {
        use ServerStatus::{Available, ProbeDue, Unavailable};
        let pick = |is_eligible: &dyn Fn(&ServerState) -> bool| {
            while let Some(index) = self.choose(key, tried, now, is_eligible) {
                // If another request has become the server's probe meanwhile, the server is out.
                if let Some(picked) = self.begin(index, |state| state.begin(now)) {
                    return Some(picked);
                }
            }
            None
        };
        if tried.is_empty() {
            return pick(&|server| server.status(now) != Unavailable);
        }
        let is_available = |server: &ServerState| server.status(now) == Available;
        let wants_proven = tried.len() >= MAX_UNPROVEN && tried.len().is_power_of_two();
        let is_proven = |server: &ServerState| is_available(server) && server.is_proven();
        let proven = wants_proven.then(|| pick(&is_proven)).flatten();
        let picked = proven.or_else(|| pick(&is_available));
        if picked.is_some() || tried.len() >= MAX_LAST_RESORTS {
            return picked;
        }
        pick(&|server| server.status(now) == ProbeDue)
    }

    /// Any server, even one that does not answer, whatever the request has tried.
    pub(super) fn pick_any(&self, affinity: Affinity, now: Instant) -> Option<Picked<'_>> {
        if let Some(only) = self.only(now) {
            return Some(only);
        }
        let tried = Tried::default();
        let picked = self.pick(affinity, &tried, now);
        picked.or_else(|| {
            let index = self.choose(affinity.key, &tried, now, |_| true)?;
            self.begin(index, |state| Some(state.begin_as_last_resort(now)))
        })
    }

    /// The server where there is no other, which is never out.
    fn only(&self, now: Instant) -> Option<Picked<'_>> {
        let [only] = &*self.all else {
            return None;
        };
        Some(Picked {
            endpoint: only,
            index: 0,
            attempt: only.state.begin_as_last_resort(now),
        })
    }

    /// The server that a client is to stay on, unless that is out or was tried.
    fn begin_own(&self, own: usize, tried: &Tried, now: Instant) -> Option<Picked<'_>> {
        let status = self.all.get(own)?.state.status(now);
        if tried.contains(own) || status == ServerStatus::Unavailable {
            return None;
        }
        self.begin(own, |state| state.begin(now))
    }

    fn choose(
        &self,
        key: Option<u64>,
        tried: &Tried,
        now: Instant,
        is_eligible: impl Fn(&ServerState) -> bool,
    ) -> Option<usize> {
        self.tiers.iter().find_map(|tier| {
            let pick = |skips_full: bool| {
                self.picker.pick(key, |index, server| {
                    let is_full = || server.connections().is_some_and(|limit| limit.is_full());
                    let is_eligible = self.priorities.get(index) == Some(tier)
                        && !tried.contains(index)
                        && is_eligible(server)
                        && !(skips_full && is_full());
                    is_eligible.then(|| server.weight(now))
                })
            };
            // If all are full, the request waits for one of them.
            let spare = self.skips_full.then(|| pick(true)).flatten();
            spare.or_else(|| pick(false))
        })
    }

    fn begin(
        &self,
        index: usize,
        begin: impl Fn(&Arc<ServerState>) -> Option<Attempt>,
    ) -> Option<Picked<'_>> {
        let endpoint = self.all.get(index)?;
        let attempt = begin(&endpoint.state)?;
        Some(Picked {
            endpoint,
            index,
            attempt,
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::balance::{Ejection, Failure};

    /// Shares of the idle connections were fixed, and with many servers there were none: each
    /// request connected anew.
    #[tokio::test]
    async fn idle_connections_of_any_server_are_kept_until_others_need_their_places() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.push(stream);
            }
        });
        let settings = UpstreamSettings::new("app", vec![Server::from(address); 100]);
        let state = UpstreamState::new(&settings);
        let budget = ConnectionBudget::new(8);
        let endpoints = Endpoints::new(&settings, &budget, &state, None);
        let connect = async |endpoint: &Endpoint| {
            let deadline = Instant::now() + Duration::from_secs(60);
            let opened = endpoint.connect(&budget, 1, deadline, Sharing::Shared, None, None);
            match opened.await {
                Ok(Channel::Http1(connection)) => connection,
                Ok(Channel::Http2(_)) => panic!("HTTP/2"),
                Err(error) => panic!("{error}"),
            }
        };
        let is_idle = |endpoint: &Endpoint| endpoint.idle(Instant::now(), false).is_some();
        connect(&endpoints.all[0]).await.release();
        assert!(is_idle(&endpoints.all[0]));
        // More than there may be in all: the first ones give way.
        for endpoint in &endpoints.all {
            connect(endpoint).await.release();
        }
        let idle = endpoints.all.iter().filter(|endpoint| is_idle(endpoint));
        assert!((5..=8).contains(&idle.count()));
        // As many as there may be, in use at the same time.
        let mut used = Vec::new();
        for endpoint in endpoints.all.iter().take(8) {
            used.push(connect(endpoint).await);
        }
    }

    /// As many servers that fail in this way as there are `dead`, and then as many that do not.
    struct Fleet {
        endpoints: Endpoints,
        dead: usize,
        failure: Failure,
    }

    impl Fleet {
        fn new(dead: usize, alive: usize, failure: Failure, ejection: Option<Ejection>) -> Self {
            let server = |number: usize| {
                let url = format!("http://10.0.{}.{}:80", number / 256, number % 256);
                url.parse().unwrap()
            };
            let servers = (0..dead + alive).map(server).collect();
            let mut settings = UpstreamSettings::new("app", servers);
            settings.ejection = ejection;
            let state = UpstreamState::new(&settings);
            let endpoints = Endpoints::new(&settings, &ConnectionBudget::default(), &state, None);
            Self {
                endpoints,
                dead,
                failure,
            }
        }

        /// How many servers a request is sent to, and whether the last one responds.
        fn tries(&self) -> (usize, bool) {
            let (mut tried, now) = (Tried::default(), Instant::now());
            while let Some(mut picked) = self.endpoints.pick(Affinity::default(), &tried, now) {
                if picked.index >= self.dead {
                    picked.attempt.responded(http::StatusCode::OK, now);
                    return (tried.len() + 1, true);
                }
                picked.attempt.failed(self.failure);
                tried.insert(picked.index);
            }
            (tried.len(), false)
        }
    }

    /// Each request tried them all: with 10,000, eleven of twenty took too long.
    #[tokio::test(start_paused = true)]
    async fn a_request_is_served_without_trying_thousands_of_servers_that_are_known_to_be_dead() {
        for (failure, ejection, most) in [
            // They are out, and a request is the probe of at most one of them.
            (Failure::Refused, Some(Ejection::default()), 2),
            // Half of them are out.
            (
                Failure::Connect,
                Some(Ejection::default()),
                MAX_UNPROVEN + 1,
            ),
            (Failure::Refused, None, MAX_UNPROVEN + 1),
        ] {
            let fleet = Fleet::new(3000, 3, failure, ejection);
            assert_eq!(fleet.tries(), (3001, true), "nothing is known yet");
            for second in 0..200 {
                tokio::time::advance(Duration::from_secs(second % 3)).await;
                let (tries, is_served) = fleet.tries();
                assert!(
                    tries <= most && is_served,
                    "{failure:?}: {tries} after {second}"
                );
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_tries_few_of_many_servers_if_all_are_dead_and_all_of_a_few() {
        for (dead, most) in [(3000, MAX_LAST_RESORTS), (5, 5)] {
            let fleet = Fleet::new(dead, 0, Failure::Refused, Some(Ejection::default()));
            assert_eq!(fleet.tries(), (dead, false), "nothing is known yet");
            for second in 0..100 {
                tokio::time::advance(Duration::from_secs(second % 3)).await;
                assert_eq!(fleet.tries(), (most, false));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_service_that_keeps_silent_does_not_use_up_a_servers_share_of_the_time() {
        for protocol in [Protocol::Http1, Protocol::Http2] {
            let server: Server = "http://localhost:9".parse().unwrap();
            let server = server.with_protocol(protocol);
            let settings = UpstreamSettings::new("app", vec![server]);
            let state = UpstreamState::new(&settings);
            let budget = ConnectionBudget::default();
            let endpoints = Endpoints::new(&settings, &budget, &state, None);
            let endpoint = &endpoints.all[0];
            let addresses = endpoint.state.addresses();
            addresses.fall_silent("127.0.0.1:9".parse().unwrap()).await;
            let deadline = Instant::now() + Duration::from_secs(1);
            let opened = endpoint.connect(&budget, 2, deadline, Sharing::Shared, None, None);
            drop(opened.await);
            assert!(addresses.are_trusted(), "{protocol:?}");
        }
    }
}
