//! What may be written of limits: `limits/defaults.yaml` and `limits/overrides.yaml` in Boulder's
//! form, with keys of ours, and how routes use them.

use serde::Deserialize;

use crate::config::values::{HumanDuration, Until};
use crate::config::yaml::{Entries, Note, OneOrMany, Spanned, WordOr};

/// `defaults.yaml`: limits by their names.
pub(crate) type Defaults = Spanned<Entries<Spanned<DefaultLimit>>>;

/// `overrides.yaml`: a list, each of whose items names one limit.
pub(crate) type Overrides = Spanned<Vec<Spanned<Entries<Spanned<OverrideEntry>>>>>;

/// A limit.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DefaultLimit {
    pub(crate) per: Option<OneOrMany<Spanned<String>>>,
    pub(crate) missing: Option<MissingValue>,
    pub(crate) enabled: Option<bool>,
    pub(crate) enforce: Option<Spanned<Enforce>>,
    pub(crate) id: Option<Spanned<u64>>,
    pub(crate) burst: Option<Spanned<u64>>,
    pub(crate) count: Option<Spanned<u64>>,
    pub(crate) period: Option<Spanned<HumanDuration>>,
    pub(crate) in_flight: Option<Spanned<u64>>,
    pub(crate) algorithm: Option<Spanned<AlgorithmName>>,
    pub(crate) align: Option<Spanned<AlignTo>>,
    pub(crate) calendar: Option<Spanned<CalendarUnit>>,
    pub(crate) time_zone: Option<Spanned<String>>,
    pub(crate) count_denied: Option<Spanned<bool>>,
}

/// How a limit counts.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AlgorithmName {
    Gcra,
    TokenBucket,
    FixedWindow,
    SlidingWindow,
    SlidingLog,
}

/// What fixed windows begin with.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AlignTo {
    Period,
    FirstRequest,
}

/// What a calendar window spans.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CalendarUnit {
    Day,
    Week,
    Month,
}

/// What a request without a value to count by gets.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MissingValue {
    Skip,
    Deny,
}

/// Other parameters of a limit, for some ids.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OverrideEntry {
    pub(crate) burst: Option<Spanned<u64>>,
    pub(crate) count: Option<Spanned<u64>>,
    pub(crate) period: Option<Spanned<HumanDuration>>,
    pub(crate) in_flight: Option<Spanned<u64>>,
    pub(crate) until: Option<Spanned<Until>>,
    pub(crate) ids: Spanned<Vec<Spanned<WordOr<Id>>>>,
}

/// An id with a note on it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Id {
    pub(crate) id: String,
    /// Nothing depends on it, so it may be empty.
    #[serde(default)]
    pub(crate) comment: Note,
}

/// A limit as one route uses it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitUse {
    pub(crate) limit: Spanned<String>,
    pub(crate) enabled: Option<bool>,
    pub(crate) kind: Option<Spanned<UseKind>>,
    pub(crate) cost: Option<Spanned<WordOr<MeasuredCost>>>,
    pub(crate) spend_on: Option<Spanned<Responses>>,
    pub(crate) refund_on: Option<Spanned<Responses>>,
    pub(crate) per: Option<OneOrMany<Spanned<String>>>,
    pub(crate) missing: Option<MissingValue>,
    pub(crate) enforce: Option<Spanned<Enforce>>,
}

/// What a request does with the bucket of a limit.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UseKind {
    CheckAndSpend,
    CheckOnly,
    SpendOnly,
}

/// Where the cost of a request is said.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MeasuredCost {
    pub(crate) request_header: Option<Spanned<String>>,
    pub(crate) response_header: Option<Spanned<String>>,
    pub(crate) request_bytes: Option<Spanned<String>>,
    pub(crate) default: Option<Spanned<u64>>,
}

/// Responses of some kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Responses {
    pub(crate) status: Spanned<OneOrMany<Spanned<String>>>,
}

/// `true`, `false` or a percentage, as text.
pub(crate) type Enforce = String;
