//! The admin API: shows and changes buckets and bans.
//!
//! ```text
//! GET    /v1/buckets/{limit}/{subject}
//! DELETE /v1/buckets/{limit}/{subject}
//! POST   /v1/buckets/{limit}/{subject}/refund    {"cost": 2}
//! GET    /v1/bans/{ban}/{subject}
//! PUT    /v1/bans/{ban}/{subject}                {"for": "2h"}
//! DELETE /v1/bans/{ban}/{subject}
//! GET    /v1/overrides, /v1/overrides/{limit}, /v1/overrides/{limit}/{id}
//! PUT    /v1/overrides/{limit}/{id}              {"burst": 50, "count": 50, "period": "1m"}
//! DELETE /v1/overrides/{limit}/{id}
//! GET    /v1/top?limit=L&sort=denied&period=minute&count=20
//! POST   /v1/explain                             {"path": "/a", "ip": "203.0.113.9"}
//! GET    /v1/events?tail=true
//! ```
//!
//! Requests for buckets and bans are answered with their state afterwards. The admin listener has its own
//! thread, which connects to a remote store at the first request for a bucket or ban.

mod authorization;
mod ban;
mod bucket;
mod configuration;
mod dashboard;
mod error;
mod events;
mod explain;
mod overrides;
mod request;
mod top;

use std::convert::Infallible;
use std::sync::Arc;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use tokio::sync::{OnceCell, watch};
use tower::service_fn;
use tower::util::BoxCloneSyncService;

use self::authorization::Operator;
use self::ban::BanTarget;
use self::bucket::{Bucket, Change};
use self::error::ApiError;
use self::events::Events;
use self::overrides::OverridesRequest;
use self::request::{Act, Target};
use self::top::TopQuery;
use super::overrides::OverrideChanges;
use super::reloads::Snapshot;
use super::stores::{AdminStores, Stores};
use crate::config::Settings;
use crate::server::{AdminApi, AdminBody, Connection, RequestBody};
use crate::telemetry::Metrics;
use crate::time::Clock;

/// What all requests share.
struct Api {
    snapshots: watch::Receiver<Arc<Snapshot>>,
    stores: Stores,
    admin_stores: OnceCell<AdminStores>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    events: Arc<Events>,
    override_changes: OverrideChanges,
}

/// The service, which uses the configuration in force, these stores, and what was counted, and ends
/// what it streams when the gateway is `draining`.
pub(super) fn service(
    snapshots: watch::Receiver<Arc<Snapshot>>,
    stores: Stores,
    override_changes: OverrideChanges,
    metrics: Arc<Metrics>,
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
        let operator = authorization::check(tokens, has_dashboard, peer, &head)?;
        if head.uri.path() == events::PATH {
            return Ok(with_type("text/event-stream", self.events.stream(&head)?));
        }
        let answer = self.answer(settings, &operator, head, body).await?;
        let body = Full::from(format!("{answer}\n")).boxed_unsync();
        Ok(with_type("application/json", body))
    }

    async fn answer(
        &self,
        settings: &Settings,
        operator: &Operator,
        head: http::request::Parts,
        body: RequestBody,
    ) -> Result<Value, ApiError> {
        if head.uri.path() == explain::PATH {
            return explain::answer(settings, &head, body).await;
        }
        if head.uri.path() == top::PATH {
            let query = TopQuery::parse(&head, settings)?;
            return Ok(query.answer(settings, &self.metrics, self.clock.now()));
        }
        if let Some(asked) = OverridesRequest::parse(&head)? {
            let changed = asked.change(settings, body, operator, &self.override_changes);
            let warnings = changed.await?;
            // What was changed is in force by now.
            let snapshot = Arc::clone(&self.snapshots.borrow());
            return asked.to_json(&snapshot, warnings, self.clock.now());
        }
        if let Some(target) = BanTarget::find(settings, head.uri.path())? {
            let act = target.act(&head.method, body).await?;
            let (stores, now) = (self.admin_stores().await?, self.clock.now());
            target.change(stores, &act, operator, now).await?;
            return target.to_json(stores, now).await;
        }
        let target = Target::parse(head.uri.path())?;
        let act = target.act(&head.method)?;
        let now = self.clock.now();
        let bucket = Bucket::find(settings, &target, now)?;
        let change = match act {
            Act::Show => None,
            Act::Reset => Some(Change::Reset),
            Act::Refund => Some(Change::Refund(
                request::refunded_units(head.uri.query(), body).await?,
            )),
        };
        let stores = self.admin_stores().await?;
        if let Some(change) = change {
            bucket.change(stores, change, operator, now).await?;
        }
        let decision = bucket.read(stores, now).await?;
        Ok(bucket.to_json(settings, &decision))
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
