//! Gives back what batches took.

use std::sync::Arc;

use redis::Value;
use smallvec::SmallVec;
use tokio::time::{self, Instant};
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{SubWindow, SubWindows, Transaction};
use weir_store::{Call, Owed, OwedBatch, StoreError, StoreFuture};

use super::client::{Client, Key};
use super::command::{Command, FOREIGN, Reply, WindowCommand};
use super::gcra::{self, GcraCommand};
use super::manager::Session;
use super::node_requests::NodeRequests;
use super::resp::Request;
use super::window::WindowKind;
use super::{fixed_window, sliding_log, sliding_window};

/// The work of giving back: commands, and units of sub-windows, which need to be looked after.
#[derive(Default)]
pub(super) struct Refund {
    request: Request,
    sub_windows: Vec<SubWindowRefund>,
    gcra: Vec<GcraRefund>,
}

/// A refund of GCRA. Its reply says whether deeper levels have to be refunded too.
struct GcraRefund {
    /// The index of the reply.
    at: usize,
    key: Key,
    transaction: Transaction,
    increment: Nanos,
    now: Timestamp,
}

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
        mut requests: NodeRequests,
        batch: OwedBatch,
        now: Timestamp,
    ) -> StoreFuture<()> {
        self.tracked(|client, awaited| {
            let mut nodes = SmallVec::<[usize; 3]>::new();
            for Owed { transaction, .. } in &batch {
                nodes.push(requests.index_for(&client.transaction_key(transaction))?);
            }
            Ok(async move {
                let refund = |index, session: Arc<Session>, _| {
                    let all = batch.iter().zip(&nodes);
                    let own = all.filter(move |(_, node)| **node == index);
                    let own: SmallVec<[&Owed; 3]> = own.map(|(own, _)| own).collect();
                    client.refund_on_node(session, own, now)
                };
                // A node that has no part in it has not shown that it answers.
                let asked = requests.into_requests();
                let asked = asked.filter(|(index, _)| nodes.contains(index));
                client.each_node(asked, &awaited, refund).await.map(drop)
            })
        })
    }

    /// Gives back transactions of one node, as far as they are still owed when it is connected. What
    /// of a sliding window is owed has to be read first, and when a fixed one ends.
    async fn refund_on_node(
        &self,
        session: Arc<Session>,
        taken: SmallVec<[&Owed; 3]>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        // By then the units may have come back by themselves.
        let increment =
            |Owed { transaction, .. }: &&Owed| transaction.quota.increment(transaction.cost);
        let retry_limit = taken.iter().filter_map(increment).min();
        let (session, waited) = connected(session, retry_limit.unwrap_or_default()).await?;
        let now = now + waited;
        let mut refund = Refund::default();
        let is_owed = |owed: &&Owed| owed.transaction.mode.spends() && owed.until > now;
        for owed in taken.into_iter().filter(is_owed) {
            let transaction = &owed.transaction;
            let key = self.transaction_key(transaction);
            if !transaction.is_windowed() {
                if let Some(increment) = owed.debt(now).filter(|debt| !debt.is_zero()) {
                    refund.gcra.push(GcraRefund {
                        at: refund.request.len(),
                        key: key.clone(),
                        transaction: transaction.clone(),
                        increment,
                        now,
                    });
                    refund.add_gcra(&key, increment, transaction, now);
                }
            } else if transaction.fits_beside(0) {
                match WindowKind::new(&transaction.quota) {
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
        fixed_window::read(&mut request, key, session.commands.read_by());
        let replies = self.send(session, request).await?;
        let end = fixed_window::parse_end(&mut replies.iter());
        end.ok_or_else(|| session.protocol_error(&replies))
    }

    async fn sub_windows(
        &self,
        session: &Arc<Session>,
        key: &[u8],
    ) -> Result<SubWindows, StoreError> {
        let mut request = Request::default();
        sliding_window::read(&mut request, key);
        let replies = self.send(session, request).await?;
        let reply = replies.iter().value();
        let all = reply.as_ref().and_then(sliding_window::sub_windows);
        let all = all.ok_or_else(|| session.protocol_error(&replies))?;
        let all = all.ok_or_else(|| foreign(key))?;
        Ok(all.into_iter().collect())
    }

    /// Refunds in the background, unless the refund is empty.
    pub(super) fn refund_in_background(self: &Arc<Self>, session: &Arc<Session>, refund: Refund) {
        if refund.is_empty() {
            return;
        }
        let (client, session) = (Arc::clone(self), Arc::clone(session));
        self.spawn(Call::Refund, async move {
            client.refund(&session.usable().await?, refund).await
        });
    }

    /// A sub-window that a reset has emptied meanwhile would have less than nothing: that is made
    /// up for at once.
    async fn refund(&self, session: &Arc<Session>, refund: Refund) -> Result<(), StoreError> {
        let Refund {
            mut request,
            sub_windows,
            gcra: gcra_refunds,
        } = refund;
        let first = request.len();
        for taken in &sub_windows {
            let start = taken.sub_window.start;
            sliding_window::increase(&mut request, &taken.key, start, -taken.units());
            sliding_window::expire(&mut request, &taken.key, &taken.transaction.quota);
        }
        if request.is_empty() {
            return Ok(());
        }
        let replies = self.send_checked(session, request).await?;
        for refund in &gcra_refunds {
            let transaction = &refund.transaction;
            let debt = replies.get(refund.at).and_then(gcra::parse_refund);
            if let Some(debt) = debt.filter(|debt| transaction.has_foreign_level(*debt)) {
                let taken = (transaction, refund.increment, debt);
                self.refund_deeper(session, &refund.key, taken, refund.now)
                    .await?;
            }
        }
        let mut amends = Request::default();
        let results = replies.iter().skip(first).step_by(2);
        for (taken, result) in sub_windows.iter().zip(results) {
            if let Value::Int(below @ ..0) = result {
                let missing = below.saturating_neg().min(taken.units());
                let start = taken.sub_window.start;
                sliding_window::increase(&mut amends, &taken.key, start, missing);
            }
        }
        if amends.is_empty() {
            return Ok(());
        }
        self.send_checked(session, amends).await.map(drop)
    }
}

fn foreign(key: &[u8]) -> StoreError {
    let error = StoreError::WrongType(FOREIGN.into());
    error.about_key(&String::from_utf8_lossy(key))
}

/// A connection that can be used, and how long that took.
async fn connected(
    session: Arc<Session>,
    retry_limit: Nanos,
) -> Result<(Arc<Session>, Nanos), StoreError> {
    if !session.connection.is_over() {
        return Ok((session, Nanos::ZERO));
    }
    let lost_at = Instant::now();
    let session = time::timeout(retry_limit.into(), session.usable()).await;
    let session = session.unwrap_or(Err(StoreError::Deadline))?;
    Ok((session, lost_at.elapsed().into()))
}

impl SubWindowRefund {
    fn units(&self) -> i64 {
        i64::try_from(self.sub_window.used).unwrap_or(i64::MAX)
    }
}

impl Refund {
    fn is_empty(&self) -> bool {
        self.request.is_empty() && self.sub_windows.is_empty()
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
    pub(super) fn add_deeper(
        &mut self,
        command: Command,
        reply: &Reply,
        key: &[u8],
        now: Timestamp,
    ) {
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
        self.sub_windows.push(SubWindowRefund {
            key,
            sub_window,
            transaction: transaction.clone(),
        });
    }
}
