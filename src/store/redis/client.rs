//! How commands get to Redis and what becomes of their failures.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redis::{ErrorKind, RedisError, ServerErrorKind, Value};
use smallvec::SmallVec;
use tokio::sync::oneshot::error::RecvError;
use tokio::time;

use super::check::{self, is_right_of_some, redirection};
use super::connection::RequestResult;
use super::manager::{ConnectionManager, Session};
use super::resp::{Replies, Request};
use super::settings::RedisSettings;
use super::window::WindowKind;
use crate::limit::{BucketKey, Transaction};
use crate::store::{Call, DecisionClock, Observer, StoreError};

/// How long a command that no request waits for may take.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(1);

/// A bucket's key in Redis.
pub(super) type Key = SmallVec<[u8; 96]>;

/// What the calls of one [`super::Redis`] share.
pub(super) struct Client {
    manager: Arc<ConnectionManager>,
    prefix: Box<[u8]>,
    clock: DecisionClock,
    observer: Arc<dyn Observer>,
    background_calls: AtomicUsize,
}

impl Client {
    /// Calls over a manager that was made by these settings.
    pub(super) fn new(
        manager: Arc<ConnectionManager>,
        settings: &RedisSettings,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self {
            manager,
            prefix: format!("{}:", settings.prefix).into_bytes().into(),
            clock: settings.clock.clone(),
            observer,
            background_calls: AtomicUsize::new(0),
        }
    }

    pub(super) fn manager(&self) -> &ConnectionManager {
        &self.manager
    }

    /// The clock by which requests are decided.
    pub(super) fn clock(&self) -> &DecisionClock {
        &self.clock
    }

    /// How many background calls are under way.
    pub(super) fn background_calls(&self) -> usize {
        self.background_calls.load(Ordering::SeqCst)
    }

    /// The key of GCRA's bucket in Redis.
    pub(super) fn key(&self, key: &BucketKey) -> Key {
        let mut whole = SmallVec::from_slice(&self.prefix);
        whole.extend_from_slice(key.as_bytes());
        whole
    }

    /// The key with a mark at its end, of what is not a TAT.
    pub(super) fn marked_key(&self, key: &BucketKey, mark: &str) -> Key {
        let mut whole = self.key(key);
        whole.extend_from_slice(mark.as_bytes());
        whole
    }

    /// The key of a transaction's bucket, with the mark of its algorithm.
    pub(super) fn transaction_key(&self, transaction: &Transaction) -> Key {
        if transaction.is_windowed() {
            self.marked_key(&transaction.key, WindowKind::of(&transaction.quota).mark())
        } else {
            self.key(&transaction.key)
        }
    }

    /// Sends commands. Their replies are not looked at.
    pub(super) async fn ask(
        &self,
        session: &Arc<Session>,
        request: Request,
    ) -> Result<Replies, StoreError> {
        let answer = session.connection.send(request).await;
        self.answered(session, answer)
    }

    /// Sends commands and reads their replies; an error among them is the answer.
    pub(super) async fn send(
        &self,
        session: &Arc<Session>,
        request: Request,
    ) -> Result<Vec<Value>, StoreError> {
        let replies = self.ask(session, request).await?;
        replies
            .values()
            .map_err(|error| self.failed(session, error))
    }

    /// The replies, unless the connection broke. Then it is given up.
    pub(super) fn answered(
        &self,
        session: &Arc<Session>,
        answer: Result<RequestResult, RecvError>,
    ) -> Result<Replies, StoreError> {
        // Without an answer the task that drives the connection is gone: the runtime is ending.
        let error = match answer {
            Ok(Ok(replies)) => return Ok(replies),
            Ok(Err(error)) => error,
            Err(_) => return Err(StoreError::OutOfReach),
        };
        Err(self.lost(session, error))
    }

    /// The error among replies that do not fit the commands. Without one, replies and commands are
    /// out of step: what comes next may be the answer to anything.
    pub(super) fn unfit(&self, session: &Arc<Session>, replies: &Replies) -> StoreError {
        if let Err(error) = replies.values() {
            return self.failed(session, error);
        }
        let what = "a reply that does not fit the commands";
        let error = Arc::new(io::Error::new(io::ErrorKind::InvalidData, what).into());
        session.connection.close(&error);
        self.lost(session, error)
    }

    /// A server that has become a replica stays one for its present connections, while its name may
    /// lead to the new primary. A node of a Cluster is of no use for any request.
    pub(super) fn failed(&self, session: &Arc<Session>, error: RedisError) -> StoreError {
        let is_replica = [ServerErrorKind::ReadOnly, ServerErrorKind::MasterDown]
            .map(ErrorKind::Server)
            .contains(&error.kind());
        if is_replica {
            return self.lost(session, Arc::new(error));
        }
        match redirection(&error) {
            Some(why) => self.lost(session, why),
            None if is_right_of_some(&error) => StoreError::Forbidden(Box::new(error)),
            None => StoreError::Failed(Box::new(error)),
        }
    }

    /// Gives a connection up, for this reason.
    pub(super) fn lost(&self, session: &Arc<Session>, error: Arc<RedisError>) -> StoreError {
        self.manager.give_up(session, Some(Arc::clone(&error)));
        StoreError::Lost(Box::new(error))
    }

    /// Sends what no request waits for, with the connection that is there, and reports it.
    pub(super) async fn tell(&self, call: Call, request: Request) -> Result<(), StoreError> {
        let session = self.manager.session()?;
        let start = Instant::now();
        let answer = in_time(self.send(&session, request)).await;
        let failure = answer.as_ref().err();
        self.observer.called(call, start.elapsed(), failure);
        answer.map(drop)
    }

    /// Asks the server again whether it can be used, and gives the connection up if it is not.
    pub(super) async fn check(&self, session: &Arc<Session>) -> Result<(), StoreError> {
        let checked = check::check_again(&session.connection, &self.clock, &*self.observer).await;
        checked.map_err(|error| self.lost(session, error))
    }

    /// Sends repairs that are computed by the clock of decisions, when the server says that the clock
    /// is right, and other gateways have no reason to tell another time. Else they would give back
    /// to clients what is spent.
    pub(super) fn repair(self: &Arc<Self>, session: &Arc<Session>, repairs: Request) {
        if repairs.is_empty() || !self.clock.is_settled() {
            return;
        }
        let (client, session) = (Arc::clone(self), Arc::clone(session));
        self.off_path(Call::Clamp, async move {
            let measured = check::measure(&session.connection, &client.clock).await;
            match measured.map_err(|error| client.lost(&session, error))? {
                Some(offset) if offset.is_within_tolerance() => {
                    client.send(&session, repairs).await.map(drop)
                }
                _ => Ok(()),
            }
        });
    }

    /// Sends what no request waits for, if it is anything.
    pub(super) fn in_background(
        self: &Arc<Self>,
        call: Call,
        session: &Arc<Session>,
        request: Request,
    ) {
        if request.is_empty() {
            return;
        }
        let (client, session) = (Arc::clone(self), Arc::clone(session));
        self.off_path(call, async move {
            client.send(&session, request).await.map(drop)
        });
    }

    /// Does what no request waits for, with a deadline.
    pub(super) fn off_path(
        self: &Arc<Self>,
        call: Call,
        work: impl Future<Output = Result<(), StoreError>> + Send + 'static,
    ) {
        let background_calls = BackgroundCallGuard::new(self);
        tokio::spawn(async move {
            let start = Instant::now();
            let answer = in_time(work).await;
            let failure = answer.as_ref().err();
            background_calls
                .0
                .observer
                .called(call, start.elapsed(), failure);
        });
    }
}

/// Gives up on what no request waits for when it takes too long.
pub(super) async fn in_time<T>(
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let answer = time::timeout(BACKGROUND_TIMEOUT, work).await;
    answer.unwrap_or(Err(StoreError::Deadline))
}

/// Counts a background task for as long as it lives.
struct BackgroundCallGuard(Arc<Client>);

impl BackgroundCallGuard {
    fn new(client: &Arc<Client>) -> Self {
        client.background_calls.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(client))
    }
}

impl Drop for BackgroundCallGuard {
    fn drop(&mut self) {
        self.0.background_calls.fetch_sub(1, Ordering::SeqCst);
    }
}
