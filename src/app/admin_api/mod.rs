//! The admin API: shows and changes buckets, bans, overrides and the level of the log. `endpoint`
//! has its paths and `responses` the types of its responses; docs/openapi.json describes both.
//!
//! The response to a change is the state afterwards. The admin listener has its own thread, which
//! connects to a remote store at the first request for a bucket or ban.

mod authorization;
mod ban;
mod bucket;
mod bucket_list;
mod configuration;
mod endpoint;
mod error;
mod events;
mod explain;
mod findings;
mod fleet;
mod gateway_findings;
mod overrides;
mod process;
mod request;
mod responses;
#[cfg(test)]
mod tests;
mod wrong_tokens;

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use serde::Serialize;
use tokio::sync::{OnceCell, watch};
use tower::service_fn;
use tower::util::BoxCloneSyncService;
use weir_config::Settings;
use weir_console::dashboard;
use weir_console::findings::Findings;
use weir_console::fleet::{FleetView, findings as fleet_findings, gateways};
use weir_console::history::History;
use weir_console::scope::{CountedScope, counted};
use weir_console::top::TopQuery;
use weir_limit::time::{Clock, Timestamp};
use weir_logging::LogLevel;
use weir_server::{AdminApi, AdminBody, Connection, RequestBody};
use weir_telemetry::Metrics;

use self::authorization::Operator;
use self::ban::{BanStores, BanTarget};
use self::bucket::{BucketTarget, Change, limit_named};
use self::bucket_list::BucketList;
use self::endpoint::{Endpoint, Target};
use self::error::ApiError;
use self::events::Events;
pub(super) use self::findings::{is_enforced, quota_of};
pub(super) use self::fleet::published_findings;
use self::overrides::OverridesRequest;
use self::request::Page;
use self::responses::{BucketNotes, DateTime};
use self::wrong_tokens::WrongTokens;
use super::explain::Load;
use super::features::Features;
use super::fleet::Fleet;
use super::overrides::KeptOverride;
use super::reloads::Snapshot;
use super::shared_bans::SharedBans;
use super::shared_list::ListChanges;
use super::stores::{AdminStores, Stores};

struct Api {
    snapshots: watch::Receiver<Arc<Snapshot>>,
    stores: Stores,
    admin_stores: OnceCell<AdminStores>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    log_level: LogLevel,
    shared_bans: SharedBans,
    events: Arc<Events>,
    fleet: Fleet,
    override_changes: ListChanges<KeptOverride>,
    features: Features,
    wrong_tokens: WrongTokens,
}

/// The parts of a gateway that the admin API shows and changes.
pub(super) struct GatewayParts {
    pub(super) snapshots: watch::Receiver<Arc<Snapshot>>,
    pub(super) stores: Stores,
    pub(super) fleet: Fleet,
    pub(super) override_changes: ListChanges<KeptOverride>,
    pub(super) features: Features,
    pub(super) metrics: Arc<Metrics>,
    pub(super) log_level: LogLevel,
    pub(super) shared_bans: SharedBans,
}

/// The service, which ends what it streams when the gateway is `draining`.
pub(super) fn service(gateway: GatewayParts, draining: watch::Receiver<bool>) -> AdminApi {
    let GatewayParts {
        snapshots,
        stores,
        fleet,
        override_changes,
        features,
        metrics,
        log_level,
        shared_bans,
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
        override_changes,
        features,
        log_level,
        shared_bans,
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
    async fn respond(
        &self,
        request: Request<RequestBody>,
    ) -> Result<Response<AdminBody>, ApiError> {
        let snapshot = Arc::clone(&self.snapshots.borrow());
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
        let operator = authorization::check(tokens, has_dashboard, peer, &head);
        if let (Some(peer), Err(ApiError::Unauthorised)) = (guesser, &operator) {
            self.wrong_tokens.shown(peer, &self.metrics);
        }
        let operator = operator?;
        let target = Target::find(head.uri.path())?;
        target.check(&head.method).map_err(ApiError::Method)?;
        if target.endpoint == Endpoint::Events {
            return Ok(with_type("text/event-stream", self.events.stream(&head)?));
        }
        let response = self.response(&snapshot, &operator, &target, head, body);
        let body = Full::from(format!("{}\n", response.await?)).boxed_unsync();
        Ok(with_type("application/json", body))
    }

    async fn response(
        &self,
        snapshot: &Snapshot,
        operator: &Operator,
        target: &Target,
        head: http::request::Parts,
        body: RequestBody,
    ) -> Result<String, ApiError> {
        let settings = &snapshot.settings;
        let (query, now) = (head.uri.query(), self.clock.now());
        match target.endpoint {
            Endpoint::Top => {
                let query = TopQuery::parse(query, |name| {
                    limit_named(settings, name).map(|limit| &**limit)
                })?;
                let view = self.view(query.scope).await;
                let (scope, counted) = counted(view.as_deref(), &self.metrics, now);
                json(&query.response(
                    &settings.limits(),
                    settings.account.keeps_names,
                    scope,
                    counted,
                ))
            }
            Endpoint::Findings => {
                let view = self.view(fleet::scope(query)?).await;
                let (scope, counted) = counted(view.as_deref(), &self.metrics, now);
                let by = self.ban_stores(now).await.ok();
                let mut of_gateway = gateway_findings::all(snapshot, &self.stores, &self.metrics);
                let mut forwarders = snapshot.layers.forwarding.untrusted_forwarders();
                if let Some(view) = &view {
                    of_gateway.extend(fleet_findings(view));
                    forwarders = view.forwarders();
                }
                let seen = findings::SeenClients {
                    forwarders: &forwarders,
                    waits: snapshot.layers.forwarding.waits(),
                    metrics: &self.metrics,
                };
                let found = findings::subjects(settings, scope, seen, by, now).await;
                json(&Findings {
                    period: findings::PERIOD.seconds(),
                    counted,
                    gateway: of_gateway,
                    findings: found,
                })
            }
            Endpoint::Gateways => {
                request::no_parameters(query)?;
                let moment = |at| DateTime(at).to_string();
                json(&gateways(&*self.fleet.view().await, moment))
            }
            Endpoint::Buckets => {
                let page = Page::parse(query)?;
                let list = BucketList::new(settings, target.parameter(0), page)?;
                let stores = self.admin_stores().await?;
                json(&list.response(settings, stores, &self.metrics, now).await?)
            }
            Endpoint::Bucket | Endpoint::Refund => {
                let (limit, subject) = (target.parameter(0), target.parameter(1));
                let bucket = BucketTarget::find(settings, limit, subject, now)?;
                let change = match (target.endpoint, &head.method) {
                    (Endpoint::Refund, _) => {
                        let units = request::refunded_units(query, body).await?;
                        Some(Change::Refund(units))
                    }
                    (_, &Method::DELETE) => Some(Change::Reset),
                    _ => None,
                };
                let stores = self.admin_stores().await?;
                if let Some(change) = change {
                    bucket.change(stores, change, operator, now).await?;
                }
                let decision = bucket.read(stores, now).await?;
                let notes = BucketNotes {
                    name: None,
                    warning: bucket.warning(),
                };
                json(&bucket.response(settings, &decision, notes))
            }
            Endpoint::Bans => {
                let page = Page::parse(query)?;
                json(&ban::list(settings, &page, self.ban_stores(now).await?).await?)
            }
            Endpoint::Ban => {
                let (ban, subject) = (target.parameter(0), target.parameter(1));
                let target = BanTarget::find(settings, ban, subject)?;
                let act = target.act(&head.method, body, now).await?;
                let by = self.ban_stores(now).await?;
                target.change(by, &act, operator).await?;
                json(&target.response(by).await?)
            }
            Endpoint::Overrides => {
                let query = OverridesRequest::parse(&head, target)?;
                let changed = query.change(settings, body, operator, &self.override_changes, now);
                let warnings = changed.await?;
                // What was changed is in force by now.
                let snapshot = Arc::clone(&self.snapshots.borrow());
                let now = self.clock.now();
                match query.is_set() {
                    true => json(&query.set(&snapshot, warnings, now)?),
                    false => json(&query.page(&snapshot, now)?),
                }
            }
            Endpoint::Explain => {
                let workers = self.features.worker_levels();
                let load = Load::new(snapshot.upstreams(), workers);
                json(&explain::response(settings, &load, body).await?)
            }
            // A stream is not an answer in JSON.
            Endpoint::Events => Err(ApiError::NoSuchPath),
            Endpoint::OpenApi => {
                request::no_parameters(query)?;
                json(&endpoint::document())
            }
            Endpoint::Config => json(&process::config(snapshot, query)?),
            Endpoint::LogLevel => {
                request::no_parameters(query)?;
                let response = process::log_level(&self.log_level, &head.method, body, operator);
                json(&response.await?)
            }
        }
    }

    /// All gateways, for an answer about the fleet.
    async fn view(&self, scope: CountedScope) -> Option<Arc<FleetView>> {
        match scope {
            CountedScope::Gateway => None,
            CountedScope::Fleet => Some(self.fleet.view().await),
        }
    }

    async fn ban_stores(&self, now: Timestamp) -> Result<BanStores<'_>, ApiError> {
        Ok(BanStores {
            stores: self.admin_stores().await?,
            shared: &self.shared_bans,
            now,
        })
    }

    async fn admin_stores(&self) -> Result<&AdminStores, ApiError> {
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

fn json(response: &impl Serialize) -> Result<String, ApiError> {
    serde_json::to_string(response).map_err(|cause| ApiError::System(cause.into()))
}

fn with_type(media_type: &'static str, body: AdminBody) -> Response<AdminBody> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
