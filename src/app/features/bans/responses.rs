//! The responses of the admin API about bans. docs/openapi.json is derived from them.

#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;

use super::ListedCause;
use crate::app::admin_api::responses::DateTime;

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(in crate::app) struct BanPage {
    pub(super) bans: Vec<ListedBan>,
    /// The cursor of the next page; null on the last one.
    pub(super) next: Option<String>,
    /// Why others may not be shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) warning: Option<&'static str>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct ListedBan {
    pub(super) ban: String,
    /// A subject, or a network.
    pub(super) subject: String,
    pub(super) since: DateTime,
    pub(super) until: Option<DateTime>,
    /// In seconds; null for good.
    pub(super) ends_in: Option<f64>,
    pub(super) why: ListedCause,
}

/// A ban of a network has no `key`, `strikes` and `offences`.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(in crate::app) struct Ban {
    pub(super) ban: String,
    pub(super) subject: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    pub(super) banned: bool,
    /// Seconds; null is never.
    pub(super) ends_in: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) strikes: Option<u64>,
    /// Null if bans do not grow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) offences: Option<Option<u64>>,
    pub(super) standing: Option<StandingBan>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) warning: Option<String>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct StandingBan {
    /// The subject, or the network that it is in.
    pub(super) subject: String,
    pub(super) since: DateTime,
    pub(super) until: Option<DateTime>,
    /// Who has set it.
    pub(super) by: String,
    pub(super) comment: Option<String>,
}
