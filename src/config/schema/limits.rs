//! `limits/defaults.yaml` and `limits/overrides.yaml`: Boulder's form, with keys of ours.

use serde::Deserialize;

use super::routes::Enforce;
use crate::config::duration::Span;
use crate::config::until::Until;
use crate::config::yaml::{Entries, Note, OneOrMany, Placed, WordOr};

/// `defaults.yaml`: limits by their names.
pub(in crate::config) type Defaults = Placed<Entries<Placed<DefaultLimit>>>;

/// `overrides.yaml`: a list, each of whose items names one limit.
pub(in crate::config) type Overrides = Vec<Placed<Entries<Placed<OverrideEntry>>>>;

/// A limit.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct DefaultLimit {
    pub(in crate::config) per: Option<OneOrMany<Placed<String>>>,
    pub(in crate::config) missing: Option<MissingValue>,
    pub(in crate::config) enabled: Option<bool>,
    pub(in crate::config) enforce: Option<Placed<Enforce>>,
    pub(in crate::config) id: Option<Placed<u64>>,
    pub(in crate::config) burst: Option<Placed<u64>>,
    pub(in crate::config) count: Option<Placed<u64>>,
    pub(in crate::config) period: Option<Placed<Span>>,
    pub(in crate::config) in_flight: Option<Placed<u64>>,
    pub(in crate::config) algorithm: Option<Placed<AlgorithmName>>,
    pub(in crate::config) align: Option<Placed<AlignTo>>,
    pub(in crate::config) calendar: Option<Placed<CalendarUnit>>,
    pub(in crate::config) time_zone: Option<Placed<String>>,
    pub(in crate::config) count_denied: Option<Placed<bool>>,
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
    pub(in crate::config) burst: Option<Placed<u64>>,
    pub(in crate::config) count: Option<Placed<u64>>,
    pub(in crate::config) period: Option<Placed<Span>>,
    pub(in crate::config) in_flight: Option<Placed<u64>>,
    pub(in crate::config) until: Option<Placed<Until>>,
    pub(in crate::config) ids: Placed<Vec<Placed<WordOr<Id>>>>,
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
