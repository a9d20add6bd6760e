//! The responses of the admin API about overrides. docs/openapi.json is derived from them.

#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

#[cfg(test)]
use crate::app::admin_api::responses::DateTime;
use crate::app::admin_api::responses::Origin;

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(in crate::app) struct OverridePage {
    pub(super) total: usize,
    pub(super) overrides: Vec<ListedOverride>,
}

/// An override of a file or of the admin API.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(in crate::app) struct ListedOverride {
    pub(super) limit: String,
    pub(super) id: String,
    pub(super) origin: Origin,
    /// As they are written, with the moment at which it ends.
    #[serde(flatten)]
    #[cfg_attr(test, schemars(with = "super::schemas::ListedParameters"))]
    pub(super) parameters: Map<String, Value>,
    /// Who set it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) set_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "DateTime"))]
    pub(super) set_at: Option<String>,
    pub(super) in_force: bool,
    /// Why it is not in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<String>,
}
