//! The responses of the admin API about bans. docs/openapi.json is derived from them.

#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;

use super::ListedCause;
use crate::app::admin_api::responses::DateTime;

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(in crate::app) struct BanPage {
    pub(in crate::app) bans: Vec<ListedBan>,
    /// The cursor of the next page; null on the last one.
    pub(in crate::app) next: Option<String>,
    /// Why others may not be shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::app) warning: Option<&'static str>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(in crate::app) struct ListedBan {
    pub(in crate::app) ban: String,
    /// A subject, or a network.
    pub(in crate::app) subject: String,
    pub(in crate::app) since: DateTime,
    pub(in crate::app) until: Option<DateTime>,
    /// In seconds; null for good.
    pub(in crate::app) ends_in: Option<f64>,
    pub(in crate::app) why: ListedCause,
}

/// A ban of a network has no `key`, `strikes` and `offences`.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(in crate::app) struct Ban {
    pub(in crate::app) ban: String,
    pub(in crate::app) subject: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::app) key: Option<String>,
    pub(in crate::app) banned: bool,
    /// Seconds; null is never.
    pub(in crate::app) ends_in: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::app) strikes: Option<u64>,
    /// Null if bans do not grow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::app) offences: Option<Option<u64>>,
    pub(in crate::app) standing: Option<StandingBan>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::app) warning: Option<String>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(in crate::app) struct StandingBan {
    /// The subject, or the network that it is in.
    pub(in crate::app) subject: String,
    pub(in crate::app) since: DateTime,
    pub(in crate::app) until: Option<DateTime>,
    /// Who has set it.
    pub(in crate::app) by: String,
    pub(in crate::app) comment: Option<String>,
}
