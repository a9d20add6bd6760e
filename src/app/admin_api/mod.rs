//! The admin API: shows and changes buckets and bans.
//!
//! ```text
//! GET    /v1/buckets/{limit}/{subject}
//! DELETE /v1/buckets/{limit}/{subject}
//! POST   /v1/buckets/{limit}/{subject}/refund    {"cost": 2}
//! GET    /v1/bans/{ban}/{subject}
//! PUT    /v1/bans/{ban}/{subject}                {"for": "2h"}
//! DELETE /v1/bans/{ban}/{subject}
//! GET    /v1/top?limit=L&sort=denied&period=minute&count=20
//! ```
//!
//! Each but the last answers with the state of the bucket or ban afterwards. The admin listener has its own
//! thread, which connects to a remote store at the first request for a bucket or ban.

mod authorization;
mod ban;
mod bucket;
mod error;
mod request;
mod top;

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use http_body_util::Full;
use serde_json::Value;
use tokio::sync::{OnceCell, watch};
use tower::service_fn;
use tower::util::BoxCloneSyncService;

use self::ban::BanTarget;
use self::bucket::{Bucket, Change};
use self::error::ApiError;
use self::request::{Act, Target};
use self::top::TopQuery;
use super::reloads::Snapshot;
use super::stores::{AdminStores, Stores};
use crate::server::{AdminApi, Connection, RequestBody};
use crate::telemetry::Metrics;
use crate::time::Clock;

/// What all requests share.
struct Api {
    snapshots: watch::Receiver<Arc<Snapshot>>,
    stores: Stores,
    admin_stores: OnceCell<AdminStores>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
}

/// The service, which uses the configuration in force, these stores, and what was counted.
pub(super) fn service(
    snapshots: watch::Receiver<Arc<Snapshot>>,
    stores: Stores,
    metrics: Arc<Metrics>,
) -> AdminApi {
    let api = Arc::new(Api {
        snapshots,
        clock: stores.clock(),
        stores,
        admin_stores: OnceCell::new(),
        metrics,
    });
    BoxCloneSyncService::new(service_fn(move |request| {
        let api = Arc::clone(&api);
        async move {
            let answer = api.answer(request).await;
            Ok::<_, Infallible>(answer.map_or_else(ApiError::into_response, |value| json(&value)))
        }
    }))
}

impl Api {
    async fn answer(&self, request: Request<RequestBody>) -> Result<Value, ApiError> {
        let snapshot = Arc::clone(&self.snapshots.borrow());
        let settings = &snapshot.settings;
        let (head, body) = request.into_parts();
        let peer = head
            .extensions
            .get::<Connection>()
            .map(|connection| connection.peer.ip());
        let operator = authorization::check(&settings.admin_tokens, peer, &head)?;
        if head.uri.path() == top::PATH {
            let query = TopQuery::parse(&head, settings)?;
            return Ok(query.answer(settings, &self.metrics, self.clock.now()));
        }
        if let Some(target) = BanTarget::find(settings, head.uri.path())? {
            let act = target.act(&head.method, body).await?;
            let (stores, now) = (self.admin_stores().await?, self.clock.now());
            target.change(stores, &act, &operator, now).await?;
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
            bucket.change(stores, change, &operator, now).await?;
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

fn json(value: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(format!("{value}\n").into()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
