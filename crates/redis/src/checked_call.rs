//! A call that reads first whether a batch passes, so that a denied request costs Redis the same,
//! however many entries it would add to a sliding log.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use weir_limit::time::Timestamp;
use weir_limit::{Algorithm, Batch, MAX_UNCHECKED_LOG_ENTRIES, Transaction};
use weir_store::{Outcome, OwedBatch, PendingReply, StoreError, StoreFuture};

use super::batch::BatchCall;
use super::client::Client;

/// Whether a batch is worth a round trip of its own that only reads. Denials that are counted have
/// to be written either way.
pub(super) fn reads_first(batch: &Batch) -> bool {
    batch.iter().any(has_many_entries) && !batch.iter().any(Transaction::is_counted_when_denied)
}

fn has_many_entries(transaction: &Transaction) -> bool {
    transaction.cost.get() > MAX_UNCHECKED_LOG_ENTRIES
        && transaction.mode.spends()
        && matches!(transaction.quota.algorithm(), Algorithm::SlidingLog { .. })
}

/// A batch that is read, and then taken unless it is denied.
pub(super) struct CheckedCall {
    client: Arc<Client>,
    now: Timestamp,
    call: BatchCall,
    /// The batch, until it is known to pass.
    unchecked: Option<Batch>,
    is_overdue: bool,
}

impl CheckedCall {
    /// Reads how the buckets of a batch stand.
    ///
    /// # Errors
    /// When a node that holds some of them is known to be out of reach.
    pub(super) fn new(
        client: Arc<Client>,
        batch: Batch,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        let check = |transaction: &Transaction| Transaction {
            mode: transaction.mode.non_spending(),
            ..transaction.clone()
        };
        let checks = batch.iter().map(check).collect();
        Ok(Self {
            call: BatchCall::new(Arc::clone(&client), checks, now)?.checking_for(batch.clone()),
            client,
            now,
            unchecked: Some(batch),
            is_overdue: false,
        })
    }

    /// Takes the batch, which is checked again, as others may have taken units since.
    fn take(&mut self, mut batch: Batch, checked: &Outcome) -> Result<(), StoreError> {
        for (transaction, decision) in batch.iter_mut().zip(&checked.decisions) {
            let fits = decision.is_some_and(|decision| decision.fits());
            if !fits && has_many_entries(transaction) {
                transaction.mode = transaction.mode.non_spending();
            }
        }
        self.call = BatchCall::new(Arc::clone(&self.client), batch, self.now)?;
        Ok(())
    }
}

impl Future for CheckedCall {
    type Output = Result<Outcome, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.call).poll(cx));
        let Some(batch) = self.unchecked.take() else {
            return Poll::Ready(answer);
        };
        let checked = match answer {
            Ok(checked) if !checked.is_allowed() => return Poll::Ready(Ok(checked)),
            Ok(checked) => checked,
            // A missing right leaves its transaction undecided again when the others are taken.
            Err(StoreError::Undecided { outcome, .. }) => *outcome,
            Err(error) => return Poll::Ready(Err(not_taken(error))),
        };
        if self.is_overdue {
            return Poll::Ready(Err(StoreError::Deadline));
        }
        self.take(batch, &checked)?;
        self.poll(cx)
    }
}

impl PendingReply<Outcome> for CheckedCall {
    /// A batch that was only read so far is not taken any more.
    fn overdue(mut self: Pin<&mut Self>) -> StoreError {
        self.is_overdue = true;
        let error = Pin::new(&mut self.call).overdue();
        match self.unchecked {
            Some(_) => not_taken(error),
            None => error,
        }
    }

    fn refund(mut self: Pin<&mut Self>, taken: OwedBatch, now: Timestamp) -> StoreFuture<()> {
        Pin::new(&mut self.call).refund(taken, now)
    }
}

/// The failure of a call that only read: what other nodes allowed was not taken.
fn not_taken(error: StoreError) -> StoreError {
    error.split_allowed().0
}
