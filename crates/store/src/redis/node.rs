//! A server that holds buckets: all of them, or as one of a Cluster's nodes some.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time;
use weir_limit::time::{Nanos, Timestamp};

use super::check;
use super::cluster::{Member, slot_of};
use super::expiry::Expiry;
use super::gcra;
use super::manager::{ConnectionManager, Location, Session, Supervisor};
use super::resp::Request;
use super::settings::RedisSettings;
use crate::breaker::CircuitSupervisor;
use crate::{HealthCheck, Observer, StoreError, StoreFuture};

/// How long a command that no request waits for may take.
pub(super) const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(1);

/// The name of a key that is not a bucket's, because it does not name a subject.
const PROBE: &str = "probe";

/// The same in slot 0, whose owner's clock all gateways follow, unless the prefix has a hash tag.
const PROBE_OF_SLOT_0: &str = "probe:{06S}";

/// A server and the connection to it, which a task keeps up.
pub(super) struct Node {
    checker: Arc<Checker>,
    /// Serializes renewals and releases of leases.
    pub(super) leases: tokio::sync::Mutex<()>,
    /// A renewal waits for its turn.
    pub(super) renews: AtomicBool,
    _connector: Supervisor,
    circuit: OnceLock<CircuitSupervisor>,
}

/// What asks the server how it is.
struct Checker {
    settings: RedisSettings,
    observer: Arc<dyn Observer>,
    manager: Arc<ConnectionManager>,
    member: Option<Arc<Member>>,
    /// The first connection has been waited for.
    was_connected: AtomicBool,
}

impl Node {
    /// Connects to the server, which needs a tokio runtime. `member` is what it is in a Cluster.
    pub(super) fn spawn(
        location: Location,
        settings: RedisSettings,
        observer: Arc<dyn Observer>,
        member: Option<Arc<Member>>,
    ) -> Self {
        let (manager, connector) = ConnectionManager::supervised(
            location,
            settings.clone(),
            Arc::clone(&observer),
            member.clone(),
        );
        Self {
            checker: Arc::new(Checker {
                settings,
                observer,
                manager,
                member,
                was_connected: AtomicBool::new(false),
            }),
            leases: tokio::sync::Mutex::default(),
            renews: AtomicBool::new(false),
            _connector: connector,
            circuit: OnceLock::new(),
        }
    }

    /// Lets a task supervise the circuit breaker that this node has as a member of a Cluster.
    pub(super) fn supervise(&self, timeout: Duration) {
        let breaker = self.member().and_then(|member| member.breaker());
        if let Some(breaker) = breaker {
            let checker = Arc::clone(&self.checker);
            self.circuit
                .get_or_init(|| CircuitSupervisor::spawn(checker, breaker, timeout));
        }
    }

    pub(super) fn member(&self) -> Option<&Arc<Member>> {
        self.checker.member.as_ref()
    }

    pub(super) fn manager(&self) -> &ConnectionManager {
        &self.checker.manager
    }

    /// The connection, or why there is none.
    pub(super) fn session(&self) -> Result<Arc<Session>, StoreError> {
        match self.member() {
            None => self.manager().session(),
            Some(member) if member.is_given_up() => Err(member.failure(StoreError::OutOfReach)),
            Some(member) => {
                let session = self.manager().session();
                session.map_err(|_| member.failure(StoreError::OutOfReach))
            }
        }
    }

    /// Whether requests can be sent.
    pub(super) fn is_usable(&self) -> bool {
        self.session().is_ok()
    }

    /// The server's health.
    pub(super) fn health(&self) -> &impl HealthCheck {
        &*self.checker
    }
}

impl Checker {
    /// Checks the connection, and then sends commands, with a deadline. A connection that does not
    /// answer is given up: the server may be gone without a word. A node that redirects is there,
    /// and its slots have changed.
    fn examine(&self, request: Request, decides: bool) -> StoreFuture<()> {
        let session = match self.manager.session() {
            Ok(session) => session,
            Err(error) => return StoreFuture::failed(error),
        };
        let (clock, observer) = (self.settings.clock.clone(), Arc::clone(&self.observer));
        StoreFuture::waiting(async move {
            let answer = in_time(async {
                let checked = check::check_again(&session.connection, &clock, &*observer).await;
                checked.map_err(|error| session.lost(error))?;
                if request.is_empty() {
                    return Ok(());
                }
                let replies = session.send(request).await?;
                match (replies.values(), &session.member) {
                    (Ok(_), _) => Ok(()),
                    (Err(error), Some(member)) if error.redirect_node().is_some() => {
                        member.has_changed();
                        Ok(())
                    }
                    (Err(_), _) if !decides => Ok(()),
                    (Err(error), _) => Err(session.failed(error)),
                }
            });
            let answer = answer.await;
            if matches!(answer, Err(StoreError::Deadline)) {
                session.give_up(None);
            }
            answer
        })
    }

    /// Asks the node whose clock is followed for a key of slot 0: a gateway that nobody asks about
    /// that slot would not learn for a minute that another is followed by now.
    fn look_at_slot_0(&self) -> Request {
        let mut request = Request::default();
        let key = format!("{}:{PROBE_OF_SLOT_0}", self.settings.prefix);
        let is_followed = self.member.is_some() && self.settings.clock.is_reference();
        if is_followed && slot_of(key.as_bytes()) == 0 {
            gcra::read(&mut request, key.as_bytes());
        }
        request
    }

    fn probe_key(&self) -> Option<String> {
        let key = format!("{}:{PROBE}", self.settings.prefix);
        match &self.member {
            None => Some(key),
            Some(member) => member.own_key(&key),
        }
    }
}

impl HealthCheck for Checker {
    /// The first one waits for a connection, which must not count as lost before it was made.
    fn ping(&self) -> StoreFuture<()> {
        let is_first = !self.was_connected.swap(true, Ordering::Relaxed);
        if self.member.is_none() || !is_first {
            return self.examine(self.look_at_slot_0(), false);
        }
        let manager = Arc::clone(&self.manager);
        StoreFuture::waiting(async move {
            let _ = time::timeout(BACKGROUND_TIMEOUT, manager.connected()).await;
            manager.session().map(drop)
        })
    }

    /// Writes as a decision would: a server whose memory is full says what time it has, but cannot
    /// decide.
    fn probe(&self) -> StoreFuture<()> {
        let mut request = Request::default();
        if let Some(key) = self.probe_key() {
            let nothing = (Nanos::ZERO, Nanos::ZERO);
            let then = Timestamp::default();
            gcra::take(&mut request, key.as_bytes(), nothing, Expiry::Set, then);
        }
        self.examine(request, true)
    }

    fn lost(&self) -> StoreFuture<()> {
        let manager = Arc::clone(&self.manager);
        StoreFuture::waiting(async move {
            manager.lost().await;
            Ok(())
        })
    }
}

/// Gives up on what no request waits for when it takes too long.
pub(super) async fn in_time<T>(
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let answer = time::timeout(BACKGROUND_TIMEOUT, work).await;
    answer.unwrap_or(Err(StoreError::Deadline))
}
