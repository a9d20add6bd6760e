//! What operators ask of buckets and bans, and do to them, on the admin listener:
//!
//! ```text
//! GET    /v1/buckets/{limit}/{subject}
//! DELETE /v1/buckets/{limit}/{subject}
//! POST   /v1/buckets/{limit}/{subject}/refund    {"cost": 2}
//! GET    /v1/bans/{ban}/{subject}
//! PUT    /v1/bans/{ban}/{subject}                {"for": "2h"}
//! DELETE /v1/bans/{ban}/{subject}
//! ```
//!
//! Each answers with the bucket or ban as it is afterwards. The admin listener has a thread of its own;
//! from there a remote store is connected to when somebody asks for a bucket first.

mod access;
mod ban;
mod body;
mod bucket;
mod cost;
mod path;
mod refused;

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

use self::ban::Banning;
use self::bucket::{Bucket, Change};
use self::path::{Act, Target};
use self::refused::Refused;
use super::snapshot::Snapshot;
use super::stores::{AdminStores, Stores};
use crate::server::{AdminApi, Connection, RequestBody};
use crate::time::{Clock, SystemClock};

/// What all requests need.
struct Api {
    snapshots: watch::Receiver<Arc<Snapshot>>,
    stores: Stores,
    desk: OnceCell<AdminStores>,
}

/// The service that answers by the configuration in force, with the buckets of these stores.
pub(super) fn service(snapshots: watch::Receiver<Arc<Snapshot>>, stores: Stores) -> AdminApi {
    let api = Arc::new(Api {
        snapshots,
        stores,
        desk: OnceCell::new(),
    });
    BoxCloneSyncService::new(service_fn(move |request| {
        let api = Arc::clone(&api);
        async move {
            let answer = api.answer(request).await;
            Ok::<_, Infallible>(answer.map_or_else(Refused::into_response, |it| json(&it)))
        }
    }))
}

impl Api {
    async fn answer(&self, request: Request<RequestBody>) -> Result<Value, Refused> {
        let snapshot = Arc::clone(&self.snapshots.borrow());
        let settings = &snapshot.settings;
        let (head, body) = request.into_parts();
        let peer = head.extensions.get::<Connection>().map(|it| it.peer.ip());
        access::check(settings.admin_token.as_ref(), peer, &head)?;
        if let Some(banning) = Banning::find(settings, head.uri.path())? {
            let act = banning.act(&head.method, body).await?;
            let (desk, now) = (self.desk().await?, SystemClock.now());
            banning.change(desk, &act, now).await?;
            return banning.described(desk, now).await;
        }
        let target = Target::parse(head.uri.path())?;
        let act = target.act(&head.method)?;
        let now = SystemClock.now();
        let bucket = Bucket::find(settings, &target, now)?;
        let change = match act {
            Act::Show => None,
            Act::Reset => Some(Change::Reset),
            Act::Refund => Some(Change::Refund(cost::read(head.uri.query(), body).await?)),
        };
        let desk = self.desk().await?;
        if let Some(change) = change {
            bucket.change(desk, change, now).await?;
        }
        let decision = bucket.look(desk, now).await?;
        Ok(bucket.described(settings, &decision))
    }

    async fn desk(&self) -> Result<&AdminStores, Refused> {
        let connect = || self.stores.of_operators();
        let desk = self.desk.get_or_try_init(connect).await;
        desk.map_err(Refused::System)
    }
}

fn json(value: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(format!("{value}\n").into()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
