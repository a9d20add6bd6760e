//! The door to all shedding: what else is made of a configuration needs it alone.

use std::sync::Arc;

use weir_limit::Priority;
use weir_telemetry::{Disposition, Metrics};

use super::{OverloadSettings, OverloadShedding};
use crate::concurrency::{
    ClientPriorities, ConcurrencyLimiter, ConcurrencySettings, RouteConcurrency,
};
use crate::route::RouteState;

/// The shedding of a configuration: by its workers and by its upstreams. Clones share it.
#[derive(Clone)]
pub struct Shedding {
    /// None where no request is shed for the sake of its worker.
    overload: Option<Arc<OverloadShedding>>,
    clients: Arc<ClientPriorities>,
}

impl Shedding {
    /// Sheds by the priorities of routes and these of clients.
    pub fn new(
        overload: Option<OverloadSettings>,
        clients: &Arc<ClientPriorities>,
        metrics: &Metrics,
    ) -> Self {
        let of_workers = |settings| {
            let clients = Arc::clone(clients);
            Arc::new(OverloadShedding::new(settings, clients, metrics.overload()))
        };
        Self {
            overload: overload.map(of_workers),
            clients: Arc::clone(clients),
        }
    }

    /// What is shed for the sake of workers, if anything.
    pub fn of_workers(&self) -> Option<Arc<OverloadShedding>> {
        self.overload.clone()
    }

    /// A route with this priority, to an upstream whose requests in flight are limited if there is a
    /// `limiter`, and by a proxy that may read bodies before it sends requests.
    pub fn on_route(
        &self,
        route: Arc<RouteState>,
        priority: Priority,
        limiter: Option<&ConcurrencyLimiter>,
        reads_bodies_first: bool,
    ) -> Arc<RouteState> {
        let overload = self.overload.as_ref();
        let by_account = overload.is_some_and(|it| it.concerns_accounts());
        let concurrency = limiter.map(|limiter| RouteConcurrency {
            limiter: limiter.clone(),
            priority,
            clients: Arc::clone(&self.clients),
            reads_bodies_first,
        });
        let route = route.with_priority(priority, by_account);
        route.with_concurrency(concurrency)
    }

    /// What requests get that are shed, if any are: of all routes, or of one whose upstream has such
    /// a limit.
    pub fn disposition(&self, of_upstream: Option<&ConcurrencySettings>) -> Option<Disposition> {
        let by_worker = self.overload.as_ref().is_some_and(|it| it.sheds());
        let by_upstream = of_upstream.is_some_and(ConcurrencySettings::sheds);
        (by_worker || by_upstream).then_some(Disposition::Shed)
    }
}
