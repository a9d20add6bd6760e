//! Findings as they are shown: what needs attention, of a gateway itself or of subjects of limits, and
//! what can be done.

#![allow(
    missing_docs,
    reason = "docs/openapi.json describes members by their comments, and some need none"
)]

use std::borrow::Cow;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scope::Counted;

#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct Findings {
    #[cfg_attr(feature = "schema", schemars(extend("enum" = [60])))]
    pub period: u32,
    #[serde(flatten)]
    pub counted: Counted,
    pub gateway: Vec<GatewayFinding>,
    pub findings: Vec<Finding>,
}

/// Something about a gateway, and what can be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct GatewayFinding {
    pub kind: GatewayFindingKind,
    /// Which gateway it is about, if it is another than the one that is asked.
    pub gateway: Option<String>,
    /// A sentence about it.
    pub text: String,
    /// The errors of a configuration that was refused, or the limits that differ between gateways,
    /// in lines.
    pub detail: Option<String>,
    /// What can be done.
    pub remedy: Cow<'static, str>,
}

impl GatewayFinding {
    /// A finding about the gateway that is asked, without details.
    pub fn new(kind: GatewayFindingKind, text: String, remedy: &'static str) -> Self {
        Self {
            kind,
            gateway: None,
            text,
            detail: None,
            remedy: remedy.into(),
        }
    }
}

/// How a kind of findings is shown in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// At most ten characters.
    pub title: &'static str,
    /// How bad it is.
    pub severity: FindingSeverity,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingSeverity {
    /// Requests fail or are shed, a new configuration is not in force, or a client does not wait.
    Critical,
    /// Something is to be changed.
    Warning,
    /// To be known; as a rule nothing need be done.
    Notice,
    /// It is dealt with.
    Resolved,
}

impl Label {
    const fn new(title: &'static str, severity: FindingSeverity) -> Self {
        Self { title, severity }
    }
}

/// What a finding is about, the worst first.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum GatewayFindingKind {
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

impl GatewayFindingKind {
    /// How findings of this kind are shown.
    pub const fn label(self) -> Label {
        match self {
            Self::Configuration => Label::new("CONFIG", FindingSeverity::Critical),
            Self::Store => Label::new("STORE", FindingSeverity::Critical),
            Self::Upstream => Label::new("UPSTREAM", FindingSeverity::Critical),
            Self::Overload => Label::new("OVERLOAD", FindingSeverity::Critical),
            Self::Errors => Label::new("ERRORS", FindingSeverity::Critical),
            Self::Proxy => Label::new("PROXY", FindingSeverity::Warning),
            Self::Unreadable => Label::new("UNREADABLE", FindingSeverity::Warning),
            Self::Certificate => Label::new("CERT", FindingSeverity::Warning),
            Self::Refused => Label::new("REFUSED", FindingSeverity::Notice),
            Self::Fleet => Label::new("FLEET", FindingSeverity::Warning),
        }
    }
}

#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct Finding {
    pub kind: FindingKind,
    pub limit: String,
    /// A subject of the limit, or the network of several.
    pub subject: String,
    /// The name of the account, where log.account is plain.
    pub name: Option<String>,
    /// How many subjects of the limit it is about.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub subjects: usize,
    pub requests: u64,
    pub denied: u64,
    /// Requests a second, on average over the last 3 to 6 seconds.
    pub rate: f64,
    /// The most of the burst that was taken.
    #[cfg_attr(feature = "schema", schemars(range(max = 1)))]
    pub used: f64,
    /// Other limits per the same that deny it.
    pub also: Vec<String>,
    pub banned: Option<FoundBan>,
    /// What is going on, to be read after the subject.
    pub text: String,
    pub remedy: Remedy,
}

/// What a finding is about, the worst first.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
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

impl FindingKind {
    /// How findings of this kind are shown.
    pub const fn label(self) -> Label {
        match self {
            Self::Abuse => Label::new("ABUSE", FindingSeverity::Critical),
            Self::OverLimit => Label::new("OVER LIMIT", FindingSeverity::Warning),
            Self::DryRun => Label::new("DRY RUN", FindingSeverity::Warning),
            Self::NearLimit => Label::new("NEAR LIMIT", FindingSeverity::Notice),
            Self::Banned => Label::new("BANNED", FindingSeverity::Resolved),
            Self::Sends => Label::new("SENDS", FindingSeverity::Notice),
        }
    }
}

#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct FoundBan {
    pub ban: String,
    /// In seconds; null for good.
    pub ends_in: Option<f64>,
    /// Whether the subject that is named is a network, of which clients are subjects.
    pub network: bool,
}

/// What can be done about a finding.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct Remedy {
    pub action: Option<RemedyAction>,
    /// The ban that the action is about.
    pub ban: Option<String>,
    pub text: String,
    /// The command that does it, quoted for a shell; null if the subject has characters that are
    /// not safe to paste.
    pub command: Option<String>,
    /// The body of the request that sets the override; null for other remedies.
    pub parameters: Option<RaisedLimit>,
}

impl Remedy {
    /// Advice that no command follows.
    pub fn advice(text: &str) -> Self {
        Self {
            action: None,
            ban: None,
            text: text.to_owned(),
            command: None,
            parameters: None,
        }
    }
}

#[derive(Clone, Copy, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RemedyAction {
    Ban,
    Override,
    Lift,
}

/// Higher parameters of a limit; the members are those of an override.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct RaisedLimit {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub burst: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub in_flight: Option<u64>,
    #[serde(rename = "for")]
    pub length: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The labels of all variants; it does not compile if one is missing.
    macro_rules! labels {
        ($kind:ident: $($variant:ident)*) => {{
            let _ = |kind| match kind {
                $($kind::$variant => {})*
            };
            [$($kind::$variant.label()),*]
        }};
    }

    /// `weir top` gives titles a column of ten.
    #[test]
    fn no_title_is_wider_than_its_column() {
        let of_gateway = labels!(GatewayFindingKind: Configuration Store Upstream Overload Errors
            Proxy Unreadable Certificate Refused Fleet);
        let of_subjects = labels!(FindingKind: Abuse OverLimit DryRun NearLimit Banned Sends);
        for label in of_gateway.iter().chain(&of_subjects) {
            assert!(label.title.chars().count() <= 10, "{}", label.title);
        }
    }
}
