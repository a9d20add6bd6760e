//! The circuit breaker of a remote store, or of one of its nodes: after enough failures no call
//! waits for it, until it is back. A task opens and closes it, which pings while it is closed and
//! probes while it is open.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{self, Instant};

use crate::{HealthCheck, NodeChange, Observer, StoreError};

/// The interval of pings while nothing else shows that the server is reachable.
const PING_EVERY: Duration = Duration::from_secs(1);

/// A server that fails sooner than this after it came back did not really come back.
const STEADY: Duration = Duration::from_secs(10);

/// The longest pause between two probes of such a server.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// When a breaker opens, and how often it is tried to close it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerSettings {
    /// The breaker opens after this many failures in a row, and at once when the connection is
    /// lost.
    pub failures: u32,
    /// While it is open, the store is probed about this often. No request serves as a probe.
    pub retry: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            failures: 5,
            retry: Duration::from_millis(100),
        }
    }
}

/// Whether the store can be reached by all workers of a process, and each of its nodes.
///
/// Each worker has a connection and a breaker of its own, or one for each node; this counts the
/// open ones, so that a change is reported once for all.
pub struct Reachability {
    /// Of breakers of the store as a whole.
    open: AtomicUsize,
    /// Held while a change is reported, so that reports come in the order of the changes.
    nodes: Mutex<HashMap<Arc<str>, NodeBreakers>>,
    /// What servers refuse although they can be reached, and how many breakers were told so.
    refusals: Mutex<HashMap<Refusal, usize>>,
    observer: Arc<dyn Observer>,
}

/// Why the server does not carry out what some limits need, or this node of it.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Refusal {
    node: Option<Arc<str>>,
    why: String,
}

/// The breakers of one node.
#[derive(Default)]
struct NodeBreakers {
    all: usize,
    open: usize,
    /// Reported as unreachable, and not answering any worker that still asks it.
    is_lost: bool,
}

impl NodeBreakers {
    /// Whether all workers that ask it reach it again.
    fn is_found(&mut self) -> bool {
        self.open == 0 && std::mem::take(&mut self.is_lost)
    }
}

impl Reachability {
    /// Reachable by all workers, until one says otherwise.
    pub fn new(observer: Arc<dyn Observer>) -> Self {
        Self {
            open: AtomicUsize::new(0),
            nodes: Mutex::default(),
            refusals: Mutex::default(),
            observer,
        }
    }

    /// What some server refuses that limits of the configuration need, although it can be reached.
    pub fn refusals(&self) -> Vec<String> {
        let refusals = self.refusals.lock();
        let mut refusals: Vec<_> = refusals.keys().map(Refusal::to_string).collect();
        refusals.sort_unstable();
        refusals
    }

    fn refuses(&self, refusal: Refusal, cause: &StoreError) {
        let mut refusals = self.refusals.lock();
        let node = refusal.node.clone();
        let breakers = refusals.entry(refusal).or_default();
        *breakers += 1;
        if *breakers == 1 {
            self.observer.refuses_commands(node.as_deref(), cause);
        }
    }

    fn refuses_no_more(&self, refusal: &Refusal) {
        let mut refusals = self.refusals.lock();
        let Some(breakers) = refusals.get_mut(refusal) else {
            return;
        };
        *breakers -= 1;
        if *breakers == 0 {
            refusals.remove(refusal);
            if !refusals.keys().any(|other| other.node == refusal.node) {
                self.observer.refuses_no_command(refusal.node.as_deref());
            }
        }
    }

    /// Whether every worker reaches the store, with all of its nodes.
    pub fn is_reachable(&self) -> bool {
        self.open.load(Ordering::SeqCst) == 0 && self.unreachable_nodes().is_empty()
    }

    /// The nodes that some worker does not reach, in order.
    pub fn unreachable_nodes(&self) -> Vec<Arc<str>> {
        let nodes = self.nodes.lock();
        let lost = nodes.iter().filter(|(_, breakers)| breakers.is_lost);
        let mut names: Vec<_> = lost.map(|(name, _)| Arc::clone(name)).collect();
        names.sort_unstable();
        names
    }

    /// The observer that is told of calls and of changes.
    pub fn observer(&self) -> &Arc<dyn Observer> {
        &self.observer
    }

    fn opened(&self, node: Option<&Arc<str>>, cause: &StoreError) {
        let mut nodes = self.nodes.lock();
        match node.and_then(|node| Some((node, nodes.get_mut(node)?))) {
            Some((node, breakers)) => {
                breakers.open += 1;
                if !std::mem::replace(&mut breakers.is_lost, true) {
                    let change = NodeChange::Unreachable(cause);
                    self.observer.node_changed(node, change);
                }
            }
            None => {
                if self.open.fetch_add(1, Ordering::SeqCst) == 0 {
                    self.observer.state_changed(false, Some(cause));
                }
            }
        }
    }

    fn closed(&self, node: Option<&Arc<str>>) {
        let mut nodes = self.nodes.lock();
        match node.and_then(|node| Some((node, nodes.get_mut(node)?))) {
            Some((node, breakers)) => {
                breakers.open = breakers.open.saturating_sub(1);
                if breakers.is_found() {
                    self.observer.node_changed(node, NodeChange::Reachable);
                }
            }
            None => {
                if self.open.fetch_sub(1, Ordering::SeqCst) == 1 {
                    self.observer.state_changed(true, None);
                }
            }
        }
    }

    /// A worker whose breaker is closed has got an answer from a node.
    fn answered(&self, node: &Arc<str>) {
        let mut nodes = self.nodes.lock();
        if nodes.get_mut(node).is_some_and(NodeBreakers::is_found) {
            self.observer.node_changed(node, NodeChange::Reachable);
        }
    }

    /// A worker has a breaker for a node.
    fn joined(&self, node: &Arc<str>) {
        let mut nodes = self.nodes.lock();
        let breakers = nodes.entry(Arc::clone(node)).or_default();
        breakers.all += 1;
        if breakers.all == 1 {
            self.observer.node_changed(node, NodeChange::Joined);
        }
    }

    /// A worker is gone, or a node is gone from its view. If the breaker was open, the node may be
    /// as dead as before, and other workers may not have asked it yet.
    fn abandoned(&self, node: Option<&Arc<str>>, was_open: bool) {
        let mut nodes = self.nodes.lock();
        let Some(node) = node else {
            if was_open {
                self.open.fetch_sub(1, Ordering::SeqCst);
            }
            return;
        };
        let Some(breakers) = nodes.get_mut(node) else {
            return;
        };
        breakers.all -= 1;
        breakers.open -= usize::from(was_open);
        if breakers.all == 0 {
            nodes.remove(node);
            self.observer.node_changed(node, NodeChange::Left);
        }
    }
}

/// One worker's breaker, of the store as a whole or of one node.
pub struct Breaker {
    node: Option<Arc<str>>,
    settings: BreakerSettings,
    /// Failures in a row.
    failures: AtomicU32,
    open: watch::Sender<bool>,
    /// What the server refuses although it can be reached.
    refusal: Mutex<Option<Refusal>>,
    reachability: Arc<Reachability>,
}

impl Breaker {
    pub(super) fn new(settings: BreakerSettings, reachability: Arc<Reachability>) -> Self {
        Self::new_for(None, settings, reachability)
    }

    /// The breaker of the node at this address.
    pub fn for_node(
        node: Arc<str>,
        settings: BreakerSettings,
        reachability: Arc<Reachability>,
    ) -> Self {
        reachability.joined(&node);
        Self::new_for(Some(node), settings, reachability)
    }

    fn new_for(
        node: Option<Arc<str>>,
        settings: BreakerSettings,
        reachability: Arc<Reachability>,
    ) -> Self {
        Self {
            node,
            settings,
            failures: AtomicU32::new(0),
            open: watch::Sender::new(false),
            refusal: Mutex::default(),
            reachability,
        }
    }

    pub(super) fn settings(&self) -> BreakerSettings {
        self.settings
    }

    /// Whether no call is to be made.
    pub fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    pub(super) fn observer(&self) -> &dyn Observer {
        &*self.reachability.observer
    }

    /// Waits until the breaker is open.
    pub(super) async fn opened(&self) {
        let mut changes = self.open.subscribe();
        // The sender is this breaker's own, so it cannot be gone.
        let _ = changes.wait_for(|is_open| *is_open).await;
    }

    /// Counts how a call went. A success that comes in late does not close an open breaker.
    pub fn record(&self, failure: Option<&StoreError>) {
        // A store that refuses a command of one limit is there for all others, and one that lost a
        // node is there for what is on others.
        let Some(error) = failure.filter(|error| !error.is_partial()) else {
            self.failures.store(0, Ordering::Relaxed);
            return;
        };
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if error.is_out_of_reach() || failures >= self.settings.failures {
            self.open(error);
        }
    }

    pub(super) fn open(&self, cause: &StoreError) {
        if self.switch(true) {
            self.reachability.opened(self.node.as_ref(), cause);
        }
    }

    pub(super) fn close(&self) {
        self.failures.store(0, Ordering::Relaxed);
        if self.switch(false) {
            self.reachability.closed(self.node.as_ref());
        }
    }

    /// The server still cannot be used, although the breaker is open.
    fn failed_again(&self, cause: &StoreError) {
        self.observer()
            .still_unreachable(self.node.as_deref(), cause);
    }

    /// The server has answered while the breaker was closed. It may refuse commands that only some
    /// limits need.
    fn answered(&self, refusal: Option<&StoreError>) {
        if let Some(node) = &self.node {
            self.reachability.answered(node);
        }
        let mut known = self.refusal.lock();
        let found = refusal.map(|error| Refusal::new(self.node.as_ref(), error));
        if *known == found {
            return;
        }
        if let (Some(found), Some(cause)) = (found.clone(), refusal) {
            self.reachability.refuses(found, cause);
        }
        if let Some(earlier) = std::mem::replace(&mut *known, found) {
            self.reachability.refuses_no_more(&earlier);
        }
    }

    /// Tells whether this changed anything.
    fn switch(&self, open: bool) -> bool {
        self.open
            .send_if_modified(|state| std::mem::replace(state, open) != open)
    }
}

impl Refusal {
    fn new(node: Option<&Arc<str>>, error: &StoreError) -> Self {
        let source = error.source().map(ToString::to_string);
        Self {
            node: node.cloned(),
            why: source.unwrap_or_else(|| error.to_string()),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.node {
            None => f.write_str(&self.why),
            Some(node) => write!(f, "node {node}: {}", self.why),
        }
    }
}

impl Drop for Breaker {
    fn drop(&mut self) {
        if let Some(refusal) = self.refusal.get_mut().take() {
            self.reachability.refuses_no_more(&refusal);
        }
        self.reachability
            .abandoned(self.node.as_ref(), self.is_open());
    }
}

/// Waits that double up to a greatest one, each cut at random by up to a half, so that many
/// gateways do not come back to a Redis in step.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    next: Duration,
    greatest: Duration,
}

impl Backoff {
    /// Begins with the wait `first`.
    pub fn new(first: Duration, greatest: Duration) -> Self {
        Self {
            next: first.min(greatest),
            greatest,
        }
    }

    /// The next wait.
    pub fn wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.greatest);
        wait.mul_f64(rand::random_range(0.5..=1.0))
    }
}

/// A task that ends when this is dropped.
pub struct CircuitSupervisor(JoinHandle<()>);

impl Drop for CircuitSupervisor {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl CircuitSupervisor {
    /// Supervises a breaker by what the server says. An answer that takes longer than `timeout` is
    /// not one. Must be called on a tokio runtime.
    pub fn spawn(server: Arc<impl HealthCheck>, breaker: Arc<Breaker>, timeout: Duration) -> Self {
        let circuit = Circuit {
            server,
            breaker,
            timeout,
        };
        Self(tokio::spawn(circuit.supervise()))
    }
}

struct Circuit<S> {
    server: Arc<S>,
    breaker: Arc<Breaker>,
    timeout: Duration,
}

impl<S: HealthCheck> Circuit<S> {
    /// Opens the breaker of a server that is silently gone, and closes it when the server is back.
    async fn supervise(self) {
        let retry = self.breaker.settings().retry;
        let backoff = || Backoff::new(retry, MAX_PAUSE);
        let mut pause = backoff();
        loop {
            let closed_at = Instant::now();
            self.while_closed().await;
            if closed_at.elapsed() < STEADY {
                // A server that fails as soon as it is asked again is given a longer pause each
                // time.
                time::sleep(pause.wait()).await;
            } else {
                pause = backoff();
            }
            self.while_open().await;
            self.breaker.close();
        }
    }

    /// Returns when the breaker is open; pings the server meanwhile. The first ping comes at once,
    /// so that a server that was never there is known before a request comes.
    async fn while_closed(&self) {
        while !self.breaker.is_open() {
            match self.server.ping().await {
                Ok(()) => self.breaker.answered(None),
                Err(error) if error.is_forbidden() => self.breaker.answered(Some(&error)),
                Err(error) => self.breaker.open(&error),
            }
            tokio::select! {
                () = self.breaker.opened() => {}
                // Were it left to the next call, the server would be called within reach again as
                // soon as the other workers have found it back.
                _ = self.server.lost() => {}
                () = time::sleep(PING_EVERY) => {}
            }
        }
    }

    /// Returns when the server decides again. The first waits are shorter than asked for, in case
    /// the connection was only cut.
    async fn while_open(&self) {
        let retry = self.breaker.settings().retry;
        let mut backoff = Backoff::new(retry / 8, retry);
        while !self.decides_in_time().await {
            time::sleep(backoff.wait()).await;
        }
    }

    /// Whether the server decides now, and as fast as calls need it.
    async fn decides_in_time(&self) -> bool {
        let start = Instant::now();
        match self.server.probe().await {
            Ok(()) => start.elapsed() <= self.timeout,
            Err(error) => {
                self.breaker.failed_again(&error);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::support::Recorder;

    fn breaker(recorder: &Arc<Recorder>) -> (Breaker, Arc<Reachability>) {
        let observer: Arc<dyn Observer> = Arc::<Recorder>::clone(recorder);
        let reachability = Arc::new(Reachability::new(observer));
        let settings = BreakerSettings::default();
        let breaker = Breaker::new(settings, Arc::clone(&reachability));
        (breaker, reachability)
    }

    #[test]
    fn it_opens_after_five_failures_in_a_row() {
        let (breaker, _) = breaker(&Arc::default());
        for _ in 0..4 {
            breaker.record(Some(&StoreError::Deadline));
        }
        breaker.record(None);
        for _ in 0..4 {
            breaker.record(Some(&StoreError::Deadline));
        }
        assert!(!breaker.is_open());
        breaker.record(Some(&StoreError::Deadline));
        assert!(breaker.is_open());
    }

    #[test]
    fn it_opens_at_once_when_the_connection_is_lost() {
        let (breaker, _) = breaker(&Arc::default());
        breaker.record(Some(&StoreError::OutOfReach));
        assert!(breaker.is_open());
    }

    #[test]
    fn a_late_success_does_not_close_it() {
        let (breaker, _) = breaker(&Arc::default());
        breaker.open(&StoreError::Deadline);
        breaker.record(None);
        assert!(breaker.is_open());
        breaker.close();
        assert!(!breaker.is_open());
    }

    /// Calls that were under way when it opened go on to fail while it is open.
    #[test]
    fn what_failed_before_it_closed_does_not_open_it_again() {
        let (breaker, _) = breaker(&Arc::default());
        for _ in 0..8 {
            breaker.record(Some(&StoreError::Deadline));
        }
        breaker.close();
        for _ in 0..4 {
            breaker.record(Some(&StoreError::Deadline));
        }
        assert!(!breaker.is_open());
        breaker.record(Some(&StoreError::Deadline));
        assert!(breaker.is_open());
    }

    #[test]
    fn an_error_of_a_store_that_is_there_is_one_failure_and_no_more() {
        let (breaker, _) = breaker(&Arc::default());
        for _ in 0..4 {
            breaker.record(Some(&StoreError::Failed("no memory".into())));
            assert!(!breaker.is_open());
        }
        breaker.record(Some(&StoreError::Failed("no memory".into())));
        assert!(breaker.is_open());
    }

    #[test]
    fn a_change_is_reported_once_however_many_workers_see_it() {
        let recorder = Arc::<Recorder>::default();
        let (one, reachability) = breaker(&recorder);
        let other = Breaker::new(BreakerSettings::default(), Arc::clone(&reachability));
        for breaker in [&one, &other, &one] {
            breaker.open(&StoreError::OutOfReach);
        }
        assert!(!reachability.is_reachable());
        one.close();
        assert_eq!(recorder.changes(), [false]);
        other.close();
        other.close();
        assert_eq!(recorder.changes(), [false, true]);
        assert!(reachability.is_reachable());
    }

    #[test]
    fn a_worker_that_is_gone_holds_nobody_unreachable() {
        let recorder = Arc::<Recorder>::default();
        let (breaker, reachability) = breaker(&recorder);
        breaker.open(&StoreError::OutOfReach);
        drop(breaker);
        assert!(reachability.is_reachable());
        assert_eq!(recorder.changes(), [false]);
    }

    #[test]
    fn a_node_is_reported_by_itself_and_forgotten_with_its_last_breaker() {
        let recorder = Arc::<Recorder>::default();
        let (whole, reachability) = breaker(&recorder);
        let for_node = |name: &str| {
            Breaker::for_node(
                name.into(),
                BreakerSettings::default(),
                Arc::clone(&reachability),
            )
        };
        let (one, other, last) = (for_node("a:1"), for_node("a:1"), for_node("b:2"));
        for breaker in [&one, &other, &last] {
            breaker.open(&StoreError::OutOfReach);
        }
        assert!(!whole.is_open() && !reachability.is_reachable());
        assert_eq!(
            reachability.unreachable_nodes(),
            ["a:1", "b:2"].map(Arc::from)
        );
        one.close();
        last.close();
        drop(other);
        assert_eq!(reachability.unreachable_nodes(), [Arc::from("a:1")]);
        one.answered(None);
        assert!(reachability.is_reachable());
        drop((one, last));
        let told = [
            "a:1 joined",
            "b:2 joined",
            "a:1 unreachable",
            "b:2 unreachable",
            "b:2 reachable",
            "a:1 reachable",
            "a:1 left",
            "b:2 left",
        ];
        assert_eq!(recorder.node_changes(), told);
        assert!(recorder.changes().is_empty());
    }

    /// One worker learns of a dead node that the other, which could not reach it, drops.
    #[test]
    fn a_dead_node_that_a_worker_drops_is_not_reported_as_within_reach() {
        let recorder = Arc::<Recorder>::default();
        let (_whole, reachability) = breaker(&recorder);
        let for_node = || {
            let settings = BreakerSettings::default();
            Breaker::for_node("a:1".into(), settings, Arc::clone(&reachability))
        };
        let one = for_node();
        one.open(&StoreError::OutOfReach);
        let other = for_node();
        drop(one);
        assert!(!reachability.is_reachable());
        other.open(&StoreError::OutOfReach);
        drop(other);
        assert!(reachability.is_reachable());
        let told = ["a:1 joined", "a:1 unreachable", "a:1 left"];
        assert_eq!(recorder.node_changes(), told);
    }

    #[test]
    fn what_fails_on_a_node_does_not_open_the_breaker_of_the_whole() {
        let (breaker, _) = breaker(&Arc::default());
        for _ in 0..10 {
            breaker.record(Some(&StoreError::Node {
                node: "a:1".into(),
                allowed: None,
                source: Box::new(StoreError::OutOfReach),
            }));
        }
        assert!(!breaker.is_open());
    }

    #[test]
    fn waits_double_up_to_the_greatest_and_are_cut_by_at_most_a_half() {
        let ms = Duration::from_millis;
        for _ in 0..100 {
            let mut backoff = Backoff::new(ms(50), ms(150));
            for longest in [50, 100, 150, 150].map(ms) {
                let wait = backoff.wait();
                assert!(wait <= longest && wait >= longest / 2, "{wait:?}");
            }
        }
    }
}
