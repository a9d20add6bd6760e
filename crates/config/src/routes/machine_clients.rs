//! Warnings of denials that programs without a reader take otherwise than they are meant: what they
//! deliver is lost, or a server is taken for dead.

use http::StatusCode;
use weir_rules::LimitUse;
use weir_yaml::Lowering;

use super::LoweredRoute;
use crate::settings::Route;

/// Where Prometheus delivers samples: to itself, Cortex and Mimir.
const REMOTE_WRITE: [&str; 3] = ["/api/v1/write", "/api/v1/push", "/api/prom/push"];

/// Where other programs deliver telemetry: by OTLP over HTTP, and to Loki.
const TELEMETRY: [&str; 4] = ["/v1/traces", "/v1/metrics", "/v1/logs", "/loki/api/v1/push"];

/// Where programs deliver telemetry by OTLP over gRPC.
const COLLECTOR_SERVICES: &str = "/opentelemetry.proto.collector.";

/// Where load balancers and orchestrators look whether a server is alive.
const HEALTH: [&str; 7] = [
    "/health",
    "/healthz",
    "/livez",
    "/readyz",
    "/-/healthy",
    "/-/ready",
    "/.well-known/health",
];

/// Reports denials that programs misunderstand, where paths tell.
pub(super) fn warn_of_machine_clients(cx: &mut Lowering<'_>, routes: &[LoweredRoute]) {
    for route in routes {
        if let Ok(settings) = &route.settings
            && settings.policy.limits.iter().any(LimitUse::can_deny)
        {
            warn_of_route(cx, route, settings);
        }
    }
}

fn warn_of_route(cx: &mut Lowering<'_>, route: &LoweredRoute, settings: &Route) {
    let form = settings.matcher.path.form();
    // The marks of a path with others below it, and of one in just its case.
    let path = form.trim_end_matches(['?', '*', '/']);
    let ends = |ends: &[&str]| ends.iter().any(|end| path.ends_with(end));
    let delivers = ends(&TELEMETRY);
    let writes = ends(&REMOTE_WRITE) && !delivers;
    let rejection = settings.policy.on_denied.rejection();
    let rejection = rejection.map(|rejection| rejection.status);
    if rejection.is_none() && (writes || delivers || path.starts_with(COLLECTOR_SERVICES)) {
        cx.warn(
            route.span,
            "a decoy loses what clients deliver on this route",
        )
        .help("they take it for success, and send nothing again: say `on_denied: reject`");
    } else if writes && rejection == Some(StatusCode::TOO_MANY_REQUESTS) {
        let message = "Prometheus drops the samples for which it gets 429";
        cx.warn(route.span, message)
            .help("say `on_denied: {reject: {status: 503}}`, after which it sends them again");
    } else if HEALTH.contains(&path) {
        let message = "a health check that is denied has the server taken for dead";
        cx.warn(route.span, message)
            .help("say `limits: []` on the route of health checks");
    }
}
