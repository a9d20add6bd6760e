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
use super::commands;
use super::connection::Answer;
use super::link::{ConnectionManager, Live};
use super::replies::Replies;
use super::request::Request;
use super::settings::RedisSettings;
use crate::limit::{BucketKey, Transaction};
use crate::store::{Call, Observer, StoreError};
use crate::time::{Clock, Nanos, Timestamp};

/// How long a command that no request waits for may take.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(1);

/// What the calls of one [`super::Redis`] share.
pub(super) struct Client {
    link: Arc<ConnectionManager>,
    prefix: Box<[u8]>,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
    unsettled: AtomicUsize,
}

impl Client {
    /// Calls over a link that was made by these settings.
    pub(super) fn new(
        link: Arc<ConnectionManager>,
        settings: &RedisSettings,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self {
            link,
            prefix: format!("{}:", settings.prefix).into_bytes().into(),
            clock: Arc::clone(&settings.clock),
            observer,
            unsettled: AtomicUsize::new(0),
        }
    }

    pub(super) fn link(&self) -> &ConnectionManager {
        &self.link
    }

    /// How many background calls are under way.
    pub(super) fn unsettled(&self) -> usize {
        self.unsettled.load(Ordering::SeqCst)
    }

    /// A bucket's key in Redis.
    pub(super) fn key(&self, key: &BucketKey) -> SmallVec<[u8; 96]> {
        let mut whole = SmallVec::from_slice(&self.prefix);
        whole.extend_from_slice(key.as_bytes());
        whole
    }

    /// The key of what is no TAT but belongs to a bucket, or is like one.
    pub(super) fn marked_key(&self, key: &BucketKey, mark: &str) -> SmallVec<[u8; 96]> {
        let mut whole = self.key(key);
        whole.extend_from_slice(mark.as_bytes());
        whole
    }

    /// Sends commands. Their replies are not looked at.
    pub(super) async fn ask(&self, live: &Live, request: Request) -> Result<Replies, StoreError> {
        let answer = live.connection.send(request).await;
        self.answered(live, answer)
    }

    /// Sends commands and reads their replies; an error among them is the answer.
    pub(super) async fn send(
        &self,
        live: &Live,
        request: Request,
    ) -> Result<Vec<Value>, StoreError> {
        let replies = self.ask(live, request).await?;
        replies.values().map_err(|error| self.failed(live, error))
    }

    /// The replies, unless the connection broke. Then it is given up.
    pub(super) fn answered(
        &self,
        live: &Live,
        answer: Result<Answer, RecvError>,
    ) -> Result<Replies, StoreError> {
        // Without an answer the task that drives the connection is gone: the runtime is ending.
        let error = match answer {
            Ok(Ok(replies)) => return Ok(replies),
            Ok(Err(error)) => error,
            Err(_) => return Err(StoreError::OutOfReach),
        };
        Err(self.lost(live, error))
    }

    /// The error among replies that do not fit the commands. Without one, replies and commands are out
    /// of step: what comes next may be the answer to anything.
    pub(super) fn unfit(&self, live: &Live, replies: &Replies) -> StoreError {
        if let Err(error) = replies.values() {
            return self.failed(live, error);
        }
        let what = "a reply that does not fit the commands";
        let error = Arc::new(io::Error::new(io::ErrorKind::InvalidData, what).into());
        live.connection.close(&error);
        self.lost(live, error)
    }

    /// A server that has become a replica stays one for those who are connected, while its name may
    /// lead to the new primary. A node of a Cluster is of no use for any request.
    pub(super) fn failed(&self, live: &Live, error: RedisError) -> StoreError {
        let is_replica = [ServerErrorKind::ReadOnly, ServerErrorKind::MasterDown]
            .map(ErrorKind::Server)
            .contains(&error.kind());
        if is_replica {
            return self.lost(live, Arc::new(error));
        }
        match redirection(&error) {
            Some(why) => self.lost(live, why),
            None if is_right_of_some(&error) => StoreError::Forbidden(Box::new(error)),
            None => StoreError::Failed(Box::new(error)),
        }
    }

    /// Gives a connection up, for this reason.
    pub(super) fn lost(&self, live: &Live, error: Arc<RedisError>) -> StoreError {
        self.link.give_up(live, Some(Arc::clone(&error)));
        StoreError::Lost(Box::new(error))
    }

    /// Sends what no request waits for, with the connection that is there, and reports it.
    pub(super) async fn tell(&self, call: Call, request: Request) -> Result<(), StoreError> {
        let live = self.link.connection()?;
        let start = Instant::now();
        let answer = in_time(self.send(&live, request)).await;
        let failure = answer.as_ref().err();
        self.observer.called(call, start.elapsed(), failure);
        answer.map(drop)
    }

    /// Adds a refund of one transaction.
    pub(super) fn add_give_back(
        &self,
        request: &mut Request,
        one: &Transaction,
        increment: Nanos,
        now: Timestamp,
    ) {
        let costs = (increment, one.quota.tolerance());
        commands::give_back(request, &self.key(&one.key), costs, now);
    }

    /// Asks the server again whether it is of use, and gives the connection up if it is not.
    pub(super) async fn check(&self, live: &Live) -> Result<(), StoreError> {
        let checked = check::check_again(&live.connection, &*self.clock, &*self.observer).await;
        checked.map_err(|error| self.lost(live, error))
    }

    /// Sends repairs that are computed by this gateway's clock, when the server says that the clock is
    /// right. Else they would give back to clients what is spent.
    pub(super) fn repair(self: &Arc<Self>, live: &Live, repairs: Request) {
        if repairs.is_empty() {
            return;
        }
        let (channel, live) = (Arc::clone(self), Arc::clone(live));
        self.off_path(Call::Clamp, async move {
            let measured = check::measure(&live.connection, &*channel.clock).await;
            match measured.map_err(|error| channel.lost(&live, error))? {
                Some(offset) if offset.is_within_tolerance() => {
                    channel.send(&live, repairs).await.map(drop)
                }
                _ => Ok(()),
            }
        });
    }

    /// Sends what no request waits for, if it is anything.
    pub(super) fn in_background(self: &Arc<Self>, call: Call, live: &Live, request: Request) {
        if request.is_empty() {
            return;
        }
        let (channel, live) = (Arc::clone(self), Arc::clone(live));
        self.off_path(
            call,
            async move { channel.send(&live, request).await.map(drop) },
        );
    }

    /// Does what no request waits for, with a deadline.
    pub(super) fn off_path(
        self: &Arc<Self>,
        call: Call,
        work: impl Future<Output = Result<(), StoreError>> + Send + 'static,
    ) {
        let unsettled = Unsettled::new(self);
        tokio::spawn(async move {
            let start = Instant::now();
            let answer = in_time(work).await;
            let failure = answer.as_ref().err();
            unsettled.0.observer.called(call, start.elapsed(), failure);
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
struct Unsettled(Arc<Client>);

impl Unsettled {
    fn new(channel: &Arc<Client>) -> Self {
        channel.unsettled.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(channel))
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        self.0.unsettled.fetch_sub(1, Ordering::SeqCst);
    }
}
