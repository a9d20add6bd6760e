//! What may be written of balancing.

use serde::Deserialize;

use crate::config::values::HumanDuration;
use crate::config::yaml::{OneOrMany, Spanned};

/// Retry after the server closed the connection without a response.
pub(super) const CLOSED: &str = "closed";
/// Retry after the server did not respond in time.
pub(super) const TIMEOUT: &str = "timeout";

/// A server with a weight.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Server {
    pub(crate) url: Spanned<String>,
    pub(crate) weight: Option<Spanned<u32>>,
}

/// How the next server is chosen.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Balance {
    RoundRobin,
    LeastRequests,
    Hash(OneOrMany<Spanned<String>>),
}

/// When a server that fails gets no requests.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ejection {
    pub(crate) failures: Option<Spanned<u32>>,
    pub(crate) status: Option<Spanned<OneOrMany<Spanned<String>>>>,
    pub(crate) base_time: Option<Spanned<HumanDuration>>,
    pub(crate) max_time: Option<Spanned<HumanDuration>>,
    pub(crate) max_ejected: Option<Spanned<String>>,
}

/// When a request is sent again.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Retries {
    pub(crate) budget: Option<Spanned<String>>,
    pub(crate) on: Option<Spanned<OneOrMany<Spanned<String>>>>,
}

/// How servers are asked whether they are healthy.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HealthCheck {
    pub(crate) path: Spanned<String>,
    pub(crate) interval: Option<Spanned<HumanDuration>>,
    pub(crate) timeout: Option<Spanned<HumanDuration>>,
    pub(crate) healthy_after: Option<Spanned<u32>>,
    pub(crate) unhealthy_after: Option<Spanned<u32>>,
    pub(crate) expect: Option<Spanned<OneOrMany<Spanned<String>>>>,
}
