//! The door to all shedding: what else is made of a configuration needs it alone.

use std::sync::Arc;

use weir_limit::Priority;
use weir_telemetry::{Disposition, Metrics, OverloadMetrics};

use super::{OverloadSettings, OverloadShedding};
use crate::concurrency::{
    ClientPriorities, ConcurrencyLimiter, ConcurrencySettings, RouteConcurrency,
};

/// What is configured of shedding once, for all routes and upstreams.
#[derive(Clone, Debug, Default)]
pub struct SheddingSettings {
    /// When workers are overloaded; none where that is not watched.
    pub overload: Option<OverloadSettings>,
    /// The priorities of clients that are not by their routes alone.
    pub clients: Arc<ClientPriorities>,
}

/// How the requests of a route are shed.
#[derive(Clone, Debug, Default)]
pub struct RouteShedding {
    /// The route's priority.
    pub(crate) priority: Priority,
    /// None where no request is shed for the sake of its worker.
    pub(crate) by_worker: Option<Arc<OverloadShedding>>,
    /// None where the upstream's requests in flight are not limited.
    pub(crate) by_upstream: Option<RouteConcurrency>,
}

impl RouteShedding {
    /// Whether an account may say another priority than the route's.
    pub(crate) fn concerns_accounts(&self) -> bool {
        let by_worker = self.by_worker.as_ref();
        let by_upstream = self.by_upstream.as_ref();
        by_worker.is_some_and(|it| it.concerns_accounts())
            || by_upstream.is_some_and(|it| it.clients.concern_accounts())
    }

    /// Counts a request that is shed for the sake of its upstream.
    pub(crate) fn count_by_upstream(&self) {
        if let Some(limited) = &self.by_upstream {
            limited.shed.inc();
        }
    }
}

/// The shedding of a configuration: by its workers and by its upstreams. Clones share it.
#[derive(Clone)]
pub struct Shedding {
    /// None where no request is shed for the sake of its worker.
    overload: Option<Arc<OverloadShedding>>,
    clients: Arc<ClientPriorities>,
    metrics: OverloadMetrics,
}

impl Shedding {
    /// Sheds by the priorities of routes and these of clients.
    pub fn new(settings: &SheddingSettings, metrics: &Metrics) -> Self {
        let metrics = metrics.overload();
        let clients = Arc::clone(&settings.clients);
        let of_workers = |overload| {
            let clients = Arc::clone(&clients);
            Arc::new(OverloadShedding::new(overload, clients, &metrics))
        };
        Self {
            overload: settings.overload.map(of_workers),
            clients,
            metrics,
        }
    }

    /// That of requests without a priority and an upstream of their own.
    pub(crate) fn by_worker(&self) -> RouteShedding {
        RouteShedding {
            by_worker: self.overload.clone(),
            ..RouteShedding::default()
        }
    }

    /// That of a route with this name and priority, to an upstream whose requests in flight are
    /// limited if there is a `limiter`, and by a proxy that may read bodies before it sends requests.
    pub fn of_route(
        &self,
        name: &str,
        priority: Priority,
        limiter: Option<&ConcurrencyLimiter>,
        reads_bodies_first: bool,
    ) -> RouteShedding {
        let by_upstream = limiter.map(|limiter| RouteConcurrency {
            limiter: limiter.clone(),
            priority,
            clients: Arc::clone(&self.clients),
            reads_bodies_first,
            shed: self.metrics.of_route(name),
        });
        RouteShedding {
            priority,
            by_upstream,
            ..self.by_worker()
        }
    }

    /// What requests get that are shed, if any are: of all routes, or of one whose upstream has such
    /// a limit.
    pub fn disposition(&self, of_upstream: Option<&ConcurrencySettings>) -> Option<Disposition> {
        let by_worker = self.overload.as_ref().is_some_and(|it| it.sheds());
        let by_upstream = of_upstream.is_some_and(ConcurrencySettings::sheds);
        (by_worker || by_upstream).then_some(Disposition::Shed)
    }
}
