//! How commands get to Redis and what becomes of their failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redis::{Cmd, Pipeline, RedisError, Value};
use smallvec::SmallVec;
use tokio::time;

use super::commands;
use super::link::{Link, Live};
use crate::limit::{BucketKey, Transaction};
use crate::store::{Call, Observer, StoreError};
use crate::time::{Nanos, Timestamp};

/// How long a command that no request waits for may take.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(1);

/// What the calls of one [`super::Redis`] share.
pub(super) struct Channel {
    link: Arc<Link>,
    prefix: Box<[u8]>,
    observer: Arc<dyn Observer>,
    unsettled: AtomicUsize,
}

impl Channel {
    pub(super) fn new(link: Arc<Link>, prefix: &str, observer: Arc<dyn Observer>) -> Self {
        Self {
            link,
            prefix: format!("{prefix}:").into_bytes().into(),
            observer,
            unsettled: AtomicUsize::new(0),
        }
    }

    pub(super) fn link(&self) -> &Link {
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

    /// Sends a pipeline and reads its replies; an error among them is the answer.
    pub(super) async fn send(
        &self,
        live: &Live,
        commands: &Pipeline,
    ) -> Result<Vec<Value>, StoreError> {
        let mut connection = live.connection.clone();
        let sent = connection.send_packed_commands(commands, 0, commands.len());
        let replies = sent.await.and_then(without_errors);
        replies.map_err(|error| self.failed(live, error))
    }

    /// The same with a deadline, for what no request waits for.
    pub(super) async fn send_in_time(
        &self,
        live: &Live,
        commands: &Pipeline,
    ) -> Result<(), StoreError> {
        match time::timeout(BACKGROUND_TIMEOUT, self.send(live, commands)).await {
            Ok(answer) => answer.map(drop),
            Err(_) => Err(StoreError::Deadline),
        }
    }

    fn failed(&self, live: &Live, error: RedisError) -> StoreError {
        if error.is_io_error() || error.is_unrecoverable_error() {
            let error = Arc::new(error);
            self.link.give_up(live, Some(Arc::clone(&error)));
            StoreError::Lost(Box::new(error))
        } else {
            failure(error)
        }
    }

    /// Sends what no request waits for, with the connection that is there, and reports it.
    pub(super) async fn tell(&self, call: Call, commands: &Pipeline) -> Result<(), StoreError> {
        let live = self.link.connection()?;
        let start = Instant::now();
        let answer = self.send_in_time(&live, commands).await;
        let failure = answer.as_ref().err();
        self.observer.called(call, start.elapsed(), failure);
        answer
    }

    /// Adds a refund of one transaction.
    pub(super) fn add_give_back(
        &self,
        commands: &mut Pipeline,
        one: &Transaction,
        increment: Nanos,
        now: Timestamp,
    ) {
        let command = |key: &[u8]| commands::give_back(key, increment, now);
        self.add_write(commands, one, command);
    }

    /// Adds a write that may create its key, and the expiry that then has to come with it.
    pub(super) fn add_write(
        &self,
        commands: &mut Pipeline,
        one: &Transaction,
        command: impl FnOnce(&[u8]) -> Cmd,
    ) {
        let key = self.key(&one.key);
        commands.add_command(command(&key));
        commands.add_command(commands::expire(&key, one.quota.tolerance()));
    }

    /// Sends what no request waits for, if it is anything.
    pub(super) fn in_background(self: &Arc<Self>, call: Call, live: &Live, commands: Pipeline) {
        if commands.is_empty() {
            return;
        }
        let (channel, live) = (Arc::clone(self), live.clone());
        self.off_path(call, async move {
            channel.send(&live, &commands).await.map(drop)
        });
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
            let answer = time::timeout(BACKGROUND_TIMEOUT, work).await;
            let answer = answer.unwrap_or(Err(StoreError::Deadline));
            let failure = answer.as_ref().err();
            unsettled.0.observer.called(call, start.elapsed(), failure);
        });
    }
}

/// Counts a background task for as long as it lives.
struct Unsettled(Arc<Channel>);

impl Unsettled {
    fn new(channel: &Arc<Channel>) -> Self {
        channel.unsettled.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(channel))
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        self.0.unsettled.fetch_sub(1, Ordering::SeqCst);
    }
}

fn without_errors(replies: Vec<Value>) -> Result<Vec<Value>, RedisError> {
    replies.into_iter().map(Value::extract_error).collect()
}

pub(super) fn failure(error: RedisError) -> StoreError {
    StoreError::Failed(Box::new(error))
}
