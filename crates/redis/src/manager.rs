//! The connection to Redis, the meaning of its failures, and the task that makes the connection
//! again and again.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use tokio::sync::oneshot::error::RecvError;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{self, Instant};
use weir_store::Backoff;
use weir_store::{Observer, StoreError};

use super::check::{ExpectedServer, check, redirection};
use super::cluster::Member;
use super::connection::{Connection, MemoryShare, RequestResult};
use super::dialer::Dialer;
use super::endpoint::{Address, HostPort};
use super::expiry::ExpiryCache;
use super::needed_commands::KnownCommands;
use super::resp::{Replies, Request};
use super::sentinel::PrimaryAddress;
use super::server_error::{command_error, is_refused_command, verbatim};
use super::settings::RedisSettings;

/// How long a connection attempt may take, with TLS and login.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

const MIN_WAIT: Duration = Duration::from_millis(25);
const MAX_WAIT: Duration = Duration::from_secs(1);

/// How often the name of the server is resolved anew, to see whether it leads elsewhere.
const RESOLVE_EVERY: Duration = Duration::from_secs(5);

/// A connection that lasts this long is followed by the next at once.
const STEADY: Duration = Duration::from_secs(10);

/// The errors of a server that has become a replica, or lost its primary.
const REPLICA: [ServerErrorKind; 2] = [ServerErrorKind::ReadOnly, ServerErrorKind::MasterDown];

/// The connection that all calls of one [`super::Redis`] share, when there is one.
pub(super) struct ConnectionManager {
    state: watch::Sender<ConnectionState>,
    /// The server as a node of a Cluster.
    member: Option<Arc<Member>>,
}

#[derive(Clone, Default)]
struct ConnectionState {
    session: Option<Arc<Session>>,
    /// Why there is no connection.
    last_error: Option<Arc<RedisError>>,
}

/// A connection, and what is known of its server.
pub(super) struct Session {
    pub(super) connection: Connection,
    /// The notes about buckets. They are dropped with the connection: what became of the last
    /// commands on one that broke is unknown.
    pub(super) expiries: ExpiryCache,
    /// The server as a node of a Cluster.
    pub(super) member: Option<Arc<Member>>,
    /// Which commands the server carries out.
    pub(super) commands: KnownCommands,
    /// Which server this is; none where there is no choice.
    peer: Option<SocketAddr>,
    manager: Weak<ConnectionManager>,
}

impl Session {
    /// This connection or, when it is over, the next one, if that leads to the same server. What
    /// another has never given is not given back to it.
    pub(super) async fn usable(self: Arc<Self>) -> Result<Arc<Self>, StoreError> {
        if !self.connection.is_over() {
            return Ok(self);
        }
        let gone = || StoreError::Lost("the server that took is not connected any more".into());
        let manager = self.manager.upgrade().ok_or_else(gone)?;
        let mut states = manager.state.subscribe();
        drop(manager);
        let is_next = |state: &ConnectionState| {
            let session = state.session.as_ref();
            session.is_some_and(|session| !session.connection.is_over())
        };
        let next = states.wait_for(is_next).await;
        let next = next.ok().and_then(|state| state.session.clone());
        next.filter(|next| next.peer == self.peer).ok_or_else(gone)
    }

    /// Drops the connection, and lets a new one be made.
    pub(super) fn give_up(self: &Arc<Self>, last_error: Option<Arc<RedisError>>) {
        if let Some(manager) = self.manager.upgrade() {
            manager.give_up(self, last_error);
        }
    }

    /// Sends commands. Their replies are not looked at.
    pub(super) async fn send(self: &Arc<Self>, request: Request) -> Result<Replies, StoreError> {
        let answer = self.connection.send(request).await;
        self.answered(answer)
    }

    /// The replies, unless the connection broke. Then it is given up.
    pub(super) fn answered(
        self: &Arc<Self>,
        answer: Result<RequestResult, RecvError>,
    ) -> Result<Replies, StoreError> {
        // Cannot happen while the connection is in the session: whatever ends it answers all that wait.
        let error = match answer {
            Ok(Ok(replies)) => return Ok(replies),
            Ok(Err(error)) => error,
            Err(_) => return Err(StoreError::OutOfReach),
        };
        Err(self.lost(error))
    }

    /// The error among replies that do not fit the commands. Without one, replies and commands are
    /// out of step: what comes next may be the answer to anything.
    pub(super) fn protocol_error(self: &Arc<Self>, replies: &Replies) -> StoreError {
        match replies.values() {
            Err(error) => self.failed(error),
            Ok(_) => self.invalid_reply(),
        }
    }

    /// A reply that is no error, and does not fit its command.
    pub(super) fn invalid_reply(self: &Arc<Self>) -> StoreError {
        let what = "a reply that does not fit the commands";
        let error = Arc::new(io::Error::new(io::ErrorKind::InvalidData, what).into());
        self.connection.close(&error);
        self.lost(error)
    }

    /// A server that has become a replica stays one for its present connections, while its name may
    /// lead to the new primary. One node of a Cluster is of no use where all keys should be.
    pub(super) fn failed(self: &Arc<Self>, error: RedisError) -> StoreError {
        if is_refused_command(&error) {
            self.commands.doubt();
        }
        if REPLICA.map(ErrorKind::Server).contains(&error.kind()) {
            return self.lost(verbatim(error));
        }
        match redirection(&error) {
            Some(why) if self.member.is_none() => self.lost(why),
            _ => command_error(error),
        }
    }

    /// Gives the connection up, for this reason.
    pub(super) fn lost(self: &Arc<Self>, error: Arc<RedisError>) -> StoreError {
        self.give_up(Some(Arc::clone(&error)));
        StoreError::Lost(Box::new(error))
    }

    /// Counts how a call went, if it is a node of a Cluster. Others are guarded as a whole.
    pub(super) fn record(&self, failure: Option<&StoreError>) {
        if let Some(member) = &self.member {
            member.record(failure);
        }
    }

    /// A failure as one of this node, if it is one of several, and not that of another.
    pub(super) fn failure(&self, source: StoreError) -> StoreError {
        match &self.member {
            Some(member) if !matches!(source, StoreError::Node { .. }) => member.failure(source),
            _ => source,
        }
    }
}

/// Makes connections until it is dropped.
pub(super) struct Supervisor(JoinHandle<()>);

impl Supervisor {
    /// Ends this task when it is dropped.
    pub(super) const fn new(task: JoinHandle<()>) -> Self {
        Self(task)
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ConnectionManager {
    /// A manager and the task that keeps it connected, which needs a tokio runtime.
    pub(super) fn supervised(
        location: Location,
        settings: RedisSettings,
        observer: Arc<dyn Observer>,
        member: Option<Arc<Member>>,
    ) -> (Arc<Self>, Supervisor) {
        let manager = Arc::new(Self {
            state: watch::Sender::default(),
            member,
        });
        let (access, network) = (settings.access.clone(), settings.network.clone());
        let connector = Connector {
            dialer: Dialer::new(access, network),
            location,
            settings,
            observer,
            member: manager.member.clone(),
            peer: None,
        };
        let task = supervise(Arc::clone(&manager), connector);
        (manager, Supervisor(tokio::spawn(task)))
    }

    /// The connection, or why there is none.
    pub(super) fn session(&self) -> Result<Arc<Session>, StoreError> {
        let state = self.state.borrow();
        match &state.session {
            Some(session) => Ok(Arc::clone(session)),
            None => Err(state.reason()),
        }
    }

    /// Waits until there is a connection.
    pub(super) async fn connected(&self) {
        let mut states = self.state.subscribe();
        // The sender is this manager's own, so it cannot be gone.
        let _ = states.wait_for(|state| state.session.is_some()).await;
    }

    /// Drops a connection that is no longer usable, and lets a new one be made.
    fn give_up(&self, session: &Arc<Session>, last_error: Option<Arc<RedisError>>) {
        let given_up = self.state.send_if_modified(|state| {
            let current = state.session.as_ref();
            if !current.is_some_and(|current| Arc::ptr_eq(current, session)) {
                return false;
            }
            *state = ConnectionState {
                session: None,
                last_error,
            };
            true
        });
        if let Some(member) = self.member.as_ref().filter(|_| given_up) {
            member.has_changed();
        }
    }

    /// Waits until there is no connection.
    pub(super) async fn lost(&self) {
        let mut states = self.state.subscribe();
        let _ = states.wait_for(|state| state.session.is_none()).await;
    }

    fn connection_made(
        self: &Arc<Self>,
        connection: Connection,
        peer: Option<SocketAddr>,
    ) -> Arc<Session> {
        let expiries = self
            .member
            .as_ref()
            .map_or_else(ExpiryCache::default, |member| {
                ExpiryCache::new(member.shared.expiries.clone())
            });
        let session = Arc::new(Session {
            connection,
            expiries,
            member: self.member.clone(),
            commands: KnownCommands::default(),
            peer,
            manager: Arc::downgrade(self),
        });
        let current = Arc::clone(&session);
        self.state
            .send_modify(|state| state.session = Some(current));
        session
    }

    /// Waits until a connection is given up, and gives it up when it breaks: it need not be in use
    /// for that to be noticed.
    async fn given_up(&self, session: Arc<Session>) {
        tokio::select! {
            () = self.lost() => {}
            last_error = session.connection.ended() => self.give_up(&session, Some(last_error)),
        }
    }

    /// Gives up the connection to a server that is not the primary any more. What is under way by
    /// it fails, as does all that comes before there is a connection to the new one.
    fn abandon(&self, primary: &HostPort) {
        let why = format!("the Sentinels say that the primary is at {primary} now");
        let error = Arc::new(io::Error::new(io::ErrorKind::ConnectionAborted, why).into());
        let session = self.state.borrow().session.clone();
        if let Some(session) = session {
            self.give_up(&session, Some(Arc::clone(&error)));
            session.connection.close(&error);
        }
    }

    fn connection_failed(&self, error: Arc<RedisError>) {
        self.state
            .send_modify(|state| state.last_error = Some(error));
    }
}

impl ConnectionState {
    fn reason(&self) -> StoreError {
        match &self.last_error {
            Some(error) => StoreError::Lost(Box::new(Arc::clone(error))),
            None => StoreError::OutOfReach,
        }
    }
}

/// Where a server is.
#[derive(Clone)]
pub(super) enum Location {
    /// Always there.
    Fixed(Address),
    /// Wherever Sentinels say that the primary is.
    Primary(PrimaryAddress),
}

impl Location {
    fn get(&self) -> Result<Address, Arc<RedisError>> {
        match self {
            Self::Fixed(address) => Ok(address.clone()),
            Self::Primary(primary) => primary.get().map(Address::Tcp),
        }
    }

    /// Waits until the server has moved, and returns its address.
    async fn moved_from(&self, there: Option<&Address>) -> HostPort {
        match self {
            Self::Fixed(_) => pending().await,
            Self::Primary(primary) => primary.moved_from(there.and_then(Address::tcp)).await,
        }
    }
}

/// Makes connections to a server that can be used.
struct Connector {
    dialer: Dialer,
    location: Location,
    settings: RedisSettings,
    observer: Arc<dyn Observer>,
    member: Option<Arc<Member>>,
    /// Where the last connection leads to.
    peer: Option<SocketAddr>,
}

impl Connector {
    async fn connect(&mut self, address: &Address) -> Result<Connection, Arc<RedisError>> {
        let attempt = time::timeout(CONNECT_TIMEOUT, self.establish(address));
        attempt
            .await
            .unwrap_or_else(|elapsed| Err(Arc::new(io::Error::from(elapsed).into())))
    }

    async fn establish(&mut self, address: &Address) -> Result<Connection, Arc<RedisError>> {
        let socket = self.dialer.open(address).await?;
        let (memory, role) = match &self.member {
            None => {
                let prefix = &self.settings.prefix;
                (MemoryShare::default(), ExpectedServer::Alone { prefix })
            }
            Some(member) => (member.shared.requests.clone(), ExpectedServer::Node),
        };
        let connection = Connection::new(socket, memory);
        check(&connection, &self.settings.clock, &*self.observer, role).await?;
        self.peer = self.dialer.succeeded();
        Ok(connection)
    }

    /// A connection to where the name leads by now, if that is elsewhere. The old one stays in use
    /// until the new one is found to be usable.
    async fn follow_name(&mut self, address: &Address) -> Option<Connection> {
        let moved = self.dialer.has_moved(address, self.peer);
        let moved = time::timeout(CONNECT_TIMEOUT, moved).await;
        if !moved.unwrap_or(false) {
            return None;
        }
        self.connect(address).await.ok()
    }
}

async fn supervise(manager: Arc<ConnectionManager>, mut connector: Connector) {
    let mut backoff = first_backoff();
    let location = connector.location.clone();
    loop {
        let target = location.get();
        let current = target.clone().ok();
        tokio::select! {
            () = connect_once(&manager, &mut connector, target, &mut backoff) => {}
            // A server that is not the primary any more may take what nobody will know of.
            primary = location.moved_from(current.as_ref()) => {
                manager.abandon(&primary);
                backoff = first_backoff();
            }
        }
    }
}

fn first_backoff() -> Backoff {
    Backoff::new(MIN_WAIT, MAX_WAIT)
}

/// Connects, keeps the connection up for as long as it can, and waits until it is time for the
/// next.
async fn connect_once(
    manager: &Arc<ConnectionManager>,
    connector: &mut Connector,
    target: Result<Address, Arc<RedisError>>,
    backoff: &mut Backoff,
) {
    let connected = match &target {
        Ok(address) => {
            let connected = connector.connect(address).await;
            connected.map(|connection| (connection, address))
        }
        Err(error) => Err(Arc::clone(error)),
    };
    match connected {
        Ok((connection, address)) => {
            let made_at = Instant::now();
            keep(manager, connector, address, connection).await;
            if made_at.elapsed() >= STEADY {
                *backoff = first_backoff();
                return;
            }
            // A server that is unusable at its first call is left alone for longer each time.
        }
        Err(error) => manager.connection_failed(error),
    }
    time::sleep(backoff.wait()).await;
}

/// Keeps a connection up until it is given up, and follows a name that moves.
async fn keep(
    manager: &Arc<ConnectionManager>,
    connector: &mut Connector,
    address: &Address,
    connection: Connection,
) {
    let mut session = manager.connection_made(connection, connector.peer);
    loop {
        // The connection may break while the name is resolved.
        let follow = async {
            time::sleep(RESOLVE_EVERY).await;
            connector.follow_name(address).await
        };
        tokio::select! {
            () = manager.given_up(Arc::clone(&session)) => return,
            moved = follow => {
                if let Some(moved) = moved {
                    session = manager.connection_made(moved, connector.peer);
                }
            }
        }
    }
}
