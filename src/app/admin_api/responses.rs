//! The responses of the admin API, as JSON. docs/openapi.json is derived from these types: their
//! comments are its descriptions.

use std::fmt;
use std::time::Duration;

#[cfg(test)]
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_json::Value;
use weir_config::Until;
use weir_limit::time::{Nanos, Timestamp};
use weir_rules::OverrideOrigin;

/// A moment in UTC, to the second.
#[derive(Clone, Copy, Debug)]
pub(in crate::app) struct DateTime(pub(in crate::app) Timestamp);

impl fmt::Display for DateTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Until(self.0).fmt(f)
    }
}

impl Serialize for DateTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

pub(in crate::app) fn seconds(span: Nanos) -> f64 {
    Duration::from(span).as_secs_f64()
}

/// `None` if the span does not end.
pub(in crate::app) fn finite_seconds(span: Nanos) -> Option<f64> {
    (span != Nanos::NEVER).then(|| seconds(span))
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct BucketPage {
    pub(super) limit: String,
    pub(super) source: BucketSource,
    pub(super) buckets: Vec<Bucket>,
    /// The cursor of the next page; null on the last one.
    pub(super) next: Option<String>,
}

#[derive(Clone, Copy, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(super) enum BucketSource {
    /// All that have a bucket in the store.
    Store,
    /// The heaviest.
    Top,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub(super) enum Bucket {
    Units(UnitBucket),
    InFlight(InFlightBucket),
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct UnitBucket {
    #[serde(flatten)]
    pub(super) identity: BucketIdentity,
    #[cfg_attr(test, schemars(
        extend("enum" = ["gcra", "fixed_window", "sliding_window", "sliding_log"])
    ))]
    pub(super) algorithm: &'static str,
    pub(super) burst: u64,
    pub(super) count: Option<u64>,
    /// Null with a calendar.
    pub(super) period: Option<String>,
    pub(super) remaining: u64,
    /// Seconds until a request of cost 1 is allowed.
    pub(super) retry_in: f64,
    /// Seconds until it is full.
    pub(super) reset_in: f64,
    #[serde(flatten)]
    pub(super) notes: BucketNotes,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct InFlightBucket {
    #[serde(flatten)]
    pub(super) identity: BucketIdentity,
    #[cfg_attr(test, schemars(extend("const" = "in_flight")))]
    pub(super) algorithm: &'static str,
    /// Requests that are allowed at once.
    pub(super) most: u64,
    pub(super) in_flight: u64,
    pub(super) remaining: u64,
    #[serde(flatten)]
    pub(super) notes: BucketNotes,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct BucketIdentity {
    pub(super) limit: String,
    pub(super) subject: String,
    /// Its key; in Redis behind the prefix and a colon.
    pub(super) key: String,
    #[serde(rename = "override")]
    pub(super) overridden: Option<Override>,
}

#[derive(Default, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct BucketNotes {
    /// The name of the account, in lists, where log.account is plain and this gateway has seen it
    /// within an hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<Option<String>>,
    /// The response may be about another subject than was meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) warning: Option<String>,
}

/// The override of a bucket's subject.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Override {
    pub(super) id: String,
    pub(super) comment: Option<String>,
    pub(super) until: Option<DateTime>,
    pub(super) origin: Origin,
}

/// Where an override comes from. One by the admin API takes the place of one of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(in crate::app) enum Origin {
    Api,
    File,
}

impl From<OverrideOrigin> for Origin {
    fn from(origin: OverrideOrigin) -> Self {
        match origin {
            OverrideOrigin::AdminApi => Self::Api,
            OverrideOrigin::Configuration => Self::File,
        }
    }
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Config {
    pub(super) loaded_at: DateTime,
    /// By their names, each as it is written, with secrets hidden; with `defaults=true`, also the
    /// defaults of keys that are left out.
    #[cfg_attr(test, schemars(with = "serde_json::Map<String, Value>"))]
    pub(super) files: Value,
    /// The keys of gateway.yaml whose changes take a restart, such as `admin.address`, with all
    /// that is below them. A reload applies the others.
    pub(super) restart_keys: Vec<String>,
    pub(super) warnings: Vec<String>,
    pub(super) refused: Option<RefusedConfig>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct RefusedConfig {
    pub(super) at: DateTime,
    pub(super) errors: Vec<String>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct LogLevel {
    /// The one in force.
    pub(super) level: String,
    pub(super) configured: String,
    /// When the configured one holds again.
    pub(super) until: Option<DateTime>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Explanation {
    pub(super) explanation: String,
}
