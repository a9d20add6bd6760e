//! Sheds requests while their worker has more to do than its CPU can handle, the least important
//! first, before anything else is done for them. How much is shed is the worker's, which is a
//! thread; it is measured elsewhere.

#[cfg(feature = "config")]
mod config;
mod response;
mod shedding;

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http::Extensions;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Priority, ShedLevel};
use weir_rules::Enforcement;
use weir_telemetry::{OverloadMetrics, OverloadShed};

use crate::concurrency::ClientPriorities;
use crate::{ClientIdentity, Shed};
#[cfg(feature = "config")]
pub use config::OverloadKeys;
pub(crate) use response::shed_response;
pub use shedding::{RouteShedding, Shedding, SheddingSettings};

/// Makes sure that nobody can tell which clients are shed. Reloads leave those as they are, on all
/// listeners.
static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);

thread_local! {
    static LEVEL: Cell<ShedLevel> = const { Cell::new(ShedLevel::NONE) };
}

/// Sets how much this thread sheds from now on.
pub fn set_shed_level(level: ShedLevel) {
    LEVEL.set(level);
}

/// When workers are overloaded, and what that means for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverloadSettings {
    /// How late a worker may be.
    pub max_delay: Duration,
    /// Whether requests are shed, or only logged and counted.
    pub enforcement: Enforcement,
}

impl OverloadSettings {
    /// Whether any request is shed, and not only logged and counted.
    pub fn sheds(&self) -> bool {
        self.enforcement > Enforcement::NONE
    }
}

/// Sheds requests of workers that are overloaded.
#[derive(Clone, Debug)]
pub(crate) struct OverloadShedding {
    enforcement: Enforcement,
    clients: Arc<ClientPriorities>,
    /// By priority.
    counters: [OverloadShed; Priority::ALL.len()],
}

impl OverloadShedding {
    /// Sheds by the priorities of routes and these of clients.
    fn new(
        settings: OverloadSettings,
        clients: Arc<ClientPriorities>,
        metrics: &OverloadMetrics,
    ) -> Self {
        let counters = Priority::ALL.map(|priority| metrics.of_priority(priority.as_str()));
        Self {
            enforcement: settings.enforcement,
            clients,
            counters,
        }
    }

    /// Whether any request is shed, and not only logged and counted.
    fn sheds(&self) -> bool {
        self.enforcement > Enforcement::NONE
    }

    /// Whether this worker has too much to do, and sheds anything.
    #[inline(always)]
    pub(super) fn is_shedding(&self) -> bool {
        LEVEL.get() != ShedLevel::NONE
    }

    /// Whether priorities go by accounts.
    pub(super) fn concerns_accounts(&self) -> bool {
        self.clients.concern_accounts()
    }

    /// Whether a request to a route of this priority is shed, or would be, and counts it.
    pub(super) fn shed(
        &self,
        route: Priority,
        extensions: &Extensions,
        now: Timestamp,
    ) -> Option<OwnShed> {
        let identity = ClientIdentity::from_extensions(extensions);
        let priority = route.of_client(self.clients.of(identity));
        let client = identity.map_or(0, ClientIdentity::fingerprint);
        let drawing = SECRET.hash_one(client);
        if !LEVEL.get().sheds(priority, drawing, now) {
            return None;
        }
        let is_enforced = self.enforcement.acts_on_client(client);
        if let Some(counters) = self.counters.get(priority as usize) {
            counters.count(is_enforced);
        }
        let shed = Shed {
            by: "gateway",
            priority,
        };
        Some(match is_enforced {
            true => OwnShed::Shed(shed, ShedLevel::retry_in(drawing, now)),
            false => OwnShed::Marked(shed),
        })
    }
}

/// What becomes of a request for the sake of its worker.
pub(super) enum OwnShed {
    /// It is shed, and its client may be let in after this time.
    Shed(Shed, Nanos),
    /// It would be without a dry run, and goes on with this mark.
    Marked(Shed),
}
