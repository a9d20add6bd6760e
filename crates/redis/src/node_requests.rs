//! The commands of a call, one request for each node that holds some of its keys.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use tokio::sync::oneshot;
use weir_store::StoreError;

use super::awaited_nodes::blame;
use super::cluster::{Topology, slot_of};
use super::connection::RequestResult;
use super::manager::Session;
use super::resp::{Replies, Request};

/// The requests of a call to all nodes, and their replies.
#[derive(Default)]
pub(super) struct NodeRequests {
    /// None when one server holds all keys.
    topology: Option<Arc<Topology>>,
    requests: SmallVec<[NodeRequest; 1]>,
    /// The deadline of the call is over: replies that come now are not counted any more.
    is_overdue: bool,
}

/// The request to one node, and its replies.
pub(super) struct NodeRequest {
    /// The node's index in the topology.
    node: usize,
    pub(super) session: Arc<Session>,
    pub(super) request: Request,
    pending: Option<oneshot::Receiver<RequestResult>>,
    pub(super) replies: Result<Replies, StoreError>,
}

impl NodeRequests {
    /// One request, to a server that holds all keys.
    pub(super) fn single(session: Arc<Session>) -> Self {
        let request = NodeRequest::new(0, session, Request::roomy());
        Self {
            requests: SmallVec::from_buf([request]),
            ..Self::default()
        }
    }

    /// No request yet.
    pub(super) fn new(topology: Arc<Topology>) -> Self {
        Self {
            topology: Some(topology),
            ..Self::default()
        }
    }

    /// Empty requests over the same connections.
    pub(super) fn unsent(&self) -> Self {
        let unsent = self.requests.iter().map(|sent| {
            let session = Arc::clone(&sent.session);
            NodeRequest::new(sent.node, session, Request::default())
        });
        Self {
            topology: self.topology.clone(),
            requests: unsent.collect(),
            ..Self::default()
        }
    }

    /// The index of the request to the node that holds a key.
    ///
    /// # Errors
    /// When that node is out of reach.
    #[inline(always)]
    pub(super) fn index_for(&mut self, key: &[u8]) -> Result<usize, StoreError> {
        let Some(topology) = &self.topology else {
            return Ok(0);
        };
        let node = topology.index_of(slot_of(key))?;
        if let Some(index) = self.requests.iter().position(|known| known.node == node) {
            return Ok(index);
        }
        let session = topology
            .node(node)
            .ok_or(StoreError::OutOfReach)?
            .session()?;
        let request = NodeRequest::new(node, session, Request::roomy());
        self.requests.push(request);
        Ok(self.requests.len() - 1)
    }

    /// Whether there is no command.
    pub(super) fn is_empty(&self) -> bool {
        self.requests
            .iter()
            .all(|request| request.request.is_empty())
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut NodeRequest> {
        self.requests.get_mut(index)
    }

    pub(super) fn as_slice(&self) -> &[NodeRequest] {
        &self.requests
    }

    /// The connections, each with its commands, by their indices.
    pub(super) fn into_requests(self) -> impl Iterator<Item = (usize, (Arc<Session>, Request))> {
        let requests = self.requests.into_iter().enumerate();
        requests.map(|(index, request)| (index, (request.session, request.request)))
    }

    /// Sends all requests, each in its connection's next write.
    pub(super) fn send(&mut self) {
        for NodeRequest {
            session,
            request,
            pending,
            ..
        } in &mut self.requests
        {
            let request = std::mem::take(request);
            if !request.is_empty() {
                *pending = Some(session.connection.send(request));
            }
        }
    }

    /// Returns when each node has replied, or cannot any more.
    pub(super) fn poll_replies(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut all = Poll::Ready(());
        for request in &mut self.requests {
            if request.poll_replies(cx, self.is_overdue).is_pending() {
                all = Poll::Pending;
            }
        }
        all
    }

    /// Whether some nodes have not replied.
    pub(super) fn are_pending(&self) -> bool {
        self.requests
            .iter()
            .any(|request| request.pending.is_some())
    }

    /// The deadline of the call is over.
    pub(super) fn overdue(&mut self) -> StoreError {
        self.is_overdue = true;
        let pending = self
            .requests
            .iter()
            .filter(|request| request.pending.is_some());
        blame(pending.filter_map(|request| request.session.member.as_ref()))
    }

    pub(super) const fn is_overdue(&self) -> bool {
        self.is_overdue
    }

    /// Counts that all nodes have replied as they should, unless their failures were counted.
    pub(super) fn record_success(&self) {
        if !self.is_overdue {
            for request in &self.requests {
                request.session.record(None);
            }
        }
    }

    /// Takes the replies out, each with its connection.
    pub(super) fn take_replies(&mut self) -> Vec<(Arc<Session>, Result<Replies, StoreError>)> {
        let requests = self.requests.iter_mut().map(|request| {
            let replies = std::mem::replace(&mut request.replies, Ok(Replies::default()));
            (Arc::clone(&request.session), replies)
        });
        requests.collect()
    }
}

impl NodeRequest {
    fn new(node: usize, session: Arc<Session>, request: Request) -> Self {
        Self {
            node,
            session,
            request,
            pending: None,
            replies: Ok(Replies::default()),
        }
    }

    pub(super) const fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    fn poll_replies(&mut self, cx: &mut Context<'_>, is_overdue: bool) -> Poll<()> {
        let Some(pending) = &mut self.pending else {
            return Poll::Ready(());
        };
        let Poll::Ready(reply) = Pin::new(pending).poll(cx) else {
            return Poll::Pending;
        };
        self.pending = None;
        self.replies = self.session.answered(reply);
        if let Err(error) = &self.replies
            && !is_overdue
        {
            self.session.record(Some(error));
        }
        Poll::Ready(())
    }
}
