//! A server that holds buckets: all of them, or as one of a Cluster's nodes some.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time;
use weir_limit::time::{Nanos, Timestamp};
use weir_store::CircuitSupervisor;
use weir_store::{HealthCheck, Observer, StoreError, StoreFuture};

use super::check;
use super::cluster::{Member, slot_of};
use super::expiry::Expiry;
use super::gcra::{self, ReadBy};
use super::manager::{ConnectionManager, Location, Session, Supervisor};
use super::resp::Request;
use super::settings::RedisSettings;

/// How long a command that no request waits for may take.
pub(super) const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(1);

/// The name of a key that is not a bucket's, because it does not name a subject.
const PROBE: &str = "probe";

/// The same of the key that commands are tried on, which holds nothing.
const TRIED: &str = "commands";

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

/// Asks the server how it is.
#[derive(Clone)]
struct Checker {
    settings: RedisSettings,
    observer: Arc<dyn Observer>,
    manager: Arc<ConnectionManager>,
    member: Option<Arc<Member>>,
    /// The first connection has been waited for.
    was_connected: Arc<AtomicBool>,
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
                was_connected: Arc::default(),
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
    /// Checks the connection, and then does something else by it, with a deadline. A connection that
    /// does not answer is given up: the server may be gone without a word.
    async fn examine<F>(&self, then: impl FnOnce(Arc<Session>) -> F) -> Result<(), StoreError>
    where
        F: Future<Output = Result<(), StoreError>>,
    {
        let session = self.manager.session()?;
        let answer = in_time(async {
            let (clock, observer) = (&self.settings.clock, &*self.observer);
            let checked = check::check_again(&session.connection, clock, observer).await;
            checked.map_err(|error| session.lost(error))?;
            then(Arc::clone(&session)).await
        });
        let answer = answer.await;
        if matches!(answer, Err(StoreError::Deadline)) {
            session.give_up(None);
        }
        answer
    }

    /// Sends commands, of which an error is the server's only if it `decides` by them. A node that
    /// redirects is there, and its slots have changed.
    async fn send(
        session: &Arc<Session>,
        request: Request,
        decides: bool,
    ) -> Result<(), StoreError> {
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
    }

    /// Tries the commands that the configuration needs, unless they are known to be carried out.
    async fn try_commands(&self, session: &Arc<Session>) -> Result<(), StoreError> {
        let key = || self.own_key(TRIED);
        let Some(trial) = session.commands.trial(&self.settings.algorithms, key) else {
            return Ok(());
        };
        let replies = session.send(trial.request).await?;
        match session.commands.conclude(trial.algorithms, &replies) {
            Some(refused) => Err(refused.into_failure()),
            None => Ok(()),
        }
    }

    /// Asks the node whose clock is followed for a key of slot 0: a gateway that nobody asks about
    /// that slot would not learn for a minute that another is followed by now.
    fn look_at_slot_0(&self) -> Request {
        let mut request = Request::default();
        let key = format!("{}:{PROBE_OF_SLOT_0}", self.settings.prefix);
        let is_followed = self.member.is_some() && self.settings.clock.is_reference();
        if is_followed && slot_of(key.as_bytes()) == 0 {
            gcra::read(&mut request, key.as_bytes(), ReadBy::Bitfield);
        }
        request
    }

    fn own_key(&self, name: &str) -> Option<String> {
        let key = format!("{}:{name}", self.settings.prefix);
        match &self.member {
            None => Some(key),
            Some(member) => member.own_key(&key),
        }
    }
}

impl HealthCheck for Checker {
    /// The first one of a Cluster's node waits for a connection, which must not count as lost before
    /// it was made.
    fn ping(&self) -> StoreFuture<()> {
        let checker = self.clone();
        let is_first = !self.was_connected.swap(true, Ordering::Relaxed);
        StoreFuture::waiting(async move {
            if is_first && checker.member.is_some() {
                let _ = time::timeout(BACKGROUND_TIMEOUT, checker.manager.connected()).await;
            }
            let work = |session| {
                let checker = &checker;
                async move {
                    Self::send(&session, checker.look_at_slot_0(), false).await?;
                    checker.try_commands(&session).await
                }
            };
            checker.examine(work).await
        })
    }

    /// Writes as a decision would: a server whose memory is full says what time it has, but cannot
    /// decide.
    fn probe(&self) -> StoreFuture<()> {
        let mut request = Request::default();
        if let Some(key) = self.own_key(PROBE) {
            let nothing = (Nanos::ZERO, Nanos::ZERO);
            let then = Timestamp::default();
            gcra::take(&mut request, key.as_bytes(), nothing, Expiry::Set, then);
        }
        let checker = self.clone();
        StoreFuture::waiting(async move {
            let work = |session| async move { Self::send(&session, request, true).await };
            checker.examine(work).await
        })
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
