//! Leases in Redis, shared by many gateways; see [`lease_commands`] for how they are counted.
//!
//! A lease expires unless its gateway renews it, so that a gateway that crashed holds nothing for
//! longer. Claims of several subjects travel in one pipeline; when one is refused, what the others
//! got is given back by a second, off the response's path.
//!
//! One task renews the leases that are held here and releases those that are over, so that a
//! renewal never comes after the release of its lease and brings it to life again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{self, Instant, MissedTickBehavior};
use weir_limit::time::{Clock, Timestamp};
use weir_limit::{BucketKeys, Claim, Claims};
use weir_store::{
    Call, DecisionSource, LeaseGuard, Leased, Leases, Outcome, StoreError, StoreFuture,
    decide_claims,
};

use super::Redis;
use super::awaited_nodes::AwaitedNodes;
use super::client::{Client, Key};
use super::lease_commands::{self, LeaseCommand, LeaseId, LeaseReply, LeaseTimes};
use super::manager::Session;
use super::node::Node;
use super::resp::{Replies, Request};

/// How often a lease is renewed before it would expire.
const RENEWALS: u32 = 3;

/// The most leases that one pipeline renews or releases, to let other commands in between.
const AT_ONCE: usize = 512;

/// How long a release that failed waits for its next attempt.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

impl Leases for Redis {
    fn acquire(&self, claims: Claims, now: Timestamp) -> StoreFuture<Leased> {
        let held = self.renewer.leases();
        self.client
            .tracked(|client, awaited| acquire(client, held, claims, now, awaited))
    }

    fn delete(&self, keys: BucketKeys) -> StoreFuture<()> {
        let marked = |key| self.client.marked_key(key, lease_commands::MARK);
        self.delete(keys.iter().map(marked))
    }

    fn end(&self) -> StoreFuture<()> {
        let held = self.renewer.leases();
        StoreFuture::waiting(async move {
            held.end().await;
            Ok(())
        })
    }
}

fn acquire(
    client: Arc<Client>,
    held: Arc<HeldLeases>,
    claims: Claims,
    now: Timestamp,
    awaited: AwaitedNodes,
) -> Result<impl Future<Output = Result<Leased, StoreError>> + Send, StoreError> {
    let times = held.times(now);
    let mut requests = client.node_requests()?;
    let mut nodes = SmallVec::<[usize; 1]>::new();
    let mut leases = Vec::with_capacity(claims.len());
    for claim in &claims {
        let lease = Lease {
            id: rand::random(),
            key: client.marked_key(&claim.key, lease_commands::MARK),
        };
        let index = requests.index_for(&lease.key)?;
        if let Some(node) = requests.get_mut(index) {
            LeaseCommand::new(claim).add(&mut node.request, &lease.key, lease.id, claim, times);
        }
        nodes.push(index);
        leases.push(lease);
    }
    Ok(async move {
        // Redis is told that they are over even if their replies never come.
        let leases = RequestLeases { held, leases };
        let ask = |index, session: Arc<Session>, request: Request| {
            let (client, claims, nodes) = (&client, &claims, &nodes);
            async move {
                let replies = match request.is_empty() {
                    true => Replies::default(),
                    false => client.send(&session, request).await?,
                };
                let own = claims.iter().zip(nodes).filter(|(_, node)| **node == index);
                parse(own.map(|(claim, _)| claim), &replies)
                    .ok_or_else(|| session.protocol_error(&replies))
            }
        };
        let parsed = client
            .each_node(requests.into_requests(), &awaited, ask)
            .await?;
        let mut parsed: Vec<_> = parsed.into_iter().map(IntoIterator::into_iter).collect();
        let of_each = nodes
            .iter()
            .filter_map(|node| parsed.get_mut(*node)?.next());
        let of_each: SmallVec<[LeaseReply; 1]> = of_each.collect();
        Ok(leased(&claims, &of_each, leases))
    })
}

fn parse<'c>(
    claims: impl Iterator<Item = &'c Claim>,
    replies: &Replies,
) -> Option<SmallVec<[LeaseReply; 1]>> {
    let mut cursor = replies.iter();
    let commands = claims.map(LeaseCommand::new);
    commands.map(|command| command.parse(&mut cursor)).collect()
}

/// The decisions that these replies make; when one denies, the others' leases are given back.
fn leased(claims: &Claims, replies: &[LeaseReply], mut leases: RequestLeases) -> Leased {
    let others: SmallVec<[u64; 1]> = replies.iter().map(|reply| reply.others).collect();
    let (decisions, denied) = decide_claims(claims, &others);
    let mut taken = replies.iter().map(|reply| reply.taken);
    leases.leases.retain(|_| taken.next().unwrap_or(false));
    let guard = if denied || leases.leases.is_empty() {
        LeaseGuard::EMPTY
    } else {
        leases.held.hold(&leases.leases);
        LeaseGuard::new(leases)
    };
    Leased {
        outcome: Outcome {
            decisions,
            source: DecisionSource::Store,
        },
        guard,
    }
}

/// One lease: asked for, then taken or not.
struct Lease {
    id: LeaseId,
    key: Key,
}

/// The leases of one request, released when this is dropped, whether or not they were ever taken.
struct RequestLeases {
    held: Arc<HeldLeases>,
    leases: Vec<Lease>,
}

impl Drop for RequestLeases {
    fn drop(&mut self) {
        if !self.leases.is_empty() {
            self.held.release(self.leases.drain(..));
        }
    }
}

/// The leases that are held through one connection, and the task that renews and releases them.
pub(super) struct LeaseRenewer {
    leases: Arc<HeldLeases>,
    task: JoinHandle<()>,
}

impl LeaseRenewer {
    /// Holds nothing. `lasts` is how long a lease lasts when it is not renewed. Must be called on a
    /// tokio runtime.
    pub(super) fn spawn(client: &Arc<Client>, lasts: Duration) -> Self {
        let leases = Arc::new(HeldLeases {
            lasts,
            leases: Mutex::default(),
            changed: Notify::new(),
            all_released: Notify::new(),
        });
        let task = Arc::clone(&leases).run(Arc::clone(client));
        Self {
            leases,
            task: tokio::spawn(task),
        }
    }

    /// All leases that are held.
    pub(super) fn leases(&self) -> Arc<HeldLeases> {
        Arc::clone(&self.leases)
    }
}

impl Drop for LeaseRenewer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The leases that are held through one connection.
pub(super) struct HeldLeases {
    lasts: Duration,
    leases: Mutex<LeaseTable>,
    /// Something is to be released.
    changed: Notify,
    /// Everything was.
    all_released: Notify,
}

#[derive(Default)]
struct LeaseTable {
    held: HashMap<LeaseId, Key>,
    released: Vec<Released>,
    /// How many releases are under way.
    releasing: usize,
}

/// A lease that is over, which Redis is to be told of until it would have expired.
struct Released {
    lease: Lease,
    until: Instant,
}

impl HeldLeases {
    fn times(&self, now: Timestamp) -> LeaseTimes {
        LeaseTimes {
            now,
            lasts: self.lasts.into(),
        }
    }

    /// Renews these from now on.
    fn hold(&self, leases: &[Lease]) {
        let held = leases.iter().map(|lease| (lease.id, lease.key.clone()));
        self.leases.lock().held.extend(held);
    }

    /// Releases these in the background.
    fn release(&self, over: impl Iterator<Item = Lease>) {
        let until = Instant::now() + self.lasts;
        let mut leases = self.leases.lock();
        for lease in over {
            leases.held.remove(&lease.id);
            leases.released.push(Released { lease, until });
        }
        drop(leases);
        self.changed.notify_one();
    }

    /// Ends everything that is held, and waits until Redis was told.
    async fn end(&self) {
        let held = std::mem::take(&mut self.leases.lock().held);
        self.release(held.into_iter().map(|(id, key)| Lease { id, key }));
        loop {
            let all_released = self.all_released.notified();
            if self.unreleased() == 0 {
                return;
            }
            all_released.await;
        }
    }

    /// How many leases are over of which Redis was not told yet.
    pub(super) fn unreleased(&self) -> usize {
        let leases = self.leases.lock();
        leases.released.len() + leases.releasing
    }

    /// Renews and releases, for ever. A node that does not answer holds up no other.
    async fn run(self: Arc<Self>, client: Arc<Client>) {
        let pause = (self.lasts / RENEWALS).max(Duration::from_millis(1));
        let mut ticks = time::interval(pause);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick comes at once, when nothing is held.
        ticks.tick().await;
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                () = self.changed.notified() => self.send_releases(&client, &mut tasks),
                _ = ticks.tick() => self.renew(&client, &mut tasks),
                Some(_) = tasks.join_next() => {}
            }
        }
    }

    /// Begins to release what is over, by node.
    fn send_releases(self: &Arc<Self>, client: &Arc<Client>, tasks: &mut JoinSet<()>) {
        let releasing = self.leases.lock().begin_releases();
        let by_node = by_node(client, releasing, |released| &released.lease.key);
        for (node, releasing) in by_node {
            let (leases, client) = (Arc::clone(self), Arc::clone(client));
            tasks.spawn(async move { leases.release_on(&client, node, releasing).await });
        }
        self.tell_if_all_released();
    }

    /// Releases leases on one node. Those that it could not be told of are released again later,
    /// wherever they are then.
    async fn release_on(
        &self,
        client: &Client,
        node: Option<Arc<Node>>,
        mut releasing: Vec<Released>,
    ) {
        let mut told = node.is_some();
        if let Some(node) = node {
            let _turn = node.leases.lock().await;
            while told && !releasing.is_empty() {
                let some = releasing.split_off(releasing.len().saturating_sub(AT_ONCE));
                let mut request = Request::default();
                for Released { lease, .. } in &some {
                    lease_commands::release(&mut request, &lease.key, lease.id);
                }
                let answer = client.send_observed(Call::Release, &node, request).await;
                // Of a key that holds something else there is nothing to release.
                told = !answer.is_err_and(|error| !error.is_wrong_type());
                self.leases.lock().end_releases(some, told);
            }
        }
        if !told {
            time::sleep(AFTER_FAILURE).await;
            self.leases.lock().end_releases(releasing, false);
            self.changed.notify_one();
        }
        self.tell_if_all_released();
    }

    fn tell_if_all_released(&self) {
        if self.unreleased() == 0 {
            self.all_released.notify_waiters();
        }
    }

    /// Begins to renew what is held, by node.
    fn renew(self: &Arc<Self>, client: &Arc<Client>, tasks: &mut JoinSet<()>) {
        let held: Vec<_> = self.leases.lock().held.clone().into_iter().collect();
        for (node, held) in by_node(client, held, |(_, key)| key) {
            let Some(node) = node.filter(|node| !node.renews.swap(true, Ordering::Relaxed)) else {
                // The last renewal is under way, and there are more ticks before they expire.
                continue;
            };
            let (leases, client) = (Arc::clone(self), Arc::clone(client));
            tasks.spawn(async move {
                let _turn = node.leases.lock().await;
                leases.renew_on(&client, &node, &held).await;
                node.renews.store(false, Ordering::Relaxed);
            });
        }
    }

    fn renewal(&self, client: &Client, leases: &[(LeaseId, Key)]) -> Request {
        let times = self.times(client.clock().now());
        let mut request = Request::default();
        let table = self.leases.lock();
        let held = leases.iter();
        for (lease, key) in held.filter(|(lease, _)| table.held.contains_key(lease)) {
            lease_commands::renew(&mut request, key, *lease, times);
        }
        request
    }

    /// Renews leases on one node, but for those that are released by then.
    async fn renew_on(&self, client: &Client, node: &Node, held: &[(LeaseId, Key)]) {
        for some in held.chunks(AT_ONCE) {
            let request = self.renewal(client, some);
            if request.is_empty() {
                continue;
            }
            let answer = client.send_observed(Call::Renew, node, request).await;
            if answer.is_err_and(|error| !error.is_wrong_type()) {
                // There are more ticks before they expire.
                return;
            }
        }
    }
}

/// Puts together what is on one node; what is on none that is known stays together as well.
fn by_node<T>(
    client: &Client,
    all: Vec<T>,
    key: impl Fn(&T) -> &Key,
) -> Vec<(Option<Arc<Node>>, Vec<T>)> {
    let mut by_node = Vec::<(Option<Arc<Node>>, Vec<T>)>::new();
    for one in all {
        let node = client.node_of(key(&one));
        let is_same = |known: &Option<Arc<Node>>| match (known, &node) {
            (Some(known), Some(node)) => Arc::ptr_eq(known, node),
            (known, node) => known.is_none() && node.is_none(),
        };
        match by_node.iter_mut().find(|(known, _)| is_same(known)) {
            Some((_, group)) => group.push(one),
            None => by_node.push((node, vec![one])),
        }
    }
    by_node
}

impl LeaseTable {
    /// Takes out what is to be released.
    fn begin_releases(&mut self) -> Vec<Released> {
        let now = Instant::now();
        self.released.retain(|released| released.until > now);
        let releasing = std::mem::take(&mut self.released);
        self.releasing += releasing.len();
        releasing
    }

    /// Puts back what Redis could not be told of.
    fn end_releases(&mut self, releasing: Vec<Released>, told: bool) {
        self.releasing -= releasing.len();
        if !told {
            self.released.extend(releasing);
        }
    }
}
