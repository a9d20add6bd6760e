//! The state that outlasts the connections to a node of a Cluster: its address, its circuit breaker,
//! and its part of what all nodes share.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::sync::Notify;
use weir_store::Breaker;
use weir_store::{BreakerSettings, Reachability, StoreError};

use super::super::connection::MemoryShare;
use super::super::endpoint::HostPort;
use super::super::expiry::ExpiryPlaces;
use super::slots::slot_of;

/// How many keys are tried to find one of a node: enough for one that serves a single slot.
const MAX_PROBES: u32 = 1 << 18;

/// A node, as several parts of the process know it.
pub(crate) struct Member {
    pub(crate) address: HostPort,
    pub(crate) name: Arc<str>,
    pub(crate) shared: SharedMemory,
    /// None until the store is guarded.
    breaker: OnceLock<Arc<Breaker>>,
    /// The first and last of the slots that it serves.
    pub(super) slots: Mutex<Vec<(u16, u16)>>,
    /// Wakes the task that reads the map of slots.
    changed: Arc<Notify>,
}

/// The memory that the connections to all nodes share, so that it is bounded as a whole.
#[derive(Clone, Default)]
pub(crate) struct SharedMemory {
    pub(crate) requests: MemoryShare,
    pub(crate) expiries: ExpiryPlaces,
}

impl Member {
    pub(super) fn new(address: HostPort, shared: SharedMemory, changed: Arc<Notify>) -> Self {
        Self {
            name: address.to_string().into(),
            address,
            shared,
            breaker: OnceLock::new(),
            slots: Mutex::default(),
            changed,
        }
    }

    /// Gives the node a breaker, which `reachability` counts.
    pub(super) fn guard(&self, settings: BreakerSettings, reachability: &Arc<Reachability>) {
        self.breaker.get_or_init(|| {
            let (name, reachability) = (Arc::clone(&self.name), Arc::clone(reachability));
            Arc::new(Breaker::for_node(name, settings, reachability))
        });
    }

    pub(crate) fn breaker(&self) -> Option<Arc<Breaker>> {
        self.breaker.get().cloned()
    }

    /// The node's connection is gone, or its role, or slots.
    pub(crate) fn has_changed(&self) {
        self.changed.notify_one();
    }

    /// Whether calls are known to fail.
    pub(crate) fn is_given_up(&self) -> bool {
        self.breaker.get().is_some_and(|breaker| breaker.is_open())
    }

    pub(crate) fn record(&self, failure: Option<&StoreError>) {
        if let Some(breaker) = self.breaker.get() {
            breaker.record(failure);
        }
        if failure.is_some_and(|failure| !failure.is_partial()) {
            self.changed.notify_one();
        }
    }

    /// The failure of this node in a call of several.
    pub(crate) fn failure(&self, source: StoreError) -> StoreError {
        StoreError::Node {
            node: Arc::clone(&self.name),
            allowed: None,
            source: Box::new(source),
        }
    }

    /// A key that begins like this and is one of this node's, unless it serves no slot.
    pub(crate) fn own_key(&self, beginning: &str) -> Option<String> {
        let slots = self.slots.lock().clone();
        let serves = |slot| {
            slots
                .iter()
                .any(|(first, last)| (*first..=*last).contains(&slot))
        };
        let mut keys = (0..MAX_PROBES).map(|number| format!("{beginning}:{number}"));
        keys.find(|key| !slots.is_empty() && serves(slot_of(key.as_bytes())))
    }
}
