//! The commands of a batch, and the replies to them so far.

use smallvec::SmallVec;
use weir_limit::time::Timestamp;
use weir_limit::{Batch, Transaction};
use weir_store::StoreError;

use super::command::{Command, Reply};

/// A batch, and what is asked about it.
#[derive(Clone, Default)]
pub(super) struct BatchPlan {
    pub(super) batch: Batch,
    /// The command of each transaction, and the index of the request that has it.
    pub(super) commands: SmallVec<[(Command, usize); 3]>,
    pub(super) now: Timestamp,
}

pub(super) type BatchReplies = SmallVec<[Reply; 3]>;

/// All replies of a batch, and why there are not more.
pub(super) type Resolved = (BatchReplies, Option<StoreError>);

impl BatchPlan {
    pub(super) fn asked(&self) -> impl Iterator<Item = (&Transaction, (Command, usize))> {
        self.batch.iter().zip(self.commands.iter().copied())
    }

    pub(super) fn each<'a>(
        &'a self,
        replies: &'a [Reply],
    ) -> impl Iterator<Item = (&'a Transaction, Command, &'a Reply)> {
        let both = self.asked().zip(replies);
        both.map(|((transaction, (command, _)), reply)| (transaction, command, reply))
    }
}
