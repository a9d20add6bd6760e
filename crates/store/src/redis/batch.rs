//! A batch's way to Redis and back: commands, replies, decisions, and what is to be refunded and
//! repaired afterwards.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use redis::Value;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::time;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Batch, SubWindow, SubWindows, Transaction};

use super::check::command_error;
use super::client::{Client, Key, Nodes};
use super::command::{Command, Reply, WindowCommand};
use super::expiry::Expiry;
use super::gcra::{self, GcraCommand};
use super::levels::{Settled, StaleBucket};
use super::manager::Session;
use super::parts::{Following, Part, Parts, Waits};
use super::resp::{Replies, Request};
use super::window::WindowKind;
use super::{fixed_window, sliding_log, sliding_window};
use crate::{Answer, Call, DecisionSource, Outcome, StoreError, StoreFuture};

/// A batch that Redis has been asked about. As a future it is the decision: it takes from all of
/// the batch's buckets or from none.
pub(super) struct BatchCall {
    client: Arc<Client>,
    batch: Batch,
    /// The transactions that are taken later if these checks allow them. What another quota has left
    /// behind is cut for them now: no take follows a denial.
    checked_for: Option<Box<Batch>>,
    /// What is asked about each transaction, and in which part.
    commands: SmallVec<[(Command, usize); 3]>,
    now: Timestamp,
    parts: Parts,
    /// What repeats redirected commands; meanwhile it has the parts.
    following: Option<Following>,
    /// What decides buckets of which the first level does not.
    deeper: Option<Box<DeeperCall>>,
    /// No caller waits.
    is_left: bool,
}

impl BatchCall {
    /// Asks Redis about a batch: all nodes that hold some of its buckets, or none.
    ///
    /// # Errors
    /// When one of them is known to be out of reach.
    pub(super) fn new(
        client: Arc<Client>,
        batch: Batch,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        let mut parts = client.parts()?;
        let mut commands = SmallVec::new();
        for transaction in &batch {
            let key = client.transaction_key(transaction);
            let at = parts.find(&key)?;
            let Some(part) = parts.get_mut(at) else {
                return Err(StoreError::OutOfReach);
            };
            let command = Command::of(transaction, now, || {
                let expiries = &part.session.expiries;
                let hash = expiries.hash(&transaction.key);
                let tolerance = transaction.quota.tolerance();
                (hash, expiries.expiry_of(hash, tolerance, now))
            });
            command.add(&mut part.request, &key, transaction, now);
            commands.push((command, at));
        }
        parts.send();
        Ok(Self {
            client,
            batch,
            checked_for: None,
            commands,
            now,
            parts,
            following: None,
            deeper: None,
            is_left: false,
        })
    }

    /// The same call, whose checks are made for a batch that takes.
    pub(super) fn checking_for(mut self, batch: Batch) -> Self {
        self.checked_for = Some(Box::new(batch));
        self
    }

    /// Decides, unless levels of buckets below the first are needed: then it goes on with these. What
    /// one of several nodes has not answered is not waited for again.
    fn decide_or_look_deeper(
        mut self: Pin<&mut Self>,
        replies: SmallVec<[Reply; 3]>,
        failure: Option<StoreError>,
        cx: &mut Context<'_>,
    ) -> Poll<Decided> {
        let mut both = self.batch.iter().zip(&replies);
        if both.any(|(transaction, reply)| reply.is_foreign(transaction)) {
            self.look_deeper(replies, failure);
            return self.poll(cx);
        }
        Poll::Ready(self.decide(&replies, failure))
    }

    #[cold]
    fn look_deeper(&mut self, replies: SmallVec<[Reply; 3]>, failure: Option<StoreError>) {
        let stale: Vec<StaleBucket> = self.stale(&replies).collect();
        let denied = self.each(&replies).any(|(transaction, command, reply)| {
            !reply.is_foreign(transaction) && reply.denies(command, transaction)
        });
        let waits = match self.client.nodes() {
            Nodes::One(_) => Waits::default(),
            Nodes::Cluster(_) => Waits::for_several(),
        };
        let client = Arc::clone(&self.client);
        let future = client.decide_stale(stale, denied, self.now, waits.clone());
        self.deeper = Some(Box::new(DeeperCall {
            future: Box::pin(future),
            replies,
            failure,
            waits,
        }));
    }

    fn stale(&self, replies: &[Reply]) -> impl Iterator<Item = StaleBucket> {
        let both = self.asked().zip(replies).enumerate();
        both.filter_map(|(index, ((transaction, (command, at)), reply))| {
            let (Command::Gcra(command, _), Reply::Gcra(found)) = (command, reply) else {
                return None;
            };
            let part = self.parts.iter().nth(at)?;
            reply.is_foreign(transaction).then(|| StaleBucket {
                index,
                session: Arc::clone(&part.session),
                key: self.client.transaction_key(transaction),
                transaction: transaction.clone(),
                command,
                reply: *found,
            })
        })
    }

    /// Matches replies with commands; none unless each was answered as it should be.
    fn parse(&self) -> Option<SmallVec<[Reply; 3]>> {
        if let Some(part) = self.parts.only() {
            let mut cursor = part.replies.as_ref().ok()?.iter();
            let parsed = self.asked().map(|(transaction, (command, _))| {
                command.parse(&mut cursor, transaction, self.now)
            });
            return parsed.collect();
        }
        let replies = self.parts.iter().map(|part| match part.is_settled {
            true => Some(None),
            false => Some(Some(part.replies.as_ref().ok()?.iter())),
        });
        let mut cursors: SmallVec<[_; 1]> = replies.collect::<Option<_>>()?;
        let parsed =
            self.asked()
                .map(|(transaction, (command, at))| match cursors.get_mut(at)? {
                    Some(cursor) => command.parse(cursor, transaction, self.now),
                    None => Some(Reply::Missing),
                });
        parsed.collect()
    }

    /// What came of the nodes that have answered, when others have not in time. It is settled by
    /// that: a caller who does not let the request through gives it back.
    fn settle_answered(&mut self, failure: StoreError) -> StoreError {
        let mut parsed: SmallVec<[_; 3]> = self.asked().map(|_| Reply::Missing).collect();
        let mut settled = SmallVec::<[usize; 3]>::new();
        for (at, part) in self.parts.iter().enumerate() {
            let Ok(replies) = &part.replies else {
                continue;
            };
            let mut cursor = replies.iter();
            let own = self.asked().filter(|(_, (_, place))| *place == at);
            let own = own.map(|(transaction, (command, _))| {
                command.parse(&mut cursor, transaction, self.now)
            });
            if part.is_answered()
                && let Some(own) = own.collect::<Option<SmallVec<[Reply; 3]>>>()
            {
                let places = self.asked().zip(&mut parsed);
                let places = places.filter(|((_, (_, place)), _)| *place == at);
                for ((_, place), reply) in places.zip(own) {
                    *place = reply;
                }
                settled.push(at);
            }
        }
        if settled.is_empty() {
            return failure;
        }
        let copy = copy_of(&failure);
        let decided = self.decide(&parsed, Some(failure));
        for at in settled {
            if let Some(part) = self.parts.get_mut(at) {
                part.is_settled = true;
            }
        }
        // One that denies has given back what the others took.
        decided.err().unwrap_or(copy)
    }

    /// The same when some were not. A limit that needs a command that a server refuses does not
    /// affect the others; nor do those on a node that failed affect what others did.
    fn parse_with_failures(&self) -> (SmallVec<[Reply; 3]>, Option<StoreError>) {
        let mut parsed: SmallVec<[_; 3]> = self.asked().map(|_| Reply::Missing).collect();
        let mut failure = None;
        for (at, part) in self.parts.iter().enumerate() {
            if part.is_settled {
                continue;
            }
            let own = self.asked().zip(&mut parsed);
            let own = own.filter(|((_, (_, place)), _)| *place == at);
            let error = match &part.replies {
                Ok(replies) => self.parse_part(part, replies, own),
                // It is counted already.
                Err(error) => {
                    failure = Some(part.session.failure(copy_of(error)));
                    continue;
                }
            };
            self.parts.record(part, error.as_ref());
            if let Some(error) = error {
                failure = Some(part.session.failure(error));
            }
        }
        (parsed, failure)
    }

    /// Reads what one node answers, and returns why it does not answer all.
    fn parse_part<'r>(
        &self,
        part: &Part,
        replies: &Replies,
        asked: impl Iterator<Item = ((&'r Transaction, (Command, usize)), &'r mut Reply)>,
    ) -> Option<StoreError> {
        let mut cursor = replies.iter();
        let mut failure = None;
        for ((transaction, (command, _)), reply) in asked {
            match command.parse_or_refusal(&mut cursor, transaction, self.now) {
                Some(Ok(found)) if found.is_refused_for_all() => {
                    return Some(part.session.unfit(replies));
                }
                Some(Ok(found)) => *reply = found,
                Some(Err(error)) if self.parts.failed_elsewhere(&error) => {}
                Some(Err(error)) => failure = Some(part.session.failed(error)),
                None => return Some(part.session.unfit(replies)),
            }
        }
        failure
    }

    fn decide(&self, replies: &[Reply], failure: Option<StoreError>) -> Decided {
        let decision = |(transaction, command, reply): (&Transaction, Command, &Reply)| {
            reply.decision(command, transaction, false)
        };
        let mut outcome = Outcome {
            decisions: self.each(replies).map(decision).collect(),
            source: DecisionSource::Store,
        };
        let denied = !outcome.is_allowed();
        if denied {
            let each = self.each(replies).zip(&mut outcome.decisions);
            for ((transaction, command, reply), decision) in each {
                *decision = reply.decision(command, transaction, true);
            }
        }
        self.settle(replies, denied);
        // What one limit denies need not be decided by another.
        if denied {
            return Ok(outcome);
        }
        match (failure, self.refusal(replies)) {
            (Some(StoreError::Node { node, source, .. }), _) => Err(StoreError::Node {
                node,
                allowed: Some(Box::new(outcome)),
                source,
            }),
            (Some(error), _) => Err(error),
            (None, Some(error)) => Err(StoreError::Undecided {
                outcome: Box::new(outcome),
                source: Box::new(error),
            }),
            (None, None) => Ok(outcome),
        }
    }

    /// The first thing that a server refuses.
    fn refusal(&self, replies: &[Reply]) -> Option<StoreError> {
        let mut both = self.batch.iter().zip(replies);
        let (transaction, refusal) =
            both.find_map(|(transaction, reply)| Some((transaction, reply.refusal()?)))?;
        Some(match command_error(refusal.clone()) {
            // Whoever looks for the key has to know its name.
            StoreError::WrongType(error) => {
                StoreError::WrongType(format!("{}: {error}", transaction.key).into())
            }
            error => error,
        })
    }

    /// Does in the background what is left to do: gives back what must not stay, repairs what
    /// another quota has left behind, and sets the expiry of buckets that last less long than was
    /// expected, or are new.
    fn settle(&self, replies: &[Reply], denied: bool) {
        for (at, part) in self.parts.iter().enumerate() {
            let mut refund = None;
            let (mut repairs, mut renewals) = (Request::default(), Request::default());
            let places = self.commands.iter().map(|(_, place)| *place);
            let meant = self.checked_for.as_deref().unwrap_or(&self.batch);
            let own = self.each(replies).zip(meant).zip(places);
            let own = own.filter(|(_, place)| *place == at);
            for (((transaction, command, reply), meant), _) in own {
                let key = || self.client.transaction_key(transaction);
                if reply.is_to_be_refunded(command, transaction, denied) {
                    let end = reply.window_end();
                    let refund = refund.get_or_insert_with(Refund::default);
                    refund.add(command, key(), (transaction, end), self.now);
                    refund.add_deeper(command, reply, &key(), self.now);
                }
                reply.add_repair(&mut repairs, key, meant, self.now);
                if let (Command::Gcra(GcraCommand::Take(_, expiry), hash), Reply::Gcra(found)) =
                    (command, reply)
                {
                    let (expiries, tolerance) =
                        (&part.session.expiries, transaction.quota.tolerance());
                    if transaction.is_foreign(found.first) {
                        // Another definition's debt outlasts what this one expects of the bucket.
                        let lasting = found.first + tolerance;
                        expiries.learn(hash, tolerance, (Expiry::Set, found.note), self.now);
                        gcra::renew(&mut renewals, &key(), lasting, self.now);
                    } else if !expiries.learn(hash, tolerance, (expiry, found.note), self.now) {
                        gcra::renew(&mut renewals, &key(), tolerance, self.now);
                    }
                }
            }
            if let Some(refund) = refund {
                self.client.refund_in_background(&part.session, refund);
            }
            self.client.repair(&part.session, repairs);
            self.client
                .in_background(Call::Expire, &part.session, renewals);
        }
    }

    fn asked(&self) -> impl Iterator<Item = (&Transaction, (Command, usize))> {
        self.batch.iter().zip(self.commands.iter().copied())
    }

    fn each<'a>(
        &'a self,
        replies: &'a [Reply],
    ) -> impl Iterator<Item = (&'a Transaction, Command, &'a Reply)> {
        let both = self.asked().zip(replies);
        both.map(|((transaction, (command, _)), reply)| (transaction, command, reply))
    }
}

type Decided = Result<Outcome, StoreError>;

/// The levels below the first on their way, and what is known without them.
struct DeeperCall {
    future: BoxFuture<'static, Result<Settled, StoreError>>,
    replies: SmallVec<[Reply; 3]>,
    failure: Option<StoreError>,
    waits: Waits,
}

impl DeeperCall {
    /// All replies, once those levels have decided. Without them, their buckets have no decision.
    fn finish(
        self,
        settled: Result<Settled, StoreError>,
        batch: &Batch,
    ) -> (SmallVec<[Reply; 3]>, Option<StoreError>) {
        let Self {
            mut replies,
            failure,
            ..
        } = self;
        match settled {
            Ok(settled) => {
                for (index, found) in settled {
                    if let Some(reply) = replies.get_mut(index) {
                        *reply = Reply::Gcra(found);
                    }
                }
                (replies, failure)
            }
            Err(error) => {
                for (reply, transaction) in replies.iter_mut().zip(batch) {
                    if reply.is_foreign(transaction) {
                        *reply = Reply::Missing;
                    }
                }
                (replies, Some(error))
            }
        }
    }
}

/// The same failure once more, for the caller.
fn copy_of(error: &StoreError) -> StoreError {
    match error {
        StoreError::Lost(why) => StoreError::Lost(why.to_string().into()),
        StoreError::Deadline => StoreError::Deadline,
        StoreError::Node { node, source, .. } => StoreError::Node {
            node: Arc::clone(node),
            allowed: None,
            source: Box::new(copy_of(source)),
        },
        _ => StoreError::OutOfReach,
    }
}

impl Future for BatchCall {
    type Output = Decided;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decided> {
        let call = &mut *self;
        if let Some(deeper) = &mut call.deeper {
            let settled = ready!(deeper.future.as_mut().poll(cx));
            if let Some(deeper) = call.deeper.take() {
                let (replies, failure) = deeper.finish(settled, &call.batch);
                return Poll::Ready(call.decide(&replies, failure));
            }
        }
        let was_followed = match &mut call.following {
            None => {
                ready!(call.parts.poll_answers(cx));
                false
            }
            Some(following) => {
                call.parts = ready!(following.future.as_mut().poll(cx));
                call.following = None;
                true
            }
        };
        if let Some(parsed) = call.parse() {
            for part in call.parts.iter() {
                call.parts.record(part, None);
            }
            return self.decide_or_look_deeper(parsed, None, cx);
        }
        if !was_followed && let Some(following) = call.client.follow(&mut call.parts) {
            call.following = Some(following);
            return self.poll(cx);
        }
        let (parsed, failure) = call.parse_with_failures();
        let failure = failure.or(call.parts.failure_elsewhere());
        self.decide_or_look_deeper(parsed, failure, cx)
    }
}

impl Answer<Outcome> for BatchCall {
    fn overdue(mut self: Pin<&mut Self>) -> StoreError {
        if let Some(deeper) = &self.deeper {
            return deeper.waits.overdue();
        }
        match &self.following {
            Some(following) => following.overdue(),
            None => {
                let failure = self.parts.overdue();
                match failure {
                    StoreError::Node { .. } => self.settle_answered(failure),
                    failure => failure,
                }
            }
        }
    }

    /// A reply shows that its connection can be used, whatever the circuit breakers say, and that it
    /// leads to the server that took.
    fn refund(self: Pin<&mut Self>, taken: Batch, now: Timestamp) -> StoreFuture<()> {
        self.client.refund_batch(self.parts.unsent(), taken, now)
    }
}

/// A caller that no longer waits leaves buckets behind that were taken from although another
/// denies, or that are new and have no expiry yet. So the answer is looked at all the same.
impl Drop for BatchCall {
    fn drop(&mut self) {
        let is_under_way =
            self.following.is_some() || self.deeper.is_some() || self.parts.are_awaited();
        if self.is_left || !is_under_way {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            let left = Self {
                client: Arc::clone(&self.client),
                batch: std::mem::take(&mut self.batch),
                checked_for: self.checked_for.take(),
                commands: std::mem::take(&mut self.commands),
                now: self.now,
                parts: std::mem::take(&mut self.parts),
                following: self.following.take(),
                deeper: self.deeper.take(),
                is_left: true,
            };
            runtime.spawn(async move { drop(left.await) });
        }
    }
}

/// The outcome for a batch of limits that are all switched off.
pub(super) fn unasked(batch: &Batch) -> Outcome {
    let decision = |transaction: &Transaction| Some(transaction.untouched(Nanos::ZERO));
    Outcome {
        decisions: batch.iter().map(decision).collect(),
        source: DecisionSource::Store,
    }
}

/// What is to be given back: commands, and units of sub-windows, which need to be looked after.
#[derive(Default)]
pub(super) struct Refund {
    request: Request,
    taken: Vec<SubWindowRefund>,
    shared: Vec<SharedRefund>,
}

/// A refund of GCRA by its reply, which tells whether the bucket has more levels.
type SharedRefund = (usize, Key, Transaction, Timestamp);

struct SubWindowRefund {
    key: Key,
    sub_window: SubWindow,
    transaction: Transaction,
}

impl Client {
    /// Gives back what a batch took from these servers, as far as it is still owed, or nothing when
    /// one of them is known to be out of reach: requests are decided elsewhere then.
    pub(super) fn refund_batch(
        self: &Arc<Self>,
        mut parts: Parts,
        batch: Batch,
        now: Timestamp,
    ) -> StoreFuture<()> {
        self.tracked(|client, waits| {
            let mut places = SmallVec::<[usize; 3]>::new();
            for transaction in &batch {
                places.push(parts.find(&client.transaction_key(transaction))?);
            }
            Ok(async move {
                let refund = |at, session: Arc<Session>, _| {
                    let all = batch.iter().zip(&places);
                    let own = all.filter(move |(_, place)| **place == at);
                    let own: SmallVec<[&Transaction; 3]> = own.map(|(own, _)| own).collect();
                    client.refund_part(session, own, now)
                };
                client.each_part(parts, &waits, refund).await.map(drop)
            })
        })
    }

    /// Gives back transactions of one node. What of a sliding window is owed has to be read first, and
    /// when a fixed one ends.
    async fn refund_part(
        &self,
        session: Arc<Session>,
        transactions: SmallVec<[&Transaction; 3]>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        // By then the units may have come back by themselves.
        let patience = |transaction: &&Transaction| transaction.quota.increment(transaction.cost);
        let patience = transactions.iter().filter_map(patience).min();
        let session = time::timeout(patience.unwrap_or_default().into(), session.usable());
        let session = session.await.unwrap_or(Err(StoreError::Deadline))?;
        let mut refund = Refund::default();
        let spent = |transaction: &&Transaction| transaction.mode.spends();
        for transaction in transactions.into_iter().filter(spent) {
            let key = self.transaction_key(transaction);
            if !transaction.is_windowed() {
                if let Some(increment) = transaction.quota.increment(transaction.cost) {
                    refund.shared.push((
                        refund.request.len(),
                        key.clone(),
                        transaction.clone(),
                        now,
                    ));
                    refund.add_gcra(&key, increment, transaction, now);
                }
            } else if transaction.fits_beside(0) {
                match WindowKind::of(&transaction.quota) {
                    WindowKind::Fixed => {
                        let end = self.window_end(&session, &key).await?;
                        refund.add_fixed(&key, (transaction, end), now);
                    }
                    WindowKind::Log => {
                        sliding_log::refund(&mut refund.request, &key, transaction);
                    }
                    WindowKind::Sliding => {
                        let all = self.sub_windows(&session, &key).await?;
                        for sub_window in all.given_back(transaction.cost.get()) {
                            refund.add_sliding(key.clone(), sub_window, transaction);
                        }
                    }
                }
            }
        }
        self.refund(&session, refund).await
    }

    async fn window_end(
        &self,
        session: &Arc<Session>,
        key: &[u8],
    ) -> Result<Timestamp, StoreError> {
        let mut request = Request::default();
        fixed_window::read(&mut request, key);
        let replies = self.ask(session, request).await?;
        let end = fixed_window::parse_end(&mut replies.iter());
        end.ok_or_else(|| session.unfit(&replies))
    }

    async fn sub_windows(
        &self,
        session: &Arc<Session>,
        key: &[u8],
    ) -> Result<SubWindows, StoreError> {
        let mut request = Request::default();
        sliding_window::read(&mut request, key);
        let replies = self.ask(session, request).await?;
        let reply = replies.iter().value();
        let all = reply.as_ref().and_then(sliding_window::sub_windows);
        let all = all.ok_or_else(|| session.unfit(&replies))?;
        Ok(all.into_iter().collect())
    }

    /// Gives back what no request waits for, if it is anything.
    pub(super) fn refund_in_background(self: &Arc<Self>, session: &Arc<Session>, refund: Refund) {
        if refund.is_empty() {
            return;
        }
        let (client, session) = (Arc::clone(self), Arc::clone(session));
        self.off_path(Call::Refund, async move {
            client.refund(&session.usable().await?, refund).await
        });
    }

    /// A sub-window that a reset has emptied meanwhile would have less than nothing: that is made
    /// up for at once.
    async fn refund(&self, session: &Arc<Session>, refund: Refund) -> Result<(), StoreError> {
        let Refund {
            mut request,
            taken,
            shared,
        } = refund;
        let first = request.len();
        for taken in &taken {
            let start = taken.sub_window.start;
            sliding_window::increase(&mut request, &taken.key, start, -taken.units());
            sliding_window::expire(&mut request, &taken.key, &taken.transaction.quota);
        }
        if request.is_empty() {
            return Ok(());
        }
        let replies = self.send(session, request).await?;
        for (at, key, transaction, now) in &shared {
            let debt = replies.get(*at).and_then(gcra::parse_refund);
            if let Some(debt) = debt.filter(|debt| transaction.is_foreign(*debt)) {
                self.refund_deeper(session, key, (transaction, debt), *now)
                    .await?;
            }
        }
        let mut amends = Request::default();
        let results = replies.iter().skip(first).step_by(2);
        for (taken, result) in taken.iter().zip(results) {
            if let Value::Int(below @ ..0) = result {
                let missing = below.saturating_neg().min(taken.units());
                let start = taken.sub_window.start;
                sliding_window::increase(&mut amends, &taken.key, start, missing);
            }
        }
        if amends.is_empty() {
            return Ok(());
        }
        self.send(session, amends).await.map(drop)
    }
}

impl SubWindowRefund {
    fn units(&self) -> i64 {
        i64::try_from(self.sub_window.used).unwrap_or(i64::MAX)
    }
}

impl Refund {
    fn is_empty(&self) -> bool {
        self.request.is_empty() && self.taken.is_empty()
    }

    /// Adds just what a command took.
    pub(super) fn add(
        &mut self,
        command: Command,
        key: Key,
        (transaction, end): (&Transaction, Timestamp),
        now: Timestamp,
    ) {
        match command {
            Command::Gcra(GcraCommand::Take(increment, _), _) => {
                self.add_gcra(&key, increment, transaction, now);
            }
            Command::Window(WindowCommand::TakeFixed) => {
                self.add_fixed(&key, (transaction, end), now);
            }
            Command::Window(WindowCommand::TakeLog(members)) => {
                members.remove(&mut self.request, &key);
            }
            Command::Window(WindowCommand::TakeSliding) => {
                let sub_window = SubWindow {
                    start: SubWindow::start_at(&transaction.quota, now),
                    used: transaction.cost.get(),
                };
                self.add_sliding(key, sub_window, transaction);
            }
            Command::Gcra(..) | Command::Window(_) => {}
        }
    }

    /// Adds what was taken from the levels below the first.
    fn add_deeper(&mut self, command: Command, reply: &Reply, key: &[u8], now: Timestamp) {
        if let (Command::Gcra(GcraCommand::Take(increment, _), _), Reply::Gcra(found)) =
            (command, reply)
            && found.level > 0
        {
            gcra::refund_levels(&mut self.request, key, increment, 1..found.level + 1, now);
        }
    }

    fn add_gcra(&mut self, key: &[u8], by: Nanos, transaction: &Transaction, now: Timestamp) {
        let costs = (by, transaction.quota.tolerance());
        gcra::refund(&mut self.request, key, costs, now);
    }

    fn add_fixed(&mut self, key: &[u8], taken: (&Transaction, Timestamp), now: Timestamp) {
        fixed_window::refund(&mut self.request, key, taken, now);
        fixed_window::expire(&mut self.request, key, &taken.0.quota, now);
    }

    fn add_sliding(&mut self, key: Key, sub_window: SubWindow, transaction: &Transaction) {
        self.taken.push(SubWindowRefund {
            key,
            sub_window,
            transaction: transaction.clone(),
        });
    }
}
