//! About which gateways a request asks, and what this one tells the others.

use weir_console::fleet::{PublishedFinding, published};
use weir_console::query::parameters;
use weir_console::scope::CountedScope;
use weir_telemetry::Metrics;

use super::error::ApiError;
use super::gateway_findings;
use crate::app::reloads::Snapshot;
use crate::app::stores::Stores;

const PARAMETERS: &str = "there is scope=gateway or fleet";

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
