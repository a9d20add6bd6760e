//! A Redis Cluster: which node serves which slot, a connection to each, and what to do about keys
//! that have moved.
//!
//! One task for each worker reads the map of slots: at the start, when a node says that a slot has
//! moved, when a node is lost, and each minute. While a node is out of reach, or a slot has none,
//! it reads the map again and again, until the Cluster has put another node in its place.

pub(super) mod member;
mod redirections;
mod slots;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::{Mutex, RwLock};
use rand::seq::SliceRandom;
use redis::RedisError;
use tokio::sync::{Notify, watch};
use tokio::time::{self, Instant};
use weir_store::Backoff;
use weir_store::{GuardSettings, Observer, Reachability, StoreError};

use super::awaited_nodes::AwaitedNodes;
use super::check::wrong_server;
use super::connection::{Connection, MemoryShare};
use super::dialer::Dialer;
use super::endpoint::{Address, HostPort};
use super::manager::{Location, Session, Supervisor};
use super::node::Node;
use super::resp::{Replies, Request};
use super::server_error::verbatim;
use super::settings::RedisSettings;
pub(super) use member::{Member, SharedMemory};
pub(super) use slots::slot_of;
use slots::{SlotMap, SlotRange, parse_slots};

/// The interval of looks at the map while nothing shows that it has changed.
const REFRESH_INTERVAL: Duration = Duration::from_secs(60);

/// The minimum pause between two looks at the map.
const MIN_REFRESH_PAUSE: Duration = Duration::from_millis(50);

/// The first and the longest pause while a node is out of reach.
const MIN_RETRY: Duration = Duration::from_millis(50);
const MAX_RETRY: Duration = Duration::from_millis(150);

/// The timeout for a node that is not connected yet.
const SEED_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a node without slots is kept after a redirection to it: slots may be on their way.
const KEEP_FOR: Duration = Duration::from_secs(120);

/// The number of nodes that have to name such a node before the map of the last one is taken.
const MAX_CANDIDATE_MAPS: usize = 3;

pub(super) struct Cluster {
    settings: RedisSettings,
    seeds: Vec<HostPort>,
    observer: Arc<dyn Observer>,
    topology: RwLock<Arc<Topology>>,
    /// Whether the map is known, or why not.
    status: watch::Sender<MapStatus>,
    changed: Arc<Notify>,
    guard: OnceLock<(GuardSettings, Arc<Reachability>)>,
    shared: SharedMemory,
    /// Nodes that were replaced while they were out of reach, and when.
    gone: Mutex<HashMap<HostPort, Instant>>,
}

#[derive(Clone, Default)]
struct MapStatus {
    is_known: bool,
    last_error: Option<Arc<RedisError>>,
}

pub(super) struct Topology {
    nodes: Vec<Arc<ClusterNode>>,
    slots: SlotMap<u16>,
}

/// A node with slots, or one that a redirection has named.
pub(super) struct ClusterNode {
    node: Arc<Node>,
    member: Arc<Member>,
    redirected: Mutex<Option<Instant>>,
}

impl Cluster {
    /// A Cluster, and the task that follows its map, which needs a tokio runtime.
    pub(super) fn spawn(
        settings: RedisSettings,
        seeds: Vec<HostPort>,
        observer: Arc<dyn Observer>,
    ) -> (Arc<Self>, Supervisor) {
        let cluster = Arc::new(Self {
            settings,
            seeds,
            observer,
            topology: RwLock::new(Arc::new(Topology {
                nodes: Vec::new(),
                slots: SlotMap::new(&[], &HashMap::new()),
            })),
            status: watch::Sender::default(),
            changed: Arc::default(),
            guard: OnceLock::new(),
            shared: SharedMemory::default(),
            gone: Mutex::default(),
        });
        let task = Arc::clone(&cluster).refresh_topology();
        (cluster, Supervisor::new(tokio::spawn(task)))
    }

    /// Gives each node a circuit breaker of its own from now on.
    pub(super) fn guard(&self, settings: GuardSettings, reachability: &Arc<Reachability>) {
        let _ = self.guard.set((settings, Arc::clone(reachability)));
        for node in &self.topology().nodes {
            self.guard_node(node);
        }
    }

    fn guard_node(&self, node: &ClusterNode) {
        if let Some((settings, reachability)) = self.guard.get() {
            node.member.guard(settings.breaker, reachability);
            node.node.supervise(settings.timeout);
        }
    }

    /// Which node serves which slot, as far as is known.
    pub(super) fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.topology.read())
    }

    /// Fails if no map is known.
    pub(super) fn check_known(&self) -> Result<(), StoreError> {
        let status = self.status.borrow();
        match &status.last_error {
            _ if status.is_known => Ok(()),
            Some(error) => Err(StoreError::Lost(Box::new(Arc::clone(error)))),
            None => Err(StoreError::OutOfReach),
        }
    }

    /// Waits until the map is known and all nodes are connected.
    pub(super) async fn connected(&self) {
        let mut status = self.status.subscribe();
        let _ = status.wait_for(|status| status.is_known).await;
        let topology = self.topology();
        let connected = |node: &Arc<ClusterNode>| {
            let node = Arc::clone(&node.node);
            async move { node.manager().connected().await }
        };
        join_all(topology.nodes.iter().map(connected)).await;
    }

    async fn refresh_topology(self: Arc<Self>) {
        let backoff = || Backoff::new(MIN_RETRY, MAX_RETRY);
        let mut retry = backoff();
        loop {
            self.refresh().await;
            let pause = if self.is_complete() {
                retry = backoff();
                REFRESH_INTERVAL.mul_f64(rand::random_range(0.8..1.2))
            } else {
                retry.wait()
            };
            let earliest = time::sleep(MIN_REFRESH_PAUSE);
            tokio::select! {
                () = self.changed.notified() => earliest.await,
                () = time::sleep(pause) => {}
            }
        }
    }

    /// Whether each slot has a usable node. A map that was read while slots moved may have holes.
    fn is_complete(&self) -> bool {
        let topology = self.topology();
        let mut nodes = topology.nodes.iter();
        topology.slots.is_complete() && nodes.all(|node| node.node.is_usable())
    }

    /// Reads the map from one node after the other, until one replies. A node that names a replaced
    /// one may not have heard of that, so its map is applied only if no other candidate is without
    /// such a node.
    async fn refresh(&self) {
        let topology = self.topology();
        let mut nodes: Vec<_> = topology.nodes.iter().collect();
        nodes.shuffle(&mut rand::rng());
        let answer_timeout = self.settings.cluster_times.map_answer;
        let mut candidate_maps = Vec::new();
        for node in nodes {
            // Skip nodes that are down: they may be partitioned and have a stale map.
            let Ok(session) = node.node.session() else {
                continue;
            };
            let asked = read_slots(&session.connection, &node.member.address);
            if let Ok(Ok(ranges)) = time::timeout(answer_timeout, asked).await {
                if !self.names_gone_node(&ranges) {
                    return self.apply(&ranges);
                }
                candidate_maps.push(ranges);
            }
            if candidate_maps.len() == MAX_CANDIDATE_MAPS {
                break;
            }
        }
        if let Some(ranges) = candidate_maps.pop() {
            return self.apply(&ranges);
        }
        let mut last_error = None;
        for seed in &self.seeds {
            let asked = time::timeout(SEED_TIMEOUT, self.read_slots_of_seed(seed)).await;
            match asked
                .unwrap_or_else(|elapsed| Err(Arc::new(std::io::Error::from(elapsed).into())))
            {
                Ok(ranges) => return self.apply(&ranges),
                Err(error) => last_error = Some(error),
            }
        }
        self.status
            .send_modify(|status| status.last_error = last_error);
    }

    fn names_gone_node(&self, ranges: &[SlotRange]) -> bool {
        let gone_for = self.settings.cluster_times.gone_for;
        let mut gone = self.gone.lock();
        gone.retain(|_, since| since.elapsed() < gone_for);
        ranges.iter().any(|range| gone.contains_key(&range.primary))
    }

    async fn read_slots_of_seed(&self, seed: &HostPort) -> Result<Vec<SlotRange>, Arc<RedisError>> {
        let (access, network) = (&self.settings.access, &self.settings.network);
        let address = Address::Tcp(seed.clone());
        let mut dialer = Dialer::new(access.clone(), network.clone());
        let socket = dialer.open(&address).await?;
        let connection = Connection::new(socket, MemoryShare::default());
        read_slots(&connection, seed).await
    }

    /// Applies a map. Nodes that stay in it keep their connections.
    fn apply(&self, ranges: &[SlotRange]) {
        let mut topology = self.topology.write();
        let mut nodes = Vec::new();
        let mut indices = HashMap::new();
        for range in ranges {
            indices.entry(&range.primary).or_insert_with(|| {
                let known = topology.node_at(&range.primary).cloned();
                nodes.push(known.unwrap_or_else(|| self.node(&range.primary)));
                u16::try_from(nodes.len() - 1).unwrap_or(u16::MAX)
            });
        }
        for node in &nodes {
            let own = ranges
                .iter()
                .filter(|range| range.primary == node.member.address);
            *node.member.slots.lock() = own.map(|range| (range.first, range.last)).collect();
        }
        let mut gone = self.gone.lock();
        gone.retain(|address, _| !indices.contains_key(address));
        let left = topology.nodes.iter();
        for node in left.filter(|node| !indices.contains_key(&node.member.address)) {
            if node.was_redirected_to_lately() {
                node.member.slots.lock().clear();
                nodes.push(Arc::clone(node));
            } else if !node.node.is_usable() {
                gone.insert(node.member.address.clone(), Instant::now());
            }
        }
        drop(gone);
        self.shared.requests.divide(nodes.len());
        let slots = SlotMap::new(ranges, &indices);
        // All gateways follow the clock of the same node.
        let first = slots
            .owner(0)
            .and_then(|index| nodes.get(usize::from(index)));
        if let Some(node) = first {
            self.settings.clock.refer_to(&node.member.name);
        }
        *topology = Arc::new(Topology { nodes, slots });
        drop(topology);
        self.status.send_modify(|status| status.is_known = true);
    }

    fn node(&self, address: &HostPort) -> Arc<ClusterNode> {
        let changed = Arc::clone(&self.changed);
        let member = Arc::new(Member::new(address.clone(), self.shared.clone(), changed));
        let settings = RedisSettings {
            clock: self.settings.clock.of_node(Arc::clone(&member.name)),
            ..self.settings.clone()
        };
        let observer = Arc::clone(&self.observer);
        let location = Location::Fixed(Address::Tcp(address.clone()));
        let node = Node::spawn(location, settings, observer, Some(Arc::clone(&member)));
        let node = Arc::new(ClusterNode {
            node: Arc::new(node),
            member,
            redirected: Mutex::default(),
        });
        self.guard_node(&node);
        node
    }

    /// The node that a redirection names, which may be new.
    fn named(&self, address: &HostPort) -> Arc<ClusterNode> {
        let mut topology = self.topology.write();
        let node = topology.node_at(address).cloned().unwrap_or_else(|| {
            let node = self.node(address);
            let mut nodes = topology.nodes.clone();
            nodes.push(Arc::clone(&node));
            self.shared.requests.divide(nodes.len());
            let slots = topology.slots.clone();
            *topology = Arc::new(Topology { nodes, slots });
            // A node that is dead is forgotten as soon as its time is over.
            self.changed.notify_one();
            node
        });
        *node.redirected.lock() = Some(Instant::now());
        node
    }

    /// Sends commands about a slot that has moved to its new node from now on.
    fn moved(&self, slot: u16, to: &HostPort) {
        self.named(to);
        let mut topology = self.topology.write();
        let mut nodes = topology.nodes.iter();
        let index = nodes.position(|node| node.member.address == *to);
        let Some(index) = index.and_then(|index| u16::try_from(index).ok()) else {
            return;
        };
        if topology.slots.owner(slot) != Some(index) {
            let (nodes, slots) = (
                topology.nodes.clone(),
                topology.slots.with_owner(slot, index),
            );
            *topology = Arc::new(Topology { nodes, slots });
            drop(topology);
            self.changed.notify_one();
        }
    }

    /// Repeats the commands of a request that its node has redirected, once, at the nodes that it
    /// named. Returns all replies in the order of the commands, and why one of those nodes failed:
    /// what that one did not do stays redirected.
    pub(super) async fn follow(
        &self,
        session: &Session,
        request: &Request,
        replies: Replies,
        awaited: &AwaitedNodes,
    ) -> (Replies, Option<StoreError>) {
        let asked = session.member.as_ref().map(|member| &member.address);
        let units = asked.and_then(|asked| redirections::units(request, &replies, asked));
        let mut units = units.unwrap_or_default();
        let targets = redirections::targets(&units);
        if targets.is_empty() {
            return (replies, None);
        }
        let redirections = units.iter().filter_map(|unit| unit.redirection.as_ref());
        for moved in redirections.filter(|redirection| !redirection.asking) {
            self.moved(moved.slot, &moved.to);
        }
        let repeated = targets.iter().map(|to| {
            let (node, request) = (self.named(to), redirections::repetition(&units, to));
            async move {
                let repeated = node.repeat(request, awaited);
                awaited.wait_for(&node.member, repeated).await
            }
        });
        let repeated = join_all(repeated).await;
        let mut failure = None;
        for (to, repeated) in targets.iter().zip(&repeated) {
            match repeated {
                Ok((session, replies)) => {
                    let error = redirections::replace(&mut units, to, replies);
                    failure = session.repeated(error, awaited).or(failure);
                }
                Err(member) => failure = Some(member.failure(StoreError::OutOfReach)),
            }
        }
        (redirections::joined_replies(&units), failure)
    }
}

impl Session {
    /// Counts how this node did what another had redirected. That it redirects again says that
    /// slots are moving, and not that it fails.
    fn repeated(
        self: &Arc<Self>,
        error: Option<RedisError>,
        awaited: &AwaitedNodes,
    ) -> Option<StoreError> {
        let redirects = |error: &RedisError| error.redirect_node().is_some();
        let failure = match error {
            Some(error) if redirects(&error) => {
                awaited.record(self, None);
                return Some(self.failure(StoreError::Failed(Box::new(error))));
            }
            error => error.map(|error| self.failed(error)),
        };
        awaited.record(self, failure.as_ref());
        failure.map(|failure| self.failure(failure))
    }
}

impl Topology {
    fn node_at(&self, address: &HostPort) -> Option<&Arc<ClusterNode>> {
        self.nodes
            .iter()
            .find(|node| node.member.address == *address)
    }

    /// The index of the node that serves a slot.
    pub(super) fn index_of(&self, slot: u16) -> Result<usize, StoreError> {
        let index = self.slots.owner(slot).map(usize::from);
        index.ok_or_else(|| StoreError::Node {
            node: "of no slot".into(),
            allowed: None,
            source: Box::new(StoreError::Failed(
                format!("no node of the Redis Cluster serves slot {slot}").into(),
            )),
        })
    }

    /// The node with this index.
    pub(super) fn node(&self, index: usize) -> Option<&Arc<Node>> {
        self.nodes.get(index).map(|node| &node.node)
    }

    pub(super) fn node_of(&self, key: &[u8]) -> Option<&Arc<Node>> {
        self.node(self.slots.owner(slot_of(key))?.into())
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        let serving = self.nodes.iter().filter(|node| node.serves());
        serving.map(|node| &node.node)
    }
}

impl ClusterNode {
    fn serves(&self) -> bool {
        !self.member.slots.lock().is_empty()
    }

    /// An unusable node is kept no longer than it may take to connect to it.
    fn was_redirected_to_lately(&self) -> bool {
        let longest = match self.node.is_usable() {
            true => KEEP_FOR,
            false => SEED_TIMEOUT,
        };
        let redirected = *self.redirected.lock();
        redirected.is_some_and(|at| at.elapsed() < longest)
    }

    /// Asks what another node did not do. A node that is new is waited for.
    ///
    /// # Errors
    /// The node, when it is out of reach or the connection breaks, which is counted.
    async fn repeat(
        &self,
        request: Request,
        awaited: &AwaitedNodes,
    ) -> Result<(Arc<Session>, Replies), Arc<Member>> {
        let session = async {
            if !self.member.is_given_up() {
                self.node.manager().connected().await;
            }
            self.node.session().ok()
        };
        let session = time::timeout(SEED_TIMEOUT, session).await.ok().flatten();
        let session = session.ok_or_else(|| Arc::clone(&self.member))?;
        match session.send(request).await {
            Ok(replies) => Ok((session, replies)),
            Err(error) => {
                awaited.record(&session, Some(&error));
                Err(Arc::clone(&self.member))
            }
        }
    }
}

/// Reads the map of slots from a node.
async fn read_slots(
    connection: &Connection,
    asked: &HostPort,
) -> Result<Vec<SlotRange>, Arc<RedisError>> {
    let mut request = Request::default();
    request.command(2, "CLUSTER").word(b"SLOTS");
    let replies = connection.call(request).await?;
    let values = replies.values().map_err(verbatim)?;
    let ranges = values.first().and_then(|reply| parse_slots(reply, asked));
    let ranges =
        ranges.ok_or_else(|| wrong_server("CLUSTER SLOTS is answered by no map of slots"))?;
    match ranges.is_empty() {
        true => Err(wrong_server("no node of the Redis Cluster serves any slot")),
        false => Ok(ranges),
    }
}
