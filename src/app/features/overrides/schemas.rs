//! What docs/openapi.json says of the parameters of an override, which are read as they are written in
//! files.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::app::admin_api::responses::DateTime;

/// The parameters of an override, as a list has them.
#[derive(JsonSchema, Serialize)]
pub(super) struct ListedParameters {
    #[serde(flatten)]
    parameters: OverrideParameters,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<DateTime>,
}

#[derive(Deserialize, JsonSchema)]
pub(in crate::app) struct OverrideBody {
    #[serde(flatten)]
    _parameters: OverrideParameters,
    #[serde(rename = "until")]
    _until: Option<String>,
    #[serde(rename = "for")]
    _for: Option<String>,
}

#[derive(Deserialize, JsonSchema, Serialize)]
struct OverrideParameters {
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    period: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_flight: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<String>,
}
