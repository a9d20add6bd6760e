//! The admin API: shows and changes what is in force. Each module below has a table of its
//! endpoints, as each room of a feature has; [`endpoints`] chains them, and docs/openapi.json
//! describes all.
//!
//! The response to a change is the state afterwards. The admin listener has its own thread, which
//! connects to a remote store at the first request for what is in it.

pub(super) mod authorization;
pub(super) mod bucket;
mod bucket_list;
mod configuration;
pub(super) mod endpoint;
pub(super) mod error;
mod events;
mod explain;
pub(super) mod findings;
mod fleet;
mod gateway_findings;
pub(super) mod paths;
mod process;
pub(super) mod request;
pub(super) mod responses;
#[cfg(test)]
mod tests;
mod top;
mod wrong_tokens;

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use tokio::sync::{OnceCell, watch};
use tower::service_fn;
use tower::util::BoxCloneSyncService;
use weir_config::Settings;
use weir_console::dashboard;
use weir_console::fleet::FleetView;
use weir_console::history::History;
use weir_console::scope::CountedScope;
use weir_limit::time::{Clock, Timestamp};
use weir_logging::LogLevel;
use weir_server::{AdminApi, Connection, RequestBody};
use weir_telemetry::Metrics;

use self::endpoint::{Call, Endpoint, Reply};
use self::error::ApiError;
use self::events::Events;
pub(super) use self::fleet::published_findings;
use self::paths::Target;
use self::wrong_tokens::WrongTokens;
use super::features::{Features, ROOMS, SharedFeatures};
use super::fleet::Fleet;
use super::reloads::Snapshot;
use super::stores::{AdminStores, Stores};

/// All endpoints. `docs/openapi.json` has the same, which a test compares.
fn endpoints() -> impl Iterator<Item = &'static Endpoint> {
    let first = [
        top::ENDPOINTS,
        findings::ENDPOINTS,
        fleet::ENDPOINTS,
        bucket_list::ENDPOINTS,
        bucket::ENDPOINTS,
    ];
    let of_rooms = ROOMS.iter().map(|room| room.endpoints());
    let last = [explain::ENDPOINTS, events::ENDPOINTS, process::ENDPOINTS];
    let all = first.into_iter().chain(of_rooms).chain(last);
    all.flatten()
}

/// All paths in a line, for clients that ask another.
fn all_paths() -> String {
    let templates: Vec<_> = endpoints().map(|endpoint| endpoint.template).collect();
    templates.join(", ")
}

/// What endpoints show and change.
pub(super) struct Api {
    snapshots: watch::Receiver<Arc<Snapshot>>,
    stores: Stores,
    admin_stores: OnceCell<AdminStores>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    log_level: LogLevel,
    shared: SharedFeatures,
    events: Arc<Events>,
    fleet: Fleet,
    features: Features,
    wrong_tokens: WrongTokens,
}

/// The parts of a gateway that the admin API shows and changes.
pub(super) struct GatewayParts {
    pub(super) snapshots: watch::Receiver<Arc<Snapshot>>,
    pub(super) stores: Stores,
    pub(super) fleet: Fleet,
    pub(super) features: Features,
    pub(super) metrics: Arc<Metrics>,
    pub(super) log_level: LogLevel,
    pub(super) shared: SharedFeatures,
}

/// The service, which ends what it streams when the gateway is `draining`.
pub(super) fn service(gateway: GatewayParts, draining: watch::Receiver<bool>) -> AdminApi {
    let GatewayParts {
        snapshots,
        stores,
        fleet,
        features,
        metrics,
        log_level,
        shared,
    } = gateway;
    let events = Arc::new(Events {
        snapshots: snapshots.clone(),
        stores: stores.clone(),
        metrics: Arc::clone(&metrics),
        clock: stores.clock(),
        draining,
        permits: Events::permits(),
        history: History::default(),
    });
    tokio::spawn(Arc::clone(&events).keep_history());
    let api = Arc::new(Api {
        events,
        snapshots,
        clock: stores.clock(),
        stores,
        admin_stores: OnceCell::new(),
        fleet,
        metrics,
        features,
        log_level,
        shared,
        wrong_tokens: WrongTokens::default(),
    });
    BoxCloneSyncService::new(service_fn(move |request| {
        let api = Arc::clone(&api);
        async move {
            let response = api.respond(request).await;
            let refused = |error: ApiError| error.into_response().map(Full::boxed_unsync);
            Ok::<_, Infallible>(response.unwrap_or_else(refused))
        }
    }))
}

impl Api {
    async fn respond(&self, request: Request<RequestBody>) -> Reply {
        let snapshot = self.snapshot();
        let settings = &snapshot.settings;
        let (head, body) = request.into_parts();
        if dashboard::has(head.uri.path()) {
            return Ok(dashboard_file(settings, &head)?.map(Full::boxed_unsync));
        }
        let peer = head
            .extensions
            .get::<Connection>()
            .map(|connection| connection.peer.ip());
        let (tokens, has_dashboard) = (&settings.admin_tokens, settings.admin_dashboard);
        let guesser = peer.filter(|_| !tokens.is_empty() && authorization::shows_token(&head));
        if let Some(peer) = guesser {
            self.wrong_tokens.wait(peer).await?;
        }
        let only_asks = || Target::find(head.uri.path()).is_ok_and(|target| target.only_asks());
        let operator = authorization::check(tokens, has_dashboard, peer, &head, only_asks);
        if let (Some(peer), Err(ApiError::Unauthorised)) = (guesser, &operator) {
            self.wrong_tokens.shown(peer, &self.metrics);
        }
        let operator = operator?;
        let target = Target::find(head.uri.path())?;
        target.check(&head.method)?;
        let call = Call {
            operator: &operator,
            parameters: target.parameters(),
            head,
            body,
            now: self.now(),
        };
        target.respond(self, call).await
    }

    /// The configuration in force.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshots.borrow())
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The features that other gateways know of.
    pub(super) fn shared(&self) -> &SharedFeatures {
        &self.shared
    }

    /// All gateways, for an answer about the fleet.
    async fn view(&self, scope: CountedScope) -> Option<Arc<FleetView>> {
        match scope {
            CountedScope::Gateway => None,
            CountedScope::Fleet => Some(self.fleet.view().await),
        }
    }

    pub(super) async fn admin_stores(&self) -> Result<&AdminStores, ApiError> {
        let connect = || self.stores.for_admin();
        let stores = self.admin_stores.get_or_try_init(connect).await;
        stores.map_err(ApiError::System)
    }
}

/// The dashboard's file at the path of a request, if there is a dashboard.
fn dashboard_file(
    settings: &Settings,
    head: &http::request::Parts,
) -> Result<Response<Full<Bytes>>, ApiError> {
    let file = dashboard::file(head.uri.path()).ok_or(ApiError::NoSuchPath)?;
    if !settings.admin_dashboard {
        return Err(ApiError::NoDashboard);
    }
    if !matches!(head.method, Method::GET | Method::HEAD) {
        return Err(ApiError::Method("GET, HEAD"));
    }
    Ok(file)
}
