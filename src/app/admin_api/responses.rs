//! The responses of the admin API, as JSON. docs/openapi.json is derived from these types: their
//! comments are its descriptions.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

#[cfg(test)]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};
use weir_config::Until;
use weir_limit::time::{Nanos, Timestamp};
use weir_rules::OverrideOrigin;

use crate::app::fleet::{FiguresState, GatewayState};
use crate::app::shared_bans::ListedCause;

/// A moment in UTC, to the second.
#[derive(Clone, Copy, Debug)]
pub(super) struct DateTime(pub(super) Timestamp);

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

pub(super) fn seconds(span: Nanos) -> f64 {
    Duration::from(span).as_secs_f64()
}

/// `None` if the span does not end.
pub(super) fn finite_seconds(span: Nanos) -> Option<f64> {
    (span != Nanos::NEVER).then(|| seconds(span))
}

/// A number of so many parts in one, rounded down.
pub(super) fn rounded_down(number: f64, parts: f64) -> f64 {
    // A sum of rates may be a little below the number that it stands for.
    (number * parts + 1e-6).floor() / parts
}

/// Whose figures are shown.
#[derive(Clone, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Counted {
    pub(super) scope: CountedScope,
    /// How many gateways are counted.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub(super) gateways: usize,
    /// How many are listed, and not silent; of those that are not counted, the subjects are not
    /// known.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub(super) known: usize,
    /// Whether the gateway that is asked shares its store with others, by its configuration. False
    /// where it alone is asked about.
    pub(super) is_fleet: bool,
    /// Why the fleet is this gateway alone, or lacks figures of others.
    pub(super) alone: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(super) enum CountedScope {
    /// The gateway that is asked.
    Gateway,
    /// All gateways that share its store.
    Fleet,
}

impl CountedScope {
    /// The scope of this name.
    pub(super) fn parse(word: &str) -> Option<Self> {
        match word {
            "gateway" => Some(Self::Gateway),
            "fleet" => Some(Self::Fleet),
            _ => None,
        }
    }
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Top {
    #[cfg_attr(test, schemars(extend("enum" = [60, 3600])))]
    pub(super) period: u32,
    #[serde(flatten)]
    pub(super) counted: Counted,
    pub(super) subjects: Vec<TopSubject>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct TopSubject {
    pub(super) limit: String,
    pub(super) subject: String,
    /// The name of the account, where log.account is plain.
    pub(super) name: Option<String>,
    pub(super) requests: u64,
    pub(super) denied: u64,
    /// Requests a second: of the last minute, on average over its last 3 to 6 seconds.
    pub(super) rate: f64,
    /// The most of the burst that was taken.
    #[cfg_attr(test, schemars(range(max = 1)))]
    pub(super) used: f64,
    pub(super) key: String,
    /// How many of its requests may be missing, at most, as there was no room for all subjects;
    /// null where a gateway is not counted.
    pub(super) uncounted: Option<u64>,
    /// The same for its rate.
    pub(super) uncounted_rate: Option<f64>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Findings {
    #[cfg_attr(test, schemars(extend("enum" = [60])))]
    pub(super) period: u32,
    #[serde(flatten)]
    pub(super) counted: Counted,
    pub(super) gateway: Vec<GatewayFinding>,
    pub(super) findings: Vec<Finding>,
}

/// Something about a gateway, and what can be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct GatewayFinding {
    pub(super) kind: GatewayFindingKind,
    /// Which gateway it is about, if it is another than the one that is asked.
    pub(super) gateway: Option<String>,
    /// A sentence about it.
    pub(super) text: String,
    /// The errors of a configuration that was refused, or the limits that differ between gateways,
    /// in lines.
    pub(super) detail: Option<String>,
    /// What can be done.
    pub(super) remedy: Cow<'static, str>,
}

impl GatewayFinding {
    pub(super) fn new(kind: GatewayFindingKind, text: String, remedy: &'static str) -> Self {
        Self {
            kind,
            gateway: None,
            text,
            detail: None,
            remedy: remedy.into(),
        }
    }
}

/// What a finding is about, the worst first.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(super) enum GatewayFindingKind {
    /// A configuration was refused.
    Configuration,
    /// The store fails.
    Store,
    /// Servers of an upstream fail or are out of use.
    Upstream,
    /// Requests of a route are shed.
    Overload,
    /// Requests of a route end with server errors.
    Errors,
    /// A peer names other clients and is no trusted proxy.
    Proxy,
    /// Web pages of other origins cannot read a limit's denials.
    Unreadable,
    /// A certificate is about to end.
    Certificate,
    /// Connections of banned or blocked peers are refused.
    Refused,
    /// Gateways of the fleet are silent, or have different configurations.
    Fleet,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Finding {
    pub(super) kind: FindingKind,
    pub(super) limit: String,
    /// A subject of the limit, or the network of several.
    pub(super) subject: String,
    /// The name of the account, where log.account is plain.
    pub(super) name: Option<String>,
    /// How many subjects of the limit it is about.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub(super) subjects: usize,
    pub(super) requests: u64,
    pub(super) denied: u64,
    /// Requests a second, on average over the last 3 to 6 seconds.
    pub(super) rate: f64,
    /// The most of the burst that was taken.
    #[cfg_attr(test, schemars(range(max = 1)))]
    pub(super) used: f64,
    /// Other limits per the same that deny it.
    pub(super) also: Vec<String>,
    pub(super) banned: Option<FoundBan>,
    /// What is going on, to be read after the subject.
    pub(super) text: String,
    pub(super) remedy: Remedy,
}

/// What a finding is about, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(super) enum FindingKind {
    /// It keeps sending although it is denied.
    Abuse,
    /// It wants more than the limit allows, and some of that is denied.
    OverLimit,
    /// A limit that is not enforced yet would deny it.
    DryRun,
    /// It has used most of its bucket.
    NearLimit,
    /// It is banned already.
    Banned,
    /// It sends, which is worth a word only if it is banned. No answer has it.
    #[serde(skip)]
    Sends,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct FoundBan {
    pub(super) ban: String,
    /// In seconds; null for good.
    pub(super) ends_in: Option<f64>,
    /// Whether the subject that is named is a network, of which clients are subjects.
    pub(super) network: bool,
}

/// What can be done about a finding.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Remedy {
    pub(super) action: Option<RemedyAction>,
    /// The ban that the action is about.
    pub(super) ban: Option<String>,
    pub(super) text: String,
    /// The command that does it, quoted for a shell; null if the subject has characters that are
    /// not safe to paste.
    pub(super) command: Option<String>,
    /// The body of the request that sets the override; null for other remedies.
    pub(super) parameters: Option<RaisedLimit>,
}

#[derive(Clone, Copy, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(super) enum RemedyAction {
    Ban,
    Override,
    Lift,
}

/// Higher parameters of a limit; the members are those of an override.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct RaisedLimit {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub(super) burst: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub(super) count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) period: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub(super) in_flight: Option<u64>,
    #[serde(rename = "for")]
    pub(super) length: &'static str,
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
pub(super) enum Origin {
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
pub(super) struct OverridePage {
    pub(super) total: usize,
    pub(super) overrides: Vec<ListedOverride>,
}

/// An override of a file or of the admin API.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct ListedOverride {
    pub(super) limit: String,
    pub(super) id: String,
    pub(super) origin: Origin,
    /// As they are written, with the moment at which it ends.
    #[serde(flatten)]
    #[cfg_attr(test, schemars(with = "super::tests::openapi::ListedParameters"))]
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

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct BanPage {
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
pub(super) struct Ban {
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

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Config {
    pub(super) loaded_at: DateTime,
    /// By their names, each as it is written, with secrets hidden; with `defaults=true`, also the
    /// defaults of keys that are left out.
    #[cfg_attr(test, schemars(with = "Map<String, Value>"))]
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

/// The gateways that share the store.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Gateways {
    /// Whether the gateway that is asked shares its store with others, by its configuration.
    pub(super) is_fleet: bool,
    /// Why no others are shown, or none of their figures.
    pub(super) alone: Option<String>,
    /// The one that is asked comes first.
    pub(super) gateways: Vec<Gateway>,
    /// The configurations of others that differ from that of the gateway that is asked.
    pub(super) configurations: Vec<OtherConfiguration>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Gateway {
    /// Of the process, at random.
    pub(super) id: String,
    /// Of the machine.
    pub(super) name: String,
    /// Of its admin listener, or of its first listener for clients.
    pub(super) address: String,
    pub(super) version: String,
    /// The digest of what a reload applies of its configuration.
    pub(super) configuration: String,
    /// A fingerprint of its `hash_key`, which the digest does not cover; null without one.
    pub(super) hash_key: Option<String>,
    pub(super) since: DateTime,
    /// It is the one that is asked.
    pub(super) is_self: bool,
    pub(super) state: GatewayState,
    /// Its files have another configuration, which it refused. False where figures are not known.
    pub(super) configuration_refused: bool,
    /// How many seconds ago it published its figures.
    pub(super) seen: f64,
    pub(super) figures: FiguresState,
    /// Of the last minute; null where figures are not known.
    pub(super) counts: Option<GatewayCounts>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct GatewayCounts {
    /// Requests that were let through.
    pub(super) requests: u64,
    /// Those of them that ended with a server error.
    pub(super) failed: u64,
    /// Requests that were not.
    pub(super) denied: u64,
    /// Now.
    pub(super) in_flight: u64,
    /// Now.
    pub(super) connections: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct OtherConfiguration {
    pub(super) configuration: String,
    /// The gateways that have it.
    pub(super) gateways: Vec<String>,
    /// The limits that differ; null where they are not known.
    pub(super) limits: Option<Vec<LimitDifference>>,
}

/// A limit of which two configurations have different definitions.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct LimitDifference {
    pub(super) limit: String,
    /// On the gateway that is asked; null if it has no such limit.
    pub(super) here: Option<String>,
    pub(super) there: Option<String>,
    /// What passes of one subject while both are in force.
    pub(super) meanwhile: String,
}
