//! The nodes whose replies a call still awaits. They are blamed when its deadline is over.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use pin_project_lite::pin_project;
use smallvec::SmallVec;
use weir_limit::Batch;
use weir_limit::time::Timestamp;

use super::cluster::member::Member;
use super::manager::Session;
use crate::{PendingReply, StoreError, StoreFuture};

/// Counts a missed deadline for each of these; what it is for the call. A server that is not one of
/// several is guarded as a whole.
pub(super) fn blame<'m>(members: impl Iterator<Item = &'m Arc<Member>>) -> StoreError {
    let mut failure = StoreError::Deadline;
    for member in members {
        member.record(Some(&StoreError::Deadline));
        failure = member.failure(StoreError::Deadline);
    }
    failure
}

/// The nodes of a Cluster whose replies a call still awaits.
#[derive(Clone, Default)]
pub(super) struct AwaitedNodes(Option<Arc<Mutex<Members>>>);

type Members = SmallVec<[Arc<Member>; 1]>;

impl AwaitedNodes {
    /// An empty record for a call to a Cluster.
    pub(super) fn of_cluster() -> Self {
        Self(Some(Arc::default()))
    }

    /// The deadline of the call is over.
    pub(super) fn overdue(&self) -> StoreError {
        match self {
            Self(Some(awaited)) => blame(awaited.lock().iter()),
            Self(None) => StoreError::Deadline,
        }
    }

    /// Runs work that awaits a reply of this node.
    pub(super) async fn wait_for<T>(
        &self,
        member: &Arc<Member>,
        work: impl Future<Output = T>,
    ) -> T {
        let Self(Some(awaited)) = self else {
            return work.await;
        };
        awaited.lock().push(Arc::clone(member));
        let done = work.await;
        let mut awaited = awaited.lock();
        let own = awaited
            .iter()
            .position(|awaited| Arc::ptr_eq(awaited, member));
        if let Some(own) = own {
            awaited.swap_remove(own);
        }
        done
    }

    /// Runs work that awaits a reply on this connection.
    pub(super) async fn wait_on<T>(&self, session: &Session, work: impl Future<Output = T>) -> T {
        match &session.member {
            Some(member) => self.wait_for(member, work).await,
            None => work.await,
        }
    }
}

pin_project! {
    pub(super) struct Tracked<F> {
        #[pin]
        call: F,
        awaited: AwaitedNodes,
    }
}

impl<F> Tracked<F> {
    pub(super) const fn new(call: F, awaited: AwaitedNodes) -> Self {
        Self { call, awaited }
    }
}

impl<F: Future> Future for Tracked<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().call.poll(cx)
    }
}

impl<T, F: Future<Output = Result<T, StoreError>> + Send> PendingReply<T> for Tracked<F> {
    fn overdue(self: Pin<&mut Self>) -> StoreError {
        self.awaited.overdue()
    }

    /// No batch is decided by these calls.
    fn refund(self: Pin<&mut Self>, _: Batch, _: Timestamp) -> StoreFuture<()> {
        StoreFuture::failed(StoreError::OutOfReach)
    }
}
