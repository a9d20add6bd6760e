//! The parts of a call, one for each node that holds some of its keys: a server that holds all keys
//! is asked everything in one.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use pin_project_lite::pin_project;
use redis::RedisError;
use smallvec::SmallVec;
use tokio::sync::oneshot;
use weir_limit::Batch;
use weir_limit::time::Timestamp;

use super::cluster::{Cluster, Member, Topology, slot_of};
use super::connection::RequestResult;
use super::manager::Session;
use super::resp::{Replies, Request};
use crate::{Answer, StoreError, StoreFuture};

/// What is asked of each node, and what it answers.
#[derive(Default)]
pub(super) struct Parts {
    /// None when there is one server.
    topology: Option<Arc<Topology>>,
    parts: SmallVec<[Part; 1]>,
    /// What comes now comes too late to count.
    is_overdue: bool,
    /// Why a node that redirected commands were repeated at did not do them.
    failure_elsewhere: Option<Box<StoreError>>,
}

/// What one node is asked and answers.
pub(super) struct Part {
    /// Where the node stands in the topology.
    place: usize,
    pub(super) session: Arc<Session>,
    pub(super) request: Request,
    answer: Option<oneshot::Receiver<RequestResult>>,
    pub(super) replies: Result<Replies, StoreError>,
    /// What it took is known to the caller, who did not wait for other parts.
    pub(super) is_settled: bool,
}

impl Parts {
    /// A part for a server that holds all keys.
    pub(super) fn alone(session: Arc<Session>) -> Self {
        let part = Part::new(0, session, Request::roomy());
        Self {
            parts: SmallVec::from_buf([part]),
            ..Self::default()
        }
    }

    /// No part yet.
    pub(super) fn of(topology: Arc<Topology>) -> Self {
        Self {
            topology: Some(topology),
            ..Self::default()
        }
    }

    /// The same connections, to ask something else.
    pub(super) fn unsent(&self) -> Self {
        let parts = self.parts.iter();
        let unsent =
            |part: &Part| Part::new(part.place, Arc::clone(&part.session), Request::default());
        Self {
            topology: self.topology.clone(),
            parts: parts.map(unsent).collect(),
            ..Self::default()
        }
    }

    /// Which part asks about a key.
    ///
    /// # Errors
    /// When the node that holds it is out of reach.
    #[inline(always)]
    pub(super) fn find(&mut self, key: &[u8]) -> Result<usize, StoreError> {
        let Some(topology) = &self.topology else {
            return Ok(0);
        };
        let place = topology.place_of(slot_of(key))?;
        if let Some(known) = self.parts.iter().position(|part| part.place == place) {
            return Ok(known);
        }
        let node = topology.node(place).ok_or(StoreError::OutOfReach)?;
        let request = Request::roomy().kept();
        self.parts.push(Part::new(place, node.session()?, request));
        Ok(self.parts.len() - 1)
    }

    /// Whether nothing is to be asked.
    pub(super) fn is_empty(&self) -> bool {
        self.parts.iter().all(|part| part.request.is_empty())
    }

    /// The part at this place.
    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Part> {
        self.parts.get_mut(at)
    }

    /// The only part, as that of a server which holds all keys.
    pub(super) fn only(&self) -> Option<&Part> {
        match self.parts.as_slice() {
            [part] if !part.is_settled => Some(part),
            _ => None,
        }
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &Part> {
        self.parts.iter()
    }

    /// The connections, each with what is to be asked.
    pub(super) fn into_requests(self) -> impl Iterator<Item = (Arc<Session>, Request)> {
        let parts = self.parts.into_iter();
        parts.map(|part| (part.session, part.request))
    }

    /// Sends all requests, each in its connection's next write.
    pub(super) fn send(&mut self) {
        for part in &mut self.parts {
            let request = std::mem::take(&mut part.request);
            if !request.is_empty() {
                part.answer = Some(part.session.connection.send(request));
            }
        }
    }

    /// Returns when each node has answered, or cannot any more.
    pub(super) fn poll_answers(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut all = Poll::Ready(());
        for part in &mut self.parts {
            if part.poll_answer(cx, self.is_overdue).is_pending() {
                all = Poll::Pending;
            }
        }
        all
    }

    /// Whether some answers have not come.
    pub(super) fn are_awaited(&self) -> bool {
        self.parts.iter().any(|part| part.answer.is_some())
    }

    /// The nodes whose answers have not come.
    fn unanswered(&self) -> impl Iterator<Item = &Arc<Member>> {
        let unanswered = self.parts.iter().filter(|part| part.answer.is_some());
        unanswered.filter_map(|part| part.session.member.as_ref())
    }

    /// The deadline of the call is over.
    pub(super) fn overdue(&mut self) -> StoreError {
        self.is_overdue = true;
        blame(self.unanswered())
    }

    /// Counts how it went with a node, unless that was counted already.
    pub(super) fn record(&self, part: &Part, failure: Option<&StoreError>) {
        if !self.is_overdue {
            part.session.record(failure);
        }
    }

    /// Why a node that redirected commands were repeated at did not do them, if one did not. It is
    /// counted already.
    pub(super) fn failure_elsewhere(&mut self) -> Option<StoreError> {
        self.failure_elsewhere.take().map(|failure| *failure)
    }

    /// Whether this error of a node only says that another did not do what it should have.
    pub(super) fn failed_elsewhere(&self, error: &RedisError) -> bool {
        self.failure_elsewhere.is_some() && error.redirect_node().is_some()
    }

    /// What repeats the redirected commands, if there are any.
    pub(super) fn follow(&mut self, cluster: &Arc<Cluster>) -> Option<Following> {
        let mut members = SmallVec::new();
        let mut repeated = Vec::new();
        for (at, part) in self.parts.iter_mut().enumerate() {
            if let Ok(replies) = &mut part.replies
                && let Some(repeating) = cluster.follow(&part.session, replies)
            {
                members.extend(repeating.nodes);
                repeated.push(async move { (at, repeating.answered.await) });
            }
        }
        if repeated.is_empty() {
            return None;
        }
        let mut parts = std::mem::take(self);
        let future = Box::pin(async move {
            for (at, (replies, failure)) in join_all(repeated).await {
                if let Some(part) = parts.get_mut(at) {
                    part.replies = Ok(replies);
                }
                parts.failure_elsewhere = failure.map(Box::new).or(parts.failure_elsewhere);
            }
            parts
        });
        Some(Following { future, members })
    }
}

impl Part {
    fn new(place: usize, session: Arc<Session>, request: Request) -> Self {
        Self {
            place,
            session,
            request,
            answer: None,
            replies: Ok(Replies::default()),
            is_settled: false,
        }
    }

    /// Whether its answer has come, and can be looked at.
    pub(super) fn is_answered(&self) -> bool {
        self.answer.is_none() && self.replies.is_ok()
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>, is_overdue: bool) -> Poll<()> {
        let Some(answer) = &mut self.answer else {
            return Poll::Ready(());
        };
        let Poll::Ready(answer) = Pin::new(answer).poll(cx) else {
            return Poll::Pending;
        };
        self.answer = None;
        self.replies = self.session.answered(answer);
        if let Err(error) = &self.replies
            && !is_overdue
        {
            self.session.record(Some(error));
        }
        Poll::Ready(())
    }
}

/// Redirected commands on their way to other nodes, and then all parts again.
pub(super) struct Following {
    pub(super) future: BoxFuture<'static, Parts>,
    members: Members,
}

impl Following {
    /// The deadline of the call is over.
    pub(super) fn overdue(&self) -> StoreError {
        blame(self.members.iter())
    }
}

/// Counts a missed deadline for each of these; what it is for the call. A server that is not one of
/// several is guarded as a whole.
fn blame<'m>(members: impl Iterator<Item = &'m Arc<Member>>) -> StoreError {
    let mut failure = StoreError::Deadline;
    for member in members {
        member.record(Some(&StoreError::Deadline));
        failure = member.failure(StoreError::Deadline);
    }
    failure
}

/// The nodes whose answers a call waits for, where there are several.
#[derive(Clone, Default)]
pub(super) struct Waits(Option<Arc<Mutex<Members>>>);

type Members = SmallVec<[Arc<Member>; 1]>;

impl Waits {
    /// The deadline of the call is over.
    pub(super) fn overdue(&self) -> StoreError {
        match self {
            Self(Some(waits)) => blame(waits.lock().iter()),
            Self(None) => StoreError::Deadline,
        }
    }

    /// Those of a call that waits for none yet.
    pub(super) fn for_several() -> Self {
        Self(Some(Arc::default()))
    }

    /// Does what waits for the answer of this server.
    pub(super) async fn on<T>(&self, session: &Session, work: impl Future<Output = T>) -> T {
        let (Self(Some(waits)), Some(member)) = (self, &session.member) else {
            return work.await;
        };
        waits.lock().push(Arc::clone(member));
        let done = work.await;
        waits.lock().retain(|waiting| !Arc::ptr_eq(waiting, member));
        done
    }
}

pin_project! {
    /// A call that knows which nodes it waits for.
    pub(super) struct Tracked<F> {
        #[pin]
        call: F,
        waits: Waits,
    }
}

impl<F> Tracked<F> {
    pub(super) const fn new(call: F, waits: Waits) -> Self {
        Self { call, waits }
    }
}

impl<F: Future> Future for Tracked<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().call.poll(cx)
    }
}

impl<T, F: Future<Output = Result<T, StoreError>> + Send> Answer<T> for Tracked<F> {
    fn overdue(self: Pin<&mut Self>) -> StoreError {
        self.waits.overdue()
    }

    /// No batch is decided by these calls.
    fn refund(self: Pin<&mut Self>, _: Batch, _: Timestamp) -> StoreFuture<()> {
        StoreFuture::failed(StoreError::OutOfReach)
    }
}
