//! How servers are asked whether they are healthy.

use http::uri::PathAndQuery;
use serde::Deserialize;
use weir_proxy::HealthCheck;
use weir_yaml::{Lowered, Lowering, PositiveDuration, Spanned};

use crate::limits::{StatusList, status_set};

/// How servers are asked whether they are healthy.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "HealthCheck"))]
#[serde(deny_unknown_fields)]
pub(crate) struct HealthCheckKeys {
    /// What is asked for, with its query if there is one. Type: path.
    pub(crate) path: Spanned<String>,
    /// How long Weir waits between two checks, give or take a tenth. Default: `5s`.
    pub(crate) interval: Option<PositiveDuration>,
    /// How long a check may take. Default: `1s`.
    pub(crate) timeout: Option<PositiveDuration>,
    /// The statuses with which a check passes. Default: `200-399`.
    pub(crate) expect: Option<StatusList>,
    /// How many checks in a row must pass before an unhealthy server is healthy. Default: `2`.
    pub(crate) healthy_after: Option<Spanned<u32>>,
    /// How many checks in a row must fail before a healthy server is unhealthy. Default: `3`.
    pub(crate) unhealthy_after: Option<Spanned<u32>>,
}

pub(super) fn health_check(
    cx: &mut Lowering<'_>,
    written: &Spanned<HealthCheckKeys>,
) -> Lowered<HealthCheck> {
    let path = &written.path;
    let is_target = path.value.parse::<PathAndQuery>().is_ok();
    if !is_target || !path.value.starts_with('/') {
        let message = format!("`{}` is not a path", path.value);
        let error = cx.error(path.span, message);
        return Err(error.help("write it like /health, as the server knows it"));
    }
    let mut check = HealthCheck::new(path.value.as_str().into());
    check.interval = written.interval.map_or(check.interval, |time| time.0);
    check.timeout = written.timeout.map_or(check.timeout, |time| time.0);
    let counts = [
        (&mut check.healthy_after, written.healthy_after),
        (&mut check.unhealthy_after, written.unhealthy_after),
    ];
    for (count, written) in counts {
        let Some(written) = written else { continue };
        if written.value == 0 {
            let error = cx.error(written.span, "no checks decide nothing");
            return Err(error.help("say at least 1"));
        }
        *count = written.value;
    }
    if let Some(expect) = &written.expect {
        check.expect = status_set(cx, expect)?;
    }
    Ok(check)
}
