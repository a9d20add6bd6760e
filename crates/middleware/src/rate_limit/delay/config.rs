//! The keys of `delay` of `on_denied`.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use weir_limit::{Algorithm, MAX_DELAY, Mode};
use weir_rules::LimitUse;
use weir_yaml::{
    HumanDuration, Lowered, Lowering, PositiveDuration, PositiveDurationError, Span, Spanned,
    WordOr,
};

use super::Delay;

/// As many requests of a route as wait for their turn unless told otherwise.
const DEFAULT_DELAYED: NonZeroU32 = NonZeroU32::new(1000).unwrap();

/// How requests wait for their turn in place of a denial, and what those get that may not wait.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Delay"))]
#[serde(deny_unknown_fields)]
pub struct DelayKeys<O> {
    /// How long a request may wait, at most `2s`.
    up_to: Spanned<HumanDuration>,
    /// How many requests of the route may wait at the same time in this process; one more is
    /// denied. Default: `1000`.
    max_requests: Option<NonZeroU32>,
    /// Whether responses say how long their requests waited: `Server-Timing:
    /// ratelimit;dur=MILLISECONDS`. Default: `false`.
    server_timing: Option<bool>,
    /// What a request gets that may not wait. Type: `reject`, `{reject: ...}` or `{shadow: ...}`.
    /// Default: `reject`.
    pub(crate) otherwise: Option<Box<Spanned<O>>>,
}

impl<O> DelayKeys<O> {
    /// What is written of requests that may not wait, and how the others wait.
    pub(crate) fn lower<'w>(
        written: &'w Spanned<WordOr<Self>>,
        cx: &mut Lowering<'_>,
    ) -> (Option<&'w Spanned<O>>, Lowered<Delay>) {
        match &written.value {
            WordOr::Word(text) => {
                let longest = longest(cx, written.span, text.parse());
                let delay = longest.map(|longest| Delay::new(longest, DEFAULT_DELAYED, false));
                (None, delay)
            }
            WordOr::More(keys) => (keys.otherwise.as_deref(), keys.delay(cx)),
        }
    }

    fn delay(&self, cx: &mut Lowering<'_>) -> Lowered<Delay> {
        let longest = longest(cx, self.up_to.span, self.up_to.value.try_into())?;
        let max_requests = self.max_requests.unwrap_or(DEFAULT_DELAYED);
        let server_timing = self.server_timing.unwrap_or(false);
        Ok(Delay::new(longest, max_requests, server_timing))
    }
}

fn longest(
    cx: &mut Lowering<'_>,
    span: Span,
    written: Result<PositiveDuration, PositiveDurationError>,
) -> Lowered<Duration> {
    let PositiveDuration(longest) = cx.ok(span, written)?;
    let bound = Duration::from(MAX_DELAY);
    if longest > bound {
        let message = format!("a delay is at most {}", HumanDuration(bound));
        let help = "clients give up sooner or later; let them try again after a 429 instead";
        return Err(cx.error(span, message).help(help));
    }
    Ok(longest)
}

impl Delay {
    /// Makes sure that a route that delays has a limit that can: units come back one by one.
    pub fn require_delayable(
        delay: &Lowered<Option<Arc<Self>>>,
        cx: &mut Lowering<'_>,
        span: Span,
        limits: &[Lowered<LimitUse>],
    ) {
        let can_delay = |used: &Lowered<LimitUse>| {
            let Ok(used) = used else { return true };
            let quota = used.limit.quota();
            let overrides = used.limit.overrides().map(|overridden| overridden.quota);
            let mut quotas = quota.into_iter().chain(overrides);
            used.mode == Mode::CheckAndSpend
                && quotas.any(|quota| quota.algorithm() == Algorithm::Gcra)
        };
        if matches!(delay, Ok(Some(_))) && !limits.iter().any(can_delay) {
            cx.error(span, "no limit of this route can delay a request")
                .help(
                    "only limits of the algorithm gcra that check and spend do; list one, or leave \
                     `delay` out",
                );
        }
    }
}
