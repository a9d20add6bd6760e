//! Buckets in Redis, shared by many gateways.
//!
//! A batch is one pipeline: for each transaction a `BITFIELD` that checks and takes at once, and a
//! `PEXPIRE`. The commands of concurrent batches share writes on one connection. When one limit
//! denies, what the batch took from the others is given back by a second pipeline, off the
//! response's path: for that moment a bucket is too strict, never too lax. It is too strict as
//! well when a caller stops waiting for an answer that comes after all, or when the connection
//! breaks between the two.

mod commands;
mod link;
mod settings;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redis::{Client, Cmd, Pipeline, RedisError, Value};
use smallvec::SmallVec;
use tokio::time;

use crate::limit::{Batch, BucketKey, Decision, Kind, Transaction};
use crate::store::{Basis, Call, Observer, Outcome, Pending, Remote, Store, StoreError};
use crate::time::{Nanos, Timestamp};
use commands::{Found, Question};
use link::{Link, Live, Supervisor};
pub use settings::{RedisSettings, RedisUrlError};

/// How long a command that no request waits for may take.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(1);

/// The name of a key that is no bucket's, because it names no subject.
const PROBE: &str = "probe";

/// A connection to Redis, kept up by a task of its own: one for each worker.
///
/// Calls have no deadline here, and fail at once when there is no connection; see
/// [`crate::store::Guarded`].
pub struct Redis {
    shared: Arc<Shared>,
    _supervisor: Supervisor,
}

struct Shared {
    link: Arc<Link>,
    prefix: Box<[u8]>,
    observer: Arc<dyn Observer>,
    unsettled: AtomicUsize,
}

impl Redis {
    /// Connects, and connects again whenever the connection is lost, until this is dropped.
    ///
    /// Must be called on a tokio runtime.
    ///
    /// # Errors
    /// [`StoreError::Failed`] when the settings cannot be used at all.
    pub fn spawn(settings: RedisSettings, observer: Arc<dyn Observer>) -> Result<Self, StoreError> {
        if settings.is_tls() {
            choose_crypto();
        }
        let prefix = format!("{}:", settings.prefix).into_bytes().into();
        let client = Client::open(settings.endpoint).map_err(failure)?;
        let (link, supervisor) = Link::supervised(client);
        let shared = Shared {
            link,
            prefix,
            observer,
            unsettled: AtomicUsize::new(0),
        };
        Ok(Self {
            shared: Arc::new(shared),
            _supervisor: supervisor,
        })
    }

    /// Waits for a connection, at most so long.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn connected(&self, within: Duration) -> Result<(), StoreError> {
        let _ = time::timeout(within, self.shared.link.connected()).await;
        self.shared.link.connection().map(drop)
    }

    /// How many refunds and clamps are under way that no caller waits for.
    pub fn unsettled(&self) -> usize {
        self.shared.unsettled.load(Ordering::SeqCst)
    }

    /// Sends commands and reads their replies, with a connection that is there.
    fn call(&self, commands: Pipeline) -> Pending<()> {
        match self.shared.link.connection() {
            Err(error) => Pending::failed(error),
            Ok(live) => {
                let shared = Arc::clone(&self.shared);
                Pending::waiting(async move { shared.send(&live, &commands).await.map(drop) })
            }
        }
    }

    /// Like [`Redis::call`], with a deadline. A connection that does not answer is given up: the
    /// server may be gone without a word.
    fn examine(&self, commands: Pipeline) -> Pending<()> {
        match self.shared.link.connection() {
            Err(error) => Pending::failed(error),
            Ok(live) => {
                let shared = Arc::clone(&self.shared);
                Pending::waiting(async move {
                    let answer = shared.send_in_time(&live, &commands).await;
                    if matches!(answer, Err(StoreError::Deadline)) {
                        shared.link.give_up(&live, None);
                    }
                    answer
                })
            }
        }
    }
}

/// The TLS library has several cryptographic back ends in reach and would panic when asked to
/// choose. A back end that the program has chosen already stays.
fn choose_crypto() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

impl Shared {
    fn key(&self, key: &BucketKey) -> SmallVec<[u8; 96]> {
        let mut whole = SmallVec::from_slice(&self.prefix);
        whole.extend_from_slice(key.as_bytes());
        whole
    }

    async fn send(&self, live: &Live, commands: &Pipeline) -> Result<Vec<Value>, StoreError> {
        let mut connection = live.connection.clone();
        let sent = connection.send_packed_commands(commands, 0, commands.len());
        let replies = sent.await.and_then(without_errors);
        replies.map_err(|error| self.failed(live, error))
    }

    async fn send_in_time(&self, live: &Live, commands: &Pipeline) -> Result<(), StoreError> {
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

    async fn ask(
        self: Arc<Self>,
        live: Live,
        batch: Batch,
        now: Timestamp,
    ) -> Result<Outcome, StoreError> {
        let (questions, commands) = self.questions(&batch, now);
        let replies = self.send(&live, &commands).await?;
        let found = findings(&questions, &replies, now).ok_or_else(strange_reply)?;
        let (decisions, denied) = decisions(&batch, &questions, &found);
        if denied {
            self.give_back_taken(&live, &batch, &questions, &found, now);
        }
        self.clamp_left_overs(&live, &batch, &found, now);
        Ok(Outcome {
            decisions,
            basis: Basis::Store,
        })
    }

    fn questions(&self, batch: &Batch, now: Timestamp) -> (Questions, Pipeline) {
        let questions = batch.iter().map(Question::of).collect::<Questions>();
        let mut commands = Pipeline::with_capacity(2 * batch.len());
        for (one, question) in batch.iter().zip(&questions) {
            let (key, tolerance) = (self.key(&one.key), one.quota.tolerance());
            match question {
                Question::Nothing => {}
                Question::Read => {
                    commands.add_command(commands::read(&key));
                }
                Question::Take(increment) => {
                    commands.add_command(commands::take(&key, *increment, tolerance, now));
                    commands.add_command(commands::expire(&key, tolerance));
                }
            }
        }
        (questions, commands)
    }

    fn give_back_taken(
        self: &Arc<Self>,
        live: &Live,
        batch: &Batch,
        questions: &Questions,
        found: &Findings,
        now: Timestamp,
    ) {
        let mut commands = Pipeline::new();
        for ((one, question), found) in batch.iter().zip(questions).zip(found) {
            if let (Question::Take(increment), true) = (question, found.taken) {
                self.add_give_back(&mut commands, one, *increment, now);
            }
        }
        self.in_background(Call::Refund, live, commands);
    }

    fn add_give_back(
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
    fn add_write(
        &self,
        commands: &mut Pipeline,
        one: &Transaction,
        command: impl FnOnce(&[u8]) -> Cmd,
    ) {
        let key = self.key(&one.key);
        commands.add_command(command(&key));
        commands.add_command(commands::expire(&key, one.quota.tolerance()));
    }

    fn clamp_left_overs(
        self: &Arc<Self>,
        live: &Live,
        batch: &Batch,
        found: &Findings,
        now: Timestamp,
    ) {
        let mut commands = Pipeline::new();
        for (one, found) in batch.iter().zip(found) {
            if one.quota.is_left_over(found.debt) {
                let greatest = now + one.quota.tolerance();
                self.add_write(&mut commands, one, |key| commands::clamp(key, greatest));
            }
        }
        self.in_background(Call::Clamp, live, commands);
    }

    /// Sends what no request waits for, if it is anything.
    fn in_background(self: &Arc<Self>, call: Call, live: &Live, commands: Pipeline) {
        if commands.is_empty() {
            return;
        }
        let unsettled = Unsettled::new(self);
        let live = live.clone();
        tokio::spawn(async move {
            let start = Instant::now();
            let answer = unsettled.0.send_in_time(&live, &commands).await;
            let failure = answer.as_ref().err();
            unsettled.0.observer.called(call, start.elapsed(), failure);
        });
    }
}

/// Counts a background task for as long as it lives.
struct Unsettled(Arc<Shared>);

impl Unsettled {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.unsettled.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(shared))
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        self.0.unsettled.fetch_sub(1, Ordering::SeqCst);
    }
}

type Questions = SmallVec<[Question; 3]>;
type Findings = SmallVec<[Found; 3]>;

/// Matches replies with questions. A take's second reply, the expiry's, says nothing of use.
fn findings(questions: &Questions, replies: &[Value], now: Timestamp) -> Option<Findings> {
    let mut rest = replies;
    let mut found = Findings::new();
    for &question in questions {
        let (replies, after) = rest.split_at_checked(question.replies())?;
        rest = after;
        found.push(match replies.first() {
            None => Found::default(),
            Some(reply) => Found::parse(question, reply, now)?,
        });
    }
    Some(found)
}

/// The decisions, and whether one denies the batch.
fn decisions(
    batch: &Batch,
    questions: &Questions,
    found: &Findings,
) -> (SmallVec<[Option<Decision>; 3]>, bool) {
    let debts = || {
        let found = questions.iter().zip(found);
        batch
            .iter()
            .zip(found)
            .map(|(one, (&question, found))| (one, found.deciding_debt(question, one)))
    };
    let denied = debts().any(|(one, debt)| !one.decide(debt).allowed);
    let decision = |(one, debt): (&Transaction, Nanos)| match one.decide(debt) {
        decision if denied && decision.allowed => Some(one.untouched(debt)),
        decision => Some(decision),
    };
    (debts().map(decision).collect(), denied)
}

/// The outcome for a batch of limits that are all switched off.
fn unasked(batch: &Batch) -> Outcome {
    let decision = |one: &Transaction| Some(one.untouched(Nanos::ZERO));
    Outcome {
        decisions: batch.iter().map(decision).collect(),
        basis: Basis::Store,
    }
}

fn without_errors(replies: Vec<Value>) -> Result<Vec<Value>, RedisError> {
    replies.into_iter().map(Value::extract_error).collect()
}

fn failure(error: RedisError) -> StoreError {
    StoreError::Failed(Box::new(error))
}

fn strange_reply() -> StoreError {
    StoreError::Failed("a reply that does not fit the commands".into())
}

impl Store for Redis {
    fn decide(&self, batch: Batch, now: Timestamp) -> Pending<Outcome> {
        if batch.iter().all(|one| one.kind == Kind::AllowOnly) {
            return Pending::ready(unasked(&batch));
        }
        match self.shared.link.connection() {
            Ok(live) => Pending::waiting(Arc::clone(&self.shared).ask(live, batch, now)),
            Err(error) => Pending::failed(error),
        }
    }

    fn refund(&self, batch: Batch, now: Timestamp) -> Pending<()> {
        let mut commands = Pipeline::new();
        for one in batch.iter().filter(|one| one.kind.spends()) {
            if let Some(increment) = one.quota.increment(one.cost) {
                self.shared
                    .add_give_back(&mut commands, one, increment, now);
            }
        }
        if commands.is_empty() {
            return Pending::ready(());
        }
        self.call(commands)
    }

    fn reset(&self, key: BucketKey) -> Pending<()> {
        let mut commands = Pipeline::new();
        commands.add_command(commands::forget(&self.shared.key(&key)));
        self.call(commands)
    }
}

impl Remote for Redis {
    fn ping(&self) -> Pending<()> {
        let mut commands = Pipeline::new();
        commands.cmd("PING");
        self.examine(commands)
    }

    /// Writes as a decision would: a replica, or a server whose memory is full, answers a `PING`
    /// but cannot decide.
    fn probe(&self) -> Pending<()> {
        let key = self.shared.key(&PROBE.into());
        let mut commands = Pipeline::new();
        commands.cmd("PING");
        let nothing = Nanos::ZERO;
        commands.add_command(commands::take(&key, nothing, nothing, Timestamp::default()));
        commands.add_command(commands::expire(&key, nothing));
        self.examine(commands)
    }
}

#[cfg(test)]
mod tests;
