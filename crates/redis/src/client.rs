//! The parts that all calls share: the nodes, the keys, and calls that no request waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use redis::Value;
use smallvec::SmallVec;
use tokio::time::Instant;
use weir_limit::{BucketKey, Transaction};
use weir_store::{Call, DecisionClock, Observer, StoreError, StoreFuture};

use super::awaited_nodes::{AwaitedNodes, Tracked};
use super::check;
use super::cluster::Cluster;
use super::manager::Session;
use super::node::{Node, in_time};
use super::node_requests::NodeRequests;
use super::resp::{Replies, Request};
use super::settings::RedisSettings;
use super::window::WindowKind;

pub(super) type Key = SmallVec<[u8; 96]>;

/// The parts that the calls of one [`super::Redis`] share.
pub(super) struct Client {
    nodes: Nodes,
    prefix: Box<[u8]>,
    clock: DecisionClock,
    observer: Arc<dyn Observer>,
    background_calls: AtomicUsize,
}

pub(super) enum Nodes {
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
}

impl Client {
    /// Calls of nodes that were made by these settings.
    pub(super) fn new(nodes: Nodes, settings: &RedisSettings, observer: Arc<dyn Observer>) -> Self {
        Self {
            nodes,
            prefix: format!("{}:", settings.prefix).into_bytes().into(),
            clock: settings.clock.clone(),
            observer,
            background_calls: AtomicUsize::new(0),
        }
    }

    pub(super) const fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// The requests of a call, before there is a command.
    ///
    /// # Errors
    /// Why no node can be used.
    pub(super) fn node_requests(&self) -> Result<NodeRequests, StoreError> {
        match &self.nodes {
            Nodes::One(node) => node.session().map(NodeRequests::single),
            Nodes::Cluster(cluster) => {
                cluster.check_known()?;
                Ok(NodeRequests::new(cluster.topology()))
            }
        }
    }

    /// A record of the nodes that a call waits for.
    pub(super) fn awaited_nodes(&self) -> AwaitedNodes {
        match &self.nodes {
            Nodes::One(_) => AwaitedNodes::default(),
            Nodes::Cluster(_) => AwaitedNodes::for_cluster(),
        }
    }

    pub(super) fn node_of(&self, key: &[u8]) -> Option<Arc<Node>> {
        match &self.nodes {
            Nodes::One(node) => Some(Arc::clone(node)),
            Nodes::Cluster(cluster) => cluster.topology().node_of(key).cloned(),
        }
    }

    /// Makes a call with the connections that are there, or fails at once.
    pub(super) fn tracked<T, F>(
        self: &Arc<Self>,
        call: impl FnOnce(Arc<Self>, AwaitedNodes) -> Result<F, StoreError>,
    ) -> StoreFuture<T>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let awaited = self.awaited_nodes();
        match call(Arc::clone(self), awaited.clone()) {
            Ok(call) => StoreFuture::pending(Tracked::new(call, awaited)),
            Err(error) => StoreFuture::failed(error),
        }
    }

    /// Does something with each request at the same time, and counts how it went with each node.
    /// The first failure is the answer.
    pub(super) async fn each_node<T, F>(
        &self,
        requests: impl IntoIterator<Item = (usize, (Arc<Session>, Request))>,
        awaited: &AwaitedNodes,
        mut work: impl FnMut(usize, Arc<Session>, Request) -> F,
    ) -> Result<Vec<T>, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let all = requests.into_iter().map(|(index, (session, request))| {
            let work = work(index, Arc::clone(&session), request);
            async move { awaited.wait_on(&session, work).await }
        });
        join_all(all).await.into_iter().collect()
    }

    /// Sends the requests and reads their replies; an error among them is the answer.
    pub(super) async fn call(
        &self,
        requests: NodeRequests,
        awaited: &AwaitedNodes,
    ) -> Result<(), StoreError> {
        let send = |_, session, request| async move {
            self.send_checked(&session, request).await.map(drop)
        };
        self.each_node(requests.into_requests(), awaited, send)
            .await
            .map(drop)
    }

    pub(super) fn clock(&self) -> &DecisionClock {
        &self.clock
    }

    pub(super) fn background_calls(&self) -> usize {
        self.background_calls.load(Ordering::SeqCst)
    }

    /// The key of GCRA's bucket in Redis.
    pub(super) fn key(&self, key: &BucketKey) -> Key {
        let mut whole = SmallVec::from_slice(&self.prefix);
        whole.extend_from_slice(key.as_bytes());
        whole
    }

    /// The key with a mark at its end, of what is not a TAT.
    pub(super) fn marked_key(&self, key: &BucketKey, mark: &str) -> Key {
        let mut whole = self.key(key);
        whole.extend_from_slice(mark.as_bytes());
        whole
    }

    /// The key of a transaction's bucket, with the mark of its algorithm.
    pub(super) fn transaction_key(&self, transaction: &Transaction) -> Key {
        if transaction.is_windowed() {
            self.marked_key(&transaction.key, WindowKind::new(&transaction.quota).mark())
        } else {
            self.key(&transaction.key)
        }
    }

    /// Sends commands, and repeats redirected ones. Errors among the replies are left to the
    /// caller.
    pub(super) async fn send(
        &self,
        session: &Arc<Session>,
        request: Request,
    ) -> Result<Replies, StoreError> {
        let Nodes::Cluster(cluster) = &self.nodes else {
            return session.send(request).await;
        };
        let replies = session.send(request.clone()).await?;
        // The node that redirects is waited for by the caller.
        let awaited = AwaitedNodes::default();
        match cluster.follow(session, &request, replies, &awaited).await {
            (replies, None) => Ok(replies),
            (_, Some(failure)) => Err(failure),
        }
    }

    /// Sends commands and reads their replies. An error among them fails the call.
    pub(super) async fn send_checked(
        &self,
        session: &Arc<Session>,
        request: Request,
    ) -> Result<Vec<Value>, StoreError> {
        let replies = self.send(session, request).await?;
        replies.values().map_err(|error| session.failed(error))
    }

    /// Sends commands that no request waits for by the present connection to a node, and reports
    /// how that went.
    pub(super) async fn send_observed(
        &self,
        call: Call,
        node: &Node,
        request: Request,
    ) -> Result<(), StoreError> {
        let session = node.session()?;
        let start = Instant::now();
        let answer = in_time(self.send_checked(&session, request)).await;
        let failure = answer.as_ref().err();
        self.observer.called(call, start.elapsed(), failure);
        answer.map(drop)
    }

    /// Sends repairs that are computed by the clock of decisions, when the server says that the
    /// clock is right, and other gateways have no reason to tell another time. Else they would give
    /// back to clients what is spent.
    pub(super) fn repair(self: &Arc<Self>, session: &Arc<Session>, repairs: Request) {
        if repairs.is_empty() || !self.clock.is_settled() {
            return;
        }
        let (client, session) = (Arc::clone(self), Arc::clone(session));
        self.spawn(Call::Clamp, async move {
            let measured = check::measure(&session.connection, &client.clock).await;
            match measured.map_err(|error| session.lost(error))? {
                Some(offset) if offset.is_within_tolerance() => {
                    client.send_checked(&session, repairs).await.map(drop)
                }
                _ => Ok(()),
            }
        });
    }

    /// Sends `request` in the background, unless it is empty.
    pub(super) fn send_in_background(
        self: &Arc<Self>,
        call: Call,
        session: &Arc<Session>,
        request: Request,
    ) {
        if request.is_empty() {
            return;
        }
        let (client, session) = (Arc::clone(self), Arc::clone(session));
        self.spawn(call, async move {
            client.send_checked(&session, request).await.map(drop)
        });
    }

    /// Runs background work with a deadline.
    pub(super) fn spawn(
        self: &Arc<Self>,
        call: Call,
        work: impl Future<Output = Result<(), StoreError>> + Send + 'static,
    ) {
        let background_calls = BackgroundCallGuard::new(self);
        tokio::spawn(async move {
            let start = Instant::now();
            let answer = in_time(work).await;
            let failure = answer.as_ref().err();
            background_calls
                .0
                .observer
                .called(call, start.elapsed(), failure);
        });
    }
}

/// Counts a background task for as long as it lives.
struct BackgroundCallGuard(Arc<Client>);

impl BackgroundCallGuard {
    fn new(client: &Arc<Client>) -> Self {
        client.background_calls.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(client))
    }
}

impl Drop for BackgroundCallGuard {
    fn drop(&mut self) {
        self.0.background_calls.fetch_sub(1, Ordering::SeqCst);
    }
}
