//! When a request is sent again.

use std::str::FromStr;

use serde::Deserialize;
use thiserror::Error;
use weir_proxy::Retries;
use weir_rules::Statuses;
use weir_yaml::{Lowered, Lowering, OneOrMany, Percent, Spanned, WordOr, keys_or_off};

use crate::foreign::Parsed;

/// When a request is sent again.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "Retries"))]
#[serde(deny_unknown_fields)]
pub(crate) struct RetriesKeys {
    /// How many retries there may be at a time, of the requests in flight to the upstream; at least
    /// 3, unless it is `0%`. Others wait for their turn, for up to a second. Default: `20%`.
    pub(crate) budget: Option<Percent>,
    /// After what: a connection that was closed before the response, no response within
    /// `response_timeout`, or a response with such a status. Type: `closed`, `timeout`, statuses.
    /// Default: `[closed, timeout]`.
    pub(crate) on: Option<Spanned<OneOrMany<Spanned<Parsed<RetryReason>>>>>,
}

/// After what a request is sent again.
#[derive(Clone, Debug)]
pub(crate) enum RetryReason {
    Closed,
    Timeout,
    Status(Statuses),
}

/// A text that is not a reason to retry.
#[derive(Debug, Error)]
#[error(
    "`{0}` is not a reason to retry\nthey are closed, timeout, and statuses such as 503 or 502-504"
)]
pub(crate) struct RetryReasonError(String);

impl FromStr for RetryReason {
    type Err = RetryReasonError;

    fn from_str(text: &str) -> Result<Self, RetryReasonError> {
        match text {
            "closed" => Ok(Self::Closed),
            "timeout" => Ok(Self::Timeout),
            _ => match text.parse() {
                Ok(statuses) => Ok(Self::Status(statuses)),
                Err(_) => Err(RetryReasonError(text.to_owned())),
            },
        }
    }
}

pub(super) fn retries(
    cx: &mut Lowering<'_>,
    written: Option<&Spanned<WordOr<RetriesKeys>>>,
) -> Lowered<Option<Retries>> {
    let Some(written) = written else {
        return Ok(Some(Retries::default()));
    };
    let Some(keys) = keys_or_off(cx, written, "retries")? else {
        return Ok(None);
    };
    let mut retries = Retries::default();
    if let Some(budget) = keys.budget {
        retries.budget = budget.0;
    }
    if let Some(on) = &keys.on {
        let reasons = cx.filled(
            on,
            "there is nothing to retry on",
            "say `retries: off`, or name reasons such as [closed, timeout, 503]",
        )?;
        (retries.on_closed, retries.on_timeout) = (false, false);
        let mut statuses = Vec::new();
        for reason in reasons {
            match &reason.value.0 {
                RetryReason::Closed => retries.on_closed = true,
                RetryReason::Timeout => retries.on_timeout = true,
                RetryReason::Status(status) => statuses.push(status.clone()),
            }
        }
        retries.on_status = statuses.into_iter().collect();
    }
    Ok(Some(retries))
}
