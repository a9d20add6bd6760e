//! The connection to Redis, and the task that makes it and makes it again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use redis::RedisError;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{self, Instant};

use super::check::check;
use super::connection::Connection;
use super::dialer::Dialer;
use super::endpoint::Address;
use super::expiry::ExpiryCache;
use super::settings::RedisSettings;
use crate::store::breaker::Backoff;
use crate::store::{Observer, StoreError};

/// How long a connection attempt may take, with TLS and login.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

const FIRST_WAIT: Duration = Duration::from_millis(25);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// How often the name of the server is resolved anew, to see whether it leads elsewhere.
const RESOLVE_EVERY: Duration = Duration::from_secs(5);

/// A connection that lasts this long is followed by the next at once.
const STEADY: Duration = Duration::from_secs(10);

/// The connection that all calls of one [`super::Redis`] share, when there is one.
pub(super) struct ConnectionManager(watch::Sender<State>);

#[derive(Clone, Default)]
struct State {
    session: Option<Arc<Session>>,
    /// Why there is no connection.
    trouble: Option<Arc<RedisError>>,
}

/// A connection and what was learned by it.
pub(super) struct Session {
    pub(super) connection: Connection,
    /// What was noted of buckets. It is dropped with the connection: what became of the last
    /// commands on one that broke is unknown.
    pub(super) expiries: ExpiryCache,
}

/// Makes connections until it is dropped.
pub(super) struct Supervisor(JoinHandle<()>);

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ConnectionManager {
    /// A manager and the task that keeps it connected to the server at this address, which needs
    /// a tokio runtime.
    pub(super) fn supervised(
        address: Address,
        settings: RedisSettings,
        observer: Arc<dyn Observer>,
    ) -> (Arc<Self>, Supervisor) {
        let manager = Arc::new(Self(watch::Sender::default()));
        let (access, resolve) = (settings.access.clone(), Arc::clone(&settings.resolve));
        let connector = Connector {
            dialer: Dialer::new(address, access, resolve),
            settings,
            observer,
            peer: None,
        };
        let task = supervise(Arc::clone(&manager), connector);
        (manager, Supervisor(tokio::spawn(task)))
    }

    /// The connection, or why there is none.
    pub(super) fn session(&self) -> Result<Arc<Session>, StoreError> {
        let state = self.0.borrow();
        match &state.session {
            Some(session) => Ok(Arc::clone(session)),
            None => Err(state.reason()),
        }
    }

    /// Waits until there is a connection.
    pub(super) async fn connected(&self) {
        let mut states = self.0.subscribe();
        // The sender is this manager's own, so it cannot be gone.
        let _ = states.wait_for(|state| state.session.is_some()).await;
    }

    /// Drops a connection that is no longer usable, and lets a new one be made.
    pub(super) fn give_up(&self, session: &Arc<Session>, trouble: Option<Arc<RedisError>>) {
        self.0.send_if_modified(|state| {
            let current = state.session.as_ref();
            if !current.is_some_and(|current| Arc::ptr_eq(current, session)) {
                return false;
            }
            *state = State {
                session: None,
                trouble,
            };
            true
        });
    }

    /// Waits until there is no connection.
    pub(super) async fn lost(&self) {
        let mut states = self.0.subscribe();
        let _ = states.wait_for(|state| state.session.is_none()).await;
    }

    fn connection_made(&self, connection: Connection) -> Arc<Session> {
        let session = Arc::new(Session {
            connection,
            expiries: ExpiryCache::default(),
        });
        let current = Arc::clone(&session);
        self.0.send_modify(|state| state.session = Some(current));
        session
    }

    /// Waits until a connection is given up, and gives it up when it breaks: it need not be in use
    /// for that to be noticed.
    async fn given_up(&self, session: Arc<Session>) {
        tokio::select! {
            () = self.lost() => {}
            trouble = session.connection.ended() => self.give_up(&session, Some(trouble)),
        }
    }

    fn connection_failed(&self, error: Arc<RedisError>) {
        self.0.send_modify(|state| state.trouble = Some(error));
    }
}

impl State {
    fn reason(&self) -> StoreError {
        match &self.trouble {
            Some(error) => StoreError::Lost(Box::new(Arc::clone(error))),
            None => StoreError::OutOfReach,
        }
    }
}

/// Makes connections to a server that can be used.
struct Connector {
    dialer: Dialer,
    settings: RedisSettings,
    observer: Arc<dyn Observer>,
    /// Where the last connection leads to.
    peer: Option<SocketAddr>,
}

impl Connector {
    async fn connect(&mut self) -> Result<Connection, Arc<RedisError>> {
        let attempt = time::timeout(CONNECT_TIMEOUT, self.establish());
        attempt
            .await
            .unwrap_or_else(|elapsed| Err(Arc::new(std::io::Error::from(elapsed).into())))
    }

    async fn establish(&mut self) -> Result<Connection, Arc<RedisError>> {
        let socket = self.dialer.open().await.map_err(Arc::new)?;
        let connection = Connection::over(socket);
        check(&connection, &self.settings, &*self.observer).await?;
        self.peer = self.dialer.succeeded();
        Ok(connection)
    }

    /// A connection to where the name leads by now, if that is elsewhere. The old one stays in use
    /// until the new one is found to be usable.
    async fn follow_name(&mut self) -> Option<Connection> {
        let moved = time::timeout(CONNECT_TIMEOUT, self.dialer.has_moved_from(self.peer));
        if !moved.await.unwrap_or(false) {
            return None;
        }
        self.connect().await.ok()
    }
}

async fn supervise(manager: Arc<ConnectionManager>, mut connector: Connector) {
    let first_backoff = || Backoff::new(FIRST_WAIT, LONGEST_WAIT);
    let mut backoff = first_backoff();
    loop {
        let connection = connect(&manager, &mut connector, &mut backoff).await;
        let made_at = Instant::now();
        let mut session = manager.connection_made(connection);
        loop {
            // The connection may break while the name is resolved.
            let follow = async {
                time::sleep(RESOLVE_EVERY).await;
                connector.follow_name().await
            };
            tokio::select! {
                () = manager.given_up(Arc::clone(&session)) => break,
                moved = follow => {
                    if let Some(moved) = moved {
                        session = manager.connection_made(moved);
                    }
                }
            }
        }
        if made_at.elapsed() < STEADY {
            // A server that is unusable as soon as it is asked is left alone for longer each time.
            time::sleep(backoff.wait()).await;
        } else {
            backoff = first_backoff();
        }
    }
}

async fn connect(
    manager: &ConnectionManager,
    connector: &mut Connector,
    backoff: &mut Backoff,
) -> Connection {
    loop {
        match connector.connect().await {
            Ok(connection) => return connection,
            Err(error) => manager.connection_failed(error),
        }
        time::sleep(backoff.wait()).await;
    }
}
