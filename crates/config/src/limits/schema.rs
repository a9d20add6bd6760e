//! What may be written of limits: `limits/defaults.yaml` and `limits/overrides.yaml` in Boulder's
//! form, with keys of ours, the same within `gateway.yaml`, and how routes use them.

use serde::Deserialize;
use weir_limit::{Algorithm, Alignment, CalendarUnit, Mode};
use weir_rules::{Enforcement, JsonPointer, Missing};
use weir_yaml::{
    ByteSize, Entries, FieldName, HumanDuration, Note, OneOrMany, Spanned, WordOr, words,
};

use super::statuses::StatusList;
use crate::foreign::{Config, Parsed, Word};
use crate::until::Until;

/// `defaults.yaml`, or `limits` in `gateway.yaml`.
pub(crate) type Defaults = Spanned<DefaultLimits>;

pub(crate) type DefaultLimits = Entries<Spanned<DefaultLimit>>;

/// `overrides.yaml`, or `overrides` in `gateway.yaml`: a list, each of whose items names one limit.
pub(crate) type Overrides = Spanned<Vec<Spanned<Entries<Spanned<OverrideEntry>>>>>;

#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct DefaultLimit {
    /// What it is counted per. Type: source or list of them. Default: the route's.
    #[cfg_attr(test, schemars(extend("examples" = crate::tests::json_schema::SOURCES)))]
    pub(crate) per: Option<Spanned<OneOrMany<Spanned<String>>>>,
    /// A request without a value to count by is not counted, or is answered with 403 (or the decoy,
    /// on a route that shadow-bans). Default: `skip`.
    pub(crate) missing: Option<Word<Missing>>,
    /// Replaces the name in [bucket keys](#interned-names).
    pub(crate) id: Option<Spanned<u64>>,
    /// `false` switches the limit off wherever it is used. Default: `true`.
    pub(crate) enabled: Option<bool>,
    /// Whether its denials are acted upon, wherever it is used: [dry runs](#dry-runs). Default: `true`.
    pub(crate) enforce: Option<Spanned<Enforcement>>,
    /// Units that a full bucket holds: the most at once. Default: required for `gcra`.
    pub(crate) burst: Option<Spanned<u64>>,
    /// Units that come back each `period`: the long-term rate. Default: required, except with
    /// `in_flight`.
    pub(crate) count: Option<Spanned<u64>>,
    /// The time in which `count` units come back; for windows, how long one is. Default: required,
    /// except with `calendar` or `in_flight`.
    pub(crate) period: Option<Spanned<HumanDuration>>,
    /// Instead of `burst`, `count` and `period`: how many requests may be in flight at the same
    /// time.
    pub(crate) in_flight: Option<Spanned<u64>>,
    /// Without `in_flight`: how it is counted; `token_bucket` is another name for `gcra`. Default:
    /// `gcra`.
    pub(crate) algorithm: Option<Spanned<Word<Algorithm>>>,
    /// For a `fixed_window`: windows begin at multiples of the period since the Unix epoch, or with
    /// a subject's first request. Default: `period`.
    pub(crate) align: Option<Spanned<Word<Alignment>>>,
    /// For a `fixed_window`: the windows are calendar days, weeks or months; weeks begin on Monday.
    pub(crate) calendar: Option<Spanned<Word<CalendarUnit>>>,
    /// For a `calendar`: a name from the IANA time zone database, which is built in. Default:
    /// `UTC`.
    pub(crate) time_zone: Option<Spanned<String>>,
    /// For a `sliding_window` or `sliding_log`: denied requests count as well, so a client that
    /// does not stop is not let in again. Default: `false`.
    pub(crate) count_denied: Option<Spanned<bool>>,
    /// For a `gcra` limit in Redis: [units that a gateway takes from a hot bucket in
    /// advance](#prefetch). Type: percentage, number or keys.
    pub(crate) prefetch: Option<Spanned<WordOr<Prefetch>>>,
}

/// How many units gateways may take ahead of their requests.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Prefetch {
    /// How many units of one bucket a gateway holds at most: 8, to half the burst; overrides have
    /// the same percentage of their own burst, and one with a burst too small for 8 units is exact.
    /// Type: percentage of the burst, or number.
    pub(crate) units: Spanned<String>,
    /// How long it holds them at most, from `10ms` to `10s`. Default: `250ms`.
    pub(crate) max_age: Option<Spanned<HumanDuration>>,
}

/// Other parameters of a limit, for some ids.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct OverrideEntry {
    /// The `burst` for these ids; the algorithm is the limit's own. Default: required as for the
    /// limit.
    pub(crate) burst: Option<Spanned<u64>>,
    /// The `count` for these ids; the algorithm is the limit's own. Default: required as for the
    /// limit.
    pub(crate) count: Option<Spanned<u64>>,
    /// The `period` for these ids; the algorithm is the limit's own. Default: required as for the
    /// limit.
    pub(crate) period: Option<Spanned<HumanDuration>>,
    /// The `in_flight` for these ids; the algorithm is the limit's own. Default: required as for
    /// the limit.
    pub(crate) in_flight: Option<Spanned<u64>>,
    /// When it ends; from then on, without a reload, the limit applies as if there were no
    /// override. Default: never.
    pub(crate) until: Option<Spanned<Until>>,
    /// The subjects that it is for; each a text, or `{id, comment}`.
    pub(crate) ids: Spanned<Vec<Spanned<WordOr<Id>>>>,
}

#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Id {
    /// In the form of the limit's `per`.
    pub(crate) id: String,
    /// Why; `weir explain` shows it. Type: text.
    #[serde(default)]
    pub(crate) comment: Note,
}

#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitUse {
    /// A limit of `defaults.yaml`, or [one with overrides alone](#overridesyaml). Type: name.
    pub(crate) limit: Spanned<String>,
    /// What a request does with the bucket, below. Default: `check_and_spend`.
    pub(crate) kind: Option<Spanned<Word<Mode>>>,
    /// Units that a request takes. Type: number or keys, below. Default: `1`.
    pub(crate) cost: Option<Spanned<WordOr<MeasuredCost>>>,
    /// Only requests with such a response [take units](#counting-by-the-response). Type:
    /// `{status}`. Default: all responses.
    pub(crate) spend_on: Option<Spanned<Responses>>,
    /// Requests with such a response get their units back. Type: `{status}`. Default: none.
    pub(crate) refund_on: Option<Spanned<Responses>>,
    /// A limit of the same route that denies in place of this one where [an override of
    /// it](#overridesyaml) applies; this one then only spends. Type: name. Default: none.
    pub(crate) yields_to: Option<Spanned<String>>,
    /// For a limit whose definition does not say what it is counted per; it is enough that one
    /// route says it. Type: source or list of them. Default: as defined.
    #[cfg_attr(test, schemars(extend("examples" = crate::tests::json_schema::SOURCES)))]
    pub(crate) per: Option<Spanned<OneOrMany<Spanned<String>>>>,
    /// Whether a request without a value to count by is not counted or gets 403. Default: as
    /// defined.
    pub(crate) missing: Option<Word<Missing>>,
    /// `false` switches the limit off here: its bucket is neither read nor changed. Default:
    /// `true`.
    pub(crate) enabled: Option<bool>,
    /// Whether its denials are acted upon here: [dry runs](#dry-runs). Default: `true`.
    pub(crate) enforce: Option<Spanned<Enforcement>>,
}

/// Where the cost of a request is said.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct MeasuredCost {
    /// A number in the response's JSON, such as `/usage/total_tokens` (RFC 6901); of a list, the
    /// sum.
    pub(crate) response_json: Option<Spanned<OneOrMany<Spanned<Parsed<JsonPointer>>>>>,
    /// A trailer in which the app says the cost; clients do not see it. Type: trailer name.
    pub(crate) response_trailer: Option<Spanned<FieldName>>,
    /// A response header in which the app says the cost; clients do not see it.
    pub(crate) response_header: Option<Spanned<FieldName>>,
    /// A request header that says the cost.
    pub(crate) request_header: Option<Spanned<FieldName>>,
    /// How many bytes of the request body cost 1 unit, such as `512`, `64kB`, `1KiB` or `10MiB`; a
    /// started unit counts in full.
    pub(crate) request_bytes: Option<Spanned<ByteSize>>,
    /// The cost where nothing else says it. Default: `1`.
    pub(crate) default: Option<Spanned<u64>>,
}

#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Responses {
    /// `404`, a class such as `5xx`, or a range such as `500-503`.
    pub(crate) status: StatusList,
}

// Other keys say what else there is to say of a window.
words!(Algorithm, by Config:
    "gcra" => Self::Gcra,
    "token_bucket" => Self::Gcra,
    "fixed_window" => Self::FixedWindow(Alignment::Period),
    "sliding_window" => Self::SlidingWindow { count_denied: false },
    "sliding_log" => Self::SlidingLog { count_denied: false },
);

words!(Alignment, by Config: "period" => Self::Period, "first_request" => Self::FirstRequest);

words!(CalendarUnit, by Config: "day" => Self::Day, "week" => Self::Week, "month" => Self::Month);

words!(Missing, by Config: "skip" => Self::Skip, "deny" => Self::Deny);

words!(Mode, by Config:
    "check_and_spend" => Self::CheckAndSpend,
    "check_only" => Self::CheckOnly,
    "spend_only" => Self::SpendOnly,
);
