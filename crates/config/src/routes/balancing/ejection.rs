//! When a server that fails gets no requests for a while.

use serde::Deserialize;
use weir_proxy::Ejection;
use weir_yaml::{Lowered, Lowering, Percent, PositiveDuration, Spanned, WordOr, keys_or_off};

use crate::limits::{StatusList, status_set};

/// When a server that fails gets no requests.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "Ejection"))]
#[serde(deny_unknown_fields)]
pub(crate) struct EjectionKeys {
    /// How many failures in a row eject a server: a closed connection, what is not a response, a
    /// time-out, or a `status`. Default: `5`.
    pub(crate) failures: Option<Spanned<u32>>,
    /// Which statuses are failures. Default: `5xx`.
    pub(crate) status: Option<StatusList>,
    /// How long the first ejection lasts. Default: `1s`.
    pub(crate) base_time: Option<Spanned<PositiveDuration>>,
    /// How long an ejection lasts at most. Default: `1m`.
    pub(crate) max_time: Option<PositiveDuration>,
    /// How many of the servers may be ejected at a time, rounded up; never all. Those that refuse
    /// connections are ejected beyond that. Default: `50%`.
    pub(crate) max_ejected: Option<Percent>,
}

pub(super) fn ejection(
    cx: &mut Lowering<'_>,
    written: Option<&Spanned<WordOr<EjectionKeys>>>,
) -> Lowered<Option<Ejection>> {
    let Some(written) = written else {
        return Ok(Some(Ejection::default()));
    };
    let Some(keys) = keys_or_off(cx, written, "ejection")? else {
        return Ok(None);
    };
    let mut ejection = Ejection::default();
    if let Some(failures) = keys.failures {
        if failures.value == 0 {
            let error = cx.error(failures.span, "no failures eject no server");
            return Err(error.help("say `ejection: off`, or at least 1"));
        }
        ejection.failures = failures.value;
    }
    if let Some(status) = &keys.status {
        ejection.status = status_set(cx, status)?;
    }
    if let Some(base_time) = keys.base_time {
        ejection.base_time = base_time.value.0;
    }
    let longest = ejection.max_time.max(ejection.base_time);
    ejection.max_time = keys.max_time.map_or(longest, |time| time.0);
    if let Some(base_time) = keys.base_time
        && ejection.base_time > ejection.max_time
    {
        let error = cx.error(base_time.span, "`base_time` exceeds `max_time`");
        return Err(error.help("the first ejection is the shortest; raise `max_time`"));
    }
    if let Some(most) = keys.max_ejected {
        ejection.max_ejected = most.0;
    }
    Ok(Some(ejection))
}
