//! The tower stack: every layer of the gateway, in the order in which a request meets them.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode, request};
use http_body_util::Full;
use tower::ServiceBuilder;

use super::expected;
use crate::config::Settings;
use crate::middleware::{
    AccessLog, AccessLogLayer, BackgroundTasks, Forwarded, ForwardedLayer, Gate, Identify,
    IdentifyLayer, OwnAnswers, RateLimit, RateLimitLayer, RejectInvalid, RejectInvalidLayer, Route,
    RouteLayer, RouteState, TarpitSlots, ToUpstream, UpstreamId,
};
use crate::problem::Problem;
use crate::proxy;
use crate::rules::{PathFault, path_fault};
use crate::store::{Leases, Store};
use crate::telemetry::Metrics;

/// The gateway as one service, over a service for each route.
pub type Stack<S> = Identify<Route<AccessLog<RejectInvalid<RateLimit<Forwarded<ToUpstream<S>>>>>>>;

/// The layers of a configuration, to be put on each worker's own services.
pub struct Layers {
    identify: IdentifyLayer,
    route: RouteLayer,
    access_log: AccessLogLayer,
    answers: OwnAnswers,
    forwarded: ForwardedLayer,
    gate: Gate,
    metrics: Arc<Metrics>,
}

/// What is answered without an upstream, whoever asks.
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
    /// Prepares all that workers share. `pit` is that of the process.
    pub fn new(settings: &Settings, pit: &TarpitSlots, metrics: &Arc<Metrics>) -> Self {
        let gate = Gate::new(settings.gate.clone(), pit, metrics);
        let routes = settings.routes.iter().map(|route| {
            let decisions = expected::decisions(settings, Some(&route.policy));
            metrics.route(&route.policy.name).expect(decisions);
            let (policy, upstream) = (route.policy.clone(), UpstreamId(route.upstream));
            let state = RouteState::new(policy, upstream, &gate, metrics);
            (route.matcher.clone(), state)
        });
        let route = RouteLayer::new(routes);
        let knows_origins = settings
            .routes
            .iter()
            .any(|route| route.policy.cors.is_some());
        metrics
            .unrouted()
            .expect(expected::decisions(settings, None));
        Self {
            identify: IdentifyLayer::new(settings.client.clone(), settings.account.clone()),
            route,
            access_log: AccessLogLayer::new(settings.log_queries, metrics),
            answers: OwnAnswers::new(settings.error_pages.clone(), knows_origins),
            forwarded: ForwardedLayer::new(settings.client.header.clone()),
            gate,
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
        services: ToUpstream<S>,
    ) -> Stack<S> {
        let rate_limit = RateLimitLayer::by_route(store, &self.metrics)
            .with_leases(leases)
            .with_tasks(tasks.clone())
            .with_gate(&self.gate);
        ServiceBuilder::new()
            // Who sent it; the log, the limits and the forwarding fields all need to know.
            .layer(self.identify.clone())
            // Which route it takes; the log's labels and everything below depend on it.
            .layer(self.route.clone())
            // Outside of all that can answer, so that every answer is logged.
            .layer(self.access_log.clone())
            // Outside of the limits: what nobody is forwarded is answered alike to all, or the answer
            // would tell a client that it is shadow-banned. Outside of all that make answers, so that each
            // of them suits the client.
            .layer(RejectInvalidLayer::new(refusal).with_answers(self.answers.clone()))
            // The only one to decide, about bans and limits at once: what passes here reaches the upstream.
            .layer(rate_limit)
            // Inside of the limits, so that a flood of denied requests does not pay for it.
            .layer(self.forwarded.clone())
            .service(services)
    }
}
