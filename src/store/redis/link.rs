//! The connection to Redis, and the task that makes it and makes it again.

use std::sync::Arc;
use std::time::Duration;

use redis::RedisError;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{self, Instant};

use super::connection::Connection;
use super::expiry::Notes;
use super::settings::RedisSettings;
use super::socket;
use crate::store::StoreError;
use crate::store::backoff::Backoff;

/// How long a connection attempt may take, with TLS and login.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

const FIRST_WAIT: Duration = Duration::from_millis(25);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// A connection that lasts so long is followed by the next at once.
const STEADY: Duration = Duration::from_secs(10);

/// The connection that all calls of one [`super::Redis`] share, when there is one.
pub(super) struct Link(watch::Sender<State>);

#[derive(Clone, Default)]
struct State {
    connection: Option<Live>,
    /// Why there is no connection.
    trouble: Option<Arc<RedisError>>,
}

/// A connection that is up, shared by those who use it.
pub(super) type Live = Arc<Session>;

/// A connection and what was learned by it.
pub(super) struct Session {
    pub(super) connection: Connection,
    /// What was noted of buckets. It is forgotten with the connection: nobody knows what became of
    /// the last commands on one that broke.
    pub(super) notes: Notes,
}

/// Makes connections until it is dropped.
pub(super) struct Supervisor(JoinHandle<()>);

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Link {
    /// A link and the task that keeps it connected, which needs a tokio runtime.
    pub(super) fn supervised(settings: RedisSettings) -> (Arc<Self>, Supervisor) {
        let link = Arc::new(Self(watch::Sender::default()));
        let task = supervise(Arc::clone(&link), settings);
        (link, Supervisor(tokio::spawn(task)))
    }

    /// The connection, or why there is none.
    pub(super) fn connection(&self) -> Result<Live, StoreError> {
        let state = self.0.borrow();
        match &state.connection {
            Some(live) => Ok(Arc::clone(live)),
            None => Err(state.reason()),
        }
    }

    /// Waits until there is a connection.
    pub(super) async fn connected(&self) {
        let mut states = self.0.subscribe();
        // The sender is this link's own, so it cannot be gone.
        let _ = states.wait_for(|state| state.connection.is_some()).await;
    }

    /// Drops a connection that is of no use any more, and lets a new one be made.
    pub(super) fn give_up(&self, live: &Live, trouble: Option<Arc<RedisError>>) {
        self.0.send_if_modified(|state| {
            let current = state.connection.as_ref();
            if !current.is_some_and(|current| Arc::ptr_eq(current, live)) {
                return false;
            }
            *state = State {
                connection: None,
                trouble,
            };
            true
        });
    }

    /// Waits until there is no connection.
    pub(super) async fn lost(&self) {
        let mut states = self.0.subscribe();
        let _ = states.wait_for(|state| state.connection.is_none()).await;
    }

    fn connection_made(&self, connection: Connection) -> Live {
        let live = Arc::new(Session {
            connection,
            notes: Notes::default(),
        });
        let current = Arc::clone(&live);
        self.0.send_modify(|state| state.connection = Some(current));
        live
    }

    /// Waits until a connection is given up, and gives it up when it breaks: it need not be in use
    /// for that to be noticed.
    async fn given_up(&self, live: Live) {
        tokio::select! {
            () = self.lost() => {}
            trouble = live.connection.ended() => self.give_up(&live, Some(trouble)),
        }
    }

    fn connection_failed(&self, error: RedisError) {
        let trouble = Some(Arc::new(error));
        self.0.send_modify(|state| state.trouble = trouble);
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

async fn supervise(link: Arc<Link>, settings: RedisSettings) {
    let patience = || Backoff::new(FIRST_WAIT, LONGEST_WAIT);
    let mut backoff = patience();
    loop {
        let connection = connect(&link, &settings, &mut backoff).await;
        let made_at = Instant::now();
        let live = link.connection_made(connection);
        link.given_up(live).await;
        if made_at.elapsed() < STEADY {
            // A server that is of no use as soon as it is asked is left alone for longer each time.
            time::sleep(backoff.wait()).await;
        } else {
            backoff = patience();
        }
    }
}

async fn connect(link: &Link, settings: &RedisSettings, backoff: &mut Backoff) -> Connection {
    loop {
        match time::timeout(CONNECT_TIMEOUT, socket::open(settings)).await {
            Ok(Ok(socket)) => return Connection::over(socket),
            Ok(Err(error)) => link.connection_failed(error),
            Err(elapsed) => link.connection_failed(std::io::Error::from(elapsed).into()),
        }
        time::sleep(backoff.wait()).await;
    }
}
