//! `limits/defaults.yaml` and `limits/overrides.yaml`: Boulder's form, with keys of ours.

use serde::Deserialize;

use super::routes::Enforce;
use crate::config::duration::HumanDuration;
use crate::config::until::Until;
use crate::config::yaml::{Entries, Note, OneOrMany, Spanned, WordOr};

/// `defaults.yaml`: limits by their names.
pub(in crate::config) type Defaults = Spanned<Entries<Spanned<DefaultLimit>>>;

/// `overrides.yaml`: a list, each of whose items names one limit.
pub(in crate::config) type Overrides = Spanned<Vec<Spanned<Entries<Spanned<OverrideEntry>>>>>;

/// A limit.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct DefaultLimit {
    pub(in crate::config) per: Option<OneOrMany<Spanned<String>>>,
    pub(in crate::config) missing: Option<MissingValue>,
    pub(in crate::config) enabled: Option<bool>,
    pub(in crate::config) enforce: Option<Spanned<Enforce>>,
    pub(in crate::config) id: Option<Spanned<u64>>,
    pub(in crate::config) burst: Option<Spanned<u64>>,
    pub(in crate::config) count: Option<Spanned<u64>>,
    pub(in crate::config) period: Option<Spanned<HumanDuration>>,
    pub(in crate::config) in_flight: Option<Spanned<u64>>,
    pub(in crate::config) algorithm: Option<Spanned<AlgorithmName>>,
    pub(in crate::config) align: Option<Spanned<AlignTo>>,
    pub(in crate::config) calendar: Option<Spanned<CalendarUnit>>,
    pub(in crate::config) time_zone: Option<Spanned<String>>,
    pub(in crate::config) count_denied: Option<Spanned<bool>>,
}

/// How a limit counts.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum AlgorithmName {
    Gcra,
    TokenBucket,
    FixedWindow,
    SlidingWindow,
    SlidingLog,
}

/// What fixed windows begin with.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum AlignTo {
    Period,
    FirstRequest,
}

/// What a calendar window spans.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum CalendarUnit {
    Day,
    Week,
    Month,
}

/// What a request without a value to count by gets.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum MissingValue {
    Skip,
    Deny,
}

/// Other parameters of a limit, for some ids.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct OverrideEntry {
    pub(in crate::config) burst: Option<Spanned<u64>>,
    pub(in crate::config) count: Option<Spanned<u64>>,
    pub(in crate::config) period: Option<Spanned<HumanDuration>>,
    pub(in crate::config) in_flight: Option<Spanned<u64>>,
    pub(in crate::config) until: Option<Spanned<Until>>,
    pub(in crate::config) ids: Spanned<Vec<Spanned<WordOr<Id>>>>,
}

/// An id with a note on it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Id {
    pub(in crate::config) id: String,
    /// Nothing depends on it, so it may be empty.
    #[serde(default)]
    pub(in crate::config) comment: Note,
}
