//! The admin API: shows and changes buckets and bans.
//!
//! ```text
//! GET    /v1/buckets/{limit}?count=100&cursor=NEXT
//! GET    /v1/buckets/{limit}/{subject}
//! DELETE /v1/buckets/{limit}/{subject}
//! POST   /v1/buckets/{limit}/{subject}/refund    {"cost": 2}
//! GET    /v1/bans?count=100&cursor=NEXT
//! GET    /v1/bans/{ban}/{subject}
//! PUT    /v1/bans/{ban}/{subject}                {"for": "2h"}
//! DELETE /v1/bans/{ban}/{subject}
//! GET    /v1/overrides, /v1/overrides/{limit}, /v1/overrides/{limit}/{id}
//! PUT    /v1/overrides/{limit}/{id}              {"burst": 50, "count": 50, "period": "1m"}
//! DELETE /v1/overrides/{limit}/{id}
//! GET    /v1/top?limit=L&sort=denied&period=minute&count=20
//! GET    /v1/findings
//! POST   /v1/explain                             {"path": "/a", "ip": "203.0.113.9"}
//! GET    /v1/events?tail=true
//! GET    /v1/config
//! GET    /v1/log-level
//! PUT    /v1/log-level                           {"level": "debug", "for": "10m"}
//! DELETE /v1/log-level
//! GET    /v1/openapi.json
//! ```
//!
//! What changes something answers with the state afterwards. The admin listener has its own
//! thread, which connects to a remote store at the first request for a bucket or ban.

mod authorization;
mod ban;
mod bucket;
mod bucket_list;
mod configuration;
mod dashboard;
mod endpoint;
mod error;
mod events;
mod explain;
mod findings;
mod gateway_findings;
mod overrides;
mod process;
mod request;
mod top;
mod wrong_tokens;

use std::convert::Infallible;
use std::sync::Arc;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use tokio::sync::{OnceCell, watch};
use tower::service_fn;
use tower::util::BoxCloneSyncService;

use self::authorization::Operator;
use self::ban::{BanStores, BanTarget};
use self::bucket::{Bucket, Change};
use self::bucket_list::BucketList;
use self::endpoint::{Endpoint, Target};
use self::error::ApiError;
use self::events::Events;
use self::overrides::OverridesRequest;
use self::request::Page;
use self::top::TopQuery;
use self::wrong_tokens::WrongTokens;
use super::overrides::OverrideChanges;
use super::reloads::Snapshot;
use super::shared_bans::SharedBans;
use super::stores::{AdminStores, Stores};
use crate::server::{AdminApi, AdminBody, Connection, RequestBody};
use crate::telemetry::{LogLevel, Metrics};
use crate::time::{Clock, Timestamp};

/// What all requests share.
struct Api {
    snapshots: watch::Receiver<Arc<Snapshot>>,
    stores: Stores,
    admin_stores: OnceCell<AdminStores>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    log_level: LogLevel,
    shared_bans: SharedBans,
    events: Arc<Events>,
    override_changes: OverrideChanges,
    wrong_tokens: WrongTokens,
}

/// The service, which uses the configuration in force, these stores, what was counted, the level of the
/// log, and what is known of bans; and ends what it streams when the gateway is `draining`.
pub(super) fn service(
    snapshots: watch::Receiver<Arc<Snapshot>>,
    stores: Stores,
    override_changes: OverrideChanges,
    metrics: Arc<Metrics>,
    log_level: LogLevel,
    shared_bans: SharedBans,
    draining: watch::Receiver<bool>,
) -> AdminApi {
    let events = Events {
        snapshots: snapshots.clone(),
        stores: stores.clone(),
        metrics: Arc::clone(&metrics),
        clock: stores.clock(),
        draining,
        places: Events::places(),
    };
    let api = Arc::new(Api {
        events: Arc::new(events),
        snapshots,
        clock: stores.clock(),
        stores,
        admin_stores: OnceCell::new(),
        metrics,
        override_changes,
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
            return Ok(dashboard::file(settings, &head)?.map(Full::boxed_unsync));
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
        let answer = self.answer(&snapshot, &operator, &target, head, body);
        let body = Full::from(format!("{}\n", answer.await?)).boxed_unsync();
        Ok(with_type("application/json", body))
    }

    async fn answer(
        &self,
        snapshot: &Snapshot,
        operator: &Operator,
        target: &Target,
        head: http::request::Parts,
        body: RequestBody,
    ) -> Result<Value, ApiError> {
        let settings = &snapshot.settings;
        let (query, now) = (head.uri.query(), self.clock.now());
        match target.endpoint {
            Endpoint::Top => {
                let query = TopQuery::parse(query, settings)?;
                Ok(query.answer(settings, &self.metrics, now))
            }
            Endpoint::Findings => {
                request::no_parameters(query)?;
                let by = self.ban_stores(now).await.ok();
                let of_gateway = gateway_findings::all(snapshot, &self.stores, &self.metrics);
                let forwarders = snapshot.layers.untrusted_forwarders();
                let answer =
                    findings::answer(settings, &self.metrics, of_gateway, &forwarders, by, now);
                Ok(answer.await)
            }
            Endpoint::Buckets => {
                let page = Page::parse(query)?;
                let list = BucketList::new(settings, target.parameter(0), page)?;
                let stores = self.admin_stores().await?;
                list.answer(settings, stores, &self.metrics, now).await
            }
            Endpoint::Bucket | Endpoint::Refund => {
                let (limit, subject) = (target.parameter(0), target.parameter(1));
                let bucket = Bucket::find(settings, limit, subject, now)?;
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
                Ok(bucket.to_json(settings, &decision))
            }
            Endpoint::Bans => {
                let page = Page::parse(query)?;
                ban::list(settings, &page, self.ban_stores(now).await?).await
            }
            Endpoint::Ban => {
                let (ban, subject) = (target.parameter(0), target.parameter(1));
                let target = BanTarget::find(settings, ban, subject)?;
                let act = target.act(&head.method, body, now).await?;
                let by = self.ban_stores(now).await?;
                target.change(by, &act, operator).await?;
                target.to_json(by).await
            }
            Endpoint::Overrides => {
                let asked = OverridesRequest::parse(&head, target)?;
                let changed = asked.change(settings, body, operator, &self.override_changes, now);
                let warnings = changed.await?;
                // What was changed is in force by now.
                let snapshot = Arc::clone(&self.snapshots.borrow());
                asked.to_json(&snapshot, warnings, self.clock.now())
            }
            Endpoint::Explain => explain::answer(settings, body).await,
            // A stream is not an answer in JSON.
            Endpoint::Events => Err(ApiError::NoSuchPath),
            Endpoint::OpenApi => {
                request::no_parameters(query)?;
                Ok(endpoint::document())
            }
            Endpoint::Config => {
                request::no_parameters(query)?;
                Ok(process::config(snapshot))
            }
            Endpoint::LogLevel => {
                request::no_parameters(query)?;
                process::log_level(&self.log_level, &head.method, body, operator).await
            }
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

fn with_type(media_type: &'static str, body: AdminBody) -> Response<AdminBody> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
