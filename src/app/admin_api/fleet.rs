//! The gateways of the fleet: those that there are, about which of them a request asks, and what this
//! one tells the others.

use weir_console::fleet::{PublishedFinding, gateways, published};
use weir_console::query::parameters;
use weir_console::scope::CountedScope;
use weir_telemetry::Metrics;

use super::Api;
use super::endpoint::{Call, Endpoint, Reply, json_response};
use super::error::ApiError;
use super::gateway_findings;
use super::request::no_parameters;
use super::responses::DateTime;
use crate::app::reloads::Snapshot;
use crate::app::stores::Stores;

pub(super) const ENDPOINTS: &[Endpoint] =
    &[Endpoint::new("/v1/gateways", "GET, HEAD", |api, call| {
        Box::pin(respond(api, call))
    })];

const PARAMETERS: &str = "there is scope=gateway or fleet";

async fn respond(api: &Api, call: Call<'_>) -> Reply {
    no_parameters(call.query())?;
    let moment = |at| DateTime(at).to_string();
    json_response(&gateways(&*api.fleet.view().await, moment))
}

/// The scope of a query without other parameters.
pub(super) fn scope(query: Option<&str>) -> Result<CountedScope, ApiError> {
    let mut scope = CountedScope::Gateway;
    for (pair, (name, value)) in parameters(query) {
        let known = CountedScope::parse(&value).filter(|_| name == "scope");
        scope = known.ok_or_else(|| ApiError::parameter(pair, PARAMETERS))?;
    }
    Ok(scope)
}

/// What is wrong with this gateway, in the form in which others read it.
pub(in crate::app) fn published_findings(
    snapshot: &Snapshot,
    stores: &Stores,
    metrics: &Metrics,
) -> Vec<PublishedFinding> {
    published(gateway_findings::all(snapshot, stores, metrics))
}
