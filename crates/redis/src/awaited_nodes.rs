//! The nodes whose replies a call still awaits. They are blamed when its deadline is over.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use pin_project_lite::pin_project;
use smallvec::SmallVec;
use weir_limit::time::Timestamp;
use weir_store::{OwedBatch, PendingReply, StoreError, StoreFuture};

use super::cluster::member::Member;
use super::manager::Session;

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

/// The nodes of a Cluster whose replies a call still awaits; none are recorded for a single server,
/// and for what a call does beside the work that it is [tracked](Tracked) by.
#[derive(Clone, Default)]
pub(super) struct AwaitedNodes(Option<Arc<Mutex<Awaited>>>);

#[derive(Default)]
struct Awaited {
    members: SmallVec<[Arc<Member>; 1]>,
    /// The deadline of the call is over: how it goes on is not counted any more.
    is_overdue: bool,
}

impl AwaitedNodes {
    /// An empty record for a call to a Cluster.
    pub(super) fn for_cluster() -> Self {
        Self(Some(Arc::default()))
    }

    /// The deadline of the call is over.
    pub(super) fn overdue(&self) -> StoreError {
        self.stop_counting();
        match self {
            Self(Some(awaited)) => blame(awaited.lock().members.iter()),
            Self(None) => StoreError::Deadline,
        }
    }

    /// Records no success or failure from now on: the deadline is over, and was counted.
    pub(super) fn stop_counting(&self) {
        if let Self(Some(awaited)) = self {
            awaited.lock().is_overdue = true;
        }
    }

    /// Counts how a call went with a node, unless the deadline was over before.
    pub(super) fn record(&self, session: &Session, failure: Option<&StoreError>) {
        let counts = match self {
            Self(Some(awaited)) => !awaited.lock().is_overdue,
            // Nothing tells whether the deadline is over, and a late success is none.
            Self(None) => failure.is_some(),
        };
        if counts {
            session.record(failure);
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
        awaited.lock().members.push(Arc::clone(member));
        let done = work.await;
        let mut awaited = awaited.lock();
        let mut members = awaited.members.iter();
        if let Some(own) = members.position(|awaited| Arc::ptr_eq(awaited, member)) {
            awaited.members.swap_remove(own);
        }
        done
    }

    /// Runs work that awaits replies on this connection, and counts how it went with the node,
    /// unless the deadline was over before.
    pub(super) async fn wait_on<T>(
        &self,
        session: &Session,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let done = match &session.member {
            Some(member) => self.wait_for(member, work).await,
            None => work.await,
        };
        self.record(session, done.as_ref().err());
        done.map_err(|error| session.failure(error))
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
    fn refund(self: Pin<&mut Self>, _: OwedBatch, _: Timestamp) -> StoreFuture<()> {
        StoreFuture::failed(StoreError::OutOfReach)
    }
}
