//! Gives back what was taken from buckets, whichever the algorithm.

use std::sync::Arc;

use redis::Value;

use super::client::{Client, Key};
use super::command::{Command, WindowCommand};
use super::gcra::{self, GcraCommand};
use super::manager::Session;
use super::resp::Request;
use super::window::WindowKind;
use super::{fixed_window, sliding_log, sliding_window};
use crate::limit::{Batch, SubWindow, SubWindows, Transaction};
use crate::store::{Call, StoreError};
use crate::time::{Nanos, Timestamp};

/// What is to be given back: commands, and units of sub-windows, which need to be looked after.
#[derive(Default)]
pub(super) struct Refund {
    request: Request,
    taken: Vec<SubWindowRefund>,
}

struct SubWindowRefund {
    key: Key,
    sub_window: SubWindow,
    transaction: Transaction,
}

impl Client {
    /// Gives back what a batch took, as far as it is still owed. What of a sliding window is owed
    /// has to be read first.
    pub(super) async fn refund_batch(
        self: Arc<Self>,
        session: Arc<Session>,
        batch: Batch,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let mut refund = Refund::default();
        for transaction in batch.iter().filter(|transaction| transaction.mode.spends()) {
            let key = self.transaction_key(transaction);
            if !transaction.is_windowed() {
                if let Some(increment) = transaction.quota.increment(transaction.cost) {
                    refund.add_gcra(&key, increment, transaction, now);
                }
            } else if transaction.fits_beside(0) {
                match WindowKind::of(&transaction.quota) {
                    WindowKind::Fixed => refund.add_fixed(&key, transaction, now),
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
        let all = all.ok_or_else(|| self.unfit(session, &replies))?;
        Ok(all.into_iter().collect())
    }

    /// Gives back what no request waits for, if it is anything.
    pub(super) fn refund_in_background(self: &Arc<Self>, session: &Arc<Session>, refund: Refund) {
        if refund.is_empty() {
            return;
        }
        let (client, session) = (Arc::clone(self), Arc::clone(session));
        self.off_path(Call::Refund, async move {
            client.refund(&session, refund).await
        });
    }

    /// A sub-window that a reset has emptied meanwhile would have less than nothing: that is made
    /// up for at once.
    async fn refund(&self, session: &Arc<Session>, refund: Refund) -> Result<(), StoreError> {
        let Refund { mut request, taken } = refund;
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
        transaction: &Transaction,
        now: Timestamp,
    ) {
        match command {
            Command::Gcra(GcraCommand::Take(increment, _), _) => {
                self.add_gcra(&key, increment, transaction, now);
            }
            Command::Window(WindowCommand::TakeFixed) => self.add_fixed(&key, transaction, now),
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

    fn add_gcra(&mut self, key: &[u8], by: Nanos, transaction: &Transaction, now: Timestamp) {
        let costs = (by, transaction.quota.tolerance());
        gcra::refund(&mut self.request, key, costs, now);
    }

    fn add_fixed(&mut self, key: &[u8], transaction: &Transaction, now: Timestamp) {
        fixed_window::refund(&mut self.request, key, transaction, now);
        fixed_window::expire(&mut self.request, key, &transaction.quota, now);
    }

    fn add_sliding(&mut self, key: Key, sub_window: SubWindow, transaction: &Transaction) {
        self.taken.push(SubWindowRefund {
            key,
            sub_window,
            transaction: transaction.clone(),
        });
    }
}
