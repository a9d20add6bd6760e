//! The subjects that send most, are denied most, or are nearest to a limit.

use weir_console::scope::counted;
use weir_console::top::TopQuery;

use super::Api;
use super::bucket::limit_named;
use super::endpoint::{Call, Endpoint, Reply, json_response};
use super::error::ApiError;

pub(super) const ENDPOINTS: &[Endpoint] = &[Endpoint::new("/v1/top", "GET, HEAD", |api, call| {
    Box::pin(respond(api, call))
})];

async fn respond(api: &Api, call: Call<'_>) -> Reply {
    let snapshot = api.snapshot();
    let settings = &snapshot.settings;
    let limit = |name: &str| limit_named(settings, name).map(|limit| &**limit);
    let query = TopQuery::parse::<ApiError>(call.query(), limit)?;
    let view = api.view(query.scope).await;
    let (scope, counted) = counted(view.as_deref(), &api.metrics, call.now);
    let keeps_names = settings.account.keeps_names;
    json_response(&query.response(&settings.limits(), keeps_names, scope, counted))
}
