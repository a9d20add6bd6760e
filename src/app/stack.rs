//! The tower stack: every layer of the gateway, in the order in which a request meets them.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode, request};
use http_body_util::Full;
use tower::ServiceBuilder;

use crate::config::{Settings, StoreSettings};
use crate::middleware::{
    AccessControl, AccessLog, AccessLogLayer, BackgroundTasks, ErrorFormat, Forwarded,
    ForwardedLayer, Identify, IdentifyLayer, OnDenied, RateLimit, RateLimitLayer, RejectInvalid,
    RejectInvalidLayer, Route, RouteLayer, RoutePolicy, RouteState, TarpitSlots, Treatment,
    UpstreamId, UpstreamRouter,
};
use crate::problem::Problem;
use crate::proxy;
use crate::rules::{Enforcement, PathFault, path_fault};
use crate::store::{Leases, OnFailure, Store};
use crate::telemetry::{Disposition, Metrics};

/// The gateway as one service, over a service for each route.
pub type Stack<S> =
    Identify<Route<AccessLog<RejectInvalid<RateLimit<Forwarded<UpstreamRouter<S>>>>>>>;

/// The layers of a configuration, to be put on each worker's own services.
pub struct Layers {
    identify: IdentifyLayer,
    route: RouteLayer,
    access_log: AccessLogLayer,
    errors: ErrorFormat,
    forwarded: ForwardedLayer,
    access: AccessControl,
    metrics: Arc<Metrics>,
}

/// What is answered without an upstream, to every client.
pub(super) fn refusal(head: &request::Parts) -> Option<Response<Full<Bytes>>> {
    let Some(fault) = path_fault(head.uri.path()) else {
        return proxy::refusal(head);
    };
    let detail = match fault {
        PathFault::LeadsUpward => {
            "The path must not lead upward; resolve its `..` segments before you send it."
        }
        _ => "The path must not have control characters; leave them out.",
    };
    Some(Problem::new(StatusCode::BAD_REQUEST, detail).into_response())
}

impl Layers {
    /// Prepares all that workers share. `tarpit_slots` are those of the process.
    pub fn new(settings: &Settings, tarpit_slots: &TarpitSlots, metrics: &Arc<Metrics>) -> Self {
        let access = AccessControl::new(settings.access.clone(), tarpit_slots, metrics);
        let routes = settings.routes.iter().map(|route| {
            let decisions = possible_decisions(settings, Some(&route.policy));
            metrics.route(&route.policy.name).expect(decisions);
            let (policy, upstream) = (route.policy.clone(), UpstreamId(route.upstream));
            let state = RouteState::new(policy, upstream, &access, metrics);
            (route.matcher.clone(), state)
        });
        let route = RouteLayer::new(routes);
        let has_cors = settings
            .routes
            .iter()
            .any(|route| route.policy.cors.is_some());
        metrics
            .unrouted()
            .expect(possible_decisions(settings, None));
        Self {
            identify: IdentifyLayer::new(settings.client.clone(), settings.account.clone()),
            route,
            access_log: AccessLogLayer::new(settings.log_queries, metrics),
            errors: ErrorFormat::new(settings.error_pages.clone(), has_cors),
            forwarded: ForwardedLayer::new(settings.client.header.clone()),
            access,
            metrics: Arc::clone(metrics),
        }
    }

    /// All routes.
    pub fn routes(&self) -> impl Iterator<Item = &Arc<RouteState>> {
        self.route.routes()
    }

    /// Stacks the layers on a worker's services, with buckets in its store and places in flight had
    /// from `leases`. `tasks` tells what is still under way there when all requests are
    /// answered.
    pub fn stack<S>(
        &self,
        store: Arc<dyn Store>,
        leases: Arc<dyn Leases>,
        tasks: &BackgroundTasks,
        services: UpstreamRouter<S>,
    ) -> Stack<S> {
        let rate_limit = RateLimitLayer::by_route(store, &self.metrics)
            .with_leases(leases)
            .with_tasks(tasks.clone())
            .with_access_control(&self.access);
        ServiceBuilder::new()
            // Who sent it; the log, the limits and the forwarding fields all need to know.
            .layer(self.identify.clone())
            // Which route it takes; the log's labels and everything below depend on it.
            .layer(self.route.clone())
            // Outside of all that can answer, so that every answer is logged.
            .layer(self.access_log.clone())
            // Outside of the limits: a request that is never forwarded gets the same response for
            // every client; otherwise it would reveal a shadow ban. Outside of all layers that
            // respond, so that each response suits the client.
            .layer(RejectInvalidLayer::new(refusal).with_error_format(self.errors.clone()))
            // The only one to decide, about bans and limits at once: what passes here reaches the
            // upstream.
            .layer(rate_limit)
            // Inside of the limits, so that a flood of denied requests does not pay for it.
            .layer(self.forwarded.clone())
            .service(services)
    }
}

/// The decisions that requests of a route can get, or those without a route, so that metrics show
/// them before the first is made.
fn possible_decisions(settings: &Settings, route: Option<&RoutePolicy>) -> Vec<Disposition> {
    let limited = route.filter(|route| !route.limits.is_empty());
    // What is refused before it is counted is unlimited on every route.
    let mut all = vec![Disposition::Unlimited];
    all.extend(route.is_none().then_some(Disposition::Unrouted));
    all.extend(limited.map(decision_of_denial));
    all.extend(access_decisions(settings).flatten());
    if limited.is_some() || !settings.access.bans.is_empty() {
        all.push(Disposition::Allowed);
        all.extend(decision_without_store(settings));
    }
    if partly_enforced(settings, route) {
        all.push(Disposition::WouldDeny);
        // A dry run stops no request, whatever the store does.
        all.extend(decision_without_store(settings).map(|_| Disposition::FailedOpen));
    }
    all
}

fn decision_of_denial(policy: &RoutePolicy) -> Disposition {
    match policy.on_denied {
        OnDenied::Reject(_) => Disposition::Denied,
        OnDenied::Shadow(_) => Disposition::Shadowed,
    }
}

/// What the banned and the blocked get.
fn access_decisions(
    settings: &Settings,
) -> impl Iterator<Item = impl Iterator<Item = Disposition>> {
    let bans = settings.access.bans.iter().map(|ban| &ban.treatment);
    let blocks = !settings.access.lists.block.is_empty();
    let treatments = bans.chain(blocks.then_some(&settings.access.blocked));
    treatments.map(|treatment| {
        let (usual, too_many) = match treatment {
            Treatment::Reject(_) => (Disposition::Denied, None),
            Treatment::Shadow(_) => (Disposition::Shadowed, None),
            Treatment::Divert(_) => (Disposition::Diverted, None),
            Treatment::Tarpit(_) => (Disposition::Tarpitted, Some(Disposition::Denied)),
            Treatment::Drop => (Disposition::Dropped, None),
        };
        [usual].into_iter().chain(too_many)
    })
}

/// What requests can get while the store cannot be reached.
fn decision_without_store(settings: &Settings) -> Option<Disposition> {
    let StoreSettings::Redis(redis) = &settings.process.store else {
        return None;
    };
    match redis.guard.on_failure {
        OnFailure::Allow => Some(Disposition::FailedOpen),
        OnFailure::Deny => Some(Disposition::Unavailable),
        OnFailure::Local => None,
    }
}

fn partly_enforced(settings: &Settings, route: Option<&RoutePolicy>) -> bool {
    let limits = route.iter().flat_map(|route| &route.limits);
    let bans = settings.access.bans.iter();
    limits
        .map(|limit| limit.enforcement)
        .chain(bans.map(|limit| limit.enforcement))
        .any(Enforcement::is_partial)
}
